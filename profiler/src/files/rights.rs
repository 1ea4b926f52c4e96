//! The caller's rights, apart from those that the program file gives.

use crate::collect::privileges;
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::io;

/// Runs `open` with the rights that the caller has without this program: for all
/// but root, with no capability in effect. Capabilities belong to threads, so that
/// other threads keep theirs meanwhile. `open` must not start threads.
///
/// Root is root, also under sudo: who may call sudo may do everything.
///
/// # Errors
/// Those of `open`; the capabilities could not be given up or taken back.
pub fn as_caller<R>(open: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
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
                tracing::error!("cannot take capabilities back: {error}");
            }
        }
    }
    let _restore = Restore(own);
    open()
}

/// Whether links and pipes of a user may lead this process: of its own user, of
/// root, and of whoever called sudo.
pub fn is_trusted(uid: u32) -> bool {
    let sudo = || privileges::sudo_caller().is_some_and(|(caller, _)| caller == uid);
    uid == 0 || uid == rustix::process::geteuid().as_raw() || sudo()
}

/// Whether files of a user are results of this one's runs: of its own user, or of
/// whoever called sudo, to whom results are given.
pub fn is_own(uid: u32) -> bool {
    let sudo = || privileges::sudo_caller().is_some_and(|(caller, _)| caller == uid);
    uid == rustix::process::geteuid().as_raw() || sudo()
}
