//! Tests of the readers, on bytes built here.

mod buffers;
mod hostile;
mod metrics;
mod operation;

use super::{Kind, Layouts};

/// A time that records can have.
pub(super) const T: u64 = 1_795_000_000_000_000_000;

/// Numbers without a pattern that are the same in every run.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 8) % limit
    }
}

/// A record by the name of its layout, its fields filled with plausible values.
pub(super) fn record(layouts: &Layouts, name: &str, n: u64) -> Vec<u8> {
    let layout = layouts.layouts().iter().find(|l| l.name == name).unwrap();
    let byte = (1..=255)
        .find(|b| layouts.kind(*b) == Some(layout.kind))
        .unwrap();
    let mut bytes = vec![0; layout.size];
    bytes[0] = byte;
    let mut put = |slot: Option<super::layouts::NumberSlot>, value: u64| {
        if let Some(slot) = slot {
            let value = value.to_le_bytes();
            bytes[slot.offset..slot.offset + slot.width].copy_from_slice(&value[..slot.width]);
        }
    };
    let f = &layout.fields;
    put(
        f.code,
        if layout.kind == Kind::Runtime {
            1 + n % 80
        } else {
            1 + n % 2
        },
    );
    put(f.device, n % 4);
    put(f.context, 1);
    put(f.stream, 1 + n % 3);
    put(f.correlation, n + 1);
    put(f.start, T + n * 1000);
    put(f.end, T + n * 1000 + 700);
    put(f.queued, T + n * 1000 - 50);
    put(f.submitted, T + n * 1000 - 20);
    put(f.amount, n * 4096);
    put(f.address, 0x7a00_0000_0000 + n * 128);
    put(f.pid, 4711);
    put(f.tid, 4712 + n % 5);
    if let Some(slot) = f.cycles {
        for i in 0..5 {
            let at = slot.offset + i * 8;
            let value = (0xffff_ff00_u32.wrapping_add(n as u32 * 64 + i as u32)) as u64;
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
    }
    if let Some(slot) = f.name {
        let text = format!("sdsc_fused_mm_{n}");
        bytes[slot.offset..slot.offset + text.len()].copy_from_slice(text.as_bytes());
    }
    bytes
}
