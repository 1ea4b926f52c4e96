//! The product's source, read with syn: which items are visible, and where their names
//! stand.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use syn::visit::Visit as _;
use syn::{Attribute, ImplItem, Item, Visibility};

use super::words::words_of;

/// An item that other files may name.
#[derive(Debug)]
pub(crate) struct VisibleItem {
    pub(crate) name: String,
    pub(crate) file: PathBuf,
    pub(crate) line: usize,
    /// Other crates may name it, too.
    pub(crate) is_public: bool,
    /// What its signature, visible fields or variants name. Who uses the item uses
    /// those types, maybe without naming them.
    pub(crate) interface: BTreeSet<String>,
}

impl std::fmt::Display for VisibleItem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{} {}", self.file.display(), self.line, self.name)
    }
}

/// The source of one crate.
#[derive(Debug, Default)]
pub(crate) struct CrateSource {
    /// Functions, types, constants and methods, without those for tests.
    pub(crate) items: Vec<VisibleItem>,
    /// Names of all types and traits, visible or not.
    pub(crate) types: Vec<String>,
    /// The words of each file, without its tests.
    pub(crate) words: BTreeMap<PathBuf, BTreeSet<String>>,
    /// The words of tests, by their files.
    pub(crate) test_words: BTreeMap<PathBuf, BTreeSet<String>>,
}

impl CrateSource {
    /// Reads a crate from its root file on, module by module. Items are named by their
    /// files below `base`.
    pub(crate) fn read(base: &Path, root_file: &str) -> anyhow::Result<Self> {
        let mut source = Self::default();
        let mut files = vec![(base.join(root_file), false)];
        while let Some((path, is_test)) = files.pop() {
            let text =
                std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let parsed = syn::parse_file(&text).with_context(|| path.display().to_string())?;
            let mut reader = FileReader {
                is_test,
                file: path.strip_prefix(base)?.to_owned(),
                children: folder_of(&path),
                path,
                source: &mut source,
                words: BTreeSet::new(),
                tests: BTreeSet::new(),
                modules: Vec::new(),
            };
            parsed.items.iter().for_each(|item| reader.item(item));
            let FileReader {
                file,
                words,
                mut tests,
                modules,
                ..
            } = reader;
            files.extend(modules);
            match is_test {
                true => tests.extend(words),
                false => drop(source.words.insert(file.clone(), words)),
            }
            source.test_words.insert(file, tests);
        }
        Ok(source)
    }
}

/// Where the modules that a file declares lie.
pub(crate) fn folder_of(file: &Path) -> PathBuf {
    let is_root = |stem| ["lib", "main", "mod"].iter().any(|own| stem == *own);
    match file.file_stem() {
        Some(stem) if !is_root(stem) => file.with_file_name(stem),
        _ => file.parent().unwrap_or(Path::new("")).to_owned(),
    }
}

/// Reads one file.
struct FileReader<'a> {
    is_test: bool,
    path: PathBuf,
    file: PathBuf,
    children: PathBuf,
    source: &'a mut CrateSource,
    words: BTreeSet<String>,
    /// The words of tests within the file.
    tests: BTreeSet<String>,
    /// Files of modules, and whether they are for tests only.
    modules: Vec<(PathBuf, bool)>,
}

