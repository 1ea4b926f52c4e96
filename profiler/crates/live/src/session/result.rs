//! The session's part in what comes out: windows, the end, names, losses, the
//! capture.

use super::{
    CollectError, Finished, LAST_LOOKS, MAX_FILES, MAX_UNUSED, Progress, SelfUsage, Session,
    WindowProfiles,
};
use crate::{
    bpf::{Bpf, perf},
    busy, clock, closing,
    finisher::Finisher,
    inspect::guard,
    names::NameService,
};
use aiprof_common::{COUNT_RING_DROPS, COUNT_SAMPLES, COUNT_WAITS_LOST, COUNT_WAITS_UNENDED};
use aiprof_model::{
    process::FileId,
    profile::{LossKind, Losses, Meta, Profile},
    timeline::recorded::Recorded,
};
use aiprof_record::{
    aggregate::{Code, Names, NoNames, build_profile, build_profiles},
    timeline::Builder,
};
use aiprof_record::{
    capture::{CaptureWriter, Known},
    store::Store,
};
use aiprof_system::remote;
use rustc_hash::FxHashSet;
use std::time::{Duration, Instant};

impl Session {
    /// The symbolized profile since the start or the last call.
    ///
    /// # Errors
    /// Whatever kept the profile from being made.
    pub fn window(&mut self) -> Result<Profile, CollectError> {
        self.drain(false)?;
        let profile = self.build()?;
        self.forget_window();
        Ok(profile)
    }

    /// Begins a new window.
    pub(super) fn forget_window(&mut self) {
        self.samples_in_all += self.events.aggregate.taken;
        let all = self.events.aggregates();
        let codes: FxHashSet<Code> = all.flat_map(|all| all.codes_from(0)).copied().collect();
        self.events.aggregate.reset();
        if let Some(launches) = &mut self.events.launches {
            launches.reset();
        }
        self.named_codes = 0;
        self.named_launches = 0;
        self.named_java = 0;
        self.trim(codes);
    }

    /// Bounds what is carried from one window to the next. Forgets what neither a process nor a
    /// table nor a call refers to, and names that this window did not use.
    fn trim(&mut self, codes: FxHashSet<Code>) {
        self.tables.forget_unused(false);
        self.tables.forget_surplus(MAX_UNUSED);
        let mut used: Vec<FileId> = self
            .events
            .recording
            .processes
            .iter()
            .flat_map(|(_, process)| process.space.maps.iter().map(|m| m.file))
            .chain(
                self.events
                    .aggregates()
                    .flat_map(|all| all.files_of_calls().map(FileId)),
            )
            .collect();
        used.sort_unstable();
        used.dedup();
        let tables = &self.tables;
        let keep = |id| tables.uses(id) || used.binary_search(&id).is_ok();
        if let Some(names) = &mut self.names {
            names.trim(&codes, keep);
        }
        self.binaries.retain(keep);
        self.events.recording.processes.files.retain(keep);
        if self.events.recording.processes.files.len() > MAX_FILES {
            self.begin_afresh();
        }
        drop((codes, used));
        // What windows took is in pieces all over the heap by now.
        remote::give_back_memory();
    }

    /// Too much is known: what still runs is met again at its next sample.
    pub(super) fn begin_afresh(&mut self) {
        self.publisher.clear(&mut self.bpf, &mut self.tables);
        self.tables.forget_unused(true);
        self.finisher = Finisher::default();
        self.binaries.clear();
        self.generated.clear();
        self.javas.clear();
        self.reader.begin_afresh();
        self.reading = Default::default();
        self.events.recording.processes = self.events.recording.processes.successor();
        self.events.aggregate.forget_files();
        if let Some(launches) = &mut self.events.launches {
            launches.forget_files();
        }
        if let Some((probes, _)) = &mut self.probes {
            probes.files_forgotten();
        }
        self.names = None;
    }

