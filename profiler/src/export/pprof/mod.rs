//! pprof: gzip-compressed `profile.proto`, for `go tool pprof` and everything
//! that reads its format.

pub mod proto;

use super::{ExportError, ExportOptions, Weight, names};
use crate::profile::{self, BinaryId, LocationId, Values};
use flate2::{Compression, GzBuilder};
use prost::Message;
use rustc_hash::FxHashMap;
use std::io::Write;

/// Mapping name by which pprof knows the kernel.
const KERNEL: &str = "[kernel.kallsyms]";

/// Name of the frame that stands for a stack without any.
const NO_STACK: &str = "[no stack]";

/// Writes a profile with the sample types samples/count and cpu/nanoseconds, or of
/// launches launches/count, call time/nanoseconds and bytes/bytes. Of launches,
/// `options.weight` is the one that viewers show first.
///
/// Every sample has the labels pid, tid, comm, thread and cgroup; losses are
/// comments. The bytes depend on the profile alone: the gzip header has no
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
    let message = convert(profile, options.weight).encode_to_vec();
    // Level 3 takes about half the time of the default, 6, and makes files 5 to
    // 10 % larger.
    let mut gzip = GzBuilder::new().write(out, Compression::new(3));
    gzip.write_all(&message)?;
    gzip.finish()?.flush()?;
    Ok(())
}

/// The messages of a profile.
pub fn convert(profile: &profile::Profile, weight: Weight) -> proto::Profile {
    let mut writer = Converter::new(profile);
    writer.describe();
    writer.types(weight);
    writer.mappings();
    for sample in &profile.samples {
        writer.sample(sample);
    }
    writer.out
}

/// Tables under construction.
struct Converter<'a> {
    profile: &'a profile::Profile,
    out: proto::Profile,
    strings: FxHashMap<String, i64>,
    /// Id of each function by name and file.
    functions: FxHashMap<(i64, i64), u64>,
    /// Id of each location that a sample needed, by [`LocationId`]; 0: none yet.
    locations: Vec<u64>,
    /// Id of the location of samples without a stack; 0: none yet.
    no_stack: u64,
}

