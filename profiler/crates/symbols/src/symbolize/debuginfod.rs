//! Debug files from debuginfod servers, fetched beside the recording.
//!
//! `debuginfod-find` of elfutils does the work: it knows the protocol, the cache
//! that debuggers share and its limits, and needs no HTTP and TLS stack in this
//! program. It runs on a thread of its own, one download at a time; nothing here
//! ever waits for it unless asked to.
//!
//! It reads what servers send, so it gets no capabilities. Where this process has rights that its
//! caller lacks, it is taken from fixed directories, never from PATH, and only if root alone can
//! change it. It runs as the same user: root's cache is root's own.

use aiprof_model::profile::BuildId;
use aiprof_system::files::others::{RootDir, Trust};
use aiprof_system::files::rights;
use rustc_hash::{FxHashMap, FxHashSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Most downloads waiting; further ones are refused.
const QUEUE: usize = 128;
/// Most build ids asked for in all.
const MAX_KNOWN: usize = 4096;
/// Longest time for one download; a slow server must not hold up the others.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Largest debug file that is taken.
const MAX_BYTES: u64 = 16 << 30;
/// How often a running download is looked at.
const POLL: Duration = Duration::from_millis(10);

/// Where the servers are and how they are asked.
#[derive(Clone, Debug)]
pub(super) struct Config {
    /// Value of `DEBUGINFOD_URLS`.
    pub urls: OsString,
    /// Cache directory instead of the user's.
    pub cache: Option<PathBuf>,
    pub program: PathBuf,
}

impl Config {
    /// From the environment; `None` if no server is set.
    pub(super) fn from_env() -> Option<Self> {
        let urls = std::env::var_os("DEBUGINFOD_URLS").filter(|urls| !urls.is_empty())?;
        Some(Self {
            urls,
            cache: None,
            program: program(),
        })
    }
}

/// Where the program may be if this process has rights that it must not give to
/// whatever its caller's PATH finds.
const PROGRAMS: [&str; 3] = [
    "/usr/bin/debuginfod-find",
    "/usr/local/bin/debuginfod-find",
    "/bin/debuginfod-find",
];

fn program() -> PathBuf {
    if !rights::is_privileged() {
        return "debuginfod-find".into();
    }
    let safe = |path: &&str| rights::is_roots_alone(Path::new(path));
    let found = PROGRAMS.into_iter().find(safe);
    // The first one then is not there or not safe, and not started.
    found.unwrap_or("/nonexistent/debuginfod-find").into()
}

/// Opens a file of the cache: this user's or root's.
///
/// # Errors
/// It is somebody else's, or no regular file.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let trust = Trust {
        uid: rustix::process::geteuid().as_raw(),
        max_bytes: MAX_BYTES,
    };
    RootDir::of_host()?.open(path, trust)
}

