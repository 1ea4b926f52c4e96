//! What is known of the program's objects, and the commands whose times are awaited.

use super::abi::Handle;
use super::device::TimedDevice;
use super::events::TimedContext;
use crate::ffi;
use crate::timing::{
    TimingCall, UNTIMED_AMBIGUOUS, UNTIMED_EVENT, UNTIMED_REASONS, UNTIMED_ROOM, WORK_KERNEL,
};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Most calls that wait to be handed over.
const MOST_CALLS: usize = 1 << 17;
/// Most commands whose times are awaited.
pub(super) const MOST_JOBS: usize = 1 << 18;
/// Most commands of recorded lists.
const MOST_COMMANDS: usize = 1 << 20;

/// By the address of an object.
pub(super) type Map<T> = HashMap<usize, T, BuildHasherDefault<Addresses>>;

/// Hashes addresses, which a program does not choose to do harm to itself.
#[derive(Default)]
pub(super) struct Addresses(u64);

impl Hasher for Addresses {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_usize(usize::from(*byte));
        }
    }

    fn write_usize(&mut self, address: usize) {
        // The multiplier of FxHash; the low bits of addresses are all the same.
        let mixed = (self.0 ^ address as u64).wrapping_mul(0x517c_c1b7_2722_0a95);
        self.0 = mixed.rotate_left(26);
    }
}

/// What a command does.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CommandWork {
    /// `WORK_KERNEL` and its like.
    pub(super) what: u32,
    pub(super) bytes: u64,
    /// Number of its kernel's name; 0: none.
    pub(super) name: u64,
    pub(super) groups: [u32; 3],
    pub(super) local: [u32; 3],
}

/// A command of a recorded list.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListedCommand {
    pub(super) event: usize,
    pub(super) is_own: bool,
    pub(super) work: CommandWork,
    pub(super) correlation: u64,
    /// The one of its execution whose times are awaited.
    pub(super) job: Option<u64>,
}

/// A command list.
#[derive(Debug)]
pub(super) struct TimedList {
    pub(super) context: usize,
    pub(super) device: usize,
    /// The number among the streams, if it is an immediate list.
    pub(super) stream: Option<u64>,
    /// Commands can be timed: nothing else executes them.
    pub(super) is_timed: bool,
    pub(super) commands: Vec<ListedCommand>,
    /// Where it was executed last: the queue or the immediate list, and the fence.
    pub(super) last: [usize; 2],
}

impl TimedList {
    /// An empty one.
    pub(super) fn new(context: usize, device: usize, stream: Option<u64>, is_timed: bool) -> Self {
        Self {
            context,
            device,
            stream,
            is_timed,
            commands: Vec::new(),
            last: [0; 2],
        }
    }
}

/// A command of which the times are awaited.
#[derive(Clone, Copy, Debug)]
pub(super) struct AwaitedCommand {
    pub(super) event: usize,
    pub(super) is_own: bool,
    pub(super) context: usize,
    pub(super) device: usize,
    pub(super) stream: u64,
    pub(super) submit_ns: u64,
    /// Known when the call that appended it has returned.
    pub(super) work: Option<(CommandWork, u64)>,
    /// The recorded list that it is of, and its place there.
    pub(super) command: Option<(usize, usize)>,
    /// Its event was signalled for an earlier one, too: it is read when all is over.
    pub(super) is_deferred: bool,
    /// The thread that reads looks at its event right now.
    pub(super) is_taken: bool,
    /// Ticks of begin and end, and when they were read.
    pub(super) ticks: Option<(u64, u64, u64)>,
}

/// A job that was taken to be read, and its event, the helper's own.
pub(super) type Taken = (u64, usize);

/// A taken job, and its ticks of begin and end and when they were read; `None`: none yet.
pub(super) type Answered = (u64, Option<(u64, u64, u64)>);

/// A command whose times were read, in the device's ticks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) work: CommandWork,
    pub(super) correlation: u64,
    pub(super) context: u32,
    pub(super) stream: u64,
    pub(super) ticks: (u64, u64),
    pub(super) submit_ns: u64,
    pub(super) read_ns: u64,
}

/// An event of the program's that has timestamps.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TimedEvent {
    pub(super) job: Option<u64>,
    /// The device resets it, or it was signalled by others: it is unknown whose its times
    /// are.
    pub(super) is_spoiled: bool,
}

/// A kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimedKernel {
    pub(super) name: u64,
    pub(super) local: [u32; 3],
}

/// Names of kernels, each once, with numbers from 1 on.
#[derive(Default)]
pub(super) struct NumberedNames {
    all: Vec<Vec<u8>>,
    numbers: HashMap<Vec<u8>, u64>,
}

