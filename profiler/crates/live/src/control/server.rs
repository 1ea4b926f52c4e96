//! The side of the recording.

use super::protocol::{Reply, Request};
use super::{PREFIX, directory, is_trusted, lock_of, receive, socket, socket_of};
use crate::readable;
use aiprof_system::files::private::PrivateDirectory;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, SocketAddrUnix, SocketFlags};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;

/// Most connections at a time; of more, the oldest that asked for nothing goes.
const MAX_CONNECTIONS: usize = 32;
/// Connections that wait to be accepted while a recording is busy.
const BACKLOG: i32 = 16;
/// How long a connection may ask for nothing.
const IDLE: Duration = Duration::from_secs(10);

/// Which connection asked, for the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// What for.
    pub request: Request,
    connection: u64,
}

/// The control socket of this process's recording. Its name goes with it.
#[derive(Debug)]
pub struct Control {
    name: String,
    directory: PrivateDirectory,
    /// Held as long as this lives.
    _lock: File,
    listener: AsyncFd<OwnedFd>,
    connections: VecDeque<Connection>,
    /// Connections so far.
    came: u64,
}

#[derive(Debug)]
struct Connection {
    number: u64,
    since: Instant,
    socket: AsyncFd<OwnedFd>,
    /// It waits for an answer.
    has_asked: bool,
}

impl Control {
    /// Opens the socket of a recording of this name. Needs a tokio runtime with I/O
    /// enabled; no process may be forked after it that lives longer than this one.
    ///
    /// # Errors
    /// The directory is not this user's alone, another recording has the name, or the
    /// socket cannot be made.
    pub fn open(name: &str) -> io::Result<Self> {
        Self::in_directory(directory()?, name)
    }

    /// Looks whether there is a place for a socket. Makes none.
    ///
    /// # Errors
    /// The directory is not this user's alone, or cannot be made.
    pub fn check() -> io::Result<()> {
        super::check_directory()
    }

    pub(super) fn in_directory(directory: PrivateDirectory, name: &str) -> io::Result<Self> {
        let Some(lock) = directory.lock(&lock_of(name))? else {
            let taken = format!("another recording is already named {name}");
            return Err(io::Error::new(io::ErrorKind::AddrInUse, taken));
        };
        prune(&directory, name);
        let listener = socket()?;
        // A recorder that was killed may have left it: who has the lock has the socket.
        directory.unlink(&socket_of(name));
        let address = SocketAddrUnix::new(directory.path_of(&socket_of(name)))?;
        // The directory keeps others out already. Only threads that make files are
        // affected, and none does yet.
        let before = rustix::process::umask(Mode::XUSR | Mode::RWXG | Mode::RWXO);
        let bound = rustix::net::bind(&listener, &address);
        rustix::process::umask(before);
        bound?;
        rustix::net::listen(&listener, BACKLOG)?;
        Ok(Self {
            name: name.to_owned(),
            directory,
            _lock: lock,
            listener: readable::watch(listener)?,
            connections: VecDeque::new(),
            came: 0,
        })
    }

    /// Whether the socket was deleted: no client finds this recording any more.
    pub fn is_gone(&self) -> bool {
        !self.directory.has(&socket_of(&self.name))
    }

