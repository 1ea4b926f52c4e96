//! What a server's answer means for the body that was sent.

use crate::backoff::{self, MAX_ASKED, Pace};
use aiprof_fleet::config::ServerApi;
use base64::Engine as _;
use prost::Message;
use reqwest::header::HeaderMap;
use std::time::{Duration, SystemTime};

/// Most characters of a server's message that are kept.
const MAX_MESSAGE: usize = 300;
/// End of a message that was cut because it was longer.
pub(crate) const CUT: &str = "[..]";

/// What became of a body.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DeliveryResult {
    /// The server has it, but for these profiles of it, which it rejected.
    Delivered(Rejected),
    /// The server never takes it.
    Refused(Cause, String),
    /// The server rejects it as too old.
    TooOld(String),
    /// It is worth another try.
    Failed(Failure),
}

/// Profiles of a body that the server did not take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rejected {
    /// How many.
    pub(crate) profiles: u64,
    /// The server's message, which it may send without rejecting anything.
    pub(crate) message: String,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    /// In short: another cause is another line in the log.
    pub(crate) cause: Cause,
    /// In words.
    pub(crate) why: String,
    /// How soon it is tried again.
    pub(crate) pace: Pace,
    /// The wait that the server asks for.
    pub(crate) wait: Option<Duration>,
}

impl Failure {
    /// That is tried again soon.
    pub(crate) fn soon(cause: Cause, why: String) -> Self {
        Self {
            cause,
            why,
            pace: Pace::Normal,
            wait: None,
        }
    }
}

/// Kinds of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Cause {
    /// There is no connection, or it broke.
    Connection,
    /// It took longer than `timeout`.
    Timeout,
    /// A token, certificate or key cannot be read.
    Credentials,
    /// An answer over HTTP.
    Http(u16),
    /// An answer over gRPC.
    Grpc(i32),
    /// The answer is none of the protocol.
    Protocol,
    /// The body is larger than a body can be.
    Size,
    /// The spool or the lake cannot be used.
    Storage,
}

impl Cause {
    /// Whether another body may fare better.
    pub(crate) fn may_be_the_bodys(self) -> bool {
        // The gRPC codes are UNKNOWN, DEADLINE_EXCEEDED, INTERNAL and DATA_LOSS: a server fails at
        // something of its own, or it or the way there is too slow. A proxy answers 502 or 504 for
        // a server that a body has ended. Other codes are about the server as a whole.
        matches!(
            self,
            Self::Timeout | Self::Http(500 | 502 | 504) | Self::Grpc(2 | 4 | 13 | 15)
        )
    }
}

/// From the status of an HTTP answer, its headers and its body (or the begin of it).
pub(crate) fn of_http(
    api: &ServerApi,
    status: u16,
    headers: &HeaderMap,
    body: &[u8],
) -> DeliveryResult {
    if (200..300).contains(&status) {
        return DeliveryResult::Delivered(match api.counts_rejected {
            true => rejected(headers, body),
            false => Rejected::default(),
        });
    }
    let (code, message) = error_of(headers, body);
    let cause = Cause::Http(status);
    let said = |what: String| match message.is_empty() {
        true => what,
        false => format!("{what}: {message}"),
    };
    let fail = |pace, why| {
        let asked = headers.get("retry-after").and_then(|v| v.to_str().ok());
        DeliveryResult::Failed(Failure {
            cause,
            why,
            pace,
            wait: asked.and_then(|value| backoff::retry_after(value, SystemTime::now())),
        })
    };
    match status {
        300..=399 => {
            let why = "the server redirects, which is not followed: write the target in `url`";
            fail(Pace::Slow, format!("HTTP {status}: {why}"))
        }
        401 | 403 | 407 => fail(Pace::Slow, said(denied(&format!("HTTP {status}")))),
        404 | 405 | 415 | 501 => {
            let what = format!("HTTP {status}: the server does not accept profiles at this URL");
            fail(Pace::Slow, said(format!("{what}; {}", api.advice)))
        }
        408 | 425 | 429 => fail(Pace::Normal, said(format!("HTTP {status}"))),
        // Connect's `aborted`.
        409 if code == "aborted" => fail(Pace::Normal, said(format!("HTTP {status}"))),
        400..=499 => {
            let why = said(format!("HTTP {status}"));
            match is_too_old(api, &message) {
                true => DeliveryResult::TooOld(why),
                false => DeliveryResult::Refused(cause, why),
            }
        }
        _ => fail(Pace::Normal, said(format!("HTTP {status}"))),
    }
}

