//! Device samples of an aggregate as samples of a profile.

use super::{
    Aggregator, Code,
    devices::{Devices, Path, Row, RowKey},
    driver::HostStack,
    modules::ModuleKernel,
};
use crate::correlate::device::{CodeId, PARTS, PathId};
use aiprof_model::profile::{
    Device, DeviceCode, DeviceId, DeviceSample, FrameKind, Location, LocationId, Method,
    ProfileBuilder, Sample, Stack,
};
use aiprof_symbols::symbolize::device::{Kernel, isa};
use rustc_hash::FxHashMap;

/// Instructions of a kernel by offset.
type Listing = FxHashMap<u32, std::borrow::Cow<'static, str>>;

/// A kernel that samples are of, with what its frames are made of.
#[derive(Debug)]
pub(super) struct Described {
    name: String,
    found: Option<ModuleKernel>,
    listing: Listing,
}

impl Described {
    pub(super) fn new(name: &str, found: Option<ModuleKernel>) -> Self {
        let code = found.as_ref().and_then(|f| f.kernel().zip(f.platform()));
        let listing = code.map_or_else(Listing::default, |(kernel, platform)| {
            let decoded = isa::decode(&kernel.code, platform);
            let instructions = decoded.instructions.into_iter();
            instructions.map(|i| (i.offset, i.mnemonic)).collect()
        });
        Self {
            name: name.to_owned(),
            found,
            listing,
        }
    }

    /// The kernel in its module.
    pub(super) fn found(&self) -> Option<&ModuleKernel> {
        self.found.as_ref()
    }

    fn kernel(&self) -> Option<&Kernel> {
        self.found.as_ref()?.kernel()
    }
}

/// A frame before it is in a profile.
struct Named {
    name: String,
    kind: FrameKind,
    source: Option<(String, u32)>,
}

fn software(name: impl Into<String>) -> Named {
    Named {
        name: name.into(),
        kind: FrameKind::DeviceSoftware,
        source: None,
    }
}

