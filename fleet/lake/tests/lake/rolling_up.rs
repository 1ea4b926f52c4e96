//! From the spool into the lake.

use crate::common::{MINUTE, Place, ReadRow, TEN, after, run};
use aiprof_fleet_testkit::{Made, Programs, Random, pack};
use aiprof_formats::export::pprof::proto::{PprofLabel, PprofProfile, PprofSample, PprofValueType};
use aiprof_lake::decode;
use aiprof_lake::rows::Rows;
use aiprof_lake::schema::TextField;
use prost::Message as _;
use std::collections::BTreeSet;

/// Two threads of two processes at the same place, and a device's kernel.
fn window() -> PprofProfile {
    let mut made = Made::default();
    made.text("");
    for (name, unit) in [
        ("samples", "count"),
        ("cpu", "nanoseconds"),
        ("device_samples", "count"),
        ("device_time", "nanoseconds"),
        ("stall_sync", "count"),
    ] {
        let new = PprofValueType {
            r#type: made.text(name),
            unit: made.text(unit),
        };
        made.profile.sample_type.push(new);
    }
    for comment in [
        "host: h",
        "aiprof.lost.ring_drops: 12",
        "aiprof.own_cpu_ns: 5000000",
        "aiprof.idle_ns.launch_gap gpu 0: 77",
        "aiprof.busy_ns gpu 0: 33",
        "aiprof.step: x",
    ] {
        let at = made.text(comment);
        made.profile.comment.push(at);
    }
    made.profile.duration_nanos = MINUTE as i64;
    let mapping = aiprof_formats::export::pprof::proto::PprofMapping {
        id: 1,
        filename: made.text("/bin/app"),
        ..Default::default()
    };
    made.profile.mapping.push(mapping);
    let of_device = aiprof_formats::export::pprof::proto::PprofMapping {
        id: 2,
        filename: made.text("[device gpu 0]"),
        ..Default::default()
    };
    made.profile.mapping.push(of_device);
    let (main, work) = (made.location(1, "main"), made.location(2, "work;er"));
    let kernel = made.location(3, "gemm");
    made.profile.location[2].mapping_id = 2;
    for pid in [1, 2] {
        let label: Vec<PprofLabel> = vec![
            made.number("pid", pid),
            made.number("tid", pid),
            made.label("comm", "app"),
            made.label("thread", &format!("worker-{pid}")),
            made.label("service", "shop"),
            made.label("cgroup", &format!("/x/{pid}")),
            made.label("version", "1.2"),
            made.label("team", "a"),
        ];
        made.profile.sample.push(PprofSample {
            location_id: vec![work, main],
            value: vec![2, 200, 0, 0, 0],
            label,
        });
    }
    let label = vec![made.label("comm", "app"), made.label("device", "gpu 0")];
    made.profile.sample.push(PprofSample {
        location_id: vec![kernel, main],
        value: vec![0, 0, 3, 900, 3],
        label,
    });
    made.profile
}

/// A window with a device.
pub(crate) fn device_window() -> Vec<u8> {
    pack(&window())
}

