//! `cargo xtask size`: how much code the product has, and how much of it a reader must hold at
//! once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use lexopt::prelude::*;

use crate::proc::root;
use crate::words::lexer::{Kind, Language, Token, tokens};

pub(crate) const HELP: &str = "
Counts lines of code of each crate of the product. Tests, comments, blank lines and testkits
are left out. Then lists files, types and names that are larger or more common than wanted.

  --root DIR   count another checkout
";

/// Most lines of a file, with comments and tests.
const MAX_FILE: usize = 700;
/// Most fields of a type with methods.
const MAX_FIELDS: usize = 16;
/// Most methods of a type.
const MAX_METHODS: usize = 30;
/// Most types that share a name.
const MAX_SHARED: usize = 2;
/// Derived for what is read or written, or for arguments: its fields are data.
const DATA: [&str; 5] = ["Args", "Deserialize", "Message", "Parser", "Serialize"];

pub(crate) fn main(args: Vec<String>) -> Result<ExitCode> {
    let mut args = lexopt::Parser::from_args(args);
    let mut folder = root();
    while let Some(arg) = args.next()? {
        match arg {
            Long("root") => folder = args.value()?.into(),
            _ => bail!(arg.unexpected()),
        }
    }
    let mut product = Product::default();
    for (name, source) in crates(&folder)? {
        product.read_crate(&name, &source)?;
    }
    product.print();
    Ok(ExitCode::SUCCESS)
}

