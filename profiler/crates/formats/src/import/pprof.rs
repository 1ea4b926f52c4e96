//! pprof's `profile.proto`, as folded stacks: of aiprof, Go, gperftools and all others
//! that write it.

#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;

use crate::export::Weight;
use crate::export::folded::{FoldedStacks, MAX_LINE, MAX_TOTAL};
use crate::export::pprof::proto::{PprofLabel, PprofLocation, PprofProfile, PprofSample};
use crate::export::{names, round_to_microseconds};
use aiprof_model::profile::{FrameKind, StallReason};
use prost::Message as _;
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;
use std::io::{self, Read};

/// Largest file, without compression.
const MAX_FILE: u64 = 256 << 20;
/// Most bytes of the names of all locations, and of all different stacks, as text: a few
/// bytes can name long texts again and again.
const MAX_TEXT: usize = 1 << 30;
/// Most bytes of the stacks of all samples, as text: so long it takes at most.
const MAX_WORK: usize = 16 << 30;
/// Most functions that are inlined into each other at one address.
const MAX_INLINED: usize = 1000;
/// Types of aiprof's samples of devices, which belong to those of CPUs.
const OF_DEVICES: [&str; 2] = ["device_samples", "device_time"];

/// Why a profile cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PprofError {
    /// Reading failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The bytes are no such message.
    #[error("not a pprof profile, or a damaged one ({0})")]
    Damaged(#[from] prost::DecodeError),
    /// It has no types for its values.
    #[error("a pprof profile without sample types")]
    NoTypes,
    /// It is larger than is read, or its stacks are.
    #[error("larger than the limit of {} bytes", MAX_FILE)]
    TooLarge,
    /// The values add up to more than [`MAX_TOTAL`].
    #[error("the sum of the values exceeds the limit of {}", MAX_TOTAL)]
    TotalTooLarge,
}

/// Stacks, and what their values are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PprofStacks {
    /// The stacks.
    pub stacks: FoldedStacks,
    /// Microseconds, numbers or bytes.
    pub weight: Weight,
}

/// Whether a file that begins like this, decompressed, is a profile: its first message
/// is a type of values, two numbers. No packet of a trace looks like that.
pub(crate) fn is_pprof(head: &[u8]) -> bool {
    let Some((&[0x0a, length], rest)) = head.split_first_chunk::<2>() else {
        return false;
    };
    let Some(body) = rest.get(..usize::from(length)) else {
        return false;
    };
    let number = |body: &[u8], tag: u8| -> Option<usize> {
        let (first, rest) = body.split_first()?;
        let last = rest.iter().position(|byte| *byte < 0x80)?;
        (*first == tag).then_some(last + 2)
    };
    let second = number(body, 0x08).unwrap_or(0);
    let rest = body.get(second..).unwrap_or_default();
    !body.is_empty() && (rest.is_empty() || number(rest, 0x10) == Some(rest.len()))
}

/// Reads a profile, decompressed: the values of the wanted kind if it has some, else
/// those that it shows first.
///
/// Samples with the labels `comm` and `pid`, as aiprof writes them, begin with these.
///
/// # Errors
/// A [`PprofError`]: it is something else, damaged or too large.
pub fn read(input: &mut dyn Read, wanted: Weight) -> Result<PprofStacks, PprofError> {
    let mut bytes = Vec::new();
    input.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(PprofError::TooLarge);
    }
    let profile = PprofProfile::decode(bytes.as_slice())?;
    drop(bytes);
    let chosen = Chosen::of(&profile, wanted).ok_or(PprofError::NoTypes)?;
    let names = LocationNames::new(&profile, MAX_TEXT)?;
    let mut values: FxHashMap<String, u64> = FxHashMap::default();
    let (mut total, mut text, mut work) = (0_u64, 0_usize, 0_usize);
    for sample in &profile.sample {
        let value = chosen.value(sample);
        if value == 0 {
            continue;
        }
        let next = total.checked_add(value);
        let most = MAX_TOTAL.saturating_mul(chosen.per_unit);
        total = next
            .filter(|total| *total <= most)
            .ok_or(PprofError::TotalTooLarge)?;
        let stack = names.stack(sample)?;
        work = work.saturating_add(stack.len());
        let sum = values.entry(stack);
        if let Entry::Vacant(new) = &sum {
            text = text.saturating_add(new.key().len());
        }
        if text > MAX_TEXT || work > MAX_WORK {
            return Err(PprofError::TooLarge);
        }
        *sum.or_default() += value;
    }
    Ok(chosen.finish(values))
}

