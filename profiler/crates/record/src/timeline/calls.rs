//! Calls and what they gave devices: a span each, with the launches that follow it.

use super::{Builder, TrackKey, TrackWriter, args, late_names, ranges};
use crate::correlate::{FinishedCall, Submission, Tracked, TrackedLaunch};
use crate::recording::{Recording, RecordingSink};
use aiprof_model::{
    probes::CallKind,
    process::ProcessTable,
    profile::LossKind,
    timeline::{Args, Event as TimelineEvent, Quality, recorded::EventSink},
    wire::Event,
};
use std::{fmt::Write as _, io};

/// How long a call is drawn whose end was not seen, nanoseconds: about what a short
/// one takes.
const UNSEEN_NS: u64 = 3_000;
/// Most kinds of work that are named with one call.
const MAX_WORK: usize = 8;

/// A call whose launches are still to come.
#[derive(Debug)]
pub(super) struct Pending {
    id: u64,
    pid: u32,
    tid: u32,
    is_ioctl: bool,
    event: TimelineEvent,
    depth: u32,
    args: Args,
    /// What it put on a list, if it launches nothing itself.
    recorded: Option<(String, u32)>,
    /// First and last launch, and how many.
    launches: Option<(u64, u64, u64)>,
    /// Names of the launches.
    work: Vec<(String, u64)>,
    /// Work groups and work items of the only launch.
    sizes: [[u32; 3]; 2],
}

impl<S: EventSink> Builder<S> {
    /// When a call ended, or is drawn to have ended: a nanosecond after what is in it, and before
    /// what comes next.
    fn end_of(&mut self, call: &FinishedCall) -> u64 {
        let shown = call.end_ns.unwrap_or_else(|| {
            let short = call.start_ns.saturating_add(UNSEEN_NS);
            // What came next ended the calls around it too: each is drawn a
            // nanosecond longer than the one inside, and none beyond.
            let room = u64::from(call.nesting.depth) + 1;
            short.min(call.end_before_ns.saturating_sub(room))
        });
        let inside = self.inside.remove(&call.id).unwrap_or(0);
        let latest = match call.end_ns {
            Some(_) => u64::MAX,
            None => call.end_before_ns,
        };
        let shown = match call.end_ns {
            Some(_) => shown,
            None => self.waits.end_of(call, shown),
        };
        let end = shown.max(inside).min(latest).max(call.start_ns);
        if call.nesting.parent != 0 {
            let around = self.inside.entry(call.nesting.parent).or_default();
            *around = end.saturating_add(1).max(*around);
        }
        end
    }

    /// Hands on the last call.
    pub(super) fn flush(&mut self) {
        let Some(mut pending) = self.pending.take() else {
            return;
        };
        if let Some(work) = pending.write_work() {
            pending.event.work = self.writer.name(&work);
        }
        self.writer
            .push(&pending.event, pending.depth, &pending.args);
    }
}

impl<S: EventSink> RecordingSink for Builder<S> {
    fn event(&mut self, before: &Recording, event: &Event) -> io::Result<()> {
        self.take(&before.processes, event)
    }

    fn found(&mut self, _: &ProcessTable, found: &Tracked<'_>) {
        match *found {
            Tracked::Call(call) => self.take_call(call),
            Tracked::Launch(launch) => self.take_launch(launch),
            Tracked::ImagePiece(piece) => self.kernels.image_piece(piece),
            Tracked::KernelNamed { pid, kernel, name } => self.late.named(pid, kernel, name),
            Tracked::DeviceFact(fact) => {
                self.launches.fact(fact);
                self.take_known();
            }
            Tracked::KernelsInherited { parent, pid, .. } => self.launches.inherited(parent, pid),
            Tracked::ProcessGone { pid, at_ns } => {
                self.launches.process_gone(pid, at_ns);
                self.records.launches.process_gone(pid);
                self.take_known();
            }
            Tracked::Submission(submission) => submitted(&mut self.writer, submission),
            Tracked::DeviceSpan(span) => self.keep_record(span, true, true),
            Tracked::DeviceUntimed(span) => self.keep_record(span, true, false),
            Tracked::RuntimeRecord(span) => self.keep_record(span, false, true),
            Tracked::Range(range) => {
                ranges::draw(&mut self.writer, &mut self.process_tracks, range);
            }
            Tracked::Kernel(_) | Tracked::KernelPlaced(_) | Tracked::KernelGone { .. } => {}
        }
    }
}

impl<S: EventSink> Builder<S> {
    fn take_call(&mut self, call: &FinishedCall) {
        let end = self.end_of(call);
        self.uses_event(call);
        if call.nesting.is_part {
            return;
        }
        self.flush();
        let Some(track) = self.writer.track(TrackKey::Thread {
            pid: call.pid,
            tid: call.tid,
        }) else {
            return self.writer.out.losses.add(LossKind::SpansRefused, 1);
        };
        self.process_tracks.called(call.pid, call.tid);
        self.kernels.call(call);
        self.writer.out.totals.calls += 1;
        let probe = &*call.probe;
        let mut args = Args::new();
        args.text("api", &probe.api);
        args::write(&mut args, call);
        args::write_result(&mut args, call);
        args::write_inner(&mut args, &call.nesting.inner);
        if call.end_ns.is_none() {
            args.text("end", "not seen");
        }
        let recorded = call.work.first.as_ref().map(|work| {
            let name = late_names::of_work(call.pid, work);
            (name.into_owned(), call.work.launches)
        });
        let category = match probe.kind {
            _ if probe.is_ioctl => "ioctl",
            // In traces a kernel is what a device executes.
            CallKind::Kernel => "object",
            kind => kind.name(),
        };
        let name = self.writer.name(&probe.function);
        let mut event = self
            .writer
            .span(name, category, track, (call.start_ns, end));
        event.stack = self.stacks.of_call(call);
        let stack = event.stack;
        self.ops_inbox
            .stack((call.pid, call.tid), call.start_ns, || stack);
        if call.end_ns.is_none() {
            event.quality = Quality::Estimated;
        }
        self.pending = Some(Pending {
            id: call.id,
            pid: call.pid,
            tid: call.tid,
            is_ioctl: probe.is_ioctl,
            event,
            depth: call.nesting.depth,
            args,
            recorded,
            launches: None,
            work: Vec::new(),
            sizes: [[0; 3]; 2],
        });
    }

