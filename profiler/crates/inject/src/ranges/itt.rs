//! ITT: what the static part in programs asks of the library that `INTEL_LIBITTNOTIFY64`
//! names (ittapi: ittnotify.h, ittnotify_config.h, ittnotify_static.c of version 3).
//!
//! Each copy of the static part in a program asks by itself. What the helper does not know
//! stays as it is without a collector.

use super::nvtx::narrow;
use super::ring::{MarkId, MarkText, NewMark, mark};
use super::tables::{self, ITT_UNKNOWN, RangeTables};
use super::{plain, start};
use crate::timing::{
    MARK_END, MARK_MOMENT, MARK_POP, MARK_PUSH, MARK_START, MAX_RANGE_TEXT, RANGES_ITT,
};
use crate::{ffi, guarded};
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_ulong, c_void};

/// `ITT_MAGIC`.
const MAGIC: [u8; 8] = [0xed, 0xab, 0xab, 0xec, 0x0d, 0xee, 0xda, 0x30];
/// The major version that has the structures below.
const MAJOR: c_ulong = 3;
/// Words of a `pthread_mutex_t`.
#[cfg(target_arch = "aarch64")]
const MUTEX: usize = 6;
#[cfg(not(target_arch = "aarch64"))]
const MUTEX: usize = 5;
/// Most functions, and most domains, of a program that are looked at.
const MOST: usize = 4096;

/// `__itt_api_info`: a function that a collector may have.
#[repr(C)]
struct ApiInfo {
    name: *const c_char,
    function: *mut *const c_void,
    init: *const c_void,
    null: *const c_void,
    group: c_int,
}

/// The begin of `__itt_global`.
#[repr(C)]
struct Global {
    magic: [u8; 8],
    version: [c_ulong; 3],
    api_initialized: c_long,
    mutex_initialized: c_long,
    atomic_counter: c_long,
    mutex: [u64; MUTEX],
    lib: *const c_void,
    error_handler: *const c_void,
    dll_path: *const c_void,
    api_list: *const ApiInfo,
    next: *const c_void,
    thread_list: *const c_void,
    domain_list: *mut IttDomain,
}

/// `__itt_domain`. In `extra1`, which is a collector's own, the helper has its number.
#[repr(C)]
struct IttDomain {
    flags: c_int,
    name: *const c_char,
    wide_name: *const c_void,
    extra1: c_int,
    extra2: *const c_void,
    next: *mut IttDomain,
}

/// `__itt_string_handle`.
#[repr(C)]
struct StringHandle {
    text: *const c_char,
    wide_text: *const c_void,
    extra1: c_int,
    extra2: *const c_void,
    next: *const c_void,
}

/// `__itt_id`.
#[repr(C)]
#[derive(Clone, Copy)]
struct IttId([u64; 3]);

/// What the static part calls first.
///
/// # Safety
/// As ittnotify_static.c has it: `global` is its own description, or null.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __itt_api_init(global: *const c_void, _: c_int) {
    guarded(|| {
        // SAFETY: the caller's promise: it begins with its magic number and version.
        let Some(global) = (unsafe { global.cast::<Global>().as_ref() }) else {
            return;
        };
        let [major, ..] = global.version;
        if global.magic == MAGIC && major == MAJOR {
            start();
            // SAFETY: the structures are those of this version.
            unsafe {
                put_functions(global);
                know_domains(global);
            }
        }
    });
}

/// # Safety
/// A description of the static part, of this version.
unsafe fn put_functions(global: &Global) {
    let known = functions();
    let mut at = global.api_list;
    for _ in 0..MOST {
        // SAFETY: an element of the list, which ends with one without a name.
        let Some(info) = (unsafe { at.as_ref() }).filter(|info| !info.name.is_null()) else {
            return;
        };
        // SAFETY: a NUL-terminated name.
        let name = unsafe { CStr::from_ptr(info.name) };
        let found = known.iter().find(|(known, _)| *known == name);
        let function = found.map_or(info.null, |(_, function)| *function);
        if !info.function.is_null() {
            // SAFETY: the place of a pointer to the function of that name.
            unsafe { *info.function = function };
        }
        // SAFETY: within the list, or its end.
        at = unsafe { at.add(1) };
    }
}

