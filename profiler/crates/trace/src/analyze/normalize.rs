//! The first step: whose events they are, one spelling of names, and which of them
//! are looked at.

use super::config::EventFilter;
use super::limit::{EventLimit, EventLimiter};
use aiprof_model::timeline::{
    Begins, DAY, Dialect, Event, Id, Kind, Kinds, Length, NONE, Ph, Phase, Stretch, Sym, Time,
    Timeline, TrackId,
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::ops::Range;

/// Highest rank that is believed; a larger pid is a process's.
const MAX_RANK: i64 = 1 << 20;

/// Finds the rank of each event of a file. With `one_rank`, a file without a rank gets
/// that of its first event, as in acelyzer 1.3.0; else each pid is a rank. Kineto's files are one
/// rank each, until [`identity`](super::identity) looks at their processes.
pub fn assign_ranks(timeline: &mut Timeline, job: u32, events: Range<usize>, one_rank: bool) {
    let Some(known) = timeline.jobs.get(job as usize) else {
        return;
    };
    let (dialect, given) = (known.dialect, known.rank);
    if known.is_processed {
        return processed_ranks(timeline, events);
    }
    match dialect {
        Dialect::Flex => {
            let first = timeline
                .events
                .get(events.start)
                .map(|event| timeline.pid(event));
            let fixed = given.map(|rank| Id::Number(rank.into()));
            let fixed = fixed.or(first.filter(|_| one_rank));
            let Timeline {
                events: all,
                tracks,
                ..
            } = timeline;
            for event in all.get_mut(events).unwrap_or_default() {
                event.track = tracks.like(event.track, |track| {
                    track.pid = fixed.unwrap_or(track.pid);
                    track.rank = rank_of(track.pid).unwrap_or(0);
                });
            }
        }
        Dialect::Plain => {
            for event in timeline.events.get_mut(events).unwrap_or_default() {
                timeline.tracks.set_rank(event, given.unwrap_or(0));
            }
        }
        Dialect::Torch => {
            let rank = given.unwrap_or(0);
            let Timeline {
                events: all,
                tracks,
                ..
            } = timeline;
            for event in all.get_mut(events.clone()).unwrap_or_default() {
                tracks.set_rank(event, rank);
            }
            torch_phases(timeline, events);
        }
    }
}

/// Gives the devices of a file of Kineto's the number of its rank, also in their arguments, as
/// acelyzer does.
pub fn number_devices(timeline: &mut Timeline, job: u32, events: Range<usize>) {
    let Some(known) = timeline.jobs.get(job as usize) else {
        return;
    };
    if known.dialect == Dialect::Torch && !known.is_processed {
        let rank = known.rank.unwrap_or(0);
        let text = rank.to_string();
        for index in events {
            torch_rank(timeline, index, rank, &text);
        }
    }
}

/// In the output of analyses hosts are 1000 and their rank; aiprof notes the rank with each
/// slice. The counters that were made of others are made again.
fn processed_ranks(timeline: &mut Timeline, events: Range<usize>) {
    let its = timeline.events.get(events.clone()).unwrap_or_default();
    let mut is_torch = its
        .iter()
        .map(|event| timeline.dialect(event) == Dialect::Torch);
    let made = match is_torch.next() == Some(true) && !its.iter().any(Event::is_counted) {
        true => &MADE_OF_COPIES[..],
        false => &MADE[..],
    };
    let kinds = Kinds::new(timeline);
    let is_prep = |event: &Event| event.is_slice() && kinds.of(event.name).is(Kind::PREP);
    let has_preps = its.iter().any(is_prep);
    let names = timeline.names.iter();
    let preparations = names.filter(|(_, text)| has_preps && text.starts_with("ConcurrentPreps"));
    let preparations: Vec<Sym> = preparations.map(|(sym, _)| sym).collect();
    let given = |event: &Event| timeline.arg(event, "rank")?.parse::<u32>().ok();
    let noted: FxHashMap<Id, u32> = its
        .iter()
        .filter(|event| event.is_slice())
        .filter_map(|event| Some((timeline.pid(event), given(event)?)))
        .collect();
    let made: Vec<Sym> = timeline
        .names
        .iter()
        .filter(|(_, text)| made.iter().any(|made| text.starts_with(made)))
        .map(|(sym, _)| sym)
        .collect();
    let made: Vec<Sym> = made.into_iter().chain(preparations).collect();
    let Timeline {
        events: all,
        tracks,
        ..
    } = timeline;
    for event in all.get_mut(events).unwrap_or_default() {
        let noted = noted.get(&tracks.pid(event)).copied();
        let pid = tracks.pid(event).number().unwrap_or(0);
        let rank = if (1000..1000 + MAX_RANK).contains(&pid) {
            pid - 1000
        } else {
            pid
        };
        let rank = noted.or(rank_of(Id::Number(rank)));
        tracks.set_rank(event, rank.unwrap_or(0));
        event.dropped |= event.ph == Ph::Counter && made.contains(&event.name);
    }
}

/// Counters that are made of device events.
const MADE: [&str; 3] = ["Power", "BW ", "TransferBW"];
/// Those of them that are made of any device's copies.
const MADE_OF_COPIES: [&str; 2] = ["BW Dma", "TransferBW"];

fn rank_of(pid: Id) -> Option<u32> {
    let number = pid.number().filter(|n| (0..MAX_RANK).contains(n))?;
    u32::try_from(number).ok()
}

/// In Kineto's traces pid 0 is the first device; with several ranks each file has
/// one.
fn torch_rank(timeline: &mut Timeline, index: usize, rank: u32, text: &str) {
    let Some(event) = timeline.events.get_mut(index) else {
        return;
    };
    event.track = timeline.tracks.like(event.track, |track| {
        track.rank = rank;
        if track.pid == Id::Number(0) {
            track.pid = Id::Number(rank.into());
        }
    });
    let event = *event;
    let args = match event.ph {
        Ph::Metadata => labels(timeline, &event, rank),
        Ph::Complete => timeline
            .arg(&event, "device")
            .filter(|device| *device != text)
            .map(|_| with_member(timeline, &event, "device", text)),
        _ => None,
    };
    if let Some(args) = args {
        let args = timeline.texts.add(&args);
        if let Some(event) = timeline.events.get_mut(index) {
            event.args = args;
        }
    }
}

/// Sets which part of its operation each of Kineto's device events covers: kernels by their
/// category, copies by their name.
fn torch_phases(timeline: &mut Timeline, events: Range<usize>) {
    let kinds = Kinds::new(timeline);
    for event in timeline.events.get(events).unwrap_or_default() {
        let Some(device) = timeline.devices.get_mut(event.device as usize) else {
            continue;
        };
        device.phase = if kinds.of(event.cat).is(Kind::CAT_KERNEL) {
            Phase::Exec
        } else if kinds.of(event.name).is(Kind::COPY_IN) {
            Phase::DmaIn
        } else if kinds.of(event.name).is(Kind::COPY_OUT) {
            Phase::DmaOut
        } else {
            device.phase
        };
    }
}

/// Order and labels of processes, so that those of a rank stand together.
fn labels(timeline: &Timeline, event: &Event, rank: u32) -> Option<String> {
    let name = timeline.name(event.name);
    if name.starts_with("process_") && name.ends_with("sort_index") {
        let after = match timeline.pid(event).number() {
            Some(pid) if pid > i64::from(rank) => 0,
            _ => 15,
        };
        let index = u64::from(rank) * 123_000 + after;
        return Some(with_member(
            timeline,
            event,
            "sort_index",
            &index.to_string(),
        ));
    }
    // Those with values are aiprof's own, of the process and not of its rank.
    if name == "process_labels" && timeline.arg(event, "values").is_none() {
        let text = timeline.arg(event, "labels")?.trim_matches('"');
        let front = text.strip_suffix(|c: char| c.is_ascii_digit())?;
        let label = format!("\"{front}{rank}\"");
        return Some(with_member(timeline, event, "labels", &label));
    }
    None
}

/// The event's arguments with another value for a key.
pub(super) fn with_member(timeline: &Timeline, event: &Event, key: &str, value: &str) -> String {
    let text = timeline.texts.get(event.args);
    let Some(old) = aiprof_model::timeline::member(text, key) else {
        return text.to_owned();
    };
    let start = old.as_ptr() as usize - text.as_ptr() as usize;
    let (before, rest) = text.split_at_checked(start).unwrap_or((text, ""));
    let after = rest.get(old.len()..).unwrap_or_default();
    format!("{before}{value}{after}")
}

/// Brings the events of several files into one order: always the file next whose
/// next event is earliest.
pub fn merge_files(timeline: &mut Timeline, files: &[Range<usize>]) {
    if files.len() < 2 {
        return;
    }
    let mut next: Vec<Range<usize>> = files.to_vec();
    let mut heap = std::collections::BinaryHeap::new();
    let key = |events: &[Event], range: &Range<usize>, file: usize| {
        let event = events.get(range.start).filter(|_| !range.is_empty())?;
        Some(Reverse((event.start, file)))
    };
    for (file, range) in next.iter().enumerate() {
        heap.extend(key(&timeline.events, range, file));
    }
    let mut merged = Vec::with_capacity(timeline.events.len());
    while let Some(Reverse((_, file))) = heap.pop() {
        let Some(range) = next.get_mut(file) else {
            continue;
        };
        merged.extend(timeline.events.get(range.start).copied());
        range.start += 1;
        heap.extend(key(&timeline.events, range, file));
    }
    timeline.events = merged;
}

/// Leaves out events outside of the limit, spells names in one way (`Rdma`, `Recv`),
/// and leaves out what a filter finds. Returns how many were left out.
pub fn select(timeline: &mut Timeline, limit: &EventLimit, filters: &[EventFilter]) -> usize {
    let before = timeline.events.len();
    if *limit != EventLimit::default() || timeline.origin() < 0 {
        let mut limiter = EventLimiter::new(limit.clone());
        let mut letter = [0; 4];
        let mut is_kept = |event: &Event| {
            let letter = event.ph.letter().encode_utf8(&mut letter);
            limiter.keeps(letter, timeline.file_us(event), event.dur())
        };
        let kept: Vec<bool> = timeline.events.iter().map(&mut is_kept).collect();
        let mut kept = kept.into_iter();
        timeline.events.retain(|_| kept.next() == Some(true));
    }
    unify_names(timeline);
    if !filters.is_empty() {
        for index in 0..timeline.events.len() {
            let Some(event) = timeline.events.get(index).copied() else {
                break;
            };
            let found = event.is_slice() && filters.iter().any(|f| finds(timeline, &event, f));
            if let Some(event) = timeline.events.get_mut(index) {
                event.dropped |= found;
            }
        }
        timeline.sweep();
    }
    before - timeline.events.len()
}

/// Moves events whose times cannot be true to [`Timeline::aside`]. They begin or end more
/// than a day from the median begin of their file's events and from all events between. A
/// span of the host around all others is kept: it may have begun days before.
pub(super) fn set_aside(timeline: &mut Timeline, kinds: &Kinds) {
    let mut whole: Vec<Option<Stretch>> = vec![None; timeline.jobs.len()];
    for event in timeline
        .events
        .iter()
        .filter(|event| event.ph != Ph::Metadata)
    {
        if let Some(whole) = whole.get_mut(timeline.job(event) as usize) {
            let (from, to) = (event.start, event.end());
            let known = whole.get_or_insert(Stretch { from, to });
            (known.from, known.to) = (known.from.min(from), known.to.max(to));
        }
    }
    let believed: Vec<Option<Stretch>> = (0u32..)
        .zip(whole)
        .map(|(job, whole)| {
            let is_long = whole.is_some_and(|whole| whole.to > whole.from + DAY);
            is_long.then(|| believed(timeline, job)).flatten()
        })
        .collect();
    if believed.iter().all(Option::is_none) {
        return;
    }
    let mut events = std::mem::take(&mut timeline.events);
    let is_wrong = |event: &Event| {
        let believed = believed.get(timeline.job(event) as usize);
        let Some(Some(Stretch { from, to })) = believed else {
            return false;
        };
        let (begin, end) = (event.start, event.end());
        let is_near = *from <= begin && begin <= *to && end <= *to + DAY;
        let is_around = event.is_slice()
            && begin <= *from
            && *to <= end
            && !begin.is_edge()
            && !end.is_edge()
            && !kinds.is_device(timeline, event);
        event.ph != Ph::Metadata && !is_near && !is_around
    };
    let aside: Vec<Event> = events.extract_if(.., |event| is_wrong(event)).collect();
    timeline.events = events;
    timeline.aside.extend(aside);
}

/// From the first to the last begin of a file's events that can be true.
fn believed(timeline: &Timeline, job: u32) -> Option<Stretch> {
    let mut begins = Begins::default();
    let events = timeline.events.iter();
    events
        .filter(|event| timeline.job(event) == job)
        .for_each(|event| begins.add(event));
    begins.believed()
}

fn unify_names(timeline: &mut Timeline) {
    let changed: Vec<(Sym, String)> = timeline
        .names
        .iter()
        .filter(|(_, text)| text.contains("RDMA") || text.contains("Receive"))
        .map(|(sym, text)| (sym, text.replace("RDMA", "Rdma").replace("Receive", "Recv")))
        .collect();
    if changed.is_empty() {
        return;
    }
    let new: FxHashMap<Sym, Sym> = changed
        .into_iter()
        .map(|(sym, text)| (sym, timeline.names.intern(&text)))
        .collect();
    let plain = plain_tracks(timeline);
    let slices = timeline.events.iter_mut().filter(|event| event.is_slice());
    for event in slices.filter(|event| !plain.contains(&event.track)) {
        event.name = new.get(&event.name).copied().unwrap_or(event.name);
    }
}

fn finds(timeline: &Timeline, event: &Event, filter: &EventFilter) -> bool {
    attribute(timeline, event, &filter.path).is_some_and(|text| filter.regex.is_match(&text))
}

/// An attribute's text as Python's `str` gives it.
fn attribute<'a>(timeline: &'a Timeline, event: &Event, path: &[String]) -> Option<Cow<'a, str>> {
    let mut path = path.iter().map(String::as_str);
    let number = |value: f64| Some(Cow::Owned(format!("{value:?}")));
    match (path.next()?, path.next()) {
        ("name", None) => Some(Cow::Borrowed(timeline.name(event.name))),
        ("cat", None) => Some(Cow::Borrowed(timeline.name(event.cat))).filter(|c| !c.is_empty()),
        ("ph", None) => Some(Cow::Owned(event.ph.letter().to_string())),
        ("ts", None) => number(timeline.file_us(event)),
        ("dur", None) => number(event.dur()),
        ("pid", None) => id_text(timeline, timeline.pid(event)),
        ("tid", None) => id_text(timeline, timeline.tid(event)),
        ("args" | "attr", Some(key)) => argument(timeline, event, key),
        _ => None,
    }
}

