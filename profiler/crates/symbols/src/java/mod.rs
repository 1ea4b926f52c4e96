//! Java's HotSpot: where a process has the code that it generates, and the names of its
//! methods.
//!
//! HotSpot exports a description of its own structures, for debuggers: fields by name, so
//! that no version has to be known. [`JavaLibrary::find`] finds it in `libjvm.so`,
//! [`HotSpot::read`] reads it in a process, and from there the heaps of generated code;
//! [`HotSpot::layout`] is what the eBPF programs walk by. `JavaNames` names methods, and
//! the methods that were inlined at an address. JDK 11 to 25 were tried.
//!
//! All that is read of a process may be made up: reading is total, and bounded.

mod describe;
mod names;
#[cfg(test)]
mod tests;

use crate::{
    elf::{Dynamic, ReadAt},
    memory::MemoryFile,
};
use aiprof_common::{JAVA_BLOB_BYTES, JavaHeap, JavaLayout, MAX_JAVA_HEAPS};
use describe::Description;
pub(crate) use names::JavaNames;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Largest heap of generated code, and interpreter.
const MAX_HEAP: u64 = 4 << 30;
const MAX_INTERPRETER: u64 = 16 << 20;
/// Most bytes of an `nmethod` in front of its code.
const MAX_HEADER: u64 = 1024;
/// User addresses are below.
const USER_END: u64 = 1 << 47;

/// Why the frames of a HotSpot cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HotSpotError {
    /// The memory of the process cannot be read.
    #[error("its memory cannot be read")]
    Unreadable,
    /// It has only just started: there is no code yet.
    #[error("it has no code yet")]
    NotReady,
    /// A field, or type, that this version does not have.
    #[error("it has no {0}")]
    Lacks(&'static str),
    /// What is named contradicts everything known.
    #[error("{0} is invalid")]
    Odd(&'static str),
}

/// The exported symbols that lead to HotSpot's description of itself.
const SYMBOLS: [&str; 11] = [
    "gHotSpotVMStructs",
    "gHotSpotVMStructEntryTypeNameOffset",
    "gHotSpotVMStructEntryFieldNameOffset",
    "gHotSpotVMStructEntryTypeStringOffset",
    "gHotSpotVMStructEntryOffsetOffset",
    "gHotSpotVMStructEntryAddressOffset",
    "gHotSpotVMStructEntryArrayStride",
    "gHotSpotVMTypes",
    "gHotSpotVMTypeEntryTypeNameOffset",
    "gHotSpotVMTypeEntrySizeOffset",
    "gHotSpotVMTypeEntryArrayStride",
];

/// A file that is a HotSpot: where it describes itself, by the file's virtual addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JavaLibrary {
    symbols: [u64; SYMBOLS.len()],
}

impl JavaLibrary {
    const STRUCTS: usize = 0;
    const TYPE_NAME: usize = 1;
    const FIELD_NAME: usize = 2;
    const TYPE_STRING: usize = 3;
    const OFFSET: usize = 4;
    const ADDRESS: usize = 5;
    const STRIDE: usize = 6;
    const TYPES: usize = 7;
    const OF_TYPE_NAME: usize = 8;
    const TYPE_SIZE: usize = 9;
    const TYPE_STRIDE: usize = 10;

    /// The HotSpot in a file; `None`: it is none.
    pub fn find(file: &impl ReadAt) -> Option<Self> {
        let symbols = Dynamic::read(file)?;
        let mut found = [0; SYMBOLS.len()];
        for (to, name) in found.iter_mut().zip(SYMBOLS) {
            *to = symbols.find(name.as_bytes())?.address;
        }
        Some(Self { symbols: found })
    }

    fn symbol(&self, index: usize) -> u64 {
        self.symbols.get(index).copied().unwrap_or(0)
    }
}

/// A heap of generated code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Heap {
    /// Its addresses, of what is reserved.
    range: Range<u64>,
    /// Its map of segments.
    segments: u64,
}

/// A number in a structure, absolute or relative to another place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum BlobPlace {
    /// An address.
    Address(u16),
    /// An `int`, from the beginning of the blob.
    FromBlob(u16),
    /// A `u2`, from the beginning of the blob's code.
    FromCode(u16),
    /// A `u2`, from the beginning of the blob's data, whose offset is an `int` there.
    FromData(u16, u16),
    /// An `int`, from an address.
    From(u16, u16),
}

