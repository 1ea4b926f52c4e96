//! What becomes of the events of a recording: nothing here knows where they come from.

use super::{CollectError, Watcher, triggers::Triggers, window::LastSeconds};
use aiprof_model::{process::ProcessTable, wire::Event};
use aiprof_record::{
    aggregate::Aggregator,
    correlate::{Both, CallSink, FinishedCall, KernelEvent, Launch},
    timeline::Builder,
};
use aiprof_record::{capture::CaptureWriter, store::Store};

/// What the tracker reports of kernels while it takes an event in.
#[derive(Debug, Default)]
struct KernelEvents(Vec<KernelEvent>);

impl CallSink for KernelEvents {
    fn call(&mut self, _: &FinishedCall) {}

    fn launch(&mut self, _: &Launch) {}

    fn kernel(&mut self, event: &KernelEvent) {
        self.0.push(event.clone());
    }
}

/// Takes the events that belong to a recording, in the order of their times.
pub(super) struct Events {
    /// As the last event left them.
    pub(super) processes: ProcessTable,
    pub(super) aggregate: Aggregator,
    /// Counts launches beside it.
    pub(super) launches: Option<Box<Aggregator>>,
    pub(super) capture: Option<CaptureWriter>,
    pub(super) timeline: Option<Box<Builder<Store>>>,
    /// Sees every event, too.
    pub(super) watcher: Option<Box<Watcher>>,
    /// The events of the last seconds, if they are kept.
    pub(super) last_seconds: Option<LastSeconds>,
    kernels: KernelEvents,
}

impl Events {
    pub(super) fn new(
        aggregate: Aggregator,
        capture: Option<CaptureWriter>,
        timeline: Option<Box<Builder<Store>>>,
        python_c_frames: bool,
    ) -> Self {
        Self {
            // Who reads the capture may ask for them: they are to have names.
            processes: ProcessTable::new(python_c_frames || capture.is_some()),
            aggregate,
            launches: None,
            capture,
            timeline,
            watcher: None,
            last_seconds: None,
            kernels: KernelEvents::default(),
        }
    }

    /// Takes an event in: the capture, the timeline and the watcher get it with the
    /// processes as they were before it. Returns whether the mappings of its process
    /// changed.
    pub(super) fn take(
        &mut self,
        event: &Event,
        triggers: &mut Triggers,
    ) -> Result<bool, CollectError> {
        if let Some(capture) = &mut self.capture {
            capture.event(event).map_err(CollectError::Capture)?;
        }
        if let Some(timeline) = &mut self.timeline {
            let taken = timeline.event(&self.processes, event);
            taken.map_err(CollectError::Timeline)?;
        }
        if let Some(last) = &mut self.last_seconds {
            last.take(event, &self.processes);
        }
        if let Some(watcher) = &mut self.watcher {
            watcher(event, &self.processes);
        }
        if let Some(launches) = &mut self.launches {
            launches.apply_beside(&self.processes, event);
        }
        let (processes, kernels) = (&mut self.processes, &mut self.kernels);
        triggers.event(event);
        let mut kernels = Both(kernels, triggers);
        Ok(match &mut self.timeline {
            Some(timeline) => {
                let both = &mut Both(&mut kernels, &mut **timeline);
                self.aggregate.apply_with(processes, event, both)
            }
            None => self.aggregate.apply_with(processes, event, &mut kernels),
        })
    }

    /// Takes in an event that is not recorded, for what waits for it.
    pub(super) fn watch(&mut self, event: &Event, triggers: &mut Triggers) {
        triggers.event(event);
        let mut both = Both(&mut self.kernels, triggers);
        self.aggregate
            .apply_with(&mut self.processes, event, &mut both);
    }

    /// What names are wanted of.
    pub(super) fn aggregates(&self) -> impl Iterator<Item = &Aggregator> {
        std::iter::once(&self.aggregate).chain(self.launches.as_deref())
    }

    /// What calls did to kernels since this was asked last.
    pub(super) fn kernels(&mut self) -> Vec<KernelEvent> {
        std::mem::take(&mut self.kernels.0)
    }
}
