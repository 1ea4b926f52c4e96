//! Statistics of kernels: by name and row group, and the time from the first to the last on each
//! device.

use crate::analyze::busy::BusySpans;
use crate::analyze::identity::file_of;
use crate::work::stream_of;
use aiprof_model::parallel;
use aiprof_model::timeline::{Dialect, Event, Id, Kind, Kinds, Sym, Timeline};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, HashMap};

/// How a quantity is spread over calls.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// How many values there are.
    pub calls: usize,
    /// Their sum.
    pub total: f64,
    /// Their mean.
    pub mean: f64,
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// Standard deviation of the sample; 0 of a single value.
    pub deviation: f64,
}

impl Spread {
    /// Spread of these values, which it sorts; `None` without values.
    pub fn of(values: &mut [f64]) -> Option<Self> {
        values.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let calls = values.len();
        let total = sum(values.iter().copied());
        let mean = total / calls as f64;
        let at = |index: usize| values.get(index).copied().unwrap_or(0.0);
        let median = match calls % 2 {
            0 => (at(calls / 2 - 1) + at(calls / 2)) / 2.0,
            _ => at(calls / 2),
        };
        // The second sum takes back what the mean was rounded by.
        let squares = sum(values.iter().map(|value| (value - mean) * (value - mean)));
        let rest = sum(values.iter().map(|value| value - mean));
        let squares = squares - rest * rest / calls as f64;
        let deviation = match calls {
            1 => 0.0,
            _ => (squares / (calls - 1) as f64).max(0.0).sqrt(),
        };
        Some(Self {
            calls,
            total,
            mean,
            median,
            min,
            max,
            deviation,
        })
    }
}

/// A sum that loses nothing by the order of its terms (Neumaier, 1974).
pub(crate) fn sum(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut lost) = (0.0f64, 0.0f64);
    for value in values {
        let next = sum + value;
        lost += if sum.abs() >= value.abs() {
            (sum - next) + value
        } else {
            (value - next) + sum
        };
        sum = next;
    }
    sum + lost
}

/// All calls of the kernels of a name.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelRow {
    /// Row group.
    pub pid: Id,
    /// Rank.
    pub rank: u32,
    /// Number of the device, or its group of rows.
    pub device: Id,
    /// Name; of FLEX's kernels with `_1` and `-1` and the like as `_[N]`.
    pub name: String,
    /// Part of the row group's kernel time, percent.
    pub percent: f64,
    /// Lengths, microseconds.
    pub times: Spread,
    /// Ticks from TS1 to TS2, TS2 to TS3, TS3 to TS4, TS4 to TS5; `None`: no call came
    /// with counters.
    pub ticks: Option<[Spread; 4]>,
}

/// When kernels of a row group ran.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ActiveRow {
    /// Row group.
    pub pid: Id,
    /// Rank.
    pub rank: u32,
    /// Time of all kernels together, microseconds.
    pub kernel_us: f64,
    /// Begin of the first, microseconds since the timeline's origin.
    pub start_us: f64,
    /// End of the last.
    pub end_us: f64,
    /// What lies between the files of its process, in which nothing was recorded.
    pub unseen_us: f64,
}

impl ActiveRow {
    /// From the first kernel's begin to the last one's end, microseconds: in each file of its
    /// process, if there are several, one behind the other.
    pub fn elapsed_us(&self) -> f64 {
        self.end_us - self.start_us - self.unseen_us
    }

    /// Kernel time in percent of that, which is more than 100 if kernels overlap.
    pub fn percent(&self) -> f64 {
        percent(self.kernel_us, self.elapsed_us())
    }
}

fn percent(part: f64, whole: f64) -> f64 {
    match whole > 0.0 {
        true => part / whole * 100.0,
        false => 0.0,
    }
}

/// Statistics of kernels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Statistics {
    /// By row group, then by total time, the longest first.
    pub kernels: Vec<KernelRow>,
    /// By row group.
    pub active: Vec<ActiveRow>,
}

