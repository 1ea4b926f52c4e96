//! The caller's rights, apart from those that the program file gives.

use rustix::thread::{CapabilitySet, CapabilitySets};
use std::{
    io,
    os::unix::{fs::MetadataExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
};

/// Runs `open` with the rights that the caller has without this program: for all
/// but root, with no capability in effect. Capabilities belong to threads, so that
/// other threads keep theirs meanwhile. `open` must not start threads.
///
/// Root is root, also under sudo: who may call sudo may do everything.
///
/// # Errors
/// Those of `open`; the capabilities could not be given up or taken back.
pub(crate) fn as_caller<R>(open: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
    if rustix::process::geteuid().is_root() {
        return open();
    }
    let own = rustix::thread::capabilities(None)?;
    if own.effective.is_empty() {
        return open();
    }
    let bare = CapabilitySets {
        effective: CapabilitySet::empty(),
        ..own
    };
    rustix::thread::set_capabilities(None, bare)?;
    // Also when `open` panics: what follows needs them.
    struct Restore(CapabilitySets);
    impl Drop for Restore {
        fn drop(&mut self) {
            if let Err(error) = rustix::thread::set_capabilities(None, self.0) {
                tracing::error!("cannot restore capabilities: {error}");
            }
        }
    }
    let _restore = Restore(own);
    open()
}

/// Who called sudo: user and group id from `SUDO_UID` and `SUDO_GID`; `None` when
/// not root, or not started by sudo.
pub fn sudo_caller() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let id = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    // u32::MAX means "no change" to chown(2) and setuid(2): never a real id.
    Some((id("SUDO_UID")?, id("SUDO_GID")?)).filter(|&(u, g)| u != u32::MAX && g != u32::MAX)
}

/// Whether links and pipes of a user may lead this process: of its own user, of
/// root, and of whoever called sudo.
pub fn is_trusted(uid: u32) -> bool {
    let sudo = || sudo_caller().is_some_and(|(caller, _)| caller == uid);
    uid == 0 || uid == rustix::process::geteuid().as_raw() || sudo()
}

/// Whether files of a user are results of this one's runs: of its own user, or of
/// whoever called sudo, to whom results are given.
pub fn is_own(uid: u32) -> bool {
    let sudo = || sudo_caller().is_some_and(|(caller, _)| caller == uid);
    uid == rustix::process::geteuid().as_raw() || sudo()
}

/// Whether this process has rights that its caller lacks or must not pass on: it
/// runs as root, has capabilities, or got some from its program file. Programs and
/// libraries are then taken from fixed places only, see [`is_roots_alone`].
pub fn is_privileged() -> bool {
    // SAFETY: getauxval reads the auxiliary vector; any type is allowed.
    let elevated = unsafe { libc::getauxval(libc::AT_SECURE) != 0 };
    let capable = rustix::thread::capabilities(None).map_or(true, |own| !own.permitted.is_empty());
    elevated || capable || rustix::process::geteuid().is_root()
}

/// Whether only root can change a file: it and the directories above it, links
/// resolved, are root's and not writable for others.
pub fn is_roots_alone(path: &Path) -> bool {
    roots_alone(path).is_some()
}

/// The path without links of a file that [only root can change](is_roots_alone).
pub fn roots_alone(path: &Path) -> Option<PathBuf> {
    let real = std::fs::canonicalize(path).ok()?;
    let alone = real.ancestors().all(|part| {
        std::fs::metadata(part).is_ok_and(|meta| {
            // A group of root's (uid 0, gid 0) has no other members.
            let writers = if meta.gid() == 0 { 0o002 } else { 0o022 };
            meta.uid() == 0 && meta.mode() & writers == 0
        })
    });
    alone.then_some(real)
}

/// Has a child run without capabilities, and without a way to get any by what it
/// executes. Its user stays the same.
pub fn without_capabilities(command: &mut Command) -> &mut Command {
    let drop_all = || {
        let none = CapabilitySets {
            effective: CapabilitySet::empty(),
            permitted: CapabilitySet::empty(),
            inheritable: CapabilitySet::empty(),
        };
        // If root executes a program, that would give all back; not with no_new_privs.
        rustix::thread::set_no_new_privs(true)?;
        rustix::thread::set_capabilities(None, none)?;
        Ok(())
    };
    // SAFETY: it runs between fork and exec and makes two system calls (the
    // ambient set is cut down with the permitted one); it allocates nothing.
    unsafe { command.pre_exec(drop_all) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_has_no_capabilities() {
        let mut command = Command::new("cat");
        command.arg("/proc/self/status");
        let output = without_capabilities(&mut command).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert!(
                text.contains(&format!("{set}:\t0000000000000000")),
                "{text}"
            );
        }
        assert!(text.contains("NoNewPrivs:\t1"), "{text}");
    }

    #[test]
    fn what_others_can_change_is_not_roots_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        // Below /tmp, which everybody writes to.
        assert!(!is_roots_alone(&file));
        assert!(!is_roots_alone(Path::new("/nonexistent")));
        assert!(is_roots_alone(Path::new("/etc/passwd")));
    }
}
