//! Reading memory-mapped files that may shrink meanwhile.
//!
//! Anyone can truncate a file of theirs while it is mapped here; touching a page
//! beyond the new end raises SIGBUS, whose default ends the process. While a
//! thread is inside [`mapped`], a handler puts a page of zeros there instead, so
//! the reader sees zeros and goes on to an error. Everywhere else the signal
//! does what it did before.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;

thread_local! {
    /// Number of pages replaced, while inside [`mapped`]; const and without a
    /// destructor, so that a signal handler may touch it.
    static REPLACED: Cell<Option<u32>> = const { Cell::new(None) };
}

/// The handler that was installed before ours; `None` if ours could not be.
static PREVIOUS: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// Runs `read`, which reads mapped files, with pages that vanish replaced by
/// zeros. Also tells whether that happened: the result is worthless then.
pub(super) fn mapped<R>(read: impl FnOnce() -> R) -> (R, bool) {
    PREVIOUS.get_or_init(install);
    let before = REPLACED.replace(Some(0));
    // Reset when `read` panics, too.
    struct Leave(Option<u32>);
    impl Drop for Leave {
        fn drop(&mut self) {
            REPLACED.set(self.0);
        }
    }
    let leave = Leave(before);
    let result = read();
    let truncated = REPLACED.get().is_some_and(|n| n > 0);
    drop(leave);
    (result, truncated)
}

fn install() -> Option<libc::sigaction> {
    let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
    // SAFETY: a zeroed sigaction is a valid value (no handler, empty mask).
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: both point to sigactions that live through the call; the handler
    // has the signature that SA_SIGINFO asks for.
    let rc = unsafe { libc::sigaction(libc::SIGBUS, &action, previous.as_mut_ptr()) };
    // SAFETY: zeroed above, and filled in by the kernel on success.
    (rc == 0).then(|| unsafe { previous.assume_init() })
}

/// Async-signal-safe: reads a thread-local without destructor, calls mmap and
/// sigaction.
extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler.
    let (code, addr) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if let (Some(n), libc::BUS_ADRERR) = (REPLACED.get(), code)
        && put_zeros(addr)
    {
        REPLACED.set(Some(n.saturating_add(1)));
        return;
    }
    // Not ours: give the signal back to who had it; the access then repeats.
    if let Some(Some(previous)) = PREVIOUS.get() {
        // SAFETY: `previous` is what sigaction returned when ours was installed.
        unsafe { libc::sigaction(signal, previous, ptr::null_mut()) };
    } else {
        // SAFETY: restores the default action, which needs no further state.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Maps zeros over the page of `addr`.
fn put_zeros(addr: usize) -> bool {
    // SAFETY: sysconf has no preconditions.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let start = addr & !(page - 1);
    // SAFETY: SIGBUS with BUS_ADRERR means that the page is a mapping whose file
    // has no such page any more: it holds no data that this could replace.
    let mapped = unsafe {
        libc::mmap(
            start as *mut libc::c_void,
            page,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    mapped != libc::MAP_FAILED
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn truncated_mapping_reads_as_zeros() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 3 * 4096]).unwrap();
        // SAFETY: the file shrinks below; that is what the guard is for.
        let map = unsafe { memmap2::Mmap::map(&file).unwrap() };
        let sum = |map: &[u8]| map.iter().map(|&b| u64::from(b)).sum::<u64>();
        assert_eq!(mapped(|| sum(&map)), (7 * 3 * 4096, false));
        file.set_len(4096).unwrap();
        assert_eq!(mapped(|| sum(&map)), (7 * 4096, true));
        // The pages stay replaced: no signal, no sign.
        assert_eq!(mapped(|| sum(&map)), (7 * 4096, false));
    }
}
