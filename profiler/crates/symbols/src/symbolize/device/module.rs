//! A module of device code: its kernels, their code, attributes and sources.

#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;

use super::isa::Platform;
use super::limits::MAX_MODULE;
use super::line_table::LineTable;
use super::names::TextId;
use super::zebin::{self, ZebinFunction};
use super::{archive, spirv};
use aiprof_model::demangle::demangle;
use std::ops::AddAssign;
use std::sync::Arc;

/// Device code with names, as its program gave it to the runtime or the compiler
/// made it.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// The devices that it is for; `None` if it names none, or not in known numbers.
    pub platform: Option<Platform>,
    /// Its kernels, in the file's order.
    pub kernels: Vec<DeviceFunction>,
    /// Code that is no kernel: functions that several kernels call. A program's
    /// table of them is called `Intel_Symbol_Table_Void_Program`.
    pub functions: Vec<DeviceFunction>,
    /// What could not be read.
    pub problems: Problems,
}

/// How much of a module could not be read. All 0 in what compilers write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    /// Code sections beyond the file's end or the limits, or with unusable names.
    pub sections: u32,
    /// Relocations of debug sections that could not be applied.
    pub relocations: u32,
    /// Units of debug information that were not read, or not to their end.
    pub debug_units: u32,
    /// Texts of attributes (`.ze_info`) that were not read, or not to their end.
    pub attributes: u32,
    /// Files of a dump folder that were not read.
    pub files: u32,
}

impl AddAssign for Problems {
    fn add_assign(&mut self, other: Self) {
        let add = |a: &mut u32, b: u32| *a = a.saturating_add(b);
        add(&mut self.sections, other.sections);
        add(&mut self.relocations, other.relocations);
        add(&mut self.debug_units, other.debug_units);
        add(&mut self.attributes, other.attributes);
        add(&mut self.files, other.files);
    }
}

/// A kernel, or a piece of code that kernels call.
#[derive(Clone, Debug)]
pub struct DeviceFunction {
    /// Its name in the module: mangled.
    pub name: String,
    /// Its name for people: demangled, without "typeinfo name for ", which SYCL's
    /// names begin with.
    pub display: String,
    /// Its instructions; empty for SPIR-V.
    pub code: Arc<[u8]>,
    /// Device address of its first instruction, where the module gives it; 0 if not.
    pub address: u64,
    /// Offset of the first instruction after those that load the arguments; 0 if the module does
    /// not give it.
    pub payload_entry: u32,
    /// The compiler's description of it.
    pub attributes: Attributes,
    /// Its source file, where that is known.
    pub source_file: Option<String>,
    functions: Vec<ZebinFunction>,
    lines: LineTable,
}

/// The compiler's description of a kernel in `.ze_info`; `None`: not in there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Work items that one hardware thread executes together.
    pub simd_size: Option<u32>,
    /// Registers of one hardware thread.
    pub grf_count: Option<u32>,
    /// Arguments that the program sets.
    pub arguments: Option<u32>,
    /// Shared local memory of a work group, in bytes.
    pub slm_bytes: Option<u64>,
    /// Private memory of a hardware thread, in bytes: arrays and variables whose
    /// address is taken.
    pub private_bytes: Option<u64>,
    /// Memory of a hardware thread for values that did not fit the registers, in
    /// bytes.
    pub spill_bytes: Option<u64>,
    /// Scratch memory of a hardware thread, in bytes: what spills and private memory share where
    /// the compiler does not list them separately.
    pub scratch_bytes: Option<u64>,
    /// The size that work groups must have.
    pub required_work_group_size: Option<[u32; 3]>,
    /// The sub-group size that the source asks for.
    pub required_sub_group_size: Option<u32>,
    /// Bytes of arguments that come in registers.
    pub inline_data_payload_bytes: Option<u32>,
    /// Barriers of a work group.
    pub barrier_count: Option<u32>,
    /// Hardware threads of an execution unit at this number of registers.
    pub eu_thread_count: Option<u32>,
    /// Whether functions are called through the stack.
    pub has_stack_calls: Option<bool>,
}

