//! What to look up, and how much may be spent on it.

use std::time::Duration;

/// What to look up, and how much may be spent on it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SymbolizeOptions {
    /// Report functions inlined at an address, from DWARF. Default `true`.
    pub inlines: bool,
    /// Report source files and lines, from DWARF. Default `false`: folded stacks
    /// and flame graphs do not show them, and they cost memory.
    pub source_lines: bool,
    /// Look in `.gnu_debuglink` and build-id directories for debug files.
    /// Default `true`.
    pub debug_files: bool,
    /// Fetch debug files of stripped binaries from the servers in
    /// `DEBUGINFOD_URLS`, in the background. Default `true`; without that variable
    /// nothing is fetched.
    pub debuginfod: bool,
    /// Most bytes that the compressed debug sections of one file may inflate to. DWARF of larger
    /// files is not used, and that is counted; nor is that of files with more than 4 GiB of debug
    /// sections. Default 24 MiB.
    pub dwarf_limit: u64,
    /// Keep what was inflated of root's debug files below `/var/cache/aiprof`, if this
    /// process is root's. Default `true`.
    pub keep_inflated: bool,
    /// Longest that one batch of one file may read DWARF; addresses left then
    /// have their symbol's name only, and that is counted. Default 1 s.
    pub dwarf_time: Duration,
    /// Most bytes of symbol state kept from one call to the next, least recently
    /// used dropped first. Default 6 MiB: there are two who name.
    pub keep_limit: u64,
}

impl Default for SymbolizeOptions {
    fn default() -> Self {
        Self {
            inlines: true,
            source_lines: false,
            debug_files: true,
            debuginfod: true,
            dwarf_limit: 24 << 20,
            keep_inflated: true,
            dwarf_time: Duration::from_secs(1),
            keep_limit: 6 << 20,
        }
    }
}
