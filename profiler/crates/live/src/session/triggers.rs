//! What is waited for: a call, a kernel, one that takes long.
//!
//! Where a call begins or a kernel is launched is seen at once. How long a call took is known when
//! it is over. How long a kernel took is known when the program or its runtime has read its times.
//! A timeline of its own, which keeps nothing, finds this out.

use crate::config::{Trigger, TriggerOn};
use aiprof_model::{
    process::ProcessTable,
    timeline::recorded::{EventSink, Recorded},
    timeline::{Event as TimelineEvent, Members, Quality, Sym},
    wire::Event,
};
use aiprof_record::{
    correlate::{CallView, KernelName, Tracked, TrackedLaunch},
    recording::{Recording, RecordingSink},
    timeline::Builder,
};
use std::io;

/// Most spans that wait to be looked at: one look takes in fewer.
const MAX_SPANS: usize = 1 << 16;

/// What happened that was waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fired {
    /// When it was over or begun, CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// What, in words.
    pub what: String,
}

/// A span of time that is known exactly.
#[derive(Debug)]
struct TimedSpan {
    name: Sym,
    cat: Sym,
    from_ns: i64,
    length_ns: i64,
}

/// Takes the exact spans of a timeline.
#[derive(Debug, Default)]
struct Spans(Vec<TimedSpan>);

impl EventSink for Spans {
    fn event(&mut self, event: &TimelineEvent, _: u32, _: Members<'_>) -> io::Result<()> {
        let is_exact = event.quality != Quality::Bounded;
        if event.is_slice() && is_exact && self.0.len() < MAX_SPANS {
            self.0.push(TimedSpan {
                name: event.name,
                cat: event.cat,
                from_ns: event.start.nanos(),
                length_ns: event.length.nanos(),
            });
        }
        Ok(())
    }
}

/// What is waited for.
pub struct Triggers {
    wanted: Vec<Trigger>,
    begin: bool,
    /// What took how long, if that is asked.
    builder: Option<Builder<Spans>>,
    fired: Option<Fired>,
}

impl Triggers {
    /// `begin`: the recording begins when they fire.
    pub(super) fn new(wanted: &[Trigger], begin: bool) -> Self {
        let is_timed = wanted.iter().any(|trigger| trigger.longer_ns.is_some());
        Self {
            wanted: wanted.to_vec(),
            begin,
            builder: is_timed.then(|| Builder::new(0, Spans::default())),
            fired: None,
        }
    }

    /// Whether the recording begins when they fire.
    pub(super) fn begin_recording(&self) -> bool {
        self.begin && !self.wanted.is_empty()
    }

    /// Waits for nothing any more.
    pub fn disarm(&mut self) {
        self.wanted.clear();
        self.builder = None;
    }

    /// What happened that was waited for, since the last call.
    pub fn take(&mut self) -> Option<Fired> {
        self.fired.take()
    }

    /// Whether something has.
    pub(super) fn have_fired(&self) -> bool {
        self.fired.is_some()
    }

    /// A call begins, or ends.
    pub(super) fn call(&mut self, call: &CallView<'_>, time_ns: u64) {
        if !call.begins() {
            return;
        }
        let function = &call.probe().function;
        let is_it = |trigger: &Trigger| match &trigger.on {
            TriggerOn::Call(name) => trigger.longer_ns.is_none() && name == function,
            TriggerOn::Kernel(_) => false,
        };
        if self.wanted.iter().any(is_it) {
            let what = format!("{function} was called");
            self.fired.get_or_insert(Fired { time_ns, what });
        }
    }
}

impl Trigger {
    fn is_of(&self, span: &TimedSpan, recorded: &Recorded) -> bool {
        let Some(longer_ns) = self.longer_ns else {
            return false;
        };
        if i128::from(span.length_ns) <= i128::from(longer_ns) {
            return false;
        }
        let name = recorded.name(span.name);
        match &self.on {
            TriggerOn::Call(function) => name == function,
            TriggerOn::Kernel(part) => {
                recorded.name(span.cat) == "kernel" && name.contains(part.as_str())
            }
        }
    }
}

impl RecordingSink for Triggers {
    fn event(&mut self, before: &Recording, event: &Event) -> io::Result<()> {
        match &mut self.builder {
            Some(builder)
                if !matches!(event, Event::Sample(_) | Event::Wait(_) | Event::Stalls(_)) =>
            {
                builder.event(before, event)
            }
            _ => Ok(()),
        }
    }

    fn found(&mut self, processes: &ProcessTable, found: &Tracked<'_>) {
        if let Some(builder) = &mut self.builder {
            builder.found(processes, found);
        }
        if let Tracked::Launch(launch) = *found {
            self.launched(launch);
        }
    }

    /// Looks for what took long.
    fn taken(&mut self, event: &Event) {
        let Some(builder) = &mut self.builder else {
            return;
        };
        if !matches!(event, Event::Call(_) | Event::Process(_)) {
            return;
        }
        let origin_ns = builder.origin_ns();
        let Ok((recorded, spans)) = builder.so_far() else {
            return;
        };
        for span in std::mem::take(&mut spans.0) {
            let mut wanted = self.wanted.iter();
            if let Some(trigger) = wanted.find(|trigger| trigger.is_of(&span, recorded)) {
                let (name, ms) = (recorded.name(span.name), span.length_ns as f64 / 1e6);
                let longer_ms = trigger.longer_ns.unwrap_or(0) as f64 / 1e6;
                let what = format!("{name} took {ms:.3} ms, longer than {longer_ms} ms");
                let time_ns = origin_ns.saturating_add_signed(span.from_ns + span.length_ns);
                self.fired.get_or_insert(Fired { time_ns, what });
            }
        }
    }
}

impl Triggers {
    fn launched(&mut self, launch: &TrackedLaunch) {
        let KernelName::Known(name) = &launch.work.name else {
            return;
        };
        let is_it = |trigger: &Trigger| match &trigger.on {
            TriggerOn::Kernel(part) => {
                trigger.longer_ns.is_none()
                    && launch.work.kernel != 0
                    && name.contains(part.as_str())
            }
            TriggerOn::Call(_) => false,
        };
        if self.wanted.iter().any(is_it) {
            let time_ns = launch.by.start_ns;
            let what = format!("{name} was launched");
            self.fired.get_or_insert(Fired { time_ns, what });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::probes::CallKind;
    use aiprof_record::correlate::LaunchingCall;

    fn launch(name: &str, kernel: u64) -> TrackedLaunch {
        let by = LaunchingCall {
            start_ns: 7,
            ..LaunchingCall::default()
        };
        let mut launch = TrackedLaunch::of(by, CallKind::Launch, KernelName::Known(name.into()));
        launch.work.kernel = kernel;
        launch
    }

    #[test]
    fn a_launch_of_a_kernel_is_seen_once_and_only_if_it_is_one() {
        let mut triggers = Triggers::new(
            &[Trigger {
                on: TriggerOn::Kernel("gemm".into()),
                longer_ns: None,
            }],
            true,
        );
        triggers.launched(&launch("copy", 1));
        triggers.launched(&launch("gemm of memory", 0));
        assert_eq!(triggers.take(), None);
        triggers.launched(&launch("sgemm_64", 1));
        triggers.launched(&launch("dgemm_64", 1));
        let fired = triggers.take().unwrap();
        assert_eq!(fired.what, "sgemm_64 was launched");
        triggers.disarm();
        triggers.launched(&launch("sgemm_64", 1));
        assert_eq!(triggers.take(), None);
    }
}
