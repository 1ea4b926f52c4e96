//! Bandwidth of copies and fills by kind, as the profiler gives each: `memory bandwidth
//! (GB/s)`. What goes on at once adds up.
//!
//! HTA keeps sums of floating-point numbers that should be 0 as values of their own; here
//! they are 0, which does not count.

use super::super::{Request, Table, TableEntry};
use super::describe::{Spread, quantile};
use aiprof_model::timeline::{Length, Time, Timeline};
use aiprof_trace::work::{RankWork, WorkClass, name_of};
use std::collections::BTreeMap;

/// `--table memory-bandwidth`.
pub(crate) const ENTRY: TableEntry = TableEntry {
    name: "memory-bandwidth",
    about: "bandwidth of copies and fills by rank and kind",
    title: "Bandwidth of copies and fills",
    columns: "rank kind count bytes time:us changes mean:gb_per_s:3 deviation:gb_per_s:3 \
              min:gb_per_s:3 p25:gb_per_s:3 median:gb_per_s:3 p75:gb_per_s:3 max:gb_per_s:3",
    make,
};

/// A length of 0 is one microsecond, as HTA has it: the bandwidth needs a time.
const LEAST: Length = Length(1_000_000);

/// Copies and fills of a kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct KindBandwidth {
    /// Copies and fills with a bandwidth.
    pub count: u64,
    /// Their bytes, where given.
    pub bytes: u64,
    /// Their time, microseconds.
    pub us: f64,
    /// Bandwidth after each change, without 0, in order of size: GB/s.
    values: Vec<f64>,
}

/// A kind, and by how much its bandwidth changes when.
type Changes = (KindBandwidth, Vec<(Time, f64)>);

/// The kind in a name: `Memcpy HtoD` of `Memcpy HtoD (Pageable -> Device)`.
fn kind_of(name: &str) -> &str {
    if name.starts_with("Memset") {
        return "Memset";
    }
    let kind = name.split(" (").next().unwrap_or(name);
    kind.trim()
}

/// Copies and fills of a rank by kind.
pub(crate) fn of_rank<'t>(
    timeline: &'t Timeline,
    rank: &RankWork,
) -> BTreeMap<&'t str, KindBandwidth> {
    let mut kinds: BTreeMap<&str, Changes> = BTreeMap::new();
    for work in rank.work.iter().filter(|w| w.class == WorkClass::Copy) {
        let Some(event) = timeline.events.get(work.event as usize) else {
            continue;
        };
        let transfer = timeline.transfer(event);
        let Some(transfer) = transfer.filter(|t| t.gigabytes_per_second.is_finite()) else {
            continue;
        };
        let kind = kinds.entry(kind_of(name_of(timeline, event))).or_default();
        kind.0.count += 1;
        kind.0.bytes += u64::try_from(transfer.bytes).unwrap_or(0);
        kind.0.us += work.us();
        let end = match work.end > work.start {
            true => work.end,
            false => work.start + LEAST,
        };
        let by = transfer.gigabytes_per_second;
        kind.1.extend([(work.start, by), (end, -by)]);
    }
    let kinds = kinds.into_iter();
    kinds
        .map(|(name, (kind, changes))| (name, finished(kind, changes)))
        .collect()
}

fn finished(mut kind: KindBandwidth, mut changes: Vec<(Time, f64)>) -> KindBandwidth {
    changes.sort_by_key(|(time, _)| *time);
    let (mut sum, mut open) = (0.0f64, 0u64);
    for (_, by) in changes {
        sum += by;
        open = match by > 0.0 {
            true => open + 1,
            false => open.saturating_sub(1),
        };
        if open == 0 {
            sum = 0.0;
        }
        if sum > 0.0 {
            kind.values.push(sum);
        }
    }
    kind.values.sort_by(f64::total_cmp);
    kind
}

fn make(request: &Request<'_>) -> Vec<Table> {
    let timeline = request.timeline;
    let mut rows = Vec::new();
    for rank in &request.index().ranks {
        for (name, kind) in of_rank(timeline, rank) {
            let mut spread = Spread::default();
            kind.values.iter().for_each(|value| spread.add(*value));
            let quantile = |part| quantile(&kind.values, part);
            rows.push(vec![
                rank.rank.into(),
                name.into(),
                kind.count.into(),
                kind.bytes.into(),
                kind.us.into(),
                spread.count.into(),
                spread.mean().into(),
                spread.deviation().into(),
                spread.min.into(),
                quantile(0.25).into(),
                quantile(0.5).into(),
                quantile(0.75).into(),
                spread.max.into(),
            ]);
        }
    }
    vec![ENTRY.noted(
        rows,
        vec!["the columns mean to max describe the bandwidth after each change".to_owned()],
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_the_begin_of_names() {
        for (name, kind) in [
            ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD"),
            ("Memset (Device)", "Memset"),
            ("CopyHostToDevice", "CopyHostToDevice"),
        ] {
            assert_eq!(kind_of(name), kind);
        }
    }

    #[test]
    fn what_goes_on_at_once_adds_up() {
        let change = |us, by| (Time::from_micros(us), by);
        let changes = vec![
            change(0.0, 0.1),
            change(1.0, 0.2),
            change(2.0, -0.1),
            change(3.0, -0.2),
        ];
        let kind = finished(KindBandwidth::default(), changes);
        assert_eq!(kind.values.len(), 3);
        assert!((kind.values[2] - 0.3).abs() < 1e-9);
    }
}
