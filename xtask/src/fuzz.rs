//! `cargo xtask fuzz`: libFuzzer on stable Rust.
//!
//! The compiler's coverage pass is reachable through stable options (`-Cpasses`,
//! `-Cllvm-args`), so neither cargo-fuzz nor a nightly is needed. No sanitizer:
//! what is fuzzed is safe Rust, whose failures are panics, hangs and memory use,
//! and libFuzzer sees all three.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result, bail};
use lexopt::prelude::*;

use crate::counts::Counts;
use crate::install::{ensure, try_ensure};
use crate::packages::Group;
use crate::proc::{capture, cargo, display, root, run, target_dir};

pub(crate) const HELP: &str = "
Fuzzes one TARGET, or all of them in parallel on all CPUs. Each target ends after
--seconds N (default 60) or --runs N inputs. With both, the first limit counts.

  eh_frame       the unwind table builder, on ELF files
  go_table       the reader of the Go linker's function table
  perf_map       the reader of perf map files
  jit_dump       the reader of jitdump files
  wire           the decoder of ring-buffer records
  capture        the reader of capture files
  aiu_records    the decoder of AIU activity records
  aiu_metrics    the reader of the AIU's metrics file
  eu_stall       the decoders of device stall records and device captures
  probe_table    the reader and compiler of probe tables
  compiler_log   the reader of AIU compiler logs
  ideal_cycles   the reader of a kernel's ideal cycles in the inductor cache
  stage_profile  the reader of stage profiles
  acelyzer_args  the reader of acelyzer's command line
  trace_json     the reader of JSON traces
  perfetto       the reader and writer of Perfetto traces
  xplane         the reader of profiles of JAX and TensorFlow
  device_isa     the decoder of device instructions
  zebin          the reader of modules of device code
  pprof          the readers of pprof profiles, and of folded stacks made from them
  unitrace_csv   the reader and writer of unitrace's stall tables
  unitrace_metrics  the reader of unitrace's kernel metrics
  categories     the readers and the writer of kernel categories
  iaprof         the reader and writer of iaprof's recordings
  control        the reader of requests to a recording

Fuzzing starts from real files and keeps new inputs in target/fuzz/corpus/TARGET. An
input that fails is written to target/fuzz/failures/TARGET; to reproduce the failure,
run target/fuzz/<triple>/release/TARGET with that file. Needs a C++ compiler.
";

const TARGETS: &[&str] = &[
    "eh_frame",
    "go_table",
    "perf_map",
    "jit_dump",
    "wire",
    "capture",
    "aiu_records",
    "aiu_metrics",
    "eu_stall",
    "probe_table",
    "compiler_log",
    "ideal_cycles",
    "stage_profile",
    "acelyzer_args",
    "trace_json",
    "perfetto",
    "xplane",
    "device_isa",
    "zebin",
    "pprof",
    "unitrace_csv",
    "unitrace_metrics",
    "categories",
    "iaprof",
    "control",
];

/// Seconds for each target when a person asks.
const SECONDS: u64 = 60;

/// When a target had enough.
#[derive(Clone, Copy)]
struct Enough {
    seconds: Option<u64>,
    runs: Option<u64>,
}

impl Enough {
    /// What was asked for: with a number of inputs, time ends nothing by itself.
    fn new(seconds: Option<u64>, runs: Option<u64>) -> Self {
        let seconds = seconds.or_else(|| runs.is_none().then_some(SECONDS));
        Self { seconds, runs }
    }

    /// In libFuzzer's words.
    fn options(self) -> Vec<String> {
        let option = |name, value: Option<u64>| value.map(|n| format!("-{name}={n}"));
        let all = [
            option("max_total_time", self.seconds),
            option("runs", self.runs),
        ];
        all.into_iter().flatten().collect()
    }
}
/// Memory of one fuzz process, in MiB: every reader must stay far below.
const MEMORY_MIB: u64 = 1024;
/// Seconds for one input, after which it counts as a hang.
const HANG_SECONDS: u64 = 10;
/// Largest seed taken from the system, and largest input, in bytes.
const INPUT_BYTES: u64 = 64 * 1024;
/// Most seeds taken from one folder.
const SEEDS: usize = 64;
/// Lengths of the seeds of zeros, in bytes.
const ZEROS: &[usize] = &[16, 128, 1024, 4096];

