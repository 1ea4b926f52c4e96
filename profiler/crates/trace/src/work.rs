//! What ran on devices, by rank and stream, and the calls that launched it: what all
//! findings and tables look at.

use aiprof_model::kernel_classes::KernelClass;
use aiprof_model::probes::CallKind;
use aiprof_model::timeline::{
    DeviceKey, Dialect, Event, Id, Kinds, NONE, ProcessKey, StreamKey, Sym, Time, Timeline,
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::Reverse;
use std::sync::OnceLock;

/// What PyTorch calls a step of training, before its number.
pub const STEP: &str = "ProfilerStep#";

/// What work is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkClass {
    /// A kernel that computes.
    Compute,
    /// A kernel or transfer of a collective.
    Communication,
    /// A copy or fill of memory.
    Copy,
}

impl WorkClass {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Compute, Self::Communication, Self::Copy];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Communication => "communication",
            Self::Copy => "copy",
        }
    }
}

/// What an event is, by its category.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpanRole {
    /// None of the others.
    #[default]
    Other,
    /// Ran on a device.
    Device,
    /// A profiler's row of a wait of the host for a device, or of a stream for an event.
    Sync,
    /// A call into a device's runtime or driver.
    Call,
    /// An operator of a framework.
    Operator,
    /// A note of the program on a thread.
    Note,
    /// The same note, where its work ran.
    DeviceNote,
    /// Counters of a range of a device's work.
    Range,
}

/// One piece of work of a device.
#[derive(Clone, Copy, Debug)]
pub struct RankedWork {
    /// Its event.
    pub event: u32,
    /// The event of the call that launched it, or [`NONE`].
    pub call: u32,
    /// Its stream, in [`RankWork::streams`].
    pub stream: u32,
    /// Its purpose.
    pub class: WorkClass,
    /// Begin.
    pub start: Time,
    /// End.
    pub end: Time,
}

impl RankedWork {
    /// Its length, microseconds.
    pub fn us(&self) -> f64 {
        (self.end - self.start).micros()
    }
}

/// What links a call to its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaunchLink {
    /// The process, if the number is of one.
    pub process: Option<ProcessKey>,
    /// The launch's number, or the correlation.
    pub number: u64,
    /// The number is the runtime's, in its own records of calls: aiprof's count of launches
    /// is another one.
    pub is_of_runtime: bool,
}

/// What one rank did.
#[derive(Debug, Default)]
pub struct RankWork {
    /// The rank.
    pub rank: u32,
    /// Work of its devices, by begin.
    pub work: Vec<RankedWork>,
    /// Streams of its devices.
    pub streams: Vec<StreamKey>,
    /// What its threads did: calls, operators and notes, by thread, begin and depth.
    pub host: Vec<u32>,
    /// Rows of waits.
    pub syncs: Vec<u32>,
    /// Notes where their work ran.
    pub device_notes: Vec<u32>,
    /// Ranges with counters.
    pub ranges: Vec<u32>,
    /// The event of a call by what links it to its work.
    pub calls: FxHashMap<LaunchLink, u32>,
}

/// What the findings and tables of one timeline share: filled by the first that needs it.
#[derive(Debug, Default)]
pub struct SharedWork(OnceLock<WorkIndex>);

impl SharedWork {
    /// What ran on devices.
    pub fn work_index(&self, timeline: &Timeline) -> &WorkIndex {
        self.0.get_or_init(|| WorkIndex::new(timeline))
    }
}

/// Events by what they are, in every rank.
#[derive(Debug, Default)]
pub struct WorkIndex {
    /// Ranks in order.
    pub ranks: Vec<RankWork>,
    /// Roles by category.
    roles: Vec<SpanRole>,
    /// Categories of calls that aiprof recorded.
    recorded: FxHashSet<Sym>,
}

impl WorkIndex {
    /// Finds the work of all ranks. Needs final times.
    ///
    /// Files of Kineto are a rank each; files of the AIU's runtime may share one.
    pub fn new(timeline: &Timeline) -> Self {
        let kinds = Kinds::new(timeline);
        let roles = timeline.names.iter().map(|(_, text)| role_of(text));
        let mut index = Self {
            ranks: Vec::new(),
            roles: roles.collect(),
            recorded: FxHashSet::default(),
        };
        let mut places = Places {
            links: MOST_LAUNCHES.saturating_add(timeline.events.len().saturating_mul(LINKS)),
            ..Places::default()
        };
        for (at, event) in (0u32..).zip(&timeline.events) {
            if event.is_slice() && !event.dropped {
                index.add(timeline, &kinds, &mut places, at, event);
            }
        }
        for rank in &mut index.ranks {
            rank.finish(timeline);
        }
        index.ranks.sort_by_key(|rank| rank.rank);
        index
    }

