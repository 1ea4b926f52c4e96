//! Reads as much of pprof's `profile.proto` as tests look at
//! (github.com/google/pprof/proto/profile.proto).

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use anyhow::Context as _;
use prost::Message as _;

#[derive(Clone, PartialEq, prost::Message)]
struct Message {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<RawSample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(int64, tag = "12")]
    period: i64,
    #[prost(int64, repeated, tag = "13")]
    comment: Vec<i64>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    name: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RawSample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    text: i64,
    #[prost(int64, tag = "3")]
    number: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "5")]
    file: i64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "4")]
    file: i64,
}

/// A place in the code of a binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The address, as the binary has it.
    pub address: u64,
    /// Function, source file and line of each frame there, the innermost first.
    pub lines: Vec<(String, String, i64)>,
}

/// The places in a binary, by its path.
///
/// # Errors
/// When the file cannot be read, or names something that it does not have.
pub fn places(path: &Path, binary: &Path) -> anyhow::Result<Vec<Place>> {
    let message = message(path)?;
    let text = |at: i64| {
        let text = usize::try_from(at).ok();
        let text = text.and_then(|at| message.string_table.get(at));
        text.cloned().with_context(|| format!("no text {at}"))
    };
    let mut ids = Vec::new();
    for mapping in &message.mapping {
        if Path::new(&text(mapping.file)?) == binary {
            ids.push(mapping.id);
        }
    }
    anyhow::ensure!(
        ids.len() == 1,
        "{}: {} mappings",
        binary.display(),
        ids.len()
    );
    places_of(&message, |location| ids.contains(&location.mapping_id))
}

/// The places in no binary: code that was generated at run time.
///
/// # Errors
/// When the file cannot be read, or names something that it does not have.
pub fn generated(path: &Path) -> anyhow::Result<Vec<Place>> {
    places_of(&message(path)?, |location| location.mapping_id == 0)
}

fn places_of(message: &Message, is_one: impl Fn(&Location) -> bool) -> anyhow::Result<Vec<Place>> {
    let text = |at: i64| {
        let text = usize::try_from(at).ok();
        let text = text.and_then(|at| message.string_table.get(at));
        text.cloned().with_context(|| format!("no text {at}"))
    };
    let mut places = Vec::new();
    for location in message.location.iter().filter(|l| is_one(l)) {
        let mut lines = Vec::new();
        for line in &location.line {
            let mut functions = message.function.iter();
            let function = functions.find(|f| f.id == line.function_id);
            let function = function.context("a line without a function")?;
            lines.push((text(function.name)?, text(function.file)?, line.line));
        }
        places.push(Place {
            address: location.address,
            lines,
        });
    }
    Ok(places)
}

fn message(path: &Path) -> anyhow::Result<Message> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(bytes.as_slice()).read_to_end(&mut plain)?;
    Ok(Message::decode(plain.as_slice())?)
}

/// One sample.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Function names, root first, inlined ones included.
    pub frames: Vec<String>,
    /// Values by sample type, those that are not 0.
    pub values: BTreeMap<String, i64>,
    /// Labels with numbers.
    pub numbers: BTreeMap<String, i64>,
    /// Labels with texts.
    pub texts: BTreeMap<String, String>,
}

/// What a file states about the whole profile.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Start, nanoseconds since the Unix epoch.
    pub start_unix_ns: i64,
    /// Length, nanoseconds.
    pub duration_ns: i64,
    /// What a sample stands for, nanoseconds.
    pub period_ns: i64,
    /// The comments that are a key and a number.
    pub facts: BTreeMap<String, u64>,
}

impl About {
    /// Samples per second and CPU that were asked for: a period is no round part of a second.
    #[must_use]
    pub fn hz(&self) -> i64 {
        let one_in = self.facts.get("aiprof.one_in").copied().unwrap_or(1);
        (1e9 * one_in as f64 / self.period_ns as f64).round() as i64
    }
}

/// What a file packed with gzip states about the whole profile.
///
/// # Errors
/// When it cannot be read.
pub fn about(path: &Path) -> anyhow::Result<About> {
    let message = message(path)?;
    let names = Names::new(&message)?;
    let mut about = About {
        start_unix_ns: message.time_nanos,
        duration_ns: message.duration_nanos,
        period_ns: message.period,
        facts: BTreeMap::new(),
    };
    for &comment in &message.comment {
        let text = names.text(comment)?;
        if let Some((key, value)) = text.split_once(": ")
            && let Ok(value) = value.parse()
        {
            about.facts.insert(key.to_owned(), value);
        }
    }
    Ok(about)
}

/// The samples of a file, packed with gzip.
///
/// # Errors
/// When it cannot be read, or names something that it does not have.
pub fn read(path: &Path) -> anyhow::Result<Vec<Sample>> {
    let message = message(path)?;
    let names = Names::new(&message)?;
    let types = message.sample_type.iter().map(|t| names.text(t.name));
    let types: Vec<String> = types.collect::<anyhow::Result<_>>()?;
    let samples = message.sample.iter();
    samples.map(|sample| names.sample(sample, &types)).collect()
}

struct Names<'a> {
    texts: &'a [String],
    /// Frames of each location, outermost first.
    locations: BTreeMap<u64, Vec<String>>,
}

impl<'a> Names<'a> {
    fn new(message: &'a Message) -> anyhow::Result<Self> {
        let mut names = Self {
            texts: &message.string_table,
            locations: BTreeMap::new(),
        };
        let functions: BTreeMap<u64, i64> =
            message.function.iter().map(|f| (f.id, f.name)).collect();
        for location in &message.location {
            // The innermost is first.
            let lines = location.line.iter().rev().map(|line| {
                let function = functions.get(&line.function_id);
                names.text(*function.context("a line without a function")?)
            });
            let lines = lines.collect::<anyhow::Result<_>>()?;
            names.locations.insert(location.id, lines);
        }
        Ok(names)
    }

    fn text(&self, at: i64) -> anyhow::Result<String> {
        let text = usize::try_from(at).ok().and_then(|at| self.texts.get(at));
        text.cloned().with_context(|| format!("no text {at}"))
    }

    fn sample(&self, raw: &RawSample, types: &[String]) -> anyhow::Result<Sample> {
        let mut sample = Sample::default();
        for id in raw.location_id.iter().rev() {
            let frames = self.locations.get(id).context("no such location")?;
            sample.frames.extend_from_slice(frames);
        }
        anyhow::ensure!(raw.value.len() == types.len(), "values and types differ");
        let values = types.iter().cloned().zip(raw.value.iter().copied());
        sample.values = values.filter(|(_, value)| *value != 0).collect();
        for label in &raw.label {
            let key = self.text(label.key)?;
            if label.text == 0 {
                sample.numbers.insert(key, label.number);
            } else {
                sample.texts.insert(key, self.text(label.text)?);
            }
        }
        Ok(sample)
    }
}
