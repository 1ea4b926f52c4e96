//! OTLP profiles: what OpenTelemetry's collectors and the stores behind them take.
//!
//! A file is one request of `ProfilesService/Export` (and a `ProfilesData`: both have the
//! same fields), so that it can be posted as it is.

pub mod proto;
mod tables;

use super::code::{self, NO_STACK, is_device};
use super::launchers::Chosen;
use super::services::Services;
use super::{ExportError, ExportOptions, names};
use aiprof_model::labels;
use aiprof_model::profile::{self, DeviceId, FrameKind, LocationId, Values};
use prost::Message as _;
use proto::{
    AttributeValue, KeyValue, OtlpScope, ProfilesData, Resource, ResourceProfiles, ScopeProfiles,
};
use rustc_hash::FxHashMap;
use std::io::Write;
use tables::{OtlpTables, shown};

/// What made the profiles.
const SCOPE: &str = "aiprof";

/// Labels that identify the service of a sample, and their keys in OpenTelemetry's semantic
/// conventions.
const OF_RESOURCES: [(&str, &str); 5] = [
    (labels::CONTAINER, "container.id"),
    (labels::POD, "k8s.pod.uid"),
    (labels::POD_NAME, "k8s.pod.name"),
    (labels::NAMESPACE, "k8s.namespace.name"),
    (labels::CONTAINER_NAME, "k8s.container.name"),
];

/// Writes a profile as OTLP: a profile for each kind of value, as OTLP has one kind in each.
/// CPU samples are `samples`/count with the period cpu/nanoseconds; waits are
/// off_cpu/nanoseconds or, with CPU samples, wall/nanoseconds; of launches there are
/// launches/count, call_time/nanoseconds and bytes/bytes; of devices device_samples/count
/// and device_time/nanoseconds.
///
/// Samples are grouped by service: the label `service`, else the name of the container, the
/// systemd unit, or the process. Losses are attributes of the first profile
/// (`aiprof.lost.ring_drops`).
///
/// # Errors
///
/// [`ExportError::Io`] when `out` fails.
pub fn write(
    profile: &profile::Profile,
    options: &ExportOptions,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    out.write_all(&convert(profile, options).encode_to_vec())?;
    out.flush()?;
    Ok(())
}

/// The messages of a profile.
pub fn convert(profile: &profile::Profile, options: &ExportOptions) -> ProfilesData {
    let chosen = Chosen::of(profile, options);
    let mut converter = Converter::new(profile);
    for sample in &profile.samples {
        if options.shown.includes(sample) && chosen.includes(profile, sample) {
            converter.sample(sample);
        }
    }
    converter.finish(chosen.line())
}

/// A value of samples that has a profile of its own.
#[derive(Clone, Copy, Debug)]
struct SampleKind {
    name: &'static str,
    unit: &'static str,
    /// Name and unit of what lies between two samples, and how much of it. Pyroscope names
    /// profiles by it, and refuses those that have values of another kind and none.
    period: Option<(&'static str, &'static str, u64)>,
    /// Whether its samples are those of devices, not of CPUs.
    is_device: bool,
    value: fn(&profile::Sample) -> u64,
}

impl SampleKind {
    /// One whose period is itself.
    const fn plain(
        name: &'static str,
        unit: &'static str,
        value: fn(&profile::Sample) -> u64,
    ) -> Self {
        Self {
            name,
            unit,
            period: Some((name, unit, 1)),
            is_device: false,
            value,
        }
    }

    /// All that the samples of a profile may have.
    fn of(profile: &profile::Profile) -> Vec<Self> {
        match profile.values {
            Values::CpuTime => {
                let cpu = match profile.meta.period_ns {
                    0 => Self::plain("cpu", "nanoseconds", |sample| sample.time_ns),
                    period_ns => Self {
                        period: Some(("cpu", "nanoseconds", period_ns)),
                        ..Self::plain("samples", "count", |sample| sample.count)
                    },
                };
                let of_device = |kind| Self {
                    is_device: true,
                    ..kind
                };
                vec![
                    cpu,
                    of_device(Self::plain("device_time", "nanoseconds", |s| s.time_ns)),
                    of_device(Self::plain("device_samples", "count", |s| s.count)),
                ]
            }
            Values::WaitTime => vec![Self {
                period: None,
                ..Self::plain("off_cpu", "nanoseconds", |sample| sample.time_ns)
            }],
            Values::WallTime => vec![Self::plain("wall", "nanoseconds", |s| s.time_ns)],
            Values::Launches => vec![
                Self::plain("launches", "count", |sample| sample.count),
                Self::plain("call_time", "nanoseconds", |sample| sample.time_ns),
                Self::plain("bytes", "bytes", |sample| sample.bytes),
            ],
        }
    }
}

