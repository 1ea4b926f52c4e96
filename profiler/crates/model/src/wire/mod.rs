//! Ring-buffer bytes to typed records, and the events everything else consumes.
//!
//! Decoding is total: truncated, oversized or unknown input is an `Err`, never
//! a panic, and reads only the bytes it was given.

mod call;
mod counter;
mod device;
mod event;
mod labels;
pub mod ops;
mod python;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod trace;
mod wait;

pub use call::value;
pub use call::{Call, CallData, CallStack, KernelNamed};
pub use counter::{ClockPair, Counter};
pub use device::{DeviceCode, DeviceStream, KernelPlaced, PlacedBy, StallCount, StallWindow};
pub use event::{
    Event, FileKey, MapEvent, Pause, ProcessEvent, ProcessEventKind, Sample, StopReason, Thread,
};
pub use labels::ProcessLabels;
pub use ops::{OpKind, OpSpan, Ops, OpsNews, OpsPart, OpsRead};
pub use python::{PythonCode, PythonFound, PythonPieces, PythonRecord, PythonStack};
pub use trace::{Trace, TracePoint};
pub use wait::{ThreadWait, WaitReason};

use aiprof_common::{
    ADDR_MIDDLE, KIND_CALL, KIND_CALL_DATA, KIND_CALL_STACK, KIND_PYTHON_CODE, KIND_PYTHON_LINES,
    KIND_SAMPLE, KIND_STACK_PAGE, KIND_TRACE, KIND_WAIT, MAX_KERNEL_FRAMES, MAX_PYTHON_WORDS,
    MAX_USER_FRAMES, ROOT_FRAMES, STACK_PAGE, SampleHeader, StackPage,
};
use std::mem::size_of;
use thiserror::Error;

/// Why a record could not be decoded.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum WireError {
    /// Shorter than its header, or than the size in its header.
    #[error("record of {have} bytes is shorter than the {need} it should have")]
    Truncated {
        /// Bytes given.
        have: usize,
        /// Bytes needed.
        need: usize,
    },
    /// A kind this version does not know.
    #[error("unknown record kind {0}")]
    UnknownKind(u32),
    /// A count or code outside its range.
    #[error("record field `{0}` is out of range")]
    OutOfRange(&'static str),
}

/// The `N` bytes at `at`.
fn bytes<const N: usize>(data: &[u8], at: usize) -> Result<[u8; N], WireError> {
    let truncated = WireError::Truncated {
        have: data.len(),
        need: at + N,
    };
    data.get(at..at + N)
        .and_then(|b| b.try_into().ok())
        .ok_or(truncated)
}

macro_rules! field {
    ($data:expr, $field:ident: $ty:ty) => {
        bytes($data, std::mem::offset_of!(SampleHeader, $field)).map(<$ty>::from_ne_bytes)
    };
}

/// A decoded record.
#[derive(Debug, PartialEq, Eq)]
pub enum Record {
    /// A CPU sample.
    Sample(Sample),
    /// A page of the user stack of a sample.
    StackPage {
        /// CPU of the sample.
        cpu: u32,
        /// Time of the sample.
        time_ns: u64,
        /// Address of the first byte.
        address: u64,
        /// The content, STACK_PAGE bytes.
        data: Box<[u8]>,
    },
    /// A call's entry or exit.
    Call(Call),
    /// Data of a call.
    CallData(CallData),
    /// A stack of calls.
    CallStack(CallStack),
    /// A tracepoint.
    Trace(Trace),
    /// A Python code object.
    Python(PythonRecord),
    /// A wait of a thread.
    Wait(ThreadWait),
}

