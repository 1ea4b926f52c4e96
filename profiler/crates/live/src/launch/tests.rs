//! Tests of launching: none needs privileges but the change of user.

use super::*;
use crate::signals::BlockedSignals;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn words(command: &[&str]) -> Vec<OsString> {
    command.iter().map(OsString::from).collect()
}

fn hold(command: &[&str]) -> Held {
    Held::fork(&words(command), &LaunchOptions::default()).unwrap()
}

async fn exit_of(command: &[&str]) -> Result<Exit, LaunchError> {
    hold(command).release().unwrap().wait().await
}

fn is_running(pid: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = state
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    !matches!(state, None | Some('Z'))
}

async fn until(mut condition: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("waited in vain");
}

#[tokio::test]
async fn the_command_is_held_until_released() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    let held = hold(&["touch", trace.to_str().unwrap()]);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!trace.exists() && is_running(held.pid()));
    let pid = held.pid();
    let running = held.release().unwrap();
    assert_eq!(running.pid(), pid);
    assert_eq!(running.wait().await.unwrap(), Exit::Code(0));
    assert!(trace.exists());
}

#[tokio::test]
async fn a_held_command_goes_when_it_is_dropped() {
    let held = hold(&["true"]);
    let pid = held.pid();
    assert!(is_running(pid));
    drop(held);
    assert!(!is_running(pid));
}

#[tokio::test]
async fn a_held_command_goes_when_the_profiler_has_gone() {
    let mut held = hold(&["true"]);
    // The end of the process closes the pipe and nothing more.
    let (_child, pidfd) = held.child.take().unwrap();
    drop(held);
    drop(readable::watch(pidfd).unwrap().readable().await.unwrap());
}

#[tokio::test]
async fn the_exit_code_is_that_of_a_shell() {
    for (script, code) in [
        ("exit 0", 0),
        ("exit 42", 42),
        ("kill -KILL $$", 137),
        ("kill -SEGV $$", 139),
    ] {
        let exit = exit_of(&["sh", "-c", script]).await.unwrap();
        assert_eq!(exit.code(), code, "{script}");
    }
}

#[tokio::test]
async fn the_end_is_reported_more_than_once() {
    let running = hold(&["sh", "-c", "exit 3"]).release().unwrap();
    for _ in 0..2 {
        assert_eq!(running.wait().await.unwrap(), Exit::Code(3));
    }
}

#[tokio::test]
async fn a_daemon_that_stays_behind_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let script = "sleep 600 & echo $! > \"$0\"; exit 4";
    let command = ["sh", "-c", script, file.to_str().unwrap()];
    assert_eq!(exit_of(&command).await.unwrap(), Exit::Code(4));
    let text = std::fs::read_to_string(&file).unwrap();
    let daemon: u32 = text.trim().parse().unwrap();
    assert!(is_running(daemon));
    let daemon = Pid::from_raw(i32::try_from(daemon).unwrap()).unwrap();
    rustix::process::kill_process(daemon, Signal::KILL).unwrap();
}

#[tokio::test]
async fn what_cannot_be_executed_is_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let plain = dir.path().join("plain");
    std::fs::write(&plain, "text").unwrap();
    for (program, code) in [
        ("aiprof-no-such-program", 127),
        ("/no/such/program", 127),
        (plain.to_str().unwrap(), 126),
        (dir.path().to_str().unwrap(), 126),
    ] {
        let error = exit_of(&[program]).await.unwrap_err();
        assert_eq!(error.exit_code(), code, "{error}");
        assert!(error.to_string().starts_with(program), "{error}");
    }
}

#[test]
fn an_impossible_command_line_is_refused() {
    for command in [vec![], words(&["a\0b"])] {
        let error = Held::fork(&command, &LaunchOptions::default()).unwrap_err();
        assert_eq!(error.exit_code(), 126, "{error}");
    }
}

#[tokio::test]
async fn signals_reach_the_command() {
    let dir = tempfile::tempdir().unwrap();
    let ready = dir.path().join("ready");
    let script = "trap 'exit 7' TERM; touch \"$0\"; while :; do sleep 0.01; done";
    let running = hold(&["sh", "-c", script, ready.to_str().unwrap()])
        .release()
        .unwrap();
    until(|| ready.exists()).await;
    running.signal(libc::SIGTERM);
    assert_eq!(running.wait().await.unwrap(), Exit::Code(7));
    running.signal(libc::SIGTERM); // no process is there: nothing happens
}

