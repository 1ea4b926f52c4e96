//! Native code: DWARF for inlined functions and lines, symbol tables for the rest.

use super::debug_file::{self, DebugFile, Finder};
use super::debuginfod::{self, Debuginfod};
use super::dwarf::{self, Inflated};
use super::layer::{DwarfState, Failure, Layer, LayerSources};
use super::mini;
use super::options::SymbolizeOptions;
use crate::elf::{self, ElfError, ElfInfo};
use crate::frame::SymFrame;
use aiprof_model::profile::BuildId;
use aiprof_system::files::others::RootDir;
use rustc_hash::FxHashSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Instant;

/// Most files whose state is kept: each holds one or two descriptors.
const MAX_FILES: usize = 64;
/// Most files remembered as having been warned about.
const MAX_WARNED: usize = 4096;
/// Most bytes of symbol tables read for one batch; the largest known libraries
/// have a tenth of this.
const MAX_TABLES: u64 = 256 << 20;
/// Estimate of what a file without DWARF keeps.
const BASE_COST: u64 = 16 << 10;

/// What was looked up and what failed, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SymbolizeStats {
    /// Addresses asked for.
    pub addresses: u64,
    /// Addresses that no symbol covers.
    pub unnamed: u64,
    /// Batches refused because the file could not be read.
    pub unreadable: u64,
    /// Batches refused because the file was replaced.
    pub replaced: u64,
    /// Batches refused because the file is no usable ELF file.
    pub malformed: u64,
    /// Files loaded without their DWARF because it exceeds
    /// [`SymbolizeOptions::dwarf_limit`]: inlined functions are missing there.
    pub dwarf_too_large: u64,
    /// Files whose DWARF was given up because reading it took longer than
    /// [`SymbolizeOptions::dwarf_time`].
    pub dwarf_too_slow: u64,
    /// Files whose symbols or DWARF turned out corrupt.
    pub corrupt: u64,
    /// Split units whose `.dwo` file was not found: inlined functions are missing there.
    pub split_missing: u64,
    /// Files whose DWARF refers to another file that was not found: some names are missing
    /// there.
    pub incomplete: u64,
    /// Debug files not asked for at a debuginfod server: the queue was full, or
    /// `debuginfod-find` is not installed.
    pub downloads_refused: u64,
}

/// Names addresses of executables and shared objects.
///
/// State of files is kept between calls up to [`SymbolizeOptions::keep_limit`],
/// so that repeated small batches are cheap; results are not kept.
pub(crate) struct NativeSymbolizer {
    options: SymbolizeOptions,
    stats: SymbolizeStats,
    /// Least recently used first.
    files: Vec<LoadedFile>,
    /// Files that a warning was given and counted for.
    warned: FxHashSet<FileKey>,
    debuginfod: Option<Debuginfod>,
    /// Sections that were inflated once.
    inflated: Option<Inflated>,
    /// Whether a file that the last batch needs is being fetched.
    awaits_supplement: bool,
}

impl std::fmt::Debug for NativeSymbolizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NativeSymbolizer")
            .field("options", &self.options)
            .field("stats", &self.stats)
            .field("files", &self.files.len())
            .finish()
    }
}

impl Drop for NativeSymbolizer {
    fn drop(&mut self) {
        tracing::debug!("names of addresses: {:?}", self.stats());
    }
}

impl NativeSymbolizer {
    /// A symbolizer without any state. Debuginfod servers are taken from
    /// `DEBUGINFOD_URLS`, if the options allow them.
    pub(crate) fn new(options: SymbolizeOptions) -> Self {
        let config = debuginfod::Config::from_env().filter(|_| options.debuginfod);
        Self::with_servers(options, config)
    }

