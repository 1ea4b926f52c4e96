//! Lines for plots: every counter of a trace over time, and how busy each device was.
//!
//! A line has at most [`POINTS`] points, however many readings there are: each point then
//! stands for several, with their least, mean and greatest value.

use aiprof_model::timeline::{Event, Id, Kind, Kinds, NONE, Ph, Sym, Timeline};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::collections::BTreeMap;

/// Most points of a line.
pub const POINTS: usize = 1000;
/// Most lines; a trace may come with any number of counters of its own.
const LINES: usize = 512;
/// Points of a line that shows how busy a device was.
const BUSY_PARTS: usize = 400;

/// One point of a line: microseconds since the first event, then the least, the mean
/// and the most of the counter from there to the next point.
pub type Point = (f64, f64, f64, f64);

/// A line of a plot. The counter holds each value until its next reading.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// The counter's name.
    pub name: String,
    /// Unit of its values; empty: a number.
    pub unit: String,
    /// Rank; `None`: it is about all of them.
    pub rank: Option<u32>,
    /// Readings that the points stand for.
    pub readings: usize,
    /// In the order of time.
    pub points: Vec<Point>,
}

/// The lines of a trace.
#[derive(Clone, Debug, Default)]
pub(super) struct Plots {
    /// How busy devices were first, then counters by name and rank.
    pub(super) series: Vec<Series>,
    /// Further ones, that were left out.
    pub(super) left_out: usize,
}

/// A counter: name and member, row group, and rank.
type Key = (String, String, Option<u32>, Id);

/// Gathers them from a finished timeline.
pub(super) fn gather(timeline: &Timeline) -> Plots {
    let timed = timeline.events.iter().filter(|e| e.ph != Ph::Metadata);
    let first = timed.map(|e| e.ts()).fold(f64::MAX, f64::min);
    let mut plots = Plots {
        series: busy(timeline, first),
        left_out: 0,
    };
    let (counters, left_out) = counters(timeline);
    plots.left_out = left_out;
    for ((name, member, rank, _), mut readings) in counters {
        readings.sort_by(|a, b| a.0.total_cmp(&b.0));
        plots.series.push(Series {
            unit: unit(&name, &member),
            rank,
            readings: readings.len(),
            points: thinned(&readings, first),
            name,
        });
    }
    plots
}

type Counters = BTreeMap<Key, Vec<(f64, f64)>>;

/// Members of a counter, and their lines; `None`: there was no room for one.
type Members = Vec<(String, Option<usize>)>;

/// Times and values of the counters, and how many counters did not fit.
fn counters(timeline: &Timeline) -> (Counters, usize) {
    let mut lines: Vec<(Key, Vec<(f64, f64)>)> = Vec::new();
    // By name and row group its members, of which there is nearly always one.
    let mut places: FxHashMap<(Sym, Id), Members> = FxHashMap::default();
    let counters = timeline.events.iter();
    for event in counters.filter(|e| e.ph == Ph::Counter && !e.dropped) {
        let places = places.entry((event.name, timeline.pid(event))).or_default();
        members(timeline.texts.get(event.args), &mut |member, value| {
            let known = places.iter().find(|(known, _)| known == member);
            let place = known.map(|(_, place)| *place).unwrap_or_else(|| {
                let place = (lines.len() < LINES).then_some(lines.len());
                if place.is_some() {
                    let name = timeline.name(event.name).to_owned();
                    let key = (
                        name,
                        member.to_owned(),
                        rank(timeline, event),
                        timeline.pid(event),
                    );
                    lines.push((key, Vec::new()));
                }
                places.push((member.to_owned(), place));
                place
            });
            if let Some((_, readings)) = place.and_then(|place| lines.get_mut(place)) {
                readings.push((event.ts(), value));
            }
        });
    }
    let places = places.values().flatten();
    let left_out = places.filter(|(_, place)| place.is_none()).count();
    (lines.into_iter().collect(), left_out)
}

fn rank(timeline: &Timeline, event: &Event) -> Option<u32> {
    let is_of_all = timeline.pid(event).number().is_some_and(|pid| pid < 0);
    (timeline.rank(event) != NONE && !is_of_all).then_some(timeline.rank(event))
}