#[test]
fn a_window_becomes_rows() {
    let place = Place::new();
    place.put(TEN, 1, &pack(&window()));
    // The same truths come with another profile of the window.
    let mut waits = window();
    waits.sample.clear();
    place.put(TEN, 2, &pack(&waits));
    let done = run(place.lake.roll_up(&place.queue, after(1))).unwrap();
    assert_eq!((done.files, done.bodies, done.refused), (1, 2, 0));
    assert_eq!(done.samples, 3);
    assert_eq!(place.waiting(), 0);
    let rows = place.rows();
    assert_eq!(rows.len() as u64, done.rows);
    let of = |wanted: &str| {
        let mut found = rows
            .iter()
            .filter(|row| row.text(TextField::SampleType) == wanted);
        let row = found.next().unwrap_or_else(|| panic!("no {wanted}"));
        assert!(found.next().is_none(), "two of {wanted}");
        row
    };
    let cpu = of("cpu");
    assert_eq!(cpu.numbers, [TEN as i64, MINUTE as i64, 400, 4]);
    let expected = [
        (TextField::Host, "h"),
        (TextField::HostId, "id-h1"),
        (TextField::Service, "shop"),
        (TextField::Unit, "nanoseconds"),
        (TextField::Stack, "main;work:er"),
        (TextField::Function, "work:er"),
        (TextField::Thread, "worker-#"),
        (TextField::Version, "1.2"),
        (TextField::Device, ""),
    ];
    for (text, expected) in expected {
        assert_eq!(cpu.text(text), expected, "{text:?}");
    }
    assert_eq!(cpu.labels, [("team".to_owned(), "a".to_owned())].into());
    let device = of("device_time");
    assert_eq!((device.value(), device.count()), (900, 3));
    assert_eq!(device.text(TextField::Kernel), "gemm_[G]");
    assert_eq!(device.text(TextField::Service), "app");
    assert_eq!(of("stall_sync").value(), 3);
    let lost = of("aiprof.lost.ring_drops");
    assert_eq!((lost.value(), lost.text(TextField::Unit)), (12, "count"));
    assert_eq!(of("aiprof.own_cpu_ns").text(TextField::Unit), "nanoseconds");
    let idle = of("aiprof.idle");
    assert_eq!(idle.value(), 77);
    assert_eq!(idle.text(TextField::IdleCause), "launch_gap");
    assert_eq!(idle.text(TextField::Device), "gpu 0");
    let busy = of("aiprof.busy");
    assert_eq!(
        (busy.value(), busy.text(TextField::Unit)),
        (33, "nanoseconds")
    );
    assert_eq!(busy.text(TextField::Device), "gpu 0");
    assert_eq!(rows.len(), 7);
}

#[test]
fn windows_keep_the_host_that_recorded_them() {
    let place = Place::new();
    // As the host was called before its configuration was changed.
    let mut before = window();
    let at = before.string_table.len() as i64;
    let texts = ["host.id", "id-before"].map(str::to_owned);
    before.string_table.extend(texts);
    let id = PprofLabel {
        key: at,
        str: at + 1,
        ..PprofLabel::default()
    };
    for sample in &mut before.sample {
        sample.label.push(id);
    }
    place.put(TEN, 1, &pack(&before));
    let mut unnamed = window();
    unnamed.comment.clear();
    place.put(TEN + MINUTE, 1, &pack(&unnamed));
    run(place.lake.roll_up(&place.queue, after(1))).unwrap();
    let rows = place.rows();
    let of = |time: u64| -> BTreeSet<(String, String, String)> {
        let of = rows.iter().filter(|row| row.numbers[0] == time as i64);
        let text = |row: &ReadRow, text| row.text(text).to_owned();
        of.map(|row| {
            (
                text(row, TextField::Host),
                text(row, TextField::HostId),
                row.labels.get("host.id").cloned().unwrap_or_default(),
            )
        })
        .collect()
    };
    let one = |host: &str, id: &str| [(host.to_owned(), id.to_owned(), String::new())].into();
    assert_eq!(of(TEN), one("h", "id-before"));
    assert_eq!(of(TEN + MINUTE), one("h1", "id-h1"));
}

#[test]
fn only_complete_hours_are_rolled_up() {
    let place = Place::new();
    let programs = Programs::new(1, 3, 50);
    let mut random = Random(2);
    for minute in 0..90 {
        let start = TEN + minute * MINUTE;
        place.put(start, 1, &programs.window(&mut random, start, 20));
    }
    // The hour is over, its last window may not be there yet.
    let done = run(place.lake.roll_up(&place.queue, TEN + 61 * MINUTE)).unwrap();
    assert_eq!(done.files, 0);
    let done = run(place.lake.roll_up(&place.queue, TEN + 89 * MINUTE)).unwrap();
    assert_eq!((done.files, done.bodies, done.samples), (1, 60, 1200));
    assert_eq!(place.waiting(), 30);
    let done = run(place.lake.roll_up(&place.queue, after(24))).unwrap();
    assert_eq!((done.files, done.bodies), (1, 30));
    let rows = place.rows();
    let cpu = rows
        .iter()
        .filter(|row| row.text(TextField::SampleType) == "cpu");
    assert_eq!(cpu.map(super::common::ReadRow::count).sum::<i64>(), 1800);
    // For a range of time, only files are listed that may have rows in it.
    let files = run(place.lake.files(TEN..TEN + MINUTE)).unwrap();
    assert_eq!(files.len(), 1);
    assert!(
        files[0].path.starts_with("date=2026-11-26/h10-"),
        "{files:?}"
    );
}

