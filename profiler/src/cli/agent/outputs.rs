//! Where the profiles of windows go: files, and what `aiprof-send` delivers.

use super::checks;
use crate::cli::windows::WindowFiles;
use aiprof_fleet::config::{BodyForm, Config, Files, Output, OutputKind, To};
use aiprof_fleet::spool::{Body, BodyPacking, Dropped, Queue};
use aiprof_fleet::status::OutputStatus;
use aiprof_formats::export::{ExportOptions, otlp, pprof, push};
use aiprof_live::session::WindowProfiles;
use aiprof_model::profile::{Profile, Values};
use aiprof_system::errors::chain;
use anyhow::{Context as _, Result};
use flate2::{Compression as Level, write::GzEncoder};
use std::collections::BTreeMap;
use std::io::{self, Write as _};

/// Least bytes that are made free on a full disk: of a file a block is taken.
const LEAST_ROOM: u64 = 16 << 10;

/// Bytes of a body before compression, about, from which on a window is delivered in parts, whole
/// processes each: servers with gRPC accept 4 MiB unless they are configured otherwise.
const MAX_BODY: usize = 3 << 20;

/// All outputs, opened.
#[derive(Debug)]
pub(super) struct Outputs {
    all: Vec<Open>,
    options: ExportOptions,
    /// Bodies so far, so that two of the same time have different names.
    number: u64,
}

/// An output.
#[derive(Debug)]
struct Open {
    name: String,
    kind: &'static OutputKind,
    to: OpenedOutput,
    status: OutputStatus,
    /// The last window could not be written: the error is logged once.
    failing: bool,
}

/// What an output writes.
#[derive(Debug)]
enum OpenedOutput {
    /// A file for each window and kind of values, beside others.
    Files {
        cpu: Box<WindowFiles>,
        waits: Box<WindowFiles>,
        launches: Box<WindowFiles>,
    },
    /// Bodies that wait for delivery.
    Spool {
        queue: Queue,
        form: BodyForm,
        packing: BodyPacking,
        max_bytes: u64,
    },
}

impl Outputs {
    /// Opens what a configuration has.
    ///
    /// # Errors
    /// What is wrong with an output's place.
    pub(super) fn open(config: &Config) -> Result<Self> {
        let options = ExportOptions {
            all_processes: true,
            ..ExportOptions::default()
        };
        let mut all = Vec::new();
        for output in &config.outputs {
            let to = open(output, config, &options)
                .with_context(|| format!("output {}", output.name))?;
            all.push(Open {
                name: output.name.clone(),
                kind: output.kind,
                to,
                status: OutputStatus::default(),
                failing: false,
            });
        }
        Ok(Self {
            all,
            options,
            number: 0,
        })
    }

    /// Takes over what others of the same names have counted until now.
    pub(super) fn go_on_from(&mut self, before: &Self) {
        self.number = before.number;
        for open in &mut self.all {
            if let Some(known) = before.all.iter().find(|known| known.name == open.name) {
                open.status.clone_from(&known.status);
            }
        }
    }

    /// What was done so far, by output.
    pub(super) fn status(&self) -> BTreeMap<String, OutputStatus> {
        let all = self.all.iter();
        all.map(|open| (open.name.clone(), open.status.clone()))
            .collect()
    }

    /// Makes these the outputs from now on: marks each spool with the type of its bodies.
    pub(super) fn claim(&self) {
        for open in &self.all {
            let OpenedOutput::Spool { queue, .. } = &open.to else {
                continue;
            };
            match queue.claim(open.kind.name) {
                Ok(None) => {}
                Ok(Some(aside)) => tracing::warn!(
                    "output {}: profiles that wait for its previous type were moved to {} and are \
                     not sent",
                    open.name,
                    aside.display()
                ),
                Err(error) => tracing::warn!("output {}: {error}", open.name),
            }
        }
    }

    /// Writes a window to all of them. Failures are logged and counted: a full disk may have room
    /// again later.
    pub(super) fn write(&mut self, window: &WindowProfiles) {
        for open in &mut self.all {
            let written = open.write(window, &self.options, &mut self.number);
            match (&written, open.failing) {
                (Err(error), false) => {
                    tracing::error!("output {}: {}", open.name, chain(&**error));
                }
                (Ok(()), true) => tracing::info!("output {}: windows are written again", open.name),
                _ => {}
            }
            open.failing = written.is_err();
        }
    }
}

fn open(output: &Output, config: &Config, options: &ExportOptions) -> Result<OpenedOutput> {
    let (form, packing) = match &output.to {
        To::Files(files) => return open_files(files, options),
        To::Server(server) => (server.api.body, server.packing),
        // What becomes rows.
        To::Lake(_) => (BodyForm::Pprof, BodyPacking::Pprof),
    };
    let queue = Queue::open(&config.spool_directory(), &output.name)?;
    queue.tidy()?;
    Ok(OpenedOutput::Spool {
        queue,
        form,
        packing,
        max_bytes: config.spool.size.as_u64(),
    })
}

