//! Interning construction of a [`Profile`].

use super::{
    Binary, BinaryId, Device, DeviceCode, DeviceId, Frame, FrameId, FrameKind, Location,
    LocationId, Meta, Method, Process, ProcessId, Profile, Sample, Stack, StackId, StallReason,
    StrId, Values,
};
use rustc_hash::FxHashMap;
use std::hash::Hash;

/// Builds a [`Profile`]: equal strings, frames, locations and stacks are stored
/// once, equal samples are added up.
#[derive(Default)]
pub struct ProfileBuilder {
    profile: Profile,
    strings: FxHashMap<String, StrId>,
    binaries: FxHashMap<(String, Option<super::BuildId>), BinaryId>,
    processes: FxHashMap<Process, ProcessId>,
    frames: FxHashMap<Frame, FrameId>,
    locations: FxHashMap<Location, LocationId>,
    stacks: FxHashMap<Stack, StackId>,
    samples: FxHashMap<SampleKey, usize>,
}

/// What equal samples have in common.
type SampleKey = (
    ProcessId,
    u32,
    StrId,
    Option<StrId>,
    StackId,
    Option<(DeviceId, Option<StallReason>, Option<DeviceCode>, Method)>,
);

/// Index of `item` in `table`, appended first if it is new.
fn intern<T: Clone + Eq + Hash, I: Copy>(
    table: &mut Vec<T>,
    index: &mut FxHashMap<T, I>,
    item: T,
    id: impl Fn(u32) -> I,
) -> I {
    if let Some(found) = index.get(&item) {
        return *found;
    }
    let new = id(u32::try_from(table.len()).unwrap_or(u32::MAX));
    table.push(item.clone());
    index.insert(item, new);
    new
}

impl ProfileBuilder {
    /// An empty profile with the given description.
    pub fn new(meta: Meta) -> Self {
        Self {
            profile: Profile {
                meta,
                ..Profile::default()
            },
            ..Self::default()
        }
    }

    /// Sets what the samples are.
    pub fn of(&mut self, values: Values) {
        self.profile.values = values;
    }

    /// Interns a string.
    pub fn string(&mut self, text: &str) -> StrId {
        if let Some(found) = self.strings.get(text) {
            return *found;
        }
        intern(
            &mut self.profile.strings,
            &mut self.strings,
            text.to_owned(),
            StrId,
        )
    }

    /// Interns a binary.
    pub fn binary(&mut self, binary: Binary) -> BinaryId {
        let key = (binary.path.clone(), binary.build_id);
        if let Some(found) = self.binaries.get(&key) {
            return *found;
        }
        let id = BinaryId(u32::try_from(self.profile.binaries.len()).unwrap_or(u32::MAX));
        self.profile.binaries.push(binary);
        self.binaries.insert(key, id);
        id
    }

    /// Interns a process.
    pub fn process(&mut self, pid: u32, comm: &str) -> ProcessId {
        self.labelled_process(pid, comm, &[])
    }

    /// Interns a process with labels, which are in the order of their keys.
    pub fn labelled_process(
        &mut self,
        pid: u32,
        comm: &str,
        labels: &[(String, String)],
    ) -> ProcessId {
        let comm = self.string(comm);
        let labels = self.strings(labels);
        let process = Process { pid, comm, labels };
        intern(
            &mut self.profile.processes,
            &mut self.processes,
            process,
            ProcessId,
        )
    }

    /// Sets the labels that all samples have.
    pub fn labels(&mut self, labels: &[(String, String)]) {
        self.profile.labels = self.strings(labels);
    }

    fn strings(&mut self, labels: &[(String, String)]) -> Vec<(StrId, StrId)> {
        let pairs = labels.iter();
        pairs
            .map(|(key, value)| (self.string(key), self.string(value)))
            .collect()
    }

    /// Interns a frame.
    pub fn frame(&mut self, name: &str, kind: FrameKind, source: Option<(&str, u32)>) -> FrameId {
        let name = self.string(name);
        let file = source.map(|(file, _)| self.string(file));
        let line = source.map_or(0, |(_, line)| line);
        let frame = Frame {
            name,
            kind,
            file,
            line,
        };
        intern(&mut self.profile.frames, &mut self.frames, frame, FrameId)
    }

    /// Interns a location.
    pub fn location(&mut self, location: Location) -> LocationId {
        intern(
            &mut self.profile.locations,
            &mut self.locations,
            location,
            LocationId,
        )
    }

    /// A location without its outermost frame if that has this name; `None`: nothing else
    /// is there.
    pub fn below(&mut self, location: LocationId, name: &str) -> Option<LocationId> {
        let known = self.profile.locations.get(location.0 as usize);
        let first = known.and_then(|known| known.frames.first());
        let frame = first.and_then(|frame| self.profile.frames.get(frame.0 as usize));
        if frame.is_none_or(|frame| self.profile.str(frame.name) != name) {
            return Some(location);
        }
        let mut inlined = known?.clone();
        inlined.frames.remove(0);
        (!inlined.frames.is_empty()).then(|| self.location(inlined))
    }

    /// Interns a stack.
    pub fn stack(&mut self, stack: Stack) -> StackId {
        intern(&mut self.profile.stacks, &mut self.stacks, stack, StackId)
    }

    /// Adds a sample to the one with the same key.
    pub fn sample(&mut self, sample: Sample) {
        let key = (
            sample.process,
            sample.tid,
            sample.thread,
            sample.cgroup,
            sample.stack,
            sample
                .device
                .map(|d| (d.device, d.reason, d.code, d.method)),
        );
        match self
            .samples
            .get(&key)
            .and_then(|&i| self.profile.samples.get_mut(i))
        {
            Some(known) => {
                known.count = known.count.saturating_add(sample.count);
                known.time_ns = known.time_ns.saturating_add(sample.time_ns);
                known.bytes = known.bytes.saturating_add(sample.bytes);
                if let Some((known, more)) = known.device.as_mut().zip(sample.device) {
                    known.certain = known.certain.saturating_add(more.certain);
                    known.possible = known.possible.saturating_add(more.possible);
                }
            }
            None => {
                self.samples.insert(key, self.profile.samples.len());
                self.profile.samples.push(sample);
            }
        }
    }

    /// Adds a device that was sampled.
    pub fn device(&mut self, device: Device) -> DeviceId {
        let devices = &mut self.profile.devices;
        if let Some(known) = devices.iter().position(|d| *d == device) {
            return DeviceId(u32::try_from(known).unwrap_or(u32::MAX));
        }
        devices.push(device);
        DeviceId(u32::try_from(devices.len() - 1).unwrap_or(u32::MAX))
    }

    /// The losses, to add to.
    pub fn losses(&mut self) -> &mut super::Losses {
        &mut self.profile.losses
    }

    /// Sets how much work was handed to drivers ([`Profile::submissions`]).
    pub fn submissions(&mut self, count: u64) {
        self.profile.submissions = count;
    }

    /// The description, to complete.
    pub fn meta(&mut self) -> &mut Meta {
        &mut self.profile.meta
    }

    /// The finished profile.
    pub fn finish(self) -> Profile {
        self.profile
    }
}
