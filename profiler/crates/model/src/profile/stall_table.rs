//! Stalls by instruction: what is left of a profile's device samples without stacks.

use super::{DeviceId, Profile, StallReason};
use std::collections::BTreeMap;

/// Counts of one instruction by stall reason, in the order of [`StallReason::ALL`].
type Counts = [u64; StallReason::ALL.len()];

/// Stall counts by device, kernel and instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StallTable {
    /// Devices with samples.
    pub devices: Vec<StalledDevice>,
}

/// One device of a [`StallTable`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StalledDevice {
    /// Name of the device.
    pub name: String,
    /// Its instructions by kernel name and offset, each once.
    pub rows: Vec<StallRow>,
}

/// One instruction of a [`StalledDevice`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StallRow {
    /// Name of the kernel, demangled.
    pub kernel: String,
    /// Bytes from the kernel's first instruction.
    pub offset: u64,
    /// Samples by stall reason, in the order of [`StallReason::ALL`].
    pub counts: [u64; StallReason::ALL.len()],
}

impl StallTable {
    /// The stalls of a profile. Samples without a reason or an instruction have no place in
    /// it: [`uncounted`](Self::uncounted) counts them.
    pub fn of(profile: &Profile) -> Self {
        let mut rows: BTreeMap<(DeviceId, &str, u64), Counts> = BTreeMap::new();
        for (sample, device) in device_samples(profile) {
            let Some((reason, code)) = device.stalled_at().filter(|_| sample.count > 0) else {
                continue;
            };
            let key = (device.device, profile.str(code.kernel), code.offset);
            let counts = rows.entry(key).or_default();
            if let Some(count) = counts.get_mut(reason as usize) {
                *count = count.saturating_add(sample.count);
            }
        }
        let mut table = Self::default();
        let mut current = None;
        for ((id, kernel, offset), counts) in rows {
            if current != Some(id) {
                current = Some(id);
                let device = profile.devices.get(id.0 as usize);
                table.devices.push(StalledDevice {
                    name: device.map_or(String::new(), |d| d.name.clone()),
                    rows: Vec::new(),
                });
            }
            if let Some(device) = table.devices.last_mut() {
                device.rows.push(StallRow {
                    kernel: kernel.to_owned(),
                    offset,
                    counts,
                });
            }
        }
        table
    }

    /// Device samples of a profile that a table cannot hold.
    pub fn uncounted(profile: &Profile) -> u64 {
        device_samples(profile)
            .filter(|(_, device)| device.stalled_at().is_none())
            .fold(0, |sum, (sample, _)| sum.saturating_add(sample.count))
    }

    /// Samples in the table; `u64::MAX` where their number does not fit.
    pub fn total(&self) -> u64 {
        let rows = self.devices.iter().flat_map(|device| &device.rows);
        rows.flat_map(|row| row.counts).fold(0, u64::saturating_add)
    }
}

fn device_samples(
    profile: &Profile,
) -> impl Iterator<Item = (&super::Sample, super::DeviceSample)> {
    let samples = profile.samples.iter();
    samples.filter_map(|sample| Some((sample, sample.device?)))
}
