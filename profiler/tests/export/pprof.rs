//! pprof files: decoded again, and read by `go tool pprof`.

use crate::export;
use crate::fixtures::{self, PERIOD_NS};
use aiprof::export::pprof::proto;
use aiprof::export::{ExportOptions, formats};
use flate2::read::GzDecoder;
use prost::Message;
use std::io::{Read, Write};
use std::process::Command;

fn bytes() -> Vec<u8> {
    export(
        &fixtures::typical(),
        &formats::PPROF,
        &ExportOptions::default(),
    )
}

#[test]
fn files_decode_to_what_was_recorded() {
    let bytes = bytes();
    // RFC 1952: bytes 4 to 7 are the time, 0 where there is none.
    assert_eq!(bytes[..8], [0x1f, 0x8b, 8, 0, 0, 0, 0, 0]);
    let mut raw = Vec::new();
    GzDecoder::new(&bytes[..]).read_to_end(&mut raw).unwrap();
    let profile = proto::PprofProfile::decode(&raw[..]).unwrap();
    let text = |index: i64| profile.string_table[index as usize].as_str();

    assert_eq!(text(0), "");
    assert_eq!(text(profile.default_sample_type), "cpu");
    assert_eq!(profile.period, PERIOD_NS as i64);
    assert_eq!(profile.duration_nanos, 30_000_000_000);
    let comments: Vec<_> = profile.comment.iter().map(|&i| text(i)).collect();
    assert!(comments.contains(&"lost: 2 samples dropped (ring buffer full)"));

    let sample = profile.sample.iter().find(|s| s.value[0] == 40).unwrap();
    assert_eq!(sample.value, [40, 40 * PERIOD_NS as i64]);
    let leaf = &profile.location[sample.location_id[0] as usize - 1];
    let names: Vec<_> = leaf
        .line
        .iter()
        .map(|line| text(profile.function[line.function_id as usize - 1].name))
        .collect();
    assert_eq!(
        names,
        ["fma<float, [4; 4]>", "Row::dot", "Matrix::multiply"]
    );
    let mapping = &profile.mapping[leaf.mapping_id as usize - 1];
    assert_eq!(text(mapping.filename), "/usr/bin/train");
    assert_eq!(text(mapping.build_id), "abcd01");
    let labels: Vec<_> = sample
        .label
        .iter()
        .map(|l| (text(l.key), text(l.str), l.num))
        .collect();
    let expected = [
        ("pid", "", 4242),
        ("tid", "", 4242),
        ("comm", "train", 0),
        ("thread", "train", 0),
        ("cgroup", "/system.slice/job.service", 0),
        ("service", "job", 0),
        ("unit", "job.service", 0),
    ];
    assert_eq!(labels, expected);
}

#[test]
fn the_program_s_file_comes_first_and_is_no_longer_marked() {
    let mut fixture = fixtures::Fixture::new();
    let native = aiprof::profile::FrameKind::Native;
    let libc = fixture.location(
        Some(("/lib/libc.so.6", b"1")),
        1,
        &[("start", native, None)],
    );
    let other = fixture.location(Some(("/usr/bin/other", b"2")), 1, &[("f", native, None)]);
    let long = "/opt/long_name_of_a_server (deleted)";
    let server = fixture.location(Some((long, b"3")), 1, &[("main", native, None)]);
    fixture.samples(7, "other", &[libc, other], 2);
    // The kernel keeps 15 bytes of the name.
    fixture.samples(8, "long_name_of_a_", &[libc, server], 5);
    let profile = fixture.builder.finish();
    let bytes = export(&profile, &formats::PPROF, &ExportOptions::default());
    let mut raw = Vec::new();
    GzDecoder::new(&bytes[..]).read_to_end(&mut raw).unwrap();
    let profile = proto::PprofProfile::decode(&raw[..]).unwrap();
    let names = profile.mapping.iter().map(|mapping| {
        let name = profile.string_table[mapping.filename as usize].as_str();
        (mapping.id, name)
    });
    let names: Vec<_> = names.collect();
    let expected = [
        (1, "/opt/long_name_of_a_server"),
        (2, "/lib/libc.so.6"),
        (3, "/usr/bin/other"),
    ];
    assert_eq!(names, expected);
    for location in &profile.location {
        let function = &profile.function[location.line[0].function_id as usize - 1];
        let name = profile.string_table[function.name as usize].as_str();
        let file = match name {
            "main" => 1,
            "start" => 2,
            _ => 3,
        };
        assert_eq!(location.mapping_id, file, "{name}");
    }
}

/// Output of `go tool pprof`, `None` if go is not installed.
pub(crate) fn go_pprof(file: &[u8], arguments: &[&str]) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("profile.pb.gz");
    std::fs::write(&path, file).unwrap();
    let output = Command::new("go")
        .args(["tool", "pprof", "-symbolize=none"])
        .args(arguments)
        .arg(&path)
        .env("PPROF_TMPDIR", directory.path())
        .env("HOME", directory.path())
        .env("GOTOOLCHAIN", "local")
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            // Not `eprintln!`: the test harness hides that of a passing test.
            let note = b"skipped: go not installed\n";
            std::io::stderr().write_all(note).unwrap();
            return None;
        }
        Err(error) => panic!("go: {error}"),
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn go_reads_the_totals() {
    let Some(top) = go_pprof(&bytes(), &["-top", "-unit=ms"]) else {
        return;
    };
    // 100 samples of 10.10101 ms in 30 s.
    assert!(top.contains("Type: cpu"), "{top}");
    assert!(top.contains("100% of 1010.10ms total"), "{top}");
    let row = |name: &str| {
        top.lines()
            .find(|line| line.contains(name))
            .unwrap_or_else(|| panic!("no {name} in {top}"))
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    // flat, flat%, sum%, cum, cum%
    let fma = row("fma<float");
    assert_eq!((fma[0].as_str(), fma[1].as_str()), ("404.04ms", "40.00%"));
    let main = row(" main");
    assert_eq!((main[0].as_str(), main[4].as_str()), ("0", "70.00%"));
}

#[test]
fn go_reads_everything() {
    let Some(raw) = go_pprof(&bytes(), &["-raw"]) else {
        return;
    };
    for expected in [
        "samples/count cpu/nanoseconds[dflt]",
        "/usr/bin/train abcd01 [FN]",
        "[kernel.kallsyms]",
        "comm:[train]",
        "pid:[4242]",
        "Comment: lost: 2 samples dropped (ring buffer full)",
        "Period: 10101010",
    ] {
        assert!(raw.contains(expected), "no {expected:?} in\n{raw}");
    }
}

#[test]
fn go_reads_an_empty_profile() {
    let file = export(
        &fixtures::empty(),
        &formats::PPROF,
        &ExportOptions::default(),
    );
    let Some(raw) = go_pprof(&file, &["-raw"]) else {
        return;
    };
    assert!(raw.contains("no samples were recorded"), "{raw}");
}
