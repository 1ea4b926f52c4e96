//! The profilers that are compared: how each is started and read.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::stacks::{self, Stack};
use crate::install::{apt_install, may_install};
use crate::proc::{capture, cargo, find_program, run, target_dir};

/// Which build of the workload a profiler can unwind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Build {
    /// As programs are built by default: no frame pointers.
    Usual,
    /// With frame pointers, also in leaf functions.
    FramePointers,
}

/// One profiler with the options it is measured with.
pub(super) struct Tool {
    pub(super) name: &'static str,
    pub(super) version: String,
    pub(super) build: Build,
    /// Records until SIGINT; then its result, or what `second` needs, is there.
    command: Vec<String>,
    /// Makes the result, where that is a second command.
    second: Option<Vec<String>>,
    /// The recording: what the first command writes.
    pub(super) recording: PathBuf,
    /// The result, and whether the last command writes it to standard output.
    pub(super) result: PathBuf,
    stdout: bool,
    /// What the result is.
    pub(super) kind: &'static str,
    read: fn(&str) -> Vec<Stack>,
}

impl Tool {
    pub(super) fn command(&self) -> Result<Command> {
        start(
            &self.command,
            (self.stdout && self.second.is_none()).then_some(&self.result),
            &self.log(),
        )
    }

    pub(super) fn second(&self) -> Result<Option<Command>> {
        let stdout = self.stdout.then_some(&self.result);
        let command = self.second.as_ref();
        command
            .map(|words| start(words, stdout, &self.log()))
            .transpose()
    }

    /// Where its messages go.
    pub(super) fn log(&self) -> PathBuf {
        self.result.with_extension("log")
    }

    pub(super) fn stacks(&self) -> Result<Vec<Stack>> {
        let text = fs::read(&self.result).with_context(|| self.result.display().to_string())?;
        Ok((self.read)(&String::from_utf8_lossy(&text)))
    }

    /// Removes what an earlier round left.
    pub(super) fn clean(&self) {
        for file in [&self.recording, &self.result, &self.log()] {
            // Mostly there is none.
            let _ = fs::remove_file(file);
        }
    }
}

fn start(words: &[String], stdout: Option<&PathBuf>, log: &Path) -> Result<Command> {
    let (program, args) = words.split_first().context("an empty command")?;
    let log = File::options().append(true).create(true).open(log)?;
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    match stdout {
        Some(path) => command.stdout(File::create(path)?),
        None => command.stdout(log.try_clone()?),
    };
    command.stderr(log);
    Ok(command)
}

/// Every profiler that is here; and of each other one its name and why it is not.
pub(super) fn all(aiprof: &Path, dir: &Path, peers: bool) -> Result<(Vec<Tool>, Vec<String>)> {
    let mut tools = vec![aiprof_svg(aiprof, dir)?, aiprof_capture(aiprof, dir)?];
    let mut missing = Vec::new();
    let mut add = |name: &str, found: Result<Vec<Tool>>| match found {
        Ok(found) => tools.extend(found),
        Err(error) => missing.push(format!("{name}: {error:#}")),
    };
    let perf = debian("perf", "linux-perf");
    add(
        "perf",
        perf.and_then(|perf| Ok(vec![perf_fp(&perf, dir)?, perf_dwarf(&perf, dir)?])),
    );
    let bpftrace = debian("bpftrace", "bpftrace");
    add(
        "bpftrace",
        bpftrace.and_then(|bpftrace| Ok(vec![bpftrace_stacks(&bpftrace, dir)?])),
    );
    if peers {
        // 99 is refused: the frequency must be a prime number.
        add("lightswitch", lightswitch(dir, 97).map(|tool| vec![tool]));
    }
    for missing in &missing {
        eprintln!("xtask: left out: {missing}");
    }
    Ok((tools, missing))
}

/// A program from a Debian package, installed if it can be.
fn debian(program: &str, package: &str) -> Result<PathBuf> {
    if find_program(program).is_none() && may_install() {
        apt_install(&[package])?;
    }
    find_program(program).context("not installed")
}

fn words(text: &str, values: &[(&str, &Path)]) -> Vec<String> {
    let value = |word: &str| {
        let known = values.iter().find(|(name, _)| *name == word);
        known.map_or_else(|| word.to_string(), |(_, path)| path.display().to_string())
    };
    text.split_whitespace().map(value).collect()
}

fn version(program: &Path, argument: &str) -> Result<String> {
    let text = capture(Command::new(program).arg(argument))?;
    Ok(text.lines().next().unwrap_or_default().trim().to_string())
}

fn aiprof_svg(program: &Path, dir: &Path) -> Result<Tool> {
    let result = dir.join("aiprof.svg");
    Ok(Tool {
        name: "aiprof",
        version: version(program, "--version")?,
        build: Build::Usual,
        command: words("BIN -q -o OUT", &[("BIN", program), ("OUT", &result)]),
        second: None,
        recording: result.clone(),
        result,
        stdout: false,
        kind: "SVG",
        read: stacks::svg,
    })
}

