//! The session's part in dumps of the last seconds.

use super::{CollectError, MAX_FILES, Session, window::DumpExtent};
use crate::bpf::perf;
use aiprof_model::{process::FileId, profile::LossKind};
use aiprof_record::aggregate::Code;
use aiprof_record::capture::{CaptureWriter, Known};
use aiprof_system::remote;
use rustc_hash::FxHashSet;
use std::{
    collections::BTreeMap,
    io::Write,
    time::{Duration, Instant},
};

/// What a session that keeps its last seconds knows beside them.
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
}

impl Session {
    /// Forgets what was added up, if it is as old as the window: of the last seconds the
    /// events are kept, and here only what names are wanted of.
    pub(super) fn turn(&mut self) {
        let Some(turning) = &mut self.turning else {
            return;
        };
        if turning.since.elapsed() < turning.length {
            return;
        }
        turning.since = Instant::now();
        let codes = self.events.aggregate.codes_from(0).iter().copied();
        let before = std::mem::replace(&mut turning.codes, codes.collect());
        let used = turning.codes.union(&before).copied().collect();
        self.samples_in_all += self.events.aggregate.taken;
        self.events.aggregate.reset();
        self.named_codes = 0;
        self.named_java = 0;
        self.window_base = self.running_losses();
        self.tables.forget_unused(false);
        if let Some(names) = &mut self.names {
            names.trim(&used, |_| true);
        }
        self.forget_files();
        remote::give_back_memory();
    }

    /// Closes files that no process has mapped, and begins afresh where there are too many.
    fn forget_files(&mut self) {
        let processes = self.events.recording.processes.iter();
        let mut used: Vec<FileId> = processes
            .flat_map(|(_, process)| process.space.maps.iter().map(|map| map.file))
            .collect();
        used.sort_unstable();
        let tables = &self.tables;
        let keep = |id| tables.uses(id) || used.binary_search(&id).is_ok();
        self.binaries.retain(keep);
        if self.events.recording.processes.files.len() > MAX_FILES {
            self.begin_afresh();
        }
    }

    /// The codes of the last seconds. Those that can be named have names now.
    fn codes_with_names(&mut self) -> Vec<Code> {
        self.events.aggregate.settle_devices(false);
        if let Some(names) = &mut self.names {
            names.settle();
        }
        self.request_names(true);
        if let Some(names) = &mut self.names {
            names.settle();
        }
        let mut codes: Vec<Code> = self.events.aggregate.codes_from(0).to_vec();
        if let Some(turning) = &self.turning {
            let known: FxHashSet<Code> = codes.iter().copied().collect();
            codes.extend(turning.codes.iter().filter(|code| !known.contains(code)));
        }
        codes
    }

    /// Writes what is kept of the last seconds, as a capture. The recording goes on, and
    /// what was written can be written again.
    ///
    /// # Errors
    /// Nothing is kept, or it cannot be written.
    pub fn dump(&mut self, out: Box<dyn Write + Send>) -> Result<DumpExtent, CollectError> {
        // On a busy machine the last seconds may still wait to be read.
        self.catch_up()?;
        let codes = self.codes_with_names();
        let Some(last) = &mut self.events.last_seconds else {
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
        let mut losses = self.losses_since_window(&self.running_losses());
        losses.add(LossKind::TableFull, extent.shortened + extent.forgotten);
        let (names, texts, cgroups) = self
            .names
            .as_ref()
            .map_or_else(Default::default, |names| names.stored(&codes));
        let known = Known {
            names: &names,
            texts: &texts,
            files: &self.events.recording.processes.files,
            cgroups: &cgroups,
        };
        let finished = writer.finish(&known, &meta, &losses, &BTreeMap::new());
        finished.map_err(failed)?;
        Ok(extent)
    }
}
