//! Messages of the steps, in acelyzer's words where scripts may look for them.

use super::Run;
use crate::analyze::config::OverlapMode;
use crate::analyze::utilization::{UtilizationResults, python};
use crate::analyze::{flex_classes_compat, overlap};
use aiprof_model::calibrate::jobs::{JobPosition, Refusal};

/// A frequency that is less sure, MHz, is not recommended.
const SURE: f64 = 1.0;

impl Run<'_> {
    pub(super) fn tell_calibration(&mut self) {
        let found = &self.outcome.calibration;
        let messages = &mut *self.messages;
        if found.long > 0 {
            let count = found.long;
            messages.warn(
                "OVC",
                format_args!(
                    "OVC: Detected {count} event(s) with long duration and thus potential \
                     undetected overflow in TSx counter."
                ),
            );
        }
        if found.earlier > 0 && !self.config.compatibility.is_own() {
            let count = found.earlier;
            messages.warn(
                "OVC",
                format_args!(
                    "OVC: reference epoch had to be updated {count} times with newly detected \
                     earlier timestamps. This indicates events with 0.0-timestamps or \
                     out-of-order input events."
                ),
            );
        }
        for clock in &found.clocks {
            let off = (clock.mhz - self.config.soc_mhz).abs();
            let is_known = clock.mhz_error < SURE.min(off);
            let is_wanted = self.config.steps.count_periods && !self.config.is_fitted;
            if off > 0.1 && is_known && is_wanted {
                messages.warn(
                    "FREQ",
                    format_args!(
                        "FREQ: Recommendation: to minimize event time drift between CPU and \
                         Accelerator, use: --freq={:.3} (rank {}, +- {:.3} MHz)",
                        clock.mhz, clock.rank, clock.mhz_error
                    ),
                );
            }
        }
        if found.strays > 0 {
            let count = found.strays;
            messages.warn(
                "FREQ",
                format_args!(
                    "FREQ: the host's end times of {count} events differ from their counters by \
                     more than 10 ms; these events were not moved"
                ),
            );
        }
        for rank in &found.unknown {
            messages.warn(
                "FREQ",
                format_args!(
                    "FREQ: too few events to fit the clock of rank {rank}{}",
                    match self.config.is_fitted {
                        true => "; host times are unchanged. Use --freq to set the frequency",
                        false => "",
                    }
                ),
            );
        }
        for job in &found.jobs {
            let name = self.timeline.jobs.get(job.job as usize);
            let name = name.map_or("", |job| job.name.as_str());
            let (rank, text) = (job.rank, describe(&job.place));
            messages.warn(
                "FREQ",
                format_args!(
                    "FREQ: job: {name} (rank {rank}) has AIU events outside of corresponding \
                     CPU range: {text}"
                ),
            );
        }
    }

    /// Slices whose classes are not those of the AIU's runtime.
    pub(super) fn tell_mismatches(&mut self, has_bugs: bool) {
        if self.is_own() {
            return;
        }
        let count = flex_classes_compat::mismatches(self.timeline, &self.kinds, has_bugs);
        if count > 0 {
            self.messages.warn(
                "CAT",
                format_args!(
                    "CAT: Found {count} categorization mismatches compared to FLEX src classifier."
                ),
            );
        }
    }

    pub(super) fn tell_overlap(&mut self, outcome: &overlap::OverlapReport) {
        let config = self.config;
        if outcome.resolved > 0 {
            let count = outcome.resolved;
            let text = format_args!("Partial-overlap slices resolved: {count}");
            self.messages.warn("POD", text);
        }
        if outcome.beyond > 0 {
            let streams = config.spare_rows.unwrap_or(0);
            self.messages.warn(
                "POD",
                format_args!(
                    "POD: insufficient dynamic range for tid-based overlap resolution ({streams}): \
                     {} slices were put in extra rows",
                    outcome.beyond
                ),
            );
        }
        if outcome.left > 0 && config.overlap == OverlapMode::Shift {
            let count = outcome.left;
            let text = format_args!("Overlaps that exceed the threshold of 0.005 us: {count}");
            self.messages.warn("POD", text);
        }
    }

    /// acelyzer's line about each rank.
    pub(super) fn tell_utilization(&mut self, results: &UtilizationResults) {
        for (rank, sum) in &results.sums {
            let (matmul, other) = (sum.matmul_us, sum.other_us);
            let all = matmul + other;
            let share = |part: f64| if all > 0.0 { part / all } else { 0.0 };
            let shown = |value: f64, digits| python::repr(python::round(value, digits));
            self.messages.info(
                "UTL",
                format_args!(
                    "UTL: pid={rank}: avg_mm_util={}, avg_util={}, t_mm={}, t_sf={}, \
                     ratio_mm/sf={}:{}",
                    shown(sum.mean_percent, 3),
                    shown(sum.mean_percent * share(matmul), 3),
                    python::repr(matmul),
                    python::repr(other),
                    shown(share(matmul) * 100.0, 2),
                    shown(share(other) * 100.0, 2),
                ),
            );
        }
    }
}

fn describe(position: &JobPosition) -> String {
    match position {
        JobPosition::Right => "in place".to_owned(),
        JobPosition::Moved(by) => format!("moved by {:.3} us +- {:.3}", by.value, by.error),
        JobPosition::Bounded(by) => format!(
            "moved by {:.3} us; the correct shift is between {:.3} and {:.3} us (no reference job \
             in this counter epoch)",
            by.middle(),
            by.least,
            by.most
        ),
        JobPosition::Refused(Refusal::Wider) => {
            "they take longer than the CPU range. Will not attempt to adjust timestamps.".to_owned()
        }
        JobPosition::Refused(Refusal::ClockDisagrees) => {
            "the device clock also places them outside. Will not attempt to adjust timestamps."
                .to_owned()
        }
    }
}
