//! The HotSpots of processes: asked for when a process that has one is sampled, until it
//! has code.

use aiprof_symbols::java::{HotSpot, HotSpotError};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Most processes that are known.
const MAX_PROCESSES: usize = 4096;
/// How long one that has no code yet is not asked for again at first, and at most.
const FIRST_WAIT: Duration = Duration::from_millis(10);
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// What was found of a HotSpot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FoundJava {
    /// It.
    Known(Box<HotSpot>),
    /// It has no code yet.
    NotReady,
    /// Why its frames cannot be had.
    Declined(String),
}

impl From<Result<HotSpot, HotSpotError>> for FoundJava {
    fn from(found: Result<HotSpot, HotSpotError>) -> Self {
        match found {
            Ok(found) => Self::Known(Box::new(found)),
            Err(HotSpotError::NotReady) => Self::NotReady,
            Err(error) => Self::Declined(error.to_string()),
        }
    }
}

/// A process with a HotSpot.
#[derive(Debug)]
enum State {
    /// It is being read.
    Asked(Duration),
    /// It had no code; not to be asked for before then.
    Waits(Instant, Duration),
    Known(Box<HotSpot>),
    Declined,
}

/// The HotSpots of processes.
#[derive(Debug, Default)]
pub struct Javas {
    processes: FxHashMap<u32, State>,
    /// Why frames cannot be had, as far as it was reported.
    reported: FxHashSet<String>,
}

impl Javas {
    /// The HotSpot of a process, if it is known.
    pub fn get(&self, pid: u32) -> Option<&HotSpot> {
        match self.processes.get(&pid)? {
            State::Known(found) => Some(found),
            _ => None,
        }
    }

    /// Whether any is known.
    pub fn any(&self) -> bool {
        let is_known = |state: &State| matches!(state, State::Known(_));
        self.processes.values().any(is_known)
    }

    /// Whether the HotSpot of a process is to be asked for.
    pub fn is_due(&self, pid: u32, now: Instant) -> bool {
        match self.processes.get(&pid) {
            None => self.processes.len() < MAX_PROCESSES,
            Some(State::Waits(until, _)) => now >= *until,
            Some(_) => false,
        }
    }

    /// It is asked for.
    pub fn asked(&mut self, pid: u32) {
        let wait = match self.processes.get(&pid) {
            Some(State::Waits(_, wait)) => *wait,
            _ => FIRST_WAIT,
        };
        self.processes.insert(pid, State::Asked(wait));
    }

    /// Takes in what was found; whether it is known now.
    pub fn came(&mut self, pid: u32, found: FoundJava, now: Instant) -> bool {
        let Some(State::Asked(wait)) = self.processes.get(&pid) else {
            // The process has ended, or runs another program.
            return false;
        };
        let state = match found {
            FoundJava::Known(found) => {
                tracing::debug!("process {pid} has HotSpot {}", found.version());
                State::Known(found)
            }
            FoundJava::NotReady => State::Waits(now + *wait, (2 * *wait).min(LONGEST_WAIT)),
            FoundJava::Declined(error) => {
                if self.reported.insert(error.clone()) {
                    tracing::warn!("process {pid}: no frames of Java: {error}");
                }
                State::Declined
            }
        };
        let is_known = matches!(state, State::Known(_));
        self.processes.insert(pid, state);
        is_known
    }

    /// Forgets a process: it has ended, or runs another program.
    pub fn forget(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }

    /// Forgets the processes that `lives` does not know.
    pub fn keep_processes(&mut self, lives: impl Fn(u32) -> bool) {
        self.processes.retain(|&pid, _| lives(pid));
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.processes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PID: u32 = 7;

    #[test]
    fn one_without_code_is_asked_for_ever_more_seldom() {
        let mut javas = Javas::default();
        let start = Instant::now();
        let mut asked = Vec::new();
        for ms in 0..10_000 {
            let now = start + Duration::from_millis(ms);
            if javas.is_due(PID, now) {
                javas.asked(PID);
                assert!(!javas.is_due(PID, now + Duration::from_secs(100)));
                assert!(!javas.came(PID, FoundJava::NotReady, now));
                asked.push(ms);
            }
        }
        let expected = [0, 10, 30, 70, 150, 310, 630, 1270, 2550, 4550, 6550, 8550];
        assert_eq!(asked, expected);
    }

    #[test]
    fn one_that_is_declined_is_not_asked_for_again() {
        let mut javas = Javas::default();
        let now = Instant::now();
        javas.asked(PID);
        assert!(!javas.came(PID, FoundJava::Declined("x".into()), now));
        assert!(!javas.is_due(PID, now + Duration::from_secs(3600)));
        assert!(javas.get(PID).is_none());
        javas.forget(PID);
        assert!(javas.is_due(PID, now));
    }

    #[test]
    fn what_comes_too_late_is_of_another_program() {
        let mut javas = Javas::default();
        let now = Instant::now();
        javas.asked(PID);
        javas.forget(PID);
        assert!(!javas.came(PID, FoundJava::NotReady, now));
        assert!(javas.is_due(PID, now));
    }
}
