//! Native code: DWARF through blazesym, then symbol tables.

use super::demangle::{self, demangle};
use super::elf::{self, ElfError, ElfInfo};
use super::{BinaryRef, SymFrame, SymbolizeError, SymbolizeOptions, debug_file, symtab};
use crate::profile::FrameKind;
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Reason, Sym, Symbolized, Symbolizer};
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Most files whose state is kept.
const MAX_FILES: usize = 256;
/// Most bytes of symbol tables read for one batch; the largest known libraries
/// have a tenth of this.
const MAX_TABLES: u64 = 256 << 20;
/// Estimate of what a file without DWARF keeps.
const BASE_COST: u64 = 16 << 10;

/// What was looked up and what failed, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SymbolizeStats {
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
    /// Files whose symbols or DWARF turned out corrupt.
    pub corrupt: u64,
}

/// Names addresses of executables and shared objects.
///
/// State of files is kept between calls up to [`SymbolizeOptions::keep_limit`],
/// so that repeated small batches are cheap; results are not kept.
pub struct NativeSymbolizer {
    options: SymbolizeOptions,
    stats: SymbolizeStats,
    /// Least recently used first.
    files: Vec<LoadedFile>,
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

impl NativeSymbolizer {
    /// A symbolizer without any state.
    pub fn new(options: SymbolizeOptions) -> Self {
        Self {
            options,
            stats: SymbolizeStats::default(),
            files: Vec::new(),
        }
    }

    /// Counts since the start.
    pub fn stats(&self) -> SymbolizeStats {
        self.stats
    }

    /// Drops all state of files, as before a long pause.
    pub fn forget(&mut self) {
        self.files.clear();
    }

    /// Names ELF virtual addresses of one file. Appends one entry to `out` for
    /// each address, in order, with at least one frame each, outermost first;
    /// also when an error is returned.
    ///
    /// Give return addresses less one, so that they lie in the call.
    ///
    /// # Errors
    /// When the file cannot be used at all; the frames then carry the reason.
    pub fn symbolize(
        &mut self,
        binary: &BinaryRef<'_>,
        vaddrs: &[u64],
        out: &mut Vec<Vec<SymFrame>>,
    ) -> Result<(), SymbolizeError> {
        self.stats.addresses += vaddrs.len() as u64;
        let mut file = match self.take_or_load(binary) {
            Ok(file) => file,
            Err(error) => {
                let frame = unknown_frame(reason_of(&error), binary.path);
                out.extend(vaddrs.iter().map(|_| vec![frame.clone()]));
                self.count_error(&error);
                return Err(error);
            }
        };
        let mut found: Vec<Option<Vec<SymFrame>>> = vec![None; vaddrs.len()];
        for layer in &mut file.layers {
            if let Err(reason) = layer.symbolize(vaddrs, &self.options, &mut found) {
                self.stats.corrupt += 1;
                let path = binary.path.display();
                tracing::warn!("{path}: symbols not usable: {reason}");
            }
        }
        file.layers.retain(Layer::is_usable);
        for frames in found {
            out.push(frames.unwrap_or_else(|| {
                self.stats.unnamed += 1;
                vec![unknown_frame("no symbols", binary.path)]
            }));
        }
        self.keep(file);
        Ok(())
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
        let loaded = match self.files.iter().position(same) {
            Some(at) => self.files.remove(at),
            None => self.load(binary, file, key)?,
        };
        if binary.build_id.is_some() && loaded.info.build_id != binary.build_id {
            self.keep(loaded);
            return Err(SymbolizeError::Replaced {
                file: display(binary.path),
            });
        }
        Ok(loaded)
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
        let wants_dwarf = self.options.inlines || self.options.source_lines;
        let mut layers = Vec::new();
        let incomplete = !info.has_symtab || wants_dwarf && !info.has_dwarf;
        if self.options.debug_files
            && incomplete
            && let Some((file, info)) = debug_file::find(&info, binary.path, binary.root)
            && info.table_bytes() <= MAX_TABLES
        {
            layers.push(self.layer(file, &info, binary.path));
        }
        layers.push(self.layer(file, &info, binary.path));
        let cost = layers.iter().map(|l| l.cost).sum();
        self.make_room(cost);
        Ok(LoadedFile {
            key,
            info,
            layers,
            cost,
        })
    }

