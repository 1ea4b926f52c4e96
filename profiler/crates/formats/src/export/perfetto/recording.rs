//! A recording in Perfetto's format, event by event: memory holds names, rows and the
//! different stacks, not the events.
//!
//! * Rows are those of the Chrome trace, by the same numbers (`TimelineLayout`).
//! * CPU samples are samples (`PerfSample`) with interned call stacks, which the flame
//!   graph view adds up; they have no row.
//! * A call's stack is an argument, as text that is written once.
//! * What was lost, and what is known of the recording, are marks at its end.

use super::encode::{
    Notes, begin_with, fixed64, fixed64_double, intern, message, number, packet, text, track_event,
};
use super::tracks::describe;
use crate::export::{chrome, names};
use crate::timeline::{Placed, RowName, SAMPLES, TimelineLayout};
use aiprof_model::{
    profile::FrameKind,
    timeline::{
        Event, Members, NONE, Ph, Sym, Time, TrackId, TrackKind, Value, members,
        recorded::{Recorded, StackFrame},
    },
};
use aiprof_record::store::Store;
use rustc_hash::{FxHashMap, FxHashSet};
use std::{
    io::{self, BufWriter, Write},
    ops::Range,
};

/// Most different series of counters.
const MAX_SERIES: usize = 1 << 16;
/// Numbers of tracks: above those of processes.
const FIRST_TRACK: u64 = 1 << 40;
/// `PerfEvents.Counter`: the CPU's clock, of which periods are nanoseconds.
pub(crate) const SW_CPU_CLOCK: i32 = 1;
/// Bytes after which packets are written.
const FLUSH: usize = 1 << 16;

/// Writes the recording.
///
/// # Errors
/// Those of the store and of `out`.
pub fn write(recorded: &Recorded, store: Store, out: &mut dyn Write) -> io::Result<()> {
    let mut writer = RecordingWriter {
        recorded,
        out: BufWriter::with_capacity(1 << 16, out),
        layout: TimelineLayout::new(recorded),
        packets: Vec::new(),
        texts: Vec::new(),
        notes: Notes::new(1),
        known: Vec::new(),
        stacks: FxHashSet::default(),
        frames: FxHashSet::default(),
        call_stacks: FxHashSet::default(),
        tracks: FxHashMap::default(),
        series: FxHashMap::default(),
        held: Vec::new(),
        held_args: Vec::new(),
    };
    writer.begin()?;
    store.read(&mut |event, args| writer.event(event, args))?;
    writer.end()
}

/// A span that may get arrows.
struct HeldSpan {
    event: Event,
    placed: Placed,
    /// Where its arguments are.
    args: Range<usize>,
    /// Numbers of the arrows, and whether they end here.
    flows: Vec<(u64, bool)>,
}

struct RecordingWriter<'a> {
    recorded: &'a Recorded,
    out: BufWriter<&'a mut dyn Write>,
    layout: TimelineLayout<'a>,
    packets: Vec<u8>,
    /// Texts, frames and stacks that the next packets refer to.
    texts: Vec<u8>,
    notes: Notes,
    /// Names and categories that were written, by number: a bit for each field.
    known: Vec<u8>,
    /// Stacks and frames of samples, and stacks of calls, that were written.
    stacks: FxHashSet<u32>,
    frames: FxHashSet<u32>,
    call_stacks: FxHashSet<u32>,
    /// Tracks by process and row.
    tracks: FxHashMap<(i64, i64), u64>,
    /// Tracks of counters: by group, name and key.
    series: FxHashMap<(i64, Sym, Box<str>), u64>,
    /// Spans that begin at the time of the last event, and their arguments.
    held: Vec<HeldSpan>,
    held_args: Vec<u8>,
}

