//! The session's part in recordings that never end: what they cost, and how it is changed
//! while they run.

use super::{CollectError, IN_FLIGHT_NS, Session};
use crate::bpf::Bpf;
use aiprof_model::profile::Profile;
use aiprof_system::remote;
use std::time::Duration;

/// What a window has.
#[derive(Debug)]
pub struct WindowProfiles {
    /// CPU samples, and those of devices.
    pub cpu: Profile,
    /// Waits, if they are recorded.
    pub waits: Option<Profile>,
    /// Launches, if they are recorded.
    pub launches: Option<Profile>,
}

impl WindowProfiles {
    /// All of them that have anything, the CPU's in any case.
    pub fn profiles(&self) -> impl Iterator<Item = &Profile> {
        let others = self.waits.iter().chain(&self.launches);
        let others = others.filter(|profile| !profile.samples.is_empty());
        std::iter::once(&self.cpu).chain(others)
    }

    /// All of them, to be changed.
    pub fn profiles_mut(&mut self) -> impl Iterator<Item = &mut Profile> {
        let others = self.waits.iter_mut().chain(&mut self.launches);
        std::iter::once(&mut self.cpu).chain(others)
    }
}

/// What a recording has cost so far.
#[derive(Clone, Debug, Default)]
pub struct Cost {
    /// CPU time of this process and of those that read for it.
    pub own: Duration,
    /// Time in eBPF programs, by their names; zero where the kernel does not count it.
    pub programs: Vec<(&'static str, Duration)>,
}

impl Cost {
    /// Time in all eBPF programs.
    pub fn bpf(&self) -> Duration {
        self.programs.iter().map(|(_, time)| *time).sum()
    }
}

impl Session {
    /// The profiles of what was recorded since the start or the last call.
    ///
    /// # Errors
    /// Whatever kept them from being made.
    pub fn end_window(&mut self) -> Result<WindowProfiles, CollectError> {
        self.drain(false)?;
        let window = self.build_parts()?;
        self.forget_window();
        Ok(window)
    }

    /// Samples each CPU so often from now on. Gives the profiles of what was recorded
    /// before: in each, all samples weigh the same.
    ///
    /// # Errors
    /// As [`Session::end_window`]; or the sampling could not be changed.
    pub fn set_frequency(&mut self, frequency_hz: u32) -> Result<WindowProfiles, CollectError> {
        let frequency_hz = frequency_hz.max(1);
        let period_ns = 1_000_000_000 / u64::from(frequency_hz);
        let changed = self.cpus.set_period(period_ns);
        // What was sampled before is in the rings by then, and taken in; the first sample
        // of the new period comes later.
        std::thread::sleep(Duration::from_nanos(2 * IN_FLIGHT_NS));
        let window = self.end_window()?;
        changed.map_err(CollectError::PerfEvent)?;
        self.events.aggregate.set_period(period_ns);
        self.sample_ns = period_ns;
        self.meta.period_ns = period_ns;
        self.meta.frequency_hz = frequency_hz;
        Ok(window)
    }

    /// Records waits, or no longer. Only of a recording that was started with them.
    ///
    /// # Errors
    /// Their programs could not be attached.
    pub fn set_waits(&mut self, on: bool) -> Result<(), CollectError> {
        match (on, self.waits.is_attached()) {
            (true, false) => self.attach_waits(),
            (false, true) => {
                drop(self.waits.stop());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// What it has cost so far.
    pub fn cost(&self) -> Cost {
        Cost {
            own: remote::cpu_clock(libc::CLOCK_PROCESS_CPUTIME_ID) + remote::cpu_time(),
            programs: self.bpf.run_times(),
        }
    }

    /// Forgets what it knows of programs, which takes memory; those that run are met again.
    pub fn forget_programs(&mut self) {
        self.begin_afresh();
        remote::give_back_memory();
    }

    /// The name of this host.
    pub fn host(&self) -> &str {
        &self.meta.host
    }

    /// Memory that is the recording's own now, anonymous and shared, bytes.
    pub fn memory_bytes(&self) -> u64 {
        remote::memory_bytes()
    }

    /// Memory of its eBPF maps and rings, bytes.
    pub fn bpf_memory_bytes(&self) -> u64 {
        Bpf::memory_bytes() + self.cpus.ring_bytes() as u64
    }
}
