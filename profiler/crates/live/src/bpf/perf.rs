//! perf events: the sampling clock on every CPU, and the stream of process
//! events (fork, exec, mmap, exit).

use super::mapping::SharedMapping;
use crate::procfs;
use aiprof_model::wire::{FileKey, MapEvent, ProcessEvent, ProcessEventKind};
use aiprof_system::files::kernel;
use perf_event_open_sys::{self as sys, bindings as b};
use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    sync::atomic::{AtomicU64, Ordering, fence},
};

/// What drives the sampling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SamplingClock {
    /// The kernel's per-CPU high-resolution timer: exact time, needs no PMU.
    CpuClock {
        /// Nanoseconds between samples.
        period_ns: u64,
    },
    /// CPU cycles from the PMU.
    Cycles {
        /// Samples per second, which the kernel aims at.
        frequency_hz: u64,
    },
}

/// Opens an event of every process on one CPU.
fn open(attr: &mut b::perf_event_attr, cpu: u32) -> io::Result<OwnedFd> {
    open_for(attr, -1, i32::try_from(cpu).map_err(io::Error::other)?)
}

/// perf_event_open(2); -1: every process, or every CPU.
pub(super) fn open_for(attr: &mut b::perf_event_attr, pid: i32, cpu: i32) -> io::Result<OwnedFd> {
    attr.size = std::mem::size_of::<b::perf_event_attr>() as u32;
    // SAFETY: `attr` is initialised and contains its size. The caller keeps what it points
    // to, if anything. The result is checked.
    let fd = unsafe {
        sys::perf_event_open(attr, pid, cpu, -1, b::PERF_FLAG_FD_CLOEXEC as libc::c_ulong)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Opens the sampling event of one CPU and attaches the program to it; it is off until
/// it is switched on ([`switch_sampler`]), and there until the descriptor is closed.
pub(crate) fn open_sampler(
    clock: SamplingClock,
    cpu: u32,
    include_idle: bool,
    ring: BorrowedFd<'_>,
    program: BorrowedFd<'_>,
) -> io::Result<OwnedFd> {
    let mut attr = b::perf_event_attr::default();
    match clock {
        SamplingClock::CpuClock { period_ns } => {
            attr.type_ = b::PERF_TYPE_SOFTWARE;
            attr.config = u64::from(b::PERF_COUNT_SW_CPU_CLOCK);
            attr.__bindgen_anon_1.sample_period = period_ns;
        }
        SamplingClock::Cycles { frequency_hz } => {
            attr.type_ = b::PERF_TYPE_HARDWARE;
            attr.config = u64::from(b::PERF_COUNT_HW_CPU_CYCLES);
            attr.set_freq(1);
            attr.__bindgen_anon_1.sample_freq = frequency_hz;
        }
    }
    attr.set_disabled(1);
    attr.set_exclude_idle(u64::from(!include_idle));
    // As the rings have it, so that this event's own records (throttling; the
    // program keeps samples out) can go to the ring of its CPU.
    attr.sample_type = u64::from(b::PERF_SAMPLE_TID | b::PERF_SAMPLE_TIME);
    attr.clockid = libc::CLOCK_MONOTONIC;
    attr.set_sample_id_all(1);
    attr.set_use_clockid(1);
    let fd = open(&mut attr, cpu)?;
    // SAFETY: an ioctl on two open perf events.
    if unsafe { sys::ioctls::SET_OUTPUT(fd.as_raw_fd(), ring.as_raw_fd()) } < 0 {
        tracing::debug!(
            "throttling of sampling is not counted: {}",
            io::Error::last_os_error()
        );
    }
    // SAFETY: an ioctl on a perf event of ours; the program's descriptor is open.
    let rc = unsafe { sys::ioctls::SET_BPF(fd.as_raw_fd(), program.as_raw_fd() as _) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}

/// Switches a sampling event on or off; off it costs nothing. When this returns, its CPU
/// obeys.
pub(crate) fn switch_sampler(event: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    // SAFETY: ioctls on a perf event of ours, which take no argument.
    let rc = unsafe {
        match on {
            true => sys::ioctls::ENABLE(event.as_raw_fd(), 0),
            false => sys::ioctls::DISABLE(event.as_raw_fd(), 0),
        }
    };
    match rc {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has a sampling event of [`SamplingClock::CpuClock`] sample with another period from now on. The
/// timer begins anew: the time since the last sample is in none.
pub(crate) fn set_period(event: BorrowedFd<'_>, period_ns: u64) -> io::Result<()> {
    // The binding passes by value what the kernel reads through a pointer.
    let pointer = std::ptr::from_ref(&period_ns).addr() as u64;
    // SAFETY: an ioctl on a perf event of ours, which reads an integer that lives through it.
    match unsafe { sys::ioctls::PERIOD(event.as_raw_fd(), pointer) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The process events of one CPU, through a ring buffer.
pub(crate) struct ProcessRing {
    fd: OwnedFd,
    memory: SharedMapping,
    pages: usize,
}

const PAGE: usize = 4096;

impl ProcessRing {
    /// Opens the event on a CPU with a ring of `pages` (a power of two) pages.
    pub(crate) fn open(cpu: u32, pages: usize) -> io::Result<Self> {
        let mut attr = b::perf_event_attr {
            type_: b::PERF_TYPE_SOFTWARE,
            config: u64::from(b::PERF_COUNT_SW_DUMMY),
            sample_type: u64::from(b::PERF_SAMPLE_TID | b::PERF_SAMPLE_TIME),
            clockid: libc::CLOCK_MONOTONIC,
            ..Default::default()
        };
        attr.set_mmap(1);
        attr.set_mmap2(1);
        attr.set_comm(1);
        attr.set_comm_exec(1);
        attr.set_task(1);
        attr.set_sample_id_all(1);
        attr.set_use_clockid(1);
        attr.set_watermark(1);
        attr.__bindgen_anon_2.wakeup_watermark = 1;
        // Not `build_id`: it leaves PERF_RECORD_MISC_MMAP_BUILD_ID set in the records
        // that other events get of the same mapping (perf_event_mmap_event), and
        // `perf record` on the whole machine aborts on those.
        let fd = open(&mut attr, cpu)?;
        let memory = SharedMapping::new(fd.as_fd(), 0, (pages + 1) * PAGE, true)?;
        Ok(Self { fd, memory, pages })
    }

    /// The descriptor, to poll.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Bytes of the ring.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.size()
    }

    /// Reads all events there are, calling `sink` for each; returns how many
    /// records could not be decoded.
    pub(crate) fn drain(&mut self, mut sink: impl FnMut(ProcessEvent)) -> u64 {
        let size = self.pages * PAGE;
        let meta = self.memory.base().cast::<b::perf_event_mmap_page>();
        // SAFETY: the first page of the mapping is the control page; both
        // positions are aligned words that the kernel reads or writes whole.
        let (head, tail) = unsafe {
            (
                AtomicU64::from_ptr(&raw mut (*meta).data_head),
                AtomicU64::from_ptr(&raw mut (*meta).data_tail),
            )
        };
        let end = head.load(Ordering::Acquire);
        let mut at = tail.load(Ordering::Relaxed);
        let mut undecodable = 0;
        let mut record = Vec::with_capacity(512);
        while end.wrapping_sub(at) >= 8 {
            let header = self.copy(at, 8, size, &mut record);
            let len = header
                .get(6..8)
                .map_or(0, |b| u16::from_ne_bytes([b[0], b[1]]));
            if len < 8 || u64::from(len) > end.wrapping_sub(at) {
                undecodable += 1;
                at = end;
                break;
            }
            let data = self.copy(at, usize::from(len), size, &mut record);
            match parse_record(data) {
                Ok(Some(event)) => sink(event),
                Ok(None) => {}
                Err(()) => undecodable += 1,
            }
            at = at.wrapping_add(u64::from(len));
        }
        // All reads are done before the kernel may overwrite the space.
        fence(Ordering::SeqCst);
        tail.store(at, Ordering::Release);
        undecodable
    }

    /// Copies `len` bytes at a position of the data, which has `size`; nothing of a
    /// record that is longer than all of it.
    fn copy<'a>(&self, at: u64, len: usize, size: usize, to: &'a mut Vec<u8>) -> &'a [u8] {
        to.clear();
        if len > size || size.saturating_add(PAGE) > self.memory.size() {
            return to;
        }
        to.reserve(len);
        let start = (at % size.max(1) as u64) as usize;
        let first = len.min(size - start);
        // SAFETY: `start + first <= size`, and `len - first <= size` as `len` is: both are
        // within the data pages, which the mapping has by the check above. `to` has room
        // for `len` bytes, and its length is set after they are written. Copied as bytes,
        // not lent as a slice: the kernel owns the memory.
        unsafe {
            let data = self.memory.base().add(PAGE);
            std::ptr::copy_nonoverlapping(data.add(start), to.as_mut_ptr(), first);
            let rest = to.as_mut_ptr().add(first);
            std::ptr::copy_nonoverlapping(data, rest, len - first);
            to.set_len(len);
        }
        to
    }
}

fn u32_at(data: &[u8], at: usize) -> Result<u32, ()> {
    let bytes = data.get(at..at + 4).and_then(|b| b.try_into().ok());
    bytes.map(u32::from_ne_bytes).ok_or(())
}

fn u64_at(data: &[u8], at: usize) -> Result<u64, ()> {
    let bytes = data.get(at..at + 8).and_then(|b| b.try_into().ok());
    bytes.map(u64::from_ne_bytes).ok_or(())
}

/// A NUL-terminated string that starts at `at`.
fn text(data: &[u8], at: usize) -> Result<String, ()> {
    let tail = data.get(at..).ok_or(())?;
    let end = tail.iter().position(|&b| b == 0).ok_or(())?;
    Ok(String::from_utf8_lossy(&tail[..end]).into_owned())
}

/// Parses a record (include/uapi/linux/perf_event.h, `enum perf_event_type`).
/// `None`: a kind that does not matter here.
fn parse_record(data: &[u8]) -> Result<Option<ProcessEvent>, ()> {
    let kind = u32_at(data, 0)?;
    let misc = u32_at(data, 4)? & 0xffff;
    // sample_id: pid, tid, time, by the sample_type asked for.
    let id_at = data.len().checked_sub(16).filter(|&at| at >= 8).ok_or(())?;
    let time_ns = u64_at(data, id_at + 8)?;
    let body = &data[..id_at];
    let (pid, tid, kind) = match kind {
        b::PERF_RECORD_MMAP2 => {
            // Always in the layout without build ids, since aiprof asks for none. The
            // record's flag PERF_RECORD_MISC_MMAP_BUILD_ID may be set all the same: other
            // profilers' events leave it behind.
            let map = parse_mmap2(body)?;
            (
                u32_at(body, 8)?,
                u32_at(body, 12)?,
                ProcessEventKind::Map(map),
            )
        }
        b::PERF_RECORD_COMM => {
            let comm = text(body, 16)?;
            let exec = misc & b::PERF_RECORD_MISC_COMM_EXEC != 0;
            let kind = if exec {
                ProcessEventKind::Exec { comm }
            } else {
                ProcessEventKind::Comm { comm }
            };
            (u32_at(body, 8)?, u32_at(body, 12)?, kind)
        }
        b::PERF_RECORD_FORK => {
            // pid, ppid, tid, ptid, time
            let kind = ProcessEventKind::Fork {
                parent: u32_at(body, 12)?,
            };
            (u32_at(body, 8)?, u32_at(body, 16)?, kind)
        }
        b::PERF_RECORD_EXIT => (u32_at(body, 8)?, u32_at(body, 16)?, ProcessEventKind::Exit),
        b::PERF_RECORD_LOST => (
            0,
            0,
            ProcessEventKind::Lost {
                count: u64_at(body, 16)?,
            },
        ),
        b::PERF_RECORD_THROTTLE => (0, 0, ProcessEventKind::Throttled),
        _ => return Ok(None),
    };
    Ok(Some(ProcessEvent {
        time_ns,
        pid,
        tid,
        kind,
    }))
}

/// pid u32, tid u32, addr u64, len u64, pgoff u64, maj u32, min u32, ino u64,
/// generation u64, prot u32, flags u32, filename.
fn parse_mmap2(body: &[u8]) -> Result<MapEvent, ()> {
    let device = u64::from(u32_at(body, 40)?) << 32 | u64::from(u32_at(body, 44)?);
    Ok(MapEvent {
        start: u64_at(body, 16)?,
        len: u64_at(body, 24)?,
        file_offset: u64_at(body, 32)?,
        file: FileKey {
            path: procfs::shortened(text(body, 72)?),
            build_id: None,
            device,
            inode: u64_at(body, 48)?,
            // The generation, until the file itself is known.
            version: u64_at(body, 56)?,
        },
    })
}

/// This process's image of the vdso: the same for every 64-bit process.
pub(crate) fn vdso_image() -> io::Result<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let maps = kernel::read_to_string("/proc/self/maps")?;
    let line = maps
        .lines()
        .find(|l| l.ends_with("[vdso]"))
        .ok_or_else(|| io::Error::other("no vdso is mapped"))?;
    let range = line.split(' ').next().and_then(|r| r.split_once('-'));
    let (start, end) = range
        .and_then(|(s, e)| {
            Some((
                u64::from_str_radix(s, 16).ok()?,
                u64::from_str_radix(e, 16).ok()?,
            ))
        })
        .ok_or_else(|| io::Error::other("malformed /proc/self/maps"))?;
    let len = usize::try_from(end.saturating_sub(start)).map_err(io::Error::other)?;
    let mut image = vec![0; len.min(1 << 20)];
    kernel::open("/proc/self/mem")?.read_exact_at(&mut image, start)?;
    Ok(image)
}

/// An epoll instance: readable when any of its descriptors is.
pub(crate) struct Poller(OwnedFd);

impl Poller {
    /// An empty one.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no memory is passed; the result is checked.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nothing else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Another handle of the same instance.
    pub(crate) fn share(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Adds a descriptor, edge-triggered: each arrival wakes once.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: (libc::EPOLLIN | libc::EPOLLET) as u32,
            u64: 0,
        };
        // SAFETY: both descriptors are open, `event` is initialised.
        let rc = unsafe {
            libc::epoll_ctl(
                self.0.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                fd.as_raw_fd(),
                &raw mut event,
            )
        };
        if rc < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }
}

impl From<Poller> for OwnedFd {
    fn from(poller: Poller) -> Self {
        poller.0
    }
}

/// Takes note of what is readable in an epoll instance, so that it becomes
/// readable again only with the next arrival.
pub fn settle(epoll: &OwnedFd) {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
    // SAFETY: the buffer has the size given.
    while unsafe { libc::epoll_wait(epoll.as_raw_fd(), events.as_mut_ptr(), 64, 0) } == 64 {}
}

/// A file in memory with the given content, for interfaces that want a file.
pub(crate) fn memory_file(name: &std::ffi::CStr, content: &[u8]) -> io::Result<File> {
    use std::io::Write;
    // SAFETY: a valid name; the result is checked.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nothing else owns.
    let mut file = unsafe { File::from_raw_fd(fd) };
    file.write_all(content)?;
    Ok(file)
}

/// The path, relative to the mount `root`, of the control group with an id.
/// Needs CAP_DAC_READ_SEARCH (open_by_handle_at(2)).
pub(crate) fn cgroup_path(root: &std::path::Path, id: u64) -> Option<String> {
    /// `struct file_handle` with the 8-byte kernfs id (FILEID_KERNFS,
    /// include/linux/exportfs.h) as its content.
    #[repr(C)]
    struct Handle {
        bytes: u32,
        kind: i32,
        id: [u8; 8],
    }
    let mount = kernel::open(root).ok()?;
    let mut handle = Handle {
        bytes: 8,
        kind: 0xfe,
        id: id.to_ne_bytes(),
    };
    // SAFETY: a file handle that contains its size; the result is checked.
    let fd = unsafe {
        libc::open_by_handle_at(
            mount.as_raw_fd(),
            (&raw mut handle).cast(),
            libc::O_PATH | libc::O_CLOEXEC,
        )
    };
    if fd < 0 {
        return None;
    }
    // SAFETY: a new descriptor that nothing else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let path = kernel::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    let relative = path.strip_prefix(root).ok()?;
    Some(format!("/{}", relative.display()))
}

/// CLOCK_MONOTONIC in nanoseconds: the clock of all events.
pub(crate) fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a timespec; the clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Raises the soft limit of open files to the hard one: one file stays open for
/// each binary that is mapped somewhere.
pub(crate) fn allow_many_files() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is an rlimit. A refusal is fine.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// Most files that this process may have open.
pub(crate) fn file_limit() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .current
        .unwrap_or(1 << 20)
}

/// Has a process that outlives this one close descriptors. They must be the last
/// owners of what they stand for: the copies here are closed at once.
///
/// # Errors
/// No process could be made; then they are closed here.
pub(crate) fn close_elsewhere(descriptors: Vec<OwnedFd>) -> io::Result<()> {
    // The other process waits for this one to have closed its copies: the last
    // copy is the slow one.
    let (go, closed) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let number = |fd: &OwnedFd| fd.as_raw_fd().unsigned_abs();
    let mut keep: Vec<libc::c_uint> = descriptors.iter().chain([&go]).map(number).collect();
    keep.sort_unstable();
    // SAFETY: the child makes async-signal-safe calls only, on memory that was
    // prepared before, and never returns from `close_all`.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => close_all(&keep, go.as_raw_fd()),
        child => {
            // It ends at once, having left a child of its own.
            // SAFETY: a child of this process that nothing else waits for.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            drop(descriptors);
            drop(closed);
            Ok(())
        }
    }
}

