//! eBPF features, each tried by the system call that a recording makes.

use super::Check;
use crate::bpf::probe::{self, UprobeMulti};
use libbpf_rs::{ProgramType, libbpf_sys::BPF_FUNC_loop};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

// From linux/bpf.h.
const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_MAP_TYPE_RINGBUF: u32 = 27;
const BPF_F_MMAPABLE: u32 = 1 << 10;
const BPF_PROG_TYPE_PERF_EVENT: u32 = 7;

/// Start of `union bpf_attr` for BPF_MAP_CREATE.
#[repr(C)]
#[derive(Default)]
struct MapAttr {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
}

/// Start of `union bpf_attr` for BPF_PROG_LOAD.
#[repr(C)]
#[derive(Default)]
struct ProgAttr {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
}

const MEND: &str = "sudo aiprof ...; in a container, also --privileged or --cap-add BPF,PERFMON";

/// The checks of this file.
pub(super) fn checks() -> Vec<Check> {
    let page = u32::try_from(rustix::param::page_size()).unwrap_or(4096);
    vec![
        check(
            "ring_buffer",
            "ring buffer map",
            "samples cannot be read",
            map(BPF_MAP_TYPE_RINGBUF, 0, 0, page, 0),
        ),
        check(
            "mmapable_array",
            "memory-mapped array map",
            "unwind tables cannot be passed to the kernel",
            map(BPF_MAP_TYPE_ARRAY, 4, page, 1, BPF_F_MMAPABLE),
        ),
        check(
            "perf_event_program",
            "program for perf events",
            "the sampler cannot be loaded",
            perf_event_program(),
        ),
        bpf_loop(),
        uprobe_multi(),
        uprobe_cost(),
    ]
}

fn check<T>(name: &'static str, what: &str, fallback: &str, result: io::Result<T>) -> Check {
    let detail = match &result {
        Ok(_) => what.to_owned(),
        Err(error) => format!("{what}: {error}"),
    };
    Check::new("bpf", name, result.is_ok(), detail)
        .required()
        .otherwise(fallback, MEND)
}

fn bpf_loop() -> Check {
    // A program is loaded first: without the right to load one, the helper would seem to work.
    let result = perf_event_program().and_then(|_| {
        let supported = ProgramType::PerfEvent.is_helper_supported(BPF_FUNC_loop);
        supported.map_err(io::Error::other)
    });
    let detail = match &result {
        Ok(true) => "bpf_loop".to_owned(),
        Ok(false) => "bpf_loop: not supported by this kernel".to_owned(),
        Err(error) => format!("bpf_loop: {error}"),
    };
    Check::new("bpf", "bpf_loop", matches!(result, Ok(true)), detail)
        .required()
        .otherwise(
            "stacks cannot be unwound in the kernel",
            format!("use Linux 5.17 or later; {MEND}"),
        )
}

/// Not required: without it probes are attached one by one.
fn uprobe_multi() -> Check {
    let known = probe::uprobe_multi();
    let detail = match known {
        UprobeMulti::Complete => "one link probes many functions",
        UprobeMulti::WithoutPid => {
            "one link probes many functions, but cannot be limited to one process"
        }
        UprobeMulti::Absent => {
            "one link for many functions: not supported by this kernel, or not permitted"
        }
    };
    Check::new("bpf", "uprobe_multi", known.exists(), detail.to_owned()).otherwise(
        "probes of accelerator runtimes are attached one by one, and take long to detach",
        format!("use Linux 6.6 or later; {MEND}"),
    )
}

/// Not required: the main job is the sampling.
fn uprobe_cost() -> Check {
    let us = |cost: std::time::Duration| cost.as_nanos() as f64 / 1e3;
    let result = probe::probe_cost();
    let detail = match &result {
        Ok(cost) => format!(
            "function probe: {:.1} us per call, {:.1} us if the kernel must single-step",
            us(cost.emulated),
            us(cost.stepped)
        ),
        Err(error) => format!("function probe: {error}"),
    };
    Check::new("bpf", "uprobe", result.is_ok(), detail).otherwise(
        "calls of accelerator runtimes are not recorded",
        format!("use a kernel with CONFIG_UPROBES; {MEND}"),
    )
}

fn map(map_type: u32, key: u32, value: u32, entries: u32, flags: u32) -> io::Result<OwnedFd> {
    bpf(
        BPF_MAP_CREATE,
        &MapAttr {
            map_type,
            key_size: key,
            value_size: value,
            max_entries: entries,
            map_flags: flags,
        },
    )
}

/// Loads a program that returns 0 at once.
pub(super) fn perf_event_program() -> io::Result<OwnedFd> {
    // r0 = 0; exit: opcode, registers, offset, immediate (Documentation/bpf/
    // standardization/instruction-set.rst).
    let program: [u64; 2] = [0xb7, 0x95].map(u64::from_le);
    let license = c"Dual MIT/GPL";
    bpf(
        BPF_PROG_LOAD,
        &ProgAttr {
            prog_type: BPF_PROG_TYPE_PERF_EVENT,
            insn_cnt: 2,
            insns: program.as_ptr() as u64,
            license: license.as_ptr() as u64,
            ..ProgAttr::default()
        },
    )
}

/// bpf(2) with a command that gives a descriptor.
fn bpf<T>(command: libc::c_long, attr: &T) -> io::Result<OwnedFd> {
    // SAFETY: the size is that of the attributes, which outlive the call, and so
    // do the program and the license that they point to.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attr),
            size_of::<T>(),
        )
    };
    match i32::try_from(fd) {
        // SAFETY: a new descriptor that nothing else owns.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
