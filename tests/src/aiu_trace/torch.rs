//! TORCH files: what PyTorch's profiler writes with the AIU plugin of kineto.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::collective::BYTES;
use super::json::Packing;
use super::story::{Event, Kind, Story};

/// The process that launches.
const HOST_PID: u64 = 4242;
/// Its thread.
const HOST_TID: u64 = 4243;

/// A writer of TORCH files.
#[derive(Clone, Copy, Debug)]
pub struct Torch {
    /// Whether device events carry their counters (`cycles_ts`) and the charge
    /// counter (`charge`), as newer plugins write them.
    pub counters: bool,
    /// How files are packed.
    pub packing: Packing,
}

impl Default for Torch {
    fn default() -> Self {
        Self {
            counters: true,
            packing: Packing::None,
        }
    }
}

impl Torch {
    /// Writes each rank into a file of its own, `rank0.pt.trace.json` and so on.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, story: &Story, dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
        let ranks = 0..story.ranks.len();
        ranks
            .map(|rank| {
                let text = self.text(story, rank)?;
                let name = format!("rank{rank}.pt.trace.json");
                self.packing.write(dir, &name, &text)
            })
            .collect()
    }

    /// The text of a rank's file.
    ///
    /// # Errors
    /// When it is no JSON.
    pub fn text(&self, story: &Story, rank: usize) -> anyhow::Result<String> {
        let events = self.events(story, rank)?;
        let events: Vec<String> = events.iter().map(ToString::to_string).collect();
        let properties = json!([{"id": 0, "type": "AIU", "name": "AIU"}]);
        let ranks = story.ranks.len();
        let distributed = json!({"backend": "gloo", "rank": rank, "world_size": ranks});
        Ok(format!(
            "{{\"schemaVersion\": 1, \"deviceProperties\": {properties}, \
             \"distributedInfo\": {distributed}, \"displayTimeUnit\": \"ms\",\n\
             \"traceEvents\": [\n{}\n], \"traceName\": \"rank{rank}.pt.trace.json\"}}\n",
            events.join(",\n")
        ))
    }

    fn events(&self, story: &Story, rank: usize) -> anyhow::Result<Vec<Value>> {
        let of_rank = story.events.iter().filter(|event| event.rank == rank);
        // The plugin knows no preparations.
        let known = of_rank.filter(|event| event.kind != Kind::Prep);
        let mut known: Vec<&Event> = known.collect();
        known.sort_by(|a, b| a.host_ts_us.total_cmp(&b.host_ts_us));
        let mut events = known
            .iter()
            .map(|event| self.event(event))
            .collect::<anyhow::Result<Vec<Value>>>()?;
        let mut launches: BTreeMap<u64, Vec<&Event>> = BTreeMap::new();
        for event in known.iter().filter(|event| event.correlation > 0) {
            launches.entry(event.correlation).or_default().push(event);
        }
        for (correlation, kernels) in launches {
            events.extend(launch(correlation, &kernels)?);
        }
        let time = |event: &Value| event["ts"].as_f64().unwrap_or(0.0);
        events.sort_by(|a, b| time(a).total_cmp(&time(b)));
        let first = events.first().map_or(0.0, time);
        let last = events.last().map_or(0.0, time);
        let mut all = names(rank, first);
        all.extend(events);
        all.extend(spans(first, last)?);
        Ok(all)
    }

    fn event(&self, event: &Event) -> anyhow::Result<Value> {
        let (ts, dur) = (micros(event.host_ts_us)?, micros(event.host_dur_us)?);
        if event.kind == Kind::Cpu {
            let (name, category) = match event.name.as_str() {
                "Flex RoundTrip" => ("aiuLaunchSuperNode", "privateuse1_runtime"),
                "AIU Roundtrip" => ("aiuSuperNodeExecution", "privateuse1_runtime"),
                _ => ("aiuDataConvert", "privateuse1_runtime"),
            };
            return Ok(json!({
                "ph": "X", "cat": category, "name": name, "pid": HOST_PID, "tid": HOST_TID,
                "ts": ts, "dur": dur, "args": {"correlation": 0},
            }));
        }
        let (name, category, stream) = match event.kind {
            Kind::DmaIn => ("Memcpy (HtoD)", "gpu_memcpy", 2),
            Kind::DmaOut => ("Memcpy (DtoH)", "gpu_memcpy", 3),
            _ => (kernel_name(&event.name), "kernel", 1),
        };
        let mut args = json!({
            "device": 0, "context": 1, "stream": stream, "correlation": event.correlation,
        });
        if category == "gpu_memcpy" {
            args["bytes"] = json!(BYTES);
            // GB/s are bytes per nanosecond.
            let rate = BYTES as f64 / (event.host_dur_us * 1000.0);
            args["memory bandwidth (GB/s)"] = json!((rate * 1000.0).round() / 1000.0);
        }
        if self.counters {
            args["cycles_ts"] = json!(event.shown());
            args["charge"] = json!(event.charge.map(|c| c % super::clock::WRAP));
        }
        Ok(json!({
            "ph": "X", "cat": category, "name": name, "pid": 0, "tid": stream,
            "ts": ts, "dur": dur, "args": args,
        }))
    }
}

