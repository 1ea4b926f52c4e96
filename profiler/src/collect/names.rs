//! Names for code addresses while the recording runs: a thread that looks up
//! new addresses in batches, so that little is left to do at the end.

use super::{binaries::Binaries, bpf::perf, procfs, reader::Shared};
use crate::{
    aggregate::{Code, Names},
    process::{FileId, ProcessTable},
    profile::{BuildId, FrameKind},
    symbolize::{
        BinaryRef, KernelSymbolizer, NativeSymbolizer, PerfMap, PerfMapLimits, SymFrame,
        SymbolizeOptions,
    },
    unwind::{TextSegment, address_of},
};
use rustc_hash::FxHashMap;
use std::{
    collections::BTreeMap,
    fs::File,
    io::BufReader,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::PathBuf,
    sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    thread::JoinHandle,
    time::Duration,
};

/// Most addresses whose names are kept from one window to the next.
const MAX_KEPT: usize = 1 << 18;
/// How long the answer to one batch may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Batches that may wait for the thread; beyond it the caller keeps them.
const QUEUE: usize = 4;

/// Addresses of one file.
struct FileJob {
    path: PathBuf,
    file: Shared,
    build_id: Option<BuildId>,
    /// A live process that maps it, for debug files in its container.
    pid: u32,
    /// (code, virtual address).
    addresses: Vec<(Code, u64)>,
}

/// One batch.
struct Batch {
    files: Vec<FileJob>,
    kernel: Vec<u64>,
    jit: BTreeMap<u32, Vec<u64>>,
}

/// Names, text segments by file, control group paths by id.
pub type StoredNames = (
    Vec<(Code, Vec<SymFrame>)>,
    Vec<(u32, Vec<TextSegment>)>,
    Vec<(u64, String)>,
);

type Answers = Vec<(Code, Vec<SymFrame>)>;

/// The naming thread, and the names it has found.
pub struct NameService {
    jobs: Option<SyncSender<Batch>>,
    answers: Receiver<Answers>,
    thread: Option<JoinHandle<()>>,
    outstanding: usize,
    stuck: bool,
    names: FxHashMap<Code, Vec<SymFrame>>,
    texts: FxHashMap<u32, Vec<TextSegment>>,
    cgroups: FxHashMap<u64, Option<String>>,
    /// Codes of files that were closed: to be asked for again once these are open.
    closed: Vec<Code>,
}

impl NameService {
    /// Starts the thread.
    pub fn start(options: SymbolizeOptions) -> std::io::Result<Self> {
        let (jobs, inbox) = sync_channel(QUEUE);
        let (outbox, answers) = channel();
        let thread = std::thread::Builder::new()
            .name("aiprof-names".into())
            .spawn(move || serve(options, &inbox, &outbox))?;
        Ok(Self {
            jobs: Some(jobs),
            answers,
            thread: Some(thread),
            outstanding: 0,
            stuck: false,
            names: FxHashMap::default(),
            texts: FxHashMap::default(),
            cgroups: FxHashMap::default(),
            closed: Vec::new(),
        })
    }

    /// Asks for the names of those `codes` that have none; Returns false if the thread is busy: ask again
    /// later.
    pub fn request(
        &mut self,
        codes: &[Code],
        processes: &ProcessTable,
        binaries: &Binaries,
    ) -> bool {
        self.collect();
        let batch = self.batch(codes, processes, binaries);
        if batch.files.is_empty() && batch.kernel.is_empty() && batch.jit.is_empty() {
            return true;
        }
        let Some(jobs) = &self.jobs else { return true };
        let sent = jobs.try_send(batch).is_ok();
        self.outstanding += usize::from(sent);
        sent
    }

    /// The codes of files that were not open when their names were asked for.
    pub fn take_closed(&mut self) -> Vec<Code> {
        std::mem::take(&mut self.closed)
    }

    /// Takes in the answers that are there.
    fn collect(&mut self) {
        while let Ok(answers) = self.answers.try_recv() {
            self.outstanding = self.outstanding.saturating_sub(1);
            self.names.extend(answers);
        }
    }

    /// Waits until everything asked for is answered.
    pub fn settle(&mut self) {
        while self.outstanding > 0 {
            match self.answers.recv_timeout(PATIENCE) {
                Ok(answers) => {
                    self.outstanding = self.outstanding.saturating_sub(1);
                    self.names.extend(answers);
                }
                // The thread is gone or stuck (a dead network file system): there
                // will be no more answers.
                Err(_) => {
                    tracing::warn!("giving up on symbols that take too long");
                    self.outstanding = 0;
                    self.jobs = None;
                    self.stuck = true;
                }
            }
        }
    }

