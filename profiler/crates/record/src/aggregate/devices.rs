//! Samples of devices by the stacks that launched what they were taken of.

use super::{
    Code, NoStack,
    aiu::Aiu,
    driver::DriverFrames,
    modules::{DescribedKernel, Modules, SampledKernel},
    numbers::Numbers,
};
use crate::correlate::{
    DeviceFact, DeviceFactKind, DriverCalls, ImagePiece, KernelName, PlacedKernel, TrackedLaunch,
    device::{Begun, CodeId, Join, JoinLimits, PARTS, PathId, Placement, Share, ShareSink, Waited},
};
use aiprof_model::{
    probes::CallKind,
    profile::{LossKind, Losses, Method, StallReason},
    wire::{DeviceStream, Event, StallWindow},
};
use rustc_hash::FxHashMap;
use std::{collections::BTreeSet, rc::Rc};

/// Bytes of code that a kernel of unknown size may have.
const UNKNOWN_SIZE: u64 = 1 << 20;
/// Part of the address that is the same all over a heap of instructions: 4 GiB.
const HEAP: u64 = !0xffff_ffff;

/// A call path that launches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LaunchPath {
    pub(super) pid: u32,
    pub(super) comm: Rc<str>,
    pub(super) cgroup: u64,
    /// Number of the labels of the process.
    pub(super) labels: u64,
    /// Leaf first, without the function that is probed.
    pub(super) codes: Rc<[Code]>,
    /// The function that the program called.
    pub(super) function: Rc<str>,
    /// What stands between that and the device.
    pub(super) driver: Option<DriverFrames>,
}

impl LaunchPath {
    /// All codes of its frames.
    pub(super) fn all_codes(&self) -> impl Iterator<Item = &Rc<[Code]>> {
        let driver = self.driver.iter().map(|driver| &driver.codes);
        std::iter::once(&self.codes).chain(driver)
    }
}

/// A path of which the number is known.
#[derive(Debug)]
struct KnownPath {
    pid: u32,
    function: Rc<str>,
    driver: Option<Rc<DriverCalls>>,
    /// The function that executed its graph.
    executed: Option<Rc<str>>,
    number: PathId,
}

/// What device samples are added up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct StallKey {
    pub(super) stream: u32,
    pub(super) code: Option<CodeId>,
    pub(super) offset: u64,
    pub(super) reason: StallReason,
    pub(super) path: Option<PathId>,
    pub(super) pid: Option<u32>,
    pub(super) method: Method,
}

/// What they weigh.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StallTotals {
    pub(super) parts: u64,
    pub(super) certain: u64,
    pub(super) possible: u64,
    pub(super) time_ns: f64,
}

/// The devices' part of an [`Aggregator`](super::Aggregator).
#[derive(Debug)]
pub(super) struct Devices {
    join: Join,
    pub(super) streams: Vec<DeviceStream>,
    paths: Numbers<LaunchPath>,
    kernels: Numbers<SampledKernel>,
    pub(super) rows: FxHashMap<StallKey, StallTotals>,
    /// Numbers of paths by the stack.
    known: FxHashMap<u64, Vec<KnownPath>>,
    modules: Modules,
    /// What the frames of kernels are made of.
    pub(super) described: FxHashMap<CodeId, DescribedKernel>,
    /// What AIUs did, by their own records.
    pub(super) aiu: Aiu,
    limit: usize,
}

impl Devices {
    pub(super) fn new(limit: usize) -> Self {
        let path = LaunchPath {
            pid: 0,
            comm: "".into(),
            cgroup: 0,
            labels: 0,
            codes: Rc::from([Code::NoStack(NoStack::Lost)]),
            function: "".into(),
            driver: None,
        };
        let kernel = SampledKernel {
            pid: 0,
            name: "[too many kernels]".into(),
            module: None,
        };
        Self {
            join: Join::new(JoinLimits::default()),
            streams: Vec::new(),
            paths: Numbers::new(path),
            kernels: Numbers::new(kernel),
            rows: FxHashMap::default(),
            known: FxHashMap::default(),
            modules: Modules::default(),
            described: FxHashMap::default(),
            aiu: Aiu::new(limit),
            limit,
        }
    }

    pub(super) fn path(&self, number: PathId) -> Option<&LaunchPath> {
        self.paths.get(number)
    }

    pub(super) fn kernel(&self, number: CodeId) -> Option<&SampledKernel> {
        self.kernels.get(number)
    }

    /// Forgets what belongs to the window.
    pub(super) fn reset(&mut self) {
        self.rows.clear();
        self.aiu.reset();
    }

    /// The stacks of all paths that are remembered.
    pub(super) fn all_codes(&self) -> impl Iterator<Item = &Rc<[Code]>> {
        self.paths.0.values.iter().flat_map(LaunchPath::all_codes)
    }

