//! The profiled command: forked early, held until recording runs, then executed
//! with the caller's own credentials.
//!
//! The fork comes before the runtime, its threads and any eBPF object exist, so the command
//! inherits none of them. The child is held, so that not one of the command's instructions is
//! missed.
//!
//! Three pipes connect parent and child. The child reads the first: a byte means *go*, and end of
//! file means that the profiler is gone, so the child exits too. The second is close-on-exec: the
//! child writes `errno` to it if execvp(3) fails, and otherwise the exec itself closes it. The
//! third reports libraries that the child cannot use (`helpers`).

mod helpers;

pub use helpers::{Helpers, RefusedHelper};

use super::readable;
use super::signals::OriginalMask;
use helpers::HelperPaths;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::ffi::{CStr, CString, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use tokio::io::unix::AsyncFd;

/// Why the command did not run.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The command line is empty or holds a NUL byte.
    #[error("the command {0:?} cannot be executed: it is empty or holds a NUL byte")]
    BadCommand(OsString),
    /// No such program.
    #[error("{0}: command not found")]
    NotFound(String),
    /// The program exists but could not be executed.
    #[error("{program}: cannot execute")]
    NotExecutable {
        /// The program, as given.
        program: String,
        /// The kernel's answer to execve(2).
        source: io::Error,
    },
    /// The user that should run it is not usable.
    #[error("cannot run the command as user {uid}")]
    Credentials {
        /// The user id.
        uid: u32,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A system call that launching needs failed.
    #[error("cannot start the command: {action}")]
    System {
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl LaunchError {
    /// The exit code a shell would give: 127 not found, 126 not executable.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NotFound(_) => 127,
            Self::NotExecutable { .. } | Self::BadCommand(_) => 126,
            Self::Credentials { .. } | Self::System { .. } => 1,
        }
    }
}

/// A user to run the command as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// `HOME`, `USER` and `LOGNAME`, where the user database has them.
    variables: Vec<(OsString, OsString)>,
}

impl Credentials {
    /// The user `uid` with primary group `gid` and the groups that the user
    /// database lists; a user that it does not know has `gid` alone.
    pub fn of_user(uid: u32, gid: u32) -> Self {
        let Some((name, home)) = name_and_home(uid) else {
            return Self {
                uid,
                gid,
                groups: vec![gid],
                variables: Vec::new(),
            };
        };
        let groups = groups_of(&name, gid);
        let variables = [("HOME", home), ("USER", name.clone()), ("LOGNAME", name)];
        let variables = variables.map(|(variable, value)| {
            let value = OsString::from_vec(value.into_bytes());
            (variable.into(), value)
        });
        Self {
            uid,
            gid,
            groups,
            variables: variables.into(),
        }
    }
}

/// A user's name and home directory, by the user database.
fn name_and_home(uid: u32) -> Option<(CString, CString)> {
    // Longer entries than this are refused by getpwuid_r: then the user is not known.
    let mut buffer = vec![0; 64 * 1024];
    let mut entry = std::mem::MaybeUninit::<libc::passwd>::uninit();
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers are valid for the call and the length is the buffer's.
    let status = unsafe {
        libc::getpwuid_r(
            uid,
            entry.as_mut_ptr(),
            buffer.as_mut_ptr(),
            buffer.len(),
            &raw mut found,
        )
    };
    if status != 0 || found.is_null() {
        return None;
    }
    // SAFETY: a non-null result means that the entry was filled in, with pw_name and pw_dir
    // pointing to strings in the buffer, which is still alive.
    let strings = unsafe { [(*found).pw_name, (*found).pw_dir].map(|text| CStr::from_ptr(text)) };
    let [name, home] = strings.map(CStr::to_owned);
    Some((name, home))
}

fn groups_of(name: &CStr, gid: u32) -> Vec<u32> {
    let mut groups = vec![0; 65_536]; // NGROUPS_MAX
    let mut n = i32::try_from(groups.len()).unwrap_or(i32::MAX);
    // SAFETY: `n` is the capacity of `groups`, which outlives the call.
    let status = unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &raw mut n) };
    groups.truncate(usize::try_from(n).unwrap_or(0));
    if status < 0 { vec![gid] } else { groups }
}

/// How to launch the command.
#[derive(Clone, Debug, Default)]
pub struct LaunchOptions {
    /// Run it as this user; `None`: as the caller.
    pub as_user: Option<Credentials>,
    /// Send its stdout to this process's stderr, because this process's stdout
    /// carries the profile.
    pub stdout_to_stderr: bool,
    /// The signal mask it starts with; `None`: the current one.
    pub mask: Option<OriginalMask>,
    /// Variables for its environment beside the caller's, which win.
    pub environment: Vec<(OsString, OsString)>,
    /// Libraries that it loads, with their variables. They are left out if it cannot
    /// load one of them.
    pub helpers: Helpers,
}

