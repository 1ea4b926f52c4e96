//! The messages on the control socket: one message of text each way.
//!
//! A request is the protocol's name and a word: `aiprof-control-1 pause`; behind `rate`
//! follows a number: `aiprof-control-1 rate 99`, behind `wait` a state:
//! `aiprof-control-1 wait known=4711`, which is answered once it is reached. An answer is
//! `ok`, or `no` and a reason; behind `ok` a status may follow, line by line, each a key
//! and a value. Unknown keys are passed over: later versions may have more.

#[cfg(any(test, feature = "testing"))]
pub mod testing;

use aiprof_model::visible;
use std::fmt;
use std::str::FromStr;

/// The protocol; another is another number.
const NAME: &str = "aiprof-control-1";
/// The word of [`Request::Rate`].
const RATE: &str = "rate";
/// The word of [`Request::Wait`].
const WAIT: &str = "wait";
/// Most bytes of a message.
pub const MAX_MESSAGE: usize = 4096;
/// Most letters of a text in a status.
const MAX_TEXT: usize = 512;

/// How far a recording is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordState {
    /// All programs are loaded, and all probes attached to what is there. COMMAND does not
    /// run yet.
    Attached,
    /// Samples are taken and read. COMMAND was let go.
    Sampling,
    /// The recording knows this process: see
    /// [`KnownProcesses::take`](crate::session::KnownProcesses::take).
    Known(u32),
}

impl fmt::Display for RecordState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attached => f.write_str("attached"),
            Self::Sampling => f.write_str("sampling"),
            Self::Known(pid) => write!(f, "known={pid}"),
        }
    }
}

impl FromStr for RecordState {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let state = match text {
            "attached" => Some(Self::Attached),
            "sampling" => Some(Self::Sampling),
            _ => text
                .strip_prefix("known=")
                .and_then(|number| number.parse().ok())
                .map(Self::Known),
        };
        // Not +7, nor 007.
        let state = state.filter(|state| state.to_string() == text);
        state.ok_or("the state must be attached, sampling or known=PID")
    }
}

/// What a recording is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// How it is.
    Status,
    /// To record nothing until it is resumed.
    Pause,
    /// To go on.
    Resume,
    /// To write what it keeps of the last seconds.
    Dump,
    /// To sample each CPU so often a second.
    Rate(u32),
    /// To answer when it has reached this state.
    Wait(RecordState),
    /// To end, and to answer when its output is whole.
    Stop,
}

impl Request {
    /// Those of one word.
    const WORDS: [Self; 5] = [
        Self::Status,
        Self::Pause,
        Self::Resume,
        Self::Dump,
        Self::Stop,
    ];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Dump => "dump",
            Self::Rate(_) => RATE,
            Self::Wait(_) => WAIT,
            Self::Stop => "stop",
        }
    }

    /// As it is sent.
    pub fn encode(self) -> String {
        match self {
            Self::Rate(hz) => format!("{NAME} {RATE} {hz}"),
            Self::Wait(state) => format!("{NAME} {WAIT} {state}"),
            _ => format!("{NAME} {}", self.word()),
        }
    }

    /// From what was sent; or what is wrong with it.
    ///
    /// # Errors
    /// The reason, for the sender.
    pub fn decode(message: &[u8]) -> Result<Self, &'static str> {
        let text = std::str::from_utf8(message).map_err(|_| "the request is not UTF-8 text")?;
        let Some((name, word)) = text.split_once(' ') else {
            return Err("the request is incomplete");
        };
        if name != NAME {
            return Err(
                "the recording belongs to another version of aiprof (its protocol is \
                 aiprof-control-1)",
            );
        }
        if let Some((RATE, number)) = word.split_once(' ') {
            let hz = number.parse::<u32>().ok();
            let hz = hz.filter(|hz| hz.to_string() == number);
            return hz.map(Self::Rate).ok_or("the rate is not a number");
        }
        if let Some((WAIT, state)) = word.split_once(' ') {
            let state = state.parse().ok();
            return state.map(Self::Wait).ok_or("the state is unknown");
        }
        let mut all = Self::WORDS.into_iter();
        all.find(|request| request.word() == word)
            .ok_or("the recording does not support this request")
    }
}

/// How a recording is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Its process.
    pub pid: u32,
    /// Whether it is paused.
    pub paused: bool,
    /// How long it has recorded, without pauses, nanoseconds.
    pub recorded_ns: u64,
    /// How long it was paused, nanoseconds.
    pub paused_ns: u64,
    /// Samples recorded.
    pub samples: u64,
    /// Samples lost.
    pub lost: u64,
    /// Files that were written of the last seconds.
    pub dumps: u64,
    /// What is recorded and where to, in words.
    pub what: String,
}

/// What a recording answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is done; how the recording is now.
    Done(Box<Status>),
    /// It is not, for this reason.
    Refused(String),
}

