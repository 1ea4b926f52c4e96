//! `aiprof acelyzer` and `aiprof analyze` against traces whose truth is known: what acelyzer 1.3.0
//! gets wrong, and what no other tool measures.
//!
//! Where acelyzer is right it proves the generator: its output and the truth must
//! agree.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use serde_json::Value;

use aiprof_tests::acelyzer::run::{Ran, original};
use aiprof_tests::acelyzer::{Input, Which, sample};
use aiprof_tests::aiu_trace::compiler::{ideals, log};
use aiprof_tests::aiu_trace::flex::Pairs;
use aiprof_tests::aiu_trace::json::{Packing, Values};
use aiprof_tests::aiu_trace::judge::{events, pair, power, within};
use aiprof_tests::aiu_trace::scenario::{Charge, Collectives};
use aiprof_tests::aiu_trace::{Event, Flex, Kind, Latency, Scenario, Shape, Story, Torch};
use aiprof_tests::need::skip;
use aiprof_tests::spans::covered;

/// A nanosecond is what files hold, and begin and end are rounded each; a cycle is
/// up to 2.5 ns.
const EXACT_US: f64 = 0.006;

/// The files of a story, and `compiler.log`; the paths of the traces as one
/// argument, separated by `separator`.
fn files(story: &Story, flex: Flex, separator: &str) -> anyhow::Result<(Input, String)> {
    let dir = tempfile::TempDir::new()?;
    let paths = flex.write(story, dir.path())?;
    let names = paths.iter().filter_map(|path| path.file_name());
    let names: Vec<_> = names.map(|name| name.to_string_lossy()).collect();
    Ok((Input::of_folder(dir.path())?, names.join(separator)))
}

fn run(which: Which, story: &Story, flex: Flex, more: &str) -> anyhow::Result<Ran> {
    let separator = if which == Which::Analyze { " " } else { "," };
    let (input, names) = files(story, flex, separator)?;
    let args = if which == Which::Analyze {
        format!("{names} -o out.json {more}")
    } else {
        format!("-i {names} -o out.json {more}")
    };
    run_on(which, &input, &args)
}

fn run_on(which: Which, input: &Input, args: &str) -> anyhow::Result<Ran> {
    let ran = which.run(input, args)?;
    anyhow::ensure!(
        ran.code == Some(0),
        "{which:?} {args}: {:?}\n{}{}",
        ran.code,
        ran.stdout,
        ran.stderr
    );
    Ok(ran)
}

fn frequency(story: &Story) -> String {
    format!("--freq {}", story.mhz(0))
}

fn without_original(name: &str) -> bool {
    let missing = original().err();
    if let Some(reason) = &missing {
        skip(name, reason);
    }
    missing.is_some()
}

/// Where the original is right, it finds the generator's truth.
#[test]
fn generator_and_original_agree() -> anyhow::Result<()> {
    if without_original("generator_and_original_agree") {
        return Ok(());
    }
    for seed in 0..6 {
        let scenario = Scenario {
            seed,
            jobs: 3,
            mhz: (400.0, 1500.0),
            begin_jitter_us: 5.0,
            ..Scenario::default()
        };
        agrees(Which::Original, &scenario)?;
    }
    // The counter wraps between jobs.
    agrees(
        Which::Original,
        &Scenario {
            seed: 21,
            jobs: 5,
            gap_us: 9_000_000.0,
            start_cycles: Some(5_000_000),
            ..Scenario::default()
        },
    )
}

/// It finds the messages between ranks, each at its host's clock.
#[test]
fn generator_and_original_agree_on_messages() -> anyhow::Result<()> {
    if without_original("generator_and_original_agree_on_messages") {
        return Ok(());
    }
    for shape in [Shape::Chain, Shape::Ring, Shape::Tree] {
        let story = collective(13, shape, 4, Latency::Symmetric(0.5, 3.0)).make();
        let more = format!("{} -M --flow", frequency(&story));
        let trace = run(Which::Original, &story, Flex::default(), &more)?.json("out.json")?;
        let mut shown: Vec<(String, u64, i64)> = Vec::new();
        for event in events(&trace)?.iter().filter(|event| event["ph"] == "f") {
            let rank = event["pid"].as_u64().context("no pid")?;
            let name = event["name"].as_str().context("no name")?;
            let at = event["ts"].as_f64().context("no ts")? + 0.001;
            shown.push((name.to_owned(), rank, (at * 100.0).round() as i64));
        }
        let of = |message: &aiprof_tests::aiu_trace::story::Message| {
            let at = message.received_us + story.ranks[message.to].offset_us;
            let at = (at * 100.0).round() as i64;
            (message.sync.clone(), message.to as u64, at)
        };
        let mut truth: Vec<_> = story.messages.iter().map(of).collect();
        shown.sort();
        truth.sort();
        assert_eq!(shown.len(), truth.len(), "{shape:?}");
        for (shown, truth) in shown.iter().zip(&truth) {
            let same = (&shown.0, shown.1) == (&truth.0, truth.1);
            anyhow::ensure!(
                same && (shown.2 - truth.2).abs() <= 1,
                "{shape:?}: {shown:?}, not {truth:?}"
            );
        }
    }
    Ok(())
}

/// Times, power, utilization and iterations of a scenario with one rank.
fn agrees(which: Which, scenario: &Scenario) -> anyhow::Result<()> {
    let story = scenario.make();
    let (mut input, names) = files(&story, Flex::default(), ",")?;
    let ideals = ideals(scenario, 1100.0);
    input = input.and("compiler.log", log(&ideals));
    let args = format!(
        "-i {names} -o out.json {} -c compiler.log",
        frequency(&story)
    );
    let ran = run_on(which, &input, &args)?;
    let trace = ran.json("out.json")?;
    let pairs = pair(&story, &trace, false)?;
    within(&pairs, EXACT_US).with_context(|| format!("seed {}", scenario.seed))?;
    power(&story, &trace, 0.002)?;
    for (event, seen) in pairs {
        let Some(kernel) = event.name.strip_suffix(" Cmpt Exec") else {
            continue;
        };
        let ideal = ideals.iter().find(|ideal| ideal.kernel == kernel);
        let cycles = ideal.map_or(0.0, |ideal| ideal.cycles as f64);
        let truth = cycles / 1100.0 / event.dur_us();
        let active = seen.event["args"]["pt_active"].as_f64().unwrap_or(0.0);
        anyhow::ensure!(
            (active - truth).abs() < 1e-3,
            "{event:?}: {active}, not {truth}"
        );
    }
    iterations(scenario, &ran)
}