/// Makes the statistics of all kernels. Takes calibrated events by time, before their
/// names are refined.
///
/// Kernels are the slices with `Cmpt Exec` in their name; with `torch` also those of
/// Kineto's traces, of which acelyzer makes none.
pub fn run(timeline: &Timeline, kinds: &Kinds, torch: bool) -> Statistics {
    let mut rows = Rows::default();
    // Row and event of each call, so that values are gathered for one row at a time.
    let mut calls: Vec<(u32, u32)> = Vec::new();
    let mut spans: FxHashMap<Id, FileSpans> = FxHashMap::default();
    for (index, event) in timeline.events.iter().enumerate() {
        if !is_kernel(timeline, kinds, event, torch) {
            continue;
        }
        let row = rows.of(timeline, event);
        calls.push((row as u32, index as u32));
        let spans = spans.entry(timeline.identity.same(timeline.pid(event)));
        add_to(spans.or_default(), timeline, event);
    }
    // In place: they are many.
    calls.sort_unstable();
    let mut found = Statistics::default();
    parallel::ordered(
        |pieces| {
            calls
                .chunk_by(|a, b| a.0 == b.0)
                .all(|calls| pieces.put(calls));
        },
        |calls| row(timeline, calls, &rows),
        |row| {
            found.kernels.extend(row);
            true
        },
    );
    drop(calls);
    found.kernels.sort_by(|a, b| {
        let longest = b.times.total.total_cmp(&a.times.total);
        a.pid.cmp(&b.pid).then(longest)
    });
    // Rank and time of kernels of each device.
    let mut devices: BTreeMap<Id, (u32, f64)> = BTreeMap::new();
    for rows in found.kernels.chunk_by_mut(|a, b| a.pid == b.pid) {
        let kernel_us = sum(rows.iter().map(|row| row.times.total));
        for row in rows.iter_mut() {
            row.percent = percent(row.times.total, kernel_us);
        }
        if let Some(first) = rows.first() {
            let device = timeline.identity.same(first.pid);
            let device = devices.entry(device).or_insert((first.rank, 0.0));
            device.1 += kernel_us;
        }
    }
    let devices = devices.into_iter();
    found.active = devices
        .filter_map(|(pid, (rank, kernel_us))| active(pid, rank, kernel_us, &mut spans))
        .collect();
    found
}

/// The row group that stands for what an event's process did on its device.
fn row_group(timeline: &Timeline, event: &Event) -> Id {
    let (pid, groups) = (timeline.pid(event), &timeline.identity.groups);
    let same = timeline.identity.same(pid);
    let process = |pid: Id| groups.get(&pid).map(|group| group.process);
    match process(pid) == process(same) {
        true => same,
        false => pid,
    }
}

/// Begin of a row group's first kernel and end of its last in each file, microseconds; files of the
/// AIU's runtime are one.
type FileSpans = FxHashMap<u32, (f64, f64)>;

fn add_to(files: &mut FileSpans, timeline: &Timeline, event: &Event) {
    let (from, to) = (event.ts(), event.end_us());
    let file = files.entry(file_of(timeline, event)).or_insert((from, to));
    *file = (file.0.min(from), file.1.max(to));
}

fn is_kernel(timeline: &Timeline, kinds: &Kinds, event: &Event, torch: bool) -> bool {
    if event.dropped || !event.is_slice() {
        return false;
    }
    kinds.of(event.name).is(Kind::HAS_EXEC)
        || torch && timeline.dialect(event) == Dialect::Torch && kinds.is_kernel(timeline, event)
}

fn row(timeline: &Timeline, calls: &[(u32, u32)], rows: &Rows) -> Option<KernelRow> {
    let mut values = Vec::with_capacity(calls.len());
    let events = || {
        let events = calls.iter();
        events.filter_map(|call| timeline.events.get(call.1 as usize))
    };
    let first = events().next()?;
    values.extend(events().map(|event| length(timeline, event)));
    let times = Spread::of(&mut values)?;
    let mut ticks = [Spread::default(); 4];
    let mut has_ticks = false;
    for (index, spread) in ticks.iter_mut().enumerate() {
        let between = |event: &Event| {
            let stamps = &timeline.device(event)?.stamps;
            let ticks = i128::from(*stamps.get(index + 1)?) - i128::from(*stamps.get(index)?);
            Some(ticks as f64)
        };
        values.clear();
        values.extend(events().filter_map(between));
        if let Some(found) = Spread::of(&mut values) {
            (*spread, has_ticks) = (found, true);
        }
    }
    Some(KernelRow {
        pid: row_group(timeline, first),
        rank: timeline.rank(first),
        device: stream_of(timeline, first).device.number,
        name: rows.name(calls.first()?.0 as usize).to_owned(),
        percent: 0.0,
        times,
        ticks: has_ticks.then_some(ticks),
    })
}

