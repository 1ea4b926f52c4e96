//! Small timelines for the tests of analyses.

use aiprof_model::timeline::{
    Device, Dialect, Event, Id, Job, Ph, Phase, Stated, Time, Timeline, Track, Transfer,
};

/// A timeline of one file, at 1000 ticks per microsecond.
pub fn timeline(dialect: Dialect) -> Timeline {
    let mut timeline = Timeline {
        origin: Some(1_000_000),
        ..Timeline::default()
    };
    timeline.jobs.push(Job {
        path: "t.json".into(),
        name: "t.json".into(),
        hash: 7,
        writer: "",
        dialect,
        rank: None,
        is_processed: false,
        stated: Stated::default(),
        is_recording: false,
    });
    timeline
}

/// Adds a slice on row 1000 of a rank.
pub fn slice(timeline: &mut Timeline, name: &str, rank: u32, ts: f64, dur: f64) -> usize {
    let sym = timeline.names.intern(name);
    let track = timeline.tracks.intern(Track {
        job: 0,
        rank,
        ..Track::row(Id::Number(rank.into()), Id::Number(1000))
    });
    let mut event = Event::new(Ph::Complete, sym, track, Time::from_micros(ts));
    event.set_dur(dur);
    timeline.events.push(event);
    timeline.events.len() - 1
}

/// Gives a slice its device counters, as they are once the trace is calibrated.
pub fn count(timeline: &mut Timeline, index: usize, stamps: [i64; 5], power: i64) {
    let name = timeline.events[index].name;
    let phase = Phase::of(timeline.name(name));
    timeline.events[index].device = timeline.devices.len() as u32;
    timeline.devices.push(Device {
        stamps,
        power,
        phase,
        wrapped_at: 0,
        epoch: 0,
        adjusted: (0.0, 0.0),
        moved: 0.0,
        placed: 0.0,
        piece: 0,
        is_listed: false,
        is_counted: true,
        power_is_text: true,
    });
}

/// Gives a slice a number of bytes.
pub fn transfer(timeline: &mut Timeline, index: usize, bytes: i64) {
    timeline.events[index].transfer = timeline.transfers.len() as u32;
    timeline.transfers.push(Transfer {
        bytes,
        gigabytes_per_second: f64::NAN,
        ..Transfer::default()
    });
}

/// The counters of a name: times and arguments.
pub fn counters(timeline: &Timeline, name: &str) -> Vec<(f64, String)> {
    let counters = timeline.events.iter().filter(|event| {
        event.ph == Ph::Counter && !event.dropped && timeline.name(event.name) == name
    });
    counters
        .map(|event| (event.ts(), timeline.texts.get(event.args).to_owned()))
        .collect()
}
