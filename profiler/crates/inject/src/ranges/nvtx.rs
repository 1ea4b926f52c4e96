//! NVTX: what the headers of version 3 ask of the library that `NVTX_INJECTION64_PATH` names
//! (nvToolsExt.h, nvtxDetail/nvtxTypes.h and nvtxInit.h).
//!
//! Each copy of the headers in a program asks by itself; their handles are the same.

use super::ring::{MarkId, MarkText, NewMark, count_lost, mark};
use super::tables::{self, NVTX_DEFAULT};
use super::{new_range, plain, start};
use crate::ffi;
use crate::guarded;
use crate::timing::{
    MARK_END, MARK_MOMENT, MARK_POP, MARK_PUSH, MARK_START, MARKS_LOST_TEXT, MAX_RANGE_TEXT,
    PAYLOAD_FLOAT, PAYLOAD_SIGNED, PAYLOAD_UNSIGNED, RANGES_NVTX,
};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// `NVTX_NO_PUSH_POP_TRACKING`: what a program gets without a tool.
const NO_LEVEL: c_int = -2;
/// `NVTX_ETID_CALLBACKS`.
const CALLBACKS: u32 = 1;
/// `NVTX_CB_MODULE_CORE`, `NVTX_CB_MODULE_CORE2`.
const CORE: c_uint = 1;
const CORE2: c_uint = 5;
/// `NVTX_MESSAGE_TYPE_*`.
const ASCII: i32 = 1;
const WIDE: i32 = 2;
const REGISTERED: i32 = 3;

/// `NvtxGetExportTableFunc_t`.
type GetExportTable = unsafe extern "C" fn(u32) -> *const c_void;
/// `NvtxFunctionTable`: places of pointers to functions.
type FunctionTable = *mut *mut *const c_void;
/// A handle that the helper gives: a number.
type Handle = *const c_void;

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct ExportedCallbacks {
    size: usize,
    table: Option<unsafe extern "C" fn(c_uint, *mut FunctionTable, *mut c_uint) -> c_int>,
}

/// `nvtxEventAttributes_v2`, and its older form, which is as long.
#[repr(C)]
struct EventAttributes {
    version: u16,
    size: u16,
    category: u32,
    color_kind: i32,
    color: u32,
    payload_kind: i32,
    reserved: i32,
    payload: u64,
    message_kind: i32,
    message: *const c_void,
}

/// What NVTX calls first. Gives 1: the helper is there.
///
/// # Safety
/// As nvtxTypes.h has it: `export` gives tables that stay.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn InitializeInjectionNvtx2(export: Option<GetExportTable>) -> c_int {
    guarded(|| {
        start();
        if let Some(export) = export {
            // SAFETY: the caller's promise.
            unsafe { put_functions(export) };
        }
    });
    1
}

/// # Safety
/// As [`InitializeInjectionNvtx2`].
unsafe fn put_functions(export: GetExportTable) {
    // SAFETY: a function of NVTX's, with one of its numbers.
    let callbacks = unsafe { export(CALLBACKS) }.cast::<ExportedCallbacks>();
    // SAFETY: a table of NVTX's, or null.
    let Some(callbacks) = (unsafe { callbacks.as_ref() }) else {
        return;
    };
    let Some(table_of) = callbacks
        .table
        .filter(|_| callbacks.size >= size_of::<ExportedCallbacks>())
    else {
        return;
    };
    for (module, functions) in [(CORE, &core()[..]), (CORE2, &core2()[..])] {
        let (mut table, mut size): (FunctionTable, c_uint) = (std::ptr::null_mut(), 0);
        // SAFETY: a function of NVTX's, with places for its answers.
        let is_there = unsafe { table_of(module, &raw mut table, &raw mut size) } == 1;
        if !is_there || table.is_null() {
            continue;
        }
        for &(number, function) in functions.iter().filter(|(number, _)| *number < size) {
            // SAFETY: within the table, by the size that NVTX gave.
            let place = unsafe { *table.add(number as usize) };
            if !place.is_null() {
                // SAFETY: the place of a pointer to a function of this type.
                unsafe { *place = function };
            }
        }
    }
}

