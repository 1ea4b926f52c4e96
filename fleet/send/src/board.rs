//! What this program knows of itself, and the file that shows it.

use aiprof_fleet::config::Config;
use aiprof_fleet::status::{self, SENDER_FILE, SenderStatus, SentStatus};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::Notify;

/// Shortest time between two writes.
const SHORTEST: Duration = Duration::from_secs(1);
/// Longest time between two writes while anything waits.
const LONGEST: Duration = Duration::from_secs(10);

/// Nanoseconds since the Unix epoch.
pub(crate) fn now_unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    })
}

impl BoardFiles {
    fn of(config: &Config) -> Self {
        Self {
            directory: config.state.clone(),
            sender: config.sender_directory(),
            window: config.window,
        }
    }
}

/// The status, shared by all that change it.
#[derive(Clone)]
pub(crate) struct Board {
    shared: Arc<SharedBoard>,
}

/// The values from the configuration.
#[derive(Clone)]
struct BoardFiles {
    directory: PathBuf,
    /// Where the file is.
    sender: PathBuf,
    window: Duration,
}

struct SharedBoard {
    place: Mutex<BoardFiles>,
    status: Mutex<SenderStatus>,
    changed: Notify,
}

impl Board {
    /// An empty one.
    pub(crate) fn new(config: &Config) -> Self {
        let status = SenderStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started_unix_ns: now_unix_ns(),
            ..SenderStatus::default()
        };
        let shared = SharedBoard {
            place: Mutex::new(BoardFiles::of(config)),
            status: Mutex::new(status),
            changed: Notify::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Changes what is known of an output.
    pub(crate) fn update(&self, output: &str, change: impl FnOnce(&mut SentStatus)) {
        let mut status = self.lock();
        if !status.outputs.contains_key(output) {
            let new = SentStatus::default();
            status.outputs.insert(output.to_owned(), new);
        }
        let Some(of_output) = status.outputs.get_mut(output) else {
            return;
        };
        let before = of_output.clone();
        change(of_output);
        if *of_output != before {
            self.shared.changed.notify_one();
        }
    }

    /// Forgets all other outputs, which are no more.
    pub(crate) fn retain(&self, outputs: &[String]) {
        self.lock().outputs.retain(|name, _| outputs.contains(name));
        self.shared.changed.notify_one();
    }

    /// Takes another configuration.
    pub(crate) fn set_config(&self, config: &Config) {
        let place = self.shared.place.lock();
        *place.unwrap_or_else(PoisonError::into_inner) = BoardFiles::of(config);
        self.shared.changed.notify_one();
    }

    /// Where the agent writes how it is.
    pub(crate) fn directory(&self) -> PathBuf {
        self.place().directory
    }

    /// Length of a window.
    pub(crate) fn window(&self) -> Duration {
        self.place().window
    }

    fn place(&self) -> BoardFiles {
        let place = self.shared.place.lock();
        place.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is known now.
    pub(crate) fn status(&self) -> SenderStatus {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, SenderStatus> {
        let status = self.shared.status.lock();
        status.unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the file.
    pub(crate) fn write(&self) -> std::io::Result<()> {
        let status = {
            let mut status = self.lock();
            status.written_unix_ns = now_unix_ns();
            status.clone()
        };
        status::write(&self.place().sender, SENDER_FILE, &status)
    }

    /// Writes the file at each change, but not more often than useful.
    pub(crate) async fn keep_written(self) {
        let mut failed = false;
        loop {
            match self.write() {
                Ok(()) => failed = false,
                Err(error) => {
                    if !failed {
                        let directory = self.place().sender;
                        tracing::error!("{}: {SENDER_FILE}: {error}", directory.display());
                    }
                    failed = true;
                }
            }
            tokio::time::sleep(SHORTEST).await;
            let waits = self
                .lock()
                .outputs
                .values()
                .any(|output| output.waiting > 0);
            let changed = self.shared.changed.notified();
            match waits {
                // Either way it is time.
                true => drop(tokio::time::timeout(LONGEST - SHORTEST, changed).await),
                false => changed.await,
            }
        }
    }
}
