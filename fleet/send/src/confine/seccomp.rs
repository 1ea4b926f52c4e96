//! Which system calls the program may make (seccomp(2)): those of its work, by name, and no
//! other. What is refused fails with EPERM.
//!
//! Sources: Documentation/userspace-api/seccomp_filter.rst; include/uapi/linux/filter.h.

use libc::{c_long, sock_filter};
use std::io;

/// Whose calls are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calls {
    /// Calls of what has the network: sockets, threads, files.
    OfSender,
    /// Calls of its keeper, which reads files and has one socket.
    OfKeeper,
}

/// What both make.
const OF_BOTH: &[c_long] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getcwd,
    libc::SYS_fcntl,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_capget,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_restart_syscall,
    libc::SYS_ppoll,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_exit,
    libc::SYS_exit_group,
];
/// What only the sender makes: it waits, has connections and threads, and writes files.
const OF_SENDER: &[c_long] = &[
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_pipe2,
    libc::SYS_pselect6,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_rm_watch,
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_preadv,
    libc::SYS_ftruncate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_copy_file_range,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_linkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_umask,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_membarrier,
    libc::SYS_getrusage,
    libc::SYS_times,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getgroups,
    libc::SYS_getresuid,
    libc::SYS_getresgid,
];
/// The older forms of the above, which only some machines have.
#[cfg(target_arch = "x86_64")]
const OLD: &[c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_poll,
    libc::SYS_dup2,
    libc::SYS_time,
];
#[cfg(target_arch = "x86_64")]
const OLD_OF_SENDER: &[c_long] = &[
    libc::SYS_select,
    libc::SYS_pipe,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_accept,
    libc::SYS_mkdir,
    libc::SYS_unlink,
    libc::SYS_link,
    libc::SYS_rename,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[c_long] = &[];
#[cfg(not(target_arch = "x86_64"))]
const OLD_OF_SENDER: &[c_long] = &[];

/// `AUDIT_ARCH_*` of include/uapi/linux/audit.h: numbers of calls are those of this machine.
#[cfg(target_arch = "x86_64")]
const MACHINE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const MACHINE: u32 = 0xc000_00b7;

/// Numbers of calls from here on are those of another interface of the same machine (x32).
const OTHER_NUMBERS: u32 = 0x4000_0000;

// Where `struct seccomp_data` has what is looked at.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;

/// The lower and the upper half of an argument.
const fn halves(argument: u32) -> [u32; 2] {
    let at = 16 + 8 * argument;
    [at, at + 4]
}

/// A filter under construction.
#[derive(Default)]
struct Filter(Vec<sock_filter>);

impl Filter {
    fn push(&mut self, code: u32, (then, otherwise): (u8, u8), value: u32) {
        // Codes of instructions are less than 256.
        let code = u16::try_from(code).unwrap_or_default();
        let (jt, jf) = (then, otherwise);
        let k = value;
        self.0.push(sock_filter { code, jt, jf, k });
    }

    fn load(&mut self, at: u32) {
        self.push(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, (0, 0), at);
    }

    fn end(&mut self, action: u32) {
        self.push(libc::BPF_RET | libc::BPF_K, (0, 0), action);
    }

    fn refuse(&mut self, error: i32) {
        self.end(libc::SECCOMP_RET_ERRNO | error.cast_unsigned());
    }

    /// The instructions up to the next [`Filter::end`] are for what equals the value.
    fn if_equal(&mut self, value: u32, length: u8) {
        self.push(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            (0, length),
            value,
        );
    }

    /// Allows a call whatever its arguments are.
    fn allow(&mut self, call: c_long) {
        self.if_equal(number(call), 1);
        self.end(libc::SECCOMP_RET_ALLOW);
    }

    /// Allows a call if an argument is one of these values; else it fails so.
    fn allow_with(&mut self, call: c_long, argument: u32, values: &[u32], error: i32) {
        let length = u8::try_from(2 + 2 * values.len()).unwrap_or(u8::MAX);
        self.if_equal(number(call), length);
        self.load(halves(argument)[0]);
        for value in values {
            self.if_equal(*value, 1);
            self.end(libc::SECCOMP_RET_ALLOW);
        }
        self.refuse(error);
    }

    /// Allows a call if an argument has this bit; else it fails.
    fn allow_with_bit(&mut self, call: c_long, argument: u32, bit: u32) {
        self.if_equal(number(call), 4);
        self.load(halves(argument)[0]);
        self.push(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, (0, 1), bit);
        self.end(libc::SECCOMP_RET_ALLOW);
        self.refuse(libc::EPERM);
    }

    /// Allows a call if an argument is no address; else it fails.
    fn allow_without(&mut self, call: c_long, argument: u32) {
        self.if_equal(number(call), 6);
        for half in halves(argument) {
            self.load(half);
            let otherwise = if half == halves(argument)[0] { 3 } else { 1 };
            self.if_equal(0, otherwise);
        }
        self.end(libc::SECCOMP_RET_ALLOW);
        self.refuse(libc::EPERM);
    }
}

/// Restricts this thread, and all that it starts, to these calls. It needs `no_new_privs`.
///
/// # Errors
/// The kernel's.
pub(super) fn restrict(calls: Calls) -> io::Result<()> {
    let mut filter = filter(calls);
    let program = libc::sock_fprog {
        len: u16::try_from(filter.0.len()).map_err(io::Error::other)?,
        filter: filter.0.as_mut_ptr(),
    };
    // SAFETY: the program and its instructions live until it returns, which copies them.
    let done = unsafe {
        let (mode, program) = (libc::SECCOMP_SET_MODE_FILTER, &raw const program);
        libc::syscall(libc::SYS_seccomp, mode, 0, program)
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn filter(calls: Calls) -> Filter {
    let mut filter = Filter::default();
    filter.load(ARCHITECTURE);
    filter.push(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, (1, 0), MACHINE);
    filter.end(libc::SECCOMP_RET_KILL_PROCESS);
    filter.load(NUMBER);
    let is_other = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
    filter.push(is_other, (0, 1), OTHER_NUMBERS);
    filter.refuse(libc::EPERM);
    for call in OF_BOTH.iter().chain(OLD) {
        filter.allow(*call);
    }
    if calls == Calls::OfSender {
        for call in OF_SENDER.iter().chain(OLD_OF_SENDER) {
            filter.allow(*call);
        }
        of_sender_by_arguments(&mut filter);
    }
    filter.refuse(libc::EPERM);
    filter
}

/// Calls of which only a part is the sender's.
fn of_sender_by_arguments(filter: &mut Filter) {
    let value = |value: i32| value.cast_unsigned();
    // Netlink answers which addresses this host has, of which the name service chooses.
    let families = [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK].map(value);
    filter.allow_with(libc::SYS_socket, 0, &families, libc::EAFNOSUPPORT);
    // Threads, and no processes.
    filter.allow_with_bit(libc::SYS_clone, 0, value(libc::CLONE_THREAD));
    // What it starts is behind an address; without it the C library takes clone.
    filter.allow_with(libc::SYS_clone3, 0, &[], libc::ENOSYS);
    // Names of threads.
    let name = [value(libc::PR_SET_NAME)];
    filter.allow_with(libc::SYS_prctl, 0, &name, libc::EPERM);
    let commands = [libc::FIONBIO, libc::FIONREAD, libc::TCGETS];
    let commands = commands.map(|command| u32::try_from(command).unwrap_or_default());
    filter.allow_with(libc::SYS_ioctl, 1, &commands, libc::ENOTTY);
    // Limits are read.
    filter.allow_without(libc::SYS_prlimit64, 2);
}

/// Numbers of calls are small.
fn number(call: c_long) -> u32 {
    u32::try_from(call).unwrap_or(OTHER_NUMBERS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use rustix::net::{AddressFamily, SocketType, socket};
    use std::net::TcpListener;
    use std::os::unix::net::UnixStream;

    /// Runs it on a thread of its own, which alone is restricted.
    fn restricted<T: Send>(calls: Calls, then: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                rustix::thread::set_no_new_privs(true).unwrap();
                restrict(calls).unwrap();
                then()
            });
            thread.join().unwrap()
        })
    }

    #[test]
    fn the_sender_has_the_network_and_threads_and_no_processes() {
        restricted(Calls::OfSender, || {
            TcpListener::bind("127.0.0.1:0").unwrap();
            assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
            UnixStream::pair().unwrap();
            let unix = socket(AddressFamily::UNIX, SocketType::STREAM, None);
            assert_eq!(unix.unwrap_err(), Errno::AFNOSUPPORT);
            let packet = socket(AddressFamily::PACKET, SocketType::RAW, None);
            assert_eq!(packet.unwrap_err(), Errno::AFNOSUPPORT);
            std::process::Command::new("/bin/true")
                .status()
                .unwrap_err();
            let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
            let set = rustix::process::setrlimit(rustix::process::Resource::Nofile, limits);
            assert_eq!(set.unwrap_err(), Errno::PERM);
            let own = rustix::process::getpid();
            let signal = rustix::process::Signal::URG;
            let sent = rustix::process::kill_process(own, signal);
            assert_eq!(sent.unwrap_err(), Errno::PERM);
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions("/nonexistent", mode)
                .unwrap_err()
                .raw_os_error()
        });
    }

    #[test]
    fn the_keeper_reads_files_and_sends_nothing() {
        restricted(Calls::OfKeeper, || {
            std::fs::read("/proc/self/stat").unwrap();
            for family in [AddressFamily::INET, AddressFamily::INET6] {
                let made = socket(family, SocketType::STREAM, None);
                assert_eq!(made.unwrap_err(), Errno::PERM);
            }
        });
    }

    #[test]
    fn what_looks_into_others_is_allowed_to_nobody() {
        let all = [OF_BOTH, OF_SENDER, OLD, OLD_OF_SENDER].concat();
        for call in [
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_kill,
            libc::SYS_setns,
            libc::SYS_unshare,
            libc::SYS_symlinkat,
            libc::SYS_fchmodat,
            libc::SYS_fchownat,
            libc::SYS_bpf,
            libc::SYS_io_uring_setup,
        ] {
            assert!(!all.contains(&call), "{call}");
        }
    }
}
