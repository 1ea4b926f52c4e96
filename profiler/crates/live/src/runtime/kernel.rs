//! Probes by way of the loaded eBPF programs.

use super::attach::{CallProgram, KernelSide};
use crate::bpf::{
    self, Bpf, BpfError, MapWriter, PROBES,
    probe::{self, Attached, Point, ProbeTarget, RefusedPoint},
};
use aiprof_common::ProbeSpec;
use std::{io, os::fd::AsFd, path::Path};

/// The programs, and the map from which they read what to do.
pub(super) struct Programs {
    programs: bpf::Programs,
    specs: MapWriter,
}

impl Programs {
    /// Those of the loaded object, each verified when it is first attached.
    ///
    /// # Errors
    /// The map is missing, or its descriptor could not be duplicated.
    pub(super) fn of(bpf: &Bpf) -> Result<Self, BpfError> {
        let specs = bpf.writer(PROBES)?;
        let programs = bpf.programs();
        Ok(Self { programs, specs })
    }
}

impl KernelSide for Programs {
    fn describe(&self, probe: u32, spec: &ProbeSpec) -> io::Result<()> {
        self.specs.set(&probe, spec).map_err(io::Error::other)
    }

    fn attach(
        &self,
        program: CallProgram,
        file: &Path,
        only: Option<u32>,
        points: &[Point],
    ) -> io::Result<Attached> {
        let fd = self
            .programs
            .get(program.name())
            .map_err(io::Error::other)?;
        let target = ProbeTarget {
            path: file,
            ret: program.is_return(),
            pid: only,
        };
        if probe::uprobe_multi().exists() {
            return probe::attach_uprobe_multi(fd.as_fd(), &target, points);
        }
        let mut attached = Attached::default();
        for &point in points {
            match probe::attach_uprobe_perf(fd.as_fd(), &target, point) {
                Ok(link) => attached.links.push(link),
                Err(error) => attached.refused.push(RefusedPoint { point, error }),
            }
        }
        Ok(attached)
    }
}
