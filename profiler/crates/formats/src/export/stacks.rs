//! Stacks as sorted paths of names: what folded stacks and flame graphs share.

use super::folded::{FoldedStacks, MAX_TOTAL};
use super::launchers::Chosen;
use super::{ExportError, ExportOptions, Weight, names};
use aiprof_model::profile::{
    DeviceId, FrameId, FrameKind, ProcessId, Profile, Sample, StackId, StallReason, StrId, Values,
};
use rustc_hash::FxHashMap;
use std::hash::Hash;
use std::ops::Range;

/// Unique stacks with their values, sorted frame by frame from the root.
///
/// Names are stored once and paths as indices into them: the stacks of a whole
/// machine repeat the same few thousand names.
#[derive(Default)]
pub(super) struct SortedStacks {
    /// Names in byte order: comparing indices compares names.
    names: Vec<String>,
    /// All paths, one after the other, as indices into `names`.
    paths: Vec<u32>,
    /// The stacks.
    rows: Vec<StackRow>,
    /// Which names are those of functions, by index; the others name processes.
    functions: Vec<bool>,
}

/// One stack.
#[derive(Clone)]
struct StackRow {
    path: Range<usize>,
    value: u64,
}

/// Names in the order in which they were first seen.
#[derive(Default)]
struct Interner {
    index: FxHashMap<String, u32>,
    names: Vec<String>,
}

impl Interner {
    fn intern(&mut self, name: String) -> u32 {
        if let Some(&known) = self.index.get(&name) {
            return known;
        }
        let new = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.names.push(name.clone());
        self.index.insert(name, new);
        new
    }
}

impl SortedStacks {
    /// The stacks of some processes of a profile: process name, process id, frames. Values
    /// are microseconds, samples or bytes.
    pub(super) fn from_profile(
        profile: &Profile,
        options: &ExportOptions,
        chosen: &Chosen,
    ) -> Result<Self, ExportError> {
        let mut interner = Interner::default();
        let mut frames = vec![None; profile.frames.len()];
        let mut stacks = Self::default();
        let roots = Roots::of(profile, options);
        for (key, value) in values_by_stack(profile, options, &roots, chosen) {
            let (root, process, stack, reason) = key;
            let start = stacks.paths.len();
            if let Some(root) = roots.name(root) {
                stacks.paths.push(interner.intern(root.to_owned()));
            }
            let process = profile.processes.get(process.0 as usize);
            let comm = process.map_or("", |p| profile.str(p.comm));
            let pid = process.map_or(0, |p| p.pid);
            stacks.paths.push(interner.intern(names::clean(comm)));
            stacks.paths.push(interner.intern(pid.to_string()));
            let mut ids: Vec<FrameId> = frame_ids(profile, stack).collect();
            if let Some(reason) = reason {
                reason_first(profile, &mut ids, reason);
            }
            for id in ids {
                let Some(known) = frames.get_mut(id.0 as usize) else {
                    continue;
                };
                let name = *known.get_or_insert_with(|| {
                    let frame = &profile.frames[id.0 as usize];
                    // In an interpreted program the lines are what its author knows.
                    let with_line = options.source_lines || frame.kind == FrameKind::Interpreter;
                    interner.intern(match with_line {
                        true => names::located(profile, frame),
                        false => names::frame(profile, frame),
                    })
                });
                stacks.paths.push(name);
            }
            stacks.add(start, value);
        }
        stacks.finish(interner, 2 + usize::from(options.by_label.is_some()));
        if options.weight == Weight::Time {
            stacks.round_to_microseconds();
        }
        if stacks.total() > MAX_TOTAL {
            return Err(ExportError::WeightsTooLarge);
        }
        Ok(stacks)
    }

    /// The stacks of a folded file.
    pub(super) fn from_folded(folded: &FoldedStacks) -> Self {
        let mut interner = Interner::default();
        let mut stacks = Self::default();
        for (stack, value) in &folded.stacks {
            let start = stacks.paths.len();
            for name in stack.split(';') {
                stacks.paths.push(interner.intern(names::clean(name)));
            }
            stacks.add(start, *value);
        }
        stacks.finish(interner, 1);
        stacks
    }

    fn add(&mut self, start: usize, value: u64) {
        self.rows.push(StackRow {
            path: start..self.paths.len(),
            value,
        });
    }

