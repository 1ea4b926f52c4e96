//! Where kernels lie on their devices, without the program's help.
//!
//! A device is sampled at addresses. Only the driver knows whose code is there: the address is in
//! its objects behind the kernels' handles. Which word of them it is depends on the driver's build.
//! A thread of its own takes snapshots of what the handles of created and launched kernels lead to.
//! It learns the way to the address from what was sampled (`learn`), or from the addresses that the
//! runtime gave to the program. From then on, this way places every kernel of that build. It places
//! those of programs that have ended by their snapshots.
//!
//! A second thread searches the programs' memory for native code (`code`). This code gives the
//! kernels' sizes, and shows what a driver compiled.
//!
//! What was read is true of the time of reading. It is used only when all that happened until then
//! is known. It is not used for a kernel whose handle had become another kernel's.

mod code;
mod known;
mod learn;
mod snapshot;
mod worker;

use super::late::Build;
use crate::owner;
use aiprof_model::wire::{DeviceStream, Event, KernelNamed, StallWindow};
use aiprof_record::correlate::{KernelEvent, KernelStep};
use learn::Sampled;
use rustc_hash::FxHashMap;
use std::{
    collections::BTreeSet,
    sync::mpsc::{Receiver, Sender},
    time::{Duration, Instant},
};
use worker::{PlaceAnswer, PlaceMessage};

/// Most kernels followed.
const MAX_KERNELS: usize = 1 << 17;
/// Most names of kernels whose creation is not certain.
const MAX_ASSUMED: usize = 16_384;
/// Most addresses that wait to be handed on.
const MAX_SAMPLED: usize = 1 << 16;
/// Most streams.
const MAX_STREAMS: usize = 1024;

/// Finds out where kernels lie.
#[derive(Default)]
pub(crate) struct KernelPlaces {
    /// Kernels that are known, and whether they were launched.
    kernels: FxHashMap<(u32, u64), bool>,
    /// Names of kernels whose creation was not seen to succeed: a later call confirms it.
    assumed: FxHashMap<(u32, u64), String>,
    /// Whether a stream's addresses are relative.
    streams: FxHashMap<u32, bool>,
    sampled: FxHashMap<Sampled, u64>,
    any_launched: bool,
    /// A tick was sent and has not been answered.
    is_busy: bool,
    threads: Option<(Sender<PlaceMessage>, Receiver<PlaceAnswer>)>,
    /// No threads could be started.
    is_off: bool,
}

impl std::fmt::Debug for KernelPlaces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelPlaces")
            .field("kernels", &self.kernels.len())
            .finish_non_exhaustive()
    }
}

impl KernelPlaces {
    /// Something happened to a kernel. `build`: of its process's driver.
    pub(crate) fn kernel(&mut self, event: &KernelEvent, build: impl FnOnce() -> Build) {
        let (pid, handle) = (event.pid, event.handle);
        let key = (pid, handle);
        match &event.step {
            KernelStep::Created {
                name,
                is_certain: true,
            } => {
                self.assumed.remove(&key);
                self.add(event, build, name.as_deref().map(Into::into), true);
            }
            KernelStep::Created { name, .. } => self.assume(key, name.as_deref()),
            KernelStep::Launched if self.kernels.get(&key) != Some(&true) => {
                self.use_unseen(event, build);
                if let Some(launched) = self.kernels.get_mut(&key) {
                    *launched = true;
                    self.any_launched = true;
                    self.send(PlaceMessage::Launched { pid, handle });
                }
            }
            KernelStep::Launched => {}
            KernelStep::Destroyed => {
                self.assumed.remove(&key);
                if self.kernels.remove(&key).is_some() {
                    self.send(PlaceMessage::Gone {
                        pid,
                        handle,
                        time_ns: event.time_ns,
                    });
                }
            }
            &KernelStep::Located { address } => {
                self.use_unseen(event, build);
                self.send(PlaceMessage::Told {
                    pid,
                    handle,
                    address,
                });
            }
        }
    }

    /// A kernel may have been created under this handle; the end of the call was not
    /// seen. It is one if it is used later.
    fn assume(&mut self, key: (u32, u64), name: Option<&str>) {
        let fits = self.assumed.len() < MAX_ASSUMED || self.assumed.contains_key(&key);
        if let Some(name) = name.filter(|_| fits && !self.kernels.contains_key(&key)) {
            self.assumed.insert(key, name.into());
        }
    }

    /// A kernel is used: if its creation was not seen, it is known from here on.
    fn use_unseen(&mut self, event: &KernelEvent, build: impl FnOnce() -> Build) {
        let key = (event.pid, event.handle);
        if !self.kernels.contains_key(&key) {
            let name = self.assumed.remove(&key);
            self.add(event, build, name, false);
        }
    }

