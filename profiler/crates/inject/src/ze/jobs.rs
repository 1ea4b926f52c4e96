//! Commands whose times are awaited: from before they are submitted until their event was
//! read.

use super::abi::{Handle, NOT_READY, SUCCESS, Timestamps};
use super::real;
use super::state::{Answered, AwaitedCommand, Done, ProgramState, Taken};
use crate::ffi;
use crate::timing::{UNTIMED_AMBIGUOUS, UNTIMED_EVENT, UNTIMED_ROOM};

impl ProgramState {
    /// Awaits the times of a command that is about to be submitted. `None`: its times
    /// could not be distinguished from those of others; that is counted.
    pub(super) fn arm(&mut self, job: AwaitedCommand) -> Option<u64> {
        if !job.is_own {
            let known = self.events.get(&job.event).copied()?;
            // SAFETY: an event of the program's, which it is about to use.
            let is_set = || unsafe { real::event_status(job.event as Handle) } == SUCCESS;
            if let Some(other) = known.job {
                // Signalled for two commands: neither is known.
                self.read(other);
                if let Some(left) = self.jobs.remove(&other) {
                    self.unlink(&left);
                    self.count_untimed(UNTIMED_AMBIGUOUS, 1);
                    self.spoil(job.event);
                }
            }
            let is_spoiled = self.events.get(&job.event).is_none_or(|e| e.is_spoiled);
            if is_spoiled || is_set() {
                self.count_untimed(UNTIMED_AMBIGUOUS, 1);
                return None;
            }
        }
        self.next_job += 1;
        let id = self.next_job;
        if let Some(event) = self.events.get_mut(&job.event).filter(|_| !job.is_own) {
            event.job = Some(id);
        }
        self.jobs.insert(id, job);
        Some(id)
    }

    /// Gives an event of the helper's own back: it will not be signalled any more.
    pub(super) fn give_back(&mut self, context: usize, event: usize) {
        // SAFETY: an event of the helper's own.
        if unsafe { real::event_reset(event as Handle) } == SUCCESS
            && let Some(context) = self.contexts.get_mut(&context)
        {
            context.free.push(event);
        }
    }

    /// A job is over: its event, and its command, have none.
    pub(super) fn unlink(&mut self, job: &AwaitedCommand) {
        if !job.is_own {
            if let Some(event) = self.events.get_mut(&job.event) {
                event.job = None;
            }
        } else if job.command.is_none() {
            self.give_back(job.context, job.event);
        } else {
            // SAFETY: an event of the helper's own, which is signalled or not used.
            unsafe { real::event_reset(job.event as Handle) };
        }
        let command = job.command.and_then(|(list, at)| {
            let list = self.lists.get_mut(&list)?;
            list.commands.get_mut(at)
        });
        if let Some(command) = command {
            command.job = None;
        }
    }

    /// Reads a job's times if they are there. `true`: it waits no more.
    pub(super) fn read(&mut self, id: u64) -> bool {
        let Some(job) = self.jobs.get_mut(&id) else {
            return true;
        };
        if job.ticks.is_some() || job.is_taken {
            return false;
        }
        let mut times = Timestamps::default();
        // SAFETY: an event that is there: the program's are forgotten when they go.
        match unsafe { real::event_times(job.event as Handle, &raw mut times) } {
            SUCCESS => {
                job.ticks = Some((times.global_start, times.global_end, ffi::now()));
                let copy = *job;
                if copy.work.is_some() {
                    self.complete(id);
                } else if let Some(event) = self.events.get_mut(&copy.event) {
                    // The call that appends it has not returned yet.
                    event.job = None;
                }
                true
            }
            NOT_READY => false,
            _ => {
                let job = *job;
                self.jobs.remove(&id);
                self.unlink(&job);
                self.count_untimed(UNTIMED_EVENT, 1);
                true
            }
        }
    }

    /// Times and work of a job are known.
    pub(super) fn complete(&mut self, id: u64) {
        if let Some(job) = self.finish(id) {
            self.unlink(&job);
        }
    }

    /// Hands a job's times on. Gives the job, which waits no more.
    pub(super) fn finish(&mut self, id: u64) -> Option<AwaitedCommand> {
        let job = self.jobs.remove(&id)?;
        let Some(((work, correlation), (start, end, read_ns))) = job.work.zip(job.ticks) else {
            return Some(job);
        };
        let context = self.contexts.get(&job.context).map_or(0, |c| c.number);
        let done = Done {
            work,
            correlation,
            context,
            stream: job.stream,
            ticks: (start, end),
            submit_ns: job.submit_ns,
            read_ns,
        };
        let device = self.devices.get_mut(&job.device);
        if !device.is_some_and(|device| device.add(done)) {
            self.count_untimed(UNTIMED_ROOM, 1);
        }
        Some(job)
    }

    /// Reads the times that exist of the jobs behind `from`, looking at `most` jobs. Returns
    /// the last one that was looked at, 0 at the end, and how many had times.
    pub(super) fn read_some(&mut self, from: u64, most: usize) -> (u64, usize) {
        let waiting = self.jobs.range(from + 1..).take(most);
        let ids: Vec<u64> = waiting
            .filter(|(_, job)| !job.is_deferred && job.work.is_some())
            .map(|(id, _)| *id)
            .collect();
        let looked = self.jobs.range(from + 1..).take(most).last();
        let last = looked.map_or(0, |(id, _)| *id);
        let read = ids.into_iter().filter(|id| self.read(*id)).count();
        (last, read)
    }

    /// Takes the jobs behind `from` that are on immediate lists and have events of the
    /// helper's own. Until they are [answered](Self::answered), other threads do not look at
    /// these events; destroying their context waits for that. Returns the last one that was
    /// looked at, 0 at the end.
    pub(super) fn take_own(&mut self, from: u64, most: usize, taken: &mut Vec<Taken>) -> u64 {
        let mut last = 0;
        for (id, job) in self.jobs.range_mut(from + 1..).take(most) {
            last = *id;
            if job.is_own && job.command.is_none() && job.work.is_some() && job.ticks.is_none() {
                job.is_taken = true;
                taken.push((*id, job.event));
            }
        }
        last
    }

    /// Enters the times that the events of taken jobs had; events with times were reset.
    pub(super) fn answered(&mut self, answers: &[Answered]) {
        for (id, ticks) in answers {
            let Some(job) = self.jobs.get_mut(id) else {
                continue;
            };
            job.is_taken = false;
            if ticks.is_none() {
                continue;
            }
            job.ticks = *ticks;
            let (context, event) = (job.context, job.event);
            self.finish(*id);
            if let Some(context) = self.contexts.get_mut(&context) {
                context.free.push(event);
            }
        }
    }

    /// Jobs that wait.
    pub(super) fn waiting(&self) -> usize {
        self.jobs.len()
    }
}
