//! Processes of this program for work that may never return.
//!
//! A read of a file system that another user serves (FUSE) does not end before it is answered, not
//! even by SIGKILL. A thread that waits so keeps its whole process from ending. So what may wait so
//! is done by processes that can be left behind.
//!
//! They are forked from a [nursery](start): a copy of this process, made before it
//! has threads and before it gives up privileges, which does nothing but fork. It has a
//! copy itself, which takes its place if it is killed.
//! Between a process and its client there is a [`Line`]: messages with descriptors.
//! A process ends when its line is closed, or, if it waits for ever, when that ends.
//! Then it holds nothing but its line: standard input, output and error are not its
//! own, and what it would print goes back with its answers.

mod nursery;
mod usage;

pub use usage::{
    PeakMemory, cpu_clock, cpu_time, cpu_time_of, give_back_memory, keep_little_memory,
    may_have_memory, memory_bytes, memory_bytes_of,
};

use crate::files::kernel;
use nursery::Nursery;
use rustix::{
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
    },
    process::{Pid, PidfdFlags, Signal},
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

/// Most bytes of a message.
const MAX_MESSAGE: usize = 64 << 20;
/// Most descriptors of a message.
pub const MAX_DESCRIPTORS: usize = 253;
/// Most lines that are printed with one answer.
const MAX_LINES: usize = 100;

/// How long a process has nothing to do until it gives back what its work took, and
/// after how long it does so in between.
const PAUSE: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(1);

/// What a process does until its line is closed.
pub type Serve = fn(&Line);

/// What the processes do, and where what they print goes.
#[derive(Clone, Copy, Debug)]
pub struct ProcessWork {
    /// What they can be asked to do, by number: [`READER`], [`NAMES`], [`MEMORY`].
    pub kinds: [Serve; 3],
    /// Prints a line.
    pub say: fn(&str),
}

/// Reads files for the recording.
pub const READER: u8 = 0;
/// Looks up names.
pub const NAMES: u8 = 1;
/// Reads other processes' memory.
pub const MEMORY: u8 = 2;

/// The way to the nursery.
static NURSERY: OnceLock<Mutex<Nursery>> = OnceLock::new();

/// [`ProcessWork::say`], once there is a nursery.
static SAY: OnceLock<fn(&str)> = OnceLock::new();

/// What this process, if it is one of those, would have printed.
static PRINTED: Mutex<Option<Vec<String>>> = Mutex::new(None);

/// One end of the connection between two processes.
#[derive(Debug)]
pub struct Line(OwnedFd);

