//! `bench analyze`: `aiprof acelyzer` beside the original, and beside a program that
//! does no more than read and write the same file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::Options;
use super::report::{mib, publish, table};
use super::watch::{Quiet, Usage, median, usage};
use crate::install::try_ensure;
use crate::packages::Group;
use crate::proc::{capture, cargo, root, run, target_dir};

/// Events of a file when nothing else is asked for.
const EVENTS: u64 = 1_000_000;

/// The goals, each with how often one goes into the other.
const FASTER: f64 = 100.0;
const SLOWER: f64 = 2.5;
const MEMORY: f64 = 2.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Flex,
    Torch,
}

impl Format {
    const ALL: [Self; 2] = [Self::Flex, Self::Torch];

    fn name(self) -> &'static str {
        match self {
            Self::Flex => "FLEX",
            Self::Torch => "TORCH",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    Aiprof,
    Acelyzer,
    Copy,
}

/// A program on a file, and what each of its runs needed.
struct Case {
    format: Format,
    tool: Tool,
    events: u64,
    input: u64,
    runs: Vec<Run>,
}

struct Run {
    usage: Usage,
    /// Bytes of all files that it wrote.
    output: u64,
    /// How many events it reports as written.
    exported: Option<u64>,
}

impl Case {
    fn median(&self, value: impl Fn(&Run) -> f64) -> f64 {
        median(self.runs.iter().map(value))
    }

    fn wall(&self) -> f64 {
        self.median(|r| r.usage.wall)
    }

    fn rate(&self) -> f64 {
        self.events as f64 / self.wall()
    }

    fn peak(&self) -> f64 {
        self.median(|r| r.usage.peak as f64)
    }

    /// Peak memory by input.
    fn memory(&self) -> f64 {
        self.peak() / self.input as f64
    }
}

/// The programs, and where they work.
struct Bench {
    dir: PathBuf,
    programs: PathBuf,
    /// The folder of the original, where it could be fetched.
    original: Option<PathBuf>,
    quiet: Quiet,
    /// Runs, and those that began on a quiet machine.
    runs: usize,
    quiet_runs: usize,
}

/// Gigabytes are not to be left behind, however this ends.
impl Drop for Bench {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.dir) {
            eprintln!("xtask: {} was not deleted: {error}", self.dir.display());
        }
    }
}

pub(super) fn main(options: &Options) -> Result<()> {
    let programs = match &options.programs {
        Some(dir) => dir.canonicalize().context("--programs")?,
        None => build()?,
    };
    let original = original()
        .inspect_err(|error| eprintln!("xtask: left out: acelyzer: {error:#}"))
        .ok();
    let mut bench = Bench {
        dir: super::work_dir("analyze")?,
        programs,
        original,
        quiet: Quiet::new(options.wait),
        runs: 0,
        quiet_runs: 0,
    };
    let events = options.events.unwrap_or(EVENTS).max(10);
    let mut cases = plan(events, options.full, bench.original.is_some());
    for round in 1..=options.rounds {
        eprintln!("xtask: round {round} of {}", options.rounds);
        for case in &mut cases {
            // Minutes each: once will do.
            if round == 1 || !(options.full && case.tool == Tool::Acelyzer) {
                bench.measure(case)?;
            }
        }
    }
    if options.full {
        for format in Format::ALL {
            bench.clean()?;
            let mut case = Case::new(format, Tool::Aiprof, events * 10);
            for _ in 0..options.rounds {
                bench.measure(&mut case)?;
            }
            cases.push(case);
        }
    }
    let body = body(&cases, events, &bench.about()?);
    let command = options.command("analyze");
    publish("analyze", &command, &body, options.write)
}

/// What is measured in turns: acelyzer on a tenth of the events, for it takes minutes
/// for all, and aiprof on that as well.
fn plan(events: u64, full: bool, original: bool) -> Vec<Case> {
    let tenth = events / 10;
    let mut cases = Vec::new();
    for format in Format::ALL {
        let mut add = |tool, events| cases.push(Case::new(format, tool, events));
        add(Tool::Aiprof, tenth);
        add(Tool::Aiprof, events);
        add(Tool::Copy, events);
        if original {
            add(Tool::Acelyzer, if full { events } else { tenth });
        }
    }
    cases
}

