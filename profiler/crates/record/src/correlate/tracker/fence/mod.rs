//! Fences and scheduler jobs to submissions; pure.
//!
//! Two sources show when work that was handed to a driver was over:
//!
//! * `dma_fence`: a driver makes a fence for each piece of work, and signals it when
//!   the work is done. Fences are in a *context*, in which they are done in the order
//!   of their sequence numbers, and name their driver and *timeline*.
//! * `gpu_scheduler`: drivers that use the kernel's scheduler have their jobs queued, run and
//!   done. A job's own fence belongs to the driver `drm_sched`; it repeats the job and is left
//!   out while jobs are recorded.
//!
//! What comes out is when work was submitted and when the kernel knew that it was done. That is
//! *not* when the device was busy. Work waits in queues. A fence without waiters may be signalled
//! late. Where programs write to the device's queues themselves, there is no fence per piece of
//! work.
//!
//! Events may be lost, doubled or out of order: an end that comes first waits for its begin, and
//! what is incomplete in the end is marked so. All tables are bounded.

mod point;
#[cfg(test)]
mod tests;

pub use point::begins;

use super::{CallSink, Tracked};
use aiprof_model::{
    profile::{LossKind, Losses},
    wire::{Trace, TracePoint},
};
use point::{Key, Meaning, SubmissionPoint};
use rustc_hash::{FxHashMap, FxHashSet};
use std::{collections::VecDeque, rc::Rc};

/// Most kinds of tracepoints.
const MAX_POINTS: usize = aiprof_common::MAX_TRACES as usize;
/// Most different names kept; further ones are not shared, which costs memory only.
const MAX_NAMES: usize = 4096;

/// Fences without work: they stand for other fences, for nothing, or for a right to memory that
/// lasts until it is revoked. They are given by driver and, if that is not all of its fences,
/// timeline.
const NO_WORK: [(&str, Option<&str>); 6] = [
    ("dma_fence_array", None),
    ("dma_fence_chain", None),
    ("stub", None),
    ("amdgpu_amdkfd_fence", None),
    ("amdgpu_eviction_fence", None),
    ("xe", Some("preempt")),
];
/// Driver of the fences of scheduler jobs.
const SCHEDULER: &str = "drm_sched";

/// Where a [`Submission`] is known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SubmissionSource {
    /// A driver's fence.
    Fence,
    /// A job of the kernel's GPU scheduler.
    Job,
}

impl SubmissionSource {
    /// The kernel's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fence => "dma_fence",
            Self::Job => "drm_sched",
        }
    }
}

/// A piece of work from its submission until the kernel knew that it was done: not
/// the time that the device was busy with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// Where it is known from.
    pub source: SubmissionSource,
    /// The device, `0000:03:00.0`; where the Linux kernel does not report it, the driver. Empty:
    /// neither is known.
    pub device: Rc<str>,
    /// The fence's timeline or the scheduler's ring.
    pub queue: Rc<str>,
    /// Context of its fence, 0 if the Linux kernel does not report it.
    pub context: u64,
    /// Number in that context; where there is none, of the job.
    pub seqno: u64,
    /// The kernel's number of the opened device file; 0 if unknown.
    pub client: u64,
    /// Process that submitted it; 0 if the submission was not seen.
    /// Drivers that submit from a kernel thread show that one.
    pub pid: u32,
    /// Thread, likewise.
    pub tid: u32,
    /// When it was submitted: its fence made, its job queued. CLOCK_MONOTONIC
    /// nanoseconds, as all times. If that was not seen, as `started_ns`.
    pub submitted_ns: u64,
    /// When it was handed to the hardware's queue, if the driver reports it.
    pub started_ns: Option<u64>,
    /// When the kernel knew that it was done; `None`: not seen.
    pub ended_ns: Option<u64>,
    /// The latest time at which it can have been done. Where its end was not seen, that is its
    /// fence's release or the end of the recording.
    pub end_before_ns: u64,
}

/// Room of [`Fences`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Most submissions that are not done.
    pub(super) open: usize,
    /// Most ends that wait for their begin.
    pub(super) early: usize,
}

impl Default for Room {
    /// About 20 MiB when full.
    fn default() -> Self {
        Self {
            open: 1 << 16,
            early: 1 << 12,
        }
    }
}

