//! The virtual AIU: builds its libraries and workload, and reads its truth file.
//!
//! `virtual/aiu/README.md` describes the libraries, their settings and the lines
//! of the truth file.

use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use serde::Deserialize;

use crate::aiprof::Aiprof;
use crate::workload::{Workshop, checked, source_path};

/// Sources of each library, and the libraries it needs.
const LIBRARIES: [(&str, &[&str], &[&str]); 3] = [
    (
        "senlib",
        &[
            "config.cpp",
            "truth.cpp",
            "calls.cpp",
            "device.cpp",
            "metrics.cpp",
        ],
        &[],
    ),
    ("flex", &["aiu.cpp", "flex.cpp"], &["-lsenlib"]),
    ("aiupti", &["aiupti.cpp", "layouts.cpp"], &["-lsenlib"]),
];

/// Sources of the workload.
const PROGRAM: [&str; 3] = ["aiu_work.cpp", "aiu_records.cpp", "aiu_hook.cpp"];

/// Optimized, without frame pointers, only the API exported: as vendors build.
const FLAGS: [&str; 7] = [
    "-std=c++17",
    "-O2",
    "-fomit-frame-pointer",
    "-fvisibility=hidden",
    "-pthread",
    "-Wall",
    "-Wextra",
];

/// The built runtime and its workload, kept in the target folder for as long as
/// its sources and flags are the same: C++ compilers are slow.
#[derive(Debug)]
pub struct Runtime {
    folder: PathBuf,
}

impl Runtime {
    /// The libraries and the program `aiu_work`, built with these compiler flags
    /// beside the usual ones.
    ///
    /// # Errors
    /// When the compiler cannot be run or fails, or the folder cannot be made.
    pub fn build(flags: &[&str]) -> anyhow::Result<Self> {
        let kept = kept_folder()?;
        // One build at a time, of all tests of all test programs.
        let lock = File::create(kept.join("lock")).context("creating the lock file")?;
        lock.lock().context("locking")?;
        let folder = kept.join(format!("{:016x}", digest(flags)?));
        if !folder.exists() {
            let fresh = tempfile::tempdir_in(&kept)?;
            build_all(fresh.path(), flags)?;
            std::fs::rename(fresh.keep(), &folder)?;
        }
        Ok(Self { folder })
    }

    /// Where the libraries lie.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A library's file: `flex`, `senlib` or `aiupti`.
    #[must_use]
    pub fn library(&self, name: &str) -> PathBuf {
        self.folder.join(format!("lib{name}.so"))
    }

    /// The C++ workload with these arguments, its truth written to `truth`.
    #[must_use]
    pub fn work(&self, truth: &TruthFiles, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.folder.join("aiu_work"));
        command.args(arguments).env("VAIU_TRUTH", &truth.pattern);
        command.env("LD_LIBRARY_PATH", &self.folder);
        command
    }

    /// aiprof, to record the C++ workload with these arguments into a file.
    ///
    /// # Errors
    /// There is no aiprof, or a path is no text.
    pub fn recording(
        &self,
        truth: &TruthFiles,
        file: &Path,
        arguments: &[&str],
    ) -> anyhow::Result<Command> {
        let work = self.work(truth, arguments);
        let mut command = Aiprof::with(["--only", "-o", file.to_str().context("no text")?])
            .command(work.get_program(), arguments)
            .to_command()?;
        for (name, value) in work.get_envs() {
            command.env(name, value.context("no value")?);
        }
        Ok(command)
    }

    /// The Python workload with these arguments, its truth written to `truth`.
    #[must_use]
    pub fn python(&self, truth: &TruthFiles, arguments: &[&str]) -> Command {
        let mut command = Command::new("python3");
        command.arg(source_path("aiu_work.py")).arg(&self.folder);
        command.args(arguments).env("VAIU_TRUTH", &truth.pattern);
        command
    }
}

fn build_all(folder: &Path, flags: &[&str]) -> anyhow::Result<()> {
    for (name, sources, needs) in LIBRARIES {
        let sources = sources.iter().map(|name| virtual_folder().join(name));
        let output = format!("lib{name}.so");
        let mut command = compiler(folder, &output, sources, flags);
        command.args(["-shared", "-fPIC"]).args(needs);
        checked(command.arg(format!("-Wl,-soname,{output}")))?;
    }
    let sources = PROGRAM.iter().map(|name| source_path(name));
    let mut command = compiler(folder, "aiu_work", sources, flags);
    // The truth of the call paths is that of the source.
    command.args(["-fno-optimize-sibling-calls", "-fno-ipa-icf"]);
    checked(command.args(["-lflex", "-lsenlib", "-ldl"]))?;
    Ok(())
}

fn virtual_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("virtual/aiu")
}

fn kept_folder() -> anyhow::Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), |dir| root.join(dir));
    let kept = target.join("virtual-aiu");
    std::fs::create_dir_all(&kept).with_context(|| format!("making {}", kept.display()))?;
    Ok(kept.canonicalize()?)
}

