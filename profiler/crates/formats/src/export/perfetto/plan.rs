//! Which track events a timeline becomes, and in which order.

use super::tracks::{RowKey, TrackTable};
use crate::timeline::lanes::{self, Nest};
use aiprof_model::timeline::{Dialect, Event, Id, Ph, Sym, Time, Timeline};
use std::hash::{Hash as _, Hasher as _};

/// An event on a row.
#[derive(Clone, Copy, Debug)]
struct Item {
    row: u32,
    event: u32,
    /// Nanoseconds since the timeline's origin.
    from: i64,
    to: i64,
}

/// What a step writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Begin,
    End,
    Instant,
    Counter,
}

/// A track event to write.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedEvent {
    pub what: What,
    /// The event, of [`Timeline::events`].
    pub event: u32,
    pub track: u64,
    /// Nanoseconds since the timeline's origin.
    pub ns: i64,
}

/// A flow that passes a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SliceFlow {
    /// The slice's event, or the flow's own where no slice is.
    pub event: u32,
    pub id: u64,
    pub ends: bool,
}

/// All that is known before writing.
pub(super) struct TracePlan<'t> {
    timeline: &'t Timeline,
    pub tracks: TrackTable,
    items: Vec<Item>,
    /// By event.
    pub flows: Vec<SliceFlow>,
    /// Category and name of the flows whose ids are taken as they are.
    plain_flows: Option<(Sym, Sym)>,
    /// What is added to times, nanoseconds: Perfetto has none before 0.
    pub zero: i128,
}

/// The slices that are open on a track: the event of each, and when it began.
type Lane = Nest<i64, (u32, i64)>;

/// What is found while walking.
trait Sink {
    fn step(&mut self, step: PlannedEvent) -> bool;
    fn flow(&mut self, flow_event: u32, slice: Option<u32>);
}

impl<'t> TracePlan<'t> {
    pub(super) fn new(timeline: &'t Timeline, order: &[u32]) -> Self {
        let mut plan = Self {
            timeline,
            tracks: TrackTable::default(),
            items: Vec::with_capacity(order.len()),
            flows: Vec::new(),
            plain_flows: None,
            zero: 0,
        };
        for index in order {
            if let Some(event) = timeline.events.get(*index as usize) {
                plan.add(*index, event);
            }
        }
        let first = plan.items.iter().map(|item| item.from).min().unwrap_or(0);
        let origin = i128::from(timeline.origin()) * 1000;
        plan.zero = origin + (-(origin + i128::from(first))).max(0);
        plan.items.sort_by(|a, b| {
            (a.row, a.from, plan_order(timeline, a), b.to).cmp(&(
                b.row,
                b.from,
                plan_order(timeline, b),
                a.to,
            ))
        });
        plan.tracks.number();
        plan.bind_flows();
        let lanes = plan.count_lanes();
        plan.tracks.set_lanes(lanes);
        plan
    }

    fn add(&mut self, index: u32, event: &Event) {
        if event.dropped {
            return;
        }
        if event.ph == Ph::Metadata {
            return self.tracks.name(self.timeline, event);
        }
        let mut track = self.timeline.track(event);
        let key = match event.ph {
            Ph::Counter => RowKey::Process,
            Ph::AsyncBegin | Ph::AsyncEnd | Ph::AsyncInstant => RowKey::Async(event.cat, event.id),
            _ if !track.tid.is_given() || is_of_process(self.timeline, event) => RowKey::Process,
            _ => RowKey::Thread(track.tid),
        };
        if let RowKey::Async(..) = key {
            track.pid = self.tracks.owner(self.timeline, event);
        }
        if event.ph == Ph::Counter {
            self.tracks.counters(self.timeline, event);
        }
        if is_flow(event) && self.plain_flows.is_none() {
            self.plain_flows = Some((event.cat, event.name));
        }
        let row = self.tracks.row(track.pid, key, event.name);
        let beyond = self
            .timeline
            .origin_of(event)
            .saturating_sub(self.timeline.origin());
        let mut from = nanos(event.start, beyond);
        let mut to = match event.ph {
            Ph::Complete => nanos(event.end(), beyond).max(from),
            _ => from,
        };
        // What is too far before all others is at 0, as in JSON.
        if event.start == Time::FIRST {
            let length = to - from;
            from = nanos(Time::ORIGIN, self.timeline.origin().saturating_neg());
            to = from.saturating_add(length);
        }
        self.items.push(Item {
            row,
            event: index,
            from,
            to,
        });
    }

    fn flow_id(&self, event: &Event) -> u64 {
        let plain = match event.id {
            Id::Number(id) if self.plain_flows == Some((event.cat, event.name)) => id,
            _ => 0,
        };
        match u64::try_from(plain) {
            Ok(id) if id > 0 => id,
            _ => {
                let mut hasher = rustc_hash::FxHasher::default();
                (event.cat, event.name, event.id).hash(&mut hasher);
                hasher.finish() >> 2 | 1 << 62
            }
        }
    }

