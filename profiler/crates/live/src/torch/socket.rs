//! The socket at which programs ask for configurations: the name of dynolog's daemon.
//!
//! Any local user may send to it. So nothing is believed of a datagram but what the kernel reports
//! of its sender (`SO_PASSCRED`, unix(7)).

use super::message::MAX_DATAGRAM;
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrAny,
    SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The daemon's name in the abstract name space; the NUL belongs to it.
const NAME: &[u8] = b"dynolog\0";

/// Who sent a datagram, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sender {
    /// Process id, in this process's namespace.
    pub(super) pid: u32,
    /// Real user id.
    pub(super) uid: u32,
    /// Real group id.
    pub(super) gid: u32,
}

/// A datagram that was received.
#[derive(Debug)]
pub(super) struct Received {
    /// Who sent it; `None`: the kernel did not report it.
    pub(super) sender: Option<Sender>,
    /// Where an answer goes.
    pub(super) address: Option<SocketAddrAny>,
    /// How many bytes of the buffer it has; `None`: it is too long.
    pub(super) len: Option<usize>,
}

/// The socket, bound.
#[derive(Debug)]
pub(super) struct DaemonSocket(OwnedFd);

impl DaemonSocket {
    /// Takes the daemon's name.
    ///
    /// # Errors
    /// `EADDRINUSE`: another process has it.
    pub(super) fn bind() -> io::Result<Self> {
        Self::bind_as(NAME)
    }

    fn bind_as(name: &[u8]) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        // Before there is a name: nothing arrives without its sender.
        set_socket_passcred(&socket, true)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
        Ok(Self(socket))
    }

    /// Receives a datagram, if there is one.
    ///
    /// # Errors
    /// recvmsg(2)'s.
    pub(super) fn receive(&self, buffer: &mut [u8; MAX_DATAGRAM]) -> io::Result<Option<Received>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        // Descriptors that somebody sends with it find no room, or are closed here.
        let flags = RecvFlags::TRUNC | RecvFlags::CMSG_CLOEXEC;
        let iov = &mut [IoSliceMut::new(buffer)];
        let got = match rustix::net::recvmsg(&self.0, iov, &mut control, flags) {
            Ok(got) => got,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let sender = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmCredentials(of) => Some(Sender {
                pid: of.pid.as_raw_nonzero().get().unsigned_abs(),
                uid: of.uid.as_raw(),
                gid: of.gid.as_raw(),
            }),
            _ => None,
        });
        Ok(Some(Received {
            sender,
            address: got.address,
            len: (got.bytes <= MAX_DATAGRAM).then_some(got.bytes),
        }))
    }

    /// Sends an answer without waiting. Gives whether it was taken.
    pub(super) fn send(&self, answer: &[u8], to: &SocketAddrAny) -> bool {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::sendto(&self.0, answer, flags, to).is_ok()
    }
}

impl AsFd for DaemonSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    fn name(what: &str) -> String {
        format!("aiprof-test-{what}-{}\0", std::process::id())
    }

    #[test]
    fn the_kernel_says_who_sent_it() {
        let name = name("creds");
        let socket = DaemonSocket::bind_as(name.as_bytes()).unwrap();
        let mut buffer = [0; MAX_DATAGRAM];
        assert!(socket.receive(&mut buffer).unwrap().is_none());
        let client = UnixDatagram::unbound().unwrap();
        let to = SocketAddr::from_abstract_name(&name).unwrap();
        client.send_to_addr(b"hi", &to).unwrap();
        let got = socket.receive(&mut buffer).unwrap().unwrap();
        let sender = got.sender.unwrap();
        assert_eq!((sender.pid, got.len), (std::process::id(), Some(2)));
        assert_eq!(sender.uid, rustix::process::getuid().as_raw());
        // What is longer than any message is seen to be.
        client.send_to_addr(&[1; MAX_DATAGRAM + 1], &to).unwrap();
        assert_eq!(socket.receive(&mut buffer).unwrap().unwrap().len, None);
        let again = DaemonSocket::bind_as(name.as_bytes()).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
    }
}
