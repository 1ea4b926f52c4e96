//! Work of devices by the operators that launched it, with what these compute and move.
//!
//! Work belongs to the innermost operator round its launch that has a formula
//! (see `torch::formulas`), else to the innermost operator. What an operator computes is counted
//! once for each call that has work of its own. If operators in it have work of their own and
//! count it, their operations are theirs only.
//!
//! The phase of work is that of the notes round its launch. Without such notes, attention shows it:
//! a call with one query goes on by a token, a causal call with several reads a prompt. What was
//! launched between two calls of the same kind has their phase, what was launched between two of
//! different kinds has none. Attention that is neither shows that the model does not give tokens.

use super::formulas::{Formula, OperatorWork, formula};
use super::inputs::{ElementType, InputTexts, Inputs};
use super::phases::WorkPhase;
use super::shapes;
use crate::work::{RankWork, RankedWork, SpanRole, WorkIndex, name_of};
use aiprof_model::timeline::{Event, Sym, Time, Timeline, TrackId};
use rustc_hash::{FxHashMap, FxHashSet};

/// Names of different kernels of an operator that a row has.
const MOST_KERNELS: usize = 3;

/// Work of an operator and its kernels in a phase.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkRow {
    /// The rank.
    pub rank: u32,
    /// The phase; `None`: nothing shows it.
    pub phase: Option<WorkPhase>,
    /// The operator; empty: none launched it.
    pub operator: String,
    /// Shapes of its inputs, where these keep calls apart: `[[64, 3], []]`.
    pub shapes: Option<String>,
    /// Names of its kernels, the first few; one if the operator has no formula.
    pub kernels: Vec<String>,
    /// Type of the operator's main input; `None`: not known.
    pub element: Option<ElementType>,
    /// Calls of an operator that has a formula, else pieces of work.
    pub calls: u64,
    /// Time on devices, microseconds.
    pub us: f64,
    /// What calls with a formula and known inputs did; `None`: there are none.
    pub counted: Option<CountedWork>,
}

/// What calls computed and moved.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CountedWork {
    /// Their time on devices, microseconds.
    pub us: f64,
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes read and written; `None`: a type is not known.
    pub bytes: Option<u64>,
    /// They multiplied matrices.
    pub is_matrix: bool,
}

/// The rows of all ranks: by rank, those with most time first. Different shapes of inputs have
/// different rows if `by_shape`.
pub fn rows(timeline: &Timeline, index: &WorkIndex, by_shape: bool) -> Vec<WorkRow> {
    let mut known = KnownWork::default();
    let ranks = index.ranks.iter().flat_map(|rank| {
        let launches = LaunchWalk::new(timeline, index, rank).run(rank);
        let mut rows = RowMaker {
            timeline,
            launches: &launches,
            by_shape,
            rows: FxHashMap::default(),
        };
        rows.add_work(rank, &mut known);
        rows.finish(rank.rank)
    });
    ranks.collect()
}

/// Where a piece of work was launched.
#[derive(Clone, Copy, Default)]
struct Launch {
    /// The event of the operator that it belongs to.
    operator: Option<u32>,
    /// That operator has a formula.
    has_formula: bool,
    phase: Option<WorkPhase>,
}

/// A call of an attention.
#[derive(Clone, Copy)]
struct AttentionCall {
    track: TrackId,
    start: Time,
    end: Time,
    /// As [`Formula::is_decode`].
    is_decode: Option<bool>,
}

/// Launches of a rank, and the operators round them.
#[derive(Default)]
struct Launches {
    /// By the call's event.
    of_calls: FxHashMap<u32, Launch>,
    /// The operator with a formula round an operator with a formula, by events.
    outer: FxHashMap<u32, u32>,
    /// Formulas by operator's name.
    formulas: FxHashMap<Sym, Option<Formula>>,
}

