//! Traces of PyTorch on GPUs, made at random, with the truth of what each device did.
//!
//! Each [`Shape`] is a class of inputs that readers get wrong, such as several nodes, several GPUs
//! of one process, or several processes in one file.
//! Times are whole nanoseconds and are written as Kineto writes them, as microseconds with three
//! digits.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::aiu_trace::Rng;
use crate::spans::covered;

/// Nanoseconds of a microsecond.
const US: u64 = 1000;
/// Streams of each device.
const STREAMS: [u64; 2] = [7, 20];
/// Names of kernels that compute.
const KERNELS: [&str; 4] = [
    "ampere_sgemm_128x64_tn",
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float> >(int)",
    "triton_poi_fused_add_0",
    "softmax_warp_forward",
];
/// The kernel of an all-reduce.
const COLLECTIVE: &str =
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)";

/// A class of inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One process, one GPU.
    Plain,
    /// Two nodes whose processes have the same numbers and file names.
    Nodes,
    /// One process that uses several GPUs.
    Devices,
    /// Several files of each process, one after the other.
    Cycles,
    /// Several processes in one file.
    Merged,
    /// Several processes, and no file names a rank.
    Unranked,
    /// Launches of graphs: several kernels each.
    Graphs,
    /// Collectives, which end on all ranks at the same time.
    Collectives,
    /// Processes that use the same GPU.
    Shared,
    /// One process with several GPUs, as XLA's profiler writes it.
    Jax,
    /// Ranks of MPI, as unitrace writes them.
    Unitrace,
}

impl Shape {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Plain,
        Self::Nodes,
        Self::Devices,
        Self::Cycles,
        Self::Merged,
        Self::Unranked,
        Self::Graphs,
        Self::Collectives,
        Self::Shared,
        Self::Jax,
        Self::Unitrace,
    ];

    fn processes(self, rng: &mut Rng) -> usize {
        match self {
            Self::Plain | Self::Devices | Self::Graphs | Self::Jax => 1,
            Self::Nodes => 4,
            Self::Cycles => 1 + rng.below(2),
            _ => 2 + rng.below(3),
        }
    }

    fn files(self, rng: &mut Rng) -> usize {
        match self {
            Self::Cycles => 2 + rng.below(2),
            _ => 1,
        }
    }
}

/// An operation of a device.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Its name.
    pub name: String,
    /// `kernel`, `gpu_memcpy` or `gpu_memset`.
    pub category: &'static str,
    /// The process, in the order in which they were made.
    pub process: usize,
    /// The device's number.
    pub device: usize,
    /// The file of the process.
    pub file: usize,
    /// Begin and end, nanoseconds.
    pub span: (u64, u64),
}

impl Operation {
    /// It computes: no copy, fill or collective.
    #[must_use]
    pub fn computes(&self) -> bool {
        self.category == "kernel" && self.name != COLLECTIVE
    }
}

/// The files of one input, and what is true of them.
pub struct Made {
    /// Paths relative to a folder, and content.
    pub files: Vec<(String, Value)>,
    /// What the devices did.
    pub operations: Vec<Operation>,
    /// First begin and last end of all events, nanoseconds.
    pub span: (u64, u64),
    /// The rank of each process is in its file.
    pub has_ranks: bool,
}

impl Made {
    /// The input of a shape that follows from a seed. `shift`: what is added to the numbers of
    /// processes and threads, which must not matter.
    #[must_use]
    pub fn new(shape: Shape, seed: u64, shift: u64) -> Self {
        Maker::new(shape, seed, shift).make()
    }

    /// How long at least one of these operations ran, nanoseconds.
    #[must_use]
    pub fn union<'a>(all: impl Iterator<Item = &'a Operation>) -> u64 {
        covered(all.map(|one| one.span).collect())
    }
}

/// A process that launches work.
struct Process {
    number: usize,
    pid: u64,
    rank: usize,
    host: Option<String>,
    /// Numbers of its devices.
    devices: Vec<usize>,
    /// When its thread goes on.
    now: u64,
    /// When each stream is free.
    free: BTreeMap<(usize, u64), u64>,
    correlation: u64,
    file: usize,
    events: Vec<Value>,
    operations: Vec<Operation>,
    span: (u64, u64),
}

impl Process {
    fn slice(&mut self, category: &str, name: &str, (begin, end): (u64, u64), args: Value) {
        self.event(category, name, (self.pid, self.pid), (begin, end), args);
    }

    fn event(
        &mut self,
        category: &str,
        name: &str,
        (pid, tid): (u64, u64),
        (begin, end): (u64, u64),
        args: Value,
    ) {
        self.span = (self.span.0.min(begin), self.span.1.max(end));
        self.events.push(json!({
            "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid,
            "ts": micros(begin), "dur": micros(end - begin), "args": args,
        }));
    }

