//! Addresses of samples as places in files: what stays true after their process has gone.

use super::NoStack;
use super::python::PlacedPython;
use aiprof_common::{
    ADDR_EXACT, ADDR_GUESSED, ADDR_MIDDLE, JsFunction, is_caller_guessed, java_method,
};
use aiprof_model::{
    process::{FileId, Process, ProcessTable, Region, Runtime, Space},
    wire::{Sample, StopReason, WaitReason},
};
use serde::{Deserialize, Serialize};

/// A normalized code address: what gets a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Code {
    /// In a file, by offset in the file.
    File {
        /// Handle in the process table's file table.
        file: u32,
        /// Offset in the file.
        offset: u64,
    },
    /// In the kernel.
    Kernel {
        /// Absolute address.
        address: u64,
    },
    /// In memory without a file: code generated at run time.
    Jit {
        /// Process id.
        pid: u32,
        /// Absolute address.
        address: u64,
    },
    /// In a region the kernel provides, or in none known.
    Special(SpecialCode),
    /// Not an address: the walk of the stack ended here for this reason.
    Cut(StopReason),
    /// A probed function, by its table's name.
    Function {
        /// Handle of the name in the aggregator.
        name: u32,
    },
    /// What follows is done by a device.
    Device,
    /// A kernel, or an operation, of a device.
    Work {
        /// Handle of the name in the aggregator.
        name: u32,
    },
    /// A call whose stack is not known.
    NoStack(NoStack),
    /// A frame of an interpreter.
    Python {
        /// Handle of the function in the process table's scripts.
        function: u32,
        /// Line that it is at.
        line: u32,
    },
    /// Not an address: what the thread waited for.
    Wait(WaitReason),
    /// The walk of the stack ended here for this reason, in code of this runtime.
    CutIn(StopReason, Runtime),
    /// Code generated at run time, as it was since this time.
    JitSince {
        /// Process id.
        pid: u32,
        /// Absolute address.
        address: u64,
        /// `CLOCK_MONOTONIC` nanoseconds; 0: before what is known.
        since: u64,
    },
    /// A method of Java that HotSpot's interpreter runs.
    JavaMethod {
        /// Process id.
        pid: u32,
        /// The method's address, no code.
        method: u64,
    },
    /// A function of JavaScript that V8 runs.
    JsFunction {
        /// Process id.
        pid: u32,
        /// Where V8 describes it, no code.
        shared: u64,
        /// Distinguishes it from another one there, see [`aiprof_common::js_check`].
        check: u16,
    },
    /// An operator of PyTorch.
    Op {
        /// Handle of the name in the aggregator.
        name: u32,
    },
}

impl Code {
    /// Why the walk of a stack ended here; `None` for addresses.
    pub fn cut(&self) -> Option<StopReason> {
        match self {
            Self::Cut(reason) | Self::CutIn(reason, _) => Some(*reason),
            _ => None,
        }
    }

    /// The process that is asked for its name, and has it only while it lives.
    pub fn named_by(&self) -> Option<u32> {
        match self {
            Self::Jit { pid, .. } | Self::JavaMethod { pid, .. } | Self::JsFunction { pid, .. } => {
                Some(*pid)
            }
            _ => None,
        }
    }
}

/// Code that has a name by where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SpecialCode {
    /// The vsyscall page.
    Vsyscall,
    /// The kernel's uprobe area.
    Uprobes,
    /// An address in no known mapping.
    Unmapped,
    /// An address of a process of which nothing is known.
    UnknownProcess,
    /// No code: a guess that what is below called what is above.
    Guessed,
    /// A Python frame whose function is not known.
    UnknownPython,
    /// No code: of the Python frames that follow it is not known which native frames ran
    /// them.
    PythonApart,
}

/// Handle of a [`Code`] in an [`Aggregator`](super::Aggregator).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CodeId(pub u32);

