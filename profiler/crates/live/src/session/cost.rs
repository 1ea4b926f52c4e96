//! What a recording costs.

use super::{Session, waits};
use crate::{bpf::probe, driver, runtime::CALL_PROGRAMS};
use aiprof_system::remote;
use std::{io, time::Duration};

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
    /// Adds what a program took.
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
    /// What it has cost so far.
    pub fn cost(&self, traps: Option<&ProbeTraps>) -> Cost {
        let mut cost = Cost {
            own: remote::cpu_clock(libc::CLOCK_PROCESS_CPUTIME_ID) + remote::cpu_time(),
            ..Cost::default()
        };
        for (name, time, runs) in self.collector.kernel.bpf.run_times() {
            cost.add(name, time, runs, traps);
        }
        cost
    }
}
