//! A job of several ranks on this machine, of which one is recorded and the others join.
//!
//! `mpirun -n 8 aiprof COMMAND` starts eight of this program, each of which would record the
//! whole machine. They know each other by their launcher: the nearest ancestor whose ranks
//! in the environment are not the own ones, together with what launchers call their jobs
//! ([`RankJob::of_this_process`]). The first of them takes a lock and records
//! ([`Recorder`], [`Others`]); the others connect to it and only run their commands
//! ([`Joined`]).
//!
//! A connection lasts as long as both sides do, so that each learns of the end of the
//! other, however it came. Every wait has a bound: a minute for a recording to begin, 5 s
//! for ranks that come late.

mod joined;
mod recorder;

pub use joined::{Joined, News};
pub use recorder::{Others, Recorder};

use crate::environment;
use aiprof_system::files::private::PrivateDirectory;
use aiprof_system::os::process;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a rank waits for the recording of another to begin.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long after its start a recording waits for ranks that have not come yet.
const LATECOMERS: Duration = Duration::from_secs(5);
/// How often the lock and the socket are tried meanwhile.
const AGAIN: Duration = Duration::from_millis(20);
/// Most ancestors that are looked at.
const MAX_ANCESTORS: usize = 64;
/// Most bytes of a variable that names a job.
const MAX_NAME: usize = 256;
/// Most bytes of a message.
const MAX_MESSAGE: usize = 32 << 10;
/// First line of a rank's message; another protocol is another number.
const HELLO: &str = "aiprof-join-1";

/// What launchers call their jobs. The launcher is one for all its ranks, but may have
/// several jobs.
const JOB_NAMES: [&str; 9] = [
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "PMI_JOBID",
    "PALS_APID",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_PORT",
];
/// How many ranks launchers start on this machine.
const LOCAL_SIZES: [&str; 4] = [
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "PALS_LOCAL_SIZE",
];

/// The answers of a recording, the first byte of a message.
const GO: u8 = b'g';
const REFUSED: u8 = b'n';
const OVER: u8 = b'e';

/// The job that this process is a rank of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankJob {
    /// Equal for those that may join each other.
    key: String,
    /// The variables that distinguish this rank from the others.
    ranks: Vec<(&'static str, u32)>,
    /// How many ranks this machine has, where the launcher shows it.
    local_size: Option<u32>,
}

impl RankJob {
    /// The job of this process; `None`: it is in none. `wanted` describes the recording: a
    /// rank joins only one with the same description.
    pub fn of_this_process(wanted: &str) -> Option<Self> {
        let variable = |name: &str| std::env::var(name).ok();
        Self::new(wanted, std::process::id(), variable)
    }

    fn new(wanted: &str, own: u32, variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let ranks = environment::ranks(|name| variable(name)?.parse().ok());
        if ranks.is_empty() {
            return None;
        }
        let launcher = launcher(own, &ranks)?;
        let names = JOB_NAMES.map(|name| {
            variable(name).map(|mut value| {
                while value.len() > MAX_NAME {
                    value.pop();
                }
                value
            })
        });
        // Debug shows texts on one line.
        let key = format!("{:?}", (HELLO, launcher, names, wanted));
        let local_size = LOCAL_SIZES
            .iter()
            .find_map(|name| variable(name)?.parse().ok());
        let job = Self {
            key,
            ranks,
            local_size,
        };
        (job.hello().len() <= MAX_MESSAGE).then_some(job)
    }

    /// Name of the job's files, without extension.
    fn name(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.key.hash(&mut hasher);
        format!("join-{:016x}", hasher.finish())
    }

    /// A rank's message when it joins.
    fn hello(&self) -> String {
        format!("{}\n{:?}", self.key, self.ranks)
    }
}

/// A process that cannot be confused with a later one of its number.
type ProcessIdentity = (u32, u64);

/// The process that started all ranks: the nearest ancestor that is no rank itself, or
/// another. What may not be read belongs to the launcher.
fn launcher(own: u32, ranks: &[(&'static str, u32)]) -> Option<ProcessIdentity> {
    let mut pid = own;
    for _ in 0..MAX_ANCESTORS {
        pid = process::parent(pid)?;
        if environment::ranks_of(pid).map_or(true, |found| found != ranks) {
            return Some((pid, process::start_time(pid)?));
        }
    }
    None
}

/// Who this process is in its job.
#[derive(Debug)]
pub enum JobPart {
    /// It records.
    Recorder(Recorder),
    /// Another records; this one runs its command.
    Joined(Joined),
    /// It records by itself; why it is not part of another's recording.
    Alone(String),
}

/// Takes the part of the recorder if no other rank has it, or joins the one that does, and
/// waits until that has begun to record. To be called while this process has one thread
/// and holds no signals back: it may take a minute.
///
/// # Errors
/// Ranks cannot meet on this machine.
pub fn take_part(job: RankJob) -> io::Result<JobPart> {
    let directory = PrivateDirectory::below(&meeting_place())?;
    in_directory(job, directory, Instant::now() + PATIENCE)
}

/// Where processes of this user can meet and no other user can be.
fn meeting_place() -> PathBuf {
    match rustix::process::geteuid().as_raw() {
        0 => "/run".into(),
        user => Path::new("/run/user").join(user.to_string()),
    }
}

fn in_directory(
    job: RankJob,
    directory: PrivateDirectory,
    deadline: Instant,
) -> io::Result<JobPart> {
    let lock = format!("{}.lock", job.name());
    loop {
        if let Some(held) = directory.lock(&lock)? {
            prune(&directory, &lock);
            return Ok(JobPart::Recorder(Recorder::new(job, directory, held)));
        }
        match joined::join(&job, &directory, deadline)? {
            joined::Attempt::Joined(joined) => return Ok(JobPart::Joined(joined)),
            joined::Attempt::Refused(why) => return Ok(JobPart::Alone(why)),
            joined::Attempt::Nobody => {}
        }
        if Instant::now() >= deadline {
            let why = "the rank that records does not answer".to_owned();
            return Ok(JobPart::Alone(why));
        }
        std::thread::sleep(AGAIN);
    }
}

/// Takes away what recorders left that were killed.
fn prune(directory: &PrivateDirectory, own: &str) {
    let names = directory.names().unwrap_or_default();
    for name in names.iter().filter(|name| *name != own) {
        let Some(job) = name.strip_suffix(".lock") else {
            continue;
        };
        let held: io::Result<Option<File>> = directory.lock(name);
        if let Ok(Some(held)) = held {
            directory.unlink(&format!("{job}.sock"));
            directory.unlink(name);
            drop(held);
        }
    }
}

/// A socket that keeps messages apart.
fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kind = SocketType::SEQPACKET;
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        kind,
        flags,
        None,
    )?)
}

/// Whether the other end of a connection is this user's.
fn is_own(socket: &OwnedFd) -> bool {
    let user = rustix::net::sockopt::socket_peercred(socket);
    user.is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

#[cfg(test)]
mod tests;
