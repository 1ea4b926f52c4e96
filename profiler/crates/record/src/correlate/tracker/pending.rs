//! Launches that are not certain yet. They are made at the entry of a call, because other threads
//! may go on with what it does before its end is seen. They are taken back if the call fails or
//! turns out to be done by a part of it.

use super::{
    CallSink, KernelName, LaunchingCall, TrackedLaunch,
    effects::small,
    handles::{Handles, ListKind, ListedLaunch, Room},
    meaning::is_only_host,
    memory::MemoryKind,
    open::{OnList, OpenCall, Own},
    state::TrackerState,
    thread::CallThread,
};
use aiprof_model::{
    probes::CallKind,
    profile::{LossKind, Losses},
};
use std::rc::Rc;

/// A launch that is not certain yet.
#[derive(Debug)]
pub(super) struct PendingLaunch {
    pub(super) launch: TrackedLaunch,
    /// The call that made it, innermost.
    pub(super) maker: u64,
    /// The maker is known to have succeeded.
    pub(super) confirmed: bool,
}

/// The launches of the open calls of a thread, in the order they were made.
#[derive(Debug, Default)]
pub(super) struct PendingLaunches(Vec<PendingLaunch>);

impl PendingLaunches {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether one of them signals an event.
    pub(super) fn signals(&self, event: u64) -> bool {
        self.0.iter().any(|one| one.launch.on.event == event)
    }

    /// Those from an index on.
    pub(super) fn from(&mut self, first: usize) -> &mut [PendingLaunch] {
        self.0.get_mut(first..).unwrap_or_default()
    }

    /// Forgets those of some makers.
    pub(super) fn forget_of(&mut self, makers: &[u64]) {
        self.0.retain(|one| !makers.contains(&one.maker));
    }

    /// Adds one; false if there is no room for it.
    pub(super) fn push(
        &mut self,
        launch: TrackedLaunch,
        maker: u64,
        limit: usize,
        losses: &mut Losses,
    ) -> bool {
        let fits = self.0.len() < limit;
        if fits {
            self.0.push(PendingLaunch {
                launch,
                maker,
                confirmed: false,
            });
        } else {
            losses.add(LossKind::LaunchesRefused, 1);
        }
        fits
    }

    /// Removes the one at `at`, if it is the maker's.
    fn remove(&mut self, at: usize, maker: u64) {
        if self.0.get(at).is_some_and(|one| one.maker == maker) {
            self.0.remove(at);
        }
    }

    /// Marks what an ended call did as certain.
    pub(super) fn confirm(&mut self, ended: &mut OpenCall) {
        let id = ended.call.id;
        let inside = self.from(ended.first_pending).iter_mut();
        inside
            .filter(|one| one.maker == id)
            .for_each(|one| one.confirmed = true);
        if let Some(recorded) = ended.recorded.as_mut().filter(|r| r.maker == id) {
            recorded.confirmed = true;
        }
    }

    /// Removes what a failed call did, except for parts of it that are known to have succeeded.
    pub(super) fn undo(&mut self, failed: &mut OpenCall, state: &mut TrackerState) {
        let id = failed.call.id;
        let first = failed.first_pending.min(self.0.len());
        let mut at = first;
        while let Some(one) = self.0.get(at) {
            let made = one.launch.by.call == id || one.maker == id;
            let submitted = one.launch.submit == Some(id);
            if (made || submitted) && !one.confirmed {
                self.0.remove(at);
                failed.call.work.remove(u32::from(!submitted));
            } else {
                at += 1;
            }
        }
        let unconfirmed = failed.recorded.take_if(|recorded| !recorded.confirmed);
        if let Some((recorded, (handles, room))) = unconfirmed.zip(state.known_handles(failed)) {
            handles.unrecord(recorded.list, recorded.maker, room);
            failed.call.work.remove(1);
        }
    }
}

impl CallThread {
    /// Adds the work of the call at `index`, if it is work.
    pub(super) fn add_work(&mut self, index: usize, state: &mut TrackerState) {
        let Some(open) = self.open.get(index) else {
            return;
        };
        if open.meaning.executes_graph() {
            return self.submit_graph(index, state);
        }
        if !open.meaning.is_work() && !self.is_bare_submission(index) {
            return;
        }
        self.add_own_work(index, state);
    }

    /// Adds the work of a call that is work.
    pub(super) fn add_own_work(&mut self, index: usize, state: &mut TrackerState) {
        if let Some(launch) = self.launch_of(index, state) {
            self.add_launch(index, launch, state);
        }
    }

