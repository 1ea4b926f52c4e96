//! The first function of a greenlet.
//!
//! Greenlets share one stack: what a greenlet needs of it is copied away while another one runs. So
//! above the first function of a running greenlet, the stack belongs to others.

use crate::elf::{Dynamic, ReadAt};
use std::ops::Range;

/// What Python's module exports.
const MODULE: &[u8] = b"PyInit__greenlet";
/// Names of the function since greenlet 2.0: it runs after the switch to the new greenlet.
const FIRST: [&[u8]; 2] = [
    b"_ZN8greenlet12UserGreenlet15inner_bootstrapEP9_greenletP7_object",
    b"_ZN8greenlet12UserGreenlet15inner_bootstrapERNS_4refs14_OwnedGreenletI9_greenletXadL_ZNS1_15GreenletCheckerEPvEEEERNS1_14OwnedReferenceI7_objectXadL_ZNS1_11NoOpCheckerES4_EEEE",
];

/// The first function of greenlets, if the file is the module that has it.
pub(super) fn first_function<R: ReadAt>(file: &R) -> Option<Range<u64>> {
    let exported = Dynamic::read(file)?;
    exported.find(MODULE)?;
    let first = FIRST.iter().find_map(|name| exported.find(name))?;
    Some(first.address..first.address.saturating_add(first.size))
}
