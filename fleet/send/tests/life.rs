//! How the program starts, is steered and ends.

mod common;

use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::process::Stdio;
use std::time::Duration;

use aiprof_fleet::status::{self, AGENT_FILE, AgentStatus, DeviceStatus, OutputStatus};
use common::{Host, Server, ask, free_port, number, python, wait_for, write_secret};

fn output(name: &str, port: u16) -> String {
    format!(
        "[[output]]\nname = \"{name}\"\ntype = \"otlp\"\nurl = \"http://127.0.0.1:{port}/profiles\"\n"
    )
}

#[test]
fn once_delivers_what_waits_and_ends() {
    let Some(python) = python("once_delivers_what_waits_and_ends") else {
        return;
    };
    let server = Server::start(&python, "http", 0, "200", &[]);
    let mut host = Host::new(&output("a", server.port));
    let (code, _, _) = host.run(&["--once"]);
    assert_eq!(code, 0);
    host.put_windows("a", 1..=3);
    let (code, _, stderr) = host.run(&["--once"]);
    assert_eq!(code, 0, "{stderr}");
    for expected in 1..=3 {
        assert_eq!(number(&server.request()), expected);
    }
    assert_eq!(host.status("a").sent, 3);
    // One of two outputs cannot be reached.
    host.configure(&(output("a", server.port) + &output("b", free_port())));
    host.put_windows("a", 4..=4);
    host.put_windows("b", 4..=4);
    let (code, _, stderr) = host.run(&["--once"]);
    assert_eq!(code, 1, "{stderr}");
    assert_eq!(number(&server.request()), 4);
    assert_eq!(host.queue("b").bodies().unwrap().len(), 1);
    let (code, stdout, _) = host.run(&["--check"]);
    assert_eq!(code, 1);
    assert!(
        stdout.contains("a: ok: ") && stdout.contains("b: FAILED: "),
        "{stdout}"
    );
}

