//! The thread that answers programs, and what it has of each.

use super::message::{self, MAX_DATAGRAM, TorchMessage};
use super::socket::{DaemonSocket, Received, Sender};
use super::{TorchError, TorchOptions};
use crate::{clock, owner, procfs};
use aiprof_model::wire::{ClockPair, OpsRead};
use aiprof_system::files::exchange::ExchangeDirectory;
use aiprof_system::files::kernel;
use aiprof_system::os::{privileges, process};
use rustc_hash::{FxHashMap, FxHashSet};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::SocketAddrAny;
use rustix::thread::CapabilitySet;
use std::error::Error;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Where programs write: newer versions of Kineto write nowhere else.
const PARENT: &str = "/tmp";
/// Begin of the directories' names there.
const PREFIX: &str = "aiprof-torch-";
/// Kineto's own file of settings.
const SYSTEM_SETTINGS: &str = "/etc/libkineto.conf";
/// From an answer to the end of its window, without the window: Kineto begins one to two
/// seconds after it was asked (measured with torch 2.15).
const DELAY: Duration = Duration::from_secs(2);
/// How long after the end of a window its file is waited for.
const PATIENCE: Duration = Duration::from_secs(20);
/// The same when the recording is over.
const LAST_PATIENCE: Duration = Duration::from_secs(4);
/// Operators of a window that shows the program at work: after one with fewer the program
/// is asked again at once. The first window is often that of its imports.
const ENOUGH: u64 = 100;
/// How often files are looked for.
const LOOK: Duration = Duration::from_millis(50);
/// How often it is looked which programs have ended.
const TIDY: Duration = Duration::from_secs(1);
/// Most bytes of a file: about a million operators.
const MAX_BYTES: u64 = 1 << 30;
/// Most programs that are asked.
const MAX_PROGRAMS: usize = 1024;
/// Most directories, one for each user.
const MAX_USERS: usize = 64;
/// Most datagrams read between two looks for files.
const MAX_DATAGRAMS: usize = 64;
/// Windows that wait to be taken.
const MAX_REPORTS: usize = 16;
/// Most ancestors of a process that are looked at.
const MAX_ANCESTORS: usize = 64;

/// Reads the operators of a trace that a program wrote. The clocks are read when its window is
/// over; the function gives the thread of a trace's number, `None` if it is none.
pub type ReadOps =
    fn(File, &ClockPair, &dyn Fn(i64) -> Option<u32>) -> Result<OpsRead, Box<dyn Error>>;

/// The socket, before anybody sends to it.
#[derive(Debug)]
pub struct TorchDaemon {
    options: TorchOptions,
    read: ReadOps,
    socket: DaemonSocket,
    /// Where the command writes.
    directory: ExchangeDirectory,
    environment: Vec<(OsString, OsString)>,
}

impl TorchDaemon {
    /// Takes the daemon's name, and makes a directory for the command, which runs as
    /// `user` (user and group id). `read` reads what programs write. To be called before the
    /// command is forked.
    ///
    /// # Errors
    /// The name is taken, or there can be no such directory.
    pub fn prepare(
        options: TorchOptions,
        user: (u32, u32),
        read: ReadOps,
    ) -> Result<Self, TorchError> {
        let socket = DaemonSocket::bind().map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => TorchError::InUse,
            _ => TorchError::Socket(error),
        })?;
        let directory = ExchangeDirectory::create(Path::new(PARENT), PREFIX);
        let mut directory = directory.map_err(TorchError::Directory)?;
        let mut environment = vec![("KINETO_USE_DAEMON".into(), "1".into())];
        if !kernel::exists(SYSTEM_SETTINGS) {
            let settings = b"ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n";
            let path = directory.put("kineto.conf", settings);
            let path = path.map_err(TorchError::Directory)?;
            environment.push(("KINETO_CONFIG".into(), path.into()));
        }
        directory
            .give(user.0, user.1)
            .map_err(TorchError::Directory)?;
        Ok(Self {
            options,
            read,
            socket,
            directory,
            environment,
        })
    }

    /// Variables for the command's environment, where it has none of these names.
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        self.environment.clone()
    }

    /// Answers from now on. `roots`: processes that are asked, with their descendants.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start(self, roots: Vec<u32>) -> Result<(TorchGuard, TorchReports), TorchError> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = Arc::new(wake.map_err(|error| TorchError::Thread(error.into()))?);
        let shared = Arc::new(SharedReports::default());
        let (send, receive) = sync_channel(MAX_REPORTS);
        let service = Service {
            options: self.options,
            read: self.read,
            socket: self.socket,
            roots,
            directories: FxHashMap::from_iter([(self.directory.uid(), self.directory)]),
            programs: FxHashMap::default(),
            refused: FxHashSet::default(),
            told: FxHashSet::default(),
            shared: Arc::clone(&shared),
            wake: Arc::clone(&wake),
            reports: send,
            tidied: Instant::now(),
        };
        let thread = std::thread::Builder::new()
            .name("torch".into())
            .spawn(move || service.run())
            .map_err(TorchError::Thread)?;
        let guard = TorchGuard {
            wake,
            shared: Arc::clone(&shared),
            thread: Some(thread),
        };
        let reports = TorchReports {
            news: receive,
            shared,
        };
        Ok((guard, reports))
    }
}