/// Decodes one record of the sample ring.
///
/// # Errors
/// See [`WireError`].
pub fn decode(data: &[u8]) -> Result<Record, WireError> {
    match u32::from_ne_bytes(bytes(data, 0)?) {
        KIND_SAMPLE => decode_sample(data).map(Record::Sample),
        KIND_STACK_PAGE => decode_stack_page(data),
        KIND_CALL => call::decode_call(data).map(Record::Call),
        KIND_CALL_DATA => call::decode_data(data).map(Record::CallData),
        KIND_CALL_STACK => {
            let mut sample = decode_sample(data)?;
            let id = std::mem::take(&mut sample.period);
            Ok(Record::CallStack(CallStack { id, sample }))
        }
        KIND_TRACE => trace::decode(data).map(Record::Trace),
        KIND_PYTHON_CODE | KIND_PYTHON_LINES => python::decode(data).map(Record::Python),
        KIND_WAIT => wait::decode(data).map(Record::Wait),
        other => Err(WireError::UnknownKind(other)),
    }
}

fn decode_stack_page(data: &[u8]) -> Result<Record, WireError> {
    let at = std::mem::offset_of!(StackPage, data);
    let need = at + STACK_PAGE;
    let page = data.get(at..need).ok_or(WireError::Truncated {
        have: data.len(),
        need,
    })?;
    Ok(Record::StackPage {
        cpu: u32::from_ne_bytes(bytes(data, std::mem::offset_of!(StackPage, cpu))?),
        time_ns: u64::from_ne_bytes(bytes(data, std::mem::offset_of!(StackPage, time_ns))?),
        address: u64::from_ne_bytes(bytes(data, std::mem::offset_of!(StackPage, address))?),
        data: page.into(),
    })
}

fn decode_sample(data: &[u8]) -> Result<Sample, WireError> {
    let user_len = usize::from(field!(data, user_len: u16)?);
    let kernel_len = usize::from(field!(data, kernel_len: u16)?);
    if user_len > MAX_USER_FRAMES {
        return Err(WireError::OutOfRange("user_len"));
    }
    if kernel_len > MAX_KERNEL_FRAMES {
        return Err(WireError::OutOfRange("kernel_len"));
    }
    let python_len = usize::from(field!(data, python_len: u16)?);
    if python_len > MAX_PYTHON_WORDS {
        return Err(WireError::OutOfRange("python_len"));
    }
    let stop =
        StopReason::from_wire(field!(data, stop: u8)?).ok_or(WireError::OutOfRange("stop"))?;
    let user_at = size_of::<SampleHeader>();
    let kernel_at = user_at + user_len * 8;
    Ok(Sample {
        time_ns: field!(data, time_ns: u64)?,
        cpu: field!(data, cpu: u32)?,
        thread: Thread {
            pid: field!(data, tgid: u32)?,
            tid: field!(data, tid: u32)?,
            comm: comm(&bytes::<16>(
                data,
                std::mem::offset_of!(SampleHeader, comm),
            )?),
        },
        cgroup: field!(data, cgroup: u64)?,
        period: field!(data, period: u64)?,
        space: field!(data, space: u32)?,
        miss_dir: field!(data, miss_dir: u32)?,
        miss_page: field!(data, miss_page: u32)?,
        stop,
        flags: field!(data, flags: u8)?,
        rip: field!(data, rip: u64)?,
        rsp: field!(data, rsp: u64)?,
        rbp: field!(data, rbp: u64)?,
        user: whole(
            addresses(data, user_at, user_len)?,
            field!(data, omitted: u32)?,
        ),
        kernel: addresses(data, kernel_at, kernel_len)?,
        python: addresses(data, kernel_at + kernel_len * 8, python_len)?,
    })
}

fn addresses(data: &[u8], at: usize, len: usize) -> Result<Vec<u64>, WireError> {
    let need = at + len * 8;
    let raw = data.get(at..need).ok_or(WireError::Truncated {
        have: data.len(),
        need,
    })?;
    Ok(raw
        .chunks_exact(8)
        .filter_map(|c| c.try_into().ok())
        .map(u64::from_ne_bytes)
        .collect())
}

/// Puts the frames at the root of a deep stack into order, and a mark before them.
fn whole(mut user: Vec<u64>, omitted: u32) -> Vec<u64> {
    if omitted == 0 || user.len() != MAX_USER_FRAMES {
        return user;
    }
    if let Some(root) = user.get_mut(ROOT_FRAMES..) {
        root.rotate_left(omitted as usize % ROOT_FRAMES);
    }
    user.insert(ROOT_FRAMES, ADDR_MIDDLE);
    user
}

