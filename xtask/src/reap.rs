//! `cargo xtask reap`: runs one test program, and ends what it leaves behind.
//!
//! cargo starts every test through it. Processes whose parents end become its children, so
//! it finds all of them, also those that left the test's process group.

use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context as _, Result};

use crate::proc::is_root;

pub(crate) const HELP: &str = "
Runs PROGRAM with its arguments and kills the processes that it leaves behind. `cargo
xtask test` starts each test this way. If you are not root, end-to-end tests run through
sudo.
";

/// Test programs that need root: those of the `tests` crate, and their kin in `profiler`.
const AS_ROOT: [&str; 3] = ["core-", "ci-", "all-"];
/// How long killed processes may take to go. One that waits for a file system that does not
/// answer stays.
const PATIENCE: Duration = Duration::from_secs(5);

/// The signal that asked for the end.
static ASKED: AtomicI32 = AtomicI32::new(0);

extern "C" fn asked(signal: libc::c_int) {
    ASKED.store(signal, Ordering::Relaxed);
}

pub(crate) fn main(args: Vec<String>) -> Result<ExitCode> {
    let (program, rest) = args.split_first().context("PROGRAM is missing")?;
    let name = Path::new(program).file_name().unwrap_or_default();
    let name = name.to_string_lossy();
    if !is_root() && AS_ROOT.iter().any(|prefix| name.starts_with(prefix)) && may_sudo() {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut path_is = std::ffi::OsString::from("PATH=");
        path_is.push(path);
        let mut sudo = Command::new("sudo");
        sudo.args(["-n", "-E", "env"]).arg(path_is);
        let own = std::env::current_exe()?;
        return Err(sudo.arg(own).arg("reap").args(&args).exec().into());
    }
    // SAFETY: prctl(2) with an integer, and signal(2) with a function that only stores one.
    unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
        for signal in [libc::SIGTERM, libc::SIGINT] {
            let handler = asked as extern "C" fn(libc::c_int);
            libc::signal(signal, handler as libc::sighandler_t);
        }
    }
    let child = libc::pid_t::try_from(Command::new(program).args(rest).spawn()?.id())?;
    let status = loop {
        // Whoever lost its parent is waited for too: tests see from /proc who has ended.
        if let Some((pid, status)) = ended()
            && pid == child
        {
            break Some(status);
        }
        if ASKED.load(Ordering::Relaxed) != 0 {
            break None;
        }
        thread::sleep(Duration::from_millis(2));
    };
    end_the_rest();
    let code = match status {
        Some(status) => status.code().or_else(|| status.signal().map(|s| 128 + s)),
        None => Some(128 + ASKED.load(Ordering::Relaxed)),
    };
    Ok(ExitCode::from(u8::try_from(code.unwrap_or(1)).unwrap_or(1)))
}

/// Whether sudo answers without asking. `cargo xtask test` has asked before.
pub(crate) fn may_sudo() -> bool {
    let asked = Command::new("sudo").args(["-n", "true"]).output();
    asked.is_ok_and(|output| output.status.success())
}

/// Kills the children, and theirs, which become ours.
fn end_the_rest() {
    let end = Instant::now() + PATIENCE;
    loop {
        let left = children();
        for &pid in &left {
            // SAFETY: kill(2) with integers; these are children that were not waited for.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        match ended() {
            Some(_) => {}
            None if left.is_empty() || Instant::now() > end => return,
            None => thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// A child that has ended since the last look.
fn ended() -> Option<(libc::pid_t, ExitStatus)> {
    let mut status = 0;
    // SAFETY: waitpid(2) with a place for the status.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    (pid > 0).then(|| (pid, ExitStatus::from_raw(status)))
}

fn children() -> Vec<i32> {
    let text = fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    let numbers = text.split_ascii_whitespace();
    numbers.filter_map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    /// What a shell prints that `reap` runs, and how it ends; `None`: xtask is not built.
    fn reap(script: &str) -> Option<(String, Option<i32>)> {
        let own = std::env::current_exe().unwrap();
        // target/PROFILE/deps/xtask-HASH; the task itself lies above.
        let xtask = own.ancestors().nth(2).unwrap().join("xtask");
        if !xtask.is_file() {
            println!("skipped: tests of reap: xtask itself is not built");
            return None;
        }
        let output = Command::new(xtask)
            .args(["reap", "sh", "-c", script])
            .output();
        let output = output.unwrap();
        Some((
            String::from_utf8(output.stdout).unwrap(),
            output.status.code(),
        ))
    }

    /// What a program leaves behind is gone when `reap` ends: also a process that left its
    /// group and whose parent has ended.
    #[test]
    fn nothing_is_left_behind() {
        let script = "at=$(mktemp -u); mkfifo $at
            setsid sh -c \"sleep 600 & echo \\$\\$ > $at; sleep 600\" &
            read pid < $at; rm $at; echo $pid; exit 7";
        let Some((pid, code)) = reap(script) else {
            return;
        };
        assert_eq!(code, Some(7));
        let left = std::fs::read_to_string(format!("/proc/{}/comm", pid.trim()));
        assert!(left.is_err(), "{left:?}");
    }

    #[test]
    fn a_process_without_a_parent_is_gone_when_it_ends() {
        let script = "pid=$(sh -c 'sleep 0.01 >/dev/null & echo $!')
            for i in $(seq 1000); do [ -e /proc/$pid ] || exit 7; sleep 0.01; done";
        if let Some((_, code)) = reap(script) {
            assert_eq!(code, Some(7));
        }
    }
}
