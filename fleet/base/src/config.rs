//! The configuration of the agent: a TOML file, which docs/always-on.md describes.
//!
//! Each key has a default, and an unknown one is an error, with its line. What is secret is
//! never in it: tokens and keys are in files of their own, which it names ([`crate::secret`]).
//!
//! `check` has what values must be. All that is wrong is found at once.

mod check;
mod faults;

use bytesize::ByteSize;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use check::{HOST_RULE, is_host};
pub use faults::Faults;

/// Largest file that is read.
pub const MAX_BYTES: u64 = 1 << 20;
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
    /// Values cannot be.
    #[error("{0}")]
    Values(Faults),
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
    /// The host records in one of this many turns of ten windows, drawn by chance, and what it
    /// records counts this many times.
    pub one_in: u32,
    /// What the host is called; `None`: its host name.
    pub host: Option<String>,
    /// What distinguishes the host from others; `None`: made of its machine id. Images that were
    /// cloned with their machine id need it.
    pub host_id: Option<String>,
    /// Labels of all that is recorded: keys and values.
    pub labels: BTreeMap<String, String>,
    /// Where the agent keeps what must survive a restart.
    pub state: PathBuf,
    /// What is recorded beside CPU samples.
    pub record: RecordSettings,
    /// What it may cost.
    pub budget: Budget,
    /// What waits for delivery.
    pub spool: Spool,
    /// Where it publishes its metrics.
    pub metrics: Metrics,
    /// How it is steered.
    pub control: ControlSettings,
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
            record: RecordSettings::default(),
            budget: Budget::default(),
            spool: Spool::default(),
            metrics: Metrics::default(),
            control: ControlSettings::default(),
            outputs: Vec::new(),
        }
    }
}

/// What is recorded beside CPU samples, which always are, with Python's frames.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecordSettings {
    /// Waits of threads, sampled by their length. What records them runs at each switch and at
    /// the end of each system call, and slows programs with many of these: only where asked
    /// for.
    pub off_cpu: bool,
    /// Source files and lines of native code, beside its functions; those of Python are always
    /// there.
    pub source_lines: bool,
    /// Calls that launch work on accelerators.
    pub launches: bool,
    /// Samples of devices. They may disturb what runs on them, and another profiler of the
    /// same device: only where asked for.
    pub devices: bool,
}

impl Default for RecordSettings {
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

/// Where the agent publishes its metrics, in OpenMetrics.
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
pub struct ControlSettings {
    /// Whether it can be steered by `aiprof agent ctl` on the same machine.
    pub local: bool,
    /// Its name, where there are several on a machine.
    pub name: String,
}

impl Default for ControlSettings {
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
    /// Its name in logs, metrics and the spool; default: its type.
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
    /// The endpoint of S3, if not AWS.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// The region of S3.
    #[serde(default)]
    pub region: Option<String>,
    /// Credentials for S3: a file in the form of `~/.aws/credentials`, profile `default`. Without
    /// it the environment and the machine's own role are asked.
    #[serde(default)]
    pub credentials_file: Option<PathBuf>,
    /// Certificates of who is trusted, PEM; default: those of the system.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// How long files are kept; `None`: until somebody deletes them. Only the program that compacts
    /// sets it: the agent's configuration cannot have it.
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
    /// It cannot be read, is no such TOML, or has values that cannot be.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let read = || -> std::io::Result<String> {
            let file = std::fs::File::open(path)?;
            let mut text = String::new();
            let read = std::io::Read::read_to_string(
                &mut std::io::Read::take(file, MAX_BYTES + 1),
                &mut text,
            )?;
            match read as u64 > MAX_BYTES {
                true => Err(std::io::Error::other("larger than the limit of 1 MiB")),
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
        let mut faults = Faults::of(path);
        config.check(&mut faults);
        faults.end()?;
        Ok(config)
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
            "must be a share of the machine's CPU time such as \"0.1%\"",
        )),
    }
}

fn listen<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(from)?;
    match text.as_str() {
        "off" => Ok(None),
        address => address.parse().map(Some).map_err(|_| {
            serde::de::Error::custom("must be ADDRESS:PORT such as \"127.0.0.1:9464\", or \"off\"")
        }),
    }
}

#[cfg(test)]
mod tests;
