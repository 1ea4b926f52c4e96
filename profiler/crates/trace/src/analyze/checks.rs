//! Faults that traces of accelerators have been seen with, each with the events that
//! show it: for whoever asks whether a trace can be trusted.
//!
//! Each fault is a statement about the trace, not a guess at its cause. What is so by
//! design is none: Kineto writes host and device one after the other, times of whole
//! microseconds until 2023, and copies of any size under one name.

mod far;

use aiprof_model::timeline::number::SAME_US;
use aiprof_model::timeline::{Dialect, Event, Id, Kind, Kinds, Sym, Timeline};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use std::fmt;

/// Events that are listed per fault; all are counted.
const MAX_LISTED: usize = 20;
/// How far an event may be outside of its parent or off its counters, microseconds:
/// as much as hosts are late.
const LATE_US: f64 = 10.0;
/// An event this many times as long as its name's median is over-long.
const TIMES_MEDIAN: f64 = 100.0;
/// But only beyond this, microseconds.
const LONG_US: f64 = 1000.0;
/// Fewest events of a name that have a median worth comparing with.
const MIN_ALIKE: usize = 5;
/// The unit of times in traces that have no fractions, microseconds.
const WHOLE_US: f64 = 1.0;

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(usize)]
pub enum Fault {
    /// Two kernels of one stream at the same time.
    Overlapping,
    /// An event's time cannot be true: it is more than a day from all others of its file.
    FarTime,
    /// A device event begins at time 0.
    ZeroTime,
    /// A device event takes no time.
    ZeroDuration,
    /// The device events of a job lie outside of its round trip on the host.
    Shifted,
    /// A kernel runs outside of the call that launched it.
    OutOfParent,
    /// Two kernels of one stream begin at the same time.
    DuplicateStart,
    /// An event is before the one that precedes it, in its row of the file.
    OutOfOrder,
    /// A device event is far longer than its counters show, or than others of its name.
    OverLong,
    /// A device event begins before the call that launched it.
    BeforeLaunch,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Overlapping,
        Self::FarTime,
        Self::ZeroTime,
        Self::ZeroDuration,
        Self::Shifted,
        Self::OutOfParent,
        Self::DuplicateStart,
        Self::OutOfOrder,
        Self::OverLong,
        Self::BeforeLaunch,
    ];
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Overlapping => "kernels of one stream overlap",
            Self::FarTime => "events more than a day from all others, excluded from the analysis",
            Self::ZeroTime => "device events at time 0",
            Self::ZeroDuration => "device events without a duration",
            Self::Shifted => "device events outside their job's round trip",
            Self::OutOfParent => "kernels outside the call that launched them",
            Self::DuplicateStart => "kernels of one stream begin at the same time",
            Self::OutOfOrder => "events that begin before the previous event in the file",
            Self::OverLong => "events that are far too long",
            Self::BeforeLaunch => "device events that begin before the call that launched them",
        })
    }
}

/// An event with a fault.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evidence {
    /// Its name.
    pub name: String,
    /// Its rank.
    pub rank: u32,
    /// Its file's name.
    pub file: String,
    /// Its begin, microseconds as the trace has them.
    pub ts_us: f64,
    /// Its length, microseconds.
    pub dur_us: f64,
    /// By how much it is wrong, microseconds.
    pub by_us: f64,
    /// The event, bounds or length that it does not agree with, in words.
    pub against: String,
}

/// How often a fault was found, and the first events with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Which fault.
    pub fault: Fault,
    /// Events with it.
    pub count: u64,
    /// The first 20 of them, in the order of the trace.
    pub evidence: Vec<Evidence>,
}

/// All faults of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultReport {
    /// One for each of [`Fault::ALL`], in that order.
    pub found: Vec<Found>,
}

impl FaultReport {
    /// How often a fault was found.
    pub fn count(&self, fault: Fault) -> u64 {
        self.found
            .get(fault as usize)
            .map_or(0, |found| found.count)
    }
}

/// Looks for all faults. Needs the events as they were read, in the order of their
/// files ([`Fault::OutOfOrder`] is not found otherwise), with ranks.
pub fn run(timeline: &Timeline, kinds: &Kinds) -> FaultReport {
    let mut checks = Checks {
        timeline,
        kinds,
        units_us: units(timeline, kinds),
        found: Fault::ALL
            .iter()
            .map(|fault| Found {
                fault: *fault,
                count: 0,
                evidence: Vec::new(),
            })
            .collect(),
    };
    checks.each();
    checks.order();
    checks.streams();
    checks.jobs();
    checks.launches();
    checks.early();
    checks.alike();
    FaultReport {
        found: checks.found,
    }
}

