//! Python frames that calls ran in, as `key_averages(group_by_stack_n=N)` has them.
//!
//! A profile that was recorded with `verbose=True` has each call's frames (`Call stack`). In one
//! with stacks only (`with_stack=True`), they are the frames that are open when the call begins;
//! torch itself then has none. A kernel and a runtime's call have those of their operator. What is
//! in a backward operator has those of the forward operator.

use super::calls::{CallRole, TorchCall, TorchCalls};
use super::nesting::Nested;
use super::pairs::{EVALUATE, Partners};
use crate::work::name_of;
use aiprof_model::timeline::{Event, Sym, Time, Timeline};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::Reverse;

/// Frames of torch itself that it leaves out (`_filter_stack_entry`): texts that a frame has both.
const LEFT_OUT: [(&str, &str); 6] = [
    ("autograd/__init__", "_make_grads"),
    ("autograd/__init__", "backward"),
    ("torch/tensor", "backward"),
    ("_internal/common_utils", "prof_callable"),
    ("_internal/common_utils", "prof_func_call"),
    ("_internal/common_utils", "prof_meth_call"),
];

/// A frame, or a call by its index: begin, end, index, event.
type FrameOrCall<'t> = (Time, Reverse<Time>, Option<usize>, &'t Event);

/// The innermost frames of calls: each list of frames once.
#[derive(Default)]
pub(super) struct PythonStacks {
    /// Frames from the inside out; the first list is empty.
    lists: Vec<Vec<String>>,
    places: FxHashMap<Vec<String>, usize>,
    /// Lists of frames that are events, by the frames' names.
    by_names: FxHashMap<Vec<Sym>, usize>,
    /// The list of each call.
    of_calls: Vec<usize>,
    /// Frames of a call that are kept.
    most: usize,
}

impl PythonStacks {
    /// Those of a timeline's calls, up to `most` frames each.
    pub(super) fn new(
        timeline: &Timeline,
        calls: &TorchCalls,
        nested: &Nested,
        most: usize,
    ) -> Self {
        let mut stacks = Self {
            lists: vec![Vec::new()],
            places: FxHashMap::from_iter([(Vec::new(), 0)]),
            by_names: FxHashMap::default(),
            of_calls: vec![0; calls.all.len()],
            most,
        };
        stacks.read(timeline, calls);
        stacks.derive(timeline, calls);
        stacks.follow_operators(calls);
        stacks.turn_backward(timeline, calls, nested);
        stacks
    }

    /// The list of a call, by the call's index; 0: no frames are known.
    pub(super) fn of(&self, call: usize) -> usize {
        self.of_calls.get(call).copied().unwrap_or(0)
    }

    /// The frames of a list.
    pub(super) fn frames(&self, list: usize) -> &[String] {
        self.lists.get(list).map_or(&[], Vec::as_slice)
    }

    fn set(&mut self, call: usize, list: usize) {
        if let Some(place) = self.of_calls.get_mut(call) {
            *place = list;
        }
    }