/// `NVTX_CBID_CORE_*`.
fn core() -> [(c_uint, *const c_void); 13] {
    [
        (1, mark_ex as *const c_void),
        (2, mark_a as *const c_void),
        (3, mark_w as *const c_void),
        (4, range_start_ex as *const c_void),
        (5, range_start_a as *const c_void),
        (6, range_start_w as *const c_void),
        (7, range_end as *const c_void),
        (8, range_push_ex as *const c_void),
        (9, range_push_a as *const c_void),
        (10, range_push_w as *const c_void),
        (11, range_pop as *const c_void),
        (12, name_category_a as *const c_void),
        (13, name_category_w as *const c_void),
    ]
}

/// `NVTX_CBID_CORE2_*`.
fn core2() -> [(c_uint, *const c_void); 11] {
    [
        (1, domain_mark_ex as *const c_void),
        (2, domain_range_start_ex as *const c_void),
        (3, domain_range_end as *const c_void),
        (4, domain_range_push_ex as *const c_void),
        (5, domain_range_pop as *const c_void),
        (8, domain_name_category_a as *const c_void),
        (9, domain_name_category_w as *const c_void),
        (10, domain_register_string_a as *const c_void),
        (11, domain_register_string_w as *const c_void),
        (12, domain_create_a as *const c_void),
        (13, domain_create_w as *const c_void),
    ]
}

