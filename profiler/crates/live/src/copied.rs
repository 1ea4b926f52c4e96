//! Programs that may have copied their text: they have mapped anonymous memory where text of a
//! file was.
//!
//! A compiler's code may be put there as well, and a program fills such memory after it has mapped
//! it. So the bytes are compared a moment later, and ever more seldom where they differ.

use aiprof_model::{
    process::{ProcessTable, Region},
    wire::MapEvent,
};
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};

/// How long after a mapping the bytes are compared.
const FIRST_WAIT: Duration = Duration::from_millis(4);
/// How often the bytes are compared, each time after twice as long: the last time half a minute
/// later.
const MAX_LOOKS: u32 = 13;
/// Most processes of which this is remembered.
const MAX_PROCESSES: usize = 1024;

/// A process whose memory is compared with its files.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// When; `None`: it is being compared.
    due: Option<Instant>,
    looks: u32,
}

/// The processes that may have copied their text.
#[derive(Debug, Default)]
pub(crate) struct CopiedText {
    candidates: FxHashMap<u32, Candidate>,
    /// What was found, as mappings of the files.
    pub(crate) found: Vec<(u32, Vec<MapEvent>)>,
}

impl CopiedText {
    /// A process is about to map something, which is anonymous memory.
    pub(crate) fn mapped(&mut self, pid: u32, map: &MapEvent, processes: &ProcessTable) {
        let now = Instant::now();
        let is_known = self.candidates.contains_key(&pid);
        let has_room = is_known || self.candidates.len() < MAX_PROCESSES;
        if is_on_text(pid, map, processes) {
            let new = Candidate {
                due: Some(now + FIRST_WAIT),
                looks: 0,
            };
            has_room.then(|| self.candidates.insert(pid, new));
        } else if let Some(due) = self.candidates.get_mut(&pid).map(|one| &mut one.due) {
            // It may have changed the protection of what it has filled.
            *due = Some(now);
        }
    }

    /// Whether one must be looked at in a moment.
    pub(crate) fn is_any_soon(&self) -> bool {
        let soon = Instant::now() + 2 * FIRST_WAIT;
        let mut all = self.candidates.values();
        all.any(|candidate| candidate.due.is_some_and(|due| due < soon))
    }

    /// The processes to be looked at now, which are then being looked at.
    pub(crate) fn take_due(&mut self, now: Instant) -> Vec<u32> {
        let all = self.candidates.iter_mut();
        let due = all.filter(|(_, one)| one.due.is_some_and(|due| due <= now));
        due.map(|(&pid, candidate)| {
            candidate.due = None;
            pid
        })
        .collect()
    }

    /// Takes in what was found of a process.
    pub(crate) fn came(&mut self, pid: u32, maps: Vec<MapEvent>, now: Instant) {
        let Some(candidate) = self.candidates.get_mut(&pid) else {
            return;
        };
        candidate.looks += 1;
        let wait = FIRST_WAIT.saturating_mul(2_u32.saturating_pow(candidate.looks));
        // It may have mapped more meanwhile.
        candidate.due = candidate.due.or(Some(now + wait));
        if candidate.looks >= MAX_LOOKS {
            self.candidates.remove(&pid);
        }
        if !maps.is_empty() {
            self.found.push((pid, maps));
        }
    }

