//! Attaching programs to functions of user programs, to the kernel's
//! tracepoints and to its functions.
//!
//! Every link is a descriptor: the probe is gone when the last copy of it is
//! closed, also when aiprof is killed. A program is given by its descriptor
//! (`Bpf::programs`), so that links can be made on any thread.

mod cost;

pub(crate) use cost::probe_cost;

use super::perf;
use aiprof_system::files::kernel;
use libbpf_rs::libbpf_sys as sys;
use perf_event_open_sys::bindings as b;
use std::{
    ffi::{CString, c_ulong},
    fmt, io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    sync::OnceLock,
};

/// An attached program; detached when dropped.
#[derive(Debug)]
pub struct BpfLink(OwnedFd);

impl BpfLink {
    /// The descriptor, for whoever is to close it: each link of
    /// [`attach_uprobe_perf`] takes the kernel tens of milliseconds to close.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.0
    }
}

impl AsFd for BpfLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Where in a file to probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// Offset of the instruction in the file, in bytes.
    pub offset: u64,
    /// What `bpf_get_attach_cookie` gives the program there.
    pub cookie: u64,
}

/// The file to probe, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbeTarget<'a> {
    /// The program or library; `/proc/self/fd/N` works too.
    pub path: &'a Path,
    /// Probe the return of the function that begins at the point, in place of
    /// the instruction. Dangerous where the function may be left by an exception.
    pub ret: bool,
    /// Only this process; else every process that has the file mapped, now or
    /// later.
    pub pid: Option<u32>,
}

/// A point that the kernel does not probe.
#[derive(Debug)]
pub(crate) struct RefusedPoint {
    /// The point.
    pub point: Point,
    /// The kernel's reason.
    pub error: io::Error,
}

impl fmt::Display for RefusedPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "offset {:#x}: ", self.point.offset)?;
        match self.error.raw_os_error() {
            Some(ENOTSUPP) => f.write_str("this instruction cannot be probed"),
            _ => self.error.fmt(f),
        }
    }
}

/// What came of attaching to many points.
#[derive(Debug, Default)]
pub(crate) struct Attached {
    /// The links; one, if no point was refused.
    pub links: Vec<BpfLink>,
    /// The points that could not be probed.
    pub refused: Vec<RefusedPoint>,
}

/// The kernel's own error for an instruction that it cannot single-step
/// (include/linux/errno.h); C libraries do not name it.
const ENOTSUPP: i32 = 524;

/// Whether the kernel has links to many functions at once (`uprobe.multi`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UprobeMulti {
    /// It has not; Linux before 6.6.
    Absent,
    /// It has, but takes a process id for that of a thread; Linux before 6.10.
    WithoutPid,
    /// It has.
    Complete,
}

impl UprobeMulti {
    /// Whether there are such links at all.
    pub(crate) fn exists(self) -> bool {
        self != Self::Absent
    }
}

/// Tries what this kernel has; asked once.
pub(crate) fn uprobe_multi() -> UprobeMulti {
    static KNOWN: OnceLock<UprobeMulti> = OnceLock::new();
    *KNOWN.get_or_init(try_uprobe_multi)
}

/// Tries to probe a folder, which never succeeds. A kernel that has the link type refuses
/// it with EBADF, or with EINVAL if it looks at the process id first and that is a bad one.
fn try_uprobe_multi() -> UprobeMulti {
    let Ok(program) = empty_program(sys::BPF_PROG_TYPE_KPROBE, sys::BPF_TRACE_UPROBE_MULTI) else {
        return UprobeMulti::Absent;
    };
    let refusal = |pid| {
        let multi = Multi::new(c"/".to_owned(), &[Point::default()], false, pid);
        let result = multi.link(program.as_fd());
        result.err().and_then(|error| error.raw_os_error())
    };
    match (refusal(0), refusal(u32::MAX)) {
        (Some(libc::EBADF), Some(libc::EINVAL)) => UprobeMulti::Complete,
        (Some(libc::EBADF), _) => UprobeMulti::WithoutPid,
        _ => UprobeMulti::Absent,
    }
}

/// Loads a program that does nothing.
fn empty_program(
    kind: sys::bpf_prog_type,
    attach_type: sys::bpf_attach_type,
) -> io::Result<OwnedFd> {
    // r0 = 0; exit (Documentation/bpf/standardization/instruction-set.rst).
    let instructions = [0xb7, 0x95].map(|code| sys::bpf_insn {
        code,
        ..Default::default()
    });
    let mut options = sys::bpf_prog_load_opts {
        sz: size_of::<sys::bpf_prog_load_opts>() as sys::size_t,
        expected_attach_type: attach_type,
        ..Default::default()
    };
    // SAFETY: everything pointed to outlives the call.
    let fd = unsafe {
        sys::bpf_prog_load(
            kind,
            std::ptr::null(),
            c"Dual MIT/GPL".as_ptr(),
            instructions.as_ptr(),
            instructions.len() as sys::size_t,
            &raw mut options,
        )
    };
    owned(fd)
}