impl NumberedNames {
    /// The number of a name.
    pub(super) fn number(&mut self, text: &[u8]) -> u64 {
        if let Some(&known) = self.numbers.get(text) {
            return known;
        }
        self.all.push(text.to_vec());
        let number = self.all.len() as u64;
        self.numbers.insert(text.to_vec(), number);
        number
    }

    /// The name with a number.
    pub(super) fn get(&self, number: u64) -> Option<&[u8]> {
        let at = usize::try_from(number).ok()?.checked_sub(1)?;
        self.all.get(at).map(Vec::as_slice)
    }
}

/// All that is known.
#[derive(Default)]
pub(super) struct ProgramState {
    pub(super) lists: Map<TimedList>,
    pub(super) events: Map<TimedEvent>,
    /// Pools of the program's whose events have timestamps.
    pub(super) pools: HashSet<usize>,
    pub(super) kernels: Map<TimedKernel>,
    /// Numbers of queues.
    pub(super) queues: Map<u64>,
    pub(super) contexts: Map<TimedContext>,
    pub(super) devices: Map<TimedDevice>,
    pub(super) jobs: BTreeMap<u64, AwaitedCommand>,
    /// Lists with jobs that are deferred.
    pub(super) deferred: HashSet<usize>,
    pub(super) calls: Vec<TimingCall>,
    pub(super) names: NumberedNames,
    pub(super) commands: usize,
    pub(super) next_job: u64,
    last_correlation: u64,
    last_stream: u64,
    pub(super) untimed: [u64; UNTIMED_REASONS],
}

/// What an append is to do.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AppendPlan {
    /// The event that it signals.
    pub(super) signal: usize,
    list: usize,
    /// It is timed.
    is_timed: bool,
    is_own: bool,
    /// On an immediate list: what awaits it.
    job: Option<u64>,
}

impl AppendPlan {
    /// A command that is timed.
    pub(super) fn is_timed(&self) -> bool {
        self.is_timed
    }
}

static STATE: Mutex<Option<Box<ProgramState>>> = Mutex::new(None);
/// The thread that works on it, 0: none.
static WORKER: AtomicU32 = AtomicU32::new(0);

/// The state, for this thread alone. No function of the driver's that may wait is called
/// meanwhile.
pub(super) fn lock() -> MutexGuard<'static, Option<Box<ProgramState>>> {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    if state.is_none() {
        *state = Some(Box::default());
    }
    state
}

/// Whether no thread works on the state right now.
pub(super) fn is_free() -> bool {
    !matches!(STATE.try_lock(), Err(TryLockError::WouldBlock))
}

/// Whether this thread works on the state, and was interrupted.
pub(super) fn is_interrupted() -> bool {
    WORKER.load(Ordering::Relaxed) == ffi::tid()
}

/// Works on the state; a fault of ours there ends nothing but the work.
pub(super) fn with<T: Default>(work: impl FnOnce(&mut ProgramState) -> T) -> T {
    let mut result = T::default();
    crate::guarded(|| {
        let mut state = lock();
        WORKER.store(ffi::tid(), Ordering::Relaxed);
        if let Some(state) = state.as_mut() {
            result = work(state);
        }
        WORKER.store(0, Ordering::Relaxed);
    });
    result
}

impl ProgramState {
    pub(super) fn count_untimed(&mut self, reason: u32, count: u64) {
        if let Some(known) = self.untimed.get_mut(reason as usize) {
            *known += count;
        }
    }

    /// The number of a new stream.
    pub(super) fn new_stream(&mut self) -> u64 {
        self.last_stream += 1;
        self.last_stream
    }

    /// The work of a kernel.
    pub(super) fn kernel_work(&self, kernel: Handle, groups: [u32; 3]) -> CommandWork {
        let known = self.kernels.get(&(kernel as usize));
        CommandWork {
            what: WORK_KERNEL,
            name: known.map_or(0, |kernel| kernel.name),
            local: known.map_or([0; 3], |kernel| kernel.local),
            groups,
            ..CommandWork::default()
        }
    }

    /// Before a command is appended: which event it shall signal.
    pub(super) fn plan(&mut self, list: Handle, signal: Handle) -> AppendPlan {
        let (key, given) = (list as usize, signal as usize);
        let pass = AppendPlan {
            signal: given,
            ..AppendPlan::default()
        };
        let Some(list) = self.lists.get(&key).filter(|list| list.is_timed) else {
            self.count_untimed(UNTIMED_EVENT, 1);
            return pass;
        };
        let (context, device, stream) = (list.context, list.device, list.stream);
        if self.jobs.len() >= MOST_JOBS || self.commands >= MOST_COMMANDS {
            self.count_untimed(UNTIMED_ROOM, 1);
            return pass;
        }
        let is_own = given == 0;
        let event = match is_own {
            true => self.own_event(context),
            false => Some(given).filter(|event| self.events.contains_key(event)),
        };
        let Some(event) = event else {
            let reason = if is_own { UNTIMED_ROOM } else { UNTIMED_EVENT };
            self.count_untimed(reason, 1);
            return pass;
        };
        let mut plan = AppendPlan {
            signal: event,
            list: key,
            is_timed: true,
            is_own,
            job: None,
        };
        if let Some(stream) = stream {
            let job = AwaitedCommand {
                event,
                is_own,
                context,
                device,
                stream,
                submit_ns: ffi::now(),
                work: None,
                command: None,
                is_deferred: false,
                is_taken: false,
                ticks: None,
            };
            plan.job = self.arm(job);
            plan.is_timed = plan.job.is_some();
        }
        plan
    }

