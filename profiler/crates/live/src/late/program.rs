//! What is known of a process's kernels.

use super::Build;
use crate::inspect::{path::NamePath, predict::ObjectClass};
use aiprof_model::wire::KernelNamed;
use rustc_hash::{FxHashMap, FxHashSet};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// Most kernels of a process followed.
const MAX_KERNELS: usize = 16_384;
/// How long to wait for further kernels before searching: one kernel alone can
/// prove less than several.
const GATHER: Duration = Duration::from_millis(10);
/// How long after a search that left kernels unnamed the next one may come; it
/// doubles each time.
const AGAIN: Duration = Duration::from_millis(300);
/// Most searches of a process, those by a known way left aside.
pub(super) const MAX_SEARCHES: u32 = 8;

/// What is known of a process's kernels.
#[derive(Debug, Default)]
pub(super) struct LateProgram {
    /// Created while watched, by handle; an empty name was not read.
    known: BTreeMap<u64, String>,
    /// Launched, and not seen created; when they were first launched.
    unknown: BTreeMap<u64, u64>,
    /// The names of those that have one.
    named: FxHashMap<u64, String>,
    /// Created or destroyed while watched: what was foreseen is another's.
    changed: FxHashSet<u64>,
    /// More changed than `changed` can hold: nothing foreseen is valid.
    all_changed: bool,
    /// Objects that may be kernels, and their names.
    foreseen: Vec<(Build, ObjectClass)>,
    /// Names that more kernels may prove wrong; as of when.
    likely: BTreeMap<u64, (String, u64)>,
    /// Since when there are kernels without a name that no search has tried.
    since: Option<Instant>,
    /// How many had been launched at the last search.
    tried: usize,
    pub(super) searches: u32,
    searching: bool,
}

impl LateProgram {
    /// A kernel was created, with this name if that was read.
    pub(super) fn created(&mut self, kernel: u64, name: Option<&str>) {
        self.change(kernel);
        if self.known.len() < MAX_KERNELS {
            self.known
                .insert(kernel, name.unwrap_or_default().to_owned());
        }
    }

    /// A kernel is being destroyed.
    pub(super) fn destroyed(&mut self, kernel: u64) {
        self.change(kernel);
    }

    fn change(&mut self, kernel: u64) {
        self.known.remove(&kernel);
        self.unknown.remove(&kernel);
        self.named.remove(&kernel);
        self.likely.remove(&kernel);
        if self.changed.len() < MAX_KERNELS {
            self.changed.insert(kernel);
        } else {
            self.all_changed = true;
        }
    }

    /// Takes a launch of a kernel. Gives the kernel's name, if it is known and was not
    /// reported yet, and how kernels of this build of the driver are named.
    pub(super) fn launched(
        &mut self,
        kernel: u64,
        time_ns: u64,
    ) -> Option<(String, Option<(Build, NamePath)>)> {
        if self.has(kernel) || self.unknown.len() >= MAX_KERNELS {
            return None;
        }
        self.unknown.insert(kernel, time_ns);
        if let Some((name, build, path)) = self.foresight(kernel) {
            self.named.insert(kernel, name.clone());
            return Some((name, Some((build, path))));
        }
        self.since.get_or_insert_with(Instant::now);
        None
    }

    fn foresight(&self, kernel: u64) -> Option<(String, Build, NamePath)> {
        if self.all_changed || self.changed.contains(&kernel) {
            return None;
        }
        let mut classes = self.foreseen.iter();
        classes.find_map(|(build, class)| {
            let name = class.names.get(&kernel)?;
            Some((name.clone(), *build, class.path.clone()))
        })
    }

    /// Takes in what was foreseen.
    pub(super) fn foreseen(&mut self, build: Build, classes: Vec<ObjectClass>) {
        self.foreseen = classes.into_iter().map(|class| (build, class)).collect();
    }

