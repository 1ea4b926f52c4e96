//! What an analysis writes: a trace, and the files beside it.

use super::Analysis;
use crate::cli::analysis_plan::{AnalysisPlan, Format};
use crate::cli::output::OutputFile;
use crate::cli::sibling_files::beside;
use aiprof_formats::export;
use aiprof_formats::export::html;
use aiprof_formats::export::tables::{self, FileTable, frame};
use aiprof_formats::export::trace_events::{self, Header, Words};
use aiprof_formats::import::json::BASE;
use aiprof_model::timeline::{Dialect, Event, Id, NONE, Timeline};
use aiprof_trace::analyze::classes;
use aiprof_trace::analyze::messages::Messages;
use aiprof_trace::analyze::pipeline::Outcome;
use aiprof_trace::analyze::report::Report;
use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};

impl Analysis<'_> {
    /// The tables that go beside the trace.
    pub(super) fn tables_beside(&self, timeline: &Timeline, outcome: &Outcome) -> Vec<FileTable> {
        let config = self.config;
        // A page stands alone; without an output there is nothing to stand beside.
        let has_place = config.write_trace || !self.is_own();
        match config.format == Format::Html || !has_place || !config.write_tables {
            true => Vec::new(),
            false => tables::of_outcome(timeline, outcome),
        }
    }

    pub(super) fn write_tables(&mut self, tables: &[FileTable]) -> Result<()> {
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
    pub(super) fn has_report(&self) -> bool {
        self.is_own() && self.config.write_tables
    }

    /// Where its files go.
    pub(super) fn report_places(&self) -> impl Iterator<Item = PathBuf> {
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
    pub(super) fn write_report(&mut self, report: &Report) -> Result<()> {
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

    /// A trace for each rank.
    pub(super) fn write_workers(
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
            let own = self.is_own().then(|| devices_of(timeline, Some(rank)));
            match own.filter(|devices| !devices.is_empty()) {
                Some(devices) => header.devices = devices,
                None => header
                    .devices
                    .retain(|device| device.get("id").and_then(Value::as_u64) == Some(rank.into())),
            }
            let path = worker(&self.config.output, rank);
            write_json(timeline, &header, &order, OutputFile::create(&path)?)?;
            self.written.add(&path, "the trace of one rank");
        }
        Ok(())
    }

    pub(super) fn header(
        &self,
        timeline: &Timeline,
        devices: Vec<Value>,
        report: &Report,
    ) -> Header {
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
        if self.is_own() {
            add_devices(&mut header.devices, Some(devices_of(timeline, None).into()));
            add_processes(&mut header.other, timeline);
        }
        for (key, text) in &timeline.metadata {
            let value = || serde_json::from_str::<Value>(text).ok();
            match key.as_str() {
                "deviceProperties" if self.is_own() => {}
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
                // Times of all files count from that of the first.
                BASE if self.is_own() && header.members.iter().any(|(known, _)| known == key) => {}
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
pub(super) fn check_places(mut paths: impl Iterator<Item = PathBuf>) -> Result<()> {
    paths.try_for_each(|path| OutputFile::check(&path))
}

/// The events of each rank, as TensorBoard's distributed view wants them; of one alone none.
pub(super) fn workers(timeline: &Timeline, order: &[u32]) -> BTreeMap<u32, Vec<u32>> {
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
pub(super) fn trace_kind(config: &AnalysisPlan) -> &'static str {
    match config.format {
        _ if config.tensorboard => "a trace for TensorBoard",
        Format::Protobuf => "a trace for ui.perfetto.dev, in Perfetto's own format",
        _ => "a trace for ui.perfetto.dev",
    }
}

/// Where the trace goes: TensorBoard looks for `.pt.trace.json`.
pub(super) fn trace_path(config: &AnalysisPlan) -> PathBuf {
    let text = config.output.to_string_lossy();
    match text.strip_suffix(".json") {
        Some(base) if config.tensorboard && !base.ends_with(".pt.trace") => {
            PathBuf::from(format!("{base}.pt.trace.json"))
        }
        _ => config.output.clone(),
    }
}

/// Where the trace of all ranks goes beside a trace for each: TensorBoard takes every
/// `.pt.trace.json` for a rank.
pub(in crate::cli) fn merged_path(config: &AnalysisPlan) -> PathBuf {
    let text = config.output.to_string_lossy();
    let base = base(&text);
    PathBuf::from(format!("{base}_merged.json"))
}

/// The name of an output without what shows its format.
fn base(name: &str) -> &str {
    name.strip_suffix(".pt.trace.json")
        .or_else(|| name.strip_suffix(".json"))
        .unwrap_or(name)
}

/// `out.pt.trace.json` and 3: `out_worker_3.pt.trace.json`.
pub(super) fn worker(output: &Path, rank: u32) -> PathBuf {
    let text = output.to_string_lossy();
    let base = base(&text);
    PathBuf::from(format!("{base}_worker_{rank}.pt.trace.json"))
}

/// `deviceProperties` of the files of a rank, or of all: of a file with a rank those of its
/// devices, which each file lists whether it uses them or not.
fn devices_of(timeline: &Timeline, rank: Option<u32>) -> Vec<Value> {
    let mut used: BTreeMap<u32, BTreeSet<i64>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for event in timeline.events.iter().filter(|event| event.is_slice()) {
        let is_wanted = rank.is_none_or(|rank| rank == timeline.rank(event));
        if is_wanted && seen.insert(event.track) {
            let device = timeline.arg(event, "device");
            let device = device.and_then(|text| text.parse::<i64>().ok());
            used.entry(timeline.job(event)).or_default().extend(device);
        }
    }
    let mut all = Vec::new();
    for (job, used) in (0u32..)
        .zip(&timeline.jobs)
        .filter_map(|(number, job)| Some((job, used.get(&number)?)))
    {
        let stated = serde_json::from_str(&job.stated.devices).ok();
        let Some(Value::Array(mut stated)) = stated else {
            continue;
        };
        if job.rank.is_some() {
            let id = |device: &Value| device.get("id").and_then(Value::as_i64);
            let is_used = |device: &Value| id(device).is_some_and(|id| used.contains(&id));
            match stated.iter().any(is_used) {
                true => stated.retain(is_used),
                false => stated.truncate(1),
            }
        }
        add_devices(&mut all, Some(stated.into()));
    }
    all
}

/// Notes in `otherData` which groups of rows are of which host and device, where their numbers do
/// not show it: so that the trace can be read again.
fn add_processes(other: &mut Value, timeline: &Timeline) {
    let identity = &timeline.identity;
    let mut groups: Vec<_> = identity.groups.iter().collect();
    groups.sort_by_key(|(pid, _)| **pid);
    let processes: BTreeSet<Id> = groups.iter().map(|(_, group)| group.process).collect();
    let entries = groups.into_iter().filter_map(|(pid, group)| {
        let host = identity.host_name(group.host);
        let gpu = identity.gpus.get(pid).filter(|_| processes.len() > 1);
        let pid: Value = match pid {
            Id::Number(number) => (*number).into(),
            Id::Token(text) => serde_json::from_str(timeline.name(*text)).ok()?,
        };
        let is_known = host.is_some() || gpu.is_some();
        is_known.then(|| json!({"pid": pid, "host": host, "gpu": gpu}))
    });
    let entries: Vec<Value> = entries.collect();
    if let Value::Object(other) = other
        && !entries.is_empty()
    {
        other.insert("processes".to_owned(), entries.into());
    }
}

/// What distinguishes devices with equal numbers.
fn identity(device: &Value) -> Option<&Value> {
    ["uuid", "pciBusId", "pci_bus_id"]
        .iter()
        .find_map(|key| device.get(key))
}

/// One entry per device.
fn add_devices(devices: &mut Vec<Value>, more: Option<Value>) {
    let Some(Value::Array(more)) = more else {
        return;
    };
    for device in more {
        let is_known = |known: &Value| {
            known.get("id").is_some()
                && known.get("id") == device.get("id")
                && (identity(known).is_none() || identity(known) == identity(&device))
        };
        if !devices.iter().any(is_known) {
            devices.push(device);
        }
    }
}

/// Writes the traces that are wanted of the events as they are after `after` steps.
pub(super) fn write_intermediate(
    timeline: &Timeline,
    config: &AnalysisPlan,
    after: usize,
) -> Result<()> {
    let order: Vec<u32> = (0u32..).take(timeline.events.len()).collect();
    for wanted in config.intermediate.iter().filter(|one| one.after == after) {
        let header = Header {
            name: wanted.path.to_string_lossy().into_owned(),
            time_unit: config.time_unit().to_owned(),
            other: serde_json::json!({}),
            ..Header::default()
        };
        let file = OutputFile::create(&wanted.path)?;
        write_json(timeline, &header, &order, file)?;
    }
    Ok(())
}

pub(super) fn write_trace(
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
    let options = frame::FrameOptions {
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

pub(super) fn write_page(report: &Report, mut file: OutputFile) -> Result<()> {
    let shown = file.path().display().to_string();
    html::write(report, &mut file).with_context(|| format!("cannot write {shown}"))?;
    file.commit()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// TensorBoard takes each name that ends in `.pt.trace.json` for a rank.
    #[test]
    fn the_trace_of_all_ranks_is_none_of_a_rank() {
        for output in ["d/x.pt.trace.json", "d/x.json"] {
            let config = AnalysisPlan {
                output: PathBuf::from(output),
                tensorboard: true,
                ..AnalysisPlan::default()
            };
            assert_eq!(merged_path(&config), Path::new("d/x_merged.json"));
            let rank = worker(&config.output, 3);
            assert_eq!(rank, Path::new("d/x_worker_3.pt.trace.json"));
        }
    }
}
