//! What `torch.compile` did in a profile: steps of the compiler, compiled regions, graph
//! breaks, recompilations.
//!
//! The trace has regions (`Torch-Compiled Region: 1/0`, frame and compilation) and the
//! compiler's steps (`dynamo_timed`). A region of another frame within a region is what
//! comes behind a graph break. Lines and reasons are in the compiler's log ([`TorchLog`]),
//! lines of breaks also in names of Python frames: `torch_dynamo_resume_in_f_at_65`.
//!
//! Some versions write a note with the compilation's number beside each step, others only the
//! steps, and the oldest regions without numbers.

mod owners;
mod unnumbered;

use super::calls::{CallRole, TorchCalls};
use super::log::{CompileId, LoggedBreak, TorchLog};
use super::nesting::Nested;
use super::python::Frames;
use aiprof_model::timeline::Timeline;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::collections::BTreeMap;
use unnumbered::Unnumbered;

/// How names of regions begin.
const REGION: &str = "Torch-Compiled Region";
/// How a step's note begins that has the step's compilation.
const NOTE: &str = "_data: ";
/// How names of steps end that older versions have, which write no notes.
const TIMED: &str = " (dynamo_timed)";

/// A step of the compiler.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CompileStep {
    /// Its name: `fx_codegen_and_compile`.
    pub name: String,
    /// How often it ran.
    pub calls: u64,
    /// Its time without that of steps in it, microseconds.
    pub self_us: f64,
    /// Its time, microseconds.
    pub total_us: f64,
}

/// What was compiled, by its number.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Compiled {
    /// Its number; `None`: all compilations of the function, to which the trace gives no numbers.
    pub id: Option<CompileId>,
    /// The function; `None`: neither the trace nor the log has it.
    pub function: Option<String>,
    /// Where the function is: `file:line`.
    pub place: Option<String>,
    /// Time that its compilation took, microseconds.
    pub compile_us: f64,
    /// How often it ran.
    pub runs: u64,
    /// Time of its runs, microseconds, with what they called.
    pub run_us: f64,
    /// How many recompilations it is.
    pub recompilations: u64,
    /// Time that they took, microseconds.
    pub recompile_us: f64,
    /// Guards whose failure made it a recompilation.
    pub guards: Vec<String>,
}

/// A place at which the compiler gave up and went on behind it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GraphBreak {
    /// In which frame; `None`: the trace gives frames no numbers.
    pub frame: Option<u32>,
    /// The function that goes on behind it.
    pub function: Option<String>,
    /// Where it is: `file:line`, or only the line.
    pub place: Option<String>,
    /// Why.
    pub reason: Option<String>,
    /// The same at length.
    pub explanation: Option<String>,
    /// How often the program ran across it.
    pub runs: u64,
    /// Time that compilations of what is behind it took, microseconds.
    pub compile_us: f64,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CompileReport {
    /// Steps, the one with most time of its own first.
    pub steps: Vec<CompileStep>,
    /// Compilations by number; those without numbers come last, by function.
    pub compiled: Vec<Compiled>,
    /// Compilations that have no number and whose function is not known: which of them are
    /// recompilations is not known either.
    pub unnumbered: u64,
    /// Graph breaks by frame.
    pub breaks: Vec<GraphBreak>,
    /// There was a log.
    pub has_log: bool,
}

impl CompileReport {
    /// From a timeline and a log; as a rule neither has anything on it.
    pub fn new(timeline: &Timeline, log: &TorchLog) -> Self {
        let mut report = Self {
            has_log: !log.is_empty(),
            ..Self::default()
        };
        let mut names = timeline.names.iter();
        let is_there = names.any(|(_, name)| name.starts_with(REGION) || name.ends_with(TIMED));
        let (mut found, mut frames) = (CompileScan::default(), Frames::default());
        if is_there {
            (found, frames) = CompileScan::of(timeline);
        }
        report.steps = found.steps();
        report.unnumbered = found.unnumbered.unknown;
        // What the log has on functions is known of breaks too.
        report.compiled = found.compiled(log);
        report.compiled.extend(found.unnumbered.compiled(&frames));
        report.breaks = found.breaks(log);
        if report.breaks.is_empty() {
            report.breaks = found.unnumbered.breaks(&frames);
        }
        report
    }

    /// Whether nothing was compiled.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.compiled.is_empty() && self.breaks.is_empty()
    }

    /// Recompilations.
    pub fn recompiled(&self) -> impl Iterator<Item = &Compiled> {
        self.compiled.iter().filter(|one| one.recompilations > 0)
    }
}

