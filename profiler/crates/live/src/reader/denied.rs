//! Files that this program may not read, and the process that maps them may: copies of them.

use crate::procfs::{self, MappedFile, OpenError};
use aiprof_model::wire::MapEvent;
use aiprof_system::files::{
    as_user::{self, ProcessUser, SeenFile},
    others,
};
use std::{io, os::fd::OwnedFd};

/// Largest file that is copied: programs of browsers have 200 MiB.
const MAX_BYTES: u64 = 256 << 20;
/// Most bytes of copies that are kept for the next process that maps the file.
const MAX_KEPT: u64 = 512 << 20;

/// What a copy is of: whose, on which device, and which content. Only the user can give another
/// file of the same device these values.
type CopyKey = (ProcessUser, u64, SeenFile);

/// The copies that were made, the latest last.
#[derive(Debug, Default)]
pub(super) struct DeniedFiles {
    copies: Vec<(CopyKey, OwnedFd)>,
}

impl DeniedFiles {
    /// The copy of the file of a mapping.
    ///
    /// # Errors
    /// The process may not read it either, or this one may not act for its user.
    pub(super) fn open(&mut self, pid: u32, map: &MapEvent) -> Result<MappedFile, OpenError> {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let user = ProcessUser::of(pid).ok_or_else(gone)?;
        let place = procfs::place_of(pid, map)?;
        let seen = as_user::look(&user, &place)?;
        if map.file.inode != 0 && seen.inode != map.file.inode {
            return Err(OpenError::Replaced);
        }
        if seen.size > MAX_BYTES {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge).into());
        }
        let key = (user, map.file.device, seen);
        if let Some((_, copy)) = self.copies.iter().find(|(known, _)| *known == key) {
            return procfs::open_elf(copy.try_clone().map_err(OpenError::Io)?, 0, true);
        }
        let copy = as_user::copy(&key.0, &place, seen.size)?;
        let copy = others::place_of(&copy)?;
        let found = procfs::open_elf(copy.try_clone().map_err(OpenError::Io)?, 0, true)?;
        self.copies.push((key, copy));
        let kept = |copies: &[(CopyKey, OwnedFd)]| -> u64 {
            copies.iter().map(|((_, _, seen), _)| seen.size).sum()
        };
        while kept(&self.copies) > MAX_KEPT {
            self.copies.remove(0);
        }
        Ok(found)
    }
}
