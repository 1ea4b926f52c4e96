//! Device samples of an aggregate as samples of a profile.

use super::{
    Aggregator, Code, SampleTable,
    devices::{Devices, LaunchPath, StallKey, StallTotals},
    driver::{HostStack, text},
    modules::DescribedKernel,
};
use crate::correlate::device::{CodeId, PARTS, PathId};
use aiprof_model::profile::{
    Device, DeviceCode, DeviceId, DeviceSample, FrameKind, Location, LocationId, Method,
    ProfileBuilder, Sample, Stack,
};
use rustc_hash::FxHashMap;

/// A frame before it is in a profile.
struct DeviceFrame {
    name: String,
    kind: FrameKind,
    source: Option<(String, u32)>,
}

fn software(name: impl Into<String>) -> DeviceFrame {
    DeviceFrame {
        name: name.into(),
        kind: FrameKind::DeviceSoftware,
        source: None,
    }
}

fn hardware(name: impl Into<String>) -> DeviceFrame {
    DeviceFrame {
        kind: FrameKind::DeviceHardware,
        ..software(name)
    }
}

/// Directory and name of a path; the directory without the root's slash alone.
fn split_path(path: &str) -> (Option<&str>, &str) {
    match path.rsplit_once('/') {
        Some((directory, name)) if !name.is_empty() => {
            (Some(directory).filter(|d| !d.is_empty()), name)
        }
        _ => (None, path),
    }
}

/// The frames of an instruction, from the source's folder to the mnemonic: the
/// grammar is in `docs/output-formats.md`.
fn frames_of(code: Option<&DescribedKernel>, offset: u64) -> Vec<DeviceFrame> {
    let Some(described) = code else {
        return vec![software("[unknown kernel]")];
    };
    let at = u32::try_from(offset).ok();
    let kernel = described.kernel();
    let source = kernel.zip(at).map(|(kernel, at)| kernel.source(at));
    let source = source.unwrap_or_default();
    let own = source.first().map(|frame| frame.file.as_str());
    let file = own.filter(|file| !file.is_empty());
    let file = file.or_else(|| kernel?.source_file.as_deref());
    let mut frames = Vec::new();
    match file {
        Some(path) => {
            let (directory, name) = split_path(path);
            frames.extend(directory.map(software));
            frames.push(software(name));
        }
        None => frames.push(software("[unknown file]")),
    }
    let place = |i: usize| {
        let frame = source.get(i)?;
        (frame.line > 0).then(|| (frame.file.clone(), frame.line))
    };
    frames.push(DeviceFrame {
        source: place(0),
        ..software(described.name.as_str())
    });
    // A function that the kernel calls, and what is inlined there.
    for (i, frame) in source.iter().enumerate() {
        let is_own = i == 0 && kernel.is_some_and(|k| frame.function == k.display);
        if !is_own && !frame.function.is_empty() {
            frames.push(DeviceFrame {
                source: place(i),
                ..software(frame.function.as_str())
            });
        }
    }
    if let Some((file, line)) = source.len().checked_sub(1).and_then(place) {
        let (_, name) = split_path(&file);
        frames.push(DeviceFrame {
            name: format!("{name}:{line}"),
            source: Some((file.clone(), line)),
            ..software("")
        });
    }
    let mnemonic = at.and_then(|at| described.listing.get(&at));
    frames.push(match mnemonic {
        Some(mnemonic) => hardware(mnemonic.as_ref()),
        None => hardware("[unknown instruction]"),
    });
    frames
}