/// What a timeline has.
#[derive(Default)]
struct CompileScan {
    steps: BTreeMap<String, CompileStep>,
    compiled: BTreeMap<CompileId, Compiled>,
    /// How often a frame ran directly within another: outer, inner.
    within: BTreeMap<(u32, u32), u64>,
    unnumbered: Unnumbered,
}

/// Which compilation something is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum CompileOwner {
    /// Nothing shows it.
    #[default]
    Unknown,
    /// One without a number that led to this region, an index of calls.
    Unnumbered(usize),
    /// That with this number.
    Numbered(CompileId),
}

impl CompileOwner {
    fn number(self) -> Option<CompileId> {
        match self {
            Self::Numbered(id) => Some(id),
            _ => None,
        }
    }
}

/// What a call is to the compiler.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum CompilePart {
    #[default]
    Other,
    Region(CompileOwner),
    Step(CompileOwner),
}

/// The innermost step and region around each call, as indexes of calls.
struct CompileAround {
    steps: Vec<Option<usize>>,
    regions: Vec<Option<usize>>,
}

impl CompileAround {
    fn new(nested: &Nested, parts: &[CompilePart]) -> Self {
        let part = |index: usize| parts.get(index);
        let is_step = |index| matches!(part(index), Some(CompilePart::Step(_)));
        let is_region = |index| matches!(part(index), Some(CompilePart::Region(_)));
        Self {
            steps: nested.around(|index| is_step(index).then_some(index)),
            regions: nested.around(|index| is_region(index).then_some(index)),
        }
    }

    /// The step directly around a call.
    fn step(&self, index: usize) -> Option<usize> {
        self.steps.get(index).copied().flatten()
    }

    /// Which compilation the region directly around a call is of; `None`: there is no region.
    fn region(&self, index: usize, parts: &[CompilePart]) -> Option<CompileOwner> {
        let region = self.regions.get(index).copied().flatten()?;
        match parts.get(region)? {
            CompilePart::Region(owner) => Some(*owner),
            _ => None,
        }
    }
}

/// What is known of a timeline's calls.
struct CompileView<'t> {
    timeline: &'t Timeline,
    calls: &'t TorchCalls,
    around: &'t CompileAround,
    /// Steps that are in another of the same compilation.
    are_in_same: &'t [bool],
    parts: &'t [CompilePart],
    frames: &'t Frames,
}

impl CompileScan {
    fn of(timeline: &Timeline) -> (Self, Frames) {
        let mut calls = TorchCalls::new(timeline);
        let nested = Nested::new(&mut calls);
        let mut parts = parts(timeline, &calls, &nested);
        let frames = Frames::new(timeline, &calls);
        let around = CompileAround::new(&nested, &parts);
        owners::assign(timeline, &calls, &nested, &around, &mut parts);
        let are_in_same = nested.are_in_same(&calls, |index| match parts.get(index)? {
            CompilePart::Step(owner) => Some(*owner),
            _ => None,
        });
        let view = CompileView {
            timeline,
            calls: &calls,
            around: &around,
            are_in_same: &are_in_same,
            parts: &parts,
            frames: &frames,
        };
        let mut found = Self::default();
        for (index, part) in parts.iter().enumerate() {
            match part {
                CompilePart::Other => {}
                CompilePart::Region(owner) => found.region(index, *owner, &view),
                CompilePart::Step(owner) => found.step(index, *owner, &view),
            }
        }
        (found, frames)
    }

    fn of_id(&mut self, id: CompileId) -> &mut Compiled {
        self.compiled.entry(id).or_insert_with(|| Compiled {
            id: Some(id),
            ..Compiled::default()
        })
    }

    fn region(&mut self, index: usize, owner: CompileOwner, view: &CompileView<'_>) {
        let Some(call) = view.calls.all.get(index) else {
            return;
        };
        let around = view.around.region(index, view.parts);
        let Some(id) = owner.number() else {
            let function = view.frames.of_region(index);
            let is_within = around.is_some();
            self.unnumbered.region(function, call.length(), is_within);
            return;
        };
        let around = around.and_then(CompileOwner::number);
        if let Some(around) = around.filter(|around| around.frame != id.frame) {
            *self.within.entry((around.frame, id.frame)).or_default() += 1;
        }
        let of_id = self.of_id(id);
        of_id.runs += 1;
        of_id.run_us += call.length();
        if of_id.function.is_none()
            && let Some(number) = view.frames.of_region(index)
            && let Some((function, place)) = view.frames.function(number)
        {
            of_id.function = Some(function.to_owned());
            of_id.place = Some(place.to_owned());
        }
    }

