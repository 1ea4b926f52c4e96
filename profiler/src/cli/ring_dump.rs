//! `--window`: the files of the last seconds.

use super::control_args::Steering;
use super::open_output::OpenOutput;
use super::output::{self, OutputFile};
use super::screen;
use super::values::{human_duration, timestamp};
use aiprof_formats::export::{ExportOptions, FileFormat, FormatSource};
use aiprof_live::session::{DumpExtent, Fired, Session};
use aiprof_record::capture::{ReplayOptions, replay_from};
use aiprof_record::kernel_choice::KernelChoice;
use aiprof_system::errors::chain;
use aiprof_system::files::{caller, directory::Directory};
use anyhow::{Context, Result};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufWriter, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// Most files of one second.
const MAX_ALIKE: u32 = 1000;

/// How what is kept becomes files.
#[derive(Clone, Debug)]
pub(super) struct DumpStyle {
    pub(super) directory: PathBuf,
    pub(super) format: &'static FileFormat,
    pub(super) replay: ReplayOptions,
    pub(super) export: ExportOptions,
    pub(super) kernels: KernelChoice,
}

/// Writes the last seconds when that is asked for.
#[derive(Debug)]
pub(super) struct DumpFiles {
    style: DumpStyle,
    /// Files that triggers may still write.
    left: u32,
    after: Duration,
    is_triggered: bool,
    /// When a trigger's file is due, and what happened.
    due: Option<(Instant, String)>,
    written: u64,
    failures: u64,
    quiet: bool,
}

impl DumpFiles {
    /// Makes the directory where there is none, and checks that files can be written to it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn open(style: DumpStyle, steering: &Steering, quiet: bool) -> Result<Self> {
        let files = Self {
            style,
            left: steering.dumps,
            after: steering.after,
            is_triggered: !steering.triggers.is_empty(),
            due: None,
            written: 0,
            failures: 0,
            quiet,
        };
        // Dropped at once: it only shows that the directory is writable.
        files.create(&output::open_directory(&files.style.directory)?)?;
        Ok(files)
    }

    /// How many were written.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// How many could not be.
    pub(super) fn failures(&self) -> u64 {
        self.failures
    }

    /// When the next is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due.as_ref().map(|(due, _)| *due)
    }

    /// Something happened that was waited for. What happens while a file is due already is
    /// in that one.
    pub(super) fn fired(&mut self, fired: Fired, session: &mut Session) {
        if self.left == 0 || self.due.is_some() {
            return;
        }
        self.left -= 1;
        if self.left == 0 {
            session.triggers().disarm();
        }
        self.due = Some((Instant::now() + self.after, fired.what));
    }

    /// Writes what is due, which a failure does not keep from going on.
    pub(super) fn write_due(&mut self, session: &mut Session) {
        if let Some((_, why)) = self.due.take() {
            self.say(&format!("aiprof: {why}"));
            self.write(session);
        }
    }

    /// The recording ends: with a trigger, writes the file that is due; without one, writes the
    /// last seconds even if no file was asked for.
    pub(super) fn end(&mut self, session: &mut Session) {
        match self.is_triggered {
            true => self.write_due(session),
            false => self.write(session),
        }
    }

    /// Writes the last seconds; a failure is reported and counted.
    pub(super) fn write(&mut self, session: &mut Session) {
        if let Err(error) = self.try_write(session) {
            self.failures += 1;
            tracing::error!("{}", chain(&*error));
        }
    }

    /// Writes them.
    ///
    /// # Errors
    /// They cannot be written.
    pub(super) fn try_write(&mut self, session: &mut Session) -> Result<()> {
        let directory = output::find_directory(&self.style.directory)?;
        let (file, path) = self.create(&directory)?;
        let format = self.style.format;
        let out = OpenOutput { file, format };
        let extent = match format.source {
            FormatSource::Capture => {
                let extent = session.dump(out.capture_writer()?)?;
                out.file.commit()?;
                extent
            }
            _ => {
                let mut capture = scratch(&directory)?;
                let extent = session.dump(Box::new(BufWriter::new(capture.try_clone()?)))?;
                capture.seek(SeekFrom::Start(0))?;
                self.convert(capture, out, &path)?;
                extent
            }
        };
        self.written += 1;
        self.say(&line(&path, extent));
        Ok(())
    }

    /// Begins a file; names are as of `--every`, and numbered within a second.
    fn create(&self, directory: &Directory) -> Result<(OutputFile, PathBuf)> {
        let time = timestamp(SystemTime::now());
        let extension = self.style.format.extension();
        let name = |n: u32| match n {
            0 => format!("aiprof-{time}.{extension}"),
            // Behind the first, also in the order of names.
            n => format!("aiprof-{time}_{}.{extension}", n + 1),
        };
        let is_free = |name: &String| directory.stat_of(OsStr::new(name)).is_err();
        let name = (0..MAX_ALIKE)
            .map(name)
            .find(is_free)
            .context("too many files were written in the same second")?;
        let path = self.style.directory.join(&name);
        let file = OutputFile::create_in(directory, OsStr::new(&name), &path)?;
        Ok((file, path))
    }

    fn convert(&self, capture: File, out: OpenOutput, path: &Path) -> Result<()> {
        let style = &self.style;
        if style.format.is_trace() {
            return out
                .write_trace_of(path, capture, style.replay, None)
                .map(drop);
        }
        let mut profile = replay_from(path, capture, &style.replay)?;
        style.kernels.keep(&mut profile);
        out.write_profile(&profile, &style.export)
    }

    fn say(&self, text: &str) {
        if !self.quiet {
            screen::say(text);
        }
    }
}

/// A file that only its descriptor leads to, beside where the result goes.
fn scratch(directory: &Directory) -> Result<File> {
    let made = directory.scratch();
    made.or_else(|_| caller::scratch())
        .context("cannot create a temporary file")
}

fn line(path: &Path, extent: DumpExtent) -> String {
    let length = extent.to_ns.saturating_sub(extent.from_ns);
    let length = human_duration(Duration::from_nanos(length));
    let cut = match extent.shortened {
        0 => String::new(),
        n => format!(", shortened: {n} events exceeded the memory limit"),
    };
    format!("aiprof: wrote the last {length} to {}{cut}", path.display())
}
