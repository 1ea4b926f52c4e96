//! Modules of a model (`torch.nn.Module`), with their time on the host and on devices.
//!
//! PyTorch writes each call of a module as a Python frame, `nn.Module: Linear_0`, if a profile has
//! stacks (`with_stack=True`). The number counts the modules of a class in the order of their first
//! calls. TorchScript has no frames. There, each operator names its modules (`Module Hierarchy`,
//! `with_modules=True`), `TOP(Net)::forward.fc(Linear)::forward`, and calls are not known.
//!
//! A module that runs again in the backward pass (activation checkpointing) is the one of the
//! forward pass: a number is one module's. Such a call has no modules round it, as the model's own
//! call is over, but its frame is in a backward operator.
//!
//! Work of a device belongs to the innermost module round the call that launched it. Work that a
//! backward operator launched belongs to the module of the forward operator
//! (see `torch::pairs`).

use super::calls::TorchCalls;
use super::pairs::Partners;
use crate::findings::short;
use crate::work::{RankWork, SpanRole, WorkIndex, name_of};
use aiprof_model::timeline::{Event, NONE, Time, Timeline, TrackId};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::Reverse;

/// What the name of a module's frame begins with.
pub(crate) const MODULE: &str = "nn.Module: ";
/// Kernels that a module is shown with.
const MOST_KERNELS: usize = 3;
/// Modules round a module that are shown, the innermost; as many are looked at.
const MOST_PARENTS: usize = 64;
/// Modules that an operator may name: an operator's time goes to each of them.
const MOST_NAMED: usize = 256;

/// A module at one place in the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModuleRow {
    /// Its rank.
    pub rank: u32,
    /// Its name: class and number, or the name that its parent has for it.
    pub name: String,
    /// The modules round it, outermost first, with `/` between; empty: none.
    pub parents: String,
    /// How often it was called; `None`: not known.
    pub calls: Option<u64>,
    /// Host time with that of the modules in it, and without, microseconds.
    pub host_us: f64,
    /// See above.
    pub self_host_us: f64,
    /// Time of the device work that was launched in it, and of that not launched in a module in it,
    /// microseconds.
    pub device_us: f64,
    /// See above.
    pub self_device_us: f64,
    /// Time of the device work that its backward operators launched, also those of modules in it,
    /// microseconds.
    pub backward_us: f64,
    /// Share of `device_us` and `backward_us` in the time of all work of the rank, percent; `None`:
    /// there is no work.
    pub share: Option<f64>,
    /// Names of the first different kernels that it launched itself, cut.
    pub kernels: Vec<String>,
}

/// The modules of a timeline.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModuleReport {
    /// By rank; those with most device time first.
    pub rows: Vec<ModuleRow>,
    /// Time of device work that belongs to no module, microseconds.
    pub outside_us: f64,
}

impl ModuleReport {
    /// Those of a timeline.
    pub fn new(timeline: &Timeline, index: &WorkIndex) -> Self {
        let mut frames = frames(timeline, index);
        let backward = match frames.is_empty() {
            true => FxHashMap::default(),
            false => backward(timeline),
        };
        let mut report = Self::default();
        for (at, rank) in index.ranks.iter().enumerate() {
            let frames = frames.remove(&at).unwrap_or_default();
            let mut tree = ModuleTree::default();
            let owners = ModuleWalk::new(timeline, index, &backward, &mut tree).of(rank, frames);
            report.outside_us += tree.add_work(timeline, rank, &owners);
            if !tree.nodes.is_empty() {
                report.rows.extend(tree.rows(rank));
            }
        }
        report
    }
}

/// The frames of modules, by the number of their rank in the index.
pub(crate) fn frames(timeline: &Timeline, index: &WorkIndex) -> FxHashMap<usize, Vec<u32>> {
    let key = |event: &Event| (timeline.job(event), timeline.rank(event));
    let mut ranks = FxHashMap::default();
    for (at, rank) in index.ranks.iter().enumerate() {
        let host = rank.host.iter();
        let host = host.filter_map(|event| timeline.events.get(*event as usize));
        ranks.extend(host.map(|event| (key(event), at)));
    }
    let mut frames: FxHashMap<usize, Vec<u32>> = FxHashMap::default();
    for (at, event) in (0u32..).zip(&timeline.events) {
        let is_frame = event.is_slice() && !event.dropped && frame(timeline, event).is_some();
        if let Some(rank) = ranks.get(&key(event)).filter(|_| is_frame) {
            frames.entry(*rank).or_default().push(at);
        }
    }
    frames
}

