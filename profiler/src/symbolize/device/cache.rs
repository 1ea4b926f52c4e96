//! Modules by what they are.

use super::module::{Kernel, Module, Problems};
use rustc_hash::FxHashMap;

/// SHA-256 of a module's bytes.
type Digest = [u8; 32];

/// Modules that programs loaded, each once, by the SHA-256 digests of their bytes.
///
/// Bounded: where a module does not fit, those added the longest ago go.
#[derive(Debug)]
pub struct DeviceSymbols {
    modules: FxHashMap<Digest, Kept>,
    limit: usize,
    bytes: usize,
    /// Counts additions.
    clock: u64,
    problems: Problems,
    unreadable: u64,
    dropped: u64,
}

#[derive(Debug)]
struct Kept {
    /// `None`: known to be unreadable.
    module: Option<Module>,
    bytes: usize,
    added: u64,
}

impl DeviceSymbols {
    /// Keeps modules of at most `limit` bytes of memory together.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            modules: FxHashMap::default(),
            limit,
            bytes: 0,
            clock: 0,
            problems: Problems::default(),
            unreadable: 0,
            dropped: 0,
        }
    }

    /// Reads a module, unless it is known. Adding it again keeps it young.
    pub fn add(&mut self, digest: Digest, bytes: &[u8]) {
        self.clock = self.clock.saturating_add(1);
        if let Some(kept) = self.modules.get_mut(&digest) {
            kept.added = self.clock;
            return;
        }
        let module = Module::parse(bytes).ok();
        match &module {
            Some(module) => self.problems += module.problems,
            None => self.unreadable = self.unreadable.saturating_add(1),
        }
        let size = size_of::<Kept>() + 64 + module.as_ref().map_or(0, Module::memory);
        if size > self.limit {
            self.dropped = self.dropped.saturating_add(1);
            return;
        }
        self.make_room(size);
        self.bytes = self.bytes.saturating_add(size);
        let added = self.clock;
        self.modules.insert(
            digest,
            Kept {
                module,
                bytes: size,
                added,
            },
        );
    }

    fn make_room(&mut self, size: usize) {
        while self.bytes.saturating_add(size) > self.limit {
            let oldest = self.modules.iter().min_by_key(|(_, kept)| kept.added);
            let Some(digest) = oldest.map(|(digest, _)| *digest) else {
                return;
            };
            if let Some(kept) = self.modules.remove(&digest) {
                self.bytes = self.bytes.saturating_sub(kept.bytes);
                self.dropped = self.dropped.saturating_add(1);
            }
        }
    }

    /// A module that was added and is readable.
    #[must_use]
    pub fn module(&self, digest: &Digest) -> Option<&Module> {
        self.modules.get(digest)?.module.as_ref()
    }

    /// A kernel by its module and its name there.
    #[must_use]
    pub fn kernel(&self, digest: &Digest, name: &str) -> Option<&Kernel> {
        self.module(digest)?.kernel(name)
    }

    /// Bytes of memory held, about.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.bytes
    }

    /// What could not be read of readable modules.
    #[must_use]
    pub fn problems(&self) -> Problems {
        self.problems
    }

    /// Modules that could not be read at all.
    #[must_use]
    pub fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// Modules left out or dropped for want of room.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}
