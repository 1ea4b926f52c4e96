//! What is read: the jobs, as they are sent to the processes that read, and what comes back.

use super::file::{Facts, OpenFile};
use crate::{
    java::FoundJava,
    procfs::{FileStat, OpenError},
};
use aiprof_model::{process::FileId, wire::MapEvent};
use aiprof_symbols::java::JavaLibrary;
use aiprof_system::workers::Owner;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::{io, ops::Range, os::fd::OwnedFd, sync::Arc};

/// Something to read.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ReadJob {
    /// The file behind a mapping of a process.
    File { pid: u32, map: MapEvent },
    /// A process, by any of its threads: its name, its mappings, their files.
    Process { pid: u32, tid: u32 },
    /// What a process has copied of the text of its files.
    Copied { pid: u32 },
    /// The labels of a process: what it has open, its pod's names, and its environment.
    Labels { pid: u32, environment: bool },
    /// The HotSpot of a process: `bias` is what is added to its file's addresses.
    Java {
        pid: u32,
        library: Box<JavaLibrary>,
        bias: u64,
    },
    /// Tables of pages of code that a process has generated.
    Generated {
        code: GeneratedCode,
        pages: Vec<u32>,
    },
    /// Tables of pages of a file, which comes with it.
    Tables {
        /// Which content: what was read of it before need not be read again.
        number: u64,
        /// For messages.
        path: String,
        pages: Vec<u32>,
        /// With code that no unwind data describe.
        whole: bool,
    },
}

/// Code that a process has generated.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct GeneratedCode {
    /// The process.
    pub pid: u32,
    /// Where memory with code is, by address.
    pub text: Vec<Range<u64>>,
    /// What the pages are counted in.
    pub pages: Range<u64>,
}

/// A job, and the file that goes with it.
pub(super) struct Errand {
    pub(super) job: ReadJob,
    pub(super) id: FileId,
    pub(super) file: Option<Arc<OpenFile>>,
}

/// What was read. Files go with it, in the order of [`Behind::Opened`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    File(Behind),
    Process {
        comm: String,
        maps: Vec<MapEvent>,
        found: Vec<(usize, Behind)>,
    },
    Copied(Vec<MapEvent>),
    Labels(Vec<(String, String)>),
    Java(FoundJava),
    Tables(Vec<(u32, UnwindPage)>),
}

/// What is behind a mapping.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Behind {
    Opened {
        stat: FileStat,
        through_mapping: bool,
        facts: Box<Facts>,
    },
    Replaced,
    Failed(String),
}

/// What was found behind a mapping.
#[derive(Debug)]
pub enum FoundFile {
    /// A file, opened.
    Opened {
        /// It.
        file: OpenFile,
        /// Which it is.
        stat: FileStat,
        /// See `MappedFile::through_mapping`.
        through_mapping: bool,
    },
    /// Why none could be opened.
    Failed(OpenError),
}

/// A page of unwind data as the pool stores it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum UnwindPage {
    /// Its bytes, a digest of them that cannot be made to collide, and whether it is
    /// `PageContent::Partial`.
    Built(Vec<u8>, TableDigest, bool),
    /// There is no unwind data for it, or none that can be used.
    NoData,
}

impl UnwindPage {
    pub(super) fn new(content: Vec<u8>, is_partial: bool) -> Self {
        let digest = Sha256::digest(&content).into();
        Self::Built(content, digest, is_partial)
    }
}

/// SHA-256 of a table.
pub type TableDigest = [u8; 32];