/// LLVM's SanitizerCoverage as libFuzzer wants it: counters, the table of
/// program counters, and the operands of comparisons.
const COVERAGE: &str = "-Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Ccodegen-units=1 --cfg fuzzing";

pub(crate) fn main(args: Vec<String>) -> Result<ExitCode> {
    let mut args = lexopt::Parser::from_args(args);
    let (mut seconds, mut runs, mut chosen) = (None, None, None);
    while let Some(arg) = args.next()? {
        match arg {
            Long("seconds") => seconds = Some(args.value()?.parse()?),
            Long("runs") => runs = Some(args.value()?.parse()?),
            Value(target) if chosen.is_none() => chosen = Some(target.string()?),
            _ => return Err(arg.unexpected().into()),
        }
    }
    let enough = Enough::new(seconds, runs);
    let targets = select(chosen.as_deref())?;
    ensure(&[Group::Build, Group::Fuzz])?;
    Ok(fuzz(&targets, enough).report())
}

/// A short run of every target, for `cargo xtask test --all`.
pub(crate) fn brief(seconds: u64) -> Result<Counts> {
    if try_ensure(&[Group::Build, Group::Fuzz])? {
        return Ok(fuzz(TARGETS, Enough::new(Some(seconds), None)));
    }
    let mut counts = Counts::default();
    TARGETS
        .iter()
        .for_each(|name| counts.skip(format!("fuzz {name}: no C++ compiler")));
    Ok(counts)
}

fn select(chosen: Option<&str>) -> Result<Vec<&'static str>> {
    let Some(name) = chosen else {
        return Ok(TARGETS.to_vec());
    };
    match TARGETS.iter().find(|target| **target == name) {
        Some(target) => Ok(vec![target]),
        None => bail!(
            "no fuzz target is named {name:?}; targets: {}",
            TARGETS.join(", ")
        ),
    }
}

fn fuzz(targets: &[&str], enough: Enough) -> Counts {
    let mut counts = Counts::default();
    // The versions that aiprof is built with; cargo drops and adds the rest.
    if let Err(error) = fs::copy(root().join("Cargo.lock"), root().join("fuzz/Cargo.lock")) {
        eprintln!("xtask: cannot copy Cargo.lock to fuzz: {error}; cargo selects the versions");
    }
    let built = build(targets);
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut counts = Counts::default();
        while let Some(name) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
            // Which one it was that could not be built, building it alone shows.
            let binary = match &built {
                Ok(folder) => Ok(folder.join(name)),
                Err(_) => build(&[name]).map(|folder| folder.join(name)),
            };
            match binary.and_then(|binary| fuzz_one(name, &binary, enough)) {
                Ok(()) => counts.pass(),
                Err(error) => {
                    eprintln!("xtask: fuzz {name}: {error:#}");
                    counts.fail(format!("fuzz {name}"));
                }
            }
        }
        counts
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..cpus.min(targets.len()))
            .map(|_| scope.spawn(work))
            .collect();
        for worker in workers {
            match worker.join() {
                Ok(found) => counts.add(found),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    counts
}

/// Builds targets; the folder that they are in. `--target` keeps the flags away from
/// build scripts.
fn build(names: &[&str]) -> Result<PathBuf> {
    let triple = host_triple()?;
    let out = target_dir().join("fuzz");
    let mut command = cargo();
    command.args(["build", "--release", "--manifest-path", "fuzz/Cargo.toml"]);
    for name in names {
        command.args(["--bin", name]);
    }
    command
        .args(["--target", &triple, "--target-dir"])
        .arg(&out);
    run(command
        .env("RUSTFLAGS", COVERAGE)
        .env_remove("CARGO_ENCODED_RUSTFLAGS"))?;
    Ok(out.join(triple).join("release"))
}

/// The triple of the compiler that builds here.
pub(crate) fn host_triple() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let about = capture(Command::new(rustc).arg("-vV").current_dir(root()))?;
    let host = about.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV prints no host")?.to_string())
}

