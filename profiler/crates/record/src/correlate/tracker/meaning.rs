//! What a probe means for the tracker: found out once, when it is announced.

use super::{device_facts::FactSlots, memory::MemoryKind};
use aiprof_model::probes::{CallKind, Probe, ProbeRole, role};
use std::{cell::RefCell, rc::Rc};

/// Most files for which a probe remembers whether the ends of their calls are seen.
const MAX_FILES: usize = 16;

/// A probe with the places of what launches are made of.
#[derive(Debug)]
pub(super) struct ProbeMeaning {
    pub(super) probe: Rc<Probe>,
    pub(super) api: Rc<str>,
    pub(super) function: Rc<str>,
    pub(super) slots: Slots,
    pub(super) tags: Tags,
    pub(super) effect: Effect,
    pub(super) facts: FactSlots,
    /// One bit for each value read at the exit.
    pub(super) at_exit: u16,
    /// Source and destination of a copy, where the function determines them.
    pub(super) letters: [Option<MemoryKind>; 2],
    /// What the function does, where that is no copy, fill or barrier but its kind.
    pub(super) operation: Option<Rc<str>>,
    /// The files of which an end of it was seen.
    ends: RefCell<Vec<u32>>,
}

/// Slots of the values with a role.
#[derive(Debug)]
pub(super) struct Slots {
    pub(super) list: Option<usize>,
    pub(super) queue: Option<usize>,
    pub(super) device: Option<usize>,
    pub(super) module: Option<usize>,
    pub(super) kernel: Option<usize>,
    /// What is asked of a kernel.
    pub(super) name_info: Option<usize>,
    /// Device address of a kernel.
    pub(super) base: Option<usize>,
    pub(super) event: Option<usize>,
    pub(super) groups: [Option<usize>; 3],
    pub(super) local: [Option<usize>; 3],
    pub(super) global: [Option<usize>; 3],
    pub(super) bytes: Option<usize>,
    pub(super) dst: Option<usize>,
    pub(super) src: Option<usize>,
    pub(super) address: Option<usize>,
    pub(super) format: Option<usize>,
    pub(super) correlation: Option<usize>,
    pub(super) direction: Option<usize>,
    pub(super) extent: [Option<usize>; 3],
    pub(super) graph: Option<usize>,
    pub(super) source: Option<usize>,
}

/// Tags of the data with a role.
#[derive(Debug)]
pub(super) struct Tags {
    pub(super) name: Option<u8>,
    pub(super) image: Option<u8>,
    pub(super) program_image: Option<u8>,
    pub(super) lists: Option<u8>,
    pub(super) global: Option<u8>,
    pub(super) local: Option<u8>,
    /// An activity record.
    pub(super) record: Option<u8>,
    pub(super) assumed_name: Option<u8>,
}

impl Tags {
    /// Whether the data are device code.
    pub(super) fn is_image(&self, tag: u8) -> bool {
        [self.image, self.program_image].contains(&Some(tag))
    }
}

/// What a handle stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandleKind {
    Kernel,
    Module,
    List,
    Queue,
    Graph,
}

/// What a call changes in what handles mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    /// Makes a kernel: its handle is read at the exit.
    NewKernel,
    /// Gives a kernel its name.
    NameKernel,
    /// Returns where a kernel lies on its device.
    PlaceKernel,
    /// Sets a kernel's group size.
    GroupSize,
    NewModule,
    NewList {
        immediate: bool,
    },
    /// Work put on a list or queue is recorded from here on.
    BeginCapture,
    /// A graph is made of what was recorded.
    EndCapture,
    /// Makes a list or a graph with the content of another.
    CopyList,
    /// Adds the content of a graph to another.
    AddGraph,
    CloseList,
    ResetList,
    NewQueue,
    /// One owner more.
    Retain(HandleKind),
    /// One owner less: the last one ends it.
    Release(HandleKind),
    Alloc(MemoryKind),
    Free,
}

