//! What outputs that are servers have in common.

use super::super::duration;
use super::url::UrlParts;
use super::{Add, To, check_paths};
use crate::spool::BodyPacking;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Longest time that a request may take.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// What distinguishes a server's API from those of others.
pub struct ServerApi {
    /// What requests are.
    pub transport: Transport,
    /// What `url` of the configuration is.
    pub url: UrlForm,
    /// What bodies are.
    pub body: BodyForm,
    /// Age of windows that the server is known to refuse, less what a request takes; `None`: it
    /// takes all.
    pub max_age: Option<Duration>,
    /// Part of the error with which it refuses what is too old; `None`: it has none.
    pub too_old: Option<&'static str>,
    /// Whether its answers are OTLP's, which report what was rejected of a body.
    pub counts_rejected: bool,
    /// What to do where the server does not know the request.
    pub advice: &'static str,
}

/// What requests are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// POST, with these headers: names in lower case, and values.
    Post(&'static [(&'static str, &'static str)]),
    /// gRPC, with one message.
    Grpc,
}

/// What `url` of the configuration is. A method is the path of requests, and begins with `/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrlForm {
    /// The URL of requests.
    Whole,
    /// What stands before this method.
    Base(&'static str),
    /// The same, without a path of its own.
    Host(&'static str),
}

/// What a body is: the agent makes it, and the server takes it as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyForm {
    /// OpenTelemetry's `ExportProfilesServiceRequest`.
    Otlp,
    /// Pyroscope's `push.v1.PushRequest`.
    Pyroscope,
    /// Parca's `WriteRawRequest`.
    Parca,
    /// A pprof file.
    Pprof,
}

/// A server that bodies are sent to.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerTarget {
    /// What it understands.
    pub api: &'static ServerApi,
    /// How bodies are packed.
    pub packing: BodyPacking,
    /// Address, headers and limits.
    pub http: Http,
}

/// A server.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Http {
    /// `https://HOST[:PORT][/PATH]`, or `http://`.
    pub url: String,
    /// Headers of each request; nothing secret.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// The tenant of a shared server (`X-Scope-OrgID`).
    #[serde(default)]
    pub tenant: Option<String>,
    /// A file with a bearer token, read anew for each request.
    #[serde(default)]
    pub token_file: Option<PathBuf>,
    /// `user:password` for basic authentication, in a file, read anew for each request.
    #[serde(default)]
    pub basic_auth_file: Option<PathBuf>,
    /// Certificates of who is trusted, PEM; default: those of the system.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// This client's certificate, PEM, and its key.
    #[serde(default)]
    pub cert_file: Option<PathBuf>,
    /// The key of `cert_file`, PEM.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
    /// How long a request may take.
    #[serde(default = "thirty_seconds", deserialize_with = "duration")]
    pub timeout: Duration,
    /// Windows that are older are not sent, and counted; default: what the server is known
    /// to refuse.
    #[serde(default, deserialize_with = "some_duration")]
    pub max_age: Option<Duration>,
}

fn thirty_seconds() -> Duration {
    Duration::from_secs(30)
}

fn some_duration<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    duration(from).map(Some)
}

impl ServerApi {
    /// Whether requests are gRPC.
    pub fn is_grpc(&self) -> bool {
        self.transport == Transport::Grpc
    }
}

impl PartialEq for ServerApi {
    fn eq(&self, other: &Self) -> bool {
        (self.url, self.transport) == (other.url, other.transport)
    }
}

impl fmt::Debug for ServerApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", self.transport, self.url)
    }
}

impl ServerTarget {
    /// One whose keys are only those that all servers have.
    pub(super) fn read(keys: toml::Table, api: &'static ServerApi) -> Result<To, toml::de::Error> {
        Ok(To::Server(Self {
            api,
            packing: BodyPacking::Raw,
            http: Http::deserialize(keys)?,
        }))
    }

