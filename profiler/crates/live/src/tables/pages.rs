//! The pages in the pool, each once.

use crate::{
    bpf::pool::{Pool, PoolBlock},
    reader::TableDigest,
};
use rustc_hash::FxHashMap;

/// A page in the pool, and how many files have it.
struct SharedPage {
    block: PoolBlock,
    files: u32,
}

/// The pages in the pool by their content.
#[derive(Default)]
pub(crate) struct SharedPages(FxHashMap<TableDigest, SharedPage>);

impl SharedPages {
    /// Where a page is.
    pub(super) fn block(&self, digest: &TableDigest) -> Option<PoolBlock> {
        self.0.get(digest).map(|page| page.block)
    }

    /// One file more has a page; `None`: it is not here.
    pub(super) fn share(&mut self, digest: &TableDigest) -> Option<PoolBlock> {
        let page = self.0.get_mut(digest)?;
        page.files += 1;
        Some(page.block)
    }

    /// A page that one file has.
    pub(super) fn insert(&mut self, digest: TableDigest, block: PoolBlock) {
        self.0.insert(digest, SharedPage { block, files: 1 });
    }

    /// One file less has a page; gives the bytes that are free now.
    pub(super) fn release(&mut self, digest: TableDigest, pool: &mut Pool) -> usize {
        let Some(shared) = self.0.get_mut(&digest) else {
            return 0;
        };
        shared.files -= 1;
        if shared.files > 0 {
            return 0;
        }
        let block = shared.block;
        self.0.remove(&digest);
        pool.release(block);
        block.bytes()
    }

    /// Pages in the pool, each once; how many more there would be were they not shared
    /// between files; their bytes.
    pub(crate) fn extent(&self) -> (usize, usize, usize) {
        let uses: usize = self.0.values().map(|page| page.files as usize).sum();
        let bytes = self.0.values().map(|page| page.block.bytes()).sum();
        (self.0.len(), uses - self.0.len(), bytes)
    }
}