impl RecordingWriter<'_> {
    fn begin(&mut self) -> io::Result<()> {
        let period = self.recorded.period.nanos();
        begin_with(&mut self.packets, |packet| {
            message(packet, 59, |defaults| {
                message(defaults, 12, |samples| {
                    message(samples, 1, |timebase| {
                        number(timebase, 1, u64::try_from(period).unwrap_or(1).max(1));
                        number(timebase, 4, SW_CPU_CLOCK.unsigned_abs().into());
                        text(timebase, 10, "cpu-clock");
                    });
                });
            });
        });
        // Before all texts, which it would forget.
        self.flush(0)?;
        for (kind, path) in mappings() {
            intern(&mut self.texts, 17, kind, path);
            message(&mut self.texts, 19, |mapping| {
                number(mapping, 1, kind);
                // From the first to the last address: frames are numbered, not placed.
                number(mapping, 5, u64::MAX >> 1);
                number(mapping, 7, kind);
            });
        }
        self.rows();
        Ok(())
    }

    /// Describes new processes and rows.
    fn rows(&mut self) {
        for mut row in self.layout.take_new() {
            let thread = row.tid.and_then(|tid| tid.checked_sub(SAMPLES));
            if let Some(thread) = thread.filter(|tid| *tid >= 0) {
                // Samples have no row; but their thread has a name.
                row.tid = Some(thread);
                let name = row.name.strip_suffix(" samples");
                row.name = name.unwrap_or(&row.name).to_owned();
            }
            let of_row = row.tid.map(|tid| (row.pid, tid));
            if of_row.is_none_or(|row| !self.tracks.contains_key(&row)) {
                self.row(&row);
            }
        }
    }

    fn row(&mut self, row: &RowName) {
        let process = process_track(row.pid);
        let Some(tid) = row.tid else {
            return describe(&mut self.packets, process, 0, |track| {
                message(track, 3, |process| {
                    number(process, 1, row.pid.cast_unsigned());
                    number(process, 3, row.order);
                    text(process, 6, &row.name);
                    for label in row.label_texts() {
                        text(process, 8, &label);
                    }
                });
            });
        };
        let track = self.track(row.pid, tid);
        describe(&mut self.packets, track, process, |track| {
            message(track, 4, |thread| {
                number(thread, 1, row.pid.cast_unsigned());
                number(thread, 2, tid.cast_unsigned());
                number(thread, 3, row.order);
                text(thread, 5, &row.name);
            });
        });
    }

    fn track(&mut self, pid: i64, tid: i64) -> u64 {
        let next = FIRST_TRACK + 2 * self.tracks.len() as u64;
        *self.tracks.entry((pid, tid)).or_insert(next)
    }

    fn event(&mut self, event: &Event, args: Members<'_>) -> io::Result<()> {
        if self
            .held
            .first()
            .is_some_and(|held| held.event.start != event.start)
        {
            self.release();
        }
        let Some(placed) = self.layout.place(event) else {
            return Ok(());
        };
        self.rows();
        match event.ph {
            Ph::FlowStart | Ph::FlowEnd => self.flow(event),
            Ph::Counter => self.counter(event, placed, args),
            _ if self.kind(event.track) == TrackKind::Samples => self.sample(event, placed, args),
            _ => self.hold(event, placed, args),
        }
        self.flush(FLUSH)
    }

    fn kind(&self, track: TrackId) -> TrackKind {
        self.recorded.tracks.get(track).kind
    }

    /// An arrow: of the span of that launch that begins then.
    fn flow(&mut self, event: &Event) {
        let last = self.held.iter_mut().rev();
        let of = |event: &Event| (event.track, event.correlation);
        let mut last = last.filter(|held| of(&held.event) == of(event));
        if let (Some(span), Some(id)) = (last.next(), event.id.number()) {
            let ends = event.ph == Ph::FlowEnd;
            span.flows.push((id.cast_unsigned(), ends));
        }
    }

    fn hold(&mut self, event: &Event, placed: Placed, args: Members<'_>) {
        let from = self.held_args.len();
        self.held_args.extend_from_slice(args.bytes());
        self.held.push(HeldSpan {
            event: *event,
            placed,
            args: from..self.held_args.len(),
            flows: Vec::new(),
        });
    }

    /// Writes the spans that wait.
    fn release(&mut self) {
        let mut held = std::mem::take(&mut self.held);
        let mut args = std::mem::take(&mut self.held_args);
        let mut packets = std::mem::take(&mut self.packets);
        for span in held.drain(..) {
            let args = args.get(span.args.clone()).unwrap_or_default();
            self.span(&mut packets, &span, Members::of(args));
        }
        args.clear();
        (self.held, self.held_args, self.packets) = (held, args, packets);
    }

    fn span(&mut self, packets: &mut Vec<u8>, held: &HeldSpan, args: Members<'_>) {
        let (event, placed) = (&held.event, held.placed);
        let track = self.track(placed.pid, placed.tid);
        let from = nanos(placed.start);
        track_event(packets, Some(from), 1, track, |out| {
            number(out, 3, self.sym(event.cat, 1));
            number(out, 10, self.sym(event.name, 2));
            for &(id, ends) in &held.flows {
                fixed64(out, if ends { 48 } else { 47 }, id);
            }
            self.arguments(out, event, args);
        });
        let to = nanos(placed.start + placed.length);
        track_event(packets, Some(to), 2, track, |_| {});
    }

    fn arguments(&mut self, out: &mut Vec<u8>, event: &Event, args: Members<'_>) {
        let (notes, texts) = (&mut self.notes, &mut self.texts);
        self.recorded.arguments(event, args, |key, value| {
            message(out, 4, |note| notes.argument(texts, note, key, value));
        });
        if event.stack != NONE {
            self.call_stack(event.stack);
            message(out, 4, |note| {
                self.notes.key(&mut self.texts, note, "stack");
                number(note, 17, stack_text_id(event.stack));
            });
        }
    }

    /// The text of a call's stack gets a number.
    fn call_stack(&mut self, stack: u32) {
        if self.call_stacks.insert(stack) {
            let text = chrome::stack_text(self.recorded, stack);
            intern(&mut self.texts, 29, stack_text_id(stack), &text);
        }
    }

    fn sym(&mut self, sym: Sym, field: u32) -> u64 {
        let (index, iid) = (sym.index(), sym.index() as u64);
        if self.known.len() <= index {
            self.known.resize(index + 1, 0);
        }
        if let Some(known) = self.known.get_mut(index)
            && *known & 1 << field == 0
        {
            *known |= 1 << field;
            intern(&mut self.texts, field, iid, self.recorded.name(sym));
        }
        iid
    }

    fn sample(&mut self, event: &Event, placed: Placed, args: Members<'_>) {
        self.stack(event.stack);
        let track = self.recorded.tracks.get(event.track);
        let cpu = match args.find("cpu") {
            Some(Value::Number(cpu)) => cpu,
            _ => 0,
        };
        let mode = self.cpu_mode(event.stack);
        let end = nanos(placed.start + placed.length);
        packet(&mut self.packets, Some(end), |packet| {
            message(packet, 66, |sample| {
                number(sample, 1, cpu);
                number(sample, 2, placed.pid.cast_unsigned());
                number(sample, 3, track.tid.number().unwrap_or(0).cast_unsigned());
                number(sample, 4, u64::from(event.stack) + 1);
                number(sample, 5, mode);
            });
        });
    }

    /// `Profiling.CpuMode`: 1 in the kernel, 2 outside of it.
    fn cpu_mode(&self, stack: u32) -> u64 {
        let leaf = self.recorded.stacks.leaf(stack);
        let is_kernel = leaf.is_some_and(|frame| frame.kind == FrameKind::Kernel);
        if is_kernel { 1 } else { 2 }
    }

    /// A sample's stack gets a number, and so do its frames.
    fn stack(&mut self, stack: u32) {
        if !self.stacks.insert(stack) {
            return;
        }
        let recorded = self.recorded;
        let mut frames: Vec<u32> = Vec::new();
        for (_, node) in recorded.stacks.nodes_of(stack) {
            frames.extend(recorded.stacks.frames_of(node).rev());
        }
        for &id in &frames {
            let frame = recorded.stacks.frames.get(id as usize);
            if let Some(frame) = frame.filter(|_| self.frames.insert(id)) {
                self.frame(id, frame);
            }
        }
        message(&mut self.texts, 7, |callstack| {
            number(callstack, 1, u64::from(stack) + 1);
            // The outermost first.
            for &id in frames.iter().rev() {
                number(callstack, 2, u64::from(id) + 1);
            }
        });
    }

    fn frame(&mut self, id: u32, frame: &StackFrame) {
        let iid = u64::from(id) + 1;
        let name = names::suffixed(&frame.name, frame.kind);
        intern(&mut self.texts, 5, iid, &name);
        message(&mut self.texts, 6, |out| {
            number(out, 1, iid);
            number(out, 2, iid);
            number(out, 3, mapping_of(frame.kind));
            // Perfetto distinguishes frames by their address.
            number(out, 4, iid);
        });
    }

    fn counter(&mut self, event: &Event, placed: Placed, args: Members<'_>) {
        for (key, value) in args {
            let Some(double) = value.as_float() else {
                continue;
            };
            let Some(track) = self.series(event.name, placed.pid, key) else {
                continue;
            };
            let at = nanos(placed.start);
            track_event(&mut self.packets, Some(at), 4, track, |out| {
                fixed64_double(out, 44, double);
            });
        }
    }

    fn series(&mut self, name: Sym, pid: i64, key: &str) -> Option<u64> {
        let series = (pid, name, key.into());
        if let Some(&known) = self.series.get(&series) {
            return Some(known);
        }
        if self.series.len() >= MAX_SERIES {
            return None;
        }
        // Between those of rows.
        let track = FIRST_TRACK + 1 + 2 * self.series.len() as u64;
        self.series.insert(series, track);
        let name = format!("{} {key}", self.recorded.name(name));
        describe(&mut self.packets, track, process_track(pid), |track| {
            text(track, 2, &name);
            message(track, 8, |counter| text(counter, 6, key));
        });
        Some(track)
    }

    /// Writes what there is if it is so much; the texts first.
    fn flush(&mut self, least: usize) -> io::Result<()> {
        if self.packets.len() + self.texts.len() < least {
            return Ok(());
        }
        if !self.texts.is_empty() {
            let mut head = Vec::with_capacity(self.texts.len() + 32);
            packet(&mut head, None, |packet| {
                message(packet, 12, |data| data.append(&mut self.texts));
            });
            self.out.write_all(&head)?;
        }
        self.out.write_all(&self.packets)?;
        self.packets.clear();
        Ok(())
    }

    fn end(mut self) -> io::Result<()> {
        self.release();
        let recorded = self.recorded;
        let losses = self.layout.losses();
        let at = recorded.length_ns();
        let track = FIRST_TRACK - 1;
        describe(&mut self.packets, track, 0, |track| {
            text(track, 2, "aiprof")
        });
        let mut marks = vec![(
            "recording".to_owned(),
            chrome::other_data(recorded, &losses),
        )];
        for (kind, count) in losses.iter() {
            marks.push((
                format!("lost: {}", kind.label()),
                format!("{{\"count\":{count}}}"),
            ));
        }
        for (name, args) in marks {
            let mut body = Vec::new();
            text(&mut body, 23, &name);
            let inner = args
                .strip_prefix('{')
                .and_then(|args| args.strip_suffix('}'));
            for (key, value) in members(inner.unwrap_or_default()) {
                message(&mut body, 4, |note| {
                    self.notes.annotation(&mut self.texts, note, key, value);
                });
            }
            track_event(&mut self.packets, Some(at), 3, track, |out| {
                out.append(&mut body)
            });
        }
        self.flush(0)?;
        self.out.flush()
    }
}

fn nanos(time: Time) -> u64 {
    u64::try_from(time.nanos()).unwrap_or(0)
}

/// Numbers of processes' tracks are those of the processes, from 1.
fn process_track(pid: i64) -> u64 {
    pid.cast_unsigned().wrapping_add(1)
}

/// The number of a call stack's text, above those of all other texts.
fn stack_text_id(stack: u32) -> u64 {
    1 << 32 | u64::from(stack)
}

/// What frames are of, as mappings: Perfetto wants one for each.
fn mappings() -> [(u64, &'static str); 3] {
    [(1, "[user]"), (2, "[kernel]"), (3, "[unknown]")]
}

fn mapping_of(kind: FrameKind) -> u64 {
    match kind {
        FrameKind::Kernel => 2,
        FrameKind::Unknown => 3,
        _ => 1,
    }
}
