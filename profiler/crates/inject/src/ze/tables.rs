//! The tables that the loader asks for: the driver fills them, the helper stands in front
//! of some of their functions.

use super::abi::{FUNCTIONS, SUCCESS, ZeFunction, ZeResult, ZeTable};
use super::{append, calls, real};
use crate::ffi;
use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Bytes of the name below.
const NAME: usize = 1024;

/// The driver's name, as aiprof writes it here, and into the list of libraries that this
/// one needs: bytes that begin with this mark are replaced, a NUL behind them.
static DRIVER: [u8; NAME] = *include_bytes!("driver_name.txt");

/// The driver's functions that fill tables, by their place in the list below.
static GETTERS: [AtomicUsize; 16] = [const { AtomicUsize::new(0) }; 16];
/// Something that the helper needs is not there.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Without these nothing can be timed.
const NEEDED: [ZeFunction; 6] = [
    ZeFunction::PoolCreate,
    ZeFunction::EventCreate,
    ZeFunction::EventHostReset,
    ZeFunction::EventQueryStatus,
    ZeFunction::EventQueryKernelTimestamp,
    ZeFunction::DeviceGetGlobalTimestamps,
];

/// Nothing is timed, for the driver has not what it takes.
pub(super) fn is_refused() -> bool {
    REFUSED.load(Ordering::Relaxed)
}

/// Looks whether all is there that is needed: when the first list is made.
pub(super) fn can_time() -> bool {
    let can = NEEDED.iter().all(|function| real::has(*function));
    if !can {
        REFUSED.store(true, Ordering::Relaxed);
    }
    can
}

/// The driver.
fn driver() -> Option<*mut c_void> {
    static FOUND: OnceLock<Option<usize>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let name = std::hint::black_box(&DRIVER);
        let name = CStr::from_bytes_until_nul(name).ok()?;
        // It is there: this library needs it.
        ffi::library(name, false).map(|library| library as usize)
    });
    found.map(|library| library as *mut c_void)
}

/// Has the driver fill a table, and puts the helper's functions into it.
///
/// # Safety
/// `table` is null, or the caller's table of that kind, of that version.
unsafe fn fill(at: usize, name: &CStr, kind: ZeTable, version: u32, table: *mut usize) -> ZeResult {
    type Getter = unsafe extern "C-unwind" fn(u32, *mut usize) -> ZeResult;
    let known = GETTERS
        .get(at)
        .map_or(0, |getter| getter.load(Ordering::Acquire));
    let address = match known {
        0 => driver()
            .and_then(|driver| ffi::symbol(driver, name))
            .map_or(0, |symbol| symbol as usize),
        known => known,
    };
    if address == 0 {
        return UNSUPPORTED;
    }
    if let Some(getter) = GETTERS.get(at) {
        getter.store(address, Ordering::Release);
    }
    // SAFETY: a function of that name has that type; the caller's promise.
    let result = unsafe { std::mem::transmute::<usize, Getter>(address)(version, table) };
    if result != SUCCESS || table.is_null() {
        return result;
    }
    let has = |since: u32| version & 0xffff >= since;
    for place in FUNCTIONS.iter().filter(|p| p.table == kind && has(p.since)) {
        // SAFETY: the version's table has this place.
        let entry = unsafe { table.add(place.index) };
        // SAFETY: as above.
        let theirs = unsafe { entry.read() };
        let own = wrapper(place.function);
        if theirs == 0 || Some(theirs) == own {
            continue;
        }
        real::remember(place.function, theirs);
        if let Some(own) = own {
            // SAFETY: as above.
            unsafe { entry.write(own) };
        }
    }
    result
}

/// `ZE_RESULT_ERROR_UNSUPPORTED_FEATURE`.
const UNSUPPORTED: ZeResult = 0x7800_0003;

/// The helper's function in front of a driver's.
fn wrapper(function: ZeFunction) -> Option<usize> {
    calls::wrapper(function).or_else(|| append::wrapper(function))
}

/// What a program gets that asks for a function by its name: the helper's, if it stands in
/// front of that one.
pub(super) fn replaced(name: *const c_char, theirs: usize) -> usize {
    if theirs == 0 {
        return theirs;
    }
    // SAFETY: the driver has found a function of that name.
    let name = unsafe { super::abi::text(name) };
    let place = FUNCTIONS.iter().find(|place| place.text == name);
    let Some((place, own)) = place.and_then(|p| Some((p, wrapper(p.function)?))) else {
        return theirs;
    };
    // The driver may have one function of a name for tables, and another one here.
    match real::address(place.function) {
        0 => real::remember(place.function, theirs),
        known if known == theirs => {}
        _ => return theirs,
    }
    own
}

/// Defines the exported functions.
macro_rules! getters {
    ($($at:literal $name:ident $text:literal $table:ident,)*) => {
        $(
            #[doc = concat!("Fills a table of Level Zero's: see `ze_ddi.h`.")]
            ///
            /// # Safety
            /// `table` is null, or the caller's table of that kind, of that version.
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C-unwind" fn $name(version: u32, table: *mut usize) -> ZeResult {
                // SAFETY: the caller's promise.
                unsafe { fill($at, $text, ZeTable::$table, version, table) }
            }
        )*
    };
}

getters! {
    0 zeGetDriverProcAddrTable c"zeGetDriverProcAddrTable" Driver,
    1 zeGetDeviceProcAddrTable c"zeGetDeviceProcAddrTable" Device,
    2 zeGetContextProcAddrTable c"zeGetContextProcAddrTable" Context,
    3 zeGetCommandQueueProcAddrTable c"zeGetCommandQueueProcAddrTable" Queue,
    4 zeGetCommandListProcAddrTable c"zeGetCommandListProcAddrTable" List,
    5 zeGetFenceProcAddrTable c"zeGetFenceProcAddrTable" Fence,
    6 zeGetEventPoolProcAddrTable c"zeGetEventPoolProcAddrTable" Pool,
    7 zeGetEventProcAddrTable c"zeGetEventProcAddrTable" Event,
    8 zeGetKernelProcAddrTable c"zeGetKernelProcAddrTable" Kernel,
    9 zeGetCommandListExpProcAddrTable c"zeGetCommandListExpProcAddrTable" ListExp,
}
