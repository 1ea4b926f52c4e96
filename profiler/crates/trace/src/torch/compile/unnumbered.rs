//! Compilations and regions to which the trace gives no numbers, as versions before 2.6 write
//! them: Python stacks show their functions.

use super::{Compiled, GraphBreak};
use crate::torch::python::Frames;
use rustc_hash::{FxHashMap, FxHashSet};

/// The number of a function, if it is known.
type Function = Option<usize>;

/// All of them, by function.
#[derive(Default)]
pub(super) struct Unnumbered {
    compiled: FxHashMap<Function, Compiled>,
    breaks: FxHashMap<Function, GraphBreak>,
    /// Regions that ran first after a compilation.
    compiled_for: FxHashSet<usize>,
    /// Those of them whose function ran or was compiled before.
    again: FxHashSet<usize>,
    /// How many compilations are of functions that are not known.
    pub(super) unknown: u64,
}

impl Unnumbered {
    /// Adds a region: its function, its length in microseconds, whether it is within another.
    pub(super) fn region(&mut self, function: Function, us: f64, is_within: bool) {
        let row = self.compiled.entry(function).or_default();
        row.runs += 1;
        row.run_us += us;
        if is_within {
            self.breaks.entry(function).or_default().runs += 1;
        }
    }

    /// Adds time of a compilation, microseconds, by the region that it led to. Regions and steps
    /// are added in the order of their numbers; `step` is that of the step.
    pub(super) fn step(
        &mut self,
        step: usize,
        region: usize,
        function: Function,
        us: f64,
        is_within: bool,
    ) {
        let row = self.compiled.entry(function).or_default();
        row.compile_us += us;
        // A backward pass is compiled behind its region; it is no compilation of its own.
        if step < region && self.compiled_for.insert(region) {
            if function.is_none() {
                self.unknown += 1;
            } else if row.runs > 0 || row.compile_us > us {
                self.again.insert(region);
                row.recompilations += 1;
            }
        }
        if self.again.contains(&region) {
            row.recompile_us += us;
        }
        if is_within {
            self.breaks.entry(function).or_default().compile_us += us;
        }
    }

    /// Compilations by function, those of unknown functions last.
    pub(super) fn compiled(&self, frames: &Frames) -> Vec<Compiled> {
        let named = |row: &Compiled, function, place| Compiled {
            function,
            place,
            ..row.clone()
        };
        sorted(&self.compiled, frames, named)
    }

    /// Functions that went on behind graph breaks. What goes on has the line at which it does.
    pub(super) fn breaks(&self, frames: &Frames) -> Vec<GraphBreak> {
        let named = |row: &GraphBreak, function, place| GraphBreak {
            function,
            place,
            ..row.clone()
        };
        sorted(&self.breaks, frames, named)
    }
}

/// Rows with their functions and places. Those whose function is not known come last.
fn sorted<T>(
    rows: &FxHashMap<Function, T>,
    frames: &Frames,
    named: impl Fn(&T, Option<String>, Option<String>) -> T,
) -> Vec<T> {
    let functions = rows.iter().map(|(function, row)| {
        let function = function.and_then(|number| frames.function(number));
        (function.is_none(), function, row)
    });
    let mut rows: Vec<_> = functions.collect();
    rows.sort_by_key(|(is_unknown, function, _)| (*is_unknown, *function));
    let rows = rows.into_iter().map(|(_, function, row)| {
        let text = |text: &str| text.to_owned();
        let (function, place) = function.unzip();
        named(row, function.map(text), place.map(text))
    });
    rows.collect()
}
