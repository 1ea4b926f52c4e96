//! A window's pprof as rows.
//!
//! The input may be anything. Its bytes are bounded before and after they are unpacked. Tables are
//! decoded at once, samples one at a time from where they stand, so that a few bytes never become a
//! lot of memory.

use crate::rows::{Rows, TRUTH};
use crate::schema::TextField;
use aiprof_formats::export::pprof::proto::{PprofLabel, PprofProfile, PprofSample};
use aiprof_formats::import::pprof::{LocationNames, PprofError, is_device};
use flate2::read::MultiGzDecoder;
use prost::Message as _;
use prost::encoding::decode_varint;
use rustc_hash::FxHashSet;
use std::io::{self, Read as _};

/// Largest body that is read, unpacked.
pub const MAX_BODY: u64 = 64 << 20;
/// Most bytes of its tables: all but samples.
const MAX_TABLES: usize = 16 << 20;
/// Most entries of its tables.
const MAX_ENTRIES: usize = 1 << 20;
/// Most bytes of the names of all locations.
const MAX_NAMES: usize = 32 << 20;
/// Largest sample, as a message.
const MAX_SAMPLE: usize = 64 << 10;
/// Most bytes of a stack as text; of a longer one the root is cut.
const MAX_STACK: usize = 64 << 10;
/// Root of a stack that was cut.
const CUT: &str = "[cut]";
/// Most sample types.
const MAX_TYPES: usize = 64;
/// Most comments that are looked at.
const MAX_COMMENTS: usize = 1024;
/// Most labels of a sample that get into the column `labels`, and their bytes.
const MAX_LABELS: usize = 32;
const MAX_LABEL_BYTES: usize = 4 << 10;
/// Most bytes of a label's key or value, or of a type's name.
const MAX_TEXT: usize = 1024;
/// Most text of all rows of a body.
const MAX_WORK: usize = 1 << 30;

/// The label that distinguishes a host from others.
const HOST_ID: &str = "host.id";
/// Labels that multiply rows without meaning across many hosts, and those of the host.
const LEFT_OUT: [&str; 8] = [
    "pid", "tid", "cgroup", "uid", "certain", "possible", "host", HOST_ID,
];

/// Why a body cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// It cannot be unpacked.
    #[error("cannot be decompressed: {0}")]
    Unpack(#[from] io::Error),
    /// It is no message.
    #[error("not a pprof profile, or damaged")]
    Damaged,
    /// It, or what it unfolds to, is larger than a window's can be.
    #[error("too large for the profile of a window")]
    TooLarge,
    /// It has no sample types.
    #[error("has no sample types")]
    NoTypes,
}

impl From<prost::DecodeError> for BodyError {
    fn from(_: prost::DecodeError) -> Self {
        Self::Damaged
    }
}

impl From<PprofError> for BodyError {
    fn from(error: PprofError) -> Self {
        match error {
            PprofError::TooLarge | PprofError::TotalTooLarge => Self::TooLarge,
            PprofError::NoTypes => Self::NoTypes,
            PprofError::Io(_) | PprofError::Damaged(_) => Self::Damaged,
        }
    }
}

/// What became of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// Samples that became rows.
    pub samples: u64,
    /// Samples that did not: too large, or with a value below 0.
    pub refused_samples: u64,
    /// Stacks of which the root was cut.
    pub cut_stacks: u64,
    /// Labels that were one too many.
    pub refused_labels: u64,
}

