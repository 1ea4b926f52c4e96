//! Why a device idles, by what the host did meanwhile.

use super::host::{HostPart, HostRows, event};
use crate::device_time::{DeviceTime, behind_each_other};
use crate::stretches::Stretches;
use crate::work::{RankedWork, WorkClass, name_of};
use aiprof_model::timeline::{Event, Id, Length, ProcessKey, Quality, Time, Timeline, TrackId};
use rustc_hash::{FxHashMap, FxHashSet};

/// Why a device idles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum IdleBlame {
    /// Its thread waited for data.
    Loader,
    /// Its thread compiled.
    Compile,
    /// A copy from pageable memory was being made ready.
    Pageable,
    /// Its thread had waited for the device.
    Sync,
    /// Kernels are shorter than their launches.
    Short,
    /// Nothing was launched.
    Starved,
    /// The work was launched before, and began late.
    Queued,
    /// Its launch is not known.
    Unknown,
}

/// Idle time with one cause.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdlePart {
    /// Picoseconds.
    ps: i64,
    /// Gaps with it.
    pub(crate) gaps: u64,
    /// The last of them.
    last: Option<(Time, Time)>,
    /// How much of that it has.
    last_ps: i64,
    /// The most that a gap has of it.
    longest_ps: i64,
    /// The gap with most of it.
    pub(crate) longest: Option<(Time, Time)>,
    /// By what the host did, picoseconds.
    pub(crate) places: FxHashMap<String, i64>,
    /// By thread of the host: process and thread.
    pub(crate) threads: FxHashMap<(ProcessKey, Id), i64>,
}

impl IdlePart {
    /// Its time, microseconds.
    pub(crate) fn us(&self) -> f64 {
        Length(self.ps).micros()
    }

    /// Takes off what has another name.
    pub(crate) fn less(&mut self, us: f64) {
        self.ps = self.ps.saturating_sub(Length::from_micros(us).0).max(0);
    }

    fn add(&mut self, ps: i64, gap: (Time, Time)) {
        self.ps = self.ps.saturating_add(ps);
        match self.last.replace(gap) == Some(gap) {
            true => self.last_ps = self.last_ps.saturating_add(ps),
            false => {
                self.gaps += 1;
                self.last_ps = ps;
            }
        }
        if self.last_ps > self.longest_ps {
            (self.longest, self.longest_ps) = (Some(gap), self.last_ps);
        }
    }

    /// The most time with it in one gap, microseconds.
    pub(crate) fn longest_us(&self) -> f64 {
        Length(self.longest_ps).micros()
    }

    /// Places, the one with most time first, microseconds. For paths of samples: the innermost
    /// function that most of them have. What no sample fell into is shared out alike.
    pub(crate) fn by_place(&self) -> Vec<(String, f64)> {
        let known = self.places.iter().filter(|(path, _)| !path.is_empty());
        let mut known: Vec<(&str, i64)> = known.map(|(path, ps)| (path.as_str(), *ps)).collect();
        known.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        known.truncate(MOST_PATHS);
        let mut sums: FxHashMap<String, i64> = FxHashMap::default();
        for (path, ps) in &known {
            add_to(sums.entry(function(path, &known)).or_default(), *ps);
        }
        let all = sum(self.places.values().copied());
        let known = sum(known.iter().map(|(_, ps)| *ps));
        let more = all as f64 / known.max(1) as f64;
        let mut places: Vec<_> = sums
            .into_iter()
            .map(|(name, ps)| (name, Length(ps).micros() * more))
            .collect();
        places.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        places
    }

    /// The thread with most of it.
    pub(crate) fn thread(&self) -> Option<(ProcessKey, Id)> {
        let most = self.threads.iter().max_by_key(|(id, ps)| (**ps, **id));
        most.map(|(id, _)| *id)
    }
}

/// Idle time of a device by cause.
pub(crate) type Idle = FxHashMap<IdleBlame, IdlePart>;

/// Gaps before kernels that are shorter than their launch are blamed on that up to here:
/// what is longer is the host's doing something else.
const SHORT_GAP: Length = Length(100_000_000);
/// Paths of samples that are looked at: those with most time.
const MOST_PATHS: usize = 500;
/// Between the frames of a sample's path.
const FRAMES: char = ';';
/// Most functions that are named: one, and those that call it.
const CALLERS: usize = 6;
/// A thread without a sample for so long does not run.
const LONG_GAP: Length = Length(50_000_000_000);
/// Prefix for a gap of which nothing but its end is known.
pub(super) const BEFORE: &str = "before ";
/// A wait may seem to end this long before the device's work, microseconds: clocks differ.
const SLACK_US: f64 = 20.0;

