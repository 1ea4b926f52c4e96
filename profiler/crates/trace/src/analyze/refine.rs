//! Names and places as TensorBoard and people want them: kernels under one name
//! whatever their number, devices and hosts as processes of their own.

use aiprof_model::timeline::{Dialect, Event, Id, Kind, Kinds, Ph, Sym, Time, Timeline, Track};
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::{Value, json};

/// What is added to a rank for the process of its host.
const HOST_PID: i64 = 1000;

/// Takes the numbers out of the names of device events; what they were stays with
/// the event. Kineto's kernels differ by numbers: theirs go only with `all`.
pub(crate) fn shorten_names(timeline: &mut Timeline, kinds: &Kinds, all: bool) {
    let mut known: FxHashMap<Sym, Sym> = FxHashMap::default();
    for index in 0..timeline.events.len() {
        let Some(event) = timeline.events.get(index).copied() else {
            break;
        };
        let is_named = all || timeline.dialect(&event) == Dialect::Flex;
        if !is_named || !event.is_slice() || !kinds.is_device(timeline, &event) {
            continue;
        }
        let name = match known.get(&event.name) {
            Some(name) => *name,
            None => {
                let short = shortened(timeline.name(event.name));
                let name = short.map_or(Sym::EMPTY, |short| timeline.names.intern(&short));
                known.insert(event.name, name);
                name
            }
        };
        if !name.is_empty()
            && let Some(event) = timeline.events.get_mut(index)
        {
            event.orig_name = event.name;
            event.name = name;
        }
    }
}

/// The name without numbers, if it has some: each goes, with one underscore before
/// it, but those after a V, which are versions.
fn shortened(name: &str) -> Option<String> {
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    let mut changed = false;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let (text, more) = rest.split_at(start);
        let len = more
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(more.len());
        let (digits, more) = more.split_at(len);
        // Those at the very begin go too, if there are others.
        if !text.is_empty() {
            out.push_str(text.strip_suffix('_').unwrap_or(text));
            if text.ends_with('V') {
                out.push_str(digits);
            }
            changed = true;
        }
        rest = more;
    }
    out.push_str(rest);
    (changed && !out.is_empty()).then_some(out)
}

/// Row of rank 0's collectives; the others follow.
const COLLECTIVES: i64 = 10_000;

/// A process that got a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamedProcess {
    pub(super) pid: i64,
    pub(super) start: Time,
}

/// Gives FLEX events the categories and processes of a device and its host, and adds
/// the names of these processes. Returns the devices, for `deviceProperties`.
///
/// `compat_bugs`: as in acelyzer 1.3.0, process 0 is named once more for each device whose host
/// has no events.
pub fn place(timeline: &mut Timeline, kinds: &Kinds, compat_bugs: bool) -> Vec<Value> {
    let mut hosts: Vec<(i64, NamedProcess)> = Vec::new();
    let mut devices: Vec<(i64, NamedProcess)> = Vec::new();
    let mut named: FxHashSet<(bool, i64)> = FxHashSet::default();
    let words = GivenNames::new(timeline);
    for index in 0..timeline.events.len() {
        let Some(mut event) = timeline.events.get(index).copied() else {
            break;
        };
        let is_flex = timeline.dialect(&event) == Dialect::Flex;
        if !event.is_slice() || !is_flex || timeline.is_processed(&event) {
            continue;
        }
        let Id::Number(pid) = timeline.pid(&event) else {
            continue;
        };
        event.is_refined = true;
        let place = if event.is_counted() {
            event.cat = words.category(kinds, &event);
            let rank = timeline.rank(&event);
            timeline.tracks.set_pid(&mut event, Id::Number(rank.into()));
            (&mut devices, i64::from(rank))
        } else {
            host(timeline, &words, &mut event, pid);
            collective(timeline, &mut event, index);
            (&mut hosts, pid.saturating_add(HOST_PID))
        };
        let (places, at) = place;
        if named.insert((event.is_counted(), pid)) {
            places.push((
                pid,
                NamedProcess {
                    pid: at,
                    start: event.start,
                },
            ));
        }
        if let Some(kept) = timeline.events.get_mut(index) {
            // Arguments may have been added meanwhile.
            event.args = kept.args;
            *kept = event;
        }
    }
    name_bandwidth(timeline);
    name_processes(timeline, &hosts, &devices, compat_bugs);
    devices
        .iter()
        .map(|(pid, _)| json!({"id": pid, "type": "AIU", "name": "AIU", "core": "PT Array"}))
        .collect()
}

