//! The profile model: what was sampled, where, how often; pure data.
//!
//! A [`Profile`] holds tables with typed handles, as pprof and the Firefox
//! processed profile do: strings, binaries, processes, frames, locations,
//! stacks, samples. Everything below `profile` produces or consumes it;
//! nothing here reads a file, a clock or an eBPF map.

mod builder;
mod device;
mod labels;
mod losses;
mod parts;
mod stall_table;

pub use builder::ProfileBuilder;
pub use device::{Device, DeviceCode, DeviceId, DeviceSample, Method, StallCounts, StallReason};
pub use losses::{LossKind, Losses};
pub use stall_table::{StallRow, StallTable, StalledDevice};

/// Handle of an interned string in [`Profile::strings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StrId(pub u32);

/// Handle of a [`Binary`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BinaryId(pub u32);

/// Handle of a [`Process`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId(pub u32);

/// Handle of a [`Frame`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameId(pub u32);

/// Handle of a [`Location`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocationId(pub u32);

/// Handle of a [`Stack`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(pub u32);

/// A build id: the `NT_GNU_BUILD_ID` note of an ELF file, up to 20 bytes.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, serde::Serialize, serde::Deserialize,
)]
pub struct BuildId {
    len: u8,
    bytes: [u8; 20],
}

impl BuildId {
    /// From the note's bytes; `None` when empty or longer than 20 bytes.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut id = Self {
            len: u8::try_from(bytes.len()).ok()?,
            bytes: [0; 20],
        };
        if bytes.is_empty() {
            return None;
        }
        id.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(id)
    }

    /// The bytes of the note.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len).min(20)]
    }
}

impl std::fmt::Display for BuildId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_bytes()
            .iter()
            .try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl std::fmt::Debug for BuildId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BuildId({self})")
    }
}

/// About the recording as a whole.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Meta {
    /// Title given by the user (`--title`); empty: exporters choose one.
    pub title: String,
    /// Host name of the profiled machine.
    pub host: String,
    /// Kernel release of the profiled machine.
    pub kernel: String,
    /// Command that was profiled, empty if none.
    pub command: String,
    /// What was recorded, if not the whole machine: `process 12 (python3)`, a cgroup.
    pub scope: String,
    /// Start of the recording, nanoseconds since the Unix epoch.
    pub start_unix_ns: u64,
    /// Length of the recording in nanoseconds.
    pub duration_ns: u64,
    /// Online CPUs at the start.
    pub cpus: u32,
    /// Samples per second and CPU that were asked for.
    pub frequency_hz: u32,
    /// On-CPU nanoseconds that one sample stands for.
    pub period_ns: u64,
}

/// An executable file, shared object, the vdso or the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Binary {
    /// Path as seen by the process that mapped it; `[vdso]`, `[kernel]`.
    pub path: String,
    /// Build id, where the file has one.
    pub build_id: Option<BuildId>,
}

/// One process (thread group), or one incarnation of it: an exec makes a new one
/// where the name changes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    /// Process id in the root pid namespace.
    pub pid: u32,
    /// Name (comm) of the process.
    pub comm: StrId,
    /// Labels that were recorded of it: keys and values, in the order of the keys.
    pub labels: Vec<(StrId, StrId)>,
}

/// What kind of code a frame is: decides the folded suffix and the colour.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub enum FrameKind {
    /// Compiled user-space code; no suffix.
    Native,
    /// Compiled user-space code inlined into its caller, `_[i]`.
    Inlined,
    /// Kernel code, `_[k]`.
    Kernel,
    /// Code generated at run time, `_[j]`.
    Jit,
    /// A frame of an interpreter (Python), `_[p]`.
    Interpreter,
    /// Device software: source, kernel, line, `_[G]`.
    DeviceSoftware,
    /// Device hardware: instruction, stall reason, offset, `_[g]`.
    DeviceHardware,
    /// A frame that could not be named, or the place where the walk stopped: its name gives
    /// the reason in brackets (`[no symbols libfoo.so]`).
    Unknown,
    /// An operator of PyTorch, or what its program marked with `record_function`, `_[o]`.
    Operator,
}

impl FrameKind {
    /// The flame graph world's suffix for this kind, empty if it has none.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Native | Self::Unknown => "",
            Self::Inlined => "_[i]",
            Self::Kernel => "_[k]",
            Self::Jit => "_[j]",
            Self::Interpreter => "_[p]",
            Self::DeviceSoftware => "_[G]",
            Self::DeviceHardware => "_[g]",
            Self::Operator => "_[o]",
        }
    }
}

impl FrameKind {
    /// A name without the suffix that it ends in, and the kind which that stands for.
    pub fn of_suffix(name: &str) -> Option<(&str, Self)> {
        const WITH_SUFFIX: [FrameKind; 7] = [
            FrameKind::Inlined,
            FrameKind::Kernel,
            FrameKind::Jit,
            FrameKind::Interpreter,
            FrameKind::DeviceSoftware,
            FrameKind::DeviceHardware,
            FrameKind::Operator,
        ];
        let plain = |kind: Self| Some((name.strip_suffix(kind.suffix())?, kind));
        WITH_SUFFIX.into_iter().find_map(plain)
    }
}

/// One named frame.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Function name, demangled, without suffix. May hold any character.
    pub name: StrId,
    /// What kind of code it is.
    pub kind: FrameKind,
    /// Source file, where known.
    pub file: Option<StrId>,
    /// Source line, 0 if not known.
    pub line: u32,
}

