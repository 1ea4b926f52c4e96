//! Utilization of the processing tensors: ideal cycles of the compiler against the
//! time that kernels took.
//!
//! Two passes over the kernel calls: `Fingerprints::add` all of them, then
//! `Fingerprints::matched` finds the table of each job, then [`Utilization::call`]
//! all of them again, in the order of their start.

mod autopilot;
pub mod compiler_log;
pub mod events;
mod fingerprint;
pub mod ideal;
mod parts;
pub mod python;
pub mod table;
#[cfg(test)]
mod tests;

pub(crate) use fingerprint::Fingerprints;

use super::messages::Messages;
use super::token_times::Step;
use autopilot::Spans;
use ideal::{IdealTable, IdealTables, KERNEL_SUFFIX, OTHER, Phase, TOTAL};
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Category that tables always have, also where no kernel is of it.
const ALWAYS: &str = "StcdpHbm";
/// What the counter shows where a kernel is faster than ideal.
const IMPOSSIBLE_PERCENT: f64 = 101.0;
/// Calls faster than ideal that are reported one by one.
const MAX_TOLD: u64 = 10;

/// A run of a kernel on a device.
#[derive(Clone, Copy, Debug)]
pub struct KernelCall<'a> {
    /// The device's rank.
    pub rank: i64,
    /// Identifies the job that it is part of.
    pub job: u64,
    /// The number by which messages name the job.
    pub label: u64,
    /// The launch that it is part of, where a trace has it.
    pub correlation: Option<i64>,
    /// The pass through the model that it is part of, where a job holds several; 0: the
    /// job is one.
    pub part: u32,
    /// Its name, with or without `KERNEL_SUFFIX`.
    pub name: &'a str,
    /// What stands for `[N]` in its name (`args.fn_idx`).
    pub fn_idx: Option<&'a str>,
    /// Start, µs.
    pub start_us: f64,
    /// Duration, µs.
    pub dur_us: f64,
}

/// What makes calls a job, which one table is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct JobKey {
    rank: i64,
    job: u64,
    correlation: Option<i64>,
    part: u32,
}

impl KernelCall<'_> {
    fn key(&self) -> JobKey {
        JobKey {
            rank: self.rank,
            job: self.job,
            correlation: self.correlation,
            part: self.part,
        }
    }

    /// The name as tables have it.
    fn table_name(&self) -> Cow<'_, str> {
        let name = match self.fn_idx {
            Some(number) if self.name.contains("[N]") => {
                Cow::Owned(self.name.replacen("[N]", number, 1))
            }
            _ => Cow::Borrowed(self.name),
        };
        match name {
            Cow::Borrowed(name) => Cow::Borrowed(without_suffix(name)),
            Cow::Owned(name) => Cow::Owned(without_suffix(&name).to_owned()),
        }
    }
}

fn without_suffix(name: &str) -> &str {
    name.strip_suffix(KERNEL_SUFFIX).unwrap_or(name)
}

/// Compiler information: one log for all ranks, or one for each.
#[derive(Clone, Debug, Default)]
pub struct CompilerInfo {
    /// In the order of the ranks.
    pub logs: Vec<IdealTables>,
}

impl CompilerInfo {
    /// The least and most rows of all tables; `None`: there are no tables with rows.
    fn rows(&self) -> Option<(usize, usize)> {
        let tables = self.logs.iter().flat_map(|log| log.tables());
        let rows = || {
            tables
                .clone()
                .map(IdealTable::rows)
                .filter(|rows| *rows > 0)
        };
        Some((rows().min()?, rows().max()?))
    }

    /// The tables that are for a rank.
    fn of_rank(&self, rank: i64) -> Option<&IdealTables> {
        match self.logs.as_slice() {
            [one] => Some(one),
            logs => logs.get(usize::try_from(rank).ok()?),
        }
    }
}

/// What is known of one call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallUtilization<'t> {
    /// Time that it would take without stalls, µs; 0 where none is known.
    pub ideal_us: f64,
    /// Ideal by actual time, a fraction; above 1 where the two cannot belong together.
    pub utilization: f64,
    /// Its category.
    pub category: &'t str,
}

/// A value of the counter `PT Active`, which holds from its time on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CounterPoint {
    /// The rank that it is of.
    pub rank: i64,
    /// µs.
    pub ts_us: f64,
    /// Utilization in percent, at most 101.
    pub percent: f64,
}

