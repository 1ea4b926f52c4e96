//! Small timelines, and what is blamed for their gaps.

use super::device::{GapBlame, Idle, IdlePart, by_blame};
use super::*;
use crate::device_time::{DeviceTime, IdleBlame, IdlePlace};
use crate::finding::FindingKind;
use aiprof_model::timeline::Dialect;
use aiprof_testkit::scene::{self, Slice};
use std::collections::BTreeMap;

/// Adds spans of a thread (`kernel`: of stream 7): category, name, begin and end in
/// milliseconds, correlation.
fn timeline(spans: &[(&str, &str, f64, f64, u64)]) -> Timeline {
    let mut timeline = scene::empty(Dialect::Torch);
    for (cat, name, from, to, correlation) in spans {
        let is_device = matches!(*cat, "kernel" | "gpu_memcpy");
        let slice = Slice {
            tid: if is_device { 7 } else { 100 },
            name,
            cat,
            ts: from * 1000.0,
            dur: (to - from) * 1000.0,
            correlation: *correlation,
            args: if is_device {
                "\"stream\":7,\"device\":0"
            } else {
                ""
            },
            ..Slice::default()
        };
        scene::add(&mut timeline, &slice);
    }
    timeline
}

fn idle(timeline: &Timeline) -> Idle {
    let index = WorkIndex::new(timeline);
    let host = HostRows::new(timeline, &index);
    let blame = GapBlame::new(timeline, &host);
    let devices: Vec<_> = index.ranks.iter().flat_map(DeviceTime::all).collect();
    let [device] = &devices[..] else { panic!() };
    by_blame(&blame.of(device))
}

fn us(idle: &Idle, cause: IdleBlame) -> f64 {
    idle.get(&cause).map_or(0.0, |part| part.us())
}

const LAUNCH: &str = "cudaLaunchKernel";
const RUNTIME: &str = "cuda_runtime";

/// From 10 to 20 ms the device idles; the wait before it begins at `wait`.
fn shared(wait: f64) -> Timeline {
    timeline(&[
        (RUNTIME, LAUNCH, 0.0, 0.01, 1),
        ("kernel", "k", 0.02, 10.0, 1),
        (RUNTIME, "cudaDeviceSynchronize", wait, 10.005, 0),
        (
            "user_annotation",
            "enumerate(DataLoader)#_It.__next__",
            11.0,
            13.0,
            0,
        ),
        ("cpu_op", "compile_inner (dynamo_timed)", 13.0, 14.0, 0),
        ("python_function", "train.py(42): step", 10.5, 19.8, 0),
        ("cpu_op", "aten::mm", 14.0, 14.5, 0),
        (RUNTIME, LAUNCH, 19.9, 19.95, 2),
        ("kernel", "k", 20.0, 30.0, 2),
    ])
}

#[test]
fn a_gap_is_shared_out_over_what_the_thread_did() {
    let timeline = shared(6.0);
    let found = idle(&timeline);
    let parts = [
        (IdleBlame::Loader, 2000.0),
        (IdleBlame::Compile, 1000.0),
        (IdleBlame::Sync, 4000.0),
        // The launch returned 50 us before its kernel began.
        (IdleBlame::Starved, 2950.0),
        (IdleBlame::Queued, 50.0),
        (IdleBlame::Short, 0.0),
    ];
    for (cause, wanted) in parts {
        assert!(
            (us(&found, cause) - wanted).abs() < 0.01,
            "{cause:?}: {}",
            us(&found, cause)
        );
    }
    assert_eq!(
        found[&IdleBlame::Starved].by_place(&timeline)[0].0,
        "train.py(42): step"
    );
    assert_eq!(
        found[&IdleBlame::Sync].by_place(&timeline)[0].0,
        "cudaDeviceSynchronize"
    );
    // No wait costs more than what idles behind it.
    let found = idle(&shared(1.0));
    assert!((us(&found, IdleBlame::Sync) - 6950.0).abs() < 0.01);
    assert_eq!(us(&found, IdleBlame::Starved), 0.0);
}

