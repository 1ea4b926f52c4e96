//! Several recordings brought onto one clock: files that count from different origins,
//! and FLEX and Torch traces of the same run, which have kernels in common.

use super::messages::Messages;
use aiprof_model::calibrate::common::{self, Common, NoOffset, Offset};
use aiprof_model::timeline::{Dialect, Event, Kinds, NONE, Sym, Timeline};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::Range;

/// Ends of the same kernel are within this in both recordings, microseconds: as late
/// as hosts are.
const TOLERANCE_US: f64 = 25.0;

/// No file's events are further from the timeline's origin than this, microseconds: 90
/// days, of the 106 that times reach.
const FARTHEST_US: i64 = 90 * 86_400 * 1_000_000;

/// Times of day that are this far from each other are not of one run, microseconds.
const FAR_US: u64 = 1 << 40;

/// A file's events, and what their times are counted from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// Its number among the jobs.
    pub job: u32,
    /// Its events.
    pub events: Range<usize>,
    /// Microseconds.
    pub origin: i64,
    /// Time of day at the origin of a file whose times count from another moment than 1970, if it
    /// is known; microseconds since 1970. A recording of aiprof counts from its first event,
    /// Kineto from a time that its file states.
    pub day_us: Option<i64>,
}

/// 2000 and 2100: times between them are of a day, and no count since some begin.
const DAYS_US: Range<i64> = 946_684_800_000_000..4_102_444_800_000_000;

/// What was done about a rank's FLEX recording.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alignment {
    /// Rank.
    pub rank: u32,
    /// What was added to its times; or why nothing was.
    pub offset: Result<Offset, NoOffset>,
}

/// Brings all files onto the timeline's origin, FLEX recordings by the kernels that
/// they share with a Torch recording of the same rank. Events are as they were read,
/// each file's together, with ranks.
pub fn bring_together(
    timeline: &mut Timeline,
    files: &[Recording],
    messages: &mut Messages,
) -> Vec<Alignment> {
    let files = &by_day(timeline, files, messages);
    let aligned = by_kernels(timeline, files, messages);
    let origin = timeline.origin();
    let first = files.iter().find(|file| file.origin == origin);
    let first_more = first.and_then(more_of_day);
    for file in files {
        let is_done = file
            .events
            .clone()
            .next()
            .and_then(|i| timeline.events.get(i));
        let is_done = is_done.is_some_and(|event| aligned.jobs.contains(&timeline.job(event)));
        if is_done || file.origin == origin {
            continue;
        }
        let apart = file.origin.saturating_sub(origin);
        let by = apart.clamp(-FARTHEST_US, FARTHEST_US);
        let events = timeline.events.get_mut(file.events.clone());
        for event in events.unwrap_or_default() {
            event.shift(by as f64);
        }
        if by != apart {
            timeline.beyond.insert(file.job, apart.saturating_sub(by));
        }
        let more = first_more.zip(more_of_day(file));
        let are_of_day = more.is_some_and(|(first, more)| first.abs_diff(more) <= 1);
        let is_recording = timeline.jobs.get(file.job as usize);
        let is_recording = is_recording.is_some_and(|job| job.is_recording);
        // `by_day` reports a recording's place, or that it is not known.
        if is_recording || are_of_day && apart.unsigned_abs() < FAR_US {
            continue;
        }
        let path = timeline
            .jobs
            .get(file.job as usize)
            .map_or("", |job| &job.path);
        messages.warn(
            "INGEST",
            format_args!(
                "Mixed clocks: times of {path} are {:.0} s away from the files before it, and the \
                 real offset is unknown",
                apart as f64 / 1e6
            ),
        );
    }
    aligned.found
}