/// A row of the table of categories.
#[derive(Clone, Debug, PartialEq)]
pub struct CategoryRow {
    /// Rank.
    pub rank: i64,
    /// Word of the table's phase.
    pub phase: &'static str,
    /// Category, or `TOTAL`.
    pub category: String,
    /// Time that kernels of it took, µs.
    pub time_us: f64,
    /// Their calls.
    pub calls: u64,
    /// Their ideal time, µs.
    pub ideal_us: f64,
    /// Their ideal cycles.
    pub ideal_cycles: u64,
    /// All kernels of the rank and table, µs.
    pub total_us: f64,
    /// Ideal time of all kernels of the rank and table, µs.
    pub total_ideal_us: f64,
}

/// Time with and without utilization on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankSum {
    /// Mean utilization of the calls with any, in percent, weighted by their time.
    pub mean_percent: f64,
    /// Time of the calls with utilization (matrix multiplications), µs.
    pub matmul_us: f64,
    /// Time of the others, µs.
    pub other_us: f64,
}

impl RankSum {
    fn add(&mut self, percent: f64, dur_us: f64) {
        if percent > 0.0 {
            self.matmul_us += dur_us;
            // A time of nothing in all has no weight.
            if self.matmul_us != 0.0 {
                self.mean_percent += (percent - self.mean_percent) * (dur_us / self.matmul_us);
            }
        } else {
            self.other_us += dur_us;
        }
    }
}

/// Everything that is found.
#[derive(Clone, Debug, Default)]
pub struct UtilizationResults {
    /// The tables of categories: for each log, its rows; sorted.
    pub categories: Vec<Vec<CategoryRow>>,
    /// Sums by rank; none where the compiler chose for itself.
    pub sums: BTreeMap<i64, RankSum>,
    /// Counter values of jobs where the compiler chose for itself. Those of single
    /// calls are given with the calls.
    pub counters: Vec<CounterPoint>,
    /// Steps of the model, by the phases of the tables that jobs match; by row group and
    /// time. None where the tables name no phase.
    pub steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    time_us: f64,
    ideal_us: f64,
    cycles: u64,
    calls: u64,
}

impl Sums {
    fn add(&mut self, dur_us: f64, ideal_us: f64, cycles: u64) {
        self.time_us += dur_us;
        self.ideal_us += ideal_us;
        self.cycles = self.cycles.saturating_add(cycles);
        self.calls += 1;
    }
}

/// Sums of one rank and table; by number of category, and of all.
#[derive(Clone, Debug, Default)]
struct Accumulated {
    categories: Vec<Sums>,
    total: Sums,
}

/// The second pass.
pub struct Utilization<'t> {
    info: &'t CompilerInfo,
    /// µs of one core cycle.
    us_per_cycle: f64,
    /// Number of the job's table in its rank's log.
    tables: FxHashMap<JobKey, usize>,
    /// By rank and table, in the order of their first call.
    accumulated: Vec<((i64, usize), Accumulated)>,
    places: FxHashMap<(i64, usize), usize>,
    sums: BTreeMap<i64, RankSum>,
    spans: Spans,
    /// What calls' times count from, µs; for messages.
    origin_us: i64,
    impossible: u64,
    unknown_kernels: u64,
    without_table: u64,
}

impl<'t> Utilization<'t> {
    fn new(info: &'t CompilerInfo, core_mhz: f64, tables: FxHashMap<JobKey, usize>) -> Self {
        Self {
            info,
            us_per_cycle: 1.0 / core_mhz,
            tables,
            accumulated: Vec::new(),
            places: FxHashMap::default(),
            sums: BTreeMap::new(),
            spans: Spans::default(),
            origin_us: 0,
            impossible: 0,
            unknown_kernels: 0,
            without_table: 0,
        }
    }

    /// Sets what the times of calls count from, µs, so that messages have them whole.
    fn count_from(&mut self, origin_us: i64) {
        self.origin_us = origin_us;
    }

