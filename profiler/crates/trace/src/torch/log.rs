//! What PyTorch's compiler reports on graph breaks and recompilations on standard error with
//! `TORCH_LOGS=graph_breaks,recompiles`.
//!
//! A line is `V1126 04:51:02.827000 999 torch/_dynamo/guards.py:4760] [0/1]
//! [__recompiles] TEXT`, with other programs' lines between. Texts are those of PyTorch
//! 2.3 to 2.15.

use serde::Serialize;
use std::io::{self, BufRead};

/// Most breaks and recompilations that are kept, each.
const MAX_ENTRIES: usize = 100_000;
/// Longest line that is looked at, bytes.
const MAX_LINE: u64 = 64 << 10;
/// Longest text that is kept of a reason or guard, bytes.
const MAX_TEXT: usize = 1000;

/// Number of a compilation: `1/2` is the third of the second frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct CompileId {
    /// Number of the frame: a function, or the rest of one behind a graph break.
    pub frame: u32,
    /// Which compilation of the frame; more than 0: a recompilation.
    pub compile: u32,
}

impl CompileId {
    /// Reads `1/2`, also with the attempt behind it (`1/2_1`) or the number of a compiled backward
    /// pass before it (`!0/1/2`).
    pub fn parse(text: &str) -> Option<Self> {
        let text = match text.strip_prefix('!') {
            Some(rest) => rest.split_once('/')?.1,
            None => text,
        };
        let (frame, compile) = text.split_once('/')?;
        let compile = compile.split('_').next()?;
        Some(Self {
            frame: frame.parse().ok()?,
            compile: compile.parse().ok()?,
        })
    }
}

impl std::fmt::Display for CompileId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.frame, self.compile)
    }
}

/// A graph break.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoggedBreak {
    /// In which compilation.
    pub id: CompileId,
    /// Where: `file:line`.
    pub place: String,
    /// Why.
    pub reason: String,
    /// The same at length; empty: older versions print nothing more.
    pub explanation: String,
}

/// A recompilation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoggedRecompile {
    /// Its number.
    pub id: CompileId,
    /// The function.
    pub function: String,
    /// Where it is: `file:line`.
    pub place: String,
    /// What failed, of each compilation that was tried: `0/0: tensor 'x' size mismatch`.
    pub guards: Vec<String>,
}

/// A log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TorchLog {
    /// Graph breaks in their order.
    pub breaks: Vec<LoggedBreak>,
    /// Recompilations in their order.
    pub recompiles: Vec<LoggedRecompile>,
    /// Entries that were too many, and lines that were too long.
    pub lost: u64,
}

/// What a line belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Topic {
    Break,
    Recompile,
}

impl TorchLog {
    /// Reads a log.
    ///
    /// # Errors
    /// As `from`.
    pub fn read(from: &mut dyn BufRead) -> io::Result<Self> {
        let mut log = Self::default();
        let mut line = Vec::new();
        while read_line(from, &mut line, &mut log.lost)? {
            log.line(&String::from_utf8_lossy(&line));
        }
        Ok(log)
    }

    /// Whether it has neither breaks nor recompilations.
    pub fn is_empty(&self) -> bool {
        self.breaks.is_empty() && self.recompiles.is_empty()
    }

    fn line(&mut self, line: &str) {
        let found = [
            ("[__graph_breaks] ", Topic::Break),
            ("[__recompiles] ", Topic::Recompile),
        ];
        let found = found.into_iter().find_map(|(tag, topic)| {
            let (before, text) = line.split_once(tag)?;
            let id = before.trim_end().strip_suffix(']')?;
            let id = id.rsplit_once('[')?.1;
            Some((topic, CompileId::parse(id)?, text.trim_end()))
        });
        match found {
            Some((Topic::Break, id, text)) => self.break_line(id, text),
            Some((Topic::Recompile, id, text)) => self.recompile_line(id, text),
            None => {}
        }
    }

    fn break_line(&mut self, id: CompileId, text: &str) {
        if text.starts_with("Graph break") && !text.starts_with("Graph Break Reason") {
            let place = text.rsplit_once(" at ").map_or("", |(_, place)| place);
            let entry = LoggedBreak {
                id,
                place: cut(place),
                ..LoggedBreak::default()
            };
            return push(&mut self.breaks, entry, &mut self.lost);
        }
        let Some(last) = self.breaks.last_mut().filter(|last| last.id == id) else {
            return;
        };
        let text = text.trim();
        let reason = ["Graph Break Reason: ", "Reason: "];
        let reason = reason.iter().find_map(|word| text.strip_prefix(word));
        if let Some(reason) = reason {
            // Newer versions print the step first, and the reason on a line of its own.
            if !reason.starts_with("Encountered graph break when") {
                last.reason = cut(reason);
            }
        } else if let Some(explanation) = text.strip_prefix("Explanation: ") {
            last.explanation = cut(explanation);
        } else if last.reason.is_empty() && !text.is_empty() && !text.ends_with(':') {
            last.reason = cut(text);
        }
    }

    fn recompile_line(&mut self, id: CompileId, text: &str) {
        if let Some(rest) = text.strip_prefix("Recompiling function ") {
            let (function, place) = rest.split_once(" in ").unwrap_or((rest, ""));
            let entry = LoggedRecompile {
                id,
                function: cut(function),
                place: cut(place),
                guards: Vec::new(),
            };
            return push(&mut self.recompiles, entry, &mut self.lost);
        }
        let last = self.recompiles.last_mut().filter(|last| last.id == id);
        if let (Some(last), Some(guard)) = (last, text.trim().strip_prefix("- ")) {
            push(&mut last.guards, cut(guard), &mut self.lost);
        }
    }
}

