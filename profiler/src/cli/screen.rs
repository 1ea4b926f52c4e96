//! stderr as a person sees it: lines, and below them a progress line that is
//! redrawn in place.

use aiprof_model::visible;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

/// The progress line that is on the screen now; empty: none.
static PROGRESS: Mutex<String> = Mutex::new(String::new());

/// Erases from the cursor's column to the end of the line (ECMA-48 EL).
const ERASE: &str = "\r\x1b[K";

/// Whether a progress line makes sense.
pub(crate) fn has_progress() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Whether stdout shows colours (<https://no-color.org>).
pub(crate) fn has_colors() -> bool {
    io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Columns of the terminal on stdout or stderr; 80 where there is none.
pub(crate) fn width() -> usize {
    let columns = rustix::termios::tcgetwinsize(io::stdout())
        .or_else(|_| rustix::termios::tcgetwinsize(io::stderr()))
        .map_or(0, |size| usize::from(size.ws_col));
    // Some terminals do not know their size and report 0.
    match columns {
        0 => 80,
        columns => columns.clamp(20, 1000),
    }
}

/// Columns of the terminal on stderr, if it is one.
fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stderr()).ok()?;
    Some(usize::from(size.ws_col)).filter(|&columns| columns >= 20)
}

/// Text whose lines are broken between words where they are longer than `width`. What
/// goes on stands deeper than the line's begin.
fn wrapped(text: &str, width: usize) -> String {
    let lines: Vec<_> = text
        .split('\n')
        .map(|line| wrapped_line(line, width))
        .collect();
    lines.join("\n")
}

fn wrapped_line(line: &str, width: usize) -> String {
    let indent = line.chars().take_while(|&c| c == ' ').count();
    let deeper = " ".repeat((indent + 2).min(width / 2));
    let mut text = String::with_capacity(line.len() + 16);
    let mut column = 0;
    for part in line.split_inclusive(' ') {
        let length = part.trim_end_matches(' ').chars().count();
        if column > deeper.len().max(indent) && column + length > width {
            text.truncate(text.trim_end_matches(' ').len());
            text.push('\n');
            text.push_str(&deeper);
            column = deeper.len();
        }
        text.push_str(part);
        column += part.chars().count();
    }
    text
}

/// Shows `text` as the progress line.
pub(crate) fn set_progress(text: &str) {
    let mut shown = PROGRESS.lock().unwrap_or_else(PoisonError::into_inner);
    shown.clear();
    // A line that wraps cannot be redrawn in place.
    let text = visible::one_line(text);
    shown.extend(text.chars().take(width().saturating_sub(1)));
    // stderr may be closed: then there is no reader.
    let _ = write!(io::stderr(), "{ERASE}{shown}");
}

/// Takes the progress line off the screen.
pub(crate) fn clear_progress() {
    let mut shown = PROGRESS.lock().unwrap_or_else(PoisonError::into_inner);
    if !shown.is_empty() {
        shown.clear();
        let _ = write!(io::stderr(), "{ERASE}");
    }
}

/// Writes a line above the progress line, without what terminals would obey.
pub(crate) fn say(line: &str) {
    if aiprof_system::remote::divert(line) {
        return;
    }
    let shown = PROGRESS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut text = String::with_capacity(line.len() + shown.len() + 8);
    if !shown.is_empty() {
        text.push_str(ERASE);
    }
    let line = visible::message(line);
    match terminal_width() {
        Some(width) => text.push_str(&wrapped(&line, width)),
        None => text.push_str(&line),
    }
    text.push('\n');
    text.push_str(&shown);
    // One write, so that lines of several processes do not mix.
    let _ = io::stderr().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words() {
        let text = "  aiprof itself: 613 ms CPU, 27.2 MiB memory";
        assert_eq!(wrapped(text, 80), text);
        assert_eq!(
            wrapped(text, 24),
            "  aiprof itself: 613 ms\n    CPU, 27.2 MiB memory"
        );
        // A word that is longer than a line stays whole.
        let path = "  written to /a/very/long/path/without/a/space.svg";
        assert_eq!(
            wrapped(path, 20),
            "  written to\n    /a/very/long/path/without/a/space.svg"
        );
        assert_eq!(wrapped("a\n\nb", 20), "a\n\nb");
    }
}