/// Where a compiled method lists the methods that were inlined into it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ScopeFields {
    /// `PcDesc`s: their beginning and their end.
    descriptions: (BlobPlace, BlobPlace),
    /// The scopes that these refer to.
    scopes: BlobPlace,
    /// The methods that scopes refer to.
    metadata: BlobPlace,
    /// Bytes of a `PcDesc`, and its fields.
    size: u16,
    pc_offset: u16,
    scope: u16,
    /// Numbers are one too large, so that no byte is 0 (JDK 20 and newer).
    has_no_zero: bool,
}

/// Fields of methods, of their classes and of names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct MethodFields {
    const_method: u16,
    constants: u16,
    name_index: u16,
    /// Bytes of a `ConstantPool`, behind which its entries are.
    pool_size: u16,
    pool_holder: u16,
    pool_length: u16,
    class_name: u16,
    symbol_length: u16,
    symbol_body: u16,
}

/// Fields of blobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct BlobFields {
    name: u16,
    size: u16,
    frame_size: u16,
    frame_complete: u16,
    frame_complete_bytes: u16,
    code: BlobPlace,
    entry: BlobPlace,
    /// For compiled methods: the method that was compiled, and the number of the compilation.
    method: u16,
    compilation: u16,
}

/// The HotSpot of a process, as it describes itself there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HotSpot {
    /// The version of the JDK.
    version: i32,
    heaps: Vec<Heap>,
    segment_shift: u32,
    interpreter: Range<u64>,
    /// Where the stub goes on that calls Java from C; 0: not known.
    call_stub: u64,
    block_header: u16,
    blob: BlobFields,
    method: MethodFields,
    /// `None`: this version has them otherwise.
    scopes: Option<ScopeFields>,
}

impl HotSpot {
    /// Reads a process's memory, whose offsets are addresses. `bias`: what is added to the
    /// addresses of the library's file.
    ///
    /// # Errors
    /// It cannot be read, has no code yet, or is of a version that has something
    /// otherwise.
    pub fn read(
        library: &JavaLibrary,
        bias: u64,
        memory: &impl ReadAt,
    ) -> Result<Self, HotSpotError> {
        let memory = MemoryFile(memory);
        let about = Description::read(library, bias, &memory)?;
        let version = about.address("Abstract_VM_Version::_vm_major_version")?;
        let version = memory.i32(version).ok_or(HotSpotError::Unreadable)?;
        let (heaps, segment_shift) = heaps(&about, &memory)?;
        Ok(Self {
            version,
            heaps,
            segment_shift,
            interpreter: interpreter(&about, &memory)?,
            call_stub: call_stub(&about, &memory),
            block_header: small(about.size("HeapBlock")?, MAX_HEADER)?,
            blob: blob_fields(&about)?,
            method: method_fields(&about)?,
            scopes: scope_fields(&about, version).ok(),
        })
    }

    /// The version of its JDK.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// Whether an address lies where it generates code.
    pub fn contains(&self, address: u64) -> bool {
        self.heaps.iter().any(|heap| heap.range.contains(&address))
    }

    /// Whether an address is in the interpreter.
    pub fn is_interpreter(&self, address: u64) -> bool {
        self.interpreter.contains(&address)
    }

    /// Whether an address is where the stub goes on that calls Java from C.
    pub fn is_call_stub(&self, address: u64) -> bool {
        self.call_stub == address && address != 0
    }

    /// How the eBPF programs walk its frames.
    pub fn layout(&self) -> JavaLayout {
        let mut heaps = [JavaHeap::default(); MAX_JAVA_HEAPS];
        for (to, heap) in heaps.iter_mut().zip(&self.heaps) {
            *to = JavaHeap {
                start: heap.range.start,
                end: heap.range.end,
                segments: heap.segments,
            };
        }
        let starts = self.heaps.iter().map(|heap| heap.range.start);
        let ends = self.heaps.iter().map(|heap| heap.range.end);
        let blob = &self.blob;
        let (blob_code, code_is_offset) = match blob.code {
            BlobPlace::Address(at) => (at, 0),
            BlobPlace::FromBlob(at) | BlobPlace::FromCode(at) => (at, 1),
            BlobPlace::FromData(at, _) | BlobPlace::From(at, _) => (at, 1),
        };
        let (method_entry, entry_is_offset) = match blob.entry {
            BlobPlace::Address(at) => (at, 0),
            BlobPlace::FromBlob(at) | BlobPlace::FromCode(at) => (at, 1),
            BlobPlace::FromData(at, _) | BlobPlace::From(at, _) => (at, 1),
        };
        JavaLayout {
            owner: 0,
            segment_shift: self.segment_shift,
            start: starts.min().unwrap_or(0),
            end: ends.max().unwrap_or(0),
            interpreter_start: self.interpreter.start,
            interpreter_end: self.interpreter.end,
            heaps,
            block_header: self.block_header,
            blob_frame_size: blob.frame_size,
            blob_frame_complete: blob.frame_complete,
            frame_complete_bytes: blob.frame_complete_bytes,
            blob_code,
            code_is_offset,
            blob_name: blob.name,
            method_entry,
            entry_is_offset,
            reserved: [0; 19],
        }
    }
}

