//! What a device did, phase by phase: the activity records of one operation.
//!
//! A control block is one operation of several records: its copies, the preparing and the executing
//! of its kernel. With the counter (TS1 to TS5) each of them has the same five values. So they are
//! known to be one operation, and any of them gives the length of each phase. Without, each record
//! is an operation of its own.

use super::{ActivityRecord, Kind};
use aiprof_model::calibrate::cycles;
use aiprof_model::timeline::Phase;
use std::rc::Rc;

/// [`ActivityRecord::code`] of a kernel's preparing.
pub(crate) const PREPARE: u32 = 1;
/// [`ActivityRecord::code`] of a copy to the device.
const TO_DEVICE: u32 = 1;
/// The same from the device.
const TO_HOST: u32 = 2;
/// Most periods of the counter that a phase is believed to have lasted: an hour.
const MAX_PERIODS: f64 = 1000.0;

/// The phases, in the order of their times.
pub(crate) const PHASES: [Phase; 4] = [Phase::DmaIn, Phase::Prep, Phase::Exec, Phase::DmaOut];

/// A phase's name in stacks.
pub(crate) fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::DmaIn => "dma in",
        Phase::Prep => "prepare",
        Phase::Exec => "execute",
        Phase::DmaOut => "dma out",
        Phase::Whole => "all phases",
    }
}

/// What a device did: the works of one graph are matched with its records by this.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WorkKind {
    /// A kernel, by its name; `None`: not known, or not all of it.
    Kernel(Option<Rc<str>>),
    /// A copy.
    Copy,
    /// A fill.
    Fill,
}

impl WorkKind {
    /// What a device recorded.
    pub(crate) fn of(record: &ActivityRecord) -> Self {
        match record.kind {
            Kind::Compute => Self::Kernel(name_of(record).map(Rc::from)),
            Kind::Memset => Self::Fill,
            _ => Self::Copy,
        }
    }
}

/// The name of a record's kernel, if it has one.
fn name_of(record: &ActivityRecord) -> Option<&str> {
    record.name.as_deref().filter(|name| !name.is_empty())
}

/// The name of the recorded work: the kernel's, or the operation's as in torch's
/// traces.
pub(crate) fn work_name(record: &ActivityRecord) -> &str {
    match (record.kind, record.code) {
        (Kind::Compute, _) => name_of(record).unwrap_or("[kernel without a name]"),
        (Kind::Memset, _) => "Memset (Device)",
        (Kind::Memory, Some(2)) => "Memory (Release)",
        (Kind::Memory, _) => "Memory (Allocation)",
        (_, Some(TO_DEVICE)) => "Memcpy (HtoD)",
        (_, Some(TO_HOST)) => "Memcpy (DtoH)",
        (_, Some(3)) => "Memcpy (PtoP)",
        (_, Some(4)) => "Memcpy (DtoD)",
        (_, Some(5)) => "Memcpy (HtoH)",
        _ => "Memcpy",
    }
}

/// What a record covers of its operation; `None`: it is of no work of a device, as
/// allocations are.
pub(crate) fn phase_of(record: &ActivityRecord) -> Option<Phase> {
    match (record.kind, record.code) {
        (Kind::Compute, Some(PREPARE)) => Some(Phase::Prep),
        (Kind::Compute, _) => Some(Phase::Exec),
        (Kind::Memcpy | Kind::Memcpy2, Some(TO_DEVICE)) => Some(Phase::DmaIn),
        (Kind::Memcpy | Kind::Memcpy2, Some(TO_HOST)) => Some(Phase::DmaOut),
        (Kind::Memcpy | Kind::Memcpy2 | Kind::Memset, _) => Some(Phase::Whole),
        _ => None,
    }
}

/// TS1 to TS5, if all of them are there: one that is 0 among others was not read.
pub fn stamps(record: &ActivityRecord) -> Option<[u64; 5]> {
    record.cycles.filter(|stamps| !stamps.contains(&0))
}

/// Ticks from the begin of a phase to its end, by the counter alone: of a phase
/// longer than a period, what is beyond whole periods.
pub fn ticks(stamps: [u64; 5], phase: Phase, bits: u32) -> u64 {
    let (unwrapped, _) = cycles::count_wraps(stamps, bits);
    let (begin, end) = phase.ends();
    let between = unwrapped
        .get(end)
        .zip(unwrapped.get(begin))
        .map(|(end, begin)| end - begin);
    u64::try_from(between.unwrap_or(0)).unwrap_or(0)
}

/// Something that a device did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    /// Its kind: a kernel as soon as a record of one was seen.
    pub kind: WorkKind,
    /// Name of the work: the kernel's, else that in its first record.
    pub name: Box<str>,
    /// What its first record covers.
    covers: Phase,
    /// Counter values.
    pub stamps: Option<[u64; 5]>,
    /// How long each of [`PHASES`] took by the records' own times, nanoseconds.
    took_ns: [Option<u64>; 4],
    /// How long its first record lasted.
    first_ns: u64,
}

