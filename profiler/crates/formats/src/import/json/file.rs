//! A trace file's outline: where its events are and what stands around them.

use super::cut::{Cutter, value_len};
use super::event::Block;
use super::first::first_time;
use aiprof_model::parallel::Pieces;
use std::io::{self, Read};
use thiserror::Error;

/// How much is read at once, and about the size of a block, bytes.
const CHUNK: usize = 2 << 20;
/// Longest event, and most of all values beside the events, bytes: what is longer is no
/// trace, and would have to be kept whole.
const MAX_VALUE: usize = 64 << 20;
/// Times further apart than this are of different clocks (12 days), microseconds; and
/// a timeline does not reach from one origin to the other.
pub(in crate::import) const FAR: u64 = 1 << 40;

/// Why a file cannot be read at all.
#[derive(Debug, Error)]
pub enum JsonError {
    /// It cannot be read, or not be decompressed.
    #[error("cannot read on at byte {offset}: {error}")]
    Io {
        /// Where.
        offset: u64,
        /// What the system says.
        error: io::Error,
    },
    /// It is empty.
    #[error("the file is empty")]
    Empty,
    /// It begins like no trace.
    #[error(
        "not a trace: expected a JSON list of events or an object with \"traceEvents\", found {found:?} at byte {offset}"
    )]
    NotATrace {
        /// Where.
        offset: u64,
        /// What is there.
        found: String,
    },
    /// An object without events.
    #[error("no \"traceEvents\" in the object, which ends at byte {offset}")]
    NoEvents {
        /// Where the object ends.
        offset: u64,
    },
}

/// How a file ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// As it should.
    Whole,
    /// In the middle of something: what is whole before it was read.
    CutOff {
        /// Where the last whole event ends.
        offset: u64,
    },
    /// Something follows that does not belong there, and was not read.
    Trailing {
        /// Where.
        offset: u64,
    },
    /// A value is too long, and what follows was not read.
    TooLong {
        /// Where it begins.
        offset: u64,
    },
    /// Reading failed: what is whole before it was read.
    Failed {
        /// Where.
        offset: u64,
        /// Why.
        reason: String,
    },
}

/// What stands around the events.
#[derive(Debug)]
pub(super) struct Outline {
    /// Keys and JSON texts of the object's other members.
    pub members: Vec<(String, String)>,
    /// How the file ended.
    pub end: End,
    /// What times are counted from.
    pub origin: Option<i64>,
    /// What they would be counted from, if the file's clock is not another one.
    wanted: Option<i64>,
}

/// A file's text, a window of it at a time.
struct TextWindow<R> {
    from: R,
    text: Vec<u8>,
    /// What is behind us in `text`.
    at: usize,
    /// Where `text` begins in the file.
    offset: u64,
    ended: bool,
    failed: Option<io::Error>,
}

impl<R: Read> TextWindow<R> {
    /// Reads on. False: there is no more.
    fn more(&mut self) -> bool {
        if self.ended {
            return false;
        }
        let known = self.text.len();
        self.text.reserve(CHUNK);
        let read = (&mut self.from)
            .take(CHUNK as u64)
            .read_to_end(&mut self.text);
        if let Err(error) = read {
            self.failed = Some(error);
            self.ended = true;
        }
        self.ended |= self.text.len() == known;
        self.text.len() > known
    }

    fn place(&self) -> u64 {
        self.offset + self.at as u64
    }

    /// The next byte that is no white space, comma or colon.
    fn peek(&mut self) -> Option<u8> {
        loop {
            while let Some(&byte) = self.text.get(self.at) {
                let skipped = byte.is_ascii_whitespace() || byte == b',' || byte == b':';
                if !skipped {
                    return Some(byte);
                }
                self.at += 1;
            }
            self.forget();
            if !self.more() {
                return None;
            }
        }
    }

    /// Lets go of what is behind us.
    fn forget(&mut self) {
        self.text.drain(..self.at);
        self.offset += self.at as u64;
        self.at = 0;
    }

    /// Takes the value here. `None`: it does not end, or not soon enough.
    fn value(&mut self) -> Option<String> {
        // Scanned again whenever the window has doubled, not with each chunk.
        loop {
            let rest = self.text.get(self.at..).unwrap_or_default();
            if let Some(len) = value_len(rest) {
                let value = rest.get(..len)?;
                let value = String::from_utf8_lossy(value).into_owned();
                self.at += len.max(1);
                return Some(value);
            }
            let wanted = 2 * rest.len();
            if rest.len() > MAX_VALUE || !self.more() {
                return None;
            }
            while self.text.len() - self.at < wanted && self.more() {}
        }
    }

    /// What is here, for a message.
    fn found(&self) -> String {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let some = rest.get(..rest.len().min(16)).unwrap_or_default();
        String::from_utf8_lossy(some).into_owned()
    }
}

