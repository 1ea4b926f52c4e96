//! Ioctls and tracepoints of device drivers.
//!
//! An ioctl is sent as a call ([`CallRecord`](crate::CallRecord)) of a
//! [`ProbeSpec`](crate::ProbeSpec), which the map `IOCTLS` finds by the file's class
//! and the command. The class says the map `DEVICES` by the device's number, or
//! the map `FILES` by the name of a file that has no device.

/// Key of the map `IOCTLS`; the value is the index of the spec.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoctlKey {
    /// [`CLASS_MASK`] of the file.
    pub class: u32,
    /// The command, as far as it tells commands apart, or [`COMMAND_OTHER`].
    pub command: u32,
}
const _: () = assert!(size_of::<IoctlKey>() == 8);

/// The bits of a value in `DEVICES` and `FILES` that number the class.
pub const CLASS_MASK: u32 = 0xffff;
/// Another bit of such a value: the whole command tells commands apart, not only
/// type and number (`_IOC` of include/uapi/asm-generic/ioctl.h).
pub const CLASS_WHOLE: u32 = 1 << 16;
/// Another one: the ioctls are seen at the system call, not at the driver's
/// handler.
pub const CLASS_SYSCALL: u32 = 1 << 17;

/// Stands for the commands of a class that `IOCTLS` has nothing else for.
pub const COMMAND_OTHER: u32 = u32::MAX;

/// Bytes of a key in `FILES`: the name, cut, and zeros.
pub const FILE_NAME_BYTES: usize = 32;

/// Numbers that are taken of a tracepoint.
pub const TRACE_VALUES: usize = 8;
/// Texts that are taken of a tracepoint.
pub const TRACE_TEXTS: usize = 2;
/// Bytes of such a text; longer ones are cut.
pub const TRACE_TEXT_BYTES: usize = 32;

/// A [`TraceRecord`].
pub const KIND_TRACE: u32 = 6;

/// Where a field lies in a tracepoint's own record.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceField {
    /// Its offset, below 4096.
    pub offset: u16,
    /// Bytes of a number: 1, 2, 4 or 8; 0: there is no such field.
    pub size: u8,
    /// Of a text: 1: the field is a `__data_loc`, whose lower half is the text's
    /// offset.
    pub data_loc: u8,
}
const _: () = assert!(size_of::<TraceField>() == 4);

/// Value of the map `TRACES`, by the number in the attachment's cookie: what is
/// taken of a tracepoint.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceSpec {
    /// Numbers, by slot.
    pub values: [TraceField; TRACE_VALUES],
    /// Texts, by slot.
    pub texts: [TraceField; TRACE_TEXTS],
}
const _: () = assert!(size_of::<TraceSpec>() == 40);

/// Tracepoints that can be recorded.
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
    /// Process id (tgid) of whoever ran; an interrupt's is anybody's.
    pub tgid: u32,
    /// Thread id of whoever ran.
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