    /// What an event is.
    pub fn role(&self, event: &Event) -> SpanRole {
        let known = self.roles.get(event.cat.index()).copied();
        match known.unwrap_or_default() {
            SpanRole::Other if self.recorded.contains(&event.cat) => SpanRole::Call,
            role => role,
        }
    }

    fn add(
        &mut self,
        timeline: &Timeline,
        kinds: &Kinds,
        places: &mut Places,
        at: u32,
        event: &Event,
    ) {
        let class = class_of(timeline, kinds, event);
        let role = match class {
            Some(_) => SpanRole::Device,
            None if is_recorded_call(timeline, event) => SpanRole::Call,
            None if is_named_call(timeline, event) => SpanRole::Call,
            None => self.role(event),
        };
        if role == SpanRole::Other || role == SpanRole::Device && class.is_none() {
            return;
        }
        let Some(rank) = places.rank(&mut self.ranks, timeline, event) else {
            return;
        };
        match (role, class) {
            (_, Some(class)) => {
                let stream = places.stream(rank, timeline, event);
                rank.work.push(RankedWork {
                    event: at,
                    call: NONE,
                    stream,
                    class,
                    start: event.start,
                    end: event.end(),
                });
            }
            (SpanRole::Sync, _) => rank.syncs.push(at),
            (SpanRole::DeviceNote, _) => rank.device_notes.push(at),
            (SpanRole::Range, _) => rank.ranges.push(at),
            (SpanRole::Call, _) => {
                if self.roles.get(event.cat.index()) == Some(&SpanRole::Other) {
                    self.recorded.insert(event.cat);
                }
                rank.host.push(at);
                for link in links_of(timeline, event).take(places.links) {
                    places.links -= 1;
                    rank.calls.entry(link).or_insert(at);
                }
            }
            _ => rank.host.push(at),
        }
    }
}

/// Where events go, while they are sorted.
#[derive(Default)]
struct Places {
    ranks: FxHashMap<(u32, u32), usize>,
    streams: FxHashMap<(u32, u32, StreamKey), u32>,
    /// How many more launches are noted.
    links: usize,
}

impl Places {
    fn key(timeline: &Timeline, event: &Event) -> (u32, u32) {
        let track = timeline.track(event);
        let job = match timeline.dialect(event) {
            Dialect::Torch | Dialect::Plain => track.job,
            Dialect::Flex => NONE,
        };
        (job, track.rank)
    }

    fn rank<'r>(
        &mut self,
        ranks: &'r mut Vec<RankWork>,
        timeline: &Timeline,
        event: &Event,
    ) -> Option<&'r mut RankWork> {
        let key = Self::key(timeline, event);
        let at = *self.ranks.entry(key).or_insert_with(|| {
            ranks.push(RankWork {
                rank: match key.1 {
                    NONE => 0,
                    rank => rank,
                },
                ..RankWork::default()
            });
            ranks.len() - 1
        });
        ranks.get_mut(at)
    }

    fn stream(&mut self, rank: &mut RankWork, timeline: &Timeline, event: &Event) -> u32 {
        let (job, number) = Self::key(timeline, event);
        let stream = stream_of(timeline, event);
        let at = self.streams.entry((job, number, stream));
        *at.or_insert_with(|| {
            rank.streams.push(stream);
            rank.streams.len() as u32 - 1
        })
    }
}

/// The stream that an event of a device is on: by its arguments, else its row.
pub fn stream_of(timeline: &Timeline, event: &Event) -> StreamKey {
    let given = |key: &str| {
        let text = timeline.arg(event, key)?;
        text.parse().ok().map(Id::Number)
    };
    let is_torch = timeline.dialect(event) == Dialect::Torch;
    let given = |key: &str| is_torch.then(|| given(key)).flatten();
    // A recording has many processes, each with its own streams.
    StreamKey {
        device: match is_recording(timeline, event) {
            true => DeviceKey::of_number(timeline.pid(event)),
            false => {
                let pid = timeline.pid(event);
                timeline
                    .identity
                    .device(pid, given("device").unwrap_or(pid))
            }
        },
        number: given("stream").unwrap_or(timeline.tid(event)),
    }
}

