//! A trace file's outline: where its events are and what stands around them.

use super::cut::{Cutter, value_len};
use super::event::EventBlock;
use super::first::first_time;
use super::problem::{Problems, Trouble};
use super::rescue::{Effort, is_damaged, last_event, next_event};
use aiprof_model::parallel::Pieces;
use serde::de::IgnoredAny;
use std::io::{self, Read};
use thiserror::Error;

/// How much is read at once, and about the size of a block, bytes.
const CHUNK: usize = 2 << 20;
/// A value that is this long, bytes, is looked at before more is read: it may be damaged,
/// and swallow all others.
const LONG: usize = 2 * CHUNK;
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
    #[error("cannot read beyond byte {offset}: {error}")]
    Io {
        /// Where.
        offset: u64,
        /// The system's error.
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
    /// What is wrong around the events.
    pub problems: Problems,
    /// What times are counted from.
    pub origin: Option<i64>,
    /// What they would be counted from, if the file's clock is not another one.
    wanted: Option<i64>,
    /// Nothing follows the last event, not even the end of the list.
    end_is_open: bool,
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
        self.ended |= self.text.len() - known < CHUNK;
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

    /// Goes back to a place that it has not let go of.
    fn back_to(&mut self, place: u64) {
        self.at = usize::try_from(place.saturating_sub(self.offset)).unwrap_or(self.at);
    }

    /// Whether a list begins here whose first value is an event.
    fn begins_list_of_events(&self) -> bool {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let Some(list) = rest.strip_prefix(b"[") else {
            return false;
        };
        let first = list.trim_ascii_start();
        first.starts_with(b"{") && next_event(first, 0, &mut Effort::of(b"")) == Some(0)
    }

    /// Whether a bracket closes the list of events: behind it the file ends, or the object
    /// goes on. `event`: an event that is known to stand behind it.
    fn closes_list(&mut self, at: usize, event: &mut Option<usize>) -> bool {
        if self.text.get(at) != Some(&b']') {
            return false;
        }
        // A few more bytes show whether a key follows.
        while self.behind(at).len() < KEY && self.more() {}
        match self.behind(at).split_first() {
            None | Some((b'}', _)) => return true,
            Some((b',', rest)) if begins_member(rest.trim_ascii_start()) => return true,
            Some(_) => {}
        }
        if event.is_none_or(|event| event < at) {
            let text = self.text.as_slice();
            *event = next_event(text, at, &mut Effort::of(text));
        }
        event.is_none()
    }

    /// The text behind a place, without white space.
    fn behind(&self, at: usize) -> &[u8] {
        let rest = self.text.get(at + 1..).unwrap_or_default();
        rest.trim_ascii_start()
    }

    /// What is here, for a message.
    fn found(&self) -> String {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let some = rest.get(..rest.len().min(16)).unwrap_or_default();
        String::from_utf8_lossy(some).into_owned()
    }
}

/// Longest key that is known as one behind the list of events, with white space, bytes.
const KEY: usize = 256;

/// Whether a text begins with `"key":`.
fn begins_member(text: &[u8]) -> bool {
    let len = value_len(text).filter(|_| text.starts_with(b"\""));
    let rest = len.and_then(|len| text.get(len..)).unwrap_or_default();
    rest.trim_ascii_start().starts_with(b":")
}

/// Whether a place of a text is behind an event: others follow, the list's end or nothing.
fn is_boundary(text: &[u8], at: usize) -> bool {
    let (before, behind) = text.split_at(at.min(text.len()));
    let behind = behind.trim_ascii_start();
    let next = match behind.strip_prefix(b",") {
        Some(rest) => rest.trim_ascii_start(),
        None => behind,
    };
    before.ends_with(b"}") && matches!(next.first(), None | Some(b'{' | b']'))
}

/// What an object has next.
enum Next {
    /// A member was read.
    Member,
    /// The list of events begins.
    Events,
    /// It is closed.
    Closed,
    /// It is damaged, or ends too early.
    Broken(End),
}