/// What came back.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "few at a time, and taken apart at once"
)]
pub enum ReaderAnswer {
    /// The file behind a mapping that was asked for.
    File {
        /// The process.
        pid: u32,
        /// The mapping.
        map: MapEvent,
        /// What is behind it.
        found: FoundFile,
    },
    /// The mappings and files of a process that was asked for.
    Process {
        /// The process.
        pid: u32,
        /// Its name.
        comm: String,
        /// All its executable mappings.
        maps: Vec<MapEvent>,
        /// What is behind the first mapping of each file, by its index.
        found: Vec<(usize, FoundFile)>,
    },
    /// What a process has copied of the text of its files.
    Copied {
        /// The process.
        pid: u32,
        /// Mappings, as if the files were mapped there.
        maps: Vec<MapEvent>,
    },
    /// The labels of a process that were asked for.
    Labels {
        /// The process.
        pid: u32,
        /// Them.
        labels: Vec<(String, String)>,
    },
    /// What was found of a HotSpot that was asked for.
    Java {
        /// The process.
        pid: u32,
        /// What was found of it.
        found: FoundJava,
    },
    /// Tables of a file.
    Tables {
        /// The file.
        id: FileId,
        /// Them, by the index of their page.
        pages: Vec<(u32, UnwindPage)>,
    },
    /// What was asked is not answered in time, if at all.
    Late(ReadSubject),
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadSubject {
    /// The file behind a mapping of a process, by the device and inode number that
    /// the kernel shows.
    File(u32, (u64, u64)),
    /// A process.
    Process(u32),
    /// What a process has copied.
    Copied(u32),
    /// The labels of a process.
    Labels(u32),
    /// The HotSpot of a process.
    Java(u32),
    /// Tables of a file, on somebody's account.
    Tables(FileId, Owner, Vec<u32>),
}
impl Errand {
    pub(super) fn of(job: ReadJob) -> Self {
        Self {
            job,
            id: FileId(0),
            file: None,
        }
    }
}

/// The answer in a reply, with the files that came with it; `None`: not what was asked.
pub(super) fn answer(
    job: ReadJob,
    id: FileId,
    reply: Reply,
    fds: Vec<OwnedFd>,
) -> Option<ReaderAnswer> {
    let mut fds = fds.into_iter();
    let mut found = |behind: Behind| match behind {
        Behind::Opened {
            stat,
            through_mapping,
            facts,
        } => match fds.next() {
            Some(fd) => FoundFile::Opened {
                file: OpenFile {
                    place: fd,
                    facts,
                    number: 0,
                },
                stat,
                through_mapping,
            },
            None => FoundFile::Failed(io::Error::other("too many open files").into()),
        },
        Behind::Replaced => FoundFile::Failed(OpenError::Replaced),
        Behind::Failed(text) => FoundFile::Failed(io::Error::other(text).into()),
    };
    Some(match (reply, job) {
        (Reply::File(behind), ReadJob::File { pid, map }) => ReaderAnswer::File {
            pid,
            map,
            found: found(behind),
        },
        (
            Reply::Process {
                comm,
                maps,
                found: behind,
            },
            ReadJob::Process { pid, .. },
        ) => {
            let found = behind.into_iter().map(|(i, b)| (i, found(b))).collect();
            ReaderAnswer::Process {
                pid,
                comm,
                maps,
                found,
            }
        }
        (Reply::Copied(maps), ReadJob::Copied { pid }) => ReaderAnswer::Copied { pid, maps },
        (Reply::Labels(labels), ReadJob::Labels { pid, .. }) => {
            ReaderAnswer::Labels { pid, labels }
        }
        (Reply::Java(found), ReadJob::Java { pid, .. }) => ReaderAnswer::Java { pid, found },
        (Reply::Tables(pages), _) => ReaderAnswer::Tables { id, pages },
        // No reader replies so.
        _ => return None,
    })
}

/// What was asked for and is not in the answer: pages that would have taken too long
/// for something that may not be needed.
pub(super) fn left_out(answer: &ReaderAnswer, asked: ReadSubject) -> Option<ReadSubject> {
    let (ReaderAnswer::Tables { pages: built, .. }, ReadSubject::Tables(id, owner, mut pages)) =
        (answer, asked)
    else {
        return None;
    };
    pages.retain(|page| built.iter().all(|(done, _)| done != page));
    (!pages.is_empty()).then_some(ReadSubject::Tables(id, owner, pages))
}
