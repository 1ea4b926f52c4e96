//! `key_averages()`: calls by their names, with time, memory and operations.

use super::calls::{CallRole, TorchCall, is_of_kineto};
use super::nesting::{Cost, TorchIndex};
use super::stacks::PythonStacks;
use super::{flops, shapes};
use aiprof_model::timeline::{Dialect, Event, Job, Sym, Timeline};
use rustc_hash::FxHashMap;

/// Calls of one name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Average {
    /// Their name.
    pub name: String,
    /// A device ran them.
    pub is_device: bool,
    /// They are notes of the program.
    pub is_note: bool,
    /// Shapes of their inputs, where these keep calls apart: `[[64, 3], []]`.
    pub shapes: Option<String>,
    /// The Python frames that they ran in, innermost first, where these keep calls apart.
    pub stack: Vec<String>,
    /// How many there are.
    pub count: u64,
    /// Host time without that of the calls in them, and with it, microseconds.
    pub self_cpu: f64,
    /// See above.
    pub cpu: f64,
    /// The same of device time.
    pub self_device: f64,
    /// See above.
    pub device: f64,
    /// Host memory that was allocated less what was released, bytes: without and with
    /// the calls in them.
    pub self_cpu_memory: i64,
    /// See above.
    pub cpu_memory: i64,
    /// The same of device memory.
    pub self_device_memory: i64,
    /// See above.
    pub device_memory: i64,
    /// Floating-point operations, by torch's estimate.
    pub flops: u64,
}

/// All of a timeline.
#[derive(Clone, Debug, Default)]
pub struct Averages {
    /// By name, in the order in which the names occur.
    pub rows: Vec<Average>,
    /// What torch calls the device, `CUDA`, `XPU`, or the trace, `AIU`; empty: there is none.
    pub device: String,
    /// Allocations were profiled.
    pub has_memory: bool,
    /// Operations were counted.
    pub has_flops: bool,
    /// Shapes were recorded.
    pub has_shapes: bool,
    /// Kineto wrote all of it.
    pub is_kineto: bool,
}

/// What makes calls one row.
type AverageKey = (Option<Sym>, bool, bool, Option<String>, usize);

impl Averages {
    /// Those of a timeline. Shapes keep calls apart if `by_shape`, and so do the innermost `frames`
    /// of Python.
    pub fn new(timeline: &Timeline, index: &TorchIndex, by_shape: bool, frames: usize) -> Self {
        let TorchIndex {
            calls,
            nested,
            costs,
        } = index;
        let mut grouping = Grouping {
            timeline,
            by_shape,
            stacks: (frames > 0).then(|| PythonStacks::new(timeline, calls, nested, frames)),
            places: FxHashMap::default(),
            averages: Self {
                rows: Vec::new(),
                device: device(timeline),
                has_memory: calls.has_memory || says(timeline, "profile_memory"),
                has_flops: says(timeline, "with_flops"),
                has_shapes: says(timeline, "record_shapes"),
                is_kineto: true,
            },
        };
        let all = calls.all.iter().zip(costs).zip(&nested.is_gone).enumerate();
        for (index, ((call, cost), _)) in all.filter(|(_, (_, is_gone))| !**is_gone) {
            grouping.add(index, call, cost);
        }
        grouping.averages
    }
}

struct Grouping<'t> {
    timeline: &'t Timeline,
    by_shape: bool,
    stacks: Option<PythonStacks>,
    places: FxHashMap<AverageKey, usize>,
    averages: Averages,
}

impl Grouping<'_> {
    fn add(&mut self, index: usize, call: &TorchCall, cost: &Cost) {
        let timeline = self.timeline;
        let Some(event) = timeline.events.get(call.event) else {
            return;
        };
        self.averages.is_kineto &= is_of_kineto(timeline, event);
        let has_flops = self.averages.has_flops && call.role == CallRole::Operator;
        let Some(row) = self.row(index, call, event) else {
            return;
        };
        row.count += 1;
        row.self_cpu += cost.self_cpu;
        row.cpu += cost.cpu;
        row.self_device += cost.self_device;
        row.device += cost.device;
        add(&mut row.self_cpu_memory, cost.self_memory.0);
        add(&mut row.cpu_memory, cost.memory.0);
        add(&mut row.self_device_memory, cost.self_memory.1);
        add(&mut row.device_memory, cost.memory.1);
        if has_flops {
            row.flops = row.flops.saturating_add(flops::of(timeline, event));
        }
    }

    /// The call's row; a new one, if it is the first of its like.
    fn row(&mut self, index: usize, call: &TorchCall, event: &Event) -> Option<&mut Average> {
        let timeline = self.timeline;
        let dims = || timeline.arg(event, "Input Dims");
        let averages = &mut self.averages;
        averages.has_shapes |= self.by_shape && dims().is_some();
        let shapes = self.by_shape.then(|| shapes::shown(dims()));
        let stacks = self.stacks.as_ref();
        let stack = stacks.map_or(0, |stacks| stacks.of(index));
        let key = (call.name, call.is_device(), call.is_note, shapes, stack);
        let rows = &mut averages.rows;
        let place = self.places.entry(key).or_insert_with_key(|key| {
            let name = call
                .name
                .map_or("ProfilerStep*", |name| timeline.name(name));
            rows.push(Average {
                name: name.to_owned(),
                is_device: call.is_device(),
                is_note: call.is_note,
                shapes: key.3.clone(),
                stack: stacks.map_or(Vec::new(), |stacks| stacks.frames(stack).to_vec()),
                ..Average::default()
            });
            rows.len() - 1
        });
        rows.get_mut(*place)
    }
}

