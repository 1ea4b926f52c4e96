//! Reads the interchange text of Intel's iaprof (April 2026, "fast mode").
//!
//! Records are lines of tab-separated fields: `string ID TEXT`, `interval N SECONDS`,
//! `kernel 0xADDRESS COMM PID STACK FILE SYMBOL` and, of that kernel,
//! `eustall 0xOFFSET MNEMONIC` and ten counts; `metric NAME VALUE`. COMM, STACK, FILE,
//! SYMBOL and MNEMONIC are ids of strings, 0 is none; the frames of a stack are
//! separated by `;`, from the root. ReasonCounts are of the interval alone, whose time is
//! that of its end, on CLOCK_MONOTONIC.
//!
//! Total and bounded: lines that are no records are counted as losses of the profile.
//! iaprof keeps one launch stack per kernel, the latest: its samples are estimates
//! without a bound.

#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;

mod records;
mod stacks;
mod texts;

use aiprof_model::lines::{LineError, Lines};
use aiprof_model::profile::{Device, LossKind, Meta, Profile, ProfileBuilder, StallReason};
use aiprof_record::aggregate::ReasonCounts;
use records::Record;
use stacks::{LaunchId, Stacks};
use std::io::{self, BufRead};
use texts::{TextId, Texts};

/// Longest line that is read, in bytes: a stack is one.
pub const MAX_LINE: usize = 16 << 20;

/// Most text that is read, in bytes.
pub const MAX_INPUT: u64 = 1 << 30;

/// Most instructions in one interval; further ones are counted as refused.
pub const MAX_INSTRUCTIONS: usize = 1 << 20;

/// Largest sum of all counts, as in folded files.
pub const MAX_TOTAL: u64 = 1 << 55;

/// Longest interval that is believed, in seconds.
const MAX_SECONDS: f64 = 1e9;

/// Most that devices can be busy together, in percent.
const MAX_BUSY: f64 = 100_000.0;

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum IaprofError {
    /// Reading failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// No line is a record.
    #[error("not an iaprof recording")]
    NotIaprof,
    /// A line is longer than [`MAX_LINE`].
    #[error("line {line} is too long (limit: {max} bytes)", max = MAX_LINE)]
    LineTooLong {
        /// Line number, from 1.
        line: u64,
    },
    /// The file has more than [`MAX_INPUT`] bytes.
    #[error(
        "the file is too large: aiprof reads at most {max} bytes of iaprof's text",
        max = MAX_INPUT
    )]
    TooLarge,
    /// The counts add up to more than [`MAX_TOTAL`].
    #[error(
        "line {line}: the sum of the counts up to here exceeds the limit of {max}",
        max = MAX_TOTAL
    )]
    TotalTooLarge {
        /// Line number, from 1.
        line: u64,
    },
}

/// Whether a file that begins like this is a recording of iaprof.
pub(crate) fn is_iaprof(head: &[u8]) -> bool {
    let begins = [
        "string\t",
        "interval\t",
        "kernel\t",
        "eustall\t",
        "metric\t",
    ];
    begins
        .iter()
        .any(|begin| head.starts_with(begin.as_bytes()))
}

/// Reads a recording. Its device counts as replayed.
///
/// A sample's time is its share, by count, of the time in which the device was busy in
/// its interval (`busy-percent`); 0 if the interval has none. The first interval is taken
/// to be as long as the second.
///
/// # Errors
///
/// An [`IaprofError`]: the file is something else, or too large.
pub fn read(input: &mut dyn BufRead) -> Result<Profile, IaprofError> {
    let mut reader = IaprofReader::new();
    let mut lines = Lines::new(input, MAX_LINE, MAX_INPUT);
    while let Some((number, line)) = lines.next_line()? {
        reader.line(line);
        if reader.total > MAX_TOTAL {
            return Err(IaprofError::TotalTooLarge { line: number });
        }
    }
    reader.finish()
}

impl From<LineError> for IaprofError {
    fn from(error: LineError) -> Self {
        match error {
            LineError::Io(error) => error.into(),
            LineError::TooLong(line) => Self::LineTooLong { line },
            LineError::TooLarge(_) => Self::TooLarge,
        }
    }
}

/// An instruction of a launch with its counts in one interval.
struct Instruction {
    launch: LaunchId,
    offset: u64,
    mnemonic: TextId,
    counts: ReasonCounts,
}

/// The interval that is being read.
#[derive(Default)]
struct Interval {
    /// When it ended, in seconds.
    end: Option<f64>,
    /// How busy the device was, in percent.
    busy: Option<f64>,
    instructions: Vec<Instruction>,
}

/// Whose counts are read.
#[derive(Clone, Copy)]
enum Of {
    /// This launch's.
    Launch(LaunchId),
    /// Those of a kernel whose record is missing or damaged.
    Nobody,
    /// Samples of a kernel that was refused: its table was full.
    Refused,
}

struct IaprofReader {
    builder: ProfileBuilder,
    stacks: Stacks,
    texts: Texts,
    /// The kernel of the counts that are read.
    kernel: Of,
    interval: Interval,
    /// When the interval before ended.
    before: Option<f64>,
    /// When the first and the last interval ended.
    ends: Option<(f64, f64)>,
    is_iaprof: bool,
    total: u64,
}

impl IaprofReader {
    fn new() -> Self {
        let mut builder = ProfileBuilder::new(Meta::default());
        let device = builder.device(Device {
            name: "GPU (recorded by iaprof)".to_owned(),
            replayed: true,
        });
        Self {
            builder,
            stacks: Stacks::new(device),
            texts: Texts::new(),
            kernel: Of::Nobody,
            interval: Interval::default(),
            before: None,
            ends: None,
            is_iaprof: false,
            total: 0,
        }
    }