#[test]
fn the_host_is_not_blamed_for_what_was_launched_in_time() {
    let found = idle(&timeline(&[
        (RUNTIME, LAUNCH, 0.0, 0.01, 1),
        (RUNTIME, LAUNCH, 0.02, 0.03, 2),
        ("kernel", "k", 0.02, 1.0, 1),
        ("kernel", "k", 5.0, 6.0, 2),
        // Its launch is not known.
        ("kernel", "k", 8.0, 9.0, 3),
    ]));
    assert_eq!(us(&found, IdleBlame::Queued), 4000.0);
    assert_eq!(us(&found, IdleBlame::Unknown), 2000.0);
    assert_eq!(found.len(), 2);
}

#[test]
fn short_gaps_before_short_kernels_are_theirs_and_long_ones_are_not() {
    let timeline = timeline(&[
        (RUNTIME, LAUNCH, 0.0, 0.01, 1),
        ("kernel", "k", 0.01, 0.012, 1),
        (RUNTIME, LAUNCH, 0.05, 0.06, 2),
        ("kernel", "k", 0.06, 0.062, 2),
        (RUNTIME, LAUNCH, 0.3, 0.31, 3),
        ("kernel", "k", 0.31, 0.312, 3),
    ]);
    let found = idle(&timeline);
    assert!((us(&found, IdleBlame::Short) - 48.0).abs() < 0.01);
    assert!((us(&found, IdleBlame::Starved) - 248.0).abs() < 0.01);
    assert_eq!(
        found[&IdleBlame::Starved].by_place(&timeline)[0].0,
        "before k"
    );
}

fn places(paths: &[(&str, i64)]) -> Vec<(String, f64)> {
    let mut timeline = scene::empty(Dialect::Torch);
    let mut part = IdlePart::default();
    for (path, ps) in paths {
        let place = IdlePlace::Name(timeline.names.intern(path));
        part.places.insert(place, *ps);
    }
    part.by_place(&timeline)
}

#[test]
fn paths_of_samples_lead_to_the_function_that_most_of_them_have() {
    let places = places(&[
        ("main;train;next_batch;decode;inflate", 30_000_000),
        ("main;train;next_batch;decode;crc", 25_000_000),
        ("main;train;next_batch;read", 35_000_000),
        ("main;train;log", 10_000_000),
    ]);
    assert_eq!(
        places[0],
        ("decode < next_batch < train < main".to_owned(), 55.0)
    );
    assert_eq!(places[1], ("next_batch < train < main".to_owned(), 35.0));
}

#[test]
fn lines_of_a_function_are_one_place_and_the_busiest_is_named() {
    let places = places(&[
        ("train (t.py:31);batch (t.py:17)", 20_000_000),
        ("train (t.py:31);batch (t.py:18)", 45_000_000),
        ("train (t.py:33);batch (t.py:18)", 10_000_000),
        ("train (t.py:32)", 25_000_000),
    ]);
    assert_eq!(
        places[0],
        ("batch (t.py:18) < train (t.py:31)".to_owned(), 75.0)
    );
}

/// The page has a row for each rule, with its threshold.
#[test]
fn the_page_has_the_thresholds_of_all_rules() {
    let page = include_str!("../../../../../docs/findings.md");
    let thresholds = page.lines().filter_map(|line| {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let percent = cells.get(3)?.strip_suffix(" %")?;
        Some((
            cells.first()?.trim_matches('`').to_owned(),
            percent.to_owned(),
        ))
    });
    let thresholds: BTreeMap<_, _> = thresholds.collect();
    let rules = rules::all().map(|rule| {
        let percent = rule.threshold.percent.to_string();
        (rule.kind.name(), percent)
    });
    assert_eq!(thresholds, rules.collect());
}

/// A finding without a rule is left out without a word.
#[test]
fn each_kind_of_idle_time_has_a_rule_and_a_reason_of_its_own() {
    for (at, (kind, blame)) in idle::KINDS.iter().enumerate() {
        assert!(rules::all().any(|rule| rule.kind == *kind), "{kind:?}");
        let mut before = idle::KINDS.iter().take(at);
        assert!(before.all(|(k, b)| k != kind && b != blame), "{kind:?}");
    }
}

