//! Traces of several processes, devices, hosts and files. What is expected is computed from the
//! begins and lengths that each trace is built with.

use super::*;
use crate::analyze::messages::Level;
use crate::analyze::normalize::{assign_ranks, merge_files};
use crate::analyze::{device_busy, recordings, statistics};
use crate::device_time::DeviceTime;
use crate::work::WorkIndex;
use aiprof_formats::import::json;
use aiprof_model::timeline::Kinds;

/// Launches of each device.
const LAUNCHES: u32 = 10;
/// From one launch to the next, microseconds.
const STEP: u32 = 1000;

/// A process to be: its file has a launch and a kernel of each device in each step.
#[derive(Clone)]
pub(super) struct Made {
    pub(super) rank: Option<u32>,
    pub(super) host: &'static str,
    pub(super) pid: i64,
    /// Number and length of kernels, microseconds.
    pub(super) gpus: Vec<(i64, u32)>,
    /// Begin, microseconds.
    pub(super) base: u64,
    pub(super) first: u32,
    pub(super) uuid: &'static str,
}

impl Made {
    pub(super) fn new(rank: u32, pid: i64, gpus: &[(i64, u32)]) -> Self {
        Self {
            rank: Some(rank),
            host: "",
            pid,
            gpus: gpus.to_vec(),
            base: 1_700_000_000_000_000,
            first: 1,
            uuid: "",
        }
    }

    fn events(&self) -> Vec<String> {
        let (pid, mut number) = (self.pid, self.first);
        let mut events = Vec::new();
        for step in 0..LAUNCHES {
            for (at, (gpu, dur)) in (0u64..).zip(&self.gpus) {
                let ts = self.base + u64::from(step * STEP) + at * 30;
                let (begun, name) = (ts + 50, format!("k{pid}_{gpu}"));
                events.push(format!(
                    r#"{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":{pid},"tid":{pid},"ts":{ts},"dur":20,"args":{{"correlation":{number}}}}}"#
                ));
                events.push(format!(
                    r#"{{"ph":"s","cat":"ac2g","name":"ac2g","id":{number},"pid":{pid},"tid":{pid},"ts":{ts}}}"#
                ));
                events.push(format!(
                    r#"{{"ph":"X","cat":"kernel","name":"{name}","pid":{gpu},"tid":7,"ts":{begun},"dur":{dur},"args":{{"device":{gpu},"stream":7,"correlation":{number}}}}}"#
                ));
                events.push(format!(
                    r#"{{"ph":"f","bp":"e","cat":"ac2g","name":"ac2g","id":{number},"pid":{gpu},"tid":7,"ts":{begun}}}"#
                ));
                number += 1;
            }
        }
        events
    }

    pub(super) fn file(&self) -> String {
        self.file_of(&self.events())
    }

