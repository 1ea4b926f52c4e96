//! pprof: gzip-compressed `profile.proto`, for `go tool pprof` and everything
//! that reads its format.

mod folded;
mod program;
pub mod proto;

use super::code::{self, NO_STACK, is_device};
use super::device::DeviceTotals;
use super::folded::FoldedStacks;
use super::launchers::Chosen;
use super::{ExportError, ExportOptions, Weight, names};
use aiprof_model::labels;
use aiprof_model::profile::{self, DeviceId, LocationId, StallReason, Values};
use flate2::{Compression, GzBuilder};
use prost::Message;
use rustc_hash::{FxHashMap, FxHashSet};
use std::io::Write;

/// Mapping name by which pprof knows the kernel.
const KERNEL: &str = "[kernel.kallsyms]";

/// Writes a profile with the sample types samples/count and cpu/nanoseconds; a profile of
/// launches with launches/count, call time/nanoseconds and bytes/bytes. For launches,
/// viewers show `options.weight` first.
///
/// Where devices were sampled there are also device_samples/count, device_time/nanoseconds
/// and a stall_REASON/count for each reason that occurs. These samples are 0 in the types
/// of CPUs, and the other way round. device_time is shown first where there are no CPU
/// samples.
///
/// Every sample has the labels pid, tid, comm, thread and cgroup, those of
/// [`Profile::shown_labels`](profile::Profile::shown_labels), of a device also
/// device, method, certain and possible; losses are comments. The bytes depend on the profile alone: the gzip header has no
/// time.
///
/// # Errors
///
/// [`ExportError::Io`] when `out` fails.
pub fn write(
    profile: &profile::Profile,
    options: &ExportOptions,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    pack(&convert(profile, options), out)
}

/// Writes stacks that were folded already: one sample each, with a function per frame.
/// Their values are of `options.weight`: samples/count, cpu/nanoseconds or bytes/bytes.
///
/// # Errors
///
/// [`ExportError::Io`] when `out` fails.
pub fn write_folded(
    stacks: &FoldedStacks,
    options: &ExportOptions,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let (of, scale) = match options.weight {
        Weight::Time => (("cpu", "nanoseconds"), 1000),
        Weight::Samples => (("samples", "count"), 1),
        Weight::Bytes => (("bytes", "bytes"), 1),
    };
    let stacks = stacks.stacks.iter();
    let stacks = stacks.map(|(stack, value)| (stack.as_str(), value.saturating_mul(scale)));
    pack(&folded::convert(stacks, of), out)
}

/// As [`write_folded`], of values of any type: its name and unit.
///
/// # Errors
///
/// [`ExportError::Io`] when `out` fails.
pub fn write_values(
    stacks: &[(String, u64)],
    of: (&str, &str),
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let stacks = stacks.iter().map(|(stack, value)| (stack.as_str(), *value));
    pack(&folded::convert(stacks, of), out)
}

fn pack(message: &proto::PprofProfile, out: &mut dyn Write) -> Result<(), ExportError> {
    let message = message.encode_to_vec();
    // Level 3 takes about half the time of the default, 6, and makes files 5 to
    // 10 % larger.
    let mut gzip = GzBuilder::new().write(out, Compression::new(3));
    gzip.write_all(&message)?;
    gzip.finish()?.flush()?;
    Ok(())
}

/// The messages of a profile.
pub fn convert(profile: &profile::Profile, options: &ExportOptions) -> proto::PprofProfile {
    let chosen = Chosen::of(profile, options);
    let mut writer = Converter::new(profile);
    writer.describe(chosen.line());
    writer.types(options);
    let samples = profile.samples.iter();
    let samples: Vec<&profile::Sample> = samples
        .filter(|sample| options.shown.includes(sample) && chosen.includes(profile, sample))
        .collect();
    writer.mappings(&samples);
    samples.into_iter().for_each(|sample| writer.sample(sample));
    writer.out
}