fn add(sum: &mut i64, bytes: i64) {
    *sum = sum.saturating_add(bytes);
}

/// Whether the traces' headers have it: `"with_flops": 1`.
fn says(timeline: &Timeline, key: &str) -> bool {
    let mut said = timeline.metadata.iter().filter(|(known, _)| known == key);
    said.any(|(_, value)| value == "1")
}

/// What torch calls the device that a trace is of. A backend of its own is called as the trace
/// names its devices: torch itself knows the name only while the program runs.
fn device(timeline: &Timeline) -> String {
    let is_there = |test: &dyn Fn(&str) -> bool| timeline.names.iter().any(|(_, text)| test(text));
    let has = |cats: &[&str]| is_there(&|text| cats.contains(&text));
    // The build for AMD's devices has CUDA's names too.
    let cuda = [
        "cuda_runtime",
        "cuda_driver",
        "hip_runtime",
        "hip_driver",
        "Runtime",
    ];
    let is_of = |test: fn(&Job) -> bool| timeline.jobs.iter().any(test);
    let name = if has(&cuda) {
        "CUDA"
    } else if has(&["xpu_runtime", "xpu_driver", "gpu_op"]) {
        "XPU"
    } else if has(&["mtia_runtime"]) {
        "MTIA"
    } else if has(&["privateuse1_runtime", "privateuse1_driver"]) {
        let named = timeline.jobs.iter().find_map(named_device);
        return named.unwrap_or_else(|| match is_of(|job| job.is_recording) {
            true => "AIU".to_owned(),
            false => "PRIVATEUSE1".to_owned(),
        });
    } else if is_of(|job| job.dialect == Dialect::Flex) {
        "AIU"
    } else {
        "DEVICE"
    };
    name.to_owned()
}

/// Longest name of a device that fits above its columns, characters.
const MAX_DEVICE: usize = 24;

