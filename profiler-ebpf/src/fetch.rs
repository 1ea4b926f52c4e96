//! Reading a call's values: the interpreter of [`FetchOp`]s.
//!
//! The caller fills in the [`Sources`] with the arguments: registers at a probe, or the
//! arguments of a system call. Everything is on the stack of the program, because the program
//! can be preempted and can sleep in a page fault.

use aiprof_common::*;
use aya_ebpf::helpers::generated::{
    bpf_copy_from_user, bpf_get_current_uid_gid, bpf_loop, bpf_probe_read_user,
};
use core::{arch::asm, ffi::c_void, mem::MaybeUninit};

use crate::setting;

/// Indices of the sources: first the arguments, then the stack pointer and the result, and from
/// [`VALUES`] on the values.
const STACK: u64 = 6;
const RESULT: u64 = 7;
const VALUES: u64 = 8;
/// Bit of [`Sources::waits`]: the program may wait for a page of this process.
const WAITS: u8 = 1;
/// Bit of [`Sources::waits`]: something was not in memory and was not waited for.
const ABSENT: u8 = 2;
/// Below this address there is no data: it is a null pointer, or a field of one.
pub const LOWEST: u64 = 4096;
/// Unit of [`Sources::dead`], in bytes; 16 bits of it reach 8 MiB.
const DEAD_UNIT: u64 = 128;
/// Value slots. There are more than MAX_VALUES, so that a mask bounds an index.
const SLOTS: usize = 16;

/// The sources of operations, and the values fetched so far.
#[repr(C)]
pub struct Sources {
    spec: *const ProbeSpec,
    /// Index of the first operation.
    first: u8,
    /// Number of operations.
    n: u8,
    /// 1: some operations read data, which [`fetch`] skips.
    has_data: u8,
    /// [`WAITS`] and [`ABSENT`].
    waits: u8,
    /// One bit for each value that could not be read.
    unread: u16,
    /// Bytes of the stack from the stack pointer upwards that are no longer valid, divided by
    /// [`DEAD_UNIT`]. Nothing is read there.
    dead: u16,
    at: [u64; VALUES as usize + SLOTS],
}

/// One operation, decoded.
#[derive(Clone, Copy)]
pub struct Op(u64, u64);

impl Op {
    /// One of `FETCH_*`.
    #[inline(always)]
    pub fn how(self) -> u8 {
        (self.0 >> 16) as u8
    }

    /// Value slot or tag.
    #[inline(always)]
    pub fn to(self) -> u8 {
        (self.0 >> 40) as u8
    }

    /// Added to an address.
    #[inline(always)]
    fn offset(self) -> u64 {
        i64::from(self.1 as i32) as u64
    }
}

impl Sources {
    /// Sets the sources of the operations `first..first + n` of a spec, on the caller's stack.
    /// Field by field, because the compiler would otherwise call memset.
    #[inline(always)]
    pub fn set(
        this: *mut Self,
        spec: *const ProbeSpec,
        (first, n): (u8, u8),
        arguments: [u64; 6],
        (sp, result): (u64, u64),
    ) {
        // SAFETY: memory of the caller's.
        unsafe {
            (&raw mut (*this).spec).write_volatile(spec);
            (&raw mut (*this).first).write_volatile(first);
            (&raw mut (*this).n).write_volatile(n);
            (&raw mut (*this).unread).write_volatile(0);
            (&raw mut (*this).has_data).write_volatile(0);
            (&raw mut (*this).waits).write_volatile(0);
            (&raw mut (*this).dead).write_volatile(0);
            let at = (&raw mut (*this).at).cast::<u64>();
            for (i, argument) in arguments.into_iter().enumerate() {
                at.add(i).write_volatile(argument);
            }
            at.add(STACK as usize).write_volatile(sp);
            at.add(RESULT as usize).write_volatile(result);
            for slot in 0..SLOTS {
                at.add(VALUES as usize + slot).write_volatile(0);
            }
        }
    }

    /// Value of the slot `slot`, a constant.
    #[inline(always)]
    pub fn value(&self, slot: usize) -> u64 {
        self.at[VALUES as usize + slot]
    }

    /// Sets the value of the slot `slot`, a constant.
    #[inline(always)]
    pub fn set_value(&mut self, slot: usize, value: u64) {
        self.at[VALUES as usize + slot] = value;
    }

    /// One bit for each value that could not be read.
    #[inline(always)]
    pub fn unread(&self) -> u32 {
        self.unread.into()
    }

    /// Marks values as unread.
    #[inline(always)]
    pub fn set_unread(&mut self, unread: u32) {
        self.unread = unread as u16;
    }

