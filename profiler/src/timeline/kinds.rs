//! What an event is, by its name and category: found once per name, not per event.

use super::{Dialect, Event, Sym, Timeline};

/// What is said of a name or category, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kind(u32);

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $bit:expr, $text:ident => $test:expr;)*) => {
        impl Kind {
            $($(#[$doc])* pub const $name: Self = Self(1 << $bit);)*

            /// What a text says.
            fn of(text: &str) -> Self {
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
    COPY_IN = 4, t => t.contains("emcpy (HtoD)") && has_memcpy(t, "(HtoD)");
    /// TORCH: "Memcpy (DtoH)".
    COPY_OUT = 5, t => t.contains("emcpy (DtoH)") && has_memcpy(t, "(DtoH)");
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
    CAT_KERNEL = 12, t => t.contains("kernel");
    /// Category has "gpu".
    CAT_GPU = 13, t => t.contains("gpu");
    /// Name has "Barrier:" or "barrier:".
    BARRIER = 14, t => t.contains("Barrier:") || t.contains("barrier:");
    /// TORCH: name has "HCOLL".
    HCOLL = 15, t => t.contains("HCOLL");
    /// Name has "DmaI" or "DmaO".
    HAS_DMA = 17, t => t.contains("DmaI") || t.contains("DmaO");
    /// Name says that it is of the whole machine, not of a row.
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

fn has_memcpy(text: &str, direction: &str) -> bool {
    ["Memcpy ", "memcpy "]
        .iter()
        .any(|word| text.contains(&format!("{word}{direction}")))
}

impl Kind {
    /// Whether it is said.
    pub fn is(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// The kinds of all names.
#[derive(Debug, Default)]
pub struct Kinds {
    kinds: Vec<Kind>,
}

impl Kinds {
    /// Of all names there are.
    pub fn new(timeline: &Timeline) -> Self {
        let kinds = timeline.names.iter().map(|(_, text)| Kind::of(text));
        Self {
            kinds: kinds.collect(),
        }
    }

    /// What a name or category says.
    pub fn of(&self, sym: Sym) -> Kind {
        self.kinds.get(sym.index()).copied().unwrap_or_default()
    }

    /// Whether the event ran on the device.
    pub fn is_device(&self, timeline: &Timeline, event: &Event) -> bool {
        match timeline.dialect(event) {
            Dialect::Flex => event.is_counted(),
            Dialect::Torch => {
                let cat = self.of(event.cat);
                cat.is(Kind::CAT_GPU) || cat.is(Kind::CAT_KERNEL)
            }
        }
    }

    /// Whether the event is a kernel's execution.
    pub fn is_kernel(&self, timeline: &Timeline, event: &Event) -> bool {
        match timeline.dialect(event) {
            Dialect::Flex => self.of(event.name).is(Kind::EXEC),
            Dialect::Torch => self.of(event.cat).is(Kind::CAT_KERNEL),
        }
    }

    /// Whether the event brings data to the device.
    pub fn is_data_in(&self, timeline: &Timeline, event: &Event) -> bool {
        self.of(event.name).is(match timeline.dialect(event) {
            Dialect::Flex => Kind::DMA_IN,
            Dialect::Torch => Kind::COPY_IN,
        })
    }

    /// Whether the event brings data from the device.
    pub fn is_data_out(&self, timeline: &Timeline, event: &Event) -> bool {
        self.of(event.name).is(match timeline.dialect(event) {
            Dialect::Flex => Kind::DMA_OUT,
            Dialect::Torch => Kind::COPY_OUT,
        })
    }

    /// Whether the event is part of a collective.
    pub fn is_collective(&self, timeline: &Timeline, event: &Event) -> bool {
        match timeline.dialect(event) {
            Dialect::Flex => timeline
                .transfer(event)
                .is_some_and(|transfer| !transfer.group.is_empty()),
            Dialect::Torch => self.of(event.name).is(Kind::HCOLL),
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
}