    pub(super) fn with_servers(
        options: SymbolizeOptions,
        servers: Option<debuginfod::Config>,
    ) -> Self {
        let keep_inflated = options.keep_inflated;
        Self {
            options,
            stats: SymbolizeStats::default(),
            files: Vec::new(),
            warned: FxHashSet::default(),
            // Without its thread there are no downloads, as without servers.
            debuginfod: servers.and_then(|config| Debuginfod::start(config).ok()),
            inflated: keep_inflated.then(Inflated::of_machine).flatten(),
            awaits_supplement: false,
        }
    }

    /// Counts since the start.
    pub(super) fn stats(&self) -> SymbolizeStats {
        SymbolizeStats {
            downloads_refused: self.debuginfod.as_ref().map_or(0, |d| d.refused),
            ..self.stats
        }
    }

    /// Waits for debug files that are being fetched, at most for the given time.
    #[cfg(test)]
    pub(super) fn settle(&mut self, at_most: std::time::Duration) {
        if let Some(downloads) = &mut self.debuginfod {
            downloads.settle(at_most);
        }
    }

    /// Whether the debug file of this build id is being fetched: its addresses may have
    /// better names soon.
    /// So they may if what the debug file of the last batch refers to is being fetched.
    pub(crate) fn is_fetching(&self, build_id: Option<BuildId>) -> bool {
        let downloads = self.debuginfod.as_ref().zip(build_id);
        self.awaits_supplement || downloads.is_some_and(|(downloads, id)| downloads.is_fetching(id))
    }

    /// Names ELF virtual addresses of one file. Appends one entry to `out` for
    /// each address, in order, with at least one frame each, outermost first;
    /// also when an error is returned.
    ///
    /// Give return addresses less one, so that they lie in the call.
    ///
    /// # Errors
    /// When the file cannot be used at all; the frames then carry the reason.
    pub(crate) fn symbolize(
        &mut self,
        binary: &BinaryRef<'_>,
        vaddrs: &[u64],
        out: &mut Vec<Vec<SymFrame>>,
    ) -> Result<(), SymbolizeError> {
        self.stats.addresses += vaddrs.len() as u64;
        let mut file = match self.take_or_load(binary) {
            Ok(file) => file,
            Err(error) => {
                let frame = SymFrame::unknown(reason_of(&error), binary.path);
                out.extend(vaddrs.iter().map(|_| vec![frame.clone()]));
                self.count_error(&error);
                return Err(error);
            }
        };
        let mut found = match file.layers.last().map(|own| own.ask_plt(vaddrs)) {
            Some(Ok(found)) => found,
            Some(Err(error)) => {
                let failure = Failure::Corrupt(error.to_string());
                self.report(file.key, binary.path, &failure);
                vec![None; vaddrs.len()]
            }
            None => vec![None; vaddrs.len()],
        };
        let finder = Finder {
            path: binary.path,
            owner: file.owner,
            root: binary.root,
        };
        for layer in &mut file.layers {
            let sources = LayerSources {
                options: &self.options,
                finder: &finder,
                inflated: self.inflated.as_mut(),
            };
            match layer.symbolize(vaddrs, sources, &mut found) {
                Ok(()) => {}
                Err(failure) => self.report(file.key, binary.path, &failure),
            }
        }
        file.layers.retain(Layer::is_usable);
        let missing = file.layers.iter().map(Layer::missing).sum();
        if missing > file.missing {
            self.stats.split_missing += missing - file.missing;
            file.missing = missing;
            self.report(file.key, binary.path, &Failure::Missing);
        }
        for frames in found {
            let mut frames = frames.unwrap_or_default();
            if frames
                .first()
                .is_none_or(|outermost| outermost.name.is_empty())
            {
                self.stats.unnamed += 1;
                let mut unknown = SymFrame::unknown("no symbols", binary.path);
                unknown.source = frames.first_mut().and_then(|first| first.source.take());
                frames.splice(..frames.len().min(1), [unknown]);
            }
            out.push(frames);
        }
        self.keep(file);
        Ok(())
    }

