//! Started by root, the sender becomes the user `nobody` and has no rights. What only root can read
//! still reaches servers, and a lake.

#![allow(clippy::unwrap_used, reason = "helpers of tests, too, end a test so")]

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use aiprof_fleet::spool::BodyPacking;
use aiprof_tests::need::{Need, lacks};
use common::{Host, Server, number, pprof, python, servers};

/// The machine's secret, which no token is.
const SHADOW: &str = "/etc/shadow";

/// A host whose files others may come to, if their modes let them.
fn host(outputs: &str) -> Host {
    let host = Host::new(outputs);
    fs::set_permissions(host.path(""), Permissions::from_mode(0o711)).unwrap();
    host
}

fn make_secret(path: &Path, content: &str) {
    let beside = path.with_extension("new");
    fs::write(&beside, content).unwrap();
    fs::set_permissions(&beside, Permissions::from_mode(0o600)).unwrap();
    // As those do that replace secrets.
    fs::rename(beside, path).unwrap();
}

/// The lines of a process's status, by name.
fn status(pid: u32, name: &str) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap()
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

/// The keeper of a sender.
fn keeper(pid: u32) -> u32 {
    let children = format!("/proc/{pid}/task/{pid}/children");
    let children = fs::read_to_string(children).unwrap();
    let all: Vec<_> = children.split_whitespace().collect();
    assert_eq!(all.len(), 1, "{children}");
    all[0].parse().unwrap()
}

#[test]
fn it_is_nobody_and_sends_with_tokens_of_root() {
    let test = "it_is_nobody_and_sends_with_tokens_of_root";
    let Some(python) = python(test).filter(|_| !lacks(test, &[Need::Root])) else {
        return;
    };
    let server = Server::start(&python, "http", 0, "200,200", &[]);
    let mut host = host("");
    let token = host.path("token");
    make_secret(&token, "first\n");
    host.configure(&format!(
        "[[output]]\nname = \"a\"\ntype = \"otlp\"\nurl = \"http://127.0.0.1:{0}/profiles\"\n\
         token_file = {token:?}\n\
         [[output]]\nname = \"b\"\ntype = \"otlp\"\nurl = \"http://127.0.0.1:{0}/profiles\"\n\
         token_file = {SHADOW:?}\n",
        server.port
    ));
    host.put_windows("b", 1..=1);
    host.start();
    host.put_windows("a", 2..=2);
    let request = server.request();
    assert_eq!(number(&request), 2);
    assert_eq!(request["headers"]["authorization"], "Bearer first");
    // A configuration that names another file does not get it: it is no token.
    let why = host
        .wait_for_status("b", |status| status.retried > 0)
        .last_error;
    assert!(why.contains("token_file /etc/shadow"), "{why}");
    // Another token in its place.
    make_secret(&token, "second\n");
    host.put_windows("a", 3..=3);
    assert_eq!(
        server.request()["headers"]["authorization"],
        "Bearer second"
    );

    let pid = host.pid();
    assert_eq!(
        fs::metadata(host.path("state/sender/sender.json"))
            .unwrap()
            .uid(),
        65534
    );
    for (name, expected) in [
        ("Uid", &["65534"; 4][..]),
        ("Gid", &["0"; 4]),
        ("Groups", &[]),
        ("CapPrm", &["0000000000000000"]),
        ("CapEff", &["0000000000000000"]),
        ("CapAmb", &["0000000000000000"]),
        ("NoNewPrivs", &["1"]),
        ("Seccomp", &["2"]),
    ] {
        assert_eq!(status(pid, name), expected, "{name}");
    }
    let keeper = keeper(pid);
    for (name, expected) in [
        ("CapEff", "0000000000000000"),
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
    ] {
        assert_eq!(status(keeper, name), [expected], "{name} of the keeper");
    }
    host.stop();
    assert!(
        !Path::new(&format!("/proc/{keeper}/fd/0")).exists(),
        "the keeper stays"
    );
}

#[test]
fn a_key_of_root_and_a_lake_of_root_are_used() {
    let test = "a_key_of_root_and_a_lake_of_root_are_used";
    let Some(python) = python(test).filter(|_| !lacks(test, &[Need::Root])) else {
        return;
    };
    let mut host = host("");
    let mut make = std::process::Command::new(&python);
    make.arg(servers()).arg("certificates").arg(host.path(""));
    assert!(make.status().unwrap().success());
    let key = host.path("client.key");
    fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    let tls = ["server.pem", "server.key", "ca.pem"].map(|name| host.path(name));
    let tls: Vec<_> = tls.iter().map(|path| path.as_path()).collect();
    let server = Server::start(&python, "http", 0, "200", &tls);
    let lake = host.path("lake");
    // As an older version left it: root's, and writable for root only.
    fs::create_dir_all(lake.join("date=2023-11-14")).unwrap();
    for folder in [&lake, &lake.join("date=2023-11-14")] {
        fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    }
    host.configure(&format!(
        "[[output]]\ntype = \"otlp\"\nurl = \"https://127.0.0.1:{}/profiles\"\n\
         ca_file = {:?}\ncert_file = {:?}\nkey_file = {key:?}\n\
         [[output]]\ntype = \"lake\"\nurl = {lake:?}\n",
        server.port,
        host.path("ca.pem"),
        host.path("client.pem"),
    ));
    host.put_windows("otlp", 1..=1);
    host.put_at(
        "lake",
        1_700_000_000_000_000_001,
        BodyPacking::Pprof,
        &pprof(1),
    );
    let (code, stdout, stderr) = host.run(&["--once"]);
    assert_eq!(code, 0, "{stdout} {stderr}");
    assert!(!stderr.contains("warning"), "{stderr}");
    assert_eq!(number(&server.request()), 1);
    let files = fs::read_dir(lake.join("date=2023-11-14")).unwrap();
    let files: Vec<_> = files
        .map(|file| file.unwrap().metadata().unwrap())
        .collect();
    assert_eq!(files.len(), 1);
    assert_eq!(files[0].uid(), 65534);
    assert_eq!(fs::metadata(&lake).unwrap().uid(), 0);
    assert!(host.queue("lake").bodies().unwrap().is_empty());
}

