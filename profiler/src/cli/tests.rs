//! Tests of the command line as a whole.

use super::*;
use aiprof_formats::export::formats::{FOLDED, PPROF, SVG};
use aiprof_formats::export::{Shown, Weight};
use aiprof_live::config::{RecordConfig, SamplingEvent};
use aiprof_live::device::DeviceOptions;
use aiprof_record::choice::ProcessChoice;
use aiprof_system::files::place::PlaceError;
use destination::{Destination, OutputPlace};
use record::RecordingPlan;
use std::path::PathBuf;
use std::time::Duration;

fn try_parse(words: &[&str]) -> Result<Cli, clap::Error> {
    parse(
        std::iter::once("aiprof")
            .chain(words.iter().copied())
            .map(OsString::from),
    )
}

/// The plan of a recording by the default command or by `record`.
fn plan(words: &[&str]) -> Result<RecordingPlan> {
    let cli = try_parse(words)?;
    match cli.subcommand {
        None => RecordingPlan::new(cli.record, false),
        Some(Sub::Record(args)) => RecordingPlan::new(*args, false),
        Some(other) => panic!("{words:?} is no recording: {other:?}"),
    }
}

fn usage_exit_code(words: &[&str]) -> u8 {
    let error = match plan(words) {
        Ok(plan) => panic!("{words:?} was accepted: {plan:?}"),
        Err(error) => error,
    };
    assert!(
        error.downcast_ref::<clap::Error>().is_some(),
        "{words:?}: {error:#}"
    );
    exit_code(&error)
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn without_options_the_configuration_is_the_default() {
    for words in [&["-o", "x.folded"][..], &["record", "-o", "x.folded"]] {
        let plan = plan(words).unwrap();
        assert_eq!(plan.config, RecordConfig::default(), "{words:?}");
        assert_eq!(plan.export.weight, Weight::default());
        assert_eq!((plan.duration, plan.command.len()), (None, 0));
    }
}

#[test]
fn the_help_states_the_defaults() {
    let help = Cli::command().render_long_help().to_string();
    let default = RecordConfig::default();
    let frequency = format!("[default: {}]", default.frequency_hz);
    let event = match default.event {
        SamplingEvent::CpuClock => "[default: cpu-clock]",
        SamplingEvent::Cycles => "[default: cycles]",
    };
    let weight = match Weight::default() {
        Weight::Time => "[default: time]",
        Weight::Samples => "[default: samples]",
        Weight::Bytes => "[default: bytes]",
    };
    for text in [frequency.as_str(), event, weight] {
        assert!(help.contains(text), "{text} is not in the help");
    }
}

#[test]
fn the_long_help_opens_with_examples_and_ends_with_exit_codes() {
    let help = Cli::command().render_long_help().to_string();
    let position = |text: &str| help.find(text).unwrap_or_else(|| panic!("no {text:?}"));
    assert!(position("sudo aiprof sleep 30") < position("Usage:"));
    assert!(position("Usage:") < position("--frequency"));
    assert!(position("--frequency") < position("Exit status:"));
    assert!(!help.contains("--bpf-object"));
    let short = Cli::command().render_help().to_string();
    assert!(short.lines().count() < 72 && !short.contains("Exit status:"));
}

#[test]
fn options_of_a_recording_are_grouped_by_purpose() {
    let command = Cli::command();
    let ungrouped: Vec<_> = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && arg.get_help_heading().is_none())
        .map(|arg| arg.get_id().as_str())
        .collect();
    assert_eq!(
        ungrouped,
        ["verbose", "quiet", "command", "as_user", "no_join"]
    );
}