/// A command that is forked but not yet executing. Dropping it ends the child.
#[derive(Debug)]
pub struct Held {
    pid: u32,
    /// Taken by [`Held::release`].
    child: Option<(Child, OwnedFd)>,
    go: OwnedFd,
    refused: Option<RefusedHelper>,
}

/// A command that was released. Dropping it lets it run on.
#[derive(Debug)]
pub struct Running {
    pid: u32,
    child: Child,
    pidfd: AsyncFd<OwnedFd>,
}

#[derive(Debug)]
struct Child {
    exec_error: OwnedFd,
    program: OsString,
    /// The user it changes to, for messages.
    uid: u32,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some((_, pidfd)) = &self.child {
            // Both fail only if the child is gone already, which is the aim.
            let _ = rustix::process::pidfd_send_signal(pidfd, Signal::KILL);
            let _ = rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
        }
    }
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this status.
    Code(i32),
    /// It was killed by this signal.
    Signal(i32),
}

impl Exit {
    /// The exit code a shell would give: the status, or 128 + signal.
    pub fn code(self) -> u8 {
        match self {
            Self::Code(status) => u8::try_from(status & 0xff).unwrap_or(1),
            Self::Signal(signal) => u8::try_from(128 + (signal & 0x7f)).unwrap_or(255),
        }
    }
}

impl Held {
    /// Forks the command and holds it. Call this while the process has a single
    /// thread: between fork and exec the child runs in a copy of its memory.
    ///
    /// # Errors
    /// [`LaunchError::BadCommand`] or a failed system call; that the program
    /// cannot be executed shows only in [`Running::wait`].
    pub fn fork(command: &[OsString], options: &LaunchOptions) -> Result<Self, LaunchError> {
        let start = Start::new(command, options)?;
        let (gate, go) = pipe(PipeFlags::CLOEXEC)?;
        // Non-blocking: the parent never waits for a report, it is there or it is not.
        let (exec_error, report) = pipe(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let (tried, trial) = pipe(PipeFlags::CLOEXEC)?;
        // SAFETY: the child only makes async-signal-safe calls (see child_main)
        // and never returns from it.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            drop(go);
            child_main(&start, options, &gate, [&report, &trial]);
        }
        drop(trial);
        let pid = Pid::from_raw(pid.max(0)).ok_or_else(|| LaunchError::System {
            action: "fork",
            source: io::Error::last_os_error(),
        })?;
        // If this fails, `go` is closed and the child ends itself.
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())
            .map_err(|e| system("pidfd_open")(e.into()))?;
        let child = Child {
            exec_error,
            program: command.first().cloned().unwrap_or_default(),
            uid: options.as_user.as_ref().map_or(0, |user| user.uid),
        };
        Ok(Self {
            pid: pid.as_raw_nonzero().get().unsigned_abs(),
            child: Some((child, pidfd)),
            go,
            refused: match start.helpers.is_empty() {
                true => None,
                false => helpers::refused(&tried, &options.helpers.files),
            },
        })
    }

    /// The library that the command cannot load, for which it runs without any of
    /// [`LaunchOptions::helpers`].
    pub fn refused(&self) -> Option<&RefusedHelper> {
        self.refused.as_ref()
    }

    /// Process id of the command.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Lets the command execute. Needs a tokio runtime with I/O enabled.
    ///
    /// # Errors
    /// The pipe or the runtime's reactor failed; the child is gone then.
    pub fn release(mut self) -> Result<Running, LaunchError> {
        let Some((child, pidfd)) = self.child.take() else {
            // It is there until here, and this consumes it.
            return Err(system("release")(io::ErrorKind::NotFound.into()));
        };
        let pidfd = readable::watch(pidfd).map_err(system("watch the process"))?;
        match rustix::io::write(&self.go, b"g") {
            // A held child can be killed: how it ended shows in wait().
            Ok(_) | Err(rustix::io::Errno::PIPE) => {}
            Err(e) => return Err(system("release")(e.into())),
        }
        Ok(Running {
            pid: self.pid,
            child,
            pidfd,
        })
    }
}

fn system(action: &'static str) -> impl Fn(io::Error) -> LaunchError {
    move |source| LaunchError::System { action, source }
}

fn pipe(flags: PipeFlags) -> Result<(OwnedFd, OwnedFd), LaunchError> {
    rustix::pipe::pipe_with(flags).map_err(|e| system("pipe")(e.into()))
}

