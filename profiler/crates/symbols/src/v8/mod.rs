//! JavaScript's V8: where a program has it, and the names of its functions.
//!
//! V8 describes its own objects for debuggers of dumps, by exported numbers (`v8dbg_...`,
//! `tools/gen-postmortem-metadata.py`): node has them, Chromium does not. [`V8Library`] finds them
//! in a file; [`V8Library::layout`] is what the eBPF programs read functions by, and `V8Names`
//! names these. The numbers do not cover everything, above all not how a `ScopeInfo` is laid out.
//! That is the same in all of V8 10.2 to 14.6 (node 18 to 26), which were tried; others are
//! declined. Whatever is read has to be of the type that it should be.
//!
//! All that is read of a process may be made up: reading is total, and bounded.

mod names;
mod table;
#[cfg(test)]
mod tests;

use crate::elf::{Dynamic, ReadAt};
use aiprof_common::{MAX_V8_INTERPRETERS, V8Layout};
pub(crate) use names::V8Names;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The versions that are known, by their first two numbers.
const KNOWN: std::ops::RangeInclusive<(i32, i32)> = (10, 2)..=(14, 99);
/// Largest offset of a field.
const MAX_OFFSET: i32 = 1024;
/// Largest number of a type.
const MAX_TYPE: i32 = 0xffff;
/// What interprets; its symbol is no exported one.
const INTERPRETER: &[u8] = b"Builtins_InterpreterEntryTrampoline";
/// All of V8's own functions that keep rbp, and a number: how many bytes.
const BUILTINS: &[u8] = b"v8_Default_embedded_blob_code_";
const BUILTINS_SIZE: &[u8] = b"v8_Default_embedded_blob_code_size_";
/// Most bytes of what interprets, and of all.
const MAX_INTERPRETER: u64 = 1 << 16;
const MAX_BUILTINS: u64 = 64 << 20;

/// Why the functions of a V8 cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum V8Error {
    /// A version that is not known.
    #[error("V8 {0}.{1} is not supported (supported: 10.2 to 14)")]
    Version(i32, i32),
    /// Pointers, or numbers, have another form.
    #[error("its pointers are compressed")]
    Compressed,
    /// A number that this version does not export.
    #[error("it does not export {0}")]
    Lacks(String),
    /// A number that contradicts everything known.
    #[error("{0} is invalid")]
    Odd(String),
}

/// How the type of a string shows its kind: bits of the number of the type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StringTags {
    /// Types from here on are no strings.
    first_other: u16,
    form: u16,
    sequential: u16,
    cons: u16,
    external: u16,
    sliced: u16,
    thin: u16,
    encoding: u16,
    one_byte: u16,
}

/// Offsets in objects, and numbers of their types. Names are V8's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct V8Fields {
    map_type: u16,
    function_shared: u16,
    shared_type: u16,
    shared_name: u16,
    shared_script: u16,
    shared_flags: u16,
    script_type: u16,
    script_source: u16,
    script_name: u16,
    script_id: u16,
    scope_type: u16,
    /// The first word of a `ScopeInfo` that is of a variable: 3, or 5 where the position
    /// is in front.
    scope_variables: u16,
    strings: StringTags,
    string_length: u16,
    string_chars: u16,
    cons_first: u16,
    cons_second: u16,
    thin_actual: u16,
    sliced_parent: u16,
    sliced_offset: u16,
    external_resource: u16,
}

/// A file that has a V8.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct V8Library {
    version: (i32, i32),
    fields: V8Fields,
    /// The code that interprets, by the file's virtual addresses; empty: not known.
    interpreter: Range<u64>,
    /// That and V8's other functions of this kind; empty: not known.
    builtins: Range<u64>,
}

impl V8Library {
    /// The V8 in a file; `None`: it has none.
    pub fn find(file: &impl ReadAt) -> Option<Result<Self, V8Error>> {
        let symbols = Dynamic::read(file)?;
        let numbers = Numbers(symbols);
        numbers.read("v8dbg_TaggedSize")?;
        Some(Self::read(file, &numbers))
    }