    /// Counts and reports a file's failure, once for each file.
    fn report(&mut self, key: FileKey, path: &Path, failure: &Failure) {
        if self.warned.len() >= MAX_WARNED || !self.warned.insert(key) {
            return;
        }
        let count = match failure {
            Failure::TooLarge => &mut self.stats.dwarf_too_large,
            Failure::TooSlow => &mut self.stats.dwarf_too_slow,
            Failure::Corrupt(_) => &mut self.stats.corrupt,
            Failure::NoSupplement => &mut self.stats.incomplete,
            // Counted by unit.
            Failure::Missing => &mut 0,
        };
        *count += 1;
        tracing::warn!("{}: {failure}", path.display());
    }

    fn count_error(&mut self, error: &SymbolizeError) {
        match error {
            SymbolizeError::Unreadable { .. } => self.stats.unreadable += 1,
            SymbolizeError::Replaced { .. } => self.stats.replaced += 1,
            SymbolizeError::Malformed { .. } => self.stats.malformed += 1,
        }
    }

    /// The file's state, out of the cache or new.
    fn take_or_load(&mut self, binary: &BinaryRef<'_>) -> Result<LoadedFile, SymbolizeError> {
        let opened;
        let file = match binary.file {
            Some(file) => file,
            None => {
                opened = open_below(binary).map_err(|e| unreadable(binary, e))?;
                &opened
            }
        };
        let key = FileKey::of(file).map_err(|e| unreadable(binary, e))?;
        let same = |f: &LoadedFile| f.key == key;
        let mut loaded = match self.files.iter().position(same) {
            Some(at) => self.files.remove(at),
            None => self.load(binary, file, key)?,
        };
        if binary.build_id.is_some() && loaded.info.build_id != binary.build_id {
            self.keep(loaded);
            return Err(SymbolizeError::Replaced {
                file: display(binary.path),
            });
        }
        let finder = Finder {
            path: binary.path,
            owner: loaded.owner,
            root: binary.root,
        };
        self.add_download(&mut loaded, &finder);
        self.add_supplements(&mut loaded, binary.path);
        Ok(loaded)
    }

    /// Adds what the DWARF of a file refers to when it has been fetched, and asks for it
    /// until then.
    fn add_supplements(&mut self, loaded: &mut LoadedFile, path: &Path) {
        self.awaits_supplement = false;
        let mut is_missing = false;
        for layer in &mut loaded.layers {
            let Some(id) = layer.wants else { continue };
            let fetched = self.debuginfod.as_mut().and_then(|d| d.get(id));
            let downloads = self.debuginfod.as_ref();
            if downloads.is_some_and(|downloads| downloads.is_fetching(id)) {
                self.awaits_supplement = true;
                continue;
            }
            layer.wants = None;
            let opened = fetched.and_then(|path| debuginfod::open(&path).ok());
            let found = opened.and_then(|file| debug_file::accept_supplement(file, id));
            is_missing |= found.is_none();
            if let Some((file, info)) = found
                && layer.info.packed_bytes.saturating_add(info.packed_bytes)
                    <= self.options.dwarf_limit
            {
                layer.supplement = Some((file, info));
                layer.dwarf = DwarfState::Unopened;
            }
        }
        if is_missing {
            self.report(loaded.key, path, &Failure::NoSupplement);
        }
    }

    /// Adds a stripped file's debug file when it has been fetched, and asks for
    /// it until then.
    fn add_download(&mut self, loaded: &mut LoadedFile, finder: &Finder<'_>) {
        let (Some(debuginfod), Some(id), true) =
            (&mut self.debuginfod, loaded.info.build_id, loaded.stripped)
        else {
            return;
        };
        let Some(fetched) = debuginfod.get(id) else {
            return;
        };
        loaded.stripped = false;
        let opened = debuginfod::open(&fetched);
        if let Some((file, info)) = opened
            .ok()
            .and_then(|f| debug_file::accept(f, &loaded.info))
            && info.table_bytes() <= MAX_TABLES
        {
            self.make_room(info.packed_bytes);
            // What it refers to is beside the file that is not installed.
            let found = DebugFile {
                file,
                info,
                path: finder.path.to_owned(),
            };
            let layer = self.layer(loaded.key, found, finder);
            loaded.layers.insert(0, layer);
        }
    }