/// Attaches a program to many points of a file, by one link if the kernel takes all of
/// them. If it does not, by several links to those it does take, for the kernel does not
/// show which point it refuses. The program must have been loaded on a kernel with
/// [`uprobe_multi`].
///
/// # Errors
/// What is wrong with the file or the program, or in general: then nothing is
/// attached. `Unsupported`: a process is given, and the kernel would take it for
/// a thread.
pub(crate) fn attach_uprobe_multi(
    program: BorrowedFd<'_>,
    target: &ProbeTarget<'_>,
    points: &[Point],
) -> io::Result<Attached> {
    if target.pid.is_some() && uprobe_multi() != UprobeMulti::Complete {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let path = c_path(target.path)?;
    let mut attached = Attached::default();
    let mut todo = vec![points];
    while let Some(part) = todo.pop() {
        let multi = Multi::new(path.clone(), part, target.ret, target.pid.unwrap_or(0));
        match (multi.link(program), part) {
            (_, []) => {}
            (Ok(link), _) => attached.links.push(link),
            (Err(error), _) if !is_about_a_point(&error) => return Err(error),
            (Err(error), &[point]) => attached.refused.push(RefusedPoint { point, error }),
            (Err(_), _) => {
                let (first, second) = part.split_at(part.len() / 2);
                todo.extend([second, first]);
            }
        }
    }
    Ok(attached)
}

/// Whether, judged by the error, the kernel has refused one of the points and not the whole link.
fn is_about_a_point(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(ENOTSUPP | libc::EOPNOTSUPP | libc::ENOEXEC | libc::EINVAL | libc::EIO)
    )
}

/// The arguments of a link to many functions, as the system call wants them.
struct Multi {
    path: CString,
    offsets: Vec<c_ulong>,
    cookies: Vec<u64>,
    flags: u32,
    pid: u32,
}

impl Multi {
    /// `pid` 0: all processes.
    fn new(path: CString, points: &[Point], ret: bool, pid: u32) -> Self {
        Self {
            path,
            offsets: points.iter().map(|p| p.offset as c_ulong).collect(),
            cookies: points.iter().map(|p| p.cookie).collect(),
            flags: if ret {
                sys::BPF_F_UPROBE_MULTI_RETURN
            } else {
                0
            },
            pid,
        }
    }

    fn link(&self, program: BorrowedFd<'_>) -> io::Result<BpfLink> {
        let mut options = link_options();
        options.__bindgen_anon_1.uprobe_multi =
            sys::bpf_link_create_opts__bindgen_ty_1__bindgen_ty_3 {
                flags: self.flags,
                cnt: u32::try_from(self.offsets.len()).map_err(io::Error::other)?,
                path: self.path.as_ptr(),
                offsets: self.offsets.as_ptr(),
                cookies: self.cookies.as_ptr(),
                pid: self.pid,
                ..Default::default()
            };
        link_create(program, None, sys::BPF_TRACE_UPROBE_MULTI, &options)
    }
}

/// Attaches a program to one point of a file, for kernels without
/// [`uprobe_multi`], where the program must have been loaded.
///
/// # Errors
/// What is wrong with the file, the point or the program.
pub(crate) fn attach_uprobe_perf(
    program: BorrowedFd<'_>,
    target: &ProbeTarget<'_>,
    point: Point,
) -> io::Result<BpfLink> {
    let path = c_path(target.path)?;
    let mut attr = b::perf_event_attr {
        type_: pmu("uprobe", "type")?,
        config: if target.ret { return_bit("uprobe")? } else { 0 },
        ..Default::default()
    };
    attr.__bindgen_anon_3.uprobe_path = path.as_ptr() as u64;
    attr.__bindgen_anon_4.probe_offset = point.offset;
    let (pid, cpu) = match target.pid {
        Some(pid) => (i32::try_from(pid).map_err(io::Error::other)?, -1),
        // The probe is in the file, so one CPU's event stands for all of them.
        None => (-1, 0),
    };
    let event = perf::open_for(&mut attr, pid, cpu)?;
    link_perf(program, &event, point.cookie)
}

/// Attaches a program to a tracepoint, such as `syscalls`, `sys_enter_ioctl`.
///
/// # Errors
/// `NotFound`: this kernel has no such tracepoint, or tracefs is not mounted.
pub(crate) fn attach_tracepoint(
    program: BorrowedFd<'_>,
    category: &str,
    name: &str,
    cookie: u64,
) -> io::Result<BpfLink> {
    let mut attr = b::perf_event_attr {
        type_: b::PERF_TYPE_TRACEPOINT,
        config: tracepoint_id(category, name)?,
        ..Default::default()
    };
    let event = perf::open_for(&mut attr, -1, 0)?;
    link_perf(program, &event, cookie)
}

