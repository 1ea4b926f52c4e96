//! What waits for delivery: one directory for each output, one file for each body.
//!
//! `aiprof agent` puts bodies in, `aiprof-send` takes them out when they are delivered. A body is
//! what the server gets, ready made. Its name is `START-NUMBER-SAMPLES.KIND`, where START is the
//! window's, in nanoseconds since the Unix epoch. Names sort by age. Files come whole or not at
//! all, survive both programs, and the oldest go where there are too many bytes.
//!
//! For an output `lake` each body is a window's profile as pprof.

use crate::shared;
use rustix::fs::{Mode, OFlags};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

/// Most bodies of an output, whatever their size.
const MAX_BODIES: usize = 100_000;
/// The file that contains the type of a queue's output.
const TYPE: &str = ".type";
/// Largest of those that is read.
const MAX_TYPE: u64 = 4096;
/// What files begin with that are not whole yet.
const UNFINISHED: &str = ".part-";

/// How a body is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BodyPacking {
    /// As it is.
    Raw,
    /// By gzip.
    Gzip,
    /// A pprof file, which is gzip in itself.
    Pprof,
}

impl BodyPacking {
    const ALL: [Self; 3] = [Self::Raw, Self::Gzip, Self::Pprof];

    fn extension(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Gzip => "gz",
            Self::Pprof => "pb.gz",
        }
    }
}

/// A body that waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Body {
    /// When its window began, nanoseconds since the Unix epoch.
    pub start_unix_ns: u64,
    /// Distinguishes it from others of the same window.
    pub number: u64,
    /// Samples in it.
    pub samples: u64,
    /// How it is packed.
    pub kind: BodyPacking,
}

impl Body {
    /// Its file's name.
    pub fn name(&self) -> String {
        let Self {
            start_unix_ns,
            number,
            samples,
            kind,
        } = self;
        format!(
            "{start_unix_ns:020}-{number:010}-{samples}.{}",
            kind.extension()
        )
    }

    /// From a file's name; `None`: it is none.
    pub fn parse(name: &str) -> Option<Self> {
        let (numbers, extension) = name.split_once('.')?;
        let kind = BodyPacking::ALL
            .into_iter()
            .find(|kind| kind.extension() == extension)?;
        let mut numbers = numbers.split('-').map(|text| {
            let digits = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| digits)
        });
        let body = Self {
            start_unix_ns: numbers.next()??,
            number: numbers.next()??,
            samples: numbers.next()??,
            kind,
        };
        (numbers.next().is_none() && body.name() == name).then_some(body)
    }
}

/// What waits in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Bodies.
    pub bodies: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What went because there was too much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Bodies.
    pub bodies: u64,
    /// Samples in these.
    pub samples: u64,
}

/// The directory of one output.
#[derive(Clone, Debug)]
pub struct Queue {
    directory: PathBuf,
}

impl Queue {
    /// That of an output of this name, in the spool's directory; made where there is none.
    /// What was begun and not finished there is deleted by [`Queue::tidy`].
    ///
    /// # Errors
    /// It cannot be made.
    pub fn open(spool: &Path, output: &str) -> io::Result<Self> {
        let directory = spool.join(output);
        if !directory.is_dir() {
            shared::queue(&directory)?;
        }
        Ok(Self { directory })
    }

    /// Whether bodies wait there for an output of this name. Makes nothing.
    pub fn has_any(spool: &Path, output: &str) -> bool {
        let queue = Self {
            directory: spool.join(output),
        };
        queue.bodies().is_ok_and(|bodies| !bodies.is_empty())
    }