/// By how much two true times may be apart that a job's file has as one: a microsecond
/// where none of its device events has a fraction.
fn units(timeline: &Timeline, kinds: &Kinds) -> Vec<f64> {
    let mut units = vec![WHOLE_US; timeline.jobs.len()];
    for event in timeline.events.iter().filter(|event| event.is_slice()) {
        let is_torch = timeline.dialect(event) != Dialect::Flex;
        let is_fine = !event.start.is_whole_micros() || !event.length.is_whole_micros();
        let is_fine = is_fine && kinds.is_device(timeline, event);
        if (is_fine || !is_torch)
            && let Some(unit) = units.get_mut(timeline.job(event) as usize)
        {
            *unit = 0.0;
        }
    }
    units
}

struct Checks<'t> {
    timeline: &'t Timeline,
    kinds: &'t Kinds,
    /// Unit of each job's times, microseconds; 0: nanoseconds or finer.
    units_us: Vec<f64>,
    found: Vec<Found>,
}

/// A stream of a device: rank, pid, row and stream.
type Stream<'t> = (u32, Id, Id, &'t str);

impl<'t> Checks<'t> {
    /// The unit of an event's times, microseconds.
    fn unit_us(&self, event: &Event) -> f64 {
        let unit = self.units_us.get(self.timeline.job(event) as usize);
        unit.copied().unwrap_or(0.0)
    }

    fn slices(&self) -> impl Iterator<Item = &'t Event> + use<'t> {
        let all = self.timeline.events.iter();
        all.filter(|event| event.is_slice() && !event.dropped)
    }

    fn add(&mut self, fault: Fault, event: &Event, by_us: f64, against: impl FnOnce() -> String) {
        let timeline = self.timeline;
        let Some(found) = self.found.get_mut(fault as usize) else {
            return;
        };
        found.count += 1;
        if found.evidence.len() < MAX_LISTED {
            let job = timeline.jobs.get(timeline.job(event) as usize);
            found.evidence.push(Evidence {
                name: timeline.name(event.name).to_owned(),
                rank: timeline.rank(event),
                file: job.map(|job| job.name.clone()).unwrap_or_default(),
                ts_us: timeline.file_us(event),
                dur_us: event.dur(),
                by_us,
                against: against(),
            });
        }
    }

    /// What an event shows by itself.
    fn each(&mut self) {
        self.far();
        let zero = self.timeline.zero();
        for event in self.slices() {
            if !self.kinds.is_device(self.timeline, event) {
                continue;
            }
            let job = self.timeline.jobs.get(self.timeline.job(event) as usize);
            // Times of XLA's traces count from the begin of the profile.
            let has_clock = job.is_none_or(|job| job.writer != "xla");
            if has_clock && (event.start - zero).micros().abs() < SAME_US {
                self.add(Fault::ZeroTime, event, 0.0, String::new);
            }
            if event.dur() <= 0.0 && self.unit_us(event) == 0.0 {
                self.add(Fault::ZeroDuration, event, 0.0, String::new);
            }
            if let Some(us) = self.counted(event)
                && event.dur() > 2.0 * us + LONG_US
            {
                let against = || format!("{us:.3} us according to its counters");
                self.add(Fault::OverLong, event, event.dur() - us, against);
            }
        }
    }

    /// How long all of an event's operation took by its counters, microseconds.
    fn counted(&self, event: &Event) -> Option<f64> {
        let [first, .., last] = self.timeline.device(event)?.stamps;
        // Wraps within the event that are not counted make it negative.
        let ticks = last.checked_sub(first).filter(|ticks| *ticks >= 0)?;
        Some(ticks as f64 / self.timeline.mhz(event))
    }