    /// A launch: an operator, the call in it, an arrow. When the call began, and its number.
    fn launch(&mut self, rng: &mut Rng, operator: &str, call: &str) -> (u64, u64) {
        self.correlation += 1;
        let correlation = self.correlation;
        let begin = self.now + time(rng, 2.0);
        let call_begin = begin + time(rng, 5.0);
        let call_end = call_begin + US + time(rng, 20.0);
        let end = call_end + time(rng, 3.0);
        self.slice(
            "cpu_op",
            operator,
            (begin, end),
            json!({"Sequence number": correlation}),
        );
        let args = json!({"correlation": correlation});
        self.slice("cuda_runtime", call, (call_begin, call_end), args);
        self.events.push(json!({
            "ph": "s", "id": correlation, "pid": self.pid, "tid": self.pid,
            "ts": micros(call_begin), "cat": "ac2g", "name": "ac2g",
        }));
        self.now = end;
        (call_begin, correlation)
    }

    /// What a device does for a launch; it begins when its stream is free, at `earliest` at the
    /// earliest.
    fn operation(
        &mut self,
        category: &'static str,
        name: &str,
        (device, stream): (usize, u64),
        (earliest, length): (u64, u64),
        correlation: u64,
    ) {
        let free = self.free.get(&(device, stream)).copied().unwrap_or(0);
        let begin = free.max(earliest);
        let end = begin + length;
        self.free.insert((device, stream), end);
        let mut args = json!({"device": device, "stream": stream, "correlation": correlation});
        if name == COLLECTIVE {
            args["Collective name"] = "allreduce".into();
            args["Process Group Name"] = "0".into();
        }
        self.event(category, name, (device as u64, stream), (begin, end), args);
        self.events.push(json!({
            "ph": "f", "id": correlation, "pid": device, "tid": stream,
            "ts": micros(begin), "cat": "ac2g", "name": "ac2g", "bp": "e",
        }));
        self.operations.push(Operation {
            name: name.to_owned(),
            category,
            process: self.number,
            device,
            file: self.file,
            span: (begin, end),
        });
    }

    /// When all devices of the process are idle.
    fn all_free(&self) -> u64 {
        self.free.values().copied().max().unwrap_or(0)
    }
}

struct Maker {
    shape: Shape,
    rng: Rng,
    processes: Vec<Process>,
    files: Vec<(String, Value)>,
    file_count: usize,
}

impl Maker {
    fn new(shape: Shape, seed: u64, shift: u64) -> Self {
        let mut rng = Rng::new(seed);
        let (count, file_count) = (shape.processes(&mut rng), shape.files(&mut rng));
        let start = 1_000_000 * US + time(&mut rng, 1000.0);
        let processes = (0..count).map(|number| {
            let pid = match shape {
                // Each node counts its own, and a container has 1 for each.
                Shape::Nodes => 100 + (number % 2) as u64,
                Shape::Unranked if seed.is_multiple_of(2) => 100,
                _ => 100 + number as u64,
            };
            let devices = match shape {
                Shape::Devices | Shape::Jax => (0..2 + rng.below(3)).collect(),
                Shape::Shared => vec![0],
                Shape::Nodes => vec![number % 2],
                _ => vec![number],
            };
            Process {
                number,
                pid: pid + shift,
                rank: number,
                host: (shape == Shape::Nodes).then(|| format!("node{}", number / 2)),
                devices,
                now: start + time(&mut rng, 50.0),
                free: BTreeMap::new(),
                correlation: 0,
                file: 0,
                events: Vec::new(),
                operations: Vec::new(),
                span: (u64::MAX, 0),
            }
        });
        let processes = processes.collect();
        Self {
            shape,
            rng,
            processes,
            files: Vec::new(),
            file_count,
        }
    }

    fn make(mut self) -> Made {
        for file in 0..self.file_count {
            for step in 0..1 + self.rng.below(3) {
                for at in 0..self.processes.len() {
                    self.step(at, step);
                }
                if self.shape == Shape::Collectives {
                    self.collective();
                }
            }
            self.write(file);
            let pause = 10_000 * US + time(&mut self.rng, 50_000.0);
            for process in &mut self.processes {
                process.now = process.now.max(process.all_free()) + pause;
                process.file += 1;
            }
        }
        let spans = self.processes.iter().map(|process| process.span);
        let span = spans.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        Made {
            files: self.files,
            operations: self
                .processes
                .into_iter()
                .flat_map(|p| p.operations)
                .collect(),
            span: span.unwrap_or_default(),
            has_ranks: !matches!(self.shape, Shape::Unranked | Shape::Merged | Shape::Jax),
        }
    }

