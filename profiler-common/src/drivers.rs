//! Ioctls and tracepoints of device drivers.
//!
//! An ioctl is sent as a call ([`CallRecord`](crate::CallRecord)) of a
//! [`ProbeSpec`](crate::ProbeSpec). The map `IOCTLS` leads from the file's class and the
//! command to the spec. The class comes from the map `DEVICES`, by the device's number, or from
//! the map `FILES`, by the name of a file that has no device.

/// Key of the map `IOCTLS`; the value is the index of the spec.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoctlKey {
    /// The class of the file ([`CLASS_MASK`]).
    pub class: u32,
    /// The command, or those bits of it that distinguish commands; or [`COMMAND_OTHER`].
    pub command: u32,
}
const _: () = assert!(size_of::<IoctlKey>() == 8);

/// The bits of a value in `DEVICES` and `FILES` that number the class.
pub const CLASS_MASK: u32 = 0xffff;
/// Another bit of such a value: commands are distinguished by all their bits, not only by type
/// and number (`_IOC` of include/uapi/asm-generic/ioctl.h).
pub const CLASS_WHOLE: u32 = 1 << 16;
/// Another bit: the ioctls are seen at the system call, not at the driver's handler.
pub const CLASS_SYSCALL: u32 = 1 << 17;

/// Stands for all commands of a class that have no entry in `IOCTLS`.
pub const COMMAND_OTHER: u32 = u32::MAX;

/// Bytes of a key in `FILES`: the name, cut if it is longer, then zeros.
pub const FILE_NAME_BYTES: usize = 32;

/// Numbers that are copied from a tracepoint.
pub const TRACE_VALUES: usize = 8;
/// Texts that are copied from a tracepoint.
pub const TRACE_TEXTS: usize = 2;
/// Bytes of such a text; longer ones are cut.
pub const TRACE_TEXT_BYTES: usize = 32;

/// A [`TraceRecord`].
pub const KIND_TRACE: u32 = 6;

/// Place of a field in a tracepoint's own record.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceField {
    /// Its offset, below 4096.
    pub offset: u16,
    /// Bytes of a number: 1, 2, 4 or 8; 0: there is no such field.
    pub size: u8,
    /// 1 if the field is a `__data_loc`, whose lower half is the text's offset. Texts only.
    pub data_loc: u8,
}
const _: () = assert!(size_of::<TraceField>() == 4);

/// Value of the map `TRACES`, by the number in the attachment's cookie: the fields that are
/// copied from a tracepoint.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceSpec {
    /// Numbers, by slot.
    pub values: [TraceField; TRACE_VALUES],
    /// Texts, by slot.
    pub texts: [TraceField; TRACE_TEXTS],
}
const _: () = assert!(size_of::<TraceSpec>() == 40);

/// Most tracepoints that can be recorded.
pub const MAX_TRACES: u32 = 64;

/// A tracepoint that was hit.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceRecord {
    /// [`KIND_TRACE`].
    pub kind: u32,
    /// CPU it was seen on.
    pub cpu: u32,
    /// CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// Process id (tgid) of the current task. In an interrupt, that can be any process.
    pub tgid: u32,
    /// Thread id of the current task.
    pub tid: u32,
    /// Index of the [`TraceSpec`].
    pub point: u32,
    /// Zero.
    pub pad: u32,
    /// Numbers, by slot; 0 where there is none.
    pub values: [u64; TRACE_VALUES],
    /// Texts with their NUL, by slot; empty where there is none.
    pub texts: [[u8; TRACE_TEXT_BYTES]; TRACE_TEXTS],
}
const _: () = assert!(size_of::<TraceRecord>() == 32 + 8 * TRACE_VALUES + 64);
