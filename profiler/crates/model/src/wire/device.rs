//! What devices are sampled for, and where kernels lie on them.

use crate::profile::StallCounts;
use serde::{Deserialize, Serialize};

/// Samples of a device are read from here on; time-less.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceStream {
    /// Its number in the recording, from 0.
    pub id: u32,
    /// Name of what is sampled, for people: `xe 0000:03:00.0 GT0`.
    pub name: String,
    /// Device number of the node of the card, as in ioctls; 0 if not known.
    pub device: u32,
    /// Index of the card among those sampled.
    pub card: u32,
    /// GT of the card.
    pub gt: u32,
    /// Addresses count from the instruction base address of the context that ran.
    pub relative: bool,
    /// Device cycles between samples, 0 if not known.
    pub cycles_per_sample: u32,
    /// Where the bytes are from, if not from hardware.
    pub replayed: Option<String>,
}

/// What one stream counted between two reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StallWindow {
    /// [`DeviceStream::id`].
    pub stream: u32,
    /// Nothing in it was sampled before: CLOCK_MONOTONIC nanoseconds.
    pub from_ns: u64,
    /// Nothing in it was sampled after.
    pub to_ns: u64,
    /// Nanoseconds in which the engines were busy, where counters give it.
    pub busy_ns: Option<u64>,
    /// Records it was made of.
    pub records: u64,
    /// Times that the hardware or the writer dropped records in it.
    pub drops: u32,
    /// Records in it that could not be decoded, or found no room.
    pub refused: u64,
    /// Counts by address, in the order of addresses.
    pub counts: Vec<StallCount>,
}

/// Counts of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StallCount {
    /// Address in bytes; from the instruction base address if the stream is
    /// [`relative`](DeviceStream::relative).
    pub address: u64,
    /// Samples by reason.
    pub counts: StallCounts,
}

impl StallCount {
    /// Samples of all reasons.
    pub fn samples(&self) -> u64 {
        self.counts.iter().map(|&n| u64::from(n)).sum()
    }
}

/// How it was found out where a kernel lies on its device; the first are the surest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PlacedBy {
    /// The runtime gave it to the program, or reported it by a probe of its own (USDT).
    Runtime,
    /// It was read from the driver's object behind the kernel's handle.
    Object,
    /// The kernel's bytes are what was bound there.
    Bytes,
    /// Device memory was bound there while the module was created.
    Binding,
}

/// A kernel lies at an address from here on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelPlaced {
    /// Since when, if known: CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// Process.
    pub pid: u32,
    /// Handle of the kernel.
    pub kernel: u64,
    /// Device address of its first instruction.
    pub address: u64,
    /// Bytes of its code; 0 if not known.
    pub size: u64,
    /// The instruction base address of its context, if it is known.
    pub instruction_base: Option<u64>,
    /// How it was found out.
    pub by: PlacedBy,
}

/// Native device code that was found in a program's memory: what its driver
/// compiled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceCode {
    /// When it was read, CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// Process.
    pub pid: u32,
    /// The module's file: an ELF of a driver (zebin).
    pub bytes: Vec<u8>,
}
