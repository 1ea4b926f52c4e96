//! For how long the device was busy, and which window's samples stand for it.
//!
//! Every nanosecond in which something can have been running is given once, whatever
//! windows overlap there: to each in proportion to its samples a busy nanosecond. So
//! the times of all samples of a stream add up to the time that the device can have
//! been busy while its samples were read, never to more.

use super::{Executions, batch::LaunchBatch};
use rustc_hash::FxHashSet;

/// A device that is busy all the time; parts of it are whole numbers, so that what is
/// added up can be taken away again.
const FULL: i64 = 1 << 20;

/// Which launches can have been running, as steps: a time, and by how much more the
/// device is busy from then on.
#[derive(Debug, Default)]
pub(super) struct DeviceBusy {
    steps: Steps,
    /// The same with the bounds of timed launches, in place of about when they ran.
    possible: Steps,
}

type Steps = Vec<(u64, i64)>;

impl DeviceBusy {
    /// Busy time by the kernels that a stream has samples of, by process and number. If no sample
    /// has a known kernel, all kernels count.
    pub(super) fn of(executions: &Executions, seen: &FxHashSet<(u32, u64)>) -> Self {
        let is_seen = |b: &&LaunchBatch| seen.is_empty() || seen.contains(&(b.of.pid, b.of.kernel));
        let (mut steps, mut possible) = (Steps::new(), Steps::new());
        for batch in executions.all().filter(is_seen) {
            let (from, to) = batch.bounds();
            possible.extend([(from, FULL), (to, -FULL)]);
            if batch.is_spanned() {
                for span in batch.spans() {
                    steps.push((span.from_ns, FULL));
                    steps.push((span.from_ns.saturating_add(span.ran_ns), -FULL));
                }
                continue;
            }
            let part = match batch.ran_ns() {
                // Timed: so much of the time between its bounds.
                Some(ran) if ran < to - from => {
                    (ran as f64 / (to - from) as f64 * FULL as f64).ceil() as i64
                }
                _ => FULL,
            };
            steps.push((from, part));
            steps.push((to, -part));
        }
        Self { steps, possible }
    }
}

/// A window that busy time is given to.
#[derive(Clone, Copy, Debug)]
pub(super) struct BusyWindow {
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    pub(super) samples: u64,
}

/// Something that happens as time goes on.
#[derive(Clone, Copy, Debug)]
enum BusyChange {
    Busy(i64),
    Begin(usize),
    End(usize),
}

/// What adds up from step to step.
#[derive(Debug, Default)]
struct BusyClock {
    now: u64,
    busy: i64,
    open: usize,
    /// Samples a busy nanosecond of all open windows together.
    density: f64,
    /// Busy time, and busy time by density, so far.
    busy_ns: f64,
    per_density: f64,
}

impl BusyClock {
    fn go(&mut self, to: u64) {
        let part = self.busy.clamp(0, FULL) as f64 / FULL as f64;
        let busy_ns = to.saturating_sub(self.now) as f64 * part;
        self.now = self.now.max(to);
        self.busy_ns += busy_ns;
        if self.open > 0 && self.density > 0.0 {
            self.per_density += busy_ns / self.density;
        }
    }
}

/// Busy time of each window, nanoseconds. `usual_ns`: busy time of a sample in earlier windows,
/// if there were any; brought up to date. In a window in which nothing known can have been
/// running, each sample stands for `usual_ns`. Where that is not known, the device is taken to be
/// busy all the time: samples are only taken of what runs.
pub(super) fn share(
    busy: DeviceBusy,
    windows: &[BusyWindow],
    usual_ns: &mut Option<f64>,
) -> Vec<f64> {
    let possible = lengths(&busy.possible, windows);
    let is_unknown = |i: usize| possible.get(i).is_none_or(|&ns| ns <= 0.0);
    let known = || (0..).zip(windows).filter(|(i, _)| !is_unknown(*i));
    let samples: u64 = known().map(|(_, window)| window.samples).sum();
    let mut busy = busy.steps;
    if samples > 0 {
        let lengths = union(&busy, known().map(|(_, window)| *window));
        *usual_ns = Some(lengths / samples as f64);
    }
    for (_, window) in (0..).zip(windows).filter(|(i, _)| is_unknown(*i)) {
        let len = window.to_ns.saturating_sub(window.from_ns);
        let usual = usual_ns.map(|ns| window.samples as f64 * ns);
        let part = usual.map_or(1.0, |ns| (ns / len.max(1) as f64).min(1.0));
        let part = (part * FULL as f64).ceil() as i64;
        busy.extend([(window.from_ns, part), (window.to_ns, -part)]);
    }
    let lengths = lengths(&busy, windows);
    let density = |i: usize| match lengths.get(i).zip(windows.get(i)) {
        Some((&ns, window)) if ns > 0.0 => window.samples.max(1) as f64 / ns,
        _ => 0.0,
    };
    let mut out = vec![0.0; windows.len()];
    let mut clock = BusyClock::default();
    for (time, step) in steps(&busy, windows) {
        clock.go(time);
        match step {
            BusyChange::Busy(part) => clock.busy += part,
            BusyChange::Begin(i) => {
                clock.open += 1;
                clock.density += density(i);
                if let Some(at) = out.get_mut(i) {
                    *at = clock.per_density;
                }
            }
            BusyChange::End(i) => {
                clock.open -= 1;
                // Nothing is left of rounding.
                clock.density = if clock.open == 0 {
                    0.0
                } else {
                    clock.density - density(i)
                };
                if let Some(at) = out.get_mut(i) {
                    *at = ((clock.per_density - *at) * density(i)).max(0.0);
                }
            }
        }
    }
    out
}

