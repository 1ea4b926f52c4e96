//! The frames of Java's HotSpot: where a process has its generated code, and how the programs
//! find its frames.
//!
//! HotSpot keeps all code that it generates in a few *heaps*. A heap is divided into segments,
//! and a *segment map* has one byte for each. The map leads from any segment to the first one
//! of its block. That begins with a *blob*, which has the frame size of its code. All of it is
//! read during a walk, so code that was compiled a moment ago is known.
//!
//! The interpreter is one blob. Its frames are chained by rbp and hold the method that they
//! run. The walk records that method in place of the address in the interpreter, see
//! [`ADDR_METHOD`].

use crate::{ADDR_EXACT, PoolRef};

/// Marks a user address that is not code but the method (`Method*`) that a frame of HotSpot's
/// interpreter runs. Bits 57 to 60, and bit 62, are zero then.
pub const ADDR_METHOD: u64 = 1 << 61;

/// The method that an address of a sample stands for; `None` for an address of code.
#[must_use]
pub const fn java_method(address: u64) -> Option<u64> {
    let plain = address & !ADDR_EXACT;
    if plain >> 57 == ADDR_METHOD >> 57 {
        Some(plain & !ADDR_METHOD)
    } else {
        None
    }
}

/// Most heaps of generated code.
pub const MAX_JAVA_HEAPS: usize = 4;
/// Bytes of a blob's header that are read.
pub const JAVA_BLOB_BYTES: usize = 128;

/// A heap of generated code. Names are HotSpot's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JavaHeap {
    /// Its first address (`CodeHeap._memory`).
    pub start: u64,
    /// The end of its reserved address range.
    pub end: u64,
    /// Address of its segment map (`CodeHeap._segmap`).
    pub segments: u64,
}
const _: () = assert!(size_of::<JavaHeap>() == 24);

/// A block of the pool: where a process's HotSpot has its generated code. Fields that are named
/// after a structure are offsets in it, in bytes; names are HotSpot's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JavaLayout {
    /// Identity of this incarnation of the block, never 0.
    pub owner: u32,
    /// log2 of the bytes of a segment (`CodeHeap._log2_segment_size`).
    pub segment_shift: u32,
    /// The lowest address of all heaps.
    pub start: u64,
    /// The end of the highest heap.
    pub end: u64,
    /// The interpreter's first address.
    pub interpreter_start: u64,
    /// Its end.
    pub interpreter_end: u64,
    /// The heaps; unused entries are empty.
    pub heaps: [JavaHeap; MAX_JAVA_HEAPS],
    /// Bytes of a block before its blob (`HeapBlock`).
    pub block_header: u16,
    /// `CodeBlob._frame_size`, an `int`, in words; 0 or less: not known.
    pub blob_frame_size: u16,
    /// `CodeBlob._frame_complete_offset`: offset in its code from which on the frame is
    /// complete.
    pub blob_frame_complete: u16,
    /// Bytes of that number: 2 or 4.
    pub frame_complete_bytes: u16,
    /// `CodeBlob._code_begin`, or `_code_offset`: where its code is.
    pub blob_code: u16,
    /// 1: it is an `int` to add to the blob's address; 0: it is an address.
    pub code_is_offset: u16,
    /// `CodeBlob._name`.
    pub blob_name: u16,
    /// `nmethod._verified_entry_point`, or `_verified_entry_offset`: the entry for callers that
    /// know the type of the object.
    pub method_entry: u16,
    /// 1: it is a `u2` to add to the address of the code; 0: it is an address.
    pub entry_is_offset: u16,
    /// Zero.
    pub reserved: [u16; 19],
}
const _: () = assert!(size_of::<JavaLayout>() == 192);

/// Value of [`crate::ProcEntry::java`] in a process without HotSpot.
pub const NO_JAVA: PoolRef = 0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ADDR_GUESSED;

    #[test]
    fn methods_are_told_from_addresses() {
        const METHOD: u64 = 0x7fff_1234_5678;
        assert_eq!(java_method(METHOD | ADDR_METHOD), Some(METHOD));
        assert_eq!(java_method(METHOD | ADDR_METHOD | ADDR_EXACT), Some(METHOD));
        for other in [
            METHOD,
            METHOD | ADDR_EXACT,
            METHOD | ADDR_GUESSED,
            METHOD | ADDR_EXACT | ADDR_GUESSED,
            ADDR_EXACT,
            // The vsyscall page.
            0xffff_ffff_ff60_0400,
            0x7fff_ffff_ff60_0400,
        ] {
            assert_eq!(java_method(other), None, "{other:#x}");
        }
    }
}
