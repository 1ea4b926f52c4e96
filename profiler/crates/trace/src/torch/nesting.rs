//! Which call is in which, and what that leaves each itself.

use super::calls::{CallRole, TorchCall, TorchCalls};
use super::sums::Compensated;
use aiprof_model::timeline::Timeline;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::hash_map::Entry;
use std::hash::Hash;

/// A timeline's calls, nested, with the cost of each: what all of torch's tables are made of.
pub struct TorchIndex {
    pub(super) calls: TorchCalls,
    pub(super) nested: Nested,
    /// By call.
    pub(super) costs: Vec<Cost>,
}

impl TorchIndex {
    /// Those of a timeline.
    pub fn new(timeline: &Timeline) -> Self {
        let mut calls = TorchCalls::new(timeline);
        let nested = Nested::new(&mut calls);
        let costs = nested.costs(&calls);
        Self {
            calls,
            nested,
            costs,
        }
    }
}

/// What a call took, microseconds and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Cost {
    pub(super) self_cpu: f64,
    pub(super) cpu: f64,
    pub(super) self_device: f64,
    pub(super) device: f64,
    pub(super) self_memory: (i64, i64),
    pub(super) memory: (i64, i64),
}

/// Calls in each other.
pub(super) struct Nested {
    /// Their parents, by index.
    parents: Vec<Option<usize>>,
    /// Calls in each, in the order of time.
    children: Vec<Vec<usize>>,
    /// A call whose only child has its name takes the child's place: torch counts the two
    /// once.
    pub(super) is_gone: Vec<bool>,
}

impl Nested {
    /// Finds which call is in which: on one thread, with both ends.
    pub(super) fn new(calls: &mut TorchCalls) -> Self {
        let parents = parents(&calls.all);
        let mut children = vec![Vec::new(); parents.len()];
        for (index, parent) in parents.iter().enumerate() {
            if let Some(parent) = parent.and_then(|parent| children.get_mut(parent)) {
                parent.push(index);
            }
        }
        let mut nested = Self {
            is_gone: vec![false; parents.len()],
            parents,
            children,
        };
        nested.give_overheads(calls);
        nested.fold_twins(calls);
        nested
    }

    /// The innermost call around one.
    pub(super) fn parent(&self, index: usize) -> Option<usize> {
        self.parents.get(index).copied().flatten()
    }

    /// What `of` gives for the innermost call around each that it gives anything for. One pass: a
    /// search from each call outwards takes the square of the depth.
    pub(super) fn around<T: Copy>(&self, of: impl Fn(usize) -> Option<T>) -> Vec<Option<T>> {
        let mut found: Vec<Option<T>> = Vec::with_capacity(self.parents.len());
        // Parents stand before their children.
        for parent in &self.parents {
            let inner = parent.and_then(|parent| of(parent).or(*found.get(parent)?));
            found.push(inner);
        }
        found
    }

    /// Which calls that have a key are in another call of the same key, at any depth.
    pub(super) fn are_in_same<K: Hash + Eq>(
        &self,
        calls: &TorchCalls,
        key: impl Fn(usize) -> Option<K>,
    ) -> Vec<bool> {
        // The last call in each. Those of its thread up to that one are in it, too.
        let mut last: Vec<usize> = (0..self.parents.len()).collect();
        for (index, parent) in self.parents.iter().enumerate().rev() {
            let own = last.get(index).copied().unwrap_or(index);
            if let Some(of_parent) = parent.and_then(|parent| last.get_mut(parent)) {
                *of_parent = own.max(*of_parent);
            }
        }
        let mut outermost: FxHashMap<(u32, K), usize> = FxHashMap::default();
        let calls = calls.all.iter().zip(last).enumerate();
        let are_in = calls.map(|(index, (call, last))| {
            let Some(key) = key(index).filter(|_| !call.is_device()) else {
                return false;
            };
            match outermost.entry((call.thread, key)) {
                Entry::Occupied(known) if index <= *known.get() => true,
                known => {
                    known.insert_entry(last);
                    false
                }
            }
        });
        are_in.collect()
    }

    /// The first overhead in an operator gets the operator's device work a second time.
    /// No source has this: traces and tables of PyTorch 2.11 on an H200 show it.
    fn give_overheads(&self, calls: &mut TorchCalls) {
        let is_operator = |index: usize| {
            let call = calls.all.get(index);
            call.is_some_and(|call| call.role == CallRole::Operator)
        };
        let around = self.around(|index| is_operator(index).then_some(index));
        let mut served = FxHashSet::default();
        for (index, (call, operator)) in calls.all.iter().zip(around).enumerate() {
            if call.role != CallRole::Overhead {
                continue;
            }
            let Some(operator) = operator.filter(|operator| served.insert(*operator)) else {
                continue;
            };
            let work = calls.launched.get(operator).copied().unwrap_or_default();
            if let Some(own) = calls.launched.get_mut(index) {
                *own = work;
            }
        }
    }

