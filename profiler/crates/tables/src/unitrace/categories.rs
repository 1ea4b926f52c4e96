//! Time of devices by categories of what they executed: by the user's rules, else by what
//! commands do.

use super::command::{CommandKind, commands, is_device_category};
use super::device::CommandRow;
use super::{AT_MOST, EXACT, Extent, Scope};
use crate::categories::{ALL_DEVICES, DEFAULT, WALLCLOCK};
use crate::{Cell, Request, Table, TableEntry};
use aiprof_model::timeline::{Dialect, Event, Id, Kinds, NONE, Ph, Timeline};
use aiprof_trace::work::{WorkClass, name_of};
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// `--table categories`.
pub(crate) const ENTRY: TableEntry = TableEntry {
    name: NAME,
    about: "time of devices by rank and category of kernels (--categories FILE)",
    title: "Categories of device operations",
    columns: "rank category names calls time:ns share:percent quality",
    make: |request| vec![table(request)],
};

/// `--table category-summary`.
pub(crate) const SUMMARY_ENTRY: TableEntry = TableEntry {
    name: SUMMARY,
    about: "time of categories over all ranks, like unitrace's summary.py (--aggregator)",
    title: "Categories over ranks",
    columns: "category calls::1 time:ns:1",
    make: |request| vec![summary(request)],
};

/// Name of the table.
pub const NAME: &str = "categories";
/// Name of the table over all ranks.
pub const SUMMARY: &str = "category-summary";

/// What ran under a name, on the devices of a rank.
struct Named {
    row: CommandRow,
    is_collective: bool,
}

/// What the devices of a rank did.
#[derive(Default)]
struct RankNames {
    by_name: FxHashMap<String, Named>,
    extent: Extent,
}

impl RankNames {
    /// The row of a name.
    fn row(
        &mut self,
        name: &str,
        kind: CommandKind,
        is_collective: bool,
    ) -> Option<&mut CommandRow> {
        if !self.by_name.contains_key(name) {
            let row = CommandRow::of(String::new(), name.to_owned(), kind);
            let named = Named { row, is_collective };
            self.by_name.insert(name.to_owned(), named);
        }
        self.by_name.get_mut(name).map(|named| &mut named.row)
    }
}

/// Ranks by file, where files are ranks, and number.
type ByRank = BTreeMap<(u32, u32), RankNames>;

/// Ranks of processes, as unitrace writes them: `RANK 3 DEVICE...`. Also of several files in
/// one, as its mergetrace.py makes.
fn named_ranks(timeline: &Timeline) -> FxHashMap<Id, u32> {
    let names = timeline
        .events
        .iter()
        .filter(|event| event.ph == Ph::Metadata && timeline.name(event.name) == "process_name");
    let ranks = names.filter_map(|event| {
        let name = timeline.arg(event, "name")?.trim_matches('"');
        let (rank, _) = name.strip_prefix("RANK ")?.split_once(' ')?;
        Some((timeline.pid(event), rank.parse().ok()?))
    });
    ranks.collect()
}

fn key_of(timeline: &Timeline, named: &FxHashMap<Id, u32>, event: &Event) -> (u32, u32) {
    let track = timeline.track(event);
    match (named.get(&timeline.pid(event)), timeline.dialect(event)) {
        (Some(rank), _) => (NONE, *rank),
        // Files of the AIU's runtime may share a rank.
        (None, Dialect::Flex) if track.rank != NONE => (NONE, track.rank),
        (None, _) => (track.job, track.rank),
    }
}

fn ranks(request: &Request<'_>) -> ByRank {
    let timeline = request.timeline;
    let (kinds, scope) = (Kinds::new(timeline), Scope::default());
    let named = named_ranks(timeline);
    let mut found = ByRank::new();
    for (event, command) in commands(timeline, &scope) {
        let rank = found.entry(key_of(timeline, &named, event)).or_default();
        let is_collective = kinds.is_collective(timeline, event);
        if let Some(row) = rank.row(&command.name, command.kind, is_collective) {
            row.add(&command);
        }
    }
    // Work that unitrace has no word for: an AIU's.
    for work in request.index().ranks.iter().flat_map(|rank| &rank.work) {
        let Some(event) = timeline.events.get(work.event as usize) else {
            continue;
        };
        if is_device_category(timeline.name(event.cat)) {
            continue;
        }
        let kind = match work.class {
            WorkClass::Copy => CommandKind::Memory,
            WorkClass::Compute | WorkClass::Communication => CommandKind::Kernel,
        };
        let rank = found.entry(key_of(timeline, &named, event)).or_default();
        let is_collective = work.class == WorkClass::Communication;
        if let Some(row) = rank.row(name_of(timeline, event), kind, is_collective) {
            row.calls = row.calls.saturating_add(1);
            row.add_exact(u64::try_from((work.end - work.start).nanos()).unwrap_or(0));
        }
    }
    for event in timeline.events.iter().filter(|event| event.is_slice()) {
        if let Some(rank) = found.get_mut(&key_of(timeline, &named, event)) {
            rank.extent.add(event);
        }
    }
    found
}

