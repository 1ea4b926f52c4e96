//! Names of kernels, by their handles.

use super::api::{SUCCESS, at, call, target};
use crate::timing::MAX_TIMING_NAME;
use crate::{ffi, guarded};
use std::collections::HashMap;
use std::ffi::c_char;
use std::sync::{Arc, PoisonError, RwLock};

/// Most kernels, and most names; those beyond have none.
const MOST: usize = 1 << 16;
/// `CL_KERNEL_FUNCTION_NAME`.
const FUNCTION_NAME: u32 = 0x1190;

#[derive(Debug, Default)]
struct ObjectNames {
    /// The number of a kernel's name.
    kernels: HashMap<usize, u64>,
    numbers: HashMap<Arc<[u8]>, u64>,
    /// By number, from 1.
    texts: Vec<Arc<[u8]>>,
}

static NAMES: RwLock<Option<ObjectNames>> = RwLock::new(None);

/// The functions that create kernels.
pub(super) fn wrappers() -> [(usize, *const ()); 3] {
    [
        (at::CREATE_KERNEL, create as *const ()),
        (at::CREATE_KERNELS, create_all as *const ()),
        (at::CLONE_KERNEL, clone as *const ()),
    ]
}

/// The number of a kernel's name; 0: not known.
pub(super) fn number(kernel: usize) -> u64 {
    let names = NAMES.read().unwrap_or_else(PoisonError::into_inner);
    let known = names.as_ref().and_then(|names| names.kernels.get(&kernel));
    known.copied().unwrap_or(0)
}

/// The name of a number.
pub(super) fn text(number: u64) -> Option<Arc<[u8]>> {
    let names = NAMES.read().unwrap_or_else(PoisonError::into_inner);
    let at = usize::try_from(number.checked_sub(1)?).ok()?;
    names.as_ref()?.texts.get(at).cloned()
}

fn note(kernel: usize, text: &[u8]) {
    let mut names = NAMES.write().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    let number = match names.numbers.get(text) {
        Some(number) => *number,
        None if names.texts.len() >= MOST => 0,
        None => {
            let text: Arc<[u8]> = text.into();
            names.texts.push(text.clone());
            let number = names.texts.len() as u64;
            names.numbers.insert(text, number);
            number
        }
    };
    // Handles are used again: what is known by one is the last kernel's.
    if names.kernels.len() < MOST || names.kernels.contains_key(&kernel) {
        names.kernels.insert(kernel, number);
    }
}

/// Asks the runtime for a kernel's name.
fn ask(kernel: usize) {
    let mut text = [0_u8; MAX_TIMING_NAME];
    let mut len = 0_usize;
    if target(at::KERNEL_INFO) == 0 {
        return;
    }
    // SAFETY: clGetKernelInfo of a kernel that was just created, with room for its answer.
    let status = unsafe {
        call!(at::KERNEL_INFO, (kernel => usize, FUNCTION_NAME => u32, text.len() => usize,
            text.as_mut_ptr() => *mut u8, (&raw mut len) => *mut usize) -> i32)
    };
    let text = text.get(..len).filter(|_| status == SUCCESS);
    if let Some(text) = text {
        note(kernel, text.strip_suffix(&[0]).unwrap_or(text));
    }
}

unsafe extern "C" fn create(program: usize, name: *const c_char, error: *mut i32) -> usize {
    // SAFETY: what the program gave.
    let kernel = unsafe {
        call!(at::CREATE_KERNEL, (program => usize, name => *const c_char,
            error => *mut i32) -> usize)
    };
    if kernel != 0 && !name.is_null() {
        // SAFETY: the runtime has read it as a text.
        guarded(|| note(kernel, unsafe { ffi::text(name, MAX_TIMING_NAME) }));
    }
    kernel
}

unsafe extern "C" fn create_all(
    program: usize,
    room: u32,
    kernels: *mut usize,
    count: *mut u32,
) -> i32 {
    let mut own = 0_u32;
    let count = if count.is_null() { &raw mut own } else { count };
    // SAFETY: what the program gave; a count of ours means the same as none.
    let status = unsafe {
        call!(at::CREATE_KERNELS, (program => usize, room => u32, kernels => *mut usize,
            count => *mut u32) -> i32)
    };
    if status == SUCCESS && !kernels.is_null() {
        // SAFETY: the runtime has written it.
        let created = unsafe { count.read_unaligned() }.min(room);
        for at in 0..created as usize {
            // SAFETY: the runtime has written `created` handles.
            guarded(|| ask(unsafe { kernels.add(at).read_unaligned() }));
        }
    }
    status
}

unsafe extern "C" fn clone(source: usize, error: *mut i32) -> usize {
    // SAFETY: what the program gave.
    let kernel = unsafe { call!(at::CLONE_KERNEL, (source => usize, error => *mut i32) -> usize) };
    if kernel != 0 {
        guarded(|| {
            if let Some(text) = text(number(source)) {
                note(kernel, &text);
            }
        });
    }
    kernel
}