    /// Detaches everything and returns the rest.
    ///
    /// # Errors
    /// Whatever kept the profile from being made.
    pub fn finish(mut self) -> Result<Finished, CollectError> {
        self.reader.hurry();
        self.drain(false)?;
        self.cpus.stop_sampling();
        let links = self.stop_probes();
        let paused = self.paused();
        self.end_pause(perf::monotonic_ns());
        let device_problems = self.samplers.as_mut().map_or_else(Vec::new, |samplers| {
            samplers.stop();
            samplers.problems()
        });
        for _ in 0..LAST_LOOKS {
            if !self.drain(true)? {
                break;
            }
        }
        self.finish_ops()?;
        self.name_late_kernels(None)?;
        self.place_kernels(None)?;
        self.tell_of_devices(true)?;
        let now_ns = perf::monotonic_ns();
        self.events.finish(now_ns);
        let calls = self.events.recording.tracker().counts();
        let lost_calls = self.events.lost_calls();
        self.events.aggregate.settle_devices(true);
        self.forget_watched();
        let profile = self.build()?;
        let bpf_memory_bytes = Bpf::memory_bytes() + self.cpus.ring_bytes() as u64;
        if let Some(capture) = self.events.capture.take() {
            self.finish_capture(capture, &profile)?;
        }
        let timeline = match self.events.timeline.take() {
            Some(builder) => Some(self.finish_timeline(*builder, &profile.meta, &lost_calls)?),
            None => None,
        };
        let (pages, shared, bytes) = self.tables.extent();
        tracing::info!("unwind tables: {pages} pages, {shared} more shared, {bytes} bytes");
        self.peak_memory.look();
        let usage = SelfUsage {
            cpu: remote::cpu_clock(libc::CLOCK_PROCESS_CPUTIME_ID) + remote::cpu_time(),
            peak_rss_bytes: self.peak_memory.bytes(),
            bpf_memory_bytes,
        };
        let probes = self.probes.take().map(|(probes, _)| probes.tally());
        let aiu = self.devices.used;
        // Whoever closes the rest must not keep alive what this process has.
        drop(self);
        closing::in_background(links);
        // Another recording of this process may go on.
        guard::set_ending(false);
        Ok(Finished {
            profile,
            usage,
            paused,
            probes,
            aiu,
            device_problems,
            calls,
            lost_calls,
            timeline,
        })
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        Progress {
            samples: match self.triggers.begin_recording() {
                true => 0,
                false => self.samples_in_all + self.events.aggregate.taken,
            },
            lost: self.bpf.count(COUNT_RING_DROPS),
            elapsed: self.started.elapsed(),
            processes: self.events.recording.processes.len(),
        }
    }

    /// Gives the naming thread the codes it has not seen. `last`: before names are used.
    pub(super) fn request_names(&mut self, last: bool) {
        if self.names.is_none() {
            // Started late, so that it has the reduced privileges of this process.
            let kernel = self.bpf.kernel_namer();
            let kernel = kernel.inspect_err(|e| {
                tracing::warn!("functions of the Linux kernel have no names: {e}")
            });
            self.names = NameService::start(self.name_options.clone(), kernel.ok())
                .inspect_err(|error| {
                    tracing::warn!(
                        "cannot start the thread that looks up names, so functions have no names: \
                         {error}"
                    )
                })
                .ok();
        }
        let closed = self
            .names
            .as_mut()
            .map_or_else(Vec::new, NameService::take_closed);
        for code in &closed {
            if let Code::File { file, .. } = code {
                self.reopen(FileId(*file));
            }
        }
        let Some(names) = &mut self.names else { return };
        if !closed.is_empty() {
            names.request(
                &closed,
                &self.events.recording.processes,
                &self.binaries,
                &self.javas,
                last,
            );
        }
        // Asked for before their files were known, these got no names.
        let rebound = std::mem::take(&mut self.reading.rebound);
        let is_rebound = |code: &&Code| matches!(code, Code::File { file, .. } if rebound.contains(&FileId(*file)));
        let known = [&mut self.named_codes, &mut self.named_launches];
        for (aggregate, known) in self.events.aggregates().zip(known) {
            let processes = &self.events.recording.processes;
            if !rebound.is_empty() {
                let codes = aggregate.codes_from(0).iter().filter(is_rebound);
                let codes: Vec<Code> = codes.copied().collect();
                if !names.request(&codes, processes, &self.binaries, &self.javas, last) {
                    self.reading.rebound.extend(&rebound);
                }
            }
            let codes = aggregate.codes_from(*known);
            let asked = codes.len();
            if names.request(codes, processes, &self.binaries, &self.javas, last) {
                *known += asked;
            }
            let codes = aggregate.codes_from(0);
            names.retry_jit(codes, processes, (&self.binaries, &self.javas), last);
            names.note_cgroups(aggregate.cgroups());
        }
    }

