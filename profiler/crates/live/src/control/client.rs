//! The side of who steers a recording.

use super::protocol::{Reply, Request};
use super::{PREFIX, directory, is_trusted, receive, socket, socket_of};
use aiprof_system::files::private::PrivateDirectory;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketAddrUnix};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long a place in a recording's queue is waited for, and how often it is asked.
const LONGEST_QUEUED: Duration = Duration::from_secs(30);
const BETWEEN_TRIES: Duration = Duration::from_millis(10);

/// Why a recording did not answer.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The directory of sockets.
    #[error("cannot look for recordings of this user: {0}")]
    Directory(io::Error),
    /// There is none of the name.
    #[error("no recording is named {0}")]
    Nobody(String),
    /// It ended without an answer.
    #[error("the recording {0} ended without an answer")]
    Died(String),
    /// It did not answer in time.
    #[error("the recording {0} did not answer in time")]
    Late(String),
    /// What answers is not a recording of this user.
    #[error("{0} is not a recording of this user")]
    Foreign(String),
    /// The socket.
    #[error("cannot send a request to the recording {name}: {source}")]
    Socket {
        /// The recording.
        name: String,
        /// The cause.
        source: io::Error,
    },
}

/// The names of this user's recordings that can be steered, sorted.
///
/// # Errors
/// The directory cannot be used.
pub fn running() -> Result<Vec<String>, ControlError> {
    let directory = directory().map_err(ControlError::Directory)?;
    names(&directory).map_err(ControlError::Directory)
}

pub(super) fn names(directory: &PrivateDirectory) -> io::Result<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    for entry in directory.names()? {
        let name = entry
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.strip_suffix(".sock"));
        // What a killed one left answers nothing; one with a full queue answers later.
        let is_there = |name: &&str| matches!(connect(directory, name), Ok(_) | Err(Errno::AGAIN));
        names.extend(name.filter(is_there).map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// Asks a recording, and waits for its answer, which for [`Request::Stop`] comes when its
/// output is whole.
///
/// # Errors
/// There is none of that name, or it does not answer.
pub fn ask(name: &str, request: Request) -> Result<Reply, ControlError> {
    ask_until(name, request, None)
}

/// The same, and waits until then at most.
///
/// # Errors
/// As [`ask`]; or it did not answer in time.
pub fn ask_until(
    name: &str,
    request: Request,
    until: Option<Instant>,
) -> Result<Reply, ControlError> {
    let directory = directory().map_err(ControlError::Directory)?;
    ask_in(&directory, name, request, until)
}

pub(super) fn ask_in(
    directory: &PrivateDirectory,
    name: &str,
    request: Request,
    until: Option<Instant>,
) -> Result<Reply, ControlError> {
    let failed = |error: Errno| match error {
        Errno::NOENT | Errno::CONNREFUSED => ControlError::Nobody(name.to_owned()),
        error => ControlError::Socket {
            name: name.to_owned(),
            source: error.into(),
        },
    };
    let queued = Instant::now();
    let connection = loop {
        match connect(directory, name) {
            // Others have filled its queue, which it works off.
            Err(Errno::AGAIN) => {
                let last = queued + LONGEST_QUEUED;
                if Instant::now() >= until.map_or(last, |until| until.min(last)) {
                    return Err(ControlError::Late(name.to_owned()));
                }
                std::thread::sleep(BETWEEN_TRIES);
            }
            connection => break connection.map_err(failed)?,
        }
    };
    if !is_trusted(&connection) {
        return Err(ControlError::Foreign(name.to_owned()));
    }
    let message = request.encode();
    // An early answer, such as a refusal, is read even if the recorder has closed already.
    let sent = rustix::net::send(&connection, message.as_bytes(), SendFlags::NOSIGNAL);
    sent.map(drop)
        .or_else(|error| match error {
            Errno::PIPE => Ok(()),
            error => Err(error),
        })
        .map_err(failed)?;
    loop {
        match receive(&connection) {
            Err(Errno::AGAIN) => {
                let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                if left == Some(Duration::ZERO) {
                    return Err(ControlError::Late(name.to_owned()));
                }
                // A time too long for a `Timespec` is no limit.
                let left = left.and_then(|left| Timespec::try_from(left).ok());
                // An error shows when the message is read.
                let _ = poll(
                    &mut [PollFd::new(&connection, PollFlags::IN)],
                    left.as_ref(),
                );
            }
            Err(Errno::INTR) => {}
            Ok(message) => {
                return Reply::decode(&message).ok_or(ControlError::Died(name.to_owned()));
            }
            Err(Errno::CONNRESET) => return Err(ControlError::Died(name.to_owned())),
            Err(error) => return Err(failed(error)),
        }
    }
}

fn connect(directory: &PrivateDirectory, name: &str) -> Result<OwnedFd, Errno> {
    let broken = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    let connection = socket().map_err(broken)?;
    let address = SocketAddrUnix::new(directory.path_of(&socket_of(name)))?;
    rustix::net::connect(&connection, &address)?;
    Ok(connection)
}
