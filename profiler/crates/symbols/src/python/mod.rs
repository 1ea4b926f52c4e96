//! CPython's interpreters: where a process has its Python frames, according to its file.
//!
//! [`Interpreter::find`] reads a file that may hold an interpreter; what it finds,
//! moved to where a process has the file mapped, is the [`PythonLayout`] that the
//! eBPF programs walk by. Nothing is read of processes here.

mod key;
mod layout;

use crate::elf::{Dynamic, ReadAt};
use aiprof_common::PythonLayout;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Words of `_Py_DebugOffsets` that are read: more than any version has.
const DEBUG_WORDS: usize = 128;
/// `_Py_DebugOffsets.cookie`.
const COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");
/// The variable that every interpreter has, and exports.
const RUNTIME: &[u8] = b"_PyRuntime";

/// A version of CPython.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version {
    /// 3.
    pub major: u8,
    /// What layouts depend on.
    pub minor: u8,
    /// Whether it is built without the global lock (3.13t, 3.14t).
    pub free_threaded: bool,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let suffix = if self.free_threaded { "t" } else { "" };
        write!(f, "{}.{}{suffix}", self.major, self.minor)
    }
}

/// An interpreter in a file, by the file's virtual addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interpreter {
    /// Its version.
    pub version: Version,
    /// The function that runs Python code (`_PyEval_EvalFrameDefault`).
    pub eval: Range<u64>,
    /// `_PyRuntime.gilstate.autoTSSkey`; `None`: it could not be found.
    key: Option<u64>,
    /// `PyCode_Type`.
    code_type: u64,
    /// `_Py_DebugOffsets`, from 3.13 on.
    debug: Vec<u64>,
}

impl Interpreter {
    /// The interpreter in a file; `None`: there is none.
    pub fn find(file: &impl ReadAt) -> Option<Self> {
        let symbols = Dynamic::read(file)?;
        let runtime = symbols.find(RUNTIME)?;
        let code_type = symbols.find(b"PyCode_Type")?;
        let eval = symbols.find(b"_PyEval_EvalFrameDefault")?;
        let debug = debug_offsets(&symbols, runtime.address);
        let version = version(&symbols, &debug)?;
        let key = symbols
            .find(b"PyGILState_GetThisThreadState")
            .and_then(|function| {
                let code = symbols.bytes(function.address, key::CODE_BYTES)?;
                key::offset(&code, function.address, runtime.address)
            })
            .or_else(|| key::usual(version))
            .map(|offset| runtime.address.wrapping_add(offset));
        Some(Self {
            version,
            eval: eval.address..eval.address.saturating_add(eval.size.max(1)),
            key,
            code_type: code_type.address,
            debug,
        })
    }

    /// Where a process has its frames; `None`: the version is not known, or describes an impossible
    /// layout. `bias` is what is added to the file's addresses, `is_musl` whether the process has
    /// musl's C library and not glibc's.
    pub fn layout(&self, bias: u64, is_musl: bool) -> Option<PythonLayout> {
        let layout = layout::of(self.version, &self.debug)?;
        Some(PythonLayout {
            key: self.key?.wrapping_add(bias),
            code_type: self.code_type.wrapping_add(bias),
            tss: if is_musl {
                aiprof_common::TSS_MUSL
            } else {
                aiprof_common::TSS_GLIBC
            },
            ..layout
        })
    }
}

/// The words of `_Py_DebugOffsets`, with which `_PyRuntime` begins from 3.13 on; none
/// before.
fn debug_offsets<R: ReadAt>(symbols: &Dynamic<'_, R>, runtime: u64) -> Vec<u64> {
    let Some(bytes) = symbols.bytes(runtime, DEBUG_WORDS * 8) else {
        return Vec::new();
    };
    let words = bytes.chunks_exact(8).filter_map(|b| b.try_into().ok());
    let words: Vec<u64> = words.map(u64::from_le_bytes).collect();
    match words.first() {
        Some(&COOKIE) => words,
        _ => Vec::new(),
    }
}

/// The version: from `Py_Version` (3.11 and later), else by functions that came with one.
fn version<R: ReadAt>(symbols: &Dynamic<'_, R>, debug: &[u64]) -> Option<Version> {
    let hex = match debug.get(1) {
        Some(&version) => u32::try_from(version).ok(),
        None => symbols
            .find(b"Py_Version")
            .and_then(|symbol| symbols.bytes(symbol.address, 4)?.try_into().ok())
            .map(u32::from_le_bytes),
    };
    let free_threaded = debug.get(2).is_some_and(|&word| word != 0);
    if let Some(hex) = hex {
        let [major, minor, ..] = hex.to_be_bytes();
        return Some(Version {
            major,
            minor,
            free_threaded,
        });
    }
    const SINCE: [(&[u8], u8); 4] = [
        (b"PyIter_Send", 10),
        (b"PyFrame_GetBack", 9),
        (b"PyCode_NewWithPosOnlyArgs", 8),
        (b"_PyRuntime", 7),
    ];
    let (_, minor) = SINCE
        .iter()
        .find(|(name, _)| symbols.find(name).is_some())?;
    Some(Version {
        major: 3,
        minor: *minor,
        free_threaded: false,
    })
}

#[cfg(test)]
mod tests;
