//! Who allocated: the operator, module and line of Python round each allocation, on its thread.

use super::usage::TracedMemory;
use crate::torch::MODULE;
use crate::work::{STEP, SpanRole, role_of};
use aiprof_model::timeline::{Event, Sym, Time, Timeline, TrackId};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::rc::Rc;

/// Names of who allocated; empty where not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MemoryOwner {
    /// The innermost operator, or note of the program.
    pub(super) operator: Rc<str>,
    /// The innermost `nn.Module`.
    pub(super) module: Rc<str>,
    /// The innermost line of Python outside of PyTorch.
    pub(super) python: Rc<str>,
}

/// What a span adds to the names of those who allocate in it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OwnerPart {
    Operator,
    Python,
}

/// A span that is open, with the names of all spans round it.
struct OpenOwner {
    end: Time,
    owner: MemoryOwner,
}

/// Names the owners of all allocations at peaks.
pub(super) fn name(timeline: &Timeline, all: &mut [TracedMemory]) {
    let mut wanted: FxHashMap<TrackId, Vec<(Time, usize, usize)>> = FxHashMap::default();
    for (place, traced) in all.iter().enumerate() {
        for (index, (event, _)) in traced.at_peak.iter().enumerate() {
            if let Some(event) = timeline.events.get(*event as usize) {
                let of_track = wanted.entry(timeline.home(event)).or_default();
                of_track.push((event.start, place, index));
            }
        }
    }
    if wanted.is_empty() {
        return;
    }
    let mut spans = spans(timeline, &wanted);
    for (track, mut allocations) in wanted {
        allocations.sort_unstable();
        let Some(spans) = spans.get_mut(&track) else {
            continue;
        };
        spans.sort_by_key(|(_, event)| (event.start, Reverse(event.end())));
        let mut sweep = OwnerSweep {
            timeline,
            texts: FxHashMap::default(),
            open: Vec::new(),
        };
        let mut spans = spans.iter().peekable();
        for (at, place, index) in allocations {
            while let Some((part, span)) = spans.next_if(|(_, span)| span.start <= at) {
                sweep.enter(*part, span);
            }
            let owner = sweep.owner(at);
            let found = all
                .get_mut(place)
                .and_then(|one| one.at_peak.get_mut(index));
            if let Some(found) = found {
                found.1 = owner;
            }
        }
    }
}

type OwnerSpans<'t> = FxHashMap<TrackId, Vec<(OwnerPart, &'t Event)>>;

/// Operators and frames of the threads that allocate.
fn spans<'t, T>(timeline: &'t Timeline, wanted: &FxHashMap<TrackId, T>) -> OwnerSpans<'t> {
    let mut parts: FxHashMap<Sym, Option<OwnerPart>> = FxHashMap::default();
    let mut spans: OwnerSpans<'t> = FxHashMap::default();
    let slices = timeline.events.iter().filter(|event| event.is_slice());
    for event in slices.filter(|event| !event.dropped && !event.start.is_edge()) {
        let of_cat = || part_of(timeline.name(event.cat));
        let Some(part) = *parts.entry(event.cat).or_insert_with(of_cat) else {
            continue;
        };
        let track = timeline.home(event);
        if wanted.contains_key(&track) {
            spans.entry(track).or_default().push((part, event));
        }
    }
    spans
}

fn part_of(cat: &str) -> Option<OwnerPart> {
    match role_of(cat) {
        SpanRole::Operator | SpanRole::Note => Some(OwnerPart::Operator),
        _ if cat == "python_function" => Some(OwnerPart::Python),
        _ => None,
    }
}

/// Spans of a thread, in the order of time.
struct OwnerSweep<'t> {
    timeline: &'t Timeline,
    texts: FxHashMap<&'t str, Rc<str>>,
    open: Vec<OpenOwner>,
}

impl<'t> OwnerSweep<'t> {
    fn close(&mut self, at: Time) {
        while self.open.pop_if(|span| span.end < at).is_some() {}
    }

    fn text(&mut self, text: &'t str) -> Rc<str> {
        let known = self.texts.entry(text).or_insert_with(|| Rc::from(text));
        Rc::clone(known)
    }

    /// The names that hold at a time.
    fn owner(&mut self, at: Time) -> MemoryOwner {
        self.close(at);
        self.open
            .last()
            .map(|span| span.owner.clone())
            .unwrap_or_default()
    }

    fn enter(&mut self, part: OwnerPart, span: &'t Event) {
        let mut owner = self.owner(span.start);
        let name = self.timeline.name(span.original_name());
        let place = |key| {
            self.timeline
                .arg(span, key)
                .map(|text| text.trim_matches('"'))
        };
        match part {
            OwnerPart::Operator => {
                let line = place("python");
                if !name.starts_with(STEP) {
                    owner.operator = self.text(name);
                }
                if let Some(line) = line {
                    owner.python = self.text(line);
                }
            }
            OwnerPart::Python => {
                let call = place("CallFrom");
                if let Some(module) = name.strip_prefix(MODULE) {
                    owner.module = self.text(module);
                }
                let line = [Some(name), call]
                    .into_iter()
                    .flatten()
                    .find(|line| is_of_program(line));
                if let Some(line) = line {
                    owner.python = self.text(line);
                }
            }
        }
        self.open.push(OpenOwner {
            end: span.end(),
            owner,
        });
    }
}

/// Whether a line, `train.py(65): step` or `train.py:66`, is neither PyTorch's own nor of a
/// function that has no file.
fn is_of_program(line: &str) -> bool {
    let is_torch = line.starts_with("torch/") || line.contains("/torch/");
    let has_line = line.contains("): ") || line.contains(".py:");
    has_line && !is_torch && !line.starts_with('<') && !line.starts_with("nn.Module")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_programs_are_not_torch_s() {
        for (line, is_one) in [
            ("train.py(65): step", true),
            ("/home/me/train.py:65", true),
            ("torch/optim/adam.py(215): step", false),
            (
                "/usr/lib/python3/site-packages/torch/nn/functional.py:9",
                false,
            ),
            ("<built-in method randn of type object at 0x7f>", false),
            ("<frozen os>(674): __getitem__", false),
            ("nn.Module: Linear_0", false),
        ] {
            assert_eq!(is_of_program(line), is_one, "{line}");
        }
    }
}
