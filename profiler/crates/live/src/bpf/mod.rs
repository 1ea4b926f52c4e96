//! Loading the eBPF object: maps, constants, programs.
//!
//! Everything `unsafe` of the live side is in this module and below.

pub mod btf;
#[cfg(test)]
mod calls_tests;
mod kernel_names;
mod load;
mod mapping;
mod messages;
pub mod perf;
pub(crate) mod plain;
pub mod pool;
pub mod probe;
pub mod ring;
pub mod run_time;

use aiprof_common::{COUNTERS, NO_FIELD, POOL_CHUNK, ProcEntry, RULE_CACHE_CHUNK, Settings};
use aiprof_system::files::kernel;
pub(crate) use kernel_names::KernelNamer;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use load::{EXECD, LoadedObject, NAME_KERNEL, NAMES, SAMPLER};
pub use plain::Plain;
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::Arc,
    time::Duration,
};
use thiserror::Error;

/// Why the programs could not be loaded.
#[derive(Debug, Error)]
pub enum BpfError {
    /// The object given with `--bpf-object` could not be read.
    #[error("cannot read the eBPF object {path}: {cause}")]
    Object {
        /// The file.
        path: String,
        /// The cause.
        cause: io::Error,
    },
    /// The loader or the kernel refused the object.
    #[error("cannot load the eBPF object: {cause:#}{log}")]
    Load {
        /// The cause.
        cause: libbpf_rs::Error,
        /// libbpf's messages about it, with the verifier's log; each begins with a line feed.
        log: String,
    },
    /// A map, program or variable is missing from the object.
    #[error("the eBPF object has no `{0}`")]
    Missing(&'static str),
    /// The object was built for another version of aiprof.
    #[error(
        "the eBPF object belongs to another version of aiprof: `{name}` has {found} bytes, not \
         {wanted}"
    )]
    Version {
        /// The variable whose size differs.
        name: &'static str,
        /// Its size in the object, in bytes.
        found: u64,
        /// Its size here, in bytes.
        wanted: usize,
    },
    /// A map operation failed.
    #[error("eBPF map operation failed: {0:#}")]
    Map(#[from] libbpf_rs::Error),
    /// The descriptor of a program could not be kept.
    #[error("cannot duplicate the file descriptor of an eBPF program: {0}")]
    Descriptor(io::Error),
    /// The pool could not be mapped into memory.
    #[error("cannot map the memory for unwind tables: {0}")]
    Pool(io::Error),
    /// A program could not be run.
    #[error("cannot run an eBPF program: {0}")]
    Run(io::Error),
    /// A ring buffer could not be mapped into memory.
    #[error("cannot map the ring buffer `{0}`: {1}")]
    Ring(&'static str, io::Error),
}

const PROCS: &str = "PROCS";
const PROC_CHANGES: &str = "PROC_CHANGES";
const COUNTS: &str = "COUNTS";

/// The ring buffer of the samples.
pub const SAMPLES: &str = "SAMPLES";
/// The ring buffer of calls, their data and their stacks.
pub(crate) const CALLS: &str = "CALLS";
/// What to do at each probe: [`aiprof_common::ProbeSpec`], by its index.
pub(crate) const PROBES: &str = "PROBES";
/// What was seen and lost at each probe: [`aiprof_common::ProbeCounts`], by the
/// index of its spec.
pub(crate) const PROBE_COUNTS: &str = "PROBE_COUNTS";
/// The processes whose calls are recorded, where not all processes' are.
pub(crate) const CHOSEN: &str = "CHOSEN";
/// Since when the recording goes on.
pub(crate) const RECORDING: &str = "RECORDING";
/// The pending calls of each thread, by thread id.
pub(crate) const THREADS: &str = "THREADS";

/// Sizes and switches of the programs.
#[derive(Clone, Debug)]
pub struct BpfOptions {
    /// Bytes of the sample ring buffer, a power of two.
    pub ring_bytes: u32,
    /// Bytes of the unwind pool, rounded down to whole chunks.
    pub pool_bytes: u32,
    /// Sample the idle task too.
    pub include_idle: bool,
    /// Record kernel stacks.
    pub kernel_stacks: bool,
    /// Observe ioctls of files without a device too, by their names.
    pub named_files: bool,
    /// Record calls of the processes in `CHOSEN` and their descendants only.
    pub chosen_only: bool,
    /// Record calls in this control group (cgroup v2 id) only.
    pub cgroup: Option<u64>,
    /// Which waits are recorded; `None`: none.
    pub waits: Option<WaitSettings>,
    /// Sizes of what programs at probes need; `None`: none will be loaded.
    pub calls: Option<CallOptions>,
}

/// Which waits are recorded.
#[derive(Clone, Copy, Debug, Default)]
pub struct WaitSettings {
    /// Nanoseconds of waiting that a drawn wait stands for; longer ones are all recorded.
    pub period_ns: u32,
    /// Microseconds below which a wait is not recorded.
    pub least_us: u32,
}

/// Sizes and limits of the programs at probes.
#[derive(Clone, Copy, Debug)]
pub struct CallOptions {
    /// Bytes of the ring buffer of calls, a power of two.
    pub ring_bytes: u32,
    /// Most functions and ioctls probed.
    pub probes: u32,
    /// Stacks that one CPU walks in a second at most.
    pub stack_limit: u32,
}

impl Default for CallOptions {
    fn default() -> Self {
        Self {
            ring_bytes: 8 << 20,
            probes: 4096,
            stack_limit: 20_000,
        }
    }
}

impl Default for BpfOptions {
    fn default() -> Self {
        Self {
            // Mostly for the stack pages of first samples.
            ring_bytes: 4 << 20,
            pool_bytes: 14 << 20,
            include_idle: false,
            kernel_stacks: true,
            named_files: false,
            chosen_only: false,
            cgroup: None,
            waits: None,
            calls: None,
        }
    }
}

/// The loaded programs and their maps.
pub struct Bpf {
    loaded: Arc<LoadedObject>,
    /// Forgets processes at their exec.
    _execd: Option<probe::BpfLink>,
    /// How often `PROCS` was changed from here.
    proc_changes: u64,
}

impl Bpf {
    /// Loads the object (the committed one, or `object`) into the kernel.
    pub fn load(options: &BpfOptions, object: Option<&Path>) -> Result<Self, BpfError> {
        let loaded = load::load(options, &settings(options), object)?;
        let mut bpf = Self {
            loaded: Arc::new(loaded),
            _execd: None,
            proc_changes: 0,
        };
        // Used while recording, where there is no good way to fail.
        for name in [PROCS, PROC_CHANGES, COUNTS] {
            bpf.map(name)?;
        }
        let program = bpf.loaded.program(EXECD)?;
        let execd = probe::attach_raw_tracepoint(program.as_fd(), "sched_process_exec");
        bpf._execd = execd
            .inspect_err(|error| {
                tracing::warn!(
                    "cannot attach to sched_process_exec, so the first stacks after an exec may be \
                     cut: {error}"
                )
            })
            .ok();
        Ok(bpf)
    }

    /// More of its programs, to attach (see [`probe`]).
    pub(crate) fn programs(&self) -> Programs {
        Programs(Arc::clone(&self.loaded))
    }

    /// What names kernel addresses.
    pub(crate) fn kernel_namer(&self) -> Result<KernelNamer, BpfError> {
        KernelNamer::new(Arc::clone(&self.loaded))
    }

    /// The sampler's program, to attach to perf events.
    pub(crate) fn sampler(&self) -> Result<Arc<OwnedFd>, BpfError> {
        self.loaded.program(SAMPLER)
    }

    /// The reading end of a ring buffer; there must be only one of each.
    pub fn ring(&self, name: &'static str) -> Result<ring::RingReader, BpfError> {
        let map = self.map(name)?;
        ring::RingReader::map(map.as_fd(), map.max_entries()).map_err(|e| BpfError::Ring(name, e))
    }

    /// Maps the unwind pool into this process.
    pub fn pool(&self) -> Result<pool::Pool, BpfError> {
        let map = self.map("POOL")?;
        pool::Pool::map(map.as_fd(), map.max_entries()).map_err(BpfError::Pool)
    }

    /// Publishes the mapping list of a process.
    pub(crate) fn set_process(&mut self, pid: u32, entry: ProcEntry) -> Result<(), BpfError> {
        self.set(PROCS, &pid, &entry)?;
        self.processes_changed()
    }

    /// Forgets a process; one that is not known is no error.
    pub(crate) fn remove_process(&mut self, pid: u32) {
        self.remove(PROCS, &pid);
        if let Err(error) = self.processes_changed() {
            tracing::warn!(
                "process {pid}: the eBPF programs may use its old mappings for a while: {error}"
            );
        }
    }

    /// Has the programs look processes up again.
    fn processes_changed(&mut self) -> Result<(), BpfError> {
        self.proc_changes += 1;
        self.set(PROC_CHANGES, &0u32, &self.proc_changes)
    }

    /// A counter (`COUNT_*`), summed over all CPUs.
    pub fn count(&self, index: u32) -> u64 {
        debug_assert!(index < COUNTERS);
        self.per_cpu::<u64>(COUNTS, index).into_iter().sum()
    }

    /// Writes one entry of a map.
    pub fn set<K: Plain, V: Plain>(
        &self,
        map: &'static str,
        key: &K,
        value: &V,
    ) -> Result<(), BpfError> {
        let map = self.map(map)?;
        Ok(map.update(plain::bytes(key), plain::bytes(value), MapFlags::ANY)?)
    }

    /// Deletes one entry of a map; one that is not there is no error.
    pub fn remove<K: Plain>(&self, map: &'static str, key: &K) {
        let _ = self.map(map).map(|map| map.delete(plain::bytes(key)));
    }

    /// An entry of a per-CPU array, one value for each possible CPU; none if it
    /// cannot be read.
    pub(crate) fn per_cpu<V: Plain>(&self, map: &'static str, index: u32) -> Vec<V> {
        let key = plain::bytes(&index);
        let values = self
            .map(map)
            .and_then(|map| Ok(map.lookup_percpu(key, MapFlags::ANY)?));
        let values = values.ok().flatten().unwrap_or_default();
        // The kernel rounds each value up to whole words.
        values
            .iter()
            .filter_map(|bytes| plain::value(bytes.get(..size_of::<V>())?))
            .collect()
    }

    /// The writing end of a map, for another thread.
    ///
    /// # Errors
    /// There is no such map, or its descriptor could not be duplicated.
    pub fn writer(&self, name: &'static str) -> Result<MapWriter, BpfError> {
        Ok(MapWriter(MapHandle::try_from(self.map(name)?)?))
    }

    fn map(&self, name: &'static str) -> Result<&MapHandle, BpfError> {
        self.loaded.map(name)
    }

    /// How long and how often each of its programs ran so far, by name.
    pub(crate) fn run_times(&self) -> Vec<(&'static str, Duration, u64)> {
        let programs = self.loaded.programs();
        let times = programs.into_iter().map(|(name, program)| {
            let (time, runs) = run_time::of(&*program).unwrap_or_default();
            (name, time, runs)
        });
        times.collect()
    }

    /// Bytes of kernel memory locked by all maps, as the kernel reports them
    /// in `/proc/self/fdinfo` (`memlock`).
    pub(crate) fn memory_bytes() -> u64 {
        sum_of("anon_inode:bpf-map", "map_id:", "memlock:")
    }

    /// Events that programs did not see because they ran on that CPU at the time:
    /// preempted (`recursion_misses` of `/proc/self/fdinfo`).
    pub(crate) fn missed() -> u64 {
        sum_of("anon_inode:bpf-prog", "prog_id:", "recursion_misses:")
    }
}

/// The sum of a field over this process's open descriptors of one kind, each object once.
/// Other kinds are not read: for a link to hundreds of probes the kernel lists each, which
/// takes a while.
fn sum_of(kind: &str, id: &str, wanted: &str) -> u64 {
    let Ok(entries) = kernel::read_dir("/proc/self/fd") else {
        return 0;
    };
    let mut seen = std::collections::BTreeMap::new();
    for (path, number) in entries {
        let target = kernel::read_link(path).unwrap_or_default();
        if target.as_os_str() != kind {
            continue;
        }
        let info = Path::new("/proc/self/fdinfo").join(number);
        let Ok(text) = kernel::read_to_string(info) else {
            continue;
        };
        let field = |name: &str| -> Option<u64> {
            let value = text.lines().find_map(|l| l.strip_prefix(name))?;
            value.trim().parse().ok()
        };
        if let (Some(id), Some(value)) = (field(id), field(wanted)) {
            seen.insert(id, value);
        }
    }
    seen.values().sum()
}

/// The programs of the object, for any thread.
#[derive(Clone)]
pub(crate) struct Programs(Arc<LoadedObject>);

impl Programs {
    /// A program, which the kernel verifies first if it is the first time.
    ///
    /// # Errors
    /// The kernel refuses it, or there is none of this name.
    pub(crate) fn get(&self, name: &'static str) -> Result<Arc<OwnedFd>, BpfError> {
        self.0.program(name)
    }
}

/// The writing end of a map.
#[derive(Debug)]
pub struct MapWriter(MapHandle);

impl MapWriter {
    /// Writes one entry.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn set<K: Plain, V: Plain>(&self, key: &K, value: &V) -> Result<(), BpfError> {
        let (key, value) = (plain::bytes(key), plain::bytes(value));
        Ok(self.0.update(key, value, MapFlags::ANY)?)
    }

    /// Deletes one entry; one that is not there is no error.
    pub fn remove<K: Plain>(&self, key: &K) {
        let _ = self.0.delete(plain::bytes(key));
    }
}