/// Places recordings of aiprof by the time of day beside files whose times are such.
/// Without such files, or if a recording does not know its time of day, it stays, and a
/// message reports that.
fn by_day(timeline: &mut Timeline, files: &[Recording], messages: &mut Messages) -> Vec<Recording> {
    let (mut placed, mut is_placed) = (files.to_vec(), false);
    let is_own = |file: &Recording| {
        let job = timeline.jobs.get(file.job as usize);
        job.is_some_and(|job| job.is_recording)
    };
    let others = || files.iter().filter(|file| !is_own(file));
    if others().next().is_none() {
        return side_by_side(timeline, placed);
    }
    // The first origin of the others, and what its time of day is more.
    let of_day = others().filter_map(|file| Some((file.origin, more_of_day(file)?)));
    let of_day = of_day.min();
    let is_of_other = others().any(|file| file.origin == timeline.origin());
    for file in placed.iter_mut().filter(|file| is_own(file)) {
        let job = timeline.jobs.get(file.job as usize);
        let path = job.map_or("", |job| &job.path);
        match (of_day, file.day_us) {
            (Some((_, more)), Some(day)) => {
                (file.origin, is_placed) = (day.saturating_sub(more), true);
                let text = format_args!(
                    "{path} is placed by its time of day, with an error of a few milliseconds"
                );
                messages.info("INGEST", text);
            }
            _ => messages.warn(
                "INGEST",
                format_args!(
                    "Mixed clocks: times of {path} count from its first event, and the offset to \
                     the other files is unknown"
                ),
            ),
        }
    }
    // Times are far from the begin of a recording that was read first.
    if let Some((origin, _)) = of_day.filter(|_| is_placed && !is_of_other) {
        timeline.origin = Some(origin);
    }
    placed
}

/// What must be added to times of a file so that they are times of day, microseconds.
fn more_of_day(file: &Recording) -> Option<i64> {
    if DAYS_US.contains(&file.origin) {
        return Some(0);
    }
    let day = file.day_us.filter(|day| DAYS_US.contains(day))?;
    Some(day.saturating_sub(file.origin))
}

/// Places recordings of aiprof alone by their times of day, if all know them and were made
/// at the same time: of one run, not of one after another. What the earliest counts from
/// stays.
fn side_by_side(timeline: &Timeline, mut files: Vec<Recording>) -> Vec<Recording> {
    let days: Option<Vec<i64>> = files.iter().map(|file| file.day_us).collect();
    let Some(days) = days.filter(|days| days.len() > 1) else {
        return files;
    };
    let end = |(file, day): (&Recording, &i64)| {
        let events = timeline.events.get(file.events.clone()).unwrap_or_default();
        let slices = events.iter().filter(|event| event.is_slice());
        let last = slices.map(|event| event.end_us()).fold(0.0, f64::max);
        day.saturating_add(last as i64)
    };
    let first_end = files.iter().zip(&days).map(end).min();
    if days.iter().max() > first_end.as_ref() {
        return files;
    }
    let first = days.iter().min().copied().unwrap_or(0);
    for (file, day) in files.iter_mut().zip(days) {
        file.origin = timeline.origin().saturating_add(day.saturating_sub(first));
    }
    files
}

#[derive(Default)]
struct Aligned {
    /// FLEX files that count from the timeline's origin now.
    jobs: Vec<u32>,
    found: Vec<Alignment>,
}

fn by_kernels(timeline: &mut Timeline, files: &[Recording], messages: &mut Messages) -> Aligned {
    let mut aligned = Aligned::default();
    let of = |dialect: Dialect| -> Vec<&Recording> {
        let files = files.iter();
        files
            .filter(|file| {
                let job = timeline.jobs.get(file.job as usize);
                job.is_some_and(|job| job.dialect == dialect && !job.is_processed)
            })
            .collect()
    };
    let (flex, torch) = (of(Dialect::Flex), of(Dialect::Torch));
    if flex.is_empty() || torch.is_empty() {
        return aligned;
    }
    let kinds = Kinds::new(timeline);
    let mut words = KernelNames::default();
    let torch = kernels(timeline, &kinds, &torch, &mut words);
    let flex_kernels = kernels(timeline, &kinds, &flex, &mut words);
    for (rank, (second_origin, second, jobs)) in flex_kernels {
        let Some((first_origin, first, _)) = torch.get(&rank) else {
            continue;
        };
        let offset = common::align(first, &second, TOLERANCE_US);
        aligned.found.push(Alignment { rank, offset });
        let path = jobs
            .first()
            .and_then(|job| timeline.jobs.get(*job as usize));
        let path = path.map_or("", |job| job.path.as_str());
        match offset {
            Ok(offset) => {
                let apart = *first_origin as f64 - second_origin as f64 + offset.us.value;
                messages.info(
                    "INGEST",
                    format_args!(
                        "FLEX events of rank {rank} ({path} etc.) were moved by {apart:.3} us +- \
                         {:.3} to the clock of the Torch trace ({} common kernels)",
                        offset.us.error, offset.pairs
                    ),
                );
                // Torch's clock is the one that all others know.
                if aligned.jobs.is_empty() {
                    timeline.origin = Some(*first_origin);
                }
                let to_timeline = *first_origin as f64 - timeline.origin() as f64;
                let by = offset.us.value + to_timeline;
                let Timeline { events, tracks, .. } = &mut *timeline;
                for event in events {
                    if tracks.rank(event) == rank && jobs.contains(&tracks.job(event)) {
                        event.shift(by);
                    }
                }
                aligned.jobs.extend(jobs);
            }
            Err(reason) => {
                let reason = match reason {
                    NoOffset::TooFew => "they have too few kernels in common",
                    NoOffset::Ambiguous => "several offsets fit equally well",
                };
                messages.warn(
                    "INGEST",
                    format_args!(
                        "FLEX and Torch traces of rank {rank} cannot be aligned: {reason}"
                    ),
                );
            }
        }
    }
    aligned
}

