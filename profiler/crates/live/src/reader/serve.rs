//! What a process of readers does.

use super::{
    copied,
    denied::DeniedFiles,
    file::{NamedUnwind, SharedFile, facts, open_unwind},
    job::{Behind, GeneratedCode, ReadJob, Reply, UnwindPage},
};
use crate::{
    device_use, environment,
    java::FoundJava,
    kubernetes::PodNames,
    procfs::{self, MappedFile, OpenError},
};
use aiprof_model::{labels, process::Region, wire::MapEvent};
use aiprof_symbols::{
    java::HotSpot,
    unwind::{PageContent, ReadAt, TextSegment, UnwindError, UnwindFile},
};
use aiprof_system::{
    files::{kernel, others},
    os::privileges,
    remote::{Line, MAX_DESCRIPTORS, cpu_clock},
};
use rustc_hash::FxHashSet;
use rustix::fs::StatxFlags;
use std::{
    fs::File,
    io,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

/// Most files opened of a process that is met when it runs already: they come with
/// one message. A program that trains maps some 80, a desktop's browser 200.
const MAX_FILES: usize = MAX_DESCRIPTORS;
/// How long they are opened: what is left then is asked for by itself.
const OPENING: Duration = Duration::from_millis(150);
/// How often deleted files are dropped: a file that stays open keeps its space.
const DROP_EVERY: Duration = Duration::from_secs(1);

/// CPU time of one page behind which no other of the same job is read: a job with
/// several is of pages that may not be needed, and others wait.
const SLICE: Duration = Duration::from_millis(8);
/// Most files that a reader remembers.
const MAX_REMEMBERED: usize = 64;

/// The memory of a process, as a file whose offsets are addresses. What cannot be read
/// ends it.
struct MemoryFile(File);

impl ReadAt for MemoryFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(std::os::unix::fs::FileExt::read_at(&self.0, buf, offset).unwrap_or(0))
    }
}

/// What a process of readers does: answers jobs until the line is closed.
pub fn serve(line: &Line) {
    // As whoever asks: the next samples need the answer.
    aiprof_system::os::scheduling::prefer_this_thread();
    if let Err(error) = privileges::drop_to(privileges::READING_AS_USERS) {
        tracing::debug!("{error}");
    }
    let mut opened = ReaderProcess::default();
    line.serve(|job: ReadJob, fds| opened.read(&job, fds));
}

/// Files whose tables were asked for lately, by the number of their content.
#[derive(Default)]
pub(super) struct ReaderProcess {
    /// Names of pods and containers.
    pods: PodNames,
    files: Vec<(u64, Option<(NamedUnwind, SharedFile)>)>,
    denied: DeniedFiles,
    /// When those that were deleted were last dropped.
    dropped: Option<Instant>,
}

impl ReaderProcess {
    /// Does a job.
    pub(super) fn read(&mut self, job: &ReadJob, fds: Vec<OwnedFd>) -> (Reply, Vec<OwnedFd>) {
        let mut opened = Vec::new();
        let reply = match job {
            ReadJob::File { pid, map } => {
                Reply::File(find(*pid, map, &mut self.denied, &mut opened))
            }
            ReadJob::Process { pid, tid } => {
                let mut maps = procfs::executable_maps(*pid, *tid).unwrap_or_default();
                maps.extend(copied_maps(*pid, *tid, &maps));
                let end = Instant::now() + OPENING;
                let in_time = |_: &_| Instant::now() < end;
                let mut find = |(i, map)| (i, find(*pid, map, &mut self.denied, &mut opened));
                let files = files_in_order(&maps).take_while(in_time);
                let found = files.map(&mut find).collect();
                Reply::Process {
                    comm: procfs::comm(*pid).unwrap_or_default(),
                    maps,
                    found,
                }
            }
            ReadJob::Copied { pid } => {
                let maps = procfs::executable_maps(*pid, *pid).unwrap_or_default();
                Reply::Copied(copied_maps(*pid, *pid, &maps))
            }
            ReadJob::Labels { pid, environment } => {
                let device = device_use::of_process(*pid);
                let device = device.map(|name| (labels::DEVICE.to_owned(), name));
                let mut found: Vec<_> = device.into_iter().collect();
                found.extend(self.pods.labels_of(*pid));
                if *environment {
                    found.extend(environment::labels_of(*pid));
                }
                Reply::Labels(found)
            }
            ReadJob::Java { pid, library, bias } => {
                Reply::Java(match kernel::open(format!("/proc/{pid}/mem")) {
                    Ok(memory) => HotSpot::read(library, *bias, &MemoryFile(memory)).into(),
                    Err(error) => FoundJava::Declined(error.to_string()),
                })
            }
            ReadJob::Generated { code, pages } => {
                let code = generated(code);
                Reply::Tables(build_all(pages, |page, out| {
                    Some(code.as_ref()?.page(page, out))
                }))
            }
            ReadJob::Tables {
                number,
                path,
                pages,
                whole,
            } => {
                self.drop_deleted();
                let unwind = self.unwind(*number, path, fds);
                Reply::Tables(build_all(pages, |page, out| {
                    Some(unwind?.page(page, *whole, out))
                }))
            }
        };
        (reply, opened)
    }

    /// Drops files that have no name any more, once in a while.
    fn drop_deleted(&mut self) {
        let now = Instant::now();
        if self.dropped.is_some_and(|at| now - at < DROP_EVERY) {
            return;
        }
        self.dropped = Some(now);
        self.files
            .retain(|(_, file)| file.as_ref().is_some_and(is_linked));
    }