impl<'a> Converter<'a> {
    fn new(profile: &'a profile::Profile) -> Self {
        let mut new = Self {
            profile,
            out: proto::Profile::default(),
            strings: FxHashMap::default(),
            functions: FxHashMap::default(),
            locations: vec![0; profile.locations.len()],
            no_stack: 0,
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

    fn value_type(&mut self, name: &str, unit: &str) -> proto::ValueType {
        proto::ValueType {
            r#type: self.string(name),
            unit: self.string(unit),
        }
    }

    /// Everything about the recording as a whole.
    fn describe(&mut self) {
        let meta = &self.profile.meta;
        self.out.time_nanos = signed(meta.start_unix_ns);
        self.out.duration_nanos = signed(meta.duration_ns);
        for comment in self.comments() {
            let index = self.string(&comment);
            self.out.comment.push(index);
        }
    }

    /// What the values of the samples are.
    fn types(&mut self, weight: Weight) {
        match self.profile.values {
            Values::CpuTime => {
                let samples = self.value_type("samples", "count");
                let cpu = self.value_type("cpu", "nanoseconds");
                self.out.sample_type = vec![samples, cpu];
                self.out.period_type = Some(cpu);
                self.out.default_sample_type = cpu.r#type;
                self.out.period = signed(self.profile.meta.period_ns);
            }
            Values::Launches => {
                let launches = self.value_type("launches", "count");
                let time = self.value_type("call time", "nanoseconds");
                let bytes = self.value_type("bytes", "bytes");
                self.out.sample_type = vec![launches, time, bytes];
                let shown = match weight {
                    Weight::Samples => launches,
                    Weight::Time => time,
                    Weight::Bytes => bytes,
                };
                self.out.default_sample_type = shown.r#type;
            }
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
        for (kind, n) in self.profile.losses.iter() {
            comments.push(format!("lost: {n} {}", kind.label()));
        }
        comments
    }

    /// One mapping per binary: its id is the binary's index plus 1.
    fn mappings(&mut self) {
        let mut limits = vec![0_u64; self.profile.binaries.len()];
        for location in &self.profile.locations {
            let limit = location.binary.and_then(|id| limits.get_mut(id.0 as usize));
            if let Some(limit) = limit {
                *limit = (*limit).max(location.address.saturating_add(1));
            }
        }
        for ((binary, limit), id) in self.profile.binaries.iter().zip(limits).zip(1..) {
            let path = match binary.path.as_str() {
                "[kernel]" => KERNEL,
                path => path,
            };
            let build_id = binary.build_id.map_or(String::new(), |id| id.to_string());
            let mapping = proto::Mapping {
                id,
                // Addresses are those of the file, not of a process: the range
                // is from 0 to the highest address that was seen.
                memory_start: 0,
                memory_limit: limit.checked_next_multiple_of(4096).unwrap_or(u64::MAX),
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
            .map(|&id| self.location(id))
            .filter(|&id| id != 0)
            .collect();
        if location_id.is_empty() {
            location_id.push(self.no_stack());
        }
        let label = self.labels(sample);
        let mut value = vec![signed(sample.count), signed(sample.time_ns)];
        if profile.values == Values::Launches {
            value.push(signed(sample.bytes));
        }
        self.out.sample.push(proto::Sample {
            location_id,
            value,
            label,
        });
    }

    fn labels(&mut self, sample: &profile::Sample) -> Vec<proto::Label> {
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
            labels.push(proto::Label {
                key: self.string(key),
                num: i64::from(num),
                ..proto::Label::default()
            });
        }
        for (key, value) in strings {
            let value = value.map_or("", |id| profile.str(id));
            if !value.is_empty() {
                labels.push(proto::Label {
                    key: self.string(key),
                    str: self.string(value),
                    ..proto::Label::default()
                });
            }
        }
        labels
    }

    /// Id of a location, 0 if the profile has none of that number.
    fn location(&mut self, id: LocationId) -> u64 {
        let profile = self.profile;
        let (Some(&known), Some(location)) = (
            self.locations.get(id.0 as usize),
            profile.locations.get(id.0 as usize),
        ) else {
            return 0;
        };
        if known != 0 {
            return known;
        }
        let line = location
            .frames
            .iter()
            .rev()
            .filter_map(|frame| profile.frames.get(frame.0 as usize))
            .map(|frame| self.line(frame))
            .collect();
        let mapping = location.binary.map_or(0, |id| self.mapping_id(id));
        let new = self.push_location(mapping, location.address, line);
        if let Some(slot) = self.locations.get_mut(id.0 as usize) {
            *slot = new;
        }
        new
    }

    fn mapping_id(&self, id: BinaryId) -> u64 {
        self.out
            .mapping
            .get(id.0 as usize)
            .map_or(0, |mapping| mapping.id)
    }

    fn no_stack(&mut self) -> u64 {
        if self.no_stack == 0 {
            let line = proto::Line {
                function_id: self.function(NO_STACK, ""),
                line: 0,
            };
            self.no_stack = self.push_location(0, 0, vec![line]);
        }
        self.no_stack
    }

    fn push_location(&mut self, mapping_id: u64, address: u64, line: Vec<proto::Line>) -> u64 {
        let id = self.out.location.len() as u64 + 1;
        self.out.location.push(proto::Location {
            id,
            mapping_id,
            address,
            line,
        });
        id
    }

    fn line(&mut self, frame: &profile::Frame) -> proto::Line {
        let profile = self.profile;
        let name = match profile.str(frame.name) {
            "" => names::UNKNOWN,
            name => name,
        };
        let file = frame.file.map_or("", |file| profile.str(file));
        proto::Line {
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
        self.out.function.push(proto::Function {
            id,
            name: key.0,
            system_name: key.0,
            filename: key.1,
        });
        self.functions.insert(key, id);
        id
    }
}

/// pprof's numbers are signed.
fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