impl Reply {
    /// As it is sent.
    pub fn encode(&self) -> String {
        let status = match self {
            Self::Refused(why) => return format!("no {}", short(why)),
            Self::Done(status) => status,
        };
        let numbers = [
            ("pid", u64::from(status.pid)),
            ("paused", u64::from(status.paused)),
            ("recorded_ns", status.recorded_ns),
            ("paused_ns", status.paused_ns),
            ("samples", status.samples),
            ("lost", status.lost),
            ("dumps", status.dumps),
        ];
        let mut text = "ok".to_owned();
        for (key, value) in numbers {
            text.push_str(&format!("\n{key} {value}"));
        }
        text.push_str("\nwhat ");
        text.push_str(&short(&status.what));
        text
    }

    /// From what was sent; `None`: it is no answer.
    pub fn decode(message: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(message).ok()?;
        if let Some(why) = text.strip_prefix("no ") {
            return Some(Self::Refused(short(why)));
        }
        let mut lines = text.split('\n');
        if lines.next() != Some("ok") {
            return None;
        }
        let mut status = Status::default();
        for line in lines {
            let (key, value) = line.split_once(' ')?;
            let number = || value.parse::<u64>().ok();
            match key {
                "pid" => status.pid = u32::try_from(number()?).ok()?,
                "paused" => status.paused = number()? != 0,
                "recorded_ns" => status.recorded_ns = number()?,
                "paused_ns" => status.paused_ns = number()?,
                "samples" => status.samples = number()?,
                "lost" => status.lost = number()?,
                "dumps" => status.dumps = number()?,
                "what" => status.what = short(value),
                _ => {}
            }
        }
        Some(Self::Done(Box::new(status)))
    }
}

/// A text as one line that terminals do not obey, cut where it is long.
fn short(text: &str) -> String {
    let mut line = visible::one_line(text);
    if let Some((end, _)) = line.char_indices().nth(MAX_TEXT) {
        line.truncate(end);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_these_words() {
        let words = ["status", "pause", "resume", "dump", "stop"];
        assert_eq!(Request::Rate(99).encode(), "aiprof-control-1 rate 99");
        let rate = Request::decode(b"aiprof-control-1 rate 4294967295");
        assert_eq!(rate, Ok(Request::Rate(u32::MAX)));
        for (request, word) in Request::WORDS.into_iter().zip(words) {
            let sent = format!("aiprof-control-1 {word}");
            assert_eq!(request.encode(), sent);
            assert_eq!(Request::decode(sent.as_bytes()), Ok(request));
        }
        for state in ["attached", "sampling", "known=4294967295"] {
            let sent = format!("aiprof-control-1 wait {state}");
            let request = Request::decode(sent.as_bytes()).unwrap();
            assert_eq!(request, Request::Wait(state.parse().unwrap()));
            assert_eq!(request.encode(), sent);
        }
        for wrong in [
            &b""[..],
            b"aiprof-control-1 wait",
            b"aiprof-control-1 wait known",
            b"aiprof-control-1 wait known=",
            b"aiprof-control-1 wait known=+7",
            b"aiprof-control-1 wait known=07",
            b"aiprof-control-1 wait known=4294967296",
            b"aiprof-control-1 wait attached ",
            b"pause",
            b"aiprof-control-2 pause",
            b"aiprof-control-1 pause ",
            b"aiprof-control-1 rate",
            b"aiprof-control-1 rate +9",
            b"aiprof-control-1 rate 4294967296",
            b"aiprof-control-1 pause\n",
            b"aiprof-control-1 \xff",
        ] {
            assert!(Request::decode(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn answers_are_read_as_they_were_meant() {
        let status = Status {
            pid: 7,
            paused: true,
            recorded_ns: 1,
            paused_ns: 2,
            samples: 3,
            lost: 4,
            dumps: 5,
            what: "make -j 8 to out.svg".into(),
        };
        let answer = Reply::Done(Box::new(status));
        let sent = answer.encode();
        assert!(sent.starts_with("ok\npid 7\npaused 1\n"), "{sent}");
        assert_eq!(Reply::decode(sent.as_bytes()), Some(answer.clone()));
        // From a later version.
        let more = format!("{sent}\nheat 9");
        assert_eq!(Reply::decode(more.as_bytes()), Some(answer));
        let no = Reply::Refused("why".into());
        assert_eq!(no.encode(), "no why");
        assert_eq!(Reply::decode(b"no why"), Some(no));
        for wrong in [
            &b""[..],
            b"yes",
            b"ok\npid",
            b"ok\npid x",
            b"ok\npid 4294967296",
        ] {
            assert_eq!(Reply::decode(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn texts_are_short_and_harmless() {
        let what = format!("\x1b[2J\nok {}", "\u{1f980}".repeat(4000));
        let answer = Reply::Done(Box::new(Status {
            what,
            ..Status::default()
        }));
        let sent = answer.encode();
        assert!(sent.len() <= MAX_MESSAGE, "{}", sent.len());
        assert!(!sent.contains('\x1b'));
        assert_eq!(
            sent.lines().filter(|line| line.starts_with("ok")).count(),
            1
        );
        assert!(Reply::decode(sent.as_bytes()).is_some());
    }
}