    /// Whether the call is a submission that nothing else accounts for.
    fn is_bare_submission(&self, index: usize) -> bool {
        let is_one = self.open.get(index).is_some_and(|open| {
            open.meaning.probe.is_ioctl && open.meaning.probe.kind == CallKind::Submit
        });
        let around = self.open.get(..index).unwrap_or_default();
        is_one
            && around.iter().all(|o| {
                is_only_host(o.meaning.probe.kind) || o.meaning.probe.kind == CallKind::Compile
            })
    }

    /// The outermost call that the call at `index` is part of.
    pub(super) fn base(&self, index: usize) -> usize {
        let parts = self.open.get(..=index).unwrap_or_default().iter().rev();
        index
            - parts
                .take_while(|open| open.call.nesting.is_part)
                .count()
                .min(index)
    }

    /// The launch that the call at `index` makes, from what it and the calls that
    /// it is part of know.
    fn launch_of(&self, index: usize, state: &mut TrackerState) -> Option<TrackedLaunch> {
        let chain = self.open.get(self.base(index)..=index)?;
        let (first, last) = (chain.first()?, chain.last()?);
        let with_stack = chain.iter().find(|open| open.call.stack != 0);
        let with_stack = with_stack.unwrap_or(first);
        let by = LaunchingCall {
            stack: with_stack.call.stack,
            flags: with_stack.call.flags,
            ..first.launching()
        };
        let kind = last.meaning.probe.kind;
        let name = match kind {
            CallKind::Submit => KernelName::Submitted,
            _ => KernelName::Unknown,
        };
        let mut launch = TrackedLaunch::of(by, kind, name);
        launch.submitted_ns = last.call.start_ns;
        launch.handed_over_ns = last.call.start_ns;
        let operation_names = state.operation_names.clone();
        let (handles, room) = state.handles(last);
        for open in chain {
            add_roles(&mut launch, open, handles, room);
            add_sizes(&mut launch, open);
        }
        name_operation(&mut launch, chain, handles, &operation_names);
        Some(launch)
    }

    /// Puts a launch where it will count: on its list, or among those that are pending.
    fn add_launch(&mut self, index: usize, mut launch: TrackedLaunch, state: &mut TrackerState) {
        let Some(open) = self.open.get_mut(index) else {
            return;
        };
        open.works_on(&launch.work.name);
        open.call.work.add(1);
        let maker = open.call.id;
        let mut own = Own::default();
        let list = match launch.on.list {
            0 if is_capturing(launch.on.queue, open, state) => launch.on.queue,
            list => list,
        };
        if list != 0 {
            let kind = list_kind(list, open, state);
            if kind == ListKind::Immediate {
                launch.on.list = 0;
                if launch.on.queue == 0 {
                    launch.on.queue = list;
                }
            } else {
                let entry = ListedLaunch {
                    launch: launch.clone(),
                    maker,
                    counted: kind == ListKind::Undecided,
                };
                let (handles, room) = state.handles(open);
                if handles.record(list, entry, room) {
                    own.list = Some(list);
                    open.recorded = Some(OnList {
                        list,
                        maker,
                        confirmed: false,
                    });
                } else {
                    state.losses.add(LossKind::LaunchesRefused, 1);
                }
            }
            if kind == ListKind::Regular {
                open.own = own;
                return;
            }
        }
        let limit = state.limits.launches_per_call;
        own.is_pending = self.pending.push(launch, maker, limit, &mut state.losses);
        open.own = own;
    }

    /// Takes the own work of the call at `index` back.
    pub(super) fn remove_own_work(&mut self, index: usize, state: &mut TrackerState) {
        let Some(open) = self.open.get_mut(index) else {
            return;
        };
        let own = std::mem::take(&mut open.own);
        if !own.is_some() {
            return;
        }
        open.call.work.remove(1);
        if open.call.work.launches == 0 {
            open.call.work.first = None;
        }
        open.recorded = None;
        let maker = open.call.id;
        if let Some((list, (handles, room))) = own.list.zip(state.known_handles(open)) {
            handles.unrecord(list, maker, room);
        }
        if own.is_pending {
            self.pending.remove(open.first_pending, maker);
        }
    }

    /// Looks again at what the call at `index` makes, for data of it arrived.
    pub(super) fn update_work(&mut self, index: usize, state: &mut TrackerState) {
        if self.open.get(index).is_none_or(|open| !open.own.is_some()) {
            return;
        }
        self.remove_own_work(index, state);
        // Nothing was made inside of it yet: data come right behind the entry.
        if let Some(open) = self.open.get_mut(index) {
            open.first_pending = self.pending.len();
        }
        self.add_work(index, state);
    }

