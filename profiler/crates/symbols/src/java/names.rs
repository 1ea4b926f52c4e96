//! Names of methods, and of what was inlined at an address of generated code.

use super::describe::int;
use super::{BlobPlace, HotSpot, MAX_HEADER, ScopeFields};
use crate::elf::{ReadAt, u16_at, u64_at};
use crate::frame::SymFrame;
use crate::memory::MemoryFile;
use aiprof_common::java_method;
use aiprof_model::profile::FrameKind;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most steps from a segment to the first one of its block.
const MAX_SEGMENT_STEPS: usize = 64;
/// A free segment.
const SEGMENT_FREE: u8 = 255;
/// Largest blob.
const MAX_BLOB: i32 = 64 << 20;
/// Most bytes of the descriptions of a compiled method's addresses, of its scopes, and of
/// the methods that these refer to.
const MAX_DESCRIPTIONS: u64 = 4 << 20;
const MAX_SCOPES: usize = 4 << 20;
const MAX_METADATA: usize = 1 << 20;
/// Most methods that were inlined at an address.
const MAX_INLINED: usize = 256;
/// Most bytes of a name in a class file.
const MAX_SYMBOL: usize = 1024;
/// Most methods and blobs that are remembered of a process.
const MAX_KNOWN: usize = 1 << 16;
/// Most bytes of blobs.
const MAX_KNOWN_BYTES: usize = 32 << 20;
/// Most processes.
const MAX_PROCESSES: usize = 32;

/// A process: its number, and when it started.
type Process = (u32, u64);

/// Names the methods of processes. What is known stays when a process has ended.
#[derive(Debug, Default)]
pub(crate) struct JavaNames {
    processes: FxHashMap<Process, JavaProcess>,
}

/// What is known of a process.
#[derive(Debug, Default)]
struct JavaProcess {
    methods: FxHashMap<u64, Option<Arc<str>>>,
    /// By the address of the blob.
    blobs: BTreeMap<u64, Blob>,
    bytes: usize,
}

/// Distinguishes a compiled method from others that were at its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MethodIdentity {
    method: u64,
    compilation: i32,
    size: i32,
    name: u64,
}

/// A piece of generated code.
#[derive(Debug)]
struct Blob {
    identity: MethodIdentity,
    end: u64,
    code: u64,
    kind: BlobKind,
}

#[derive(Debug)]
enum BlobKind {
    /// A method: its name, and what was inlined into it.
    Method(Option<Arc<str>>, Option<Scopes>),
    /// Something else, by its name.
    Other(Arc<str>),
}

/// What was inlined into a compiled method.
#[derive(Debug)]
struct Scopes {
    /// Offsets in the code, ascending, and in `data`: what holds up to there.
    descriptions: Vec<(i32, u32)>,
    data: Vec<u8>,
    methods: Vec<u64>,
}

impl JavaNames {
    /// The frames at an address of a sample, which may be a method: from the outermost
    /// function to the innermost; none: nothing is known. `memory`: that of the process, if
    /// it lives.
    pub(crate) fn frames<R: ReadAt>(
        &mut self,
        process: Process,
        hotspot: &HotSpot,
        memory: Option<&R>,
        address: u64,
    ) -> Vec<SymFrame> {
        if self.processes.len() >= MAX_PROCESSES && !self.processes.contains_key(&process) {
            self.processes.clear();
        }
        let known = self.processes.entry(process).or_default();
        if known.methods.len() >= MAX_KNOWN
            || known.blobs.len() >= MAX_KNOWN
            || known.bytes >= MAX_KNOWN_BYTES
        {
            *known = JavaProcess::default();
        }
        let reader = HotSpotReader {
            hotspot,
            memory: memory.map(MemoryFile),
        };
        if let Some(method) = java_method(address) {
            let name = known.method(&reader, method);
            return name
                .map(|name| java_frame(&name, FrameKind::Jit))
                .into_iter()
                .collect();
        }
        if !hotspot.contains(address) {
            return Vec::new();
        }
        known.code(&reader, address).unwrap_or_default()
    }
}

impl JavaProcess {
    /// The name of a method.
    fn method<R: ReadAt>(
        &mut self,
        reader: &HotSpotReader<'_, R>,
        method: u64,
    ) -> Option<Arc<str>> {
        if let Some(Some(name)) = self.methods.get(&method) {
            return Some(Arc::clone(name));
        }
        let name = reader.method_name(method).map(Arc::from);
        self.methods.insert(method, name.clone());
        name
    }

