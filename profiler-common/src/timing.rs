//! The records that the helper inside a program sends: which operation ran on a device, and
//! when.
//!
//! The helper (crate `aiprof-inject`) calls its function `aiprof_timing_batch` with the address
//! and the length of a [`TimingBatch`], which records follow. Times are of CLOCK_MONOTONIC, in
//! nanoseconds. All numbers are in the program's own byte order. Any program can send any
//! bytes, so readers check everything.

/// First bytes of a batch: "aitb".
pub const TIMING_MAGIC: u32 = 0x6274_6961;
/// Version of the layout of batches.
pub const TIMING_VERSION: u32 = 1;
/// Most bytes of a batch.
pub const MAX_TIMING_BATCH: usize = 60 << 10;
/// Most bytes of a name; longer ones are cut.
pub const MAX_TIMING_NAME: usize = 4096;

/// [`TimingBatch::recorder`]: NVIDIA's CUPTI.
pub const TIMING_CUDA: u32 = 1;
/// [`TimingBatch::recorder`]: events of Level Zero.
pub const TIMING_LEVEL_ZERO: u32 = 2;
/// [`TimingBatch::recorder`]: OpenCL's events, as the helper reads them.
pub const TIMING_OPENCL: u32 = 3;
/// [`TimingBatch::recorder`]: the ranges that the program names. Its names, domains and marks
/// refer to nothing outside of their batch.
pub const TIMING_RANGES: u32 = 4;

/// [`TimingRecord::kind`]: a [`TimingCall`].
pub const TIMING_CALL: u32 = 1;
/// A [`TimingWork`].
pub const TIMING_WORK: u32 = 2;
/// A [`TimingName`] and its bytes.
pub const TIMING_NAME: u32 = 3;
/// A [`TimingLost`].
pub const TIMING_LOST: u32 = 4;
/// A [`TimingRefused`].
pub const TIMING_REFUSED: u32 = 5;
/// A [`TimingUntimed`].
pub const TIMING_UNTIMED: u32 = 6;

/// [`TimingUntimed::reason`]: the helper has no room for more commands.
pub const UNTIMED_ROOM: u32 = 0;
/// The command has no event with times. It is a counter-based event, one of another process, or
/// one of a list that is executed in other ways than by the calls that the helper sees.
pub const UNTIMED_EVENT: u32 = 1;
/// Its event was signalled again, or reset, before its times were read.
pub const UNTIMED_AMBIGUOUS: u32 = 2;
/// Its times cannot be converted to the host's clock: the device's clock may have wrapped
/// meanwhile.
pub const UNTIMED_CLOCK: u32 = 3;
/// Number of reasons.
pub const UNTIMED_REASONS: usize = 4;
/// A [`TimingOwnThread`].
pub const TIMING_OWN_THREAD: u32 = 7;
/// A [`TimingClock`].
pub const TIMING_CLOCK: u32 = 8;
/// A [`TimingDomain`].
pub const TIMING_DOMAIN: u32 = 9;
/// A [`TimingMarks`] and its marks.
pub const TIMING_MARKS: u32 = 10;
/// A [`TimingMarksLost`].
pub const TIMING_MARKS_LOST: u32 = 11;

/// [`TimingDomain::api`]: NVIDIA's NVTX.
pub const RANGES_NVTX: u32 = 1;
/// Intel's ITT.
pub const RANGES_ITT: u32 = 2;

/// [`Mark::kind`]: a range begins on its thread, inside of those that are open there.
pub const MARK_PUSH: u8 = 1;
/// The innermost range of its thread and domain ends.
pub const MARK_POP: u8 = 2;
/// A range begins. It has an id and may end on any thread.
pub const MARK_START: u8 = 3;
/// The range with this id ends.
pub const MARK_END: u8 = 4;
/// A moment.
pub const MARK_MOMENT: u8 = 5;
/// The thread ends: none of its ranges is open any more.
pub const MARK_THREAD_END: u8 = 6;
/// Marks of this thread are missing here; the mark's id is how many. Open ranges may have
/// ended.
pub const MARK_GAP: u8 = 7;

/// [`Mark::flags`]: an id of one word follows.
pub const MARK_ID: u8 = 1;
/// An id of three words follows (`__itt_id`).
pub const MARK_LONG_ID: u8 = 2;
/// A word with a payload follows; these two bits are its type.
pub const MARK_PAYLOAD: u8 = 0b1100;
/// The payload is an unsigned number.
pub const PAYLOAD_UNSIGNED: u8 = 0b0100;
/// The payload is a signed number.
pub const PAYLOAD_SIGNED: u8 = 0b1000;
/// The payload is a floating-point number of 8 bytes.
pub const PAYLOAD_FLOAT: u8 = 0b1100;
/// A word with the category follows: its number, and in the upper half the number of its name.
pub const MARK_CATEGORY: u8 = 1 << 4;

/// [`TimingMarksLost::reason`]: marks of any thread that are missing because the buffer was
/// full: earlier marks had not been read.
pub const MARKS_LOST_ROOM: u32 = 0;
/// Texts that were cut, or left out because there was no room.
pub const MARKS_LOST_TEXT: u32 = 1;
/// All marks of threads for which there was no room.
pub const MARKS_LOST_THREADS: u32 = 2;
/// Number of reasons.
pub const MARKS_LOST_REASONS: usize = 3;
/// Most bytes of a range's text; longer ones are cut.
pub const MAX_RANGE_TEXT: usize = 1024;

/// [`TimingClock::source`]: the device's own clock, read by its runtime.
pub const CLOCK_DEVICE: u32 = 1;
/// `CLOCK_MONOTONIC`.
pub const CLOCK_HOST: u32 = 2;
/// `CLOCK_MONOTONIC_RAW`.
pub const CLOCK_RAW: u32 = 3;
/// `CLOCK_REALTIME`.
pub const CLOCK_DAY: u32 = 4;
/// `CLOCK_BOOTTIME`.
pub const CLOCK_BOOT: u32 = 5;

