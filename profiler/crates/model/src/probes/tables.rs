//! The tables in use: the built-in ones and those that users add.

use super::parse;
use super::reader::TableError;
use super::table::{Library, Switch, Table};
use std::sync::Arc;

macro_rules! built_in {
    ($file:literal) => {
        ($file, include_str!(concat!("../../../../probes/", $file)))
    };
}

/// The built-in tables: name of the file and its text.
const BUILT_IN: &[(&str, &str)] = &[
    built_in!("level-zero.toml"),
    built_in!("aiu.toml"),
    built_in!("opencl.toml"),
    built_in!("cuda.toml"),
    built_in!("cudart.toml"),
    built_in!("hip.toml"),
    built_in!("sycl.toml"),
    built_in!("mpi.toml"),
    built_in!("mpich.toml"),
    built_in!("nccl.toml"),
    built_in!("oneccl.toml"),
    built_in!("onednn.toml"),
    built_in!("itt.toml"),
    built_in!("timing.toml"),
    built_in!("roctx.toml"),
];

/// The files of the built-in tables: name and text.
pub(super) fn built_in_sources() -> &'static [(&'static str, &'static str)] {
    BUILT_IN
}

/// All tables.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    tables: Vec<Arc<Table>>,
}

/// A table with one of its libraries.
#[derive(Clone, Copy, Debug)]
pub struct Active<'a> {
    /// The table.
    pub table: &'a Arc<Table>,
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

    /// The built-in tables; a test proves that none of them has a mistake.
    pub fn built_in() -> Self {
        let mut tables = Self::default();
        for (source, text) in built_in_sources() {
            if let Err(mistakes) = tables.add(source, text) {
                tracing::error!("built-in table: {}", list(&mistakes));
            }
        }
        tables
    }

    /// Reads a table and adds it; one of the same name is replaced.
    ///
    /// # Errors
    /// The mistakes in it; nothing is added then.
    pub fn add(&mut self, source: &str, text: &str) -> Result<(), Vec<TableError>> {
        let table = Arc::new(parse::parse(source, text)?);
        match self.tables.iter_mut().find(|t| t.name == table.name) {
            Some(old) => *old = table,
            None => self.tables.push(table),
        }
        Ok(())
    }

    /// All tables, built-in ones first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.tables.iter()
    }

    /// The table of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Table>> {
        self.tables.iter().find(|table| table.name == name)
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

/// Mistakes as one text, a line each.
fn list(mistakes: &[TableError]) -> String {
    let lines: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
    lines.join("\n")
}