    /// Reports the pending launches of an ended call that is part of none, except those
    /// that calls around it have made.
    pub(super) fn report_launches(
        &mut self,
        ended: &OpenCall,
        state: &mut TrackerState,
        sink: &mut dyn CallSink,
    ) {
        if self.pending.len() <= ended.first_pending {
            return;
        }
        let open = &self.open;
        let is_open = |id: u64| open.iter().any(|o| o.call.id == id);
        let mut kept = Vec::new();
        for mut one in self.pending.0.drain(ended.first_pending..) {
            if one.launch.by.call == ended.call.id {
                one.launch.by.end_ns = ended.call.end_ns;
                if one.launch.on.event == 0 {
                    // Some runtimes make the event, and give it at the exit.
                    one.launch.on.event = ended.handle(ended.meaning.slots.event).unwrap_or(0);
                }
            } else if is_open(one.launch.by.call) {
                kept.push(one);
                continue;
            }
            if let Some(executed) = &mut one.launch.executed
                && one.launch.submit == Some(ended.call.id)
            {
                executed.end_ns = ended.call.end_ns;
            }
            one.launch.handed_over_ns = ended.call.over_ns();
            state.emit(one.launch, sink);
        }
        self.pending.0.append(&mut kept);
    }
}

/// What kind of list work was put on. Without room for it, it is taken for one
/// that works at once.
fn list_kind(list: u64, open: &OpenCall, state: &mut TrackerState) -> ListKind {
    let (handles, room) = state.handles(open);
    match handles.list(list, room) {
        Some(list) if list.capturing => ListKind::Regular,
        Some(list) => list.kind,
        None => {
            state.losses.add(LossKind::HandlesRefused, 1);
            ListKind::Immediate
        }
    }
}

/// Whether work given to a queue is recorded and not done.
fn is_capturing(queue: u64, open: &OpenCall, state: &mut TrackerState) -> bool {
    let known = state.known_handles(open).map(|(handles, _)| handles);
    let list = known.and_then(|handles| handles.lists.get(queue));
    queue != 0 && list.is_some_and(|list| list.capturing)
}

/// Adds the handles that a call of a chain knows; inner ones are added later and
/// take precedence where they mean something.
fn add_roles(launch: &mut TrackedLaunch, open: &OpenCall, handles: &mut Handles, room: &mut Room) {
    let slots = &open.meaning.slots;
    let take = |slot, to: &mut u64| {
        if let Some(handle) = open.handle(slot) {
            *to = handle;
        }
    };
    take(slots.device, &mut launch.on.device);
    take(slots.event, &mut launch.on.event);
    take(slots.bytes, &mut launch.work.bytes);
    if let Some(width) = open.handle(slots.extent[0]) {
        // An extent of 0 lines is one line.
        let lines = |slot| open.handle(slot).unwrap_or(1);
        let [_, height, depth] = slots.extent;
        let area = width.saturating_mul(lines(height));
        launch.work.bytes = area.saturating_mul(lines(depth));
    }
    if let Some(id) = open.handle(slots.correlation) {
        launch.correlation = Some(id);
    }
    if let Some(queue) = open.handle(slots.queue) {
        launch.on.queue = queue;
        if let Some(&device) = handles.queues.get(queue).filter(|&&device| device != 0) {
            launch.on.device = device;
        }
    }
    if let Some(handle) = open.handle(slots.list) {
        if open.handle(slots.queue).is_none() {
            // The outer API's queue is not what this list belongs to.
            launch.on.queue = 0;
        }
        let list = handles.lists.get(handle);
        if list.is_some() || handles.lists.get(launch.on.list).is_none() {
            launch.on.list = handle;
        }
        let device = list.map_or(0, |list| list.device);
        if device != 0 {
            launch.on.device = device;
        }
    }
    if let Some(name) = &open.name {
        launch.work.name = KernelName::Known(name.clone());
    }
    if let Some(kernel) = open.handle(slots.kernel) {
        add_kernel(launch, kernel, handles, room);
    }
}

fn add_kernel(launch: &mut TrackedLaunch, handle: u64, handles: &mut Handles, room: &mut Room) {
    launch.work.kernel = handle;
    let Some(kernel) = handles.kernel(handle, room) else {
        return;
    };
    launch.work.kernel_number = kernel.number;
    let name = kernel.name.of_kernel(handle);
    let is_known = |name: &KernelName| matches!(name, KernelName::Known(_));
    if is_known(&name) || !is_known(&launch.work.name) {
        launch.work.name = name;
    }
    if kernel.local != [0; 3] {
        launch.work.local = kernel.local;
    }
    if let Some(module) = &kernel.module {
        launch.work.module = Some(module.clone());
    }
}

