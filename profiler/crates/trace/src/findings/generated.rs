//! Traces made from a seed: several streams and devices, graphs, loaders, functions of Python,
//! launches that return late, work that begins before its launch. What must hold for each of them
//! is computed of the spans it is made of.

use super::device::GapBlame;
use super::tests::{Draw, found};
use super::*;
use crate::critical::{self, BoundBy, PathOptions, WhatIf};
use crate::device_time::{IdleBlame, IdleStretch, begins_before};
use crate::stretches::Stretches;
use aiprof_model::timeline::{Dialect, Length};
use aiprof_testkit::scene::{self, Slice};

/// A span of the host, or work: category, name, begin and end in milliseconds.
struct GeneratedSpans {
    timeline: Timeline,
    draw: Draw,
    host: f64,
    correlation: u64,
    /// When each stream of each device is free.
    free: [[f64; 2]; 2],
}

const THREAD: i64 = 100;

impl GeneratedSpans {
    fn host(&mut self, cat: &str, name: &str, at: (f64, f64), correlation: u64) {
        let slice = Slice {
            tid: THREAD,
            name,
            cat,
            ts: at.0 * 1000.0,
            dur: (at.1 - at.0) * 1000.0,
            correlation,
            ..Slice::default()
        };
        scene::add(&mut self.timeline, &slice);
    }

    /// Work of the last call; it follows what its stream has.
    fn work(&mut self, (device, stream): (usize, usize), after: f64, ms: f64) {
        let start = f64::max(after, self.free[device][stream]);
        self.free[device][stream] = start + ms;
        self.work_at((device, stream), start, ms);
    }

    fn work_at(&mut self, (device, stream): (usize, usize), start: f64, ms: f64) {
        let (cat, name) = match self.draw.below(6) {
            0 => ("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)"),
            1 => ("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)"),
            2 => ("kernel", "ncclDevKernel_AllReduce"),
            _ => ("kernel", "gemm"),
        };
        let args = format!("\"stream\":{},\"device\":{device}", stream + 7);
        let slice = Slice {
            tid: stream as i64 + 7,
            name,
            cat,
            ts: start * 1000.0,
            dur: ms * 1000.0,
            correlation: self.correlation,
            args: &args,
            ..Slice::default()
        };
        scene::add(&mut self.timeline, &slice);
    }

    fn launch(&mut self) {
        self.correlation += 1;
        let called = self.host;
        let returned = called + self.draw.either(8000, 12);
        let at = (self.draw.below(2) as usize, self.draw.below(2) as usize);
        let delay = self.draw.either(20_000, 15);
        let kind = self.draw.below(12);
        let name = match kind {
            0 => {
                // Impossible: its record is wrong.
                let early = called - 0.02 - self.draw.ms(5000);
                let ms = self.draw.either(3000, 15);
                self.work_at(at, early, ms);
                "cudaLaunchKernel"
            }
            1..4 => {
                for _ in 0..2 + self.draw.below(4) {
                    let pause = self.draw.either(2000, 5);
                    let after = f64::max(called + delay, self.free[at.0][at.1]) + pause;
                    let ms = self.draw.either(4000, 15);
                    self.work(at, after, ms);
                }
                "cudaGraphLaunch"
            }
            4 => "cudaMemcpyAsync",
            _ => "cudaLaunchKernel",
        };
        if kind >= 4 {
            let ms = self.draw.either(4000, 15);
            self.work(at, called + delay, ms);
        }
        self.host("cuda_runtime", name, (called, returned), self.correlation);
        if self.draw.below(6) == 0 {
            self.host("overhead", "Activity Buffer Request", (called, returned), 0);
        }
        self.host = returned;
    }

    /// Something that a thread does beside launching.
    fn other(&mut self) {
        let from = self.host;
        let to = from + self.draw.either(9000, 50);
        match self.draw.below(7) {
            0 => self.host("user_annotation", "enumerate(DataPipe)#It", (from, to), 0),
            1 => self.host("user_annotation", "preprocess", (from, to), 0),
            2 => self.host("python_function", "train.py(3): log", (from, to), 0),
            3 => self.host("cpu_op", "aten::mm", (from, to), 0),
            4 => self.host("wait", "[waits for a CPU]", (from, to), 0),
            5 => {
                let all = self.free.iter().flatten().copied();
                let done = all.fold(from, f64::max) + 0.003;
                let call = "cudaDeviceSynchronize";
                self.host("cuda_runtime", call, (from, done), 0);
                return self.host = done;
            }
            _ => {}
        }
        self.host = to;
    }
}

fn made(seed: u64) -> Timeline {
    let mut spans = GeneratedSpans {
        timeline: scene::empty(Dialect::Torch),
        draw: Draw::new(seed),
        host: 0.0,
        correlation: 0,
        free: [[0.0; 2]; 2],
    };
    for _ in 0..2 + spans.draw.below(4) {
        let from = spans.host;
        for _ in 0..spans.draw.below(9) {
            spans.launch();
            if spans.draw.below(2) == 0 {
                spans.other();
            }
        }
        let to = spans.host;
        if spans.draw.below(2) == 0 {
            spans.host("python_function", "train.py(1): step", (from, to), 0);
        }
        if spans.draw.below(2) == 0 {
            spans.host("user_annotation", "ProfilerStep#1", (from, to), 0);
        }
    }
    spans.timeline
}

