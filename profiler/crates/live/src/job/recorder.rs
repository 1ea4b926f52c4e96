//! The side of the rank that records.

use super::joined::receive;
use super::{GO, LATECOMERS, OVER, REFUSED, RankJob, is_own, socket};
use crate::readable;
use aiprof_system::files::private::PrivateDirectory;
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketAddrUnix, SocketFlags};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;

/// Most connections: those of ranks that joined, and those that have sent nothing yet.
const MAX_OTHERS: usize = 4096;
/// Connections that wait to be accepted while the recording is prepared.
const BACKLOG: i32 = 4096;

/// The right to make the recording of a job; the others wait for it.
#[derive(Debug)]
pub struct Recorder {
    job: RankJob,
    directory: PrivateDirectory,
    /// Held as long as this lives.
    _lock: File,
    since: Instant,
}

impl Recorder {
    pub(super) fn new(job: RankJob, directory: PrivateDirectory, lock: File) -> Self {
        Self {
            job,
            directory,
            _lock: lock,
            since: Instant::now(),
        }
    }

    #[cfg(test)]
    pub(super) fn age(&mut self, by: Duration) {
        self.since = self.since.checked_sub(by).unwrap();
    }

    /// Lets the others connect. `told` is who records, and where to, in words. Needs a
    /// tokio runtime with I/O enabled; no process may be forked after it that lives longer
    /// than this one.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn listen(self, told: &str) -> io::Result<Others> {
        let listener = socket()?;
        let name = format!("{}.sock", self.job.name());
        self.directory.unlink(&name);
        let address = SocketAddrUnix::new(self.directory.path_of(&name))?;
        rustix::net::bind(&listener, &address)?;
        rustix::net::listen(&listener, BACKLOG)?;
        Ok(Others {
            listener: readable::watch(listener)?,
            ranks: vec![format!("{:?}", self.job.ranks)],
            recorder: self,
            connections: VecDeque::new(),
            told: told.to_owned(),
            has_begun: false,
        })
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let name = self.job.name();
        self.directory.unlink(&format!("{name}.sock"));
        // While it is locked: whoever waits for it looks whether it is there still.
        self.directory.unlink(&format!("{name}.lock"));
    }
}

/// The ranks that are part of this recording.
#[derive(Debug)]
pub struct Others {
    recorder: Recorder,
    listener: AsyncFd<OwnedFd>,
    connections: VecDeque<Connection>,
    /// The ranks that came, the own one first.
    ranks: Vec<String>,
    told: String,
    has_begun: bool,
}

#[derive(Debug)]
struct Connection {
    socket: AsyncFd<OwnedFd>,
    /// Its rank is known.
    is_known: bool,
}

impl Others {
    /// The recording has begun: those that wait start their commands.
    pub fn begin(&mut self) {
        self.has_begun = true;
        let message = self.go();
        let known = self.connections.iter().filter(|c| c.is_known);
        for connection in known {
            send(connection.socket.get_ref(), &message);
        }
    }

    /// How many ranks came, and how many of them have not ended.
    pub fn counts(&self) -> (usize, usize) {
        let running = self.connections.iter().filter(|c| c.is_known);
        (self.ranks.len() - 1, running.count())
    }

    /// The recording is over: sends that to those that still run.
    pub fn end(self) {
        for connection in &self.connections {
            send(connection.socket.get_ref(), &[OVER]);
        }
    }

    /// Lets ranks join and leave. Resolves, if `until_ended`, when all that joined have
    /// ended and no more are to come. Cancel-safe.
    pub async fn serve(&mut self, until_ended: bool) {
        loop {
            let late = self.latecomers();
            tokio::select! {
                () = std::future::poll_fn(|context| self.poll(context, until_ended)) => return,
                () = tokio::time::sleep(late.unwrap_or_default()), if late.is_some() => {}
            }
        }
    }

    /// How long ranks that have not come yet are still waited for.
    fn latecomers(&self) -> Option<Duration> {
        let size = self.recorder.job.local_size?;
        let left = LATECOMERS.checked_sub(self.recorder.since.elapsed())?;
        (self.ranks.len() < size as usize).then_some(left)
    }

    fn poll(&mut self, context: &mut Context<'_>, until_ended: bool) -> Poll<()> {
        self.accept(context);
        for _ in 0..self.connections.len() {
            let Some(mut connection) = self.connections.pop_front() else {
                break;
            };
            if self.hear(&mut connection, context) {
                self.connections.push_back(connection);
            }
        }
        let is_running = self.connections.iter().any(|c| c.is_known);
        let is_settled = !is_running && self.latecomers().is_none();
        match until_ended && is_settled {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    fn accept(&mut self, context: &mut Context<'_>) {
        while let Poll::Ready(Ok(mut ready)) = self.listener.poll_read_ready(context) {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(self.listener.get_ref(), flags) {
                Ok(socket) if is_own(&socket) && self.connections.len() < MAX_OTHERS => {
                    let socket = readable::watch(socket);
                    self.connections
                        .extend(socket.ok().map(|socket| Connection {
                            socket,
                            is_known: false,
                        }));
                }
                Ok(_) | Err(Errno::INTR | Errno::CONNABORTED) => {}
                // Also where there are no more descriptors: until the next one comes.
                Err(_) => ready.clear_ready(),
            }
        }
    }

    /// Reads the message of a rank; whether the connection stays.
    fn hear(&mut self, connection: &mut Connection, context: &mut Context<'_>) -> bool {
        loop {
            let Poll::Ready(ready) = connection.socket.poll_read_ready(context) else {
                return true;
            };
            let Ok(mut ready) = ready else { return false };
            match receive(connection.socket.get_ref()) {
                Ok(message) if message.is_empty() => return false,
                // A rank sends one message only.
                Ok(_) if connection.is_known => return false,
                Ok(message) => match self.admit(&message) {
                    Ok(()) => {
                        connection.is_known = true;
                        if self.has_begun {
                            send(connection.socket.get_ref(), &self.go());
                        }
                    }
                    Err(why) => {
                        let message = [&[REFUSED], why.as_bytes()].concat();
                        send(connection.socket.get_ref(), &message);
                        return false;
                    }
                },
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// Takes a rank in, or returns why not.
    fn admit(&mut self, hello: &[u8]) -> Result<(), &'static str> {
        let hello = std::str::from_utf8(hello).unwrap_or_default();
        let (key, rank) = hello.split_once('\n').unwrap_or_default();
        if key != self.recorder.job.key {
            return Err("the recording belongs to another job");
        }
        if self.ranks.iter().any(|own| own == rank) {
            return Err("the recording already has a process with the same rank");
        }
        self.ranks.push(rank.to_owned());
        Ok(())
    }

    fn go(&self) -> Vec<u8> {
        [&[GO], self.told.as_bytes()].concat()
    }
}

/// Sends a message. One that cannot be sent is dropped: the other end is closed.
fn send(socket: &OwnedFd, message: &[u8]) {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let _ = rustix::net::send(socket, message, flags);
}