/// Adds the sizes that a call knows.
fn add_sizes(launch: &mut TrackedLaunch, open: &OpenCall) {
    let slots = &open.meaning.slots;
    let values = |slots: [Option<usize>; 3]| slots.map(|slot| small(open.value(slot)));
    let array = |tag| {
        let mut sizes = [0; 3];
        let found = open.array(tag);
        sizes
            .iter_mut()
            .zip(found)
            .for_each(|(size, n)| *size = small(Some(n)));
        // Axes that are not given have the size 1.
        if sizes[0] != 0 {
            sizes.map(|n| n.max(1))
        } else {
            sizes
        }
    };
    let either = |a: [u32; 3], b: [u32; 3]| if a == [0; 3] { b } else { a };
    let groups = values(slots.groups);
    let local = either(values(slots.local), array(open.meaning.tags.local));
    let global = either(values(slots.global), array(open.meaning.tags.global));
    launch.work.local = either(local, launch.work.local);
    launch.work.groups = either(groups, launch.work.groups);
    if groups == [0; 3] && global != [0; 3] && !launch.work.local.contains(&0) {
        let mut n = global
            .iter()
            .zip(launch.work.local)
            .map(|(&all, one)| all.div_ceil(one));
        launch.work.groups = [(); 3].map(|()| n.next().unwrap_or(0));
    }
}

/// Names a copy, a fill or a barrier after what it does.
fn name_operation(
    launch: &mut TrackedLaunch,
    chain: &[Box<OpenCall>],
    handles: &Handles,
    operation_names: &OperationNames,
) {
    let name = match launch.kind {
        CallKind::Copy if innermost(chain, |o| o.meaning.operation.as_ref()).is_some() => {
            innermost(chain, |open| open.meaning.operation.as_ref())
        }
        CallKind::Copy => {
            let (from, to) = copies(chain, handles);
            operation_names
                .copies
                .get(from as usize)
                .and_then(|row| row.get(to as usize))
        }
        CallKind::Fill => {
            let to = innermost(chain, |open| open.handle(open.meaning.slots.dst));
            let memory = to.map_or(MemoryKind::Unknown, |to| handles.allocations.memory(to));
            operation_names.fills.get(memory as usize)
        }
        CallKind::Barrier => Some(&operation_names.barrier),
        _ => None,
    };
    if let Some(name) = name {
        launch.work.name = KernelName::Known(name.clone());
    }
}

/// The names of operations, made once.
#[derive(Debug)]
pub(super) struct OperationNames {
    copies: [[Rc<str>; 4]; 4],
    fills: [Rc<str>; 4],
    barrier: Rc<str>,
}

impl Default for OperationNames {
    fn default() -> Self {
        let letters = MemoryKind::ALL.map(MemoryKind::letter);
        Self {
            copies: letters.map(|from| letters.map(|to| format!("Memcpy ({from}2{to})").into())),
            fills: letters.map(|to| format!("Memset ({to})").into()),
            barrier: "Barrier".into(),
        }
    }
}

/// From the innermost call of a chain that knows.
fn innermost<'a, T: 'a>(
    chain: &'a [Box<OpenCall>],
    know: impl Fn(&'a OpenCall) -> Option<T>,
) -> Option<T> {
    chain.iter().rev().find_map(|open| know(open))
}

/// Where a copy comes from and goes to: by the API, else by how the addresses were allocated.
fn copies(chain: &[Box<OpenCall>], handles: &Handles) -> (MemoryKind, MemoryKind) {
    let by_argument = innermost(chain, direction);
    let side = |side: usize| {
        let by_name = innermost(chain, |open| open.meaning.letters[side]);
        let address = innermost(chain, |open| {
            let slots = &open.meaning.slots;
            open.handle([slots.src, slots.dst][side])
        });
        let by_address = || handles.allocations.memory(address.unwrap_or(0));
        by_name.unwrap_or_else(by_address)
    };
    by_argument.unwrap_or_else(|| (side(0), side(1)))
}

/// The direction argument of CUDA's and HIP's copies.
fn direction(open: &OpenCall) -> Option<(MemoryKind, MemoryKind)> {
    use MemoryKind::{Device, Host};
    match open.value(open.meaning.slots.direction)? {
        0 => Some((Host, Host)),
        1 => Some((Host, Device)),
        2 => Some((Device, Host)),
        3 => Some((Device, Device)),
        _ => None,
    }
}
