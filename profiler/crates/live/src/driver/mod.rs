//! Ioctls of accelerator drivers, and their fences.
//!
//! * `devices`: which devices the machine has;
//! * `plan`: which of them the tables are for, and what is read of their ioctls;
//! * `points`: the tracepoints that report fences and jobs.
//!
//! Nothing is attached on a machine without such a device.

mod devices;
mod plan;
mod points;
#[cfg(test)]
mod synthetic;

use crate::bpf::{
    Bpf, BpfError, PROBE_COUNTS, PROBES,
    probe::{self, BpfLink},
};
use aiprof_common::{COUNT_TRACE_DROPS, ProbeCounts};
use aiprof_model::{
    probes::driver_table::{DriverTables, devices::resolve},
    profile::{LossKind, Losses},
    wire::Event,
};
use aiprof_record::correlate::begins;
use plan::IoctlPlan;
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
};

/// The programs of the eBPF object, see profiler-ebpf/src/driver.rs.
const HANDLER_ENTRY: &str = "ioctl_handler_entry";
const HANDLER_EXIT: &str = "ioctl_handler_exit";
const ENTER: &str = "ioctl_enter";
const EXIT: &str = "ioctl_exit";
const TRACE: &str = "trace";
/// All of them.
pub(crate) const PROGRAMS: [&str; 5] = [HANDLER_ENTRY, HANDLER_EXIT, ENTER, EXIT, TRACE];
/// Major numbers whose devices have fences.
const WITH_FENCES: [&str; 2] = ["drm", "accel"];

/// What to observe, known before anything is loaded.
#[derive(Debug, Default)]
pub(crate) struct DriverPlan {
    plan: IoctlPlan,
    fences: bool,
}

/// A device that gets a table it has no driver for: for tests.
pub type StandIn = (String, PathBuf);

impl DriverPlan {
    /// Looks at the machine's devices. `stand_ins` get the tables named with them.
    ///
    /// # Errors
    /// A stand-in is no device, or there is no such table.
    pub(crate) fn new(tables: &DriverTables, stand_ins: &[StandIn]) -> io::Result<Self> {
        let nodes = devices::scan(Path::new("/"), tables);
        let mut forced = Vec::new();
        for (table, path) in stand_ins {
            if tables.get(table).is_none() {
                let message = format!("no driver table is named {table:?}");
                return Err(io::Error::new(io::ErrorKind::NotFound, message));
            }
            forced.push((table.clone(), devices::of_path(path)?));
        }
        let numbers = forced.iter().map(|(_, node)| node.kernel_number());
        let numbers = numbers.collect();
        let observed = resolve(tables, &nodes, &forced);
        let has_fences = |name: &str| WITH_FENCES.contains(&name);
        let fences = nodes.iter().any(|node| {
            has_fences(&node.major_name) && observed.devices.contains_key(&node.kernel_number())
        });
        Ok(Self {
            plan: IoctlPlan::new(tables, observed, numbers),
            fences,
        })
    }

    /// Whether there is nothing to observe.
    pub(crate) fn is_empty(&self) -> bool {
        self.plan.is_empty()
    }

    /// The programs that observing it may need.
    pub(crate) fn programs(&self) -> Vec<&'static str> {
        let mut programs = Vec::new();
        if self.plan.has_handlers() {
            programs.extend([HANDLER_EXIT, HANDLER_ENTRY]);
        }
        if self.plan.needs_syscall() {
            programs.extend([EXIT, ENTER]);
        }
        programs.extend(self.fences.then_some(TRACE));
        programs
    }

    /// Specs that the kernel side needs room for.
    pub(crate) fn specs(&self) -> u32 {
        // As many as the tables have, some hundreds.
        self.plan.commands.len() as u32
    }

    /// Whether files without a device are among what is observed.
    pub(crate) fn named_files(&self) -> bool {
        !self.plan.observed.files.is_empty()
    }
}

/// The probes on drivers of a recording.
#[derive(Debug, Default)]
pub(crate) struct DriverProbes {
    links: Vec<BpfLink>,
    events: Vec<Event>,
    /// Ids of the tracepoints where submissions begin.
    begins: Vec<u32>,
    first: u32,
    specs: u32,
}

impl DriverProbes {
    /// Attaches to what is planned; its probes are numbered from `first`.
    ///
    /// # Errors
    /// The programs or maps are missing. That a function cannot be probed is no
    /// error: then the system call is watched.
    pub(crate) fn start(bpf: &Bpf, plan: DriverPlan, first: u32) -> Result<Self, BpfError> {
        let mut probes = Self {
            first,
            specs: plan.specs(),
            ..Self::default()
        };
        if plan.is_empty() {
            return Ok(probes);
        }
        let DriverPlan { mut plan, fences } = plan;
        probes.describe(bpf, &plan)?;
        probes.attach_handlers(bpf, &mut plan)?;
        if plan.needs_syscall() {
            probes.attach_syscall(bpf)?;
        }
        // Last: from here on ioctls are recorded.
        for (name, value) in plan.files() {
            bpf.set("FILES", &name, &value)?;
        }
        for (number, value) in plan.devices() {
            bpf.set("DEVICES", &number, &value)?;
        }
        if fences {
            probes.attach_points(bpf)?;
        }
        Ok(probes)
    }