    /// The frames at an address of code.
    fn code<R: ReadAt>(
        &mut self,
        reader: &HotSpotReader<'_, R>,
        address: u64,
    ) -> Option<Vec<SymFrame>> {
        let at = match reader.blob_at(address) {
            Some((at, header)) => {
                let identity = reader.identity(&header)?;
                if self.blobs.get(&at).map(|blob| blob.identity) != Some(identity) {
                    let blob = self.read_blob(reader, at, &header, identity)?;
                    let old = self.blobs.insert(at, blob);
                    self.bytes -= old.as_ref().map_or(0, Blob::bytes).min(self.bytes);
                    self.bytes += self.blobs.get(&at).map_or(0, Blob::bytes);
                }
                at
            }
            // The process has ended.
            None => *self.blobs.range(..=address).next_back()?.0,
        };
        let blob = self.blobs.get(&at)?;
        if address >= blob.end {
            return None;
        }
        let (name, scopes) = match &blob.kind {
            BlobKind::Other(name) => return Some(vec![java_frame(name, FrameKind::Jit)]),
            BlobKind::Method(name, scopes) => (name.clone(), scopes),
        };
        let inlined = scopes
            .as_ref()
            .map(|scopes| scopes.methods_at(address.wrapping_sub(blob.code), reader.hotspot));
        // The last is the compiled method itself.
        let inlined = inlined.filter(|inlined| inlined.last() == Some(&blob.identity.method));
        let mut methods = inlined.unwrap_or_default();
        methods.pop();
        let mut frames = vec![java_frame(&name?, FrameKind::Jit)];
        for method in methods.into_iter().rev() {
            frames.push(match self.method(reader, method) {
                Some(name) => java_frame(&name, FrameKind::Inlined),
                None => SymFrame::plain("[Java method not known]", FrameKind::Unknown),
            });
        }
        Some(frames)
    }

    fn read_blob<R: ReadAt>(
        &mut self,
        reader: &HotSpotReader<'_, R>,
        at: u64,
        header: &[u8],
        identity: MethodIdentity,
    ) -> Option<Blob> {
        let memory = reader.memory.as_ref()?;
        let name = memory.text(identity.name, MAX_SYMBOL)?;
        let code = reader.place(reader.hotspot.blob.code, at, 0, header)?;
        let kind = if name == "nmethod" || name == "native nmethod" {
            let name = self.method(reader, identity.method);
            let scopes = reader.hotspot.scopes.as_ref();
            let scopes = scopes.and_then(|fields| reader.scopes(fields, at, code, header));
            // Named while the process lives.
            let inlined = scopes.as_ref().map_or(&[][..], |scopes| &scopes.methods);
            for &method in inlined.iter().filter(|&&method| method != 0) {
                self.method(reader, method);
            }
            BlobKind::Method(name, scopes)
        } else {
            BlobKind::Other(name.into())
        };
        let size = u64::try_from(identity.size).ok()?;
        Some(Blob {
            identity,
            end: at.checked_add(size)?,
            code,
            kind,
        })
    }
}

impl Blob {
    /// About how many bytes it takes.
    fn bytes(&self) -> usize {
        let scopes = match &self.kind {
            BlobKind::Method(_, Some(scopes)) => {
                scopes.data.len() + 8 * (scopes.descriptions.len() + scopes.methods.len())
            }
            _ => 0,
        };
        scopes + size_of::<Self>()
    }
}

/// Reads the memory of a process that has a HotSpot.
struct HotSpotReader<'a, R> {
    hotspot: &'a HotSpot,
    memory: Option<MemoryFile<'a, R>>,
}

