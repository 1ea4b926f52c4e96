//! The socket by which a running recording is steered: pause, resume, dump, stop.
//!
//! It lies in a directory that belongs to the recording's user and that no other user can
//! enter ([`PrivateDirectory`]): `/run/aiprof` for root, `/run/user/UID/aiprof` for others.
//! The recorder holds a lock beside it as long as it lives, so that another one takes over
//! only the socket of a recorder that was killed. The kernel names the user of each
//! connection (`SO_PEERCRED`), which must be the recorder's own, or root.
//!
//! A client sends one message ([`protocol`]) and gets one answer. Messages are short and come
//! whole, and the recorder never waits to send an answer. So no client can hold a recording up.

mod client;
pub mod protocol;
mod server;
#[cfg(test)]
mod tests;

pub use client::{ControlError, ask, ask_until, running};
pub use protocol::{RecordState, Reply, Request, Status};
pub use server::{Asked, Control};

use aiprof_system::files::private::PrivateDirectory;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// What the names of locks and sockets begin with.
const PREFIX: &str = "control-";
/// Most letters of a name.
const MAX_NAME: usize = 64;

/// Whether a recording can have this name: letters, digits, `.`, `_` and `-`, not first.
pub fn is_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let first = name.bytes().next();
    name.len() <= MAX_NAME
        && first.is_some_and(|byte| byte.is_ascii_alphanumeric())
        && name.bytes().all(is_letter)
}

/// The directory above the one where sockets of this user are.
fn meeting_place() -> PathBuf {
    match rustix::process::geteuid().as_raw() {
        0 => "/run".into(),
        user => Path::new("/run/user").join(user.to_string()),
    }
}

fn directory() -> io::Result<PrivateDirectory> {
    in_meeting_place(PrivateDirectory::below)
}

/// Looks whether there is a directory, or one can be made.
fn check_directory() -> io::Result<()> {
    in_meeting_place(PrivateDirectory::check_below)
}

fn in_meeting_place<T>(find: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let place = meeting_place();
    find(&place).map_err(|error| {
        let (kind, text) = (error.kind(), error.to_string());
        // Some errors name the place themselves.
        match text.starts_with(&*place.to_string_lossy()) {
            true => error,
            false => io::Error::new(kind, format!("{}: {text}", place.display())),
        }
    })
}

fn lock_of(name: &str) -> String {
    format!("{PREFIX}{name}.lock")
}

fn socket_of(name: &str) -> String {
    format!("{PREFIX}{name}.sock")
}

/// A socket that keeps messages apart.
fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kind = SocketType::SEQPACKET;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    Ok(socket)
}

/// Whether a user may be at the other end of a connection of this process.
fn is_trusted(socket: &OwnedFd) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(socket);
    peer.is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::getuid())
}

/// The next message; empty: the other end is closed. One that is longer than any is cut.
fn receive(connection: &OwnedFd) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; protocol::MAX_MESSAGE];
    let (length, _) = rustix::net::recv(connection, &mut bytes[..], RecvFlags::DONTWAIT)?;
    bytes.truncate(length);
    Ok(bytes)
}
