//! The probe tables of this machine: built-in ones and files.

use aiprof_model::probes::driver_table::DriverTables;
use aiprof_model::probes::{MAX_BYTES, TableFile, Tables, parse_file};
use aiprof_system::files::caller;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// Where users put their tables.
pub const USER_TABLES: &str = "/etc/aiprof/probes.d";
/// Most entries of the folder that are looked at.
const MAX_ENTRIES: usize = 4096;
/// Most files that are read from one folder.
const MAX_FILES: usize = 256;

/// The tables, and what was wrong with files.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The tables of runtimes.
    pub tables: Tables,
    /// The tables of drivers.
    pub drivers: DriverTables,
    /// What could not be read, a line each; nothing of it stops a recording.
    pub warnings: Vec<String>,
}

/// The built-in tables and those in `folder`, by the order of their file names.
/// A table of the same name as one before replaces it.
pub fn load(folder: &Path) -> Loaded {
    let mut loaded = Loaded {
        tables: Tables::built_in(),
        drivers: DriverTables::built_in(),
        ..Loaded::default()
    };
    for path in files(folder, &mut loaded.warnings) {
        if let Err(warnings) = loaded.add(&path) {
            loaded.warnings.extend(warnings);
        }
    }
    loaded
}

impl Loaded {
    /// Adds the table of a file.
    ///
    /// # Errors
    /// The mistakes, or why it cannot be read: a line each.
    pub fn add(&mut self, path: &Path) -> Result<(), Vec<String>> {
        let source = path.display().to_string();
        let text = read(path).map_err(|error| vec![format!("{source}: {error}")])?;
        match parse_file(&source, &text) {
            Ok(TableFile::Driver(table)) => self.drivers.put(table),
            Ok(TableFile::Runtime(table)) => self.tables.put(table),
            Err(mistakes) => return Err(mistakes.iter().map(ToString::to_string).collect()),
        }
        Ok(())
    }
}

/// The text of a table.
///
/// # Errors
/// The file cannot be read, is no text, or too long.
pub fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let limit = u64::try_from(MAX_BYTES).unwrap_or(u64::MAX);
    caller::open_regular(path)?
        .take(limit + 1)
        .read_to_string(&mut text)?;
    Ok(text)
}

/// The tables in a folder, by name; no folder is no table.
fn files(folder: &Path, warnings: &mut Vec<String>) -> Vec<PathBuf> {
    let entries = match caller::read_dir(folder, MAX_ENTRIES) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            warnings.push(format!("{}: {error}", folder.display()));
            return Vec::new();
        }
    };
    let mut paths: Vec<_> = entries
        .into_iter()
        .map(|(path, _)| path)
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .collect();
    paths.sort();
    if paths.len() > MAX_FILES {
        let (folder, found) = (folder.display(), paths.len());
        warnings.push(format!(
            "{folder}: {found} tables; only the first {MAX_FILES} are used"
        ));
        paths.truncate(MAX_FILES);
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "name = \"NAME\"\napi = \"T\"\n[[library]]\nfiles = [\"libt.so*\"]\n\
                         [[function]]\nsymbols = [\"f\"]\nkind = \"host\"\n";

    #[test]
    fn a_folder_adds_and_replaces_tables_and_a_bad_one_is_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).unwrap();
        };
        write("b.toml", &TABLE.replace("NAME", "mine"));
        write("c.toml", &TABLE.replace("NAME", "level-zero"));
        write(
            "a.toml",
            &TABLE.replace("NAME", "wrong").replace("host", "hosts"),
        );
        write(
            "d.toml",
            "name = \"xe\"\napi = \"X\"\ntype = \"d\"\n[[device]]\ndriver = \"xe\"\n\
             [[ioctl]]\nname = \"X\"\nnumber = 1\nkind = \"query\"\n",
        );
        write("e.txt", "no table");
        let loaded = load(folder.path());
        assert_eq!(
            loaded.tables.get("mine").map(|t| t.functions.len()),
            Some(1)
        );
        let replaced = loaded.tables.get("level-zero").unwrap();
        assert_eq!(replaced.functions.len(), 1);
        assert!(replaced.source.ends_with("/c.toml"));
        let [warning] = loaded.warnings.as_slice() else {
            panic!("{:?}", loaded.warnings);
        };
        assert!(warning.contains("/a.toml:7:8: "), "{warning}");
        let driver = loaded.drivers.get("xe").unwrap();
        assert!(driver.source.ends_with("/d.toml") && driver.ioctls.len() == 1);
        assert!(loaded.drivers.get("i915").is_some());
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        let folder = tempfile::tempdir().unwrap();
        assert!(load(&folder.path().join("absent")).warnings.is_empty());
        std::fs::write(folder.path().join("a.toml"), b"name = \"\xff\"").unwrap();
        std::fs::create_dir(folder.path().join("b.toml")).unwrap();
        let loaded = load(folder.path());
        assert_eq!(loaded.warnings.len(), 2, "{:?}", loaded.warnings);
        std::fs::write(folder.path().join("a.toml"), "# long\n".repeat(200_000)).unwrap();
        let loaded = load(folder.path());
        assert!(
            loaded.warnings[0].contains("longer than"),
            "{:?}",
            loaded.warnings
        );
    }
}