/// Programs are answered until this is dropped.
#[derive(Debug)]
pub struct TorchGuard {
    wake: Arc<OwnedFd>,
    shared: Arc<SharedReports>,
    thread: Option<JoinHandle<()>>,
}

impl TorchGuard {
    /// Whether a program has asked whether to record.
    pub fn was_asked(&self) -> bool {
        self.shared.has_asked.load(Ordering::Acquire)
    }

    /// Whether a program has ended in a window.
    pub fn has_ended_program(&self) -> bool {
        self.shared.has_ended_program.load(Ordering::Acquire)
    }
}

impl Drop for TorchGuard {
    fn drop(&mut self) {
        // It cannot be full.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(
                "the thread that collects operators from PyTorch has failed: operators may be \
                 missing"
            );
        }
    }
}

/// What both sides know.
#[derive(Debug, Default)]
struct SharedReports {
    /// The recording is over: no program is asked any more.
    is_over: AtomicBool,
    /// Windows that are not reported yet.
    pending: AtomicUsize,
    /// A program has ended in a window.
    has_ended_program: AtomicBool,
    /// A program has asked whether to record.
    has_asked: AtomicBool,
}

/// What became known of a program.
#[derive(Debug)]
pub enum TorchNews {
    /// It is asked for a window, which begins a little later.
    Asked(u32),
    /// It reported a window.
    Answered(u32, OpsRead),
    /// It did not report a window.
    Unanswered(u32),
    /// What it reported cannot be read.
    Unreadable(u32),
}

/// The recording's end of the service.
#[derive(Debug)]
pub struct TorchReports {
    news: Receiver<TorchNews>,
    shared: Arc<SharedReports>,
}

impl TorchReports {
    /// What has become known.
    pub fn take(&self) -> impl Iterator<Item = TorchNews> {
        self.news.try_iter()
    }

    /// Ends the asking, and waits for what is under way: for some seconds after the end
    /// of a window, not at all for programs that have ended.
    pub fn finish(&self) -> Vec<TorchNews> {
        self.shared.is_over.store(true, Ordering::Release);
        let mut last = Vec::new();
        while self.shared.pending.load(Ordering::Acquire) > 0 {
            match self.news.recv_timeout(LOOK) {
                Ok(news) => last.push(news),
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
            }
        }
        last.extend(self.news.try_iter());
        last
    }
}

/// A program that asks.
#[derive(Debug)]
struct TorchProgram {
    uid: u32,
    /// When it is asked for its next window; `None`: not again.
    due: Option<Instant>,
    /// Number of its next window.
    next: u32,
    pending: Option<PendingWindow>,
}

/// A window that a program was asked for.
#[derive(Debug)]
struct PendingWindow {
    file: String,
    end: Instant,
}

/// The thread's own.
struct Service {
    options: TorchOptions,
    read: ReadOps,
    socket: DaemonSocket,
    roots: Vec<u32>,
    /// By user id.
    directories: FxHashMap<u32, ExchangeDirectory>,
    /// By process id.
    programs: FxHashMap<u32, TorchProgram>,
    /// Processes that were not wanted within the last second: anybody may ask often.
    refused: FxHashSet<u32>,
    /// Processes that were reported because they cannot be asked.
    told: FxHashSet<u32>,
    shared: Arc<SharedReports>,
    wake: Arc<OwnedFd>,
    reports: SyncSender<TorchNews>,
    tidied: Instant,
}

impl Service {
    fn run(mut self) {
        // It makes and empties directories of other users, and looks at their processes.
        let needed = privileges::READING
            | CapabilitySet::CHOWN
            | CapabilitySet::DAC_OVERRIDE
            | CapabilitySet::FOWNER;
        if let Err(error) = privileges::drop_to(needed) {
            tracing::warn!(
                "the thread that collects operators from PyTorch cannot drop privileges: {error}"
            );
        }
        let mut buffer = [0; MAX_DATAGRAM];
        while !self.wait() {
            for _ in 0..MAX_DATAGRAMS {
                match self.socket.receive(&mut buffer) {
                    Ok(Some(received)) => self.answer(&received, &buffer),
                    Ok(None) => break,
                    Err(error) => {
                        tracing::debug!("cannot read from PyTorch's socket: {error}");
                        break;
                    }
                }
            }
            self.look();
        }
    }

