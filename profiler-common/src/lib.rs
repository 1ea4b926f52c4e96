//! The contract between aiprof's user space and its eBPF programs.
//!
//! It holds layouts and limits, and only those helpers that both sides must compute
//! identically. The one exception is how limits are shared ([`Shares`]), which is here so that
//! it can be tested. All structures are `repr(C)`, hold integers only, pad explicitly and
//! assert their size at compile time.
//!
//! # The unwind pool
//!
//! Everything the kernel-side unwinder reads is in one memory-mapped BPF array, the *pool*. Its
//! values are *chunks* of [`POOL_CHUNK`] bytes, which user space divides into blocks. A block
//! never straddles a chunk and starts on a [`POOL_UNIT`]-byte boundary. A [`PoolRef`] names a
//! block. These kinds of block exist:
//!
//! * a **mapping list** ([`MapListHeader`]): the executable mappings of an address space,
//!   sorted by start address. The hash map `PROCS` leads from a process to its list;
//! * a **directory** ([`DirHeader`]): one per file, with a `u32` reference for each
//!   [`PAGE_SIZE`] bytes of text, so tables are resident page by page;
//! * a **table page** ([`PageHeader`]): the unwind rules of one page of text;
//! * a **layout** of an interpreter or runtime: where a process's Python keeps its data
//!   ([`PythonLayout`]), where its HotSpot has generated code ([`JavaLayout`]), and how its V8
//!   describes functions ([`V8Layout`]).
//!
//! Every block starts with an owner tag. Before user space reuses a block, it clears the
//! reference and changes the tag. The unwinder compares the tag before and after it reads. A
//! block that is replaced meanwhile therefore causes a failure, which is counted, and never a
//! wrong frame.

#![no_std]

mod calls;
mod drivers;
mod java;
mod names;
mod python;
mod shares;
pub mod timing;
mod v8;
mod waits;

pub use calls::*;
pub use drivers::*;
pub use java::*;
pub use names::*;
pub use python::*;
pub use shares::*;
pub use v8::*;
pub use waits::*;

/// Bytes in one pool chunk, that is in one value of the pool map.
pub const POOL_CHUNK: usize = 256 * 1024;
/// Granularity of block addresses within a chunk, in bytes.
pub const POOL_UNIT: usize = 64;
/// Bits of a [`PoolRef`] that hold the unit index within a chunk.
pub const POOL_UNIT_BITS: u32 = 12;
const _: () = assert!(POOL_CHUNK / POOL_UNIT == 1 << POOL_UNIT_BITS);

/// A block in the pool: `chunk << POOL_UNIT_BITS | unit`. Unit 0 of chunk 0 is never used, so
/// that the values below stay free for special meanings.
pub type PoolRef = u32;
/// Directory entry: the page is not resident; the unwinder reports a miss.
pub const REF_ABSENT: PoolRef = 0;
/// Directory entry: the file has no unwind data for this page; the unwinder
/// falls back to frame pointers.
pub const REF_NO_DATA: PoolRef = 1;
/// First value that names a block.
pub const REF_FIRST: PoolRef = 2;

/// log2 of the bytes of text that one table page covers.
pub const PAGE_SHIFT: u32 = 16;
/// Bytes of text that one table page covers.
pub const PAGE_SIZE: u64 = 1 << PAGE_SHIFT;
/// Rows in one group of a table page.
pub const GROUP_ROWS: usize = 16;
/// Bytes of one group: `GROUP_ROWS` deltas, then `GROUP_ROWS` rule indices.
pub const GROUP_BYTES: usize = 2 * GROUP_ROWS;
/// Most groups in one table page (bounded by the search's step count).
pub const MAX_GROUPS: usize = 4096;
/// Most rules in one table page: a rule index is one byte.
pub const MAX_PAGE_RULES: usize = 256;
/// Most executable mappings in one mapping list.
pub const MAX_MAPPINGS: usize = 4096;