#[test]
fn every_rule_is_of_another_kind_and_small_costs_are_not_said() {
    for (at, rule) in rules::all().enumerate() {
        let first = rules::all().position(|other| other.kind == rule.kind);
        assert_eq!(first, Some(at), "{:?}", rule.kind);
    }
    let said = |us: f64, whole: f64| {
        let finding = Finding {
            kind: FindingKind::Spills,
            cost_ns: Some(rules::ns(us)),
            ..Finding::default()
        };
        let mut kept = Vec::new();
        rules::keep(finding, whole, &mut kept);
        kept.len()
    };
    // 2 % of it, and a millisecond.
    assert_eq!(
        [said(2000.0, 1e5), said(1999.0, 1e5), said(999.0, 1.0)],
        [1, 0, 0]
    );
    assert_eq!(FindingKind::LaunchStarved.name(), "launch-starved");
}

#[test]
fn what_is_launched_in_a_gap_waits_for_the_device_from_then_on() {
    let found = idle(&timeline(&[
        (RUNTIME, LAUNCH, 0.0, 0.01, 1),
        ("kernel", "k", 0.02, 10.0, 1),
        ("user_annotation", "DataLoader.next", 10.2, 14.0, 0),
        (RUNTIME, LAUNCH, 10.04, 10.05, 2),
        (RUNTIME, "hipMemcpyWithStream", 10.06, 19.0, 0),
        ("kernel", "k", 15.0, 20.0, 2),
    ]));
    assert!((us(&found, IdleBlame::Starved) - 50.0).abs() < 0.01);
    assert!((us(&found, IdleBlame::Queued) - 4950.0).abs() < 0.01);
    assert_eq!(found.len(), 2);
}

/// Gaps of 10 to 20 ms; `more` is done in it, and its launch returns at 19.95 ms.
fn gap_with(more: &[(&str, &str, f64, f64, u64)]) -> Timeline {
    let mut spans = vec![
        (RUNTIME, LAUNCH, 0.0, 0.01, 1),
        ("kernel", "k", 0.02, 10.0, 1),
        (RUNTIME, LAUNCH, 19.9, 19.95, 2),
        ("kernel", "k", 20.0, 30.0, 2),
    ];
    spans.extend(more);
    timeline(&spans)
}

fn near(value: f64, wanted: f64) -> bool {
    (value - wanted).abs() < 0.01
}

#[test]
fn the_rest_of_a_gap_is_named_after_what_fills_the_rest() {
    for loader in [
        "enumerate(DataLoader)#_It.__next__",
        "enumerate(DataPipe)#Map",
    ] {
        let timeline = gap_with(&[
            ("user_annotation", loader, 10.1, 18.0, 0),
            ("user_annotation", "preprocess", 18.1, 19.8, 0),
        ]);
        let found = idle(&timeline);
        assert!(near(us(&found, IdleBlame::Loader), 7900.0), "{loader}");
        let places = found[&IdleBlame::Starved].by_place(&timeline);
        assert_eq!(places[0].0, "preprocess");
        assert!(near(places[0].1, 1700.0));
        // What no span has: 10 to 10.1, 18 to 18.1, 19.8 to 19.95.
        assert!(near(places[1].1, 350.0) && places[1].0 == "before k");
    }
}

#[test]
fn gaps_in_the_launch_of_a_graph_are_the_device_s() {
    let found = idle(&timeline(&[
        // It returns when most of its work is done.
        (RUNTIME, "cudaGraphLaunch", 0.0, 9.0, 1),
        ("kernel", "k", 1.0, 2.0, 1),
        ("kernel", "k", 4.0, 5.0, 1),
        ("kernel", "k", 8.0, 9.0, 1),
        (RUNTIME, "cudaGraphLaunch", 9.5, 9.9, 2),
        ("kernel", "k", 10.0, 11.0, 2),
    ]));
    assert!(near(us(&found, IdleBlame::Queued), 5100.0));
    assert!(near(us(&found, IdleBlame::Starved), 900.0));
}

#[test]
fn a_profiler_s_own_work_is_not_the_program_s() {
    let timeline = gap_with(&[
        ("overhead", "Activity Buffer Request", 12.0, 17.0, 0),
        // Happens without a profiler, too.
        ("overhead", "Lazy Function Loading", 17.0, 18.0, 0),
    ]);
    let idle = idle(&timeline);
    assert!(near(us(&idle, IdleBlame::Profiler), 5000.0));
    assert!(near(us(&idle, IdleBlame::Starved), 4950.0));
    let found = found(&timeline, 30_000.0);
    let own = found
        .iter()
        .find(|one| one.kind == FindingKind::ProfilerOverhead);
    assert_eq!(own.and_then(|one| one.cost_ns), Some(5_000_000));
}