    /// Waits for datagrams; `true`: the service is over.
    fn wait(&self) -> bool {
        let is_any_pending = self
            .programs
            .values()
            .any(|program| program.pending.is_some());
        let pause = if is_any_pending { LOOK } else { TIDY };
        let pause = Timespec {
            tv_sec: pause.as_secs().cast_signed(),
            tv_nsec: pause.subsec_nanos().into(),
        };
        let mut fds = [
            PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, Some(&pause)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // Not to be seen; and never a loop without a pause.
            Err(_) => std::thread::sleep(LOOK),
        }
        let [_, wake] = &fds;
        wake.revents().contains(PollFlags::IN)
    }

    /// Answers a datagram, if it is one of the protocol.
    fn answer(&mut self, received: &Received, buffer: &[u8]) {
        let datagram = received.len.and_then(|len| buffer.get(..len));
        let Some(message) = datagram.and_then(message::parse) else {
            tracing::debug!(
                "ignored a datagram from {:?} that does not follow Kineto's protocol",
                received.sender
            );
            return;
        };
        let Some(to) = &received.address else {
            return;
        };
        match (message, received.sender) {
            (TorchMessage::Hello, _) => {
                let count = i32::try_from(self.programs.len()).unwrap_or(i32::MAX);
                self.socket.send(&message::welcome(count.max(1)), to);
            }
            (TorchMessage::Request { is_free: true }, Some(sender)) => self.request(sender, to),
            (TorchMessage::Request { .. }, _) => {
                self.socket.send(&message::answer(""), to);
            }
        }
    }

    /// Answers a program that could record now.
    fn request(&mut self, sender: Sender, to: &SocketAddrAny) {
        let config = self.config_for(sender);
        let answer = message::answer(config.as_ref().map_or("", |(text, _)| text));
        let is_sent = self.socket.send(&answer, to);
        let Some((_, window)) = config.filter(|_| is_sent) else {
            return;
        };
        if let Some(program) = self.programs.get_mut(&sender.pid) {
            program.pending = Some(window);
            program.next = program.next.wrapping_add(1);
            program.due = self.options.every.map(|every| Instant::now() + every);
            self.shared.pending.fetch_add(1, Ordering::AcqRel);
            self.report(TorchNews::Asked(sender.pid));
        }
    }

    /// The configuration of a program's next window; `None`: it has nothing to do now.
    fn config_for(&mut self, sender: Sender) -> Option<(String, PendingWindow)> {
        if self.shared.is_over.load(Ordering::Acquire) {
            return None;
        }
        let now = Instant::now();
        if !self.programs.contains_key(&sender.pid) {
            if self.programs.len() >= MAX_PROGRAMS || !self.is_wanted(sender) {
                return None;
            }
            let program = TorchProgram {
                uid: sender.uid,
                due: Some(now),
                next: 0,
                pending: None,
            };
            self.programs.insert(sender.pid, program);
            self.shared.has_asked.store(true, Ordering::Release);
        }
        let program = self.programs.get(&sender.pid)?;
        // A process may have become another user's, or another process.
        if program.due.is_none_or(|due| due > now)
            || program.pending.is_some()
            || program.uid != sender.uid
        {
            return None;
        }
        let name = format!("ops{}", program.next);
        let length = self.options.window;
        let directory = self.directory(sender)?;
        // A time to begin at would be a risk: what is in the past, or less than a second
        // ahead, Kineto drops without a word.
        let text = format!(
            "ACTIVITIES_LOG_FILE={}/{name}.json\n\
             ACTIVITIES_DURATION_MSECS={}\n\
             ACTIVITIES_WARMUP_PERIOD_SECS=0\n\
             ACTIVITY_TYPES=cpu_op,user_annotation\n\
             PROFILE_REPORT_INPUT_SHAPES=true\n\
             PROFILE_WITH_STACK=false\n\
             PROFILE_WITH_MODULES=false\n",
            directory.path().display(),
            length.as_millis(),
        );
        let window = PendingWindow {
            file: format!("{name}_{}.json", sender.pid),
            end: now + DELAY + length,
        };
        Some((text, window))
    }

