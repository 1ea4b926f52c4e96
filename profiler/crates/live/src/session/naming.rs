//! Names of what was sampled, found by threads while the recording runs.

use super::{events::Events, processes::LiveProcesses};
use crate::{
    bpf::Bpf,
    names::{NameService, StoredNames},
};
use aiprof_model::process::FileId;
use aiprof_record::aggregate::{Code, NameSource, NoNames};
use aiprof_symbols::symbolize::{SymFrame, SymbolizeOptions};
use rustc_hash::FxHashSet;

/// The naming threads, and how many codes they were given of each aggregate.
pub(super) struct Naming {
    service: Option<NameService>,
    options: SymbolizeOptions,
    /// Codes of samples, and codes of the launches beside them.
    given: [usize; 2],
    /// Codes of samples that were looked through for those of Java and JavaScript.
    given_java: usize,
}

impl Naming {
    pub(super) fn new(options: SymbolizeOptions) -> Self {
        Self {
            service: None,
            options,
            given: [0; 2],
            given_java: 0,
        }
    }

    /// Gives the naming threads the codes that they have not seen. `last`: before names are used.
    pub(super) fn request(
        &mut self,
        bpf: &Bpf,
        processes: &mut LiveProcesses,
        events: &Events,
        last: bool,
    ) {
        if self.service.is_none() {
            self.start(bpf);
        }
        let Some(names) = &mut self.service else {
            return;
        };
        let table = &events.recording.processes;
        let closed = std::mem::take(&mut names.delayed.closed);
        for code in &closed {
            if let Code::File { file, .. } = code {
                processes.reopen(FileId(*file), table);
            }
        }
        let (binaries, javas) = (&processes.binaries, &processes.javas);
        if !closed.is_empty() {
            names.request(&closed, table, binaries, javas, last);
        }
        // Requested before their files were known, these got no names.
        let rebound = std::mem::take(&mut processes.rebound);
        let is_rebound = |code: &&Code| matches!(code, Code::File { file, .. } if rebound.contains(&FileId(*file)));
        for (aggregate, given) in events.aggregates().zip(&mut self.given) {
            if !rebound.is_empty() {
                let codes = aggregate.codes_from(0).iter().filter(is_rebound);
                let codes: Vec<Code> = codes.copied().collect();
                if !names.request(&codes, table, binaries, javas, last) {
                    processes.rebound.extend(&rebound);
                }
            }
            let codes = aggregate.codes_from(*given);
            if names.request(codes, table, binaries, javas, last) {
                *given += codes.len();
            }
            let codes = aggregate.codes_from(0);
            names.retry_jit(codes, table, (binaries, javas), last);
            names.found.note_cgroups(aggregate.cgroups());
        }
    }

    /// Started late, so that it has the reduced privileges of this process.
    fn start(&mut self, bpf: &Bpf) {
        let kernel = bpf
            .kernel_namer()
            .inspect_err(|e| tracing::warn!("functions of the Linux kernel have no names: {e}"));
        self.service = NameService::start(self.options.clone(), kernel.ok())
            .inspect_err(|error| {
                tracing::warn!(
                    "cannot start the thread that looks up names, so functions have no names: \
                     {error}"
                )
            })
            .ok();
    }

    /// Finds the names of all codes that can be found in time.
    pub(super) fn finish(&mut self, bpf: &Bpf, processes: &mut LiveProcesses, events: &Events) {
        self.settle();
        self.request(bpf, processes, events, true);
        self.settle();
    }

    fn settle(&mut self) {
        if let Some(names) = &mut self.service {
            names.settle();
        }
    }

    /// Gives the naming threads the codes of Java and JavaScript that they have not seen.
    pub(super) fn request_java(&mut self, processes: &LiveProcesses, events: &Events) {
        let Some(names) = &mut self.service else {
            return;
        };
        let codes = events.aggregate.codes_from(self.given_java);
        self.given_java += codes.len();
        let (binaries, javas) = (&processes.binaries, &processes.javas);
        let is_java = |code: &&Code| match **code {
            Code::Jit { pid, .. } | Code::JavaMethod { pid, .. } => javas.get(pid).is_some(),
            Code::JsFunction { .. } => true,
            _ => false,
        };
        let codes: Vec<Code> = codes.iter().filter(is_java).copied().collect();
        // What is not taken now is requested with all others.
        let table = &events.recording.processes;
        names.request(&codes, table, binaries, javas, false);
    }

    /// The aggregate of the samples was emptied; `launches`: that of the launches too.
    pub(super) fn restart(&mut self, launches: bool) {
        let [_, beside] = self.given;
        self.given = [0, if launches { 0 } else { beside }];
        self.given_java = 0;
    }

    /// Keeps the names of `used` codes whose files `keep` wants.
    pub(super) fn trim(&mut self, used: &FxHashSet<Code>, keep: impl Fn(FileId) -> bool) {
        if let Some(names) = &mut self.service {
            names.trim(used, keep);
        }
    }

    /// Forgets all names.
    pub(super) fn forget(&mut self) {
        self.service = None;
    }

    /// What a capture stores of these codes.
    pub(super) fn stored(&self, codes: &[Code]) -> StoredNames {
        let names = self.service.as_ref();
        names.map_or_else(Default::default, |names| names.found.stored(codes))
    }

    fn names(&self) -> &dyn NameSource {
        match &self.service {
            Some(service) => &service.found,
            None => &NoNames,
        }
    }
}

impl NameSource for Naming {
    fn frames(&self, code: &Code) -> &[SymFrame] {
        self.names().frames(code)
    }

    fn changes(&self, code: &Code) -> &[u64] {
        self.names().changes(code)
    }

    fn file_address(&self, file: u32, offset: u64) -> u64 {
        self.names().file_address(file, offset)
    }

    fn cgroup(&self, id: u64) -> Option<&str> {
        self.names().cgroup(id)
    }
}
