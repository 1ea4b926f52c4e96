//! The thread that reads when commands ran, and hands it over.

use super::api::{self, at};
use super::clock::{DeviceClock, DeviceClocks};
use super::held::{self, Held, Waiting};
use super::{names, queues};
use crate::batch::{Batch, head};
use crate::thread::{self, Watch};
use crate::timing::{
    TIMING_OPENCL, TimingCall, TimingClock, TimingOwnThread, TimingRefused, TimingWork,
};
use crate::{ffi, guarded};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// How often it looks.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest that a program's end waits for the last times.
const LAST: Duration = Duration::from_secs(10);
/// For so long of it, commands are read; then the rest is counted.
const LONGEST_NS: u64 = 1_500_000_000;
/// Commands of a queue out of order that are looked at in one pass.
const LOOKS: usize = 4096;
/// `CL_EVENT_COMMAND_EXECUTION_STATUS`, `CL_COMPLETE`.
const STATUS: u32 = 0x11d3;
const COMPLETE: i32 = 0;
/// `CL_PROFILING_COMMAND_*`.
const QUEUED: u32 = 0x1280;
const START: u32 = 0x1282;
const END: u32 = 0x1283;

/// Begins to time commands, once in a process.
pub(super) fn start() {
    ffi::at_exit(finish);
    ffi::in_children(child);
    held::set_on(true);
    if thread::spawn(run).is_none() {
        held::set_on(false);
    }
}

/// The program ends: what has ended by now is all that will be.
extern "C" fn finish() {
    if held::is_on() {
        guarded(|| held::stop(LAST));
    }
}

/// A forked process has no reader.
extern "C" fn child() {
    ffi::forget_tids();
    held::set_on(false);
}

/// What waits, and what is known of devices.
struct Reader {
    batch: Batch,
    clocks: DeviceClocks,
    devices: HashMap<u32, DeviceClock>,
    /// Numbers calls.
    calls: u64,
    is_refused: bool,
}

fn run() {
    let mut reader = Reader {
        batch: Batch::new(TIMING_OPENCL),
        clocks: DeviceClocks::default(),
        devices: HashMap::new(),
        calls: 0,
        is_refused: false,
    };
    // First of all: calls of this thread are not the program's.
    reader.batch.push(&TimingOwnThread {
        record: head::<TimingOwnThread>(),
        pad: 0,
    });
    let mut watch = Watch::new();
    loop {
        held::begin_pass(PAUSE);
        if watch.is_over() {
            held::set_on(false);
        }
        let is_last = !held::is_on();
        let mut waiting = held::waiting();
        let waiting = waiting.get_or_insert_default();
        match is_last {
            true => reader.last_passes(waiting),
            false => reader.pass(waiting),
        }
        reader.batch.hand_over();
        held::end_pass(is_last);
        if is_last {
            return;
        }
    }
}

impl Reader {
    /// Reads all that has ended, as long as the program waits for it.
    fn last_passes(&mut self, waiting: &mut Waiting) {
        let until = ffi::now() + LONGEST_NS;
        let (mut left, mut idle) = (usize::MAX, 0);
        // A pass looks at some commands of each queue.
        while left > 0 && idle <= left / LOOKS {
            self.pass(waiting);
            let now = waiting.values().map(VecDeque::len).sum();
            idle = if now < left { 0 } else { idle + 1 };
            left = now;
            if ffi::now() > until {
                self.batch.lost(left as u64);
                return;
            }
        }
    }

    fn pass(&mut self, waiting: &mut Waiting) {
        held::take_new(waiting);
        self.clocks.read();
        self.read_timers(waiting);
        for commands in waiting.values_mut() {
            self.queue(commands);
        }
        waiting.retain(|_, commands| !commands.is_empty());
        self.batch.lost(held::take_lost());
    }