/// One unique code address with the frames it stands for: itself and the
/// functions inlined there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// Binary that holds the address; `None` for JIT code and markers.
    pub binary: Option<BinaryId>,
    /// Address: virtual address as in the ELF file for files, absolute for
    /// the kernel and JIT code, 0 for markers.
    pub address: u64,
    /// Frames from the outermost function to the innermost inlined one; never
    /// empty.
    pub frames: Vec<FrameId>,
}

/// One unique call stack, root first, user frames before kernel frames.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Stack {
    /// Locations from the root to the leaf.
    pub locations: Vec<LocationId>,
    /// Whether the user part reaches the outermost frame.
    pub complete: bool,
    /// For the stack of a launch: how many of its locations, right above the `-`, are the
    /// driver's and the kernel's, which handed the launch over. Above them is the function
    /// that the program called.
    pub driver: u32,
}

/// An aggregated sample: everything but the weights is its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Process it was taken in.
    pub process: ProcessId,
    /// Thread id in the root pid namespace.
    pub tid: u32,
    /// Thread name.
    pub thread: StrId,
    /// Control group path, where known.
    pub cgroup: Option<StrId>,
    /// The call stack.
    pub stack: StackId,
    /// Samples.
    pub count: u64,
    /// On-CPU nanoseconds they stand for.
    pub time_ns: u64,
    /// Bytes moved; of CPU samples 0.
    pub bytes: u64,
    /// For samples of a device, what else is known; `None`: it was a CPU. `count` is the
    /// device's samples (or cycles) then, `time_ns` their share of the time in which the
    /// device was busy.
    pub device: Option<DeviceSample>,
}

/// What the samples of a profile are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Values {
    /// CPU samples: counted, with on-CPU time.
    #[default]
    CpuTime,
    /// Launches: counted, with the bytes they moved; and the time in the calls that
    /// made them and in all others. A sample may have any of the three alone.
    Launches,
    /// Waits: the time in which threads did not run, and as many samples as fit into it;
    /// and CPU samples of threads that waited for an accelerator without sleeping.
    WaitTime,
    /// Both: CPU samples, and waits.
    WallTime,
}

/// A finished profile. Build one with [`ProfileBuilder`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// About the recording.
    pub meta: Meta,
    /// What the samples are.
    pub values: Values,
    /// Interned strings, by [`StrId`].
    pub strings: Vec<String>,
    /// Labels of all that was recorded (`--label`), in the order of their keys.
    pub labels: Vec<(StrId, StrId)>,
    /// Binaries, by [`BinaryId`].
    pub binaries: Vec<Binary>,
    /// Processes, by [`ProcessId`].
    pub processes: Vec<Process>,
    /// Frames, by [`FrameId`].
    pub frames: Vec<Frame>,
    /// Locations, by [`LocationId`].
    pub locations: Vec<Location>,
    /// Stacks, by [`StackId`].
    pub stacks: Vec<Stack>,
    /// Devices that were sampled, by [`DeviceId`].
    pub devices: Vec<Device>,
    /// Aggregated samples.
    pub samples: Vec<Sample>,
    /// Numbers about the recorder itself, where it runs as an agent: keys and values, as in
    /// `own_cpu_ns`.
    pub facts: Vec<(String, u64)>,
    /// What was lost on the way.
    pub losses: Losses,
    /// Work handed to drivers, counted by the kernel's fences and scheduler jobs; in
    /// profiles of launches only.
    pub submissions: u64,
}

impl Profile {
    /// The text of an interned string; empty for a handle of another profile.
    pub fn str(&self, id: StrId) -> &str {
        self.strings.get(id.0 as usize).map_or("", String::as_str)
    }

    /// Frames of a stack from root to leaf, inlined ones expanded.
    pub fn stack_frames(&self, id: StackId) -> impl Iterator<Item = &Frame> {
        self.stacks
            .get(id.0 as usize)
            .into_iter()
            .flat_map(|stack| &stack.locations)
            .filter_map(|l| self.locations.get(l.0 as usize))
            .flat_map(|location| &location.frames)
            .filter_map(|f| self.frames.get(f.0 as usize))
    }

    /// Lets all of it count so often, where it stands for as many like it. Samples stay as
    /// many as were taken, and stand for more; launches are more, and so are a device's
    /// samples, which are counted by what they stall on.
    pub fn weigh(&mut self, weight: u64) {
        self.meta.period_ns = self.meta.period_ns.saturating_mul(weight);
        for sample in &mut self.samples {
            sample.time_ns = sample.time_ns.saturating_mul(weight);
            sample.bytes = sample.bytes.saturating_mul(weight);
            if self.values == Values::Launches || sample.device.is_some() {
                sample.count = sample.count.saturating_mul(weight);
            }
            if let Some(device) = &mut sample.device {
                device.certain = device.certain.saturating_mul(weight);
                device.possible = device.possible.saturating_mul(weight);
            }
        }
    }

    /// Sum of the sample counts; `u64::MAX` where it does not fit.
    pub fn total_count(&self) -> u64 {
        saturating_sum(self.samples.iter().map(|s| s.count))
    }

    /// Sum of the bytes moved; `u64::MAX` where it does not fit.
    pub fn total_bytes(&self) -> u64 {
        saturating_sum(self.samples.iter().map(|s| s.bytes))
    }

    /// Sum of the sample times in nanoseconds; `u64::MAX` where it does not fit.
    pub fn total_time_ns(&self) -> u64 {
        saturating_sum(self.samples.iter().map(|s| s.time_ns))
    }
}

/// A sum that stops at `u64::MAX`: weights may come from a corrupt capture.
fn saturating_sum(values: impl Iterator<Item = u64>) -> u64 {
    values.fold(0, u64::saturating_add)
}
