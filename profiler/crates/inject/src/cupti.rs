//! CUDA: CUPTI's activity records.
//!
//! Offsets are those of cupti_activity.h of CUDA 11.8, 12.9 and 13.0. The fields that are
//! read here are at the same places since version 8 of the record of kernels, 5 of copies
//! and 4 of fills.

use crate::batch::{Batch, head};
use crate::thread::{self, Watch};
use crate::timing::{
    MAX_TIMING_NAME, TIMING_CUDA, TimingCall, TimingRefused, TimingWork, WORK_COPY, WORK_FILL,
    WORK_KERNEL,
};
use crate::{ffi, guarded};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Names of the library, newest first, of which one may be in the program already.
const LIBRARIES: [&CStr; 5] = [
    c"libcupti.so.13",
    c"libcupti.so.12",
    c"libcupti.so.11.8",
    c"libcupti.so.11.7",
    c"libcupti.so",
];
/// Paths where the library may be, with colons between them: what aiprof has found.
const PATHS: &str = "AIPROF_CUPTI";
/// `CUPTI_SUCCESS`.
const SUCCESS: c_int = 0;
/// `CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM`: threads as the kernel numbers them.
const SYSTEM_THREADS: c_int = 1;
/// `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED`: also what is not complete.
const FORCED: u32 = 1;
/// Bytes of a buffer of records.
const BUFFER: usize = 1 << 20;
/// Most buffers at a time: beyond it CUPTI drops records, and counts them.
const MAX_BUFFERS: usize = 64;
/// How often what is complete is fetched.
const PERIOD: Duration = Duration::from_millis(100);

/// `CUPTI_ACTIVITY_KIND_*`.
mod kind {
    pub(super) const MEMCPY: u32 = 1;
    pub(super) const MEMSET: u32 = 2;
    pub(super) const KERNEL: u32 = 3;
    pub(super) const DRIVER: u32 = 4;
    pub(super) const RUNTIME: u32 = 5;
    pub(super) const CONCURRENT_KERNEL: u32 = 10;
    pub(super) const MEMCPY_PEER: u32 = 22;
}

/// Calls of the driver that give work, by `CUPTI_DRIVER_TRACE_CBID_*` of CUDA 13.0.
const DRIVER_CALLS: [RangeInclusive<u32>; 40] = [
    43..=43,
    45..=45,
    47..=47,
    49..=49,
    51..=51,
    53..=58,
    60..=60,
    62..=62,
    64..=64,
    66..=69,
    71..=71,
    73..=73,
    75..=75,
    77..=77,
    79..=79,
    81..=81,
    115..=117,
    216..=216,
    218..=218,
    220..=220,
    222..=222,
    224..=224,
    248..=254,
    276..=293,
    305..=307,
    318..=321,
    397..=416,
    418..=433,
    442..=442,
    467..=468,
    477..=478,
    480..=480,
    514..=515,
    527..=528,
    652..=653,
    716..=717,
    776..=779,
    784..=785,
    796..=799,
    226..=226,
];
/// The newest call that the list takes into account; newer ones are unknown.
const LAST_DRIVER_CALL: u32 = 807;
/// The same of the runtime, by `CUPTI_RUNTIME_TRACE_CBID_*`.
const RUNTIME_CALLS: [RangeInclusive<u32>; 19] = [
    13..=13,
    31..=52,
    142..=145,
    160..=163,
    211..=211,
    213..=236,
    243..=246,
    249..=250,
    252..=253,
    269..=270,
    272..=272,
    284..=285,
    311..=312,
    430..=431,
    449..=450,
    482..=485,
    487..=488,
    505..=506,
    509..=512,
];
/// As [`LAST_DRIVER_CALL`].
const LAST_RUNTIME_CALL: u32 = 523;

type Next = unsafe extern "C" fn(*mut u8, usize, *mut *mut u8) -> c_int;
type Dropped = unsafe extern "C" fn(*mut c_void, u32, *mut usize) -> c_int;
type FlushAll = unsafe extern "C" fn(u32) -> c_int;
type Enable = unsafe extern "C" fn(u32) -> c_int;
type EnableCall = unsafe extern "C" fn(u32, u8) -> c_int;
type Requested = extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type Completed = extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);
type RegisterCallbacks = unsafe extern "C" fn(Requested, Completed) -> c_int;
type RegisterClock = unsafe extern "C" fn(extern "C" fn() -> u64) -> c_int;
type SetThreads = unsafe extern "C" fn(c_int) -> c_int;

