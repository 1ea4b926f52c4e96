//! What kernels are for, by their names: the built-in table and those that users add.
//!
//! A table has rows, each a class and patterns of functions' names. Names are compared without
//! template arguments and parameters, because these only show the data that a kernel works on.

use crate::demangle::demangle;
use crate::probes::reader::{TableReader, read};
use crate::probes::{TableError, glob};
use rustc_hash::FxHashMap;
use std::sync::{Arc, LazyLock};

/// What a kernel is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum KernelClass {
    /// It computes: every kernel that no table names.
    #[default]
    Compute,
    /// It is part of a collective: it moves data among devices, or waits for them.
    Communication,
    /// It is part of a message from one device to another.
    Message,
    /// It copies memory.
    Copy,
    /// It fills memory.
    MemorySet,
}

impl KernelClass {
    /// All values, by the names that tables use.
    pub const NAMED: &[(&str, Self)] = &[
        ("compute", Self::Compute),
        ("communication", Self::Communication),
        ("message", Self::Message),
        ("copy", Self::Copy),
        ("memory-set", Self::MemorySet),
    ];

    /// Whether it moves data between devices.
    pub(crate) fn is_communication(self) -> bool {
        matches!(self, Self::Communication | Self::Message)
    }
}

/// The tables in use: the built-in one, and those that were added. Cheap to copy.
#[derive(Clone, Debug)]
pub struct KernelClasses(Arc<PatternIndex>);

/// A pattern of names.
#[derive(Clone, Debug)]
struct Pattern {
    /// In small letters, for a path between colons.
    glob: String,
    class: KernelClass,
}

/// Patterns, and where to look for those that may fit a name.
#[derive(Clone, Debug, Default)]
struct PatternIndex {
    /// The first that fits decides.
    patterns: Vec<Pattern>,
    /// Their numbers by the first letters of the part of a name that they describe.
    by_start: FxHashMap<[u8; START], Vec<usize>>,
    /// Those with a wildcard among these letters.
    others: Vec<usize>,
}

/// Letters that patterns are found by.
const START: usize = 3;
/// Letters and digits that a pattern must have: fewer would fit names by chance.
const LEAST_LETTERS: usize = 3;
/// What surrounds a pattern, so that it begins and ends where a part of a name does.
const BEFORE: &str = "*::";

static BUILT_IN: LazyLock<KernelClasses> = LazyLock::new(|| {
    let mut classes = KernelClasses(Arc::default());
    let text = include_str!("../../../classes/kernels.toml");
    for mistake in classes.add("kernels.toml", text).err().unwrap_or_default() {
        tracing::error!("built-in table: {mistake}");
    }
    classes
});

impl Default for KernelClasses {
    /// The built-in table; a test proves that it has no mistake.
    fn default() -> Self {
        BUILT_IN.clone()
    }
}

impl KernelClasses {
    /// Adds a table, whose rows come before those there are; `source` is the file's name for
    /// messages.
    ///
    /// # Errors
    /// The mistakes, at least one and at most fifty, in the order of the file; nothing is added
    /// then.
    pub fn add(&mut self, source: &str, text: &str) -> Result<(), Vec<TableError>> {
        let rows = read(source, text, |root| root.each("kernel", row))?;
        let mut patterns: Vec<Pattern> = rows.into_iter().flatten().collect();
        patterns.extend_from_slice(&self.0.patterns);
        self.0 = Arc::new(PatternIndex::new(patterns));
        Ok(())
    }

    /// What a kernel of this name is for; the name may be mangled.
    pub fn of(&self, name: &str) -> KernelClass {
        self.0.find(&function_path(name)).unwrap_or_default()
    }
}

impl PatternIndex {
    fn new(patterns: Vec<Pattern>) -> Self {
        let mut index = Self {
            patterns,
            ..Self::default()
        };
        for (number, pattern) in index.patterns.iter().enumerate() {
            let start = pattern.glob.as_bytes().get(BEFORE.len()..);
            match start.and_then(<[u8]>::first_chunk::<START>) {
                Some(start) if !start.contains(&b'*') && !start.contains(&b'?') => {
                    index.by_start.entry(*start).or_default().push(number);
                }
                _ => index.others.push(number),
            }
        }
        index
    }

    /// The class of the first pattern that fits a path.
    fn find(&self, path: &str) -> Option<KernelClass> {
        let starts = path.match_indices("::").filter_map(|(at, colons)| {
            let rest = path.as_bytes().get(at + colons.len()..)?;
            self.by_start.get(rest.first_chunk::<START>()?)
        });
        let fits = |number: &&usize| {
            let pattern = self.patterns.get(**number);
            pattern.is_some_and(|pattern| glob::matches(&pattern.glob, path))
        };
        let first = starts
            .chain([&self.others])
            .filter_map(|numbers| numbers.iter().find(fits))
            .min()?;
        self.patterns.get(*first).map(|pattern| pattern.class)
    }
}

/// The patterns of a row.
fn row(reader: &mut TableReader<'_, '_>) -> Vec<Pattern> {
    reader.required("class");
    let class = reader.choice("class", KernelClass::NAMED, KernelClass::default());
    // For people only: the program whose names these are.
    reader.text("source");
    reader.required("names");
    let mut patterns = Vec::new();
    for (name, at) in reader.names("names") {
        if let Some(message) = refusal(&name) {
            reader.error(at, message);
        }
        patterns.push(Pattern {
            glob: format!("{BEFORE}{}::*", name.to_ascii_lowercase()),
            class,
        });
    }
    patterns
}

/// Why a text is no pattern of names.
fn refusal(name: &str) -> Option<String> {
    let is_known = |c: &char| c.is_ascii_alphanumeric() || "_-$.:*?".contains(*c);
    if let Some(odd) = name.chars().find(|c| !is_known(c)) {
        return Some(format!(
            "`{odd}` cannot be in a name of a function: leave out template arguments and \
             parameters. Letters, digits, `_`, `-`, `$`, `.` and `::` are allowed, `*` for any text and \
             `?` for one character"
        ));
    }
    let letters = name.bytes().filter(u8::is_ascii_alphanumeric).count();
    (letters < LEAST_LETTERS).then(|| {
        format!("a name must have at least {LEAST_LETTERS} letters or digits besides `*` and `?`")
    })
}

/// A kernel's function with its namespaces, in small letters, without return type, template
/// arguments, parameters and unnamed namespaces: `::a::f::` of `void a::f<int>(float*)`.
fn function_path(name: &str) -> String {
    // Operations of XLA: `%all-reduce.7 = f32[8]{0} all-reduce(...), ...`.
    let operation = name
        .strip_prefix('%')
        .and_then(|name| name.split(" = ").next());
    let name = operation.unwrap_or(name);
    // AMD's descriptors of kernels have this suffix.
    let readable = demangle(name.strip_suffix(".kd").unwrap_or(name));
    let mut plain = String::with_capacity(readable.len());
    let mut depth = 0_usize;
    for letter in readable.chars() {
        match letter {
            '<' | '(' | '[' | '{' => depth += 1,
            '>' | ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ if depth == 0 => plain.push(letter.to_ascii_lowercase()),
            _ => {}
        }
    }
    let mut path = "::".to_owned();
    for part in plain.split("::") {
        let mut words = part
            .trim_end()
            .trim_end_matches(" const")
            .split_whitespace();
        let Some(word) = words.next_back() else {
            continue;
        };
        // What stands before a space is a return type, or `typeinfo name for`.
        if words.next_back().is_some() {
            path.truncate("::".len());
        }
        path.push_str(word);
        path.push_str("::");
    }
    path
}

#[cfg(test)]
mod tests;
