//! HotSpot's description of its own structures, which it exports for debuggers
//! (`vmStructs.hpp`): tables of types, of their fields, and of where these are.

use super::{HotSpotError, JavaLibrary};
use crate::elf::{ReadAt, i32_at, u64_at};
use crate::memory::MemoryFile;
use rustc_hash::FxHashMap;

/// Most entries of a table; JDK 11 to 25 have 585 to 838.
const MAX_ENTRIES: usize = 8192;
/// Entries that are read at once.
const AT_ONCE: usize = 64;
/// Longest name; longer ones are none that is looked for.
const MAX_NAME: usize = 64;
/// Bytes of memory with names that are read at once.
const PIECE: u64 = 4096;
/// Most such pieces that are kept; some 40 have all.
const MAX_PIECES: usize = 256;
/// Most bytes from one entry to the next.
const MAX_STRIDE: u64 = 256;

/// A field: where it is in its structure, or, of the class itself, in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JavaField {
    /// Bytes from the begin of the structure.
    pub offset: u64,
    /// The address of a field of the class.
    pub address: u64,
    /// Its type, as in C++.
    pub type_name: String,
}

/// The fields and types that are looked for.
#[derive(Debug, Default)]
pub(super) struct Description {
    fields: FxHashMap<&'static str, JavaField>,
    sizes: FxHashMap<&'static str, u64>,
}

/// All that is looked for, as `TYPE::FIELD`.
const FIELDS: [&str; 48] = [
    "Abstract_VM_Version::_vm_major_version",
    "CodeCache::_heaps",
    "GrowableArrayBase::_len",
    "GenericGrowableArray::_len",
    "GrowableArray<int>::_data",
    "CodeHeap::_memory",
    "CodeHeap::_segmap",
    "CodeHeap::_log2_segment_size",
    "VirtualSpace::_low_boundary",
    "VirtualSpace::_high_boundary",
    "VirtualSpace::_low",
    "AbstractInterpreter::_code",
    "StubQueue::_stub_buffer",
    "StubQueue::_buffer_limit",
    "CodeBlob::_name",
    "CodeBlob::_size",
    "CodeBlob::_frame_size",
    "CodeBlob::_frame_complete_offset",
    "CodeBlob::_code_begin",
    "CodeBlob::_code_offset",
    "CodeBlob::_data_offset",
    "CodeBlob::_relocation_size",
    "CodeBlob::_mutable_data",
    "CodeBlob::_mutable_data_size",
    "CompiledMethod::_method",
    "CompiledMethod::_scopes_data_begin",
    "nmethod::_method",
    "nmethod::_verified_entry_point",
    "nmethod::_verified_entry_offset",
    "nmethod::_metadata_offset",
    "nmethod::_scopes_pcs_offset",
    "nmethod::_scopes_data_offset",
    "nmethod::_dependencies_offset",
    "nmethod::_immutable_data",
    "nmethod::_immutable_data_size",
    "nmethod::_compile_id",
    "PcDesc::_pc_offset",
    "PcDesc::_scope_decode_offset",
    "Method::_constMethod",
    "ConstMethod::_constants",
    "ConstMethod::_name_index",
    "ConstantPool::_pool_holder",
    "ConstantPool::_length",
    "Klass::_name",
    "Symbol::_length",
    "Symbol::_body",
    "Symbol::_body[0]",
    "StubRoutines::_call_stub_return_address",
];

/// Types whose size is looked for.
const TYPES: [&str; 3] = ["HeapBlock", "PcDesc", "ConstantPool"];

impl Description {
    /// Reads it from a process. `bias`: what is added to the file's addresses.
    ///
    /// # Errors
    /// It cannot be read, or makes no sense.
    pub(super) fn read<R: ReadAt>(
        library: &JavaLibrary,
        bias: u64,
        memory: &MemoryFile<'_, R>,
    ) -> Result<Self, HotSpotError> {
        let number = |symbol: usize| {
            let address = library.symbol(symbol).wrapping_add(bias);
            memory.u64(address).ok_or(HotSpotError::Unreadable)
        };
        let mut names = DescribedNames::default();
        let mut found = Self::default();
        let [type_at, field_at, kind_at, offset_at, address_at] = [
            number(JavaLibrary::TYPE_NAME)?,
            number(JavaLibrary::FIELD_NAME)?,
            number(JavaLibrary::TYPE_STRING)?,
            number(JavaLibrary::OFFSET)?,
            number(JavaLibrary::ADDRESS)?,
        ];
        let table = number(JavaLibrary::STRUCTS)?;
        each(memory, table, number(JavaLibrary::STRIDE)?, |entry| {
            let name = pointer(entry, type_at)?;
            if name == 0 {
                return None;
            }
            let of = names.get(memory, name);
            let field = names.get(memory, pointer(entry, field_at)?);
            let whole = format!("{of}::{field}");
            if let Some(wanted) = FIELDS.iter().find(|wanted| **wanted == whole) {
                let type_name = names.get(memory, pointer(entry, kind_at)?);
                let field = JavaField {
                    offset: pointer(entry, offset_at)?,
                    address: pointer(entry, address_at)?,
                    type_name,
                };
                found.fields.insert(wanted, field);
            }
            Some(())
        })?;
        let (name_at, size_at) = (
            number(JavaLibrary::OF_TYPE_NAME)?,
            number(JavaLibrary::TYPE_SIZE)?,
        );
        let table = number(JavaLibrary::TYPES)?;
        each(memory, table, number(JavaLibrary::TYPE_STRIDE)?, |entry| {
            let name = pointer(entry, name_at)?;
            if name == 0 {
                return None;
            }
            let name = names.get(memory, name);
            if let Some(wanted) = TYPES.iter().find(|wanted| **wanted == name) {
                found.sizes.insert(wanted, pointer(entry, size_at)?);
            }
            Some(())
        })?;
        Ok(found)
    }

