//! What to record: the plain configuration that the command line becomes.

use super::{device::DeviceOptions, driver::StandIn};
use aiprof_model::probes::{Tables, driver_table::DriverTables, table::Switch};
use aiprof_record::{
    aggregate::{LaunchOptions, WaitOptions},
    choice::ProcessChoice,
};
use std::{ffi::OsString, path::PathBuf, sync::Arc, time::Duration};

/// Room for functions that no table names one by one.
const SPARE_SPECS: u32 = 1024;
/// Most functions in all.
const MAX_SPECS: u32 = 8192;

/// What drives the sampling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SamplingEvent {
    /// The kernel's per-CPU clock (`PERF_COUNT_SW_CPU_CLOCK`) with a fixed
    /// period: every sample stands for the same on-CPU time. Works everywhere.
    #[default]
    CpuClock,
    /// Hardware cycles (`PERF_COUNT_HW_CPU_CYCLES`), where a PMU exists: finer
    /// inside interrupt-free code, but a cycle is not a fixed time.
    Cycles,
}

/// Lowest sampling frequency, in Hz.
pub const MIN_FREQUENCY_HZ: u32 = 1;
/// Highest sampling frequency, in Hz. Above it the time spent on sampling
/// would be a large part of what is measured.
pub const MAX_FREQUENCY_HZ: u32 = 10_000;

/// Everything that a recording session needs to know.
///
/// `RecordConfig::default()` is the one place where defaults live: the help
/// text, the man page and the documentation are made from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordConfig {
    /// Samples per second and CPU, [`MIN_FREQUENCY_HZ`] to
    /// [`MAX_FREQUENCY_HZ`]. Default 99: not a divisor of common timer rates,
    /// so that sampling does not run in step with periodic work.
    pub frequency_hz: u32,
    /// What drives the sampling. Default: the CPU clock.
    pub event: SamplingEvent,
    /// Record the idle task too. Default: no.
    pub include_idle: bool,
    /// Record kernel stacks. Default: yes.
    pub kernel_stacks: bool,
    /// Show the frames of Python's interpreter beside those of Python functions.
    pub python_c_frames: bool,
    /// Put the driver's frames between launches and devices. Default: yes.
    pub driver_frames: bool,
    /// Expand inlined functions when naming frames. Default: yes.
    pub inlines: bool,
    /// Look up the source lines of frames. Default: no, for they take memory.
    pub source_lines: bool,
    /// Only these processes and their children; empty: the whole machine.
    pub pids: Vec<u32>,
    /// `pids` has only the process of COMMAND, which does not execute yet: what is recorded
    /// is shown as COMMAND. Default: false.
    pub only_command: bool,
    /// Only this cgroup v2 directory and those below it; absolute path.
    /// Default: the whole machine.
    pub cgroup: Option<PathBuf>,
    /// Only processes that satisfy this. Default: all.
    pub choice: ProcessChoice,
    /// Labels of all that is recorded. Default: none.
    pub labels: Vec<(String, String)>,
    /// Title of the profile; empty: the exporters choose one.
    pub title: String,
    /// The command that is profiled, for the profile's description; empty: none.
    pub command: String,
    /// Count launches and the time in calls of runtimes instead of CPU samples.
    /// Needs `probes`. Default: no.
    pub launches: Option<LaunchOptions>,
    /// Count launches beside CPU samples, for [`Session::end_window`](crate::session::Session::end_window).
    /// Needs `probes`. Default: no.
    pub also_launches: bool,
    /// Record waits, and add them up instead of CPU samples or beside them. Needs `probes`.
    /// Default: no.
    pub waits: Option<WaitConfig>,
    /// Record calls of accelerator runtimes. Default: no.
    pub probes: Option<ProbeConfig>,
    /// Samples of devices, joined with launches. Needs `probes`. Default: none.
    pub devices: DeviceOptions,
    /// Look at what was recorded twice a second and not more often, for recordings that
    /// never end: a wake-up costs more than a sample. What a process does in its first half
    /// second may have fewer names then. Default: no.
    pub continuous: bool,
    /// Begin paused: nothing is recorded before [`Session::resume`](crate::session::Session::resume).
    /// Default: no.
    pub start_paused: bool,
    /// Events that begin the recording if it is paused, and that are always reported. Need
    /// `probes`. Default: none.
    pub triggers: Vec<Trigger>,
    /// Keep the events of this last time for
    /// [`Session::dump`](crate::session::Session::dump), and nothing else. Default: no.
    pub window: Option<Duration>,
    /// Another eBPF object in place of the built-in one, for development.
    pub bpf_object: Option<PathBuf>,
}

/// What a recording waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trigger {
    /// What happens.
    pub on: TriggerOn,
    /// It takes longer than this, in nanoseconds; `None`: it begins.
    pub longer_ns: Option<u64>,
}

/// What happens that a recording waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TriggerOn {
    /// A call of this function of a known runtime.
    Call(String),
    /// A kernel with this in its name.
    Kernel(String),
}

