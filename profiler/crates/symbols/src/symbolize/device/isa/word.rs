//! The bits of one instruction.

/// An instruction's bits as one little-endian number; the upper half is zero
/// where it is compacted.
#[derive(Clone, Copy)]
pub(super) struct Word {
    bits: u128,
    /// Bytes: 8 or 16.
    pub(super) length: u8,
}

const COMPACTED: u32 = 29;

impl Word {
    /// The first instruction of `code`; `None` where less is left than it needs.
    pub(super) fn read(code: &[u8]) -> Option<Self> {
        let low = u64::from_le_bytes(*code.first_chunk()?);
        if low >> COMPACTED & 1 == 1 {
            return Some(Self {
                bits: u128::from(low),
                length: 8,
            });
        }
        let bits = u128::from_le_bytes(*code.first_chunk()?);
        Some(Self { bits, length: 16 })
    }

    pub(super) fn compacted(self) -> bool {
        self.length == 8
    }

    /// `count` (at most 32) bits from bit `low` (at most 127).
    pub(super) fn field(self, low: u32, count: u32) -> u32 {
        let mask = (1u64 << count) - 1;
        let shifted = (self.bits >> low) as u64;
        (shifted & mask) as u32
    }

    pub(super) fn bit(self, at: u32) -> bool {
        self.field(at, 1) == 1
    }

    pub(super) fn opcode(self) -> u32 {
        self.field(0, 7)
    }

    /// A signed 32-bit field.
    pub(super) fn signed(self, low: u32) -> i32 {
        self.field(low, 32).cast_signed()
    }
}
