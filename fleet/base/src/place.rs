//! Whether there is a place for what the agent's programs write.

use std::io::{self, Write as _};
use std::path::Path;

/// Bytes that a place must have room for: a window of a small host.
pub const ROOM: usize = 16 << 10;

/// Checks whether files of `room` bytes can be written to a directory. Where it is missing, its
/// nearest parent that exists is checked: the directory is made later. Nothing is made here, and no
/// file stays.
///
/// # Errors
/// In words: why they cannot.
pub fn check(directory: &Path, room: usize) -> Result<(), String> {
    for place in directory.ancestors() {
        match std::fs::metadata(place) {
            Ok(about) if about.is_dir() => {
                return probe(place, room).map_err(|error| explain(place, &error));
            }
            Ok(_) => return Err(format!("{} is not a directory", place.display())),
            Err(error) if is_missing(&error) => {
                if std::fs::symlink_metadata(place).is_ok() {
                    return Err(format!("{} is a broken symbolic link", place.display()));
                }
            }
            Err(error) => return Err(explain(place, &error)),
        }
    }
    Err("must be an absolute path".to_owned())
}

fn is_missing(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
}

/// Writes to a file without a name.
fn probe(directory: &Path, room: usize) -> io::Result<()> {
    let mut file = tempfile::tempfile_in(directory)?;
    file.write_all(&vec![0; room])?;
    // Some file systems have room until they write.
    match room {
        0 => Ok(()),
        _ => file.sync_data(),
    }
}

fn explain(place: &Path, error: &io::Error) -> String {
    use io::ErrorKind::{PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    let advice = match error.kind() {
        StorageFull | QuotaExceeded => "free some space, or name another directory",
        PermissionDenied => "give its user permission to write there, or name another directory",
        ReadOnlyFilesystem => "name a directory on a writable file system",
        _ => "name another directory",
    };
    // tempfile puts its path into the error, which is of no use to anybody.
    let error = match error.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number).to_string(),
        None => io::Error::from(error.kind()).to_string(),
    };
    format!("cannot write to {}: {error}: {advice}", place.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_there_or_can_be_made_and_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "").unwrap();
        std::os::unix::fs::symlink("nowhere", at("link")).unwrap();
        for (name, expected) in [
            ("", None),
            ("new", None),
            ("new/and/deeper", None),
            ("file", Some("is not a directory")),
            ("file/in/it", Some("is not a directory")),
            ("link", Some("is a broken symbolic link")),
            ("link/in/it", Some("is a broken symbolic link")),
        ] {
            let found = check(&at(name), ROOM);
            let why = found.err();
            assert_eq!(why.is_some(), expected.is_some(), "{name}: {why:?}");
            assert!(
                why.unwrap_or_default()
                    .contains(expected.unwrap_or_default()),
                "{name}"
            );
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
        let why = check(Path::new("/proc/nothing"), ROOM).unwrap_err();
        assert!(why.starts_with("cannot write to /proc: "), "{why}");
    }
}