/// The crates of the product and their folders of source.
fn crates(root: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut found = vec![
        ("aiprof".to_owned(), root.join("profiler/src")),
        ("common".to_owned(), root.join("profiler-common/src")),
        ("ebpf".to_owned(), root.join("profiler-ebpf/src")),
    ];
    for (parent, prefix) in [("profiler/crates", ""), ("fleet", "fleet/")] {
        let parent = root.join(parent);
        let entries = fs::read_dir(&parent).with_context(|| parent.display().to_string())?;
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name != "testkit" && path.join("src").is_dir() {
                found.push((format!("{prefix}{name}"), path.join("src")));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// A type of the product.
#[derive(Default)]
struct Type {
    fields: usize,
    methods: usize,
    /// A method has `self`.
    has_behaviour: bool,
    is_data: bool,
}

/// What was counted.
#[derive(Default)]
struct Product {
    /// Lines of code by crate.
    lines: BTreeMap<String, usize>,
    /// Files with all their lines.
    files: BTreeMap<String, usize>,
    /// By crate and name.
    types: BTreeMap<(String, String), Type>,
    /// How often each name is that of a type.
    names: BTreeMap<String, usize>,
}

impl Product {
    fn read_crate(&mut self, name: &str, source: &Path) -> Result<()> {
        let mut folders = vec![source.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder)? {
                let path = entry?.path();
                let file = path.file_name().unwrap_or_default().to_string_lossy();
                if is_of_tests(&file) {
                    continue;
                }
                if path.is_dir() {
                    folders.push(path);
                } else if file.ends_with(".rs") {
                    let text = fs::read_to_string(&path)?;
                    let short = path.strip_prefix(source)?.display();
                    self.files
                        .insert(format!("{name}/{short}"), text.lines().count());
                    self.read_file(name, &text);
                }
            }
        }
        Ok(())
    }

    fn read_file(&mut self, name: &str, text: &str) {
        let all = tokens(text, Language::Rust);
        let is_comment =
            |t: &&Token<'_>| !matches!(t.kind, Kind::Comment | Kind::Doc | Kind::InnerDoc);
        let code: Vec<Token<'_>> = all.iter().filter(is_comment).copied().collect();
        let code = without_tests(&code);
        let mut lines = BTreeSet::new();
        for token in &code {
            let more = token.text.matches('\n').count();
            lines.extend(token.line..=token.line + more);
        }
        *self.lines.entry(name.to_owned()).or_default() += lines.len();
        self.read_types(name, &code);
    }

    fn read_types(&mut self, name: &str, code: &[Token<'_>]) {
        let mut is_data = false;
        for at in 0..code.len() {
            let rest = &code[at..];
            if rest[0].is_word("derive") {
                let end = rest.iter().position(|t| t.is_sign(b')'));
                let derived = &rest[..end.unwrap_or(0)];
                is_data |= derived.iter().any(|t| DATA.contains(&t.text));
            } else if ["struct", "enum", "trait"]
                .iter()
                .any(|w| rest[0].is_word(w))
            {
                let Some(own) = rest.get(1).filter(|t| t.kind == Kind::Word) else {
                    continue;
                };
                *self.names.entry(own.text.to_owned()).or_default() += 1;
                let fields = match rest[0].is_word("struct") {
                    true => fields(body(rest)),
                    false => 0,
                };
                let key = (name.to_owned(), own.text.to_owned());
                let known = self.types.entry(key).or_default();
                known.fields = known.fields.max(fields);
                known.is_data |= std::mem::take(&mut is_data);
            } else if rest[0].is_word("impl") && (at == 0 || !code[at - 1].is_word("fn")) {
                self.read_impl(name, rest);
            }
        }
    }

    /// `rest` begins with `impl`. Methods of traits are not counted.
    fn read_impl(&mut self, name: &str, rest: &[Token<'_>]) {
        let Some(open) = rest.iter().position(|t| t.is_sign(b'{') || t.is_sign(b';')) else {
            return;
        };
        let head = without_generics(&rest[1..open]);
        if head.iter().any(|t| t.is_word("for")) {
            return;
        }
        let Some(own) = head.iter().rfind(|t| t.kind == Kind::Word) else {
            return;
        };
        let body = body(rest);
        let mut depth = 0;
        let (mut methods, mut with_self) = (0, false);
        for (at, token) in body.iter().enumerate() {
            match token.kind {
                Kind::Sign(b'{' | b'(' | b'[') => depth += 1,
                Kind::Sign(b'}' | b')' | b']') => depth -= 1,
                _ if depth == 0 && token.is_word("fn") => {
                    methods += 1;
                    let head = body[at..].iter().take_while(|t| !t.is_sign(b'{'));
                    with_self |= head.into_iter().any(|t| t.is_word("self"));
                }
                _ => {}
            }
        }
        let key = (name.to_owned(), own.text.to_owned());
        let known = self.types.entry(key).or_default();
        known.methods += methods;
        known.has_behaviour |= with_self;
    }

    fn print(&self) {
        println!("lines of code");
        for (name, lines) in &self.lines {
            println!("  {lines:>7}  {name}");
        }
        println!("  {:>7}  in all", self.lines.values().sum::<usize>());
        println!("\nfiles of more than {MAX_FILE} lines");
        list(self.files.iter().filter(|(_, lines)| **lines > MAX_FILE));
        println!("\ntypes with methods and more than {MAX_FIELDS} fields");
        let large = self
            .types
            .iter()
            .filter(|(_, t)| t.has_behaviour && !t.is_data);
        let large = large.map(|((name, own), t)| (format!("{name}: {own}"), t.fields));
        let large: Vec<_> = large.filter(|(_, fields)| *fields > MAX_FIELDS).collect();
        list(large.iter().map(|(name, fields)| (name, fields)));
        println!("\ntypes with more than {MAX_METHODS} methods");
        let many = self.types.iter();
        let many = many.map(|((name, own), t)| (format!("{name}: {own}"), t.methods));
        let many: Vec<_> = many.filter(|(_, methods)| *methods > MAX_METHODS).collect();
        list(many.iter().map(|(name, methods)| (name, methods)));
        println!("\nnames that more than {MAX_SHARED} types share");
        list(self.names.iter().filter(|(_, count)| **count > MAX_SHARED));
    }
}

fn list<'a>(entries: impl Iterator<Item = (&'a String, &'a usize)>) {
    let mut entries: Vec<_> = entries.collect();
    entries.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    for (name, count) in &entries {
        println!("  {count:>7}  {name}");
    }
    println!("  {:>7}  in all", entries.len());
}

/// Whether a file or folder is compiled for tests only.
fn is_of_tests(name: &str) -> bool {
    let name = name.trim_end_matches(".rs");
    name.ends_with("tests")
        || name.starts_with("tests_")
        || ["golden", "script", "synthetic", "testing"].contains(&name)
}

/// Code without the items behind `#[cfg(test)]` and `#[cfg(any(test, feature = "testing"))]`.
fn without_tests<'s>(code: &[Token<'s>]) -> Vec<Token<'s>> {
    let mut kept = Vec::with_capacity(code.len());
    let mut at = 0;
    while let Some(token) = code.get(at) {
        let rest = &code[at..];
        if token.is_sign(b'#') && is_cfg_test(rest) {
            let mut depth = 0;
            // The attribute itself, others, and the item up to its end.
            let end = rest.iter().position(|t| {
                match t.kind {
                    Kind::Sign(b'{' | b'(' | b'[') => depth += 1,
                    Kind::Sign(b'}' | b')' | b']') => depth -= 1,
                    _ => {}
                }
                depth == 0 && (t.is_sign(b'}') || t.is_sign(b';') || t.is_sign(b','))
            });
            at += end.map_or(rest.len(), |end| end + 1);
            continue;
        }
        kept.push(*token);
        at += 1;
    }
    kept
}

