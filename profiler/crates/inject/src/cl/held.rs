//! Events that the helper holds until it has read their times.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most events that are held. Commands that the program does not wait for may never end, and
/// an event takes some hundred bytes in the runtime.
const MOST: usize = 1 << 16;
/// Number of new events at which the reader is woken.
const MANY: usize = 1 << 12;
/// The longest that a program waits for the reader when it releases something.
const SETTLE: Duration = Duration::from_millis(50);

/// What a command does.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EnqueuedWork {
    /// `WORK_KERNEL` and its like, as records have it.
    pub(super) what: u32,
    pub(super) direction: u32,
    pub(super) bytes: u64,
    /// The number of the kernel's name; 0: none.
    pub(super) name: u64,
}

/// Where a command runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seat {
    pub(super) device: u32,
    pub(super) context: u32,
    /// Number of the queue.
    pub(super) stream: u64,
    /// Its commands end in their order.
    pub(super) in_order: bool,
}

/// A command whose times are still to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) event: usize,
    pub(super) work: EnqueuedWork,
    pub(super) seat: Seat,
    pub(super) tid: u32,
    /// When its call began and ended.
    pub(super) call: (u64, u64),
}

/// Commands by queue, in the order of their calls.
pub(super) type Waiting = HashMap<u64, VecDeque<Held>>;

/// What is new.
#[derive(Debug)]
struct Inbox {
    new: Vec<Held>,
    /// Passes of the reader that were begun, and ended.
    begun: u64,
    ended: u64,
    /// Somebody waits for a pass.
    is_wanted: bool,
    is_stopped: bool,
}

static INBOX: Mutex<Inbox> = Mutex::new(Inbox {
    new: Vec::new(),
    begun: 0,
    ended: 0,
    is_wanted: false,
    is_stopped: false,
});
static WAITING: Mutex<Option<Waiting>> = Mutex::new(None);
static WAKE: Condvar = Condvar::new();
static PASSED: Condvar = Condvar::new();
static COUNT: AtomicUsize = AtomicUsize::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);
static IS_ON: AtomicBool = AtomicBool::new(false);

fn lock() -> MutexGuard<'static, Inbox> {
    INBOX.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From here on somebody reads; or no longer.
pub(super) fn set_on(is_on: bool) {
    IS_ON.store(is_on, Ordering::Release);
}

/// Whether commands are timed.
pub(super) fn is_on() -> bool {
    IS_ON.load(Ordering::Acquire)
}

/// Whether there is room for another event; if not, a command is counted as lost.
pub(super) fn has_room() -> bool {
    let has_room = COUNT.load(Ordering::Relaxed) < MOST;
    if !has_room {
        LOST.fetch_add(1, Ordering::Relaxed);
    }
    has_room
}

/// Commands that there was no room for, since the last time.
pub(super) fn take_lost() -> u64 {
    LOST.swap(0, Ordering::Relaxed)
}

/// Holds an event; the reference is the helper's.
pub(super) fn add(held: Held) {
    let mut inbox = lock();
    inbox.new.push(held);
    let is_many = inbox.new.len().is_multiple_of(MANY);
    drop(inbox);
    COUNT.fetch_add(1, Ordering::Relaxed);
    if is_many {
        WAKE.notify_one();
    }
}

/// Runs a query of an event's references while none of them changes; it is given how many
/// are the helper's. It waits for the reader, for programs ask for that in tests alone.
pub(super) fn with_references<T>(event: usize, query: impl FnOnce(u32) -> T) -> T {
    let waiting = waiting();
    let inbox = lock();
    let known = waiting.iter().flat_map(HashMap::values).flatten();
    let its = known.chain(&inbox.new).filter(|held| held.event == event);
    query(u32::try_from(its.count()).unwrap_or(u32::MAX))
}

/// What the reader has not read yet. Whoever holds this sees no event go.
pub(super) fn waiting() -> MutexGuard<'static, Option<Waiting>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets go of an event.
pub(super) fn remove(event: usize) {
    super::api::release_event(event);
    COUNT.fetch_sub(1, Ordering::Relaxed);
}

/// Waits, not for long, until all that has ended by now is let go of.
pub(super) fn settle() {
    if !is_on() || COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mut inbox = lock();
    let wanted = inbox.begun + 1;
    inbox.is_wanted = true;
    WAKE.notify_one();
    let is_waiting = |inbox: &mut Inbox| inbox.ended < wanted && !inbox.is_stopped;
    drop(PASSED.wait_timeout_while(inbox, SETTLE, is_waiting));
}

/// The program ends: has the reader read what there is, and stop. Waits so long at most.
pub(super) fn stop(longest: Duration) {
    let mut inbox = lock();
    inbox.is_wanted = true;
    set_on(false);
    WAKE.notify_one();
    drop(PASSED.wait_timeout_while(inbox, longest, |inbox| !inbox.is_stopped));
}

/// Called by the reader: waits until it is time for a pass.
pub(super) fn begin_pass(pause: Duration) {
    let inbox = lock();
    let is_idle = |inbox: &mut Inbox| !inbox.is_wanted && inbox.new.len() < MANY;
    let waited = WAKE.wait_timeout_while(inbox, pause, is_idle);
    let (mut inbox, _) = waited.unwrap_or_else(PoisonError::into_inner);
    inbox.begun += 1;
    inbox.is_wanted = false;
}

/// Puts what is new to what waits.
pub(super) fn take_new(waiting: &mut Waiting) {
    let room = Vec::with_capacity(MANY);
    let new = std::mem::replace(&mut lock().new, room);
    for held in new {
        let queue = waiting.entry(held.seat.stream).or_default();
        queue.push_back(held);
    }
}

/// A pass is over; `is_last`: there will be no other.
pub(super) fn end_pass(is_last: bool) {
    let mut inbox = lock();
    inbox.ended = inbox.begun;
    inbox.is_stopped |= is_last;
    PASSED.notify_all();
}
