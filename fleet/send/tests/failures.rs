//! What servers do wrong costs no body and no other output anything.

mod common;

use std::time::{Duration, Instant};

use aiprof_fleet::spool::BodyPacking;
use common::{Host, Server, free_port, gzip, now_ns, number, otlp, python};

fn output(name: &str, port: u16, more: &str) -> String {
    format!(
        "[[output]]\nname = \"{name}\"\ntype = \"otlp\"\nurl = \"http://127.0.0.1:{port}/profiles\"\n{more}\n"
    )
}

fn grpc(name: &str, port: u16) -> String {
    format!(
        "[[output]]\nname = \"{name}\"\ntype = \"otlp\"\nprotocol = \"grpc\"\nurl = \"http://127.0.0.1:{port}\"\n"
    )
}

/// The numbers of the next requests.
fn numbers(server: &Server, count: usize) -> Vec<u64> {
    (0..count).map(|_| number(&server.request())).collect()
}

#[test]
fn a_server_that_comes_up_later_gets_everything_in_order() {
    let Some(python) = python("a_server_that_comes_up_later_gets_everything_in_order") else {
        return;
    };
    for (kind, ok) in [("http", "200"), ("grpc", "ok")] {
        let port = free_port();
        let mut host = Host::new(&match kind {
            "http" => output("otlp", port, ""),
            _ => grpc("otlp", port),
        });
        host.put_windows("otlp", 1..=5);
        host.start();
        host.wait_for_log("retrying");
        let server = Server::start(&python, kind, port, ok, &[]);
        host.put_windows("otlp", 6..=7);
        assert_eq!(numbers(&server, 7), [1, 2, 3, 4, 5, 6, 7]);
        host.wait_for_log("sending works again after");
        // Down again, in between.
        host.wait_for_status("otlp", |status| status.sent == 7);
        drop(server);
        host.put_windows("otlp", 8..=8);
        host.wait_for_status("otlp", |status| !status.last_error.is_empty());
        let server = Server::start(&python, kind, port, ok, &[]);
        assert_eq!(number(&server.request()), 8);
        host.wait_until_empty("otlp");
        let status = host.wait_for_status("otlp", |status| status.sent == 8);
        assert_eq!((status.refused, status.too_old), (0, 0));
        assert!(server.request_within(Duration::from_millis(200)).is_none());
        // A line each for the two times that it was away, and for the two returns.
        let lines = host.log();
        assert_eq!(lines.matches("sending works again").count(), 2, "{lines}");
        assert!(lines.matches("retrying").count() <= 4, "{lines}");
    }
}

#[test]
fn a_server_is_left_alone_for_as_long_as_it_asks() {
    let Some(python) = python("a_server_is_left_alone_for_as_long_as_it_asks") else {
        return;
    };
    for (kind, answers) in [("http", "429/4,200"), ("grpc", "pushback/4000,ok")] {
        let server = Server::start(&python, kind, 0, answers, &[]);
        let mut host = Host::new(&match kind {
            "http" => output("otlp", server.port, ""),
            _ => grpc("otlp", server.port),
        });
        host.put_windows("otlp", 1..=1);
        host.start();
        let [first, second] = [server.request(), server.request()];
        assert_eq!((number(&first), number(&second)), (1, 1));
        let wait = second["at"].as_f64().unwrap() - first["at"].as_f64().unwrap();
        assert!((4.0..8.0).contains(&wait), "{kind}: {wait}");
        let status = host.wait_for_status("otlp", |status| status.sent == 1);
        assert_eq!(status.retried, 1);
    }
}

#[test]
fn broken_answers_are_tried_again_until_one_is_whole() {
    let Some(python) = python("broken_answers_are_tried_again_until_one_is_whole") else {
        return;
    };
    let answers = "500,close,half,garbage,200";
    let server = Server::start(&python, "http", 0, answers, &[]);
    let broken = Server::start(&python, "grpc", 0, "UNAVAILABLE,INTERNAL,UNKNOWN,ok", &[]);
    let mut host = Host::new(&(output("a", server.port, "") + &grpc("b", broken.port)));
    host.put_windows("a", 1..=2);
    host.put_windows("b", 1..=2);
    host.start();
    assert_eq!(numbers(&broken, 5), [1, 1, 1, 1, 2]);
    // After three failures that may be the server's, the next body is tried once.
    assert_eq!(numbers(&server, 6), [1, 1, 1, 1, 2, 1]);
    let status = host.wait_for_status("a", |status| status.sent == 2);
    assert_eq!((status.retried, status.refused), (4, 0));
    let status = host.wait_for_status("b", |status| status.sent == 2);
    assert_eq!(status.retried, 3);
}

