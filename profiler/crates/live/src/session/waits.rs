//! Waits: the programs that record them, and what each was for.

use super::CollectError;
use crate::bpf::{Bpf, probe};
use aiprof_model::wire::{ThreadWait, WaitReason};
use aiprof_system::files::kernel;
use rustc_hash::FxHashMap;
use std::{
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

/// The programs, in the order in which they are attached: what ends a wait first.
pub(super) const PROGRAMS: [&str; 3] = ["left_syscall", "waking", "switched"];
/// How long it is believed what a descriptor is of.
const BELIEVED: Duration = Duration::from_secs(1);
/// Most descriptors that are remembered.
const MAX_DESCRIPTORS: usize = 4096;

/// What is attached for waits, and what is known of what they are for.
#[derive(Debug, Default)]
pub(super) struct Waits {
    links: Vec<probe::BpfLink>,
    /// What waits on a process's descriptor are for.
    descriptors: FxHashMap<(u32, u64), (Instant, WaitReason)>,
}

impl Waits {
    /// Whether waits are recorded.
    pub(super) fn is_attached(&self) -> bool {
        !self.links.is_empty()
    }

    /// Attaches the programs that record waits.
    pub(super) fn attach(&mut self, bpf: &Bpf) -> Result<(), CollectError> {
        let programs = bpf.programs();
        for name in PROGRAMS {
            let program = programs.get(name)?;
            let link = probe::attach_tracing(program.as_fd()).map_err(CollectError::Waits)?;
            self.links.push(link);
        }
        Ok(())
    }

    /// Ends the recording of waits; returns what should be closed.
    pub(super) fn stop(&mut self) -> Vec<probe::BpfLink> {
        std::mem::take(&mut self.links)
    }

    /// What a wait is for, if its system call shows it.
    pub(super) fn reason(&mut self, wait: &ThreadWait) -> WaitReason {
        let Some(syscall) = wait.syscall else {
            // A page that is read from somewhere, if it waited for anything.
            return WaitReason::Io;
        };
        match WaitingCall::of(syscall, wait.arguments) {
            WaitingCall::For(reason) => reason,
            WaitingCall::On(descriptor) => self.of_descriptor(wait.pid, descriptor),
        }
    }

    fn of_descriptor(&mut self, pid: u32, descriptor: u64) -> WaitReason {
        let now = Instant::now();
        let key = (pid, descriptor);
        if let Some((since, reason)) = self.descriptors.get(&key)
            && now.duration_since(*since) < BELIEVED
        {
            return *reason;
        }
        if self.descriptors.len() >= MAX_DESCRIPTORS {
            self.descriptors.clear();
        }
        let descriptor = descriptor & u64::from(u32::MAX);
        let path = kernel::read_link(format!("/proc/{pid}/fd/{descriptor}"));
        let reason = path.map_or(WaitReason::Io, |path| of_path(&path.to_string_lossy()));
        self.descriptors.insert(key, (now, reason));
        reason
    }
}

/// What a system call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitingCall {
    /// This.
    For(WaitReason),
    /// What a descriptor is of.
    On(u64),
}

impl WaitingCall {
    /// By its number on x86-64 (arch/x86/entry/syscalls/syscall_64.tbl) and its arguments.
    fn of(syscall: u32, arguments: [u64; 2]) -> Self {
        let [first, second] = arguments;
        let for_any = |count: u64| match count {
            0 => Self::For(WaitReason::Sleep),
            _ => Self::For(WaitReason::Pipe),
        };
        match syscall {
            // read, write, ioctl, pread64, pwrite64, readv, writev, preadv, pwritev and
            // their second versions, vmsplice, splice
            0 | 1 | 16..=20 | 275 | 278 | 295 | 296 | 327 | 328 => Self::On(first),
            // sendfile: from its second argument
            40 => Self::On(second),
            // poll, ppoll: their second argument is the number of descriptors
            7 | 271 => for_any(second),
            // select, pselect6
            23 | 270 => for_any(first),
            // connect, accept, sendto, recvfrom, sendmsg, recvmsg, accept4, recvmmsg,
            // sendmmsg; epoll_wait, epoll_pwait, epoll_pwait2; msgsnd, msgrcv, mq_timedsend,
            // mq_timedreceive
            42..=47 | 288 | 299 | 307 | 232 | 281 | 441 | 69 | 70 | 242 | 243 => {
                Self::For(WaitReason::Pipe)
            }
            // nanosleep, clock_nanosleep
            35 | 230 => Self::For(WaitReason::Sleep),
            // futex, futex_waitv, futex_wait; semop, semtimedop; fcntl, flock
            202 | 449 | 455 | 65 | 220 | 72 | 73 => Self::For(WaitReason::Lock),
            // wait4, waitid; vfork, clone, clone3
            61 | 247 | 58 | 56 | 435 => Self::For(WaitReason::Process),
            // open and the like, by name; fsync and the like; io_getevents, io_pgetevents,
            // io_uring_enter; msync, readahead, execve
            2
            | 4..=6
            | 21
            | 26
            | 59
            | 74..=89
            | 162
            | 187
            | 208
            | 257..=269
            | 277
            | 306
            | 316
            | 322
            | 332
            | 333
            | 426
            | 437
            | 439 => Self::For(WaitReason::Io),
            _ => Self::For(WaitReason::Other),
        }
    }
}

