//! The side of a rank that joins.

use super::{AGAIN, GO, MAX_MESSAGE, OVER, REFUSED, RankJob, is_own, socket};
use crate::readable;
use aiprof_model::visible;
use aiprof_system::files::private::PrivateDirectory;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketAddrUnix};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;
use tokio::io::unix::AsyncFd;

/// What came of joining.
#[derive(Debug)]
pub(super) enum Attempt {
    Joined(Joined),
    /// The recording takes no part of this one.
    Refused(String),
    /// No recorder answers, or no longer.
    Nobody,
}

/// A place in the recording of another rank.
#[derive(Debug)]
pub struct Joined {
    connection: OwnedFd,
    recorder: String,
}

/// What became of the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// It is over, as it should be.
    Over,
    /// Who made it has ended without a word.
    Died,
}

impl Joined {
    /// Who records, and where to, in words.
    pub fn recorder(&self) -> &str {
        &self.recorder
    }

    /// Resolves when the recording is over. Needs a tokio runtime with I/O enabled.
    ///
    /// # Errors
    /// The runtime's reactor refused the connection.
    pub async fn news(self) -> io::Result<News> {
        let connection: AsyncFd<OwnedFd> = readable::watch(self.connection)?;
        loop {
            let mut ready = connection.readable().await?;
            match receive(connection.get_ref()) {
                Err(Errno::AGAIN) => ready.clear_ready(),
                Ok(message) if message.first() == Some(&OVER) => return Ok(News::Over),
                Ok(message) if !message.is_empty() => {}
                Ok(_) | Err(_) => return Ok(News::Died),
            }
        }
    }
}

/// Asks the recording of a job to be part of it, and waits until it has begun.
pub(super) fn join(
    job: &RankJob,
    directory: &PrivateDirectory,
    deadline: Instant,
) -> io::Result<Attempt> {
    let connection = socket()?;
    let path = directory.path_of(&format!("{}.sock", job.name()));
    let address = SocketAddrUnix::new(&path)?;
    match rustix::net::connect(&connection, &address) {
        Ok(()) => {}
        // Not there yet, just gone, or more at once than the queue holds.
        Err(Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN) => return Ok(Attempt::Nobody),
        Err(error) => return Err(error.into()),
    }
    if !is_own(&connection) {
        return Ok(Attempt::Refused(
            "the recording belongs to another user".to_owned(),
        ));
    }
    if rustix::net::send(&connection, job.hello().as_bytes(), SendFlags::NOSIGNAL).is_err() {
        return Ok(Attempt::Nobody);
    }
    while Instant::now() < deadline {
        let message = match receive(&connection) {
            Err(Errno::AGAIN) => {
                wait(&connection);
                continue;
            }
            Ok(message) => message,
            Err(_) => return Ok(Attempt::Nobody),
        };
        let text = |bytes| visible::one_line(&String::from_utf8_lossy(bytes));
        return Ok(match message.split_first() {
            Some((&GO, recorder)) => Attempt::Joined(Joined {
                connection,
                recorder: text(recorder),
            }),
            Some((&REFUSED, why)) => Attempt::Refused(text(why)),
            // It ended before it began, or has just ended.
            _ => Attempt::Nobody,
        });
    }
    Ok(Attempt::Nobody)
}

/// Waits until a message is there, for a moment.
fn wait(connection: &OwnedFd) {
    let most = Timespec::try_from(AGAIN).unwrap_or_default();
    // An error shows when the message is read.
    let _ = poll(&mut [PollFd::new(connection, PollFlags::IN)], Some(&most));
}

/// The next message; empty: the other end is closed.
pub(super) fn receive(connection: &OwnedFd) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; MAX_MESSAGE];
    let (length, _) = rustix::net::recv(connection, &mut bytes[..], RecvFlags::DONTWAIT)?;
    bytes.truncate(length);
    Ok(bytes)
}