    /// Events in the order of their file, where its writer has one.
    fn order(&mut self) {
        let mut last: FxHashMap<(u32, Id, Id), f64> = FxHashMap::default();
        for event in self.slices() {
            if self.timeline.dialect(event) != Dialect::Flex {
                continue;
            }
            let before = last
                .entry((
                    self.timeline.job(event),
                    self.timeline.pid(event),
                    self.timeline.tid(event),
                ))
                .or_insert(f64::MIN);
            let late = *before - event.ts();
            if late > SAME_US {
                let origin = self.timeline.origin() as f64;
                let before = *before + origin;
                let against = || format!("the event before it begins at {before:.3}");
                self.add(Fault::OutOfOrder, event, late, against);
            } else {
                *before = event.ts();
            }
        }
    }

    /// Kernels of each stream, one after the other.
    fn streams(&mut self) {
        let mut streams: FxHashMap<Stream<'t>, Vec<&'t Event>> = FxHashMap::default();
        let mut order = Vec::new();
        for event in self.slices() {
            if !self.kinds.is_kernel(self.timeline, event) {
                continue;
            }
            let timeline = self.timeline;
            let is_torch = timeline.dialect(event) == Dialect::Torch;
            let given = is_torch.then(|| timeline.arg(event, "stream")).flatten();
            let (stream, row) = match given {
                Some(stream) => (stream, Id::NONE),
                // Each row is a stream, unless it was made for slices that overlap.
                None if is_torch => ("", timeline.tracks.get(timeline.home(event)).tid),
                None => ("", Id::NONE),
            };
            let key = (timeline.rank(event), timeline.pid(event), row, stream);
            let list = streams.entry(key).or_default();
            if list.is_empty() {
                order.push(key);
            }
            list.push(event);
        }
        for key in order {
            let mut list = streams.remove(&key).unwrap_or_default();
            list.sort_by_key(|event| event.start);
            self.stream(&list);
        }
    }

