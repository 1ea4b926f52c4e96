//! Dumps of the last seconds.

use super::{CollectError, collector::EventCollector, last_seconds::DumpExtent, windows::Windows};
use crate::bpf::perf;
use aiprof_model::profile::LossKind;
use aiprof_record::{
    aggregate::{Aggregator, Code},
    capture::{CaptureWriter, ResolvedNames},
};
use rustc_hash::FxHashSet;
use std::{
    collections::BTreeMap,
    io::Write,
    time::{Duration, Instant},
};

/// What is known of the last seconds beside their events.
#[derive(Debug)]
pub(super) struct Turning {
    /// How long a window is.
    length: Duration,
    /// Since when samples are added up.
    since: Instant,
    /// The codes of the time before.
    codes: FxHashSet<Code>,
}

impl Turning {
    pub(super) fn new(length: Duration) -> Self {
        Self {
            length,
            since: Instant::now(),
            codes: FxHashSet::default(),
        }
    }

    /// If what is added up is as old as the window, returns all codes of this window and of the
    /// one before. Another window begins then.
    pub(super) fn turn(&mut self, aggregate: &Aggregator) -> Option<FxHashSet<Code>> {
        if self.since.elapsed() < self.length {
            return None;
        }
        self.since = Instant::now();
        let codes = aggregate.codes_from(0).iter().copied().collect();
        let before = std::mem::replace(&mut self.codes, codes);
        Some(self.codes.union(&before).copied().collect())
    }
}

impl Windows {
    /// Writes what is kept of the last seconds, as a capture. What was written can be written
    /// again.
    pub(super) fn dump(
        &self,
        collector: &mut EventCollector,
        out: Box<dyn Write + Send>,
    ) -> Result<DumpExtent, CollectError> {
        let codes = self.codes_with_names(collector);
        let Some(last) = &mut collector.events.last_seconds else {
            let why = "the recording keeps no window in memory (start it with --window)".to_owned();
            return Err(CollectError::Unsupported(why));
        };
        let failed = CollectError::Capture;
        let mut meta = self.meta.clone();
        let mut writer = CaptureWriter::new(out, &meta, self.sample_ns).map_err(failed)?;
        let mut written = Ok(());
        let extent = last.dump(perf::monotonic_ns(), |event| {
            if written.is_ok() {
                written = writer.event(event);
            }
        });
        written.map_err(failed)?;
        let now = perf::monotonic_ns();
        let since_begin = now.saturating_sub(extent.from_ns);
        let since_start = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        meta.start_unix_ns += since_start.saturating_sub(since_begin);
        let length = extent.to_ns.saturating_sub(extent.from_ns);
        meta.duration_ns = length.saturating_sub(extent.paused_ns);
        let mut losses = self.losses_until(&collector.losses());
        losses.add(LossKind::TableFull, extent.shortened + extent.forgotten);
        let (names, texts, cgroups) = collector.naming.stored(&codes);
        let known = ResolvedNames {
            names: &names,
            texts: &texts,
            files: &collector.events.recording.processes.files,
            cgroups: &cgroups,
        };
        let finished = writer.finish(&known, &meta, &losses, &BTreeMap::new());
        finished.map_err(failed)?;
        Ok(extent)
    }

    /// The codes of the last seconds. Those that can be named have names now.
    fn codes_with_names(&self, collector: &mut EventCollector) -> Vec<Code> {
        collector.events.aggregate.settle_devices(false);
        let (bpf, events) = (&collector.kernel.bpf, &collector.events);
        collector
            .naming
            .finish(bpf, &mut collector.processes, events);
        let mut codes: Vec<Code> = collector.events.aggregate.codes_from(0).to_vec();
        if let Some(turning) = &self.turning {
            let known: FxHashSet<Code> = codes.iter().copied().collect();
            codes.extend(turning.codes.iter().filter(|code| !known.contains(code)));
        }
        codes
    }
}