    /// What was foreseen of kernels that were launched before `read_ns`.
    pub(super) fn foreseen_of_launched(&mut self, read_ns: u64) -> Vec<(u64, String, NamePath)> {
        let open = self.unknown.iter().filter(|(_, since)| **since <= read_ns);
        let open = open.filter(|(kernel, _)| !self.named.contains_key(kernel));
        let found: Vec<_> = open
            .filter_map(|(kernel, _)| {
                let (name, _, path) = self.foresight(*kernel)?;
                Some((*kernel, name, path))
            })
            .collect();
        for (kernel, name, _) in &found {
            self.named.insert(*kernel, name.clone());
        }
        found
    }

    /// Takes in names read at `read_ns`; gives those that are new.
    pub(super) fn found(
        &mut self,
        names: BTreeMap<u64, String>,
        read_ns: u64,
        sure: bool,
    ) -> Vec<(u64, String)> {
        self.searching = false;
        let mut new = Vec::new();
        for (kernel, name) in names {
            let same = self.unknown.get(&kernel).is_some_and(|s| *s <= read_ns);
            if !same || self.named.contains_key(&kernel) {
                continue;
            }
            if sure {
                self.named.insert(kernel, name.clone());
                new.push((kernel, name));
            } else {
                self.likely.insert(kernel, (name, read_ns));
            }
        }
        if self.unnamed() == 0 {
            self.since = None;
        }
        new
    }

    /// Gives the names that are likely.
    pub(super) fn believe(&mut self, pid: u32, now_ns: u64, found: &mut Vec<KernelNamed>) {
        for (kernel, (name, read_ns)) in std::mem::take(&mut self.likely) {
            let same = self.unknown.get(&kernel).is_some_and(|s| *s <= read_ns);
            if same && !self.named.contains_key(&kernel) {
                self.named.insert(kernel, name.clone());
                found.push(KernelNamed {
                    time_ns: now_ns.min(read_ns.max(1)),
                    pid,
                    kernel,
                    name,
                });
            }
        }
    }

    /// Begins a search; gives the kernels with a name and those without.
    /// `by_path`: the way is known.
    pub(super) fn search(&mut self, by_path: bool) -> (BTreeMap<u64, String>, BTreeSet<u64>) {
        self.searching = true;
        self.searches += u32::from(!by_path);
        // Until another kernel comes, the next one is not due soon.
        self.since = Some(Instant::now());
        self.tried = self.unknown.len();
        let known = self.known.iter().chain(&self.named);
        let known = known.filter(|(_, name)| !name.is_empty());
        let known = known
            .map(|(kernel, name)| (*kernel, name.clone()))
            .collect();
        let open = self.unknown.keys().filter(|k| !self.named.contains_key(k));
        (known, open.copied().collect())
    }

    /// A search could not be begun.
    pub(super) fn give_up(&mut self) {
        self.searching = false;
    }

    fn has(&self, kernel: u64) -> bool {
        self.known.contains_key(&kernel) || self.unknown.contains_key(&kernel)
    }

    /// Kernels launched without a name.
    pub(super) fn unnamed(&self) -> usize {
        self.unknown.len().saturating_sub(self.named.len())
    }

    /// Whether a search is on its way.
    pub(super) fn is_waited_for(&self) -> bool {
        self.searching
    }

    /// Whether a search could find anything and may be begun.
    pub(super) fn may_search(&self) -> bool {
        !self.searching && self.unnamed() > 0 && self.searches < MAX_SEARCHES
    }

    /// Whether a search should begin now. `by_path`: the way is known.
    pub(super) fn is_due(&self, now: Instant, by_path: bool) -> bool {
        let wait = match self.searches {
            _ if self.unknown.len() > self.tried => {
                if by_path {
                    Duration::ZERO
                } else {
                    GATHER
                }
            }
            n => AGAIN * (1 << n.min(10)),
        };
        self.since.is_some_and(|since| now >= since + wait)
    }
}