/// The functions that are needed after the start.
struct Cupti {
    next: Next,
    dropped: Option<Dropped>,
    flush: FlushAll,
}

static CUPTI: OnceLock<Cupti> = OnceLock::new();
static BATCH: Mutex<Option<Batch>> = Mutex::new(None);
static BUFFERS: AtomicUsize = AtomicUsize::new(0);

/// Begins to record, once in a process.
pub(crate) fn start() {
    if CUPTI.get().is_some() {
        return;
    }
    let mut libraries = candidates().into_iter();
    let is_on = libraries.any(|library| begin(library).is_some());
    if is_on {
        ffi::at_exit(finish);
    } else {
        let mut batch = Batch::new(TIMING_CUDA);
        batch.push(&TimingRefused {
            record: head::<TimingRefused>(),
            pad: 0,
        });
        *lock() = Some(batch);
    }
    // Without it all is handed over at the end.
    let _ = thread::spawn(move || fetch(is_on));
}

/// Libraries to try: what the program has, else what aiprof has found, else what the
/// loader finds.
fn candidates() -> Vec<*mut c_void> {
    let mut own = LIBRARIES.iter();
    if let Some(library) = own.find_map(|name| ffi::library(name, false)) {
        return vec![library];
    }
    let paths = std::env::var(PATHS).unwrap_or_default();
    let paths = paths.split(':').filter(|path| !path.is_empty());
    let mut libraries: Vec<_> = paths
        .filter_map(|path| ffi::library(&CString::new(path).ok()?, true))
        .collect();
    libraries.extend(LIBRARIES.iter().filter_map(|name| ffi::library(name, true)));
    libraries
}

/// A function of a library.
///
/// # Safety
/// `F` is the type of that function's address.
unsafe fn function<F: Copy>(library: *mut c_void, name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let symbol = ffi::symbol(library, name)?;
    // SAFETY: an address of the same size; the caller's promise.
    Some(unsafe { std::mem::transmute_copy(&symbol) })
}

/// Has a library record; `None`: it cannot.
fn begin(library: *mut c_void) -> Option<()> {
    // SAFETY: the types are those of cupti_activity.h, here and below.
    let cupti = unsafe {
        Cupti {
            next: function(library, c"cuptiActivityGetNextRecord")?,
            dropped: function(library, c"cuptiActivityGetNumDroppedRecords"),
            flush: function(library, c"cuptiActivityFlushAll")?,
        }
    };
    // SAFETY: as above.
    let register: RegisterCallbacks =
        unsafe { function(library, c"cuptiActivityRegisterCallbacks")? };
    // SAFETY: as above.
    let enable: Enable = unsafe { function(library, c"cuptiActivityEnable")? };
    // SAFETY: as above.
    let clock: RegisterClock =
        unsafe { function(library, c"cuptiActivityRegisterTimestampCallback")? };
    // SAFETY: as above.
    let threads: SetThreads = unsafe { function(library, c"cuptiSetThreadIdType")? };
    // SAFETY: functions of CUPTI with arguments as its header wants them. The clock must
    // come before anything is recorded.
    let is_ready = unsafe {
        threads(SYSTEM_THREADS) == SUCCESS
            && clock(now) == SUCCESS
            && register(requested, completed) == SUCCESS
    };
    if !is_ready {
        return None;
    }
    CUPTI.set(cupti).ok()?;
    *lock() = Some(Batch::new(TIMING_CUDA));
    // SAFETY: as above.
    if unsafe { enable(kind::CONCURRENT_KERNEL) } != SUCCESS {
        return None;
    }
    for kind in [kind::MEMCPY, kind::MEMSET, kind::MEMCPY_PEER] {
        // Those that this library does not know are left out.
        // SAFETY: as above.
        unsafe { enable(kind) };
    }
    enable_calls(library, enable);
    Some(())
}

