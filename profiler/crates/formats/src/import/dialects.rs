//! What a trace is: decided by evidence of its own, for each file, and for each process in it.
//!
//! [`WRITERS`] has a row per tool: the evidence for it, and what the rows of its processes hold.
//! Tools that give devices no category of Kineto's are read as if they did: their kernels become
//! `kernel`, their copies `gpu_memcpy`. A file without any evidence is a plain trace of a host.

mod links;
mod rows;
#[cfg(test)]
mod tests;

use aiprof_model::timeline::{
    Dialect, Event, Id, Kind, Kinds, Ph, Sym, Timeline, TrackId, member, members,
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::borrow::Cow;

/// What is known of a file besides its events.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FileHeader<'f> {
    /// It lists devices, as Kineto's files do.
    pub has_devices: bool,
    /// aiprof recorded it.
    pub is_recording: bool,
    /// Its name, for tools that name a process there.
    pub name: &'f str,
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub dialect: Dialect,
    /// Its writer's name, where the dialect does not show it.
    pub writer: &'static str,
    /// The rank of the process that wrote it, if its names show one.
    pub rank: Option<u32>,
}

/// What the slices of a row are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowRole {
    /// Work of a device: kernels, and copies where names show it.
    Work,
    /// The same, where loops and calls are around what they do: only the innermost count.
    NestedWork,
    /// Copies of a device.
    Copies,
    /// Calls into a device's runtime: the category that they get.
    Calls(&'static str),
    /// Those that share a number with a device's work are calls.
    NumberedCalls,
    /// What their categories show.
    Other,
}

/// The names of a process and its threads.
#[derive(Debug, Default)]
pub(super) struct ProcessNames<'t> {
    pub name: Cow<'t, str>,
    pub threads: FxHashMap<Id, Cow<'t, str>>,
}

/// All that is looked at.
pub(super) struct Evidence<'t> {
    header: FileHeader<'t>,
    pub processes: FxHashMap<Id, ProcessNames<'t>>,
    /// Slices with categories of Kineto, with counters of FLEX, with other signs of FLEX.
    has_kineto: bool,
    is_counted: bool,
    has_flex: bool,
    /// Slices with the two times that rocprof writes in nanoseconds.
    has_rocprof: bool,
    /// Arrows from calls of Ascend's runtime to work, which are surer than numbers.
    has_arrows: bool,
    /// Categories of slices.
    cats: FxHashSet<&'t str>,
}

