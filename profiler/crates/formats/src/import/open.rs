//! Files that are read: what they are, and their text, decompressed.

use super::{iaprof, pprof, rocprof, unitrace_csv, xplane};
use crate::export::formats::{FOLDED, PPROF};
use aiprof_record::capture;
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
/// Bytes that are looked at to recognize a file.
const PEEK: usize = 4096;

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// A trace in JSON.
    Json,
    /// A trace of Perfetto.
    Perfetto,
    /// A profile of JAX or TensorFlow.
    Xplane,
    /// rocprofv3's records in JSON.
    Rocprof,
    /// A recording of Nsight Systems, or the database that it exports.
    Nsight,
    /// A database of rocprofv3.
    Rocpd,
    /// A database of rocmProfileData.
    Rpd,
    /// Another SQLite database.
    Database,
    /// An object of Python, as torch's snapshots of memory are.
    Pickle,
    /// A recording of aiprof.
    Capture,
    /// A compiler's log.
    Log,
    /// Folded stacks.
    Folded,
    /// A profile of pprof.
    Pprof,
    /// iaprof's text.
    Iaprof,
    /// unitrace's table of stalls.
    StallCsv,
    /// A picture, as flame graphs are.
    Svg,
    /// A page.
    Page,
    /// A program, a library or a module of device code.
    Elf,
    /// Nothing.
    Empty,
    /// Another text.
    Text,
    /// Anything else.
    Binary,
}

impl Contents {
    /// Whether `aiprof analyze` and `aiprof diff` read it as a trace.
    pub fn is_trace(self) -> bool {
        match self {
            Self::Json | Self::Perfetto | Self::Xplane | Self::Rocprof => true,
            Self::Nsight | Self::Rocpd | Self::Rpd | Self::Database | Self::Pickle => false,
            Self::Capture | Self::Log | Self::Folded | Self::Pprof => false,
            Self::Iaprof | Self::StallCsv | Self::Svg | Self::Page => false,
            Self::Elf | Self::Empty | Self::Text | Self::Binary => false,
        }
    }

    /// Its name, for people.
    pub fn what(self) -> &'static str {
        match self {
            Self::Json => "a JSON trace",
            Self::Perfetto => "a Perfetto trace",
            Self::Xplane => "a profile of JAX or TensorFlow",
            Self::Rocprof => "rocprofv3's records",
            Self::Nsight => "a recording of Nsight Systems",
            Self::Rocpd => "a rocpd database",
            Self::Rpd => "a database of rocmProfileData",
            Self::Database => "an SQLite database",
            Self::Pickle => "a Python pickle",
            Self::Capture => "an aiprof capture",
            Self::Log => "a log",
            Self::Folded => "folded stacks",
            Self::Pprof => "a pprof profile",
            Self::Iaprof => "an iaprof recording",
            Self::StallCsv => "a unitrace stall table",
            Self::Svg => "an SVG picture",
            Self::Page => "an HTML page",
            Self::Elf => "a program or a module (ELF)",
            Self::Empty => "empty",
            Self::Text => "text in an unknown format",
            Self::Binary => "in an unknown format",
        }
    }
}

/// A file that is open.
pub struct Input {
    /// What is in it.
    pub contents: Contents,
    /// It, decompressed.
    pub text: Box<dyn Read + Send>,
}

/// Opens a file and finds out what it holds: by its first bytes, decompressed, otherwise by
/// its name.
///
/// # Errors
/// When it cannot be read.
pub fn open(path: &Path) -> io::Result<Input> {
    let (head, text) = peek(decompressed(opened(path)?)?)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let contents = match by_head(&head) {
        unknown @ (Contents::Empty | Contents::Text | Contents::Binary) => {
            let name = name.to_ascii_lowercase();
            let counted = || by_name_of_counts(&name);
            by_name(&name).or_else(counted).unwrap_or(unknown)
        }
        Contents::Database if is_of_nsight(&name) => Contents::Nsight,
        // Lines of a log may end in a number.
        Contents::Folded if by_name(&name) == Some(Contents::Log) => Contents::Log,
        contents => contents,
    };
    let text = Box::new(text);
    Ok(Input { contents, text })
}

