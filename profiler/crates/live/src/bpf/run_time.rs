//! How long eBPF programs ran, as the kernel counts it.

use aiprof_system::files::kernel;
use libbpf_rs::libbpf_sys as sys;
use std::{
    io,
    os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd},
    time::Duration,
};

/// What the kernel was asked when it counts already.
const ALWAYS: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Has the kernel count how long programs run, all of the machine's, as long as this lives;
/// it costs some 20 ns per run. Needs `CAP_SYS_ADMIN` when it is made, and nothing later.
#[derive(Debug)]
pub struct RunTimes {
    _counting: Option<OwnedFd>,
}

impl RunTimes {
    /// Begins to count.
    ///
    /// # Errors
    /// `EPERM`: this thread may not ask for it.
    pub fn start() -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let fd = unsafe { sys::bpf_enable_stats(sys::BPF_STATS_RUN_TIME) };
        if fd >= 0 {
            // SAFETY: a new descriptor that nothing else owns.
            let counting = unsafe { OwnedFd::from_raw_fd(fd) };
            return Ok(Self {
                _counting: Some(counting),
            });
        }
        // Somebody else may have it counted for good.
        match kernel::read_to_string(ALWAYS) {
            Ok(text) if text.trim() == "1" => Ok(Self { _counting: None }),
            _ => Err(io::Error::from_raw_os_error(fd.saturating_neg())),
        }
    }
}

/// How long a program that this process has open ran, on all CPUs together, and how often.
/// Zero where it is not counted.
///
/// # Errors
/// The kernel's answer.
pub(super) fn of(program: &impl AsFd) -> io::Result<(Duration, u64)> {
    let mut info = sys::bpf_prog_info::default();
    let mut length = size_of::<sys::bpf_prog_info>() as u32;
    // SAFETY: an open descriptor, and a structure of integers with its length; it asks for
    // nothing behind pointers.
    let rc = unsafe {
        sys::bpf_prog_get_info_by_fd(program.as_fd().as_raw_fd(), &raw mut info, &raw mut length)
    };
    if rc < 0 {
        return Err(io::Error::from_raw_os_error(rc.saturating_neg()));
    }
    Ok((Duration::from_nanos(info.run_time_ns), info.run_cnt))
}