/// A tool that writes traces.
struct Writer {
    /// Its name in reports; empty: the dialect's.
    name: &'static str,
    dialect: Dialect,
    /// Whether a file is of it.
    is_it: fn(&Evidence<'_>) -> bool,
    /// What a row of a process holds, by the names of both.
    role: fn(&Evidence<'_>, &ProcessNames<'_>, &str) -> RowRole,
    /// The argument by which calls and work share a number, if it is not `correlation`.
    key: Option<&'static str>,
}

/// Its categories show what is a device's, its arrows what launched that.
const UNITRACE: &str = "unitrace";

/// Tools, the first that fits first.
static WRITERS: [Writer; 9] = [
    Writer {
        name: "",
        dialect: Dialect::Torch,
        is_it: |found| found.header.is_recording,
        role: rows::others,
        key: None,
    },
    Writer {
        name: "",
        dialect: Dialect::Flex,
        is_it: |found| {
            // Kineto has calls of the AIU's runtime too.
            let is_flex = found.is_counted || found.has_flex && !found.has_kineto;
            is_flex && !found.header.has_devices
        },
        role: rows::others,
        key: None,
    },
    Writer {
        name: UNITRACE,
        dialect: Dialect::Torch,
        is_it: |found| found.cats.contains("gpu_op") || found.has_process(rows::is_of_unitrace),
        role: rows::others,
        key: None,
    },
    Writer {
        name: "torch_npu",
        dialect: Dialect::Torch,
        is_it: |found| found.has_process(|name| ["Ascend Hardware", "CANN"].contains(&name)),
        role: rows::of_ascend,
        key: Some("connection_id"),
    },
    Writer {
        name: "rocprof",
        dialect: Dialect::Torch,
        is_it: |found| {
            let cats = ["kernel_dispatch", "memory_copy", "hip_api", "hsa_api"];
            // Others of its family put a word before them.
            let is_one = |cat: &&str| cats.iter().any(|end| cat.ends_with(end));
            found.cats.iter().any(is_one) || found.has_rocprof
        },
        role: rows::of_rocprof,
        key: None,
    },
    Writer {
        name: "nsys2json",
        dialect: Dialect::Torch,
        is_it: |found| found.cats.contains("cuda") && found.has_process(rows::is_of_nsys),
        role: rows::of_nsys,
        key: None,
    },
    Writer {
        name: "",
        dialect: Dialect::Torch,
        is_it: |found| found.header.has_devices || found.has_kineto,
        role: rows::others,
        key: None,
    },
    Writer {
        name: "xla",
        dialect: Dialect::Torch,
        is_it: |found| found.has_process(rows::is_xla_device),
        role: rows::of_xla,
        key: None,
    },
    Writer {
        name: "",
        dialect: Dialect::Plain,
        is_it: |_| true,
        role: rows::others,
        key: None,
    },
];

/// Decides what the events from `start` on are, gives those of devices their categories, and
/// links calls to what they launched.
pub(super) fn settle(timeline: &mut Timeline, start: usize, header: FileHeader<'_>) -> Verdict {
    let is_rocprof = rows::is_of_rocprof(timeline, start);
    if is_rocprof && !header.has_devices && !header.is_recording {
        rows::number_rows(timeline, start);
    }
    // One file may have processes of several tools.
    let is_open = |verdict: Verdict| verdict.dialect == Dialect::Torch && !header.is_recording;
    let (verdict, key, roles) = {
        let mut found = Evidence::new(timeline, start, header);
        found.has_rocprof = is_rocprof;
        let writer = WRITERS.iter().find(|writer| (writer.is_it)(&found));
        let Some(writer) = writer else {
            return Verdict {
                dialect: Dialect::Plain,
                writer: "",
                rank: None,
            };
        };
        let verdict = Verdict {
            dialect: writer.dialect,
            writer: writer.name,
            rank: found.rank(writer.name == UNITRACE),
        };
        let roles = is_open(verdict).then(|| found.roles(timeline, start));
        let key = writer.key.filter(|_| !found.has_arrows);
        (verdict, key, roles.unwrap_or_default())
    };
    if !roles.is_empty() {
        rows::assign(timeline, start, &roles, key);
    }
    rows::set_waits_apart(timeline, start);
    if is_open(verdict) {
        links::by_flows(timeline, start);
    }
    verdict
}

impl<'t> Evidence<'t> {
    fn new(timeline: &'t Timeline, start: usize, header: FileHeader<'t>) -> Self {
        let kinds = Kinds::new(timeline);
        let mut found = Self {
            header,
            processes: FxHashMap::default(),
            has_kineto: false,
            is_counted: false,
            has_flex: false,
            has_rocprof: false,
            has_arrows: false,
            cats: FxHashSet::default(),
        };
        let mut seen: FxHashSet<Sym> = FxHashSet::default();
        for event in timeline.events.get(start..).unwrap_or_default() {
            match event.ph {
                Ph::Metadata => found.name(timeline, event),
                Ph::FlowStart => {
                    found.has_arrows |= timeline.name(event.cat) == "HostToDevice";
                }
                Ph::Complete => {
                    if let Id::Token(text) = timeline.pid(event) {
                        found.name_by_id(timeline, event, text);
                    }
                    found.is_counted = found.is_counted || is_counted(timeline, event);
                    found.has_flex = found.has_flex || is_of_flex(timeline, &kinds, event);
                    if seen.insert(event.cat) {
                        found.cats.insert(timeline.name(event.cat));
                    }
                    found.has_kineto = found.has_kineto
                        || kinds.of(event.cat).is(Kind::CAT_KINETO)
                            && is_of_kineto(timeline, event);
                }
                _ => {}
            }
        }
        found
    }