/// Whole samples for rows that hold parts: their sum is kept, and over many
/// instructions every path's.
pub(super) fn whole(rows: &[(StallKey, StallTotals)]) -> Vec<u64> {
    let mut counts: Vec<u64> = rows.iter().map(|(_, row)| row.parts / PARTS).collect();
    // What each path has got too little of until here.
    let mut owed: FxHashMap<Option<PathId>, i64> = FxHashMap::default();
    let mut spare = 0;
    let mut first = 0;
    let instruction = |key: &StallKey| (key.stream, key.code, key.offset, key.reason);
    while let Some((key, _)) = rows.get(first) {
        let same = |(other, _): &&(StallKey, StallTotals)| instruction(other) == instruction(key);
        let count = rows.iter().skip(first).take_while(same).count();
        let group = first..first + count;
        first += count;
        let mut wants: Vec<(i64, usize)> = Vec::new();
        for i in group {
            let Some((key, row)) = rows.get(i) else { break };
            let part = row.parts % PARTS;
            spare += part;
            let owed = owed.entry(key.path).or_default();
            *owed += part.cast_signed();
            if part > 0 {
                wants.push((*owed, i));
            }
        }
        wants.sort_unstable_by(|a, b| b.cmp(a));
        for (_, i) in wants {
            if spare < PARTS {
                break;
            }
            spare -= PARTS;
            if let (Some(count), Some((key, _))) = (counts.get_mut(i), rows.get(i)) {
                *count += 1;
                *owed.entry(key.path).or_default() -= PARTS.cast_signed();
            }
        }
    }
    // Parts of instructions of several kernels may still make a sample.
    if spare >= PARTS / 2
        && let Some(last) = counts.last_mut()
    {
        *last += 1;
    }
    counts
}

/// The location of a code of a launch stack.
pub(super) type Locate<'a> = dyn FnMut(&mut ProfileBuilder, u32) -> LocationId + 'a;

/// Writes samples of devices.
pub(super) struct DeviceRowWriter<'a, 'l> {
    table: &'a SampleTable,
    pub(super) devices: &'a Devices,
    pub(super) builder: &'a mut ProfileBuilder,
    locate: &'a mut Locate<'l>,
    cgroup: &'a dyn Fn(u64) -> Option<String>,
    /// Launch stacks.
    launches: FxHashMap<PathId, Stack>,
    /// Locations of instructions.
    instructions: FxHashMap<(Option<CodeId>, u64), Vec<LocationId>>,
}

impl<'a, 'l> DeviceRowWriter<'a, 'l> {
    /// Puts device samples of an aggregate into a profile; `None`: it has none. `locate`: the
    /// location of a code of a launch stack.
    pub(super) fn new(
        aggregate: &'a Aggregator,
        builder: &'a mut ProfileBuilder,
        locate: &'a mut Locate<'l>,
        cgroup: &'a dyn Fn(u64) -> Option<String>,
    ) -> Option<Self> {
        Some(Self {
            table: &aggregate.table,
            devices: aggregate.calls.as_ref()?.devices.as_deref()?,
            builder,
            locate,
            cgroup,
            launches: FxHashMap::default(),
            instructions: FxHashMap::default(),
        })
    }

    /// Writes what was sampled.
    pub(super) fn write_stalls(&mut self) {
        let mut ids = Vec::new();
        for stream in &self.devices.streams {
            let device = Device {
                name: stream.name.clone(),
                replayed: stream.replayed.is_some(),
            };
            ids.push((stream.id, self.builder.device(device)));
        }
        let rows = self.devices.rows.iter();
        let mut rows: Vec<(StallKey, StallTotals)> = rows.map(|(k, r)| (*k, *r)).collect();
        rows.sort_unstable_by_key(|(key, _)| *key);
        let counts = whole(&rows);
        let mut carry = 0.0;
        for ((key, row), count) in rows.into_iter().zip(counts) {
            let time = row.time_ns + carry;
            let time_ns = time.max(0.0) as u64;
            carry = time - time_ns as f64;
            let Some((_, device)) = ids.iter().find(|(id, _)| *id == key.stream) else {
                continue;
            };
            let sample = self.sample(*device, &key, &row);
            self.builder.sample(Sample {
                count,
                time_ns,
                ..sample
            });
        }
    }

