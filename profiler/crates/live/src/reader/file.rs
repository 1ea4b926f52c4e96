//! A mapped file, and what its headers contain.

use aiprof_model::profile::BuildId;
use aiprof_symbols::{
    java::JavaLibrary,
    python::Interpreter,
    unwind::{PageContent, ReadAt, TextSegment, UnwindError, UnwindFile},
    v8::{V8Error, V8Library},
};
use serde::{Deserialize, Serialize};
use std::{cell::Cell, fs::File, io, ops::Deref, os::fd::OwnedFd, sync::Arc};

/// a short read and not a SIGBUS.
#[derive(Clone, Debug)]
pub(super) struct SharedFile(pub(super) Arc<File>);

impl ReadAt for SharedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(&*self.0, buf, offset)
    }
}

/// A mapped file while it is open.
#[derive(Debug)]
pub struct OpenFile {
    /// The file, as a place only (`O_PATH`): so it keeps its identity, and neither
    /// reading nor closing it can block here. Readers open it again.
    pub place: OwnedFd,
    /// What its headers contain.
    pub facts: Box<Facts>,
    /// Which content it is, see [`crate::binaries`]; 0 until that is decided.
    pub number: u64,
}

/// What the headers of a file contain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Its executable segments.
    pub text: Vec<TextSegment>,
    /// Where its text is, if it has any.
    pub unwind: Option<Shape>,
    /// Its build id.
    pub build_id: Option<BuildId>,
    /// The Python interpreter in it.
    pub python: Option<Interpreter>,
    /// The HotSpot in it.
    pub java: Option<Box<JavaLibrary>>,
    /// The V8 in it, or why it cannot be read.
    pub v8: Option<Box<Result<V8Library, V8Error>>>,
}

/// The extent of a file's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Pages of text.
    pub n_pages: u32,
    /// Virtual address of the first.
    pub first_page_vaddr: u64,
    /// Whether the file has unwind data; if not, its instructions give the rules, which
    /// takes time.
    pub described: bool,
    /// Whether its functions may go on on another stack: a copy of one is not enough then
    /// to finish a walk.
    pub changes_stacks: bool,
}

impl OpenFile {
    /// A file of this program's own, whose headers are read at once.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn own(file: File, path: &str) -> io::Result<Self> {
        let place = file.try_clone()?.into();
        let file = SharedFile(Arc::new(file));
        Ok(Self {
            facts: Box::new(facts(open_unwind(&file, path).as_ref())),
            place,
            number: 0,
        })
    }
}

pub(super) fn open_unwind(file: &SharedFile, path: &str) -> Option<NamedUnwind> {
    UnwindFile::open(file.clone())
        .inspect_err(|error| tracing::warn!("{path}: no unwind data: {error}"))
        .ok()
        .map(|file| NamedUnwind::new(file, path))
}

pub(super) fn facts(unwind: Option<&NamedUnwind>) -> Facts {
    let Some(unwind) = unwind else {
        return Facts::default();
    };
    // Runtimes of 32 bits have other layouts.
    let source = (!unwind.is_narrow()).then(|| unwind.source());
    Facts {
        text: unwind.text().to_vec(),
        unwind: (unwind.n_pages() > 0).then(|| Shape {
            n_pages: unwind.n_pages(),
            first_page_vaddr: unwind.first_page_vaddr(),
            described: unwind.has_unwind_data(),
            changes_stacks: unwind.changes_stacks(),
        }),
        build_id: unwind.build_id(),
        python: source.and_then(Interpreter::find),
        java: source.and_then(JavaLibrary::find).map(Box::new),
        v8: source.and_then(V8Library::find).map(Box::new),
    }
}

/// A file's unwind data that reports, once and by the file's name, what of it is
/// not usable. Reads like the [`UnwindFile`] that it holds.
#[derive(Debug)]
pub(super) struct NamedUnwind {
    file: UnwindFile<SharedFile>,
    path: String,
    warned: Cell<bool>,
}

impl NamedUnwind {
    fn new(file: UnwindFile<SharedFile>, path: &str) -> Self {
        let named = Self {
            file,
            path: path.to_owned(),
            warned: Cell::new(false),
        };
        named.check(None);
        named
    }

    /// [`UnwindFile::page`] if `whole`, else [`UnwindFile::quick_page`]; warns at the first error
    /// or malformed entry.
    ///
    /// # Errors
    /// As there.
    pub(super) fn page(
        &self,
        index: u32,
        whole: bool,
        out: &mut Vec<u8>,
    ) -> Result<PageContent, UnwindError> {
        let content = match whole {
            true => self.file.page(index, out),
            false => self.file.quick_page(index, out),
        };
        self.check(content.as_ref().err());
        content
    }

    /// Warns of an error, or of anything malformed so far, the first time.
    fn check(&self, error: Option<&UnwindError>) {
        let malformed = self.file.malformed() > 0;
        if !malformed && error.is_none() || self.warned.replace(true) {
            return;
        }
        let path = &self.path;
        match error {
            Some(error) => tracing::warn!("{path}: cannot use the unwind data: {error}"),
            None => tracing::warn!(
                "{path}: malformed unwind data (.eh_frame); stacks through this file may be cut"
            ),
        }
    }
}

impl Deref for NamedUnwind {
    type Target = UnwindFile<SharedFile>;

    fn deref(&self) -> &Self::Target {
        &self.file
    }
}