    /// Reads what has ended of a queue.
    fn queue(&mut self, commands: &mut VecDeque<Held>) {
        for _ in 0..commands.len().min(LOOKS) {
            let Some(held) = commands.pop_front() else {
                return;
            };
            let status = api::info(at::EVENT_INFO, held.event, STATUS);
            // A number of 4 bytes; below 0 it has failed.
            let status = status.map_or(-1, |status| (status as u32).cast_signed());
            if status <= COMPLETE {
                if status == COMPLETE {
                    self.ended(&held);
                }
                held::remove(held.event);
                continue;
            }
            if held.seat.in_order {
                commands.push_front(held);
                return;
            }
            commands.push_back(held);
        }
    }

    /// A command has ended: hands over when it ran.
    fn ended(&mut self, held: &Held) {
        let time = |what| api::info(at::EVENT_TIMES, held.event, what);
        let Some(device) = self.devices.get_mut(&held.seat.device) else {
            return;
        };
        if device.wants_check()
            && let Some(queued) = time(QUEUED)
        {
            device.check(&self.clocks, queued, held.call);
        }
        if device.is_refuted() {
            return self.refuse();
        }
        let ran = time(START).zip(time(END));
        let known = (held.call.0, ffi::now());
        let ran = ran.and_then(|ran| device.times(&self.clocks, ran, known));
        let Some(ran) = ran else {
            return self.batch.lost(1);
        };
        if let Some(source) = device.news() {
            self.batch.push(&TimingClock {
                record: head::<TimingClock>(),
                device: held.seat.device,
                source,
            });
        }
        self.calls += 1;
        self.batch.push(&TimingCall {
            record: head::<TimingCall>(),
            tid: held.tid,
            pad: 0,
            correlation: self.calls,
            start_ns: held.call.0,
            end_ns: held.call.1,
        });
        if let Some(text) = names::text(held.work.name) {
            self.batch.name(held.work.name, &text);
        }
        self.batch.push(&work(held, ran, self.calls));
    }

    /// Nothing is known of a device's clock.
    fn refuse(&mut self) {
        if !std::mem::replace(&mut self.is_refused, true) {
            self.batch.push(&TimingRefused {
                record: head::<TimingRefused>(),
                pad: 0,
            });
        }
    }

    /// Reads the clocks of devices that can be asked; those of new devices for the first
    /// time.
    fn read_timers(&mut self, waiting: &Waiting) {
        for commands in waiting.values() {
            if let Some(held) = commands.front() {
                let number = held.seat.device;
                let has_timer = || timer(number).is_some();
                let known = self.devices.entry(number);
                known.or_insert_with(|| DeviceClock::new(has_timer()));
            }
        }
        for (number, device) in &mut self.devices {
            if let Some(relation) = device.timer()
                && let Some((time, between)) = timer(*number)
            {
                relation.note(time, between);
            }
        }
    }
}

/// What a device's clock shows, and between which times.
fn timer(number: u32) -> Option<(u64, (u64, u64))> {
    let handle = queues::device(number)?;
    if api::target(at::DEVICE_TIMER) == 0 {
        return None;
    }
    let (mut device, mut host) = (0_u64, 0_u64);
    let before = ffi::now();
    // SAFETY: clGetDeviceAndHostTimer of a device that the program uses.
    let status = unsafe {
        api::call!(at::DEVICE_TIMER, (handle => usize, (&raw mut device) => *mut u64,
            (&raw mut host) => *mut u64) -> i32)
    };
    let after = ffi::now();
    (status == api::SUCCESS && device != 0).then_some((device, (before, after)))
}

fn work(held: &Held, (start_ns, end_ns): (u64, u64), correlation: u64) -> TimingWork {
    TimingWork {
        record: head::<TimingWork>(),
        what: held.work.what,
        device: held.seat.device,
        context: held.seat.context,
        direction: held.work.direction,
        stream: held.seat.stream,
        correlation,
        start_ns,
        end_ns,
        bytes: held.work.bytes,
        name: held.work.name,
        ..TimingWork::default()
    }
}
