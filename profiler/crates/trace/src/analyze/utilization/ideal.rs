//! Tables of ideal cycles: what each kernel would take if nothing ever stalled.

use crate::analyze::messages::{Level, Messages};
use rustc_hash::FxHashMap;

/// Category of what no table knows.
pub(crate) const OTHER: &str = "other";
/// Category of a kernel for which a table names none.
pub(crate) const NOT_AVAILABLE: &str = "NotAvailable";
/// The row of a table that is the sum of the others, and the only one that fits with
/// autopilot on.
pub(crate) const TOTAL: &str = "Total";
/// What names of kernels end with in FLEX traces; tables leave it away.
pub(crate) const KERNEL_SUFFIX: &str = " Cmpt Exec";

/// Rows of a table that make its sequence.
const MAX_SEQUENCE: usize = 500;
/// Different kernels of one table; more are counted.
const MAX_KERNELS: usize = 100_000;

/// The part of an inference that a table is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Decoding: inter-token latency.
    Itl,
    /// Prefill: time to first token.
    Ttft,
    /// Not given.
    #[default]
    Unknown,
}

impl Phase {
    /// As tables show it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Itl => "ITL",
            Self::Ttft => "TTFT",
            Self::Unknown => "UNKN",
        }
    }
}

/// A kernel of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Ideal cycles of the cores; 0: none are known.
    pub cycles: u64,
    /// Number of its category in [`IdealTable::categories`].
    pub category: usize,
    /// Number in the order of the table; the same for all its rows.
    pub(super) id: u32,
}

/// How an earlier row of the same kernel differs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Its cycles, which count.
    pub cycles: Option<u64>,
    /// The number of its category, which counts.
    pub category: Option<usize>,
}

/// One table.
#[derive(Clone, Debug, Default)]
pub struct IdealTable {
    /// The part of an inference that it is for.
    pub phase: Phase,
    kernels: FxHashMap<String, Kernel>,
    categories: Vec<String>,
    category_numbers: FxHashMap<String, usize>,
    sequence: Vec<u32>,
    rows: usize,
    cycles: u64,
    total: Option<u64>,
    refused: u64,
}

impl IdealTable {
    /// An empty table.
    pub fn new(phase: Phase) -> Self {
        let mut table = Self {
            phase,
            ..Self::default()
        };
        table.category(OTHER);
        table
    }

    /// Adds a row of a compiler log. A row called `Total` is the sum; a second row of a
    /// kernel with other values is reported.
    pub fn add(&mut self, kernel: &str, category: &str, cycles: u64, messages: &mut Messages) {
        if kernel == TOTAL {
            self.total.get_or_insert(cycles);
            return;
        }
        let before = self.insert(kernel, category, cycles);
        if let Some(old) = before.cycles {
            messages.warn(
                "UTL",
                format_args!(
                    "UTL: Kernel already has an entry with different cycle count: \
                     {kernel}{KERNEL_SUFFIX} {cycles} {old}"
                ),
            );
        }
        if let Some(old) = before.category {
            let old = self.categories.get(old).map_or(OTHER, String::as_str);
            messages.warn(
                "UTL",
                format_args!(
                    "UTL: Kernel->Category map already has an entry with different category: \
                     {kernel}{KERNEL_SUFFIX} {category} {old}"
                ),
            );
        }
    }

    /// Adds a row. If a kernel has several rows, the first category counts, and the first
    /// cycles that are not zero. Returns how an earlier row differs.
    pub fn insert(&mut self, kernel: &str, category: &str, cycles: u64) -> Difference {
        let mut difference = Difference::default();
        let is_known = self.kernels.contains_key(kernel);
        if !is_known && self.kernels.len() >= MAX_KERNELS {
            self.refused += 1;
            return difference;
        }
        self.rows += 1;
        self.cycles = self.cycles.saturating_add(cycles);
        let category = self.category(category);
        // Below MAX_KERNELS, which fits.
        let next = u32::try_from(self.kernels.len()).unwrap_or(u32::MAX);
        let id = if let Some(known) = self.kernels.get_mut(kernel) {
            if known.cycles == 0 {
                known.cycles = cycles;
            }
            difference.cycles = (known.cycles != cycles).then_some(known.cycles);
            difference.category = (known.category != category).then_some(known.category);
            known.id
        } else {
            let id = next;
            let new = Kernel {
                cycles,
                category,
                id,
            };
            self.kernels.insert(kernel.to_owned(), new);
            id
        };
        if self.sequence.len() < MAX_SEQUENCE {
            self.sequence.push(id);
        }
        difference
    }