/// [`TimingWork::what`]: a kernel.
pub const WORK_KERNEL: u32 = 1;
/// A copy.
pub const WORK_COPY: u32 = 2;
/// A fill.
pub const WORK_FILL: u32 = 3;

/// Header of a batch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingBatch {
    /// [`TIMING_MAGIC`].
    pub magic: u32,
    /// [`TIMING_VERSION`].
    pub version: u32,
    /// The source of the times, such as [`TIMING_CUDA`].
    pub recorder: u32,
    /// Process id in the process's own pid namespace.
    pub pid: u32,
}

/// Header of every record.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingRecord {
    /// Kind of the record, such as [`TIMING_CALL`]; unknown ones are skipped.
    pub kind: u32,
    /// Bytes of the record, this header included; a multiple of 8.
    pub bytes: u32,
}

/// A call that gave work to the device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingCall {
    /// The header.
    pub record: TimingRecord,
    /// Thread id in the process's own pid namespace.
    pub tid: u32,
    /// 0.
    pub pad: u32,
    /// Identifies the work that the call gave.
    pub correlation: u64,
    /// When it began.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
}

/// An operation of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingWork {
    /// The header.
    pub record: TimingRecord,
    /// Type of the operation, such as [`WORK_KERNEL`].
    pub what: u32,
    /// Number of the device.
    pub device: u32,
    /// Number of the context.
    pub context: u32,
    /// Direction of a copy: 1 to the device, 2 to the host, 3 to another device, 4 within one,
    /// 5 within the host; 0: not known.
    pub direction: u32,
    /// Number of the stream.
    pub stream: u64,
    /// Identifies the call that gave the work.
    pub correlation: u64,
    /// When it began on the device.
    pub start_ns: u64,
    /// When it ended there.
    pub end_ns: u64,
    /// Bytes copied or filled.
    pub bytes: u64,
    /// [`TimingName::name`]; 0: none.
    pub name: u64,
    /// Work groups along each axis.
    pub groups: [u32; 3],
    /// Work items of a group along each axis.
    pub local: [u32; 3],
}

/// A name, sent before the first record that refers to it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingName {
    /// The header.
    pub record: TimingRecord,
    /// Number of the name.
    pub name: u64,
    /// Bytes of the text that follows.
    pub len: u32,
    /// 0.
    pub pad: u32,
}

/// Records for which there was no room.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingLost {
    /// The header.
    pub record: TimingRecord,
    /// How many.
    pub count: u64,
}

/// Commands that are not timed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingUntimed {
    /// The header.
    pub record: TimingRecord,
    /// How many.
    pub count: u64,
    /// The reason, such as [`UNTIMED_ROOM`].
    pub reason: u32,
    /// 0.
    pub pad: u32,
}

/// No times will be measured in this process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingRefused {
    /// The header.
    pub record: TimingRecord,
    /// 0.
    pub pad: u64,
}

/// The thread that sends this record is the helper's. Its calls are not the program's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingOwnThread {
    /// The header.
    pub record: TimingRecord,
    /// 0.
    pub pad: u64,
}

/// The clock of a device's times; sent before the first record with such times.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingClock {
    /// The header.
    pub record: TimingRecord,
    /// Number of the device.
    pub device: u32,
    /// The clock, such as [`CLOCK_DEVICE`].
    pub source: u32,
}

/// A domain of ranges, sent before the first mark of the batch that belongs to it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingDomain {
    /// The header.
    pub record: TimingRecord,
    /// Number of the domain.
    pub domain: u32,
    /// The interface, such as [`RANGES_NVTX`].
    pub api: u32,
    /// [`TimingName::name`] of its name, in the same batch; 0: none.
    pub name: u64,
}

/// Marks of a thread, in the order of their times. [`Mark`]s follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingMarks {
    /// The header.
    pub record: TimingRecord,
    /// Thread id in the process's own pid namespace.
    pub tid: u32,
    /// 0.
    pub pad: u32,
}

/// Header of a mark. The words of its flags follow: the id, the payload, the category.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// Time of the mark.
    pub time_ns: u64,
    /// Kind, such as [`MARK_PUSH`].
    pub kind: u8,
    /// Flags, such as [`MARK_ID`].
    pub flags: u8,
    /// [`TimingDomain::domain`].
    pub domain: u16,
    /// [`TimingName::name`] of its text; 0: none.
    pub name: u32,
}

/// Marks, or texts of marks, that were lost in the program.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingMarksLost {
    /// The header.
    pub record: TimingRecord,
    /// How many.
    pub count: u64,
    /// The reason, such as [`MARKS_LOST_ROOM`].
    pub reason: u32,
    /// 0.
    pub pad: u32,
}

const _: () = {
    assert!(size_of::<TimingDomain>() == 24);
    assert!(size_of::<TimingMarks>() == 16);
    assert!(size_of::<Mark>() == 16);
    assert!(size_of::<TimingMarksLost>() == 24);
    assert!(size_of::<TimingBatch>() == 16);
    assert!(size_of::<TimingRecord>() == 8);
    assert!(size_of::<TimingCall>() == 40);
    assert!(size_of::<TimingWork>() == 96);
    assert!(size_of::<TimingName>() == 24);
    assert!(size_of::<TimingLost>() == 16);
    assert!(size_of::<TimingRefused>() == 16);
    assert!(size_of::<TimingUntimed>() == 24);
    assert!(size_of::<TimingOwnThread>() == 16);
    assert!(size_of::<TimingClock>() == 16);
};
