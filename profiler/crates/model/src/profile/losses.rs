//! What was lost between the CPU and the output, by cause.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A cause of loss. Everything refused, dropped or cut on the way is counted
/// under one of these and shown in every output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LossKind {
    /// Samples dropped because the ring buffer was full or contended.
    RingDrops,
    /// Process events the kernel dropped (`PERF_RECORD_LOST`).
    ProcessEventsLost,
    /// Records that could not be decoded.
    Undecodable,
    /// Stacks cut: the process was not known yet.
    StackNoProcess,
    /// Stacks cut: an address in no known executable mapping.
    StackNoMapping,
    /// Stacks cut: the unwind table was not resident yet.
    StackTableAbsent,
    /// Stacks cut: unwind rule not supported.
    StackUnsupportedRule,
    /// Stacks cut: user memory could not be read.
    StackUnreadable,
    /// Stacks cut: deeper than the limit.
    StackTooDeep,
    /// Stacks cut: no unwind data and no frame pointer chain.
    StackFramePointer,
    /// Stacks cut: the stack pointer did not grow.
    StackNoProgress,
    /// Stacks cut: a table changed while it was read.
    StackTorn,
    /// Stacks cut: a return probe whose real address was not found.
    StackTrampoline,
    /// Stacks cut to their leaf: unwound with the mappings of a dead image.
    StackStaleImage,
    /// Kernel stacks that could not be read.
    KernelStackFailed,
    /// Kernel stacks cut at the depth limit.
    KernelStackTruncated,
    /// Frames without a symbol.
    FramesUnnamed,
    /// Files that could not be opened or read for symbols.
    FilesUnreadable,
    /// Files without usable unwind data.
    FilesNoUnwindData,
    /// Unwind table pages dropped because the pool was full.
    TablesEvicted,
    /// Unwind tables that found no room in the pool.
    TablesRefused,
    /// Records of calls dropped because the ring buffer was full.
    CallRingDrops,
    /// Tracepoints of drivers dropped for the same reason.
    TraceDrops,
    /// Texts and other data of calls dropped for the same reason.
    CallDataDrops,
    /// Stacks of calls left out by the limiter.
    CallStacksLimited,
    /// Stacks of calls left out because no scratch memory was free.
    CallStacksBusy,
    /// Calls whose exit could not be recorded, for want of memory for their state.
    CallsUntracked,
    /// Functions of runtimes that could not be probed.
    ProbesRefused,
    /// Libraries that could not be read or probed.
    ProbedFilesFailed,
    /// Libraries that were replaced, removed or written to while probed.
    ProbedFilesChanged,
    /// Libraries not probed, for their user has had enough of them probed.
    ProbedFilesRefused,
    /// Values, texts and other data of calls of other users' processes that were not
    /// in memory: for these no page is waited for.
    CallDataAbsent,
    /// Texts, data and searches of other users' processes that the caller may not have.
    CallDataWithheld,
    /// Samples not recorded because a table of the profiler was full.
    TableFull,
    /// Periods the kernel throttled sampling.
    Throttled,
    /// Calls of probes that were never described.
    CallsUnknown,
    /// Ends of calls whose begin was not seen.
    CallsNoEntry,
    /// Calls whose end should have been seen and was not: lost, or left by an
    /// exception.
    CallsNoEnd,
    /// Calls not followed because a table of the profiler was full.
    CallsRefused,
    /// Calls with a text, array or module that did not arrive whole.
    CallDataIncomplete,
    /// Lists submitted whose content was put on them before aiprof looked, or lost.
    ListsUnknown,
    /// Launches of kernels that were created before aiprof was attached.
    KernelsUnnamed,
    /// Launches not counted because a table of the profiler was full.
    LaunchesRefused,
    /// Handles not followed because a table of the profiler was full.
    HandlesRefused,
    /// Calls of unknown length, missing from the time in calls: their ends were not
    /// probed, or not seen.
    CallsUntimed,
    /// Activity records, or stretches of them, in no layout that is known.
    ActivityUnknown,
    /// Events that an eBPF program did not see because it ran on that CPU already,
    /// for another thread.
    ProgramsMissed,
    /// Fences and jobs not followed because a table of the profiler was full.
    SubmissionsRefused,
    /// Bindings of device addresses not followed. Only captures of aiprof 0.1 have
    /// it; it keeps its place because its number is stored.
    BindingsRefused,
    /// Calls left out because their program has paused collection
    /// (`--conditional-collection`).
    CallsPaused,
    /// Activity records whose times are not of the recording, or cannot be placed.
    ActivityUntimed,
    /// Spans of devices that found no room in the trace.
    SpansRefused,
    /// Values of counters that were overwritten before they were read, or dropped.
    CountersLost,
    /// Times that a device dropped samples because the earlier ones had not been read.
    DeviceDrops,
    /// Samples of devices in no layout that is known.
    DeviceUndecodable,
    /// Samples of devices that found no room before they were attributed.
    DeviceSamplesRefused,
    /// Samples of devices for which no running launch is known.
    DeviceUnattributed,
    /// Device code that could not be read, for names and source lines.
    DeviceCodeUnreadable,
    /// Operations of a device that began before the last one was over: the times of
    /// its engines add up to more than the device was busy for.
    DeviceSpansOverlap,
    /// Files, mappings and tables of other users' processes that were not read in
    /// time, or not at all because earlier reads of theirs do not return.
    ReadsLate,
    /// Samples of processes that were ending and had no memory any more.
    StackExiting,
    /// Launches that no record of a device was found for: what the device did for them
    /// is missing.
    LaunchesUnrecorded,
    /// Stacks whose Python frames could not all be read, or were too many.
    PythonFramesCut,
    /// Python frames whose function is not known: it could not be read, or its record was
    /// dropped.
    PythonFramesUnnamed,
    /// Stacks with Python frames of which it is not known which native frames ran them.
    PythonFramesApart,
    /// Waits that were to be recorded and found no room.
    WaitsLost,
    /// Waits whose end the kernel did not report.
    WaitsUnended,
    /// Launches that were handed to a driver by an ioctl whose frames are not known: a
    /// stack was left out, lost, or cut before it came to the runtime's function.
    DriverFramesUnknown,
    /// Records of a device that the runtime dropped, for the helper inside of the program
    /// had no room for more, or that waited too long for somebody to read them.
    ActivityDropped,
    /// Processes whose device times were asked for (`--device-timing`) and could not be had:
    /// CUPTI was not found, or refused; a driver of Level Zero has no timestamps.
    TimingRefused,
    /// Windows of PyTorch's operators that a program was asked for and did not report.
    OpsUnanswered,
    /// Windows of operators whose file could not be read: not the program's own, too
    /// large, or damaged.
    OpsUnreadable,
    /// Spans of operators left out: outside of the recording, of a thread that is not
    /// known, or beyond what is kept.
    OpsRefused,
    /// Commands that `--device-timing` could not time: their event reports no times
    /// (counter-based, of another process), or their list is executed in a way that is not
    /// seen.
    TimingNoEvent,
    /// Commands that `--device-timing` could not time: their event was signalled again, or
    /// reset, before their times were read.
    TimingAmbiguous,
    /// Begins and ends of ranges, and moments, that were not recorded: there was no room
    /// for them in their program, or they were not read for long.
    RangesDropped,
    /// Ends of ranges without a begin: more were ended than begun, they were begun before
    /// the recording, in the process that forked this one, or their begin was lost.
    RangesUnmatched,
    /// Ranges whose end was not seen: their thread or the recording ended before, or the end
    /// was lost. They are shown until then.
    RangesUnended,
    /// Texts of ranges that were cut, or left out because there were too many.
    RangesTextsCut,
    /// Records of a device whose times cannot be true: 0, or an end before the begin. Their
    /// launches are known, and how long these took is not.
    DeviceTimesImpossible,
    /// Samples, at most, of CPUs that were switched on again, until they were sampled again.
    CpusUnsampled,
    /// Commands that `--device-timing` could not time: their times were read so late that the
    /// device's counter may have begun anew, or the device wrote none.
    TimingUndated,
}

