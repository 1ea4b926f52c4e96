//! The live side: everything that talks to the running kernel.
//!
//! * [`config`]: what to record;
//! * [`probe_files`]: the probe tables of this machine;
//! * [`job`]: ranks of one job, of which one is recorded and the others join;
//! * [`launch`]: the profiled command, held until recording runs;
//! * [`signals`]: signals as data, with their origin;
//! * [`readable`]: descriptors that the runtime waits for;
//! * [`bpf`]: the eBPF programs, their maps, perf events;
//! * [`procfs`], [`cgroup`]: processes and control groups that ran before;
//! * [`cpu`]: the sampling events and process-event rings of every CPU;
//! * [`busy`]: how long each CPU was busy;
//! * [`filter`]: which samples are wanted;
//! * [`publish`]: which processes the kernel side knows;
//! * [`binaries`]: the mapped files, held open;
//! * [`tables`]: the unwind tables in the kernel;
//! * [`generated`]: code that programs generate;
//! * `copied`: text that programs copy to other memory;
//! * [`finisher`]: walks that ended for want of a table;
//! * [`names`]: symbols, looked up while the recording runs;
//! * [`runtime`]: probes on the functions of accelerator runtimes;
//! * [`conditional`]: programs that choose which of their calls are recorded;
//! * [`late`], [`inspect`]: kernels older than the recording;
//! * [`clock`]: the time of day;
//! * [`metrics`]: the metrics files of AIUs;
//! * [`device`]: what the execution units of GPUs stood at;
//! * [`owner`]: whose a process is;
//! * [`control`]: the socket by which a running recording is steered;
//! * [`closing`]: detaching without having the user wait;
//! * [`session`]: owns the recording;
//! * [`doctor`]: what of all this works on this machine.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests open what they made")
)]

pub mod binaries;
pub mod bpf;
pub mod busy;
pub mod cgroup;
pub mod clock;
pub mod closing;
pub mod conditional;
pub mod config;
pub mod control;
mod copied;
pub mod cpu;
pub mod device;
pub mod device_busy;
mod device_use;
pub mod doctor;
pub mod driver;
mod environment;
pub mod filter;
pub mod finisher;
pub mod generated;
pub mod inspect;
pub mod java;
pub mod job;
mod kubernetes;
pub mod late;
pub mod launch;
mod locking;
pub mod metrics;
pub mod names;
pub mod owner;
pub mod places;
pub mod probe_files;
pub mod procfs;
pub mod publish;
mod python;
pub mod readable;
pub mod reader;
pub mod runtime;
pub mod session;
pub mod signals;
pub mod tables;
pub mod timing;
pub mod torch;
mod v8;
