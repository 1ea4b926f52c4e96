//! What unitrace writes, of a recording.

use super::live::LiveLines;
use super::places::{OutputPlaces, OutputText};
use super::settings::UnitraceSettings;
use crate::cli::output::{self, OutputFile};
use crate::cli::{screen, trace};
use aiprof_formats::export::chrome;
use aiprof_formats::export::tables::unitrace;
use aiprof_formats::import::json;
use aiprof_formats::import::recording;
use aiprof_model::timeline::recorded::Recorded;
use aiprof_model::timeline::{Stretch, Timeline};
use aiprof_record::store::Store;
use aiprof_system::files::caller;
use aiprof_tables::Table;
use aiprof_tables::unitrace::{Scope, device, host, lines, properties, submission};
use anyhow::{Context, Result};
use serde_json::json;
use std::cell::RefCell;
use std::io::Write;
use std::path::Path;
use std::rc::Rc;

/// Writes the outputs.
pub(super) struct TablesWriter {
    settings: UnitraceSettings,
    places: OutputPlaces,
    /// Where the lines of `-t` go at once.
    live: Option<Rc<RefCell<LiveLines>>>,
}

/// The backends whose tables are asked for.
pub(super) fn backends(settings: &UnitraceSettings) -> Vec<String> {
    let mut backends = vec!["L0".to_owned()];
    if settings.opencl {
        backends.extend(["CL", "CL CPU", "CL GPU"].map(str::to_owned));
    }
    backends
}

/// A process that gets outputs.
struct TracedProcess {
    pid: u32,
    name: String,
}

impl TablesWriter {
    pub(super) fn new(
        settings: UnitraceSettings,
        places: OutputPlaces,
        live: Option<Rc<RefCell<LiveLines>>>,
    ) -> Self {
        Self {
            settings,
            places,
            live,
        }
    }

