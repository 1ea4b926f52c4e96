//! The words of a piece of source: all names in it, and the words of strings in macros and
//! attributes, which may name variables and functions.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, Visibility};

/// The words that `read` visits.
pub(crate) fn words_of(read: impl FnOnce(&mut Words)) -> BTreeSet<String> {
    let mut words = Words::default();
    read(&mut words);
    words.0
}

/// Collects words.
#[derive(Default)]
pub(crate) struct Words(BTreeSet<String>);

impl Words {
    /// What others see of an item: its signature, visible fields or variants.
    pub(crate) fn interface(&mut self, item: &Item) {
        match item {
            Item::Fn(function) => self.visit_signature(&function.sig),
            Item::Const(value) => self.visit_type(&value.ty),
            Item::Static(value) => self.visit_type(&value.ty),
            Item::Struct(of) => {
                self.visit_generics(&of.generics);
                let is_visible = |f: &&syn::Field| !matches!(f.vis, Visibility::Inherited);
                let visible = of.fields.iter().filter(is_visible);
                visible.for_each(|field| self.visit_type(&field.ty));
            }
            other => self.visit_item(other),
        }
    }

    fn tokens(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(name) => drop(self.0.insert(name.to_string())),
                TokenTree::Literal(literal) => self.text(&literal.to_string()),
                TokenTree::Punct(_) => {}
            }
        }
    }

    fn text(&mut self, text: &str) {
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        self.0.extend(words.map(str::to_owned));
    }
}

impl<'ast> Visit<'ast> for Words {
    fn visit_ident(&mut self, name: &'ast syn::Ident) {
        self.0.insert(name.to_string());
    }

    fn visit_macro(&mut self, of: &'ast syn::Macro) {
        self.visit_path(&of.path);
        self.tokens(of.tokens.clone());
    }

    fn visit_attribute(&mut self, attr: &'ast Attribute) {
        match &attr.meta {
            syn::Meta::List(list) => self.tokens(list.tokens.clone()),
            _ if attr.path().is_ident("doc") => {}
            other => visit::visit_meta(self, other),
        }
    }
}