    fn step(&mut self, index: usize, owner: CompileOwner, view: &CompileView<'_>) {
        let CompileView {
            timeline,
            calls,
            around,
            parts,
            frames,
            ..
        } = view;
        let Some(call) = calls.all.get(index) else {
            return;
        };
        let name = call.name.map_or("", |name| timeline.name(name));
        let name = name.strip_suffix(TIMED).unwrap_or(name);
        let step = self.steps.entry(name.to_owned()).or_default();
        step.calls += 1;
        step.self_us += call.length();
        step.total_us += call.length();
        let above = around.step(index);
        if let Some(above) = above.and_then(|above| calls.all.get(above)?.name) {
            let above = timeline.name(above);
            let above = above.strip_suffix(TIMED).unwrap_or(above);
            self.steps.entry(above.to_owned()).or_default().self_us -= call.length();
        }
        if view.are_in_same.get(index) == Some(&true) {
            return;
        }
        match owner {
            CompileOwner::Unknown => {}
            CompileOwner::Unnumbered(region) => {
                let is_within = around.region(index, parts).is_some();
                let function = frames.of_region(region);
                self.unnumbered
                    .step(index, region, function, call.length(), is_within);
            }
            CompileOwner::Numbered(id) => self.of_id(id).compile_us += call.length(),
        }
    }

    fn steps(&self) -> Vec<CompileStep> {
        let named = self.steps.iter().map(|(name, step)| CompileStep {
            name: name.clone(),
            ..step.clone()
        });
        let mut steps: Vec<CompileStep> = named.collect();
        steps.sort_by(|a, b| b.self_us.total_cmp(&a.self_us));
        steps
    }

    fn compiled(&mut self, log: &TorchLog) -> Vec<Compiled> {
        for logged in &log.recompiles {
            let of_id = self.of_id(logged.id);
            of_id.guards.clone_from(&logged.guards);
            of_id.function = Some(logged.function.clone());
            of_id.place = Some(logged.place.clone());
        }
        // What is known of one compilation of a frame is so of all.
        let mut known: FxHashMap<u32, (Option<String>, Option<String>)> = FxHashMap::default();
        let numbered = self.compiled.iter();
        for (id, one) in numbered.filter(|(_, one)| one.function.is_some()) {
            let both = (one.function.clone(), one.place.clone());
            known.entry(id.frame).or_insert(both);
        }
        let numbered = self.compiled.iter_mut();
        for (id, one) in numbered.filter(|(_, one)| one.function.is_none()) {
            if let Some((function, place)) = known.get(&id.frame) {
                one.function.clone_from(function);
                one.place.clone_from(place);
            }
        }
        let again = self.compiled.iter_mut().filter(|(id, _)| id.compile > 0);
        for (_, one) in again {
            (one.recompilations, one.recompile_us) = (1, one.compile_us);
        }
        self.compiled.values().cloned().collect()
    }

    fn breaks(&self, log: &TorchLog) -> Vec<GraphBreak> {
        let known = self.frames();
        let mut logged: BTreeMap<u32, Vec<&LoggedBreak>> = BTreeMap::new();
        for (outer, _) in self.within.keys() {
            logged.entry(*outer).or_default();
        }
        for one in &log.breaks {
            logged.entry(one.id.frame).or_default().push(one);
        }
        let mut breaks = Vec::new();
        for (frame, logged) in logged {
            self.breaks_of(frame, &logged, &known, &mut breaks);
        }
        breaks
    }

    /// What is known of each frame by its compilations.
    fn frames(&self) -> FxHashMap<u32, FrameSum<'_>> {
        let mut frames: FxHashMap<u32, FrameSum<'_>> = FxHashMap::default();
        for (id, one) in &self.compiled {
            let sum = frames.entry(id.frame).or_default();
            sum.compile_us += one.compile_us;
            sum.function = sum.function.or(one.function.as_deref());
            sum.place = sum.place.or(one.place.as_deref());
        }
        frames
    }

    /// Breaks of a frame: those that the log has, else one for each frame that goes on.
    fn breaks_of(
        &self,
        frame: u32,
        logged: &[&LoggedBreak],
        known: &FxHashMap<u32, FrameSum<'_>>,
        breaks: &mut Vec<GraphBreak>,
    ) {
        let behind = self.within.range((frame, 0)..=(frame, u32::MAX));
        let known = |frame: u32| known.get(&frame).copied().unwrap_or_default();
        let behind = behind.map(|((_, inner), runs)| (known(*inner), *runs));
        let behind: Vec<(FrameSum<'_>, u64)> = behind.collect();
        let owned = |text: &str| text.to_owned();
        if logged.is_empty() {
            breaks.extend(behind.iter().map(|(inner, runs)| GraphBreak {
                frame: Some(frame),
                place: inner.resumed_at(),
                function: inner.function.map(owned),
                runs: *runs,
                compile_us: inner.compile_us,
                ..GraphBreak::default()
            }));
            return;
        }
        let logged = each_place(logged);
        let count = logged.len() as u64;
        let runs: u64 = behind.iter().map(|(_, runs)| runs).sum();
        let cost: f64 = behind.iter().map(|(inner, _)| inner.compile_us).sum();
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        breaks.extend(logged.into_iter().map(|one| {
            GraphBreak {
                frame: Some(frame),
                function: behind
                    .first()
                    .and_then(|(inner, _)| inner.function.map(owned)),
                place: given(&one.place),
                reason: given(&one.reason),
                explanation: given(&one.explanation),
                // Which of several places led to which frame is not known.
                runs: runs / count,
                compile_us: cost / count as f64,
            }
        }));
    }
}

