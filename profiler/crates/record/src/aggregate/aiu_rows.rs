//! Cycles of AIUs as samples of a profile.

use super::{
    aiu::{Aiu, AiuRowKey, AiuTotals},
    device_rows::DeviceRowWriter,
    devices::Devices,
    driver::text,
};
use crate::aiu::operation::{PHASES, phase_name};
use crate::correlate::DeviceRecorder;
use aiprof_model::profile::{
    Device, DeviceCode, DeviceId, DeviceSample, FrameKind, LocationId, Method, ProfileBuilder,
    Sample,
};
use rustc_hash::FxHashSet;

/// Puts what AIUs did into a profile.
pub(super) fn add(writer: &mut DeviceRowWriter<'_, '_>) {
    let devices = writer.devices;
    let aiu = &devices.aiu;
    let mut rows: Vec<(AiuRowKey, AiuTotals)> = aiu.rows.iter().map(|(k, r)| (*k, *r)).collect();
    rows.sort_unstable_by_key(|(key, _)| *key);
    let mut carry = 0.0;
    let sampled = sampled(devices);
    for (key, row) in rows {
        // Once: the samples of its kernels have that time already, by instruction.
        if key.recorder == DeviceRecorder::LevelZero && key.is_kernel && sampled.contains(&key.pid)
        {
            continue;
        }
        let time = row.time_ns + carry;
        let time_ns = time.max(0.0) as u64;
        carry = time - time_ns as f64;
        let device = writer.builder.device(Device {
            name: device_name(&key),
            replayed: false,
        });
        let frames = frames(aiu, writer.builder, &key);
        let device = sample(aiu, writer.builder, device, &key, row.ticks);
        let sample = writer.launched((key.path, key.pid), frames);
        writer.builder.sample(Sample {
            count: row.ticks,
            time_ns,
            device: Some(device),
            ..sample
        });
    }
}

/// Processes whose kernels the device sampled.
fn sampled(devices: &Devices) -> FxHashSet<u32> {
    let paths = devices.rows.keys().filter_map(|row| row.path);
    let paths = paths.filter_map(|path| devices.path(path));
    paths.map(|path| path.pid).collect()
}

fn device_name(key: &AiuRowKey) -> String {
    let name = key.recorder.device();
    key.device
        .map_or_else(|| name.to_owned(), |number| format!("{name} {number}"))
}

/// The kernel or the operation, and its phase.
fn frames(aiu: &Aiu, builder: &mut ProfileBuilder, key: &AiuRowKey) -> Vec<LocationId> {
    let mut frames = vec![text(builder, work(aiu, key), FrameKind::DeviceSoftware)];
    let phase = key.phase.and_then(|at| PHASES.get(usize::from(at)));
    if let Some(phase) = phase {
        frames.push(text(builder, phase_name(*phase), FrameKind::DeviceHardware));
    }
    frames
}

fn work<'a>(aiu: &'a Aiu, key: &AiuRowKey) -> &'a str {
    aiu.works.get(key.work).map_or("", |name| name)
}

fn sample(
    aiu: &Aiu,
    builder: &mut ProfileBuilder,
    device: DeviceId,
    key: &AiuRowKey,
    ticks: u64,
) -> DeviceSample {
    DeviceSample {
        device,
        reason: None,
        code: Some(DeviceCode {
            kernel: builder.string(work(aiu, key)),
            offset: 0,
        }),
        method: match key.path {
            Some(_) => Method::Sole,
            None => Method::Unattributed,
        },
        certain: ticks,
        possible: ticks,
    }
}
