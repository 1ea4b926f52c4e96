//! How the agent is: for its own windows, for `aiprof-send`'s metrics, for who asks.

use super::governor::{Governor, RecordingLevel, Spent};
use super::run::Recorded;
use super::sender::Sender;
use crate::cli::values::{grouped, human_bytes, human_duration};
use aiprof_fleet::config::Config;
use aiprof_fleet::status::{AgentStatus, DeviceStatus};
use aiprof_live::clock;
use aiprof_live::cpu::online_cpus;
use aiprof_live::device_busy::{Activity, DeviceBusy};
use aiprof_live::session::{Cost, ProbeTraps, Session, WindowProfiles};
use aiprof_model::profile::LossKind;
use aiprof_system::remote;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What is counted, from the start on.
#[derive(Debug)]
pub(super) struct Counts {
    cpus: u32,
    started_unix_ns: u64,
    /// When the cost was looked at last, and what it was; and what of it is of sending.
    looked: Instant,
    cost: Cost,
    sent: Duration,
    /// The same at the end of the last window.
    window: Cost,
    /// What programs of sessions that are over have cost.
    over: Cost,
    /// What the way to a probe costs, if it is known.
    traps: Option<ProbeTraps>,
    windows: u64,
    samples: u64,
    losses: BTreeMap<String, u64>,
    /// Share of the machine's CPU time that was used in the last minutes.
    used: f64,
    memory_bytes: u64,
    bpf_memory_bytes: u64,
    busy: DeviceBusy,
    /// What accelerators did in the last window.
    devices: BTreeMap<String, DeviceStatus>,
}

/// Losses of whole samples.
const OF_SAMPLES: [LossKind; 4] = [
    LossKind::RingDrops,
    LossKind::Undecodable,
    LossKind::TableFull,
    LossKind::Throttled,
];

/// Why an accelerator was idle: no process had it open, or the reason is unknown.
const NOT_OPEN: &str = "not_open";
const UNKNOWN: &str = "unknown";

fn bpf(cost: &Cost) -> Duration {
    cost.samples + cost.waits + cost.probes
}

/// What sending has cost so far.
fn sent(sender: Option<&Sender>) -> Duration {
    sender.map_or(Duration::ZERO, Sender::cpu_time)
}

impl Counts {
    /// From now on.
    pub(super) fn new(
        session: &Session,
        sender: Option<&Sender>,
        traps: Option<ProbeTraps>,
    ) -> Self {
        let mut counts = Self {
            cpus: online_cpus(),
            started_unix_ns: clock::unix_ns(),
            looked: Instant::now(),
            cost: Cost::default(),
            sent: sent(sender),
            window: Cost::default(),
            over: Cost::default(),
            traps,
            windows: 0,
            samples: 0,
            losses: BTreeMap::new(),
            used: 0.0,
            memory_bytes: 0,
            bpf_memory_bytes: 0,
            busy: DeviceBusy::default(),
            devices: BTreeMap::new(),
        };
        // Shares are of the time from here on.
        counts.busy.look();
        counts.cost = counts.until_now(session, sender);
        counts.window = counts.cost;
        counts
    }

    /// What all of it has cost until now.
    fn until_now(&self, session: &Session, sender: Option<&Sender>) -> Cost {
        let now = session.cost(self.traps.as_ref());
        Cost {
            own: now.own + sent(sender),
            samples: now.samples + self.over.samples,
            waits: now.waits + self.over.waits,
            probes: now.probes + self.over.probes,
        }
    }

    /// A session is over: what its programs have cost stays counted.
    pub(super) fn session_is_over(&mut self, session: &Session) {
        let last = session.cost(self.traps.as_ref());
        self.over.samples += last.samples;
        self.over.waits += last.waits;
        self.over.probes += last.probes;
    }

    /// CPUs of the machine.
    pub(super) fn cpus(&self) -> u32 {
        self.cpus
    }

    /// What was spent since this was asked last.
    pub(super) fn spent(&mut self, session: &Session, sender: Option<&Sender>) -> Spent {
        let now = self.until_now(session, sender);
        let before = std::mem::replace(&mut self.cost, now);
        let sent = sent(sender);
        let sent = sent.saturating_sub(std::mem::replace(&mut self.sent, sent));
        let in_time = self.looked.elapsed();
        self.looked = Instant::now();
        let spent = Spent {
            in_time,
            own: now.own.saturating_sub(before.own).saturating_sub(sent),
            sent,
            samples: now.samples.saturating_sub(before.samples),
            waits: now.waits.saturating_sub(before.waits),
            launches: now.probes.saturating_sub(before.probes),
        };
        let time = in_time.as_secs_f64() * f64::from(self.cpus);
        if time > 0.0 {
            let all = (now.own + bpf(&now)).saturating_sub(before.own + bpf(&before));
            let all = all.as_secs_f64();
            // The last minute or two.
            let weight = (in_time.as_secs_f64() / 60.0).min(1.0);
            self.used += (all / time - self.used) * weight;
        }
        spent
    }

    /// A turn begins: what was before is of no window.
    pub(super) fn begin_turn(&mut self) {
        self.window = self.cost;
        self.busy.look();
    }

