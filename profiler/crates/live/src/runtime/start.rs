//! What is probed when a recording starts.

use super::{
    discover::{self, ALTERNATIVE_DRIVERS, ProbedCommand},
    opener::{FileLocation, OpenWork},
    opening::Purpose,
    plan::Use,
    service::RuntimeProbes,
};
use crate::owner;
use aiprof_model::wire::MapEvent;
use aiprof_system::workers::Owner;
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// How long the start of a recording waits for libraries to be read.
const FIRST_READS: Duration = Duration::from_secs(5);

/// What is found at the start of a recording.
pub(super) struct Discovery {
    /// How long files are waited for.
    until: Instant,
    /// What processes have mapped.
    pub(super) found: Vec<(u32, Vec<MapEvent>)>,
    /// Whether that was offered to the opener.
    is_offered: bool,
}

impl RuntimeProbes {
    /// Looks for libraries once.
    pub(super) fn discover(&mut self) {
        let config = self.wanted.config.clone();
        let command = ProbedCommand {
            argv: &config.command,
            variable: discover::own_variable,
        };
        let list = (command.variable)(ALTERNATIVE_DRIVERS).unwrap_or_default();
        self.wanted.note_alternatives(&list);
        let mut paths = discover::preloaded(&command);
        paths.extend(config.helpers.iter().cloned());
        paths.extend(self.wanted.alternatives());
        for folder in discover::folders(&command) {
            paths.extend(discover::in_folder(&folder, |path| {
                self.wanted.is_runtime(path)
            }));
        }
        // Not what any library may have: that is looked at where it is used.
        let cache = Path::new("/etc/ld.so.cache");
        paths.extend(discover::in_linker_cache(cache, |path| {
            self.wanted.is_runtime(path)
        }));
        for path in paths {
            let text = path.to_string_lossy().into_owned();
            let uses = self.wanted.uses_of(&text);
            self.open_first(Owner::ROOT, FileLocation::Path(path), text, uses);
        }
        if let Some(program) = discover::executable(&command) {
            let text = program.to_string_lossy().into_owned();
            let uses = self.wanted.uses_of_program();
            self.open_first(Owner::ROOT, FileLocation::Path(program), text, uses);
        }
        for &pid in &config.pids {
            let link = aiprof_system::files::kernel::read_link(format!("/proc/{pid}/exe"));
            let text = link.unwrap_or_default().to_string_lossy().into_owned();
            let uses = self.wanted.uses_of_program();
            self.open_first(owner::owner_of(pid), FileLocation::Program(pid), text, uses);
        }
        self.look_at_processes();
    }

    fn open_first(&mut self, owner: Owner, place: FileLocation, path: String, uses: Vec<Use>) {
        if !uses.is_empty() {
            self.open(owner, place, path, uses, Purpose::Start, None);
        }
    }

    /// Probes what running processes have mapped.
    fn look_at_processes(&mut self) {
        for pid in discover::processes() {
            let owner = owner::owner_of(pid);
            self.opening
                .give(owner, OpenWork::Process(pid), Purpose::Start);
        }
        self.discovery = Some(Discovery {
            until: Instant::now() + FIRST_READS,
            found: Vec::new(),
            is_offered: false,
        });
    }

    /// Goes on with what is done at the start; `true`: it is done.
    pub(crate) fn settle(&mut self) -> bool {
        self.take_answers();
        let is_opening = self.opening.is_busy();
        let Some(discovery) = &mut self.discovery else {
            return true;
        };
        if is_opening && Instant::now() < discovery.until {
            return false;
        }
        if !std::mem::replace(&mut discovery.is_offered, true) {
            // What they have loaded is offered only now: the drivers that their environments name
            // must be known.
            let found = std::mem::take(&mut discovery.found);
            self.offer(found);
            return false;
        }
        let is_settled = self.attaching.settle();
        if is_settled {
            self.discovery = None;
        }
        is_settled
    }

    fn offer(&mut self, found: Vec<(u32, Vec<MapEvent>)>) {
        for (pid, maps) in found {
            for map in &maps {
                if self.wanted.is_wanted(&map.file.path) {
                    self.users.insert(pid);
                    self.mapped(pid, map);
                }
            }
        }
    }
}
