//! The capture file: the recorded event stream, replayed without root.

use crate::profile::Profile;
use std::path::{Path, PathBuf};

/// Why an input could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The file cannot be read by this build.
    #[error("{}: not supported here", .0.display())]
    Unsupported(PathBuf),
}

/// How to replay a capture.
#[derive(Clone, Copy, Debug)]
pub struct ReplayOptions {
    /// Expand inlined functions when naming frames.
    pub inlines: bool,
    /// Keep kernel stacks.
    pub kernel_stacks: bool,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self {
            inlines: true,
            kernel_stacks: true,
        }
    }
}

/// Replays a capture into the profile that the recording would have given.
///
/// # Errors
/// [`ImportError`] names the file and what is wrong with it.
pub fn replay(path: &Path, _options: &ReplayOptions) -> Result<Profile, ImportError> {
    Err(ImportError::Unsupported(path.to_owned()))
}
