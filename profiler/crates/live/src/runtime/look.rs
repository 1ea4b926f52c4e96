//! The thread that reads the memory of other processes while a recording runs:
//! environments, tables of addresses, pointers.
//!
//! Each reading takes the lock of the process's address space, which a thread of
//! it that waits for a CPU may hold for long: the rings cannot wait for that.

use super::{attach::Stubs, discover, handed_out::Handed};
use crate::inspect::{ProcessMemory, ReadMemory};
use aiprof_model::probes::table::CheckedTable;
use aiprof_system::workers::Bell;
use std::{
    ffi::OsString,
    os::fd::BorrowedFd,
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender, SyncSender},
    },
    thread,
};

/// Most readings that wait.
const MAX_WAITING: usize = 4096;

/// Something to read in a process.
#[derive(Debug)]
pub(super) struct Look {
    /// The process.
    pub(super) pid: u32,
    /// What of it.
    pub(super) what: What,
}

/// What is read.
#[derive(Debug)]
pub(super) enum What {
    /// A variable of its environment.
    Variable(&'static str),
    /// A table of functions' addresses.
    Table {
        /// Address of the first.
        at: u64,
        /// Which functions they are.
        symbols: Vec<String>,
        /// The table that has them.
        table: Arc<CheckedTable>,
    },
    /// What functions of a file lead to. The file is loaded higher than its headers state.
    Chains {
        /// How much.
        bias: u64,
        /// The functions.
        stubs: Arc<Stubs>,
    },
}

/// What was read.
#[derive(Debug)]
pub(super) enum SeenInMemory {
    /// The value of a variable that is set.
    Variable(OsString),
    /// Functions to be probed.
    Functions(Vec<Handed>),
}

/// The thread, started when there is something to do.
#[derive(Debug)]
pub(crate) struct Looker {
    thread: Option<(SyncSender<Look>, Receiver<SeenInMemory>)>,
    /// Rings when something was seen; `None`: there was no descriptor left.
    bell: Option<Arc<Bell>>,
    /// Readings that could not be done because too many waited.
    dropped: u64,
}

impl Looker {
    /// No thread yet.
    pub(super) fn new() -> Self {
        Self {
            thread: None,
            bell: Bell::new().ok().map(Arc::new),
            dropped: 0,
        }
    }

    /// Readable when something was seen since [`Self::seen`] was called.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.bell.as_ref().map(|bell| bell.fd())
    }

    /// Whether something was seen since then.
    pub(crate) fn has_seen(&self) -> bool {
        self.bell.as_ref().is_some_and(|bell| bell.has_rung())
    }

    /// Has something read; what is seen is given by [`Self::seen`] later.
    pub(super) fn look(&mut self, look: Look) {
        if self.thread.is_none() {
            self.thread = start(self.bell.clone());
        }
        let taken = self.thread.as_ref().map(|(jobs, _)| jobs.try_send(look));
        if !matches!(taken, Some(Ok(()))) {
            self.dropped += 1;
        }
    }

    /// What was seen since the last call.
    pub(super) fn seen(&self) -> Vec<SeenInMemory> {
        self.bell.iter().for_each(|bell| bell.silence());
        let results = self.thread.iter();
        results.flat_map(|(_, seen)| seen.try_iter()).collect()
    }

    /// Readings left out so far.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// Starts the thread; it ends when its queue is dropped.
fn start(bell: Option<Arc<Bell>>) -> Option<(SyncSender<Look>, Receiver<SeenInMemory>)> {
    let (jobs, queue) = mpsc::sync_channel(MAX_WAITING);
    // No more results than readings, and those are bounded.
    let (results, seen) = mpsc::channel();
    thread::Builder::new()
        .name("aiprof-look".into())
        .spawn(move || work(&queue, &results, bell.as_deref()))
        .inspect_err(|error| {
            tracing::warn!("cannot start the thread that reads process memory: {error}")
        })
        .ok()
        .map(|_| (jobs, seen))
}

fn work(queue: &Receiver<Look>, results: &Sender<SeenInMemory>, bell: Option<&Bell>) {
    while let Ok(Look { pid, what }) = queue.recv() {
        let seen = match what {
            What::Variable(name) => discover::variable_of(pid, name).map(SeenInMemory::Variable),
            what => match ProcessMemory::open(pid) {
                Ok(memory) => Some(SeenInMemory::Functions(read(pid, what, &memory))),
                Err(error) => {
                    tracing::debug!("cannot read the memory of process {pid}: {error}");
                    None
                }
            },
        };
        let Some(seen) = seen else {
            continue;
        };
        if results.send(seen).is_err() {
            return;
        }
        bell.into_iter().for_each(Bell::ring);
    }
}

fn read(pid: u32, what: What, memory: &dyn ReadMemory) -> Vec<Handed> {
    let handed = |symbol: &str, address: u64, table: &Arc<CheckedTable>| Handed {
        pid,
        address,
        symbol: symbol.to_owned(),
        table: Arc::clone(table),
    };
    match what {
        What::Variable(_) => Vec::new(),
        What::Table { at, symbols, table } => {
            let mut bytes = vec![0; symbols.len() * 8];
            let read = memory.read(at, &mut bytes) / 8;
            let words = bytes.as_chunks::<8>().0.iter().take(read);
            let addresses = words.map(|word| u64::from_le_bytes(*word));
            let pairs = symbols.iter().zip(addresses);
            let wanted = pairs.filter(|(s, address)| *address != 0 && table.function(s).is_some());
            wanted
                .map(|(s, address)| handed(s, address, &table))
                .collect()
        }
        What::Chains { bias, stubs } => {
            let follow = |(symbol, chain): &(String, super::stubs::Chain)| {
                Some(handed(symbol, chain.follow(bias, memory)?, &stubs.table))
            };
            stubs.chains.iter().filter_map(follow).collect()
        }
    }
}
