//! Calls of probed functions and ioctls, as events.

use super::{Sample, WireError, bytes};
use aiprof_common::{
    BLOB_BYTES, CALL_EXIT, CALL_LATE, CALL_TAIL, CallRecord, DataHeader, MAX_VALUES,
};
use serde::{Deserialize, Serialize};
use std::mem::{offset_of, size_of};

/// The entry or the exit of a probed call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// CPU it was seen on.
    pub cpu: u32,
    /// Process id (tgid) in the root pid namespace.
    pub pid: u32,
    /// Thread id in the root pid namespace.
    pub tid: u32,
    /// Which function: the id of a [`Probe`](crate::probes::Probe).
    pub probe: u32,
    /// Which file: the id of a [`ProbedFile`](crate::probes::ProbedFile); of an
    /// ioctl the device number.
    pub library: u32,
    /// Id of the [`CallStack`] at the entry; 0: none recorded.
    pub stack: u64,
    /// The call's identity on its thread: the address of the slot that holds its
    /// return address. Calls further in have smaller ones. 0 for an ioctl.
    pub sp: u64,
    /// When the call began that is open around this one, and at the exit this one
    /// itself; 0: none is. See [`CallRecord::around_ns`].
    pub around_ns: u64,
    /// Return value; 0 at the entry.
    pub result: u64,
    /// One bit for each value that could not be read.
    pub unread: u16,
    /// `CALL_*` bits of `aiprof_common`.
    pub flags: u16,
    /// Values by slot; the [`Probe`](crate::probes::Probe) describes what they mean.
    pub values: [u64; MAX_VALUES],
}

impl Call {
    /// Whether this is the exit.
    pub fn is_exit(&self) -> bool {
        self.flags & CALL_EXIT != 0
    }

    /// The value in a slot, if it was read.
    pub fn value(&self, slot: usize) -> Option<u64> {
        value(&self.values, self.unread, slot)
    }

    /// Whether it is an exit that was not seen, see [`CALL_LATE`].
    pub fn is_late(&self) -> bool {
        self.flags & CALL_LATE != 0
    }

    /// Whether the pending call around it is the same call in an outer library.
    pub fn is_tail(&self) -> bool {
        self.flags & CALL_TAIL != 0
    }
}

/// The value in a slot, unless its bit in `unread` marks it as not read.
pub fn value(values: &[u64; MAX_VALUES], unread: u16, slot: usize) -> Option<u64> {
    let value = values.get(slot).copied()?;
    (unread >> slot & 1 == 0).then_some(value)
}

/// Data read for a call: a text, an array, a piece of a module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallData {
    /// Time of the call's record; with the thread it names the record.
    pub time_ns: u64,
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Which function.
    pub probe: u32,
    /// Which data of the call: index in [`Probe::data`](crate::probes::Probe::data).
    pub tag: u8,
    /// The rest could not be read.
    pub unread: bool,
    /// Where these bytes begin in the whole.
    pub offset: u64,
    /// Bytes of the whole; of a text 0.
    pub total: u64,
    /// The bytes; of a text without its NUL.
    pub bytes: Vec<u8>,
}

/// The name of a kernel that was created before the recording began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelNamed {
    /// When it was found out, CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// Process.
    pub pid: u32,
    /// Handle of the kernel.
    pub kernel: u64,
    /// Its name as the driver has it, not demangled.
    pub name: String,
}

/// The stack of calls that refer to it by its id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallStack {
    /// Its id, never 0.
    pub id: u64,
    /// Where it was first seen, as a sample without weight (`period` 0).
    pub sample: Sample,
}

macro_rules! field {
    ($data:expr, $of:ident.$field:ident: $ty:ty) => {
        bytes($data, offset_of!($of, $field)).map(<$ty>::from_ne_bytes)
    };
}

pub(super) fn decode_call(data: &[u8]) -> Result<Call, WireError> {
    let mut values = [0; MAX_VALUES];
    for (slot, value) in values.iter_mut().enumerate() {
        *value = u64::from_ne_bytes(bytes(data, offset_of!(CallRecord, values) + slot * 8)?);
    }
    let used = usize::from(field!(data, CallRecord.n_values: u8)?);
    if used > MAX_VALUES {
        return Err(WireError::OutOfRange("n_values"));
    }
    values[used..].fill(0);
    Ok(Call {
        time_ns: field!(data, CallRecord.time_ns: u64)?,
        cpu: field!(data, CallRecord.cpu: u32)?,
        pid: field!(data, CallRecord.tgid: u32)?,
        tid: field!(data, CallRecord.tid: u32)?,
        probe: field!(data, CallRecord.probe: u32)?,
        library: field!(data, CallRecord.library: u32)?,
        stack: field!(data, CallRecord.stack: u64)?,
        sp: field!(data, CallRecord.sp: u64)?,
        around_ns: field!(data, CallRecord.around_ns: u64)?,
        result: field!(data, CallRecord.result: u64)?,
        unread: field!(data, CallRecord.unread: u16)?,
        flags: field!(data, CallRecord.flags: u16)?,
        values,
    })
}

pub(super) fn decode_data(data: &[u8]) -> Result<CallData, WireError> {
    let len = usize::from(field!(data, DataHeader.len: u16)?);
    if len > BLOB_BYTES {
        return Err(WireError::OutOfRange("len"));
    }
    let at = size_of::<DataHeader>();
    let content = data.get(at..at + len).ok_or(WireError::Truncated {
        have: data.len(),
        need: at + len,
    })?;
    Ok(CallData {
        time_ns: field!(data, DataHeader.time_ns: u64)?,
        pid: field!(data, DataHeader.tgid: u32)?,
        tid: field!(data, DataHeader.tid: u32)?,
        probe: field!(data, DataHeader.probe: u32)?,
        tag: field!(data, DataHeader.tag: u8)?,
        unread: field!(data, DataHeader.unread: u8)? != 0,
        offset: field!(data, DataHeader.offset: u64)?,
        total: field!(data, DataHeader.total: u64)?,
        bytes: content.to_vec(),
    })
}