    /// Files have got new numbers: stacks are of no use any more.
    pub(super) fn forget_files(&mut self) {
        self.known.clear();
        self.paths.0.index.clear();
        for path in &mut self.paths.0.values {
            path.codes = Rc::from([Code::NoStack(NoStack::Lost)]);
            path.driver = None;
        }
    }

    /// A stack's number is given to another one, or the stack has become known.
    pub(super) fn forget_stack(&mut self, stack: u64) {
        self.known.remove(&stack);
    }

    pub(super) fn stream(&mut self, stream: &DeviceStream) {
        if self.streams.iter().all(|known| known.id != stream.id) && self.streams.len() < 1024 {
            self.join.stream(stream);
            self.streams.push(stream.clone());
        }
    }

    /// Takes an event of devices in. To be called before the tracker sees it: device
    /// code must be there before its kernels are placed.
    pub(super) fn event(&mut self, event: &Event) {
        self.aiu.event(event);
        match event {
            Event::DeviceStream(stream) => self.stream(stream),
            Event::Stalls(window) => self.window(window),
            Event::DeviceCode(code) => self.modules.found(code),
            _ => {}
        }
    }

    /// A program hands a module to its runtime.
    pub(super) fn image_piece(&mut self, piece: &ImagePiece<'_>) {
        self.modules.piece(piece);
    }

    /// Takes the windows that wait further; `now_ns`: all that happened until then
    /// is known.
    pub(super) fn advance(&mut self, now_ns: u64) {
        if self.join.is_waiting() {
            let mut rows = StallRows::of(&mut self.rows, self.limit);
            self.join.advance(now_ns, &mut rows);
            self.join.losses.merge(&rows.losses);
        }
    }

    pub(super) fn window(&mut self, window: &StallWindow) {
        let mut rows = StallRows::of(&mut self.rows, self.limit);
        self.join.window(window, &mut rows);
        self.join.losses.merge(&rows.losses);
        // Launches of that time are still to come; those of a second ago are not.
        self.advance(window.to_ns);
    }

    /// Nothing more will come.
    pub(super) fn finish(&mut self) {
        let mut rows = StallRows::of(&mut self.rows, self.limit);
        self.join.finish(&mut rows);
        self.join.losses.merge(&rows.losses);
    }

    pub(super) fn take_losses(&mut self) -> Losses {
        let refused = self.modules.take_refused();
        self.join
            .losses
            .add(LossKind::DeviceCodeUnreadable, refused);
        self.join.losses.merge(&self.aiu.take_losses());
        std::mem::take(&mut self.join.losses)
    }

    /// A call has revealed something of a device.
    pub(super) fn fact(&mut self, fact: &DeviceFact) {
        let (pid, entered, left) = (fact.pid, fact.entered_ns, fact.left_ns);
        let executions = &mut self.join.executions;
        match &fact.kind {
            &DeviceFactKind::Ended(what) => executions.ended(pid, what, entered, left),
            &DeviceFactKind::Timestamps { event, ticks } => {
                executions.timestamps(pid, event, ticks, left);
            }
            // Its command is over, or had no times.
            &DeviceFactKind::Profiled { event, .. } => {
                executions.ended(pid, Waited::Event(event), entered, left);
            }
            DeviceFactKind::Clock { device, clock } => {
                executions.clocks.add(pid, *device, clock.clone());
            }
            &DeviceFactKind::ClockRead { device, ticks } => {
                executions
                    .clocks
                    .observe(pid, device, ticks, (entered, left));
            }
        }
    }

    /// The number of a launch's path, and whether all of that is known. `path` gives both.
    fn path_of(
        &mut self,
        launch: &TrackedLaunch,
        with_driver: bool,
        path: impl FnOnce() -> (LaunchPath, bool),
    ) -> (PathId, bool) {
        let driver = launch.driver.as_ref().filter(|_| with_driver);
        let executed = launch.executed.as_ref().filter(|_| with_driver);
        let executed = executed.map(|call| &call.function);
        let same = |path: &&KnownPath| {
            path.pid == launch.by.pid
                && path.function == launch.by.function
                && path.driver.as_ref() == driver
                && path.executed.as_ref() == executed
        };
        let known = self.known.get(&launch.by.stack);
        if let Some(known) = known.and_then(|known| known.iter().find(same)) {
            return (known.number, true);
        }
        let (path, is_whole) = path();
        let number = self.paths.number(path);
        if number == 0 {
            self.join.losses.add(LossKind::LaunchesRefused, 1);
        }
        // What is missing may come yet.
        if launch.by.stack != 0 && number != 0 && is_whole {
            let known = self.known.entry(launch.by.stack).or_default();
            known.push(KnownPath {
                pid: launch.by.pid,
                function: launch.by.function.clone(),
                driver: driver.cloned(),
                executed: executed.cloned(),
                number,
            });
        }
        (number, is_whole)
    }