    fn load(
        &mut self,
        binary: &BinaryRef<'_>,
        file: &File,
        key: FileKey,
    ) -> Result<LoadedFile, SymbolizeError> {
        let info = elf::inspect(file).map_err(|error| match error {
            ElfError::Io(source) => unreadable(binary, source),
            other => malformed(binary, other.to_string()),
        })?;
        if info.table_bytes() > MAX_TABLES {
            return Err(malformed(binary, "too many symbols".to_owned()));
        }
        let file = file.try_clone().map_err(|e| unreadable(binary, e))?;
        let owner = file.metadata().map_err(|e| unreadable(binary, e))?.uid();
        let wants_dwarf = self.options.inlines || self.options.source_lines;
        let finder = Finder {
            path: binary.path,
            owner,
            root: binary.root,
        };
        let mut layers = Vec::new();
        let incomplete = !info.has_symtab || wants_dwarf && !info.has_dwarf;
        if self.options.debug_files
            && incomplete
            && let Some(found) = finder.debug(&info)
            && found.info.table_bytes() <= MAX_TABLES
        {
            layers.push(self.layer(key, found, &finder));
        }
        let own = DebugFile {
            file,
            info: info.clone(),
            path: binary.path.to_owned(),
        };
        layers.push(self.layer(key, own, &finder));
        // Before anything is inflated: the peak matters, not only what is kept.
        self.make_room(layers.iter().map(|l| l.info.packed_bytes).sum());
        let stripped = layers.iter().all(|l| !l.info.has_symtab);
        if stripped && let Some(place) = info.mini {
            layers.extend(self.mini(key, place, &layers, binary.path));
        }
        Ok(LoadedFile {
            key,
            info,
            owner,
            layers,
            stripped,
            missing: 0,
        })
    }

    /// The symbols that a stripped file has compressed.
    fn mini(
        &mut self,
        key: FileKey,
        place: (u64, u64),
        layers: &[Layer],
        path: &Path,
    ) -> Option<Layer> {
        let deadline = Instant::now() + self.options.dwarf_time;
        match mini::open(&layers.last()?.file, place, deadline) {
            Ok((file, info, held)) if info.table_bytes() <= MAX_TABLES => {
                let mut layer = Layer::new(file, info);
                layer.held = held;
                Some(layer)
            }
            Ok(_) => None,
            Err(error) => {
                self.report(key, path, &Failure::Corrupt(error.to_string()));
                None
            }
        }
    }

    fn layer(&mut self, key: FileKey, found: DebugFile, finder: &Finder<'_>) -> Layer {
        let DebugFile { file, info, path } = found;
        let wanted = info.has_dwarf && (self.options.inlines || self.options.source_lines);
        let supplement = info.alt_link.as_ref().filter(|_| wanted);
        let wants = supplement.map(|link| link.build_id);
        let supplement = supplement.and_then(|link| finder.supplement(link, &path));
        let supplement = supplement.map(|found| (found.file, found.info));
        let wants = wants.filter(|_| supplement.is_none());
        let packed = supplement.as_ref().map_or(0, |(_, info)| info.packed_bytes);
        let sizes = info.debug.iter().map(|s| s.packing.size(s.size));
        let fits = info.packed_bytes.saturating_add(packed) <= self.options.dwarf_limit
            && sizes.fold(0, u64::saturating_add) <= dwarf::MAX_SIZE;
        if wanted && !fits {
            self.report(key, finder.path, &Failure::TooLarge);
        }
        let mut layer = Layer::new(file, info);
        if wanted && fits {
            layer.dwarf = DwarfState::Unopened;
        }
        layer.supplement = supplement;
        layer.wants = wants;
        layer
    }