/// Opens a file that is a trace or a log, as acelyzer does: by its name where that is
/// enough.
///
/// # Errors
/// When it cannot be read.
pub fn open_by_name(path: &Path) -> io::Result<Input> {
    let plain = decompressed(opened(path)?)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if let Some(contents) = by_name(&name) {
        let text = plain;
        return Ok(Input { contents, text });
    }
    let (head, plain) = peek(plain)?;
    let contents = match by_head(&head) {
        known @ (Contents::Json | Contents::Perfetto | Contents::Capture | Contents::Log) => known,
        Contents::Binary | Contents::Pprof | Contents::Elf => Contents::Perfetto,
        _ => Contents::Json,
    };
    let text = Box::new(plain);
    Ok(Input { contents, text })
}

fn opened(path: &Path) -> io::Result<File> {
    let file = caller::open(path)?;
    match file.metadata()?.is_dir() {
        true => Err(io::Error::from(io::ErrorKind::IsADirectory)),
        false => Ok(file),
    }
}

/// A file's text, decompressed: its first bytes show the compression.
///
/// # Errors
/// When it cannot be read, or needs more memory than the zstd command allows; while
/// it is read, also when it needs more than [`aiprof_system::memory`] allows.
pub fn decompressed(file: File) -> io::Result<Box<dyn Read + Send>> {
    let about = file.metadata()?;
    let size = about.is_file().then_some(about.len());
    let (head, file) = peek(file)?;
    if head.starts_with(GZIP) {
        let file = BufReader::with_capacity(1 << 18, file);
        return Ok(Box::new(Metered::decompressed(
            MultiGzDecoder::new(file),
            size,
        )));
    }
    if head.starts_with(ZSTD) {
        let mut plain = zstd::Decoder::new(file)?;
        plain.window_log_max(ZSTD_WINDOW_LOG)?;
        return Ok(Box::new(Metered::decompressed(plain, size)));
    }
    Ok(Box::new(Metered::plain(file)))
}

fn by_name(name: &str) -> Option<Contents> {
    if name.contains(".json") {
        Some(Contents::Json)
    } else if name.contains(".pftrace") || name.contains(".perfetto-trace") {
        Some(Contents::Perfetto)
    } else if name.contains(".xplane.pb") {
        Some(Contents::Xplane)
    } else if is_of_nsight(name) {
        Some(Contents::Nsight)
    } else if name.ends_with(".pickle") || name.ends_with(".pkl") {
        Some(Contents::Pickle)
    } else if name.ends_with(".aiprof") {
        Some(Contents::Capture)
    } else if name.contains(".log") {
        Some(Contents::Log)
    } else {
        None
    }
}

/// Whether Nsight Systems names its files so.
fn is_of_nsight(name: &str) -> bool {
    let ends = [".nsys-rep", ".qdrep", ".qdstrm"];
    ends.iter().any(|end| name.ends_with(end))
}

/// What a database holds, by the names of those of its tables that are on the first page.
fn by_tables(head: &[u8]) -> Contents {
    let text = String::from_utf8_lossy(head).to_ascii_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| text.contains(part));
    if has(&["rocpd_op", "rocpd_api"]) {
        Contents::Rpd
    } else if has(&["rocpd_"]) {
        Contents::Rocpd
    } else if has(&["cupti_activity", "target_info_", "nvtx_events", "nsys"]) {
        Contents::Nsight
    } else {
        Contents::Database
    }
}

/// What has no events, by its name.
fn by_name_of_counts(name: &str) -> Option<Contents> {
    let known = [(&FOLDED, Contents::Folded), (&PPROF, Contents::Pprof)];
    let mut known = known.into_iter();
    known
        .find(|(format, _)| format.is_of(name))
        .map(|(_, contents)| contents)
}

/// What begins like this.
fn by_head(head: &[u8]) -> Contents {
    if head.starts_with(&capture::MAGIC[..7]) {
        return Contents::Capture;
    }
    if head.starts_with(b"\x7fELF") {
        return Contents::Elf;
    }
    if head.starts_with(b"SQLite format 3\0") {
        return by_tables(head);
    }
    // Protocols 2 to 5; all others are old or text.
    if matches!(head, [0x80, 2..=5, ..]) {
        return Contents::Pickle;
    }
    if xplane::is_xspace(head) {
        return Contents::Xplane;
    }
    if pprof::is_pprof(head) {
        return Contents::Pprof;
    }
    let is_control = |byte: &u8| *byte < b' ' && !b"\t\n\r\x0c".contains(byte);
    if head.iter().any(is_control) {
        // The first field of a trace is a packet: number 1, with a length.
        return match head {
            [0x0a, ..] => Contents::Perfetto,
            _ => Contents::Binary,
        };
    }
    if rocprof::is_rocprof(head) {
        return Contents::Rocprof;
    }
    if iaprof::is_iaprof(head) {
        return Contents::Iaprof;
    }
    match unitrace_csv::is_stall_csv(head) {
        true => Contents::StallCsv,
        false => by_line(head),
    }
}