/// From a gRPC status, which is in the trailers or, where there is no message, the headers.
pub(crate) fn of_grpc(api: &ServerApi, trailers: &HeaderMap, body: &[u8]) -> DeliveryResult {
    let text = |name: &str| trailers.get(name).and_then(|value| value.to_str().ok());
    let Some(code) = text("grpc-status").and_then(|code| code.trim().parse::<i32>().ok()) else {
        let why = "the answer has no gRPC status";
        return DeliveryResult::Failed(Failure::soon(Cause::Protocol, why.to_owned()));
    };
    if code == 0 {
        let message = unframe(body).filter(|_| api.counts_rejected);
        return DeliveryResult::Delivered(message.map(partial).unwrap_or_default());
    }
    let message = percent_encoding::percent_decode_str(text("grpc-message").unwrap_or_default());
    let message = clean(&message.decode_utf8_lossy());
    let name = grpc_name(code);
    let said = |what: String| match message.is_empty() {
        true => what,
        false => format!("{what}: {message}"),
    };
    let cause = Cause::Grpc(code);
    let wait = pushback(text("grpc-retry-pushback-ms"))
        .or_else(|| retry_info(text("grpc-status-details-bin")?));
    let fail = |pace, why| {
        DeliveryResult::Failed(Failure {
            cause,
            why,
            pace,
            wait,
        })
    };
    match code {
        _ if is_too_large(&message) => DeliveryResult::Refused(cause, said(name.to_owned())),
        // INVALID_ARGUMENT, ALREADY_EXISTS, FAILED_PRECONDITION.
        3 | 6 | 9 => match is_too_old(api, &message) {
            true => DeliveryResult::TooOld(said(name.to_owned())),
            false => DeliveryResult::Refused(cause, said(name.to_owned())),
        },
        // NOT_FOUND, UNIMPLEMENTED.
        5 | 12 => {
            let what = format!("{name}: the server does not accept profiles at this URL");
            fail(Pace::Slow, said(format!("{what}; {}", api.advice)))
        }
        // PERMISSION_DENIED, UNAUTHENTICATED.
        7 | 16 => fail(Pace::Slow, said(denied(name))),
        _ => fail(Pace::Normal, said(name.to_owned())),
    }
}

/// An HTTP answer without a gRPC status, where there should be one: a proxy's.
pub(crate) fn of_no_grpc(
    api: &ServerApi,
    status: u16,
    headers: &HeaderMap,
    body: &[u8],
) -> DeliveryResult {
    match of_http(api, status, headers, body) {
        DeliveryResult::Failed(failure) => DeliveryResult::Failed(failure),
        // Whatever it took or refused, it was no profile.
        _ => DeliveryResult::Failed(Failure {
            cause: Cause::Protocol,
            why: format!("HTTP {status} without a gRPC status: check that `url` is a gRPC port"),
            pace: Pace::Slow,
            wait: None,
        }),
    }
}

fn denied(what: &str) -> String {
    format!(
        "{what}: the server rejects the credentials: check `token_file`, `basic_auth_file` and \
         `tenant`; the files are read again for each request"
    )
}

fn is_too_old(api: &ServerApi, message: &str) -> bool {
    api.too_old.is_some_and(|sign| message.contains(sign))
}

/// Servers refuse messages that are too large for them by codes that mean to try again later.
fn is_too_large(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    // Texts of gRPC in Go and C, Rust, and Java.
    let signs = [
        "message larger than max",
        "message length too large",
        "message exceeds maximum size",
    ];
    signs.iter().any(|sign| message.contains(sign))
}

/// The name of a gRPC code.
fn grpc_name(code: i32) -> &'static str {
    const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    let at = usize::try_from(code).ok();
    at.and_then(|at| NAMES.get(at)).unwrap_or(&"unknown code")
}

/// `grpc-retry-pushback-ms`; less than 0: not at all, which is as late as can be.
fn pushback(value: Option<&str>) -> Option<Duration> {
    let millis: i64 = value?.trim().parse().ok()?;
    let wait = u64::try_from(millis).map_or(backoff::LONGEST, Duration::from_millis);
    Some(wait.min(MAX_ASKED))
}

