//! How busy devices were. All that they run counts: kernels, copies and fills.

use super::report::Active;
use crate::device_time::DeviceTime;
use crate::work::WorkClass;
use aiprof_model::timeline::{Id, Timeline};
use rustc_hash::FxHashSet;

/// The devices of all ranks, each once. Some tools have copies on rows of their own, which look
/// like a device: what only copies is listed where no device of its rank has kernels.
pub(crate) fn rows(timeline: &Timeline, devices: &[DeviceTime<'_>]) -> Vec<Active> {
    let has_kernels = |device: &&DeviceTime<'_>| {
        let mut work = device.work.iter();
        work.any(|work| work.class != WorkClass::Copy)
    };
    let with_kernels = devices.iter().filter(has_kernels);
    let ranks: FxHashSet<u32> = with_kernels.flat_map(|one| one.ranks.clone()).collect();
    let is_listed = |device: &&DeviceTime<'_>| {
        has_kernels(device) || !device.ranks.iter().any(|rank| ranks.contains(rank))
    };
    let rows = devices.iter().filter(is_listed).map(|device| {
        let kernels = device.work.iter();
        let kernels = kernels.filter(|work| work.class != WorkClass::Copy);
        let (busy_us, elapsed_us) = (device.busy.us(), device.elapsed_us());
        let others = device.ranks.iter().copied();
        Active {
            rank: device.rank.rank,
            other_ranks: others.filter(|rank| *rank != device.rank.rank).collect(),
            device: name_of(timeline, device.device.number),
            kernel_us: kernels.map(|work| work.us()).sum(),
            busy_us,
            elapsed_us,
            busy_percent: match elapsed_us > 0.0 {
                true => busy_us / elapsed_us * 100.0,
                false => 0.0,
            },
        }
    });
    rows.collect()
}

/// What a device is called in a report: its number, or the name of its rows.
pub(crate) fn name_of(timeline: &Timeline, number: Id) -> String {
    match number {
        Id::Number(number) => number.to_string(),
        Id::Token(text) => timeline.name(text).trim_matches('"').to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::WorkIndex;
    use aiprof_model::timeline::Dialect;
    use aiprof_testkit::scene::{self, Slice};

    /// Kernels 0-30 and 20-50 and a copy 60-80 on a device of rank 0, which has copies on other
    /// rows, too; copies alone on rank 1.
    #[test]
    fn copies_make_devices_busy() {
        let mut timeline = scene::empty(Dialect::Torch);
        for (rank, name, cat, device, ts, end) in [
            (0, "gemm", "kernel", 0, 0.0, 30.0),
            (0, "gemm", "kernel", 0, 20.0, 50.0),
            (0, "Memcpy DtoH", "gpu_memcpy", 0, 60.0, 80.0),
            (0, "Memcpy DtoH", "gpu_memcpy", 2, 60.0, 80.0),
            (1, "Memcpy DtoH", "gpu_memcpy", 1, 10.0, 20.0),
            (1, "Memset (Device)", "gpu_memset", 1, 30.0, 35.0),
        ] {
            let args = format!("\"device\":{device},\"stream\":7");
            let slice = Slice {
                rank,
                name,
                cat,
                ts,
                dur: end - ts,
                args: &args,
                ..Slice::default()
            };
            let at = scene::add(&mut timeline, &slice);
            let pid = Id::Number(device);
            timeline.tracks.set_pid(&mut timeline.events[at], pid);
        }
        let index = WorkIndex::new(&timeline);
        let devices = DeviceTime::of_all(&index.ranks);
        let rows = rows(&timeline, &devices);
        let seen: Vec<_> = rows
            .iter()
            .map(|row| (&*row.device, row.kernel_us, row.busy_us, row.elapsed_us))
            .collect();
        let wanted = [("0", 60.0, 70.0, 80.0), ("1", 0.0, 15.0, 25.0)];
        assert_eq!(seen, wanted);
        assert_eq!(rows[1].busy_percent, 60.0);
    }
}