/// A span that is open, with what it inherits from those round it.
#[derive(Clone, Copy, Default)]
struct OpenSpan {
    end: Time,
    operator: Option<u32>,
    /// The innermost operator with a formula.
    counted: Option<u32>,
    /// The phase of inference, and that of training.
    phases: [Option<WorkPhase>; 2],
}

/// Goes through the spans of a rank's threads.
struct LaunchWalk<'w, 't> {
    timeline: &'t Timeline,
    index: &'w WorkIndex,
    /// Calls that launched work.
    launched: FxHashSet<u32>,
    /// Phases by name of a note.
    notes: FxHashMap<Sym, Option<WorkPhase>>,
    open: Vec<OpenSpan>,
    /// In the order of tracks and time.
    attention: Vec<AttentionCall>,
    /// Calls whose phase no note shows, with that of a model that learns.
    unknown: Vec<(u32, Option<WorkPhase>)>,
    found: Launches,
}

impl<'w, 't> LaunchWalk<'w, 't> {
    fn new(timeline: &'t Timeline, index: &'w WorkIndex, rank: &RankWork) -> Self {
        Self {
            timeline,
            index,
            launched: rank.work.iter().map(|work| work.call).collect(),
            notes: FxHashMap::default(),
            open: Vec::new(),
            attention: Vec::new(),
            unknown: Vec::new(),
            found: Launches::default(),
        }
    }

    fn run(mut self, rank: &RankWork) -> Launches {
        let mut track: Option<TrackId> = None;
        for at in &rank.host {
            let Some(event) = self.timeline.events.get(*at as usize) else {
                continue;
            };
            if track.replace(event.track) != Some(event.track) {
                self.open.clear();
            }
            let is_over = |one: &mut OpenSpan| one.end <= event.start && one.end < event.end();
            while self.open.pop_if(is_over).is_some() {}
            self.span(*at, event);
        }
        self.show_phases();
        self.found
    }

    fn span(&mut self, at: u32, event: &Event) {
        let mut span = self.open.last().copied().unwrap_or_default();
        let role = self.index.role(event);
        match role {
            SpanRole::Operator => self.operator(at, event, &mut span),
            SpanRole::Note => {
                let name = event.original_name();
                let note = self.notes.entry(name);
                let phase =
                    *note.or_insert_with(|| WorkPhase::of_note(name_of(self.timeline, event)));
                span.enter(phase);
            }
            SpanRole::Call if self.launched.contains(&at) => {
                let [answers, learns] = span.phases;
                if answers.is_none() {
                    self.unknown.push((at, learns));
                }
                let launch = Launch {
                    operator: span.counted.or(span.operator),
                    has_formula: span.counted.is_some(),
                    phase: answers,
                };
                self.found.of_calls.insert(at, launch);
                return;
            }
            _ => return,
        }
        span.end = event.end();
        self.open.push(span);
    }

    fn operator(&mut self, at: u32, event: &Event, span: &mut OpenSpan) {
        let timeline = self.timeline;
        let name = name_of(timeline, event);
        span.operator = Some(at);
        span.enter(WorkPhase::of_operator(name));
        let formulas = &mut self.found.formulas;
        let known = formulas.entry(event.original_name());
        let Some(formula) = *known.or_insert_with(|| formula(name)) else {
            return;
        };
        let outer = span.counted.replace(at);
        self.found.outer.extend(outer.map(|outer| (at, outer)));
        if formula.is_attention() {
            let inputs = Inputs::parse(Inputs::texts(timeline, event));
            self.attention.push(AttentionCall {
                track: event.track,
                start: event.start,
                end: event.end(),
                is_decode: inputs.and_then(|inputs| formula.is_decode(&inputs)),
            });
        }
    }

