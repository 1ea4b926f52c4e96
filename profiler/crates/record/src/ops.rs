//! Operators of PyTorch under lines of Python.
//!
//! PyTorch reports which operator ran when, and not who called it. The recording's own stacks, of
//! samples and calls, show which lines of Python a thread was at, and not for which operator. Both
//! together give the callers. An operator was called by the Python frames that *all* stacks taken
//! in its time share, from the outermost on. Where the shared frames end with one that is at
//! several lines, that is the last. So the caller of an operator that runs no Python itself is the
//! innermost frame. A `record_function` around several lines is under the function that it is in.
//! What runs Python itself and has few stacks would be put too deep. So a mark (`record_function`)
//! with fewer than three is under the frames that the stacks of all its runs share. An operator is
//! never under a frame that no stack in it has.
//!
//! A program reports operators after their window, so stacks are kept from when it was
//! asked until its answer.

use aiprof_model::wire::{OpKind, OpsNews, OpsPart};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::rc::Rc;

/// Most spans of windows that are not whole yet.
const MAX_SPANS: usize = 1 << 20;
/// Most stacks kept.
const MAX_STACKS: usize = 1 << 20;
/// Most operators around each other; those inside are not placed.
const MAX_DEPTH: usize = 64;

/// Stacks by which a mark is placed alone.
const MARK_STACKS: u64 = 3;

/// A Python frame: its function's handle, and the line that it is at.
pub(crate) type PythonFrame = (u32, u32);

/// A run of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    /// Name.
    pub(crate) name: Rc<str>,
    /// Shapes of its inputs, JSON.
    pub(crate) shapes: Option<Rc<str>>,
    /// Its kind.
    pub(crate) kind: OpKind,
    /// Begin, CLOCK_MONOTONIC nanoseconds.
    pub(crate) begin_ns: u64,
    /// End.
    pub(crate) end_ns: u64,
    /// Autograd's number.
    pub(crate) sequence: Option<u64>,
    /// For a backward operator: PyTorch's number of the forward one's thread.
    pub(crate) forward_thread: Option<u64>,
}

/// Operators of a window by thread, each thread's in the order of their begins, the
/// outer ones first.
pub(crate) type OpsWindow = FxHashMap<u32, Vec<Op>>;

/// Puts the parts of windows together, and keeps stacks meanwhile.
#[derive(Debug)]
pub(crate) struct OpsInbox<T> {
    /// By process id, of those that were asked.
    asked: FxHashMap<u32, AskedProcess<T>>,
    spans: usize,
    stacks: usize,
}

#[derive(Debug)]
struct AskedProcess<T> {
    parts: Vec<OpsPart>,
    stacks: Vec<KeptStack<T>>,
}

/// A stack that was taken while a process recorded its operators.
#[derive(Clone, Debug)]
pub(crate) struct KeptStack<T> {
    /// Thread.
    pub(crate) tid: u32,
    /// CLOCK_MONOTONIC nanoseconds.
    pub(crate) time_ns: u64,
    /// Which stack it is.
    pub(crate) of: T,
}

/// What a process's news are for who keeps its stacks.
#[derive(Debug)]
pub(crate) enum OpsDone<T> {
    /// Nothing yet.
    Nothing,
    /// A window is whole: its operators, the stacks, and how many spans were left out.
    Window(OpsWindow, Vec<KeptStack<T>>, u64),
    /// A window did not come.
    Unanswered,
    /// A window could not be read.
    Unreadable,
}

impl<T> Default for OpsInbox<T> {
    fn default() -> Self {
        Self {
            asked: FxHashMap::default(),
            spans: 0,
            stacks: 0,
        }
    }
}

impl<T> OpsInbox<T> {
    /// Keeps a stack, if its process is to report the operators of this time.
    pub(crate) fn stack(&mut self, (pid, tid): (u32, u32), time_ns: u64, of: impl FnOnce() -> T) {
        if self.stacks < MAX_STACKS
            && let Some(process) = self.asked.get_mut(&pid)
        {
            self.stacks += 1;
            let of = of();
            process.stacks.push(KeptStack { tid, time_ns, of });
        }
    }

    /// Takes news in.
    pub(crate) fn take(&mut self, pid: u32, news: &OpsNews) -> OpsDone<T> {
        match news {
            OpsNews::Asked => {
                self.forget(pid);
                let new = AskedProcess {
                    parts: Vec::new(),
                    stacks: Vec::new(),
                };
                self.asked.insert(pid, new);
                OpsDone::Nothing
            }
            OpsNews::Unanswered => {
                self.forget(pid);
                OpsDone::Unanswered
            }
            OpsNews::Unreadable => {
                self.forget(pid);
                OpsDone::Unreadable
            }
            OpsNews::Recorded(part) => self.part(pid, part),
        }
    }