impl ProbeMeaning {
    /// Notes that the end of a call was seen.
    pub(super) fn ended(&self, library: u32) {
        let mut ends = self.ends.borrow_mut();
        if ends.len() < MAX_FILES && !ends.contains(&library) {
            ends.push(library);
        }
    }

    /// Whether the end of a call of this file was ever seen: then that of another can be
    /// expected.
    pub(super) fn has_ended(&self, library: u32) -> bool {
        self.ends.borrow().contains(&library)
    }

    pub(super) fn new(probe: Probe) -> Self {
        let slot = |name: &str| probe.slot(name);
        let slots = Slots {
            list: slot(role::LIST),
            queue: slot(role::QUEUE),
            device: slot(role::DEVICE),
            module: slot(role::MODULE),
            kernel: slot(role::KERNEL),
            name_info: slot(role::NAME_INFO),
            base: slot(role::BASE),
            event: slot(role::EVENT),
            groups: role::GROUPS.map(slot),
            local: role::LOCAL.map(slot),
            global: role::GLOBAL.map(slot),
            bytes: slot(role::BYTES),
            dst: slot(role::DST),
            src: slot(role::SRC),
            address: slot(role::ADDRESS),
            format: slot(role::FORMAT),
            correlation: slot(role::CORRELATION),
            direction: slot(role::DIRECTION),
            extent: role::EXTENT.map(slot),
            graph: slot(role::GRAPH),
            source: slot(role::SOURCE_LIST).or_else(|| slot(role::SOURCE_GRAPH)),
        };
        let tags = Tags {
            name: probe.tag(role::NAME),
            image: probe.tag(role::IMAGE),
            program_image: probe.tag(role::PROGRAM_IMAGE),
            lists: probe.tag(role::LISTS),
            global: probe.tag(role::GLOBAL_ITEMS),
            local: probe.tag(role::LOCAL_ITEMS),
            record: probe.tag(role::RECORD),
            assumed_name: probe.tag(role::ASSUMED_NAME),
        };
        let at_exit = probe
            .values
            .iter()
            .take(16)
            .enumerate()
            .fold(0, |bits, (i, v)| bits | u16::from(v.at_exit) << i);
        Self {
            effect: effect(&probe, &slots, &tags, at_exit),
            facts: FactSlots::of(&probe),
            letters: ends_of_copy(&probe),
            operation: (probe.role == Some(ProbeRole::Prefetch)).then(|| "Memory prefetch".into()),
            api: probe.api.as_str().into(),
            function: probe.function.as_str().into(),
            probe: Rc::new(probe),
            slots,
            tags,
            at_exit,
            ends: RefCell::default(),
        }
    }

    /// Whether it puts work on a device, a queue or a list.
    pub(super) fn is_work(&self) -> bool {
        is_work(self.probe.kind) && !self.probe.is_ioctl
    }

    /// Whether it gives work to a device, or hands over what was prepared.
    pub(super) fn gives_work(&self) -> bool {
        let submits = self.probe.kind == CallKind::Submit && !self.probe.is_ioctl;
        self.is_work() || submits || self.executes_graph()
    }

    /// Whether it executes what a graph has recorded.
    pub(super) fn executes_graph(&self) -> bool {
        let kind = self.probe.kind;
        self.slots.graph.is_some() && matches!(kind, CallKind::Launch | CallKind::Submit)
    }

    /// Whether a call of it inside of a call of `outer` is part of that call
    /// (see the module's documentation).
    pub(super) fn is_part_of(&self, outer: &Self) -> bool {
        if self.probe.is_ioctl || outer.probe.is_ioctl {
            return false;
        }
        let (kind, around) = (self.probe.kind, outer.probe.kind);
        if kind == around {
            return !is_only_host(kind) || self.function == outer.function;
        }
        let by_other_means = matches!(around, CallKind::Copy | CallKind::Fill | CallKind::Barrier);
        is_work(kind) && by_other_means
    }
}

