//! Counters of allocated memory, for traces that have only the allocations.

use crate::memory::{MemoryLevel, MemoryOf, MemoryReport};
use aiprof_model::timeline::{Event, Id, Ph, Text, Timeline, Track};
use rustc_hash::FxHashSet;

/// Adds a counter `Memory DEVICE` to each process: after each change of the device's memory
/// the bytes that are allocated, `Allocated`, and those that the allocator holds besides,
/// `Unused`. If several changes are at the same time, only the last has one. Counters that a
/// trace has already are not added again. Returns how many were added.
pub fn run(timeline: &mut Timeline) -> usize {
    let found = MemoryReport::without_holders(timeline);
    let known: FxHashSet<(u32, Id, String)> = timeline
        .events
        .iter()
        .filter(|event| event.ph == Ph::Counter && !event.dropped)
        .filter(|event| timeline.name(event.name).starts_with(PREFIX))
        .map(|event| {
            let name = timeline.name(event.name).to_owned();
            (timeline.job(event), timeline.pid(event), name)
        })
        .collect();
    let before = timeline.events.len();
    for one in found {
        let name = format!("{PREFIX}{}", one.of.device);
        let key = (one.of.job, one.of.process, name);
        if !known.contains(&key) {
            add(timeline, &one.of, &key.2, &one.levels);
        }
    }
    timeline.events.len() - before
}

/// How the counters' names begin.
const PREFIX: &str = "Memory ";

fn add(timeline: &mut Timeline, of: &MemoryOf, name: &str, levels: &[MemoryLevel]) {
    let name = timeline.names.intern(name);
    let cat = timeline.names.intern("Memory");
    let track = timeline.tracks.intern(Track {
        job: of.job,
        rank: of.rank,
        ..Track::row(of.process, Id::NONE)
    });
    for same in levels.chunk_by(|a, b| a.at == b.at) {
        let Some(level) = same.last() else { continue };
        let args = arguments(timeline, level);
        let mut counter = Event::new(Ph::Counter, name, track, level.at);
        (counter.cat, counter.args) = (cat, args);
        timeline.events.push(counter);
    }
}

fn arguments(timeline: &mut Timeline, level: &MemoryLevel) -> Text {
    let allocated = level.allocated;
    let text = match level.reserved {
        Some(reserved) => {
            let unused = reserved.saturating_sub(allocated);
            format!("\"Allocated\":{allocated},\"Unused\":{unused}")
        }
        None => format!("\"Allocated\":{allocated}"),
    };
    timeline.texts.add(&text)
}
