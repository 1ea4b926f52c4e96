//! Wakes the worker of an output when a body comes into its directory.

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::unix::pipe::Receiver;
use tokio::sync::Notify;

/// All directories of one spool.
pub(crate) struct Watch {
    /// Not a pipe, but read like one.
    events: Option<Receiver>,
    wakes: Mutex<HashMap<i32, Arc<Notify>>>,
}

impl Watch {
    /// One that watches nothing yet, or never will: an instance of inotify is not always to be
    /// had.
    pub(crate) fn new() -> Self {
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        let events = events
            .map_err(io::Error::from)
            .and_then(Receiver::from_owned_fd_unchecked);
        if let Err(error) = &events {
            tracing::warn!("inotify: {error}; reading the spool every few seconds instead");
        }
        Self {
            events: events.ok(),
            wakes: Mutex::default(),
        }
    }

    /// Whether it wakes anybody.
    pub(crate) fn is_working(&self) -> bool {
        self.events.is_some()
    }

    /// Watches a directory. Doing it again costs little, and is needed where it was deleted
    /// and made anew.
    ///
    /// # Errors
    /// It is not watched.
    pub(crate) fn add(&self, directory: &Path, wake: &Arc<Notify>) -> io::Result<()> {
        let Some(events) = &self.events else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        // Bodies are renamed to their names when they are whole.
        let what = WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        let watch = inotify::add_watch(events, directory, what)?;
        let wakes = self.wakes.lock();
        let mut wakes = wakes.unwrap_or_else(PoisonError::into_inner);
        wakes.insert(watch, Arc::clone(wake));
        Ok(())
    }

    /// Hands events on.
    pub(crate) async fn run(self: Arc<Self>) {
        let Some(events) = &self.events else {
            return;
        };
        let mut buffer = [0; 4096];
        while events.readable().await.is_ok() {
            match events.try_read(&mut buffer) {
                Ok(length) => self.events(buffer.get(..length).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    tracing::warn!("inotify: {error}");
                    return;
                }
            }
        }
    }

    /// Reads `struct inotify_event`, one after the other: watch, mask, cookie, and length of
    /// the name, which follows.
    fn events(&self, mut bytes: &[u8]) {
        while let Some((head, rest)) = bytes.split_first_chunk::<16>() {
            let word = |at: usize| {
                let word = head.get(at..).and_then(|rest| rest.first_chunk::<4>());
                word.map_or(0, |word| u32::from_ne_bytes(*word))
            };
            let name = usize::try_from(word(12)).unwrap_or(usize::MAX);
            self.event(word(0).cast_signed(), ReadFlags::from_bits_retain(word(4)));
            bytes = rest.get(name..).unwrap_or_default();
        }
    }

    fn event(&self, watch: i32, what: ReadFlags) {
        let wakes = self.wakes.lock();
        let mut wakes = wakes.unwrap_or_else(PoisonError::into_inner);
        if what.contains(ReadFlags::QUEUE_OVERFLOW) {
            wakes.values().for_each(|wake| wake.notify_one());
        }
        if let Some(wake) = wakes.get(&watch) {
            wake.notify_one();
        }
        if what.contains(ReadFlags::IGNORED) {
            wakes.remove(&watch);
        }
    }
}
