//! Limits of the memory and the time that reading and analysing others' files may take.
//!
//! A file of a few megabytes may hold gigabytes, and a few bytes of it may stand for kilobytes in
//! memory. No count of bytes or events shows that beforehand, so the memory itself is checked: by
//! readers with every mebibyte they read. A thread also checks it, and ends the program where no
//! reader does so soon enough.
//!
//! Without [`limit`] there is no limit: a recording has its own bounds.

use crate::files::kernel;
use std::io::{self, Read};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Most memory that is used unless the user gives a limit, where there is more than twice as much:
/// enough for traces of a hundred million events.
const MOST_BY_DEFAULT: u64 = 16 << 30;
/// How much larger than the limit the text in a compressed file may be. Text that
/// takes no memory takes time.
pub const TEXT_FACTOR: u64 = 4;
/// How many times larger than its file decompressed text may be, unless the caller sets a limit of
/// memory: traces are 5 to 50 times larger.
const RATIO: u64 = 250;
/// So much text is read from any compressed file.
const ANY_TEXT: u64 = 1 << 30;
/// After how many bytes a reader looks at the memory.
const STRIDE: u64 = 1 << 20;
/// How far the limit may be passed at least: what is under way takes some memory.
const SLACK: u64 = 64 << 20;
/// How often the thread looks.
const PERIOD: Duration = Duration::from_millis(20);

/// How much later than asked the program ends, if no reader notices that its time is over.
const LATE: Duration = Duration::from_secs(2);

/// Most bytes of memory; 0: no limit.
static LIMIT: AtomicU64 = AtomicU64::new(0);
/// Text may be any number of times larger than its file.
static IS_ANY_RATIO: AtomicBool = AtomicBool::new(true);
/// When the work must be done, and how long it may take.
static DEADLINE: OnceLock<(Instant, Duration)> = OnceLock::new();
/// What was needed more of, once: then nothing is read any more.
static EXCEEDED: OnceLock<LimitError> = OnceLock::new();

/// More is needed than may be used.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum LimitError {
    /// The memory limit.
    #[error(
        "the input needs more than the memory limit of {}; raise the limit with --memory-limit \
         SIZE or AIPROF_MEMORY_LIMIT=SIZE",
        mebibytes(*.0)
    )]
    Memory(u64),
    /// The limit of decompressed text.
    #[error(
        "the input contains more than {} of decompressed text, {TEXT_FACTOR} times the memory \
         limit; raise the limit with --memory-limit SIZE or AIPROF_MEMORY_LIMIT=SIZE",
        mebibytes(*.0)
    )]
    Text(u64),
    /// The limit of decompressed text, for the size of the file.
    #[error(
        "the input contains more than {} of text, {RATIO} times the size of the file; to read it, \
         give --memory-limit SIZE or AIPROF_MEMORY_LIMIT=SIZE",
        mebibytes(*.0)
    )]
    Packed(u64),
    /// The time limit.
    #[error(
        "reading the input takes longer than the time limit of {} s; raise the limit with \
         --timeout TIME or AIPROF_TIMEOUT=TIME",
        .0.as_secs_f64()
    )]
    Time(Duration),
    /// The limit of a text that is never so long.
    #[error("the input contains more than {} of text, the limit for logs", mebibytes(*.0))]
    Log(u64),
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// What may be used from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadingLimits {
    /// Bytes of memory; 0: no limit.
    pub bytes: u64,
    /// The user gave that number: then text may be any number of times larger than its file.
    pub is_given: bool,
    /// Time; `None`: no limit.
    pub time: Option<Duration>,
}

/// Sets the limits, once for the process. `on_end` shows an error, if it has to end the program
/// with status 1.
///
/// # Errors
/// No thread can be started that looks after them.
pub fn limit(limits: ReadingLimits, on_end: fn(LimitError)) -> io::Result<()> {
    let before = LIMIT.swap(limits.bytes, Ordering::Relaxed);
    IS_ANY_RATIO.store(limits.is_given, Ordering::Relaxed);
    if let Some(time) = limits.time {
        DEADLINE.get_or_init(|| (Instant::now() + time, time));
    }
    if before == 0 && (limits.bytes > 0 || limits.time.is_some()) {
        std::thread::Builder::new()
            .name("memory".to_owned())
            .spawn(move || watch(on_end))?;
    }
    Ok(())
}

/// The time that is over, if it is, for so long.
fn overtime(late: Duration) -> Option<LimitError> {
    let (deadline, time) = DEADLINE.get()?;
    (Instant::now() >= *deadline + late).then_some(LimitError::Time(*time))
}

/// The limit unless the user gives one: half of the memory of the machine, or of the control group
/// if that has less, and at most `MOST_BY_DEFAULT`.
pub fn default_limit() -> u64 {
    let machine = kernel::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| kibibytes(&text, "MemTotal:"));
    let most = [machine, of_control_group()].into_iter().flatten().min();
    most.map_or(MOST_BY_DEFAULT, |most| (most / 2).min(MOST_BY_DEFAULT))
}