/// google.rpc.Status, what is read of it.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<RpcDetail>,
}

/// google.protobuf.Any.
#[derive(Clone, PartialEq, Message)]
struct RpcDetail {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// google.rpc.RetryInfo.
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Delay>,
}

/// google.protobuf.Duration.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct Delay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// The wait in `grpc-status-details-bin`.
fn retry_info(value: &str) -> Option<Duration> {
    // With and without padding are both allowed.
    let value = value.trim().trim_end_matches('=');
    let bytes = base64::engine::general_purpose::STANDARD_NO_PAD
        .decode(value)
        .ok()?;
    let status = RpcStatus::decode(bytes.as_slice()).ok()?;
    let mut details = status.details.iter();
    let info = details.find(|detail| detail.type_url.ends_with("/google.rpc.RetryInfo"))?;
    let delay = RetryInfo::decode(info.value.as_slice()).ok()?.retry_delay?;
    let seconds = u64::try_from(delay.seconds).ok()?;
    let nanos = u32::try_from(delay.nanos).ok()?.min(999_999_999);
    Some(Duration::new(seconds, nanos).min(MAX_ASKED))
}

/// ExportProfilesServiceResponse.
#[derive(Clone, PartialEq, Message)]
struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

/// ExportProfilesPartialSuccess.
#[derive(Clone, PartialEq, Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected_profiles: i64,
    #[prost(string, tag = "2")]
    error_message: String,
}

/// What an OTLP server reports that it did not take of a body that it took. An invalid answer
/// counts as none.
fn partial(message: &[u8]) -> Rejected {
    let response = ExportResponse::decode(message).unwrap_or_default();
    let partial = response.partial_success.unwrap_or_default();
    Rejected {
        profiles: u64::try_from(partial.rejected_profiles).unwrap_or(0),
        message: clean(&partial.error_message),
    }
}

fn rejected(headers: &HeaderMap, body: &[u8]) -> Rejected {
    match is_json(headers) {
        false => partial(body),
        true => {
            let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
            let partial = &value["partialSuccess"];
            // JSON has 64-bit numbers as text.
            let number = &partial["rejectedProfiles"];
            let number = number.as_u64().or_else(|| number.as_str()?.parse().ok());
            Rejected {
                profiles: number.unwrap_or(0),
                message: clean(partial["errorMessage"].as_str().unwrap_or_default()),
            }
        }
    }
}

/// The message in a gRPC body of one message that is not packed.
fn unframe(body: &[u8]) -> Option<&[u8]> {
    let (head, rest) = body.split_first_chunk::<5>()?;
    let [0, length @ ..] = *head else {
        return None;
    };
    rest.get(..usize::try_from(u32::from_be_bytes(length)).ok()?)
}

fn content_type(headers: &HeaderMap) -> &str {
    let value = headers.get("content-type").and_then(|v| v.to_str().ok());
    value.unwrap_or_default()
}

fn is_json(headers: &HeaderMap) -> bool {
    content_type(headers).starts_with("application/json")
}

/// Code and message of an error's body: Connect's JSON, google.rpc.Status, or text.
fn error_of(headers: &HeaderMap, body: &[u8]) -> (String, String) {
    if is_json(headers)
        && let Ok(value) = serde_json::from_slice::<serde_json::Value>(body)
    {
        let text = |key: &str| value[key].as_str().map(clean);
        let message = text("message").or_else(|| text("error"));
        if let Some(message) = message {
            return (text("code").unwrap_or_default(), message);
        }
    }
    if content_type(headers).starts_with("application/x-protobuf")
        && let Ok(status) = RpcStatus::decode(body)
    {
        return (String::new(), clean(&status.message));
    }
    (String::new(), clean(&String::from_utf8_lossy(body)))
}

/// A message of somebody else's as part of a line: no control characters, and short.
pub(crate) fn clean(text: &str) -> String {
    // Looked at no further than needed: it may be megabytes.
    let mut cleaned = String::new();
    let mut chars = text.trim().chars();
    for c in chars.by_ref().take(MAX_MESSAGE) {
        match c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}') {
            true => cleaned.push(' '),
            false => cleaned.push(c),
        }
    }
    if chars.next().is_some() {
        cleaned.push_str(CUT);
    }
    cleaned
}

#[cfg(test)]
mod tests;
