//! perf events, opened as a recording opens them.

use super::{Check, Status, bpf};
use perf_event_open_sys as perf;
use perf_event_open_sys::bindings::{
    PERF_COUNT_HW_CPU_CYCLES, PERF_COUNT_SW_CPU_CLOCK, PERF_FLAG_FD_CLOEXEC, PERF_TYPE_HARDWARE,
    PERF_TYPE_SOFTWARE, perf_event_attr,
};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// About 99 samples a second, in nanoseconds or in cycles of a GHz machine.
const PERIOD: u64 = 10_101_010;

/// The checks of this file.
pub(super) fn checks() -> Vec<Check> {
    let clock = open_clock();
    let attached = clock.as_ref().ok().map(attach);
    vec![cpu_clock(clock.as_ref().err()), sampler(attached), cycles()]
}

/// Whether what samples CPUs can be opened.
pub(super) fn can_open() -> bool {
    open_clock().is_ok()
}

fn open_clock() -> io::Result<OwnedFd> {
    open(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK, |attr| {
        attr.__bindgen_anon_1.sample_period = PERIOD;
    })
}

fn cpu_clock(error: Option<&io::Error>) -> Check {
    let detail = describe("cpu-clock event", error);
    Check::new("perf", "cpu_clock", error.is_none(), detail)
        .required()
        .otherwise("there is no clock event to sample with", "sudo aiprof ...")
}

/// An eBPF program on that event: the sampler in small.
fn sampler(attached: Option<io::Result<()>>) -> Check {
    let (works, detail) = match attached {
        Some(Ok(())) => (true, "eBPF program runs on the event".to_owned()),
        Some(Err(error)) => (false, format!("eBPF program on the event: {error}")),
        None => (false, "eBPF program: no event to attach to".to_owned()),
    };
    Check::new("perf", "attach", works, detail)
        .required()
        .otherwise("CPUs cannot be sampled", "sudo aiprof ...")
}

fn attach(event: &OwnedFd) -> io::Result<()> {
    let program = bpf::perf_event_program()?;
    let number = u32::try_from(program.as_raw_fd()).map_err(io::Error::other)?;
    // SAFETY: both descriptors are open; the kernel takes its own reference.
    match unsafe { perf::ioctls::SET_BPF(event.as_raw_fd(), number) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn cycles() -> Check {
    let result = open(PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES, |attr| {
        attr.__bindgen_anon_1.sample_period = PERIOD;
    });
    let error = result.err();
    // A machine without counters has nothing to mend, except from outside.
    let absent = error
        .as_ref()
        .is_some_and(|e| matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EOPNOTSUPP)));
    let detail = describe("hardware cycles", error.as_ref());
    if absent {
        let detail =
            format!("{detail}: no PMU (common in virtual machines); cpu-clock is used instead");
        return Check::new("perf", "cycles", Status::NotApplicable, detail);
    }
    Check::new("perf", "cycles", error.is_none(), detail)
        .otherwise("cpu-clock is used instead", "sudo aiprof ...")
}

fn describe(what: &str, error: Option<&io::Error>) -> String {
    match error {
        None => what.to_owned(),
        Some(error) => format!("{what}: {error}"),
    }
}

/// Opens an event on the first CPU that is online, for all processes.
fn open(kind: u32, config: u32, adjust: impl FnOnce(&mut perf_event_attr)) -> io::Result<OwnedFd> {
    let mut attr = perf_event_attr {
        size: u32::try_from(size_of::<perf_event_attr>()).unwrap_or(0),
        type_: kind,
        config: u64::from(config),
        ..perf_event_attr::default()
    };
    attr.set_disabled(1);
    adjust(&mut attr);
    let flags = libc::c_ulong::from(PERF_FLAG_FD_CLOEXEC);
    // SAFETY: a valid attribute structure with its own size, which outlives the call.
    let fd = unsafe { perf::perf_event_open(&raw mut attr, -1, first_cpu(), -1, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// CPU 0 can be offline on some machines.
fn first_cpu() -> i32 {
    super::read_text("/sys/devices/system/cpu/online", 4096)
        .and_then(|list| {
            let first = list.split(|c: char| !c.is_ascii_digit()).next()?;
            first.parse().ok()
        })
        .unwrap_or(0)
}