/// Most user frames in one sample.
pub const MAX_USER_FRAMES: usize = 1024;
/// Frames that are kept at the root of a stack with more than [`MAX_USER_FRAMES`]; as many are
/// kept at its leaf. The root's frames are in the second half of the addresses, a ring: frame
/// `n` is at half + `n` % half, so that the last ones stay.
pub const ROOT_FRAMES: usize = MAX_USER_FRAMES / 2;
/// Most user frames that the unwinder walks.
pub const MAX_WALKED_FRAMES: usize = 8192;
/// Stands in a sample's addresses, in user space, for the frames in the middle that were not
/// kept. It is no address: no instruction has the address 0.
pub const ADDR_MIDDLE: u64 = ADDR_EXACT;
/// Most kernel frames in one sample (the Linux kernel's default for `perf_event_max_stack`).
pub const MAX_KERNEL_FRAMES: usize = 127;

/// Header of a table page. It is followed by `n_groups` `u16` anchors, padding to 8 bytes,
/// `n_rules` [`Rule`]s and `n_groups` groups of [`GROUP_BYTES`]. An anchor is the offset in the
/// page of the first row of its group.
///
/// Row `i` of a group starts at `anchor + delta[0] + ... + delta[i]` with `delta[0] == 0` and
/// applies up to the next row. A gap over 255 bytes is bridged by repeating a row. Unused rows
/// at the end of the last group repeat the last rule with delta 255; they are unreachable or
/// equal. The first anchor is 0, so a page has a rule for its first byte.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageHeader {
    /// Identity of this incarnation of the block, never 0.
    pub owner: u32,
    /// When the unwinder last used the page: nanoseconds since boot >> 30.
    pub last_used: u32,
    /// Groups in the page, 1..=MAX_GROUPS.
    pub n_groups: u16,
    /// Rules in the page, 1..=MAX_PAGE_RULES.
    pub n_rules: u16,
    /// Byte offset of the first rule from the block's start, multiple of 8.
    pub rules_off: u32,
    /// Byte offset of the first group from the block's start, multiple of 8.
    pub groups_off: u32,
    /// Zero.
    pub pad: u32,
}
const _: () = assert!(size_of::<PageHeader>() == 24);

/// How to find the caller's frame: one unwind rule, x86-64.
///
/// The caller's stack pointer is the CFA; its return address is at CFA - 8, except for the
/// kinds that define it otherwise.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Offset that goes with `kind`.
    pub cfa_off: i32,
    /// Offset of the caller's rbp in bytes: from the CFA when `rbp == RBP_AT_CFA`, from the
    /// current rbp when `rbp == RBP_AT_RBP`.
    pub rbp_off: i16,
    /// One of the `CFA_*` constants.
    pub kind: u8,
    /// One of the `RBP_*` constants, perhaps with [`RBP_DERIVED`].
    pub rbp: u8,
}
const _: () = assert!(size_of::<Rule>() == 8);

impl Rule {
    /// The two numbers of [`CFA_DEREF_RBP`] and [`CFA_DEREF_RSP`], in bytes. The first, added
    /// to the register, gives the address of a word of memory. The second, added to that word,
    /// gives the CFA.
    #[inline(always)]
    pub const fn dereferenced(&self) -> (u64, u64) {
        let offset = self.cfa_off << 8 >> 8;
        let added = (self.cfa_off as u32 >> 24) * 8;
        (offset as i64 as u64, added as u64)
    }
}