fn fuzz_one(name: &str, binary: &Path, enough: Enough) -> Result<()> {
    let work = target_dir().join("fuzz");
    let (corpus, failures) = (
        work.join("corpus").join(name),
        work.join("failures").join(name),
    );
    let seeds = work.join("seeds").join(name);
    for dir in [&corpus, &failures, &seeds] {
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    seed(name, &seeds)?;
    let log = work.join(format!("{name}.log"));
    let mut command = Command::new(binary);
    command
        .args(enough.options())
        .arg(format!("-rss_limit_mb={MEMORY_MIB}"))
        .arg(format!("-timeout={HANG_SECONDS}"))
        .arg(format!("-max_len={INPUT_BYTES}"))
        .arg(format!("-artifact_prefix={}/", failures.display()))
        // Long inputs from the start: most readers refuse short ones at once.
        .arg("-len_control=0")
        .arg("-print_final_stats=1")
        .args([&corpus, &seeds])
        .stderr(fs::File::create(&log)?);
    eprintln!("+ {}", display(&command));
    let status = command.status()?;
    let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    if !status.success() {
        bail!("{status}\n{}", tail(&text, 40));
    }
    let executed = executed(&text).context("libFuzzer printed no statistics")?;
    eprintln!("xtask: fuzz {name}: {executed} inputs, no failure");
    Ok(())
}

/// The number of inputs that libFuzzer tried.
fn executed(log: &str) -> Option<u64> {
    log.lines().find_map(|line| {
        line.strip_prefix("stat::number_of_executed_units:")?
            .trim()
            .parse()
            .ok()
    })
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<_> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Starting points: committed ones (fuzz/seeds/NAME); for `eh_frame`, small programs and libraries
/// of this system; for `probe_table`, the built-in tables; and zeros. libFuzzer learns the contents
/// of a fixed header, but is slow to learn how long it must be.
fn seed(name: &str, seeds: &Path) -> Result<()> {
    for length in ZEROS {
        fs::write(seeds.join(format!("zeros-{length}")), vec![0; *length])?;
    }
    copy_small(&root().join("fuzz/seeds").join(name), seeds, |_| true)?;
    if name == "probe_table" {
        for dir in ["profiler/probes", "profiler/probes/drivers"] {
            copy_small(&root().join(dir), seeds, |_| true)?;
        }
    }
    if name == "eh_frame" {
        for dir in [
            "/usr/bin",
            "/usr/lib64",
            "/usr/lib/x86_64-linux-gnu",
            "/usr/lib/aarch64-linux-gnu",
        ] {
            copy_small(Path::new(dir), seeds, |data| data.starts_with(b"\x7fELF"))?;
        }
    }
    Ok(())
}

/// Copies the files of a folder that are small enough and wanted, in the order
/// of their names; a folder or file that cannot be read is no seed.
fn copy_small(from: &Path, to: &Path, wanted: fn(&[u8]) -> bool) -> Result<()> {
    let Ok(entries) = fs::read_dir(from) else {
        return Ok(());
    };
    let mut paths: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    paths.sort();
    let small = |path: &PathBuf| {
        path.metadata()
            .is_ok_and(|m| m.is_file() && m.len() <= INPUT_BYTES)
    };
    let mut copied = 0;
    for path in paths.iter().filter(|path| small(path)) {
        let (Ok(data), Some(name)) = (fs::read(path), path.file_name()) else {
            continue;
        };
        if wanted(&data) {
            fs::write(to.join(name), data)?;
            copied += 1;
        }
        if copied == SEEDS {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selects_targets_by_name() {
        assert_eq!(select(None).unwrap().len(), TARGETS.len());
        assert_eq!(select(Some("wire")).unwrap(), ["wire"]);
        assert!(
            select(Some("wires"))
                .unwrap_err()
                .to_string()
                .contains("eh_frame")
        );
    }

    #[test]
    fn ends_after_time_or_inputs() {
        let options = |seconds, runs| Enough::new(seconds, runs).options();
        assert_eq!(options(None, None), ["-max_total_time=60"]);
        assert_eq!(options(Some(7), None), ["-max_total_time=7"]);
        assert_eq!(options(None, Some(9)), ["-runs=9"]);
        assert_eq!(options(Some(7), Some(9)), ["-max_total_time=7", "-runs=9"]);
    }

    #[test]
    fn every_target_has_its_source_and_manifest_entry() {
        let manifest = fs::read_to_string(root().join("fuzz/Cargo.toml")).unwrap();
        for name in TARGETS {
            assert!(
                root().join(format!("fuzz/targets/{name}.rs")).is_file(),
                "{name}"
            );
            assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
        }
    }

    #[test]
    fn reads_libfuzzer_s_statistics() {
        let log = "Done 512 runs in 2 second(s)\nstat::number_of_executed_units: 512\n\
                   stat::peak_rss_mb:              31\n";
        assert_eq!(executed(log), Some(512));
        assert_eq!(executed("Segmentation fault"), None);
    }
}