/// What looks at gaps.
pub(crate) struct GapBlame<'t> {
    /// The events.
    pub(crate) timeline: &'t Timeline,
    /// The threads.
    pub(crate) host: &'t HostRows,
}

impl GapBlame<'_> {
    /// Gives the reasons for all idle time of a device.
    pub(crate) fn of(&self, device: &DeviceTime<'_>) -> Idle {
        let mut idle = Idle::default();
        let mut processes: FxHashSet<ProcessKey> = FxHashSet::default();
        for (ended, work) in behind_each_other(device.work.iter().copied()) {
            let call = event(self.timeline, work.call);
            let process = call.map(|call| self.timeline.process(call));
            // A process that begins later has nothing to do with what was before.
            let is_known = process.is_none_or(|process| !processes.insert(process));
            let is_seen = |before: Time| device.seen.within(before, work.start) > Length::ZERO;
            let ended = ended.filter(|before| *before < work.start && is_seen(*before));
            if let Some(before) = ended.filter(|_| is_known) {
                self.gap((before, work.start), work, &mut idle);
            }
        }
        idle
    }

    fn gap(&self, gap: (Time, Time), next: &RankedWork, idle: &mut Idle) {
        let (from, to) = gap;
        let mut add = |blame, length: Length| {
            idle.entry(blame).or_default().add(length.0, gap);
        };
        let Some(call) = event(self.timeline, next.call) else {
            return add(IdleBlame::Unknown, to - from);
        };
        let ended = self.end_of(call, next);
        if ended <= from {
            return add(IdleBlame::Queued, to - from);
        }
        let is_short = next.class == WorkClass::Compute
            && next.us() < (ended - call.start).micros()
            && (to - from) <= SHORT_GAP;
        // Once the launch has returned, the host is not what the device waits for. Kernels
        // that are shorter than their launches are the exception: what begins them costs more
        // than they do.
        let to = if is_short { to } else { to.min(ended) };
        if to < gap.1 {
            add(IdleBlame::Queued, gap.1 - to);
        }
        let mut left = (to - from).0;
        let thread = self.timeline.tracks.get(self.timeline.home(call));
        let thread = (self.timeline.identity.process(thread.pid), thread.tid);
        let mut take = |blame: IdleBlame, ps: i64, place: Option<String>| {
            let ps = ps.clamp(0, left);
            if ps == 0 {
                return;
            }
            left -= ps;
            let part = idle.entry(blame).or_default();
            part.add(ps, gap);
            add_to(part.threads.entry(thread).or_default(), ps);
            if let Some(place) = place {
                add_to(part.places.entry(place).or_default(), ps);
            }
        };
        let spans = self.host.within(self.timeline.home(call), from, to);
        let part_of = |part: HostPart| {
            let with = spans.iter().filter(|span| span.part == part);
            let name = with
                .clone()
                .next()
                .map(|span| self.host.name(self.timeline, span));
            let clipped = with.map(|span| (span.start.max(from), span.end.min(to)));
            let time = Length::from_micros(Stretches::of(clipped).us()).0;
            (time, name.map(|name| name.into_owned()))
        };
        for (part, blame) in [
            (HostPart::Loader, IdleBlame::Loader),
            (HostPart::Compile, IdleBlame::Compile),
        ] {
            let (time, name) = part_of(part);
            take(blame, time, name);
        }
        let work = event(self.timeline, next.event);
        let name = work.map_or("", |work| name_of(self.timeline, work));
        if next.class == WorkClass::Copy && is_pageable(name) {
            take(IdleBlame::Pageable, (to - call.start.max(from)).0, None);
        }
        if let Some(wait) = self.host.wait_at(self.timeline.home(call), from, SLACK_US) {
            let name = self.host.name(self.timeline, &wait).into_owned();
            take(IdleBlame::Sync, (from - wait.start).0, Some(name));
        }
        let rest = (to - from).0;
        let place = || {
            self.place(
                self.timeline.home(call),
                from,
                call.start.clamp(from, to),
                to,
                name,
            )
        };
        match is_short {
            true => take(IdleBlame::Short, rest, Some(name.to_owned())),
            false => self.starve(self.timeline.home(call), (from, to), place(), &mut take),
        }
    }

    /// When a launch returned. Where that was not recorded, it was before the thread went on and
    /// before its work began.
    fn end_of(&self, call: &Event, work: &RankedWork) -> Time {
        let is_seen = call.quality == Quality::Exact && self.timeline.arg(call, "end").is_none();
        if is_seen {
            return call.end();
        }
        let next = self.host.next(self.timeline.home(call), call.start);
        next.map_or(work.start, |next| next.min(work.start))
    }

    /// Spreads what is left of a gap over what samples saw there, else over one place.
    fn starve(
        &self,
        track: TrackId,
        (from, to): (Time, Time),
        place: String,
        take: &mut dyn FnMut(IdleBlame, i64, Option<String>),
    ) {
        let samples = self.host.samples(self.timeline, track, from, to);
        let whole = (to - from).0;
        let sleeps = samples.as_ref().is_some_and(Vec::is_empty) && to - from > LONG_GAP;
        let is_sampled = samples.is_some();
        let place = match place.starts_with(BEFORE) {
            true if sleeps => format!("(the thread does not run) {place}"),
            // Too short for a sample: it is what the others are.
            true if is_sampled => String::new(),
            _ => place,
        };
        let seen = samples.filter(|seen| !seen.is_empty());
        for (sym, count) in seen.iter().flatten() {
            let all: usize = seen.iter().flatten().map(|(_, count)| *count).sum();
            let part = i128::from(whole) * (*count as i128) / (all.max(1) as i128);
            let name = self.timeline.name(*sym).to_owned();
            take(
                IdleBlame::Starved,
                i64::try_from(part).unwrap_or(whole),
                Some(name),
            );
        }
        take(IdleBlame::Starved, whole, Some(place));
    }

    /// What the thread did for most of a gap: the innermost Python function, else the
    /// innermost span; else what it launched next.
    fn place(&self, track: TrackId, from: Time, until: Time, to: Time, next: &str) -> String {
        let until = if until > from { until } else { to };
        let half = (until - from).0 / 2;
        let spans = self.host.within(track, from, until);
        let covering = || {
            let long = spans.iter().rev();
            long.filter(|span| (span.end.min(until) - span.start.max(from)).0 > half)
        };
        let named = |part: HostPart| covering().find(|span| span.part == part);
        let found = named(HostPart::Python)
            .or_else(|| covering().find(|span| span.part != HostPart::Step))
            .or_else(|| named(HostPart::Step));
        match found {
            Some(span) => self.host.name(self.timeline, span).into_owned(),
            None => format!("{BEFORE}{next}"),
        }
    }
}

