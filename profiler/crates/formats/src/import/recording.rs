//! A recording as a [`Timeline`] in memory, for the analyses that need all of it. It has
//! the rows, times and arguments of its Chrome trace, so that both are analysed alike.

use super::json::event::{FieldReader, Fields, Parsed};
use super::json::{End, Problems, Reading, job_hash};
use crate::export::chrome;
use crate::timeline::{RowName, TimelineLayout};
use aiprof_model::json::Object;
use aiprof_model::profile::FrameKind;
use aiprof_model::timeline::{
    Begins, Dialect, Event, Id, Job, Members, NONE, Ph, Stated, Stretch, Sym, Time, Timeline,
    Track, TrackId, TrackKind, members, recorded::Recorded,
};
use aiprof_record::store::Store;
use aiprof_system::memory;
use rustc_hash::FxHashMap;
use std::io;

/// Bytes of arguments that are handed on at a time.
const BLOCK: usize = 1 << 20;

/// Adds the part of a recording that is within a stretch of time since its first event.
/// `path` is its name for messages and for the job's.
///
/// # Errors
/// Those of the store, and [`memory::check`]'s.
pub fn read(
    recorded: &Recorded,
    store: Store,
    path: &str,
    kept: Stretch,
    into: &mut Timeline,
) -> io::Result<Reading> {
    let (first, job) = (into.events.len(), into.jobs.len() as u32);
    let mut loader = Loader::new(recorded, kept, into);
    loader.rows();
    let read = store.read(&mut |event, args| loader.event(event, args));
    let earliest = loader.begins.first();
    loader.end();
    read?;
    into.jobs.push(Job {
        path: path.to_owned(),
        name: path.rsplit('/').next().unwrap_or(path).to_owned(),
        hash: job_hash(path),
        writer: "",
        dialect: Dialect::Torch,
        rank: None,
        is_processed: false,
        stated: Stated::default(),
        is_recording: true,
    });
    let origin = *into.origin.get_or_insert(0);
    Ok(Reading {
        job,
        events: first..into.events.len(),
        origin,
        problems: Problems::default(),
        end: End::Whole,
        is_acelyzer_output: false,
        is_synthetic: false,
        day_us: day_us(recorded.meta.start_unix_ns),
        base_ns: None,
        earliest,
    })
}

/// A time of day in microseconds since 1970; 0: not known.
pub(super) fn day_us(unix_ns: u64) -> Option<i64> {
    let us = i64::try_from(unix_ns / 1000).ok();
    us.filter(|us| *us > 0)
}

struct Loader<'a> {
    recorded: &'a Recorded,
    /// What is not left out.
    kept: Stretch,
    layout: TimelineLayout<'a>,
    job: u32,
    /// Names of the recording, in the timeline.
    names: FxHashMap<Sym, Sym>,
    /// Names of the leaves of samples' stacks, and the program's frames of these.
    leaves: FxHashMap<u32, (Sym, Sym)>,
    into: &'a mut Timeline,
    /// The timeline's events and tables, lent, and arguments on their way to its texts.
    parsed: Parsed,
    /// The first event whose arguments are on their way.
    flushed: usize,
    /// Those of all events.
    begins: Begins,
}

impl<'a> Loader<'a> {
    fn new(recorded: &'a Recorded, kept: Stretch, into: &'a mut Timeline) -> Self {
        let parsed = Parsed {
            events: std::mem::take(&mut into.events),
            devices: std::mem::take(&mut into.devices),
            transfers: std::mem::take(&mut into.transfers),
            names: std::mem::take(&mut into.names),
            tracks: std::mem::take(&mut into.tracks),
            ..Parsed::default()
        };
        Self {
            recorded,
            kept,
            layout: TimelineLayout::new(recorded),
            job: into.jobs.len() as u32,
            names: FxHashMap::default(),
            leaves: FxHashMap::default(),
            flushed: parsed.events.len(),
            into,
            parsed,
            begins: Begins::default(),
        }
    }

    fn track(&mut self, pid: i64, tid: Id, kind: TrackKind) -> TrackId {
        self.parsed.tracks.intern(Track {
            job: self.job,
            rank: NONE,
            pid: Id::Number(pid),
            tid,
            kind,
        })
    }

    fn name(&mut self, sym: Sym) -> Sym {
        let (recorded, names) = (self.recorded, &mut self.parsed.names);
        let new = || names.intern(recorded.name(sym));
        *self.names.entry(sym).or_insert_with(new)
    }

    fn leaf(&mut self, stack: u32) -> (Sym, Sym) {
        let (recorded, names) = (self.recorded, &mut self.parsed.names);
        let new = || {
            let leaf = names.intern(&chrome::leaf_name(recorded, stack));
            (leaf, names.intern(&path(recorded, stack)))
        };
        *self.leaves.entry(stack).or_insert_with(new)
    }

    fn rows(&mut self) {
        for row in self.layout.take_new() {
            self.row(&row);
        }
    }

