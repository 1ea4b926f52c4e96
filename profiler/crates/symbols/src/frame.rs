//! The frame that an address is shown as.

use aiprof_model::process::without_mark;
use aiprof_model::profile::FrameKind;
use std::path::Path;

/// One named frame. An address yields several where functions were inlined,
/// from the outermost function to the innermost.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct SymFrame {
    /// Function name, demangled and without suffix; for kind `Unknown` the
    /// reason in brackets.
    pub name: String,
    /// What kind of code it is.
    pub kind: FrameKind,
    /// Source file and line (from 1, 0 if not known), where DWARF has them and
    /// `SymbolizeOptions::source_lines` asks for them.
    pub source: Option<(String, u32)>,
}

impl SymFrame {
    /// A frame without source position.
    pub fn plain(name: impl Into<String>, kind: FrameKind) -> Self {
        Self {
            name: name.into(),
            kind,
            source: None,
        }
    }

    /// The frame that stands for addresses of a file that have no name, for a reason.
    pub(crate) fn unknown(reason: &str, path: &Path) -> Self {
        let name = path.file_name().unwrap_or(path.as_os_str());
        let name = name.to_string_lossy();
        let name = without_mark(&name);
        Self::plain(format!("[{reason} {name}]"), FrameKind::Unknown)
    }
}

/// A function of a file's own description, DWARF or Go's table, around an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceFunction {
    /// Its name: of DWARF the linkage name, else the plain name, else nothing; of Go with its
    /// package's path.
    pub(crate) name: String,
    /// Source file and line of the address (innermost) or of the call to the
    /// next function.
    pub(crate) source: Option<(String, u32)>,
}

/// The frames of functions around an address, outermost first. Without `inlines` only that one
/// stays, at the line of the outermost call.
pub(crate) fn frames_of(
    functions: impl Iterator<Item = SourceFunction>,
    inlines: bool,
) -> Vec<SymFrame> {
    let kinds = std::iter::once(FrameKind::Native).chain(std::iter::repeat(FrameKind::Inlined));
    let frames = functions.zip(kinds).map(|(function, kind)| SymFrame {
        name: function.name,
        kind,
        source: function.source,
    });
    frames.take(if inlines { usize::MAX } else { 1 }).collect()
}

/// The frame of a function of JavaScript. `what`: its kind, for the case that it has no name;
/// `file`: what its script is called, which may be nothing; `line` 0: not known.
pub(crate) fn script_frame(function: &str, what: &str, file: &str, line: u32) -> SymFrame {
    let path = file.strip_prefix("file://").unwrap_or(file);
    let base = path.rsplit('/').next().unwrap_or(path);
    let name = match function.trim() {
        "" if line == 0 => format!("({what} {base})").replace(" )", ")"),
        "" => format!("({what} {base}:{line})"),
        function => function.to_owned(),
    };
    SymFrame {
        name,
        kind: FrameKind::Jit,
        source: (!path.is_empty()).then(|| (path.to_owned(), line)),
    }
}
