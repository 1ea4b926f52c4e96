//! Which libraries may have functions to probe.

use super::{discover, plan::Use};
use crate::{config::ProbeConfig, late::Build};
use aiprof_model::{probes::table::CheckedTable, process::ProcessTable};
use rustc_hash::FxHasher;
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    hash::{Hash, Hasher},
    path::PathBuf,
    sync::Arc,
};

/// The table that other drivers than the installed ones belong to.
const LEVEL_ZERO: &str = "level-zero";
/// Most other drivers remembered.
const MAX_ALTERNATIVES: usize = 64;

/// The libraries that probe tables name, and those that the environment names to a loader.
pub(crate) struct WantedLibraries {
    pub(super) config: ProbeConfig,
    /// Drivers that the environment names to Level Zero's loader, by path or file name.
    alternatives: BTreeSet<String>,
}

impl WantedLibraries {
    /// Those of the tables.
    pub(super) fn new(config: ProbeConfig) -> Self {
        Self {
            config,
            alternatives: BTreeSet::new(),
        }
    }

    /// Takes in a list of drivers; `true`: there are new ones.
    pub(super) fn note_alternatives(&mut self, list: &OsStr) -> bool {
        let before = self.alternatives.len();
        for driver in discover::alternative_drivers(list) {
            if self.alternatives.len() < MAX_ALTERNATIVES {
                self.alternatives
                    .insert(driver.to_string_lossy().into_owned());
            }
        }
        self.alternatives.len() > before
    }

    /// Where drivers are that the environment names by their paths.
    pub(super) fn alternatives(&self) -> impl Iterator<Item = PathBuf> {
        let paths = self.alternatives.iter().filter(|d| d.contains('/'));
        paths.map(PathBuf::from)
    }

    /// Whether a library of this name may have functions to probe.
    pub(super) fn is_wanted(&self, path: &str) -> bool {
        let mut tables = self.config.tables.of_file(path, &self.config.switches);
        tables.next().is_some() || self.is_alternative(path)
    }

    /// The same, of accelerators: not of what only switches collection.
    pub(super) fn is_runtime(&self, path: &str) -> bool {
        let mut tables = self.config.tables.of_file(path, &[]);
        tables.next().is_some() || self.is_alternative(path)
    }

    pub(super) fn is_alternative(&self, path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or(path);
        !self.alternatives.is_empty()
            && self.alternatives.iter().any(|driver| {
                let file = driver.rsplit('/').next().unwrap_or(driver);
                driver == path || file == name
            })
    }

    /// The tables that have functions of a library, by its path.
    pub(super) fn uses_of(&self, path: &str) -> Vec<Use> {
        let active = self.config.tables.of_file(path, &self.config.switches);
        let mut uses: Vec<Use> = active
            .map(|active| Use {
                table: Arc::clone(active.table),
                layer: active.library.layer,
                names_only: false,
            })
            .collect();
        if uses.is_empty()
            && self.is_alternative(path)
            && let Some(table) = self.config.tables.get(LEVEL_ZERO)
        {
            let layers = table.libraries.iter().map(|l| l.layer);
            uses.push(Use {
                table: Arc::clone(table),
                layer: layers.max().unwrap_or(0),
                names_only: false,
            });
        }
        uses
    }

    /// The layer that a table gives to a file by its name.
    pub(super) fn layer_of(&self, table: &CheckedTable, path: &str) -> Option<u8> {
        let uses = self.uses_of(path);
        let named = uses.iter().find(|used| used.table.name == table.name);
        named.map(|used| used.layer)
    }

    /// The tables whose functions a program may have linked in: by exact names, for
    /// a pattern may well match functions of its own.
    pub(super) fn uses_of_program(&self) -> Vec<Use> {
        let switches = &self.config.switches;
        let wanted = |t: &&Arc<CheckedTable>| t.only_with.is_none_or(|s| switches.contains(&s));
        let tables = self.config.tables.iter().filter(wanted);
        tables
            .map(|table| Use {
                table: Arc::clone(table),
                layer: table.libraries.iter().map(|l| l.layer).min().unwrap_or(0),
                names_only: true,
            })
            .collect()
    }
    /// Which build of a driver a process has.
    pub(crate) fn build_of(&self, processes: &ProcessTable, pid: u32) -> Build {
        driver_build(processes, pid, |path| self.is_runtime(path))
    }
}

/// Identifies the builds of probed libraries that a process has: the layout of their objects
/// depends on them.
pub(super) fn driver_build(
    processes: &ProcessTable,
    pid: u32,
    mut wanted: impl FnMut(&str) -> bool,
) -> Build {
    let mut hash = FxHasher::default();
    let maps = processes.get(pid).map(|p| &p.space.maps);
    for map in maps.into_iter().flatten() {
        let Some(key) = processes.files.key(map.file) else {
            continue;
        };
        if wanted(&key.path) {
            match &key.build_id {
                Some(id) => id.hash(&mut hash),
                None => (key.device, key.inode, key.version).hash(&mut hash),
            }
        }
    }
    hash.finish()
}
