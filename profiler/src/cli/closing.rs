//! What stderr says when a recording has ended.

use super::values::{grouped, human_bytes, human_duration};
use crate::collect::session::SelfUsage;
use crate::export::chrome;
use crate::profile::{Profile, Values};
use std::time::Duration;

/// Totals over all windows of a recording.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    values: Values,
    samples: u64,
    stacks: usize,
    duration: Duration,
    losses: crate::profile::Losses,
    submissions: u64,
}

impl Totals {
    /// Adds a profile.
    pub(crate) fn add(&mut self, profile: &Profile) {
        self.values = profile.values;
        self.samples += profile.total_count();
        self.stacks += profile.stacks.len();
        self.duration += Duration::from_nanos(profile.meta.duration_ns);
        self.losses.merge(&profile.losses);
        self.submissions += profile.submissions;
    }

    /// Adds what only a trace knows.
    pub(crate) fn add_trace(&mut self, trace: &chrome::Totals) {
        self.submissions += trace.submissions;
    }

    /// The summary, line by line.
    pub(crate) fn lines(&self, usage: &SelfUsage) -> Vec<String> {
        let mut lines = vec![format!(
            "aiprof: {} {} in {} stacks, {}",
            grouped(self.samples),
            match self.values {
                Values::CpuTime => "samples",
                Values::Launches => "launches",
            },
            grouped(self.stacks as u64),
            human_duration(self.duration)
        )];
        if self.submissions > 0 {
            let count = grouped(self.submissions);
            lines.push(format!("  {count:>10}  submissions to device queues"));
        }
        lines.extend(
            self.losses
                .iter()
                .map(|(kind, n)| format!("  {:>10}  {}", grouped(n), kind.label())),
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

    /// CPU time as a share of one CPU over the recording; of a short one the start
    /// is most, and the share says nothing.
    fn share(&self, cpu: Duration) -> String {
        if self.duration < Duration::from_secs(1) {
            return String::new();
        }
        let percent = 100.0 * cpu.as_secs_f64() / self.duration.as_secs_f64();
        format!(" ({percent:.1} % of one)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::LossKind;

    #[test]
    fn the_summary_states_totals_losses_and_own_cost() {
        let mut profile = Profile::default();
        profile.meta.duration_ns = 2_500_000_000;
        profile.losses.add(LossKind::RingDrops, 1234);
        let mut totals = Totals::default();
        totals.add(&profile);
        totals.add(&profile);
        totals.add_trace(&chrome::Totals {
            submissions: 1500,
            ..chrome::Totals::default()
        });
        let usage = SelfUsage {
            cpu: Duration::from_millis(250),
            peak_rss_bytes: 3 << 20,
            bpf_memory_bytes: 2 << 20,
        };
        assert_eq!(
            totals.lines(&usage),
            [
                "aiprof: 0 samples in 0 stacks, 5.0 s",
                "       1,500  submissions to device queues",
                "       2,468  samples dropped (ring buffer full)",
                "  aiprof itself: 250 ms CPU (5.0 % of one), 3.0 MiB memory at most, \
                 2.0 MiB in eBPF maps",
            ]
        );
    }
}