/// The module that an event is a call of.
fn frame<'t>(timeline: &'t Timeline, event: &Event) -> Option<&'t str> {
    let is_python = timeline.name(event.cat) == "python_function";
    is_python.then(|| name_of(timeline, event).strip_prefix(MODULE))?
}

/// Events of backward operators, with those of the forward operators that they belong to.
fn backward(timeline: &Timeline) -> FxHashMap<u32, u32> {
    let calls = TorchCalls::new(timeline);
    let partners = Partners::new(timeline, &calls);
    let event = |call: usize| u32::try_from(calls.all.get(call)?.event).ok();
    let pairs = partners.backward.iter().filter_map(|one| {
        let forward = partners.forward_of(one)?;
        Some((event(one.call)?, event(forward.call)?))
    });
    pairs.collect()
}

/// The names of `TOP(Net)::forward.SELF(Net)::run.fc(Linear)::forward`: `Net`, `fc`. What is
/// written another way is read as names with a dot between each.
fn hierarchy(text: &str) -> impl Iterator<Item = &str> {
    let parts = text.split('.').map(|part| {
        let module = part.split("::").next().unwrap_or(part);
        match module.split_once('(') {
            Some(("TOP", class)) => class.trim_end_matches(')'),
            Some(("SELF", _)) => "",
            Some((name, _)) => name,
            None => module,
        }
    });
    parts.filter(|name| !name.is_empty())
}

/// What a call is in.
#[derive(Clone, Copy)]
enum Owner {
    /// A module.
    Module(usize),
    /// The backward operator of this forward operator.
    Backward(u32),
}

/// What is known of the calls of a rank.
#[derive(Default)]
struct Owners {
    /// By the call's event.
    of_calls: FxHashMap<u32, Owner>,
    /// Modules of forward operators, by the operator's event.
    of_operators: FxHashMap<u32, usize>,
}

/// A module, or an operator, that is open.
struct OpenModule {
    end: Time,
    owner: Owner,
}

/// Goes through the spans of a rank's threads, in the order of begin.
struct ModuleWalk<'w, 't> {
    timeline: &'t Timeline,
    index: &'w WorkIndex,
    backward: &'w FxHashMap<u32, u32>,
    tree: &'w mut ModuleTree<'t>,
    /// Operators name their modules: there are no frames.
    by_operators: bool,
    /// What is open on each thread, and the thread at hand.
    open: FxHashMap<TrackId, Vec<OpenModule>>,
    track: TrackId,
    owners: Owners,
}

impl<'w, 't> ModuleWalk<'w, 't> {
    fn new(
        timeline: &'t Timeline,
        index: &'w WorkIndex,
        backward: &'w FxHashMap<u32, u32>,
        tree: &'w mut ModuleTree<'t>,
    ) -> Self {
        Self {
            timeline,
            index,
            backward,
            tree,
            by_operators: false,
            open: FxHashMap::default(),
            track: TrackId(NONE),
            owners: Owners::default(),
        }
    }

    fn of(mut self, rank: &RankWork, frames: Vec<u32>) -> Owners {
        self.by_operators = frames.is_empty();
        let timeline = self.timeline;
        let mut spans = frames;
        spans.extend(&rank.host);
        // A frame that begins and ends with an operator is round it: frames come first.
        spans.sort_by_cached_key(|at| {
            let event = timeline.events.get(*at as usize);
            event.map(|event| (event.start, Reverse(event.end()), event.track))
        });
        for at in spans {
            let Some(event) = timeline.events.get(at as usize) else {
                continue;
            };
            self.track = event.track;
            if let Some(open) = self.open.get_mut(&event.track) {
                let is_over =
                    |one: &mut OpenModule| one.end <= event.start && one.end < event.end();
                while open.pop_if(is_over).is_some() {}
            }
            self.span(at, event);
        }
        self.owners
    }

    /// What is open on the thread at hand.
    fn open(&self) -> &[OpenModule] {
        self.open.get(&self.track).map_or(&[], Vec::as_slice)
    }

