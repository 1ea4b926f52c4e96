//! Captures among what `aiprof analyze` reads: their events, and the stalls of their devices.

use super::{capture_timeline, stall_input};
use aiprof_formats::import::json::Reading;
use aiprof_formats::import::recording;
use aiprof_model::timeline::{Stretch, Timeline};
use aiprof_record::capture::ReplayOptions;
use aiprof_record::timeline::CommandDetail;
use aiprof_system::errors::chain;
use aiprof_system::files::caller;
use aiprof_trace::analyze::device_stalls::TimedStalls;
use anyhow::{Context as _, Result};
use std::path::Path;

/// Adds a capture to a timeline; also whether stalls of devices were sampled.
///
/// # Errors
/// It cannot be read.
pub(super) fn read(
    path: &Path,
    kept: Stretch,
    detail: CommandDetail,
    timeline: &mut Timeline,
) -> Result<(Reading, bool)> {
    let options = ReplayOptions::default();
    let shown = path.display();
    let file = capture_timeline::open(path)?;
    let (recorded, store) = capture_timeline::timeline(path, file, options, detail, None)?;
    let has_stalls = recorded.totals.stalls > 0;
    let read = recording::read(&recorded, store, &path.to_string_lossy(), kept, timeline);
    let reading = read.with_context(|| format!("cannot read {shown}"))?;
    Ok((reading, has_stalls))
}

/// The stalls of a capture that is looked at as a whole: samples have no times of their own.
/// It is read once more, which a pipe cannot be.
pub(super) fn stalls(path: &Path, kept: Stretch) -> Vec<TimedStalls> {
    if kept != Stretch::ALL || !caller::is_file(path) {
        return Vec::new();
    }
    stall_input::timed(path).unwrap_or_else(|error| {
        let shown = path.display();
        tracing::warn!("{shown}: cannot analyze stalls: {}", chain(&*error));
        Vec::new()
    })
}
