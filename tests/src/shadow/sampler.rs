//! Has a running aiprof sample a thread at a moment of our choice.
//!
//! A perf event of our own runs aiprof's own program, the one that its timers run, each
//! time the thread leaves a CPU.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use anyhow::Context as _;

/// bpf(2), `include/uapi/linux/bpf.h`.
const BPF_PROG_GET_FD_BY_ID: libc::c_int = 13;
const BPF_PROG_TYPE_PERF_EVENT: &str = "7";
/// perf_event_open(2), `include/uapi/linux/perf_event.h`.
const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_CONTEXT_SWITCHES: u64 = 3;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
const ATTR_DISABLED: u64 = 1;
const IOC_ENABLE: libc::c_ulong = 0x2400;
const IOC_DISABLE: libc::c_ulong = 0x2401;
const IOC_SET_BPF: libc::c_ulong = 0x4004_2408;

/// The first 64 bytes of `struct perf_event_attr` (`PERF_ATTR_SIZE_VER0`).
#[repr(C)]
#[derive(Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    bp_addr: u64,
}

/// The program of an aiprof that is recording.
pub(super) struct Program {
    fd: OwnedFd,
}

impl Program {
    /// Finds it. `None`: it is not loaded yet.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(super) fn find(aiprof: u32) -> anyhow::Result<Option<Self>> {
        let Ok(files) = fs::read_dir(format!("/proc/{aiprof}/fdinfo")) else {
            return Ok(None);
        };
        for file in files {
            let Ok(info) = fs::read_to_string(file?.path()) else {
                continue;
            };
            let field = |name: &str| {
                let mut lines = info.lines();
                lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"))
            };
            if field("prog_type") == Some(BPF_PROG_TYPE_PERF_EVENT) {
                let id = field("prog_id").context("a program without id")?.parse()?;
                return Ok(Some(Self { fd: open(id)? }));
            }
        }
        Ok(None)
    }
}

fn open(id: u32) -> io::Result<OwnedFd> {
    let mut attr = [0u32; 32];
    attr[0] = id;
    // SAFETY: the kernel reads as many bytes of `attr` as are named, all initialised.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_GET_FD_BY_ID,
            attr.as_ptr(),
            size_of_val(&attr),
        )
    };
    descriptor(fd)
}

/// A descriptor that a system call has just made.
fn descriptor(result: libc::c_long) -> io::Result<OwnedFd> {
    match i32::try_from(result) {
        // SAFETY: nothing else owns it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The event of one thread.
pub(super) struct Sampler {
    fd: OwnedFd,
}

impl Sampler {
    /// A sampler of a thread; off at first.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub(super) fn new(program: &Program, tid: libc::pid_t) -> io::Result<Self> {
        let attr = Attr {
            kind: PERF_TYPE_SOFTWARE,
            size: size_of::<Attr>() as u32,
            config: PERF_COUNT_SW_CONTEXT_SWITCHES,
            sample_period: 1,
            flags: ATTR_DISABLED,
            ..Attr::default()
        };
        // SAFETY: `attr` is initialised and contains its size.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attr,
                tid,
                -1,
                -1,
                PERF_FLAG_FD_CLOEXEC,
            )
        };
        let sampler = Self {
            fd: descriptor(fd)?,
        };
        sampler.ioctl(IOC_SET_BPF, program.fd.as_raw_fd() as libc::c_ulong)?;
        Ok(sampler)
    }

    /// Each switch is a sample from now on, or none is.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub(super) fn switch(&self, on: bool) -> io::Result<()> {
        self.ioctl(if on { IOC_ENABLE } else { IOC_DISABLE }, 0)
    }

    fn ioctl(&self, request: libc::c_ulong, argument: libc::c_ulong) -> io::Result<()> {
        // SAFETY: these requests take a number.
        match unsafe { libc::ioctl(self.fd.as_raw_fd(), request, argument) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