/// The line about iterations has their number, without the first ones, from which they are learned.
fn iterations(scenario: &Scenario, ran: &Ran) -> anyhow::Result<()> {
    let said = format!("{}{}", ran.stdout, ran.stderr);
    let line = said.lines().find(|line| line.contains("ITSTATS: [0]"));
    let line = line.with_context(|| said.clone())?;
    let count = line.rsplit("iterations=").next().context("no count")?;
    let count: usize = count.trim().parse()?;
    let truth = scenario.jobs * scenario.iterations;
    anyhow::ensure!((truth - 3..=truth).contains(&count), "{line}: {truth}");
    Ok(())
}

/// The same of ours, and more: every form of file.
#[test]
fn ours_finds_the_truth() -> anyhow::Result<()> {
    for seed in 0..6 {
        let scenario = Scenario {
            seed,
            jobs: 3,
            mhz: (400.0, 1500.0),
            begin_jitter_us: 5.0,
            ..Scenario::default()
        };
        agrees(Which::Ours, &scenario)?;
    }
    Ok(())
}

#[test]
fn every_form_of_file_says_the_same() -> anyhow::Result<()> {
    let story = Scenario {
        seed: 31,
        jobs: 2,
        begin_jitter_us: 5.0,
        ..Scenario::default()
    }
    .make();
    for pairs in [Pairs::Complete, Pairs::Adjacent, Pairs::Apart] {
        for values in [Values::Integer, Values::Decimal, Values::Hex] {
            for (key, packing) in [
                ("attr", Packing::None),
                ("args", Packing::Gzip),
                ("attr", Packing::Zstd),
            ] {
                let flex = Flex {
                    pairs,
                    values,
                    key,
                    packing,
                    ..Flex::default()
                };
                let ran = run(Which::Ours, &story, flex, &frequency(&story))?;
                let trace = ran.json("out.json")?;
                within(&pair(&story, &trace, false)?, EXACT_US)
                    .with_context(|| format!("{flex:?}"))?;
                power(&story, &trace, 0.002).with_context(|| format!("{flex:?}"))?;
            }
        }
    }
    Ok(())
}

/// Counters wrap inside events, between them, and many times between jobs.
#[test]
fn wraps_are_counted() -> anyhow::Result<()> {
    for (seed, gap_us) in [(41, 20_000.0), (42, 6_000_000.0), (43, 61_000_000.0)] {
        let mut scenario = Scenario {
            seed,
            jobs: 6,
            gap_us,
            // No charge: it would wrap as well, more often than one can see.
            charge: None,
            ..Scenario::default()
        };
        // Kernels take half of a job, so in one of a few starts the counter wraps in
        // a kernel: the start is chosen so that it does.
        let before = scenario.make();
        let kernels = before
            .events
            .iter()
            .filter(|e| e.kind == Kind::Exec && e.job == 2);
        let kernel = kernels.max_by(|a, b| a.dur_us().total_cmp(&b.dur_us()));
        let [_, _, ts3, ts4, _] = kernel.and_then(|k| k.cycles).context("no kernel")?;
        let wrap = 1u64 << 32;
        let inside = (ts3 + ts4) / 2;
        scenario.start_cycles = Some(1_000_000_000 + wrap - inside % wrap);
        let story = scenario.make();
        let wraps = |event: &&Event| {
            let shown = event.shown().unwrap_or_default();
            event.kind == Kind::Exec && shown[3] < shown[2]
        };
        assert!(
            story.events.iter().filter(wraps).count() > 0,
            "no wrap in a kernel"
        );
        let ran = run(Which::Ours, &story, Flex::default(), &frequency(&story))?;
        let trace = ran.json("out.json")?;
        let pairs = pair(&story, &trace, false)?;
        within(&pairs, EXACT_US).with_context(|| format!("seed {seed}"))?;
        // All counters are off by the same number of wraps.
        let by = |event: &Event, cycles: &[i128; 5]| {
            let truth = event.cycles.unwrap_or_default();
            [0, 1, 2, 3, 4].map(|i: usize| cycles[i] - i128::from(truth[i]))
        };
        let first = pairs
            .first()
            .map(|(e, seen)| by(e, &seen.cycles)[0])
            .context("none")?;
        for (event, seen) in &pairs {
            assert_eq!(
                by(event, &seen.cycles),
                [first; 5],
                "seed {seed}: {event:?}"
            );
        }
        // That number is 0 before the first wrap: acelyzer's OVC.
        assert_eq!(first.rem_euclid(i128::from(wrap)), 0);
    }
    Ok(())
}

/// Jobs whose device events lie 50 ms before or behind their host round trip are
/// put back, by the counters of the other jobs.
#[test]
fn shifted_jobs_are_mended() -> anyhow::Result<()> {
    for (seed, shift) in [
        (51, 50_000.0),
        (52, -50_000.0),
        (53, 7_000.0),
        (54, -300_000.0),
    ] {
        let scenario = Scenario {
            seed,
            jobs: 4,
            jitter_us: 0.2,
            shifts_us: vec![(1, shift), (3, shift)],
            ..Scenario::default()
        };
        let story = scenario.make();
        let more = format!("{} --flex_ts_fix", frequency(&story));
        let ran = run(Which::Ours, &story, Flex::default(), &more)?;
        let trace = ran.json("out.json")?;
        within(&pair(&story, &trace, false)?, 1.0).with_context(|| format!("shift {shift}"))?;
        for event in events(&trace)? {
            let adjusted = event["args"]["ts_adj"].as_f64();
            let job = event["args"]["jobname"].as_str().unwrap_or_default();
            let moved = job.contains("job1") || job.contains("job3");
            if let Some(by) = adjusted {
                anyhow::ensure!(moved && (by + shift).abs() < 1.0, "{event}");
            }
        }
        let said = format!("{}{}", ran.stdout, ran.stderr);
        let warning = "has AIU events outside of corresponding CPU range";
        anyhow::ensure!(said.contains(warning), "{said}");
    }
    Ok(())
}

