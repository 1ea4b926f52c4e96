//! What the modules report through `tracing`, on stderr: each warning once, and of a kind a few.

mod limits;

use super::{Verbosity, screen};
use aiprof_trace::analyze::messages::{self as analyze, Messages};
use limits::LogLimits;
use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

/// What was shown so far, once a subscriber is set.
static LIMITS: OnceLock<Arc<LogLimits>> = OnceLock::new();

/// Sends events to stderr from now on. Only the first call has an effect.
pub(crate) fn init(verbosity: Verbosity) {
    set(LogLines::new(screen::say), level_for(verbosity));
}

/// The same for services. They log more, since it is too late to ask for it after a problem, and
/// each line gives the journal its severity (`sd-daemon(3)`).
pub(super) fn init_always(verbosity: Verbosity) {
    let level = level_for(verbosity);
    let level = match verbosity.is_quiet() {
        true => level,
        false => level.max(LevelFilter::INFO),
    };
    let mut lines = LogLines::new(screen::say);
    lines.for_journal = std::env::var_os("JOURNAL_STREAM").is_some();
    set(lines, level);
}

fn set(lines: LogLines<impl Fn(&str) + Send + Sync + 'static>, level: LevelFilter) {
    let limits = Arc::clone(&lines.limits);
    let subscriber = tracing_subscriber::registry().with(lines.with_filter(level));
    // An error means that a subscriber is set already, as in tests.
    if tracing::subscriber::set_global_default(subscriber).is_ok() {
        let _ = LIMITS.set(limits);
    }
}

/// Shows a line of a process that works for this one.
pub(super) fn relay(line: &str) {
    let shown = LIMITS.get().map(|limits| limits.relay(line));
    let shown = shown.unwrap_or_else(|| vec![line.to_owned()]);
    shown.iter().for_each(|line| screen::say(line));
}

/// Prints how many lines were not shown. For the end of the program.
pub(super) fn sum_up() {
    let sums = LIMITS.get().map(|limits| limits.sum_up());
    let sums = sums.unwrap_or_default();
    sums.iter().for_each(|line| screen::say(line));
}

fn level_for(verbosity: Verbosity) -> LevelFilter {
    match verbosity {
        Verbosity { quiet: true, .. } => LevelFilter::ERROR,
        Verbosity { verbose: 0, .. } => LevelFilter::WARN,
        Verbosity { verbose: 1, .. } => LevelFilter::DEBUG,
        Verbosity { .. } => LevelFilter::TRACE,
    }
}

/// Shows the messages of an analysis.
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
            screen::say(&format!(
                "aiprof: {dropped} more {word} messages are not shown"
            ));
        }
    }
}

/// Formats events as lines, and shows some of each kind.
struct LogLines<F> {
    sink: F,
    limits: Arc<LogLimits>,
    /// Lines begin with their priority.
    for_journal: bool,
}

impl<F: Fn(&str)> LogLines<F> {
    fn new(sink: F) -> Self {
        Self {
            sink,
            limits: Arc::default(),
            for_journal: false,
        }
    }
}

impl<S: Subscriber, F: Fn(&str) + 'static> Layer<S> for LogLines<F> {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = *event.metadata().level();
        // Messages of libraries below warnings are not shown: they are about the libraries.
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
        let shown = self.limits.admit(event.metadata(), line);
        shown.iter().for_each(|line| (self.sink)(line));
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
    use std::sync::Mutex;

    fn lines_of(level: LevelFilter, emit: impl FnOnce()) -> Vec<String> {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        let layer = LogLines::new(move |line: &str| sink.lock().unwrap().push(line.to_owned()));
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
    fn of_each_kind_a_few_lines_are_shown() {
        let lines = lines_of(LevelFilter::DEBUG, || {
            for n in 0..3000 {
                tracing::warn!("x{n}: broken");
                tracing::debug!("x{n}: looked at");
                tracing::info!("window {n}");
                tracing::error!("disk full");
            }
            tracing::warn!("something else");
        });
        let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
        assert_eq!(count("broken"), 20);
        assert_eq!(count("looked at"), 100);
        assert_eq!(count("something else"), 1);
        assert_eq!((count("window"), count("disk full")), (3000, 3000));
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