/// No unwind data here: use the frame pointer.
pub const CFA_NONE: u8 = 0;
/// The outermost frame (return address undefined): the stack is complete.
pub const CFA_END: u8 = 1;
/// CFA = rsp + cfa_off.
pub const CFA_RSP: u8 = 2;
/// CFA = rbp + cfa_off.
pub const CFA_RBP: u8 = 3;
/// CFA = *(rbp + offset) + added, see [`Rule::dereferenced`].
pub const CFA_DEREF_RBP: u8 = 4;
/// CFA = *(rsp + offset) + added, see [`Rule::dereferenced`].
pub const CFA_DEREF_RSP: u8 = 5;
/// The bits of `cfa_off` that are the signed offset of these two kinds. The byte above them is
/// the number to add, in words of 8 bytes.
pub const DEREF_OFFSET_MASK: i32 = 0xff_ffff;
/// A PLT entry: CFA = rsp + 8 + ((rip & 15) >= cfa_off ? 8 : 0).
pub const CFA_PLT: u8 = 6;
/// A signal frame: rip, rsp and rbp come from the `ucontext` at rsp + cfa_off
/// (linux/arch/x86/include/uapi/asm/sigcontext.h).
pub const CFA_SIGNAL: u8 = 7;
/// The file has a rule that the unwinder does not implement.
pub const CFA_UNSUPPORTED: u8 = 8;
/// A function of Go's runtime that changes stacks; `rbp` is one of the `GO_*` constants.
/// `cfa_off` has four numbers of words, a byte each, the lowest first: `a`, `b`, `c`, `d`.
/// `rbp_off` is the offset of the thread's goroutine `g` from the thread's fs base, or leads to
/// it if `rbp` has one of the `GO_PAGE_*` flags. The caller's rbp is not known.
pub const CFA_GO: u8 = 9;
/// Code without unwind data whose instructions user space has not read yet. The unwinder
/// reports it like an absent page.
pub const CFA_LATER: u8 = 10;
/// CFA = register (kind - CFA_REG) + cfa_off, by DWARF number. Only the innermost frame has
/// such a rule, because only there all registers are known.
pub const CFA_REG: u8 = 16;
/// CFA = register (kind - CFA_KEPT) + cfa_off, after a call of a function that does not change
/// the register and calls nothing. It applies only if that function is the innermost frame.
pub const CFA_KEPT: u8 = 32;
/// CFA = rsp + cfa_off, and the return address is in register (kind - CFA_RETURN), by DWARF
/// number. It applies to the innermost frame only. glibc's `vfork` has such a rule.
pub const CFA_RETURN: u8 = 48;

/// With `m = *(g + a)` and `x = *(m + b)`: `CFA = *(x + c) + d`; if `c` is [`GO_NO_STEP`],
/// `CFA = x + d`. A walk uses each of the two forms once at most.
pub const GO_RETURNS: u8 = 0;
/// The goroutine `x` continues where it left its stack: `rsp = *(x + c)`; rip is the next word.
pub const GO_RESUMES: u8 = 1;
/// As [`GO_RETURNS`]. In a walk that was here before, `CFA = *s + d`, where `s` is what
/// `*(x + c)` was then.
pub const GO_CALLBACK: u8 = 2;
/// `CFA = *(*(rsp + a) + c) - *(rsp + b) + d`.
pub const GO_CALLS_C: u8 = 3;
/// CFA = rsp + `cfa_off`, which is one number here. The function was injected: the code that it
/// returns to was interrupted and did not call it.
pub const GO_INJECTED: u8 = 4;
/// `c` of a [`CFA_GO`] rule without this step.
pub const GO_NO_STEP: u8 = 255;
/// The bits of a [`CFA_GO`] rule's `rbp` that are one of these flags. With one, the offset of
/// `g` is in a word that the loader sets. `rbp_off`, unsigned, is the place in a table page of
/// the 4 bytes by which an instruction addresses that word, counted from their end.
pub const GO_PAGE_FLAGS: u8 = 0xc0;
/// The instruction is in the page before the rule's.
pub const GO_PAGE_BEFORE: u8 = 0x40;
/// In the rule's page.
pub const GO_PAGE_SAME: u8 = 0x80;
/// In the page after it.
pub const GO_PAGE_AFTER: u8 = 0xc0;

