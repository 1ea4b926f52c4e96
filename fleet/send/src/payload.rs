//! What is sent of a body: read when its turn comes, and bounded.

use crate::answer::Cause;
use aiprof_fleet::spool::{Body, BodyPacking, Queue};
use bytes::Bytes;
use std::io::{self, Read as _};

/// Largest body.
pub(crate) const MAX_BYTES: u64 = 64 << 20;
/// Before a message of gRPC: whether it is packed, and its length.
const PREFIX: usize = 5;

/// A body, ready to be sent.
pub(crate) struct Payload {
    /// The bytes.
    pub(crate) bytes: Bytes,
    /// Whether they are packed by gzip.
    pub(crate) is_gzip: bool,
}

/// Why there is none.
pub(crate) enum NoPayload {
    /// Somebody else took it out.
    Gone,
    /// It never will be one.
    Unfit(Cause, String),
    /// It cannot be read now.
    Unread(io::Error),
}

impl Payload {
    /// Reads a body: for gRPC as a message with its prefix, unpacked where that is asked for.
    ///
    /// # Errors
    /// See [`NoPayload`].
    pub(crate) fn read(
        queue: &Queue,
        body: &Body,
        is_grpc: bool,
        unpack: bool,
    ) -> Result<Self, NoPayload> {
        let prefix = if is_grpc { PREFIX } else { 0 };
        let file = match std::fs::File::open(queue.directory().join(body.name())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(NoPayload::Gone),
            other => other.map_err(NoPayload::Unread)?,
        };
        let length = file.metadata().map_err(NoPayload::Unread)?.len();
        if length > MAX_BYTES {
            let why = format!("the profile has {length} bytes, more than the limit of 64 MiB");
            return Err(NoPayload::Unfit(Cause::Size, why));
        }
        let mut bytes = Vec::with_capacity(prefix + usize::try_from(length).unwrap_or(0));
        bytes.resize(prefix, 0);
        let mut is_gzip = body.kind == BodyPacking::Gzip;
        if is_gzip && unpack {
            let unpacked = flate2::read::MultiGzDecoder::new(file);
            let unpacked = unpacked.take(MAX_BYTES + 1).read_to_end(&mut bytes);
            unpacked.map_err(|error| NoPayload::Unfit(Cause::Protocol, error.to_string()))?;
            is_gzip = false;
        } else {
            let read = file.take(MAX_BYTES + 1).read_to_end(&mut bytes);
            read.map_err(NoPayload::Unread)?;
        }
        let length = bytes.len() - prefix;
        if length as u64 > MAX_BYTES {
            let why = "the profile is larger than the limit of 64 MiB".to_owned();
            return Err(NoPayload::Unfit(Cause::Size, why));
        }
        // A machine that lost power leaves such files.
        if length == 0 {
            let why = "the file is empty".to_owned();
            return Err(NoPayload::Unfit(Cause::Size, why));
        }
        if is_grpc {
            frame(&mut bytes, is_gzip);
        }
        Ok(Self {
            bytes: bytes.into(),
            is_gzip,
        })
    }

    /// A message without any field.
    pub(crate) fn empty(is_grpc: bool) -> Self {
        let mut bytes = vec![0; if is_grpc { PREFIX } else { 0 }];
        if is_grpc {
            frame(&mut bytes, false);
        }
        Self {
            bytes: bytes.into(),
            is_gzip: false,
        }
    }
}

/// Fills in the prefix of a message.
fn frame(bytes: &mut [u8], is_packed: bool) {
    let length = u32::try_from(bytes.len().saturating_sub(PREFIX)).unwrap_or(u32::MAX);
    if let Some((flag, rest)) = bytes.split_first_mut() {
        *flag = u8::from(is_packed);
        if let Some(place) = rest.first_chunk_mut::<4>() {
            *place = length.to_be_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn put(queue: &Queue, kind: BodyPacking, content: &[u8]) -> Body {
        let body = Body {
            start_unix_ns: 1,
            number: 1,
            samples: 1,
            kind,
        };
        queue.put(&body, content).unwrap();
        body
    }

    #[test]
    fn bodies_are_framed_unpacked_and_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let queue = Queue::open(folder.path(), "x").unwrap();
        let read = |body: &Body, is_grpc, unpack| Payload::read(&queue, body, is_grpc, unpack);
        let raw = put(&queue, BodyPacking::Raw, b"abc");
        let payload = read(&raw, true, true).ok().unwrap();
        assert_eq!(&payload.bytes[..], b"\0\0\0\0\x03abc");
        assert_eq!(&read(&raw, false, false).ok().unwrap().bytes[..], b"abc");
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(b"abc").unwrap();
        let packed = packed.finish().unwrap();
        let gzip = put(&queue, BodyPacking::Gzip, &packed);
        let payload = read(&gzip, true, false).ok().unwrap();
        assert!(payload.is_gzip && payload.bytes[0] == 1 && payload.bytes[5..] == packed[..]);
        let payload = read(&gzip, true, true).ok().unwrap();
        assert!(!payload.is_gzip);
        assert_eq!(&payload.bytes[..], b"\0\0\0\0\x03abc");
        let broken = put(&queue, BodyPacking::Gzip, b"no gzip");
        assert!(matches!(
            read(&broken, true, true),
            Err(NoPayload::Unfit(..))
        ));
        let empty = put(&queue, BodyPacking::Raw, b"");
        assert!(matches!(
            read(&empty, true, true),
            Err(NoPayload::Unfit(..))
        ));
        let gone = Body { number: 9, ..empty };
        assert!(matches!(read(&gone, false, false), Err(NoPayload::Gone)));
        let bomb = vec![0; MAX_BYTES as usize + 1];
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&bomb).unwrap();
        let bomb = put(&queue, BodyPacking::Gzip, &packed.finish().unwrap());
        assert!(matches!(read(&bomb, true, true), Err(NoPayload::Unfit(..))));
        let file = std::fs::File::create(queue.directory().join(raw.name())).unwrap();
        file.set_len(MAX_BYTES + 1).unwrap();
        assert!(matches!(read(&raw, true, true), Err(NoPayload::Unfit(..))));
    }
}
