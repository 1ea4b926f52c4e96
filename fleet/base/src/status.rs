//! The state that the agent's programs report to each other and to the outside.
//!
//! Each writes a file of JSON below the state directory, whole or not at all; the others read
//! it. Counters count from the program's start on, whose time is in the file, too.

use crate::shared;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// The file of `aiprof agent`.
pub const AGENT_FILE: &str = "agent.json";
/// The file of `aiprof-send`, in a directory of its own ([`Config::sender_directory`]).
///
/// [`Config::sender_directory`]: crate::config::Config::sender_directory
pub const SENDER_FILE: &str = "sender.json";
/// Largest file that is read.
const MAX_BYTES: u64 = 1 << 20;

/// How `aiprof agent` is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentStatus {
    /// Its version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Host name.
    pub host: String,
    /// What distinguishes the host from others.
    pub host_id: String,
    /// When it started, nanoseconds since the Unix epoch.
    pub started_unix_ns: u64,
    /// When this was written, nanoseconds since the Unix epoch.
    pub written_unix_ns: u64,
    /// CPUs of the machine.
    pub cpus: u32,
    /// Whether somebody has paused it.
    pub paused: bool,
    /// Whether it waits for its turn to record.
    pub waits_for_slot: bool,
    /// Windows so far.
    pub windows: u64,
    /// Samples so far.
    pub samples: u64,
    /// What was lost so far, by cause (`ring_drops`).
    pub losses: BTreeMap<String, u64>,
    /// Samples per second and CPU that the configuration asks for.
    pub frequency_asked_hz: u32,
    /// Samples per second and CPU now.
    pub frequency_hz: u32,
    /// What is recorded now: `cpu`, `off_cpu`, `launches`, `devices`.
    pub recording: Vec<String>,
    /// How far the budget has turned it down: 0 is not at all.
    pub step: u32,
    /// Changes of that so far.
    pub steps_changed: u64,
    /// Share of the machine's CPU time that it may use.
    pub budget_cpu: f64,
    /// Share that it used lately: programs of its own, and eBPF.
    pub used_cpu: f64,
    /// CPU time of its programs so far, nanoseconds, `aiprof-send` included.
    pub own_cpu_ns: u64,
    /// Time in its eBPF programs so far, nanoseconds; 0 where the Linux kernel does not report it.
    pub bpf_ns: u64,
    /// Memory that is its own, bytes.
    pub memory_bytes: u64,
    /// Memory it may have, bytes.
    pub budget_memory_bytes: u64,
    /// Memory of eBPF maps, bytes.
    pub bpf_memory_bytes: u64,
    /// Where profiles go.
    pub outputs: BTreeMap<String, OutputStatus>,
    /// Accelerators, by name.
    pub devices: BTreeMap<String, DeviceStatus>,
}

/// What `aiprof agent` did for an output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutputStatus {
    /// Bodies written, to the spool or as files.
    pub written: u64,
    /// Bytes of these.
    pub written_bytes: u64,
    /// Bodies that could not be written.
    pub failed: u64,
    /// Bodies that went, undelivered, because the spool was full.
    pub dropped: u64,
    /// Samples in those.
    pub dropped_samples: u64,
}

/// What an accelerator did in the last window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceStatus {
    /// Share of the time in which it was busy, 0 to 1.
    pub busy: f64,
    /// Share of the time in which it was idle, by cause.
    pub idle: BTreeMap<String, f64>,
}

/// How `aiprof-send` is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SenderStatus {
    /// Its version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// When it started, nanoseconds since the Unix epoch.
    pub started_unix_ns: u64,
    /// When this was written, nanoseconds since the Unix epoch.
    pub written_unix_ns: u64,
    /// What became of what the spool held, by output.
    pub outputs: BTreeMap<String, SentStatus>,
}

/// What `aiprof-send` did for an output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SentStatus {
    /// Bodies delivered.
    pub sent: u64,
    /// Bytes of these, as sent.
    pub sent_bytes: u64,
    /// Requests that failed and are tried again.
    pub retried: u64,
    /// Bodies that the server refused for good.
    pub refused: u64,
    /// Profiles that the server did not take of bodies that it took.
    pub rejected: u64,
    /// Bodies that were, or that the server called, too old.
    pub too_old: u64,
    /// Bodies that wait.
    pub waiting: u64,
    /// Bytes of these.
    pub waiting_bytes: u64,
    /// When the oldest of these began, nanoseconds since the Unix epoch; 0: none waits.
    pub oldest_unix_ns: u64,
    /// When a body was delivered last, nanoseconds since the Unix epoch; 0: never.
    pub last_sent_unix_ns: u64,
    /// Why the last request failed; empty: it did not. Nothing secret.
    pub last_error: String,
}

/// Writes a status, whole or not at all.
///
/// # Errors
/// Those of writing and renaming.
pub fn write(directory: &Path, file: &str, status: &impl Serialize) -> io::Result<()> {
    write_after(directory, file, status, |_| Ok(()))
}

/// The same, for the programs of the agent's group.
///
/// # Errors
/// As there.
pub fn write_shared(directory: &Path, file: &str, status: &impl Serialize) -> io::Result<()> {
    write_after(directory, file, status, shared::let_read)
}

fn write_after(
    directory: &Path,
    file: &str,
    status: &impl Serialize,
    prepare: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    let mut bytes = serde_json::to_vec_pretty(status).map_err(io::Error::other)?;
    bytes.push(b'\n');
    // One program writes each file, and no other writes to the directory. A killed program leaves a
    // file with the name that the next one uses, and the next may run as another user.
    let part = directory.join(format!(".{file}.part"));
    let _ = std::fs::remove_file(&part);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut out = options.open(&part)?;
    out.write_all(&bytes)?;
    prepare(&out)?;
    std::fs::rename(&part, directory.join(file))
}

/// Reads a status.
///
/// # Errors
/// Those of reading, or it is no status.
pub fn read<T: for<'de> Deserialize<'de>>(directory: &Path, file: &str) -> io::Result<T> {
    let mut bytes = Vec::new();
    let file = File::open(directory.join(file))?;
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    serde_json::from_slice(&bytes).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        // What one left that was killed as it wrote.
        std::fs::write(
            directory.path().join(".agent.json.part"),
            "{ \"pid\": 1234567890",
        )
        .unwrap();
        let status = AgentStatus {
            pid: 7,
            used_cpu: 0.5,
            losses: [("ring_drops".to_owned(), 3)].into(),
            ..AgentStatus::default()
        };
        write(directory.path(), AGENT_FILE, &status).unwrap();
        assert_eq!(
            read::<AgentStatus>(directory.path(), AGENT_FILE).unwrap(),
            status
        );
        // Nothing else is left there.
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
        // One of an earlier version, and one that is none.
        std::fs::write(directory.path().join(AGENT_FILE), "{\"pid\": 3}").unwrap();
        assert_eq!(
            read::<AgentStatus>(directory.path(), AGENT_FILE)
                .unwrap()
                .pid,
            3
        );
        std::fs::write(directory.path().join(AGENT_FILE), "{").unwrap();
        assert!(read::<AgentStatus>(directory.path(), AGENT_FILE).is_err());
    }
}
