//! What keeps the agent from starting, or from working later: looked for by `--check`, at each
//! start, and before a configuration that is read again is followed.
//!
//! Values are checked as the configuration is read; this looks at what they need of the machine.
//! Nothing is made, and no server is asked. What `aiprof-send` needs it looks at itself, without
//! the agent's privileges.

use super::args::AgentArgs;
use super::sender;
use crate::cli::windows::WindowFiles;
use aiprof_fleet::config::{Config, Faults, Files, To};
use aiprof_fleet::place;
use aiprof_fleet::spool::Queue;
use aiprof_formats::export::FileFormat;
use aiprof_live::control::Control;
use aiprof_system::errors::chain;
use aiprof_system::files::private::PrivateDirectory;
use anyhow::{Context as _, Result};
use std::path::Path;

/// Why nothing can be sent.
const NO_SENDER: &str = "outputs other than files need aiprof-send, which is neither next to \
                         aiprof nor in PATH; in a clone, build it with: cargo build --release \
                         --manifest-path fleet/Cargo.toml --target-dir target";

/// Looks at all that a configuration needs.
///
/// # Errors
/// All that is wrong, a line each.
pub(super) fn run(args: &AgentArgs, config: &Config) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start asynchronous tasks")?;
    let sender = match (args.no_send, args.check) {
        (true, _) => SenderCheck::Skipped,
        (false, true) => SenderCheck::All,
        (false, false) => SenderCheck::ButPort,
    };
    runtime.block_on(find(&args.config, config, sender))
}

/// What is looked at of aiprof-send's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SenderCheck {
    /// Nothing: a service of its own has other rights, and another network.
    Skipped,
    /// All; that another program has the port of metrics is a warning only. Any user can take
    /// it, and it is tried again until it is free.
    ButPort,
    /// All.
    All,
}

/// [`run`], within a runtime.
///
/// # Errors
/// As there.
pub(super) async fn find(path: &Path, config: &Config, sender: SenderCheck) -> Result<()> {
    let mut faults = Faults::of(path);
    let state = check_state(config);
    let has_state = state.is_ok();
    faults.add_error("state", state);
    for output in &config.outputs {
        let key = |part: &str| format!("output.{}.{part}", output.name);
        match &output.to {
            To::Files(files) => {
                faults.add_error(key("format"), format(files).map(drop));
                faults.add_error(key("directory"), check_directory(config, files));
            }
            _ if has_state => faults.add_error("state", check_spool(config, &output.name)),
            _ => {}
        }
    }
    if config.control.local {
        let checked = Control::check()
            .map_err(|error| format!("{error}: set `local = false` to run without it"));
        faults.add_error("control.local", checked);
    }
    if sender != SenderCheck::Skipped {
        check_sender(path, config, sender, &mut faults).await;
    }
    Ok(faults.end()?)
}

/// Whether the state directory is there or can be made, and is the agent's own.
fn check_state(config: &Config) -> Result<(), String> {
    let state = &config.state;
    PrivateDirectory::check(state)
        .map_err(|error| format!("cannot use {}: {error}", state.display()))?;
    place::check(state, 0)
}

/// Whether bodies can be put into a spool. On a full disk the oldest of them go for new ones.
fn check_spool(config: &Config, name: &str) -> Result<(), String> {
    let spool = config.spool_directory();
    let room = match Queue::has_any(&spool, name) {
        true => 0,
        false => place::ROOM,
    };
    place::check(&spool.join(name), room)
}

/// The format of files.
///
/// # Errors
/// In words: there is none that is called so, or it is of none that a window can be.
pub(super) fn format(files: &Files) -> Result<&'static FileFormat, String> {
    let format = FileFormat::named(&files.format).filter(|format| format.is_of_windows());
    format.ok_or_else(|| {
        let known = FileFormat::names_of_windows();
        format!("cannot be {:?}: write {known}", files.format)
    })
}

/// Whether files can be written to a directory.
fn check_directory(config: &Config, files: &Files) -> Result<(), String> {
    // The agent makes its state first, and then what is in it.
    let is_within = files.directory.parent() == Some(config.state.as_path());
    let directory = match is_within && PrivateDirectory::is_missing(&config.state) {
        true => &config.state,
        false => &files.directory,
    };
    WindowFiles::check(directory, place::ROOM)
        .map_err(|error| format!("{error}: name a directory that the agent can create or write to"))
}

/// Has `aiprof-send` look at what it needs.
async fn check_sender(path: &Path, config: &Config, check: SenderCheck, faults: &mut Faults) {
    let mut sent = config.outputs.iter().filter(|output| output.to.is_sent());
    let first = sent.next();
    let Some(program) = sender::find() else {
        if let Some(first) = first {
            faults.add(format!("output.{}", first.name), NO_SENDER);
        }
        return;
    };
    if first.is_none() && config.metrics.listen.is_none() {
        return;
    }
    match sender::check(&program, path).await {
        Ok(found) => {
            for (name, why) in found {
                if check == SenderCheck::ButPort && name == "metrics.listen" {
                    tracing::warn!("{name}: {why}");
                    continue;
                }
                let is_output = config.outputs.iter().any(|output| output.name == name);
                let key = match is_output {
                    true => format!("output.{name}"),
                    false => name,
                };
                faults.add(key, why);
            }
        }
        Err(error) => faults.add("aiprof-send", chain(&*error)),
    }
}
