//! Functions whose addresses a runtime hands out, to be probed where they are: the result of a
//! look-up by name, and tables of addresses that a driver fills. If that happened before the
//! recording, functions that only lead on to them give the addresses. Nothing here is believed that
//! is not the beginning of a function.

use super::{
    attach::Stubs,
    look::{Look, What},
};
use aiprof_common::{FETCH_VALUE, FROM_ARGUMENT};
use aiprof_model::{
    probes::{
        CallKind, Probe, Tables, role,
        table::{CheckedTable, Exits},
    },
    process::ProcessTable,
    wire::FileKey,
};
use aiprof_record::correlate::{CallView, DataView};
use aiprof_symbols::unwind::address_of;
use rustc_hash::FxHashMap;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Most threads whose last name is remembered.
const MAX_NAMES: usize = 4096;
/// Most tables of addresses that wait, and most places of tables remembered.
const MAX_TABLES: usize = 1024;
/// Most processes remembered whose functions were followed.
const MAX_FOLLOWED: usize = 65_536;
/// How many tables of one function are read without pause.
const EAGER: u32 = 16;
/// How often they are after that.
const SELDOM: Duration = Duration::from_millis(100);
/// How long a table waits for its neighbours: where one begins, the one before it
/// ends at the latest.
const SETTLE: Duration = Duration::from_millis(5);
/// The same where its thread has made no other call since: it may be about to have the next
/// table filled, and wait for a CPU.
const QUIET: Duration = Duration::from_millis(60);
/// The same where its thread is seen to have a table filled: the end may be lost.
const LONGEST: Duration = Duration::from_secs(1);
/// How far above a call its callers' variables are taken to be. A table there is its
/// callers' own, and something else when it is read.
const CALLERS: u64 = 64 << 10;

/// A function to be probed.
#[derive(Clone, Debug)]
pub(super) struct Handed {
    /// The process that was handed it.
    pub(super) pid: u32,
    /// Its address there.
    pub(super) address: u64,
    /// The symbol that it is.
    pub(super) symbol: String,
    /// The table that has it.
    pub(super) table: Arc<CheckedTable>,
}

/// A probed function that hands out addresses.
#[derive(Debug)]
struct AddressSource {
    table: Arc<CheckedTable>,
    /// Slot of the address of the one that it hands out.
    function: Option<usize>,
    /// Tag of the text that names the function.
    name: Option<u8>,
    /// Which it always is.
    always: Option<String>,
    /// What it fills a table with, and the slot of the table's address.
    fills: Option<(usize, Vec<String>)>,
    /// The table is there before the call.
    is_there: bool,
}

/// A table of addresses in a process.
#[derive(Debug)]
struct Filled {
    pid: u32,
    tid: u32,
    at: u64,
    source: u32,
    since: Instant,
}

/// A thread that has tables filled, one after the other.
#[derive(Debug)]
struct Filling {
    /// Calls that have not returned.
    open: u32,
    /// When one began or returned last.
    last: Instant,
    /// It does something else by now.
    is_over: bool,
}

impl Filling {
    /// Whether all tables of the thread are known.
    fn is_over(&self) -> bool {
        let since = self.last.elapsed();
        self.is_over || (self.open == 0 && since >= QUIET) || since >= LONGEST
    }
}

/// Follows the calls that hand out functions.
#[derive(Debug, Default)]
pub(super) struct HandedOut {
    sources: FxHashMap<u32, AddressSource>,
    /// The last text of a thread, and for which function.
    names: FxHashMap<u32, (u32, String)>,
    waiting: Vec<Filled>,
    /// Threads that have tables filled.
    filling: FxHashMap<u32, Filling>,
    /// How often the tables that a function fills were read, and when last, by the
    /// numbers of its file and of itself.
    read: FxHashMap<(u32, u32), (u32, Option<Instant>)>,
    /// Where tables begin, by process.
    begins: Vec<(u32, u64)>,
    /// Functions that only lead on, by the number of their file.
    stubs: FxHashMap<u32, Arc<Stubs>>,
    /// Processes, and the files whose functions were followed there.
    followed: FxHashMap<u32, Vec<u32>>,
}

