//! The frame that an address is shown as.

use aiprof_model::profile::FrameKind;

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
}

/// The frame of a function of JavaScript. `what`: what it is, for the case that it has no name;
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
