//! What an analysis reads, does and writes.

use aiprof_model::kernel_classes::KernelClasses;
use aiprof_trace::analyze::config::AnalysisConfig;
use aiprof_trace::analyze::messages::Level;
use std::path::PathBuf;

/// A run of the analyses, from files to files, in plain values.
#[derive(Clone, Debug, Default)]
pub(super) struct AnalysisPlan {
    /// Inputs as they were given: paths, patterns for the last part of a path.
    pub(super) inputs: Vec<String>,
    /// Compiler logs, one per rank or one for all, or the inductor cache directory.
    pub(super) compiler_info: Vec<PathBuf>,
    /// What kernels are for, by their names.
    pub(super) classes: KernelClasses,
    /// What is done with the events.
    pub(super) analysis: AnalysisConfig,
    /// Verify the input instead of analysing it.
    pub(super) verify: bool,
    /// The trace that is written; all other outputs take their names from it.
    pub(super) output: PathBuf,
    /// Format of the trace.
    pub(super) format: Format,
    /// Write files for TensorBoard, one per rank.
    pub(super) tensorboard: bool,
    /// Write the trace. Tables are written in either case.
    pub(super) write_trace: bool,
    /// Write tables and reports beside the trace.
    pub(super) write_tables: bool,
    /// The trace as it stands between steps, by the number of steps.
    pub(super) intermediate: Vec<IntermediateTrace>,
    /// Viewers show times in milliseconds, not in nanoseconds.
    pub(super) shows_ms: bool,
    /// Level of the messages that are reported.
    pub(super) level: Level,
}

impl AnalysisPlan {
    /// `displayTimeUnit` of Chrome traces.
    pub(super) fn time_unit(&self) -> &'static str {
        match self.shows_ms {
            true => "ms",
            false => "ns",
        }
    }
}

/// A trace that is written before all steps are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IntermediateTrace {
    /// Where.
    pub(super) path: PathBuf,
    /// After how many steps.
    pub(super) after: usize,
}

/// Format of the trace that is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Format {
    /// Chrome trace events.
    #[default]
    Json,
    /// A text table of the events.
    Pddf,
    /// Perfetto's protobuf. acelyzer 1.3.0 names it and refuses it.
    Protobuf,
    /// Text; for the report of a verification only.
    Text,
    /// No trace, but the report as a page. aiprof's own.
    Html,
}