/// The codes of a sample's stack, leaf first: kernel, then user, then why the walk
/// of the user stack ended, where that was too early.
pub(crate) fn each_code(
    processes: &ProcessTable,
    process: Option<&Process>,
    sample: &Sample,
    mut take: impl FnMut(Code),
) {
    for (depth, &address) in sample.kernel.iter().enumerate() {
        let address = if depth == 0 {
            address
        } else {
            address.wrapping_sub(1)
        };
        take(Code::Kernel { address });
    }
    let space = process.map(|p| &*p.space);
    let stale = sample.space != 0 && space.is_some_and(|s| s.id != sample.space);
    let (user, stop) = match (stale, sample.user.get(..1)) {
        // Without an exec since the fork, another process had this id before.
        (true, Some(leaf)) if process.is_some_and(|p| p.is_fork) => (leaf, StopReason::NoProcess),
        (true, Some(leaf)) => (leaf, StopReason::StaleImage),
        _ => (sample.user.as_slice(), sample.stop),
    };
    let known = process.map(|process| &*process.python);
    // What was unwound with the mappings of a dead image has Python frames of that.
    let mut python = known.filter(|_| !stale).map(|known| {
        PlacedPython::new(
            known,
            sample,
            user,
            stop.loss().is_none(),
            processes.python_c_frames,
        )
    });
    let mut outermost = None;
    for (depth, &raw) in user.iter().enumerate() {
        if raw == ADDR_MIDDLE {
            take(Code::Cut(StopReason::TooDeep));
            continue;
        }
        if let Some(code) = function(sample.thread.pid, raw) {
            outermost = Some(code);
            if let Some(python) = &mut python {
                // Its address is none of code.
                python.at(depth, 0, code, &mut take);
            }
            take(code);
            continue;
        }
        let exact = depth == 0 || raw & ADDR_EXACT != 0;
        let guessed = is_caller_guessed(raw);
        let marks = if guessed {
            ADDR_EXACT | ADDR_GUESSED
        } else {
            ADDR_EXACT
        };
        let address = raw & !marks;
        let address = if exact {
            address
        } else {
            address.wrapping_sub(1)
        };
        let code = normalize(processes, space, sample.thread.pid, address);
        outermost = Some(code);
        if let Some(python) = &mut python
            && !python.at(depth, address, code, &mut take)
        {
            continue;
        }
        take(code);
        if guessed && depth + 1 < user.len() {
            take(Code::Special(SpecialCode::Guessed));
        }
    }
    let is_cut = stop.loss().is_some();
    let gap = if is_cut {
        match outermost.and_then(|code| runtime_of(processes, space, code)) {
            Some(runtime) => Code::CutIn(stop, runtime),
            None => Code::Cut(stop),
        }
    } else {
        Code::Special(SpecialCode::PythonApart)
    };
    let has_rest = python.is_some_and(|mut python| python.rest(gap, &mut take));
    if is_cut && !has_rest {
        take(gap);
    }
}

/// The function that an address of a sample stands for; `None`: it is one of code.
fn function(pid: u32, raw: u64) -> Option<Code> {
    if let Some(method) = java_method(raw) {
        return Some(Code::JavaMethod { pid, method });
    }
    let JsFunction { shared, check } = JsFunction::of(raw)?;
    Some(Code::JsFunction { pid, shared, check })
}

/// The runtime whose code, generated or its own, is there.
fn runtime_of(processes: &ProcessTable, space: Option<&Space>, code: Code) -> Option<Runtime> {
    match code {
        Code::Jit { .. } => space?.generated.runtime(),
        Code::JavaMethod { .. } => Some(Runtime::Java),
        Code::JsFunction { .. } => Some(Runtime::V8),
        Code::File { file, .. } => {
            let key = processes.files.key(FileId(file))?;
            Runtime::of_path(&key.path)
        }
        _ => None,
    }
}

/// What an address of a process means now.
fn normalize(processes: &ProcessTable, space: Option<&Space>, pid: u32, address: u64) -> Code {
    const VSYSCALL: u64 = 0xffff_ffff_ff60_0000;
    // The mark of exact addresses is bit 63: put it back for the one page that has it.
    if address | ADDR_EXACT >= VSYSCALL && address > 1 << 62 {
        return Code::Special(SpecialCode::Vsyscall);
    }
    let Some(space) = space else {
        return Code::Special(SpecialCode::UnknownProcess);
    };
    let Some(mapping) = space.find(address) else {
        return Code::Special(SpecialCode::Unmapped);
    };
    match region(processes, mapping.file) {
        Region::File | Region::Vdso => Code::File {
            file: mapping.file.0,
            offset: address - mapping.start + mapping.file_offset,
        },
        Region::Vsyscall => Code::Special(SpecialCode::Vsyscall),
        Region::Uprobes => Code::Special(SpecialCode::Uprobes),
        Region::Anonymous => Code::Jit { pid, address },
    }
}

fn region(processes: &ProcessTable, file: FileId) -> Region {
    processes
        .files
        .key(file)
        .map_or(Region::Anonymous, Region::of)
}
