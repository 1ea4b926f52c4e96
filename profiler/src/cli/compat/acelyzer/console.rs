//! Messages as acelyzer 1.3.0 prints them: on stdout, a time, a coloured level, text.

use aiprof_model::visible;
use aiprof_trace::analyze::messages::{Level, Messages};
use jiff::{Timestamp, tz::TimeZone};
use std::io::{self, Write};

/// Prints messages up to a level. Errors of writing are ignored: then there is no reader.
pub(super) struct Console<W> {
    out: W,
    level: Level,
    zone: TimeZone,
}

impl Console<io::Stdout> {
    /// acelyzer's console.
    pub(super) fn stdout(level: Level) -> Self {
        Self::new(io::stdout(), level, TimeZone::system())
    }
}

impl<W: Write> Console<W> {
    pub(super) fn new(out: W, level: Level, zone: TimeZone) -> Self {
        Self { out, level, zone }
    }

    /// Prints one message, if its level is wanted.
    pub(super) fn log(&mut self, level: Level, text: &str) {
        if level <= self.level {
            let line = self.line(Timestamp::now(), level, text);
            let _ = self.out.write_all(line.as_bytes());
        }
    }

    /// Prints all messages, and how many more there were.
    pub(super) fn show(&mut self, messages: &Messages) {
        for message in messages {
            self.log(message.level, &message.text);
        }
        for level in Level::ALL {
            let dropped = messages.dropped(level);
            if dropped > 0 {
                let word = level.word();
                self.log(
                    level,
                    &format!("{dropped} further {word} messages are not shown"),
                );
            }
        }
    }

    /// Prints a line without time and level.
    pub(super) fn plain(&mut self, text: &str) {
        let _ = writeln!(self.out, "{}", visible::message(text));
    }

    /// A line. The blank at its end is acelyzer's; so are the colours on whatever
    /// stdout is.
    fn line(&self, now: Timestamp, level: Level, text: &str) -> String {
        let now = now
            .to_zoned(self.zone.clone())
            .strftime("%Y-%m-%dT%H:%M:%S.%6f");
        let (color, reset) = match level {
            Level::Error => ("\x1b[91m", "\x1b[0m"),
            Level::Warn => ("\x1b[93m", "\x1b[0m"),
            Level::Info | Level::Debug | Level::Trace => ("", ""),
        };
        let text = visible::message(text);
        format!("{now} {color}{:>8}{reset} {text} \n", level.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_acelyzer_s() {
        let console = Console::new(Vec::new(), Level::Info, TimeZone::UTC);
        let now = Timestamp::from_microsecond(1_795_295_742_859_717).unwrap();
        let line = |level, text| console.line(now, level, text);
        assert_eq!(
            line(Level::Info, "Starting Test parser"),
            "2026-11-21T21:15:42.859717     INFO Starting Test parser \n"
        );
        assert_eq!(
            line(Level::Warn, "FREQ: x"),
            "2026-11-21T21:15:42.859717 \x1b[93m WARNING\x1b[0m FREQ: x \n"
        );
        assert_eq!(
            line(Level::Error, "No input files found."),
            "2026-11-21T21:15:42.859717 \x1b[91m   ERROR\x1b[0m No input files found. \n"
        );
    }

    #[test]
    fn levels_above_the_chosen_one_are_silent_and_losses_are_told() {
        let mut messages = Messages::new(Level::Trace);
        for _ in 0..10_003 {
            messages.info("", format_args!("i"));
        }
        let mut console = Console::new(Vec::new(), Level::Warn, TimeZone::UTC);
        messages.warn("", format_args!("w"));
        console.show(&messages);
        console.plain("p");
        let text = String::from_utf8(console.out).unwrap();
        assert_eq!(text.lines().count(), 2);
        let mut console = Console::new(Vec::new(), Level::Info, TimeZone::UTC);
        console.show(&messages);
        let text = String::from_utf8(console.out).unwrap();
        assert!(text.ends_with("3 further INFO messages are not shown \n"));
    }
}