    /// Declares the first `bytes` of the stack from the stack pointer upwards to be no longer
    /// valid. A value there counts as unread.
    #[inline(always)]
    pub fn set_dead(&mut self, bytes: u64) {
        let units = bytes.wrapping_add(DEAD_UNIT - 1) / DEAD_UNIT;
        self.dead = if units > u64::from(u16::MAX) {
            u16::MAX
        } else {
            units as u16
        };
    }

    /// Continues with the operations `first..first + n`.
    #[inline(always)]
    pub fn go_on(&mut self, (first, n): (u8, u8)) {
        self.first = first;
        self.n = n;
    }

    /// Marks as unread the values beyond the first `bytes` of the memory that argument 2 points
    /// to, and the values that depend on them.
    #[inline(always)]
    pub fn unread_beyond(&mut self, bytes: u64) {
        let mut beyond = Beyond {
            sources: self,
            bytes,
        };
        // SAFETY: the callback has bpf_loop's signature; the context lives on this frame's
        // stack for the whole call.
        unsafe {
            bpf_loop(
                (*beyond.sources).len(),
                mark_beyond as *mut c_void,
                (&raw mut beyond).cast(),
                0,
            );
        }
    }

    /// Marks as unread all values that the operations would fetch, instead of fetching them.
    #[inline(always)]
    pub fn unread_all(&mut self) {
        for index in 0..MAX_OPS as u64 {
            if index >= u64::from(self.len()) {
                break;
            }
            let op = self.op(index);
            if matches!(op.how(), FETCH_VALUE | FETCH_READ) {
                self.unread |= 1 << (op.to() & (SLOTS as u8 - 1));
            }
        }
    }

    /// Whether some operations read data.
    #[inline(always)]
    pub fn has_data(&self) -> bool {
        self.has_data != 0
    }

    /// Whether the program may wait for a page of this process.
    #[inline(always)]
    pub fn waits(&self) -> bool {
        self.waits & WAITS != 0
    }

    /// Whether a value was not in memory and was not waited for.
    #[inline(always)]
    pub fn is_absent(&self) -> bool {
        self.waits & ABSENT != 0
    }

    /// Number of operations.
    #[inline(always)]
    pub fn len(&self) -> u32 {
        self.n.into()
    }

    /// Operation `index`.
    #[inline(always)]
    pub fn op(&self, index: u64) -> Op {
        const { assert!(MAX_OPS.is_power_of_two()) };
        let mut at = u64::from(self.first) + index;
        // SAFETY: arithmetic on one register, in assembly because the compiler must not leave
        // the mask out. By the mask the operation is within the spec.
        unsafe {
            asm!("{0} &= {mask}", inout(reg) at, mask = const MAX_OPS - 1,
                options(pure, nomem, nostack));
            let op = (&raw const (*self.spec).ops)
                .cast::<[u64; 2]>()
                .add(at as usize);
            Op((*op)[0], (*op)[1])
        }
    }

    /// An operation's base, and whether it is known: it may be a value that could not be read.
    #[inline(always)]
    fn base(&self, op: Op) -> (u64, bool) {
        let index = op.0 >> 8;
        match op.0 as u8 & 3 {
            FROM_ARGUMENT => (self.source(index & 7), true),
            FROM_STACK => (self.source(STACK), true),
            FROM_VALUE => {
                let slot = index & (SLOTS as u64 - 1);
                (
                    self.source(VALUES + slot),
                    u64::from(self.unread) >> slot & 1 == 0,
                )
            }
            _ => (self.source(RESULT), true),
        }
    }

    /// The address that an operation reads at; `None` if it depends on a value that could not
    /// be read.
    #[inline(always)]
    pub fn address(&self, op: Op) -> Option<u64> {
        let (base, known) = self.base(op);
        known.then(|| base.wrapping_add(op.offset()))
    }

    /// Bytes of an operation's data, from its count.
    #[inline(always)]
    pub fn bytes(&self, op: Op) -> u64 {
        let count = self.source(VALUES + (op.0 >> 48 & (SLOTS as u64 - 1)));
        let unit = op.0 >> 56;
        // A larger count is not valid, and the product must not wrap.
        if count >> 48 == 0 {
            count * unit
        } else {
            u64::MAX
        }
    }

    #[inline(always)]
    fn source(&self, place: u64) -> u64 {
        let mut at = place;
        // SAFETY: arithmetic on one register, in assembly because the compiler must not leave
        // the mask out. The callers' indices are within the array.
        unsafe {
            asm!("{0} &= 31", inout(reg) at, options(pure, nomem, nostack));
            (&raw const self.at).cast::<u64>().add(at as usize).read()
        }
    }
}