/// A submission that is not done.
#[derive(Debug)]
struct OpenSubmission {
    what: Submission,
    /// Its submission was seen, not only what came later.
    begun: bool,
    /// Distinguishes this use of the key from others.
    serial: u64,
}

/// Follows fences and jobs.
#[derive(Debug, Default)]
pub(super) struct Fences {
    room: Room,
    points: Vec<Option<SubmissionPoint>>,
    has_jobs: bool,
    open: FxHashMap<Key, OpenSubmission>,
    /// The keys of `open` by age, and some that are gone.
    order: VecDeque<(Key, u64)>,
    /// Ends that came before their begin, by key.
    early: FxHashMap<Key, u64>,
    early_order: VecDeque<(Key, u64)>,
    names: FxHashSet<Rc<str>>,
    next: u64,
    /// Number of reported submissions.
    pub(super) reported: u64,
    /// Ends whose begin was not seen: of work that was submitted before the
    /// recording began or by processes that are not recorded, or it was lost.
    pub(super) unmatched: u64,
}

impl Fences {
    #[cfg(test)]
    fn with_room(room: Room) -> Self {
        Self {
            room,
            ..Self::default()
        }
    }

    /// A tracepoint is recorded from here on.
    pub(super) fn point(&mut self, point: &TracePoint) {
        let id = point.id as usize;
        if id >= MAX_POINTS {
            return;
        }
        if self.points.len() <= id {
            self.points.resize(id + 1, None);
        }
        let point = SubmissionPoint::of(point);
        self.has_jobs |= point.as_ref().is_some_and(SubmissionPoint::ends_job);
        self.points[id] = point;
    }

    /// A tracepoint was hit.
    pub(super) fn trace(&mut self, trace: &Trace, losses: &mut Losses, sink: &mut dyn CallSink) {
        let point = self.points.get(trace.point as usize);
        let Some(point) = point.cloned().flatten() else {
            return;
        };
        let Some(key) = point.key(trace).filter(|_| self.is_work(&point, trace)) else {
            return;
        };
        match point.meaning {
            Meaning::Begin => self.begin(&point, key, trace, losses, sink),
            Meaning::Start => self.start(&point, key, trace, losses, sink),
            Meaning::End => self.end(key, trace.time_ns, sink),
            Meaning::Gone => {
                if let Some(open) = self.open.remove(&key) {
                    self.report(open.what, None, trace.time_ns, sink);
                }
            }
        }
    }

    /// Whether a fence stands for work of its own.
    fn is_work(&self, point: &SubmissionPoint, trace: &Trace) -> bool {
        let driver = point.driver(trace);
        let is_told_as_job = self.has_jobs && driver == SCHEDULER;
        let mut others = NO_WORK.iter();
        let is_other = others.any(|(name, timeline)| {
            *name == driver && timeline.is_none_or(|timeline| timeline == point.queue(trace))
        });
        !is_told_as_job && !is_other
    }

    fn begin(
        &mut self,
        point: &SubmissionPoint,
        key: Key,
        trace: &Trace,
        losses: &mut Losses,
        sink: &mut dyn CallSink,
    ) {
        let time = trace.time_ns;
        if let Some(open) = self.open.get_mut(&key) {
            let same = open.what.submitted_ns == time;
            let late = !open.begun && time <= open.what.submitted_ns;
            if same && open.begun {
                return;
            }
            if late {
                // What came after it overtook it.
                open.begun = true;
                open.what.submitted_ns = time;
                (open.what.pid, open.what.tid) = (trace.pid, trace.tid);
                return;
            }
        }
        if let Some(old) = self.open.remove(&key) {
            // The key is used again: the end of its last use was lost.
            self.report(old.what, None, time, sink);
        }
        let what = self.describe(point, key, trace);
        self.admit(key, what, true, losses, sink);
    }

    fn start(
        &mut self,
        point: &SubmissionPoint,
        key: Key,
        trace: &Trace,
        losses: &mut Losses,
        sink: &mut dyn CallSink,
    ) {
        let time = trace.time_ns;
        if let Some(open) = self.open.get_mut(&key) {
            if open.what.started_ns.is_none() && time >= open.what.submitted_ns {
                open.what.started_ns = Some(time);
            }
            return;
        }
        let mut what = self.describe(point, key, trace);
        // Whoever hands it on is not who submitted it.
        (what.pid, what.tid) = (0, 0);
        what.started_ns = Some(time);
        self.admit(key, what, false, losses, sink);
    }

