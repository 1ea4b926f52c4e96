//! Steps of training (`ProfilerStep#5`), and how the time of each splits.
//!
//! Work of a device belongs to the step in which it was launched; where no call is known, to that
//! in which it begins. A device's time of a step begins with the step on the host, but not before
//! all work that was launched before has ended. It ends with the step on the host, but not before
//! the step's own work. It is cut to the time from the device's first work to its last, of which
//! [`device_idle`](crate::device_time::device_idle) has the account. Steps of one process share no
//! time.

use crate::device_time::{DeviceTime, IdleBlame, IdleStretch, IdleSum};
use crate::findings::device::GapBlame;
use crate::findings::host::{HostRows, is_loader};
use crate::stretches::{StretchSums, Stretches};
use crate::torch::{EVALUATE, MODULE, frames};
use crate::work::{RankWork, RankedWork, STEP, SpanRole, WorkClass, WorkIndex, name_of};
use aiprof_model::timeline::{DeviceKey, ProcessKey, Sym, Time, Timeline};
use rustc_hash::FxHashMap;

/// What the host does in a part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepPhase {
    /// It waits for data: spans of a DataLoader or DataPipe.
    Loader,
    /// Notes `forward` (also `## forward ##`) or `NAME.forward`, and calls of modules.
    Forward,
    /// Notes `backward`, and autograd's spans round backward operators.
    Backward,
    /// Notes `optimizer` or `Optimizer.NAME`.
    Optimizer,
}

impl StepPhase {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Loader, Self::Forward, Self::Backward, Self::Optimizer];

    /// The phase that spans of a name are; `None`: none.
    pub(crate) fn of(name: &str) -> Option<Self> {
        let word = name.trim_matches(|c| c == '#' || c == ' ');
        let is = |phase: &str| word.eq_ignore_ascii_case(phase);
        if is_loader(name) {
            Some(Self::Loader)
        } else if is("backward") || name.starts_with(EVALUATE) {
            Some(Self::Backward)
        } else if is("optimizer") || name.starts_with("Optimizer.") {
            Some(Self::Optimizer)
        } else if is("forward") || name.ends_with(".forward") || name.starts_with(MODULE) {
            Some(Self::Forward)
        } else {
            None
        }
    }
}

/// A step of a rank.
#[derive(Clone, Debug, PartialEq)]
pub struct StepRow {
    /// The rank.
    pub rank: u32,
    /// Its number: what its note has behind `#`.
    pub step: String,
    /// Its length on the host, microseconds.
    pub wall_us: f64,
    /// Time of the host in each phase, as [`StepPhase::ALL`], microseconds; `None`: the rank has no
    /// span of the phase.
    pub phases: [Option<f64>; 4],
    /// A device's part; `None`: no device worked for the step.
    pub device: Option<DeviceStep>,
}

/// The time of a device in a step. All but `span_us` add up to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceStep {
    /// The device.
    pub device: DeviceKey,
    /// The device's time of the step, microseconds.
    pub span_us: f64,
    /// It computes, microseconds.
    pub compute_us: f64,
    /// It communicates and does not compute, microseconds.
    pub communication_us: f64,
    /// It copies or fills memory and does nothing else, microseconds.
    pub copy_us: f64,
    /// It idles, microseconds.
    pub idle_us: f64,
    /// Its idle time by reason, as [`IdleBlame::ALL`].
    pub causes: [IdleSum; IdleBlame::ALL.len()],
}

