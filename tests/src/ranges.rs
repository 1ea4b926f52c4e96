//! Programs that name ranges by NVTX, ITT and ROCTX and write down what they did: the clock before
//! and after each call.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::aiprof::{binary, lost};
use crate::need::{Need, lacks, skip};
use crate::range_packages::RangePackages;
use crate::trace::{Span, Trace};
use crate::workload::Workshop;

const NEEDS: [Need; 3] = [Need::Root, Need::Tool("cc"), Need::Tool("python3")];
/// Losses of ranges, as the summary has them.
pub const DROPPED: &str = "begins and ends of ranges not recorded (no room)";
/// An end is the end of none.
pub const UNMATCHED: &str = "ends of ranges without a begin";
/// A begin has no end.
pub const UNENDED: &str = "ranges whose end was not seen";
/// A text was too long.
pub const CUT: &str = "texts of ranges cut or left out";

/// A range as its program wrote it down.
#[derive(Clone, Debug)]
pub struct Truth {
    /// `n` nested, `l` loose, `m` a moment, `o` ended by its thread.
    pub form: char,
    /// Its process.
    pub pid: u64,
    /// Its thread.
    pub tid: u64,
    /// Its text.
    pub name: String,
    /// Its domain; empty: none.
    pub domain: String,
    /// The clock before and after the call that begins it, ns.
    pub begin: [u64; 2],
    /// The same of its end.
    pub end: [u64; 2],
}

/// A run of a program.
#[derive(Debug)]
pub struct Run {
    /// What it printed.
    pub output: String,
    /// What aiprof printed.
    pub stderr: String,
    /// What it wrote down.
    pub truth: Vec<Truth>,
    /// The recording, where it is a trace.
    pub trace: Option<Trace>,
}

/// What programs are built of and with.
#[derive(Debug)]
pub struct Bench {
    /// A folder of the test.
    pub shop: Workshop,
    /// The makers' packages.
    pub packages: Option<RangePackages>,
}

impl Bench {
    /// `None`, after saying why: the makers' packages cannot be had.
    ///
    /// # Errors
    /// When a folder cannot be made.
    pub fn with_packages(name: &str) -> anyhow::Result<Option<Self>> {
        let Some(mut bench) = Self::new(name)? else {
            return Ok(None);
        };
        match RangePackages::find() {
            Ok(packages) => bench.packages = Some(packages),
            Err(reason) => {
                skip(name, &reason);
                return Ok(None);
            }
        }
        Ok(Some(bench))
    }

    /// `None`, after saying why: the machine lacks what all of them need.
    ///
    /// # Errors
    /// When a folder cannot be made.
    pub fn new(name: &str) -> anyhow::Result<Option<Self>> {
        if lacks(name, &NEEDS) {
            return Ok(None);
        }
        Ok(Some(Self {
            shop: Workshop::new()?,
            packages: None,
        }))
    }

    /// Builds `ranges_nvtx.c`.
    ///
    /// # Errors
    /// When the compiler fails.
    pub fn nvtx(&self) -> anyhow::Result<PathBuf> {
        let packages = self.packages.as_ref().context("packages")?;
        let include = format!("-I{}", packages.include.display());
        let flags = ["-ldl", "-lpthread", "-lrt", &include];
        self.shop.build("ranges_nvtx.c", "ranges_nvtx", &flags)
    }

    /// Runs a program, alone or under aiprof; `out`: where the recording goes.
    ///
    /// # Errors
    /// When it fails, or its recording cannot be read.
    pub fn run(
        &self,
        out: Option<&str>,
        program: &Path,
        args: &[&str],
        options: &[&str],
    ) -> anyhow::Result<Run> {
        let truth = self.shop.path("truth");
        std::fs::write(&truth, "")?;
        let out = out.map(|name| self.shop.path(name));
        let mut command = match &out {
            Some(out) => {
                let mut command = Command::new(binary()?);
                command
                    .arg("--only")
                    .args(options)
                    .arg("-o")
                    .arg(out)
                    .arg("--");
                command.arg(program);
                command
            }
            None => Command::new(program),
        };
        let output = command
            .args(args)
            .env("RANGES_TRUTH", &truth)
            .env_remove("NVTX_INJECTION64_PATH")
            .env_remove("INTEL_LIBITTNOTIFY64")
            .output()?;
        let stderr = String::from_utf8(output.stderr)?;
        ensure!(output.status.success(), "{}\n{stderr}", output.status);
        let is_trace = |out: &&PathBuf| out.extension().is_some_and(|e| e == "json");
        let trace = out.as_ref().filter(is_trace);
        Ok(Run {
            output: String::from_utf8(output.stdout)?,
            stderr,
            truth: read(&truth)?,
            trace: trace.map(|out| Trace::read(out)).transpose()?,
        })
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<Truth>> {
    let text = std::fs::read_to_string(path)?;
    let lines = text.lines().map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        let [form, pid, tid, name, domain, a, b, c, d] = fields[..] else {
            anyhow::bail!("{line}");
        };
        Ok(Truth {
            form: form.chars().next().context("a form")?,
            pid: pid.parse()?,
            tid: tid.parse()?,
            name: name.to_owned(),
            domain: domain.to_owned(),
            begin: [a.parse()?, b.parse()?],
            end: [c.parse()?, d.parse()?],
        })
    });
    lines.collect()
}

/// The ranges and marks of a trace.
#[must_use]
pub fn ranges(trace: &Trace) -> Vec<&Span> {
    let all = trace.spans.iter();
    all.filter(|span| ["user_annotation", "mark"].contains(&span.category.as_str()))
        .collect()
}

/// Each range is there once, on its thread, with its name, domain and times, and no other of
/// these names.
///
/// # Errors
/// The first that is not, or that is one too many.
pub fn judge(trace: &Trace, truth: &[Truth], api: &str) -> anyhow::Result<()> {
    let origin = trace.start_ns()?;
    ensure!(!truth.is_empty(), "no truth");
    let mut left: BTreeMap<&str, Vec<&Span>> = BTreeMap::new();
    for span in ranges(trace) {
        left.entry(&span.name).or_default().push(span);
    }
    for range in truth {
        let within = |at: u64, [from, to]: [u64; 2]| (from..=to).contains(&(at + origin));
        let fits = |span: &&&Span| {
            let thread = match range.form {
                'l' => span.args["thread"].as_u64(),
                _ => Some(span.tid),
            };
            let category = if range.form == 'm' {
                "mark"
            } else {
                "user_annotation"
            };
            span.pid == range.pid
                && thread == Some(range.tid)
                && span.category == category
                && span.args["domain"].as_str().unwrap_or("") == range.domain
                && span.args["api"] == api
                && within(span.start, range.begin)
                && (range.form == 'o' || within(span.end, range.end))
        };
        let of_name = left.get_mut(range.name.as_str());
        let of_name = of_name.with_context(|| format!("none of this name: {range:?}"))?;
        let at = of_name.iter().position(|span| fits(&span));
        let at = at.with_context(|| format!("{range:?}: origin {origin}, {of_name:?}"))?;
        of_name.remove(at);
    }
    for range in truth {
        let more = &left[range.name.as_str()];
        ensure!(more.is_empty(), "more than there were: {more:?}");
    }
    Ok(())
}

/// No loss of ranges was counted.
///
/// # Errors
/// One was.
pub fn nothing_lost(stderr: &str) -> anyhow::Result<()> {
    for kind in [DROPPED, UNMATCHED, UNENDED, CUT] {
        ensure!(lost(stderr, kind) == 0, "{stderr}");
    }
    Ok(())
}
