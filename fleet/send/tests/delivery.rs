//! Bodies are delivered by each protocol as they are, with what the server wants to see.

mod common;

use aiprof_fleet::spool::BodyPacking;
use common::{Host, Server, gzip, make_secret, number, otlp, python, write_secret};

fn http(port: u16, more: &str) -> String {
    format!(
        "[[output]]\ntype = \"otlp\"\nurl = \"http://127.0.0.1:{port}/api/x/v1/profiles?a=b\"\n{more}"
    )
}

fn grpc(port: u16, more: &str) -> String {
    format!(
        "[[output]]\ntype = \"otlp\"\nprotocol = \"grpc\"\nurl = \"http://127.0.0.1:{port}\"\n{more}"
    )
}

#[test]
fn otlp_over_http_packed_and_not() {
    let Some(python) = python("otlp_over_http_packed_and_not") else {
        return;
    };
    let server = Server::start(&python, "http", 0, "200", &[]);
    let mut host = Host::new(&http(
        server.port,
        "tenant = \"team-1\"\nheaders = { x-extra = \"yes\" }",
    ));
    host.put("otlp", BodyPacking::Gzip, &gzip(&otlp(1)));
    host.put("otlp", BodyPacking::Raw, &otlp(2));
    host.start();
    for (expected, encoding) in [(1, "gzip".into()), (2, serde_json::Value::Null)] {
        let request = server.request();
        assert_eq!(number(&request), expected);
        assert_eq!(request["path"], "/api/x/v1/profiles?a=b");
        let headers = &request["headers"];
        assert_eq!(headers["content-type"], "application/x-protobuf");
        assert_eq!(headers["content-encoding"], encoding);
        assert_eq!(headers["x-scope-orgid"], "team-1");
        assert_eq!(headers["x-extra"], "yes");
        assert!(
            headers["user-agent"]
                .as_str()
                .unwrap()
                .starts_with("aiprof-send/")
        );
    }
    host.wait_until_empty("otlp");
    // One that comes while nothing waits is sent at once.
    host.put_windows("otlp", 3..=3);
    assert_eq!(number(&server.request()), 3);
    let status = host.wait_for_status("otlp", |status| status.sent == 3 && status.waiting == 0);
    assert_eq!((status.retried, status.refused, status.too_old), (0, 0, 0));
    assert!(status.last_error.is_empty() && status.sent_bytes > 100);
    let (end, _) = host.stop();
    assert!(end.success());
}

#[test]
fn otlp_over_grpc_packed_and_not() {
    let Some(python) = python("otlp_over_grpc_packed_and_not") else {
        return;
    };
    let server = Server::start(&python, "grpc", 0, "ok,partial,ok", &[]);
    let mut host = Host::new(&grpc(server.port, "tenant = \"team-1\"\ntimeout = \"7s\""));
    host.put("otlp", BodyPacking::Gzip, &gzip(&otlp(1)));
    host.put("otlp", BodyPacking::Raw, &otlp(2));
    host.put_windows("otlp", 3..=5);
    host.start();
    for expected in 1..=5 {
        let request = server.request();
        assert_eq!(number(&request), expected);
        assert_eq!(
            request["path"],
            "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"
        );
        assert_eq!(request["headers"]["x-scope-orgid"], "team-1");
        let left = request["left"].as_f64().unwrap();
        assert!(left > 4.0 && left <= 7.0, "{left}");
    }
    host.wait_until_empty("otlp");
    let status = host.wait_for_status("otlp", |status| status.sent == 5);
    assert_eq!(status.rejected, 2);
    assert!(host.log().contains("two were too deep"));
    assert_eq!(status.retried, 0);
}

#[test]
fn a_grpc_server_that_knows_no_gzip_gets_it_unpacked() {
    let Some(python) = python("a_grpc_server_that_knows_no_gzip_gets_it_unpacked") else {
        return;
    };
    let server = Server::start(&python, "grpc", 0, "plain,ok", &[]);
    let mut host = Host::new(&grpc(server.port, ""));
    host.put_windows("otlp", 1..=3);
    host.start();
    for expected in 1..=3 {
        assert_eq!(number(&server.request()), expected);
    }
    let status = host.wait_for_status("otlp", |status| status.sent == 3);
    assert_eq!(status.retried, 0);
}

#[test]
fn pyroscope_and_parca_get_their_bytes() {
    let Some(python) = python("pyroscope_and_parca_get_their_bytes") else {
        return;
    };
    let pyroscope = Server::start(&python, "http", 0, "200", &[]);
    let parca = Server::start(&python, "grpc", 0, "ok", &[]);
    let mut host = Host::new(&format!(
        "[[output]]\ntype = \"pyroscope\"\nurl = \"http://127.0.0.1:{}\"\ntenant = \"t\"\n\
         [[output]]\ntype = \"parca\"\nurl = \"http://127.0.0.1:{}\"",
        pyroscope.port, parca.port
    ));
    host.put("pyroscope", BodyPacking::Raw, b"abc");
    host.put("pyroscope", BodyPacking::Gzip, &gzip(b"def"));
    host.put("parca", BodyPacking::Raw, b"ghi");
    host.start();
    for (expected, encoding) in [
        ("616263", serde_json::Value::Null),
        ("646566", "gzip".into()),
    ] {
        let request = pyroscope.request();
        assert_eq!(request["path"], "/push.v1.PusherService/Push");
        assert_eq!(request["hex"], expected);
        assert_eq!(request["headers"]["content-type"], "application/proto");
        assert_eq!(request["headers"]["content-encoding"], encoding);
        assert_eq!(request["headers"]["x-scope-orgid"], "t");
    }
    let request = parca.request();
    let method = "/parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw";
    assert_eq!(request["path"], method);
    assert_eq!(request["hex"], "676869");
    host.wait_until_empty("pyroscope");
    host.wait_until_empty("parca");
}

