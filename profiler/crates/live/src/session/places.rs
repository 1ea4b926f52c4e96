//! The session's part in finding out where kernels lie on devices.

use super::{CollectError, Session};
use aiprof_model::wire::{Event, ProcessEventKind};
use std::time::Duration;

/// How long the last answers are waited for.
const LAST: Duration = Duration::from_secs(3);

impl Session {
    /// Takes note of an event that belongs to the recording.
    pub(super) fn note_for_places(&mut self, event: &Event) {
        let Some(places) = &mut self.places else {
            return;
        };
        match event {
            Event::KernelNamed(named) => places.named(named),
            Event::DeviceStream(stream) => places.stream(stream),
            Event::Stalls(window) => places.window(window),
            Event::Process(event) => match event.kind {
                ProcessEventKind::Exec { .. } => places.process_gone(event.pid, event.time_ns),
                ProcessEventKind::Exit if event.pid == event.tid => {
                    places.process_gone(event.pid, event.time_ns);
                }
                _ => {}
            },
            _ => {}
        }
    }

    /// Records where kernels were found to lie, and what code was found. All that happened until
    /// `taken_ns` has been taken in. If it is `None`, everything has been taken in, and this waits
    /// for what is still being found out.
    pub(super) fn place_kernels(&mut self, taken_ns: Option<u64>) -> Result<(), CollectError> {
        let found = match (&mut self.places, taken_ns) {
            (Some(places), Some(taken_ns)) => places.maintain(taken_ns),
            (Some(places), None) => places.settle(LAST),
            (None, _) => return Ok(()),
        };
        found
            .iter()
            .try_for_each(|event| self.record(event).map(drop))
    }
}