/// Domains that were created before.
///
/// # Safety
/// As [`put_functions`].
unsafe fn know_domains(global: &Global) {
    let mut at = global.domain_list;
    for _ in 0..MOST {
        // SAFETY: an element of the list, which ends with null.
        let Some(domain) = (unsafe { at.as_mut() }) else {
            return;
        };
        // SAFETY: a NUL-terminated name, or null.
        let name = unsafe { narrow(domain.name, <[u8]>::to_vec) };
        let address = at as usize;
        tables::with(|tables| {
            domain.extra1 = tables.domain_number(RANGES_ITT, &name).into();
            tables.itt_domains.entry(name.into()).or_insert(address);
        });
        at = domain.next;
    }
}

/// The functions that the helper has, by their names in the list.
fn functions() -> [(&'static CStr, *const c_void); 15] {
    [
        (c"__itt_domain_create", domain_create as *const c_void),
        (
            c"__itt_string_handle_create",
            string_handle_create as *const c_void,
        ),
        (c"__itt_task_begin", task_begin as *const c_void),
        (c"__itt_task_begin_fn", task_begin_fn as *const c_void),
        (c"__itt_task_end", task_end as *const c_void),
        (c"__itt_task_begin_overlapped", range_begin as *const c_void),
        (c"__itt_task_end_overlapped", range_end as *const c_void),
        (c"__itt_region_begin", range_begin as *const c_void),
        (c"__itt_region_end", range_end as *const c_void),
        (c"__itt_frame_begin_v3", frame_begin as *const c_void),
        (c"__itt_frame_end_v3", frame_end as *const c_void),
        (c"__itt_marker", marker as *const c_void),
        (c"__itt_event_create", event_create as *const c_void),
        (c"__itt_event_start", event_start as *const c_void),
        (c"__itt_event_end", event_end as *const c_void),
    ]
}

/// The number of a domain.
///
/// # Safety
/// A domain that one of the copies has made, or null.
unsafe fn domain_of(domain: *const IttDomain) -> u16 {
    // SAFETY: the caller's promise.
    let number = unsafe { domain.as_ref() }.map(|domain| domain.extra1);
    number
        .and_then(|number| u16::try_from(number).ok())
        .filter(|number| *number != 0)
        .unwrap_or(ITT_UNKNOWN)
}

/// Gives the text of a handle to `take`.
///
/// # Safety
/// A handle that one of the copies has made, or null.
unsafe fn text_of(handle: *const StringHandle, take: impl FnOnce(&[u8])) {
    // SAFETY: the caller's promise.
    let text = unsafe { handle.as_ref() }.map_or(std::ptr::null(), |handle| handle.text);
    // SAFETY: a NUL-terminated text, or null.
    unsafe { narrow(text, take) };
}

fn with_text(new: NewMark<'_>) -> impl FnOnce(&[u8]) {
    move |text| {
        mark(&NewMark {
            text: MarkText::Bytes(text),
            ..new
        });
    }
}

/// A text of the program's that stays for ever.
fn lasting(text: &[u8]) -> *const c_char {
    let bytes: Vec<u8> = text.iter().copied().filter(|byte| *byte != 0).collect();
    CString::new(bytes).map_or(std::ptr::null(), |text| text.into_raw().cast_const())
}

impl RangeTables {
    fn itt_domain(&mut self, name: &[u8]) -> usize {
        if let Some(&known) = self.itt_domains.get(name) {
            return known;
        }
        let number = self.domain_number(RANGES_ITT, name);
        let domain = Box::into_raw(Box::new(IttDomain {
            flags: 1,
            name: lasting(name),
            wide_name: std::ptr::null(),
            extra1: number.into(),
            extra2: std::ptr::null(),
            next: std::ptr::null_mut(),
        })) as usize;
        // Those for which there is no number share one handle.
        let name = if number == ITT_UNKNOWN { &[] } else { name };
        self.itt_domains.insert(name.into(), domain);
        domain
    }

    fn itt_string(&mut self, text: &[u8]) -> usize {
        if let Some(&known) = self.itt_strings.get(text) {
            return known;
        }
        let has_room = self.has_room(3 * text.len());
        let text = if has_room { text } else { b"[too many names]" };
        if let Some(&known) = self.itt_strings.get(text) {
            return known;
        }
        let handle = Box::into_raw(Box::new(StringHandle {
            text: lasting(text),
            wide_text: std::ptr::null(),
            extra1: 0,
            extra2: std::ptr::null(),
            next: std::ptr::null(),
        })) as usize;
        self.itt_strings.insert(text.into(), handle);
        handle
    }
}

// SAFETY of all functions below: they are called by the static part, with arguments as
// ittnotify.h has them.

/// The handle that the tables have for a text, or make for it.
///
/// # Safety
/// A NUL-terminated text, or null.
unsafe fn handle<T>(text: *const c_char, of: fn(&mut RangeTables, &[u8]) -> usize) -> *const T {
    let mut handle = 0;
    // SAFETY: the caller's promise.
    unsafe {
        narrow(text, |text| {
            guarded(|| handle = tables::with(|tables| of(tables, text)));
        });
    }
    std::ptr::with_exposed_provenance(handle)
}

unsafe extern "C" fn domain_create(name: *const c_char) -> *const IttDomain {
    // SAFETY: as above.
    unsafe { handle(name, RangeTables::itt_domain) }
}

unsafe extern "C" fn string_handle_create(text: *const c_char) -> *const StringHandle {
    // SAFETY: as above.
    unsafe { handle(text, RangeTables::itt_string) }
}

unsafe extern "C" fn task_begin(
    domain: *const IttDomain,
    _: IttId,
    _: IttId,
    name: *const StringHandle,
) {
    // SAFETY: as above.
    unsafe { text_of(name, with_text(plain(MARK_PUSH, domain_of(domain)))) };
}

unsafe extern "C" fn task_begin_fn(
    domain: *const IttDomain,
    _: IttId,
    _: IttId,
    function: *const c_void,
) {
    let text = format!("function {function:p}");
    // SAFETY: as above.
    with_text(plain(MARK_PUSH, unsafe { domain_of(domain) }))(text.as_bytes());
}

unsafe extern "C" fn task_end(domain: *const IttDomain) {
    // SAFETY: as above.
    mark(&plain(MARK_POP, unsafe { domain_of(domain) }));
}

unsafe extern "C" fn range_begin(
    domain: *const IttDomain,
    id: IttId,
    _: IttId,
    name: *const StringHandle,
) {
    // SAFETY: as above.
    let mut new = plain(MARK_START, unsafe { domain_of(domain) });
    new.id = MarkId::Long(id.0);
    // SAFETY: as above.
    unsafe { text_of(name, with_text(new)) };
}

unsafe extern "C" fn range_end(domain: *const IttDomain, id: IttId) {
    // SAFETY: as above.
    let mut new = plain(MARK_END, unsafe { domain_of(domain) });
    new.id = MarkId::Long(id.0);
    mark(&new);
}

/// A frame: its name is its domain's, and its number may be left out.
unsafe fn frame(kind: u8, domain: *const IttDomain, id: *const IttId) -> NewMark<'static> {
    // SAFETY: as above.
    let mut new = plain(kind, unsafe { domain_of(domain) });
    // SAFETY: a number, or null.
    new.id = MarkId::Long(unsafe { id.as_ref() }.map_or([0; 3], |id| id.0));
    new
}