/// Gives the bytes of a text to `take`, cut where it is long.
///
/// # Safety
/// The text is NUL-terminated, or null.
pub(super) unsafe fn narrow<T>(text: *const c_char, take: impl FnOnce(&[u8]) -> T) -> T {
    if text.is_null() {
        return take(&[]);
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { ffi::text(text, MAX_RANGE_TEXT + 1) };
    if bytes.len() > MAX_RANGE_TEXT {
        count_lost(MARKS_LOST_TEXT, 1);
    }
    take(bytes.get(..MAX_RANGE_TEXT).unwrap_or(bytes))
}

/// As [`narrow`], of a text in `wchar_t`: gives it as UTF-8.
///
/// # Safety
/// As there.
unsafe fn wide<T>(text: *const u32, take: impl FnOnce(&[u8]) -> T) -> T {
    let mut bytes = [0_u8; MAX_RANGE_TEXT];
    let (mut used, mut at) = (0, 0);
    while !text.is_null() {
        // SAFETY: the caller's promise: nothing is read behind the NUL.
        let code = unsafe { text.add(at).read() };
        if code == 0 {
            break;
        }
        let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
        let Some(room) = bytes.get_mut(used..used + character.len_utf8()) else {
            count_lost(MARKS_LOST_TEXT, 1);
            break;
        };
        used += character.encode_utf8(room).len();
        at += 1;
    }
    take(bytes.get(..used).unwrap_or_default())
}

/// Writes a mark with what the attributes contain.
///
/// # Safety
/// As in nvToolsExt.h: attributes as long as their `size`, or null.
unsafe fn with_attributes(mut new: NewMark<'_>, attributes: *const EventAttributes) {
    // SAFETY: the caller's promise: the size is among the first fields.
    let is_whole = !attributes.is_null()
        && usize::from(unsafe { (&raw const (*attributes).size).read() })
            >= size_of::<EventAttributes>();
    if !is_whole {
        return mark(&new);
    }
    // SAFETY: it is that long.
    let attributes = unsafe { &*attributes };
    new.category = attributes.category;
    new.payload = payload(attributes.payload_kind, attributes.payload);
    let message = attributes.message;
    let with_text = |text: &[u8]| {
        mark(&NewMark {
            text: MarkText::Bytes(text),
            ..new
        });
    };
    match attributes.message_kind {
        // SAFETY: a text of this kind, by the caller's promise; here and below.
        ASCII => unsafe { narrow(message.cast(), with_text) },
        // SAFETY: as above.
        WIDE => unsafe { wide(message.cast(), with_text) },
        REGISTERED => mark(&NewMark {
            text: MarkText::Registered(message as usize as u32),
            ..new
        }),
        _ => mark(&new),
    }
}

/// `NVTX_PAYLOAD_TYPE_*`.
fn payload(kind: i32, value: u64) -> Option<(u8, u64)> {
    // Shorter ones are the first bytes of the union.
    let [a, b, c, d, ..] = value.to_ne_bytes();
    let short = [a, b, c, d];
    match kind {
        1 => Some((PAYLOAD_UNSIGNED, value)),
        2 => Some((PAYLOAD_SIGNED, value)),
        3 => Some((PAYLOAD_FLOAT, value)),
        4 => Some((PAYLOAD_UNSIGNED, u32::from_ne_bytes(short).into())),
        5 => {
            let value = i64::from(i32::from_ne_bytes(short));
            Some((PAYLOAD_SIGNED, value.cast_unsigned()))
        }
        6 => Some((
            PAYLOAD_FLOAT,
            f64::from(f32::from_ne_bytes(short)).to_bits(),
        )),
        _ => None,
    }
}

/// The domain of a handle.
fn domain_of(handle: Handle) -> u16 {
    u16::try_from(handle as usize).unwrap_or(NVTX_DEFAULT)
}

fn with_text(new: NewMark<'_>) -> impl FnOnce(&[u8]) {
    move |text| {
        mark(&NewMark {
            text: MarkText::Bytes(text),
            ..new
        });
    }
}

/// The begin of a range that may end on any thread, and its number.
fn starting(domain: u16) -> (NewMark<'static>, u64) {
    let range = new_range();
    let mut new = plain(MARK_START, domain);
    new.id = MarkId::Short(range);
    (new, range)
}

// SAFETY of all functions below: they are called by NVTX, with arguments as nvToolsExt.h
// has them.

unsafe extern "C" fn mark_ex(attributes: *const EventAttributes) {
    // SAFETY: as above.
    unsafe { with_attributes(plain(MARK_MOMENT, NVTX_DEFAULT), attributes) };
}

unsafe extern "C" fn mark_a(text: *const c_char) {
    // SAFETY: as above.
    unsafe { narrow(text, with_text(plain(MARK_MOMENT, NVTX_DEFAULT))) };
}

unsafe extern "C" fn mark_w(text: *const u32) {
    // SAFETY: as above.
    unsafe { wide(text, with_text(plain(MARK_MOMENT, NVTX_DEFAULT))) };
}

unsafe extern "C" fn range_start_ex(attributes: *const EventAttributes) -> u64 {
    let (new, range) = starting(NVTX_DEFAULT);
    // SAFETY: as above.
    unsafe { with_attributes(new, attributes) };
    range
}

unsafe extern "C" fn range_start_a(text: *const c_char) -> u64 {
    let (new, range) = starting(NVTX_DEFAULT);
    // SAFETY: as above.
    unsafe { narrow(text, with_text(new)) };
    range
}

unsafe extern "C" fn range_start_w(text: *const u32) -> u64 {
    let (new, range) = starting(NVTX_DEFAULT);
    // SAFETY: as above.
    unsafe { wide(text, with_text(new)) };
    range
}

unsafe extern "C" fn range_end(range: u64) {
    let mut new = plain(MARK_END, NVTX_DEFAULT);
    new.id = MarkId::Short(range);
    mark(&new);
}

unsafe extern "C" fn range_push_ex(attributes: *const EventAttributes) -> c_int {
    // SAFETY: as above.
    unsafe { with_attributes(plain(MARK_PUSH, NVTX_DEFAULT), attributes) };
    NO_LEVEL
}

unsafe extern "C" fn range_push_a(text: *const c_char) -> c_int {
    // SAFETY: as above.
    unsafe { narrow(text, with_text(plain(MARK_PUSH, NVTX_DEFAULT))) };
    NO_LEVEL
}

unsafe extern "C" fn range_push_w(text: *const u32) -> c_int {
    // SAFETY: as above.
    unsafe { wide(text, with_text(plain(MARK_PUSH, NVTX_DEFAULT))) };
    NO_LEVEL
}

unsafe extern "C" fn range_pop() -> c_int {
    mark(&plain(MARK_POP, NVTX_DEFAULT));
    NO_LEVEL
}

unsafe extern "C" fn domain_mark_ex(domain: Handle, attributes: *const EventAttributes) {
    // SAFETY: as above.
    unsafe { with_attributes(plain(MARK_MOMENT, domain_of(domain)), attributes) };
}

unsafe extern "C" fn domain_range_start_ex(
    domain: Handle,
    attributes: *const EventAttributes,
) -> u64 {
    let (new, range) = starting(domain_of(domain));
    // SAFETY: as above.
    unsafe { with_attributes(new, attributes) };
    range
}

unsafe extern "C" fn domain_range_end(domain: Handle, range: u64) {
    let mut new = plain(MARK_END, domain_of(domain));
    new.id = MarkId::Short(range);
    mark(&new);
}

unsafe extern "C" fn domain_range_push_ex(
    domain: Handle,
    attributes: *const EventAttributes,
) -> c_int {
    // SAFETY: as above.
    unsafe { with_attributes(plain(MARK_PUSH, domain_of(domain)), attributes) };
    NO_LEVEL
}

unsafe extern "C" fn domain_range_pop(domain: Handle) -> c_int {
    mark(&plain(MARK_POP, domain_of(domain)));
    NO_LEVEL
}

unsafe extern "C" fn name_category_a(category: u32, name: *const c_char) {
    // SAFETY: as above.
    unsafe { domain_name_category_a(std::ptr::null(), category, name) };
}

unsafe extern "C" fn name_category_w(category: u32, name: *const u32) {
    // SAFETY: as above.
    unsafe { domain_name_category_w(std::ptr::null(), category, name) };
}

fn name_category(domain: Handle, category: u32) -> impl FnOnce(&[u8]) {
    move |name| {
        guarded(|| {
            tables::with(|tables| tables.name_category(domain_of(domain), category, name));
        });
    }
}

unsafe extern "C" fn domain_name_category_a(domain: Handle, category: u32, name: *const c_char) {
    // SAFETY: as above.
    unsafe { narrow(name, name_category(domain, category)) };
}

unsafe extern "C" fn domain_name_category_w(domain: Handle, category: u32, name: *const u32) {
    // SAFETY: as above.
    unsafe { wide(name, name_category(domain, category)) };
}

/// The handle of a number.
fn handle_of(number: usize) -> Handle {
    std::ptr::without_provenance(number)
}

fn register(text: &[u8]) -> Handle {
    let mut number = 0;
    guarded(|| number = tables::with(|tables| tables.text_number(text)));
    handle_of(number as usize)
}

unsafe extern "C" fn domain_register_string_a(_: Handle, text: *const c_char) -> Handle {
    // SAFETY: as above.
    unsafe { narrow(text, register) }
}

unsafe extern "C" fn domain_register_string_w(_: Handle, text: *const u32) -> Handle {
    // SAFETY: as above.
    unsafe { wide(text, register) }
}

fn create(name: &[u8]) -> Handle {
    let mut number = NVTX_DEFAULT;
    guarded(|| number = tables::with(|tables| tables.domain_number(RANGES_NVTX, name)));
    handle_of(number.into())
}

unsafe extern "C" fn domain_create_a(name: *const c_char) -> Handle {
    // SAFETY: as above.
    unsafe { narrow(name, create) }
}

unsafe extern "C" fn domain_create_w(name: *const u32) -> Handle {
    // SAFETY: as above.
    unsafe { wide(name, create) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_texts_are_utf_8_and_cut_where_they_are_long() {
        let text = |text: &str| -> Vec<u32> {
            let codes = text.chars().map(u32::from);
            codes.chain([0]).collect()
        };
        // SAFETY: a NUL-terminated text, here and below.
        let short = unsafe { wide(text("größe €\u{1f600}").as_ptr(), <[u8]>::to_vec) };
        assert_eq!(short, "größe €\u{1f600}".as_bytes());
        // SAFETY: as above.
        let long = unsafe { wide(text(&"é".repeat(600)).as_ptr(), <[u8]>::to_vec) };
        assert_eq!(long, "é".repeat(512).as_bytes());
        // SAFETY: as above.
        let bad = unsafe { wide([0xd800, 0x11_0000, 0].as_ptr(), <[u8]>::to_vec) };
        assert_eq!(bad, "\u{fffd}\u{fffd}".as_bytes());
        // SAFETY: null is allowed.
        assert!(unsafe { wide(std::ptr::null(), <[u8]>::is_empty) });
    }

    #[test]
    fn payloads_are_what_their_kind_says() {
        assert_eq!(payload(0, 1), None);
        let bytes = u64::from_ne_bytes([0xfe, 0xff, 0xff, 0xff, 9, 9, 9, 9]);
        assert_eq!(payload(4, bytes), Some((PAYLOAD_UNSIGNED, 0xffff_fffe)));
        assert_eq!(payload(5, bytes), Some((PAYLOAD_SIGNED, u64::MAX - 1)));
        let half = u64::from(0.5_f32.to_bits());
        assert_eq!(payload(6, half), Some((PAYLOAD_FLOAT, 0.5_f64.to_bits())));
    }
}