/// Changes whenever the sources or the flags do.
fn digest(flags: &[&str]) -> anyhow::Result<u64> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(virtual_folder())?
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<_>>()?;
    files.extend(PROGRAM.iter().map(|name| source_path(name)));
    files.extend(["aiu_work.h", "work.h"].map(source_path));
    files.sort();
    let mut hasher = std::hash::DefaultHasher::new();
    (FLAGS, flags).hash(&mut hasher);
    for file in files {
        let contents = std::fs::read(&file);
        contents
            .with_context(|| format!("reading {}", file.display()))?
            .hash(&mut hasher);
    }
    Ok(hasher.finish())
}

fn compiler(
    folder: &Path,
    output: &str,
    sources: impl Iterator<Item = PathBuf>,
    flags: &[&str],
) -> Command {
    let mut command = Command::new("c++");
    command.args(FLAGS).args(flags).args(sources);
    command.arg("-o").arg(folder.join(output));
    command.arg(format!("-L{}", folder.display()));
    command.arg("-Wl,-rpath,$ORIGIN");
    command
}

/// Where the truth of a run goes: one file for each process.
#[derive(Debug)]
pub struct TruthFiles {
    folder: PathBuf,
    name: String,
    pattern: PathBuf,
}

impl TruthFiles {
    /// Files of this name in a workshop.
    #[must_use]
    pub fn new(shop: &Workshop, name: &str) -> Self {
        Self {
            folder: shop.path(""),
            name: format!("{name}."),
            pattern: shop.path(&format!("{name}.%p")),
        }
    }

    /// The truth files of all processes, by pid.
    ///
    /// # Errors
    /// When a file cannot be read or holds anything but the documented lines.
    pub fn read_all(&self) -> anyhow::Result<Vec<Truth>> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(&self.name) {
                all.push(Truth::read(&entry.path())?);
            }
        }
        all.sort_by_key(|truth| truth.process.pid);
        Ok(all)
    }

    /// The truth file of the only process.
    ///
    /// # Errors
    /// As [`Self::read_all`], and when there is not exactly one.
    pub fn read_one(&self) -> anyhow::Result<Truth> {
        let mut all = self.read_all()?;
        anyhow::ensure!(all.len() == 1, "{} truth files, not one", all.len());
        all.pop().context("no truth file")
    }
}

/// A process that used the runtime.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Rank among `world` processes.
    pub rank: u32,
    /// Processes of the job.
    pub world: u32,
    /// Layout of its records.
    pub layout: String,
    /// 1 when its records have cycle counters.
    pub cycles: u32,
    /// CLOCK_REALTIME minus CLOCK_MONOTONIC, nanoseconds.
    pub epoch_offset: u64,
}

/// The clock of its device.
#[derive(Clone, Debug, Deserialize)]
pub struct Device {
    /// Its number.
    pub device: u32,
    /// Cycles per second, as documented.
    pub hz: f64,
    /// How much faster it really is, in millionths.
    pub ppm: f64,
    /// A time, CLOCK_MONOTONIC nanoseconds.
    pub at: u64,
    /// The counter at that time.
    pub cycles: u32,
}

/// A call of an API function.
#[derive(Clone, Debug, Deserialize)]
pub struct Call {
    /// Its id, unique in the process; correlation id of what it launched.
    pub id: u32,
    /// The call in which it was made, 0 if none.
    pub parent: u32,
    /// Function, qualified.
    #[serde(rename = "fn")]
    pub function: String,
    /// Thread.
    pub tid: u32,
    /// Entry, CLOCK_MONOTONIC nanoseconds.
    pub t0: u64,
    /// Exit.
    pub t1: u64,
    /// Arguments by name.
    #[serde(default)]
    pub args: serde_json::Map<String, serde_json::Value>,
    /// Return value, as 64 bits; `None` when it did not return.
    pub ret: Option<u64>,
    /// How it was left without returning: `unwound` or `longjmp`.
    pub left: Option<String>,
}

/// Something that the device did.
#[derive(Clone, Debug, Deserialize)]
pub struct Operation {
    /// Id of the call that launched it.
    pub corr: u32,
    /// Device number.
    pub device: u32,
    /// Stream.
    pub stream: u64,
    /// `control`, `htod`, `dtoh`, `ptop`, `fill` or `callback`.
    pub kind: String,
    /// Kernel name.
    pub name: String,
    /// When the launching call was entered, CLOCK_MONOTONIC nanoseconds.
    pub queued: u64,
    /// When the device got it.
    pub submitted: u64,
    /// When it began.
    pub start: u64,
    /// When it ended.
    pub end: u64,
    /// When the host learned that.
    pub seen: u64,
    /// Begin of DmaI, ends of DmaI, Prep, Exec, DmaO.
    pub at: [u64; 5],
    /// The counter at these times: TS1 to TS5.
    pub ts: [u64; 5],
    /// Bytes to the device.
    pub bytes_in: u64,
    /// Bytes from the device.
    pub bytes_out: u64,
}