#[test]
fn every_option_reaches_the_configuration() {
    let plan = plan(&[
        "-F",
        "997",
        "--event",
        "cycles",
        "--weight",
        "samples",
        "--no-kernel",
        "--no-inlines",
        "--no-driver-frames",
        "--idle",
        "--title",
        "T",
        "-d",
        "2m",
        "-p",
        "7",
        "-p",
        "8,9",
        "--bpf-object",
        "x.o",
        "-o",
        "x.svg",
        "make",
        "-j8",
    ])
    .unwrap();
    assert_eq!(
        plan.config,
        RecordConfig {
            source_lines: false,
            frequency_hz: 997,
            event: SamplingEvent::Cycles,
            include_idle: true,
            kernel_stacks: false,
            python_c_frames: false,
            driver_frames: false,
            inlines: false,
            pids: vec![7, 8, 9],
            only_command: false,
            cgroup: None,
            choice: ProcessChoice::default(),
            labels: Vec::new(),
            title: "T".into(),
            command: "make -j8".into(),
            launches: None,
            waits: None,
            probes: None,
            devices: DeviceOptions::default(),
            also_launches: false,
            continuous: false,
            start_paused: false,
            triggers: Vec::new(),
            window: None,
            bpf_object: Some("x.o".into()),
        }
    );
    assert_eq!(plan.export.weight, Weight::Samples);
    assert_eq!(plan.duration, Some(Duration::from_secs(120)));
    assert_eq!(
        plan.destination,
        Destination {
            format: &SVG,
            place: OutputPlace::File("x.svg".into()),
        }
    );
}

#[test]
fn only_is_for_a_command_and_not_for_other_processes() {
    let words = ["--only", "-o", "x.svg", "make", "-j8"];
    assert!(plan(&words).unwrap().only_command);
    assert!(!plan(&words[1..]).unwrap().only_command);
    // Together with what else chooses processes, both hold.
    for more in [["--comm", "cc1"], ["--user", "root"]] {
        assert!(plan(&[&more[..], &words[..]].concat()).is_ok(), "{more:?}");
    }
    let error = plan(&["--only", "-o", "x.svg", "-d", "1"]).unwrap_err();
    assert_eq!(super::exit_code(&error), 2);
    let said = format!("{error:#}");
    assert!(said.contains("--only -o flame.svg -- make"), "{said}");
    assert!(said.contains("-p PID"), "{said}");
    let both = try_parse(&["--only", "-p", "1", "make"]).unwrap_err();
    assert!(both.to_string().contains("--pid"), "{both}");
    assert!(try_parse(&["agent", "--only", "x.toml"]).is_err());
    // Ranks of a job would share a recording of the machine.
    let whole = plan(&["-o", "x.svg", "make"]).unwrap();
    assert!(whole.shared.is_some());
    assert_eq!(plan(&words).unwrap().shared, None);
}

#[test]
fn aius_are_observed_unasked_where_there_are_some() {
    let on = |words: &[&str], has_aiu| {
        let cli = try_parse(words).unwrap();
        let config = RecordingPlan::new(cli.record, has_aiu).unwrap().config;
        assert!(!config.devices.aiu || config.probes.is_some());
        config.devices.aiu
    };
    assert!(!on(&["sleep", "1"], false) && on(&["sleep", "1"], true));
    assert!(on(&["-o", "x.svg", "-d", "1"], true));
    // With `--aiu-timing` the user states that there are AIUs.
    assert!(on(&["--aiu-timing", "sleep", "1"], false));
    // These are read later, or count the launches themselves.
    assert!(!on(&["-o", "x.aiprof", "sleep", "1"], true));
    assert!(!on(&["-o", "x.json", "sleep", "1"], true));
    assert!(!on(&["--events", "launches", "sleep", "1"], true));
}

