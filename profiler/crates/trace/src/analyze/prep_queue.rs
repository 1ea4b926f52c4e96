//! How many preparations of computations are pending at a time.

use aiprof_model::timeline::number::SAME_US;
use aiprof_model::timeline::{Event, Id, Kind, Kinds, Ph, Text, Time, Timeline, Track};
use rustc_hash::FxHashMap;

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrepQueueReport {
    /// Preparations that were counted.
    pub preps: usize,
    /// How many of these were dropped.
    pub dropped: usize,
    /// Counters that were added.
    pub counters: usize,
}

/// Begin or end of a preparation.
#[derive(Clone, Copy)]
struct Edge {
    /// In the order in which row groups appeared.
    place: u32,
    ts: f64,
    step: i64,
}

/// Adds a counter `ConcurrentPreps` to each row group: one event for each time at
/// which a `Cmpt Prep` begins or ends, with the number that is pending from then on.
/// The preparations themselves are dropped, unless they shall be kept.
///
/// Takes the events in any order, calibrated; appends the counters, those of a row
/// group together and by time. acelyzer forgets outer preparations where an inner
/// one ends, and depends on the order of events; this does neither.
pub fn run(timeline: &mut Timeline, kinds: &Kinds, keep_prep: bool) -> PrepQueueReport {
    let mut outcome = PrepQueueReport::default();
    let (mut places, mut groups) = (FxHashMap::default(), Vec::new());
    let mut edges = Vec::new();
    let Timeline { events, tracks, .. } = &mut *timeline;
    for event in events {
        if event.dropped || !event.is_slice() || !kinds.of(event.name).is(Kind::PREP) {
            continue;
        }
        let place = *places.entry(tracks.pid(event)).or_insert_with(|| {
            groups.push((tracks.pid(event), tracks.rank(event)));
            groups.len() as u32 - 1
        });
        let edge = |ts, step| Edge { place, ts, step };
        edges.extend([edge(event.ts(), 1), edge(event.end_us(), -1)]);
        outcome.preps += 1;
        event.dropped = !keep_prep;
        outcome.dropped += usize::from(event.dropped);
    }
    edges.sort_by(|a, b| a.place.cmp(&b.place).then(a.ts.total_cmp(&b.ts)));
    let before = timeline.events.len();
    add_counters(timeline, &edges, &groups);
    outcome.counters = timeline.events.len() - before;
    outcome
}

fn add_counters(timeline: &mut Timeline, edges: &[Edge], groups: &[(Id, u32)]) {
    let name = timeline.names.intern("ConcurrentPreps");
    let cat = timeline.names.intern("Pending Prep Events");
    let mut texts: FxHashMap<i64, Text> = FxHashMap::default();
    let mut pending = 0i64;
    let same = |a: &Edge, b: &Edge| a.place == b.place && b.ts - a.ts < SAME_US;
    for edges in edges.chunk_by(same) {
        let Some(first) = edges.first() else { continue };
        // Whatever began in a row group ends in it: between groups it is zero.
        pending += edges.iter().map(|edge| edge.step).sum::<i64>();
        let Some((pid, rank)) = groups.get(first.place as usize) else {
            continue;
        };
        let args = *texts.entry(pending).or_insert_with(|| {
            let text = format!("\"Concurrency\":{pending}");
            timeline.texts.add(&text)
        });
        let track = timeline.tracks.intern(Track {
            rank: *rank,
            ..Track::row(*pid, Id::NONE)
        });
        let mut counter = Event::new(Ph::Counter, name, track, Time::from_micros(first.ts));
        (counter.cat, counter.args) = (cat, args);
        timeline.events.push(counter);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::timeline::Dialect;
    use aiprof_testkit::timelines as testing;

    fn counted(preps: &[(u32, f64, f64)], keep: bool) -> (Timeline, PrepQueueReport) {
        let mut timeline = testing::timeline(Dialect::Flex);
        for (rank, ts, dur) in preps {
            testing::slice(&mut timeline, "add Cmpt Prep", *rank, *ts, *dur);
        }
        testing::slice(&mut timeline, "add Cmpt Exec", 0, 0.0, 1.0);
        let kinds = Kinds::new(&timeline);
        let outcome = run(&mut timeline, &kinds, keep);
        (timeline, outcome)
    }

    fn steps(timeline: &Timeline) -> Vec<(f64, i64)> {
        let counters = testing::counters(timeline, "ConcurrentPreps");
        let value = |text: &str| text.strip_prefix("\"Concurrency\":").unwrap().parse();
        counters
            .iter()
            .map(|(ts, args)| (*ts, value(args).unwrap()))
            .collect()
    }

    /// acelyzer 1.3.0 gives these counters for the same three slices in this order.
    #[test]
    fn overlapping_and_touching_preparations_are_counted_as_acelyzer_does() {
        let (timeline, outcome) = counted(&[(0, 0.0, 10.0), (0, 5.0, 10.0), (0, 15.0, 5.0)], false);
        let expected = [(0.0, 1), (5.0, 2), (10.0, 1), (15.0, 1), (20.0, 0)];
        assert_eq!(steps(&timeline), expected);
        assert_eq!(
            (outcome.preps, outcome.dropped, outcome.counters),
            (3, 3, 5)
        );
        assert_eq!(timeline.events.iter().filter(|e| e.dropped).count(), 3);
    }

    /// By hand: at 4 the outer one still runs. (acelyzer 1.3.0 has 0 there.)
    #[test]
    fn an_inner_preparation_ends_alone() {
        let (timeline, _) = counted(&[(0, 0.0, 10.0), (0, 2.0, 2.0)], false);
        let expected = [(0.0, 1), (2.0, 2), (4.0, 1), (10.0, 0)];
        assert_eq!(steps(&timeline), expected);
    }

    #[test]
    fn the_order_of_events_does_not_matter() {
        let ordered = [(0, 0.0, 4.0), (0, 1.0, 9.0), (0, 3.0, 1.0), (0, 8.0, 5.0)];
        let mut reversed = ordered;
        reversed.reverse();
        let (one, _) = counted(&ordered, true);
        let (other, outcome) = counted(&reversed, true);
        assert_eq!(steps(&one), steps(&other));
        assert_eq!((outcome.preps, outcome.dropped), (4, 0));
    }

    #[test]
    fn ranks_are_counted_apart_and_odd_times_lose_nothing() {
        let (timeline, _) = counted(&[(1, 5.0, 1.0), (0, 5.0, 1.0), (1, 5.5, 1.0)], false);
        let counters = timeline.events.iter().filter(|e| e.ph == Ph::Counter);
        let of: Vec<_> = counters
            .map(|e| (timeline.pid(e).number(), timeline.rank(e), e.ts()))
            .collect();
        assert_eq!(of.len(), 6);
        assert_eq!(of.iter().filter(|e| e.0 == Some(1) && e.1 == 1).count(), 4);
        for odd in [(0, 1e15, 1e15), (0, -1e300, 1e300), (0, 3.0, 0.0)] {
            let (timeline, outcome) = counted(&[odd], false);
            assert_eq!(outcome.preps, 1);
            assert_eq!(steps(&timeline).last().unwrap().1, 0);
        }
        assert_eq!(counted(&[], false).1, PrepQueueReport::default());
    }
}
