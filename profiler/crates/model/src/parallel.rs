//! Work on pieces in several threads, with the results in the pieces' order.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

/// Pieces that wait for each thread: enough to keep it busy.
const WAITING: usize = 2;

/// How many threads are of use.
pub fn threads() -> usize {
    std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(16)
}

/// Runs two things at once, one of them here.
pub fn both<A, B: Send>(here: impl FnOnce() -> A, there: impl FnOnce() -> B + Send) -> (A, B) {
    std::thread::scope(|scope| {
        let there = scope.spawn(there);
        let here = here();
        match there.join() {
            Ok(there) => (here, there),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Where `produce` puts pieces.
#[derive(Debug)]
pub struct Pieces<I> {
    next: usize,
    to: SyncSender<(usize, I)>,
}

impl<I> Pieces<I> {
    /// Hands a piece over; waits while too many are under way. False: the workers are gone.
    pub fn put(&mut self, piece: I) -> bool {
        self.next += 1;
        self.to.send((self.next - 1, piece)).is_ok()
    }
}

/// Runs `produce` in a thread of its own, `work` on each piece in several, and `consume` on
/// each result here, in the pieces' order, until it returns false. Few pieces are held at a
/// time. Returns what `produce` does.
pub fn ordered<I: Send, O: Send, R: Send>(
    produce: impl FnOnce(&mut Pieces<I>) -> R + Send,
    work: impl Fn(I) -> O + Sync,
    consume: impl FnMut(O) -> bool,
) -> R {
    ordered_in(threads(), produce, work, consume)
}

/// The same, with `work` in `threads` threads: where each piece takes much memory.
pub fn ordered_in<I: Send, O: Send, R: Send>(
    threads: usize,
    produce: impl FnOnce(&mut Pieces<I>) -> R + Send,
    work: impl Fn(I) -> O + Sync,
    mut consume: impl FnMut(O) -> bool,
) -> R {
    let (to_workers, pieces) = sync_channel(threads * WAITING);
    let (to_here, results) = sync_channel(threads * WAITING);
    // The workers' alone: when the last has gone, so has what `put` waits for.
    let pieces = Arc::new(Mutex::new(pieces));
    std::thread::scope(|scope| {
        let producer = scope.spawn(move || {
            produce(&mut Pieces {
                next: 0,
                to: to_workers,
            })
        });
        for _ in 0..threads {
            let (pieces, work, to_here) = (Arc::clone(&pieces), &work, to_here.clone());
            scope.spawn(move || worker(&pieces, work, &to_here));
        }
        drop((pieces, to_here));
        let mut early: BTreeMap<usize, O> = BTreeMap::new();
        let mut next = 0;
        'results: for (index, result) in results {
            early.insert(index, result);
            while let Some(result) = early.remove(&next) {
                next += 1;
                if !consume(result) {
                    break 'results;
                }
            }
        }
        match producer.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn worker<I, O>(
    pieces: &Mutex<Receiver<(usize, I)>>,
    work: impl Fn(I) -> O,
    to: &SyncSender<(usize, O)>,
) {
    loop {
        let piece = match pieces.lock() {
            Ok(pieces) => pieces.recv(),
            // Another worker panicked, which will be reported.
            Err(_) => return,
        };
        let Ok((index, piece)) = piece else { return };
        if to.send((index, work(piece))).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order() {
        let mut seen = Vec::new();
        let produced = ordered(
            |pieces| (0..1000u64).filter(|i| pieces.put(*i)).count(),
            |i| {
                std::thread::sleep(std::time::Duration::from_micros(i * 7919 % 100));
                i * 2
            },
            |result| {
                seen.push(result);
                true
            },
        );
        assert_eq!(produced, 1000);
        assert_eq!(seen, (0..1000).map(|i| i * 2).collect::<Vec<_>>());
    }
    /// Runs `ordered` over more pieces than can wait, in a thread that is given a
    /// minute. False: it does not come back.
    fn comes_back(work: fn(u64) -> u64, consume: fn(u64) -> bool) -> bool {
        let (done, is_done) = sync_channel::<()>(1);
        std::thread::spawn(move || {
            let _done = done;
            ordered(
                |pieces| (0..100_000u64).all(|i| pieces.put(i)),
                work,
                consume,
            )
        });
        let waited = is_done.recv_timeout(std::time::Duration::from_secs(60));
        waited == Err(std::sync::mpsc::RecvTimeoutError::Disconnected)
    }

    #[test]
    fn a_consumer_that_stops_ends_all() {
        assert!(comes_back(|i| i, |i| i < 10));
    }

    #[test]
    fn work_that_panics_ends_all() {
        assert!(comes_back(
            |i| u64::from(i != u64::MAX) / u64::from(i == u64::MAX),
            |_| true
        ));
    }
}
