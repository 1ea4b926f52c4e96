use super::*;
use aiprof_fleet::config::{Config, To};
use reqwest::header::{HeaderName, HeaderValue};
use std::path::Path;

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let pairs = pairs.iter().map(|(name, value)| {
        let value = HeaderValue::from_str(value).unwrap();
        (HeaderName::from_static(name), value)
    });
    pairs.collect()
}

/// The API of an output with these lines.
fn api(lines: &str) -> &'static ServerApi {
    let text = format!("[[output]]\nurl = \"http://x\"\n{lines}");
    let config = Config::parse(Path::new("x"), &text).unwrap();
    match &config.outputs[0].to {
        To::Server(target) => target.api,
        other => panic!("{other:?}"),
    }
}

const OTLP: &str = "type = \"otlp\"";
const OTLP_GRPC: &str = "type = \"otlp\"\nprotocol = \"grpc\"";
const PYROSCOPE: &str = "type = \"pyroscope\"";
const PARCA: &str = "type = \"parca\"";

/// In short: what becomes of it, and for failures the pace.
fn http(status: u16) -> String {
    short(of_http(api(OTLP), status, &HeaderMap::new(), b""))
}

fn grpc(code: i32, message: &str) -> String {
    let code = code.to_string();
    let trailers = headers(&[("grpc-status", &code), ("grpc-message", message)]);
    short(of_grpc(api(OTLP_GRPC), &trailers, b""))
}

fn short(verdict: DeliveryResult) -> String {
    match verdict {
        DeliveryResult::Delivered(_) => "delivered".to_owned(),
        DeliveryResult::Refused(..) => "refused".to_owned(),
        DeliveryResult::TooOld(_) => "too old".to_owned(),
        DeliveryResult::Failed(failure) => format!("{:?}", failure.pace).to_lowercase(),
    }
}

#[test]
fn each_status_of_http_has_its_meaning() {
    for (status, expected) in [
        (200, "delivered"),
        (204, "delivered"),
        (301, "slow"),
        (307, "slow"),
        (400, "refused"),
        (401, "slow"),
        (403, "slow"),
        (404, "slow"),
        (405, "slow"),
        (408, "normal"),
        (409, "refused"),
        (413, "refused"),
        (415, "slow"),
        (422, "refused"),
        (429, "normal"),
        (500, "normal"),
        (501, "slow"),
        (502, "normal"),
        (503, "normal"),
        (504, "normal"),
        (999, "normal"),
    ] {
        assert_eq!(http(status), expected, "{status}");
    }
}

#[test]
fn each_status_of_grpc_has_its_meaning() {
    for (code, expected) in [
        (0, "delivered"),
        (1, "normal"),
        (2, "normal"),
        (3, "refused"),
        (4, "normal"),
        (5, "slow"),
        (6, "refused"),
        (7, "slow"),
        (8, "normal"),
        (9, "refused"),
        (10, "normal"),
        (11, "normal"),
        (12, "slow"),
        (13, "normal"),
        (14, "normal"),
        (15, "normal"),
        (16, "slow"),
        (99, "normal"),
        (-1, "normal"),
    ] {
        assert_eq!(grpc(code, ""), expected, "{code}");
    }
    let verdict = of_grpc(api(PARCA), &HeaderMap::new(), b"");
    assert_eq!(short(verdict), "normal");
    let verdict = of_grpc(api(PARCA), &headers(&[("grpc-status", "x")]), b"");
    assert_eq!(short(verdict), "normal");
}

#[test]
fn a_message_that_is_too_large_is_not_tried_for_ever() {
    for message in [
        "grpc: received message larger than max (5 vs. 4)",
        "Received%20message%20larger%20than%20max%20(5%20vs.%204)",
        "Error, decoded message length too large: found 5 bytes, the limit is: 4 bytes",
        "gRPC message exceeds maximum size 4: 5",
    ] {
        assert_eq!(grpc(8, message), "refused", "{message}");
    }
    assert_eq!(grpc(8, "too many requests"), "normal");
}

#[test]
fn pyroscope_says_in_words_that_a_profile_is_too_old() {
    let json = headers(&[("content-type", "application/json")]);
    let body = |what: &str| {
        format!(
            r#"{{"code":"invalid_argument","message":"profile is outside of ingestion window (profile timestamp: x, the ingestion window {what} at y)"}}"#
        )
    };
    for (what, expected) in [("starts", "too old"), ("ends", "refused")] {
        let verdict = of_http(api(PYROSCOPE), 400, &json, body(what).as_bytes());
        assert_eq!(short(verdict), expected);
    }
    assert_eq!(grpc(3, "the ingestion window starts at y"), "too old");
}