    /// Finds the phases that attention shows.
    fn show_phases(&mut self) {
        let kinds = || self.attention.iter().map(|call| call.is_decode);
        let is_answer = kinds().all(|kind| kind.is_some());
        let shows = is_answer && kinds().any(|kind| kind == Some(true));
        for (at, learns) in std::mem::take(&mut self.unknown) {
            let event = self.timeline.events.get(at as usize);
            let shown = event.filter(|_| shows).and_then(|event| self.shown(event));
            if let Some(launch) = self.found.of_calls.get_mut(&at) {
                launch.phase = shown.or(learns);
            }
        }
    }

    /// The phase that attention before and behind a call shows.
    fn shown(&self, call: &Event) -> Option<WorkPhase> {
        let key = (call.track, call.start);
        let at = self
            .attention
            .partition_point(|one| (one.track, one.start) <= key);
        let is_own = |one: &&AttentionCall| one.track == call.track;
        let before = at.checked_sub(1).and_then(|at| self.attention.get(at));
        let before = before.filter(is_own);
        let behind = self.attention.get(at).filter(is_own);
        let is_decode = match (before, behind) {
            (Some(before), _) if call.start < before.end => before.is_decode,
            (Some(before), Some(behind)) if before.is_decode != behind.is_decode => None,
            (before, behind) => before.or(behind)?.is_decode,
        };
        Some(match is_decode? {
            true => WorkPhase::Decode,
            false => WorkPhase::Prefill,
        })
    }
}

impl OpenSpan {
    fn enter(&mut self, phase: Option<WorkPhase>) {
        let [answers, learns] = &mut self.phases;
        match phase {
            Some(phase) if phase.is_of_answers() => *answers = Some(phase),
            Some(phase) => *learns = Some(phase),
            None => {}
        }
    }
}

/// What calls do, by name and texts of the inputs.
type KnownWork<'t> = FxHashMap<(Sym, InputTexts<'t>), Option<OperatorWork>>;

/// What makes work one row.
#[derive(Clone, PartialEq, Eq, Hash)]
struct RowKey<'t> {
    phase: Option<WorkPhase>,
    operator: Option<Sym>,
    /// Each once, in the order of the file.
    kernels: Vec<Sym>,
    element: Option<ElementType>,
    /// JSON of the shapes, where these keep calls apart.
    shapes: Option<&'t str>,
}

#[derive(Default)]
struct RowSum {
    calls: u64,
    us: f64,
    counted: Option<CountedWork>,
}

/// Work of one call of an operator with a formula.
#[derive(Default)]
struct CallSum {
    kernels: Vec<Sym>,
    us: f64,
    phase: Option<WorkPhase>,
    work: Option<OperatorWork>,
}

struct RowMaker<'r, 't> {
    timeline: &'t Timeline,
    launches: &'r Launches,
    by_shape: bool,
    rows: FxHashMap<RowKey<'t>, RowSum>,
}

