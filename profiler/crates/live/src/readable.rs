//! Descriptors that a tokio runtime can wait for.

use std::io;
use std::os::fd::OwnedFd;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Hands a descriptor to the current runtime, to wait until it is readable: for
/// a pidfd, until the process has ended. Needs a runtime with I/O enabled.
///
/// # Errors
/// epoll_ctl(2) refused the descriptor.
pub fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd is open and always the same descriptor as long as it
    // lives, and the AsyncFd owns it.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}
