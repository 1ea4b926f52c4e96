//! What was wrong with a file, counted, with the first place of each.

use std::fmt;

/// Kinds of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Trouble {
    /// Not a JSON object where an event should be.
    NotAnObject,
    /// Not JSON.
    Syntax,
    /// `ph`, `ts` or `name` is missing.
    Incomplete,
    /// A `ph` that is not known.
    UnknownPhase,
    /// A time that is no number, or none that a clock shows.
    BadTime,
    /// A slice without a duration.
    NoDuration,
    /// A slice that ends before it begins.
    NegativeDuration,
    /// A slice that takes no time; it is kept.
    ZeroDuration,
    /// No time passed on the host, but on the device; it is kept.
    ZeroHostTime,
    /// Some of TS1 to TS5 are missing or no numbers; the event is kept without them.
    BadCounters,
    /// `args` that are no object; the event is kept without them.
    BadArguments,
    /// The device's counters could not be read; the event is kept without them.
    NoCounters,
    /// A begin without an end.
    NeverEnded,
    /// An end without a begin.
    NeverBegun,
    /// Text that is not UTF-8; it is kept with marks.
    BadText,
    /// NaN or infinity, which JSON does not have; taken as not given.
    NotANumber,
    /// Control characters or escapes that JSON does not have; mended.
    BadEscape,
    /// Damaged text around the events.
    Around,
    /// A time further from the file's others than a timeline reaches, 106 days; it is moved
    /// to that limit.
    FarTime,
    /// Perfetto: a packet that cannot be decoded.
    BadPacket,
    /// Perfetto: the recorder lost packets here.
    LostPackets,
    /// Perfetto: an event that refers to a text, state or track that the file does not
    /// have.
    Unresolved,
    /// Perfetto: a time on a clock that no snapshot relates to the trace's.
    UnknownClock,
}

impl Trouble {
    /// All of them.
    pub const ALL: [Self; 23] = [
        Self::NotAnObject,
        Self::Syntax,
        Self::Incomplete,
        Self::UnknownPhase,
        Self::BadTime,
        Self::NoDuration,
        Self::NegativeDuration,
        Self::ZeroDuration,
        Self::ZeroHostTime,
        Self::BadCounters,
        Self::BadArguments,
        Self::NoCounters,
        Self::NeverEnded,
        Self::NeverBegun,
        Self::BadText,
        Self::NotANumber,
        Self::BadEscape,
        Self::Around,
        Self::FarTime,
        Self::BadPacket,
        Self::LostPackets,
        Self::Unresolved,
        Self::UnknownClock,
    ];

    /// Whether the event is left out.
    pub fn drops(self) -> bool {
        !matches!(
            self,
            Self::ZeroDuration
                | Self::ZeroHostTime
                | Self::BadCounters
                | Self::BadArguments
                | Self::NoCounters
                | Self::BadText
                | Self::NotANumber
                | Self::BadEscape
                | Self::Around
                | Self::FarTime
        )
    }

    /// Whether the file is damaged, and not only unusual.
    pub fn is_damage(self) -> bool {
        matches!(
            self,
            Self::NotAnObject | Self::Syntax | Self::Around | Self::BadPacket
        )
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAnObject => "an event that is not a JSON object",
            Self::Syntax => "not JSON",
            Self::Incomplete => "ph, ts or name is missing",
            Self::UnknownPhase => "unknown ph",
            Self::BadTime => "ts or dur is not a time",
            Self::NoDuration => "a complete event (X) without dur",
            Self::NegativeDuration => "ends before it begins",
            Self::ZeroDuration => "has no duration",
            Self::ZeroHostTime => "has no duration on the host, but one on the device",
            Self::BadCounters => "some of TS1 to TS5 are missing or not numbers",
            Self::BadArguments => "args is not an object",
            Self::NoCounters => "all counters are zero",
            Self::NeverEnded => "a begin (B) without an end (E)",
            Self::NeverBegun => "an end (E) without a begin (B)",
            Self::BadText => "not UTF-8",
            Self::NotANumber => "NaN or Infinity, which JSON does not allow",
            Self::BadEscape => "escapes or control characters that JSON does not allow",
            Self::Around => "damaged text around the events",
            Self::FarTime => "more than 106 days from the file's other times",
            Self::BadPacket => "a packet that cannot be decoded",
            Self::LostPackets => "packets that were lost while recording",
            Self::Unresolved => "refers to a text, state or track that is not in the file",
            Self::UnknownClock => "a time on a clock without a known relation to the trace's clock",
        })
    }
}

/// How often, and where first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// How often.
    pub count: u64,
    /// Byte offset in the file (in its text, if it is compressed) of the first.
    pub first: u64,
}

/// All trouble of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    seen: [Seen; Trouble::ALL.len()],
}

impl Problems {
    /// Counts one.
    pub(in crate::import) fn add(&mut self, trouble: Trouble, offset: u64) {
        self.add_some(trouble, 1, offset);
    }

    /// Counts some that are at one place.
    pub(super) fn add_some(&mut self, trouble: Trouble, count: u64, offset: u64) {
        let first = offset;
        self.add_all(trouble, Seen { count, first });
    }

    fn add_all(&mut self, trouble: Trouble, more: Seen) {
        if let Some(seen) = self.seen.get_mut(trouble as usize) {
            if seen.count == 0 || more.first < seen.first {
                seen.first = more.first;
            }
            seen.count += more.count;
        }
    }

    /// Adds those of a part of the file.
    pub(super) fn merge(&mut self, other: &Self) {
        other
            .iter()
            .for_each(|(trouble, seen)| self.add_all(trouble, seen));
    }

    /// Whether an event was left out since `before`.
    pub(super) fn drops_since(&self, before: &Self) -> bool {
        let drops = Trouble::ALL.into_iter().filter(|trouble| trouble.drops());
        drops.map(|t| self.count(t)).ne(Trouble::ALL
            .into_iter()
            .filter(|trouble| trouble.drops())
            .map(|t| before.count(t)))
    }

    /// What there is.
    pub fn iter(&self) -> impl Iterator<Item = (Trouble, Seen)> {
        Trouble::ALL
            .into_iter()
            .zip(self.seen)
            .filter(|(_, seen)| seen.count > 0)
    }

    /// How often one was seen.
    pub fn count(&self, trouble: Trouble) -> u64 {
        self.seen.get(trouble as usize).map_or(0, |seen| seen.count)
    }
}