    /// Marks the queue with the type of its output. If an output of another type had this name
    /// before, its waiting bodies are put aside, because no other output can take them. Returns
    /// where they are.
    ///
    /// # Errors
    /// It cannot be read, put aside or marked.
    pub fn claim(&self, of: &str) -> io::Result<Option<PathBuf>> {
        let mark = self.directory.join(TYPE);
        let before = match read_own(&mark) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if before.as_deref() == Some(of) {
            return Ok(None);
        }
        let mut aside = None;
        if let Some(before) = &before
            && !self.bodies()?.is_empty()
        {
            let is_plain = |c: &char| c.is_ascii_alphanumeric();
            let before: String = before.chars().filter(is_plain).take(16).collect();
            let mut free = (0..1000).map(|number| {
                let mut name = self.directory.clone().into_os_string();
                name.push(format!(".{before}-{number}"));
                PathBuf::from(name)
            });
            let free = free.find(|path| !path.exists());
            let free = free.ok_or(io::ErrorKind::AlreadyExists)?;
            std::fs::rename(&self.directory, &free)?;
            shared::queue(&self.directory)?;
            aside = Some(free);
        }
        self.write(TYPE, of.as_bytes())?;
        Ok(aside)
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// What waits, oldest first, with its bytes. What has another name is left alone.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn bodies(&self) -> io::Result<Vec<(Body, u64)>> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir(&self.directory)? {
            let entry = entry?;
            let Some(body) = entry.file_name().to_str().and_then(Body::parse) else {
                continue;
            };
            // It may have been delivered meanwhile.
            if let Ok(about) = entry.metadata()
                && about.is_file()
            {
                all.push((body, about.len()));
            }
        }
        all.sort();
        Ok(all)
    }

    /// The content of a body.
    ///
    /// # Errors
    /// It cannot be read: it may be gone.
    pub fn read(&self, body: &Body) -> io::Result<Vec<u8>> {
        std::fs::read(self.directory.join(body.name()))
    }

    /// Takes a body out.
    ///
    /// # Errors
    /// It cannot be deleted; that it is not there is none.
    pub fn remove(&self, body: &Body) -> io::Result<()> {
        match std::fs::remove_file(self.directory.join(body.name())) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Puts a body in, whole or not at all.
    ///
    /// # Errors
    /// Those of writing: a full disk, for one.
    pub fn put(&self, body: &Body, content: &[u8]) -> io::Result<()> {
        self.write(&body.name(), content)
    }

    /// Writes a file, whole or not at all; a link of this name is replaced, not followed.
    fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let mut out = tempfile::Builder::new()
            .prefix(UNFINISHED)
            .tempfile_in(&self.directory)?;
        out.write_all(content)?;
        shared::let_read(out.as_file())?;
        out.persist(self.directory.join(name))
            .map_err(|error| error.error)?;
        Ok(())
    }

    /// Deletes the oldest until no more than these bytes are left.
    ///
    /// # Errors
    /// The directory cannot be read, or a body cannot be deleted.
    pub fn bound(&self, max_bytes: u64) -> io::Result<(Dropped, Extent)> {
        let all = self.bodies()?;
        let mut left = Extent {
            bodies: all.len() as u64,
            bytes: all.iter().map(|(_, bytes)| bytes).sum(),
        };
        let mut dropped = Dropped::default();
        for (body, bytes) in &all {
            if left.bytes <= max_bytes && left.bodies <= MAX_BODIES as u64 {
                break;
            }
            self.remove(body)?;
            left.bytes -= bytes;
            left.bodies -= 1;
            dropped.bodies += 1;
            dropped.samples = dropped.samples.saturating_add(body.samples);
        }
        Ok((dropped, left))
    }

    /// Deletes what an earlier run began and did not finish.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn tidy(&self) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.directory)? {
            let entry = entry?;
            if entry
                .file_name()
                .to_str()
                .is_some_and(|name| name.starts_with(UNFINISHED))
            {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        Ok(())
    }
}