/// A number that cannot be larger.
fn small(number: u64, most: u64) -> Result<u16, HotSpotError> {
    let number = Some(number).filter(|&number| number <= most);
    number
        .and_then(|number| u16::try_from(number).ok())
        .ok_or(HotSpotError::Odd("an offset"))
}

/// The offset of a field of a structure.
fn field(about: &Description, name: &'static str) -> Result<u16, HotSpotError> {
    small(about.offset(name)?, MAX_HEADER)
}

/// The offset of a field of a blob that the eBPF programs read with others.
fn in_header(about: &Description, name: &'static str) -> Result<u16, HotSpotError> {
    small(about.offset(name)?, JAVA_BLOB_BYTES as u64 - 8)
}

/// The heaps of generated code, and log2 of the bytes of their segments.
fn heaps<R: ReadAt>(
    about: &Description,
    memory: &MemoryFile<'_, R>,
) -> Result<(Vec<Heap>, u32), HotSpotError> {
    let read = |address: u64| memory.u64(address).ok_or(HotSpotError::Unreadable);
    let all = read(about.address("CodeCache::_heaps")?)?;
    if all == 0 {
        return Err(HotSpotError::NotReady);
    }
    let length = about
        .offset("GrowableArrayBase::_len")
        .or_else(|_| about.offset("GenericGrowableArray::_len"))?;
    let length = memory.i32(all.wrapping_add(length));
    let length = length.ok_or(HotSpotError::Unreadable)?;
    let data = read(all.wrapping_add(about.offset("GrowableArray<int>::_data")?))?;
    if length == 0 {
        return Err(HotSpotError::NotReady);
    }
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > MAX_JAVA_HEAPS {
        return Err(HotSpotError::Odd("the number of code heaps"));
    }
    let mut found = Vec::new();
    let mut shift = 0;
    for index in 0..length {
        let heap = read(data.wrapping_add(8 * index as u64))?;
        let space = heap.wrapping_add(about.offset("CodeHeap::_memory")?);
        let map = heap.wrapping_add(about.offset("CodeHeap::_segmap")?);
        let start = read(space.wrapping_add(about.offset("VirtualSpace::_low_boundary")?))?;
        let end = read(space.wrapping_add(about.offset("VirtualSpace::_high_boundary")?))?;
        let segments = read(map.wrapping_add(about.offset("VirtualSpace::_low")?))?;
        let log2 = heap.wrapping_add(about.offset("CodeHeap::_log2_segment_size")?);
        let log2 = memory.i32(log2).ok_or(HotSpotError::Unreadable)?;
        if start == 0 || segments == 0 {
            return Err(HotSpotError::NotReady);
        }
        let is_range = start < end && end - start <= MAX_HEAP && end < USER_END;
        let log2 = u32::try_from(log2)
            .ok()
            .filter(|log2| (4..=16).contains(log2));
        let same = |log2: &u32| index == 0 || *log2 == shift;
        let (Some(log2), true) = (log2.filter(same), is_range && segments < USER_END) else {
            return Err(HotSpotError::Odd("a code heap"));
        };
        shift = log2;
        found.push(Heap {
            range: start..end,
            segments,
        });
    }
    Ok((found, shift))
}

/// Where the interpreter is.
fn interpreter<R: ReadAt>(
    about: &Description,
    memory: &MemoryFile<'_, R>,
) -> Result<Range<u64>, HotSpotError> {
    let read = |address: u64| memory.u64(address).ok_or(HotSpotError::Unreadable);
    let queue = read(about.address("AbstractInterpreter::_code")?)?;
    if queue == 0 {
        return Err(HotSpotError::NotReady);
    }
    let start = read(queue.wrapping_add(about.offset("StubQueue::_stub_buffer")?))?;
    let size = queue.wrapping_add(about.offset("StubQueue::_buffer_limit")?);
    let size = memory.i32(size).ok_or(HotSpotError::Unreadable)?;
    let size = u64::try_from(size).unwrap_or(0);
    if size == 0 || size > MAX_INTERPRETER || start == 0 || start >= USER_END {
        return Err(HotSpotError::Odd("its interpreter"));
    }
    Ok(start..start + size)
}