/// An activity record.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Record {
    /// Number of its buffer, from 1; 0 if it was dropped.
    pub buffer: u64,
    /// Kind.
    pub kind: u8,
    /// Operation, copy or memory kind, or cbid.
    pub what: u32,
    /// Its size in the buffer.
    pub bytes: u64,
    /// Device.
    pub device: u32,
    /// Context.
    pub context: u32,
    /// Stream.
    pub stream: u32,
    /// Id of the call that caused it.
    pub corr: u32,
    /// Start, nanoseconds of the epoch.
    pub start: u64,
    /// End.
    pub end: u64,
    /// Bytes copied, filled or allocated; data of a runtime record.
    pub amount: u64,
    /// Address of a memory record.
    pub address: u64,
    /// Process.
    pub pid: u32,
    /// Thread of a runtime record.
    pub tid: u32,
    /// Kernel name.
    pub name: String,
    /// TS1 to TS5, or zeros.
    pub cycles: [u64; 5],
    /// When it was queued, nanoseconds of the epoch.
    pub queued: u64,
    /// When it was submitted.
    pub submitted: u64,
}

/// A buffer handed to the program.
#[derive(Clone, Debug, Deserialize)]
pub struct Buffer {
    /// Its number, from 1, in the order in which they were filled.
    pub number: u64,
    /// Its address.
    pub address: u64,
    /// Its size.
    pub size: u64,
    /// Bytes of records in it.
    pub valid: u64,
    /// Records in it.
    pub records: u64,
}

/// One state of the metrics file.
#[derive(Clone, Debug, Deserialize)]
pub struct Metrics {
    /// Sequence number of all sections.
    pub seq: u32,
    /// Values by metric id.
    #[serde(deserialize_with = "by_number")]
    pub values: BTreeMap<u32, Vec<u64>>,
}

/// JSON's keys are texts.
fn by_number<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<u32, Vec<u64>>, D::Error> {
    let by_text = BTreeMap::<String, Vec<u64>>::deserialize(deserializer)?;
    let parsed = by_text
        .into_iter()
        .map(|(id, values)| Ok((id.parse()?, values)));
    parsed
        .collect::<Result<_, std::num::ParseIntError>>()
        .map_err(serde::de::Error::custom)
}

#[derive(Deserialize)]
#[serde(tag = "t", rename_all = "lowercase")]
enum Line {
    Process(Process),
    Device(Device),
    Call(Call),
    Op(Operation),
    Rec(Record),
    Dropped(Record),
    Buffer(Buffer),
    Metrics(Metrics),
}

/// The truth file of one process.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    /// The process.
    pub process: Process,
    /// Its devices' clocks.
    pub devices: Vec<Device>,
    /// Its calls, in the order of their entries.
    pub calls: Vec<Call>,
    /// What its device did, in order.
    pub operations: Vec<Operation>,
    /// Records in buffers that it got, in the order of the buffers' bytes.
    pub records: Vec<Record>,
    /// Records that found no buffer.
    pub dropped: Vec<Record>,
    /// Buffers that it got.
    pub buffers: Vec<Buffer>,
    /// What its metrics file held.
    pub metrics: Vec<Metrics>,
}

impl Truth {
    /// Reads a truth file. A last line that was cut is left out.
    ///
    /// # Errors
    /// When it cannot be read or holds anything but the documented lines.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let mut truth = Self::default();
        for line in text.split_inclusive('\n').filter(|l| l.ends_with('\n')) {
            let line = serde_json::from_str(line)
                .with_context(|| format!("{}: {line}", path.display()))?;
            truth.add(line);
        }
        // Each thread wrote its own lines in their order.
        truth.records.sort_by_key(|record| record.buffer);
        truth.buffers.sort_by_key(|buffer| buffer.number);
        truth.calls.sort_by_key(|call| (call.t0, call.id));
        truth.operations.sort_by_key(|op| (op.start, op.end));
        Ok(truth)
    }

    fn add(&mut self, line: Line) {
        match line {
            Line::Process(process) => self.process = process,
            Line::Device(device) => self.devices.push(device),
            Line::Call(call) => self.calls.push(call),
            Line::Op(op) => self.operations.push(op),
            Line::Rec(record) => self.records.push(record),
            Line::Dropped(record) => self.dropped.push(record),
            Line::Buffer(buffer) => self.buffers.push(buffer),
            Line::Metrics(metrics) => self.metrics.push(metrics),
        }
    }

    /// The calls of a function.
    pub fn calls_of<'a>(&'a self, function: &'a str) -> impl Iterator<Item = &'a Call> {
        self.calls
            .iter()
            .filter(move |call| call.function == function)
    }

    /// The call with this id.
    #[must_use]
    pub fn call(&self, id: u32) -> Option<&Call> {
        self.calls.iter().find(|call| call.id == id)
    }
}

/// The account that a workload prints: the JSON lines of its output, one for each
/// process.
///
/// # Errors
/// When there is none.
pub fn accounts(stdout: &str) -> anyhow::Result<Vec<serde_json::Value>> {
    let lines = stdout.lines().filter(|line| line.starts_with('{'));
    let all: Vec<_> = lines.map(serde_json::from_str).collect::<Result<_, _>>()?;
    anyhow::ensure!(!all.is_empty(), "no account in:\n{stdout}");
    Ok(all)
}
