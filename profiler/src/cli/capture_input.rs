//! Captures among what `aiprof analyze` reads: their events, what they lost of these, and the
//! stalls of their devices.

use super::{capture_timeline, stall_input};
use aiprof_formats::import::json::Reading;
use aiprof_formats::import::recording;
use aiprof_model::profile::{LossKind, Losses};
use aiprof_model::timeline::{Stretch, Timeline};
use aiprof_record::capture::ReplayOptions;
use aiprof_record::timeline::CommandDetail;
use aiprof_system::errors::chain;
use aiprof_system::files::caller;
use aiprof_trace::analyze::device_stalls::TimedStalls;
use anyhow::{Context as _, Result};
use std::path::Path;

/// What was read of a capture.
pub(super) struct CaptureRead {
    /// How that went.
    pub(super) reading: Reading,
    /// Stalls of devices were sampled.
    pub(super) has_stalls: bool,
    /// Calls and records of devices that it lost, a line each.
    pub(super) lost: Vec<String>,
}

/// Losses without which an analysis would be another one: of calls, launches and records of
/// devices. Stacks that are cut are none.
const LOST: [LossKind; 12] = [
    LossKind::LaunchesUnrecorded,
    LossKind::ActivityDropped,
    LossKind::ActivityUnknown,
    LossKind::DeviceTimesImpossible,
    LossKind::TimingNoEvent,
    LossKind::TimingAmbiguous,
    LossKind::TimingUndated,
    LossKind::CallRingDrops,
    LossKind::CallDataDrops,
    LossKind::CallsRefused,
    LossKind::LaunchesRefused,
    LossKind::SpansRefused,
];

/// A line for each cause by which calls or records were lost.
fn lost(losses: &Losses) -> Vec<String> {
    let all = losses
        .iter()
        .filter(|(kind, count)| *count > 0 && LOST.contains(kind));
    all.map(|(kind, count)| format!("{}: {count}, not recorded", kind.label()))
        .collect()
}

/// Adds a capture to a timeline.
///
/// # Errors
/// It cannot be read.
pub(super) fn read(
    path: &Path,
    kept: Stretch,
    detail: CommandDetail,
    timeline: &mut Timeline,
) -> Result<CaptureRead> {
    let options = ReplayOptions::default();
    let shown = path.display();
    let file = capture_timeline::open(path)?;
    let (recorded, store) = capture_timeline::timeline(path, file, options, detail, None)?;
    let has_stalls = recorded.totals.stalls > 0;
    let read = recording::read(&recorded, store, &path.to_string_lossy(), kept, timeline);
    let reading = read.with_context(|| format!("cannot read {shown}"))?;
    Ok(CaptureRead {
        reading,
        has_stalls,
        lost: lost(&recorded.losses),
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_of_launches_are_reported_and_cut_stacks_are_not() {
        let mut losses = Losses::default();
        losses.add(LossKind::LaunchesUnrecorded, 18);
        losses.add(LossKind::StackTooDeep, 5);
        assert_eq!(
            lost(&losses),
            ["launches without a device record: 18, not recorded"]
        );
    }
}
