//! The configuration of the agent: a TOML file, which docs/agent.md describes.
//!
//! Each key has a default, and an unknown one is an error, with its line. What is secret is
//! never in it: tokens and keys are in files of their own, which it names.

use bytesize::ByteSize;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Largest file that is read.
pub const MAX_BYTES: u64 = 1 << 20;
/// Most outputs.
const MAX_OUTPUTS: usize = 32;
/// Most labels of all that is recorded.
const MAX_LABELS: usize = 16;
/// Bounds of a window.
const WINDOW: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(3600);
/// Bounds of the turns of which a host records one.
const ONE_IN: std::ops::RangeInclusive<u32> = 1..=1000;
/// Bounds of the samples per second and CPU.
pub const FREQUENCY: std::ops::RangeInclusive<u32> = 1..=1000;

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It could not be read.
    #[error("{path}: {cause}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: std::io::Error,
    },
    /// It is no such TOML; the text has the line.
    #[error("{path}: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        message: String,
    },
    /// A value cannot be.
    #[error("{path}: {key}: {why}")]
    Value {
        /// The file.
        path: PathBuf,
        /// The key, as in `output.lake.url`.
        key: String,
        /// What is wrong with it.
        why: String,
    },
}

/// How the agent works.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Samples per second and CPU; the budget may lower it.
    pub frequency: u32,
    /// Length of a window: one profile each.
    #[serde(deserialize_with = "duration")]
    pub window: Duration,
    /// The host records in one of so many turns of ten windows, drawn by chance, and what it
    /// records counts so many times.
    pub one_in: u32,
    /// What the host is called; `None`: its host name.
    pub host: Option<String>,
    /// What the host is told from others by; `None`: made of its machine id. Images that were
    /// cloned with their machine id need it.
    pub host_id: Option<String>,
    /// Labels of all that is recorded: keys and values.
    pub labels: BTreeMap<String, String>,
    /// Where the agent keeps what must survive a restart.
    pub state: PathBuf,
    /// What is recorded beside CPU samples.
    pub record: Record,
    /// What it may cost.
    pub budget: Budget,
    /// What waits for delivery.
    pub spool: Spool,
    /// Where it tells how it is.
    pub metrics: Metrics,
    /// How it is steered.
    pub control: Control,
    /// Where profiles go.
    #[serde(rename = "output")]
    pub outputs: Vec<Output>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            frequency: 19,
            window: Duration::from_secs(60),
            one_in: 1,
            host: None,
            host_id: None,
            labels: BTreeMap::new(),
            state: "/var/lib/aiprof".into(),
            record: Record::default(),
            budget: Budget::default(),
            spool: Spool::default(),
            metrics: Metrics::default(),
            control: Control::default(),
            outputs: Vec::new(),
        }
    }
}

/// What is recorded beside CPU samples, which always are, with Python's frames.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Record {
    /// Waits of threads, sampled by their length. What records them runs at each switch and at
    /// the end of each system call, and slows programs with many of these: only where asked
    /// for.
    pub off_cpu: bool,
    /// Source files and lines of native code, beside its functions; Python's are there in any
    /// case.
    pub source_lines: bool,
    /// Calls that launch work on accelerators.
    pub launches: bool,
    /// Samples of devices. They may disturb what runs on them, and another profiler of the
    /// same device: only where asked for.
    pub devices: bool,
}

impl Default for Record {
    fn default() -> Self {
        Self {
            off_cpu: false,
            source_lines: false,
            launches: true,
            devices: false,
        }
    }
}

/// What the agent may cost.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
    /// Share of the machine's CPU time, of all CPUs together, between 0 and 1: `"0.1%"`.
    #[serde(deserialize_with = "share")]
    pub cpu: f64,
    /// Memory that is its own: anonymous and shared, without eBPF maps.
    pub memory: ByteSize,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            cpu: 0.001,
            memory: ByteSize::mib(64),
        }
    }
}

/// What waits for delivery.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Spool {
    /// Most bytes of each output; beyond it the oldest go, and are counted.
    pub size: ByteSize,
}

impl Default for Spool {
    fn default() -> Self {
        Self {
            size: ByteSize::mib(256),
        }
    }
}

/// Where the agent tells how it is, in OpenMetrics.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// Address and port; `None`: nowhere.
    #[serde(deserialize_with = "listen")]
    pub listen: Option<SocketAddr>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            listen: Some(SocketAddr::from(([127, 0, 0, 1], 9464))),
        }
    }
}

/// How the agent is steered.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Control {
    /// Whether it can be steered by `aiprof agent ctl` on the same machine.
    pub local: bool,
    /// Its name, where there are several on a machine.
    pub name: String,
}

