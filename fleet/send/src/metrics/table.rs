//! Which metrics there are: docs/agent-metrics.md has the same table.

use aiprof_fleet::status::{AgentStatus, SenderStatus};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::LazyLock;
use std::time::Duration;

/// Most label values of a metric: what writes the status bounds them, and this does again.
const MAX_SERIES: usize = 256;
/// How much older than a window the agent's status may be while it is up.
const UP: Duration = Duration::from_secs(30);

/// All that metrics are made of.
pub(crate) struct MetricSources {
    /// What the agent wrote; `None`: nothing that can be read.
    pub(crate) agent: Option<AgentStatus>,
    /// What this program did.
    pub(crate) sender: SenderStatus,
    /// Now, nanoseconds since the Unix epoch.
    pub(crate) now_unix_ns: u64,
    /// Length of a window.
    pub(crate) window: Duration,
    /// What this program used.
    pub(crate) own: Own,
}

/// What the kernel counts of this program. It is opened before the program confines itself, and
/// then no more.
static STATUS: LazyLock<Option<File>> = LazyLock::new(|| File::open("/proc/self/status").ok());

/// Opens what is read of this program itself.
pub(crate) fn open_own() {
    LazyLock::force(&STATUS);
}

/// What this program used.
#[derive(Clone, Copy, Default)]
pub(crate) struct Own {
    /// CPU time, nanoseconds.
    pub(crate) cpu_ns: u64,
    /// Anonymous memory, bytes.
    pub(crate) memory_bytes: u64,
}

impl Own {
    fn read() -> Self {
        let mut status = [0; 8192];
        let read = STATUS.as_ref().map(|file| file.read_at(&mut status, 0));
        let read = read.and_then(Result::ok).unwrap_or(0);
        let status = String::from_utf8_lossy(status.get(..read).unwrap_or_default());
        let kibibytes = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:")?.split_whitespace().next())
            .and_then(|number| number.parse::<u64>().ok());
        Self {
            cpu_ns: u64::try_from(crate::thrift::cpu_time().as_nanos()).unwrap_or(u64::MAX),
            memory_bytes: kibibytes.unwrap_or(0).saturating_mul(1024),
        }
    }
}

impl MetricSources {
    /// With what this program used until now.
    pub(crate) fn new(
        agent: Option<AgentStatus>,
        sender: SenderStatus,
        window: Duration,
        now_unix_ns: u64,
    ) -> Self {
        Self {
            agent,
            sender,
            now_unix_ns,
            window,
            own: Own::read(),
        }
    }
}

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    /// It only grows, until its program starts again.
    Counter,
    /// It goes up and down.
    Gauge,
    /// It is 1; its labels matter.
    Info,
}

impl Type {
    /// The word for it in OpenMetrics.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Info => "info",
        }
    }

    /// What the names of its samples end with.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Gauge => "",
            Self::Info => "_info",
        }
    }
}

/// A sample: the values of the labels, and the value.
pub(crate) type Row = (Vec<String>, f64);

/// A metric.
pub(crate) struct Metric {
    /// Its name without `_total` or `_info`.
    pub(crate) name: &'static str,
    /// Its type.
    pub(crate) kind: Type,
    /// The unit that its name ends with; empty: none.
    pub(crate) unit: &'static str,
    /// Its labels.
    pub(crate) labels: &'static [&'static str],
    /// What it means.
    pub(crate) help: &'static str,
    /// Its samples.
    rows: fn(&MetricSources) -> Vec<Row>,
}

impl Metric {
    /// Its samples.
    pub(crate) fn rows(&self, known: &MetricSources) -> Vec<Row> {
        let mut rows = (self.rows)(known);
        rows.truncate(MAX_SERIES);
        rows
    }
}

/// One sample without labels, of the agent.
fn agent(known: &MetricSources, value: impl Fn(&AgentStatus) -> f64) -> Vec<Row> {
    let agent = known.agent.iter();
    agent.map(|agent| (Vec::new(), value(agent))).collect()
}

/// A sample for each output of the agent.
fn written(
    known: &MetricSources,
    value: impl Fn(&aiprof_fleet::status::OutputStatus) -> u64,
) -> Vec<Row> {
    let outputs = known.agent.iter().flat_map(|agent| &agent.outputs);
    let rows = outputs.map(|(name, of)| (vec![name.clone()], count(value(of))));
    rows.collect()
}

/// A sample for each output of this program.
fn sent(
    known: &MetricSources,
    value: impl Fn(&aiprof_fleet::status::SentStatus) -> f64,
) -> Vec<Row> {
    let outputs = known.sender.outputs.iter();
    let rows = outputs.map(|(name, of)| (vec![name.clone()], value(of)));
    rows.collect()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "metrics are floating point; counters beyond 2^53 lose their last digits"
)]
fn count(value: u64) -> f64 {
    value as f64
}

fn seconds(nanos: u64) -> f64 {
    count(nanos) / 1e9
}

fn flag(is: bool) -> f64 {
    f64::from(u8::from(is))
}

