//! Names of functions: what a `SharedFunctionInfo` leads to in the heap of a process.

use super::V8Library;
use crate::elf::{ReadAt, u64_at};
use crate::frame::{SymFrame, script_frame};
use crate::memory::MemoryFile;
use aiprof_common::{JsFunction, js_check};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// User addresses are below.
const USER_END: u64 = 1 << 47;
/// Most characters of a name, and most pieces that it may be put together of.
const MAX_NAME: usize = 512;
const MAX_PIECES: usize = 64;
/// Most steps from a string to the one that has its characters.
const MAX_STEPS: usize = 8;
/// Most characters of a source that are read for the number of a line, and of all sources
/// of a process together.
const MAX_SOURCE: usize = 16 << 20;
const MAX_SOURCES: usize = 256 << 20;
/// What each costs besides, in characters.
const SOURCE_COST: usize = 4096;
/// Characters that are read at once.
const AT_ONCE: usize = 256 << 10;
/// Most variables of a function that others use.
const MAX_VARIABLES: u64 = 1 << 16;
/// As many of them have their names elsewhere (`kScopeInfoMaxInlinedLocalNamesSize`).
const INLINED_NAMES: u64 = 75;
/// Most functions, scripts and lines that are remembered of a process, and most processes.
const MAX_KNOWN: usize = 1 << 16;
const MAX_SCRIPTS: usize = 256;
const MAX_LINES: usize = 4 << 20;
const MAX_PROCESSES: usize = 32;

/// Bits of the flags of a `ScopeInfo` (`ScopeFlags`).
const SCOPE_KIND: u32 = 0xf;
const MODULE: u32 = 5;
const HAS_SAVED_CLASS: u32 = 1 << 10;
const FUNCTION_VARIABLE: u32 = 3 << 12;
const HAS_INFERRED_NAME: u32 = 1 << 14;

/// A process: its number, and when it started.
type Process = (u32, u64);

/// Names the functions of processes. What is known stays when a process has ended.
#[derive(Debug, Default)]
pub(crate) struct V8Names {
    processes: FxHashMap<Process, V8Process>,
}

/// What is known of a process.
#[derive(Debug, Default)]
struct V8Process {
    functions: FxHashMap<JsFunction, SymFrame>,
    scripts: FxHashMap<Script, Arc<LineStarts>>,
    /// Line ends in `scripts`.
    lines: usize,
    /// Characters of sources that were read.
    read: usize,
}

/// A script: where it is, and its number, which no other ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Script {
    at: u64,
    id: i32,
}

/// Where the lines of the part of a source that was read end.
#[derive(Debug, Default)]
struct LineStarts {
    ends: Vec<u32>,
    /// Characters that were read.
    read: usize,
}

impl LineStarts {
    /// The line of a character, from 1 on; `None`: it was not read.
    fn line(&self, at: usize) -> Option<u32> {
        let before = self.ends.partition_point(|&end| (end as usize) < at);
        (at <= self.read).then(|| u32::try_from(before).unwrap_or(u32::MAX).saturating_add(1))
    }
}

impl V8Names {
    /// The frame of a function; none: it is not known. `memory`: that of the process, if it
    /// lives.
    pub(crate) fn frames<R: ReadAt>(
        &mut self,
        process: Process,
        library: &V8Library,
        memory: Option<&R>,
        function: JsFunction,
    ) -> Vec<SymFrame> {
        if self.processes.len() >= MAX_PROCESSES && !self.processes.contains_key(&process) {
            self.processes.clear();
        }
        let known = self.processes.entry(process).or_default();
        if known.functions.len() >= MAX_KNOWN {
            *known = V8Process::default();
        }
        if let Some(frame) = known.functions.get(&function) {
            return vec![frame.clone()];
        }
        let reader = memory.map(|memory| HeapReader {
            library,
            memory: MemoryFile(memory),
        });
        let frame = reader.and_then(|reader| known.name(&reader, function));
        if let Some(frame) = &frame {
            known.functions.insert(function, frame.clone());
        }
        frame.into_iter().collect()
    }
}

impl V8Process {
    /// Reads the name of a function.
    fn name<R: ReadAt>(
        &mut self,
        reader: &HeapReader<'_, R>,
        function: JsFunction,
    ) -> Option<SymFrame> {
        let fields = &reader.library.fields;
        let shared = function.shared;
        reader.demand_type(shared, fields.shared_type)?;
        let script = reader.word(shared, fields.shared_script)?;
        let flags = reader.word(shared, fields.shared_flags)?;
        let id = object(script).and_then(|script| reader.word(script, fields.script_id));
        let id = (id.unwrap_or(0) >> 32) as u32;
        if js_check(id, (flags >> 32) as u32) != function.check {
            // Another is here by now.
            return None;
        }
        let (name, start) = reader.function(reader.word(shared, fields.shared_name)?)?;
        let script = object(script).filter(|&at| reader.is_type(at, fields.script_type));
        let Some(at) = script else {
            return Some(script_frame(&name, "anonymous", "", 0));
        };
        let file = reader.word(at, fields.script_name)?;
        let file = reader.text(file).unwrap_or_default();
        let script = Script { at, id: id as i32 };
        let line = start.and_then(|start| self.line(reader, script, start));
        Some(script_frame(&name, "anonymous", &file, line.unwrap_or(0)))
    }

