//! What subcommands read, detected by the contents of a file, and what they report as written.

use std::path::Path;
use std::process::{Command, Output};

use aiprof_tests::aiprof::{Aiprof, binary};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::{Workshop, checked};

const FOLDED: &str = "a;7;main;f_[i] 3\na;7;main;sys_[k] 12\n";

/// `aiprof WORDS` in a directory.
fn run(dir: &Path, words: &[&str]) -> anyhow::Result<Output> {
    Ok(Command::new(binary()?)
        .current_dir(dir)
        .args(words)
        .output()?)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs it and wants success.
fn done(dir: &Path, words: &[&str]) -> anyhow::Result<Output> {
    let output = run(dir, words)?;
    let text = stderr(&output);
    anyhow::ensure!(output.status.success(), "{words:?}: {text}");
    Ok(output)
}

/// Runs it and wants these words on stderr, and this exit status.
fn refused(dir: &Path, words: &[&str], status: i32, says: &str) -> anyhow::Result<()> {
    let output = run(dir, words)?;
    let text = stderr(&output);
    anyhow::ensure!(
        output.status.code() == Some(status) && text.contains(says),
        "{words:?}: {}, {says:?} is not in\n{text}",
        output.status
    );
    Ok(())
}

/// A directory with folded stacks in a file whose name does not show that.
fn folded() -> anyhow::Result<tempfile::TempDir> {
    let dir = tempfile::tempdir()?;
    std::fs::write(dir.path().join("stacks"), FOLDED)?;
    Ok(dir)
}

#[test]
fn folded_stacks_and_pprof_become_each_other() -> anyhow::Result<()> {
    let dir = folded()?;
    let at = dir.path();
    for (words, weight) in [(&[][..], "time"), (&["--weight", "samples"], "samples")] {
        let with = |input, output| {
            let mut all = vec!["report", input, "-o", output];
            all.extend(words);
            done(at, &all)
        };
        let said = stderr(&with("stacks", "x.pb.gz")?);
        anyhow::ensure!(
            said.contains("written to x.pb.gz: a pprof profile"),
            "{said}"
        );
        with("x.pb.gz", "again.folded")?;
        let again = std::fs::read_to_string(at.join("again.folded"))?;
        anyhow::ensure!(again == FOLDED, "{weight}: {again}");
    }
    for input in ["stacks", "x.pb.gz"] {
        done(at, &["report", input, "-q", "-o", "x.svg"])?;
        let drawn = std::fs::read_to_string(at.join("x.svg"))?;
        anyhow::ensure!(drawn.contains("sys") && drawn.contains("</svg>"), "{input}");
        done(at, &["report", input, "--format", "summary", "-o", "x.txt"])?;
        let text = std::fs::read_to_string(at.join("x.txt"))?;
        anyhow::ensure!(text.contains("sys_[k]"), "{text}");
        let diff = done(at, &["diff", input, "stacks", "--weight", "samples"])?;
        let diff = String::from_utf8_lossy(&diff.stdout).into_owned();
        anyhow::ensure!(diff.contains("nothing changed"), "{diff}");
    }
    let said = stderr(&done(at, &["report", "stacks", "-q", "-o", "x.svg"])?);
    anyhow::ensure!(said.is_empty(), "{said}");
    Ok(())
}

#[test]
fn pipes_are_inputs_too() -> anyhow::Result<()> {
    let dir = folded()?;
    let shell = format!(
        "cat stacks | {} report - -o - --format folded",
        std::path::absolute(binary()?)?.display()
    );
    let mut command = Command::new("sh");
    command.args(["-c", &shell]).current_dir(dir.path());
    assert_eq!(checked(&mut command)?, FOLDED);
    Ok(())
}

#[test]
fn what_is_not_read_is_named_with_what_reads_it() -> anyhow::Result<()> {
    let dir = folded()?;
    let at = dir.path();
    std::fs::write(at.join("t.json"), "{\"traceEvents\": []}")?;
    std::fs::write(at.join("empty"), "")?;
    done(at, &["report", "stacks", "-o", "x.svg"])?;
    for (words, says) in [
        (
            &["analyze", "stacks"][..],
            "is folded stacks, which `aiprof analyze` does not read",
        ),
        (&["stalls", "stacks"], "use `aiprof report stacks`"),
        (&["trace", "--from", "stacks"], "is folded stacks"),
        (&["report", "t.json"], "is a JSON trace"),
        (&["diff", "t.json", "stacks"], "use `aiprof analyze t.json`"),
        (&["report", "x.svg"], "is an SVG picture"),
        (&["report", "empty"], "empty is empty"),
    ] {
        refused(at, words, 1, says)?;
    }
    for (words, says) in [
        (&["report", "stacks", "-o", "x.json"][..], "has no events"),
        (&["report", "stacks", "-o", "runs/"], "has no events"),
        (
            &["report", "stacks", "-o", "x.stalls.csv"],
            "needs device samples",
        ),
        (
            &["report", "stacks", "--events", "bytes"],
            "--events needs a capture",
        ),
        (
            &["report", "stacks", "--no-kernel"],
            "--no-kernel needs a capture",
        ),
        (&["report", "stacks", "-o", "x"], "Usage: aiprof report"),
        (
            &["report", "stacks", "-o", ".", "--format", "svg"],
            ". is a directory",
        ),
    ] {
        refused(at, words, 2, says)?;
    }
    anyhow::ensure!(!at.join("runs").exists());
    Ok(())
}

/// A trace with a call `f` each second, ten of them, of a recording of aiprof that began
/// at this time of day, or of Torch if there is none.
fn calls(start_unix_us: Option<u64>, first_us: u64) -> String {
    let about = match start_unix_us {
        Some(us) => format!(
            r#""otherData":{{"version":"aiprof 1","start_monotonic_ns":5,"start_unix_ns":"{us}000"}}"#
        ),
        None => r#""deviceProperties":[]"#.to_owned(),
    };
    let event = |i: u64| {
        let ts = first_us + i * 1_000_000;
        format!(
            r#"{{"ph":"X","cat":"cpu_op","name":"f{i}","pid":7,"tid":7,"ts":{ts},"dur":5,
            "args":{{"External id":{i}}}}}"#
        )
    };
    let events: Vec<String> = (0..10).map(event).collect();
    format!("{{{about},\"traceEvents\":[{}]}}", events.join(","))
}