    fn file_of(&self, events: &[String]) -> String {
        let host = match self.host {
            "" => String::new(),
            host => format!(r#","hostname":"{host}""#),
        };
        let info = self
            .rank
            .map(|rank| format!(r#""distributedInfo":{{"rank":{rank}{host}}},"#))
            .unwrap_or_default();
        let uuid = match self.uuid {
            "" => String::new(),
            uuid => format!(r#","uuid":"{uuid}""#),
        };
        let devices = self.gpus.iter();
        let devices = devices.map(|(gpu, _)| format!(r#"{{"id":{gpu}{uuid}}}"#));
        let devices: Vec<String> = devices.collect();
        format!(
            "{{\"deviceProperties\":[{}],{info}\"traceEvents\":[{}]}}",
            devices.join(","),
            events.join(",")
        )
    }
}

pub(super) fn read(files: &[String]) -> Timeline {
    let named = (0..)
        .zip(files)
        .map(|(at, text)| (format!("{at}.json"), text.as_str()));
    read_named(&named.collect::<Vec<_>>())
}

fn read_named(files: &[(String, &str)]) -> Timeline {
    let mut timeline = Timeline::default();
    let mut read = Vec::new();
    let mut messages = Messages::new(Level::Error);
    for (name, text) in files {
        let reading = json::read(text.as_bytes(), name, &mut timeline).unwrap();
        assign_ranks(&mut timeline, reading.job, reading.events.clone(), false);
        read.push(Recording {
            job: reading.job,
            events: reading.events,
            origin: reading.origin,
            day_us: reading.day_us,
        });
    }
    resolve(&mut timeline, &read, &mut messages);
    recordings::bring_together(&mut timeline, &read, &mut messages);
    let ranges: Vec<_> = read.into_iter().map(|file| file.events).collect();
    merge_files(&mut timeline, &ranges);
    name_hosts(&mut timeline);
    timeline
}

/// Rank, busy and elapsed time of each device, of which the statistics of kernels have the last,
/// too.
fn active(timeline: &Timeline) -> Vec<(u32, f64, f64)> {
    let index = WorkIndex::new(timeline);
    let rows = device_busy::rows(timeline, &DeviceTime::of_all(&index.ranks));
    let found = statistics::run(timeline, &Kinds::new(timeline), true);
    let mut times = [
        rows.iter().map(|row| row.elapsed_us).collect::<Vec<_>>(),
        found.active.iter().map(|row| row.elapsed_us()).collect(),
    ];
    times.iter_mut().for_each(|all| all.sort_by(f64::total_cmp));
    assert_eq!(times[0], times[1]);
    let mut rows: Vec<_> = rows
        .iter()
        .map(|row| (row.rank, row.busy_us, row.elapsed_us))
        .collect();
    rows.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    rows
}

/// What a device is busy, and from its first kernel to its last end.
fn alone(rank: u32, dur: u32) -> (u32, f64, f64) {
    let busy = f64::from(LAUNCHES * dur);
    (rank, busy, f64::from((LAUNCHES - 1) * STEP + dur))
}

/// Devices that are looked at for findings: ranks, busy and elapsed time.
fn devices(timeline: &Timeline) -> Vec<(Vec<u32>, f64, f64)> {
    let index = WorkIndex::new(timeline);
    let devices = DeviceTime::of_all(&index.ranks).into_iter();
    devices
        .map(|device| (device.ranks.clone(), device.busy.us(), device.elapsed_us()))
        .collect()
}

/// For each kernel whether the call that launched it is of its process: both have the process's
/// number, in the name of the one and the row of the other.
fn check_links(timeline: &Timeline, count: usize) {
    let index = WorkIndex::new(timeline);
    let event = |at: u32| timeline.events.get(at as usize).unwrap();
    let mut linked = 0;
    for work in index.ranks.iter().flat_map(|rank| &rank.work) {
        let name = timeline.name(event(work.event).name).to_owned();
        let thread = timeline.tid(event(work.call)).number().unwrap();
        assert!(
            name.starts_with(&format!("k{thread}_")),
            "{name} of {thread}"
        );
        linked += 1;
    }
    assert_eq!(linked, count);
}

/// Groups of rows with slices, each once for every rank that has some there.
fn groups(timeline: &Timeline) -> usize {
    let slices = timeline.events.iter().filter(|event| event.is_slice());
    let of = |event: &Event| (timeline.pid(event), timeline.rank(event));
    let all: BTreeSet<_> = slices.map(of).collect();
    let pids: BTreeSet<_> = all.iter().map(|(pid, _)| *pid).collect();
    assert_eq!(all.len(), pids.len(), "{all:?}");
    all.len()
}

#[test]
fn processes_of_two_nodes_with_equal_numbers_stay_apart() {
    let made = [
        Made::new(0, 100, &[(0, 300)]),
        Made::new(1, 101, &[(1, 400)]),
        Made::new(2, 100, &[(0, 500)]),
        Made::new(3, 101, &[(1, 600)]),
    ];
    let files = made.each_ref().map(Made::file);
    let expected = [alone(0, 300), alone(1, 400), alone(2, 500), alone(3, 600)];
    for order in [[0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 0, 1]] {
        let files = order.map(|at| files[at].clone());
        let timeline = read(&files);
        assert_eq!(active(&timeline), expected, "{order:?}");
        assert_eq!((groups(&timeline), devices(&timeline).len()), (8, 4));
        check_links(&timeline, 40);
        // The numbers in the arguments are those of the files.
        let mut numbers: Vec<_> = timeline
            .events
            .iter()
            .filter_map(|event| timeline.arg(event, "device"))
            .collect();
        numbers.sort();
        assert_eq!(numbers, [["0"; 20], ["1"; 20]].concat());
    }
}

#[test]
fn a_process_with_two_devices_has_two() {
    for rank in [0, 1, 9] {
        let timeline = read(&[Made::new(rank, 100, &[(0, 300), (1, 400)]).file()]);
        assert_eq!(active(&timeline), [alone(rank, 300), alone(rank, 400)]);
        assert_eq!((groups(&timeline), devices(&timeline).len()), (3, 2));
        let numbers = timeline.events.iter().map(|event| timeline.pid(event));
        let numbers: BTreeSet<_> = numbers.collect();
        assert_eq!(numbers, [0, 1, 100].map(Id::Number).into());
    }
    // The device of a rank alone has the rank's number, as people expect it.
    let timeline = read(&[Made::new(9, 100, &[(0, 300)]).file()]);
    let numbers: BTreeSet<_> = timeline
        .events
        .iter()
        .map(|event| timeline.pid(event))
        .collect();
    assert_eq!(numbers, [9, 100].map(Id::Number).into());
}

#[test]
fn what_lies_between_files_of_one_process_is_not_idle() {
    let first = Made::new(0, 100, &[(0, 950)]);
    let second = Made {
        base: first.base + 10_000_000,
        first: 101,
        ..first.clone()
    };
    let (_, busy, elapsed) = alone(0, 950);
    for files in [[first.file(), second.file()], [second.file(), first.file()]] {
        let timeline = read(&files);
        assert_eq!(active(&timeline), [(0, 2.0 * busy, 2.0 * elapsed)]);
        assert_eq!(groups(&timeline), 2);
        assert_eq!(devices(&timeline), [(vec![0], 2.0 * busy, 2.0 * elapsed)]);
    }
    // Another process with the rank, at the same time, is another process.
    let timeline = read(&[
        first.file(),
        Made {
            pid: 101,
            ..first.clone()
        }
        .file(),
    ]);
    assert_eq!(active(&timeline), [alone(0, 950), alone(1, 950)]);
}

#[test]
fn files_without_a_rank_are_a_process_each() {
    let one = Made {
        rank: None,
        ..Made::new(0, 100, &[(0, 300)])
    };
    let two = Made {
        gpus: vec![(0, 400)],
        ..one.clone()
    };
    let mut seen = Vec::new();
    for files in [[one.file(), two.file()], [two.file(), one.file()]] {
        let timeline = read(&files);
        assert_eq!((groups(&timeline), devices(&timeline).len()), (4, 2));
        let faults = crate::analyze::checks::run(&timeline, &Kinds::new(&timeline));
        assert!(faults.found.iter().all(|fault| fault.count == 0));
        check_links(&timeline, 20);
        seen.push(active(&timeline));
    }
    assert_eq!(seen[0], [alone(0, 300), alone(1, 400)]);
    assert_eq!(seen[0], seen[1]);
    assert_eq!(active(&read(&[one.file()])), [alone(0, 300)]);
}

/// Two processes in one file, with two devices or with one number for both. Their events are one
/// process after the other, in the order of time, or all calls before all kernels.
#[test]
fn files_that_were_merged_by_hand_have_their_processes() {
    for gpu in [0, 1] {
        let one = Made::new(0, 100, &[(0, 300)]);
        let two = Made {
            base: one.base + 407,
            ..Made::new(0, 200, &[(gpu, 250)])
        };
        let time = |text: &String| {
            let from = text.find("\"ts\":").unwrap() + 5;
            let text = &text[from..];
            let end = text.find(|c: char| !c.is_ascii_digit()).unwrap();
            text[..end].parse::<u64>().unwrap()
        };
        let behind = [one.events(), two.events()].concat();
        let turned = [two.events(), one.events()].concat();
        let mut sorted = behind.clone();
        sorted.sort_by_key(time);
        let mut grouped = behind.clone();
        grouped.sort_by_key(|text| !text.contains("cuda_runtime"));
        for events in [behind, turned, sorted, grouped] {
            let timeline = read(&[one.file_of(&events)]);
            assert_eq!((groups(&timeline), devices(&timeline).len()), (4, 2));
            check_links(&timeline, 20);
            let mut times: Vec<_> = active(&timeline);
            times.iter_mut().for_each(|row| row.0 = 0);
            times.sort_by(|a, b| a.1.total_cmp(&b.1));
            assert_eq!(times, [alone(0, 250), alone(0, 300)]);
        }
    }
}

#[test]
fn a_device_with_one_uuid_is_one_for_all_processes() {
    let one = Made {
        uuid: "GPU-a",
        ..Made::new(0, 100, &[(0, 300)])
    };
    let two = Made {
        base: one.base + 500,
        ..Made {
            pid: 101,
            rank: Some(1),
            ..one.clone()
        }
    };
    let timeline = read(&[one.file(), two.file()]);
    // Their kernels take turns: 600 of 1000 us, the last ends at 9000 + 500 + 50 + 300.
    assert_eq!(active(&timeline), [(0, 6000.0, 9800.0)]);
    assert_eq!(devices(&timeline), [(vec![0, 1], 6000.0, 9800.0)]);
    // Each has its own kernels.
    let found = statistics::run(&timeline, &Kinds::new(&timeline), true);
    let kernels = found.kernels.iter();
    let calls: Vec<_> = kernels.map(|row| (row.rank, row.times.calls)).collect();
    assert_eq!(calls, [(0, 10), (1, 10)]);
    assert!(timeline.identity.assumed[0].contains("use the same device"));

    let other = Made {
        uuid: "GPU-b",
        ..two.clone()
    };
    let timeline = read(&[one.file(), other.file()]);
    assert_eq!(active(&timeline), [alone(0, 300), alone(1, 300)]);
    assert!(timeline.identity.assumed.is_empty());

    // Nothing shows it: each has its own, which is noted.
    let plain = [Made { uuid: "", ..one }, Made { uuid: "", ..two }];
    let timeline = read(&plain.each_ref().map(Made::file));
    assert_eq!(active(&timeline), [alone(0, 300), alone(1, 300)]);
    assert!(timeline.identity.assumed[0].contains("count as different devices"));
}

#[test]
fn addresses_are_of_a_host() {
    let one = Made {
        uuid: "0000:01:00.0",
        host: "a",
        ..Made::new(0, 100, &[(0, 300)])
    };
    let two = Made {
        host: "b",
        rank: Some(1),
        ..one.clone()
    };
    let timeline = read(&[one.file(), two.file()]);
    assert_eq!(active(&timeline), [alone(0, 300), alone(1, 300)]);
    assert_eq!(timeline.identity.hosts, ["a", "b"]);
    assert!(timeline.identity.assumed.is_empty());
    let processes = timeline.events.iter().map(|event| timeline.process(event));
    let hosts: BTreeSet<_> = processes.filter_map(|process| process.host).collect();
    assert_eq!(hosts, [0, 1].into());
    // Rows of both have the host's name.
    let labels = timeline
        .events
        .iter()
        .filter_map(|event| timeline.arg(event, "labels"));
    let labels: Vec<_> = labels.collect();
    assert_eq!(labels.iter().filter(|text| **text == "\"a\"").count(), 2);
}

/// Each arrow begins and ends in one process, and no other has its number.
#[test]
fn arrows_of_processes_with_equal_numbers_are_apart() {
    let files = [0, 2].map(|rank| Made::new(rank, 100, &[(0, 300)]).file());
    let mut timeline = read(&files);
    separate_arrows(&mut timeline);
    let mut ends: BTreeMap<Id, Vec<u32>> = BTreeMap::new();
    for event in timeline
        .events
        .iter()
        .filter(|event| event.ph == Ph::FlowStart || event.ph == Ph::FlowEnd)
    {
        ends.entry(event.id).or_default().push(timeline.rank(event));
    }
    assert_eq!(ends.len(), 20);
    assert!(
        ends.values()
            .all(|ranks| matches!(ranks[..], [a, b] if a == b))
    );
}

/// What an analysis wrote has the rank and file of each slice.
#[test]
fn what_an_analysis_wrote_keeps_ranks_and_files() {
    let mut events = Vec::new();
    for (rank, pid, name) in [(1, 100, "a.json(1)"), (3, 10_000_100, "b.json(2)")] {
        let made = Made::new(rank, pid, &[(i64::from(rank), 300)]);
        let of = format!("\"rank\":{rank},\"jobname\":\"{name}\",\"correlation\"");
        let own = made.events().into_iter();
        events.extend(own.map(|text| text.replace("\"correlation\"", &of)));
    }
    let text = format!(
        r#"{{"deviceProperties":[],"otherData":{{"Application":"aiprof 1"}},"traceEvents":[{}]}}"#,
        events.join(",")
    );
    let mut timeline = read(&[text]);
    restore_files(&mut timeline);
    assert_eq!(active(&timeline), [alone(1, 300), alone(3, 300)]);
    assert_eq!(timeline.jobs.len(), 2);
    check_links(&timeline, 20);
    assert!(timeline.jobs.iter().all(|job| job.is_processed));
}

/// unitrace's processes name their ranks, each of its own, also where the files of ranks were
/// merged, in any order and with the same numbers of calls.
#[test]
fn processes_of_unitrace_have_the_ranks_that_they_name() {
    let of_rank = |rank: u32, dur: u32| {
        let (host, device) = (1000 + rank, u32::MAX - (rank << 5));
        let name = |pid: u32, kind: &str| {
            format!(
                r#"{{"ph":"M","name":"process_name","pid":{pid},"args":{{"name":"RANK {rank} {kind}<n>"}}}}"#
            )
        };
        let slice = |cat: &str, name: &str, pid: u32, ts: u32, dur: u32| {
            format!(
                r#"{{"ph":"X","cat":"{cat}","name":"{name}","pid":{pid},"tid":7,"ts":{ts},"dur":{dur}}}"#
            )
        };
        let arrow = |ph: &str, pid: u32, ts: u32| {
            format!(
                r#"{{"ph":"{ph}","cat":"Flow_H2D_1_{rank}","name":"dep","id":1,"pid":{pid},"tid":7,"ts":{ts}}}"#
            )
        };
        [
            name(host, "HOST"),
            name(device, "DEVICE"),
            slice("cpu_op", "zeCommandListAppendLaunchKernel", host, 100, 10),
            arrow("s", host, 100),
            slice("gpu_op", "gemm", device, 200, dur),
            arrow("t", device, 200),
        ]
    };
    let texts = |ranks: &[(u32, u32)]| {
        let events: Vec<String> = ranks
            .iter()
            .flat_map(|(rank, dur)| of_rank(*rank, *dur))
            .collect();
        format!("{{\"traceEvents\":[{}]}}", events.join(","))
    };
    let (one, other) = (texts(&[(2, 30)]), texts(&[(5, 40)]));
    let merged = texts(&[(5, 40), (2, 30)]);
    for files in [vec![one, other], vec![merged]] {
        let timeline = read(&files);
        let mut lengths: Vec<_> = WorkIndex::new(&timeline)
            .ranks
            .iter()
            .flat_map(|rank| rank.work.iter().map(|work| (rank.rank, work.us())))
            .collect();
        lengths.sort_by_key(|(rank, _)| *rank);
        assert_eq!(lengths, [(2, 30.0), (5, 40.0)]);
    }
}

#[test]
fn names_of_files_decide_nothing() {
    // As many slices of the same length together, from the same begin to the same end.
    let without = |gpus: &[(i64, u32)]| Made {
        rank: None,
        ..Made::new(0, 100, gpus)
    };
    let made = [
        without(&[(0, 300), (1, 400), (2, 500)]),
        without(&[(0, 400), (1, 300), (2, 500)]),
    ];
    let files = made.each_ref().map(Made::file);
    let named = |a: &str, b: &str| {
        let timeline = read_named(&[(a.to_owned(), &files[0]), (b.to_owned(), &files[1])]);
        let pids = timeline.events.iter().map(|event| timeline.pid(event));
        (active(&timeline), pids.collect::<Vec<_>>())
    };
    assert_eq!(
        named("x_7.1.pt.trace.json", "y"),
        named("y", "x_7.1.pt.trace.json")
    );
}

/// One file of several ranks, as unitrace's own tool merges them.
#[test]
fn ranks_are_in_the_names_of_merged_files_of_unitrace() {
    let mut events = Vec::new();
    for rank in 0..3 {
        let pid = 100 + rank;
        events.push(format!(
            r#"{{"ph":"M","name":"process_name","pid":{pid},"args":{{"name":"RANK {rank} DEVICE<h>[GPU]#0"}}}}"#
        ));
        for at in 0..=rank {
            let ts = 1000 * at;
            events.push(format!(
                r#"{{"ph":"X","cat":"gpu_op","name":"gemm[SIMD32 {{4; 1; 1}}]","pid":{pid},"tid":1,"ts":{ts},"dur":100}}"#
            ));
        }
    }
    let timeline = read(&[format!("[{}]", events.join(","))]);
    let index = WorkIndex::new(&timeline);
    let ranks = index.ranks.iter();
    let found: Vec<_> = ranks.map(|rank| (rank.rank, rank.work.len())).collect();
    assert_eq!(found, [(0, 1), (1, 2), (2, 3)]);
}

/// torch_npu shows collectives on rows of their own, beside those of the hardware.
#[test]
fn collectives_of_an_npu_are_work_of_its_only_device() {
    let mut events = Vec::new();
    for (pid, name) in [(3, "Ascend Hardware"), (4, "Communication")] {
        events.push(format!(
            r#"{{"ph":"M","name":"process_name","pid":{pid},"args":{{"name":"{name}"}}}}"#
        ));
    }
    events.push(
        r#"{"ph":"M","name":"thread_name","pid":4,"tid":9,"args":{"name":"Group world"}}"#
            .to_owned(),
    );
    for (pid, tid, ts, name) in [(3, 2, 0, "MatMulV3"), (4, 9, 100, "hcom_allReduce__1_0_1")] {
        events.push(format!(
            r#"{{"ph":"X","name":"{name}","pid":{pid},"tid":{tid},"ts":{ts},"dur":100}}"#
        ));
    }
    let timeline = read(&[format!("[{}]", events.join(","))]);
    let index = WorkIndex::new(&timeline);
    let devices = DeviceTime::of_all(&index.ranks);
    assert_eq!(devices.len(), 1);
}
