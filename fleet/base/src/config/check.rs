//! What values of a configuration must be. A fault names the key and what to write.
//!
//! What depends on the machine, such as files and directories, is looked at by the program
//! that uses it, by the same functions by which it uses it.

use super::FREQUENCY;
use super::{Config, Faults, Files, Http, Lake, Otlp, Output, Protocol, To};
use bytesize::ByteSize;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most outputs.
const MAX_OUTPUTS: usize = 32;
/// Most labels of all that is recorded.
const MAX_LABELS: usize = 16;
/// Bounds of a window.
const WINDOW: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);
/// Bounds of the turns of which a host records one.
const ONE_IN: RangeInclusive<u32> = 1..=1000;
/// Bounds of the time after which a lake gets a file.
const ROLL_UP: RangeInclusive<Duration> = Duration::from_secs(10)..=Duration::from_secs(86_400);
/// Longest time that a request may take.
const TIMEOUT: Duration = Duration::from_secs(3600);
/// Least memory.
const LEAST_MEMORY: ByteSize = ByteSize::mib(16);
/// Least spool: a few windows of a busy host.
const LEAST_SPOOL: ByteSize = ByteSize::mib(1);
/// Most bytes of a label's value: of more the rest would be cut.
const MAX_LABEL: usize = 255;
/// Most bytes of a host's name: DNS has no longer ones.
const MAX_HOST: usize = 253;
/// The label that the host's id is.
const HOST_ID: &str = "host.id";
/// Pyroscope refuses what is older than an hour. Requests take their time.
const PYROSCOPE: Duration = Duration::from_secs(58 * 60);

const NAME_RULE: &str = "must have 1 to 64 letters, digits, `.`, `_` and `-`, and begin with a \
                         letter or digit";
const KEY_RULE: &str = "the key of a label must have 1 to 64 letters, digits, `_`, `.` and `-`";
const PATH_RULE: &str = "must be an absolute path without control characters";
/// What a host can be called.
pub const HOST_RULE: &str = "must have 1 to 253 bytes and no control characters";

/// Whether a host can be called so.
pub fn is_host(name: &str) -> bool {
    is_line(name, MAX_HOST)
}

/// Whether a text is in one line, and has something in it.
fn is_line(text: &str, most: usize) -> bool {
    !text.is_empty() && text.len() <= most && !text.contains(char::is_control)
}

/// Whether something can be called so: it is the name of a directory, too.
fn is_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let first = name.bytes().next();
    name.len() <= 64
        && first.is_some_and(|byte| byte.is_ascii_alphanumeric())
        && name.bytes().all(is_letter)
}

/// Whether a path means the same in each directory.
fn is_path(path: &Path) -> bool {
    path.is_absolute() && !path.to_string_lossy().contains(char::is_control)
}

impl Config {
    /// Finds what is wrong with values.
    pub(super) fn check(&self, faults: &mut Faults) {
        self.check_numbers(faults);
        self.check_names(faults);
        self.check_labels(faults);
        if self.outputs.len() > MAX_OUTPUTS {
            faults.add("output", format!("must be at most {MAX_OUTPUTS} outputs"));
        }
        for (at, output) in self.outputs.iter().enumerate() {
            let before = self.outputs.get(..at).unwrap_or_default();
            output.check(before, self.window, faults);
        }
    }

    fn check_numbers(&self, faults: &mut Faults) {
        if !FREQUENCY.contains(&self.frequency) {
            let (least, most) = (FREQUENCY.start(), FREQUENCY.end());
            let why = format!("must be {least} to {most} samples per second and CPU");
            faults.add("frequency", why);
        }
        if !WINDOW.contains(&self.window) {
            faults.add("window", "must be 1s to 1h");
        }
        if !ONE_IN.contains(&self.one_in) {
            faults.add("one_in", "must be 1 (always) to 1000");
        }
        if !(self.budget.cpu > 0.0 && self.budget.cpu <= 1.0) {
            faults.add("budget.cpu", "must be above 0% and at most 100%");
        }
        if self.budget.memory < LEAST_MEMORY {
            faults.add("budget.memory", "must be at least 16MiB");
        }
        if self.spool.size < LEAST_SPOOL {
            let why = "must be at least 1MiB to hold profiles while a server is down";
            faults.add("spool.size", why);
        }
        if self.metrics.listen.is_some_and(|at| at.port() == 0) {
            faults.add(
                "metrics.listen",
                "the port must be 1 to 65535, or write \"off\"",
            );
        }
    }