/// The compilations of a frame together.
#[derive(Clone, Copy, Default)]
struct FrameSum<'c> {
    compile_us: f64,
    function: Option<&'c str>,
    place: Option<&'c str>,
}

impl FrameSum<'_> {
    /// Where a frame goes on behind a break: `torch_dynamo_resume_in_f_at_65` has the line, its
    /// place the file.
    fn resumed_at(&self) -> Option<String> {
        let rest = self.function?.strip_prefix("torch_dynamo_resume_in_")?;
        let (_, line) = rest.rsplit_once("_at_")?;
        let line: u32 = line.parse().ok()?;
        let file = self.place.and_then(|place| Some(place.rsplit_once(':')?.0));
        Some(file.map_or_else(|| format!("line {line}"), |file| format!("{file}:{line}")))
    }
}

/// One break of each place: repeats are logged at less length.
fn each_place<'l>(logged: &[&'l LoggedBreak]) -> Vec<&'l LoggedBreak> {
    let mut all: Vec<&LoggedBreak> = Vec::new();
    let mut places: FxHashMap<&str, usize> = FxHashMap::default();
    for one in logged {
        let at = *places.entry(one.place.as_str()).or_insert_with(|| {
            all.push(one);
            all.len() - 1
        });
        if let Some(known) = all.get_mut(at).filter(|known| known.reason.is_empty()) {
            *known = one;
        }
    }
    all
}

/// What each call is to the compiler by its own name and note.
fn parts(timeline: &Timeline, calls: &TorchCalls, nested: &Nested) -> Vec<CompilePart> {
    let mut parts = vec![CompilePart::Other; calls.all.len()];
    let owner =
        |id: Option<CompileId>| id.map_or_else(CompileOwner::default, CompileOwner::Numbered);
    for (index, call) in calls.all.iter().enumerate() {
        if call.role != CallRole::Operator {
            continue;
        }
        let name = name(timeline, calls, index);
        if let Some(rest) = name.strip_prefix(REGION) {
            let id = CompileId::parse(rest.trim_start_matches([':', ' ']));
            let region = id.map_or(CompileOwner::Unnumbered(index), CompileOwner::Numbered);
            set(&mut parts, index, CompilePart::Region(region));
            continue;
        }
        // `fx_codegen_and_compile_data: compile_id=0/0` stands in the step of that name.
        let note = name.split_once(NOTE).filter(|_| call.is_note);
        let Some((step, about)) = note else {
            continue;
        };
        let above = nested.parent(index);
        if let Some(above) = above.filter(|above| self::name(timeline, calls, *above) == step) {
            let id = about.rsplit_once("compile_id=").map_or("", |(_, id)| id);
            set(
                &mut parts,
                above,
                CompilePart::Step(owner(CompileId::parse(id))),
            );
        }
    }
    // Versions that write notes write such a step in the one that has the note: it is the same.
    for index in 0..calls.all.len() {
        let is_timed = name(timeline, calls, index).ends_with(TIMED);
        let is_noted = |above: usize| {
            let is_step = matches!(parts.get(above), Some(CompilePart::Step(_)));
            is_step && !name(timeline, calls, above).ends_with(TIMED)
        };
        if is_timed && !nested.parent(index).is_some_and(is_noted) {
            set(&mut parts, index, CompilePart::Step(CompileOwner::Unknown));
        }
    }
    parts
}

/// What a call is called.
fn name<'t>(timeline: &'t Timeline, calls: &TorchCalls, index: usize) -> &'t str {
    let name = calls.all.get(index).and_then(|call| call.name);
    name.map_or("", |name| timeline.name(name))
}

fn set(parts: &mut [CompilePart], index: usize, part: CompilePart) {
    if let Some(place) = parts.get_mut(index) {
        *place = part;
    }
}

#[cfg(test)]
mod tests;
