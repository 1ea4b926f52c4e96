//! Arrows from launches to the kernels they started, and from the last kernel to the
//! wait that it ended (stage 34).
//!
//! A launch, its kernels and its `ScheduleWait` share `args.correlation`. Numbers
//! are those of a process: ranks have the same ones, so they are kept apart here.
//! Kineto writes the arrows of GPUs itself, whole: a kernel that has one gets no second.
//! acelyzer 1.3.0 means to draw the arrows to waits, but forgets them before it does.

use super::messages::{Level, Messages};
use aiprof_model::timeline::number::SAME_US;
use aiprof_model::timeline::{Event, Id, Kind, Kinds, Ph, Time, Timeline, Tracks};
use rustc_hash::FxHashMap;

/// The end of an arrow is this much before the end of its slice, so that it is in
/// it, microseconds.
pub(crate) const INSIDE_US: f64 = 0.001;

/// How far before its kernel an arrow may end that was drawn to it by the host's times.
const LATE_US: f64 = 10.0;

/// What was done.
#[derive(Clone, Debug)]
pub struct LaunchFlowReport {
    /// Flow events that were added at the end of the events: two per arrow.
    pub added: usize,
    /// Kernels that ended after their `ScheduleWait`.
    pub late: u64,
    /// Kernels whose launch comes after its `ScheduleWait`: no arrows for them.
    pub inconsistent: u64,
    /// Messages to show.
    pub said: Messages,
}

/// Events of one launch.
#[derive(Clone, Copy)]
struct Launch {
    /// The first event of all.
    first: u32,
    /// The flow's begin, which the trace has.
    source: Option<u32>,
    wait: Option<u32>,
    /// The kernel that ended last, no later than the wait.
    last: Option<u32>,
    last_us: f64,
    is_wrong: bool,
}

/// What an event is to a launch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LaunchRole {
    Launcher,
    Wait,
    Kernel,
    Nothing,
}

/// Adds the arrows, if anybody will see them. Needs ranks and the events in the order of
/// time.
pub fn run(timeline: &mut Timeline, is_shown: bool, level: Level) -> LaunchFlowReport {
    let mut outcome = LaunchFlowReport {
        added: 0,
        late: 0,
        inconsistent: 0,
        said: Messages::new(level),
    };
    let parts: Vec<LaunchRole> = timeline.names.iter().map(|(_, text)| part(text)).collect();
    let kinds = Kinds::new(timeline);
    let part_of = |event: &Event| match parts.get(event.name.index()) {
        Some(LaunchRole::Nothing) | None if is_kernel(timeline, event) => LaunchRole::Kernel,
        Some(part) => *part,
        None => LaunchRole::Nothing,
    };
    let mut launches = Launches::new(&timeline.tracks);
    // Arrows from forward operators to backward ones have numbers of their own.
    let is_of_launch = |event: &Event| !kinds.of(event.cat).is(Kind::CAT_FORWARD);
    for (index, event) in (0u32..).zip(&timeline.events) {
        launches.meet(index, event, part_of(event), is_of_launch(event));
    }
    for (index, event) in (0u32..).zip(&timeline.events) {
        if part_of(event) == LaunchRole::Kernel {
            launches.kernel(&timeline.events, index, event, &mut outcome);
        }
    }
    let (mut arrows, mut moved) = (Vec::new(), Vec::new());
    for (index, event) in (0u32..).zip(&timeline.events) {
        if part_of(event) != LaunchRole::Kernel {
            continue;
        }
        match launches.take_end(&timeline.events, event) {
            Some(end) => moved.push((end, event.ts())),
            None if is_shown => launches.arrow_to_kernel(index, event, &mut arrows),
            None => {}
        }
    }
    if is_shown {
        launches.arrows_to_waits(&mut arrows);
    }
    add(&mut timeline.events, &arrows);
    for (end, ts) in moved {
        if let Some(end) = timeline.events.get_mut(end as usize) {
            end.set_ts(ts);
        }
    }
    outcome.added = 2 * arrows.len();
    outcome.tell();
    outcome
}

