//! What rows hold, by the names that each tool gives processes and threads.

use super::{Evidence, ProcessNames, RowRole, number_of};
use aiprof_model::timeline::{Event, Id, Ph, Sym, Time, Timeline, TrackId};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::Reverse;

/// Rows of tools whose categories show all.
pub(super) fn others(_: &Evidence<'_>, _: &ProcessNames<'_>, _: &str) -> RowRole {
    RowRole::Other
}

/// Whether unitrace names a process so: `HOST<name>`, `RANK 0 DEVICE<name>[...]`.
pub(super) fn is_of_unitrace(name: &str) -> bool {
    let without_rank = || {
        let rest = name.strip_prefix("RANK ")?;
        Some(
            rest.trim_start_matches(|c: char| c.is_ascii_digit())
                .trim_start(),
        )
    };
    let name = without_rank().unwrap_or(name);
    name.starts_with("HOST<") || name.starts_with("DEVICE<")
}

/// Rows of Huawei's torch_npu.
pub(super) fn of_ascend(_: &Evidence<'_>, process: &ProcessNames<'_>, thread: &str) -> RowRole {
    match &*process.name {
        "Ascend Hardware" => RowRole::Work,
        // Its other rows are the parts of each collective.
        "Communication" | "HCCL" if thread.starts_with("Group") => RowRole::Work,
        "CANN" => RowRole::Calls("cann_runtime"),
        _ => RowRole::Other,
    }
}