    /// Looks up the paths of control groups.
    pub fn note_cgroups(&mut self, ids: impl Iterator<Item = u64>) {
        for id in ids {
            self.cgroups
                .entry(id)
                .or_insert_with(|| super::cgroup::path_of(id));
        }
    }

    /// Bounds what is kept, between windows.
    pub fn trim(&mut self) {
        // Other memory may hold something else by the next window.
        self.names
            .retain(|code, _| matches!(code, Code::File { .. }));
        if self.names.len() > MAX_KEPT {
            self.names.clear();
        }
        if self.cgroups.len() > MAX_KEPT {
            self.cgroups.clear();
        }
    }

    /// Asks again for JIT codes that no perf map named yet: it may have grown.
    pub fn retry_jit(&mut self, codes: &[Code]) {
        let mut jit: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for code in codes {
            if let Code::Jit { pid, address } = *code
                && !self.names.contains_key(code)
            {
                jit.entry(pid).or_default().push(address);
            }
        }
        if let (false, Some(jobs)) = (jit.is_empty(), &self.jobs) {
            let batch = Batch {
                files: Vec::new(),
                kernel: Vec::new(),
                jit,
            };
            self.outstanding += usize::from(jobs.try_send(batch).is_ok());
        }
    }

    /// What a capture stores: the names of `codes`, the text segments of all
    /// named files, the paths of control groups.
    pub fn stored(&self, codes: &[Code]) -> StoredNames {
        let named = |&code: &Code| Some((code, self.names.get(&code)?.clone()));
        let texts = self
            .texts
            .iter()
            .map(|(&file, text)| (file, text.clone()))
            .collect();
        let path = |(&id, path): (&u64, &Option<String>)| Some((id, path.clone()?));
        (
            codes.iter().filter_map(named).collect(),
            texts,
            self.cgroups.iter().filter_map(path).collect(),
        )
    }

    fn batch(&mut self, codes: &[Code], processes: &ProcessTable, binaries: &Binaries) -> Batch {
        let mut by_file: BTreeMap<u32, Vec<(Code, u64)>> = BTreeMap::new();
        let mut batch = Batch {
            files: Vec::new(),
            kernel: Vec::new(),
            jit: BTreeMap::new(),
        };
        for &code in codes {
            if self.names.contains_key(&code) {
                continue;
            }
            match code {
                Code::File { file, offset } => {
                    let Some(binary) = binaries.get(FileId(file)) else {
                        continue;
                    };
                    if binary.open().is_none() {
                        self.closed.push(code);
                        continue;
                    }
                    self.texts
                        .entry(file)
                        .or_insert_with(|| binary.text.clone());
                    let address = address_of(&binary.text, offset).unwrap_or(offset);
                    by_file.entry(file).or_default().push((code, address));
                }
                Code::Kernel { address } => batch.kernel.push(address),
                Code::Jit { pid, address } => batch.jit.entry(pid).or_default().push(address),
                Code::Special(_)
                | Code::Cut(_)
                | Code::Function { .. }
                | Code::Device
                | Code::Work { .. }
                | Code::NoStack(_) => {}
            }
        }
        let mut users = users(processes, by_file.keys().copied());
        for (file, addresses) in by_file {
            let id = FileId(file);
            let (Some(key), Some(binary)) = (processes.files.key(id), binaries.get(id)) else {
                continue;
            };
            let Some(open) = binary.open() else { continue };
            // Read on the naming thread.
            let Ok(opened) = crate::files::others::reopen(&open.place) else {
                continue;
            };
            batch.files.push(FileJob {
                path: key.path.clone().into(),
                file: Shared(std::sync::Arc::new(opened)),
                build_id: binary.build_id(),
                pid: users.remove(&file).unwrap_or(0),
                addresses,
            });
        }
        batch
    }
}

/// A live process that maps each of `files`, where there is one.
fn users(processes: &ProcessTable, files: impl Iterator<Item = u32>) -> FxHashMap<u32, u32> {
    let mut users: FxHashMap<u32, u32> = files.map(|file| (file, 0)).collect();
    let mut missing = users.len();
    for (pid, process) in processes.iter().filter(|(_, p)| p.exited_ns.is_none()) {
        if missing == 0 {
            break;
        }
        for mapping in &process.space.maps {
            if let Some(user) = users.get_mut(&mapping.file.0).filter(|user| **user == 0) {
                *user = pid;
                missing -= 1;
            }
        }
    }
    users
}

