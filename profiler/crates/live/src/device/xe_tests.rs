use super::super::{
    DeviceOptions, DeviceSamplers,
    xe_fake::{FakeCard, FakeGt, FakeMachine, RATES, ReadStep, eu_stall_answer, gt_answer},
};
use super::*;
use aiprof_model::{
    profile::{LossKind, StallReason},
    wire::{Event, StallWindow},
};

fn record(address: u64, sbid: u64) -> Vec<u8> {
    let mut record = vec![0; 64];
    let bits = u128::from(address >> 3) | u128::from(sbid) << 77;
    record[..16].copy_from_slice(&bits.to_le_bytes());
    record
}

fn records(count: u64) -> Vec<u8> {
    (0..count).flat_map(|i| record(i % 10 * 16, 2)).collect()
}

fn windows(samplers: &DeviceSamplers) -> (Vec<DeviceStream>, Vec<StallWindow>) {
    let (mut streams, mut windows) = (Vec::new(), Vec::new());
    for event in samplers.events() {
        match event {
            Event::DeviceStream(stream) => streams.push(stream),
            Event::Stalls(window) => windows.push(window),
            _ => {}
        }
    }
    (streams, windows)
}

fn sbid(windows: &[StallWindow]) -> u64 {
    let counts = windows.iter().flat_map(|w| &w.counts);
    counts
        .map(|c| u64::from(c.counts[StallReason::Sbid as usize]))
        .sum()
}