    /// Takes in a window: counts it, and writes into it what it has cost and how it was
    /// recorded.
    pub(super) fn window(&mut self, window: &mut WindowProfiles, recorded: Recorded) {
        let Recorded {
            asked,
            level,
            step,
            weight,
        } = recorded;
        // CPUs may come and go.
        self.cpus = online_cpus();
        self.windows += 1;
        let losses = window.profiles().flat_map(|profile| profile.losses.iter());
        for (kind, n) in losses {
            let sum = self.losses.entry(kind.key()).or_default();
            *sum = sum.saturating_add(n);
        }
        let samples = window.profiles().flat_map(|profile| &profile.samples);
        self.samples += samples.map(|sample| sample.count).sum::<u64>();
        let cost = std::mem::replace(&mut self.window, self.cost);
        let ns = |now: Duration, before: Duration| {
            u64::try_from(now.saturating_sub(before).as_nanos()).unwrap_or(u64::MAX)
        };
        let facts = [
            ("own_cpu_ns", ns(self.cost.own, cost.own)),
            ("bpf_ns", ns(bpf(&self.cost), bpf(&cost))),
            ("duration_ns", window.cpu.meta.duration_ns),
            (
                "period_ns",
                window.cpu.meta.period_ns.saturating_mul(weight),
            ),
            ("one_in", weight),
            ("frequency_hz", level.frequency_hz.into()),
            ("frequency_asked_hz", asked.frequency_hz.into()),
            ("off_cpu", level.waits.into()),
            ("off_cpu_asked", asked.waits.into()),
            ("launches", level.launches.into()),
            ("launches_asked", asked.launches.into()),
            ("step", step.into()),
        ];
        window.cpu.facts = facts.map(|(key, n)| (key.to_owned(), n)).to_vec();
        self.devices.clear();
        for (device, Activity { busy, is_open }) in self.busy.look() {
            let cause = if is_open { UNKNOWN } else { NOT_OPEN };
            let length = window.cpu.meta.duration_ns;
            let busy_ns = (busy * length as f64) as u64;
            let idle_ns = length.saturating_sub(busy_ns).saturating_mul(weight);
            let busy_ns = busy_ns.saturating_mul(weight);
            window.cpu.facts.extend([
                (format!("busy_ns {device}"), busy_ns),
                (format!("idle_ns.{cause} {device}"), idle_ns),
            ]);
            let idle = BTreeMap::from([(cause.to_owned(), 1.0 - busy)]);
            self.devices.insert(device, DeviceStatus { busy, idle });
        }
    }

    /// Takes in how much memory there is now.
    pub(super) fn memory(&mut self, session: &Session, sender: Option<&Sender>) -> u64 {
        self.memory_bytes = remote::memory_bytes() + sender.map_or(0, Sender::memory_bytes);
        self.bpf_memory_bytes = session.bpf_memory_bytes();
        self.memory_bytes
    }

    /// How the agent is, but for its outputs.
    pub(super) fn status(&self, config: &Config, governor: &Governor) -> AgentStatus {
        let level = governor.level();
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let recording = [
            ("cpu", true),
            ("off_cpu", level.waits),
            ("launches", level.launches),
            ("devices", config.record.devices),
        ];
        let recording = recording.into_iter().filter(|(_, on)| *on);
        AgentStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started_unix_ns: self.started_unix_ns,
            written_unix_ns: clock::unix_ns(),
            cpus: self.cpus,
            windows: self.windows,
            samples: self.samples,
            losses: self.losses.clone(),
            frequency_asked_hz: config.frequency,
            frequency_hz: level.frequency_hz,
            recording: recording.map(|(name, _)| name.to_owned()).collect(),
            step: governor.step(),
            steps_changed: governor.changes(),
            budget_cpu: config.budget.cpu,
            used_cpu: self.used,
            own_cpu_ns: ns(self.cost.own),
            bpf_ns: ns(bpf(&self.cost)),
            memory_bytes: self.memory_bytes,
            budget_memory_bytes: config.budget.memory.as_u64(),
            bpf_memory_bytes: self.bpf_memory_bytes,
            devices: self.devices.clone(),
            ..AgentStatus::default()
        }
    }

    /// What is recorded, and what it costs, in words.
    pub(super) fn what(&self, governor: &Governor, asked: RecordingLevel, budget: f64) -> String {
        let turned_down = match governor.step() {
            0 => String::new(),
            step => format!(" (reduced from {}, step {step})", asked.describe()),
        };
        format!(
            "the machine, {}{turned_down}; {:.3} % of the CPUs (budget {:.3} %), {} memory",
            governor.level().describe(),
            100.0 * self.used,
            100.0 * budget,
            human_bytes(self.memory_bytes),
        )
    }

    /// A line about a window.
    pub(super) fn line(&self, window: &WindowProfiles, level: RecordingLevel) -> String {
        let cpu = &window.cpu;
        let samples: u64 = cpu.samples.iter().map(|sample| sample.count).sum();
        // Some frames of the other samples may have no names: the window's profile shows that.
        let lost: u64 = OF_SAMPLES.iter().map(|kind| cpu.losses.get(*kind)).sum();
        let fact = |key: &str| {
            let known = cpu.facts.iter().find(|(known, _)| known == key);
            known.map_or(0, |(_, n)| *n)
        };
        let spent = fact("own_cpu_ns").saturating_add(fact("bpf_ns")) as f64;
        let time = cpu.meta.duration_ns as f64 * f64::from(self.cpus);
        let share = if time > 0.0 {
            100.0 * spent / time
        } else {
            0.0
        };
        format!(
            "window of {}: {} samples at {} Hz, {} lost, {share:.3} % of the CPUs, {} memory",
            human_duration(Duration::from_nanos(cpu.meta.duration_ns)),
            grouped(samples),
            level.frequency_hz,
            grouped(lost),
            human_bytes(self.memory_bytes),
        )
    }
}
