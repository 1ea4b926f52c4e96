//! How two traces differ: kernels, operators, paths and findings, a table each.

use super::findings;
use super::spread::{self, CallLengths};
use super::work::{ByName, NamedCalls, PATH, STEPS, TraceWork};
use super::{Difference, MISSED, hold};
use crate::{Cell, Column, Table, columns};
use aiprof_trace::analyze::report::Finding;

/// One of the traces that are compared.
#[derive(Clone, Copy, Debug)]
pub struct ComparedTrace<'a> {
    /// Its calls.
    pub work: &'a TraceWork,
    /// What was found in it.
    pub findings: &'a [Finding],
}

/// The tables, each with its verdict as the title: whether anything changed.
pub fn compare(before: ComparedTrace<'_>, after: ComparedTrace<'_>) -> Vec<Table> {
    let (old, new) = (before.work, after.work);
    let steps = match old.steps >= STEPS && new.steps >= STEPS {
        true => Some((old.steps, new.steps)),
        false => None,
    };
    let parts = [
        ("kernels", "kernel", &old.kernels, &new.kernels),
        ("operators", "operator", &old.operators, &new.operators),
        ("paths", "path", &old.paths, &new.paths),
    ];
    let mut tables: Vec<Table> = parts
        .into_iter()
        .filter(|(_, _, old, new)| !old.is_empty() || !new.is_empty())
        .map(|(name, noun, old, new)| Calls { name, noun, steps }.table(old, new))
        .collect();
    tables.push(findings::table(before.findings, after.findings));
    tables
}

/// The verdict on the calls of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CallVerdict {
    OnlyAfter,
    OnlyBefore,
    Slower,
    Faster,
    NoInterval,
    WithinNoise,
}

impl CallVerdict {
    fn word(self) -> &'static str {
        match self {
            Self::OnlyAfter => "only after",
            Self::OnlyBefore => "only before",
            Self::Slower => "slower",
            Self::Faster => "faster",
            Self::NoInterval => "no interval",
            Self::WithinNoise => "within noise",
        }
    }

    fn is_change(self) -> bool {
        !matches!(self, Self::NoInterval | Self::WithinNoise)
    }
}

/// Calls of a name in both.
struct CallsChange<'a> {
    name: &'a str,
    before: CallLengths,
    after: CallLengths,
    /// With what is inside, microseconds.
    totals_us: (f64, f64),
    mean: Difference,
    step: Option<Difference>,
    verdict: CallVerdict,
}

impl CallsChange<'_> {
    fn weight(&self) -> f64 {
        match self.step {
            Some(step) => step.change().abs(),
            // What the change of a call makes of all of them.
            None if self.mean.change() != 0.0 && self.before.calls.min(self.after.calls) > 0 => {
                self.mean.change().abs() * self.after.calls as f64
            }
            None => (self.after.total_us - self.before.total_us).abs(),
        }
    }
}

/// How calls are compared.
#[derive(Clone, Copy)]
struct Calls {
    name: &'static str,
    noun: &'static str,
    /// Steps of both, if they are compared by steps too.
    steps: Option<(usize, usize)>,
}

impl Calls {
    fn table(self, before: &ByName, after: &ByName) -> Table {
        let mut rows = self.changes(before, after);
        let comparisons = judge(&mut rows);
        rows.sort_by(|a, b| {
            let (a_first, b_first) = (a.verdict.is_change(), b.verdict.is_change());
            let larger = b.weight().total_cmp(&a.weight());
            b_first
                .cmp(&a_first)
                .then(larger)
                .then_with(|| a.name.cmp(b.name))
        });
        Table {
            name: self.name,
            title: self.title(&rows),
            columns: self.columns(),
            rows: rows.iter().map(|row| self.row(row)).collect(),
            notes: self.notes(comparisons),
            ..Table::default()
        }
    }