impl Case {
    fn new(format: Format, tool: Tool, events: u64) -> Self {
        Self {
            format,
            tool,
            events,
            input: 0,
            runs: Vec::new(),
        }
    }
}

/// Builds what is measured, and what makes the files, as aiprof is shipped.
fn build() -> Result<PathBuf> {
    super::build_aiprof()?;
    let tests = "build --release --package aiprof-tests --bin aiu-trace --bin json-copy";
    run(cargo().args(tests.split(' ')))?;
    Ok(target_dir().join("release"))
}

/// Fetches acelyzer where the tests have it.
fn original() -> Result<PathBuf> {
    if !try_ensure(&[Group::Test])? {
        bail!("acelyzer needs Python and pip");
    }
    let target = target_dir();
    let lock = File::create(target.join("acelyzer.lock"))?;
    lock.lock()?;
    let folder = target.join("acelyzer");
    let fetch = root().join("tests/acelyzer/fetch.sh");
    run(Command::new("sh").arg(fetch).arg(&folder))?;
    Ok(folder)
}

impl Bench {
    /// Runs a program on its file once more.
    fn measure(&mut self, case: &mut Case) -> Result<()> {
        let input = self.input(case.format, case.events)?;
        case.input = fs::metadata(&input)?.len();
        let out = self.dir.join("out");
        fs::create_dir_all(&out)?;
        let log = self.dir.join("log");
        let written = File::create(&log)?;
        let mut command = self.command(case.tool, &input, &out.join("out.json"))?;
        command
            .current_dir(&out)
            .stdin(Stdio::null())
            .stdout(written.try_clone()?)
            .stderr(written);
        self.runs += 1;
        self.quiet_runs += usize::from(self.quiet.wait());
        let (status, usage) = usage(&mut command)?;
        let log = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        if !status.success() {
            bail!("{:?}: {status}\n{}", case.tool, end(&log));
        }
        let run = Run {
            usage,
            output: size(&out)?,
            exported: exported(&log),
        };
        eprintln!(
            "xtask: {}",
            row(case, std::slice::from_ref(&run)).join(" | ")
        );
        case.runs.push(run);
        // Before it goes to the disk, where that can be.
        fs::remove_dir_all(&out).context("cannot remove the output")
    }

    /// A file of events, made where there is none yet.
    fn input(&self, format: Format, events: u64) -> Result<PathBuf> {
        let name = format.name().to_lowercase();
        let path = self.dir.join(format!("{name}-{events}.json"));
        if !path.exists() {
            let mut make = Command::new(self.programs.join("aiu-trace"));
            run(make.args([&name, &events.to_string()]).arg(&path))?;
        }
        Ok(path)
    }

    fn command(&self, tool: Tool, from: &Path, to: &Path) -> Result<Command> {
        let mut command = match tool {
            Tool::Copy => {
                let mut copy = Command::new(self.programs.join("json-copy"));
                copy.args([from, to]);
                return Ok(copy);
            }
            Tool::Aiprof => {
                let mut ours = Command::new(self.programs.join("aiprof"));
                ours.arg("acelyzer");
                ours
            }
            Tool::Acelyzer => self.acelyzer()?,
        };
        command.arg("-i").arg(from).arg("-o").arg(to);
        Ok(command)
    }

    fn acelyzer(&self) -> Result<Command> {
        let folder = self
            .original
            .as_ref()
            .context("acelyzer is not installed")?;
        let mut command = Command::new("python3");
        command
            .arg(folder.join("bin/acelyzer"))
            .env("PYTHONPATH", folder)
            // What it writes may hang on the order of a set.
            .env("PYTHONHASHSEED", "0");
        Ok(command)
    }

    /// Removes all files.
    fn clean(&self) -> Result<()> {
        fs::remove_dir_all(&self.dir)?;
        fs::create_dir_all(&self.dir).context("cannot create the folder again")
    }