/// The least limit of this process's control group and those above it, of either version.
fn of_control_group() -> Option<u64> {
    let groups = kernel::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = kernel::read_to_string("/proc/self/mountinfo").ok()?;
    least_limit(&groups, &mounts)
}

/// The least limit by what `/proc/self/cgroup` and `/proc/self/mountinfo` have.
fn least_limit(groups: &str, mounts: &str) -> Option<u64> {
    let folders = mounts
        .lines()
        .filter_map(|mount| MemoryGroups::of(mount, groups));
    folders.filter_map(|folders| folders.least_limit()).min()
}

/// Control groups that a mount shows and that may limit this process's memory.
struct MemoryGroups<'a> {
    mounted_at: &'a Path,
    /// The process's group, below the mount.
    group: &'a Path,
    /// The file that has a group's limit.
    file: &'static str,
}

impl<'a> MemoryGroups<'a> {
    /// From a line of `mountinfo`: `36 35 0:29 ROOT PLACE OPTIONS - TYPE SOURCE OPTIONS`.
    fn of(mount: &'a str, groups: &'a str) -> Option<Self> {
        let (place, kind) = mount.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, mounted_at) = (place.next()?, place.next()?);
        let mut kind = kind.split(' ');
        let (kind, options) = (kind.next()?, kind.nth(1)?);
        let has_memory = |list: &str| list.split(',').any(|one| one == "memory");
        let file = match kind {
            "cgroup2" => "memory.max",
            "cgroup" if has_memory(options) => "memory.limit_in_bytes",
            _ => return None,
        };
        // `0::PATH` of version 2, `N:memory,...:PATH` of version 1.
        let group = groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let is_it = match kind {
                "cgroup2" => controllers.is_empty(),
                _ => has_memory(controllers),
            };
            is_it.then_some(path)
        })?;
        // A container sees its own group as the root of the mount.
        let group = Path::new(group).strip_prefix(root).unwrap_or(Path::new(""));
        Some(Self {
            mounted_at: Path::new(mounted_at),
            group,
            file,
        })
    }

    fn least_limit(&self) -> Option<u64> {
        let limit_of = |group: &Path| {
            let file = self.mounted_at.join(group).join(self.file);
            let text = kernel::read_to_string(file).ok()?;
            text.trim().parse::<u64>().ok()
        };
        self.group.ancestors().filter_map(limit_of).min()
    }
}

/// Whether more memory was needed at any time than may be used, or the time is over.
///
/// # Errors
/// It was.
pub fn check() -> Result<(), LimitError> {
    if let Some(error) = EXCEEDED.get() {
        return Err(*error);
    }
    if let Some(error) = overtime(Duration::ZERO) {
        return Err(exceeded(error));
    }
    let limit = LIMIT.load(Ordering::Relaxed);
    match limit > 0 && used() > limit {
        true => Err(exceeded(LimitError::Memory(limit))),
        false => Ok(()),
    }
}

/// Notes that the limit was exceeded. The first such error is reported.
fn exceeded(error: LimitError) -> LimitError {
    *EXCEEDED.get_or_init(|| error)
}

/// Ends the program if more is used than [`most`]: whoever uses so much has not looked at the limit
/// for long.
fn watch(on_end: fn(LimitError)) {
    loop {
        std::thread::sleep(PERIOD);
        if let Some(error) = overtime(LATE) {
            on_end(exceeded(error));
            std::process::exit(1);
        }
        let limit = LIMIT.load(Ordering::Relaxed);
        let used = used();
        if limit == 0 || used <= limit {
            continue;
        }
        let error = exceeded(LimitError::Memory(limit));
        if used > most(limit) {
            on_end(error);
            std::process::exit(1);
        }
    }
}

/// The memory at which the program ends, bytes: a reader stops at the limit, and what is made of
/// what was read takes no more than this.
fn most(limit: u64) -> u64 {
    limit.saturating_add((limit / 4).max(SLACK))
}

/// Bytes of memory of this process that no file stands behind, also if swapped out.
fn used() -> u64 {
    let text = kernel::read_to_string("/proc/self/status").unwrap_or_default();
    let parts = ["RssAnon:", "RssShmem:", "VmSwap:"];
    let parts = parts.iter().filter_map(|key| kibibytes(&text, key));
    parts.sum()
}

/// The bytes in a line of procfs: `Key:  123 kB`.
fn kibibytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let number: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    number.checked_mul(1024)
}

/// Reads on until there is too much of it, or too much memory is used.
#[derive(Debug)]
pub struct Metered<R> {
    from: R,
    /// Bytes that were read.
    read: u64,
    /// At how many bytes the memory is looked at again.
    next: u64,
    /// What there is too much of, if the text is too long.
    most: Option<LimitError>,
}

impl<R> Metered<R> {
    /// A reader of text that is as large as its file.
    pub fn plain(from: R) -> Self {
        Self {
            from,
            read: 0,
            next: 0,
            most: None,
        }
    }

