//! What the modules report through `tracing`, on stderr: each warning once.

use super::{Verbosity, screen};
use aiprof_analysis::analyze::messages::{self as analyze, Messages};
use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

/// Different warnings that are remembered. More are counted, not shown: memory
/// and screens are finite.
const MAX_WARNINGS: usize = 1000;

/// Sends events to stderr from now on. Only the first call has an effect.
pub(crate) fn init(verbosity: Verbosity) {
    set(Lines::new(screen::say), level_for(verbosity));
}

/// The same for what runs always: it says more, for nobody asks for that when it is too
/// late, and each line tells the journal how much it matters (`sd-daemon(3)`).
pub(super) fn init_always(verbosity: Verbosity) {
    let level = level_for(verbosity);
    let level = match verbosity.is_quiet() {
        true => level,
        false => level.max(LevelFilter::INFO),
    };
    let mut lines = Lines::new(screen::say);
    lines.for_journal = std::env::var_os("JOURNAL_STREAM").is_some();
    set(lines, level);
}

fn set(lines: Lines<impl Fn(&str) + Send + Sync + 'static>, level: LevelFilter) {
    let subscriber = tracing_subscriber::registry().with(lines.with_filter(level));
    // An error means that a subscriber is set already, as in tests.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

fn level_for(verbosity: Verbosity) -> LevelFilter {
    match verbosity {
        Verbosity { quiet: true, .. } => LevelFilter::ERROR,
        Verbosity { verbose: 0, .. } => LevelFilter::WARN,
        Verbosity { verbose: 1, .. } => LevelFilter::DEBUG,
        Verbosity { .. } => LevelFilter::TRACE,
    }
}

/// Shows what an analysis has to say.
pub(super) fn analysis(messages: &Messages) {
    for message in messages {
        let text = &message.text;
        screen::say(&match message.level {
            analyze::Level::Error => format!("aiprof: error: {text}"),
            analyze::Level::Warn => format!("aiprof: warning: {text}"),
            _ => format!("aiprof: {text}"),
        });
    }
    for level in analyze::Level::ALL {
        let dropped = messages.dropped(level);
        if dropped > 0 {
            let word = level.word().to_ascii_lowercase();
            screen::say(&format!("aiprof: {dropped} further {word} messages"));
        }
    }
}

/// Formats events as lines, and repeats no warning.
struct Lines<F> {
    sink: F,
    seen: Mutex<HashSet<String>>,
    /// Lines begin with their priority.
    for_journal: bool,
}

impl<F: Fn(&str)> Lines<F> {
    fn new(sink: F) -> Self {
        Self {
            sink,
            seen: Mutex::new(HashSet::new()),
            for_journal: false,
        }
    }

    /// Whether a warning has not been shown yet.
    fn is_new(&self, line: &str) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() > MAX_WARNINGS || seen.contains(line) {
            return false;
        }
        seen.insert(line.to_owned());
        if seen.len() > MAX_WARNINGS {
            (self.sink)("aiprof: warning: further warnings are not shown");
            return false;
        }
        true
    }
}

impl<S: Subscriber, F: Fn(&str) + 'static> Layer<S> for Lines<F> {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = *event.metadata().level();
        // Libraries tell their own story below warnings; it is not ours.
        if level > Level::WARN && !event.metadata().target().starts_with("aiprof") {
            return;
        }
        let mut line = match level {
            Level::ERROR => "aiprof: error: ".to_owned(),
            Level::WARN => "aiprof: warning: ".to_owned(),
            _ => format!("aiprof: {}: ", level.as_str().to_ascii_lowercase()),
        };
        event.record(&mut EventText(&mut line));
        if self.for_journal {
            let priority = match level {
                Level::ERROR => 3,
                Level::WARN => 4,
                Level::INFO => 6,
                _ => 7,
            };
            line.insert_str(0, &format!("<{priority}>"));
        }
        if level != Level::WARN || self.is_new(&line) {
            (self.sink)(&line);
        }
    }
}

/// Appends an event's message and fields to a line.
struct EventText<'a>(&'a mut String);

impl Visit for EventText<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a string cannot fail.
        let _ = if field.name() == "message" {
            write!(self.0, "{value:?}")
        } else {
            write!(self.0, " {}={value:?}", field.name())
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn lines_of(level: LevelFilter, emit: impl FnOnce()) -> Vec<String> {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        let layer = Lines::new(move |line: &str| sink.lock().unwrap().push(line.to_owned()));
        let subscriber = tracing_subscriber::registry().with(layer.with_filter(level));
        tracing::subscriber::with_default(subscriber, emit);
        std::mem::take(&mut lines.lock().unwrap())
    }

    #[test]
    fn a_warning_is_shown_once_and_an_error_every_time() {
        let lines = lines_of(LevelFilter::WARN, || {
            for file in ["a", "b", "a"] {
                tracing::warn!(file, "cannot read");
                tracing::error!("disk full");
                tracing::debug!("detail");
            }
        });
        let warning = |file| format!("aiprof: warning: cannot read file={file:?}");
        let error = "aiprof: error: disk full".to_owned();
        assert_eq!(
            lines,
            [&warning("a"), &error, &warning("b"), &error, &error].map(String::clone)
        );
    }

    #[test]
    fn the_number_of_warnings_is_bounded() {
        let lines = lines_of(LevelFilter::WARN, || {
            for n in 0..3 * MAX_WARNINGS {
                tracing::warn!(n, "different");
            }
        });
        assert_eq!(lines.len(), MAX_WARNINGS + 1);
        assert!(lines.last().unwrap().contains("not shown"));
    }

    #[test]
    fn verbosity_chooses_the_level() {
        let level = |verbose, quiet| level_for(Verbosity { verbose, quiet });
        assert_eq!(level(0, true), LevelFilter::ERROR);
        assert_eq!(level(0, false), LevelFilter::WARN);
        assert_eq!(level(1, false), LevelFilter::DEBUG);
        assert_eq!(level(2, false), LevelFilter::TRACE);
    }
}
