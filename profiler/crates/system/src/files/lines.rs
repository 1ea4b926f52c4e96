//! Lines for whoever started this process, on a descriptor that it was given by number.
//! They are written without ever waiting for a reader.

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FileType, Mode, OFlags},
    io::{Errno, FdFlags},
    net::SendFlags,
};
use std::{
    collections::VecDeque,
    io,
    os::fd::{AsRawFd as _, BorrowedFd, OwnedFd},
};

/// Most bytes that wait for a slow reader.
const MAX_WAITING: usize = 64 << 10;
/// The first descriptor that is not stdin, stdout or stderr.
const FIRST: i32 = 3;

/// Lines on a descriptor of the caller. What the reader does not take at once waits here,
/// and is dropped where too much does; a reader that has gone gets nothing more.
#[derive(Debug)]
pub struct CallerLines {
    fd: OwnedFd,
    is_socket: bool,
    waiting: VecDeque<Vec<u8>>,
    is_gone: bool,
}

impl CallerLines {
    /// Takes over the descriptor with this number: programs that this process executes
    /// from here on do not have it.
    ///
    /// # Errors
    /// It is one of the first three, it is not open, or it cannot be written to.
    pub fn take_over(number: i32) -> io::Result<Self> {
        let wrong = |why: &str| Err(io::Error::other(format!("descriptor {number}{why}")));
        if number < FIRST {
            return wrong(": 0, 1 and 2 are stdin, stdout and stderr; use 3 or higher");
        }
        // SAFETY: only asked for its flags, which fails with EBADF if it is not open.
        let (flags, mode) = unsafe {
            (
                libc::fcntl(number, libc::F_GETFD),
                libc::fcntl(number, libc::F_GETFL),
            )
        };
        // What this process opened itself is closed on exec, what it was given is not.
        if flags < 0 || flags & libc::FD_CLOEXEC != 0 {
            return wrong(&format!(
                " is not open: append `{number}>FILE` to the command (sudo closes it)"
            ));
        }
        if mode & libc::O_PATH != 0 || mode & libc::O_ACCMODE == libc::O_RDONLY {
            return wrong(" is open only for reading, but lines must be written to it");
        }
        // SAFETY: it is open, as was just seen, and nothing closes what was inherited.
        let given = unsafe { BorrowedFd::borrow_raw(number) };
        rustix::io::fcntl_setfd(given, FdFlags::CLOEXEC)?;
        let fd = rustix::io::fcntl_dupfd_cloexec(given, FIRST)?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
        let fd = match kind {
            FileType::Fifo => without_waiting(&fd).unwrap_or(fd),
            // Other devices may do something when they are opened.
            FileType::CharacterDevice if rustix::termios::isatty(&fd) => {
                without_waiting(&fd).unwrap_or(fd)
            }
            _ => fd,
        };
        Ok(Self {
            fd,
            is_socket: kind == FileType::Socket,
            waiting: VecDeque::new(),
            is_gone: false,
        })
    }

    /// Writes a line, or keeps it until its reader has taken what came before.
    pub fn write(&mut self, line: &str) {
        if self.is_gone {
            return;
        }
        let bytes: usize = self.waiting.iter().map(Vec::len).sum();
        if bytes + line.len() >= MAX_WAITING {
            tracing::debug!("line descriptor: no one reads it; dropped {line}");
        } else {
            self.waiting.push_back(format!("{line}\n").into_bytes());
        }
        self.flush();
    }

    /// Writes as much of what waits as the reader takes now.
    pub fn flush(&mut self) {
        while let Some(line) = self.waiting.front_mut() {
            match write_now(&self.fd, self.is_socket, line) {
                Ok(n) if n < line.len() => drop(line.drain(..n)),
                Ok(_) => drop(self.waiting.pop_front()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    tracing::debug!("line descriptor: {error}");
                    self.waiting.clear();
                    self.is_gone = true;
                }
            }
        }
    }
}

/// The same pipe or terminal, opened anew: how the descriptor of the caller waits is the
/// caller's affair, which shares it with this process.
fn without_waiting(fd: &OwnedFd) -> Option<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    rustix::fs::open(path, flags, Mode::empty()).ok()
}

