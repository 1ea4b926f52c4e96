//! What TensorBoard's plugin needs besides the events: a step.
//!
//! The plugin counts all time in steps. Without any it takes the operators of the host for one,
//! and of a trace without these nothing: its average is then minus 2^64.

use super::refine::{NamedProcess, name_process};
use crate::work::STEP;
use aiprof_model::timeline::{Dialect, Event, Id, Kinds, NONE, Ph, Time, Timeline, TrackId};
use std::collections::BTreeMap;

/// What is added to a rank for the process of its host.
const HOST_PID: i64 = 1000;

/// What a rank's trace has.
struct RankExtent {
    start: Time,
    end: Time,
    /// The plugin finds steps in it.
    has_steps: bool,
    has_device: bool,
    /// A row, of the host if there is one.
    track: TrackId,
    is_host_row: bool,
}

/// Adds a step around all events of each rank whose trace has neither steps nor operators of the
/// host. Needs events on their final rows.
pub fn add_steps(timeline: &mut Timeline) {
    let kinds = Kinds::new(timeline);
    let mut ranks: BTreeMap<u32, RankExtent> = BTreeMap::new();
    for event in timeline
        .events
        .iter()
        .filter(|event| event.is_slice() && !event.dropped)
    {
        let is_device = kinds.is_device(timeline, event);
        let rank = ranks.entry(timeline.rank(event)).or_insert(RankExtent {
            start: event.start,
            end: event.end(),
            has_steps: false,
            has_device: false,
            track: event.track,
            is_host_row: !is_device,
        });
        rank.start = rank.start.min(event.start);
        rank.end = rank.end.max(event.end());
        rank.has_steps |= is_in_steps(timeline, event);
        rank.has_device |= is_device;
        if !is_device && !rank.is_host_row {
            (rank.track, rank.is_host_row) = (event.track, true);
        }
    }
    for (number, rank) in ranks {
        if rank.has_device && !rank.has_steps {
            add_step(timeline, number, &rank);
        }
    }
}

/// Whether the plugin takes the event for a step, or for a part of the only one.
fn is_in_steps(timeline: &Timeline, event: &Event) -> bool {
    let cat = timeline.name(event.cat);
    let is_one = |known: &str| cat.eq_ignore_ascii_case(known);
    let is_step = || timeline.name(event.name).starts_with(STEP);
    ["cpu_op", "operator", "python_function"]
        .into_iter()
        .any(is_one)
        || is_one("user_annotation") && is_step()
}

fn add_step(timeline: &mut Timeline, number: u32, rank: &RankExtent) {
    let known = timeline.tracks.get(rank.track);
    let job = timeline.jobs.get(known.job as usize);
    let is_flex = job.is_some_and(|job| job.dialect == Dialect::Flex);
    let shown = match number {
        NONE => 0,
        number => i64::from(number),
    };
    let is_new = is_flex && !rank.is_host_row;
    let track = timeline.tracks.like(rank.track, |track| {
        if is_new {
            track.pid = Id::Number(HOST_PID + shown);
        }
        if !rank.is_host_row {
            track.tid = Id::Number(HOST_PID);
        }
    });
    if is_new {
        let place = NamedProcess {
            pid: HOST_PID + shown,
            start: rank.start,
        };
        name_process(timeline, &format!("Host{shown}"), 3 * shown, place);
    }
    let name = timeline.names.intern("ProfilerStep#0");
    let mut step = Event::new(Ph::Complete, name, track, rank.start);
    step.length = rank.end - rank.start;
    step.cat = timeline.names.intern("user_annotation");
    step.is_refined = true;
    timeline.events.push(step);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::{normalize, refine};
    use aiprof_formats::import::json;

    fn slice(cat: &str, name: &str, pid: u32, ts: u32, dur: u32, args: &str) -> String {
        format!(
            r#"{{"ph":"X","cat":"{cat}","name":"{name}","pid":{pid},"tid":5,"ts":{ts},"dur":{dur},"args":{{{args}}}}}"#
        )
    }

    /// Steps of a trace: process, begin and length.
    fn steps(text: &str) -> Vec<(Id, f64, f64)> {
        let mut timeline = Timeline::default();
        let read = json::read(text.as_bytes(), "x.json", &mut timeline).unwrap();
        normalize::assign_ranks(&mut timeline, read.job, read.events, false);
        let kinds = Kinds::new(&timeline);
        refine::place(&mut timeline, &kinds, false);
        add_steps(&mut timeline);
        let name = timeline.names.find("ProfilerStep#0");
        let its = timeline
            .events
            .iter()
            .filter(|event| Some(event.name) == name);
        let of = |event: &Event| (timeline.pid(event), timeline.file_us(event), event.dur());
        its.map(of).collect()
    }

    #[test]
    fn traces_of_devices_alone_get_a_step() {
        let counters = r#""TS1":"1","TS2":"2","TS3":"3","TS4":"4","TS5":"5""#;
        let exec = |pid, ts| slice("", "a Cmpt Exec", pid, ts, 20, counters);
        // Two ranks, one with an event of the host.
        let events = [
            exec(0, 100),
            exec(0, 150),
            exec(1, 110),
            slice("", "AIU Roundtrip", 1, 90, 100, ""),
        ];
        let found = steps(&format!("[{}]", events.join(",")));
        assert_eq!(found, [(Id::Number(1000), 100.0, 70.0)]);
    }

    #[test]
    fn what_has_steps_gets_no_other() {
        let kernel = slice("kernel", "mm", 0, 100, 20, r#""device":0,"stream":7"#);
        let trace = |host: &str| {
            steps(&format!(
                r#"{{"deviceProperties":[],"traceEvents":[{kernel}{host}]}}"#
            ))
            .len()
        };
        let host = |cat, name| format!(",{}", slice(cat, name, 9, 90, 50, ""));
        for (cat, name, count) in [
            ("cpu_op", "aten::mm", 0),
            ("python_function", "main.py(1): f", 0),
            ("user_annotation", "ProfilerStep#3", 0),
            ("user_annotation", "forward", 1),
            ("privateuse1_runtime", "aiuMalloc", 1),
        ] {
            assert_eq!(trace(&host(cat, name)), count, "{cat}");
        }
        assert_eq!(trace(""), 1);
    }
}
