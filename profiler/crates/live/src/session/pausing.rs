//! The session's part in pauses.
//!
//! What is recorded stops at its source: the sampling events are switched off, and the
//! programs at probes look whether the recording is paused. What processes map, start and
//! end goes on, so that stacks are whole afterwards, and so does what calls create. Calls
//! that have begun are followed to their end.

use super::{CollectError, Fired, Session};
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
}

impl Pausing {
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

    fn in_all(&self) -> Duration {
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

    /// The busy times of CPUs of a window, from those since the last pause.
    pub(super) fn busy(&mut self, since_pause: BTreeMap<u32, u64>) -> BTreeMap<u32, u64> {
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

impl Session {
    /// Whether the recording is paused.
    pub fn is_paused(&self) -> bool {
        self.pausing.since.is_some()
    }

    /// How long it has been, in all.
    pub fn paused(&self) -> Duration {
        self.pausing.in_all()
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
        self.stop_recording()?;
        self.drain(false)?;
        Ok(())
    }

    /// What happened that was waited for, since this was asked last.
    pub fn fired(&mut self) -> Option<Fired> {
        self.triggers.take()
    }

    /// Waits for nothing any more.
    pub fn disarm(&mut self) {
        self.triggers.disarm();
    }

    /// Forgets what was added up only for triggers, which wait for nothing more then.
    pub(super) fn forget_watched(&mut self) {
        if self.triggers.begin_recording() {
            self.events.aggregate.reset();
            self.named_codes = 0;
            self.named_java = 0;
            self.triggers.disarm();
        }
    }

    /// Acts upon what happened that was waited for.
    pub(super) fn follow_triggers(&mut self) -> Result<(), CollectError> {
        if self.triggers.have_fired() && self.triggers.begin_recording() {
            self.resume()?;
        }
        Ok(())
    }

    /// Pauses before anything is recorded.
    pub(super) fn stop_recording(&mut self) -> Result<(), CollectError> {
        // What waits for a call must see it.
        if !self.triggers.begin_recording() {
            self.bpf.set(RECORDING, &0u32, &PAUSED)?;
        }
        self.cpus.pause(true).map_err(CollectError::PerfEvent)?;
        let time_ns = perf::monotonic_ns();
        self.pausing.since = Some((Instant::now(), time_ns));
        let busy_now = busy::busy_ns();
        add(
            &mut self.pausing.busy,
            busy::since(&self.busy_before, &busy_now),
        );
        self.arrived.push(Event::Pause(Pause {
            time_ns,
            begins: true,
        }));
        Ok(())
    }

    /// Goes on with the recording, if it is paused.
    ///
    /// # Errors
    /// It could not be resumed.
    pub fn resume(&mut self) -> Result<(), CollectError> {
        let time_ns = perf::monotonic_ns();
        if !self.end_pause(time_ns) {
            return Ok(());
        }
        self.forget_watched();
        // First the time, then what is measured from it.
        self.bpf.set(RECORDING, &0u32, &time_ns)?;
        self.cpus.pause(false).map_err(CollectError::PerfEvent)
    }

    /// Ends the pause, if there is one, and records that it ended.
    pub(super) fn end_pause(&mut self, time_ns: u64) -> bool {
        let Some((since, since_ns)) = self.pausing.since.take() else {
            return false;
        };
        self.busy_before = busy::busy_ns();
        let length = since.elapsed();
        self.pausing.in_window += length;
        self.pausing.in_all += length;
        self.pausing.last_ns = (since_ns, time_ns);
        self.arrived.push(Event::Pause(Pause {
            time_ns,
            begins: false,
        }));
        true
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
