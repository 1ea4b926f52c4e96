//! Python frames of a trace: `python_function` events of profiles with stacks.

use super::calls::{CallRole, TorchCalls};
use aiprof_model::timeline::{Event, Sym, Timeline};
use rustc_hash::FxHashMap;

/// Which Python function each compiled region runs.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// Functions and their places: `file:line`.
    functions: Vec<(String, String)>,
    /// Their numbers, by the region's index among the calls.
    of_regions: FxHashMap<usize, usize>,
}

impl Frames {
    /// Those of a timeline's regions.
    pub(super) fn new(timeline: &Timeline, calls: &TorchCalls) -> Self {
        let mut frames: FxHashMap<u32, Vec<&Event>> = FxHashMap::default();
        let slices = timeline.events.iter().filter(|event| event.is_slice());
        for event in slices.filter(|event| timeline.name(event.cat) == "python_function") {
            frames.entry(event.track.0).or_default().push(event);
        }
        let mut all = Self::default();
        if frames.is_empty() {
            return all;
        }
        // Each name is read once: a frame may be the first of many regions in each other.
        let mut numbers: FxHashMap<Sym, Option<usize>> = FxHashMap::default();
        let mut places: FxHashMap<(String, String), usize> = FxHashMap::default();
        for (index, call) in calls.all.iter().enumerate() {
            let name = call.name.map_or("", |name| timeline.name(name));
            if call.role != CallRole::Operator || !name.starts_with("Torch-Compiled Region") {
                continue;
            }
            let region = timeline.events.get(call.event);
            let frame = region.and_then(|region| {
                let frames = frames.get(&region.track.0)?;
                Some(first_within(frames, region)?.name)
            });
            let Some(frame) = frame else { continue };
            let number = *numbers.entry(frame).or_insert_with(|| {
                let (place, function) = split(timeline.name(frame))?;
                let functions = &mut all.functions;
                let number = places.entry((function, place)).or_insert_with_key(|one| {
                    functions.push(one.clone());
                    functions.len() - 1
                });
                Some(*number)
            });
            all.of_regions.extend(number.map(|number| (index, number)));
        }
        all
    }

    /// The number of the function that a region runs.
    pub(super) fn of_region(&self, region: usize) -> Option<usize> {
        self.of_regions.get(&region).copied()
    }

    /// A function by its number, and its place: `file:line`.
    pub(super) fn function(&self, number: usize) -> Option<(&str, &str)> {
        let (function, place) = self.functions.get(number)?;
        Some((function, place))
    }
}

/// The frame that a region runs: the first that begins in it. Frames are in the order of
/// begin.
fn first_within<'f>(frames: &[&'f Event], region: &Event) -> Option<&'f Event> {
    let first = frames.partition_point(|frame| frame.start < region.start);
    let frame = frames.get(first)?;
    (frame.end() <= region.end()).then_some(*frame)
}

/// Place and function of `train.py(65): step`; `None`: it is a builtin or a module.
fn split(name: &str) -> Option<(String, String)> {
    let (place, function) = name.split_once("): ")?;
    let (file, line) = place.rsplit_once('(')?;
    let line: u32 = line.parse().ok()?;
    Some((format!("{file}:{line}"), function.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_frames_have_places() {
        let expected = Some(("a (b)/train.py:65".to_owned(), "step".to_owned()));
        assert_eq!(split("a (b)/train.py(65): step"), expected);
        for name in [
            "nn.Module: Linear_0",
            "<built-in method randn>",
            "a.py(x): f",
        ] {
            assert_eq!(split(name), None);
        }
    }
}