/// The values that are read.
struct Chosen {
    weight: Weight,
    /// Where they are among a sample's.
    columns: Vec<usize>,
    /// What one of them is in nanoseconds, where they are times.
    scale: u64,
    /// How many of the summed make one of the result.
    per_unit: u64,
}

impl Chosen {
    fn of(profile: &PprofProfile, wanted: Weight) -> Option<Self> {
        let text = |at: i64| text(profile, at);
        let types = &profile.sample_type;
        let unit = |i: usize| types.get(i).map_or("", |of| text(of.unit));
        let name = |i: usize| types.get(i).map_or("", |of| text(of.r#type));
        let shown = text(profile.default_sample_type);
        let first = (0..types.len()).find(|&i| !shown.is_empty() && name(i) == shown);
        // pprof takes the last without a default.
        let first = first.or(types.len().checked_sub(1))?;
        let is_wanted = |i: &usize| weight_of(unit(*i)).0 == wanted;
        let column = Some(first).filter(is_wanted);
        let column = column.or_else(|| (0..types.len()).find(is_wanted));
        let column = column.unwrap_or(first);
        let (weight, scale) = weight_of(unit(column));
        let is_own =
            ["samples", "cpu"].contains(&name(column)) || OF_DEVICES.contains(&name(column));
        let also = (0..types.len()).filter(|&i| {
            let pair = ["samples", "cpu"].contains(&name(i)) || OF_DEVICES.contains(&name(i));
            let has_devices = (0..types.len()).any(|i| OF_DEVICES.contains(&name(i)));
            is_own && has_devices && pair && unit(i) == unit(column) && i != column
        });
        Some(Self {
            weight,
            columns: std::iter::once(column).chain(also).collect(),
            scale,
            per_unit: if weight == Weight::Time { 1000 } else { 1 },
        })
    }

    fn value(&self, sample: &PprofSample) -> u64 {
        let values = self.columns.iter().filter_map(|i| sample.value.get(*i));
        let positive = values.map(|value| u64::try_from(*value).unwrap_or(0));
        let sum = positive.fold(0, u64::saturating_add);
        sum.saturating_mul(self.scale)
    }

    fn finish(&self, values: FxHashMap<String, u64>) -> PprofStacks {
        let mut stacks: Vec<(String, u64)> = values.into_iter().collect();
        stacks.sort_unstable_by(|a, b| a.0.split(';').cmp(b.0.split(';')));
        if self.weight == Weight::Time {
            let mut values: Vec<&mut u64> = stacks.iter_mut().map(|(_, value)| value).collect();
            round_to_microseconds(&mut values);
        }
        let total = stacks.iter().map(|(_, value)| value).sum();
        PprofStacks {
            stacks: FoldedStacks { stacks, total },
            weight: self.weight,
        }
    }
}

/// What values of a unit are, and how many nanoseconds of one are, if it is a time.
fn weight_of(unit: &str) -> (Weight, u64) {
    match unit {
        "nanoseconds" | "ns" => (Weight::Time, 1),
        "microseconds" | "us" => (Weight::Time, 1_000),
        "milliseconds" | "ms" => (Weight::Time, 1_000_000),
        "seconds" | "s" => (Weight::Time, 1_000_000_000),
        "bytes" => (Weight::Bytes, 1),
        _ => (Weight::Samples, 1),
    }
}

fn text(profile: &PprofProfile, at: i64) -> &str {
    let at = usize::try_from(at).ok();
    at.and_then(|at| profile.string_table.get(at))
        .map_or("", String::as_str)
}

/// Names of a profile's locations, as folded stacks have them.
pub struct LocationNames<'a> {
    profile: &'a PprofProfile,
    /// The frames of each location, outermost first, as in a folded stack.
    locations: FxHashMap<u64, String>,
}

impl<'a> LocationNames<'a> {
    /// Those of a profile, of which the samples may be elsewhere.
    ///
    /// # Errors
    /// [`PprofError::TooLarge`]: all names together have more than `max_text` bytes.
    pub fn new(profile: &'a PprofProfile, max_text: usize) -> Result<Self, PprofError> {
        let functions = profile.function.iter().map(|f| (f.id, f.name));
        let functions: FxHashMap<u64, i64> = functions.collect();
        let files = profile
            .mapping
            .iter()
            .map(|m| (m.id, text(profile, m.filename)));
        let files: FxHashMap<u64, &str> = files.collect();
        let (mut locations, mut bytes) = (FxHashMap::default(), 0);
        for location in &profile.location {
            let file = files.get(&location.mapping_id).copied().unwrap_or("");
            let frames = frames(profile, &functions, location, file);
            bytes += frames.len();
            if bytes > max_text {
                return Err(PprofError::TooLarge);
            }
            locations.insert(location.id, frames);
        }
        Ok(Self { profile, locations })
    }