    /// Lets an only child of its parent's name stand for both (`_remove_dup_nodes`): the
    /// parent keeps its time, and takes the child's children and device work.
    fn fold_twins(&mut self, calls: &mut TorchCalls) {
        for index in 0..calls.all.len() {
            let Some(parent) = self.parents.get(index).copied().flatten() else {
                continue;
            };
            let name = |index: usize| calls.all.get(index).map(|call| call.name);
            let is_only = self.children.get(parent).is_some_and(|all| all.len() == 1);
            if !is_only || name(index) != name(parent) {
                continue;
            }
            let below = self.children.get_mut(index).map(std::mem::take);
            let below = below.unwrap_or_default();
            for child in &below {
                if let Some(above) = self.parents.get_mut(*child) {
                    *above = Some(parent);
                }
            }
            if let Some(children) = self.children.get_mut(parent) {
                *children = below;
            }
            let work = calls.launched.get_mut(index).map(std::mem::take);
            if let Some(own) = calls.launched.get_mut(parent) {
                *own = work.unwrap_or_default();
            }
            if let Some(gone) = self.is_gone.get_mut(index) {
                *gone = true;
            }
        }
    }

    /// What each took.
    pub(super) fn costs(&self, calls: &TorchCalls) -> Vec<Cost> {
        let mut costs = vec![Cost::default(); calls.all.len()];
        // Children stand behind their parents.
        for (index, call) in calls.all.iter().enumerate().rev() {
            let cost = match call.is_device() {
                true => Cost {
                    self_device: call.length(),
                    device: call.length(),
                    ..Cost::default()
                },
                false => self.host_cost(calls, index, call, &costs),
            };
            if let Some(place) = costs.get_mut(index) {
                *place = cost;
            }
        }
        costs
    }

    fn host_cost(
        &self,
        calls: &TorchCalls,
        index: usize,
        call: &TorchCall,
        costs: &[Cost],
    ) -> Cost {
        let below = self.children.get(index).map(Vec::as_slice);
        let below = || below.unwrap_or_default().iter();
        let below = || below().filter_map(|child| costs.get(*child));
        let cpu: Compensated = below().map(|cost| cost.cpu).collect();
        let of_children: Compensated = below().map(|cost| cost.device).collect();
        let own = calls.launched.get(index).copied().unwrap_or_default();
        let device = own.value() + of_children.value();
        let mut self_memory = call.memory;
        for cost in below() {
            self_memory.0 = self_memory.0.saturating_sub(cost.memory.0);
            self_memory.1 = self_memory.1.saturating_sub(cost.memory.1);
        }
        Cost {
            self_cpu: call.length() - cpu.value(),
            cpu: call.length(),
            self_device: device - of_children.value(),
            device,
            self_memory,
            memory: call.memory,
        }
    }
}

/// The innermost call around each, of its thread.
fn parents(calls: &[TorchCall]) -> Vec<Option<usize>> {
    let mut open: FxHashMap<u32, Vec<usize>> = FxHashMap::default();
    let mut parents = vec![None; calls.len()];
    let hosts = calls.iter().zip(&mut parents).enumerate();
    for (index, (call, parent)) in hosts.filter(|(_, (call, _))| !call.is_device()) {
        let open = open.entry(call.thread).or_default();
        while let Some(last) = open.last() {
            let holds = |above: &TorchCall| call.start < above.end && call.end <= above.end;
            if calls.get(*last).is_some_and(holds) {
                *parent = Some(*last);
                break;
            }
            open.pop();
        }
        open.push(index);
    }
    parents
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_testkit::scene;

    /// Against a walk from each call outwards, of calls of two threads that are in each other by
    /// chance.
    #[test]
    fn what_is_around_is_what_a_walk_finds() {
        let mut seed = 11u64;
        let mut draw = |below: u64| {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        for _ in 0..50 {
            let slices = (0..60).map(|_| {
                let (from, length) = (draw(40) as f64, draw(30) as f64);
                let name = ["a", "b", "c"][draw(3) as usize];
                let tid = draw(2) as i64;
                ("cpu_op", name, tid, from, from + length, 0, "")
            });
            let timeline = scene::of_torch(slices.collect::<Vec<_>>());
            let mut calls = TorchCalls::new(&timeline);
            let nested = Nested::new(&mut calls);
            let name = |index: usize| timeline.name(calls.all[index].name.unwrap());
            let above =
                |index| std::iter::successors(nested.parent(index), |at| nested.parent(*at));
            let is_one = |index: usize| (name(index) == "a").then_some(index);
            let around = nested.around(is_one);
            let key = |index: usize| (name(index) != "c").then(|| name(index));
            let are_in_same = nested.are_in_same(&calls, key);
            for index in 0..calls.all.len() {
                assert_eq!(around[index], above(index).find_map(is_one));
                let own = key(index);
                let is_in = own.is_some() && above(index).any(|above| key(above) == own);
                assert_eq!(are_in_same[index], is_in);
            }
        }
    }
}
