//! Rank alignment exactly as acelyzer 1.3.0 does it, for whoever must compare
//! (`--compat-bugs`): the default way, and that of `-S`.
//!
//! Both take a collective group for one moment. For the first way, it is the last send of
//! rank 0 and the last receives of all others; for the second, the last counter of every
//! rank. That is right only where one rank sends to all others at once, at the end, and
//! nothing is under way for long; [`super::alignment`] is right in all cases.
//!
//! Only device events are moved, and only FLEX traces have what is needed.

use super::messages::{Level, Messages};
use aiprof_model::timeline::{Device, Event, Phase, Sym, Timeline};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// What was done.
#[derive(Clone, Debug)]
pub struct CompatAlignmentReport {
    /// What was added to each rank's device times, microseconds; empty: nothing was
    /// aligned.
    pub shifts: Vec<f64>,
    /// Host time of device time 0 of rank 0, microseconds since the origin.
    pub offset: f64,
    /// acelyzer ends here, with exit code 1.
    pub is_fatal: bool,
    /// Messages to show.
    pub said: Messages,
}

/// Events of collectives, by rank and group, in the order of the timeline.
struct Groups {
    /// Ranks that take part: 0 to one less.
    ranks: usize,
    /// Groups as rank 0 first has them.
    names: Vec<Sym>,
    events: FxHashMap<(u32, Sym), Vec<u32>>,
}

impl Groups {
    fn of(timeline: &Timeline, wanted: impl Fn(&str) -> bool) -> Self {
        let mut groups = Self {
            ranks: 0,
            names: Vec::new(),
            events: FxHashMap::default(),
        };
        let mut ranks = BTreeSet::new();
        for (index, event) in (0u32..).zip(&timeline.events) {
            let Some(transfer) = timeline.transfer(event) else {
                continue;
            };
            let group = transfer.group;
            if !event.is_slice()
                || event.dropped
                || group.is_empty()
                || !wanted(timeline.name(group))
            {
                continue;
            }
            ranks.insert(timeline.rank(event));
            let list = groups
                .events
                .entry((timeline.rank(event), group))
                .or_default();
            if timeline.rank(event) == 0 && list.is_empty() {
                groups.names.push(group);
            }
            list.push(index);
        }
        // acelyzer counts on ranks without a gap.
        if ranks.iter().zip(0..).all(|(rank, i)| *rank == i) {
            groups.ranks = ranks.len();
        }
        groups
    }

    /// A rank's event in a group with the greatest counter; the last one if several have
    /// it.
    fn last<'t>(
        &self,
        timeline: &'t Timeline,
        rank: usize,
        group: Sym,
        stamp: usize,
    ) -> Option<(f64, &'t Event)> {
        let list = self.events.get(&(u32::try_from(rank).ok()?, group))?;
        let events = list.iter().filter_map(|i| timeline.events.get(*i as usize));
        let times = events.filter_map(|event| Some((device_time(timeline, event, stamp)?, event)));
        times.reduce(|a, b| if b.0 >= a.0 { b } else { a })
    }
}

/// A counter as microseconds of its device.
fn device_time(timeline: &Timeline, event: &Event, stamp: usize) -> Option<f64> {
    let stamp = *timeline.device(event)?.stamps.get(stamp)?;
    Some(stamp as f64 / timeline.mhz(event))
}

fn nothing(level: Level) -> CompatAlignmentReport {
    CompatAlignmentReport {
        shifts: Vec::new(),
        offset: 0.0,
        is_fatal: false,
        said: Messages::new(level),
    }
}

/// `mp_sync_tight_v1`. Needs calibrated times; no order.
pub(crate) fn tight_v1(timeline: &mut Timeline, level: Level) -> CompatAlignmentReport {
    let mut outcome = nothing(level);
    let mut groups = Groups::of(timeline, |_| true);
    if groups.names.is_empty() || groups.ranks < 2 {
        let text = "MP SYNC: no collective group detected or single process, no action";
        outcome.said.info("MP SYNC", format_args!("{text}"));
        return outcome;
    }
    let is_all_reduce = |sym: &Sym| timeline.name(*sym).contains("AllReduce");
    if groups.names.iter().any(is_all_reduce) {
        groups.names.retain(is_all_reduce);
    }
    match solve_v1(timeline, &groups) {
        Some((shifts, offset)) => {
            outcome.shifts = shifts;
            outcome.offset = offset;
            apply_v1(timeline, &outcome);
        }
        None => {
            outcome.is_fatal = true;
            let text = "Detected an event/process that has no contribution to collective op. \
                        Unable to sync based on collectives. Use -M option to skip alignment.";
            outcome.said.error("MP_SYNC", format_args!("{text}"));
        }
    }
    outcome
}