    fn add(
        &mut self,
        event: &KernelEvent,
        build: impl FnOnce() -> Build,
        name: Option<String>,
        created: bool,
    ) {
        let key = (event.pid, event.handle);
        if self.kernels.len() >= MAX_KERNELS && !self.kernels.contains_key(&key) {
            return;
        }
        self.kernels.insert(key, false);
        self.send(PlaceMessage::Kernel {
            pid: event.pid,
            build: build(),
            handle: event.handle,
            time_ns: event.time_ns,
            name,
            created,
        });
    }

    /// A kernel older than the recording has got its name.
    pub(crate) fn named(&mut self, named: &KernelNamed) {
        if self.kernels.contains_key(&(named.pid, named.kernel)) {
            self.send(PlaceMessage::Named {
                pid: named.pid,
                handle: named.kernel,
                name: named.name.clone(),
            });
        }
    }

    /// A stream is read from here on.
    pub(crate) fn stream(&mut self, stream: &DeviceStream) {
        if self.streams.len() < MAX_STREAMS {
            self.streams.insert(stream.id, stream.relative);
        }
    }

    /// A stream was read.
    pub(crate) fn window(&mut self, window: &StallWindow) {
        let Some(&relative) = self.streams.get(&window.stream) else {
            return;
        };
        // Others' samples teach nothing.
        if !self.any_launched {
            return;
        }
        for count in &window.counts {
            let address = count.address;
            let key = Sampled { relative, address };
            if self.sampled.len() < MAX_SAMPLED || self.sampled.contains_key(&key) {
                let all = self.sampled.entry(key).or_default();
                *all = all.saturating_add(count.samples());
            }
        }
    }

    /// The process has ended, or has become another program.
    pub(crate) fn process_gone(&mut self, pid: u32, time_ns: u64) {
        let before = self.kernels.len();
        self.kernels.retain(|key, _| key.0 != pid);
        self.assumed.retain(|key, _| key.0 != pid);
        if before != self.kernels.len() {
            self.send(PlaceMessage::ProcessGone { pid, time_ns });
        }
    }

    /// What was found out since the last call. All that happened until `taken_ns` has been taken
    /// in.
    pub(crate) fn maintain(&mut self, taken_ns: u64) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(answer) = self.threads.as_ref().and_then(|(_, a)| a.try_recv().ok()) {
            self.take(answer, &mut events);
        }
        if !self.is_busy {
            self.tick(taken_ns, false);
        }
        events
    }

    /// What was found out to the end: the recording ends, and all that happened has been taken in.
    pub(crate) fn settle(&mut self, patience: Duration) -> Vec<Event> {
        let pids: BTreeSet<u32> = self.kernels.keys().map(|(pid, _)| *pid).collect();
        let patience = owner::patience_with(pids.into_iter(), patience);
        let deadline = Instant::now() + patience;
        let mut events = Vec::new();
        // The answer to the last tick is the last.
        for last in [false, true] {
            if last {
                self.tick(u64::MAX, true);
            }
            while self.is_busy {
                let left = deadline.saturating_duration_since(Instant::now());
                let answer = match &self.threads {
                    Some((_, answers)) => answers.recv_timeout(left).ok(),
                    None => None,
                };
                let Some(answer) = answer else {
                    tracing::debug!("kernel addresses were not found within {patience:?}");
                    return events;
                };
                self.take(answer, &mut events);
            }
        }
        events
    }

    fn take(&mut self, answer: PlaceAnswer, events: &mut Vec<Event>) {
        match answer {
            PlaceAnswer::Event(event) => events.push(event),
            PlaceAnswer::Ticked => self.is_busy = false,
        }
    }

    fn tick(&mut self, taken_ns: u64, last: bool) {
        if self.threads.is_none() {
            return;
        }
        let sampled = std::mem::take(&mut self.sampled).into_iter().collect();
        self.is_busy = self.send(PlaceMessage::Tick {
            taken_ns,
            sampled,
            last,
        });
    }

    /// Hands a message to the threads, which are started by the first.
    fn send(&mut self, message: PlaceMessage) -> bool {
        if self.threads.is_none() && !self.is_off {
            self.threads = worker::start()
                .inspect_err(|error| {
                    tracing::warn!(
                        "cannot start the thread that finds the addresses of kernels on devices: \
                         {error}"
                    )
                })
                .ok();
            self.is_off = self.threads.is_none();
        }
        let sent = self
            .threads
            .as_ref()
            .map(|(messages, _)| messages.send(message));
        sent.is_some_and(|sent| sent.is_ok())
    }
}

#[cfg(test)]
mod service_tests;
#[cfg(test)]
mod tests;