fn open_files(files: &Files, options: &ExportOptions) -> Result<OpenedOutput> {
    let format = checks::format(files).map_err(anyhow::Error::msg)?;
    let open = |of: &'static str| -> Result<Box<WindowFiles>> {
        let files = WindowFiles::open(&files.directory, format, options.clone(), files.keep)?;
        Ok(Box::new(files.of(of)))
    };
    Ok(OpenedOutput::Files {
        cpu: open("")?,
        waits: open("off_cpu-")?,
        launches: open("launches-")?,
    })
}

impl Open {
    /// Writes the profiles of a window: what fails of one is no reason for the others. Gives
    /// the first error.
    fn write(
        &mut self,
        window: &WindowProfiles,
        options: &ExportOptions,
        number: &mut u64,
    ) -> Result<()> {
        let mut all = Ok(());
        let most = match &self.to {
            OpenedOutput::Files { .. } => usize::MAX,
            OpenedOutput::Spool { .. } => MAX_BODY,
        };
        for profile in window.profiles() {
            let written = profile.in_parts(most, |part| {
                let written = self.write_profile(part, options, number);
                self.status.failed += u64::from(written.is_err());
                written
            });
            all = all.and(written);
        }
        if let OpenedOutput::Spool {
            queue, max_bytes, ..
        } = &self.to
        {
            let bound = queue.bound(*max_bytes).map_err(anyhow::Error::from);
            let bound = bound.map(|(dropped, _)| self.dropped(dropped));
            all = all.and(bound);
        }
        all
    }

    fn write_profile(
        &mut self,
        profile: &Profile,
        options: &ExportOptions,
        number: &mut u64,
    ) -> Result<()> {
        match &self.to {
            OpenedOutput::Files {
                cpu,
                waits,
                launches,
            } => {
                let files = match profile.values {
                    Values::Launches => launches,
                    Values::WaitTime => waits,
                    _ => cpu,
                };
                let bytes = files.try_write(profile)?;
                self.status.written += 1;
                self.status.written_bytes += bytes;
                Ok(())
            }
            OpenedOutput::Spool {
                queue,
                form,
                packing,
                ..
            } => {
                let content = encode(*form, *packing, profile, options)?;
                // Without samples some bodies are empty, and servers refuse these.
                if content.is_empty() {
                    return Ok(());
                }
                *number += 1;
                let body = Body {
                    start_unix_ns: profile.meta.start_unix_ns,
                    number: *number,
                    samples: profile.samples.iter().map(|sample| sample.count).sum(),
                    kind: *packing,
                };
                let queue = queue.clone();
                match queue.put(&body, &content) {
                    Err(error) if is_full(&error) => {
                        let (_, there) = queue.bound(u64::MAX)?;
                        let room = (content.len() as u64).max(LEAST_ROOM);
                        let (dropped, _) = queue.bound(there.bytes.saturating_sub(room))?;
                        if dropped.bodies == 0 {
                            return Err(error.into());
                        }
                        self.dropped(dropped);
                        queue.put(&body, &content)?;
                    }
                    put => put?,
                }
                self.status.written += 1;
                self.status.written_bytes += content.len() as u64;
                Ok(())
            }
        }
    }

    /// The oldest have gone for want of room.
    fn dropped(&mut self, dropped: Dropped) {
        if dropped.bodies > 0 {
            tracing::warn!(
                "output {}: the spool is full, so the oldest profiles are dropped",
                self.name
            );
        }
        self.status.dropped += dropped.bodies;
        self.status.dropped_samples += dropped.samples;
    }
}

/// Whether a disk has no room, or the user may have none of it.
fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

/// The body of a profile.
fn encode(
    form: BodyForm,
    packing: BodyPacking,
    profile: &Profile,
    options: &ExportOptions,
) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let write = |out: &mut dyn io::Write| match form {
        BodyForm::Otlp => otlp::write(profile, options, out),
        BodyForm::Pprof => pprof::write(profile, options, out),
        BodyForm::Pyroscope => Ok(out.write_all(&push::pyroscope(profile, options)?)?),
        BodyForm::Parca => Ok(out.write_all(&push::parca(profile, options)?)?),
    };
    match packing {
        BodyPacking::Raw | BodyPacking::Pprof => write(&mut bytes)?,
        BodyPacking::Gzip => {
            let mut packed = GzEncoder::new(&mut bytes, Level::new(3));
            write(&mut packed)?;
            packed.finish()?.flush()?;
        }
    }
    Ok(bytes)
}