/// Waits until a condition holds, 5 s at most.
fn until(mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(5);
    while !holds() {
        assert!(Instant::now() < end, "it did not come to that");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_stream_is_opened_as_the_kernel_wants_it() {
    let machine = FakeMachine::new(vec![("0xe20b", FakeCard::usual())]);
    let mut samplers = machine.start(&DeviceOptions::default());
    until(|| machine.fake.0.lock().unwrap().enabled == 1);
    samplers.stop();
    let state = machine.fake.0.lock().unwrap();
    // None for media.
    let [chain] = &*state.asked else {
        panic!("{:?}", state.asked);
    };
    let plain: Vec<_> = chain
        .iter()
        .map(|p| (p.name, p.pad, p.property, p.pad2, p.value, p.reserved))
        .collect();
    let none = [0, 0];
    assert_eq!(
        plain,
        [
            (0, 0, 1, 0, 0, none),
            (0, 0, 2, 0, 1004, none),
            (0, 0, 3, 0, 1, none)
        ]
    );
    assert_eq!(chain[2].next, 0);
    assert_eq!(state.open, 0);
    let (streams, windows) = windows(&samplers);
    let expected = DeviceStream {
        id: 0,
        name: "xe 0000:00:00.0 GT0".into(),
        device: 226 << 20 | 128,
        card: 0,
        gt: 0,
        relative: true,
        cycles_per_sample: 1004,
        replayed: None,
    };
    assert_eq!((&*streams, &*windows), (&[expected][..], &[][..]));
    assert_eq!(samplers.problems(), Vec::<String>::new());
}

#[test]
fn windows_hold_what_was_read_and_when() {
    let silence = || ReadStep::Silence(Duration::from_millis(15));
    let card = FakeCard::usual().stream(
        0,
        Ok(vec![
            ReadStep::Bytes(records(100)),
            silence(),
            // More than one read holds.
            ReadStep::Bytes(records(40_000)),
            silence(),
            ReadStep::Fails(Errno::INTR),
            ReadStep::Bytes(records(7)),
        ]),
    );
    let machine = FakeMachine::new(vec![("0xe20b", card)]);
    let before = monotonic_ns();
    let mut samplers = machine.start(&DeviceOptions::default());
    std::thread::sleep(Duration::from_millis(150));
    samplers.stop();
    let (_, windows) = windows(&samplers);
    let counts: Vec<_> = windows.iter().map(|w| w.records).collect();
    assert_eq!(counts, [100, 40_000, 7]);
    assert_eq!(sbid(&windows), 2 * 40_107);
    let now = monotonic_ns();
    for window in &windows {
        assert!(window.from_ns >= before && window.from_ns <= window.to_ns);
        assert!(window.to_ns <= now);
    }
    for pair in windows.windows(2) {
        // Samples may lie in the driver's buffer for 10 ms.
        assert!(pair[1].from_ns < pair[0].to_ns);
        assert!(pair[1].from_ns + 11_000_000 > pair[0].from_ns);
        assert!(pair[1].to_ns > pair[0].to_ns + 14_000_000);
    }
}

#[test]
fn drops_are_counted_in_their_window() {
    let card = FakeCard::usual().stream(
        0,
        Ok(vec![
            ReadStep::Bytes(records(10)),
            ReadStep::Silence(Duration::from_millis(5)),
            ReadStep::Fails(Errno::IO),
            ReadStep::Bytes(records(20)),
            ReadStep::Silence(Duration::from_millis(5)),
            // And nothing came with it.
            ReadStep::Fails(Errno::IO),
        ]),
    );
    let machine = FakeMachine::new(vec![("0xe20b", card)]);
    let mut samplers = machine.start(&DeviceOptions::default());
    std::thread::sleep(Duration::from_millis(100));
    samplers.stop();
    let (_, windows) = windows(&samplers);
    let counts: Vec<_> = windows.iter().map(|w| (w.records, w.drops)).collect();
    assert_eq!(counts, [(10, 0), (20, 1), (0, 1)]);
    assert_eq!(samplers.losses().get(LossKind::DeviceDrops), 2);
}

#[test]
fn a_reset_gt_is_sampled_again() {
    let card = FakeCard::usual()
        .stream(
            0,
            Ok(vec![
                ReadStep::Bytes(records(5)),
                ReadStep::Fails(Errno::NODEV),
            ]),
        )
        .stream(0, Err(Errno::NODEV))
        .stream(0, Ok(vec![ReadStep::Bytes(records(6))]));
    let machine = FakeMachine::new(vec![("0xe20b", card)]);
    let mut samplers = machine.start(&DeviceOptions::default());
    until(|| samplers.problems().iter().any(|p| p.contains("reset")));
    until(|| machine.fake.0.lock().unwrap().enabled == 2);
    until(|| {
        samplers
            .problems()
            .iter()
            .any(|p| p.contains("not sampled for"))
    });
    samplers.stop();
    let (streams, windows) = windows(&samplers);
    assert_eq!((streams.len(), sbid(&windows)), (1, 22));
    // The second stream's window begins when that was opened.
    assert!(windows[1].from_ns > windows[0].to_ns);
}

#[test]
fn another_profiler_is_waited_for() {
    let card = FakeCard::usual()
        .stream(0, Err(Errno::BUSY))
        .stream(0, Ok(vec![ReadStep::Bytes(records(3))]));
    let machine = FakeMachine::new(vec![("0xe20b", card)]);
    let mut samplers = machine.start(&DeviceOptions::default());
    until(|| !samplers.problems().is_empty());
    let problem = &samplers.problems()[0];
    assert!(
        problem.starts_with("xe 0000:00:00.0 GT0: another profiler"),
        "{problem}"
    );
    // A stream that was never read has no events.
    assert_eq!(samplers.events().count(), 0);
    until(|| machine.fake.0.lock().unwrap().enabled == 1);
    samplers.stop();
    assert_eq!(sbid(&windows(&samplers).1), 6);
    let problem = &samplers.problems()[0];
    assert!(problem.contains("not sampled for") && problem.contains("another profiler"));
}

#[test]
fn what_is_not_allowed_is_explained() {
    let card = FakeCard::usual().stream(0, Err(Errno::ACCESS));
    let machine = FakeMachine::new(vec![("0xe20b", card)]);
    let mut samplers = machine.start(&DeviceOptions::default());
    until(|| !samplers.problems().is_empty());
    let problem = samplers.problems().concat();
    assert!(problem.contains("CAP_PERFMON") && problem.contains("observation_paranoid=0"));
    samplers.stop();
    assert_eq!(samplers.events().count(), 0);
    assert_eq!(machine.fake.0.lock().unwrap().asked.len(), 1);
}

#[test]
fn cards_that_cannot_be_sampled_say_why() {
    let short = vec![0; 20];
    let huge = eu_stall_answer(1 << 40, &RATES);
    let many = gt_answer(&vec![
        FakeGt {
            kind: 0,
            id: 0,
            version: (20, 1)
        };
        1000
    ]);
    let media = gt_answer(&[FakeGt {
        kind: 1,
        id: 0,
        version: (20, 1),
    }]);
    let usual = FakeCard::usual;
    let cases = [
        (usual().answer(10, Err(Errno::INVAL)), "0xe20b", "6.15"),
        (
            usual().answer(10, Err(Errno::NODEV)),
            "0x56a0",
            "Ponte Vecchio",
        ),
        (
            usual().answer(10, Err(Errno::PERM)),
            "0xe20b",
            "does not report",
        ),
        (usual().answer(10, Ok(short)), "0xe20b", "too short"),
        (
            usual().answer(10, Ok(huge)),
            "0xe20b",
            "1099511627776 bytes",
        ),
        (usual().answer(3, Err(Errno::NOMEM)), "0xe20b", "GTs"),
        // More than is believed.
        (usual().answer(3, Ok(many)), "0xe20b", "GTs"),
        (usual().answer(3, Ok(media)), "0xe20b", "execution units"),
        (
            FakeCard::with(&[FakeGt {
                kind: 0,
                id: 0,
                version: (0, 0),
            }]),
            "0xe2ff",
            "0xe2ff",
        ),
        (
            FakeCard::with(&[FakeGt {
                kind: 0,
                id: 0,
                version: (41, 7),
            }]),
            "0xe20c",
            "",
        ),
    ];
    for (card, id, part) in cases {
        let machine = FakeMachine::new(vec![(id, card)]);
        let mut samplers = machine.start(&DeviceOptions::default());
        samplers.stop();
        let problems = samplers.problems();
        if part.is_empty() {
            assert_eq!(problems, Vec::<String>::new());
            continue;
        }
        let [problem] = &*problems else {
            panic!("{problems:?}");
        };
        assert!(problem.contains(part), "{problem}");
        assert!(
            problem.starts_with("xe 0000:00:00.0 is not sampled: "),
            "{problem}"
        );
        assert_eq!(samplers.events().count(), 0);
    }
}

#[test]
fn nodes_that_cannot_be_opened_and_virtual_functions_say_so() {
    let machine = FakeMachine::new(vec![("0xe20b", FakeCard::usual())]);
    machine.fake.0.lock().unwrap().cards.clear();
    let samplers = machine.start(&DeviceOptions::default());
    assert!(samplers.problems()[0].contains("renderD128"));
    let device = machine.root.path().join("sys/devices/0000:00:00.0");
    std::os::unix::fs::symlink("../x", device.join("physfn")).unwrap();
    std::fs::create_dir(machine.root.path().join("sys/devices/x")).unwrap();
    let samplers = machine.start(&DeviceOptions::default());
    assert!(samplers.problems()[0].contains("SR-IOV"));
    // Without `xe` no card is looked at.
    let options = DeviceOptions {
        xe: false,
        ..DeviceOptions::default()
    };
    assert_eq!(machine.start(&options).problems(), Vec::<String>::new());
}

#[test]
fn unknown_devices_are_read_as_the_nearest_if_asked() {
    let card = FakeCard::with(&[FakeGt {
        kind: 0,
        id: 0,
        version: (0, 0),
    }]);
    let card = card.stream(0, Ok(vec![ReadStep::Bytes(records(4))]));
    let machine = FakeMachine::new(vec![("0xe2ff", card)]);
    let options = DeviceOptions {
        nearest_layout: true,
        ..DeviceOptions::default()
    };
    let mut samplers = machine.start(&options);
    std::thread::sleep(Duration::from_millis(50));
    samplers.stop();
    assert_eq!(sbid(&windows(&samplers).1), 8);
}

#[test]
fn every_gt_of_every_card_is_a_stream() {
    let version = (12, 60);
    let tiles = [0, 1, 2].map(|id| FakeGt {
        kind: 0,
        id,
        version,
    });
    let mut first = FakeCard::with(&tiles);
    for gt in 0..3 {
        let steps = vec![ReadStep::Bytes(record(64, gt + 1))];
        first = first.stream(gt, Ok(steps));
    }
    let mut second = FakeCard::usual();
    second = second.stream(0, Ok(vec![ReadStep::Bytes(record(64, 9))]));
    let machine = FakeMachine::new(vec![("0x0bd5", first), ("0xb080", second)]);
    let mut samplers = machine.start(&DeviceOptions::default());
    std::thread::sleep(Duration::from_millis(100));
    samplers.stop();
    let (streams, windows) = windows(&samplers);
    let mut told: Vec<_> = streams
        .iter()
        .map(|s| {
            let mine: Vec<_> = windows
                .iter()
                .filter(|w| w.stream == s.id)
                .cloned()
                .collect();
            (s.card, s.gt, s.device & 0xfffff, sbid(&mine))
        })
        .collect();
    told.sort_unstable();
    assert_eq!(
        told,
        [
            (0, 0, 128, 1),
            (0, 1, 128, 2),
            (0, 2, 128, 3),
            (1, 0, 129, 9)
        ]
    );
    let ids: std::collections::BTreeSet<_> = streams.iter().map(|s| s.id).collect();
    assert_eq!(ids, (0..4).collect());
}

#[test]
fn rates_are_those_of_the_hardware() {
    assert_eq!(rate(&RATES, None), 1004);
    assert_eq!(rate(&RATES, Some(1)), 251);
    assert_eq!(rate(&RATES, Some(600)), 502);
    assert_eq!(rate(&RATES, Some(u32::MAX)), 1757);
    assert_eq!(rate(&[], Some(251)), 1004);
    let machine = FakeMachine::new(vec![("0xe20b", FakeCard::usual())]);
    let options = DeviceOptions {
        cycles_per_sample: Some(300),
        one_record_of: 10,
        ..DeviceOptions::default()
    };
    let mut samplers = machine.start(&options);
    until(|| machine.fake.0.lock().unwrap().enabled == 1);
    samplers.stop();
    assert_eq!(machine.fake.0.lock().unwrap().asked[0][1].value, 251);
    assert_eq!(windows(&samplers).0[0].cycles_per_sample, 2510);
}

#[test]
fn one_of_many_records_is_a_fair_sample() {
    // Two addresses that alternate: taking every tenth would see one of them only.
    let bytes: Vec<_> = (0..200_000).flat_map(|i| record(i % 2 * 64, 1)).collect();
    // In pieces that are no multiple of the group.
    let pieces = bytes.chunks(64 * 777).map(|p| ReadStep::Bytes(p.to_vec()));
    let card = FakeCard::usual().stream(0, Ok(pieces.collect()));
    let machine = FakeMachine::new(vec![("0xe20b", card)]);
    let options = DeviceOptions {
        one_record_of: 10,
        ..DeviceOptions::default()
    };
    let mut samplers = machine.start(&options);
    std::thread::sleep(Duration::from_millis(700));
    samplers.stop();
    let (_, windows) = windows(&samplers);
    assert_eq!(sbid(&windows), 20_000);
    let of = |address: u64| {
        let counts = windows.iter().flat_map(|w| &w.counts);
        let mine = counts.filter(|c| c.address == address);
        mine.map(|c| c.counts.iter().sum::<u32>()).sum::<u32>()
    };
    assert!(of(0).abs_diff(10_000) < 400, "{} {}", of(0), of(64));
}

#[test]
fn what_was_sampled_can_be_replayed() {
    let card = FakeCard::usual().stream(
        0,
        Ok(vec![
            ReadStep::Bytes(records(30)),
            ReadStep::Silence(Duration::from_millis(5)),
            ReadStep::Fails(Errno::IO),
            ReadStep::Bytes(records(40)),
        ]),
    );
    let machine = FakeMachine::new(vec![("0xe20b", card)]);
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("new");
    let options = DeviceOptions {
        save: Some(folder.clone()),
        ..DeviceOptions::default()
    };
    let mut samplers = machine.start(&options);
    std::thread::sleep(Duration::from_millis(60));
    samplers.stop();
    let (streams, sampled) = windows(&samplers);
    let path = folder.join("device-0.devcap");
    let replay = vec![format!("capture:{}", path.display()).parse().unwrap()];
    let mut replayed = DeviceSamplers::start(&DeviceOptions {
        xe: false,
        replay,
        ..DeviceOptions::default()
    })
    .unwrap();
    replayed.stop();
    let (again, replayed_windows) = windows(&replayed);
    assert_eq!(replayed_windows, sampled);
    assert_eq!(sampled.len(), 2);
    let expected = DeviceStream {
        device: 0,
        replayed: Some(path.display().to_string()),
        ..streams[0].clone()
    };
    assert_eq!(again, [expected]);
    // Nothing is written over.
    let mut samplers = machine.start(&options);
    until(|| !samplers.problems().is_empty());
    samplers.stop();
    assert!(samplers.problems()[0].contains("device capture of xe 0000:00:00.0 GT0"));
}

#[test]
fn full_counters_are_told() {
    let card = FakeCard::usual().stream(0, Ok(vec![ReadStep::Bytes(record(64, 255))]));
    let machine = FakeMachine::new(vec![("0xe20b", card)]);
    let mut samplers = machine.start(&DeviceOptions::default());
    until(|| {
        samplers
            .problems()
            .iter()
            .any(|p| p.contains("1 counters in 1 records"))
    });
    samplers.stop();
}

#[test]
fn answers_are_parsed_within_their_bounds() {
    let whole = eu_stall_answer(64, &RATES);
    let parsed = Abilities::parse(&whole).unwrap();
    assert_eq!((parsed.record_size, &*parsed.rates), (64, &RATES[..]));
    for length in 0..whole.len() {
        let part = Abilities::parse(&whole[..length]);
        assert!(part.is_none_or(|p| p.rates.len() < RATES.len()));
    }
    let gts = FakeCard::usual().gts;
    let list = gt_answer(&gts);
    let found = main_gts(&list).unwrap();
    let ip_version = Some((20, 1));
    assert_eq!(found, [Gt { id: 0, ip_version }]);
    for length in 0..list.len() {
        assert!(main_gts(&list[..length]).is_none_or(|gts| gts.len() <= 1));
    }
    let mut lie = list;
    lie[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(main_gts(&lie).unwrap().len(), 1);
}