#[test]
fn events_need_probes_and_say_what_the_values_are() {
    for (events, weight, exact) in [
        ("launches", Weight::Samples, false),
        ("time-in-call", Weight::Time, true),
        ("bytes", Weight::Bytes, false),
    ] {
        let plan = plan(&["--events", events, "-o", "x.svg", "ls"]).unwrap();
        assert_eq!(plan.config.launches.map(|l| l.timed), Some(exact));
        assert_eq!(plan.export.weight, weight, "{events}");
        let probes = plan.config.probes.unwrap();
        assert_eq!(
            (probes.exact_call_times, probes.command),
            (exact, vec!["ls".into()])
        );
    }
    assert!(plan(&["--events", "bytes", "--weight", "time", "ls"]).is_err());
    assert!(plan(&["--events", "power", "ls"]).is_err());
}

#[test]
fn everything_after_the_command_belongs_to_it() {
    for (words, command) in [
        (&["sleep", "1"][..], &["sleep", "1"][..]),
        (
            &["-F", "10", "ls", "-F", "-d", "--help"],
            &["ls", "-F", "-d", "--help"],
        ),
        (&["-F", "10", "--", "ls", "--", "-x"], &["ls", "--", "-x"]),
        (&["--", "report", "x"], &["report", "x"]),
        (&["-F", "10", "--", "doctor"], &["doctor"]),
        (&["sudo", "report"], &["sudo", "report"]),
        (&["record", "-F", "10", "--", "record"], &["record"]),
        (&["record", "sleep", "-d"], &["sleep", "-d"]),
    ] {
        let plan = plan(words).unwrap();
        assert_eq!(plan.command, command, "{words:?}");
    }
}