/// What a text is, by its first line.
fn by_line(head: &[u8]) -> Contents {
    let lines = head.split_inclusive(|b| *b == b'\n');
    let is_comment = |line: &&[u8]| line.trim_ascii().is_empty() || line.starts_with(b"# ");
    let mut lines = lines.skip_while(is_comment);
    let Some(line) = lines.next() else {
        return match head.trim_ascii().is_empty() {
            true => Contents::Empty,
            false => Contents::Text,
        };
    };
    let is_cut = !line.ends_with(b"\n");
    let line = line.trim_ascii();
    let lower = line.to_ascii_lowercase();
    match line {
        [b'{' | b'[' | b'}' | b']', ..] => Contents::Json,
        // A time of day: 12:34.
        [b'0'..=b'2', b'0'..=b'9', b':', b'0', ..] => Contents::Log,
        _ if lower.starts_with(b"<!doctype html") || lower.starts_with(b"<html") => Contents::Page,
        _ if lower.starts_with(b"<?xml") || lower.starts_with(b"<svg") => Contents::Svg,
        _ if is_folded(line) || is_cut && head.len() == PEEK && line.contains(&b';') => {
            Contents::Folded
        }
        _ => Contents::Text,
    }
}

/// Whether a line is a stack and a value; iaprof of July 2025 left out the space between
/// them, which the reader explains.
fn is_folded(line: &[u8]) -> bool {
    let digits = line.iter().rev().take_while(|b| b.is_ascii_digit()).count();
    let stack = line.get(..line.len() - digits).unwrap_or_default();
    let ends_in_space = stack.ends_with(b" ") && !stack.trim_ascii().is_empty();
    digits > 0 && (ends_in_space || stack.contains(&b';') && stack.ends_with(b"_[g]"))
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
        for (head, contents) in [
            (&capture::MAGIC[..], Contents::Capture),
            (b"\n  [1]", Contents::Json),
            (b"12:0 x", Contents::Log),
            (b"\x0a\x05abc", Contents::Perfetto),
            (b"\x0a\x04\x08\x01\x10\x02\x0a", Contents::Pprof),
            (b"# a comment\nmain;f g 12\n", Contents::Folded),
            (b"main 12", Contents::Folded),
            (b"a;b;0x1b8_[g]12\n", Contents::Folded),
            (b"string\t1\tx", Contents::Iaprof),
            (b"=== Device #0", Contents::Text),
            (b"\x0a\x0b\x12\x09/host:CPU", Contents::Xplane),
            (
                b"SQLite format 3\0 CREATE TABLE rocpd_info_node",
                Contents::Rocpd,
            ),
            (
                b"SQLite format 3\0 CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL",
                Contents::Nsight,
            ),
            (b"SQLite format 3\0", Contents::Database),
            (b"\x80\x04\x95\x10", Contents::Pickle),
            (b"<?xml version=\"1.0\"?>\n<svg", Contents::Svg),
            (b"<!DOCTYPE html>", Contents::Page),
            (b"\x7fELF\x02", Contents::Elf),
            (b"hello", Contents::Text),
            (b"12", Contents::Text),
            (b" \n", Contents::Empty),
            (b"\x00", Contents::Binary),
        ] {
            let shown = String::from_utf8_lossy(head);
            assert_eq!(by_head(head), contents, "{shown:?}");
        }
    }

    #[test]
    fn contents_come_before_names_but_for_acelyzer() {
        let dir = tempfile::tempdir().unwrap();
        let of = |name: &str, text: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            let contents = |input: io::Result<Input>| input.unwrap().contents;
            (contents(open(&path)), contents(open_by_name(&path)))
        };
        let both = (Contents::Folded, Contents::Json);
        assert_eq!(of("x.json", b"main;f 3\n"), both);
        assert_eq!(of("x.log", b"hello\n"), (Contents::Log, Contents::Log));
        assert_eq!(of("x", b"hello\n"), (Contents::Text, Contents::Json));
        assert_eq!(of("x.folded", b"\n").0, Contents::Folded);
        assert_eq!(of("y", b"\x00"), (Contents::Binary, Contents::Perfetto));
        assert!(open(dir.path()).is_err());
    }
}
