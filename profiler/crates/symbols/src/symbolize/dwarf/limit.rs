//! Why DWARF is not read, or not to the end, and the clock that ends it.

use std::io;
use std::time::Instant;

/// Steps between two looks at the clock.
const STEPS: u32 = 4096;

/// Why the sections are not accessible.
#[derive(Debug, thiserror::Error)]
pub(in crate::symbolize) enum SectionsError {
    #[error("cannot be read: {0}")]
    Read(io::Error),
    #[error("section beyond the end of the file")]
    Truncated,
    #[error("sections too large")]
    TooLarge,
    #[error("compressed section corrupt: {0}")]
    Inflate(io::Error),
    #[error("unknown compression")]
    UnknownPacking,
}

/// Why DWARF was not used, or not to the end.
#[derive(Debug, thiserror::Error)]
pub(in crate::symbolize) enum DwarfError {
    #[error("debug information not usable: {0}")]
    Sections(#[from] SectionsError),
    #[error("debug information corrupt: {0}")]
    Corrupt(#[from] gimli::Error),
    #[error("debug information corrupt: too many units or ranges")]
    TooMany,
    #[error("debug information takes too long to read")]
    Deadline,
}

/// Counts work and stops it at the deadline.
pub(super) struct WorkLimit {
    left: u32,
    deadline: Instant,
}

impl WorkLimit {
    pub(super) fn until(deadline: Instant) -> Self {
        Self {
            left: STEPS,
            deadline,
        }
    }

    pub(super) fn tick(&mut self) -> Result<(), DwarfError> {
        self.left -= 1;
        if self.left == 0 {
            self.left = STEPS;
            self.check()?;
        }
        Ok(())
    }

    pub(super) fn check(&self) -> Result<(), DwarfError> {
        if Instant::now() >= self.deadline {
            return Err(DwarfError::Deadline);
        }
        Ok(())
    }
}
