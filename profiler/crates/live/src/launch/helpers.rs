//! Libraries of ours that the command's runtimes load. A runtime that cannot load one may fail, so
//! the child tries them first, with the command's own rights and in its mount namespace. If one of
//! them cannot be used, it leaves out the variables that name them.

use super::{LaunchError, last_errno};
use std::ffi::{CStr, CString, OsString};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// Libraries, and the variables by which the command finds them.
#[derive(Clone, Debug, Default)]
pub struct Helpers {
    /// The libraries.
    pub files: Vec<PathBuf>,
    /// Variables beside the caller's, which win.
    pub added: Vec<(OsString, OsString)>,
    /// Variables that replace the caller's, and contain the caller's values.
    pub replaced: Vec<(OsString, OsString)>,
}

/// A library that the command cannot use: it runs without all of them.
#[derive(Debug)]
pub struct RefusedHelper {
    /// The library.
    pub path: PathBuf,
    /// The kernel's answer: EPERM where the file system is mounted noexec.
    pub source: io::Error,
}

/// The paths of the libraries, made before the fork because the child must not allocate.
pub(super) struct HelperPaths(Vec<CString>);

impl HelperPaths {
    pub(super) fn new(files: &[PathBuf]) -> Result<Self, LaunchError> {
        let paths = files.iter().map(|path| {
            let bytes = path.as_os_str().as_bytes();
            CString::new(bytes).map_err(|_| LaunchError::BadCommand(path.into()))
        });
        paths.collect::<Result<_, _>>().map(Self)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In the child: tries all of them, and reports the first that cannot be used.
    pub(super) fn are_usable(&self, report: &OwnedFd) -> bool {
        let tried = (0_u32..)
            .zip(&self.0)
            .map(|(at, path)| (at, try_to_load(path)));
        let refused = tried
            .filter_map(|(at, tried)| Some((at, tried.err()?)))
            .next();
        let (at, errno) = refused.unwrap_or((0, 0));
        let [a, b, c, d] = at.to_ne_bytes();
        let [e, f, g, h] = errno.to_ne_bytes();
        // If the parent has gone, the child ends as it waits.
        let _ = rustix::io::write(report, &[a, b, c, d, e, f, g, h]);
        refused.is_none()
    }
}

/// In the parent: what the child found. A child that has ended found nothing: why it
/// ended is in its other report.
pub(super) fn refused(report: &OwnedFd, files: &[PathBuf]) -> Option<RefusedHelper> {
    let mut bytes = [0; 8];
    let read = rustix::io::retry_on_intr(|| rustix::io::read(report, &mut bytes));
    let [a, b, c, d, e, f, g, h] = bytes;
    let errno = i32::from_ne_bytes([e, f, g, h]);
    if read != Ok(bytes.len()) || errno == 0 {
        return None;
    }
    let at = usize::try_from(u32::from_ne_bytes([a, b, c, d])).ok()?;
    Some(RefusedHelper {
        path: files.get(at)?.clone(),
        source: io::Error::from_raw_os_error(errno),
    })
}

/// Opens a library and maps its first page to be executed, as the dynamic linker does it.
/// Async-signal-safe.
fn try_to_load(path: &CStr) -> Result<(), i32> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the process has the command's rights, and those are asked for"
    )]
    let file = rustix::fs::open(
        path,
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    );
    let file = file.map_err(rustix::io::Errno::raw_os_error)?;
    // SAFETY: a mapping at a place of the kernel's choice, which nothing looks at.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            1,
            libc::PROT_READ | libc::PROT_EXEC,
            libc::MAP_PRIVATE,
            file.as_raw_fd(),
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return Err(last_errno());
    }
    // SAFETY: that mapping.
    unsafe { libc::munmap(page, 1) };
    Ok(())
}