/// Whether the host is charged for a stretch.
fn is_host(blame: IdleBlame) -> bool {
    matches!(
        blame,
        IdleBlame::Loader
            | IdleBlame::Compile
            | IdleBlame::Profiler
            | IdleBlame::Pageable
            | IdleBlame::Sync
            | IdleBlame::Starved
    )
}

/// Busy and idle time are all the time of a device, and each gap is the host's until the launch
/// of what ends it returned at most.
fn account_is_whole(timeline: &Timeline, device: &DeviceTime<'_>, idle: &[IdleStretch]) {
    let all = Stretches::of(idle.iter().map(|one| (one.from, one.to)));
    let sum: i64 = idle.iter().map(|one| (one.to - one.from).0).sum();
    assert_eq!(sum, all.length().0, "stretches overlap");
    assert_eq!(all, Stretches::of(device.busy.gaps().iter()));
    let busy = device.busy.length().0;
    let elapsed = device.busy.ends().map_or(0, |(from, to)| (to - from).0);
    assert_eq!(busy + sum, elapsed);
    for one in idle.iter().filter(|one| is_host(one.blame)) {
        assert!(one.gap.0 <= one.from && one.to <= one.gap.1);
        let next = device.work.iter().filter(|work| work.start == one.gap.1);
        let mut calls = next.filter_map(|work| {
            let call = timeline.events.get(work.call as usize)?;
            (!begins_before(work, call)).then_some(call)
        });
        assert!(calls.any(|call| one.to <= call.end()), "{one:?}");
    }
}

fn findings_are_within(found: &[Finding], idle_us: f64, wall_us: f64) {
    for finding in found {
        let Some(cost) = finding.cost_ns else {
            continue;
        };
        for place in &finding.places {
            assert!(place.cost_ns.unwrap_or(0) <= cost, "{}", finding.text);
            let longest = place.start_us.zip(place.end_us);
            assert!(longest.is_none_or(|(from, to)| from <= to));
        }
        let shares = finding.numbers.iter().filter(|one| one.unit == "percent");
        for share in shares {
            assert!(share.value <= 100.0 + 1e-6, "{}", finding.text);
        }
        let mut idle = super::idle::KINDS.iter();
        let is_idle = idle.any(|(kind, _)| *kind == finding.kind);
        let most = if is_idle { idle_us } else { wall_us };
        assert!(cost as f64 / 1000.0 <= most + 0.01, "{}", finding.text);
    }
}

/// No path is longer than the wall time, none is longer with less work, and what is a device's on
/// it is not charged to the host.
fn path_is_within(timeline: &Timeline, index: &WorkIndex, idle: &[(usize, Vec<IdleStretch>)]) {
    let path = critical::run(timeline, index, &PathOptions::default());
    let less = WhatIf {
        name: "gemm".to_owned(),
        factor: 0.5,
    };
    let (changed, _) = path.what_if(timeline, &[less]);
    for (group, changed) in path.groups.iter().zip(changed) {
        assert!(group.path.length <= group.wall, "{:?}", group.wall);
        assert!(changed.length <= group.path.length);
        for part in path.parts(&group.path) {
            let is_device = matches!(
                part.bound,
                BoundBy::Compute | BoundBy::Communication | BoundBy::Copy
            );
            let event = timeline.events.get(part.event as usize);
            let Some(event) = event.filter(|event| event.length > Length::ZERO) else {
                continue;
            };
            let device = crate::work::stream_of(timeline, event).device.number;
            let of_device = idle.iter().filter(|(number, _)| {
                is_device && device == aiprof_model::timeline::Id::Number(*number as i64)
            });
            for one in of_device.flat_map(|(_, all)| all) {
                let is_apart = one.to <= event.start || event.end() <= one.from;
                assert!(is_apart || !is_host(one.blame), "{one:?}");
            }
        }
    }
}

#[test]
fn idle_time_findings_and_path_agree_in_any_trace() {
    for seed in 0..400 {
        let timeline = made(seed);
        let index = WorkIndex::new(&timeline);
        let host = HostRows::new(&timeline, &index);
        let blame = GapBlame::new(&timeline, &host);
        let mut idle = Vec::new();
        let mut most_idle: f64 = 0.0;
        for device in index.ranks.iter().flat_map(DeviceTime::all) {
            let stretches = blame.of(&device);
            account_is_whole(&timeline, &device, &stretches);
            most_idle = most_idle.max(device.busy.gaps().us());
            let number = device.device.number.number().unwrap_or(0);
            idle.push((number as usize, stretches));
        }
        let spans = timeline.events.iter().map(|e| (e.start, e.end()));
        let wall = Stretches::of(spans).ends();
        let wall = wall.map_or(Length::ZERO, |(from, to)| to - from).micros();
        findings_are_within(&found(&timeline, wall), most_idle, wall);
        path_is_within(&timeline, &index, &idle);
    }
}
