//! What ran on devices, by rank and stream, and the calls that launched it: what all
//! findings and tables look at.

use crate::analyze::identity::file_of;
use crate::stretches::Stretches;
use crate::torch::TorchIndex;
use aiprof_model::kernel_classes::KernelClass;
use aiprof_model::probes::CallKind;
use aiprof_model::timeline::{
    DeviceKey, Dialect, Event, Id, Kinds, NONE, ProcessKey, StreamKey, Sym, Time, Timeline, TrackId,
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
    /// Its file, in [`RankWork::files`].
    pub file: u16,
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
    /// The file, where each has numbers of its own.
    pub(crate) file: u32,
    /// The process, if the number is of one.
    pub process: Option<ProcessKey>,
    /// The launch's number, or the correlation.
    pub number: u64,
    /// The number is the runtime's, in its own records of calls: aiprof's count of launches
    /// is another one.
    pub is_of_runtime: bool,
}

/// A file of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankFile {
    /// Its number in the timeline; [`NONE`]: it stands for several.
    pub number: u32,
    /// The first begin of what the rank did in it.
    pub(crate) start: Time,
}

/// What one rank did, in all of its files.
#[derive(Debug, Default)]
pub struct RankWork {
    /// The rank.
    pub rank: u32,
    /// Work of its devices, by begin.
    pub work: Vec<RankedWork>,
    /// Its files by time: one for each cycle of its profiler, else one for all.
    pub files: Vec<RankFile>,
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
#[derive(Default)]
pub struct SharedWork {
    work: OnceLock<WorkIndex>,
    torch: OnceLock<TorchIndex>,
}

impl SharedWork {
    /// What ran on devices.
    pub fn work_index(&self, timeline: &Timeline) -> &WorkIndex {
        self.work.get_or_init(|| WorkIndex::new(timeline))
    }

