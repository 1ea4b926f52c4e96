//! The virtual CUDA driver and its CUPTI (`workloads/cuda_device.c`, `cuda_cupti.c`):
//! *synthetic*, with a truth file that lists what ran when, for which call of which thread.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::folded::Folded;
use crate::states::waited_for;
use crate::workload::{Workshop, compile};

/// The driver, and a program for it.
#[derive(Debug)]
pub struct Cuda {
    /// Where both are.
    pub shop: Workshop,
    /// The program.
    pub program: PathBuf,
}

/// A piece of work, as the driver ran it.
#[derive(Clone, Debug)]
pub struct Work {
    /// The kernel's name, or the copy's or fill's as traces have it.
    pub name: String,
    /// The thread that gave it to the driver.
    pub tid: u64,
    /// When it began, CLOCK_MONOTONIC nanoseconds.
    pub start: u64,
    /// When it ended.
    pub end: u64,
    /// The number of its stream.
    pub stream: u64,
    /// The path that launched it, or put it into a graph; `-`: the program gives no path.
    pub path: String,
}

impl Cuda {
    /// Builds both.
    ///
    /// # Errors
    /// When a compiler fails.
    pub fn new(source: &str, has_cupti: bool) -> anyhow::Result<Self> {
        let shop = Workshop::new()?;
        let own = shop.path("lib");
        std::fs::create_dir(&own)?;
        let library = ["-shared", "-fPIC", "-ldl", "-lpthread"];
        compile("cuda_device.c", &own.join("libcuda.so.1"), &library)?;
        if has_cupti {
            compile("cuda_cupti.c", &own.join("libcupti.so.13"), &library)?;
        }
        let driver = own.join("libcuda.so.1").display().to_string();
        let name = source.trim_end_matches(".c");
        let program = shop.build(source, name, &[&driver, "-lpthread"])?;
        Ok(Self { shop, program })
    }

    /// aiprof with these options, to record the words of a command, which waits until it is
    /// known; without options the command alone.
    ///
    /// # Errors
    /// When the binary cannot be built.
    pub fn command(&self, options: Option<&[&str]>, words: &[&str]) -> anyhow::Result<Command> {
        let mut command = match (options, words) {
            (Some(options), _) => {
                let mut command = waited_for()?;
                command.arg("--only").args(options).arg("--").args(words);
                command
            }
            (None, [program, args @ ..]) => {
                let mut command = Command::new(program);
                command.args(args);
                command
            }
            (None, []) => anyhow::bail!("no command"),
        };
        command
            .env("LD_LIBRARY_PATH", self.shop.path("lib"))
            .env("VCUDA_TRUTH", self.truth_file())
            .env_remove("CUDA_INJECTION64_PATH");
        Ok(command)
    }

    fn truth_file(&self) -> PathBuf {
        self.shop.path("truth")
    }

    /// What the last run's driver did.
    ///
    /// # Errors
    /// When there is no truth file, or it is none.
    pub fn truth(&self) -> anyhow::Result<Vec<Work>> {
        read(&self.truth_file())
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<Work>> {
    let text = std::fs::read_to_string(path)?;
    let work = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let [what, name, tid, _, start, end, stream, _, path] = fields[..] else {
            anyhow::bail!("{line}");
        };
        let name = match what {
            "1" => name,
            "2" => "Memcpy (HtoD)",
            "3" => "Memset (Device)",
            _ => anyhow::bail!("{line}"),
        };
        Ok(Work {
            name: name.to_owned(),
            tid: tid.parse()?,
            start: start.parse()?,
            end: end.parse()?,
            stream: stream.parse()?,
            path: path.to_owned(),
        })
    };
    text.lines()
        .map(|line| work(line).with_context(|| line.to_owned()))
        .collect()
}

/// Microseconds of devices by the program's own function that is next to the driver's, and
/// the name of the work.
#[must_use]
pub fn by_path(folded: &Folded) -> BTreeMap<(String, String), u64> {
    let mut sums = BTreeMap::new();
    for line in &folded.lines {
        let Some(at) = line.frames.iter().position(|frame| frame == "-") else {
            continue;
        };
        let path = line.frames[..at].iter().rev();
        let path = path
            .map(String::as_str)
            .find(|name| !name.starts_with("cu"));
        let work = line.frames[at + 1].trim_end_matches("_[G]");
        let key = (path.unwrap_or("").to_owned(), work.to_owned());
        *sums.entry(key).or_insert(0) += line.value;
    }
    sums
}
