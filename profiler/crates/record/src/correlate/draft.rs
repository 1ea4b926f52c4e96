//! Launches that are not certain yet. They are made at the entry of a call, because other threads
//! may go on with what it does before its end is seen. They are taken back if the call fails or
//! turns out to be done by a part of it.

use super::{
    CallSink, KernelName, Launch,
    effects::small,
    handles::{Handles, ListKind, Recorded, Room},
    known::is_only_host,
    memory::Memory,
    open::{OnList, Open, Own},
    thread::Thread,
    world::World,
};
use aiprof_model::{
    probes::CallKind,
    profile::{LossKind, Losses},
};
use std::rc::Rc;

/// A launch that is not certain yet.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) launch: Launch,
    /// The call that made it, innermost.
    pub(super) maker: u64,
    /// The maker is known to have succeeded.
    pub(super) sure: bool,
}

impl Thread {
    /// Drafts the work of the call at `index`, if it is work.
    pub(super) fn draft(&mut self, index: usize, world: &mut World) {
        let Some(open) = self.open.get(index) else {
            return;
        };
        if open.known.executes_graph() {
            return self.submit_graph(index, world);
        }
        if !open.known.is_work() && !self.is_bare_submission(index) {
            return;
        }
        self.draft_own(index, world);
    }

    /// Drafts the work of a call that is work.
    pub(super) fn draft_own(&mut self, index: usize, world: &mut World) {
        let launch = self.make(index, world);
        self.place(index, launch, world);
    }

    /// Whether the call is a submission that nothing else accounts for.
    fn is_bare_submission(&self, index: usize) -> bool {
        let is_one = self.open.get(index).is_some_and(|open| {
            open.known.probe.is_ioctl && open.known.probe.kind == CallKind::Submit
        });
        let around = self.open.get(..index).unwrap_or_default();
        is_one
            && around.iter().all(|o| {
                is_only_host(o.known.probe.kind) || o.known.probe.kind == CallKind::Compile
            })
    }

    /// The outermost call that the call at `index` is part of.
    pub(super) fn base(&self, index: usize) -> usize {
        let parts = self.open.get(..=index).unwrap_or_default().iter().rev();
        index
            - parts
                .take_while(|open| open.call.is_part)
                .count()
                .min(index)
    }

    /// The launch that the call at `index` makes, from what it and the calls that
    /// it is part of know.
    fn make(&self, index: usize, world: &mut World) -> Launch {
        let chain = self.open.get(self.base(index)..=index).unwrap_or_default();
        let mut launch = blank(chain);
        let words = world.words.clone();
        let (handles, room) = match chain.last() {
            Some(open) => world.handles(open),
            None => return launch,
        };
        for open in chain {
            add_roles(&mut launch, open, handles, room);
            add_sizes(&mut launch, open);
        }
        name_operation(&mut launch, chain, handles, &words);
        launch
    }

    /// Puts a draft where it will count: on its list, or among the drafts.
    fn place(&mut self, index: usize, mut launch: Launch, world: &mut World) {
        let Some(open) = self.open.get_mut(index) else {
            return;
        };
        open.works_on(&launch.name);
        open.call.works = open.call.works.saturating_add(1);
        let maker = open.call.id;
        let mut own = Own::default();
        let list = match launch.list {
            0 if is_capturing(launch.queue, open, world) => launch.queue,
            list => list,
        };
        if list != 0 {
            let kind = list_kind(list, open, world);
            if kind == ListKind::Immediate {
                launch.list = 0;
                launch.queue = if launch.queue == 0 {
                    list
                } else {
                    launch.queue
                };
            } else {
                let entry = Recorded {
                    launch: launch.clone(),
                    maker,
                    counted: kind == ListKind::Undecided,
                };
                let (handles, room) = world.handles(open);
                if handles.record(list, entry, room) {
                    own.list = Some(list);
                    open.recorded = Some(OnList {
                        list,
                        maker,
                        sure: false,
                    });
                } else {
                    world.losses.add(LossKind::LaunchesRefused, 1);
                }
            }
            if kind == ListKind::Regular {
                open.own = own;
                return;
            }
        }
        own.draft = push(
            &mut self.drafts,
            launch,
            maker,
            world.limits.drafts,
            &mut world.losses,
        );
        open.own = own;
    }