/// What rocprof names a process: `CPU HIP API`, `COPY`, `GPU0`. Some versions put a number before
/// it, `2 GPU0`: whether it does.
fn part_of_rocprof(name: &str) -> Option<(&str, bool)> {
    let (part, is_numbered) = match name.split_once(' ') {
        Some((number, part)) if is_number(number) => (part, true),
        _ => (name, false),
    };
    let gpu = part.strip_prefix("GPU");
    let is_part = gpu.is_some_and(is_number)
        || part == "COPY"
        || part.starts_with("CPU H") && part.contains("API");
    is_part.then_some((part, is_numbered))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// Whether rocprof before version 3 wrote the events from `start` on. Names of processes with
/// numbers show that. Names without also need the times `BeginNs` and `EndNs`.
pub(super) fn is_of_rocprof(timeline: &Timeline, start: usize) -> bool {
    let events = timeline.events.get(start..).unwrap_or_default();
    let names = events.iter().filter(|event| event.ph == Ph::Metadata);
    let mut names = names.filter_map(|event| part_of_rocprof(name_in(timeline, event)));
    let Some((_, is_numbered)) = names.next() else {
        return false;
    };
    let is_timed = |event: &Event| {
        let has = |key| timeline.arg(event, key).is_some();
        event.is_slice() && has("BeginNs") && has("EndNs")
    };
    is_numbered || names.any(|(_, is_numbered)| is_numbered) || events.iter().any(is_timed)
}

/// Rows of rocprof before version 3.
pub(super) fn of_rocprof(found: &Evidence<'_>, process: &ProcessNames<'_>, _: &str) -> RowRole {
    match part_of_rocprof(&process.name).filter(|_| found.has_rocprof) {
        Some(("COPY", _)) => RowRole::Copies,
        Some((part, _)) if part.starts_with("GPU") => RowRole::Work,
        Some((part, _)) if part.contains("HSA") => RowRole::Calls("hsa_runtime"),
        Some(_) => RowRole::Calls("hip_runtime"),
        None => RowRole::Other,
    }
}

/// Whether nsys2json names a process so, which makes a trace of an export of Nsight Systems:
/// `Device 0`.
pub(super) fn is_of_nsys(name: &str) -> bool {
    name.strip_prefix("Device ").is_some_and(is_number)
}

/// Rows of nsys2json: kernels in `Stream 7`, the program's ranges in `NVTX Thread 12`.
pub(super) fn of_nsys(found: &Evidence<'_>, process: &ProcessNames<'_>, thread: &str) -> RowRole {
    let is_stream = thread.strip_prefix("Stream ").is_some_and(is_number);
    match is_stream && is_of_nsys(&process.name) && found.cats.contains("cuda") {
        true => RowRole::Work,
        false => RowRole::Other,
    }
}

/// Whether a process of XLA or TensorFlow is a device that is no CPU: `/device:TPU:0`,
/// `/job:localhost/replica:0/task:0/device:GPU:0/stream:all Compute`.
pub(super) fn is_xla_device(name: &str) -> bool {
    let small = name.to_ascii_lowercase();
    let is_path = small.starts_with("/device:") || small.starts_with("/job:");
    let device = small.split_once("device:").map(|(_, device)| device);
    let is_old = ["/gpu:", "/tpu:"]
        .iter()
        .any(|part| small.starts_with(part));
    let is_device = device.is_some_and(|device| {
        let is_kind = device.starts_with(|c: char| c.is_ascii_alphabetic());
        is_kind && !device.starts_with("cpu") && !device.starts_with("xla_cpu")
    });
    // TensorFlow's rows of what tensors live.
    (is_path && is_device || is_old) && !small.ends_with(" tensors")
}

/// Whether a process has rows of one stream of a device, as TensorFlow's timelines do.
fn is_stream(name: &str) -> bool {
    name.contains("/stream:") || name.contains("/memcpy")
}

/// Rows that repeat or group what other rows of a device show.
const DERIVED: [&str; 10] = [
    "Steps",
    "XLA Modules",
    "XLA TraceMe",
    "XLA Async Ops",
    "Async XLA Ops",
    "TensorFlow Name Scope",
    "TensorFlow Ops",
    "Framework Name Scope",
    "Framework Ops",
    "Launch Stats",
];

/// Rows of JAX, XLA and TensorFlow.
pub(super) fn of_xla(found: &Evidence<'_>, process: &ProcessNames<'_>, thread: &str) -> RowRole {
    let name = &*process.name;
    if name.starts_with("/host:") {
        return RowRole::NumberedCalls;
    }
    if !is_xla_device(name) {
        return RowRole::Other;
    }
    let others = || found.processes.values().map(|other| &*other.name);
    let is_work = if name.contains("/stream:all") {
        // All streams together: again what each of them has.
        let is_one = |other: &str| other.contains("/stream:") && !other.contains("/stream:all");
        !others().any(is_one)
    } else if is_stream(name) {
        true
    } else if others().any(is_stream) {
        // What the host did for the device.
        false
    } else if process
        .threads
        .values()
        .any(|row| row.starts_with("Stream #"))
    {
        thread.starts_with("Stream #")
    } else if process.threads.values().any(|row| row == "XLA Ops") {
        return match thread == "XLA Ops" {
            true => RowRole::NestedWork,
            false => RowRole::Other,
        };
    } else {
        let small = thread.to_ascii_lowercase();
        !DERIVED.contains(&thread) && !small.starts_with("source")
    };
    match is_work {
        true => RowRole::Work,
        false => RowRole::Other,
    }
}

/// Makes numbers of the processes and threads of rocprof, which are texts in its slices and
/// numbers in their names: `"pid":"6"`.
pub(super) fn number_rows(timeline: &mut Timeline, start: usize) {
    let Timeline {
        events,
        tracks,
        names,
        ..
    } = timeline;
    let number = |id: Id| match id {
        Id::Token(sym) => {
            let text = names.get(sym).trim_matches('"');
            text.parse().map_or(id, Id::Number)
        }
        number @ Id::Number(_) => number,
    };
    for event in events.get_mut(start..).unwrap_or_default() {
        event.track = tracks.like(event.track, |track| {
            (track.pid, track.tid) = (number(track.pid), number(track.tid));
        });
    }
}

/// The name that an event gives a row.
fn name_in<'t>(timeline: &'t Timeline, event: &Event) -> &'t str {
    let name = timeline.arg(event, "name").unwrap_or_default();
    name.trim_matches('"')
}

/// The events of rows of nested work that are around others.
fn containers(
    timeline: &Timeline,
    start: usize,
    roles: &FxHashMap<TrackId, RowRole>,
) -> FxHashSet<usize> {
    let mut rows: FxHashMap<TrackId, Vec<(Time, Reverse<Time>, usize)>> = FxHashMap::default();
    for (index, event) in timeline.events.iter().enumerate().skip(start) {
        if event.is_slice() && roles.get(&event.track) == Some(&RowRole::NestedWork) {
            let place = (event.start, Reverse(event.end()), index);
            rows.entry(event.track).or_default().push(place);
        }
    }
    let mut found = FxHashSet::default();
    for mut row in rows.into_values() {
        row.sort_unstable();
        for pair in row.windows(2) {
            if let &[(_, Reverse(end), around), (begin, Reverse(inner), _)] = pair
                && begin < end
                && inner <= end
            {
                found.insert(around);
            }
        }
    }
    found
}