/// Samples of one kind, by stack and attributes, in the order in which they came.
#[derive(Debug, Default)]
struct Samples {
    known: FxHashMap<(i32, Vec<i32>), usize>,
    samples: Vec<proto::OtlpSample>,
}

impl Samples {
    fn add(&mut self, stack_index: i32, attributes: &[i32], value: u64) {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        let next = self.samples.len();
        let at = *self
            .known
            .entry((stack_index, attributes.to_vec()))
            .or_insert(next);
        match self.samples.get_mut(at).and_then(|s| s.values.first_mut()) {
            Some(sum) => *sum = sum.saturating_add(value),
            None => self.samples.push(proto::OtlpSample {
                stack_index,
                attribute_indices: attributes.to_vec(),
                values: vec![value],
            }),
        }
    }
}

/// A service: what identifies it, and its samples by kind.
type Service = (Vec<KeyValue>, Vec<Samples>);

/// What is under construction.
struct Converter<'a> {
    profile: &'a profile::Profile,
    kinds: Vec<SampleKind>,
    tables: OtlpTables,
    services: Vec<Service>,
    names: Services,
    /// Places of the services, by all that identifies them.
    known: FxHashMap<Vec<(String, String)>, usize>,
    /// Places of the binaries' mappings, then of the devices'.
    mappings: Vec<i32>,
    /// Places of locations; of those in device code by device.
    locations: FxHashMap<(LocationId, Option<DeviceId>), i32>,
}

impl<'a> Converter<'a> {
    fn new(profile: &'a profile::Profile) -> Self {
        let mut tables = OtlpTables::new();
        let ranges = code::ranges(profile);
        let mappings = ranges.iter().map(|range| tables.mapping(range)).collect();
        Self {
            profile,
            kinds: SampleKind::of(profile),
            tables,
            services: Vec::new(),
            names: Services::default(),
            known: FxHashMap::default(),
            mappings,
            locations: FxHashMap::default(),
        }
    }

    fn sample(&mut self, sample: &profile::Sample) {
        let stack = self.stack(sample);
        let attributes = self.attributes(sample);
        let service = self.service(sample);
        let Some((_, all)) = self.services.get_mut(service) else {
            return;
        };
        for (kind, samples) in self.kinds.iter().zip(all) {
            let value = (kind.value)(sample);
            if kind.is_device == sample.device.is_some() && value > 0 {
                samples.add(stack, &attributes, value);
            }
        }
    }

    /// The place of a sample's service.
    fn service(&mut self, sample: &profile::Sample) -> usize {
        let key = self.resource(sample);
        if let Some(&known) = self.known.get(&key) {
            return known;
        }
        let attributes = key.iter().map(|(key, value)| KeyValue {
            key: key.clone(),
            value: Some(AttributeValue::Text(value.clone()).into()),
        });
        let empty = self.kinds.iter().map(|_| Samples::default()).collect();
        self.services.push((attributes.collect(), empty));
        let at = self.services.len() - 1;
        self.known.insert(key, at);
        at
    }

    /// The attributes that identify a sample's service.
    fn resource(&mut self, sample: &profile::Sample) -> Vec<(String, String)> {
        let profile = self.profile;
        let own = |(key, value): (&str, &str)| (shown(key), shown(value));
        let mut all = vec![
            own(("service.name", &self.names.name(profile, sample))),
            own(("host.name", &profile.meta.host)),
            own(("os.type", "linux")),
        ];
        for (label, key) in OF_RESOURCES {
            if let Some(value) = profile.label(sample, label) {
                all.push(own((key, &value)));
            }
        }
        for (key, value) in &profile.labels {
            all.push(own((profile.str(*key), profile.str(*value))));
        }
        all.retain(|(_, value)| !value.is_empty());
        all
    }