/// A NUL-padded thread name.
pub(crate) fn comm(raw: &[u8]) -> String {
    let end = raw.iter().position(|&b| b == 0).unwrap_or(raw.len());
    String::from_utf8_lossy(raw.get(..end).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record as the kernel side lays it out, written by hand from the
    /// offsets of `SampleHeader`.
    fn record() -> Vec<u8> {
        let mut data = vec![0u8; 104];
        data[0..4].copy_from_slice(&KIND_SAMPLE.to_ne_bytes());
        data[4..8].copy_from_slice(&3u32.to_ne_bytes());
        data[8..16].copy_from_slice(&77u64.to_ne_bytes());
        data[16..20].copy_from_slice(&10u32.to_ne_bytes());
        data[20..24].copy_from_slice(&11u32.to_ne_bytes());
        data[24..28].copy_from_slice(b"name");
        data[68..70].copy_from_slice(&2u16.to_ne_bytes());
        data[70..72].copy_from_slice(&1u16.to_ne_bytes());
        data[72] = aiprof_common::STOP_END;
        data[74..76].copy_from_slice(&1u16.to_ne_bytes());
        for address in [0x1000u64, 0x2000, 0xffff_ffff_8100_0000, 77] {
            data.extend(address.to_ne_bytes());
        }
        data
    }

    #[test]
    fn decodes_what_the_kernel_side_writes() {
        let Record::Sample(sample) = decode(&record()).unwrap() else {
            panic!("no sample")
        };
        assert_eq!((sample.cpu, sample.time_ns), (3, 77));
        assert_eq!((sample.thread.pid, sample.thread.tid), (10, 11));
        assert_eq!(sample.thread.comm, "name");
        assert_eq!(sample.user, [0x1000, 0x2000]);
        assert_eq!(sample.kernel, [0xffff_ffff_8100_0000]);
        assert_eq!(sample.python, [77]);
        assert_eq!(sample.stop, StopReason::End);
    }

    #[test]
    fn of_deep_stacks_leaf_and_root_are_in_order() {
        // What the kernel side does with 3,000 frames: see `ROOT_FRAMES`.
        let mut slots = vec![0; MAX_USER_FRAMES];
        for n in 0..3000 {
            let at = if n < ROOT_FRAMES {
                n
            } else {
                ROOT_FRAMES + n % ROOT_FRAMES
            };
            slots[at] = n as u64 + 1;
        }
        let omitted = 3000 - MAX_USER_FRAMES as u32;
        let leaf = 1..=ROOT_FRAMES as u64;
        let root = 3001 - ROOT_FRAMES as u64..=3000;
        let want: Vec<u64> = leaf.chain([ADDR_MIDDLE]).chain(root).collect();
        assert_eq!(whole(slots, omitted), want);
        assert_eq!(whole(vec![1, 2], 0), [1, 2]);
    }

    #[test]
    fn every_prefix_is_refused() {
        let full = record();
        for len in 0..full.len() {
            assert!(decode(&full[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn out_of_range_is_refused() {
        let change = |at: usize, value: &[u8]| {
            let mut data = record();
            data[at..at + value.len()].copy_from_slice(value);
            decode(&data)
        };
        assert_eq!(change(0, &[10]), Err(WireError::UnknownKind(10)));
        assert_eq!(
            change(68, &1025u16.to_ne_bytes()),
            Err(WireError::OutOfRange("user_len"))
        );
        assert_eq!(
            change(70, &128u16.to_ne_bytes()),
            Err(WireError::OutOfRange("kernel_len"))
        );
        assert_eq!(change(72, &[200]), Err(WireError::OutOfRange("stop")));
        assert_eq!(
            change(74, &1025u16.to_ne_bytes()),
            Err(WireError::OutOfRange("python_len"))
        );
    }
}
