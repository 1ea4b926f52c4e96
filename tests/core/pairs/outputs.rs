//! The other formats agree with the folded stacks: one recording, many outputs, read by programs
//! that are not ours.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use aiprof_tests::aiprof::{Aiprof, binary, truth};
use aiprof_tests::chain::{check, from_entry};
use aiprof_tests::folded::{Folded, Line};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::{Workshop, checked};

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("cc")];
const LEAST: u64 = 400;

/// A capture of depth.c, 20 deep, and the program's pid.
fn capture(shop: &Workshop) -> anyhow::Result<(PathBuf, u32)> {
    let program = shop.build("depth.c", "captured", &[])?;
    let file = shop.path("run.aiprof");
    let output = Aiprof::with(["-F", "499", "-o"])
        .option(&file)
        .command(program, &["1.5", "20"])
        .to_command()?
        .output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{}\n{stderr}", output.status);
    let stdout = String::from_utf8_lossy(&output.stdout);
    Ok((file, truth(&stdout, "pid")? as u32))
}

/// `aiprof report CAPTURE -o OUTPUT OPTIONS`.
fn report(capture: &Path, output: &Path, options: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new(binary()?);
    command
        .arg("report")
        .arg(capture)
        .arg("-o")
        .arg(output)
        .args(options);
    checked(&mut command).map(drop)
}

fn report_folded(shop: &Workshop, capture: &Path, options: &[&str]) -> anyhow::Result<Folded> {
    let out = shop.path("report.folded");
    report(capture, &out, options)?;
    Folded::parse(&std::fs::read_to_string(out)?)
}

fn is_captured(line: &Line) -> bool {
    let mut chain = vec!["down"; 20];
    chain.push("bottom");
    from_entry(line, "main")
        .is_some_and(|n| chain.starts_with(&n[1..]) || n.get(1) == Some(&"work_left"))
}

#[test]
fn capture_reports_the_true_stacks() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let (file, pid) = capture(&shop)?;
    let counts = report_folded(&shop, &file, &["--weight", "samples"])?;
    check("from the capture", &counts.of_pid(pid), LEAST, is_captured)?;
    // The same recording by time: the same stacks, and each sample stands for
    // its period, 1/499 s.
    let times = report_folded(&shop, &file, &[])?;
    let keys = |folded: &Folded| -> Vec<String> {
        let mut keys: Vec<_> = folded
            .lines
            .iter()
            .map(|l| format!("{};{};{}", l.comm, l.pid, l.frames.join(";")))
            .collect();
        keys.sort();
        keys
    };
    anyhow::ensure!(keys(&counts) == keys(&times), "other stacks by time");
    let (expected, got) = (counts.total() as f64 * 1e6 / 499.0, times.total() as f64);
    anyhow::ensure!(
        (expected - got).abs() <= 0.01 * expected,
        "{got} us, must be {expected} us"
    );
    // Replaying is deterministic.
    let again = report_folded(&shop, &file, &[])?;
    anyhow::ensure!(again == times, "another report of the same capture");
    Ok(())
}

#[test]
fn capture_and_direct_output_agree() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    // Two recordings of one program cannot be equal in counts, but what they
    // name must be: the stacks of all but rare samples.
    let shop = Workshop::new()?;
    let (file, pid) = capture(&shop)?;
    let replayed = report_folded(&shop, &file, &["--weight", "samples"])?.of_pid(pid);
    let program = shop.path("captured");
    let direct = Aiprof::counting()
        .command(program, &["1.5", "20"])
        .record_one()?
        .folded;
    let shares = |folded: &Folded| -> BTreeMap<String, f64> {
        let mut shares = BTreeMap::new();
        for line in &folded.lines {
            let share = line.value as f64 / folded.total() as f64;
            *shares.entry(line.user().join(";")).or_default() += share;
        }
        shares
    };
    let (replayed, direct) = (shares(&replayed), shares(&direct));
    for (stack, share) in &direct {
        let other = replayed.get(stack).copied().unwrap_or(0.0);
        anyhow::ensure!(
            (share - other).abs() <= 0.05,
            "{stack}: {share:.3} directly, {other:.3} from the capture: {replayed:#?}"
        );
    }
    Ok(())
}