#[test]
fn what_is_no_profile_is_refused_and_counted() {
    let place = Place::new();
    let good = window().encode_to_vec();
    let mut unlike = window();
    unlike.sample[0].value[1] = -5;
    unlike.sample[1].location_id = vec![u64::MAX; 5];
    let mut long = window();
    long.sample[0].location_id = vec![1; 60_000];
    let mut huge = window();
    huge.sample[0].location_id = vec![1; 70_000];
    let mut untyped = window();
    untyped.sample_type.clear();
    let bodies: Vec<Vec<u8>> = vec![
        Vec::new(),
        b"not a profile".to_vec(),
        vec![0x1f, 0x8b, 8, 0, 0],
        vec![0x12; 100_000],
        pack(&untyped),
        pack(&unlike),
        pack(&long),
        pack(&huge),
        pack(&window()),
    ];
    for (number, body) in (0..).zip(&bodies) {
        place.put(TEN, number, body);
    }
    // Cut anywhere, and with any byte changed, it never ends the program.
    for (number, cut) in (100..).zip(0..good.len()) {
        place.put(TEN, number, &good[..cut]);
        let mut changed = good.clone();
        changed[cut] = changed[cut].wrapping_mul(31).wrapping_add(7);
        place.put(TEN, 100_000 + number, &changed);
    }
    let done = run(place.lake.roll_up(&place.queue, after(1))).unwrap();
    assert_eq!(place.waiting(), 0);
    assert!(done.refused >= 5, "{done:?}");
    assert!(done.refused_samples >= 2, "{done:?}");
    assert!(done.cut_stacks >= 1, "{done:?}");
    assert!(!done.last_refusal.is_empty());
    assert!(place.rows().len() > 5);
}

#[test]
fn windows_that_were_damaged_are_survived() {
    let good = window().encode_to_vec();
    let mut random = Random(9);
    let (mut read, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..=random.below(2) {
            let at = random.below(bytes.len().max(1));
            match random.below(8) {
                0 => bytes.truncate(at.max(1)),
                1 => bytes.insert(at, random.draw() as u8),
                2 => {
                    let again = bytes[at..bytes.len().min(at + 40)].to_vec();
                    bytes.extend(again);
                }
                _ => bytes[at] = random.draw() as u8,
            }
        }
        let mut rows = Rows::new("id", "host");
        match decode::add(&bytes, TEN, &mut rows) {
            Ok(done) => {
                read += 1;
                assert!(done.samples <= bytes.len() as u64);
                rows.sort();
                assert!(rows.iter().all(|row| row.value >= 0 && row.count >= 0));
            }
            Err(_) => {
                refused += 1;
                assert!(rows.is_empty());
            }
        }
        // Returns an origin or an error.
        let _ = decode::origin(&bytes);
    }
    assert!(
        read > 1000 && refused > 1000,
        "{read} read, {refused} refused"
    );
}

