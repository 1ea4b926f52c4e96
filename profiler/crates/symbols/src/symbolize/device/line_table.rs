//! The source at each instruction of one piece of code.

use super::names::{NumberedTexts, TextId};
use std::collections::BTreeSet;

/// A row: holds from its offset to the next row's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LineRow {
    pub(super) offset: u32,
    /// [`TextId::NONE`]: nothing is known from here on.
    pub(super) file: TextId,
    /// From 1; 0 for code that belongs to no line.
    pub(super) line: u32,
    /// From 1, 0 if not known.
    pub(super) column: u32,
}

/// A function that code belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct CodeScope {
    /// The function that this one is inlined into.
    pub(super) parent: Option<u32>,
    pub(super) name: TextId,
    /// Where the call stood, if inlined.
    pub(super) call: Position,
    /// How many functions are around this one.
    pub(super) depth: u32,
    /// Where the function itself stands, for telling it from its neighbours.
    pub(super) declared: Position,
    /// Whether it has ranges of its own for its code.
    pub(super) placed: bool,
}

/// A place in a source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) file: TextId,
    pub(super) line: u32,
    pub(super) column: u32,
}

impl Position {
    pub(super) const NONE: Self = Self {
        file: TextId::NONE,
        line: 0,
        column: 0,
    };
}

/// Code of a scope.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScopeRange {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) scope: u32,
}

/// One function at an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LineFunction {
    /// [`TextId::NONE`] where no function is described.
    pub(super) name: TextId,
    pub(super) at: Position,
    pub(super) inlined: bool,
}

/// Where each instruction's source is.
#[derive(Clone, Debug, Default)]
pub(super) struct LineTable {
    /// By offset, each offset once.
    rows: Vec<LineRow>,
    scopes: Vec<CodeScope>,
    /// The innermost scope from an offset on, by offset.
    innermost: Vec<(u32, Option<u32>)>,
    /// Inlined functions without ranges, as (parent scope, child).
    unplaced: Vec<(u32, u32)>,
    pub(super) texts: NumberedTexts,
}

impl LineTable {
    pub(super) fn new(
        mut rows: Vec<LineRow>,
        scopes: Vec<CodeScope>,
        ranges: &[ScopeRange],
        texts: NumberedTexts,
    ) -> Self {
        sort_rows(&mut rows);
        let unplaced = scopes.iter().enumerate().filter(|(_, s)| !s.placed);
        let mut unplaced: Vec<_> = unplaced
            .filter_map(|(i, s)| Some((s.parent?, u32::try_from(i).ok()?)))
            .collect();
        unplaced.sort_unstable();
        Self {
            rows,
            innermost: flatten(&scopes, ranges),
            scopes,
            unplaced,
            texts,
        }
    }

    /// Whether nothing is known of any instruction.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The functions at an instruction, outermost first; empty if not known.
    pub(super) fn find(&self, offset: u32) -> Vec<LineFunction> {
        let after = self.rows.partition_point(|r| r.offset <= offset);
        let row = after.checked_sub(1).and_then(|i| self.rows.get(i));
        let Some(row) = row.filter(|r| r.file != TextId::NONE) else {
            return Vec::new();
        };
        let mut at = Position {
            file: row.file,
            line: row.line,
            column: row.column,
        };
        let mut found = Vec::new();
        let mut next = self.scope(offset, at);
        if let Some(file) = next.and_then(|scope| self.without_line(scope, at)) {
            at = Position {
                file,
                ..Position::NONE
            };
        }
        while let Some(scope) = next.and_then(|i| self.scopes.get(i as usize)) {
            found.push(LineFunction {
                name: scope.name,
                at,
                inlined: scope.parent.is_some(),
            });
            at = scope.call;
            // A parent is always an earlier scope, so this ends.
            next = scope.parent;
        }
        if found.is_empty() {
            found.push(LineFunction {
                name: TextId::NONE,
                at,
                inlined: false,
            });
        }
        found.reverse();
        found
    }

    /// The innermost function at an instruction.
    ///
    /// IGC leaves out the ranges of functions all of whose instructions have
    /// been merged with others; its rows still name their lines. Such a function
    /// is taken where the line cannot be its caller's: it stands before the
    /// caller begins or in another file, and behind the beginning of just that
    /// function.
    fn scope(&self, offset: u32, at: Position) -> Option<u32> {
        let (_, mut scope) = self.innermost_at(offset)?;
        for _ in 0..MAX_UNPLACED_DEPTH {
            if self.may_hold(scope, at) {
                break;
            }
            let first = self.unplaced.partition_point(|(p, _)| *p < scope);
            let children = self.unplaced.iter().skip(first);
            let mut best: Option<(u32, u32)> = None;
            for (_, child) in children.take_while(|(p, _)| *p == scope).take(MAX_UNPLACED) {
                let declared = self.scopes.get(*child as usize).map(|s| s.declared);
                if let Some(d) = declared.filter(|d| d.file == at.file && d.line <= at.line)
                    && best.is_none_or(|(line, _)| d.line > line)
                {
                    best = Some((d.line, *child));
                }
            }
            match best {
                Some((_, child)) => scope = child,
                None => break,
            }
        }
        Some(scope)
    }