/// Which waits are recorded, and how they are added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitConfig {
    /// Waits of less nanoseconds are not recorded. Default: 0.
    pub least_ns: u64,
    /// How they are added up.
    pub options: WaitOptions,
}

/// Stacks of calls that one CPU walks in a second at most, unless something else is asked
/// for.
pub const STACK_LIMIT: u32 = 20_000;

/// Which calls of accelerator runtimes are recorded, and how.
#[derive(Clone, Debug)]
pub struct ProbeConfig {
    /// The tables of functions. Default: the built-in ones.
    pub tables: Arc<Tables>,
    /// Tables that are used only if asked for. Default: none of them.
    pub switches: Vec<Switch>,
    /// The tables of drivers. Default: the built-in ones.
    pub drivers: Arc<DriverTables>,
    /// Devices that get a table they have no driver for, for tests. Default: none.
    pub stand_ins: Vec<StandIn>,
    /// Probe every exit, for exact ends, durations and results, and also functions
    /// of mere detail. Default: no; only exits without which other calls could not
    /// be understood.
    pub exact_call_times: bool,
    /// Probe the exits of waits: until when work of a device can have been running.
    /// Default: no.
    pub waits: bool,
    /// Whether the start waits until libraries that are loaded later can be probed at
    /// once: the kernel verifies the programs for that, which takes half a second. Else they
    /// are verified while the recording runs. Default: no.
    pub late_libraries: bool,
    /// Stacks of calls that one CPU walks in a second at most, shared by those who call
    /// (see [`Shares`](aiprof_common::Shares)). Calls beyond that have no stack, but are
    /// counted and recorded all the same. Default 20,000: at some 5 microseconds each, a
    /// tenth of the CPU.
    pub stack_limit: u32,
    /// Bytes of the ring buffer of calls, a power of two. Default 8 MiB: 200,000
    /// calls a second for a quarter of a second.
    pub ring_bytes: u32,
    /// The command that will be started, whose libraries are probed beforehand;
    /// empty: none.
    pub command: Vec<OsString>,
    /// Libraries that the command will be given, probed beforehand
    /// ([`timing::files`](crate::timing::files)); default: none.
    pub helpers: Vec<PathBuf>,
    /// Running processes whose programs may have runtimes linked in; of others only
    /// libraries are probed.
    pub pids: Vec<u32>,
    /// Folders in which the metrics files of AIUs are looked for, for captures and
    /// traces. Default: [`FOLDERS`](super::metrics::FOLDERS).
    pub metrics: Vec<PathBuf>,
}

impl Default for ProbeConfig {
    fn default() -> Self {
        Self {
            tables: Arc::new(Tables::built_in()),
            switches: Vec::new(),
            drivers: Arc::new(DriverTables::built_in()),
            stand_ins: Vec::new(),
            exact_call_times: false,
            waits: false,
            late_libraries: false,
            stack_limit: STACK_LIMIT,
            ring_bytes: 8 << 20,
            command: Vec::new(),
            helpers: Vec::new(),
            pids: Vec::new(),
            metrics: super::metrics::FOLDERS.map(PathBuf::from).to_vec(),
        }
    }
}

impl PartialEq for ProbeConfig {
    /// Tables are the same if they are the same in memory.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.tables, &other.tables)
            && Arc::ptr_eq(&self.drivers, &other.drivers)
            && self.switches == other.switches
            && self.stand_ins == other.stand_ins
            && self.exact_call_times == other.exact_call_times
            && self.waits == other.waits
            && self.late_libraries == other.late_libraries
            && self.stack_limit == other.stack_limit
            && self.ring_bytes == other.ring_bytes
            && self.command == other.command
            && self.pids == other.pids
            && self.metrics == other.metrics
    }
}

impl Eq for ProbeConfig {}

impl Default for RecordConfig {
    fn default() -> Self {
        Self {
            frequency_hz: 99,
            event: SamplingEvent::default(),
            include_idle: false,
            kernel_stacks: true,
            python_c_frames: false,
            driver_frames: true,
            inlines: true,
            source_lines: false,
            pids: Vec::new(),
            only_command: false,
            cgroup: None,
            choice: ProcessChoice::default(),
            labels: Vec::new(),
            title: String::new(),
            command: String::new(),
            launches: None,
            also_launches: false,
            waits: None,
            probes: None,
            devices: DeviceOptions::default(),
            continuous: false,
            start_paused: false,
            triggers: Vec::new(),
            window: None,
            bpf_object: None,
        }
    }
}
impl ProbeConfig {
    /// Room for functions on the kernel side.
    pub(crate) fn specs(&self) -> u32 {
        let named: usize = self.tables.iter().map(|t| t.names().count()).sum();
        let named = u32::try_from(named).unwrap_or(u32::MAX);
        named.saturating_add(SPARE_SPECS).min(MAX_SPECS)
    }
}
