//! From iaprof's launches and instructions to stacks of frames.

use super::records::KernelRecord;
use super::texts::{TextId, Texts};
use aiprof_model::profile::{
    DeviceCode, DeviceId, DeviceSample, FrameKind, Location, LocationId, LossKind, Method,
    ProcessId, ProfileBuilder, Sample, Stack, StackId, StallReason, StrId,
};
use std::collections::HashMap;
use std::rc::Rc;

/// Most frames of a host's stack: more than iaprof records.
const MAX_DEPTH: usize = 1024;

/// Most frames of all stacks together, and most launches and stacks; what is beyond is
/// counted as refused.
const MAX_FRAMES: usize = 1 << 26;
const MAX_STACKS: usize = 1 << 21;

/// The stack of counts without a launch.
const UNATTRIBUTED: &str = "[unattributed]";

/// Index of a [`Launch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LaunchId(usize);

/// A kernel and who launched it.
struct Launch {
    process: ProcessId,
    comm: StrId,
    pid: u32,
    /// From the root to the kernel: what the stacks of all its instructions begin with.
    stack: Rc<[LocationId]>,
    kernel: StrId,
    address: u64,
    method: Method,
}

/// A kernel's texts, whatever ids they have in the file.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct KernelKey {
    address: u64,
    pid: u32,
    comm: TextId,
    stack: TextId,
    file: TextId,
    symbol: TextId,
}

/// An instruction's count for one reason.
pub(super) struct At {
    pub(super) launch: LaunchId,
    pub(super) offset: u64,
    pub(super) mnemonic: TextId,
    pub(super) reason: StallReason,
    pub(super) count: u64,
    pub(super) time_ns: u64,
}

/// Makes stacks and samples of one device.
pub(super) struct Stacks {
    device: DeviceId,
    launches: Vec<Launch>,
    by_key: HashMap<KernelKey, LaunchId>,
    /// Frames of the host by the text of the stack.
    hosts: HashMap<TextId, Rc<[LocationId]>>,
    stacks: HashMap<(LaunchId, u64, TextId, StallReason), StackId>,
    /// Frames in all of them.
    frames: usize,
}

impl Stacks {
    pub(super) fn new(device: DeviceId) -> Self {
        Self {
            device,
            launches: Vec::new(),
            by_key: HashMap::new(),
            hosts: HashMap::new(),
            stacks: HashMap::new(),
            frames: 0,
        }
    }

    /// Makes room for a stack of that many frames; false if there is none.
    fn has_room(&mut self, frames: usize) -> bool {
        let all = self.frames.saturating_add(frames);
        let tables = self.launches.len().max(self.stacks.len());
        let has_room = all <= MAX_FRAMES && tables < MAX_STACKS;
        if has_room {
            self.frames = all;
        }
        has_room
    }

    /// The launch in a kernel's record; `None` if the table is full.
    pub(super) fn launch(
        &mut self,
        builder: &mut ProfileBuilder,
        texts: &Texts,
        kernel: &KernelRecord,
    ) -> Option<LaunchId> {
        let key = KernelKey {
            address: kernel.address,
            pid: kernel.pid,
            comm: texts.id(kernel.comm),
            stack: texts.id(kernel.stack),
            file: texts.id(kernel.file),
            symbol: texts.id(kernel.symbol),
        };
        if let Some(known) = self.by_key.get(&key) {
            return Some(*known);
        }
        let host = self.host(builder, texts, key.stack);
        let symbol = texts.get_or(key.symbol, &format!("{:#x}", key.address));
        let mut stack = host.to_vec();
        stack.push(frame(builder, "-", FrameKind::Native, 0));
        let file = texts.get_or(key.file, "[unknown file]");
        let source = match file.rsplit_once('/') {
            Some((directory, name)) if !name.is_empty() => vec![directory, name],
            _ => vec![&*file],
        };
        for name in source.into_iter().chain([&*symbol]) {
            stack.push(frame(builder, name, FrameKind::DeviceSoftware, 0));
        }
        let comm = texts.get_or(key.comm, "[unknown]");
        let id = self.push(builder, &comm, key.pid, stack, &symbol)?;
        if let Some(launch) = self.launches.get_mut(id.0) {
            launch.address = key.address;
            // As aiprof writes it.
            if &*texts.get_or(key.stack, "") == UNATTRIBUTED {
                launch.method = Method::Unattributed;
            }
        }
        self.by_key.insert(key, id);
        Some(id)
    }