    /// What a process does in a step.
    fn step(&mut self, at: usize, step: usize) {
        let (rng, process) = (&mut self.rng, &mut self.processes[at]);
        let begin = process.now;
        for _ in 0..3 + rng.below(12) {
            let device = process.devices[rng.below(process.devices.len())];
            let row = (device, STREAMS[rng.below(STREAMS.len())]);
            let length = US + time(rng, 150.0);
            match rng.below(12) {
                0 => {
                    let end = process.now + time(rng, 400.0);
                    let name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__";
                    process.slice("cpu_op", name, (process.now, end), json!({}));
                    process.now = end;
                }
                1 => process.now += time(rng, 500.0),
                2 => {
                    let from = process.now;
                    let end = process.all_free().max(from) + time(rng, 5.0);
                    let args = json!({"correlation": 0});
                    process.slice("cuda_runtime", "cudaDeviceSynchronize", (from, end), args);
                    process.now = end;
                }
                3 => {
                    let (call, id) = process.launch(rng, "aten::copy_", "cudaMemcpyAsync");
                    let name = "Memcpy HtoD (Pinned -> Device)";
                    let begin = call + time(rng, 8.0);
                    process.operation("gpu_memcpy", name, row, (begin, length), id);
                }
                4 => {
                    let (call, id) = process.launch(rng, "aten::zero_", "cudaMemsetAsync");
                    let begin = call + time(rng, 8.0);
                    process.operation("gpu_memset", "Memset (Device)", row, (begin, length), id);
                }
                5..=8 if self.shape == Shape::Graphs => {
                    let (call, id) = process.launch(rng, "graph", "cudaGraphLaunch");
                    for _ in 0..2 + rng.below(4) {
                        let begin = process.free.get(&row).map_or(call, |free| call.max(*free));
                        let begin = begin + time(rng, 4.0);
                        let name = KERNELS[rng.below(KERNELS.len())];
                        process.operation("kernel", name, row, (begin, length), id);
                    }
                }
                _ => {
                    let (call, id) = process.launch(rng, "aten::mm", "cudaLaunchKernel");
                    let name = KERNELS[rng.below(KERNELS.len())];
                    let begin = call + time(rng, 8.0);
                    process.operation("kernel", name, row, (begin, length), id);
                }
            }
        }
        let name = format!("ProfilerStep#{step}");
        process.slice("user_annotation", &name, (begin, process.now), json!({}));
    }

    /// All ranks reduce: each begins when it can, all end when the last has come.
    fn collective(&mut self) {
        let length = 5 * US + time(&mut self.rng, 100.0);
        let mut begins = Vec::new();
        for process in &mut self.processes {
            let (call, id) = process.launch(&mut self.rng, "c10d::allreduce_", "cudaLaunchKernel");
            let row = (process.devices[0], STREAMS[0]);
            let free = process.free.get(&row).copied().unwrap_or(0);
            begins.push((free.max(call + US), row, id));
        }
        let end = begins.iter().map(|(begin, ..)| begin + length).max();
        let end = end.unwrap_or(0);
        for (process, (begin, row, id)) in self.processes.iter_mut().zip(begins) {
            process.operation("kernel", COLLECTIVE, row, (begin, end - begin), id);
        }
    }

    /// Ends the files of all processes.
    fn write(&mut self, file: usize) {
        let is_merged = self.shape == Shape::Merged;
        let mut merged = Vec::new();
        for process in &mut self.processes {
            let mut events = std::mem::take(&mut process.events);
            events.push(json!({
                "ph": "M", "name": "process_name", "pid": process.pid, "tid": 0,
                "ts": micros(process.span.0), "args": {"name": "python"},
            }));
            if is_merged {
                merged.append(&mut events);
                continue;
            }
            let foreign = match self.shape {
                Shape::Jax => Some(as_jax(process, &events)),
                Shape::Unitrace => Some(as_unitrace(process, &events)),
                _ => None,
            };
            if let Some(trace) = foreign {
                self.files
                    .push((format!("w{}_{file}.json", process.number), trace));
                continue;
            }
            let devices = process.devices.iter().map(|id| match self.shape {
                Shape::Shared => json!({"id": id, "name": "GPU", "uuid": "GPU-5f1d"}),
                _ => json!({"id": id, "name": "GPU"}),
            });
            let mut trace = json!({
                "schemaVersion": 1,
                "deviceProperties": devices.collect::<Vec<_>>(),
                "traceEvents": events,
            });
            if self.shape != Shape::Unranked {
                trace["distributedInfo"] = json!({"rank": process.rank, "backend": "nccl"});
            }
            let name = match &process.host {
                Some(host) => {
                    trace["hostname"] = host.as_str().into();
                    format!("{host}/{}_{file}.json", process.number % 2)
                }
                None => format!("w{}_{file}.json", process.number),
            };
            self.files.push((name, trace));
        }
        if is_merged {
            let trace = json!({"schemaVersion": 1, "traceEvents": merged});
            self.files.push((format!("merged_{file}.json"), trace));
        }
    }
}

