//! aiprof's eBPF programs.
//!
//! `sampler` takes one CPU sample: the current thread, the kernel stack, and the user stack,
//! which is unwound with the tables in the pool (see `aiprof_common`). It uses only look-ups,
//! per-CPU scratch memory and one ring buffer. It never updates a hash map: in interrupt
//! context, a contended bucket lock can block a virtual CPU. `execd` forgets what is known of a
//! process that executes another program.
//!
//! `call_entry` and `call_exit` run at probed functions, `call_return` where a return probe
//! stands for the exit. The versions with `_s` are sleepable and may fault pages in. They read
//! what the function's [`ProbeSpec`] names ([`fetch`], [`data`]), keep the thread's pending
//! calls ([`threads`]) and record stacks ([`stacks`]), within limits ([`limits`]). They run in
//! the probed thread's context and can be preempted.
//!
//! `ioctl_handler_entry` and `ioctl_handler_exit` do the same at the kernel functions that
//! handle a driver's ioctls, `ioctl_enter` and `ioctl_exit` at the system call ([`driver`]).
//! `trace` forwards a driver's tracepoints ([`trace`]). `switched`, `waking` and `left_syscall`
//! record waits ([`waits`]). `name_kernel` names kernel addresses for user space ([`names`]).
//!
//! [`ProbeSpec`]: aiprof_common::ProbeSpec

#![no_std]
#![no_main]
// core must be built from source here, which needs an unstable compiler anyway.
#![feature(asm_experimental_arch)]

mod atomic;
mod calls;
mod chosen;
mod data;
mod driver;
mod execs;
mod fetch;
mod limits;
mod maps;
mod names;
mod paused;
mod pool;
mod ring;
mod sampler;
mod stacks;
mod threads;
mod trace;
mod unwind;
mod waits;

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The licence the kernel sees; GPL-compatible helpers need it.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
