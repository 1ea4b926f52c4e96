//! What an analysis reads: traces and captures become one timeline.

use super::Analysis;
use crate::cli::capture_input;
use crate::cli::input::{self, ProfileCommand};
use aiprof_formats::import::json::{self, End, Reading, Trouble};
use aiprof_formats::import::open::{self, Contents};
use aiprof_formats::import::{perfetto, rocprof, xplane};
use aiprof_model::timeline::{Begins, Dialect, Event, Stretch, Time, Timeline};
use aiprof_record::timeline::CommandDetail;
use aiprof_system::errors::chain;
use aiprof_system::files::caller;
use aiprof_system::memory;
use aiprof_tables::unitrace;
use aiprof_trace::analyze::recordings::{self, Recording};
use aiprof_trace::analyze::report::{self, Input};
use aiprof_trace::analyze::{identity, normalize};
use anyhow::{Context, Result, anyhow, bail};
use glob::Pattern;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

impl Analysis<'_> {
    pub(super) fn read(&mut self, files: &[PathBuf]) -> Result<Timeline> {
        let first = self.first(files);
        let kept = first.map_or(Stretch::ALL, |first| self.kept.since(first));
        let mut timeline = Timeline {
            classes: self.config.classes.clone(),
            first,
            ..Timeline::default()
        };
        let mut recordings = Vec::new();
        let mut failed = None;
        for path in files {
            self.show(&format!("reading {}", path.display()));
            let read = self.read_one(path, kept, &mut timeline);
            memory::check().with_context(|| format!("cannot read {}", path.display()))?;
            match read {
                // If a file is whole, acelyzer writes an empty trace; that is rarely what was
                // wanted.
                Ok(Some(reading))
                    if reading.events.is_empty()
                        && (self.is_own() || reading.end != End::Whole) =>
                {
                    self.tell_reading(path, &reading, Dialect::Flex);
                    let error = anyhow!("{} has no events", path.display());
                    self.messages
                        .error("INGEST", format_args!("{}", chain(&*error)));
                    failed = Some(error);
                }
                Ok(Some(reading)) => {
                    recordings.push(self.take(path, reading, &mut timeline));
                }
                Ok(None) => {}
                Err(error) => {
                    self.messages
                        .error("INGEST", format_args!("{}", chain(&*error)));
                    failed = Some(error);
                }
            }
        }
        match failed {
            // Each error was already shown.
            Some(_) if recordings.is_empty() && self.is_own() => {
                bail!("none of the inputs can be analyzed")
            }
            Some(error) if recordings.is_empty() => return Err(error),
            Some(_) => self.is_damaged = true,
            None => {}
        }
        self.join(&mut timeline, recordings);
        if self.kept != Stretch::ALL {
            let kept = self.kept.since(timeline.first.unwrap_or_default());
            timeline.events.retain(|event| event.is_within(kept));
        }
        Ok(timeline)
    }

    /// When the earliest event of all files begins, if only a part of them is wanted. It is known
    /// beforehand if the files have one clock and can be read twice.
    fn first(&mut self, files: &[PathBuf]) -> Option<Time> {
        let is_known = files.iter().all(caller::is_file);
        if self.kept == Stretch::ALL || !is_known {
            return None;
        }
        let mut scratch = Timeline::default();
        let mut first = None;
        for path in files {
            self.show(&format!(
                "looking for the first event of {}",
                path.display()
            ));
            // What is wrong with a file is reported when its events are read.
            let read = self.read_one(path, Stretch::NONE, &mut scratch);
            let Ok(Some(mut reading)) = read else {
                continue;
            };
            reading.place_by_base(&mut scratch);
            let job = scratch.jobs.get(reading.job as usize);
            // It may be placed by the time of day.
            let is_placed = job.is_some_and(|job| job.is_recording) && files.len() > 1;
            if is_placed || reading.origin != scratch.origin() {
                return None;
            }
            first = first.into_iter().chain(reading.earliest).min();
            scratch = Timeline {
                origin: scratch.origin,
                jobs: scratch.jobs,
                metadata: scratch.metadata,
                ..Timeline::default()
            };
        }
        first
    }

    /// Notes a file that was read.
    pub(super) fn take(
        &mut self,
        path: &Path,
        mut reading: Reading,
        timeline: &mut Timeline,
    ) -> Recording {
        match self.is_own() {
            true => reading.place_by_base(timeline),
            false => as_acelyzer(path, reading.job, timeline),
        }
        let one_rank = self.config.analysis.compatibility.has_bugs();
        let events = reading.events.clone();
        normalize::assign_ranks(timeline, reading.job, events.clone(), one_rank);
        if !self.is_own() {
            normalize::number_devices(timeline, reading.job, events);
        }
        let job = timeline.jobs.get(reading.job as usize);
        let dialect = job.map_or(Dialect::Flex, |job| job.dialect);
        let mut problems = self.tell_reading(path, &reading, dialect);
        problems.extend(self.lost.remove(&reading.job).unwrap_or_default());
        let job = timeline.jobs.get(reading.job as usize);
        self.inputs.push(Input {
            path: path.to_string_lossy().into_owned(),
            dialect: job.map_or("", report::writer_of),
            rank: job.and_then(|job| job.rank),
            events: reading.events.len(),
            is_synthetic: reading.is_synthetic,
            problems,
        });
        Recording {
            job: reading.job,
            events: reading.events,
            origin: reading.origin,
            day_us: reading.day_us,
        }
    }

    /// Makes one timeline of the files.
    pub(super) fn join(&mut self, timeline: &mut Timeline, recordings: Vec<Recording>) {
        if self.is_own() {
            identity::resolve(timeline, &recordings, self.messages);
        }
        recordings::bring_together(timeline, &recordings, self.messages);
        if self.is_own() {
            identity::restore_files(timeline);
        }
        let ranges: Vec<_> = recordings.into_iter().map(|r| r.events).collect();
        normalize::merge_files(timeline, &ranges);
        if self.is_own() {
            identity::name_hosts(timeline);
        }
        timeline.sweep();
        if self.is_own() && timeline.first.is_none() {
            timeline.first = first_of(timeline);
        }
    }

    /// Reads what is within `kept`, which counts from the timeline's origin.
    fn read_one(
        &mut self,
        path: &Path,
        kept: Stretch,
        timeline: &mut Timeline,
    ) -> Result<Option<Reading>> {
        let shown = path.display();
        let input = match self.is_own() {
            true => open::open(path),
            false => open::open_by_name(path),
        };
        let input = input.with_context(|| format!("cannot read {shown}"))?;
        match input.contents {
            // The readers report a text or bytes that are no trace.
            contents if contents.is_trace() => {}
            Contents::Empty | Contents::Text | Contents::Binary => {}
            _ if !self.is_own() => bail!("Unrecognized file type. file: {shown}"),
            Contents::Capture => {
                let mut wanted = self.tables.entries.iter();
                let detail = CommandDetail {
                    barriers: wanted.any(|entry| unitrace::wants_commands(entry.name)),
                    each: false,
                };
                let read = capture_input::read(path, kept, detail, timeline)?;
                if read.has_stalls && self.tables.entries.is_empty() {
                    self.stalls.extend(capture_input::stalls(path, self.kept));
                }
                self.lost.insert(read.reading.job, read.lost);
                return Ok(Some(read.reading));
            }
            Contents::Log => {
                bail!("{shown} is a log, not a trace; give logs of the compiler with -c")
            }
            other => return Err(input::refused(path, other, ProfileCommand::Analyze)),
        }
        let name = path.to_string_lossy();
        let first = timeline.events.len();
        let failed = || format!("cannot read {shown}");
        let reading = match input.contents {
            Contents::Perfetto | Contents::Binary => {
                perfetto::read(input.text, &name, timeline).with_context(failed)?
            }
            Contents::Rocprof => {
                rocprof::read(input.text, &name, kept, timeline).with_context(failed)?
            }
            Contents::Xplane => {
                xplane::read(input.text, &name, kept, timeline).with_context(failed)?
            }
            _ => json::read_within(input.text, &name, kept, timeline).with_context(failed)?,
        };
        let reading = trim(reading, kept, timeline);
        if reading.is_acelyzer_output && !self.is_own() {
            self.messages.warn(
                "INGEST",
                format_args!(
                    "INGEST: Attempting to import a json file that had been processed by \
                     acelyzer already.Dropping ALL Events from file {shown}"
                ),
            );
            timeline.events.truncate(first);
            return Ok(None);
        }
        Ok(Some(reading))
    }

    fn tell_reading(&mut self, path: &Path, reading: &Reading, dialect: Dialect) -> Vec<String> {
        let mut problems = Vec::new();
        let name = path.to_string_lossy();
        let tail: String = {
            let chars: Vec<char> = name.chars().collect();
            let from = chars.len().saturating_sub(15);
            chars.get(from..).unwrap_or_default().iter().collect()
        };
        // Kineto's calls and kernels may take less than the unit of its times.
        let is_usual = |trouble| {
            trouble == Trouble::ZeroDuration && dialect == Dialect::Torch && self.is_own()
        };
        let troubles: Vec<_> = reading
            .problems
            .iter()
            .filter(|(t, _)| !is_usual(*t))
            .collect();
        self.is_damaged |= reading.end != End::Whole;
        for (trouble, seen) in troubles {
            self.is_damaged |= trouble.is_damage();
            let count = seen.count;
            let at = format!("first in {name} at byte {}", seen.first);
            let is_far = trouble == Trouble::FarTime && self.is_own();
            let text = match trouble {
                Trouble::ZeroDuration => format!(
                    "Ingestion: ..{tail} Detected 'CompleteEvent' type (ph=X) with zero duration. \
                     This should be an 'InstantEvent' type (ph=i). Events: {count} ({at})"
                ),
                Trouble::NegativeDuration => format!(
                    "Ingestion: detected negative duration event(s). Events ignored:{count} ({at})"
                ),
                Trouble::ZeroHostTime => format!(
                    "Ingestion: ..{tail} Detected {count} events with zero wallclock but nonzero \
                     HW time. Indication of time calibration errors during trace capture. ({at})"
                ),
                Trouble::Incomplete => {
                    format!("Event failed sanityCheck: {trouble}. Events ignored:{count} ({at})")
                }
                _ => {
                    let fate = match trouble.drops() {
                        true => "ignored",
                        false if is_far => "excluded from the analysis",
                        false => "kept",
                    };
                    format!("Ingestion: {trouble}. Events {fate}:{count} ({at})")
                }
            };
            if is_far {
                // The events are set aside, which the report has as a fault.
                continue;
            }
            problems.push(format!(
                "{trouble}: {count}, the first at byte {}, {}",
                seen.first,
                if trouble.drops() { "left out" } else { "kept" }
            ));
            match trouble.drops() && trouble != Trouble::NegativeDuration {
                true => self.messages.error("INGEST", format_args!("{text}")),
                false => self.messages.warn("INGEST", format_args!("{text}")),
            }
        }
        let end = match &reading.end {
            End::Whole => return problems,
            End::CutOff { offset } => {
                format!("the file is cut off: only what is complete up to byte {offset} was read")
            }
            End::Trailing { offset } => {
                format!("unexpected data follows at byte {offset} and was not read")
            }
            End::TooLong { offset } => {
                format!("the value at byte {offset} is too long; nothing after it was read")
            }
            End::Failed { offset, reason } => {
                format!(
                    "reading stopped at byte {offset} ({reason}); everything before it was read"
                )
            }
        };
        let text = format_args!("Ingestion: {name}: {end}");
        self.messages.error("INGEST", text);
        problems.push(end);
        problems
    }
}

