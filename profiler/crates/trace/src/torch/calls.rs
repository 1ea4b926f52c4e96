//! The calls and device spans of which `key_averages()` is made: what torch calls
//! function events.

use super::memory::{Allocation, MemoryLedger};
use super::sums::Compensated;
use crate::work::STEP;
use aiprof_model::timeline::{Dialect, Event, Kinds, NONE, Ph, Sym, Timeline, TrackKind};
use rustc_hash::{FxHashMap, FxHashSet};

/// Names that torch leaves out (`_filter_name`).
const LEFT_OUT: [&str; 8] = [
    MEMORY,
    "[OutOfMemory]",
    "profiler::_record_function_enter",
    "profiler::_record_function_enter_new",
    "profiler::_record_function_exit",
    "aten::is_leaf",
    "aten::output_nr",
    "aten::_version",
];
const MEMORY: &str = "[memory]";

/// What an event is to torch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallRole {
    /// An operator or a note of the program.
    Operator,
    /// A call of the device's runtime or driver.
    Runtime,
    /// What the profiler itself cost.
    Overhead,
    /// Work of a device.
    Device,
    /// A note of the program, drawn where its work ran on the device.
    DeviceNote,
}

/// A call or a device span.
#[derive(Clone, Copy, Debug)]
pub(super) struct TorchCall {
    /// Its event, an index into [`Timeline::events`].
    pub(super) event: usize,
    /// Its name; `None`: `ProfilerStep*`, which stands for all steps.
    pub(super) name: Option<Sym>,
    /// Its role.
    pub(super) role: CallRole,
    /// It is a note of the program.
    pub(super) is_note: bool,
    /// Begin and end, microseconds since the profile's begin.
    pub(super) start: f64,
    pub(super) end: f64,
    /// Its thread, by a number; of device spans meaningless.
    pub(super) thread: u32,
    /// Bytes allocated while it ran: host, device.
    pub(super) memory: (i64, i64),
    /// The event of the operator that it belongs to, an index.
    pub(super) owner: Option<usize>,
}

impl TorchCall {
    /// Whether a device ran it.
    pub(super) fn is_device(&self) -> bool {
        matches!(self.role, CallRole::Device | CallRole::DeviceNote)
    }

    /// Its length, microseconds.
    pub(super) fn length(&self) -> f64 {
        self.end - self.start
    }
}

/// All of a timeline, in the order of begin, the longer first.
#[derive(Debug, Default)]
pub(super) struct TorchCalls {
    pub(super) all: Vec<TorchCall>,
    /// Device time that each launched, microseconds.
    pub(super) launched: Vec<Compensated>,
    /// There were allocations.
    pub(super) has_memory: bool,
}

/// A call before calls are joined.
struct FoundCall {
    call: TorchCall,
    /// Number by which others name it, in its file; 0: none.
    id: u64,
    /// The number of the call that it belongs to; 0: none.
    link: u64,
    job: u32,
    from_ns: i64,
    to_ns: i64,
}

/// Which call has a number: file and number.
type Numbers = FxHashMap<(u32, u64), usize>;

impl TorchCalls {
    /// Those of a timeline.
    pub(super) fn new(timeline: &Timeline) -> Self {
        let mut reader = CallReader::new(timeline);
        for index in 0..timeline.events.len() {
            reader.event(index);
        }
        reader.correct_notes();
        reader.join()
    }
}

struct CallReader<'t> {
    timeline: &'t Timeline,
    kinds: Kinds,
    roles: FxHashMap<Sym, Option<(CallRole, bool)>>,
    left_out: FxHashSet<Sym>,
    steps: FxHashSet<Sym>,
    memory_name: Option<Sym>,
    /// Begin of the profile, nanoseconds.
    zero: i64,
    found: Vec<FoundCall>,
    allocations: Vec<Allocation>,
}

impl<'t> CallReader<'t> {
    fn new(timeline: &'t Timeline) -> Self {
        let names = || timeline.names.iter();
        let having = |test: &dyn Fn(&str) -> bool| -> FxHashSet<Sym> {
            let all = names().filter(|(_, text)| test(text));
            all.map(|(sym, _)| sym).collect()
        };
        let mut memory = names().filter(|(_, text)| *text == MEMORY);
        Self {
            timeline,
            kinds: Kinds::new(timeline),
            roles: FxHashMap::default(),
            left_out: having(&|text| LEFT_OUT.contains(&text)),
            steps: having(&|text| text.starts_with(STEP)),
            memory_name: memory.next().map(|(sym, _)| sym),
            zero: zero(timeline),
            found: Vec::new(),
            allocations: Vec::new(),
        }
    }

