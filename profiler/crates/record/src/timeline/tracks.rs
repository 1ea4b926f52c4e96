//! The tracks of a timeline, and how events get there.

use super::process_tracks::ProcessTracks;
use crate::correlate::DeviceRecorder;
use aiprof_model::{
    profile::LossKind,
    timeline::{
        Args, Event, Id, Length, NONE, Ph, Quality, Sym, Time, Track, TrackId, TrackKind,
        recorded::{EventSink, Group, Recorded, Row},
    },
    wire::Counter,
};
use rustc_hash::FxHashMap;
use std::{io, rc::Rc};

/// Most tracks.
const MAX_TRACKS: usize = 1 << 18;
/// Most texts, and their bytes: what goes beyond is called [`OTHER`].
const MAX_NAMES: usize = 1 << 20;
const MAX_NAME_BYTES: usize = 64 << 20;
const OTHER: &str = "[too many names]";

/// What a track shows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum TrackKey {
    Thread {
        pid: u32,
        tid: u32,
    },
    Samples {
        pid: u32,
        tid: u32,
    },
    Records {
        pid: u32,
        thread: u64,
    },
    /// Ranges of a process that need not nest.
    Ranges {
        pid: u32,
    },
    Stream {
        recorder: DeviceRecorder,
        pid: u32,
        device: Option<u32>,
        stream: Option<u64>,
    },
    Queue {
        device: Rc<str>,
        queue: Rc<str>,
    },
    /// DeviceLaunches that the program timed.
    Engine {
        pid: u32,
        api: Rc<str>,
        device: u32,
        queue: u64,
    },
    Bounds {
        pid: u32,
        api: Rc<str>,
        queue: u64,
    },
    Counter(Rc<str>),
    /// When the recording was paused.
    Pauses,
}

/// Writes events: gives names and tracks their numbers, and times their origin.
#[derive(Debug)]
pub(super) struct TrackWriter<S> {
    pub(super) sink: S,
    pub(super) error: Option<io::Error>,
    pub(super) out: Recorded,
    /// What the tracks are, by number.
    pub(super) keys: Vec<TrackKey>,
    pub(super) tracks: FxHashMap<TrackKey, TrackId>,
    name_bytes: usize,
    pub(super) origin_ns: Option<u64>,
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
}

impl<S: EventSink> TrackWriter<S> {
    /// One that has written nothing. `period_ns`: what a CPU sample stands for.
    pub(super) fn new(period_ns: u64, sink: S) -> Self {
        Self {
            sink,
            error: None,
            out: Recorded {
                period: Length::from_nanos(i64::try_from(period_ns).unwrap_or(0)),
                ..Recorded::default()
            },
            keys: Vec::new(),
            tracks: FxHashMap::default(),
            name_bytes: 0,
            origin_ns: None,
            first_ns: 0,
            last_ns: 0,
        }
    }

    /// Something happened then; 0: that is not known.
    pub(super) fn note_time(&mut self, time_ns: u64) {
        if time_ns != 0 {
            if self.origin_ns.is_none() {
                (self.origin_ns, self.first_ns) = (Some(time_ns), time_ns);
            }
            self.first_ns = self.first_ns.min(time_ns);
            self.last_ns = self.last_ns.max(time_ns);
        }
    }

    /// A time as the timeline has it.
    pub(super) fn time(&self, time_ns: u64) -> Time {
        let origin = self.origin_ns.unwrap_or(time_ns);
        Time::from_nanos(time_ns.wrapping_sub(origin).cast_signed())
    }

    /// A span between two times, CLOCK_MONOTONIC nanoseconds.
    pub(super) fn span(
        &mut self,
        name: Sym,
        category: &str,
        track: TrackId,
        times: (u64, u64),
    ) -> Event {
        let start = self.time(times.0);
        let mut event = Event::new(Ph::Complete, name, track, start);
        event.length = self.time(times.1.max(times.0)) - start;
        event.cat = self.name(category);
        event.quality = Quality::Exact;
        event
    }

    /// Hands an event on. `depth`: how many spans of its track are around it.
    pub(super) fn push(&mut self, event: &Event, depth: u32, args: &Args) {
        if self.error.is_none() {
            self.error = self.sink.event(event, depth, args.members()).err();
        }
    }

    /// A text's number.
    pub(super) fn name(&mut self, text: &str) -> Sym {
        let names = &mut self.out.names;
        if names.len() >= MAX_NAMES || self.name_bytes + text.len() > MAX_NAME_BYTES {
            let known = names.find(text);
            return known.unwrap_or_else(|| {
                self.out.losses.add(LossKind::TableFull, 1);
                names.intern(OTHER)
            });
        }
        let before = names.len();
        let sym = names.intern(text);
        if names.len() > before {
            self.name_bytes += text.len();
        }
        sym
    }