    /// Takes the name of a process or thread.
    fn name(&mut self, timeline: &'t Timeline, event: &Event) {
        let text = || {
            let text = timeline.arg(event, "name")?;
            let plain = text.strip_prefix('"')?.strip_suffix('"')?;
            Some(match plain.contains('\\') {
                true => Cow::Owned(serde_json::from_str(text).ok()?),
                false => Cow::Borrowed(plain),
            })
        };
        let track = timeline.track(event);
        match timeline.name(event.name) {
            "process_name" => {
                if let Some(name) = text() {
                    self.processes.entry(track.pid).or_default().name = name;
                }
            }
            "thread_name" => {
                if let Some(name) = text() {
                    let process = self.processes.entry(track.pid).or_default();
                    process.threads.insert(track.tid, name);
                }
            }
            _ => {}
        }
    }

    /// Takes the name of a process whose `pid` is a text.
    fn name_by_id(&mut self, timeline: &'t Timeline, event: &Event, pid: Sym) {
        let plain = |text: Sym| timeline.name(text).trim_matches('"');
        let process = self.processes.entry(Id::Token(pid)).or_default();
        if process.name.is_empty() {
            process.name = Cow::Borrowed(plain(pid));
        }
        if let tid @ Id::Token(text) = timeline.tid(event) {
            let name = process.threads.entry(tid);
            name.or_insert_with(|| Cow::Borrowed(plain(text)));
        }
    }

    fn has_process(&self, is_it: impl Fn(&str) -> bool) -> bool {
        self.processes.values().any(|process| is_it(&process.name))
    }

    /// The rank that the names of processes agree on: `RANK 3 DEVICE<host>`; else that of a
    /// file's name, `app.1000.3.json`.
    fn rank(&self, is_in_name: bool) -> Option<u32> {
        let processes = self.processes.values();
        let mut ranks = processes.filter_map(|process| {
            let rest = process.name.strip_prefix("RANK ")?;
            rest.split(' ').next()?.parse().ok()
        });
        if let Some(first) = ranks.next() {
            return ranks.all(|rank| rank == first).then_some(first);
        }
        let mut parts = self.header.name.rsplit('.').skip(1);
        let (rank, pid) = (parts.next()?, parts.next()?);
        let _: u32 = pid.parse().ok()?;
        rank.parse().ok().filter(|_| is_in_name)
    }

    /// What each row holds, where its names show it.
    fn roles(&self, timeline: &Timeline, start: usize) -> FxHashMap<TrackId, RowRole> {
        let mut roles = FxHashMap::default();
        let mut seen = FxHashSet::default();
        for event in timeline.events.get(start..).unwrap_or_default() {
            if !event.is_slice() || !seen.insert(event.track) {
                continue;
            }
            let track = timeline.track(event);
            let Some(process) = self.processes.get(&track.pid) else {
                continue;
            };
            let thread = process.threads.get(&track.tid);
            let thread = thread.map_or("", |name| name);
            let role = WRITERS.iter().find_map(|writer| {
                let role = (writer.role)(self, process, thread);
                (role != RowRole::Other).then_some(role)
            });
            roles.extend(role.map(|role| (event.track, role)));
        }
        roles
    }
}

/// Whether an event has counters by name, which only the AIU's runtime writes.
fn is_counted(timeline: &Timeline, event: &Event) -> bool {
    let device = timeline.device(event);
    device.is_some_and(|device| !device.is_listed)
}

/// Whether an event is part of a collective of the AIU's runtime, or has one of its names.
fn is_of_flex(timeline: &Timeline, kinds: &Kinds, event: &Event) -> bool {
    let transfer = timeline.transfer(event);
    transfer.is_some_and(|transfer| !transfer.group.is_empty())
        || kinds.of(event.name).is(Kind::FLEX_NAME)
}

/// Categories that others have too: only the arguments show that they are Kineto's.
const SHARED: [&str; 3] = ["operator", "runtime", "overhead"];

fn is_of_kineto(timeline: &Timeline, event: &Event) -> bool {
    let cat = timeline.name(event.cat);
    if !SHARED.iter().any(|shared| cat.eq_ignore_ascii_case(shared)) {
        return true;
    }
    let args = timeline.texts.get(event.args);
    let keys = ["External id", "external id", "correlation", "cbid"];
    event.correlation != 0 || keys.iter().any(|key| member(args, key).is_some())
}

/// The number that an argument has, also as a text.
fn number_of(timeline: &Timeline, event: &Event, key: &str) -> Option<u64> {
    let args = timeline.texts.get(event.args);
    let (_, value) = members(args).find(|(name, _)| *name == key)?;
    value.trim_matches('"').parse().ok()
}
