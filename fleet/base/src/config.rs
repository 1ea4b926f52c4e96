//! The configuration of the agent: a TOML file, which docs/always-on.md describes.
//!
//! Each key has a default, and an unknown one is an error, with its line. What is secret is
//! never in it: tokens and keys are in files of their own, which it names ([`crate::secret`]).
//!
//! `check` has what values must be. All that is wrong is found at once.

mod check;
mod faults;
mod outputs;

use bytesize::ByteSize;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use check::{HOST_RULE, is_host};
pub use faults::Faults;
pub use outputs::{
    BodyForm, Files, Http, Lake, OUTPUTS, Output, OutputKind, ServerApi, ServerTarget, To,
    Transport, UrlForm,
};

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
        let config: Self = toml::from_str(text).map_err(|error| ConfigError::Parse {
            path: path.to_owned(),
            message: error.to_string().trim_end().to_owned(),
        })?;
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

fn duration<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    humantime::parse_duration(&text).map_err(serde::de::Error::custom)
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