/// Has the calls recorded that give work: those alone where the library can choose.
fn enable_calls(library: *mut c_void, enable: Enable) {
    let chosen = [
        (
            c"cuptiActivityEnableDriverApi",
            &DRIVER_CALLS[..],
            kind::DRIVER,
        ),
        (
            c"cuptiActivityEnableRuntimeApi",
            &RUNTIME_CALLS[..],
            kind::RUNTIME,
        ),
    ];
    for (name, calls, kind) in chosen {
        // SAFETY: its type is that of cupti_activity.h.
        let choose: Option<EnableCall> = unsafe { function(library, name) };
        let mut is_chosen = false;
        if let Some(choose) = choose {
            for call in calls.iter().cloned().flatten() {
                // SAFETY: any number is allowed; unknown ones are refused.
                is_chosen |= unsafe { choose(call, 1) } == SUCCESS;
            }
        }
        if !is_chosen {
            // SAFETY: as in `begin`.
            unsafe { enable(kind) };
        }
    }
}

/// The clock of all records.
extern "C" fn now() -> u64 {
    ffi::now()
}

fn lock() -> MutexGuard<'static, Option<Batch>> {
    BATCH.lock().unwrap_or_else(PoisonError::into_inner)
}

/// CUPTI wants a buffer.
extern "C" fn requested(buffer: *mut *mut u8, bytes: *mut usize, records: *mut usize) {
    let many = BUFFERS.fetch_add(1, Ordering::Relaxed) >= MAX_BUFFERS;
    let memory = if many {
        std::ptr::null_mut()
    } else {
        ffi::allocate(BUFFER)
    };
    if memory.is_null() {
        BUFFERS.fetch_sub(1, Ordering::Relaxed);
    }
    // SAFETY: CUPTI's own variables.
    unsafe {
        *buffer = memory.cast();
        *bytes = if memory.is_null() { 0 } else { BUFFER };
        *records = 0;
    }
}

/// CUPTI gives a buffer back, with records in it.
extern "C" fn completed(
    context: *mut c_void,
    stream: u32,
    buffer: *mut u8,
    _: usize,
    valid: usize,
) {
    guarded(|| take(context, stream, buffer, valid));
    if !buffer.is_null() {
        BUFFERS.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: a buffer of `requested`, which CUPTI has given back.
        unsafe { ffi::release(buffer.cast()) };
    }
}

fn take(context: *mut c_void, stream: u32, buffer: *mut u8, valid: usize) {
    let Some(cupti) = CUPTI.get() else {
        return;
    };
    let mut batch = lock();
    let Some(batch) = batch.as_mut() else {
        return;
    };
    let mut record = std::ptr::null_mut();
    // SAFETY: a buffer of CUPTI's, and its own way through it.
    while valid > 0 && unsafe { (cupti.next)(buffer, valid, &raw mut record) } == SUCCESS {
        let at = (record as usize).wrapping_sub(buffer as usize);
        let Some(left) = valid.checked_sub(at).filter(|_| !record.is_null()) else {
            break;
        };
        // SAFETY: `left` bytes are within the buffer's valid part.
        read(unsafe { std::slice::from_raw_parts(record, left) }, batch);
    }
    if let Some(dropped) = cupti.dropped {
        let mut count = 0;
        // SAFETY: what `completed` was given, and a variable for the answer.
        unsafe { dropped(context, stream, &raw mut count) };
        batch.lost(count as u64);
    }
    batch.hand_over();
}

fn u32_at(record: &[u8], at: usize) -> Option<u32> {
    let bytes = record.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
}

fn u64_at(record: &[u8], at: usize) -> Option<u64> {
    let bytes = record.get(at..)?.first_chunk()?;
    Some(u64::from_ne_bytes(*bytes))
}

/// Reads a record; what follows it in the buffer may be there too.
fn read(record: &[u8], batch: &mut Batch) -> Option<()> {
    match u32_at(record, 0)? {
        kind @ (kind::DRIVER | kind::RUNTIME) => call(kind, record, batch),
        kind::KERNEL | kind::CONCURRENT_KERNEL => kernel(record, batch),
        kind::MEMCPY => {
            let direction = direction(*record.get(4)?);
            work(record, (WORK_COPY, direction), [32, 36, 40, 44], batch)
        }
        kind::MEMCPY_PEER => work(record, (WORK_COPY, 3), [32, 36, 40, 60], batch),
        kind::MEMSET => work(record, (WORK_FILL, 0), [32, 36, 40, 44], batch),
        _ => None,
    }
}