    fn stream(&mut self, kernels: &[&'t Event]) {
        let Some((mut longest, rest)) = kernels.split_first() else {
            return;
        };
        let mut before = longest;
        let timeline = self.timeline;
        let against = |other: &Event| {
            let ts = timeline.file_us(other);
            let (name, dur) = (timeline.name(other.name), other.dur());
            format!("\"{name}\" at {ts:.3} for {dur:.3} us")
        };
        for event in rest {
            let unit = self.unit_us(event);
            if event.ts() - before.ts() < SAME_US {
                // If two events begin within one unit, the first may end before the
                // second begins.
                if unit == 0.0 || before.dur().min(event.dur()) > unit {
                    self.add(Fault::DuplicateStart, event, 0.0, || against(before));
                }
            } else if longest.end_us() - event.ts() > SAME_US.max(unit) {
                let by = longest.end_us().min(event.end_us()) - event.ts();
                self.add(Fault::Overlapping, event, by, || against(longest));
            }
            before = event;
            if event.end() > longest.end() {
                longest = event;
            }
        }
    }

    /// Device events of each job within its round trip.
    fn jobs(&mut self) {
        let mut trips: FxHashMap<(u32, u32), (f64, f64)> = FxHashMap::default();
        for event in self.slices() {
            let is_trip = self.kinds.of(event.name).is(Kind::ROUND_TRIP);
            if is_trip && !event.is_counted() {
                let trip = trips.entry((self.timeline.job(event), self.timeline.rank(event)));
                let (start, end) = trip.or_insert((f64::INFINITY, f64::NEG_INFINITY));
                *start = start.min(event.ts());
                *end = end.max(event.end_us());
            }
        }
        for event in self.slices().filter(|event| event.is_counted()) {
            let Some(&(start, end)) =
                trips.get(&(self.timeline.job(event), self.timeline.rank(event)))
            else {
                continue;
            };
            let by = (start - event.ts()).max(event.end_us() - end);
            if by > LATE_US {
                let origin = self.timeline.origin() as f64;
                let (start, end) = (start + origin, end + origin);
                let against = || format!("round trip from {start:.3} to {end:.3}");
                self.add(Fault::Shifted, event, by, against);
            }
        }
    }

    /// Kernels within the calls that launched them.
    fn launches(&mut self) {
        let timeline = self.timeline;
        let is_call = |event: &Event| {
            let name = timeline.name(event.name);
            name.contains("ScheduleCompute") || name.contains("ScheduleWait")
        };
        let mut calls: FxHashMap<(u32, u64), (f64, f64)> = FxHashMap::default();
        for event in self.slices().filter(|e| e.correlation != 0 && is_call(e)) {
            let call = calls.entry((timeline.rank(event), event.correlation));
            let (start, end) = call.or_insert((f64::INFINITY, f64::NEG_INFINITY));
            *start = start.min(event.ts());
            *end = end.max(event.end_us());
        }
        for event in self.slices().filter(|event| event.correlation != 0) {
            let call = calls.get(&(timeline.rank(event), event.correlation));
            let (Some(&(start, end)), true) = (call, self.kinds.is_kernel(timeline, event)) else {
                continue;
            };
            let by = (start - event.ts()).max(event.end_us() - end);
            if by > SAME_US {
                let origin = timeline.origin() as f64;
                let (start, end) = (start + origin, end + origin);
                let against = || format!("its call from {start:.3} to {end:.3}");
                self.add(Fault::OutOfParent, event, by, against);
            }
        }
    }

    /// Device events behind the begin of their call. Files that were put together may have several
    /// calls of one number: the first counts.
    fn early(&mut self) {
        let timeline = self.timeline;
        let linked = || {
            let all = self.slices().filter(|event| event.correlation != 0);
            all.filter(|event| timeline.dialect(event) == Dialect::Torch)
        };
        let mut calls: FxHashMap<(u32, u64), f64> = FxHashMap::default();
        for event in linked().filter(|event| is_call(timeline.name(event.cat))) {
            let call = calls.entry((timeline.job(event), event.correlation));
            let start = call.or_insert(f64::INFINITY);
            *start = start.min(event.ts());
        }
        let devices = linked().filter(|event| self.kinds.is_device(timeline, event));
        let early = devices.filter_map(|event| {
            let start = *calls.get(&(timeline.job(event), event.correlation))?;
            (start - event.ts() > LATE_US).then_some((event, start))
        });
        for (event, start) in early.collect::<Vec<_>>() {
            let origin = timeline.origin() as f64;
            let against = || format!("its call begins at {:.3}", start + origin);
            self.add(Fault::BeforeLaunch, event, start - event.ts(), against);
        }
    }

    /// Device events that are far longer than others like them.
    fn alike(&mut self) {
        // Most names have none that is long at all, and need no median.
        let is_long = |event: &&Event| event.dur() > LONG_US;
        let long: FxHashSet<Sym> = self.slices().filter(is_long).map(|e| e.name).collect();
        let mut names: FxHashMap<Like<'t>, Vec<f64>> = FxHashMap::default();
        for event in self.slices().filter(|event| long.contains(&event.name)) {
            if let Some(like) = self.like(event) {
                names.entry(like).or_default().push(event.dur());
            }
        }
        let median = |(key, mut list): (_, Vec<f64>)| {
            if list.len() < MIN_ALIKE {
                return None;
            }
            let middle = list.len() / 2;
            Some((key, *list.select_nth_unstable_by(middle, f64::total_cmp).1))
        };
        let medians: FxHashMap<_, f64> = names.into_iter().filter_map(median).collect();
        for event in self.slices().filter(is_long) {
            let Some(&median) = self.like(event).and_then(|like| medians.get(&like)) else {
                continue;
            };
            let is_known = self
                .counted(event)
                .is_some_and(|us| event.dur() > 2.0 * us + LONG_US);
            if !is_known && event.dur() > TIMES_MEDIAN * median {
                let against = || format!("median of the same name: {median:.3} us");
                self.add(Fault::OverLong, event, event.dur() - median, against);
            }
        }
    }

    /// What this event has in common with others that do the same work; `None`: not
    /// known. The work of GPU kernels depends on their grid, and that of copies on their
    /// bytes. Kernels of communication wait for others.
    fn like(&self, event: &Event) -> Option<Like<'t>> {
        let (timeline, kinds) = (self.timeline, self.kinds);
        if !kinds.is_device(timeline, event) {
            return None;
        }
        let size = match timeline.dialect(event) {
            Dialect::Flex | Dialect::Plain => ["", ""],
            Dialect::Torch if !kinds.is_kernel(timeline, event) => return None,
            Dialect::Torch if kinds.is_collective(timeline, event) => return None,
            Dialect::Torch => {
                ["grid", "block"].map(|key| timeline.arg(event, key).unwrap_or_default())
            }
        };
        Some((timeline.rank(event), event.name, size))
    }
}

/// Whether events of a category are calls into a runtime or driver.
fn is_call(cat: &str) -> bool {
    let small = cat.to_ascii_lowercase();
    small == "runtime" || small.ends_with("_runtime") || small.ends_with("_driver")
}

