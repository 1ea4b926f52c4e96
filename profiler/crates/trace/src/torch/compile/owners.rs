//! Which compilation a step of the compiler is of whose note does not show it.
//!
//! Before dynamo compiles a function it looks into its cache, and what it compiled runs next on
//! the thread, as a region that never ran before. A backward pass is compiled within the backward
//! operator of the forward pass that it is of.

use super::{CompileAround, CompileId, CompileOwner, CompilePart, name, set};
use crate::torch::calls::TorchCalls;
use crate::torch::nesting::Nested;
use crate::torch::pairs;
use aiprof_model::timeline::Timeline;
use rustc_hash::FxHashMap;

/// What dynamo does first with a function that it may compile.
const LOOKUP: &str = "TorchDynamo Cache Lookup";
/// The operator that is the backward pass of a compiled function.
const BACKWARD: &str = "CompiledFunctionBackward";

/// Gives steps that are in no other the compilation of the region that they led to.
pub(super) fn assign(
    timeline: &Timeline,
    calls: &TorchCalls,
    nested: &Nested,
    around: &CompileAround,
    parts: &mut [CompilePart],
) {
    let is_backward = |index: usize| name(timeline, calls, index) == BACKWARD;
    let backward = nested.around(|index| is_backward(index).then_some(index));
    let first_runs = first_runs(parts);
    let mut forward: Option<FxHashMap<usize, usize>> = None;
    // Steps by thread that led to no region yet.
    let mut waiting: FxHashMap<u32, Vec<usize>> = FxHashMap::default();
    for (index, call) in calls.all.iter().enumerate() {
        let part = parts.get(index).copied().unwrap_or_default();
        let is_lookup = || name(timeline, calls, index) == LOOKUP;
        let matters = match part {
            CompilePart::Step(owner) => owner == CompileOwner::Unknown,
            CompilePart::Region(_) => true,
            CompilePart::Other => waiting.contains_key(&call.thread) && is_lookup(),
        };
        if !matters || around.step(index).is_some() {
            continue;
        }
        let CompilePart::Step(_) = part else {
            // Behind a lookup it is about another function.
            let led_here = waiting.remove(&call.thread).unwrap_or_default();
            if let CompilePart::Region(owner) = part
                && is_first(owner, index, &first_runs)
            {
                for step in led_here {
                    set(parts, step, CompilePart::Step(owner));
                }
            }
            continue;
        };
        match backward.get(index).copied().flatten() {
            Some(backward) => {
                let forward = forward.get_or_insert_with(|| {
                    let pairs = pairs::joined(timeline, calls).into_iter();
                    pairs.filter_map(|(back, of)| Some((back, of?))).collect()
                });
                let region = forward.get(&backward);
                let owner = region.and_then(|forward| around.region(*forward, parts));
                set(parts, index, CompilePart::Step(owner.unwrap_or_default()));
            }
            None => waiting.entry(call.thread).or_default().push(index),
        }
    }
}

/// Where each compilation's region runs first.
fn first_runs(parts: &[CompilePart]) -> FxHashMap<CompileId, usize> {
    let mut first = FxHashMap::default();
    for (index, part) in parts.iter().enumerate() {
        if let CompilePart::Region(CompileOwner::Numbered(id)) = part {
            first.entry(*id).or_insert(index);
        }
    }
    first
}

fn is_first(owner: CompileOwner, index: usize, first: &FxHashMap<CompileId, usize>) -> bool {
    owner
        .number()
        .is_none_or(|id| first.get(&id) == Some(&index))
}
