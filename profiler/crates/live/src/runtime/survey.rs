//! What would be probed on this machine: the libraries that are installed or in
//! use, and which functions of the tables each has. Nothing is attached.

use super::{
    discover,
    library::{LibraryError, ProbedLibrary},
    plan::{self, ProbePlan, Use},
};
use aiprof_model::probes::{Tables, table::Exits};
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs::File,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A library with functions of some table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surveyed {
    /// Its path: the linker's, or that of the first process that has it mapped, in
    /// that process's mount namespace.
    pub path: String,
    /// Running processes that have it mapped.
    pub processes: BTreeSet<u32>,
    /// What of each table it has.
    pub tables: Vec<SurveyedTable>,
    /// Why nothing is known of it.
    pub error: Option<String>,
}

/// What a library has of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SurveyedTable {
    /// The table's name.
    pub name: String,
    /// The functions that would be probed, with all exits wanted.
    pub functions: Vec<SurveyedFunction>,
    /// Functions that the table names and the library does not have.
    pub missing: Vec<String>,
}

/// A function that would be probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SurveyedFunction {
    /// Its symbol.
    pub symbol: String,
    /// Where in the file the probe of its entry goes.
    pub entry: u64,
    /// The kernel emulates the instruction there; elsewhere a call costs more.
    pub emulated: bool,
    /// Probes of its exits; 0: the exits are not known, or a return probe is used.
    pub exits: usize,
}

/// Looks at the libraries of `tables` that the linker knows or that processes have
/// mapped; tables that must be asked for are left out.
pub fn survey(tables: &Tables) -> Vec<Surveyed> {
    let mut found: BTreeMap<PathBuf, BTreeSet<u32>> = BTreeMap::new();
    let wanted = |path: &str| tables.of_file(path, &[]).next().is_some();
    for path in discover::in_linker_cache(Path::new("/etc/ld.so.cache"), wanted) {
        found.entry(path).or_default();
    }
    let mut elsewhere: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    discover::in_processes(|pid, maps| {
        for map in maps.iter().filter(|map| wanted(&map.file.path)) {
            let path = map.file.path.clone();
            elsewhere.entry(path).or_default().insert(pid);
        }
    });
    for (path, processes) in elsewhere {
        // The linker's names are links to what is mapped.
        let same = found.keys().find(|known| {
            let real = aiprof_system::files::caller::canonicalize(known);
            real.is_ok_and(|real| real == Path::new(&path))
        });
        let key = same.cloned().unwrap_or_else(|| PathBuf::from(&path));
        found.entry(key).or_default().extend(processes);
    }
    let mut seen = HashSet::new();
    let libraries = found.into_iter().filter_map(|(path, processes)| {
        let file = open(&path, &processes);
        let id = file.as_ref().ok().and_then(|f| f.metadata().ok());
        // Two names of one file are one library.
        if id.is_some_and(|m| !seen.insert((m.dev(), m.ino()))) {
            return None;
        }
        Some(look_at(&path, processes, file, tables))
    });
    libraries.collect()
}

/// Opens a library by its path, or as a process that has mapped it sees it.
fn open(path: &Path, processes: &BTreeSet<u32>) -> std::io::Result<File> {
    let direct = discover::open(path);
    let (Err(_), Some(pid)) = (&direct, processes.first()) else {
        return direct;
    };
    let rest = path.strip_prefix("/").unwrap_or(path);
    discover::open(&Path::new(&format!("/proc/{pid}/root")).join(rest))
}

fn look_at(
    path: &Path,
    processes: BTreeSet<u32>,
    file: std::io::Result<File>,
    tables: &Tables,
) -> Surveyed {
    let path = path.to_string_lossy().into_owned();
    let uses: Vec<_> = tables
        .of_file(&path, &[])
        .map(|active| Use {
            table: Arc::clone(active.table),
            layer: active.library.layer,
            names_only: false,
        })
        .collect();
    let looked = file
        .map_err(LibraryError::from)
        .and_then(|file| functions(&file, &uses));
    let (tables, error) = match looked {
        Ok(tables) => (tables, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    Surveyed {
        path,
        processes,
        tables,
        error,
    }
}

fn functions(file: &File, uses: &[Use]) -> Result<Vec<SurveyedTable>, LibraryError> {
    let library = ProbedLibrary::open(file)?;
    // All names: a second name of a function is there, although the plan has one.
    let mut names = HashSet::new();
    library.functions(|symbol| {
        if uses
            .iter()
            .any(|used| used.table.function(symbol).is_some())
        {
            names.insert(symbol.to_owned());
        }
        None
    })?;
    let ProbePlan { functions, .. } = plan::plan(&library, uses, Exits::All)?;
    let mut tables: Vec<_> = uses
        .iter()
        .map(|used| SurveyedTable {
            name: used.table.name.clone(),
            functions: Vec::new(),
            missing: used
                .table
                .names()
                .filter(|name| !names.contains(*name))
                .map(str::to_owned)
                .collect(),
        })
        .collect();
    for planned in functions {
        if let Some(table) = tables.get_mut(planned.of) {
            table.functions.push(SurveyedFunction {
                symbol: planned.symbol,
                entry: planned.places.entry,
                emulated: planned.places.emulated,
                exits: planned.places.exits.len(),
            });
        }
    }
    Ok(tables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libc_has_some_functions_and_lacks_others() {
        let mut tables = Tables::default();
        let text = "name = \"libc\"\napi = \"C\"\n[[library]]\nfiles = [\"libc.so.6\"]\n\
                    [[function]]\nsymbols = [\"setenv\", \"no_such_function\"]\nkind = \"host\"\n";
        tables.add("libc.toml", text).unwrap();
        let found = survey(&tables);
        let Some(library) = found.iter().find(|l| l.path.ends_with("/libc.so.6")) else {
            println!("skipped: libc_has_some_functions_and_lacks_others: no libc.so.6");
            return;
        };
        let [table] = library.tables.as_slice() else {
            panic!("{library:?}");
        };
        assert_eq!(table.name, "libc");
        assert_eq!(table.missing, ["no_such_function"]);
        let [function] = table.functions.as_slice() else {
            panic!("{table:?}");
        };
        assert_eq!(function.symbol, "setenv");
        assert!(function.entry > 0 && function.exits > 0, "{function:?}");
    }
}