/// Names and begins of the slices of a trace, in order of time.
fn slices(file: &Path) -> anyhow::Result<Vec<(String, f64)>> {
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(file)?)?;
    let events = trace["traceEvents"].as_array().into_iter().flatten();
    let slices = events.filter(|event| event["ph"] == "X");
    let mut slices: Vec<_> = slices
        .map(|event| {
            let name = event["name"].as_str().unwrap_or_default().to_owned();
            (name, event["ts"].as_f64().unwrap_or(f64::NAN))
        })
        .collect();
    slices.sort_by(|a, b| a.1.total_cmp(&b.1));
    Ok(slices)
}

#[test]
fn a_part_of_a_trace_is_told_by_times_since_its_first_event() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let at = dir.path();
    let first = 1_751_234_567_000_000;
    std::fs::write(at.join("t.json"), calls(None, first))?;
    let part = |words: &[&str]| -> anyhow::Result<Vec<String>> {
        let mut all = vec!["analyze", "t.json", "-o", "part.json"];
        all.extend(words);
        done(at, &all)?;
        let slices = slices(&at.join("part.json"))?;
        Ok(slices.into_iter().map(|(name, _)| name).collect())
    };
    assert_eq!(
        part(&["--from", "2s", "--to", "4500ms"])?,
        ["f2", "f3", "f4"]
    );
    assert_eq!(part(&["--from", "8s"])?, ["f8", "f9"]);
    let us = (first + 7_500_000).to_string();
    assert_eq!(part(&["--from", &us])?, ["f8", "f9"]);
    refused(
        at,
        &["analyze", "t.json", "--from", "3s", "--to", "2s"],
        2,
        "--from is after --to",
    )?;
    refused(at, &["analyze", "t.json", "--from", "x"], 2, "such as 10s")
}

/// A trace of PyTorch with slices of these names and begins, seconds since a base.
fn since_base(base_us: i64, slices: &[(&str, i64)]) -> String {
    let slices = slices.iter().map(|(name, s)| {
        let ts = 12_000_000_000_000 + s * 1_000_000;
        format!(
            r#"{{"ph":"X","cat":"cpu_op","name":"{name}","pid":7,"tid":7,"ts":{ts},"dur":5,
            "args":{{"External id":1}}}}"#
        )
    });
    let slices: Vec<String> = slices.collect();
    format!(
        r#"{{"deviceProperties":[],"traceEvents":[{}],"baseTimeNanoseconds":{base_us}000}}"#,
        slices.join(",")
    )
}

/// The earliest event of all files is at 0, wherever it stands, and also if a part is looked at.
#[test]
fn parts_count_from_the_earliest_event_of_all_files() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let at = dir.path();
    let base = 1_722_470_400_000_000;
    let late = [("d", 9), ("c", 6), ("b", 4)];
    std::fs::write(at.join("late.json"), since_base(base, &late))?;
    std::fs::write(at.join("same.json"), since_base(base, &[("a", 3), ("e", 12)]))?;
    // Its base is five seconds later.
    let other = since_base(base + 5_000_000, &[("f", 11), ("a", -2)]);
    std::fs::write(at.join("other.json"), other)?;
    for (files, from, to, expected) in [
        (&["late.json"][..], "0s", "2s", &["b", "c"][..]),
        (&["late.json"], "3s", "5s", &["d"]),
        (&["late.json", "same.json"], "0s", "1s", &["a", "b"]),
        (&["late.json", "same.json"], "3s", "9s", &["c", "d", "e"]),
        // The first file's clock shows 3 s for "a", and 16 s for "f".
        (&["late.json", "other.json"], "0s", "3s", &["a", "b", "c"]),
        (&["other.json", "late.json"], "6s", "13s", &["d", "f"]),
    ] {
        let mut words = vec!["analyze", "--from", from, "--to", to, "-o", "part.json"];
        words.extend(files);
        done(at, &words)?;
        let found = slices(&at.join("part.json"))?;
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, expected, "{words:?}");
    }
    Ok(())
}