impl Drop for NameService {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take().filter(|_| !self.stuck) {
            let _ = thread.join();
        }
    }
}

impl Names for NameService {
    fn frames(&self, code: &Code) -> &[SymFrame] {
        self.names.get(code).map_or(&[], Vec::as_slice)
    }

    fn file_address(&self, file: u32, offset: u64) -> u64 {
        let text = self.texts.get(&file).map_or(&[][..], Vec::as_slice);
        address_of(text, offset).unwrap_or(offset)
    }

    fn cgroup(&self, id: u64) -> Option<&str> {
        self.cgroups.get(&id)?.as_deref()
    }
}

/// The thread: answers batches until the sender is gone.
fn serve(options: SymbolizeOptions, inbox: &Receiver<Batch>, outbox: &Sender<Answers>) {
    perf::take_turns();
    let mut native = NativeSymbolizer::new(options);
    let mut kernel = KernelSymbolizer::new();
    let mut perf_maps = PerfMaps::default();
    for batch in inbox {
        let mut answers = Vec::new();
        for job in batch.files {
            name_file(&mut native, job, &mut answers);
        }
        let frames = kernel.symbolize(&batch.kernel);
        let codes = batch.kernel.iter().map(|&address| Code::Kernel { address });
        answers.extend(codes.zip(frames));
        for (pid, addresses) in batch.jit {
            perf_maps.name(pid, &addresses, &mut answers);
        }
        if outbox.send(answers).is_err() {
            return;
        }
    }
}

fn name_file(native: &mut NativeSymbolizer, job: FileJob, answers: &mut Answers) {
    let root = PathBuf::from(format!("/proc/{}/root", job.pid));
    let binary = BinaryRef {
        path: &job.path,
        file: Some(&job.file.0),
        build_id: job.build_id,
        root: (job.pid != 0).then_some(root.as_path()),
    };
    let addresses: Vec<u64> = job.addresses.iter().map(|&(_, address)| address).collect();
    let mut frames = Vec::with_capacity(addresses.len());
    if let Err(error) = native.symbolize(&binary, &addresses, &mut frames) {
        tracing::warn!("{error}");
    }
    answers.extend(job.addresses.iter().map(|&(code, _)| code).zip(frames));
}

/// Perf maps by process; read again when the file has grown or changed.
#[derive(Default)]
struct PerfMaps {
    maps: FxHashMap<u32, ((u64, i64, i64), PerfMap)>,
}

/// Most perf maps kept in memory.
const MAX_PERF_MAPS: usize = 16;

impl PerfMaps {
    fn name(&mut self, pid: u32, addresses: &[u64], answers: &mut Answers) {
        self.refresh(pid);
        let Some((_, map)) = self.maps.get(&pid) else {
            return;
        };
        for &address in addresses {
            if let Some(name) = map.lookup(address) {
                let frame = SymFrame {
                    name: name.to_owned(),
                    kind: FrameKind::Jit,
                    source: None,
                };
                answers.push((Code::Jit { pid, address }, vec![frame]));
            }
        }
    }

    fn refresh(&mut self, pid: u32) {
        let in_namespace = procfs::namespace_pid(pid).unwrap_or(pid);
        let paths = [
            format!("/proc/{pid}/root/tmp/perf-{in_namespace}.map"),
            format!("/tmp/perf-{pid}.map"),
        ];
        for path in &paths {
            // Anybody can make these names: only a regular file is read, and
            // opening must not wait for a writer.
            let opened = File::options()
                .read(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(path);
            let Ok(file) = opened else { continue };
            let Ok(meta) = file.metadata() else { continue };
            if !meta.is_file() {
                continue;
            }
            let version = (meta.size(), meta.mtime(), meta.mtime_nsec());
            if self
                .maps
                .get(&pid)
                .is_some_and(|(known, _)| *known == version)
            {
                return;
            }
            let (map, stats) = PerfMap::read(BufReader::new(file), PerfMapLimits::default());
            let refused = stats.malformed + stats.over_limit;
            if refused > 0 {
                tracing::warn!("{path}: {refused} lines are not usable");
            }
            if self.maps.len() >= MAX_PERF_MAPS {
                self.maps.clear();
            }
            self.maps.insert(pid, (version, map));
            return;
        }
    }
}
