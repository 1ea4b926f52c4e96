//! Edges between what a thread does: HTA's, by its call stack.
//!
//! Besides calls and operators there is what the trace has of the code around them: functions of
//! Python, notes of the program, waits for data. Time that none of these has is free, as in HTA:
//! what a program does there is in no trace. A step of training does not show what is done in it.
//! Such code counts on threads that launch work; where no thread does, on those with operators. On
//! other threads it is mostly a wait for something that the trace does not have.
//!
//! The time of a call that waits for a device is that device's. While a note lasts, or the function
//! that runs the backward pass, a thread may wait for another: what others did then is on the path
//! instead.

use super::build::Builder;
use super::graph::{EdgeKind, PathRole, begin, end};
use crate::analyze::identity::file_of;
use crate::findings::host::is_loader;
use crate::work::{RankWork, STEP, SpanRole, name_of};
use aiprof_model::timeline::{Event, Length, NONE, Time, Timeline, TrackId};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::Reverse;

/// A call or operator that is open.
struct OpenCall {
    number: u32,
    end: Time,
    waits: bool,
    /// The earliest end of this and those around it: in some traces a call ends before what it
    /// has begun.
    least: Time,
}

/// What the last node of a thread is.
#[derive(Clone, Copy)]
struct LastNode {
    number: u32,
    is_begin: bool,
    at: Time,
}

/// A thread's state.
#[derive(Default)]
struct Thread {
    open: Vec<OpenCall>,
    last: Option<LastNode>,
    /// The last top-level operation.
    top: Option<u32>,
    /// Code in which the thread may wait for others.
    may_wait: FxHashSet<u32>,
    /// Time of such code, of this thread and those before.
    waits: Vec<OwnTime>,
}

/// Time of a thread between two nodes.
#[derive(Clone, Copy)]
struct OwnTime {
    from: u32,
    to: u32,
    owner: u32,
    took: Length,
}

/// What a thread did: by thread, begin and depth.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ThreadSpan {
    track: TrackId,
    start: Time,
    end: Reverse<Time>,
    event: u32,
    role: PathRole,
}

/// Adds what a rank's threads did.
pub(super) fn add(builder: &mut Builder<'_>, rank: usize) {
    let Some(work) = builder.index.ranks.get(rank) else {
        return;
    };
    let mut thread = Thread::default();
    let mut track: Option<TrackId> = None;
    let spans = spans(builder, work, rank);
    let operations = operations(builder.timeline, &spans);
    for span in &spans {
        let Some(event) = builder.timeline.events.get(span.event as usize) else {
            continue;
        };
        if track.is_some_and(|track| track != span.track) {
            thread.close(builder, Time(i64::MAX));
            thread.top = None;
        }
        track = Some(span.track);
        thread.close(builder, span.start);
        let is_call = builder.index.role(event) == SpanRole::Call;
        let waits = is_call && builder.waits(event);
        let times = (span.start, span.end.0);
        let number = builder.add_host(span.event, rank, span.role, times);
        if span.role == PathRole::Code && may_wait(builder.timeline, event) {
            thread.may_wait.insert(number);
        }
        thread.enter(builder, number, times, waits);
    }
    thread.close(builder, Time(i64::MAX));
    let mut looks = MOST_LOOKS;
    for own in thread.waits {
        wait(builder, own, &operations, &mut looks);
    }
}

/// Calls and operators of the threads of each file.
type Operations = FxHashMap<u32, Vec<Vec<ThreadSpan>>>;

/// Adds time in which a thread may have waited for others: its own where they did nothing, and where
/// no `looks` are left.
fn wait(builder: &mut Builder<'_>, own: OwnTime, operations: &Operations, looks: &mut usize) {
    let (Some(from), Some(to)) = (builder.graph.time(own.from), builder.graph.time(own.to)) else {
        return;
    };
    let event = builder.graph.events.get(own.owner as usize);
    let event = event.and_then(|event| builder.timeline.events.get(event.event as usize));
    let track = event.map(|event| builder.timeline.home(event));
    let file = event.map(|event| file_of(builder.timeline, event));
    let operations = file.and_then(|file| operations.get(&file));
    let operations = operations.map(Vec::as_slice).unwrap_or_default();
    let mut took = own.took;
    if *looks > 0 {
        *looks = looks.saturating_sub(operations.len());
        for done in elsewhere(operations, track, (from, to)) {
            *looks = looks.saturating_sub(done.len());
            join(builder, own, (from, to), done);
            took = Length::ZERO;
        }
    }
    let OwnTime {
        from, to, owner, ..
    } = own;
    builder.graph.add(EdgeKind::Own, from, to, owner, took);
}

