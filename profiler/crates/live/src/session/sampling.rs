//! What runs in the kernel for a recording: the eBPF programs, the sampling events of the CPUs,
//! and the rings into which both write.

use super::{CollectError, queue::EventQueue};
use crate::{
    bpf::{
        Bpf, perf,
        ring::{Drained, RingReader},
    },
    cpu::CpuSet,
    finisher::Finisher,
};
use aiprof_common::{COUNT_RING_DROPS, COUNT_WAITS_LOST, COUNT_WAITS_UNENDED};
use aiprof_model::{
    profile::{LossKind, Losses},
    wire::{Event, ProcessEvent, ProcessEventKind},
};
use std::{os::fd::AsFd, time::Duration};

/// The programs, the sampling events and their rings, dropped in this order.
pub(super) struct KernelSampling {
    pub(super) bpf: Bpf,
    pub(super) cpus: CpuSet,
    /// The ring of samples and waits.
    pub(super) ring: RingReader,
}

impl KernelSampling {
    /// Reads the rings of samples and of `calls` into the queue. Returns whether there is more to
    /// read at once.
    pub(super) fn receive(
        &mut self,
        calls: Option<&mut RingReader>,
        queue: &mut EventQueue,
        finisher: &mut Finisher,
    ) -> bool {
        let mut is_more = false;
        for ring in std::iter::once(&mut self.ring).chain(calls) {
            let Drained { more, damaged } = ring.drain(|record| queue.receive(record, finisher));
            is_more |= more;
            queue.undecodable += u64::from(damaged);
        }
        is_more
    }

    /// Reads the rings of process events into the queue.
    pub(super) fn receive_processes(&mut self, queue: &mut EventQueue) {
        for ring in self.cpus.rings() {
            queue.undecodable += ring.drain(|event| queue.arrived.push(Event::Process(event)));
        }
    }

    /// Whether a ring is filling up, of samples or of `calls`.
    pub(super) fn is_filling(&self, calls: Option<&RingReader>) -> bool {
        calls.is_some_and(RingReader::is_half_full) || self.ring.is_half_full()
    }

    /// Starts the sampling on all CPUs.
    pub(super) fn start_sampling(&mut self) -> Result<(), CollectError> {
        let sampler = self.bpf.sampler()?;
        let started = self.cpus.start_sampling(sampler.as_fd());
        started.map_err(CollectError::PerfEvent)
    }

    /// Samples CPUs that were switched on since it was looked `unseen` ago.
    pub(super) fn follow_cpus(
        &mut self,
        unseen: Duration,
        queue: &mut EventQueue,
    ) -> Result<(), CollectError> {
        let sampler = self.bpf.sampler()?;
        let came = self.cpus.follow_hotplug(sampler.as_fd(), unseen);
        if came.map_err(CollectError::PerfEvent)? {
            // What began there meanwhile is not known. It is applied after what happened
            // before, of which an exec would make a process known again.
            queue.arrived.push(Event::Process(ProcessEvent {
                time_ns: perf::monotonic_ns(),
                pid: 0,
                tid: 0,
                kind: ProcessEventKind::Lost { count: 0 },
            }));
        }
        Ok(())
    }

    /// Memory of the maps and rings, bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        Bpf::memory_bytes() + self.cpus.ring_bytes() as u64
    }

    /// What was lost since the start.
    pub(super) fn losses(&self) -> Losses {
        let mut losses = Losses::default();
        losses.add(LossKind::RingDrops, self.bpf.count(COUNT_RING_DROPS));
        losses.add(LossKind::CpusUnsampled, self.cpus.missed);
        losses.add(LossKind::WaitsLost, self.bpf.count(COUNT_WAITS_LOST));
        losses.add(LossKind::WaitsUnended, self.bpf.count(COUNT_WAITS_UNENDED));
        losses.add(LossKind::ProgramsMissed, Bpf::missed());
        losses
    }
}