fn is_work(kind: CallKind) -> bool {
    use CallKind::{Barrier, Copy, Fill, Launch};
    matches!(kind, Launch | Copy | Fill | Barrier)
}

/// Kinds that do not show what is done, so that two of them nested are two things.
pub(super) fn is_only_host(kind: CallKind) -> bool {
    use CallKind::{Activity, Collective, Control, Host, Range, Resolve};
    matches!(
        kind,
        Host | Control | Resolve | Activity | Collective | Range
    )
}

fn effect(probe: &Probe, slots: &Slots, tags: &Tags, at_exit: u16) -> Effect {
    let made = |slot: Option<usize>| slot.is_some_and(|s| s < 16 && at_exit >> s & 1 == 1);
    let given = |slot: Option<usize>| slot.is_some() && !made(slot);
    match probe.kind {
        CallKind::Kernel if made(slots.kernel) => Effect::NewKernel,
        CallKind::Kernel if given(slots.kernel) => {
            if made(slots.base) {
                Effect::PlaceKernel
            } else if tags.name.is_some() {
                Effect::NameKernel
            } else if slots.local.into_iter().all(given) {
                Effect::GroupSize
            } else {
                shared(probe, HandleKind::Kernel)
            }
        }
        CallKind::Module | CallKind::Compile if made(slots.module) => Effect::NewModule,
        CallKind::Module if given(slots.module) => shared(probe, HandleKind::Module),
        CallKind::Queue if probe.role == Some(ProbeRole::BeginCapture) => Effect::BeginCapture,
        CallKind::Queue if probe.role == Some(ProbeRole::EndCapture) => Effect::EndCapture,
        CallKind::Queue if probe.role == Some(ProbeRole::Add) => Effect::AddGraph,
        CallKind::Queue if slots.source.is_some() => Effect::CopyList,
        CallKind::Queue if made(slots.list) => Effect::NewList {
            immediate: probe.role == Some(ProbeRole::Immediate),
        },
        CallKind::Queue if given(slots.list) => match probe.role {
            Some(ProbeRole::Reset) => Effect::ResetList,
            Some(ProbeRole::Close) => Effect::CloseList,
            _ => shared(probe, HandleKind::List),
        },
        CallKind::Queue if given(slots.graph) => shared(probe, HandleKind::Graph),
        CallKind::Queue if made(slots.queue) => Effect::NewQueue,
        CallKind::Queue if given(slots.queue) => shared(probe, HandleKind::Queue),
        CallKind::Alloc if slots.address.is_some() => Effect::Alloc(allocates(probe)),
        CallKind::Free if slots.address.is_some() => Effect::Free,
        _ => Effect::None,
    }
}

fn shared(probe: &Probe, object: HandleKind) -> Effect {
    match probe.role {
        Some(ProbeRole::Retain) => Effect::Retain(object),
        Some(ProbeRole::Release) => Effect::Release(object),
        _ => Effect::None,
    }
}

/// What kind of memory an allocating function gives.
fn allocates(probe: &Probe) -> MemoryKind {
    match probe.role {
        Some(ProbeRole::Shared) => MemoryKind::Shared,
        Some(ProbeRole::Host) => MemoryKind::Host,
        _ => MemoryKind::Device,
    }
}

/// Source and destination of a function's copies, where its role or its arguments show them.
fn ends_of_copy(probe: &Probe) -> [Option<MemoryKind>; 2] {
    use MemoryKind::{Device, Host};
    let ends = match probe.role {
        _ if probe.kind != CallKind::Copy => return [None; 2],
        Some(ProbeRole::HostToHost) => [Host, Host],
        Some(ProbeRole::HostToDevice) => [Host, Device],
        Some(ProbeRole::DeviceToHost) => [Device, Host],
        Some(ProbeRole::DeviceToDevice) => [Device, Device],
        _ => return role::IMAGES.map(|image| probe.slot(image).map(|_| Device)),
    };
    ends.map(Some)
}
