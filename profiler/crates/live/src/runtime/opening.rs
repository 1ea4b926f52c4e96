//! Which libraries are wanted, and having them opened.

use super::{
    discover::{self, ALTERNATIVE_DRIVERS, Command},
    opener::{FileLocation, FileWork, Opened, Opener, Work},
    plan::Use,
    service::{RuntimeProbes, Stage},
};
use crate::owner;
use aiprof_model::{
    probes::table::CheckedTable,
    process::FileId,
    wire::{FileKey, MapEvent},
};
use aiprof_system::workers::{Outcome, Owner};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

/// The table that other drivers than the installed ones belong to.
const LEVEL_ZERO: &str = "level-zero";
/// Most other drivers remembered.
const MAX_ALTERNATIVES: usize = 64;
/// How long the start of a recording waits for libraries to be read.
const FIRST_READS: Duration = Duration::from_secs(5);
/// What the opening of a file is for.
#[derive(Debug)]
pub(super) enum Purpose {
    /// What is probed from the start.
    Start,
    /// A file that was mapped.
    Mapped((Owner, FileKey)),
    /// Functions that were handed out, as [`RuntimeProbes::given`] has them.
    HandedOut(Vec<(Option<u32>, FileId, u64)>),
}

/// What is found at the start of a recording.
pub(super) struct Discovery {
    /// How long files are waited for.
    until: Instant,
    /// What processes have mapped.
    found: Vec<(u32, Vec<MapEvent>)>,
    /// Whether that was offered to the opener.
    is_offered: bool,
}

impl RuntimeProbes {
    /// Looks for libraries once.
    pub(super) fn discover(&mut self) {
        let config = self.config.clone();
        let command = Command {
            argv: &config.command,
            variable: discover::own_variable,
        };
        let list = (command.variable)(ALTERNATIVE_DRIVERS).unwrap_or_default();
        self.note_alternatives(&list);
        let mut paths = discover::preloaded(&command);
        paths.extend(config.helpers.iter().cloned());
        paths.extend(
            self.alternatives
                .iter()
                .filter(|d| d.contains('/'))
                .map(PathBuf::from),
        );
        for folder in discover::folders(&command) {
            paths.extend(discover::in_folder(&folder, |path| self.is_runtime(path)));
        }
        // Not what any library may have: that is looked at where it is used.
        let cache = Path::new("/etc/ld.so.cache");
        paths.extend(discover::in_linker_cache(cache, |path| {
            self.is_runtime(path)
        }));
        for path in paths {
            let text = path.to_string_lossy().into_owned();
            let uses = self.uses_of(&text);
            self.open_first(Owner::ROOT, FileLocation::Path(path), text, uses);
        }
        if let Some(program) = discover::executable(&command) {
            let text = program.to_string_lossy().into_owned();
            let uses = self.uses_of_program();
            self.open_first(Owner::ROOT, FileLocation::Path(program), text, uses);
        }
        for &pid in &config.pids {
            let link = aiprof_system::files::kernel::read_link(format!("/proc/{pid}/exe"));
            let text = link.unwrap_or_default().to_string_lossy().into_owned();
            let uses = self.uses_of_program();
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
            if self.opener.give(owner, Work::Process(pid)).is_err() {
                self.refused += 1;
            }
        }
        self.discovery = Some(Discovery {
            until: Instant::now() + FIRST_READS,
            found: Vec::new(),
            is_offered: false,
        });
    }

