use super::argparse::repr;
use super::settings::{AcelyzerExit, AcelyzerSettings, CounterList, Given, parse};
use super::stages::{AcelyzerStage, StageSet};
use super::*;
use aiprof_trace::analyze::config::{
    AnalysisConfig, Compatibility, OverlapMode, PowerScale, PowerSource, TraceCounters,
};
use aiprof_trace::analyze::pipeline::STEPS;

/// Splits a command line at blanks.
fn given(line: &str) -> Result<Given, AcelyzerExit> {
    let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
    parse(&words)
}

fn settings(line: &str) -> AcelyzerSettings {
    given(line).unwrap().settings
}

fn usage_of(line: &str) -> String {
    match given(line) {
        Err(AcelyzerExit::Usage(message)) => message,
        other => panic!("{line}: {other:?}"),
    }
}

fn plan(line: &str) -> AnalysisPlan {
    convert::plan(&settings(line), &mut Messages::new(Level::Error)).unwrap()
}

fn config(line: &str) -> AnalysisConfig {
    plan(line).analysis
}

fn stages_of(line: &str) -> StageSet {
    convert::selected(&settings(line), &mut Messages::new(Level::Error)).unwrap()
}

/// Messages of acelyzer 1.3.0 on Python 3.11, read off its stderr.
#[test]
fn mistakes_get_argparse_s_messages() {
    for (line, message) in [
        ("", "one of the arguments -i/--input --version is required"),
        (
            "-X",
            "one of the arguments -i/--input --version is required",
        ),
        (
            "--in x",
            "ambiguous option: --in could match --input, --intermediate",
        ),
        (
            "--i x",
            "ambiguous option: --i could match --input, --intermediate, --ignore_crit",
        ),
        (
            "-D 9 -i x",
            "argument -D/--loglevel: invalid choice: 9 (choose from 0, 1, 2, 3, 4)",
        ),
        (
            "-D x -i x",
            "argument -D/--loglevel: invalid int value: 'x'",
        ),
        (
            "--version -i x",
            "argument -i/--input: not allowed with argument --version",
        ),
        ("-i x foo --bar", "unrecognized arguments: foo --bar"),
        ("-i x --", "unrecognized arguments: --"),
        (
            "-C power_ts4,coll_bw -i x",
            "argument -C/--counter: invalid choice: 'power_ts4,coll_bw' (choose from \
             'power_ts4', 'power_ts3', 'coll_bw', 'bandwidth', 'prep_queue', 'rcu_util')",
        ),
        ("-i", "argument -i/--input: expected one argument"),
        ("-i -t", "argument -i/--input: expected one argument"),
        (
            "--flow=3 -i x",
            "argument --flow: ignored explicit argument '3'",
        ),
        (
            "-tMx -i a",
            "argument -M/--no_mp_sync: ignored explicit argument 'x'",
        ),
    ] {
        assert_eq!(usage_of(line), message, "{line}");
    }
}

#[test]
fn an_event_limit_is_checked() {
    let reason = usage_of("-i x --event_limit=5");
    let known = "argument --event_limit: invalid _parse_event_limit_type value: '5'";
    assert!(reason.starts_with(known), "{reason}");
    for wrong in [
        "{",
        r#"{"skips":1}"#,
        r#"{"skip":"1"}"#,
        r#"{"count":1.5}"#,
        r#"{"ts_end":null}"#,
        r#"{"no_count_types":5}"#,
    ] {
        usage_of(&format!("-i x --event_limit={wrong}"));
    }
    let limit = r#"-i x --event_limit {"skip":3,"count":1e3,"ts_start":5,"no_count_types":"MC"}"#;
    let limit = settings(limit).event_limit;
    assert_eq!((limit.skip, limit.count), (3, 1000));
    assert_eq!((limit.ts_start, limit.ts_end), (5.0, f64::MAX));
    assert_eq!(limit.no_count_types, "MC");
}

#[test]
fn options_are_read_in_all_their_forms() {
    for line in [
        "-D3 -i x",
        "-D 3 -i x",
        "-D=3 -i x",
        "--logl=3 -i x",
        "-tD3 -i x",
    ] {
        assert_eq!(settings(line).loglevel, 3, "{line}");
    }
    let bundled = settings("-tMRi x,y");
    assert!(!bundled.stats && bundled.skip_mpsync && bundled.build_coll_event);
    assert_eq!(bundled.input.as_deref(), Some("x,y"));
    let last = settings("--inp=a --inp b --time ms --max_t -1 --disable_t");
    assert_eq!(last.input.as_deref(), Some("b"));
    assert_eq!((last.time_unit.as_str(), last.max_tid_streams), ("ms", -1));
    assert!(!last.tb_refinement);
    assert_eq!(settings("--max_tid_streams=1_0 -i x").max_tid_streams, 10);
    // Options of ours make no abbreviation of acelyzer's ambiguous.
    let short = settings("-i x --comp log --power-");
    assert!(short.power_stats && short.compiler_info.as_deref() == Some("log"));
    let words = ["-i", "a b.json", "-o", "- x"].map(str::to_owned);
    let blank = parse(&words).unwrap().settings;
    assert_eq!(
        (blank.input.as_deref(), blank.output.as_str()),
        (Some("a b.json"), "- x")
    );
}