/// Adds a body to rows; its window began at `start_unix_ns`. Rows of a body that is refused
/// half way stay: none is, after its tables were read.
///
/// # Errors
/// A [`BodyError`]: nothing was added.
pub fn add(body: &[u8], start_unix_ns: u64, rows: &mut Rows) -> Result<Decoded, BodyError> {
    let bytes = unpack(body)?;
    let profile = tables(&bytes)?;
    let names = LocationNames::new(&profile, MAX_NAMES)?;
    let types = types(&profile)?;
    let devices = device_locations(&profile);
    rows.recorded_on(&host_id(&profile, &bytes), &host(&profile));
    let mut adder = Adder {
        profile: &profile,
        names,
        types,
        devices,
        time: i64::try_from(start_unix_ns).unwrap_or(i64::MAX),
        duration: profile.duration_nanos.max(0),
        done: Decoded::default(),
        work: 0,
        rows,
    };
    adder.truths();
    for field in MessageFields(&bytes) {
        let (number, body) = field?;
        if number != SAMPLE {
            continue;
        }
        let sample = Some(body).filter(|body| body.len() <= MAX_SAMPLE);
        match sample.map(PprofSample::decode) {
            Some(Ok(sample)) if adder.work < MAX_WORK => adder.sample(&sample),
            _ => adder.done.refused_samples += 1,
        }
    }
    Ok(adder.done)
}

/// Where and when a profile was recorded, as it states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Host name; empty: not stated.
    pub host: String,
    /// Begin, nanoseconds since the Unix epoch; 0: not stated.
    pub start_unix_ns: u64,
}

/// The origin of a profile that was not in a spool.
///
/// # Errors
/// As [`add`].
pub fn origin(body: &[u8]) -> Result<Origin, BodyError> {
    let profile = tables(&unpack(body)?)?;
    Ok(Origin {
        host: host(&profile),
        start_unix_ns: u64::try_from(profile.time_nanos).unwrap_or(0),
    })
}

/// The host that a profile names as its own.
fn host(profile: &PprofProfile) -> String {
    let comments = profile.comment.iter().take(MAX_COMMENTS);
    let mut hosts = comments.filter_map(|at| text(profile, *at).strip_prefix("host: "));
    hosts.next().map(plain).unwrap_or_default()
}

/// The id of that host: all samples have it, or none.
fn host_id(profile: &PprofProfile, bytes: &[u8]) -> String {
    let first = MessageFields(bytes)
        .flatten()
        .find(|(number, _)| *number == SAMPLE);
    let sample = first.filter(|(_, body)| body.len() <= MAX_SAMPLE);
    let sample = sample.and_then(|(_, body)| PprofSample::decode(body).ok());
    let labels = sample.iter().flat_map(|sample| &sample.label);
    let mut ids = labels.filter(|label| text(profile, label.key) == HOST_ID);
    ids.next()
        .map_or_else(String::new, |label| plain(text(profile, label.str)))
}

fn unpack(body: &[u8]) -> Result<Vec<u8>, BodyError> {
    let mut bytes = Vec::new();
    match body.starts_with(&[0x1f, 0x8b]) {
        true => MultiGzDecoder::new(body)
            .take(MAX_BODY + 1)
            .read_to_end(&mut bytes)?,
        false => body.take(MAX_BODY + 1).read_to_end(&mut bytes)?,
    };
    match bytes.len() as u64 > MAX_BODY {
        true => Err(BodyError::TooLarge),
        false => Ok(bytes),
    }
}

/// The field of samples.
const SAMPLE: u64 = 2;

/// The fields of a message: number, and content of those that have a length.
struct MessageFields<'a>(&'a [u8]);

