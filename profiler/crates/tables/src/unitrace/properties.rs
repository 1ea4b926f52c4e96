//! What kernels are made of: registers, memory, width.

use super::Scope;
use super::args::CommandKey;
use super::command::{CommandKind, commands};
use super::device::rows;
use crate::{Cell, Layout, Table, TableEntry};
use aiprof_model::timeline::Timeline;
use rustc_hash::FxHashMap;
use std::borrow::Cow;

/// Name of the table.
pub const NAME: &str = "kernel-properties";

/// `--table kernel-properties`.
pub(crate) const ENTRY: TableEntry = TableEntry {
    name: NAME,
    about: "kernel properties: compilation, SIMD width, arguments, memory, registers (unitrace -d)",
    title: "Kernel Properties",
    columns: "backend kernel compiled simd arguments slm_bytes private_bytes spill_bytes registers",
    make: |request| vec![table(request.timeline, &Scope::default())],
};

/// What a timeline has on a kernel.
#[derive(Clone, Debug, Default)]
struct Properties {
    compiled: Option<String>,
    simd: Option<u64>,
    arguments: Option<u64>,
    slm: Option<u64>,
    private: Option<u64>,
    spill: Option<u64>,
    registers: Option<u64>,
}

/// The table of a timeline.
pub fn table(timeline: &Timeline, scope: &Scope) -> Table {
    let mut known: FxHashMap<(Cow<'_, str>, Cow<'_, str>), Properties> = FxHashMap::default();
    for (_, command) in commands(timeline, scope) {
        if command.kind != CommandKind::Kernel {
            continue;
        }
        let number = |key| command.known.number(key);
        let it = known.entry(command.title(scope)).or_default();
        it.simd = it.simd.or_else(|| number(CommandKey::Simd));
        if let Some(compiled) = command.known.text(CommandKey::Compiled) {
            it.compiled.get_or_insert(compiled.into_owned());
            it.arguments = it.arguments.or_else(|| number(CommandKey::Arguments));
            it.slm = it.slm.or_else(|| number(CommandKey::SlmBytes));
            it.private = it.private.or_else(|| number(CommandKey::PrivateBytes));
            it.spill = it.spill.or_else(|| number(CommandKey::SpillBytes));
            it.registers = it.registers.or_else(|| number(CommandKey::Registers));
        }
    }
    let (found, _) = rows(timeline, scope);
    let kernels = found.iter().filter(|row| row.kind == CommandKind::Kernel);
    let lines = kernels.filter_map(|row| {
        let it = known.get(&(row.backend.as_str().into(), row.name.as_str().into()))?;
        let or_unknown = |value: Option<u64>| value.map_or(Cell::from("unknown"), Cell::from);
        Some(vec![
            row.backend.as_str().into(),
            row.name.as_str().into(),
            it.compiled.clone().unwrap_or_else(|| "?".to_owned()).into(),
            match it.simd {
                Some(1) => "ANY".into(),
                Some(simd) => simd.into(),
                None => "?".into(),
            },
            or_unknown(it.arguments),
            or_unknown(it.slm),
            or_unknown(it.private),
            or_unknown(it.spill),
            or_unknown(it.registers.filter(|count| *count > 0)),
        ])
    });
    Table {
        layout: Layout::Unitrace,
        ..ENTRY.table(lines)
    }
}
