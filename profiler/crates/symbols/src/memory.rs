//! Reading the memory of a process, which may hold anything.

use crate::elf::{ReadAt, i32_at, u64_at};

/// The memory of a process: offsets are addresses.
pub(crate) struct MemoryFile<'a, R>(pub &'a R);

impl<R: ReadAt> MemoryFile<'_, R> {
    /// All of `len` bytes at an address.
    pub(crate) fn bytes(&self, address: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        let have = self.fill(address, &mut bytes)?;
        (have == len).then_some(bytes)
    }

    /// Up to `len` bytes at an address: those that can be read.
    pub(crate) fn some_bytes(&self, address: u64, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        let have = self.fill(address, &mut bytes)?;
        bytes.truncate(have);
        (have > 0).then_some(bytes)
    }

    fn fill(&self, address: u64, bytes: &mut [u8]) -> Option<usize> {
        let mut have = 0;
        while have < bytes.len() {
            let at = address.checked_add(have as u64)?;
            // No file offset is larger, and no user address.
            if at > i64::MAX as u64 {
                return None;
            }
            match self.0.read_at(bytes.get_mut(have..)?, at) {
                Ok(0) | Err(_) => break,
                Ok(more) => have += more,
            }
        }
        Some(have)
    }

    /// A pointer, or another word.
    pub(crate) fn u64(&self, address: u64) -> Option<u64> {
        u64_at(&self.bytes(address, 8)?, 0)
    }

    /// An `int`.
    pub(crate) fn i32(&self, address: u64) -> Option<i32> {
        i32_at(&self.bytes(address, 4)?, 0)
    }

    /// A text that ends with a zero byte, of at most `most` bytes.
    pub(crate) fn text(&self, address: u64, most: usize) -> Option<String> {
        let bytes = self.some_bytes(address, most)?;
        let end = bytes.iter().position(|&byte| byte == 0)?;
        String::from_utf8(bytes.get(..end)?.to_vec()).ok()
    }
}
