//! Reads what is there, dates it, and hands it over.

use super::abi::{Handle, SUCCESS, Timestamps};
use super::state::{self, Answered, Done, ProgramState, Taken};
use super::{real, tables};
use crate::batch::{Batch, head};
use crate::ffi;
use crate::thread::Watch;
use crate::timing::{
    TIMING_LEVEL_ZERO, TimingCall, TimingRefused, TimingUntimed, TimingWork, UNTIMED_CLOCK,
    UNTIMED_REASONS,
};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// How often what is over is read.
const PERIOD: Duration = Duration::from_millis(10);
/// Commands that are looked at before others may work on the state.
const AT_ONCE: usize = 32;
/// Commands without times after which the rest is for the next time.
const PATIENCE: usize = 512;

/// How often the end of the program tries to be alone, once per millisecond. The thread that
/// reads may have to wait long for a CPU. It must not be in the driver when the driver goes.
const MOST_TRIES: usize = 10_000;
/// The same where it can never be alone: the thread that ends the program was interrupted in
/// work on the state.
const TRIES_INTERRUPTED: usize = 200;

/// What is handed over, and which names were.
pub(super) struct Reporter {
    batch: Batch,
    is_refused: bool,
    /// Where the next look at the waiting commands begins.
    cursor: u64,
}

/// A command, dated: number of its device, when it began and ended.
struct Dated {
    done: Done,
    device: u32,
    times: (u64, u64),
    /// Its kernel's name; empty: none.
    name: Vec<u8>,
}

/// What is taken out of the state at a time.
#[derive(Default)]
struct Reported {
    calls: Vec<TimingCall>,
    dated: Vec<Dated>,
    untimed: [u64; UNTIMED_REASONS],
}

static REPORTER: Mutex<Option<Reporter>> = Mutex::new(None);
/// The program is about to end: the thread that reads stops where it is.
static ENDING: AtomicBool = AtomicBool::new(false);
/// The program ends: its driver may go at any time, and is not called any more.
static ENDED: AtomicBool = AtomicBool::new(false);

/// What is handed over, for this thread alone.
pub(super) fn lock() -> MutexGuard<'static, Option<Reporter>> {
    REPORTER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As long as the program runs.
pub(super) fn run() {
    let mut watch = Watch::new();
    while !watch.is_over() {
        std::thread::sleep(PERIOD);
        round(false);
    }
}