    /// Writes everything that is asked for, of COMMAND's process and, unless that is not
    /// wanted, of all others that called an accelerator's runtime.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(super) fn write(mut self, recorded: Recorded, store: Store, command: u32) -> Result<()> {
        if let Some(live) = self.live.take().and_then(Rc::into_inner) {
            self.settings.outputs.timeline = false;
            live.into_inner().finish()?;
        }
        let processes = self.processes(&recorded, command);
        if let Some(directory) = &self.settings.paths.result_dir {
            self.write_config(directory, command)?;
            for process in &processes {
                if let Some(own) = self.places.result(process.pid, &process.name) {
                    output::open_directory(&own)?;
                }
            }
        }
        let timeline = self.timeline(&recorded, store, processes.first())?;
        for process in &processes {
            if processes.len() > 1 && !self.settings.paths.has_files() {
                let (pid, name) = (process.pid, &process.name);
                screen::say(&format!("\nProcess {pid} ({name})"));
            }
            self.write_texts(&timeline, process, recorded.start_ns)?;
        }
        let losses = recorded.losses.iter();
        for (kind, count) in losses.filter(|(kind, _)| trace::is_of_calls(*kind)) {
            screen::say(&format!("aiprof unitrace: lost: {count} {}", kind.label()));
        }
        Ok(())
    }

    fn processes(&self, recorded: &Recorded, command: u32) -> Vec<TracedProcess> {
        let of = |pid: u32| TracedProcess {
            pid,
            name: match recorded.processes.get(&pid) {
                Some(process) if !process.name.is_empty() => process.name.to_string(),
                _ => "process".to_owned(),
            },
        };
        let others = recorded.processes.iter();
        let others = others.filter(|(pid, process)| process.has_calls && **pid != command);
        let others: Vec<u32> = match self.settings.only_command {
            true => Vec::new(),
            false => others.map(|(pid, _)| *pid).collect(),
        };
        let called = recorded.processes.get(&command);
        let called = called.is_some_and(|process| process.has_calls);
        // A shell that starts the program has no calls to show.
        let own = (called || others.is_empty()).then_some(command);
        own.into_iter().chain(others).map(of).collect()
    }

    /// The events; the trace is written first where it is asked for, and read again.
    fn timeline(
        &self,
        recorded: &Recorded,
        store: Store,
        first: Option<&TracedProcess>,
    ) -> Result<Timeline> {
        let mut timeline = Timeline::default();
        let Some(first) = first.filter(|_| self.settings.outputs.chrome) else {
            recording::read(recorded, store, "recording", Stretch::ALL, &mut timeline)
                .context("cannot read the recording")?;
            return Ok(timeline);
        };
        let place = self.places.trace(first.pid, &first.name);
        let mut file = OutputFile::create(&place)?;
        chrome::write(recorded, store, &mut file).context("cannot write the trace")?;
        file.commit()?;
        screen::say(&format!("[INFO] Timeline is stored in {}", place.display()));
        let failed = || format!("cannot read {}", place.display());
        let written = caller::open(&place).with_context(failed)?;
        let name = place.to_string_lossy();
        json::read(written, &name, &mut timeline).with_context(failed)?;
        Ok(timeline)
    }

    fn write_texts(
        &self,
        timeline: &Timeline,
        process: &TracedProcess,
        base_ns: u64,
    ) -> Result<()> {
        let wanted = &self.settings;
        let scope = Scope {
            pid: Some(process.pid),
            backends: backends(wanted),
            shapes: wanted.verbose,
            commands: wanted.commands.clone(),
        };
        let mut all = Vec::new();
        if wanted.outputs.timeline {
            let mut out = Vec::new();
            for line in lines::lines(timeline, &scope, base_ns) {
                writeln!(out, "{line}")?;
            }
            self.put(OutputText::Timeline, process, out, &mut all)?;
        }
        let mut texts: Vec<(OutputText, Vec<Table>)> = Vec::new();
        if wanted.outputs.host_timing {
            texts.push((OutputText::Host, vec![host::table(timeline, &scope)]));
        }
        if wanted.outputs.device_timing {
            let both = [
                device::table(timeline, &scope),
                properties::table(timeline, &scope),
            ];
            texts.push((OutputText::Device, both.into()));
        }
        if wanted.outputs.submission {
            texts.push((
                OutputText::Submission,
                vec![submission::table(timeline, &scope)],
            ));
        }
        if wanted.outputs.ccl {
            let of_ccl = Scope {
                backends: vec!["oneCCL".to_owned()],
                ..scope
            };
            texts.push((OutputText::Ccl, vec![host::table(timeline, &of_ccl)]));
        }
        for (text, tables) in texts {
            let mut out = Vec::new();
            unitrace::write(&tables.iter().collect::<Vec<_>>(), &mut out)?;
            self.put(text, process, out, &mut all)?;
        }
        if wanted.paths.result_dir.is_some() {
            return Ok(());
        }
        match self
            .places
            .text(OutputText::Host, process.pid, &process.name)
        {
            Some(place) => {
                write_file(&place, &all)?;
                screen::say(&format!("[INFO] Log is stored in {}", place.display()));
                Ok(())
            }
            None => {
                let mut stderr = std::io::stderr().lock();
                Ok(stderr.write_all(&all)?)
            }
        }
    }

    /// Writes a text to a file of its own, where there are such files; else to `all`.
    fn put(
        &self,
        text: OutputText,
        of: &TracedProcess,
        mut out: Vec<u8>,
        all: &mut Vec<u8>,
    ) -> Result<()> {
        match self.places.text(text, of.pid, &of.name) {
            Some(place) if self.settings.paths.result_dir.is_some() => write_file(&place, &out),
            _ => {
                all.append(&mut out);
                Ok(())
            }
        }
    }

    /// What was run, beside the results.
    fn write_config(&self, directory: &Path, pid: u32) -> Result<()> {
        let words = |words: &[std::ffi::OsString]| -> Vec<String> {
            words
                .iter()
                .map(|word| word.to_string_lossy().into_owned())
                .collect()
        };
        let command = words(&self.settings.command);
        let host = rustix::system::uname();
        let config = json!({
            "unitrace version": super::VERSION,
            "app": command.first(),
            "unitrace_args": words(&self.settings.own),
            "app_args": command.get(1..),
            "Host": host.nodename().to_string_lossy(),
            "pid": pid.to_string(),
        });
        let mut text = serde_json::to_vec_pretty(&config)?;
        text.push(b'\n');
        write_file(&directory.join("run_config.json"), &text)
    }
}

fn write_file(place: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = OutputFile::create(place)?;
    file.write_all(bytes)
        .with_context(|| format!("cannot write {}", place.display()))?;
    file.commit()
}
