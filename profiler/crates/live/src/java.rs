//! The HotSpots of processes: asked for when a process that has one is sampled, until it
//! has code.

use aiprof_symbols::java::{HotSpot, HotSpotError};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Most processes that are known.
const MAX_PROCESSES: usize = 4096;
/// How often one that has no code yet is asked for while it starts, and how long it is not
/// asked for again then at first, and at most.
const STARTING: Duration = Duration::from_millis(5);
const STARTING_LOOKS: u32 = 20;
const FIRST_WAIT: Duration = Duration::from_millis(10);
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// A HotSpot that makes no sense after this number of looks never will.
const MAX_LOOKS: u32 = STARTING_LOOKS + 8;

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
enum JavaState {
    /// It is being read; the number of looks before this one.
    Asked(u32),
    /// It was not ready. Not asked for before this time; the number of looks so far.
    Waits(Instant, u32),
    Known(Box<HotSpot>),
    Declined,
}

/// The HotSpots of processes.
#[derive(Debug, Default)]
pub(crate) struct Javas {
    processes: FxHashMap<u32, JavaState>,
    /// Reasons for missing frames that were reported already.
    reported: FxHashSet<String>,
}

impl Javas {
    /// The HotSpot of a process, if it is known.
    pub(crate) fn get(&self, pid: u32) -> Option<&HotSpot> {
        match self.processes.get(&pid)? {
            JavaState::Known(found) => Some(found),
            _ => None,
        }
    }

    /// Whether any is known.
    pub(crate) fn any(&self) -> bool {
        let is_known = |state: &JavaState| matches!(state, JavaState::Known(_));
        self.processes.values().any(is_known)
    }

    /// A process has mapped a HotSpot: it is about to start.
    pub(crate) fn starts(&mut self, pid: u32, now: Instant) {
        if self.is_due(pid, now) {
            self.processes.insert(pid, JavaState::Waits(now, 0));
        }
    }

    /// Whether one is about to start, and to be asked for soon.
    pub(crate) fn is_any_starting(&self) -> bool {
        let is_starting = |state: &JavaState| matches!(state, JavaState::Waits(_, looks) if *looks < STARTING_LOOKS);
        self.processes.values().any(is_starting)
    }

    /// The processes whose HotSpots should be asked for now.
    pub(crate) fn due(&self, now: Instant) -> Vec<u32> {
        let waiting = self.processes.iter().filter(|(_, state)| match state {
            JavaState::Waits(until, _) => now >= *until,
            _ => false,
        });
        waiting.map(|(&pid, _)| pid).collect()
    }

    /// Whether the HotSpot of a process should be asked for.
    pub(crate) fn is_due(&self, pid: u32, now: Instant) -> bool {
        match self.processes.get(&pid) {
            None => self.processes.len() < MAX_PROCESSES,
            Some(JavaState::Waits(until, _)) => now >= *until,
            Some(_) => false,
        }
    }

    /// It is asked for.
    pub(crate) fn asked(&mut self, pid: u32) {
        let looks = match self.processes.get(&pid) {
            Some(JavaState::Waits(_, looks)) => *looks,
            _ => 0,
        };
        self.processes.insert(pid, JavaState::Asked(looks));
    }

    /// Takes in what was found; whether it is known now. While it starts its memory makes no
    /// sense.
    pub(crate) fn came(&mut self, pid: u32, found: FoundJava, now: Instant) -> bool {
        let Some(&JavaState::Asked(looks)) = self.processes.get(&pid) else {
            // The process has ended, or runs another program.
            return false;
        };
        let state = match found {
            FoundJava::Known(found) => {
                tracing::debug!("process {pid} has HotSpot {}", found.version());
                JavaState::Known(found)
            }
            FoundJava::Declined(error) if looks >= MAX_LOOKS => {
                if self.reported.insert(error.clone()) {
                    tracing::warn!("process {pid}: Java functions have no names: {error}");
                }
                JavaState::Declined
            }
            FoundJava::NotReady | FoundJava::Declined(_) => {
                let doubled = looks.saturating_sub(STARTING_LOOKS).min(16);
                let wait = match looks < STARTING_LOOKS {
                    true => STARTING,
                    false => (FIRST_WAIT * (1 << doubled)).min(LONGEST_WAIT),
                };
                JavaState::Waits(now + wait, looks.saturating_add(1))
            }
        };
        let is_known = matches!(state, JavaState::Known(_));
        self.processes.insert(pid, state);
        is_known
    }

    /// Forgets a process: it has ended, or runs another program.
    pub(crate) fn forget(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }

    /// Forgets the processes that `lives` does not know.
    pub(crate) fn keep_processes(&mut self, lives: impl Fn(u32) -> bool) {
        self.processes.retain(|&pid, _| lives(pid));
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.processes.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PID: u32 = 7;

    /// When one is asked for of which `found` is found each time, in milliseconds.
    fn looks(javas: &mut Javas, found: &FoundJava) -> Vec<u64> {
        let start = Instant::now();
        let mut asked = Vec::new();
        javas.starts(PID, start);
        for ms in 0..10_000 {
            let now = start + Duration::from_millis(ms);
            if javas.is_due(PID, now) {
                assert_eq!(javas.due(now), [PID]);
                javas.asked(PID);
                assert!(!javas.is_due(PID, now + Duration::from_secs(100)));
                assert!(!javas.came(PID, found.clone(), now));
                asked.push(ms);
            }
        }
        asked
    }

    #[test]
    fn one_that_starts_is_looked_at_often_and_then_ever_more_seldom() {
        let mut javas = Javas::default();
        let looks = looks(&mut javas, &FoundJava::NotReady);
        let starting: Vec<u64> = (0..=20).map(|look| 5 * look).collect();
        assert_eq!(looks[..21], starting);
        let later = [110, 130, 170, 250, 410, 730, 1370, 2650, 4650, 6650, 8650];
        assert_eq!(looks[21..], later);
        assert!(!javas.is_any_starting());
        assert!(!javas.any());
    }

    #[test]
    fn one_that_never_makes_sense_is_declined() {
        let mut javas = Javas::default();
        let looks = looks(&mut javas, &FoundJava::Declined("x".into()));
        assert_eq!(looks.len(), MAX_LOOKS as usize + 1);
        assert!(javas.get(PID).is_none());
        javas.forget(PID);
        assert!(javas.is_due(PID, Instant::now()));
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