    /// The calls that torch's own tables count.
    pub fn torch_index(&self, timeline: &Timeline) -> &TorchIndex {
        self.torch.get_or_init(|| TorchIndex::new(timeline))
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
    /// Whether all ranks with work have equally many files, so that the n-th files of all are of
    /// the same time.
    has_cycles: bool,
}

impl WorkIndex {
    /// Finds the work of all ranks. Needs final times.
    ///
    /// Files of one process of Kineto's are one rank, and files of the AIU's runtime that have
    /// the same rank. All others are a rank each.
    pub fn new(timeline: &Timeline) -> Self {
        let kinds = Kinds::new(timeline);
        let roles = timeline.names.iter().map(|(_, text)| role_of(text));
        let mut index = Self {
            ranks: Vec::new(),
            roles: roles.collect(),
            recorded: FxHashSet::default(),
            has_cycles: false,
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
        let mut files = index.ranks.iter().filter(|rank| !rank.work.is_empty());
        let first = files.next().map(|rank| rank.files.len());
        index.has_cycles = files.all(|rank| Some(rank.files.len()) == first);
        index
    }

    /// Whether the n-th files of all ranks with work are of the same time.
    pub(crate) fn has_cycles(&self) -> bool {
        self.has_cycles
    }

    /// The cycle of the ranks' profilers in which the work's collectives and messages are matched.
    /// Where ranks have different numbers of cycles, all are matched together: 0.
    pub(crate) fn cycle(&self, work: &RankedWork) -> u16 {
        match self.has_cycles {
            true => work.file,
            false => 0,
        }
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
        let place = places.of(&mut self.ranks, timeline, event);
        let Some(rank) = self.ranks.get_mut(place.rank) else {
            return;
        };
        match (role, class) {
            (_, Some(class)) => {
                let stream = places.stream(rank, place, stream_of(timeline, event));
                rank.work.push(RankedWork {
                    event: at,
                    call: NONE,
                    stream,
                    class,
                    file: place.file,
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

/// What makes events those of one rank.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum RankOf {
    /// A process of Kineto's, in all of its files: its rank is its own.
    Process(u32),
    /// The AIU's runtime, with its rank.
    Runtime(u32),
    /// Another file, with a rank in it.
    File(u32, u32),
}

/// A rank, by its place in the index, and one of its files.
#[derive(Clone, Copy)]
struct RankPlace {
    rank: usize,
    file: u16,
}

/// Where events go, while they are sorted.
#[derive(Default)]
struct Places {
    ranks: FxHashMap<RankOf, usize>,
    tracks: FxHashMap<TrackId, RankPlace>,
    streams: FxHashMap<(usize, StreamKey), u32>,
    /// How many more launches are noted.
    links: usize,
}

impl Places {
    /// The place of an event, whose begin its file takes.
    fn of(&mut self, ranks: &mut Vec<RankWork>, timeline: &Timeline, event: &Event) -> RankPlace {
        let place = match self.tracks.get(&event.track) {
            Some(place) => *place,
            None => {
                let place = self.of_track(ranks, timeline, event);
                self.tracks.insert(event.track, place);
                place
            }
        };
        let rank = ranks.get_mut(place.rank);
        if let Some(file) = rank.and_then(|rank| rank.files.get_mut(usize::from(place.file)))
            && !event.start.is_edge()
        {
            file.start = file.start.min(event.start);
        }
        place
    }

    fn of_track(
        &mut self,
        ranks: &mut Vec<RankWork>,
        timeline: &Timeline,
        event: &Event,
    ) -> RankPlace {
        let track = timeline.track(event);
        let is_known = timeline.identity.groups.contains_key(&track.pid);
        let of = match timeline.dialect(event) {
            Dialect::Torch if is_known && track.rank != NONE => RankOf::Process(track.rank),
            Dialect::Torch | Dialect::Plain => RankOf::File(track.job, track.rank),
            Dialect::Flex => RankOf::Runtime(track.rank),
        };
        let at = *self.ranks.entry(of).or_insert_with(|| {
            ranks.push(RankWork {
                rank: match track.rank {
                    NONE => 0,
                    rank => rank,
                },
                ..RankWork::default()
            });
            ranks.len() - 1
        });
        let number = file_of(timeline, event);
        let file = ranks.get_mut(at).map_or(0, |rank| rank.file(number));
        RankPlace { rank: at, file }
    }

    fn stream(&mut self, rank: &mut RankWork, place: RankPlace, stream: StreamKey) -> u32 {
        let at = self.streams.entry((place.rank, stream));
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
    /// The place of a file among its files. What is beyond the last place shares that.
    fn file(&mut self, number: u32) -> u16 {
        let known = self.files.iter().position(|file| file.number == number);
        let at = known.unwrap_or_else(|| {
            self.files.push(RankFile {
                number,
                start: Time(i64::MAX),
            });
            self.files.len() - 1
        });
        u16::try_from(at).unwrap_or(u16::MAX)
    }

    /// The place of an event's file among its files.
    pub(crate) fn file_at(&self, timeline: &Timeline, event: &Event) -> usize {
        match self.files.len() {
            0 | 1 => 0,
            _ => {
                let number = file_of(timeline, event);
                let known = self.files.iter().position(|file| file.number == number);
                known.unwrap_or_default()
            }
        }
    }

    /// Puts files in the order of time.
    fn order_files(&mut self) {
        let mut order: Vec<usize> = (0..self.files.len()).collect();
        order.sort_by_key(|at| self.files.get(*at).map(|file| file.start));
        let mut new = vec![0u16; order.len()];
        for (to, from) in order.iter().enumerate() {
            if let Some(slot) = new.get_mut(*from) {
                *slot = u16::try_from(to).unwrap_or(u16::MAX);
            }
        }
        for work in &mut self.work {
            let place = new.get(usize::from(work.file));
            work.file = place.copied().unwrap_or(work.file);
        }
        self.files.sort_by_key(|file| file.start);
    }

    fn finish(&mut self, timeline: &Timeline) {
        if self.files.len() > 1 {
            self.order_files();
        }
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

    /// From the first begin to the last end of its work, in each of its files: what lies between
    /// was not recorded. In order, apart from each other.
    pub fn recorded(&self) -> Vec<(Time, Time)> {
        ends_by_file(self.work.iter()).iter().collect()
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

/// From the first begin to the last end of some work, in each of its files.
pub(crate) fn ends_by_file<'w>(work: impl Iterator<Item = &'w RankedWork>) -> Stretches {
    let mut files: FxHashMap<u16, (Time, Time)> = FxHashMap::default();
    for work in work.filter(|work| work.start < work.end) {
        let ends = files.entry(work.file).or_insert((work.start, work.end));
        *ends = (ends.0.min(work.start), ends.1.max(work.end));
    }
    Stretches::of(files.into_values())
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
    let given = |key: &str| is_own.then(|| timeline.arg(event, key)).flatten();
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
    let file = file_of(timeline, event);
    numbers
        .filter(|number| *number != 0)
        .map(move |number| LaunchLink {
            file,
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