#[tokio::test]
async fn a_command_killed_while_held_is_a_death_by_signal() {
    let held = hold(&["true"]);
    let pid = Pid::from_raw(i32::try_from(held.pid()).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    let exit = held.release().unwrap().wait().await.unwrap();
    assert_eq!(exit, Exit::Signal(libc::SIGTERM));
}

/// The hexadecimal mask after `name` in a copy of /proc/PID/status.
fn mask(status: &Path, name: &str) -> u64 {
    let text = std::fs::read_to_string(status).unwrap();
    let line = text.lines().find(|l| l.starts_with(name)).unwrap();
    let hex = line.split_whitespace().last().unwrap();
    u64::from_str_radix(hex, 16).unwrap()
}

#[tokio::test]
async fn the_command_has_the_signal_mask_of_the_caller() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("status");
    let signals = BlockedSignals::block(None).unwrap();
    let options = LaunchOptions {
        mask: Some(signals.original_mask()),
        ..LaunchOptions::default()
    };
    let script = "exec cp /proc/self/status \"$0\"";
    let command = words(&["sh", "-c", script, copy.to_str().unwrap()]);
    let held = Held::fork(&command, &options).unwrap();
    let exit = held.release().unwrap().wait().await.unwrap();
    signals.original_mask().restore();
    assert_eq!(exit, Exit::Code(0));
    let bit = |signal: i32| 1_u64 << (signal - 1);
    assert_eq!(
        mask(&copy, "SigBlk") & (bit(libc::SIGINT) | bit(libc::SIGTERM)),
        0
    );
    assert_eq!(mask(&copy, "SigIgn") & bit(libc::SIGPIPE), 0);
}

#[tokio::test]
async fn variables_are_added_and_replaced_only_where_that_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("environment");
    let path = std::env::var("PATH").unwrap();
    let options = LaunchOptions {
        environment: [("PATH", "/nowhere"), ("AIPROF_TEST_ADDED", "a=b")]
            .map(|(name, value)| (name.into(), value.into()))
            .to_vec(),
        helpers: Helpers {
            replaced: vec![("HOME".into(), "/elsewhere".into())],
            ..Helpers::default()
        },
        ..LaunchOptions::default()
    };
    let script = "echo \"$AIPROF_TEST_ADDED:$HOME:$PATH\" > \"$0\"";
    let command = words(&["sh", "-c", script, out.to_str().unwrap()]);
    let held = Held::fork(&command, &options).unwrap();
    assert_eq!(held.release().unwrap().wait().await.unwrap(), Exit::Code(0));
    let text = std::fs::read_to_string(&out).unwrap();
    assert_eq!(text.trim(), format!("a=b:/elsewhere:{path}"));
    // A name that cannot be one fails before anything is started.
    let options = LaunchOptions {
        environment: vec![("A\0".into(), "".into())],
        ..LaunchOptions::default()
    };
    assert!(Held::fork(&command, &options).is_err());
}

#[tokio::test]
async fn stdout_can_be_kept_apart_from_the_profile() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("fds");
    let options = LaunchOptions {
        stdout_to_stderr: true,
        ..LaunchOptions::default()
    };
    let script = "for n in 1 2; do echo $(readlink /proc/$$/fd/$n) >> \"$0\"; done";
    let command = words(&["sh", "-c", script, out.to_str().unwrap()]);
    let held = Held::fork(&command, &options).unwrap();
    assert_eq!(held.release().unwrap().wait().await.unwrap(), Exit::Code(0));
    let links = std::fs::read_to_string(&out).unwrap();
    let [stdout, stderr] = links.lines().collect::<Vec<_>>()[..] else {
        panic!("{links}");
    };
    assert_eq!(stdout, stderr);
}

