//! Kernel addresses, from `/proc/kallsyms`.
//!
//! The file is read once into a compact table of function symbols (about 2.5 MB
//! for a distribution kernel) and again when an address turns up that it does
//! not cover, for modules and BPF programs come and go. Data symbols and the
//! padding symbols `__pfx_*` are left out: nothing executes there.
//!
//! Format: one `ADDRESS TYPE NAME [MODULE]` a line (Linux `kernel/kallsyms.c`).

use super::SymFrame;
use aiprof_model::profile::FrameKind;
use aiprof_system::files::kernel;
use std::io::{self, BufRead, BufReader};
use std::time::{Duration, Instant};

const KALLSYMS: &str = "/proc/kallsyms";
/// Name of a frame that no kernel symbol covers.
const UNKNOWN: &str = "[unknown kernel]";
/// Most symbols and bytes of names kept: several times what kernels have.
const MAX_SYMBOLS: usize = 1 << 20;
const MAX_NAMES: usize = 32 << 20;
/// Longest line: `KSYM_NAME_LEN` (512) and module name, with room.
const MAX_LINE: u64 = 1024;
/// Bytes read at once: the kernel formats lines faster in large pieces.
const READ_BUFFER: usize = 128 << 10;
/// The last symbol of a module or BPF program covers at most this much, for
/// kallsyms knows no sizes.
const MODULE_REACH: u64 = 256 << 10;
/// The file is read again at most this often.
const REFRESH: Duration = Duration::from_secs(2);

/// How well the kernel lets itself be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelAccess {
    /// Not tried yet.
    Untried,
    /// Addresses are visible.
    Full,
    /// All addresses read as zero: `kernel.kptr_restrict` with too few
    /// capabilities (`CAP_SYSLOG`).
    Hidden,
    /// `/proc/kallsyms` cannot be read.
    Unreadable,
}

/// Names kernel addresses.
#[derive(Debug)]
pub struct KernelSymbolizer {
    table: KernelSymbolTable,
    access: KernelAccess,
    loaded: Option<Instant>,
    /// Whether to read the running kernel's symbols, again when needed.
    live: bool,
}

impl Default for KernelSymbolizer {
    fn default() -> Self {
        Self::new()
    }
}

impl KernelSymbolizer {
    /// For the running kernel. Reads nothing until the first address.
    pub fn new() -> Self {
        Self {
            table: KernelSymbolTable::default(),
            access: KernelAccess::Untried,
            loaded: None,
            live: true,
        }
    }

    /// From a copy of a `kallsyms` file.
    ///
    /// # Errors
    /// When the reader fails.
    #[cfg(test)]
    fn from_kallsyms(reader: impl BufRead) -> io::Result<Self> {
        let (table, access) = KernelSymbolTable::read(reader)?;
        Ok(Self {
            table,
            access,
            loaded: None,
            live: false,
        })
    }

    /// Whether symbols could be read; `Untried` before the first look-up.
    pub fn access(&self) -> KernelAccess {
        self.access
    }

    /// Names each address; one frame for each.
    pub fn symbolize(&mut self, addrs: &[u64]) -> Vec<Vec<SymFrame>> {
        if self.live && self.loaded.is_none() && !addrs.is_empty() {
            self.load();
        }
        if self.is_stale() && addrs.iter().any(|&a| self.table.find(a).is_none()) {
            self.load();
        }
        addrs.iter().map(|&addr| vec![self.frame(addr)]).collect()
    }

    /// Drops the table; the next look-up reads it again. For long pauses.
    pub fn forget(&mut self) {
        if self.live {
            self.table = KernelSymbolTable::default();
            self.loaded = None;
        }
    }

    fn frame(&self, addr: u64) -> SymFrame {
        match self.table.find(addr) {
            Some(name) => SymFrame::plain(name, FrameKind::Kernel),
            None => SymFrame::plain(UNKNOWN, FrameKind::Unknown),
        }
    }

    fn is_stale(&self) -> bool {
        self.live
            && self.access == KernelAccess::Full
            && self.loaded.is_none_or(|at| at.elapsed() >= REFRESH)
    }

