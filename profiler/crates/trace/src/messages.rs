//! Messages of analyses: collected in order, shown by whoever ran them.
//!
//! Analyses are pure and print nothing. `aiprof acelyzer` shows the messages as
//! acelyzer's log lines on stdout, `aiprof analyze` in aiprof's own style on stderr,
//! and the report lists them with its findings.

use std::fmt::Arguments;

/// Messages of one class (see [`Messages`]) that are kept; more are counted.
const MAX_KEPT: usize = 10_000;

/// How much a message matters; the number is acelyzer's `-D` level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// A result is missing or wrong.
    Error = 0,
    /// A result should be looked at with care.
    Warn = 1,
    /// What was done and found.
    #[default]
    Info = 2,
    /// Details that explain a result.
    Debug = 3,
    /// Every step.
    Trace = 4,
}

impl Level {
    /// All levels, the most important first.
    pub const ALL: [Self; 5] = [
        Self::Error,
        Self::Warn,
        Self::Info,
        Self::Debug,
        Self::Trace,
    ];

    /// The level of an acelyzer `-D` number; `None` outside of 0 to 4.
    pub fn from_number(number: i64) -> Option<Self> {
        let index = usize::try_from(number).ok()?;
        Self::ALL.get(index).copied()
    }

    /// The word in acelyzer's log lines.
    pub fn word(self) -> &'static str {
        match self {
            Self::Error => "ERROR",
            Self::Warn => "WARNING",
            Self::Info => "INFO",
            Self::Debug => "DEBUG",
            Self::Trace => "TRACE",
        }
    }
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// How much it matters.
    pub level: Level,
    /// The analysis that speaks, as acelyzer's tag: `UTL`, `FREQ`, `PEC`; may be
    /// empty.
    pub tag: &'static str,
    /// The whole line as it is shown, with the tag where acelyzer's line has one.
    pub text: String,
}

/// Messages in the order in which they came.
///
/// Bounded: of errors and warnings, and of all the rest, the first 10,000 each are
/// kept, so that details never displace a warning. What did not fit is counted.
#[derive(Clone, Debug)]
pub struct Messages {
    wanted: Level,
    list: Vec<Message>,
    important: usize,
    dropped: [u64; Level::ALL.len()],
}

impl Messages {
    /// Collects messages up to the level `wanted`; others are not even formatted.
    pub fn new(wanted: Level) -> Self {
        Self {
            wanted,
            list: Vec::new(),
            important: 0,
            dropped: [0; Level::ALL.len()],
        }
    }

    /// The level up to which messages are collected.
    pub(crate) fn level(&self) -> Level {
        self.wanted
    }

    /// Whether messages of this level are collected: asked before costly work that
    /// only serves a message.
    pub fn wants(&self, level: Level) -> bool {
        level <= self.wanted
    }

    /// Adds a message, unless its level is not wanted. Called as
    /// `messages.say(Level::Warn, "UTL", format_args!(..))`.
    pub fn say(&mut self, level: Level, tag: &'static str, text: Arguments<'_>) {
        if !self.wants(level) {
            return;
        }
        let is_important = level <= Level::Warn;
        let others = self.list.len() - self.important;
        let kept = if is_important { self.important } else { others };
        if kept >= MAX_KEPT {
            if let Some(count) = self.dropped.get_mut(level as usize) {
                *count += 1;
            }
            return;
        }
        self.important += usize::from(is_important);
        self.list.push(Message {
            level,
            tag,
            text: text.to_string(),
        });
    }

    /// An error; see [`Self::say`].
    pub fn error(&mut self, tag: &'static str, text: Arguments<'_>) {
        self.say(Level::Error, tag, text);
    }

    /// A warning; see [`Self::say`].
    pub fn warn(&mut self, tag: &'static str, text: Arguments<'_>) {
        self.say(Level::Warn, tag, text);
    }

    /// An information; see [`Self::say`].
    pub fn info(&mut self, tag: &'static str, text: Arguments<'_>) {
        self.say(Level::Info, tag, text);
    }

    /// A detail; see [`Self::say`].
    pub fn debug(&mut self, tag: &'static str, text: Arguments<'_>) {
        self.say(Level::Debug, tag, text);
    }

    /// The kept messages, oldest first.
    pub fn iter(&self) -> std::slice::Iter<'_, Message> {
        self.list.iter()
    }

    /// How many wanted messages of this level did not fit.
    pub fn dropped(&self, level: Level) -> u64 {
        self.dropped.get(level as usize).copied().unwrap_or(0)
    }

    /// Takes all kept messages out, for showing them while work goes on. Later messages
    /// have the full room again.
    pub fn take(&mut self) -> Vec<Message> {
        self.important = 0;
        std::mem::take(&mut self.list)
    }

    /// Appends all that another collector holds.
    pub fn append(&mut self, other: Self) {
        for (mine, theirs) in self.dropped.iter_mut().zip(other.dropped) {
            *mine += theirs;
        }
        for message in other.list {
            self.say(message.level, message.tag, format_args!("{}", message.text));
        }
    }
}

impl<'a> IntoIterator for &'a Messages {
    type Item = &'a Message;
    type IntoIter = std::slice::Iter<'a, Message>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_never_displace_warnings() {
        let mut messages = Messages::new(Level::Info);
        for n in 0..MAX_KEPT + 5 {
            messages.info("A", format_args!("{n}"));
        }
        messages.warn("B", format_args!("look"));
        messages.debug("C", format_args!("not wanted"));
        assert_eq!(messages.iter().count(), MAX_KEPT + 1);
        assert_eq!(messages.dropped(Level::Info), 5);
        assert_eq!(messages.dropped(Level::Debug), 0);
        let last = messages.iter().last().unwrap();
        assert_eq!((last.level, last.text.as_str()), (Level::Warn, "look"));
    }

    #[test]
    fn appending_keeps_order_and_counts() {
        let mut messages = Messages::new(Level::Info);
        messages.info("A", format_args!("1"));
        let mut other = Messages::new(Level::Trace);
        other.warn("B", format_args!("2"));
        other.debug("B", format_args!("3"));
        other.dropped[Level::Warn as usize] = 7;
        messages.append(other);
        let texts: Vec<_> = messages.iter().map(|m| m.text.as_str()).collect();
        assert_eq!(texts, ["1", "2"]);
        assert_eq!(messages.dropped(Level::Warn), 7);
        assert_eq!(messages.take().len(), 2);
        assert_eq!(messages.iter().count(), 0);
    }

    #[test]
    fn levels_are_acelyzer_s_numbers() {
        for (number, level) in (0..).zip(Level::ALL) {
            assert_eq!(Level::from_number(number), Some(level));
        }
        assert_eq!(Level::from_number(5), None);
        assert_eq!(Level::from_number(-1), None);
    }
}