fn is_kernel(timeline: &Timeline, event: &Event) -> bool {
    timeline.name(event.cat).eq_ignore_ascii_case("kernel")
}

fn part(name: &str) -> LaunchRole {
    let launches = name
        .split_once("Launch")
        .is_some_and(|(_, rest)| rest.contains("ControlBlock"));
    if launches {
        LaunchRole::Launcher
    } else if name.contains("ScheduleWait") {
        LaunchRole::Wait
    } else {
        LaunchRole::Nothing
    }
}

struct Launches<'t> {
    tracks: &'t Tracks,
    index: FxHashMap<(u32, u64), usize>,
    all: Vec<Launch>,
    /// Ends of the arrows that the trace has, by rank, number, process and row.
    ends: FxHashMap<(u32, u64, Id, Id), Vec<u32>>,
    /// Largest number of a flow so far.
    last_id: i64,
}

impl<'t> Launches<'t> {
    fn new(tracks: &'t Tracks) -> Self {
        Self {
            tracks,
            index: FxHashMap::default(),
            all: Vec::new(),
            ends: FxHashMap::default(),
            last_id: 0,
        }
    }

    /// First round: sources and waits.
    fn meet(&mut self, index: u32, event: &Event, part: LaunchRole, is_of_launch: bool) {
        if event.dropped {
            return;
        }
        if matches!(event.ph, Ph::FlowStart | Ph::FlowEnd | Ph::FlowStep) {
            let id = event.id.number().unwrap_or(0);
            self.last_id = self.last_id.max(id);
            let Some(id) = u64::try_from(id).ok().filter(|id| *id != 0 && is_of_launch) else {
                return;
            };
            if event.ph == Ph::FlowEnd {
                let place = (
                    self.tracks.rank(event),
                    id,
                    self.tracks.pid(event),
                    self.tracks.tid(event),
                );
                self.ends.entry(place).or_default().push(index);
            }
            if event.ph == Ph::FlowStart
                && let Some(launch) = self.launch(index, event, id)
            {
                launch.source = Some(index);
            }
            return;
        }
        if !event.is_slice() || event.correlation == 0 || part == LaunchRole::Nothing {
            return;
        }
        self.last_id = self
            .last_id
            .max(i64::try_from(event.correlation).unwrap_or(0));
        if let Some(launch) = self.launch(index, event, event.correlation)
            && part == LaunchRole::Wait
        {
            launch.wait = Some(index);
        }
    }

    fn launch(&mut self, index: u32, event: &Event, id: u64) -> Option<&mut Launch> {
        let all = &mut self.all;
        let at = *self
            .index
            .entry((self.tracks.rank(event), id))
            .or_insert_with(|| {
                all.push(Launch {
                    first: index,
                    source: None,
                    wait: None,
                    last: None,
                    last_us: event.ts(),
                    is_wrong: false,
                });
                all.len() - 1
            });
        all.get_mut(at)
    }

    /// Second round: which kernel ended last.
    fn kernel(
        &mut self,
        events: &[Event],
        index: u32,
        event: &Event,
        outcome: &mut LaunchFlowReport,
    ) {
        let Some(launch) = self.of_kernel(event) else {
            return;
        };
        let end = event.end_us() - INSIDE_US;
        let wait = launch.wait.and_then(|wait| events.get(wait as usize));
        let waited = wait.map_or(f64::INFINITY, Event::end_us);
        if end > waited {
            outcome.late += 1;
        } else if end > launch.last_us {
            launch.last_us = end;
            launch.last = Some(index);
        }
        if launch.last_us > waited {
            outcome.inconsistent += 1;
            launch.is_wrong = true;
        }
    }