#[test]
fn wrong_usage_and_wrong_configurations_say_what_is_wrong() {
    let host = Host::new("frequenzy = 1");
    let (code, _, stderr) = host.run(&["--nonsense"]);
    assert_eq!(code, 2, "{stderr}");
    let (code, _, stderr) = host.run(&["--once", "--check"]);
    assert_eq!(code, 2, "{stderr}");
    for args in [&[][..], &["--check"], &["--once"]] {
        let (code, _, stderr) = host.run(args);
        assert_eq!(code, 1);
        assert!(
            stderr.contains("frequenzy") && stderr.contains("agent.toml"),
            "{stderr}"
        );
    }
    host.configure(
        "[[output]]\ntype = \"parca\"\nurl = \"http://x\"\nheaders = { \"a b\" = \"c\" }",
    );
    let (code, _, stderr) = host.run(&["--check"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("headers.a b"), "{stderr}");
    host.configure("");
    let (code, stdout, _) = host.run(&["--check"]);
    assert_eq!(code, 0, "{stdout}");
    let (code, stdout, _) = host.run(&["--help"]);
    assert_eq!(code, 0);
    assert!(
        stdout.contains("SIGHUP") && stdout.contains("Exit codes"),
        "{stdout}"
    );
}

#[test]
fn what_keeps_it_from_delivering_is_found_without_asking_anybody() {
    let host = Host::new("");
    let secret = |name: &str, text: &str| {
        write_secret(&host.path(name), text);
        host.path(name)
    };
    let (token, open) = (secret("token", "t0k3n"), secret("open", "t0k3n"));
    std::fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let key = secret("key", "no key");
    let (file, empty) = (secret("file", "x"), secret("empty", ""));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let parca = |lines: &str| {
        // Certificates are of TLS.
        let place = match lines.starts_with('c') {
            true => "https://x",
            false => "http://127.0.0.1:1",
        };
        format!("[[output]]\ntype = \"parca\"\nurl = \"{place}\"\n{lines}")
    };
    let lake =
        |url: &str, lines: &str| format!("[[output]]\ntype = \"lake\"\nurl = \"{url}\"\n{lines}");
    let shown = |path: &std::path::Path| path.display().to_string();
    for (lines, expected) in [
        (parca(&format!("token_file = {token:?}")), None),
        (
            parca(&format!("token_file = {open:?}")),
            Some("parca: FAILED: token_file"),
        ),
        (parca(&format!("token_file = {open:?}")), Some("chmod 600")),
        (parca(&format!("token_file = {empty:?}")), Some("is empty")),
        (
            parca("token_file = \"/nonexistent/token\""),
            Some("No such file"),
        ),
        (
            parca(&format!("basic_auth_file = {token:?}")),
            Some("user:password"),
        ),
        (
            parca(&format!("ca_file = {file:?}")),
            Some("no certificate in PEM"),
        ),
        (
            parca(&format!("cert_file = {file:?}\nkey_file = {key:?}")),
            Some("cert_file"),
        ),
        (lake(&shown(&host.path("lake")), ""), None),
        (lake(&shown(&file), ""), Some("lake: FAILED: ")),
        (lake(&shown(&file), ""), Some("is not a directory")),
        (lake("/proc/lake", ""), Some("cannot write to /proc")),
        (
            lake("s3://abc", &format!("credentials_file = {open:?}")),
            Some("other users can read"),
        ),
        (
            lake("s3://abc", &format!("credentials_file = {token:?}")),
            Some("aws_access_key_id"),
        ),
        (
            format!("[metrics]\nlisten = \"{}\"", taken.local_addr().unwrap()),
            Some("metrics.listen: FAILED: "),
        ),
        (
            "[metrics]\nlisten = \"192.0.2.1:9464\"".to_owned(),
            Some("name an address of this machine"),
        ),
    ] {
        host.configure(&lines);
        let (code, stdout, stderr) = host.run(&["--check", "--offline"]);
        let is_right = code == i32::from(expected.is_some())
            && stdout.is_empty() == expected.is_none()
            && stdout.contains(expected.unwrap_or_default());
        assert!(is_right, "{lines}: {code} {stdout} {stderr}");
        assert!(!stdout.contains("t0k3n"), "{stdout}");
    }
    assert!(!host.path("lake").exists() && !host.path("state").exists());
    // A lake is always checked.
    host.configure(&lake(&shown(&host.path("lake")), ""));
    let (code, stdout, _) = host.run(&["--check"]);
    assert_eq!(code, 0, "{stdout}");
    assert!(stdout.contains("can be written to"), "{stdout}");
}

#[test]
fn a_byte_of_a_pipe_reloads_and_its_end_ends_it() {
    let mut host = Host::new("");
    host.start();
    wait_for("the status", || {
        host.path("state/sender/sender.json").exists().then_some(())
    });
    std::thread::sleep(Duration::from_millis(300));
    assert!(host.child().try_wait().unwrap().is_none());
    host.stop();
    let (reader, mut writer) = std::io::pipe().unwrap();
    host.start_with(Stdio::from(OwnedFd::from(reader)));
    writer.write_all(b"anything").unwrap();
    host.wait_for_log(": reloaded");
    assert!(host.child().try_wait().unwrap().is_none());
    drop(writer);
    assert!(host.ended().success());
    host.wait_for_log("stdin was closed");
}

#[test]
fn lines_have_priorities_where_journald_reads_them() {
    let host = Host::new("frequency = 0");
    let (mut reader, writer) = std::io::pipe().unwrap();
    let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
    let about = std::fs::metadata(path).unwrap();
    let stream = format!("{}:{}", about.dev(), about.ino());
    for (stated, expected) in [(stream.as_str(), "<3>"), ("1:1", "aiprof-send: error: ")] {
        let mut command = host.command(&[]);
        command.env("JOURNAL_STREAM", stated);
        command.stderr(writer.try_clone().unwrap());
        assert_eq!(command.status().unwrap().code(), Some(1));
        let mut buffer = [0; 4096];
        let length = reader.read(&mut buffer).unwrap();
        let line = String::from_utf8_lossy(&buffer[..length]);
        assert!(line.starts_with(expected), "{line}");
        assert!(!line.contains('\x1b'), "{line}");
    }
}

#[test]
fn there_is_one_for_a_spool() {
    let mut host = Host::new("");
    host.start();
    wait_for("the status", || {
        host.path("state/sender/sender.json").exists().then_some(())
    });
    let (code, _, stderr) = host.run(&["--once"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("another aiprof-send"), "{stderr}");
}

#[test]
fn a_reload_changes_what_changed_and_a_broken_one_nothing() {
    let Some(python) = python("a_reload_changes_what_changed_and_a_broken_one_nothing") else {
        return;
    };
    let [first, second] = [(); 2].map(|()| Server::start(&python, "http", 0, "200", &[]));
    let ports = [free_port(), free_port()];
    let metrics = |port: u16| format!("[metrics]\nlisten = \"127.0.0.1:{port}\"\n");
    let serves = |port: u16| {
        wait_for("metrics", || {
            std::net::TcpStream::connect(("127.0.0.1", port)).ok()?;
            let text = ask(
                &format!("127.0.0.1:{port}"),
                "GET /metrics HTTP/1.0\r\n\r\n",
            );
            text.contains("# EOF").then_some(())
        });
    };
    let mut host = Host::new(&(metrics(ports[0]) + &output("a", first.port)));
    host.start();
    host.put_windows("a", 1..=1);
    assert_eq!(number(&first.request()), 1);
    serves(ports[0]);
    let right = std::fs::read(host.path("agent.toml")).unwrap();
    std::fs::write(host.path("agent.toml"), "state = 7").unwrap();
    host.signal("-HUP");
    host.wait_for_log("the previous configuration stays in use");
    host.put_windows("a", 2..=2);
    assert_eq!(number(&first.request()), 2);
    // The same again, and then others.
    std::fs::write(host.path("agent.toml"), right).unwrap();
    host.signal("-HUP");
    host.wait_for_log(": reloaded");
    host.put_windows("a", 3..=3);
    assert_eq!(number(&first.request()), 3);
    host.wait_for_status("a", |status| status.sent == 3);
    host.configure(&(metrics(ports[1]) + &output("a", second.port) + &output("b", first.port)));
    host.signal("-HUP");
    serves(ports[1]);
    assert!(std::net::TcpStream::connect(("127.0.0.1", ports[0])).is_err());
    host.put_windows("a", 4..=4);
    host.put_windows("b", 5..=5);
    assert_eq!(number(&second.request()), 4);
    assert_eq!(number(&first.request()), 5);
    host.stop();
}

#[test]
fn metrics_are_what_prometheus_reads() {
    let Some(python) = python("metrics_are_what_prometheus_reads") else {
        return;
    };
    let port = free_port();
    let mut host = Host::new(&format!(
        "[metrics]\nlisten = \"127.0.0.1:{port}\"\n{}",
        output("a", free_port())
    ));
    std::fs::create_dir_all(host.path("state")).unwrap();
    let device = DeviceStatus {
        busy: 0.25,
        idle: [("waits for the \"host\"\n".to_owned(), 0.5)].into(),
    };
    let agent = AgentStatus {
        version: "0.1.0".to_owned(),
        written_unix_ns: common::now_ns(),
        samples: 123,
        losses: [("ring_drops".to_owned(), 4)].into(),
        outputs: [(
            "a".to_owned(),
            OutputStatus {
                dropped: 9,
                ..OutputStatus::default()
            },
        )]
        .into(),
        devices: [("xe 0000:03:00.0 GT1".to_owned(), device)].into(),
        ..AgentStatus::default()
    };
    status::write_shared(&host.path("state"), AGENT_FILE, &agent).unwrap();
    host.put_windows("a", 1..=2);
    host.start();
    host.wait_for_status("a", |status| status.retried > 0);
    let address = format!("127.0.0.1:{port}");
    let get = |path: &str, accept: &str| {
        ask(
            &address,
            &format!("GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n"),
        )
    };
    let answer = get("/metrics", "*/*");
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    assert!(
        head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
    let mut reader = std::process::Command::new(&python)
        .arg(common::servers())
        .arg("metrics")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    reader
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = reader.wait_with_output().unwrap();
    assert!(output.status.success(), "{text}");
    let read = String::from_utf8(output.stdout).unwrap();
    for expected in [
        r#"["aiprof_up", {}, 1.0]"#,
        r#"["aiprof_samples_total", {}, 123.0]"#,
        r#"["aiprof_losses_total", {"cause": "ring_drops"}, 4.0]"#,
        r#"["aiprof_deliveries_total", {"output": "a", "result": "dropped"}, 9.0]"#,
        r#"["aiprof_spool_profiles", {"output": "a"}, 2.0]"#,
        r#"["aiprof_output_failing", {"output": "a"}, 1.0]"#,
        r#"["aiprof_accelerator_busy_ratio", {"device": "xe 0000:03:00.0 GT1"}, 0.25]"#,
        r#""cause": "waits for the \"host\"\n"}, 0.5]"#,
    ] {
        assert!(read.contains(expected), "{expected}: {read}");
    }
    let old = get("/metrics", "text/plain;version=0.0.4");
    assert!(old.contains("content-type: text/plain; version=0.0.4") && !old.contains("# EOF"));
    if let Some(promtool) = aiprof_tests::need::find_tool("promtool") {
        let mut check = std::process::Command::new(promtool)
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let (_, text) = old.split_once("\r\n\r\n").unwrap();
        check
            .stdin
            .take()
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        assert!(check.wait().unwrap().success());
    }
    assert!(get("/", "*/*").starts_with("HTTP/1.1 404"));
    assert!(ask(&address, "POST /metrics HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 405"));
    let long = "x".repeat(100_000);
    assert!(!get(&format!("/{long}"), "*/*").contains("200 OK"));
    assert!(!ask(&address, "\0\0\0\r\n\r\n").contains("200 OK"));
    // Who connects and is silent takes up a place for a while, and not all of them for ever.
    let silent: Vec<_> = (0..20)
        .map(|_| std::net::TcpStream::connect(&address))
        .collect();
    wait_for("metrics", || {
        let answer = get("/metrics", "*/*");
        answer.contains("# EOF").then_some(())
    });
    drop(silent);
}
