//! Messages of MPI between ranks, against the programs' own logs, with both libraries that
//! Debian has; and clocks of recordings, against what was added to them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use aiprof_tests::aiprof::binary;
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::Workshop;
use anyhow::{Context as _, ensure};
use serde_json::Value;

/// How many ranks run.
const RANKS: usize = 4;
/// Begin and end of calls by the program's log are around those recorded, ns: what a file
/// rounds.
const ROUNDED_NS: f64 = 2_000.0;

/// A library of MPI as Debian installs it beside others.
#[derive(Clone, Copy)]
struct Mpi {
    compiler: &'static str,
    launcher: &'static str,
    options: &'static [&'static str],
}

const OPEN_MPI: Mpi = Mpi {
    compiler: "mpicc.openmpi",
    launcher: "mpirun.openmpi",
    options: &["--allow-run-as-root", "--oversubscribe"],
};

const MPICH: Mpi = Mpi {
    compiler: "mpicc.mpich",
    launcher: "mpirun.mpich",
    options: &[],
};

impl Mpi {
    fn needs(self) -> [Need; 3] {
        let tools = [self.compiler, self.launcher].map(Need::Tool);
        [Need::Root, tools[0], tools[1]]
    }

    /// Runs a program under `aiprof` on all ranks, and gives the trace.
    fn record(self, shop: &Workshop, name: &str, program: &[&str]) -> anyhow::Result<PathBuf> {
        let trace = shop.path(&format!("{name}.json"));
        let mut command = Command::new(binary()?);
        // Ranks that wait for one another forever would wait with the test.
        command.arg("-o").arg(&trace).args(["timeout", "120"]);
        command.arg(self.launcher);
        command.args(self.options).args(["-n", &RANKS.to_string()]);
        let output = command.args(program).stdin(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}\n{said}", output.status);
        Ok(trace)
    }

    /// The workload and the folder of its logs.
    fn build(self, shop: &Workshop) -> anyhow::Result<(PathBuf, PathBuf)> {
        let program = shop.path("mpi_traffic");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads/mpi_traffic.c");
        let mut compiler = Command::new(self.compiler);
        compiler.args(["-O2", "-w", "-o"]).arg(&program).arg(source);
        ensure!(compiler.status()?.success(), "{}", self.compiler);
        let logs = shop.path("logs");
        std::fs::create_dir_all(&logs)?;
        Ok((program, logs))
    }
}

fn analyze(arguments: &[&str], files: &[PathBuf]) -> anyhow::Result<String> {
    analyze_to(0, arguments, files)
}

