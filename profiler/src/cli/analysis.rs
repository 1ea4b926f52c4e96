//! What `aiprof analyze` and `aiprof acelyzer` share: inputs, the run, outputs.

use super::analysis_plan::{AnalysisPlan, Format};
use super::capture_input;
use super::input::{self, ProfileCommand};
use super::output::OutputFile;
use super::sibling_files::{Written, beside};
use super::wanted_tables::WantedTables;
use aiprof_formats::export;
use aiprof_formats::export::html;
use aiprof_formats::export::tables::{self, FileTable, frame};
use aiprof_formats::export::trace_events::{self, Header, Words};
use aiprof_formats::import::compiler_info;
use aiprof_formats::import::json::{self, End, Reading, Trouble};
use aiprof_formats::import::open::{self, Contents};
use aiprof_formats::import::perfetto;
use aiprof_formats::import::recording;
use aiprof_model::timeline::recorded::Recorded;
use aiprof_model::timeline::{Dialect, Event, NONE, Stretch, Timeline};
use aiprof_model::visible;
use aiprof_record::store::Store;
use aiprof_record::timeline::CommandDetail;
use aiprof_system::errors::chain;
use aiprof_system::files::caller;
use aiprof_system::memory;
use aiprof_tables::compare::TraceWork;
use aiprof_tables::unitrace;
use aiprof_trace::analyze::device_stalls::TimedStalls;
use aiprof_trace::analyze::messages::Messages;
use aiprof_trace::analyze::pipeline::{self, Outcome};
use aiprof_trace::analyze::recordings::{self, Recording};
use aiprof_trace::analyze::report::{self, Input, Report};
use aiprof_trace::analyze::utilization::CompilerInfo;
use aiprof_trace::analyze::{classes, normalize, verify};
use aiprof_trace::critical;
use aiprof_trace::findings;
use aiprof_trace::work::SharedWork;
use anyhow::{Context, Result, anyhow, bail};
use flate2::Compression;
use flate2::write::GzEncoder;
use glob::Pattern;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Most entries of a folder that a pattern is compared with.
const MAX_ENTRIES: usize = 1 << 20;

/// A run, from files to files.
pub(super) struct Analysis<'a> {
    pub(super) config: &'a AnalysisPlan,
    /// `otherData` of the trace.
    pub(super) other: Value,
    pub(super) messages: &'a mut Messages,
    /// Shows the progress; `None`: it is not shown.
    pub(super) progress: Option<&'a mut dyn FnMut(&str)>,
    /// What of each file is looked at, since its first event.
    pub(super) kept: Stretch,
    /// What was read.
    pub(super) inputs: Vec<Input>,
    /// Kernels of captures whose stalls were sampled.
    pub(super) stalls: Vec<TimedStalls>,
    /// The files that were written.
    pub(super) written: Written,
    /// Tables by name.
    pub(super) tables: WantedTables,
    /// Whether a file is damaged: what is intact of it was read.
    pub(super) is_damaged: bool,
}