    /// An unused event of the helper's own.
    fn own_event(&mut self, context: usize) -> Option<usize> {
        let free = |state: &mut Self| state.contexts.entry(context).or_default().free.pop();
        if let Some(event) = free(self) {
            return Some(event);
        }
        // Some may be done by now.
        self.read_some(0, 32);
        if let Some(event) = free(self) {
            return Some(event);
        }
        let room = super::events::room(&self.contexts);
        self.contexts
            .entry(context)
            .or_default()
            .grow(context, room)
    }

    /// After a command was appended; `work`: what it does, if it can be looked at.
    pub(super) fn appended(&mut self, plan: &AppendPlan, call: (u64, u64), work: CommandWork) {
        self.last_correlation += 1;
        let correlation = self.last_correlation;
        if self.calls.len() < MOST_CALLS {
            self.calls.push(TimingCall {
                tid: ffi::tid(),
                correlation,
                start_ns: call.0,
                end_ns: call.1,
                ..TimingCall::default()
            });
        } else {
            self.count_untimed(UNTIMED_ROOM, 1);
        }
        if let Some(id) = plan.job {
            if let Some(job) = self.jobs.get_mut(&id) {
                job.work = Some((work, correlation));
                if job.ticks.is_some() {
                    self.complete(id);
                }
            }
            return;
        }
        if let Some(list) = self.lists.get_mut(&plan.list) {
            list.commands.push(ListedCommand {
                event: plan.signal,
                is_own: plan.is_own,
                work,
                correlation,
                job: None,
            });
            self.commands += 1;
        }
    }

    /// After an append that the driver refused.
    pub(super) fn refused(&mut self, plan: &AppendPlan) {
        if let Some(job) = plan.job.and_then(|id| self.jobs.remove(&id)) {
            self.unlink(&job);
        } else if plan.is_own {
            let list = self.lists.get(&plan.list);
            if let Some(context) = list.map(|list| list.context) {
                self.give_back(context, plan.signal);
            }
        }
    }

    /// An event of the program's is about to be reset, or to go: its times are read now
    /// or never.
    pub(super) fn last_look(&mut self, event: Handle, goes: bool) {
        let key = event as usize;
        let job = self.events.get(&key).and_then(|event| event.job);
        if let Some(id) = job
            && !self.read(id)
            && let Some(job) = self.jobs.remove(&id)
        {
            self.unlink(&job);
            self.count_untimed(UNTIMED_AMBIGUOUS, 1);
        }
        if goes {
            self.events.remove(&key);
        }
    }

    /// An event is signalled or reset by others than its command.
    pub(super) fn spoil(&mut self, event: usize) {
        let Some(known) = self.events.get_mut(&event) else {
            return;
        };
        known.is_spoiled = true;
        if let Some(job) = known.job.take()
            && let Some(job) = self.jobs.remove(&job)
        {
            self.unlink(&job);
            self.count_untimed(UNTIMED_AMBIGUOUS, 1);
        }
    }

    /// A context is about to go: all that is its is read now or never.
    pub(super) fn leave_context(&mut self, context: Handle) {
        let key = context as usize;
        let jobs = self.jobs.iter().filter(|(_, job)| job.context == key);
        let ids: Vec<u64> = jobs.map(|(id, _)| *id).collect();
        for id in ids {
            if !self.read(id)
                && let Some(job) = self.jobs.remove(&id)
            {
                self.unlink(&job);
                self.count_untimed(UNTIMED_AMBIGUOUS, 1);
            }
        }
        if let Some(mut context) = self.contexts.remove(&key) {
            context.destroy();
        }
        for device in self.devices.values_mut() {
            device.calibrate();
        }
    }

    /// In a child of the process: what was submitted is its parent's.
    pub(super) fn forget_parent(&mut self) {
        let jobs = std::mem::take(&mut self.jobs);
        for job in jobs.into_values() {
            self.unlink(&job);
        }
        self.calls.clear();
        self.deferred.clear();
        self.untimed = [0; UNTIMED_REASONS];
        for device in self.devices.values_mut() {
            device.forget();
        }
    }
}
