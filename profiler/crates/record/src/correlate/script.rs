//! Probes like those of the real tables, and a writer of events.

#![allow(
    unreachable_pub,
    reason = "aiprof-testkit has this file for other crates"
)]

use crate::correlate::{
    CallSink, DeviceFact, FinishedCall, KernelEvent, KernelName, Tracked, TrackedLaunch, Tracker,
    TrackerLimits,
};
use aiprof_common::{
    CALL_ENTRY_UNKNOWN, CALL_EXIT, CALL_LATE, CALL_TAIL, CALL_UNTRACKED, MAX_VALUES,
};
use aiprof_model::{
    probes::{
        CallKind, DataFormat, DataInfo, Probe, ProbeRole, ProbedFile, ResultKind, Tables,
        ValueFormat, ValueInfo,
    },
    wire::{
        Call, CallData, CallStack, Event, ProcessEvent, ProcessEventKind, Sample, StopReason,
        Thread,
    },
};
use std::{collections::HashMap, rc::Rc, sync::LazyLock};

/// Library ids: the layers of one API.
pub const UR: u32 = 1;
/// The loader.
pub const LOADER: u32 = 2;
/// The driver.
pub const DRIVER: u32 = 3;

/// A function's role in the built-in tables.
pub fn built_in_role(symbol: &str) -> Option<ProbeRole> {
    static TABLES: LazyLock<Tables> = LazyLock::new(Tables::built_in);
    TABLES.iter().find_map(|table| table.function(symbol)?.role)
}

/// One probe; `>name` is read at the exit, `"name` is a text, `*name` an array,
/// `#name` device code.
pub fn probe(id: u32, api: &str, function: &str, kind: CallKind, args: &[&str]) -> Probe {
    let mut probe = Probe {
        layout: None,
        id,
        table: api.to_lowercase(),
        api: api.into(),
        function: function.into(),
        kind,
        role: built_in_role(function),
        is_ioctl: api == "xe",
        values: Vec::new(),
        data: Vec::new(),
        result: match api {
            "Level Zero" => ResultKind::Level0,
            "OpenCL" => ResultKind::Pointer,
            "xe" => ResultKind::Errno,
            _ => ResultKind::ZeroOk,
        },
        has_exit: true,
    };
    for arg in args {
        let (mark, name) = arg.split_at(1);
        let format = match mark {
            "\"" => DataFormat::Text,
            "*" => DataFormat::Handles,
            "#" => DataFormat::Blob,
            _ => {
                let at_exit = mark == ">";
                let name = if at_exit { name } else { arg };
                probe.values.push(ValueInfo {
                    name: name.into(),
                    format: ValueFormat::Hex,
                    at_exit,
                });
                continue;
            }
        };
        let name = name.into();
        probe.data.push(DataInfo { name, format });
    }
    probe
}