impl Default for Control {
    fn default() -> Self {
        Self {
            local: true,
            name: "agent".to_owned(),
        }
    }
}

/// One place where profiles go.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Output {
    /// What it is called, in logs, metrics and the spool; default: its type.
    #[serde(default)]
    pub name: String,
    /// What is sent and how.
    #[serde(flatten)]
    pub to: To,
}

/// What is sent, and how.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum To {
    /// A file for each window.
    Files(Files),
    /// OpenTelemetry's profiles.
    Otlp(Otlp),
    /// Pyroscope's push API.
    Pyroscope(Http),
    /// Parca's WriteRaw.
    Parca(Http),
    /// Parquet files that are asked by `aiprof-query`, DuckDB, ClickHouse or Spark.
    Lake(Lake),
}

impl To {
    /// The word for it in the configuration.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Files(_) => "files",
            Self::Otlp(_) => "otlp",
            Self::Pyroscope(_) => "pyroscope",
            Self::Parca(_) => "parca",
            Self::Lake(_) => "lake",
        }
    }

    /// Whether `aiprof-send` delivers it.
    pub fn is_sent(&self) -> bool {
        !matches!(self, Self::Files(_))
    }
}

/// Files in a directory, one for each window.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Files {
    /// Where.
    pub directory: PathBuf,
    /// As what: an extension that aiprof knows (`pprof`, `folded`, `svg`, `otlp`).
    #[serde(default = "pprof")]
    pub format: String,
    /// How many are kept; `None`: all.
    #[serde(default)]
    pub keep: Option<u32>,
}

/// How OpenTelemetry's profiles are sent.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Otlp {
    /// By which protocol.
    #[serde(default)]
    pub protocol: Protocol,
    /// Whether what is sent is packed.
    #[serde(default)]
    pub compression: Compression,
    /// Where to.
    #[serde(flatten)]
    pub http: Http,
}

/// A protocol of OTLP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// POST; the URL is the whole of it.
    #[default]
    Http,
    /// gRPC; the URL has no path.
    Grpc,
}

/// How bodies are packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// By gzip.
    #[default]
    Gzip,
    /// Not at all.
    None,
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

/// A lake.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lake {
    /// `file:///PATH`, a path, or `s3://BUCKET[/PREFIX]`.
    pub url: String,
    /// How often what was spooled becomes a file of the lake.
    #[serde(default = "one_hour", deserialize_with = "duration")]
    pub roll_up: Duration,
    /// Of S3: where it is, if not at AWS.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// Of S3: the region.
    #[serde(default)]
    pub region: Option<String>,
    /// Of S3: a file in the form of `~/.aws/credentials`, profile `default`; without it the
    /// environment and the machine's own role are asked.
    #[serde(default)]
    pub credentials_file: Option<PathBuf>,
    /// Certificates of who is trusted, PEM; default: those of the system.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// How long files are kept; `None`: until somebody deletes them. Said to who compacts:
    /// the agent's configuration cannot have it.
    #[serde(skip)]
    pub keep: Option<Duration>,
}

impl Lake {
    /// Its directory, if it is in one.
    pub fn directory(&self) -> Option<PathBuf> {
        let path = self.url.strip_prefix("file://").unwrap_or(&self.url);
        (!self.url.starts_with("s3://")).then(|| PathBuf::from(path))
    }

    /// One at this place, with the defaults.
    pub fn at(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            roll_up: one_hour(),
            endpoint: None,
            region: None,
            credentials_file: None,
            ca_file: None,
            keep: None,
        }
    }
}