/// Reads a file: its events go to `blocks`.
pub(super) fn read(
    from: impl Read,
    origin: Option<i64>,
    blocks: &mut Pieces<Block>,
) -> Result<Outline, JsonError> {
    let mut window = TextWindow {
        from,
        text: Vec::new(),
        at: 0,
        offset: 0,
        ended: false,
        failed: None,
    };
    window.more();
    if window.text.starts_with(b"\xef\xbb\xbf") {
        window.at = 3;
    }
    let mut outline = Outline {
        members: Vec::new(),
        end: End::Whole,
        origin: None,
        wanted: origin,
    };
    let first = window.peek();
    let result = match first {
        Some(b'[') => {
            window.at += 1;
            outline.events(&mut window, blocks);
            Ok(())
        }
        Some(b'{') => {
            window.at += 1;
            outline.object(&mut window, blocks)
        }
        Some(_) => Err(JsonError::NotATrace {
            offset: window.place(),
            found: window.found(),
        }),
        None => Err(JsonError::Empty),
    };
    if let Some(error) = window.failed {
        let offset = window.offset + window.text.len() as u64;
        if result.is_err() || offset == 0 {
            return Err(JsonError::Io { offset, error });
        }
        outline.end = End::Failed {
            offset,
            reason: error.to_string(),
        };
        return Ok(outline);
    }
    result?;
    if outline.end == End::Whole && window.peek().is_some() {
        outline.end = End::Trailing {
            offset: window.place(),
        };
    }
    Ok(outline)
}

impl Outline {
    /// Members of the outermost object.
    fn object<R: Read>(
        &mut self,
        window: &mut TextWindow<R>,
        blocks: &mut Pieces<Block>,
    ) -> Result<(), JsonError> {
        let (mut has_events, mut kept) = (false, 0);
        loop {
            let before = window.place();
            match window.peek() {
                Some(b'}') => {
                    window.at += 1;
                    break;
                }
                Some(b'"') => {}
                Some(_) => {
                    self.end = End::Trailing { offset: before };
                    break;
                }
                None => {
                    self.end = End::CutOff { offset: before };
                    break;
                }
            }
            let key = window.value();
            let key = key.and_then(|key| serde_json::from_str::<String>(&key).ok());
            let Some(key) = key else {
                self.end = End::CutOff { offset: before };
                break;
            };
            if key == "traceEvents" && window.peek() == Some(b'[') {
                window.at += 1;
                has_events = true;
                self.events(window, blocks);
                if self.end != End::Whole {
                    break;
                }
                continue;
            }
            window.peek();
            let place = window.place();
            match window.value() {
                Some(value) => {
                    kept += key.len() + value.len();
                    if kept > MAX_VALUE {
                        self.end = End::TooLong { offset: place };
                        break;
                    }
                    self.members.push((key, value));
                }
                None => {
                    self.end = match window.text.len() > MAX_VALUE {
                        true => End::TooLong { offset: place },
                        false => End::CutOff { offset: place },
                    };
                    break;
                }
            }
        }
        match has_events {
            true => Ok(()),
            false => Err(JsonError::NoEvents {
                offset: window.place(),
            }),
        }
    }

    /// The list of events, of which the bracket is behind us.
    fn events<R: Read>(&mut self, window: &mut TextWindow<R>, blocks: &mut Pieces<Block>) {
        loop {
            window.forget();
            let (mut cutter, mut scanned) = (Cutter::default(), 0);
            let (whole, closed) = loop {
                let is_more = window.more();
                let cut = cutter.scan(&window.text, scanned);
                scanned = window.text.len();
                if cut.closed.is_some() || cut.whole > 0 {
                    break (cut.whole, cut.closed);
                }
                let offset = window.offset;
                if window.text.len() > MAX_VALUE {
                    self.end = End::TooLong { offset };
                    return;
                }
                if !is_more {
                    self.end = End::CutOff { offset };
                    return;
                }
            };
            // To the cutter, only objects and lists end by themselves; what else
            // precedes the closing bracket goes with them.
            let whole = closed.unwrap_or(whole);
            let rest = window.text.split_off(whole);
            let text = std::mem::replace(&mut window.text, rest);
            let offset = window.offset;
            window.offset += whole as u64;
            if !text.is_empty() && !self.send(text, offset, blocks) {
                return;
            }
            if closed.is_some() {
                window.at = 1;
                return;
            }
        }
    }

    fn send(&mut self, text: Vec<u8>, offset: u64, blocks: &mut Pieces<Block>) -> bool {
        if self.origin.is_none() {
            let first = first_time(&text);
            let is_near = |wanted: &i64| first.is_none_or(|first| first.abs_diff(*wanted) < FAR);
            self.origin = self.wanted.filter(is_near).or(first);
        }
        blocks.put(Block {
            text,
            offset,
            origin: self.origin.or(self.wanted).unwrap_or(0),
        })
    }
}