impl<R: ReadAt> HotSpotReader<'_, R> {
    /// The address of the blob that an address lies in, and a copy of its header.
    fn blob_at(&self, address: u64) -> Option<(u64, Vec<u8>)> {
        let memory = self.memory.as_ref()?;
        let heap = self.hotspot.heaps.iter();
        let heap = heap.clone().find(|heap| heap.range.contains(&address))?;
        let shift = self.hotspot.segment_shift;
        let mut segment = (address - heap.range.start) >> shift;
        for _ in 0..MAX_SEGMENT_STEPS {
            let back = *memory
                .bytes(heap.segments.checked_add(segment)?, 1)?
                .first()?;
            if back == SEGMENT_FREE {
                return None;
            }
            if back == 0 {
                let block = heap.range.start + (segment << shift);
                let blob = block.checked_add(self.hotspot.block_header.into())?;
                return Some((blob, memory.some_bytes(blob, MAX_HEADER as usize + 8)?));
            }
            segment = segment.checked_sub(back.into())?;
        }
        None
    }

    fn identity(&self, header: &[u8]) -> Option<MethodIdentity> {
        let blob = &self.hotspot.blob;
        Some(MethodIdentity {
            method: u64_at(header, blob.method.into())?,
            compilation: int(header, blob.compilation)?,
            size: int(header, blob.size).filter(|size| (1..=MAX_BLOB).contains(size))?,
            name: u64_at(header, blob.name.into())?,
        })
    }

    /// The address that a number in the header of a blob leads to.
    fn place(&self, place: BlobPlace, blob: u64, code: u64, header: &[u8]) -> Option<u64> {
        let signed = |at: u16| Some(i64::from(int(header, at)?) as u64);
        Some(match place {
            BlobPlace::Address(at) => u64_at(header, at.into())?,
            BlobPlace::FromBlob(at) => blob.wrapping_add(signed(at)?),
            BlobPlace::FromCode(at) => code.wrapping_add(u16_at(header, at.into())?.into()),
            BlobPlace::FromData(at, data) => blob
                .wrapping_add(signed(data)?)
                .wrapping_add(u16_at(header, at.into())?.into()),
            BlobPlace::From(at, from) => u64_at(header, from.into())?.wrapping_add(signed(at)?),
        })
    }

    /// What was inlined into a compiled method.
    fn scopes(&self, fields: &ScopeFields, blob: u64, code: u64, header: &[u8]) -> Option<Scopes> {
        let memory = self.memory.as_ref()?;
        let place = |place| self.place(place, blob, code, header);
        let (first, end) = (place(fields.descriptions.0)?, place(fields.descriptions.1)?);
        let bytes = end.checked_sub(first).filter(|&n| n <= MAX_DESCRIPTIONS)?;
        let table = memory.bytes(first, usize::try_from(bytes).ok()?)?;
        let descriptions = table.chunks_exact(usize::from(fields.size.max(8)));
        let descriptions = descriptions.filter_map(|entry| {
            let scope = u32::try_from(int(entry, fields.scope)?).ok()?;
            Some((int(entry, fields.pc_offset)?, scope))
        });
        let mut descriptions: Vec<(i32, u32)> = descriptions.collect();
        descriptions.sort_by_key(|&(offset, _)| offset);
        // Scopes are read from one that is referred to towards the first.
        let last = descriptions
            .iter()
            .map(|&(_, scope)| scope as usize)
            .max()?;
        let length = last.checked_add(SCOPE_HEAD)?;
        if length > MAX_SCOPES {
            return None;
        }
        let data = memory.some_bytes(place(fields.scopes)?, length)?;
        let mut scopes = Scopes {
            descriptions,
            data,
            methods: Vec::new(),
        };
        let most = scopes.highest_method(fields.has_no_zero);
        if most * 8 > MAX_METADATA {
            return None;
        }
        let metadata = memory.some_bytes(place(fields.metadata)?, most * 8);
        let metadata = metadata.unwrap_or_default();
        let methods = metadata.chunks_exact(8).filter_map(|word| u64_at(word, 0));
        scopes.methods = methods.collect();
        scopes.keep_methods(fields.has_no_zero);
        Some(scopes)
    }

    /// `package.Class.method`.
    fn method_name(&self, method: u64) -> Option<String> {
        let memory = self.memory.as_ref()?;
        let fields = &self.hotspot.method;
        let at = |object: u64, field: u16| object.checked_add(field.into());
        let constants = memory.u64(at(method, fields.const_method)?)?;
        let name_index = memory.bytes(at(constants, fields.name_index)?, 2)?;
        let name_index = u16_at(&name_index, 0)?;
        let pool = memory.u64(at(constants, fields.constants)?)?;
        let length = memory.i32(at(pool, fields.pool_length)?)?;
        if name_index == 0 || i32::from(name_index) >= length {
            return None;
        }
        let entry = at(pool, fields.pool_size)?.checked_add(8 * u64::from(name_index))?;
        let name = self.symbol(memory.u64(entry)?)?;
        let holder = memory.u64(at(pool, fields.pool_holder)?)?;
        let class = self.symbol(memory.u64(at(holder, fields.class_name)?)?)?;
        Some(format!("{}.{name}", class_name(&class)))
    }

    /// A name in a class file.
    fn symbol(&self, symbol: u64) -> Option<String> {
        let memory = self.memory.as_ref()?;
        let fields = &self.hotspot.method;
        let length = memory.bytes(symbol.checked_add(fields.symbol_length.into())?, 2)?;
        let length = usize::from(u16_at(&length, 0)?);
        if length == 0 {
            return None;
        }
        let body = symbol.checked_add(fields.symbol_body.into())?;
        let bytes = memory.bytes(body, length.min(MAX_SYMBOL))?;
        let text = String::from_utf8_lossy(&bytes);
        let is_name = !text.chars().any(|c| c.is_control() || c == ' ');
        is_name.then(|| text.into_owned())
    }
}