    /// The line of a character in a script.
    fn line<R: ReadAt>(
        &mut self,
        reader: &HeapReader<'_, R>,
        script: Script,
        start: usize,
    ) -> Option<u32> {
        if let Some(line) = self
            .scripts
            .get(&script)
            .and_then(|known| known.line(start))
        {
            return Some(line);
        }
        if self.read >= MAX_SOURCES {
            return None;
        }
        if self.scripts.len() >= MAX_SCRIPTS || self.lines >= MAX_LINES {
            self.scripts.clear();
            self.lines = 0;
        }
        let source = reader.word(script.at, reader.library.fields.script_source)?;
        let flat = reader.flat(source)?;
        self.read += flat.length.min(MAX_SOURCE) + SOURCE_COST;
        let lines = reader.lines(&flat)?;
        self.lines += lines.ends.len();
        let line = lines.line(start);
        self.scripts.insert(script, Arc::new(lines));
        line
    }
}

/// The address of an object; `None`: the value is none.
fn object(value: u64) -> Option<u64> {
    let is_object = value & 7 == 1 && value < USER_END;
    is_object.then(|| value - 1).filter(|&at| at > 0)
}

/// A small integer; `None`: the value is none.
fn smi(value: u64) -> Option<i32> {
    (value & 0xffff_ffff == 0).then_some((value >> 32) as i32)
}

/// Where the characters of a string are.
struct Flat {
    at: u64,
    length: usize,
    /// Bytes of a character: 1 or 2.
    width: usize,
}

/// Reads the heap of a process.
struct HeapReader<'a, R> {
    library: &'a V8Library,
    memory: MemoryFile<'a, R>,
}

