//! What holds for every profile: nothing is lost or invented.

use crate::export;
use crate::fixtures;
use aiprof::export::{ExportOptions, FileFormat, Weight, folded, formats, otlp, pprof};
use prost::Message as _;
use std::collections::{HashMap, HashSet};

fn read(profile: &aiprof::profile::Profile, weight: Weight) -> folded::FoldedStacks {
    let options = ExportOptions {
        weight,
        ..ExportOptions::default()
    };
    let text = export(profile, &formats::FOLDED, &options);
    folded::read(&mut text.as_slice()).unwrap()
}

#[test]
fn folded_sums_are_the_profile_totals() {
    for seed in 0..60 {
        let profile = fixtures::random(seed, seed * 7, 30, 40);
        let samples: u64 = profile.samples.iter().map(|s| s.count).sum();
        let time: u64 = profile.samples.iter().map(|s| s.time_ns).sum();
        assert_eq!(read(&profile, Weight::Samples).total, samples);
        assert_eq!(read(&profile, Weight::Time).total, (time + 500) / 1000);
    }
}

#[test]
fn every_stack_keeps_its_weight() {
    for seed in 0..20 {
        let profile = fixtures::random(seed, 300, 4, 12);
        let mut expected: HashMap<String, (u64, u64)> = HashMap::new();
        for sample in &profile.samples {
            let process = &profile.processes[sample.process.0 as usize];
            // The generator's names need no cleaning but `process 7`.
            let comm = profile.str(process.comm).replace(' ', "_");
            let mut stack = format!("{comm};{}", process.pid);
            for frame in fixtures::frames(&profile, sample) {
                let name = profile.str(frame.name);
                let suffix = frame.kind.suffix();
                match frame.kind {
                    aiprof::profile::FrameKind::Unknown => stack += &format!(";[{name}]"),
                    _ => stack += &format!(";{name}{suffix}"),
                }
            }
            let entry = expected.entry(stack).or_default();
            entry.0 += sample.count;
            entry.1 += sample.time_ns;
        }
        let samples = read(&profile, Weight::Samples);
        let times = read(&profile, Weight::Time);
        assert_eq!(samples.stacks.len(), expected.len());
        for ((stack, count), (timed, time)) in samples.stacks.iter().zip(&times.stacks) {
            assert_eq!(stack, timed);
            let (expected_count, expected_ns) = expected[stack];
            assert_eq!(*count, expected_count, "{stack}");
            let difference = (*time as f64 - expected_ns as f64 / 1000.0).abs();
            assert!(difference < 1.0, "{stack}: off by {difference} us");
        }
    }
}

#[test]
fn flame_graph_frames_are_as_wide_as_their_samples() {
    for seed in 0..10 {
        let profile = fixtures::random(seed, 200, 6, 10);
        for inverted in [false, true] {
            let options = ExportOptions {
                weight: Weight::Samples,
                inverted,
                min_width_percent: 0.0,
                ..ExportOptions::default()
            };
            let svg = String::from_utf8(export(&profile, &formats::SVG, &options)).unwrap();
            let total: u64 = profile.samples.iter().map(|s| s.count).sum();
            assert!(svg.contains(&format!("total_samples=\"{total}\"")));
            // Width of each process's frame, by the fixture's own sums. Turned
            // around, processes are leaves, drawn once per stack.
            for pid in 0..20 {
                let name = format!("<title>process_{pid} (");
                let drawn: u64 = svg
                    .split(&name)
                    .skip(1)
                    .map(|rest| rest.split(' ').next().unwrap().replace(',', ""))
                    .map(|count| count.parse::<u64>().unwrap())
                    .sum();
                let known: u64 = profile
                    .samples
                    .iter()
                    .filter(|s| profile.processes[s.process.0 as usize].pid == pid)
                    .map(|s| s.count)
                    .sum();
                assert_eq!(drawn, known, "seed {seed}, pid {pid}, inverted {inverted}");
            }
        }
    }
}