    /// Gives the naming thread the codes of Java and JavaScript that it has not seen.
    pub(super) fn request_java_names(&mut self) {
        let Some(names) = &mut self.names else { return };
        let codes = self.events.aggregate.codes_from(self.named_java);
        self.named_java += codes.len();
        let is_java = |code: &&Code| match **code {
            Code::Jit { pid, .. } | Code::JavaMethod { pid, .. } => self.javas.get(pid).is_some(),
            Code::JsFunction { .. } => true,
            _ => false,
        };
        let codes: Vec<Code> = codes.iter().filter(is_java).copied().collect();
        // What is not taken now is asked for with all others.
        names.request(
            &codes,
            &self.events.recording.processes,
            &self.binaries,
            &self.javas,
            false,
        );
    }

    pub(super) fn build(&mut self) -> Result<Profile, CollectError> {
        let meta = self.complete()?;
        let (aggregate, files) = (
            &self.events.aggregate,
            &self.events.recording.processes.files,
        );
        Ok(match &self.names {
            Some(names) => build_profile(aggregate, files, names, meta),
            None => build_profile(aggregate, files, &NoNames, meta),
        })
    }

    /// The same as a profile for each kind of values.
    pub(super) fn build_parts(&mut self) -> Result<WindowProfiles, CollectError> {
        let meta = self.complete()?;
        if let Some(launches) = &mut self.events.launches {
            launches.complete(&self.busy, meta.period_ns);
        }
        let parts = self.names.as_ref();
        Ok(match parts {
            Some(names) => self.parts(names, meta),
            None => self.parts(&NoNames, meta),
        })
    }