/// A function at an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFrame {
    /// Name of the function, demangled.
    pub function: String,
    /// Path of the source file, joined to the directory of compilation; not
    /// normalized.
    pub file: String,
    /// Line of the instruction, or of the call that was inlined; from 1, 0 for
    /// code that the compiler gives to no line.
    pub line: u32,
    /// Column, from 1; 0 if not known.
    pub column: u32,
    /// Whether this function was inlined into the one before.
    pub inlined: bool,
}

/// Why bytes are no module.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModuleError {
    /// Neither zebin, nor an archive, nor SPIR-V.
    #[error("neither zebin nor SPIR-V nor an archive of them")]
    Unknown,
    /// Beyond the limit on modules.
    #[error("larger than the limit of {} MiB", MAX_MODULE >> 20)]
    TooLarge,
    /// Not to be read.
    #[error("malformed: {0}")]
    Malformed(String),
    /// An archive without device code.
    #[error("archive without device code")]
    EmptyArchive,
}

impl Module {
    /// Reads a zebin, an archive of zebins (its first), or SPIR-V.
    ///
    /// # Errors
    /// When `bytes` are none of these or not readable at all. What is not readable
    /// in part is in [`Module::problems`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ModuleError> {
        Self::parse_for(bytes, None)
    }

    /// As [`Module::parse`]; of an archive the first module for `platform`, if it
    /// holds one.
    ///
    /// # Errors
    /// As [`Module::parse`].
    pub fn parse_for(bytes: &[u8], platform: Option<Platform>) -> Result<Self, ModuleError> {
        if bytes.len() > MAX_MODULE {
            return Err(ModuleError::TooLarge);
        }
        if !bytes.starts_with(archive::MAGIC) {
            return Self::parse_one(bytes);
        }
        let mut result = Err(ModuleError::EmptyArchive);
        let members = archive::members(bytes);
        // Machine code has more information than SPIR-V that lies beside it.
        let (code, other): (Vec<&[u8]>, Vec<_>) =
            members.into_iter().partition(|m| zebin::is_zebin(m));
        for member in code
            .into_iter()
            .chain(other.into_iter().filter(|m| spirv::is_spirv(m)))
        {
            let module = Self::parse_one(member);
            if let Ok(module) = &module
                && (platform.is_none() || module.platform == platform)
            {
                return Ok(module.clone());
            }
            if result.is_err() {
                result = module;
            }
        }
        result
    }

    fn parse_one(bytes: &[u8]) -> Result<Self, ModuleError> {
        if zebin::is_zebin(bytes) {
            zebin::parse(bytes)
        } else if spirv::is_spirv(bytes) {
            spirv::parse(bytes)
        } else {
            Err(ModuleError::Unknown)
        }
    }

    /// The kernel with a name as in the module.
    #[must_use]
    pub fn kernel(&self, name: &str) -> Option<&DeviceFunction> {
        self.kernels.iter().find(|k| k.name == name)
    }

    /// Bytes of memory held, about.
    #[must_use]
    pub fn memory(&self) -> usize {
        let all = self.kernels.iter().chain(&self.functions);
        let texts = all.clone().next().map_or(0, |k| k.lines.texts.memory());
        size_of::<Self>() + texts + all.map(DeviceFunction::memory).sum::<usize>()
    }
}

impl DeviceFunction {
    /// A kernel of which only the name and attributes are known.
    pub(super) fn new(name: String, attributes: Attributes) -> Self {
        Self {
            display: display(&name),
            name,
            code: Arc::default(),
            address: 0,
            payload_entry: 0,
            attributes,
            source_file: None,
            functions: Vec::new(),
            lines: LineTable::default(),
        }
    }

