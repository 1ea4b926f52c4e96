//! Why a device idles, by what the host did meanwhile.
//!
//! Each gap is cut into stretches of one reason each, so that nothing is charged twice. What is
//! left of it behind one reason is looked at by itself: what the gap as a whole is full of may be
//! what was taken off.

use super::host::{HostPart, HostRows, HostSample, HostSpan, event};
use super::idle::preparing;
use crate::device_time::{
    DeviceTime, IdleBlame, IdlePlace, IdleStretch, begins_before, behind_each_other,
};
use crate::stretches::Stretches;
use crate::work::{RankedWork, WorkClass, name_of};
use aiprof_model::timeline::{Event, Length, ProcessKey, Quality, Sym, Time, Timeline, TrackId};
use rustc_hash::{FxHashMap, FxHashSet};

/// Idle time with one cause.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdlePart {
    /// Picoseconds.
    ps: i64,
    /// Gaps with it.
    pub(crate) gaps: u64,
    /// The last of them.
    last: Option<(Time, Time)>,
    /// Where in that it begins and ends, and how much of it it has.
    last_part: ((Time, Time), i64),
    /// The most that a gap has of it.
    longest_ps: i64,
    /// Where that begins and ends.
    pub(crate) longest: Option<(Time, Time)>,
    /// By what the host did, picoseconds.
    pub(crate) places: FxHashMap<IdlePlace, i64>,
    /// By thread of the host.
    threads: FxHashMap<TrackId, i64>,
}

impl IdlePart {
    /// Its time, microseconds.
    pub(crate) fn us(&self) -> f64 {
        Length(self.ps).micros()
    }

    fn add(&mut self, one: &IdleStretch) {
        let ps = (one.to - one.from).0;
        add_to(&mut self.ps, ps);
        let (mut part, mut sum) = match self.last.replace(one.gap) == Some(one.gap) {
            true => self.last_part,
            false => {
                self.gaps += 1;
                ((one.from, one.to), 0)
            }
        };
        part = (part.0.min(one.from), part.1.max(one.to));
        add_to(&mut sum, ps);
        self.last_part = (part, sum);
        if sum > self.longest_ps {
            (self.longest, self.longest_ps) = (Some(part), sum);
        }
        add_to(self.places.entry(one.place).or_default(), ps);
        if let Some(thread) = one.thread {
            add_to(self.threads.entry(thread).or_default(), ps);
        }
    }

    /// The most time with it in one gap, microseconds.
    pub(crate) fn longest_us(&self) -> f64 {
        Length(self.longest_ps).micros()
    }

    /// Places, the one with most time first, microseconds. For paths of samples: the innermost
    /// function that most of them have. Time of which nothing shows the place has none.
    pub(crate) fn by_place(&self, timeline: &Timeline) -> Vec<(String, f64)> {
        let texts = self.places.iter();
        let texts = texts.filter_map(|(place, ps)| Some((text(timeline, *place)?, *ps)));
        let texts: Vec<(String, i64)> = texts.collect();
        sums_by_function(&texts)
    }

    /// The thread with most of it.
    pub(crate) fn thread(&self) -> Option<TrackId> {
        let most = self.threads.iter().max_by_key(|(id, ps)| (**ps, **id));
        most.map(|(id, _)| *id)
    }
}

/// What a place is called; `None`: it is not known.
fn text(timeline: &Timeline, place: IdlePlace) -> Option<String> {
    let name = |sym: Sym| timeline.name(sym);
    Some(match place {
        IdlePlace::Unknown => return None,
        IdlePlace::Name(sym) => name(sym).to_owned(),
        IdlePlace::Step => "ProfilerStep".to_owned(),
        IdlePlace::Before(sym) => format!("{BEFORE}{}", name(sym)),
        IdlePlace::Stopped(sym) => format!("(the thread does not run) {BEFORE}{}", name(sym)),
    })
}