    /// The utilization of the next call.
    pub fn call(&mut self, call: &KernelCall<'_>, messages: &mut Messages) -> CallUtilization<'t> {
        let log = self.info.of_rank(call.rank);
        let number = self.tables.get(&call.key()).copied();
        let table = number.zip(log).and_then(|(number, log)| {
            let table = log.tables().get(number)?;
            Some((number, table, log.autopilot))
        });
        let Some((number, table, autopilot)) = table else {
            self.without_table += 1;
            self.sums
                .entry(call.rank)
                .or_default()
                .add(0.0, call.dur_us);
            return CallUtilization {
                ideal_us: 0.0,
                utilization: 0.0,
                category: OTHER,
            };
        };
        if autopilot {
            return self.autopilot(call, number, table);
        }
        let kernel = table.kernel(&call.table_name());
        self.unknown_kernels += u64::from(kernel.is_none());
        // The first category is that of unknown kernels.
        let (cycles, category) = kernel.map_or((0, 0), |k| (k.cycles, k.category));
        let found = self.accumulate(call, (number, table), Some(category), cycles);
        let percent = self.percent(call, found.utilization, messages);
        self.sums
            .entry(call.rank)
            .or_default()
            .add(percent, call.dur_us);
        found
    }

    /// The job that a call is part of, by a number that no other has, the phase of its
    /// table, and that table's rows.
    fn phase(&self, call: &KernelCall<'_>) -> Option<(JobKey, Phase, usize)> {
        let number = self.tables.get(&call.key())?;
        let table = self.info.of_rank(call.rank)?.tables().get(*number)?;
        Some((call.key(), table.phase, table.rows()))
    }

    /// The counter's values for one call: its utilization, and nothing at its end.
    /// None where the compiler chose for itself; see [`UtilizationResults::counters`].
    pub fn counter(
        &self,
        call: &KernelCall<'_>,
        found: &CallUtilization<'_>,
    ) -> Option<[CounterPoint; 2]> {
        let is_single = !self.info.of_rank(call.rank)?.autopilot;
        if !is_single || found.utilization <= 0.0 {
            return None;
        }
        let point = |ts_us, percent| CounterPoint {
            rank: call.rank,
            ts_us,
            percent,
        };
        let percent = shown_percent(found.utilization);
        let end = call.start_us + call.dur_us;
        Some([point(call.start_us, percent), point(end, 0.0)])
    }

    fn autopilot(
        &mut self,
        call: &KernelCall<'_>,
        number: usize,
        table: &'t IdealTable,
    ) -> CallUtilization<'t> {
        let cycles = table.total_cycles();
        self.spans.add(call, cycles as f64 * self.us_per_cycle);
        // For a single call, acelyzer shows how the table's own sum compares; a sum of
        // ours would only look like its utilization.
        self.unknown_kernels += u64::from(!table.has_total());
        let cycles = if table.has_total() { cycles } else { 0 };
        self.accumulate(call, (number, table), None, cycles)
    }

    /// Adds a call to its category (`None`: to the total only).
    fn accumulate(
        &mut self,
        call: &KernelCall<'_>,
        (number, table): (usize, &'t IdealTable),
        category: Option<usize>,
        cycles: u64,
    ) -> CallUtilization<'t> {
        let ideal_us = cycles as f64 * self.us_per_cycle;
        // A kernel that is faster than ideal belongs to another table.
        let (counted, counted_cycles) = match ideal_us > call.dur_us {
            true => (0.0, 0),
            false => (ideal_us, cycles),
        };
        let place = *self.places.entry((call.rank, number)).or_insert_with(|| {
            let mut new = Accumulated::default();
            let count = table.categories().len();
            new.categories.resize(count, Sums::default());
            self.accumulated.push(((call.rank, number), new));
            self.accumulated.len() - 1
        });
        if let Some((_, sums)) = self.accumulated.get_mut(place) {
            sums.total.add(call.dur_us, counted, counted_cycles);
            if let Some(one) = category.and_then(|c| sums.categories.get_mut(c)) {
                one.add(call.dur_us, counted, counted_cycles);
            }
        }
        let name = match category {
            Some(category) => table
                .categories()
                .get(category)
                .map_or(OTHER, String::as_str),
            None => TOTAL,
        };
        CallUtilization {
            ideal_us,
            utilization: utilization(ideal_us, call.dur_us),
            category: name,
        }
    }

