//! What devices are sampled for: stall reasons, and how sure a sample's stack is.

use super::StrId;
use serde::{Deserialize, Serialize};

/// Handle of a [`Device`] in [`Profile::devices`](super::Profile::devices).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub u32);

/// A part of a device that is sampled by itself: a GT of a GPU, an AIU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Device {
    /// Name for people: `xe 0000:03:00.0 GT0`.
    pub name: String,
    /// Its samples were read from a file or a socket, not from hardware: a recording, or a
    /// generated (synthetic) stream. Every output states it.
    pub replayed: bool,
}

impl Device {
    /// The name of the whole device, of which this may be a part: without ` GT0`.
    pub fn whole(&self) -> &str {
        let is_part = |part: &&str| {
            let number = part.strip_prefix("GT").unwrap_or_default();
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        };
        match self.name.rsplit_once(' ') {
            Some((whole, part)) if is_part(&part) => whole,
            _ => &self.name,
        }
    }
}

/// What an execution unit of an Intel GPU was doing when it was sampled, or why it
/// could not go on (Linux, drivers/gpu/drm/xe/xe_eu_stall.c; Intel's VTune and
/// oneAPI GPU optimization guides). All but [`Active`](Self::Active) are stalls: at
/// least one thread was loaded, and none could issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum StallReason {
    /// No stall: an instruction was issued.
    Active,
    /// Control flow: a branch was being resolved.
    Control,
    /// The pipe of the instruction was taken.
    PipeStall,
    /// No slot was free to send a message.
    Send,
    /// An in-order result at a register distance, or an accumulator.
    DistAcc,
    /// A scoreboard token: memory, systolic array, math.
    Sbid,
    /// A barrier or another synchronization.
    Sync,
    /// The instruction was not in the cache.
    InstFetch,
    /// Another reason.
    Other,
    /// A pixel shader's dependency.
    Tdr,
}

/// Counts by [`StallReason`], in the order of [`StallReason::ALL`].
pub type StallCounts = [u32; StallReason::ALL.len()];

impl StallReason {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::Active,
        Self::Control,
        Self::PipeStall,
        Self::Send,
        Self::DistAcc,
        Self::Sbid,
        Self::Sync,
        Self::InstFetch,
        Self::Other,
        Self::Tdr,
    ];

    /// The name in stacks and tables, as xe and iaprof have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Control => "control",
            Self::PipeStall => "pipestall",
            Self::Send => "send",
            Self::DistAcc => "dist_acc",
            Self::Sbid => "sbid",
            Self::Sync => "sync",
            Self::InstFetch => "inst_fetch",
            Self::Other => "other",
            Self::Tdr => "tdr",
        }
    }

    /// The reason of a name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.name() == name)
    }
}

/// How a device's sample got its launch stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Method {
    /// Only this stack's launches can have been running.
    Sole,
    /// Shared among several by the exact durations of their launches in the window.
    Durations,
    /// Shared among several by their launches' work: groups times group size.
    Work,
    /// Shared among several by the number of their launches.
    Launches,
    /// No launch is known that can have been running.
    Unattributed,
    /// Charged to the latest launch of its kernel, whoever made the others: what iaprof
    /// does, whose files are read.
    Latest,
}

impl Method {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Sole,
        Self::Durations,
        Self::Work,
        Self::Launches,
        Self::Unattributed,
        Self::Latest,
    ];

    /// A short text for people.
    pub fn label(self) -> &'static str {
        match self {
            Self::Sole => "only one call path possible",
            Self::Durations => "shared by exact durations",
            Self::Work => "shared by work size",
            Self::Launches => "shared by launch count",
            Self::Unattributed => "unattributed",
            Self::Latest => "charged to the latest launch",
        }
    }

    /// Whether the stack is an estimate.
    pub fn is_estimate(self) -> bool {
        matches!(
            self,
            Self::Durations | Self::Work | Self::Launches | Self::Latest
        )
    }
}

/// The instruction at which a device was sampled, or the kernel as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceCode {
    /// Name of the device kernel, demangled.
    pub kernel: StrId,
    /// Bytes from the kernel's first instruction, or [`MANY`](Self::MANY); 0 where the
    /// device reports none.
    pub offset: u64,
}

impl DeviceCode {
    /// The offset of samples of instructions that were too many to count separately.
    pub const MANY: u64 = u64::MAX;
}

/// What a sample of a device has beside its stack and weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceSample {
    /// The device that was sampled.
    pub device: DeviceId,
    /// The stall reason; `None`: the device does not report reasons (AIU cycles).
    pub reason: Option<StallReason>,
    /// The instruction, of an AIU the kernel or operation alone; `None`: its kernel is
    /// not known.
    pub code: Option<DeviceCode>,
    /// How it got its stack.
    pub method: Method,
    /// How many of the sample's `count` belong to its stack for certain.
    pub certain: u64,
    /// The most that may belong to its stack: `count` lies between both.
    pub possible: u64,
}

impl DeviceSample {
    /// Stall reason and instruction, where both are known.
    pub fn stalled_at(&self) -> Option<(StallReason, DeviceCode)> {
        let code = self.code.filter(|code| code.offset != DeviceCode::MANY)?;
        Some((self.reason?, code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_a_whole() {
        for (name, whole) in [
            ("xe 0000:03:00.0 GT0", "xe 0000:03:00.0"),
            ("xe 0000:03:00.0 GT12", "xe 0000:03:00.0"),
            ("AIU 0", "AIU 0"),
            ("file GT", "file GT"),
            ("file x.bin GTx", "file x.bin GTx"),
            ("GT0", "GT0"),
            ("", ""),
        ] {
            let device = Device {
                name: name.to_owned(),
                replayed: false,
            };
            assert_eq!(device.whole(), whole);
        }
    }
}