#[test]
fn counters_take_any_number_of_values() {
    let list = |line: &str| match settings(line).counter {
        CounterList::Given(list) => list,
        CounterList::Default(_) => panic!("{line}"),
    };
    assert_eq!(list("-C -i x"), [""; 0]);
    assert_eq!(
        list("-i x -C power_ts3 bandwidth"),
        ["power_ts3", "bandwidth"]
    );
    assert_eq!(list("-i x -Ccoll_bw"), ["coll_bw"]);
    assert_eq!(
        usage_of("-i x -Ccoll_bw bandwidth"),
        "unrecognized arguments: bandwidth"
    );
    assert_eq!(config("-C -i x").counters.power, None);
    let some = config("-C power_ts3 bandwidth -i x").counters;
    assert_eq!(some.power, Some(PowerSource::Ts3));
    assert!(some.transfers && !some.collectives && !some.preparations && !some.utilization);
}

#[test]
fn help_comes_before_later_mistakes() {
    assert_eq!(given("-h -D x").unwrap_err(), AcelyzerExit::Help);
    assert_eq!(given("-th -i").unwrap_err(), AcelyzerExit::Help);
    assert!(matches!(given("-D x -h"), Err(AcelyzerExit::Usage(_))));
    let text = help::help(80);
    assert_eq!(help::OPTIONS.len(), 41);
    for option in help::OPTIONS.iter() {
        assert!(text.contains(option.long), "{}", option.long);
        // An option without an effect of its own ends a debug build here.
        let _ = given(&format!("-i x {} 1", option.long));
    }
    // The file is 80 columns wide.
    let usage = help::usage(80);
    assert_eq!(text, format!("{usage}\n{}", include_str!("help.txt")));
    let usage = help::usage(80);
    assert!(usage.starts_with("usage: acelyzer [-h]\n"));
}

#[test]
fn frequencies_are_one_or_two() {
    assert_eq!(settings("-i x --freq 560:1100").freq, [560.0, 1100.0]);
    let one = given("-i x --freq 557.05").unwrap();
    assert_eq!(one.settings.freq, [557.05, 1100.0]);
    assert_eq!(
        one.hint.unwrap(),
        "HINT: --freq only specified SoC freqency 557.05. Using default core freq 1100.0. \
         You may specify both by using: --freq=<soc>:<core>"
    );
    let wrong = "ERROR: Frequency setting requires float values.";
    for line in ["-i x --freq a:1", "-i x --freq 1:", "-i x --freq 1:b"] {
        assert_eq!(
            given(line).unwrap_err(),
            AcelyzerExit::Fatal(wrong.to_owned()),
            "{line}"
        );
    }
    let Err(AcelyzerExit::Fatal(text)) = given("-i x --freq abc") else {
        panic!("a word is no frequency");
    };
    assert!(
        text.starts_with("HINT: ") && text.ends_with(wrong),
        "{text}"
    );
}

#[test]
fn what_acelyzer_refuses_at_the_start_is_refused() {
    let check = |line: &str| {
        let mut messages = Messages::new(Level::Info);
        let result = convert::check(&settings(line), &mut messages);
        let texts: Vec<_> = messages.iter().map(|m| m.text.clone()).collect();
        (result, texts)
    };
    let positive = "Frequency settings are required to be a positive non-zero float value.";
    for freq in ["0:1", "1:0", "-5:1", "nan:1", "inf:1"] {
        let (result, _) = check(&format!("-i x --freq={freq}"));
        assert_eq!(result, Err(positive.to_owned()), "{freq}");
    }
    let (result, _) = check("-i x --freq_scaling 2");
    let obsolete = "ERROR: Use of obsolete cmdline '--freq_scaling'. \
                    Use '--freq=<soc>:<core>' instead!";
    assert_eq!(result, Err(obsolete.to_owned()));
    let (result, texts) = check("-i x -C power_ts3 power_ts4");
    assert!(result.is_err());
    assert_eq!(texts, ["power_ts3 and power_ts4 are mutually exclusive"]);
    let (result, texts) = check("-i x");
    assert!(result.is_ok());
    assert_eq!(
        texts,
        [
            "rcu_util counter requested but no compiler log/inductor spyre directory path \
          provided. No utilization will be plotted."
        ]
    );
    // A list of paths that are there is no invalid path.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().display();
    assert_eq!(check(&format!("-i x -c {path},{path}")).1, [""; 0]);
    assert_eq!(check(&format!("-i x -c {path},/nix/nix")).1.len(), 1);
}