#[test]
fn connect_errors_are_read() {
    let json = headers(&[("content-type", "application/json")]);
    let aborted = br#"{"code":"aborted","message":"again"}"#;
    let verdict = of_http(api(PYROSCOPE), 409, &json, aborted);
    let DeliveryResult::Failed(failure) = verdict else {
        panic!("{verdict:?}")
    };
    assert_eq!(failure.why, "HTTP 409: again");
    // None of these bodies is the JSON object that the header announces.
    for body in [&b"{"[..], b"[]", b"\xff\xfe", b""] {
        assert_eq!(
            short(of_http(api(PYROSCOPE), 400, &json, body)),
            "refused",
            "{body:?}"
        );
    }
}

#[test]
fn the_wait_that_a_server_asks_for_is_found() {
    let wait = |verdict| match verdict {
        DeliveryResult::Failed(failure) => failure.wait.map(|wait| wait.as_millis()),
        other => panic!("{other:?}"),
    };
    let verdict = of_http(api(OTLP), 503, &headers(&[("retry-after", "7")]), b"");
    assert_eq!(wait(verdict), Some(7_000));
    for (value, expected) in [("1500", Some(1_500)), ("-1", Some(300_000)), ("x", None)] {
        let trailers = [("grpc-status", "14"), ("grpc-retry-pushback-ms", value)];
        let verdict = of_grpc(api(PARCA), &headers(&trailers), b"");
        assert_eq!(wait(verdict), expected, "{value}");
    }
    let info = RetryInfo {
        retry_delay: Some(Delay {
            seconds: 2,
            nanos: 500_000_000,
        }),
    };
    let status = RpcStatus {
        message: "busy".to_owned(),
        details: vec![RpcDetail {
            type_url: "type.googleapis.com/google.rpc.RetryInfo".to_owned(),
            value: info.encode_to_vec(),
        }],
    };
    let padded = base64::engine::general_purpose::STANDARD.encode(status.encode_to_vec());
    for value in [padded.trim_end_matches('='), &padded] {
        let trailers = [("grpc-status", "8"), ("grpc-status-details-bin", value)];
        let verdict = of_grpc(api(OTLP_GRPC), &headers(&trailers), b"");
        assert_eq!(wait(verdict), Some(2_500));
    }
    for value in ["", "!", "AAAA", "////"] {
        let trailers = [("grpc-status", "8"), ("grpc-status-details-bin", value)];
        assert_eq!(
            wait(of_grpc(api(OTLP_GRPC), &headers(&trailers), b"")),
            None
        );
    }
}

#[test]
fn what_was_rejected_of_a_body_is_read() {
    let response = ExportResponse {
        partial_success: Some(PartialSuccess {
            rejected_profiles: 3,
            error_message: "too\ndeep".to_owned(),
        }),
    };
    let expected = DeliveryResult::Delivered(Rejected {
        profiles: 3,
        message: "too deep".to_owned(),
    });
    let bytes = response.encode_to_vec();
    assert_eq!(of_http(api(OTLP), 200, &HeaderMap::new(), &bytes), expected);
    let json = br#"{"partialSuccess":{"rejectedProfiles":"3","errorMessage":"too\ndeep"}}"#;
    let headers_json = headers(&[("content-type", "application/json")]);
    assert_eq!(of_http(api(OTLP), 200, &headers_json, json), expected);
    let mut framed = vec![0];
    framed.extend(u32::try_from(bytes.len()).unwrap().to_be_bytes());
    framed.extend(&bytes);
    let ok = headers(&[("grpc-status", "0")]);
    assert_eq!(of_grpc(api(OTLP_GRPC), &ok, &framed), expected);
    for hostile in [
        &b""[..],
        b"\0",
        b"\0\xff\xff\xff\xff",
        b"\x01\0\0\0\0",
        b"\0\0\0\0\x01\xff",
    ] {
        let verdict = of_grpc(api(OTLP_GRPC), &ok, hostile);
        assert_eq!(verdict, DeliveryResult::Delivered(Rejected::default()));
    }
}

#[test]
fn messages_of_servers_are_short_and_of_one_line() {
    assert_eq!(clean("a\nb\x1b[31mc\u{202e}"), "a b [31mc ");
    let long = clean(&"é".repeat(1_000_000));
    assert_eq!(long.chars().count(), MAX_MESSAGE + 4);
}

#[test]
fn a_proxy_that_speaks_no_grpc_takes_and_refuses_nothing() {
    for status in [200, 400, 404, 502] {
        let verdict = of_no_grpc(api(PARCA), status, &HeaderMap::new(), b"<html>");
        assert!(matches!(verdict, DeliveryResult::Failed(_)), "{status}");
    }
}
