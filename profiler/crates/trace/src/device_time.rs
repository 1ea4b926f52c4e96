//! The time of devices: when they are busy, and what their streams wait for.
//!
//! A stream waits for one of HTA's causes. With `host_wait`, the host had not launched the next
//! work yet. With `kernel_wait`, the gap is what it takes to begin a kernel behind another. In all
//! other gaps, the time in which a collective ran on another stream of the rank is
//! `collective_wait` here, and the rest is `other`. HTA's `other` is the two together. Work that
//! overlaps the one before it makes HTA's gap negative; here there is none.
//!
//! Why a device as a whole idles is a matter of the host. Each of its gaps is cut into stretches
//! with one cause each, once: [`device_idle`], the findings and their tests all add those up.

use crate::findings::device::GapBlame;
use crate::findings::host::HostRows;
use crate::stretches::{StretchSums, Stretches};
use crate::work::{RankWork, RankedWork, WorkClass, WorkIndex, ends_by_file};
use aiprof_model::timeline::{DeviceKey, Event, Length, Sym, Time, Timeline, TrackId};
use rustc_hash::FxHashMap;

/// A device, what it ran, and when.
pub(crate) struct DeviceTime<'w> {
    /// Its rank: the first, where several use it.
    pub(crate) rank: &'w RankWork,
    /// All of its ranks.
    pub(crate) ranks: Vec<u32>,
    /// The device.
    pub(crate) device: DeviceKey,
    /// Its work, by begin.
    pub(crate) work: Vec<&'w RankedWork>,
    /// When it ran something.
    pub(crate) busy: Stretches,
    /// From the first to the last of its work, in each of its process's files: what lies
    /// between was not recorded.
    pub(crate) seen: Stretches,
}

impl<'w> DeviceTime<'w> {
    /// The devices of a rank, in their order.
    pub(crate) fn all(rank: &'w RankWork) -> Vec<Self> {
        let mut by_device: FxHashMap<DeviceKey, Vec<&RankedWork>> = FxHashMap::default();
        for work in &rank.work {
            if let Some(stream) = rank.streams.get(work.stream as usize) {
                by_device.entry(stream.device).or_default().push(work);
            }
        }
        let devices = by_device.into_iter().map(|(device, work)| {
            let busy = Stretches::of(work.iter().map(|work| (work.start, work.end)));
            Self {
                rank,
                ranks: vec![rank.rank],
                device,
                seen: ends_by_file(work.iter().copied()),
                busy,
                work,
            }
        });
        let mut devices: Vec<_> = devices.collect();
        devices.sort_by_key(|one| one.device);
        devices
    }

    /// The devices of all ranks: one that several files or processes name is one.
    pub(crate) fn of_all(ranks: &'w [RankWork]) -> Vec<Self> {
        let mut all: Vec<Vec<Self>> = Vec::new();
        let mut places: FxHashMap<DeviceKey, usize> = FxHashMap::default();
        for one in ranks.iter().flat_map(Self::all) {
            // Without a process only its number is known.
            let place = one.device.process.map(|_| places.entry(one.device));
            let known = place.map(|place| *place.or_insert(all.len()));
            match known.and_then(|known| all.get_mut(known)) {
                Some(known) => known.push(one),
                None => all.push(vec![one]),
            }
        }
        all.into_iter().filter_map(Self::joined).collect()
    }

    /// The one device of several ranks.
    fn joined(parts: Vec<Self>) -> Option<Self> {
        let busy = Stretches::of(parts.iter().flat_map(|one| one.busy.iter()));
        let seen = Stretches::of(parts.iter().flat_map(|one| one.seen.iter()));
        let mut parts = parts.into_iter();
        let mut all = parts.next()?;
        for other in parts {
            all.work.extend(other.work);
            all.ranks.extend(other.ranks);
        }
        all.work.sort_by_key(|work| (work.start, work.end));
        all.ranks.dedup();
        Some(Self { busy, seen, ..all })
    }

    /// From the first work's begin to the last one's end, microseconds.
    pub(crate) fn elapsed_us(&self) -> f64 {
        self.seen.us()
    }

    /// When work of some classes ran.
    pub(crate) fn running(&self, classes: &[WorkClass]) -> Stretches {
        running(self.work.iter().copied(), classes)
    }
}

/// When work of some classes ran.
fn running<'w>(work: impl IntoIterator<Item = &'w RankedWork>, classes: &[WorkClass]) -> Stretches {
    let work = work
        .into_iter()
        .filter(|work| classes.contains(&work.class));
    Stretches::of(work.map(|work| (work.start, work.end)))
}

/// Pieces of work, which are by begin, each with when all before it had ended; `None` of the first.
pub(crate) fn behind_each_other<'w>(
    work: impl Iterator<Item = &'w RankedWork>,
) -> impl Iterator<Item = (Option<Time>, &'w RankedWork)> {
    work.scan(None, |ended, work| {
        let before = *ended;
        *ended = before.max(Some(work.end));
        Some((before, work))
    })
}