impl<R: ReadAt> HeapReader<'_, R> {
    fn word(&self, at: u64, offset: u16) -> Option<u64> {
        self.memory.u64(at.checked_add(offset.into())?)
    }

    /// The type of the object at an address.
    fn type_of(&self, at: u64) -> Option<u16> {
        let map = object(self.word(at, 0)?)?;
        Some(self.word(map, self.library.fields.map_type)? as u16)
    }

    fn is_type(&self, at: u64, wanted: u16) -> bool {
        self.type_of(at) == Some(wanted)
    }

    fn demand_type(&self, at: u64, wanted: u16) -> Option<()> {
        self.is_type(at, wanted).then_some(())
    }

    /// The name of a function, and where in its source it begins. `value`: its name, or its
    /// `ScopeInfo`.
    fn function(&self, value: u64) -> Option<(String, Option<usize>)> {
        let Some(at) = object(value) else {
            // It has none.
            return smi(value).map(|_| (String::new(), None));
        };
        let kind = self.type_of(at)?;
        if kind == self.library.fields.scope_type {
            return self.scope(at);
        }
        (kind < self.library.fields.strings.first_other).then(|| Some((self.text(value)?, None)))?
    }

    /// The same of a `ScopeInfo`. Its words: flags, parameters, variables that others use; in newer
    /// versions begin and end of the source. Then what a module has, and names and properties of
    /// the variables. Then the parts that the flags announce: a class, the function's name and its
    /// variable, and the name inferred for a function without one. In older versions begin and end
    /// come last.
    fn scope(&self, at: u64) -> Option<(String, Option<usize>)> {
        let head = self.memory.bytes(at.checked_add(8)?, 5 * 8)?;
        let word = |index: usize| u64_at(&head, index * 8);
        // A small integer, or a number of 32 bits.
        let flags = word(0)?;
        let flags = if flags as u32 == 0 {
            flags >> 32
        } else {
            flags
        } as u32;
        let variables = u64::try_from(smi(word(2)?)?).ok()?;
        if variables > MAX_VARIABLES {
            return None;
        }
        let has_position = self.library.fields.scope_variables == 5;
        let mut next = u64::from(self.library.fields.scope_variables);
        next += u64::from(has_position && flags & SCOPE_KIND == MODULE);
        let names = if variables < INLINED_NAMES {
            variables
        } else {
            1
        };
        next += names + variables + u64::from(flags & HAS_SAVED_CLASS != 0);
        let rest = self.memory.bytes(at.checked_add(8 + next * 8)?, 5 * 8)?;
        let mut rest = rest.chunks_exact(8).map(|word| u64_at(word, 0));
        let mut take = || rest.next().flatten();
        let mut name = String::new();
        if flags & FUNCTION_VARIABLE != 0 {
            let own = take()?;
            // The variable.
            smi(take()?)?;
            name = self.name(own)?;
        }
        if flags & HAS_INFERRED_NAME != 0 {
            let inferred = take()?;
            if name.is_empty() {
                name = self.text(inferred).unwrap_or_default();
            }
        }
        let (start, end) = if has_position {
            (word(3)?, word(4)?)
        } else {
            (take()?, take()?)
        };
        let (start, end) = (smi(start)?, smi(end)?);
        let start = usize::try_from(start).ok().filter(|_| start <= end)?;
        Some((name, Some(start)))
    }

    /// A name, or 0 for none.
    fn name(&self, value: u64) -> Option<String> {
        if value == 0 {
            return Some(String::new());
        }
        self.text(value)
    }

    /// The text of a string, up to [`MAX_NAME`] characters.
    fn text(&self, value: u64) -> Option<String> {
        let fields = &self.library.fields;
        let mut text = String::new();
        let mut open = vec![value];
        for _ in 0..MAX_PIECES {
            let Some(value) = open.pop() else { break };
            if text.len() >= MAX_NAME {
                break;
            }
            let at = object(value)?;
            let kind = self.type_of(at)?;
            let is_cons = kind & fields.strings.form == fields.strings.cons;
            if kind < fields.strings.first_other && is_cons {
                open.push(self.word(at, fields.cons_second)?);
                open.push(self.word(at, fields.cons_first)?);
                continue;
            }
            let flat = self.flat(value)?;
            text.push_str(&self.characters(&flat)?);
        }
        open.is_empty().then_some(text)
    }

    /// Up to [`MAX_NAME`] characters of a string.
    fn characters(&self, flat: &Flat) -> Option<String> {
        let count = flat.length.min(MAX_NAME);
        let bytes = self.memory.bytes(flat.at, count * flat.width)?;
        Some(if flat.width == 1 {
            bytes.iter().map(|&byte| char::from(byte)).collect()
        } else {
            let units = bytes
                .chunks_exact(2)
                .filter_map(|unit| unit.try_into().ok());
            let units: Vec<u16> = units.map(u16::from_le_bytes).collect();
            String::from_utf16_lossy(&units)
        })
    }

    /// Where the characters of a string are that lie in one piece.
    fn flat(&self, value: u64) -> Option<Flat> {
        let fields = &self.library.fields;
        let tags = &fields.strings;
        let mut at = object(value)?;
        let (mut skip, mut length) = (0, None);
        for _ in 0..MAX_STEPS {
            let kind = self.type_of(at).filter(|&kind| kind < tags.first_other)?;
            let own = self
                .memory
                .i32(at.checked_add(fields.string_length.into())?)?;
            let own = usize::try_from(own).ok()?;
            let count = *length.get_or_insert(own);
            let form = kind & tags.form;
            if form == tags.thin {
                at = object(self.word(at, fields.thin_actual)?)?;
            } else if form == tags.cons {
                // One that was made flat has all in its first part.
                let first = object(self.word(at, fields.cons_first)?)?;
                let second = object(self.word(at, fields.cons_second)?)?;
                let rest = second.checked_add(fields.string_length.into())?;
                if self.memory.i32(rest)? != 0 {
                    return None;
                }
                at = first;
            } else if form == tags.sliced {
                let offset = smi(self.word(at, fields.sliced_offset)?)?;
                skip += usize::try_from(offset).ok()?;
                at = object(self.word(at, fields.sliced_parent)?)?;
            } else {
                let width = if kind & tags.encoding == tags.one_byte {
                    1
                } else {
                    2
                };
                let begin = if form == tags.sequential {
                    at.checked_add(fields.string_chars.into())?
                } else if form == tags.external {
                    // The resource, and behind it where its characters are.
                    self.word(at, fields.external_resource + 8)?
                } else {
                    return None;
                };
                if skip.checked_add(count)? > own || begin >= USER_END {
                    return None;
                }
                return Some(Flat {
                    at: begin.checked_add((skip * width) as u64)?,
                    length: count,
                    width,
                });
            }
        }
        None
    }

    /// Where the lines of a source end: at line feeds, carriage returns without one behind
    /// them, and U+2028 and U+2029 (ECMA-262, "Line Terminators").
    fn lines(&self, flat: &Flat) -> Option<LineStarts> {
        let mut lines = LineStarts::default();
        let end = flat.length.min(MAX_SOURCE);
        let mut before = 0;
        while lines.read < end {
            let count = (end - lines.read).min(AT_ONCE);
            let from = flat.at.checked_add((lines.read * flat.width) as u64)?;
            let bytes = self.memory.bytes(from, count * flat.width)?;
            for (index, unit) in bytes.chunks_exact(flat.width).enumerate() {
                let unit = match *unit {
                    [low, high] => u16::from_le_bytes([low, high]),
                    [low] => low.into(),
                    _ => 0,
                };
                let at = lines.read + index;
                if before == u16::from(b'\r') && unit != u16::from(b'\n') {
                    lines.ends.push(u32::try_from(at - 1).ok()?);
                }
                if unit == u16::from(b'\n') || unit == 0x2028 || unit == 0x2029 {
                    lines.ends.push(u32::try_from(at).ok()?);
                }
                before = unit;
            }
            if lines.ends.len() > MAX_LINES {
                return None;
            }
            lines.read += count;
        }
        Some(lines)
    }
}
