//! What packets of a sequence share: texts and defaults.

use super::proto::{
    Callstack, Frame, Interned, InternedData, NEEDS_STATE, Packet, STATE_CLEARED,
    TrackEventDefaults,
};
use crate::export::perfetto::recording::SW_CPU_CLOCK;
use aiprof_model::timeline::{Names, Sym};
use rustc_hash::FxHashMap;

/// A sequence's state.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    /// Categories by number.
    pub categories: FxHashMap<u64, Sym>,
    /// Names of events.
    pub names: FxHashMap<u64, Sym>,
    /// Keys of arguments.
    pub keys: FxHashMap<u64, Box<str>>,
    /// Values of arguments.
    pub values: FxHashMap<u64, Box<str>>,
    /// Names of functions, functions of frames, innermost frames of call stacks.
    functions: FxHashMap<u64, Sym>,
    frames: FxHashMap<u64, u64>,
    callstacks: FxHashMap<u64, u64>,
    /// Names of queues and stages of devices.
    pub stages: FxHashMap<u64, Sym>,
    /// What a CPU sample stands for, nanoseconds; 0: not known.
    pub sample_ns: u64,
    /// Defaults for events.
    pub track_event: TrackEventDefaults,
    /// Clock of times that name none.
    pub clock: Option<u32>,
    /// The thread of events without a track (of an older form).
    pub thread: Option<u64>,
    /// The last time of the older form, microseconds.
    pub last_us: i64,
    /// Nothing is missing since the state began.
    is_whole: bool,
    is_known: bool,
}

impl Sequence {
    /// Takes the state that a packet gives. False: packets were lost before it.
    pub(super) fn update(&mut self, packet: &Packet, all: &mut Names) -> bool {
        // Recorders mark the first packet, before which there was none, as well.
        let lost = packet.previous_packet_dropped && self.is_known;
        self.is_known = true;
        if lost {
            self.is_whole = false;
        }
        if packet.sequence_flags & STATE_CLEARED != 0 || packet.incremental_state_cleared {
            let (thread, last_us) = (self.thread, self.last_us);
            *self = Self {
                is_whole: true,
                is_known: true,
                thread,
                last_us,
                ..Self::default()
            };
        }
        if let Some(defaults) = &packet.defaults {
            self.track_event = defaults.track_event.clone().unwrap_or_default();
            self.clock = defaults.timestamp_clock_id;
            let timebase = defaults.perf_sample.and_then(|samples| samples.timebase);
            let timed = timebase.filter(|timebase| timebase.counter == SW_CPU_CLOCK);
            self.sample_ns = timed.map_or(0, |timebase| timebase.period);
        }
        if let Some(data) = &packet.interned_data {
            self.intern(data, all);
        }
        !lost
    }

    /// Whether a packet refers to a state of which something is missing.
    pub(super) fn is_missing(&self, packet: &Packet) -> bool {
        packet.sequence_flags & NEEDS_STATE != 0 && !self.is_whole
    }

    /// The name of the innermost frame of a call stack.
    pub(super) fn leaf(&self, callstack: u64) -> Option<Sym> {
        let frame = self.callstacks.get(&callstack)?;
        self.functions.get(self.frames.get(frame)?).copied()
    }

    fn intern(&mut self, data: &InternedData, all: &mut Names) {
        let mut sym =
            |text: &Interned| (text.iid, all.intern(&String::from_utf8_lossy(&text.text)));
        self.categories.extend(data.categories.iter().map(&mut sym));
        self.names.extend(data.names.iter().map(&mut sym));
        self.functions.extend(data.functions.iter().map(&mut sym));
        self.stages.extend(data.stages.iter().map(&mut sym));
        let frame = |frame: &Frame| (frame.iid, frame.function_name_id);
        self.frames.extend(data.frames.iter().map(frame));
        let leaf = |stack: &Callstack| Some((stack.iid, *stack.frame_ids.last()?));
        self.callstacks
            .extend(data.callstacks.iter().filter_map(leaf));
        let text = |text: &Interned| (text.iid, String::from_utf8_lossy(&text.text).into());
        self.keys.extend(data.keys.iter().map(text));
        self.values.extend(data.values.iter().map(text));
    }
}