fn id_text(timeline: &Timeline, id: Id) -> Option<Cow<'_, str>> {
    match id {
        Id::Number(number) => Some(Cow::Owned(number.to_string())),
        Id::NONE => None,
        Id::Token(sym) => Some(Cow::Borrowed(timeline.name(sym).trim_matches('"'))),
    }
}

fn argument<'a>(timeline: &'a Timeline, event: &Event, key: &str) -> Option<Cow<'a, str>> {
    if let Some(json) = timeline.arg(event, key) {
        let plain = json.strip_prefix('"').and_then(|t| t.strip_suffix('"'));
        return match plain {
            Some(plain) if !plain.contains('\\') => Some(Cow::Borrowed(plain)),
            Some(_) => serde_json::from_str(json).ok().map(Cow::Owned),
            None => Some(Cow::Borrowed(json)),
        };
    }
    let device = timeline.device(event);
    let value = match key {
        "TS1" => device?.stamps[0],
        "TS2" => device?.stamps[1],
        "TS3" => device?.stamps[2],
        "TS4" => device?.stamps[3],
        "TS5" => device?.stamps[4],
        "Power" => Some(device?.power).filter(|power| *power >= 0)?,
        "rank" => Some(i64::from(timeline.rank(event))).filter(|_| timeline.rank(event) != NONE)?,
        _ => return None,
    };
    Some(Cow::Owned(value.to_string()))
}

