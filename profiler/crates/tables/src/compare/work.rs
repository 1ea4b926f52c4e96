//! What a trace has of kernels, operators and the paths that launched kernels, by name.

use aiprof_model::timeline::{Dialect, Event, Kind, Kinds, Timeline, TrackId};
use aiprof_trace::analyze::statistics::folded;
use aiprof_trace::work::{STEP, name_of};
use rustc_hash::FxHashMap;

/// Steps from which on a trace is compared by steps.
pub(super) const STEPS: usize = 3;
/// Between a kernel and its path: no name has a line's end.
pub(super) const PATH: char = '\n';
/// Frames of a path at most: the innermost ones.
const FRAMES: usize = 64;

/// Calls of one name, in the order of time once all are in.
#[derive(Clone, Debug, Default)]
pub(super) struct NamedCalls {
    /// Begin, length (of operators without those inside) in microseconds, and step.
    pub(super) calls: Vec<(f64, f64, Option<u32>)>,
    /// Sum of the lengths with what is inside, microseconds.
    pub(super) total_us: f64,
}

impl NamedCalls {
    /// The lengths, microseconds.
    pub(super) fn lengths(&self) -> Vec<f64> {
        self.calls.iter().map(|call| call.1).collect()
    }

    /// Sums of each of `steps` steps, microseconds.
    pub(super) fn by_step(&self, steps: usize) -> Vec<f64> {
        let mut sums = vec![0.0; steps];
        for (_, length, step) in &self.calls {
            let sum = step.and_then(|step| sums.get_mut(step as usize));
            if let Some(sum) = sum {
                *sum += length;
            }
        }
        sums
    }
}

/// Calls by name.
pub(super) type ByName = FxHashMap<String, NamedCalls>;

/// What a trace has.
#[derive(Clone, Debug, Default)]
pub struct TraceWork {
    /// Whole steps (`ProfilerStep#`) of the host.
    pub(super) steps: usize,
    /// Kernels.
    pub(super) kernels: ByName,
    /// Operators of the host, by their own time.
    pub(super) operators: ByName,
    /// Kernels with what launched them, the innermost first.
    pub(super) paths: ByName,
}

impl TraceWork {
    /// Whether there is nothing to compare.
    pub fn is_empty(&self) -> bool {
        self.kernels.is_empty() && self.operators.is_empty()
    }

    /// Gathers it from a timeline whose events are in the order of time.
    pub fn of(timeline: &Timeline) -> Self {
        let kinds = Kinds::new(timeline);
        let steps = steps(timeline);
        let mut found = Self {
            steps: steps.len(),
            ..Self::default()
        };
        let step_of = |us: f64| {
            let after = steps.partition_point(|step| step.0 <= us);
            let at = after.checked_sub(1)?;
            steps.get(at).filter(|step| us < step.1)?;
            Some(at as u32)
        };
        let callers = found.host(timeline, &kinds, &step_of);
        for event in slices(timeline) {
            if !is_kernel(timeline, &kinds, event) {
                continue;
            }
            let name = match timeline.dialect(event) == Dialect::Torch {
                true => name_of(timeline, event).to_owned(),
                false => folded(name_of(timeline, event)),
            };
            let caller = callers.get(&(timeline.rank(event), event.correlation));
            let caller = caller.filter(|_| event.correlation != 0);
            let launched_us = caller.map_or(event.ts(), |caller| caller.0);
            let call = (event.ts(), event.dur(), step_of(launched_us));
            if let Some((_, path)) = caller.filter(|caller| !caller.1.is_empty()) {
                add(
                    &mut found.paths,
                    &format!("{name}{PATH}{path}"),
                    call,
                    event.dur(),
                );
            }
            add(&mut found.kernels, &name, call, event.dur());
        }
        for named in [&mut found.kernels, &mut found.operators, &mut found.paths] {
            for one in named.values_mut() {
                one.calls.sort_by(|a, b| a.0.total_cmp(&b.0));
            }
        }
        found
    }