/// Caller's rbp is the current rbp.
pub const RBP_SAME: u8 = 0;
/// Caller's rbp is at CFA + rbp_off.
pub const RBP_AT_CFA: u8 = 1;
/// Caller's rbp is not known.
pub const RBP_UNDEFINED: u8 = 2;
/// Caller's rbp is at the current rbp + rbp_off. gcc's realigned stacks have this rule; their
/// CFA is [`CFA_DEREF_RBP`].
pub const RBP_AT_RBP: u8 = 3;

/// Bit of [`Rule::rbp`]: the rule was derived from instructions. Such code may keep its return
/// address elsewhere, so that zero where a return address is expected is not a stack's end.
pub const RBP_DERIVED: u8 = 0x80;

/// Header of a file's page directory, followed by `n_pages` [`PoolRef`]s.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirHeader {
    /// Identity of this incarnation of the block, never 0.
    pub owner: u32,
    /// Pages of text, from the file's first executable page on.
    pub n_pages: u32,
}
const _: () = assert!(size_of::<DirHeader>() == 8);

/// Header of a mapping list, followed by `n` start addresses (`u64`, sorted)
/// and then `n` [`MapEntry`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapListHeader {
    /// Identity of this incarnation of the block, never 0.
    pub owner: u32,
    /// Mappings in the list, at most MAX_MAPPINGS.
    pub n: u32,
}
const _: () = assert!(size_of::<MapListHeader>() == 8);

/// One executable mapping.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapEntry {
    /// First address after the mapping.
    pub end: u64,
    /// `address - bias` is the offset from the file's first directory page.
    pub bias: u64,
    /// The file's directory; REF_NO_DATA for memory without unwind data.
    pub dir: PoolRef,
    /// Owner tag of that directory.
    pub dir_owner: u32,
    /// One of the `MAP_*` constants.
    pub kind: u32,
    /// Zero.
    pub pad: u32,
}
const _: () = assert!(size_of::<MapEntry>() == 32);

/// File-backed text, or the vdso. It is unwound by its tables.
pub const MAP_FILE: u32 = 0;
/// Anonymous executable memory (JIT code). It is unwound by a table if there is one and a call
/// instruction confirms the step, else by frame pointers.
pub const MAP_ANON: u32 = 1;
/// The Linux kernel's `[uprobes]` area: out-of-line single steps and the return trampoline.
pub const MAP_UPROBES: u32 = 2;
/// The `[vsyscall]` page: the return address is at rsp.
pub const MAP_VSYSCALL: u32 = 3;

/// One entry of the rule cache: the rule found last time for a return address, or for an
/// interrupted instruction. Calls come from the same places again and again, so most frames
/// need no search at all. Four entries share a cache line, and neighbouring addresses share
/// lines. That matters because at usual sampling rates all memory is cold at each sample, so
/// the cost is the number of cache lines touched.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedRule {
    /// The address. Its upper 16 bits are the lower 16 bits of the owner tag of the mapping
    /// list that led to the rule. Another image, or another mapping at the same address, has
    /// another list.
    pub key: u64,
    /// The rule, from bit 0:
    ///
    /// * 24 bits: the CFA offset;
    /// * 16 bits: the rbp offset below the CFA, 0 if rbp is unchanged;
    /// * 1 bit: 1 if the CFA is from rbp and not rsp;
    /// * 1 bit: 1 if the address is not a return address;
    /// * padding, and from bit 48 the upper 16 bits of the owner tag.
    pub rule: u64,
}
const _: () = assert!(size_of::<CachedRule>() == 16);

/// Entries of the rule cache in one map value.
pub const RULE_CACHE_CHUNK: usize = 512;

/// Value of the `PROCS` map, keyed by process id (tgid, root pid namespace).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcEntry {
    /// The mapping list of the process.
    pub maps: PoolRef,
    /// Owner tag of that list.
    pub owner: u32,
    /// Identity of the address space, new at every exec. Samples carry it, so that user space
    /// can reject a stack that was unwound with the list of an earlier image.
    pub space: u32,
    /// The [`PythonLayout`] of its interpreter, or [`NO_PYTHON`].
    pub python: PoolRef,
    /// The [`JavaLayout`] of its HotSpot, or [`NO_JAVA`].
    pub java: PoolRef,
    /// The [`V8Layout`] of its V8, or [`NO_V8`].
    pub v8: PoolRef,
}
const _: () = assert!(size_of::<ProcEntry>() == 24);

