//! Structures as the bytes that maps hold.

use aiprof_common::{
    FILE_NAME_BYTES, IoctlKey, JavaLayout, KernelNames, ProbeCounts, ProbeSpec, ProcEntry,
    PythonLayout, Settings, TraceSpec, V8Layout,
};

/// A type that is nothing but its bytes: what a map's key or value may be.
///
/// # Safety
/// Integers and `repr(C)` structures of integers only, without padding: every
/// byte is initialised, and every pattern of bytes is a value.
pub unsafe trait Plain: Copy {}

// SAFETY: an integer.
unsafe impl Plain for u32 {}
// SAFETY: an integer.
unsafe impl Plain for u64 {}
// SAFETY: repr(C), `u32` fields only.
unsafe impl Plain for ProcEntry {}
// SAFETY: repr(C), integers, padded by named fields: the size asserted beside the
// definition is the sum of the fields'.
unsafe impl Plain for PythonLayout {}
// SAFETY: repr(C), integers and structures of them, padded by named fields: the sizes
// asserted beside the definitions are the sums of the fields'.
unsafe impl Plain for JavaLayout {}
// SAFETY: repr(C), integers, padded by a named field: the size asserted beside the
// definition is the sum of the fields'.
unsafe impl Plain for V8Layout {}
// SAFETY: repr(C), `u32` fields only.
unsafe impl Plain for Settings {}
// SAFETY: repr(C), integers and structures of them, padded by named fields: the
// sizes asserted beside the definitions are the sums of the fields'.
unsafe impl Plain for ProbeSpec {}
// SAFETY: repr(C), `u64` fields only.
unsafe impl Plain for ProbeCounts {}

// SAFETY: repr(C), `u32` fields only.
unsafe impl Plain for IoctlKey {}
// SAFETY: repr(C), integers and structures of them without padding: the sizes
// asserted beside the definitions are the sums of the fields'.
unsafe impl Plain for TraceSpec {}
// SAFETY: repr(C), integers and bytes without padding: the size asserted beside the
// definition is the sum of the fields'.
unsafe impl Plain for KernelNames {}
// SAFETY: bytes.
unsafe impl Plain for [u8; FILE_NAME_BYTES] {}

/// The bytes of a value.
pub(crate) fn bytes<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: the value is that long, and `Plain` has no uninitialised bytes.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// The value that the bytes are; `None` if they are not exactly as many.
pub(super) fn value<T: Plain>(bytes: &[u8]) -> Option<T> {
    // SAFETY: as many bytes as the value has, and `Plain` takes any.
    (bytes.len() == size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_the_fields_in_order() {
        let entry = ProcEntry {
            maps: 1,
            owner: 2,
            space: 3,
            python: 0,
            java: 4,
            v8: 5,
        };
        let expected: Vec<u8> = [1u32, 2, 3, 0, 4, 5]
            .iter()
            .flat_map(|v| v.to_ne_bytes())
            .collect();
        assert_eq!(bytes(&entry), expected);
        assert_eq!(value::<ProcEntry>(&expected), Some(entry));
    }

    #[test]
    fn only_the_exact_length_is_a_value() {
        assert_eq!(value::<u64>(&[1; 7]), None);
        assert_eq!(value::<u64>(&[1; 9]), None);
        assert_eq!(value::<u32>(&[1, 0, 0, 0]), Some(1u32.to_le()));
    }
}
