//! The Pythons of processes: where their interpreters have their data.

use super::binaries::Binaries;
use aiprof_common::{PYTHON_FRAMES, PythonLayout};
use aiprof_model::{
    process::{FileTable, Mapping},
    wire::PythonFound,
};
use aiprof_symbols::{python::Version, unwind::address_of};
use rustc_hash::FxHashSet;
use std::ops::Range;

/// What was reported of interpreters.
#[derive(Debug, Default)]
pub(crate) struct Pythons {
    /// Versions that are not known.
    unknown: FxHashSet<Version>,
}

impl Pythons {
    /// Finds the interpreter that a process has mapped. Gives where it has its data, and
    /// what is recorded of it, but for the process. A version that is not known is
    /// reported once.
    pub(crate) fn layout(
        &mut self,
        maps: &[Mapping],
        files: &FileTable,
        binaries: &Binaries,
    ) -> Option<(PythonLayout, PythonFound)> {
        let found = maps.iter().find_map(|map| {
            let binary = binaries.get(map.file)?;
            let python = binary.python.as_ref()?;
            let address = address_of(&binary.text, map.file_offset)?;
            let bias = map.start.wrapping_sub(address);
            let eval = python.eval.start.wrapping_add(bias);
            let is_it = python.eval.is_empty() || (map.start..map.end).contains(&eval);
            is_it.then_some((map, python, bias))
        });
        let (map, python, bias) = found?;
        let is_musl = maps.iter().any(|map| {
            let path = files.key(map.file).map_or("", |key| key.path.as_str());
            let name = path.rsplit('/').next().unwrap_or(path);
            name.starts_with("ld-musl-") || name.starts_with("libc.musl-")
        });
        let layout = python.layout(bias, is_musl);
        if layout.is_none() && self.unknown.insert(python.version) {
            tracing::warn!(
                "Python {} is not supported (supported: 3.8 to 3.15); its stacks show C functions",
                python.version
            );
        }
        let layout = layout?;
        let placed = |code: &Range<u64>| code.start.wrapping_add(bias)..code.end.wrapping_add(bias);
        let found = PythonFound {
            time_ns: 0,
            pid: 0,
            version: python.version.to_string(),
            text: match &python.functions {
                functions if functions.is_empty() => map.start..map.end,
                functions => placed(functions),
            },
            eval: placed(&python.eval),
            one_each: layout.kind == PYTHON_FRAMES,
        };
        Some((layout, found))
    }
}
