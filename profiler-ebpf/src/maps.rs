//! Maps and load-time constants.

use aiprof_common::{
    CALL_SLOTS, COUNTERS, CachedRule, FILE_NAME_BYTES, IoctlKey, KernelNames, MAX_KERNEL_FRAMES,
    MAX_PYTHON_WORDS, MAX_TRACES, MAX_USER_FRAMES, MAX_VALUES, MAX_WAIT_FRAMES, POOL_CHUNK,
    PYTHON_SEEN_SLOTS, ProbeCounts, ProbeSpec, ProcEntry, RULE_CACHE_CHUNK, SampleHeader, Settings,
    Shares, ThreadCalls, TraceSpec, WaitRecord,
};
use aya_ebpf::{
    bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC},
    btf_maps::{Array, HashMap, LruHashMap, PerCpuArray},
    macros::btf_map,
};

use crate::unwind::{Java, Python, V8, Walk};

/// Unwind data, which user space writes through a memory mapping. The number of chunks is set
/// at load time.
#[btf_map]
pub static POOL: Array<[u8; POOL_CHUNK], 1, { BPF_F_MMAPABLE as usize }> = Array::new();

/// Mapping lists, by process id. Not preallocated: its memory follows the number of profiled
/// processes.
#[btf_map]
pub static PROCS: HashMap<u32, ProcEntry, 16384, { BPF_F_NO_PREALLOC as usize }> = HashMap::new();

/// The processes whose calls are recorded, if not all are (see [`Settings::chosen_only`]).
#[btf_map]
pub static CHOSEN: HashMap<u32, u32, 16384, { BPF_F_NO_PREALLOC as usize }> = HashMap::new();

/// Number of changes of `PROCS`: by user space, and by the programs.
#[btf_map]
pub static PROC_CHANGES: Array<u64, 2> = Array::new();

/// Scratch of the sampler. A perf event program never nests on one CPU (`bpf_prog_active`), so
/// one per CPU is enough for this program type. Other program types have their own.
#[btf_map]
pub static SAMPLER_SCRATCH: PerCpuArray<Scratch, 1> = PerCpuArray::new();

/// Rule caches. First the sampler's: one chunk of near rules, direct-mapped by stack pointer,
/// then its chunks of rules that are direct-mapped by address. After them, two chunks for each
/// of the CALL_SLOTS, one of either kind. Each part has one user at a time: an entry is two
/// words, and half of an old one with half of a new one would be a wrong rule. The number of
/// chunks is set at load time.
#[btf_map]
pub static RULES: PerCpuArray<[CachedRule; RULE_CACHE_CHUNK], 1> = PerCpuArray::new();

/// Code objects that were sent: fingerprints, each in the slot of its hash. All CPUs write
/// whole words. A code object whose word is overwritten is sent again.
#[btf_map]
pub static PYTHON_SEEN: Array<u64, { PYTHON_SEEN_SLOTS as usize }> = Array::new();

/// Kernel addresses whose names user space asks for.
#[btf_map]
pub static NAMES: Array<KernelNames, 1> = Array::new();

/// The time since which the recording runs (see [`paused`](crate::paused)).
#[btf_map]
pub static RECORDING: Array<u64, 1> = Array::new();

/// Event counts by `COUNT_*`.
#[btf_map]
pub static COUNTS: PerCpuArray<u64, { COUNTERS as usize }> = PerCpuArray::new();

/// A ring buffer map, defined so that both libbpf and aya accept it: type and size, no value
/// type.
#[repr(C)]
pub struct RingBufDef {
    r#type: *const [i32; 27],
    max_entries: *const [i32; 1 << 20],
}

// SAFETY: only a description for the loader, never dereferenced.
unsafe impl Sync for RingBufDef {}

/// Samples for user space. The size is set at load time.
#[unsafe(link_section = ".maps")]
#[unsafe(export_name = "SAMPLES")]
pub static SAMPLES: RingBufDef = RingBufDef {
    r#type: core::ptr::null(),
    max_entries: core::ptr::null(),
};

/// The spec of each probe, by index. The number of specs is set at load time.
#[btf_map]
pub static PROBES: Array<ProbeSpec, 1> = Array::new();

/// Counts of calls and losses, by spec; as many as [`PROBES`].
#[btf_map]
pub static PROBE_COUNTS: PerCpuArray<ProbeCounts, 1> = PerCpuArray::new();

/// The pending calls of each thread, by thread id. Only programs that the thread itself runs
/// use its entry, and those do not nest.
#[btf_map]
pub static THREADS: HashMap<u32, ThreadCalls, 65536, { BPF_F_NO_PREALLOC as usize }> =
    HashMap::new();

