//! Which functions of a library are probed, and how: the tables' wishes, and
//! where in its code they can be had.

use super::{
    library::{LibraryError, Objects, Places, ProbedLibrary},
    stubs::Chain,
    symbols::FileFunction,
};
use aiprof_common::{FROM_ARGUMENT, ProbeSpec, SPEC_EXIT, SPEC_KEEP, SPEC_LATE};
use aiprof_model::probes::table::{CheckedTable, Compiled, Exits};
use aiprof_symbols::unwind::TextSegment;
use std::sync::Arc;

/// A table, and the place that a library has in it.
#[derive(Clone, Debug)]
pub(super) struct Use {
    /// The table.
    pub(super) table: Arc<CheckedTable>,
    /// [`ProbedFile::layer`](aiprof_model::probes::ProbedFile::layer).
    pub(super) layer: u8,
    /// Only functions that the table names, none that match a pattern.
    pub(super) names_only: bool,
}

impl Use {
    /// Whether both are the same place of the same table.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.table.name == other.table.name && self.layer == other.layer
    }
}

/// A function to probe.
#[derive(Debug)]
pub(super) struct Planned {
    /// Its symbol.
    pub(super) symbol: String,
    /// Which of the [uses](Use) it belongs to.
    pub(super) of: usize,
    /// What is read there.
    pub(super) compiled: Compiled,
    /// A return probe does no harm.
    pub(super) nothrow: bool,
    /// Where.
    pub(super) places: Places,
    /// Where it leads to, if its exit is wanted and it has none of its own.
    pub(super) leads_to: Option<Chain>,
}

/// The functions of one library.
#[derive(Debug, Default)]
pub(super) struct ProbePlan {
    /// Those to probe.
    pub(super) functions: Vec<Planned>,
    /// Functions without an instruction that can be probed, and indirect ones.
    pub(super) unprobed: u64,
    /// Second names of functions.
    pub(super) aliases: u64,
    /// The executable parts of the file.
    pub(super) text: Vec<TextSegment>,
}

/// Plans the probes of a library.
///
/// # Errors
/// It cannot be read.
pub(super) fn plan(
    library: &ProbedLibrary<'_>,
    uses: &[Use],
    exits: Exits,
) -> Result<ProbePlan, LibraryError> {
    // The first table that has a function takes it; in it, the first in the file.
    let found = library.functions(|symbol| {
        (0..).zip(uses).find_map(|(of, used): (usize, &Use)| {
            let function = used.table.function(symbol)?;
            let named = !used.names_only || function.symbols.iter().any(|s| s == symbol);
            (named && function.is_probed(exits)).then(|| rank(of, function.line))
        })
    })?;
    let mut plan = ProbePlan {
        unprobed: found.resolvers + found.without_code,
        aliases: found.aliases,
        text: library.text().to_vec(),
        ..ProbePlan::default()
    };
    for function in &found.functions {
        let of = function.rank >> LINE_BITS;
        let Some(used) = uses.get(of) else { continue };
        match plan_one(library, function, used, exits)? {
            Some(planned) => plan.functions.push(Planned { of, ..planned }),
            None => plan.unprobed += 1,
        }
    }
    Ok(plan)
}

/// Bits of a rank for the line of a table.
const LINE_BITS: u32 = 32;

/// The order of names of one function.
fn rank(of: usize, line: u32) -> usize {
    of << LINE_BITS | line as usize
}

/// Plans the probes of one function; `None` if it cannot be probed.
///
/// # Errors
/// Its code cannot be read.
pub(super) fn plan_one(
    library: &ProbedLibrary<'_>,
    function: &FileFunction,
    used: &Use,
    exits: Exits,
) -> Result<Option<Planned>, LibraryError> {
    let symbol = &function.name;
    let Some(described) = used.table.function(symbol) else {
        return Ok(None);
    };
    if !described.is_probed(exits) {
        return Ok(None);
    }
    let mut compiled = used.table.compile(described, symbol, exits);
    let spec = &mut compiled.spec;
    let decoded = spec.flags & SPEC_EXIT != 0 && !described.nothrow;
    if decoded {
        // Its exits may be others' too: an exit without a known entry proves nothing. And there may
        // be more, not known here: jumps through pointers.
        spec.flags |= SPEC_KEEP | SPEC_LATE;
    }
    let (first, all) = (used.table.object_of(described), used.table.object_classes());
    let objects = Objects {
        first: first.as_slice(),
        all: &all,
    };
    let exits_of = decoded.then_some(objects);
    let Some(places) = library.places(function, arguments_read(spec), exits_of)? else {
        return Ok(None);
    };
    let leads_to = match decoded && places.exits.is_empty() {
        true => library.stub(function)?,
        false => None,
    };
    Ok(Some(Planned {
        symbol: symbol.clone(),
        of: 0,
        compiled,
        nothrow: described.nothrow,
        places,
        leads_to,
    }))
}

/// The argument registers that the entry's operations read, a bit each.
fn arguments_read(spec: &ProbeSpec) -> u8 {
    let entry = spec.ops.iter().take(spec.n_entry.into());
    entry
        .filter(|op| op.from == FROM_ARGUMENT)
        .fold(0, |mask, op| {
            mask | 1_u8.checked_shl(op.index.into()).unwrap_or(0)
        })
}

impl From<std::io::Error> for LibraryError {
    fn from(error: std::io::Error) -> Self {
        Self::Elf(error.into())
    }
}