#[test]
fn a_status_counts_whatever_becomes_of_the_rest_of_the_answer() {
    let Some(python) = python("a_status_counts_whatever_becomes_of_the_rest_of_the_answer") else {
        return;
    };
    let server = Server::start(&python, "http", 0, "mid,huge,partial,200", &[]);
    let mut host = Host::new(&output("otlp", server.port, ""));
    host.put_windows("otlp", 1..=4);
    host.start();
    assert_eq!(numbers(&server, 2), [1, 2]);
    // It hangs up on an answer without an end.
    let mut rest = [server.request(), server.request(), server.request()];
    rest.sort_by_key(|request| request["hung_up"].is_null());
    assert_eq!(rest[0]["hung_up"], true);
    assert_eq!((number(&rest[1]), number(&rest[2])), (3, 4));
    let status = host.wait_for_status("otlp", |status| status.sent == 4);
    assert_eq!((status.retried, status.rejected), (0, 2));
    assert!(host.log().contains("two were too deep"));
}

#[test]
fn what_is_refused_for_good_is_counted_and_gone() {
    let Some(python) = python("what_is_refused_for_good_is_counted_and_gone") else {
        return;
    };
    let server = Server::start(&python, "http", 0, "400,400,200", &[]);
    let over_grpc = Server::start(&python, "grpc", 0, "INVALID_ARGUMENT,ok", &[]);
    let mut host = Host::new(&(output("a", server.port, "") + &grpc("b", over_grpc.port)));
    host.put_windows("a", 1..=3);
    host.put_windows("b", 1..=2);
    // A body without a byte is what a machine leaves that lost power.
    host.put("b", BodyPacking::Gzip, b"");
    host.start();
    assert_eq!(numbers(&server, 3), [1, 2, 3]);
    assert_eq!(numbers(&over_grpc, 2), [1, 2]);
    let status = host.wait_for_status("a", |status| status.refused == 2 && status.sent == 1);
    assert_eq!(status.retried, 0);
    host.wait_for_status("b", |status| status.refused == 2 && status.sent == 1);
    host.wait_until_empty("a");
    host.wait_until_empty("b");
    let log = host.log();
    assert_eq!(
        log.matches("a: a profile is dropped, because it can never be sent")
            .count(),
        1,
        "{log}"
    );
    assert!(log.contains("INVALID_ARGUMENT: said so: 100 % é"), "{log}");
    assert!(log.contains("the file is empty"), "{log}");
}

#[test]
fn a_server_that_takes_no_profiles_loses_none_of_them() {
    let Some(python) = python("a_server_that_takes_no_profiles_loses_none_of_them") else {
        return;
    };
    let [missing, redirects] =
        ["404", "redirect"].map(|answer| Server::start(&python, "http", 0, answer, &[]));
    let unimplemented = Server::start(&python, "grpc", 0, "UNIMPLEMENTED", &[]);
    let outputs = output("a", missing.port, "")
        + &grpc("b", unimplemented.port)
        + &output("c", redirects.port, "");
    let mut host = Host::new(&outputs);
    for name in ["a", "b", "c"] {
        host.put_windows(name, 1..=2);
    }
    host.start();
    for name in ["a", "b", "c"] {
        let status = host.wait_for_status(name, |status| status.retried == 1);
        assert_eq!((status.waiting, status.refused), (2, 0), "{name}");
    }
    let log = host.log();
    assert!(log.contains("service.profilesSupport"), "{log}");
    assert!(log.contains("the server redirects"), "{log}");
    assert_eq!(number(&missing.request()), 1);
    assert!(missing.request_within(Duration::from_secs(3)).is_none());
    // The next is not for minutes; an end is at once.
    let (end, took) = host.stop();
    assert!(end.success() && took < Duration::from_secs(1), "{took:?}");
    let (code, stdout, _) = host.run(&["--check"]);
    assert_eq!(code, 1);
    assert_eq!(stdout.matches(": FAILED: ").count(), 3, "{stdout}");
}