/// Whether a thread may wait for another in code.
fn may_wait(timeline: &Timeline, event: &Event) -> bool {
    let name = name_of(timeline, event);
    match timeline.name(event.cat) {
        "python_function" => name.contains(BACKWARD),
        _ => !is_loader(name),
    }
}

/// In names of functions of Python that run the backward pass, mostly on other threads.
const BACKWARD: &str = "run_backward";
/// Operations of one thread that are looked at for one backward pass.
const MOST_JOINED: usize = 1 << 16;
/// Threads and operations that are looked at for all such time of a rank: many threads may each
/// wait for as many.
const MOST_LOOKS: usize = 1 << 24;

/// Calls of a thread that are open at once, up to which each ends where the trace has its end.
const MOST_OPEN: usize = 4096;

/// Calls and operators by file and thread, as they stand in `spans`: by begin.
fn operations(timeline: &Timeline, spans: &[ThreadSpan]) -> Operations {
    let mut files = Operations::default();
    for thread in spans.chunk_by(|a, b| a.track == b.track) {
        let first = thread.first();
        let first = first.and_then(|span| timeline.events.get(span.event as usize));
        let file = first.map_or(NONE, |event| file_of(timeline, event));
        let all = thread.iter().filter(|span| span.role == PathRole::Host);
        files.entry(file).or_default().push(all.copied().collect());
    }
    files
}

/// What other threads began in a stretch of time, by thread.
fn elsewhere(
    operations: &[Vec<ThreadSpan>],
    track: Option<TrackId>,
    (from, to): (Time, Time),
) -> impl Iterator<Item = &[ThreadSpan]> {
    operations.iter().filter_map(move |thread| {
        let first = thread.partition_point(|one| one.start < from);
        let behind = thread.partition_point(|one| one.start < to);
        let within = thread.get(first..behind)?;
        let is_other = Some(within.first()?.track) != track;
        is_other.then(|| within.get(..MOST_JOINED).unwrap_or(within))
    })
}

/// Has time of a thread begin what another thread did in it, and wait for the last of that.
fn join(builder: &mut Builder<'_>, own: OwnTime, (from, to): (Time, Time), done: &[ThreadSpan]) {
    let ended = done.iter().filter(|one| one.end.0 <= to);
    // Several may end together: the outermost stands first.
    let last = ended.min_by_key(|one| one.end);
    let first = done.first();
    if let Some((one, first)) = first.and_then(|one| Some((one, builder.number_of(one.event)?))) {
        let took = one.start - from;
        let graph = &mut builder.graph;
        graph.add(EdgeKind::Own, own.from, begin(first), own.owner, took);
    }
    if let Some((one, last)) = last.and_then(|one| Some((one, builder.number_of(one.event)?))) {
        let took = to - one.end.0;
        let graph = &mut builder.graph;
        graph.add(EdgeKind::Own, end(last), own.to, own.owner, took);
    }
}

/// What is known of a rank's threads, by thread, as it was before rows were moved.
fn spans(builder: &Builder<'_>, work: &RankWork, rank: usize) -> Vec<ThreadSpan> {
    let timeline = builder.timeline;
    let span = |at: u32, event: &Event, role: PathRole| ThreadSpan {
        track: timeline.home(event),
        start: event.start,
        end: Reverse(event.end()),
        event: at,
        role,
    };
    let (mut spans, mut code) = (Vec::new(), Vec::new());
    for at in &work.host {
        let Some(event) = timeline.events.get(*at as usize) else {
            continue;
        };
        if is_step(timeline, event) {
            continue;
        }
        match builder.index.role(event) {
            SpanRole::Call | SpanRole::Operator => {
                if event.length > Length::ZERO && builder.is_within(rank, event.start) {
                    spans.push(span(*at, event, PathRole::Host));
                }
            }
            _ => code.push(span(*at, event, PathRole::Code)),
        }
    }
    let python = builder.python.get(rank).into_iter().flatten();
    code.extend(python.filter_map(|at| {
        let event = timeline.events.get(*at as usize)?;
        Some(span(*at, event, PathRole::Code))
    }));
    let launches = work.work.iter();
    let launches = launches.filter_map(|work| timeline.events.get(work.call as usize));
    let mut threads: FxHashSet<TrackId> = launches.map(|call| timeline.home(call)).collect();
    if threads.is_empty() {
        threads.extend(spans.iter().map(|span| span.track));
    }
    code.retain(|span| threads.contains(&span.track));
    spans.extend(code.into_iter().filter_map(|mut span| {
        // Code that began before is looked at from then on.
        let (from, to) = builder.cut(rank, span.start, span.end.0)?;
        (span.start, span.end) = (from, Reverse(to));
        (from < to).then_some(span)
    }));
    spans.sort_unstable();
    spans
}

