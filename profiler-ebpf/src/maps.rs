//! Maps and load-time constants.

use aiprof_common::{
    COUNTERS, CachedRule, MAX_KERNEL_FRAMES, MAX_USER_FRAMES, POOL_CHUNK, ProcEntry,
    RULE_CACHE_CHUNK, SampleHeader, Settings,
};
use aya_ebpf::{
    bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC},
    btf_maps::{Array, HashMap, PerCpuArray},
    macros::btf_map,
};

use crate::unwind::Walk;

/// Unwind data, written by user space through a memory mapping. The number of
/// chunks is set at load time.
#[btf_map]
pub static POOL: Array<[u8; POOL_CHUNK], 1, { BPF_F_MMAPABLE as usize }> = Array::new();

/// Process id to mapping list. Written by user space only, hence no
/// preallocation: memory follows the number of profiled processes.
#[btf_map]
pub static PROCS: HashMap<u32, ProcEntry, 16384, { BPF_F_NO_PREALLOC as usize }> = HashMap::new();

/// Scratch of the sampler. A perf event program never nests on one CPU
/// (`bpf_prog_active`), so one per CPU is enough for this program type; other
/// program types have their own.
#[btf_map]
pub static SAMPLER_SCRATCH: PerCpuArray<Scratch, 1> = PerCpuArray::new();

/// The sampler's rule cache, direct-mapped by address. The number of entries is
/// set at load time.
#[btf_map]
pub static SAMPLER_RULES: PerCpuArray<[CachedRule; RULE_CACHE_CHUNK], 1> = PerCpuArray::new();

/// Event counts by `COUNT_*`.
#[btf_map]
pub static COUNTS: PerCpuArray<u64, { COUNTERS as usize }> = PerCpuArray::new();

/// A ring buffer as libbpf and aya both accept it: type and size, no value type.
#[repr(C)]
pub struct RingBufDef {
    r#type: *const [i32; 27],
    max_entries: *const [i32; 1 << 20],
}

// SAFETY: only a description for the loader, never dereferenced.
unsafe impl Sync for RingBufDef {}

/// Samples to user space. The size is set at load time.
#[unsafe(link_section = ".maps")]
#[unsafe(export_name = "SAMPLES")]
pub static SAMPLES: RingBufDef = RingBufDef {
    r#type: core::ptr::null(),
    max_entries: core::ptr::null(),
};

/// Load-time constants, filled in by user space before the load.
#[unsafe(no_mangle)]
pub static SETTINGS: Settings = Settings {
    task_flags: 0,
    task_real_parent: 0,
    task_tgid: 0,
    task_group_leader: 0,
    task_utask: 0,
    utask_return_instances: 0,
    utask_xol_vaddr: 0,
    utask_vaddr: 0,
    ri_stack: 0,
    ri_orig_ret_vaddr: 0,
    ri_next: 0,
    pool_chunks: 0,
    rule_cache_mask: 0,
    include_idle: 0,
    kernel_stacks: 0,
    call_stack_limit: 0,
    own_tgid: 0,
    task_files: 0,
    files_fdt: 0,
    fdt_fd: 0,
    fdt_max_fds: 0,
    file_inode: 0,
    inode_rdev: 0,
    pad: 0,
};

/// Reads one load-time constant; volatile, for the initial value is not the
/// one the program runs with.
#[macro_export]
macro_rules! setting {
    ($field:ident) => {
        // SAFETY: a static of this program, initialised, read-only.
        unsafe { core::ptr::read_volatile(&raw const $crate::maps::SETTINGS.$field) }
    };
}

/// User addresses, and behind them kernel addresses.
pub type Frames = [u64; MAX_USER_FRAMES + MAX_KERNEL_FRAMES + 1];

/// A record under construction, and the state of the walk that fills it.
#[repr(C)]
pub struct Scratch {
    /// The record: header, user addresses, then kernel addresses.
    pub header: SampleHeader,
    /// User addresses, with room for the kernel addresses right behind the
    /// last one used.
    pub frames: Frames,
    /// State of the user walk.
    pub walk: Walk,
}