/// A kernel's length, microseconds: as acelyzer takes it, from two times since the
/// counter's zero. They are rounded, by far less than a nanosecond; but where a mean
/// or median ends in half a nanosecond, that decides on its last digit.
fn length(timeline: &Timeline, event: &Event) -> f64 {
    let Some(device) = timeline.device(event) else {
        return event.dur();
    };
    let (from, to) = device.phase.ends();
    let us = |index: usize| {
        device
            .stamps
            .get(index)
            .map(|at| *at as f64 / timeline.mhz(event))
    };
    let length = us(to).zip(us(from)).map(|(to, from)| to - from);
    // It is not the counters' if the event was shortened.
    let is_same = |length: &f64| (length - event.dur()).abs() < 1e-6;
    length.filter(is_same).unwrap_or(event.dur())
}

fn active(
    pid: Id,
    rank: u32,
    kernel_us: f64,
    spans: &mut FxHashMap<Id, FileSpans>,
) -> Option<ActiveRow> {
    let files = spans.remove(&pid)?;
    let (start_us, end_us) = files
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(start, end), file| {
            (start.min(file.1.0), end.max(file.1.1))
        });
    let unseen_us = match files.len() {
        1 => 0.0,
        _ => end_us - start_us - BusySpans::new(files.into_values().collect()).us(),
    };
    Some(ActiveRow {
        pid,
        rank,
        kernel_us,
        start_us,
        end_us,
        unseen_us,
    })
}

/// Rows of a table by row group and folded name, in the order in which they appear.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    by_sym: FxHashMap<(Id, Sym), u32>,
    by_name: HashMap<(Id, String), u32>,
    names: Vec<String>,
}

impl Rows {
    /// The row of an event.
    pub(crate) fn of(&mut self, timeline: &Timeline, event: &Event) -> usize {
        let group = row_group(timeline, event);
        if let Some(row) = self.by_sym.get(&(group, event.name)) {
            return *row as usize;
        }
        let name = name_of(timeline, event);
        let next = self.names.len() as u32;
        let row = *self.by_name.entry((group, name)).or_insert(next);
        if row == next {
            self.names.push(name_of(timeline, event));
        }
        self.by_sym.insert((group, event.name), row);
        row as usize
    }

    /// The name of a row.
    pub(crate) fn name(&self, row: usize) -> &str {
        self.names.get(row).map_or("", String::as_str)
    }
}

/// The name of an event's row. In FLEX names a number distinguishes calls; in those of
/// Kineto's kernels it distinguishes kernels (`triton_poi_fused_relu_0`,
/// `ampere_sgemm_128x64_nn`).
fn name_of(timeline: &Timeline, event: &Event) -> String {
    let name = timeline.name(event.name);
    match timeline.dialect(event) == Dialect::Torch && !name.contains("Cmpt Exec") {
        true => name.to_owned(),
        false => folded(name),
    }
}