/// With no other job to go by, all events are moved by the same, to the middle of what their round
/// trip allows. A message gives the bounds of the truth.
#[test]
fn a_lone_shifted_job_is_bounded() -> anyhow::Result<()> {
    for shift in [50_000.0, -50_000.0] {
        let scenario = Scenario {
            seed: 61,
            shifts_us: vec![(0, shift)],
            ..Scenario::default()
        };
        let story = scenario.make();
        let more = format!("{} --flex_ts_fix", frequency(&story));
        let ran = run(Which::Ours, &story, Flex::default(), &more)?;
        let trace = ran.json("out.json")?;
        let mut moved = Vec::new();
        for (event, seen) in pair(&story, &trace, false)? {
            moved.push(seen.end() - event.end_us - shift);
        }
        let said = format!("{}{}", ran.stdout, ran.stderr);
        let bounds = said
            .split(" between ")
            .nth(1)
            .with_context(|| said.clone())?;
        let mut numbers = bounds
            .split_whitespace()
            .filter_map(|word| word.parse::<f64>().ok());
        let (least, most) = (
            numbers.next().context("no bound")?,
            numbers.next().context("no bound")?,
        );
        anyhow::ensure!(
            (least..=most).contains(&-shift),
            "{least} to {most}, not {}",
            -shift
        );
        let middle = (least + most) / 2.0;
        for moved in moved {
            anyhow::ensure!((moved - middle).abs() < 0.002, "{moved}, not {middle}");
        }
        anyhow::ensure!(most - least < 200.0, "{least} to {most} says little");
    }
    Ok(())
}

fn collective(seed: u64, shape: Shape, ranks: usize, latency: Latency) -> Scenario {
    Scenario {
        seed,
        ranks,
        iterations: 2,
        kernels: 4,
        mhz: (557.05, 557.05),
        start_cycles: None,
        offset_us: 2000.0,
        collectives: Some(Collectives {
            shape,
            groups: 2,
            latency,
        }),
        charge: None,
        ..Scenario::default()
    }
}

/// Ranks whose clocks differ by milliseconds are aligned by their messages.
fn aligned(shape: Shape, latency: Latency) -> anyhow::Result<()> {
    for ranks in [2, 3, 4, 8, 16, 33, 64] {
        let story = collective(70 + ranks as u64, shape, ranks, latency).make();
        let ran = run(Which::Ours, &story, Flex::default(), &frequency(&story))?;
        let trace = ran.json("out.json")?;
        let pairs = pair(&story, &trace, false)?;
        within(&pairs, 2.0).with_context(|| format!("{shape:?} of {ranks}"))?;
        causal(&story, &pairs)?;
    }
    Ok(())
}

