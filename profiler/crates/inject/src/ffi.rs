//! The few functions of the C library that the helper needs.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

/// `timespec` of 64-bit Linux.
#[repr(C)]
#[derive(Default)]
struct Timespec {
    seconds: i64,
    nanoseconds: c_long,
}

/// `iovec`.
#[repr(C)]
struct IoVec {
    begin: *mut c_void,
    bytes: usize,
}

/// `sigset_t` of Linux, with room to spare.
#[repr(C)]
struct SignalSet([u64; 16]);

const CLOCK_MONOTONIC: c_int = 1;
/// A clock whose rate NTP does not adjust.
pub(crate) const CLOCK_MONOTONIC_RAW: c_int = 4;
/// `SYS_gettid`: the C library's own function is younger than some systems.
#[cfg(target_arch = "x86_64")]
const GETTID: c_long = 186;
#[cfg(not(target_arch = "x86_64"))]
const GETTID: c_long = 178;
const SIG_SETMASK: c_int = 2;
/// Flags of dlopen: resolves all symbols at once, and offers none to other libraries.
const NOW_LOCAL: c_int = 2;
/// Flag of dlopen: only if the library is loaded already.
const NO_LOAD: c_int = 4;

unsafe extern "C" {
    fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
    fn getpid() -> c_int;
    fn process_vm_readv(
        pid: c_int,
        to: *const IoVec,
        tos: usize,
        from: *const IoVec,
        froms: usize,
        flags: usize,
    ) -> isize;
    fn __errno_location() -> *mut c_int;
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn atexit(function: extern "C" fn()) -> c_int;
    fn pthread_atfork(
        before: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
    fn syscall(number: c_long, ...) -> c_long;
    fn pthread_sigmask(how: c_int, set: *const SignalSet, old: *mut SignalSet) -> c_int;
    fn malloc(bytes: usize) -> *mut c_void;
    fn free(memory: *mut c_void);
    fn strnlen(text: *const c_char, most: usize) -> usize;
}

/// Now, CLOCK_MONOTONIC nanoseconds.
pub(crate) fn now() -> u64 {
    time_of(CLOCK_MONOTONIC)
}

/// What a clock shows, nanoseconds.
pub(crate) fn time_of(clock: c_int) -> u64 {
    let mut time = Timespec::default();
    // SAFETY: the address of a timespec.
    unsafe { clock_gettime(clock, &raw mut time) };
    time.seconds.cast_unsigned() * 1_000_000_000 + time.nanoseconds.cast_unsigned()
}

/// This process, as it sees itself.
pub(crate) fn pid() -> u32 {
    // SAFETY: no preconditions.
    unsafe { getpid() }.cast_unsigned()
}

/// How often the process is the child of another one that had this state.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// This thread, as the kernel numbers it. It is asked once.
pub(crate) fn tid() -> u32 {
    thread_local! {
        static KNOWN: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
    }
    let forks = FORKS.load(Ordering::Relaxed);
    KNOWN.with(|known| match known.get() {
        (tid, at) if tid != 0 && at == forks => tid,
        _ => {
            // SAFETY: a system call without arguments.
            let tid = unsafe { syscall(GETTID) };
            let tid = u32::try_from(tid).unwrap_or(0);
            known.set((tid, forks));
            tid
        }
    })
}

/// How often the process is the child of another one that had this state.
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// In a child of the process: its thread has another number.
pub(crate) fn forget_tids() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Whether memory can be read: a program may hand a driver what it refuses. Where that
/// cannot be found out, it is believed.
pub(crate) fn is_readable(begin: *const c_void, bytes: usize) -> bool {
    const BAD_ADDRESS: c_int = 14;
    let mut copy = vec![0_u8; bytes];
    let to = IoVec {
        begin: copy.as_mut_ptr().cast(),
        bytes,
    };
    let from = IoVec {
        begin: begin.cast_mut(),
        bytes,
    };
    // SAFETY: the address of this thread's error number.
    let error = unsafe { __errno_location() };
    // SAFETY: as above.
    let before = unsafe { *error };
    // SAFETY: the kernel writes no more than `copy` has room for, and looks itself at what
    // it reads.
    let read = unsafe { process_vm_readv(getpid(), &raw const to, 1, &raw const from, 1, 0) };
    // SAFETY: as above; the program shall not see a change.
    let why = unsafe { std::ptr::replace(error, before) };
    match usize::try_from(read) {
        Ok(read) => read == bytes,
        Err(_) => why != BAD_ADDRESS,
    }
}

/// Has functions called before the process is copied, and after it in both copies.
pub(crate) fn around_fork(
    before: extern "C" fn(),
    parent: extern "C" fn(),
    child: extern "C" fn(),
) {
    // SAFETY: the functions stay where they are: the library is never unloaded.
    unsafe { pthread_atfork(Some(before), Some(parent), Some(child)) };
}

/// Has a function called in processes that are forked from this one.
pub(crate) fn in_children(function: extern "C" fn()) {
    // SAFETY: the function stays where it is: the library is never unloaded.
    unsafe { pthread_atfork(None, None, Some(function)) };
}

/// A library that is in the process, or that is loaded now.
pub(crate) fn library(name: &CStr, load: bool) -> Option<*mut c_void> {
    let flags = if load { NOW_LOCAL } else { NOW_LOCAL | NO_LOAD };
    // SAFETY: a NUL-terminated name.
    let library = unsafe { dlopen(name.as_ptr(), flags) };
    (!library.is_null()).then_some(library)
}

/// A symbol of a library.
pub(crate) fn symbol(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a library that dlopen gave, and a NUL-terminated name.
    let symbol = unsafe { dlsym(library, name.as_ptr()) };
    (!symbol.is_null()).then_some(symbol)
}

/// Has a function called when the program ends.
pub(crate) fn at_exit(function: extern "C" fn()) {
    // SAFETY: the function stays where it is: the library is never unloaded.
    unsafe { atexit(function) };
}

/// Runs something while this thread takes no signals: a thread that it starts takes none
/// either, so that none of the program's handlers runs there.
pub(crate) fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    let all = SignalSet([u64::MAX; 16]);
    let mut before = SignalSet([0; 16]);
    // SAFETY: two sets of signals, larger than the C library's.
    unsafe { pthread_sigmask(SIG_SETMASK, &raw const all, &raw mut before) };
    let result = work();
    // SAFETY: as above.
    unsafe { pthread_sigmask(SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    result
}

/// Memory of that many bytes, aligned to 16; null: there is none.
pub(crate) fn allocate(bytes: usize) -> *mut c_void {
    // SAFETY: no preconditions.
    unsafe { malloc(bytes) }
}

/// Gives memory back.
///
/// # Safety
/// It came from [`allocate`] and is no longer used.
pub(crate) unsafe fn release(memory: *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe { free(memory) };
}

/// The bytes of a NUL-terminated text, at most `most`.
///
/// # Safety
/// The text is valid until its NUL or that far, and does not change meanwhile.
pub(crate) unsafe fn text<'a>(text: *const c_char, most: usize) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(text.cast(), strnlen(text, most)) }
}