/// Times of paths by the innermost function that most of them have.
fn sums_by_function(paths: &[(String, i64)]) -> Vec<(String, f64)> {
    let known = paths.iter().filter(|(path, _)| !path.is_empty());
    let known = known.map(|(path, ps)| (path.as_str(), *ps));
    // A wait is of no function.
    let is_wait = |path: &str| path.starts_with('[') && !path.contains(FRAMES);
    let (waits, mut known): (Vec<_>, Vec<_>) = known.partition(|(path, _)| is_wait(path));
    known.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    known.truncate(MOST_PATHS);
    let mut sums: FxHashMap<String, i64> = FxHashMap::default();
    for (wait, ps) in waits {
        add_to(sums.entry(wait.to_owned()).or_default(), ps);
    }
    for (path, ps) in &known {
        add_to(sums.entry(function(path, &known)).or_default(), *ps);
    }
    let mut places: Vec<_> = sums
        .into_iter()
        .map(|(name, ps)| (name, Length(ps).micros()))
        .collect();
    places.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    places
}

/// Idle time of a device by cause.
pub(crate) type Idle = FxHashMap<IdleBlame, IdlePart>;

/// Adds stretches up by cause.
pub(crate) fn by_blame(stretches: &[IdleStretch]) -> Idle {
    let mut idle = Idle::default();
    for one in stretches {
        idle.entry(one.blame).or_default().add(one);
    }
    idle
}

/// Gaps before kernels that are shorter than their launch are blamed on that up to here:
/// what is longer is the host's doing something else.
const SHORT_GAP: Length = Length(100_000_000);
/// Paths of samples that are looked at: those with most time.
const MOST_PATHS: usize = 500;
/// Frames of a path that are looked at, the outermost: recordings have fewer.
const MOST_DEPTH: usize = 32;
/// Between the frames of a sample's path.
const FRAMES: char = ';';
/// Most functions that are named: one, and those that call it.
const CALLERS: usize = 6;
/// Most spans that one gap is named after.
const MOST_NAMES: usize = 4;
/// A thread without a sample for so long does not run.
const LONG_GAP: Length = Length(50_000_000_000);
/// Prefix for a gap of which nothing but its end is known.
pub(super) const BEFORE: &str = "before ";
/// A wait may seem to end this long before the device's work, microseconds: clocks differ.
const SLACK_US: f64 = 20.0;

/// What looks at gaps.
pub(crate) struct GapBlame<'t> {
    /// The events.
    timeline: &'t Timeline,
    /// The threads.
    host: &'t HostRows,
    /// When computations of each rank are prepared.
    preparing: FxHashMap<u32, Stretches>,
}

/// What of a gap has no reason yet.
struct GapShares<'s> {
    gap: (Time, Time),
    left: Stretches,
    thread: Option<TrackId>,
    into: &'s mut Vec<IdleStretch>,
}

impl GapShares<'_> {
    /// Gives what is left of some time a reason.
    fn take(&mut self, blame: IdleBlame, what: &Stretches, place: IdlePlace) {
        let taken = self.left.and(what);
        if !taken.is_empty() {
            self.left = self.left.without(&taken);
            for time in taken.iter() {
                self.into.push(self.stretch(blame, time, place));
            }
        }
    }

    /// The same of many times that are by begin and apart from each other, with places.
    fn starve(&mut self, times: impl Iterator<Item = (Time, Time, IdlePlace)>) {
        let mut done = self.gap.0;
        let mut taken = Vec::new();
        for (from, to, place) in times {
            let from = from.max(done);
            done = done.max(to);
            for time in self.left.cut(from, to) {
                self.into
                    .push(self.stretch(IdleBlame::Starved, time, place));
                taken.push(time);
            }
        }
        if !taken.is_empty() {
            self.left = self.left.without(&Stretches::of(taken));
        }
    }

    fn stretch(&self, blame: IdleBlame, (from, to): (Time, Time), place: IdlePlace) -> IdleStretch {
        IdleStretch {
            from,
            to,
            blame,
            place,
            thread: self.thread,
            gap: self.gap,
        }
    }

    /// Gives all that is left a reason.
    fn rest(&mut self, blame: IdleBlame, place: IdlePlace) {
        for time in std::mem::take(&mut self.left).iter() {
            self.into.push(self.stretch(blame, time, place));
        }
    }
}

impl<'t> GapBlame<'t> {
    /// Looks at the events and what threads did.
    pub(crate) fn new(timeline: &'t Timeline, host: &'t HostRows) -> Self {
        Self {
            timeline,
            host,
            preparing: preparing(timeline),
        }
    }