impl FileReader<'_> {
    fn item(&mut self, item: &Item) {
        if let Item::Mod(module) = item {
            return self.module(module);
        }
        if is_for_tests(attributes(item)) {
            self.tests.extend(words_of(|words| words.visit_item(item)));
            return;
        }
        match item {
            // A re-export is the item, not a use of it.
            Item::Use(import) if !matches!(import.vis, Visibility::Inherited) => {}
            Item::Impl(of) => self.methods(of),
            _ => {
                self.words.extend(words_of(|words| words.visit_item(item)));
                if matches!(
                    item,
                    Item::Struct(_) | Item::Enum(_) | Item::Trait(_) | Item::Type(_)
                ) && let Some((_, name)) = named(item)
                    && !self.is_test
                {
                    self.source.types.push(name.to_string());
                }
                if let Some((vis, name)) = named(item) {
                    self.found(vis, name, words_of(|words| words.interface(item)));
                }
            }
        }
    }

    fn module(&mut self, module: &syn::ItemMod) {
        let is_test = self.is_test || is_for_tests(&module.attrs);
        match &module.content {
            Some(_) if is_test => self
                .tests
                .extend(words_of(|words| words.visit_item_mod(module))),
            Some((_, items)) => items.iter().for_each(|item| self.item(item)),
            None => {
                let file = self.file_of(module);
                self.modules.push((file, is_test));
            }
        }
    }

    fn file_of(&self, module: &syn::ItemMod) -> PathBuf {
        let name = module.ident.to_string();
        let nested = self.children.join(&name).join("mod.rs");
        match module.attrs.iter().find_map(path_attribute) {
            Some(path) => self.path.with_file_name(path),
            None if nested.is_file() => nested,
            None => self.children.join(format!("{name}.rs")),
        }
    }

    fn methods(&mut self, of: &syn::ItemImpl) {
        let head = words_of(|words| {
            words.visit_generics(&of.generics);
            words.visit_type(&of.self_ty);
            if let Some((_, path, _)) = &of.trait_ {
                words.visit_path(path);
            }
        });
        self.words.extend(head);
        for item in &of.items {
            let (attrs, vis, name) = match item {
                ImplItem::Fn(method) => (&*method.attrs, &method.vis, &method.sig.ident),
                ImplItem::Const(value) => (&*value.attrs, &value.vis, &value.ident),
                _ => continue,
            };
            if is_for_tests(attrs) {
                self.tests
                    .extend(words_of(|words| words.visit_impl_item(item)));
                continue;
            }
            self.words
                .extend(words_of(|words| words.visit_impl_item(item)));
            if of.trait_.is_none() {
                let interface = words_of(|words| match item {
                    ImplItem::Fn(method) => words.visit_signature(&method.sig),
                    other => words.visit_impl_item(other),
                });
                self.found(vis, name, interface);
            }
        }
    }

    fn found(&mut self, vis: &Visibility, name: &syn::Ident, mut interface: BTreeSet<String>) {
        if self.is_test || matches!(vis, Visibility::Inherited) {
            return;
        }
        let text = name.to_string();
        interface.remove(&text);
        self.source.items.push(VisibleItem {
            file: self.file.clone(),
            line: name.span().start().line,
            is_public: matches!(vis, Visibility::Public(_)),
            name: text,
            interface,
        });
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(i) => &i.attrs,
        Item::Enum(i) => &i.attrs,
        Item::Fn(i) => &i.attrs,
        Item::Impl(i) => &i.attrs,
        Item::Static(i) => &i.attrs,
        Item::Struct(i) => &i.attrs,
        Item::Trait(i) => &i.attrs,
        Item::Type(i) => &i.attrs,
        Item::Use(i) => &i.attrs,
        _ => &[],
    }
}

fn named(item: &Item) -> Option<(&Visibility, &syn::Ident)> {
    Some(match item {
        Item::Const(i) => (&i.vis, &i.ident),
        Item::Enum(i) => (&i.vis, &i.ident),
        Item::Fn(i) => (&i.vis, &i.sig.ident),
        Item::Static(i) => (&i.vis, &i.ident),
        Item::Struct(i) => (&i.vis, &i.ident),
        Item::Trait(i) => (&i.vis, &i.ident),
        Item::Type(i) => (&i.vis, &i.ident),
        _ => return None,
    })
}

/// Whether an item is compiled for tests of this crate only, or for fuzz targets.
fn is_for_tests(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attr| {
        let list = attr.meta.require_list();
        let condition = list.map(|list| list.tokens.to_string());
        attr.path().is_ident("cfg")
            && condition.is_ok_and(|text| text.contains("test") && !text.contains("not"))
    })
}

fn path_attribute(attr: &Attribute) -> Option<String> {
    let syn::Meta::NameValue(pair) = &attr.meta else {
        return None;
    };
    match &pair.value {
        syn::Expr::Lit(syn::ExprLit {
            lit: syn::Lit::Str(path),
            ..
        }) if attr.path().is_ident("path") => Some(path.value()),
        _ => None,
    }
}
