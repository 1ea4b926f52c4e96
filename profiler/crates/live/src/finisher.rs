//! Samples whose walk ended in the kernel for want of a table, finished here.

use super::{binaries::Binaries, java::Javas, reader::UnwindPage, tables::UnwindTables};
use aiprof_common::{
    CFA_LATER, FLAG_EXACT, PAGE_SHIFT, PAGE_SIZE, PYTHON_MARK, PYTHON_PLACED, Rule,
};
use aiprof_model::{
    process::{FileId, ProcessTable, Region, Space},
    wire::{Sample, StopReason},
};
use aiprof_symbols::java::HotSpot;
use aiprof_symbols::unwind::{
    address_of, lookup,
    walk::{Registers, Target, finish},
};
use aiprof_system::workers::Owner;
use rustc_hash::FxHashMap;
use std::{ops::Range, sync::Arc};

/// Most stack pages held for samples still to come.
const MAX_STACK_PAGES: usize = 4096;
/// Most table pages kept for the next sample.
const MAX_TABLE_PAGES: usize = 256;

/// Pages of one sample's stack: (address, content).
type Pages = Vec<(u64, Box<[u8]>)>;

/// Finishes walks.
#[derive(Default)]
pub(crate) struct Finisher {
    stacks: FxHashMap<(u32, u64), Pages>,
    held: usize,
    tables: Cache,
}

/// Pages that walks needed; `None`: they have no data.
type Cache = FxHashMap<(FileId, u32), Option<Arc<[u8]>>>;

/// What a walk lacks to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The file.
    pub file: FileId,
    /// The page of its table.
    pub page: u32,
}

impl Finisher {
    /// Takes in a page of the stack of the sample at (cpu, time).
    pub(crate) fn page(&mut self, cpu: u32, time_ns: u64, address: u64, data: Box<[u8]>) {
        if self.held >= MAX_STACK_PAGES {
            // Pages without a sample: it was dropped.
            self.stacks.clear();
            self.held = 0;
        }
        self.held += 1;
        self.stacks
            .entry((cpu, time_ns))
            .or_default()
            .push((address, data));
    }

    /// Forgets pages of samples older than that, which were dropped.
    pub(crate) fn forget_before(&mut self, time_ns: u64) {
        let held = &mut self.held;
        self.stacks.retain(|(_, sampled), pages| {
            let keep = *sampled >= time_ns;
            if !keep {
                *held = held.saturating_sub(pages.len());
            }
            keep
        });
    }

    /// Takes in a page that a walk lacked.
    pub(crate) fn table(&mut self, file: FileId, page: u32, table: &UnwindPage) {
        let content = match table {
            UnwindPage::Built(content, ..) => Some(content.as_slice().into()),
            UnwindPage::NoData => None,
        };
        self.tables.insert((file, page), content);
    }

    /// Continues the walk of a sample if its stack was sent along. A table that is
    /// lacking is given back, and is wanted from `resident`: to be called again when
    /// it is there, or with `last`, which ends the walk there. `owner`: whose process
    /// it is.
    pub(crate) fn finish(
        &mut self,
        sample: &mut Sample,
        owner: Owner,
        processes: &ProcessTable,
        (binaries, javas): (&Binaries, &Javas),
        resident: &mut UnwindTables,
        last: bool,
    ) -> Option<Missing> {
        let whose = (sample.cpu, sample.time_ns);
        let pages = self.stacks.remove(&whose)?;
        let space = processes.get(sample.thread.pid).map(|p| &*p.space);
        let space = space.filter(|space| sample.space == 0 || sample.space == space.id);
        // Here addresses on a stack have 64 bits.
        let Some(space) = space.filter(|space| !space.is_narrow()) else {
            self.held = self.held.saturating_sub(pages.len());
            return None;
        };
        if self.tables.len() > MAX_TABLE_PAGES {
            self.tables.clear();
        }
        let registers = Registers {
            rip: sample.rip,
            rsp: sample.rsp,
            rbp: sample.rbp,
            exact: sample.flags & FLAG_EXACT != 0,
        };
        let mut target = Live {
            space,
            processes,
            binaries,
            java: javas.get(sample.thread.pid),
            resident,
            owner,
            tables: &mut self.tables,
            pages: &pages,
            missing: None,
        };
        let known = sample.user.len();
        let python = sample.python.clone();
        let stop = finish(&mut target, registers, &mut sample.user, |depth, part| {
            place_marks(&mut sample.python, depth, &part);
        });
        if let (Some(missing), false) = (target.missing, last) {
            sample.user.truncate(known);
            sample.python = python;
            self.stacks.insert(whose, pages);
            return Some(missing);
        }
        self.held = self.held.saturating_sub(pages.len());
        // Only the leaf's part of a deep stack was copied. Behind it, what ended the walk
        // in the kernel still does.
        if stop != StopReason::Read {
            sample.stop = stop;
        } else if sample.stop == StopReason::NoMapping && sample.user.len() > known {
            // The address is in a mapping that the kernel side did not know yet.
            sample.stop = StopReason::NoProcess;
        }
        sample.space = space.id;
        None
    }
}