    /// The file of a function if a line is its caller's: IGC gives instructions
    /// without a line of their own the one before.
    fn without_line(&self, scope: u32, at: Position) -> Option<TextId> {
        if self.may_hold(scope, at) {
            return None;
        }
        let own = self.scopes.get(scope as usize)?;
        let mut caller = own.parent;
        while let Some(scope) = caller.and_then(|i| self.scopes.get(i as usize)) {
            let begin = scope.declared;
            if begin.file == at.file && (1..=at.line).contains(&begin.line) {
                return Some(own.declared.file);
            }
            caller = scope.parent;
        }
        None
    }

    /// Whether a line may be of a function, by where the function begins.
    fn may_hold(&self, scope: u32, at: Position) -> bool {
        let declared = self.scopes.get(scope as usize).map(|s| s.declared);
        declared.is_none_or(|d| {
            d.file == TextId::NONE || d.line == 0 || at.line == 0 || {
                d.file == at.file && d.line <= at.line
            }
        })
    }

    /// Drops the lines at a kernel's `entry` if the table assigns them to a function
    /// that the kernel calls.
    ///
    /// IGC 1.0.12504 does so for kernels that call functions: their own lines are
    /// missing, and the first line of the function stands in their place.
    pub(super) fn distrust(&mut self, entry: u32, kernel: &str) {
        let is_kernel = |s: &CodeScope| s.parent.is_none() && self.texts.get(s.name) == kernel;
        let Some((start, scope)) = self.innermost_at(entry) else {
            return;
        };
        let wrong = self.scopes.get(scope as usize);
        let wrong = wrong.is_some_and(|s| s.parent.is_none() && !is_kernel(s));
        // Where the kernel goes by another name there, nothing is known to be wrong.
        if !wrong || !self.scopes.iter().any(is_kernel) {
            return;
        }
        for row in &mut self.rows {
            if (start..=entry).contains(&row.offset) {
                row.file = TextId::NONE;
            }
        }
    }

    /// The innermost scope at an offset, and from where on it is so.
    fn innermost_at(&self, offset: u32) -> Option<(u32, u32)> {
        let after = self.innermost.partition_point(|(o, _)| *o <= offset);
        let (start, scope) = self.innermost.get(after.checked_sub(1)?)?;
        Some((*start, (*scope)?))
    }

    /// Rows and scopes, for the books.
    pub(super) fn memory(&self) -> usize {
        self.rows.capacity() * size_of::<LineRow>()
            + self.scopes.capacity() * size_of::<CodeScope>()
            + self.innermost.capacity() * size_of::<(u32, Option<u32>)>()
            + self.unplaced.capacity() * size_of::<(u32, u32)>()
    }

    /// The file of the first row that has one.
    pub(super) fn first_file(&self) -> Option<&str> {
        let row = self
            .rows
            .iter()
            .find(|r| r.file != TextId::NONE && r.line != 0)?;
        Some(self.texts.get(row.file))
    }
}

/// Most functions without ranges looked at in one function.
const MAX_UNPLACED: usize = 64;
/// Most functions without ranges inlined into each other.
const MAX_UNPLACED_DEPTH: usize = 16;

/// Sorts rows by offset and leaves the last of each offset. The end of a sequence
/// gives way to the beginning of another one.
fn sort_rows(rows: &mut Vec<LineRow>) {
    rows.sort_by_key(|r| (r.offset, r.file != TextId::NONE));
    rows.dedup_by(|next, kept| {
        let same = next.offset == kept.offset;
        if same {
            *kept = *next;
        }
        same
    });
    rows.dedup_by(|next, kept| {
        (next.file, next.line, next.column) == (kept.file, kept.line, kept.column)
    });
    rows.shrink_to_fit();
}

/// The deepest scope from each offset on, where it changes.
fn flatten(scopes: &[CodeScope], ranges: &[ScopeRange]) -> Vec<(u32, Option<u32>)> {
    let depth = |scope: u32| scopes.get(scope as usize).map_or(0, |s| s.depth);
    let mut edges: Vec<(u32, bool, u32, usize)> = Vec::with_capacity(ranges.len() * 2);
    for (i, range) in ranges.iter().enumerate() {
        if range.start < range.end {
            edges.push((range.start, true, range.scope, i));
            edges.push((range.end, false, range.scope, i));
        }
    }
    edges.sort_unstable();
    let mut open = BTreeSet::new();
    let mut out: Vec<(u32, Option<u32>)> = Vec::new();
    for group in edges.chunk_by(|a, b| a.0 == b.0) {
        for &(_, begins, scope, i) in group {
            // Where functions overlap at one depth, the first described counts.
            let key = (depth(scope), std::cmp::Reverse(scope), i);
            if begins {
                open.insert(key);
            } else {
                open.remove(&key);
            }
        }
        let offset = group.first().map_or(0, |edge| edge.0);
        let innermost = open.last().map(|(_, scope, _)| scope.0);
        if out.last().map(|(_, scope)| *scope) != Some(innermost) {
            out.push((offset, innermost));
        }
    }
    out.shrink_to_fit();
    out
}
