//! Spans of devices that record nothing: what the program timed itself, and between
//! which calls the rest must have been at work.
//!
//! Operations that only have bounds are on rows of their own, which are marked so. There is a
//! span for each kernel's name and wait, never as if the device had been busy all that time.

use super::kernels::KernelFacts;
use super::launches::{BoundedLaunches, LaunchShape, Ran};
use super::{Builder, TrackKey, args, late_names};
use crate::correlate::{FinishedCall, TrackedLaunch};
use aiprof_model::{
    probes::{CallKind, ProbeRole, role},
    profile::LossKind,
    timeline::{Args, Quality, recorded::EventSink},
};

impl<S: EventSink> Builder<S> {
    /// Takes a launch in. `is_ioctl`: the driver's own submission, which the Linux kernel's
    /// fences report.
    pub(super) fn launched(&mut self, launch: &TrackedLaunch, is_ioctl: bool) {
        let is_work = match launch.kind {
            CallKind::Launch | CallKind::Submit => true,
            // Those without a queue return when they are done.
            CallKind::Copy | CallKind::Fill => launch.on.queue != 0,
            // What waits for events only is no command of its own.
            CallKind::Barrier => {
                self.barriers && launch.on.queue != 0 && launch.by.function.contains("Barrier")
            }
            _ => false,
        };
        if is_ioctl || !is_work || self.records.processes.contains(&launch.by.pid) {
            return;
        }
        let name = self
            .writer
            .name(&late_names::of_work(launch.by.pid, &launch.work.name));
        self.kernels.launched(launch);
        self.launches.launched(launch, name);
        self.take_known();
    }

    /// Takes note of a call that resets an event, or has it signalled by something else
    /// than a launch.
    pub(super) fn uses_event(&mut self, call: &FinishedCall) {
        let probe = &*call.probe;
        let asks = match probe.kind {
            CallKind::Synchronize => true,
            // OpenCL's are signalled once: only a new one takes the place of a handle.
            CallKind::Event if probe.api == "OpenCL" => probe.function != "clCreateUserEvent",
            CallKind::Event => {
                probe.role == Some(ProbeRole::Query) || probe.slot(role::GLOBAL_START).is_some()
            }
            _ => false,
        };
        if asks || !self.launches.has_signals() {
            return;
        }
        let event = probe.slot(role::EVENT).and_then(|slot| call.value(slot));
        if let Some(event) = event.filter(|event| *event != 0) {
            self.launches.event_used(call.pid, event);
            self.take_known();
        }
    }

    /// Hands on all that has ended, as well as it is known by now.
    pub(super) fn hand_on_known(&mut self) {
        self.launches.hand_on_known();
        self.take_known();
    }

    /// Hands on what is known by now.
    pub(super) fn take_known(&mut self) {
        for bounded in std::mem::take(&mut self.launches.bounded) {
            self.bounded(&bounded);
        }
        for ran in std::mem::take(&mut self.launches.ran) {
            self.ran(&ran);
        }
        let refused = std::mem::take(&mut self.launches.refused);
        self.writer.out.losses.add(LossKind::SpansRefused, refused);
    }

    fn bounded(&mut self, bounded: &BoundedLaunches) {
        let count = bounded.works.len() as u64;
        *self.bounded_of.entry(bounded.pid).or_default() += count;
        let key = TrackKey::Bounds {
            pid: bounded.pid,
            api: bounded.api.clone(),
            queue: bounded.queue,
        };
        let Some(track) = self.writer.track(key) else {
            return self.writer.out.losses.add(LossKind::SpansRefused, count);
        };
        let end = bounded.end_ns.unwrap_or(self.writer.last_ns);
        for (work, inside) in bounded.works.iter().zip((0..count).rev()) {
            let mut args = Args::new();
            args.text(
                "estimated",
                "the device was at work at some time between the first launch and the end of \
                 the wait",
            );
            args.number("launches", work.launches);
            let of = (&*bounded.api, bounded.pid, bounded.device);
            write_command(&mut args, &mut self.kernels, of, &work.shape);
            args.micros("append_us", work.append_ns);
            if bounded.end_ns.is_none() {
                args.text("end", "no wait was seen");
            }
            // Rows show spans inside each other, each a nanosecond shorter than the one
            // around it; all of them have to reach the end of the wait.
            let times = (work.from_ns, end.saturating_add(inside).max(work.from_ns));
            let mut event = self.writer.span(work.name, "estimated", track, times);
            event.quality = Quality::Bounded;
            self.writer.push(&event, 0, &args);
        }
    }

    fn ran(&mut self, ran: &Ran) {
        let signal = &ran.signal;
        let key = TrackKey::Engine {
            pid: signal.pid,
            api: signal.api.clone(),
            device: ran.device,
            queue: signal.queue,
        };
        let Some(track) = self.writer.track(key) else {
            return self.writer.out.losses.add(LossKind::SpansRefused, 1);
        };
        self.writer.out.totals.device_spans += 1;
        let category = match signal.shape.kind {
            CallKind::Copy => "gpu_memcpy",
            CallKind::Fill => "gpu_memset",
            CallKind::Barrier => "gpu_barrier",
            _ => "kernel",
        };
        let mut args = Args::new();
        args.number("device", ran.device.into());
        args.number("stream", ran.stream.into());
        if ran.within_ns > 0 {
            args.micros("begin_within_us", ran.within_ns);
        }
        let of = (&*signal.api, signal.pid, signal.device);
        write_command(&mut args, &mut self.kernels, of, &signal.shape);
        args.micros("append_us", signal.append_ns());
        args.micros(
            "submit_us",
            ran.start_ns.saturating_sub(signal.submitted_ns),
        );
        let end = ran.start_ns.saturating_add(ran.ran_ns);
        let mut event = self
            .writer
            .span(signal.name, category, track, (ran.start_ns, end));
        event.correlation = signal.launch;
        self.writer.push(&event, 0, &args);
        let thread = TrackKey::Thread {
            pid: signal.pid,
            tid: signal.shape.tid,
        };
        if let Some(&from) = self.writer.tracks.get(&thread) {
            let halves = [(signal.start_ns, from), (ran.start_ns, track)];
            let key = (signal.pid, signal.launch);
            self.records.flows.arrow(&mut self.writer, key, halves);
        }
    }
}

/// Writes what is known of a command of a device: who made it how, and its shape; with
/// the first of a kernel also what the kernel is made of.
fn write_command(
    args: &mut Args,
    kernels: &mut KernelFacts,
    (api, pid, device): (&str, u32, u64),
    shape: &LaunchShape,
) {
    args.text("api", api);
    args.number("pid", pid.into());
    args.number("tid", shape.tid.into());
    args.text("call", &shape.function);
    args.text("kind", shape.kind.name());
    if device != 0 {
        args.hex("device_handle", device);
    }
    args::write_sizes(args, "groups", shape.groups);
    args::write_sizes(args, "local", shape.local);
    if shape.bytes > 0 {
        args.number("bytes", shape.bytes);
    }
    kernels.write(args, shape.kernel);
}