impl Config {
    /// Reads a file and checks it.
    ///
    /// # Errors
    /// It cannot be read, is no such TOML, or has a value that cannot be.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let read = || -> std::io::Result<String> {
            let file = std::fs::File::open(path)?;
            let mut text = String::new();
            let read = std::io::Read::read_to_string(
                &mut std::io::Read::take(file, MAX_BYTES + 1),
                &mut text,
            )?;
            match read as u64 > MAX_BYTES {
                true => Err(std::io::Error::other("longer than a configuration can be")),
                false => Ok(text),
            }
        };
        let text = read().map_err(|cause| ConfigError::Read {
            path: path.to_owned(),
            cause,
        })?;
        Self::parse(path, &text)
    }

    /// From the text of a file, of which messages name the path.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let mut config: Self = toml::from_str(text).map_err(|error| ConfigError::Parse {
            path: path.to_owned(),
            message: error.to_string().trim_end().to_owned(),
        })?;
        for output in &mut config.outputs {
            if output.name.is_empty() {
                output.name = output.to.word().to_owned();
            }
        }
        match config.check() {
            Ok(()) => Ok(config),
            Err((key, why)) => Err(ConfigError::Value {
                path: path.to_owned(),
                key,
                why,
            }),
        }
    }

    fn check(&self) -> Result<(), (String, String)> {
        let wrong = |key: &str, why: String| Err((key.to_owned(), why));
        if !FREQUENCY.contains(&self.frequency) {
            let (least, most) = (FREQUENCY.start(), FREQUENCY.end());
            return wrong("frequency", format!("{least} to {most} per second and CPU"));
        }
        if !WINDOW.contains(&self.window) {
            return wrong("window", "1s to 1h".to_owned());
        }
        if !ONE_IN.contains(&self.one_in) {
            return wrong("one_in", "1 (always) to 1000".to_owned());
        }
        if !(self.budget.cpu > 0.0 && self.budget.cpu <= 1.0) {
            return wrong("budget.cpu", "above 0% and up to 100%".to_owned());
        }
        if self.budget.memory < ByteSize::mib(16) {
            return wrong("budget.memory", "16MiB at least".to_owned());
        }
        if !self.state.is_absolute() {
            return wrong("state", "an absolute path".to_owned());
        }
        if self.labels.len() > MAX_LABELS {
            return wrong("labels", format!("{MAX_LABELS} at most"));
        }
        for key in self.labels.keys() {
            let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
            if key.is_empty() || key.len() > 64 || !key.bytes().all(is_letter) {
                let why = "a key has letters, digits, `_`, `.` and `-`, 64 at most";
                return wrong(&format!("labels.{key}"), why.to_owned());
            }
        }
        if !is_name(&self.control.name) {
            return wrong("control.name", NAME_RULE.to_owned());
        }
        if self.outputs.len() > MAX_OUTPUTS {
            return wrong("output", format!("{MAX_OUTPUTS} at most"));
        }
        for (at, output) in self.outputs.iter().enumerate() {
            let key = |part: &str| format!("output.{}.{part}", output.name);
            if !is_name(&output.name) {
                return wrong(&key("name"), NAME_RULE.to_owned());
            }
            let before = self.outputs.get(..at).unwrap_or_default();
            if before.iter().any(|other| other.name == output.name) {
                return wrong(
                    &key("name"),
                    "two outputs are called so: give each a `name`".to_owned(),
                );
            }
            output.to.check().map_err(|(part, why)| (key(part), why))?;
        }
        Ok(())
    }

    /// What the spool of this agent is in.
    pub fn spool_directory(&self) -> PathBuf {
        self.state.join("spool")
    }

    /// Where `aiprof-send` writes how it is.
    pub fn sender_directory(&self) -> PathBuf {
        self.state.join("sender")
    }
}

const NAME_RULE: &str = "letters, digits, `.`, `_` and `-`, 64 at most, a letter or digit first";

/// Whether something can be called so: it is the name of a directory, too.
fn is_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let first = name.bytes().next();
    name.len() <= 64
        && first.is_some_and(|byte| byte.is_ascii_alphanumeric())
        && name.bytes().all(is_letter)
}

impl To {
    fn check(&self) -> Result<(), (&'static str, String)> {
        match self {
            Self::Files(files) if !files.directory.is_absolute() => {
                Err(("directory", "an absolute path".to_owned()))
            }
            Self::Files(files) if files.keep == Some(0) => Err(("keep", "1 at least".to_owned())),
            Self::Files(_) => Ok(()),
            Self::Otlp(otlp) => otlp.http.check(),
            Self::Pyroscope(http) | Self::Parca(http) => http.check(),
            Self::Lake(lake) => {
                let is_path = lake.url.starts_with('/') || lake.url.starts_with("file:///");
                if !is_path && !lake.url.starts_with("s3://") {
                    return Err((
                        "url",
                        "file:///PATH, /PATH or s3://BUCKET[/PREFIX]".to_owned(),
                    ));
                }
                if lake.roll_up < Duration::from_secs(10) {
                    return Err(("roll_up", "10s at least".to_owned()));
                }
                Ok(())
            }
        }
    }
}

impl Http {
    fn check(&self) -> Result<(), (&'static str, String)> {
        let rest = self.url.strip_prefix("https://");
        let Some(rest) = rest.or_else(|| self.url.strip_prefix("http://")) else {
            return Err(("url", "begins with https:// or http://".to_owned()));
        };
        let host = rest.split('/').next().unwrap_or_default();
        if host.is_empty() {
            return Err(("url", "has no host".to_owned()));
        }
        if host.contains('@') {
            let why = "has a user or password, which logs would show: use `basic_auth_file`";
            return Err(("url", why.to_owned()));
        }
        if self.cert_file.is_some() != self.key_file.is_some() {
            return Err((
                "cert_file",
                "`cert_file` and `key_file` go together".to_owned(),
            ));
        }
        if self.token_file.is_some() && self.basic_auth_file.is_some() {
            return Err((
                "token_file",
                "one of `token_file` and `basic_auth_file`".to_owned(),
            ));
        }
        if self.timeout.is_zero() {
            return Err(("timeout", "more than 0s".to_owned()));
        }
        Ok(())
    }
}

