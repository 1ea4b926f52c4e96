//! All that listens to calls, behind one tracker.

use super::handed_out::HandedOut;
use crate::{conditional::Conditional, late::LateKernels, places::KernelPlaces};
use aiprof_model::{
    probes::{Tables, table::Exits},
    process::ProcessTable,
    wire::Event,
};
use aiprof_record::{
    aggregate::{Aggregator, Limits},
    correlate::{KernelEvent, KernelStep, Tracked},
    recording::{Recording, RecordingSink},
};
use aiprof_testkit::script::{LOADER, Script};

/// A process that cannot be: there is nothing to be read of it.
const PID: u32 = (1 << 30) - 1;
/// Calls of one round, and rounds.
const CALLS: u64 = 1000;
const ROUNDS: u64 = 1000;
/// Time of a round.
const ROUND_NS: u64 = 1_000_000;

/// A round of calls: a kernel is created, launched, waited for and destroyed.
fn round() -> (Vec<Event>, Vec<Event>) {
    let mut script = Script::new();
    let probes = script.events.split_off(0);
    (script.pid, script.tid) = (PID, PID);
    script.kernel("gemm", 0x21);
    for _ in 0..CALLS - 3 {
        script.launch(0x11, 0x21);
    }
    script.call("zeCommandQueueSynchronize", &[0x31], &[]);
    script.enter("zeKernelDestroy", LOADER, &[0x21]);
    script.leave("zeKernelDestroy", LOADER, 0, &[]);
    assert!(script.now < ROUND_NS);
    (probes, script.events)
}

/// What the listeners of a session hear.
#[derive(Default)]
struct Heard {
    calls: u64,
    launches: u64,
    kernels: Vec<KernelEvent>,
}

impl RecordingSink for Heard {
    fn found(&mut self, _: &ProcessTable, found: &Tracked<'_>) {
        match *found {
            Tracked::Call(_) => self.calls += 1,
            Tracked::Launch(_) => self.launches += 1,
            Tracked::Kernel(event) => self.kernels.push(event.clone()),
            _ => {}
        }
    }
}

/// A session's way with calls.
struct Listeners {
    recording: Recording,
    aggregate: Aggregator,
    /// Counts launches beside it, as an agent does.
    beside: Aggregator,
    handed_out: HandedOut,
    conditional: Conditional,
    late: LateKernels,
    places: KernelPlaces,
    heard: Heard,
    created: u64,
    launched: u64,
    destroyed: u64,
}

impl Listeners {
    fn new() -> Self {
        Self {
            recording: Recording::default(),
            aggregate: Aggregator::new(1, Limits::default()).with_devices(),
            beside: Aggregator::of_calls(false, Limits::default()).beside(),
            handed_out: HandedOut::default(),
            conditional: Conditional::default(),
            late: LateKernels::default(),
            places: KernelPlaces::default(),
            heard: Heard::default(),
            created: 0,
            launched: 0,
            destroyed: 0,
        }
    }

    fn take(&mut self, event: &Event) {
        let tracker = self.recording.tracker();
        match event {
            Event::Call(call) => {
                let view = tracker.view(call).unwrap();
                assert!(self.handed_out.call(&view).is_none());
                self.conditional.call(&view);
            }
            Event::CallData(data) => {
                let view = tracker.view_data(data).unwrap();
                self.handed_out.data(&view);
                self.conditional.data(&view);
            }
            Event::Probe(probe) => {
                self.handed_out
                    .note(probe, &Tables::built_in(), Exits::Needed);
            }
            _ => {}
        }
        self.recording
            .apply(
                event,
                &mut [&mut self.aggregate, &mut self.beside, &mut self.heard],
            )
            .unwrap();
        for event in self.heard.kernels.drain(..) {
            match event.step {
                KernelStep::Created { .. } => self.created += 1,
                KernelStep::Launched => self.launched += 1,
                KernelStep::Destroyed => self.destroyed += 1,
                KernelStep::Located { .. } => {}
            }
            self.late.kernel(&event);
            self.places.kernel(&event, || 1);
        }
    }
}

/// Moves an event to a later time.
fn later(mut event: Event, by_ns: u64) -> Event {
    match &mut event {
        Event::Call(call) => {
            call.time_ns += by_ns;
            call.around_ns += if call.around_ns == 0 { 0 } else { by_ns };
        }
        Event::CallData(data) => data.time_ns += by_ns,
        _ => {}
    }
    event
}

#[test]
fn each_record_of_a_million_calls_is_taken_once() {
    let (probes, round) = round();
    let mut all = Listeners::new();
    probes.iter().for_each(|event| all.take(event));
    let (mut records, mut data) = (0, 0);
    for number in 0..ROUNDS {
        for event in &round {
            records += u64::from(matches!(event, Event::Call(_)));
            data += u64::from(matches!(event, Event::CallData(_)));
            all.take(&later(event.clone(), number * ROUND_NS));
        }
    }
    all.recording.finish(ROUNDS * ROUND_NS, &mut []);
    let counts = all.recording.tracker().counts();
    let calls = ROUNDS * CALLS;
    assert_eq!((records, data), (2 * calls, ROUNDS));
    assert_eq!((counts.records, counts.data), (records, data));
    assert_eq!((counts.calls, all.heard.calls), (calls, calls));
    let launches = ROUNDS * (CALLS - 3);
    assert_eq!((counts.launches, all.heard.launches), (launches, launches));
    assert_eq!((all.created, all.destroyed), (ROUNDS, ROUNDS));
    assert_eq!((all.launched, all.beside.taken), (launches, launches));
}