/// For how long the device was busy in any of some windows.
fn union(busy: &Steps, windows: impl Iterator<Item = BusyWindow>) -> f64 {
    let mut windows: Vec<BusyWindow> = windows.collect();
    windows.sort_unstable_by_key(|window| window.from_ns);
    let mut reach = 0;
    for window in &mut windows {
        window.from_ns = window.from_ns.max(reach);
        reach = reach.max(window.to_ns);
    }
    windows.retain(|window| window.from_ns < window.to_ns);
    lengths(busy, &windows).iter().sum()
}

/// For how long the device was busy in each window, as if there were no others.
fn lengths(busy: &Steps, windows: &[BusyWindow]) -> Vec<f64> {
    let mut out = vec![0.0; windows.len()];
    let mut clock = BusyClock::default();
    for (time, step) in steps(busy, windows) {
        clock.go(time);
        match step {
            BusyChange::Busy(part) => clock.busy += part,
            BusyChange::Begin(i) => out[i] = clock.busy_ns,
            BusyChange::End(i) => out[i] = clock.busy_ns - out[i],
        }
    }
    out
}

/// All steps in the order of time; a window begins before it ends.
fn steps(busy: &Steps, windows: &[BusyWindow]) -> Vec<(u64, BusyChange)> {
    let changes = busy
        .iter()
        .map(|&(time, part)| (time, BusyChange::Busy(part)));
    let begins = windows.iter().enumerate();
    let begins = begins.map(|(i, w)| (w.from_ns, BusyChange::Begin(i)));
    let ends = windows.iter().enumerate();
    let ends = ends.map(|(i, w)| (w.to_ns.max(w.from_ns), BusyChange::End(i)));
    let mut all: Vec<(u64, BusyChange)> = changes.chain(begins).chain(ends).collect();
    // Stable: of one time, in this order.
    all.sort_by_key(|step| step.0);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(from_ns: u64, to_ns: u64, samples: u64) -> BusyWindow {
        BusyWindow {
            from_ns,
            to_ns,
            samples,
        }
    }

    fn busy(from: u64, to: u64) -> DeviceBusy {
        let steps = vec![(from, FULL), (to, -FULL)];
        DeviceBusy {
            possible: steps.clone(),
            steps,
        }
    }

    /// The clocks are a little apart: by the timestamps the kernel had ended before the
    /// second window, which has its last sample.
    #[test]
    fn a_sample_in_a_window_where_nothing_ran_is_like_others() {
        let windows = [window(0, 5000, 40), window(5000, 10_000, 1)];
        let mut usual = None;
        let shared = share(busy(1000, 5000), &windows, &mut usual);
        assert_eq!(usual, Some(100.0));
        assert_eq!(shared[0], 4000.0);
        assert!((shared[1] - 100.0).abs() < 1.0, "{shared:?}");
        // Known from earlier windows.
        let later = [window(20_000, 25_000, 3)];
        let shared = share(busy(1000, 5000), &later, &mut usual);
        assert!((shared[0] - 300.0).abs() < 1.0, "{shared:?}");
        // More than the window holds cannot be.
        let full = [window(20_000, 25_000, 300)];
        assert_eq!(share(busy(1000, 5000), &full, &mut usual), [5000.0]);
        // And where nothing is known at all.
        assert_eq!(share(busy(1000, 5000), &later, &mut None), [5000.0]);
    }

    #[test]
    fn overlapping_windows_count_their_time_once() {
        let windows = [window(0, 3000, 10), window(2000, 5000, 10)];
        let mut usual = None;
        let shared = share(busy(1000, 5000), &windows, &mut usual);
        assert_eq!(usual, Some(200.0));
        assert!((shared.iter().sum::<f64>() - 4000.0).abs() < 1.0);
    }
}
