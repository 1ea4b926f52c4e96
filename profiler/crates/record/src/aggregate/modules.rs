//! Device code, for the names and lines of what was sampled.

use crate::correlate::ImagePiece;
use aiprof_model::wire::DeviceCode;
use aiprof_symbols::symbolize::device::{self, Module};
use rustc_hash::FxHashMap;
use sha2::{Digest, Sha256};
use std::rc::Rc;

/// Most bytes of modules that are kept.
const MAX_BYTES: usize = 256 << 20;
/// Largest module.
const MAX_MODULE: u64 = 64 << 20;
/// Most modules that arrive at a time.
const MAX_ARRIVING: usize = 1024;

/// A module's digest.
type Sum = [u8; 32];

/// A kernel's code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SampledKernel {
    /// Process whose memory it may have to be looked for in.
    pub(super) pid: u32,
    /// Its name for people.
    pub(super) name: Rc<str>,
    /// Digest of the module that its program gave the runtime.
    pub(super) module: Option<[u8; 32]>,
}

/// A module that arrives in pieces.
#[derive(Debug, Default)]
struct Arriving {
    total: u64,
    bytes: Vec<u8>,
}

/// Puts modules together that arrive in pieces.
#[derive(Debug, Default)]
pub(crate) struct ModuleArrivals {
    /// By thread, probe and tag.
    arriving: FxHashMap<(u32, u32, u8), Arriving>,
}

impl ModuleArrivals {
    /// Takes a piece; gives the module when it is whole.
    pub(crate) fn piece(&mut self, piece: &ImagePiece<'_>) -> Option<Vec<u8>> {
        if piece.offset == 0 {
            if self.arriving.len() >= MAX_ARRIVING {
                self.arriving.clear();
            }
            let fresh = Arriving {
                total: piece.total,
                bytes: Vec::new(),
            };
            self.arriving.insert(piece.of, fresh);
        }
        let module = self.arriving.get_mut(&piece.of)?;
        let in_order = piece.offset == module.bytes.len() as u64 && !piece.unread;
        if !in_order || module.total > MAX_MODULE || piece.bytes.len() as u64 > MAX_MODULE {
            self.arriving.remove(&piece.of);
            return None;
        }
        module.bytes.extend_from_slice(piece.bytes);
        if (module.bytes.len() as u64) < module.total {
            return None;
        }
        self.arriving.remove(&piece.of).map(|module| module.bytes)
    }
}

/// The modules that programs gave their runtimes, and those found in their memory.
#[derive(Debug, Default)]
pub(super) struct Modules {
    arrivals: ModuleArrivals,
    by_digest: FxHashMap<Sum, Stored>,
    /// Modules that a driver compiled, by process.
    compiled: FxHashMap<u32, Vec<Sum>>,
    used: usize,
    /// Modules that found no room, or could not be read.
    refused: u64,
}

/// A module as it came, or, once something of it was asked for, read.
#[derive(Debug)]
enum Stored {
    Bytes(Box<[u8]>),
    Read(Option<Rc<Module>>),
}

/// A kernel of a module.
#[derive(Clone, Debug)]
pub(super) struct ModuleKernel {
    module: Rc<Module>,
    index: usize,
}

impl ModuleKernel {
    /// The kernel.
    pub(super) fn kernel(&self) -> Option<&device::DeviceFunction> {
        self.module.kernels.get(self.index)
    }

    /// What its code is for.
    pub(super) fn platform(&self) -> Option<device::isa::Platform> {
        self.module.platform
    }
}

impl Modules {
    /// A piece of a module.
    pub(super) fn piece(&mut self, piece: &ImagePiece<'_>) {
        if let Some(whole) = self.arrivals.piece(piece) {
            self.add(whole);
        }
    }

    /// Code that was found in a program's memory.
    pub(super) fn found(&mut self, code: &DeviceCode) {
        if let Some(digest) = self.add(code.bytes.clone()) {
            let of = self.compiled.entry(code.pid).or_default();
            if !of.contains(&digest) {
                of.push(digest);
            }
        }
    }

    fn add(&mut self, bytes: Vec<u8>) -> Option<Sum> {
        let digest: Sum = Sha256::digest(&bytes).into();
        if self.by_digest.contains_key(&digest) {
            return Some(digest);
        }
        if self.used + bytes.len() > MAX_BYTES {
            self.refused += 1;
            return None;
        }
        self.used += bytes.len();
        self.by_digest.insert(digest, Stored::Bytes(bytes.into()));
        Some(digest)
    }

    /// Modules that found no room or could not be read since the last call.
    pub(super) fn take_refused(&mut self) -> u64 {
        std::mem::take(&mut self.refused)
    }

    /// The module of a digest.
    fn read(&mut self, digest: &Sum) -> Option<Rc<Module>> {
        let stored = self.by_digest.get_mut(digest)?;
        if let Stored::Bytes(bytes) = stored {
            let module = Module::parse(bytes).map(Rc::new);
            if let Err(error) = &module {
                tracing::debug!("device module: {error}");
                self.refused += 1;
            }
            *stored = Stored::Read(module.ok());
        }
        match stored {
            Stored::Read(module) => module.clone(),
            Stored::Bytes(_) => None,
        }
    }

    /// A kernel in its module, best with code: the module that the program gave its
    /// runtime, or what the driver has made of it.
    pub(super) fn find(&mut self, kernel: &SampledKernel) -> Option<ModuleKernel> {
        let compiled = self.compiled.get(&kernel.pid).cloned().unwrap_or_default();
        let mut without_code = None;
        // The newest of those that were found first.
        for digest in kernel.module.iter().chain(compiled.iter().rev()) {
            let Some(module) = self.read(digest) else {
                continue;
            };
            let same =
                |k: &device::DeviceFunction| *k.display == *kernel.name || *k.name == *kernel.name;
            let Some(index) = module.kernels.iter().position(same) else {
                continue;
            };
            let found = ModuleKernel { module, index };
            if found.kernel().is_some_and(|k| !k.code.is_empty()) {
                return Some(found);
            }
            without_code.get_or_insert(found);
        }
        without_code
    }
}

/// Instructions of a kernel by offset.
type Listing = FxHashMap<u32, std::borrow::Cow<'static, str>>;

/// A kernel that samples are of, with what its frames are made of.
#[derive(Debug)]
pub(super) struct DescribedKernel {
    pub(super) name: String,
    found: Option<ModuleKernel>,
    pub(super) listing: Listing,
}

impl DescribedKernel {
    pub(super) fn new(name: &str, found: Option<ModuleKernel>) -> Self {
        let code = found.as_ref().and_then(|f| f.kernel().zip(f.platform()));
        let listing = code.map_or_else(Listing::default, |(kernel, platform)| {
            let decoded = device::isa::decode(&kernel.code, platform);
            let instructions = decoded.instructions.into_iter();
            instructions.map(|i| (i.offset, i.mnemonic)).collect()
        });
        Self {
            name: name.to_owned(),
            found,
            listing,
        }
    }

    /// The kernel in its module.
    pub(super) fn found(&self) -> Option<&ModuleKernel> {
        self.found.as_ref()
    }

    /// The kernel with its code.
    pub(super) fn kernel(&self) -> Option<&device::DeviceFunction> {
        self.found.as_ref()?.kernel()
    }
}
