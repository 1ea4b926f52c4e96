//! What finished calls reveal of devices: which work is over, when it ran by the
//! device's clock, how that clock ticks.

use super::{
    super::device::{TickClock, Waited},
    open::OpenCall,
    state::TrackerState,
};
use aiprof_model::probes::{CallKind, Probe, ProbeRole, role};

/// Most fences that are remembered.
const MAX_FENCES: usize = 1 << 16;
/// CL_PROFILING_COMMAND_START and CL_PROFILING_COMMAND_END (cl.h).
const PROFILING_START: u64 = 0x1282;
const PROFILING_END: u64 = 0x1283;
/// ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES_1_2 (ze_api.h): the timer's resolution is in
/// cycles per second, not in nanoseconds per cycle.
const DEVICE_PROPERTIES_1_2: u64 = 0x2_0006;

/// What a call that succeeded reveals of a device.
#[derive(Clone, Debug)]
pub struct DeviceFact {
    /// Process.
    pub pid: u32,
    /// Entry of the call, CLOCK_MONOTONIC nanoseconds.
    pub entered_ns: u64,
    /// Its exit, or the latest that can have been.
    pub left_ns: u64,
    /// What it reveals.
    pub kind: DeviceFactKind,
}

/// What there is to know of a device.
#[derive(Clone, Debug)]
pub enum DeviceFactKind {
    /// Work that was handed over before the call was entered is over.
    Ended(Waited),
    /// When the launch ran that signals an event.
    Timestamps {
        /// The event's handle.
        event: u64,
        /// Begin and end, in ticks of the device's clock.
        ticks: (u64, u64),
    },
    /// When an event's command began or ended: one of both, as OpenCL returns it.
    Profiled {
        /// The event's handle.
        event: u64,
        /// Nanoseconds of the device's clock.
        time: u64,
        /// It is the end.
        is_end: bool,
    },
    /// How a device's clock ticks.
    Clock {
        /// The device's handle.
        device: u64,
        /// Its clock.
        clock: TickClock,
    },
    /// The device's clock was read during the call.
    ClockRead {
        /// The device's handle.
        device: u64,
        /// What it showed.
        ticks: u64,
    },
}

impl DeviceFact {
    /// The event that was signalled.
    pub(super) fn event(&self) -> Option<u64> {
        match self.kind {
            DeviceFactKind::Ended(Waited::Event(event))
            | DeviceFactKind::Timestamps { event, .. }
            | DeviceFactKind::Profiled { event, .. } => Some(event),
            _ => None,
        }
    }
}

/// The slots of what a function reveals.
#[derive(Debug)]
pub(super) enum FactSlots {
    None,
    Wait {
        event: Option<usize>,
        /// Events that are given as an array: its tag.
        events: Option<u8>,
        fence: Option<usize>,
        /// Queue and list.
        queues: [Option<usize>; 2],
        device: Option<usize>,
        /// It waits for all that its process has launched.
        all: bool,
    },
    /// Hands work over; a fence shows its end.
    Submit {
        fence: usize,
    },
    Query {
        event: usize,
    },
    Timestamps {
        event: usize,
        start: usize,
        end: usize,
    },
    /// What a time of an event is, and the time.
    Profiling {
        event: usize,
        info: usize,
        time: usize,
    },
    /// The kind of the structure, the resolution and the valid bits.
    Clock {
        device: usize,
        resolution: usize,
        bits: Option<usize>,
        stype: Option<usize>,
    },
    ClockRead {
        device: usize,
        ticks: usize,
    },
}

impl FactSlots {
    pub(super) fn of(probe: &Probe) -> Self {
        Self::find(probe).unwrap_or(Self::None)
    }

    fn find(probe: &Probe) -> Option<Self> {
        let slot = |name: &str| probe.slot(name);
        Some(match probe.kind {
            CallKind::Synchronize => Self::Wait {
                event: slot(role::EVENT),
                events: probe.tag(role::EVENTS),
                fence: slot(role::FENCE),
                queues: [slot(role::QUEUE), slot(role::LIST)],
                device: slot(role::DEVICE),
                all: probe.role == Some(ProbeRole::WaitAll),
            },
            CallKind::Submit => Self::Submit {
                fence: slot(role::FENCE)?,
            },
            CallKind::Event if probe.role == Some(ProbeRole::Query) => Self::Query {
                event: slot(role::EVENT)?,
            },
            CallKind::Event if slot("info").is_some() => Self::Profiling {
                event: slot(role::EVENT)?,
                info: slot("info")?,
                time: slot("time")?,
            },
            CallKind::Event => Self::Timestamps {
                event: slot(role::EVENT)?,
                start: slot(role::GLOBAL_START)?,
                end: slot(role::GLOBAL_END)?,
            },
            CallKind::Context => {
                let device = slot(role::DEVICE)?;
                match slot("timer_resolution") {
                    Some(resolution) => Self::Clock {
                        device,
                        resolution,
                        bits: slot("kernel_timestamp_bits"),
                        stype: slot("stype"),
                    },
                    None => Self::ClockRead {
                        device,
                        ticks: slot("device_time")?,
                    },
                }
            }
            _ => return None,
        })
    }
}

