//! What acelyzer's events keep where a profile leaves out the stages that clean up.

use super::config::OptionalSteps;
use aiprof_model::timeline::{Dialect, Event, Timeline};

/// Bits of the AIU's counters.
const BITS: u32 = 32;

/// Adds what the stages that are left out would have removed, and removes what they would have
/// added. Needs final times.
pub(super) fn keep(timeline: &mut Timeline, steps: &OptionalSteps) {
    for index in 0..timeline.events.len() {
        let Some(event) = timeline.events.get(index).copied() else {
            break;
        };
        let is_flex = timeline.dialect(&event) == Dialect::Flex;
        if !is_flex || !event.is_slice() || timeline.is_processed(&event) {
            continue;
        }
        if !steps.count_periods {
            forget_periods(timeline, &event);
        }
        let mut members = Vec::new();
        if !steps.drop_device_times {
            members.extend(device_times(timeline, &event));
        }
        if !steps.drop_host_times {
            members.extend(host_times(timeline, &event));
            let job = timeline.jobs.get(timeline.job(&event) as usize);
            members.extend(job.map(|job| format!("\"jobhash\":{}", job.hash)));
        }
        if !members.is_empty() {
            timeline.add_args(index, &members.join(","));
        }
    }
}

/// Counters as they are within one period.
fn forget_periods(timeline: &mut Timeline, event: &Event) {
    if let Some(device) = timeline.devices.get_mut(event.device as usize) {
        let periods = device.epoch.clamp(0, 1 << 24) << BITS;
        device.stamps = device.stamps.map(|stamp| stamp.saturating_sub(periods));
        (device.epoch, device.is_counted) = (0, false);
    }
}

/// Counters as microseconds since the counter's zero.
fn device_times(timeline: &Timeline, event: &Event) -> Option<String> {
    let mhz = timeline.mhz(event);
    let stamps = timeline.device(event)?.stamps;
    Some(list("ts_dev", stamps.map(|stamp| stamp as f64 / mhz)))
}

/// Counters as microseconds of the host.
fn host_times(timeline: &Timeline, event: &Event) -> Option<String> {
    let origin = timeline.origin() as f64;
    let mut all = [0.0; 5];
    for (index, time) in all.iter_mut().enumerate() {
        *time = timeline.stamp_time(event, index)? + origin;
    }
    Some(list("ts_all", all))
}

fn list(key: &str, times: [f64; 5]) -> String {
    let times = times.map(|time| format!("{time:?}"));
    format!("\"{key}\":[{}]", times.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::calibration::{self, Options};
    use crate::analyze::normalize;
    use aiprof_formats::import::json;

    /// 500 MHz: 100 ticks are 0.2 us. The kernel ends with TS4, at 50 us.
    const EVENT: &str = r#"[{"ph":"X","name":"a Cmpt Exec","pid":0,"tid":1,"ts":40,"dur":10,"args":
        {"TS1":"1000","TS2":"1100","TS3":"1200","TS4":"6200","TS5":"6300"}}]"#;

    fn kept(steps: &OptionalSteps) -> (Timeline, Event) {
        let mut timeline = Timeline::default();
        let read = json::read(EVENT.as_bytes(), "x.json", &mut timeline).unwrap();
        normalize::assign_ranks(&mut timeline, read.job, read.events, false);
        let options = Options {
            mhz: 500.0,
            is_fitted: false,
            moves_jobs: false,
            keeps_listed: false,
            converts: true,
        };
        calibration::run(&mut timeline, options);
        keep(&mut timeline, steps);
        let event = timeline.events[0];
        (timeline, event)
    }

    #[test]
    fn times_of_counters_stay_where_nothing_removes_them() {
        let steps = OptionalSteps {
            drop_device_times: false,
            drop_host_times: false,
            ..OptionalSteps::default()
        };
        let (timeline, event) = kept(&steps);
        let times =
            |key| -> Vec<f64> { serde_json::from_str(timeline.arg(&event, key).unwrap()).unwrap() };
        assert_eq!(times("ts_dev"), [2.0, 2.2, 2.4, 12.4, 12.6]);
        let exact = [39.6, 39.8, 40.0, 50.0, 50.2];
        for (time, exact) in times("ts_all").into_iter().zip(exact) {
            assert!((time - exact).abs() < 1e-6, "{time} {exact}");
        }
        assert!(timeline.arg(&event, "jobhash").is_some());
        assert!(timeline.device(&event).unwrap().is_counted);
    }

    #[test]
    fn periods_are_not_shown_where_they_are_not_counted() {
        let steps = OptionalSteps {
            count_periods: false,
            ..OptionalSteps::default()
        };
        let (timeline, event) = kept(&steps);
        assert!(!timeline.device(&event).unwrap().is_counted);
        assert_eq!(timeline.arg(&event, "ts_dev"), None);
    }
}