fn up(known: &MetricSources) -> Vec<Row> {
    let is_up = known.agent.as_ref().is_some_and(|agent| {
        let age = known.now_unix_ns.saturating_sub(agent.written_unix_ns);
        Duration::from_nanos(age) < UP + known.window
    });
    vec![(Vec::new(), flag(is_up))]
}

/// A sample for the agent and one for this program.
fn programs(known: &MetricSources, of_agent: impl Fn(&AgentStatus) -> u64, own: u64) -> Vec<Row> {
    let agent = known.agent.iter().map(|agent| {
        let value = seconds(of_agent(agent));
        (vec!["aiprof".to_owned()], value)
    });
    let own = (vec!["aiprof-send".to_owned()], seconds(own));
    agent.chain([own]).collect()
}

fn builds(known: &MetricSources) -> Vec<Row> {
    let row = |program: &str, version: &str| (vec![program.to_owned(), version.to_owned()], 1.0);
    let agent = known
        .agent
        .iter()
        .map(|agent| row("aiprof", &agent.version));
    agent
        .chain([row("aiprof-send", &known.sender.version)])
        .collect()
}

fn pushes(known: &MetricSources) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, of) in &known.sender.outputs {
        let written = known
            .agent
            .as_ref()
            .and_then(|agent| agent.outputs.get(name));
        let results = [
            ("sent", of.sent),
            ("refused", of.refused),
            ("too_old", of.too_old),
            ("retried", of.retried),
            ("dropped", written.map_or(0, |written| written.dropped)),
        ];
        for (result, value) in results {
            rows.push((vec![name.clone(), result.to_owned()], count(value)));
        }
    }
    rows
}

fn idle(known: &MetricSources) -> Vec<Row> {
    let devices = known.agent.iter().flat_map(|agent| &agent.devices);
    let rows = devices.flat_map(|(device, of)| {
        let idle = of.idle.iter();
        idle.map(move |(cause, share)| (vec![device.clone(), cause.clone()], *share))
    });
    rows.collect()
}

macro_rules! metric {
    ($kind:ident $name:literal $unit:literal [$($label:literal)*] $help:literal $rows:expr) => {
        Metric {
            name: $name,
            kind: Type::$kind,
            unit: $unit,
            labels: &[$($label),*],
            help: $help,
            rows: $rows,
        }
    };
}

