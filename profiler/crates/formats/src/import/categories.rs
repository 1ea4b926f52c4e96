//! Files of categories: unitrace's INI files and the JSON that its `categorize.py` makes of
//! them.

#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;

use aiprof_system::files::caller;
use aiprof_tables::categories::{Categories, IniError, TreeError};
use std::io;
use std::path::Path;

/// Largest file that is read, bytes.
const MAX_FILE: u64 = 8 << 20;

/// Why a file of categories cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CategoriesError {
    /// It cannot be read at all, is too large or no text.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is no INI file.
    #[error(transparent)]
    Ini(#[from] IniError),
    /// It is no JSON of categories.
    #[error(transparent)]
    Json(#[from] TreeError),
}

/// Reads a file of either kind: JSON begins with `{`.
///
/// # Errors
/// It cannot be read, or is neither.
pub fn load(path: &Path) -> Result<Categories, CategoriesError> {
    let text = caller::read_to_string(path, MAX_FILE)?;
    match text.trim_start().starts_with('{') {
        true => Ok(Categories::of_json(&text)?),
        false => Ok(Categories::of_ini(&text, true)?),
    }
}

/// Reads an INI file. `ignores_blanks`: blanks and tabs do not count in names.
///
/// # Errors
/// It cannot be read, or is none.
pub fn load_ini(path: &Path, ignores_blanks: bool) -> Result<Categories, CategoriesError> {
    let text = caller::read_to_string(path, MAX_FILE)?;
    Ok(Categories::of_ini(&text, ignores_blanks)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rules");
        let of = |text: &str| {
            std::fs::write(&path, text).unwrap();
            load(&path).map(|rules| rules.of("a b").map(str::to_owned))
        };
        let json = r#"{"ignore_spaces":true,"direct":{"length":2,"next":{"ab":{"category":"j"}}}}"#;
        assert_eq!(of(json).unwrap().as_deref(), Some("j"));
        assert_eq!(of("[i if equals to]\nab\n").unwrap().as_deref(), Some("i"));
        assert!(of("{").is_err() && of("ab").is_err());
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(load(&path).is_err() && load(Path::new("/no/such")).is_err());
    }
}
