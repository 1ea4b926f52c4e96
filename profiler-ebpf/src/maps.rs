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

/// Unwind data, written by user space through a memory mapping. The number of
/// chunks is set at load time.
#[btf_map]
pub static POOL: Array<[u8; POOL_CHUNK], 1, { BPF_F_MMAPABLE as usize }> = Array::new();

/// Process id to mapping list. Not preallocated: memory follows the number of
/// profiled processes.
#[btf_map]
pub static PROCS: HashMap<u32, ProcEntry, 16384, { BPF_F_NO_PREALLOC as usize }> = HashMap::new();

/// The processes whose calls are recorded, if not those of all (see
/// [`Settings::chosen_only`]).
#[btf_map]
pub static CHOSEN: HashMap<u32, u32, 16384, { BPF_F_NO_PREALLOC as usize }> = HashMap::new();

/// How often `PROCS` was changed, by user space and by the programs.
#[btf_map]
pub static PROC_CHANGES: Array<u64, 2> = Array::new();

/// Scratch of the sampler. A perf event program never nests on one CPU
/// (`bpf_prog_active`), so one per CPU is enough for this program type; other
/// program types have their own.
#[btf_map]
pub static SAMPLER_SCRATCH: PerCpuArray<Scratch, 1> = PerCpuArray::new();

/// Rule caches: a chunk of near rules, direct-mapped by stack pointer, and behind it those
/// that are direct-mapped by address; first the sampler's, then two chunks for each of the
/// CALL_SLOTS. Each part has one user at a time: an entry is two
/// words, and half an old one with half a new one would be a wrong rule. The
/// number of chunks is set at load time.
#[btf_map]
pub static RULES: PerCpuArray<[CachedRule; RULE_CACHE_CHUNK], 1> = PerCpuArray::new();

/// Code objects that were sent: a fingerprint at the place that its address leads to.
/// Words that all CPUs write whole; what is overwritten is sent again.
#[btf_map]
pub static PYTHON_SEEN: Array<u64, { PYTHON_SEEN_SLOTS as usize }> = Array::new();

/// Kernel addresses that user space wants named.
#[btf_map]
pub static NAMES: Array<KernelNames, 1> = Array::new();

/// Since when the recording goes on (see [`paused`](crate::paused)).
#[btf_map]
pub static RECORDING: Array<u64, 1> = Array::new();

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

/// What to do at each probe, by spec. The number of specs is set at load time.
#[btf_map]
pub static PROBES: Array<ProbeSpec, 1> = Array::new();

/// What was seen and what was lost, by spec; as many as [`PROBES`].
#[btf_map]
pub static PROBE_COUNTS: PerCpuArray<ProbeCounts, 1> = PerCpuArray::new();

/// The pending calls of each thread, by thread id. Only programs that the thread
/// itself runs touch its entry, and those do not nest.
#[btf_map]
pub static THREADS: HashMap<u32, ThreadCalls, 65536, { BPF_F_NO_PREALLOC as usize }> =
    HashMap::new();

/// Calls, their data and their stacks to user space. The size is set at load
/// time. Not the ring of the samples: an interrupt that finds a ring locked
/// drops its record.
#[unsafe(link_section = ".maps")]
#[unsafe(export_name = "CALLS")]
pub static CALLS: RingBufDef = RingBufDef {
    r#type: core::ptr::null(),
    max_entries: core::ptr::null(),
};

/// Scratch for stacks of calls. Programs at probes can be preempted, by others of
/// their kind too, so they claim one of several.
#[btf_map]
pub static CALL_SCRATCH: PerCpuArray<CallSlot, { CALL_SLOTS as usize }> = PerCpuArray::new();

/// Ids of the stacks that user space has been sent, the latest used.
#[btf_map]
pub static STACKS_SEEN: LruHashMap<u64, u64, 16384> = LruHashMap::new();

/// Limits of each CPU.
#[btf_map]
pub static CALL_LIMITS: PerCpuArray<CallLimits, 1> = PerCpuArray::new();

/// What all calls share.
#[btf_map]
pub static CALL_SHARED: Array<CallShared, 1> = Array::new();

/// Class of the files of a device, by the device's number as inodes have it.
#[btf_map]
pub static DEVICES: HashMap<u32, u32, 4096, { BPF_F_NO_PREALLOC as usize }> = HashMap::new();

/// Class of the files that have no device, by name.
#[btf_map]
pub static FILES: HashMap<[u8; FILE_NAME_BYTES], u32, 64, { BPF_F_NO_PREALLOC as usize }> =
    HashMap::new();

/// Specs of ioctls. The size is set at load time.
#[btf_map]
pub static IOCTLS: HashMap<IoctlKey, u32, 4096, { BPF_F_NO_PREALLOC as usize }> = HashMap::new();