/// The numbers among the members of a counter's arguments.
fn members(args: &str, each: &mut dyn FnMut(&str, f64)) {
    // Our own have one member; what else there is goes through the parser.
    let simple = args
        .strip_prefix('"')
        .and_then(|rest| rest.split_once("\":"));
    if let Some((member, value)) = simple
        && !member.contains(['\\', '"'])
        && let Ok(value) = value.trim().parse::<f64>()
    {
        if value.is_finite() {
            each(member, value);
        }
        return;
    }
    let text = format!("{{{args}}}");
    let parsed = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&text);
    for (member, value) in parsed.iter().flatten() {
        if let Some(value) = value.as_f64().filter(|value| value.is_finite()) {
            each(member, value);
        }
    }
}

/// The unit of a counter's member. acelyzer calls bytes per microsecond `Bytes`.
fn unit(name: &str, member: &str) -> String {
    match (name, member) {
        (name, "Bytes") if name.starts_with("BW ") => "MB/s",
        (_, "Watts") => "W",
        (_, "Percent") => "%",
        (_, "GBps" | "Unit GBps") => "GB/s",
        (_, "Concurrency") => "",
        (_, member) => member,
    }
    .to_owned()
}

/// Parts of equally many readings.
fn thinned(readings: &[(f64, f64)], first: f64) -> Vec<Point> {
    let size = readings.len().div_ceil(POINTS).max(1);
    let mut points = Vec::with_capacity(readings.len().div_ceil(size));
    for (index, part) in readings.chunks(size).enumerate() {
        let Some((ts, _)) = part.first() else {
            continue;
        };
        let next = readings.get((index + 1) * size).map(|reading| reading.0);
        let values = part.iter().map(|(_, value)| *value);
        let least = values.clone().fold(f64::MAX, f64::min);
        let most = values.fold(f64::MIN, f64::max);
        let mean = mean(part, next).max(least).min(most);
        points.push((ts - first, least, mean, most));
    }
    points
}

/// At most this many points, where necessary of several each.
pub fn thin(points: &[Point], most: usize) -> Vec<Point> {
    let size = points.len().div_ceil(most.max(1)).max(1);
    if size == 1 {
        return points.to_vec();
    }
    let mut thin = Vec::with_capacity(points.len().div_ceil(size));
    for (index, part) in points.chunks(size).enumerate() {
        let Some((ts, ..)) = part.first() else {
            continue;
        };
        let next = points.get((index + 1) * size).map(|point| point.0);
        let least = part.iter().map(|p| p.1).fold(f64::MAX, f64::min);
        let most = part.iter().map(|p| p.3).fold(f64::MIN, f64::max);
        let means: Vec<(f64, f64)> = part.iter().map(|p| (p.0, p.2)).collect();
        thin.push((*ts, least, mean(&means, next).max(least).min(most), most));
    }
    thin
}

/// Mean over time, until the next part begins.
fn mean(part: &[(f64, f64)], next: Option<f64>) -> f64 {
    let ends = part.iter().skip(1).map(|(ts, _)| *ts).chain(next);
    let (mut sum, mut time) = (0.0, 0.0);
    for ((ts, value), end) in part.iter().zip(ends) {
        sum += value * (end - ts);
        time += end - ts;
    }
    if time > 0.0 && (sum / time).is_finite() {
        return sum / time;
    }
    let count = part.len().max(1) as f64;
    part.iter().map(|(_, value)| value / count).sum()
}

