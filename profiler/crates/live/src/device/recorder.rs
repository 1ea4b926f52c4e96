//! One stream: its bytes become windows.

use super::{
    feed::{Feed, Topic},
    save::Save,
    subset::Subset,
};
use aiprof_model::{
    eu_stall::{Layout, Splitter, Sums},
    profile::LossKind,
    wire::{DeviceStream, Event, StallWindow},
};
use std::io;

/// Most different addresses in a window: some 25 MB for each stream.
const MAX_ADDRESSES: usize = 1 << 18;
/// If more than one record in this number has strange bits, the layout is called into question.
const STRANGE_SHARE: u64 = 4;

/// How the records of a stream are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) layout: Layout,
    pub(super) record_size: usize,
    /// The instruction base address, if it is known.
    pub(super) base: Option<u64>,
}

/// Adds the records of a stream up and hands on its windows.
#[derive(Debug)]
pub(super) struct StreamRecorder {
    stream: DeviceStream,
    shape: Shape,
    splitter: Splitter,
    sums: Sums,
    feed: Feed,
    /// Drops since the last window that was closed.
    drops: u32,
    /// The window that is open because there was no room for it.
    open_from: Option<u64>,
    /// A closed window that finds no room.
    held: Option<Event>,
    announced: bool,
    strange: u64,
    records: u64,
    saturated: u64,
    subset: Subset,
    /// The device capture that is written.
    save: Option<Save>,
}

impl StreamRecorder {
    /// For a stream. `None`: no record can have that size.
    pub(super) fn new(mut stream: DeviceStream, shape: Shape, feed: Feed) -> Option<Self> {
        let splitter = Splitter::new(shape.layout, shape.record_size)?;
        stream.relative = shape.layout.relative() && shape.base.is_none();
        Some(Self {
            stream,
            shape,
            splitter,
            sums: Sums::new(shape.layout, shape.record_size, MAX_ADDRESSES),
            feed,
            drops: 0,
            open_from: None,
            held: None,
            announced: false,
            strange: 0,
            records: 0,
            saturated: 0,
            subset: Subset::new(1),
            save: None,
        })
    }

    /// Adds only one record in `n`, chosen at random.
    pub(super) fn one_of(mut self, n: u32) -> Self {
        self.subset = Subset::new(n.max(1));
        self
    }

    /// Emits the stream's description, once, before anything else.
    pub(super) fn announce(&mut self) {
        if !self.announced {
            self.announced = true;
            let stream = Event::DeviceStream(self.stream.clone());
            self.held = self.feed.offer(stream);
            if let Some(folder) = self.feed.save() {
                let save = Save::new(folder, &self.stream, self.shape);
                self.save = save.map_err(|error| self.save_failed(&error)).ok();
            }
        }
    }

    /// The next bytes of the stream.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        let (sums, subset, save) = (&mut self.sums, &mut self.subset, &mut self.save);
        let size = self.splitter.record_size();
        let mut saved = Ok(());
        self.splitter.split(bytes, |records| {
            subset.choose(records, size, |chosen| sums.add(chosen));
            if let (Some(save), Ok(())) = (&mut *save, &saved) {
                saved = save.add(records);
            }
        });
        self.saved(saved);
    }

    /// The stream reports dropped samples.
    pub(super) fn dropped(&mut self, times: u32) {
        self.drops = self.drops.saturating_add(times);
        if let Some(save) = &mut self.save {
            save.dropped(times);
        }
    }

    /// The stream ended, or begins anew: what was cut off is lost.
    pub(super) fn cut(&mut self) {
        if self.splitter.reset() > 0 {
            self.feed.status().lost(LossKind::DeviceUndecodable, 1);
        }
    }

    /// A read is over: everything since the last window was sampled between these
    /// times. Without room for the window, it stays open and grows.
    pub(super) fn close(&mut self, from_ns: u64, to_ns: u64) {
        self.close_saved(from_ns, to_ns);
        let from = self.open_from.map_or(from_ns, |open| open.min(from_ns));
        if let Some(held) = self.held.take() {
            self.held = self.feed.offer(held);
        }
        if self.held.is_some() {
            self.open_from = (!self.is_empty()).then_some(from);
            return;
        }
        self.open_from = None;
        if let Some(window) = self.window(from, to_ns) {
            self.held = self.feed.offer(window);
        }
    }

    /// As [`close`](Self::close), but waits for room. Whether somebody wants the
    /// window.
    pub(super) fn close_waiting(&mut self, from_ns: u64, to_ns: u64) -> bool {
        self.close_saved(from_ns, to_ns);
        let from = self.open_from.take().map_or(from_ns, |o| o.min(from_ns));
        let window = self.window(from, to_ns);
        let all = self.held.take().into_iter().chain(window);
        let mut wanted = true;
        for event in all {
            wanted &= self.feed.send(event);
        }
        wanted
    }

    fn is_empty(&self) -> bool {
        self.sums.records() == 0 && self.drops == 0
    }

    fn window(&mut self, from_ns: u64, to_ns: u64) -> Option<Event> {
        if self.is_empty() {
            return None;
        }
        let sums = self.sums.take(self.base());
        let drops = std::mem::take(&mut self.drops).saturating_add(sums.drops);
        let status = self.feed.status();
        status.lost(LossKind::DeviceDrops, drops.into());
        status.lost(LossKind::DeviceSamplesRefused, sums.refused_samples);
        self.records = self.records.saturating_add(sums.records);
        self.strange = self.strange.saturating_add(sums.strange);
        self.saturated = self.saturated.saturating_add(sums.saturated);
        if self.strange > self.records / STRANGE_SHARE {
            status.problem(self.stream.id, Topic::Records, Some(self.wrong_layout()));
        }
        // What is generated fills its counters on purpose.
        if sums.saturated > 0 && self.stream.replayed.is_none() {
            status.problem(self.stream.id, Topic::Counters, Some(self.too_few_bits()));
        }
        Some(Event::Stalls(StallWindow {
            stream: self.stream.id,
            from_ns,
            to_ns: to_ns.max(from_ns),
            busy_ns: None,
            records: sums.records,
            drops,
            refused: sums.refused,
            counts: sums.counts,
        }))
    }

    fn wrong_layout(&self) -> String {
        format!(
            "{}: {} of {} records have bits set that must be zero: they probably have another \
             layout.",
            self.stream.name, self.strange, self.records
        )
    }

    fn too_few_bits(&self) -> String {
        format!(
            "{}: {} counters in {} records are at their limit of 255, so samples may be missing. \
             Raise --device-cycles.",
            self.stream.name, self.saturated, self.records
        )
    }

    fn base(&self) -> u64 {
        let relative = self.shape.layout.relative();
        self.shape.base.filter(|_| relative).unwrap_or(0)
    }

    fn close_saved(&mut self, from_ns: u64, to_ns: u64) {
        if let Some(save) = &mut self.save {
            let saved = save.close(from_ns, to_ns);
            self.saved(saved);
        }
    }

    /// After a failure, nothing more is saved.
    fn saved(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.save = None;
            self.save_failed(&error);
        }
    }

    fn save_failed(&self, error: &io::Error) {
        let name = &self.stream.name;
        let text = format!("The device capture of {name} is incomplete: {error}.");
        let id = self.stream.id;
        self.feed.status().problem(id, Topic::Saving, Some(text));
    }
}

impl Drop for StreamRecorder {
    fn drop(&mut self) {
        if let Some(save) = self.save.take() {
            let saved = save.end();
            self.saved(saved);
        }
    }
}
