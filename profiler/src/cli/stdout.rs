//! Whether stdout is there. When a program starts, the standard library opens /dev/null in place of
//! a closed stdout, and ignores a stdout that cannot be written to. A result would be lost without
//! an error.

use anyhow::{Result, bail};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether stdout was open when this program was started.
static WAS_OPEN: AtomicBool = AtomicBool::new(true);

/// Looks before the standard library does (std::sys::pal::unix::init).
extern "C" fn look() {
    // SAFETY: only asks for the flags of a descriptor; EBADF if it is closed.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    WAS_OPEN.store(flags >= 0, Ordering::Relaxed);
}

// SAFETY: the section holds pointers to functions that are called before main, in a process of one
// thread. This one allocates nothing and needs nothing that the start of the standard library would
// prepare.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

/// For what goes to stdout.
///
/// # Errors
/// It is closed, or only open for reading.
pub(crate) fn require() -> Result<()> {
    // SAFETY: only asks for the flags of a descriptor.
    let mode = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFL) };
    let is_readable_only = mode >= 0 && mode & libc::O_ACCMODE == libc::O_RDONLY;
    if !WAS_OPEN.load(Ordering::Relaxed) || mode < 0 || is_readable_only {
        bail!("cannot print the result: stdout is closed; redirect it to a file, or use -o FILE");
    }
    Ok(())
}
