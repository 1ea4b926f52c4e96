//! Calls to launches: which work a call gave the device; pure.
//!
//! * [`Tracker`](calls::Tracker) pairs entries and exits, folds nested calls of
//!   one thread into one, keeps what handles mean (kernels, lists, queues,
//!   modules, memory), and hands finished calls and launches to a [`CallSink`].

use crate::probes::{CallKind, Probe};
use std::rc::Rc;

/// Takes what the tracker finds, in the order it becomes certain.
pub trait CallSink {
    /// A call is over.
    fn call(&mut self, call: &FinishedCall);
    /// Work was given to a device.
    fn launch(&mut self, launch: &Launch);
}

/// A call with its entry, its exit where seen, and the calls nested in it.
#[derive(Clone, Debug)]
pub struct FinishedCall {
    /// The function the program called: the outermost of nested ones.
    pub probe: Rc<Probe>,
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
    /// Values by slot of `probe`, with whether each could be read.
    pub values: Vec<(u64, bool)>,
    /// Data by tag of `probe`, as far as they arrived; blobs are left out here.
    pub data: Vec<Option<Vec<u8>>>,
    /// Id of the stack; 0: none.
    pub stack: u64,
    /// Depth among the calls of its thread: 0 is called by the program itself.
    pub depth: u32,
    /// Functions of inner libraries that did the work, outermost first.
    pub inner: Vec<Rc<Probe>>,
    /// Numbers the calls of the recording from 1; a launch refers to it.
    pub id: u64,
}

/// What is known of a kernel's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KernelName {
    /// The name, demangled.
    Known(Rc<str>),
    /// Created before aiprof was attached, and not found out since: its handle.
    BeforeAttach(u64),
    /// The API gives no name.
    Unknown,
}

/// Work given to a device.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Numbers the launches of the recording from 1: the correlation id.
    pub id: u64,
    /// The call that made it ([`FinishedCall::id`]); of a list, the append.
    pub call: u64,
    /// The call that submitted it, if another.
    pub submit: Option<u64>,
    /// `Launch`, `Copy`, `Fill`, `Barrier` or `Submit`.
    pub kind: CallKind,
    /// The outermost function's API.
    pub api: Rc<str>,
    /// The function that the program called.
    pub function: Rc<str>,
    /// Process.
    pub pid: u32,
    /// Thread that made it.
    pub tid: u32,
    /// Entry of that call.
    pub start_ns: u64,
    /// Its exit, where seen.
    pub end_ns: Option<u64>,
    /// When it was handed to the device: the entry of the submitting call.
    pub submitted_ns: u64,
    /// Device handle, 0 if not known.
    pub device: u64,
    /// Queue, stream or immediate list handle, 0 if not known.
    pub queue: u64,
    /// List it was appended to, 0 if none.
    pub list: u64,
    /// Kernel handle, 0 if none.
    pub kernel: u64,
    /// The kernel's name; of a copy or fill the operation, `Memcpy (HtoD)`.
    pub name: KernelName,
    /// Work groups along each axis; 0 if not known.
    pub groups: [u32; 3],
    /// Work items of a group along each axis; 0 if not known.
    pub local: [u32; 3],
    /// Bytes moved.
    pub bytes: u64,
    /// Event handle that it signals, 0 if none.
    pub event: u64,
    /// Id of the stack of the call that made it; 0: none.
    pub stack: u64,
}
