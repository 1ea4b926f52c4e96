//! The replay device: device bytes from a file, a FIFO or a socket.
//!
//! * A FIFO, or a unix socket that somebody listens on, is read live, as a driver is:
//!   every 5 ms; a window is the time between two reads.
//! * A file of raw records has no times: all of it is one window, from the begin of
//!   the recording to its end. It is read once, when recording begins.
//! * A device capture ([`capture`](aiprof_model::eu_stall::capture)) has its own times.

use super::{
    feed::{Feed, StreamControl, Topic},
    recorder::{Shape, StreamRecorder},
    replay_spec::{ReplayFormat, ReplaySpec},
};
use crate::bpf::perf::monotonic_ns;
use aiprof_model::{
    eu_stall::capture::{CaptureClock, CaptureError, CaptureFrame, CaptureReader, Header, Part},
    profile::LossKind,
    wire::DeviceStream,
};
use aiprof_system::files::caller;
use rustix::fs::FileType;
use std::{
    fmt,
    fs::File,
    io::{self, Read},
    os::unix::{fs::FileTypeExt as _, net::UnixStream},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

/// How often live bytes are read: as often as xe looks at the hardware.
pub(super) const PERIOD: Duration = Duration::from_millis(5);
/// How often a connection is tried again.
const RETRY: Duration = Duration::from_millis(100);
/// Bytes read at once.
const PIECE: usize = 1 << 20;
/// Reads at most for one window.
const MAX_READS: usize = 64;
/// How long what is written may have waited before: a generator writes every few
/// milliseconds, and is a process that may have to wait for a CPU.
const WRITTEN_LATE: Duration = Duration::from_millis(25);
/// Longest silence that is part of a window.
const LONGEST: Duration = Duration::from_millis(250);

/// Opens what is replayed; the result reads it until the end.
pub(super) fn start(
    spec: &ReplaySpec,
    id: u32,
    feed: Feed,
    control: Arc<StreamControl>,
) -> io::Result<impl FnOnce() + Send + 'static> {
    let source = ReplayInput::open(&spec.path)?;
    let start_ns = monotonic_ns();
    let sink = Sink::new(spec.clone(), id, start_ns, feed);
    let mut replay = Replay {
        source,
        sink,
        control,
        start_ns,
        last_ns: start_ns,
    };
    Ok(move || replay.run())
}

/// Where bytes come from.
enum ReplayInput {
    /// All there already.
    File(File),
    /// Open for reading, without waiting; writers come and go.
    Fifo(File),
    /// Somebody listens there, or will.
    Socket(PathBuf, Option<UnixStream>),
}

/// What a read brought.
enum Got {
    Bytes(usize),
    Nothing,
    /// No writer is left, or none has come.
    End,
}

impl ReplayInput {
    fn open(path: &Path) -> io::Result<Self> {
        let kind = caller::metadata(path)?.file_type();
        if kind.is_socket() {
            return Ok(Self::Socket(path.into(), None));
        }
        // Opening a FIFO for reading waits for no writer then.
        let file = caller::open_at_once(path)?;
        // What was opened, whatever it was before.
        match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
            FileType::RegularFile => Ok(Self::File(file)),
            FileType::Fifo => {
                // Room for what comes between two reads, if that is allowed.
                let _ = rustix::pipe::fcntl_setpipe_size(&file, PIECE);
                Ok(Self::Fifo(file))
            }
            _ => Err(io::Error::other("not a regular file, FIFO or Unix socket")),
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<Got> {
        let result = match self {
            Self::File(file) | Self::Fifo(file) => file.read(buffer),
            Self::Socket(_, Some(socket)) => socket.read(buffer),
            Self::Socket(_, None) => Ok(0),
        };
        match result {
            Ok(0) => Ok(Got::End),
            Ok(n) => Ok(Got::Bytes(n)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Got::Nothing),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Got::Bytes(0)),
            Err(error) => Err(error),
        }
    }

    /// Makes a connection that is not there.
    fn connect(&mut self) -> io::Result<()> {
        if let Self::Socket(path, socket @ None) = self {
            let new = caller::connect(path)?;
            new.set_nonblocking(true)?;
            *socket = Some(new);
        }
        Ok(())
    }
}

struct Replay {
    source: ReplayInput,
    sink: Sink,
    control: Arc<StreamControl>,
    start_ns: u64,
    /// When the last read that brought something began.
    last_ns: u64,
}

impl Replay {
    fn run(&mut self) {
        let mut buffer = vec![0; PIECE];
        let result = match self.source {
            ReplayInput::File(_) => self.run_file(&mut buffer),
            ReplayInput::Fifo(_) | ReplayInput::Socket(..) => self.run_live(&mut buffer),
        };
        if let Err(error) = result {
            self.sink.problem(Some(&error));
        }
    }

