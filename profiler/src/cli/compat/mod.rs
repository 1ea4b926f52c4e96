//! Command lines of other programs that aiprof also has: acelyzer's and unitrace's.
//!
//! Their names, options, messages and files are those of these programs. Nothing else in aiprof
//! uses this module; it translates their words into aiprof's.

pub(super) mod acelyzer;
mod options;
#[cfg(feature = "live")]
pub(super) mod unitrace;

#[cfg(any(test, feature = "testing"))]
pub use acelyzer::{fuzz_acelyzer, fuzz_profile};

use std::ffi::OsString;
use std::path::Path;

/// The arguments after the name of a program, where a command line is one of its: aiprof is
/// called by that name, or the name is its first argument.
pub(super) fn arguments<'a>(name: &str, args: &'a [OsString]) -> Option<&'a [OsString]> {
    let (program, rest) = args.split_first()?;
    let called = Path::new(program).file_name();
    if called.is_some_and(|called| called == name) {
        return Some(rest);
    }
    let (first, rest) = rest.split_first()?;
    (first == name).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_called_by_either_name() {
        let args = |line: &str| -> Vec<OsString> { line.split(' ').map(OsString::from).collect() };
        let found = |name, line| arguments(name, &args(line)).map(<[_]>::len);
        assert_eq!(found("acelyzer", "/usr/bin/acelyzer -i x"), Some(2));
        assert_eq!(found("acelyzer", "aiprof acelyzer -i x"), Some(2));
        assert_eq!(found("acelyzer", "aiprof -- acelyzer"), None);
        assert_eq!(found("acelyzer", "aiprof report acelyzer"), None);
        assert_eq!(found("unitrace", "/usr/bin/unitrace -h app"), Some(2));
        assert_eq!(found("unitrace", "aiprof unitrace -h app"), Some(2));
        assert_eq!(found("unitrace", "aiprof -- unitrace"), None);
        assert_eq!(found("unitrace", "aiprof trace unitrace"), None);
    }
}
