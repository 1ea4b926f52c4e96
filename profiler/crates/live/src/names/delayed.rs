//! Codes whose names are asked for later.

use crate::binaries::Binaries;
use aiprof_model::process::FileId;
use aiprof_record::aggregate::Code;
use aiprof_symbols::unwind::address_of;
use rustc_hash::FxHashMap;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// How long look-ups in a file wait for more of them, as a multiple of the time that the last one
/// took. To read some debug files takes long, and much memory, so they are not kept.
const PAUSE: u32 = 20;
/// A look-up that takes less than this causes no wait.
const QUICK: Duration = Duration::from_millis(10);
/// How soon names are asked for again whose debug file is being fetched: at first, and
/// at most.
const FETCHES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(8));
/// Codes of files that have to wait, and for what.
#[derive(Default)]
pub(crate) struct DelayedCodes {
    /// Codes of files that were closed: to be asked for again once these are open.
    pub(crate) closed: Vec<Code>,
    /// Files that are not asked for names before then.
    paused: FxHashMap<u32, Instant>,
    /// Their codes.
    waiting: Vec<Code>,
    /// Codes of files whose debug files are being fetched, by file.
    fetching: FxHashMap<u32, Fetching>,
}

/// Codes that must be asked for again.
struct Fetching {
    codes: Vec<Code>,
    again: Instant,
    pause: Duration,
}

impl DelayedCodes {
    /// The codes that may have waited long enough; `last`: nothing waits any more.
    pub(super) fn due(&mut self, last: bool) -> Vec<Code> {
        let now = Instant::now();
        self.paused.retain(|_, until| !last && *until > now);
        std::mem::take(&mut self.waiting)
    }

    /// Has a code wait if its file may not be asked now.
    pub(super) fn is_held(&mut self, file: u32, code: Code) -> bool {
        let is_held = self.paused.contains_key(&file);
        if is_held {
            self.waiting.push(code);
        }
        is_held
    }

    /// What had no debug file yet, with its addresses: of each file now and then, or with `last`
    /// of all. The names that they have meanwhile stay until there are others.
    pub(super) fn fetched(
        &mut self,
        binaries: &Binaries,
        last: bool,
    ) -> BTreeMap<u32, Vec<(Code, u64)>> {
        let mut by_file: BTreeMap<u32, Vec<(Code, u64)>> = BTreeMap::new();
        let now = Instant::now();
        for (&file, fetching) in &mut self.fetching {
            let binary = binaries.get(FileId(file)).filter(|b| b.open().is_some());
            let (Some(binary), true) = (binary, last || fetching.again <= now) else {
                continue;
            };
            fetching.pause = (fetching.pause * 2).min(FETCHES.1);
            fetching.again = now + fetching.pause;
            let wanted = std::mem::take(&mut fetching.codes).into_iter();
            let wanted = wanted.filter_map(|code| match code {
                Code::File { offset, .. } => {
                    let address = address_of(&binary.text, offset).unwrap_or(offset);
                    Some((code, address))
                }
                _ => None,
            });
            by_file.entry(file).or_default().extend(wanted);
        }
        by_file.retain(|_, wanted| !wanted.is_empty());
        by_file
    }

    /// Codes, all of one file, were answered after `took`; `is_fetching`: their debug file is
    /// being fetched.
    pub(super) fn answered(&mut self, codes: &[Code], took: Duration, is_fetching: bool) {
        let Some(&Code::File { file, .. }) = codes.first() else {
            return;
        };
        if took > QUICK {
            self.paused.insert(file, Instant::now() + took * PAUSE);
        }
        if !is_fetching {
            let done = |f: &mut Fetching| f.codes.is_empty();
            if self.fetching.get_mut(&file).is_some_and(done) {
                self.fetching.remove(&file);
            }
            return;
        }
        let known = self.fetching.entry(file).or_insert_with(|| Fetching {
            codes: Vec::new(),
            again: Instant::now() + FETCHES.0,
            pause: FETCHES.0,
        });
        known.codes.extend(codes);
    }

    /// Forgets what waits for the debug files of a window, and gives it; and pauses of files that
    /// `keep` does not want.
    pub(super) fn trim(&mut self, keep: impl Fn(FileId) -> bool) -> impl Iterator<Item = Code> {
        self.paused.retain(|&file, _| keep(FileId(file)));
        self.fetching
            .drain()
            .flat_map(|(_, fetching)| fetching.codes)
    }
}
