//! One stream: its bytes become windows.

use super::feed::{Feed, Topic};
use crate::{
    eu_stall::{Layout, Splitter, Sums},
    profile::LossKind,
    wire::{DeviceStream, Event, StallWindow},
};

/// Most addresses that are told apart in a window: some 25 MB for each stream.
const MAX_ADDRESSES: usize = 1 << 18;
/// Of records with strange bits: from this share on (one of so many) the layout is
/// called into question.
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
pub(super) struct Recorder {
    stream: DeviceStream,
    base: u64,
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
    subset: Subset,
}

impl Recorder {
    /// For a stream. `None`: no record can have that size.
    pub(super) fn new(mut stream: DeviceStream, shape: Shape, feed: Feed) -> Option<Self> {
        let splitter = Splitter::new(shape.layout, shape.record_size)?;
        stream.relative = shape.layout.relative() && shape.base.is_none();
        let base = shape.base.filter(|_| shape.layout.relative()).unwrap_or(0);
        Some(Self {
            stream,
            base,
            splitter,
            sums: Sums::new(shape.layout, shape.record_size, MAX_ADDRESSES),
            feed,
            drops: 0,
            open_from: None,
            held: None,
            announced: false,
            strange: 0,
            records: 0,
            subset: Subset::new(1),
        })
    }

    /// Adds one of so many records only, chosen at random.
    pub(super) fn one_of(mut self, n: u32) -> Self {
        self.subset = Subset::new(n.max(1));
        self
    }

    /// Tells of the stream, once; goes before all else.
    pub(super) fn announce(&mut self) {
        if !self.announced {
            self.announced = true;
            let stream = Event::DeviceStream(self.stream.clone());
            self.held = self.feed.offer(stream);
        }
    }

    /// The next bytes of the stream.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        let (sums, subset) = (&mut self.sums, &mut self.subset);
        let size = self.splitter.record_size();
        self.splitter.split(bytes, |records| {
            subset.choose(records, size, |chosen| sums.add(chosen));
        });
    }

    /// The stream says that samples were dropped.
    pub(super) fn dropped(&mut self, times: u32) {
        self.drops = self.drops.saturating_add(times);
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
        let sums = self.sums.take(self.base);
        let drops = std::mem::take(&mut self.drops).saturating_add(sums.drops);
        let status = self.feed.status();
        status.lost(LossKind::DeviceDrops, drops.into());
        status.lost(LossKind::DeviceSamplesRefused, sums.refused_samples);
        self.records = self.records.saturating_add(sums.records);
        self.strange = self.strange.saturating_add(sums.strange);
        if self.strange > self.records / STRANGE_SHARE {
            status.problem(self.stream.id, Topic::Records, Some(self.wrong_layout()));
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
            "{}: {} of {} records have bits set that should be zero: they are probably in \
             another layout.",
            self.stream.name, self.strange, self.records
        )
    }
}

/// One of so many records. Of each group one is chosen at random, so that no order in
/// the records, which are grouped by core, can favour some.
#[derive(Debug)]
struct Subset {
    one_of: u32,
    /// Records until the next that is chosen.
    skip: usize,
    /// Records behind it that belong to its group.
    rest: usize,
    random: u64,
}

impl Subset {
    fn new(one_of: u32) -> Self {
        let mut subset = Self {
            one_of,
            skip: 0,
            rest: 0,
            // Any number but 0.
            random: 0x9e37_79b9_7f4a_7c15,
        };
        subset.next_group();
        subset
    }

    fn choose(&mut self, records: &[u8], size: usize, mut chosen: impl FnMut(&[u8])) {
        if self.one_of <= 1 {
            chosen(records);
            return;
        }
        let mut records = records;
        loop {
            let skipped = self.skip.saturating_mul(size);
            let Some((record, behind)) = records
                .get(skipped..)
                .and_then(|rest| rest.split_at_checked(size))
            else {
                self.skip -= records.len() / size;
                return;
            };
            chosen(record);
            records = behind;
            self.next_group();
        }
    }

    fn next_group(&mut self) {
        // Xorshift.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let group = self.one_of as usize;
        let at = (self.random >> 32) as usize % group;
        self.skip = self.rest + at;
        self.rest = group - 1 - at;
    }
}