impl Running {
    /// Process id of the command.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends it a signal; nothing happens if it has ended.
    pub fn signal(&self, number: i32) {
        if let Some(signal) = Signal::from_named_raw(number) {
            // ESRCH: it has ended. EPERM: it changed its user; its own matter.
            let _ = rustix::process::pidfd_send_signal(self.pidfd.get_ref(), signal);
        }
    }

    /// Waits until the command itself has ended (not its descendants). Resolves
    /// at once when called again. Cancel-safe.
    ///
    /// # Errors
    /// [`LaunchError::NotFound`] and [`LaunchError::NotExecutable`] if it was
    /// never executed, or a failed system call.
    pub async fn wait(&self) -> Result<Exit, LaunchError> {
        // A pidfd turns readable when the process has ended, and stays so.
        drop(self.pidfd.readable().await.map_err(system("wait"))?);
        self.child.exec_failure()?;
        self.exit()
    }

    /// How it ended, once it has.
    fn exit(&self) -> Result<Exit, LaunchError> {
        // NOWAIT leaves the zombie, so that another call gets the same answer; it
        // goes with this process.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), options)
            .map_err(|e| system("wait")(e.into()))?;
        let code = status.as_ref().and_then(|s| s.exit_status());
        let signal = status.as_ref().and_then(|s| s.terminating_signal());
        Ok(match (code, signal) {
            (Some(code), _) => Exit::Code(code),
            (None, Some(signal)) => Exit::Signal(signal),
            // EXITED reports nothing else.
            (None, None) => Exit::Code(1),
        })
    }
}

impl Child {
    /// What the child reported before it ended without executing the command.
    fn exec_failure(&self) -> Result<(), LaunchError> {
        let mut report = [0; REPORT_BYTES];
        if rustix::io::read(&self.exec_error, &mut report) != Ok(REPORT_BYTES) {
            return Ok(()); // end of file: the exec closed the pipe
        }
        let [stage, errno @ ..] = report;
        let source = io::Error::from_raw_os_error(i32::from_ne_bytes(errno));
        let program = self.program.to_string_lossy().into_owned();
        Err(match (stage, source.raw_os_error()) {
            (STAGE_USER, _) => LaunchError::Credentials {
                uid: self.uid,
                source,
            },
            (_, Some(libc::ENOENT | libc::ENOTDIR)) => LaunchError::NotFound(program),
            _ => LaunchError::NotExecutable { program, source },
        })
    }
}

/// A report is the stage that failed and its `errno`.
const REPORT_BYTES: usize = 5;
const STAGE_USER: u8 = 1;
const STAGE_EXEC: u8 = 2;

/// What the child needs to execute the command, made before the fork because the child
/// must not allocate.
struct Start {
    argv: Strings,
    /// Without the helpers; `None`: the caller's.
    environment: Option<Strings>,
    helpers: HelperPaths,
    /// With the helpers.
    helped: Option<Strings>,
}

impl Start {
    fn new(command: &[OsString], options: &LaunchOptions) -> Result<Self, LaunchError> {
        let helpers = &options.helpers;
        let added = [&options.environment[..], &helpers.added].concat();
        let user = options.as_user.as_ref();
        let of_user = user.map_or(&[][..], |user| &user.variables);
        let replaced = [of_user, &helpers.replaced].concat();
        Ok(Self {
            argv: Strings::command(command)?,
            environment: Strings::environment(&options.environment, of_user)?,
            helpers: HelperPaths::new(&helpers.files)?,
            helped: Strings::environment(&added, &replaced)?,
        })
    }
}

/// Strings as execvp(3) takes them.
struct Strings {
    pointers: Vec<*const libc::c_char>,
    /// What the pointers point to.
    _strings: Vec<CString>,
}