    fn read<R: ReadAt>(file: &R, numbers: &Numbers<'_, R>) -> Result<Self, V8Error> {
        let number = |name: &str| {
            let number = numbers.read(&format!("_ZN2v88internal7Version6{name}_E"));
            number.ok_or_else(|| V8Error::Lacks("its version".into()))
        };
        let version = (number("major")?, number("minor")?);
        if !KNOWN.contains(&version) {
            return Err(V8Error::Version(version.0, version.1));
        }
        let fields = V8Fields::read(numbers)?;
        let found = table::find(file, [INTERPRETER, BUILTINS, BUILTINS_SIZE]);
        let [interpreter, builtins, size] = found.unwrap_or_default();
        let size = numbers
            .0
            .bytes(size.start, 4)
            .and_then(|b| b.try_into().ok());
        let size = u64::from(size.map_or(0, u32::from_le_bytes)).min(MAX_BUILTINS);
        let builtins = builtins.start..builtins.start.saturating_add(size);
        let is_range = interpreter.end.saturating_sub(interpreter.start) <= MAX_INTERPRETER;
        let is_within = builtins.start <= interpreter.start && interpreter.end <= builtins.end;
        Ok(Self {
            version,
            fields,
            interpreter: if is_range { interpreter } else { 0..0 },
            builtins: if is_range && is_within {
                builtins
            } else {
                0..0
            },
        })
    }

    /// The first two numbers of its version.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Where its interpreter is, by the file's virtual addresses; empty: not known, for the
    /// file has no symbols but those that it exports.
    pub fn interpreter(&self) -> Range<u64> {
        self.interpreter.clone()
    }

    /// How the eBPF programs read its functions. `interpreters`: where its interpreter is.
    /// `generated`: whether to read the functions of generated code.
    pub fn layout(&self, interpreters: impl Iterator<Item = u64>, generated: bool) -> V8Layout {
        let fields = &self.fields;
        let mut places = [0; MAX_V8_INTERPRETERS];
        for (place, found) in places.iter_mut().zip(interpreters) {
            *place = found;
        }
        V8Layout {
            owner: 0,
            generated: generated.into(),
            interpreters: places,
            builtins_before: self.interpreter.start.saturating_sub(self.builtins.start),
            builtins_size: self.builtins.end.saturating_sub(self.builtins.start),
            interpreter_size: self.interpreter.end.saturating_sub(self.interpreter.start),
            function_shared: fields.function_shared,
            shared_script: fields.shared_script,
            shared_flags: fields.shared_flags,
            script_id: fields.script_id,
            map_type: fields.map_type,
            shared_type: fields.shared_type,
            script_type: fields.script_type,
            reserved: 0,
        }
    }
}

/// The numbers that a file exports.
struct Numbers<'a, R>(Dynamic<'a, R>);

impl<R: ReadAt> Numbers<'_, R> {
    fn read(&self, name: &str) -> Option<i32> {
        let symbol = self.0.find(name.as_bytes())?;
        // What is zero may not be in the file.
        let Some(bytes) = self.0.bytes(symbol.address, 4) else {
            return Some(0);
        };
        Some(i32::from_le_bytes(bytes.try_into().ok()?))
    }

    /// The first number of these names that there is, which cannot be larger than `most`.
    fn small(&self, names: &[&str], most: i32) -> Result<u16, V8Error> {
        let shown = || names.first().copied().unwrap_or_default().to_owned();
        let found = names
            .iter()
            .find_map(|name| self.read(&format!("v8dbg_{name}")))
            .ok_or_else(|| V8Error::Lacks(shown()))?;
        let small = u16::try_from(found).ok().filter(|_| found <= most);
        small.ok_or_else(|| V8Error::Odd(shown()))
    }

    /// The offset of a field, of a class and name, by the types that versions give it.
    fn field(&self, field: &str, types: &[&str]) -> Result<u16, V8Error> {
        let names = types.iter().map(|of| format!("class_{field}__{of}"));
        let names: Vec<String> = names.collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.small(&names, MAX_OFFSET)
    }

    /// Demands that a number is what it always was.
    fn demand(&self, name: &str, value: i32) -> Result<(), V8Error> {
        match self.read(&format!("v8dbg_{name}")) {
            Some(found) if found == value => Ok(()),
            Some(_) => Err(V8Error::Odd(name.to_owned())),
            None => Err(V8Error::Lacks(name.to_owned())),
        }
    }
}

