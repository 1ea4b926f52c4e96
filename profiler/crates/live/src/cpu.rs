//! One sampling event and one process-event ring for each online CPU.

use super::bpf::perf::{self, Poller, ProcessRing, SamplingClock};
use aiprof_system::files::kernel;
use std::{
    collections::BTreeMap,
    io,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::fs::MetadataExt as _,
    },
    time::Duration,
};

const PAGE: usize = 4096;
/// Bounds of one ring, in pages.
const RING_PAGES: std::ops::RangeInclusive<usize> = 16..=64;

/// The part of a whole that the same step, again and again, divides most evenly (the golden
/// section).
const SECTION: f64 = 0.381_966_011_250_105;
/// What timers of programs and of the kernel are multiples of, most often.
const TICK_NS: u64 = 10_000_000;
/// Times between samples from which on a tick is short beside them, and ten ticks are.
const LONG_NS: u64 = 5 * TICK_NS;
const LONGEST_NS: u64 = 100 * TICK_NS;

/// Nanoseconds between two samples of a CPU at the wanted frequency.
///
/// Programs work at fixed times: each hundredth of a second, each second. A sampler whose
/// period has a multiple in common with theirs meets them always, or never: ten samples a
/// second all fall into the same place of a hundredth. So with each sample the place in its
/// hundredth of a second moves by a fraction that never leads back to the same place. For
/// that the frequency differs from the wanted one by less than 8 %, at 19 Hz by 2 %.
pub(crate) fn period_of(frequency_hz: u32) -> u64 {
    let wanted = 1_000_000_000 / u64::from(frequency_hz.max(1));
    if wanted >= LONG_NS {
        let tick = match wanted >= LONGEST_NS {
            true => 10 * TICK_NS,
            false => TICK_NS,
        };
        let (begin, part) = (wanted / tick * tick, (tick as f64 * SECTION) as u64);
        let near = [
            begin + tick + part,
            begin + tick - part,
            begin + part,
            begin - part,
        ];
        let nearest = near
            .into_iter()
            .min_by_key(|period| period.abs_diff(wanted));
        return nearest.unwrap_or(wanted);
    }
    // How many places of a tick one second's samples meet; the next second's lie between them.
    let places = u64::from(frequency_hz) / gcd(u64::from(frequency_hz), 1_000_000_000 / TICK_NS);
    let places = places as f64;
    let step = TICK_NS as f64 / places / places * SECTION;
    wanted + step.min(wanted as f64 * SECTION / 10.0).round().max(1.0) as u64
}

fn gcd(a: u64, b: u64) -> u64 {
    match b {
        0 => a,
        b => gcd(b, a % b),
    }
}

struct Cpu {
    ring: ProcessRing,
    sampler: Option<OwnedFd>,
    /// See [`switched_on`].
    switched_on: Option<u64>,
}

/// The CPUs being sampled.
pub(crate) struct CpuSet {
    clock: SamplingClock,
    include_idle: bool,
    ring_bytes: usize,
    cpus: BTreeMap<u32, Cpu>,
    poller: Option<Poller>,
    is_paused: bool,
    /// See [`device_events`].
    device_events: Option<u64>,
    /// Samples that CPUs which came have missed, at most.
    pub(crate) missed: u64,
}

impl CpuSet {
    /// None yet. `ring_bytes` is divided among the CPUs.
    pub(crate) fn new(clock: SamplingClock, include_idle: bool, ring_bytes: usize) -> Self {
        Self {
            clock,
            include_idle,
            ring_bytes,
            cpus: BTreeMap::new(),
            poller: None,
            is_paused: false,
            device_events: device_events(),
            missed: 0,
        }
    }