    /// Sorts names and stacks, and merges equal stacks. The first
    /// `process_names` of every path name the process.
    fn finish(&mut self, interner: Interner, process_names: usize) {
        drop(interner.index);
        let mut order: Vec<usize> = (0..interner.names.len()).collect();
        order.sort_unstable_by(|&a, &b| interner.names[a].cmp(&interner.names[b]));
        let mut rank = vec![0_u32; order.len()];
        for (sorted, &first_seen) in (0_u32..).zip(&order) {
            rank[first_seen] = sorted;
        }
        self.paths
            .iter_mut()
            .for_each(|name| *name = rank[*name as usize]);
        self.names = interner.names;
        self.names.sort_unstable();
        self.functions = vec![false; self.names.len()];
        for row in &self.rows {
            for &name in self.paths[row.path.clone()].iter().skip(process_names) {
                self.functions[name as usize] = true;
            }
        }
        self.sort_and_merge();
    }

    fn sort_and_merge(&mut self) {
        let paths = &self.paths;
        self.rows
            .sort_by(|a, b| paths[a.path.clone()].cmp(&paths[b.path.clone()]));
        self.merge();
    }

    /// Merges neighbours with equal paths.
    fn merge(&mut self) {
        let paths = &self.paths;
        self.rows.dedup_by(|next, kept| {
            let equal = paths[next.path.clone()] == paths[kept.path.clone()];
            if equal {
                kept.value = kept.value.saturating_add(next.value);
            }
            equal
        });
    }

    /// Turns all paths around, so that stacks are merged from the leaf.
    pub(super) fn reverse(&mut self) {
        for row in &self.rows {
            self.paths[row.path.clone()].reverse();
        }
        self.sort_and_merge();
    }

    fn round_to_microseconds(&mut self) {
        let mut values: Vec<&mut u64> = self.rows.iter_mut().map(|row| &mut row.value).collect();
        round_to_microseconds(&mut values);
    }

    /// Sum of all values.
    pub(super) fn total(&self) -> u64 {
        self.rows
            .iter()
            .fold(0, |sum, row| sum.saturating_add(row.value))
    }

    /// Each stack's names from the root, and its value, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (impl Iterator<Item = &str>, u64)> {
        self.rows.iter().map(|row| {
            let names = self.paths[row.path.clone()]
                .iter()
                .map(|&name| self.names[name as usize].as_str());
            (names, row.value)
        })
    }

    /// All names that the paths still have, each once, in byte order, and
    /// whether they are functions. A name of both kinds is a function.
    pub(super) fn names(&self) -> impl Iterator<Item = (&str, bool)> {
        let mut used = vec![false; self.names.len()];
        for row in &self.rows {
            for &name in &self.paths[row.path.clone()] {
                used[name as usize] = true;
            }
        }
        self.names
            .iter()
            .zip(&self.functions)
            .zip(used)
            .filter(|(_, used)| *used)
            .map(|((name, &function), _)| (name.as_str(), function))
    }

    /// How many frames row `i` shares with the row before it.
    fn shared_with_previous(&self, i: usize) -> usize {
        let path = |i: usize| self.rows.get(i).map(|row| &self.paths[row.path.clone()]);
        match (i.checked_sub(1).and_then(path), path(i)) {
            (Some(a), Some(b)) => a.iter().zip(b).take_while(|(a, b)| a == b).count(),
            _ => 0,
        }
    }

    /// Cuts every path where its frames fall below `least` of total value.
    /// The values stay with the frames that are left.
    pub(super) fn prune(&mut self, least: u64) {
        // Frames that are open at the current row: first row, and value before it.
        let mut open: Vec<(usize, u64)> = Vec::new();
        let mut before = 0_u64;
        for i in 0..=self.rows.len() {
            let shared = self.shared_with_previous(i);
            while open.len() > shared {
                let Some((first, start)) = open.pop() else {
                    break;
                };
                if before.saturating_sub(start) < least {
                    for row in &mut self.rows[first..i] {
                        row.path.end = row.path.end.min(row.path.start + open.len());
                    }
                }
            }
            if let Some(row) = self.rows.get(i) {
                open.resize(row.path.len(), (i, before));
                before = before.saturating_add(row.value);
            }
        }
        self.merge();
    }
}

/// Turns nanoseconds into microseconds so that the sum is right to half a microsecond. What
/// rounding down leaves goes to the values with the largest remainders, the first of them
/// where they are equal.
pub(crate) fn round_to_microseconds(values: &mut [&mut u64]) {
    let total_ns: u128 = values.iter().map(|value| u128::from(**value)).sum();
    let floors: u128 = values.iter().map(|value| u128::from(**value / 1000)).sum();
    let missing = (total_ns + 500) / 1000 - floors;
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(*values[i] % 1000));
    values.iter_mut().for_each(|value| **value /= 1000);
    let missing = usize::try_from(missing).unwrap_or(usize::MAX);
    for i in order.into_iter().take(missing) {
        *values[i] += 1;
    }
}

