//! Recorded lists: executed, emptied, gone.

use super::abi::Handle;
use super::state::{AwaitedCommand, MOST_JOBS, ProgramState};
use crate::ffi;
use crate::timing::{UNTIMED_AMBIGUOUS, UNTIMED_EVENT, UNTIMED_ROOM};

impl ProgramState {
    /// Recorded lists are about to be executed.
    pub(super) fn execute(&mut self, lists: &[Handle], target: usize, stream: u64, fence: usize) {
        for list in lists {
            let key = *list as usize;
            let Some(list) = self.lists.get_mut(&key) else {
                continue;
            };
            list.last = [target, fence];
            let (context, device) = (list.context, list.device);
            let submit_ns = ffi::now();
            for at in 0..list.commands.len() {
                self.execute_one(key, at, (context, device, stream, submit_ns));
            }
        }
    }

    pub(super) fn execute_one(
        &mut self,
        key: usize,
        at: usize,
        (context, device, stream, submit_ns): (usize, usize, u64, u64),
    ) {
        let command = |state: &Self| state.lists.get(&key)?.commands.get(at).copied();
        let Some(before) = command(self) else {
            return;
        };
        let mut is_deferred = false;
        if let Some(job) = before.job {
            let deferred = self.jobs.get(&job).is_some_and(|job| job.is_deferred);
            if deferred || !self.read(job) {
                // It runs, or ran, more than once until its event is read: the last time
                // alone can be known, when all is over.
                self.jobs.remove(&job);
                if let Some(event) = self.events.get_mut(&before.event) {
                    event.job = None;
                }
                self.count_untimed(UNTIMED_AMBIGUOUS, 1);
                is_deferred = true;
            }
        }
        let job = AwaitedCommand {
            event: before.event,
            is_own: before.is_own,
            context,
            device,
            stream,
            submit_ns,
            work: Some((before.work, before.correlation)),
            command: Some((key, at)),
            is_deferred,
            is_taken: false,
            ticks: None,
        };
        let id = match self.jobs.len() < MOST_JOBS {
            true => self.arm(job),
            false => {
                self.count_untimed(UNTIMED_ROOM, 1);
                None
            }
        };
        if is_deferred && id.is_some() {
            self.deferred.insert(key);
        }
        let list = self.lists.get_mut(&key);
        if let Some(command) = list.and_then(|list| list.commands.get_mut(at)) {
            command.job = id;
        }
    }

    /// Executing failed: nothing was submitted.
    pub(super) fn not_executed(&mut self, lists: &[Handle]) {
        for list in lists {
            let commands = self.lists.get(&(*list as usize));
            let jobs = commands.into_iter().flat_map(|list| &list.commands);
            let ids: Vec<u64> = jobs.filter_map(|command| command.job).collect();
            for id in ids {
                // A job of an earlier execution is gone: it was read, or counted.
                if let Some(job) = self.jobs.remove(&id) {
                    self.unlink(&job);
                }
            }
        }
    }

    /// All that was submitted to a queue, an immediate list, or before a fence is over.
    pub(super) fn over(&mut self, target: usize) {
        if self.deferred.is_empty() {
            return;
        }
        let lists: Vec<usize> = self.deferred.iter().copied().collect();
        for key in lists {
            let is_over = self
                .lists
                .get(&key)
                .is_none_or(|l| l.last.contains(&target));
            if is_over {
                self.settle(key);
            }
        }
    }

    /// Nothing of a recorded list runs any more: reads what is awaited of it.
    pub(super) fn settle(&mut self, key: usize) {
        self.deferred.remove(&key);
        let commands = self.lists.get(&key).map(|list| list.commands.iter());
        let ids: Vec<u64> = commands
            .into_iter()
            .flatten()
            .filter_map(|c| c.job)
            .collect();
        for id in ids {
            if !self.read(id)
                && let Some(job) = self.jobs.remove(&id)
            {
                self.unlink(&job);
                self.count_untimed(UNTIMED_AMBIGUOUS, 1);
            }
        }
    }

    /// A list is emptied, or goes.
    pub(super) fn empty_list(&mut self, list: Handle, goes: bool) {
        let key = list as usize;
        self.settle(key);
        let Some(list) = self.lists.get_mut(&key) else {
            return;
        };
        let context = list.context;
        let commands = std::mem::take(&mut list.commands);
        self.commands = self.commands.saturating_sub(commands.len());
        if goes {
            self.lists.remove(&key);
        }
        for command in commands.iter().filter(|command| command.is_own) {
            self.give_back(context, command.event);
        }
    }

    /// Commands of a list are executed by others, too: it is timed no more.
    pub(super) fn leave_list(&mut self, list: Handle) {
        let key = list as usize;
        self.settle(key);
        let Some(list) = self.lists.get_mut(&key) else {
            return;
        };
        list.is_timed = false;
        // Their events are theirs from now on.
        let commands = std::mem::take(&mut list.commands);
        self.commands = self.commands.saturating_sub(commands.len());
        self.count_untimed(UNTIMED_EVENT, commands.len() as u64);
    }
}