    /// Opens the rings of process events of CPUs that are online and have none,
    /// and closes what belongs to CPUs that went.
    ///
    /// # Errors
    /// epoll's, or those of reading which CPUs are online: then nothing changed. No
    /// ring at all can be opened; where one cannot, that is warned about.
    pub(crate) fn open_rings(&mut self) -> io::Result<()> {
        let online = online()?;
        self.cpus.retain(|cpu, _| online.contains(cpu));
        let share = self.ring_bytes / PAGE / online.len().max(1);
        let pages = share
            .clamp(*RING_PAGES.start(), *RING_PAGES.end())
            .next_power_of_two();
        let mut refused = Vec::new();
        for cpu in online {
            if self.cpus.contains_key(&cpu) {
                continue;
            }
            match ProcessRing::open(cpu, pages) {
                Ok(ring) => {
                    if let Some(poller) = &self.poller {
                        poller.add(ring.fd())?;
                    }
                    self.cpus.insert(
                        cpu,
                        Cpu {
                            ring,
                            sampler: None,
                            switched_on: switched_on(cpu),
                        },
                    );
                }
                Err(error) => refused.push((cpu, error)),
            }
        }
        if self.cpus.is_empty()
            && let Some((_, error)) = refused.pop()
        {
            return Err(error);
        }
        for (cpu, error) in refused {
            tracing::warn!("CPU {cpu}: cannot record process events: {error}");
        }
        Ok(())
    }

    /// Closes what belongs to CPUs that went, also if they are back: their events are dead.
    /// Opens and samples those that came; whether any did. `unseen`: since this was called
    /// last.
    ///
    /// # Errors
    /// As [`start_sampling`](Self::start_sampling).
    pub(crate) fn follow_hotplug(
        &mut self,
        program: BorrowedFd<'_>,
        unseen: Duration,
    ) -> io::Result<bool> {
        let events = device_events();
        let is_quiet = events.is_some() && events == self.device_events;
        if is_quiet || self.cpus.values().all(|cpu| cpu.sampler.is_none()) {
            return Ok(false);
        }
        self.device_events = events;
        self.cpus
            .retain(|number, cpu| cpu.switched_on == switched_on(*number));
        if let Err(error) = self.open_rings() {
            tracing::warn!("cannot record CPUs that come online: {error}");
        }
        let new = self.cpus.values().filter(|cpu| cpu.sampler.is_none());
        let new = new.count() as u64;
        if new > 0 {
            tracing::info!("{new} CPUs came online and are sampled");
            self.start_sampling(program)?;
            let hertz = match self.clock {
                SamplingClock::CpuClock { period_ns } => 1e9 / period_ns.max(1) as f64,
                SamplingClock::Cycles { frequency_hz } => frequency_hz as f64,
            };
            if !self.is_paused {
                self.missed += new * (unseen.as_secs_f64() * hertz).ceil() as u64;
            }
        }
        Ok(new > 0)
    }

    /// Starts sampling on all CPUs with a ring that are not sampled yet.
    ///
    /// # Errors
    /// No CPU can be sampled; the last reason.
    pub(crate) fn start_sampling(&mut self, program: BorrowedFd<'_>) -> io::Result<()> {
        let mut last_error = None;
        for (&cpu, entry) in self.cpus.iter_mut().filter(|(_, c)| c.sampler.is_none()) {
            let opened =
                perf::open_sampler(self.clock, cpu, self.include_idle, entry.ring.fd(), program);
            let switched = opened.and_then(|sampler| {
                if !self.is_paused {
                    perf::switch_sampler(sampler.as_fd(), true)?;
                }
                Ok(sampler)
            });
            match switched {
                Ok(sampler) => entry.sampler = Some(sampler),
                Err(error) => last_error = Some(error),
            }
        }
        let any = self.cpus.values().any(|c| c.sampler.is_some());
        match last_error {
            None if any => Ok(()),
            None => Err(io::Error::other("no CPU is online")),
            Some(error) if !any => Err(error),
            Some(error) => {
                tracing::warn!("some CPUs cannot be sampled: {error}");
                Ok(())
            }
        }
    }

    /// Switches the sampling off, or on again; process events go on.
    ///
    /// # Errors
    /// The last reason why that of a CPU could not be switched.
    pub(crate) fn pause(&mut self, is_paused: bool) -> io::Result<()> {
        self.is_paused = is_paused;
        let mut result = Ok(());
        for sampler in self.cpus.values().filter_map(|cpu| cpu.sampler.as_ref()) {
            result = perf::switch_sampler(sampler.as_fd(), !is_paused).and(result);
        }
        result
    }

    /// Samples with another period from now on, by the CPUs' clocks.
    ///
    /// # Errors
    /// The last reason why that of a CPU could not be changed.
    pub(crate) fn set_period(&mut self, period_ns: u64) -> io::Result<()> {
        self.clock = SamplingClock::CpuClock { period_ns };
        let mut result = Ok(());
        for sampler in self.cpus.values().filter_map(|cpu| cpu.sampler.as_ref()) {
            result = perf::set_period(sampler.as_fd(), period_ns).and(result);
        }
        result
    }

