//! Having files opened and read, each once.

use super::opener::{Gate, OpenAnswer, OpenWork, Opener};
use crate::locking::lock;
use aiprof_model::{process::FileId, wire::FileKey};
use aiprof_system::workers::{Outcome, Owner, Ticket};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::{Arc, MutexGuard};

/// Most functions remembered that were handed out.
const MAX_GIVEN: usize = 65_536;
/// Most mapped files remembered.
const MAX_MAPPED: usize = 4096;

/// A function that was handed out, by its offset in a file; what another user's process was
/// handed, by that process.
pub(super) type HandedFunction = (Option<u32>, FileId, u64);

/// What the opening of a file is for.
#[derive(Debug)]
pub(super) enum Purpose {
    /// What is probed from the start.
    Start,
    /// A file that was mapped.
    Mapped((Owner, FileKey)),
    /// Functions that were handed out.
    HandedOut(Vec<HandedFunction>),
}

/// What was offered to be probed, and need not be offered again.
#[derive(Default)]
pub(super) struct OfferedCode {
    /// Files that processes have mapped.
    mapped: FxHashSet<(Owner, FileKey)>,
    given: FxHashSet<HandedFunction>,
    /// Files that no table names and that have most functions of a table, likewise.
    pub(super) accepted: FxHashSet<(Option<u32>, FileId)>,
}

impl OfferedCode {
    /// Whether a file that was mapped is new.
    pub(super) fn is_new(&mut self, mapped: &(Owner, FileKey)) -> bool {
        if self.mapped.len() >= MAX_MAPPED {
            self.mapped.clear();
        }
        self.mapped.insert(mapped.clone())
    }

    /// Keeps those functions of a file, by offset and name, that are new: every process is handed
    /// the same ones.
    pub(super) fn retain_new(
        &mut self,
        whose: Option<u32>,
        id: FileId,
        functions: &mut Vec<(u64, String)>,
    ) {
        if self.given.len() >= MAX_GIVEN {
            self.given.clear();
        }
        functions.retain(|(offset, _)| self.given.insert((whose, id, *offset)));
    }

    /// It was not probed: the next process that has this mapped, or is handed it, may live longer.
    fn withdraw(&mut self, purpose: Option<Purpose>) {
        match purpose {
            Some(Purpose::Mapped(known)) => {
                self.mapped.remove(&known);
            }
            Some(Purpose::HandedOut(given)) => {
                for one in given {
                    self.given.remove(&one);
                }
            }
            Some(Purpose::Start) | None => {}
        }
    }

    /// Files have other ids from here on.
    pub(super) fn files_forgotten(&mut self) {
        self.given.clear();
        self.accepted.clear();
    }

    /// A process runs another program.
    pub(super) fn executed(&mut self, pid: u32) {
        self.given.retain(|(whose, ..)| *whose != Some(pid));
        self.accepted.retain(|(whose, _)| *whose != Some(pid));
    }
}

/// The files that are being opened.
pub(super) struct FileOpening {
    opener: Opener,
    /// The threads that began to read before the recording ran.
    starting: Option<Opener>,
    /// What the files are for.
    purposes: FxHashMap<Ticket, Purpose>,
    pub(super) offered: OfferedCode,
    /// Files and functions that could not be looked at.
    pub(super) refused: u64,
}

impl FileOpening {
    /// None yet.
    pub(super) fn new() -> Self {
        Self {
            opener: Opener::new(Arc::default()),
            starting: None,
            purposes: FxHashMap::default(),
            offered: OfferedCode::default(),
            refused: 0,
        }
    }

    /// What was seen, and what more may be.
    pub(super) fn gate(&self) -> MutexGuard<'_, Gate> {
        lock(self.opener.gate())
    }

    /// The recording runs: from here on, files are opened by threads with the privileges that this
    /// one has now.
    pub(super) fn run(&mut self) {
        let fresh = Opener::new(Arc::clone(self.opener.gate()));
        // What was not read in all the time that the start had for it is probed later.
        self.starting = Some(std::mem::replace(&mut self.opener, fresh));
        self.purposes.clear();
    }

    /// Whether files are being read.
    pub(super) fn is_busy(&self) -> bool {
        self.opener.is_busy() || self.starting.as_ref().is_some_and(Opener::is_busy)
    }

    /// Has a file or a process read.
    pub(super) fn give(&mut self, owner: Owner, work: OpenWork, purpose: Purpose) {
        match self.opener.give(owner, work) {
            Ok(ticket) => {
                self.purposes.insert(ticket, purpose);
            }
            Err(error) => {
                tracing::debug!("library not opened: {error}");
                self.failed(Some(purpose), 1);
            }
        }
    }

    /// Something could not be read or probed, which is counted as `losses`.
    pub(super) fn failed(&mut self, purpose: Option<Purpose>, losses: u64) {
        self.refused += losses;
        self.offered.withdraw(purpose);
    }

    /// What was opened since the last call.
    pub(super) fn answers(&mut self) -> Vec<(Option<Purpose>, Outcome<OpenAnswer>)> {
        let late = self
            .starting
            .as_mut()
            .map_or_else(Vec::new, Opener::answers);
        let late = late.into_iter().map(|(_, outcome)| (None, outcome));
        let mut answers: Vec<_> = late.collect();
        for (ticket, outcome) in self.opener.answers() {
            answers.push((self.purposes.remove(&ticket), outcome));
        }
        answers
    }
}
