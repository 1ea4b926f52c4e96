//! Names for code addresses while the recording runs: new addresses are looked up
//! in batches, so that little is left to do at the end.
//!
//! The files that the names come from belong to others, and reading one may never return. A job is
//! one file, or the JIT code of one process. Each is done by a process that can be left behind
//! ([`aiprof_symbols::symbolize`]), on the account of the user of the traced process. A job that
//! takes too long loses its own names until the next window. A user whose jobs hang has to wait.
//! Naming goes on for all others.

mod accounts;
mod delayed;
mod found;
mod jit;

pub use found::StoredNames;

use super::{binaries::Binaries, bpf::KernelNamer, java::Javas, owner, reader::OpenFile, v8};
use accounts::NamingAccounts;
use aiprof_common::{ADDR_METHOD, JsFunction};
use aiprof_model::process::{FileId, ProcessTable};
use aiprof_record::aggregate::Code;
use aiprof_symbols::{
    symbolize::{
        AddressNames, Client, NamingError, Patience, SymFrame, SymbolizeJob, SymbolizeOptions,
    },
    unwind::address_of,
};
use aiprof_system::{
    files::{others, rights},
    workers::{Outcome, Owner, Pool, PoolLimits, Refused, Ticket},
};
use delayed::DelayedCodes;
use found::FoundNames;
use jit::JitProcesses;
use rustc_hash::{FxHashMap, FxHashSet};
use rustix::fs::StatxFlags;
use std::{
    collections::BTreeMap,
    os::fd::{AsFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Longest wait for names at the end of a window, for work that goes on.
const SETTLE: Duration = Duration::from_secs(20);
/// How long a job may hang then, the first time and later in the same window.
const HANGS: [Duration; 2] = [Duration::from_millis(500), Duration::from_millis(150)];
/// Processes of a user that may hang.
const MAX_STUCK: usize = 2;
/// Threads that wait for processes which name; beyond the patience of those, only
/// something else can have gone wrong.
const LIMITS: PoolLimits = PoolLimits {
    threads: 2,
    patience: Duration::from_secs(70),
    queue: 256,
    stuck_of_owner: 2,
    stuck: 16,
    at_once: 1,
    at_once_new: usize::MAX,
};

/// A job on its way.
#[derive(Clone)]
struct NamingWork {
    job: SymbolizeJob,
    file: Option<Arc<OpenFile>>,
    /// The process's jitdump file.
    dump: Option<Arc<OwnedFd>>,
    stuck: Arc<AtomicUsize>,
}

/// What came of a job, and how long it took.
type Named = (
    Result<(AddressNames, Option<OwnedFd>), NamingError>,
    Duration,
);

/// What was asked for, kept until the answer comes.
struct NamingRequest {
    codes: Vec<Code>,
    owner: Owner,
    work: NamingWork,
}

/// Finds names, and keeps those that it has found.
pub(crate) struct NameService {
    files: Pool<NamingWork, Named>,
    /// `None`: kernel functions have no names.
    kernel: Option<KernelNamer>,
    patience: Arc<Patience>,
    asked: FxHashMap<Ticket, NamingRequest>,
    /// Codes that are being looked up.
    open: FxHashSet<Code>,
    accounts: NamingAccounts,
    /// Codes whose names took too long: asked for again in the next window.
    late: FxHashSet<Code>,
    /// Codes of processes whose perf maps are not read to their end yet.
    unread: FxHashSet<Code>,
    /// Whether something hung at the end of this window.
    hung: bool,
    jit: JitProcesses,
    pub(crate) delayed: DelayedCodes,
    pub(crate) found: FoundNames,
}

impl NameService {
    /// A service that has no names yet; it starts its threads when it is asked.
    ///
    /// # Errors
    /// No descriptors are left.
    pub(crate) fn start(
        options: SymbolizeOptions,
        kernel: Option<KernelNamer>,
    ) -> std::io::Result<Self> {
        let patience = Arc::new(Patience::default());
        let shared = Arc::clone(&patience);
        let files = Pool::new("aiprof-names", LIMITS, move || {
            let mut client = Client::new(options.clone(), Arc::clone(&shared));
            Box::new(move |work| {
                let begun = Instant::now();
                (do_work(&mut client, &work), begun.elapsed())
            })
        })?;
        Ok(Self {
            files,
            kernel,
            patience,
            asked: FxHashMap::default(),
            open: FxHashSet::default(),
            accounts: NamingAccounts::default(),
            late: FxHashSet::default(),
            unread: FxHashSet::default(),
            hung: false,
            jit: JitProcesses::default(),
            delayed: DelayedCodes::default(),
            found: FoundNames::default(),
        })
    }

    /// Asks for the names of those `codes` that have none. Returns false if too
    /// much waits already: ask again later. With `last` nothing waits for more to be
    /// asked for with it.
    pub(crate) fn request(
        &mut self,
        codes: &[Code],
        processes: &ProcessTable,
        binaries: &Binaries,
        javas: &Javas,
        last: bool,
    ) -> bool {
        self.collect();
        let waiting = self.delayed.due(last);
        let mut by_file = self.delayed.fetched(binaries, last);
        let mut by_process: BTreeMap<u32, Vec<Code>> = BTreeMap::new();
        let mut kernel = Vec::new();
        for &code in waiting.iter().chain(codes) {
            if self.found.has(&code) || self.open.contains(&code) {
                continue;
            }
            match code {
                Code::File { file, offset } => {
                    if let Some(address) = self.address(code, (file, offset), binaries) {
                        by_file.entry(file).or_default().push((code, address));
                    }
                }
                Code::Kernel { address } => kernel.push(address),
                _ => {
                    if let Some(pid) = code.named_by() {
                        by_process.entry(pid).or_default().push(code);
                    }
                }
            }
        }
        if let Some(namer) = &self.kernel {
            let codes = kernel.iter().map(|&address| Code::Kernel { address });
            let frames = namer.name(&kernel);
            self.take(codes.collect(), frames);
        }
        let taken = self.ask_files(by_file, processes, binaries);
        taken & self.ask_jit(by_process, processes, (binaries, javas))
    }

    /// The address of a code in its file; `None`: it cannot be asked for now.
    fn address(
        &mut self,
        code: Code,
        (file, offset): (u32, u64),
        binaries: &Binaries,
    ) -> Option<u64> {
        if self.delayed.is_held(file, code) {
            return None;
        }
        let binary = binaries.get(FileId(file))?;
        if binary.open().is_none() {
            self.delayed.closed.push(code);
            return None;
        }
        self.found.note_text(file, &binary.text);
        Some(address_of(&binary.text, offset).unwrap_or(offset))
    }

    /// Waits until everything asked for is answered: as long as work goes on, but
    /// only briefly for what hangs, and for what is of users who could make it last.
    pub(crate) fn settle(&mut self) {
        let begun = Instant::now();
        let patience = HANGS[usize::from(self.hung)];
        self.patience.set(patience);
        while !self.asked.is_empty() && begun.elapsed() < SETTLE {
            let before = self.late.len();
            self.collect();
            if self.late.len() > before {
                self.hung = true;
                self.patience.set(HANGS[1]);
            }
            if begun.elapsed() > patience.min(owner::BRIEF) {
                self.leave_users_waiting();
            }
            self.files.wait(Instant::now() + Duration::from_millis(10));
        }
        self.patience.set(Patience::USUAL);
        for (_, asked) in std::mem::take(&mut self.asked) {
            self.give_up(&asked);
        }
    }

    /// Gives up what is asked for on the accounts of users who are not waited for.
    fn leave_users_waiting(&mut self) {
        let is_of_user = |asked: &NamingRequest| !is_waited_for(asked.owner);
        let left: Vec<_> = self
            .asked
            .extract_if(|_, asked| is_of_user(asked))
            .map(|(_, asked)| asked)
            .collect();
        if left.is_empty() {
            return;
        }
        self.hung = true;
        self.files.forget(|owner| !is_waited_for(owner));
        for asked in left {
            self.give_up(&asked);
        }
    }

    /// Takes in the answers that are there.
    fn collect(&mut self) {
        for (ticket, outcome) in self.files.answers() {
            if let Some(asked) = self.asked.remove(&ticket) {
                self.take_answer(asked, outcome);
            }
        }
    }

    fn take_answer(&mut self, asked: NamingRequest, outcome: Outcome<Named>) {
        match outcome {
            Outcome::Done((Ok((answer, dump)), took)) => {
                let process = asked.codes.first().and_then(Code::named_by);
                if let (Some(dump), Some(pid)) = (dump, process) {
                    self.jit.opened(pid, dump);
                }
                match process.is_some() && answer.is_fetching {
                    true => self.unread.extend(&asked.codes),
                    false => asked.codes.iter().for_each(|code| {
                        self.unread.remove(code);
                    }),
                }
                self.accounts.answered(asked.owner);
                for warning in answer.warnings {
                    tracing::warn!("{warning}");
                }
                self.delayed
                    .answered(&asked.codes, took, answer.is_fetching);
                self.found.take_changes(&asked.codes, answer.changes);
                self.take(asked.codes, answer.frames);
            }
            Outcome::Done((Err(NamingError::TooLong), _)) | Outcome::Stuck => self.too_long(asked),
            Outcome::Done((Err(NamingError::Failed(error)), _)) => {
                tracing::warn!("cannot look up names: {error}");
                self.give_up(&asked);
            }
            Outcome::Failed => self.give_up(&asked),
        }
    }

    fn take(&mut self, codes: Vec<Code>, frames: Vec<Vec<SymFrame>>) {
        for code in &codes {
            self.open.remove(code);
        }
        self.found.add(codes.into_iter().zip(frames));
    }

    /// A job took too long. What hung may be the root directory of a process that
    /// happens to map the file: the file is asked once more without it.
    fn too_long(&mut self, mut asked: NamingRequest) {
        self.accounts.too_long(asked.owner);
        if let NamingWork {
            job: SymbolizeJob::File { pid, .. },
            file: Some(file),
            ..
        } = &mut asked.work
            && std::mem::take(pid) != 0
        {
            let owner = owner_of_file(file);
            if owner != asked.owner {
                self.give(owner, asked);
                return;
            }
        }
        self.give_up(&asked);
    }

    /// Records that the names of codes take too long.
    fn give_up(&mut self, asked: &NamingRequest) {
        for code in &asked.codes {
            self.open.remove(code);
            if code.named_by().is_some() && self.found.has(code) {
                // It was asked again only to learn what it has become.
                continue;
            }
            let frames = vec![asked.work.job.too_long()];
            self.found.add(std::iter::once((*code, frames)));
            self.late.insert(*code);
        }
    }

    /// Hands over a job. Returns false if too many wait.
    fn give(&mut self, owner: Owner, mut asked: NamingRequest) -> bool {
        let Some(stuck) = self.accounts.admit(owner) else {
            self.give_up(&asked);
            return true;
        };
        asked.work.stuck = stuck;
        asked.owner = owner;
        match self.files.give(owner, asked.work.clone()) {
            Ok(ticket) => {
                self.open.extend(asked.codes.iter().copied());
                self.asked.insert(ticket, asked);
                true
            }
            Err(Refused::Stuck) => {
                self.give_up(&asked);
                true
            }
            Err(Refused::Full | Refused::NoThread) => false,
        }
    }

    fn ask_files(
        &mut self,
        by_file: BTreeMap<u32, Vec<(Code, u64)>>,
        processes: &ProcessTable,
        binaries: &Binaries,
    ) -> bool {
        let mut users = self.accounts.users(processes, by_file.keys().copied());
        let mut taken = true;
        for (file, wanted) in by_file {
            let id = FileId(file);
            let (Some(key), Some(binary)) = (processes.files.key(id), binaries.get(id)) else {
                continue;
            };
            let Some(open) = binary.open() else { continue };
            let user = users.remove(&file).flatten();
            let (codes, addresses) = wanted.into_iter().unzip();
            let job = SymbolizeJob::File {
                path: key.path.clone(),
                build_id: binary.build_id(),
                pid: user.map_or(0, |user| user.pid),
                addresses,
            };
            let owner = user.map_or_else(|| owner_of_file(open), |user| user.owner);
            taken &= self.give(owner, asked(codes, job, Some(Arc::clone(open))));
        }
        taken
    }

    fn ask_jit(
        &mut self,
        by_process: BTreeMap<u32, Vec<Code>>,
        processes: &ProcessTable,
        (binaries, javas): (&Binaries, &Javas),
    ) -> bool {
        let mut taken = true;
        for (pid, codes) in by_process {
            let Some(process) = self.jit.find(pid, processes) else {
                continue;
            };
            let address = |code: &Code| match *code {
                Code::JavaMethod { method, .. } => method | ADDR_METHOD,
                Code::JsFunction { shared, check, .. } => JsFunction { shared, check }.to_address(),
                Code::Jit { address, .. } => address,
                _ => 0,
            };
            let addresses = codes.iter().map(address).collect();
            let maps = processes
                .get(pid)
                .map_or(&[][..], |known| &known.space.maps);
            let job = SymbolizeJob::Jit {
                pid,
                started: process.started,
                uid: process.uid,
                dump: process.path.as_deref().map(str::to_owned),
                java: javas.get(pid).map(|java| Box::new(java.clone())),
                v8: v8::library(maps, binaries).map(|library| Box::new(library.clone())),
                forked_from: jit::forked_from(pid, processes),
                addresses,
            };
            let mut asked = asked(codes, job, None);
            asked.work.dump = process.dump;
            taken &= self.give(process.owner, asked);
        }
        taken
    }

    /// Asks again for JIT codes that have no name yet: perf maps and jitdump files grow.
    /// `last`: for all whose names may have changed.
    pub(crate) fn retry_jit(
        &mut self,
        codes: &[Code],
        processes: &ProcessTable,
        (binaries, javas): (&Binaries, &Javas),
        last: bool,
    ) {
        let mut jit: BTreeMap<u32, Vec<Code>> = BTreeMap::new();
        for code in codes {
            if let Some(pid) = code.named_by()
                && (!self.found.has(code)
                    || self.unread.contains(code)
                    || last && self.jit.has_dump(pid))
                && !self.open.contains(code)
            {
                jit.entry(pid).or_default().push(*code);
            }
        }
        // What is not taken now is asked for the next time.
        self.ask_jit(jit, processes, (binaries, javas));
    }

    /// Keeps, between windows, what may be asked for again: the names that this window `used`, of
    /// files that are still known according to `keep`.
    pub(crate) fn trim(&mut self, used: &FxHashSet<Code>, keep: impl Fn(FileId) -> bool) {
        // Other memory may hold something else by the next window, and what hung
        // may not hang then.
        let mut late = std::mem::take(&mut self.late);
        // By the next window their debug files may be there.
        late.extend(self.delayed.trim(&keep));
        self.hung = false;
        self.unread.clear();
        self.jit.clear();
        self.found.trim(used, keep, &late);
    }
}

/// A thread that waits for a process which names.
fn do_work(
    client: &mut Client,
    work: &NamingWork,
) -> Result<(AddressNames, Option<OwnedFd>), NamingError> {
    if work.stuck.load(Ordering::Relaxed) >= MAX_STUCK {
        Client::reap();
        if work.stuck.load(Ordering::Relaxed) >= MAX_STUCK {
            return Err(NamingError::TooLong);
        }
    }
    let file = work.file.as_ref().map(|file| file.place.as_fd());
    let place = file.or(work.dump.as_ref().map(|dump| dump.as_fd()));
    client.run(&work.job, place, &work.stuck)
}

fn asked(codes: Vec<Code>, job: SymbolizeJob, file: Option<Arc<OpenFile>>) -> NamingRequest {
    NamingRequest {
        codes,
        owner: Owner::default(),
        work: NamingWork {
            job,
            file,
            dump: None,
            stuck: Arc::default(),
        },
    }
}

/// Whose names are worth a long wait at the end: root's here and in containers, those
/// of the caller, and of who became root by sudo.
fn is_waited_for(owner: Owner) -> bool {
    owner.uid == 0
        || owner::is_trusted(owner)
        || rights::sudo_caller().is_some_and(|(uid, _)| uid == owner.uid)
}

/// On whose account a process is; `None`: it has gone.
fn owner_of(pid: u32) -> Option<Owner> {
    Some(owner::owner_of(pid)).filter(|owner| owner.uid != u32::MAX)
}

/// The owner of a file, if it is known without waiting for its file system.
fn owner_of_file(file: &OpenFile) -> Owner {
    let found = others::cached(&file.place, StatxFlags::UID);
    Owner {
        uid: found.map_or(u32::MAX, |found| found.stx_uid),
        container: 0,
    }
}
