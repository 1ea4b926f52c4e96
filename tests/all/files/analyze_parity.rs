//! `aiprof acelyzer` writes what acelyzer 1.3.0 writes, wherever that is right: each
//! case is one command line, run by both in a folder with the same files.
//!
//! A case may name differences that are intended, each with the reason. Where the original is
//! wrong, `analyze_truth.rs` defines what is right. Without a network to fetch the original from,
//! the cases are skipped.

use anyhow::Context as _;

use aiprof_tests::acelyzer::trace::TIME_US;
use aiprof_tests::acelyzer::{Input, Which, differences, run, sample};
use aiprof_tests::aiu_trace::compiler::{cache, ideals, log};
use aiprof_tests::aiu_trace::flex::Pairs;
use aiprof_tests::aiu_trace::json::Values;
use aiprof_tests::aiu_trace::judge::events;
use aiprof_tests::aiu_trace::scenario::{Charge, Collectives};
use aiprof_tests::aiu_trace::{Flex, Latency, Scenario, Shape, Torch};
use aiprof_tests::need::skip;
use serde_json::{Value, json};

/// Differences that every case may have.
const ALWAYS: [&str; 3] = [
    // Its estimate of the frequency mixes two counters.
    "FREQ: Recommendation",
    // It counts every event of FLEX files.
    "CAT: Found",
    // It is printed for nearly every trace: a test of its own, `reference_epoch`.
    "OVC: reference epoch had to be updated",
];
/// Names without a time are legal; the original drops them.
const NAMES: [&str; 2] = ["Event failed sanityCheck", "out.json: M "];

/// The charge counter of the shipped samples counts another unit than 1.3.0 takes
/// it for: it finds more than 100 W everywhere and writes 0.
const OLD_CHARGE: [&str; 2] = ["args.Watts", "bad power events"];
/// Frequencies between events ignore that the counter wraps.
const WRAPS: [&str; 1] = ["Event-interval-based"];
/// With the autopilot on, the total is counted twice; and one behind tabs, as the
/// compiler writes it, is none, so that jobs have no utilization. Ours is the sum of rows.
const AUTOPILOT: [&str; 2] = ["out_categories", "C \"PT Active\""];
/// Where no event is the host's, the original names the device's process a second
/// time, `cpu_default`.
const NO_HOST: [&str; 2] = [
    "cpu_default",
    "M \"process_sort_index\" pid 0 tid null: count",
];
/// Without a step of the host, TensorBoard shows one of -2^64 us: ours has one, on a row of the
/// host.
const STEPS: [&str; 3] = [
    "ProfilerStep#0",
    "Host0",
    "M \"process_sort_index\" pid 1000 tid null: count",
];
/// Bandwidth of collectives died when `Bytes` was renamed.
const BANDWIDTH: [&str; 2] = ["C \"BW all", " pid -1 "];
/// If preparations end while an earlier one is pending, it forgets one:
/// `analyze_truth::pending_preparations`.
const PREPS: [&str; 1] = ["\"ConcurrentPreps\""];
/// Its tables know kernels by FLEX names only: they are empty for PyTorch's files.
const TORCH_TABLES: [&str; 3] = ["out_summary.csv", "out_active.csv", "out_ts_analysis.csv"];
/// Spans of two files in one row: the original moves one away, and then gives it the
/// old row's name again.
const SPANS: [&str; 1] = ["\"PyTorch Profiler (0)\" pid \"Spans\""];
/// Arrows from launches are not separated by rank; those to the wait for a launch are thrown away
/// before they are written: `analyze_truth::torch_launches_*`.
const ARROWS: [&str; 1] = ["flow "];

/// It calls microseconds milliseconds.
const POWER_UNITS: [&str; 2] = ["Power with kernels", "Power without kernels"];
/// Parts of a split event end half a tick early, rounded to nanoseconds: what is counted
/// from there is that much off.
const SPLIT_ENDS: [&str; 1] = ["args.Watts"];
/// It rounds ends to a tenth of a nanosecond, but not begins: some of what touches
/// overlaps then, and moves to another row.
const TOUCHING: [&str; 3] = ["Partial-overlap", "SenRdmaRecv [sync", "1.tid"];