    /// What was measured, in words.
    fn about(&self) -> Result<String> {
        let version = |command: &mut Command| {
            let text = capture(command.arg("--version"))?;
            anyhow::Ok(text.trim().to_string())
        };
        let mut text = version(&mut Command::new(self.programs.join("aiprof")))?;
        if self.original.is_some() {
            let python = version(&mut Command::new("python3"))?;
            let theirs = version(&mut self.acelyzer()?)?;
            text += &format!(", acelyzer {theirs} ({python})");
        }
        Ok(format!(
            "{text}. {} of {} runs began on a quiet machine.",
            self.quiet_runs, self.runs
        ))
    }
}

/// Bytes of all files of a folder.
fn size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes)
}

/// The count in the last lines that both print.
fn exported(log: &str) -> Option<u64> {
    let line = log.lines().rev().find(|l| l.contains("Exported events:"))?;
    line.split("Exported events:").nth(1)?.trim().parse().ok()
}

/// The last lines of a log.
fn end(log: &str) -> String {
    let lines: Vec<&str> = log.lines().rev().take(10).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}

fn body(cases: &[Case], events: u64, about: &str) -> String {
    let programs = [
        "file, program",
        "runs",
        "events",
        "MiB in",
        "MiB out",
        "events out",
        "wall s",
        "CPU s",
        "events/s",
        "peak MiB",
    ];
    let rows: Vec<_> = cases
        .iter()
        .filter(|c| c.events == events || c.tool == Tool::Acelyzer)
        .map(|c| row(c, &c.runs))
        .collect();
    let goals = ["ratio", "goal", "FLEX", "TORCH"];
    let growth = [
        "aiprof, growth",
        "events",
        "wall s",
        "us/event",
        "peak MiB",
        "peak bytes/event",
        "peak / input",
    ];
    format!(
        "{about} Medians.\n\n{}\n{}\n{}",
        table(&programs, &rows),
        table(&goals, &ratios(cases, events)),
        table(&growth, &growth_rows(cases)),
    )
}

/// What some runs of a case needed.
fn row(case: &Case, runs: &[Run]) -> Vec<String> {
    let middle = |value: &dyn Fn(&Run) -> f64| median(runs.iter().map(value));
    let tool = match case.tool {
        Tool::Aiprof => "aiprof acelyzer",
        Tool::Acelyzer => "acelyzer",
        Tool::Copy => "bare copy",
    };
    let wall = middle(&|r| r.usage.wall);
    let exported = runs.first().and_then(|r| r.exported);
    vec![
        format!("{}, {tool}", case.format.name()),
        runs.len().to_string(),
        case.events.to_string(),
        mib(case.input as f64),
        mib(middle(&|r| r.output as f64)),
        exported.map_or("-".into(), |n| n.to_string()),
        format!("{wall:.2}"),
        format!("{:.2}", middle(&|r| r.usage.cpu)),
        format!("{:.0}", case.events as f64 / wall),
        mib(middle(&|r| r.usage.peak as f64)),
    ]
}

/// aiprof by the others, and its goals.
fn ratios(cases: &[Case], events: u64) -> Vec<Vec<String>> {
    let find = |format, tool| {
        let all = tool == Tool::Acelyzer;
        let wanted = |c: &&Case| c.format == format && c.tool == tool;
        cases
            .iter()
            .find(|c| wanted(c) && (all || c.events == events))
    };
    let line = |name: &str, goal: String, ratio: &dyn Fn(Format) -> Option<f64>| {
        let shown = |f| ratio(f).map_or("-".into(), |r| format!("{r:.2}"));
        let mut cells = vec![name.to_string(), goal];
        cells.extend(Format::ALL.map(shown));
        cells
    };
    let ours = |format| find(format, Tool::Aiprof);
    vec![
        line(
            "events/s, aiprof / acelyzer",
            format!(">= {FASTER}"),
            &|f| Some(ours(f)?.rate() / find(f, Tool::Acelyzer)?.rate()),
        ),
        line("wall, aiprof / bare copy", format!("<= {SLOWER}"), &|f| {
            Some(ours(f)?.wall() / find(f, Tool::Copy)?.wall())
        }),
        line("peak memory / input", format!("<= {MEMORY}"), &|f| {
            Some(ours(f)?.memory())
        }),
    ]
}