impl Line {
    fn pair() -> io::Result<(Self, Self)> {
        let (own, other) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Self(own), Self(other)))
    }

    /// Sends a message. The descriptors stay open here.
    ///
    /// # Errors
    /// The other end is closed, or the message is too large.
    pub fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let body = postcard::to_stdvec(message).map_err(io::Error::other)?;
        if body.len() > MAX_MESSAGE || fds.len() > MAX_DESCRIPTORS {
            return Err(io::Error::other("message too large"));
        }
        let size = (body.len() as u64).to_le_bytes();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        // At once, so that the other end wakes up once. The descriptors go with the
        // first bytes, among which the kernel sends the eight of the size.
        let parts = [IoSlice::new(&size), IoSlice::new(&body)];
        let sent = rustix::net::sendmsg(&self.0, &parts, &mut control, SendFlags::NOSIGNAL)?;
        let sent = sent.checked_sub(size.len());
        let mut rest = sent
            .and_then(|n| body.get(n..))
            .ok_or(io::ErrorKind::WriteZero)?;
        while !rest.is_empty() {
            let sent = rustix::net::send(&self.0, rest, SendFlags::NOSIGNAL)?;
            rest = rest.get(sent..).unwrap_or_default();
        }
        Ok(())
    }

    /// Receives a message.
    ///
    /// # Errors
    /// The other end is closed, or it is no message of this type.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<(T, Vec<OwnedFd>)> {
        let mut size = [0; 8];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = loop {
            let got = rustix::net::recvmsg(
                &self.0,
                &mut [IoSliceMut::new(&mut size)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL,
            );
            match got {
                Err(rustix::io::Errno::INTR) => {}
                other => break other?,
            }
        };
        if got.bytes != size.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        let size = usize::try_from(u64::from_le_bytes(size)).unwrap_or(usize::MAX);
        if size > MAX_MESSAGE {
            return Err(io::Error::other("message too large"));
        }
        let mut body = vec![0; size];
        let mut at = 0;
        while let Some(rest) = body.get_mut(at..).filter(|rest| !rest.is_empty()) {
            match rustix::net::recv(&self.0, rest, RecvFlags::empty()) {
                Ok((_, 0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((_, n)) => at += n,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let message = postcard::from_bytes(&body).map_err(io::Error::other)?;
        Ok((message, fds))
    }

    /// Answers what comes until the other end is closed. What would be printed
    /// meanwhile goes with the answers.
    pub fn serve<J, R>(&self, mut work: impl FnMut(J, Vec<OwnedFd>) -> (R, Vec<OwnedFd>))
    where
        J: DeserializeOwned,
        R: Serialize,
    {
        let mut tidied = Instant::now();
        while let Ok((job, fds)) = self.receive::<J>() {
            let (answer, fds) = work(job, fds);
            let mut printed = PRINTED.lock().unwrap_or_else(PoisonError::into_inner);
            let lines = printed.as_mut().map(std::mem::take).unwrap_or_default();
            drop(printed);
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            if self.send(&(&answer, lines), &fds).is_err() {
                return;
            }
            drop(answer);
            if tidied.elapsed() > LONG || !self.has_message(PAUSE) {
                give_back_memory();
                tidied = Instant::now();
            }
        }
    }

    /// Whether a message begins to come within this time, or the other end is closed.
    fn has_message(&self, most: Duration) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        let limit = Timespec::try_from(most).unwrap_or_default();
        matches!(poll(&mut polled, Some(&limit)), Ok(1))
    }
}

/// Keeps a line to print for the client, in a process that does work for another; `false` in all
/// others.
pub fn divert(line: &str) -> bool {
    let mut printed = PRINTED.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(lines) = printed.as_mut() else {
        return false;
    };
    if lines.len() < MAX_LINES {
        lines.push(line.to_owned());
    }
    true
}

/// Processes that were forked, the nursery first.
static PROCESSES: Mutex<usage::Processes> = Mutex::new(usage::Processes::none());

/// A process that works for this one.
#[derive(Debug)]
pub struct Remote {
    line: Line,
    pid: i32,
    process: OwnedFd,
}

impl Remote {
    /// A new process that does this kind of work.
    ///
    /// # Errors
    /// There is no nursery, or it cannot fork.
    pub fn new(kind: u8) -> io::Result<Self> {
        let nursery = NURSERY.get().ok_or(io::ErrorKind::NotConnected)?;
        let mut nursery = nursery.lock().unwrap_or_else(PoisonError::into_inner);
        let add = |pid, process| {
            let mut processes = PROCESSES.lock().unwrap_or_else(PoisonError::into_inner);
            processes.add(pid, process);
        };
        // A copy that is gone by now used nothing.
        let copied = |pid| pidfd(pid).map_or((), |process| add(pid, process));
        let (line, pid) = nursery.fork(kind, copied)?;
        drop(nursery);
        let process = pidfd(pid)?;
        add(pid, process.try_clone()?);
        Ok(Self { line, pid, process })
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Has it do something, and waits for the answer.
    ///
    /// # Errors
    /// It is gone, or was given up from another thread.
    pub fn call<J: Serialize, R: DeserializeOwned>(
        &self,
        job: &J,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<(R, Vec<OwnedFd>)> {
        self.ask(job, fds)?;
        self.answer()
    }

    /// Gives it a job; [`Remote::answer`] takes the answer.
    ///
    /// # Errors
    /// It is gone.
    pub fn ask(&self, job: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.line.send(job, fds)
    }

    /// Whether the answer begins to come within this time.
    pub fn is_answering(&self, most: Duration) -> bool {
        self.line.has_message(most)
    }

    /// Waits for the answer. Lines that were printed meanwhile are printed here.
    ///
    /// # Errors
    /// It is gone, or was given up from another thread.
    pub fn answer<R: DeserializeOwned>(&self) -> io::Result<(R, Vec<OwnedFd>)> {
        let ((answer, lines), fds) = self.line.receive::<(R, Vec<String>)>()?;
        for line in lines {
            if let Some(say) = SAY.get() {
                say(&line);
            }
        }
        Ok((answer, fds))
    }

    /// Ends the wait of whoever waits for its answer, and ends it if that is possible.
    pub fn give_up(&self) {
        // Both fail only if it is gone already, which is the aim.
        let _ = rustix::net::shutdown(&self.line.0, Shutdown::Both);
        let _ = rustix::process::pidfd_send_signal(&self.process, Signal::KILL);
    }

    /// Whether it has ended.
    pub fn is_gone(&self) -> bool {
        has_ended(&self.process)
    }
}

fn pidfd(pid: i32) -> io::Result<OwnedFd> {
    let id = Pid::from_raw(pid).ok_or_else(|| io::Error::other("fork failed"))?;
    Ok(rustix::process::pidfd_open(id, PidfdFlags::empty())?)
}

/// Whether the process of a pidfd has ended.
fn has_ended(process: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::new(process, PollFlags::IN)];
    matches!(poll(&mut polled, Some(&Timespec::default())), Ok(1))
}

/// Makes the nursery. To be called while this process has one thread and all the
/// privileges that the work needs. Does nothing if there is one already.
///
/// # Errors
/// fork(2)'s, or that there are more threads already.
pub fn start(work: ProcessWork) -> io::Result<()> {
    if NURSERY.get().is_some() {
        return Ok(());
    }
    let threads = kernel::read_dir("/proc/self/task")?.len();
    if threads != 1 {
        return Err(io::Error::other(format!(
            "{threads} threads are already running"
        )));
    }
    let (own, other) = Line::pair()?;
    // SAFETY: this process has one thread, so that the child is a whole copy of it.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(own);
            // A panic must not go on in what this process is a copy of.
            let _ = catch_unwind(AssertUnwindSafe(|| nursery::run(&other, &work.kinds)));
            exit()
        }
        pid => {
            let mut processes = PROCESSES.lock().unwrap_or_else(PoisonError::into_inner);
            processes.add(pid, pidfd(pid)?);
            // It is there already only if two threads start it, and there is one.
            let _ = NURSERY.set(Mutex::new(Nursery::new(own)));
            let _ = SAY.set(work.say);
            Ok(())
        }
    }
}

/// Whether there is a nursery.
pub fn is_started() -> bool {
    NURSERY.get().is_some()
}

/// Ends this process, without running what its original registered for its end.
fn exit() -> ! {
    // SAFETY: no memory is passed.
    unsafe { libc::_exit(0) }
}

/// Whether a task runs, or could if it had a CPU: then it does not hang.
pub fn is_runnable(task: i32) -> bool {
    let stat = kernel::read_to_string(format!("/proc/{task}/stat"));
    stat.is_ok_and(|stat| {
        let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
        state.is_some_and(|rest| rest.starts_with('R'))
    })
}

/// Processes of one kind of work, one at a time: what a thread of a pool uses
/// ([`crate::workers`]).
#[derive(Debug)]
pub struct Client {
    kind: u8,
    now: Mutex<Option<Arc<Remote>>>,
}

impl Client {
    /// None yet.
    pub fn new(kind: u8) -> Self {
        Self {
            kind,
            now: Mutex::new(None),
        }
    }

    /// [`Remote::call`] of the process there is, or of a new one.
    ///
    /// # Errors
    /// As there. [`io::ErrorKind::NotConnected`]: there is no nursery.
    pub fn call<J: Serialize, R: DeserializeOwned>(
        &self,
        job: &J,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<(R, Vec<OwnedFd>)> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let remote = match &*now {
            Some(remote) => Arc::clone(remote),
            None => Arc::clone(now.insert(Arc::new(Remote::new(self.kind)?))),
        };
        drop(now);
        remote.call(job, fds).inspect_err(|_| drop(self.give_up()))
    }

    /// Whether the process that there is works, and waits for nothing but a CPU.
    pub(crate) fn is_working(&self) -> bool {
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        now.as_ref().is_some_and(|remote| is_runnable(remote.pid))
    }

    /// Gives up the process that there is.
    pub fn give_up(&self) -> Option<Arc<Remote>> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let remote = now.take();
        if let Some(remote) = &remote {
            remote.give_up();
        }
        remote
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};

    #[test]
    fn messages_and_descriptors_arrive_whole() {
        let (one, other) = Line::pair().unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        let text = "x".repeat(1 << 20);
        let sender = std::thread::spawn(move || {
            one.send(&text, &[write.as_fd()]).unwrap();
            one.send(&7_u32, &[]).unwrap();
        });
        let (text, fds) = other.receive::<String>().unwrap();
        assert_eq!((text.len(), fds.len()), (1 << 20, 1));
        assert_eq!(other.receive::<u32>().unwrap().0, 7);
        sender.join().unwrap();
        for fd in fds {
            std::fs::File::from(fd).write_all(b"through").unwrap();
        }
        let mut text = String::new();
        std::fs::File::from(read).read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
        assert!(other.receive::<u32>().is_err());
    }

    #[test]
    fn without_a_nursery_nothing_is_remote() {
        let error = Client::new(READER).call::<_, u8>(&0_u8, &[]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotConnected);
        assert!(!divert("a line"));
    }
}