/// Some samples of a profile as pprof, without labels: samples of the same stack are one.
/// Binaries that none of them is in are left out.
///
/// # Errors
///
/// [`ExportError::Io`]; not in memory.
pub(super) fn pack_unlabelled<'a>(
    profile: &'a profile::Profile,
    options: &ExportOptions,
    samples: impl Iterator<Item = &'a profile::Sample>,
) -> Result<Vec<u8>, ExportError> {
    let mut writer = Converter::new(profile);
    writer.merged = Some(FxHashMap::default());
    writer.describe(None);
    writer.types(options);
    let samples: Vec<&profile::Sample> = samples.collect();
    writer.mappings(&samples);
    samples.into_iter().for_each(|sample| writer.sample(sample));
    let mut message = writer.out;
    let used: FxHashSet<u64> = message.location.iter().map(|at| at.mapping_id).collect();
    message.mapping.retain(|mapping| used.contains(&mapping.id));
    let mut bytes = Vec::new();
    pack(&message, &mut bytes)?;
    Ok(bytes)
}

/// Tables under construction.
struct Converter<'a> {
    profile: &'a profile::Profile,
    out: proto::PprofProfile,
    strings: FxHashMap<String, i64>,
    /// Ids of the mappings of all binaries, then of all devices.
    mappings: Vec<u64>,
    /// Id of each function by name and file.
    functions: FxHashMap<(i64, i64), u64>,
    /// Id of each location that a sample needed, by [`LocationId`]; 0: none yet.
    locations: Vec<u64>,
    /// The same of locations in device code, by device.
    device_locations: FxHashMap<(LocationId, DeviceId), u64>,
    /// The stall reasons that have a sample type; `None`: no device was sampled.
    reasons: Option<Vec<StallReason>>,
    /// Id of the location of samples without a stack; 0: none yet.
    no_stack: u64,
    /// Places of the samples by their locations, where they have no labels; `None`: they
    /// have, and none is merged.
    merged: Option<FxHashMap<Vec<u64>, usize>>,
}

impl<'a> Converter<'a> {
    fn new(profile: &'a profile::Profile) -> Self {
        let mut new = Self {
            profile,
            out: proto::PprofProfile::default(),
            strings: FxHashMap::default(),
            mappings: Vec::new(),
            functions: FxHashMap::default(),
            locations: vec![0; profile.locations.len()],
            device_locations: FxHashMap::default(),
            reasons: None,
            no_stack: 0,
            merged: None,
        };
        new.string("");
        new
    }

