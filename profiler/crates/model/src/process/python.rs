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
        match line {
            0 => format!("{} ({file})", self.name),
            line => format!("{} ({file}:{line})", self.name),
        }
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
struct CodeObject {
    function: u32,
    /// Whether it is one of the interpreter's own, which no program knows of.
    is_own: bool,
    first_line: u32,
    /// First instructions of stretches with one line, and their lines.
    lines: Vec<(u32, u32)>,
}

/// The Python of a process; forks share it.
#[derive(Clone, Debug, Default)]
pub struct ProcessPython {
    /// Its interpreter.
    pub interpreter: Option<PythonFound>,
    codes: FxHashMap<u64, Rc<CodeObject>>,
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
        let known = CodeObject {
            function,
            // `_Py_InitCleanup`, below the `__init__` of a class that is called.
            is_own: code.file == "__init__" && code.function == "__init__",
            first_line: code.first_line,
            lines: lines::stretches(kind, &code.lines, code.first_line, code.is_cut),
        };
        self.codes.insert(code.id, Rc::new(known));
    }

    /// Whether no code object is known.
    pub(super) fn is_empty(&self) -> bool {
        self.codes.is_empty()
    }

    /// Takes in the code objects of another.
    pub(super) fn join(&mut self, other: &Self) {
        let new = other.codes.iter().map(|(&id, code)| (id, Rc::clone(code)));
        self.codes.extend(new);
    }

    /// Whether a frame's word is of code that the interpreter has for itself.
    pub fn is_own(&self, word: u64) -> bool {
        let code = self.codes.get(&python_id(word));
        code.is_some_and(|code| code.is_own)
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

/// A module's name by its file, where it does not give one itself.
fn module_of(file: &str) -> &str {
    if file.starts_with('<') {
        return "";
    }
    let name = file.rsplit('/').next().unwrap_or(file);
    name.strip_suffix(".py").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::ProcessTable;
    use crate::wire::{ProcessEvent, ProcessEventKind};
    use aiprof_common::{PYTHON_AT_ADDRESS, python_word};

    fn code(pid: u32, id: u64, function: &str) -> PythonCode {
        PythonCode {
            time_ns: 1,
            pid,
            id,
            first_line: 10,
            instruction: PYTHON_AT_ADDRESS,
            module: "m".into(),
            function: function.into(),
            file: "/x/m.py".into(),
            // Two units on the first line, then one on the line after.
            lines: vec![0x80 | 10 << 3 | 1, 0, 0, 0x80 | 11 << 3, 0, 0],
            is_cut: false,
        }
    }

    fn event(pid: u32, kind: ProcessEventKind) -> ProcessEvent {
        ProcessEvent {
            time_ns: 2,
            pid,
            tid: pid,
            kind,
        }
    }

    fn name(table: &ProcessTable, pid: u32, word: u64) -> Option<String> {
        let (function, line) = table.get(pid)?.python.frame(word)?;
        Some(table.files.scripts.get(function)?.at(line))
    }

    #[test]
    fn forks_know_what_their_parents_know_and_what_they_were_first_to_run() {
        let mut table = ProcessTable::default();
        table.apply(&event(1, ProcessEventKind::Exec { comm: "p".into() }));
        table.python_code(&code(1, 7, "f"));
        table.python_code(&code(2, 8, "g"));
        table.apply(&event(2, ProcessEventKind::Fork { parent: 1 }));
        assert_eq!(name(&table, 1, python_word(7, 1)).unwrap(), "m.f (m.py:10)");
        assert_eq!(name(&table, 2, python_word(7, 2)).unwrap(), "m.f (m.py:11)");
        assert_eq!(
            name(&table, 2, python_word(8, 9999)).unwrap(),
            "m.g (m.py:11)"
        );
        assert_eq!(name(&table, 1, python_word(8, 0)), None);
        let unknown = aiprof_common::PYTHON_NO_INDEX;
        assert_eq!(
            name(&table, 2, python_word(8, unknown)).unwrap(),
            "m.g (m.py:10)"
        );
        table.apply(&event(2, ProcessEventKind::Exec { comm: "q".into() }));
        assert_eq!(name(&table, 2, python_word(7, 0)), None);
    }
}