    /// Name and place of a process or row.
    fn row(&mut self, row: &RowName) {
        let tid = Id::Number(row.tid.unwrap_or(row.pid));
        let track = self.track(row.pid, tid, TrackKind::Row);
        for (name, members) in row.facts() {
            let name = self.parsed.names.intern(&name);
            let members = members.iter().map(|(key, value)| (*key, value.as_str()));
            let members: Vec<_> = members.collect();
            self.push(
                Event::new(Ph::Metadata, name, track, Time::ORIGIN),
                &members,
            );
        }
    }

    fn event(&mut self, event: &Event, args: Members<'_>) -> io::Result<()> {
        memory::check().map_err(io::Error::other)?;
        let Some(placed) = self.layout.place(event) else {
            return Ok(());
        };
        self.rows();
        let mut within = *event;
        (within.start, within.length) = (placed.start, placed.length);
        self.begins.add(&within);
        if !within.is_within(self.kept) {
            return Ok(());
        }
        let kind = self.recorded.tracks.get(event.track).kind;
        let tid = match event.ph {
            Ph::Counter => Id::NONE,
            _ => Id::Number(placed.tid),
        };
        let (name, path) = match kind {
            TrackKind::Samples => self.leaf(event.stack),
            _ => (self.name(event.name), Sym::EMPTY),
        };
        let track = self.track(placed.pid, tid, kind);
        let mut new = Event::new(event.ph, name, track, placed.start);
        new.length = placed.length;
        new.work = path;
        new.cat = self.name(event.cat);
        new.id = event.id;
        new.binds_enclosing = event.binds_enclosing;
        new.quality = event.quality;
        new.correlation = match event.ph {
            Ph::Complete => event.correlation,
            _ => 0,
        };
        let mut work = String::new();
        let work = (!event.work.is_empty()).then(|| {
            aiprof_model::json::quote(&mut work, self.recorded.name(event.work));
            ("work", &*work)
        });
        let args = Object::of(args);
        let all: Vec<_> = members(args.members()).chain(work).collect();
        self.push(new, &all);
        Ok(())
    }

    /// Adds an event; its arguments are taken as a reader of JSON takes them.
    fn push(&mut self, mut event: Event, args: &[(&str, &str)]) {
        let start = self.parsed.text.len();
        let mut fields = Fields::default();
        for &(key, value) in args {
            fields.argument(&mut self.parsed, key, value);
        }
        let mut reader = FieldReader {
            origin: 0,
            offset: 0,
            parsed: &mut self.parsed,
        };
        reader.sides(&fields, &mut event);
        event.args = reader.argument_text(start);
        self.parsed.events.push(event);
        if self.parsed.text.len() > BLOCK {
            self.flush();
        }
    }

    /// Moves arguments to the timeline's texts.
    fn flush(&mut self) {
        let texts = &mut self.into.texts;
        self.flushed = self.parsed.flush(self.flushed, texts);
    }

    /// Marks what was lost, and gives everything back.
    fn end(mut self) {
        let recorded = self.recorded;
        let losses = self.layout.losses();
        let at = Time::from_nanos(i64::try_from(recorded.length_ns()).unwrap_or(i64::MAX));
        // Also where the end is not looked at.
        let at = at.min(self.kept.to);
        let cat = self.parsed.names.intern("losses");
        let track = self.track(0, Id::Number(0), TrackKind::Row);
        for (kind, count) in losses.iter() {
            let name = self.parsed.names.intern(&format!("lost: {}", kind.label()));
            let mut event = Event::new(Ph::Instant, name, track, at);
            event.cat = cat;
            self.push(event, &[("count", &count.to_string())]);
        }
        self.flush();
        let Self { into, parsed, .. } = self;
        into.events = parsed.events;
        into.devices = parsed.devices;
        into.transfers = parsed.transfers;
        into.names = parsed.names;
        into.tracks = parsed.tracks;
    }
}

/// Frames of a sample's path at most.
const MOST_FRAMES: usize = 24;

/// The program's own frames of a stack, root first, with `;` between: those of an
/// interpreter, if there are any, else those of the process.
fn path(recorded: &Recorded, stack: u32) -> String {
    let stacks = &recorded.stacks;
    let of = |kinds: &[FrameKind]| {
        let nodes = stacks.nodes_of(stack);
        let frames = nodes.flat_map(|(_, node)| stacks.frames_of(node).rev());
        let frames = frames.filter_map(|frame| stacks.frames.get(frame as usize));
        let frames = frames.filter(|frame| kinds.contains(&frame.kind));
        let mut names: Vec<String> = frames
            .take(MOST_FRAMES)
            .map(|frame| frame.name.replace(';', ":"))
            .collect();
        names.reverse();
        names.join(";")
    };
    match of(&[FrameKind::Interpreter]) {
        path if path.is_empty() => of(&[FrameKind::Native, FrameKind::Inlined, FrameKind::Jit]),
        path => path,
    }
}