    fn bind_flows(&mut self) {
        struct Binder<'p, 't> {
            plan: &'p TracePlan<'t>,
            flows: Vec<SliceFlow>,
        }
        impl Sink for Binder<'_, '_> {
            fn step(&mut self, _: PlannedEvent) -> bool {
                true
            }
            fn flow(&mut self, flow_event: u32, slice: Option<u32>) {
                let Some(event) = self.plan.timeline.events.get(flow_event as usize) else {
                    return;
                };
                self.flows.push(SliceFlow {
                    event: slice.unwrap_or(flow_event),
                    id: self.plan.flow_id(event),
                    ends: event.ph == Ph::FlowEnd,
                });
            }
        }
        let mut binder = Binder {
            plan: self,
            flows: self.bound_flows(),
        };
        self.walk_into(&mut binder, &mut []);
        let mut flows = binder.flows;
        flows.sort_by_key(|flow| (flow.event, flow.ends, flow.id));
        flows.dedup();
        self.flows = flows;
    }

    /// Flows that slices themselves name.
    fn bound_flows(&self) -> Vec<SliceFlow> {
        let timeline = self.timeline;
        let flow = |item: &Item| {
            let event = timeline.events.get(item.event as usize)?;
            let bound = timeline.bound_flow(event)?;
            let mut hasher = rustc_hash::FxHasher::default();
            bound.id.hash(&mut hasher);
            Some(SliceFlow {
                event: item.event,
                id: hasher.finish() >> 2 | 1 << 62,
                ends: !bound.begins,
            })
        };
        self.items.iter().filter_map(flow).collect()
    }

    /// How many tracks each row needs.
    fn count_lanes(&self) -> Vec<u32> {
        struct Nothing;
        impl Sink for Nothing {
            fn step(&mut self, _: PlannedEvent) -> bool {
                true
            }
            fn flow(&mut self, _: u32, _: Option<u32>) {}
        }
        let mut lanes = vec![1; self.tracks.rows()];
        self.walk_into(&mut Nothing, &mut lanes);
        lanes
    }

    /// Gives all track events, row by row, until `take` returns false. Returns how many
    /// slices were cut short.
    pub(super) fn walk(&self, take: &mut impl FnMut(PlannedEvent) -> bool) -> u64 {
        struct PlannedEvents<F>(F);
        impl<F: FnMut(PlannedEvent) -> bool> Sink for PlannedEvents<F> {
            fn step(&mut self, step: PlannedEvent) -> bool {
                self.0(step)
            }
            fn flow(&mut self, _: u32, _: Option<u32>) {}
        }
        self.walk_into(&mut PlannedEvents(take), &mut [])
    }

    fn walk_into(&self, sink: &mut impl Sink, lanes: &mut [u32]) -> u64 {
        let mut clipped = 0;
        for items in self.items.chunk_by(|a, b| a.row == b.row) {
            let Some(row) = items.first().map(|item| item.row) else {
                continue;
            };
            let mut walk = RowWalk {
                plan: self,
                row,
                lanes: vec![Lane::default()],
                waiting: Vec::new(),
                clipped: 0,
            };
            let goes_on = items.iter().all(|item| walk.item(item, sink)) && walk.close(sink);
            clipped += walk.clipped;
            if let Some(lanes) = lanes.get_mut(row as usize) {
                *lanes = walk.lanes.len() as u32;
            }
            if !goes_on {
                break;
            }
        }
        clipped
    }

    /// The flows of an event.
    pub(super) fn flows_of(&self, event: u32) -> &[SliceFlow] {
        let from = self.flows.partition_point(|flow| flow.event < event);
        let to = self.flows.partition_point(|flow| flow.event <= event);
        self.flows.get(from..to).unwrap_or_default()
    }
}

/// Goes through one row.
struct RowWalk<'p, 't> {
    plan: &'p TracePlan<'t>,
    row: u32,
    /// The row's tracks.
    lanes: Vec<Lane>,
    /// Flows that end in the next slice.
    waiting: Vec<u32>,
    clipped: u64,
}

impl RowWalk<'_, '_> {
    fn item(&mut self, item: &Item, sink: &mut impl Sink) -> bool {
        let Some(event) = self.plan.timeline.events.get(item.event as usize) else {
            return true;
        };
        match event.ph {
            Ph::Complete => self.slice(item, sink),
            Ph::FlowStart | Ph::FlowStep | Ph::FlowEnd => self.flow(item, event, sink),
            Ph::Begin | Ph::AsyncBegin => sink.step(self.step(What::Begin, item, 0)),
            Ph::End | Ph::AsyncEnd => sink.step(self.step(What::End, item, 0)),
            Ph::Counter => sink.step(self.step(What::Counter, item, 0)),
            Ph::Instant | Ph::AsyncInstant | Ph::Metadata => {
                sink.step(self.step(What::Instant, item, 0))
            }
        }
    }