/// The ioctl that a thread is in, by thread id. The least used go first: a thread
/// that is killed inside leaves its entry behind.
#[btf_map]
pub static IOCTL_CALLS: LruHashMap<u32, IoctlCall, 16384> = LruHashMap::new();

/// An ioctl not begun, all zero.
#[btf_map]
pub static IOCTL_FRESH: Array<IoctlCall, 1> = Array::new();

/// What is taken of tracepoints, by number.
#[btf_map]
pub static TRACES: Array<TraceSpec, { MAX_TRACES as usize }> = Array::new();

/// An ioctl that a thread is in.
#[repr(C)]
pub struct IoctlCall {
    /// 1: it is; 0: the thread was in one.
    pub open: u64,
    /// Where it was seen: which handler.
    pub place: u64,
    /// When it began.
    pub time_ns: u64,
    /// The kernel's stack pointer then.
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

/// Since when threads wait, by thread id. Not a hash map: the scheduler's locks are held
/// where it is written, and what takes another's place is counted.
#[btf_map]
pub static WAIT_SLOTS: Array<WaitSlot, { aiprof_common::WAIT_SLOTS }> = Array::new();

/// Waits that are over, until their threads leave the kernel: [`WaitSlot::over`] has the place.
#[btf_map]
pub static WAITS_OVER: Array<WaitOver, { aiprof_common::WAITS_OVER }> = Array::new();

/// What there is to count of the stacks of waits.
#[btf_map]
pub static WAIT_COUNTS: PerCpuArray<ProbeCounts, 1> = PerCpuArray::new();

/// A thread that waits, or the last one that did. Written where the thread is switched
/// away from and woken, and read where it is switched to: the scheduler orders these.
#[repr(C)]
pub struct WaitSlot {
    /// Thread id.
    pub tid: u32,
    /// [`WaitRecord::state`].
    pub state: u32,
    /// [`WaitRecord::begin_ns`]; 0: it does not wait.
    pub begin_ns: u64,
    /// When it was woken, 0: it was not yet.
    pub woken_ns: u64,
    /// [`WaitRecord::waker`].
    pub waker: u64,
    /// [`WaitRecord::stack`], where that had to be taken beforehand.
    pub stack: u64,
    /// As how many it counts, where its stack had to be taken when it began; 0: it was not.
    pub drawn: u32,
    /// [`WaitRecord::flags`].
    pub flags: u32,
    /// Place in [`WAITS_OVER`] that the thread holds, plus one; 0: none. The place's owner
    /// decides whether it still is the thread's.
    pub over: u32,
    /// Zero.
    pub pad: u32,
}

/// A wait that is over.
#[repr(C)]
pub struct WaitOver {
    /// Whose it is: a thread id; 0: nobody's; [`TAKEN`](crate::waits::TAKEN): one at work.
    pub owner: u64,
    /// What is known.
    pub record: WaitRecord,
    /// Bytes of the kernel's part of the stack.
    pub kernel_bytes: u64,
    /// The kernel's part of the stack, leaf first.
    pub kernel: [u64; MAX_WAIT_FRAMES],
}

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

/// Reads one load-time constant; volatile, for the initial value is not the
/// one the program runs with.
#[macro_export]
macro_rules! setting {
    ($field:ident) => {
        // SAFETY: a static of this program, initialised, read-only.
        unsafe { core::ptr::read_volatile(&raw const $crate::maps::SETTINGS.$field) }
    };
}

/// User addresses, behind them kernel addresses, and behind those words of Python frames.
pub type Frames = [u64; MAX_USER_FRAMES + MAX_KERNEL_FRAMES + 1 + MAX_PYTHON_WORDS];

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
    /// The Python frames of it.
    pub python: Python,
    /// What is read of HotSpot for it.
    pub java: Java,
    /// What is read of V8 for it.
    pub v8: V8,
}

/// Scratch that one program at a time has claimed.
#[repr(C)]
pub struct CallSlot {
    /// 1: claimed.
    pub busy: u64,
    /// The claimant's.
    pub scratch: Scratch,
    /// A hash of the stack's memory, and the part of it that is taken in.
    pub hash: u64,
    pub memory: [u64; MEMORY_WORDS],
}

/// Words of a stack's memory that are hashed in one step.
pub const MEMORY_WORDS: usize = 32;

/// Limits of one CPU. Programs that preempt each other may lose an update of
/// each other's: that makes the limits inexact and nothing else.
#[repr(C)]
pub struct CallLimits {
    /// When the reader of the ring was last woken from here.
    pub woken_ns: u64,
    /// What it did for calls, and for whom.
    pub shares: Shares,
}

/// What all calls share.
#[repr(C)]
pub struct CallShared {
    /// Start of stack hashes, made up by the first program that needs it: no
    /// program can then arrange for its stacks to have the id of another's.
    pub seed: u64,
    /// The state of a thread without calls, all zero.
    pub fresh: ThreadCalls,
}
