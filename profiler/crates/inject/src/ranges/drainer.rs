//! The thread that empties the rings and hands marks over.

use super::writer::{FullBatch, Writer};
use super::{ring, tables};
use crate::batch::{aiprof_timing_batch, is_probed};
use crate::guarded;
use crate::thread::{self, Watch};
use crate::timing::{MARKS_LOST_ROOM, MARKS_LOST_THREADS};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::Thread;
use std::time::Duration;

/// How often rings are emptied while there is something in them.
const PERIOD: Duration = Duration::from_millis(20);
/// How long it sleeps while nothing is marked; whoever marks something wakes it.
const IDLE: Duration = Duration::from_millis(500);
/// Most bytes that wait for somebody to look.
const MOST_WAITING: usize = 32 << 20;
/// Between two batches: who reads them has other things to read, too.
const PAUSE: Duration = Duration::from_micros(500);
/// How often the end of the program tries to be alone, a millisecond apart.
const MOST_TRIES: usize = 200;

/// What is on its way out.
#[derive(Default)]
pub(super) struct Drainer {
    writer: Writer,
    waiting: VecDeque<FullBatch>,
    waiting_bytes: usize,
}

static DRAINER: Mutex<Option<Drainer>> = Mutex::new(None);

/// What is on its way out, for this thread alone.
pub(super) fn lock() -> MutexGuard<'static, Option<Drainer>> {
    DRAINER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the thread; `None`: all is handed over when the program ends.
pub(super) fn spawn() -> Option<Thread> {
    thread::spawn(run)
}

fn run() {
    let mut watch = Watch::new();
    while !watch.is_over() {
        match round() {
            RoundResult::More => std::thread::sleep(PAUSE),
            RoundResult::Some => std::thread::park_timeout(PERIOD),
            RoundResult::Nothing => {
                ring::IS_IDLE.store(true, Ordering::Relaxed);
                // Marks that were written before this store did not wake this thread.
                if round() == RoundResult::Nothing {
                    std::thread::park_timeout(IDLE);
                }
                ring::IS_IDLE.store(false, Ordering::Relaxed);
            }
        }
    }
}

/// What a look at the rings has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoundResult {
    Nothing,
    Some,
    /// There is more to hand over.
    More,
}

/// The program ends: what is there is all that will be.
pub(super) extern "C" fn finish() {
    // A handler of a signal may end the program while its thread works on the state: that
    // would wait for itself.
    let is_free = || {
        let is_held = matches!(DRAINER.try_lock(), Err(TryLockError::WouldBlock));
        !is_held && ring::is_free() && tables::is_free()
    };
    for _ in 0..MOST_TRIES {
        if is_free() {
            return guarded(|| {
                let mut drainer = lock();
                let drainer = drainer.get_or_insert_default();
                drainer.look(true);
                while drainer.hand_over() {
                    std::thread::sleep(PAUSE);
                }
            });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Empties all rings and hands over a batch.
fn round() -> RoundResult {
    let mut drainer = lock();
    let drainer = drainer.get_or_insert_default();
    let is_any = drainer.look(false);
    match (drainer.hand_over(), is_any) {
        (true, _) => RoundResult::More,
        // No probe yet, or no batch left.
        (false, true) => RoundResult::Some,
        (false, false) if drainer.waiting.is_empty() => RoundResult::Nothing,
        (false, false) => RoundResult::Some,
    }
}

impl Drainer {
    /// Empties all rings; `false`: there was nothing.
    fn look(&mut self, is_last: bool) -> bool {
        let rings = ring::lock().list.clone();
        let mut is_any = false;
        for ring in &rings {
            // Before: what its thread wrote last is taken.
            let is_over = ring.is_over.load(Ordering::Acquire);
            let words = ring.take();
            is_any |= !words.is_empty();
            self.add(ring.tid, &words);
            if is_over || is_last {
                // Nothing comes behind them.
                ring::count_lost(MARKS_LOST_THREADS, ring.take_dropped());
            }
            if is_over {
                ring::lock().list.retain(|other| !Arc::ptr_eq(other, ring));
            }
        }
        self.finish();
        is_any
    }

    fn add(&mut self, tid: u32, words: &[u64]) {
        if words.is_empty() {
            return;
        }
        let Self {
            writer,
            waiting,
            waiting_bytes,
        } = self;
        tables::with(|tables| {
            writer.add(tid, words, tables, &mut |full| {
                keep(waiting, waiting_bytes, full)
            });
        });
    }

    fn finish(&mut self) {
        let Self {
            writer,
            waiting,
            waiting_bytes,
        } = self;
        let mut full = |full| keep(waiting, waiting_bytes, full);
        for (reason, count) in (0..).zip(ring::take_lost()) {
            if count > 0 {
                writer.lost(reason, count, &mut full);
            }
        }
        writer.finish(&mut full);
    }

    /// Hands over the oldest batch, if somebody looks; `true`: there is more.
    fn hand_over(&mut self) -> bool {
        if is_probed()
            && let Some(batch) = self.waiting.pop_front()
        {
            self.waiting_bytes -= batch.words.len() * 8;
            aiprof_timing_batch(batch.words.as_ptr().cast(), batch.words.len() * 8);
            return !self.waiting.is_empty();
        }
        false
    }
}

/// Lets a batch wait, or counts what is in it: behind those that wait, so it is known where
/// something is missing.
fn keep(waiting: &mut VecDeque<FullBatch>, bytes: &mut usize, full: FullBatch) {
    let needed = full.words.len() * 8;
    if *bytes + needed > MOST_WAITING {
        return ring::count_lost(MARKS_LOST_ROOM, full.marks);
    }
    *bytes += needed;
    waiting.push_back(full);
}