    /// Ends the sampling; process events go on.
    pub(crate) fn stop_sampling(&mut self) {
        self.cpus.values_mut().for_each(|cpu| cpu.sampler = None);
    }

    /// The rings of process events.
    pub(crate) fn rings(&mut self) -> impl Iterator<Item = &mut ProcessRing> {
        self.cpus.values_mut().map(|cpu| &mut cpu.ring)
    }

    /// Bytes of all rings.
    pub(crate) fn ring_bytes(&self) -> usize {
        self.cpus.values().map(|cpu| cpu.ring.bytes()).sum()
    }

    /// One descriptor that is readable when any ring, or one of `others`, is.
    ///
    /// # Errors
    /// epoll's.
    pub(crate) fn poller<'a>(
        &mut self,
        others: impl IntoIterator<Item = BorrowedFd<'a>>,
    ) -> io::Result<OwnedFd> {
        let poller = Poller::new()?;
        for other in others {
            poller.add(other)?;
        }
        for cpu in self.cpus.values() {
            poller.add(cpu.ring.fd())?;
        }
        self.poller = Some(poller.share()?);
        Ok(poller.into())
    }
}

/// How many CPUs the machine has online, whatever part of them this process may use.
pub fn online_cpus() -> u32 {
    let count = online().map_or(0, |cpus| cpus.len());
    u32::try_from(count).unwrap_or(u32::MAX).max(1)
}

/// The online CPUs.
fn online() -> io::Result<Vec<u32>> {
    kernel::read_to_string("/sys/devices/system/cpu/online").map(|list| parse_cpu_list(&list))
}

/// How many devices have come, gone and changed since the machine started, CPUs among them;
/// `None`: it is not known.
fn device_events() -> Option<u64> {
    let text = kernel::read_to_string("/sys/kernel/uevent_seqnum").ok()?;
    text.trim().parse().ok()
}

/// A number that is another one each time that a CPU is switched on: the kernel makes this
/// directory then. `None`: it is off.
fn switched_on(cpu: u32) -> Option<u64> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology");
    kernel::metadata(path).ok().map(|found| found.ino())
}

/// `0-3,8,10-11` (Documentation/admin-guide/cputopology.rst).
fn parse_cpu_list(list: &str) -> Vec<u32> {
    let mut cpus = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) {
            // The kernel's own limit is 8,192 CPUs.
            cpus.extend(first..=last.min(first.saturating_add(8192)));
        }
    }
    cpus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_cpu_lists() {
        assert_eq!(parse_cpu_list("0-1\n"), [0, 1]);
        assert_eq!(parse_cpu_list("0,2-4,9"), [0, 2, 3, 4, 9]);
        assert_eq!(parse_cpu_list(""), [] as [u32; 0]);
        assert_eq!(parse_cpu_list("x-y,3"), [3]);
    }

    /// A program is busy in one place of each tick, for a sixth of it: so often it is met.
    #[test]
    fn programs_that_work_at_fixed_times_are_met_as_often_as_they_work() {
        for frequency in 1..=1000_u32 {
            let period = period_of(frequency);
            let wanted = 1e9 / f64::from(frequency);
            let differs = (period as f64 / wanted - 1.0).abs();
            assert!(differs < 0.08, "{frequency}: {period}");
            // Five minutes, and a thousand samples at least.
            let samples = (300_000_000_000 / period).max(1000);
            for tick in [
                1_000_000,
                4_000_000,
                10_000_000,
                20_000_000,
                100_000_000_u64,
            ] {
                let is_busy = |at: u64, from: u64| (at * period + tick - from) % tick < tick / 6;
                for place in 0..8 {
                    let from = tick * place / 8;
                    let met = (0..samples).filter(|at| is_busy(*at, from)).count() as f64;
                    let expected = samples as f64 / 6.0;
                    let most = if tick < TICK_NS { 0.25 } else { 0.1 };
                    assert!(
                        (met / expected - 1.0).abs() < most,
                        "{frequency} Hz, {tick} ns, {from}: {met}, not {expected:.0}"
                    );
                }
            }
        }
    }
}