    fn line(&mut self, line: &[u8]) {
        let text = String::from_utf8_lossy(line);
        // The last line of a file that was cut off may look whole: `12` of `123`.
        let whole = text.strip_suffix('\n');
        let text = whole.unwrap_or(&text).trim_end_matches('\r');
        if text.is_empty() {
            return;
        }
        match Record::parse(text).filter(|_| whole.is_some()) {
            Some(record) => {
                self.is_iaprof = true;
                self.record(record);
            }
            None => {
                let kind = match text.starts_with("eustall\t") {
                    true => LossKind::DeviceUndecodable,
                    false => LossKind::Undecodable,
                };
                // ReasonCounts that follow belong to a kernel that is not known.
                if text.starts_with("kernel\t") {
                    self.kernel = Of::Nobody;
                }
                self.builder.losses().add(kind, 1);
            }
        }
    }

    fn record(&mut self, record: Record) {
        match record {
            Record::String { id, text } => self.texts.set(id, text),
            Record::Interval { end } => self.next_interval(end),
            Record::Kernel(kernel) => {
                let builder = &mut self.builder;
                let launch = self.stacks.launch(builder, &self.texts, &kernel);
                self.kernel = launch.map_or(Of::Refused, Of::Launch);
            }
            Record::Stall {
                offset,
                mnemonic,
                counts,
            } => self.stall(offset, mnemonic, counts),
            Record::Metric { name, value } => {
                if name == "busy-percent" && (0.0..=MAX_BUSY).contains(&value) {
                    self.interval.busy = Some(value);
                }
            }
        }
    }

    fn stall(&mut self, offset: u64, mnemonic: u64, counts: ReasonCounts) {
        let count = counts.iter().fold(0_u64, |sum, n| sum.saturating_add(*n));
        self.total = self.total.saturating_add(count);
        if let Of::Nobody = self.kernel {
            let launch = self.stacks.nobody(&mut self.builder);
            self.kernel = launch.map_or(Of::Refused, Of::Launch);
        }
        let has_room = self.interval.instructions.len() < MAX_INSTRUCTIONS;
        let Of::Launch(launch) = self.kernel else {
            return self.refuse(count);
        };
        if !has_room {
            return self.refuse(count);
        }
        let mnemonic = self.texts.id(mnemonic);
        self.interval.instructions.push(Instruction {
            launch,
            offset,
            mnemonic,
            counts,
        });
    }

    fn refuse(&mut self, count: u64) {
        let losses = self.builder.losses();
        losses.add(LossKind::DeviceSamplesRefused, count);
    }

    /// Ends the interval that was read; the next one ends at `end`.
    fn next_interval(&mut self, end: f64) {
        self.flush(Some(end));
        self.kernel = Of::Nobody;
        self.before = self.interval.end.or(self.before);
        self.interval = Interval {
            end: Some(end),
            ..Interval::default()
        };
        let first = self.ends.map_or(end, |(first, _)| first);
        self.ends = Some((first, end));
    }

    /// Adds the interval's instructions to the profile. `next` is when the interval
    /// after it ended.
    fn flush(&mut self, next: Option<f64>) {
        let Interval { end, busy, .. } = self.interval;
        let seconds = match (self.before, end, next) {
            (Some(before), Some(end), _) => end - before,
            (None, Some(end), Some(next)) => next - end,
            _ => 0.0,
        };
        let seconds = Some(seconds).filter(|s| (0.0..MAX_SECONDS).contains(s));
        // Both are bounded: their product fits in 64 bits.
        let busy_ns = seconds.unwrap_or(0.0) * busy.unwrap_or(0.0) * 1e7;
        let busy_ns = busy_ns.round() as u64;
        let instructions = std::mem::take(&mut self.interval.instructions);
        let counts = instructions.iter().flat_map(|i| i.counts);
        let mut shares = Shares::new(busy_ns, counts.fold(0, u64::saturating_add));
        for instruction in instructions {
            for (reason, count) in StallReason::ALL.into_iter().zip(instruction.counts) {
                let sample = stacks::At {
                    launch: instruction.launch,
                    offset: instruction.offset,
                    mnemonic: instruction.mnemonic,
                    reason,
                    count,
                    time_ns: shares.next(count),
                };
                if count > 0 {
                    let builder = &mut self.builder;
                    self.stacks.sample(builder, &self.texts, &sample);
                }
            }
        }
    }

    fn finish(mut self) -> Result<Profile, IaprofError> {
        self.flush(None);
        if !self.is_iaprof {
            return Err(IaprofError::NotIaprof);
        }
        if let Some((first, last)) = self.ends {
            let seconds = (last - first).clamp(0.0, MAX_SECONDS);
            self.builder.meta().duration_ns = (seconds * 1e9).round() as u64;
        }
        Ok(self.builder.finish())
    }
}

/// Parts of a time by counts: they add up to it.
struct Shares {
    whole_ns: u64,
    total: u64,
    /// ReasonCounts so far.
    counted: u64,
    /// Time given away so far.
    given_ns: u64,
}

impl Shares {
    fn new(whole_ns: u64, total: u64) -> Self {
        Self {
            whole_ns,
            total,
            counted: 0,
            given_ns: 0,
        }
    }

    /// The part of the next `count`.
    fn next(&mut self, count: u64) -> u64 {
        self.counted = self.counted.saturating_add(count);
        let product = u128::from(self.whole_ns) * u128::from(self.counted);
        let until = product / u128::from(self.total.max(1));
        let until = u64::try_from(until).unwrap_or(u64::MAX);
        let part = until.saturating_sub(self.given_ns);
        self.given_ns = until;
        part
    }
}

#[cfg(test)]
mod tests;