fn pprof() -> String {
    "pprof".to_owned()
}

fn thirty_seconds() -> Duration {
    Duration::from_secs(30)
}

fn one_hour() -> Duration {
    Duration::from_secs(3600)
}

fn duration<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    humantime::parse_duration(&text).map_err(serde::de::Error::custom)
}

fn some_duration<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    duration(from).map(Some)
}

fn share<'de, D: serde::Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    let text = String::deserialize(from)?;
    let percent = text
        .trim()
        .strip_suffix('%')
        .and_then(|number| number.trim().parse::<f64>().ok());
    match percent {
        Some(percent) if percent.is_finite() => Ok(percent / 100.0),
        _ => Err(serde::de::Error::custom(
            "a share of the machine's CPU time, as in \"0.1%\"",
        )),
    }
}

fn listen<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(from)?;
    match text.as_str() {
        "off" => Ok(None),
        address => address.parse().map(Some).map_err(|_| {
            serde::de::Error::custom("ADDRESS:PORT, as in \"127.0.0.1:9464\", or \"off\"")
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(Path::new("agent.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_is_the_default() {
        assert_eq!(parse("").unwrap(), Config::default());
    }

    #[test]
    fn all_of_it_is_read() {
        let config = parse(
            r#"
            frequency = 49
            window = "30s"
            host = "web-1"
            labels = { cluster = "c1" }
            [record]
            off_cpu = true
            devices = true
            [budget]
            cpu = "0.5%"
            memory = "100MiB"
            [metrics]
            listen = "off"
            [[output]]
            type = "files"
            directory = "/var/lib/aiprof/files"
            keep = 10
            [[output]]
            name = "collector"
            type = "otlp"
            protocol = "grpc"
            url = "https://collector:4317"
            token_file = "/etc/aiprof/token"
            timeout = "5s"
            [[output]]
            type = "pyroscope"
            url = "http://pyroscope:4040"
            max_age = "1h"
            [[output]]
            type = "lake"
            url = "s3://profiles/prod"
            endpoint = "http://127.0.0.1:8333"
            "#,
        )
        .unwrap();
        assert_eq!(config.frequency, 49);
        assert!((config.budget.cpu - 0.005).abs() < 1e-12);
        assert_eq!(config.metrics.listen, None);
        assert!(config.record.launches && config.record.devices && config.record.off_cpu);
        let names: Vec<_> = config.outputs.iter().map(|o| o.name.as_str()).collect();
        assert_eq!(names, ["files", "collector", "pyroscope", "lake"]);
        let To::Otlp(otlp) = &config.outputs[1].to else {
            panic!()
        };
        assert_eq!(otlp.protocol, Protocol::Grpc);
        assert_eq!(otlp.http.timeout, Duration::from_secs(5));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (text, expected) in [
            ("frequenzy = 1", "line 1"),
            ("frequency = 0", "agent.toml: frequency: 1 to 1000"),
            ("window = \"1d\"", "window: 1s to 1h"),
            ("one_in = 0", "one_in: 1 (always) to 1000"),
            ("[budget]\ncpu = 0.1", "line 2"),
            ("[budget]\ncpu = \"0%\"", "budget.cpu"),
            (
                "[[output]]\ntype = \"files\"\ndirectory = \"x\"",
                "output.files.directory: an absolute path",
            ),
            (
                "[[output]]\ntype = \"parca\"\nurl = \"ftp://x\"",
                "output.parca.url: begins with",
            ),
            (
                "[[output]]\ntype = \"parca\"\nurl = \"http://u:p@x\"",
                "basic_auth_file",
            ),
            (
                "[[output]]\ntype = \"parca\"\nurl = \"http://x\"\ntokenfile = \"x\"",
                "tokenfile",
            ),
            ("[[output]]\ntype = \"smoke\"", "smoke"),
            (
                "[[output]]\ntype = \"lake\"\nurl = \"/a\"\n[[output]]\ntype = \"lake\"\nurl = \"/b\"",
                "two outputs are called so",
            ),
            (
                "[[output]]\nname = \"../x\"\ntype = \"lake\"\nurl = \"/a\"",
                "letters, digits",
            ),
            ("[metrics]\nlisten = \"x\"", "ADDRESS:PORT"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = Config::read(Path::new("/nonexistent/agent.toml")).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/agent.toml"));
    }
}
