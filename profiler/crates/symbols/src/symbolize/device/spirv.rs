//! SPIR-V: names of kernels and their source files (SPIR-V specification, 2.3
//! "Physical Layout" and 3.52 "Instructions").

use super::limits::{MAX_KERNELS, MAX_TEXT};
use super::module::{Attributes, DeviceFunction, Module, ModuleError};
use super::zebin::readable;
use rustc_hash::FxHashMap;

/// First word of a SPIR-V module.
pub const SPIRV_MAGIC: u32 = 0x0723_0203;
/// Words before the first instruction.
const HEADER: usize = 5;
const OP_STRING: u32 = 7;
const OP_LINE: u32 = 8;
const OP_ENTRY_POINT: u32 = 15;
const OP_FUNCTION: u32 = 54;
const OP_FUNCTION_PARAMETER: u32 = 55;
const OP_FUNCTION_END: u32 = 56;
/// Execution model of OpenCL's kernels.
const MODEL_KERNEL: u32 = 6;

/// Whether bytes begin as SPIR-V does, in this order of bytes.
pub(super) fn is_spirv(bytes: &[u8]) -> bool {
    bytes.starts_with(&SPIRV_MAGIC.to_le_bytes())
}

/// Reads kernel names, and for each the file of its first `OpLine`.
pub(super) fn parse(bytes: &[u8]) -> Result<Module, ModuleError> {
    let words: Vec<u32> = bytes
        .chunks_exact(4)
        .filter_map(|c| c.try_into().ok().map(u32::from_le_bytes))
        .collect();
    if words.len() < HEADER {
        return Err(ModuleError::Malformed("SPIR-V header cut off".to_owned()));
    }
    let mut module = Module::default();
    let mut found = SpirvNames::default();
    let mut at = HEADER;
    while let Some(&first) = words.get(at) {
        let (length, op) = ((first >> 16) as usize, first & 0xffff);
        let operands = at
            .checked_add(length)
            .and_then(|end| words.get(at + 1..end));
        let (Some(operands), false) = (operands, length == 0) else {
            module.problems.sections = module.problems.sections.saturating_add(1);
            break;
        };
        found.instruction(op, operands);
        at += length;
    }
    for (id, name) in found.kernels {
        let file = found.files.get(&id).and_then(|id| found.strings.get(id));
        let attributes = Attributes {
            arguments: found.parameters.get(&id).copied(),
            ..Attributes::default()
        };
        let mut kernel = DeviceFunction::new(name, attributes);
        kernel.source_file = file.cloned();
        module.kernels.push(kernel);
    }
    Ok(module)
}

#[derive(Default)]
struct SpirvNames {
    /// Function and name, in order.
    kernels: Vec<(u32, String)>,
    strings: FxHashMap<u32, String>,
    /// By function the text that names its file.
    files: FxHashMap<u32, u32>,
    /// By function its parameters.
    parameters: FxHashMap<u32, u32>,
    /// The function that the reader is in.
    function: Option<u32>,
    /// The last `OpLine` before a function, which holds for it.
    line: Option<u32>,
    bytes: usize,
}

impl SpirvNames {
    fn instruction(&mut self, op: u32, operands: &[u32]) {
        match (op, operands) {
            (OP_ENTRY_POINT, [MODEL_KERNEL, id, name @ ..]) => {
                if let Some(name) = self.text(name).filter(|_| self.kernels.len() < MAX_KERNELS) {
                    self.kernels.push((*id, name));
                }
            }
            (OP_STRING, [id, text @ ..]) => {
                if let Some(text) = self.text(text) {
                    self.strings.insert(*id, text);
                }
            }
            (OP_LINE, [file, ..]) => {
                self.line = Some(*file);
                self.note();
            }
            (OP_FUNCTION, [_, id, ..]) => {
                self.function = Some(*id);
                if self.parameters.len() < MAX_KERNELS {
                    self.parameters.insert(*id, 0);
                }
                self.note();
            }
            (OP_FUNCTION_PARAMETER, _) => {
                let function = self.function.unwrap_or(0);
                if let Some(count) = self.parameters.get_mut(&function) {
                    *count = count.saturating_add(1);
                }
            }
            (OP_FUNCTION_END, _) => {
                self.function = None;
                self.line = None;
            }
            _ => {}
        }
    }

    /// The first file of the current function counts.
    fn note(&mut self) {
        if let (Some(function), Some(file)) = (self.function, self.line)
            && self.files.len() < MAX_KERNELS
        {
            self.files.entry(function).or_insert(file);
        }
    }

    /// A literal: bytes up to a zero, four to a word.
    fn text(&mut self, words: &[u32]) -> Option<String> {
        if self.bytes > MAX_TEXT {
            return None;
        }
        let bytes = words.iter().flat_map(|w| w.to_le_bytes());
        let bytes: Vec<u8> = bytes.take_while(|b| *b != 0).collect();
        self.bytes += bytes.len() + 64;
        readable(&bytes)
    }
}