#[test]
fn settings_are_acelyzer_s_and_in_its_order() {
    let text = serde_json::to_string(&settings("-i in.json -o a.json --freq 557:1100")).unwrap();
    let keys: Vec<_> = text
        .split("\":")
        .filter_map(|part| part.rsplit('"').next())
        .collect();
    // otherData.Settings of acelyzer 1.3.0 for the same command line.
    let expected = "counter compiler_info loglevel event_filter event_limit skip count ts_start \
                    ts_end no_count_types filter format freq flow freq_scaling input \
                    intermediate skip_events drop_globals skip_mpsync overlap max_tid_streams \
                    profile output build_coll_event mp_sync_v2 split_events stats sync_to_dev \
                    verification_mode autopilot_data keep_prep keep_names tb_refinement tb \
                    save_to_file flex_ts_fix disable_input_warnings comm_summarize_seq \
                    power_stats time_unit ignore_crit version";
    let expected: Vec<_> = expected.split_whitespace().collect();
    assert_eq!(keys[..expected.len()], expected);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["counter"], "power_ts4 coll_bw prep_queue rcu_util");
    assert_eq!(value["event_limit"]["count"], 1_152_921_504_606_846_976_u64);
    assert_eq!(value["event_limit"]["ts_end"], f64::MAX);
    assert_eq!(value["freq"], serde_json::json!([557.0, 1100.0]));
    assert_eq!(value["disable_input_warnings"], true);
    assert_eq!(value["output"], "a.json");
    assert_eq!(value["compiler_info"], serde_json::Value::Null);
}

#[test]
fn output_and_profile_have_acelyzer_s_defaults() {
    assert_eq!(settings("-i x").output, "processed_trace.pt.trace.json");
    assert_eq!(settings("-i x --disable_tb").output, "processed_trace.json");
    assert_eq!(settings("-i x -V --disable_tb").output, "report.json");
    assert_eq!(settings("-i x").profile, "default.json");
    assert_eq!(settings("-i x --tb").profile, "torch_minimal.json");
    assert_eq!(settings("-i x --tb -P mine").profile, "mine");
    assert_eq!(settings("-i x -V -P mine").profile, "verification.json");
}

#[test]
fn a_plan_has_what_was_asked_for() {
    let line = "-i a*.json,b.json -c l0,l1 -O shift -S -f pddf -F XC --max_tid_streams 0 \
         --compat-bugs --power-scale auto --event_filter name:Prep$,x --freq 560:1000 -k";
    let plan = plan(line);
    assert_eq!(plan.inputs, ["a*.json", "b.json"]);
    assert_eq!(plan.compiler_info.len(), 2);
    assert_eq!(plan.format, Format::Pddf);
    let config = plan.analysis;
    assert_eq!(config.overlap, OverlapMode::Shift);
    let bugs = Compatibility::AcelyzerBugs {
        second_alignment: true,
    };
    assert_eq!(config.compatibility, bugs);
    assert_eq!((config.soc_mhz, config.core_mhz), (560.0, 1000.0));
    assert_eq!(config.spare_rows, Some(1));
    assert_eq!(config.power_scale, PowerScale::Auto);
    let scale = |line| super::tests::config(line).power_scale;
    assert_eq!(scale("-i x"), PowerScale::Auto);
    assert_eq!(scale("-i x --compat-bugs"), PowerScale::Fixed(1.0));
    assert_eq!(config.event_filter.len(), 1);
    assert!(config.power_skip_events && config.align_ranks && config.counters.utilization);
    assert_eq!(config.keep_phases, "XC");
    let stages = stages_of(line);
    for on in [
        AcelyzerStage::ComputeUtilization,
        AcelyzerStage::ProcessingFilter,
        AcelyzerStage::MpTsCalibrationV2,
    ] {
        assert!(stages.contains(&on), "{on:?}");
    }
    assert!(!stages.contains(&AcelyzerStage::DetectPartialOverlapTids));
}

