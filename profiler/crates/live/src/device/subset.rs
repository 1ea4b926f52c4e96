//! Reading only a part of the records.

/// One record in N. In each group of N one is chosen at random, so that no order in the
/// records, which are grouped by core, can favour some.
#[derive(Debug)]
pub(super) struct Subset {
    one_of: u32,
    /// Records until the next that is chosen.
    skip: usize,
    /// Records behind it that belong to its group.
    rest: usize,
    random: u64,
}

impl Subset {
    pub(super) fn new(one_of: u32) -> Self {
        let mut subset = Self {
            one_of,
            skip: 0,
            rest: 0,
            // Any number but 0.
            random: 0x9e37_79b9_7f4a_7c15,
        };
        subset.next_group();
        subset
    }

    pub(super) fn choose(&mut self, records: &[u8], size: usize, mut chosen: impl FnMut(&[u8])) {
        if self.one_of <= 1 {
            chosen(records);
            return;
        }
        let mut records = records;
        loop {
            let skipped = self.skip.saturating_mul(size);
            let Some((record, behind)) = records
                .get(skipped..)
                .and_then(|rest| rest.split_at_checked(size))
            else {
                self.skip -= records.len() / size;
                return;
            };
            chosen(record);
            records = behind;
            self.next_group();
        }
    }

    fn next_group(&mut self) {
        // Xorshift.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let group = self.one_of as usize;
        let at = (self.random >> 32) as usize % group;
        self.skip = self.rest + at;
        self.rest = group - 1 - at;
    }
}