#[test]
fn svg_is_well_formed_and_complete() -> anyhow::Result<()> {
    let needs = [NEEDS[0], NEEDS[1], Need::Tool("python3")];
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let (file, _) = capture(&shop)?;
    let svg = shop.path("flame.svg");
    report(&file, &svg, &["--title", "A <title> & \"more\""])?;
    let script = "import sys, xml.dom.minidom as m\n\
                  d = m.parse(sys.argv[1])\n\
                  for t in d.getElementsByTagName('title') + d.getElementsByTagName('text'):\n\
                  \x20   print(''.join(c.data for c in t.childNodes if c.nodeType == c.TEXT_NODE))\n";
    let texts = checked(Command::new("python3").args(["-c", script]).arg(&svg))?;
    for text in ["A <title> & \"more\"", "main (", "down (", "bottom ("] {
        anyhow::ensure!(
            texts.contains(text),
            "no {text:?} in the flame graph:\n{texts}"
        );
    }
    let samples = report_folded(&shop, &file, &["--weight", "samples"])?.total();
    anyhow::ensure!(
        texts
            .replace(',', "")
            .contains(&format!("{samples} samples")),
        "the subtitle does not state {samples} samples:\n{texts}"
    );
    Ok(())
}

/// Sums of the two values in `go tool pprof -raw`, and of those of one pid.
fn raw_sums(raw: &str, pid: u32) -> anyhow::Result<([u64; 2], [u64; 2])> {
    let body = raw.split_once("Samples:\n").context("no samples")?.1;
    let body = body.split_once("Locations").context("no locations")?.0;
    let (mut all, mut own, mut last) = ([0; 2], [0; 2], [0; 2]);
    let label = format!("pid:[{pid}]");
    // `COUNT NANOSECONDS: LOCATION...` and below it the labels.
    for line in body.lines().skip(1) {
        let values = line
            .split_once(':')
            .map(|(values, _)| values.split_whitespace());
        let numbers: Vec<u64> = values
            .into_iter()
            .flatten()
            .map_while(|v| v.parse().ok())
            .collect();
        if let [count, time] = numbers[..] {
            last = [count, time];
            all = [all[0] + count, all[1] + time];
        } else if line.split_whitespace().any(|word| word == label) {
            own = [own[0] + last[0], own[1] + last[1]];
        }
    }
    Ok((all, own))
}

#[test]
fn pprof_is_read_by_go() -> anyhow::Result<()> {
    let needs = [NEEDS[0], NEEDS[1], Need::Tool("go")];
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let (file, pid) = capture(&shop)?;
    let pprof = shop.path("cpu.pb.gz");
    report(&file, &pprof, &[])?;
    let go = |args: &[&str]| {
        let mut command = Command::new("go");
        command.args(["tool", "pprof"]).args(args).arg(&pprof);
        checked(command.env("HOME", shop.path("")))
    };
    let counts = report_folded(&shop, &file, &["--weight", "samples"])?;
    let raw = go(&["-raw"])?;
    anyhow::ensure!(raw.contains("samples/count cpu/nanoseconds"), "{raw:.2000}");
    let (all, own) = raw_sums(&raw, pid)?;
    anyhow::ensure!(
        all[0] == counts.total(),
        "{} samples, must be {}",
        all[0],
        counts.total()
    );
    let expected = counts.of_pid(pid).total();
    anyhow::ensure!(
        own[0] == expected,
        "{} samples of pid {pid}, must be {expected}",
        own[0]
    );
    let nanoseconds = all[0] as f64 * 1e9 / 499.0;
    anyhow::ensure!(
        (all[1] as f64 - nanoseconds).abs() <= 0.001 * nanoseconds,
        "{} ns, must be {nanoseconds}",
        all[1]
    );
    let top = go(&["-top", "-nodecount=1000"])?;
    let bottom = top
        .lines()
        .any(|line| line.split_whitespace().last() == Some("bottom"));
    anyhow::ensure!(bottom, "no \"bottom\" in:\n{top}");
    Ok(())
}

