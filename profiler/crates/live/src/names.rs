//! Names for code addresses while the recording runs: new addresses are looked up
//! in batches, so that little is left to do at the end.
//!
//! The files that the names come from belong to others, and reading one may never return. A job is
//! one file, or the JIT code of one process. Each is done by a process that can be left behind
//! ([`aiprof_symbols::symbolize`]), on the account of the user of the traced process. A job that
//! takes too long loses its own names until the next window. A user whose jobs hang has to wait.
//! Naming goes on for all others.

use super::{binaries::Binaries, bpf::KernelNamer, java::Javas, owner, reader::OpenFile, v8};
use aiprof_common::{ADDR_METHOD, JsFunction};
use aiprof_model::process::{FileId, ProcessTable};
use aiprof_record::aggregate::{Code, NameSource};
use aiprof_symbols::{
    symbolize::{
        AddressChange, AddressNames, Client, NamingError, Patience, SymFrame, SymbolizeJob,
        SymbolizeOptions,
    },
    unwind::{TextSegment, address_of},
};
use aiprof_system::files::rights;
use aiprof_system::os::process;
use aiprof_system::{
    files::others,
    workers::{Outcome, Owner, Pool, PoolLimits, Refused, Ticket},
};
use rustc_hash::{FxHashMap, FxHashSet};
use rustix::fs::StatxFlags;
use std::{
    collections::BTreeMap,
    os::fd::{AsFd as _, OwnedFd},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Most addresses whose names are kept from one window to the next.
const MAX_KEPT: usize = 1 << 16;
/// Longest wait for names at the end of a window, for work that goes on.
const SETTLE: Duration = Duration::from_secs(20);
/// How long a job may hang then, the first time and later in the same window.
const HANGS: [Duration; 2] = [Duration::from_millis(500), Duration::from_millis(150)];
/// How long look-ups in a file wait for more of them, as a multiple of the time that the last one
/// took. To read some debug files takes long, and much memory, so they are not kept.
const PAUSE: u32 = 20;
/// A look-up that takes less than this causes no wait.
const QUICK: Duration = Duration::from_millis(10);
/// How soon names are asked for again whose debug file is being fetched: at first, and
/// at most.
const FETCHES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(8));
/// How long a user waits after two jobs that took too long.
const PENALTY: Duration = Duration::from_secs(30);
/// Processes of a user that may hang.
const MAX_STUCK: usize = 2;
/// Most processes with JIT code in a window.
const MAX_JIT: usize = 1 << 16;
/// Most jitdump files held open.
const MAX_DUMPS: usize = 64;
/// Most users accounts are kept of.
const MAX_ACCOUNTS: usize = 4096;
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

/// Names, text segments by file, control group paths by id.
pub type StoredNames = (
    Vec<(Code, Vec<SymFrame>)>,
    Vec<(u32, Vec<TextSegment>)>,
    Vec<(u64, String)>,
);

