//! Signals as data: which one arrived, and whether a terminal sent it.
//!
//! A terminal sends Ctrl-C to the whole foreground process group, so the
//! profiled command has it already; one from kill(2) reached this process alone.
//! Only `si_code` distinguishes them, and only signalfd(2) shows it without an asynchronous
//! handler. The signals are therefore blocked and read.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use tokio::io::unix::AsyncFd;

/// A signal that this process was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Signal number.
    pub number: i32,
    /// Whether the kernel sent it (a terminal's key or hang-up), which means to
    /// the whole process group.
    pub from_terminal: bool,
}

/// The signal mask as the process had it when it started.
#[derive(Clone, Copy)]
pub struct OriginalMask(libc::sigset_t);

impl std::fmt::Debug for OriginalMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OriginalMask")
    }
}

impl OriginalMask {
    /// Puts this mask back. Async-signal-safe.
    pub fn restore(&self) {
        // SAFETY: the set was filled in by sigprocmask; the old mask is not wanted.
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

/// The signals that end or steer a recording, blocked and waiting to be read.
#[derive(Debug)]
pub struct BlockedSignals {
    fd: OwnedFd,
    original: OriginalMask,
}

impl BlockedSignals {
    /// Blocks SIGINT, SIGTERM, SIGHUP and SIGQUIT in this thread and those it
    /// starts later: call it before there are any. SIGHUP and SIGQUIT that are
    /// ignored (nohup, a shell's background job) stay so.
    ///
    /// `more`: a signal that is read too, and would end this process otherwise.
    ///
    /// # Errors
    /// signalfd(2) failed.
    pub fn block(more: Option<i32>) -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        let mut old = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset fills in the set that sigaddset then extends;
        // sigprocmask with a valid set and operation fills in the old mask.
        let (set, original) = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
            libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
            if let Some(more) = more {
                libc::sigaddset(set.as_mut_ptr(), more);
            }
            for signal in [libc::SIGHUP, libc::SIGQUIT] {
                if !is_ignored(signal) {
                    libc::sigaddset(set.as_mut_ptr(), signal);
                }
            }
            if libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), old.as_mut_ptr()) != 0 {
                return Err(io::Error::last_os_error());
            }
            (set.assume_init(), OriginalMask(old.assume_init()))
        };
        // SAFETY: a valid set; -1 asks for a new descriptor, which is owned here.
        let fd = unsafe {
            let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                let error = io::Error::last_os_error();
                original.restore();
                return Err(error);
            }
            OwnedFd::from_raw_fd(fd)
        };
        // An ignored signal is discarded even while blocked. A shell starts its
        // background jobs with SIGINT ignored, yet `kill -INT` must end the
        // recording and, passed on, its command.
        // SAFETY: SIG_DFL is a valid disposition.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
        Ok(Self { fd, original })
    }

    /// The mask from before, for a forked child.
    pub fn original_mask(&self) -> OriginalMask {
        self.original
    }

    /// Makes them readable in the current tokio runtime.
    ///
    /// # Errors
    /// The runtime's reactor refused the descriptor.
    pub fn into_async(self) -> io::Result<Signals> {
        Ok(Signals(super::readable::watch(self.fd)?))
    }
}

fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null new action only queries; zeroed is a valid sigaction, so
    // reading it is defined even if the call fails.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Signals, read as they arrive.
#[derive(Debug)]
pub struct Signals(AsyncFd<OwnedFd>);

impl Signals {
    /// The next signal. Cancel-safe: none is lost when the future is dropped.
    ///
    /// # Errors
    /// Reading the descriptor failed.
    pub async fn next(&self) -> io::Result<Received> {
        loop {
            let mut ready = self.0.readable().await?;
            if let Ok(result) = ready.try_io(|fd| read_one(fd.get_ref())) {
                return result;
            }
        }
    }
}

fn read_one(fd: &OwnedFd) -> io::Result<Received> {
    const SIZE: usize = size_of::<libc::signalfd_siginfo>();
    let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
    // SAFETY: the buffer is SIZE bytes, and any bytes are a valid
    // signalfd_siginfo (integers only).
    let (n, info) = unsafe {
        let n = libc::read(fd.as_raw_fd(), info.as_mut_ptr().cast(), SIZE);
        (n, info.assume_init())
    };
    match usize::try_from(n) {
        Err(_) => Err(io::Error::last_os_error()),
        Ok(SIZE) => Ok(Received {
            number: i32::try_from(info.ssi_signo).unwrap_or(0),
            from_terminal: info.ssi_code == libc::SI_KERNEL,
        }),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_signal_from_a_process_is_read_and_known_as_such() {
        let blocked = BlockedSignals::block(None).unwrap();
        let original = blocked.original_mask();
        let signals = blocked.into_async().unwrap();
        for number in [libc::SIGTERM, libc::SIGINT] {
            // SAFETY: raise sends to this thread, where the signal is blocked.
            unsafe { libc::raise(number) };
            let expected = Received {
                number,
                from_terminal: false,
            };
            assert_eq!(signals.next().await.unwrap(), expected);
        }
        original.restore();
    }
}