    /// What else is known of a sample.
    fn attributes(&mut self, sample: &profile::Sample) -> Vec<i32> {
        let profile = self.profile;
        let process = profile.processes.get(sample.process.0 as usize);
        let mut all = Vec::new();
        for (key, number) in [
            ("process.pid", process.map_or(0, |process| process.pid)),
            ("thread.id", sample.tid),
        ] {
            if number != 0 {
                all.push(self.tables.number(key, number.into(), ""));
            }
        }
        let comm = process.map_or("", |process| profile.str(process.comm));
        let texts = [
            ("process.executable.name", comm),
            ("thread.name", profile.str(sample.thread)),
        ];
        for (key, text) in texts {
            if !text.is_empty() {
                all.push(self.tables.text(key, text));
            }
        }
        let is_of_resource = |key: &str| {
            OF_RESOURCES.iter().any(|(label, _)| *label == key)
                || profile
                    .labels
                    .iter()
                    .any(|(own, _)| profile.str(*own) == key)
        };
        for (key, value) in profile.shown_labels(sample) {
            if !is_of_resource(key) {
                let key = match key {
                    labels::USER => "process.owner".to_owned(),
                    key => format!("aiprof.{key}"),
                };
                all.push(self.tables.text(&key, &value));
            }
        }
        if let Some(device) = sample.device {
            let name = profile.devices.get(device.device.0 as usize);
            let texts = [
                ("aiprof.device", name.map_or("", |device| &device.name)),
                ("aiprof.method", device.method.label()),
                (
                    "aiprof.stall",
                    device.reason.map_or("", |reason| reason.name()),
                ),
            ];
            for (key, text) in texts {
                if !text.is_empty() {
                    all.push(self.tables.text(key, text));
                }
            }
        }
        all
    }

    fn stack(&mut self, sample: &profile::Sample) -> i32 {
        let profile = self.profile;
        let device = sample.device.map(|device| device.device);
        let stack = profile.stacks.get(sample.stack.0 as usize);
        let ids = stack.into_iter().flat_map(|stack| stack.locations.iter());
        let mut locations: Vec<i32> = ids
            .rev()
            .map(|&id| self.location(id, device))
            .filter(|&at| at != 0)
            .collect();
        if locations.is_empty() {
            let function_index = self.tables.function(NO_STACK, "");
            let line = proto::OtlpLine {
                function_index,
                line: 0,
            };
            // Not one of the profile's.
            let none = (LocationId(u32::MAX), None);
            let tables = &mut self.tables;
            let at = self.locations.entry(none);
            locations.push(*at.or_insert_with(|| tables.location(0, 0, vec![line], "")));
        }
        self.tables.stack(locations)
    }

    fn location(&mut self, id: LocationId, device: Option<DeviceId>) -> i32 {
        let profile = self.profile;
        let Some(location) = profile.locations.get(id.0 as usize) else {
            return 0;
        };
        let device = device.filter(|_| is_device(profile, location));
        if let Some(&known) = self.locations.get(&(id, device)) {
            return known;
        }
        let frames = || {
            let ids = location.frames.iter().rev();
            ids.filter_map(|id| profile.frames.get(id.0 as usize))
        };
        let lines = frames().map(|frame| self.line(frame)).collect();
        // What runs there, not what it was inlined into.
        let kind = frames().next().map_or("", |frame| frame_type(frame.kind));
        let mapping = match (location.binary, device) {
            (Some(id), _) => Some(id.0 as usize),
            (None, Some(id)) => Some(profile.binaries.len().saturating_add(id.0 as usize)),
            (None, None) => None,
        };
        let mapping = mapping.and_then(|at| self.mappings.get(at).copied());
        let mapping = mapping.unwrap_or(0);
        let at = self.tables.location(mapping, location.address, lines, kind);
        self.locations.insert((id, device), at);
        at
    }