impl HandedOut {
    /// A function is probed from here on.
    pub(super) fn note(&mut self, probe: &Probe, tables: &Tables, exits: Exits) {
        if probe.kind != CallKind::Resolve {
            return;
        }
        let Some(table) = tables.get(&probe.table) else {
            return;
        };
        let Some(function) = table.function(&probe.function) else {
            return;
        };
        // The second argument itself is among the values: what it leads to is read.
        let entry = function.program(exits).entry.iter();
        let second = |op: &&aiprof_common::FetchOp| {
            (op.from, op.index, op.how, op.size) == (FROM_ARGUMENT, 1, FETCH_VALUE, 8)
        };
        let slot = entry.copied().find(|op| second(&op)).map(|op| op.to.into());
        let there = probe.slot(role::DISPATCH);
        let fills = there.or(slot).filter(|_| !function.fills.is_empty());
        let source = AddressSource {
            table: Arc::clone(table),
            function: probe.slot(role::FUNCTION),
            name: probe.tag(role::NAME),
            always: function.hands_out.clone(),
            fills: fills.map(|slot| (slot, function.fills.clone())),
            is_there: there.is_some(),
        };
        self.sources.insert(probe.id, source);
    }

    /// Functions of a file only lead on.
    pub(super) fn note_stubs(&mut self, stubs: Stubs) {
        self.stubs.insert(stubs.file, Arc::new(stubs));
    }

    /// A process has gone, or runs another program.
    pub(super) fn forget(&mut self, pid: u32) {
        self.followed.remove(&pid);
    }

    /// What the functions of a file lead to in a process that was not seen to call
    /// any before.
    pub(super) fn behind(&mut self, call: &CallView<'_>, processes: &ProcessTable) -> Option<Look> {
        let stubs = self.stubs.get(&call.library())?;
        if self.followed.len() >= MAX_FOLLOWED {
            self.followed.clear();
        }
        let followed = self.followed.entry(call.pid()).or_default();
        if followed.contains(&call.library()) {
            return None;
        }
        followed.push(call.library());
        let bias = bias_of(stubs, call.pid(), processes)?;
        Some(Look {
            pid: call.pid(),
            what: What::Chains {
                bias,
                stubs: Arc::clone(stubs),
            },
        })
    }

    /// A text that may name the function that is asked for.
    pub(super) fn data(&mut self, data: &DataView<'_>) {
        let probe = data.probe().id;
        let Some(source) = self.sources.get(&probe) else {
            return;
        };
        let Some(text) = data.whole().filter(|_| source.name == Some(data.tag())) else {
            return;
        };
        if self.names.len() >= MAX_NAMES {
            self.names.clear();
        }
        let name = String::from_utf8_lossy(text).into_owned();
        self.names.insert(data.tid(), (probe, name));
    }

    /// Whether a probe is on a function that hands out others.
    pub(super) fn is_source(&self, probe: u32) -> bool {
        self.sources.contains_key(&probe)
    }

    /// The function that a call handed out, if it did.
    pub(super) fn call(&mut self, call: &CallView<'_>) -> Option<Handed> {
        let probe = call.probe().id;
        let Some(source) = self.sources.get(&probe) else {
            self.other_call(call.tid());
            return None;
        };
        let value = |slot: usize| call.value(slot).filter(|value| *value != 0);
        let is_kept = |at: &u64| at.wrapping_sub(call.sp()) > CALLERS;
        let table = source.fills.as_ref().and_then(|&(slot, _)| value(slot));
        let table = table.filter(is_kept);
        if source.fills.is_some() && !source.is_there {
            self.filling(call, table);
        }
        let source = self.sources.get(&probe)?;
        if call.is_exit() == source.is_there || call.failed() {
            return None;
        }
        if let Some(at) = table
            && self.waiting.len() < MAX_TABLES
            && is_due(self.read.entry((call.library(), probe)).or_default())
        {
            self.waiting.push(Filled {
                pid: call.pid(),
                tid: call.tid(),
                at,
                source: probe,
                since: Instant::now(),
            });
        }
        let address = source.function.and_then(value)?;
        let symbol = match &source.always {
            Some(symbol) => symbol.clone(),
            None => {
                let (of, name) = self.names.remove(&call.tid())?;
                (of == probe).then_some(name)?
            }
        };
        source.table.function(&symbol)?;
        Some(Handed {
            pid: call.pid(),
            address,
            symbol,
            table: Arc::clone(&source.table),
        })
    }

    /// A thread begins or ends to have a table filled.
    fn filling(&mut self, call: &CallView<'_>, table: Option<u64>) {
        if let Some(at) = table
            && !self.begins.contains(&(call.pid(), at))
        {
            if self.begins.len() >= MAX_TABLES {
                self.begins.remove(0);
            }
            self.begins.push((call.pid(), at));
        }
        if self.filling.len() >= MAX_NAMES {
            self.filling.clear();
        }
        let filling = self.filling.entry(call.tid()).or_insert(Filling {
            open: 0,
            last: Instant::now(),
            is_over: false,
        });
        filling.open = match call.is_exit() {
            true => filling.open.saturating_sub(1),
            false => filling.open + 1,
        };
        filling.last = Instant::now();
        filling.is_over = false;
    }