impl LossKind {
    /// A name for programs: `ring_drops`.
    pub fn key(self) -> String {
        let name = format!("{self:?}");
        let mut key = String::with_capacity(name.len() + 4);
        for (at, letter) in name.char_indices() {
            if letter.is_ascii_uppercase() && at > 0 {
                key.push('_');
            }
            key.push(letter.to_ascii_lowercase());
        }
        key
    }

    /// A short description for people.
    pub fn label(self) -> &'static str {
        match self {
            Self::RingDrops => "samples dropped (ring buffer full)",
            Self::ProcessEventsLost => "process events lost",
            Self::Undecodable => "records not decodable",
            Self::StackNoProcess => "stacks cut: process not known yet",
            Self::StackNoMapping => "stacks cut: address in no mapping",
            Self::StackTableAbsent => "stacks cut: unwind table not loaded yet",
            Self::StackUnsupportedRule => "stacks cut: unwind rule not supported",
            Self::StackUnreadable => "stacks cut: memory not readable",
            Self::StackTooDeep => "stacks cut: too deep",
            Self::StackExiting => "samples of ending processes, without a user stack",
            Self::StackFramePointer => "stacks cut: no unwind data, no frame pointers",
            Self::StackNoProgress => "stacks cut: stack pointer did not grow",
            Self::StackTorn => "stacks cut: unwind table changed while read",
            Self::StackTrampoline => "stacks cut: return probe not resolved",
            Self::StackStaleImage => "stacks cut: program replaced (exec) under the sample",
            Self::KernelStackFailed => "kernel stacks not readable",
            Self::KernelStackTruncated => "kernel stacks cut at the depth limit",
            Self::FramesUnnamed => "frames without a symbol",
            Self::FilesUnreadable => "files not readable",
            Self::FilesNoUnwindData => "files without unwind data",
            Self::TablesEvicted => "unwind table pages evicted",
            Self::TablesRefused => "unwind tables refused (pool full)",
            Self::CallRingDrops => "calls dropped (ring buffer full)",
            Self::TraceDrops => "fences and jobs dropped (ring buffer full)",
            Self::CallDataDrops => "data of calls dropped (ring buffer full)",
            Self::CallStacksLimited => "stacks of calls left out by the limiter",
            Self::CallStacksBusy => "stacks of calls left out (no free memory)",
            Self::CallsUntracked => "calls whose exit is unknown (no free memory)",
            Self::ProbesRefused => "functions that cannot be probed",
            Self::ProbedFilesFailed => "libraries that could not be probed",
            Self::ProbedFilesChanged => "libraries replaced while probed",
            Self::ProbedFilesRefused => "libraries not probed (too many of one user)",
            Self::CallDataAbsent => "values and data of other users' calls not in memory",
            Self::CallDataWithheld => "data of other users' processes, not read",
            Self::TableFull => "samples refused (table full)",
            Self::Throttled => "sampling throttled by the kernel",
            Self::CallsUnknown => "calls of unknown probes",
            Self::CallsNoEntry => "call ends without a begin",
            Self::CallsNoEnd => "calls without an end (lost, or left by an exception)",
            Self::CallsRefused => "calls refused (table full, or nested too deep)",
            Self::CallDataIncomplete => "calls with incomplete data",
            Self::ListsUnknown => "lists submitted with unknown content",
            Self::KernelsUnnamed => "launches of kernels created before attach",
            Self::LaunchesRefused => "launches refused (table full)",
            Self::HandlesRefused => "handles refused (table full)",
            Self::CallsUntimed => "calls of unknown length (end not probed or not seen)",
            Self::ActivityUnknown => "activity records of unknown layout",
            Self::ProgramsMissed => "events missed by an eBPF program that was preempted",
            Self::SubmissionsRefused => "submissions refused (table full)",
            Self::BindingsRefused => "bindings of device memory not followed",
            Self::CallsPaused => "calls left out: paused by their program",
            Self::ActivityUntimed => "activity records from outside the recording",
            Self::SpansRefused => "device spans refused (too many lanes)",
            Self::CountersLost => "counter values missed",
            Self::DeviceDrops => "drops of samples by devices",
            Self::DeviceUndecodable => "device samples not decodable",
            Self::DeviceSamplesRefused => "device samples refused (table full)",
            Self::DeviceUnattributed => "device samples without a launch",
            Self::DeviceCodeUnreadable => "device modules not readable",
            Self::DeviceSpansOverlap => "device operations that overlap others (times add up)",
            Self::LaunchesUnrecorded => "launches without a device record",
            Self::PythonFramesCut => "stacks with Python frames cut",
            Self::PythonFramesUnnamed => "Python frames without a name",
            Self::PythonFramesApart => "stacks with Python frames at an unknown position",
            Self::WaitsLost => "waits not recorded (no room)",
            Self::WaitsUnended => "waits whose end was not seen",
            Self::DriverFramesUnknown => "launches without the driver's frames (no stack)",
            Self::ActivityDropped => "device records dropped inside of programs",
            Self::TimingRefused => "processes that could not be timed (no CUPTI, or it refused)",
            Self::OpsUnanswered => "windows of operators that a program did not report",
            Self::OpsUnreadable => "windows of operators not readable",
            Self::OpsRefused => "spans of operators left out",
            Self::TimingNoEvent => "device commands not timed (no event with timestamps)",
            Self::TimingAmbiguous => "device commands not timed (event used again too early)",
            Self::RangesDropped => "begins and ends of ranges not recorded (no room)",
            Self::RangesUnmatched => "ends of ranges without a begin",
            Self::RangesUnended => "ranges whose end was not seen",
            Self::DeviceTimesImpossible => "device records with impossible times",
            Self::CpusUnsampled => "samples missed on CPUs that came online (upper bound)",
            Self::TimingUndated => "device commands not timed (read too late for their clock)",
            Self::RangesTextsCut => "texts of ranges cut or left out",
            Self::ReadsLate => "reads of other users' files and processes that timed out",
        }
    }

    /// What its reader can switch on, install or change; `None`: nothing.
    pub fn remedy(self) -> Option<&'static str> {
        match self {
            Self::RingDrops => Some("lower -F"),
            Self::Throttled => Some("lower -F, or raise kernel.perf_event_max_sample_rate"),
            Self::StackFramePointer => {
                Some("build with unwind tables or -fno-omit-frame-pointer; see the frame's name")
            }
            Self::StackTrampoline => Some("end the other tool's return probes"),
            Self::KernelStackTruncated => Some("set kernel.perf_event_max_stack to 127"),
            Self::FramesUnnamed => {
                Some("install PACKAGE-dbgsym, for libc libc6-dbg, or set DEBUGINFOD_URLS")
            }
            Self::FilesUnreadable | Self::FilesNoUnwindData | Self::ProbedFilesFailed => {
                Some("-v lists them")
            }
            Self::TablesEvicted | Self::CallRingDrops | Self::WaitsLost => {
                Some("record less: --only, -p, --cgroup")
            }
            Self::CallStacksLimited | Self::DriverFramesUnknown => Some("raise --call-stacks"),
            _ => None,
        }
    }

    /// Whether it counts whole samples that are missing from the profile.
    pub fn is_sample_loss(self) -> bool {
        matches!(
            self,
            Self::RingDrops | Self::TableFull | Self::CpusUnsampled
        )
    }

    /// Whether it counts samples whose user stack is not complete.
    pub fn is_cut_stack(self) -> bool {
        matches!(
            self,
            Self::StackNoProcess
                | Self::StackNoMapping
                | Self::StackTableAbsent
                | Self::StackUnsupportedRule
                | Self::StackUnreadable
                | Self::StackTooDeep
                | Self::StackFramePointer
                | Self::StackNoProgress
                | Self::StackTorn
                | Self::StackTrampoline
                | Self::StackStaleImage
        )
    }
}