    fn line(&mut self, frame: &profile::Frame) -> proto::OtlpLine {
        let name = match self.profile.str(frame.name) {
            "" => names::UNKNOWN,
            name => name,
        };
        let file = frame.file.map_or("", |file| self.profile.str(file));
        proto::OtlpLine {
            function_index: self.tables.function(name, file),
            line: frame.line.into(),
        }
    }

    /// What is known of the whole profile.
    fn about(&mut self, left_out: Option<String>) -> Vec<i32> {
        let meta = &self.profile.meta;
        let texts = [
            ("aiprof.title", meta.title.as_str()),
            ("aiprof.kernel", &meta.kernel),
            ("aiprof.command", &meta.command),
            ("aiprof.scope", &meta.scope),
            ("aiprof.not_shown", left_out.as_deref().unwrap_or_default()),
        ];
        let mut all = Vec::new();
        for (key, text) in texts {
            if !text.is_empty() {
                all.push(self.tables.text(key, text));
            }
        }
        for (kind, n) in self.profile.losses.iter() {
            let key = format!("aiprof.lost.{}", kind.key());
            all.push(self.tables.number(&key, n, ""));
        }
        for (key, n) in &self.profile.facts {
            all.push(self.tables.number(&format!("aiprof.{key}"), *n, ""));
        }
        all
    }

    fn finish(mut self, left_out: Option<String>) -> ProfilesData {
        let mut about = self.about(left_out);
        if self.services.is_empty() {
            // A time without samples is reported, too.
            let host = KeyValue {
                key: "host.name".to_owned(),
                value: Some(AttributeValue::Text(self.profile.meta.host.clone()).into()),
            };
            self.services.push((vec![host], vec![Samples::default()]));
        }
        let services = std::mem::take(&mut self.services);
        let resource_profiles = services.into_iter().map(|(attributes, all)| {
            let kinds = self.kinds.clone();
            let is_only = all.len() == 1;
            let with_samples = kinds.iter().zip(all);
            let profiles = with_samples
                .filter(|(_, samples)| is_only || !samples.samples.is_empty())
                .map(|(kind, samples)| self.profile_of(kind, samples, std::mem::take(&mut about)))
                .collect();
            ResourceProfiles {
                resource: Some(Resource { attributes }),
                scope_profiles: vec![ScopeProfiles {
                    scope: Some(OtlpScope {
                        name: SCOPE.to_owned(),
                        version: env!("CARGO_PKG_VERSION").to_owned(),
                    }),
                    profiles,
                }],
            }
        });
        let resource_profiles = resource_profiles.collect();
        ProfilesData {
            resource_profiles,
            dictionary: Some(self.tables.finish()),
        }
    }

    fn profile_of(
        &mut self,
        kind: &SampleKind,
        samples: Samples,
        attribute_indices: Vec<i32>,
    ) -> proto::OtlpProfile {
        let mut value_type = |name: &str, unit: &str| proto::OtlpValueType {
            type_strindex: self.tables.string(name),
            unit_strindex: self.tables.string(unit),
        };
        proto::OtlpProfile {
            sample_type: Some(value_type(kind.name, kind.unit)),
            samples: samples.samples,
            time_unix_nano: self.profile.meta.start_unix_ns,
            duration_nano: self.profile.meta.duration_ns,
            period_type: kind.period.map(|(name, unit, _)| value_type(name, unit)),
            period: kind
                .period
                .map_or(0, |(.., n)| i64::try_from(n).unwrap_or(i64::MAX)),
            attribute_indices,
        }
    }
}

/// `profile.frame.type` of OpenTelemetry's semantic conventions, which allow others.
fn frame_type(kind: FrameKind) -> &'static str {
    match kind {
        FrameKind::Native | FrameKind::Inlined => "native",
        FrameKind::Kernel => "kernel",
        FrameKind::Interpreter => "cpython",
        FrameKind::Jit => "jit",
        FrameKind::DeviceSoftware | FrameKind::DeviceHardware => "device",
        FrameKind::Operator => "operator",
        FrameKind::Unknown => "",
    }
}
