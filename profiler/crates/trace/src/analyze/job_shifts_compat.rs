//! Shifts of jobs exactly as acelyzer 1.3.0 makes them (`--flex_ts_fix`), for whoever
//! must compare (`--compat-bugs`).
//!
//! It puts the begin of a job's first device event onto the begin of its round trip. It
//! takes the end of the job's device events from the round trip's end, so a job that is
//! too early counts as too long. [`aiprof_model::calibrate::jobs`] is right.

use super::messages::Messages;
use aiprof_model::timeline::Timeline;
use rustc_hash::FxHashMap;

/// What acelyzer keeps of a job, microseconds.
#[derive(Clone, Copy)]
struct Ranges {
    host: (f64, f64),
    device: (f64, f64),
}

impl Ranges {
    /// What is added to the times of device events; `None`: nothing.
    fn offset(&self) -> Option<f64> {
        let is_inside = self.host.0 <= self.device.0 && self.host.1 >= self.device.1;
        let is_wider = self.host.1 - self.host.0 < self.device.1 - self.device.0;
        let offset = self.host.0 - self.device.0;
        (!is_inside && !is_wider && offset.abs() > 1e-9 && offset.abs() < 1e90).then_some(offset)
    }
}

/// Moves the device events of jobs. Takes events in the order they were read.
pub fn run(timeline: &mut Timeline, messages: &mut Messages) {
    let trip = timeline.names.find("AIU Roundtrip");
    let zero = -(timeline.origin() as f64);
    let mut jobs: FxHashMap<u32, Ranges> = FxHashMap::default();
    for event in timeline.events.iter().filter(|event| event.is_slice()) {
        let ranges = jobs.entry(timeline.job(event)).or_insert(Ranges {
            host: (1e99, zero),
            device: (1e99, zero),
        });
        if event.is_counted() {
            let first = ranges.device.0.min(event.ts());
            ranges.device = (first, ranges.host.1.max(event.end_us()));
        } else if Some(event.name) == trip {
            let (first, last) = ranges.host;
            ranges.host = (first.min(event.ts()), last.max(event.end_us()));
        }
    }
    let mut moved: Vec<(u32, f64)> = jobs
        .iter()
        .filter_map(|(job, ranges)| Some((*job, ranges.offset()?)))
        .collect();
    moved.sort_by_key(|(job, _)| *job);
    if let Some((job, offset)) = moved.first() {
        let name = timeline.jobs.get(*job as usize).map_or("", |job| &job.name);
        messages.warn(
            "FREQ",
            format_args!(
                "FREQ: job: ('{name}', {offset}) has AIU events outside of corresponding CPU \
                 range. Attempting to fix might cause unreliable data."
            ),
        );
    }
    let moved: FxHashMap<u32, f64> = moved.into_iter().collect();
    let Timeline {
        events,
        tracks,
        devices,
        ..
    } = timeline;
    for event in events {
        let (Some(by), true) = (moved.get(&tracks.job(event)), event.is_slice()) else {
            continue;
        };
        if let Some(device) = devices.get_mut(event.device as usize) {
            event.shift(*by);
            device.moved += by;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// acelyzer 1.3.0 mends a job that is late, to the begin of its round trip, and
    /// leaves one that is early (facts of a run with both).
    #[test]
    fn late_jobs_move_and_early_ones_stay() {
        let host = (1000.0, 2000.0);
        let late = Ranges {
            host,
            device: (51_001.0, 51_900.0),
        };
        assert_eq!(late.offset(), Some(-50_001.0));
        let early = Ranges {
            host,
            // Its last end is taken from the round trip.
            device: (-49_000.0, 2000.0),
        };
        assert_eq!(early.offset(), None);
        let right = Ranges {
            host,
            device: (1001.0, 2000.0),
        };
        assert_eq!(right.offset(), None);
    }
}
