//! What a probe costs here: measured on functions of this very program.

use super::{
    BpfLink, Point, ProbeTarget, attach_uprobe_multi, attach_uprobe_perf, empty_program,
    uprobe_multi,
};
use aiprof_system::files::kernel;
use libbpf_rs::libbpf_sys as sys;
use std::{
    io,
    os::fd::AsFd,
    path::Path,
    time::{Duration, Instant},
};

/// Calls that are timed.
const CALLS: u32 = 2000;

/// What one hit of a probe with an empty program costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProbeCost {
    /// At an instruction that the kernel emulates.
    pub emulated: Duration,
    /// At one that it steps over.
    pub stepped: Duration,
}

/// Measures it, in some ten to a hundred milliseconds.
///
/// # Errors
/// Probes are not possible here.
pub(crate) fn probe_cost() -> io::Result<ProbeCost> {
    Ok(ProbeCost {
        emulated: cost_of(functions::emulated)?,
        stepped: cost_of(functions::stepped)?,
    })
}

fn cost_of(function: extern "C" fn()) -> io::Result<Duration> {
    let without = time(function);
    let link = attach(function as usize as u64)?;
    let with = time(function);
    drop(link);
    Ok(with.saturating_sub(without) / CALLS)
}

fn time(function: extern "C" fn()) -> Duration {
    let begun = Instant::now();
    for _ in 0..CALLS {
        std::hint::black_box(function)();
    }
    begun.elapsed()
}

/// Probes an address of this process.
fn attach(address: u64) -> io::Result<Vec<BpfLink>> {
    let point = Point {
        offset: file_offset(address)?,
        cookie: 0,
    };
    let target = ProbeTarget {
        path: Path::new("/proc/self/exe"),
        ret: false,
        pid: None,
    };
    let multi = uprobe_multi().exists();
    let kind = if multi {
        sys::BPF_TRACE_UPROBE_MULTI
    } else {
        0
    };
    let program = empty_program(sys::BPF_PROG_TYPE_KPROBE, kind)?;
    if !multi {
        return Ok(vec![attach_uprobe_perf(program.as_fd(), &target, point)?]);
    }
    let mut attached = attach_uprobe_multi(program.as_fd(), &target, &[point])?;
    match attached.refused.pop() {
        Some(refused) => Err(refused.error),
        None => Ok(attached.links),
    }
}

/// Where in its file an address of this process is.
fn file_offset(address: u64) -> io::Result<u64> {
    let maps = kernel::read_to_string("/proc/self/maps")?;
    let offset = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = (hex(start)?, hex(end)?);
        let from = hex(fields.nth(1)?)?;
        (start..end)
            .contains(&address)
            .then(|| from + (address - start))
    };
    maps.lines()
        .find_map(offset)
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}

#[cfg(target_arch = "x86_64")]
mod functions {
    use std::arch::naked_asm;

    /// Begins with an instruction that the kernel emulates.
    // SAFETY: keeps to the C calling convention: touches nothing and returns.
    #[unsafe(naked)]
    pub(super) extern "C" fn emulated() {
        naked_asm!("nop", "ret")
    }

    /// Begins with one that it does not; changes what a callee may change.
    // SAFETY: keeps to the C calling convention: rax belongs to the callee.
    #[unsafe(naked)]
    pub(super) extern "C" fn stepped() {
        naked_asm!("lea rax, [rax + 1]", "ret")
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod functions {
    /// Which instructions are emulated differs; the compiler chooses here.
    pub(super) extern "C" fn emulated() {}

    /// The same.
    pub(super) extern "C" fn stepped() {}
}

#[cfg(test)]
mod tests {
    use super::probe_cost;

    #[test]
    fn an_emulated_instruction_costs_less() {
        let cost = match probe_cost() {
            Ok(cost) => cost,
            Err(error) => {
                println!("skipped: an_emulated_instruction_costs_less: {error}");
                return;
            }
        };
        println!("{cost:?}");
        assert!(
            !cost.emulated.is_zero() && cost.emulated < cost.stepped,
            "{cost:?}"
        );
    }
}
