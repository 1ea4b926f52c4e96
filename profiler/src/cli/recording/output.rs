//! What a recording becomes, opened before it begins.

use crate::cli::destination::OutputPlace;
use crate::cli::open_output::OpenOutput;
use crate::cli::record::RecordingPlan;
use crate::cli::ring_dump::{DumpFiles, DumpStyle};
use crate::cli::windows::WindowFiles;
use aiprof_formats::export::FormatSource;
use aiprof_live::session::{CollectError, Keep};
use aiprof_model::timeline::recorded::Recorded;
use aiprof_record::recording::RecordingSink;
use aiprof_record::store::Store;
use aiprof_record::timeline::CommandDetail;
use aiprof_system::files::caller;
use anyhow::Result;
use std::path::Path;

/// What becomes of the events of COMMAND and its children, once it has ended.
pub(in crate::cli) struct Taker {
    /// Where the events wait.
    pub(in crate::cli) store: Store,
    /// What of devices' commands there is among them.
    pub(in crate::cli) detail: CommandDetail,
    /// Gets them, and COMMAND's process.
    pub(in crate::cli) take: Box<dyn FnOnce(Recorded, Store, u32) -> Result<()>>,
    /// Gets each event as it happens.
    pub(in crate::cli) watcher: Option<Box<dyn RecordingSink>>,
}

impl std::fmt::Debug for Taker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Taker").finish_non_exhaustive()
    }
}

/// What a recording becomes, opened.
#[derive(Debug, Default)]
pub(super) enum RecordingOutput {
    /// One result.
    One(OpenOutput),
    /// A file per window.
    Windows(WindowFiles),
    /// Files of the last seconds.
    Dumps(Box<DumpFiles>),
    /// Nothing that is written here.
    Taken(Box<Taker>),
    /// It has been written.
    #[default]
    Written,
}

impl RecordingOutput {
    pub(super) fn open(plan: &RecordingPlan, quiet: bool) -> Result<Self> {
        let format = plan.destination.format;
        Ok(match &plan.destination.place {
            OutputPlace::Dumps(directory) => {
                let style = DumpStyle {
                    directory: directory.clone(),
                    format,
                    replay: plan.replay,
                    export: plan.export.clone(),
                    kernels: plan.kernels.clone(),
                };
                Self::Dumps(Box::new(DumpFiles::open(style, &plan.steering, quiet)?))
            }
            OutputPlace::Windows {
                directory, keep, ..
            } => {
                let export = plan.export.clone();
                Self::Windows(WindowFiles::open(directory, format, export, *keep)?)
            }
            _ => Self::One(OpenOutput::open(&plan.destination, Path::new("aiprof"))?),
        })
    }

    /// What is kept of single events.
    pub(super) fn keep(&mut self) -> Result<Keep> {
        Ok(match self {
            Self::Taken(taker) => {
                let empty = Store::new(Box::new(caller::scratch));
                Keep::Timeline(std::mem::replace(&mut taker.store, empty), taker.detail)
            }
            Self::One(out) => match &out.format.source {
                FormatSource::Profile(_) => Keep::Nothing,
                FormatSource::Capture => Keep::Capture(out.capture_writer()?),
                FormatSource::Timeline(_) | FormatSource::Report(_) | FormatSource::Directory => {
                    Keep::Timeline(out.store()?, CommandDetail::default())
                }
            },
            Self::Windows(_) | Self::Dumps(_) | Self::Written => Keep::Nothing,
        })
    }

    /// An error of the session; one in writing the capture names its file.
    pub(super) fn explain(&self, error: CollectError) -> anyhow::Error {
        match (self, error) {
            (Self::One(out), CollectError::Capture(error)) if !out.file.is_stdout() => {
                anyhow::Error::new(error).context(out.file.cannot_write())
            }
            (_, error) => error.into(),
        }
    }
}