    /// Takes the own work of the call at `index` back.
    pub(super) fn withdraw(&mut self, index: usize, world: &mut World) {
        let Some(open) = self.open.get_mut(index) else {
            return;
        };
        let own = std::mem::take(&mut open.own);
        if !own.is_some() {
            return;
        }
        open.call.works = open.call.works.saturating_sub(1);
        if open.call.works == 0 {
            open.call.work = None;
        }
        open.recorded = None;
        let maker = open.call.id;
        if let Some((list, (handles, room))) = own.list.zip(world.known(open)) {
            handles.unrecord(list, maker, room);
        }
        if own.draft {
            remove_draft(&mut self.drafts, open.first_draft, maker);
        }
    }

    /// Looks again at what the call at `index` makes, for data of it arrived.
    pub(super) fn redraft(&mut self, index: usize, world: &mut World) {
        if self.open.get(index).is_none_or(|open| !open.own.is_some()) {
            return;
        }
        self.withdraw(index, world);
        // Nothing was made inside of it yet: data come right behind the entry.
        if let Some(open) = self.open.get_mut(index) {
            open.first_draft = self.drafts.len();
        }
        self.draft(index, world);
    }

    /// Hands over the drafts of an ended call that is part of none, except those
    /// that calls around it have made.
    pub(super) fn deliver(&mut self, ended: &Open, world: &mut World, sink: &mut dyn CallSink) {
        if self.drafts.len() <= ended.first_draft {
            return;
        }
        let open = &self.open;
        let is_open = |id: u64| open.iter().any(|o| o.call.id == id);
        let mut kept = Vec::new();
        for mut draft in self.drafts.drain(ended.first_draft..) {
            if draft.launch.call == ended.call.id {
                draft.launch.end_ns = ended.call.end_ns;
                if draft.launch.event == 0 {
                    // Some runtimes make the event, and give it at the exit.
                    draft.launch.event = ended.handle(ended.known.slots.event).unwrap_or(0);
                }
            } else if is_open(draft.launch.call) {
                kept.push(draft);
                continue;
            }
            if let Some(executed) = &mut draft.launch.executed
                && draft.launch.submit == Some(ended.call.id)
            {
                executed.end_ns = ended.call.end_ns;
            }
            draft.launch.handed_over_ns = ended.call.over_ns();
            world.emit(draft.launch, sink);
        }
        self.drafts.append(&mut kept);
    }

    /// Takes back what a failed call did, except for parts of it that are known to have
    /// succeeded.
    pub(super) fn take_back(&mut self, failed: &mut Open, world: &mut World) {
        let id = failed.call.id;
        let first = failed.first_draft.min(self.drafts.len());
        let mut at = first;
        while let Some(draft) = self.drafts.get(at) {
            let made = draft.launch.call == id || draft.maker == id;
            let submitted = draft.launch.submit == Some(id);
            if (made || submitted) && !draft.sure {
                self.drafts.remove(at);
                failed.call.works = failed.call.works.saturating_sub(u32::from(!submitted));
            } else {
                at += 1;
            }
        }
        let unsure = failed.recorded.take_if(|recorded| !recorded.sure);
        if let Some((recorded, (handles, room))) = unsure.zip(world.known(failed)) {
            handles.unrecord(recorded.list, recorded.maker, room);
            failed.call.works = failed.call.works.saturating_sub(1);
        }
    }

    /// Marks what an ended call did as certain.
    pub(super) fn confirm(&mut self, ended: &mut Open) {
        let id = ended.call.id;
        let inside = self.drafts.get_mut(ended.first_draft..).unwrap_or_default();
        for draft in inside.iter_mut().filter(|draft| draft.maker == id) {
            draft.sure = true;
        }
        if let Some(recorded) = ended.recorded.as_mut().filter(|r| r.maker == id) {
            recorded.sure = true;
        }
    }
}

/// Adds a draft; false if there is no room for it.
pub(super) fn push(
    drafts: &mut Vec<Draft>,
    launch: Launch,
    maker: u64,
    limit: usize,
    losses: &mut Losses,
) -> bool {
    let fits = drafts.len() < limit;
    if fits {
        drafts.push(Draft {
            launch,
            maker,
            sure: false,
        });
    } else {
        losses.add(LossKind::LaunchesRefused, 1);
    }
    fits
}

