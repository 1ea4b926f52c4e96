//! Files that stand beside an analysed trace: which a run wrote, and which an older run
//! left that are of another trace now.

use super::analysis::beside;
use aiprof_system::files::caller;
use aiprof_system::files::place::{self, Place};
use aiprof_system::files::rights;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// What a run may write beside a trace: purpose, extension, and how it begins, by which
/// a file is known as one of these, without blanks in front.
const COMPANIONS: [(&str, &str, &str); 11] = [
    ("summary", "csv", "Time  \t Total Time\t"),
    ("active", "csv", "Total Kernel Time"),
    ("ts_analysis", "csv", "Calls  \t TS2-1_Mean"),
    ("categories", "csv", "Pid,Phase,Category,"),
    ("categories", "txt", "Pid"),
    ("stats_summary", "csv", "pid,elapsed_time,"),
    ("power", "csv", "pid,rank,name,calls,"),
    ("iterations", "csv", "pid,rank,iteration,"),
    ("tokens", "csv", "pid,rank,metric,"),
    ("report", "json", "{\"version\":"),
    ("report", "html", "<!doctype html>"),
];

/// The files that a run has written, in their order.
#[derive(Debug, Default)]
pub(super) struct Written(Vec<PathBuf>);

impl Written {
    /// Adds one.
    pub(super) fn add(&mut self, path: &Path) {
        self.0.push(path.to_owned());
    }

    /// Their names, with commas between them.
    pub(super) fn names(&self) -> String {
        let names: Vec<_> = self
            .0
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        names.join(", ")
    }

    /// Deletes what an older run left beside the output and this one did not write.
    /// Whatever is of somebody else, or begins otherwise, stays.
    pub(super) fn remove_older(&self, output: &Path) {
        for (purpose, extension, begin) in COMPANIONS {
            let path = beside(output, purpose, extension);
            if !self.0.contains(&path) && begins_with(&path, begin) {
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
        tracing::warn!("{} is of an older run and stays: {error}", path.display());
    }
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
        let mut written = Written::default();
        written.add(&at("out.json"));
        written.add(&at("out_iterations.csv"));
        written.remove_older(&at("out.json"));
        let mut left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
        left.sort_by_key(|entry| entry.as_ref().unwrap().file_name());
        let left: Vec<_> = left.into_iter().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(
            left,
            [
                "in_power.csv",
                "out_iterations.csv",
                "out_other.csv",
                "out_summary.csv",
                "out_tokens.csv"
            ]
        );
        assert!(written.names().ends_with("out_iterations.csv"));
    }
}