#[test]
fn work_that_begins_before_its_launch_is_charged_to_nobody() {
    let found = idle(&timeline(&[
        (RUNTIME, LAUNCH, 0.0, 0.01, 1),
        ("kernel", "k", 0.02, 10.0, 1),
        ("kernel", "k", 20.0, 30.0, 2),
        (RUNTIME, LAUNCH, 20.5, 20.6, 2),
    ]));
    assert!(near(us(&found, IdleBlame::Unknown), 10_000.0));
    assert_eq!(found.len(), 1);
}

/// One thread's samples every 2 ms, of the period that ends with each, and its waits.
#[test]
fn waits_outweigh_samples_and_samples_stand_for_their_gap_alone() {
    let mut timeline = gap_with(&[("wait", "[waits for a CPU]", 10.5, 18.5, 0)]);
    for (gap, path) in [
        (10.4, "main;think"),
        (19.0, "main;other"),
        (25.0, "main;later"),
    ] {
        let slice = Slice {
            tid: 2_000_000_100,
            name: path,
            cat: "sample",
            ts: (gap - 2.0) * 1000.0,
            dur: 2000.0,
            ..Slice::default()
        };
        scene::add(&mut timeline, &slice);
    }
    let found = idle(&timeline);
    let places = found[&IdleBlame::Starved].by_place(&timeline);
    assert_eq!(places[0].0, "[waits for a CPU]");
    assert!(near(places[0].1, 8000.0));
    // 10 to 10.5 and 18.5 to 19.95 have a sample each; none is of the second kernel's time.
    let others: f64 = places.iter().skip(1).map(|(_, us)| us).sum();
    assert!(near(others, 1950.0), "{places:?}");
    assert!(places.iter().all(|(name, _)| !name.contains("later")));

    // A gap that no sample fell into is not shared out over the others.
    let mut timeline = gap_with(&[
        (RUNTIME, LAUNCH, 35.0, 35.01, 3),
        ("kernel", "k", 35.02, 36.0, 3),
    ]);
    let slice = Slice {
        tid: 2_000_000_100,
        name: "main;think",
        cat: "sample",
        ts: 14_000.0,
        dur: 1000.0,
        ..Slice::default()
    };
    scene::add(&mut timeline, &slice);
    let found = idle(&timeline);
    let starved = &found[&IdleBlame::Starved];
    let known: f64 = starved.by_place(&timeline).iter().map(|(_, us)| us).sum();
    assert!(near(starved.us(), 14_960.0));
    // From one period before the sample to one behind it.
    assert!(near(known, 2000.0), "{known}");
}

#[test]
fn a_pageable_copy_costs_its_own_time_and_that_of_its_call() {
    let copy = "Memcpy HtoD (Pageable -> Device)";
    let cost = |call: (f64, f64), ran: (f64, f64)| {
        let spans = [
            (RUNTIME, LAUNCH, 0.0, 0.01, 1),
            ("kernel", "k", 0.02, 10.0, 1),
            (RUNTIME, "cudaMemcpyAsync", call.0, call.1, 2),
            ("gpu_memcpy", copy, ran.0, ran.1, 2),
            (RUNTIME, LAUNCH, 30.0, 30.01, 3),
            ("kernel", "k", 30.02, 40.0, 3),
        ];
        let found = found(&timeline(&spans), 40_000.0);
        let copies = found
            .iter()
            .find(|one| one.kind == FindingKind::PageableCopy);
        copies.and_then(|one| one.cost_ns)
    };
    // The call returned long before.
    assert_eq!(cost((1.0, 1.1), (20.0, 22.0)), Some(2_000_000));
    // Blocked until the copy was made, and first behind a kernel.
    assert_eq!(cost((1.0, 22.0), (20.0, 22.0)), Some(12_000_000));
    assert_eq!(cost((15.0, 17.0), (20.0, 22.0)), Some(4_000_000));
}

pub(super) fn found(timeline: &Timeline, elapsed_us: f64) -> Vec<Finding> {
    find(
        timeline,
        &Outcome::default(),
        &SharedWork::default(),
        elapsed_us,
    )
    .0
}