/// Writes `depth` into the next marks without a frame that lie in `part`, the part of the
/// stack that belongs to native frame `depth`.
fn place_marks(words: &mut [u64], depth: usize, part: &Range<u64>) {
    for word in words {
        if *word & PYTHON_MARK == 0 || *word & PYTHON_PLACED != 0 {
            continue;
        }
        if !part.contains(&(*word & !PYTHON_MARK)) {
            break;
        }
        *word = PYTHON_MARK | PYTHON_PLACED | depth as u64;
    }
}

/// The process of a sample, and the copy of its stack.
struct Live<'a> {
    space: &'a Space,
    processes: &'a ProcessTable,
    binaries: &'a Binaries,
    java: Option<&'a HotSpot>,
    resident: &'a mut UnwindTables,
    owner: Owner,
    tables: &'a mut Cache,
    pages: &'a Pages,
    /// What it stopped for.
    missing: Option<Missing>,
}

impl Target for Live<'_> {
    fn rule(&mut self, address: u64) -> Result<Rule, StopReason> {
        let mapping = self.space.find(address).ok_or(StopReason::NoMapping)?;
        let key = self
            .processes
            .files
            .key(mapping.file)
            .ok_or(StopReason::NoMapping)?;
        let binary = match Region::of(key) {
            Region::File | Region::Vdso => self.binaries.get(mapping.file),
            Region::Uprobes => return Err(StopReason::Trampoline),
            Region::Anonymous | Region::Vsyscall => None,
        };
        let Some((binary, unwind)) = binary.and_then(|b| Some((b, b.unwind?))) else {
            return Ok(Rule::default());
        };
        let offset = address - mapping.start + mapping.file_offset;
        let relative = address_of(&binary.text, offset)
            .and_then(|v| v.checked_sub(unwind.first_page_vaddr))
            .ok_or(StopReason::NoMapping)?;
        let page = u32::try_from(relative >> PAGE_SHIFT).map_err(|_| StopReason::NoMapping)?;
        let file = mapping.file;
        let low = (relative & (PAGE_SIZE - 1)) as u16;
        // What is kept here may be older than what is resident, which is then looked at.
        for _ in 0..2 {
            let Some(content) = self.page(file, page) else {
                break;
            };
            let Some(content) = content else {
                return Ok(Rule::default());
            };
            match lookup(&content, low) {
                Some(rule) if rule.kind == CFA_LATER => {
                    self.tables.remove(&(file, page));
                }
                rule => return rule.ok_or(StopReason::Unsupported),
            }
        }
        // What this stack needs, the next one likely needs in the kernel.
        self.resident.want(file, page, self.owner, self.binaries);
        self.missing = Some(Missing { file, page });
        Err(StopReason::PageAbsent)
    }

    fn stack(&self, address: u64) -> Option<u64> {
        let bytes = |at: u64, n: usize| {
            let (start, data) = self
                .pages
                .iter()
                .find(|(s, d)| at >= *s && at < *s + d.len() as u64)?;
            data.get((at - start) as usize..)?.get(..n)
        };
        bytes(address, 8)?.try_into().ok().map(u64::from_ne_bytes)
    }

    fn is_java_interpreter(&self, address: u64) -> bool {
        self.java.is_some_and(|java| java.is_interpreter(address))
    }

    fn is_java_call_stub(&self, address: u64) -> bool {
        self.java.is_some_and(|java| java.is_call_stub(address))
    }
}

impl Live<'_> {
    /// The table of a page, `Some(None)` if it has no data; `None`: it has to be
    /// read first.
    fn page(&mut self, file: FileId, page: u32) -> Option<Option<Arc<[u8]>>> {
        let key = (file, page);
        if let Some(known) = self.tables.get(&key) {
            return Some(known.clone());
        }
        let content: Option<Arc<[u8]>> = Some(self.resident.resident(file, page)?.into());
        self.tables.insert(key, content.clone());
        Some(content)
    }
}