impl TrackerState {
    /// Notes what an ended call reveals of a device.
    pub(super) fn note_device_fact(&mut self, open: &OpenCall) {
        let call = &open.call;
        // What a part does is its own: layers may know one thing by several handles. But a
        // launch is of the outermost call that submitted it.
        let is_none = match open.meaning.facts {
            FactSlots::None => true,
            FactSlots::Submit { .. } => call.nesting.is_part,
            _ => false,
        };
        // A wait that returned is over, where its function returns nothing.
        let ended = match open.meaning.facts {
            FactSlots::Wait { .. } => call.end_ns.is_some() && call.succeeded() != Some(false),
            _ => call.succeeded() == Some(true),
        };
        if is_none || !ended {
            return;
        }
        // A wait may end with its timeout.
        let result = call.probe.result;
        if call.result.is_some_and(|value| result.is_not_ready(value)) {
            return;
        }
        let fact = |kind| DeviceFact {
            pid: call.pid,
            entered_ns: call.start_ns,
            left_ns: call.over_ns(),
            kind,
        };
        if let FactSlots::Wait { events, .. } = open.meaning.facts {
            for event in open.array(events).filter(|event| *event != 0) {
                self.facts
                    .push(fact(DeviceFactKind::Ended(Waited::Event(event))));
            }
        }
        if let Some(kind) = self.device_fact(open) {
            self.facts.push(fact(kind));
        }
    }

    fn device_fact(&mut self, open: &OpenCall) -> Option<DeviceFactKind> {
        let value = |slot: usize| open.value(Some(slot));
        let handle = |slot: usize| open.handle(Some(slot));
        match open.meaning.facts {
            FactSlots::None => None,
            FactSlots::Submit { fence } => {
                let fence = handle(fence)?;
                if self.submits.len() < MAX_FENCES {
                    self.submits.insert((open.call.pid, fence), open.call.id);
                }
                None
            }
            FactSlots::Wait { .. } => Some(DeviceFactKind::Ended(self.waited(open)?)),
            FactSlots::Query { event } => {
                Some(DeviceFactKind::Ended(Waited::Event(handle(event)?)))
            }
            FactSlots::Timestamps { event, start, end } => Some(DeviceFactKind::Timestamps {
                event: handle(event)?,
                ticks: (value(start)?, value(end)?),
            }),
            FactSlots::Profiling { event, info, time } => {
                let is_end = match value(info)? {
                    PROFILING_START => false,
                    PROFILING_END => true,
                    _ => return None,
                };
                Some(DeviceFactKind::Profiled {
                    event: handle(event)?,
                    time: value(time)?,
                    is_end,
                })
            }
            FactSlots::Clock { device, .. } => Some(DeviceFactKind::Clock {
                device: value(device)?,
                clock: clock(open)?,
            }),
            FactSlots::ClockRead { device, ticks } => Some(DeviceFactKind::ClockRead {
                device: value(device)?,
                ticks: value(ticks)?,
            }),
        }
    }

    /// What a call waited for: the most particular of its handles.
    fn waited(&self, open: &OpenCall) -> Option<Waited> {
        let FactSlots::Wait {
            event,
            fence,
            queues,
            device,
            all,
            ..
        } = open.meaning.facts
        else {
            return None;
        };
        let handle = |slot: Option<usize>| open.handle(slot);
        if let Some(event) = handle(event) {
            return Some(Waited::Event(event));
        }
        if let Some(fence) = handle(fence) {
            let submit = self.submits.get(&(open.call.pid, fence))?;
            return Some(Waited::Submit(*submit));
        }
        if let Some(queue) = queues.into_iter().find_map(handle) {
            return Some(Waited::Queue(queue));
        }
        let device = handle(device).map(Waited::Device);
        device.or_else(|| all.then_some(Waited::All))
    }
}

/// The clock that a call described.
fn clock(open: &OpenCall) -> Option<TickClock> {
    let FactSlots::Clock {
        resolution,
        bits,
        stype,
        ..
    } = open.meaning.facts
    else {
        return None;
    };
    let resolution = open.value(Some(resolution))?;
    let bits = u32::try_from(open.value(bits).unwrap_or(32)).unwrap_or(32);
    match open.value(stype) {
        Some(DEVICE_PROPERTIES_1_2) => TickClock::of_hz(resolution, bits),
        _ => TickClock::of_period(resolution, bits),
    }
}
