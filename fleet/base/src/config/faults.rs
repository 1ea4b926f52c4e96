//! What is wrong with a configuration, all of it.

use super::ConfigError;
use std::fmt;
use std::path::{Path, PathBuf};

/// Faults of a file: a line each, with the file, the key and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    path: PathBuf,
    /// Keys, as in `output.lake.url`, and what is wrong with their values.
    found: Vec<(String, String)>,
}

impl Faults {
    /// None yet, of this file.
    pub fn of(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            found: Vec::new(),
        }
    }

    /// Adds one.
    pub fn add(&mut self, key: impl Into<String>, why: impl Into<String>) {
        let fault = (key.into(), why.into());
        // What several keys need is wrong once.
        if !self.found.contains(&fault) {
            self.found.push(fault);
        }
    }

    /// Adds one if something is wrong.
    pub fn add_error(&mut self, key: impl Into<String>, checked: Result<(), impl fmt::Display>) {
        if let Err(why) = checked {
            self.add(key, why.to_string());
        }
    }

    /// Whether nothing is wrong.
    ///
    /// # Errors
    /// All that is.
    pub fn end(self) -> Result<(), ConfigError> {
        match self.found.is_empty() {
            true => Ok(()),
            false => Err(ConfigError::Values(self)),
        }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        for (number, (key, why)) in self.found.iter().enumerate() {
            let end = if number > 0 { "\n" } else { "" };
            // A line each: a key in quotes may have anything in it.
            let key = key.escape_debug();
            write!(
                out,
                "{end}{path}: {key}: {}",
                why.replace(char::is_control, " ")
            )?;
        }
        Ok(())
    }
}
