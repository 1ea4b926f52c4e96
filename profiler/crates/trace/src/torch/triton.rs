//! Triton's kernels: which operator of the compiler's launched them, and the file that
//! they were generated into.

use super::calls::{CallRole, TorchCalls};
use super::nesting::{Nested, TorchIndex};
use aiprof_model::timeline::{Event, Sym, Timeline};
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

/// What makes launches one row: the kernel's name and file, and what is around it.
type TritonKey<'t> = (Sym, String, Option<&'t str>, Option<&'t str>);

/// A launch of a generated kernel.
struct TritonLaunch {
    name: Sym,
    hash: String,
    file: String,
}

/// What is around each call, by its index.
struct TritonAround<'t> {
    /// Number of the compilation.
    compiled: Vec<Option<&'t str>>,
    /// Key of the compiled graph.
    graph: Vec<Option<&'t str>>,
    /// The compiler chooses settings.
    tuning: Vec<Option<()>>,
}

impl<'t> TritonAround<'t> {
    fn new(timeline: &'t Timeline, calls: &TorchCalls, nested: &Nested) -> Self {
        let name = |index: usize| Some(timeline.name(calls.all.get(index)?.name?));
        Self {
            compiled: nested.around(|index| name(index)?.strip_prefix("Torch-Compiled Region: ")),
            graph: nested.around(|index| {
                let key = name(index)?.strip_prefix("## TorchCall CompiledFxGraph ")?;
                key.strip_suffix(" ##")
            }),
            tuning: nested.around(|index| {
                let is_one = name(index)?.starts_with("CachingAutotuner.benchmark");
                is_one.then_some(())
            }),
        }
    }
}

/// Those of a timeline, in the order of their first launches.
pub fn kernels(timeline: &Timeline, index: &TorchIndex) -> Vec<TritonKernel> {
    let calls = &index.calls;
    let mut kernels: Vec<TritonKernel> = Vec::new();
    let around = TritonAround::new(timeline, calls, &index.nested);
    let mut places: FxHashMap<TritonKey<'_>, usize> = FxHashMap::default();
    for (index, cost) in index.costs.iter().enumerate() {
        let Some(launch) = launch(timeline, calls, index) else {
            continue;
        };
        let compiled = around.compiled.get(index).copied().flatten();
        let graph = around.graph.get(index).copied().flatten();
        let is_tuning = around.tuning.get(index).copied().flatten().is_some();
        let key = (launch.name, launch.hash, compiled, graph);
        let place = *places.entry(key).or_insert_with_key(|(_, hash, ..)| {
            let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
            kernels.push(TritonKernel {
                name: timeline.name(launch.name).to_owned(),
                hash: hash.clone(),
                file: launch.file,
                compiled: text(compiled),
                graph: text(graph),
                ..TritonKernel::default()
            });
            kernels.len() - 1
        });
        if let Some(kernel) = kernels.get_mut(place) {
            kernel.launches += 1;
            kernel.tuning += u64::from(is_tuning);
            kernel.host_us += cost.cpu;
            kernel.device_us += cost.device;
        }
    }
    kernels
}

/// What a call launches; `None`: it launches no generated kernel.
fn launch(timeline: &Timeline, calls: &TorchCalls, index: usize) -> Option<TritonLaunch> {
    let call = calls.all.get(index)?;
    let event = timeline.events.get(call.event)?;
    if call.role != CallRole::Operator {
        return None;
    }
    let file = argument(timeline, event, "kernel_file");
    let hash = argument(timeline, event, "kernel_hash");
    (file.is_some() || hash.is_some()).then(|| TritonLaunch {
        name: event.name,
        hash: hash.unwrap_or_default(),
        file: file.unwrap_or_default(),
    })
}

/// A text among an event's arguments.
fn argument(timeline: &Timeline, event: &Event, key: &str) -> Option<String> {
    serde_json::from_str(timeline.arg(event, key)?).ok()
}