    /// The launch of counts whose kernel's record is missing.
    pub(super) fn nobody(&mut self, builder: &mut ProfileBuilder) -> Option<LaunchId> {
        let stack = vec![
            frame(builder, UNATTRIBUTED, FrameKind::Unknown, 0),
            frame(builder, "-", FrameKind::Native, 0),
        ];
        let id = self.push(builder, "[unknown]", 0, stack, "[unknown]")?;
        if let Some(launch) = self.launches.get_mut(id.0) {
            launch.method = Method::Unattributed;
        }
        Some(id)
    }

    fn push(
        &mut self,
        builder: &mut ProfileBuilder,
        comm: &str,
        pid: u32,
        stack: Vec<LocationId>,
        kernel: &str,
    ) -> Option<LaunchId> {
        if !self.has_room(stack.len()) {
            return None;
        }
        let id = LaunchId(self.launches.len());
        self.launches.push(Launch {
            process: builder.process(pid, comm),
            comm: builder.string(comm),
            pid,
            stack: stack.into(),
            kernel: builder.string(kernel),
            address: 0,
            method: Method::Latest,
        });
        Some(id)
    }

    /// The frames of the host that a text names, from the root.
    fn host(
        &mut self,
        builder: &mut ProfileBuilder,
        texts: &Texts,
        id: TextId,
    ) -> Rc<[LocationId]> {
        if let Some(known) = self.hosts.get(&id) {
            return known.clone();
        }
        let text = texts.get_or(id, "");
        let mut names = text.split(';').filter(|name| !name.trim().is_empty());
        let mut host: Vec<LocationId> = names
            .by_ref()
            .take(MAX_DEPTH)
            .map(|name| host_frame(builder, name))
            .collect();
        if names.next().is_some() {
            host.push(frame(builder, "[stack too deep]", FrameKind::Unknown, 0));
            builder.losses().add(LossKind::StackTooDeep, 1);
        }
        let host: Rc<[LocationId]> = host.into();
        self.hosts.insert(id, host.clone());
        host
    }

    /// Adds a count to the profile, or to its losses if there is no room.
    pub(super) fn sample(&mut self, builder: &mut ProfileBuilder, texts: &Texts, at: &At) {
        let (Some(stack), Some(launch)) = (
            self.stack(builder, texts, at),
            self.launches.get(at.launch.0),
        ) else {
            builder
                .losses()
                .add(LossKind::DeviceSamplesRefused, at.count);
            return;
        };
        builder.sample(Sample {
            process: launch.process,
            tid: launch.pid,
            thread: launch.comm,
            cgroup: None,
            stack,
            count: at.count,
            time_ns: at.time_ns,
            bytes: 0,
            device: Some(DeviceSample {
                device: self.device,
                reason: Some(at.reason),
                code: Some(DeviceCode {
                    kernel: launch.kernel,
                    offset: at.offset,
                }),
                method: launch.method,
                certain: 0,
                possible: at.count,
            }),
        });
    }

    fn stack(&mut self, builder: &mut ProfileBuilder, texts: &Texts, at: &At) -> Option<StackId> {
        let key = (at.launch, at.offset, at.mnemonic, at.reason);
        if let Some(known) = self.stacks.get(&key) {
            return Some(*known);
        }
        let launch = self.launches.get(at.launch.0)?;
        let (prefix, address) = (launch.stack.clone(), launch.address);
        if !self.has_room(prefix.len() + 3) {
            return None;
        }
        let mnemonic = texts.get_or(at.mnemonic, "[failed decode]");
        let offset = format!("{:#x}", at.offset);
        let address = address.wrapping_add(at.offset);
        let mut locations = prefix.to_vec();
        for name in [&*mnemonic, at.reason.name(), &offset] {
            locations.push(frame(builder, name, FrameKind::DeviceHardware, address));
        }
        let stack = builder.stack(Stack {
            locations,
            complete: true,
            driver: 0,
        });
        self.stacks.insert(key, stack);
        Some(stack)
    }
}

fn frame(builder: &mut ProfileBuilder, name: &str, kind: FrameKind, address: u64) -> LocationId {
    let frame = builder.frame(name, kind, None);
    builder.location(Location {
        binary: None,
        address,
        frames: vec![frame],
    })
}

/// A frame of the host. iaprof has names only; aiprof's own text has suffixes.
fn host_frame(builder: &mut ProfileBuilder, name: &str) -> LocationId {
    let name = name.trim();
    let is_unknown = name.starts_with('[') && name.ends_with(']') || name.starts_with("0x");
    let (name, kind) = match FrameKind::of_suffix(name) {
        Some((plain, kind)) if !plain.is_empty() => (plain, kind),
        _ if is_unknown => (name, FrameKind::Unknown),
        _ => (name, FrameKind::Native),
    };
    frame(builder, name, kind, 0)
}
