//! Ranks with several files, and devices with several ranks. What is expected is computed from the
//! begins and lengths that each trace is built with.

use super::tests::{Made, read};
use crate::device_time::{DeviceTime, IdleBlame, device_idle, stream_idle};
use crate::work::WorkIndex;
use aiprof_model::timeline::Timeline;

/// Ten kernels, one each 1000 us, of this length.
fn idle_us(kernel_us: f64) -> f64 {
    9.0 * (1000.0 - kernel_us)
}

/// The idle time of all streams of a rank and that of all devices, microseconds.
fn idle(timeline: &Timeline, index: &WorkIndex) -> (f64, f64) {
    let ranks = index.ranks.iter();
    let streams = ranks.flat_map(|rank| stream_idle(timeline, rank));
    let devices = device_idle(timeline, index).into_iter();
    let devices = devices.flat_map(|device| device.causes);
    (
        streams.map(|stream| stream.total_us()).sum(),
        devices.map(|sum| sum.us).sum(),
    )
}

/// Files of one process are one rank, whatever their order. Each counts its calls from 1.
#[test]
fn files_of_one_process_are_one_rank() {
    let made = |cycle: u64| Made {
        base: 1_700_000_000_000_000 + cycle * 5_000_000,
        ..Made::new(3, 100, &[(0, 300)])
    };
    for order in [[0, 1, 2], [2, 0, 1]] {
        let timeline = read(&order.map(|cycle| made(cycle).file()));
        let index = WorkIndex::new(&timeline);
        let [rank] = &index.ranks[..] else {
            panic!("{}", index.ranks.len())
        };
        assert_eq!((rank.rank, rank.work.len(), rank.files.len()), (3, 30, 3));
        assert_eq!(rank.streams.len(), 1);
        // Files by time: ten kernels in each.
        let files: Vec<u16> = rank.work.iter().map(|work| work.file).collect();
        assert_eq!(files, [[0; 10], [1; 10], [2; 10]].concat());
        // The calls are those of the same file, 50 us before.
        for work in &rank.work {
            let [call, work] = [work.call, work.event].map(|at| timeline.events[at as usize]);
            assert_eq!(timeline.job(&call), timeline.job(&work));
            assert_eq!((work.start - call.start).micros(), 50.0);
        }
        let spans = rank.recorded();
        let lengths = spans.iter().map(|(from, to)| (*to - *from).micros());
        assert_eq!(lengths.collect::<Vec<_>>(), [9300.0; 3]);
        let all = 3.0 * idle_us(300.0);
        assert_eq!(idle(&timeline, &index), (all, all));
    }
}

/// The time of a device that two processes use is idle where neither has work there.
#[test]
fn a_device_of_two_processes_idles_once() {
    let one = Made {
        uuid: "GPU-a",
        ..Made::new(0, 100, &[(0, 300)])
    };
    // In the gaps of the first.
    let two = Made {
        base: one.base + 400,
        uuid: "GPU-a",
        ..Made::new(1, 101, &[(0, 200)])
    };
    let timeline = read(&[one.file(), two.file()]);
    let index = WorkIndex::new(&timeline);
    // 300 busy, 100 idle, 200 busy, 400 idle; ten times, but for the last gap.
    let all = 10.0 * 100.0 + 9.0 * 400.0;
    let own = idle_us(300.0) + idle_us(200.0);
    assert_eq!(idle(&timeline, &index), (own, all));
    let found = device_idle(&timeline, &index);
    let [device] = &found[..] else { panic!() };
    assert_eq!(
        (&device.ranks[..], device.elapsed_us),
        (&[0, 1][..], 9600.0)
    );
    // The first of the second process has nothing to do with what was before.
    assert_eq!(device.causes[IdleBlame::First as usize].us, 100.0);
    // What the findings look at.
    let scene = DeviceTime::of_all(&index.ranks);
    let [seen] = &scene[..] else { panic!() };
    assert_eq!(seen.elapsed_us() - seen.busy.us(), all);

    // With devices of their own each idles by itself.
    let other = Made {
        uuid: "GPU-b",
        ..two
    };
    let timeline = read(&[one.file(), other.file()]);
    let index = WorkIndex::new(&timeline);
    assert_eq!(idle(&timeline, &index), (own, own));
}