fn growth_rows(cases: &[Case]) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for format in Format::ALL {
        let ours = |c: &&Case| c.format == format && c.tool == Tool::Aiprof;
        rows.extend(cases.iter().filter(ours).map(|c| {
            let each = |value: f64| value / c.events as f64;
            vec![
                format.name().to_string(),
                c.events.to_string(),
                format!("{:.2}", c.wall()),
                format!("{:.2}", each(c.wall()) * 1e6),
                mib(c.peak()),
                format!("{:.0}", each(c.peak())),
                format!("{:.2}", c.memory()),
            ]
        }));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(tool: Tool, events: u64, walls: &[f64]) -> Case {
        let mut case = Case::new(Format::Flex, tool, events);
        case.input = 450 * events;
        case.runs = walls
            .iter()
            .map(|&wall| Run {
                usage: Usage {
                    wall,
                    cpu: wall / 2.0,
                    peak: 900 * events,
                },
                output: 1 << 20,
                exported: Some(7),
            })
            .collect();
        case
    }

    #[test]
    fn each_program_gets_its_files() {
        let seen = |full, original| {
            let cases = plan(1000, full, original);
            let of = |c: &Case| (c.tool, c.events);
            let flex = cases.iter().filter(|c| c.format == Format::Flex);
            flex.map(of).collect::<Vec<_>>()
        };
        let ours = [
            (Tool::Aiprof, 100),
            (Tool::Aiprof, 1000),
            (Tool::Copy, 1000),
        ];
        assert_eq!(seen(false, false), ours);
        assert_eq!(seen(false, true)[3..], [(Tool::Acelyzer, 100)]);
        assert_eq!(seen(true, true)[3..], [(Tool::Acelyzer, 1000)]);
        assert_eq!(plan(1000, true, true).len(), 8);
    }

    #[test]
    fn ratios_are_of_medians_and_of_events_per_second() {
        let cases = [
            case(Tool::Aiprof, 100, &[1.0]),
            case(Tool::Aiprof, 1000, &[2.0, 9.0, 1.0]),
            case(Tool::Copy, 1000, &[1.0, 0.8]),
            // 20 events a second; aiprof has 500.
            case(Tool::Acelyzer, 100, &[5.0]),
        ];
        let found = ratios(&cases, 1000);
        let column = |i: usize| found.iter().map(|r| r[i].as_str()).collect::<Vec<_>>();
        assert_eq!(column(1), [">= 100", "<= 2.5", "<= 2"]);
        assert_eq!(column(2), ["25.00", "2.22", "2.00"]);
        // Not measured is not zero.
        assert_eq!(column(3), ["-", "-", "-"]);
    }

    #[test]
    fn growth_is_per_event() {
        let cases = [
            case(Tool::Aiprof, 1 << 20, &[2.097_152]),
            case(Tool::Copy, 1 << 20, &[1.0]),
        ];
        let row = ["FLEX", "1048576", "2.10", "2.00", "900.0", "900", "2.00"];
        assert_eq!(growth_rows(&cases), [row]);
    }

    #[test]
    fn rows_hold_what_was_measured() {
        let case = case(Tool::Copy, 1 << 20, &[2.0]);
        let row = row(&case, &case.runs);
        let wanted = [
            "FLEX, bare copy",
            "1",
            "1048576",
            "450.0",
            "1.0",
            "7",
            "2.00",
            "1.00",
            "524288",
            "900.0",
        ];
        assert_eq!(row, wanted);
    }

    #[test]
    fn counts_are_found_in_logs() {
        let log = "a\n2026-11-21T22:05:19 INFO Exported events:  1999998 \nbye\n";
        assert_eq!(exported(log), Some(1_999_998));
        assert_eq!(exported("Exported events: many"), None);
        assert_eq!(exported(""), None);
        assert_eq!(end("1\n2\n").lines().count(), 2);
        assert_eq!(end(&"x\n".repeat(99)).lines().count(), 10);
    }
}