/// Times of all files are on the clock of the one whose base the trace has.
#[test]
fn traces_with_different_bases_are_written_with_one() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let at = dir.path();
    let base = 1_722_470_400_000_000_i64;
    std::fs::write(at.join("0.json"), since_base(base, &[("a", 1)]))?;
    std::fs::write(at.join("1.json"), since_base(base + 5_000_000, &[("b", 2)]))?;
    done(at, &["analyze", "0.json", "1.json", "-o", "out.json"])?;
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(at.join("out.json"))?)?;
    assert_eq!(trace["baseTimeNanoseconds"], base * 1000);
    let found = slices(&at.join("out.json"))?;
    let expected = [("a", 12_000_001_000_000.0), ("b", 12_000_007_000_000.0)];
    let expected = expected.map(|(name, us)| (name.to_owned(), us));
    assert_eq!(found, expected);
    Ok(())
}

#[test]
fn recordings_are_placed_by_the_time_of_day_beside_other_traces() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let at = dir.path();
    let day = 1_751_234_567_000_000;
    std::fs::write(at.join("torch.json"), calls(None, day))?;
    // Twenty seconds later, and each by itself from 0 on.
    std::fs::write(at.join("own.json"), calls(Some(day + 20_000_000), 0))?;
    for inputs in [["torch.json", "own.json"], ["own.json", "torch.json"]] {
        let ran = done(at, &["analyze", inputs[0], inputs[1], "-o", "all.json"])?;
        let said = stderr(&ran);
        anyhow::ensure!(!said.contains("Mixed clocks"), "{said}");
        let slices = slices(&at.join("all.json"))?;
        let (first, last) = (&slices[0], &slices[slices.len() - 1]);
        let apart = last.1 - first.1;
        anyhow::ensure!(
            slices.len() == 20 && first.0 == "f0" && (apart - 29_000_000.0).abs() < 1.0,
            "{inputs:?}: {slices:?}"
        );
    }
    // Times since the start of the machine, which nothing in the file shows.
    let boot = calls(None, 5_000_000).replace("deviceProperties", "other");
    std::fs::write(at.join("boot.json"), boot)?;
    let said = stderr(&done(at, &["analyze", "own.json", "boot.json"])?);
    anyhow::ensure!(said.contains("count from its first event"), "{said}");
    Ok(())
}

#[test]
fn a_mistyped_subcommand_is_not_recorded() -> anyhow::Result<()> {
    let dir = folded()?;
    for (word, name) in [("reprot", "report"), ("analyse", "analyze")] {
        let says = format!("did you mean `aiprof {name}`?");
        refused(dir.path(), &[word, "stacks"], 127, &says)?;
    }
    refused(
        dir.path(),
        &["report", "--formt", "svg"],
        2,
        "Usage: aiprof report",
    )
}

#[test]
fn directories_are_for_tensorboard() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    let shop = Workshop::new()?;
    let dir = shop.path("runs");
    let recording = |output: &Path| -> anyhow::Result<String> {
        let mut command = Aiprof::with(["-F", "99", "-o"])
            .option(output)
            .command("sleep", &["0.2"])
            .to_command()?;
        let output = command.output()?;
        anyhow::ensure!(output.status.success(), "{}", stderr(&output));
        Ok(stderr(&output))
    };
    // Made by the format's name, and there the second time.
    let capture = shop.path("x.aiprof");
    let said = recording(&capture)?;
    anyhow::ensure!(said.contains("x.aiprof: a capture"), "{said}");
    let at = |name: &str| dir.join(name);
    std::fs::create_dir(&dir)?;
    let said = recording(&dir)?;
    anyhow::ensure!(said.contains("a trace for TensorBoard"), "{said}");
    let parent = dir.parent().unwrap_or(&dir);
    done(parent, &["report", "x.aiprof", "-o", "runs/"])?;
    done(parent, &["report", "x.aiprof", "-o", "x.json"])?;
    done(
        parent,
        &["analyze", "x.json", "-o", "new", "--format", "tensorboard"],
    )?;
    done(parent, &["analyze", "x.aiprof", "-o", "other/"])?;
    for file in [
        at("aiprof.pt.trace.json"),
        at("x.pt.trace.json"),
        shop.path("new/x.pt.trace.json"),
        shop.path("other/x.pt.trace.json"),
    ] {
        let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&file)?)?;
        let events = trace["traceEvents"].as_array().map_or(0, Vec::len);
        anyhow::ensure!(events > 0, "{}", file.display());
    }
    anyhow::ensure!(at("x_report.html").exists() && !at("x.json").exists());
    Ok(())
}
