//! Waits as spans of their threads: first what for, then until the thread ran again.
//!
//! A span is as long as the wait was. What a wait stands for (of short waits only some are
//! recorded) is its argument `stands_for_us`: sums of times are sums of that. Several waits of
//! one system call are recorded as one. Where the thread was preempted between them, that has its
//! own span, and the wait is drawn around it in pieces.

use super::{Builder, TrackKey};
use crate::correlate::FinishedCall;
use aiprof_model::{
    probes::CallKind,
    process::ProcessTable,
    profile::LossKind,
    timeline::{Args, recorded::EventSink},
    wire::{ProcessEvent, ProcessEventKind, ThreadWait, WaitReason},
};
use rustc_hash::FxHashMap;

/// Most threads whose last waits are remembered.
const MAX_THREADS: usize = 1 << 17;
/// Most times that a thread was preempted which are remembered: of one system call.
const MAX_PREEMPTED: usize = 16;
/// Category of waits.
const CATEGORY: &str = "wait";
/// How many spans are around a wait, for the order of equal ones: it comes last.
const INNERMOST: u32 = u32::MAX - 1;

/// Begin and end, CLOCK_MONOTONIC nanoseconds.
type Times = (u64, u64);

/// The last waits of threads.
#[derive(Debug, Default)]
pub(super) struct ThreadWaits {
    /// Waits show which thread ended them.
    pub(super) wakers: bool,
    last: FxHashMap<u32, LastWait>,
}

#[derive(Debug, Default)]
struct LastWait {
    times: Times,
    /// When the thread was switched away from outside of system calls, since its last wait
    /// in one.
    preempted: Vec<Times>,
}

/// A piece of a wait: what for, when, and the nanoseconds that it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WaitPiece {
    reason: WaitReason,
    times: Times,
    weight_ns: u64,
}

impl ThreadWaits {
    /// Takes a thread's end, or its new program, in.
    pub(super) fn process(&mut self, event: &ProcessEvent) {
        if matches!(
            event.kind,
            ProcessEventKind::Exit | ProcessEventKind::Exec { .. }
        ) {
            self.last.remove(&event.tid);
        }
    }

    /// The drawn end of a call whose own end was not seen, and which would be drawn until
    /// `shown`. A wait that begins in it is part of the call if the call waits for the device.
    /// Else the call is drawn until the wait.
    pub(super) fn end_of(&self, call: &FinishedCall, shown: u64) -> u64 {
        let Some(LastWait { times, .. }) = self.last.get(&call.tid) else {
            return shown;
        };
        match *times {
            (begin, _) if begin <= call.start_ns => shown,
            (_, end) if call.probe.kind == CallKind::Synchronize => shown.max(end + 1),
            (begin, _) => shown.min(begin),
        }
    }

    /// Remembers a wait; gives the times in it that other waits have already.
    fn note(&mut self, wait: &ThreadWait, times: Times) -> Vec<Times> {
        if self.last.len() >= MAX_THREADS && !self.last.contains_key(&wait.tid) {
            self.last.clear();
        }
        let last = self.last.entry(wait.tid).or_default();
        last.times = times;
        if wait.syscall.is_some() {
            return std::mem::take(&mut last.preempted);
        }
        if last.preempted.len() >= MAX_PREEMPTED {
            last.preempted.remove(0);
        }
        last.preempted.push(times);
        Vec::new()
    }
}

impl<S: EventSink> Builder<S> {
    /// A wait: spans among the calls of its thread.
    pub(super) fn wait(&mut self, processes: &ProcessTable, wait: &ThreadWait) {
        let (pid, tid) = (wait.pid, wait.tid);
        let end = wait.end_ns.min(wait.time_ns);
        // What was before the recording is not drawn.
        let times = (wait.begin_ns.max(self.writer.first_ns).min(end), end);
        let holes = self.waits.note(wait, times);
        let Some(track) = self.writer.track(TrackKey::Thread { pid, tid }) else {
            return self.writer.out.losses.add(LossKind::SpansRefused, 1);
        };
        self.process_tracks.waited(processes, pid, tid);
        self.writer.out.totals.waits += 1;
        let stack = self.stacks.of_wait(wait);
        let waker = wait.woken_by().filter(|_| self.waits.wakers);
        for piece in pieces(wait, times, &holes) {
            let name = self.writer.name(piece.reason.name());
            let mut event = self.writer.span(name, CATEGORY, track, piece.times);
            event.stack = stack;
            let mut args = Args::new();
            args.micros("stands_for_us", piece.weight_ns);
            if let Some((pid, tid)) = waker
                && piece.reason == wait.reason
            {
                let name = processes.get(pid).map(|process| process.comm.as_str());
                args.text(
                    "woken_by",
                    name.filter(|n| !n.is_empty()).unwrap_or("process"),
                );
                args.number("woken_by_pid", pid.into());
                args.number("woken_by_tid", tid.into());
            }
            self.writer.push(&event, INNERMOST, &args);
        }
    }
}

