//! Random programs whose launches are known: what goes in comes out.
//!
//! Threads of one process take turns between any two events. What a thread works
//! on, no other thread ends meanwhile, as in a correct program; handles are used
//! again as soon as the destroying call is inside.

use super::hostile::Random;
use crate::correlate::TrackerLimits;
use crate::correlate::script::{DRIVER, LOADER, Script, TOP, UR};
use aiprof_model::{probes::Probe, profile::LossKind};
use std::collections::{BTreeMap, VecDeque};

const APPEND: &str = "zeCommandListAppendLaunchKernel";
const COPY: &str = "zeCommandListAppendMemoryCopy";
const EXECUTE: &str = "zeCommandQueueExecuteCommandLists";
const FAILED: u64 = 0x7000_0001;

/// What a thread will do next.
#[derive(Clone, Debug)]
enum Step {
    Enter(&'static str, u32, Vec<u64>),
    Jump(&'static str, u32, Vec<u64>),
    Text(&'static str, String),
    Array(&'static str, Vec<u64>),
    Leave(&'static str, u32, u64, Vec<u64>),
    /// The call is left, and its exit is not seen.
    Vanish,
    /// A handle can be given to a new kernel from here on.
    Freed(u64),
    /// A kernel or list is not worked on any more.
    Unlock(u64),
    /// What the program did: a launch by its name and the function called.
    Launched(String, &'static str),
    /// Kernel handle now stands for this name.
    Created(u64, String),
    /// The program's own depth changes between its calls.
    Depth(u64),
}

/// What is true of the program.
#[derive(Default)]
struct Truth {
    kernels: BTreeMap<u64, String>,
    free: Vec<u64>,
    /// Users of kernels and lists.
    locks: BTreeMap<u64, u32>,
    /// What is on each regular list: the kernel's name and the function called.
    lists: BTreeMap<u64, Vec<(String, &'static str)>>,
    launched: BTreeMap<(String, String), u64>,
    made: u64,
}

struct Worker {
    tid: u32,
    sp: u64,
    todo: VecDeque<Step>,
}

struct TrackerState {
    random: Random,
    truth: Truth,
    /// Exits of launches and copies are probed.
    exits: bool,
    /// All launches are made through the outer API, whose exits are not probed
    /// either.
    outer_only: bool,
}

const IMMEDIATE: u64 = 0x1000;
const QUEUE: u64 = 0x2000;
const REGULAR: [u64; 3] = [0x3001, 0x3002, 0x3003];

impl TrackerState {
    fn chance(&mut self, percent: u64) -> bool {
        self.random.below(100) < percent
    }

    fn lock(&mut self, handle: u64) {
        *self.truth.locks.entry(handle).or_default() += 1;
    }

    fn is_locked(&self, handle: u64) -> bool {
        self.truth.locks.get(&handle).is_some_and(|&n| n > 0)
    }

    /// A kernel to launch.
    fn pick(&mut self) -> Option<(u64, String)> {
        let n = self.truth.kernels.len() as u64;
        let at = (n > 0).then(|| self.random.below(n))?;
        let (&handle, name) = self.truth.kernels.iter().nth(at as usize)?;
        Some((handle, name.clone()))
    }

    /// Loader and perhaps driver, nested or by a jump, around `inside`.
    fn layers(&mut self, function: &'static str, args: &[u64], inside: Vec<Step>) -> Vec<Step> {
        let result = 0;
        let mut steps = vec![Step::Enter(function, LOADER, args.to_vec())];
        let data: Vec<Step> = inside;
        steps.extend(data.iter().cloned());
        let exit = |library| match self.exits {
            true => Step::Leave(function, library, result, vec![]),
            false => Step::Vanish,
        };
        match self.random.below(3) {
            0 => steps.push(exit(LOADER)),
            1 => {
                steps.push(Step::Jump(function, DRIVER, args.to_vec()));
                steps.extend(data);
                steps.push(exit(DRIVER));
            }
            _ => {
                steps.push(Step::Enter(function, DRIVER, args.to_vec()));
                steps.extend(data);
                steps.push(exit(DRIVER));
                steps.push(exit(LOADER));
            }
        }
        steps
    }

    /// A launch on a list, perhaps from the outer API, perhaps with a copy first.
    fn launch(&mut self) -> Vec<Step> {
        let Some((kernel, name)) = self.pick() else {
            return vec![];
        };
        let regular = self.chance(40);
        let list = if regular {
            REGULAR[self.random.below(3) as usize]
        } else {
            IMMEDIATE
        };
        if regular && self.is_locked(list) {
            return vec![];
        }
        self.lock(kernel);
        let outer = self.outer_only || self.chance(50);
        let function = if outer {
            "urEnqueueKernelLaunch"
        } else {
            APPEND
        };
        let mut steps = Vec::new();
        if outer {
            steps.push(Step::Enter(function, UR, vec![0x99, 0x98]));
            if self.chance(30) {
                steps.extend(self.layers(COPY, &[IMMEDIATE, 1, 2, 3], vec![]));
                steps.push(Step::Launched("Memcpy (M2M)".into(), COPY));
            }
            if self.chance(20) && self.exits {
                steps.push(Step::Enter(APPEND, LOADER, vec![list, kernel]));
                steps.push(Step::Leave(APPEND, LOADER, FAILED, vec![]));
            }
        }
        steps.extend(self.layers(APPEND, &[list, kernel], vec![]));
        match outer {
            true if self.outer_only => steps.push(Step::Vanish),
            true => steps.push(Step::Leave(function, UR, 0, vec![])),
            false => {}
        }
        if regular {
            self.lock(list);
            let entry = (name, function);
            self.truth.lists.entry(list).or_default().push(entry);
            steps.push(Step::Unlock(list));
        } else {
            steps.push(Step::Launched(name, function));
        }
        steps.push(Step::Unlock(kernel));
        steps
    }

    fn execute(&mut self) -> Vec<Step> {
        let lists: Vec<u64> = REGULAR
            .into_iter()
            .filter(|&l| !self.is_locked(l))
            .collect();
        if lists.is_empty() {
            return vec![];
        }
        let times = 1 + self.random.below(3);
        let mut steps = Vec::new();
        for &list in &lists {
            self.lock(list);
        }
        for _ in 0..times {
            let data = vec![Step::Array(EXECUTE, lists.clone())];
            steps.extend(self.layers(EXECUTE, &[QUEUE], data));
            for &list in &lists {
                let on_it = self.truth.lists.get(&list).into_iter().flatten();
                steps.extend(on_it.map(|(name, f)| Step::Launched(name.clone(), f)));
            }
        }
        for &list in &lists {
            if self.chance(50) {
                steps.push(Step::Enter("zeCommandListReset", LOADER, vec![list]));
                steps.push(Step::Leave("zeCommandListReset", LOADER, 0, vec![]));
                self.truth.lists.remove(&list);
            }
            steps.push(Step::Unlock(list));
        }
        steps
    }

    fn create(&mut self) -> Vec<Step> {
        const CREATE: &str = "zeKernelCreate";
        self.truth.made += 1;
        let name = format!("kernel{}", self.truth.made);
        let handle = self.truth.free.pop().unwrap_or(0x5000 + self.truth.made);
        let mut steps = Vec::new();
        let text = || Step::Text(CREATE, name.clone());
        steps.push(Step::Enter(CREATE, LOADER, vec![1]));
        steps.push(text());
        if self.chance(50) {
            steps.push(Step::Enter(CREATE, DRIVER, vec![1]));
            steps.push(text());
            steps.push(Step::Leave(CREATE, DRIVER, 0, vec![handle]));
        }
        steps.push(Step::Leave(CREATE, LOADER, 0, vec![handle]));
        steps.push(Step::Created(handle, name));
        steps
    }

    fn destroy(&mut self) -> Vec<Step> {
        const DESTROY: &str = "zeKernelDestroy";
        let Some((kernel, _)) = self.pick().filter(|(kernel, _)| !self.is_locked(*kernel)) else {
            return vec![];
        };
        self.truth.kernels.remove(&kernel);
        vec![
            Step::Enter(DESTROY, LOADER, vec![kernel]),
            Step::Freed(kernel),
            Step::Leave(DESTROY, LOADER, 0, vec![]),
        ]
    }

    fn plan(&mut self) -> Vec<Step> {
        let mut steps = match self.random.below(10) {
            0..=4 => self.launch(),
            5 => self.execute(),
            6 => self.destroy(),
            _ => self.create(),
        };
        if self.chance(20) {
            let wait = "urQueueFinish";
            steps.insert(0, Step::Enter(wait, UR, vec![7]));
            steps.push(Step::Leave(wait, UR, 0, vec![]));
        }
        let depth = self.random.below(500) * 16;
        steps.insert(0, Step::Depth(depth));
        steps
    }
}

/// Does one step of a thread; what the program did becomes true.
fn step(script: &mut Script, worker: &mut Worker, truth: &mut Truth, step: Step) {
    script.tid = worker.tid;
    script.sp = worker.sp;
    match step {
        Step::Enter(function, library, values) => script.enter(function, library, &values),
        Step::Jump(function, library, values) => script.jump(function, library, &values),
        Step::Text(function, text) => script.data(function, 0, text.as_bytes(), 0),
        Step::Array(function, numbers) => script.array(function, 0, &numbers),
        Step::Leave(function, library, result, out) => {
            script.leave(function, library, result, &out);
        }
        Step::Vanish => script.vanish(),
        Step::Freed(handle) => truth.free.push(handle),
        Step::Unlock(handle) => *truth.locks.entry(handle).or_default() -= 1,
        Step::Launched(name, function) => {
            *truth.launched.entry((name, function.into())).or_default() += 1;
        }
        Step::Created(handle, name) => drop(truth.kernels.insert(handle, name)),
        Step::Depth(depth) => script.sp = TOP - depth,
    }
    worker.sp = script.sp;
}

fn probes(exits: bool, outer_only: bool) -> Vec<Probe> {
    let mut probes = crate::correlate::script::probes();
    for probe in &mut probes {
        if [APPEND, COPY, EXECUTE].contains(&probe.function.as_str()) {
            probe.has_exit = exits;
        }
        probe.has_exit &= !(outer_only && probe.function == "urEnqueueKernelLaunch");
    }
    probes
}

fn run(seed: u64, exits: bool, outer_only: bool) {
    let mut script = Script::with(TrackerLimits::default(), probes(exits, outer_only));
    script.call("zeCommandQueueCreate", &[1, 2], &[QUEUE]);
    script.call("zeCommandListCreateImmediate", &[1, 2], &[IMMEDIATE]);
    for list in REGULAR {
        script.call("zeCommandListCreate", &[1, 2], &[list]);
    }
    let mut state = TrackerState {
        random: Random::new(seed),
        truth: Truth::default(),
        exits,
        outer_only,
    };
    let mut workers: Vec<Worker> = (0..4)
        .map(|i| Worker {
            tid: 10 + i,
            sp: TOP,
            todo: VecDeque::new(),
        })
        .collect();
    for round in 0..6000 {
        let at = state.random.below(workers.len() as u64) as usize;
        let worker = &mut workers[at];
        if worker.todo.is_empty() && round < 5000 {
            worker.todo = state.plan().into();
        }
        if let Some(next) = worker.todo.pop_front() {
            step(&mut script, worker, &mut state.truth, next);
        }
        // Data come right behind their call.
        let is_data = |step: &Step| matches!(step, Step::Text(..) | Step::Array(..));
        while let Some(data) = worker.todo.pop_front_if(|next| is_data(next)) {
            step(&mut script, worker, &mut state.truth, data);
        }
    }
    for worker in &mut workers {
        while let Some(next) = worker.todo.pop_front() {
            step(&mut script, worker, &mut state.truth, next);
        }
    }
    script.finish();
    let mut found: BTreeMap<(String, String), u64> = BTreeMap::new();
    for launch in &script.told.launches {
        let key = (launch.work.name.to_string(), launch.by.function.to_string());
        *found.entry(key).or_default() += 1;
    }
    assert!(found.values().sum::<u64>() > 200, "seed {seed}: {found:?}");
    let different: Vec<_> = found
        .iter()
        .map(|(key, n)| (key, *n, state.truth.launched.get(key).copied().unwrap_or(0)))
        .filter(|(_, found, made)| found != made)
        .collect();
    assert!(
        different.is_empty(),
        "seed {seed}, exits: {exits}: {different:?}"
    );
    assert_eq!(found.len(), state.truth.launched.len(), "seed {seed}");
    let losses = script.tracker.take_losses();
    let mut unexpected = losses
        .iter()
        .filter(|(kind, _)| *kind != LossKind::CallsNoEnd);
    assert_eq!(unexpected.next(), None, "seed {seed}");
    let tops = script.told.calls.iter().filter(|c| !c.nesting.is_part);
    let works: u64 = tops.map(|c| u64::from(c.work.launches)).sum();
    let executed = script
        .told
        .launches
        .iter()
        .filter(|l| l.submit.is_some())
        .count() as u64;
    let on_lists = works - (script.told.launches.len() as u64 - executed);
    assert!(on_lists > 10, "seed {seed}: {on_lists} put on lists");
}

#[test]
fn launches_in_are_launches_out() {
    for seed in 1..40 {
        run(seed, true, false);
    }
}

#[test]
fn also_where_the_exits_of_launches_are_not_probed() {
    for seed in 1..40 {
        run(seed, false, false);
        run(seed, false, true);
    }
}