    /// A thread makes another call.
    fn other_call(&mut self, tid: u32) {
        if let Some(filling) = self.filling.get_mut(&tid) {
            filling.is_over = true;
        }
    }

    /// Whether tables of a process are not read yet.
    pub(super) fn is_waiting(&self, pid: u32) -> bool {
        self.waiting.iter().any(|table| table.pid == pid)
    }

    /// The tables that have waited long enough.
    pub(super) fn settled(&mut self) -> Vec<Look> {
        let (sources, begins, filling) = (&self.sources, &self.begins, &self.filling);
        // What was there before the call has no end that is still to be seen.
        let is_ripe = |table: &mut Filled| {
            let source = sources.get(&table.source);
            source.is_none_or(|source| source.is_there)
                || table.since.elapsed() >= SETTLE
                    && filling.get(&table.tid).is_none_or(Filling::is_over)
        };
        let tables = self.waiting.extract_if(.., is_ripe);
        let looks = tables.filter_map(|table| {
            let source = sources.get(&table.source)?;
            look_at(&table, source, begins)
        });
        let looks = looks.collect();
        self.filling.retain(|_, filling| !filling.is_over());
        looks
    }
}

/// Whether a table should be read: a driver fills those of every process with the same functions,
/// as a rule.
fn is_due((times, last): &mut (u32, Option<Instant>)) -> bool {
    if *times >= EAGER && last.is_some_and(|last| last.elapsed() < SELDOM) {
        return false;
    }
    *times = times.saturating_add(1);
    *last = Some(Instant::now());
    true
}

/// How much higher a file is loaded in a process than its headers state.
fn bias_of(stubs: &Stubs, pid: u32, processes: &ProcessTable) -> Option<u64> {
    let is_file = |key: &FileKey| match (key.build_id, stubs.build_id) {
        (Some(mapped), Some(own)) => mapped == own,
        _ => key.path == stubs.path,
    };
    let maps = &processes.get(pid)?.space.maps;
    let mut text = maps.iter().filter_map(|mapping| {
        is_file(processes.files.key(mapping.file)?).then_some(())?;
        let vaddr = address_of(&stubs.text, mapping.file_offset)?;
        Some(mapping.start.wrapping_sub(vaddr))
    });
    text.next()
}