    fn take_launch(&mut self, launch: &TrackedLaunch) {
        self.writer.out.totals.launches += 1;
        let pending = self.pending.as_mut().filter(|p| p.made(launch));
        let is_ioctl = pending.as_ref().is_some_and(|pending| pending.is_ioctl);
        if let Some(pending) = pending {
            pending.take(launch);
        }
        if launch.may_be_timed_inside() {
            self.may_be_recorded(launch);
        }
        self.launched(launch, is_ioctl);
    }
}

impl Pending {
    /// Whether a launch is of this call: launches follow the call that made or
    /// submitted them.
    fn made(&self, launch: &TrackedLaunch) -> bool {
        let by_id = launch.by.call == self.id || launch.submit == Some(self.id);
        by_id || (self.pid, self.tid) == (launch.by.pid, launch.by.tid)
    }

    fn take(&mut self, launch: &TrackedLaunch) {
        let (first, _, count) = self.launches.unwrap_or((launch.id, launch.id, 0));
        self.launches = Some((first, launch.id, count + 1));
        self.sizes = match count {
            0 => [launch.work.groups, launch.work.local],
            _ => [[0; 3]; 2],
        };
        let name = late_names::of_work(launch.by.pid, &launch.work.name);
        if let Some((_, n)) = self.work.iter_mut().find(|(known, _)| **known == *name) {
            *n += 1;
        } else if self.work.len() < MAX_WORK {
            self.work.push((name.into_owned(), 1));
        }
    }

    /// Writes what the call gave the device, or put on a list; gives its names.
    fn write_work(&mut self) -> Option<String> {
        let args = &mut self.args;
        let Some((first, last, count)) = self.launches else {
            let (name, works) = self.recorded.take()?;
            if works > 1 {
                args.number("works", works.into());
            }
            return Some(name);
        };
        args::write_range(args, "launch", first, last);
        if count > 1 {
            args.number("launches", count);
        }
        let mut text = String::new();
        for (name, n) in &self.work {
            let comma = if text.is_empty() { "" } else { ", " };
            // Writing to a String cannot fail.
            let _ = write!(text, "{comma}{name}");
            if *n > 1 {
                let _ = write!(text, " x{n}");
            }
        }
        let named: u64 = self.work.iter().map(|(_, n)| n).sum();
        if named < count {
            let _ = write!(text, ", {} others", count - named);
        }
        let [groups, local] = self.sizes;
        args::write_sizes(args, "groups", groups);
        args::write_sizes(args, "local", local);
        Some(text)
    }
}

/// Draws a submission.
fn submitted<S: EventSink>(writer: &mut TrackWriter<S>, submission: &Submission) {
    let key = TrackKey::Queue {
        device: submission.device.clone(),
        queue: submission.queue.clone(),
    };
    let Some(track) = writer.track(key) else {
        return writer.out.losses.add(LossKind::SubmissionsRefused, 1);
    };
    writer.out.totals.submissions += 1;
    let from = submission.submitted_ns;
    let to = submission.end_before_ns.max(from);
    let name = writer.name(&late_names::of_submitter(submission.pid));
    let mut event = writer.span(name, "submission", track, (from, to));
    if submission.ended_ns.is_none() {
        event.quality = Quality::Estimated;
    }
    writer.push(&event, 0, &args_of(submission));
}

/// What is known of a submission.
fn args_of(submission: &Submission) -> Args {
    let mut args = Args::new();
    args.text("source", submission.source.name());
    for (key, number) in [
        ("pid", submission.pid.into()),
        ("tid", submission.tid.into()),
        ("client", submission.client),
        ("context", submission.context),
        ("seqno", submission.seqno),
    ] {
        if number != 0 {
            args.number(key, number);
        }
    }
    if let Some(started) = submission.started_ns {
        let waited = started.saturating_sub(submission.submitted_ns);
        args.micros("handed_over_after_us", waited);
    }
    if submission.ended_ns.is_none() {
        args.text("end", "not seen");
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::correlate::SubmissionSource;
    use aiprof_model::json::Object;

    #[test]
    fn arguments_say_what_is_known() {
        let mut one = Submission {
            source: SubmissionSource::Fence,
            device: "xe".into(),
            queue: "rcs0".into(),
            context: 1,
            seqno: 2,
            client: 0,
            pid: 0,
            tid: 0,
            submitted_ns: 10,
            started_ns: Some(1510),
            ended_ns: Some(5000),
            end_before_ns: 5000,
        };
        let text = |args: Args| Object::of(args.members()).members().to_owned();
        let expected = r#""source":"dma_fence","context":1,"seqno":2,"handed_over_after_us":1.500"#;
        assert_eq!(text(args_of(&one)), expected);
        (one.ended_ns, one.started_ns, one.pid) = (None, None, 4);
        let expected = r#""source":"dma_fence","pid":4,"context":1,"seqno":2,"end":"not seen""#;
        assert_eq!(text(args_of(&one)), expected);
    }
}