    /// The recording's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The next request. What asks wrongly is answered here. Cancel-safe.
    pub async fn next(&mut self) -> Asked {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    /// Answers a request, and closes its connection. The client may have gone.
    pub fn answer(&mut self, asked: Asked, answer: &Reply) {
        let of = |connection: &Connection| connection.number == asked.connection;
        if let Some(at) = self.connections.iter().position(of)
            && let Some(connection) = self.connections.remove(at)
        {
            send(connection.socket.get_ref(), answer);
        }
    }

    /// Whether somebody still waits for the answer to a request.
    pub fn has(&self, asked: Asked) -> bool {
        let mut connections = self.connections.iter();
        connections.any(|connection| connection.number == asked.connection)
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Asked> {
        self.accept(context);
        for _ in 0..self.connections.len() {
            let Some(mut connection) = self.connections.pop_front() else {
                break;
            };
            match hear(&mut connection, context) {
                Heard::Nothing => self.connections.push_back(connection),
                Heard::End => {}
                Heard::Wrong(why) => {
                    send(connection.socket.get_ref(), &Reply::Refused(why.to_owned()));
                }
                Heard::Request(request) => {
                    connection.has_asked = true;
                    let connection_number = connection.number;
                    self.connections.push_back(connection);
                    // Other clients that have sent something are looked at in the next poll.
                    return Poll::Ready(Asked {
                        request,
                        connection: connection_number,
                    });
                }
            }
        }
        Poll::Pending
    }

    fn accept(&mut self, context: &mut Context<'_>) {
        while let Poll::Ready(Ok(mut ready)) = self.listener.poll_read_ready(context) {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(self.listener.get_ref(), flags) {
                Ok(socket) if is_trusted(&socket) => {
                    self.make_room();
                    if self.connections.len() >= MAX_CONNECTIONS {
                        continue;
                    }
                    self.came += 1;
                    let number = self.came;
                    let socket = readable::watch(socket).ok();
                    self.connections.extend(socket.map(|socket| Connection {
                        number,
                        since: Instant::now(),
                        socket,
                        has_asked: false,
                    }));
                }
                Ok(socket) => {
                    let why = "only root and the user who started the recording may control it"
                        .to_owned();
                    send(&socket, &Reply::Refused(why));
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                // Also where there are no more descriptors: until the next one comes.
                Err(_) => ready.clear_ready(),
            }
        }
    }

    /// Closes connections that ask for nothing, and the oldest of them if there are many.
    fn make_room(&mut self) {
        self.connections
            .retain(|c| c.has_asked || c.since.elapsed() < IDLE);
        if self.connections.len() >= MAX_CONNECTIONS {
            let idle = self.connections.iter().enumerate();
            let idle = idle.filter(|(_, connection)| !connection.has_asked);
            if let Some((at, _)) = idle.min_by_key(|(_, connection)| connection.number) {
                self.connections.remove(at);
            }
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.directory.unlink(&socket_of(&self.name));
        // While it is locked.
        self.directory.unlink(&lock_of(&self.name));
    }
}

/// What came of a connection.
enum Heard {
    Nothing,
    End,
    Wrong(&'static str),
    Request(Request),
}

/// Reads the message of a client.
fn hear(connection: &mut Connection, context: &mut Context<'_>) -> Heard {
    loop {
        let Poll::Ready(ready) = connection.socket.poll_read_ready(context) else {
            return Heard::Nothing;
        };
        let Ok(mut ready) = ready else {
            return Heard::End;
        };
        match receive(connection.socket.get_ref()) {
            Ok(message) if message.is_empty() => return Heard::End,
            // Once only.
            Ok(_) if connection.has_asked => return Heard::End,
            Ok(message) => {
                return match Request::decode(&message) {
                    Ok(request) => Heard::Request(request),
                    Err(why) => Heard::Wrong(why),
                };
            }
            Err(Errno::AGAIN) => ready.clear_ready(),
            Err(Errno::INTR) => {}
            Err(_) => return Heard::End,
        }
    }
}

/// Sends the answer to a connection that is then closed. An answer that cannot be sent is dropped.
fn send(socket: &OwnedFd, answer: &Reply) {
    // To close a connection with an unread message resets it, and the answer is lost. So no
    // more messages are let in, and those that have arrived are read.
    let _ = rustix::net::shutdown(socket, Shutdown::Read);
    while receive(socket).is_ok_and(|message| !message.is_empty()) {}
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let _ = rustix::net::send(socket, answer.encode().as_bytes(), flags);
}

/// Removes the files of recorders that were killed.
fn prune(directory: &PrivateDirectory, own: &str) {
    for entry in directory.names().unwrap_or_default() {
        let name = entry
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.strip_suffix(".lock"));
        let Some(name) = name.filter(|name| *name != own) else {
            continue;
        };
        if let Ok(Some(held)) = directory.lock(&entry) {
            directory.unlink(&socket_of(name));
            directory.unlink(&entry);
            drop(held);
        }
    }
}