#[test]
fn windows_that_are_too_old_are_counted_and_gone() {
    let Some(python) = python("windows_that_are_too_old_are_counted_and_gone") else {
        return;
    };
    let server = Server::start(&python, "http", 0, "old,200", &[]);
    let mut host = Host::new(&format!(
        "[[output]]\ntype = \"pyroscope\"\nurl = \"http://127.0.0.1:{}\"\n{}",
        server.port,
        output("aged", server.port, "max_age = \"10m\"")
    ));
    let minutes = |count: u64| now_ns() - count * 60_000_000_000;
    for age in [3_000_000, 70, 59, 50, 1] {
        host.put_at(
            "pyroscope",
            minutes(age),
            BodyPacking::Raw,
            format!("{age}").as_bytes(),
        );
    }
    host.start();
    for expected in ["50", "1"] {
        let hex: String = expected.bytes().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(server.request()["hex"], hex);
    }
    let status = host.wait_for_status("pyroscope", |status| status.sent == 1);
    assert_eq!((status.too_old, status.refused), (4, 0));
    host.put_at("aged", minutes(11), BodyPacking::Gzip, &gzip(&otlp(1)));
    host.put_at("aged", minutes(9), BodyPacking::Gzip, &gzip(&otlp(2)));
    assert_eq!(number(&server.request()), 2);
    host.wait_for_status("aged", |status| status.too_old == 1 && status.sent == 1);
    host.wait_until_empty("pyroscope");
    host.wait_until_empty("aged");
    assert_eq!(
        host.log()
            .matches("pyroscope: a profile is dropped, because it is too old")
            .count(),
        1
    );
}

#[test]
fn a_server_that_hangs_holds_up_no_other_output_and_no_end() {
    let Some(python) = python("a_server_that_hangs_holds_up_no_other_output_and_no_end") else {
        return;
    };
    let hangs = Server::start(&python, "http", 0, "hang", &[]);
    let hangs_too = Server::start(&python, "grpc", 0, "hang", &[]);
    let answers = Server::start(&python, "http", 0, "200", &[]);
    let outputs = output("a", hangs.port, "timeout = \"2s\"")
        + &grpc("b", hangs_too.port)
        + &output("c", answers.port, "");
    let mut host = Host::new(&outputs);
    for name in ["a", "b", "c"] {
        host.put_windows(name, 1..=20);
    }
    host.start();
    let began = Instant::now();
    assert_eq!(numbers(&answers, 20), (1..=20).collect::<Vec<_>>());
    assert!(began.elapsed() < Duration::from_secs(5));
    let status = host.wait_for_status("a", |status| status.retried >= 1);
    assert!(
        status.last_error.contains("no answer within 2s"),
        "{status:?}"
    );
    assert_eq!(numbers(&hangs, 2), [1, 1]);
    assert_eq!(number(&hangs_too.request()), 1);
    let (end, took) = host.stop();
    assert!(end.success());
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert_eq!(host.queue("b").bodies().unwrap().len(), 20);
}

#[test]
fn a_slow_reader_gets_a_large_body() {
    let Some(python) = python("a_slow_reader_gets_a_large_body") else {
        return;
    };
    let server = Server::start(&python, "http", 0, "slow", &[]);
    let mut host = Host::new(&format!(
        "[[output]]\ntype = \"pyroscope\"\nurl = \"http://127.0.0.1:{}\"",
        server.port
    ));
    let large: Vec<u8> = (0..1_000_000u32).map(|at| (at % 251) as u8).collect();
    host.put("pyroscope", BodyPacking::Raw, &large);
    host.start();
    let hex: String = large.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(server.request()["hex"] == hex);
    host.wait_for_status("pyroscope", |status| status.sent == 1);
}

#[test]
fn a_body_is_delivered_again_after_a_kill_in_its_middle() {
    let Some(python) = python("a_body_is_delivered_again_after_a_kill_in_its_middle") else {
        return;
    };
    let server = Server::start(&python, "http", 0, "hang,200", &[]);
    let mut host = Host::new(&output("otlp", server.port, ""));
    host.put_windows("otlp", 1..=3);
    host.start();
    assert_eq!(number(&server.request()), 1);
    host.signal("-KILL");
    host.ended();
    assert_eq!(host.queue("otlp").bodies().unwrap().len(), 3);
    host.start();
    assert_eq!(numbers(&server, 3), [1, 2, 3]);
    host.wait_until_empty("otlp");
    assert!(server.request_within(Duration::from_millis(200)).is_none());
}

#[test]
fn a_body_that_a_server_fails_at_holds_up_no_others() {
    let Some(python) = python("a_body_that_a_server_fails_at_holds_up_no_others") else {
        return;
    };
    for poison in ["poison-500", "poison-503", "poison-close"] {
        let server = Server::start(&python, "http", 0, poison, &[]);
        let mut host = Host::new(&output("otlp", server.port, ""));
        host.put_windows("otlp", 1..=3);
        host.start();
        assert_eq!(numbers(&server, 6), [1, 1, 1, 2, 3, 1], "{poison}");
        // It stays, and a new one goes first.
        host.put_windows("otlp", 4..=4);
        assert_eq!(number(&server.request()), 4, "{poison}");
        let status = host.wait_for_status("otlp", |status| status.sent == 3);
        assert_eq!((status.waiting, status.refused), (1, 0), "{poison}");
    }
}
