//! Windows: what comes out of a recording, at its end and from time to time before.

use super::{collector::EventCollector, dump::Turning};
use crate::{clock, config::RecordConfig};
use aiprof_common::COUNT_SAMPLES;
use aiprof_model::{
    process::{FileId, ProcessTable},
    profile::{Losses, Meta, Profile},
    timeline::recorded::Recorded,
};
use aiprof_record::{
    aggregate::{Code, build_profile, build_profiles},
    capture::{CaptureWriter, ResolvedNames},
    store::Store,
    timeline::Builder,
};
use aiprof_system::remote;
use rustc_hash::FxHashSet;
use std::{
    collections::BTreeMap,
    io,
    time::{Duration, Instant},
};

/// Files known from one window to the next; beyond it, all is learned anew.
const MAX_FILES: usize = 16_384;
/// Files that no process maps whose tables and names are kept for the next that does.
const MAX_UNUSED: usize = 256;

/// What a window has.
#[derive(Debug)]
pub struct WindowProfiles {
    /// CPU samples, and those of devices.
    pub cpu: Profile,
    /// Waits, if they are recorded.
    pub waits: Option<Profile>,
    /// Launches, if they are recorded.
    pub launches: Option<Profile>,
}

impl WindowProfiles {
    /// The CPU's profile, and all others that have samples.
    pub fn profiles(&self) -> impl Iterator<Item = &Profile> {
        let others = self.waits.iter().chain(&self.launches);
        let others = others.filter(|profile| !profile.samples.is_empty());
        std::iter::once(&self.cpu).chain(others)
    }

    /// All of them, to be changed.
    pub fn profiles_mut(&mut self) -> impl Iterator<Item = &mut Profile> {
        let others = self.waits.iter_mut().chain(&mut self.launches);
        std::iter::once(&mut self.cpu).chain(others)
    }
}

/// The window that is being recorded, and the sums of those before.
pub(super) struct Windows {
    /// The description of the recording.
    pub(super) meta: Meta,
    /// What a CPU sample stands for, as captures have it, nanoseconds.
    pub(super) sample_ns: u64,
    /// When sampling began.
    pub(super) started: Instant,
    /// When this window did.
    pub(super) began: Instant,
    /// What was lost before this window.
    base: Losses,
    /// What was lost in the last one.
    losses: Losses,
    /// How long each CPU was busy in the last one, nanoseconds.
    busy: BTreeMap<u32, u64>,
    /// Samples in all of them.
    samples: u64,
    /// If the last seconds are kept.
    pub(super) turning: Option<Turning>,
}

impl Windows {
    /// The first one begins now.
    pub(super) fn new(config: &RecordConfig, meta: Meta, sample_ns: u64, now: Instant) -> Self {
        Self {
            meta,
            sample_ns,
            started: now,
            began: now,
            base: Losses::default(),
            losses: Losses::default(),
            busy: BTreeMap::new(),
            samples: 0,
            turning: config.window.map(Turning::new),
        }
    }

    /// Samples recorded so far.
    pub(super) fn samples(&self, collector: &EventCollector) -> u64 {
        self.samples + collector.events.aggregate.taken
    }

    /// The symbolized profile of the window, which ends now.
    pub(super) fn build(&mut self, collector: &mut EventCollector) -> Profile {
        let meta = self.complete(collector);
        let (events, names) = (&collector.events, &collector.naming);
        let files = &events.recording.processes.files;
        build_profile(&events.aggregate, files, names, meta)
    }

    /// The same as a profile for each kind of values.
    pub(super) fn build_parts(&mut self, collector: &mut EventCollector) -> WindowProfiles {
        let meta = self.complete(collector);
        let (events, names) = (&mut collector.events, &collector.naming);
        let files = &events.recording.processes.files;
        let mut launches = events.launches.as_deref_mut().map(|all| {
            all.complete(&self.busy, meta.period_ns);
            build_profile(all, files, names, meta.clone())
        });
        let (mut cpu, waits) = build_profiles(&events.aggregate, files, names, meta);
        // Reported once for the window, so that the losses of its profiles can be added up.
        if let Some(launches) = &mut launches {
            cpu.losses.merge(&std::mem::take(&mut launches.losses));
        }
        WindowProfiles {
            cpu,
            waits,
            launches,
        }
    }

    /// Completes what was added up, and returns its description.
    fn complete(&mut self, collector: &mut EventCollector) -> Meta {
        // The window ends here: naming takes its time, which is the next one's.
        let ended = Instant::now();
        collector.events.aggregate.settle_devices(false);
        let losses_now = collector.losses();
        self.losses = self.losses_until(&losses_now);
        let (bpf, events) = (&collector.kernel.bpf, &collector.events);
        collector
            .naming
            .finish(bpf, &mut collector.processes, events);
        let mut meta = self.meta.clone();
        let since_start = self.began.duration_since(self.started);
        let paused = collector.pausing.end_window(ended);
        let length = ended.duration_since(self.began);
        meta.start_unix_ns = match collector.is_continuous {
            // The clock may have been set since the start, which may be months ago.
            true => clock::unix_ns().saturating_sub(nanoseconds(ended.elapsed() + length)),
            false => meta.start_unix_ns + nanoseconds(since_start),
        };
        meta.duration_ns = nanoseconds(length.saturating_sub(paused));
        self.began = ended;
        self.base = losses_now;
        let events = &mut collector.events;
        events.aggregate.losses.merge(&self.losses);
        events.lost_calls();
        self.busy = collector.pausing.window_busy();
        events.aggregate.complete(&self.busy, meta.period_ns);
        meta
    }

