//! Launches of which no device times are known: how many of each kernel, and in how much
//! time they must have run.
//!
//! Recordings have spans for them, category [`CATEGORY`], from the first launch to the end
//! of the wait. They are no kernels to any other analysis: the device may have been at
//! work for a part of that time only. Work whose record has impossible times is marked at
//! its launch, category [`MARK`].

use crate::work::is_call;
use aiprof_model::timeline::{Kinds, Length, NONE, Sym, Time, Timeline};
use rustc_hash::FxHashMap;
use serde::Serialize;

/// Category of spans from launches to the wait for them.
const CATEGORY: &str = "estimated";

/// Category of marks. Their argument [`WITHIN`]: how much later the work was done, at most.
const MARK: &str = "untimed";
const WITHIN: &str = "within_us";

/// Launches of one kernel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Untimed {
    /// Rank; `None`: not known.
    pub rank: Option<u32>,
    /// Name.
    pub name: String,
    /// How many.
    pub launches: u64,
    /// All of them ran within so much time, microseconds: the union of their spans.
    pub within_us: f64,
}

/// Counts the launches of kernels of traces in which no device did anything.
pub(super) fn unrecorded(timeline: &Timeline) -> u64 {
    let kinds = Kinds::new(timeline);
    let launches = timeline.names.iter().map(|(_, text)| is_launch(text));
    let launches: Vec<bool> = launches.collect();
    let mut count = 0;
    for event in timeline.events.iter().filter(|event| event.is_slice()) {
        if kinds.is_device(timeline, event) {
            return 0;
        }
        let is_launch = launches.get(event.name.index()) == Some(&true);
        count += u64::from(is_launch && is_call(timeline, event));
    }
    count
}

/// `cudaLaunchKernel`, `hipExtModuleLaunchKernel`, `urEnqueueKernelLaunch`.
fn is_launch(name: &str) -> bool {
    name.contains("Launch") && !name.contains("HostFunc")
}

/// Launches of a name, and their spans.
type Launches = (u64, Vec<(Time, Time)>);

/// Counts them, by rank and name, the most first.
pub(super) fn find(timeline: &Timeline) -> Vec<Untimed> {
    let [category, mark] = [CATEGORY, MARK].map(|name| timeline.names.find(name));
    if category.is_none() && mark.is_none() {
        return Vec::new();
    }
    let mut spans: FxHashMap<(u32, Sym), Launches> = FxHashMap::default();
    for event in &timeline.events {
        let end = match event.is_slice() {
            true if Some(event.cat) == category => event.end(),
            false if Some(event.cat) == mark => {
                let within = timeline
                    .arg(event, WITHIN)
                    .and_then(|text| text.parse().ok());
                event.start + Length::from_micros(within.unwrap_or(0.0))
            }
            _ => continue,
        };
        let launches = timeline.arg(event, "launches");
        let Some(launches) = launches.and_then(|text| text.parse::<u64>().ok()) else {
            continue;
        };
        let key = (timeline.rank(event), event.name);
        let (count, times) = spans.entry(key).or_default();
        *count = count.saturating_add(launches);
        times.push((event.start, end));
    }
    let mut found: Vec<Untimed> = spans
        .into_iter()
        .map(|((rank, name), (launches, times))| Untimed {
            rank: (rank != NONE).then_some(rank),
            name: timeline.name(name).to_owned(),
            launches,
            within_us: union_us(times),
        })
        .collect();
    found.sort_by(|one, other| {
        let by_count = (one.rank, other.launches).cmp(&(other.rank, one.launches));
        by_count.then_with(|| one.name.cmp(&other.name))
    });
    found
}

fn union_us(mut spans: Vec<(Time, Time)>) -> f64 {
    spans.sort_unstable();
    let (mut all, mut reach) = (0.0, None);
    for (start, end) in spans {
        let from = reach.map_or(start, |reach: Time| reach.max(start));
        if end > from {
            all += (end - from).micros();
        }
        reach = Some(reach.map_or(end, |reach| reach.max(end)));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_formats::import::json;

    #[test]
    fn launches_without_records_of_devices_are_counted() {
        let count = |cat: &str, name: &str, more: &str| {
            let call = format!(
                r#"{{"ph":"X","cat":"{cat}","name":"{name}","pid":1,"tid":2,"ts":5,"dur":1,
                    "args":{{"correlation":3}}}}"#
            );
            let text = format!("[{call},{call}{more}]");
            let mut timeline = Timeline::default();
            json::read(text.as_bytes(), "a.json", &mut timeline).unwrap();
            unrecorded(&timeline)
        };
        assert_eq!(count("cuda_runtime", "cudaLaunchKernel", ""), 2);
        assert_eq!(count("hip_driver", "hipModuleLaunchKernel", ""), 2);
        assert_eq!(count("cuda_runtime", "cudaMalloc", ""), 0);
        assert_eq!(count("cpu_op", "LaunchRocket", ""), 0);
        let kernel = r#",{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":9,"dur":1}"#;
        assert_eq!(count("cuda_runtime", "cudaLaunchKernel", kernel), 0);
    }

    #[test]
    fn launches_are_counted_by_name_in_the_union_of_their_spans() {
        let span = |name: &str, ts: u32, dur: u32, args: &str| {
            format!(
                r#"{{"ph":"X","cat":"estimated","name":"{name}","pid":1,"tid":2,"ts":{ts},
                "dur":{dur},"args":{{{args}}}}}"#
            )
        };
        let events = [
            span("gemm", 0, 10, r#""launches":3"#),
            span("add", 2, 8, r#""launches":1"#),
            span("gemm", 5, 10, r#""launches":2"#),
            span("gemm", 30, 5, r#""launches":1"#),
            // Not of a recording.
            span("gemm", 50, 5, r#""launches":"many""#),
            span("gemm", 60, 5, ""),
            r#"{"ph":"i","s":"t","cat":"untimed","name":"add","pid":1,"tid":2,"ts":70,
                "args":{"launches":1,"within_us":2.5}}"#
                .to_owned(),
        ];
        let text = format!(r#"{{"traceEvents":[{}]}}"#, events.join(","));
        let mut timeline = Timeline::default();
        json::read(text.as_bytes(), "a.json", &mut timeline).unwrap();
        let found = find(&timeline);
        let found: Vec<_> = found
            .iter()
            .map(|one| (&*one.name, one.launches, one.within_us))
            .collect();
        assert_eq!(found, [("gemm", 6, 20.0), ("add", 2, 10.5)]);
    }
}
