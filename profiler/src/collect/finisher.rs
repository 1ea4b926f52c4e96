//! Samples whose walk ended in the kernel for want of a table, finished here.

use super::{binaries::Binaries, tables::Tables};
use crate::{
    process::{FileId, ProcessTable, Region, Space},
    unwind::{
        PageContent, address_of, lookup,
        walk::{Registers, Target, finish},
    },
    wire::{Sample, StopReason},
};
use aiprof_common::{FLAG_EXACT, PAGE_SHIFT, PAGE_SIZE, Rule};
use rustc_hash::FxHashMap;

/// Most stack pages held for samples still to come.
const MAX_STACK_PAGES: usize = 4096;
/// Most table pages kept for the next sample.
const MAX_TABLE_PAGES: usize = 256;

/// Pages of one sample's stack: (address, content).
type Pages = Vec<(u64, Box<[u8]>)>;

/// Finishes walks.
#[derive(Default)]
pub struct Finisher {
    stacks: FxHashMap<(u32, u64), Pages>,
    held: usize,
    tables: FxHashMap<(FileId, u32), Option<Vec<u8>>>,
}

impl Finisher {
    /// Takes in a page of the stack of the sample at (cpu, time).
    pub fn page(&mut self, cpu: u32, time_ns: u64, address: u64, data: Box<[u8]>) {
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

    /// Continues the walk of a sample if its stack was sent along.
    pub fn finish(
        &mut self,
        sample: &mut Sample,
        processes: &ProcessTable,
        binaries: &Binaries,
        resident: &mut Tables,
    ) {
        let Some(pages) = self.stacks.remove(&(sample.cpu, sample.time_ns)) else {
            return;
        };
        self.held = self.held.saturating_sub(pages.len());
        let Some(process) = processes.get(sample.thread.pid) else {
            return;
        };
        let space = &*process.space;
        if sample.space != 0 && sample.space != space.id {
            return;
        }
        if self.tables.len() > MAX_TABLE_PAGES {
            self.tables.clear();
        }
        let registers = Registers {
            rip: sample.rip,
            rsp: sample.rsp,
            rbp: sample.rbp,
            exact: sample.flags & FLAG_EXACT != 0,
            guessed: false,
        };
        let mut target = Live {
            space,
            processes,
            binaries,
            resident,
            tables: &mut self.tables,
            pages: &pages,
        };
        sample.stop = finish(&mut target, registers, &mut sample.user);
        sample.space = space.id;
    }
}

/// The process of a sample, and the copy of its stack.
struct Live<'a> {
    space: &'a Space,
    processes: &'a ProcessTable,
    binaries: &'a Binaries,
    resident: &'a mut Tables,
    tables: &'a mut FxHashMap<(FileId, u32), Option<Vec<u8>>>,
    pages: &'a Pages,
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
        let Some((binary, unwind)) = binary.and_then(|b| Some((b, b.unwind.as_ref()?))) else {
            return Ok(Rule::default());
        };
        let offset = address - mapping.start + mapping.file_offset;
        let relative = address_of(&binary.text, offset)
            .and_then(|v| v.checked_sub(unwind.first_page_vaddr()))
            .ok_or(StopReason::NoMapping)?;
        let index = u32::try_from(relative >> PAGE_SHIFT).map_err(|_| StopReason::NoMapping)?;
        let resident = &mut *self.resident;
        let page = self.tables.entry((mapping.file, index)).or_insert_with(|| {
            // What this stack needed, the next one likely needs in the kernel.
            resident.want(mapping.file, index, self.binaries);
            let mut content = Vec::new();
            match unwind.page(index, &mut content) {
                Ok(PageContent::Table) => Some(content),
                _ => None,
            }
        });
        let Some(page) = page else {
            return Ok(Rule::default());
        };
        let low = (relative & (PAGE_SIZE - 1)) as u16;
        lookup(page, low).ok_or(StopReason::Unsupported)
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
}