impl Strings {
    fn command(command: &[OsString]) -> Result<Self, LaunchError> {
        if command.is_empty() {
            return Err(LaunchError::BadCommand(OsString::new()));
        }
        let strings = command
            .iter()
            .map(|word| {
                CString::new(word.as_bytes()).map_err(|_| LaunchError::BadCommand(word.clone()))
            })
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self::new(strings))
    }

    /// The caller's environment and these variables, those of `replaced` in the place of
    /// the caller's; `None` if it is the caller's.
    fn environment(
        more: &[(OsString, OsString)],
        replaced: &[(OsString, OsString)],
    ) -> Result<Option<Self>, LaunchError> {
        if more.is_empty() && replaced.is_empty() {
            return Ok(None);
        }
        let is_replaced = |name: &OsString| replaced.iter().any(|(other, _)| other == name);
        let is_new = |(name, _): &&(OsString, OsString)| std::env::var_os(name).is_none();
        let more = more.iter().filter(is_new).cloned();
        let own = std::env::vars_os().chain(more);
        let kept = own.filter(|(name, _)| !is_replaced(name));
        let strings = kept.chain(replaced.iter().cloned()).map(|(name, value)| {
            let mut variable = name;
            variable.push("=");
            variable.push(value);
            let bytes = variable.as_bytes().to_vec();
            CString::new(bytes).map_err(|_| LaunchError::BadCommand(variable))
        });
        Ok(Some(Self::new(strings.collect::<Result<_, _>>()?)))
    }

    fn new(strings: Vec<CString>) -> Self {
        let mut pointers: Vec<_> = strings.iter().map(|s| s.as_ptr()).collect();
        pointers.push(std::ptr::null());
        Self {
            pointers,
            _strings: strings,
        }
    }
}

/// The child, from fork to exec: async-signal-safe calls only, no allocation.
fn child_main(
    start: &Start,
    options: &LaunchOptions,
    gate: &OwnedFd,
    [report, trial]: [&OwnedFd; 2],
) -> ! {
    if let Some(mask) = &options.mask {
        mask.restore();
    }
    // SAFETY: SIG_DFL is a valid disposition. The Rust runtime ignores SIGPIPE,
    // and an ignored signal would stay ignored in the command.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    if options.stdout_to_stderr {
        // SAFETY: plain descriptor numbers; a closed stderr gives an error only.
        unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) };
    }
    if let Some(user) = &options.as_user
        && let Err(errno) = become_user(user)
    {
        give_up(report, STAGE_USER, errno);
    }
    leave_capabilities();
    let is_helped = start.helpers.is_empty() || start.helpers.are_usable(trial);
    wait_for_go(gate);
    let Some(&program) = start.argv.pointers.first() else {
        give_up(report, STAGE_EXEC, libc::ENOENT);
    };
    let argv = start.argv.pointers.as_ptr();
    let environment = match is_helped {
        true => &start.helped,
        false => &start.environment,
    };
    match environment {
        // SAFETY: NUL-terminated strings and null-terminated arrays, alive in `start`.
        Some(environment) => unsafe { libc::execvpe(program, argv, environment.pointers.as_ptr()) },
        // SAFETY: as above.
        None => unsafe { libc::execvp(program, argv) },
    };
    give_up(report, STAGE_EXEC, last_errno());
}

/// Leaves it to the caller's own rights whether the program is found and may be
/// executed. Only what is in effect is given up: the kernel decides what the program
/// gets by what is permitted, inheritable and ambient.
fn leave_capabilities() {
    if rustix::process::geteuid().is_root() {
        return;
    }
    // Raw system calls, no allocation. They fail for no capability that is given up.
    if let Ok(own) = rustix::thread::capabilities(None) {
        let bare = CapabilitySets {
            effective: CapabilitySet::empty(),
            ..own
        };
        let _ = rustix::thread::set_capabilities(None, bare);
    }
}

/// Blocks until the parent writes a byte; ends the process if the parent has gone.
fn wait_for_go(gate: &OwnedFd) {
    let mut byte = [0_u8; 1];
    loop {
        match rustix::io::read(gate, &mut byte) {
            Ok(1) => return,
            Err(rustix::io::Errno::INTR) => {}
            // SAFETY: _exit is async-signal-safe and runs no destructors.
            _ => unsafe { libc::_exit(1) },
        }
    }
}

/// Changes to `user` for good. Uses raw system calls: libc's wrappers take locks to notify other
/// threads, and this process has none.
fn become_user(user: &Credentials) -> Result<(), i32> {
    let (uid, gid) = (user.uid, user.gid);
    let check = |status| {
        if status < 0 {
            Err(last_errno())
        } else {
            Ok(())
        }
    };
    // SAFETY: the length is that of the array that the pointer leads to.
    check(unsafe { libc::syscall(libc::SYS_setgroups, user.groups.len(), user.groups.as_ptr()) })?;
    // SAFETY: takes three integers.
    check(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) })?;
    // SAFETY: takes three integers.
    check(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) })
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn give_up(report: &OwnedFd, stage: u8, errno: i32) -> ! {
    let [a, b, c, d] = errno.to_ne_bytes();
    // If the parent has gone, no process reads this.
    let _ = rustix::io::write(report, &[stage, a, b, c, d]);
    // SAFETY: _exit is async-signal-safe and runs no destructors.
    unsafe { libc::_exit(127) }
}

#[cfg(test)]
mod tests;
