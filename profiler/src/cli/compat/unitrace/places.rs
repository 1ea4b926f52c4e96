//! Where unitrace's outputs go, by the process that they are of.

use crate::cli::output::{self, OutputFile};
use anyhow::Result;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Variables that contain a process's rank: those that unitrace reads, and those of other
/// launchers.
const RANKS: [&str; 7] = [
    "PMI_RANK",
    "PMIX_RANK",
    "OMPI_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_RANK",
    "PALS_RANKID",
    "FLUX_TASK_RANK",
    "SLURM_PROCID",
];

/// The rank of this process in an MPI job, if it is in one.
pub(super) fn own_rank() -> Option<String> {
    let found = RANKS.iter().find_map(|name| std::env::var(name).ok());
    // It becomes a part of files' names.
    found.filter(|rank| !rank.is_empty() && rank.bytes().all(|byte| byte.is_ascii_digit()))
}

/// One of the texts that unitrace writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputText {
    Host,
    Device,
    Submission,
    Timeline,
    Ccl,
}

impl OutputText {
    /// Its file in a result directory.
    fn file(self) -> &'static str {
        match self {
            Self::Host => "host_timing.txt",
            Self::Device => "device_timing.txt",
            Self::Submission => "device_submission.txt",
            Self::Timeline => "device_timeline.txt",
            Self::Ccl => "ccl_summary_report.txt",
        }
    }
}

/// Paths of outputs, as the command line has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OutputPaths {
    /// The file of the tables.
    pub(super) output: Option<PathBuf>,
    /// The directory of the traces.
    pub(super) output_dir: Option<PathBuf>,
    /// The directory in which each process has one of its own.
    pub(super) result_dir: Option<PathBuf>,
}

impl OutputPaths {
    /// Whether tables go to files, and not to stderr.
    pub(super) fn has_files(&self) -> bool {
        self.output.is_some() || self.result_dir.is_some()
    }
}

/// Where outputs go.
#[derive(Clone, Debug)]
pub(super) struct OutputPlaces {
    paths: OutputPaths,
    rank: Option<String>,
}

impl OutputPlaces {
    pub(super) fn new(paths: &OutputPaths, rank: Option<String>) -> Self {
        Self {
            paths: paths.clone(),
            rank,
        }
    }

    /// Whether files can be written there.
    ///
    /// # Errors
    /// What is wrong with the place.
    pub(super) fn check(&self) -> Result<()> {
        for directory in [&self.paths.output_dir, &self.paths.result_dir]
            .into_iter()
            .flatten()
        {
            output::open_directory(directory)?;
        }
        // Dropped at once: it only shows that the directory is writable.
        match &self.paths.output {
            Some(file) => OutputFile::create(&self.numbered(file, std::process::id())).map(drop),
            None => Ok(()),
        }
    }

    /// The place of a text of a process; `None`: stderr. `name` is the process's.
    pub(super) fn text(&self, text: OutputText, pid: u32, name: &str) -> Option<PathBuf> {
        if let Some(directory) = self.result(pid, name) {
            return Some(directory.join(text.file()));
        }
        Some(self.numbered(self.paths.output.as_deref()?, pid))
    }

    /// The place of the trace.
    pub(super) fn trace(&self, pid: u32, name: &str) -> PathBuf {
        if let Some(directory) = self.result(pid, name) {
            return directory.join("chrome_trace.json");
        }
        let rank = self
            .rank
            .as_ref()
            .map_or(String::new(), |rank| format!(".{rank}"));
        let file = format!("{}.{pid}{rank}.json", plain(name));
        match &self.paths.output_dir {
            Some(directory) => directory.join(file),
            None => PathBuf::from(file),
        }
    }

    /// The directory of a process, if results go to directories.
    pub(super) fn result(&self, pid: u32, name: &str) -> Option<PathBuf> {
        let directory = self.paths.result_dir.as_ref()?;
        let rank = self
            .rank
            .as_ref()
            .map_or(String::new(), |rank| format!("rank_{rank}."));
        Some(directory.join(format!("{rank}{}.{pid}", plain(name))))
    }

    /// `perf.csv` becomes `perf.123.csv`, or `perf.123.0.csv` of rank 0.
    fn numbered(&self, file: &Path, pid: u32) -> PathBuf {
        let mut name = file.file_stem().unwrap_or_default().to_owned();
        name.push(format!(".{pid}"));
        if let Some(rank) = &self.rank {
            name.push(format!(".{rank}"));
        }
        if let Some(extension) = file.extension() {
            let mut end = OsString::from(".");
            end.push(extension);
            name.push(end);
        }
        file.with_file_name(name)
    }
}

/// A process's name as a part of a file's.
fn plain(name: &str) -> String {
    let fits = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_');
    let name: String = name
        .chars()
        .map(|c| if fits(c) { c } else { '_' })
        .collect();
    match name.trim_start_matches('.') {
        "" => "process".to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(rank: Option<&str>) -> OutputPlaces {
        OutputPlaces {
            paths: OutputPaths {
                output: Some("a.b/perf.x.csv".into()),
                ..OutputPaths::default()
            },
            rank: rank.map(str::to_owned),
        }
    }

    /// unitrace 2.3 gives these names.
    #[test]
    fn files_have_the_process_and_rank_before_the_extension() {
        let of = |places: &OutputPlaces| places.text(OutputText::Host, 12, "app").unwrap();
        assert_eq!(of(&places(None)), Path::new("a.b/perf.x.12.csv"));
        assert_eq!(of(&places(Some("3"))), Path::new("a.b/perf.x.12.3.csv"));
        let mut bare = places(None);
        bare.paths.output = Some("./log".into());
        assert_eq!(of(&bare), Path::new("./log.12"));
        bare.paths.output = None;
        assert_eq!(bare.text(OutputText::Host, 12, "app"), None);
        assert_eq!(bare.trace(12, "a/../b"), Path::new("a_.._b.12.json"));
        bare.paths.output_dir = Some("out".into());
        bare.rank = Some("0".to_owned());
        assert_eq!(bare.trace(12, "app"), Path::new("out/app.12.0.json"));
    }

    #[test]
    fn a_result_directory_has_one_for_each_process() {
        let mut places = places(Some("1"));
        places.paths.result_dir = Some("r".into());
        let text = places.text(OutputText::Submission, 7, "..").unwrap();
        assert_eq!(text, Path::new("r/rank_1.process.7/device_submission.txt"));
        let trace = places.trace(7, "app");
        assert_eq!(trace, Path::new("r/rank_1.app.7/chrome_trace.json"));
    }
}
