//! A recording, event by event: its processes, the one [`Tracker`] of its calls, and the sinks
//! that make something of both.

use crate::correlate::{CallSink, Tracked, Tracker};
use aiprof_model::process::ProcessTable;
use aiprof_model::profile::{LossKind, Losses};
use aiprof_model::wire::Event;
use std::io;

/// What is made of the events of a recording: a profile, a timeline, a capture.
pub trait RecordingSink {
    /// Takes an event in. `before`: the recording as it was before it.
    ///
    /// # Errors
    /// Those of the file that is written.
    fn event(&mut self, before: &Recording, event: &Event) -> io::Result<()> {
        let _ = (before, event);
        Ok(())
    }

    /// Takes in what the tracker found in that event. The processes are as they were before it.
    fn found(&mut self, processes: &ProcessTable, found: &Tracked<'_>) {
        let _ = (processes, found);
    }

    /// A live recording has taken an event in, and all that was found in it.
    fn taken(&mut self, event: &Event) {
        let _ = event;
    }
}

/// In the place of a sink that is not there.
#[derive(Clone, Copy)]
pub struct NoSink;

impl RecordingSink for NoSink {}

/// A closure sees the events.
impl<F: FnMut(&Event, &ProcessTable)> RecordingSink for F {
    fn event(&mut self, before: &Recording, event: &Event) -> io::Result<()> {
        self(event, &before.processes);
        Ok(())
    }
}

/// Interprets the events of a recording, once for all sinks.
#[derive(Default)]
pub struct Recording {
    /// As the last event left them.
    pub processes: ProcessTable,
    tracker: Tracker,
    /// Events that are damaged.
    damaged: u64,
}

impl Recording {
    /// One that has seen nothing. `python_c_frames`: the interpreter's own frames are kept.
    pub fn new(python_c_frames: bool) -> Self {
        Self {
            processes: ProcessTable::new(python_c_frames),
            ..Self::default()
        }
    }

    /// What interprets its calls.
    pub fn tracker(&self) -> &Tracker {
        &self.tracker
    }

    /// Takes an event in, unless it is damaged. Returns whether the mappings of its process
    /// changed.
    ///
    /// # Errors
    /// The first of a sink; then the event is not taken in.
    pub fn apply(
        &mut self,
        event: &Event,
        sinks: &mut [&mut dyn RecordingSink],
    ) -> io::Result<bool> {
        if !event.has_possible_ids() {
            self.damaged += 1;
            return Ok(false);
        }
        for sink in sinks.iter_mut() {
            sink.event(self, event)?;
        }
        self.track(sinks, |tracker, all| tracker.apply(event, all));
        let mut changed = false;
        match event {
            Event::Process(event) => changed = self.processes.apply(event),
            Event::Labels(labels) => self.processes.labelled(labels),
            Event::PythonFound(found) => self.processes.python_found(found),
            Event::PythonCode(code) => self.processes.python_code(code),
            _ => {}
        }
        Ok(changed)
    }

    /// Ends all open calls: nothing more will come. `now_ns` is CLOCK_MONOTONIC.
    pub fn finish(&mut self, now_ns: u64, sinks: &mut [&mut dyn RecordingSink]) {
        self.track(sinks, |tracker, all| tracker.finish(now_ns, all));
    }

    /// What was lost of calls since this was asked last, and the damaged events.
    pub fn take_losses(&mut self) -> Losses {
        let mut losses = self.tracker.take_losses();
        losses.add(LossKind::Undecodable, std::mem::take(&mut self.damaged));
        losses
    }

    fn track(
        &mut self,
        sinks: &mut [&mut dyn RecordingSink],
        act: impl FnOnce(&mut Tracker, &mut dyn CallSink),
    ) {
        let processes = &self.processes;
        act(&mut self.tracker, &mut |found: &Tracked<'_>| {
            for sink in sinks.iter_mut() {
                sink.found(processes, found);
            }
        });
    }
}

impl std::fmt::Debug for Recording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recording").finish_non_exhaustive()
    }
}