#[test]
fn pprof_labels_threads_by_name() -> anyhow::Result<()> {
    let needs = [NEEDS[0], NEEDS[1], Need::Tool("go")];
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let program = shop.build("threads.c", "threads", &["-pthread"])?;
    let capture = shop.path("threads.aiprof");
    // From the program's first instruction on: what comes before is aiprof's.
    let mut recording = Aiprof::with(["--only", "-F", "499", "-o"])
        .option(&capture)
        .command(program, &["2"])
        .to_command()?;
    let pid = truth(&checked(&mut recording)?, "pid")?;
    let pprof = shop.path("threads.pb.gz");
    report(&capture, &pprof, &[])?;
    let mut go = Command::new("go");
    go.args(["tool", "pprof", "-raw"]).arg(&pprof);
    let raw = checked(go.env("HOME", shop.path("")))?;
    // For each sample of the process: texts are on a line of their own, before the one with the
    // numbers.
    let label = format!("pid:[{pid}]");
    let of_process = |line: &str| line.split_whitespace().any(|word| word == label);
    let lines: Vec<_> = raw
        .lines()
        .zip(raw.lines().skip(1))
        .filter_map(|(texts, numbers)| of_process(numbers).then_some(texts))
        .collect();
    for thread in ["worker-a", "worker-b"] {
        let label = format!("thread:[{thread}]");
        anyhow::ensure!(
            lines.iter().any(|line| line.contains(&label)),
            "no {label} in {lines:#?}"
        );
    }
    anyhow::ensure!(
        lines.iter().all(|line| line.contains("comm:[threads]")),
        "another process name: {lines:#?}"
    );
    Ok(())
}

#[test]
fn damaged_captures_are_refused_or_cut_by_name() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let (file, _) = capture(&shop)?;
    let bytes = std::fs::read(&file)?;
    let whole = report_folded(&shop, &file, &["--weight", "samples"])?.total();
    let mut flipped = bytes.clone();
    flipped
        .iter_mut()
        .skip(bytes.len() / 2)
        .step_by(97)
        .for_each(|byte| *byte ^= 0x5a);
    let cases = [
        ("empty", Vec::new()),
        (
            "noise",
            (0..5000u32)
                .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
                .collect(),
        ),
        ("header", bytes[..bytes.len().min(16)].to_vec()),
        ("early", bytes[..bytes.len() / 10].to_vec()),
        ("truncated", bytes[..bytes.len() * 6 / 10].to_vec()),
        ("flipped", flipped),
    ];
    for (name, bytes) in cases {
        let damaged = shop.path(&format!("{name}.aiprof"));
        std::fs::write(&damaged, bytes)?;
        let out = shop.path(&format!("{name}.folded"));
        let output = Command::new(binary()?)
            .arg("report")
            .arg(&damaged)
            .args(["--weight", "samples", "-o"])
            .arg(&out)
            .output()?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(
            matches!(output.status.code(), Some(0 | 1)) && !stderr.contains("panicked"),
            "{name}: {}\n{stderr}",
            output.status
        );
        anyhow::ensure!(
            stderr.contains(&format!("{name}.aiprof")),
            "{name} is not named:\n{stderr}"
        );
        anyhow::ensure!(
            output.status.success() == out.exists(),
            "{name}: half a result"
        );
        if output.status.success() {
            let some = Folded::parse(&std::fs::read_to_string(&out)?)?.total();
            // What a later cut takes may be names only.
            let fewer = name == "early";
            anyhow::ensure!(
                some < whole || (some == whole && !fewer),
                "{name}: {some} samples of {whole}"
            );
        }
    }
    Ok(())
}