/// Shifts of all ranks, and the offset; `None`: a rank lacks a group.
fn solve_v1(timeline: &Timeline, groups: &Groups) -> Option<(Vec<f64>, f64)> {
    let ranks = groups.ranks;
    let first = *groups.names.first()?;
    let list = groups.events.get(&(0, first))?;
    let is_tree = list.iter().any(|index| {
        let event = timeline.events.get(*index as usize);
        event.is_some_and(|event| timeline.name(event.name).contains("AllReduce_all_reduce"))
    });
    let order: Vec<usize> = match is_tree {
        true => (0..ranks).collect(),
        false => (0..ranks).rev().collect(),
    };
    let last = |rank: usize, stamp: usize| -> Option<Vec<f64>> {
        let time = |group: &Sym| Some(groups.last(timeline, rank, *group, stamp)?.0);
        groups.names.iter().map(time).collect()
    };
    let mut shifts = vec![0.0; ranks];
    let (&sender, &receiver) = (order.first()?, order.get(1)?);
    let received = last(receiver, 1)?;
    for rank in order.iter().skip(2) {
        shifts[*rank] -= last(*rank, 1)?.first()? - received.first()?;
    }
    let sent = last(sender, 4)?;
    let differences = received.iter().zip(&sent).map(|(r, s)| r - s);
    let (at, least) = differences
        .enumerate()
        .reduce(|a, b| if b.1 < a.1 { b } else { a })?;
    if is_tree {
        order.iter().skip(1).for_each(|rank| shifts[*rank] -= least);
    } else {
        shifts[sender] += least;
    }
    let stamp = if is_tree { 4 } else { 1 };
    let (time, event) = groups.last(timeline, 0, *groups.names.get(at)?, stamp)?;
    Some((shifts, event.ts() + event.dur() - time))
}

/// Index of the counter at which acelyzer lets an event begin: by its name, else TS1.
fn begin_of(device: &Device) -> usize {
    match device.phase {
        Phase::Whole => 0,
        phase => phase.ends().0,
    }
}

fn apply_v1(timeline: &mut Timeline, outcome: &CompatAlignmentReport) {
    move_devices(timeline, |device, mhz, rank, _| {
        let shift = outcome.shifts.get(rank).copied().unwrap_or(0.0);
        let stamp = device.stamps.get(begin_of(device)).copied().unwrap_or(0);
        stamp as f64 / mhz + shift + outcome.offset
    });
}

/// Sets the begin of all device events: of their counters, frequency, rank and length.
fn move_devices(timeline: &mut Timeline, begin: impl Fn(&Device, f64, usize, f64) -> f64) {
    let mut events = std::mem::take(&mut timeline.events);
    for event in events.iter_mut().filter(|e| e.is_slice() && !e.dropped) {
        if let Some(device) = timeline.device(event) {
            event.set_ts(begin(
                device,
                timeline.mhz(event),
                timeline.rank(event) as usize,
                event.dur(),
            ));
        }
    }
    timeline.events = events;
}

/// `mp_ts_calibration_v2` (`-S`). Needs calibrated times; no order.
pub fn v2(timeline: &mut Timeline, level: Level) -> CompatAlignmentReport {
    let mut outcome = nothing(level);
    let groups = Groups::of(timeline, |name| name.contains("AllReduce"));
    let Some(solution) = solve_v2(timeline, &groups) else {
        let text = "MP_SYNC_v2: needs two or more AllReduce groups that all ranks have; no action";
        outcome.said.warn("MP_SYNC_v2", format_args!("{text}"));
        return outcome;
    };
    let reference = solution.references.first().copied().unwrap_or(0.0);
    outcome.offset = solution.offset;
    let moved = solution.references.iter().map(|r| reference - r);
    outcome.shifts = moved.collect();
    move_devices(timeline, |device, mhz, rank, dur| {
        let time = device.stamps[4] as f64 / mhz;
        let own = solution.references.get(rank).copied().unwrap_or(reference);
        let dilation = solution.dilations.get(rank).copied().unwrap_or(1.0);
        (time - own) / dilation + reference + solution.offset - dur
    });
    outcome
}

struct SolutionV2 {
    /// Device time of the moment that is the same for all, by rank.
    references: Vec<f64>,
    dilations: Vec<f64>,
    offset: f64,
}

