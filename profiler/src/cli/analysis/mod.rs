//! What `aiprof analyze` and `aiprof acelyzer` share: inputs, the run, outputs.

mod inputs;
mod outputs;

use super::analysis_plan::{AnalysisPlan, Format};
use super::output::OutputFile;
use super::sibling_files::WrittenFiles;
use super::wanted_tables::WantedTables;
use aiprof_formats::export;
use aiprof_formats::export::tables::FileTable;
use aiprof_formats::import::compiler_info;
use aiprof_formats::import::recording;
use aiprof_model::timeline::recorded::Recorded;
use aiprof_model::timeline::{Stretch, Timeline};
use aiprof_model::visible;
use aiprof_record::store::Store;
use aiprof_system::memory;
use aiprof_tables::compare::TraceWork;
use aiprof_trace::analyze::device_stalls::TimedStalls;
use aiprof_trace::analyze::messages::Messages;
use aiprof_trace::analyze::pipeline::{self, Outcome};
use aiprof_trace::analyze::report::{Input, Report};
use aiprof_trace::analyze::utilization::CompilerInfo;
use aiprof_trace::analyze::{normalize, tensorboard, verify};
use aiprof_trace::critical;
use aiprof_trace::findings;
use aiprof_trace::work::SharedWork;
use anyhow::{Context, Result, bail};
pub(super) use inputs::files;
pub(super) use outputs::merged_path;
use outputs::{
    check_places, trace_kind, trace_path, worker, workers, write_intermediate, write_page,
    write_trace,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A run, from files to files.
pub(super) struct Analysis<'a> {
    pub(super) config: &'a AnalysisPlan,
    /// `otherData` of the trace.
    pub(super) other: Value,
    pub(super) messages: &'a mut Messages,
    /// Shows the progress; `None`: it is not shown.
    pub(super) progress: Option<&'a mut dyn FnMut(&str)>,
    /// What is looked at, since the earliest event of all files.
    pub(super) kept: Stretch,
    /// What was read.
    pub(super) inputs: Vec<Input>,
    /// Kernels of captures whose stalls were sampled.
    pub(super) stalls: Vec<TimedStalls>,
    /// What captures lost of calls and records, a line each, by job.
    pub(super) lost: BTreeMap<u32, Vec<String>>,
    /// The files that were written.
    pub(super) written: WrittenFiles,
    /// Tables by name.
    pub(super) tables: WantedTables,
    /// Whether a file is damaged: what is intact of it was read.
    pub(super) is_damaged: bool,
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
        let unknown = self.tables.unknown_names(timeline, &shared);
        if !unknown.is_empty() {
            bail!("{}", unknown.join("; "));
        }
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
        let is_file = file.directory().is_some();
        if config.format == Format::Html {
            let place = file.path().to_owned();
            write_page(&report, file)?;
            self.written.add(&place, export::formats::PAGE.what);
            return Ok(report);
        }
        self.write_traces(timeline, outcome.devices, &report, &tables, file)?;
        if self.has_report() {
            self.write_report(&report)?;
        }
        if self.is_own() && is_file {
            self.written.remove_older(&config.output);
        }
        Ok(report)
    }

    /// Writes the trace to `file`, and tables beside it. Where each rank has a trace of its own,
    /// the trace of all ranks gets a name that TensorBoard does not take for another worker.
    fn write_traces(
        &mut self,
        timeline: &mut Timeline,
        devices: Vec<Value>,
        report: &Report,
        tables: &[FileTable],
        file: OutputFile,
    ) -> Result<()> {
        let config = self.config;
        if config.tensorboard && !config.analysis.compatibility.has_bugs() {
            tensorboard::add_steps(timeline);
        }
        let header = self.header(timeline, devices, report);
        let order = pipeline::restore(timeline);
        let ranks = match config.tensorboard {
            true => workers(timeline, &order),
            false => BTreeMap::new(),
        };
        // All or none: what is refused shows before the first has its name.
        let of_ranks = ranks.keys().map(|rank| worker(&config.output, *rank));
        check_places(self.report_places().chain(of_ranks))?;
        self.write_tables(tables)?;
        let file = match config.tensorboard && self.is_own() && !ranks.is_empty() {
            true => OutputFile::create(&merged_path(config))?,
            false => file,
        };
        let place = file.path().to_owned();
        if config.tensorboard {
            self.write_workers(timeline, &header, ranks)?;
        }
        write_trace(timeline, &header, &order, file, config, self.messages)?;
        let kind = match place == trace_path(config) {
            true => trace_kind(config),
            false => "the trace of all ranks",
        };
        self.written.add(&place, kind);
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
                if let Err(error) = write_intermediate(timeline, config, done) {
                    failed.get_or_insert(error);
                }
            },
        );
        if let Err(error) = write_intermediate(timeline, config, pipeline::STEPS) {
            failed.get_or_insert(error);
        }
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
}
