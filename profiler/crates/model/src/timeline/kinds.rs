//! What an event is, by its name and category: found once per name, not per event.

use super::{Dialect, Event, Sym, Timeline};
use crate::kernel_classes::KernelClass;
use std::sync::OnceLock;

/// The properties of a name or category, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kind(u32);

/// A name or category as it is written, and in small letters.
#[derive(Clone, Copy)]
struct Spelled<'t> {
    text: &'t str,
    small: &'t str,
}

impl Spelled<'_> {
    /// Has one of these parts, which are in small letters, whatever its own are.
    fn has(self, parts: &[&str]) -> bool {
        parts.iter().any(|part| self.small.contains(part))
    }
}

impl std::ops::Deref for Spelled<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        self.text
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $bit:expr, $text:ident => $test:expr;)*) => {
        impl Kind {
            $($(#[$doc])* pub const $name: Self = Self(1 << $bit);)*

            /// The kind of a text.
            fn of(text: &str) -> Self {
                let small = text.to_ascii_lowercase();
                let text = Spelled { text, small: &small };
                let mut kind = Self::default();
                $({ let $text = text; if $test { kind.0 |= Self::$name.0; } })*
                kind
            }
        }
    };
}

kinds! {
    /// FLEX: name ends in "Cmpt Exec": a kernel.
    EXEC = 0, t => t.ends_with("Cmpt Exec");
    /// Name ends in "Cmpt Prep".
    PREP = 1, t => t.ends_with("Cmpt Prep");
    /// FLEX: name has " DmaI": a transfer to the device.
    DMA_IN = 2, t => t.contains(" DmaI");
    /// FLEX: name has " DmaO": a transfer from the device.
    DMA_OUT = 3, t => t.contains(" DmaO");
    /// TORCH: "Memcpy (HtoD)".
    COPY_IN = 4, t => t.contains("emcpy (HtoD)") && has_memcpy(&t, "(HtoD)");
    /// TORCH: "Memcpy (DtoH)".
    COPY_OUT = 5, t => t.contains("emcpy (DtoH)") && has_memcpy(&t, "(DtoH)");
    /// Name has "Rdma".
    RDMA = 6, t => t.contains("Rdma");
    /// Name has "SenRdma".
    SEN_RDMA = 7, t => t.contains("SenRdma");
    /// Name has "AllReduce".
    ALL_REDUCE = 8, t => t.contains("AllReduce");
    /// Name has " Prep".
    HAS_PREP = 9, t => t.contains(" Prep");
    /// Name has "Cmpt Exec".
    HAS_EXEC = 10, t => t.contains("Cmpt Exec");
    /// Name has "AIU Roundtrip".
    ROUND_TRIP = 11, t => t.contains("AIU Roundtrip");
    /// Category has "kernel".
    CAT_KERNEL = 12, t => t.has(&["kernel"]) || t.small == "mtia_ccp_events";
    /// Category has "gpu".
    CAT_GPU = 13, t => t.has(&["gpu"]);
    /// Category of copies and fills: `gpu_memcpy`, and `Memcpy` before 2022; `memory_copy` of
    /// rocprofv3.
    CAT_COPY = 18, t => t.has(&["memcpy", "memset"]) || t.small.ends_with("memory_copy");
    /// Category of the program's own notes, also where they stand on a device's track.
    CAT_NOTE = 19, t => t.has(&["annotation"]);
    /// Category that only Kineto's traces have.
    CAT_KINETO = 20, t => KINETO.contains(&t.small);
    /// Category of flows from a forward operator to its backward one.
    CAT_FORWARD = 21, t => t.small == "fwdbwd";
    /// A copy's name shows that it is to the device.
    TO_DEVICE = 22, t => t.has(&INWARD);
    /// A copy's name shows that it is from the device.
    FROM_DEVICE = 23, t => t.has(&OUTWARD);
    /// Category of fills: `gpu_memset`, and `Memset` before 2022.
    CAT_FILL = 24, t => t.has(&["memset"]);
    /// Category of all that a device did, in unitrace's traces: names show which is a kernel.
    CAT_COMMAND = 25, t => t.small == "gpu_op";
    /// Name of a command that is no kernel, as unitrace gives them.
    COMMAND = 26, t => t.starts_with("zeCommandList") || t.starts_with("clEnqueue");
    /// And that copies or fills memory.
    COPY_COMMAND = 27, t => is_copy_command(&t);
    /// Name that only the AIU's runtime gives.
    FLEX_NAME = 28, t => is_flex_name(&t);
    /// Name has "Barrier:" or "barrier:".
    BARRIER = 14, t => t.contains("Barrier:") || t.contains("barrier:");
    /// TORCH: name has "HCOLL".
    HCOLL = 15, t => t.contains("HCOLL");
    /// Name has "DmaI" or "DmaO".
    HAS_DMA = 17, t => t.contains("DmaI") || t.contains("DmaO");
    /// Name of an event of the whole machine, not of a row.
    GLOBAL = 16, t => GLOBALS.iter().any(|part| t.contains(part));
}

/// Parts of names of events that span everything.
const GLOBALS: [&str; 10] = [
    "Execute graph",
    "SenFusedDeviceNode",
    "AIU Roundtrip",
    "Flex RoundTrip",
    "PostKeys",
    "FetchKeys",
    "Callback",
    "HostPrep",
    "AllocateFrame of",
    "Update CBs",
];

/// Categories of Kineto, of 2021 and since, without regard to case.
const KINETO: [&str; 27] = [
    // What devices did, in unitrace's traces, whose host calls are `cpu_op`, too.
    "gpu_op",
    "mtia_ccp_events",
    "mtia_workloadd",
    "cpu_op",
    "operator",
    "runtime",
    "kernel",
    "memcpy",
    "memset",
    "gpu_memcpy",
    "gpu_memset",
    "gpu_user_annotation",
    "python_function",
    "cuda_runtime",
    "cuda_driver",
    "cuda_sync",
    "cuda_event",
    "cuda_profiler_range",
    "hip_runtime",
    "hip_driver",
    "xpu_runtime",
    "xpu_driver",
    "mtia_runtime",
    "privateuse1_runtime",
    "privateuse1_driver",
    "collective_comm",
    "overhead",
];
/// Parts of names of copies to the device: those of CUDA, HIP and Level Zero.
const INWARD: [&str; 9] = [
    "host_to_device",
    "htod",
    "h2d",
    "hosttodevice",
    "m2d",
    "host -> device",
    "pageable -> device",
    "pinned -> device",
    "managed -> device",
];
/// And that they come from it.
const OUTWARD: [&str; 9] = [
    "device_to_host",
    "dtoh",
    "d2h",
    "devicetohost",
    "d2m",
    "device -> host",
    "device -> pageable",
    "device -> pinned",
    "device -> managed",
];

/// `add Cmpt Exec`, `x DmaI`, `SenRDMARecv_1`, `AIU Roundtrip`, `aiuScheduleWait`.
fn is_flex_name(name: &str) -> bool {
    let parts = [
        " DmaI",
        " DmaO",
        "SenRdma",
        "SenRDMA",
        "AIU Roundtrip",
        "Flex RoundTrip",
    ];
    let ends = ["Cmpt Exec", "Cmpt Prep"];
    let call = name.strip_prefix("aiu");
    parts.iter().any(|part| name.contains(part))
        || ends.iter().any(|end| name.ends_with(end))
        || call.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
}

/// `zeCommandListAppendMemoryCopy(M2D)[64]`, `clEnqueueReadBuffer`.
fn is_copy_command(name: &str) -> bool {
    let parts = ["Memory", "Image", "Copy", "Fill", "Read", "Write"];
    let is_command = name.starts_with("zeCommandList") || name.starts_with("clEnqueue");
    is_command && parts.iter().any(|part| name.contains(part))
}

fn has_memcpy(text: &str, direction: &str) -> bool {
    ["Memcpy ", "memcpy "]
        .iter()
        .any(|word| text.contains(&format!("{word}{direction}")))
}

impl Kind {
    /// Whether it has one of the bits of `other`.
    pub fn is(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// Whether a device event of Kineto's kind with this name and category copies or fills memory.
fn copies(name: Kind, cat: Kind) -> bool {
    cat.is(Kind::CAT_COPY) || cat.is(Kind::CAT_COMMAND) && name.is(Kind::COPY_COMMAND)
}

/// The kinds of all names.
#[derive(Debug, Default)]
pub struct Kinds {
    kinds: Vec<Kind>,
    /// What kernels of these names are for, found when it is first asked for: most analyses ask
    /// for none.
    classes: OnceLock<Vec<KernelClass>>,
}

impl Kinds {
    /// The kinds of all names there are.
    pub fn new(timeline: &Timeline) -> Self {
        let names = timeline.names.iter().map(|(_, text)| text);
        Self {
            kinds: names.map(Kind::of).collect(),
            classes: OnceLock::new(),
        }
    }

    /// The kind of a name or category.
    pub fn of(&self, sym: Sym) -> Kind {
        self.kinds.get(sym.index()).copied().unwrap_or_default()
    }

    /// Whether the event ran on the device.
    pub fn is_device(&self, timeline: &Timeline, event: &Event) -> bool {
        match timeline.dialect(event) {
            Dialect::Flex => event.is_counted(),
            Dialect::Torch => {
                let cat = self.of(event.cat);
                let is_one = [Kind::CAT_GPU, Kind::CAT_KERNEL, Kind::CAT_COPY];
                is_one.into_iter().any(|kind| cat.is(kind)) && !cat.is(Kind::CAT_NOTE)
            }
            Dialect::Plain => false,
        }
    }

    /// Whether the event is a kernel's execution.
    pub fn is_kernel(&self, timeline: &Timeline, event: &Event) -> bool {
        match timeline.dialect(event) {
            Dialect::Flex => self.of(event.name).is(Kind::EXEC),
            Dialect::Torch => {
                let cat = self.of(event.cat);
                let is_command = self.of(event.name).is(Kind::COMMAND);
                cat.is(Kind::CAT_KERNEL) || cat.is(Kind::CAT_COMMAND) && !is_command
            }
            Dialect::Plain => false,
        }
    }

    /// Whether the event brings data to the device.
    pub fn is_data_in(&self, timeline: &Timeline, event: &Event) -> bool {
        let (name, cat) = (self.of(event.name), self.of(event.cat));
        match timeline.dialect(event) {
            Dialect::Flex => name.is(Kind::DMA_IN),
            Dialect::Torch => {
                name.is(Kind::COPY_IN) || copies(name, cat) && name.is(Kind::TO_DEVICE)
            }
            Dialect::Plain => false,
        }
    }

    /// Whether the event brings data from the device.
    pub fn is_data_out(&self, timeline: &Timeline, event: &Event) -> bool {
        let (name, cat) = (self.of(event.name), self.of(event.cat));
        match timeline.dialect(event) {
            Dialect::Flex => name.is(Kind::DMA_OUT),
            Dialect::Torch => {
                name.is(Kind::COPY_OUT) || copies(name, cat) && name.is(Kind::FROM_DEVICE)
            }
            Dialect::Plain => false,
        }
    }

    /// What the event is for, if it is work of a device.
    pub fn class(&self, timeline: &Timeline, event: &Event) -> Option<KernelClass> {
        if !self.is_device(timeline, event) {
            return None;
        }
        if self.is_collective(timeline, event) {
            Some(KernelClass::Communication)
        } else if self.is_kernel(timeline, event) {
            Some(self.kernel_class(timeline, event))
        } else if !self.is_copy(timeline, event) {
            None
        } else if self.of(event.cat).is(Kind::CAT_FILL) {
            Some(KernelClass::MemorySet)
        } else {
            Some(KernelClass::Copy)
        }
    }

    /// What a kernel is for, by the name that it has in its file.
    pub fn kernel_class(&self, timeline: &Timeline, event: &Event) -> KernelClass {
        let name = event.original_name();
        if timeline.dialect(event) != Dialect::Torch {
            return KernelClass::default();
        }
        let classes = self.classes.get_or_init(|| {
            let names = timeline.names.iter();
            names.map(|(_, text)| timeline.classes.of(text)).collect()
        });
        classes.get(name.index()).copied().unwrap_or_default()
    }

    /// Whether the event copies or fills memory, whichever way.
    pub fn is_copy(&self, timeline: &Timeline, event: &Event) -> bool {
        let (name, cat) = (self.of(event.name), self.of(event.cat));
        let is_one = timeline.dialect(event) == Dialect::Torch && copies(name, cat);
        is_one || self.is_data_in(timeline, event) || self.is_data_out(timeline, event)
    }

    /// Whether the event is part of a collective.
    pub fn is_collective(&self, timeline: &Timeline, event: &Event) -> bool {
        match timeline.dialect(event) {
            Dialect::Flex => timeline
                .transfer(event)
                .is_some_and(|transfer| !transfer.group.is_empty()),
            Dialect::Torch => {
                self.of(event.name).is(Kind::HCOLL)
                    || self.is_kernel(timeline, event)
                        && self.kernel_class(timeline, event).is_communication()
            }
            Dialect::Plain => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_what_events_are() {
        let is = |text: &str, kind: Kind| Kind::of(text).is(kind);
        assert!(is("add_11 Cmpt Exec", Kind::EXEC) && is("add_11 Cmpt Exec", Kind::HAS_EXEC));
        assert!(!is("add Cmpt Exec 2", Kind::EXEC) && is("add Cmpt Exec 2", Kind::HAS_EXEC));
        assert!(is("x DmaI", Kind::DMA_IN) && !is("xDmaI", Kind::DMA_IN));
        assert!(is("Memcpy (HtoD)", Kind::COPY_IN) && is("a memcpy (HtoD) b", Kind::COPY_IN));
        assert!(!is("xemcpy (HtoD)", Kind::COPY_IN));
        assert!(is("Update CBs x", Kind::GLOBAL));
    }

    #[test]
    fn commands_of_unitrace_and_names_of_flex_are_known() {
        for (name, is_command, is_copy) in [
            ("zeCommandListAppendBarrier", true, false),
            ("zeCommandListAppendMemoryCopy(M2D)[64]", true, true),
            ("clEnqueueWriteBuffer", true, true),
            ("gemm[SIMD32 {1; 1; 1} {8; 1; 1}]", false, false),
        ] {
            let kind = Kind::of(name);
            assert_eq!(kind.is(Kind::COMMAND), is_command, "{name}");
            assert_eq!(kind.is(Kind::COPY_COMMAND), is_copy, "{name}");
        }
        for name in ["x DmaI", "SenRDMARecv_2", "aiuScheduleWait", "a Cmpt Prep"] {
            assert!(Kind::of(name).is(Kind::FLEX_NAME), "{name}");
        }
        for name in ["aiut", "Callback", "xDmaI", "RDMA write"] {
            assert!(!Kind::of(name).is(Kind::FLEX_NAME), "{name}");
        }
    }

    /// Names of CUDA's, HIP's and Level Zero's traces.
    #[test]
    fn copies_say_which_way_they_go() {
        for name in [
            "Memcpy HtoD (Pageable -> Device)",
            "Memcpy HtoD (Pinned -> Device)",
            "Memcpy HtoD (Host -> Device)",
            "CopyHostToDevice",
            "zeCommandListAppendMemoryCopy(M2D)",
        ] {
            let kind = Kind::of(name);
            assert!(kind.is(Kind::TO_DEVICE), "{name}");
            assert!(!kind.is(Kind::FROM_DEVICE), "{name}");
        }
        for name in [
            "Memcpy DtoH (Device -> Pageable)",
            "CopyDeviceToHost",
            "zeCommandListAppendMemoryCopy(D2M)",
        ] {
            let kind = Kind::of(name);
            assert!(kind.is(Kind::FROM_DEVICE), "{name}");
            assert!(!kind.is(Kind::TO_DEVICE), "{name}");
        }
        for name in ["Memcpy DtoD (Device -> Device)", "Memset (Device)"] {
            let kind = Kind::of(name);
            assert!(
                !kind.is(Kind::TO_DEVICE) && !kind.is(Kind::FROM_DEVICE),
                "{name}"
            );
        }
    }

    #[test]
    fn categories_are_known_whatever_their_case() {
        for (cat, kind) in [
            ("Kernel", Kind::CAT_KERNEL),
            ("Memcpy", Kind::CAT_COPY),
            ("gpu_memset", Kind::CAT_COPY),
            ("GPU_User_Annotation", Kind::CAT_NOTE),
            ("Operator", Kind::CAT_KINETO),
            ("CUDA_RUNTIME", Kind::CAT_KINETO),
            ("fwdbwd", Kind::CAT_FORWARD),
        ] {
            assert!(Kind::of(cat).is(kind), "{cat}");
        }
        assert!(!Kind::of("CatA").is(Kind::CAT_KINETO) && !Kind::of("").is(Kind::CAT_GPU));
    }
}