/// How much of the time kernels ran, by rank, in equal parts of the time in which any
/// device ran any.
fn busy(timeline: &Timeline, first: f64) -> Vec<Series> {
    let kinds = Kinds::new(timeline);
    let mut spans: BTreeMap<u32, Vec<(f64, f64)>> = BTreeMap::new();
    for event in timeline.events.iter().filter(|e| e.is_slice()) {
        let name = event.original_name();
        let is_kernel = kinds.of(name).is(Kind::HAS_EXEC) || kinds.is_kernel(timeline, event);
        if is_kernel && !event.dropped && timeline.rank(event) != NONE {
            let spans = spans.entry(timeline.rank(event)).or_default();
            spans.push((event.ts() - first, event.end_us() - first));
        }
    }
    let all = spans.values().flatten();
    let (begin, end) = all.fold((f64::MAX, f64::MIN), |(begin, end), span| {
        (begin.min(span.0), end.max(span.1))
    });
    let width = (end - begin) / BUSY_PARTS as f64;
    if !(width > 0.0 && width.is_finite()) {
        return Vec::new();
    }
    spans
        .into_iter()
        .take(LINES)
        .map(|(rank, mut spans)| {
            spans.sort_by(|a, b| a.0.total_cmp(&b.0));
            let parts = parts(&spans, begin, width);
            let points = parts.iter().enumerate().map(|(part, us)| {
                let percent = (us / width * 100.0).clamp(0.0, 100.0);
                (begin + part as f64 * width, percent, percent, percent)
            });
            Series {
                name: "Device busy".to_owned(),
                unit: "%".to_owned(),
                rank: Some(rank),
                readings: spans.len(),
                points: points.chain([(end, 0.0, 0.0, 0.0)]).collect(),
            }
        })
        .collect()
}

