//! Samplers of devices: what their execution units stood at, as events.
//!
//! Each stream (a GT of a card, a replayed file) has a thread of its own, which a
//! hung driver or file system may stall and no other waits for. It adds records up by
//! address ([`eu_stall`](aiprof_model::eu_stall)) and hands on a window for each read. As
//! long as the windows are not taken, they grow longer; nothing is dropped for that.
//!
//! * `xe_eu_stall`: GPUs, through Linux's xe driver;
//! * `replay`: bytes from a file, a FIFO or a socket, through the same code.

mod feed;
mod recorder;
mod replay;
mod replay_spec;
mod save;
mod subset;
mod xe_abi;
pub(crate) mod xe_cards;
pub(crate) mod xe_eu_stall;

pub use replay_spec::{ReplayFormat, ReplaySpec};

use aiprof_model::{profile::Losses, wire::Event};
use feed::{Feed, StreamControl, StreamStatus, Topic};
use std::{
    io,
    ops::RangeFrom,
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, channel, sync_channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use xe_abi::{Driver, Linux};
use xe_eu_stall::XeOptions;

/// Most events that wait to be taken.
const MAX_WAITING: usize = 256;
/// How long the end of the threads is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Join the activity records of AIUs with launches.
    pub aiu: bool,
    /// Sample all cards of the xe driver.
    pub xe: bool,
    /// Device cycles between samples: 251 times 1 to 7 on all hardware so far, else the
    /// nearest of these is taken. `None`: 1004.
    pub cycles_per_sample: Option<u32>,
    /// Read only one record in this number, chosen at random: less work, fewer samples. 0
    /// and 1: all.
    pub one_record_of: u32,
    /// Read the records of a device that is not known as those of the nearest that is.
    pub nearest_layout: bool,
    /// Files, FIFOs and sockets to read in place of hardware.
    pub replay: Vec<ReplaySpec>,
    /// A folder in which the bytes of each stream are kept as a
    /// [device capture](aiprof_model::eu_stall::capture), `device-N.devcap`, for replay.
    pub save: Option<PathBuf>,
}

impl Default for DeviceOptions {
    /// All cards of the xe driver, as the driver samples by itself; no AIUs.
    fn default() -> Self {
        Self {
            aiu: false,
            xe: true,
            cycles_per_sample: None,
            one_record_of: 1,
            nearest_layout: false,
            replay: Vec::new(),
            save: None,
        }
    }
}

impl DeviceOptions {
    /// Whether there is anything to join with launches: records of AIUs, something to
    /// replay, or a card here.
    pub fn is_on(&self) -> bool {
        let has_card = || !xe_cards::cards(Path::new("/")).is_empty();
        self.aiu || !self.replay.is_empty() || (self.xe && has_card())
    }
}

/// Nothing can be sampled as was asked.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// A source to replay cannot be opened.
    #[error("cannot replay {}", path.display())]
    Replay {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No thread could be started.
    #[error("cannot start a thread for a device")]
    Thread(#[source] io::Error),
}

/// All streams of devices that are read. Dropping it ends its threads soon.
#[derive(Debug)]
pub struct DeviceSamplers {
    events: Receiver<Event>,
    control: Arc<StreamControl>,
    status: Arc<StreamStatus>,
    threads: Vec<JoinHandle<()>>,
}

impl DeviceSamplers {
    /// Begins to sample. A card that cannot be sampled is no error:
    /// [`problems`](Self::problems) reports it.
    ///
    /// # Errors
    /// A source to replay cannot be opened, or no thread could be started.
    pub fn start(options: &DeviceOptions) -> Result<Self, DeviceError> {
        Self::start_on(options, &Linux, Path::new("/"))
    }

    /// With another kernel, and what it shows below a root.
    fn start_on(
        options: &DeviceOptions,
        driver: &dyn Driver,
        root: &Path,
    ) -> Result<Self, DeviceError> {
        let (sender, events) = sync_channel(MAX_WAITING);
        let mut samplers = Self {
            events,
            control: Arc::default(),
            status: Arc::default(),
            threads: Vec::new(),
        };
        let feed = Feed::new(
            sender,
            samplers.status.clone(),
            options.save.as_deref().map(Arc::from),
        );
        let mut ids = 0..;
        for (spec, id) in options.replay.iter().zip(ids.by_ref()) {
            let run = replay::start(spec, id, feed.clone(), samplers.control.clone());
            let run = run.map_err(|source| DeviceError::Replay {
                path: spec.path.clone(),
                source,
            })?;
            samplers.spawn(run)?;
        }
        if options.xe {
            samplers.start_xe(options, driver, root, &feed, ids)?;
        }
        Ok(samplers)
    }

    fn start_xe(
        &mut self,
        options: &DeviceOptions,
        driver: &dyn Driver,
        root: &Path,
        feed: &Feed,
        mut ids: RangeFrom<u32>,
    ) -> Result<(), DeviceError> {
        let xe = XeOptions {
            cycles: options.cycles_per_sample,
            nearest_layout: options.nearest_layout,
            one_of: options.one_record_of,
        };
        for (card, index) in xe_cards::cards(root).iter().zip(0..) {
            match xe_eu_stall::gts(driver, card, index, &xe) {
                Ok(gts) => {
                    for (gt, id) in gts.into_iter().zip(ids.by_ref()) {
                        self.spawn(gt.run(id, feed.clone(), self.control.clone()))?;
                    }
                }
                Err(problem) => self.status.problem(index, Topic::Card, Some(problem)),
            }
        }
        Ok(())
    }

    fn spawn(&mut self, run: impl FnOnce() + Send + 'static) -> Result<(), DeviceError> {
        let thread = std::thread::Builder::new().name("aiprof-device".into());
        let thread = thread.spawn(run).map_err(DeviceError::Thread)?;
        self.threads.push(thread);
        Ok(())
    }

    /// What has arrived since the last call. The description of each stream
    /// ([`Event::DeviceStream`]) comes before its windows ([`Event::Stalls`]). The windows
    /// of a stream are in order, those of different streams need not be.
    pub fn events(&self) -> impl Iterator<Item = Event> + '_ {
        std::iter::from_fn(|| self.events.try_recv().ok())
    }

    /// What was lost since the start. Drops and refused samples are in the windows,
    /// too.
    pub(crate) fn losses(&self) -> Losses {
        self.status.losses()
    }

    /// Why something is not sampled, or not well, and what to do; for the user.
    pub fn problems(&self) -> Vec<String> {
        self.status.problems()
    }

    /// Reads what is left and ends. All [`events`](Self::events) can be taken then.
    pub fn stop(&mut self) {
        self.control.stop();
        // The threads wait for room if they have more than fits.
        let (sender, all) = channel();
        let end = Instant::now() + PATIENCE;
        loop {
            match self.events.recv_timeout(Duration::from_millis(10)) {
                Ok(event) => {
                    // The receiver is here.
                    let _ = sender.send(event);
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.threads.iter().all(JoinHandle::is_finished) {
                break;
            }
            if Instant::now() > end {
                let text = "The thread that reads a device did not end: the device's last samples \
                            are missing.";
                self.status
                    .problem(u32::MAX, Topic::Thread, Some(text.into()));
                break;
            }
        }
        while let Ok(event) = self.events.try_recv() {
            let _ = sender.send(event);
        }
        self.events = all;
        self.threads.clear();
    }
}

impl Drop for DeviceSamplers {
    fn drop(&mut self) {
        self.control.stop();
    }
}

#[cfg(test)]
mod replay_tests;
#[cfg(test)]
mod xe_fake;