/// Gaps below this are what it takes to begin a kernel behind another: HTA's default,
/// 30 us in the file's unit.
pub const KERNEL_WAIT: Length = Length(30_000_000);

/// Why a stream is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IdleCause {
    /// The next work was launched after the last had ended.
    HostWait,
    /// The next work was there; beginning it took this long.
    KernelWait,
    /// The next work was there, and a collective ran on another stream of the rank.
    CollectiveWait,
    /// The next work was there; something else held it back.
    Other,
}

impl IdleCause {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::HostWait,
        Self::KernelWait,
        Self::CollectiveWait,
        Self::Other,
    ];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::HostWait => "host_wait",
            Self::KernelWait => "kernel_wait",
            Self::CollectiveWait => "collective_wait",
            Self::Other => "other",
        }
    }
}

/// Time that a stream waits for one thing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct IdleSum {
    /// Gaps, or parts of gaps, with this cause.
    pub gaps: u64,
    /// Their time, microseconds.
    pub us: f64,
    /// The longest, microseconds.
    pub longest_us: f64,
}

/// The waits of a stream, by cause as [`IdleCause::ALL`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamIdle {
    /// The stream's number in its rank.
    pub stream: u32,
    /// Sums by cause.
    pub causes: [IdleSum; 4],
}

impl StreamIdle {
    /// All waits, microseconds.
    pub fn total_us(&self) -> f64 {
        self.causes.iter().map(|sum| sum.us).sum()
    }

    /// The waits with one cause.
    pub fn of(&self, cause: IdleCause) -> IdleSum {
        self.causes.get(cause as usize).copied().unwrap_or_default()
    }

    fn add(&mut self, cause: IdleCause, length: Length) {
        if length <= Length::ZERO {
            return;
        }
        if let Some(sum) = self.causes.get_mut(cause as usize) {
            sum.gaps += 1;
            sum.us += length.micros();
            sum.longest_us = sum.longest_us.max(length.micros());
        }
    }

    /// Adds the time between the stream's last end and its next work.
    fn gap(
        &mut self,
        timeline: &Timeline,
        collectives: &StretchSums,
        before: Time,
        next: &RankedWork,
    ) {
        let length = next.start - before;
        let call = timeline.events.get(next.call as usize);
        let call = call.filter(|call| !begins_before(next, call));
        if call.is_some_and(|call| call.start > before) {
            self.add(IdleCause::HostWait, length);
        } else if length < KERNEL_WAIT {
            self.add(IdleCause::KernelWait, length);
        } else {
            let waited = collectives.within(before, next.start);
            self.add(IdleCause::CollectiveWait, waited);
            self.add(IdleCause::Other, Length(length.0 - waited.0));
        }
    }
}

/// The waits of a rank's streams. Where no call is known the host is not blamed.
pub fn stream_idle(timeline: &Timeline, rank: &RankWork) -> Vec<StreamIdle> {
    let collectives = StretchSums::new(running(&rank.work, &[WorkClass::Communication]));
    let streams = rank.by_stream().into_iter().zip(0..);
    let idle = streams.map(|(work, stream)| {
        let mut found = StreamIdle {
            stream,
            causes: [IdleSum::default(); 4],
        };
        // Between two files nothing was recorded.
        let mut ended: FxHashMap<u16, Time> = FxHashMap::default();
        for next in work {
            match ended.get_mut(&next.file) {
                Some(before) => {
                    found.gap(timeline, &collectives, *before, next);
                    *before = next.end.max(*before);
                }
                None => {
                    ended.insert(next.file, next.end);
                }
            }
        }
        found
    });
    idle.collect()
}

/// Work cannot begin before it is launched: clocks of devices and hosts differ by less than this.
const EARLY: Length = Length(10_000_000);

/// Whether the trace has work begin so long before its call that one of them is wrong.
pub(crate) fn begins_before(work: &RankedWork, call: &Event) -> bool {
    call.start - work.start > EARLY
}

/// The call that launched work; `None`: it is not in the trace, or one of both is at a time that
/// cannot be.
pub fn launch_of<'t>(timeline: &'t Timeline, work: &RankedWork) -> Option<&'t Event> {
    let call = timeline.events.get(work.call as usize)?;
    (!begins_before(work, call)).then_some(call)
}

/// Why a device as a whole idles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IdleBlame {
    /// Its thread waited for data.
    Loader,
    /// Its thread compiled.
    Compile,
    /// The profiler that wrote the trace kept its thread busy.
    Profiler,
    /// A copy from pageable memory was being made ready.
    Pageable,
    /// Its thread had waited for the device.
    Sync,
    /// Kernels are shorter than their launches.
    Short,
    /// Nothing was launched.
    Starved,
    /// The work was launched before, and began late.
    Queued,
    /// A computation was being prepared for it.
    Prepared,
    /// Nothing of the next work's process had run before.
    First,
    /// Its launch is not known.
    Unknown,
}