    fn layer(&mut self, file: File, info: &ElfInfo, path: &Path) -> Layer {
        let wanted = info.has_dwarf && (self.options.inlines || self.options.source_lines);
        let dwarf = wanted && info.dwarf_cost() <= self.options.dwarf_limit;
        if wanted && !dwarf {
            self.stats.dwarf_too_large += 1;
            tracing::info!(
                "{}: debug information too large, inlined functions not shown",
                path.display()
            );
        }
        let cost = BASE_COST + if dwarf { info.dwarf_cost() } else { 0 };
        Layer {
            symbolizer: Symbolizer::builder()
                .enable_auto_reload(false)
                .enable_code_info(dwarf)
                .enable_inlined_fns(dwarf && self.options.inlines)
                .enable_demangling(false)
                .set_debug_dirs(Some(["/usr/lib/debug"]))
                .build(),
            file,
            info: info.clone(),
            dwarf,
            symtab: true,
            cost,
        }
    }

    /// Drops files until `cost` more fits.
    fn make_room(&mut self, cost: u64) {
        let mut held: u64 = self.files.iter().map(|f| f.cost).sum();
        while !self.files.is_empty()
            && (held + cost > self.options.keep_limit || self.files.len() >= MAX_FILES)
        {
            held -= self.files.remove(0).cost;
        }
    }

    /// Keeps a file's state for the next call if it fits.
    fn keep(&mut self, file: LoadedFile) {
        self.make_room(file.cost);
        if file.cost <= self.options.keep_limit {
            self.files.push(file);
        }
    }
}

/// Identity of a file's contents, as far as the file system tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    layers: Vec<Layer>,
    cost: u64,
}

/// One ELF file to ask: by DWARF first, then by symbol table.
struct Layer {
    symbolizer: Symbolizer,
    /// Held open: blazesym is given its `/proc/self/fd` path.
    file: File,
    info: ElfInfo,
    dwarf: bool,
    symtab: bool,
    cost: u64,
}

impl Layer {
    fn is_usable(&self) -> bool {
        self.dwarf || self.symtab
    }

    /// Names the addresses that have no name yet. A source that fails is not
    /// asked again; the error says why.
    fn symbolize(
        &mut self,
        vaddrs: &[u64],
        options: &SymbolizeOptions,
        found: &mut [Option<Vec<SymFrame>>],
    ) -> Result<(), String> {
        let open = |found: &[Option<_>]| -> Vec<usize> {
            let unnamed = found.iter().enumerate().filter(|(_, f)| f.is_none());
            unnamed.map(|(i, _)| i).collect()
        };
        let mut bare = Vec::new();
        let by_dwarf = if self.dwarf {
            self.ask_dwarf(vaddrs, &open(found), |i, sym| {
                if !demangle::is_mangled(&sym.name) {
                    bare.push(i);
                }
                found[i] = frames_of(sym, options);
            })
        } else {
            Ok(())
        };
        let by_symtab = if self.symtab {
            self.ask_symtab(vaddrs, &open(found), &bare, found)
        } else {
            Ok(())
        };
        self.dwarf &= by_dwarf.is_ok();
        self.symtab &= by_symtab.is_ok();
        by_dwarf.and(by_symtab)
    }