/// Where the stub that calls Java from C goes on; 0: this version does not export it.
fn call_stub<R: ReadAt>(about: &Description, memory: &MemoryFile<'_, R>) -> u64 {
    let place = about.address("StubRoutines::_call_stub_return_address");
    place.ok().and_then(|at| memory.u64(at)).unwrap_or(0)
}

fn blob_fields(about: &Description) -> Result<BlobFields, HotSpotError> {
    let complete = "CodeBlob::_frame_complete_offset";
    let is_short = about
        .find(complete)
        .is_some_and(|field| field.type_name == "int16_t");
    let code = match about.find("CodeBlob::_code_begin") {
        Some(_) => BlobPlace::Address(in_header(about, "CodeBlob::_code_begin")?),
        None => BlobPlace::FromBlob(in_header(about, "CodeBlob::_code_offset")?),
    };
    let entry = match about.find("nmethod::_verified_entry_point") {
        Some(_) => BlobPlace::Address(field(about, "nmethod::_verified_entry_point")?),
        None => BlobPlace::FromCode(field(about, "nmethod::_verified_entry_offset")?),
    };
    Ok(BlobFields {
        name: in_header(about, "CodeBlob::_name")?,
        size: in_header(about, "CodeBlob::_size")?,
        frame_size: in_header(about, "CodeBlob::_frame_size")?,
        frame_complete: in_header(about, complete)?,
        frame_complete_bytes: if is_short { 2 } else { 4 },
        code,
        entry,
        method: field(about, "nmethod::_method")
            .or_else(|_| field(about, "CompiledMethod::_method"))?,
        compilation: field(about, "nmethod::_compile_id")?,
    })
}

fn method_fields(about: &Description) -> Result<MethodFields, HotSpotError> {
    Ok(MethodFields {
        const_method: field(about, "Method::_constMethod")?,
        constants: field(about, "ConstMethod::_constants")?,
        name_index: field(about, "ConstMethod::_name_index")?,
        pool_size: small(about.size("ConstantPool")?, MAX_HEADER)?,
        pool_holder: field(about, "ConstantPool::_pool_holder")?,
        pool_length: field(about, "ConstantPool::_length")?,
        class_name: field(about, "Klass::_name")?,
        symbol_length: field(about, "Symbol::_length")?,
        symbol_body: field(about, "Symbol::_body[0]").or_else(|_| field(about, "Symbol::_body"))?,
    })
}

/// In JDK 11 to 22 everything lies behind the method's code. Since 23 what does not change is
/// elsewhere; since 25 so is what does.
fn scope_fields(about: &Description, version: i32) -> Result<ScopeFields, HotSpotError> {
    let metadata = match about.find("nmethod::_metadata_offset") {
        Some(offset) if offset.type_name == "int" => {
            BlobPlace::FromBlob(field(about, "nmethod::_metadata_offset")?)
        }
        Some(_) => BlobPlace::FromData(
            field(about, "nmethod::_metadata_offset")?,
            field(about, "CodeBlob::_data_offset")?,
        ),
        None => BlobPlace::From(
            field(about, "CodeBlob::_relocation_size")?,
            field(about, "CodeBlob::_mutable_data")?,
        ),
    };
    let first = field(about, "nmethod::_scopes_pcs_offset")?;
    let (descriptions, scopes) = match field(about, "nmethod::_immutable_data") {
        Ok(data) => {
            let scopes = BlobPlace::From(field(about, "nmethod::_scopes_data_offset")?, data);
            ((BlobPlace::From(first, data), scopes), scopes)
        }
        Err(_) => {
            let end = field(about, "nmethod::_dependencies_offset")?;
            let scopes = field(about, "CompiledMethod::_scopes_data_begin")?;
            (
                (BlobPlace::FromBlob(first), BlobPlace::FromBlob(end)),
                BlobPlace::Address(scopes),
            )
        }
    };
    Ok(ScopeFields {
        descriptions,
        scopes,
        metadata,
        size: small(about.size("PcDesc")?, MAX_HEADER)?,
        pc_offset: field(about, "PcDesc::_pc_offset")?,
        scope: field(about, "PcDesc::_scope_decode_offset")?,
        has_no_zero: version >= 20,
    })
}
