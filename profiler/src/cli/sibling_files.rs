//! Files that stand beside an analysed trace: which a run wrote, and which an older run
//! left that are of another trace now.

use super::screen;
use aiprof_formats::export::tables;
use aiprof_system::files::caller;
use aiprof_system::files::place::{self, Place};
use aiprof_system::files::rights;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// A file that a run may write beside a trace.
struct Companion {
    purpose: &'static str,
    extension: &'static str,
    /// How it begins, by which a file is known as one of these, without blanks in front.
    begin: &'static str,
    /// Its description, for people.
    what: &'static str,
}

const fn companion(
    purpose: &'static str,
    extension: &'static str,
    begin: &'static str,
    what: &'static str,
) -> Companion {
    Companion {
        purpose,
        extension,
        begin,
        what,
    }
}

/// What a run may write beside a trace.
const COMPANIONS: [Companion; 11] = [
    companion(
        "summary",
        "csv",
        "Time  \t Total Time\t",
        "times of kernels",
    ),
    companion("active", "csv", "Total Kernel Time", "active time of ranks"),
    companion(
        "ts_analysis",
        "csv",
        "Calls  \t TS2-1_Mean",
        "device counters of kernels",
    ),
    companion(
        "categories",
        "csv",
        "Pid,Phase,Category,",
        "time and ideal time by category",
    ),
    companion(
        "categories",
        "txt",
        "Pid",
        "time and ideal time by category, as text",
    ),
    companion(
        "stats_summary",
        "csv",
        "pid,elapsed_time,",
        "totals of processes",
    ),
    companion(
        "power",
        "csv",
        "pid,rank,name,calls,",
        "power and energy of kernels",
    ),
    companion("iterations", "csv", "pid,rank,iteration,", "iterations"),
    companion("tokens", "csv", "pid,rank,metric,", "token times"),
    companion(
        "report",
        "json",
        "{\"version\":",
        "findings and tables, as JSON",
    ),
    companion(
        "report",
        "html",
        "<!doctype html>",
        "findings and tables, for a browser",
    ),
];

/// Where a run may write, or delete what an older run wrote, beside its output.
pub(super) fn places(output: &Path) -> Vec<PathBuf> {
    let all = COMPANIONS.iter().filter(|_| !output.as_os_str().is_empty());
    all.map(|known| beside(output, known.purpose, known.extension))
        .collect()
}

