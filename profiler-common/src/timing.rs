//! What the helper inside a program hands over: when a device did what.
//!
//! The helper (crate `aiprof-inject`) calls its function `aiprof_timing_batch` with the
//! address and the length of a [`TimingBatch`], which records follow. Times are of
//! CLOCK_MONOTONIC, in nanoseconds. Everything is of the program's own word order, and
//! another program may hand over anything: readers check all of it.

/// First bytes of a batch: "aitb".
pub const TIMING_MAGIC: u32 = 0x6274_6961;
/// Layout of batches.
pub const TIMING_VERSION: u32 = 1;
/// Most bytes of a batch.
pub const MAX_TIMING_BATCH: usize = 60 << 10;
/// Most bytes of a name; longer ones are cut.
pub const MAX_TIMING_NAME: usize = 4096;

/// [`TimingBatch::recorder`]: NVIDIA's CUPTI.
pub const TIMING_CUDA: u32 = 1;
/// Events of Level Zero.
pub const TIMING_LEVEL_ZERO: u32 = 2;
/// [`TimingBatch::recorder`]: OpenCL's events, as the helper reads them.
pub const TIMING_OPENCL: u32 = 3;
/// [`TimingBatch::recorder`]: the ranges that the program names. Such a batch has names,
/// domains and marks of its own only: none refers to another batch.
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

/// [`TimingUntimed::reason`]: the helper has no room for more.
pub const UNTIMED_ROOM: u32 = 0;
/// The command has no event that tells times: a counter-based one, one of another process,
/// or of a list that is not executed by the calls that the helper sees.
pub const UNTIMED_EVENT: u32 = 1;
/// Its event was signalled again, or reset, before its times were read.
pub const UNTIMED_AMBIGUOUS: u32 = 2;
/// Its times cannot be told in the host's clock: the device's may have wrapped meanwhile.
pub const UNTIMED_CLOCK: u32 = 3;
/// How many reasons there are.
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
/// A range begins that has a number and may end on any thread.
pub const MARK_START: u8 = 3;
/// The range of this number ends.
pub const MARK_END: u8 = 4;
/// A moment.
pub const MARK_MOMENT: u8 = 5;
/// The thread ends: none of its ranges is open any more.
pub const MARK_THREAD_END: u8 = 6;
/// Marks of this thread are missing here, so many as the number says: what is open may have
/// ended.
pub const MARK_GAP: u8 = 7;

/// [`Mark::flags`]: a number of one word follows.
pub const MARK_ID: u8 = 1;
/// A number of three words follows (`__itt_id`).
pub const MARK_LONG_ID: u8 = 2;
/// A word with a payload follows, of the kind that these two bits tell.
pub const MARK_PAYLOAD: u8 = 0b1100;
/// The payload is an unsigned number.
pub const PAYLOAD_UNSIGNED: u8 = 0b0100;
/// The payload is a signed number.
pub const PAYLOAD_SIGNED: u8 = 0b1000;
/// The payload is a floating-point number of 8 bytes.
pub const PAYLOAD_FLOAT: u8 = 0b1100;
/// A word follows with the category: its number, and in the high half its name's.
pub const MARK_CATEGORY: u8 = 1 << 4;

/// [`TimingMarksLost::reason`]: marks of any thread that are missing here, for nobody read
/// those before.
pub const MARKS_LOST_ROOM: u32 = 0;
/// Texts that were cut, or left out for want of room.
pub const MARKS_LOST_TEXT: u32 = 1;
/// All marks of threads for which there was no room.
pub const MARKS_LOST_THREADS: u32 = 2;
/// How many reasons there are.
pub const MARKS_LOST_REASONS: usize = 3;
/// Most bytes of a range's text; longer ones are cut.
pub const MAX_RANGE_TEXT: usize = 1024;

/// [`TimingClock::source`]: the device's own, read by its runtime.
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

/// Begin of a batch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingBatch {
    /// [`TIMING_MAGIC`].
    pub magic: u32,
    /// [`TIMING_VERSION`].
    pub version: u32,
    /// Who measured: `TIMING_CUDA` and its like.
    pub recorder: u32,
    /// Process, as it sees itself.
    pub pid: u32,
}

/// Begin of every record.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingRecord {
    /// `TIMING_CALL` and its like; others are skipped.
    pub kind: u32,
    /// Bytes of the record, this included; a multiple of 8.
    pub bytes: u32,
}

/// A call that gave the device work.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingCall {
    /// Its begin.
    pub record: TimingRecord,
    /// Thread, as it sees itself.
    pub tid: u32,
    /// 0.
    pub pad: u32,
    /// Joins it with its work.
    pub correlation: u64,
    /// When it began.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
}

/// What a device did.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingWork {
    /// Its begin.
    pub record: TimingRecord,
    /// `WORK_KERNEL` and its like.
    pub what: u32,
    /// Number of the device.
    pub device: u32,
    /// Number of the context.
    pub context: u32,
    /// Of a copy: 1 to the device, 2 to the host, 3 to another device, 4 within one,
    /// 5 within the host; 0: not known.
    pub direction: u32,
    /// Number of the stream.
    pub stream: u64,
    /// Joins it with its call.
    pub correlation: u64,
    /// When it began on the device.
    pub start_ns: u64,
    /// When it ended.
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

/// A name, told before the first record that has it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingName {
    /// Its begin.
    pub record: TimingRecord,
    /// Number of the name.
    pub name: u64,
    /// Bytes of the text that follows.
    pub len: u32,
    /// 0.
    pub pad: u32,
}

/// Records that there was no room for.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingLost {
    /// Its begin.
    pub record: TimingRecord,
    /// How many.
    pub count: u64,
}

/// Commands that are not timed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingUntimed {
    /// Its begin.
    pub record: TimingRecord,
    /// How many.
    pub count: u64,
    /// `UNTIMED_ROOM` and its like.
    pub reason: u32,
    /// 0.
    pub pad: u32,
}

/// Nothing will be measured in this process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingRefused {
    /// Its begin.
    pub record: TimingRecord,
    /// 0.
    pub pad: u64,
}

/// The thread that hands this over is the helper's: what it calls, the program does not.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingOwnThread {
    /// Its begin.
    pub record: TimingRecord,
    /// 0.
    pub pad: u64,
}

/// Which clock a device's times were taken by, before the first record that is dated by it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingClock {
    /// Its begin.
    pub record: TimingRecord,
    /// Number of the device.
    pub device: u32,
    /// `CLOCK_DEVICE` and its like.
    pub source: u32,
}

/// A domain of ranges, told before the first mark of the batch that has it. Its name is a
/// [`TimingName`] of the same batch; 0: it has none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingDomain {
    /// Its begin.
    pub record: TimingRecord,
    /// Number of the domain.
    pub domain: u32,
    /// `RANGES_NVTX` and its like.
    pub api: u32,
    /// [`TimingName::name`] of its name; 0: none.
    pub name: u64,
}

/// Marks of a thread, in the order of their times. [`Mark`]s follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimingMarks {
    /// Its begin.
    pub record: TimingRecord,
    /// Thread, as it sees itself.
    pub tid: u32,
    /// 0.
    pub pad: u32,
}

/// Begin of a mark. Behind it are the words that its flags tell of: the number, the
/// payload, the category.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// When it was.
    pub time_ns: u64,
    /// `MARK_PUSH` and its like.
    pub kind: u8,
    /// `MARK_ID` and its like.
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
    /// Its begin.
    pub record: TimingRecord,
    /// How many.
    pub count: u64,
    /// `MARKS_LOST_ROOM` and its like.
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