    fn category(&mut self, name: &str) -> usize {
        if let Some(known) = self.category_numbers.get(name) {
            return *known;
        }
        let number = self.categories.len();
        self.categories.push(name.to_owned());
        self.category_numbers.insert(name.to_owned(), number);
        number
    }

    /// A kernel by its name without `KERNEL_SUFFIX`.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.get(name)
    }

    /// The categories in the order of their first row, `OTHER` before all.
    pub fn categories(&self) -> &[String] {
        &self.categories
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.rows == 0 && self.total.is_none()
    }

    /// Number of rows but the sum.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Cycles of all rows together.
    pub fn cycles(&self) -> u64 {
        self.cycles
    }

    /// The cycles of one run of everything: the table's own sum, else that of its
    /// rows.
    pub(crate) fn total_cycles(&self) -> u64 {
        self.total.unwrap_or(self.cycles)
    }

    /// Whether the table has a sum of its own.
    pub(crate) fn has_total(&self) -> bool {
        self.total.is_some()
    }

    /// The kernels of the first rows, by their numbers.
    pub(super) fn sequence(&self) -> &[u32] {
        &self.sequence
    }

    /// Whether both have the same values for the same kernels in the same order.
    fn is_same(&self, other: &Self) -> bool {
        let key = |t: &Self| (t.rows, t.cycles, t.total, t.kernels.len());
        let cycles = |t: &Self, name: &str| t.kernels.get(name).map(|k| (k.cycles, k.id));
        let mut names = self.kernels.keys();
        key(self) == key(other)
            && self.sequence == other.sequence
            && names.all(|name| cycles(self, name) == cycles(other, name))
    }
}

/// All tables of one compiler log, or of an inductor cache directory.
#[derive(Clone, Debug, Default)]
pub struct IdealTables {
    tables: Vec<IdealTable>,
    /// Tables that were seen, with those that repeat another.
    seen: usize,
    /// Whether the compiler chose for itself: then kernels of a trace are not those of
    /// the tables, and only sums can be compared.
    pub autopilot: bool,
}

/// Tables of one log; more are counted.
const MAX_TABLES: usize = 256;

impl IdealTables {
    /// Adds a table, unless it repeats one.
    pub fn add(&mut self, table: IdealTable, messages: &mut Messages) {
        self.seen += 1;
        if table.refused > 0 {
            messages.warn(
                "UTL",
                format_args!(
                    "UTL: {} rows of an ideal cycles table were skipped (limit: {MAX_KERNELS} \
                     kernels)",
                    table.refused
                ),
            );
        }
        if self.tables.iter().any(|known| known.is_same(&table)) {
            messages.warn(
                "UTL",
                format_args!(
                    "UTL: Fingerprint of current table already exists for previous table. \
                     Duplicated tables? Keeping the previous table only"
                ),
            );
        } else if self.tables.len() >= MAX_TABLES {
            messages.warn(
                "UTL",
                format_args!("UTL: More than {MAX_TABLES} ideal cycles tables; one was skipped"),
            );
        } else {
            messages.info(
                "UTL",
                format_args!(
                    "UTL: Adding ideal cycles table ({}) with {} rows",
                    table.phase.word(),
                    table.rows
                ),
            );
            self.tables.push(table);
        }
    }

    /// The different tables in their order.
    pub fn tables(&self) -> &[IdealTable] {
        &self.tables
    }

    /// Warns where several tables make results less certain; called once, at the end.
    pub fn closing(&self, messages: &mut Messages) {
        if self.seen > 1 && messages.wants(Level::Warn) {
            messages.warn(
                "UTL",
                format_args!(
                    "UTL: {}/{} unique tables with ideal cycles have been detected. \
                     Utilization results should be inspected carefully!!!!",
                    self.tables.len(),
                    self.seen
                ),
            );
        }
    }
}