/// By rank: origin, kernels, files.
type Kernels = BTreeMap<u32, (i64, Vec<Common>, Vec<u32>)>;

/// The kernels of each rank by their ends, from the origin of its first file.
fn kernels(
    timeline: &Timeline,
    kinds: &Kinds,
    files: &[&Recording],
    words: &mut KernelNames,
) -> Kernels {
    let mut ranks = Kernels::new();
    for file in files {
        for event in timeline.events.get(file.events.clone()).unwrap_or_default() {
            let is_kernel = event.is_slice() && kinds.is_kernel(timeline, event);
            if !is_kernel || timeline.rank(event) == NONE {
                continue;
            }
            let (origin, list, jobs) = ranks
                .entry(timeline.rank(event))
                .or_insert_with(|| (file.origin, Vec::new(), Vec::new()));
            if jobs.last() != Some(&file.job) {
                jobs.push(file.job);
            }
            list.push(Common {
                name: words.of(timeline, event),
                us: event.end_us() + (file.origin - *origin) as f64,
            });
        }
    }
    ranks
}

/// Names of kernels without the parts that only one dialect has.
#[derive(Default)]
struct KernelNames {
    by_sym: FxHashMap<Sym, u32>,
    by_text: FxHashMap<String, u32>,
}

impl KernelNames {
    fn of(&mut self, timeline: &Timeline, event: &Event) -> u32 {
        if let Some(word) = self.by_sym.get(&event.name) {
            return *word;
        }
        let text = timeline.name(event.name).trim_end_matches(" Cmpt Exec");
        let next = self.by_text.len() as u32;
        let word = *self.by_text.entry(text.to_owned()).or_insert(next);
        self.by_sym.insert(event.name, word);
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::messages::Level;
    use crate::analyze::normalize::assign_ranks;
    use aiprof_formats::import::json;
    use aiprof_model::timeline::Length;

    /// Begins of kernels whose distances do not repeat, microseconds.
    fn times() -> Vec<f64> {
        let mut us = 0.0;
        (0..200u32)
            .map(|i| {
                us += 100.0 + f64::from(i * i % 97) * 3.0;
                us
            })
            .collect()
    }

    fn read(texts: &[String]) -> (Timeline, Vec<Recording>) {
        let mut timeline = Timeline::default();
        let mut files = Vec::new();
        for (i, text) in texts.iter().enumerate() {
            let name = format!("{i}.json");
            let reading = json::read(text.as_bytes(), &name, &mut timeline).unwrap();
            assign_ranks(&mut timeline, reading.job, reading.events.clone(), false);
            files.push(Recording {
                job: reading.job,
                events: reading.events,
                origin: reading.origin,
                day_us: reading.day_us,
            });
        }
        (timeline, files)
    }

    fn flex(origin: u64, name: &str) -> String {
        let events = times().into_iter().map(|us| {
            let ts = format!("{}.{:03}", origin + us as u64, (us.fract() * 1e3) as u32);
            format!(
                r#"{{"ph":"X","name":"{name} Cmpt Exec","pid":0,"tid":1,"ts":{ts},"dur":50,
                "args":{{"TS1":1,"TS2":1,"TS3":1,"TS4":1,"TS5":1}}}}"#
            )
        });
        format!("[{}]", events.collect::<Vec<_>>().join(","))
    }

    fn torch(origin: u64) -> String {
        let events = times().into_iter().skip(20).map(|us| {
            let ts = format!("{}.{:03}", origin + us as u64, (us.fract() * 1e3) as u32);
            format!(r#"{{"ph":"X","cat":"kernel","name":"mm","pid":0,"tid":3,"ts":{ts},"dur":50}}"#)
        });
        let events = events.collect::<Vec<_>>().join(",");
        format!(r#"{{"deviceProperties":[],"traceEvents":[{events}]}}"#)
    }

    #[test]
    fn flex_and_torch_meet_to_the_nanosecond() {
        // Since boot, and since 1970.
        let texts = [flex(2_000_000_000, "mm"), torch(1_751_234_567_000_000)];
        for texts in [texts.clone(), [texts[1].clone(), texts[0].clone()]] {
            let (mut timeline, files) = read(&texts);
            let mut messages = Messages::new(Level::Info);
            let found = bring_together(&mut timeline, &files, &mut messages);
            let offset = found[0].offset.unwrap();
            assert_eq!(offset.pairs, 180);
            let ends = |dialect| -> Vec<f64> {
                let events = timeline.events.iter();
                let its = events.filter(|e| timeline.dialect(e) == dialect);
                its.map(|e| e.ts()).collect()
            };
            let (flex, torch) = (ends(Dialect::Flex), ends(Dialect::Torch));
            for (a, b) in flex[20..].iter().zip(&torch) {
                assert!((a - b).abs() < 0.001, "{a} {b}");
            }
        }
    }

    /// A trace of a recording that began at this time of day, with one call 2 ms later.
    fn recorded(unix_ns: u64) -> String {
        format!(
            r#"{{"otherData":{{"version":"aiprof 1","start_monotonic_ns":5,
            "start_unix_ns":"{unix_ns}"}},"traceEvents":[
            {{"ph":"X","cat":"call","name":"f","pid":7,"tid":7,"ts":2000,"dur":5}}]}}"#
        )
    }

    #[test]
    fn recordings_are_placed_by_the_time_of_day() {
        let torch_us = 1_751_234_567_000_000;
        // Three seconds before the trace.
        let recorded_then = || recorded((torch_us - 3_000_000) * 1000);
        // Times of the day, and times since what the file states.
        let since_us = 4_989_739_510_000;
        let base = format!(
            "{{\"baseTimeNanoseconds\":{},",
            (torch_us - since_us) * 1000
        );
        let since = torch(since_us).replacen('{', &base, 1);
        for texts in [
            [recorded_then(), torch(torch_us)],
            [torch(torch_us), recorded_then()],
            [recorded_then(), since.clone()],
            [since, recorded_then()],
        ] {
            let (mut timeline, files) = read(&texts);
            let mut messages = Messages::new(Level::Info);
            bring_together(&mut timeline, &files, &mut messages);
            let at = |name: &str| {
                let is_it = |event: &&Event| timeline.name(event.name) == name && event.is_slice();
                let event = timeline.events.iter().find(is_it).unwrap();
                timeline.file_us(event)
            };
            let apart = at("mm") - times()[20] - at("f");
            assert!((apart - 2_998_000.0).abs() < 1.0, "{apart}");
            let texts: Vec<&str> = messages.iter().map(|m| m.text.as_str()).collect();
            assert_eq!(texts.len(), 1, "{texts:?}");
            assert!(texts[0].contains("placed by its time of day"), "{texts:?}");
        }
        // Times since boot: nothing gives the time of day.
        let (mut timeline, files) = read(&[recorded(1), flex(2_000_000_000, "mm")]);
        let mut messages = Messages::new(Level::Info);
        bring_together(&mut timeline, &files, &mut messages);
        let texts: Vec<&str> = messages.iter().map(|m| m.text.as_str()).collect();
        assert!(
            texts
                .iter()
                .any(|t| t.contains("count from its first event")),
            "{texts:?}"
        );
    }

    /// Files whose times count from different moments that they state. The second began 5 s and
    /// 7 ns later. The third is of three months later, by its base, but its times are as much
    /// smaller: it began 2 s after the first. The fourth counts from 1970 itself.
    #[test]
    fn files_with_different_bases_are_on_one_clock() {
        let (base, ts) = (1_722_470_400_000_000_000_i64, 12_000_000_000_000_i64);
        let months_us = 91 * 86_400 * 1_000_000_i64;
        let file = |base_ns: i64, us: i64| {
            format!(
                r#"{{"deviceProperties":[],"baseTimeNanoseconds":{base_ns},"traceEvents":[
                {{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":{us},"dur":50}}]}}"#
            )
        };
        let texts = [
            file(base, ts),
            file(base + 5_000_000_007, ts),
            file(base + months_us * 1000, ts - months_us + 2_000_000),
            file(0, base / 1000 + ts + 9_000_000),
        ];
        let since_ns = [0, 5_000_000_007, 2_000_000_000, 9_000_000_000_i64];
        let (mut timeline, mut files) = (Timeline::default(), Vec::new());
        for (text, name) in texts.iter().zip(["0", "1", "2", "3"]) {
            let mut reading = json::read(text.as_bytes(), name, &mut timeline).unwrap();
            reading.place_by_base(&mut timeline);
            assert_eq!(reading.base_ns, Some(base));
            files.push(Recording {
                job: reading.job,
                events: reading.events,
                origin: reading.origin,
                day_us: reading.day_us,
            });
        }
        let mut messages = Messages::new(Level::Info);
        bring_together(&mut timeline, &files, &mut messages);
        let messages: Vec<&str> = messages.iter().map(|m| m.text.as_str()).collect();
        assert!(messages.is_empty(), "{messages:?}");
        let at = |event: &Event| {
            let since = timeline.origin_of(event) - ts;
            event.start.nearest_nanos() + since * 1000
        };
        let found: Vec<i64> = timeline.events.iter().map(at).collect();
        assert_eq!(found, since_ns);
    }

    #[test]
    fn what_cannot_be_aligned_is_told() {
        let (mut timeline, files) =
            read(&[flex(2_000_000_000, "other"), torch(1_751_234_567_000_000)]);
        let mut messages = Messages::new(Level::Info);
        let found = bring_together(&mut timeline, &files, &mut messages);
        assert_eq!(found[0].offset, Err(NoOffset::TooFew));
        let texts: Vec<&str> = messages.iter().map(|m| m.text.as_str()).collect();
        assert!(texts[0].contains("too few kernels in common"), "{texts:?}");
        assert!(
            texts[1].starts_with("Mixed clocks: times of 1.json"),
            "{texts:?}"
        );
        let last = timeline.events.last().unwrap();
        assert!(timeline.file_us(last) - 1_751_234_567_000_000.0 > 0.0);
        // Further than times reach: the file's are still exact among themselves.
        let [first, second] = timeline.events[200..202] else {
            panic!()
        };
        let apart = times()[21] - times()[20];
        assert_eq!(second.start - first.start, Length::from_micros(apart));
        let origin = timeline.origin_of(&first);
        assert_eq!(
            origin + FARTHEST_US,
            1_751_234_567_000_000 + times()[20] as i64
        );
    }

    #[test]
    fn recordings_of_several_hosts_are_side_by_side() {
        let day = 1_751_234_567_000_000;
        // The second began 3 us before the first, whose call takes 5.
        let (mut timeline, files) = read(&[recorded(day * 1000), recorded((day - 3) * 1000)]);
        let mut messages = Messages::new(Level::Warn);
        bring_together(&mut timeline, &files, &mut messages);
        let slices = timeline.events.iter().filter(|event| event.is_slice());
        let times: Vec<f64> = slices.map(|event| timeline.file_us(event)).collect();
        assert_eq!(times, [2003.0, 2000.0]);
        assert_eq!(messages.iter().count(), 0);
        // One that does not know its day, and one after the other: both stay.
        for other in [0, day * 1000 + 3_000_000] {
            let (mut timeline, files) = read(&[recorded(day * 1000), recorded(other)]);
            bring_together(&mut timeline, &files, &mut messages);
            let slices = timeline.events.iter().filter(|event| event.is_slice());
            let times: Vec<f64> = slices.map(|event| timeline.file_us(event)).collect();
            assert_eq!(times, [2000.0, 2000.0]);
        }
    }
}