/// The program ends: what is there is all that will be.
pub(super) extern "C" fn finish() {
    // A handler of a signal may end the program while its thread works on the state: that
    // would wait for itself.
    let is_free = || !matches!(REPORTER.try_lock(), Err(TryLockError::WouldBlock));
    ENDING.store(true, Ordering::Release);
    let tries = match state::is_interrupted() {
        true => TRIES_INTERRUPTED,
        false => MOST_TRIES,
    };
    for _ in 0..tries {
        if is_free() && state::is_free() {
            return crate::guarded(|| round(true));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    ENDED.store(true, Ordering::Release);
}

/// In a child of the process: nothing of its parent's is handed over.
pub(super) fn forget_parent() {
    *lock() = None;
}

fn round(last: bool) {
    let mut reporter = lock();
    // Under the lock: no round is under way once the last one is over.
    if ENDED.fetch_or(last, Ordering::AcqRel) {
        return;
    }
    let reporter = reporter.get_or_insert_with(|| Reporter {
        batch: Batch::new(TIMING_LEVEL_ZERO),
        is_refused: false,
        cursor: 0,
    });
    reporter.read(last);
    let taken = state::with(|state| take(state, last));
    reporter.tell(&taken);
    if tables::is_refused() && !reporter.is_refused {
        reporter.is_refused = true;
        reporter.batch.push(&TimingRefused {
            record: head::<TimingRefused>(),
            pad: 0,
        });
    }
    reporter.batch.hand_over();
}

/// Takes what can be handed over.
fn take(state: &mut ProgramState, last: bool) -> Reported {
    let mut taken = Reported {
        calls: std::mem::take(&mut state.calls),
        ..Reported::default()
    };
    let mut all = Vec::new();
    for device in state.devices.values_mut() {
        device.calibrate_if_due(last);
        let number = device.number;
        let dated = device.dated(last).into_iter();
        all.extend(dated.map(|(done, times)| (done, times, number)));
    }
    for (done, times, device) in all {
        let Some(times) = times else {
            state.count_untimed(UNTIMED_CLOCK, 1);
            continue;
        };
        let name = state.names.get(done.work.name).map(<[u8]>::to_vec);
        taken.dated.push(Dated {
            done,
            device,
            times,
            name: name.unwrap_or_default(),
        });
    }
    taken.untimed = std::mem::take(&mut state.untimed);
    taken
}

impl Reporter {
    /// Reads commands that are over; `last`: all of them.
    fn read(&mut self, last: bool) {
        let mut missed = 0;
        let mut looked = 0;
        let waiting = state::with(|state| state.waiting());
        if last {
            self.cursor = 0;
        }
        let goes_on = || last || !ENDING.load(Ordering::Acquire);
        while looked < waiting && goes_on() && (last || missed < PATIENCE) {
            let mut taken = Vec::with_capacity(AT_ONCE);
            let (at, mut read) = state::with(|state| {
                let at = state.take_own(self.cursor, AT_ONCE, &mut taken);
                let (_, read) = state.read_some(self.cursor, AT_ONCE);
                (at, read)
            });
            let answers: Vec<Answered> = taken.iter().map(ask).collect();
            read += answers.iter().filter(|(_, ticks)| ticks.is_some()).count();
            state::with(|state| state.answered(&answers));
            self.cursor = at;
            looked += AT_ONCE;
            missed = if read == 0 { missed + AT_ONCE } else { 0 };
            if last && at == 0 {
                break;
            }
        }
    }

    fn tell(&mut self, taken: &Reported) {
        // Another driver's helper in the same process has other numbers.
        let base = own_numbers();
        for call in &taken.calls {
            self.batch.push(&TimingCall {
                record: head::<TimingCall>(),
                correlation: base | call.correlation,
                ..*call
            });
        }
        let mut told = HashSet::new();
        for dated in &taken.dated {
            let done = &dated.done;
            let name = match done.work.name {
                0 => 0,
                number => base | number,
            };
            if name != 0 && told.insert(name) {
                self.batch.name(name, &dated.name);
            }
            self.batch.push(&TimingWork {
                record: head::<TimingWork>(),
                what: done.work.what,
                device: dated.device,
                context: done.context,
                direction: 0,
                stream: done.stream,
                correlation: base | done.correlation,
                start_ns: dated.times.0,
                end_ns: dated.times.1,
                bytes: done.work.bytes,
                name,
                groups: done.work.groups,
                local: done.work.local,
            });
        }
        for (reason, count) in (0..).zip(taken.untimed) {
            if count > 0 {
                self.batch.push(&TimingUntimed {
                    record: head::<TimingUntimed>(),
                    count,
                    reason,
                    pad: 0,
                });
            }
        }
    }
}

/// Asks an event of the helper's own, and resets it if it has an answer.
fn ask(&(id, event): &Taken) -> Answered {
    let mut times = Timestamps::default();
    // SAFETY: the helper's own, in a context that does not go meanwhile.
    let result = unsafe { real::event_times(event as Handle, &raw mut times) };
    if result != SUCCESS {
        return (id, None);
    }
    // SAFETY: as above; its command is over.
    unsafe { real::event_reset(event as Handle) };
    let ticks = (times.global_start, times.global_end, ffi::now());
    (id, Some(ticks))
}

/// High bits of the numbers of this copy of the helper.
fn own_numbers() -> u64 {
    let place = std::ptr::from_ref(&REPORTER) as u64;
    ((place >> 12) & 0xf_ffff) << 40
}
