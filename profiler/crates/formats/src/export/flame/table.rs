//! The frames of a flame graph: stacks merged from the root.

/// One frame of the picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::export) struct FlameFrame<'a> {
    /// Folded name; the root has an empty one.
    pub(in crate::export) name: &'a str,
    /// Frames between it and the root, plus one; 0 for the root.
    pub(in crate::export) depth: usize,
    /// Value of all that stands to the left of it.
    pub(in crate::export) start: u64,
    /// Its width: its value with all that it calls.
    pub(in crate::export) total: u64,
    /// The part of `total` that is its own.
    pub(in crate::export) own: u64,
    /// `total` in the other recording, for differences.
    pub(in crate::export) other_total: u64,
    /// `own` in the other recording.
    pub(in crate::export) other_own: u64,
}

/// Merges stacks that come sorted frame by frame.
#[derive(Debug)]
pub(in crate::export) struct FlameTable<'a> {
    frames: Vec<FlameFrame<'a>>,
    /// Indices of the frames of the stack that was added last, from the root.
    open: Vec<usize>,
}

impl<'a> FlameTable<'a> {
    /// A table with nothing but the root.
    pub(in crate::export) fn new() -> Self {
        let mut table = Self {
            frames: Vec::new(),
            open: Vec::new(),
        };
        table.open("", 0);
        table
    }

    fn open(&mut self, name: &'a str, start: u64) {
        self.frames.push(FlameFrame {
            name,
            depth: self.open.len(),
            start,
            total: 0,
            own: 0,
            other_total: 0,
            other_own: 0,
        });
        self.open.push(self.frames.len() - 1);
    }

    /// Adds a stack with its value, and the one that it has in the other recording.
    pub(in crate::export) fn add(
        &mut self,
        path: impl IntoIterator<Item = &'a str>,
        value: u64,
        other: u64,
    ) {
        let start = self.root().total;
        let mut depth = 1;
        for name in path {
            let known = self.open.get(depth).and_then(|&i| self.frames.get(i));
            if known.is_none_or(|frame| frame.name != name) {
                self.open.truncate(depth);
                self.open(name, start);
            }
            depth += 1;
        }
        self.open.truncate(depth);
        let leaf = self.open.last().copied();
        for &i in &self.open {
            let Some(frame) = self.frames.get_mut(i) else {
                continue;
            };
            frame.total = frame.total.saturating_add(value);
            frame.other_total = frame.other_total.saturating_add(other);
            if Some(i) == leaf {
                frame.own = frame.own.saturating_add(value);
                frame.other_own = frame.other_own.saturating_add(other);
            }
        }
    }

    /// The frame that holds everything.
    pub(in crate::export) fn root(&self) -> &FlameFrame<'a> {
        &self.frames[0]
    }

    /// All frames that are at least `least` wide, parents before their children.
    pub(in crate::export) fn frames(&self, least: u64) -> impl Iterator<Item = &FlameFrame<'a>> {
        let least = least.max(1);
        let is_shown = move |frame: &&FlameFrame<'_>| frame.depth == 0 || frame.total >= least;
        self.frames.iter().filter(is_shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_merged_from_the_root() {
        let mut table = FlameTable::new();
        table.add(["a", "b"], 3, 1);
        table.add(["a", "b", "c"], 2, 0);
        table.add(["a", "d"], 0, 4);
        table.add(["b"], 5, 5);
        let all: Vec<_> = table
            .frames(0)
            .map(|f| (f.name, f.depth, f.start, f.total, f.own))
            .collect();
        let expected = [
            ("", 0, 0, 10, 0),
            ("a", 1, 0, 5, 0),
            ("b", 2, 0, 5, 3),
            ("c", 3, 3, 2, 2),
            ("b", 1, 5, 5, 5),
        ];
        assert_eq!(all, expected);
        let a = table.frames(0).nth(1).map(|f| (f.other_total, f.other_own));
        assert_eq!(a, Some((5, 0)));
        assert_eq!(table.frames(5).count(), 4);
    }

    #[test]
    fn a_path_that_ends_early_closes_what_it_left() {
        let mut table = FlameTable::new();
        table.add(["a", "b"], 1, 0);
        table.add(["a"], 1, 0);
        table.add(["a", "b"], 1, 0);
        let found: Vec<_> = table.frames(0).map(|f| (f.name, f.total)).collect();
        assert_eq!(found, [("", 3), ("a", 3), ("b", 1), ("b", 1)]);
    }
}