/// All probes of the tests, by function.
pub fn probes() -> Vec<Probe> {
    use CallKind::*;
    const ZE: &str = "Level Zero";
    const SYCL: &str = "Unified Runtime";
    let groups = ["groups_x", "groups_y", "groups_z"];
    let local = ["local_x", "local_y", "local_z"];
    let mut all = Vec::new();
    let mut add = |api: &str, function: &str, kind, args: &[&str]| {
        let id = all.len() as u32;
        all.push(probe(id, api, function, kind, args));
    };
    let with = |first: &[&'static str], more: [&'static str; 3]| [first, &more].concat();
    add(
        ZE,
        "zeModuleCreate",
        Module,
        &["context", "device", "format", "#image", ">module"],
    );
    add(ZE, "zeModuleDestroy", Module, &["module"]);
    add(
        ZE,
        "zeKernelCreate",
        Kernel,
        &["module", "\"name", ">kernel"],
    );
    add(ZE, "zeKernelDestroy", Kernel, &["kernel"]);
    add(ZE, "zeKernelGetName", Kernel, &["kernel", "\"name"]);
    add(
        ZE,
        "zeKernelSetGroupSize",
        Kernel,
        &with(&["kernel"], local),
    );
    add(
        ZE,
        "zeCommandQueueCreate",
        Queue,
        &["context", "device", ">queue"],
    );
    add(
        ZE,
        "zeCommandListCreate",
        Queue,
        &["context", "device", ">list"],
    );
    add(
        ZE,
        "zeCommandListCreateImmediate",
        Queue,
        &["context", "device", ">list"],
    );
    add(ZE, "zeCommandListClose", Queue, &["list"]);
    add(ZE, "zeCommandListReset", Queue, &["list"]);
    add(ZE, "zeCommandListDestroy", Queue, &["list"]);
    add(
        ZE,
        "zeCommandListAppendLaunchKernel",
        Launch,
        &with(&["list", "kernel", "event"], groups),
    );
    add(
        ZE,
        "zeCommandListAppendMemoryCopy",
        Copy,
        &["list", "dst", "src", "bytes", "event"],
    );
    add(
        ZE,
        "zeCommandListAppendMemoryFill",
        Fill,
        &["list", "dst", "bytes"],
    );
    add(
        ZE,
        "zeCommandListAppendBarrier",
        Barrier,
        &["list", "event"],
    );
    add(
        ZE,
        "zeCommandQueueExecuteCommandLists",
        Submit,
        &["queue", "*lists"],
    );
    add(ZE, "zeCommandQueueSynchronize", Synchronize, &["queue"]);
    add(ZE, "zeMemAllocDevice", Alloc, &["bytes", ">address"]);
    add(ZE, "zeMemAllocHost", Alloc, &["bytes", ">address"]);
    add(ZE, "zeMemAllocShared", Alloc, &["bytes", ">address"]);
    add(ZE, "zeMemFree", Free, &["address"]);
    add(SYCL, "urEnqueueKernelLaunch", Launch, &["queue", "kernel"]);
    add(SYCL, "urEnqueueMemBufferFill", Fill, &["queue", "bytes"]);
    add(
        SYCL,
        "urEnqueueUSMMemcpy",
        Copy,
        &["queue", "dst", "src", "bytes"],
    );
    add(
        SYCL,
        "urKernelCreate",
        Kernel,
        &["module", "\"name", ">kernel"],
    );
    add(SYCL, "urQueueFinish", Synchronize, &["queue"]);
    add("CUDA", "cudaGraphLaunch", Launch, &["queue", "graph"]);
    add("CUDA", "cuGraphLaunch", Launch, &["queue", "graph"]);
    add("CUDA", "cuStreamBeginCapture", Queue, &["queue"]);
    add("CUDA", "cuStreamEndCapture", Queue, &["queue", ">graph"]);
    add("CUDA", "cudaStreamBeginCapture", Queue, &["queue"]);
    add("CUDA", "cudaStreamEndCapture", Queue, &["queue", ">graph"]);
    add(
        "CUDA",
        "cudaGraphInstantiate",
        Queue,
        &["source_graph", ">graph"],
    );
    add(
        "CUDA",
        "cuGraphInstantiate",
        Queue,
        &["source_graph", ">graph"],
    );
    add(
        "CUDA",
        "cuGraphAddChildGraphNode",
        Queue,
        &["graph", "source_graph"],
    );
    add(ZE, "zeCommandListBeginGraphCaptureExp", Queue, &["list"]);
    add(
        ZE,
        "zeCommandListEndGraphCaptureExp",
        Queue,
        &["list", ">graph"],
    );
    add(
        ZE,
        "zeCommandListInstantiateGraphExp",
        Queue,
        &["source_graph", ">graph"],
    );
    add(ZE, "zeGraphDestroyExp", Queue, &["graph"]);
    add(
        ZE,
        "zeCommandListAppendGraphExp",
        Submit,
        &["list", "graph"],
    );
    add(
        ZE,
        "zeCommandListCreateCloneExp",
        Queue,
        &["source_list", ">list"],
    );
    add(
        ZE,
        "zeCommandListAppendMemoryCopyRegion",
        Copy,
        &["list", "dst", "src", "width", "height", "depth"],
    );
    add(
        ZE,
        "zeCommandListAppendMemoryPrefetch",
        Copy,
        &["list", "src", "bytes"],
    );
    add(
        ZE,
        "zeCommandListAppendImageCopyToMemory",
        Copy,
        &["list", "dst", "src_image"],
    );
    add(
        "CUDA",
        "cudaMemcpy",
        Copy,
        &["dst", "src", "bytes", "direction"],
    );
    add(
        "CUDA",
        "cuMemcpyDtoHAsync_v2",
        Copy,
        &["dst", "src", "bytes"],
    );
    add(
        "CUDA",
        "cuLaunchKernel",
        Launch,
        &with(&["kernel", "queue", "correlation"], groups),
    );
    add(
        "OpenCL",
        "clCreateKernel",
        Kernel,
        &["module", "\"name", ">kernel"],
    );
    add("OpenCL", "clRetainKernel", Kernel, &["kernel"]);
    add("OpenCL", "clReleaseKernel", Kernel, &["kernel"]);
    add(
        "Unified Runtime",
        "clEnqueueNDRangeKernel",
        Launch,
        &["queue", "kernel", "*global", "*local"],
    );
    add("oneDNN", "dnnl_primitive_execute", Host, &[]);
    add("xe", "DRM_IOCTL_XE_EXEC", Submit, &["queue", "batch"]);
    all
}