/// The text of a small file that is no link: who delivers writes to its directory, too.
fn read_own(path: &Path) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = std::fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let mut text = String::new();
    file.take(MAX_TYPE).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(start: u64, samples: u64) -> Body {
        Body {
            start_unix_ns: start,
            number: 1,
            samples,
            kind: BodyPacking::Gzip,
        }
    }

    #[test]
    fn names_tell_what_bodies_are_and_sort_by_age() {
        let old = body(999, 5);
        let new = body(1_700_000_000_000_000_000, 5);
        assert!(old.name() < new.name());
        for body in [old, new] {
            assert_eq!(Body::parse(&body.name()), Some(body));
        }
        for wrong in [
            "",
            "1-2-3.gz",
            "x",
            ".part-abc",
            "00000000000000000999-0000000001-5.zip",
            "00000000000000000999-0000000001-05.gz",
            "00000000000000000999-0000000001.gz",
        ] {
            assert_eq!(Body::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_waits_for_another_type_is_put_aside() {
        let spool = tempfile::tempdir().unwrap();
        let queue = Queue::open(spool.path(), "x").unwrap();
        queue.put(&body(1, 1), b"of before").unwrap();
        // Like a queue without a mark.
        assert_eq!(queue.claim("otlp").unwrap(), None);
        assert_eq!(queue.claim("otlp").unwrap(), None);
        assert_eq!(queue.bodies().unwrap().len(), 1);
        for (n, of) in ["parca", "otlp", "parca"].into_iter().enumerate() {
            let aside = queue.claim(of).unwrap().unwrap();
            assert_eq!(aside.parent(), Some(spool.path()));
            assert!(queue.bodies().unwrap().is_empty());
            let name = aside.file_name().unwrap().to_str().unwrap();
            let aside = Queue::open(spool.path(), name).unwrap();
            assert_eq!(aside.bodies().unwrap().len(), 1, "{n} {name}");
            queue.put(&body(1, 1), b"of another").unwrap();
        }
        let empty = Queue::open(spool.path(), "y").unwrap();
        empty.claim("otlp").unwrap();
        assert_eq!(empty.claim("lake").unwrap(), None);
    }

    #[test]
    fn a_link_in_a_queue_leads_nobody_to_other_files() {
        let spool = tempfile::tempdir().unwrap();
        let queue = Queue::open(spool.path(), "x").unwrap();
        let other = spool.path().join("other");
        std::fs::write(&other, "mine").unwrap();
        let body = body(1, 1);
        std::os::unix::fs::symlink(&other, queue.directory().join(TYPE)).unwrap();
        assert!(queue.claim("otlp").is_err());
        std::os::unix::fs::symlink(&other, queue.directory().join(body.name())).unwrap();
        queue.put(&body, b"a body").unwrap();
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "mine");
        assert_eq!(queue.read(&body).unwrap(), b"a body");
    }

    #[test]
    fn the_oldest_go_first_and_are_counted() {
        let spool = tempfile::tempdir().unwrap();
        let queue = Queue::open(spool.path(), "x").unwrap();
        std::fs::write(queue.directory().join("notes.txt"), "mine").unwrap();
        std::fs::write(queue.directory().join(".part-1"), "half").unwrap();
        for start in [30, 10, 20] {
            queue.put(&body(start, start), &[0; 100]).unwrap();
        }
        let (dropped, left) = queue.bound(250).unwrap();
        assert_eq!(
            dropped,
            Dropped {
                bodies: 1,
                samples: 10
            }
        );
        assert_eq!(
            left,
            Extent {
                bodies: 2,
                bytes: 200
            }
        );
        let waiting: Vec<_> = queue
            .bodies()
            .unwrap()
            .into_iter()
            .map(|(b, _)| b)
            .collect();
        assert_eq!(waiting, [body(20, 20), body(30, 30)]);
        assert_eq!(queue.read(&waiting[0]).unwrap().len(), 100);
        queue.remove(&waiting[0]).unwrap();
        queue.remove(&waiting[0]).unwrap();
        assert!(queue.read(&waiting[0]).is_err());
        queue.tidy().unwrap();
        assert!(!queue.directory().join(".part-1").exists());
        assert!(queue.directory().join("notes.txt").exists());
    }
}