/// Frames of a stack from root to leaf, inlined ones expanded.
fn frame_ids(profile: &Profile, stack: StackId) -> impl Iterator<Item = FrameId> {
    profile
        .stacks
        .get(stack.0 as usize)
        .into_iter()
        .flat_map(|stack| &stack.locations)
        .filter_map(|id| profile.locations.get(id.0 as usize))
        .flat_map(|location| location.frames.iter().copied())
}

/// Moves the frame of a stall reason to the front of the device frames.
fn reason_first(profile: &Profile, frames: &mut [FrameId], reason: StallReason) {
    let frame = |id: &FrameId| profile.frames.get(id.0 as usize);
    let is_device = |id: &FrameId| {
        let kind = frame(id).map(|frame| frame.kind);
        matches!(
            kind,
            Some(FrameKind::DeviceSoftware | FrameKind::DeviceHardware)
        )
    };
    let is_reason = |id: &FrameId| {
        frame(id).is_some_and(|frame| {
            frame.kind == FrameKind::DeviceHardware && profile.str(frame.name) == reason.name()
        })
    };
    let first = frames.iter().position(is_device);
    // The last one: mnemonics may be called the same, as `send` and `sync` are.
    let last = frames.iter().rposition(is_reason);
    if let Some((first, last)) = first.zip(last)
        && let Some(between) = frames.get_mut(first..=last)
    {
        between.rotate_right(1);
    }
}

/// The names of labels' values that stacks begin with.
struct Roots {
    names: Vec<String>,
    /// Index of the name by where samples are of.
    index: FxHashMap<LabelPlace, u32>,
}

/// What samples of one label's value have in common: process, control group, device.
type LabelPlace = (ProcessId, Option<StrId>, Option<DeviceId>);

fn label_place(sample: &Sample) -> LabelPlace {
    let device = sample.device.map(|device| device.device);
    (sample.process, sample.cgroup, device)
}

impl Roots {
    /// Those of a profile; none where stacks begin with the process.
    fn of(profile: &Profile, options: &ExportOptions) -> Self {
        let mut roots = Self {
            names: Vec::new(),
            index: FxHashMap::default(),
        };
        let Some(label) = &options.by_label else {
            return roots;
        };
        let mut known = Interner::default();
        for sample in &profile.samples {
            roots.index.entry(label_place(sample)).or_insert_with(|| {
                known.intern(names::clean(&match profile.label(sample, label) {
                    Some(value) => format!("{label}={value}"),
                    None => format!("[no {label}]"),
                }))
            });
        }
        roots.names = known.names;
        roots
    }

    fn of_sample(&self, sample: &Sample) -> u32 {
        let known = self.index.get(&label_place(sample));
        known.copied().unwrap_or_default()
    }

    fn name(&self, root: u32) -> Option<&str> {
        self.names.get(root as usize).map(String::as_str)
    }
}

/// What samples that are added up have in common: the name of the root, the process,
/// the stack; the reason only where stacks are to begin with it.
type StackKey = (u32, ProcessId, StackId, Option<StallReason>);

/// The value of every stack of every process, in nanoseconds, samples or bytes,
/// over all threads.
fn values_by_stack(
    profile: &Profile,
    options: &ExportOptions,
    roots: &Roots,
    chosen: &Chosen,
) -> Vec<(StackKey, u64)> {
    let mut values: FxHashMap<StackKey, u64> = FxHashMap::default();
    for sample in &profile.samples {
        if !options.shown.includes(sample) || !chosen.includes(profile, sample) {
            continue;
        }
        let value = match options.weight {
            Weight::Time => sample.time_ns,
            Weight::Samples => sample.count,
            Weight::Bytes => sample.bytes,
        };
        // A call without a launch, a launch without bytes, a share of device samples
        // or a wait that is less than one: not of this weight.
        let may_lack = profile.values != Values::CpuTime || sample.device.is_some();
        if value == 0 && may_lack {
            continue;
        }
        let reason = sample.device.and_then(|device| device.reason);
        let reason = reason.filter(|_| options.by_stall);
        let root = roots.of_sample(sample);
        let key = (root, sample.process, sample.stack, reason);
        let sum = values.entry(key).or_default();
        *sum = sum.saturating_add(value);
    }
    sorted(values)
}

/// The entries of a map in the order of their keys.
fn sorted<K: Ord + Hash, V>(map: FxHashMap<K, V>) -> Vec<(K, V)> {
    let mut entries: Vec<(K, V)> = map.into_iter().collect();
    entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    entries
}
