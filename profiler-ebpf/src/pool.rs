//! Reading the pool. Every access is masked into its chunk, so that no content can lead outside
//! of it. Every search is a fixed number of branch-free steps.

use aiprof_common::{POOL_CHUNK, POOL_UNIT, POOL_UNIT_BITS, PoolRef};
use aya_ebpf::helpers::generated::bpf_probe_read_kernel;

use crate::maps::POOL;
use core::arch::asm;

const MASK: u64 = POOL_CHUNK as u64 - 1;

/// A block: its chunk and its offset in it.
#[derive(Clone, Copy)]
pub struct Block {
    chunk: *mut u8,
    base: u64,
}

impl Block {
    /// The block that `reference` names; `None` if it is outside of the pool.
    #[inline(always)]
    pub fn get(reference: PoolRef) -> Option<Self> {
        let chunk = POOL.get_ptr_mut(reference >> POOL_UNIT_BITS)?.cast::<u8>();
        let unit = u64::from(reference) & ((1 << POOL_UNIT_BITS) - 1);
        Some(Self {
            chunk,
            base: unit * POOL_UNIT as u64,
        })
    }

    /// The naturally aligned integer at byte `off` of the block.
    #[inline(always)]
    pub fn u64(&self, off: u64) -> u64 {
        let at = (self.base + off) & MASK & !7;
        // SAFETY: `at + 8` is within the chunk by the mask.
        unsafe { self.chunk.add(at as usize).cast::<u64>().read_volatile() }
    }

    /// As [`Block::u64`].
    #[inline(always)]
    pub fn u32(&self, off: u64) -> u32 {
        let at = (self.base + off) & MASK & !3;
        // SAFETY: `at + 4` is within the chunk by the mask.
        unsafe { self.chunk.add(at as usize).cast::<u32>().read_volatile() }
    }

    /// As [`Block::u64`].
    #[inline(always)]
    pub fn u16(&self, off: u64) -> u16 {
        let at = (self.base + off) & MASK & !1;
        // SAFETY: `at + 2` is within the chunk by the mask.
        unsafe { self.chunk.add(at as usize).cast::<u16>().read_volatile() }
    }

    /// As [`Block::u64`].
    #[inline(always)]
    pub fn u8(&self, off: u64) -> u8 {
        let at = (self.base + off) & MASK;
        // SAFETY: `at` is within the chunk by the mask.
        unsafe { self.chunk.add(at as usize).read_volatile() }
    }

    /// Copies the beginning of the block.
    #[inline(always)]
    pub fn copy<T>(&self, to: *mut T) {
        // The last offset at which such a block can begin.
        let most = (POOL_CHUNK - size_of::<T>()) as u64;
        // A block of this size never straddles a chunk: the mask changes nothing.
        let at = self.base & MASK & !(POOL_UNIT as u64 - 1);
        let at = if at > most { most } else { at };
        // SAFETY: `size_of::<T>()` bytes are within the chunk and in `to`.
        unsafe {
            bpf_probe_read_kernel(
                to.cast(),
                size_of::<T>() as u32,
                self.chunk.add(at as usize).cast(),
            )
        };
    }

    /// Writes the `u32` at byte `off`.
    #[inline(always)]
    pub fn set_u32(&self, off: u64, value: u32) {
        let at = (self.base + off) & MASK & !3;
        // SAFETY: `at + 4` is within the chunk by the mask.
        unsafe {
            self.chunk
                .add(at as usize)
                .cast::<u32>()
                .write_volatile(value)
        }
    }
}

/// 1 if `a <= b`, else 0. Both must be below 2^63, as user addresses and offsets are.
///
/// The shift is in assembly, because the compiler would turn it into a branch, and a search
/// would have as many paths for the verifier as outcomes. An arithmetic shift would not help:
/// since Linux 6.18 the verifier follows both outcomes of one.
#[inline(always)]
pub fn le_bit(a: u64, b: u64) -> u64 {
    let mut bit = a.wrapping_sub(b).wrapping_sub(1);
    // SAFETY: arithmetic on one register.
    unsafe { asm!("{0} >>= 63", inout(reg) bit, options(pure, nomem, nostack)) };
    bit
}
