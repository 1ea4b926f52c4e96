//! Python frames among the native frames that run them.

use super::{Code, SpecialCode};
use aiprof_common::{ADDR_EXACT, ADDR_MIDDLE, PYTHON_MARK, PYTHON_PLACED};
use aiprof_model::{process::ProcessPython, wire::Sample};

/// Python frames that one activation of the interpreter runs, and its native frame, by
/// its number from the leaf; `None`: not known.
struct PythonRun<'a> {
    native: Option<usize>,
    words: &'a [u64],
}

/// Where the Python frames of a stack belong.
pub(super) struct PlacedPython<'a> {
    python: &'a ProcessPython,
    runs: Vec<PythonRun<'a>>,
    next: usize,
    /// Whether a Python frame was above.
    below: bool,
    /// Whether the last native frame was an activation of the interpreter.
    was_eval: bool,
    /// Whether the interpreter's own frames are shown too.
    all: bool,
}

impl<'a> PlacedPython<'a> {
    /// Those of a sample, whose native frames are `user`. `whole`: the native walk
    /// reached the outermost frame.
    pub(super) fn new(
        python: &'a ProcessPython,
        sample: &'a Sample,
        user: &[u64],
        whole: bool,
        all: bool,
    ) -> Self {
        let one_each = python.interpreter.as_ref().filter(|found| found.one_each);
        let runs = match one_each {
            _ if sample.python.is_empty() => Vec::new(),
            Some(found) => {
                let evals = user.iter().enumerate().filter(|&(depth, &raw)| {
                    let address = raw & !ADDR_EXACT;
                    let exact = depth == 0 || raw & ADDR_EXACT != 0;
                    raw != ADDR_MIDDLE
                        && found
                            .eval
                            .contains(&address.wrapping_sub(u64::from(!exact)))
                });
                let evals: Vec<usize> = evals.map(|(depth, _)| depth).collect();
                pair(&evals, &sample.python, whole)
            }
            None => by_marks(&sample.python),
        };
        Self {
            python,
            runs,
            next: 0,
            below: false,
            was_eval: false,
            all,
        }
    }

    /// Gives the Python frames that the native frame `depth` runs; whether the native
    /// frame itself, `code` at `address`, is shown.
    pub(super) fn at(
        &mut self,
        depth: usize,
        address: u64,
        code: Code,
        take: &mut impl FnMut(Code),
    ) -> bool {
        let mut is_eval = false;
        while let Some(run) = self.runs.get(self.next)
            && run.native == Some(depth)
        {
            self.next += 1;
            is_eval = true;
            for &word in run.words {
                self.below = true;
                if !self.python.is_own(word) {
                    take(self.frame(word));
                }
            }
        }
        let own = self.python.interpreter.as_ref();
        let own = own.is_some_and(|found| found.text.contains(&address));
        // With `-X perf` generated code calls the interpreter, which stands for one Python
        // function each.
        let stands_for_python = self.was_eval && matches!(code, Code::Jit { .. });
        self.was_eval = is_eval;
        self.all || !(is_eval || self.below && own || stands_for_python)
    }

    /// Gives those that belong to no native frame of the stack, behind `gap`. Whether
    /// there are any.
    pub(super) fn rest(&mut self, gap: Code, take: &mut impl FnMut(Code)) -> bool {
        let mut words = self
            .runs
            .get(self.next..)
            .unwrap_or_default()
            .iter()
            .flat_map(|run| run.words)
            .peekable();
        if words.peek().is_none() {
            return false;
        }
        take(gap);
        for &word in words {
            take(self.frame(word));
        }
        true
    }

    fn frame(&self, word: u64) -> Code {
        match self.python.frame(word) {
            Some((function, line)) => Code::Python { function, line },
            None => Code::Special(SpecialCode::UnknownPython),
        }
    }
}

/// Runs that end in marks.
fn by_marks(words: &[u64]) -> Vec<PythonRun<'_>> {
    let mut runs = Vec::new();
    let mut rest = words;
    while !rest.is_empty() {
        let end = rest.iter().position(|word| word & PYTHON_MARK != 0);
        let (run, mark) = rest.split_at(end.unwrap_or(rest.len()));
        let native = mark.first().filter(|&mark| mark & PYTHON_PLACED != 0);
        let native = native.map(|mark| (mark & (PYTHON_PLACED - 1)) as usize);
        runs.push(PythonRun { native, words: run });
        rest = mark.get(1..).unwrap_or_default();
    }
    runs
}

/// Pairs activations with frames, one each. An activation that has just begun, or is about to end,
/// has no frame: then the innermost goes without. In a cut stack the outermost activations are
/// missing.
fn pair<'a>(evals: &[usize], frames: &'a [u64], whole: bool) -> Vec<PythonRun<'a>> {
    let (n, m) = (evals.len(), frames.len());
    let mut runs = Vec::with_capacity(m);
    for (index, words) in frames.chunks(1).enumerate() {
        let eval = if whole {
            // From the root. A frame that is left over is run by the innermost.
            (index + n).checked_sub(m).or_else(|| (n > 0).then_some(0))
        } else {
            Some(index)
        };
        let native = eval.and_then(|eval| evals.get(eval).copied());
        runs.push(PythonRun { native, words });
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(runs: &[PythonRun<'_>]) -> Vec<(Option<usize>, Vec<u64>)> {
        runs.iter()
            .map(|run| (run.native, run.words.to_vec()))
            .collect()
    }

    #[test]
    fn marks_end_runs() {
        let placed = |native: u64| PYTHON_MARK | PYTHON_PLACED | native;
        let words = [1, 2, placed(4), placed(6), 3, PYTHON_MARK | 0x7fff_0000, 4];
        assert_eq!(
            places(&by_marks(&words)),
            [
                (Some(4), vec![1, 2]),
                (Some(6), vec![]),
                (None, vec![3]),
                (None, vec![4])
            ]
        );
    }

    #[test]
    fn activations_are_paired_from_the_root() {
        let of = |evals: &[usize], frames: &[u64], whole| {
            let runs = pair(evals, frames, whole);
            runs.iter().map(|run| run.native).collect::<Vec<_>>()
        };
        assert_eq!(of(&[3, 5], &[1, 2], true), [Some(3), Some(5)]);
        assert_eq!(
            of(&[0, 3, 5], &[1, 2], true),
            [Some(3), Some(5)],
            "one begins"
        );
        assert_eq!(of(&[3], &[1, 2], false), [Some(3), None], "cut");
        assert_eq!(of(&[3], &[1, 2], true), [Some(3), Some(3)]);
        assert_eq!(of(&[], &[1], true), [None]);
    }
}