/// A name with each `_` or `-` and the digits behind it as `_[N]`.
pub fn folded(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 8);
    let mut rest = name;
    while let Some(at) = rest.find(['_', '-']) {
        let (before, sign) = rest.split_at(at);
        let after = sign.get(1..).unwrap_or_default();
        let end = after.trim_start_matches(|c: char| c.is_ascii_digit());
        out.push_str(before);
        if end.len() < after.len() {
            out.push_str("_[N]");
        } else {
            out.push_str(sign.get(..1).unwrap_or_default());
        }
        rest = end;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_testkit::timelines as testing;

    /// Expected: what Python's `re.sub(r"[_-]\d+", "_[N]", name)` gives.
    #[test]
    fn numbers_in_names_are_folded() {
        for (name, expected) in [
            ("convolution_12 Cmpt Exec", "convolution_[N] Cmpt Exec"),
            ("a-1_2_x-_3b-", "a_[N]_[N]_x-_[N]b-"),
            ("max_pool2d", "max_pool2d"),
            ("é_1é", "é_[N]é"),
            ("", ""),
            ("_9", "_[N]"),
            ("__9", "__[N]"),
        ] {
            assert_eq!(folded(name), expected, "{name}");
        }
    }

    /// Expected: Python's `statistics` module.
    #[test]
    fn spreads_are_those_of_python() {
        let spread = Spread::of(&mut [3.5, 1.0, 2.25, 8.0]).unwrap();
        assert_eq!(
            (spread.calls, spread.total, spread.mean),
            (4, 14.75, 3.6875)
        );
        assert_eq!((spread.median, spread.min, spread.max), (2.875, 1.0, 8.0));
        assert!((spread.deviation - 3.050_785_417_997_579_5).abs() < 1e-15);
        // A naive sum of squares has nothing left here.
        let spread = Spread::of(&mut [1e9, 1e9 + 1.0, 1e9 + 2.0]).unwrap();
        assert_eq!((spread.mean, spread.deviation), (1e9 + 1.0, 1.0));
        let one = Spread::of(&mut [7.0]).unwrap();
        assert_eq!((one.median, one.deviation), (7.0, 0.0));
        assert_eq!(Spread::of(&mut []), None);
        assert_eq!(sum([1.0, 1e100, 1.0, -1e100].into_iter()), 2.0);
    }

    #[test]
    fn kernels_are_counted_by_name_and_rank() {
        let mut timeline = testing::timeline(Dialect::Flex);
        for (name, rank, ts, dur) in [
            ("b_1 Cmpt Exec", 1, 0.0, 5.0),
            ("a_1 Cmpt Exec", 0, 0.0, 1.0),
            ("a_2 Cmpt Exec", 0, 2.0, 3.0),
            ("c Cmpt Exec", 0, 4.0, 12.0),
            ("c Cmpt Exec end", 0, 16.0, 0.0),
            ("x Cmpt Prep", 0, 100.0, 12.0),
        ] {
            testing::slice(&mut timeline, name, rank, ts, dur);
        }
        testing::count(&mut timeline, 1, [0, 5, 5, 1005, 1006], -1);
        let dropped = testing::slice(&mut timeline, "a_3 Cmpt Exec", 0, 0.0, 50.0);
        timeline.events[dropped].dropped = true;
        let found = run(&timeline, &Kinds::new(&timeline), false);
        let of = |row: &KernelRow| (row.rank, row.name.clone(), row.times.calls, row.times.total);
        let rows: Vec<_> = found.kernels.iter().map(of).collect();
        assert_eq!(
            rows,
            [
                (0, "c Cmpt Exec".to_owned(), 1, 12.0),
                (0, "a_[N] Cmpt Exec".to_owned(), 2, 4.0),
                (0, "c Cmpt Exec end".to_owned(), 1, 0.0),
                (1, "b_[N] Cmpt Exec".to_owned(), 1, 5.0),
            ]
        );
        assert_eq!(found.kernels[0].percent, 75.0);
        assert_eq!(found.kernels[0].ticks, None);
        let ticks = found.kernels[1].ticks.unwrap();
        assert_eq!(ticks.map(|spread| spread.max), [5.0, 0.0, 1000.0, 1.0]);
        let active = &found.active[0];
        assert_eq!(active.kernel_us, 16.0);
        assert_eq!((active.start_us, active.elapsed_us()), (0.0, 16.0));
        assert_eq!(active.percent(), 100.0);
    }

    #[test]
    fn torch_kernels_count_if_wanted() {
        let mut timeline = testing::timeline(Dialect::Torch);
        let kernel = testing::slice(&mut timeline, "mm", 0, 0.0, 1.0);
        timeline.events[kernel].cat = timeline.names.intern("kernel");
        testing::slice(&mut timeline, "aten::mm", 0, 0.0, 1.0);
        let kinds = Kinds::new(&timeline);
        assert_eq!(run(&timeline, &kinds, false), Statistics::default());
        assert_eq!(run(&timeline, &kinds, true).kernels.len(), 1);
    }

    #[test]
    fn a_single_kernel_without_length_is_no_trouble() {
        let mut timeline = testing::timeline(Dialect::Flex);
        let index = testing::slice(&mut timeline, "a Cmpt Exec", 0, 1e15, 0.0);
        testing::count(&mut timeline, index, [i64::MIN, i64::MAX, 0, 0, 0], -1);
        let found = run(&timeline, &Kinds::new(&timeline), false);
        assert_eq!(
            (found.kernels[0].percent, found.active[0].percent()),
            (0.0, 0.0)
        );
    }
}