/// A table of addresses, up to the begin of the next one.
fn look_at(table: &Filled, source: &AddressSource, begins: &[(u32, u64)]) -> Option<Look> {
    let (_, symbols) = source.fills.as_ref()?;
    // An older runtime knows fewer functions, and has the next table behind them.
    let next = begins
        .iter()
        .filter(|(pid, at)| *pid == table.pid && *at > table.at)
        .map(|(_, at)| *at)
        .min();
    let room = next.map_or(u64::MAX, |next| (next - table.at) / 8);
    let room = usize::try_from(room).unwrap_or(usize::MAX);
    Some(Look {
        pid: table.pid,
        what: What::Table {
            at: table.at,
            symbols: symbols.iter().take(room).cloned().collect(),
            table: Arc::clone(&source.table),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_common::{CALL_EXIT, MAX_VALUES};
    use aiprof_model::wire::{Call, Event};
    use aiprof_record::correlate::{Tracked, Tracker};

    const SP: u64 = 0x7ffd_565b_0300;
    const GLOBAL: &str = "zeGetGlobalProcAddrTable";
    const DEVICES: &str = "clGetDeviceIDs";

    /// Handed-out functions behind a tracker.
    struct Watch {
        tracker: Tracker,
        all: HandedOut,
    }

    impl Watch {
        fn call(&mut self, call: &Call) -> Option<Handed> {
            self.all.call(&self.tracker.view(call).unwrap())
        }

        fn settled(&mut self) -> Vec<Look> {
            self.all.settled()
        }

        /// How many functions the tables have that are read now.
        fn lengths(&mut self) -> Vec<usize> {
            let length = |look: &Look| match &look.what {
                What::Table { symbols, .. } => symbols.len(),
                _ => 0,
            };
            self.settled().iter().map(length).collect()
        }

        /// Its thread makes another call.
        fn other_call(&mut self) {
            self.all.other_call(7);
        }
    }

    /// What follows one function, and the slot of the address of its table.
    fn following(name: &str, symbol: &str) -> (Watch, usize) {
        let tables = Tables::built_in();
        let table = tables.get(name).unwrap();
        let function = table.function(symbol).unwrap();
        let probe = table.compile(function, symbol, Exits::Needed).probe;
        let mut handed_out = HandedOut::default();
        handed_out.note(&probe, &tables, Exits::Needed);
        let slot = handed_out.sources[&probe.id].fills.as_ref().unwrap().0;
        let mut tracker = Tracker::default();
        tracker.apply(&Event::Probe(probe), &mut |_: &Tracked<'_>| {});
        let all = handed_out;
        (Watch { tracker, all }, slot)
    }

    fn call(slot: usize, table: u64, flags: u16) -> Call {
        let mut values = [0; MAX_VALUES];
        values[slot] = table;
        Call {
            time_ns: 1,
            cpu: 0,
            pid: 7,
            tid: 7,
            probe: 0,
            library: 1,
            stack: 0,
            sp: SP,
            around_ns: 0,
            result: 0,
            unread: 0,
            flags,
            values,
        }
    }

    #[test]
    fn a_table_is_read_once_its_neighbours_are_known() {
        let (mut handed_out, slot) = following("level-zero", GLOBAL);
        for at in [0x5500_0000, 0x5500_0008] {
            assert!(handed_out.call(&call(slot, at, CALL_EXIT)).is_none());
        }
        handed_out.other_call();
        assert!(handed_out.settled().is_empty());
        std::thread::sleep(SETTLE);
        // The first ends where the second begins.
        assert_eq!(handed_out.lengths(), [1, 2]);
        assert!(handed_out.settled().is_empty());
    }

    /// As a thread that loses its CPU amid a driver's tables.
    #[test]
    fn a_table_waits_while_its_thread_may_fill_the_next() {
        let (mut handed_out, slot) = following("level-zero", GLOBAL);
        handed_out.call(&call(slot, 0x5500_0000, 0));
        handed_out.call(&call(slot, 0x5500_0000, CALL_EXIT));
        std::thread::sleep(SETTLE);
        assert!(handed_out.settled().is_empty(), "no other call yet");
        handed_out.call(&call(slot, 0x5500_0008, 0));
        std::thread::sleep(QUIET);
        assert!(handed_out.settled().is_empty(), "one has not returned");
        handed_out.call(&call(slot, 0x5500_0008, CALL_EXIT));
        handed_out.other_call();
        assert_eq!(handed_out.lengths(), [1], "the second is young");
        std::thread::sleep(SETTLE);
        assert_eq!(handed_out.lengths(), [2]);
        // A thread that does nothing else.
        handed_out.call(&call(slot, 0x5600_0000, CALL_EXIT));
        std::thread::sleep(QUIET);
        assert_eq!(handed_out.lengths(), [2]);
    }

    #[test]
    fn a_table_ends_where_the_next_begins_whatever_becomes_of_that() {
        let (mut handed_out, slot) = following("level-zero", GLOBAL);
        handed_out.call(&call(slot, 0x5500_0000, CALL_EXIT));
        handed_out.call(&call(slot, 0x5500_0008, 0));
        handed_out.other_call();
        std::thread::sleep(SETTLE);
        assert_eq!(handed_out.lengths(), [1]);
    }

    #[test]
    fn a_table_that_was_there_is_read_at_once() {
        let (mut handed_out, slot) = following("opencl", DEVICES);
        assert!(handed_out.call(&call(slot, 0x5500_0000, 0)).is_none());
        assert_eq!(handed_out.settled().len(), 1);
        // Its end adds nothing more.
        handed_out.call(&call(slot, 0x5500_0000, CALL_EXIT));
        assert!(handed_out.settled().is_empty());
    }

    #[test]
    fn tables_on_the_callers_stack_are_left_alone() {
        for at in [SP, SP + 0xc0, SP + CALLERS] {
            let (mut handed_out, slot) = following("level-zero", GLOBAL);
            handed_out.call(&call(slot, at, CALL_EXIT));
            assert!(handed_out.all.waiting.is_empty(), "{at:#x}");
        }
        for at in [SP - 8, SP + CALLERS + 8, 0x5500_0000] {
            let (mut handed_out, slot) = following("level-zero", GLOBAL);
            handed_out.call(&call(slot, at, CALL_EXIT));
            assert_eq!(handed_out.all.waiting.len(), 1, "{at:#x}");
        }
    }
}