#[test]
fn tokens_are_read_anew_and_shown_nowhere() {
    let Some(python) = python("tokens_are_read_anew_and_shown_nowhere") else {
        return;
    };
    let over_http = Server::start(&python, "http", 0, "echo,200", &[]);
    let over_grpc = Server::start(&python, "grpc", 0, "echo,ok", &[]);
    let mut host = Host::new("");
    let (token, basic) = (host.path("token"), host.path("basic"));
    write_secret(&token, "t0k3n-secret\n");
    write_secret(&basic, "me:pa55word\n");
    host.configure(&format!(
        "[metrics]\nlisten = \"off\"\n\
         [[output]]\nname = \"a\"\ntype = \"otlp\"\nurl = \"http://127.0.0.1:{}/profiles\"\ntoken_file = {token:?}\n\
         [[output]]\nname = \"b\"\ntype = \"otlp\"\nprotocol = \"grpc\"\nurl = \"http://127.0.0.1:{}\"\nbasic_auth_file = {basic:?}",
        over_http.port, over_grpc.port
    ));
    host.put_windows("a", 1..=1);
    host.put_windows("b", 1..=1);
    host.start();
    let secret = over_http.request()["headers"]["authorization"].clone();
    assert_eq!(secret, "Bearer t0k3n-secret");
    let secret = over_grpc.request()["headers"]["authorization"].clone();
    assert_eq!(secret, "Basic bWU6cGE1NXdvcmQ=");
    // Refused credentials are no reason to throw anything away, and are reported once.
    for output in ["a", "b"] {
        let status = host.wait_for_status(output, |status| status.retried == 1);
        assert!(status.last_error.contains("[hidden]"), "{status:?}");
        assert_eq!((status.waiting, status.refused), (1, 0));
    }
    // Another token. A reload is how not to wait for minutes.
    std::fs::write(&token, "renewed-secret").unwrap();
    host.signal("-HUP");
    let secret = over_http.request()["headers"]["authorization"].clone();
    assert_eq!(secret, "Bearer renewed-secret");
    host.wait_until_empty("a");
    host.wait_until_empty("b");
    host.stop();
    let state = std::fs::read_to_string(host.path("state/sender/sender.json")).unwrap();
    for text in [host.log(), state] {
        for secret in ["t0k3n", "renewed", "pa55word", "bWU6"] {
            assert!(!text.contains(secret), "{text}");
        }
    }
}

#[test]
fn tls_with_an_own_authority_and_a_client_certificate() {
    let Some(python) = python("tls_with_an_own_authority_and_a_client_certificate") else {
        return;
    };
    let mut host = Host::new("");
    let made = std::process::Command::new(&python)
        .arg(common::servers())
        .arg("certificates")
        .arg(host.path(""))
        .status()
        .unwrap();
    assert!(made.success());
    make_secret(&host.path("client.key"));
    let [ca, other] = ["ca.pem", "other.pem"].map(|name| host.path(name));
    let tls = ["server.pem", "server.key", "ca.pem"].map(|name| host.path(name));
    let tls: Vec<_> = tls.iter().map(|path| path.as_path()).collect();
    let client = format!(
        "cert_file = {:?}\nkey_file = {:?}\n",
        host.path("client.pem"),
        host.path("client.key")
    );
    for (kind, protocol, ok) in [("http", "http", "200"), ("grpc", "grpc", "ok")] {
        let server = Server::start(&python, kind, 0, ok, &tls);
        let output = |ca: &std::path::Path, more: &str| {
            format!(
                "[[output]]\ntype = \"otlp\"\nprotocol = \"{protocol}\"\n\
                 url = \"https://127.0.0.1:{}{}\"\nca_file = {ca:?}\ntimeout = \"3s\"\n{more}",
                server.port,
                if kind == "http" { "/profiles" } else { "" },
            )
        };
        host.put_windows("otlp", 1..=1);
        // Another authority; no certificate of the client's.
        for wrong in [output(&other, &client), output(&ca, "")] {
            host.configure(&wrong);
            let (code, _, stderr) = host.run(&["--once"]);
            assert_eq!(code, 1, "{kind}: {stderr}");
            let (code, stdout, _) = host.run(&["--check"]);
            assert_eq!(code, 1, "{kind}: {stdout}");
            assert!(stdout.starts_with("otlp: FAILED: 127.0.0.1:"), "{stdout}");
            assert_eq!(host.queue("otlp").bodies().unwrap().len(), 1);
        }
        host.configure(&output(&other, &client));
        let (_, stdout, _) = host.run(&["--check"]);
        assert!(stdout.contains("certificate"), "{stdout}");
        host.configure(&output(&ca, &client));
        let (code, stdout, stderr) = host.run(&["--once"]);
        assert_eq!(code, 0, "{kind}: {stdout} {stderr}");
        assert_eq!(number(&server.request()), 1);
        let (code, stdout, _) = host.run(&["--check"]);
        assert_eq!(code, 0, "{stdout}");
        assert!(stdout.contains("accepts profiles"), "{stdout}");
    }
}