    fn of_kernel(&mut self, event: &Event) -> Option<&mut Launch> {
        if !event.is_slice() || event.dropped || event.correlation == 0 {
            return None;
        }
        let at = *self
            .index
            .get(&(self.tracks.rank(event), event.correlation))?;
        self.all.get_mut(at)
    }

    fn next_id(&mut self) -> i64 {
        self.last_id = self.last_id.saturating_add(1);
        self.last_id
    }

    /// The end of the arrow that the trace has to this kernel, which is this kernel's
    /// alone: the nearest to its begin.
    fn take_end(&mut self, events: &[Event], event: &Event) -> Option<u32> {
        let place = (
            self.tracks.rank(event),
            event.correlation,
            self.tracks.pid(event),
            self.tracks.tid(event),
        );
        let ends = self.ends.get_mut(&place)?;
        // A kernel with counters may have been moved since.
        let before = if event.is_counted() { LATE_US } else { SAME_US };
        let ts = |index: u32| events.get(index as usize).map_or(f64::NAN, |end| end.ts());
        let away = |at: &usize| ends.get(*at).map_or(f64::NAN, |end| ts(*end) - event.ts());
        let is_in = |at: &usize| (-before..=event.dur() + SAME_US).contains(&away(at));
        let all = (0..ends.len()).filter(is_in);
        let nearest = all.min_by(|a, b| away(a).abs().total_cmp(&away(b).abs()))?;
        Some(ends.swap_remove(nearest))
    }

    fn arrow_to_kernel(&mut self, index: u32, event: &Event, arrows: &mut Vec<Arrow>) {
        let Some(launch) = self.of_kernel(event).filter(|launch| !launch.is_wrong) else {
            return;
        };
        let Some(source) = launch.source else { return };
        arrows.push(Arrow {
            source,
            from: source,
            to: index,
            from_us: None,
            id: self.next_id(),
        });
    }

    fn arrows_to_waits(&mut self, arrows: &mut Vec<Arrow>) {
        for at in 0..self.all.len() {
            let Some(launch) = self.all.get(at).copied().filter(|l| !l.is_wrong) else {
                continue;
            };
            let (Some(source), Some(wait)) = (launch.source, launch.wait) else {
                continue;
            };
            arrows.push(Arrow {
                source,
                from: launch.last.unwrap_or(launch.first),
                to: wait,
                from_us: Some(launch.last_us),
                id: self.next_id(),
            });
        }
    }
}

/// An arrow to add. There are about as many of them as of events, so they are small.
struct Arrow {
    /// Event that names it.
    source: u32,
    /// Event on whose row it begins.
    from: u32,
    /// Event at which it ends: where that begins, or where that ends if it is a wait.
    to: u32,
    /// When it begins, if it is not when `from` does.
    from_us: Option<f64>,
    id: i64,
}

/// Adds both ends of arrows to the events.
fn add(events: &mut Vec<Event>, arrows: &[Arrow]) {
    events.reserve_exact(2 * arrows.len());
    for arrow in arrows {
        let event = |index: u32| events.get(index as usize);
        let (source, from, to) = (event(arrow.source), event(arrow.from), event(arrow.to));
        let (Some(source), Some(from), Some(to)) = (source, from, to) else {
            continue;
        };
        let ends = match arrow.from_us {
            Some(from_us) => [(from, from_us), (to, to.end_us())],
            None => [(from, from.ts()), (to, to.ts())],
        };
        let [(from, from_us), (to, to_us)] = ends;
        let start = begin(source, from, from_us, Id::Number(arrow.id));
        let end = end(source, to, to_us, Id::Number(arrow.id));
        events.extend([start, end]);
    }
}

/// The begin of an arrow, named as `source`, on the row of `at`.
fn begin(source: &Event, at: &Event, ts: f64, id: Id) -> Event {
    let start = Time::from_micros(ts);
    let mut flow = Event::new(Ph::FlowStart, source.name, at.track, start);
    (flow.cat, flow.id) = (source.cat, id);
    flow
}

