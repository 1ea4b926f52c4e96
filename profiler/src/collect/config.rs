//! What to record: the plain configuration that the command line becomes.

use std::path::PathBuf;

/// What drives the sampling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Event {
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
    pub event: Event,
    /// Record the idle task too. Default: no.
    pub include_idle: bool,
    /// Record kernel stacks. Default: yes.
    pub kernel_stacks: bool,
    /// Expand inlined functions when naming frames. Default: yes.
    pub inlines: bool,
    /// Only these processes and their children; empty: the whole machine.
    pub pids: Vec<u32>,
    /// Only this cgroup v2 directory and those below it; absolute path.
    /// Default: the whole machine.
    pub cgroup: Option<PathBuf>,
    /// Title of the profile; empty: the exporters choose one.
    pub title: String,
    /// The command that is profiled, for the profile's description; empty: none.
    pub command: String,
    /// Another eBPF object in place of the built-in one, for development.
    pub bpf_object: Option<PathBuf>,
}

impl Default for RecordConfig {
    fn default() -> Self {
        Self {
            frequency_hz: 99,
            event: Event::default(),
            include_idle: false,
            kernel_stacks: true,
            inlines: true,
            pids: Vec::new(),
            cgroup: None,
            title: String::new(),
            command: String::new(),
            bpf_object: None,
        }
    }
}