/// The files that a run has written, in their order, and what each is.
#[derive(Debug, Default)]
pub(super) struct WrittenFiles(Vec<(PathBuf, &'static str)>);

impl WrittenFiles {
    /// Adds one.
    pub(super) fn add(&mut self, path: &Path, what: &'static str) {
        self.0.push((path.to_owned(), what));
    }

    /// Adds one that stands beside the output.
    pub(super) fn add_beside(&mut self, path: &Path, purpose: &str, extension: &str) {
        let mut known = COMPANIONS.iter();
        let found = known.find(|c| c.purpose == purpose && c.extension == extension);
        self.add(path, found.map_or("a table", |found| found.what));
    }

    fn has(&self, path: &Path) -> bool {
        self.0.iter().any(|(written, _)| written == path)
    }

    /// A line for each, with its description. Devices and pipes are left out.
    pub(super) fn lines(&self) -> Vec<String> {
        let files = self.0.iter().filter(|(path, _)| caller::is_file(path));
        let named: Vec<_> = files
            .map(|(path, what)| (path.display().to_string(), *what))
            .collect();
        let width = named.iter().map(|(name, _)| name.chars().count()).max();
        let width = width.unwrap_or(0);
        let lines = named
            .iter()
            .map(|(name, what)| format!("  written to {name:width$}  {what}"));
        lines.collect()
    }

    /// Lists on stderr what was written.
    pub(super) fn say(&self) {
        for line in self.lines() {
            screen::say(&line);
        }
    }

    /// Deletes what an older run left beside the output and this one did not write.
    /// Whatever is of somebody else, or begins otherwise, stays.
    pub(super) fn remove_older(&self, output: &Path) {
        for known in COMPANIONS {
            let path = beside(output, known.purpose, known.extension);
            if !self.has(&path) && begins_with(&path, known.begin) {
                remove(&path);
            }
        }
    }
}

fn begins_with(path: &Path, begin: &str) -> bool {
    // Blanks in front are of tables with columns of fixed width.
    let mut first = Vec::new();
    let file = caller::open_no_link(path);
    let read = file.and_then(|file| file.take(64).read_to_end(&mut first));
    read.is_ok() && first.trim_ascii_start().starts_with(begin.as_bytes())
}

/// Deletes a file of one's own; that it stays is no reason to fail.
fn remove(path: &Path) {
    if let Ok(Place::File(directory, name, stat)) = place::find(path)
        && rights::is_own(stat.st_uid)
        && let Err(error) = directory.unlink(&name)
    {
        tracing::warn!(
            "cannot remove {}, which an older run wrote: {error}",
            path.display()
        );
    }
}

/// `dir/out.pt.trace.json` and `summary`, `csv`: `dir/out_summary.csv`.
pub(super) fn beside(output: &Path, purpose: &str, extension: &str) -> PathBuf {
    tables::file_name(&output.to_string_lossy(), purpose, extension).into()
}

/// The trace of an input in a directory for TensorBoard, which goes by these names.
pub(super) fn tensorboard_place(directory: &Path, input: &Path) -> PathBuf {
    let name = input.file_name().unwrap_or_default().to_string_lossy();
    let ends = [
        ".gz",
        ".zst",
        ".json",
        ".trace",
        ".pt",
        ".aiprof",
        ".pftrace",
        ".perfetto-trace",
    ];
    let mut name = &*name;
    for end in ends {
        name = name.strip_suffix(end).unwrap_or(name);
    }
    directory.join(format!("{name}.pt.trace.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_an_older_run_wrote_goes() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for (name, text) in [
            ("out_power.csv", "pid,rank,name,calls,time_us\n"),
            ("out_categories.txt", "   Pid  Phase\n"),
            ("out_tokens.csv", "my own notes\n"),
            ("out_iterations.csv", "pid,rank,iteration,kernels\n"),
            ("out_other.csv", "pid,rank,name,calls,time_us\n"),
            ("in_power.csv", "pid,rank,name,calls,time_us\n"),
        ] {
            std::fs::write(at(name), text).unwrap();
        }
        std::os::unix::fs::symlink(at("in_power.csv"), at("out_summary.csv")).unwrap();
        let mut written = WrittenFiles::default();
        std::fs::write(at("out.json"), "[]").unwrap();
        written.add(&at("out.json"), "a trace");
        written.add_beside(&at("out_iterations.csv"), "iterations", "csv");
        written.add(Path::new("/dev/null"), "nothing");
        written.remove_older(&at("out.json"));
        let mut left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
        left.sort_by_key(|entry| entry.as_ref().unwrap().file_name());
        let left: Vec<_> = left.into_iter().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(
            left,
            [
                "in_power.csv",
                "out.json",
                "out_iterations.csv",
                "out_other.csv",
                "out_summary.csv",
                "out_tokens.csv"
            ]
        );
        let lines = written.lines();
        assert_eq!(lines.len(), 2);
        assert!(
            lines[0].ends_with("out.json            a trace"),
            "{lines:?}"
        );
        assert!(
            lines[1].ends_with("out_iterations.csv  iterations"),
            "{lines:?}"
        );
    }

    #[test]
    fn tables_stand_beside_the_trace() {
        for (output, table) in [
            ("out.json", "out_summary.csv"),
            ("d.x/out.pt.trace.json", "d.x/out_summary.csv"),
            ("d.x/out", "d.x/out_summary.csv"),
            ("a.b.json.gz", "a.b_summary.csv"),
        ] {
            let path = beside(Path::new(output), "summary", "csv");
            assert_eq!(path, Path::new(table), "{output}");
        }
    }
}
