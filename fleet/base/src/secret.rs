//! Files with secrets: read when they are needed, and only where others cannot read them.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Rights that make a secret anybody's, or somebody else's choice.
const OF_OTHERS: u32 = 0o027;

/// The text of a file of at most `most` bytes.
///
/// # Errors
/// In words, without any content: it cannot be read, others can, or it is no such text.
pub fn read(path: &Path, most: u64) -> Result<String, String> {
    let file = open(path).map_err(|error| error.to_string())?;
    let about = file.metadata().map_err(|error| error.to_string())?;
    if !about.is_file() {
        return Err("is not a regular file".to_owned());
    }
    let mode = about.mode() & 0o777;
    if mode & OF_OTHERS != 0 {
        return Err(format!(
            "other users can read or change it (mode {mode:03o}): chmod 600 {}",
            path.display()
        ));
    }
    let mut bytes = Vec::new();
    let read = file.take(most.saturating_add(1)).read_to_end(&mut bytes);
    if read.map_err(|error| error.to_string())? as u64 > most {
        return Err("is too long for a secret".to_owned());
    }
    // The error would have a part of it.
    String::from_utf8(bytes).map_err(|_| "is not UTF-8 text".to_owned())
}

/// Opens it. A pipe in its place is not waited for.
fn open(path: &Path) -> std::io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_secret_that_others_can_read_or_change_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "s3cret\n").unwrap();
        for (mode, is_right) in [
            (0o600, true),
            (0o400, true),
            (0o440, true),
            (0o640, true),
            (0o660, false),
            (0o644, false),
            (0o604, false),
            (0o620, false),
            (0o602, false),
        ] {
            std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
            let found = read(&file, 100);
            assert_eq!(found.is_ok(), is_right, "{mode:o}: {found:?}");
            if let Err(why) = found {
                let expected = format!("(mode {mode:03o}): chmod 600 {}", file.display());
                assert!(why.contains(&expected), "{why}");
            }
        }
    }

    #[test]
    fn errors_have_nothing_of_the_secret() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let write = |bytes: &[u8]| {
            std::fs::write(&file, bytes).unwrap();
            std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        };
        write(b"s3cret");
        assert_eq!(read(&file, 6).as_deref(), Ok("s3cret"));
        for (bytes, most) in [(&b"s3cret"[..], 5), (b"s3cret\xff", 100)] {
            write(bytes);
            let why = read(&file, most).unwrap_err();
            assert!(!why.contains("s3"), "{why}");
        }
        assert_eq!(read(folder.path(), 5).unwrap_err(), "is not a regular file");
        read(&folder.path().join("none"), 5).unwrap_err();
    }
}