fn aiprof_capture(program: &Path, dir: &Path) -> Result<Tool> {
    let recording = dir.join("aiprof-capture.aiprof");
    let result = dir.join("aiprof-capture.svg");
    let values = [
        ("BIN", program),
        ("REC", recording.as_path()),
        ("OUT", result.as_path()),
    ];
    Ok(Tool {
        name: "aiprof record, report",
        version: version(program, "--version")?,
        build: Build::Usual,
        command: words("BIN -q record -o REC", &values),
        second: Some(words("BIN -q report REC -o OUT", &values)),
        recording,
        result,
        stdout: false,
        kind: "SVG",
        read: stacks::svg,
    })
}

fn perf_fp(program: &Path, dir: &Path) -> Result<Tool> {
    perf(
        program,
        dir,
        "perf -g",
        "perf-fp",
        "fp",
        Build::FramePointers,
    )
}

fn perf_dwarf(program: &Path, dir: &Path) -> Result<Tool> {
    let name = "perf --call-graph dwarf";
    perf(program, dir, name, "perf-dwarf", "dwarf", Build::Usual)
}

fn perf(
    program: &Path,
    dir: &Path,
    name: &'static str,
    file: &str,
    graph: &str,
    build: Build,
) -> Result<Tool> {
    let recording = dir.join(format!("{file}.data"));
    let result = dir.join(format!("{file}.txt"));
    let values = [
        ("BIN", program),
        ("REC", recording.as_path()),
        ("GRAPH", Path::new(graph)),
    ];
    // perf 6.1 ends by an assertion on some build ids, and names need none.
    let record = "BIN record -q -B -a -e cpu-clock -F 99 --call-graph GRAPH -o REC";
    Ok(Tool {
        name,
        version: version(program, "--version")?,
        build,
        command: words(record, &values),
        // Inlined functions would cost an addr2line process per file.
        second: Some(words(
            "BIN script --no-inline -F comm,pid,ip,sym -i REC",
            &values,
        )),
        recording,
        result,
        stdout: true,
        kind: "text",
        read: stacks::perf_script,
    })
}

fn bpftrace_stacks(program: &Path, dir: &Path) -> Result<Tool> {
    let result = dir.join("bpftrace.txt");
    let mut command = words("BIN -q -e", &[("BIN", program)]);
    command.push("profile:hz:99 { @[kstack,ustack,comm]=count(); }".into());
    Ok(Tool {
        name: "bpftrace",
        version: version(program, "--version")?,
        build: Build::FramePointers,
        command,
        second: None,
        recording: result.clone(),
        result,
        stdout: true,
        kind: "text",
        read: stacks::bpftrace,
    })
}

/// What lightswitch insists on is put where it is missing, in a mount namespace
/// of its own.
const LIGHTSWITCH: &str = r#"
mount --make-rprivate /
if [ ! -e /sys/kernel/debug/tracing ]; then
    mount -t tmpfs none /sys/kernel/debug && mkdir /sys/kernel/debug/tracing
    mount --bind /sys/kernel/tracing /sys/kernel/debug/tracing
fi
[ -e /proc/modules ] || export LD_PRELOAD="$1"
shift
exec "$@"
"#;

pub(super) fn lightswitch(dir: &Path, frequency: u32) -> Result<Tool> {
    let peers = target_dir().join("bench/peers");
    let program = peers.join("bin/lightswitch");
    if !program.exists() {
        install_lightswitch(&peers)?;
    }
    let shim = dir.join("modules.so");
    super::compile(
        include_str!("modules.c"),
        &shim,
        &["-O2", "-shared", "-fPIC"],
    )?;
    let result = dir.join("lightswitch.svg");
    let mut command = words("unshare --mount sh -c", &[]);
    command.push(LIGHTSWITCH.into());
    let frequency = frequency.to_string();
    let own = "sh SHIM BIN --sample-freq HZ --duration 3600 --profile-name OUT";
    let values = [
        ("HZ", Path::new(&frequency)),
        ("SHIM", shim.as_path()),
        ("BIN", program.as_path()),
        ("OUT", result.as_path()),
    ];
    command.extend(words(own, &values));
    Ok(Tool {
        name: "lightswitch",
        version: version(&program, "--version")?,
        build: Build::Usual,
        command,
        second: None,
        recording: result.clone(),
        result,
        stdout: false,
        kind: "SVG",
        read: stacks::svg,
    })
}

/// The version that the results name; its own lock file makes it the same
/// program everywhere.
fn install_lightswitch(root: &Path) -> Result<()> {
    if may_install() {
        apt_install(&["libelf-dev", "zlib1g-dev", "clang", "make", "pkg-config"])?;
    }
    let mut command = cargo();
    command
        .args(["install", "--locked", "lightswitch@0.7.0", "--root"])
        .arg(root);
    // Its BPF library is built in and wants a static libelf, by this path.
    let libraries = Path::new("/usr/lib/x86_64-linux-gnu");
    if libraries.join("libelf.a").exists() {
        command.env("LIBBPF_SYS_LIBRARY_PATH", libraries);
    }
    run(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_in_commands_are_filled() {
        let found = words(
            "BIN -o OUT",
            &[("BIN", Path::new("/a b")), ("OUT", Path::new("/c"))],
        );
        assert_eq!(found, ["/a b", "-o", "/c"]);
    }
}