    /// The reasons for all idle time of a device: stretches apart from each other, which together
    /// are all its gaps, gap by gap.
    pub(crate) fn of(&self, device: &DeviceTime<'_>) -> Vec<IdleStretch> {
        let mut found = Vec::new();
        let mut processes: FxHashSet<ProcessKey> = FxHashSet::default();
        let mut begun: FxHashSet<u32> = FxHashSet::default();
        // What takes no time ends no gap.
        let works = device.work.iter().copied();
        for (ended, work) in behind_each_other(works.filter(|work| work.start < work.end)) {
            let call = event(self.timeline, work.call);
            let process = call.map(|call| self.timeline.process(call));
            let is_first = process.is_some_and(|process| processes.insert(process));
            let is_begun = !begun.insert(work.call);
            let Some(before) = ended.filter(|before| *before < work.start) else {
                continue;
            };
            let gap = (before, work.start);
            // Between two files of a process nothing was recorded.
            let left = Stretches::one(gap.0, gap.1).and(&device.seen);
            if left.is_empty() {
                continue;
            }
            let mut shares = GapShares {
                gap,
                left,
                thread: None,
                into: &mut found,
            };
            match call.filter(|call| !begins_before(work, call)) {
                // A process that begins later has nothing to do with what was before.
                Some(_) if is_first => shares.rest(IdleBlame::First, IdlePlace::Unknown),
                // The launch of a graph may return when some of its work is done.
                Some(call) if is_begun && is_graph(self.timeline, call) => {
                    shares.rest(IdleBlame::Queued, IdlePlace::Unknown);
                }
                Some(call) => self.gap(call, work, &mut shares),
                None => {
                    if let Some(preparing) = self.preparing.get(&device.rank.rank) {
                        shares.take(IdleBlame::Prepared, preparing, IdlePlace::Unknown);
                    }
                    shares.rest(IdleBlame::Unknown, IdlePlace::Unknown);
                }
            }
        }
        found
    }

    fn gap(&self, call: &Event, next: &RankedWork, shares: &mut GapShares<'_>) {
        let (from, to) = shares.gap;
        let ended = self.end_of(call, next);
        if ended <= from {
            return shares.rest(IdleBlame::Queued, IdlePlace::Unknown);
        }
        let track = self.timeline.home(call);
        shares.thread = Some(track);
        let is_short = next.class == WorkClass::Compute
            && next.us() < (ended - call.start).micros()
            && (to - from) <= SHORT_GAP;
        // Once the launch has returned, the host is not what the device waits for. Kernels
        // that are shorter than their launches are the exception: what begins them costs more
        // than they do.
        let returned = to.min(ended);
        if !is_short {
            let behind = Stretches::one(returned, to);
            shares.take(IdleBlame::Queued, &behind, IdlePlace::Unknown);
        }
        let spans = self.host.within(track, from, returned);
        for (part, blame) in [
            (HostPart::Loader, IdleBlame::Loader),
            (HostPart::Compile, IdleBlame::Compile),
        ] {
            self.take_part(&spans, part, blame, shares);
        }
        if let Some((all, name)) = self.host.profiler(self.timeline, track, from, returned) {
            shares.take(IdleBlame::Profiler, &all, IdlePlace::Name(name));
        }
        let work = event(self.timeline, next.event);
        let name = work.map_or(Sym::EMPTY, Event::original_name);
        if next.class == WorkClass::Copy && is_pageable(self.timeline.name(name)) {
            let called = Stretches::one(call.start.max(from), returned);
            shares.take(IdleBlame::Pageable, &called, IdlePlace::Unknown);
        }
        self.take_part(&spans, HostPart::CpuWait, IdleBlame::Starved, shares);
        if let Some(wait) = self.host.wait_at(track, from, SLACK_US) {
            let first = shares.left.and(&Stretches::one(from, returned));
            let first = first.first(from - wait.start);
            let place = self.host.place(self.timeline, &wait);
            shares.take(IdleBlame::Sync, &first, place);
        }
        match is_short {
            true => shares.rest(IdleBlame::Short, IdlePlace::Name(name)),
            false => self.starve(&spans, call.start, name, shares),
        }
    }

