//! The processes that a process was forked from: their perf maps name the code that it
//! inherited, until it executes a program.

use super::perf_maps::Jitted;
use aiprof_system::files::kernel;
use aiprof_system::os::process;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// Most generations that are looked at.
const GENERATIONS: usize = 4;
/// Bytes of code that both processes must have at an address, and their alignment: compilers
/// align functions so, and the next one may be younger than the fork.
const BLOCK: u64 = 16;

/// A process that another was forked from, or may have been.
pub(super) struct Ancestor {
    /// It; its start is 0 if it has ended.
    pub(super) process: Jitted,
    /// The memory of the fork and its own, while both live.
    memories: Option<(File, File)>,
    /// The fork was seen, and no other program since.
    is_seen: bool,
}

impl Ancestor {
    /// Whether the code at an address is inherited.
    pub(super) fn has_left(&self, address: u64) -> bool {
        let Some((fork, own)) = &self.memories else {
            return self.is_seen;
        };
        let block = |memory: &File| {
            let mut bytes = [0; BLOCK as usize];
            let read = memory.read_exact_at(&mut bytes, address - address % BLOCK);
            read.ok()
                .map(|()| bytes)
                .filter(|bytes| *bytes != [0; BLOCK as usize])
        };
        let code = block(fork);
        code.is_some() && code == block(own)
    }
}

/// Those that a process was forked from, the nearest first. `seen`: by the forks that were seen;
/// without any, the processes that started it, which count where they have the same code.
pub(super) fn ancestors((pid, started): Jitted, seen: &[u32]) -> Vec<Ancestor> {
    // All processes are from the first one, by programs of their own.
    let parent = |pid| process::parent(pid).filter(|&pid| pid > 1);
    let parents = std::iter::successors(parent(pid), |&pid| parent(pid));
    let pids: Vec<u32> = match seen {
        [] => parents.take(GENERATIONS).collect(),
        seen => seen.to_vec(),
    };
    let is_seen = !seen.is_empty();
    let ancestor = |pid: u32| {
        let now = process::start_time(pid);
        // Its number may be that of a younger process by now.
        let is_it = now.map_or(is_seen, |now| now <= started);
        is_it.then(|| Ancestor {
            process: (pid, now.unwrap_or(0)),
            memories: None,
            is_seen,
        })
    };
    let found = pids.into_iter().map_while(ancestor);
    found
        .map(|found| Ancestor {
            memories: memory((pid, started)).zip(memory(found.process)),
            ..found
        })
        .collect()
}

/// The memory of a process that still is the one that was seen.
pub(super) fn memory(process: Jitted) -> Option<File> {
    let memory = kernel::open(format!("/proc/{}/mem", process.0)).ok();
    // Once it is open it is that of one process, whatever becomes of the number.
    memory.filter(|_| process::start_time(process.0) == Some(process.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn code_is_inherited_where_both_have_it() {
        // This process and its child, which executes another program: neither was seen to fork.
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = (child.id(), process::start_time(child.id()).unwrap());
        let own = (
            std::process::id(),
            process::start_time(std::process::id()).unwrap(),
        );
        let found = ancestors(process, &[]);
        assert_eq!(found.first().map(|found| found.process), Some(own));
        let here = ancestors as fn(Jitted, &[u32]) -> Vec<Ancestor> as usize as u64;
        assert!(!found[0].has_left(here), "cat has no such code");
        let same = Ancestor {
            process: own,
            memories: memory(own).zip(memory(own)),
            is_seen: false,
        };
        assert!(same.has_left(here) && !same.has_left(0));
        // Its number is a younger process's by now: what was forked before is not from it.
        assert!(ancestors((own.0, own.1), &[process.0]).is_empty() || process.1 == own.1);
        drop(child.stdin.take());
        child.wait().unwrap();
        // It has ended: what was seen counts, and else nothing.
        let seen = ancestors(own, &[process.0]);
        assert!(seen.iter().all(|seen| seen.has_left(here)) && seen.len() == 1);
    }
}
