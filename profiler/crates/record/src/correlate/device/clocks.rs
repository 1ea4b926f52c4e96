//! The clocks of devices, as the processes that use them see them.

use super::clock::{Tick, TickClock};
use rustc_hash::FxHashMap;

/// Most clocks; there is one for each process and device.
const MAX_CLOCKS: usize = 1 << 16;

/// A launch's timestamps in host time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// It ran between these times.
    pub(super) between: (u64, u64),
    /// For so long, nanoseconds.
    pub(crate) ran_ns: u64,
    /// Begin and end, to be dated again.
    pub(super) ticks: (Tick, Tick),
}

/// Clocks by process and device handle.
#[derive(Debug, Default)]
pub struct ProcessClocks(FxHashMap<(u32, u64), TickClock>);

impl ProcessClocks {
    /// A process read how its device's clock ticks.
    pub fn add(&mut self, pid: u32, device: u64, clock: TickClock) {
        if self.0.len() < MAX_CLOCKS {
            self.0.entry((pid, device)).or_insert(clock);
        }
    }

    /// A process read its device's clock between these times.
    pub(crate) fn observe(
        &mut self,
        pid: u32,
        device: u64,
        ticks: u64,
        (from_ns, to_ns): (u64, u64),
    ) {
        if let Some(clock) = self.0.get_mut(&(pid, device)) {
            clock.observe(ticks, from_ns, to_ns);
        }
    }

    /// A forked process has its parent's devices.
    pub(crate) fn inherit(&mut self, parent: u32, pid: u32) {
        let own = self.0.iter().filter(|(key, _)| key.0 == parent);
        let own: Vec<_> = own.map(|(key, clock)| (key.1, clock.clone())).collect();
        for (device, clock) in own {
            self.add(pid, device, clock);
        }
    }

    /// Whether anything is known of a process's clocks.
    pub(super) fn has(&self, pid: u32) -> bool {
        self.0.keys().any(|key| key.0 == pid)
    }

    /// A process is gone.
    pub(crate) fn forget(&mut self, pid: u32) {
        self.0.retain(|key, _| key.0 != pid);
    }

    /// The device of a process; of handle 0, which is not known, its only one.
    fn key(&self, pid: u32, device: u64) -> Option<(u32, u64)> {
        if device != 0 {
            return Some((pid, device));
        }
        let mut own = self.0.keys().filter(|key| key.0 == pid);
        own.next().copied().filter(|_| own.next().is_none())
    }

    pub(super) fn get(&self, pid: u32, device: u64) -> Option<&TickClock> {
        self.0.get(&self.key(pid, device)?)
    }

    /// Dates a launch that was handed over and had ended at these times. It also narrows down the
    /// clock's offset.
    pub(crate) fn times(
        &mut self,
        (pid, device): (u32, u64),
        (start, end): (u64, u64),
        (from_ns, to_ns): (u64, u64),
    ) -> Option<Times> {
        let key = self.key(pid, device).filter(|_| (start, end) != (0, 0))?;
        let clock = self.0.get_mut(&key)?;
        if to_ns.saturating_sub(from_ns) >= clock.period_ns() {
            // Which of the times that the clock showed this is not known.
            return None;
        }
        let took = clock.duration_ns(start, end);
        clock.observe(start, from_ns, to_ns.saturating_sub(took).max(from_ns));
        clock.observe(end, from_ns.saturating_add(took).min(to_ns), to_ns);
        let ticks = (clock.tick(start, from_ns)?, clock.tick(end, to_ns)?);
        let earliest = clock.between(ticks.0, from_ns)?.0;
        let latest = clock.between(ticks.1, to_ns)?.1;
        Some(Times {
            between: (
                earliest.max(from_ns).min(to_ns),
                latest.min(to_ns).max(from_ns),
            ),
            ran_ns: took,
            ticks,
        })
    }

    /// When a launch began, by what is known of its clock now, and the error bound of that time.
    /// The launch was handed over and had ended at these times.
    pub(crate) fn begin(
        &self,
        (pid, device): (u32, u64),
        times: &Times,
        (from_ns, to_ns): (u64, u64),
    ) -> (u64, u64) {
        let latest = |end: u64| end.saturating_sub(times.ran_ns);
        let (low, high) = (times.between.0, latest(times.between.1));
        let (low, high) = (low, high.max(low));
        let clock = self.get(pid, device);
        let now = clock.and_then(|clock| {
            let begin = clock.between(times.ticks.0, from_ns)?;
            let end = clock.between(times.ticks.1, to_ns)?;
            Some((begin.0.max(latest(end.0)), begin.1.min(latest(end.1))))
        });
        let (from, to) = match now {
            Some((from, to)) if from.max(low) <= to.min(high) => (from.max(low), to.min(high)),
            _ => (low, high),
        };
        // One offset of the clock for all, so that what ran back to back lies so.
        let (from_clock, to_clock) = now.unwrap_or((from, to));
        let begin = u64::midpoint(from_clock, to_clock.max(from_clock)).clamp(from, to);
        (begin, (to - begin).max(begin - from))
    }
}