/// Whether an event is a step of training.
fn is_step(timeline: &Timeline, event: &Event) -> bool {
    name_of(timeline, event).starts_with(STEP)
}

/// The functions of Python of each rank's threads: those that have calls, operators or notes.
pub(super) fn python(builder: &Builder<'_>) -> Vec<Vec<u32>> {
    let timeline = builder.timeline;
    let mut ranks: FxHashMap<TrackId, usize> = FxHashMap::default();
    for (rank, work) in builder.index.ranks.iter().enumerate() {
        let host = work.host.iter();
        for event in host.filter_map(|at| timeline.events.get(*at as usize)) {
            ranks.insert(timeline.home(event), rank);
        }
    }
    let mut found = vec![Vec::new(); builder.index.ranks.len()];
    for (at, event) in (0u32..).zip(&timeline.events) {
        let is_one = event.is_slice()
            && !event.dropped
            && !event.start.is_edge()
            && timeline.name(event.cat) == "python_function";
        if is_one
            && let Some(rank) = ranks.get(&timeline.home(event))
            && let Some(of_rank) = found.get_mut(*rank)
        {
            of_rank.push(at);
        }
    }
    found
}

impl Thread {
    fn enter(
        &mut self,
        builder: &mut Builder<'_>,
        number: u32,
        (at, ends): (Time, Time),
        waits: bool,
    ) {
        if self.open.is_empty()
            && let Some(top) = self.top
        {
            let graph = &mut builder.graph;
            graph.add(
                EdgeKind::Order,
                end(top),
                begin(number),
                number,
                Length::ZERO,
            );
        }
        if let (Some(last), Some(open)) = (self.last, self.open.last()) {
            let own = OwnTime {
                from: last.node(),
                to: begin(number),
                owner: open.number,
                took: at - last.at,
            };
            self.own(builder, own);
        }
        self.last = Some(LastNode {
            number,
            is_begin: true,
            at,
        });
        let around = self.open.last().map_or(ends, |open| open.least);
        self.open.push(OpenCall {
            number,
            end: ends,
            waits,
            least: ends.min(around),
        });
    }

    /// Adds time of the thread; where it may wait for others, behind all threads.
    fn own(&mut self, builder: &mut Builder<'_>, own: OwnTime) {
        if self.may_wait.contains(&own.owner) && own.took > Length::ZERO {
            return self.waits.push(own);
        }
        let OwnTime {
            from,
            to,
            owner,
            took,
        } = own;
        builder.graph.add(EdgeKind::Own, from, to, owner, took);
    }

    /// Ends what ended by then, in the order of ends. Time belongs to what began last of all that
    /// is open.
    fn close(&mut self, builder: &mut Builder<'_>, by: Time) {
        while let Some(innermost) = self.open.last().filter(|open| open.least <= by) {
            let (owner, waits) = (innermost.number, innermost.waits);
            let Some(call) = self.next_to_end() else {
                return;
            };
            if let Some(last) = self.last {
                let own = OwnTime {
                    from: last.node(),
                    to: end(call.number),
                    owner,
                    took: match waits {
                        true => Length::ZERO,
                        false => call.end - last.at,
                    },
                };
                self.own(builder, own);
            }
            self.last = Some(LastNode {
                number: call.number,
                is_begin: false,
                at: call.end,
            });
            if self.open.is_empty() {
                self.last = None;
                self.top = Some(call.number);
            }
        }
    }

    /// Takes away the one that ends first; of several the innermost.
    fn next_to_end(&mut self) -> Option<OpenCall> {
        let least = self.open.last()?.least;
        if self.open.len() > MOST_OPEN {
            // What is innermost ends with the first.
            let call = self.open.pop()?;
            return Some(OpenCall { end: least, ..call });
        }
        let at = self.open.iter().rposition(|open| open.end == least)?;
        let call = self.open.remove(at);
        let around = at.checked_sub(1).and_then(|at| self.open.get(at));
        let mut least = around.map(|open| open.least);
        for open in self.open.iter_mut().skip(at) {
            open.least = least.map_or(open.end, |least| least.min(open.end));
            least = Some(open.least);
        }
        Some(call)
    }
}

impl LastNode {
    fn node(self) -> u32 {
        match self.is_begin {
            true => begin(self.number),
            false => end(self.number),
        }
    }
}
