//! Pages of unwind tables that must be read.

use aiprof_model::process::FileId;
use aiprof_system::workers::Owner;
use rustc_hash::FxHashMap;

/// Pages that are read ahead at once.
const AHEAD_AT_ONCE: usize = 4;
/// Most users on whose accounts a page is read at a time.
const MAX_ASKING: usize = 8;

/// Why a page was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wish {
    /// A sample missed it.
    Missed,
    /// A sample missed it, and to read it takes tens of milliseconds.
    Slow,
    /// It may be needed soon.
    Ahead,
}

/// Pages of a file that must be read.
#[derive(Debug)]
pub(crate) struct WantedPages {
    /// The file.
    pub id: FileId,
    /// On whose account.
    pub owner: Owner,
    /// Why.
    pub wish: Wish,
    /// The numbers of the pages.
    pub pages: Vec<u32>,
}

/// Why a page was asked for, and for whom.
struct PageRequest {
    wish: Wish,
    /// On whose accounts: what waits behind the files of one must not make others
    /// wait.
    owners: Vec<Owner>,
}

/// The pages that were asked for.
#[derive(Default)]
pub(crate) struct PageRequests {
    asked: FxHashMap<(FileId, u32), PageRequest>,
    /// Those that no reader was given yet.
    wanted: Vec<(FileId, Owner, Wish, u32)>,
}

impl PageRequests {
    /// Asks for a page, also if it was read before.
    pub(crate) fn ask(&mut self, id: FileId, page: u32, wish: Wish, owner: Owner) {
        let owners = Vec::new();
        let ask = self
            .asked
            .entry((id, page))
            .or_insert(PageRequest { wish, owners });
        let is_urgent = wish == Wish::Missed && ask.wish == Wish::Ahead;
        if is_urgent {
            ask.wish = wish;
        }
        let is_new = ask.owners.len() < MAX_ASKING && !ask.owners.contains(&owner);
        if is_new {
            ask.owners.push(owner);
        }
        // What waits behind all others is asked for once more.
        if is_new || is_urgent && ask.owners.contains(&owner) {
            self.wanted.push((id, owner, wish, page));
        }
    }

    /// The pages that must be read. What is read ahead comes in small parts: no one who needs
    /// something now should wait for them.
    pub(crate) fn take_wanted(&mut self) -> Vec<WantedPages> {
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.sort_unstable();
        let mut all = Vec::new();
        for same in wanted.chunk_by(|a, b| (a.0, a.1, a.2) == (b.0, b.1, b.2)) {
            let Some(&(id, owner, wish, _)) = same.first() else {
                continue;
            };
            let part = match wish {
                Wish::Missed | Wish::Slow => 1,
                Wish::Ahead => AHEAD_AT_ONCE,
            };
            all.extend(same.chunks(part).map(|part| WantedPages {
                id,
                owner,
                wish,
                pages: part.iter().map(|wanted| wanted.3).collect(),
            }));
        }
        all
    }

    /// Whether pages are being read on somebody's account.
    pub(crate) fn is_read_for(&self, owner: Owner) -> bool {
        self.asked.values().any(|ask| ask.owners.contains(&owner))
    }

    /// Whether a page of any of these files, which are in order, is being read.
    pub(super) fn is_any_of(&self, files: &[FileId]) -> bool {
        let mut asked = self.asked.keys();
        asked.any(|(id, _)| files.binary_search(id).is_ok())
    }

    /// Pages that could not be read on somebody's account: the next sample that
    /// misses them asks again.
    pub(crate) fn unread(&mut self, id: FileId, owner: Owner, pages: &[u32]) {
        for &page in pages {
            if let Some(ask) = self.asked.get_mut(&(id, page)) {
                ask.owners.retain(|other| *other != owner);
                if ask.owners.is_empty() {
                    self.asked.remove(&(id, page));
                }
            }
        }
    }

    /// A page was read; why it was asked for.
    pub(super) fn answered(&mut self, id: FileId, page: u32) -> Option<Wish> {
        self.asked.remove(&(id, page)).map(|request| request.wish)
    }
}