#[test]
fn pruning_keeps_the_widths_of_what_is_left() {
    let profile = fixtures::random(7, 2000, 12, 50);
    let draw = |min_width_percent| {
        let options = ExportOptions {
            weight: Weight::Samples,
            min_width_percent,
            ..ExportOptions::default()
        };
        String::from_utf8(export(&profile, &formats::SVG, &options)).unwrap()
    };
    let titles = |svg: &str| -> Vec<String> {
        let mut titles: Vec<String> = svg
            .split("<title>")
            .skip(1)
            .map(|rest| rest.split("</title>").next().unwrap().to_owned())
            .collect();
        titles.sort();
        titles
    };
    let total: u64 = profile.samples.iter().map(|s| s.count).sum();
    let least = (total as f64 * 0.01).ceil() as u64;
    let wide: Vec<String> = titles(&draw(0.0))
        .into_iter()
        .filter(|title| {
            let count = title.rsplit_once('(').unwrap().1.split(' ').next().unwrap();
            count.replace(',', "").parse::<u64>().unwrap() >= least
        })
        .collect();
    assert!(wide.len() > 20, "{}", wide.len());
    assert_eq!(titles(&draw(1.0)), wide);
}

#[test]
fn pprof_sums_are_the_profile_totals() {
    for seed in 0..20 {
        let profile = fixtures::random(seed, 200, 20, 40);
        let message = pprof::convert(&profile, &ExportOptions::default());
        let sum = |i: usize| {
            message
                .sample
                .iter()
                .map(|s| s.value[i] as u64)
                .sum::<u64>()
        };
        let samples: u64 = profile.samples.iter().map(|s| s.count).sum();
        let time: u64 = profile.samples.iter().map(|s| s.time_ns).sum();
        assert_eq!((sum(0), sum(1)), (samples, time));
    }
}

#[test]
fn output_is_the_same_every_time() {
    for format in [
        &formats::FOLDED,
        &formats::SVG,
        &formats::PPROF,
        FileFormat::named("otlp").unwrap(),
    ] {
        let make = || {
            let profile = fixtures::random(3, 500, 20, 60);
            export(&profile, format, &ExportOptions::default())
        };
        assert!(make() == make(), "{format:?}");
    }
}

/// The folded stacks of profiles together.
fn sorted_lines(profiles: &[aiprof::profile::Profile]) -> Vec<String> {
    let lines = profiles.iter().flat_map(|profile| {
        let options = ExportOptions {
            weight: Weight::Samples,
            ..ExportOptions::default()
        };
        let text = export(profile, &formats::FOLDED, &options);
        let text = String::from_utf8(text).unwrap();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    });
    let mut lines: Vec<String> = lines.collect();
    lines.sort();
    lines
}

/// Parts have the bytes that they may have in each format of a server, or one process.
#[test]
fn parts_of_a_profile_are_the_whole_and_no_larger_than_they_may_be() {
    let options = ExportOptions {
        all_processes: true,
        ..ExportOptions::default()
    };
    for seed in 0..10 {
        let profile = fixtures::random(seed, 4000, 300, 40);
        let most = 100_000;
        let mut parts = Vec::new();
        profile
            .in_parts(most, |part| {
                parts.push(part.clone());
                Ok::<_, ()>(())
            })
            .unwrap();
        assert!(parts.len() > 3, "{}", parts.len());
        for part in &parts {
            let processes: HashSet<_> = part.samples.iter().map(|s| s.process).collect();
            let otlp = otlp::convert(part, &options).encoded_len();
            let pprof = pprof::convert(part, &options).encoded_len();
            let is_small = otlp <= most && pprof <= most;
            assert!(is_small || processes.len() == 1, "{otlp} {pprof}");
        }
        let sum = |profiles: &[aiprof::profile::Profile]| {
            let sums = profiles
                .iter()
                .map(|p| (p.total_count(), p.total_time_ns()));
            sums.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
        };
        let whole = [profile];
        assert_eq!(sum(&parts), sum(&whole));
        assert!(sorted_lines(&parts) == sorted_lines(&whole), "{seed}");
    }
}