/// `None` where acelyzer ends in an exception.
fn solve_v2(timeline: &Timeline, groups: &Groups) -> Option<SolutionV2> {
    let last = |rank: usize, group: Sym| Some(groups.last(timeline, rank, group, 4)?.0);
    let times = |rank: usize| -> Option<Vec<f64>> {
        let of = |group: &Sym| last(rank, *group);
        groups.names.iter().map(of).collect()
    };
    let times: Vec<Vec<f64>> = (0..groups.ranks).map(times).collect::<Option<_>>()?;
    let first = times.first()?;
    let mean = |group: usize| -> f64 {
        let all = times.iter().map(|t| t[group] - first[group]);
        all.sum::<f64>() / groups.ranks as f64
    };
    let (at, _) = (0..groups.names.len())
        .map(|group| (group, mean(group)))
        .reduce(|a, b| if b.1 < a.1 { b } else { a })?;
    let span = |times: &Vec<f64>| {
        let most = times.iter().copied().fold(f64::MIN, f64::max);
        most - times.iter().copied().fold(f64::MAX, f64::min)
    };
    let all = span(first);
    if all <= 0.0 || times.iter().any(|times| span(times) <= 0.0) {
        return None;
    }
    let (time, event) = groups.last(timeline, 0, *groups.names.get(at)?, 4)?;
    Some(SolutionV2 {
        references: times.iter().map(|t| t[at]).collect(),
        dilations: times.iter().map(|t| span(t) / all).collect(),
        offset: event.end_us() - time,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::timeline::Dialect;
    use aiprof_testkit::scene::{self, Slice};

    /// acelyzer 1.3.0 on the shipped sample, split by rank, `--freq 560:1100`:
    /// `dts_shifts` and `dts_2_hts_ref_offset` of its log, and times of its output.
    #[test]
    fn the_shipped_sample_is_aligned_as_by_1_3_0() {
        let mut timeline = scene::allreduce_tp4();
        let outcome = tight_v1(&mut timeline, Level::Info);
        let expected = [
            0.0,
            2_643_187.507_142_857,
            4_353_180.812_5,
            3_165_375.796_428_571,
        ];
        assert_eq!(outcome.shifts.len(), 4);
        for (shift, expected) in outcome.shifts.iter().zip(expected) {
            assert!((shift - expected).abs() < 1e-3, "{shift} {expected}");
        }
        let offset = 2_097_957_889_416.821_3 - timeline.origin() as f64;
        assert!((outcome.offset - offset).abs() < 1e-3, "{}", outcome.offset);
        let expected = [
            (0, "SenRdmaSend_82227", 1601.945),
            (0, "add_11 Cmpt Exec", 1603.432),
            (1, "SenRdmaSend_82237", 2128.575),
            (2, "AllReduce_all_reduce_4_Add_3 Cmpt Exec", 2169.469),
            (3, "SenRdmaSend_82233 Data", 2285.512),
            (3, "add_11 Cmpt Exec", 1621.361),
        ];
        for (rank, name, ts) in expected {
            let is_it =
                |e: &&Event| timeline.rank(e) == rank && timeline.name(e.name).starts_with(name);
            let event = timeline.events.iter().find(is_it).unwrap();
            assert!((event.ts() - ts).abs() < 1e-3, "{name} {} {ts}", event.ts());
        }
    }

    #[test]
    fn a_rank_without_a_group_is_an_error() {
        let mut timeline = scene::allreduce_tp4();
        scene::add(
            &mut timeline,
            &Slice {
                rank: 0,
                name: "x DmaI",
                transfer: Some(("AllReduce_all_reduce_5", "", "", 1)),
                stamps: Some([1, 2, 3, 4, 5]),
                ..Slice::default()
            },
        );
        let outcome = tight_v1(&mut timeline, Level::Info);
        assert!(outcome.is_fatal && outcome.shifts.is_empty());
        let outcome = tight_v1(&mut scene::empty(Dialect::Flex), Level::Info);
        assert!(!outcome.is_fatal && outcome.shifts.is_empty());
    }

    /// Two groups, so that the second way does not divide by zero; worked out by the
    /// formulas of the specification, section 13.
    #[test]
    fn the_second_way_stretches_ranks() {
        let mut timeline = scene::empty(Dialect::Flex);
        for (rank, group, end, host) in [
            (0, "AllReduce_1", 10_000, 110.0),
            (0, "AllReduce_2", 30_000, 131.0),
            (1, "AllReduce_1", 50_000, 7.0),
            (1, "AllReduce_2", 90_000, 8.0),
        ] {
            let slice = Slice {
                rank,
                name: "s DmaO",
                ts: host - 2.0,
                dur: 2.0,
                transfer: Some((group, "", "", 1)),
                stamps: Some([0, 0, 0, end - 2000, end]),
                ..Slice::default()
            };
            scene::add(&mut timeline, &slice);
        }
        // Means of (last - rank 0's last): 20 and 30 us: the first group.
        let outcome = v2(&mut timeline, Level::Info);
        assert_eq!((outcome.shifts, outcome.offset), (vec![0.0, -40.0], 100.0));
        let starts: Vec<f64> = timeline.events.iter().map(|e| e.ts()).collect();
        // Rank 1 takes 40 us where rank 0 takes 20: stretched twice.
        assert_eq!(starts, [108.0, 128.0, 108.0, 128.0]);
        // One group only.
        let mut timeline = scene::allreduce_tp4();
        let before: Vec<f64> = timeline.events.iter().map(|e| e.ts()).collect();
        assert_eq!(v2(&mut timeline, Level::Info).said.iter().count(), 1);
        let after: Vec<f64> = timeline.events.iter().map(|e| e.ts()).collect();
        assert_eq!(before, after);
    }
}