    fn percent(&mut self, call: &KernelCall<'_>, utilization: f64, messages: &mut Messages) -> f64 {
        if utilization * 100.0 > 100.0 {
            self.impossible += 1;
            if self.impossible <= MAX_TOLD {
                messages.warn(
                    "UTL",
                    format_args!(
                        "UTL: Event with +100% utilization. This could indicate a problem with \
                         table fingerprinting:  (pid, utilization, event) {}, {}, {} at {:.3} us",
                        call.rank,
                        utilization * 100.0,
                        call.name,
                        self.origin_us as f64 + call.start_us
                    ),
                );
            }
        }
        shown_percent(utilization)
    }

    /// The results of all calls, and acelyzer's lines about them.
    pub fn finish(mut self, messages: &mut Messages) -> UtilizationResults {
        let (counters, impossible) = std::mem::take(&mut self.spans).finish(messages);
        self.impossible += impossible;
        self.say(messages);
        UtilizationResults {
            categories: self.categories(),
            sums: self.sums,
            counters,
            steps: Vec::new(),
        }
    }

    /// For each log, the rows of its ranks and tables, sorted.
    fn categories(&self) -> Vec<Vec<CategoryRow>> {
        let mut categories = vec![Vec::new(); self.info.logs.len()];
        for ((rank, number), sums) in &self.accumulated {
            let log = match self.info.logs.len() {
                0 | 1 => 0,
                _ => usize::try_from(*rank).unwrap_or(usize::MAX),
            };
            let table = self
                .info
                .of_rank(*rank)
                .and_then(|l| l.tables().get(*number));
            if let (Some(rows), Some(table)) = (categories.get_mut(log), table) {
                rows.extend(category_rows(*rank, table, sums));
            }
        }
        for rows in &mut categories {
            rows.sort_by(|a, b| {
                let by_place = (a.rank, a.phase).cmp(&(b.rank, b.phase));
                by_place.then(a.time_us.total_cmp(&b.time_us))
            });
        }
        categories
    }

    fn say(&self, messages: &mut Messages) {
        for log in &self.info.logs {
            log.closing(messages);
        }
        let (impossible, unknown) = (self.impossible, self.unknown_kernels);
        if impossible > 0 {
            messages.warn(
                "UTL",
                format_args!("UTL: Encountered {impossible} Events with >100% utilization"),
            );
        }
        if unknown > 0 {
            messages.warn(
                "UTL",
                format_args!(
                    "UTL: Found {unknown} Events without a matching kernel category and \
                     accounted for 'other'"
                ),
            );
        }
        if self.without_table > 0 {
            let count = self.without_table;
            messages.warn(
                "UTL",
                format_args!(
                    "UTL: No matching Ideal Cycles table found for {count} Events. This might \
                     indicate a wrong frequency setting."
                ),
            );
        }
    }
}

/// Ideal by actual time; 0 where a call took none.
fn utilization(ideal_us: f64, dur_us: f64) -> f64 {
    match dur_us.abs() > 1e-9 {
        true => (ideal_us / dur_us).abs(),
        // Also a duration that is not a number.
        false => 0.0,
    }
}

fn shown_percent(utilization: f64) -> f64 {
    let percent = utilization * 100.0;
    if percent > 100.0 {
        IMPOSSIBLE_PERCENT
    } else {
        percent
    }
}

/// The rows of one rank and table, in acelyzer's order before it sorts them.
fn category_rows(rank: i64, table: &IdealTable, sums: &Accumulated) -> Vec<CategoryRow> {
    let row = |category: &str, sum: &Sums| CategoryRow {
        rank,
        phase: table.phase.word(),
        category: category.to_owned(),
        time_us: sum.time_us,
        calls: sum.calls,
        ideal_us: sum.ideal_us,
        ideal_cycles: sum.cycles,
        total_us: sums.total.time_us,
        total_ideal_us: sums.total.ideal_us,
    };
    let named = || table.categories().iter().zip(&sums.categories);
    let always = named().find(|(name, _)| *name == ALWAYS);
    let always = always.map_or(Sums::default(), |(_, sum)| *sum);
    let mut rows = vec![row(TOTAL, &sums.total), row(ALWAYS, &always)];
    let others = named().filter(|(name, _)| *name != ALWAYS);
    rows.extend(others.map(|(name, sum)| row(name, sum)));
    rows
}