    fn part(&mut self, pid: u32, part: &OpsPart) -> OpsDone<T> {
        let Some(process) = self.asked.get_mut(&pid) else {
            // Its first part was beyond the limits, or the capture begins later.
            return OpsDone::Nothing;
        };
        if self.spans + part.spans.len() > MAX_SPANS {
            let lost = process
                .parts
                .iter()
                .map(|part| part.spans.len())
                .sum::<usize>();
            self.forget(pid);
            let lost = (lost + part.spans.len()) as u64;
            return OpsDone::Window(OpsWindow::default(), Vec::new(), lost);
        }
        self.spans += part.spans.len();
        process.parts.push(part.clone());
        if !part.is_last {
            return OpsDone::Nothing;
        }
        match self.forget(pid) {
            Some(AskedProcess { parts, stacks }) => {
                let refused = parts.iter().map(|part| part.refused).sum();
                OpsDone::Window(window(&parts), stacks, refused)
            }
            None => OpsDone::Nothing,
        }
    }

    fn forget(&mut self, pid: u32) -> Option<AskedProcess<T>> {
        let known = self.asked.remove(&pid)?;
        self.stacks -= known.stacks.len();
        self.spans -= known
            .parts
            .iter()
            .map(|part| part.spans.len())
            .sum::<usize>();
        Some(known)
    }
}

/// The operators of a window by thread.
fn window(parts: &[OpsPart]) -> OpsWindow {
    let mut window = OpsWindow::default();
    let mut texts: FxHashMap<&str, Rc<str>> = FxHashMap::default();
    for part in parts {
        let mut text = |number| {
            let text = part.text(number);
            Rc::clone(texts.entry(text).or_insert_with(|| text.into()))
        };
        for span in &part.spans {
            window.entry(span.tid).or_default().push(Op {
                name: text(span.name),
                shapes: span.shapes.map(&mut text),
                kind: span.kind,
                begin_ns: span.begin_ns,
                end_ns: span.end_ns(),
                sequence: span.sequence,
                forward_thread: span.forward_thread,
            });
        }
    }
    for ops in window.values_mut() {
        ops.sort_by_key(|op| (op.begin_ns, Reverse(op.end_ns)));
    }
    window
}

/// The Python frames that called an operator, by its stacks.
#[derive(Clone, Debug)]
pub(crate) struct OpCaller {
    /// A stack's Python frames, outermost first.
    path: Rc<[PythonFrame]>,
    /// How many of them all stacks share, with their lines.
    exact: usize,
    /// The next one is of the same function in all, at other lines.
    continues: bool,
    /// Stacks in its time.
    pub(crate) stacks: u64,
}

impl OpCaller {
    fn new(path: &Rc<[PythonFrame]>) -> Self {
        Self {
            path: Rc::clone(path),
            exact: path.len(),
            continues: false,
            stacks: 1,
        }
    }

    fn narrow(&mut self, path: &[PythonFrame]) {
        self.stacks += 1;
        let same = self.path.iter().zip(path).take_while(|(a, b)| a == b);
        let exact = same.count();
        if exact > self.exact {
            return;
        }
        let function = |path: &[PythonFrame]| path.get(exact).map(|(function, _)| *function);
        let next = function(&self.path);
        let continues = next.is_some() && next == function(path);
        self.continues = continues && (exact < self.exact || self.continues);
        self.exact = exact;
    }

    /// How many frames are above the operator.
    pub(crate) fn depth(&self) -> usize {
        self.exact + usize::from(self.continues)
    }

    /// The frame that called it; line 0: several.
    pub(crate) fn frame(&self) -> Option<PythonFrame> {
        let &(function, line) = self.path.get(self.depth().checked_sub(1)?)?;
        Some((function, if self.continues { 0 } else { line }))
    }
}

/// Where the operators of a thread are in its stacks.
#[derive(Debug, Default)]
pub(crate) struct OpsPlaced {
    /// The caller of each operator, where a stack with Python frames is in its time.
    pub(crate) callers: Vec<Option<OpCaller>>,
    /// The operators around each stack, outermost first.
    pub(crate) around: Vec<Vec<u32>>,
}

