//! Reads of other users' processes, which may never return. A page of their memory can be
//! one of a file system of their own, or wait for userfaultfd, and the lock of their
//! mappings can be held. Such a read is done on a thread of its own, which is given up if
//! it takes too long. An owner with two such threads is not read any more until they
//! return. The processes of root and of the caller are read at once.
//!
//! Memory is read by a process that can be left behind ([`aiprof_system::remote`]). Where a
//! page is of a file system of that user, not even the end of the reading process ends the
//! wait.

use super::ReadMemory;
use crate::locking::lock;
use crate::owner;
use aiprof_system::{
    files::kernel,
    os::privileges,
    remote::{Client, Line, MEMORY, Remote},
    workers::Owner,
};
use rustc_hash::FxHashMap;
use std::{
    cell::Cell,
    fs::File,
    io,
    os::{fd::AsFd as _, unix::fs::FileExt as _},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender},
    },
    thread,
    time::{Duration, Instant},
};

/// How long one read may take: a page may have to come from a slow disk.
const PATIENCE: Duration = Duration::from_millis(500);
/// The same once a recording ends.
const HURRIED: Duration = Duration::from_millis(60);
/// How often it is looked whether it does.
const STEP: Duration = Duration::from_millis(20);
/// Most threads of one owner that do not return.
const STUCK_OF_OWNER: usize = 2;
/// Most threads in all that do not return.
const STUCK: usize = 16;
/// Most bytes of one read.
const MAX_READ: usize = 1 << 20;

/// The threads that do not return, by owner.
static GIVEN_UP: Mutex<Option<FxHashMap<Owner, usize>>> = Mutex::new(None);

/// Processes that were left behind, by owner.
static LEFT: Mutex<Vec<(Owner, Arc<Remote>)>> = Mutex::new(Vec::new());

/// A recording ends.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Whether a recording ends: then reads of others have less time.
pub(crate) fn set_ending(is_ending: bool) {
    IS_ENDING.store(is_ending, Ordering::Relaxed);
}

/// Waits for an answer.
fn wait<T>(answers: &Receiver<T>, patience: Duration) -> Option<T> {
    let begun = Instant::now();
    loop {
        match answers.recv_timeout(STEP.min(patience)) {
            Ok(answer) => return Some(answer),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {}
        }
        let is_ending = IS_ENDING.load(Ordering::Relaxed);
        let patience = if is_ending {
            patience.min(HURRIED)
        } else {
            patience
        };
        if begun.elapsed() >= patience {
            return None;
        }
    }
}

fn given_up() -> MutexGuard<'static, Option<FxHashMap<Owner, usize>>> {
    lock(&GIVEN_UP)
}

/// Whether an owner is not read any more.
fn is_refused(owner: Owner) -> bool {
    let mut left = lock(&LEFT);
    left.retain(|(_, remote)| !remote.is_gone());
    let (all, own) = (left.len(), left.iter().filter(|(o, _)| *o == owner).count());
    drop(left);
    let threads = given_up();
    let threads = threads.as_ref();
    let own = own
        + threads
            .and_then(|all| all.get(&owner).copied())
            .unwrap_or(0);
    let all = all + threads.map_or(0, |all| all.values().sum::<usize>());
    own >= STUCK_OF_OWNER || all >= STUCK
}

/// Counts a thread that does not return.
fn give_up(owner: Owner) {
    let mut all = given_up();
    *all.get_or_insert_default().entry(owner).or_default() += 1;
}

/// It has returned.
fn is_back(owner: Owner) {
    let mut all = given_up();
    let all = all.get_or_insert_default();
    if let Some(own) = all.get_mut(&owner) {
        *own = own.saturating_sub(1);
        if *own == 0 {
            all.remove(&owner);
        }
    }
}

/// Does something with a process of this owner that may never return. `None`: it did
/// not in time, or was not even tried.
fn patiently<T: Send + 'static>(
    owner: Owner,
    patience: Duration,
    read: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    if owner::is_trusted(owner) {
        return Some(read());
    }
    if is_refused(owner) {
        return None;
    }
    // The second message is not received any more, if the first came too late.
    let (sender, receiver) = mpsc::sync_channel(0);
    let started = thread::Builder::new()
        .name("aiprof-read".into())
        .spawn(move || {
            if sender.send(read()).is_err() {
                is_back(owner);
            }
        });
    started.ok()?;
    let read = wait(&receiver, patience);
    if read.is_none() {
        give_up(owner);
    }
    read
}

/// At most `limit` bytes of a file of /proc that shows memory of a process.
pub fn shown(pid: u32, path: &str, limit: usize) -> Option<Vec<u8>> {
    let file = kernel::open(path).ok()?;
    let owner = owner::owner_of(pid);
    if owner::is_trusted(owner) {
        return Some(read_here(&file, 0, limit));
    }
    let mut bytes = vec![0; limit.min(MAX_READ)];
    let n = Guarded::new(owner, file)?.read(0, &mut bytes);
    bytes.truncate(n);
    Some(bytes)
}

/// [`patiently`], for a few pages of one process.
pub(crate) fn quickly<T: Send + 'static>(
    pid: u32,
    read: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    patiently(owner::owner_of(pid), PATIENCE / 4, read)
}

