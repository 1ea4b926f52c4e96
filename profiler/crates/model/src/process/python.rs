//! What is known of a process's Python: its interpreter, and its code objects.

use super::lines::{self, LineTable};
use crate::wire::{PythonCode, PythonFound};
use aiprof_common::{python_id, python_index};
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// Most code objects known of a process.
const MAX_CODES: usize = 1 << 16;
/// Most functions known in all.
const MAX_FUNCTIONS: usize = 1 << 19;

/// A function of a script: what its frames are called.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct ScriptFunction {
    /// Module and name: `json.decoder.JSONDecoder.decode`.
    pub name: String,
    /// Its file.
    pub file: String,
}

impl ScriptFunction {
    /// The name with the place of a line: `json.loads (decoder.py:12)`.
    pub fn at(&self, line: u32) -> String {
        let file = self.file.rsplit('/').next().unwrap_or_default();
        format!("{} ({file}:{line})", self.name)
    }
}

/// All functions of scripts, each once.
#[derive(Debug, Default)]
pub struct ScriptTable {
    functions: Vec<Rc<ScriptFunction>>,
    index: FxHashMap<Rc<ScriptFunction>, u32>,
}

impl ScriptTable {
    fn intern(&mut self, function: ScriptFunction) -> u32 {
        let function = Rc::new(function);
        if let Some(&known) = self.index.get(&function) {
            return known;
        }
        if self.functions.len() >= MAX_FUNCTIONS {
            return u32::MAX;
        }
        let id = self.functions.len() as u32;
        self.functions.push(Rc::clone(&function));
        self.index.insert(function, id);
        id
    }

    /// A function by its handle.
    pub fn get(&self, id: u32) -> Option<&ScriptFunction> {
        self.functions.get(id as usize).map(|function| &**function)
    }
}

/// A code object.
#[derive(Debug)]
struct Code {
    function: u32,
    first_line: u32,
    /// First instructions of stretches with one line, and their lines.
    lines: Vec<(u32, u32)>,
}

/// The Python of a process; forks share it.
#[derive(Clone, Debug, Default)]
pub struct ProcessPython {
    /// Its interpreter.
    pub interpreter: Option<PythonFound>,
    codes: FxHashMap<u64, Rc<Code>>,
}

impl ProcessPython {
    /// Takes a code object in.
    pub(super) fn add(&mut self, code: &PythonCode, scripts: &mut ScriptTable) {
        if self.codes.len() >= MAX_CODES && !self.codes.contains_key(&code.id) {
            return;
        }
        let function = scripts.intern(ScriptFunction {
            name: name_of(code),
            file: code.file.clone(),
        });
        let kind = LineTable::of(code.instruction);
        let known = Code {
            function,
            first_line: code.first_line,
            lines: lines::stretches(kind, &code.lines, code.first_line),
        };
        self.codes.insert(code.id, Rc::new(known));
    }

    /// The function and the line of a frame's word; `None`: its code object is not known.
    pub fn frame(&self, word: u64) -> Option<(u32, u32)> {
        let code = self.codes.get(&python_id(word))?;
        let line = match python_index(word) {
            Some(index) => {
                let after = code
                    .lines
                    .partition_point(|&(from, _)| u64::from(from) <= index);
                let stretch = after.checked_sub(1).and_then(|at| code.lines.get(at));
                stretch.map_or(code.first_line, |&(_, line)| line)
            }
            None => code.first_line,
        };
        Some((code.function, line))
    }
}

/// What frames of a code object are called.
fn name_of(code: &PythonCode) -> String {
    let function = if code.function.is_empty() {
        "[unnamed]"
    } else {
        &code.function
    };
    let module = if code.module.is_empty() {
        module_of(&code.file)
    } else {
        &code.module
    };
    if module.is_empty() {
        function.to_owned()
    } else {
        format!("{module}.{function}")
    }
}

/// A module's name by its file, where it does not say so itself.
fn module_of(file: &str) -> &str {
    if file.starts_with('<') {
        return "";
    }
    let name = file.rsplit('/').next().unwrap_or(file);
    name.strip_suffix(".py").unwrap_or(name)
}
