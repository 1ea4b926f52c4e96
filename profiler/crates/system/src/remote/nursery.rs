//! The process that forks the others, and the copy of it that takes its place when it is
//! killed. Only they can fork: the recording's own process has threads and has given up
//! its privileges by then.

use super::{Line, PRINTED, Serve, exit};
use crate::{files::kernel, os::privileges};
use rustix::{net::RecvFlags, thread::CapabilitySet};
use serde::{Deserialize, Serialize};
use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::PoisonError,
};

/// Most copies that are made, so that a system that kills each at once has an end.
const MOST_COPIES: u32 = 1000;

/// Asks for a process: the number of the request, and the kind of work.
type ForkRequest = (u64, u8);

#[derive(Debug, Serialize, Deserialize)]
enum ForkAnswer {
    /// The process of the request with this number; -1: fork(2) failed.
    Forked(u64, i32),
    /// A copy of the nursery was made.
    Copied(i32),
    /// A copy took the nursery's place: what was asked before is gone.
    Replaced,
}

/// The client's end.
#[derive(Debug)]
pub(super) struct Nursery {
    line: Line,
    requests: u64,
}

impl Nursery {
    pub(super) fn new(line: Line) -> Self {
        Self { line, requests: 0 }
    }

    /// A new process for this kind of work: the line to it, and its process id. `copied`
    /// gets the process id of each new copy of the nursery.
    ///
    /// # Errors
    /// The nursery and its copy are gone.
    pub(super) fn fork(&mut self, kind: u8, copied: impl Fn(i32)) -> io::Result<(Line, i32)> {
        loop {
            let (line, other) = Line::pair()?;
            self.requests += 1;
            let request: ForkRequest = (self.requests, kind);
            self.line.send(&request, &[other.0.as_fd()])?;
            drop(other);
            loop {
                match self.line.receive()?.0 {
                    ForkAnswer::Forked(request, pid) if request == self.requests => {
                        return Ok((line, pid));
                    }
                    // Its line is closed here, so that it ends.
                    ForkAnswer::Forked(..) => {}
                    ForkAnswer::Copied(pid) => copied(pid),
                    ForkAnswer::Replaced => break,
                }
            }
        }
    }
}

/// Forks until its client's end of the line is closed.
pub(super) fn run(line: &Line, kinds: &[Serve]) {
    be_nobody(line, NAME);
    // Those that it forks are not waited for.
    // SAFETY: a system call without pointers.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    // The most that any of them needs; each gives up the rest of it by itself.
    let most = privileges::READING_AS_USERS | CapabilitySet::SYS_NICE;
    if let Err(error) = privileges::drop_to(most) {
        tracing::debug!("{error}");
    }
    for _ in 0..MOST_COPIES {
        let Ok((own, others)) = Line::pair() else {
            break;
        };
        // SAFETY: the nursery has one thread.
        let pid = unsafe { libc::fork() };
        let is_client_there = match pid {
            // Without a copy.
            -1 => break,
            0 => {
                drop(own);
                stand_by(line, &others)
            }
            _ => {
                drop(others);
                line.send(&ForkAnswer::Copied(pid), &[]).is_ok() && serve(line, Some(&own), kinds)
            }
        };
        if !is_client_there {
            return;
        }
    }
    serve(line, None, kinds);
}

const NAME: &str = "aiprof-nursery";

/// Waits until the original is gone, and takes its place. False: there is no client.
fn stand_by(line: &Line, original: &Line) -> bool {
    name("aiprof-standby");
    original.wait_for(None);
    name(NAME);
    // A part of a request may be left, and the answer to one may be missing: the client
    // asks again.
    let mut rest = [0; 256];
    while rustix::net::recv(&line.0, &mut rest, RecvFlags::DONTWAIT).is_ok_and(|(_, n)| n > 0) {}
    line.send(&ForkAnswer::Replaced, &[]).is_ok()
}

/// Forks as asked until the copy is gone. False: the client is.
fn serve(line: &Line, copy: Option<&Line>, kinds: &[Serve]) -> bool {
    loop {
        if !line.wait_for(copy) {
            return true;
        }
        let Ok(((request, kind), fds)) = line.receive::<ForkRequest>() else {
            return false;
        };
        let serve = kinds.get(usize::from(kind));
        let (Some(serve), Some(other)) = (serve, fds.into_iter().next()) else {
            continue;
        };
        // SAFETY: the nursery has one thread.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let other = Line(other);
            be_nobody(&other, "aiprof-reader");
            // It may wait for programs that it starts.
            // SAFETY: a system call without pointers.
            unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
            *PRINTED.lock().unwrap_or_else(PoisonError::into_inner) = Some(Vec::new());
            let _ = catch_unwind(AssertUnwindSafe(|| serve(&other)));
            exit();
        }
        drop(other);
        if line.send(&ForkAnswer::Forked(request, pid), &[]).is_err() {
            return false;
        }
    }
}

impl Line {
    /// Waits until a message begins to come or the other end is closed: true; false if the
    /// other end of `or` was closed before.
    fn wait_for(&self, or: Option<&Self>) -> bool {
        use rustix::event::{PollFd, PollFlags, poll};
        let other = or.unwrap_or(self);
        let mut polled = [&other.0, &self.0].map(|line| PollFd::new(line, PollFlags::IN));
        while poll(&mut polled, None).is_err_and(|error| error == rustix::io::Errno::INTR) {}
        let [other, _] = polled;
        or.is_none() || other.revents().is_empty()
    }
}

fn name(name: &str) {
    let name = std::ffi::CString::new(name).unwrap_or_default();
    let _ = rustix::thread::set_name(&name);
}

/// Leaves everything behind that this process has but its line: the terminal's
/// signals, standard input, output and error, other descriptors.
fn be_nobody(line: &Line, own_name: &str) {
    let keep = line.0.as_raw_fd().unsigned_abs();
    if let Ok(null) = kernel::open_null() {
        // Each fails only without descriptors, and then there is nothing to leave.
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
    name(own_name);
    // SAFETY: system calls without pointers. Descriptors below `keep` and above it
    // belong to copies of values that this process does not use any more.
    unsafe {
        libc::setsid();
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        if keep > 3 {
            libc::syscall(libc::SYS_close_range, 3, keep - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, keep + 1, libc::c_uint::MAX, 0);
    }
}
