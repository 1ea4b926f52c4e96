//! Who may do what in the state directory, which both programs of the agent use.
//!
//! `aiprof agent` may be root; `aiprof-send` is then another user, of the same group. So the
//! group may pass `STATE`, list `STATE/spool`, and write to `STATE/spool/OUTPUT` and to
//! `STATE/sender`; it may not change which of these there are. The group of root has no
//! other members. An agent of another user shares nothing: its `aiprof-send` is that user, too.

use crate::config::Config;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// The exit code of an `aiprof-send` that needs what only a new start gives it.
pub const AGAIN: u8 = 75;

const PASS: u32 = 0o010;
const LIST: u32 = 0o050;
const WRITE: u32 = 0o070;
/// Mode of what the agent writes: only its owner and its group read it.
const READ: u32 = 0o640;

/// Makes the directories that both use.
///
/// # Errors
/// One cannot be made, or its mode not be changed.
pub fn prepare(config: &Config) -> io::Result<()> {
    directory(&config.state, PASS)?;
    let spool = config.spool_directory();
    directory(&spool, LIST)?;
    for output in config.outputs.iter().filter(|output| output.to.is_sent()) {
        queue(&spool.join(&output.name))?;
    }
    directory(&config.sender_directory(), WRITE)
}

/// Makes the directory of an output's bodies.
pub(crate) fn queue(path: &Path) -> io::Result<()> {
    directory(path, WRITE)
}

/// Lets the group read a file that the agent has begun.
pub(crate) fn let_read(file: &File) -> io::Result<()> {
    match rustix::process::geteuid().is_root() {
        true => file.set_permissions(Permissions::from_mode(READ)),
        false => Ok(()),
    }
}

/// Makes a directory with these rights of its group, besides those that it has.
fn directory(path: &Path, of_group: u32) -> io::Result<()> {
    std::fs::create_dir_all(path)?;
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let mode = std::fs::metadata(path)?.permissions().mode() & 0o7777;
    match mode & of_group == of_group {
        true => Ok(()),
        false => std::fs::set_permissions(path, Permissions::from_mode(mode | of_group)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_group_of_root_are_bodies_and_not_which_outputs_there_are() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let text = format!("state = {state:?}\n[[output]]\ntype = \"parca\"\nurl = \"http://x\"\n");
        let config = Config::parse(Path::new("x"), &text).unwrap();
        prepare(&config).unwrap();
        let of_group = |name: &str| {
            let mode = std::fs::metadata(state.join(name)).unwrap().permissions();
            mode.mode() & 0o070
        };
        if !rustix::process::geteuid().is_root() {
            assert!(state.join("spool/parca").is_dir() && state.join("sender").is_dir());
            return;
        }
        assert_eq!(
            (of_group("spool/parca"), of_group("sender")),
            (0o070, 0o070)
        );
        for fixed in ["", "spool"] {
            assert_eq!(of_group(fixed) & 0o030, 0o010, "{fixed:?}");
        }
    }
}
