//! Kernels that are gone: where they were may become known later.

use super::{
    KernelName,
    handles::{CreatedKernel, ModuleImage, Objects},
};
use rustc_hash::FxHashMap;
use std::{
    collections::{BTreeMap, VecDeque},
    rc::Rc,
};

/// Most kernels remembered, and most that have ended.
const MAX_GONE: usize = 1 << 15;

/// A kernel that has, or had, a handle for some time.
#[derive(Clone, Debug)]
pub(super) struct GoneKernel {
    pub(super) handle: u64,
    pub(super) number: u64,
    pub(super) name: KernelName,
    pub(super) module: Option<Rc<ModuleImage>>,
    /// Since when its handle is known, 0 if it is older.
    pub(super) since_ns: u64,
    /// Since when its code is there, if that is of its module.
    pub(super) code_since_ns: Option<u64>,
    until_ns: u64,
}

impl GoneKernel {
    /// A kernel that is still there.
    pub(super) fn new(kernel: &CreatedKernel, handle: u64, since_ns: u64) -> Self {
        Self {
            handle,
            number: kernel.number,
            name: kernel.name.of_kernel(handle),
            module: kernel.module.clone(),
            since_ns,
            code_since_ns: kernel.code_since_ns,
            until_ns: u64::MAX,
        }
    }

    /// The one that a handle stands for now.
    pub(super) fn of(kernels: &Objects<CreatedKernel>, handle: u64) -> Option<Self> {
        let since_ns = kernels.since_ns(handle)?;
        Some(Self::new(kernels.get(handle)?, handle, since_ns))
    }

    /// It was destroyed.
    pub(super) fn until(self, until_ns: u64) -> Self {
        Self { until_ns, ..self }
    }
}

/// Kernels that are gone, the newest ones.
#[derive(Debug, Default)]
pub(super) struct Gone {
    kernels: FxHashMap<(u32, u64), VecDeque<GoneKernel>>,
    /// Their keys, in the order in which they ended.
    order: VecDeque<(u32, u64)>,
    /// When the code of kernels of modules ended, by their numbers and processes.
    ended: BTreeMap<(u64, u32), u64>,
}

impl Gone {
    /// A kernel is gone.
    pub(super) fn add(&mut self, pid: u32, kernel: GoneKernel) {
        if self.order.len() >= MAX_GONE
            && let Some(oldest) = self.order.pop_front()
            && let Some(kernels) = self.kernels.get_mut(&oldest)
        {
            kernels.pop_front();
            if kernels.is_empty() {
                self.kernels.remove(&oldest);
            }
        }
        let key = (pid, kernel.handle);
        self.order.push_back(key);
        self.kernels.entry(key).or_default().push_back(kernel);
    }

    /// A kernel's code is gone.
    pub(super) fn code_gone(&mut self, pid: u32, number: u64, at_ns: u64) {
        if self.ended.len() >= MAX_GONE {
            self.ended.pop_first();
        }
        self.ended.insert((number, pid), at_ns);
    }

    /// Until when a kernel's code was there; `u64::MAX`: it still is.
    pub(super) fn code_until(&self, pid: u32, kernel: &GoneKernel) -> u64 {
        match (self.ended.get(&(kernel.number, pid)), kernel.code_since_ns) {
            (Some(&ended), _) => ended,
            (None, Some(_)) => u64::MAX,
            (None, None) => kernel.until_ns,
        }
    }

    /// The kernel that a handle stood for at a time.
    pub(super) fn find(&self, pid: u32, handle: u64, time_ns: u64) -> Option<GoneKernel> {
        let kernels = self.kernels.get(&(pid, handle))?;
        let then = |kernel: &&GoneKernel| (kernel.since_ns..=kernel.until_ns).contains(&time_ns);
        kernels.iter().rev().find(then).cloned()
    }
}
