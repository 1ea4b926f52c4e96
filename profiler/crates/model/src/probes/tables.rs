//! The tables in use: the built-in ones and those that users add.

use super::driver_table::parse_driver;
use super::driver_table::{DriverTable, Ioctl};
use super::parse::parse_runtime;
use super::reader::{TableError, read};
use super::table::{CheckedTable, Library, Switch};
use std::collections::HashSet;
use std::sync::Arc;

macro_rules! built_in {
    ($($file:literal)*) => {
        &[$(($file, include_str!(concat!("../../../../probes/", $file)))),*]
    };
}

/// The built-in tables of runtimes, in the order in which they are used: name of the file
/// and its text.
const RUNTIMES: &[(&str, &str)] = built_in!(
    "level-zero.toml" "aiu.toml" "opencl.toml" "cuda.toml" "cudart.toml" "hip.toml" "sycl.toml"
    "mpi.toml" "mpich.toml" "nccl.toml" "oneccl.toml" "onednn.toml" "itt.toml" "timing.toml"
    "roctx.toml"
);

include!(concat!(env!("OUT_DIR"), "/drivers.rs"));

/// A kind of table.
pub trait ProbeTable: Sized {
    /// The built-in ones: name of the file and its text.
    const BUILT_IN: &[(&str, &str)];

    /// Its name, which no other has.
    fn name(&self) -> &str;

    /// Reads and checks a table; `source` is the file's name for messages.
    ///
    /// # Errors
    /// The mistakes, at least one and at most fifty, in the order of the file.
    fn parse(source: &str, text: &str) -> Result<Self, Vec<TableError>>;
}

impl ProbeTable for CheckedTable {
    const BUILT_IN: &[(&str, &str)] = RUNTIMES;

    fn name(&self) -> &str {
        &self.name
    }

    fn parse(source: &str, text: &str) -> Result<Self, Vec<TableError>> {
        read(source, text, parse_runtime)
    }
}

impl ProbeTable for DriverTable {
    const BUILT_IN: &[(&str, &str)] = DRIVERS;

    fn name(&self) -> &str {
        &self.name
    }

    fn parse(source: &str, text: &str) -> Result<Self, Vec<TableError>> {
        read(source, text, parse_driver)
    }
}

/// Tables of one kind, each with a name of its own.
#[derive(Clone, Debug, Default)]
pub struct TableSet<T: ProbeTable> {
    tables: Vec<Arc<T>>,
}

/// The tables of runtimes.
pub type Tables = TableSet<CheckedTable>;
/// The tables of drivers.
pub type DriverTables = TableSet<DriverTable>;

impl<T: ProbeTable> TableSet<T> {
    /// The built-in tables; a test proves that none of them has a mistake.
    pub fn built_in() -> Self {
        let mut tables = Self { tables: Vec::new() };
        for (source, text) in T::BUILT_IN {
            for mistake in tables.add(source, text).err().unwrap_or_default() {
                tracing::error!("built-in table: {mistake}");
            }
        }
        tables
    }

    /// Reads a table and adds it; one of the same name is replaced.
    ///
    /// # Errors
    /// The mistakes in it; nothing is added then.
    pub fn add(&mut self, source: &str, text: &str) -> Result<(), Vec<TableError>> {
        self.put(T::parse(source, text)?);
        Ok(())
    }

    /// Adds a table; one of the same name is replaced.
    pub fn put(&mut self, table: T) {
        let table = Arc::new(table);
        match self.tables.iter_mut().find(|t| t.name() == table.name()) {
            Some(old) => *old = table,
            None => self.tables.push(table),
        }
    }

    /// All tables, built-in ones first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.tables.iter()
    }

    /// The table of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<T>> {
        self.tables.iter().find(|table| table.name() == name)
    }
}

/// A table with one of its libraries.
#[derive(Clone, Copy, Debug)]
pub struct Active<'a> {
    /// The table.
    pub table: &'a Arc<CheckedTable>,
    /// The library of it.
    pub library: &'a Library,
}

impl Tables {
    /// Without functions of these symbols.
    #[must_use]
    pub fn without(mut self, symbols: &[&str]) -> Self {
        for table in &mut self.tables {
            if symbols
                .iter()
                .any(|symbol| table.exact.contains_key(*symbol))
            {
                let table = Arc::make_mut(table);
                // The others stay where the index has them.
                table
                    .exact
                    .retain(|symbol, _| !symbols.contains(&symbol.as_str()));
            }
        }
        self
    }

    /// The tables that a file is a library of, with what was asked for by
    /// `switches`.
    pub fn of_file<'a>(
        &'a self,
        path: &'a str,
        switches: &'a [Switch],
    ) -> impl Iterator<Item = Active<'a>> {
        self.tables.iter().filter_map(move |table| {
            if table.only_with.is_some_and(|s| !switches.contains(&s)) {
                return None;
            }
            let library = table.library(path)?;
            Some(Active { table, library })
        })
    }
}

impl DriverTables {
    /// The commands that a driver has: its table's, then those of the tables it
    /// includes, directly or not, that it does not have itself. An included table
    /// that is not there is left out.
    pub fn commands(&self, table: &Arc<DriverTable>) -> Vec<(Arc<DriverTable>, Ioctl)> {
        let mut order = vec![table.clone()];
        let mut at = 0;
        while let Some(next) = order.get(at).cloned() {
            for name in &next.includes {
                let known = order.iter().any(|have| have.name == *name);
                order.extend(self.get(name).filter(|_| !known).cloned());
            }
            at += 1;
        }
        let mut seen = HashSet::new();
        let mut commands = Vec::new();
        for table in order {
            for ioctl in &table.ioctls {
                let command = table.numbering.command(ioctl.number);
                if seen.insert((table.numbering.mask(), command)) {
                    commands.push((table.clone(), ioctl.clone()));
                }
            }
        }
        commands
    }
}