/// A job on its way.
#[derive(Clone)]
struct Work {
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
struct Asked {
    codes: Vec<Code>,
    owner: Owner,
    work: Work,
}

/// What a user's jobs have cost so far.
#[derive(Default)]
struct Account {
    /// Processes that hang.
    stuck: Arc<AtomicUsize>,
    /// Jobs that took too long in a row.
    late: u32,
    /// No jobs until then.
    until: Option<Instant>,
}

/// A process with JIT code, as it was when its first was seen.
#[derive(Clone)]
struct JitProcess {
    started: u64,
    owner: Owner,
    /// Its effective user.
    uid: u32,
    /// Its jitdump file, as it calls it; and open, as soon as it was asked for.
    path: Option<Rc<str>>,
    dump: Option<Arc<OwnedFd>>,
}

/// A process that uses a file.
#[derive(Clone, Copy)]
struct User {
    pid: u32,
    owner: Owner,
    /// The lowest is best: trusted, nothing against it, jobs of this user hang.
    rank: u8,
}

/// Finds names, and keeps those that it has found.
pub(crate) struct NameService {
    files: Pool<Work, Named>,
    /// `None`: kernel functions have no names.
    kernel: Option<KernelNamer>,
    patience: Arc<Patience>,
    asked: FxHashMap<Ticket, Asked>,
    /// Codes that are being looked up.
    open: FxHashSet<Code>,
    accounts: FxHashMap<Owner, Account>,
    /// Codes whose names took too long: asked for again in the next window.
    late: FxHashSet<Code>,
    /// Whether something hung at the end of this window.
    hung: bool,
    names: FxHashMap<Code, Vec<SymFrame>>,
    texts: FxHashMap<u32, Vec<TextSegment>>,
    /// Times from which on names of JIT code hold, ascending.
    changes: FxHashMap<Code, Vec<u64>>,
    /// The processes with JIT code; `None`: one had ended when its first was seen.
    jit: FxHashMap<u32, Option<JitProcess>>,
    cgroups: FxHashMap<u64, Option<String>>,
    /// Codes of files that were closed: to be asked for again once these are open.
    closed: Vec<Code>,
    /// Files that are not asked for names before then.
    paused: FxHashMap<u32, Instant>,
    /// Their codes.
    waiting: Vec<Code>,
    /// Codes of files whose debug files are being fetched, by file.
    fetching: FxHashMap<u32, Fetching>,
}

/// Codes that must be asked for again.
struct Fetching {
    codes: Vec<Code>,
    again: Instant,
    pause: Duration,
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
            accounts: FxHashMap::default(),
            late: FxHashSet::default(),
            hung: false,
            names: FxHashMap::default(),
            texts: FxHashMap::default(),
            changes: FxHashMap::default(),
            jit: FxHashMap::default(),
            cgroups: FxHashMap::default(),
            closed: Vec::new(),
            paused: FxHashMap::default(),
            waiting: Vec::new(),
            fetching: FxHashMap::default(),
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
        let now = Instant::now();
        self.paused.retain(|_, until| !last && *until > now);
        let waiting = std::mem::take(&mut self.waiting);
        let mut by_file: BTreeMap<u32, Vec<(Code, u64)>> = BTreeMap::new();
        self.ask_fetched(&mut by_file, binaries, last);
        let mut by_process: BTreeMap<u32, Vec<Code>> = BTreeMap::new();
        let mut kernel = Vec::new();
        for &code in waiting.iter().chain(codes) {
            if self.names.contains_key(&code) || self.open.contains(&code) {
                continue;
            }
            match code {
                Code::File { file, .. } if self.paused.contains_key(&file) => {
                    self.waiting.push(code);
                }
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
                Code::Kernel { address } => kernel.push(address),
                Code::Jit { pid, .. }
                | Code::JavaMethod { pid, .. }
                | Code::JsFunction { pid, .. } => {
                    by_process.entry(pid).or_default().push(code);
                }
                Code::Special(_)
                | Code::Cut(_)
                | Code::Function { .. }
                | Code::Device
                | Code::Work { .. }
                | Code::Op { .. }
                | Code::NoStack(_)
                | Code::Wait(_)
                | Code::Python { .. }
                | Code::CutIn(..)
                | Code::JitSince { .. } => {}
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

    /// Asks again for what had no debug file yet, of each file now and then, or with `last`
    /// of all. The names that they have meanwhile stay until there are others.
    fn ask_fetched(
        &mut self,
        by_file: &mut BTreeMap<u32, Vec<(Code, u64)>>,
        binaries: &Binaries,
        last: bool,
    ) {
        let now = Instant::now();
        for (&file, fetching) in &mut self.fetching {
            let binary = binaries.get(FileId(file)).filter(|b| b.open().is_some());
            let (Some(binary), true) = (binary, last || fetching.again <= now) else {
                continue;
            };
            fetching.pause = (fetching.pause * 2).min(FETCHES.1);
            fetching.again = now + fetching.pause;
            let wanted = std::mem::take(&mut fetching.codes).into_iter();
            let wanted = wanted.filter_map(|code| match code {
                Code::File { offset, .. } => {
                    let address = address_of(&binary.text, offset).unwrap_or(offset);
                    Some((code, address))
                }
                _ => None,
            });
            by_file.entry(file).or_default().extend(wanted);
        }
        by_file.retain(|_, wanted| !wanted.is_empty());
    }

    /// Notes whether the debug file of these codes, all of one file, is being fetched.
    fn note_fetching(&mut self, codes: &[Code], is_fetching: bool) {
        let Some(&Code::File { file, .. }) = codes.first() else {
            return;
        };
        if !is_fetching {
            let done = |f: &mut Fetching| f.codes.is_empty();
            if self.fetching.get_mut(&file).is_some_and(done) {
                self.fetching.remove(&file);
            }
            return;
        }
        let known = self.fetching.entry(file).or_insert_with(|| Fetching {
            codes: Vec::new(),
            again: Instant::now() + FETCHES.0,
            pause: FETCHES.0,
        });
        known.codes.extend(codes);
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
        let is_of_user = |asked: &Asked| !is_waited_for(asked.owner);
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

    /// The codes of files that were not open when their names were asked for.
    pub(crate) fn take_closed(&mut self) -> Vec<Code> {
        std::mem::take(&mut self.closed)
    }

    /// Takes in the answers that are there.
    fn collect(&mut self) {
        for (ticket, outcome) in self.files.answers() {
            if let Some(asked) = self.asked.remove(&ticket) {
                self.take_answer(asked, outcome);
            }
        }
    }

    fn take_answer(&mut self, asked: Asked, outcome: Outcome<Named>) {
        match outcome {
            Outcome::Done((Ok((answer, dump)), took)) => {
                let process = asked.codes.first().and_then(Code::named_by);
                if let (Some(dump), Some(pid)) = (dump, process)
                    && let Some(Some(process)) = self.jit.get_mut(&pid)
                {
                    process.dump = Some(Arc::new(dump));
                }
                if let (Some(Code::File { file, .. }), true) = (asked.codes.first(), took > QUICK) {
                    self.paused.insert(*file, Instant::now() + took * PAUSE);
                }
                if let Some(account) = self.accounts.get_mut(&asked.owner) {
                    account.late = 0;
                }
                for warning in answer.warnings {
                    tracing::warn!("{warning}");
                }
                self.note_fetching(&asked.codes, answer.is_fetching);
                self.take_changes(&asked.codes, answer.changes);
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
        let named = codes.into_iter().zip(frames);
        self.names
            .extend(named.filter(|(_, frames)| !frames.is_empty()));
    }

    /// Takes in what was at addresses of JIT code in the course of time.
    fn take_changes(&mut self, codes: &[Code], changes: Vec<AddressChange>) {
        for code in codes {
            self.changes.remove(code);
        }
        for change in changes {
            let code = codes.get(change.address as usize).copied();
            let Some(code @ Code::Jit { pid, address }) = code else {
                continue;
            };
            let since = change.since;
            self.changes.entry(code).or_default().push(since);
            let code = Code::JitSince {
                pid,
                address,
                since,
            };
            self.names.insert(code, change.frames);
        }
    }

    /// A job took too long. What hung may be the root directory of a process that
    /// happens to map the file: the file is asked once more without it.
    fn too_long(&mut self, mut asked: Asked) {
        if let Some(account) = self.accounts.get_mut(&asked.owner) {
            account.late += 1;
            if account.late >= 2 {
                account.until = Some(Instant::now() + PENALTY);
            }
        }
        if let Work {
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
    fn give_up(&mut self, asked: &Asked) {
        for code in &asked.codes {
            self.open.remove(code);
            if code.named_by().is_some() && self.names.contains_key(code) {
                // It was asked again only to learn what it has become.
                continue;
            }
            self.names.insert(*code, vec![asked.work.job.too_long()]);
            self.late.insert(*code);
        }
    }

    /// Hands over a job. Returns false if too many wait.
    fn give(&mut self, owner: Owner, mut asked: Asked) -> bool {
        if self.accounts.len() >= MAX_ACCOUNTS && !self.accounts.contains_key(&owner) {
            self.accounts
                .retain(|_, a| a.stuck.load(Ordering::Relaxed) > 0);
        }
        let account = self.accounts.entry(owner).or_default();
        asked.work.stuck = Arc::clone(&account.stuck);
        asked.owner = owner;
        if account.until.is_some_and(|until| Instant::now() < until) {
            self.give_up(&asked);
            return true;
        }
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
        let mut users = self.users(processes, by_file.keys().copied());
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

    /// For each of `files`, a live process that maps it, if there is one. The debug files of this
    /// process are looked for, on the account of its user. Trusted processes are preferred, and
    /// then those whose user does not wait: no user should make others' names take long by mapping
    /// their files.
    fn users(
        &self,
        processes: &ProcessTable,
        files: impl Iterator<Item = u32>,
    ) -> FxHashMap<u32, Option<User>> {
        let mut users: FxHashMap<u32, Option<User>> = files.map(|file| (file, None)).collect();
        let mut open = users.len();
        for (pid, process) in processes.iter().filter(|(_, p)| p.exited_ns.is_none()) {
            if open == 0 {
                break;
            }
            let mut own = None;
            for mapping in &process.space.maps {
                let Some(user) = users.get_mut(&mapping.file.0) else {
                    continue;
                };
                if user.is_some_and(|user| user.rank == 0) {
                    continue;
                }
                let Some(own) = *own.get_or_insert_with(|| self.user(pid)) else {
                    break;
                };
                if user.is_none_or(|user| own.rank < user.rank) {
                    *user = Some(own);
                    open -= usize::from(own.rank == 0);
                }
            }
        }
        users
    }

    /// A process that uses files; `None`: it has gone.
    fn user(&self, pid: u32) -> Option<User> {
        let owner = owner_of(pid)?;
        let waits =
            |account: &Account| account.stuck.load(Ordering::Relaxed) > 0 || account.late > 0;
        let rank = match owner {
            owner if owner::is_trusted(owner) => 0,
            owner => 1 + u8::from(self.accounts.get(&owner).is_some_and(waits)),
        };
        Some(User { pid, owner, rank })
    }

    fn ask_jit(
        &mut self,
        by_process: BTreeMap<u32, Vec<Code>>,
        processes: &ProcessTable,
        (binaries, javas): (&Binaries, &Javas),
    ) -> bool {
        let mut taken = true;
        for (pid, codes) in by_process {
            let Some(process) = self.jit_process(pid, processes) else {
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
                addresses,
            };
            let mut asked = asked(codes, job, None);
            asked.work.dump = process.dump;
            taken &= self.give(process.owner, asked);
        }
        taken
    }

    /// A process with JIT code that can be named. `None`: it has ended, and its number may belong
    /// to another process, which must not name what this one ran. What it wrote when it ended is
    /// still read until another process has its number.
    fn jit_process(&mut self, pid: u32, processes: &ProcessTable) -> Option<JitProcess> {
        let now = process::start_time(pid);
        if self.jit.len() >= MAX_JIT && !self.jit.contains_key(&pid) {
            return None;
        }
        let held = self.jit.values().flatten();
        let held = held.filter(|process| process.dump.is_some()).count();
        let process = self.jit.entry(pid).or_insert_with(|| {
            Some(JitProcess {
                started: now?,
                owner: owner_of(pid)?,
                uid: owner::effective_uid_of(pid)?,
                path: None,
                dump: None,
            })
        });
        let process = process.as_mut()?;
        match now {
            Some(now) if now == process.started => {
                let known = processes.get(pid);
                let path = known.and_then(|known| known.space.generated.dump.clone());
                if process.path.is_none() && held < MAX_DUMPS {
                    process.path = path;
                }
                Some(process.clone())
            }
            Some(_) => None,
            None => Some(process.clone()),
        }
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
                && (!self.names.contains_key(code) || last && self.has_dump(pid))
                && !self.open.contains(code)
            {
                jit.entry(pid).or_default().push(*code);
            }
        }
        // What is not taken now is asked for the next time.
        self.ask_jit(jit, processes, (binaries, javas));
    }

    /// Whether a process has a jitdump file, which records when its code changed.
    fn has_dump(&self, pid: u32) -> bool {
        let process = self.jit.get(&pid).and_then(Option::as_ref);
        process.is_some_and(|process| process.dump.is_some())
    }

    /// Looks up the paths of control groups.
    pub(crate) fn note_cgroups(&mut self, ids: impl Iterator<Item = u64>) {
        for id in ids {
            self.cgroups
                .entry(id)
                .or_insert_with(|| super::cgroup::path_of(id));
        }
    }

    /// Keeps, between windows, what may be asked for again: the names that this window `used`, of
    /// files that are still known according to `keep`.
    pub(crate) fn trim(&mut self, used: &FxHashSet<Code>, keep: impl Fn(FileId) -> bool) {
        // Other memory may hold something else by the next window, and what hung
        // may not hang then.
        let mut late = std::mem::take(&mut self.late);
        // By the next window their debug files may be there.
        for (_, fetching) in self.fetching.drain() {
            late.extend(fetching.codes);
        }
        self.hung = false;
        self.jit.clear();
        self.changes.clear();
        self.names.retain(|code, _| match code {
            Code::File { file, .. } => {
                used.contains(code) && keep(FileId(*file)) && !late.contains(code)
            }
            _ => false,
        });
        if self.names.len() > MAX_KEPT {
            self.names.clear();
        }
        self.names.shrink_to(2 * self.names.len());
        self.texts.retain(|&file, _| keep(FileId(file)));
        self.paused.retain(|&file, _| keep(FileId(file)));
        if self.cgroups.len() > MAX_KEPT {
            self.cgroups.clear();
        }
    }

    /// What a capture stores: the names of `codes`, the text segments of all
    /// named files, the paths of control groups.
    pub(crate) fn stored(&self, codes: &[Code]) -> StoredNames {
        let named = |code: Code| Some((code, self.names.get(&code)?.clone()));
        let at_all_times = |&code: &Code| {
            let changes = self.changes.get(&code).into_iter().flatten();
            let changed = changes.filter_map(move |&since| match code {
                Code::Jit { pid, address } => Some(Code::JitSince {
                    pid,
                    address,
                    since,
                }),
                _ => None,
            });
            std::iter::once(code).chain(changed)
        };
        let texts = self
            .texts
            .iter()
            .map(|(&file, text)| (file, text.clone()))
            .collect();
        let path = |(&id, path): (&u64, &Option<String>)| Some((id, path.clone()?));
        (
            codes
                .iter()
                .flat_map(at_all_times)
                .filter_map(named)
                .collect(),
            texts,
            self.cgroups.iter().filter_map(path).collect(),
        )
    }
}

impl NameSource for NameService {
    fn frames(&self, code: &Code) -> &[SymFrame] {
        self.names.get(code).map_or(&[], Vec::as_slice)
    }

    fn changes(&self, code: &Code) -> &[u64] {
        self.changes.get(code).map_or(&[], Vec::as_slice)
    }

    fn file_address(&self, file: u32, offset: u64) -> u64 {
        let text = self.texts.get(&file).map_or(&[][..], Vec::as_slice);
        address_of(text, offset).unwrap_or(offset)
    }

    fn cgroup(&self, id: u64) -> Option<&str> {
        self.cgroups.get(&id)?.as_deref()
    }
}

/// A thread that waits for a process which names.
fn do_work(
    client: &mut Client,
    work: &Work,
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

fn asked(codes: Vec<Code>, job: SymbolizeJob, file: Option<Arc<OpenFile>>) -> Asked {
    Asked {
        codes,
        owner: Owner::default(),
        work: Work {
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