    fn event(&mut self, index: usize) {
        let Some(event) = self.timeline.events.get(index) else {
            return;
        };
        if event.ph == Ph::Instant && Some(event.name) == self.memory_name {
            return self.allocation(index, event);
        }
        let name = event.original_name();
        if !event.is_slice() || event.start.is_edge() || self.left_out.contains(&name) {
            return;
        }
        let Some((role, is_note)) = self.role(event) else {
            return;
        };
        let (id, link) = self.numbers(event, role);
        let from_ns = event.start.nearest_nanos();
        let to_ns = event.end().nearest_nanos();
        self.found.push(FoundCall {
            call: TorchCall {
                event: index,
                name: (!self.steps.contains(&name)).then_some(name),
                role,
                is_note,
                start: 0.0,
                end: 0.0,
                thread: event.track.0,
                memory: (0, 0),
                owner: None,
            },
            id,
            link,
            job: self.timeline.job(event),
            from_ns,
            to_ns,
        });
    }

    fn allocation(&mut self, index: usize, event: &Event) {
        let number = |key| -> Option<i64> { self.timeline.arg(event, key)?.parse().ok() };
        let bytes = number("bytes").or_else(|| number("Bytes"));
        if let (Some(bytes), Some(kind)) = (bytes, number("Device Type")) {
            let at = event.start.nearest_nanos();
            self.allocations
                .push(Allocation::new(index, at, bytes, kind));
        }
    }

    /// What an event is; `None`: nothing that is counted.
    fn role(&mut self, event: &Event) -> Option<(CallRole, bool)> {
        if is_of_kineto(self.timeline, event) {
            let timeline = self.timeline;
            let of_cat = || role_of_category(&timeline.name(event.cat).to_ascii_lowercase());
            return *self.roles.entry(event.cat).or_insert_with(of_cat);
        }
        if self.kinds.is_device(self.timeline, event) {
            return Some((CallRole::Device, false));
        }
        let kind = self.timeline.track(event).kind;
        let is_row = matches!(
            kind,
            TrackKind::Row | TrackKind::Thread | TrackKind::Records
        );
        // In aiprof's own traces: CPU samples, and bounds of what devices ran.
        let is_other = ["sample", "estimated"].contains(&self.timeline.name(event.cat));
        let is_call = is_row && !is_other;
        is_call.then_some((CallRole::Operator, false))
    }

    /// The number by which others name it, and that of the call that it belongs to.
    fn numbers(&self, event: &Event, role: CallRole) -> (u64, u64) {
        let is_host = role == CallRole::Operator;
        if !is_of_kineto(self.timeline, event) {
            return match is_host {
                true => (event.correlation, 0),
                false => (0, event.correlation),
            };
        }
        let keys = ["External id", "external id"];
        let mut texts = keys.iter().filter_map(|key| self.timeline.arg(event, key));
        let number = texts
            .next()
            .and_then(|text| text.trim_matches('"').parse().ok());
        match (role, number.unwrap_or(0)) {
            (CallRole::Operator, number) => (number, 0),
            (CallRole::DeviceNote | CallRole::Overhead, _) => (0, 0),
            (_, number) => (0, number),
        }
    }

    /// Kineto draws a note on the device a nanosecond wider at both ends than the work in
    /// it, so that viewers nest it; torch's tables have its true length.
    fn correct_notes(&mut self) {
        let work = self
            .found
            .iter()
            .filter(|one| one.call.role == CallRole::Device);
        let starts: FxHashSet<(u32, i64)> =
            work.map(|one| (one.call.thread, one.from_ns)).collect();
        for one in &mut self.found {
            let thread = one.call.thread;
            let is_wider = one.call.role == CallRole::DeviceNote
                && !starts.contains(&(thread, one.from_ns))
                && starts.contains(&(thread, one.from_ns.saturating_add(1)));
            if is_wider {
                one.from_ns = one.from_ns.saturating_add(1);
                one.to_ns = one.to_ns.saturating_sub(1).max(one.from_ns);
            }
        }
    }

    fn join(mut self) -> TorchCalls {
        let mut operators = Numbers::default();
        for (index, one) in self.found.iter().enumerate() {
            if one.id != 0 {
                operators.entry((one.job, one.id)).or_insert(index);
            }
        }
        let mut launched = vec![Compensated::default(); self.found.len()];
        self.find_owners(&operators);
        self.place_threads(&operators);
        self.measure();
        for one in &self.found {
            let owner = operators.get(&(one.job, one.link)).copied();
            if one.call.role == CallRole::Device
                && let Some(owner) = owner.and_then(|owner| launched.get_mut(owner))
            {
                owner.add(one.call.length());
            }
        }
        let has_memory = !self.allocations.is_empty();
        self.allocate();
        launched.resize(self.found.len(), Compensated::default());
        let all = self.found.into_iter().map(|one| one.call);
        let mut both: Vec<(TorchCall, Compensated)> = all.zip(launched).collect();
        both.sort_by(|(a, _), (b, _)| {
            let ends = b.end.total_cmp(&a.end);
            // Kineto adds notes of the device behind all of the device's work.
            let notes = (a.role == CallRole::DeviceNote).cmp(&(b.role == CallRole::DeviceNote));
            a.start.total_cmp(&b.start).then(ends).then(notes)
        });
        let (all, launched) = both.into_iter().unzip();
        TorchCalls {
            all,
            launched,
            has_memory,
        }
    }

