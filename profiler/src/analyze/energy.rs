//! Where power goes: time-weighted statistics with and without kernels, and the
//! energy of each kernel.

use crate::analyze::messages::Messages;
use crate::analyze::power::Period;
use crate::analyze::statistics::Rows;
use crate::timeline::{Event, Id, Kind, Kinds, Timeline};
use rustc_hash::FxHashMap;

/// Shorter times are what is left of subtracting doubles, microseconds.
const NOTHING: f64 = 1e-6;

/// Power over time, each value weighted by how long it held.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weighted {
    /// Least power above zero, watts; 0: there is none.
    pub min_non_zero: f64,
    /// Most power, watts.
    pub max: f64,
    /// Mean of power above zero, watts.
    pub mean_non_zero: f64,
    /// Median of power above zero, watts.
    pub median_non_zero: f64,
    /// Mean of all, watts.
    pub mean: f64,
    /// Time, microseconds.
    pub us: f64,
    /// Time with power above zero, microseconds.
    pub non_zero_us: f64,
}

/// Power while kernels run, and while none does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PowerStatistics {
    /// While kernels run; `None`: never.
    pub with_kernels: Option<Weighted>,
    /// While none runs.
    pub without_kernels: Option<Weighted>,
}

/// Power of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelPower {
    /// Row group.
    pub pid: Id,
    /// Rank.
    pub rank: u32,
    /// Name, with numbers folded as in the table of kernels.
    pub name: String,
    /// How often it ran.
    pub calls: usize,
    /// How long, microseconds.
    pub time_us: f64,
    /// Of that, how long its device's power is known, microseconds.
    pub measured_us: f64,
    /// Energy in that time, joules; kernels that run at the same time share it.
    pub joules: f64,
    /// Its mean power in that time, watts; `None`: it is never known.
    pub mean_watts: Option<f64>,
}

/// Statistics of power counters as a viewer draws them: each holds until the next
/// one of its row group, the last has no end. `None`: there are no two.
pub fn statistics(
    timeline: &Timeline,
    kinds: &Kinds,
    periods: &[Period],
    messages: &mut Messages,
) -> Option<PowerStatistics> {
    let spans = kernel_spans(timeline, kinds);
    let (mut with, mut without) = (Vec::new(), Vec::new());
    let mut has_any = false;
    for periods in periods.chunk_by(|a, b| a.pid == b.pid) {
        let pid = periods.first().map(|period| period.pid);
        let busy = Busy::new(pid.and_then(|pid| spans.get(&pid)));
        for pair in periods.windows(2) {
            let [this, next] = pair else { continue };
            let us = next.start_us - this.start_us;
            if us <= 0.0 {
                continue;
            }
            has_any = true;
            let watts = if this.is_bad { 0.0 } else { this.watts };
            let in_kernels = busy.until(next.start_us) - busy.until(this.start_us);
            with.push((in_kernels, watts));
            without.push((us - in_kernels, watts));
        }
    }
    if !has_any {
        messages.warn(
            "",
            format_args!("Insufficient power data (need at least 2 samples) for statistics"),
        );
        return None;
    }
    let found = PowerStatistics {
        with_kernels: weighted(with),
        without_kernels: weighted(without),
    };
    report("Power with kernels", &found.with_kernels, messages);
    report("Power without kernels", &found.without_kernels, messages);
    Some(found)
}

fn report(label: &str, found: &Option<Weighted>, messages: &mut Messages) {
    let Some(found) = found else {
        messages.info("", format_args!("{label}: No data"));
        return;
    };
    messages.info(
        "",
        format_args!(
            "{label}: min_non_zero={:.2}W, max={:.2}W, mean_non_zero={:.2}W, \
             median_non_zero={:.2}W, avg_total={:.2}W (time-weighted, dur_total={:.2}us, \
             dur_non_zero={:.2}us)",
            found.min_non_zero,
            found.max,
            found.mean_non_zero,
            found.median_non_zero,
            found.mean,
            found.us,
            found.non_zero_us,
        ),
    );
}

/// Statistics of (time, watts).
fn weighted(mut held: Vec<(f64, f64)>) -> Option<Weighted> {
    held.retain(|(us, _)| *us > NOTHING);
    held.sort_by(|a, b| a.1.total_cmp(&b.1));
    let max = held.last()?.1;
    let us: f64 = held.iter().map(|(us, _)| us).sum();
    let energy: f64 = held.iter().map(|(us, watts)| us * watts).sum();
    let above = held.partition_point(|(_, watts)| *watts <= 0.0);
    let above = held.get(above..).unwrap_or_default();
    let above_us: f64 = above.iter().map(|(us, _)| us).sum();
    let mut passed = 0.0;
    let median = above.iter().find(|(us, _)| {
        passed += us;
        passed >= above_us / 2.0
    });
    Some(Weighted {
        min_non_zero: above.first().map_or(0.0, |held| held.1),
        max,
        mean_non_zero: if above_us > 0.0 {
            energy / above_us
        } else {
            0.0
        },
        median_non_zero: median.map_or(0.0, |held| held.1),
        mean: energy / us,
        us,
        non_zero_us: above_us,
    })
}

/// Whether the event is a kernel that took time.
fn is_kernel(timeline: &Timeline, kinds: &Kinds, event: &Event) -> bool {
    let is_slice = event.is_slice() && !event.dropped && event.dur > 0.0;
    is_slice && (kinds.of(event.name).is(Kind::HAS_EXEC) || kinds.is_kernel(timeline, event))
}