/// Reads a file: its events go to `blocks`.
pub(super) fn read(
    from: impl Read,
    origin: Option<i64>,
    blocks: &mut Pieces<EventBlock>,
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
        problems: Problems::default(),
        origin: None,
        wanted: origin,
        end_is_open: false,
    };
    let first = window.peek();
    let result = match first {
        Some(b'[') => {
            window.at += 1;
            outline.events(&mut window, blocks);
            if outline.end_is_open {
                // The format does not want the bracket of a list that is all of the file.
                outline.end = End::Whole;
            }
            Ok(())
        }
        Some(b'{') => {
            window.at += 1;
            outline.object(&mut window, blocks)
        }
        Some(_) if outline.finds_events(&mut window) => {
            outline.events(&mut window, blocks);
            Ok(())
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
    while outline.end == End::Whole && window.peek().is_some() {
        outline.behind(&mut window, blocks);
    }
    Ok(outline)
}

impl Outline {
    /// Members of the outermost object.
    fn object<R: Read>(
        &mut self,
        window: &mut TextWindow<R>,
        blocks: &mut Pieces<EventBlock>,
    ) -> Result<(), JsonError> {
        let (mut has_events, mut kept) = (false, 0);
        loop {
            match self.member(window, &mut kept, has_events) {
                Next::Member => {}
                Next::Events => {
                    has_events = true;
                    self.events(window, blocks);
                    if self.end != End::Whole {
                        break;
                    }
                }
                Next::Closed if has_events || !self.finds_events(window) => break,
                // The bracket was none of the object's.
                Next::Closed => {
                    has_events = true;
                    self.events(window, blocks);
                }
                Next::Broken(end) => {
                    if has_events || !self.finds_events(window) {
                        self.end = end;
                        break;
                    }
                    has_events = true;
                    self.events(window, blocks);
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

    /// The next member of the outermost object. At the end of all, and where it is broken, the
    /// window stands before it.
    fn member<R: Read>(
        &mut self,
        window: &mut TextWindow<R>,
        kept: &mut usize,
        has_events: bool,
    ) -> Next {
        let before = window.place();
        match window.peek() {
            Some(b'}') => {
                window.at += 1;
                return Next::Closed;
            }
            Some(b'"') => {}
            Some(_) => return Next::Broken(End::Trailing { offset: before }),
            None => return Next::Broken(End::CutOff { offset: before }),
        }
        let start = window.place();
        let key = window.value();
        let key = key.and_then(|key| serde_json::from_str::<String>(&key).ok());
        let Some(key) = key else {
            window.back_to(start);
            return Next::Broken(End::CutOff { offset: before });
        };
        if key == "traceEvents" && window.peek() == Some(b'[') {
            window.at += 1;
            return Next::Events;
        }
        window.peek();
        let place = window.place();
        // Where no events were found, a list of events is theirs, whatever its name became.
        if !has_events && window.begins_list_of_events() {
            self.problems.add(Trouble::Around, start);
            window.at += 1;
            return Next::Events;
        }
        let value = window.value();
        let is_valid = |value: &String| serde_json::from_str::<IgnoredAny>(value).is_ok();
        match value {
            Some(value) if has_events || is_valid(&value) => {
                *kept += key.len() + value.len();
                if *kept > MAX_VALUE {
                    return Next::Broken(End::TooLong { offset: place });
                }
                // What is damaged is not passed on.
                match is_valid(&value) {
                    true => self.members.push((key, value)),
                    false => self.problems.add(Trouble::Around, place),
                }
                Next::Member
            }
            Some(_) => {
                window.back_to(start);
                Next::Broken(End::Trailing { offset: place })
            }
            None => {
                let end = match window.text.len() > MAX_VALUE {
                    true => End::TooLong { offset: place },
                    false => End::CutOff { offset: place },
                };
                window.back_to(start);
                Next::Broken(end)
            }
        }
    }

    /// What stands behind the end of all: events, where several processes wrote one file.
    fn behind<R: Read>(&mut self, window: &mut TextWindow<R>, blocks: &mut Pieces<EventBlock>) {
        let offset = window.place();
        window.more();
        if !self.finds_events(window) {
            self.end = End::Trailing { offset };
            return;
        }
        self.events(window, blocks);
        let mut kept = 0;
        while self.end == End::Whole {
            match self.member(window, &mut kept, true) {
                Next::Member => {}
                Next::Events => self.events(window, blocks),
                Next::Closed | Next::Broken(_) => return,
            }
        }
    }

    /// Whether there is an event in what the window has; it stands before the first then.
    fn finds_events<R: Read>(&mut self, window: &mut TextWindow<R>) -> bool {
        let text = window.text.get(window.at..).unwrap_or_default();
        let Some(start) = next_event(text, 0, &mut Effort::of(text)) else {
            return false;
        };
        self.problems.add(Trouble::Around, window.place());
        window.at += start;
        true
    }

    /// The list of events, of which the bracket is behind us.
    fn events<R: Read>(&mut self, window: &mut TextWindow<R>, blocks: &mut Pieces<EventBlock>) {
        loop {
            window.forget();
            let (whole, closed) = match self.cut(window) {
                Ok(cut) => cut,
                Err(end) => {
                    self.end = end;
                    // The value that does not end is counted.
                    let text = std::mem::take(&mut window.text);
                    let offset = window.offset;
                    window.offset += text.len() as u64;
                    let is_skipped = |byte: &u8| byte.is_ascii_whitespace() || *byte == b',';
                    self.end_is_open = text.iter().all(is_skipped);
                    if is_damaged(&text) {
                        self.send(text, offset, blocks);
                    }
                    return;
                }
            };
            let rest = window.text.split_off(whole);
            let text = std::mem::replace(&mut window.text, rest);
            let offset = window.offset;
            window.offset += whole as u64;
            if !text.is_empty() && !self.send(text, offset, blocks) {
                return;
            }
            if closed {
                window.at = 1;
                return;
            }
        }
    }

    /// Where the text of whole events ends that the window begins with, and whether the list
    /// ends there.
    fn cut<R: Read>(&mut self, window: &mut TextWindow<R>) -> Result<(usize, bool), End> {
        let (mut cutter, mut scanned, mut long) = (Cutter::default(), 0, LONG);
        // An event behind which the list goes on, whatever seems to close it.
        let mut event = None;
        loop {
            let is_more = window.more();
            let mut whole = 0;
            loop {
                let cut = cutter.scan(&window.text, scanned);
                whole = whole.max(cut.whole);
                scanned = window.text.len();
                let Some(closed) = cut.closed else { break };
                if window.closes_list(closed, &mut event) {
                    // To the cutter, only objects and lists end by themselves; what else
                    // precedes the closing bracket goes with them.
                    return Ok((closed, true));
                }
                // A bracket that is damaged, or part of a text.
                (cutter, scanned) = (Cutter::default(), closed + 1);
            }
            let text = window.text.as_slice();
            // A list that is not closed may be so by a bracket that a damaged event took.
            let is_last = window.ended && text.get(whole..).unwrap_or_default().is_empty();
            if whole > 0 && !is_last && is_boundary(text, whole) {
                return Ok((whole, false));
            }
            let is_suspicious = whole > 0 || !is_more || text.len() >= long;
            if is_suspicious {
                long = text.len().saturating_mul(2);
                if (whole > 0 || is_damaged(text))
                    && let Some(end) = last_event(text, &mut Effort::of(text))
                {
                    return Ok((end, false));
                }
                if whole > 0 {
                    return Ok((whole, false));
                }
            }
            let offset = window.offset;
            if window.text.len() > MAX_VALUE {
                return Err(End::TooLong { offset });
            }
            if !is_more {
                return Err(End::CutOff { offset });
            }
        }
    }

    fn send(&mut self, text: Vec<u8>, offset: u64, blocks: &mut Pieces<EventBlock>) -> bool {
        if self.origin.is_none() {
            let first = first_time(&text);
            let is_near = |wanted: &i64| first.is_none_or(|first| first.abs_diff(*wanted) < FAR);
            self.origin = self.wanted.filter(is_near).or(first);
        }
        blocks.put(EventBlock {
            text,
            offset,
            origin: self.origin.or(self.wanted).unwrap_or(0),
        })
    }
}
