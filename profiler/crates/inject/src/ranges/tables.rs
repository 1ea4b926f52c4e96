//! What the program's handles mean: domains, registered texts, categories.

use super::ring;
use crate::timing::{MARKS_LOST_TEXT, RANGES_ITT, RANGES_NVTX};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// The domain of NVTX's functions that have none.
pub(super) const NVTX_DEFAULT: u16 = 0;
/// A domain of ITT that is not known.
pub(super) const ITT_UNKNOWN: u16 = 1;
/// What takes the place of texts and domains for which there is no room.
const NO_ROOM: &[u8] = b"[too many names]";
/// Most texts that the program registers, and all their bytes.
const MOST_TEXTS: usize = 1 << 18;
const MOST_BYTES: usize = 32 << 20;
/// Most domains, and most categories.
const MOST_DOMAINS: usize = 1 << 12;
const MOST_CATEGORIES: usize = 1 << 14;

/// A domain.
#[derive(Debug)]
pub(super) struct RangeDomain {
    /// `RANGES_NVTX` and its like.
    pub(super) api: u32,
    /// Empty: it has none.
    pub(super) name: Box<[u8]>,
}

/// All that is known.
#[derive(Debug)]
pub(super) struct RangeTables {
    texts: Vec<Box<[u8]>>,
    numbers: HashMap<Box<[u8]>, u32>,
    bytes: usize,
    domains: Vec<RangeDomain>,
    domain_numbers: HashMap<(u32, Box<[u8]>), u16>,
    categories: HashMap<(u16, u32), u32>,
    /// Addresses of ITT's handles and domains, which stay for ever, by their names.
    pub(super) itt_strings: HashMap<Box<[u8]>, usize>,
    pub(super) itt_domains: HashMap<Box<[u8]>, usize>,
}

static TABLES: Mutex<Option<RangeTables>> = Mutex::new(None);

/// The tables, for this thread alone.
pub(super) fn lock() -> MutexGuard<'static, Option<RangeTables>> {
    TABLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether no thread works on the tables right now.
pub(super) fn is_free() -> bool {
    !matches!(TABLES.try_lock(), Err(TryLockError::WouldBlock))
}

/// Works on the tables.
pub(super) fn with<T>(work: impl FnOnce(&mut RangeTables) -> T) -> T {
    work(lock().get_or_insert_with(RangeTables::new))
}

impl RangeTables {
    fn new() -> Self {
        let nameless = |api| RangeDomain {
            api,
            name: Box::default(),
        };
        Self {
            texts: vec![NO_ROOM.into()],
            numbers: HashMap::new(),
            bytes: 0,
            domains: vec![nameless(RANGES_NVTX), nameless(RANGES_ITT)],
            domain_numbers: HashMap::new(),
            categories: HashMap::new(),
            itt_strings: HashMap::new(),
            itt_domains: HashMap::new(),
        }
    }

    /// Whether `bytes` more bytes of the program's texts have room; if not, the text is
    /// counted as lost.
    pub(super) fn has_room(&mut self, bytes: usize) -> bool {
        let texts = self.texts.len() + self.itt_strings.len();
        let has_room = texts < MOST_TEXTS && self.bytes + bytes <= MOST_BYTES;
        if has_room {
            self.bytes += bytes;
        } else {
            ring::count_lost(MARKS_LOST_TEXT, 1);
        }
        has_room
    }

    /// The number of a text, from 1; 0: it has no room.
    pub(super) fn text_number(&mut self, text: &[u8]) -> u32 {
        if let Some(&known) = self.numbers.get(text) {
            return known;
        }
        if !self.has_room(2 * text.len()) {
            return 0;
        }
        let number = self.texts.len() as u32;
        self.texts.push(text.into());
        self.numbers.insert(text.into(), number);
        number
    }

    /// The text of a number.
    pub(super) fn text(&self, number: u32) -> Option<&[u8]> {
        Some(self.texts.get(number as usize)?)
    }

    /// The number of a domain.
    pub(super) fn domain_number(&mut self, api: u32, name: &[u8]) -> u16 {
        let nameless = if api == RANGES_ITT {
            ITT_UNKNOWN
        } else {
            NVTX_DEFAULT
        };
        if name.is_empty() {
            return nameless;
        }
        let key = (api, Box::from(name));
        if let Some(&known) = self.domain_numbers.get(&key) {
            return known;
        }
        if self.domains.len() >= MOST_DOMAINS {
            ring::count_lost(MARKS_LOST_TEXT, 1);
            return nameless;
        }
        let number = self.domains.len() as u16;
        self.domains.push(RangeDomain {
            api,
            name: name.into(),
        });
        self.domain_numbers.insert(key, number);
        number
    }

    /// A domain; of an unknown number, NVTX's default one.
    pub(super) fn domain(&self, number: u16) -> Option<&RangeDomain> {
        self.domains
            .get(usize::from(number))
            .or_else(|| self.domains.first())
    }

    /// Names a category of a domain.
    pub(super) fn name_category(&mut self, domain: u16, category: u32, name: &[u8]) {
        if self.categories.len() >= MOST_CATEGORIES {
            return ring::count_lost(MARKS_LOST_TEXT, 1);
        }
        let number = self.text_number(name);
        self.categories.insert((domain, category), number);
    }

    /// The name of a category.
    pub(super) fn category(&self, domain: u16, category: u32) -> Option<&[u8]> {
        self.text(*self.categories.get(&(domain, category))?)
    }
}