/// Value of `kind`, the first field of every record in a ring buffer: a CPU sample.
pub const KIND_SAMPLE: u32 = 1;
/// A [`StackPage`] that belongs to a sample.
pub const KIND_STACK_PAGE: u32 = 2;

/// Header of a CPU sample. It is followed by `user_len` user addresses (leaf first),
/// `kernel_len` kernel addresses (leaf first) and `python_len` words of Python frames, each
/// `u64`.
///
/// User addresses after the first are return addresses, except those that directly follow a
/// signal frame. Four bits mark special addresses:
///
/// * bit 63 ([`ADDR_EXACT`]): an interrupted instruction and not a return address;
/// * bit 62 ([`ADDR_GUESSED`]): the caller, which is the next address, is a guess;
/// * bit 61 ([`ADDR_METHOD`]): a Java method, not code;
/// * bit 60 ([`ADDR_JS`]): a JavaScript function, not code.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleHeader {
    /// [`KIND_SAMPLE`].
    pub kind: u32,
    /// CPU the sample was taken on.
    pub cpu: u32,
    /// CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// Process id (tgid) in the root pid namespace.
    pub tgid: u32,
    /// Thread id in the root pid namespace.
    pub tid: u32,
    /// Thread name, NUL-padded.
    pub comm: [u8; 16],
    /// cgroup v2 id, 0 if unknown.
    pub cgroup: u64,
    /// Value of the sample in the event's unit: nanoseconds for cpu-clock, cycles for a
    /// hardware counter.
    pub period: u64,
    /// Identity of the address space whose list was used, 0 if none.
    pub space: u32,
    /// Directory of the absent page that ended the walk (`STOP_PAGE_ABSENT`).
    pub miss_dir: PoolRef,
    /// Index in that directory.
    pub miss_page: u32,
    /// Number of user addresses.
    pub user_len: u16,
    /// Number of kernel addresses.
    pub kernel_len: u16,
    /// Why the user walk ended: one of the `STOP_*` constants.
    pub stop: u8,
    /// `FLAG_*` bits.
    pub flags: u8,
    /// Words of Python frames after the kernel addresses, see [`PythonLayout`].
    pub python_len: u16,
    /// Frames that were walked but not kept, see [`ROOT_FRAMES`].
    pub omitted: u32,
    /// Instruction pointer of the last user address recorded. With this and the next two
    /// fields, user space continues a walk that ended because a table was missing.
    pub rip: u64,
    /// Stack pointer of that frame.
    pub rsp: u64,
    /// Frame pointer register of that frame.
    pub rbp: u64,
}
const _: () = assert!(size_of::<SampleHeader>() == 104);

/// Bytes of user stack in one [`StackPage`]: one page, because a page can be read whole or not
/// at all.
pub const STACK_PAGE: usize = 4096;
/// Most pages sent with one sample.
pub const MAX_STACK_PAGES: usize = 16;

/// A page of the user stack, from the stack pointer upwards. It follows a sample whose walk
/// ended because a table was missing ([`STOP_PAGE_ABSENT`], [`STOP_NO_PROCESS`],
/// [`STOP_NO_MAPPING`], [`STOP_TORN`]). User space finishes the walk, so that the first samples
/// are whole, too.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct StackPage {
    /// [`KIND_STACK_PAGE`].
    pub kind: u32,
    /// CPU of the sample.
    pub cpu: u32,
    /// Time of the sample; with the CPU it names the sample.
    pub time_ns: u64,
    /// Address of the first byte, a multiple of STACK_PAGE.
    pub address: u64,
    /// The content.
    pub data: [u8; STACK_PAGE],
}
const _: () = assert!(size_of::<StackPage>() == 24 + STACK_PAGE);

