//! Flows: an event names their ids, and events of the same id are connected in the order of time.

use super::proto::TrackEvent;
use crate::import::json::event::Parsed;
use aiprof_model::timeline::{Event, Id, Ph};

/// A slice or moment that a flow passes.
#[derive(Clone, Copy, Debug)]
struct FlowPoint {
    /// The flow's id.
    id: u64,
    /// When, nanoseconds.
    ns: i64,
    /// The event.
    at: u32,
    /// The flow is over.
    ends: bool,
}

/// The points of all flows of a file.
#[derive(Default)]
pub(super) struct FlowPoints(Vec<FlowPoint>);

impl FlowPoints {
    /// Adds those that an event names; `ns`: when it is, `at`: its number.
    pub(super) fn add(&mut self, event: &TrackEvent, ns: i64, at: u32) {
        let on = event.flow_ids.iter().chain(&event.flow_ids_old);
        let over = event.terminating_flow_ids.iter();
        let over = over.chain(&event.terminating_flow_ids_old);
        let point = |(id, ends): (&u64, bool)| FlowPoint {
            id: *id,
            ns,
            at,
            ends,
        };
        let all = on.map(|id| (id, false)).chain(over.map(|id| (id, true)));
        self.0.extend(all.map(point));
    }

    /// Each flow as events, in the order of time.
    pub(super) fn into_events(self, parsed: &mut Parsed) -> Vec<Event> {
        let mut points = self.0;
        points.sort_by_key(|point| (point.id, point.ns));
        let name = parsed.names.intern("flow");
        let mut events: Vec<Event> = Vec::with_capacity(points.len());
        let mut is_first = true;
        for (i, point) in points.iter().enumerate() {
            let next = points.get(i + 1);
            let goes_on = next.is_some_and(|next| next.id == point.id) && !point.ends;
            let ph = match (is_first, goes_on) {
                (true, _) => Ph::FlowStart,
                (false, true) => Ph::FlowStep,
                (false, false) => Ph::FlowEnd,
            };
            is_first = !goes_on;
            let Some(at) = parsed.events.get(point.at as usize) else {
                continue;
            };
            let mut event = Event::new(ph, name, at.track, at.start);
            event.cat = name;
            event.binds_enclosing = ph == Ph::FlowEnd;
            event.id = match i64::try_from(point.id) {
                Ok(id) => Id::Number(id),
                Err(_) => Id::Token(parsed.names.intern(&point.id.to_string())),
            };
            events.push(event);
        }
        events
    }
}