/// What the tracker reported, in order.
#[derive(Default)]
pub struct Told {
    /// Calls.
    pub calls: Vec<FinishedCall>,
    /// Launches.
    pub launches: Vec<TrackedLaunch>,
    /// What happened to kernels' handles.
    pub kernels: Vec<KernelEvent>,
    /// What calls revealed of devices.
    pub facts: Vec<DeviceFact>,
    /// Lengths of the pieces of device code.
    pub pieces: Vec<usize>,
    /// Late names: process, kernel, name.
    pub named: Vec<(u32, u64, Rc<str>)>,
}

impl CallSink for Told {
    fn found(&mut self, found: &Tracked<'_>) {
        match *found {
            Tracked::Call(call) => self.calls.push(call.clone()),
            Tracked::Launch(launch) => self.launches.push(launch.clone()),
            Tracked::Kernel(event) => self.kernels.push(event.clone()),
            Tracked::DeviceFact(fact) => self.facts.push(fact.clone()),
            Tracked::ImagePiece(piece) => self.pieces.push(piece.bytes.len()),
            Tracked::KernelNamed { pid, kernel, name } => {
                self.named.push((pid, kernel, name.clone()));
            }
            _ => {}
        }
    }
}

/// A known name.
pub fn named(name: &str) -> KernelName {
    KernelName::Known(name.into())
}

/// A thread as the kernel side sees it, with a tracker behind it.
pub struct Script {
    /// What is probed.
    pub probes: Vec<Probe>,
    /// What is tested.
    pub tracker: Tracker,
    /// Everything that the tracker was given.
    pub events: Vec<Event>,
    /// What it reported.
    pub told: Told,
    /// The time, ns.
    pub now: u64,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Stack pointer of the next call.
    pub sp: u64,
    /// When the calls began that are open, by thread.
    pub open: HashMap<u32, Vec<u64>>,
    /// Added to the ids of stacks: calls from elsewhere.
    pub elsewhere: u64,
    /// When the ioctl began that is open.
    ioctl: u64,
}

/// The program's stack pointer outside of all calls.
pub const TOP: u64 = 0x7fff_0000_0000;

impl Script {
    /// With all probes and no limits of its own.
    #[allow(clippy::new_without_default, reason = "tests begin one by name")]
    pub fn new() -> Self {
        Self::with(TrackerLimits::default(), probes())
    }