    /// Takes in what has begun, unless its end is known already.
    fn admit(
        &mut self,
        key: Key,
        what: Submission,
        begun: bool,
        losses: &mut Losses,
        sink: &mut dyn CallSink,
    ) {
        match self.early.remove(&key) {
            Some(end) if end >= what.submitted_ns => {
                return self.report(what, Some(end), end, sink);
            }
            // The end belongs to an earlier use of the key.
            Some(_) => self.unmatched += 1,
            None => {}
        }
        while self.open.len() >= self.room.open.max(1) {
            self.drop_oldest();
            losses.add(LossKind::SubmissionsRefused, 1);
        }
        self.next += 1;
        let serial = self.next;
        self.order.push_back((key, serial));
        if self.order.len() > 2 * self.room.open + 16 {
            let open = &self.open;
            self.order
                .retain(|(key, serial)| open.get(key).is_some_and(|open| open.serial == *serial));
            self.order.push_back((key, serial));
        }
        let open = OpenSubmission {
            what,
            begun,
            serial,
        };
        self.open.insert(key, open);
    }

    /// Forgets the submission that is open longest.
    fn drop_oldest(&mut self) {
        while let Some((key, serial)) = self.order.pop_front() {
            if self
                .open
                .get(&key)
                .is_some_and(|open| open.serial == serial)
            {
                self.open.remove(&key);
                return;
            }
        }
        // Not reached: every open one is in the order.
        self.open.clear();
    }

    fn end(&mut self, key: Key, time: u64, sink: &mut dyn CallSink) {
        let known = self.open.get(&key);
        if known.is_some_and(|open| open.what.submitted_ns <= time) {
            if let Some(open) = self.open.remove(&key) {
                self.report(open.what, Some(time), time, sink);
            }
            return;
        }
        if known.is_some() {
            // The end belongs to an earlier use of the key.
            self.unmatched += 1;
            return;
        }
        if self.early.insert(key, time).is_some() {
            self.unmatched += 1;
        }
        self.early_order.push_back((key, time));
        while self.early_order.len() > self.room.early {
            if let Some((key, time)) = self.early_order.pop_front()
                && self.early.get(&key) == Some(&time)
            {
                self.early.remove(&key);
                self.unmatched += 1;
            }
        }
    }

    /// Nothing more will come: what is open is so at `now_ns`.
    pub(super) fn finish(&mut self, now_ns: u64, sink: &mut dyn CallSink) {
        let mut open: Vec<_> = self.open.drain().collect();
        open.sort_by_key(|(_, open)| open.serial);
        for (_, open) in open {
            self.report(open.what, None, now_ns, sink);
        }
        self.order.clear();
        self.unmatched += self.early.drain().count() as u64;
        self.early_order.clear();
    }

    fn report(
        &mut self,
        mut what: Submission,
        end: Option<u64>,
        before: u64,
        sink: &mut dyn CallSink,
    ) {
        what.ended_ns = end;
        what.end_before_ns = before.max(what.submitted_ns);
        // A start behind the end was another use's.
        what.started_ns = what.started_ns.filter(|start| *start <= what.end_before_ns);
        self.reported += 1;
        sink.found(&Tracked::Submission(&what));
    }

    /// Makes a submission from the event that begins it.
    fn describe(&mut self, point: &SubmissionPoint, key: Key, trace: &Trace) -> Submission {
        let (context, seqno) = key.numbers();
        Submission {
            source: key.source(),
            device: self.name(point.device(trace)),
            queue: self.name(point.queue(trace)),
            context,
            seqno: point.number(trace).unwrap_or(seqno),
            client: point.client(trace),
            pid: trace.pid,
            tid: trace.tid,
            submitted_ns: trace.time_ns,
            started_ns: None,
            ended_ns: None,
            end_before_ns: trace.time_ns,
        }
    }

    fn name(&mut self, text: &str) -> Rc<str> {
        if let Some(known) = self.names.get(text) {
            return known.clone();
        }
        let name: Rc<str> = text.into();
        if self.names.len() < MAX_NAMES {
            self.names.insert(name.clone());
        }
        name
    }
}
