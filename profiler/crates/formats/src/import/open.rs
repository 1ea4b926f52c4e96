//! Files of traces: what they are, and their text, decompressed.

use super::capture;
use aiprof_system::files::caller;
use aiprof_system::memory::Metered;
use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufReader, Chain, Cursor, Read};
use std::path::Path;

/// First bytes of a gzip file (RFC 1952).
const GZIP: &[u8] = &[0x1f, 0x8b];
/// First bytes of a zstd file (RFC 8878).
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// Largest window of a zstd frame that is accepted, as a power of two: 128 MiB, which
/// is also the limit of the zstd command.
const ZSTD_WINDOW_LOG: u32 = 27;
/// Bytes that are looked at to tell what a file is.
const PEEK: usize = 512;

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// A trace in JSON.
    Json,
    /// A trace of Perfetto.
    Perfetto,
    /// A recording of aiprof.
    Capture,
    /// A compiler's log.
    Log,
}

/// A file that is open.
pub struct Input {
    /// What is in it.
    pub contents: Contents,
    /// It, decompressed.
    pub text: Box<dyn Read + Send>,
}

/// Opens a file and finds out what it holds: by its name as far as that tells, else by
/// its first bytes.
///
/// # Errors
/// When it cannot be read.
pub fn open(path: &Path) -> io::Result<Input> {
    let file = caller::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory));
    }
    let plain = decompressed(file)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (contents, text) = match by_name(&name) {
        Some(contents) => (contents, plain),
        None => {
            let (head, plain) = peek(plain)?;
            let plain: Box<dyn Read + Send> = Box::new(plain);
            (by_head(&head), plain)
        }
    };
    Ok(Input { contents, text })
}

/// A file's text, however it is compressed: its first bytes say that.
///
/// # Errors
/// When it cannot be read, or needs more memory than the zstd command allows; while
/// it is read, also when it needs more than [`aiprof_system::memory`] allows.
pub fn decompressed(file: File) -> io::Result<Box<dyn Read + Send>> {
    let (head, file) = peek(file)?;
    if head.starts_with(GZIP) {
        let file = BufReader::with_capacity(1 << 18, file);
        return Ok(Box::new(Metered::decompressed(MultiGzDecoder::new(file))));
    }
    if head.starts_with(ZSTD) {
        let mut plain = zstd::Decoder::new(file)?;
        plain.window_log_max(ZSTD_WINDOW_LOG)?;
        return Ok(Box::new(Metered::decompressed(plain)));
    }
    Ok(Box::new(Metered::plain(file)))
}

fn by_name(name: &str) -> Option<Contents> {
    if name.contains(".json") {
        Some(Contents::Json)
    } else if name.contains(".pftrace") || name.contains(".perfetto-trace") {
        Some(Contents::Perfetto)
    } else if name.ends_with(".aiprof") {
        Some(Contents::Capture)
    } else if name.contains(".log") {
        Some(Contents::Log)
    } else {
        None
    }
}

fn by_head(head: &[u8]) -> Contents {
    if head.starts_with(&capture::MAGIC[..7]) {
        return Contents::Capture;
    }
    let line = head.split(|b| *b == b'\n').map(<[u8]>::trim_ascii);
    let first = line.into_iter().find(|line| !line.is_empty());
    match first {
        None | Some([b'{' | b'[' | b'}' | b']', ..]) => Contents::Json,
        // A time of day: 12:34.
        Some([b'0'..=b'2', b'0'..=b'9', b':', b'0', ..]) => Contents::Log,
        // The first field of a trace is a packet: number 1, with a length.
        Some([0x0a, ..]) => Contents::Perfetto,
        Some(line) if line.iter().all(|b| *b >= b' ') => Contents::Json,
        Some(_) => Contents::Perfetto,
    }
}

/// A file of which the first bytes were looked at.
type Peeked<R> = Chain<Cursor<Vec<u8>>, R>;

/// Looks at the first bytes without taking them.
fn peek<R: Read>(mut from: R) -> io::Result<(Vec<u8>, Peeked<R>)> {
    let mut head = Vec::new();
    (&mut from).take(PEEK as u64).read_to_end(&mut head)?;
    Ok((head.clone(), Cursor::new(head).chain(from)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_told_by_name_or_head() {
        assert_eq!(by_name("x.pt.trace.json.gz"), Some(Contents::Json));
        assert_eq!(by_name("x.pftrace"), Some(Contents::Perfetto));
        assert_eq!(by_name("x.aiprof"), Some(Contents::Capture));
        assert_eq!(by_name("x"), None);
        assert_eq!(by_head(capture::MAGIC), Contents::Capture);
        assert_eq!(by_head(b"\n  [1]"), Contents::Json);
        assert_eq!(by_head(b"12:0 x"), Contents::Log);
        assert_eq!(by_head(b"\x0a\x05abc"), Contents::Perfetto);
        assert_eq!(by_head(b"hello"), Contents::Json);
    }
}