    /// With these.
    pub fn with(limits: TrackerLimits, probes: Vec<Probe>) -> Self {
        let mut script = Self {
            probes: probes.clone(),
            tracker: Tracker::new(limits),
            events: Vec::new(),
            told: Told::default(),
            now: 100,
            pid: 1,
            tid: 1,
            sp: TOP,
            open: HashMap::new(),
            elsewhere: 0,
            ioctl: 0,
        };
        for (id, name) in [(UR, "ur"), (LOADER, "loader"), (DRIVER, "driver")] {
            script.apply(&Event::ProbedFile(ProbedFile {
                id,
                path: name.into(),
                table: "t".into(),
                layer: id as u8,
            }));
        }
        for probe in probes {
            script.apply(&Event::Probe(probe));
        }
        script
    }

    /// Something happens.
    pub fn apply(&mut self, event: &Event) {
        self.events.push(event.clone());
        self.tracker.apply(event, &mut self.told);
    }

    fn tick(&mut self) -> u64 {
        self.now += 10;
        self.now
    }

    /// The probe of a function, in whatever library comes first.
    pub fn probe(&self, function: &str) -> &Probe {
        let found = self.probes.iter().find(|p| p.function == function);
        found.unwrap_or_else(|| panic!("no probe {function}"))
    }

    fn event(&mut self, function: &str, library: u32, values: &[u64], at_exit: bool) -> Call {
        let now = self.tick();
        let probe = self.probe(function);
        let slots = probe.values.iter().zip(0..);
        let wanted = slots.filter(|(v, _)| v.at_exit == at_exit).map(|(_, i)| i);
        let mut call = Call {
            time_ns: now,
            cpu: 0,
            pid: self.pid,
            tid: self.tid,
            probe: probe.id,
            library,
            stack: 0,
            sp: if probe.is_ioctl { 0 } else { self.sp },
            around_ns: self.around(),
            result: 0,
            unread: 0,
            flags: 0,
            values: [0; MAX_VALUES],
        };
        let slots: Vec<usize> = wanted.collect();
        assert!(values.len() <= slots.len(), "{function}: {values:?}");
        for (slot, value) in slots.into_iter().zip(values) {
            call.values[slot] = *value;
        }
        call
    }

    /// Enters a function of a library; the values are those of the entry. Calls
    /// from now on are made inside of it.
    pub fn enter(&mut self, function: &str, library: u32, values: &[u64]) {
        let call = self.event(function, library, values, false);
        if self.probe(function).is_ioctl {
            self.ioctl = call.time_ns;
        } else {
            self.sp -= 0x40;
            self.open.entry(self.tid).or_default().push(call.time_ns);
        }
        let stack = self.stack(function);
        self.apply(&Event::Call(Call { stack, ..call }));
    }

    /// The id of the stack of calls of a function from here.
    pub fn stack(&self, function: &str) -> u64 {
        u64::from(self.probe(function).id) + 1000 + self.elsewhere
    }

    /// Sends the stack of this id, of the current thread: addresses, leaf first.
    pub fn send_stack(&mut self, id: u64, user: Vec<u64>, kernel: Vec<u64>) {
        let sample = Sample {
            time_ns: self.now,
            cpu: 0,
            thread: Thread {
                pid: self.pid,
                tid: self.tid,
                comm: "worker".into(),
            },
            cgroup: 3,
            period: 0,
            space: 0,
            miss_dir: 0,
            miss_page: 0,
            stop: StopReason::End,
            flags: 0,
            rip: 0,
            rsp: 0,
            rbp: 0,
            user,
            kernel,
            python: vec![],
        };
        self.apply(&Event::CallStack(CallStack { id, sample }));
    }

    /// The same, where the kernel side could not follow the thread's calls.
    pub fn enter_untracked(&mut self, function: &str, library: u32, values: &[u64]) {
        let mut call = self.event(function, library, values, false);
        (call.flags, call.around_ns) = (CALL_UNTRACKED, 0);
        self.sp -= 0x40;
        self.open.entry(self.tid).or_default().push(call.time_ns);
        self.apply(&Event::Call(call));
    }

    /// The function that the current one, entered last, jumps to.
    pub fn jump(&mut self, function: &str, library: u32, values: &[u64]) {
        self.sp += 0x40;
        let call = self.event(function, library, values, false);
        self.sp -= 0x40;
        let flags = CALL_TAIL;
        self.apply(&Event::Call(Call { flags, ..call }));
    }