/// The pieces of a wait that are drawn, around the holes in it. First comes what it was for, then
/// the time in which the thread could run and did not. Their lengths are by their shares of what
/// the wait stands for.
fn pieces(wait: &ThreadWait, times: Times, holes: &[Times]) -> Vec<WaitPiece> {
    let free = without(times, holes);
    let length: u64 = free.iter().map(|(begin, end)| end - begin).sum();
    let (blocked, queued) = (wait.blocked_ns, wait.queued_ns);
    let share = |part: u64, of: u64, whole: u64| {
        let exact = u128::from(part) * u128::from(of) / u128::from(whole.max(1));
        u64::try_from(exact).unwrap_or(u64::MAX)
    };
    let for_reason = share(length, blocked, blocked.saturating_add(queued));
    let mut done = 0;
    let mut pieces = Vec::new();
    for (begin, end) in free {
        let change = begin + for_reason.saturating_sub(done).min(end - begin);
        done += end - begin;
        for (reason, times, of, weight) in [
            (wait.reason, (begin, change), for_reason, blocked),
            (WaitReason::Cpu, (change, end), length - for_reason, queued),
        ] {
            let own = times.1 - times.0;
            if own > 0 {
                pieces.push(WaitPiece {
                    reason,
                    times,
                    weight_ns: share(weight, own, of),
                });
            }
        }
    }
    pieces
}

/// A time without the holes in it, which are in the order of time.
fn without((begin, end): Times, holes: &[Times]) -> Vec<Times> {
    let (mut free, mut from) = (Vec::new(), begin);
    for &(hole, until) in holes {
        if until <= from || hole >= end {
            continue;
        }
        if hole > from {
            free.push((from, hole));
        }
        from = until.min(end);
    }
    if from < end {
        free.push((from, end));
    }
    free
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(blocked_ns: u64, queued_ns: u64) -> ThreadWait {
        ThreadWait {
            blocked_ns,
            queued_ns,
            reason: WaitReason::Lock,
            ..ThreadWait::default()
        }
    }

    fn of(pieces: &[WaitPiece]) -> Vec<(WaitReason, u64, u64, u64)> {
        let of = |p: &WaitPiece| (p.reason, p.times.0, p.times.1, p.weight_ns);
        pieces.iter().map(of).collect()
    }

    #[test]
    fn a_wait_is_drawn_as_long_as_it_was_and_weighs_what_it_stands_for() {
        use WaitReason::{Cpu, Lock};
        // Recorded for certain.
        let whole = pieces(&wait(70, 30), (1000, 1100), &[]);
        assert_eq!(of(&whole), [(Lock, 1000, 1070, 70), (Cpu, 1070, 1100, 30)]);
        // One of many: a period for each that was recorded.
        let drawn = pieces(&wait(7000, 3000), (1000, 1100), &[]);
        let expected = [(Lock, 1000, 1070, 7000), (Cpu, 1070, 1100, 3000)];
        assert_eq!(of(&drawn), expected);
        // Preempted only.
        let preempted = pieces(&wait(0, 100), (1000, 1100), &[]);
        assert_eq!(of(&preempted), [(Cpu, 1000, 1100, 100)]);
        assert_eq!(pieces(&wait(1, 1), (5, 5), &[]), []);
        // A damaged recording has such values.
        let odd = pieces(&wait(u64::MAX, u64::MAX), (0, u64::MAX), &[]);
        assert_eq!(
            odd.iter().map(|p| p.times.1 - p.times.0).sum::<u64>(),
            u64::MAX
        );
        assert_eq!(of(&pieces(&wait(0, 0), (0, 9), &[])), [(Cpu, 0, 9, 0)]);
    }

    #[test]
    fn a_wait_goes_around_those_that_were_recorded_in_it() {
        use WaitReason::{Cpu, Lock};
        let holes = [(900, 950), (1010, 1020), (1050, 1060)];
        let found = pieces(&wait(60, 20), (1000, 1100), &holes);
        let expected = [
            (Lock, 1000, 1010, 10),
            (Lock, 1020, 1050, 30),
            (Lock, 1060, 1080, 20),
            (Cpu, 1080, 1100, 20),
        ];
        assert_eq!(of(&found), expected);
        assert_eq!(without((10, 20), &[(5, 12), (18, 30)]), [(12, 18)]);
        assert_eq!(without((10, 20), &[(5, 30)]), []);
    }

    #[test]
    fn preempted_threads_are_remembered_until_their_next_system_call() {
        let mut waits = ThreadWaits::default();
        let of = |tid, syscall| ThreadWait {
            tid,
            syscall,
            ..ThreadWait::default()
        };
        for n in 0..100 {
            assert_eq!(waits.note(&of(1, None), (n, n + 1)), []);
        }
        let holes = waits.note(&of(1, Some(0)), (0, 200));
        assert_eq!((holes.len(), holes[15]), (MAX_PREEMPTED, (99, 100)));
        assert_eq!(waits.note(&of(1, Some(0)), (200, 300)), []);
        assert_eq!(waits.note(&of(2, Some(0)), (0, 9)), []);
        for tid in 0..2 * MAX_THREADS as u32 {
            waits.note(&of(tid, None), (0, 1));
        }
        assert!(waits.last.len() <= MAX_THREADS);
    }
}
