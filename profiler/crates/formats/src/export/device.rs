//! The text about the samples of devices wherever a profile is shown.

use super::text;
use aiprof_model::profile::{LossKind, Profile, Sample};
use std::collections::BTreeSet;

/// Weights of a profile's CPU samples and device samples, apart: they may be of the
/// same seconds, and their sum is no wall time. Add up several profiles with
/// [`add`](Self::add).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceTotals {
    /// CPU samples.
    pub cpu_samples: u64,
    /// On-CPU nanoseconds.
    pub cpu_ns: u64,
    /// Samples of devices.
    pub device_samples: u64,
    /// Busy nanoseconds of devices, all of them added up.
    pub device_ns: u64,
    /// Device samples for which only one launch stack was possible.
    pub attributed: u64,
    /// Device samples that were shared among several launch stacks.
    pub estimated: u64,
    /// Device samples without a launch.
    pub unattributed: u64,
    /// How many of the estimated ones certainly belong to their stack.
    pub certain: u64,
    /// Pieces of work whose records have no time that can be true: in none of the others.
    pub untimed: u64,
    /// Times that a device dropped samples.
    pub drops: u64,
    /// Names of devices whose samples do not come from hardware.
    pub replayed: BTreeSet<String>,
}

impl DeviceTotals {
    /// The totals of one profile.
    pub fn of(profile: &Profile) -> Self {
        let mut totals = Self::default();
        totals.add(profile);
        totals
    }

    /// Adds a profile.
    pub fn add(&mut self, profile: &Profile) {
        for sample in &profile.samples {
            self.sample(sample);
        }
        let drops = profile.losses.get(LossKind::DeviceDrops);
        self.drops = self.drops.saturating_add(drops);
        let untimed = profile.losses.get(LossKind::DeviceTimesImpossible);
        self.untimed = self.untimed.saturating_add(untimed);
        let replayed = profile.devices.iter().filter(|device| device.replayed);
        self.replayed
            .extend(replayed.map(|device| text::one_line(&device.name)));
    }

    fn sample(&mut self, sample: &Sample) {
        let add = |sum: &mut u64, n: u64| *sum = sum.saturating_add(n);
        let Some(device) = sample.device else {
            add(&mut self.cpu_samples, sample.count);
            add(&mut self.cpu_ns, sample.time_ns);
            return;
        };
        add(&mut self.device_samples, sample.count);
        add(&mut self.device_ns, sample.time_ns);
        if device.method.is_estimate() {
            add(&mut self.estimated, sample.count);
            add(&mut self.certain, device.certain.min(sample.count));
        } else if device.method == aiprof_model::profile::Method::Unattributed {
            add(&mut self.unattributed, sample.count);
        } else {
            add(&mut self.attributed, sample.count);
        }
    }

    /// Whether there is anything to report: samples of devices, or their drops.
    pub fn is_empty(&self) -> bool {
        self.device_samples == 0 && self.untimed == 0 && self.drops == 0 && self.replayed.is_empty()
    }

    /// The totals, one sentence a line; nothing where no device was sampled.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.device_samples > 0 {
            lines.push(format!(
                "CPU {}, devices {}; widths are their sum, not wall time",
                text::duration(self.cpu_ns),
                text::duration(self.device_ns)
            ));
            lines.push(format!(
                "{} device samples: {} attributed, {} estimated{}, {} unattributed",
                text::grouped(self.device_samples),
                self.share(self.attributed),
                self.share(self.estimated),
                self.bound(),
                self.share(self.unattributed)
            ));
        }
        if self.untimed > 0 {
            lines.push(format!(
                "{} operations are not counted, because the device recorded impossible times for \
                 them",
                text::grouped(self.untimed)
            ));
        }
        if self.drops > 0 {
            let drops = text::grouped(self.drops);
            lines.push(format!("devices dropped samples {drops} times"));
        }
        lines.extend(self.replayed.iter().map(|name| {
            let name = text::fit(name, 60);
            format!("replayed (synthetic or recorded) device: {name}")
        }));
        lines
    }

    fn share(&self, part: u64) -> String {
        match part {
            0 => "0%".to_owned(),
            part if part == self.device_samples => "100%".to_owned(),
            part => match text::share(part, self.device_samples).as_str() {
                "100.0%" => ">99.9%".to_owned(),
                share => share.to_owned(),
            },
        }
    }

    /// How much of the estimate is certain all the same.
    fn bound(&self) -> String {
        match (self.estimated, self.certain) {
            (0, _) => String::new(),
            (_, 0) => " (none of it certain)".to_owned(),
            (all, part) => format!(" ({} of it certain)", text::share(part, all)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_little_is_not_nothing_and_nearly_all_is_not_all() {
        let totals = DeviceTotals {
            device_samples: 1_000_000,
            attributed: 999_999,
            unattributed: 1,
            ..DeviceTotals::default()
        };
        let line = &totals.lines()[1];
        assert!(line.contains("<0.01% unattributed"), "{line}");
        assert!(line.contains("0% estimated,"), "{line}");
        assert!(line.contains(">99.9% attributed"), "{line}");
    }

    #[test]
    fn without_devices_there_is_nothing_to_say() {
        let mut totals = DeviceTotals {
            cpu_samples: 5,
            ..DeviceTotals::default()
        };
        assert!(totals.is_empty() && totals.lines().is_empty());
        totals.drops = 2;
        assert_eq!(totals.lines(), ["devices dropped samples 2 times"]);
        totals.untimed = 3;
        assert!(totals.lines()[0].starts_with("3 operations are not counted"));
    }
}
