//! Lines on stderr: no colours, no times, and priorities where journald reads them.

use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{self as lines, FmtContext};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;

/// Sends events to stderr from now on.
pub(crate) fn init(verbose: bool) {
    let level = match verbose {
        true => LevelFilter::DEBUG,
        false => LevelFilter::INFO,
    };
    let layer = lines::layer()
        .event_format(Lines {
            to_journal: is_journal(),
        })
        .with_writer(std::io::stderr)
        // Libraries log headers, which may be secret.
        .with_filter(tracing_subscriber::filter::filter_fn(move |about| {
            about.target().starts_with("aiprof") && *about.level() <= level
        }));
    // An error means that there is one already.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer));
}

/// Whether stderr is the stream that journald reads, by its own statement.
fn is_journal() -> bool {
    let stated = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let about = std::fs::metadata("/proc/self/fd/2");
    about.is_ok_and(|about| stated == format!("{}:{}", about.dev(), about.ino()))
}

struct Lines {
    to_journal: bool,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let (priority, word) = match *event.metadata().level() {
            Level::ERROR => (3, "error: "),
            Level::WARN => (4, "warning: "),
            Level::INFO => (6, ""),
            _ => (7, ""),
        };
        match self.to_journal {
            true => write!(writer, "<{priority}>")?,
            false => write!(writer, "aiprof-send: {word}")?,
        }
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}
