//! The events of a recording, from their arrival until they are applied.

use crate::finisher::Finisher;
use aiprof_model::wire::{self, Event, PythonPieces, Record};
use std::collections::VecDeque;

/// Most events held between two looks at the rings; beyond it the oldest are applied without
/// waiting for stragglers.
pub(super) const MAX_PENDING: usize = 1 << 17;
/// Events for which room is kept.
const USUALLY_PENDING: usize = 1024;

/// Events that are not applied yet.
#[derive(Debug, Default)]
pub(super) struct EventQueue {
    /// Code objects whose records are not all here.
    pieces: PythonPieces,
    /// Events that were received and are not in order yet.
    pub(super) arrived: Vec<Event>,
    /// Events to be applied, in order.
    pub(super) pending: VecDeque<Event>,
    /// Records that could not be decoded.
    pub(super) undecodable: u64,
}

impl EventQueue {
    /// Receives a record of a ring. A page of a stack goes to `finisher`.
    pub(super) fn receive(&mut self, record: &[u8], finisher: &mut Finisher) {
        let event = match wire::decode(record) {
            Ok(Record::Sample(sample)) => Event::Sample(sample),
            Ok(Record::StackPage {
                cpu,
                time_ns,
                address,
                data,
            }) => return finisher.page(cpu, time_ns, address, data),
            Ok(Record::Call(call)) => Event::Call(call),
            Ok(Record::CallData(data)) => Event::CallData(data),
            Ok(Record::CallStack(stack)) => Event::CallStack(stack),
            Ok(Record::Trace(trace)) => Event::Trace(trace),
            Ok(Record::Wait(wait)) => Event::Wait(wait),
            Ok(Record::Python(record)) => {
                let whole = self.pieces.take(record).map(Event::PythonCode);
                return self.arrived.extend(whole);
            }
            Err(error) => {
                tracing::debug!("cannot decode a record: {error}");
                self.undecodable += 1;
                return;
            }
        };
        self.arrived.push(event);
    }

    /// Whether a call is pending for whose probe `is_one` holds.
    pub(super) fn has_call(&self, is_one: impl Fn(u32) -> bool) -> bool {
        let is_call = |event: &Event| matches!(event, Event::Call(call) if is_one(call.probe));
        self.pending.iter().any(is_call)
    }

    /// Whether there is room for more events.
    pub(super) fn has_room(&self) -> bool {
        self.pending.len() + self.arrived.len() < MAX_PENDING
    }

    /// Puts the pending events into the order of their times.
    pub(super) fn sort(&mut self) {
        self.pending.make_contiguous().sort_by_key(Event::time_ns);
    }

    /// Gives back memory: a burst may have been of a hundred thousand events.
    pub(super) fn shrink(&mut self) {
        self.pending
            .shrink_to(2 * self.pending.len() + USUALLY_PENDING);
        self.arrived.shrink_to(USUALLY_PENDING);
    }
}
