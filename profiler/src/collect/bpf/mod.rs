//! Loading the eBPF object: maps, constants, programs.
//!
//! Everything `unsafe` of the live side is in this module and below.

pub mod btf;
pub mod perf;
pub mod pool;

use aiprof_common::{
    CALL_SLOTS, COUNTERS, NO_FIELD, POOL_CHUNK, ProcEntry, RULE_CACHE_CHUNK, Settings,
};
use aya::{
    Ebpf, EbpfLoader, include_bytes_aligned,
    maps::{HashMap, MapData, PerCpuArray, RingBuf},
    programs::{PerfEvent, ProgramError},
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    path::Path,
    ptr::NonNull,
};
use thiserror::Error;

/// The committed eBPF object; `cargo xtask build-ebpf` makes it.
static OBJECT: &[u8] = include_bytes_aligned!("aiprof.bpf.o");

/// Why the programs could not be loaded.
#[derive(Debug, Error)]
pub enum BpfError {
    /// The object given with `--bpf-object` could not be read.
    #[error("cannot read the eBPF object {path}: {source}")]
    Object {
        /// The file.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The kernel or the loader refused the object.
    #[error("cannot load the eBPF object: {0}")]
    Load(#[from] aya::EbpfError),
    /// The kernel's verifier refused a program.
    #[error("cannot load the eBPF program `{name}`: {source}")]
    Program {
        /// The program.
        name: &'static str,
        /// The cause, with the verifier's log.
        source: ProgramError,
    },
    /// A map or program is missing from the object.
    #[error("the eBPF object has no `{0}`")]
    Missing(&'static str),
    /// A map operation failed.
    #[error("eBPF map operation failed: {0}")]
    Map(#[from] aya::maps::MapError),
    /// The pool could not be mapped into memory.
    #[error("cannot map the unwind pool: {0}")]
    Pool(std::io::Error),
}

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
}

impl Default for BpfOptions {
    fn default() -> Self {
        Self {
            // Mostly for the stack pages of first samples.
            ring_bytes: 4 << 20,
            pool_bytes: 14 << 20,
            include_idle: false,
            kernel_stacks: true,
        }
    }
}

/// The loaded programs and their maps.
pub struct Bpf {
    ebpf: Ebpf,
    procs: HashMap<MapData, u32, ProcEntry>,
    counts: PerCpuArray<MapData, u64>,
}

impl Bpf {
    /// Loads the object (the committed one, or `object`) into the kernel.
    pub fn load(options: &BpfOptions, object: Option<&Path>) -> Result<Self, BpfError> {
        let settings = settings(options);
        let chunks = settings.pool_chunks;
        let mut loader = EbpfLoader::new();
        loader
            .btf(None)
            .override_global("SETTINGS", &settings, true)
            .map_max_entries("POOL", chunks)
            .map_max_entries(
                "RULES",
                (settings.rule_cache_mask + 1) / RULE_CACHE_CHUNK as u32 + CALL_SLOTS,
            )
            .map_max_entries("SAMPLES", options.ring_bytes);
        let mut ebpf = match object {
            Some(path) => {
                let bytes = std::fs::read(path).map_err(|source| BpfError::Object {
                    path: path.display().to_string(),
                    source,
                })?;
                loader.load(&bytes)?
            }
            None => loader.load(OBJECT)?,
        };
        let program: &mut PerfEvent = ebpf
            .program_mut("sampler")
            .and_then(|p| p.try_into().ok())
            .ok_or(BpfError::Missing("sampler"))?;
        program.load().map_err(|source| BpfError::Program {
            name: "sampler",
            source,
        })?;
        let mut take = |name| ebpf.take_map(name).ok_or(BpfError::Missing(name));
        let procs = HashMap::try_from(take("PROCS")?)?;
        let counts = PerCpuArray::try_from(take("COUNTS")?)?;
        Ok(Self {
            ebpf,
            procs,
            counts,
        })
    }

    /// The sampler's program, to attach to perf events.
    pub fn sampler_fd(&self) -> Result<BorrowedFd<'_>, BpfError> {
        let program: &PerfEvent = self
            .ebpf
            .program("sampler")
            .and_then(|p| p.try_into().ok())
            .ok_or(BpfError::Missing("sampler"))?;
        program
            .fd()
            .map(AsFd::as_fd)
            .map_err(|source| BpfError::Program {
                name: "sampler",
                source,
            })
    }

    /// Takes the ring buffer of the samples; works once.
    pub fn take_ring(&mut self) -> Result<RingBuf<MapData>, BpfError> {
        let map = self
            .ebpf
            .take_map("SAMPLES")
            .ok_or(BpfError::Missing("SAMPLES"))?;
        Ok(RingBuf::try_from(map)?)
    }

    /// Maps the unwind pool into this process.
    pub fn pool(&self) -> Result<pool::Pool, BpfError> {
        let aya::maps::Map::Array(map) = self.ebpf.map("POOL").ok_or(BpfError::Missing("POOL"))?
        else {
            return Err(BpfError::Missing("POOL"));
        };
        let info = map.info()?;
        pool::Pool::map(map.fd().as_fd(), info.max_entries()).map_err(BpfError::Pool)
    }

    /// Publishes the mapping list of a process.
    pub fn set_process(&mut self, pid: u32, entry: ProcEntry) -> Result<(), BpfError> {
        Ok(self.procs.insert(pid, entry, 0)?)
    }

    /// Forgets a process; one that is not known is no error.
    pub fn remove_process(&mut self, pid: u32) {
        let _ = self.procs.remove(&pid);
    }

    /// A counter (`COUNT_*`), summed over all CPUs.
    pub fn count(&self, index: u32) -> u64 {
        debug_assert!(index < COUNTERS);
        self.counts
            .get(&index, 0)
            .map_or(0, |values| values.iter().sum())
    }

    /// Bytes of kernel memory locked by all maps, as the kernel reports them
    /// in `/proc/self/fdinfo` (`memlock`).
    pub fn memory_bytes() -> u64 {
        let Ok(entries) = std::fs::read_dir("/proc/self/fdinfo") else {
            return 0;
        };
        let mut seen = std::collections::BTreeMap::new();
        for entry in entries.flatten() {
            let Ok(text) = std::fs::read_to_string(entry.path()) else {
                continue;
            };
            let field = |name: &str| -> Option<u64> {
                text.lines()
                    .find_map(|l| l.strip_prefix(name))?
                    .trim()
                    .parse()
                    .ok()
            };
            if let (Some(id), Some(bytes)) = (field("map_id:"), field("memlock:")) {
                seen.insert(id, bytes);
            }
        }
        seen.values().sum()
    }
}

/// The programs' constants: options, and structure offsets from BTF. Without
/// BTF, what needs an offset is switched off.
fn settings(options: &BpfOptions) -> Settings {
    let btf = btf::Btf::vmlinux()
        .inspect_err(|e| {
            tracing::warn!("{e}: forks and return probes are not followed in the kernel")
        })
        .ok();
    let offset = |structure, member| {
        btf.as_ref()
            .and_then(|b| b.offset_of(structure, member))
            .unwrap_or(NO_FIELD)
    };
    Settings {
        task_flags: offset("task_struct", "flags"),
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
        call_stack_limit: 0,
        own_tgid: std::process::id(),
        task_files: offset("task_struct", "files"),
        files_fdt: offset("files_struct", "fdt"),
        fdt_fd: offset("fdtable", "fd"),
        fdt_max_fds: offset("fdtable", "max_fds"),
        file_inode: offset("file", "f_inode"),
        inode_rdev: offset("inode", "i_rdev"),
        pad: 0,
    }
}

/// A fresh shared mapping, readable and writable, of the first `len` bytes of a
/// BPF map or perf event.
fn map_shared(fd: BorrowedFd<'_>, len: usize) -> io::Result<NonNull<u8>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the kernel chooses the place; the result is checked.
    let base = unsafe {
        let fd = fd.as_raw_fd();
        libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, fd, 0)
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at 0"))
}

/// Entries of each CPU's rule cache: 4096 (64 KiB), fewer on large machines, so
/// that all caches together stay below 2 MiB or so.
fn rule_cache_entries() -> u32 {
    let cpus = aya::util::nr_cpus().unwrap_or(1).max(1);
    let share = (2 << 20) / cpus / size_of::<aiprof_common::CachedRule>();
    1 << share.clamp(RULE_CACHE_CHUNK, 4096).ilog2()
}
