//! CPython's interpreters: where a process has its Python frames, according to its file.
//!
//! [`Interpreter::find`] reads a file that may hold an interpreter; what it finds,
//! moved to where a process has the file mapped, is the [`PythonLayout`] that the
//! eBPF programs walk by. Nothing is read of processes here.

mod key;
mod layout;
mod names;

use crate::elf::ReadAt;
use aiprof_common::PythonLayout;
use key::StatePlace;
use names::PythonNames;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Words of `_Py_DebugOffsets` that are read: more than any version has.
const DEBUG_WORDS: usize = 128;
/// `_Py_DebugOffsets.cookie`.
const COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");
/// The first version whose native frames have marks.
const FIRST_MARKED: u8 = 11;

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
    /// The function that runs Python code (`_PyEval_EvalFrameDefault`); empty: not known.
    pub eval: Range<u64>,
    /// The interpreter's own functions, if those of the program that embeds it are in the same
    /// file; empty: all of the file are its own.
    pub functions: Range<u64>,
    /// Where threads have their states; `None`: it could not be found.
    state: Option<StatePlace>,
    /// `_PyRuntime`.
    runtime: u64,
    /// `PyCode_Type`.
    code_type: u64,
    /// `_Py_DebugOffsets`, from 3.13 on.
    debug: Vec<u64>,
}

impl Interpreter {
    /// The interpreter in a file; `None`: there is none.
    pub fn find(file: &impl ReadAt) -> Option<Self> {
        let names = PythonNames::read(file)?;
        let debug = debug_offsets(&names);
        let version = version(&names, &debug).or_else(|| unnamed_version(&names))?;
        let eval = names.find(b"_PyEval_EvalFrameDefault");
        let eval = match eval {
            Some(eval) => eval.address..eval.address.saturating_add(eval.size.max(1)),
            None if names.is_stripped() && version.minor >= FIRST_MARKED => 0..0,
            None => return None,
        };
        let code_type = match names.find(b"PyCode_Type") {
            Some(code_type) => code_type.address,
            None => {
                names.unnamed_code_type(layout::of(version, &debug)?.code_instructions.into())?
            }
        };
        Some(Self {
            version,
            eval,
            functions: names.functions.clone(),
            state: state_place(&names, version, &debug),
            runtime: names.runtime,
            code_type,
            debug,
        })
    }

    /// Where a process has its frames; `None`: the version is not known, or describes an impossible
    /// layout. `bias` is what is added to the file's addresses, `is_musl` whether the process has
    /// musl's C library and not glibc's.
    pub fn layout(&self, bias: u64, is_musl: bool) -> Option<PythonLayout> {
        let layout = layout::of(self.version, &self.debug)?;
        let interpreters = layout::interpreters(self.version, &self.debug);
        let interpreters = interpreters.map(|offset| self.runtime.wrapping_add(offset));
        let by_list = interpreters.map(|_| StatePlace::List);
        let state = self.state.clone().or(by_list)?;
        let (tss, key, tls_offset) = state.located(bias, is_musl);
        Some(PythonLayout {
            key,
            tls_offset,
            tss,
            code_type: self.code_type.wrapping_add(bias),
            interpreters: interpreters.map_or(0, |at| at.wrapping_add(bias)),
            ..layout
        })
    }
}

/// Where threads have their states.
fn state_place<R: ReadAt>(
    names: &PythonNames<'_, R>,
    version: Version,
    debug: &[u64],
) -> Option<StatePlace> {
    let function = names.find(b"PyGILState_GetThisThreadState");
    let code = function.and_then(|function| {
        let code = names.bytes(function.address, key::CODE_BYTES)?;
        Some((code, function.address))
    });
    let code = code
        .as_ref()
        .map(|(code, address)| (code.as_slice(), *address));
    if version.minor >= key::FIRST_WITHOUT {
        return code.and_then(|(code, address)| key::variable(code, address));
    }
    let offset = code.and_then(|(code, address)| key::offset(code, address, names.runtime));
    // Without names, the release is not known: then lists are better.
    let is_usual = !names.is_stripped() || layout::interpreters(version, debug).is_none();
    let usual = || key::usual(version).filter(|_| is_usual);
    let offset = offset.or_else(usual)?;
    Some(StatePlace::Key(names.runtime.wrapping_add(offset)))
}

/// The words of `_Py_DebugOffsets`, with which `_PyRuntime` begins from 3.13 on; none
/// before.
fn debug_offsets<R: ReadAt>(names: &PythonNames<'_, R>) -> Vec<u64> {
    let Some(bytes) = names.bytes(names.runtime, DEBUG_WORDS * 8) else {
        return Vec::new();
    };
    let words = bytes.chunks_exact(8).filter_map(|b| b.try_into().ok());
    let words: Vec<u64> = words.map(u64::from_le_bytes).collect();
    match words.first() {
        Some(&COOKIE) => words,
        _ => Vec::new(),
    }
}

/// The version: from `Py_Version` (3.11 and later), else by functions that came with one. A file
/// without names shows it from 3.13 on.
fn version<R: ReadAt>(symbols: &PythonNames<'_, R>, debug: &[u64]) -> Option<Version> {
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

/// The version of a file without names: before 3.13 the code objects' size shows it, which is
/// another one in each version with marks.
fn unnamed_version<R: ReadAt>(names: &PythonNames<'_, R>) -> Option<Version> {
    let mut versions = (FIRST_MARKED..13).map(|minor| Version {
        major: 3,
        minor,
        free_threaded: false,
    });
    versions.find(|version| {
        let layout = layout::of(*version, &[]);
        let size = layout.map(|layout| layout.code_instructions.into());
        size.and_then(|size| names.unnamed_code_type(size))
            .is_some()
    })
}

#[cfg(test)]
mod tests;