/// Leaves out host events without information of their own.
pub fn drop_globals(timeline: &mut Timeline, kinds: &Kinds) {
    let plain = plain_tracks(timeline);
    timeline.events.retain(|event| {
        let is_global = event.is_slice() && kinds.of(event.name).is(Kind::GLOBAL);
        !is_global || plain.contains(&event.track)
    });
}

/// Tracks of plain traces, whose names mean nothing to the analyses.
fn plain_tracks(timeline: &Timeline) -> FxHashSet<TrackId> {
    let tracks = timeline.tracks.iter();
    let is_plain = |job: u32| {
        let job = timeline.jobs.get(job as usize);
        job.is_some_and(|job| job.dialect == Dialect::Plain)
    };
    let plain = tracks.filter(|(_, track)| is_plain(track.job));
    plain.map(|(id, _)| id).collect()
}

/// Puts the events into order: by begin, of those that begin together the longer
/// first, as slices nest. Equal ones keep their order.
pub fn sort(timeline: &mut Timeline) {
    let in_order = |a: &Event, b: &Event| compare(a, b).is_le();
    if !timeline.events.is_sorted_by(in_order) {
        timeline.events.sort_by(compare);
    }
}

fn compare(a: &Event, b: &Event) -> std::cmp::Ordering {
    a.start.cmp(&b.start).then(b.length.cmp(&a.length))
}