    /// A track's number; `None`: there are too many.
    pub(super) fn track(&mut self, key: TrackKey) -> Option<TrackId> {
        if let Some(&known) = self.tracks.get(&key) {
            return Some(known);
        }
        if self.keys.len() >= MAX_TRACKS {
            return None;
        }
        let number = Id::Number(self.keys.len() as i64);
        let of = |pid: u32, kind| (Id::Number(pid.into()), kind);
        let (pid, kind) = match &key {
            TrackKey::Thread { pid, .. } => of(*pid, TrackKind::Thread),
            TrackKey::Samples { pid, .. } => of(*pid, TrackKind::Samples),
            TrackKey::Records { pid, .. } | TrackKey::Ranges { pid } => {
                of(*pid, TrackKind::Records)
            }
            TrackKey::Stream { pid, .. } | TrackKey::Engine { pid, .. } => {
                of(*pid, TrackKind::Stream)
            }
            TrackKey::Bounds { pid, .. } => of(*pid, TrackKind::Bounds),
            TrackKey::Queue { .. } => (Id::NONE, TrackKind::Queue),
            TrackKey::Counter(_) => (Id::NONE, TrackKind::Counter),
            TrackKey::Pauses => (Id::NONE, TrackKind::Row),
        };
        let tid = match &key {
            TrackKey::Thread { tid, .. } | TrackKey::Samples { tid, .. } => {
                Id::Number((*tid).into())
            }
            _ => number,
        };
        let track = self.out.tracks.intern(Track {
            job: 0,
            rank: NONE,
            pid,
            tid,
            kind,
        });
        self.keys.push(key.clone());
        self.tracks.insert(key, track);
        Some(track)
    }

    /// Draws an arrow with its number, from the one end to the other.
    pub(super) fn flow(&mut self, correlation: u64, (number, halves): (u64, [(u64, TrackId); 2])) {
        let name = self.name("ac2g");
        for ((time_ns, track), ph) in halves.into_iter().zip([Ph::FlowStart, Ph::FlowEnd]) {
            let mut event = Event::new(ph, name, track, self.time(time_ns));
            event.cat = name;
            event.correlation = correlation;
            // Below 2^52.
            event.id = Id::Number(number.cast_signed());
            event.binds_enclosing = ph == Ph::FlowEnd;
            // After the spans that begin then: it is of the last of them.
            self.push(&event, u32::MAX, &Args::default());
        }
        self.out.totals.flows += 1;
    }

    /// A value that a device measured.
    pub(super) fn counter(&mut self, counter: &Counter) {
        let Some(track) = self.track(TrackKey::Counter(counter.source.as_str().into())) else {
            return self.out.losses.add(LossKind::CountersLost, 1);
        };
        let mut value = Args::new();
        value.float(&counter.unit, counter.milli as f64 / 1000.0);
        let name = self.name(&counter.name);
        let mut event = Event::new(Ph::Counter, name, track, self.time(counter.time_ns));
        event.cat = self.name("counter");
        self.out.totals.counters += 1;
        self.push(&event, 0, &value);
    }
}

/// How a track is shown.
pub(super) fn row_of(key: &TrackKey, processes: &ProcessTracks) -> Row {
    let thread = |pid: u32, tid: u32| {
        let name = processes
            .thread_name(pid, tid)
            .filter(|name| !name.is_empty());
        name.unwrap_or("thread").to_owned()
    };
    let (group, name) = match key {
        TrackKey::Thread { pid, tid } => (Group::Process(*pid), thread(*pid, *tid)),
        TrackKey::Samples { pid, tid } => {
            let name = format!("{} samples", thread(*pid, *tid));
            (Group::Process(*pid), name)
        }
        TrackKey::Records { pid, thread } => {
            let known = u32::try_from(*thread)
                .ok()
                .and_then(|tid| processes.thread_name(*pid, tid));
            let of = known.map_or_else(|| format!("thread {thread}"), str::to_owned);
            (Group::Process(*pid), format!("{of} runtime records"))
        }
        TrackKey::Ranges { pid } => (Group::Process(*pid), "ranges".to_owned()),
        TrackKey::Stream {
            recorder,
            pid,
            device,
            stream,
        } => {
            // What is number 0 of one process may be another one's number 1.
            let number = device.map_or(String::new(), |device| format!(" {device}"));
            let what = recorder.device();
            let group = format!("{what}{number} of {} {pid}", processes.process_name(*pid));
            let name = stream.map_or("Device".to_owned(), |stream| format!("Stream {stream}"));
            (Group::Named(group), name)
        }
        TrackKey::Queue { device, queue } => {
            let device = if device.is_empty() {
                "GPU scheduler"
            } else {
                device
            };
            let queue = if queue.is_empty() { "queue" } else { queue };
            let group = format!("{device}: submissions, not busy time");
            (Group::Named(group), queue.to_owned())
        }
        TrackKey::Engine {
            pid,
            api,
            device,
            queue,
        } => {
            let process = processes.process_name(*pid);
            let group = format!("{api} device {device} of {process} {pid}");
            (Group::Named(group), queue_name(*queue))
        }
        TrackKey::Bounds { pid, api, queue } => {
            let process = processes.process_name(*pid);
            let group = format!("{api} work of {process} {pid}, estimated from calls");
            (Group::Named(group), queue_name(*queue))
        }
        TrackKey::Counter(source) => (Group::Named(source.to_string()), String::new()),
        TrackKey::Pauses => (Group::Named("Recording".to_owned()), "pauses".to_owned()),
    };
    Row { group, name }
}

fn queue_name(queue: u64) -> String {
    match queue {
        0 => "queue not known".to_owned(),
        queue => format!("queue {queue:#x}"),
    }
}