/// The steps of all ranks: by rank, device and time.
pub fn steps(timeline: &Timeline, index: &WorkIndex) -> Vec<StepRow> {
    let host = HostRows::new(timeline, index);
    let blame = GapBlame::new(timeline, &host);
    let mut modules = frames(timeline, index);
    let mut rows = Vec::new();
    for (at, rank) in index.ranks.iter().enumerate() {
        let modules = modules.remove(&at).unwrap_or_default();
        let found = RankSteps::new(timeline, index, rank, &modules);
        if found.all.is_empty() {
            continue;
        }
        let phases: Vec<_> = found.all.iter().map(|step| found.phases(step)).collect();
        let mut row = |at: usize, device| {
            if let (Some(step), Some(phases)) = (found.all.get(at), phases.get(at)) {
                rows.push(StepRow {
                    rank: rank.rank,
                    step: step.name.to_owned(),
                    wall_us: (step.end - step.start).micros(),
                    phases: *phases,
                    device,
                });
            }
        };
        let mut is_seen = vec![false; found.all.len()];
        for device in DeviceTime::all(rank) {
            let mut idle = blame.of(&device);
            idle.sort_by_key(|stretch| (stretch.from, stretch.to));
            for (at, split) in found.device(&device, &idle) {
                if let Some(seen) = is_seen.get_mut(at) {
                    *seen = true;
                }
                row(at, Some(split));
            }
        }
        let alone = is_seen.iter().enumerate().filter(|(_, is_seen)| !**is_seen);
        alone.for_each(|(at, _)| row(at, None));
    }
    rows
}

/// Stretches of idle time that are looked at for all steps of a device: steps that overlap may each
/// have all of them.
const MOST_LOOKS: usize = 1 << 24;

/// A step on the host.
struct HostStep<'t> {
    process: ProcessKey,
    name: &'t str,
    start: Time,
    end: Time,
}

/// The steps of a rank, and what is known of them.
struct RankSteps<'t> {
    timeline: &'t Timeline,
    /// By process and begin.
    all: Vec<HostStep<'t>>,
    /// When each process was in each phase.
    phases: FxHashMap<ProcessKey, [StretchSums; 4]>,
}

impl<'t> RankSteps<'t> {
    fn new(timeline: &'t Timeline, index: &WorkIndex, rank: &RankWork, modules: &[u32]) -> Self {
        let mut all = Vec::new();
        let mut known: FxHashMap<Sym, Option<StepPhase>> = FxHashMap::default();
        let mut spans: FxHashMap<ProcessKey, [Vec<(Time, Time)>; 4]> = FxHashMap::default();
        let event = |at: &u32| timeline.events.get(*at as usize);
        let host = || rank.host.iter().filter_map(event);
        let frames = modules.iter().filter_map(event);
        let noted = host().filter(|event| {
            let role = index.role(event);
            matches!(role, SpanRole::Note | SpanRole::Operator)
        });
        for event in noted.chain(frames) {
            let process = timeline.process(event);
            let name = name_of(timeline, event);
            if let Some(number) = name.strip_prefix(STEP) {
                all.push(HostStep {
                    process,
                    name: number,
                    start: event.start,
                    end: event.end(),
                });
            }
            let phase = known.entry(event.original_name());
            if let Some(phase) = *phase.or_insert_with(|| StepPhase::of(name))
                && let Some(spans) = spans.entry(process).or_default().get_mut(phase as usize)
            {
                spans.push((event.start, event.end()));
            }
        }
        all.sort_by_key(|step| (step.process, step.start));
        let phases = spans.into_iter();
        Self {
            timeline,
            all,
            phases: phases
                .map(|(process, all)| {
                    let sums = all.map(|all| StretchSums::new(Stretches::of(all)));
                    (process, sums)
                })
                .collect(),
        }
    }

    fn phases(&self, step: &HostStep<'_>) -> [Option<f64>; 4] {
        StepPhase::ALL.map(|phase| {
            let all = self.phases.get(&step.process)?.get(phase as usize)?;
            let is_there = !all.is_empty();
            is_there.then(|| all.within(step.start, step.end).micros())
        })
    }

    /// The step that a moment of a process is in.
    fn at(&self, process: ProcessKey, moment: Time) -> Option<usize> {
        let is_before = |step: &HostStep<'_>| (step.process, step.start) <= (process, moment);
        let at = self.all.partition_point(is_before).checked_sub(1)?;
        let step = self.all.get(at)?;
        (step.process == process && moment < step.end).then_some(at)
    }

