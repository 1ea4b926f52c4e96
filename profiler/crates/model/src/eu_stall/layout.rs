//! How a record's bits are laid out.

use super::devices;
use crate::profile::{StallCounts, StallReason};
use std::{fmt, str::FromStr};

/// The layout of a record. All have ten 8-bit counters in a row behind the address,
/// little-endian, the least significant bit first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Ponte Vecchio: a 29-bit address, nine counters.
    Pvc,
    /// Xe2 and Xe3 (Lunar Lake, Battlemage, Panther Lake): a 29-bit address.
    Xe2,
    /// Xe3p: a 61-bit address.
    Xe3p,
}

/// The layout of a device's records is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the layout of EU stall records of device {device:#06x} is unknown{}; the nearest known layout \
     is {nearest}",
    version(*ip_version)
)]
pub struct UnknownLayout {
    /// PCI device id.
    pub device: u16,
    /// Version of its graphics IP, if it reports one.
    pub ip_version: Option<(u16, u16)>,
    /// The layout that it is most likely to have.
    pub nearest: Layout,
}

fn version(version: Option<(u16, u16)>) -> String {
    version.map_or_else(String::new, |(major, minor)| {
        format!(" (graphics IP {major}.{minor:02})")
    })
}

/// A decoded record, its counters in the order of the hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StallRecord {
    /// Address in units of 8 bytes.
    pub(super) ip: u64,
    /// The first eight counters, one a byte.
    pub(super) low: u64,
    /// The ninth and tenth.
    pub(super) high: u16,
    /// Bits are set that the layout knows nothing of.
    pub(super) strange: bool,
    /// The driver marked it: records were dropped before it.
    pub(super) dropped: bool,
}

/// i915's mark in a record (`PRELIM_I915_EUSTALL_FLAG_OVERFLOW_DROP`): bit 8 of its
/// flags, which are bytes 50 and 51. xe leaves these bytes zero.
const OVERFLOW_DROP: u64 = 1 << (16 + 8);
/// Bytes 48 to 51 of a record: subslice and flags of i915.
const DRIVER_BITS: u64 = 0xffff_ffff;

const IP_29: u64 = (1 << 29) - 1;
const IP_61: u64 = (1 << 61) - 1;

impl Layout {
    /// The layout of a device's records. The IP version that the hardware reports (major
    /// and minor, where it has one) goes before its PCI id.
    ///
    /// # Errors
    /// Neither is known.
    pub fn of(device: u16, ip_version: Option<(u16, u16)>) -> Result<Self, UnknownLayout> {
        let by_version = ip_version.and_then(|(major, _)| match major {
            20 | 30 => Some(Self::Xe2),
            35 => Some(Self::Xe3p),
            _ => None,
        });
        let known = by_version.or_else(|| devices::layout(device));
        known.ok_or_else(|| UnknownLayout {
            device,
            ip_version,
            nearest: Self::nearest(device, ip_version),
        })
    }

    /// The most likely layout of a device newer or older than all that are known: xe
    /// distinguishes layouts by the major version.
    fn nearest(device: u16, ip_version: Option<(u16, u16)>) -> Self {
        match ip_version {
            Some((35.., _)) => Self::Xe3p,
            Some((20..35, _)) => Self::Xe2,
            Some(_) => Self::Pvc,
            None => devices::nearest(device),
        }
    }

    /// Whether addresses count from the instruction base address of the context that
    /// ran.
    pub fn relative(self) -> bool {
        self != Self::Xe3p
    }

    /// Bytes at the front of a record that hold its address and counters.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Pvc | Self::Xe2 => 16,
            Self::Xe3p => 24,
        }
    }

    /// Decodes the first words of a record: `words` beyond the record are zero.
    #[inline(always)]
    pub(super) fn decode(self, words: &[u64; 8]) -> StallRecord {
        let [a, b, c, d, e, f, g, h] = *words;
        let dropped = self != Self::Xe3p && g & OVERFLOW_DROP != 0;
        let rest = d | e | f | h;
        match self {
            Self::Pvc | Self::Xe2 => {
                let high = (b >> 29) as u16;
                // Above the counters, Xe2 has an execution id and an end mark.
                let used = if self == Self::Pvc { 37 } else { 49 };
                StallRecord {
                    ip: a & IP_29,
                    low: a >> 29 | b << 35,
                    high: if self == Self::Pvc { high & 0xff } else { high },
                    strange: rest | c | b >> used | g & !DRIVER_BITS != 0,
                    dropped,
                }
            }
            Self::Xe3p => StallRecord {
                ip: a & IP_61,
                low: a >> 61 | b << 3,
                high: (b >> 61 | c << 3) as u16,
                strange: rest | c >> 17 | g != 0,
                dropped,
            },
        }
    }

    /// Counts in the order of the hardware, in that of [`StallReason::ALL`].
    pub(super) fn reorder(self, hardware: &[u32; 10]) -> StallCounts {
        let [
            first,
            other,
            control,
            pipe,
            send,
            dist,
            sbid,
            sync,
            fetch,
            last,
        ] = *hardware;
        // PVC knows no pixel shader dependency, and has `active` in front.
        let (active, tdr) = match self {
            Self::Pvc => (first, last),
            Self::Xe2 | Self::Xe3p => (last, first),
        };
        let mut counts = StallCounts::default();
        for (count, reason) in counts.iter_mut().zip(StallReason::ALL) {
            *count = match reason {
                StallReason::Active => active,
                StallReason::Control => control,
                StallReason::PipeStall => pipe,
                StallReason::Send => send,
                StallReason::DistAcc => dist,
                StallReason::Sbid => sbid,
                StallReason::Sync => sync,
                StallReason::InstFetch => fetch,
                StallReason::Other => other,
                StallReason::Tdr => tdr,
            };
        }
        counts
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pvc => "pvc",
            Self::Xe2 => "xe2",
            Self::Xe3p => "xe3p",
        })
    }
}

impl FromStr for Layout {
    type Err = String;

    /// Reads the name of a layout; `xe3` is `xe2`.
    ///
    /// # Errors
    /// Another name.
    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "pvc" => Ok(Self::Pvc),
            "xe2" | "xe3" => Ok(Self::Xe2),
            "xe3p" => Ok(Self::Xe3p),
            _ => Err(format!(
                "unknown layout '{name}' (known: pvc, xe2, xe3, xe3p)"
            )),
        }
    }
}