/// Counts by cause. Iterates in a fixed order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Losses(BTreeMap<LossKind, u64>);

impl Losses {
    /// Adds `n` to a cause.
    pub fn add(&mut self, kind: LossKind, n: u64) {
        if n > 0 {
            let count = self.0.entry(kind).or_default();
            *count = count.saturating_add(n);
        }
    }

    /// The count of a cause.
    pub fn get(&self, kind: LossKind) -> u64 {
        self.0.get(&kind).copied().unwrap_or(0)
    }

    /// All causes with a count above zero.
    pub fn iter(&self) -> impl Iterator<Item = (LossKind, u64)> + '_ {
        self.0.iter().map(|(&kind, &n)| (kind, n))
    }

    /// Samples missing from the profile.
    pub fn lost_samples(&self) -> u64 {
        self.iter()
            .filter(|(kind, _)| kind.is_sample_loss())
            .fold(0, |sum, (_, n)| sum.saturating_add(n))
    }

    /// Samples whose user stack was cut.
    pub fn cut_stacks(&self) -> u64 {
        self.iter()
            .filter(|(kind, _)| kind.is_cut_stack())
            .fold(0, |sum, (_, n)| sum.saturating_add(n))
    }

    /// Adds all counts of another set.
    pub fn merge(&mut self, other: &Self) {
        other.iter().for_each(|(kind, n)| self.add(kind, n));
    }
}