/// Bytes of a scope up to its method: two numbers of five bytes at most.
const SCOPE_HEAD: usize = 10;

impl Scopes {
    /// The scope that is at an offset of a method's code.
    fn scope_at(&self, offset: u64) -> Option<u32> {
        let offset = i32::try_from(offset).ok()?;
        let after = self.descriptions.partition_point(|&(at, _)| at < offset);
        let (_, scope) = *self.descriptions.get(after)?;
        (scope > 0).then_some(scope)
    }

    /// The methods that run at an offset of the code, innermost first.
    fn methods_at(&self, offset: u64, hotspot: &HotSpot) -> Vec<u64> {
        let has_no_zero = hotspot.scopes.as_ref().is_some_and(|s| s.has_no_zero);
        let mut methods = Vec::new();
        let mut scope = self.scope_at(offset);
        while let Some(at) = scope
            && methods.len() < MAX_INLINED
        {
            let Some((sender, method)) = self.scope(at, has_no_zero) else {
                break;
            };
            methods.push(self.method(method));
            // What calls lies in front of what it calls.
            scope = (sender > 0 && sender < at).then_some(sender);
        }
        methods
    }

    /// The scope of the caller, 0 for none, and the number of the method of a scope.
    fn scope(&self, at: u32, has_no_zero: bool) -> Option<(u32, u32)> {
        let mut rest = self.data.get(at as usize..)?;
        let sender = unsigned5(&mut rest, has_no_zero)?;
        Some((sender, unsigned5(&mut rest, has_no_zero)?))
    }

    /// A method by its number, from 1 on; 0: not known.
    fn method(&self, number: u32) -> u64 {
        let index = (number as usize).checked_sub(1);
        let method = index.and_then(|index| self.methods.get(index));
        method.copied().unwrap_or(0)
    }

    /// Each scope that is referred to: its method's number.
    fn each_method(&self, has_no_zero: bool, mut take: impl FnMut(u32)) {
        let mut seen = rustc_hash::FxHashSet::default();
        for &(_, scope) in &self.descriptions {
            let mut at = scope;
            while at > 0 && seen.insert(at) {
                let Some((sender, method)) = self.scope(at, has_no_zero) else {
                    break;
                };
                take(method);
                if sender >= at {
                    break;
                }
                at = sender;
            }
        }
    }

    /// The highest number of a method.
    fn highest_method(&self, has_no_zero: bool) -> usize {
        let mut most = 0;
        self.each_method(has_no_zero, |method| most = most.max(method as usize));
        most
    }

    /// Forgets what is no method of a scope: classes have numbers too.
    fn keep_methods(&mut self, has_no_zero: bool) {
        let mut used = vec![false; self.methods.len()];
        self.each_method(has_no_zero, |method| {
            let index = (method as usize).checked_sub(1);
            if let Some(used) = index.and_then(|index| used.get_mut(index)) {
                *used = true;
            }
        });
        for (method, used) in self.methods.iter_mut().zip(used) {
            if !used {
                *method = 0;
            }
        }
    }
}

/// A number of one to five bytes (HotSpot's UNSIGNED5): all but the last are at least 192,
/// and each counts 64 times as much as the one before.
pub(super) fn unsigned5(rest: &mut &[u8], has_no_zero: bool) -> Option<u32> {
    let less = u32::from(has_no_zero);
    let mut sum = 0u32;
    for index in 0..5 {
        let (&byte, behind) = rest.split_first()?;
        *rest = behind;
        let value = u32::from(byte).checked_sub(less)?;
        sum = sum.wrapping_add(value.wrapping_shl(6 * index));
        if byte < 192 {
            break;
        }
    }
    Some(sum)
}

/// A class as programmers call it. HotSpot adds the address to the names of classes made at run
/// time; it differs in each run.
fn class_name(name: &str) -> String {
    let name = match name.rsplit_once("+0x") {
        Some((name, hex)) if hex.bytes().all(|b| b.is_ascii_hexdigit()) => name,
        _ => name,
    };
    name.replace('/', ".")
}

fn java_frame(name: &str, kind: FrameKind) -> SymFrame {
    SymFrame::plain(name, kind)
}
