//! Memory over time: how much was allocated, when it was most, and who held it then
//! ([`aiprof_trace::memory`]).

use super::{Cell, Request, Table, TableEntry, id_cell};
use aiprof_model::timeline::{NONE, Timeline};
use aiprof_trace::memory::{Holder, MemoryLevel, MemoryReport, MemoryUse};
use std::collections::BTreeSet;

/// `--table memory`.
pub(super) const ENTRY: TableEntry = TableEntry {
    name: "memory",
    about: "memory of each device and process: peak, allocations, releases, what was not freed",
    title: "Memory",
    columns: "rank process device peak:bytes peak_at:us held_before:bytes end:bytes allocations \
              allocated:bytes frees freed:bytes largest:bytes reserved:bytes unused_at_peak:bytes \
              not_freed not_freed_size:bytes freed_from_before freed_from_before_size:bytes",
    make: totals,
};
/// `--table memory-peak`.
pub(super) const PEAK: TableEntry = TableEntry {
    name: "memory-peak",
    about: "what held memory at the peak, by operator, nn.Module and line of Python",
    title: "Memory at the peak",
    columns: "rank process device operator module python allocations held:bytes share:percent",
    make: holders,
};
/// `--table memory-timeline`.
pub(super) const OVER_TIME: TableEntry = TableEntry {
    name: "memory-timeline",
    about: "allocated and reserved memory over time",
    title: "Memory over time",
    columns: "rank process device time:us allocated:bytes reserved:bytes",
    make: over_time,
};

/// Most stretches of time of a device of which `memory-timeline` has rows, two of each.
const STRETCHES: usize = 100;

/// Rank, process and device.
fn whose(timeline: &Timeline, one: &MemoryUse) -> Vec<Cell> {
    let rank = match one.of.rank {
        NONE => 0,
        rank => rank,
    };
    vec![
        rank.into(),
        id_cell(timeline, one.of.process),
        one.of.device.as_str().into(),
    ]
}

fn totals(request: &Request<'_>) -> Vec<Table> {
    let report = MemoryReport::new(request.timeline);
    let first = request.timeline.earliest();
    let rows = report.all.iter().map(|one| {
        let (sums, peak) = (&one.sums, &one.peak);
        let unused = peak.reserved.map(|all| all.saturating_sub(peak.allocated));
        let paired = |number: u64| sums.has_addresses.then_some(number);
        let mut row = whose(request.timeline, one);
        row.extend([
            peak.allocated.into(),
            (peak.at - first).micros().into(),
            sums.held_before.into(),
            sums.end.into(),
            sums.allocated.count.into(),
            sums.allocated.bytes.into(),
            sums.freed.count.into(),
            sums.freed.bytes.into(),
            sums.largest.into(),
            sums.reserved.into(),
            unused.into(),
            paired(sums.not_freed.count).into(),
            paired(sums.not_freed.bytes).into(),
            paired(sums.freed_before.count).into(),
            paired(sums.freed_before.bytes).into(),
        ]);
        row
    });
    vec![ENTRY.noted(rows.collect::<Vec<_>>(), notes(&report))]
}

/// A note, if there are no allocations.
fn missing(report: &MemoryReport) -> Vec<String> {
    let text = "the trace has no allocations; PyTorch's profiler records them with \
                profile_memory=True";
    let is_missing = report.all.is_empty();
    is_missing.then(|| text.to_owned()).into_iter().collect()
}

/// Names of the devices of which something holds, each once.
fn devices(report: &MemoryReport, holds: impl Fn(&MemoryUse) -> bool) -> String {
    let all = report.all.iter().filter(|one| holds(one));
    let names: BTreeSet<&str> = all.map(|one| one.of.device.as_str()).collect();
    names.into_iter().collect::<Vec<_>>().join(", ")
}

fn notes(report: &MemoryReport) -> Vec<String> {
    let mut notes = missing(report);
    let estimated = devices(report, |one| !one.sums.has_totals);
    if !estimated.is_empty() {
        notes.push(format!(
            "{estimated}: the trace does not have the allocator's own count, so held_before, peak \
             and end are the least that its allocations and releases need"
        ));
    }
    for one in report.all.iter().filter(|one| one.sums.failed.count > 0) {
        let (failed, device) = (one.sums.failed, &one.of.device);
        notes.push(format!(
            "{device}: {} allocations failed for lack of memory, {} bytes",
            failed.count, failed.bytes
        ));
    }
    if report.unreadable > 0 {
        notes.push(format!(
            "{} memory events without a readable size or device are left out",
            report.unreadable
        ));
    }
    notes
}