/// The programs' constants: options, and structure offsets from BTF. Without
/// BTF, what needs an offset is switched off.
fn settings(options: &BpfOptions) -> Settings {
    let btf = btf::Btf::vmlinux()
        .inspect_err(|e| {
            tracing::warn!(
                "{e}; the first stacks of new processes, and stacks in probed functions, may be cut"
            )
        })
        .ok();
    let offset = |structure, member| {
        btf.as_ref()
            .and_then(|b| b.offset_of(structure, member))
            .unwrap_or(NO_FIELD)
    };
    Settings {
        task_flags: offset("task_struct", "flags"),
        task_jobctl: offset("task_struct", "jobctl"),
        task_sas_ss_sp: offset("task_struct", "sas_ss_sp"),
        task_sas_ss_size: offset("task_struct", "sas_ss_size"),
        task_real_parent: offset("task_struct", "real_parent"),
        task_tgid: offset("task_struct", "tgid"),
        task_group_leader: offset("task_struct", "group_leader"),
        task_utask: offset("task_struct", "utask"),
        utask_return_instances: offset("uprobe_task", "return_instances"),
        utask_xol_vaddr: offset("uprobe_task", "xol_vaddr"),
        utask_vaddr: offset("uprobe_task", "vaddr"),
        ri_stack: offset("return_instance", "stack"),
        ri_orig_ret_vaddr: offset("return_instance", "orig_ret_vaddr"),
        ri_next: offset("return_instance", "next"),
        pool_chunks: (options.pool_bytes / POOL_CHUNK as u32).max(1),
        rule_cache_mask: rule_cache_entries() - 1,
        include_idle: u32::from(options.include_idle),
        kernel_stacks: u32::from(options.kernel_stacks),
        call_stack_limit: options.calls.map_or(0, |c| c.stack_limit),
        own_tgid: std::process::id(),
        caller_uid: rustix::process::getuid().as_raw(),
        own_data_only: u32::from(!rustix::process::getuid().is_root()),
        task_fsbase: within(
            offset("task_struct", "thread"),
            offset("thread_struct", "fsbase"),
        ),
        task_files: offset("task_struct", "files"),
        files_fdt: offset("files_struct", "fdt"),
        fdt_fd: offset("fdtable", "fd"),
        fdt_max_fds: offset("fdtable", "max_fds"),
        file_inode: offset("file", "f_inode"),
        inode_rdev: offset("inode", "i_rdev"),
        file_dentry: within(offset("file", "f_path"), offset("path", "dentry")),
        dentry_name: within(offset("dentry", "d_name"), offset("qstr", "name")),
        named_files: u32::from(options.named_files),
        chosen_only: u32::from(options.chosen_only),
        cgroup: [0, 32].map(|shift| (options.cgroup.unwrap_or(0) >> shift) as u32),
        task_pid: offset("task_struct", "pid"),
        wait_period_ns: options.waits.map_or(0, |waits| waits.period_ns),
        wait_least_us: options.waits.map_or(0, |waits| waits.least_us),
        task_nsproxy: offset("task_struct", "nsproxy"),
        nsproxy_mounts: offset("nsproxy", "mnt_ns"),
        mounts_number: within(offset("mnt_namespace", "ns"), offset("ns_common", "inum")),
        own_mounts: crate::owner::own_mounts().unwrap_or(0),
    }
}

/// Offset of a member's member; `NO_FIELD` if either is missing.
fn within(outer: u32, inner: u32) -> u32 {
    if outer == NO_FIELD || inner == NO_FIELD {
        return NO_FIELD;
    }
    outer.checked_add(inner).unwrap_or(NO_FIELD)
}

/// Entries of each CPU's rule cache by address: 4096 (64 KiB), fewer on large machines, so
/// that all caches together stay below 2 MiB or so.
fn rule_cache_entries() -> u32 {
    let cpus = libbpf_rs::num_possible_cpus().unwrap_or(1).max(1);
    let share = (2 << 20) / cpus / size_of::<aiprof_common::CachedRule>();
    1 << share.clamp(RULE_CACHE_CHUNK, 4096).ilog2()
}