    fn step(&self, what: What, item: &Item, lane: usize) -> PlannedEvent {
        PlannedEvent {
            what,
            event: item.event,
            track: self.plan.tracks.uuid(self.row, lane),
            ns: item.from,
        }
    }

    /// A slice goes to the first track where it is within what is open.
    fn slice(&mut self, item: &Item, sink: &mut impl Sink) -> bool {
        for flow in self.waiting.drain(..) {
            sink.flow(flow, Some(item.event));
        }
        let (plan, row) = (self.plan, self.row);
        let mut index = 0;
        // `false`: nothing more is taken.
        let found = lanes::first(&mut self.lanes, |lane| {
            let track = plan.tracks.uuid(row, index);
            index += 1;
            match end_before(lane, track, item.from, sink) {
                true => lane.holds(item.to).then_some(true),
                false => Some(false),
            }
        });
        let mut to = item.to;
        let lane = match found {
            Some((_, false)) => return false,
            Some((lane, true)) => lane,
            None => {
                if lanes::has_room(&self.lanes) {
                    self.lanes.push(Lane::default());
                } else {
                    self.clipped += 1;
                    let around = self.lanes.last().and_then(Lane::around);
                    to = around.map_or(to, |around| around.min(to));
                }
                self.lanes.len() - 1
            }
        };
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.begin(to, (item.event, item.from));
        }
        sink.step(self.step(What::Begin, item, lane))
    }

    /// Ends what is over by then, on all tracks.
    fn end_all(&mut self, ns: i64, sink: &mut impl Sink) -> bool {
        let (plan, row) = (self.plan, self.row);
        let mut lanes = self.lanes.iter_mut().enumerate();
        lanes.all(|(index, lane)| end_before(lane, plan.tracks.uuid(row, index), ns, sink))
    }

    /// A flow begins in the slice around it. It ends in that slice if the event asks for
    /// it, otherwise in the next.
    fn flow(&mut self, item: &Item, event: &Event, sink: &mut impl Sink) -> bool {
        // Ends the slices that are over, so that the open one is on top of each lane;
        // otherwise each flow would look at all that ended. A slice that ends at the same
        // time still binds it.
        if !self.end_all(item.from.saturating_sub(1), sink) {
            return false;
        }
        let around = self.lanes.iter().find_map(|lane| {
            let mut open = lane.iter();
            let around = open.find(|(to, (_, from))| *from <= item.from && item.from <= *to)?;
            Some(around.1)
        });
        let is_next = event.ph == Ph::FlowEnd && !event.binds_enclosing;
        match around {
            Some((slice, from)) if !is_next || from == item.from => {
                sink.flow(item.event, Some(slice));
            }
            _ if is_next => self.waiting.push(item.event),
            _ => sink.flow(item.event, None),
        }
        // One that found no slice is a moment of its own.
        let own = self.plan.flows_of(item.event);
        own.is_empty() || sink.step(self.step(What::Instant, item, 0))
    }

    /// The row is over.
    fn close(&mut self, sink: &mut impl Sink) -> bool {
        for flow in self.waiting.drain(..) {
            sink.flow(flow, None);
        }
        self.end_all(i64::MAX, sink)
    }
}

/// Ends what is over by then on a track; false: nothing more is taken.
fn end_before(lane: &mut Lane, track: u64, ns: i64, sink: &mut impl Sink) -> bool {
    while let Some((to, (event, _))) = lane.end(ns) {
        let goes_on = sink.step(PlannedEvent {
            what: What::End,
            event,
            track,
            ns: to,
        });
        if !goes_on {
            return false;
        }
    }
    true
}

/// Whether a moment of a plain trace is one of its process, or of all: `"s":"p"`.
fn is_of_process(timeline: &Timeline, event: &Event) -> bool {
    event.ph == Ph::Instant
        && timeline.dialect(event) == Dialect::Plain
        && matches!(timeline.arg(event, "s"), Some("\"p\"" | "\"g\""))
}

fn is_flow(event: &Event) -> bool {
    matches!(event.ph, Ph::FlowStart | Ph::FlowStep | Ph::FlowEnd)
}

/// At the same time, slices come before the flows that pass them.
fn plan_order(timeline: &Timeline, item: &Item) -> bool {
    timeline
        .events
        .get(item.event as usize)
        .is_some_and(is_flow)
}

/// Nanoseconds from the timeline's origin to a time that is `beyond` microseconds further.
fn nanos(time: Time, beyond: i64) -> i64 {
    const MAX: i64 = 1 << 61;
    let ns = beyond
        .saturating_mul(1000)
        .saturating_add(time.nearest_nanos());
    ns.clamp(-MAX, MAX)
}