/// Calls, their data and their stacks for user space. The size is set at load time. It is not
/// the ring of the samples, because an interrupt that finds a ring locked drops its record.
#[unsafe(link_section = ".maps")]
#[unsafe(export_name = "CALLS")]
pub static CALLS: RingBufDef = RingBufDef {
    r#type: core::ptr::null(),
    max_entries: core::ptr::null(),
};

/// Scratch for stacks of calls. Programs at probes can be preempted, also by others of their
/// kind, so each claims one of several.
#[btf_map]
pub static CALL_SCRATCH: PerCpuArray<CallSlot, { CALL_SLOTS as usize }> = PerCpuArray::new();

/// Ids of the stacks that were sent to user space, the most recently used ones.
#[btf_map]
pub static STACKS_SEEN: LruHashMap<u64, u64, 16384> = LruHashMap::new();

/// Limits of each CPU.
#[btf_map]
pub static CALL_LIMITS: PerCpuArray<CallLimits, 1> = PerCpuArray::new();

/// State that all calls share.
#[btf_map]
pub static CALL_SHARED: Array<CallShared, 1> = Array::new();

/// Class of the files of a device, by the device's number in inodes.
#[btf_map]
pub static DEVICES: HashMap<u32, u32, 4096, { BPF_F_NO_PREALLOC as usize }> = HashMap::new();

/// Class of the files that have no device, by name.
#[btf_map]
pub static FILES: HashMap<[u8; FILE_NAME_BYTES], u32, 64, { BPF_F_NO_PREALLOC as usize }> =
    HashMap::new();

/// Specs of ioctls. The size is set at load time.
#[btf_map]
pub static IOCTLS: HashMap<IoctlKey, u32, 4096, { BPF_F_NO_PREALLOC as usize }> = HashMap::new();

/// The ioctl that a thread is in, by thread id. The least recently used entries are replaced: a
/// thread that is killed inside leaves its entry behind.
#[btf_map]
pub static IOCTL_CALLS: LruHashMap<u32, IoctlCall, 16384> = LruHashMap::new();

/// The initial value of an [`IoctlCall`], all zero.
#[btf_map]
pub static IOCTL_FRESH: Array<IoctlCall, 1> = Array::new();

/// The fields that are copied from tracepoints, by number.
#[btf_map]
pub static TRACES: Array<TraceSpec, { MAX_TRACES as usize }> = Array::new();

/// An ioctl that a thread is in.
#[repr(C)]
pub struct IoctlCall {
    /// 1: the thread is in it; 0: it is over.
    pub open: u64,
    /// The handler where it was seen, or the system call.
    pub place: u64,
    /// When it began.
    pub time_ns: u64,
    /// The kernel's stack pointer at its entry.
    pub sp: u64,
    /// The command.
    pub command: u64,
    /// Its argument.
    pub argument: u64,
    /// `CallRecord::stack`.
    pub stack: u64,
    /// Index of the spec, and in the upper half the device's number.
    pub probe: u64,
    /// `CallRecord::unread`.
    pub unread: u64,
    /// The entry's values.
    pub values: [u64; MAX_VALUES],
}

/// The waits of threads, by thread id. It is not a hash map, because the scheduler's locks are
/// held when it is written. A wait that is overwritten by another thread's is counted.
#[btf_map]
pub static WAIT_SLOTS: Array<WaitSlot, { aiprof_common::WAIT_SLOTS }> = Array::new();

/// Waits that are over, until their threads leave the kernel. [`WaitSlot::over`] is the place.
#[btf_map]
pub static WAITS_OVER: Array<WaitOver, { aiprof_common::WAITS_OVER }> = Array::new();

/// Counts of the stacks of waits.
#[btf_map]
pub static WAIT_COUNTS: PerCpuArray<ProbeCounts, 1> = PerCpuArray::new();

/// The last switch that each CPU reported.
#[btf_map]
pub static LAST_SWITCHES: PerCpuArray<LastSwitch, 1> = PerCpuArray::new();

/// The last switch that a CPU reported.
#[repr(C)]
pub struct LastSwitch {
    /// When, CLOCK_MONOTONIC nanoseconds; 0: none yet.
    pub time_ns: u64,
    /// The thread that it was switched to.
    pub tid: u64,
}

