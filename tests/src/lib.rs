//! End-to-end tests of aiprof: the real binary, on real programs, against a
//! truth that does not come from aiprof.
//!
//! * [`need`]: what a test needs from the machine, and the visible skip;
//! * [`workload`]: builds the programs in `workloads/`;
//! * [`additions`]: examples of what README-devel.md describes how to add;
//! * [`acelyzer`]: the original and ours, side by side;
//! * [`aiu`]: the virtual AIU runtime and its truth file;
//! * [`aiu_trace`]: AIU traces with a known truth;
//! * [`aiprof`]: finds, builds and runs the binary under test;
//! * [`child`]: processes that end with their test;
//! * [`cuda`]: the virtual CUDA driver and its truth file;
//! * [`folded`]: reads folded stacks;
//! * [`attack`]: plays the attacker: programs of another user;
//! * [`attacker`]: an ordinary user with a copy of aiprof that has capabilities;
//! * [`cgroup`]: control groups that stand for containers;
//! * [`chain`]: states which call chains are right and counts those that are not;
//! * [`iga`]: listings of device code by Intel's disassembler;
//! * [`level_zero`]: Level Zero programs, our virtual driver and Intel's real one;
//! * [`trace`]: reads Chrome traces and checks them;
//! * [`truth`]: reads the virtual driver's truth files;
//! * [`monitor`]: memory and kernel objects of a running process;
//! * [`mount`]: small file systems, to fill;
//! * [`packages`]: packages of PyPI;
//! * [`pprof`]: reads pprof files;
//! * [`spans`]: spans of time, computed from the truth;
//! * [`shadow`]: steps a program and keeps a shadow stack of its calls;
//! * [`stall_run`]: records device samples of the virtual driver;
//! * [`stall_truth`]: compares device samples with the truth;
//! * [`states`]: recordings that print how far they are;
//! * [`viewers`]: Perfetto and speedscope, fetched once;
//! * [`oracle`]: `perf record` in aiprof's place, to check the workloads
//!   themselves (`AIPROF_TESTS_ORACLE=perf`).
//!
//! `README.md` lists which test proves which promise.

pub mod acelyzer;
pub mod additions;
pub mod agent;
pub mod aiprof;
pub mod aiu;
pub mod aiu_trace;
pub mod attack;
pub mod attacker;
pub mod cgroup;
pub mod chain;
pub mod child;
pub mod cuda;
pub mod folded;
pub mod gpu_trace;
pub mod http;
pub mod iga;
pub mod level_zero;
pub mod monitor;
pub mod mount;
pub mod need;
pub mod oracle;
pub mod packages;
pub mod pprof;
pub mod python;
pub mod range_packages;
pub mod ranges;
// It reads registers of this machine.
#[cfg(target_arch = "x86_64")]
pub mod shadow;
pub mod spans;
pub mod stall_run;
pub mod stall_truth;
pub mod states;
pub mod torch;
pub mod trace;
pub mod truth;
pub mod viewers;
pub mod workload;