/// Prints what differs, and fails.
fn check(
    name: &str,
    input: Result<Input, String>,
    args: &str,
    intended: &[&str],
) -> anyhow::Result<()> {
    let input = match input.and_then(|input| run::original().map(|_| input)) {
        Ok(input) => input,
        Err(reason) => {
            skip(name, &reason);
            return Ok(());
        }
    };
    let theirs = Which::Original.run(&input, args)?;
    anyhow::ensure!(
        !theirs.stderr.contains("Traceback"),
        "the original crashes, so this is no case:\n{}",
        theirs.stderr
    );
    let ours = Which::Ours.run(&input, args)?;
    let intended: Vec<&str> = ALWAYS.iter().chain(intended).copied().collect();
    let found = differences(&theirs, &ours, &intended);
    anyhow::ensure!(found.is_empty(), "acelyzer {args}\n{}", found.join("\n"));
    Ok(())
}

macro_rules! parity {
    ($($name:ident: $input:expr, $args:expr $(, $intended:expr)*;)*) => {
        $(
            #[test]
            fn $name() -> anyhow::Result<()> {
                let intended: &[&[&str]] = &[$(&$intended[..]),*];
                check(stringify!($name), $input, $args, &intended.concat())
            }
        )*
    };
}

/// These files of the shipped samples.
fn samples(names: &[&str]) -> Result<Input, String> {
    names.iter().try_fold(Input::default(), |input, name| {
        Ok(input.and(name, sample(name)?))
    })
}

/// The shipped collective, one file for each rank: the original takes all ranks of
/// one file for the first.
fn split_collective() -> Result<Input, String> {
    let all: Vec<Value> =
        serde_json::from_slice(&sample("allreduce_tp4.json")?).map_err(|e| e.to_string())?;
    let of_rank = |rank: u64| {
        let events: Vec<_> = all.iter().filter(|event| event["pid"] == rank).collect();
        json!(events).to_string()
    };
    Ok((0..4).fold(Input::default(), |input, rank| {
        input.and(&format!("rank{rank}.json"), of_rank(rank))
    }))
}

fn written(
    scenario: &Scenario,
    write: &dyn Fn(&std::path::Path) -> anyhow::Result<()>,
) -> Result<Input, String> {
    let fill = || -> anyhow::Result<Input> {
        let dir = tempfile::TempDir::new()?;
        let ideals = ideals(scenario, 1100.0);
        std::fs::write(dir.path().join("compiler.log"), log(&ideals))?;
        cache(&ideals, dir.path())?;
        write(dir.path())?;
        Input::of_folder(dir.path())
    };
    fill().map_err(|error| format!("{error:#}"))
}

fn flex(scenario: &Scenario, flex: Flex) -> Result<Input, String> {
    written(scenario, &|dir| flex.write(&scenario.make(), dir).map(drop))
}

fn torch(scenario: &Scenario) -> Result<Input, String> {
    let torch = Torch {
        counters: false,
        ..Torch::default()
    };
    written(scenario, &|dir| {
        torch.write(&scenario.make(), dir).map(drop)
    })
}

fn jobs(seed: u64, jobs: usize) -> Scenario {
    Scenario {
        seed,
        jobs,
        ..Scenario::default()
    }
}

/// Three jobs of one rank, with the compiler's log.
fn three() -> Result<Input, String> {
    flex(&jobs(3, 3), Flex::default())
}

/// One job that runs each kernel once, as in its log.
fn once() -> Result<Input, String> {
    let scenario = Scenario {
        iterations: 1,
        ..jobs(4, 1)
    };
    flex(&scenario, Flex::default())
}

/// The same with other logs: of two phases, of the autopilot, with obsolete lines.
fn logs() -> Result<Input, String> {
    let scenario = Scenario {
        iterations: 1,
        ..jobs(4, 2)
    };
    let ideals = ideals(&scenario, 1100.0);
    let mut halved = ideals.clone();
    halved.iter_mut().for_each(|ideal| ideal.cycles /= 2);
    let (whole, half) = (log(&ideals), log(&halved));
    let phases = format!("   PREFILL   \n{whole}   DECODING   \n{half}");
    let autopilot = format!("[DeepRT] ===== DSM-AutoPilot BEGIN =====\n{whole}");
    let scaled = format!("Ideal Clock Scaling: 2\n{whole}add_2-NA    77\nlone    55\n");
    let twice = whole.replace(
        "====== Perf Summary End",
        "add_2-opCatBroadcast    99\n====== Perf Summary End",
    );
    Ok(flex(&scenario, Flex::default())?
        .and("phases.log", phases)
        .and("autopilot.log", autopilot)
        .and("scaled.log", scaled)
        .and("twice.log", twice))
}