/// Leaves out what is not in the stretch of time that is looked at, and could not be left out while
/// reading.
fn trim(mut reading: Reading, kept: Stretch, timeline: &mut Timeline) -> Reading {
    if kept != Stretch::ALL {
        let first = reading.events.start;
        let mut index = 0;
        timeline.events.retain(|event| {
            index += 1;
            index <= first || event.is_within(kept)
        });
        reading.events.end = timeline.events.len();
    }
    reading
}

/// When the earliest event of all files begins whose time can be true.
fn first_of(timeline: &Timeline) -> Option<Time> {
    let mut files: BTreeMap<u32, Begins> = BTreeMap::new();
    let job = |event: &Event| timeline.job(event);
    for events in timeline.events.chunk_by(|a, b| job(a) == job(b)) {
        let Some(first) = events.first() else {
            continue;
        };
        let begins = files.entry(job(first)).or_default();
        events.iter().for_each(|event| begins.add(event));
    }
    files.values().filter_map(Begins::first).min()
}

/// Takes a plain trace for what acelyzer takes it: FLEX, or of Torch where Perfetto's format has
/// it.
fn as_acelyzer(path: &Path, job: u32, timeline: &mut Timeline) {
    let name = path.to_string_lossy();
    let is_perfetto = name.contains(".pftrace") || name.contains(".perfetto-trace");
    let job = timeline.jobs.get_mut(job as usize);
    if let Some(job) = job.filter(|job| job.dialect == Dialect::Plain) {
        job.dialect = match is_perfetto {
            true => Dialect::Torch,
            false => Dialect::Flex,
        };
    }
}