/// How long at least one of the spans, sorted by begin, lasts in each part.
fn parts(spans: &[(f64, f64)], begin: f64, width: f64) -> Vec<f64> {
    let mut parts = vec![0.0; BUSY_PARTS];
    let mut until = f64::MIN;
    for (from, to) in spans {
        let from = from.max(until);
        if *to <= from {
            continue;
        }
        until = *to;
        let part = |ts: f64| (((ts - begin) / width).max(0.0) as usize).min(BUSY_PARTS - 1);
        for index in part(from)..=part(*to) {
            let start = begin + index as f64 * width;
            let covered = to.min(start + width) - from.max(start);
            if let Some(sum) = parts.get_mut(index) {
                *sum += covered.max(0.0);
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::timeline::{Dialect, Time, Track};
    use aiprof_testkit::timelines as testing;

    fn counter(timeline: &mut Timeline, name: &str, rank: u32, ts: f64, args: &str) {
        let name = timeline.names.intern(name);
        let track = timeline.tracks.intern(Track {
            job: 0,
            rank,
            ..Track::row(Id::Number(rank.into()), Id::NONE)
        });
        let mut event = Event::new(Ph::Counter, name, track, Time::from_micros(ts));
        event.args = timeline.texts.add(args);
        timeline.events.push(event);
    }

    #[test]
    fn counters_become_lines_of_rank_and_member() {
        let mut timeline = testing::timeline(Dialect::Flex);
        counter(&mut timeline, "Power", 1, 12.0, "\"Watts\":7.5");
        counter(&mut timeline, "Power", 0, 10.0, "\"Watts\":5");
        counter(&mut timeline, "Power", 0, 11.0, "\"Watts\": 6 ");
        counter(
            &mut timeline,
            "own",
            0,
            13.0,
            r#""a\"b":1,"c":2.5,"text":"x""#,
        );
        counter(&mut timeline, "BW DmaI", 0, 13.0, "\"Bytes\":8");
        counter(&mut timeline, "broken", 0, 14.0, "\"x\":1e999");
        counter(&mut timeline, "broken", 0, 14.0, "no JSON");
        let lines = gather(&timeline).series;
        let told: Vec<_> = lines
            .iter()
            .map(|l| (l.name.as_str(), l.unit.as_str(), l.rank, l.points.clone()))
            .collect();
        assert_eq!(
            told,
            [
                ("BW DmaI", "MB/s", Some(0), vec![(3.0, 8.0, 8.0, 8.0)]),
                (
                    "Power",
                    "W",
                    Some(0),
                    vec![(0.0, 5.0, 5.0, 5.0), (1.0, 6.0, 6.0, 6.0)]
                ),
                ("Power", "W", Some(1), vec![(2.0, 7.5, 7.5, 7.5)]),
                ("own", "a\"b", Some(0), vec![(3.0, 1.0, 1.0, 1.0)]),
                ("own", "c", Some(0), vec![(3.0, 2.5, 2.5, 2.5)]),
            ]
        );
    }

    #[test]
    fn many_readings_become_least_mean_and_most() {
        // 100 W for 1 us, then 0 W for 3 us, and so on: 25 W on the average.
        let readings: Vec<(f64, f64)> = (0..4000)
            .map(|n| match n % 2 {
                0 => (f64::from(n) * 2.0, 100.0),
                _ => (f64::from(n) * 2.0 - 1.0, 0.0),
            })
            .collect();
        let points = thinned(&readings, 0.0);
        assert_eq!(points.len(), POINTS);
        assert_eq!(points[0], (0.0, 0.0, 25.0, 100.0));
        assert_eq!(points[500], (4000.0, 0.0, 25.0, 100.0));
        assert!(thinned(&[], 0.0).is_empty());
    }

    #[test]
    fn thinning_twice_keeps_the_least_the_mean_and_the_most() {
        let points: Vec<Point> = (0..10)
            .map(|n| {
                (
                    f64::from(n),
                    f64::from(n),
                    f64::from(n) + 1.0,
                    f64::from(n) + 2.0,
                )
            })
            .collect();
        assert_eq!(thin(&points, 10), points);
        let thin = thin(&points, 3);
        let want = [
            (0.0, 0.0, 2.5, 5.0),
            (4.0, 4.0, 6.5, 9.0),
            // It is not known how long the last point holds.
            (8.0, 8.0, 9.0, 11.0),
        ];
        assert_eq!(thin, want);
    }

    #[test]
    fn equal_times_and_huge_values_have_a_mean() {
        let readings = vec![(1.0, f64::MAX); 3000];
        let points = thinned(&readings, 1.0);
        assert_eq!(points.len(), POINTS);
        assert!(
            points
                .iter()
                .all(|p| *p == (0.0, f64::MAX, f64::MAX, f64::MAX))
        );
    }

    #[test]
    fn the_number_of_lines_is_bounded_and_the_rest_counted() {
        let mut timeline = testing::timeline(Dialect::Flex);
        for n in 0..LINES + 7 {
            counter(&mut timeline, &format!("c{n}"), 0, n as f64, "\"x\":1");
            counter(&mut timeline, &format!("c{n}"), 0, n as f64, "\"x\":2");
        }
        let plots = gather(&timeline);
        assert_eq!((plots.series.len(), plots.left_out), (LINES, 7));
    }

    #[test]
    fn a_device_is_busy_while_any_kernel_runs() {
        let mut timeline = testing::timeline(Dialect::Flex);
        // 0 to 100 and 50 to 200 together last 200; then nothing until 300 to 400.
        for (ts, dur) in [(50.0, 150.0), (0.0, 100.0), (300.0, 100.0)] {
            testing::slice(&mut timeline, "a Cmpt Exec", 2, ts, dur);
        }
        testing::slice(&mut timeline, "host work", 2, 0.0, 1000.0);
        let lines = gather(&timeline).series;
        assert_eq!(lines.len(), 1);
        assert_eq!((lines[0].rank, lines[0].readings), (Some(2), 3));
        let points = &lines[0].points;
        assert_eq!(points.len(), BUSY_PARTS + 1);
        let at = |us: f64| points.iter().rfind(|p| p.0 <= us).unwrap().2;
        let values = [10.5, 99.5, 199.5, 200.5, 299.5, 300.5, 399.5, 400.0].map(at);
        assert_eq!(values, [100.0, 100.0, 100.0, 0.0, 0.0, 100.0, 100.0, 0.0]);
        let mean = points.iter().map(|p| p.2).sum::<f64>() / BUSY_PARTS as f64;
        assert!((mean - 75.0).abs() < 1e-9, "{mean}");
    }

    #[test]
    fn an_empty_trace_has_no_lines() {
        let plots = gather(&testing::timeline(Dialect::Torch));
        assert!(plots.series.is_empty() && plots.left_out == 0);
    }
}