/// All metrics, in the order of the output and of the documentation.
pub(crate) static METRICS: &[Metric] = &[
    metric!(Gauge "aiprof_up" "" []
        "1 if the agent wrote its status within the last window plus 30 s, else 0." up),
    metric!(Info "aiprof_build" "" ["program" "version"]
        "Versions of the programs." builds),
    metric!(Info "aiprof_host" "" ["host" "host_id"]
    "Name and ID of the host in profiles." |known| {
        let agent = known.agent.iter();
        agent.map(|it| (vec![it.host.clone(), it.host_id.clone()], 1.0)).collect()
    }),
    metric!(Gauge "aiprof_start_time_seconds" "seconds" ["program"]
        "Time at which the program started, since the Unix epoch."
        |known| programs(known, |agent| agent.started_unix_ns, known.sender.started_unix_ns)),
    metric!(Gauge "aiprof_status_time_seconds" "seconds" []
        "Time at which the agent last wrote its status, since the Unix epoch."
        |known| agent(known, |it| seconds(it.written_unix_ns))),
    metric!(Gauge "aiprof_cpus" "" []
        "Number of CPUs of the machine." |known| agent(known, |it| f64::from(it.cpus))),
    metric!(Gauge "aiprof_paused" "" []
        "1 if the agent is paused, else 0." |known| agent(known, |it| flag(it.paused))),
    metric!(Gauge "aiprof_waits_for_slot" "" []
        "1 if the agent waits for this host's next slot (`one_in`) and records nothing, else 0."
        |known| agent(known, |it| flag(it.waits_for_slot))),
    metric!(Gauge "aiprof_recording" "" ["what"]
    "1 for each part that is recorded: cpu, off_cpu, launches or devices." |known| {
        let what = known.agent.iter().flat_map(|it| &it.recording);
        what.map(|what| (vec![what.clone()], 1.0)).collect()
    }),
    metric!(Counter "aiprof_windows" "" []
        "Number of windows recorded." |known| agent(known, |it| count(it.windows))),
    metric!(Counter "aiprof_samples" "" []
        "Number of samples recorded." |known| agent(known, |it| count(it.samples))),
    metric!(Counter "aiprof_losses" "" ["cause"]
    "Data that was not recorded or was thrown away, by cause." |known| {
        let losses = known.agent.iter().flat_map(|it| &it.losses);
        losses.map(|(cause, lost)| (vec![cause.clone()], count(*lost))).collect()
    }),
    metric!(Gauge "aiprof_frequency_hertz" "hertz" []
        "Current number of samples per second and CPU."
        |known| agent(known, |it| f64::from(it.frequency_hz))),
    metric!(Gauge "aiprof_frequency_asked_hertz" "hertz" []
        "Configured number of samples per second and CPU."
        |known| agent(known, |it| f64::from(it.frequency_asked_hz))),
    metric!(Gauge "aiprof_budget_step" "" []
        "Number of steps by which the budget reduced the recording; 0 if not reduced."
        |known| agent(known, |it| f64::from(it.step))),
    metric!(Counter "aiprof_budget_changes" "" []
        "Number of times that the budget reduced or restored the recording."
        |known| agent(known, |it| count(it.steps_changed))),
    metric!(Gauge "aiprof_cpu_budget_ratio" "ratio" []
        "Share of the machine's CPU time that the agent may use."
        |known| agent(known, |it| it.budget_cpu)),
    metric!(Gauge "aiprof_cpu_used_ratio" "ratio" []
        "Share of the machine's CPU time that the agent used in about the last minute, including \
         eBPF programs."
        |known| agent(known, |it| it.used_cpu)),
    metric!(Counter "aiprof_cpu_seconds" "seconds" []
        "CPU time of the agent's programs, including an aiprof-send that the agent started."
        |known| agent(known, |it| seconds(it.own_cpu_ns))),
    metric!(Counter "aiprof_bpf_seconds" "seconds" []
        "Time in the agent's eBPF programs; 0 if the kernel does not measure it."
        |known| agent(known, |it| seconds(it.bpf_ns))),
    metric!(Gauge "aiprof_memory_bytes" "bytes" []
        "Anonymous and shared memory of the agent."
        |known| agent(known, |it| count(it.memory_bytes))),
    metric!(Gauge "aiprof_memory_budget_bytes" "bytes" []
        "Memory that the agent may use."
        |known| agent(known, |it| count(it.budget_memory_bytes))),
    metric!(Gauge "aiprof_bpf_memory_bytes" "bytes" []
        "Memory of the agent's eBPF maps."
        |known| agent(known, |it| count(it.bpf_memory_bytes))),
    metric!(Counter "aiprof_sender_cpu_seconds" "seconds" []
        "CPU time of aiprof-send."
        |known| vec![(Vec::new(), seconds(known.own.cpu_ns))]),
    metric!(Gauge "aiprof_sender_memory_bytes" "bytes" []
        "Anonymous memory of aiprof-send."
        |known| vec![(Vec::new(), count(known.own.memory_bytes))]),
    metric!(Counter "aiprof_written_profiles" "" ["output"]
        "Profiles that the agent wrote to the spool or as files."
        |known| written(known, |it| it.written)),
    metric!(Counter "aiprof_written_bytes" "bytes" ["output"]
        "Bytes of the profiles that the agent wrote."
        |known| written(known, |it| it.written_bytes)),
    metric!(Counter "aiprof_write_failures" "" ["output"]
        "Profiles that the agent could not write." |known| written(known, |it| it.failed)),
    metric!(Counter "aiprof_dropped_samples" "" ["output"]
        "Samples in profiles that were dropped before delivery because the spool was full."
        |known| written(known, |it| it.dropped_samples)),
    metric!(Counter "aiprof_deliveries" "" ["output" "result"]
        "Profiles by result: sent, refused by the server for good, too_old, or dropped because \
         the spool was full; retried counts failed requests." pushes),
    metric!(Counter "aiprof_sent_bytes" "bytes" ["output"]
        "Bytes of the profiles that were sent." |known| sent(known, |it| count(it.sent_bytes))),
    metric!(Counter "aiprof_rejected_profiles" "" ["output"]
        "Profiles that a server rejected in requests that it accepted."
        |known| sent(known, |it| count(it.rejected))),
    metric!(Gauge "aiprof_spool_profiles" "" ["output"]
        "Profiles that wait for delivery." |known| sent(known, |it| count(it.waiting))),
    metric!(Gauge "aiprof_spool_bytes" "bytes" ["output"]
        "Bytes of the profiles that wait for delivery."
        |known| sent(known, |it| count(it.waiting_bytes))),
    metric!(Gauge "aiprof_spool_oldest_age_seconds" "seconds" ["output"]
    "Time since the window of the oldest waiting profile began; 0 if none waits."
    |known| sent(known, |it| match it.oldest_unix_ns {
        0 => 0.0,
        oldest => seconds(known.now_unix_ns.saturating_sub(oldest)),
    })),
    metric!(Gauge "aiprof_last_sent_time_seconds" "seconds" ["output"]
        "Time of the last delivery, since the Unix epoch; 0 if there was none."
        |known| sent(known, |it| seconds(it.last_sent_unix_ns))),
    metric!(Gauge "aiprof_output_failing" "" ["output"]
        "1 if the last request failed, else 0."
        |known| sent(known, |it| flag(!it.last_error.is_empty()))),
    metric!(Gauge "aiprof_accelerator_busy_ratio" "ratio" ["device"]
    "Share of the last window in which the accelerator was busy." |known| {
        let devices = known.agent.iter().flat_map(|it| &it.devices);
        devices.map(|(device, of)| (vec![device.clone()], of.busy)).collect()
    }),
    metric!(Gauge "aiprof_accelerator_idle_ratio" "ratio" ["device" "cause"]
        "Share of the last window in which the accelerator was idle, by cause." idle),
];