impl<'a> MessageFields<'a> {
    fn field(&mut self) -> Option<(u64, &'a [u8])> {
        let key = decode_varint(&mut self.0).ok()?;
        let length = match key & 7 {
            0 => {
                decode_varint(&mut self.0).ok()?;
                0
            }
            1 => 8,
            2 => usize::try_from(decode_varint(&mut self.0).ok()?).ok()?,
            5 => 4,
            _ => return None,
        };
        let (body, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some((key >> 3, body))
    }
}

impl<'a> Iterator for MessageFields<'a> {
    type Item = Result<(u64, &'a [u8]), BodyError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or(BodyError::Damaged))
    }
}

/// A profile without its samples.
fn tables(bytes: &[u8]) -> Result<PprofProfile, BodyError> {
    let mut kept = Vec::new();
    let mut entries = 0_usize;
    let mut fields = MessageFields(bytes);
    loop {
        let before = fields.0;
        let Some(field) = fields.next() else { break };
        let (number, _) = field?;
        if number != SAMPLE {
            let length = before.len() - fields.0.len();
            kept.extend_from_slice(before.get(..length).unwrap_or_default());
            entries += 1;
        }
        if kept.len() > MAX_TABLES || entries > MAX_ENTRIES {
            return Err(BodyError::TooLarge);
        }
    }
    Ok(PprofProfile::decode(kept.as_slice())?)
}

/// A value of samples that becomes rows.
struct ValueType {
    /// Where it is among a sample's values.
    at: usize,
    /// Where the number of samples is.
    count: usize,
    name: String,
    unit: &'static str,
    other_unit: String,
    /// What a value is multiplied by to be in that unit.
    scale: i64,
}

/// What is made of the sample types. A type that only counts the samples of another one
/// becomes its `count`.
fn types(profile: &PprofProfile) -> Result<Vec<ValueType>, BodyError> {
    let given = profile
        .sample_type
        .get(..MAX_TYPES.min(profile.sample_type.len()));
    let given: Vec<(String, &str)> = given
        .unwrap_or_default()
        .iter()
        .map(|of| {
            let name = plain(text(profile, of.r#type)).replace(' ', "_");
            (name, text(profile, of.unit))
        })
        .collect();
    if given.is_empty() {
        return Err(BodyError::NoTypes);
    }
    let of_devices = |name: &str| name.starts_with("device");
    let counts = |name: &str| name == "samples" || name == "device_samples";
    let is_measured = |(name, _): &(String, &str)| !counts(name);
    let find = |wanted: &str| given.iter().position(|(name, _)| name == wanted);
    let first_count = given.iter().position(|(name, unit)| {
        *unit == "count" && !of_devices(name) && !name.starts_with("stall_")
    });
    let mut types = Vec::new();
    for (at, (name, unit)) in given.iter().enumerate() {
        let has_other = given
            .iter()
            .any(|other| is_measured(other) && of_devices(&other.0) == of_devices(name));
        if counts(name) && has_other {
            continue;
        }
        let count = match *unit {
            "count" => Some(at),
            _ if of_devices(name) => find("device_samples"),
            _ => find("samples").or(first_count),
        };
        let (unit, scale) = match *unit {
            "nanoseconds" | "ns" => ("nanoseconds", 1),
            "microseconds" | "us" => ("nanoseconds", 1_000),
            "milliseconds" | "ms" => ("nanoseconds", 1_000_000),
            "seconds" | "s" => ("nanoseconds", 1_000_000_000),
            "count" => ("count", 1),
            "bytes" => ("bytes", 1),
            _ => ("", 1),
        };
        types.push(ValueType {
            at,
            count: count.unwrap_or(usize::MAX),
            name: name.clone(),
            unit,
            other_unit: plain(given.get(at).map_or("", |(_, unit)| unit)),
            scale,
        });
    }
    Ok(types)
}

/// Locations that are code of a device.
fn device_locations(profile: &PprofProfile) -> FxHashSet<u64> {
    let mappings = profile.mapping.iter();
    let of_devices = mappings.filter(|mapping| is_device(text(profile, mapping.filename)));
    let ids: FxHashSet<u64> = of_devices.map(|mapping| mapping.id).collect();
    let locations = profile.location.iter();
    let found = locations.filter(|location| ids.contains(&location.mapping_id));
    found.map(|location| location.id).collect()
}

fn text(profile: &PprofProfile, at: i64) -> &str {
    let at = usize::try_from(at).ok();
    at.and_then(|at| profile.string_table.get(at))
        .map_or("", String::as_str)
}

struct Adder<'a> {
    profile: &'a PprofProfile,
    names: LocationNames<'a>,
    types: Vec<ValueType>,
    devices: FxHashSet<u64>,
    time: i64,
    duration: i64,
    done: Decoded,
    /// Bytes of stacks so far.
    work: usize,
    rows: &'a mut Rows,
}

impl<'a> Adder<'a> {
    /// Reads what the recording states about itself: comments `aiprof.KEY: NUMBER`.
    fn truths(&mut self) {
        let profile = self.profile;
        for comment in profile.comment.iter().take(MAX_COMMENTS) {
            let comment = text(profile, *comment);
            let Some((key, number)) = comment.rsplit_once(": ") else {
                continue;
            };
            let number = number.trim().parse::<i64>().ok();
            let Some(number) = number.filter(|number| *number >= 0) else {
                continue;
            };
            if !key.starts_with(TRUTH) || key.len() > 128 {
                continue;
            }
            let key = plain(key);
            let unit = match key.split(' ').next() {
                Some(key) if key.ends_with("_ns") || key.contains("_ns.") => "nanoseconds",
                Some(key) if key.ends_with("_bytes") => "bytes",
                _ => "count",
            };
            let idle = key.strip_prefix("aiprof.idle_ns.");
            let busy = key.strip_prefix("aiprof.busy_ns ");
            let (cause, device) = match idle {
                Some(of) => of.split_once(' ').unwrap_or((of, "")),
                None => ("", busy.unwrap_or_default()),
            };
            let texts = [(TextField::IdleCause, cause), (TextField::Device, device)];
            let sample = self.rows.sample(self.time, self.duration, &texts, "");
            let name = match (idle, busy) {
                (Some(_), _) => "aiprof.idle",
                (_, Some(_)) => "aiprof.busy",
                _ => key.as_str(),
            };
            self.rows.push(sample, (name, unit), number, 1);
        }
    }

    fn sample(&mut self, sample: &PprofSample) {
        let value = |at: usize| sample.value.get(at).copied().unwrap_or(0);
        if self.types.iter().any(|of| value(of.at) < 0) {
            self.done.refused_samples += 1;
            return;
        }
        let (stack, kernel) = self.stack(sample);
        let labels = self.labels(sample);
        let comm = labels.find("comm");
        let service = ["service", "container_name", "unit"];
        let service = service.iter().map(|key| labels.find(key));
        let service = service.chain([comm]).find(|text| !text.is_empty());
        let first = |keys: &[&str]| {
            let found = keys.iter().map(|key| labels.find(key));
            found.into_iter().find(|text| !text.is_empty())
        };
        let function = stack.rsplit(';').next().unwrap_or_default();
        let thread = without_number(labels.find("thread"));
        let texts = [
            (TextField::Service, service.unwrap_or_default()),
            (TextField::Stack, stack.as_str()),
            (TextField::Function, function),
            (TextField::Comm, comm),
            (TextField::Thread, thread.as_str()),
            (
                TextField::Container,
                first(&["container_name", "container"]).unwrap_or_default(),
            ),
            (
                TextField::Pod,
                first(&["pod_name", "pod"]).unwrap_or_default(),
            ),
            (TextField::Namespace, labels.find("namespace")),
            (TextField::Device, labels.find("device")),
            (TextField::Kernel, first(&["kernel"]).unwrap_or(&kernel)),
            (TextField::IdleCause, labels.find("idle_cause")),
            (
                TextField::Version,
                first(&["version", "service.version"]).unwrap_or_default(),
            ),
        ];
        let (rest, refused) = labels.rest();
        self.done.refused_labels += refused;
        let common = self.rows.sample(self.time, self.duration, &texts, &rest);
        self.done.samples += 1;
        for of in &self.types {
            let value = value(of.at).saturating_mul(of.scale);
            if value > 0 {
                let unit = match of.unit {
                    "" => of.other_unit.as_str(),
                    unit => unit,
                };
                let count = sample.value.get(of.count).copied().unwrap_or(0).max(0);
                self.rows.push(common, (&of.name, unit), value, count);
            }
        }
    }

    /// A sample's stack from root to leaf, and the kernel that a device ran.
    fn stack(&mut self, sample: &PprofSample) -> (String, String) {
        let (mut bytes, mut from) = (0_usize, sample.location_id.len());
        for (at, id) in sample.location_id.iter().enumerate() {
            bytes += self.names.frames(*id).len() + 1;
            if bytes > MAX_STACK {
                from = at;
                break;
            }
        }
        let mut stack = String::with_capacity(bytes.min(MAX_STACK) + CUT.len() + 1);
        if from < sample.location_id.len() {
            self.done.cut_stacks += 1;
            stack.push_str(CUT);
        }
        let mut kernel = "";
        let kept = sample.location_id.get(..from).unwrap_or_default();
        for id in kept.iter().rev() {
            let frames = self.names.frames(*id);
            if kernel.is_empty() && self.devices.contains(id) {
                kernel = frames.split(';').next().unwrap_or_default();
            }
            if !stack.is_empty() {
                stack.push(';');
            }
            stack.push_str(frames);
        }
        self.work = self.work.saturating_add(stack.len());
        (stack, kernel.to_owned())
    }

    fn labels(&self, sample: &PprofSample) -> SampleLabels {
        let pair = |label: &PprofLabel| {
            let key = text(self.profile, label.key);
            let value = text(self.profile, label.str);
            (!key.is_empty() && !value.is_empty()).then(|| (plain(key), plain(value)))
        };
        let mut all: Vec<_> = sample.label.iter().filter_map(pair).collect();
        all.sort();
        all.dedup_by(|next, kept| next.0 == kept.0);
        SampleLabels(all)
    }
}

/// A sample's labels with texts, sorted by key. Numbers are not among them: they would
/// multiply rows.
struct SampleLabels(Vec<(String, String)>);

impl SampleLabels {
    fn find(&self, key: &str) -> &str {
        let found = self.0.iter().find(|(known, _)| known == key);
        found.map_or("", |(_, value)| value)
    }

    /// What has no column of its own, encoded; and how many were one too many.
    fn rest(&self) -> (String, u64) {
        let has_name = |key: &str| !self.find(key).is_empty();
        let own = |key: &str| match key {
            "service" | "comm" | "thread" | "container_name" | "pod_name" | "namespace"
            | "device" | "kernel" | "idle_cause" => true,
            "version" => true,
            "service.version" => !has_name("version"),
            // Ids of what has a name.
            "container" | "pod" => true,
            key => LEFT_OUT.contains(&key),
        };
        let (mut rest, mut refused, mut kept) = (String::new(), 0, 0);
        for (key, value) in self.0.iter().filter(|(key, _)| !own(key)) {
            let bytes = rest.len() + key.len() + value.len() + 2;
            if kept == MAX_LABELS || bytes > MAX_LABEL_BYTES {
                refused += 1;
                continue;
            }
            kept += 1;
            for part in [key, value] {
                rest.push_str(part);
                rest.push('\0');
            }
        }
        (rest, refused)
    }
}

/// A text in one line and of bounded length.
fn plain(text: &str) -> String {
    let end = text.floor_char_boundary(MAX_TEXT);
    let text = text.get(..end).unwrap_or_default();
    let shown = |c: char| if c.is_control() { ' ' } else { c };
    text.trim().chars().map(shown).collect()
}

/// The name of a thread, with `#` for a number at its end: `worker-17` is one of many.
fn without_number(name: &str) -> String {
    let plain = name.trim_end_matches(|c: char| c.is_ascii_digit());
    match plain.len() < name.len() && !plain.is_empty() {
        true => format!("{plain}#"),
        false => name.to_owned(),
    }
}