    fn parts(&self, names: &impl Names, meta: Meta) -> WindowProfiles {
        let files = &self.events.recording.processes.files;
        let launches = self.events.launches.as_deref();
        let mut launches = launches.map(|all| build_profile(all, files, names, meta.clone()));
        let (mut cpu, waits) = build_profiles(&self.events.aggregate, files, names, meta);
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
    fn complete(&mut self) -> Result<Meta, CollectError> {
        // The window ends here: naming takes its time, which is the next one's.
        let ended = Instant::now();
        self.events.aggregate.settle_devices(false);
        let losses_now = self.running_losses();
        let losses = self.losses_since_window(&losses_now);
        if let Some(names) = &mut self.names {
            names.settle();
        }
        self.request_names(true);
        if let Some(names) = &mut self.names {
            names.settle();
        }
        let mut meta = self.meta.clone();
        let since_start = self.window_started.duration_since(self.started);
        let paused = self.pausing.end_window(ended);
        let length = ended.duration_since(self.window_started);
        meta.start_unix_ns = match self.is_calm {
            // The clock may have been set since the start, which may be months ago.
            true => clock::unix_ns().saturating_sub(nanoseconds(ended.elapsed() + length)),
            false => meta.start_unix_ns + nanoseconds(since_start),
        };
        let recorded = length.saturating_sub(paused).as_nanos();
        meta.duration_ns = u64::try_from(recorded).unwrap_or(u64::MAX);
        self.window_started = ended;
        self.window_base = losses_now;
        self.window_losses = losses.clone();
        self.events.aggregate.losses.merge(&losses);
        self.events.lost_calls();
        let busy_now = busy::busy_ns();
        let since_pause = busy::since(&self.busy_before, &busy_now);
        self.busy = self.pausing.busy(since_pause);
        self.busy_before = busy_now;
        self.events.aggregate.complete(&self.busy, meta.period_ns);
        Ok(meta)
    }

    /// Losses counted elsewhere than in the aggregator, since the start.
    pub(super) fn running_losses(&self) -> Losses {
        let mut losses = Losses::default();
        losses.add(LossKind::RingDrops, self.bpf.count(COUNT_RING_DROPS));
        losses.add(LossKind::CpusUnsampled, self.cpus.missed);
        losses.add(LossKind::WaitsLost, self.bpf.count(COUNT_WAITS_LOST));
        losses.add(LossKind::WaitsUnended, self.bpf.count(COUNT_WAITS_UNENDED));
        losses.add(LossKind::ProgramsMissed, Bpf::missed());
        losses.add(LossKind::TablesEvicted, self.tables.evicted);
        losses.add(
            LossKind::FilesUnreadable,
            self.binaries.failed + self.binaries.refused,
        );
        losses.add(LossKind::ReadsLate, self.reader.late);
        losses.add(LossKind::FilesNoUnwindData, self.tables.without_data);
        losses.add(LossKind::TablesRefused, self.tables.refused);
        losses.add(LossKind::Undecodable, self.undecodable);
        if let Some((probes, _)) = &self.probes {
            losses.merge(&probes.losses(&self.bpf));
            losses.merge(&self.drivers.losses(&self.bpf));
            let paused = self.conditional.as_ref().map_or(0, |c| c.skipped);
            losses.add(LossKind::CallsPaused, paused);
        }
        losses.merge(&self.devices.losses());
        if let Some(samplers) = &self.samplers {
            // The windows of samples carry the others.
            let kind = LossKind::DeviceUndecodable;
            losses.add(kind, samplers.losses().get(kind));
        }
        losses
    }

    /// What was added to them in this window.
    pub(super) fn losses_since_window(&self, now: &Losses) -> Losses {
        let mut losses = Losses::default();
        for (kind, count) in now.iter() {
            losses.add(kind, count.saturating_sub(self.window_base.get(kind)));
        }
        losses
    }

    /// Ends the timeline, with names. `lost_calls`: what the tracker lost.
    fn finish_timeline(
        &self,
        builder: Builder<Store>,
        about: &Meta,
        lost_calls: &Losses,
    ) -> Result<(Recorded, Store), CollectError> {
        // The builder counts what is wrong with stacks itself.
        let mut losses = self.window_losses.clone();
        losses.merge(lost_calls);
        let names: &dyn Names = match &self.names {
            Some(names) => names,
            None => &NoNames,
        };
        let finished = builder.finish(
            about.clone(),
            &losses,
            names,
            &self.events.recording.processes,
        );
        finished.map_err(CollectError::Timeline)
    }

    fn finish_capture(
        &self,
        capture: CaptureWriter,
        profile: &Profile,
    ) -> Result<(), CollectError> {
        let (names, texts, cgroups) = match &self.names {
            Some(names) => names.stored(self.events.aggregate.codes_from(0)),
            None => Default::default(),
        };
        // The aggregator counts its own losses again in the replay.
        let losses = &self.window_losses;
        let known = Known {
            names: &names,
            texts: &texts,
            files: &self.events.recording.processes.files,
            cgroups: &cgroups,
        };
        capture
            .finish(&known, &profile.meta, losses, &self.busy)
            .map_err(CollectError::Capture)?;
        tracing::debug!(
            "the eBPF program took {} samples",
            self.bpf.count(COUNT_SAMPLES)
        );
        Ok(())
    }
}

/// A length of time in nanoseconds, at most `u64::MAX`.
fn nanoseconds(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}