/// Numbers of the events in the order that [`sort`] would put them into: what is moved
/// is small.
pub fn order(timeline: &Timeline) -> Vec<u32> {
    let keys = timeline.events.iter().zip(0u32..);
    let keys = keys.filter(|(event, _)| !event.dropped);
    let mut keys: Vec<(Time, Reverse<Length>, u32)> = keys
        .map(|(event, index)| (event.start, Reverse(event.length), index))
        .collect();
    // What was added stands behind what is in order, in order too: runs are merged.
    keys.sort();
    keys.into_iter().map(|(_, _, index)| index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_formats::import::json;

    fn read(texts: &[&str], one_rank: bool) -> Timeline {
        let mut timeline = Timeline::default();
        let mut files = Vec::new();
        for (i, text) in texts.iter().enumerate() {
            let path = format!("f{i}.json");
            let reading = json::read(text.as_bytes(), &path, &mut timeline).unwrap();
            assign_ranks(&mut timeline, reading.job, reading.events.clone(), one_rank);
            files.push(reading.events);
        }
        merge_files(&mut timeline, &files);
        timeline
    }

    #[test]
    fn ranks_of_one_file_stay_apart() {
        let text = r#"[{"ph":"X","name":"aiuA","pid":3,"ts":1,"dur":1},
            {"ph":"i","name":"b","pid":1,"ts":2}]"#;
        let ranks = |one| -> Vec<u32> {
            let t = read(&[text], one);
            t.events.iter().map(|e| t.rank(e)).collect()
        };
        assert_eq!(ranks(false), [3, 1]);
        assert_eq!(ranks(true), [3, 3]);
    }

    #[test]
    fn kineto_s_first_device_is_the_rank_s() {
        let text = r#"{"deviceProperties":[],"distributedInfo":{"rank":2},"traceEvents":[
            {"ph":"X","name":"k","pid":0,"tid":1,"ts":1,"dur":1,"args":{"a":1,"device":0,"b":"x"}},
            {"ph":"f","name":"k","id":4,"pid":0,"tid":1,"ts":1},
            {"ph":"M","name":"process_sort_index","pid":0,"ts":1,"args":{"sort_index":5000000}},
            {"ph":"M","name":"process_sort_index","pid":77,"ts":1,"args":{"sort_index":5}},
            {"ph":"M","name":"process_labels","pid":0,"ts":1,"args":{"labels":"AIU 0"}}]}"#;
        let mut t = read(&[text], false);
        let all = 0..t.events.len();
        number_devices(&mut t, 0, all);
        let args: Vec<&str> = t.events.iter().map(|e| t.texts.get(e.args)).collect();
        assert_eq!(
            args,
            [
                r#""a":1,"device":2,"b":"x""#,
                "",
                r#""sort_index":246015"#,
                r#""sort_index":246000"#,
                r#""labels":"AIU 2""#
            ]
        );
        assert!(t.events.iter().all(|e| t.rank(e) == 2));
        assert_eq!(t.pid(&t.events[1]), Id::Number(2));
    }

    #[test]
    fn files_are_merged_by_time() {
        let a = r#"[{"ph":"i","name":"a","pid":0,"ts":1},{"ph":"i","name":"b","pid":0,"ts":5}]"#;
        let b = r#"[{"ph":"i","name":"c","pid":0,"ts":0.5},{"ph":"i","name":"d","pid":0,"ts":5}]"#;
        let t = read(&[a, b], false);
        let names: Vec<&str> = t.events.iter().map(|e| t.name(e.name)).collect();
        assert_eq!(names, ["c", "a", "b", "d"]);
    }

    #[test]
    fn names_are_spelled_one_way_and_filters_find() {
        let text = r#"[{"ph":"X","name":"aiuFetchRDMAKeys","pid":0,"tid":0,"ts":1,"dur":1},
            {"ph":"X","name":"x","pid":0,"tid":0,"ts":1,"dur":1,"args":{"Type":"XYZ"}},
            {"ph":"X","name":"y","pid":0,"tid":0,"ts":1,"dur":1,"args":{"Type":"XYZa"}}]"#;
        let mut t = read(&[text], false);
        let filters = [EventFilter::parse("args.Type:^XYZ$").unwrap()];
        assert_eq!(select(&mut t, &EventLimit::default(), &filters), 1);
        let names: Vec<&str> = t.events.iter().map(|e| t.name(e.name)).collect();
        assert_eq!(names, ["aiuFetchRdmaKeys", "y"]);
    }

    /// Names of a plain trace mean nothing to the analyses.
    #[test]
    fn plain_traces_keep_processes_names_and_arguments() {
        let text = r#"[{"ph":"X","name":"ReceiveRDMA","pid":0,"ts":1,"dur":1,"args":{"device":3}},
            {"ph":"X","name":"Callback","pid":7,"tid":0,"ts":2,"dur":1},
            {"ph":"M","name":"process_labels","pid":0,"ts":1,"args":{"labels":"GPU 1"}}]"#;
        let mut t = read(&[text], false);
        select(&mut t, &EventLimit::default(), &[]);
        let kinds = Kinds::new(&t);
        drop_globals(&mut t, &kinds);
        let names: Vec<&str> = t.events.iter().map(|e| t.name(e.name)).collect();
        assert_eq!(names, ["ReceiveRDMA", "Callback", "process_labels"]);
        let args: Vec<&str> = t.events.iter().map(|e| t.texts.get(e.args)).collect();
        assert_eq!(args, [r#""device":3"#, "", r#""labels":"GPU 1""#]);
        let pids: Vec<Id> = t.events.iter().map(|e| t.pid(e)).collect();
        assert_eq!(pids, [0, 7, 0].map(Id::Number));
    }

    #[test]
    fn events_that_are_days_from_all_others_are_set_aside() {
        let day = 86_400_000_000.0_f64;
        let base = 1.7e15;
        let line = |name: &str, ts: f64, dur: f64, more: &str| {
            format!(r#"{{"ph":"X","name":"{name}","pid":1,"tid":1,"ts":{ts},"dur":{dur}{more}}}"#)
        };
        let kernel = r#","cat":"kernel""#;
        let mut lines: Vec<String> = (0..20)
            .map(|at| line("ok", base + f64::from(at) * 100.0, 50.0, ""))
            .collect();
        lines.extend([
            line("zero", 0.0, 1.0, ""),
            line("negative", -5.0, 1.0, kernel),
            line("far", base + 2.1 * day, 1.0, ""),
            line("huge", base + 50.0, 2.0 * day, ""),
            line("around", base - 3.0 * day, 5.0 * day, ""),
            line("kernel around", base - 3.0 * day, 5.0 * day, kernel),
            line("near", base + 0.9 * day, 1.0, ""),
        ]);
        let mut timeline = read(&[&format!("[{}]", lines.join(","))], false);
        let kinds = Kinds::new(&timeline);
        set_aside(&mut timeline, &kinds);
        let names = |events: &[Event]| -> Vec<String> {
            let mut names: Vec<_> = events
                .iter()
                .map(|event| timeline.name(event.name).to_owned())
                .collect();
            names.sort();
            names
        };
        assert_eq!(
            names(&timeline.aside),
            ["far", "huge", "kernel around", "negative", "zero"]
        );
        assert_eq!(timeline.events.len(), 22);

        // Three days of a machine.
        let lines: Vec<String> = (0..7)
            .map(|at| line("ok", base + f64::from(at) * 0.5 * day, 1.0, ""))
            .collect();
        let mut timeline = read(&[&format!("[{}]", lines.join(","))], false);
        let kinds = Kinds::new(&timeline);
        set_aside(&mut timeline, &kinds);
        assert_eq!((timeline.events.len(), timeline.aside.len()), (7, 0));
    }
}