/// Removes the draft at `at`, if it is the maker's.
fn remove_draft(drafts: &mut Vec<Draft>, at: usize, maker: u64) {
    if drafts.get(at).is_some_and(|draft| draft.maker == maker) {
        drafts.remove(at);
    }
}

/// What kind of list work was put on. Without room for it, it is taken for one
/// that works at once.
fn list_kind(list: u64, open: &Open, world: &mut World) -> ListKind {
    let (handles, room) = world.handles(open);
    match handles.list(list, room) {
        Some(list) if list.capturing => ListKind::Regular,
        Some(list) => list.kind,
        None => {
            world.losses.add(LossKind::HandlesRefused, 1);
            ListKind::Immediate
        }
    }
}

/// Whether work given to a queue is recorded and not done.
fn is_capturing(queue: u64, open: &Open, world: &mut World) -> bool {
    let known = world.known(open).map(|(handles, _)| handles);
    let list = known.and_then(|handles| handles.lists.get(queue));
    queue != 0 && list.is_some_and(|list| list.capturing)
}

/// A launch of which only the calls are known: outermost first.
fn blank(chain: &[Box<Open>]) -> Launch {
    let first = chain.first();
    let last = chain.last();
    let call = first.map(|open| &open.call);
    let kind = last.map_or(CallKind::Launch, |open| open.known.probe.kind);
    let with_stack = chain.iter().find(|open| open.call.stack != 0).or(first);
    Launch {
        id: 0,
        call: call.map_or(0, |c| c.id),
        submit: None,
        executed: None,
        kind,
        api: first.map_or_else(|| "".into(), |open| open.known.api.clone()),
        function: first.map_or_else(|| "".into(), |open| open.known.function.clone()),
        pid: call.map_or(0, |c| c.pid),
        tid: call.map_or(0, |c| c.tid),
        start_ns: call.map_or(0, |c| c.start_ns),
        end_ns: None,
        submitted_ns: last.map_or(0, |open| open.call.start_ns),
        handed_over_ns: last.map_or(0, |open| open.call.start_ns),
        device: 0,
        queue: 0,
        list: 0,
        kernel: 0,
        kernel_number: 0,
        name: match kind {
            CallKind::Submit => KernelName::Submitted,
            _ => KernelName::Unknown,
        },
        module: None,
        groups: [0; 3],
        local: [0; 3],
        bytes: 0,
        event: 0,
        correlation: None,
        stack: with_stack.map_or(0, |open| open.call.stack),
        flags: with_stack.map_or(0, |open| open.call.flags),
        driver: None,
    }
}

/// Adds the handles that a call of a chain knows; inner ones are added later and
/// take precedence where they mean something.
fn add_roles(launch: &mut Launch, open: &Open, handles: &mut Handles, room: &mut Room) {
    let slots = &open.known.slots;
    let take = |slot, to: &mut u64| {
        if let Some(handle) = open.handle(slot) {
            *to = handle;
        }
    };
    take(slots.device, &mut launch.device);
    take(slots.event, &mut launch.event);
    take(slots.bytes, &mut launch.bytes);
    if let Some(width) = open.handle(slots.extent[0]) {
        // An extent of 0 lines is one line.
        let lines = |slot| open.handle(slot).unwrap_or(1);
        let [_, height, depth] = slots.extent;
        let area = width.saturating_mul(lines(height));
        launch.bytes = area.saturating_mul(lines(depth));
    }
    if let Some(id) = open.handle(slots.correlation) {
        launch.correlation = Some(id);
    }
    if let Some(queue) = open.handle(slots.queue) {
        launch.queue = queue;
        let device = handles.queues.get(queue).map_or(0, |q| q.device);
        launch.device = if device == 0 { launch.device } else { device };
    }
    if let Some(handle) = open.handle(slots.list) {
        if open.handle(slots.queue).is_none() {
            // The outer API's queue is not what this list belongs to.
            launch.queue = 0;
        }
        let list = handles.lists.get(handle);
        if list.is_some() || handles.lists.get(launch.list).is_none() {
            launch.list = handle;
        }
        let device = list.map_or(0, |list| list.device);
        launch.device = if device == 0 { launch.device } else { device };
    }
    if let Some(name) = &open.name {
        launch.name = KernelName::Known(name.clone());
    }
    if let Some(kernel) = open.handle(slots.kernel) {
        add_kernel(launch, kernel, handles, room);
    }
}

