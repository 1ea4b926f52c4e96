//! A recording, from attaching to the finished profile.

use super::config::RecordConfig;
use crate::profile::Profile;
use std::time::Duration;

/// Why a recording could not start, run or end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectError {
    /// Something this machine or build cannot do.
    #[error("not supported here: {0}")]
    Unsupported(String),
}

/// How far a running recording is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Samples recorded.
    pub samples: u64,
    /// Samples lost.
    pub lost: u64,
    /// Time since sampling began.
    pub elapsed: Duration,
    /// Processes seen.
    pub processes: usize,
}

/// What the profiler itself used.
#[derive(Clone, Copy, Debug, Default)]
pub struct SelfUsage {
    /// CPU time of the profiler's process, user and system.
    pub cpu: Duration,
    /// Peak resident memory of the profiler's process, in bytes.
    pub peak_rss_bytes: u64,
    /// Locked memory of all BPF maps, in bytes.
    pub bpf_memory_bytes: u64,
}

/// A finished recording.
#[derive(Debug)]
pub struct Finished {
    /// The symbolized profile since the last window.
    pub profile: Profile,
    /// What the profiler itself used.
    pub usage: SelfUsage,
}

/// A running recording.
#[derive(Debug)]
pub struct Session(());

impl Session {
    /// Loads and attaches everything; sampling runs when this returns.
    /// `capture` is where the event stream goes too.
    ///
    /// # Errors
    /// Whatever kept it from loading or attaching.
    pub fn start(
        _config: &RecordConfig,
        _capture: Option<Box<dyn std::io::Write + Send>>,
    ) -> Result<Self, CollectError> {
        Err(CollectError::Unsupported("recording".into()))
    }

    /// Runs the readers until `stop` resolves; calls `on_progress` about four
    /// times a second.
    ///
    /// # Errors
    /// Whatever kept the readers from running.
    pub async fn run(
        &mut self,
        stop: impl Future<Output = ()>,
        mut on_progress: impl FnMut(&Progress),
    ) -> Result<(), CollectError> {
        on_progress(&Progress::default());
        stop.await;
        Ok(())
    }

    /// The symbolized profile since the start or the last call.
    ///
    /// # Errors
    /// Whatever kept the profile from being made.
    pub fn window(&mut self) -> Result<Profile, CollectError> {
        Ok(Profile::default())
    }

    /// Detaches everything and returns the rest.
    ///
    /// # Errors
    /// Whatever kept the profile from being made.
    pub fn finish(self) -> Result<Finished, CollectError> {
        Ok(Finished {
            profile: Profile::default(),
            usage: SelfUsage::default(),
        })
    }
}
