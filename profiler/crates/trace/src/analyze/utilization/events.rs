//! Utilization of the kernels of a trace: read from its events, written back to them.

use super::parts::{Parts, Steps};
use super::{CompilerInfo, CounterPoint, Fingerprints, KernelCall, UtilizationResults};
use crate::analyze::messages::Messages;
use aiprof_model::timeline::{Event, Id, Kinds, NONE, Ph, Sym, Time, Timeline, Track, Tracks};
use std::fmt::Write as _;

/// Name of the counter.
const COUNTER: &str = "PT Active";
/// Argument that stands for `[N]` in names.
const INDEX: &str = "fn_idx";

/// Adds the utilization and the category of each kernel, and the counter `PT Active`. The
/// events are in the order of their begin. `divides`: a job that holds several passes
/// through the model is a job for each of them.
pub fn run(
    timeline: &mut Timeline,
    kinds: &Kinds,
    info: &CompilerInfo,
    core_mhz: f64,
    divides: bool,
    messages: &mut Messages,
) -> UtilizationResults {
    let kernels = kernels(timeline, kinds);
    let parts = match divides {
        true => Parts::new(timeline, kinds, &kernels, info),
        false => Parts::default(),
    };
    let mut steps = Steps::default();
    let mut fingerprints = Fingerprints::new(info, core_mhz);
    for event in kernels.iter().filter_map(|i| timeline.events.get(*i)) {
        fingerprints.add(&parts.call_of(timeline, event));
    }
    let mut utilization = fingerprints.matched(messages);
    utilization.count_from(timeline.origin());
    let mut points = Vec::new();
    for index in kernels {
        let Some(event) = timeline.events.get(index).copied() else {
            continue;
        };
        let call = parts.call_of(timeline, &event);
        steps.add(timeline, &event, utilization.phase(&call));
        let found = utilization.call(&call, messages);
        let counter = utilization.counter(&call, &found);
        points.extend(counter.into_iter().flatten());
        let fraction = (found.utilization > 0.0).then_some(found.utilization);
        annotate(timeline, index, event, found.category, fraction);
    }
    let mut results = utilization.finish(messages);
    results.steps = steps.finish();
    points.extend_from_slice(&results.counters);
    add_counter(timeline, &points);
    results
}

/// The numbers of all events that are kernels on a device.
fn kernels(timeline: &Timeline, kinds: &Kinds) -> Vec<usize> {
    let events = timeline.events.iter().enumerate();
    let kernels = events.filter(|(_, event)| {
        event.is_slice() && kinds.is_device(timeline, event) && kinds.is_kernel(timeline, event)
    });
    kernels.map(|(index, _)| index).collect()
}

pub(super) fn call_of<'t>(timeline: &'t Timeline, event: &Event) -> KernelCall<'t> {
    let name = timeline.name(event.name);
    // Looked for only where it is needed: arguments are text.
    let fn_idx = match name.contains("[N]") {
        true => timeline
            .arg(event, INDEX)
            .map(|text| text.trim_matches('"')),
        false => None,
    };
    let hash = timeline
        .jobs
        .get(timeline.job(event) as usize)
        .map_or(0, |job| job.hash);
    let correlation = i64::try_from(event.correlation).ok();
    KernelCall {
        rank: rank_of(timeline, event),
        job: timeline.job(event).into(),
        label: hash.into(),
        correlation: correlation.filter(|number| *number != 0),
        part: 0,
        name,
        fn_idx,
        start_us: event.ts(),
        dur_us: event.dur(),
    }
}

fn rank_of(timeline: &Timeline, event: &Event) -> i64 {
    match timeline.rank(event) {
        NONE => timeline.pid(event).number().unwrap_or(0),
        rank => rank.into(),
    }
}

/// Writes what was found to the event: a category it has already is not replaced.
fn annotate(
    timeline: &mut Timeline,
    index: usize,
    event: Event,
    category: &str,
    fraction: Option<f64>,
) {
    let mut members = String::new();
    if event.cat.is_empty() {
        let category = timeline.names.intern(category);
        if let Some(event) = timeline.events.get_mut(index) {
            event.cat = category;
        }
    } else {
        let category = serde_json::Value::from(category);
        // Writing to a string cannot fail.
        let _ = write!(members, "\"user_cat\":{category}");
    }
    if let Some(fraction) = fraction.filter(|fraction| fraction.is_finite()) {
        let comma = if members.is_empty() { "" } else { "," };
        let _ = write!(
            members,
            "{comma}\"pt_active\":{fraction:?},\"core used\":true"
        );
    }
    if !members.is_empty() {
        timeline.add_args(index, &members);
    }
}

