//! How a recording is changed while it runs.

use super::{
    CollectError, KnownProcesses, Session, Triggers, WindowProfiles, collector::IN_FLIGHT_NS,
};
use crate::{
    bpf::{RECORDING, perf},
    closing,
    cpu::period_of,
    torch::TorchReports,
};
use aiprof_system::remote;
use std::time::{Duration, Instant};

/// Most looks at what waits before the frequency changes, each of up to 200 ms.
const MOST_LOOKS: usize = 20;

impl Session {
    /// Whether the recording is paused.
    pub fn is_paused(&self) -> bool {
        self.collector.pausing.is_paused()
    }

    /// How long it has been, in all.
    pub fn paused(&self) -> Duration {
        self.collector.pausing.in_all()
    }

    /// Pauses the recording, if it is not paused: when this returns nothing more is
    /// recorded.
    ///
    /// # Errors
    /// It could not be paused; or as [`Session::run`].
    pub fn pause(&mut self) -> Result<(), CollectError> {
        if self.is_paused() {
            return Ok(());
        }
        let collector = &mut self.collector;
        let keeps_calls = collector.events.triggers.begin_recording();
        let (kernel, queue) = (&mut collector.kernel, &mut collector.queue);
        collector.pausing.begin(kernel, keeps_calls, queue)?;
        collector.collect(false).map(drop)
    }

    /// Goes on with the recording, if it is paused.
    ///
    /// # Errors
    /// It could not be resumed.
    pub fn resume(&mut self) -> Result<(), CollectError> {
        let collector = &mut self.collector;
        let time_ns = perf::monotonic_ns();
        if !collector.pausing.end(time_ns, &mut collector.queue) {
            return Ok(());
        }
        if collector.events.forget_watched() {
            collector.naming.restart(false);
        }
        // First the time, then what is measured from it.
        let kernel = &mut collector.kernel;
        kernel.bpf.set(RECORDING, &0u32, &time_ns)?;
        kernel.cpus.pause(false).map_err(CollectError::PerfEvent)
    }

    /// What is waited for.
    pub fn triggers(&mut self) -> &mut Triggers {
        &mut self.collector.events.triggers
    }

    /// From here on [`Session::known`] has processes that are known: COMMAND, which
    /// is not executed yet, the chosen processes, and the children of all. Call it before
    /// COMMAND is let go.
    pub fn follow_known(&mut self, command: Option<u32>) {
        let mut others = self.collector.filter.chosen();
        others.retain(|pid| Some(*pid) != command);
        let known = &mut self.collector.known;
        known.follow(command, &others, Instant::now());
    }

    /// The processes that commands wait for, and which of them are known.
    pub fn known(&mut self) -> &mut KnownProcesses {
        &mut self.collector.known
    }

    /// Records the reports of operators from now on.
    pub fn with_torch(&mut self, reports: TorchReports) {
        self.collector.probes.torch = Some(reports);
    }

    /// Samples each CPU so often from now on. Gives the profiles of what was recorded
    /// before: in each, all samples weigh the same.
    ///
    /// # Errors
    /// As [`Session::end_window`]; or the sampling could not be changed.
    pub fn set_frequency(&mut self, frequency_hz: u32) -> Result<WindowProfiles, CollectError> {
        let frequency_hz = frequency_hz.max(1);
        let period_ns = period_of(frequency_hz);
        let changed = self.collector.kernel.cpus.set_period(period_ns);
        // What was sampled before is in the rings by then, and applied; the first sample
        // of the new period comes later.
        std::thread::sleep(Duration::from_nanos(2 * IN_FLIGHT_NS));
        // All of it, however much waits: what is left would be weighed as if it were new.
        self.catch_up()?;
        let window = self.end_window()?;
        changed.map_err(CollectError::PerfEvent)?;
        self.collector.events.aggregate.set_period(period_ns);
        self.windows.sample_ns = period_ns;
        self.windows.meta.period_ns = period_ns;
        self.windows.meta.frequency_hz = frequency_hz;
        Ok(window)
    }

    /// Applies all events that wait, however many.
    pub(super) fn catch_up(&mut self) -> Result<(), CollectError> {
        for _ in 0..MOST_LOOKS {
            if !self.collector.collect(false)? {
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
        let is_paused = self.is_paused();
        let bpf = &mut self.collector.kernel.bpf;
        let waits = &mut self.collector.probes.waits;
        match (on, waits.is_attached()) {
            (true, false) => {
                // What waits since before is of no known begin: it ends with no wait, as
                // after a pause.
                if !is_paused {
                    bpf.set(RECORDING, &0u32, &perf::monotonic_ns())?;
                }
                waits.attach(bpf)
            }
            (false, true) => {
                drop(waits.stop());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Records launches no longer, nor anything else that is probed; waits go on. A new
    /// session records them again.
    pub fn stop_launches(&mut self) {
        let links = self.collector.probes.drop_calls();
        self.collector.events.launches = None;
        closing::in_background(links);
    }

    /// The first window of a recording that was started paused begins now.
    ///
    /// # Errors
    /// It could not be resumed.
    pub fn begin(&mut self) -> Result<(), CollectError> {
        self.resume()?;
        self.windows.began = Instant::now();
        // What it was paused until then is of no window.
        self.collector.pausing.end_window(self.windows.began);
        Ok(())
    }

    /// Samples devices no longer: others can.
    pub fn stop_devices(&mut self) {
        self.collector.devices.stop();
    }

    /// Forgets what it knows of programs, which takes memory; those that run are read again.
    pub fn forget_programs(&mut self) {
        self.collector.begin_afresh();
        remote::give_back_memory();
    }

    /// The name of this host.
    pub fn host(&self) -> &str {
        &self.windows.meta.host
    }

    /// Memory of its eBPF maps and rings, bytes.
    pub fn bpf_memory_bytes(&self) -> u64 {
        self.collector.kernel.memory_bytes()
    }
}