#[tokio::test]
async fn another_user_runs_it_with_that_users_groups_only() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: changing the user needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("status");
    std::fs::write(&out, "").unwrap();
    std::os::unix::fs::chown(&out, Some(65_534), None).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), mode).unwrap();
    let options = LaunchOptions {
        as_user: Some(Credentials {
            uid: 65_534,
            gid: 65_534,
            groups: vec![65_533],
            variables: Vec::new(),
        }),
        ..LaunchOptions::default()
    };
    let script = "cat /proc/self/status > \"$0\"";
    let command = words(&["sh", "-c", script, out.to_str().unwrap()]);
    let held = Held::fork(&command, &options).unwrap();
    assert_eq!(held.release().unwrap().wait().await.unwrap(), Exit::Code(0));
    let status = std::fs::read_to_string(&out).unwrap();
    let line = |name| status.lines().find(|l| l.starts_with(name)).unwrap();
    assert_eq!(line("Uid:"), "Uid:\t65534\t65534\t65534\t65534");
    assert_eq!(line("Gid:"), "Gid:\t65534\t65534\t65534\t65534");
    assert_eq!(line("Groups:").trim_end(), "Groups:\t65533");
    assert_eq!(mask(&out, "CapEff"), 0);
}

/// What a command sees that has these helpers, and which of them it is refused.
async fn with_helpers(
    files: Vec<PathBuf>,
    as_user: Option<Credentials>,
) -> (String, Option<(PathBuf, Option<i32>)>) {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("environment");
    std::fs::write(&out, "").unwrap();
    let open = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(dir.path(), open(0o755)).unwrap();
    std::fs::set_permissions(&out, open(0o666)).unwrap();
    let options = LaunchOptions {
        as_user,
        environment: vec![("AIPROF_TEST_ADDED".into(), "kept".into())],
        helpers: Helpers {
            files,
            added: vec![("AIPROF_TEST_HELPER".into(), "named".into())],
            replaced: vec![("HOME".into(), "/elsewhere".into())],
        },
        ..LaunchOptions::default()
    };
    let script = "echo \"$AIPROF_TEST_ADDED:$AIPROF_TEST_HELPER:$HOME\" > \"$0\"";
    let command = words(&["sh", "-c", script, out.to_str().unwrap()]);
    let held = Held::fork(&command, &options).unwrap();
    let refused = held.refused();
    let refused = refused.map(|refused| (refused.path.clone(), refused.source.raw_os_error()));
    assert_eq!(held.release().unwrap().wait().await.unwrap(), Exit::Code(0));
    let text = std::fs::read_to_string(&out).unwrap();
    (text.trim().to_owned(), refused)
}

#[tokio::test]
async fn helpers_are_named_only_if_all_of_them_can_be_loaded() {
    let home = std::env::var("HOME").unwrap_or_default();
    let dir = tempfile::tempdir().unwrap();
    let there = dir.path().join("there.so");
    std::fs::write(&there, "bytes").unwrap();
    let seen = with_helpers(vec![there.clone()], None).await;
    assert_eq!(seen, ("kept:named:/elsewhere".to_owned(), None));
    let missing = dir.path().join("missing.so");
    let (text, refused) = with_helpers(vec![there, missing.clone()], None).await;
    assert_eq!(text, format!("kept::{home}"));
    assert_eq!(refused, Some((missing, Some(libc::ENOENT))));
}

#[tokio::test]
async fn helpers_are_tried_with_the_command_s_rights() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: changing the user needs root");
        return;
    }
    let home = std::env::var("HOME").unwrap_or_default();
    let dir = tempfile::tempdir().unwrap();
    let helper = dir.path().join("helper.so");
    std::fs::write(&helper, "bytes").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(dir.path(), mode).unwrap();
    let user = Credentials {
        uid: 65_534,
        gid: 65_534,
        groups: vec![65_534],
        variables: Vec::new(),
    };
    let (text, refused) = with_helpers(vec![helper.clone()], Some(user)).await;
    assert_eq!(text, format!("kept::{home}"));
    assert_eq!(refused, Some((helper.clone(), Some(libc::EACCES))));
    let (_, refused) = with_helpers(vec![helper], None).await;
    assert_eq!(refused, None);
}

#[test]
fn a_user_that_is_not_in_the_database_has_one_group() {
    let credentials = Credentials::of_user(3_999_999_999, 77);
    assert_eq!(
        (credentials.groups, credentials.variables),
        (vec![77], Vec::new())
    );
}