#[test]
fn a_profile_is_a_file_or_built_in() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("p.json");
    std::fs::write(&file, r#"{"stages":[{"sort_events#4":true}]}"#).unwrap();
    let line = format!("-i x -F X -P {}", file.display());
    assert_eq!(
        stages_of(&line),
        [AcelyzerStage::SortFinal].into_iter().collect()
    );
    // What no stage does, the analysis does not do.
    let config = config(&line);
    assert!(config.keep_phases.is_empty() && config.keeps_rows && !config.statistics);
    assert_eq!(config.counters, TraceCounters::default());
    assert!(!config.align_ranks && !config.steps.convert_times && !config.steps.classify);
    let torch = "-i x -P torch_minimal";
    assert!(!stages_of(torch).contains(&AcelyzerStage::MapTidToRange));
    assert!(!super::tests::config(torch).steps.number_threads);
    let nix = convert::plan(&settings("-i x -P nix"), &mut Messages::new(Level::Error));
    assert!(nix.err().unwrap().starts_with("profile nix: "));
    let regex = settings("-i x --event_filter name:(");
    let regex = convert::plan(&regex, &mut Messages::new(Level::Error));
    assert!(regex.err().unwrap().contains("unclosed"));
}

/// The names are those that acelyzer 1.3.0 gives the files of `-I` with its other defaults.
#[test]
fn each_stage_has_a_file_of_its_own() {
    let expected = "drop_timestamp_reversed_events create_slice_from_BE normalize_phase1 \
        pipeline_barrier normalize_phase2 event_sanity_checks map_tid_to_range \
        cycle_count_to_wallclock tighten_hts_by_instr_type mp_sync_tight_v1 queueing_counter \
        recombine_cpu_events sort_events assert_ts_sequence detect_partial_overlap_tids \
        pipeline_barrier detect_partial_overlap_events assert_ts_sequence \
        collect_iteration_stats extract_power_event sort_events compute_power \
        assert_ts_sequence pipeline_barrier sort_events assert_global_ts_sequence \
        launch_flow_collect event_categorizer pipeline_barrier event_categorizer_update \
        launch_flow_create_missing mp_calc_bw calculate_stats flow_data_cleanup \
        cleanup_copy_of_device_ts tb_refinement_intrusive tb_refinement_lightweight \
        cycle_count_conversion_cleanup sort_events";
    let expected = expected.split_whitespace().enumerate();
    let expected: Vec<_> = expected
        .map(|(number, name)| format!("d/out.json_{number:02}_{name}"))
        .collect();
    let files = plan("-i x -o d/out.json -I").intermediate;
    let paths: Vec<_> = files
        .iter()
        .map(|file| file.path.to_str().unwrap())
        .collect();
    assert_eq!(paths, expected);
    // No file shows the events after fewer steps than the one before it.
    assert!(files.is_sorted_by_key(|file| file.after));
    assert_eq!(files.first().map(|file| file.after), Some(1));
    assert_eq!(files.last().map(|file| file.after), Some(STEPS));
    assert!(plan("-i x -o d/out.json").intermediate.is_empty());
}

/// What acelyzer 1.3.0 writes otherwise without a stage, aiprof does otherwise, too.
#[test]
fn a_stage_that_is_switched_off_changes_the_analysis() {
    let dir = tempfile::tempdir().unwrap();
    let without = |stage: &str| {
        let file = dir.path().join(format!("{stage}.json"));
        let all = AcelyzerStage::ALL.iter().map(|stage| stage.name());
        let stages = all.take_while(|name| *name != "verify_kernel_overlap");
        // The first stage of the verification has a name that the analysis has, too.
        let mut stages: Vec<_> = stages.collect();
        stages.pop();
        let entries = stages
            .iter()
            .map(|name| format!("{{\"{name}\":{}}}", *name != stage));
        let text = entries.collect::<Vec<_>>().join(",");
        std::fs::write(&file, format!("{{\"stages\":[{text}]}}")).unwrap();
        let log = dir.path().display();
        config(&format!("-i x -c {log} --flow -P {}", file.display()))
    };
    let all = without("nothing");
    assert!(all.counters.power.is_some() && all.counters.utilization && all.flows);
    assert!(all.counters.collectives);
    let steps = all.steps;
    assert!(steps.count_periods && steps.drop_device_times && steps.drop_host_times);
    assert_eq!(without("extract_power_event").counters.power, None);
    assert!(
        !without("compute_utilization_fingerprints")
            .counters
            .utilization
    );
    assert!(!without("cleanup_copy_of_device_ts").steps.drop_device_times);
    assert!(
        !without("cycle_count_conversion_cleanup")
            .steps
            .drop_host_times
    );
    assert!(!without("normalize_phase2").steps.count_periods);
    assert!(!without("flow_prepare_event_data").flows);
    assert!(!without("mp_calc_bw").counters.collectives);
}

#[test]
fn texts_are_shown_as_python_shows_them() {
    // Python 3.11: repr() of each.
    for (text, shown) in [
        ("x", "'x'"),
        ("it's", "\"it's\""),
        ("a'b\"c", "'a\\'b\"c'"),
        ("a\\b\n\u{1}", "'a\\\\b\\n\\x01'"),
    ] {
        assert_eq!(repr(text), shown);
    }
}