/// Context of the loop that marks values as unread.
#[repr(C)]
struct Beyond {
    sources: *mut Sources,
    bytes: u64,
}

/// `bpf_loop` callback: checks one operation. A loop in the program itself would be verified
/// for each outcome of each operation.
extern "C" fn mark_beyond(index: u64, beyond: *mut Beyond) -> i64 {
    // SAFETY: the context is unread_beyond's.
    let (s, bytes) = unsafe { (&mut *(*beyond).sources, (*beyond).bytes) };
    let op = s.op(index);
    let depends = match op.0 as u8 & 3 {
        FROM_ARGUMENT => op.offset().wrapping_add(op.0 >> 24 & 0xff) > bytes,
        _ => !s.base(op).1,
    };
    if depends && op.how() == FETCH_READ {
        s.unread |= 1 << (op.to() & (SLOTS as u8 - 1));
    }
    0
}

/// Real user id of the current process, in the initial user namespace.
#[inline(always)]
pub fn current_uid() -> u32 {
    // SAFETY: a helper without preconditions.
    unsafe { bpf_get_current_uid_gid() as u32 }
}

/// Whether a program may wait for pages of the current process. A process can prevent such a
/// page from ever arriving (FUSE, userfaultfd). A program that waits for it then blocks
/// everyone who detaches any program of the machine. Root does not do that, and aiprof's caller
/// can only block himself.
#[inline(always)]
fn may_wait() -> bool {
    let uid = current_uid();
    uid == 0 || uid == setting!(caller_uid)
}

/// Fetches the values. A sleepable program (`SLEEP`) faults in a page that is not resident, if
/// it may wait for it. Elsewhere values on such a page cannot be read.
#[inline(always)]
pub fn fetch<const SLEEP: bool>(sources: &mut Sources) {
    if SLEEP && may_wait() {
        sources.waits |= WAITS;
    }
    // SAFETY: the callback has bpf_loop's signature; the context lives on the
    // caller's stack for the whole call.
    unsafe {
        bpf_loop(
            sources.len(),
            fetch_one::<SLEEP> as *mut c_void,
            (&raw mut *sources).cast(),
            0,
        );
    }
}

/// `bpf_loop` callback: one operation.
extern "C" fn fetch_one<const SLEEP: bool>(index: u64, sources: *mut Sources) -> i64 {
    // SAFETY: the context is fetch's.
    let s = unsafe { &mut *sources };
    let op = s.op(index);
    let to = u64::from(op.to()) & (SLOTS as u64 - 1);
    let (base, known) = s.base(op);
    let size = op.0 >> 24;
    let mut value = 0;
    let mut read = known;
    match op.how() {
        FETCH_VALUE => {
            value = base >> (op.0 >> 32 & 63);
            // Clears the upper 8 - `size` bytes.
            let upper = 64u64.wrapping_sub(size << 3) & 63;
            value = value << upper >> upper;
        }
        FETCH_READ => {
            if known {
                let address = base.wrapping_add(op.offset());
                let waits = SLEEP && s.waits();
                (value, read) = read_value(address, size, waits);
                let behind = address.wrapping_sub(s.source(STACK));
                read &= behind >= u64::from(s.dead) * DEAD_UNIT;
                if SLEEP && !waits && !read && address >= LOWEST {
                    s.waits |= ABSENT;
                }
            }
        }
        _ => {
            s.has_data = 1;
            return 0;
        }
    }
    if !read {
        value = 0;
        s.unread |= 1 << to;
    }
    // SAFETY: in bounds by the mask.
    unsafe {
        (&raw mut s.at)
            .cast::<u64>()
            .add((VALUES + to) as usize)
            .write(value);
    }
    0
}

/// The `size` bytes of user memory at `address`, and whether they could be read.
#[inline(always)]
fn read_value(address: u64, size: u64, waits: bool) -> (u64, bool) {
    // Twice as large as needed, so that a mask can bound the size.
    let mut value = MaybeUninit::<[u64; 2]>::uninit();
    let to = value.as_mut_ptr().cast::<c_void>();
    let from = address as *const c_void;
    let mut size = size;
    // SAFETY: at most 15 bytes are written to 16 bytes on the stack; a bad source is an error.
    // The mask is in assembly, so that the verifier sees it.
    unsafe {
        asm!("{0} &= 15", inout(reg) size, options(pure, nomem, nostack));
        to.cast::<u64>().write_volatile(0);
        let rc = if waits {
            bpf_copy_from_user(to, size as u32, from)
        } else {
            bpf_probe_read_user(to, size as u32, from)
        };
        (to.cast::<u64>().read(), rc == 0)
    }
}