    /// What was lost in this window until now.
    pub(super) fn losses_until(&self, now: &Losses) -> Losses {
        let mut losses = Losses::default();
        for (kind, count) in now.iter() {
            losses.add(kind, count.saturating_sub(self.base.get(kind)));
        }
        losses
    }

    /// Begins a new window. Bounds what is carried to it: forgets what neither a process nor a
    /// table nor a call refers to, and names that the last window did not use.
    pub(super) fn forget(&mut self, collector: &mut EventCollector) {
        self.samples = self.samples(collector);
        let all = collector.events.aggregates();
        let codes: FxHashSet<Code> = all.flat_map(|all| all.codes_from(0)).copied().collect();
        collector.events.reset();
        collector.naming.restart(true);
        let processes = &mut collector.processes;
        let lists = &processes.publisher.lists;
        processes.tables.forget_unused(lists, false);
        processes.tables.forget_surplus(lists, MAX_UNUSED);
        let mut used = mapped_files(&collector.events.recording.processes);
        let all = collector.events.aggregates();
        used.extend(all.flat_map(|all| all.files_of_calls().map(FileId)));
        used.sort_unstable();
        used.dedup();
        let tables = &collector.processes.tables;
        let keep = |id| tables.uses(id) || used.binary_search(&id).is_ok();
        collector.naming.trim(&codes, keep);
        collector.processes.binaries.retain(keep);
        let files = &mut collector.events.recording.processes.files;
        files.retain(keep);
        if files.len() > MAX_FILES {
            collector.begin_afresh();
        }
        drop((codes, used));
        // What windows took is in pieces all over the heap by now.
        remote::give_back_memory();
    }

    /// Forgets what was added up, if it is as old as the window: of the last seconds the
    /// events are kept, and here only what names are wanted of.
    pub(super) fn turn(&mut self, collector: &mut EventCollector) {
        let Some(turning) = &mut self.turning else {
            return;
        };
        let Some(used) = turning.turn(&collector.events.aggregate) else {
            return;
        };
        self.samples = self.samples(collector);
        collector.events.aggregate.reset();
        collector.naming.restart(false);
        self.base = collector.losses();
        let processes = &mut collector.processes;
        let lists = &processes.publisher.lists;
        processes.tables.forget_unused(lists, false);
        collector.naming.trim(&used, |_| true);
        let table = &collector.events.recording.processes;
        let mut used = mapped_files(table);
        used.sort_unstable();
        let tables = &collector.processes.tables;
        let keep = |id| tables.uses(id) || used.binary_search(&id).is_ok();
        collector.processes.binaries.retain(keep);
        if table.files.len() > MAX_FILES {
            collector.begin_afresh();
        }
        remote::give_back_memory();
    }

    /// Ends the timeline, with names. `lost_calls`: what the tracker lost.
    pub(super) fn finish_timeline(
        &self,
        builder: Builder<Store>,
        collector: &EventCollector,
        about: &Meta,
        lost_calls: &Losses,
    ) -> io::Result<(Recorded, Store)> {
        // The builder counts what is wrong with stacks itself.
        let mut losses = self.losses.clone();
        losses.merge(lost_calls);
        let processes = &collector.events.recording.processes;
        builder.finish(about.clone(), &losses, &collector.naming, processes)
    }

    /// Ends the capture.
    pub(super) fn finish_capture(
        &self,
        capture: CaptureWriter,
        collector: &EventCollector,
        about: &Meta,
    ) -> io::Result<()> {
        let codes = collector.events.aggregate.codes_from(0);
        let (names, texts, cgroups) = collector.naming.stored(codes);
        let known = ResolvedNames {
            names: &names,
            texts: &texts,
            files: &collector.events.recording.processes.files,
            cgroups: &cgroups,
        };
        // The aggregator counts its own losses again in the replay.
        capture.finish(&known, about, &self.losses, &self.busy)?;
        tracing::debug!(
            "the eBPF program took {} samples",
            collector.kernel.bpf.count(COUNT_SAMPLES)
        );
        Ok(())
    }
}

/// The files that processes have mapped, in no order.
fn mapped_files(processes: &ProcessTable) -> Vec<FileId> {
    let maps = processes
        .iter()
        .flat_map(|(_, process)| &process.space.maps);
    maps.map(|map| map.file).collect()
}

/// A length of time in nanoseconds, at most `u64::MAX`.
fn nanoseconds(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}