    /// A process has ended, or runs another program.
    pub(crate) fn forget(&mut self, pid: u32) {
        self.candidates.remove(&pid);
        self.found.retain(|(found, _)| *found != pid);
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Whether a file's text is where a mapping is.
fn is_on_text(pid: u32, map: &MapEvent, processes: &ProcessTable) -> bool {
    let end = map.start.saturating_add(map.len);
    let maps = processes.get(pid).map(|process| &process.space.maps);
    let mut on = maps.into_iter().flatten();
    on.any(|old| {
        let key = processes.files.key(old.file);
        let is_file = key.is_some_and(|key| Region::of(key) == Region::File);
        is_file && old.start < end && map.start < old.end
    })
}

/// The processes that have anonymous memory where `map` is: the one that copied its text, and those
/// that it forked since, which have the copy, too.
pub(crate) fn sharers(pid: u32, map: &MapEvent, processes: &ProcessTable) -> Vec<u32> {
    let at = |pid: u32| {
        let process = processes
            .get(pid)
            .filter(|process| process.exited_ns.is_none())?;
        let mapping = *process.space.find(map.start)?;
        let key = processes.files.key(mapping.file)?;
        let is_anonymous = Region::of(key) == Region::Anonymous;
        is_anonymous.then_some((process.space.id, mapping))
    };
    let Some(own) = at(pid) else {
        return Vec::new();
    };
    let mut pids: Vec<u32> = processes.iter().map(|(pid, _)| pid).collect();
    pids.retain(|&pid| at(pid) == Some(own));
    pids.sort_unstable();
    pids
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::wire::{FileKey, ProcessEvent, ProcessEventKind};

    fn map(start: u64, path: &str) -> MapEvent {
        MapEvent {
            start,
            len: 0x1000,
            file_offset: 0,
            file: FileKey {
                path: path.to_owned(),
                build_id: None,
                device: 1,
                inode: u64::from(!path.starts_with("//")),
                version: 0,
            },
        }
    }

    fn apply(processes: &mut ProcessTable, pid: u32, kind: ProcessEventKind) {
        processes.apply(&ProcessEvent {
            time_ns: 1,
            pid,
            tid: pid,
            kind,
        });
    }

    /// A program with text at 0x1000, which forks.
    fn program() -> ProcessTable {
        let mut processes = ProcessTable::default();
        let exec = ProcessEventKind::Exec { comm: "p".into() };
        apply(&mut processes, 1, exec);
        apply(&mut processes, 1, ProcessEventKind::Map(map(0x1000, "/p")));
        processes
    }

    #[test]
    fn memory_on_text_is_compared_ever_more_seldom() {
        let processes = program();
        let mut copied = CopiedText::default();
        copied.mapped(1, &map(0x2000, "//anon"), &processes);
        copied.mapped(2, &map(0x1000, "//anon"), &processes);
        assert!(copied.candidates.is_empty(), "no text there");
        copied.mapped(1, &map(0x1000, "//anon"), &processes);
        assert!(copied.is_any_soon());
        let start = Instant::now();
        let mut looks = 0;
        for ms in 0..200_000 {
            let now = start + Duration::from_millis(ms);
            for pid in copied.take_due(now) {
                looks += 1;
                assert!(copied.take_due(now + Duration::from_secs(100)).is_empty());
                copied.came(pid, Vec::new(), now);
            }
        }
        assert_eq!((looks, copied.candidates.len()), (MAX_LOOKS, 0));
        assert!(copied.found.is_empty());
        copied.mapped(1, &map(0x1000, "//anon"), &processes);
        copied.came(1, vec![map(0x1000, "/p")], start);
        assert_eq!(copied.found.len(), 1);
        copied.forget(1);
        assert!(copied.found.is_empty() && copied.candidates.is_empty());
    }

    #[test]
    fn forks_have_the_copy_until_they_map_something_else() {
        let mut processes = program();
        let copy = map(0x1000, "//anon");
        assert!(sharers(1, &copy, &processes).is_empty(), "it is the file's");
        apply(&mut processes, 2, ProcessEventKind::Fork { parent: 1 });
        apply(&mut processes, 1, ProcessEventKind::Map(copy.clone()));
        for pid in [3, 4, 5] {
            apply(&mut processes, pid, ProcessEventKind::Fork { parent: 1 });
        }
        apply(&mut processes, 4, ProcessEventKind::Map(map(0x1000, "/q")));
        let exec = ProcessEventKind::Exec { comm: "q".into() };
        apply(&mut processes, 5, exec);
        assert_eq!(sharers(1, &copy, &processes), [1, 3]);
    }
}
