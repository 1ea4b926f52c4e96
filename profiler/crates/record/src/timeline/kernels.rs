//! What kernels are made of: by the module that the program gave its runtime, and by what the
//! runtime returned when the program asked.

use crate::aggregate::ModuleArrivals;
use crate::correlate::{FinishedCall, ImagePiece, KernelName, TrackedLaunch};
use aiprof_model::probes::CallKind;
use aiprof_model::timeline::Args;
use aiprof_symbols::symbolize::device::{Attributes, attributes};
use rustc_hash::FxHashMap;
use sha2::{Digest as _, Sha256};

/// Most kernels of which something is remembered.
const MAX_KERNELS: usize = 1 << 16;
/// `ZE_MODULE_FORMAT_IL_SPIRV` (ze_api.h): the driver compiles it.
const IL_SPIRV: u64 = 0;

/// What a kernel is made of; `None`: not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Facts {
    /// Compiled before the program ran.
    is_aot: Option<bool>,
    simd: Option<u64>,
    arguments: Option<u64>,
    slm_bytes: Option<u64>,
    private_bytes: Option<u64>,
    spill_bytes: Option<u64>,
    registers: Option<u64>,
    /// They were written.
    is_written: bool,
}

impl Facts {
    /// Adds what another source knows.
    fn add(&mut self, other: &Self) {
        self.is_aot = self.is_aot.or(other.is_aot);
        self.simd = self.simd.or(other.simd);
        self.arguments = self.arguments.or(other.arguments);
        self.slm_bytes = self.slm_bytes.or(other.slm_bytes);
        self.private_bytes = self.private_bytes.or(other.private_bytes);
        self.spill_bytes = self.spill_bytes.or(other.spill_bytes);
        self.registers = self.registers.or(other.registers);
    }
}

/// What is known of the kernels of a recording.
#[derive(Debug, Default)]
pub(super) struct KernelFacts {
    arrivals: ModuleArrivals,
    /// What compilers wrote about the kernels of modules, by the modules' digests.
    modules: FxHashMap<[u8; 32], FxHashMap<String, Attributes>>,
    /// How many kernels these are.
    compiled: usize,
    /// By `kernel_number` of the launch.
    kernels: FxHashMap<u64, Facts>,
    /// What runtimes returned about kernels, by process and handle.
    returned: FxHashMap<(u32, u64), Facts>,
}

impl KernelFacts {
    /// A piece of a module.
    pub(super) fn image_piece(&mut self, piece: &ImagePiece<'_>) {
        let Some(whole) = self.arrivals.piece(piece) else {
            return;
        };
        let digest: [u8; 32] = Sha256::digest(&whole).into();
        let is_full = self.compiled.max(self.modules.len()) >= MAX_KERNELS;
        if is_full || self.modules.contains_key(&digest) {
            return;
        }
        let room = MAX_KERNELS - self.compiled;
        let kernels: FxHashMap<_, _> = attributes(&whole).into_iter().take(room).collect();
        self.compiled += kernels.len();
        self.modules.insert(digest, kernels);
    }

    /// Takes what a program asked of a kernel, in a call of `zeKernelGetProperties`; and
    /// forgets what was known of a handle that is new.
    pub(super) fn call(&mut self, call: &FinishedCall) {
        let probe = &*call.probe;
        if probe.kind != CallKind::Kernel || call.succeeded() != Some(true) {
            return;
        }
        let value = |name: &str| probe.slot(name).and_then(|slot| call.value(slot));
        let Some(handle) = value("kernel") else {
            return;
        };
        if &*probe.function == "zeKernelCreate" {
            self.returned.remove(&(call.pid, handle));
            return;
        }
        let Some(simd) = value("subgroup") else {
            return;
        };
        if self.returned.len() >= MAX_KERNELS {
            return;
        }
        let facts = Facts {
            simd: Some(simd),
            arguments: value("kernel_args"),
            slm_bytes: value("local_bytes"),
            private_bytes: value("private_bytes"),
            spill_bytes: value("spill_bytes"),
            ..Facts::default()
        };
        self.returned.insert((call.pid, handle), facts);
    }

    /// Takes note of what a launched kernel is made of, when it is launched first, and of what
    /// the runtime returned about it since.
    pub(super) fn launched(&mut self, launch: &TrackedLaunch) {
        if launch.work.kernel_number == 0 || launch.kind != CallKind::Launch {
            return;
        }
        let returned = self
            .returned
            .get(&(launch.by.pid, launch.work.kernel))
            .copied();
        if let Some(known) = self.kernels.get_mut(&launch.work.kernel_number) {
            if let (Some(returned), false) = (returned, known.is_written) {
                known.add(&returned);
            }
            return;
        }
        if self.kernels.len() >= MAX_KERNELS {
            return;
        }
        let mut facts = returned.unwrap_or_default();
        facts.add(&self.of_module(launch));
        self.kernels.insert(launch.work.kernel_number, facts);
    }

    fn of_module(&self, launch: &TrackedLaunch) -> Facts {
        let Some(module) = &launch.work.module else {
            return Facts::default();
        };
        let is_level_zero = &*launch.by.api == "Level Zero" || launch.by.function.starts_with("ze");
        let mut facts = Facts {
            is_aot: is_level_zero.then_some(module.format != IL_SPIRV),
            ..Facts::default()
        };
        let KernelName::Known(name) = &launch.work.name else {
            return facts;
        };
        let found = module.digest.and_then(|digest| self.modules.get(&digest));
        if let Some(found) = found.and_then(|kernels| kernels.get(&**name)) {
            let simd = found.simd_size.map(u64::from);
            facts.simd = simd;
            facts.arguments = found.arguments.map(u64::from);
            // The compiler leaves out what is 0.
            let or_none = |bytes: Option<u64>| simd.map(|_| bytes.unwrap_or(0));
            facts.slm_bytes = or_none(found.slm_bytes);
            facts.private_bytes = or_none(found.private_bytes);
            facts.spill_bytes = or_none(found.spill_bytes);
            facts.registers = found.grf_count.map(u64::from);
        }
        facts
    }

    /// Writes a kernel's width, and with its first command all that is known of it.
    pub(super) fn write(&mut self, args: &mut Args, kernel: u64) {
        let Some(facts) = self.kernels.get_mut(&kernel) else {
            return;
        };
        if let Some(simd) = facts.simd {
            args.number("simd", simd);
        }
        if std::mem::replace(&mut facts.is_written, true) {
            return;
        }
        args.text(
            "compiled",
            match facts.is_aot {
                Some(true) => "AOT",
                Some(false) => "JIT",
                None => "?",
            },
        );
        for (key, value) in [
            ("arguments", facts.arguments),
            ("slm_bytes", facts.slm_bytes),
            ("private_bytes", facts.private_bytes),
            ("spill_bytes", facts.spill_bytes),
            ("registers", facts.registers),
        ] {
            if let Some(value) = value {
                args.number(key, value);
            }
        }
    }
}