/// The events as XLA's profiler writes them: a process for each device, a thread for each stream.
fn as_jax(process: &Process, events: &[Value]) -> Value {
    let host = 700;
    let mut all = vec![name_of(
        "process_name",
        (host, None),
        "/host:CPU".to_owned(),
    )];
    for device in &process.devices {
        let pid = *device as u64 + 1;
        all.push(name_of(
            "process_name",
            (pid, None),
            format!("/device:GPU:{device}"),
        ));
        for stream in STREAMS {
            let name = format!("Stream #{stream}(Compute)");
            all.push(name_of("thread_name", (pid, Some(stream)), name));
        }
    }
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let mut args = json!({"correlation_id": event["args"]["correlation"].to_string()});
        let is_of_device = event["args"]["device"].is_u64();
        let (pid, tid) = match is_of_device {
            true => (event["pid"].as_u64().unwrap_or(0) + 1, event["tid"].clone()),
            false => (host, json!(1)),
        };
        if event["cat"] == "kernel" {
            args["hlo_op"] = "fusion.1".into();
            args["hlo_module"] = "jit_step".into();
        }
        let name = match event["cat"].as_str() {
            Some("gpu_memcpy") => "MemcpyH2D".into(),
            Some("gpu_memset") => "Memset".into(),
            _ => event["name"].clone(),
        };
        all.push(json!({
            "ph": "X", "name": name, "pid": pid, "tid": tid,
            "ts": event["ts"], "dur": event["dur"], "args": args,
        }));
    }
    // XLA's profiler ends the list so.
    all.push(json!({}));
    json!({"displayTimeUnit": "ns", "metadata": {"highres-ticks": true}, "traceEvents": all})
}

/// The events as unitrace writes them: a process for the device of a rank, named after both.
fn as_unitrace(process: &Process, events: &[Value]) -> Value {
    let rank = process.rank;
    let device = u64::from(u32::MAX) - ((rank as u64) << 5);
    let name = format!("RANK {rank} HOST<node>");
    let mut all = vec![name_of("process_name", (process.pid, None), name)];
    let name = format!(
        "RANK {rank} DEVICE<node>[Intel(R) GPU] 0000:{:x}:0.0 #0",
        0x18 + rank
    );
    all.push(name_of("process_name", (device, None), name));
    for stream in STREAMS {
        let name = format!("Thread {} Compute<{stream},0>", process.pid);
        all.push(name_of(
            "thread_name",
            (device, Some(device - stream)),
            name,
        ));
    }
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let id = event["args"]["correlation"].to_string();
        let is_of_device = event["args"]["device"].is_u64();
        let stream = event["tid"].as_u64().unwrap_or(0);
        let (pid, tid, category) = match is_of_device {
            true => (device, device - stream, "gpu_op"),
            false => (process.pid, process.pid, "cpu_op"),
        };
        let name = match event["cat"].as_str() {
            Some("gpu_memcpy") => "zeCommandListAppendMemoryCopy(M2D)[4096 bytes]".into(),
            Some("gpu_memset") => "zeCommandListAppendMemoryFill[4096 bytes]".into(),
            Some("cuda_runtime") => "zeCommandListAppendLaunchKernel".into(),
            _ => event["name"].clone(),
        };
        all.push(json!({
            "ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid,
            "ts": event["ts"], "dur": event["dur"], "args": {"id": id},
        }));
        // An arrow begins at each call and passes what the device did for it.
        if is_of_device || event["cat"] == "cuda_runtime" {
            all.push(json!({
                "ph": if is_of_device { "t" } else { "s" }, "name": "dep", "id": id,
                "cat": format!("Flow_H2D_{id}_{rank}"), "pid": pid, "tid": tid, "ts": event["ts"],
            }));
        }
    }
    json!({"traceEvents": all})
}

/// The name of a process, or of one of its threads.
fn name_of(kind: &str, (pid, tid): (u64, Option<u64>), name: String) -> Value {
    let mut event = json!({"ph": "M", "name": kind, "pid": pid, "args": {"name": name}});
    if let Some(tid) = tid {
        event["tid"] = tid.into();
    }
    event
}

/// A random time below `most_us` microseconds, in nanoseconds.
fn time(rng: &mut Rng, most_us: f64) -> u64 {
    rng.between(0.0, most_us * US as f64) as u64
}

/// As Kineto writes times.
fn micros(ns: u64) -> f64 {
    ns as f64 / US as f64
}
