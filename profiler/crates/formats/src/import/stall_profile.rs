//! A table of stalls as a profile: no call paths, but flame graphs and differences.

use aiprof_model::profile::{
    Device, DeviceCode, DeviceSample, FrameKind, Location, LocationId, Meta, Method, Profile,
    ProfileBuilder, Sample, Stack, StallReason, StallRow, StallTable,
};

/// The profile of a table: for each device, kernel, reason and offset its count. There
/// is no time in it. The devices count as replayed.
pub fn profile_of(table: &StallTable) -> Profile {
    let mut builder = ProfileBuilder::new(Meta::default());
    for device in &table.devices {
        let id = builder.device(Device {
            name: device.name.clone(),
            replayed: true,
        });
        for row in &device.rows {
            for (reason, count) in StallReason::ALL.into_iter().zip(row.counts) {
                if count > 0 {
                    let at = |kernel| DeviceSample {
                        device: id,
                        reason: Some(reason),
                        code: Some(DeviceCode {
                            kernel,
                            offset: row.offset,
                        }),
                        method: Method::Unattributed,
                        certain: 0,
                        possible: count,
                    };
                    add(&mut builder, row, reason, count, at);
                }
            }
        }
    }
    builder.finish()
}

fn add(
    builder: &mut ProfileBuilder,
    row: &StallRow,
    reason: StallReason,
    count: u64,
    at: impl Fn(aiprof_model::profile::StrId) -> DeviceSample,
) {
    use FrameKind::{DeviceHardware, DeviceSoftware, Native, Unknown};
    let offset = format!("{:#x}", row.offset);
    let frames = [
        ("[no call paths]", Unknown),
        ("-", Native),
        (&row.kernel, DeviceSoftware),
        (reason.name(), DeviceHardware),
        (&offset, DeviceHardware),
    ];
    let locations = frames.map(|(name, kind)| frame(builder, name, kind));
    let stack = builder.stack(Stack {
        locations: locations.to_vec(),
        complete: true,
        driver: 0,
    });
    let kernel = builder.string(&row.kernel);
    let process = builder.process(0, "[unknown]");
    let thread = builder.string("[unknown]");
    builder.sample(Sample {
        process,
        tid: 0,
        thread,
        cgroup: None,
        stack,
        count,
        time_ns: 0,
        bytes: 0,
        device: Some(at(kernel)),
    });
}

fn frame(builder: &mut ProfileBuilder, name: &str, kind: FrameKind) -> LocationId {
    let frame = builder.frame(name, kind, None);
    builder.location(Location {
        binary: None,
        address: 0,
        frames: vec![frame],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::profile::StalledDevice;

    #[test]
    fn a_table_is_its_profiles_table() {
        let row = |kernel: &str, offset, reason, n| {
            let mut row = StallRow {
                kernel: kernel.to_owned(),
                offset,
                ..StallRow::default()
            };
            row.counts[reason as usize] = n;
            row
        };
        let device = |name: &str, rows: Vec<StallRow>| StalledDevice {
            name: name.to_owned(),
            rows,
        };
        let mut both = row("a", 16, StallReason::Sbid, 7);
        both.counts[StallReason::Tdr as usize] = 2;
        let table = StallTable {
            devices: vec![
                device("Device #0", vec![row("a", 8, StallReason::Active, 1), both]),
                device("Device #1", vec![row("a", 8, StallReason::Sync, 3)]),
            ],
        };
        let profile = profile_of(&table);
        assert_eq!(StallTable::of(&profile), table);
        assert_eq!((profile.total_count(), profile.samples.len()), (13, 4));
        assert!(profile.devices.iter().all(|device| device.replayed));
    }
}
