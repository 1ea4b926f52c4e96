//! Executed command lists: each execution launches what is on them.

use super::{
    GraphExecution, KernelName, TrackedLaunch,
    handles::{CommandList, ListKind},
    open::Submitted,
    state::TrackerState,
    thread::CallThread,
};
use aiprof_model::profile::LossKind;

impl CallThread {
    /// Executes the lists of the submitting call at `index`, whose handles have
    /// just arrived.
    pub(super) fn submit(&mut self, index: usize, state: &mut TrackerState) {
        let Some(open) = self.open.get(index) else {
            return;
        };
        let tag = open.meaning.tags.lists;
        let lists: Vec<u64> = open.array(tag).collect();
        let content = tag.and_then(|tag| open.call.content(usize::from(tag)));
        let missing = content.map_or(0, |c| (c.total / 8).saturating_sub(lists.len() as u64));
        self.submit_all(index, lists, missing, state);
    }

    /// Executes the graph of the call at `index`.
    pub(super) fn submit_graph(&mut self, index: usize, state: &mut TrackerState) {
        let Some(open) = self.open.get(index) else {
            return;
        };
        if open.submitted != Submitted::No {
            return;
        }
        let graph = open.handle(open.meaning.slots.graph).unwrap_or(0);
        let is_launch = open.meaning.is_work();
        let known = state
            .known_handles(open)
            .and_then(|(h, _)| h.lists.get(graph));
        if is_launch && known.is_none() {
            // What it launches may be seen inside of it.
            return self.add_own_work(index, state);
        }
        let before = self.pending.len();
        self.submit_all(index, vec![graph], 0, state);
        let launches = self.pending.len().saturating_sub(before);
        if let Some(open) = self.open.get_mut(index).filter(|_| is_launch) {
            let works = u32::try_from(launches).unwrap_or(u32::MAX);
            open.call.work.add(works);
        }
    }

    /// Executes lists, and counts `missing` more that are not known.
    fn submit_all(
        &mut self,
        index: usize,
        lists: Vec<u64>,
        missing: u64,
        state: &mut TrackerState,
    ) {
        let base = self.base(index);
        let around = self.open.get(base..index).unwrap_or_default();
        if around.iter().any(|o| o.submitted == Submitted::Known) {
            // The call around it had handles that meant something.
            self.mark(index, Submitted::Known);
            return;
        }
        let makers: Vec<u64> = around.iter().map(|o| o.call.id).collect();
        self.pending.forget_of(&makers);
        let mut any = Submitted::Unknown;
        for list in lists {
            if self.execute(index, list, state) {
                any = Submitted::Known;
            }
        }
        if missing > 0 {
            self.unknown_lists(index, 0, missing, state);
        }
        self.mark(index, any);
    }

    fn mark(&mut self, index: usize, submitted: Submitted) {
        if let Some(open) = self.open.get_mut(index) {
            open.submitted = submitted;
        }
    }

    /// Executes a list; false if nothing is known to be on it: an inner library may
    /// know it by another handle.
    fn execute(&mut self, index: usize, handle: u64, state: &mut TrackerState) -> bool {
        let template = self.submission(index, handle);
        let Some((mut template, open)) = template.zip(self.open.get(index)) else {
            return false;
        };
        let maker = open.call.id;
        template.executed = open.meaning.executes_graph().then(|| GraphExecution {
            function: template.by.function.clone(),
            tid: template.by.tid,
            start_ns: template.by.start_ns,
            end_ns: None,
        });
        let limit = state.limits.launches_per_call;
        // Not by `state.handles`: the losses are counted meanwhile.
        let handles = state.processes.get_mut(&open.call.pid);
        let queue = handles
            .as_ref()
            .and_then(|h| h.queues.get(template.on.queue));
        template.on.device = queue.copied().unwrap_or(0);
        let list = handles.and_then(|handles| handles.lists.get_mut(handle));
        let Some(list) = list.filter(|list| list.kind != ListKind::Immediate) else {
            self.unknown_lists(index, handle, 1, state);
            return false;
        };
        let unseen = is_unseen(list);
        let any = !list.entries.is_empty();
        for entry in &mut list.entries {
            if std::mem::take(&mut entry.counted) {
                continue;
            }
            let launch = executed(&entry.launch, &template);
            self.pending.push(launch, maker, limit, &mut state.losses);
        }
        state.losses.add(LossKind::LaunchesRefused, list.refused);
        list.kind = ListKind::Regular;
        if unseen {
            self.unknown_lists(index, handle, 1, state);
        }
        any
    }

    /// Stands in for lists of unknown content: they are visible, and counted.
    fn unknown_lists(&mut self, index: usize, handle: u64, n: u64, state: &mut TrackerState) {
        state.losses.add(LossKind::ListsUnknown, n);
        let Some(launch) = self.submission(index, handle) else {
            return;
        };
        let limit = state.limits.launches_per_call;
        let maker = self.open.get(index).map_or(0, |open| open.call.id);
        self.pending.push(launch, maker, limit, &mut state.losses);
    }

    /// The submission of a list by the call at `index`, as a launch of its own.
    fn submission(&self, index: usize, list: u64) -> Option<TrackedLaunch> {
        let base = self.open.get(self.base(index))?;
        let open = self.open.get(index)?;
        let slots = &open.meaning.slots;
        // An immediate list may be what the lists are appended to.
        let queue = open.handle(slots.queue).or(open.handle(slots.list));
        let mut launch = TrackedLaunch::of(
            base.launching(),
            base.meaning.probe.kind,
            KernelName::Submitted,
        );
        launch.submit = Some(base.call.id);
        launch.submitted_ns = open.call.start_ns;
        launch.handed_over_ns = open.call.start_ns;
        launch.on.queue = queue.unwrap_or(0);
        launch.on.list = list;
        Some(launch)
    }
}

/// Nothing was ever seen being put on it, nor that it was made or emptied.
fn is_unseen(list: &CommandList) -> bool {
    list.kind == ListKind::Undecided && list.entries.is_empty()
}

fn executed(entry: &TrackedLaunch, submission: &TrackedLaunch) -> TrackedLaunch {
    let mut launch = entry.clone();
    launch.submit = submission.submit;
    launch.executed = submission.executed.clone();
    launch.submitted_ns = submission.submitted_ns;
    launch.on.queue = submission.on.queue;
    if launch.on.device == 0 {
        launch.on.device = submission.on.device;
    }
    launch
}