/// Its end.
fn end(source: &Event, at: &Event, ts: f64, id: Id) -> Event {
    let mut flow = begin(source, at, ts, id);
    flow.ph = Ph::FlowEnd;
    flow.binds_enclosing = true;
    flow
}

impl LaunchFlowReport {
    fn tell(&mut self) {
        if self.inconsistent > 0 {
            let text = format_args!(
                "FLOWS: Detected {} timestamp inconsistencies, skipped flow creation for \
                 affected iterations",
                self.inconsistent
            );
            self.said.warn("FLOWS", text);
        }
        if self.late > 0 {
            let text = format_args!(
                "FLOWS: Ignored {} events with timestamp after schedule wait",
                self.late
            );
            self.said.warn("FLOWS", text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::timeline::Dialect;
    use aiprof_testkit::scene::{self, Slice};

    fn slice(
        rank: u32,
        name: &'static str,
        cat: &'static str,
        ts: f64,
        dur: f64,
    ) -> Slice<'static> {
        Slice {
            rank,
            tid: 1,
            name,
            cat,
            ts,
            dur,
            correlation: 5,
            ..Slice::default()
        }
    }

    /// Two ranks with the same correlations: acelyzer 1.3.0 draws rank 0's kernels
    /// from rank 1's launch (facts, 15.8).
    fn two_ranks() -> Timeline {
        let mut timeline = scene::empty(Dialect::Torch);
        for rank in [0, 1] {
            let at = 1000.0 * f64::from(rank);
            scene::flow(&mut timeline, Ph::FlowStart, rank, 5, at + 1.0);
            let launch = slice(rank, "aiuLaunchControlBlocks", "cuda_runtime", at, 3.0);
            scene::add(&mut timeline, &launch);
            let wait = slice(rank, "aiuScheduleWait", "cuda_runtime", at + 4.0, 96.0);
            scene::add(&mut timeline, &wait);
            for (ts, dur) in [(10.0, 20.0), (40.0, 50.0), (95.0, 20.0)] {
                let mut kernel = slice(rank, "k", "kernel", at + ts, dur);
                kernel.tid = 9;
                scene::add(&mut timeline, &kernel);
            }
        }
        timeline
    }

    #[test]
    fn launches_lead_to_their_own_rank_s_kernels() {
        let mut timeline = two_ranks();
        let before = timeline.events.len();
        let outcome = run(&mut timeline, true, Level::Warn);
        assert_eq!(
            (outcome.added, outcome.late, outcome.inconsistent),
            (16, 2, 0)
        );
        let text: Vec<&str> = outcome.said.iter().map(|m| m.text.as_str()).collect();
        assert_eq!(
            text,
            ["FLOWS: Ignored 2 events with timestamp after schedule wait"]
        );
        let flows = &timeline.events[before..];
        let seen: Vec<_> = flows
            .chunks(2)
            .map(|pair| {
                let [s, f] = pair else { panic!() };
                assert_eq!((s.ph, f.ph, s.id), (Ph::FlowStart, Ph::FlowEnd, f.id));
                assert!(f.binds_enclosing && timeline.pid(s) == timeline.pid(f));
                assert_eq!(timeline.name(f.cat), "ac2g");
                (
                    s.id.number().unwrap(),
                    timeline.pid(s).number().unwrap(),
                    s.ts(),
                    f.ts(),
                )
            })
            .collect();
        // New numbers begin behind the largest correlation.
        let expected = [
            (6, 0, 1.0, 10.0),
            (7, 0, 1.0, 40.0),
            (8, 0, 1.0, 95.0),
            (9, 1, 1001.0, 1010.0),
            (10, 1, 1001.0, 1040.0),
            (11, 1, 1001.0, 1095.0),
            (12, 0, 89.999, 100.0),
            (13, 1, 1089.999, 1100.0),
        ];
        assert_eq!(seen, expected);
        assert_eq!(timeline.tid(&flows[0]), Id::Number(7));
        assert_eq!(timeline.tid(&flows[1]), Id::Number(9));
        assert_eq!(timeline.tid(&flows[13]), Id::Number(1));
    }

    /// As Kineto writes them: one launch of a graph, each kernel with its arrow. A kernel
    /// that was moved takes its arrow along, one without gets one.
    #[test]
    fn kernels_with_an_arrow_get_no_second() {
        let mut timeline = scene::empty(Dialect::Torch);
        scene::flow(&mut timeline, Ph::FlowStart, 0, 5, 1.0);
        for ts in [10.0, 40.0, 70.0] {
            let mut kernel = slice(0, "k", "Kernel", ts, 20.0);
            kernel.tid = 9;
            if ts == 40.0 {
                kernel.stamps = Some([1, 2, 3, 4, 5]);
            }
            scene::add(&mut timeline, &kernel);
        }
        for ts in [10.0, 37.5] {
            scene::flow(&mut timeline, Ph::FlowEnd, 0, 5, ts);
            let Timeline { events, tracks, .. } = &mut timeline;
            tracks.set_tid(events.last_mut().unwrap(), Id::Number(9));
        }
        let outcome = run(&mut timeline, true, Level::Warn);
        assert_eq!(outcome.added, 2);
        let ends = timeline.events.iter().filter(|e| e.ph == Ph::FlowEnd);
        let mut ends: Vec<f64> = ends.map(|end| end.ts()).collect();
        ends.sort_by(f64::total_cmp);
        assert_eq!(ends, [10.0, 40.0, 70.0]);
        // Numbers of arrows between operators are others.
        for event in &mut timeline.events {
            if event.ph != Ph::Complete {
                event.cat = timeline.names.intern("fwdbwd");
            }
        }
        assert_eq!(run(&mut timeline, true, Level::Warn).added, 0);
    }

    #[test]
    fn a_launch_after_its_wait_gets_no_arrows() {
        let mut timeline = scene::empty(Dialect::Torch);
        scene::add(&mut timeline, &slice(0, "aiuScheduleWait", "", 0.0, 10.0));
        scene::flow(&mut timeline, Ph::FlowStart, 0, 5, 50.0);
        scene::add(&mut timeline, &slice(0, "k", "kernel", 60.0, 5.0));
        // The wait is first: the kernel is late, the launch is not wrong.
        let outcome = run(&mut timeline, true, Level::Warn);
        assert_eq!((outcome.late, outcome.inconsistent), (1, 0));
        let mut timeline = scene::empty(Dialect::Torch);
        scene::flow(&mut timeline, Ph::FlowStart, 0, 5, 50.0);
        scene::add(&mut timeline, &slice(0, "k", "kernel", 60.0, 5.0));
        scene::add(&mut timeline, &slice(0, "aiuScheduleWait", "", 0.0, 10.0));
        let outcome = run(&mut timeline, true, Level::Warn);
        assert_eq!(
            (outcome.late, outcome.inconsistent, outcome.added),
            (1, 1, 0)
        );
    }

    #[test]
    fn kernels_without_a_launch_are_left_alone() {
        let mut timeline = scene::empty(Dialect::Torch);
        assert_eq!(run(&mut timeline, true, Level::Warn).added, 0);
        let mut kernel = slice(0, "k", "kernel", 1.0, f64::MAX);
        scene::add(&mut timeline, &kernel);
        kernel.correlation = 0;
        scene::add(&mut timeline, &kernel);
        kernel.correlation = u64::MAX;
        scene::add(&mut timeline, &kernel);
        scene::flow(&mut timeline, Ph::FlowStart, 0, i64::MIN, 1.0);
        scene::flow(&mut timeline, Ph::FlowStart, 0, i64::MAX, 1.0);
        scene::flow(&mut timeline, Ph::FlowStart, 0, 0, 1.0);
        assert_eq!(run(&mut timeline, true, Level::Warn).added, 0);
    }
}