/// The innermost function of a path whose time, with what it calls, is at least half of that of all
/// paths, with what calls it; else the outermost. Among its lines the one with most time.
fn function(path: &str, all: &[(&str, i64)]) -> String {
    let whole = sum(all.iter().map(|(_, ps)| *ps));
    let mut best: Vec<(&str, i64)> = vec![(path, 0)];
    for depth in 1..=path.split(FRAMES).count() {
        let head = || path.split(FRAMES).take(depth).map(without_line);
        let is_below = |other: &str| other.split(FRAMES).take(depth).map(without_line).eq(head());
        let below = all.iter().filter(|(other, _)| is_below(other));
        let heads: Vec<(&str, i64)> = below.map(|(path, ps)| (outer(path, depth), *ps)).collect();
        let below = sum(heads.iter().map(|(_, ps)| *ps));
        if depth > 1 && below.saturating_mul(2) < whole {
            break;
        }
        best = heads;
    }
    let mut sums: FxHashMap<&str, i64> = FxHashMap::default();
    for (head, ps) in best {
        add_to(sums.entry(head).or_default(), ps);
    }
    let most = sums.into_iter().max_by_key(|(head, ps)| (*ps, *head));
    let head = most.map_or(path, |(head, _)| head);
    let callers = head.rsplit(FRAMES).take(CALLERS);
    callers.collect::<Vec<_>>().join(" < ")
}

/// Adds picoseconds: times of damaged traces may be as far apart as there are any.
fn add_to(sum: &mut i64, ps: i64) {
    *sum = sum.saturating_add(ps);
}

/// All of them together.
fn sum(all: impl Iterator<Item = i64>) -> i64 {
    all.fold(0, i64::saturating_add)
}

/// The outermost frames of a path.
fn outer(path: &str, depth: usize) -> &str {
    let ends = path.match_indices(FRAMES).map(|(at, _)| at);
    let end = ends.chain([path.len()]).nth(depth.saturating_sub(1));
    path.get(..end.unwrap_or(path.len())).unwrap_or(path)
}

/// A frame without the number of its line: `f (a.py:12)` is `f (a.py`.
fn without_line(frame: &str) -> &str {
    let line = frame
        .strip_suffix(')')
        .and_then(|rest| rest.rsplit_once(':'));
    let line = line.filter(|(_, line)| line.bytes().all(|byte| byte.is_ascii_digit()));
    line.map_or(frame, |(function, _)| function)
}

/// Whether a copy's name shows that its memory on the host is not pinned.
pub(crate) fn is_pageable(name: &str) -> bool {
    name.to_ascii_lowercase().contains("pageable")
}