    /// A sample of a row, without its values.
    fn sample(&mut self, device: DeviceId, key: &StallKey, row: &StallTotals) -> Sample {
        let mut frames = self.instruction(key);
        let offset = match key.offset {
            u64::MAX => "[too many instructions]".to_owned(),
            offset => format!("{offset:#x}"),
        };
        for name in [key.reason.name(), &offset] {
            frames.push(text(self.builder, name, FrameKind::DeviceHardware));
        }
        let kernel = key.code.and_then(|code| self.devices.kernel(code));
        let code = kernel.map(|kernel| DeviceCode {
            kernel: self.builder.string(&kernel.name),
            offset: key.offset,
        });
        let is_known = key.path.and_then(|path| self.devices.path(path)).is_some();
        let method = match is_known {
            true => key.method,
            false => Method::Unattributed,
        };
        Sample {
            device: Some(DeviceSample {
                device,
                reason: Some(key.reason),
                code,
                method,
                certain: row.certain,
                possible: row.possible,
            }),
            ..self.launched((key.path, key.pid.unwrap_or(0)), frames)
        }
    }

    /// A sample of what a path launched, or of an unknown launch; `frames` are the device's.
    pub(super) fn launched(
        &mut self,
        (path_id, pid): (Option<PathId>, u32),
        frames: Vec<LocationId>,
    ) -> Sample {
        let devices = self.devices;
        let path = path_id.and_then(|path| devices.path(path));
        let mut stack = match (path_id, path) {
            (Some(id), Some(path)) => self.launch(id, path),
            _ => Stack {
                locations: vec![text(self.builder, "[unattributed]", FrameKind::Unknown)],
                complete: true,
                driver: 0,
            },
        };
        let separator = text(self.builder, "-", FrameKind::Native);
        stack.locations.push(separator);
        stack.locations.extend(frames);
        let pid = path.map_or(pid, |path| path.pid);
        let comm = path.map_or("[unattributed]", |path| &path.comm);
        let labels = path.and_then(|path| self.table.labels.get(&path.labels));
        let labels = labels.map(|labels| labels.to_vec()).unwrap_or_default();
        let group = path.and_then(|path| (self.cgroup)(path.cgroup));
        Sample {
            process: self.builder.labelled_process(pid, comm, &labels),
            tid: pid,
            thread: self.builder.string(comm),
            cgroup: group.map(|group| self.builder.string(&group)),
            stack: self.builder.stack(stack),
            count: 0,
            time_ns: 0,
            bytes: 0,
            device: None,
        }
    }

    fn launch(&mut self, id: PathId, path: &LaunchPath) -> Stack {
        if let Some(known) = self.launches.get(&id) {
            return known.clone();
        }
        let mut host = HostStack::default();
        self.push(&mut host, &path.codes);
        host.function(self.builder, &path.function);
        if let Some(driver) = &path.driver {
            if let Some(function) = &driver.function {
                host.function(self.builder, function);
            }
            self.push(&mut host, &driver.codes);
        }
        let complete = path
            .codes
            .iter()
            .all(|code| code.cut().is_none() && !matches!(code, Code::NoStack(_)));
        let stack = Stack {
            locations: host.locations,
            complete,
            driver: host.driver,
        };
        self.launches.insert(id, stack.clone());
        stack
    }

    /// Adds frames to a stack; they are leaf first.
    fn push(&mut self, host: &mut HostStack, codes: &[Code]) {
        let index = &self.table.codes.index;
        for &code in codes.iter().rev().filter_map(|code| index.get(code)) {
            let location = (self.locate)(self.builder, code);
            host.push(self.builder, location);
        }
    }

    fn instruction(&mut self, key: &StallKey) -> Vec<LocationId> {
        let instruction = (key.code, key.offset);
        if let Some(known) = self.instructions.get(&instruction) {
            return known.clone();
        }
        let described = key.code.and_then(|code| self.devices.described.get(&code));
        let frames = frames_of(described, key.offset);
        let locations: Vec<LocationId> = frames
            .iter()
            .map(|frame| {
                let source = frame.source.as_ref();
                let source = source.map(|(file, line)| (file.as_str(), *line));
                let id = self.builder.frame(&frame.name, frame.kind, source);
                self.builder.location(Location {
                    binary: None,
                    address: 0,
                    frames: vec![id],
                })
            })
            .collect();
        self.instructions.insert(instruction, locations.clone());
        locations
    }
}
