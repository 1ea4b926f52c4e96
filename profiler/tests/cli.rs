//! The binary from outside: what needs no privileges.

#![allow(clippy::disallowed_methods, reason = "not part of the program")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn aiprof(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_aiprof"));
    command.args(args).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    aiprof(args).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Copies a program, not by this process: what another thread starts meanwhile would hold the
/// copy open for writing, and it could not be run.
fn copy_to(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg(from).arg(to).status();
    assert!(copied.unwrap().success());
}

/// Runs it without any privilege: as root, a copy that anybody may execute, as
/// another user. `None` where that is not possible.
fn unprivileged(args: &[&str]) -> Option<Output> {
    use std::os::unix::process::CommandExt;
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return Some(run(args));
    }
    let dir = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .tempdir()
        .unwrap();
    let copy = dir.path().join("aiprof");
    copy_to(Path::new(env!("CARGO_BIN_EXE_aiprof")), &copy);
    let mut command = Command::new(copy);
    command
        .args(args)
        .stdin(Stdio::null())
        .uid(65_534)
        .gid(65_534);
    match command.output() {
        Ok(output) => Some(output),
        Err(error) => {
            eprintln!("skipped: cannot run as another user: {error}");
            None
        }
    }
}

#[test]
fn help_and_version_go_to_stdout_and_succeed() {
    for (args, text) in [
        (["--help"], "Examples:"),
        (["-h"], "Usage:"),
        (["--version"], concat!("aiprof ", env!("CARGO_PKG_VERSION"))),
    ] {
        let output = run(&args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(
            stdout(&output).contains(text),
            "{args:?}: {}",
            stdout(&output)
        );
        assert!(output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn wrong_usage_exits_with_2_and_says_why_on_stderr() {
    let output = run(&["-F", "0", "true"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty() && stderr(&output).contains("1..=10000"));
}

#[test]
fn without_arguments_it_shows_how_to_start() {
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    assert!(stderr(&output).contains("sudo aiprof sleep 30"));
}

/// What users of other profilers type: all commands of perf 6.18, py-spy 0.4, samply 0.13,
/// pprof (interactive ones included) and nsys 2025, by their own help.
const COMMANDS_OF_OTHERS: &str = "
    annotate archive bench buildid-cache buildid-list c2c check config daemon data diff evlist
    ftrace help inject iostat kallsyms kmem kvm kwork list lock mem probe record report sched
    script stat test timechart top trace version
    dump attach load import setup
    callgrind comments disasm dot eog evince gif gv kcachegrind pdf peek png proto ps raw svg
    tags text topproto traces tree web weblist
    analyze cancel export launch nvprof profile recipe service sessions shutdown start stats
    status stop";

#[test]
fn a_capture_survives_the_commands_of_other_profilers() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("x.aiprof");
    let golden = "crates/record/tests/data/capture/v3.aiprof";
    copy_to(Path::new(golden), &capture);
    let before = std::fs::read(&capture).unwrap();
    let own = ["diff", "help", "record", "report", "trace", "analyze"];
    for word in COMMANDS_OF_OTHERS.split_whitespace() {
        for args in [&[word, "x.aiprof"][..], &[word, "-i", "x.aiprof"]] {
            let output = aiprof(args).current_dir(dir.path()).output().unwrap();
            let text = stderr(&output);
            assert_eq!(std::fs::read(&capture).unwrap(), before, "{word}");
            if own.contains(&word) {
                continue;
            }
            assert_eq!(output.status.code(), Some(2), "{word}: {text}");
            let instead = format!("`aiprof -- {word} ...`");
            assert!(text.contains(&instead), "{word}: {text}");
        }
    }
}

#[test]
fn without_privileges_it_refuses_with_77_and_a_remedy() {
    let Some(output) = unprivileged(&["sleep", "60"]) else {
        return;
    };
    assert_eq!(output.status.code(), Some(77), "{}", stderr(&output));
    assert!(output.stdout.is_empty());
    for text in ["CAP_BPF and CAP_PERFMON", "sudo", "setcap"] {
        assert!(stderr(&output).contains(text), "{}", stderr(&output));
    }
}

#[test]
fn doctor_gives_valid_json_and_its_exit_code_is_the_verdict() {
    let outputs = [
        Some(run(&["doctor", "--json"])),
        unprivileged(&["doctor", "--json"]),
    ];
    for output in outputs.into_iter().flatten() {
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["schema"], 1);
        let ready = report["ready"].as_bool().unwrap();
        assert_eq!(output.status.code(), Some(i32::from(!ready)));
        let checks = report["checks"].as_array().unwrap();
        let required_no = checks
            .iter()
            .any(|c| c["required"] == true && c["status"] != "yes");
        assert_eq!(ready, !required_no);
        for check in checks {
            let status = check["status"].as_str().unwrap();
            assert!(["yes", "no", "n/a"].contains(&status), "{check}");
            assert_eq!(status == "no", check["remedy"] != "", "{check}");
        }
        for list in ["accelerators", "device_nodes", "runtimes"] {
            assert!(report[list].is_array(), "{list}");
        }
    }
}

#[test]
fn doctor_names_what_is_missing_without_privileges() {
    let Some(output) = unprivileged(&["doctor"]) else {
        return;
    };
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output);
    for line in ["no   cap_bpf", "to fix it: sudo", "cannot record"] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
}

#[test]
fn completion_scripts_are_made_for_each_shell() {
    for (shell, text) in [
        ("bash", "complete -F"),
        ("zsh", "#compdef aiprof"),
        ("fish", "complete -c aiprof"),
        ("elvish", "edit:completion"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let output = run(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{shell}");
        assert!(stdout(&output).contains(text), "{shell}");
        assert!(stdout(&output).contains("frequency"), "{shell}");
    }
}

#[test]
fn the_man_page_has_options_exit_codes_and_examples() {
    let output = run(&["man"]);
    assert_eq!(output.status.code(), Some(0));
    let page = stdout(&output);
    for text in [
        ".TH aiprof 1",
        "\\-\\-frequency",
        "EXIT STATUS",
        "EXAMPLES",
        "ENVIRONMENT",
        "DEBUGINFOD_URLS",
        ".SH \"FILES\"",
        "/etc/aiprof/probes.d",
        "sudo aiprof \\-o flame.svg",
        "AIPROF DIFF",
        "\\-\\-widths",
    ] {
        assert!(page.contains(text), "{text:?} is not in the page");
    }
    assert!(!page.contains("bpf\\-object"));
    assert_eq!(page.matches(".SH OPTIONS").count(), 1);
}

#[test]
fn bash_completes_command_as_if_it_stood_alone() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["workload.py", "words.txt", "other"] {
        write(dir.path(), name, "");
    }
    let script = "eval \"$(\"$1\" completions bash)\"; shift
        COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1))
        _aiprof_all aiprof \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"
        printf '%s\\n' \"${COMPREPLY[@]}\"";
    let complete = |words: &[&str]| -> Option<Vec<String>> {
        let mut bash = Command::new("bash");
        bash.args(["--norc", "-c", script, "bash", env!("CARGO_BIN_EXE_aiprof")]);
        let output = bash.args(words).current_dir(dir.path()).output().ok()?;
        assert!(output.stderr.is_empty(), "{words:?}: {}", stderr(&output));
        let mut found: Vec<_> = stdout(&output).lines().map(str::to_owned).collect();
        found.sort();
        Some(found)
    };
    let Some(files) = complete(&["aiprof", "sleep", "wo"]) else {
        eprintln!("skipped: no bash");
        return;
    };
    assert_eq!(files, ["words.txt", "workload.py"]);
    for words in [
        &["aiprof", "-d", "10", "-o", "x.svg", "python3", "wo"][..],
        &["aiprof", "record", "--pid", "=", "7", "python3", "wo"],
        &["aiprof", "trace", "-p", "12", "--", "report", "wo"],
    ] {
        assert_eq!(complete(words).unwrap(), files, "{words:?}");
    }
    // Before COMMAND: options that help shows, and subcommands.
    let options = complete(&["aiprof", "-d", "10", "--"]).unwrap();
    assert!(options.contains(&"--output".to_owned()), "{options:?}");
    assert!(!options.contains(&"--bpf-object".to_owned()), "{options:?}");
    assert_eq!(complete(&["aiprof", "docto"]).unwrap(), ["doctor"]);
    let of_report = complete(&["aiprof", "report", "--no-i"]).unwrap();
    assert_eq!(of_report, ["--no-inlines"]);
    let commands = complete(&["aiprof", "-d", "10", "bas"]).unwrap();
    assert!(commands.contains(&"bash".to_owned()), "{commands:?}");
}

#[test]
fn errors_say_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let folded = write(dir.path(), "a.folded", "p;1;main 3\n");
    let folded = folded.to_str().unwrap();
    for (args, texts) in [
        (&["-p", "python"][..], &["pgrep -x NAME"][..]),
        (
            &["report", folded, "-o", "x.zip"],
            &["names no format", "Usage: aiprof report"],
        ),
        (
            &["diff", folded, folded, "-o", "x.pb.gz"],
            &["as .svg, .txt, .csv or .json", "Usage: aiprof diff"],
        ),
        (
            &["--every", "3s", "-o", "new.svg"],
            &["looks like a file", "--format"],
        ),
        (&["--all-processes", "-o", "x.json"], &["flame graphs"]),
        (&["--lines", "-o", "x.html"], &["use -o FILE.folded"]),
        (
            &["--lines", "-o", "x.pb.gz"],
            &["always contains source lines"],
        ),
        (
            &["report", folded, "--lines", "-o", "x.svg"],
            &["--lines needs a capture"],
        ),
    ] {
        let output = aiprof(args).current_dir(dir.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        for text in texts {
            assert!(
                stderr(&output).contains(text),
                "{args:?}: {}",
                stderr(&output)
            );
        }
    }
}

#[test]
fn folded_stacks_are_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let folded = write(
        dir.path(),
        "a.txt",
        "# note\np;1;main;read_[k] 30\np;1;main 10\n",
    );
    let folded = folded.to_str().unwrap();
    let output = run(&["report", folded, "--format", "svg", "--weight", "samples"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for text in [
        "<title>read (30 samples, 75.00%)",
        ">kernel</text>",
        "a.txt</text>",
    ] {
        assert!(stdout(&output).contains(text), "no {text}");
    }
    let null = run(&["diff", folded, folded, "-o", "/dev/null"]);
    assert_eq!(null.status.code(), Some(0), "{}", stderr(&null));
}

#[test]
fn a_reader_that_has_gone_is_no_error() {
    for args in [&["man"][..], &["completions", "bash"], &["--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = aiprof(args).stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert_eq!(stderr(&output), "", "{args:?}");
    }
}

#[test]
fn a_full_disk_is_an_error() {
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let output = aiprof(&["man"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("cannot write to stdout"));
}

#[test]
fn diff_compares_folded_stacks() {
    let dir = tempfile::tempdir().unwrap();
    let before = write(
        dir.path(),
        "a.folded",
        "p;1;main;slow 300\np;1;main;fast 100\n",
    );
    let after = write(
        dir.path(),
        "b.folded",
        "p;2;main;slow 100\np;2;main;fast 100\n",
    );
    let svg = dir.path().join("d.svg");
    let paths = [&before, &after, &svg].map(|p| p.to_str().unwrap());
    let output = run(&["diff", paths[0], paths[1], "-o", paths[2]]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(std::fs::read_to_string(&svg).unwrap().contains("slow"));
    // slow went from 75 % to 50 %.
    let output = run(&["diff", paths[0], paths[1]]);
    let line = stdout(&output)
        .lines()
        .find(|l| l.ends_with("slow"))
        .unwrap();
    for share in ["75.0", "50.0", "-25.0"] {
        assert!(line.contains(share), "{share} is not in {line:?}");
    }
}

#[test]
fn inputs_that_are_wrong_are_named_and_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let good = write(dir.path(), "a.folded", "main 1\n");
    let bad = write(dir.path(), "b.folded", "no value here\n");
    let lost = dir.path().join("lost.folded");
    let svg = dir.path().join("d.svg");
    for wrong in [&bad, &lost] {
        let args = [
            "diff",
            good.to_str().unwrap(),
            wrong.to_str().unwrap(),
            "-o",
        ];
        let output = aiprof(&args).arg(&svg).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(
            stderr(&output).contains(wrong.to_str().unwrap()),
            "{}",
            stderr(&output)
        );
    }
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

/// Two intervals of 10 ms as iaprof writes them; in the second the device is busy for
/// 80 % of the time, with 60 samples of one kernel.
const IAPROF: &str = "\
interval\t0\t100.010000
interval\t1\t100.020000
string\t1\tmatrix.dpcpp
string\t2\t_start;main;NEO::SysCalls::ioctl;ioctl
string\t3\tcopy_buffer_rect.builtin_kernel
string\t4\tCopyBufferRectBytes2d
kernel\t0xffff1000\t1\t1409108\t2\t3\t4
string\t5\tmul
eustall\t0xf8\t5\t0\t0\t0\t0\t0\t45\t0\t0\t0\t0
eustall\t0x100\t5\t15\t0\t0\t0\t0\t0\t0\t0\t0\t0
metric\tbusy-percent\t80
";

#[test]
fn recordings_of_iaprof_become_any_output_and_go_back() {
    let dir = tempfile::tempdir().unwrap();
    let input = write(dir.path(), "recorded.txt", IAPROF);
    let input = input.to_str().unwrap();
    let report = |options: &[&str]| {
        let output = run(&[&["report", input], options].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let host = "matrix.dpcpp;1409108;_start;main;NEO::SysCalls::ioctl;ioctl;-";
    let kernel = "copy_buffer_rect.builtin_kernel_[G];CopyBufferRectBytes2d_[G]";
    // 45 and 15 of 60 samples, of 8 ms.
    assert_eq!(
        report(&[]),
        format!(
            "{host};{kernel};mul_[g];active_[g];0x100_[g] 2000\n\
             {host};{kernel};mul_[g];sbid_[g];0xf8_[g] 6000\n"
        )
    );
    let inverted = report(&["--inverted", "--by-stall", "--weight", "samples"]);
    let last = inverted.lines().last().unwrap();
    assert!(
        last.starts_with("0xf8_[g];mul_[g];CopyBufferRectBytes2d_[G];"),
        "{last}"
    );
    assert!(
        last.contains(";sbid_[g];-;ioctl;") && last.ends_with(";matrix.dpcpp 45"),
        "{last}"
    );
    let csv = report(&["--format", "unitrace-csv"]);
    let row = csv.lines().last().unwrap();
    let fields: Vec<&str> = row.split(',').map(str::trim).collect();
    assert_eq!(fields[..3], ["\"CopyBufferRectBytes2d\"", "100", "15"]);
    // What was written is read: without call paths and times.
    let table = write(dir.path(), "table.csv", &csv);
    let output = run(&["report", table.to_str().unwrap(), "--by-stall"]);
    assert_eq!(
        stdout(&output),
        "[unknown];0;[no call paths];-;active_[g];CopyBufferRectBytes2d_[G];0x100_[g] 15\n\
         [unknown];0;[no call paths];-;sbid_[g];CopyBufferRectBytes2d_[G];0xf8_[g] 45\n"
    );
    let svg = report(&["--format", "svg"]);
    assert!(svg.contains("replayed (synthetic or recorded) device: GPU (recorded by iaprof)"));

    let again = dir.path().join("again.iaprof");
    let again = again.to_str().unwrap();
    report(&["-o", again]);
    let text = std::fs::read_to_string(again).unwrap();
    for line in [
        "eustall\t0xf8\t5\t0\t0\t0\t0\t0\t45\t0\t0\t0\t0",
        "metric\teu-stall-sbid\t45",
    ] {
        assert!(text.lines().any(|l| l == line), "no {line} in {text}");
    }
    let output = run(&["diff", input, again]);
    assert!(
        stdout(&output).contains("nothing changed"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn what_iaprof_does_not_record_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let untimed = IAPROF.replace("busy-percent", "frequency-MHz");
    let input = write(dir.path(), "recorded.txt", &untimed);
    let input = input.to_str().unwrap();
    let output = run(&["report", input]);
    assert!(
        stderr(&output).contains("values are numbers of samples"),
        "{}",
        stderr(&output)
    );
    assert!(
        stdout(&output).ends_with(";0xf8_[g] 45\n"),
        "{}",
        stdout(&output)
    );
    for args in [
        &["report", input, "--events", "launches"][..],
        &["report", input, "--format", "chrome"],
        &["report", input, "--format", "iaprof", "--cpu-only"],
        &["report", input, "--format", "pprof", "--inverted"],
        &["diff", input, input],
    ] {
        let output = run(args);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{args:?}: {}",
            stderr(&output)
        );
    }
    let tiber = write(
        dir.path(),
        "tiber.folded",
        "a;1;-;k_[G];mul_[g];sbid_[g];0xf8_[g]45\n",
    );
    let output = run(&["diff", tiber.to_str().unwrap(), tiber.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("sed -E"), "{}", stderr(&output));
}

#[test]
fn query_is_handed_to_a_program_of_its_own() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    // Beside the one that is tested may be the real one.
    let copy = dir.path().join("aiprof");
    copy_to(Path::new(env!("CARGO_BIN_EXE_aiprof")), &copy);
    let ask = |path: &Path| {
        let mut command = Command::new(&copy);
        command.args(["query", "top", "--lake", "a b", "--help"]);
        command.env("PATH", path).stdin(Stdio::null());
        command.output().unwrap()
    };
    let output = ask(Path::new("/nonexistent"));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("cargo build"), "{output:?}");
    let folder = dir.path().join("bin");
    std::fs::create_dir(&folder).unwrap();
    let script = "#!/bin/sh\nprintf '%s\\n' \"$@\"\nexit 3\n";
    let written = write(dir.path(), "script", script);
    std::fs::set_permissions(&written, PermissionsExt::from_mode(0o755)).unwrap();
    copy_to(&written, &folder.join("aiprof-query"));
    let output = ask(&folder);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(stdout(&output), "top\n--lake\na b\n--help\n");
}
