//! The messages of Kineto's on-demand protocol.
//!
//! A datagram is `u64 size; char type[32]` and `size` bytes. A program's `req` is
//! `i32 kind; i32 n; i64 job; i32 pids[n]`; the answer is the text of a configuration, of
//! size 0 if there is none. Source: dynolog c3a231a, ipcfabric/FabricManager.h and
//! kineto 114171df, libkineto/src/IpcFabricConfigClient.cpp. Numbers are the machine's own.

/// Bytes before the payload.
const HEADER: usize = 40;
/// Bytes of a request before its process ids.
const REQUEST: usize = 16;
/// Most process ids in a request: a process and its ancestors.
const MAX_PIDS: usize = 256;
/// Most bytes of a datagram that is read.
pub(super) const MAX_DATAGRAM: usize = HEADER + REQUEST + 4 * MAX_PIDS;
/// The request's kind of a program that could record activities now; while it records, it
/// asks for nothing.
const ACTIVITIES: i32 = 2;

/// What a program sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TorchMessage {
    /// It is there (`ctxt`), and wants to know how many are.
    Hello,
    /// It asks for a configuration; `is_free`: it can record now.
    Request {
        /// It records nothing at present.
        is_free: bool,
    },
}

/// Reads a datagram; `None`: it is none of the protocol.
pub(super) fn parse(datagram: &[u8]) -> Option<TorchMessage> {
    let (header, payload) = datagram.split_at_checked(HEADER)?;
    let (size, kind) = header.split_first_chunk()?;
    if u64::from_ne_bytes(*size) != payload.len() as u64 {
        return None;
    }
    let end = kind.iter().position(|&byte| byte == 0)?;
    match kind.get(..end)? {
        b"ctxt" => Some(TorchMessage::Hello),
        b"req" => request(payload),
        _ => None,
    }
}

fn request(payload: &[u8]) -> Option<TorchMessage> {
    let int = |at: usize| {
        let bytes = payload.get(at..at + 4)?.try_into().ok()?;
        Some(i32::from_ne_bytes(bytes))
    };
    let pids = usize::try_from(int(4)?).ok().filter(|&n| n <= MAX_PIDS)?;
    let is_whole = payload.len() == REQUEST + 4 * pids;
    // The ids are not used: the kernel reports who sent it.
    is_whole.then_some(TorchMessage::Request {
        is_free: int(0)? & ACTIVITIES != 0,
    })
}

/// The answer to a request: a configuration, or none.
pub(super) fn answer(config: &str) -> Vec<u8> {
    message(b"req", config.as_bytes())
}

/// The answer to a hello: how many programs there are.
pub(super) fn welcome(count: i32) -> Vec<u8> {
    message(b"ctxt", &count.to_ne_bytes())
}

fn message(kind: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut out = (payload.len() as u64).to_ne_bytes().to_vec();
    out.extend_from_slice(kind);
    out.resize(HEADER, 0);
    out.extend_from_slice(payload);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What torch 2.15 sent: kind 2, five ids, no job.
    fn request() -> Vec<u8> {
        let mut sent = vec![36, 0, 0, 0, 0, 0, 0, 0, b'r', b'e', b'q'];
        sent.resize(40, 0);
        for number in [2, 5, 0, 0, 20819, 20668, 20667, 14144, 14120_i32] {
            sent.extend(number.to_le_bytes());
        }
        sent
    }

    fn with(at: usize, bytes: &[u8]) -> Option<TorchMessage> {
        let mut sent = request();
        sent[at..at + bytes.len()].copy_from_slice(bytes);
        parse(&sent)
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn requests_of_torch_are_read() {
        let is_free = true;
        assert_eq!(parse(&request()), Some(TorchMessage::Request { is_free }));
        let is_free = false;
        assert_eq!(with(40, &[0; 4]), Some(TorchMessage::Request { is_free }));
        let mut hello = vec![16, 0, 0, 0, 0, 0, 0, 0, b'c', b't', b'x', b't'];
        hello.resize(56, 0);
        assert_eq!(parse(&hello), Some(TorchMessage::Hello));
    }

    #[test]
    fn anything_else_is_refused() {
        for len in 0..request().len() {
            assert_eq!(parse(&request()[..len]), None, "{len}");
        }
        let mut long = request();
        long.push(0);
        assert_eq!(parse(&long), None);
        // Sizes: of 0, one too many, the largest.
        for size in [0, 37, u64::MAX, u64::MAX - 39] {
            assert_eq!(with(0, &size.to_ne_bytes()), None);
        }
        assert_eq!(with(8, b"xyz"), None);
        assert_eq!(with(8, &[b'r'; 32]), None, "no end");
        for count in [4, 6, -1, i32::MIN, i32::MAX] {
            assert_eq!(with(44, &count.to_ne_bytes()), None);
        }
    }

    #[test]
    fn answers_have_their_size() {
        let sent = answer("A=1\n");
        assert_eq!(
            (sent.len(), &sent[..11]),
            (44, &b"\x04\0\0\0\0\0\0\0req"[..])
        );
        assert_eq!(&sent[40..], b"A=1\n");
        assert_eq!((answer("").len(), welcome(3).len()), (40, 44));
    }
}