    fn find_owners(&mut self, operators: &Numbers) {
        let events: Vec<usize> = self.found.iter().map(|one| one.call.event).collect();
        for one in self.found.iter_mut().filter(|one| one.link != 0) {
            let owner = operators.get(&(one.job, one.link));
            one.call.owner = owner.and_then(|owner| events.get(*owner).copied());
        }
    }

    /// A runtime's call is on the thread of its operator; those of none are on the thread
    /// that ended the profile, which is taken to be the process's first.
    fn place_threads(&mut self, operators: &Numbers) {
        let mains = self.main_threads();
        let threads: Vec<u32> = self.found.iter().map(|one| one.call.thread).collect();
        for one in &mut self.found {
            if !matches!(one.call.role, CallRole::Runtime | CallRole::Overhead) {
                continue;
            }
            let owner = operators.get(&(one.job, one.link));
            let thread = match (owner.and_then(|owner| threads.get(*owner)), one.link) {
                (Some(thread), _) => Some(*thread),
                (None, 0) => mains.get(&one.job).copied(),
                (None, _) => None,
            };
            one.call.thread = thread.unwrap_or(one.call.thread);
        }
    }

    /// The first thread of each file's process: that with the process's number, else that
    /// of the first call.
    fn main_threads(&self) -> FxHashMap<u32, u32> {
        let mut mains: FxHashMap<u32, (bool, u32)> = FxHashMap::default();
        for one in &self.found {
            if !matches!(one.call.role, CallRole::Operator | CallRole::Runtime) {
                continue;
            }
            let Some(event) = self.timeline.events.get(one.call.event) else {
                continue;
            };
            let pid = self.timeline.pid(event);
            let is_first = pid == self.timeline.tid(event);
            let main = mains.entry(one.job).or_insert((is_first, event.track.0));
            if is_first && !main.0 {
                *main = (true, event.track.0);
            }
        }
        let threads = mains.into_iter();
        threads.map(|(job, (_, thread))| (job, thread)).collect()
    }

    fn measure(&mut self) {
        let zero = self.zero;
        let micros = |ns: i64| ns.saturating_sub(zero) as f64 / 1000.0;
        for one in &mut self.found {
            (one.call.start, one.call.end) = (micros(one.from_ns), micros(one.to_ns));
        }
    }

    /// Gives each call what was allocated meanwhile; what none has becomes a row of its own.
    fn allocate(&mut self) {
        let mut memory = MemoryLedger::new(std::mem::take(&mut self.allocations));
        for one in &mut self.found {
            if !one.call.is_device() {
                one.call.memory = memory.within(one.from_ns, one.to_ns);
            }
        }
        let outside = memory.outside().map(|one| {
            let at = one.at.saturating_sub(self.zero) as f64 / 1000.0;
            FoundCall {
                call: TorchCall {
                    event: one.event,
                    name: self.memory_name,
                    role: CallRole::Operator,
                    is_note: false,
                    start: at,
                    end: at,
                    thread: NONE,
                    memory: (one.host, one.device),
                    owner: None,
                },
                id: 0,
                link: 0,
                job: NONE,
                from_ns: one.at,
                to_ns: one.at,
            }
        });
        self.found.extend(outside);
    }
}

/// Whether Kineto itself wrote the event, not a tool that uses its categories. unitrace gives
/// the calls of all libraries the category of operators, and joins them with work by arrows.
pub(super) fn is_of_kineto(timeline: &Timeline, event: &Event) -> bool {
    let job = timeline.jobs.get(timeline.job(event) as usize);
    job.is_some_and(|job| {
        job.dialect == Dialect::Torch && !job.is_recording && job.writer != "unitrace"
    })
}

/// When the profile began, nanoseconds since the timeline's origin.
fn zero(timeline: &Timeline) -> i64 {
    let slices = || timeline.events.iter().filter(|event| event.is_slice());
    let is_profile = |event: &&Event| timeline.name(event.cat) == "Trace";
    let first = slices().filter(is_profile).map(|event| event.start).min();
    let first = first.or_else(|| slices().map(|event| event.start).min());
    first.map_or(0, |start| start.nearest_nanos())
}

/// What events of a category of Kineto are, and whether they are notes; `None`: torch's
/// tables do not count them. The categories of 2021 had other names.
fn role_of_category(cat: &str) -> Option<(CallRole, bool)> {
    Some(match cat {
        "cpu_op" | "operator" => (CallRole::Operator, false),
        "user_annotation" => (CallRole::Operator, true),
        "overhead" => (CallRole::Overhead, false),
        "runtime" => (CallRole::Runtime, false),
        "kernel" | "gpu_memcpy" | "gpu_memset" | "memcpy" | "memset" => (CallRole::Device, false),
        "cuda_sync" | "cuda_event" | "cuda_profiler_range" => (CallRole::Device, false),
        "gpu_user_annotation" => (CallRole::DeviceNote, true),
        _ if cat.ends_with("_runtime") || cat.ends_with("_driver") => (CallRole::Runtime, false),
        _ => return None,
    })
}
