//! The session's part in recordings that never end: what they cost, and how it is changed
//! while they run.

use super::{CollectError, IN_FLIGHT_NS, Session, waits};
use crate::bpf::{Bpf, RECORDING, perf, probe};
use crate::runtime::CALL_PROGRAMS;
use crate::{closing, cpu::period_of, driver, inspect::guard};
use aiprof_model::profile::Profile;
use aiprof_system::remote;
use std::io;
use std::time::{Duration, Instant};

/// Most looks at what waits before the frequency changes, each of up to 200 ms.
const MOST_LOOKS: usize = 20;

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
    /// The CPU's profile, and all others that have samples.
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

/// What it costs that a probed function is called, beside the time in the program.
#[derive(Clone, Copy, Debug)]
pub struct ProbeTraps {
    /// At an instruction that the kernel emulates, as those at entries are.
    entry: Duration,
    /// At one that it steps over, as returns are.
    exit: Duration,
}

impl ProbeTraps {
    /// Measures it on functions of this process, in some ten to a hundred milliseconds.
    ///
    /// # Errors
    /// Probes are not possible here.
    pub fn measure() -> io::Result<Self> {
        let cost = probe::probe_cost()?;
        Ok(Self {
            entry: cost.emulated,
            exit: cost.stepped,
        })
    }
}

/// What a recording has cost so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// CPU time of this process and of those that read for it.
    pub own: Duration,
    /// Time in eBPF programs that sample; as the other two, zero where the kernel does not
    /// count it.
    pub samples: Duration,
    /// Time in those that record waits.
    pub waits: Duration,
    /// Time in those at probes, with the way there.
    pub probes: Duration,
}

impl Cost {
    /// Takes in what a program took.
    fn add(&mut self, name: &str, time: Duration, runs: u64, traps: Option<&ProbeTraps>) {
        let times = |each: Duration| {
            let ns = u64::try_from(each.as_nanos()).unwrap_or(u64::MAX);
            Duration::from_nanos(ns.saturating_mul(runs))
        };
        if waits::PROGRAMS.contains(&name) {
            self.waits += time;
        } else if CALL_PROGRAMS.contains(&name) {
            let each = traps.map(|traps| match name.starts_with("call_exit") {
                true => traps.exit,
                false => traps.entry,
            });
            self.probes += time + times(each.unwrap_or_default());
        } else if driver::PROGRAMS.contains(&name) {
            self.probes += time;
        } else {
            self.samples += time;
        }
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
        let period_ns = period_of(frequency_hz);
        let changed = self.cpus.set_period(period_ns);
        // What was sampled before is in the rings by then, and taken in; the first sample
        // of the new period comes later.
        std::thread::sleep(Duration::from_nanos(2 * IN_FLIGHT_NS));
        // All of it, however much waits: what is left would be weighed as if it were new.
        self.catch_up()?;
        let window = self.end_window()?;
        changed.map_err(CollectError::PerfEvent)?;
        self.events.aggregate.set_period(period_ns);
        self.sample_ns = period_ns;
        self.meta.period_ns = period_ns;
        self.meta.frequency_hz = frequency_hz;
        Ok(window)
    }

    /// Takes in all events that wait, however many.
    pub(super) fn catch_up(&mut self) -> Result<(), CollectError> {
        for _ in 0..MOST_LOOKS {
            if !self.drain(false)? {
                break;
            }
        }
        Ok(())
    }

    /// Records waits, or no longer. Only of a recording that was started with them.
    ///
    /// # Errors
    /// Their programs could not be attached.
    pub fn set_waits(&mut self, on: bool) -> Result<(), CollectError> {
        match (on, self.waits.is_attached()) {
            (true, false) => {
                // What waits since before is of no known begin: it ends with no wait, as
                // after a pause.
                if !self.is_paused() {
                    self.bpf.set(RECORDING, &0u32, &perf::monotonic_ns())?;
                }
                self.attach_waits()
            }
            (false, true) => {
                drop(self.waits.stop());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Records launches no longer, nor anything else that is probed; waits go on. A new
    /// session records them again.
    pub fn stop_launches(&mut self) {
        let links = self.stop_calls();
        guard::set_ending(false);
        self.probes = None;
        self.starting = None;
        self.events.launches = None;
        closing::in_background(links);
    }

    /// The first window of a recording that was started paused begins now.
    ///
    /// # Errors
    /// It could not be resumed.
    pub fn begin(&mut self) -> Result<(), CollectError> {
        self.resume()?;
        self.window_started = Instant::now();
        // What it was paused until then is of no window.
        self.pausing.end_window(self.window_started);
        Ok(())
    }

    /// Samples devices no longer: others can.
    pub fn stop_devices(&mut self) {
        if let Some(samplers) = &mut self.samplers {
            samplers.stop();
        }
    }

    /// What it has cost so far.
    pub fn cost(&self, traps: Option<&ProbeTraps>) -> Cost {
        let mut cost = Cost {
            own: remote::cpu_clock(libc::CLOCK_PROCESS_CPUTIME_ID) + remote::cpu_time(),
            ..Cost::default()
        };
        for (name, time, runs) in self.bpf.run_times() {
            cost.add(name, time, runs, traps);
        }
        cost
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