    /// Leaves the innermost function; the values are those read at the exit.
    pub fn leave(&mut self, function: &str, library: u32, result: u64, values: &[u64]) {
        self.leave_with(function, library, (result, CALL_EXIT), values);
    }

    /// The same, where the exit was not seen: the values are what was found later.
    pub fn leave_unseen(&mut self, function: &str, library: u32, values: &[u64]) {
        self.leave_with(function, library, (0, CALL_EXIT | CALL_LATE), values);
    }

    fn leave_with(
        &mut self,
        function: &str,
        library: u32,
        (result, mut flags): (u64, u16),
        values: &[u64],
    ) {
        let mut call = self.event(function, library, values, true);
        if self.probe(function).is_ioctl {
            call.around_ns = self.ioctl;
        } else {
            self.sp += 0x40;
            call.sp = self.sp;
            if self.open.entry(self.tid).or_default().pop().is_none() {
                flags |= CALL_ENTRY_UNKNOWN;
            }
        }
        self.apply(&Event::Call(Call {
            flags,
            result,
            ..call
        }));
    }

    /// When the call began that is open.
    fn around(&self) -> u64 {
        let open = self.open.get(&self.tid);
        open.and_then(|open| open.last().copied()).unwrap_or(0)
    }

    /// Leaves it without the exit being seen.
    pub fn vanish(&mut self) {
        self.sp += 0x40;
        self.open.entry(self.tid).or_default().pop();
    }

    /// A whole call of the loader.
    pub fn call(&mut self, function: &str, values: &[u64], out: &[u64]) {
        self.enter(function, LOADER, values);
        self.leave(function, LOADER, 0, out);
    }

    /// Data of the record sent last.
    pub fn data(&mut self, function: &str, tag: u8, bytes: &[u8], total: u64) {
        let data = CallData {
            time_ns: self.now,
            pid: self.pid,
            tid: self.tid,
            probe: self.probe(function).id,
            tag,
            unread: false,
            offset: 0,
            total,
            bytes: bytes.to_vec(),
        };
        self.apply(&Event::CallData(data));
    }

    /// An array of a call was read.
    pub fn array(&mut self, function: &str, tag: u8, numbers: &[u64]) {
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        self.data(function, tag, &bytes, bytes.len() as u64);
    }

    /// Something happens to the process.
    pub fn process(&mut self, tid: u32, kind: ProcessEventKind) {
        let event = ProcessEvent {
            time_ns: self.tick(),
            pid: self.pid,
            tid,
            kind,
        };
        self.apply(&Event::Process(event));
    }

    /// The recording ends.
    pub fn finish(&mut self) {
        let now = self.tick();
        self.tracker.finish(now, &mut self.told);
    }

    /// Creates a kernel through the loader.
    pub fn kernel(&mut self, name: &str, handle: u64) {
        self.enter("zeKernelCreate", LOADER, &[0xd0]);
        self.data("zeKernelCreate", 0, name.as_bytes(), 0);
        self.leave("zeKernelCreate", LOADER, 0, &[handle]);
    }

    /// Puts a kernel on a list through the loader.
    pub fn launch(&mut self, list: u64, kernel: u64) {
        self.call("zeCommandListAppendLaunchKernel", &[list, kernel], &[]);
    }

    /// Executes lists through the loader.
    pub fn execute(&mut self, queue: u64, lists: &[u64]) {
        const EXECUTE: &str = "zeCommandQueueExecuteCommandLists";
        self.enter(EXECUTE, LOADER, &[queue]);
        self.array(EXECUTE, 0, lists);
        self.leave(EXECUTE, LOADER, 0, &[]);
    }

    /// Names of the launches so far.
    pub fn names(&self) -> Vec<String> {
        let launches = self.told.launches.iter();
        launches
            .map(|launch| launch.work.name.to_string())
            .collect()
    }

    /// How much was lost of a kind, since this was asked last.
    pub fn lost(&mut self, kind: aiprof_model::profile::LossKind) -> u64 {
        self.tracker.take_losses().get(kind)
    }
}
