//! Calls that are over.

use super::KernelName;
use aiprof_common::MAX_VALUES;
use aiprof_model::{
    probes::{
        Probe,
        ioctl::{ArrayLayout, Elements},
    },
    wire,
};
use std::rc::Rc;

/// How a call lies among the calls of its thread.
#[derive(Clone, Debug)]
pub struct CallNesting {
    /// The call directly around it, 0 if none.
    pub parent: u64,
    /// Calls around it: 0 is called by the program itself.
    pub depth: u32,
    /// The function of the outermost call around it; its own at depth 0.
    pub outermost: Rc<Probe>,
    /// It is the call around it, made in an inner library (see the module).
    pub is_part: bool,
    /// Parts of it in inner libraries, outermost first.
    pub inner: Vec<Rc<Probe>>,
    /// Time in calls nested in it that are not part of it, nanoseconds. Calls whose ends were not
    /// seen do not count.
    pub nested_ns: u64,
}

/// What a call gave a device.
#[derive(Clone, Debug, Default)]
pub struct CallWork {
    /// The first if it is several: the kernel or the operation. Also set for what was put on a
    /// list.
    pub first: Option<KernelName>,
    /// Launches that it stands for; what is put on a regular list counts here too.
    pub launches: u32,
}

/// A call with its entry and, where seen, its exit.
#[derive(Clone, Debug)]
pub struct FinishedCall {
    /// Numbers the calls of the recording from 1, by entry; a launch refers to it.
    pub id: u64,
    /// How it lies among others.
    pub nesting: CallNesting,
    /// The function.
    pub probe: Rc<Probe>,
    /// The file ([`ProbedFile::id`](aiprof_model::probes::ProbedFile::id)) or the device number of an ioctl.
    pub library: u32,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// When it was entered, CLOCK_MONOTONIC nanoseconds.
    pub start_ns: u64,
    /// When it was left; `None`: not seen, it ended before `end_before_ns`.
    pub end_ns: Option<u64>,
    /// The latest it can have ended.
    pub end_before_ns: u64,
    /// Return value, if its exit was seen.
    pub result: Option<u64>,
    /// Values by slot of `probe`; see [`FinishedCall::value`].
    pub values: [u64; MAX_VALUES],
    /// One bit for each slot that holds nothing: not read, or not readable.
    pub unread: u16,
    /// `CALL_*` bits of `aiprof_common`.
    pub flags: u16,
    /// Data read for it, in the order of arrival.
    pub data: Vec<CallContent>,
    /// Id of the stack; 0: none.
    pub stack: u64,
    /// What it gave the device.
    pub work: CallWork,
}

impl CallWork {
    /// It stands for more launches.
    pub(super) fn add(&mut self, launches: u32) {
        self.launches = self.launches.saturating_add(launches);
    }

    /// It stands for fewer launches.
    pub(super) fn remove(&mut self, launches: u32) {
        self.launches = self.launches.saturating_sub(launches);
    }
}

/// Data of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallContent {
    /// Index in [`Probe::data`].
    pub tag: u8,
    /// Bytes of the whole in the program's memory; of a text 0.
    pub total: u64,
    /// Whether all of it arrived.
    pub complete: bool,
    /// The bytes, up to 64 KiB; of device code none.
    pub bytes: Vec<u8>,
}

impl FinishedCall {
    /// A call of which nothing but the function is known.
    pub fn of(probe: Rc<Probe>) -> Self {
        Self {
            id: 0,
            nesting: CallNesting {
                parent: 0,
                depth: 0,
                outermost: probe.clone(),
                is_part: false,
                inner: Vec::new(),
                nested_ns: 0,
            },
            probe,
            library: 0,
            pid: 0,
            tid: 0,
            start_ns: 0,
            end_ns: None,
            end_before_ns: 0,
            result: None,
            values: [0; MAX_VALUES],
            unread: (1 << MAX_VALUES) - 1,
            flags: 0,
            data: Vec::new(),
            stack: 0,
            work: CallWork::default(),
        }
    }

    /// The elements of an array among its arguments.
    pub fn elements(&self, array: &ArrayLayout) -> Elements {
        let data = self.content(usize::from(array.tag));
        let data = data.map_or(&[][..], |content| &content.bytes);
        array.elements(&self.probe, |slot| self.value(slot), data)
    }

    /// The value in a slot, if it was read.
    pub fn value(&self, slot: usize) -> Option<u64> {
        wire::value(&self.values, self.unread, slot)
    }

    /// The data with a tag, if any arrived.
    pub fn content(&self, tag: usize) -> Option<&CallContent> {
        self.data.iter().find(|d| usize::from(d.tag) == tag)
    }

    /// By then it was over: its exit, or the latest that can have been.
    pub(super) fn over_ns(&self) -> u64 {
        self.end_ns.unwrap_or(self.end_before_ns)
    }

    /// How long it took, if its exit was seen.
    pub fn duration_ns(&self) -> Option<u64> {
        Some(self.end_ns?.saturating_sub(self.start_ns))
    }

    /// Whether it succeeded, if that is known.
    pub fn succeeded(&self) -> Option<bool> {
        self.probe.result.success(self.result?)
    }
}