    /// How old a window may be for it to be worth a request; `None`: as old as it is.
    pub fn max_age(&self) -> Option<Duration> {
        self.http.max_age.or(self.api.max_age)
    }

    pub(super) fn check(&self, window: Duration, add: &mut Add<'_>) {
        self.http.check(self.api.url, add);
        if self.max_age().is_some_and(|age| age <= window) {
            let why = "must be longer than `window`, because a window is that old when it ends";
            add("max_age", why);
        }
    }
}

impl Http {
    /// Whether what is sent there stays on this machine.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        UrlParts::of(&self.url).is_ok_and(|place| place.is_loopback())
    }

    fn check(&self, url: UrlForm, add: &mut Add<'_>) {
        match UrlParts::of(&self.url) {
            Err(why) => add("url", why),
            Ok(place) => self.check_place(&place, url, add),
        }
        self.check_headers(add);
        let files = [
            ("token_file", &self.token_file),
            ("basic_auth_file", &self.basic_auth_file),
            ("ca_file", &self.ca_file),
            ("cert_file", &self.cert_file),
            ("key_file", &self.key_file),
        ];
        check_paths(&files, add);
        if self.cert_file.is_some() != self.key_file.is_some() {
            add(
                "cert_file",
                "set both `cert_file` and `key_file`, or neither",
            );
        }
        if self.token_file.is_some() && self.basic_auth_file.is_some() {
            add(
                "token_file",
                "set `token_file` or `basic_auth_file`, not both",
            );
        }
        if self.timeout.is_zero() || self.timeout > TIMEOUT {
            add("timeout", "must be more than 0s and at most 1h");
        }
    }

    fn check_place(&self, place: &UrlParts<'_>, url: UrlForm, add: &mut Add<'_>) {
        if matches!(url, UrlForm::Host(_)) && !matches!(place.rest, "" | "/") {
            add(
                "url",
                "has a path, which gRPC does not use: end it after HOST:PORT",
            );
        }
        let has_query = matches!(url, UrlForm::Base(_)) && place.rest.contains('?');
        if has_query || place.rest.contains('#') {
            add("url", "remove the part that begins with `?` or `#`");
        }
        if place.is_tls {
            return;
        }
        if [&self.ca_file, &self.cert_file, &self.key_file]
            .iter()
            .any(|file| file.is_some())
        {
            add(
                "url",
                "certificates need https://: write https:// in the URL",
            );
        }
        let is_secret = self.token_file.is_some() || self.basic_auth_file.is_some();
        if is_secret && !place.is_loopback() {
            let why = "http:// would send the secret unencrypted: write https://, or an \
                       address of this machine such as 127.0.0.1";
            add("url", why);
        }
    }

    fn check_headers(&self, add: &mut Add<'_>) {
        for (name, value) in &self.headers {
            let key = format!("headers.{name}");
            let lower = name.to_ascii_lowercase();
            if !is_header(name) {
                add(&key, "is not a header name: use letters, digits and `-`");
            } else if lower == "authorization" {
                let why =
                    "would put a secret into this file: use `token_file` or `basic_auth_file`";
                add(&key, why);
            } else if OWN_HEADERS.contains(&lower.as_str()) {
                add(&key, "aiprof-send sets this header: remove it");
            } else if !is_header_value(value) {
                add(&key, HEADER_RULE);
            }
        }
        if let Some(tenant) = &self.tenant
            && (tenant.is_empty() || !is_header_value(tenant))
        {
            add("tenant", HEADER_RULE);
        }
    }
}

const HEADER_RULE: &str = "must be one line of text without control characters";

/// Headers that are of the request itself.
const OWN_HEADERS: [&str; 4] = ["host", "content-length", "transfer-encoding", "connection"];

/// Whether a header can be called so (RFC 9110, 5.6.2).
fn is_header(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_letter)
}

/// Whether a header can have this value: another line would be another header.
fn is_header_value(value: &str) -> bool {
    value.len() <= 8192 && !value.contains(|c: char| c.is_control() && c != '\t')
}