/// Events that are worth comparing: rank, name, and size of what they do.
type Like<'t> = (u32, Sym, [&'t str; 2]);

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_testkit::scene::{self, Slice};

    fn kernel(ts: f64, dur: f64) -> Slice<'static> {
        Slice {
            rank: 2,
            name: "k",
            cat: "kernel",
            ts,
            dur,
            ..Slice::default()
        }
    }

    fn faults(timeline: &Timeline) -> Vec<(Fault, u64)> {
        let outcome = run(timeline, &Kinds::new(timeline));
        let found = outcome.found.iter().filter(|found| found.count > 0);
        found.map(|found| (found.fault, found.count)).collect()
    }

    fn torch(slices: &[Slice<'_>]) -> Timeline {
        let mut timeline = scene::empty(Dialect::Torch);
        timeline.origin = Some(1000);
        for slice in slices {
            scene::add(&mut timeline, slice);
        }
        timeline
    }

    #[test]
    fn a_sound_trace_has_no_faults() {
        let other = Slice {
            args: "\"stream\":7",
            ..kernel(105.0, 10.0)
        };
        let timeline = torch(&[kernel(100.0, 10.0), other, kernel(110.0, 10.0)]);
        assert_eq!(faults(&timeline), []);
        assert_eq!(faults(&scene::empty(Dialect::Flex)), []);
    }

    #[test]
    fn every_fault_is_found_with_its_event() {
        let overlapping = torch(&[kernel(100.0, 10.0), kernel(108.0, 10.0)]);
        assert_eq!(faults(&overlapping), [(Fault::Overlapping, 1)]);
        let outcome = run(&overlapping, &Kinds::new(&overlapping));
        let evidence = &outcome.found[0].evidence[0];
        assert_eq!(
            (evidence.ts_us, evidence.by_us, evidence.rank),
            (1108.0, 2.0, 2)
        );
        assert_eq!(evidence.against, "\"k\" at 1100.000 for 10.000 us");
        assert_eq!(evidence.file, "x.json");

        let zero = torch(&[kernel(-1000.0, 10.5), kernel(0.0, 0.0)]);
        assert_eq!(
            faults(&zero),
            [(Fault::ZeroTime, 1), (Fault::ZeroDuration, 1)]
        );

        let twice = torch(&[kernel(100.0, 10.0), kernel(100.0, 5.0)]);
        assert_eq!(faults(&twice), [(Fault::DuplicateStart, 1)]);

        let mut long: Vec<_> = (0..6).map(|i| kernel(20.0 * f64::from(i), 10.0)).collect();
        long.push(kernel(120.0, 3e6));
        assert_eq!(faults(&torch(&long)), [(Fault::OverLong, 1)]);

        let mut inside = kernel(100.0, 10.0);
        let mut outside = kernel(130.0, 10.0);
        let mut call = kernel(95.0, 40.0);
        (call.name, call.cat) = ("aiuLaunchScheduleCompute", "cuda_runtime");
        for slice in [&mut inside, &mut outside, &mut call] {
            slice.correlation = 3;
        }
        call.tid = 1;
        let timeline = torch(&[call.clone(), inside.clone(), outside]);
        assert_eq!(faults(&timeline), [(Fault::OutOfParent, 1)]);

        // A clock may be as far off as the first of them, which begins 8 us before its call.
        (call.name, call.ts, call.dur) = ("cudaLaunchKernel", 108.0, 5.0);
        let mut early = kernel(90.0, 5.0);
        early.correlation = 3;
        let timeline = torch(&[call, inside, early]);
        assert_eq!(faults(&timeline), [(Fault::BeforeLaunch, 1)]);
    }

    /// Rows of one process are streams of their own, and a profile may begin with a kernel.
    #[test]
    fn rows_without_a_stream_are_streams() {
        let mut other = kernel(104.25, 10.5);
        other.tid = 1;
        assert_eq!(faults(&torch(&[kernel(100.25, 10.5), other])), []);
        let same = [kernel(100.25, 10.5), kernel(104.25, 10.5)];
        assert_eq!(faults(&torch(&same)), [(Fault::Overlapping, 1)]);
        let first = [kernel(-1000.0, 10.5), kernel(0.0, 5.5)];
        for (writer, expected) in [("xla", &[][..]), ("", &[(Fault::ZeroTime, 1)])] {
            let mut timeline = torch(&first);
            timeline.jobs[0].writer = writer;
            assert_eq!(faults(&timeline), expected);
        }
    }

    /// Kineto writes the calls after the operators, kernels after both.
    #[test]
    fn only_files_that_are_in_order_can_be_out_of_it() {
        let slices = [kernel(100.0, 10.0), kernel(50.0, 10.0), kernel(110.0, 1.0)];
        assert_eq!(faults(&torch(&slices)), []);
        let mut flex = scene::empty(Dialect::Flex);
        for slice in &slices {
            scene::add(&mut flex, slice);
        }
        assert_eq!(faults(&flex), [(Fault::OutOfOrder, 1)]);
    }

    /// Whole microseconds: what seems to begin together, take no time or overlap by one
    /// may not do so.
    #[test]
    fn rounded_times_are_no_faults() {
        let whole = [
            kernel(100.0, 0.0),
            kernel(100.0, 1.0),
            kernel(100.0, 5.0),
            kernel(104.0, 9.0),
        ];
        assert_eq!(faults(&torch(&whole)), []);
        let mut fine = whole.to_vec();
        fine.push(kernel(200.0, 0.25));
        let found = faults(&torch(&fine));
        let expected = [
            (Fault::Overlapping, 1),
            (Fault::ZeroDuration, 1),
            (Fault::DuplicateStart, 2),
        ];
        assert_eq!(found, expected);
        // More than rounding can do.
        let wrong = [kernel(100.0, 5.0), kernel(100.0, 3.0), kernel(102.0, 9.0)];
        let found = faults(&torch(&wrong));
        assert_eq!(found, [(Fault::Overlapping, 1), (Fault::DuplicateStart, 1)]);
    }

    /// Copies are as long as they have bytes, collectives as their ranks are late, and
    /// kernels as their grid is large.
    #[test]
    fn sizes_are_no_faults() {
        let many = |name, cat, args: [&'static str; 2]| {
            let one = |i: u32| Slice {
                name,
                cat,
                args: args[usize::from(i == 6)],
                ..kernel(1e7 * f64::from(i) + 0.25, if i == 6 { 3e6 } else { 10.0 })
            };
            torch(&(0..7).map(one).collect::<Vec<_>>())
        };
        let copies = many("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", ["", ""]);
        assert_eq!(faults(&copies), []);
        let collectives = many("ncclDevKernel_AllGather_RING_LL", "kernel", ["", ""]);
        assert_eq!(faults(&collectives), []);
        let sizes = ["\"grid\":[1,1,1]", "\"grid\":[9999,1,1]"];
        assert_eq!(faults(&many("k", "kernel", sizes)), []);
        let same = many("k", "kernel", [sizes[0], sizes[0]]);
        assert_eq!(faults(&same), [(Fault::OverLong, 1)]);
    }

    #[test]
    fn jobs_lie_in_their_round_trip_and_durations_agree_with_counters() {
        let mut timeline = scene::empty(Dialect::Flex);
        let device = |ts, dur, ticks| Slice {
            name: "add DmaI",
            ts,
            dur,
            stamps: Some([0, 0, 0, 0, ticks]),
            ..Slice::default()
        };
        let trip = Slice {
            name: "AIU Roundtrip",
            tid: 1,
            ts: 100.0,
            dur: 10_000.0,
            ..Slice::default()
        };
        for slice in [
            trip,
            device(50.0, 10.0, 10_000),
            device(95.0, 10.0, 10_000),
            device(200.0, 10.0, 10_000),
            // 5 ms, of which the counters (at 1000 MHz) know 10 us.
            device(300.0, 5000.0, 10_000),
        ] {
            scene::add(&mut timeline, &slice);
        }
        assert_eq!(
            faults(&timeline),
            [(Fault::Shifted, 1), (Fault::OverLong, 1)]
        );
    }

    #[test]
    fn evidence_is_bounded() {
        let slices: Vec<_> = (0..1000).map(|_| kernel(5.0, f64::MAX)).collect();
        let timeline = torch(&slices);
        let outcome = run(&timeline, &Kinds::new(&timeline));
        assert_eq!(outcome.count(Fault::DuplicateStart), 999);
        let found = &outcome.found[Fault::DuplicateStart as usize];
        assert_eq!(found.evidence.len(), MAX_LISTED);
    }
}
