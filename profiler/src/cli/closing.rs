//! The text on stderr when a recording has ended.

use super::values::{grouped, human_bytes, human_duration};
use aiprof_formats::export::device::DeviceTotals;
use aiprof_live::session::SelfUsage;
use aiprof_model::profile::{LossKind, Losses, Profile, Values};
use aiprof_model::timeline::recorded;
use std::time::Duration;

/// Totals over all windows of a recording.
#[derive(Clone, Debug, Default)]
pub(crate) struct WindowTotals {
    values: Values,
    samples: u64,
    time_ns: u64,
    devices: DeviceTotals,
    stacks: usize,
    duration: Duration,
    losses: Losses,
    submissions: u64,
}

impl WindowTotals {
    /// Adds a profile.
    pub(crate) fn add(&mut self, profile: &Profile) {
        self.values = profile.values;
        self.samples = self.samples.saturating_add(profile.total_count());
        self.time_ns = self.time_ns.saturating_add(profile.total_time_ns());
        self.devices.add(profile);
        self.stacks += profile.stacks.len();
        self.duration += Duration::from_nanos(profile.meta.duration_ns);
        self.losses.merge(&profile.losses);
        self.submissions += profile.submissions;
    }

    /// Adds what only a trace knows.
    pub(crate) fn add_trace(&mut self, trace: &recorded::Totals) {
        self.submissions += trace.submissions;
    }

    /// Adds what was lost of a trace and not of its samples: of calls, of devices.
    pub(crate) fn add_losses(&mut self, losses: &Losses) {
        let own = losses.iter();
        let own = own.filter(|(kind, _)| self.losses.get(*kind) == 0);
        let own: Vec<_> = own.collect();
        for (kind, count) in own {
            self.losses.add(kind, count);
        }
    }

    /// The summary, line by line. `shown`: the profile was shown as text, with its devices
    /// and losses, which would come twice.
    pub(crate) fn lines(&self, usage: &SelfUsage, shown: bool) -> Vec<String> {
        let waited = human_duration(Duration::from_nanos(self.time_ns));
        let what = match self.values {
            Values::CpuTime if self.devices.device_samples > 0 => format!(
                "{} CPU samples and {} device samples",
                grouped(self.devices.cpu_samples),
                grouped(self.devices.device_samples)
            ),
            Values::CpuTime => format!("{} samples", grouped(self.samples)),
            Values::WaitTime => format!("{waited} off CPU"),
            Values::WallTime => format!("{waited} on and off CPU"),
            Values::Launches => format!("{} launches", grouped(self.samples)),
        };
        let mut lines = vec![format!(
            "aiprof: {what} in {} stacks, {}",
            grouped(self.stacks as u64),
            human_duration(self.duration)
        )];
        let devices = self.devices.lines().into_iter();
        let losses = self.losses.iter();
        let is_new = |n: usize| if shown { 0 } else { n };
        lines.extend(
            devices
                .take(is_new(usize::MAX))
                .map(|line| format!("  {line}")),
        );
        if self.submissions > 0 {
            let count = grouped(self.submissions);
            lines.push(format!("  {count:>10}  submissions to device queues"));
        }
        lines.extend(
            losses
                .take(is_new(usize::MAX))
                .map(|(kind, n)| format!("  {:>10}  {}", grouped(n), explained(kind))),
        );
        lines.push(format!(
            "  aiprof itself: {} CPU{}, {} memory at most, {} in eBPF maps",
            human_duration(usage.cpu),
            self.share(usage.cpu),
            human_bytes(usage.peak_rss_bytes),
            human_bytes(usage.bpf_memory_bytes)
        ));
        lines
    }

    /// CPU time as a share of one CPU over the recording. A short recording has none: most of it is
    /// the start, and the share means nothing.
    fn share(&self, cpu: Duration) -> String {
        if self.duration < Duration::from_secs(1) {
            return String::new();
        }
        let percent = 100.0 * cpu.as_secs_f64() / self.duration.as_secs_f64();
        format!(" ({percent:.1} % of one)")
    }
}

/// A cause of loss, and what can be done about it.
fn explained(kind: LossKind) -> String {
    match kind.remedy() {
        Some(remedy) => format!("{}; {remedy}", kind.label()),
        None => kind.label().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::profile::{
        Device, DeviceSample, Meta, Method, ProfileBuilder, Sample, Stack,
    };

    #[test]
    fn devices_have_lines_of_their_own() {
        let mut builder = ProfileBuilder::new(Meta::default());
        let device = builder.device(Device {
            name: "file x.bin".to_owned(),
            replayed: true,
        });
        let process = builder.process(1, "a");
        let thread = builder.string("a");
        let stack = builder.stack(Stack::default());
        builder.sample(Sample {
            process,
            tid: 1,
            thread,
            cgroup: None,
            stack,
            count: 2000,
            time_ns: 5_000_000,
            bytes: 0,
            device: Some(DeviceSample {
                device,
                reason: None,
                code: None,
                method: Method::Unattributed,
                certain: 0,
                possible: 2000,
            }),
        });
        let mut totals = WindowTotals::default();
        totals.add(&builder.finish());
        let lines = totals.lines(&SelfUsage::default(), false);
        assert_eq!(
            lines[..4],
            [
                "aiprof: 0 CPU samples and 2,000 device samples in 1 stacks, 0 ms",
                "  CPU 0 s, devices 5.00 ms; widths are their sum, not wall time",
                "  2,000 device samples: 0% attributed, 0% estimated, 100% unattributed",
                "  replayed (synthetic or recorded) device: file x.bin",
            ]
        );
    }

    #[test]
    fn the_summary_states_totals_losses_and_own_cost() {
        let mut profile = Profile::default();
        profile.meta.duration_ns = 2_500_000_000;
        profile.losses.add(LossKind::RingDrops, 1234);
        let mut totals = WindowTotals::default();
        totals.add(&profile);
        totals.add(&profile);
        totals.add_trace(&recorded::Totals {
            submissions: 1500,
            ..recorded::Totals::default()
        });
        let usage = SelfUsage {
            cpu: Duration::from_millis(250),
            peak_rss_bytes: 3 << 20,
            bpf_memory_bytes: 2 << 20,
        };
        assert_eq!(
            totals.lines(&usage, false),
            [
                "aiprof: 0 samples in 0 stacks, 5.0 s",
                "       1,500  submissions to device queues",
                "       2,468  samples dropped (ring buffer full); lower -F",
                "  aiprof itself: 250 ms CPU (5.0 % of one), 3.0 MiB memory at most, \
                 2.0 MiB in eBPF maps",
            ]
        );
        // The text on the terminal already showed the losses.
        let shown = totals.lines(&usage, true);
        assert_eq!(shown.len(), 3);
        assert!(
            !shown.iter().any(|line| line.contains("dropped")),
            "{shown:?}"
        );
    }
}