fn add_kernel(launch: &mut Launch, handle: u64, handles: &mut Handles, room: &mut Room) {
    launch.kernel = handle;
    let Some(kernel) = handles.kernel(handle, room) else {
        return;
    };
    launch.kernel_number = kernel.number;
    let name = kernel.name.of_kernel(handle);
    let is_known = |name: &KernelName| matches!(name, KernelName::Known(_));
    if is_known(&name) || !is_known(&launch.name) {
        launch.name = name;
    }
    if kernel.local != [0; 3] {
        launch.local = kernel.local;
    }
    if let Some(module) = &kernel.module {
        launch.module = Some(module.clone());
    }
}

/// Adds the sizes that a call knows.
fn add_sizes(launch: &mut Launch, open: &Open) {
    let slots = &open.known.slots;
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
    let local = either(values(slots.local), array(open.known.tags.local));
    let global = either(values(slots.global), array(open.known.tags.global));
    launch.local = either(local, launch.local);
    launch.groups = either(groups, launch.groups);
    if groups == [0; 3] && global != [0; 3] && !launch.local.contains(&0) {
        let mut n = global
            .iter()
            .zip(launch.local)
            .map(|(&all, one)| all.div_ceil(one));
        launch.groups = [(); 3].map(|()| n.next().unwrap_or(0));
    }
}

/// Names a copy, a fill or a barrier after what it does.
fn name_operation(launch: &mut Launch, chain: &[Box<Open>], handles: &Handles, words: &Words) {
    let name = match launch.kind {
        CallKind::Copy if innermost(chain, |o| o.known.operation.as_ref()).is_some() => {
            innermost(chain, |open| open.known.operation.as_ref())
        }
        CallKind::Copy => {
            let (from, to) = copies(chain, handles);
            words
                .copies
                .get(from as usize)
                .and_then(|row| row.get(to as usize))
        }
        CallKind::Fill => {
            let to = innermost(chain, |open| open.handle(open.known.slots.dst));
            let memory = to.map_or(Memory::Unknown, |to| handles.ranges.memory(to));
            words.fills.get(memory as usize)
        }
        CallKind::Barrier => Some(&words.barrier),
        _ => None,
    };
    if let Some(name) = name {
        launch.name = KernelName::Known(name.clone());
    }
}

/// The names of operations, made once.
#[derive(Debug)]
pub(super) struct Words {
    copies: [[Rc<str>; 4]; 4],
    fills: [Rc<str>; 4],
    barrier: Rc<str>,
}

impl Default for Words {
    fn default() -> Self {
        let letters = Memory::ALL.map(Memory::letter);
        Self {
            copies: letters.map(|from| letters.map(|to| format!("Memcpy ({from}2{to})").into())),
            fills: letters.map(|to| format!("Memset ({to})").into()),
            barrier: "Barrier".into(),
        }
    }
}

/// From the innermost call of a chain that knows.
fn innermost<'a, T: 'a>(chain: &'a [Box<Open>], know: impl Fn(&'a Open) -> Option<T>) -> Option<T> {
    chain.iter().rev().find_map(|open| know(open))
}

/// Where a copy comes from and goes to: by the API, else by how the addresses were allocated.
fn copies(chain: &[Box<Open>], handles: &Handles) -> (Memory, Memory) {
    let said = innermost(chain, direction);
    let side = |side: usize| {
        let by_name = innermost(chain, |open| open.known.letters[side]);
        let address = innermost(chain, |open| {
            let slots = &open.known.slots;
            open.handle([slots.src, slots.dst][side])
        });
        let by_address = || handles.ranges.memory(address.unwrap_or(0));
        by_name.unwrap_or_else(by_address)
    };
    said.unwrap_or_else(|| (side(0), side(1)))
}

/// The direction argument of CUDA's and HIP's copies.
fn direction(open: &Open) -> Option<(Memory, Memory)> {
    use Memory::{Device, Host};
    match open.value(open.known.slots.direction)? {
        0 => Some((Host, Host)),
        1 => Some((Host, Device)),
        2 => Some((Device, Host)),
        3 => Some((Device, Device)),
        _ => None,
    }
}