    /// Looks up the addresses at the indices `open` in the symbol tables. Those
    /// at the indices `bare` have a name from DWARF without scope, as GCC writes
    /// it for members of unnamed namespaces: a mangled symbol replaces it.
    fn ask_symtab(
        &self,
        vaddrs: &[u64],
        open: &[usize],
        bare: &[usize],
        found: &mut [Option<Vec<SymFrame>>],
    ) -> Result<(), String> {
        let indices: Vec<usize> = open.iter().chain(bare).copied().collect();
        if indices.is_empty() {
            return Ok(());
        }
        let addrs: Vec<u64> = indices.iter().map(|&i| vaddrs[i]).collect();
        let names = symtab::lookup(&self.file, &self.info, &addrs).map_err(|e| e.to_string())?;
        for (i, name) in indices.into_iter().zip(names) {
            let Some(name) = name else { continue };
            let readable = || demangle(&name).into_owned();
            match found[i].as_mut().and_then(|frames| frames.first_mut()) {
                None => found[i] = Some(vec![SymFrame::plain(readable(), FrameKind::Native)]),
                Some(outermost) if demangle::is_mangled(&name) => outermost.name = readable(),
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Looks up the addresses at the given indices in DWARF; calls `found` for
    /// those that have a function.
    fn ask_dwarf(
        &self,
        vaddrs: &[u64],
        indices: &[usize],
        mut found: impl FnMut(usize, &Sym<'_>),
    ) -> Result<(), String> {
        if indices.is_empty() {
            return Ok(());
        }
        let addrs: Vec<u64> = indices.iter().map(|&i| vaddrs[i]).collect();
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let source = Source::Elf(Elf::new(PathBuf::from(path)));
        let input = Input::VirtOffset(addrs.as_slice());
        // The input is hostile and the parsers are not ours: a panic in them
        // costs this file, not the recording.
        let call = || self.symbolizer.symbolize(&source, input);
        let names = catch_unwind(AssertUnwindSafe(call))
            .map_err(|_| "the parser panicked".to_owned())?
            .map_err(|error| format!("{error:#}"))?;
        let mut corrupt = false;
        for (&i, name) in indices.iter().zip(&names) {
            match name {
                Symbolized::Sym(sym) => found(i, sym),
                Symbolized::Unknown(reason) => corrupt |= *reason == Reason::IgnoredError,
            }
        }
        if corrupt {
            return Err("corrupt debug information".to_owned());
        }
        Ok(())
    }
}

/// The frames of an address; `None` where the symbol has no name.
fn frames_of(sym: &Sym<'_>, options: &SymbolizeOptions) -> Option<Vec<SymFrame>> {
    if sym.name.is_empty() {
        return None;
    }
    let frame = |name: &str, kind, code: Option<&CodeInfo<'_>>| SymFrame {
        name: demangle(name).into_owned(),
        kind,
        source: code.filter(|_| options.source_lines).map(source_of),
    };
    let mut frames = Vec::with_capacity(1 + sym.inlined.len());
    frames.push(frame(
        &sym.name,
        FrameKind::Native,
        sym.code_info.as_deref(),
    ));
    for inlined in sym.inlined.iter().filter(|_| options.inlines) {
        let name = match &*inlined.name {
            "" => "[inlined]",
            name => name,
        };
        frames.push(frame(name, FrameKind::Inlined, inlined.code_info.as_ref()));
    }
    Some(frames)
}

fn source_of(code: &CodeInfo<'_>) -> (String, u32) {
    let path = code.to_path().to_string_lossy().into_owned();
    (path, code.line.unwrap_or(0))
}

/// Opens the path as the process saw it, below its root.
fn open_below(binary: &BinaryRef<'_>) -> std::io::Result<File> {
    match binary.root {
        Some(root) => {
            let relative = binary.path.strip_prefix("/").unwrap_or(binary.path);
            elf::open_regular(&root.join(relative))
        }
        None => elf::open_regular(binary.path),
    }
}

/// The frame that stands for addresses without a name.
fn unknown_frame(reason: &str, path: &Path) -> SymFrame {
    let name = path.file_name().unwrap_or(path.as_os_str());
    let name = name.to_string_lossy();
    let name = name.strip_suffix(" (deleted)").unwrap_or(&name);
    SymFrame::plain(format!("[{reason} {name}]"), FrameKind::Unknown)
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