#[test]
fn few_bytes_do_not_become_a_lot_of_memory() {
    let place = Place::new();
    // Zeros of which gzip makes a thousandth, and a table with an entry for each two bytes.
    place.put(TEN, 1, &pack_bytes(&vec![0; 100 << 20]));
    place.put(TEN, 2, &pack_bytes(&[0x22, 0].repeat(8 << 20)));
    // A name of 4 KiB that each of many locations has.
    let mut many = window();
    many.string_table[1] = "x".repeat(4000);
    many.function[0].name = 1;
    let line = many.location[0].line[0];
    many.location[0].line = vec![line; 900];
    for id in 10..1000 {
        let mut location = many.location[0].clone();
        location.id = id;
        many.location.push(location);
    }
    place.put(TEN, 3, &pack(&many));
    let done = run(place.lake.roll_up(&place.queue, after(1))).unwrap();
    assert_eq!(done.refused, 3, "{done:?}");
}

fn pack_bytes(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

#[test]
fn a_crash_between_write_and_remove_doubles_nothing() {
    let place = Place::new();
    let programs = Programs::new(1, 3, 50);
    let mut random = Random(2);
    let content =
        |random: &mut Random, minute: u64| programs.window(random, TEN + minute * MINUTE, 20);
    let bodies: Vec<Vec<u8>> = (0..60).map(|at| content(&mut random, at)).collect();
    let put_all = || {
        for (minute, body) in (0..).zip(&bodies) {
            place.put(TEN + minute * MINUTE, 1, body);
        }
    };
    put_all();
    run(place.lake.roll_up(&place.queue, after(1))).unwrap();
    let expected = place.rows();
    let files = run(place.lake.files(0..u64::MAX)).unwrap();
    // As if it had ended before the first body was removed; one more came meanwhile, and one
    // was dropped since the spool was full.
    put_all();
    let names = place.queue.bodies().unwrap();
    let names: Vec<String> = names.iter().map(|(body, _)| body.name()).collect();
    let journal = format!("{{\"path\":\"{}\",\"bodies\":{:?}}}", files[0].path, names);
    let path = place.queue.directory().join(".rolling-up.json");
    std::fs::write(&path, &journal).unwrap();
    std::fs::remove_file(place.queue.directory().join(&names[3])).unwrap();
    place.put(TEN + 30 * MINUTE, 2, &content(&mut random, 30));
    let done = run(place.lake.roll_up(&place.queue, after(1))).unwrap();
    assert_eq!((done.bodies, place.waiting()), (1, 0));
    assert!(!path.exists());
    let samples = |rows: &[super::common::ReadRow]| -> i64 {
        let cpu = rows
            .iter()
            .filter(|row| row.text(TextField::SampleType) == "cpu");
        cpu.map(super::common::ReadRow::count).sum()
    };
    assert_eq!(samples(&expected), 1200);
    assert_eq!(samples(&place.rows()), 1220);
    // As if it had ended before the file was written.
    place.put(TEN, 5, &bodies[0]);
    std::fs::write(
        &path,
        journal.replace("date=2026-11-26/h", "date=2026-11-26/h2"),
    )
    .unwrap();
    let done = run(place.lake.roll_up(&place.queue, after(1))).unwrap();
    assert_eq!((done.bodies, place.waiting()), (1, 0));
    assert_eq!(samples(&place.rows()), 1240);
    // An invalid note does not stop the roll-up.
    place.put(TEN, 6, &bodies[0]);
    std::fs::write(&path, "{").unwrap();
    let done = run(place.lake.roll_up(&place.queue, after(1))).unwrap();
    assert_eq!((done.bodies, place.waiting()), (1, 0));
}

#[test]
fn a_store_that_refuses_keeps_the_bodies() {
    let place = Place::new();
    place.put(TEN, 1, &pack(&window()));
    // The folder of the day cannot be made: there is a file of that name.
    let lake = place.directory.path().join("lake");
    std::fs::write(lake.join("date=2026-11-26"), "").unwrap();
    let error = run(place.lake.roll_up(&place.queue, after(1))).unwrap_err();
    assert!(error.to_string().contains("date=2026-11-26"), "{error}");
    assert_eq!(place.waiting(), 1);
    std::fs::remove_file(lake.join("date=2026-11-26")).unwrap();
    let done = run(place.lake.roll_up(&place.queue, after(1))).unwrap();
    assert_eq!((done.files, place.waiting()), (1, 0));
}
