//! Messages between a recording and the processes that read for it, over a
//! socket: a length, whether a file comes with it, and the bytes.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Serialize, de::DeserializeOwned};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;

/// Longest message: all addresses of a batch with long names.
pub(super) const MAX_BYTES: usize = 256 << 20;
pub(super) const HEADER: usize = 8;

/// Sends a message, and a file with it.
pub(super) fn send(
    socket: &UnixStream,
    message: &impl Serialize,
    file: Option<&File>,
) -> io::Result<()> {
    let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&length.to_ne_bytes());
    header[4] = u8::from(file.is_some());
    let files = file.map(|file| [file.as_fd()]);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if let Some(files) = &files {
        control.push(SendAncillaryMessage::ScmRights(files));
    }
    let sent = sendmsg(
        socket,
        &[IoSlice::new(&header)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    if sent != HEADER {
        return Err(io::ErrorKind::WriteZero.into());
    }
    let mut socket = socket;
    socket.write_all(&bytes)
}

/// Receives a message with `read`, which fills a buffer from the socket, after its
/// header.
pub(super) fn receive<T: DeserializeOwned>(
    header: [u8; HEADER],
    read: impl FnOnce(&mut [u8]) -> io::Result<()>,
) -> io::Result<T> {
    let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > MAX_BYTES {
        return Err(io::Error::other("message too long"));
    }
    let mut bytes = vec![0; length];
    read(&mut bytes)?;
    postcard::from_bytes(&bytes).map_err(io::Error::other)
}

/// Receives the header of a message and the file that comes with it.
pub(super) fn header(socket: &UnixStream) -> io::Result<([u8; HEADER], Option<File>)> {
    let mut header = [0; HEADER];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut header)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL,
    )?;
    let mut file = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            file = files.map(File::from).next();
        }
    }
    if received.bytes != HEADER {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((header, file.filter(|_| header[4] == 1)))
}