unsafe extern "C" fn frame_begin(domain: *const IttDomain, id: *const IttId) {
    // SAFETY: as above.
    unsafe {
        let new = frame(MARK_START, domain, id);
        let name = domain
            .as_ref()
            .map_or(std::ptr::null(), |domain| domain.name);
        narrow(name, with_text(new));
    }
}

unsafe extern "C" fn frame_end(domain: *const IttDomain, id: *const IttId) {
    // SAFETY: as above.
    mark(&unsafe { frame(MARK_END, domain, id) });
}

unsafe extern "C" fn marker(
    domain: *const IttDomain,
    _: IttId,
    name: *const StringHandle,
    _: c_int,
) {
    // SAFETY: as above.
    unsafe { text_of(name, with_text(plain(MARK_MOMENT, domain_of(domain)))) };
}

unsafe extern "C" fn event_create(name: *const c_char, len: c_int) -> c_int {
    let mut number = 0;
    // Its length is an argument, for those that do not end.
    let len = usize::try_from(len).unwrap_or(0).min(MAX_RANGE_TEXT);
    if !name.is_null() {
        // SAFETY: as above.
        let name = unsafe { ffi::text(name, len) };
        guarded(|| number = tables::with(|tables| tables.text_number(name)));
    }
    c_int::try_from(number).unwrap_or(0)
}

/// A mark of an event: its number is that of its name.
fn event(kind: u8, event: c_int) -> NewMark<'static> {
    let number = u32::try_from(event).unwrap_or(0);
    let mut new = plain(kind, ITT_UNKNOWN);
    new.id = MarkId::Short(number.into());
    new
}

unsafe extern "C" fn event_start(number: c_int) -> c_int {
    let mut new = event(MARK_START, number);
    new.text = MarkText::Registered(u32::try_from(number).unwrap_or(0));
    mark(&new);
    0
}

unsafe extern "C" fn event_end(number: c_int) -> c_int {
    mark(&event(MARK_END, number));
    0
}