    /// Whether a process is one of those that are asked, or was started by them.
    fn is_wanted(&mut self, sender: Sender) -> bool {
        if self.refused.len() >= MAX_PROGRAMS || self.refused.contains(&sender.pid) {
            return false;
        }
        let ancestors = std::iter::successors(Some(sender.pid), |&pid| process::parent(pid));
        let mut ancestors = ancestors.take(MAX_ANCESTORS);
        let is_wanted = ancestors.any(|pid| self.roots.contains(&pid)) && self.is_here(sender.pid);
        if !is_wanted {
            self.refused.insert(sender.pid);
        }
        is_wanted
    }

    /// Whether a process shares this one's files and process ids: another would write
    /// elsewhere, and number its threads otherwise.
    fn is_here(&mut self, pid: u32) -> bool {
        let is_here = ["pid", "mnt"].iter().all(|kind| {
            let of = |who: &str| kernel::read_link(format!("/proc/{who}/ns/{kind}")).ok();
            let own = of("self");
            own.is_some() && own == of(&pid.to_string())
        });
        if !is_here && self.told.len() < MAX_PROGRAMS && self.told.insert(pid) {
            tracing::warn!(
                "process {pid} runs PyTorch in a container, so its operators are not recorded"
            );
        }
        is_here
    }

    /// Where a program writes.
    fn directory(&mut self, sender: Sender) -> Option<&ExchangeDirectory> {
        let uid = owner::effective_uid_of(sender.pid)?;
        if uid != sender.uid {
            return None;
        }
        if !self.directories.contains_key(&uid) {
            if self.directories.len() >= MAX_USERS {
                return None;
            }
            let mut new = ExchangeDirectory::create(Path::new(PARENT), PREFIX).ok()?;
            if let Err(error) = new.give(uid, sender.gid) {
                tracing::warn!("operators of programs of user {uid} are not recorded: {error}");
                return None;
            }
            self.directories.insert(uid, new);
        }
        self.directories.get(&uid)
    }

    /// Looks for files, and forgets programs that have ended.
    fn look(&mut self) {
        let now = Instant::now();
        let patience = match self.shared.is_over.load(Ordering::Acquire) {
            true => LAST_PATIENCE,
            false => PATIENCE,
        };
        let pids: Vec<u32> = self.programs.keys().copied().collect();
        for pid in pids {
            self.look_for(pid, now, patience);
        }
        if self.tidied.elapsed() >= TIDY {
            self.tidied = now;
            self.refused.clear();
            let keep = |pid: &u32, program: &mut TorchProgram| {
                program.pending.is_some() || procfs::exists(*pid)
            };
            self.programs.retain(keep);
        }
    }

    fn look_for(&mut self, pid: u32, now: Instant, patience: Duration) {
        let Some(program) = self.programs.get(&pid) else {
            return;
        };
        let (Some(pending), Some(directory)) =
            (&program.pending, self.directories.get(&program.uid))
        else {
            return;
        };
        // First whether it lives: what it wrote before it ended is found.
        let has_ended = !procfs::exists(pid);
        let is_over = now > pending.end + patience || has_ended;
        let news = match directory.open(&pending.file, MAX_BYTES) {
            Ok(None) if is_over => {
                let ended = &self.shared.has_ended_program;
                ended.fetch_or(has_ended, Ordering::AcqRel);
                TorchNews::Unanswered(pid)
            }
            Ok(None) => return,
            Ok(Some(file)) => {
                let thread = |tid: i64| u32::try_from(tid).ok().filter(|&tid| tid != 0);
                match (self.read)(file, &clock::pair(), &thread) {
                    Ok(read) => TorchNews::Answered(pid, read),
                    Err(error) => {
                        tracing::warn!("cannot read operators of process {pid}: {error}");
                        TorchNews::Unreadable(pid)
                    }
                }
            }
            Err(error) => {
                tracing::warn!(
                    "cannot read operators of process {pid}: {}: {error}",
                    pending.file
                );
                TorchNews::Unreadable(pid)
            }
        };
        directory.remove(&pending.file);
        if let Some(program) = self.programs.get_mut(&pid) {
            program.pending = None;
            if let TorchNews::Answered(_, read) = &news
                && read.spans < ENOUGH
            {
                program.due = Some(now);
            }
        }
        self.report(news);
        self.shared.pending.fetch_sub(1, Ordering::AcqRel);
    }

    /// Reports without waiting: programs wait for their answers.
    fn report(&self, news: TorchNews) {
        if self.reports.try_send(news).is_err() && !self.shared.is_over.load(Ordering::Acquire) {
            tracing::warn!(
                "a window of PyTorch operators was lost: the recording did not accept it"
            );
        }
    }
}
