//! Edges between what a thread does: HTA's, by its call stack.
//!
//! Time between two top-level operations is free, as in HTA: what a program does there is
//! in no trace. The time of a call that waits for a device is that device's.

use super::build::Builder;
use super::graph::{EdgeKind, begin, end};
use crate::work::SpanRole;
use aiprof_model::timeline::{Length, Time, TrackId};

/// A call or operator that is open.
struct OpenCall {
    number: u32,
    end: Time,
    waits: bool,
}

/// What the last node of a thread is.
#[derive(Clone, Copy)]
struct LastNode {
    number: u32,
    is_begin: bool,
    at: Time,
    parent: u32,
}

/// A thread's state.
#[derive(Default)]
struct Thread {
    open: Vec<OpenCall>,
    last: Option<LastNode>,
    /// The last top-level operation.
    top: Option<u32>,
}

/// Adds the calls and operators of a rank's threads.
pub(super) fn add(builder: &mut Builder<'_>, rank: usize) {
    let Some(work) = builder.index.ranks.get(rank) else {
        return;
    };
    let mut thread = Thread::default();
    let mut track: Option<TrackId> = None;
    for at in &work.host {
        let Some(event) = builder.timeline.events.get(*at as usize) else {
            continue;
        };
        let role = builder.index.role(event);
        let counts = matches!(role, SpanRole::Call | SpanRole::Operator);
        if !counts || event.length <= Length::ZERO || !builder.is_within(rank, event.start) {
            continue;
        }
        if track.is_some_and(|track| track != event.track) {
            thread.close(builder, Time(i64::MAX));
            thread = Thread::default();
        }
        track = Some(event.track);
        thread.close(builder, event.start);
        let waits = role == SpanRole::Call && builder.waits(event);
        let number = builder.add_host(*at, rank);
        thread.enter(builder, number, event.start, event.end(), waits);
    }
    thread.close(builder, Time(i64::MAX));
}

impl Thread {
    fn enter(&mut self, builder: &mut Builder<'_>, number: u32, at: Time, ends: Time, waits: bool) {
        if self.open.is_empty()
            && let Some(top) = self.top
        {
            let graph = &mut builder.graph;
            graph.add(
                EdgeKind::Order,
                end(top),
                begin(number),
                number,
                Length::ZERO,
            );
        }
        if let Some(last) = self.last {
            let owner = match last.is_begin {
                true => last.number,
                false => last.parent,
            };
            let from = last.node();
            let graph = &mut builder.graph;
            graph.add(EdgeKind::Own, from, begin(number), owner, at - last.at);
        }
        self.last = Some(LastNode {
            number,
            is_begin: true,
            at,
            parent: self.open.last().map_or(number, |parent| parent.number),
        });
        self.open.push(OpenCall {
            number,
            end: ends,
            waits,
        });
    }

    /// Ends what ended by then.
    fn close(&mut self, builder: &mut Builder<'_>, by: Time) {
        while let Some(call) = self.open.pop_if(|call| call.end <= by) {
            if let Some(last) = self.last {
                let owner = match last.is_begin {
                    true => last.number,
                    false => call.number,
                };
                let took = match call.waits {
                    true => Length::ZERO,
                    false => call.end - last.at,
                };
                let graph = &mut builder.graph;
                graph.add(EdgeKind::Own, last.node(), end(call.number), owner, took);
            }
            if self.open.is_empty() {
                self.last = None;
                self.top = Some(call.number);
            } else {
                self.last = Some(LastNode {
                    number: call.number,
                    is_begin: false,
                    at: call.end,
                    parent: self.open.last().map_or(call.number, |parent| parent.number),
                });
            }
        }
    }
}

impl LastNode {
    fn node(self) -> u32 {
        match self.is_begin {
            true => begin(self.number),
            false => end(self.number),
        }
    }
}