/// Names the processes of hosts and devices, each with its rank.
fn name_processes(
    timeline: &mut Timeline,
    hosts: &[(i64, NamedProcess)],
    devices: &[(i64, NamedProcess)],
    compat_bugs: bool,
) {
    for (pid, place) in hosts {
        name_process(
            timeline,
            &format!("Host{pid}"),
            pid.saturating_mul(3),
            *place,
        );
    }
    let is_alone = |pid: &i64| !hosts.iter().any(|(host, _)| host == pid);
    for (_, place) in devices
        .iter()
        .filter(|(pid, _)| compat_bugs && is_alone(pid))
    {
        let place = NamedProcess { pid: 0, ..*place };
        name_process(timeline, "cpu_default", 0, place);
    }
    for (pid, place) in devices {
        let index = pid.saturating_mul(3).saturating_add(1);
        name_process(timeline, &format!("AIU Device{pid}"), index, *place);
    }
}

/// Names that are given.
struct GivenNames {
    kernel: Sym,
    memcpy: Sym,
    annotation: Sym,
    cpu_op: Sym,
}

impl GivenNames {
    fn new(timeline: &mut Timeline) -> Self {
        Self {
            kernel: timeline.names.intern("kernel"),
            memcpy: timeline.names.intern("gpu_memcpy"),
            annotation: timeline.names.intern("user_annotation"),
            cpu_op: timeline.names.intern("cpu_op"),
        }
    }

    /// Category of a device event.
    fn category(&self, kinds: &Kinds, event: &Event) -> Sym {
        let name = event.original_name();
        let kind = kinds.of(name);
        if kind.is(Kind::HAS_DMA) {
            match kind.is(Kind::RDMA) {
                true => self.annotation,
                false => self.memcpy,
            }
        } else if kind.is(Kind::ALL_REDUCE) && kind.is(Kind::HAS_EXEC) {
            self.annotation
        } else {
            self.kernel
        }
    }
}

fn host(timeline: &mut Timeline, words: &GivenNames, event: &mut Event, pid: i64) {
    if event.cat.is_empty() {
        event.cat = words.cpu_op;
    }
    let pid = Id::Number(pid.saturating_add(HOST_PID));
    timeline.tracks.set_pid(event, pid);
    // What Torch's profiler added stands above.
    let is_torch = ["External id", "Python id"]
        .iter()
        .any(|key| timeline.arg(event, key).is_some());
    if is_torch && let Id::Number(tid) = timeline.tid(event) {
        let tid = Id::Number(tid / 10 + tid % 10);
        timeline.tracks.set_tid(event, tid);
    }
}

/// Spans of collectives get rows of their own; those of all-reduces the name by which
/// TensorBoard's plugin knows them.
fn collective(timeline: &mut Timeline, event: &mut Event, index: usize) {
    if let Id::Token(row) = timeline.tid(event) {
        let number = timeline.name(row).trim_matches('"').strip_prefix("coll");
        if let Some(number) = number.and_then(|number| number.parse::<i64>().ok()) {
            let tid = Id::Number(COLLECTIVES.saturating_add(number));
            timeline.tracks.set_tid(event, tid);
        }
    }
    let is_one = timeline.arg(event, "Coll_data_size").is_some();
    let name = timeline.name(event.name);
    if !is_one || !name.contains("AllReduce_all_reduce") {
        return;
    }
    let id = first_number(name).unwrap_or("0").to_owned();
    event.orig_name = event.name;
    event.name = timeline.names.intern("gloo:all_reduce");
    timeline.add_args(index, &format!("\"external id\":\"{id}\""));
}

/// The first digits behind an underscore.
fn first_number(name: &str) -> Option<&str> {
    let parts = name.split('_').skip(1);
    parts
        .map(|part| {
            let end = part.find(|c: char| !c.is_ascii_digit());
            part.get(..end.unwrap_or(part.len())).unwrap_or_default()
        })
        .find(|digits| !digits.is_empty())
}