/// `CUpti_ActivityAPI`.
fn call(kind: u32, record: &[u8], batch: &mut Batch) -> Option<()> {
    let id = u32_at(record, 4)?;
    let (calls, last) = match kind {
        kind::DRIVER => (&DRIVER_CALLS[..], LAST_DRIVER_CALL),
        _ => (&RUNTIME_CALLS[..], LAST_RUNTIME_CALL),
    };
    if id <= last && !calls.iter().any(|range| range.contains(&id)) {
        return None;
    }
    batch.push(&TimingCall {
        record: head::<TimingCall>(),
        tid: u32_at(record, 28)?,
        pad: 0,
        correlation: u32_at(record, 32)?.into(),
        start_ns: u64_at(record, 8)?,
        end_ns: u64_at(record, 16)?,
    });
    Some(())
}

/// `CUpti_ActivityKernel8` and later.
fn kernel(record: &[u8], batch: &mut Batch) -> Option<()> {
    let name = u64_at(record, 104)?;
    if name != 0 {
        // SAFETY: CUPTI keeps the names of kernels as long as the program runs; on the
        // machines that have it, addresses are 64 bits.
        let text = unsafe { ffi::text(name as usize as *const c_char, MAX_TIMING_NAME) };
        batch.name(name, text);
    }
    let three = |at: usize| {
        Some([
            u32_at(record, at)?,
            u32_at(record, at + 4)?,
            u32_at(record, at + 8)?,
        ])
    };
    batch.push(&TimingWork {
        record: head::<TimingWork>(),
        what: WORK_KERNEL,
        device: u32_at(record, 40)?,
        context: u32_at(record, 44)?,
        direction: 0,
        stream: u32_at(record, 48)?.into(),
        correlation: u32_at(record, 92)?.into(),
        start_ns: u64_at(record, 16)?,
        end_ns: u64_at(record, 24)?,
        bytes: 0,
        name,
        groups: three(52)?,
        local: three(64)?,
    });
    Some(())
}

/// `CUpti_ActivityMemcpy5`, `...Memset4`, `...MemcpyPtoP4` and later; places of the device,
/// the context, the stream and the correlation.
fn work(
    record: &[u8],
    (what, direction): (u32, u32),
    [device, context, stream, correlation]: [usize; 4],
    batch: &mut Batch,
) -> Option<()> {
    batch.push(&TimingWork {
        record: head::<TimingWork>(),
        what,
        device: u32_at(record, device)?,
        context: u32_at(record, context)?,
        direction,
        stream: u32_at(record, stream)?.into(),
        correlation: u32_at(record, correlation)?.into(),
        start_ns: u64_at(record, 16)?,
        end_ns: u64_at(record, 24)?,
        bytes: u64_at(record, 8)?,
        ..TimingWork::default()
    });
    Some(())
}

/// The direction in aiprof's records for a `CUpti_ActivityMemcpyKind`.
fn direction(kind: u8) -> u32 {
    match kind {
        // HTOD, HTOA
        1 | 3 => 1,
        // DTOH, ATOH
        2 | 4 => 2,
        // ATOA, ATOD, DTOA, DTOD
        5..=8 => 4,
        // HTOH
        9 => 5,
        // PTOP
        10 => 3,
        _ => 0,
    }
}

/// Fetches complete records while the program runs. If nothing is recorded, it ends when
/// that was reported.
fn fetch(is_on: bool) {
    let mut watch = Watch::new();
    loop {
        std::thread::sleep(PERIOD);
        if is_on {
            flush(0);
        }
        let is_told = lock().as_mut().is_none_or(Batch::hand_over);
        if (is_told && !is_on) || watch.is_over() {
            return;
        }
    }
}

/// The program ends: what is there is all that will be.
extern "C" fn finish() {
    guarded(|| flush(FORCED));
}

fn flush(flag: u32) {
    if let Some(cupti) = CUPTI.get() {
        // SAFETY: CUPTI was started; it calls `completed`.
        unsafe { (cupti.flush)(flag) };
    }
}
