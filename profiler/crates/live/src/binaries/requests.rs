//! Mappings whose files were asked for, and those whose files did not come in time.

use super::{DeviceInode, place_of};
use crate::reader::Reader;
use aiprof_model::wire::{FileKey, MapEvent};
use rustc_hash::{FxHashMap, FxHashSet};

/// Most mappings remembered whose files did not come in time.
const MAX_LATE: usize = 4096;

/// Mappings whose files are not there, by process and by what the kernel shows.
#[derive(Debug, Default)]
pub(crate) struct FileRequests {
    /// Those whose files were asked for: the number that was given meanwhile, if the
    /// mapping could not wait.
    asked: FxHashMap<(u32, DeviceInode), Option<u64>>,
    /// Those whose files did not come in time.
    late: FxHashSet<(u32, DeviceInode)>,
}

impl FileRequests {
    /// Asks for the file of a mapping, unless that is done already.
    pub(crate) fn ask(&mut self, pid: u32, map: &MapEvent, reader: &mut Reader) {
        let asked = (pid, place_of(&map.file));
        if !self.asked.contains_key(&asked) && reader.ask_file(pid, map.clone()) {
            self.asked.insert(asked, None);
        }
    }

    /// Asks for the file of a mapping that was recorded without it.
    pub(super) fn ask_again(&mut self, pid: u32, map: &MapEvent, reader: &mut Reader) {
        let place = place_of(&map.file);
        if reader.ask_file(pid, map.clone()) {
            self.asked.insert((pid, place), Some(map.file.version));
        } else {
            self.note_late(pid, place);
        }
    }

    /// Whether there may be an answer yet to which file a mapping is of.
    pub(crate) fn is_asked(&self, pid: u32, map: &MapEvent) -> bool {
        let asked = self.asked.get(&(pid, place_of(&map.file)));
        asked.is_some_and(Option::is_none)
    }

    /// Whether the file of a mapping is still being read, also if the mapping did not wait.
    pub(crate) fn is_being_read(&self, pid: u32, file: &FileKey) -> bool {
        self.asked.contains_key(&(pid, place_of(file)))
    }

    /// A mapping does not wait for its file, and gets this number.
    pub(super) fn give(&mut self, pid: u32, place: DeviceInode, number: u64) {
        match self.asked.get_mut(&(pid, place)) {
            Some(asked) => *asked = Some(number),
            // It has changed since it was read, or was refused.
            None => self.note_late(pid, place),
        }
    }

    /// An answer has come; the number that its mapping was given meanwhile.
    pub(super) fn answered(&mut self, pid: u32, place: DeviceInode) -> Option<u64> {
        self.asked.remove(&(pid, place)).flatten()
    }

    /// The file of a mapping does not come in time. `true`: it will not come at all.
    pub(super) fn late(&mut self, pid: u32, place: DeviceInode) -> bool {
        let asked = (pid, place);
        self.note_late(pid, place);
        // What has a number already may come all the same.
        self.asked.get(&asked) == Some(&None) && self.asked.remove(&asked).is_some()
    }

    /// The mappings whose files did not come in time, once: see
    /// [`super::Binaries::ask_again`].
    pub(crate) fn take_late(&mut self) -> FxHashSet<(u32, DeviceInode)> {
        std::mem::take(&mut self.late)
    }

    fn note_late(&mut self, pid: u32, place: DeviceInode) {
        if self.late.len() < MAX_LATE {
            self.late.insert((pid, place));
        }
    }

    /// A process has ended or runs another program.
    pub(super) fn forget_process(&mut self, pid: u32) {
        self.late.retain(|(late, _)| *late != pid);
    }

    /// What was asked for is not wanted any more.
    pub(super) fn clear(&mut self) {
        self.asked.clear();
    }
}