/// Nothing is received before it was sent.
fn causal(
    story: &Story,
    pairs: &[(&Event, aiprof_tests::aiu_trace::judge::Seen<'_>)],
) -> anyhow::Result<()> {
    let mut sends: BTreeMap<(usize, &str), f64> = BTreeMap::new();
    let mut receives: BTreeMap<(usize, &str), f64> = BTreeMap::new();
    for (event, seen) in pairs {
        let Some((_, rest)) = event.name.split_once("[sync=") else {
            continue;
        };
        let sync = rest.split(']').next().unwrap_or_default();
        let into = if event.kind == Kind::DmaIn {
            &mut receives
        } else {
            &mut sends
        };
        let last = into.entry((event.rank, sync)).or_insert(f64::MIN);
        *last = last.max(seen.end());
    }
    for message in &story.messages {
        let sent = sends.get(&(message.from, message.sync.as_str()));
        let received = receives.get(&(message.to, message.sync.as_str()));
        let (sent, received) = (sent.context("not sent")?, received.context("not received")?);
        // Host times are whole nanoseconds.
        anyhow::ensure!(received - sent > -0.01, "{message:?}: {sent}, {received}");
    }
    Ok(())
}

#[test]
fn ranks_of_a_chain_are_aligned() -> anyhow::Result<()> {
    aligned(Shape::Chain, Latency::Equal(1.0))
}

#[test]
fn ranks_of_a_ring_are_aligned() -> anyhow::Result<()> {
    aligned(Shape::Ring, Latency::Symmetric(0.3, 2.0))
}

#[test]
fn ranks_of_a_tree_are_aligned() -> anyhow::Result<()> {
    aligned(Shape::Tree, Latency::Symmetric(0.3, 2.0))
}

/// All ranks in one file, as in the shipped sample, give the same as one file each.
#[test]
fn ranks_of_one_file_are_kept_apart() -> anyhow::Result<()> {
    let story = collective(81, Shape::Chain, 4, Latency::Equal(1.0)).make();
    let dir = tempfile::TempDir::new()?;
    Flex::default().write_one(&story, dir.path(), "all.json")?;
    let input = Input::of_folder(dir.path())?;
    let args = format!("-i all.json -o out.json {}", frequency(&story));
    let ran = run_on(Which::Ours, &input, &args)?;
    let trace = ran.json("out.json")?;
    let pairs = pair(&story, &trace, false)?;
    within(&pairs, 2.0)?;
    causal(&story, &pairs)
}

/// The shipped collective of four ranks: every message arrives after it was sent,
/// and around the loop no more than 1.6 us remain.
#[test]
fn shipped_collective_closes() -> anyhow::Result<()> {
    let text = match sample("allreduce_tp4.json") {
        Ok(text) => text,
        Err(reason) => {
            skip("shipped_collective_closes", &reason);
            return Ok(());
        }
    };
    let input = Input::one("allreduce_tp4.json", text);
    let ran = run_on(
        Which::Ours,
        &input,
        "-i allreduce_tp4.json -o out.json --freq 557.05 --keep_names",
    )?;
    let trace = ran.json("out.json")?;
    let mut ends: BTreeMap<(u64, String, bool), f64> = BTreeMap::new();
    for event in events(&trace)?.iter().filter(|event| event["ph"] == "X") {
        let name = event["name"].as_str().unwrap_or_default();
        let Some((_, rest)) = name.split_once("[sync=") else {
            continue;
        };
        let sync = rest.split(']').next().unwrap_or_default().to_owned();
        let rank = event["args"]["rank"].as_u64().context("no rank")?;
        let end =
            event["ts"].as_f64().context("no ts")? + event["dur"].as_f64().context("no dur")?;
        let last = ends
            .entry((rank, sync, name.ends_with("DmaI")))
            .or_insert(f64::MIN);
        *last = last.max(end);
    }
    let end = |rank: u64, sync: &str, received: bool| {
        let key = (rank, format!("AllReduce_all_reduce_4_{sync}"), received);
        ends.get(&key)
            .copied()
            .with_context(|| format!("no {key:?}: {ends:?}"))
    };
    let mut loop_us = 0.0;
    for (from, to, sync) in [
        (0, 1, "s0_r1_0"),
        (1, 2, "s1_r2_2"),
        (2, 3, "s2_r3_4"),
        (3, 0, "s3_r0x7_6"),
        (3, 1, "s3_r0x7_6"),
        (3, 2, "s3_r0x7_6"),
    ] {
        let latency = end(to, sync, true)? - end(from, sync, false)?;
        anyhow::ensure!(
            (-0.01..=1.6).contains(&latency),
            "{from} to {to}: {latency} us"
        );
        if to == from + 1 || to == 0 {
            loop_us += latency;
        }
    }
    anyhow::ensure!(loop_us.abs() <= 1.6, "{loop_us} us remain");
    Ok(())
}

/// The span of the shipped collective, from its counters alone. It goes from the first end of the
/// compute kernel to the last event's end, after each receive is laid on its send.
fn shipped_span_us(text: &[u8]) -> anyhow::Result<f64> {
    let all: Vec<Value> = serde_json::from_slice(text)?;
    // The end of the event by its kind, in its rank's own microseconds.
    let end = |rank: u64, what: &str, counter: &str| -> anyhow::Result<f64> {
        let is = |event: &&Value| {
            let name = event["name"].as_str().unwrap_or_default();
            event["ph"] == "B" && event["pid"] == rank && name.contains(what)
        };
        let ends = all.iter().filter(is).filter_map(|event| {
            event["attr"][counter]
                .as_str()
                .and_then(|text| text.parse::<f64>().ok())
        });
        let last = ends.fold(f64::MIN, f64::max);
        anyhow::ensure!(last > 0.0, "no {what} on rank {rank}");
        Ok(last / 557.05)
    };
    let mut offset = 0.0;
    let (mut first, mut last) = (f64::MAX, f64::MIN);
    for (rank, received, sent) in [
        (0, "", "s0_r1_0] DmaO"),
        (1, "s0_r1_0] DmaI", "s1_r2_2] DmaO"),
        (2, "s1_r2_2] DmaI", "s2_r3_4] DmaO"),
        (
            3,
            "s2_r3_4] DmaI",
            "Data [sync=AllReduce_all_reduce_4_s3_r0x7_6] DmaO",
        ),
    ] {
        if rank > 0 {
            // `last` is still the sender's end of sending.
            offset = last - end(rank, received, "TS2")?;
        }
        first = first.min(offset + end(rank, "add_11 Cmpt Exec", "TS4")?);
        last = offset + end(rank, sent, "TS5")?;
    }
    Ok(last - first)
}

/// The bandwidth of the shipped collective, with all ranks where they belong.
#[test]
fn shipped_collective_bandwidth() -> anyhow::Result<()> {
    let text = match sample("allreduce_tp4.json") {
        Ok(text) => text,
        Err(reason) => {
            skip("shipped_collective_bandwidth", &reason);
            return Ok(());
        }
    };
    // Each byte goes once there and once back between neighbours: 2 (4 - 1) times.
    let truth = 6.0 * 524_288.0 / shipped_span_us(&text)? / 1000.0;
    let input = Input::one("allreduce_tp4.json", text);
    let args = "-i allreduce_tp4.json -o out.json --freq 557.05 --flow -R";
    let ran = run_on(Which::Ours, &input, args)?;
    let trace = ran.json("out.json")?;
    let shown = events(&trace)?
        .iter()
        .filter_map(|event| event["args"]["GBps"].as_f64());
    let most = shown.fold(f64::MIN, f64::max);
    // The loop closes to 1.6 of some 250 us.
    anyhow::ensure!(
        (most / truth - 1.0).abs() < 0.01,
        "{most}, not {truth} GB/s"
    );
    // Arrows go forward.
    let mut ends: BTreeMap<String, [f64; 2]> = BTreeMap::new();
    for event in events(&trace)? {
        let side = match event["ph"].as_str() {
            Some("s") => 0,
            Some("f") => 1,
            _ => continue,
        };
        let at = event["ts"].as_f64().context("no ts")?;
        ends.entry(event["id"].to_string()).or_insert([f64::NAN; 2])[side] = at;
    }
    assert_eq!(ends.len(), 6, "{ends:?}");
    assert!(ends.values().all(|[s, f]| f - s > -0.02), "{ends:?}");
    ran.file("out_stats_summary.csv").map(drop)
}

/// Both units of the charge counter are recognized and give the power.
#[test]
fn power_of_both_units() -> anyhow::Result<()> {
    for charge in [Charge::Micro, Charge::Nano] {
        let story = Scenario {
            seed: 91,
            charge: Some(charge),
            ..Scenario::default()
        }
        .make();
        for which in [Which::Ours, Which::Analyze] {
            let ran = run(which, &story, Flex::default(), &frequency(&story))?;
            let trace = ran.json("out.json")?;
            power(&story, &trace, 0.002).with_context(|| format!("{which:?} {charge:?}"))?;
        }
    }
    Ok(())
}

/// The shipped sample: 32 to 39 W, as release 1.0.0 found with the right unit.
#[test]
fn power_of_the_shipped_sample() -> anyhow::Result<()> {
    let text = match sample("sample_flex_3062_job_4.json") {
        Ok(text) => text,
        Err(reason) => {
            skip("power_of_the_shipped_sample", &reason);
            return Ok(());
        }
    };
    let input = Input::one("in.json", text);
    let ran = run_on(Which::Ours, &input, "-i in.json -o out.json --freq 557.05")?;
    let trace = ran.json("out.json")?;
    let shown = events(&trace)?
        .iter()
        .filter_map(|event| event["args"]["Watts"].as_f64());
    let shown: Vec<f64> = shown.filter(|watts| *watts > 0.0).collect();
    assert!(shown.len() >= 10, "{shown:?}");
    assert!(
        shown.iter().all(|watts| (30.0..41.0).contains(watts)),
        "{shown:?}"
    );
    Ok(())
}

/// Counters in PyTorch's files are used: begin and duration follow from them.
#[test]
fn torch_counters_are_used() -> anyhow::Result<()> {
    let story = Scenario {
        seed: 101,
        jobs: 3,
        begin_jitter_us: 5.0,
        ..Scenario::default()
    }
    .make();
    for packing in [Packing::None, Packing::Gzip, Packing::Zstd] {
        let dir = tempfile::TempDir::new()?;
        let torch = Torch {
            packing,
            ..Torch::default()
        };
        let paths = torch.write(&story, dir.path())?;
        let name = paths
            .first()
            .and_then(|path| path.file_name())
            .context("no file")?;
        let name = Path::new(name).display();
        let input = Input::of_folder(dir.path())?;
        let args = format!("-i {name} -o out.json {}", frequency(&story));
        let trace = run_on(Which::Ours, &input, &args)?.json("out.json")?;
        within(&pair(&story, &trace, false)?, EXACT_US)?;
        power(&story, &trace, 0.002)?;
    }
    Ok(())
}

/// Without `--freq` the unit of the counters in PyTorch's files is unknown: times stay as they are,
/// and so do sums of them. 1.3.0 does not look at these counters at all.
#[test]
fn torch_times_stay_without_a_frequency() -> anyhow::Result<()> {
    let story = Scenario {
        seed: 103,
        jobs: 2,
        begin_jitter_us: 5.0,
        ..Scenario::default()
    }
    .make();
    let text = Torch::default().text(&story, 0)?;
    let times = |trace: &Value| -> anyhow::Result<Vec<(u64, u64)>> {
        let ns = |event: &Value, key: &str| {
            let us = event[key].as_f64().context("no time");
            us.map(|us| (us * 1000.0).round() as u64)
        };
        let is_device = |event: &&Value| event["cat"] == "kernel" || event["cat"] == "gpu_memcpy";
        let device = events(trace)?.iter().filter(is_device);
        let times = device.map(|event| Ok((ns(event, "ts")?, ns(event, "dur")?)));
        let mut times = times.collect::<anyhow::Result<Vec<_>>>()?;
        times.sort_unstable();
        Ok(times)
    };
    let expected = times(&serde_json::from_str(&text)?)?;
    assert!(expected.len() > 50, "{}", expected.len());
    let input = Input::one("in.json", text);
    for which in [Which::Ours, Which::OursWithBugs] {
        let ran = run_on(which, &input, "-i in.json -o out.json")?;
        assert_eq!(times(&ran.json("out.json")?)?, expected, "{which:?}");
    }
    Ok(())
}

/// Launches of several ranks: every arrow stays within its rank, and every kernel
/// has one.
#[test]
fn torch_launches_stay_within_their_rank() -> anyhow::Result<()> {
    let story = Scenario {
        seed: 111,
        ranks: 3,
        ..Scenario::default()
    }
    .make();
    let dir = tempfile::TempDir::new()?;
    Torch::default().write(&story, dir.path())?;
    let input = Input::of_folder(dir.path())?;
    let args =
        "-i rank0.pt.trace.json,rank1.pt.trace.json,rank2.pt.trace.json -o out.json --freq 557.05";
    let trace = run_on(Which::Ours, &input, args)?.json("out.json")?;
    let all = events(&trace)?;
    let mut launched: BTreeMap<(u64, String), f64> = BTreeMap::new();
    let mut arrows: BTreeMap<String, [Option<&Value>; 2]> = BTreeMap::new();
    for event in all {
        match event["ph"].as_str() {
            Some("s") => arrows.entry(event["id"].to_string()).or_default()[0] = Some(event),
            Some("f") => arrows.entry(event["id"].to_string()).or_default()[1] = Some(event),
            Some("X") if event["name"] == "aiuLaunchControlBlocks" => {
                let rank = event["args"]["rank"].as_u64().context("no rank")?;
                let ts = event["ts"].as_f64().context("no ts")?;
                launched.insert((rank, event["args"]["correlation"].to_string()), ts);
            }
            _ => {}
        }
    }
    let kernels = all.iter().filter(|event| event["cat"] == "kernel");
    let mut count = 0;
    for kernel in kernels {
        let rank = kernel["args"]["rank"].as_u64().context("no rank")?;
        let correlation = kernel["args"]["correlation"].to_string();
        let from = launched.get(&(rank, correlation)).context("not launched")?;
        let arrow = arrows.values().find(|[_, finish]| {
            finish.is_some_and(|f| f["ts"] == kernel["ts"] && f["pid"] == kernel["pid"])
        });
        let [start, _] = arrow.with_context(|| format!("no arrow to {kernel}"))?;
        let start = start.context("half an arrow")?["ts"]
            .as_f64()
            .context("no ts")?;
        anyhow::ensure!(
            (start - from).abs() < 0.002,
            "{kernel}: from {start}, not {from}"
        );
        count += 1;
    }
    assert_eq!(count, 3 * 40);
    // One arrow from the end of each launch's last kernel to the end of its wait.
    let end = |event: &Value| Some(event["ts"].as_f64()? + event["dur"].as_f64()?);
    let waits = all
        .iter()
        .filter(|event| event["name"] == "aiuScheduleWait");
    let mut waited = 0;
    for wait in waits {
        let of_launch = |kernel: &&Value| {
            kernel["cat"] == "kernel"
                && kernel["args"]["rank"] == wait["args"]["rank"]
                && kernel["args"]["correlation"] == wait["args"]["correlation"]
        };
        let last = all
            .iter()
            .filter(of_launch)
            .filter_map(end)
            .fold(f64::MIN, f64::max);
        let near = |event: Option<&Value>, at: f64| {
            event
                .and_then(|e| e["ts"].as_f64())
                .is_some_and(|ts| (ts - at).abs() < 0.003)
        };
        let wait_end = end(wait).context("no end")?;
        let arrow = |[start, finish]: &&[Option<&Value>; 2]| {
            near(*start, last - 0.001) && near(*finish, wait_end)
        };
        assert_eq!(arrows.values().filter(arrow).count(), 1, "{wait}");
        waited += 1;
    }
    assert_eq!(waited, 3 * 5);
    Ok(())
}

/// The counter of pending preparations, also where they overlap and nest.
#[test]
fn pending_preparations() -> anyhow::Result<()> {
    let story = Scenario {
        seed: 6,
        prep_us: (100.0, 900.0),
        ..Scenario::default()
    }
    .make();
    let ran = run(Which::Ours, &story, Flex::default(), &frequency(&story))?;
    let trace = ran.json("out.json")?;
    let preps: Vec<_> = story
        .events
        .iter()
        .filter(|e| e.kind == Kind::Prep)
        .collect();
    // A little after a point, when what changes there has changed.
    let truth = |at: f64| {
        let at = at + 2.0 * EXACT_US;
        preps
            .iter()
            .filter(|prep| prep.start_us <= at && at < prep.end_us)
            .count()
    };
    let mut points = 0;
    let mut most = 0;
    for event in events(&trace)?
        .iter()
        .filter(|event| event["name"] == "ConcurrentPreps")
    {
        let at = event["ts"].as_f64().context("no ts")?;
        let shown = event["args"]["Concurrency"].as_u64().context("no number")? as usize;
        assert_eq!(shown, truth(at), "at {at}");
        points += 1;
        most = most.max(shown);
    }
    // Each begins and ends; acelyzer never shows the last end.
    assert!(points >= 2 * preps.len() - 2, "{points}");
    assert!(most >= 3, "{most}");
    Ok(())
}

/// Events that touch do not overlap, even if their sums of doubles do; others do.
#[test]
fn verification_tells_touching_from_overlapping() -> anyhow::Result<()> {
    for key in ["args", "attr"] {
        let flex = Flex {
            key,
            values: Values::Decimal,
            ..Flex::default()
        };
        let mut story = Scenario {
            seed: 141,
            ..Scenario::default()
        }
        .make();
        let (input, names) = files(&story, flex, ",")?;
        let args = format!("-i {names} -o report.json -V");
        let report = run_on(Which::Ours, &input, &args)?.json("report.json")?;
        assert_eq!(report["result"], "PASS", "{key}: {report}");
        let kernel = story
            .events
            .iter_mut()
            .filter(|e| e.kind == Kind::Exec)
            .nth(7);
        kernel.context("no kernel")?.host_dur_us += 700.0;
        let (input, names) = files(&story, flex, ",")?;
        let ran = Which::Ours.run(&input, &format!("-i {names} -o report.json -V"))?;
        assert_eq!(ran.code, Some(1), "{key}");
        assert_eq!(ran.json("report.json")?["result"], "FAIL", "{key}");
    }
    Ok(())
}

/// Each rank is judged by its own compiler log (with two, acelyzer stops).
#[test]
fn each_rank_has_its_own_log() -> anyhow::Result<()> {
    let scenario = Scenario {
        seed: 131,
        ranks: 2,
        iterations: 1,
        ..Scenario::default()
    };
    let story = scenario.make();
    let first = ideals(&scenario, 1100.0);
    let mut second = first.clone();
    second.iter_mut().for_each(|ideal| ideal.cycles /= 3);
    let (input, names) = files(&story, Flex::default(), ",")?;
    let input = input
        .and("first.log", log(&first))
        .and("second.log", log(&second));
    let args = format!(
        "-i {names} -o out.json {} -c first.log,second.log",
        frequency(&story)
    );
    let trace = run_on(Which::Ours, &input, &args)?.json("out.json")?;
    let mut judged = 0;
    for (event, seen) in pair(&story, &trace, false)? {
        let ideals = if event.rank == 0 { &first } else { &second };
        let kernel = event.name.strip_suffix(" Cmpt Exec");
        let Some(ideal) = ideals.iter().find(|ideal| Some(ideal.kernel) == kernel) else {
            continue;
        };
        let truth = ideal.cycles as f64 / 1100.0 / event.dur_us();
        let active = seen.event["args"]["pt_active"].as_f64().unwrap_or(0.0);
        anyhow::ensure!(
            (active - truth).abs() < 1e-3,
            "{event:?}: {active}, not {truth}"
        );
        judged += 1;
    }
    assert_eq!(judged, 2 * 8);
    Ok(())
}

/// TensorBoard's files: one for each rank, none too few.
#[test]
fn a_file_for_each_rank() -> anyhow::Result<()> {
    let story = collective(121, Shape::Chain, 4, Latency::Equal(1.0)).make();
    let more = format!("{} --tb", frequency(&story));
    let ran = run(Which::Ours, &story, Flex::default(), &more)?;
    for rank in 0..4 {
        let trace = ran.json(&format!("out_worker_{rank}.pt.trace.json"))?;
        let spans = events(&trace)?.iter().filter(|event| event["ph"] == "X");
        let ranks: Vec<_> = spans.map(|event| event["args"]["rank"].as_u64()).collect();
        assert!(!ranks.is_empty());
        assert!(
            ranks.iter().all(|of| *of == Some(rank)),
            "{rank}: {ranks:?}"
        );
    }
    assert!(!ran.files.contains_key("out_worker_4.pt.trace.json"));
    ran.file("out.pt.trace.json").map(drop)
}

/// What `aiprof analyze` reports beside its trace.
fn report(story: &Story, more: &str) -> anyhow::Result<Value> {
    run(Which::Analyze, story, Flex::default(), more)?.json("out_report.json")
}

/// Any frequency, with noise: the estimate is within 0.01 MHz on traces of a second
/// and more, and its bound always holds.
#[test]
fn frequencies_are_found() -> anyhow::Result<()> {
    for seed in 0..20 {
        for (jobs, gap_us) in [(5, 300_000.0), (1, 0.0)] {
            let story = Scenario {
                seed: 1000 + seed,
                jobs,
                gap_us,
                mhz: (400.0, 1500.0),
                start_cycles: None,
                jitter_us: 5.0,
                ..Scenario::default()
            }
            .make();
            let report = report(&story, "")?;
            let clock = &report["clocks"][0];
            let (mhz, bound) = (clock["mhz"].as_f64(), clock["mhz_error"].as_f64());
            let (mhz, bound) = (mhz.context("no mhz")?, bound.context("no bound")?);
            let wrong = (mhz - story.mhz(0)).abs();
            anyhow::ensure!(wrong <= bound, "seed {seed}: {clock}, not {}", story.mhz(0));
            if jobs > 1 {
                anyhow::ensure!(wrong <= 0.01, "seed {seed}: {clock}, not {}", story.mhz(0));
            }
        }
    }
    Ok(())
}

/// A recommended frequency is never worse than the one that was given.
#[test]
fn recommendations_help() -> anyhow::Result<()> {
    let mut given_wrong = 0;
    for seed in 0..20 {
        let story = Scenario {
            seed: 1100 + seed,
            jobs: 4,
            gap_us: 400_000.0,
            mhz: (400.0, 1500.0),
            jitter_us: 5.0,
            ..Scenario::default()
        }
        .make();
        for off in [0.0, 0.05, -0.3, 2.0] {
            let given = story.mhz(0) + off;
            let ran = run(
                Which::Ours,
                &story,
                Flex::default(),
                &format!("--freq {given}"),
            )?;
            let said = format!("{}{}", ran.stdout, ran.stderr);
            let advice = said.split("use: --freq=").nth(1);
            let Some(advice) = advice.and_then(|rest| rest.split_whitespace().next()) else {
                // acelyzer advises from 0.1 MHz on.
                anyhow::ensure!(
                    off.abs() < 0.25,
                    "seed {seed}: no advice at {off} MHz:\n{said}"
                );
                continue;
            };
            let advice: f64 = advice.parse()?;
            let wrong = (advice - story.mhz(0)).abs();
            anyhow::ensure!(
                wrong < off.abs().max(0.001),
                "seed {seed}: {advice} at {off} MHz off"
            );
            given_wrong += 1;
        }
    }
    assert!(given_wrong >= 40, "{given_wrong}");
    Ok(())
}

/// Latencies that differ by direction cannot be distinguished from offsets: the truth lies in the
/// interval that is reported.
#[test]
fn intervals_of_ranks_hold_the_truth() -> anyhow::Result<()> {
    for (seed, shape) in [(1, Shape::Chain), (2, Shape::Ring), (3, Shape::Tree)] {
        for ranks in [2, 4, 16] {
            let latency = Latency::Directed(0.5, 30.0);
            let story = collective(1200 + seed, shape, ranks, latency).make();
            let report = report(&story, &frequency(&story))?;
            let shifts = report["ranks"]["shifts"].as_array().context("no shifts")?;
            assert_eq!(shifts.len(), ranks);
            for shift in shifts {
                let rank = shift["rank"].as_u64().context("no rank")? as usize;
                let truth = -story.ranks[rank].offset_us;
                let number = |key: &str| {
                    shift[key]
                        .as_f64()
                        .with_context(|| format!("no {key}: {shift}"))
                };
                let (least, us, most) = (number("least_us")?, number("us")?, number("most_us")?);
                let near = 0.01;
                anyhow::ensure!(
                    least - near <= truth && truth <= most + near,
                    "{shape:?} of {ranks}: {shift}, not {truth}"
                );
                anyhow::ensure!(least - near <= us && us <= most + near, "{shift}");
                // A loop of messages leaves no more than they take.
                anyhow::ensure!(most - least <= 31.0 * 2.0 * ranks as f64, "{shift}");
            }
            assert_eq!(
                report["ranks"]["contradiction_us"].as_f64().map(f64::round),
                Some(0.0)
            );
        }
    }
    Ok(())
}

/// A rank without messages is named, not guessed.
#[test]
fn a_rank_without_messages_is_marked() -> anyhow::Result<()> {
    let mut story = collective(1300, Shape::Chain, 3, Latency::Equal(1.0)).make();
    let mute = |event: &Event| event.rank == 2 && event.name.contains("[sync=");
    story.events.retain(|event| !mute(event));
    let to_mute = |event: &Event| event.name.contains("r2_") || event.name.contains("_s2_");
    story.events.retain(|event| !to_mute(event));
    let report = report(&story, &frequency(&story))?;
    let shifts = report["ranks"]["shifts"].as_array().context("no shifts")?;
    let lost = shifts
        .iter()
        .find(|shift| shift["rank"] == 2)
        .context("no rank 2")?;
    assert!(lost["us"].is_null(), "{lost}");
    let text = report["findings"].to_string();
    assert!(text.contains("rank 2"), "{text}");
    Ok(())
}

/// Which jobs were moved, by how much, within which error.
#[test]
fn shifts_of_jobs_are_reported() -> anyhow::Result<()> {
    for shift in [50_000.0, -50_000.0] {
        let story = Scenario {
            seed: 1400,
            jobs: 3,
            jitter_us: 0.5,
            shifts_us: vec![(1, shift)],
            ..Scenario::default()
        }
        .make();
        let report = report(&story, &frequency(&story))?;
        let jobs = report["jobs"].as_array().context("no jobs")?;
        assert_eq!(jobs.len(), 1, "{jobs:?}");
        let job = &jobs[0];
        assert_eq!(job["state"], "moved", "{job}");
        assert!(
            job["path"]
                .as_str()
                .is_some_and(|path| path.contains("job1")),
            "{job}"
        );
        let by = job["by_us"].as_f64().context("no by_us")?;
        let error = job["error_us"].as_f64().context("no error_us")?;
        assert!((by + shift).abs() <= 1.0, "{job}");
        assert!((by + shift).abs() <= error, "{job}");
    }
    Ok(())
}

/// A counter that jumps between jobs is no other frequency.
#[test]
fn steps_of_the_counter_are_found() -> anyhow::Result<()> {
    for cycles in [300_000_000, -300_000_000] {
        let story = Scenario {
            seed: 1500,
            jobs: 6,
            jitter_us: 1.0,
            gap_us: 200_000.0,
            step: Some((0.5, cycles)),
            charge: None,
            ..Scenario::default()
        }
        .make();
        let ran = run(Which::Analyze, &story, Flex::default(), "")?;
        let report = ran.json("out_report.json")?;
        let clock = &report["clocks"][0];
        assert_eq!(clock["steps"], 1, "{clock}");
        let mhz = clock["mhz"].as_f64().context("no mhz")?;
        assert!((mhz - story.mhz(0)).abs() < 0.01, "{clock}");
        // Each event is as good as the host's own note of its end.
        let trace = ran.json("out.json")?;
        within(&pair(&story, &trace, false)?, 1.1)?;
    }
    Ok(())
}

/// A clock that slowly drifts: times follow it.
#[test]
fn drifting_clocks_are_followed() -> anyhow::Result<()> {
    let story = Scenario {
        seed: 1600,
        jobs: 6,
        gap_us: 500_000.0,
        jitter_us: 1.0,
        drift_ppm_per_s: 3.0,
        charge: None,
        ..Scenario::default()
    }
    .make();
    let ran = run(Which::Analyze, &story, Flex::default(), "")?;
    let trace = ran.json("out.json")?;
    within(&pair(&story, &trace, false)?, 1.2)
}

/// The unit of the charge counter is named, and each kernel's energy is true.
#[test]
fn power_and_energy_are_reported() -> anyhow::Result<()> {
    for (charge, factor) in [(Charge::Micro, 1.0), (Charge::Nano, 5.37 / 1000.0)] {
        let story = Scenario {
            seed: 1700,
            charge: Some(charge),
            ..Scenario::default()
        }
        .make();
        let report = report(&story, &frequency(&story))?;
        let found = report["power"]["factor"].as_f64().context("no factor")?;
        assert!((found / factor - 1.0).abs() < 1e-6, "{charge:?}: {found}");
        let mut truth: BTreeMap<String, f64> = BTreeMap::new();
        for event in story.events.iter().filter(|event| event.kind == Kind::Exec) {
            // Its reading is at its end.
            let power = story
                .power
                .iter()
                .find(|power| (power.end_us - event.end_us).abs() < 1e-6);
            let watts = power.context("no power")?.watts;
            let name: String = event.name.chars().filter(|c| c.is_alphabetic()).collect();
            *truth.entry(name).or_default() += watts * event.dur_us() * 1e-6;
        }
        let kernels = report["kernels"].as_array().context("no kernels")?;
        let mut checked = 0;
        for kernel in kernels {
            let name = kernel["name"]
                .as_str()
                .context("no name")?
                .replace("[N]", "");
            let name: String = name.chars().filter(|c| c.is_alphabetic()).collect();
            let Some(joules) = truth.get(&name) else {
                continue;
            };
            let found = kernel["joules"]
                .as_f64()
                .with_context(|| kernel.to_string())?;
            anyhow::ensure!((found / joules - 1.0).abs() < 0.01, "{kernel}: {joules} J");
            checked += 1;
        }
        assert_eq!(checked, 8, "{kernels:?}");
    }
    Ok(())
}

/// Kernels and iterations as they were made.
#[test]
fn kernels_and_iterations_are_reported() -> anyhow::Result<()> {
    let scenario = Scenario {
        seed: 1800,
        jobs: 2,
        ..Scenario::default()
    };
    let story = scenario.make();
    let report = report(&story, &frequency(&story))?;
    let kernels = report["kernels"].as_array().context("no kernels")?;
    let calls = |kernel: &Value| kernel["lengths"]["calls"].as_u64();
    assert_eq!(kernels.iter().filter_map(calls).sum::<u64>(), 80);
    let total = |kernel: &Value| kernel["lengths"]["total_us"].as_f64();
    let total: f64 = kernels.iter().filter_map(total).sum();
    let truth = story.events.iter().filter(|event| event.kind == Kind::Exec);
    let truth: f64 = truth.map(Event::dur_us).sum();
    assert!((total - truth).abs() < 0.3, "{total}, not {truth}");
    let active = &report["active"][0];
    let busy = |key: &str| active[key].as_f64().context("no time");
    assert!((busy("kernel_us")? - truth).abs() < 0.3, "{active}");
    let works = [Kind::Exec, Kind::DmaIn, Kind::DmaOut];
    let device = story.events.iter().filter(|event| works.contains(&event.kind));
    let truth = covered(device.map(|event| (event.start_us, event.end_us)).collect());
    assert!((busy("busy_us")? - truth).abs() < 0.3, "{truth}: {active}");
    let iterations = &report["iterations"][0];
    assert_eq!(iterations["kernels_each"], 8, "{iterations}");
    let count = iterations["count"].as_u64().context("no count")?;
    assert!((7..=10).contains(&count), "{iterations}");
    Ok(())
}

/// Perfetto's reader of our own trace is tested elsewhere; here: HTML stands alone.
#[test]
fn the_page_needs_nothing_else() -> anyhow::Result<()> {
    let story = Scenario::default().make();
    let ran = run(Which::Analyze, &story, Flex::default(), "")?;
    let page = String::from_utf8_lossy(ran.file("out_report.html")?).into_owned();
    for outside in ["http://", "https://", "src=\"", "@import", "<link"] {
        let places: Vec<_> = page.match_indices(outside).map(|(at, _)| at).collect();
        // A name of a format is no address, and an icon may be in the page.
        let inside = ["http://www.w3.org/", "<link rel=\"icon\" href=\"data:"];
        let named = |at: &usize| inside.iter().any(|text| page[*at..].starts_with(text));
        assert!(places.iter().all(named), "{outside}: {:?}", places.first());
    }
    for kernel in ["convolution", "add", "relu"] {
        assert!(page.contains(kernel), "{kernel}");
    }
    Ok(())
}