fn add_counter(timeline: &mut Timeline, points: &[CounterPoint]) {
    if points.is_empty() {
        return;
    }
    let name = timeline.names.intern(COUNTER);
    let zero = timeline.texts.add("\"Percent\":0.0");
    timeline.events.reserve(points.len());
    for point in points.iter().filter(|point| point.percent.is_finite()) {
        let mut event = counter_event(&mut timeline.tracks, name, point);
        event.args = match point.percent == 0.0 {
            true => zero,
            false => timeline
                .texts
                .add(&format!("\"Percent\":{:?}", point.percent)),
        };
        timeline.events.push(event);
    }
}

fn counter_event(tracks: &mut Tracks, name: Sym, point: &CounterPoint) -> Event {
    let track = tracks.intern(Track {
        rank: u32::try_from(point.rank).unwrap_or(NONE),
        ..Track::row(Id::Number(point.rank), Id::NONE)
    });
    Event::new(Ph::Counter, name, track, Time::from_micros(point.ts_us))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::messages::Level;
    use crate::analyze::normalize;
    use crate::analyze::utilization::compiler_log;
    use aiprof_formats::import::json;

    const LOG: &str = " Ideal/Total Cycles \nk_3-opCatX 10\nz-opCatY 0\n\
                       ====== Perf Summary End ======\n";

    fn analysed(text: &str) -> (Timeline, UtilizationResults) {
        let mut messages = Messages::new(Level::Error);
        let tables = compiler_log::read(&mut LOG.as_bytes(), &mut messages).unwrap();
        let info = CompilerInfo { logs: vec![tables] };
        let mut timeline = Timeline::default();
        let reading = json::read(text.as_bytes(), "x.json", &mut timeline).unwrap();
        normalize::assign_ranks(&mut timeline, reading.job, reading.events, false);
        let kinds = Kinds::new(&timeline);
        let results = run(&mut timeline, &kinds, &info, 1.0, true, &mut messages);
        (timeline, results)
    }

    fn counters(timeline: &Timeline) -> Vec<(f64, Id, &str)> {
        let events = timeline.events.iter().filter(|e| e.ph == Ph::Counter);
        events
            .map(|e| {
                (
                    e.ts() + timeline.origin() as f64,
                    timeline.pid(e),
                    timeline.texts.get(e.args),
                )
            })
            .collect()
    }

    #[test]
    fn torch_kernels_keep_their_category_and_get_another() {
        let text = r#"{"deviceProperties":[{"id":0}],"traceEvents":[
            {"ph":"X","cat":"kernel","name":"k_[N]","pid":0,"tid":1,"ts":100,"dur":40,
             "args":{"correlation":5,"fn_idx":3}},
            {"ph":"X","cat":"kernel","name":"z","pid":0,"tid":1,"ts":200,"dur":1,
             "args":{"correlation":6}},
            {"ph":"X","cat":"cpu_op","name":"k_3","pid":0,"tid":1,"ts":300,"dur":1,"args":{}}]}"#;
        let (timeline, results) = analysed(text);
        let arg = |i: usize, key: &str| timeline.arg(&timeline.events[i], key);
        assert_eq!(arg(0, "pt_active"), Some("0.25"));
        assert_eq!(arg(0, "core used"), Some("true"));
        assert_eq!(arg(0, "user_cat"), Some("\"X\""));
        assert_eq!(
            (arg(1, "user_cat"), arg(1, "pt_active")),
            (Some("\"Y\""), None)
        );
        assert_eq!(arg(2, "user_cat"), None);
        assert_eq!(
            counters(&timeline),
            [
                (100.0, Id::Number(0), "\"Percent\":25.0"),
                (140.0, Id::Number(0), "\"Percent\":0.0"),
            ]
        );
        let total = results.categories[0].iter().find(|r| r.category == "Total");
        assert_eq!(total.map(|r| (r.calls, r.time_us)), Some((2, 41.0)));
    }

    #[test]
    fn flex_kernels_have_counters_of_the_device_and_get_a_category() {
        let counted = r#""args":{"TS1":1,"TS2":2,"TS3":3,"TS4":4,"TS5":5}"#;
        let text = format!(
            r#"[{{"ph":"X","name":"k_3 Cmpt Exec","pid":2,"tid":1,"ts":100,"dur":40,{counted}}},
                {{"ph":"X","name":"k_3 Cmpt Exec","pid":2,"tid":1,"ts":200,"dur":40,"args":{{}}}}]"#
        );
        let (timeline, results) = analysed(&text);
        assert_eq!(timeline.name(timeline.events[0].cat), "X");
        assert!(timeline.events[1].cat.is_empty());
        assert_eq!(counters(&timeline).len(), 2);
        assert_eq!(results.categories[0][0].rank, 2);
        assert_eq!(results.sums[&2].matmul_us, 40.0);
    }
}