fn holders(request: &Request<'_>) -> Vec<Table> {
    let report = MemoryReport::new(request.timeline);
    let (mut rows, mut notes) = (Vec::new(), missing(&report));
    let unpaired = devices(&report, |one| !one.sums.has_addresses);
    if !unpaired.is_empty() {
        notes.push(format!(
            "{unpaired}: the trace has no addresses of memory, so it does not show what held the peak"
        ));
    }
    for one in report.all.iter().filter(|one| one.sums.has_addresses) {
        let share = |bytes: u64| {
            let all = one.peak.allocated;
            (all > 0).then(|| bytes as f64 * 100.0 / all as f64)
        };
        for holder in &one.holders {
            let mut row = whose(request.timeline, one);
            row.extend(named(holder));
            row.push(holder.held.count.into());
            row.push(holder.held.bytes.into());
            row.push(share(holder.held.bytes).into());
            rows.push(row);
        }
        for (name, bytes) in [
            ("(allocated before the trace)", one.peak.held_before),
            ("(allocation not in the trace)", one.peak.unknown),
        ] {
            if bytes > 0 {
                let mut row = whose(request.timeline, one);
                row.extend([name.into(), Cell::None, Cell::None, Cell::None]);
                row.extend([bytes.into(), share(bytes).into()]);
                rows.push(row);
            }
        }
    }
    vec![PEAK.noted(rows, notes)]
}

fn named(holder: &Holder) -> [Cell; 3] {
    [&holder.operator, &holder.module, &holder.python].map(|name| match name.is_empty() {
        true => Cell::None,
        false => name.as_str().into(),
    })
}

fn over_time(request: &Request<'_>) -> Vec<Table> {
    let report = MemoryReport::new(request.timeline);
    let first = request.timeline.earliest();
    let (mut rows, mut notes) = (Vec::new(), missing(&report));
    let mut is_cut = false;
    for one in &report.all {
        let thinned = thinned(&one.levels);
        is_cut |= thinned.len() < one.levels.len();
        for level in thinned {
            let mut row = whose(request.timeline, one);
            row.push((level.at - first).micros().into());
            row.push(level.allocated.into());
            row.push(level.reserved.into());
            rows.push(row);
        }
    }
    if is_cut {
        notes.push(format!(
            "of devices with more than {} samples, the largest and the last of each {STRETCHES}th of \
             the time are shown",
            2 * STRETCHES
        ));
    }
    vec![OVER_TIME.noted(rows, notes)]
}

/// The largest and the last sample of each of [`STRETCHES`] equal stretches of time, and the
/// first of all; all samples, where these are few.
fn thinned(levels: &[MemoryLevel]) -> Vec<&MemoryLevel> {
    let (Some(first), Some(last)) = (levels.first(), levels.last()) else {
        return Vec::new();
    };
    if levels.len() <= 2 * STRETCHES {
        return levels.iter().collect();
    }
    let whole = (last.at - first.at).micros().max(f64::MIN_POSITIVE);
    let stretch = |level: &MemoryLevel| {
        let part = (level.at - first.at).micros() / whole;
        (part * STRETCHES as f64).min(STRETCHES as f64 - 1.0) as usize
    };
    let mut kept = vec![first];
    let rest = levels.get(1..).unwrap_or_default();
    for part in rest.chunk_by(|a, b| stretch(a) == stretch(b)) {
        let most = part.iter().map(|level| level.allocated).max();
        let peak = part.iter().position(|level| Some(level.allocated) == most);
        kept.extend(peak.and_then(|peak| part.get(peak)));
        if peak != Some(part.len() - 1) {
            kept.extend(part.last());
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::timeline::Time;

    /// A thousand samples, of which one in the middle is the largest.
    #[test]
    fn few_samples_have_the_peak_and_the_ends() {
        let level = |index: u32| MemoryLevel {
            at: Time::from_micros(f64::from(index)),
            allocated: if index == 503 {
                9_999
            } else {
                u64::from(index)
            },
            reserved: None,
        };
        let levels: Vec<_> = (0..1000).map(level).collect();
        let kept = thinned(&levels);
        assert!(kept.len() <= 2 * STRETCHES + 1, "{}", kept.len());
        let allocated: Vec<u64> = kept.iter().map(|level| level.allocated).collect();
        assert_eq!(
            (allocated.first(), allocated.last()),
            (Some(&0), Some(&999))
        );
        assert_eq!(allocated.iter().max(), Some(&9_999));
        assert!(kept.is_sorted_by_key(|level| level.at));
        assert_eq!(thinned(&levels[..200]).len(), 200);
        // All at one time.
        let same = vec![level(5); 1000];
        assert!(thinned(&same).len() <= 3);
        assert!(thinned(&[]).is_empty());
    }
}