/// The number of a tracepoint (Documentation/trace/events.rst).
fn tracepoint_id(category: &str, name: &str) -> io::Result<u64> {
    let plain = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'-')
    };
    if !plain(category) || !plain(name) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let file = format!("events/{category}/{name}/id");
    let read = |root: &str| kernel::read_to_string(Path::new(root).join(&file));
    let text = read("/sys/kernel/tracing").or_else(|_| read("/sys/kernel/debug/tracing"))?;
    text.trim().parse().map_err(io::Error::other)
}

/// Attaches a raw tracepoint program to a tracepoint by its name alone, such as
/// `sched_switch`.
///
/// # Errors
/// `NotFound`: this kernel has no such tracepoint.
pub(crate) fn attach_raw_tracepoint(program: BorrowedFd<'_>, name: &str) -> io::Result<BpfLink> {
    let name = CString::new(name)?;
    // SAFETY: the program is open and the name a C string.
    let fd = unsafe { sys::bpf_raw_tracepoint_open(name.as_ptr(), program.as_raw_fd()) };
    owned(fd).map(BpfLink)
}

/// Attaches a program to the tracepoint that it was loaded for (`tp_btf`).
///
/// # Errors
/// The kernel's answer.
pub(crate) fn attach_tracing(program: BorrowedFd<'_>) -> io::Result<BpfLink> {
    // SAFETY: the program is open; its tracepoint was named when it was loaded.
    let fd = unsafe { sys::bpf_raw_tracepoint_open(std::ptr::null(), program.as_raw_fd()) };
    owned(fd).map(BpfLink)
}

/// Attaches a program to a function of the kernel, at its beginning or, with
/// `ret`, at its return.
///
/// # Errors
/// `NotFound`: this kernel has no such function, or no such probes at all.
pub(crate) fn attach_kprobe(
    program: BorrowedFd<'_>,
    function: &str,
    ret: bool,
    cookie: u64,
) -> io::Result<BpfLink> {
    let function = CString::new(function)?;
    let mut attr = b::perf_event_attr {
        type_: pmu("kprobe", "type")?,
        config: if ret { return_bit("kprobe")? } else { 0 },
        ..Default::default()
    };
    attr.__bindgen_anon_3.kprobe_func = function.as_ptr() as u64;
    let event = perf::open_for(&mut attr, -1, 0)?;
    link_perf(program, &event, cookie)
}

/// The number in a file of a kind of perf events.
fn pmu(kind: &str, file: &str) -> io::Result<u32> {
    let path = format!("/sys/bus/event_source/devices/{kind}/{file}");
    let text = kernel::read_to_string(path)?;
    text.trim().parse().map_err(io::Error::other)
}

/// The bit that makes a probe one of the return, from a text like `config:0`.
fn return_bit(kind: &str) -> io::Result<u64> {
    let path = format!("/sys/bus/event_source/devices/{kind}/format/retprobe");
    let text = kernel::read_to_string(path)?;
    parse_bit(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn parse_bit(text: &str) -> Option<u64> {
    let bit: u32 = text.trim().strip_prefix("config:")?.parse().ok()?;
    1u64.checked_shl(bit)
}

/// Attaches a program to a perf event, which the link keeps.
fn link_perf(program: BorrowedFd<'_>, event: &OwnedFd, cookie: u64) -> io::Result<BpfLink> {
    let mut options = link_options();
    options.__bindgen_anon_1.perf_event =
        sys::bpf_link_create_opts__bindgen_ty_1__bindgen_ty_1 { bpf_cookie: cookie };
    link_create(program, Some(event.as_fd()), sys::BPF_PERF_EVENT, &options)
}

fn link_options() -> sys::bpf_link_create_opts {
    sys::bpf_link_create_opts {
        sz: size_of::<sys::bpf_link_create_opts>() as sys::size_t,
        ..Default::default()
    }
}

fn link_create(
    program: BorrowedFd<'_>,
    target: Option<BorrowedFd<'_>>,
    kind: sys::bpf_attach_type,
    options: &sys::bpf_link_create_opts,
) -> io::Result<BpfLink> {
    let target = target.map_or(0, |fd| fd.as_raw_fd());
    // SAFETY: open descriptors, and options with their size whose pointers the
    // callers keep valid.
    let fd = unsafe { sys::bpf_link_create(program.as_raw_fd(), target, kind, options) };
    owned(fd).map(BpfLink)
}

/// A new descriptor, or the negative error number that libbpf gives instead.
fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(fd.saturating_neg()));
    }
    // SAFETY: new, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

#[cfg(test)]
mod tests;
