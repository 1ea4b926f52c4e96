//! Triton's kernels: which operator of the compiler's launched them, and the file that
//! they were generated into.

use super::calls::{CallRole, TorchCalls};
use super::nesting::Nested;
use aiprof_model::timeline::{Event, Timeline};
use rustc_hash::FxHashMap;

/// Launches of one generated kernel in one compiled graph.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TritonKernel {
    /// Its name, which is the operator's too.
    pub name: String,
    /// Base name of the file that it was generated into.
    pub hash: String,
    /// The file.
    pub file: String,
    /// Number of the compilation that runs it, `1/0`; empty: none is around it, as in
    /// backward passes.
    pub compiled: String,
    /// The compiled graph around it, by its key; empty: none.
    pub graph: String,
    /// Launches.
    pub launches: u64,
    /// Those by which the compiler chose its settings.
    pub tuning: u64,
    /// Host time of the launches, microseconds.
    pub host_us: f64,
    /// Device time, microseconds.
    pub device_us: f64,
}

/// What makes launches one row.
type TritonKey = (String, String, String, String);

/// Those of a timeline, in the order of their first launches.
pub fn kernels(timeline: &Timeline) -> Vec<TritonKernel> {
    let mut calls = TorchCalls::new(timeline);
    let nested = Nested::new(&mut calls);
    let costs = nested.costs(&calls);
    let mut kernels: Vec<TritonKernel> = Vec::new();
    let mut places: FxHashMap<TritonKey, usize> = FxHashMap::default();
    for (index, cost) in costs.iter().enumerate() {
        let Some(launch) = launch(timeline, &calls, &nested, index) else {
            continue;
        };
        let key = (
            launch.name.clone(),
            launch.hash.clone(),
            launch.compiled.clone(),
            launch.graph.clone(),
        );
        let tuning = launch.tuning;
        let place = *places.entry(key).or_insert_with(|| {
            kernels.push(TritonKernel {
                tuning: 0,
                ..launch
            });
            kernels.len() - 1
        });
        if let Some(kernel) = kernels.get_mut(place) {
            kernel.launches += 1;
            kernel.tuning += tuning;
            kernel.host_us += cost.cpu;
            kernel.device_us += cost.device;
        }
    }
    kernels
}

/// What a call launches, without its times; `None`: it launches no generated kernel.
fn launch(
    timeline: &Timeline,
    calls: &TorchCalls,
    nested: &Nested,
    index: usize,
) -> Option<TritonKernel> {
    let call = calls.all.get(index)?;
    let event = timeline.events.get(call.event)?;
    let (file, hash) = match call.role {
        CallRole::Operator => (
            argument(timeline, event, "kernel_file"),
            argument(timeline, event, "kernel_hash"),
        ),
        _ => return None,
    };
    if file.is_none() && hash.is_none() {
        return None;
    }
    let names = || {
        let above = nested
            .above(index)
            .filter_map(|above| calls.all.get(above)?.name);
        above.map(|name| timeline.name(name))
    };
    let compiled = names().find_map(|name| name.strip_prefix("Torch-Compiled Region: "));
    let graph = names().find_map(|name| {
        let key = name.strip_prefix("## TorchCall CompiledFxGraph ")?;
        key.strip_suffix(" ##")
    });
    let is_tuning = names().any(|name| name.starts_with("CachingAutotuner.benchmark"));
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    Some(TritonKernel {
        name: timeline.name(event.name).to_owned(),
        hash: hash.unwrap_or_default(),
        file: file.unwrap_or_default(),
        compiled: text(compiled),
        graph: text(graph),
        tuning: is_tuning.into(),
        ..TritonKernel::default()
    })
}

/// A text among an event's arguments.
fn argument(timeline: &Timeline, event: &Event, key: &str) -> Option<String> {
    serde_json::from_str(timeline.arg(event, key)?).ok()
}
