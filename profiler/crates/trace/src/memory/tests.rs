//! Memory of traces that the tests write.

use super::*;
use crate::analyze::memory_counters;
use aiprof_formats::import::json;

fn timeline(events: &[String]) -> Timeline {
    let mut timeline = Timeline::default();
    let text = format!("[{}]", events.join(","));
    json::read(text.as_bytes(), "x.json", &mut timeline).unwrap();
    timeline
}

fn of(events: &[String]) -> Vec<MemoryUse> {
    MemoryReport::new(&timeline(events)).all
}

/// A `[memory]` event with these arguments besides those of a device of CUDA.
fn memory(ts: f64, args: &str) -> String {
    format!(
        r#"{{"ph":"i","s":"t","cat":"cpu_instant_event","name":"[memory]","pid":9,"tid":9,"ts":{ts},"args":{{"Device Type":1,"Device Id":0,{args}}}}}"#
    )
}

/// The same of an address and size, without totals.
fn sized(ts: f64, address: u64, bytes: i64) -> String {
    memory(ts, &format!(r#""Addr":{address},"Bytes":{bytes}"#))
}

fn slice(cat: &str, name: &str, ts: f64, dur: f64, args: &str) -> String {
    format!(
        r#"{{"ph":"X","cat":"{cat}","name":"{name}","pid":9,"tid":9,"ts":{ts},"dur":{dur},"args":{{{args}}}}}"#
    )
}

fn sum(count: u64, bytes: u64) -> ByteSum {
    ByteSum { count, bytes }
}

/// 100 bytes before, 30 more, 50 more (the peak, 180), the first 30 freed, 20 of before freed.
#[test]
fn totals_show_what_was_held_before() {
    let event = |ts, address: u64, bytes: i64, total: u64| {
        let args = format!(
            r#""Addr":{address},"Bytes":{bytes},"Total Allocated":{total},"Total Reserved":256"#
        );
        memory(ts, &args)
    };
    // Not in the order of time.
    let all = of(&[
        event(30.0, 1, -30, 150),
        event(10.0, 1, 30, 130),
        event(20.0, 2, 50, 180),
        event(40.0, 7, -20, 130),
    ]);
    let [one] = &all[..] else { panic!("{all:?}") };
    assert_eq!(one.of.device, "CUDA 0");
    let sums = MemorySums {
        allocated: sum(2, 80),
        freed: sum(2, 50),
        largest: 50,
        held_before: 100,
        has_totals: true,
        has_addresses: true,
        end: 130,
        reserved: Some(256),
        not_freed: sum(1, 50),
        freed_before: sum(1, 20),
        failed: sum(0, 0),
    };
    assert_eq!(one.sums, sums);
    let peak = &one.peak;
    assert_eq!((peak.allocated, peak.reserved), (180, Some(256)));
    assert_eq!((peak.held_before, peak.unknown), (100, 0));
    let held: u64 = one.holders.iter().map(|holder| holder.held.bytes).sum();
    assert_eq!(held, 80);
    let levels: Vec<u64> = one.levels.iter().map(|level| level.allocated).collect();
    assert_eq!(levels, [100, 130, 180, 150, 130]);
}

/// Without totals, memory is what releases need at least.
#[test]
fn releases_without_allocations_were_held_before() {
    let all = of(&[
        sized(1.0, 1, 10),
        sized(2.0, 5, -40),
        sized(3.0, 1, -10),
        // The address is used again, and once more without a release between.
        sized(4.0, 1, 70),
        sized(5.0, 1, 60),
    ]);
    let one = &all[0];
    assert_eq!((one.sums.held_before, one.sums.has_totals), (40, false));
    let levels: Vec<u64> = one.levels.iter().map(|level| level.allocated).collect();
    assert_eq!(levels, [40, 50, 10, 0, 70, 60]);
    assert_eq!(one.sums.not_freed, sum(2, 130));
    assert_eq!(one.sums.freed_before, sum(1, 40));
    assert_eq!((one.peak.allocated, one.sums.end), (70, 60));
    // Old traces have no addresses.
    let all = of(&[memory(1.0, r#""Bytes":-40"#), memory(2.0, r#""Bytes":8"#)]);
    let one = &all[0];
    assert_eq!((one.sums.held_before, one.sums.end), (40, 8));
    assert!(!one.sums.has_addresses && one.holders.is_empty());
}

/// The innermost of each kind that goes on when memory is allocated.
#[test]
fn holders_are_what_goes_on_round_the_allocation() {
    let all = of(&[
        slice("python_function", "train.py(3): step", 0.0, 100.0, ""),
        slice(
            "python_function",
            "nn.Module: Net_0",
            1.0,
            50.0,
            r#""CallFrom":"train.py:5""#,
        ),
        slice(
            "python_function",
            "torch/nn/linear.py(2): forward",
            2.0,
            40.0,
            r#""CallFrom":"torch/nn/module.py:9""#,
        ),
        slice("cpu_op", "aten::linear", 3.0, 30.0, ""),
        slice("cpu_op", "aten::empty", 4.0, 2.0, ""),
        sized(5.0, 1, 64),
        sized(7.0, 2, 32),
        slice("user_annotation", "ProfilerStep#1", 60.0, 9.0, ""),
        sized(61.0, 3, 16),
        // Freed before the peak, and allocated behind it.
        sized(62.0, 4, 8),
        sized(63.0, 4, -8),
        sized(64.0, 5, 8),
        sized(65.0, 5, -8),
    ]);
    let found = |holder: &Holder| {
        let names = [&holder.operator, &holder.module, &holder.python].map(String::clone);
        (names, holder.held)
    };
    let holders: Vec<_> = all[0].holders.iter().map(found).collect();
    let names = |names: [&str; 3]| names.map(str::to_owned);
    let expected = [
        (names(["aten::empty", "Net_0", "train.py:5"]), sum(1, 64)),
        (names(["aten::linear", "Net_0", "train.py:5"]), sum(1, 32)),
        (names(["", "", "train.py(3): step"]), sum(2, 24)),
    ];
    assert_eq!(holders, expected);
}

/// Numbers of any size and sign, texts, or none: no panic, and nothing is made up.
#[test]
fn hostile_numbers_are_left_out() {
    let mut timeline = timeline(&[
        memory(1.0, r#""Addr":1,"Bytes":9223372036854775807,"Total Allocated":-5"#),
        memory(2.0, r#""Addr":1,"Bytes":-9223372036854775808"#),
        memory(3.0, r#""Addr":1,"Bytes":"much","Total Allocated":7"#),
        memory(4.0, r#""Addr":1"#),
        memory(5.0, r#""Addr":"0x10","Bytes":"24","Total Allocated":99999999999999999999"#),
        memory(6.0, r#""Addr":-3,"Bytes":1152921504606846976,"Total Reserved":"x""#),
        memory(7.0, r#""Addr":16,"Bytes":-24,"Total Allocated":18446744073709551615"#),
        r#"{"ph":"i","name":"[memory]","pid":9,"tid":9,"ts":8,"args":{"Bytes":1}}"#.to_owned(),
        r#"{"ph":"i","name":"[memory]","pid":9,"tid":9,"ts":8}"#.to_owned(),
        r#"{"ph":"i","name":"[memory]","pid":9,"tid":9,"ts":8,"args":{"Device Type":-77,"Device Id":-9223372036854775808,"Bytes":4}}"#.to_owned(),
    ]);
    let report = MemoryReport::new(&timeline);
    assert_eq!(report.unreadable, 6);
    let one = &report.all[0];
    let most = 1u64 << 60;
    assert_eq!(one.sums.allocated, sum(2, most + 24));
    assert_eq!(one.sums.freed, sum(1, 24));
    assert_eq!(one.peak.allocated, most + 24);
    assert_eq!(one.sums.end, most);
    assert!(!one.sums.has_totals && one.sums.reserved.is_none());
    assert_eq!(report.all[1].of.device, "device type -77, device");
    memory_counters::run(&mut timeline);
}

/// An allocation that fails changes nothing.
#[test]
fn failed_allocations_are_counted_apart() {
    let failed = memory(
        2.0,
        r#""Bytes":4096,"Total Allocated":10,"Total Reserved":12"#,
    );
    let failed = failed.replace("[memory]", "[OutOfMemory]");
    let all = of(&[
        memory(1.0, r#""Addr":1,"Bytes":10,"Total Allocated":10"#),
        failed,
    ]);
    let sums = &all[0].sums;
    assert_eq!((sums.failed, sums.allocated), (sum(1, 4096), sum(1, 10)));
    assert_eq!((sums.end, all[0].peak.allocated), (10, 10));
}

/// Each process has its counter once, also if the trace is analysed again.
#[test]
fn counters_are_added_once() {
    let mut timeline = timeline(&[
        memory(
            1.0,
            r#""Addr":1,"Bytes":8,"Total Allocated":8,"Total Reserved":20"#,
        ),
        memory(
            2.0,
            r#""Addr":2,"Bytes":4,"Total Allocated":12,"Total Reserved":20"#,
        ),
        memory(
            2.0,
            r#""Addr":2,"Bytes":-4,"Total Allocated":8,"Total Reserved":20"#,
        ),
    ]);
    assert_eq!(memory_counters::run(&mut timeline), 2);
    assert_eq!(memory_counters::run(&mut timeline), 0);
    let counters = aiprof_testkit::timelines::counters(&timeline, "Memory CUDA 0");
    let args: Vec<&str> = counters.iter().map(|(_, args)| args.as_str()).collect();
    let expected = r#""Allocated":8,"Unused":12"#;
    assert_eq!(args, [expected, expected]);
}

/// Calls of runtimes in aiprof's recordings have sizes only where they allocate.
#[test]
fn recorded_calls_and_records_of_aius_are_memory() {
    let mut timeline = timeline(&[
        slice(
            "cpu_op",
            "aten::empty",
            0.0,
            9.0,
            r#""python":"train.py:7""#,
        ),
        slice(
            "alloc",
            "cudaMalloc",
            1.0,
            2.0,
            r#""api":"cuda","bytes":100,"address":"0x7f00""#,
        ),
        slice(
            "alloc",
            "cudaMalloc",
            4.0,
            1.0,
            r#""api":"cuda","bytes":900,"address":"0x7f00","failed":true"#,
        ),
        slice(
            "alloc",
            "cudaMallocHost",
            6.0,
            1.0,
            r#""api":"cuda","bytes":7,"address":"0x1""#,
        ),
        slice(
            "free",
            "cudaFree",
            20.0,
            1.0,
            r#""api":"cuda","address":"0x7f00""#,
        ),
        // Frees memory of any side.
        slice(
            "alloc",
            "zeMemAllocHost",
            22.0,
            1.0,
            r#""api":"ze","bytes":5,"address":"0x9""#,
        ),
        slice(
            "free",
            "zeMemFree",
            24.0,
            1.0,
            r#""api":"ze","address":"0x9""#,
        ),
        slice(
            "privateuse1_driver",
            "Memory (Allocation)",
            30.0,
            1.0,
            r#""device":2,"bytes":64,"address":"0x40""#,
        ),
    ]);
    timeline.jobs[0].is_recording = true;
    let all = MemoryReport::new(&timeline).all;
    let found = |one: &MemoryUse| {
        let end = one.sums.end;
        (
            one.of.device.clone(),
            one.sums.allocated,
            one.sums.freed,
            end,
        )
    };
    let found: Vec<_> = all.iter().map(found).collect();
    let row = |device: &str, allocated, freed, end| (device.to_owned(), allocated, freed, end);
    let expected = [
        row("cuda device", sum(1, 100), sum(1, 100), 0),
        row("cuda host", sum(1, 7), sum(0, 0), 7),
        row("ze host", sum(1, 5), sum(1, 5), 0),
        row("AIU 2", sum(1, 64), sum(0, 0), 64),
    ];
    assert_eq!(found, expected);
    let holder = &all[0].holders[0];
    assert_eq!(
        (&*holder.operator, &*holder.python),
        ("aten::empty", "train.py:7")
    );
    // In traces of other tools, the categories mean nothing.
    timeline.jobs[0].is_recording = false;
    assert_eq!(MemoryReport::new(&timeline).all.len(), 1);
}