impl<'t> RowMaker<'_, 't> {
    fn add_work(&mut self, rank: &RankWork, known: &mut KnownWork<'t>) {
        let mut calls: FxHashMap<u32, CallSum> = FxHashMap::default();
        for work in &rank.work {
            let Some(kernel) = self.timeline.events.get(work.event as usize) else {
                continue;
            };
            let kernel = kernel.original_name();
            let launch = self.launches.of_calls.get(&work.call).copied();
            let launch = launch.unwrap_or_default();
            match launch.operator.filter(|_| launch.has_formula) {
                Some(operator) => {
                    let sum = calls.entry(operator).or_default();
                    sum.us += work.us();
                    sum.phase = launch.phase;
                    if sum.kernels.len() < MOST_KERNELS && !sum.kernels.contains(&kernel) {
                        sum.kernels.push(kernel);
                    }
                }
                None => self.add_alone(work, kernel, &launch),
            }
        }
        self.count(&mut calls, known);
        let mut calls: Vec<_> = calls.into_iter().collect();
        calls.sort_unstable_by_key(|(operator, _)| *operator);
        for (operator, sum) in calls {
            self.add_call(operator, sum);
        }
    }

    /// Finds what calls do. What calls in another do is not the other's.
    fn count(&self, calls: &mut FxHashMap<u32, CallSum>, known: &mut KnownWork<'t>) {
        let timeline = self.timeline;
        for (operator, sum) in calls.iter_mut() {
            let Some(event) = timeline.events.get(*operator as usize) else {
                continue;
            };
            let texts = Inputs::texts(timeline, event);
            let name = event.original_name();
            let formula = self.launches.formulas.get(&name).copied().flatten();
            let work = known.entry((name, texts));
            sum.work = *work.or_insert_with(|| formula?.of(&Inputs::parse(texts)?));
        }
        let outer = |at: &u32| self.launches.outer.get(at).copied();
        let inner = calls.iter().filter_map(|(operator, sum)| {
            let mut all = std::iter::successors(outer(operator), outer);
            let outer = all.find(|outer| calls.contains_key(outer))?;
            Some((outer, sum.work?.flops))
        });
        let inner: Vec<_> = inner.collect();
        for (outer, flops) in inner {
            let sum = calls.get_mut(&outer);
            if let Some(work) = sum.and_then(|sum| sum.work.as_mut()) {
                work.flops = work.flops.saturating_sub(flops);
            }
        }
    }

    fn key(&self, operator: Option<u32>, phase: Option<WorkPhase>) -> RowKey<'t> {
        let event = operator.and_then(|at| self.timeline.events.get(at as usize));
        let shapes = event.filter(|_| self.by_shape);
        RowKey {
            phase,
            operator: event.map(Event::original_name),
            kernels: Vec::new(),
            element: None,
            shapes: shapes.and_then(|event| self.timeline.arg(event, "Input Dims")),
        }
    }

    fn add_alone(&mut self, work: &RankedWork, kernel: Sym, launch: &Launch) {
        let key = RowKey {
            kernels: vec![kernel],
            ..self.key(launch.operator, launch.phase)
        };
        let row = self.rows.entry(key).or_default();
        row.calls += 1;
        row.us += work.us();
    }

    fn add_call(&mut self, operator: u32, mut sum: CallSum) {
        sum.kernels.sort_unstable();
        let key = RowKey {
            kernels: sum.kernels,
            element: sum.work.and_then(|work| work.element),
            ..self.key(Some(operator), sum.phase)
        };
        let row = self.rows.entry(key).or_default();
        row.calls += 1;
        row.us += sum.us;
        let Some(work) = sum.work else { return };
        let counted = row.counted.get_or_insert(CountedWork {
            bytes: Some(0),
            ..CountedWork::default()
        });
        counted.us += sum.us;
        counted.flops = counted.flops.saturating_add(work.flops);
        let bytes = counted.bytes.zip(work.bytes);
        counted.bytes = bytes.map(|(all, own)| all.saturating_add(own));
        counted.is_matrix = work.is_matrix;
    }

    fn finish(self, rank: u32) -> Vec<WorkRow> {
        let mut rows: Vec<_> = self.rows.into_iter().collect();
        rows.sort_by(|(a, left), (b, right)| {
            let order = right.us.total_cmp(&left.us);
            order
                .then_with(|| (a.operator, a.phase, a.shapes).cmp(&(b.operator, b.phase, b.shapes)))
                .then_with(|| a.kernels.cmp(&b.kernels))
        });
        let name = |sym: &Sym| self.timeline.name(*sym).to_owned();
        let rows = rows.into_iter().map(|(key, sum)| WorkRow {
            rank,
            phase: key.phase,
            operator: key.operator.as_ref().map(name).unwrap_or_default(),
            shapes: key.shapes.map(|json| shapes::shown(Some(json))),
            kernels: key.kernels.iter().map(name).collect(),
            element: key.element,
            calls: sum.calls,
            us: sum.us,
            counted: sum.counted,
        });
        rows.collect()
    }
}

#[cfg(test)]
#[path = "operator_work_tests.rs"]
mod tests;
