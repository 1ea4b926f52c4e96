//! The session's part in what is attached while sampling runs already: probes on
//! runtimes and drivers, for which libraries are looked for and the kernel verifies
//! programs at length.

use super::{CollectError, Session};
use crate::{
    bpf::{CALLS, Programs},
    config::RecordConfig,
    driver::{DriverPlan, DriverProbes},
    runtime::{CALL_PROGRAMS, RuntimeProbes},
};
use aiprof_record::aggregate::{Aggregator, LaunchOptions, Limits};
use std::{
    sync::mpsc::{Receiver, TryRecvError, sync_channel},
    thread,
    time::{Duration, Instant},
};

/// How long the processes with probed libraries are waited for, once these are probed.
const USERS: Duration = Duration::from_millis(400);

/// What is still to be attached.
#[derive(Debug)]
pub(super) struct Starting {
    /// Observed once its programs are loaded.
    drivers: Option<(DriverPlan, Receiver<()>)>,
    /// Hangs up when libraries that are loaded later can be probed at once; `None`: that
    /// is not waited for.
    calls: Option<Receiver<()>>,
    first_spec: u32,
    /// Processes whose mappings are waited for, and until when.
    users: Option<(Vec<u32>, Instant)>,
}

impl Session {
    /// Begins to attach to the runtimes and drivers that are there, if they should be probed.
    /// [`Session::prepare`] goes on with it.
    pub(super) fn start_probes(
        &mut self,
        config: &RecordConfig,
        drivers: DriverPlan,
    ) -> Result<(), CollectError> {
        let Some(wanted) = &config.probes else {
            return Ok(());
        };
        let ring = self.bpf.ring(CALLS)?;
        let probes = RuntimeProbes::start(&self.bpf, wanted)?;
        self.probes = Some((probes, ring));
        let drivers = (!drivers.is_empty()).then(|| {
            let loaded = load_ahead(self.bpf.programs(), drivers.programs());
            (drivers, loaded)
        });
        let calls = load_ahead(self.bpf.programs(), CALL_PROGRAMS.to_vec());
        self.starting = Some(Starting {
            drivers,
            calls: wanted.late_libraries.then_some(calls),
            first_spec: wanted.specs(),
            users: None,
        });
        Ok(())
    }

    /// Goes on with what is being attached; `true`: all of it is.
    pub(super) fn settle_start(&mut self) -> Result<bool, CollectError> {
        let Some(mut starting) = self.starting.take() else {
            return Ok(true);
        };
        let is_settled = self.go_on(&mut starting)?;
        if !is_settled {
            self.starting = Some(starting);
        }
        Ok(is_settled)
    }

    fn go_on(&mut self, starting: &mut Starting) -> Result<bool, CollectError> {
        if let Some((plan, loaded)) = starting.drivers.take() {
            if loaded.try_recv() == Err(TryRecvError::Empty) {
                starting.drivers = Some((plan, loaded));
            } else {
                self.drivers = DriverProbes::start(&self.bpf, plan, starting.first_spec)?;
            }
        }
        let Some((probes, _)) = &mut self.probes else {
            return Ok(true);
        };
        if !probes.settle() || starting.drivers.is_some() {
            return Ok(false);
        }
        let are_loading = |calls: &Receiver<()>| calls.try_recv() == Err(TryRecvError::Empty);
        if starting.calls.as_ref().is_some_and(are_loading) {
            return Ok(false);
        }
        let Some((users, until)) = &starting.users else {
            // Whoever calls what is probed is to have whole stacks from then on, and the
            // kernels that it has made already are looked for.
            let users: Vec<u32> = probes.users().collect();
            self.meet_all(&users);
            users.iter().for_each(|pid| self.publisher.changed(*pid));
            starting.users = Some((users, Instant::now() + USERS));
            return Ok(false);
        };
        let is_met = |pid: &u32| {
            let known = self
                .events
                .recording
                .processes
                .get(*pid)
                .is_some_and(|p| p.complete);
            known || self.reading.has_given_up(*pid)
        };
        Ok(users.iter().all(is_met) || Instant::now() >= *until)
    }
}

/// What adds the events up.
pub(super) fn aggregate(config: &RecordConfig, sample_ns: u64) -> Aggregator {
    let limits = Limits::default();
    if let Some(waits) = config.waits {
        return Aggregator::new(sample_ns, limits).with_waits(waits.options);
    }
    let aggregate = match config.launches {
        Some(LaunchOptions { timed }) => Aggregator::of_calls(timed, limits),
        None if config.devices.is_on() => Aggregator::new(sample_ns, limits).with_devices(),
        None => Aggregator::new(sample_ns, limits),
    };
    aggregate.with_driver_frames(config.driver_frames)
}

/// What counts launches beside CPU samples.
pub(super) fn launches(config: &RecordConfig) -> Aggregator {
    let launches = Aggregator::of_calls(false, Limits::default()).beside();
    launches.with_driver_frames(config.driver_frames)
}

/// Has programs verified by a thread; it hangs up when they are.
fn load_ahead(programs: Programs, names: Vec<&'static str>) -> Receiver<()> {
    let (end, loaded) = sync_channel(1);
    let load = move || {
        for name in names {
            if let Err(error) = programs.get(name) {
                // Reported again where it is needed.
                tracing::debug!("{name}: {error}");
            }
        }
        drop(end);
    };
    // Without the thread they are loaded where they are needed.
    if let Err(error) = thread::Builder::new()
        .name("aiprof-load".into())
        .spawn(load)
    {
        tracing::debug!("cannot start the thread that loads eBPF programs: {error}");
    }
    loaded
}