/// Marks a user address that is an interrupted instruction (see [`SampleHeader`]). User
/// addresses never have this bit.
pub const ADDR_EXACT: u64 = 1 << 63;
/// Marks a user address whose caller was guessed: no rule and no frame pointer of a caller
/// leads there. Bits 57 to 61 are zero then, as in all user addresses except those of the
/// vsyscall page.
pub const ADDR_GUESSED: u64 = 1 << 62;

/// Whether the caller of the code at a user address of a sample was guessed.
#[must_use]
pub const fn is_caller_guessed(address: u64) -> bool {
    (address & !ADDR_EXACT) >> 57 == ADDR_GUESSED >> 57
}

/// The kernel stack could not be read.
pub const FLAG_KERNEL_FAILED: u8 = 1;
/// The kernel stack may have been cut at MAX_KERNEL_FRAMES.
pub const FLAG_KERNEL_TRUNCATED: u8 = 2;
/// The sample was taken in user mode.
pub const FLAG_USER_MODE: u8 = 4;
/// The mapping list is an ancestor's: the process is a fork that user space has not registered
/// yet.
pub const FLAG_FROM_ANCESTOR: u8 = 16;

/// The last user address recorded is an exact instruction.
pub const FLAG_EXACT: u8 = 32;
/// The thread has more Python frames than fit, or some could not be read.
pub const FLAG_PYTHON_CUT: u8 = 64;

/// No user stack: a kernel thread.
pub const STOP_KERNEL_THREAD: u8 = 0;
/// The walk reached the outermost frame.
pub const STOP_END: u8 = 1;
/// The process is unknown to user space: only the leaf is recorded.
pub const STOP_NO_PROCESS: u8 = 2;
/// An address lies in no known executable mapping.
pub const STOP_NO_MAPPING: u8 = 3;
/// The table page is not resident (reported, and loaded by user space).
pub const STOP_PAGE_ABSENT: u8 = 4;
/// The file's unwind rule is not supported.
pub const STOP_UNSUPPORTED: u8 = 5;
/// User memory could not be read.
pub const STOP_READ: u8 = 6;
/// More than MAX_WALKED_FRAMES frames.
pub const STOP_TOO_DEEP: u8 = 7;
/// The chain of frame pointers is broken: there is no unwind data, and rbp points to no frame.
pub const STOP_FRAME_POINTER: u8 = 8;
/// The stack pointer did not grow: corrupt stack or wrong rule.
pub const STOP_NO_PROGRESS: u8 = 9;
/// A block changed while the unwinder read it.
pub const STOP_TORN: u8 = 10;
/// The return instance of a return trampoline was not found.
pub const STOP_TRAMPOLINE: u8 = 11;
/// The process is ending and has no memory any more.
pub const STOP_EXITING: u8 = 12;
/// Number of stop reasons.
pub const STOP_COUNT: usize = 13;

/// Index in the per-CPU `COUNTERS` array: samples seen by the program.
pub const COUNT_SAMPLES: u32 = 0;
/// Samples dropped because the ring buffer was full or contended.
pub const COUNT_RING_DROPS: u32 = 1;
/// Samples of the idle task, not recorded.
pub const COUNT_IDLE: u32 = 2;
/// Tracepoints whose record was lost because the ring was full.
pub const COUNT_TRACE_DROPS: u32 = 3;
/// Waits that should have been recorded but could not be.
pub const COUNT_WAITS_LOST: u32 = 4;
/// Waits whose end was not seen.
pub const COUNT_WAITS_UNENDED: u32 = 5;
/// Number of counters.
pub const COUNTERS: u32 = 6;