/// Writes what the other side takes without waiting.
fn write_now(fd: &OwnedFd, is_socket: bool, bytes: &[u8]) -> rustix::io::Result<usize> {
    if is_socket {
        return rustix::net::send(fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
    // Where it could not be opened anew.
    let mut polled = [PollFd::new(fd, PollFlags::OUT)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    match poll(&mut polled, Some(&now))? {
        0 => Err(Errno::AGAIN),
        _ => rustix::io::write(fd, bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    /// A descriptor as it is inherited.
    fn given(fd: &OwnedFd) -> i32 {
        rustix::io::fcntl_setfd(fd, FdFlags::empty()).unwrap();
        fd.as_raw_fd()
    }

    fn pipe() -> (std::fs::File, OwnedFd) {
        let (read, write) = rustix::pipe::pipe().unwrap();
        (read.into(), write)
    }

    #[test]
    fn what_is_wrong_with_a_descriptor_is_said() {
        let (read, write) = pipe();
        let read: OwnedFd = read.into();
        for (number, why) in [
            (1, "stdout"),
            (-1, "stdout"),
            (987_654, "not open: append `987654>FILE`"),
            (given(&read), "only for reading"),
        ] {
            let error = CallerLines::take_over(number).unwrap_err().to_string();
            assert!(error.contains(why), "{number}: {error}");
        }
        let number = given(&write);
        CallerLines::take_over(number).unwrap();
        // Programs that are executed later do not have it, and it cannot be taken over twice.
        let flags = rustix::io::fcntl_getfd(&write).unwrap();
        assert!(flags.contains(FdFlags::CLOEXEC));
        CallerLines::take_over(number).unwrap_err();
    }

    #[test]
    fn lines_arrive_in_order_and_a_slow_reader_holds_nobody_up() {
        let (mut read, write) = pipe();
        let mut lines = CallerLines::take_over(given(&write)).unwrap();
        // The caller's own descriptor waits as before.
        let flags = rustix::fs::fcntl_getfl(&write).unwrap();
        assert!(!flags.contains(OFlags::NONBLOCK));
        // More than a pipe and the queue hold.
        for number in 0..40_000 {
            lines.write(&format!("known={number}"));
        }
        assert!(!lines.waiting.is_empty());
        drop(write);
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            read.read_to_string(&mut text).unwrap();
            text
        });
        while !lines.waiting.is_empty() {
            lines.flush();
        }
        drop(lines);
        let text = reader.join().unwrap();
        assert!(text.ends_with('\n'));
        let numbers: Vec<u32> = text
            .lines()
            .map(|line| line.strip_prefix("known=").unwrap().parse().unwrap())
            .collect();
        assert!(numbers.iter().copied().eq(0..numbers.len() as u32));
    }

    #[test]
    fn a_reader_that_has_gone_is_no_error() {
        let (read, write) = pipe();
        let mut lines = CallerLines::take_over(given(&write)).unwrap();
        drop(read);
        lines.write("attached");
        lines.write("sampling");
        assert!(lines.is_gone && lines.waiting.is_empty());
        let (here, there) = UnixStream::pair().unwrap();
        let mut lines = CallerLines::take_over(given(&there.into())).unwrap();
        drop(here);
        lines.write("attached");
        assert!(lines.is_gone);
    }

    #[test]
    fn sockets_and_files_get_lines_too() {
        let (mut here, there) = UnixStream::pair().unwrap();
        let there = OwnedFd::from(there);
        let mut lines = CallerLines::take_over(given(&there)).unwrap();
        lines.write("attached");
        drop((lines, there));
        let mut text = String::new();
        here.read_to_string(&mut text).unwrap();
        assert_eq!(text, "attached\n");
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("lines");
        let file = OwnedFd::from(std::fs::File::create(&path).unwrap());
        let mut lines = CallerLines::take_over(given(&file)).unwrap();
        lines.write("attached");
        lines.write("sampling");
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "attached\nsampling\n"
        );
    }
}