    fn run_file(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        let result = loop {
            match self.source.read(buffer) {
                Ok(Got::Bytes(n)) => {
                    let added = self.sink.add(buffer.get(..n).unwrap_or_default());
                    if added.is_err() {
                        break added;
                    }
                }
                Ok(Got::Nothing | Got::End) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.sink.cut();
        self.sink
            .problem(result.as_ref().err().map(|error| error as _));
        while !self.control.sleep(Duration::from_secs(3600)) {}
        self.sink.last_window(self.start_ns, monotonic_ns());
        result
    }

    fn run_live(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        let result = loop {
            let stopped = self.control.is_stopped();
            if let Err(error) = self.source.connect() {
                self.sink.problem(Some(&error));
                if self.control.sleep(RETRY) {
                    break Ok(());
                }
                continue;
            }
            let read = self.read_all(buffer);
            // One more read after the end was asked for: what was written until then.
            if stopped || read.is_err() {
                break read;
            }
            self.control.sleep(PERIOD);
        };
        self.sink.last_window(self.last_ns, monotonic_ns());
        result
    }

    /// Reads what is there; that is a window.
    fn read_all(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        let begin = monotonic_ns();
        let mut any = false;
        for _ in 0..MAX_READS {
            match self.source.read(buffer)? {
                Got::Bytes(n) => {
                    any |= n > 0;
                    self.sink.add(buffer.get(..n).unwrap_or_default())?;
                }
                Got::Nothing => break,
                Got::End => {
                    self.sink.cut();
                    if let ReplayInput::Socket(_, socket) = &mut self.source {
                        *socket = None;
                    }
                    break;
                }
            }
        }
        if any {
            self.sink.close(
                window_begin(self.last_ns, begin, self.start_ns, WRITTEN_LATE),
                monotonic_ns(),
            );
            self.last_ns = begin;
        }
        Ok(())
    }
}

/// The earliest time at which a sample can have been taken that a read brings, which began
/// at `begin`. Samples may lie in a buffer for up to `buffered` before they can be read, so
/// it is that much before the last read that brought something. Nothing was sampled in a
/// silence longer than [`LONGEST`]: the window does not reach back further than that and
/// `buffered`.
pub(super) fn window_begin(last_ns: u64, begin: u64, start_ns: u64, buffered: Duration) -> u64 {
    // Both are far below 2^64.
    let (longest, buffered) = (LONGEST.as_nanos() as u64, buffered.as_nanos() as u64);
    let from = last_ns.max(begin.saturating_sub(longest));
    from.saturating_sub(buffered).max(start_ns)
}

/// Takes the bytes apart: raw ones, or those of a capture.
struct Sink {
    spec: ReplaySpec,
    id: u32,
    start_ns: u64,
    feed: Feed,
    told: Option<(DeviceStream, Shape)>,
    recorder: Option<StreamRecorder>,
    capture: Option<CaptureReader>,
    clock: CaptureClock,
    frame: Option<CaptureFrame>,
}

impl Sink {
    fn new(spec: ReplaySpec, id: u32, start_ns: u64, feed: Feed) -> Self {
        let capture = spec.format == ReplayFormat::Capture;
        let mut sink = Self {
            spec,
            id,
            start_ns,
            feed,
            told: None,
            recorder: None,
            capture: capture.then(CaptureReader::new),
            clock: CaptureClock::Monotonic,
            frame: None,
        };
        if !capture {
            sink.begin(None);
        }
        sink
    }

    fn begin(&mut self, header: Option<&Header>) {
        let told = self.spec.stream(self.id, header);
        // A writer that comes after another usually sends the same description.
        if told != self.told {
            self.told = told.clone();
            self.recorder = told
                .and_then(|(stream, shape)| StreamRecorder::new(stream, shape, self.feed.clone()));
            if let Some(recorder) = &mut self.recorder {
                recorder.announce();
            }
        }
    }

    fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(mut capture) = self.capture.take() else {
            if let Some(recorder) = &mut self.recorder {
                recorder.add(bytes);
            }
            return Ok(());
        };
        let mut wanted = true;
        let result = capture.read(bytes, |part| wanted &= self.part(part));
        self.capture = Some(capture);
        if result.is_err() {
            self.feed.status().lost(LossKind::DeviceUndecodable, 1);
        }
        result.map_err(|error: CaptureError| io::Error::other(error))?;
        if wanted {
            Ok(())
        } else {
            Err(io::Error::other("the recording accepts no more samples"))
        }
    }

    /// Whether somebody wants what follows.
    fn part(&mut self, part: Part<'_>) -> bool {
        match part {
            Part::Header(header) => {
                self.clock = header.clock;
                self.begin(Some(header));
            }
            Part::Begin(frame) => {
                self.frame = Some(frame);
                if let Some(recorder) = &mut self.recorder {
                    recorder.dropped(frame.drops);
                }
            }
            Part::Records(records) => {
                if let Some(recorder) = &mut self.recorder {
                    recorder.add(records);
                }
            }
            Part::End => return self.end_frame(),
        }
        true
    }

    fn end_frame(&mut self) -> bool {
        let (Some(recorder), Some(frame)) = (&mut self.recorder, self.frame.take()) else {
            return true;
        };
        recorder.cut();
        let since = match self.clock {
            CaptureClock::Recording => self.start_ns,
            CaptureClock::Monotonic => 0,
        };
        let at = |time: u64| time.saturating_add(since);
        recorder.close_waiting(at(frame.from_ns), at(frame.to_ns))
    }

    /// A read is over; frames have their own times.
    fn close(&mut self, from_ns: u64, to_ns: u64) {
        if let (Some(recorder), None) = (&mut self.recorder, &self.capture) {
            recorder.close(from_ns, to_ns);
            self.problem(None);
        }
    }

    /// Hands on what is left.
    fn last_window(&mut self, from_ns: u64, to_ns: u64) {
        if let Some(recorder) = &mut self.recorder {
            recorder.close_waiting(from_ns, to_ns);
        }
    }

    /// The writer is gone: what it did not finish is lost.
    fn cut(&mut self) {
        if let Some(capture) = &self.capture {
            if capture.is_within() {
                self.feed.status().lost(LossKind::DeviceUndecodable, 1);
            }
            // What was read of the frame that was cut off is kept.
            if self.frame.is_some() {
                self.end_frame();
            }
            self.capture = Some(CaptureReader::new());
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.cut();
        }
    }

    fn problem(&self, error: Option<&dyn fmt::Display>) {
        let path = self.spec.path.display();
        let text = error.map(|error| format!("Replay of {path}: {error}."));
        self.feed.status().problem(self.id, Topic::Reading, text);
    }
}