/// A thread that waits, or the last one that did. It is written when the thread is switched out
/// and when it is woken, and read when it is switched in. The scheduler orders these.
#[repr(C)]
pub struct WaitSlot {
    /// Thread id.
    pub tid: u32,
    /// [`WaitRecord::state`].
    pub state: u32,
    /// [`WaitRecord::begin_ns`]; 0: it does not wait.
    pub begin_ns: u64,
    /// When it was woken, 0: not yet.
    pub woken_ns: u64,
    /// [`WaitRecord::waker`].
    pub waker: u64,
    /// [`WaitRecord::stack`], if it was taken at the beginning of the wait.
    pub stack: u64,
    /// The number of waits that it stands for, if it was drawn when it began; 0: it was not.
    pub drawn: u32,
    /// [`WaitRecord::flags`].
    pub flags: u32,
    /// Place in [`WAITS_OVER`] that the thread holds, plus one; 0: none. Whether the thread
    /// still holds it depends on the place's owner.
    pub over: u32,
    /// Zero.
    pub pad: u32,
}

/// A wait that is over.
#[repr(C)]
pub struct WaitOver {
    /// Id of the thread that holds the place; 0: it is free; [`TAKEN`](crate::waits::TAKEN): a
    /// program uses it.
    pub owner: u64,
    /// The wait's record, without its stack.
    pub record: WaitRecord,
    /// Bytes of the kernel's part of the stack.
    pub kernel_bytes: u64,
    /// The kernel's part of the stack, leaf first.
    pub kernel: [u64; MAX_WAIT_FRAMES],
}

/// Load-time constants, which user space fills in before the load.
#[unsafe(no_mangle)]
pub static SETTINGS: Settings = Settings {
    task_flags: 0,
    task_jobctl: 0,
    task_sas_ss_sp: 0,
    task_sas_ss_size: 0,
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
    task_fsbase: 0,
    task_files: 0,
    files_fdt: 0,
    fdt_fd: 0,
    fdt_max_fds: 0,
    file_inode: 0,
    inode_rdev: 0,
    file_dentry: 0,
    dentry_name: 0,
    named_files: 0,
    caller_uid: 0,
    own_data_only: 0,
    chosen_only: 0,
    cgroup: [0; 2],
    task_pid: 0,
    wait_period_ns: 0,
    wait_least_us: 0,
    task_nsproxy: 0,
    nsproxy_mounts: 0,
    mounts_number: 0,
    own_mounts: 0,
};

/// Reads one load-time constant. Volatile, because the initial value is not the one that the
/// program runs with.
#[macro_export]
macro_rules! setting {
    ($field:ident) => {
        // SAFETY: a static of this program, initialised, read-only.
        unsafe { core::ptr::read_volatile(&raw const $crate::maps::SETTINGS.$field) }
    };
}

/// User addresses, followed by kernel addresses, followed by words of Python frames.
pub type Frames = [u64; MAX_USER_FRAMES + MAX_KERNEL_FRAMES + 1 + MAX_PYTHON_WORDS];

/// A record under construction, and the state of the walk that fills it.
#[repr(C)]
pub struct Scratch {
    /// The record: header, user addresses, then kernel addresses.
    pub header: SampleHeader,
    /// User addresses, with room for the kernel addresses right after the last one used.
    pub frames: Frames,
    /// State of the user walk.
    pub walk: Walk,
    /// The Python frames of the walk.
    pub python: Python,
    /// State of the walk for frames of HotSpot.
    pub java: Java,
    /// State of the walk for frames of V8.
    pub v8: V8,
}

/// Scratch that one program at a time has claimed.
#[repr(C)]
pub struct CallSlot {
    /// 1: claimed.
    pub busy: u64,
    /// Scratch of the program that has claimed it.
    pub scratch: Scratch,
    /// A hash of the stack's memory, and the part of the memory that is being hashed.
    pub hash: u64,
    pub memory: [u64; MEMORY_WORDS],
}

/// Words of a stack's memory that are hashed in one step.
pub const MEMORY_WORDS: usize = 32;

/// Limits of one CPU. Programs that preempt each other may lose each other's updates; the only
/// effect is that the limits are inexact.
#[repr(C)]
pub struct CallLimits {
    /// When a program on this CPU last woke the reader of the ring.
    pub woken_ns: u64,
    /// The CPU's work for calls, by owner.
    pub shares: Shares,
}

/// State that all calls share.
#[repr(C)]
pub struct CallShared {
    /// Start value of stack hashes, drawn by the first program that needs it. So no program can
    /// arrange for its stacks to have the id of another's.
    pub seed: u64,
    /// The initial state of a thread, without calls: all zero.
    pub fresh: ThreadCalls,
}