/// Places the operators of a thread. `stacks`: times, and Python frames, outermost first;
/// in the order of their times.
pub(crate) fn place(ops: &[Op], stacks: &[(u64, Rc<[PythonFrame]>)]) -> OpsPlaced {
    let mut placed = OpsPlaced {
        callers: vec![None; ops.len()],
        around: Vec::with_capacity(stacks.len()),
    };
    let mut next = 0;
    // Numbers and ends.
    let mut open: Vec<(u32, u64)> = Vec::new();
    let mut marks: FxHashMap<&str, OpCaller> = FxHashMap::default();
    for (time, path) in stacks {
        while let Some(op) = ops.get(next).filter(|op| op.begin_ns <= *time) {
            while open.pop_if(|(_, end)| *end <= op.begin_ns).is_some() {}
            if open.len() < MAX_DEPTH {
                // A damaged one may reach beyond those around it.
                let end = open
                    .last()
                    .map_or(op.end_ns, |(_, end)| op.end_ns.min(*end));
                open.push((next as u32, end));
            }
            next += 1;
        }
        while open.pop_if(|(_, end)| *end <= *time).is_some() {}
        for &(op, _) in open.iter().filter(|_| !path.is_empty()) {
            let known = ops
                .get(op as usize)
                .zip(placed.callers.get_mut(op as usize));
            let Some((op, caller)) = known else {
                continue;
            };
            match caller {
                Some(caller) => caller.narrow(path),
                None => *caller = Some(OpCaller::new(path)),
            }
            if op.kind == OpKind::Annotation {
                let of_all = marks.entry(&op.name);
                of_all
                    .and_modify(|caller| caller.narrow(path))
                    .or_insert_with(|| OpCaller::new(path));
            }
        }
        placed.around.push(open.iter().map(|(op, _)| *op).collect());
    }
    for (op, caller) in ops.iter().zip(&mut placed.callers) {
        if op.kind == OpKind::Annotation
            && let Some(caller) = caller.as_mut().filter(|own| own.stacks < MARK_STACKS)
            && let Some(of_all) = marks.get(&*op.name)
        {
            // Its own stacks are among them, so they have these frames too.
            (caller.exact, caller.continues) = (of_all.exact, of_all.continues);
        }
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::wire::OpSpan;

    fn op(name: &str, begin_ns: u64, end_ns: u64) -> Op {
        Op {
            name: name.into(),
            shapes: None,
            kind: OpKind::Operator,
            begin_ns,
            end_ns,
            sequence: None,
            forward_thread: None,
        }
    }

    fn stacks(of: &[(u64, &[PythonFrame])]) -> Vec<(u64, Rc<[PythonFrame]>)> {
        of.iter()
            .map(|(time, path)| (*time, (*path).into()))
            .collect()
    }

    /// Functions of the program in these tests.
    const MAIN: u32 = 0;
    const STEP: u32 = 1;
    const FORWARD: u32 = 2;

    #[test]
    fn an_operator_is_under_the_innermost_frame_and_an_annotation_under_its_function() {
        // with record_function("step"):   in STEP, lines 12 to 14
        //     forward()                   line 12; mm is called at line 5
        //     loss.sum()                  line 13
        let ops = [
            op("step", 100, 900),
            op("aten::linear", 200, 500),
            op("aten::mm", 210, 490),
            op("aten::sum", 600, 800),
            op("aten::never_sampled", 850, 860),
        ];
        let forward: &[_] = &[(MAIN, 20), (STEP, 12), (FORWARD, 5)];
        let sum: &[_] = &[(MAIN, 20), (STEP, 13)];
        let taken = [
            (50, &forward[..1]),
            (300, forward),
            (400, forward),
            (700, sum),
        ];
        let placed = place(&ops, &stacks(&taken));
        let around: Vec<_> = placed.around.iter().map(Vec::as_slice).collect();
        assert_eq!(around, [&[][..], &[0, 1, 2], &[0, 1, 2], &[0, 3]]);
        let of = |op: usize| {
            let caller = placed.callers[op].as_ref()?;
            Some((caller.depth(), caller.frame()?, caller.stacks))
        };
        assert_eq!(of(0), Some((2, (STEP, 0), 3)));
        assert_eq!(of(1), Some((3, (FORWARD, 5), 2)));
        assert_eq!(of(2), of(1));
        assert_eq!(of(3), Some((2, (STEP, 13), 1)));
        assert_eq!(of(4), None);
    }

    #[test]
    fn a_function_called_from_two_lines_is_inside() {
        // A forward of several calls of the same function: the operator around them was
        // called by the function that has these lines, not by that.
        let paths: [&[_]; 3] = [
            &[(MAIN, 1), (STEP, 7), (FORWARD, 5)],
            &[(MAIN, 1), (STEP, 8), (FORWARD, 5)],
            &[(MAIN, 1), (STEP, 7), (FORWARD, 6)],
        ];
        let taken = [(10, paths[0]), (20, paths[1]), (30, paths[2])];
        let placed = place(&[op("around", 0, 100)], &stacks(&taken));
        let caller = placed.callers[0].as_ref().unwrap();
        assert_eq!((caller.depth(), caller.frame()), (2, Some((STEP, 0))));
        // And nothing is shared beyond the frame that another function follows.
        let other: &[_] = &[(MAIN, 1), (FORWARD, 5)];
        let taken = [(10, paths[0]), (20, paths[1]), (30, other), (40, paths[1])];
        let placed = place(&[op("around", 0, 100)], &stacks(&taken));
        let caller = placed.callers[0].as_ref().unwrap();
        assert_eq!((caller.depth(), caller.frame()), (1, Some((MAIN, 1))));
        // A stack that has no Python does not count.
        let taken = [(10, paths[0]), (20, &[][..])];
        let placed = place(&[op("around", 0, 100)], &stacks(&taken));
        let caller = placed.callers[0].as_ref().unwrap();
        assert_eq!((caller.depth(), caller.stacks), (3, 1));
    }

    #[test]
    fn a_mark_with_few_stacks_is_under_what_all_its_runs_share() {
        let mark = |begin, end| Op {
            kind: OpKind::Annotation,
            ..op("mark", begin, end)
        };
        let deep: &[_] = &[(MAIN, 1), (STEP, 7), (FORWARD, 5)];
        let other: &[_] = &[(MAIN, 1), (STEP, 9)];
        let ops = [mark(0, 10), mark(10, 20), op("aten::mm", 12, 18)];
        let placed = place(&ops, &stacks(&[(5, deep), (15, other)]));
        let of = |op: usize| placed.callers[op].as_ref().and_then(OpCaller::frame);
        assert_eq!(of(0), Some((STEP, 0)));
        assert_eq!((of(1), of(2)), (of(0), Some((STEP, 9))));
        // With enough of its own it is placed alone.
        let taken = [(2, deep), (4, deep), (6, deep), (15, other)];
        let placed = place(&ops, &stacks(&taken));
        let of = |op: usize| placed.callers[op].as_ref().and_then(OpCaller::frame);
        assert_eq!((of(0), of(1)), (Some((FORWARD, 5)), Some((STEP, 0))));
    }

    #[test]
    fn damaged_operators_take_bounded_time() {
        let ops: Vec<_> = (0..1000).map(|n| op("x", n, 10_000 + n)).collect();
        let path: &[_] = &[(MAIN, 1)];
        let taken: Vec<_> = (0..100).map(|n| (2000 + n, path)).collect();
        let placed = place(&ops, &stacks(&taken));
        assert!(placed.around.iter().all(|around| around.len() == MAX_DEPTH));
    }

    fn part(begins: &[u64], is_last: bool) -> OpsNews {
        let span = |&begin_ns: &u64| OpSpan {
            tid: 7,
            kind: OpKind::Operator,
            name: 0,
            shapes: Some(9),
            begin_ns,
            length_ns: 5,
            sequence: None,
            forward_thread: None,
        };
        OpsNews::Recorded(OpsPart {
            texts: vec!["aten::mm".into()],
            spans: begins.iter().map(span).collect(),
            refused: 1,
            is_last,
        })
    }

    #[test]
    fn windows_come_in_parts_and_stacks_are_kept_meanwhile() {
        let mut inbox = OpsInbox::default();
        inbox.stack((5, 7), 1, || 'a');
        assert!(matches!(inbox.take(5, &part(&[3], true)), OpsDone::Nothing));
        inbox.take(5, &OpsNews::Asked);
        inbox.stack((5, 7), 2, || 'b');
        inbox.stack((6, 7), 3, || 'c');
        assert!(matches!(
            inbox.take(5, &part(&[30, 20], false)),
            OpsDone::Nothing
        ));
        let OpsDone::Window(window, stacks, refused) = inbox.take(5, &part(&[25], true)) else {
            panic!("no window")
        };
        let begins: Vec<_> = window[&7].iter().map(|op| op.begin_ns).collect();
        assert_eq!((begins, refused), (vec![20, 25, 30], 2));
        assert_eq!(stacks.iter().map(|s| s.of).collect::<String>(), "b");
        // A text that is not there is empty.
        assert_eq!(window[&7][0].shapes.as_deref(), Some(""));
        inbox.stack((5, 7), 4, || 'd');
        assert_eq!((inbox.stacks, inbox.spans), (0, 0));
        inbox.take(5, &OpsNews::Asked);
        let end = inbox.take(5, &OpsNews::Unanswered);
        assert!(matches!(end, OpsDone::Unanswered) && inbox.asked.is_empty());
    }
}
