//! The kernels that device samples are of, with their code.

use super::{Aggregator, device_rows::whole};
use aiprof_model::profile::StallReason;
use aiprof_symbols::symbolize::device::{self, isa::Platform};
use std::collections::BTreeMap;

/// Samples by stall reason, in the order of [`StallReason::ALL`].
pub type ReasonCounts = [u64; StallReason::ALL.len()];

/// A kernel that samples of a device are of.
#[derive(Clone, Debug)]
pub struct DeviceKernel {
    /// Name of the device.
    pub device: String,
    /// The device's samples were read from a file or a socket.
    pub replayed: bool,
    /// Its name for people; `None`: samples that are of no known kernel.
    pub name: Option<String>,
    /// The kernel in its module, where that is known.
    pub kernel: Option<device::DeviceFunction>,
    /// What its code is for, where the module names it.
    pub platform: Option<Platform>,
    /// Samples by bytes from its first instruction; `None`: not kept. Without a known kernel, by
    /// address.
    pub rows: BTreeMap<Option<u64>, ReasonCounts>,
    /// Its samples' part of the time in which the device was busy, nanoseconds.
    pub busy_ns: f64,
}

impl Aggregator {
    /// The kernels that samples of devices are of: as many samples as in the profile.
    /// Call it after [`Aggregator::settle_devices`]. Kernels of one name differ by their code.
    pub fn device_kernels(&self) -> Vec<DeviceKernel> {
        let calls = self.calls.as_ref();
        let Some(devices) = calls.and_then(|calls| calls.devices.as_deref()) else {
            return Vec::new();
        };
        let mut rows: Vec<_> = devices.rows.iter().map(|(k, r)| (*k, *r)).collect();
        rows.sort_unstable_by_key(|(key, _)| *key);
        let counts = whole(&rows);
        let mut kernels: Vec<DeviceKernel> = Vec::new();
        let mut known = rustc_hash::FxHashMap::default();
        for ((key, weight), count) in rows.iter().zip(counts) {
            let Some(stream) = devices.streams.iter().find(|s| s.id == key.stream) else {
                continue;
            };
            let at = *known.entry((key.stream, key.code)).or_insert_with(|| {
                let described = key.code.and_then(|code| devices.described.get(&code));
                let found = described.and_then(|d| d.found());
                let kernel = DeviceKernel {
                    device: stream.name.clone(),
                    replayed: stream.replayed.is_some(),
                    name: key
                        .code
                        .and_then(|code| devices.kernel(code))
                        .map(|k| k.name.to_string()),
                    kernel: found.and_then(|f| f.kernel().cloned()),
                    platform: found.and_then(|f| f.platform()),
                    rows: BTreeMap::new(),
                    busy_ns: 0.0,
                };
                // The same kernel of several processes.
                let same = kernels.iter().position(|other| other.is_same(&kernel));
                same.unwrap_or_else(|| {
                    kernels.push(kernel);
                    kernels.len() - 1
                })
            });
            let offset = (key.offset != u64::MAX).then_some(key.offset);
            let Some(kernel) = kernels.get_mut(at) else {
                continue;
            };
            kernel.busy_ns += weight.time_ns;
            let row = kernel.rows.entry(offset).or_default();
            if let Some(sum) = row.get_mut(key.reason as usize) {
                *sum = sum.saturating_add(count);
            }
        }
        kernels
    }
}

impl DeviceKernel {
    fn is_same(&self, other: &Self) -> bool {
        let code = |of: &Self| of.kernel.as_ref().map(|k| k.code.clone());
        self.device == other.device && self.name == other.name && code(self) == code(other)
    }
}