    /// When work was launched, and by which process; work without a call is taken to be of the
    /// process that has steps.
    fn launch(&self, work: &RankedWork) -> Option<(ProcessKey, Time)> {
        let call = self.timeline.events.get(work.call as usize);
        match call {
            Some(call) => Some((self.timeline.process(call), call.start)),
            None => Some((self.all.first()?.process, work.start)),
        }
    }

    /// The steps that a device worked for, each with its time.
    fn device(&self, device: &DeviceTime<'_>, idle: &[IdleStretch]) -> Vec<(usize, DeviceStep)> {
        let mut ends: Vec<Option<Time>> = vec![None; self.all.len()];
        let mut launched: Vec<(ProcessKey, Time, Time)> = Vec::new();
        for work in &device.work {
            let Some((process, moment)) = self.launch(work) else {
                continue;
            };
            launched.push((process, moment, work.end));
            if let Some(end) = self.at(process, moment).and_then(|at| ends.get_mut(at)) {
                *end = (*end).max(Some(work.end));
            }
        }
        launched.sort_unstable();
        let mut launched = launched.into_iter().peekable();
        let mut before: Option<(ProcessKey, Time)> = None;
        let mut found = Vec::new();
        let parts = DeviceParts::of(device, idle);
        let mut looks = MOST_LOOKS;
        for (at, (step, own)) in self.all.iter().zip(ends).enumerate() {
            while let Some((process, _, end)) = launched
                .next_if(|(process, moment, _)| (*process, *moment) < (step.process, step.start))
            {
                let ended = before.filter(|(known, _)| *known == process);
                before = Some((process, ended.map_or(end, |(_, known)| known.max(end))));
            }
            let ended = before.filter(|(process, _)| *process == step.process);
            let from = ended.map_or(step.start, |(_, end)| step.start.max(end));
            if let Some(own) = own {
                let to = step.end.max(own);
                found.push((at, parts.within(from.min(to), to, &mut looks)));
            }
        }
        found
    }
}

/// What a device does when.
struct DeviceParts<'d> {
    device: DeviceKey,
    seen: StretchSums,
    busy: StretchSums,
    compute: StretchSums,
    communication: StretchSums,
    copy: StretchSums,
    /// In the order of time.
    idle: &'d [IdleStretch],
}

impl<'d> DeviceParts<'d> {
    fn of(device: &DeviceTime<'_>, idle: &'d [IdleStretch]) -> Self {
        let compute = device.running(&[WorkClass::Compute]);
        let both = device.running(&[WorkClass::Compute, WorkClass::Communication]);
        Self {
            device: device.device,
            seen: StretchSums::new(device.seen.clone()),
            busy: StretchSums::new(device.busy.clone()),
            communication: StretchSums::new(both.without(&compute)),
            copy: StretchSums::new(device.busy.without(&both)),
            compute: StretchSums::new(compute),
            idle,
        }
    }

    /// The device's time in a step; without causes of idle time where no `looks` are left.
    fn within(&self, from: Time, to: Time, looks: &mut usize) -> DeviceStep {
        let us = |all: &StretchSums| all.within(from, to).micros();
        let mut causes = [IdleSum::default(); IdleBlame::ALL.len()];
        let first = self.idle.partition_point(|idle| idle.to <= from);
        let idle = self.idle.get(first..).unwrap_or_default().iter();
        for idle in idle.take(*looks).take_while(|idle| idle.from < to) {
            *looks -= 1;
            let us = (idle.to.min(to) - idle.from.max(from)).micros();
            if let Some(sum) = causes.get_mut(idle.blame as usize) {
                sum.gaps += 1;
                sum.us += us;
                sum.longest_us = sum.longest_us.max(us);
            }
        }
        let span_us = us(&self.seen);
        DeviceStep {
            device: self.device,
            span_us,
            compute_us: us(&self.compute),
            communication_us: us(&self.communication),
            copy_us: us(&self.copy),
            idle_us: span_us - us(&self.busy),
            causes,
        }
    }
}

#[cfg(test)]
#[path = "steps_tests.rs"]
mod tests;