fn push<T>(list: &mut Vec<T>, entry: T, lost: &mut u64) {
    match list.len() < MAX_ENTRIES {
        true => list.push(entry),
        false => *lost += 1,
    }
}

fn cut(text: &str) -> String {
    let end = text.floor_char_boundary(MAX_TEXT);
    text.get(..end).unwrap_or_default().to_owned()
}

/// Reads a line, or as much of it as is looked at; whether there was one.
fn read_line(from: &mut dyn BufRead, line: &mut Vec<u8>, lost: &mut u64) -> io::Result<bool> {
    line.clear();
    let limited = &mut io::Read::take(&mut *from, MAX_LINE);
    if limited.read_until(b'\n', line)? == 0 {
        return Ok(false);
    }
    if line.last() != Some(&b'\n') && line.len() as u64 == MAX_LINE {
        *lost += 1;
        skip_line(from)?;
    }
    Ok(true)
}

fn skip_line(from: &mut dyn BufRead) -> io::Result<()> {
    loop {
        let bytes = from.fill_buf()?;
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let (len, is_done) = match end {
            Some(end) => (end + 1, true),
            None => (bytes.len(), bytes.is_empty()),
        };
        from.consume(len);
        if is_done {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> TorchLog {
        TorchLog::read(&mut text.as_bytes()).unwrap()
    }

    const BREAK: &str = "\
V1126 04:51:02.827000 999 torch/_dynamo/symbolic_convert.py:5127] [0/0] [__graph_breaks] Graph break in user code at /home/me/train.py:65
V1126 04:51:02.827000 999 torch/_dynamo/symbolic_convert.py:5127] [0/0] [__graph_breaks] Graph Break Reason: Encountered graph break when attempting to trace CALL: a function call, e.g. f(x, y):
V1126 04:51:02.827000 999 torch/_dynamo/symbolic_convert.py:5127] [0/0] [__graph_breaks] 
V1126 04:51:02.827000 999 torch/_dynamo/symbolic_convert.py:5127] [0/0] [__graph_breaks] Failed to trace builtin operator
V1126 04:51:02.827000 999 torch/_dynamo/symbolic_convert.py:5127] [0/0] [__graph_breaks]   Explanation: Dynamo does not know how to trace builtin operator `print`
break 64
V1126 04:51:05.423000 999 torch/_dynamo/symbolic_convert.py:5134] [1/0_1] [__graph_breaks] Graph break (user stack suppressed due to duplicate graph break) in user code at /home/me/train.py:65
";

    /// Lines of PyTorch 2.11, between a program's own.
    #[test]
    fn breaks_have_places_and_reasons() {
        let log = read(BREAK);
        assert_eq!(log.breaks.len(), 2);
        let [first, second] = [&log.breaks[0], &log.breaks[1]];
        assert_eq!(first.id.to_string(), "0/0");
        assert_eq!(first.place, "/home/me/train.py:65");
        assert_eq!(first.reason, "Failed to trace builtin operator");
        assert!(first.explanation.ends_with("`print`"));
        assert_eq!(
            (second.id.to_string(), &second.reason[..]),
            ("1/0".into(), "")
        );
    }

    /// Lines of PyTorch 2.5.
    #[test]
    fn older_versions_say_it_in_one_line() {
        let log = read(
            "V0101 1 a.py:1] [1/0] [__graph_breaks] Graph break in user code at t.py:7\n\
             V0101 1 a.py:1] [1/0] [__graph_breaks] Reason: Unsupported: builtin: print\n\
             V0101 1 a.py:1] [1/0] [__graph_breaks] User code traceback:\n",
        );
        assert_eq!(log.breaks[0].reason, "Unsupported: builtin: print");
    }

    #[test]
    fn recompilations_have_guards() {
        let log = read(
            "V 1 guards.py:4760] [0/1] [__recompiles] Recompiling function f in /t.py:67\n\
             V 1 guards.py:4760] [0/1] [__recompiles]     triggered by the following guard failure(s):\n\
             V 1 guards.py:4760] [0/1] [__recompiles]     - 0/0: tensor 'x' size mismatch\n\
             V 1 guards.py:4760] [7/1] [__recompiles]     - 0/0: of nobody\n",
        );
        assert_eq!(
            log.recompiles,
            [LoggedRecompile {
                id: CompileId {
                    frame: 0,
                    compile: 1
                },
                function: "f".into(),
                place: "/t.py:67".into(),
                guards: vec!["0/0: tensor 'x' size mismatch".into()],
            }]
        );
    }

    #[test]
    fn other_texts_say_nothing() {
        let long = format!(
            "[0/0] [__recompiles] {}\n[0/0] [__graph_breaks] Graph break\n",
            "x".repeat(70_000)
        );
        let log = read(&long);
        assert_eq!(
            (log.lost, log.breaks.len(), log.recompiles.len()),
            (1, 1, 0)
        );
        assert!(read("Graph break in user code at x:1\n[__recompiles] x\n").is_empty());
        for text in ["", "1", "a/b", "!1", "1/", "/1", "99999999999/1"] {
            assert_eq!(CompileId::parse(text), None, "{text}");
        }
        let backward = CompileId::parse("!0/1/2").unwrap();
        assert_eq!(backward.to_string(), "1/2");
    }
}