    /// The frames of a location, outermost first, with `;` between them.
    pub fn frames(&self, id: u64) -> &str {
        let known = self.locations.get(&id);
        known.map_or(names::UNKNOWN, String::as_str)
    }

    /// A sample's folded stack.
    fn stack(&self, sample: &PprofSample) -> Result<String, PprofError> {
        let label = |key: &str| -> Option<&PprofLabel> {
            let mut labels = sample.label.iter();
            labels.find(|label| text(self.profile, label.key) == key)
        };
        let mut stack = String::new();
        if let (Some(comm), Some(pid)) = (label("comm"), label("pid")) {
            stack.push_str(&names::clean(text(self.profile, comm.str)));
            stack.push_str(&format!(";{}", pid.num));
        }
        for id in sample.location_id.iter().rev() {
            let frames = self.frames(*id);
            if !stack.is_empty() {
                stack.push(';');
            }
            stack.push_str(frames);
            // What could not be read again as folded stacks.
            if stack.len() > MAX_LINE - 32 {
                return Err(PprofError::TooLarge);
            }
        }
        if stack.is_empty() {
            stack.push_str(names::UNKNOWN);
        }
        Ok(stack)
    }
}

/// The frames of a location, with `;` between them.
fn frames(
    profile: &PprofProfile,
    functions: &FxHashMap<u64, i64>,
    location: &PprofLocation,
    file: &str,
) -> String {
    let outermost = location.line.len().saturating_sub(1);
    let frame = |(i, id): (usize, u64)| {
        let name = functions.get(&id).map_or("", |name| text(profile, *name));
        names::suffixed(name, kind(name, file, i < outermost))
    };
    let lines = location.line.iter().map(|line| line.function_id);
    let mut named: Vec<String> = lines.enumerate().take(MAX_INLINED).map(frame).collect();
    named.reverse();
    match (named.is_empty(), file.rsplit('/').next()) {
        (false, _) => named.join(";"),
        (true, Some(name)) if !name.is_empty() => names::clean(&format!("[no symbols {name}]")),
        (true, _) => format!("{:#x}", location.address),
    }
}

/// Whether a mapping is the code of a device.
pub fn is_device(file: &str) -> bool {
    file.starts_with("[device ") || file.starts_with("[replayed device ")
}

/// The kind of code of a frame, by its names.
fn kind(name: &str, file: &str, is_inlined: bool) -> FrameKind {
    if file == "[kernel.kallsyms]" {
        return FrameKind::Kernel;
    }
    if is_device(file) {
        let is_reason = StallReason::ALL.iter().any(|reason| reason.name() == name);
        return match is_reason || name.starts_with("0x") {
            true => FrameKind::DeviceHardware,
            false => FrameKind::DeviceSoftware,
        };
    }
    match is_inlined {
        true => FrameKind::Inlined,
        false => FrameKind::Native,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::pprof::proto::{PprofFunction, PprofLine, PprofMapping, PprofValueType};

    /// `main` calls `inner`, which `outer` inlined, 1500 ns and 3 samples; the kernel 500 ns.
    fn profile() -> PprofProfile {
        let texts = [
            "",
            "samples",
            "count",
            "cpu",
            "nanoseconds",
            "main",
            "outer",
            "inner",
            "sys",
            "[kernel.kallsyms]",
            "/bin/a",
            "comm",
            "pid",
            "a b",
        ];
        let line = |function_id| PprofLine {
            function_id,
            line: 0,
        };
        let location = |id, mapping_id, line| PprofLocation {
            id,
            mapping_id,
            address: 16,
            line,
        };
        let mapping = |id, filename| PprofMapping {
            id,
            filename,
            ..PprofMapping::default()
        };
        let label = |key, str, num| PprofLabel {
            key,
            str,
            num,
            num_unit: 0,
        };
        let sample = |location_id: &[u64], value: [i64; 2], label: &[PprofLabel]| PprofSample {
            location_id: location_id.to_vec(),
            value: value.to_vec(),
            label: label.to_vec(),
        };
        PprofProfile {
            sample_type: vec![
                PprofValueType { r#type: 1, unit: 2 },
                PprofValueType { r#type: 3, unit: 4 },
            ],
            sample: vec![
                sample(&[2, 1], [3, 1500], &[label(11, 13, 0), label(12, 0, 7)]),
                sample(&[3, 1], [1, 500], &[]),
                sample(&[4], [1, 0], &[]),
            ],
            mapping: vec![mapping(1, 10), mapping(2, 9)],
            location: vec![
                location(1, 1, vec![line(1)]),
                location(2, 1, vec![line(3), line(2)]),
                location(3, 2, vec![line(4)]),
                location(4, 1, vec![]),
            ],
            function: (1..=4)
                .map(|id| PprofFunction {
                    id,
                    name: id as i64 + 4,
                    ..PprofFunction::default()
                })
                .collect(),
            string_table: texts.map(str::to_owned).to_vec(),
            ..PprofProfile::default()
        }
    }

    fn folded(wanted: Weight) -> (Vec<(String, u64)>, Weight) {
        let bytes = profile().encode_to_vec();
        assert!(is_pprof(&bytes));
        let read = read(&mut bytes.as_slice(), wanted).unwrap();
        (read.stacks.stacks, read.weight)
    }

    #[test]
    fn stacks_have_processes_inlined_and_kernel_frames() {
        let line = |stack: &str, value| (stack.to_owned(), value);
        assert_eq!(
            folded(Weight::Samples),
            (
                vec![
                    line("[no symbols a]", 1),
                    line("a b;7;main;outer;inner_[i]", 3),
                    line("main;sys_[k]", 1),
                ],
                Weight::Samples
            )
        );
        // Rounded so that the sum is right.
        let (stacks, weight) = folded(Weight::Time);
        assert_eq!(stacks.iter().map(|(_, value)| value).sum::<u64>(), 2);
        assert_eq!((stacks.len(), weight), (2, Weight::Time));
        // What it does not have is the type that it shows first.
        assert_eq!(folded(Weight::Bytes).1, Weight::Time);
    }

    #[test]
    fn what_is_no_profile_is_told() {
        assert!(!is_pprof(b"\x0a\x05abc") && !is_pprof(b"") && !is_pprof(b"\x0a\x00"));
        // A packet of a trace: a time and a sequence.
        assert!(!is_pprof(b"\x0a\x04\x40\x05\x50\x01"));
        let mut nothing: &[u8] = b"";
        assert!(matches!(
            read(&mut nothing, Weight::Time),
            Err(PprofError::NoTypes)
        ));
        let mut cut: &[u8] = &profile().encode_to_vec()[..40];
        assert!(matches!(
            read(&mut cut, Weight::Time),
            Err(PprofError::Damaged(_))
        ));
        let mut huge = profile();
        huge.sample[0].value[0] = i64::MAX;
        let huge = huge.encode_to_vec();
        let found = read(&mut huge.as_slice(), Weight::Samples);
        assert!(matches!(found, Err(PprofError::TotalTooLarge)));
        // Few bytes that name a long text again and again.
        let mut long = profile();
        long.string_table[5] = "x".repeat(4000);
        long.location[0].line = vec![
            PprofLine {
                function_id: 1,
                line: 0
            };
            900
        ];
        long.sample[0].location_id = vec![1; 1 << 20];
        let long = long.encode_to_vec();
        let found = read(&mut long.as_slice(), Weight::Samples);
        assert!(matches!(found, Err(PprofError::TooLarge)));
    }
}