fn noisy() -> Result<Input, String> {
    let scenario = Scenario {
        jitter_us: 4.0,
        begin_jitter_us: 6.0,
        ..jobs(5, 2)
    };
    flex(&scenario, Flex::default())
}

/// Preparations that overlap each other.
fn prepared() -> Result<Input, String> {
    let scenario = Scenario {
        prep_us: (100.0, 900.0),
        ..jobs(6, 1)
    };
    flex(&scenario, Flex::default())
}

/// Jobs eleven seconds apart: the counter wraps between them.
fn wrapping() -> Result<Input, String> {
    let scenario = Scenario {
        gap_us: 11_000_000.0,
        ..jobs(7, 6)
    };
    flex(&scenario, Flex::default())
}

fn form(pairs: Pairs, values: Values, key: &'static str) -> Result<Input, String> {
    let form = Flex {
        pairs,
        values,
        key,
        ..Flex::default()
    };
    flex(&jobs(8, 1), form)
}

fn ranks(shape: Shape, ranks: usize) -> Scenario {
    Scenario {
        ranks,
        offset_us: 300.0,
        collectives: Some(Collectives {
            shape,
            groups: 2,
            latency: Latency::Equal(1.0),
        }),
        ..jobs(9, 1)
    }
}

fn chain() -> Result<Input, String> {
    flex(&ranks(Shape::Chain, 4), Flex::default())
}

/// Launches of two ranks.
fn two_torch() -> Result<Input, String> {
    torch(&Scenario {
        ranks: 2,
        ..jobs(11, 1)
    })
}

const SAMPLE: &str = "sample_flex_3062_job_4.json";