    fn load(&mut self) {
        let before = self.access;
        let read = kernel::open(KALLSYMS)
            .and_then(|f| KernelSymbolTable::read(BufReader::with_capacity(READ_BUFFER, f)));
        self.access = match read {
            Ok((table, access)) => {
                self.table = table;
                access
            }
            Err(_) => KernelAccess::Unreadable,
        };
        self.loaded = Some(Instant::now());
        if before != self.access {
            self.report();
        }
    }

    /// Says once why kernel frames will have no names.
    fn report(&self) {
        match self.access {
            KernelAccess::Hidden => tracing::warn!(
                "kernel functions have no names: kernel.kptr_restrict hides their addresses; \
                 run with CAP_SYSLOG, or `sysctl kernel.kptr_restrict=0`"
            ),
            KernelAccess::Unreadable => {
                tracing::warn!("kernel functions have no names: {KALLSYMS} cannot be read");
            }
            KernelAccess::Full | KernelAccess::Untried => {}
        }
    }
}

/// Function symbols sorted by address; names in one buffer.
#[derive(Debug, Default)]
struct KernelSymbolTable {
    symbols: Vec<Symbol>,
    names: String,
}

#[derive(Clone, Copy, Debug)]
struct Symbol {
    addr: u64,
    name_at: u32,
    name_len: u16,
    kind: SymbolKind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum SymbolKind {
    /// A function of the core kernel: reaches to the next symbol.
    Core,
    /// A function of a module or a BPF program.
    Module,
    /// End of a text section: nothing from here to the next symbol.
    End,
}

impl KernelSymbolTable {
    fn read(mut reader: impl BufRead) -> io::Result<(Self, KernelAccess)> {
        let mut table = Self::default();
        let mut line = Vec::new();
        let mut lines = 0_u64;
        loop {
            line.clear();
            let n = io::Read::take(&mut reader, MAX_LINE).read_until(b'\n', &mut line)?;
            if n == 0 {
                break;
            }
            lines += 1;
            table.add_line(&String::from_utf8_lossy(&line));
        }
        table.symbols.sort_by_key(|s| s.addr);
        table.symbols.dedup_by_key(|s| s.addr);
        table.symbols.shrink_to_fit();
        table.names.shrink_to_fit();
        let access = match (table.symbols.is_empty(), lines) {
            (false, _) => KernelAccess::Full,
            (true, 0) => KernelAccess::Unreadable,
            (true, _) => KernelAccess::Hidden,
        };
        Ok((table, access))
    }

    fn add_line(&mut self, line: &str) {
        let mut words = line.split_ascii_whitespace();
        let (Some(addr), Some(kind), Some(name)) = (words.next(), words.next(), words.next())
        else {
            return;
        };
        let is_function = matches!(kind, "T" | "t" | "W" | "w");
        let addr = u64::from_str_radix(addr, 16).unwrap_or(0);
        if !is_function || addr == 0 || name.starts_with("__pfx_") {
            return;
        }
        let kind = match name {
            "_etext" | "_einittext" => SymbolKind::End,
            _ if words.next().is_some() => SymbolKind::Module,
            _ => SymbolKind::Core,
        };
        let full = self.symbols.len() >= MAX_SYMBOLS || self.names.len() + name.len() > MAX_NAMES;
        let (Ok(name_at), Ok(name_len)) = (self.names.len().try_into(), name.len().try_into())
        else {
            return;
        };
        if !full {
            self.names.push_str(name);
            self.symbols.push(Symbol {
                addr,
                name_at,
                name_len,
                kind,
            });
        }
    }

