//! Where power goes: time-weighted statistics with and without kernels, and the
//! energy of each kernel.

use crate::analyze::busy::BusySpans;
use crate::analyze::energy_fit::{self, CLASSES, KernelSpan, Model, Period, Wraps};
use crate::analyze::messages::Messages;
use crate::analyze::statistics::Rows;
use aiprof_model::calibrate::bounds::Uncertain;
use aiprof_model::timeline::{Event, Id, Kind, Kinds, Timeline};
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
    /// The part of that time in which its device's power is known, microseconds.
    pub measured_us: f64,
    /// Energy, joules; kernels that run at the same time share it. It covers all its time
    /// where its power is fitted, else the measured time.
    pub joules: f64,
    /// Its mean power in that time, watts; `None`: it is never known.
    pub mean_watts: Option<f64>,
    /// How its power is known.
    pub method: EnergyMethod,
}

/// How the power of a kernel is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EnergyMethod {
    /// By least squares over the periods of its device: apart from idle time and from
    /// other kernels, with an error in watts.
    Fitted {
        /// The true mean is within this of it, if each run takes the same.
        error_watts: f64,
    },
    /// The mean power of the periods in which it ran, with all that ran or idled beside
    /// it: the trace does not separate these.
    Shared,
}

/// Statistics of power counters as a viewer draws them: each holds until the next
/// one of its row group, the last has no end. `None`: there are no two.
pub fn statistics(
    timeline: &Timeline,
    kinds: &Kinds,
    periods: &[Period],
    messages: &mut Messages,
) -> Option<PowerStatistics> {
    let mut spans = kernel_spans(timeline, kinds);
    let (mut with, mut without) = (Vec::new(), Vec::new());
    let mut has_any = false;
    for periods in periods.chunk_by(|a, b| a.pid == b.pid) {
        let pid = periods.first().map(|period| period.pid);
        let busy = BusySpans::new(pid.and_then(|pid| spans.remove(&pid)).unwrap_or_default());
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
    let is_slice = event.is_slice() && !event.dropped && event.dur() > 0.0;
    is_slice && (kinds.of(event.name).is(Kind::HAS_EXEC) || kinds.is_kernel(timeline, event))
}

/// Begins and ends of each row group's kernels.
fn kernel_spans(timeline: &Timeline, kinds: &Kinds) -> FxHashMap<Id, Vec<(f64, f64)>> {
    let mut spans: FxHashMap<Id, Vec<(f64, f64)>> = FxHashMap::default();
    for event in &timeline.events {
        if is_kernel(timeline, kinds, event) {
            let spans = spans.entry(timeline.pid(event)).or_default();
            spans.push((event.ts(), event.end_us()));
        }
    }
    spans
}

/// Kernels of one device, and their classes: the names of the table of kernels. Those
/// with the least time beyond [`CLASSES`] share a class.
struct DeviceKernels {
    spans: Vec<KernelSpan>,
    /// Column by row of the table.
    columns: FxHashMap<usize, u32>,
    /// Number of columns, the one of idle time with them.
    count: usize,
    /// Several rows share the column before that of idle time.
    has_others: bool,
}

impl DeviceKernels {
    /// `spans` have rows of the table for columns.
    fn new(mut spans: Vec<KernelSpan>) -> Self {
        let mut times: FxHashMap<usize, f64> = FxHashMap::default();
        for span in &spans {
            *times.entry(span.column as usize).or_default() += span.end - span.start;
        }
        let mut rows: Vec<(usize, f64)> = times.into_iter().collect();
        rows.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let has_others = rows.len() > CLASSES;
        let classes = rows.len().min(CLASSES);
        let last = classes.saturating_sub(1) as u32;
        let columns = (0u32..).zip(&rows);
        let columns: FxHashMap<usize, u32> = columns
            .map(|(column, (row, _))| (*row, column.min(last)))
            .collect();
        for span in &mut spans {
            span.column = columns
                .get(&(span.column as usize))
                .copied()
                .unwrap_or(last);
        }
        Self {
            spans,
            columns,
            count: classes + 1,
            has_others,
        }
    }

    /// The power of a row of the table, apart from that of others.
    fn watts(&self, model: &Model, row: usize) -> Option<Uncertain> {
        let column = *self.columns.get(&row)? as usize;
        let is_several = self.has_others && column + 2 == self.count;
        let known = model.columns.get(column).copied().flatten();
        known.filter(|_| !is_several)
    }
}

/// The kernels of each row group that `is_wanted`, and the rows of all.
fn device_kernels(
    timeline: &Timeline,
    kinds: &Kinds,
    is_wanted: impl Fn(Id) -> bool,
) -> FxHashMap<Id, DeviceKernels> {
    let mut rows = Rows::default();
    let mut spans: FxHashMap<Id, Vec<KernelSpan>> = FxHashMap::default();
    for event in &timeline.events {
        if is_wanted(timeline.pid(event)) && is_kernel(timeline, kinds, event) {
            let column = rows.of(timeline, event) as u32;
            spans
                .entry(timeline.pid(event))
                .or_default()
                .push(KernelSpan {
                    start: event.ts(),
                    end: event.end_us(),
                    column,
                });
        }
    }
    let devices = spans.into_iter();
    devices
        .map(|(pid, spans)| (pid, DeviceKernels::new(spans)))
        .collect()
}

/// Counts wraps of the charge counter in periods that are long enough for several; the
/// periods are by row group and time.
pub(crate) fn count_wraps(timeline: &Timeline, kinds: &Kinds, periods: &mut [Period]) -> Wraps {
    let mut all = Wraps::default();
    if !periods.iter().any(energy_fit::is_open) {
        return all;
    }
    let devices = device_kernels(timeline, kinds, |_| true);
    for periods in periods.chunk_by_mut(|a, b| a.pid == b.pid) {
        let device = periods.first().and_then(|period| devices.get(&period.pid));
        let spans = device.map_or(&[][..], |device| &device.spans);
        let columns = device.map_or(1, |device| device.count);
        let found = energy_fit::count_wraps(spans, periods, columns);
        all.counted += found.counted;
        all.unknown += found.unknown;
    }
    all
}

/// What the periods of a row group show about its power.
struct DevicePower {
    meter: Meter,
    kernels: DeviceKernels,
    model: Model,
}

fn device_powers(
    timeline: &Timeline,
    kinds: &Kinds,
    periods: &[Period],
) -> FxHashMap<Id, DevicePower> {
    let is_measured = |pid| periods.iter().any(|period| period.pid == pid);
    let mut kernels = device_kernels(timeline, kinds, is_measured);
    let mut powers = FxHashMap::default();
    for periods in periods.chunk_by(|a, b| a.pid == b.pid) {
        let kernels = periods
            .first()
            .and_then(|first| kernels.remove_entry(&first.pid));
        let Some((pid, kernels)) = kernels else {
            continue;
        };
        let seen = energy_fit::observe(&kernels.spans, periods, kernels.count);
        let is_good = |index: usize| periods.get(index).is_some_and(Period::is_measured);
        let power = DevicePower {
            meter: Meter::new(&kernels.spans, periods),
            model: Model::fit(&seen, kernels.count, is_good),
            kernels,
        };
        powers.insert(pid, power);
    }
    powers
}

/// Power and energy of each kernel by name, by row group and energy. Takes the
/// periods of `power::run`; bad ones and those with an unknown number
/// of wraps count as not measured.
pub fn kernels(
    timeline: &Timeline,
    kinds: &Kinds,
    periods: &[Period],
    messages: &mut Messages,
) -> Vec<KernelPower> {
    let powers = device_powers(timeline, kinds, periods);
    let (mut rows, mut measured_rows) = (Rows::default(), Rows::default());
    let mut found: Vec<KernelPower> = Vec::new();
    let mut fitted: Vec<Option<Uncertain>> = Vec::new();
    for event in &timeline.events {
        if !is_kernel(timeline, kinds, event) {
            continue;
        }
        let index = rows.of(timeline, event);
        let power = powers.get(&timeline.pid(event));
        if index == found.len() {
            found.push(unmeasured(timeline, event, rows.name(index)));
            fitted.push(power.and_then(|power| {
                let row = measured_rows.of(timeline, event);
                power.kernels.watts(&power.model, row)
            }));
        }
        let Some(row) = found.get_mut(index) else {
            continue;
        };
        row.calls += 1;
        row.time_us += event.dur();
        if let Some(power) = power {
            let (energy, us) = power.meter.between(event.ts(), event.end_us());
            row.joules += energy / 1e6;
            row.measured_us += us;
        }
    }
    for (row, fitted) in found.iter_mut().zip(fitted) {
        settle(row, fitted);
    }
    found.sort_by(|a, b| a.pid.cmp(&b.pid).then(b.joules.total_cmp(&a.joules)));
    report_power(&found, &powers, timeline, messages);
    found
}

fn unmeasured(timeline: &Timeline, event: &Event, name: &str) -> KernelPower {
    KernelPower {
        pid: timeline.pid(event),
        rank: timeline.rank(event),
        name: name.to_owned(),
        calls: 0,
        time_us: 0.0,
        measured_us: 0.0,
        joules: 0.0,
        mean_watts: None,
        method: EnergyMethod::Shared,
    }
}

/// Gives a kernel its mean power: the fitted one, else that of its periods.
fn settle(row: &mut KernelPower, fitted: Option<Uncertain>) {
    match fitted {
        Some(Uncertain {
            value: watts,
            error,
        }) => {
            row.joules = watts * row.time_us / 1e6;
            row.mean_watts = Some(watts);
            row.method = EnergyMethod::Fitted { error_watts: error };
        }
        None => {
            let is_known = row.measured_us > NOTHING;
            row.mean_watts = is_known.then(|| row.joules * 1e6 / row.measured_us);
        }
    }
}

/// Idle power, and which kernels' power is not separated.
fn report_power(
    found: &[KernelPower],
    powers: &FxHashMap<Id, DevicePower>,
    timeline: &Timeline,
    messages: &mut Messages,
) {
    for rows in found.chunk_by(|a, b| a.pid == b.pid) {
        let Some((pid, power)) = rows.first().and_then(|row| powers.get_key_value(&row.pid)) else {
            continue;
        };
        let place = match pid {
            Id::Number(number) => number.to_string(),
            Id::Token(text) => timeline.name(*text).to_owned(),
        };
        let idle = match power.model.columns.last().copied().flatten() {
            Some(Uncertain {
                value: watts,
                error,
            }) => format!("{watts:.2} W +- {error:.2}"),
            None => "unknown".to_owned(),
        };
        messages.info("PEC", format_args!("PEC: [{place}] idle power: {idle}"));
        let shared = rows.iter().filter(|row| row.method == EnergyMethod::Shared);
        let (shared, all) = (shared.count(), rows.len());
        if shared > 0 {
            messages.warn(
                "PEC",
                format_args!(
                    "PEC: [{place}] the power of {shared} of {all} kernels cannot be separated \
                     from idle power or from other kernels; they are given the mean power of their \
                     periods"
                ),
            );
        }
    }
}

/// What a device's kernels have used until a time.
struct Meter {
    /// Time; energy of each running kernel, and measured time, until then.
    marks: Vec<(f64, f64, f64)>,
}

impl Meter {
    fn new(spans: &[KernelSpan], periods: &[Period]) -> Self {
        let good = periods
            .iter()
            .filter(|p| p.is_measured() && p.end_us > p.start_us);
        let good: Vec<&Period> = good.collect();
        let begins = spans.iter().map(|span| (span.start, 1i64));
        let ends = spans.iter().map(|span| (span.end, -1i64));
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