    /// Adds the operators of the host. Returns the calls that have a correlation: when
    /// they began, and what they are in.
    fn host(
        &mut self,
        timeline: &Timeline,
        kinds: &Kinds,
        step_of: &dyn Fn(f64) -> Option<u32>,
    ) -> FxHashMap<(u32, u64), (f64, String)> {
        let mut rows: FxHashMap<TrackId, Vec<&Event>> = FxHashMap::default();
        for event in slices(timeline) {
            if !kinds.is_device(timeline, event) && !is_kernel(timeline, kinds, event) {
                rows.entry(event.track).or_default().push(event);
            }
        }
        let mut callers = FxHashMap::default();
        for events in rows.values_mut() {
            // What is around others comes first.
            events.sort_by_key(|event| (event.start, std::cmp::Reverse(event.length)));
            let mut row = HostRow::default();
            for &event in events.iter() {
                row.close(event, timeline, self, step_of);
                if event.correlation != 0 {
                    let key = (timeline.rank(event), event.correlation);
                    let path = || (event.ts(), row.path(timeline));
                    callers.entry(key).or_insert_with(path);
                }
                row.open.push((event, 0.0));
            }
            row.close_all(timeline, self, step_of);
        }
        callers
    }
}

/// Slices of a row that are open, the innermost last, each with the time of the operators
/// right inside it, microseconds.
#[derive(Default)]
struct HostRow<'a> {
    open: Vec<(&'a Event, f64)>,
}

impl HostRow<'_> {
    /// Closes what ended before an event begins.
    fn close(
        &mut self,
        next: &Event,
        timeline: &Timeline,
        work: &mut TraceWork,
        step_of: &dyn Fn(f64) -> Option<u32>,
    ) {
        while self
            .open
            .last()
            .is_some_and(|(open, _)| open.end() <= next.start)
        {
            self.pop(timeline, work, step_of);
        }
    }

    fn close_all(
        &mut self,
        timeline: &Timeline,
        work: &mut TraceWork,
        step_of: &dyn Fn(f64) -> Option<u32>,
    ) {
        while !self.open.is_empty() {
            self.pop(timeline, work, step_of);
        }
    }

    fn pop(
        &mut self,
        timeline: &Timeline,
        work: &mut TraceWork,
        step_of: &dyn Fn(f64) -> Option<u32>,
    ) {
        let Some((event, inside)) = self.open.pop() else {
            return;
        };
        if !is_operator(timeline, event) {
            // What is inside of a mark is inside of what is around the mark.
            if let Some(around) = self.open.last_mut() {
                around.1 += inside;
            }
            return;
        }
        if let Some(around) = self.open.last_mut() {
            around.1 += event.dur();
        }
        let own = (event.dur() - inside).max(0.0);
        let call = (event.ts(), own, step_of(event.ts()));
        add(
            &mut work.operators,
            timeline.name(event.name),
            call,
            event.dur(),
        );
    }

    /// What is open, the innermost first.
    fn path(&self, timeline: &Timeline) -> String {
        let frames = self.open.iter().rev().take(FRAMES);
        let names = frames.map(|(event, _)| without_number(name_of(timeline, event)));
        names.collect::<Vec<_>>().join(" < ")
    }
}

fn add(to: &mut ByName, name: &str, call: (f64, f64, Option<u32>), total_us: f64) {
    if !to.contains_key(name) {
        to.insert(name.to_owned(), NamedCalls::default());
    }
    if let Some(named) = to.get_mut(name) {
        named.calls.push(call);
        named.total_us += total_us;
    }
}

fn slices(timeline: &Timeline) -> impl Iterator<Item = &Event> {
    let events = timeline.events.iter();
    events.filter(|event| event.is_slice() && !event.dropped)
}

fn is_kernel(timeline: &Timeline, kinds: &Kinds, event: &Event) -> bool {
    kinds.of(event.name).is(Kind::HAS_EXEC)
        || timeline.dialect(event) == Dialect::Torch && kinds.is_kernel(timeline, event)
}

fn is_operator(timeline: &Timeline, event: &Event) -> bool {
    let cat = timeline.name(event.cat);
    cat == "cpu_op" || cat.eq_ignore_ascii_case("operator")
}

/// Begins and ends of the steps that the program marked, microseconds.
fn steps(timeline: &Timeline) -> Vec<(f64, f64)> {
    let is_step = |event: &&Event| {
        timeline.name(event.name).starts_with(STEP) && timeline.name(event.cat) == "user_annotation"
    };
    let steps = slices(timeline).filter(is_step);
    let mut steps: Vec<(f64, f64)> = steps.map(|event| (event.ts(), event.end_us())).collect();
    steps.sort_by(|a, b| a.0.total_cmp(&b.0));
    steps
}

/// A step's number is none of its path.
fn without_number(name: &str) -> &str {
    match name.starts_with(STEP) {
        true => STEP,
        false => name,
    }
}