    fn span(&mut self, at: u32, event: &Event) {
        if let Some(name) = frame(self.timeline, event) {
            let node = match self.again(name) {
                Some(node) => {
                    // A module that runs the backward pass itself has the time already.
                    let outer = match self.open().first().map(|one| one.owner) {
                        Some(Owner::Module(outer)) => Some(outer),
                        _ => None,
                    };
                    self.tree.called_again(outer, node, event.dur());
                    node
                }
                None => {
                    let parent = self.module();
                    let node = self.tree.child(parent, name);
                    self.tree.called(parent, node, event.dur());
                    node
                }
            };
            return self.enter(event, Owner::Module(node));
        }
        match self.index.role(event) {
            SpanRole::Operator => self.operator(at, event),
            SpanRole::Call => {
                let owner = self.open().last().map(|one| one.owner);
                self.owners.of_calls.extend(owner.map(|owner| (at, owner)));
            }
            _ => {}
        }
    }

    fn operator(&mut self, at: u32, event: &Event) {
        let timeline = self.timeline;
        let named = timeline.arg(event, "Module Hierarchy");
        let named = named.filter(|_| self.by_operators).unwrap_or_default();
        let mut leaf = None;
        for name in hierarchy(named.trim_matches('"')).take(MOST_NAMED) {
            leaf = Some(self.tree.child(leaf, name));
        }
        if let Some(node) = leaf {
            self.tree.ran(self.module(), node, event.dur());
            self.enter(event, Owner::Module(node));
        }
        let module = self.module();
        self.owners
            .of_operators
            .extend(module.map(|node| (at, node)));
        if let Some(forward) = self.backward.get(&at) {
            self.enter(event, Owner::Backward(*forward));
        }
    }

    fn enter(&mut self, event: &Event, owner: Owner) {
        let end = event.end();
        let open = self.open.entry(event.track).or_default();
        open.push(OpenModule { end, owner });
    }

    /// The module of the forward pass that is called again, if a backward operator calls it: at the
    /// place round the forward operator, else where it was called first.
    fn again(&self, name: &str) -> Option<usize> {
        let forward = match self.open().last()?.owner {
            Owner::Backward(forward) => forward,
            Owner::Module(_) => return None,
        };
        let around = self.owners.of_operators.get(&forward);
        let mut around = around.into_iter().flat_map(|node| self.tree.above(*node));
        let near = around.by_ref().take(MOST_PARENTS);
        let mut near = near.filter_map(|node| self.tree.named(node, name));
        near.next().or_else(|| self.tree.first.get(name).copied())
    }

    /// The module that is open.
    fn module(&self) -> Option<usize> {
        match self.open().last()?.owner {
            Owner::Module(node) => Some(node),
            Owner::Backward(_) => None,
        }
    }
}

/// Modules in each other.
#[derive(Default)]
struct ModuleTree<'t> {
    /// Those round a module are before it.
    nodes: Vec<ModuleNode<'t>>,
    places: FxHashMap<(Option<usize>, &'t str), usize>,
    /// Where each module was called first.
    first: FxHashMap<&'t str, usize>,
    /// Time of all work of the rank, microseconds.
    all_us: f64,
}

#[derive(Default)]
struct ModuleNode<'t> {
    parent: Option<usize>,
    name: &'t str,
    calls: u64,
    host: f64,
    self_host: f64,
    /// Host time of calls in backward operators: no call of the modules round it has it.
    again: f64,
    device: f64,
    self_device: f64,
    backward: f64,
    kernels: Vec<&'t str>,
}

impl<'t> ModuleTree<'t> {
    fn child(&mut self, parent: Option<usize>, name: &'t str) -> usize {
        let nodes = &mut self.nodes;
        *self.places.entry((parent, name)).or_insert_with(|| {
            nodes.push(ModuleNode {
                parent,
                name,
                ..ModuleNode::default()
            });
            let node = nodes.len() - 1;
            self.first.entry(name).or_insert(node);
            node
        })
    }

    /// The module of a name that is this one or in it.
    fn named(&self, node: usize, name: &str) -> Option<usize> {
        let is_it = self.nodes.get(node)?.name == name;
        let inner = || self.places.get(&(Some(node), name)).copied();
        is_it.then_some(node).or_else(inner)
    }