fn is_cfg_test(rest: &[Token<'_>]) -> bool {
    let end = rest.iter().position(|t| t.is_sign(b']')).unwrap_or(0);
    let inner = &rest[..end];
    inner.get(2).is_some_and(|t| t.is_word("cfg"))
        && inner.iter().any(|t| t.is_word("test"))
        && !inner.iter().any(|t| t.is_word("not"))
}

/// What stands between the first `{` and its `}`; nothing if a `;` comes before.
fn body<'t, 's>(code: &'t [Token<'s>]) -> &'t [Token<'s>] {
    let open = code.iter().position(|t| t.is_sign(b'{') || t.is_sign(b';'));
    let Some(open) = open.filter(|open| code[*open].is_sign(b'{')) else {
        return &[];
    };
    let mut depth = 0;
    let end = code[open..].iter().position(|t| {
        match t.kind {
            Kind::Sign(b'{') => depth += 1,
            Kind::Sign(b'}') => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    end.map_or(&[], |end| &code[open + 1..open + end])
}

/// The fields of a struct: each has one `:` that is not of a path and not inside of its type.
fn fields(body: &[Token<'_>]) -> usize {
    let mut depth = 0;
    let mut count = 0;
    for (at, token) in body.iter().enumerate() {
        match token.kind {
            Kind::Sign(b'{' | b'(' | b'[' | b'<') => depth += 1,
            Kind::Sign(b'}' | b')' | b']') => depth -= 1,
            // The end of an arrow is no end of generics.
            Kind::Sign(b'>') if at > 0 && !body[at - 1].is_sign(b'-') => depth -= 1,
            Kind::Sign(b':') if depth == 0 => {
                let is_path = body.get(at + 1).is_some_and(|t| t.is_sign(b':'))
                    || at > 0 && body[at - 1].is_sign(b':');
                count += usize::from(!is_path);
            }
            _ => {}
        }
    }
    count
}

/// The head of an `impl` without what is between `<` and `>`, and without its conditions.
fn without_generics<'s>(head: &[Token<'s>]) -> Vec<Token<'s>> {
    let mut depth = 0;
    let mut kept = Vec::new();
    for token in head {
        match token.kind {
            Kind::Sign(b'<') => depth += 1,
            Kind::Sign(b'>') => depth -= 1,
            _ if depth == 0 && token.is_word("where") => break,
            _ if depth == 0 => kept.push(*token),
            _ => {}
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_fields_methods_and_names_are_counted() {
        let text = "//! Text.\n\n/// A type.\npub struct Big<T> {\n    /// One.\n    a: u32,\n    \
                    b: std::collections::BTreeMap<u8, fn(u8) -> u8>, c: T,\n}\n\nimpl<T: Copy> \
                    Big<T> {\n    fn of(c: T) -> Self { todo(c) }\n    fn get(&self) -> u32 { self.a \
                    }\n}\n\nimpl Clone for Big<u8> {\n    fn clone(&self) -> Self { todo() }\n}\n\n\
                    #[cfg(test)]\nmod tests {\n    struct Small;\n}\n";
        let mut product = Product::default();
        product.read_file("one", text);
        assert_eq!(product.lines["one"], 11);
        let big = &product.types[&("one".to_owned(), "Big".to_owned())];
        assert_eq!((big.fields, big.methods, big.has_behaviour), (3, 2, true));
        assert_eq!(product.names.keys().collect::<Vec<_>>(), ["Big"]);
    }

    #[test]
    fn data_is_no_behaviour() {
        let mut product = Product::default();
        product.read_file("one", "#[derive(Debug, Serialize)]\nstruct Row { a: u8 }\n");
        assert!(product.types[&("one".to_owned(), "Row".to_owned())].is_data);
    }
}