fn hardware(name: impl Into<String>) -> Named {
    Named {
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
fn frames_of(code: Option<&Described>, offset: u64) -> Vec<Named> {
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
    frames.push(Named {
        source: place(0),
        ..software(described.name.as_str())
    });
    // A function that the kernel calls, and what is inlined there.
    for (i, frame) in source.iter().enumerate() {
        let is_own = i == 0 && kernel.is_some_and(|k| frame.function == k.display);
        if !is_own && !frame.function.is_empty() {
            frames.push(Named {
                source: place(i),
                ..software(frame.function.as_str())
            });
        }
    }
    if let Some((file, line)) = source.len().checked_sub(1).and_then(place) {
        let (_, name) = split_path(&file);
        frames.push(Named {
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

impl Devices {
    /// Finds what the frames of all rows are made of.
    pub(super) fn describe(&mut self) {
        let codes: std::collections::BTreeSet<CodeId> =
            self.rows.keys().filter_map(|row| row.code).collect();
        for code in codes {
            let stale = self
                .described
                .get(&code)
                .is_none_or(|d| d.listing.is_empty());
            if stale {
                let found = self.find(code);
                let name = self.kernel(code).map_or("", |kernel| &kernel.name);
                let described = Described::new(name, found);
                self.described.insert(code, described);
            }
        }
    }
}

/// Whole samples for rows that hold parts: their sum is kept, and over many
/// instructions every path's.
pub(super) fn whole(rows: &[(RowKey, Row)]) -> Vec<u64> {
    let mut counts: Vec<u64> = rows.iter().map(|(_, row)| row.parts / PARTS).collect();
    // What each path has got too little of until here.
    let mut owed: FxHashMap<Option<PathId>, i64> = FxHashMap::default();
    let mut spare = 0;
    let mut first = 0;
    let instruction = |key: &RowKey| (key.stream, key.code, key.offset, key.reason);
    while let Some((key, _)) = rows.get(first) {
        let same = |(other, _): &&(RowKey, Row)| instruction(other) == instruction(key);
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

/// Puts the device samples of an aggregate into a profile. `locate`: the location of
/// a code of a launch stack.
pub(super) fn add(
    aggregate: &Aggregator,
    builder: &mut ProfileBuilder,
    mut locate: impl FnMut(&mut ProfileBuilder, u32) -> LocationId,
    cgroup: impl Fn(u64) -> Option<String>,
) {
    let calls = aggregate.calls.as_ref();
    let Some(devices) = calls.and_then(|calls| calls.devices.as_deref()) else {
        return;
    };
    let mut writer = Writer {
        aggregate,
        devices,
        ids: Vec::new(),
        launches: FxHashMap::default(),
        instructions: FxHashMap::default(),
    };
    for stream in &devices.streams {
        let device = Device {
            name: stream.name.clone(),
            replayed: stream.replayed.is_some(),
        };
        writer.ids.push((stream.id, builder.device(device)));
    }
    let mut rows: Vec<(RowKey, Row)> = devices.rows.iter().map(|(k, r)| (*k, *r)).collect();
    rows.sort_unstable_by_key(|(key, _)| *key);
    let counts = whole(&rows);
    let mut carry = 0.0;
    for ((key, row), count) in rows.into_iter().zip(counts) {
        let time = row.time_ns + carry;
        let time_ns = time.max(0.0) as u64;
        carry = time - time_ns as f64;
        let Some(sample) = writer.sample(builder, &mut locate, &cgroup, &key) else {
            continue;
        };
        let device = sample.device.map(|device| DeviceSample {
            certain: row.certain,
            possible: row.possible,
            ..device
        });
        builder.sample(Sample {
            count,
            time_ns,
            device,
            ..sample
        });
    }
    super::aiu::add(devices, &mut writer, builder, &mut locate, &cgroup);
}

/// The location of a code of a launch stack.
pub(super) type Locate<'a> = dyn FnMut(&mut ProfileBuilder, u32) -> LocationId + 'a;

/// Writes samples of devices.
pub(super) struct Writer<'a> {
    aggregate: &'a Aggregator,
    devices: &'a Devices,
    ids: Vec<(u32, DeviceId)>,
    /// Launch stacks.
    launches: FxHashMap<PathId, Stack>,
    /// Locations of instructions.
    instructions: FxHashMap<(Option<CodeId>, u64), Vec<LocationId>>,
}

impl Writer<'_> {
    /// A sample of a row, without its weights.
    fn sample(
        &mut self,
        builder: &mut ProfileBuilder,
        locate: &mut Locate<'_>,
        cgroup: &dyn Fn(u64) -> Option<String>,
        key: &RowKey,
    ) -> Option<Sample> {
        let device = self.ids.iter().find(|(id, _)| *id == key.stream)?.1;
        let mut frames = self.instruction(builder, key);
        frames.push(text(builder, key.reason.name(), FrameKind::DeviceHardware));
        let place = match key.offset {
            u64::MAX => "[too many instructions]".to_owned(),
            offset => format!("{offset:#x}"),
        };
        frames.push(text(builder, &place, FrameKind::DeviceHardware));
        let kernel = key.code.and_then(|code| self.devices.kernel(code));
        let code = kernel.map(|kernel| DeviceCode {
            kernel: builder.string(&kernel.name),
            offset: key.offset,
        });
        let is_known = key.path.and_then(|path| self.devices.path(path)).is_some();
        let origin = (key.path, key.pid.unwrap_or(0));
        Some(Sample {
            device: Some(DeviceSample {
                device,
                reason: Some(key.reason),
                code,
                method: if is_known {
                    key.method
                } else {
                    Method::Unattributed
                },
                certain: 0,
                possible: 0,
            }),
            ..self.launched(builder, locate, cgroup, origin, frames)
        })
    }

    /// A sample of what a path launched, or of an unknown launch; `frames` are the device's.
    pub(super) fn launched(
        &mut self,
        builder: &mut ProfileBuilder,
        locate: &mut Locate<'_>,
        cgroup: &dyn Fn(u64) -> Option<String>,
        (path_id, pid): (Option<PathId>, u32),
        frames: Vec<LocationId>,
    ) -> Sample {
        let path = path_id.and_then(|path| self.devices.path(path));
        let mut stack = match (path_id, path) {
            (Some(id), Some(path)) => self.launch(builder, locate, id, path),
            _ => Stack {
                locations: vec![text(builder, "[unattributed]", FrameKind::Unknown)],
                complete: true,
                driver: 0,
            },
        };
        stack.locations.push(text(builder, "-", FrameKind::Native));
        stack.locations.extend(frames);
        let pid = path.map_or(pid, |path| path.pid);
        let comm = path.map_or("[unattributed]", |path| &path.comm);
        let labels = path.and_then(|path| self.aggregate.labels.get(&path.labels));
        let labels = labels.map(|labels| labels.to_vec()).unwrap_or_default();
        let group = path.and_then(|path| cgroup(path.cgroup));
        Sample {
            process: builder.labelled_process(pid, comm, &labels),
            tid: pid,
            thread: builder.string(comm),
            cgroup: group.map(|group| builder.string(&group)),
            stack: builder.stack(stack),
            count: 0,
            time_ns: 0,
            bytes: 0,
            device: None,
        }
    }

    fn launch(
        &mut self,
        builder: &mut ProfileBuilder,
        locate: &mut Locate<'_>,
        id: PathId,
        path: &Path,
    ) -> Stack {
        if let Some(known) = self.launches.get(&id) {
            return known.clone();
        }
        let mut host = HostStack::default();
        let index = &self.aggregate.codes.index;
        let mut push = |host: &mut HostStack, builder: &mut ProfileBuilder, codes: &[Code]| {
            for &code in codes.iter().rev().filter_map(|code| index.get(code)) {
                let location = locate(builder, code);
                host.push(builder, location);
            }
        };
        push(&mut host, builder, &path.codes);
        host.function(builder, &path.function);
        if let Some(driver) = &path.driver {
            if let Some(function) = &driver.function {
                host.function(builder, function);
            }
            push(&mut host, builder, &driver.codes);
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

    fn instruction(&mut self, builder: &mut ProfileBuilder, key: &RowKey) -> Vec<LocationId> {
        let place = (key.code, key.offset);
        if let Some(known) = self.instructions.get(&place) {
            return known.clone();
        }
        let described = key.code.and_then(|code| self.devices.described.get(&code));
        let frames = frames_of(described, key.offset);
        let locations: Vec<LocationId> = frames
            .iter()
            .map(|frame| {
                let source = frame.source.as_ref();
                let source = source.map(|(file, line)| (file.as_str(), *line));
                let id = builder.frame(&frame.name, frame.kind, source);
                builder.location(Location {
                    binary: None,
                    address: 0,
                    frames: vec![id],
                })
            })
            .collect();
        self.instructions.insert(place, locations.clone());
        locations
    }
}

/// A location that is only a name.
pub(super) fn text(builder: &mut ProfileBuilder, name: &str, kind: FrameKind) -> LocationId {
    let frames = vec![builder.frame(name, kind, None)];
    builder.location(Location {
        binary: None,
        address: 0,
        frames,
    })
}