/// The files that patterns name, each pattern's in order; a pattern that is a file's
/// name is that file.
pub(super) fn files(patterns: &[String]) -> Vec<PathBuf> {
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

impl Analysis<'_> {
    /// Whether the results are aiprof's own, not acelyzer's.
    fn is_own(&self) -> bool {
        self.config.analysis.compatibility.is_own()
    }

    /// Reads the files, runs the analyses, writes the results. Returns what was found.
    ///
    /// # Errors
    /// No file can be read, or a result cannot be written.
    pub(super) fn run(&mut self, files: &[PathBuf]) -> Result<Report> {
        let config = self.config;
        // What is wrong with the place shows before the work is done.
        let trace = match config.write_trace {
            true => Some(OutputFile::create(&trace_path(config))?),
            false => None,
        };
        let compiler = match config.analysis.counters.utilization {
            true => compiler_info::load(&config.compiler_info, self.messages),
            false => CompilerInfo::default(),
        };
        memory::check().context("cannot read the compiler's log")?;
        let mut timeline = self.read(files)?;
        self.conclude(&mut timeline, &compiler, trace)
    }

    /// What a file has that another may have too, and what was found in it.
    ///
    /// # Errors
    /// It cannot be read, or nothing can be made of it.
    pub(super) fn for_comparison(&mut self, path: &Path) -> Result<(TraceWork, Report)> {
        let mut timeline = self.read(&[path.to_owned()])?;
        let outcome = self.analyse(&mut timeline, &CompilerInfo::default())?;
        memory::check().context("cannot analyze the input")?;
        if outcome.is_fatal {
            bail!("this trace cannot be analyzed");
        }
        let inputs = std::mem::take(&mut self.inputs);
        let wanted = findings::Wanted {
            plots: false,
            waste: true,
        };
        let shared = SharedWork::default();
        let report = findings::report(&timeline, &outcome, inputs, wanted, &shared);
        Ok((TraceWork::of(&timeline), report))
    }

    /// Runs the analyses and writes the results: the trace to `trace`, the rest beside it.
    fn conclude(
        &mut self,
        timeline: &mut Timeline,
        compiler: &CompilerInfo,
        trace: Option<OutputFile>,
    ) -> Result<Report> {
        let config = self.config;
        let mut outcome = self.analyse(timeline, compiler)?;
        outcome.stalls = std::mem::take(&mut self.stalls);
        memory::check().context("cannot analyze the input")?;
        if outcome.is_fatal {
            bail!("these traces cannot be analyzed");
        }
        let tables = self.tables_beside(timeline, &outcome);
        let inputs = std::mem::take(&mut self.inputs);
        let is_own = self.is_own();
        // If only tables are wanted, the rest is not shown.
        let wanted = findings::Wanted {
            plots: is_own && trace.is_some(),
            waste: is_own && (trace.is_some() || self.tables.entries.is_empty()),
        };
        let shared = SharedWork::default();
        let report = findings::report(timeline, &outcome, inputs, wanted, &shared);
        self.tables.make(timeline, &outcome, &report, &shared)?;
        drop(shared);
        if self.tables.marks_path {
            critical::mark(timeline, &self.tables.options.path);
        }
        self.show("writing");
        let Some(file) = trace else {
            self.write_tables(&tables)?;
            return Ok(report);
        };
        // Nothing stands beside a device or a pipe.
        let (place, is_file) = (file.path().to_owned(), file.directory().is_some());
        if config.format == Format::Html {
            write_page(&report, file)?;
            self.written.add(&place, export::formats::PAGE.what);
            return Ok(report);
        }
        let header = self.header(timeline, outcome.devices.clone(), &report);
        let order = pipeline::restore(timeline);
        let ranks = match config.tensorboard {
            true => workers(timeline, &order),
            false => BTreeMap::new(),
        };
        // All or none: what is refused shows before the first has its name.
        let of_ranks = ranks.keys().map(|rank| worker(&config.output, *rank));
        check_places(self.report_places().chain(of_ranks))?;
        self.write_tables(&tables)?;
        if config.tensorboard {
            self.write_workers(timeline, &header, ranks)?;
        }
        write_trace(timeline, &header, &order, file, config, self.messages)?;
        self.written.add(&place, trace_kind(config));
        if self.has_report() {
            self.write_report(&report)?;
        }
        if self.is_own() && is_file {
            self.written.remove_older(&config.output);
        }
        Ok(report)
    }

    /// The tables that go beside the trace.
    fn tables_beside(&self, timeline: &Timeline, outcome: &Outcome) -> Vec<FileTable> {
        let config = self.config;
        // A page stands alone; without an output there is nothing to stand beside.
        let has_place = config.write_trace || !self.is_own();
        match config.format == Format::Html || !has_place || !config.write_tables {
            true => Vec::new(),
            false => tables::of_outcome(timeline, outcome),
        }
    }

    fn write_tables(&mut self, tables: &[FileTable]) -> Result<()> {
        let config = self.config;
        let place = |table: &FileTable| beside(&config.output, table.purpose, table.extension);
        check_places(tables.iter().map(place))?;
        for table in tables {
            let path = place(table);
            let mut file = OutputFile::create(&path)?;
            file.write_all(&table.text)?;
            file.commit()?;
            self.written
                .add_beside(&path, table.purpose, table.extension);
            let said = table.said;
            let text = format_args!("{said}{}", path.display());
            self.messages.info("SEC", text);
        }
        Ok(())
    }

    /// Whether a report stands beside the trace.
    fn has_report(&self) -> bool {
        self.is_own() && self.config.write_tables
    }

    /// Where its files go.
    fn report_places(&self) -> impl Iterator<Item = PathBuf> {
        let extensions: &[&str] = match self.has_report() {
            true => &["json", "html"],
            false => &[],
        };
        let output = &self.config.output;
        extensions
            .iter()
            .map(|extension| beside(output, "report", extension))
    }

    /// The report beside the trace, for programs and for people.
    fn write_report(&mut self, report: &Report) -> Result<()> {
        let path = beside(&self.config.output, "report", "json");
        let mut file = OutputFile::create(&path)?;
        serde_json::to_writer(&mut file, report)?;
        file.commit()?;
        self.written.add_beside(&path, "report", "json");
        let path = beside(&self.config.output, "report", "html");
        write_page(report, OutputFile::create(&path)?)?;
        self.written.add_beside(&path, "report", "html");
        Ok(())
    }

    fn analyse(&mut self, timeline: &mut Timeline, compiler: &CompilerInfo) -> Result<Outcome> {
        let config = self.config;
        let progress = &mut self.progress;
        let mut failed = None;
        let outcome = pipeline::run(
            timeline,
            &config.analysis,
            compiler,
            self.messages,
            &mut |timeline, step, done, all| {
                if let Some(show) = progress {
                    show(&format!("{step} ({done} of {all})"));
                }
                if config.intermediate
                    && let Err(error) = write_intermediate(timeline, config, step, done)
                {
                    failed.get_or_insert(error);
                }
            },
        );
        if config.format == Format::Pddf {
            // That is written as the events stand.
            normalize::sort(timeline);
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(outcome),
        }
    }

    /// Checks the files and writes the report. Returns whether a check failed.
    ///
    /// # Errors
    /// No file can be read, or the report cannot be written.
    pub(super) fn verify(&mut self, files: &[PathBuf]) -> Result<bool> {
        let timeline = self.read(files)?;
        self.show("verifying");
        let report = verify::run(&timeline, self.config.analysis.compatibility);
        let command = self.other.get("CmdLine").and_then(Value::as_str);
        let command = match command {
            Some(command) => command.to_owned(),
            None => self
                .inputs
                .iter()
                .map(|i| i.path.as_str())
                .collect::<Vec<_>>()
                .join(" "),
        };
        let text = match self.config.format {
            Format::Text => report.to_text(&visible::one_line(&command)),
            _ => {
                let mut metadata = self.other.as_object().cloned().unwrap_or_default();
                for (key, text) in &timeline.metadata {
                    let value = serde_json::from_str(text).unwrap_or_default();
                    metadata.insert(key.clone(), value);
                }
                report.to_json(&metadata)?
            }
        };
        if self.config.write_trace {
            let mut file = OutputFile::create(&self.config.output)?;
            file.write_all(text.as_bytes())?;
            file.commit()?;
            self.written
                .add(&self.config.output, "the results of the checks");
        } else if self.is_own() {
            std::io::stdout().write_all(text.as_bytes())?;
        }
        Ok(report.has_failed())
    }

    fn show(&mut self, text: &str) {
        if let Some(show) = &mut self.progress {
            show(text);
        }
    }

    fn read(&mut self, files: &[PathBuf]) -> Result<Timeline> {
        let mut timeline = Timeline::default();
        let mut recordings = Vec::new();
        let mut failed = None;
        for path in files {
            self.show(&format!("reading {}", path.display()));
            let read = self.read_one(path, &mut timeline);
            memory::check().with_context(|| format!("cannot read {}", path.display()))?;
            match read {
                // acelyzer writes an empty trace; that is rarely what was wanted.
                Ok(Some(reading)) if reading.events.is_empty() && self.is_own() => {
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
            _ => {}
        }
        self.join(&mut timeline, recordings);
        Ok(timeline)
    }

    /// Notes a file that was read.
    fn take(&mut self, path: &Path, reading: Reading, timeline: &mut Timeline) -> Recording {
        let one_rank = self.config.analysis.compatibility.has_bugs();
        let events = reading.events.clone();
        normalize::assign_ranks(timeline, reading.job, events, one_rank);
        let job = timeline.jobs.get(reading.job as usize);
        let dialect = job.map_or(Dialect::Flex, |job| job.dialect);
        let problems = self.tell_reading(path, &reading, dialect);
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
    fn join(&mut self, timeline: &mut Timeline, recordings: Vec<Recording>) {
        recordings::bring_together(timeline, &recordings, self.messages);
        let ranges: Vec<_> = recordings.into_iter().map(|r| r.events).collect();
        normalize::merge_files(timeline, &ranges);
        timeline.sweep();
    }

    /// What is found in a recording; writes the results to `out` and beside it. `path` is
    /// the recording's name.
    ///
    /// # Errors
    /// It cannot be read, or a result not be written.
    pub(super) fn of_recording(
        &mut self,
        recorded: &Recorded,
        store: Store,
        path: &Path,
        out: Option<OutputFile>,
    ) -> Result<Report> {
        let mut timeline = Timeline::default();
        let name = path.to_string_lossy();
        let reading = recording::read(recorded, store, &name, self.kept, &mut timeline);
        let reading = reading.with_context(|| format!("cannot read {}", path.display()))?;
        let taken = self.take(path, reading, &mut timeline);
        self.join(&mut timeline, vec![taken]);
        self.conclude(&mut timeline, &CompilerInfo::default(), out)
    }

    fn read_one(&mut self, path: &Path, timeline: &mut Timeline) -> Result<Option<Reading>> {
        let shown = path.display();
        let input = match self.is_own() {
            true => open::open(path),
            false => open::open_by_name(path),
        };
        let input = input.with_context(|| format!("cannot read {shown}"))?;
        match input.contents {
            // The readers report a text or bytes that are no trace.
            Contents::Json | Contents::Perfetto => {}
            Contents::Empty | Contents::Text | Contents::Binary => {}
            _ if !self.is_own() => bail!("Unrecognized file type. file: {shown}"),
            Contents::Capture => {
                let mut wanted = self.tables.entries.iter();
                let detail = CommandDetail {
                    barriers: wanted.any(|entry| unitrace::wants_commands(entry.name)),
                    each: false,
                };
                let (reading, has_stalls) = capture_input::read(path, self.kept, detail, timeline)?;
                if has_stalls && self.tables.entries.is_empty() {
                    self.stalls.extend(capture_input::stalls(path, self.kept));
                }
                return Ok(Some(reading));
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
            _ => json::read_within(input.text, &name, self.kept, timeline).with_context(failed)?,
        };
        let reading = self.trim(reading, timeline);
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

    /// Leaves out what is not in the stretch of time that is looked at, and could not be
    /// left out while reading.
    fn trim(&self, mut reading: Reading, timeline: &mut Timeline) -> Reading {
        if self.kept != Stretch::ALL {
            let (first, kept) = (reading.events.start, self.kept);
            let mut index = 0;
            timeline.events.retain(|event| {
                index += 1;
                index <= first || event.is_within(kept)
            });
            reading.events.end = timeline.events.len();
        }
        reading
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
                    let fate = if trouble.drops() { "ignored" } else { "kept" };
                    format!("Ingestion: {trouble}. Events {fate}:{count} ({at})")
                }
            };
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

    /// A trace for each rank.
    fn write_workers(
        &mut self,
        timeline: &Timeline,
        header: &Header,
        ranks: BTreeMap<u32, Vec<u32>>,
    ) -> Result<()> {
        if ranks.is_empty() {
            let text = format_args!("TB_EXPORTER: Only 1 AIU is used, no distributed view");
            match self.is_own() {
                true => self.messages.info("TB_EXPORTER", text),
                false => self.messages.warn("TB_EXPORTER", text),
            }
        }
        for (rank, order) in ranks {
            let mut header = header.clone();
            header.time_unit = "ms".to_owned();
            header
                .devices
                .retain(|device| device.get("id").and_then(Value::as_u64) == Some(rank.into()));
            let path = worker(&self.config.output, rank);
            write_json(timeline, &header, &order, OutputFile::create(&path)?)?;
            self.written.add(&path, "the trace of one rank");
        }
        Ok(())
    }

    fn header(&self, timeline: &Timeline, devices: Vec<Value>, report: &Report) -> Header {
        let mut header = Header {
            devices,
            name: self.config.output.to_string_lossy().into_owned(),
            time_unit: self.config.time_unit().to_owned(),
            other: self.other.clone(),
            members: Vec::new(),
        };
        if let Value::Object(other) = &mut header.other {
            // Clocks, shifts and findings; what is long has files of its own.
            let mut brief = report.clone();
            brief.series.clear();
            brief.kernels.clear();
            brief.details.collectives.clear();
            brief.details.faults.clear();
            let brief = serde_json::to_value(&brief).unwrap_or_default();
            other.insert("aiprof".to_owned(), brief);
        }
        for (key, text) in &timeline.metadata {
            let value = || serde_json::from_str::<Value>(text).ok();
            match key.as_str() {
                "deviceProperties" => add_devices(&mut header.devices, value()),
                "traceName" => {
                    if let Some(Value::String(name)) = value() {
                        header.name = name;
                    }
                }
                "displayTimeUnit" => {
                    if let Some(Value::String(unit)) = value() {
                        header.time_unit = unit;
                    }
                }
                _ => {
                    // The last file's counts, as with acelyzer.
                    header.members.retain(|(known, _)| known != key);
                    header.members.push((key.clone(), text.clone()));
                }
            }
        }
        header
    }
}

/// Looks whether all of these files can be written.
///
/// # Errors
/// What is wrong with the first that cannot.
fn check_places(mut paths: impl Iterator<Item = PathBuf>) -> Result<()> {
    paths.try_for_each(|path| OutputFile::check(&path))
}

/// The events of each rank, as TensorBoard's distributed view wants them; of one alone none.
fn workers(timeline: &Timeline, order: &[u32]) -> BTreeMap<u32, Vec<u32>> {
    let mut ranks: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for index in order {
        let event = timeline.events.get(*index as usize);
        if let Some(rank) = event.and_then(|event| rank_of(timeline, event)) {
            ranks.entry(rank).or_default().push(*index);
        }
    }
    match ranks.len() {
        0 | 1 => BTreeMap::new(),
        _ => ranks,
    }
}

/// The rank that an event's process belongs to.
fn rank_of(timeline: &Timeline, event: &Event) -> Option<u32> {
    if timeline.rank(event) != NONE && timeline.dialect(event) == Dialect::Torch {
        return Some(timeline.rank(event));
    }
    let pid = timeline.pid(event).number()?;
    // Hosts of FLEX traces are 1000 and their rank.
    let rank = if pid >= 1000 { pid - 1000 } else { pid };
    u32::try_from(rank).ok()
}

/// What kind of trace is written, for people.
fn trace_kind(config: &AnalysisPlan) -> &'static str {
    match config.format {
        _ if config.tensorboard => "a trace for TensorBoard",
        Format::Protobuf => "a trace for ui.perfetto.dev, in Perfetto's own format",
        _ => "a trace for ui.perfetto.dev",
    }
}

/// Where the trace goes: TensorBoard looks for `.pt.trace.json`.
fn trace_path(config: &AnalysisPlan) -> PathBuf {
    let text = config.output.to_string_lossy();
    match text.strip_suffix(".json") {
        Some(base) if config.tensorboard && !base.ends_with(".pt.trace") => {
            PathBuf::from(format!("{base}.pt.trace.json"))
        }
        _ => config.output.clone(),
    }
}

/// `out.pt.trace.json` and 3: `out_worker_3.pt.trace.json`.
fn worker(output: &Path, rank: u32) -> PathBuf {
    let text = output.to_string_lossy();
    let base = text
        .strip_suffix(".pt.trace.json")
        .or_else(|| text.strip_suffix(".json"))
        .unwrap_or(&text);
    PathBuf::from(format!("{base}_worker_{rank}.pt.trace.json"))
}

/// One entry per device.
fn add_devices(devices: &mut Vec<Value>, more: Option<Value>) {
    let Some(Value::Array(more)) = more else {
        return;
    };
    for device in more {
        let is_known =
            |known: &Value| known.get("id").is_some() && known.get("id") == device.get("id");
        if !devices.iter().any(is_known) {
            devices.push(device);
        }
    }
}

/// Writes the events as they are between two steps.
fn write_intermediate(
    timeline: &Timeline,
    config: &AnalysisPlan,
    step: &str,
    done: usize,
) -> Result<()> {
    let mut path = config.output.clone().into_os_string();
    path.push(format!("_{done:02}_before_{}", step.replace(' ', "_")));
    let file = OutputFile::create(Path::new(&path))?;
    let header = Header {
        name: config.output.to_string_lossy().into_owned(),
        time_unit: config.time_unit().to_owned(),
        ..Header::default()
    };
    let order: Vec<u32> = (0u32..).take(timeline.events.len()).collect();
    write_json(timeline, &header, &order, file)
}

fn write_trace(
    timeline: &Timeline,
    header: &Header,
    order: &[u32],
    mut file: OutputFile,
    config: &AnalysisPlan,
    messages: &mut Messages,
) -> Result<()> {
    match config.format {
        Format::Pddf => {}
        Format::Protobuf => {
            let words = Words {
                classes: classes::NAMES,
            };
            return write_perfetto(timeline, words, order, file, messages)
                .with_context(|| format!("cannot write {}", header.name));
        }
        _ => return write_json(timeline, header, order, file),
    }
    let class_name = |class: u8| {
        classes::NAMES
            .get(usize::from(class))
            .copied()
            .unwrap_or("")
    };
    let options = frame::Options {
        class_name: &class_name,
        is_refined: true,
        full_times: !config.analysis.compatibility.has_bugs(),
    };
    frame::write(&mut file, timeline, &options)?;
    file.commit()
}

fn write_json(
    timeline: &Timeline,
    header: &Header,
    order: &[u32],
    mut file: OutputFile,
) -> Result<()> {
    let words = Words {
        classes: classes::NAMES,
    };
    let failed = || format!("cannot write {}", header.name);
    if file.path().extension().is_some_and(|e| e == "gz") {
        let mut out = GzEncoder::new(&mut file, Compression::fast());
        trace_events::write(timeline, words, header, order, &mut out).with_context(failed)?;
        out.finish().with_context(failed)?;
    } else {
        trace_events::write(timeline, words, header, order, &mut file).with_context(failed)?;
    }
    file.commit()
}

fn write_perfetto(
    timeline: &Timeline,
    words: Words,
    order: &[u32],
    mut file: OutputFile,
    messages: &mut Messages,
) -> Result<()> {
    let written = export::perfetto::write(timeline, words, order, &mut file)?;
    if written.clipped > 0 {
        let text = format_args!(
            "Export: {} spans overlap too many others on their track and were shortened",
            written.clipped
        );
        messages.warn("EXPORT", text);
    }
    file.commit()
}

fn write_page(report: &Report, mut file: OutputFile) -> Result<()> {
    let shown = file.path().display().to_string();
    html::write(report, &mut file).with_context(|| format!("cannot write {shown}"))?;
    file.commit()
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
