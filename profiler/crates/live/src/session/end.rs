//! Ending a recording.

use super::{CollectError, collector::EventCollector, windows::Windows};
use crate::bpf::{perf, probe::BpfLink};
use aiprof_model::{
    profile::{Losses, Meta},
    timeline::recorded::Recorded,
};
use aiprof_record::store::Store;
use std::time::Duration;

/// Most looks at the end, each at what came during the one before.
const LAST_LOOKS: usize = 4;

/// Stops what brings events. Returns what should be closed last, how long the recording was
/// paused, and the problems of devices.
pub(super) fn detach(
    collector: &mut EventCollector,
) -> Result<(Vec<BpfLink>, Duration, Vec<String>), CollectError> {
    collector.processes.reader.budgets.end();
    collector.collect(false)?;
    collector.kernel.cpus.stop_sampling();
    let links = collector.probes.stop();
    let paused = collector.pausing.in_all();
    let queue = &mut collector.queue;
    collector.pausing.end(perf::monotonic_ns(), queue);
    Ok((links, paused, collector.devices.stop()))
}

/// Takes in what came before the end.
pub(super) fn collect_last(collector: &mut EventCollector) -> Result<(), CollectError> {
    for _ in 0..LAST_LOOKS {
        if !collector.collect(true)? {
            break;
        }
    }
    let ops = collector.probes.ops(true);
    collector.dispatch_wanted(ops)?;
    collector.place_kernels(None)?;
    let counters = collector.devices.counters(&collector.pausing, true);
    collector.dispatch_all(counters)
}

/// Completes the capture and the timeline, if there is one.
pub(super) fn write_kept(
    collector: &mut EventCollector,
    windows: &Windows,
    about: &Meta,
    lost_calls: &Losses,
) -> Result<Option<(Recorded, Store)>, CollectError> {
    if let Some(capture) = collector.events.capture.take() {
        let finished = windows.finish_capture(capture, collector, about);
        finished.map_err(CollectError::Capture)?;
    }
    let timeline = collector.events.timeline.take().map(|builder| {
        let finished = windows.finish_timeline(*builder, collector, about, lost_calls);
        finished.map_err(CollectError::Timeline)
    });
    timeline.transpose()
}
