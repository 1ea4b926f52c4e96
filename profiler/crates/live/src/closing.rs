//! Closing links without having the user wait.
//!
//! The kernel takes tens of milliseconds for each, most of it waiting for others
//! to let go. Links of many functions are few, and are closed side by side. Those
//! of one function each are many, and the kernel closes them one after the other
//! whatever one does: a process that outlives this one does that. So are those of
//! more libraries than a machine has unless somebody floods it.
//!
//! A thread must not be killed while it closes a link. The kernel then fails to remove its
//! breakpoints and reports that in its log, for a signal ends the search for the pages
//! (`uprobe_unregister`). The end of a process kills its threads.

use super::bpf::{
    perf,
    probe::{self, BpfLink},
};
use crate::locking::lock;
use std::{
    sync::{
        Arc, Mutex,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

/// Most links closed side by side.
const MAX_THREADS: usize = 32;
/// Most links that are closed here.
const MAX_LINKS: usize = 96;
/// How long to wait for them.
const PATIENCE: Duration = Duration::from_millis(250);
/// How long to wait longer for those that the kernel is at: what does not end then
/// waits for something that may never happen.
const AT_WORK: Duration = Duration::from_millis(200);

/// Closes links if that is quick; gives back those that it is not for.
pub fn at_once(links: Vec<BpfLink>) -> Vec<BpfLink> {
    if !probe::uprobe_multi().exists() || links.len() > MAX_LINKS {
        return links;
    }
    close_within(links, PATIENCE, AT_WORK)
}

/// Closes things on threads; gives back those that no thread has begun with after
/// `patience`. Those begun with are waited for a little longer, and then no more.
fn close_within<T: Send + 'static>(
    things: Vec<T>,
    patience: Duration,
    at_work: Duration,
) -> Vec<T> {
    let threads = things.len().min(MAX_THREADS);
    let queue = Arc::new(Mutex::new(things));
    let (running, ended) = mpsc::channel::<()>();
    for _ in 0..threads {
        let (queue, running) = (Arc::clone(&queue), running.clone());
        // Without a thread, what is left is given back.
        let _ = thread::Builder::new()
            .name("aiprof-close".into())
            .spawn(move || close_all(&queue, running));
    }
    drop(running);
    let wait = |until: Instant| {
        let left = until.saturating_duration_since(Instant::now());
        ended.recv_timeout(left) == Err(RecvTimeoutError::Timeout)
    };
    let is_late = wait(Instant::now() + patience);
    let left = std::mem::take(&mut *lock(&queue));
    if is_late && wait(Instant::now() + at_work) {
        tracing::debug!("probes are still being detached");
    }
    left
}

/// Closes one after the other; `running` is dropped when there are no more.
fn close_all<T>(queue: &Mutex<Vec<T>>, running: Sender<()>) {
    loop {
        // Not in the condition of the loop, where the lock would be held.
        let next = lock(queue).pop();
        match next {
            Some(thing) => drop(thing),
            None => break,
        }
    }
    drop(running);
}

/// Has another process close links, if there are any.
pub(crate) fn in_background(links: Vec<BpfLink>) {
    if links.is_empty() {
        return;
    }
    let descriptors = links.into_iter().map(BpfLink::into_fd).collect();
    if let Err(error) = perf::close_elsewhere(descriptors) {
        tracing::debug!("no other process can close links, so aiprof closes them: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Takes so long to be dropped, and counts.
    struct Slow(Duration, Arc<AtomicUsize>);

    impl Drop for Slow {
        fn drop(&mut self) {
            thread::sleep(self.0);
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn slow(n: usize, each: Duration) -> (Vec<Slow>, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        let all = (0..n).map(|_| Slow(each, Arc::clone(&count))).collect();
        (all, count)
    }

    #[test]
    fn all_are_closed_when_that_is_quick() {
        let (things, closed) = slow(100, Duration::from_millis(1));
        let minute = Duration::from_mins(1);
        assert!(close_within(things, minute, minute).is_empty());
        assert_eq!(closed.load(Ordering::Relaxed), 100);
    }

    #[test]
    fn what_is_not_closed_in_time_is_given_back_and_nothing_is_waited_for_longer() {
        let (things, _) = slow(100, Duration::from_mins(10));
        let begun = Instant::now();
        let short = Duration::from_millis(200);
        let left = close_within(things, short, short);
        assert!(begun.elapsed() < Duration::from_secs(60));
        assert_eq!(left.len(), 100 - MAX_THREADS);
        left.into_iter().for_each(std::mem::forget);
    }
}