#[test]
fn subcommands_are_recognised() {
    for words in [
        &["report", "x.aiprof", "-o", "x.svg"][..],
        &["-v", "report", "x.aiprof"],
        &["report", "x.aiprof", "-q"],
        &["diff", "a", "b", "-o", "c.svg", "--widths", "before"],
        &[
            "trace",
            "-p",
            "7",
            "--kind",
            "launch,copy",
            "--min-duration",
            "10us",
            "-c",
        ],
        &["trace", "--nested", "--json", "ls", "-l"],
        &[
            "trace",
            "--from",
            "x.aiprof",
            "--function",
            "*Append*",
            "--failed",
        ],
        &["doctor", "--json"],
        &["completions", "zsh"],
        &["man"],
    ] {
        let cli = try_parse(words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
        assert!(cli.subcommand.is_some(), "{words:?}");
    }
}

#[test]
fn a_trace_of_a_capture_runs_nothing_and_kinds_are_known() {
    assert!(try_parse(&["trace", "--from", "x.aiprof", "ls"]).is_err());
    assert!(try_parse(&["trace", "--from", "x.aiprof", "-p", "7"]).is_err());
    assert!(try_parse(&["trace", "--kind", "lunch", "ls"]).is_err());
    assert!(try_parse(&["trace", "--min-duration", "10", "ls"]).is_err());
}

#[test]
fn options_before_a_subcommand_are_refused_not_ignored() {
    for words in [
        &["-F", "10", "doctor"][..],
        &["-o", "x.svg", "record", "sleep", "1"],
        &["--no-kernel", "report", "x"],
    ] {
        let error = try_parse(words).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{words:?}");
        assert!(
            error.to_string().contains("before the subcommand"),
            "{error}"
        );
    }
}

#[test]
fn wrong_usage_exits_with_2() {
    for words in [
        &["-F", "0", "true"][..],
        &["-F", "10001", "true"],
        &["-F", "x", "true"],
        &["-d", "0", "true"],
        &["-d", "5 minutes", "true"],
        &["-p", "0"],
        &["-p", "4294967296"],
        &["--format", "png", "true"],
        &["-o", "x.png", "true"],
        &["--weight", "bytes", "true"],
        &["--event", "instructions", "true"],
        &["--every", "60s"],
        &["--every", "60s", "-o", "-"],
        &["--every", "1ms", "-o", "dir"],
        &["--every", "60s", "-o", "dir", "--format", "capture"],
        &["--keep", "3", "-o", "x.svg"],
        &["--every", "60s", "--keep", "0", "-o", "dir"],
        &["--as-user"],
        &["-v", "-q", "true"],
        &["--device-only", "--cpu-only", "-o", "x.svg", "true"],
        &["--by-stall", "--cpu-only", "-o", "x.svg", "true"],
        &["--by-stall", "--events", "launches", "-o", "x.svg", "true"],
        &["--device-only", "--events", "bytes", "-o", "x.svg", "true"],
        &["--inverted", "-o", "x.pb.gz", "true"],
        &["--by-stall", "-o", "x.aiprof", "true"],
        &["--device-only", "-o", "x.json", "true"],
        &["--cpu-only", "-o", "x.aiprof", "true"],
        &["--no-join"],
        &["--include-kernels", ",", "true"],
        &["--exclude-kernels", "\"a", "true"],
        &["--include-kernels", "a", "-o", "x.aiprof", "true"],
        &["--exclude-kernels", "a", "-o", "x.pftrace", "true"],
        &["--include-kernels", "a", "--no-devices", "true"],
        &["--no-such-option"],
    ] {
        assert_eq!(usage_exit_code(words), EXIT_USAGE, "{words:?}");
    }
}

#[test]
fn views_choose_samples_and_their_order() {
    let options = |words: &[&str]| plan(words).unwrap().export;
    let found = options(&[
        "--device-only",
        "--by-stall",
        "--inverted",
        "-o",
        "x.svg",
        "ls",
    ]);
    assert_eq!(
        (found.shown, found.by_stall, found.inverted),
        (Shown::Device, true, true)
    );
    let found = options(&["--cpu-only", "-o", "x.pb.gz", "ls"]);
    assert_eq!((found.shown, found.inverted), (Shown::Cpu, false));
    assert!(options(&["--inverted", "--events", "launches", "-o", "x.folded", "ls"]).inverted);
}

#[test]
fn windows_are_pprof_unless_told_otherwise() {
    let windows = |format, keep| Destination {
        format,
        place: OutputPlace::Windows {
            directory: PathBuf::from("dir"),
            every: Duration::from_secs(60),
            keep,
        },
    };
    for (words, expected) in [
        (&["--every", "60s", "-o", "dir"][..], windows(&PPROF, None)),
        (
            &[
                "--every", "1m", "--keep", "9", "--format", "folded", "-o", "dir",
            ],
            windows(&FOLDED, Some(9)),
        ),
    ] {
        assert_eq!(plan(words).unwrap().destination, expected, "{words:?}");
    }
}

#[test]
fn a_cgroup_that_is_none_is_an_error_that_names_it() {
    let error = plan(&["--cgroup", "/no/such/group", "true"]).unwrap_err();
    assert!(format!("{error:#}").contains("/no/such/group"));
    assert_eq!(exit_code(&error), EXIT_FAILURE);
}

#[test]
fn errors_have_their_documented_exit_codes() {
    let missing = privileges::require(rustix::thread::CapabilitySet::empty()).unwrap_err();
    for (error, code) in [
        (anyhow::Error::from(missing), 77),
        (LaunchError::NotFound("x".into()).into(), 127),
        (anyhow::anyhow!("disk full"), 1),
        (usage_error("x"), 2),
    ] {
        assert_eq!(exit_code(&error), code, "{error:#}");
    }
}

#[test]
fn a_cause_and_its_path_are_said_once() {
    let denied = || std::io::Error::from_raw_os_error(libc::EACCES);
    let way = || PlaceError::Way {
        path: "/h/.cache".into(),
        source: denied(),
    };
    let expected = "aiprof: /h/.cache: Permission denied (os error 13)\n";
    let timing = aiprof_live::timing::TimingError::from(way());
    assert_eq!(in_words(&timing.into()), expected);
    let written = anyhow::Error::new(way()).context("cannot write /h/.cache/x");
    let expected = "aiprof: cannot write /h/.cache/x: /h/.cache: Permission denied (os error 13)\n";
    assert_eq!(in_words(&written), expected);
}
