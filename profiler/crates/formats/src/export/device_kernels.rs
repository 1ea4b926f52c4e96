//! The part of the terminal's summary that is about devices.

use super::device::DeviceTotals;
use super::summary::SummaryPage;
use super::{names, text};
use aiprof_model::profile::{Profile, StallReason};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// A device kernel with its weights, over all devices and call paths.
struct KernelTotals {
    name: String,
    time_ns: u64,
    count: u64,
    /// Samples by stall reason.
    stalls: [u64; StallReason::ALL.len()],
}

impl KernelTotals {
    /// The reason most samples have, and how many have it.
    fn most(&self) -> String {
        let reasons = StallReason::ALL.into_iter().zip(self.stalls);
        match reasons.max_by_key(|&(reason, count)| (count, Reverse(reason))) {
            Some((reason, count)) if count > 0 => {
                format!("{} {}", text::share(count, self.count), reason.name())
            }
            _ => String::new(),
        }
    }
}

/// Adds the totals of devices, and their kernels, the heaviest first.
pub(super) fn add(page: &mut SummaryPage, profile: &Profile) {
    let totals = DeviceTotals::of(profile);
    if totals.is_empty() {
        return;
    }
    page.heading("Devices");
    for line in totals.lines() {
        page.line(&line);
    }
    let kernels = kernels(profile);
    if kernels.is_empty() {
        return;
    }
    let heads = "   share        time     samples  most            kernel";
    page.table("Device kernels", heads, &kernels, |page, kernel| {
        // A file may hold counts alone.
        let share = match totals.device_ns {
            0 => text::percent(kernel.count, totals.device_samples),
            whole => text::percent(kernel.time_ns, whole),
        };
        format!(
            "  {share:5.1}%  {:>10}  {:>10}  {:<16}{}",
            text::duration(kernel.time_ns),
            text::grouped(kernel.count),
            kernel.most(),
            page.name(&kernel.name, 50),
        )
    });
}

fn kernels(profile: &Profile) -> Vec<KernelTotals> {
    let mut kernels: FxHashMap<&str, KernelTotals> = FxHashMap::default();
    for sample in &profile.samples {
        let Some(device) = sample.device else {
            continue;
        };
        let name = device.code.map_or("", |code| profile.str(code.kernel));
        let kernel = kernels.entry(name).or_insert_with(|| KernelTotals {
            name: names::clean(name),
            time_ns: 0,
            count: 0,
            stalls: [0; StallReason::ALL.len()],
        });
        kernel.time_ns = kernel.time_ns.saturating_add(sample.time_ns);
        kernel.count = kernel.count.saturating_add(sample.count);
        let stall = device
            .reason
            .and_then(|r| kernel.stalls.get_mut(r as usize));
        if let Some(stall) = stall {
            *stall = stall.saturating_add(sample.count);
        }
    }
    let mut kernels: Vec<KernelTotals> = kernels.into_values().collect();
    kernels.sort_by(|a, b| {
        let key = |k: &KernelTotals| (Reverse(k.time_ns), Reverse(k.count));
        key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
    });
    kernels
}