    fn find(&self, addr: u64) -> Option<&str> {
        let after = self.symbols.partition_point(|s| s.addr <= addr);
        let symbol = self.symbols.get(after.checked_sub(1)?)?;
        match symbol.kind {
            SymbolKind::End => return None,
            SymbolKind::Module if addr - symbol.addr >= MODULE_REACH => return None,
            // Beyond the last symbol there is nothing to bound it.
            SymbolKind::Core if after == self.symbols.len() => {
                (addr - symbol.addr < MODULE_REACH).then_some(())?;
            }
            SymbolKind::Core | SymbolKind::Module => {}
        }
        let at = symbol.name_at as usize;
        self.names.get(at..at + usize::from(symbol.name_len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COPY: &str = "\
ffffffff81000000 T _stext
ffffffff81000100 t helper
ffffffff81000100 T alias
ffffffff810001f0 t __pfx_next
ffffffff81000200 T next
ffffffff81000300 D data
ffffffff81000400 T _etext
ffffffff81900000 T __init_one
ffffffffc0201000 t xe_exec\t[xe]
ffffffffc0300000 t bpf_prog_1_a\t[bpf]
";

    fn name(addr: u64) -> String {
        let mut kernel = KernelSymbolizer::from_kallsyms(COPY.as_bytes()).unwrap();
        let frames = kernel.symbolize(&[addr]);
        frames[0][0].name.clone()
    }

    #[test]
    fn names_are_those_of_the_enclosing_symbol() {
        assert_eq!(name(0xffff_ffff_8100_0000), "_stext");
        assert_eq!(
            name(0xffff_ffff_8100_01ff),
            "helper",
            "first of the aliases"
        );
        assert_eq!(
            name(0xffff_ffff_8100_0350),
            "next",
            "data symbols do not count"
        );
        assert_eq!(name(0xffff_ffff_c020_1004), "xe_exec");
    }

    #[test]
    fn addresses_outside_text_are_unknown() {
        for addr in [
            0,
            0x1000,
            0xffff_ffff_8100_0400,
            0xffff_ffff_c028_0000,
            u64::MAX,
        ] {
            assert_eq!(name(addr), UNKNOWN, "{addr:#x}");
        }
    }

    #[test]
    fn hidden_addresses_are_detected() {
        let hidden = "0000000000000000 T _text\n0000000000000000 t f\n";
        let kernel = KernelSymbolizer::from_kallsyms(hidden.as_bytes()).unwrap();
        assert_eq!(kernel.access(), KernelAccess::Hidden);
    }

    #[test]
    fn hostile_lines_do_nothing() {
        let text = format!("x\n\nffff T\nzz t a\n{}\nff00 t ok\n", "f".repeat(5000));
        let mut kernel = KernelSymbolizer::from_kallsyms(text.as_bytes()).unwrap();
        assert_eq!(kernel.symbolize(&[0xff01])[0][0].name, "ok");
    }

    /// The file itself is the oracle: `/proc/kallsyms` read line by line.
    #[test]
    fn running_kernel_agrees_with_kallsyms() {
        let text = std::fs::read_to_string(KALLSYMS).unwrap_or_default();
        let wanted: Vec<(u64, &str)> = text
            .lines()
            .filter_map(|line| {
                let mut words = line.split_ascii_whitespace();
                let addr = u64::from_str_radix(words.next()?, 16).ok()?;
                matches!(words.next()?, "T" | "t").then_some((addr, words.next()?))
            })
            .filter(|(addr, name)| *addr != 0 && !name.starts_with("__pfx_") && *name != "_etext")
            .collect();
        if wanted.is_empty() {
            eprintln!("SKIPPED: kernel addresses are hidden (needs root)");
            return;
        }
        let mut kernel = KernelSymbolizer::new();
        let sample: Vec<&(u64, &str)> = wanted.iter().step_by(97).collect();
        let addrs: Vec<u64> = sample.iter().map(|(addr, _)| *addr).collect();
        let found = kernel.symbolize(&addrs);
        for ((addr, _), frames) in sample.iter().zip(found) {
            // Any of the names at this address is right.
            let at_addr = wanted.iter().filter(|(a, _)| a == addr);
            let names: Vec<&str> = at_addr.map(|(_, name)| *name).collect();
            let found = frames[0].name.as_str();
            assert!(names.contains(&found) || found == UNKNOWN && names.contains(&"_einittext"));
        }
        assert_eq!(kernel.access(), KernelAccess::Full);
    }
}
