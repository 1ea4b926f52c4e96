//! The writers, from whole profiles to bytes.

#![allow(clippy::disallowed_methods, reason = "not part of the program")]
#![allow(
    clippy::unwrap_used,
    reason = "clippy exempts test functions, not what they share"
)]

mod devices;
mod fixtures;
mod golden;
mod hostile;
mod otlp;
mod pprof;
mod property;
mod speed;

use aiprof::export::{ExportOptions, FileFormat};
use aiprof::profile::Profile;

/// What a writer makes of a profile.
fn export(profile: &Profile, format: &FileFormat, options: &ExportOptions) -> Vec<u8> {
    let mut out = Vec::new();
    (format.profile_writer().unwrap().write)(profile, options, &mut out).unwrap();
    out
}

/// The same as text, with default options.
fn text(profile: &Profile, format: &FileFormat) -> String {
    String::from_utf8(export(profile, format, &ExportOptions::default())).unwrap()
}