    /// The number of a list of frames.
    fn intern<'f>(&mut self, frames: impl Iterator<Item = &'f str>) -> usize {
        let kept = frames.filter(|frame| is_kept(frame));
        let frames: Vec<String> = kept.take(self.most).map(str::to_owned).collect();
        let lists = &mut self.lists;
        *self.places.entry(frames).or_insert_with_key(|frames| {
            lists.push(frames.clone());
            lists.len() - 1
        })
    }

    /// Reads the frames that calls were recorded with.
    fn read(&mut self, timeline: &Timeline, calls: &TorchCalls) {
        let mut known: FxHashMap<&str, usize> = FxHashMap::default();
        for (index, call) in calls.all.iter().enumerate() {
            let Some(text) = event_of(timeline, call).and_then(|event| recorded(timeline, event))
            else {
                continue;
            };
            let list = match known.get(text) {
                Some(list) => *list,
                None => {
                    let plain: String = serde_json::from_str(text).unwrap_or_default();
                    let list = self.intern(plain.split(';'));
                    known.insert(text, list);
                    list
                }
            };
            self.set(index, list);
        }
    }

    /// Gives the operators of files in which no call has frames those that were open.
    fn derive(&mut self, timeline: &Timeline, calls: &TorchCalls) {
        let events = timeline.events.iter();
        let with_frames = events.filter(|event| recorded(timeline, event).is_some());
        let recorded: FxHashSet<u32> = with_frames.map(|event| timeline.job(event)).collect();
        let mut threads: FxHashMap<u32, Vec<FrameOrCall<'_>>> = FxHashMap::default();
        for event in timeline.events.iter().filter(|event| event.is_slice()) {
            let is_frame = timeline.name(event.cat) == "python_function";
            if is_frame && !recorded.contains(&timeline.job(event)) {
                let frame = (event.start, Reverse(event.end()), None, event);
                threads.entry(event.track.0).or_default().push(frame);
            }
        }
        for (index, call) in calls.all.iter().enumerate() {
            if call.role != CallRole::Operator {
                continue;
            }
            if let Some(event) = event_of(timeline, call)
                && let Some(thread) = threads.get_mut(&event.track.0)
            {
                thread.push((event.start, Reverse(event.end()), Some(index), event));
            }
        }
        for mut spans in threads.into_values() {
            // Frames come before what begins and ends with them.
            spans.sort_by_key(|(start, end, call, _)| (*start, *end, *call));
            self.derive_thread(timeline, spans);
        }
    }

    /// Gives the operators of a thread the frames that were open. Frames that are left out are open
    /// too, but no operator looks at them: it would at all of a deep stack.
    fn derive_thread(&mut self, timeline: &Timeline, spans: Vec<FrameOrCall<'_>>) {
        let mut open: Vec<(Time, bool)> = Vec::new();
        let mut kept: Vec<Sym> = Vec::new();
        for (start, _, call, event) in spans {
            while let Some((_, is_kept)) = open.pop_if(|(end, _)| *end <= start) {
                if is_kept {
                    kept.pop();
                }
            }
            match call {
                None => {
                    let is_kept = is_kept(name_of(timeline, event));
                    open.push((event.end(), is_kept));
                    kept.extend(is_kept.then(|| event.original_name()));
                }
                Some(call) => {
                    let innermost = kept.iter().rev().take(self.most);
                    let list = self.intern_names(timeline, innermost.copied().collect());
                    self.set(call, list);
                }
            }
        }
    }

    /// The number of a list of frames, by their names.
    fn intern_names(&mut self, timeline: &Timeline, names: Vec<Sym>) -> usize {
        if let Some(list) = self.by_names.get(&names) {
            return *list;
        }
        let list = self.intern(names.iter().map(|name| timeline.name(*name)));
        self.by_names.insert(names, list);
        list
    }

    /// Gives a device's work, and a runtime's calls without frames, those of their operators.
    fn follow_operators(&mut self, calls: &TorchCalls) {
        let all = || calls.all.iter().enumerate();
        let operators = all().filter(|(_, call)| call.role == CallRole::Operator);
        let operators: FxHashMap<usize, usize> =
            operators.map(|(index, call)| (call.event, index)).collect();
        for (index, call) in all() {
            if self.of(index) == 0
                && let Some(operator) = call.owner.and_then(|owner| operators.get(&owner))
            {
                self.set(index, self.of(*operator));
            }
        }
    }

    /// Gives what runs in backward operators the frames of the forward operators
    /// (`_set_backward_stacktraces`).
    fn turn_backward(&mut self, timeline: &Timeline, calls: &TorchCalls, nested: &Nested) {
        let partners = Partners::new(timeline, calls);
        let numbered: FxHashMap<usize, _> = partners.all().map(|one| (one.call, one)).collect();
        let mut backward: Vec<Option<usize>> = Vec::with_capacity(calls.all.len());
        let mut first: FxHashMap<(u32, i64, u32), usize> = FxHashMap::default();
        for (index, call) in calls.all.iter().enumerate() {
            let parent = nested.parent(index);
            let around = parent.and_then(|parent| backward.get(parent).copied().flatten());
            let is_one = parent.and_then(|parent| calls.all.get(parent));
            let is_one = is_one.is_some_and(|parent| is_backward(timeline, call, parent));
            let own = if is_one { Some(index) } else { around };
            backward.push(own);
            if own.is_none()
                && let Some(one) = numbered.get(&index)
            {
                let list = self.of(index);
                let key = (one.file, one.number, one.thread);
                first.entry(key).or_insert(list);
            }
        }
        let inside = backward.into_iter().enumerate();
        for (index, around) in inside.filter_map(|(index, around)| Some((index, around?))) {
            let list = numbered.get(&around).and_then(|one| {
                let thread = partners.thread_of(one)?;
                first.get(&(one.file, one.number, thread))
            });
            self.set(index, list.copied().unwrap_or(0));
        }
    }
}