    /// The unwind data of a content, from the file that came with the job.
    fn unwind(&mut self, number: u64, path: &str, fds: Vec<OwnedFd>) -> Option<&NamedUnwind> {
        let known = self.files.iter().position(|(n, _)| *n == number);
        // The one asked for last is the last.
        let (_, opened) = match known.filter(|_| number != 0) {
            Some(at) => self.files.remove(at),
            None => {
                let place = fds.into_iter().next();
                let file = place.and_then(|place| others::reopen(place).ok());
                let file = file.map(|file| SharedFile(Arc::new(file)));
                let opened = file.and_then(|file| Some((open_unwind(&file, path)?, file)));
                (number, opened)
            }
        };
        if self.files.len() >= MAX_REMEMBERED {
            self.files.remove(0);
        }
        self.files.push((number, opened));
        self.files.last()?.1.as_ref().map(|(unwind, _)| unwind)
    }
}

/// What a process has copied of the text of its files.
fn copied_maps(pid: u32, tid: u32, maps: &[MapEvent]) -> Vec<MapEvent> {
    match kernel::open(format!("/proc/{pid}/mem")) {
        Ok(memory) => copied::find(pid, tid, maps, &MemoryFile(memory)),
        Err(_) => Vec::new(),
    }
}

/// The first mapping of each file of a process, by its index, at most `MAX_FILES`. The program's
/// comes first, then those of what it loaded first, for all of its stacks lead there. The kernel
/// gives out addresses from above.
fn files_in_order(maps: &[MapEvent]) -> impl Iterator<Item = (usize, &MapEvent)> {
    let mut seen = FxHashSet::default();
    let first = |(_, map): &(usize, &MapEvent)| {
        Region::may_be_file(&map.file) && seen.insert((map.file.device, map.file.inode))
    };
    let mut files: Vec<_> = maps.iter().enumerate().filter(first).collect();
    if let Some((_, libraries)) = files.split_first_mut() {
        libraries.reverse();
    }
    files.into_iter().take(MAX_FILES)
}

/// Whether a file still has a name.
fn is_linked((_, file): &(NamedUnwind, SharedFile)) -> bool {
    let found = others::cached(&*file.0, StatxFlags::NLINK);
    found.is_ok_and(|found| found.stx_nlink > 0)
}

/// Finds the file of a mapping; one that is opened is added to `opened`.
fn find(pid: u32, map: &MapEvent, denied: &mut DeniedFiles, opened: &mut Vec<OwnedFd>) -> Behind {
    if opened.len() >= MAX_FILES {
        return Behind::Failed("too many files in one request".to_owned());
    }
    let found = procfs::open_exact(pid, map).or_else(|error| match error.is_denial() {
        true => denied.open(pid, map),
        false => Err(error),
    });
    match found {
        Ok(MappedFile {
            file,
            place,
            stat,
            through_mapping,
        }) => {
            let file = SharedFile(Arc::new(file));
            let facts = facts(open_unwind(&file, &map.file.path).as_ref());
            opened.push(place);
            Behind::Opened {
                stat,
                through_mapping,
                facts: Box::new(facts),
            }
        }
        Err(OpenError::Replaced) => Behind::Replaced,
        Err(OpenError::Io(error)) => Behind::Failed(error.to_string()),
    }
}

/// Code in the memory of a process; `None`: it cannot be read.
fn generated(code: &GeneratedCode) -> Option<UnwindFile<MemoryFile>> {
    let memory = MemoryFile(kernel::open(format!("/proc/{}/mem", code.pid)).ok()?);
    let text = code.text.iter().map(|range| TextSegment {
        file_offset: range.start,
        vaddr: range.start,
        size: range.end.saturating_sub(range.start),
    });
    UnwindFile::generated(memory, text.collect(), code.pages.clone()).ok()
}

/// Builds the tables of some pages, of which `page` writes one; `None`: nothing is known
/// of its file. What would take too long for pages that may not be needed is left out.
fn build_all(
    pages: &[u32],
    page: impl Fn(u32, &mut Vec<u8>) -> Option<Result<PageContent, UnwindError>>,
) -> Vec<(u32, UnwindPage)> {
    let mut built = Vec::new();
    for &index in pages {
        let end = cpu_clock(libc::CLOCK_THREAD_CPUTIME_ID) + SLICE;
        let mut content = Vec::new();
        let table = match page(index, &mut content) {
            Some(Ok(PageContent::Table)) => UnwindPage::new(content, false),
            Some(Ok(PageContent::Partial)) => UnwindPage::new(content, true),
            Some(Ok(PageContent::NoData)) | None => UnwindPage::NoData,
            Some(Err(error)) => {
                tracing::debug!("unwind table page {index}: {error}");
                UnwindPage::NoData
            }
        };
        built.push((index, table));
        if cpu_clock(libc::CLOCK_THREAD_CPUTIME_ID) >= end {
            break;
        }
    }
    built
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::wire::FileKey;

    fn map(path: &str, inode: u64) -> MapEvent {
        MapEvent {
            start: 0x1000 * inode,
            len: 0x1000,
            file_offset: 0,
            file: FileKey {
                path: path.to_owned(),
                build_id: None,
                device: 1,
                inode,
                version: 0,
            },
        }
    }

    #[test]
    fn of_many_files_the_program_and_what_it_loaded_first_are_read() {
        let library = |inode| map("/lib/x.so", inode);
        let mut maps = vec![map("/bin/program", 1), map("", 0)];
        maps.extend((2..400).map(library));
        // Two mappings of one file.
        maps.push(library(399));
        let order: Vec<u64> = files_in_order(&maps).map(|(_, m)| m.file.inode).collect();
        let expected: Vec<u64> = [1].into_iter().chain((2..400).rev()).collect();
        assert_eq!(order, expected[..MAX_FILES]);
        assert!(files_in_order(&maps).all(|(i, m)| maps[i] == *m));
        assert_eq!(files_in_order(&[]).count(), 0);
    }
}