/// Leaves the session and the terminal behind, and closes everything, the
/// descriptors given last, after the end of the pipe `go`: closing those takes its
/// time.
fn close_all(keep: &[libc::c_uint], go: libc::c_int) -> ! {
    // SAFETY: async-signal-safe system calls, the only pointer is to a byte that
    // lives; errors leave more open until the end of the process, which closes it
    // too.
    unsafe {
        libc::setsid();
        if libc::fork() != 0 {
            libc::_exit(0);
        }
        let mut next: libc::c_uint = 0;
        for &fd in keep {
            if next < fd {
                libc::syscall(libc::SYS_close_range, next, fd - 1, 0);
            }
            next = fd + 1;
        }
        libc::syscall(libc::SYS_close_range, next, libc::c_uint::MAX, 0);
        let mut byte = 0_u8;
        libc::read(go, (&raw mut byte).cast(), 1);
        // Closed by the end of the process.
        libc::_exit(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let mut data = kind.to_ne_bytes().to_vec();
        data.extend(misc.to_ne_bytes());
        data.extend(((8 + body.len() + 16) as u16).to_ne_bytes());
        data.extend(body);
        data.extend(5u32.to_ne_bytes());
        data.extend(6u32.to_ne_bytes());
        data.extend(99u64.to_ne_bytes());
        data
    }

    fn words(values: &[u32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_ne_bytes()).collect()
    }

    #[test]
    fn parses_fork_exit_comm_and_exec() {
        // By the parent's thread 8.
        let fork = record(b::PERF_RECORD_FORK, 0, &words(&[10, 9, 10, 8, 0, 0]));
        let event = parse_record(&fork).unwrap().unwrap();
        assert_eq!((event.pid, event.tid, event.time_ns), (10, 10, 99));
        assert_eq!(event.kind, ProcessEventKind::Fork { parent: 9 });

        let exit = record(b::PERF_RECORD_EXIT, 0, &words(&[10, 9, 11, 9, 0, 0]));
        let event = parse_record(&exit).unwrap().unwrap();
        assert_eq!(
            (event.pid, event.tid, event.kind),
            (10, 11, ProcessEventKind::Exit)
        );

        let mut body = words(&[7, 8]);
        body.extend(b"name\0\0\0\0");
        let comm = parse_record(&record(b::PERF_RECORD_COMM, 0, &body))
            .unwrap()
            .unwrap();
        assert_eq!(
            comm.kind,
            ProcessEventKind::Comm {
                comm: "name".into()
            }
        );
        let exec = b::PERF_RECORD_MISC_COMM_EXEC as u16;
        let exec = parse_record(&record(b::PERF_RECORD_COMM, exec, &body))
            .unwrap()
            .unwrap();
        assert_eq!(
            exec.kind,
            ProcessEventKind::Exec {
                comm: "name".into()
            }
        );
    }

    #[test]
    fn parses_mmap2_also_beside_profilers_that_ask_for_build_ids() {
        let mut body = words(&[
            7, 8, 0x1000, 0, 0x2000, 0, 0x3000, 0, 8, 1, 42, 0, 77, 0, 5, 2,
        ]);
        body.extend(b"/lib/x.so\0\0\0\0\0\0\0");
        for misc in [0, b::PERF_RECORD_MISC_MMAP_BUILD_ID as u16] {
            let event = parse_record(&record(b::PERF_RECORD_MMAP2, misc, &body))
                .unwrap()
                .unwrap();
            let ProcessEventKind::Map(map) = event.kind else {
                panic!("no map")
            };
            assert_eq!(
                (map.start, map.len, map.file_offset),
                (0x1000, 0x2000, 0x3000)
            );
            assert_eq!((map.file.path.as_str(), map.file.inode), ("/lib/x.so", 42));
            assert_eq!((map.file.device, map.file.version), (8 << 32 | 1, 77));
        }
    }

    #[test]
    fn descriptors_are_closed_by_another_process() {
        use std::io::Read;
        let (read, write) = rustix::pipe::pipe().unwrap();
        let (_, other) = rustix::pipe::pipe().unwrap();
        close_elsewhere(vec![write, other]).unwrap();
        // Ends only when the last copy of the other end is closed.
        let mut rest = Vec::new();
        File::from(read).read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty());
        assert!(File::open("/dev/null").is_ok());
    }

    #[test]
    fn truncated_records_are_refused() {
        let full = record(b::PERF_RECORD_FORK, 0, &words(&[10, 9, 10, 9, 0, 0]));
        for len in 0..24 {
            assert!(parse_record(&full[..len]).is_err(), "{len} bytes");
        }
    }
}