/// Numbers from a seed.
pub(super) struct Draw(u64);

impl Draw {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    pub(super) fn ms(&mut self, limit: u64) -> f64 {
        self.below(limit) as f64 / 1000.0
    }

    /// Mostly short, sometimes long.
    pub(super) fn either(&mut self, long: u64, short: u64) -> f64 {
        let limit = if self.below(3) == 0 { long } else { short };
        self.ms(limit)
    }
}

/// A thread that loads, waits, copies and launches, and a device that runs what was launched
/// sooner or later, in one stream.
fn generated(seed: u64) -> Vec<(&'static str, &'static str, f64, f64, u64)> {
    let mut draw = Draw::new(seed);
    let (mut host, mut device) = (0.0, 0.0);
    let mut spans = Vec::new();
    for correlation in 1..4 + draw.below(30) {
        match draw.below(5) {
            0 => {
                let end = host + draw.ms(9000);
                spans.push(("user_annotation", "DataLoader.next", host, end, 0));
                host = end;
            }
            1 => {
                let end = f64::max(host, device) + draw.ms(50);
                spans.push((RUNTIME, "cudaStreamSynchronize", host, end, 0));
                host = end;
            }
            2 => host += draw.ms(20_000),
            _ => {}
        }
        let call = host + draw.either(5000, 20);
        let delay = draw.either(30_000, 20);
        let start = f64::max(host + delay, device);
        let end = start + draw.either(8000, 15);
        let (cat, name, function) = match draw.below(4) {
            0 => (
                "gpu_memcpy",
                "Memcpy HtoD (Pageable -> Device)",
                "cudaMemcpy",
            ),
            1 => (
                "gpu_memcpy",
                "Memcpy DtoH (Device -> Pinned)",
                "cudaMemcpyAsync",
            ),
            _ => ("kernel", "k", LAUNCH),
        };
        spans.push((RUNTIME, function, host, call, correlation));
        spans.push((cat, name, start, end, correlation));
        (host, device) = (call, end);
    }
    spans
}

#[test]
fn no_finding_costs_more_than_what_it_is_taken_from() {
    for seed in 0..2000 {
        let spans = generated(seed);
        let timeline = timeline(&spans);
        let of = |wanted: &dyn Fn(&str, &str) -> bool| -> f64 {
            let its = spans.iter().filter(|(cat, name, ..)| wanted(cat, name));
            its.map(|(_, _, from, to, _)| (to - from) * 1000.0).sum()
        };
        let is_device = |cat: &str| matches!(cat, "kernel" | "gpu_memcpy");
        // What takes no time ends no gap.
        let device = spans.iter();
        let device = device.filter(|(cat, _, from, to, _)| is_device(cat) && from < to);
        let first = device.clone().map(|one| one.2).fold(f64::MAX, f64::min);
        let last = device.clone().map(|one| one.3).fold(0.0, f64::max);
        // One stream: nothing overlaps.
        let idle_us = (last - first) * 1000.0 - of(&|cat, _| is_device(cat));
        let copies = of(&|cat, name| cat == "gpu_memcpy" && !name.contains("Pageable"));
        let pageable = of(&|cat, name| cat == "gpu_memcpy" && name.contains("Pageable"));
        let blocked = of(&|_, name| name == "cudaMemcpy");

        let shared: f64 = idle(&timeline).values().map(|part| part.us()).sum();
        assert!(
            (shared - idle_us).abs() < 0.1,
            "{seed}: {shared} of {idle_us}"
        );
        let mut of_idle = 0.0;
        for finding in found(&timeline, last * 1000.0) {
            let us = finding.cost_ns.unwrap_or(0) as f64 / 1000.0;
            let most = match finding.kind {
                FindingKind::PageableCopy => pageable + blocked,
                FindingKind::CopyNotOverlapped => copies,
                FindingKind::LaunchStarved
                | FindingKind::SynchronousWait
                | FindingKind::ShortKernels
                | FindingKind::DataloaderStall
                | FindingKind::DeviceIdle => {
                    of_idle += us;
                    idle_us
                }
                _ => last * 1000.0,
            };
            assert!(us <= most + 0.1, "{seed}: {us} of {most}: {}", finding.text);
        }
        assert!(of_idle <= idle_us + 0.1, "{seed}: {of_idle} of {idle_us}");
    }
}