    /// A field that this version may not have.
    pub(super) fn find(&self, name: &'static str) -> Option<&JavaField> {
        self.fields.get(name)
    }

    /// Where a field is in its structure.
    ///
    /// # Errors
    /// This version does not have it.
    pub(super) fn offset(&self, name: &'static str) -> Result<u64, HotSpotError> {
        let field = self.find(name).ok_or(HotSpotError::Lacks(name))?;
        Ok(field.offset)
    }

    /// Where a field of a class is.
    ///
    /// # Errors
    /// This version does not have it.
    pub(super) fn address(&self, name: &'static str) -> Result<u64, HotSpotError> {
        let field = self.find(name).ok_or(HotSpotError::Lacks(name))?;
        Ok(field.address)
    }

    /// Bytes of a type.
    ///
    /// # Errors
    /// This version does not have it.
    pub(super) fn size(&self, name: &'static str) -> Result<u64, HotSpotError> {
        self.sizes
            .get(name)
            .copied()
            .ok_or(HotSpotError::Lacks(name))
    }
}

/// Gives each entry of a table to `take`, until that wants no more, or the table ends.
fn each<R: ReadAt>(
    memory: &MemoryFile<'_, R>,
    table: u64,
    stride: u64,
    mut take: impl FnMut(&[u8]) -> Option<()>,
) -> Result<(), HotSpotError> {
    let stride = Some(stride).filter(|stride| (8..=MAX_STRIDE).contains(stride));
    let stride = stride.ok_or(HotSpotError::Odd("the size of an entry"))? as usize;
    let mut at = table;
    for _ in 0..MAX_ENTRIES / AT_ONCE {
        let entries = memory.some_bytes(at, AT_ONCE * stride);
        let entries = entries.ok_or(HotSpotError::Unreadable)?;
        let mut read = 0;
        for entry in entries.chunks_exact(stride) {
            if take(entry).is_none() {
                return Ok(());
            }
            read += 1;
        }
        if read < AT_ONCE {
            return Err(HotSpotError::Unreadable);
        }
        at = at.saturating_add((AT_ONCE * stride) as u64);
    }
    Err(HotSpotError::Odd("a table without an end marker"))
}

/// The word of an entry at an offset.
fn pointer(entry: &[u8], at: u64) -> Option<u64> {
    u64_at(entry, usize::try_from(at).ok()?)
}

/// DescribedNames by their addresses: most entries share theirs with their neighbours, and all lie
/// close together.
#[derive(Default)]
struct DescribedNames {
    names: FxHashMap<u64, String>,
    /// Memory that was read, by its address divided by its size.
    pieces: FxHashMap<u64, Vec<u8>>,
}

impl DescribedNames {
    /// The name at an address; empty: it is none that is looked for.
    fn get<R: ReadAt>(&mut self, memory: &MemoryFile<'_, R>, address: u64) -> String {
        if let Some(known) = self.names.get(&address) {
            return known.clone();
        }
        let name = self.read(memory, address).unwrap_or_default();
        self.names.insert(address, name.clone());
        name
    }

    fn read<R: ReadAt>(&mut self, memory: &MemoryFile<'_, R>, address: u64) -> Option<String> {
        let (piece, skip) = (address / PIECE, address % PIECE);
        if self.pieces.len() >= MAX_PIECES {
            self.pieces.clear();
        }
        let bytes = self.pieces.entry(piece).or_insert_with(|| {
            let bytes = memory.some_bytes(piece * PIECE, PIECE as usize);
            bytes.unwrap_or_default()
        });
        let rest = bytes.get(skip as usize..).unwrap_or_default();
        let rest = rest.get(..MAX_NAME).unwrap_or(rest);
        match rest.iter().position(|&byte| byte == 0) {
            Some(end) => String::from_utf8(rest.get(..end)?.to_vec()).ok(),
            // It may go on in the next piece.
            None => memory.text(address, MAX_NAME),
        }
    }
}

/// An `int` in a field, as it is in a copy of its structure.
pub(super) fn int(bytes: &[u8], offset: u16) -> Option<i32> {
    i32_at(bytes, offset.into())
}
