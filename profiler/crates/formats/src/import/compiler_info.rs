//! Compiler information wherever it is: a log, also compressed, or a directory.

use super::{inductor, open};
use aiprof_system::files::caller;
use aiprof_system::memory::Metered;
use aiprof_trace::analyze::messages::Messages;
use aiprof_trace::analyze::utilization::CompilerInfo;
use aiprof_trace::analyze::utilization::compiler_log;
use aiprof_trace::analyze::utilization::ideal::IdealTables;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// Longest log that is read, bytes, decompressed: those of large models have some
/// megabytes.
const MAX_LOG: u64 = 1 << 30;

/// Reads one log or directory for each rank, or one for all. What cannot be read is
/// reported and is without tables.
pub fn load(paths: &[PathBuf], messages: &mut Messages) -> CompilerInfo {
    if paths.len() > 1 {
        let count = paths.len();
        messages.info(
            "UTL",
            format_args!("UTL: Multi-AIU logs provided. Entries: {count}"),
        );
    }
    let logs = paths.iter().map(|path| load_one(path, messages));
    CompilerInfo {
        logs: logs.collect(),
    }
}

fn load_one(path: &Path, messages: &mut Messages) -> IdealTables {
    let shown = path.display();
    let read = match caller::metadata(path) {
        Ok(about) if about.is_dir() => inductor::read(path, messages),
        Ok(about) if about.is_file() => {
            let log = caller::open(path).and_then(open::decompressed);
            log.map(|log| Metered::log(log, MAX_LOG))
                .and_then(|log| compiler_log::read(&mut BufReader::new(log), messages))
        }
        Ok(_) => {
            messages.error(
                "UTL",
                format_args!(
                    "{shown} Unrecognized compiler info file type. Expecting file or directory."
                ),
            );
            return IdealTables::default();
        }
        Err(error) => Err(error),
    };
    match read {
        Ok(tables) => {
            if tables.tables().is_empty() {
                messages.warn("UTL", format_args!("UTL: No ideal cycles in {shown}"));
            }
            tables
        }
        Err(error) => {
            messages.error(
                "UTL",
                format_args!("UTL: Unable to open/parse log file. {shown} {error}"),
            );
            IdealTables::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_trace::analyze::messages::Level;
    use std::fs;
    use std::io::Write as _;

    const LOG: &str = " Ideal/Total Cycles \na-opCatX 10\n====== Perf Summary End ======\n";

    #[test]
    fn logs_may_be_compressed() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("plain"), LOG).unwrap();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(LOG.as_bytes()).unwrap();
        let gzip = gzip.finish().unwrap();
        fs::write(path("gzip"), &gzip).unwrap();
        fs::write(path("cut"), &gzip[..gzip.len() - 12]).unwrap();
        fs::write(path("zstd"), zstd::encode_all(LOG.as_bytes(), 1).unwrap()).unwrap();
        fs::write(path("empty"), "").unwrap();
        let mut messages = Messages::new(Level::Warn);
        for name in ["plain", "gzip", "zstd"] {
            let info = load(&[path(name)], &mut messages);
            let table = &info.logs[0].tables()[0];
            assert_eq!(table.kernel("a").unwrap().cycles, 10, "{name}");
        }
        assert_eq!(messages.iter().count(), 0, "{messages:?}");
        let bad = ["cut", "nix", "empty"].map(path);
        assert_eq!(load(&bad, &mut messages).logs.len(), 3);
        let texts: Vec<_> = messages.iter().map(|m| m.text.clone()).collect();
        assert!(texts[0].starts_with("UTL: Unable to open/parse log file. "));
        assert!(texts[1].starts_with("UTL: Unable to open/parse log file. "));
        assert!(texts[2].starts_with("UTL: No ideal cycles in "));
    }
}