    /// A reader of text that comes out of a decompressor. `packed`: the size of the file, bytes;
    /// `None` for a pipe.
    pub fn decompressed(from: R, packed: Option<u64>) -> Self {
        let most = LIMIT.load(Ordering::Relaxed).saturating_mul(TEXT_FACTOR);
        let is_any_ratio = IS_ANY_RATIO.load(Ordering::Relaxed);
        let of_file = packed.filter(|_| !is_any_ratio);
        let of_file = of_file.map(|packed| packed.saturating_mul(RATIO).max(ANY_TEXT));
        Self {
            most: match of_file {
                Some(of_file) if most == 0 || of_file < most => Some(LimitError::Packed(of_file)),
                _ => (most > 0).then_some(LimitError::Text(most)),
            },
            ..Self::plain(from)
        }
    }

    /// A reader of a log of at most `most` bytes, or a few more.
    pub fn log(from: R, most: u64) -> Self {
        Self {
            most: Some(LimitError::Log(most)),
            ..Self::plain(from)
        }
    }

    /// The same, where so much was read before.
    pub fn after(self, read: u64) -> Self {
        Self { read, ..self }
    }

    fn check(&mut self) -> Result<(), LimitError> {
        if self.read < self.next {
            return Ok(());
        }
        self.next = self.read.saturating_add(STRIDE);
        check()?;
        match self.most {
            Some(
                error @ (LimitError::Text(most) | LimitError::Packed(most) | LimitError::Log(most)),
            ) if self.read > most => Err(exceeded(error)),
            _ => Ok(()),
        }
    }
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Err(error) = self.check() {
            // It stays so.
            self.next = self.read;
            return Err(io::Error::other(error));
        }
        let count = self.from.read(buffer)?;
        self.read = self.read.saturating_add(count as u64);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_some_of_the_machine() {
        let limit = default_limit();
        assert!(limit > 1 << 20 && limit <= MOST_BY_DEFAULT);
        assert!(used() > 1 << 16);
    }

    #[test]
    fn the_limit_is_passed_by_a_quarter_or_64_mib() {
        for (limit, wanted) in [(32, 96), (100, 164), (256, 320), (1024, 1280)] {
            assert_eq!(most(limit << 20), wanted << 20, "{limit}");
        }
        assert_eq!(most(u64::MAX), u64::MAX);
    }

    /// Memory that no file stands behind counts, pages of the program itself do not.
    #[test]
    fn only_memory_without_a_file_counts() {
        let held = vec![1u8; 64 << 20];
        assert!(used() >= 64 << 20);
        drop(std::hint::black_box(held));
        let status = kernel::read_to_string("/proc/self/status").unwrap();
        let all = kibibytes(&status, "VmRSS:").unwrap();
        let of_files = kibibytes(&status, "RssFile:").unwrap();
        // Other tests take memory meanwhile.
        assert!(of_files > 0 && used() < all - of_files + (32 << 20));
    }

    #[test]
    fn lines_of_procfs_are_understood() {
        let text = "VmHWM:\t  12 kB\nRssAnon:\t     345 kB\n";
        assert_eq!(kibibytes(text, "RssAnon:"), Some(345 << 10));
        assert_eq!(kibibytes(text, "VmSwap:"), None);
        assert_eq!(kibibytes("A: x kB", "A:"), None);
    }

    #[test]
    fn without_a_limit_all_is_read() {
        let mut text = Vec::new();
        let mut from = Metered::decompressed(io::repeat(b'x').take(5 << 20), Some(1));
        from.read_to_end(&mut text).unwrap();
        assert_eq!((text.len(), from.read), (5 << 20, 5 << 20));
        assert_eq!(check(), Ok(()));
    }

    #[test]
    fn the_least_limit_of_groups_of_both_versions_counts() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().display();
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("memory/a/memory.limit_in_bytes", "5000\n");
        put("memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
        put("memory/memory.limit_in_bytes", "7000\n");
        put("unified/memory.max", "max\n");
        put("unified/a/memory.max", "6000\n");
        let mounts = format!(
            "25 1 0:22 / {at}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
             26 1 0:23 / {at}/memory rw shared:9 - cgroup cgroup rw,memory\n\
             27 1 0:24 / {at}/unified rw - cgroup2 cgroup2 rw,nsdelegate\n\
             28 1 0:25 / {at} rw - tmpfs tmpfs rw\n"
        );
        let limit = |groups: &str| least_limit(groups, &mounts);
        assert_eq!(
            limit("9:memory:/a/b\n4:cpu,cpuacct:/a\n0::/a/c\n"),
            Some(5000)
        );
        assert_eq!(limit("9:memory:/c\n0::/a/c\n"), Some(6000));
        assert_eq!(limit("0::/\n"), None);
        // A container's groups: the mount begins at its own.
        let inside = mounts.replace("0:23 / ", "0:23 /docker/x ");
        assert_eq!(least_limit("9:memory:/docker/x\n", &inside), Some(7000));
        assert_eq!(least_limit("9:memory:/docker/x/a/b\n", &inside), Some(5000));
        assert_eq!(least_limit("9:memory:/elsewhere\n", &inside), Some(7000));
    }
}