/// Whether torch keeps a frame.
fn is_kept(frame: &str) -> bool {
    let mut left_out = LEFT_OUT.iter();
    let is_left_out = left_out.any(|(one, other)| frame.contains(one) && frame.contains(other));
    !frame.is_empty() && !is_left_out
}

fn event_of<'t>(timeline: &'t Timeline, call: &TorchCall) -> Option<&'t Event> {
    timeline.events.get(call.event)
}

/// The frames that a call was recorded with, as JSON; `None`: none.
fn recorded<'t>(timeline: &'t Timeline, event: &Event) -> Option<&'t str> {
    let text = timeline.arg(event, "Call stack")?;
    (text != "\"\"").then_some(text)
}

/// Whether autograd runs a call: its own span, which has the call's name, is round it.
fn is_backward(timeline: &Timeline, call: &TorchCall, parent: &TorchCall) -> bool {
    let name = |call: &TorchCall| call.name.map_or("", |name| timeline.name(name));
    call.role == CallRole::Operator && name(parent).strip_prefix(EVALUATE) == Some(name(call))
}

#[cfg(test)]
mod tests {
    use crate::torch::TorchIndex;
    use crate::torch::averages::Averages;
    use aiprof_formats::import::json;
    use aiprof_model::timeline::Timeline;

    fn slice(cat: &str, name: &str, tid: u32, (from, to): (u32, u32), args: &str) -> String {
        let dur = to - from;
        format!(
            r#"{{"ph":"X","cat":"{cat}","name":"{name}","pid":9,"tid":{tid},"ts":{from},"dur":{dur},"args":{{{args}}}}}"#
        )
    }

    /// Without recorded stacks: the frames that are open. Frames of torch's own backward are left
    /// out, and what a backward operator runs has the frames of the forward operator.
    #[test]
    fn frames_are_those_that_are_open() {
        let numbers = |thread: u32, id: u32| {
            format!(r#""Sequence number":7,"Fwd thread id":{thread},"External id":{id}"#)
        };
        let own = "autograd::engine::evaluate_function: MmBackward0";
        let events = [
            slice("python_function", "a.py(1): main", 9, (0, 90), ""),
            slice("python_function", "a.py(5): step", 9, (5, 20), ""),
            slice("cpu_op", "aten::mm", 9, (6, 10), &numbers(0, 1)),
            slice(
                "python_function",
                "torch/autograd/__init__.py(2): backward",
                9,
                (30, 60),
                "",
            ),
            slice("cpu_op", "aten::add", 9, (35, 40), ""),
            slice("cpu_op", own, 8, (40, 50), &numbers(1, 2)),
            slice("cpu_op", "MmBackward0", 8, (41, 49), &numbers(1, 3)),
            slice("cpu_op", "aten::mul", 8, (42, 48), r#""External id":4"#),
            slice("kernel", "gemm", 7, (50, 55), r#""External id":1"#),
            slice("kernel", "mul", 7, (55, 60), r#""External id":4"#),
        ];
        let mut timeline = Timeline::default();
        let text = format!("[{}]", events.join(","));
        json::read(text.as_bytes(), "x.json", &mut timeline).unwrap();
        let found = |frames: usize| -> Vec<(String, String)> {
            let rows = Averages::new(&timeline, &TorchIndex::new(&timeline), false, frames)
                .rows
                .into_iter();
            rows.map(|row| (row.name, row.stack.join(";"))).collect()
        };
        let wanted = [
            ("aten::mm", "a.py(5): step;a.py(1): main"),
            ("aten::add", "a.py(1): main"),
            (own, ""),
            ("MmBackward0", "a.py(5): step;a.py(1): main"),
            ("aten::mul", "a.py(5): step;a.py(1): main"),
            ("gemm", "a.py(5): step;a.py(1): main"),
            ("mul", ""),
        ];
        let wanted = wanted.map(|(name, stack)| (name.to_owned(), stack.to_owned()));
        assert_eq!(found(2), wanted);
        assert_eq!(found(1)[0].1, "a.py(5): step");
        assert!(found(0).iter().all(|(_, stack)| stack.is_empty()));
    }
}