/// The name of the first device that a file lists.
fn named_device(job: &Job) -> Option<String> {
    let devices: serde_json::Value = serde_json::from_str(&job.stated.devices).ok()?;
    let mut names = devices.as_array()?.iter();
    let name = names
        .find_map(|device| device.get("name")?.as_str())?
        .trim();
    (!name.is_empty()).then(|| name.chars().take(MAX_DEVICE).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_formats::import::json;

    fn of(text: &str) -> Averages {
        let mut timeline = Timeline::default();
        json::read(text.as_bytes(), "x.json", &mut timeline).unwrap();
        Averages::new(&timeline, &TorchIndex::new(&timeline), false, 0)
    }

    fn row<'a>(averages: &'a Averages, name: &str, is_device: bool) -> &'a Average {
        let mut rows = averages.rows.iter();
        let found = rows.find(|row| row.name == name && row.is_device == is_device);
        found.unwrap()
    }

    fn slice(cat: &str, name: &str, tid: u32, ts: f64, dur: f64, args: &str) -> String {
        format!(
            r#"{{"ph":"X","cat":"{cat}","name":"{name}","pid":9,"tid":{tid},"ts":{ts},"dur":{dur},"args":{{{args}}}}}"#
        )
    }

    /// An only child of its parent's name counts once, with the child's kernels
    /// (`_remove_dup_nodes`); one of two children does not.
    #[test]
    fn twins_count_once() {
        let events = [
            slice("cpu_op", "a", 9, 0.0, 10.0, r#""External id":1"#),
            slice("cpu_op", "a", 9, 1.0, 8.0, r#""External id":2"#),
            slice("cpu_op", "b", 9, 2.0, 3.0, ""),
            slice("cpu_op", "a", 9, 20.0, 10.0, ""),
            slice("cpu_op", "a", 9, 21.0, 2.0, ""),
            slice("cpu_op", "c", 9, 25.0, 2.0, ""),
            slice("kernel", "k", 7, 5.0, 4.0, r#""External id":2"#),
        ];
        let averages = of(&format!("[{}]", events.join(",")));
        let a = row(&averages, "a", false);
        assert_eq!((a.count, a.cpu, a.self_cpu), (3, 22.0, 7.0 + 6.0 + 2.0));
        assert_eq!((a.device, a.self_device), (4.0, 4.0));
        assert_eq!(row(&averages, "k", true).device, 4.0);
        assert!(averages.is_kineto);
    }

    /// Calls that overlap in part are not in each other, nor are those of other threads,
    /// but a runtime's call is on its operator's thread.
    #[test]
    fn only_what_is_whole_inside_is_a_child() {
        let events = [
            slice("cpu_op", "a", 9, 0.0, 10.0, r#""External id":1"#),
            slice("cpu_op", "b", 9, 5.0, 10.0, ""),
            slice("cpu_op", "c", 8, 1.0, 2.0, ""),
            slice(
                "cuda_runtime",
                "launch",
                8,
                2.0,
                2.0,
                r#""External id":1,"correlation":5"#,
            ),
        ];
        let averages = of(&format!("[{}]", events.join(",")));
        let self_cpu = |name| row(&averages, name, false).self_cpu;
        let all = ["a", "b", "c", "launch"].map(self_cpu);
        assert_eq!(all, [8.0, 10.0, 2.0, 2.0]);
        assert_eq!(averages.device, "CUDA");
    }

    /// What other tools write is joined by correlation.
    #[test]
    fn other_traces_are_joined_by_correlation() {
        let device = r#""TS1":"1","TS2":"2","TS3":"3","TS4":"4","TS5":"5","correlation":5"#;
        let events = [
            slice("", "call", 1, 0.0, 10.0, r#""correlation":5"#),
            slice("", "x Cmpt Exec", 2, 5.0, 3.0, device),
        ];
        let averages = of(&format!("[{}]", events.join(",")));
        assert_eq!(row(&averages, "call", false).device, 3.0);
        assert!(!averages.is_kineto);
    }

    /// A backend of its own has the name that the trace gives its devices.
    #[test]
    fn devices_have_the_names_of_the_trace() {
        let call = |cat| slice(cat, "aiuMalloc", 9, 0.0, 10.0, "");
        let trace = |devices, cat| {
            let events = call(cat);
            of(&format!(
                r#"{{"deviceProperties":[{devices}],"traceEvents":[{events}]}}"#
            ))
        };
        for (devices, cat, name) in [
            (r#"{"id":0,"name":"AIU"}"#, "privateuse1_runtime", "AIU"),
            (
                r#"{"id":0},{"id":1,"name":"NPU 2"}"#,
                "privateuse1_driver",
                "NPU 2",
            ),
            (
                r#"{"id":0,"name":" "}"#,
                "privateuse1_runtime",
                "PRIVATEUSE1",
            ),
            ("", "privateuse1_runtime", "PRIVATEUSE1"),
            (r#"{"id":0,"name":"NVIDIA H200"}"#, "cuda_runtime", "CUDA"),
        ] {
            assert_eq!(trace(devices, cat).device, name, "{devices}");
        }
        let counters = r#""TS1":"1","TS2":"2","TS3":"3","TS4":"4","TS5":"5""#;
        let flex = slice("", "x Cmpt Exec", 2, 5.0, 3.0, counters);
        assert_eq!(of(&format!("[{flex}]")).device, "AIU");
    }

    /// unitrace's calls have the category of operators, and arrows to their work.
    #[test]
    fn traces_of_unitrace_have_device_time() {
        let arrow = |ph, tid, ts| {
            format!(
                r#"{{"ph":"{ph}","cat":"Flow_H2D_1_0","name":"dep","id":1,"pid":9,"tid":{tid},"ts":{ts}}}"#
            )
        };
        let events = [
            slice(
                "cpu_op",
                "zeCommandListAppendLaunchKernel",
                9,
                0.0,
                10.0,
                "",
            ),
            slice(
                "gpu_op",
                "gemm[SIMD32 {1; 1; 1} {8; 1; 1}]",
                7,
                20.0,
                4.0,
                "",
            ),
            arrow("s", 9, 0.0),
            arrow("t", 7, 20.0),
        ];
        let averages = of(&format!("[{}]", events.join(",")));
        let call = row(&averages, "zeCommandListAppendLaunchKernel", false);
        assert_eq!((call.device, averages.device.as_str()), (4.0, "XPU"));
        let kernel = row(&averages, "gemm[SIMD32 {1; 1; 1} {8; 1; 1}]", true);
        assert_eq!(kernel.self_device, 4.0);
    }

    /// No depth and no number of calls takes more than its time.
    #[test]
    fn deep_calls_are_counted() {
        let count = 20_000u32;
        let deep = (0..count).map(|depth| {
            let (ts, dur) = (f64::from(depth), f64::from(3 * count - 2 * depth));
            slice("cpu_op", &format!("f{}", depth % 2), 9, ts, dur, "")
        });
        let averages = of(&format!("[{}]", deep.collect::<Vec<_>>().join(",")));
        let all: u64 = averages.rows.iter().map(|row| row.count).sum();
        assert_eq!(all, u64::from(count));
        assert!(averages.rows.iter().all(|row| row.self_cpu >= 0.0));
    }
}