parity! {
    // The shipped samples.
    sample_basic: samples(&["basic_event_test_cases.json"]), "-i basic_event_test_cases.json -o out.json";
    sample_basic_drop: samples(&["basic_event_test_cases.json"]), "-i basic_event_test_cases.json -o out.json -O drop";
    sample_basic_warn: samples(&["basic_event_test_cases.json"]), "-i basic_event_test_cases.json -o out.json -O warn";
    sample_basic_shift: samples(&["basic_event_test_cases.json"]), "-i basic_event_test_cases.json -o out.json -O shift";
    sample_basic_streams: samples(&["basic_event_test_cases.json"]), "-i basic_event_test_cases.json -o out.json --max_tid_streams 2";
    sample_flex: samples(&[SAMPLE]), "-i sample_flex_3062_job_4.json -o out.json", OLD_CHARGE, NO_HOST;
    sample_flex_frequency: samples(&[SAMPLE]), "-i sample_flex_3062_job_4.json -o out.json --freq 557.05", OLD_CHARGE, NO_HOST;
    sample_flex_log: samples(&[SAMPLE, "sample_comp_log_ideal.txt"]), "-i sample_flex_3062_job_4.json -o out.json -c sample_comp_log_ideal.txt", OLD_CHARGE, NO_HOST;
    sample_flex_old_log: samples(&[SAMPLE, "dt_cycles_table.log"]), "-i sample_flex_3062_job_4.json -o out.json -c dt_cycles_table.log", OLD_CHARGE, NO_HOST;
    sample_flex_ts3: samples(&[SAMPLE]), "-i sample_flex_3062_job_4.json -o out.json -C power_ts3", NO_HOST;
    sample_flex_tb: samples(&[SAMPLE]), "-i sample_flex_3062_job_4.json -o out.json --tb", OLD_CHARGE, NO_HOST, STEPS;
    sample_names_only: samples(&["meta_events_only.json"]), "-i meta_events_only.json -o out.json", NAMES;
    sample_collective_unaligned: split_collective(), "-i rank0.json,rank1.json,rank2.json,rank3.json -o out.json -M", OLD_CHARGE, NO_HOST, BANDWIDTH;
    sample_collective_flow: split_collective(), "-i rank0.json,rank1.json,rank2.json,rank3.json -o out.json -M --flow", OLD_CHARGE, NO_HOST, BANDWIDTH;
    sample_collective_sequences: split_collective(), "-i rank0.json,rank1.json,rank2.json,rank3.json -o out.json -M --comm_summarize_seq", OLD_CHARGE, NO_HOST, BANDWIDTH;
    sample_collective_one_rank: split_collective(), "-i rank2.json -o out.json", OLD_CHARGE, NO_HOST, BANDWIDTH;

    // Three jobs, one option after the other.
    jobs_plain: three(), "-i rank0_job0.json,rank0_job1.json,rank0_job2.json -o out.json --freq 557.05";
    jobs_default_frequency: three(), "-i rank0_job0.json,rank0_job1.json,rank0_job2.json -o out.json";
    jobs_both_frequencies: three(), "-i rank0_job0.json,rank0_job1.json,rank0_job2.json -o out.json --freq 560:1000 -c compiler.log";
    jobs_separated_by_spaces: three(), "-i 'rank0_job0.json rank0_job1.json' -o out.json --freq 557.05";
    jobs_reversed: three(), "-i rank0_job2.json,rank0_job0.json -o out.json --freq 557.05";
    jobs_log: three(), "-i rank0_job0.json,rank0_job1.json,rank0_job2.json -o out.json --freq 557.05 -c compiler.log";
    jobs_cache: three(), "-i rank0_job0.json,rank0_job1.json,rank0_job2.json -o out.json --freq 557.05 -c cache";
    jobs_only_power: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 -C power_ts4";
    jobs_power_ts3: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 -C power_ts3";
    jobs_only_preps: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 -C prep_queue";
    jobs_only_utilization: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 -C rcu_util -c compiler.log";
    jobs_only_collectives: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 -C coll_bw";
    jobs_two_counters: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 -C power_ts4 prep_queue";
    jobs_power_skips: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 -k";
    jobs_power_statistics: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 --power-stats", POWER_UNITS;
    jobs_keep_prep: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 --keep_prep";
    jobs_drop_globals: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 --drop_globals";
    jobs_split: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 -s", SPLIT_ENDS;
    jobs_filter_spans: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 -F X";
    jobs_filter_counters: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 -F C";
    jobs_filter_names: three(), "-i rank0_job0.json -o out.json --freq 557.05 --event_filter 'name:Dma[IO]$'";
    jobs_filter_args: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 --event_filter 'args.jobname:job1,name:mean'";
    jobs_filter_damaged: three(), "-i rank0_job0.json -o out.json --freq 557.05 --event_filter 'name,name:mean'";
    jobs_limit_count: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 --event_limit '{\"skip\": 5, \"count\": 30}'", NO_HOST;
    jobs_limit_time: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 --event_limit '{\"ts_start\": 1000005000, \"ts_end\": 1000009000.5}'";
    jobs_limit_unknown: three(), "-i rank0_job0.json -o out.json --event_limit '{\"skips\": 5}'";
    jobs_limit_no_json: three(), "-i rank0_job0.json -o out.json --event_limit 5,6";
    jobs_no_statistics: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 -t";
    jobs_tb: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 --tb";
    jobs_tb_log: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 --tb -c compiler.log";
    jobs_tb_names: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 --tb --keep_names";
    jobs_tb_off: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 --disable_tb";
    jobs_names: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 --keep_names";
    jobs_default_output: three(), "-i rank0_job0.json --freq 557.05";
    jobs_default_output_tb_off: three(), "-i rank0_job0.json --freq 557.05 --disable_tb";
    jobs_milliseconds: three(), "-i rank0_job0.json -o out.json --freq 557.05 --time_unit ms";
    jobs_no_file: three(), "-i rank0_job0.json -o out.json --freq 557.05 --disable_file";
    jobs_ignore_critical: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 --ignore_crit";
    jobs_unaligned: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 -M";
    jobs_unaligned_preps: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 -M --keep_prep";
    jobs_shift_nothing: three(), "-i rank0_job0.json,rank0_job1.json,rank0_job2.json -o out.json --freq 557.05 --flex_ts_fix";
    jobs_flow: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 --flow";
    jobs_sequences: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 --comm_summarize_seq";
    jobs_overlap_drop: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 -O drop";
    jobs_overlap_warn: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 -O warn";
    jobs_overlap_shift: three(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 -O shift";
    jobs_errors_only: three(), "-i rank0_job0.json -o out.json --freq 557.05 -D 0";
    jobs_warnings_only: three(), "-i rank0_job0.json -o out.json -D 1";
    jobs_table: three(), "-i rank0_job0.json,rank0_job1.json -o out.txt --freq 557.05 -f pddf";
    jobs_verified: three(), "-i rank0_job0.json,rank0_job1.json -o report.json -V";
    jobs_verified_text: three(), "-i rank0_job0.json,rank0_job1.json -o report.txt -V -f text", ["Input:"];
    jobs_folder: three(), "-i './rank0_job1.json' -o ./out.json --freq 557.05";

    // Other files.
    once_log: once(), "-i rank0_job0.json -o out.json --freq 557.05 -c compiler.log";
    once_cache: once(), "-i rank0_job0.json -o out.json --freq 557.05 -c cache";
    once_other_core: once(), "-i rank0_job0.json -o out.json --freq 557.05:900 -c compiler.log";
    log_of_phases: logs(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 -c phases.log";
    log_of_autopilot: logs(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 -c autopilot.log", AUTOPILOT;
    log_with_obsolete_lines: logs(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 -c scaled.log";
    log_with_a_kernel_twice: logs(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 -c twice.log";
    noise: noisy(), "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05 -c compiler.log";
    preps_overlap: prepared(), "-i rank0_job0.json -o out.json --freq 557.05", PREPS;
    preps_overlap_kept: prepared(), "-i rank0_job0.json -o out.json --freq 557.05 --keep_prep --max_tid_streams 40", PREPS;
    preps_overlap_dropped: prepared(), "-i rank0_job0.json -o out.json --freq 557.05 --keep_prep -O drop", PREPS;
    preps_overlap_warned: prepared(), "-i rank0_job0.json -o out.json --freq 557.05 --keep_prep -O warn", PREPS;
    wraps_between_jobs: wrapping(), "-i rank0_job0.json,rank0_job1.json,rank0_job2.json,rank0_job3.json,rank0_job4.json,rank0_job5.json -o out.json --freq 557.05", WRAPS;
    complete_decimal: form(Pairs::Complete, Values::Decimal, "args"), "-i rank0_job0.json -o out.json --freq 557.05";
    complete_hex: form(Pairs::Complete, Values::Hex, "attr"), "-i rank0_job0.json -o out.json --freq 557.05";
    pairs_decimal_args: form(Pairs::Adjacent, Values::Decimal, "args"), "-i rank0_job0.json -o out.json --freq 557.05";

    // Several ranks, not moved.
    chain_unaligned: chain(), "-i rank0_job0.json,rank1_job0.json,rank2_job0.json,rank3_job0.json -o out.json --freq 557.05 -M", BANDWIDTH;
    chain_flow: chain(), "-i rank0_job0.json,rank1_job0.json,rank2_job0.json,rank3_job0.json -o out.json --freq 557.05 -M --flow", BANDWIDTH;
    chain_sequences: chain(), "-i rank0_job0.json,rank1_job0.json,rank2_job0.json,rank3_job0.json -o out.json --freq 557.05 -M --comm_summarize_seq", BANDWIDTH;
    chain_log: chain(), "-i rank0_job0.json,rank1_job0.json,rank2_job0.json,rank3_job0.json -o out.json --freq 557.05 -M -c compiler.log", BANDWIDTH;
    chain_drop_globals: chain(), "-i rank0_job0.json,rank1_job0.json,rank2_job0.json,rank3_job0.json -o out.json --freq 557.05 -M --drop_globals --keep_names", BANDWIDTH;
    chain_power_ts3: chain(), "-i rank0_job0.json,rank1_job0.json,rank2_job0.json,rank3_job0.json -o out.json --freq 557.05 -M -C power_ts3 prep_queue";
    ring_flow: flex(&ranks(Shape::Ring, 3), Flex::default()), "-i rank0_job0.json,rank1_job0.json,rank2_job0.json -o out.json --freq 557.05 -M --flow", BANDWIDTH, TOUCHING;
    tree_flow: flex(&ranks(Shape::Tree, 5), Flex::default()), "-i rank0_job0.json,rank1_job0.json,rank2_job0.json,rank3_job0.json,rank4_job0.json -o out.json --freq 557.05 -M --flow", BANDWIDTH;

    // PyTorch's files.
    torch_plain: torch(&jobs(10, 2)), "-i rank0.pt.trace.json -o out.json", TORCH_TABLES, ARROWS;
    torch_tb: torch(&jobs(10, 2)), "-i rank0.pt.trace.json -o out.json --tb", TORCH_TABLES, ARROWS, STEPS;
    torch_tb_log: torch(&jobs(10, 2)), "-i rank0.pt.trace.json -o out.json --tb -c compiler.log", TORCH_TABLES, ARROWS, STEPS;
    torch_log: torch(&jobs(10, 1)), "-i rank0.pt.trace.json -o out.json -c compiler.log", TORCH_TABLES, ARROWS;
    torch_cache: torch(&jobs(10, 1)), "-i rank0.pt.trace.json -o out.json -c cache", TORCH_TABLES, ARROWS;
    torch_once: torch(&Scenario { iterations: 1, ..jobs(10, 1) }), "-i rank0.pt.trace.json -o out.json -c compiler.log", TORCH_TABLES, ARROWS;
    torch_names: torch(&jobs(10, 1)), "-i rank0.pt.trace.json -o out.json --keep_names", TORCH_TABLES, ARROWS;
    torch_tb_off: torch(&jobs(10, 1)), "-i rank0.pt.trace.json -o out.json --disable_tb", TORCH_TABLES, ARROWS;
    torch_filter: torch(&jobs(10, 1)), "-i rank0.pt.trace.json -o out.json -F Xsf", TORCH_TABLES, ARROWS;
    torch_limit: torch(&jobs(10, 1)), "-i rank0.pt.trace.json -o out.json --event_limit '{\"count\": 40, \"no_count_types\": \"Msf\"}'", TORCH_TABLES, ARROWS;
    torch_verified: torch(&jobs(10, 2)), "-i rank0.pt.trace.json -o report.json -V";
    torch_table: torch(&jobs(10, 1)), "-i rank0.pt.trace.json -o out.txt -f pddf", TORCH_TABLES;
    torch_ranks: two_torch(), "-i rank0.pt.trace.json,rank1.pt.trace.json -o out.json", ARROWS, TORCH_TABLES, SPANS;

    // Wrong command lines: the same status.
    no_such_input: three(), "-i nothing*.json -o out.json";
    no_input: three(), "-o out.json";
    both_power_counters: three(), "-i rank0_job0.json -o out.json -C power_ts3 power_ts4";
    unknown_counter: three(), "-i rank0_job0.json -o out.json -C power_ts5";
    counters_with_comma: three(), "-i rank0_job0.json -o out.json -C power_ts4,prep_queue";
    frequency_no_number: three(), "-i rank0_job0.json -o out.json --freq fast";
    frequency_zero: three(), "-i rank0_job0.json -o out.json --freq 0";
    frequency_scaling: three(), "-i rank0_job0.json -o out.json --freq_scaling 2";
    unknown_overlap: three(), "-i rank0_job0.json -o out.json -O both";
    protobuf: three(), "-i rank0_job0.json -o out.json -f protobuf";
    version: three(), "--version";
}

/// `--compat-bugs`: begin and duration of every span as 1.3.0 has them, also where
/// they are wrong.
fn check_times(name: &str, input: Result<Input, String>, args: &str) -> anyhow::Result<()> {
    let input = match input.and_then(|input| run::original().map(|_| input)) {
        Ok(input) => input,
        Err(reason) => {
            skip(name, &reason);
            return Ok(());
        }
    };
    let times = |which: Which| -> anyhow::Result<Vec<(String, f64, f64)>> {
        let ran = which.run(&input, args)?;
        anyhow::ensure!(
            ran.code == Some(0),
            "{which:?} {:?}\n{}{}",
            ran.code,
            ran.stdout,
            ran.stderr
        );
        let trace = ran.json("out.json")?;
        let mut times = Vec::new();
        for event in events(&trace)?.iter().filter(|event| event["ph"] == "X") {
            let what = format!("{} of {}", event["name"], event["pid"]);
            let time = |key: &str| event[key].as_f64().context("no number");
            times.push((what, time("ts")?, time("dur")?));
        }
        times.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        Ok(times)
    };
    let (theirs, ours) = (times(Which::Original)?, times(Which::OursWithBugs)?);
    assert_eq!(theirs.len(), ours.len());
    let same = |a: &(String, f64, f64), b: &(String, f64, f64)| {
        a.0 == b.0 && (a.1 - b.1).abs() <= TIME_US && (a.2 - b.2).abs() <= TIME_US
    };
    let wrong = theirs.iter().zip(&ours).filter(|(a, b)| !same(a, b));
    let wrong: Vec<_> = wrong.take(10).collect();
    anyhow::ensure!(wrong.is_empty(), "acelyzer {args}\nthere, here: {wrong:#?}");
    Ok(())
}

macro_rules! compat {
    ($($name:ident: $input:expr, $args:expr;)*) => {
        $(
            #[test]
            fn $name() -> anyhow::Result<()> {
                check_times(stringify!($name), $input, $args)
            }
        )*
    };
}

fn shifted(by_us: f64) -> Result<Input, String> {
    let scenario = Scenario {
        shifts_us: vec![(1, by_us)],
        ..jobs(13, 3)
    };
    flex(&scenario, Flex::default())
}

/// Counters that wrap wherever they happen to, also inside kernels.
fn wrapping_inside() -> Result<Input, String> {
    let scenario = Scenario {
        // A wrap a little after the trace begins.
        start_cycles: Some((1 << 32) - 3_000_000),
        gap_us: 7_710_000.0,
        ..jobs(14, 4)
    };
    flex(&scenario, Flex::default())
}

compat! {
    bugs_sample_collective: samples(&["allreduce_tp4.json"]), "-i allreduce_tp4.json -o out.json";
    bugs_sample_collective_frequency: samples(&["allreduce_tp4.json"]), "-i allreduce_tp4.json -o out.json --freq 557.05";
    bugs_sample_split: split_collective(), "-i rank0.json,rank1.json,rank2.json,rank3.json -o out.json --freq 557.05";
    bugs_sample_flex: samples(&[SAMPLE]), "-i sample_flex_3062_job_4.json -o out.json";
    bugs_chain: chain(), "-i rank0_job0.json,rank1_job0.json,rank2_job0.json,rank3_job0.json -o out.json --freq 557.05";
    bugs_chain_v2: chain(), "-i rank0_job0.json,rank1_job0.json,rank2_job0.json,rank3_job0.json -o out.json --freq 557.05 -S";
    bugs_ring: flex(&ranks(Shape::Ring, 3), Flex::default()), "-i rank0_job0.json,rank1_job0.json,rank2_job0.json -o out.json --freq 557.05";
    bugs_tree: flex(&ranks(Shape::Tree, 5), Flex::default()), "-i rank0_job0.json,rank1_job0.json,rank2_job0.json,rank3_job0.json,rank4_job0.json -o out.json --freq 557.05";
    bugs_two_ranks: flex(&ranks(Shape::Tree, 2), Flex::default()), "-i rank0_job0.json,rank1_job0.json -o out.json --freq 557.05";
    bugs_shift_later: shifted(50_000.0), "-i rank0_job0.json,rank0_job1.json,rank0_job2.json -o out.json --freq 557.05 --flex_ts_fix";
    bugs_shift_earlier: shifted(-50_000.0), "-i rank0_job0.json,rank0_job1.json,rank0_job2.json -o out.json --freq 557.05 --flex_ts_fix";
    bugs_wraps: wrapping_inside(), "-i rank0_job0.json,rank0_job1.json,rank0_job2.json,rank0_job3.json -o out.json --freq 557.05";
    bugs_torch_ranks: two_torch(), "-i rank0.pt.trace.json,rank1.pt.trace.json -o out.json";
}

/// Host times that wander against the counter move the reference epoch. A message reports that, and
/// how often.
#[test]
fn reference_epoch() -> anyhow::Result<()> {
    let name = "reference_epoch";
    let args = "-i rank0_job0.json,rank0_job1.json -o out.json --freq 557.05";
    let input = match noisy().and_then(|input| run::original().map(|_| input)) {
        Ok(input) => input,
        Err(reason) => {
            skip(name, &reason);
            return Ok(());
        }
    };
    let said = |which: Which| -> anyhow::Result<Option<String>> {
        let ran = which.run(&input, args)?;
        let text = format!("{}{}", ran.stdout, ran.stderr);
        let line = text
            .lines()
            .find_map(|line| line.split_once("OVC: reference epoch had"));
        let count = line.and_then(|(_, rest)| rest.split(" times ").next().map(str::to_owned));
        Ok(count)
    };
    assert_eq!(said(Which::Original)?, said(Which::Ours)?);
    Ok(())
}

/// The unit of older charge counters: acelyzer takes all power for impossible. What
/// is right then is in `analyze_truth.rs`; all else must agree.
#[test]
fn older_charge_counter() -> anyhow::Result<()> {
    let scenario = Scenario {
        charge: Some(Charge::Nano),
        ..jobs(12, 1)
    };
    let input = flex(&scenario, Flex::default());
    let args = "-i rank0_job0.json -o out.json --freq 557.05";
    check("older_charge_counter", input, args, &OLD_CHARGE)
}