/// The same with an exit status: 3 if a file is damaged.
fn analyze_to(status: i32, arguments: &[&str], files: &[PathBuf]) -> anyhow::Result<String> {
    let mut command = Command::new(binary()?);
    let output = command
        .arg("analyze")
        .args(files)
        .args(arguments)
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let is_expected = output.status.code() == Some(status);
    ensure!(is_expected, "{}\n{said}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

fn read(path: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read(path).with_context(|| path.display().to_string())?;
    Ok(serde_json::from_slice(&text)?)
}

fn events(trace: &Value) -> impl Iterator<Item = &Value> {
    trace["traceEvents"].as_array().into_iter().flatten()
}

/// Number of a message, and around when, by CLOCK_MONOTONIC, in ns.
type Logged = (f64, f64, u64);

/// What the ranks logged, by process.
#[derive(Default)]
struct Log {
    sent: BTreeMap<u64, Vec<Logged>>,
    arrived: BTreeMap<u64, Vec<Logged>>,
    count: usize,
}

impl Log {
    fn read(folder: &Path) -> anyhow::Result<Self> {
        let mut log = Self::default();
        for rank in 0..RANKS {
            let text = std::fs::read_to_string(folder.join(format!("{rank}.log")))?;
            let mut pid = 0;
            for line in text.lines() {
                let words: Vec<&str> = line.split(' ').collect();
                let [what, number, from, to] = words.as_slice() else {
                    anyhow::bail!("{line}");
                };
                let one = (from.parse()?, to.parse()?, number.parse()?);
                match *what {
                    "P" => pid = one.2,
                    "S" => log.sent.entry(pid).or_default().push(one),
                    _ => {
                        log.arrived.entry(pid).or_default().push(one);
                        log.count += 1;
                    }
                }
            }
        }
        Ok(log)
    }
}

/// The messages that a process logged around a time.
fn around(log: &BTreeMap<u64, Vec<Logged>>, event: &Value, start_ns: f64) -> Vec<u64> {
    let pid = event["pid"].as_u64().unwrap_or(0);
    let at = event["ts"].as_f64().unwrap_or(f64::NAN) * 1000.0 + start_ns;
    let all = log.get(&pid).into_iter().flatten();
    let is_it = |(from, to, _): &&Logged| from - ROUNDED_NS <= at && at <= to + ROUNDED_NS;
    all.filter(is_it).map(|(.., number)| *number).collect()
}

/// Compares a trace's arrows with the log. Gives how many there are.
fn check_arrows(raw: &Value, analysed: &Value, log: &Log) -> anyhow::Result<usize> {
    let start = raw["otherData"]["start_monotonic_ns"].to_string();
    let start_ns: f64 = start.trim_matches('"').parse()?;
    let mut arrows: BTreeMap<String, [Option<&Value>; 2]> = BTreeMap::new();
    for event in events(analysed).filter(|event| event["cat"] == "mpi") {
        let at = usize::from(event["ph"] == "f");
        let ends = arrows.entry(event["id"].to_string()).or_default();
        ensure!(ends[at].replace(event).is_none(), "{event}: twice");
    }
    for (id, ends) in &arrows {
        let [Some(from), Some(to)] = ends else {
            anyhow::bail!("{id} has one end");
        };
        let sent = around(&log.sent, from, start_ns);
        let arrived = around(&log.arrived, to, start_ns);
        let is_right = sent.iter().any(|number| arrived.contains(number));
        ensure!(is_right, "{from}\n{to}\n{sent:?} {arrived:?}");
    }
    Ok(arrows.len())
}

fn messages_arrive_where_the_program_saw_them(name: &str, mpi: Mpi) -> anyhow::Result<()> {
    skip_unless!(name, &mpi.needs());
    let shop = Workshop::new()?;
    let (program, logs) = mpi.build(&shop)?;
    let program = program.to_str().context("a path")?;
    for seed in ["1", "2", "3"] {
        let words = [program, logs.to_str().context("a path")?, seed, "30"];
        let trace = mpi.record(&shop, seed, &words)?;
        let out = shop.path("out.json");
        analyze(
            &["-o", out.to_str().context("a path")?],
            std::slice::from_ref(&trace),
        )?;
        let log = Log::read(&logs)?;
        let found = check_arrows(&read(&trace)?, &read(&out)?, &log)?;
        ensure!(
            found == log.count && found > 100,
            "{found} of {}",
            log.count
        );
        // The table counts the same, and nothing is left.
        let text = analyze(
            &["--table", "messages", "--format", "json"],
            std::slice::from_ref(&trace),
        )?;
        let table: Value = serde_json::from_str(&text)?;
        ensure!(text.contains("MPI_Isend"), "{text}");
        ensure!(
            !text.contains("have no") && !text.contains("left out"),
            "{text}"
        );
        let rows = rows(&table);
        let counted: f64 = rows.iter().filter_map(|row| row["count"].as_f64()).sum();
        ensure!(counted as usize == log.count, "{counted} of {}", log.count);
    }
    // One of which only the program knows is counted, and none is guessed.
    let words = [
        program,
        logs.to_str().context("a path")?,
        "4",
        "30",
        "ignore",
    ];
    let trace = mpi.record(&shop, "ignored", &words)?;
    let out = shop.path("out.json");
    analyze(
        &["-o", out.to_str().context("a path")?],
        std::slice::from_ref(&trace),
    )?;
    let log = Log::read(&logs)?;
    check_arrows(&read(&trace)?, &read(&out)?, &log)?;
    let text = analyze(&["--table", "messages"], &[trace])?;
    let ignored = RANKS - 1;
    ensure!(
        text.contains(&format!("{ignored} receives from any source")),
        "{text}"
    );
    Ok(())
}

/// The rows of a table in JSON, wherever the format puts them.
fn rows(table: &Value) -> Vec<&Value> {
    match table {
        Value::Array(all) if all.iter().any(|one| one.get("count").is_some()) => {
            all.iter().collect()
        }
        Value::Array(all) => all.iter().flat_map(rows).collect(),
        Value::Object(all) => all.values().flat_map(rows).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn open_mpi_s_messages_arrive_where_the_program_saw_them() -> anyhow::Result<()> {
    let name = "open_mpi_s_messages_arrive_where_the_program_saw_them";
    messages_arrive_where_the_program_saw_them(name, OPEN_MPI)
}

#[test]
fn mpich_s_messages_arrive_where_the_program_saw_them() -> anyhow::Result<()> {
    let name = "mpich_s_messages_arrive_where_the_program_saw_them";
    messages_arrive_where_the_program_saw_them(name, MPICH)
}

#[test]
fn objects_of_python_arrive() -> anyhow::Result<()> {
    const PYTHON: &str = "/usr/bin/python3";
    let [root, _, launcher] = OPEN_MPI.needs();
    let library = Need::Path("/usr/lib/python3/dist-packages/mpi4py");
    let needs = [root, launcher, library, Need::Path(PYTHON)];
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads/mpi_objects.py");
    let folder = shop.path("");
    let words = [&source, &folder].map(|path| path.to_str().unwrap_or_default());
    let trace = OPEN_MPI.record(&shop, "objects", &[PYTHON, words[0], words[1]])?;
    let mut truth: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for from in 0..RANKS as u64 {
        let text = std::fs::read_to_string(shop.path(&format!("{from}.sent")))?;
        for line in text.lines() {
            let (to, count) = line.split_once(' ').context("two words")?;
            truth.insert((from, to.parse()?), count.parse()?);
        }
    }
    let text = analyze(&["--table", "messages", "--format", "json"], &[trace])?;
    let table: Value = serde_json::from_str(&text)?;
    let mut found: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for row in rows(&table) {
        let number = |key: &str| row[key].as_u64().with_context(|| row.to_string());
        *found.entry((number("from")?, number("to")?)).or_default() += number("count")?;
    }
    ensure!(found == truth, "{found:?}\n{truth:?}\n{text}");
    Ok(())
}

/// The ranks of processes, by their labels.
fn ranks(trace: &Value) -> BTreeMap<u64, usize> {
    let labels = events(trace).filter(|event| event["name"] == "process_labels");
    let rank = |event: &Value| {
        let rank = event["args"]["values"]["rank"].as_str()?.parse().ok()?;
        Some((event["pid"].as_u64()?, rank))
    };
    labels.filter_map(rank).collect()
}

/// Begins of the calls of MPI of each process.
fn begins(trace: &Value) -> BTreeMap<u64, Vec<f64>> {
    let mut found: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for event in events(trace).filter(|event| event["ph"] == "X") {
        let is_mpi = event["name"]
            .as_str()
            .is_some_and(|name| name.contains("MPI_"));
        if let (true, Some(pid), Some(ts)) = (is_mpi, event["pid"].as_u64(), event["ts"].as_f64()) {
            found.entry(pid).or_default().push(ts);
        }
    }
    for all in found.values_mut() {
        all.sort_by(f64::total_cmp);
    }
    found
}

/// Synthetic: a recording taken apart, a file for each rank, with another clock each: some
/// microseconds ahead, and at another rate.
fn take_apart(
    shop: &Workshop,
    raw: &Value,
    clocks: &[(f64, f64); RANKS],
) -> anyhow::Result<Vec<PathBuf>> {
    let ranks = ranks(raw);
    let mut files = Vec::new();
    for (rank, (ahead, rate)) in clocks.iter().enumerate() {
        let shows = |us: f64| us + ahead + rate * us;
        let its = |event: &&Value| {
            let pid = event["pid"].as_u64().unwrap_or(0);
            ranks.get(&pid) == Some(&rank)
        };
        let mut all = Vec::new();
        for event in events(raw).filter(its) {
            let mut event = event.clone();
            if let (Some(ts), true) = (event["ts"].as_f64(), event["ph"] != "M") {
                let dur = event["dur"].as_f64();
                event["ts"] = shows(ts).into();
                if let Some(dur) = dur {
                    event["dur"] = (shows(ts + dur) - shows(ts)).into();
                }
            }
            all.push(event);
        }
        let mut file = raw.clone();
        file["traceEvents"] = all.into();
        let path = shop.path(&format!("rank{rank}.json"));
        std::fs::write(&path, serde_json::to_vec(&file)?)?;
        files.push(path);
    }
    Ok(files)
}

/// Aligns files, and compares with what the clocks were. Gives the largest error of calls.
fn check_clocks(shop: &Workshop, raw: &Value, files: &[PathBuf]) -> anyhow::Result<f64> {
    let out = shop.path("aligned.json");
    analyze(&["-o", out.to_str().context("a path")?], files)?;
    let text = analyze(&["--table", "clocks", "--format", "csv"], files)?;
    let mut lines = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    let head: Vec<&str> = lines.next().context("a head")?.split(',').collect();
    let column = |name: &str| head.iter().position(|one| one.contains(name));
    let at = column("error_anywhere").with_context(|| text.clone())?;
    let bounds: Vec<f64> = lines
        .filter_map(|line| line.split(',').nth(at)?.trim().parse().ok())
        .collect();
    ensure!(bounds.len() == RANKS, "{text}");
    let (truth, aligned) = (begins(raw), begins(&read(&out)?));
    let mut worst: f64 = 0.0;
    // The first file's clock is taken for right.
    let base = ranks(raw)
        .into_iter()
        .find(|(_, rank)| *rank == 0)
        .context("rank 0")?
        .0;
    let zero = aligned[&base][0] - truth[&base][0];
    for (pid, rank) in ranks(raw) {
        let Some(all) = truth.get(&pid) else { continue };
        let now = aligned.get(&pid).context("a process")?;
        ensure!(
            now.len() == all.len(),
            "{rank}: {} of {}",
            now.len(),
            all.len()
        );
        for (truth, now) in all.iter().zip(now) {
            let error = (now - truth - zero).abs();
            ensure!(error <= bounds[rank] + 0.01, "{rank}: {error} us\n{text}");
            worst = worst.max(error);
        }
    }
    Ok(worst)
}

#[test]
fn clocks_are_known_to_within_their_bounds() -> anyhow::Result<()> {
    skip_unless!(&OPEN_MPI.needs());
    let shop = Workshop::new()?;
    let (program, logs) = OPEN_MPI.build(&shop)?;
    let (program, logs) = (
        program.to_str().context("a path")?,
        logs.to_str().context("a path")?,
    );
    let trace = OPEN_MPI.record(&shop, "clocks", &[program, logs, "5", "400"])?;
    let raw = read(&trace)?;
    let constant = [(0.0, 0.0), (5e3, 0.0), (-7e4, 0.0), (1.2e6, 0.0)];
    let files = take_apart(&shop, &raw, &constant)?;
    let worst = check_clocks(&shop, &raw, &files)?;
    println!("constant: {worst:.3} us");
    ensure!(worst < 500.0, "{worst}");
    let drifting = [(0.0, 0.0), (5e3, 3e-4), (-7e4, -2e-4), (1.2e6, 1e-4)];
    let files = take_apart(&shop, &raw, &drifting)?;
    let worst = check_clocks(&shop, &raw, &files)?;
    println!("drifting: {worst:.3} us");
    // The other way round, and a file that was cut off.
    let half = std::fs::read(&files[2])?;
    std::fs::write(&files[2], &half[..half.len() * 2 / 3])?;
    analyze_to(3, &["--table", "clocks,messages,rank-waits"], &files)?;
    Ok(())
}