    fn check_names(&self, faults: &mut Faults) {
        for (key, name) in [("host", &self.host), ("host_id", &self.host_id)] {
            if name.as_ref().is_some_and(|name| !is_host(name)) {
                faults.add(key, HOST_RULE);
            }
        }
        if !is_path(&self.state) {
            faults.add("state", PATH_RULE);
        }
        if !is_name(&self.control.name) {
            faults.add("control.name", NAME_RULE);
        }
    }

    fn check_labels(&self, faults: &mut Faults) {
        if self.labels.len() > MAX_LABELS {
            faults.add("labels", format!("must be at most {MAX_LABELS} labels"));
        }
        for (key, value) in &self.labels {
            let name = format!("labels.{key}");
            let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
            if key.is_empty() || key.len() > 64 || !key.bytes().all(is_letter) {
                faults.add(name, KEY_RULE);
            } else if key == HOST_ID {
                faults.add(name, "the agent sets this label: use `host_id`");
            } else if !value.is_empty() && !is_line(value, MAX_LABEL) {
                let why = format!("must have at most {MAX_LABEL} bytes and no control characters");
                faults.add(name, why);
            }
        }
    }
}

impl Output {
    fn check(&self, before: &[Self], window: Duration, faults: &mut Faults) {
        let key = |part: &str| format!("output.{}.{part}", self.name);
        if !is_name(&self.name) {
            faults.add(key("name"), NAME_RULE);
        }
        if before.iter().any(|other| other.name == self.name) {
            let why = "two outputs have this name: give each a different `name`";
            faults.add(key("name"), why);
        }
        let mut add = |part: &str, why: &str| faults.add(key(part), why);
        match &self.to {
            To::Files(files) => files.check(before, &mut add),
            To::Otlp(Otlp { http, .. }) | To::Pyroscope(http) | To::Parca(http) => {
                http.check(&self.to, &mut add);
                if self.to.max_age().is_some_and(|age| age <= window) {
                    let why =
                        "must be longer than `window`, because a window is that old when it ends";
                    add("max_age", why);
                }
            }
            To::Lake(lake) => lake.check(&mut add),
        }
    }
}

/// Takes a key of an output, and what is wrong with it.
type Add<'a> = dyn FnMut(&str, &str) + 'a;

impl Files {
    fn check(&self, before: &[Output], add: &mut Add<'_>) {
        if !is_path(&self.directory) {
            add("directory", PATH_RULE);
        }
        if self.keep == Some(0) {
            add("keep", "must be at least 1");
        }
        let is_same = |other: &Output| match &other.to {
            To::Files(other) => other.directory == self.directory && other.format == self.format,
            _ => false,
        };
        if before.iter().any(is_same) {
            let why = "another output writes the same files: name a different directory";
            add("directory", why);
        }
    }
}

impl To {
    /// How old a window may be for it to be worth a request; `None`: as old as it is.
    pub fn max_age(&self) -> Option<Duration> {
        match self {
            Self::Files(_) | Self::Lake(_) => None,
            Self::Otlp(Otlp { http, .. }) | Self::Parca(http) => http.max_age,
            Self::Pyroscope(http) => http.max_age.or(Some(PYROSCOPE)),
        }
    }
}