/// Begins and ends of each row group's kernels.
fn kernel_spans(timeline: &Timeline, kinds: &Kinds) -> FxHashMap<Id, Vec<(f64, f64)>> {
    let mut spans: FxHashMap<Id, Vec<(f64, f64)>> = FxHashMap::default();
    for event in &timeline.events {
        if is_kernel(timeline, kinds, event) {
            let spans = spans.entry(event.pid).or_default();
            spans.push((event.ts, event.end()));
        }
    }
    spans
}

/// Times in which at least one of several spans lies.
pub(crate) struct Busy {
    /// Begin and end, and the busy time before.
    spans: Vec<(f64, f64, f64)>,
}

impl Busy {
    pub(crate) fn new(spans: Option<&Vec<(f64, f64)>>) -> Self {
        let mut sorted = spans.cloned().unwrap_or_default();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut merged: Vec<(f64, f64, f64)> = Vec::new();
        for (start, end) in sorted {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                Some((from, to, before)) => {
                    let before = *before + (*to - *from);
                    merged.push((start, end, before));
                }
                None => merged.push((start, end, 0.0)),
            }
        }
        Self { spans: merged }
    }

    /// Busy time before a time.
    pub(crate) fn until(&self, ts: f64) -> f64 {
        let index = self.spans.partition_point(|span| span.0 < ts);
        let span = index.checked_sub(1).and_then(|index| self.spans.get(index));
        span.map_or(0.0, |(start, end, before)| before + (ts.min(*end) - start))
    }

    /// All of it.
    pub(crate) fn total(&self) -> f64 {
        self.until(f64::INFINITY)
    }
}

/// Power and energy of each kernel by name, by row group and energy. Takes the
/// periods of [`crate::analyze::power::run`]; bad ones count as not measured.
pub fn kernels(timeline: &Timeline, kinds: &Kinds, periods: &[Period]) -> Vec<KernelPower> {
    let spans = kernel_spans(timeline, kinds);
    let mut meters: FxHashMap<Id, Meter> = FxHashMap::default();
    for periods in periods.chunk_by(|a, b| a.pid == b.pid) {
        let Some(first) = periods.first() else {
            continue;
        };
        if let Some(spans) = spans.get(&first.pid) {
            meters.insert(first.pid, Meter::new(spans, periods));
        }
    }
    let mut rows = Rows::default();
    let mut found: Vec<KernelPower> = Vec::new();
    for event in &timeline.events {
        if !is_kernel(timeline, kinds, event) {
            continue;
        }
        let index = rows.of(timeline, event);
        if index == found.len() {
            found.push(KernelPower {
                pid: event.pid,
                rank: event.rank,
                name: rows.name(index).to_owned(),
                calls: 0,
                time_us: 0.0,
                measured_us: 0.0,
                joules: 0.0,
                mean_watts: None,
            });
        }
        let Some(row) = found.get_mut(index) else {
            continue;
        };
        row.calls += 1;
        row.time_us += event.dur;
        if let Some(meter) = meters.get(&event.pid) {
            let (energy, us) = meter.between(event.ts, event.end());
            row.joules += energy / 1e6;
            row.measured_us += us;
        }
    }
    for row in &mut found {
        let is_known = row.measured_us > NOTHING;
        row.mean_watts = is_known.then(|| row.joules * 1e6 / row.measured_us);
    }
    found.sort_by(|a, b| a.pid.cmp(&b.pid).then(b.joules.total_cmp(&a.joules)));
    found
}

/// What a device's kernels have used until a time.
struct Meter {
    /// Time; energy of each running kernel, and measured time, until then.
    marks: Vec<(f64, f64, f64)>,
}

impl Meter {
    fn new(spans: &[(f64, f64)], periods: &[Period]) -> Self {
        let good = periods
            .iter()
            .filter(|p| !p.is_bad && p.end_us > p.start_us);
        let good: Vec<&Period> = good.collect();
        let begins = spans.iter().map(|span| (span.0, 1i64));
        let ends = spans.iter().map(|span| (span.1, -1i64));
        let bounds = good.iter().flat_map(|p| [(p.start_us, 0), (p.end_us, 0)]);
        let mut changes: Vec<(f64, i64)> = begins.chain(ends).chain(bounds).collect();
        changes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut good = good.into_iter().peekable();
        let (mut running, mut energy, mut measured) = (0, 0.0, 0.0);
        let mut marks: Vec<(f64, f64, f64)> = Vec::with_capacity(changes.len());
        for (ts, change) in changes {
            let from = marks.last().map_or(ts, |mark| mark.0);
            while good.next_if(|period| period.end_us <= from).is_some() {}
            let period = good.peek().filter(|period| period.start_us <= from);
            if let Some(period) = period.filter(|_| running > 0) {
                energy += period.watts * (ts - from) / running as f64;
                measured += ts - from;
            }
            running += change;
            match marks.last_mut() {
                Some(last) if last.0 == ts => {}
                _ => marks.push((ts, energy, measured)),
            }
        }
        Self { marks }
    }

    /// Energy in watts times microseconds, and measured time, of a kernel.
    fn between(&self, start: f64, end: f64) -> (f64, f64) {
        let at = |ts: f64| {
            let index = self.marks.partition_point(|mark| mark.0 < ts);
            self.marks
                .get(index)
                .map_or((0.0, 0.0), |mark| (mark.1, mark.2))
        };
        let ((energy, us), (energy_before, us_before)) = (at(end), at(start));
        (energy - energy_before, us - us_before)
    }
}
