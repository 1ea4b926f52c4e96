//! Pauses of a recording.
//!
//! What is recorded stops at its source: the sampling events are switched off, and the
//! programs at probes look whether the recording is paused. What processes map, start and
//! end goes on, so that stacks are whole afterwards, and so does what calls create. Calls
//! that have begun are followed to their end.

use super::{CollectError, queue::EventQueue, sampling::KernelSampling};
use crate::{
    bpf::{RECORDING, perf},
    busy,
};
use aiprof_model::wire::{Call, CallData, Event, Pause};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// [`RECORDING`] while the recording is paused.
const PAUSED: u64 = u64::MAX;

/// How long the recording was paused.
#[derive(Debug, Default)]
pub(super) struct Pausing {
    /// Since when it is, on two clocks.
    since: Option<(Instant, u64)>,
    /// Pauses of this window that are over.
    in_window: Duration,
    /// The same of the whole recording.
    in_all: Duration,
    /// The last pause, CLOCK_MONOTONIC nanoseconds.
    last_ns: (u64, u64),
    /// Thread and time of an exit whose call had begun before the pause.
    finished: (u32, u64),
    /// Busy times of CPUs in this window before the last pause.
    busy: BTreeMap<u32, u64>,
    /// Busy times of CPUs since the machine started, when the window or the last pause's end was.
    busy_before: BTreeMap<u32, u64>,
}

impl Pausing {
    /// The recording begins now, and is not paused.
    pub(super) fn new() -> Self {
        Self {
            busy_before: busy::busy_ns(),
            ..Self::default()
        }
    }

    /// Whether the recording is paused.
    pub(super) fn is_paused(&self) -> bool {
        self.since.is_some()
    }

    /// Begins a pause. `with_calls`: what waits for a call goes on to see it.
    pub(super) fn begin(
        &mut self,
        kernel: &mut KernelSampling,
        with_calls: bool,
        queue: &mut EventQueue,
    ) -> Result<(), CollectError> {
        if !with_calls {
            kernel.bpf.set(RECORDING, &0u32, &PAUSED)?;
        }
        kernel.cpus.pause(true).map_err(CollectError::PerfEvent)?;
        let time_ns = perf::monotonic_ns();
        self.since = Some((Instant::now(), time_ns));
        let since_before = busy::since(&self.busy_before, &busy::busy_ns());
        add(&mut self.busy, since_before);
        let begins = true;
        queue.arrived.push(Event::Pause(Pause { time_ns, begins }));
        Ok(())
    }

    /// Ends the pause, if there is one, and records that it ended.
    pub(super) fn end(&mut self, time_ns: u64, queue: &mut EventQueue) -> bool {
        let Some((since, since_ns)) = self.since.take() else {
            return false;
        };
        self.busy_before = busy::busy_ns();
        let length = since.elapsed();
        self.in_window += length;
        self.in_all += length;
        self.last_ns = (since_ns, time_ns);
        let begins = false;
        queue.arrived.push(Event::Pause(Pause { time_ns, begins }));
        true
    }

    /// How long it was paused in the window that ends now.
    pub(super) fn end_window(&mut self, now: Instant) -> Duration {
        let open = self.open(now);
        let in_window = std::mem::take(&mut self.in_window) + open;
        self.in_all += open;
        if let Some((since, _)) = &mut self.since {
            *since = now;
        }
        in_window
    }

    /// How long the pause is that goes on.
    fn open(&self, now: Instant) -> Duration {
        let since = self.since.map(|(since, _)| now.duration_since(since));
        since.unwrap_or_default()
    }

    /// How long it was paused, in all.
    pub(super) fn in_all(&self) -> Duration {
        self.in_all + self.open(Instant::now())
    }

    /// Whether a span of time lies in a pause.
    pub(super) fn covers(&self, from_ns: u64, to_ns: u64) -> bool {
        let (begin_ns, end_ns) = self.last_ns;
        let is_in_last = begin_ns <= from_ns && to_ns <= end_ns;
        is_in_last || self.since.is_some_and(|(_, since_ns)| since_ns <= from_ns)
    }

    /// Whether a record of work is left out: its call began in a pause. Where something
    /// waits for calls they come here in pauses too.
    pub(super) fn leaves_out(&mut self, call: &Call) -> bool {
        if !self.covers(call.time_ns, call.time_ns) {
            return false;
        }
        let is_exit = call.flags & aiprof_common::CALL_EXIT != 0;
        if is_exit && call.around_ns != 0 && !self.covers(call.around_ns, call.time_ns) {
            self.finished = (call.tid, call.time_ns);
            return false;
        }
        true
    }

    /// Whether data of work are left out.
    pub(super) fn leaves_out_data(&self, data: &CallData) -> bool {
        let is_in_pause = self.covers(data.time_ns, data.time_ns);
        is_in_pause && self.finished != (data.tid, data.time_ns)
    }

    /// The busy times of CPUs of the window that ends now.
    pub(super) fn window_busy(&mut self) -> BTreeMap<u32, u64> {
        let now = busy::busy_ns();
        let since_pause = busy::since(&self.busy_before, &now);
        self.busy_before = now;
        self.busy(since_pause)
    }

    /// The busy times of CPUs of a window, from those since the last pause.
    fn busy(&mut self, since_pause: BTreeMap<u32, u64>) -> BTreeMap<u32, u64> {
        let mut busy = std::mem::take(&mut self.busy);
        if self.since.is_none() {
            add(&mut busy, since_pause);
        }
        busy
    }
}

fn add(to: &mut BTreeMap<u32, u64>, more: BTreeMap<u32, u64>) {
    for (cpu, ns) in more {
        let sum = to.entry(cpu).or_default();
        *sum = sum.saturating_add(ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_across_windows_counts_in_each_of_them_once() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let mut pausing = Pausing {
            since: Some((begin, 5)),
            in_window: Duration::from_millis(3),
            ..Pausing::default()
        };
        let ms = Duration::from_millis;
        assert_eq!(pausing.end_window(at(10)), ms(13));
        assert_eq!(pausing.end_window(at(15)), ms(5));
        assert_eq!(pausing.in_all, ms(15));
        pausing.since = None;
        assert_eq!(pausing.end_window(at(20)), ms(0));
    }

    #[test]
    fn busy_times_are_those_outside_of_pauses() {
        let mut pausing = Pausing {
            busy: BTreeMap::from([(0, 5)]),
            ..Pausing::default()
        };
        let sum = pausing.busy(BTreeMap::from([(0, 2), (1, 1)]));
        assert_eq!(sum, BTreeMap::from([(0, 7), (1, 1)]));
        pausing.since = Some((Instant::now(), 7));
        assert!(pausing.busy(BTreeMap::from([(0, 9)])).is_empty());
    }

    #[test]
    fn what_lies_in_a_pause_is_known() {
        let mut pausing = Pausing {
            last_ns: (10, 20),
            ..Pausing::default()
        };
        assert!(pausing.covers(10, 20) && pausing.covers(12, 14));
        assert!(!pausing.covers(9, 12) && !pausing.covers(15, 21) && !pausing.covers(30, 40));
        pausing.since = Some((Instant::now(), 30));
        assert!(pausing.covers(30, 99) && !pausing.covers(29, 99));
    }
}