/// What a wait on a file is for, by the path to which its link in `/proc/PID/fd` leads.
fn of_path(path: &str) -> WaitReason {
    const ACCELERATORS: [&str; 6] = [
        "/dev/dri/",
        "/dev/accel/",
        "/dev/nvidia",
        "/dev/kfd",
        "/dev/vfio/",
        "/dev/aiu",
    ];
    const PIPES: [&str; 7] = [
        "pipe:",
        "socket:",
        "anon_inode:",
        "/dev/pts/",
        "/dev/tty",
        "/dev/ptmx",
        "/dev/console",
    ];
    let begins = |with: &[&str]| with.iter().any(|prefix| path.starts_with(prefix));
    if begins(&ACCELERATORS) {
        WaitReason::Accelerator
    } else if path == "anon_inode:[timerfd]" {
        WaitReason::Timer
    } else if begins(&PIPES) {
        WaitReason::Pipe
    } else {
        WaitReason::Io
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_calls_tell_what_they_wait_for() {
        let of = |number: libc::c_long, arguments| {
            WaitingCall::of(u32::try_from(number).unwrap_or(u32::MAX), arguments)
        };
        let cases = [
            (libc::SYS_futex, WaitReason::Lock),
            (libc::SYS_semtimedop, WaitReason::Lock),
            (libc::SYS_flock, WaitReason::Lock),
            (libc::SYS_nanosleep, WaitReason::Sleep),
            (libc::SYS_clock_nanosleep, WaitReason::Sleep),
            (libc::SYS_epoll_wait, WaitReason::Pipe),
            (libc::SYS_recvfrom, WaitReason::Pipe),
            (libc::SYS_accept4, WaitReason::Pipe),
            (libc::SYS_wait4, WaitReason::Process),
            (libc::SYS_waitid, WaitReason::Process),
            (libc::SYS_fsync, WaitReason::Io),
            (libc::SYS_fdatasync, WaitReason::Io),
            (libc::SYS_openat, WaitReason::Io),
            (libc::SYS_io_uring_enter, WaitReason::Io),
            (libc::SYS_rt_sigsuspend, WaitReason::Other),
        ];
        for (number, reason) in cases {
            assert_eq!(of(number, [3, 1]), WaitingCall::For(reason), "{number}");
        }
        for number in [
            libc::SYS_read,
            libc::SYS_write,
            libc::SYS_ioctl,
            libc::SYS_readv,
            libc::SYS_preadv2,
            libc::SYS_splice,
        ] {
            assert_eq!(of(number, [3, 1]), WaitingCall::On(3), "{number}");
        }
        assert_eq!(of(libc::SYS_sendfile, [3, 4]), WaitingCall::On(4));
        // Without descriptors they are used to sleep.
        for number in [libc::SYS_poll, libc::SYS_ppoll] {
            assert_eq!(of(number, [7, 0]), WaitingCall::For(WaitReason::Sleep));
            assert_eq!(of(number, [7, 2]), WaitingCall::For(WaitReason::Pipe));
        }
        for number in [libc::SYS_select, libc::SYS_pselect6] {
            assert_eq!(of(number, [0, 9]), WaitingCall::For(WaitReason::Sleep));
            assert_eq!(of(number, [5, 9]), WaitingCall::For(WaitReason::Pipe));
        }
    }

    #[test]
    fn files_tell_what_a_wait_on_them_is_for() {
        for (path, reason) in [
            ("/dev/dri/renderD128", WaitReason::Accelerator),
            ("/dev/nvidia0", WaitReason::Accelerator),
            ("pipe:[77]", WaitReason::Pipe),
            ("socket:[78]", WaitReason::Pipe),
            ("anon_inode:[eventfd]", WaitReason::Pipe),
            ("anon_inode:[timerfd]", WaitReason::Timer),
            ("/data/model.bin", WaitReason::Io),
            ("/dev/sda", WaitReason::Io),
        ] {
            assert_eq!(of_path(path), reason, "{path}");
        }
    }
}
