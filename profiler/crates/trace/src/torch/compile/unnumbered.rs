//! Compilations and regions to which the trace gives no numbers, as versions before 2.6 write
//! them: Python stacks show their functions.

use super::{Compiled, GraphBreak};
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;

/// A function and its place, if they are known.
type Function = Option<(String, String)>;

/// All of them, by function.
#[derive(Default)]
pub(super) struct Unnumbered {
    compiled: BTreeMap<Function, Compiled>,
    breaks: BTreeMap<Function, GraphBreak>,
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
        let row = of_function(&mut self.compiled, &function);
        row.runs += 1;
        row.run_us += us;
        if is_within {
            self.break_before(&function).runs += 1;
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
        let row = of_function(&mut self.compiled, &function);
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
            self.break_before(&function).compile_us += us;
        }
    }

    /// Compilations by function, those of unknown functions last.
    pub(super) fn compiled(&self) -> Vec<Compiled> {
        sorted(&self.compiled)
    }

    /// Functions that went on behind graph breaks.
    pub(super) fn breaks(&self) -> Vec<GraphBreak> {
        sorted(&self.breaks)
    }

    fn break_before(&mut self, function: &Function) -> &mut GraphBreak {
        let known = self.breaks.entry(function.clone());
        known.or_insert_with(|| GraphBreak {
            function: function.as_ref().map(|(name, _)| name.clone()),
            // What goes on has the line at which it does.
            place: function.as_ref().map(|(_, place)| place.clone()),
            ..GraphBreak::default()
        })
    }
}

fn of_function<'c>(
    compiled: &'c mut BTreeMap<Function, Compiled>,
    function: &Function,
) -> &'c mut Compiled {
    compiled
        .entry(function.clone())
        .or_insert_with(|| Compiled {
            function: function.as_ref().map(|(name, _)| name.clone()),
            place: function.as_ref().map(|(_, place)| place.clone()),
            ..Compiled::default()
        })
}

/// Rows whose function is not known come last.
fn sorted<T: Clone>(rows: &BTreeMap<Function, T>) -> Vec<T> {
    let known = rows.iter().filter(|(function, _)| function.is_some());
    let rest = rows.get(&None);
    known.map(|(_, row)| row).chain(rest).cloned().collect()
}
