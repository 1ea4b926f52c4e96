//! Arrows of MPI: from sends to where their messages had arrived.

use super::launch_flows::INSIDE_US;
use crate::mpi::MpiTraffic;
use aiprof_model::timeline::{Event, Id, Ph, Time, Timeline};

/// Adds two events for each message whose arrival was seen, at the end of the events.
/// Needs clocks that agree, or arrows go back in time. Returns how many arrows there are.
pub(crate) fn add(timeline: &mut Timeline, traffic: &MpiTraffic) -> usize {
    let name = timeline.names.intern("message");
    let cat = timeline.names.intern("mpi");
    // Numbers that no arrow of the trace has.
    let flows = timeline
        .events
        .iter()
        .filter(|event| matches!(event.ph, Ph::FlowStart | Ph::FlowStep | Ph::FlowEnd));
    let highest = flows.filter_map(|event| event.id.number()).max();
    let first = highest.unwrap_or(0).max(0).saturating_add(1);
    let before = timeline.events.len();
    for (message, id) in traffic.messages.iter().zip(first..) {
        let Some(over) = message.arrived else {
            continue;
        };
        let mut start = Event::new(Ph::FlowStart, name, message.send.track, message.send.begin);
        let end = Time::from_micros(over.end.micros() - INSIDE_US).max(over.begin);
        let mut stop = Event::new(Ph::FlowEnd, name, over.track, end);
        stop.binds_enclosing = true;
        for event in [&mut start, &mut stop] {
            (event.cat, event.id) = (cat, Id::Number(id));
        }
        timeline.events.extend([start, stop]);
    }
    (timeline.events.len() - before) / 2
}