/// The process of counters that belong to no rank gets a name.
fn name_bandwidth(timeline: &mut Timeline) {
    let pid = Id::Number(-1);
    let is_named = |event: &Event| event.ph == Ph::Metadata && timeline.pid(event) == pid;
    if timeline.events.iter().any(is_named) {
        return;
    }
    let mut counters = timeline.events.iter();
    let Some(first) = counters.find(|event| event.ph == Ph::Counter && timeline.pid(event) == pid)
    else {
        return;
    };
    let place = NamedProcess {
        pid: -1,
        start: first.start,
    };
    name_process(timeline, "CollectiveBW", 0, place);
}

pub(super) fn name_process(
    timeline: &mut Timeline,
    name: &str,
    sort_index: i64,
    place: NamedProcess,
) {
    let label = format!("\"name\":{}", Value::from(name));
    let order = format!("\"sort_index\":{sort_index}");
    let track = Track::row(Id::Number(place.pid), Id::NONE);
    let track = timeline.tracks.intern(track);
    for (kind, args) in [
        ("process_name", &label),
        ("process_label", &label),
        ("process_sort_index", &order),
    ] {
        let kind = timeline.names.intern(kind);
        let mut event = Event::new(Ph::Metadata, kind, track, place.start);
        event.args = timeline.texts.add(args);
        timeline.events.push(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::normalize;
    use aiprof_formats::import::json;
    use aiprof_testkit::timelines;

    /// Kernels of GPUs differ by numbers; acelyzer takes them away.
    #[test]
    fn kernels_of_gpus_keep_their_numbers() {
        for (all, name) in [(false, "sgemm_128x64_2"), (true, "sgemmx")] {
            let mut timeline = timelines::timeline(Dialect::Torch);
            let at = timelines::slice(&mut timeline, "sgemm_128x64_2", 0, 0.0, 1.0);
            timeline.events[at].cat = timeline.names.intern("kernel");
            let kinds = Kinds::new(&timeline);
            shorten_names(&mut timeline, &kinds, all);
            assert_eq!(timeline.name(timeline.events[at].name), name);
        }
    }

    /// acelyzer gives hosts without events a name of their own, as process 0.
    #[test]
    fn hosts_without_events_have_a_name_with_the_mistakes_of_acelyzer() {
        let text = r#"[{"ph":"X","name":"AIU Roundtrip","pid":1,"tid":1,"ts":1,"dur":9},
            {"ph":"X","name":"a Cmpt Exec","pid":0,"tid":1,"ts":1,"dur":9,"args":
                {"TS1":"1","TS2":"2","TS3":"3","TS4":"4","TS5":"5"}}]"#;
        for (compat_bugs, count) in [(false, 0), (true, 1)] {
            let mut timeline = Timeline::default();
            let read = json::read(text.as_bytes(), "x.json", &mut timeline).unwrap();
            normalize::assign_ranks(&mut timeline, read.job, read.events, false);
            let kinds = Kinds::new(&timeline);
            place(&mut timeline, &kinds, compat_bugs);
            let is_named = |event: &&Event| {
                timeline.arg(event, "name") == Some("\"cpu_default\"")
                    && timeline.name(event.name) == "process_name"
            };
            let named = timeline.events.iter().filter(is_named);
            assert_eq!(named.count(), count);
        }
    }

    #[test]
    fn numbers_of_collectives_are_found() {
        // As Python's re.search(r"_(\d+)", name).
        assert_eq!(first_number("AllReduce_all_reduce_4_Add_12"), Some("4"));
        assert_eq!(first_number("a_b5_6c"), Some("6"));
        assert_eq!(first_number("5_a"), None);
    }

    #[test]
    fn names_lose_their_numbers() {
        // As acelyzer 1.3.0 gives them.
        for (name, short) in [
            ("add_11 Cmpt Exec", Some("add Cmpt Exec")),
            ("max_pool2d_with_indices", Some("max_poold_with_indices")),
            ("addmm_1_MatMul-BMM_1", Some("addmm_MatMul-BMM")),
            ("kernelV2_3", Some("kernelV2")),
            ("plain", None),
            ("12", None),
            ("12ab3", Some("ab")),
            ("_1_2", None),
            (
                "SenRdmaRecv_82236 [524288B] [sync=AllReduce_all_reduce_4_s0_r1_0] DmaI",
                Some("SenRdmaRecv [B] [sync=AllReduce_all_reduce_s_r] DmaI"),
            ),
        ] {
            assert_eq!(shortened(name).as_deref(), short, "{name}");
        }
    }
}