    /// Passes the commands to the kernel side, and to the reader.
    fn describe(&mut self, bpf: &Bpf, plan: &IoctlPlan) -> Result<(), BpfError> {
        for (number, compiled) in (self.first..).zip(&plan.commands) {
            bpf.set(PROBES, &number, &compiled.spec)?;
            let mut probe = compiled.probe.clone();
            probe.id = number;
            self.events.push(Event::Probe(probe));
        }
        for (key, number) in &plan.keys {
            bpf.set("IOCTLS", key, &(self.first + number))?;
        }
        Ok(())
    }

    /// Probes one handler for each class, if the kernel allows it.
    fn attach_handlers(&mut self, bpf: &Bpf, plan: &mut IoctlPlan) -> Result<(), BpfError> {
        if !plan.has_handlers() {
            return Ok(());
        }
        let programs = bpf.programs();
        let (entry, exit) = (programs.get(HANDLER_ENTRY)?, programs.get(HANDLER_EXIT)?);
        let mut attached: Vec<String> = Vec::new();
        for class in &mut plan.classes {
            for name in &class.table.handlers {
                if attached.contains(name) {
                    class.handled = true;
                    break;
                }
                // Numbered, so that of two handlers around one ioctl the inner one is known
                // from the outer.
                match handler(entry.as_fd(), exit.as_fd(), name, attached.len() as u64) {
                    Ok(links) => {
                        self.links.extend(links);
                        attached.push(name.clone());
                        class.handled = true;
                        break;
                    }
                    Err(error) => tracing::debug!("cannot probe {name}: {error}"),
                }
            }
        }
        Ok(())
    }

    fn attach_syscall(&mut self, bpf: &Bpf) -> Result<(), BpfError> {
        // The exit first: an ioctl whose begin is seen has an end.
        for (program, name) in [(EXIT, "sys_exit_ioctl"), (ENTER, "sys_enter_ioctl")] {
            let program = bpf.programs().get(program)?;
            match probe::attach_tracepoint(program.as_fd(), "syscalls", name, 0) {
                Ok(link) => self.links.push(link),
                Err(error) => {
                    tracing::warn!(
                        "ioctls are not recorded: cannot attach to syscalls:{name}: {error}"
                    );
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn attach_points(&mut self, bpf: &Bpf) -> Result<(), BpfError> {
        let program = bpf.programs().get(TRACE)?;
        for point in points::find(Path::new("/sys/kernel/tracing")) {
            bpf.set("TRACES", &point.point.id, &point.spec)?;
            let (category, name) = (&point.point.category, &point.point.name);
            match probe::attach_tracepoint(program.as_fd(), category, name, point.point.id.into()) {
                Ok(link) => {
                    self.links.push(link);
                    if begins(&point.point) {
                        self.begins.push(point.point.id);
                    }
                    self.events.push(Event::TracePoint(point.point));
                }
                Err(error) => tracing::debug!("{category}:{name}: {error}"),
            }
        }
        Ok(())
    }

    /// What the reader must know before anything that was recorded.
    pub(crate) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Whether a tracepoint is hit by whoever submits work.
    pub(crate) fn begins(&self, point: u32) -> bool {
        self.begins.contains(&point)
    }

    /// What was lost in the kernel.
    pub(crate) fn losses(&self, bpf: &Bpf) -> Losses {
        let mut losses = Losses::default();
        for number in self.first..self.first + self.specs {
            for cpu in bpf.per_cpu::<ProbeCounts>(PROBE_COUNTS, number) {
                losses.add(LossKind::CallRingDrops, cpu.lost);
                losses.add(LossKind::CallDataDrops, cpu.data_lost);
                losses.add(LossKind::CallStacksLimited, cpu.stacks_limited);
                losses.add(LossKind::CallStacksBusy, cpu.stacks_busy);
                losses.add(LossKind::CallsUntracked, cpu.untracked);
                losses.add(LossKind::CallDataWithheld, cpu.withheld);
            }
        }
        losses.add(LossKind::TraceDrops, bpf.count(COUNT_TRACE_DROPS));
        losses
    }

    /// Ends the recording of ioctls and returns the links that must be closed.
    pub(crate) fn stop(&mut self) -> Vec<BpfLink> {
        std::mem::take(&mut self.links)
    }
}

/// Probes a function of the kernel at its begin and its return.
fn handler(
    entry: BorrowedFd<'_>,
    exit: BorrowedFd<'_>,
    name: &str,
    cookie: u64,
) -> io::Result<[BpfLink; 2]> {
    // The return first: an ioctl whose begin is seen has an end.
    let exit = probe::attach_kprobe(exit, name, true, cookie)?;
    let entry = probe::attach_kprobe(entry, name, false, cookie)?;
    Ok([exit, entry])
}