    /// Goes on with what is done at the start; `true`: it is done. Then the attacher is
    /// at hand again, for a thread with fewer privileges.
    pub(crate) fn settle(&mut self) -> bool {
        self.take_answers();
        let is_opening = self.opener.is_busy();
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
        self.stage = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::There(worker) if worker.is_busy() => {
                self.stage = Stage::There(worker);
                return false;
            }
            Stage::There(worker) => match worker.give_back() {
                Some(attacher) => Stage::Here(attacher),
                None => {
                    tracing::warn!(
                        "the thread that attaches probes does not answer, so libraries that are \
                         loaded from now on are not probed"
                    );
                    Stage::Over
                }
            },
            other => other,
        };
        self.discovery = None;
        true
    }

    fn offer(&mut self, found: Vec<(u32, Vec<MapEvent>)>) {
        for (pid, maps) in found {
            for map in &maps {
                if self.is_wanted(&map.file.path) {
                    self.users.insert(pid);
                    self.mapped(pid, map);
                }
            }
        }
    }

    /// Takes in what was opened.
    pub(super) fn take_answers(&mut self) {
        let late = self
            .starting
            .as_mut()
            .map_or_else(Vec::new, Opener::answers);
        let late = late.into_iter().map(|(_, outcome)| (None, outcome));
        let mut answers: Vec<_> = late.collect();
        for (ticket, outcome) in self.opener.answers() {
            answers.push((self.purposes.remove(&ticket), outcome));
        }
        for (purpose, outcome) in answers {
            match outcome {
                Outcome::Done(Opened::Done) => {}
                Outcome::Done(Opened::Maps(pid, maps, drivers)) => {
                    drivers.iter().for_each(|list| self.note_alternatives(list));
                    if let Some(discovery) = &mut self.discovery {
                        discovery.found.push((pid, maps));
                    }
                }
                Outcome::Done(Opened::Ready(owner, job)) if !self.started => {
                    if owner::is_trusted(owner) {
                        self.give(job);
                    } else {
                        // The start of the recording does not wait for these.
                        self.deferred.push(job);
                    }
                }
                Outcome::Done(Opened::Ready(_, job)) => self.give(job),
                Outcome::Done(Opened::Failed(losses)) => {
                    self.refused += losses;
                    self.try_again(purpose);
                }
                Outcome::Stuck | Outcome::Failed => {
                    self.refused += 1;
                    self.try_again(purpose);
                }
            }
        }
    }

    /// The next process that has this mapped, or is handed it, may live longer.
    fn try_again(&mut self, purpose: Option<Purpose>) {
        match purpose {
            Some(Purpose::Mapped(known)) => {
                self.mapped.remove(&known);
            }
            Some(Purpose::HandedOut(given)) => {
                for one in given {
                    self.given.remove(&one);
                }
            }
            Some(Purpose::Start) | None => {}
        }
    }

    /// Has a file read, and probed.
    pub(super) fn open(
        &mut self,
        owner: Owner,
        place: FileLocation,
        path: String,
        uses: Vec<Use>,
        purpose: Purpose,
        functions: Option<Vec<(u64, String)>>,
    ) {
        let attach = match (&self.stage, self.started) {
            (Stage::There(worker), true) => Some(worker.jobs()),
            _ => None,
        };
        let work = Work::File(Box::new(FileWork {
            owner,
            place,
            path,
            uses,
            exits: self.exits,
            functions,
            attach,
        }));
        match self.opener.give(owner, work) {
            Ok(ticket) => {
                self.purposes.insert(ticket, purpose);
            }
            Err(error) => {
                tracing::debug!("library not opened: {error}");
                self.refused += 1;
                self.try_again(Some(purpose));
            }
        }
    }

    pub(super) fn note_alternatives(&mut self, list: &std::ffi::OsStr) {
        for driver in discover::alternative_drivers(list) {
            if self.alternatives.len() < MAX_ALTERNATIVES {
                self.alternatives
                    .insert(driver.to_string_lossy().into_owned());
            }
        }
    }

    /// Whether a library of this name may have functions to probe.
    pub(super) fn is_wanted(&self, path: &str) -> bool {
        let mut tables = self.config.tables.of_file(path, &self.config.switches);
        tables.next().is_some() || self.is_alternative(path)
    }

    /// The same, of accelerators: not of what only switches collection.
    pub(super) fn is_runtime(&self, path: &str) -> bool {
        let mut tables = self.config.tables.of_file(path, &[]);
        tables.next().is_some() || self.is_alternative(path)
    }

    pub(super) fn is_alternative(&self, path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or(path);
        !self.alternatives.is_empty()
            && self.alternatives.iter().any(|driver| {
                let file = driver.rsplit('/').next().unwrap_or(driver);
                driver == path || file == name
            })
    }

    /// The tables that have functions of a library, by its path.
    pub(super) fn uses_of(&self, path: &str) -> Vec<Use> {
        let active = self.config.tables.of_file(path, &self.config.switches);
        let mut uses: Vec<Use> = active
            .map(|active| Use {
                table: Arc::clone(active.table),
                layer: active.library.layer,
                names_only: false,
            })
            .collect();
        if uses.is_empty()
            && self.is_alternative(path)
            && let Some(table) = self.config.tables.get(LEVEL_ZERO)
        {
            let layers = table.libraries.iter().map(|l| l.layer);
            uses.push(Use {
                table: Arc::clone(table),
                layer: layers.max().unwrap_or(0),
                names_only: false,
            });
        }
        uses
    }

    /// The tables whose functions a program may have linked in: by exact names, for
    /// a pattern may well match functions of its own.
    fn uses_of_program(&self) -> Vec<Use> {
        let switches = &self.config.switches;
        let wanted = |t: &&Arc<CheckedTable>| t.only_with.is_none_or(|s| switches.contains(&s));
        let tables = self.config.tables.iter().filter(wanted);
        tables
            .map(|table| Use {
                table: Arc::clone(table),
                layer: table.libraries.iter().map(|l| l.layer).min().unwrap_or(0),
                names_only: true,
            })
            .collect()
    }
}
