//! The tables that OTLP profiles refer to, each entry once.

use super::proto::{
    AnyValue, Attribute, AttributeValue, Dictionary, FunctionEntry, OtlpLine, OtlpLink,
    OtlpLocation, OtlpMapping, OtlpStack,
};
use crate::export::code::CodeRange;
use aiprof_model::visible;
use rustc_hash::FxHashMap;
use std::hash::Hash;

/// Most entries of a table: places are of 32 bits, and signed.
const MOST: usize = i32::MAX as usize;

/// OtlpTables under construction. What finds no room gets the place of the empty entry.
#[derive(Debug)]
pub(super) struct OtlpTables {
    out: Dictionary,
    strings: FxHashMap<String, i32>,
    functions: FxHashMap<FunctionEntry, i32>,
    attributes: FxHashMap<Attribute, i32>,
    stacks: FxHashMap<OtlpStack, i32>,
}

impl OtlpTables {
    /// OtlpTables that have their empty entries.
    pub(super) fn new() -> Self {
        let empty_link = OtlpLink {
            trace_id: vec![0; 16],
            span_id: vec![0; 8],
        };
        Self {
            out: Dictionary {
                mapping_table: vec![OtlpMapping::default()],
                location_table: vec![OtlpLocation::default()],
                function_table: vec![FunctionEntry::default()],
                link_table: vec![empty_link],
                string_table: vec![String::new()],
                attribute_table: vec![Attribute::default()],
                stack_table: vec![OtlpStack::default()],
            },
            strings: FxHashMap::from_iter([(String::new(), 0)]),
            functions: FxHashMap::from_iter([(FunctionEntry::default(), 0)]),
            attributes: FxHashMap::default(),
            stacks: FxHashMap::from_iter([(OtlpStack::default(), 0)]),
        }
    }

    pub(super) fn finish(self) -> Dictionary {
        self.out
    }

    pub(super) fn string(&mut self, text: &str) -> i32 {
        if let Some(&known) = self.strings.get(text) {
            return known;
        }
        let at = push(&mut self.out.string_table, shown(text));
        self.strings.insert(text.to_owned(), at);
        at
    }

    pub(super) fn text(&mut self, key: &str, value: &str) -> i32 {
        self.attribute(key, AttributeValue::Text(shown(value)), "")
    }

    pub(super) fn number(&mut self, key: &str, value: u64, unit: &str) -> i32 {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        self.attribute(key, AttributeValue::Number(value), unit)
    }

    fn attribute(&mut self, key: &str, value: AttributeValue, unit: &str) -> i32 {
        let new = Attribute {
            key_strindex: self.string(key),
            value: Some(AnyValue::from(value)),
            unit_strindex: self.string(unit),
        };
        intern(&mut self.out.attribute_table, &mut self.attributes, new)
    }

    pub(super) fn function(&mut self, name: &str, file: &str) -> i32 {
        let new = FunctionEntry {
            name_strindex: self.string(name),
            filename_strindex: self.string(file),
        };
        intern(&mut self.out.function_table, &mut self.functions, new)
    }

    pub(super) fn stack(&mut self, location_indices: Vec<i32>) -> i32 {
        let new = OtlpStack { location_indices };
        intern(&mut self.out.stack_table, &mut self.stacks, new)
    }

    /// Adds a binary or a device; call it once for each.
    pub(super) fn mapping(&mut self, range: &CodeRange) -> i32 {
        // The key of OpenTelemetry's semantic conventions.
        let id = range
            .build_id
            .map(|id| self.text("process.executable.build_id.gnu", &id.to_string()));
        let new = OtlpMapping {
            memory_start: 0,
            memory_limit: range.limit,
            filename_strindex: self.string(&range.name),
            attribute_indices: id.into_iter().collect(),
        };
        push(&mut self.out.mapping_table, new)
    }

    /// Adds a code address; call it once for each.
    pub(super) fn location(
        &mut self,
        mapping_index: i32,
        address: u64,
        lines: Vec<OtlpLine>,
        kind: &str,
    ) -> i32 {
        let kind = (!kind.is_empty()).then(|| self.text("profile.frame.type", kind));
        let new = OtlpLocation {
            mapping_index,
            address,
            lines,
            attribute_indices: kind.into_iter().collect(),
        };
        push(&mut self.out.location_table, new)
    }
}

/// A text of others as backends may show it.
pub(super) fn shown(text: &str) -> String {
    match text.contains(visible::is_unsafe) {
        true => visible::one_line(text),
        false => text.to_owned(),
    }
}

/// The place of an entry, which is added if it is new.
fn intern<T: Clone + Eq + Hash>(
    table: &mut Vec<T>,
    known: &mut FxHashMap<T, i32>,
    entry: T,
) -> i32 {
    if let Some(&at) = known.get(&entry) {
        return at;
    }
    let at = push(table, entry.clone());
    known.insert(entry, at);
    at
}

fn push<T>(table: &mut Vec<T>, entry: T) -> i32 {
    let at = table.len();
    if at >= MOST {
        return 0;
    }
    table.push(entry);
    i32::try_from(at).unwrap_or(0)
}