    /// A kernel of which only the code is known.
    pub fn bare(name: &str, code: &[u8]) -> Self {
        Self::new(name.to_owned(), Attributes::default()).with_code(code, 0, 0)
    }

    pub(super) fn with_code(mut self, code: &[u8], address: u64, entry: u32) -> Self {
        self.code = code.into();
        self.address = address;
        self.payload_entry = entry;
        self
    }

    pub(super) fn with_functions(mut self, mut functions: Vec<ZebinFunction>) -> Self {
        for function in &mut functions {
            function.name = display(&function.name);
        }
        self.functions = functions;
        self
    }

    pub(super) fn with_lines(mut self, mut lines: LineTable) -> Self {
        lines.distrust(self.payload_entry, &self.display);
        self.source_file = lines.first_file().map(str::to_owned);
        self.lines = lines;
        self
    }

    /// Whether sources of instructions are known.
    #[must_use]
    pub fn has_lines(&self) -> bool {
        !self.lines.is_empty()
    }

    /// Source at an instruction: the outermost function first, which is the kernel
    /// or a function that it calls, then those inlined into it; empty if not known.
    /// `offset` is from the first instruction, in bytes.
    #[must_use]
    pub fn source(&self, offset: u32) -> Vec<SourceFrame> {
        let texts = &self.lines.texts;
        let frame = |found: super::line_table::LineFunction| SourceFrame {
            function: match found.name {
                TextId::NONE => self.function(offset).to_owned(),
                name => texts.get(name).to_owned(),
            },
            file: texts.get(found.at.file).to_owned(),
            line: found.at.line,
            column: found.at.column,
            inlined: found.inlined,
        };
        self.lines.find(offset).into_iter().map(frame).collect()
    }

    /// Name of the function at an offset, demangled, by the module's symbols: the
    /// kernel's own, or of a function that it calls.
    #[must_use]
    pub fn function(&self, offset: u32) -> &str {
        let after = self.functions.partition_point(|f| f.start <= offset);
        let before = self.functions.get(..after).unwrap_or_default();
        // The kernel's own symbol may cover all; the nearest is the most exact.
        let near = before.iter().rev().take(MAX_NESTED);
        let mut around = near.filter(|f| offset < f.end);
        around.next().map_or(&self.display, |f| &f.name)
    }

    fn memory(&self) -> usize {
        let functions = self
            .functions
            .iter()
            .map(|f| f.name.len() + size_of::<ZebinFunction>());
        size_of::<Self>()
            + self.name.len()
            + self.display.len()
            + self.code.len()
            + self.source_file.as_ref().map_or(0, String::len)
            + functions.sum::<usize>()
            + self.lines.memory()
    }
}

/// The compiler's description of the kernels of a module, by their names for people; much faster
/// than [`Module::parse`]. In an archive, the first module with code counts.
#[must_use]
pub fn attributes(bytes: &[u8]) -> Vec<(String, Attributes)> {
    if bytes.len() > MAX_MODULE {
        return Vec::new();
    }
    let members = match bytes.starts_with(archive::MAGIC) {
        true => archive::members(bytes),
        false => vec![bytes],
    };
    if let Some(code) = members.iter().find(|member| zebin::is_zebin(member)) {
        let found = zebin::attributes(code).into_iter();
        return found.map(|(name, found)| (display(&name), found)).collect();
    }
    let other = members.iter().find(|member| spirv::is_spirv(member));
    let module = other.and_then(|member| spirv::parse(member).ok());
    let kernels = module.unwrap_or_default().kernels.into_iter();
    kernels
        .map(|kernel| (kernel.display, kernel.attributes))
        .collect()
}

/// Most functions looked at that begin before an offset and end before it.
const MAX_NESTED: usize = 64;

/// A name for people.
pub(super) fn display(name: &str) -> String {
    let readable = demangle(name);
    let plain = readable.strip_prefix("typeinfo name for ");
    plain.unwrap_or(&readable).to_owned()
}
