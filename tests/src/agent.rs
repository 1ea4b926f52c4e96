//! `aiprof agent` under test: its configuration, its files, what it costs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::aiprof::binary;
use crate::child::{Child, LONG};
use crate::workload::Workshop;

pub mod windows;

/// An agent that runs.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    /// Its configuration.
    pub config: PathBuf,
    /// Where it keeps its state.
    pub state: PathBuf,
    errors: PathBuf,
}

impl Agent {
    /// Starts one with these lines in its configuration, besides where its state is, and waits
    /// until it records.
    ///
    /// # Errors
    /// When it ends, or prints nothing for a minute.
    pub fn start(shop: &Workshop, lines: &str) -> anyhow::Result<Self> {
        Self::start_with(shop, lines, |_| {})
    }

    /// The same, with something else about its command.
    ///
    /// # Errors
    /// As [`Agent::start`].
    pub fn start_with(
        shop: &Workshop,
        lines: &str,
        prepare: impl FnOnce(&mut Command),
    ) -> anyhow::Result<Self> {
        let config = shop.path("agent.toml");
        let state = shop.path("state");
        let errors = shop.path("agent.err");
        write_config(&config, &state, lines)?;
        let mut command = Command::new(binary()?);
        command
            .args(["agent", "--config"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&errors)?);
        prepare(&mut command);
        let child = Child::start(&mut command)?;
        let mut agent = Self {
            child,
            config,
            state,
            errors,
        };
        agent.await_line("recording at")?;
        Ok(agent)
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// What it has printed so far.
    ///
    /// # Errors
    /// When that cannot be read.
    pub fn said(&self) -> anyhow::Result<String> {
        Ok(std::fs::read_to_string(&self.errors)?)
    }

    /// Waits until it has printed this text; returns all it has printed.
    ///
    /// # Errors
    /// When it ended, or has not printed it within a minute.
    pub fn await_line(&mut self, text: &str) -> anyhow::Result<String> {
        self.await_lines(text, 1)
    }

    /// Waits until it has printed this text `times` times.
    ///
    /// # Errors
    /// As [`Agent::await_line`].
    pub fn await_lines(&mut self, text: &str, times: usize) -> anyhow::Result<String> {
        let begun = Instant::now();
        loop {
            let said = self.said()?;
            if said.matches(text).count() >= times {
                return Ok(said);
            }
            ensure!(begun.elapsed() < LONG, "it has not said {text:?}:\n{said}");
            ensure!(self.is_running()?, "it ended without {text:?}:\n{said}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn is_running(&mut self) -> anyhow::Result<bool> {
        match self.child.wait(Duration::ZERO) {
            Ok(_) => Ok(false),
            Err(_) => Ok(true),
        }
    }

    /// Writes another configuration, without a signal to the agent.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn configure(&self, lines: &str) -> anyhow::Result<()> {
        write_config(&self.config, &self.state, lines)
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// When `kill` fails.
    pub fn signal(&self, name: &str) -> anyhow::Result<()> {
        let pid = self.pid().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status()?;
        ensure!(status.success(), "kill: {status}");
        Ok(())
    }

    /// Ends it as a service manager does; returns what it has printed.
    ///
    /// # Errors
    /// When it does not end well.
    pub fn end(mut self) -> anyhow::Result<String> {
        self.signal("TERM")?;
        let status = self.child.wait(LONG)?;
        let said = self.said()?;
        ensure!(status.success(), "{status}: {said}");
        ensure!(!said.contains("panicked"), "{said}");
        Ok(said)
    }

    /// Kills it, and waits until it is gone.
    ///
    /// # Errors
    /// When it does not go.
    pub fn kill(mut self) -> anyhow::Result<()> {
        self.signal("KILL")?;
        self.child.wait(LONG)?;
        Ok(())
    }

    /// Its status file.
    ///
    /// # Errors
    /// When it is not there, or no JSON.
    pub fn status(&self) -> anyhow::Result<Value> {
        let text = std::fs::read(self.state.join("agent.json")).context("agent.json")?;
        Ok(serde_json::from_slice(&text)?)
    }
}

fn write_config(config: &Path, state: &Path, lines: &str) -> anyhow::Result<()> {
    // Only what comes before the first table is of the whole.
    let (own, tables) = match lines.find('[') {
        Some(at) => lines.split_at(at),
        None => (lines, ""),
    };
    let text = format!("state = \"{}\"\n{own}\n{tables}", state.display());
    let beside = config.with_extension("new");
    std::fs::write(&beside, text)?;
    Ok(std::fs::rename(beside, config)?)
}

/// CPU time of a process and all below it that live, by the kernel's count.
///
/// # Errors
/// When /proc cannot be read.
pub fn cpu_time(pid: u32) -> anyhow::Result<Duration> {
    let mut sum = Duration::ZERO;
    for process in tree(pid)? {
        for task in std::fs::read_dir(format!("/proc/{process}/task"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            let ns = text.split(' ').next().and_then(|ns| ns.parse().ok());
            sum += Duration::from_nanos(ns.unwrap_or(0));
        }
    }
    Ok(sum)
}

/// A process and all below it.
///
/// # Errors
/// When /proc cannot be read.
pub fn tree(pid: u32) -> anyhow::Result<Vec<u32>> {
    let mut parents = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|n| n.parse::<u32>().ok())
        else {
            continue;
        };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        // Behind the name, which may have anything in it.
        let parent = stat.rsplit(')').next().and_then(|rest| {
            let mut fields = rest.split_whitespace();
            fields.nth(1)?.parse::<u32>().ok()
        });
        parents.push((pid, parent.unwrap_or(0)));
    }
    let mut found = vec![pid];
    let mut at = 0;
    while let Some(&parent) = found.get(at) {
        found.extend(
            parents
                .iter()
                .filter(|(_, p)| *p == parent)
                .map(|(pid, _)| *pid),
        );
        at += 1;
    }
    Ok(found)
}