impl IdleBlame {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Loader,
        Self::Compile,
        Self::Profiler,
        Self::Pageable,
        Self::Sync,
        Self::Short,
        Self::Starved,
        Self::Queued,
        Self::Prepared,
        Self::First,
        Self::Unknown,
    ];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Loader => "dataloader",
            Self::Compile => "compilation",
            Self::Profiler => "profiler",
            Self::Pageable => "pageable_copy",
            Self::Sync => "synchronous_wait",
            Self::Short => "short_kernels",
            Self::Starved => "launch",
            Self::Queued => "queue",
            Self::Prepared => "preparation",
            Self::First => "first_of_process",
            Self::Unknown => "unknown",
        }
    }
}

/// What the launching thread did in a stretch of idle time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum IdlePlace {
    /// Nothing shows it.
    #[default]
    Unknown,
    /// A span, a wait, or the path of a sample.
    Name(Sym),
    /// A step of training.
    Step,
    /// Only what it launched then is known.
    Before(Sym),
    /// The same, and it did not run.
    Stopped(Sym),
}

/// A stretch in which a device idles for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdleStretch {
    /// Begin.
    pub(crate) from: Time,
    /// End.
    pub(crate) to: Time,
    /// The reason.
    pub(crate) blame: IdleBlame,
    /// What the thread did.
    pub(crate) place: IdlePlace,
    /// The thread that launched what ended the gap.
    pub(crate) thread: Option<TrackId>,
    /// The whole gap.
    pub(crate) gap: (Time, Time),
}

/// The idle time of a device, by reason.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceIdle {
    /// Its ranks.
    pub ranks: Vec<u32>,
    /// The device.
    pub device: DeviceKey,
    /// From its first work's begin to the last one's end, microseconds.
    pub elapsed_us: f64,
    /// Sums by reason, as [`IdleBlame::ALL`].
    pub causes: [IdleSum; 11],
}

/// Why the devices of all ranks idle: one that several use idles once.
pub fn device_idle(timeline: &Timeline, index: &WorkIndex) -> Vec<DeviceIdle> {
    let host = HostRows::new(timeline, index);
    let blame = GapBlame::new(timeline, &host);
    let mut found = Vec::new();
    for device in DeviceTime::of_all(&index.ranks) {
        let mut idle = DeviceIdle {
            elapsed_us: device.elapsed_us(),
            causes: [IdleSum::default(); 11],
            device: device.device,
            ranks: Vec::new(),
        };
        for stretch in blame.of(&device) {
            if let Some(sum) = idle.causes.get_mut(stretch.blame as usize) {
                let us = (stretch.to - stretch.from).micros();
                sum.gaps += 1;
                sum.us += us;
                sum.longest_us = sum.longest_us.max(us);
            }
        }
        idle.ranks = device.ranks;
        found.push(idle);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::timeline::Dialect;
    use aiprof_testkit::scene::{self, Slice};

    /// One stream: 0-10, 12-20 (queued), 120-130 (launched at 50), 200-210 (queued, of the
    /// gap 150-190 is a collective), 205-215 (overlaps).
    #[test]
    fn gaps_have_their_cause() {
        let mut timeline = scene::empty(Dialect::Torch);
        let mut add = |name, cat, ts, end, correlation, stream: &str| {
            let args = format!("\"stream\":{stream}");
            let slice = Slice {
                name,
                cat,
                ts,
                dur: end - ts,
                correlation,
                args: if stream.is_empty() { "" } else { &args },
                ..Slice::default()
            };
            scene::add(&mut timeline, &slice);
        };
        for (correlation, ts) in [(1, -9.0), (2, -7.0), (3, 50.0), (4, 55.0), (5, 56.0)] {
            add(
                "cudaLaunchKernel",
                "cuda_runtime",
                ts,
                ts + 1.0,
                correlation,
                "",
            );
        }
        for (correlation, ts, end) in [
            (1, 0.0, 10.0),
            (2, 12.0, 20.0),
            (3, 120.0, 130.0),
            (4, 200.0, 210.0),
            (5, 205.0, 215.0),
        ] {
            add("k", "kernel", ts, end, correlation, "7");
        }
        add("ncclKernel_Sum", "kernel", 150.0, 190.0, 9, "8");
        let index = WorkIndex::new(&timeline);
        let [rank] = &index.ranks[..] else { panic!() };
        let idle = stream_idle(&timeline, rank);
        let causes = idle[0].causes.map(|sum| (sum.gaps, sum.us));
        assert_eq!(causes, [(1, 100.0), (1, 2.0), (1, 40.0), (1, 30.0)]);
        assert_eq!(idle[1].total_us(), 0.0);
    }
}