/// The name without what FLEX appends.
fn kernel_name(name: &str) -> &str {
    name.strip_suffix(" Cmpt Exec").unwrap_or(name)
}

/// What the host did to run these kernels: it launched, and waited.
fn launch(correlation: u64, kernels: &[&Event]) -> anyhow::Result<Vec<Value>> {
    let starts = kernels.iter().map(|event| event.host_ts_us);
    let ends = kernels.iter().map(|e| e.host_ts_us + e.host_dur_us);
    let (start, end) = (
        starts.fold(f64::MAX, f64::min),
        ends.fold(f64::MIN, f64::max),
    );
    let call = |name: &str, from: f64, to: f64| -> anyhow::Result<Value> {
        Ok(json!({
            "ph": "X", "cat": "privateuse1_runtime", "name": name, "pid": HOST_PID,
            "tid": HOST_TID, "ts": micros(from)?, "dur": micros(to - from)?,
            "args": {"correlation": correlation, "num_cbs": kernels.len()},
        }))
    };
    let begin = start - 14.0;
    Ok(vec![
        call("aiuLaunchScheduleCompute", start - 16.0, end + 6.0)?,
        call("aiuLaunchControlBlocks", begin, start - 8.0)?,
        json!({
            "ph": "s", "id": correlation, "pid": HOST_PID, "tid": HOST_TID,
            "ts": micros(begin)?, "cat": "ac2g", "name": "ac2g",
        }),
        json!({
            "ph": "f", "id": correlation, "pid": 0, "tid": 1, "ts": micros(start)?,
            "cat": "ac2g", "name": "ac2g", "bp": "e",
        }),
        call("aiuScheduleWait", start - 6.0, end + 4.0)?,
    ])
}

fn names(rank: usize, ts: f64) -> Vec<Value> {
    let meta = |name: &str, pid: Value, tid: u64, args: Value| json!({"name": name, "ph": "M", "ts": ts, "pid": pid, "tid": tid, "args": args});
    vec![
        meta(
            "process_name",
            json!(HOST_PID),
            0,
            json!({"name": "python3"}),
        ),
        meta(
            "process_labels",
            json!(HOST_PID),
            0,
            json!({"labels": "CPU"}),
        ),
        meta(
            "process_sort_index",
            json!(HOST_PID),
            0,
            json!({"sort_index": HOST_PID}),
        ),
        meta("process_name", json!(0), 0, json!({"name": "python3"})),
        meta("process_labels", json!(0), 0, json!({"labels": "AIU 0"})),
        meta(
            "process_sort_index",
            json!(0),
            0,
            json!({"sort_index": 5_000_000}),
        ),
        meta(
            "thread_name",
            json!(0),
            1,
            json!({"name": format!("stream 1 of {rank}")}),
        ),
        meta("thread_sort_index", json!(0), 1, json!({"sort_index": 1})),
        meta(
            "process_name",
            json!("Spans"),
            0,
            json!({"name": "PyTorch Profiler"}),
        ),
    ]
}

fn spans(first: f64, last: f64) -> anyhow::Result<Vec<Value>> {
    let instant = |name: &str, ts: f64| -> anyhow::Result<Value> {
        Ok(json!({
            "ph": "i", "cat": "Trace", "s": "g", "name": name, "pid": "Traces",
            "tid": "Trace PyTorch Profiler", "ts": micros(ts)?, "args": {},
        }))
    };
    Ok(vec![
        json!({
            "ph": "X", "cat": "Trace", "ts": micros(first)?, "dur": micros(last - first + 10.0)?,
            "pid": "Spans", "tid": "PyTorch Profiler", "name": "PyTorch Profiler (0)",
            "args": {"Op count": 0},
        }),
        instant("Iteration Start: PyTorch Profiler", first)?,
        instant("Record Window End", last + 20.0)?,
    ])
}

/// A time with three digits after the point, as files have it.
fn micros(us: f64) -> anyhow::Result<Value> {
    Ok(serde_json::from_str(&format!("{us:.3}"))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aiu_trace::scenario::Scenario;

    #[test]
    fn kernels_lie_within_their_launches() {
        let story = Scenario::default().make();
        let text = Torch::default().text(&story, 0).unwrap();
        let trace: Value = serde_json::from_str(&text).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let named = |name: &str| events.iter().filter(|e| e["name"] == name).count();
        assert_eq!(named("aiuLaunchControlBlocks"), 5);
        assert_eq!(named("aiuScheduleWait"), 5);
        let kernels: Vec<_> = events.iter().filter(|e| e["cat"] == "kernel").collect();
        assert_eq!(kernels.len(), 40);
        assert_eq!(events.iter().filter(|e| e["ph"] == "s").count(), 5);
        assert!(kernels.iter().all(|e| e["args"]["cycles_ts"].is_array()));
    }
}
