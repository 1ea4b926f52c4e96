//! The names that were found.

use crate::cgroup;
use aiprof_model::process::FileId;
use aiprof_record::aggregate::{Code, NameSource};
use aiprof_symbols::{
    symbolize::{AddressChange, SymFrame},
    unwind::{TextSegment, address_of},
};
use rustc_hash::{FxHashMap, FxHashSet};

/// Most addresses whose names are kept from one window to the next.
const MAX_KEPT: usize = 1 << 16;

/// Names, text segments by file, control group paths by id.
pub type StoredNames = (
    Vec<(Code, Vec<SymFrame>)>,
    Vec<(u32, Vec<TextSegment>)>,
    Vec<(u64, String)>,
);

/// Names, and what they are found by.
#[derive(Default)]
pub(crate) struct FoundNames {
    names: FxHashMap<Code, Vec<SymFrame>>,
    texts: FxHashMap<u32, Vec<TextSegment>>,
    /// Times from which on names of JIT code hold, ascending.
    changes: FxHashMap<Code, Vec<u64>>,
    cgroups: FxHashMap<u64, Option<String>>,
}

impl FoundNames {
    /// Whether a code has a name.
    pub(super) fn has(&self, code: &Code) -> bool {
        self.names.contains_key(code)
    }

    /// Takes in names; a code without frames has none.
    pub(super) fn add(&mut self, named: impl Iterator<Item = (Code, Vec<SymFrame>)>) {
        self.names
            .extend(named.filter(|(_, frames)| !frames.is_empty()));
    }

    /// Takes in the text segments of a file whose codes are named.
    pub(super) fn note_text(&mut self, file: u32, text: &[TextSegment]) {
        self.texts.entry(file).or_insert_with(|| text.to_vec());
    }

    /// Takes in what was at addresses of JIT code in the course of time.
    pub(super) fn take_changes(&mut self, codes: &[Code], changes: Vec<AddressChange>) {
        for code in codes {
            self.changes.remove(code);
        }
        for change in changes {
            let code = codes.get(change.address as usize).copied();
            let Some(code @ Code::Jit { pid, address }) = code else {
                continue;
            };
            let since = change.since;
            self.changes.entry(code).or_default().push(since);
            let code = Code::JitSince {
                pid,
                address,
                since,
            };
            self.names.insert(code, change.frames);
        }
    }

    /// Looks up the paths of control groups.
    pub(crate) fn note_cgroups(&mut self, ids: impl Iterator<Item = u64>) {
        for id in ids {
            self.cgroups
                .entry(id)
                .or_insert_with(|| cgroup::path_of(id));
        }
    }

    /// Keeps, between windows, the names that this window `used`, of files that are still known
    /// according to `keep`: not those that came too `late`.
    pub(super) fn trim(
        &mut self,
        used: &FxHashSet<Code>,
        keep: impl Fn(FileId) -> bool,
        late: &FxHashSet<Code>,
    ) {
        self.changes.clear();
        self.names.retain(|code, _| match code {
            Code::File { file, .. } => {
                used.contains(code) && keep(FileId(*file)) && !late.contains(code)
            }
            _ => false,
        });
        if self.names.len() > MAX_KEPT {
            self.names.clear();
        }
        self.names.shrink_to(2 * self.names.len());
        self.texts.retain(|&file, _| keep(FileId(file)));
        if self.cgroups.len() > MAX_KEPT {
            self.cgroups.clear();
        }
    }

    /// What a capture stores: the names of `codes`, the text segments of all
    /// named files, the paths of control groups.
    pub(crate) fn stored(&self, codes: &[Code]) -> StoredNames {
        let named = |code: Code| Some((code, self.names.get(&code)?.clone()));
        let at_all_times = |&code: &Code| {
            let changes = self.changes.get(&code).into_iter().flatten();
            let changed = changes.filter_map(move |&since| match code {
                Code::Jit { pid, address } => Some(Code::JitSince {
                    pid,
                    address,
                    since,
                }),
                _ => None,
            });
            std::iter::once(code).chain(changed)
        };
        let texts = self
            .texts
            .iter()
            .map(|(&file, text)| (file, text.clone()))
            .collect();
        let path = |(&id, path): (&u64, &Option<String>)| Some((id, path.clone()?));
        (
            codes
                .iter()
                .flat_map(at_all_times)
                .filter_map(named)
                .collect(),
            texts,
            self.cgroups.iter().filter_map(path).collect(),
        )
    }
}

impl NameSource for FoundNames {
    fn frames(&self, code: &Code) -> &[SymFrame] {
        self.names.get(code).map_or(&[], Vec::as_slice)
    }

    fn changes(&self, code: &Code) -> &[u64] {
        self.changes.get(code).map_or(&[], Vec::as_slice)
    }

    fn file_address(&self, file: u32, offset: u64) -> u64 {
        let text = self.texts.get(&file).map_or(&[][..], Vec::as_slice);
        address_of(text, offset).unwrap_or(offset)
    }

    fn cgroup(&self, id: u64) -> Option<&str> {
        self.cgroups.get(&id)?.as_deref()
    }
}