/// The category of what ran under a name.
fn category<'n>(request: &'n Request<'_>, named: &'n Named) -> &'n str {
    match &request.options.categories {
        Some(rules) => rules.of(&named.row.name).unwrap_or(DEFAULT),
        None if named.is_collective => "communication",
        None => match named.row.kind {
            CommandKind::Kernel => "kernel",
            CommandKind::Memory => "memory",
            CommandKind::Barrier => "barrier",
        },
    }
}

/// Sums of a category.
#[derive(Default)]
struct CategorySum {
    names: u64,
    calls: u64,
    ns: u64,
    is_bound: bool,
}

/// The table of a timeline.
fn table(request: &Request<'_>) -> Table {
    let (mut rows, mut ignored) = (Vec::new(), 0_u64);
    for ((_, rank), it) in &ranks(request) {
        let mut sums: BTreeMap<&str, CategorySum> = BTreeMap::new();
        for named in it.by_name.values() {
            let category = category(request, named);
            if category.is_empty() {
                ignored += 1;
                continue;
            }
            let sum = sums.entry(category).or_default();
            sum.names += 1;
            sum.calls = sum.calls.saturating_add(named.row.calls);
            sum.ns = sum.ns.saturating_add(named.row.execute_ns());
            sum.is_bound |= !named.row.is_exact();
        }
        let all = sums.values().map(|sum| sum.ns);
        let all = all.fold(0, u64::saturating_add);
        let has_bounds = sums.values().any(|sum| sum.is_bound);
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|(name, sum)| (Reverse(sum.ns), *name));
        for (name, sum) in sums {
            let share = (!has_bounds && all > 0).then(|| sum.ns as f64 / all as f64 * 100.0);
            let quality = if sum.is_bound { AT_MOST } else { EXACT };
            rows.push(vec![
                Cell::from(if *rank == NONE { 0 } else { *rank }),
                name.into(),
                sum.names.into(),
                sum.calls.into(),
                sum.ns.into(),
                share.into(),
                quality.into(),
            ]);
        }
    }
    ENTRY.noted(rows, notes(request, ignored))
}

fn notes(request: &Request<'_>, ignored: u64) -> Vec<String> {
    let mut notes = Vec::new();
    match &request.options.categories {
        None => notes.push("use --categories FILE to define your own categories".to_owned()),
        Some(rules) if rules.lost > 0 => {
            notes.push(format!(
                "{} rules were ignored: empty, or too many rules",
                rules.lost
            ));
        }
        Some(_) => {}
    }
    if ignored > 0 {
        notes.push(format!(
            "{ignored} names are left out, because their category has no name"
        ));
    }
    notes
}

/// Times and calls of a name, of each rank that has it.
#[derive(Default)]
struct OverRanks {
    ns: Vec<u64>,
    calls: Vec<u64>,
}

/// The table over all ranks.
fn summary(request: &Request<'_>) -> Table {
    let ranks = ranks(request);
    let mut names: BTreeMap<(Cow<'_, str>, &str), OverRanks> = BTreeMap::new();
    for rank in ranks.values() {
        let mut add = |category, name, ns, calls| {
            let of = names.entry((category, name)).or_default();
            of.ns.push(ns);
            of.calls.push(calls);
        };
        let mut all = 0_u64;
        for named in rank.by_name.values() {
            let category = category(request, named);
            let ns = named.row.execute_ns();
            all = all.saturating_add(ns);
            add(
                Cow::Borrowed(category),
                &*named.row.name,
                ns,
                named.row.calls,
            );
        }
        // Only where a rule is of them: else all time would be counted twice more.
        let rules = request.options.categories.as_ref();
        for (name, ns) in [(WALLCLOCK, rank.extent.ns()), (ALL_DEVICES, all)] {
            if let Some(category) = rules.and_then(|rules| rules.of(name)) {
                add(category.into(), name, ns, 1);
            }
        }
    }
    let aggregator = request.options.aggregator;
    let mut sums: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for ((category, _), of) in &names {
        if !category.is_empty() {
            let sum = sums.entry(category).or_default();
            sum.0 += aggregator.of(&of.ns);
            sum.1 += aggregator.of(&of.calls);
        }
    }
    let rows = sums.iter().map(|(category, (ns, calls))| {
        vec![
            Cell::from(*category),
            Cell::Number(*calls),
            Cell::Number(*ns),
        ]
    });
    Table {
        title: format!("Categories over {} ranks", ranks.len()),
        ..SUMMARY_ENTRY.noted(rows, notes(request, 0))
    }
}