    /// Drops files until `cost` more fits.
    fn make_room(&mut self, cost: u64) {
        let mut held: u64 = self.files.iter().map(LoadedFile::cost).sum();
        while !self.files.is_empty()
            && (held + cost > self.options.keep_limit || self.files.len() >= MAX_FILES)
        {
            held -= self.files.remove(0).cost();
        }
    }

    /// Keeps a file's state for the next call if it fits.
    fn keep(&mut self, mut file: LoadedFile) {
        if file.cost() > self.options.keep_limit / 2 {
            file.layers.iter_mut().for_each(Layer::release);
        }
        let cost = file.cost();
        self.make_room(cost);
        if cost <= self.options.keep_limit {
            self.files.push(file);
        }
    }
}

/// Identity of a file's contents, by what the file system reports. A user's file system (FUSE) can
/// give wrong values only for files of its own device. That device's number is not used again while
/// the file is kept open here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FileKey {
    dev: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileKey {
    fn of(file: &File) -> std::io::Result<Self> {
        let meta = file.metadata()?;
        Ok(Self {
            dev: meta.dev(),
            inode: meta.ino(),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        })
    }
}

/// State of one binary: its debug file, if found, and itself.
struct LoadedFile {
    key: FileKey,
    info: ElfInfo,
    /// The user whose file it is.
    owner: u32,
    layers: Vec<Layer>,
    /// Whether neither file has a full symbol table.
    stripped: bool,
    /// Split units that were not found, as counted so far.
    missing: u64,
}

impl LoadedFile {
    /// Bytes of memory held.
    fn cost(&self) -> u64 {
        BASE_COST + self.layers.iter().map(Layer::memory).sum::<u64>()
    }
}

/// The file that a batch of addresses belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BinaryRef<'a> {
    /// Path as the process saw it.
    pub path: &'a Path,
    /// The file itself, where it was opened while the process lived (through
    /// `/proc/PID/root` or `/proc/PID/map_files`): serves containers and deleted
    /// files. Without it `path` is opened below `root`.
    pub file: Option<&'a File>,
    /// Build id of what the process mapped. A file with another one is not
    /// used: wrong names are worse than none.
    pub build_id: Option<BuildId>,
    /// Root directory of the process, as `/proc/PID/root` while it lives: where
    /// debug files of a container are looked for besides the host's.
    pub root: Option<&'a Path>,
}

/// Why a file gave no names. The frames are filled in all the same.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SymbolizeError {
    /// The file could not be opened or read.
    #[error("{file}: cannot read symbols: {source}")]
    Unreadable {
        /// Path as the process saw it.
        file: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file on disk is not the one that was mapped.
    #[error("{file}: replaced since it was mapped (its build ID differs)")]
    Replaced {
        /// Path as the process saw it.
        file: String,
    },
    /// The file is no usable ELF file.
    #[error("{file}: no symbols: {reason}")]
    Malformed {
        /// Path as the process saw it.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// Opens the path as the process saw it, below its root.
fn open_below(binary: &BinaryRef<'_>) -> std::io::Result<File> {
    RootDir::at(binary.root.unwrap_or(Path::new("/")))?.open_any(binary.path)
}

fn reason_of(error: &SymbolizeError) -> &'static str {
    match error {
        SymbolizeError::Unreadable { .. } => "unreadable",
        SymbolizeError::Replaced { .. } => "replaced",
        SymbolizeError::Malformed { .. } => "no symbols",
    }
}

fn display(path: &Path) -> String {
    path.display().to_string()
}

fn unreadable(binary: &BinaryRef<'_>, source: std::io::Error) -> SymbolizeError {
    SymbolizeError::Unreadable {
        file: display(binary.path),
        source,
    }
}

fn malformed(binary: &BinaryRef<'_>, reason: String) -> SymbolizeError {
    SymbolizeError::Malformed {
        file: display(binary.path),
        reason,
    }
}