    fn changes<'a>(self, before: &'a ByName, after: &'a ByName) -> Vec<CallsChange<'a>> {
        let mut names: Vec<&str> = before
            .keys()
            .chain(after.keys())
            .map(String::as_str)
            .collect();
        names.sort_unstable();
        names.dedup();
        let none = NamedCalls::default();
        let change = |name: &'a str| {
            let (old, new) = (before.get(name), after.get(name));
            let (old, new) = (old.unwrap_or(&none), new.unwrap_or(&none));
            let (old_us, new_us) = (old.lengths(), new.lengths());
            let (one, two) = (CallLengths::of(&old_us), CallLengths::of(&new_us));
            let mut mean = spread::means(&one, &two);
            // Both must find that it is more than chance.
            if let Some(by_ranks) = spread::rank_chance(&old_us, &new_us) {
                mean.chance = mean.chance.map(|chance| chance.max(by_ranks));
            }
            let step = self.steps.map(|(from, to)| {
                let (from, to) = (old.by_step(from), new.by_step(to));
                spread::means(&CallLengths::of(&from), &CallLengths::of(&to))
            });
            CallsChange {
                name,
                before: one,
                after: two,
                totals_us: (old.total_us, new.total_us),
                mean,
                step,
                verdict: CallVerdict::NoInterval,
            }
        };
        names.into_iter().map(change).collect()
    }

    fn title(self, rows: &[CallsChange<'_>]) -> String {
        let (all, noun) = (rows.len(), self.noun);
        let s = if all == 1 { "" } else { "s" };
        let changed = rows.iter().filter(|row| row.verdict.is_change()).count();
        let other = rows
            .iter()
            .filter(|row| row.before.calls != row.after.calls)
            .count();
        let unknown = rows
            .iter()
            .filter(|row| row.verdict == CallVerdict::NoInterval && row.mean.change() != 0.0);
        let mut title = match changed {
            0 => format!(
                "{}: nothing changed ({all} {noun}{s} within noise)",
                self.name
            ),
            changed => format!("{}: {changed} of {all} {noun}{s} changed", self.name),
        };
        let unknown = unknown.count();
        if unknown > 0 {
            title.push_str(&format!(", {unknown} with unknown significance"));
        }
        if other > 0 {
            title.push_str(&format!("; {other} with different numbers of calls"));
        }
        title
    }

    fn columns(self) -> Vec<Column> {
        let sums = match self.name {
            "operators" => "self_before:us self_after:us total_before:us total_after:us",
            _ => "total_before:us total_after:us",
        };
        let mut all = columns("calls_before calls_after");
        all.extend(columns(sums));
        all.extend(columns(
            "mean_before:us mean_after:us mean_change:us mean_error:us",
        ));
        if self.steps.is_some() {
            all.extend(columns("step_change:us step_error:us"));
        }
        all.push(Column::of("verdict"));
        if self.name == "paths" {
            all.push(Column::of("kernel"));
        }
        all.push(Column::of(self.noun));
        all
    }

    fn row(self, one: &CallsChange<'_>) -> Vec<Cell> {
        let mut cells: Vec<Cell> = vec![
            one.before.calls.into(),
            one.after.calls.into(),
            one.before.total_us.into(),
            one.after.total_us.into(),
        ];
        if self.name == "operators" {
            cells.extend([one.totals_us.0.into(), one.totals_us.1.into()]);
        }
        let has = |of: &CallLengths| (of.calls > 0).then(|| of.mean_us());
        let both = has(&one.before).and(has(&one.after));
        cells.extend([
            has(&one.before).into(),
            has(&one.after).into(),
            both.map(|_| one.mean.change()).into(),
            one.mean.half.into(),
        ]);
        if let Some(step) = one.step {
            cells.extend([step.change().into(), step.half.into()]);
        }
        cells.push(one.verdict.word().into());
        match one.name.split_once(PATH) {
            Some((kernel, path)) => cells.extend([kernel.into(), path.into()]),
            None => cells.push(one.name.into()),
        }
        cells
    }

    fn notes(self, comparisons: usize) -> Vec<String> {
        let mut notes = vec![
            "errors are half of the change's 95 % interval (Welch), computed from calls, or from \
             batches of calls if these vary more"
                .to_owned(),
        ];
        if self.steps.is_some() {
            notes.push("step: mean over all ProfilerSteps of the sum in each step".to_owned());
        }
        notes.push(format!(
            "changed: the chance of even one false change in all {comparisons} comparisons is \
             below 5 % (Welch, also ranks with enough calls; Holm, weighted by time). Variation \
             between runs of the same program is not included"
        ));
        notes
    }
}

/// Decides for each name what changed. Returns how many were compared.
fn judge(rows: &mut [CallsChange<'_>]) -> usize {
    let chances: Vec<(Option<f64>, f64)> = rows
        .iter()
        .flat_map(|row| {
            let weight = row.before.total_us + row.after.total_us;
            let step = row.step.and_then(|step| step.chance);
            [(row.mean.chance, weight), (step, weight)]
        })
        .collect();
    let held = hold(&chances, MISSED);
    for (row, held) in rows.iter_mut().zip(held.chunks(2)) {
        let held = |at: usize| held.get(at).copied().unwrap_or(false);
        let grew = match held(0) {
            true => row.mean.change(),
            false => row.step.map_or(0.0, |step| step.change()),
        };
        row.verdict = match (row.before.calls, row.after.calls) {
            (0, _) => CallVerdict::OnlyAfter,
            (_, 0) => CallVerdict::OnlyBefore,
            _ if (held(0) || held(1)) && grew > 0.0 => CallVerdict::Slower,
            _ if held(0) || held(1) => CallVerdict::Faster,
            // Not one call differs from another.
            _ if row.mean.chance.is_none() && row.mean.change() != 0.0 => CallVerdict::NoInterval,
            _ => CallVerdict::WithinNoise,
        };
    }
    let compared = chances.iter();
    compared
        .filter(|one| one.0.is_some() && one.1 > 0.0)
        .count()
}

#[cfg(test)]
mod tests;