/// What the program gets of the environment: where servers, proxies, certificates
/// and the cache are.
const ENVIRONMENT: [&str; 12] = [
    "HOME",
    "XDG_CACHE_HOME",
    "DEBUGINFOD_CACHE_PATH",
    "DEBUGINFOD_TIMEOUT",
    "DEBUGINFOD_MAXTIME",
    "DEBUGINFOD_MAXSIZE",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

/// What came of a request.
enum DownloadOutcome {
    Found(PathBuf),
    Missing,
    /// The program is not installed.
    Unavailable,
}

/// A queue of downloads and their results.
pub(super) struct Debuginfod {
    requests: SyncSender<BuildId>,
    outcomes: Receiver<(BuildId, DownloadOutcome)>,
    /// What was asked for: the file once it is there.
    known: FxHashMap<BuildId, Option<PathBuf>>,
    /// What is being fetched, or waits for it.
    pending: FxHashSet<BuildId>,
    /// Requests refused: queue full, or no way to ask.
    pub refused: u64,
    available: bool,
}

impl Debuginfod {
    /// Starts the downloading thread.
    pub(super) fn start(config: Config) -> io::Result<Self> {
        let (requests, queue) = sync_channel(QUEUE);
        let (results, outcomes) = sync_channel(QUEUE);
        thread::Builder::new()
            .name("debuginfod".to_owned())
            .stack_size(128 << 10)
            .spawn(move || work(&config, &queue, &results))?;
        Ok(Self {
            requests,
            outcomes,
            known: FxHashMap::default(),
            pending: FxHashSet::default(),
            refused: 0,
            available: true,
        })
    }

    /// The debug file for a build id, if it is there; else it is asked for.
    pub(super) fn get(&mut self, id: BuildId) -> Option<PathBuf> {
        self.collect();
        if let Some(known) = self.known.get(&id) {
            return known.clone();
        }
        // Each outcome needs a place too, or the thread would wait for us.
        let accepted = self.available
            && self.pending.len() < QUEUE
            && self.known.len() < MAX_KNOWN
            && self.requests.try_send(id).is_ok();
        if accepted {
            self.pending.insert(id);
            self.known.insert(id, None);
        } else {
            self.refused += 1;
        }
        None
    }

    /// Whether a debug file was asked for, and may come yet.
    pub(super) fn is_fetching(&self, id: BuildId) -> bool {
        self.available && self.pending.contains(&id)
    }

    /// Waits until nothing is pending, at most for the given time.
    #[cfg(test)]
    pub(super) fn settle(&mut self, at_most: Duration) {
        let deadline = std::time::Instant::now() + at_most;
        while !self.pending.is_empty() && self.available {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            match self.outcomes.recv_timeout(left) {
                Ok((id, outcome)) => self.take(id, outcome),
                Err(_) => break,
            }
        }
    }

    fn collect(&mut self) {
        while let Ok((id, outcome)) = self.outcomes.try_recv() {
            self.take(id, outcome);
        }
    }

    fn take(&mut self, id: BuildId, outcome: DownloadOutcome) {
        self.pending.remove(&id);
        match outcome {
            DownloadOutcome::Found(path) => {
                self.known.insert(id, Some(path));
            }
            DownloadOutcome::Missing => {}
            DownloadOutcome::Unavailable => {
                self.refused += 1;
                if self.available {
                    self.available = false;
                    tracing::warn!(
                        "DEBUGINFOD_URLS is set, but debuginfod-find is not installed, or others \
                         than root can change it (Debian: apt install debuginfod)"
                    );
                }
            }
        }
    }
}

/// The thread: ends when the queue's owner is gone.
fn work(
    config: &Config,
    queue: &Receiver<BuildId>,
    results: &SyncSender<(BuildId, DownloadOutcome)>,
) {
    for id in queue {
        let outcome = match find(config, id) {
            Ok(Some(path)) => DownloadOutcome::Found(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => DownloadOutcome::Unavailable,
            Ok(None) | Err(_) => DownloadOutcome::Missing,
        };
        if results.send((id, outcome)).is_err() {
            return;
        }
    }
}

/// Runs `debuginfod-find debuginfo BUILDID`, which prints the path of the file
/// in its cache.
fn find(config: &Config, id: BuildId) -> io::Result<Option<PathBuf>> {
    let mut command = Command::new(&config.program);
    let kept = ENVIRONMENT.iter();
    let kept = kept.filter_map(|name| Some((name, std::env::var_os(name)?)));
    if rights::is_privileged() {
        command.env_clear().env("PATH", "/usr/bin:/bin");
        command.envs(kept);
    }
    rights::without_capabilities(&mut command)
        .args(["debuginfo", &id.to_string()])
        .env("DEBUGINFOD_URLS", &config.urls)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    if let Some(cache) = &config.cache {
        command.env("DEBUGINFOD_CACHE_PATH", cache);
    }
    let mut child = command.spawn()?;
    if !finished(&mut child, TIMEOUT)? {
        return Ok(None);
    }
    // A path fits a pipe, so the child never waited for this.
    let mut path = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(4096).read_to_end(&mut path)?;
    }
    let line = path.split(|&b| b == b'\n').next().unwrap_or_default();
    Ok((!line.is_empty()).then(|| OsString::from_vec(line.to_vec()).into()))
}

/// Waits for a child's success; kills it when it takes too long.
fn finished(child: &mut Child, at_most: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + at_most;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Ok(false);
        }
        thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_program_is_counted_once_and_not_waited_for() {
        let config = Config {
            urls: "http://127.0.0.1:1".into(),
            cache: None,
            program: "/nonexistent/debuginfod-find".into(),
        };
        let mut debuginfod = Debuginfod::start(config).unwrap();
        let id = BuildId::new(&[1; 20]).unwrap();
        assert_eq!(debuginfod.get(id), None);
        debuginfod.settle(Duration::from_secs(20));
        assert!(!debuginfod.available);
        assert_eq!(debuginfod.get(BuildId::new(&[2; 20]).unwrap()), None);
        assert_eq!(debuginfod.refused, 2);
    }

    #[test]
    fn failing_program_finds_nothing() {
        let config = Config {
            urls: "http://127.0.0.1:1".into(),
            cache: None,
            program: "false".into(),
        };
        let mut debuginfod = Debuginfod::start(config).unwrap();
        let id = BuildId::new(&[1; 20]).unwrap();
        assert_eq!(debuginfod.get(id), None);
        debuginfod.settle(Duration::from_secs(20));
        assert_eq!((debuginfod.get(id), debuginfod.refused), (None, 0));
    }
}