impl V8Fields {
    fn read<R: ReadAt>(numbers: &Numbers<'_, R>) -> Result<Self, V8Error> {
        let is_plain = |name, value| numbers.demand(name, value).is_ok();
        if !is_plain("TaggedSize", 8) || !is_plain("SmiShiftSize", 31) {
            return Err(V8Error::Compressed);
        }
        numbers.demand("HeapObjectTag", 1)?;
        numbers.demand("HeapObjectTagMask", 3)?;
        numbers.demand("off_fp_context_or_frame_type", -8)?;
        numbers.demand("off_fp_function", -16)?;
        numbers.demand("scopeinfo_idx_ncontextlocals", 2)?;
        let number = |name: &str| numbers.small(&[name], MAX_TYPE);
        let scope_variables = number("scopeinfo_idx_first_vars")?;
        if scope_variables != 3 && scope_variables != 5 {
            return Err(V8Error::Odd("scopeinfo_idx_first_vars".into()));
        }
        // Three neighbours, of which some versions name only the middle one.
        let metadata = numbers.field(
            "SharedFunctionInfo__feedback_metadata",
            &["FeedbackMetadata", "Tagged_FeedbackMetadata_"],
        )?;
        let shared_name = numbers.field(
            "SharedFunctionInfo__name_or_scope_info",
            &["Object", "Tagged_Object_", "Tagged_NameOrScopeInfoT_"],
        );
        let shared_script = numbers.field(
            "SharedFunctionInfo__script",
            &["HeapObject", "Tagged_HeapObject_"],
        );
        let line_ends = numbers.field("Script__line_ends", &["Object"])?;
        Ok(Self {
            map_type: numbers.field("Map__instance_type", &["uint16_t"])?,
            function_shared: numbers.field("JSFunction__shared", &["SharedFunctionInfo"])?,
            shared_type: number("type_SharedFunctionInfo__SHARED_FUNCTION_INFO_TYPE")?,
            shared_name: shared_name.unwrap_or(metadata.saturating_sub(8)),
            shared_script: shared_script.unwrap_or(metadata + 8),
            shared_flags: numbers.field("SharedFunctionInfo__flags", &["int"])?,
            script_type: number("type_Script__SCRIPT_TYPE")?,
            script_source: numbers.field("Script__source", &["Object"])?,
            script_name: numbers.field("Script__name", &["Object"])?,
            script_id: line_ends + 8,
            scope_type: number("type_ScopeInfo__SCOPE_INFO_TYPE")?,
            scope_variables,
            strings: StringTags {
                first_other: number("FirstNonstringType")?,
                form: number("StringRepresentationMask")?,
                sequential: number("SeqStringTag")?,
                cons: number("ConsStringTag")?,
                external: number("ExternalStringTag")?,
                sliced: number("SlicedStringTag")?,
                thin: number("ThinStringTag")?,
                encoding: number("StringEncodingMask")?,
                one_byte: number("OneByteStringTag")?,
            },
            string_length: numbers.field("String__length", &["int32_t"])?,
            string_chars: numbers.field("SeqOneByteString__chars", &["char"])?,
            cons_first: numbers.field("ConsString__first", &["String"])?,
            cons_second: numbers.field("ConsString__second", &["String"])?,
            thin_actual: numbers.field("ThinString__actual", &["String"])?,
            sliced_parent: numbers.field("SlicedString__parent", &["String"])?,
            sliced_offset: numbers.field("SlicedString__offset", &["SMI"])?,
            external_resource: numbers.field("ExternalString__resource", &["Object"])?,
        })
    }
}