/// Read-only constants of the eBPF programs, set at load time from BTF and from the
/// configuration. An offset of [`NO_FIELD`] disables what needs it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// `task_struct.flags`.
    pub task_flags: u32,
    /// `task_struct.jobctl`.
    pub task_jobctl: u32,
    /// `task_struct.sas_ss_sp`: where the stack for signals begins.
    pub task_sas_ss_sp: u32,
    /// `task_struct.sas_ss_size`: its bytes.
    pub task_sas_ss_size: u32,
    /// `task_struct.real_parent`.
    pub task_real_parent: u32,
    /// `task_struct.tgid`.
    pub task_tgid: u32,
    /// `task_struct.group_leader`.
    pub task_group_leader: u32,
    /// `task_struct.utask`.
    pub task_utask: u32,
    /// `uprobe_task.return_instances`.
    pub utask_return_instances: u32,
    /// `uprobe_task.xol_vaddr`.
    pub utask_xol_vaddr: u32,
    /// `uprobe_task.vaddr`.
    pub utask_vaddr: u32,
    /// `return_instance.stack`.
    pub ri_stack: u32,
    /// `return_instance.orig_ret_vaddr`.
    pub ri_orig_ret_vaddr: u32,
    /// `return_instance.next`.
    pub ri_next: u32,
    /// Chunks in the pool map.
    pub pool_chunks: u32,
    /// Entries of the sampler's rule cache less one: a power of two, at least
    /// RULE_CACHE_CHUNK, less one.
    pub rule_cache_mask: u32,
    /// 1: record samples of the idle task too.
    pub include_idle: u32,
    /// 1: record kernel stacks.
    pub kernel_stacks: u32,
    /// Most stacks of calls that one CPU walks in a second.
    pub call_stack_limit: u32,
    /// aiprof's own process: its calls are not recorded.
    pub own_tgid: u32,
    /// `task_struct.thread.fsbase`.
    pub task_fsbase: u32,
    /// `task_struct.files`.
    pub task_files: u32,
    /// `files_struct.fdt`.
    pub files_fdt: u32,
    /// `fdtable.fd`.
    pub fdt_fd: u32,
    /// `fdtable.max_fds`.
    pub fdt_max_fds: u32,
    /// `file.f_inode`.
    pub file_inode: u32,
    /// `inode.i_rdev`.
    pub inode_rdev: u32,
    /// `file.f_path.dentry`.
    pub file_dentry: u32,
    /// `dentry.d_name.name`.
    pub dentry_name: u32,
    /// 1: files without a device are observed, too, if `FILES` has their names.
    pub named_files: u32,
    /// aiprof's caller, a user id. Programs wait for pages only in processes of root and of this
    /// user.
    pub caller_uid: u32,
    /// 1: texts, arrays and blobs are read only in this user's processes.
    pub own_data_only: u32,
    /// 1: calls are recorded only of the processes in `CHOSEN` and of their descendants.
    pub chosen_only: u32,
    /// Control group (cgroup v2 id, low half first) in which calls are recorded, together with
    /// those below it; 0: all.
    pub cgroup: [u32; 2],
    /// `task_struct.pid`.
    pub task_pid: u32,
    /// Nanoseconds that a wait drawn at random stands for; all longer waits are recorded.
    pub wait_period_ns: u32,
    /// Microseconds below which a wait is not recorded.
    pub wait_least_us: u32,
    /// `task_struct.nsproxy`.
    pub task_nsproxy: u32,
    /// `nsproxy.mnt_ns`.
    pub nsproxy_mounts: u32,
    /// `mnt_namespace.ns.inum`.
    pub mounts_number: u32,
    /// aiprof's own mount namespace; 0: not known. Root's processes with another one are in
    /// containers.
    pub own_mounts: u32,
}

/// Offset of a field that this kernel does not have.
pub const NO_FIELD: u32 = u32::MAX;

/// `task_struct.flags`: forked but did not exec (include/linux/sched.h).
pub const PF_FORKNOEXEC: u32 = 0x40;
/// `task_struct.flags`: the task is ending.
pub const PF_EXITING: u32 = 4;
/// `task_struct.flags`: a kernel thread (include/linux/sched.h).
pub const PF_KTHREAD: u32 = 0x0020_0000;