impl Http {
    /// Whether what is sent there stays on this machine.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        UrlParts::of(&self.url).is_ok_and(|place| place.is_loopback())
    }

    fn check(&self, to: &To, add: &mut Add<'_>) {
        match UrlParts::of(&self.url) {
            Err(why) => add("url", why),
            Ok(place) => self.check_place(&place, to, add),
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

    fn check_place(&self, place: &UrlParts<'_>, to: &To, add: &mut Add<'_>) {
        let is_grpc = matches!(to, To::Otlp(otlp) if otlp.protocol == Protocol::Grpc);
        if is_grpc && !matches!(place.rest, "" | "/") {
            add(
                "url",
                "has a path, which gRPC does not use: end it after HOST:PORT",
            );
        }
        let is_whole = matches!(to, To::Otlp(_));
        if place.rest.contains('#') || (!is_whole && place.rest.contains('?')) {
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

fn check_paths(files: &[(&str, &Option<PathBuf>)], add: &mut Add<'_>) {
    for (key, file) in files {
        if file.as_ref().is_some_and(|file| !is_path(file)) {
            add(key, PATH_RULE);
        }
    }
}

impl Lake {
    fn check(&self, add: &mut Add<'_>) {
        let path = self.url.strip_prefix("file://").unwrap_or(&self.url);
        let place = self.url.strip_prefix("s3://");
        match place {
            Some(place) => {
                let bucket = place.split('/').next().unwrap_or_default();
                let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
                if !(3..=63).contains(&bucket.len()) || !bucket.bytes().all(is_letter) {
                    let why = "must be s3://BUCKET[/PREFIX], where BUCKET has 3 to 63 letters, \
                               digits, `.` and `-`";
                    add("url", why);
                } else if place.contains(char::is_control) {
                    add("url", "the prefix must not have control characters");
                }
            }
            None if !is_path(Path::new(path)) => {
                add("url", "must be file:///PATH, /PATH or s3://BUCKET[/PREFIX]");
            }
            None => {}
        }
        if !ROLL_UP.contains(&self.roll_up) {
            add("roll_up", "must be 10s to 1d");
        }
        if let Some(Err(why)) = self.endpoint.as_deref().map(UrlParts::of) {
            add("endpoint", why);
        }
        if self.region.as_ref().is_some_and(|name| !is_name(name)) {
            add("region", NAME_RULE);
        }
        let files = [
            ("credentials_file", &self.credentials_file),
            ("ca_file", &self.ca_file),
        ];
        check_paths(&files, add);
        let of_s3 = [
            ("endpoint", self.endpoint.is_some()),
            ("region", self.region.is_some()),
            ("credentials_file", self.credentials_file.is_some()),
            ("ca_file", self.ca_file.is_some()),
        ];
        for (key, _) in of_s3
            .iter()
            .filter(|(_, is_set)| *is_set && place.is_none())
        {
            add(
                key,
                "works with s3:// only: remove it, or set `url` to s3://BUCKET",
            );
        }
    }
}

/// The parts of a URL that matter here.
struct UrlParts<'a> {
    is_tls: bool,
    host: &'a str,
    /// What follows host and port.
    rest: &'a str,
}

impl<'a> UrlParts<'a> {
    /// Takes no host that one reader of URLs could take for another: only plain letters.
    fn of(url: &'a str) -> Result<Self, &'static str> {
        let (is_tls, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return Err("must begin with https:// or http://"),
        };
        if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("has spaces or non-ASCII characters: write %20, or xn-- in a host name");
        }
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (place, rest) = rest.split_at(end);
        if place.contains('@') {
            return Err("has a user or password, which logs would show: use `basic_auth_file`");
        }
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !place.ends_with(']') => (host, Some(port)),
            _ => (place, None),
        };
        if host.is_empty() {
            return Err("has no host");
        }
        if !is_address(host) {
            return Err("HOST must have only letters, digits, `.`, `-` and `_`, or be [IPv6]");
        }
        let is_port = |port: &str| {
            port.bytes().all(|byte| byte.is_ascii_digit())
                && port.parse::<u16>().is_ok_and(|port| port > 0)
        };
        match port.is_none_or(is_port) {
            true => Ok(Self { is_tls, host, rest }),
            false => Err("PORT must be 1 to 65535"),
        }
    }

    /// Whether what is sent there stays on this machine.
    fn is_loopback(&self) -> bool {
        let ipv6 = ipv6(self.host).is_some_and(|address| address.is_loopback());
        let ipv4 = self.host.parse::<Ipv4Addr>();
        self.host == "localhost" || ipv6 || ipv4.is_ok_and(|address| address.is_loopback())
    }
}

fn ipv6(host: &str) -> Option<Ipv6Addr> {
    let inner = host.strip_prefix('[')?.strip_suffix(']')?;
    inner.parse().ok()
}

fn is_address(host: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    host.bytes().all(is_letter) || ipv6(host).is_some()
}