    /// Takes the time of one kind of spans.
    fn take_part(
        &self,
        spans: &[HostSpan],
        part: HostPart,
        blame: IdleBlame,
        shares: &mut GapShares<'_>,
    ) {
        let with = spans.iter().filter(|span| span.part == part);
        let Some(first) = with.clone().next() else {
            return;
        };
        let all = Stretches::of(with.map(|span| (span.start, span.end)));
        shares.take(blame, &all, self.host.place(self.timeline, first));
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

    /// Names what the thread did in what is left of a gap until its launch: first its recorded
    /// waits, then samples, then spans.
    fn starve(&self, spans: &[HostSpan], called: Time, next: Sym, shares: &mut GapShares<'_>) {
        let waits = spans.iter().filter(|span| span.part == HostPart::Wait);
        let place = |wait: &HostSpan| self.host.place(self.timeline, wait);
        shares.starve(waits.map(|wait| (wait.start, wait.end, place(wait))));
        let samples = shares.thread.and_then(|track| {
            let (from, to) = shares.left.ends()?;
            self.host.samples(self.timeline, track, from, to)
        });
        if let Some(samples) = samples {
            shares.starve(times_of(samples));
        }
        self.take_spans(spans, called, shares);
        let place = match samples {
            None => IdlePlace::Before(next),
            Some(_) if shares.left.length() > LONG_GAP => IdlePlace::Stopped(next),
            // Too short for a sample.
            Some(_) => IdlePlace::Unknown,
        };
        shares.rest(IdleBlame::Starved, place);
    }

    /// Gives what is left to the spans that have most of what is left: the innermost Python
    /// function, else the innermost span. The launch itself is one only where nothing is left
    /// before it.
    fn take_spans(&self, spans: &[HostSpan], called: Time, shares: &mut GapShares<'_>) {
        let before = Stretches::one(shares.gap.0, called.max(shares.gap.0));
        for _ in 0..MOST_NAMES {
            let early = shares.left.and(&before);
            let left = match early.is_empty() {
                true => &shares.left,
                false => &early,
            };
            let half = left.length().0 / 2;
            let covers = |span: &&HostSpan| left.within(span.start, span.end).0 > half;
            let named = |wanted: &dyn Fn(HostPart) -> bool| {
                let inner = spans.iter().rev().filter(|span| wanted(span.part));
                inner.into_iter().find(&covers)
            };
            let found = named(&|part| part == HostPart::Python)
                .or_else(|| named(&|part| part != HostPart::Step))
                .or_else(|| named(&|part| part == HostPart::Step));
            let Some(span) = found else {
                return;
            };
            let time = Stretches::one(span.start, span.end);
            let place = self.host.place(self.timeline, span);
            shares.take(IdleBlame::Starved, &time, place);
            if shares.left.is_empty() {
                return;
            }
        }
    }
}

/// The time that each of some samples stands for: up to one period before and behind it, and not
/// beyond the middle between two.
fn times_of(samples: &[HostSample]) -> impl Iterator<Item = (Time, Time, IdlePlace)> + '_ {
    let middle = |a: &HostSample, b: &HostSample| Time(a.at.0.midpoint(b.at.0));
    samples.iter().enumerate().map(move |(at, sample)| {
        let reach = match sample.period > Length::ZERO {
            true => sample.period,
            false => LONG_GAP,
        };
        let before = at.checked_sub(1).and_then(|at| samples.get(at));
        let from = before.map(|before| middle(before, sample));
        let to = samples.get(at + 1).map(|behind| middle(sample, behind));
        let (first, last) = (sample.at - reach, sample.at + reach);
        let from = from.map_or(first, |from| from.max(first));
        let to = to.map_or(last, |to| to.min(last));
        (from, to, IdlePlace::Name(sample.place))
    })
}

/// Whether all work of a call is launched at once: it is a graph's, or what has its number.
fn is_graph(timeline: &Timeline, call: &Event) -> bool {
    call.correlation != 0 || name_of(timeline, call).contains("Graph")
}

/// The innermost function of a path whose time, with what it calls, is at least half of that of all
/// paths, with what calls it; else the outermost. Among its lines the one with most time.
fn function(path: &str, all: &[(&str, i64)]) -> String {
    let whole = sum(all.iter().map(|(_, ps)| *ps));
    let mut best: Vec<(&str, i64)> = vec![(path, 0)];
    for depth in 1..=path.split(FRAMES).take(MOST_DEPTH).count() {
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