/// The memory of a process that may not answer.
#[derive(Debug)]
pub(super) struct Guarded {
    owner: Owner,
    client: Arc<Client>,
    requests: SyncSender<(u64, usize)>,
    answers: Receiver<Vec<u8>>,
    /// It did not answer once, and is not asked again.
    is_lost: Cell<bool>,
}

impl Guarded {
    /// Starts the thread that reads. `None`: it cannot be started, or others do not
    /// return.
    pub(super) fn new(owner: Owner, file: File) -> Option<Self> {
        if is_refused(owner) {
            return None;
        }
        let (requests, wanted) = mpsc::sync_channel(1);
        let (found, answers) = mpsc::sync_channel(0);
        let client = Arc::new(Client::new(MEMORY));
        let remote = Arc::clone(&client);
        thread::Builder::new()
            .name("aiprof-read".into())
            .spawn(move || {
                for (address, len) in wanted {
                    let bytes = read_remotely(&remote, &file, address, len);
                    if found.send(bytes).is_err() {
                        is_back(owner);
                    }
                }
            })
            .ok()?;
        Some(Self {
            owner,
            client,
            requests,
            answers,
            is_lost: Cell::new(false),
        })
    }
}

impl ReadMemory for Guarded {
    fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..).filter(|r| !r.is_empty()) {
            let len = rest.len().min(MAX_READ);
            let Some(at) = address.checked_add(done as u64) else {
                break;
            };
            if self.is_lost.get() || self.requests.send((at, len)).is_err() {
                break;
            }
            let Some(bytes) = wait(&self.answers, PATIENCE) else {
                self.is_lost.set(true);
                give_up(self.owner);
                if let Some(remote) = self.client.give_up() {
                    let mut left = lock(&LEFT);
                    left.push((self.owner, remote));
                }
                break;
            };
            let Some(to) = rest.get_mut(..bytes.len()) else {
                break;
            };
            to.copy_from_slice(&bytes);
            done += bytes.len();
            if bytes.len() < len {
                break;
            }
        }
        done
    }
}

/// What is at an address of a process: read by another process, or here where there
/// is none to do it, as in tests.
fn read_remotely(client: &Client, file: &File, address: u64, len: usize) -> Vec<u8> {
    match client.call(&(address, len as u64), &[file.as_fd()]) {
        Ok((bytes, _)) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotConnected => read_here(file, address, len),
        Err(_) => Vec::new(),
    }
}

fn read_here(file: &File, address: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len.min(MAX_READ)];
    let n = read_at(file, address, &mut bytes);
    bytes.truncate(n);
    bytes
}

/// Reads memory until the line is closed: each job is an address and a length, and
/// comes with the memory.
pub fn serve(line: &Line) {
    aiprof_system::os::scheduling::take_turns();
    if let Err(error) = privileges::drop_to(rustix::thread::CapabilitySet::SYS_PTRACE) {
        tracing::debug!("{error}");
    }
    line.serve(|(address, len): (u64, u64), fds| {
        let file = fds.into_iter().next().map(File::from);
        let len = usize::try_from(len).unwrap_or(MAX_READ);
        let bytes = file.map_or_else(Vec::new, |file| read_here(&file, address, len));
        (bytes, Vec::new())
    });
}

/// Reads at an address of a process; how many bytes could be read.
pub(super) fn read_at(file: &File, address: u64, buffer: &mut [u8]) -> usize {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|r| !r.is_empty()) {
        // The kernel takes addresses as signed file offsets.
        let Some(at) = address.checked_add(done as u64).filter(|a| a >> 63 == 0) else {
            break;
        };
        match file.read_at(rest, at) {
            Ok(n) if n > 0 => done += n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            _ => break,
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stranger(container: u64) -> Owner {
        Owner {
            uid: 4_000_000_000,
            container,
        }
    }

    #[test]
    fn a_read_that_does_not_return_costs_its_owner() {
        let short = Duration::from_millis(20);
        let owner = stranger(1);
        let (release, held) = mpsc::channel::<()>();
        let (second, other) = mpsc::channel::<()>();
        let first = patiently(owner, short, move || held.recv().is_ok());
        assert_eq!(first, None);
        assert_eq!(patiently(owner, Duration::from_mins(1), || 1), Some(1));
        assert_eq!(patiently(owner, short, move || other.recv().is_ok()), None);
        assert!(is_refused(owner));
        assert_eq!(patiently(owner, short, || 1), None);
        assert!(!is_refused(stranger(2)));
        drop((release, second));
        let begun = Instant::now();
        while is_refused(owner) && begun.elapsed() < Duration::from_mins(1) {
            thread::yield_now();
        }
        assert_eq!(patiently(owner, Duration::from_mins(1), || 1), Some(1));
    }

    #[test]
    fn guarded_memory_is_the_memory() {
        let bytes: Vec<u8> = (0..3 * MAX_READ).map(|n| (n % 251) as u8).collect();
        let file = File::open("/proc/self/mem").unwrap();
        let memory = Guarded::new(stranger(3), file).unwrap();
        let mut copy = vec![0; bytes.len()];
        assert_eq!(memory.read(bytes.as_ptr() as u64, &mut copy), bytes.len());
        assert!(copy == bytes);
        assert_eq!(memory.read(16, &mut copy), 0);
        assert_eq!(memory.read(u64::MAX - 4, &mut copy), 0);
    }
}