impl RankWork {
    fn finish(&mut self, timeline: &Timeline) {
        let event = |at: u32| timeline.events.get(at as usize);
        let numbered = self.calls.keys().filter(|link| link.is_of_runtime);
        let numbered: FxHashSet<_> = numbered.map(|link| link.process).collect();
        for work in &mut self.work {
            let link = event(work.event).and_then(|event| links_of(timeline, event).next());
            let link = link.map(|link| LaunchLink {
                is_of_runtime: numbered.contains(&link.process),
                ..link
            });
            let call = link.and_then(|link| self.calls.get(&link).copied());
            work.call = call.unwrap_or(NONE);
        }
        self.work.sort_by_key(|work| (work.start, work.end));
        self.host.sort_by_cached_key(|at| {
            event(*at).map(|event| (event.track, event.start, Reverse(event.end()), *at))
        });
    }

    /// Work of each stream, by begin.
    pub fn by_stream(&self) -> Vec<Vec<&RankedWork>> {
        let mut all = vec![Vec::new(); self.streams.len()];
        for work in &self.work {
            if let Some(stream) = all.get_mut(work.stream as usize) {
                stream.push(work);
            }
        }
        all
    }
}

/// The name that an event had in its file.
pub fn name_of<'t>(timeline: &'t Timeline, event: &Event) -> &'t str {
    timeline.name(event.original_name())
}

/// Which kernels are parts of the same collectives: name, process group, its ranks.
pub(crate) type SameCollective<'t> = (Sym, &'t str, &'t str);

/// The collectives that a kernel belongs to.
pub(crate) fn same_collective<'t>(timeline: &'t Timeline, event: &Event) -> SameCollective<'t> {
    let text = |key| timeline.arg(event, key).unwrap_or_default();
    (
        event.original_name(),
        text("Process Group Name"),
        text("Process Group Ranks"),
    )
}

/// What work of a device is for; `None`: it is none.
fn class_of(timeline: &Timeline, kinds: &Kinds, event: &Event) -> Option<WorkClass> {
    Some(match kinds.class(timeline, event)? {
        KernelClass::Compute => WorkClass::Compute,
        KernelClass::Communication | KernelClass::Message => WorkClass::Communication,
        KernelClass::Copy | KernelClass::MemorySet => WorkClass::Copy,
    })
}

/// Whether aiprof recorded the file that an event is of.
pub(crate) fn is_recording(timeline: &Timeline, event: &Event) -> bool {
    let job = timeline.jobs.get(timeline.job(event) as usize);
    job.is_some_and(|job| job.is_recording)
}

/// Whether aiprof recorded the event as a call into a runtime: its category is the kind of
/// the call.
fn is_recorded_call(timeline: &Timeline, event: &Event) -> bool {
    let cat = timeline.name(event.cat);
    is_recording(timeline, event) && CallKind::NAMED.iter().any(|(name, _)| *name == cat)
}

/// Whether unitrace names the event as a call, whose category is that of all that the host does.
fn is_named_call(timeline: &Timeline, event: &Event) -> bool {
    let name = timeline.name(event.name);
    let rest = ["ze", "cl"]
        .into_iter()
        .find_map(|prefix| name.strip_prefix(prefix));
    let is_one = rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()));
    is_one && timeline.dialect(event) == Dialect::Torch && timeline.name(event.cat) == "cpu_op"
}

/// Whether the event is a call into a device's runtime or driver.
pub(crate) fn is_call(timeline: &Timeline, event: &Event) -> bool {
    is_recorded_call(timeline, event)
        || is_named_call(timeline, event)
        || role_of(timeline.name(event.cat)) == SpanRole::Call
}

/// Launches of one call that are looked at: a list of more has no use for each.
const MOST_LAUNCHES: usize = 1 << 16;

/// Launches that are noted for each event of a trace on average: there is no work for more.
const LINKS: usize = 8;

/// What links a call or work: its `correlation`; of calls that aiprof recorded the numbers
/// of their launches, `launch`: `5` or `5-7`. Whether the number of work is the runtime's shows
/// only beside the calls of its process.
fn links_of(timeline: &Timeline, event: &Event) -> impl Iterator<Item = LaunchLink> {
    let is_own = is_recording(timeline, event);
    // Rows of devices are not of the process; their events name it.
    let given = |key: &str| timeline.arg(event, key).filter(|_| is_own);
    let process = given("pid").and_then(|text| text.parse().ok());
    let process = process.map(Id::Number).unwrap_or(timeline.pid(event));
    let process = is_own.then(|| ProcessKey::of_pid(process));
    let given = match event.correlation {
        0 => given("launch"),
        _ => None,
    };
    let ends = given.and_then(|text| {
        let text = text.trim_matches('"');
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some((first.parse::<u64>().ok()?, last.parse::<u64>().ok()?))
    });
    let (first, last) = ends.unwrap_or((event.correlation, event.correlation));
    let numbers = (first..=last).take(MOST_LAUNCHES);
    let is_of_runtime = is_own && event.correlation != 0;
    numbers
        .filter(|number| *number != 0)
        .map(move |number| LaunchLink {
            process,
            number,
            is_of_runtime,
        })
}