#[test]
fn where_nobody_comes_it_stays_root_without_rights() {
    let test = "where_nobody_comes_it_stays_root_without_rights";
    let Some(python) = python(test).filter(|_| !lacks(test, &[Need::Root])) else {
        return;
    };
    let server = Server::start(&python, "http", 0, "200", &[]);
    let mut host = Host::new(&format!(
        "[[output]]\ntype = \"otlp\"\nurl = \"http://127.0.0.1:{}/profiles\"\n",
        server.port
    ));
    fs::set_permissions(host.path(""), Permissions::from_mode(0o700)).unwrap();
    host.start();
    host.wait_for_log("only its owner can write there");
    host.put_windows("otlp", 1..=1);
    assert_eq!(number(&server.request()), 1);
    let pid = host.pid();
    assert_eq!(status(pid, "CapEff"), ["0000000000000000"]);
    assert_eq!(status(pid, "Seccomp"), ["2"]);
}

#[test]
fn another_lake_is_a_new_start() {
    let mut host = host("");
    host.start();
    common::wait_for("the status", || {
        host.path("state/sender/sender.json").exists().then_some(())
    });
    let lake = host.path("lake");
    host.configure(&format!("[[output]]\ntype = \"lake\"\nurl = {lake:?}\n"));
    host.signal("-HUP");
    let ended = host.ended();
    assert_eq!(ended.code(), Some(75), "{}", host.log());
    host.start();
    host.put_at(
        "lake",
        1_700_000_000_000_000_001,
        BodyPacking::Pprof,
        &pprof(1),
    );
    host.wait_until_empty("lake");
}

#[test]
fn what_nobody_can_write_to_is_found_and_what_a_start_shares_is_no_fault() {
    let test = "what_nobody_can_write_to_is_found_and_what_a_start_shares_is_no_fault";
    if lacks(test, &[Need::Root]) {
        return;
    }
    let host = host("");
    let (lake, queue) = (host.path("lake"), host.path("state/spool/lake"));
    fs::create_dir_all(&queue).unwrap();
    fs::create_dir(&lake).unwrap();
    let of = |path: &Path, user: u32, mode: u32| {
        std::os::unix::fs::chown(path, Some(user), Some(user)).unwrap();
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    };
    host.configure(&format!("[[output]]\ntype = \"lake\"\nurl = {lake:?}\n"));
    for (path, user, mode, is_right) in [
        (&lake, 0, 0o700, true),
        (&lake, 1, 0o755, false),
        (&lake, 1, 0o777, true),
        (&queue, 0, 0o700, true),
        (&queue, 1, 0o755, false),
    ] {
        of(&lake, 0, 0o755);
        of(path, user, mode);
        let (code, stdout, stderr) = host.run(&["--check", "--offline"]);
        let shown = path.display();
        assert_eq!(code == 0, is_right, "{shown} {mode:o}: {stdout} {stderr}");
        assert_eq!(stdout.contains("cannot write to"), !is_right, "{stdout}");
        let about = fs::metadata(path).unwrap();
        assert_eq!((about.uid(), about.mode() & 0o777), (user, mode), "{shown}");
    }
    assert!(!host.path("state/sender").exists(), "something was made");
}

#[test]
fn a_lake_is_made_where_it_stays_root() {
    let test = "a_lake_is_made_where_it_stays_root";
    if lacks(test, &[Need::Root, Need::Tool("setpriv")]) {
        return;
    }
    let mut host = host("");
    let lake = host.path("new/lake");
    host.configure(&format!("[[output]]\ntype = \"lake\"\nurl = {lake:?}\n"));
    host.put_at(
        "lake",
        1_700_000_000_000_000_001,
        BodyPacking::Pprof,
        &pprof(1),
    );
    let command = host.command(&["--once"]);
    // As in a pod.
    let mut in_pod = std::process::Command::new("setpriv");
    in_pod.arg("--bounding-set=-setuid,-setgid");
    in_pod.arg(command.get_program()).args(command.get_args());
    let output = in_pod.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(lake.join("date=2023-11-14").is_dir());
}
