//! Where code lies, for formats that have a table of binaries: pprof and OTLP.

use aiprof_model::process::without_mark;
use aiprof_model::profile::{BuildId, FrameKind, Location, Profile};

/// Name of the frame that stands for a stack without any.
pub(super) const NO_STACK: &str = "[no stack]";

/// A binary, or a device: the kind of processor of an address has no other place.
#[derive(Debug)]
pub(super) struct CodeRange {
    /// Path of the binary, or the device's name in brackets.
    pub(super) name: String,
    /// Addresses are those of the file, not of a process: they go from 0 to the highest
    /// that was seen, in whole pages.
    pub(super) limit: u64,
    pub(super) build_id: Option<BuildId>,
}

/// All binaries of a profile, in their order, then all devices.
pub(super) fn ranges(profile: &Profile) -> Vec<CodeRange> {
    let mut limits = vec![0_u64; profile.binaries.len()];
    let mut of_devices = 0_u64;
    for location in &profile.locations {
        let limit = match location.binary {
            Some(id) => limits.get_mut(id.0 as usize),
            None => Some(&mut of_devices).filter(|_| is_device(profile, location)),
        };
        if let Some(limit) = limit {
            *limit = (*limit).max(location.address.saturating_add(1));
        }
    }
    let pages = |limit: u64| limit.checked_next_multiple_of(4096).unwrap_or(u64::MAX);
    let binaries = profile.binaries.iter().zip(limits);
    let binaries = binaries.map(|(binary, limit)| CodeRange {
        name: without_mark(&binary.path).to_owned(),
        limit: pages(limit),
        build_id: binary.build_id,
    });
    let devices = profile.devices.iter().map(|device| CodeRange {
        name: match device.replayed {
            true => format!("[replayed device {}]", device.name),
            false => format!("[device {}]", device.name),
        },
        limit: pages(of_devices),
        build_id: None,
    });
    binaries.chain(devices).collect()
}

/// Whether a location is code of a device that is in no file.
pub(super) fn is_device(profile: &Profile, location: &Location) -> bool {
    let kinds = location.frames.iter().filter_map(|id| {
        let frame = profile.frames.get(id.0 as usize);
        frame.map(|frame| frame.kind)
    });
    let is_device = |kind| matches!(kind, FrameKind::DeviceSoftware | FrameKind::DeviceHardware);
    location.binary.is_none() && kinds.into_iter().any(is_device)
}