    /// A kernel was launched from a path: that, and whether its driver's frames are known.
    /// True if they are missing.
    pub(super) fn launch(
        &mut self,
        launch: &TrackedLaunch,
        with_driver: bool,
        path: impl FnOnce() -> (LaunchPath, bool),
    ) -> bool {
        let is_aiu = *launch.by.api == *crate::aiu::API;
        let is_placed =
            !is_aiu && launch.kind == CallKind::Launch && launch.work.kernel_number != 0;
        let may_be_recorded = is_aiu || launch.may_be_timed_inside();
        if !is_placed && !may_be_recorded {
            return false;
        }
        let (path, is_whole) = self.path_of(launch, with_driver, path);
        if may_be_recorded {
            self.aiu.launch(launch, path);
        }
        if !is_placed {
            return !is_whole;
        }
        let items = launch.work.groups.iter().chain(&launch.work.local);
        let work = items.fold(1_u64, |work, &n| work.saturating_mul(n.into()));
        self.join.executions.begun(&Begun {
            pid: launch.by.pid,
            kernel: launch.work.kernel_number,
            path,
            submitted_ns: launch.submitted_ns,
            work,
            queue: launch.on.queue,
            device: launch.on.device,
            event: launch.on.event,
            submit: launch.submit.unwrap_or(0),
        });
        !is_whole
    }

    pub(super) fn placed(&mut self, placed: &PlacedKernel) {
        let name: Rc<str> = match &placed.name {
            KernelName::Known(name) => name.clone(),
            other => other.to_string().into(),
        };
        let code = self.kernels.number(SampledKernel {
            pid: placed.placed.pid,
            name: name.clone(),
            module: placed.module.as_ref().and_then(|module| module.digest),
        });
        let address = placed.placed.address;
        let size = match placed.placed.size {
            0 => self.size_of(code).unwrap_or(UNKNOWN_SIZE),
            size => size,
        };
        self.join.placed(Placement {
            pid: placed.placed.pid,
            kernel: placed.number,
            code,
            start: address,
            last: address.saturating_add(size.max(1) - 1),
            base: placed.placed.instruction_base.unwrap_or(address & HEAP),
            since_ns: placed.since_ns,
            until_ns: placed.until_ns,
        });
    }

    /// Bytes of a kernel's code.
    fn size_of(&mut self, code: CodeId) -> Option<u64> {
        let found = self.modules.find(self.kernels.get(code)?)?;
        let size = found.kernel()?.code.len() as u64;
        (size > 0).then_some(size)
    }

    /// Finds what the frames of all rows are made of.
    pub(super) fn describe(&mut self) {
        let codes: BTreeSet<CodeId> = self.rows.keys().filter_map(|row| row.code).collect();
        for code in codes {
            let known = self.described.get(&code);
            if known.is_none_or(|known| known.listing.is_empty()) {
                let kernel = self.kernels.get(code);
                let found = kernel.and_then(|kernel| self.modules.find(kernel));
                let name = kernel.map_or("", |kernel| &kernel.name);
                let described = DescribedKernel::new(name, found);
                self.described.insert(code, described);
            }
        }
    }

    pub(super) fn gone(&mut self, pid: u32, number: u64, at_ns: u64) {
        self.join
            .unplaced(at_ns, |p| p.pid == pid && p.kernel == number);
    }

    /// A forked process has its parent's kernels and clocks.
    pub(super) fn inherited(&mut self, parent: u32, pid: u32, at_ns: u64) {
        self.join.inherited(parent, pid, at_ns);
    }

    pub(super) fn process_gone(&mut self, pid: u32, at_ns: u64) {
        self.join.executions.process_gone(pid, at_ns);
        self.aiu.process_gone(pid);
        self.join.unplaced(at_ns, |p| p.pid == pid);
    }
}

/// Adds shares to rows.
struct StallRows<'a> {
    rows: &'a mut FxHashMap<StallKey, StallTotals>,
    limit: usize,
    losses: Losses,
}

impl<'a> StallRows<'a> {
    fn of(rows: &'a mut FxHashMap<StallKey, StallTotals>, limit: usize) -> Self {
        Self {
            rows,
            limit,
            losses: Losses::default(),
        }
    }
}

impl ShareSink for StallRows<'_> {
    fn share(&mut self, share: Share) {
        let mut key = StallKey {
            stream: share.stream,
            code: share.code,
            offset: share.offset,
            reason: share.reason,
            path: share.path,
            pid: share.pid,
            method: share.method,
        };
        if self.rows.len() >= self.limit && !self.rows.contains_key(&key) {
            // Without the instruction: what remains is still whose it is.
            key.offset = u64::MAX;
        }
        if share.method == Method::Unattributed {
            let samples = share.parts / PARTS;
            self.losses.add(LossKind::DeviceUnattributed, samples);
        }
        let row = self.rows.entry(key).or_default();
        row.parts = row.parts.saturating_add(share.parts);
        row.certain = row.certain.saturating_add(share.certain);
        row.possible = row.possible.saturating_add(share.possible);
        row.time_ns += share.time_ns;
    }
}