/// Categories that events get.
struct Words {
    kernel: Sym,
    copy: Sym,
    fill: Sym,
    numbered: [(&'static str, Sym); 3],
}

/// Gives the events from `start` on categories by their rows, and calls and work the number
/// that their argument `key` has.
pub(super) fn assign(
    timeline: &mut Timeline,
    start: usize,
    roles: &FxHashMap<TrackId, RowRole>,
    key: Option<&str>,
) {
    let names = &mut timeline.names;
    let words = Words {
        kernel: names.intern("kernel"),
        copy: names.intern("gpu_memcpy"),
        fill: names.intern("gpu_memset"),
        numbered: [
            ("cuda", names.intern("cuda_runtime")),
            ("cu", names.intern("cuda_driver")),
            ("hip", names.intern("hip_runtime")),
        ],
    };
    let around = containers(timeline, start, roles);
    for index in start..timeline.events.len() {
        let Some(mut event) = timeline.events.get(index).copied() else {
            break;
        };
        let Some(role) = roles.get(&event.track).filter(|_| event.is_slice()) else {
            continue;
        };
        event.cat = match role {
            RowRole::Other => continue,
            RowRole::NestedWork if around.contains(&index) => continue,
            RowRole::Work | RowRole::NestedWork => match work(timeline, &words, &event) {
                Some(cat) => cat,
                None => continue,
            },
            RowRole::Copies => words.copy,
            RowRole::Calls(cat) => timeline.names.intern(cat),
            RowRole::NumberedCalls => match numbered(timeline, &words, &event) {
                Some(cat) => cat,
                None => continue,
            },
        };
        if let (Some(key), 0) = (key, event.correlation) {
            // Numbers begin at 0, which is none.
            let number = number_of(timeline, &event, key);
            event.correlation = number.map_or(0, |number| number.saturating_add(1));
        }
        if let Some(kept) = timeline.events.get_mut(index) {
            *kept = event;
        }
    }
}

/// Category of what devices of MTIA do.
const MTIA_WORK: &str = "mtia_ccp_events";
/// That of their waits, which is no category of work.
const MTIA_WAITS: &str = "mtia_sync";

/// Takes the waits of MTIA's streams out of the category of work: they only stand for time in
/// which another stream works.
pub(super) fn set_waits_apart(timeline: &mut Timeline, start: usize) {
    let Some(work) = timeline.names.find(MTIA_WORK) else {
        return;
    };
    let waits = timeline.names.intern(MTIA_WAITS);
    let names = ["event_wait", "event_record"].map(|name| timeline.names.intern(name));
    for event in timeline.events.get_mut(start..).unwrap_or_default() {
        if event.cat == work && names.contains(&event.name) {
            event.cat = waits;
        }
    }
}

/// The category of a device's work; `None`: it is a wait, or has one of its own.
fn work(timeline: &Timeline, words: &Words, event: &Event) -> Option<Sym> {
    let name = timeline.name(event.name).to_ascii_lowercase();
    let kind = timeline.arg(event, "Task Type").unwrap_or_default();
    let waits = ["EVENT", "NOTIFY", "WAIT"];
    if waits.iter().any(|wait| kind.contains(wait)) {
        return None;
    }
    let has = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    Some(if has(&["memset"]) {
        words.fill
    } else if has(&[
        "memcpy",
        "copyhosttodevice",
        "copydevicetohost",
        "copydevicetodevice",
    ]) {
        words.copy
    } else {
        words.kernel
    })
}

/// The category of a call of CUDA or HIP that shares its number with what it launched.
fn numbered(timeline: &Timeline, words: &Words, event: &Event) -> Option<Sym> {
    let name = timeline.name(event.name);
    let mut all = words.numbered.iter();
    let found = all.find(|(prefix, _)| {
        let rest = name.strip_prefix(prefix);
        rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
    });
    found
        .filter(|_| event.correlation != 0)
        .map(|(_, cat)| *cat)
}