/// What an event of a category is.
pub(crate) fn role_of(cat: &str) -> SpanRole {
    let small = cat.to_ascii_lowercase();
    match small.as_str() {
        "kernel" | "gpu_memcpy" | "gpu_memset" | "memcpy" | "memset" => SpanRole::Device,
        "gpu_op" | "mtia_ccp_events" => SpanRole::Device,
        _ if small.ends_with("kernel_dispatch") => SpanRole::Device,
        _ if small.ends_with("memory_copy") => SpanRole::Device,
        "cuda_sync" | "xpu_sync" => SpanRole::Sync,
        "cpu_op" | "operator" => SpanRole::Operator,
        "user_annotation" => SpanRole::Note,
        "gpu_user_annotation" => SpanRole::DeviceNote,
        "cuda_profiler_range" => SpanRole::Range,
        "runtime" => SpanRole::Call,
        // rocprofv3's marks are the program's own.
        "marker_api" => SpanRole::Note,
        _ if small.ends_with("hip_api") || small.ends_with("hsa_api") => SpanRole::Call,
        _ if small.ends_with("_runtime") || small.ends_with("_driver") => SpanRole::Call,
        _ => SpanRole::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_formats::import::json;

    fn slice(cat: &str, name: &str, pid: u32, ts: u32, args: &str) -> String {
        format!(
            r#"{{"ph":"X","cat":"{cat}","name":"{name}","pid":{pid},"tid":{pid},"ts":{ts},"dur":5,"args":{{{args}}}}}"#
        )
    }

    /// The calls of all work, by begin of the work: name and begin.
    fn calls(events: &[String]) -> Vec<Option<(String, f64)>> {
        let text = format!(
            r#"{{"otherData":{{"version":"aiprof 1","start_monotonic_ns":5}},"traceEvents":[{}]}}"#,
            events.join(",")
        );
        let mut timeline = Timeline::default();
        json::read(text.as_bytes(), "x.json", &mut timeline).unwrap();
        let index = WorkIndex::new(&timeline);
        let work = index.ranks.iter().flat_map(|rank| &rank.work);
        let call = |work: &RankedWork| timeline.events.get(work.call as usize);
        work.map(|work| {
            let call = call(work)?;
            Some((name_of(&timeline, call).to_owned(), timeline.file_us(call)))
        })
        .collect()
    }

    /// The AIU's runtime numbers its calls and their work. aiprof's number of a launch may be
    /// the same, and so may those of another process.
    #[test]
    fn work_of_the_aiu_is_joined_by_the_numbers_of_its_runtime() {
        let number = r#""correlation":7"#;
        let found = calls(&[
            slice("launch", "aiuLaunchControlBlocks", 1, 10, r#""launch":7"#),
            slice("launch", "aiuLaunchControlBlocks", 1, 20, r#""launch":8"#),
            slice(
                "privateuse1_runtime",
                "aiuLaunchControlBlocks",
                1,
                20,
                number,
            ),
            slice(
                "privateuse1_runtime",
                "aiuLaunchControlBlocks",
                2,
                30,
                number,
            ),
            slice("kernel", "mm", 90, 40, r#""pid":1,"correlation":7"#),
            slice(
                "gpu_memcpy",
                "Memcpy (HtoD)",
                91,
                50,
                r#""pid":2,"correlation":7"#,
            ),
            slice("kernel", "mm", 90, 60, r#""pid":1,"correlation":8"#),
        ]);
        let launch = |ts| Some(("aiuLaunchControlBlocks".to_owned(), ts));
        assert_eq!(found, [launch(20.0), launch(30.0), None]);
    }

    #[test]
    fn other_work_is_joined_by_the_numbers_of_launches() {
        let found = calls(&[
            slice("launch", "cudaLaunchKernel", 1, 10, r#""launch":"7-8""#),
            slice("kernel", "mm", 90, 40, r#""pid":1,"correlation":8"#),
        ]);
        assert_eq!(found, [Some(("cudaLaunchKernel".to_owned(), 10.0))]);
    }
}