    /// A module and those round it, from the inside out.
    fn above(&self, node: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(node), |node| self.nodes.get(*node)?.parent)
    }

    /// Notes a call of a module in another.
    fn called(&mut self, parent: Option<usize>, node: usize, us: f64) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.calls += 1;
            node.host += us;
            node.self_host += us;
        }
        self.take_from(parent, us);
    }

    /// Notes a call of a module in a backward operator. The modules round it get its time, unless
    /// one of them is `outer`, whose call it is in.
    fn called_again(&mut self, outer: Option<usize>, node: usize, us: f64) {
        self.called(outer, node, us);
        if let Some(node) = self.nodes.get_mut(node).filter(|_| outer.is_none()) {
            node.again += us;
        }
    }

    /// Notes an operator of a module that ran in one of `outer`: `outer` has its time already.
    fn ran(&mut self, outer: Option<usize>, node: usize, us: f64) {
        let has_it = outer.into_iter().flat_map(|outer| self.above(outer));
        let has_it: FxHashSet<usize> = has_it.collect();
        let all: Vec<usize> = self.above(node).collect();
        for one in all.into_iter().filter(|one| !has_it.contains(one)) {
            if let Some(one) = self.nodes.get_mut(one) {
                one.host += us;
            }
        }
        if let Some(node) = self.nodes.get_mut(node) {
            node.self_host += us;
        }
        self.take_from(outer, us);
    }

    fn take_from(&mut self, node: Option<usize>, us: f64) {
        if let Some(node) = node.and_then(|node| self.nodes.get_mut(node)) {
            node.self_host -= us;
        }
    }

    /// Gives modules the work that they launched; returns the time of the rest, microseconds.
    fn add_work(&mut self, timeline: &'t Timeline, rank: &RankWork, owners: &Owners) -> f64 {
        let mut outside = 0.0;
        for work in &rank.work {
            self.all_us += work.us();
            let node = match owners.of_calls.get(&work.call) {
                Some(Owner::Module(node)) => Some((*node, false)),
                Some(Owner::Backward(forward)) => {
                    let node = owners.of_operators.get(forward);
                    node.map(|node| (*node, true))
                }
                None => None,
            };
            let node = node.and_then(|(node, is)| Some((self.nodes.get_mut(node)?, is)));
            match node {
                Some((node, true)) => node.backward += work.us(),
                Some((node, false)) => {
                    node.device += work.us();
                    node.self_device += work.us();
                    let kernel = timeline.events.get(work.event as usize);
                    node.kernels(kernel.map(|kernel| name_of(timeline, kernel)));
                }
                None => outside += work.us(),
            }
        }
        for at in (0..self.nodes.len()).rev() {
            let node = self.nodes.get(at);
            let sums = node.map(|node| (node.parent, node.device, node.backward, node.again));
            let Some((Some(parent), device, backward, again)) = sums else {
                continue;
            };
            if let Some(parent) = self.nodes.get_mut(parent) {
                parent.device += device;
                parent.backward += backward;
                parent.host += again;
                parent.again += again;
            }
        }
        outside
    }

    fn rows(&self, rank: &RankWork) -> Vec<ModuleRow> {
        let rows = self.nodes.iter().map(|node| {
            let device = node.device + node.backward;
            ModuleRow {
                rank: rank.rank,
                name: node.name.to_owned(),
                parents: self.parents(node),
                calls: (node.calls > 0).then_some(node.calls),
                host_us: node.host,
                self_host_us: node.self_host,
                device_us: node.device,
                self_device_us: node.self_device,
                backward_us: node.backward,
                share: (self.all_us > 0.0).then(|| 100.0 * device / self.all_us),
                kernels: node.kernels.iter().map(|name| short(name)).collect(),
            }
        });
        let mut rows: Vec<_> = rows.collect();
        rows.sort_by(|a, b| {
            let device = |row: &ModuleRow| row.device_us + row.backward_us;
            let order = device(b).total_cmp(&device(a));
            order.then_with(|| b.host_us.total_cmp(&a.host_us))
        });
        rows
    }

    fn parents(&self, node: &ModuleNode<'_>) -> String {
        let all = node
            .parent
            .into_iter()
            .flat_map(|parent| self.above(parent));
        let names = all
            .filter_map(|node| self.nodes.get(node))
            .map(|one| one.name);
        let mut names: Vec<&str> = names.take(MOST_PARENTS + 1).collect();
        if names.len() > MOST_PARENTS {
            names.truncate(MOST_PARENTS);
            names.push("..");
        }
        names.reverse();
        names.join("/")
    }
}

impl<'t> ModuleNode<'t> {
    fn kernels(&mut self, name: Option<&'t str>) {
        let is_new = |name: &&str| !self.kernels.contains(name);
        if self.kernels.len() < MOST_KERNELS {
            let new = name.filter(is_new);
            self.kernels.extend(new);
        }
    }
}

#[cfg(test)]
#[path = "modules_tests.rs"]
mod tests;