    /// Index of a string.
    fn string(&mut self, text: &str) -> i64 {
        if let Some(&known) = self.strings.get(text) {
            return known;
        }
        let new = i64::try_from(self.out.string_table.len()).unwrap_or(i64::MAX);
        self.out.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), new);
        new
    }

    fn value_type(&mut self, name: &str, unit: &str) -> proto::PprofValueType {
        proto::PprofValueType {
            r#type: self.string(name),
            unit: self.string(unit),
        }
    }

    /// Everything about the recording as a whole.
    fn describe(&mut self, shown: Option<String>) {
        let meta = &self.profile.meta;
        self.out.time_nanos = signed(meta.start_unix_ns);
        self.out.duration_nanos = signed(meta.duration_ns);
        for comment in self.comments().into_iter().chain(shown) {
            let index = self.string(&comment);
            self.out.comment.push(index);
        }
    }

    /// What the values of the samples are.
    fn types(&mut self, options: &ExportOptions) {
        match self.profile.values {
            Values::CpuTime => {
                let samples = self.value_type("samples", "count");
                let cpu = self.value_type("cpu", "nanoseconds");
                self.out.sample_type = vec![samples, cpu];
                self.out.period_type = Some(cpu);
                self.out.default_sample_type = cpu.r#type;
                self.out.period = signed(self.profile.meta.period_ns);
                self.device_types(options);
            }
            Values::WaitTime | Values::WallTime => {
                let name = match self.profile.values {
                    Values::WallTime => "wall",
                    _ => "off_cpu",
                };
                let samples = self.value_type("samples", "count");
                let time = self.value_type(name, "nanoseconds");
                self.out.sample_type = vec![samples, time];
                self.out.period_type = Some(time);
                self.out.default_sample_type = time.r#type;
                self.out.period = signed(self.profile.meta.period_ns);
            }
            Values::Launches => {
                let launches = self.value_type("launches", "count");
                let time = self.value_type("call time", "nanoseconds");
                let bytes = self.value_type("bytes", "bytes");
                self.out.sample_type = vec![launches, time, bytes];
                let shown = match options.weight {
                    Weight::Samples => launches,
                    Weight::Time => time,
                    Weight::Bytes => bytes,
                };
                self.out.default_sample_type = shown.r#type;
            }
        }
    }

    /// The types of device samples, if any are written.
    fn device_types(&mut self, options: &ExportOptions) {
        let written = || {
            let samples = self.profile.samples.iter();
            samples.filter(|sample| options.shown.includes(sample))
        };
        if written().all(|sample| sample.device.is_none()) {
            return;
        }
        let only_devices = written().all(|sample| sample.device.is_some());
        let occurs = |reason: &StallReason| {
            let mut devices = written().filter_map(|sample| sample.device);
            devices.any(|device| device.reason == Some(*reason))
        };
        let reasons: Vec<_> = StallReason::ALL.into_iter().filter(occurs).collect();
        let samples = self.value_type("device_samples", "count");
        let time = self.value_type("device_time", "nanoseconds");
        self.out.sample_type.extend([samples, time]);
        for reason in &reasons {
            let stall = self.value_type(&format!("stall_{}", reason.name()), "count");
            self.out.sample_type.push(stall);
        }
        self.reasons = Some(reasons);
        if only_devices {
            self.out.default_sample_type = match options.weight {
                Weight::Samples => samples.r#type,
                _ => time.r#type,
            };
        }
    }

    /// Host, command and losses, one line each.
    fn comments(&self) -> Vec<String> {
        let meta = &self.profile.meta;
        let mut comments: Vec<String> = [
            ("title", &meta.title),
            ("host", &meta.host),
            ("kernel", &meta.kernel),
            ("command", &meta.command),
        ]
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(key, value)| format!("{key}: {value}"))
        .collect();
        if self.profile.samples.is_empty() {
            comments.push("no samples were recorded".to_owned());
        }
        comments.extend(DeviceTotals::of(self.profile).lines());
        for (kind, n) in self.profile.losses.iter() {
            comments.push(format!("lost: {n} {}", kind.label()));
        }
        // For programs, as the lines before are for people.
        for (key, n) in facts(self.profile) {
            comments.push(format!("{key}: {n}"));
        }
        comments
    }

    /// One mapping per binary and device: its id is its place plus 1. That of the samples' program
    /// comes first.
    fn mappings(&mut self, samples: &[&profile::Sample]) {
        let mut ranges: Vec<_> = code::ranges(self.profile).into_iter().enumerate().collect();
        self.mappings = vec![0; ranges.len()];
        let first = program::find(self.profile, samples).map(|id| id.0 as usize);
        ranges.sort_by_key(|(index, _)| Some(*index) != first);
        for ((index, range), id) in ranges.into_iter().zip(1..) {
            if let Some(slot) = self.mappings.get_mut(index) {
                *slot = id;
            }
            let path = match range.name.as_str() {
                "[kernel]" => KERNEL,
                path => path,
            };
            let build_id = range.build_id.map_or(String::new(), |id| id.to_string());
            let mapping = proto::PprofMapping {
                id,
                memory_start: 0,
                memory_limit: range.limit,
                file_offset: 0,
                filename: self.string(path),
                build_id: self.string(&build_id),
                has_functions: true,
                has_filenames: true,
                has_line_numbers: true,
                has_inline_frames: true,
            };
            self.out.mapping.push(mapping);
        }
    }

    fn sample(&mut self, sample: &profile::Sample) {
        let profile = self.profile;
        let stack = profile.stacks.get(sample.stack.0 as usize);
        let mut location_id: Vec<u64> = stack
            .into_iter()
            .flat_map(|stack| stack.locations.iter().rev())
            .map(|&id| self.location(id, sample.device.map(|device| device.device)))
            .filter(|&id| id != 0)
            .collect();
        if location_id.is_empty() {
            location_id.push(self.no_stack());
        }
        let value = self.values(sample);
        if let Some(merged) = &mut self.merged {
            let next = self.out.sample.len();
            let at = *merged.entry(location_id.clone()).or_insert(next);
            if let Some(known) = self.out.sample.get_mut(at) {
                for (sum, more) in known.value.iter_mut().zip(value) {
                    *sum = sum.saturating_add(more);
                }
                return;
            }
        }
        let label = match self.merged {
            Some(_) => Vec::new(),
            None => self.labels_of(sample),
        };
        self.out.sample.push(proto::PprofSample {
            location_id,
            value,
            label,
        });
    }

    /// The values of a sample, one per sample type.
    fn values(&self, sample: &profile::Sample) -> Vec<i64> {
        let (count, time) = (signed(sample.count), signed(sample.time_ns));
        if self.profile.values == Values::Launches {
            return vec![count, time, signed(sample.bytes)];
        }
        let Some(reasons) = &self.reasons else {
            return vec![count, time];
        };
        let Some(device) = sample.device else {
            let mut values = vec![count, time];
            values.resize(4 + reasons.len(), 0);
            return values;
        };
        let mut values = vec![0, 0, count, time];
        let of_reason = |reason: &StallReason| match device.reason == Some(*reason) {
            true => count,
            false => 0,
        };
        values.extend(reasons.iter().map(of_reason));
        values
    }

    /// What is known about the attribution of a device's sample.
    fn device_labels(
        &mut self,
        device: profile::DeviceSample,
        labels: &mut Vec<proto::PprofLabel>,
    ) {
        let name = self.profile.devices.get(device.device.0 as usize);
        let name = name.map_or("", |device| device.name.as_str());
        for (key, value) in [("device", name), ("method", device.method.label())] {
            if !value.is_empty() {
                labels.push(proto::PprofLabel {
                    key: self.string(key),
                    str: self.string(value),
                    ..proto::PprofLabel::default()
                });
            }
        }
        for (key, n) in [("certain", device.certain), ("possible", device.possible)] {
            labels.push(proto::PprofLabel {
                key: self.string(key),
                num: signed(n),
                num_unit: self.string("samples"),
                ..proto::PprofLabel::default()
            });
        }
    }

    fn labels_of(&mut self, sample: &profile::Sample) -> Vec<proto::PprofLabel> {
        let profile = self.profile;
        let process = profile.processes.get(sample.process.0 as usize);
        let numbers = [("pid", process.map_or(0, |p| p.pid)), ("tid", sample.tid)];
        let strings = [
            ("comm", process.map(|p| p.comm)),
            ("thread", Some(sample.thread)),
            ("cgroup", sample.cgroup),
        ];
        let mut labels = Vec::with_capacity(numbers.len() + strings.len());
        for (key, num) in numbers {
            labels.push(proto::PprofLabel {
                key: self.string(key),
                num: i64::from(num),
                ..proto::PprofLabel::default()
            });
        }
        for (key, value) in strings {
            let value = value.map_or("", |id| profile.str(id));
            if !value.is_empty() {
                labels.push(proto::PprofLabel {
                    key: self.string(key),
                    str: self.string(value),
                    ..proto::PprofLabel::default()
                });
            }
        }
        let service = super::services::name(profile, sample);
        labels.push(proto::PprofLabel {
            key: self.string(labels::SERVICE),
            str: self.string(&service),
            ..proto::PprofLabel::default()
        });
        for (key, value) in profile.shown_labels(sample) {
            if key == labels::SERVICE {
                continue;
            }
            labels.push(proto::PprofLabel {
                key: self.string(key),
                str: self.string(&value),
                ..proto::PprofLabel::default()
            });
        }
        if let Some(device) = sample.device {
            self.device_labels(device, &mut labels);
        }
        labels
    }

    /// Id of a location as it is in a device's sample or another one; 0 if the profile
    /// has none of that number.
    fn location(&mut self, id: LocationId, device: Option<DeviceId>) -> u64 {
        let profile = self.profile;
        let Some(location) = profile.locations.get(id.0 as usize) else {
            return 0;
        };
        let device = device.filter(|_| is_device(profile, location));
        let known = match device {
            Some(device) => self.device_locations.get(&(id, device)),
            None => self.locations.get(id.0 as usize),
        };
        if let Some(&known) = known.filter(|&&known| known != 0) {
            return known;
        }
        let line = location
            .frames
            .iter()
            .rev()
            .filter_map(|frame| profile.frames.get(frame.0 as usize))
            .map(|frame| self.line(frame))
            .collect();
        let mapping = match (location.binary, device) {
            (Some(id), _) => self.mapping_id(id.0 as usize),
            (None, Some(DeviceId(id))) => {
                self.mapping_id(profile.binaries.len().saturating_add(id as usize))
            }
            (None, None) => 0,
        };
        let new = self.push_location(mapping, location.address, line);
        match (device, self.locations.get_mut(id.0 as usize)) {
            (Some(device), _) => {
                self.device_locations.insert((id, device), new);
            }
            (None, Some(slot)) => *slot = new,
            (None, None) => {}
        }
        new
    }

    fn mapping_id(&self, index: usize) -> u64 {
        self.mappings.get(index).copied().unwrap_or(0)
    }

    fn no_stack(&mut self) -> u64 {
        if self.no_stack == 0 {
            let line = proto::PprofLine {
                function_id: self.function(NO_STACK, ""),
                line: 0,
            };
            self.no_stack = self.push_location(0, 0, vec![line]);
        }
        self.no_stack
    }

    fn push_location(&mut self, mapping_id: u64, address: u64, line: Vec<proto::PprofLine>) -> u64 {
        let id = self.out.location.len() as u64 + 1;
        self.out.location.push(proto::PprofLocation {
            id,
            mapping_id,
            address,
            line,
        });
        id
    }

    fn line(&mut self, frame: &profile::Frame) -> proto::PprofLine {
        let profile = self.profile;
        let name = match profile.str(frame.name) {
            "" => names::UNKNOWN,
            name => name,
        };
        let file = frame.file.map_or("", |file| profile.str(file));
        proto::PprofLine {
            function_id: self.function(name, file),
            line: i64::from(frame.line),
        }
    }

    /// Id of a function.
    fn function(&mut self, name: &str, file: &str) -> u64 {
        let key = (self.string(name), self.string(file));
        if let Some(&known) = self.functions.get(&key) {
            return known;
        }
        let id = self.out.function.len() as u64 + 1;
        self.out.function.push(proto::PprofFunction {
            id,
            name: key.0,
            system_name: key.0,
            filename: key.1,
        });
        self.functions.insert(key, id);
        id
    }
}

/// The recorder's own numbers, and its losses, for a program that reads the comments:
/// `aiprof.own_cpu_ns`, `aiprof.lost.ring_drops`. None where the recorder is no agent.
fn facts(profile: &profile::Profile) -> Vec<(String, u64)> {
    if profile.facts.is_empty() {
        return Vec::new();
    }
    let own = profile.facts.iter();
    let own = own.map(|(key, n)| (format!("aiprof.{key}"), *n));
    let lost = profile.losses.iter();
    own.chain(lost.map(|(kind, n)| (format!("aiprof.lost.{}", kind.key()), n)))
        .collect()
}

/// pprof's numbers are signed.
fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