/// Most entries of a folder that a pattern is compared with.
const MAX_ENTRIES: usize = 1 << 20;

/// The files that patterns name, each pattern's in order; a pattern that is a file's
/// name is that file.
pub(in crate::cli) fn files(patterns: &[String]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for pattern in patterns {
        let path = Path::new(pattern);
        if caller::exists(path) {
            files.push(path.to_owned());
            continue;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let parent = path.parent().unwrap_or(Path::new(""));
        let Ok(glob) = Pattern::new(&name) else {
            continue;
        };
        let directory = match parent.as_os_str().is_empty() {
            true => Path::new("."),
            false => parent,
        };
        let entries = caller::read_dir(directory, MAX_ENTRIES).unwrap_or_default();
        let mut found: Vec<PathBuf> = entries
            .into_iter()
            .filter(|(_, name)| glob.matches(&name.to_string_lossy()))
            .map(|(_, name)| parent.join(name))
            .collect();
        found.sort();
        files.append(&mut found);
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_give_files_in_order() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b_2.json", "a_1.json", "c.txt", "x[1].json"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
        let found = files(&[path("*_?.json"), path("x[1].json"), path("none*")]);
        let names: Vec<_> = found.iter().filter_map(|p| p.file_name()).collect();
        assert_eq!(names, ["a_1.json", "b_2.json", "x[1].json"]);
    }
}