/// A part of an operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OperationPart {
    /// Its phase; `None`: a copy or a fill, which has none.
    pub phase: Option<Phase>,
    /// Device cycles; nanoseconds where there are no counter values.
    pub ticks: u64,
    /// How long it took, nanoseconds.
    pub time_ns: f64,
}

impl Operation {
    /// An operation by its first record; `None` if that is of no work.
    pub(crate) fn new(record: &ActivityRecord) -> Option<Self> {
        let mut operation = Self {
            kind: WorkKind::of(record),
            name: work_name(record).into(),
            covers: phase_of(record)?,
            stamps: stamps(record),
            took_ns: [None; 4],
            first_ns: record.end.0.saturating_sub(record.start.0),
        };
        operation.join(record);
        Some(operation)
    }

    pub(crate) fn is_kernel(&self) -> bool {
        matches!(self.kind, WorkKind::Kernel(_))
    }

    /// Takes in another record of it.
    pub(crate) fn join(&mut self, record: &ActivityRecord) {
        let Some(phase) = phase_of(record) else {
            return;
        };
        if record.kind == Kind::Compute && !self.is_kernel() {
            self.kind = WorkKind::of(record);
            self.name = work_name(record).into();
        }
        let slots = PHASES.iter().zip(&mut self.took_ns);
        let took = record.end.0.saturating_sub(record.start.0);
        for (_, slot) in slots.filter(|(known, _)| **known == phase) {
            *slot = Some(slot.map_or(took, |known| known.max(took)));
        }
    }

    /// Its parts, those of no length left out. `bits`: of the counter; `rough_mhz`:
    /// its frequency, about; `mhz`: its frequency as fitted to the host's clock.
    ///
    /// The phases of a kernel add up to TS5 - TS1.
    pub(crate) fn parts(
        &self,
        bits: u32,
        rough_mhz: Option<f64>,
        mhz: Option<f64>,
    ) -> Vec<OperationPart> {
        let Some(stamps) = self.stamps else {
            return self.timed();
        };
        let mut parts: Vec<OperationPart> = match self.is_kernel() {
            true => {
                let took = PHASES.into_iter().zip(self.took_ns);
                let part = |(phase, took)| OperationPart {
                    phase: Some(phase),
                    ticks: beyond(ticks(stamps, phase, bits), took, bits, mhz.or(rough_mhz)),
                    time_ns: 0.0,
                };
                took.map(part).collect()
            }
            false => {
                let own = ticks(stamps, self.covers, bits);
                let all = ticks(stamps, Phase::Whole, bits);
                let ticks = if own > 0 { own } else { all };
                vec![OperationPart {
                    phase: None,
                    ticks: beyond(ticks, Some(self.first_ns), bits, mhz.or(rough_mhz)),
                    time_ns: 0.0,
                }]
            }
        };
        let per_tick = match mhz {
            Some(mhz) if mhz > 0.0 => 1e3 / mhz,
            _ => self.scale(&parts, rough_mhz),
        };
        for part in &mut parts {
            part.time_ns = part.ticks as f64 * per_tick;
        }
        parts.retain(|part| part.ticks > 0);
        parts
    }

    /// Nanoseconds of a tick by the records' own times.
    fn scale(&self, parts: &[OperationPart], rough_mhz: Option<f64>) -> f64 {
        let took = |part: &OperationPart| match part.phase {
            Some(phase) => {
                let at = PHASES.iter().position(|known| *known == phase)?;
                *self.took_ns.get(at)?
            }
            None => Some(self.first_ns),
        };
        let timed = parts
            .iter()
            .filter_map(|part| Some((part.ticks, took(part)?)));
        let (ticks, ns) = timed.fold((0.0, 0.0), |(ticks, ns), (more, took)| {
            (ticks + more as f64, ns + took as f64)
        });
        match rough_mhz {
            _ if ticks > 0.0 && ns > 0.0 => ns / ticks,
            Some(mhz) if mhz > 0.0 => 1e3 / mhz,
            _ => 0.0,
        }
    }

    /// The only part of an operation without counter values.
    fn timed(&self) -> Vec<OperationPart> {
        let phase = self.is_kernel().then_some(self.covers);
        let part = OperationPart {
            phase,
            ticks: self.first_ns,
            time_ns: self.first_ns as f64,
        };
        Vec::from_iter((part.ticks > 0).then_some(part))
    }
}

/// Ticks with the whole periods that a phase of that length must have had beside.
fn beyond(ticks: u64, took_ns: Option<u64>, bits: u32, mhz: Option<f64>) -> u64 {
    let Some((took, mhz)) = took_ns.zip(mhz).filter(|_| bits < 64) else {
        return ticks;
    };
    let period = 2f64.powi(i32::try_from(bits).unwrap_or(64));
    let periods = ((took as f64 / 1e3 * mhz - ticks as f64) / period).round();
    if !(1.0..=MAX_PERIODS).contains(&periods) {
        return ticks;
    }
    ticks.saturating_add((periods as u64) << bits)
}
