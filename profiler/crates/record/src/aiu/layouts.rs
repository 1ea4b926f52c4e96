//! The table of record layouts, `probes/aiupti-layouts.toml`.

use serde::Deserialize;
use std::collections::BTreeMap;
use thiserror::Error;

/// The built-in table.
const BUILTIN: &str = include_str!("../../../../probes/aiupti-layouts.toml");
/// Most bytes of a table.
const MAX_TEXT: usize = 1 << 20;
/// Most layouts of a table.
const MAX_LAYOUTS: usize = 256;
/// Most bytes of a record.
const MAX_RECORD: usize = 4096;

/// Why a table is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LayoutsError {
    /// It is no TOML, or has keys or values that do not belong there.
    #[error("line {line}: {message}")]
    Syntax {
        /// Line of the mistake, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// A layout contradicts itself.
    #[error("layout `{layout}`: {message}")]
    Layout {
        /// Its name.
        layout: String,
        /// What is wrong.
        message: String,
    },
    /// Larger than any table needs to be.
    #[error("the table of layouts is too large (limits: {MAX_TEXT} bytes, {MAX_LAYOUTS} layouts)")]
    TooLarge,
}

/// How much is known about a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LayoutStatus {
    /// Public code shows the offsets.
    Published,
    /// Public code shows the fields only.
    Assumed,
}

/// The kind of a record: its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A phase of a control block: preparing or executing a kernel.
    Compute,
    /// Filling device memory.
    Memset,
    /// An allocation or a release.
    Memory,
    /// A copy.
    Memcpy,
    /// Another copy; no public code shows such a record.
    Memcpy2,
    /// A call of the runtime, by its cbid.
    Runtime,
    /// Not seen in public.
    Driver,
    /// Not seen in public.
    Synchronization,
    /// Not seen in public.
    Event,
    /// Not seen in public.
    Environment,
    /// A hardware metric's value.
    Metric,
}

/// Where a number stands in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NumberSlot {
    pub(super) offset: usize,
    pub(super) width: usize,
}

/// One layout of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordFields {
    pub(super) code: Option<NumberSlot>,
    pub(super) device: Option<NumberSlot>,
    pub(super) context: Option<NumberSlot>,
    pub(super) stream: Option<NumberSlot>,
    pub(super) correlation: Option<NumberSlot>,
    pub(super) start: Option<NumberSlot>,
    pub(super) end: Option<NumberSlot>,
    pub(super) queued: Option<NumberSlot>,
    pub(super) submitted: Option<NumberSlot>,
    pub(super) amount: Option<NumberSlot>,
    pub(super) address: Option<NumberSlot>,
    pub(super) pid: Option<NumberSlot>,
    pub(super) tid: Option<NumberSlot>,
    /// Width is the length of the array.
    pub(super) name: Option<NumberSlot>,
    /// Width is that of all five.
    pub(super) cycles: Option<NumberSlot>,
}

/// A layout of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordLayout {
    /// Its name in the table.
    pub name: String,
    /// The kind of its records.
    pub kind: Kind,
    /// How much is known about it.
    pub status: LayoutStatus,
    /// Bytes from one record to the next.
    pub size: usize,
    pub(super) fields: RecordFields,
}

/// A checked table of layouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layouts {
    /// Kind of each first byte.
    kinds: [Option<Kind>; 256],
    layouts: Vec<RecordLayout>,
    /// Indices into `layouts` by first byte, published ones first.
    by_byte: Vec<Vec<u16>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    kinds: BTreeMap<Kind, u8>,
    #[serde(default)]
    layout: Vec<LayoutEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LayoutEntry {
    name: String,
    kind: Kind,
    status: LayoutStatus,
    size: usize,
    fields: FieldTexts,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldTexts {
    code: Option<String>,
    device: Option<String>,
    context: Option<String>,
    stream: Option<String>,
    correlation: Option<String>,
    start: Option<String>,
    end: Option<String>,
    queued: Option<String>,
    submitted: Option<String>,
    amount: Option<String>,
    address: Option<String>,
    pid: Option<String>,
    tid: Option<String>,
    name: Option<String>,
    cycles: Option<String>,
}

impl Layouts {
    /// The table that aiprof brings.
    ///
    /// # Errors
    /// Never, unless aiprof was built from a damaged table.
    pub fn builtin() -> Result<Self, LayoutsError> {
        Self::parse(BUILTIN)
    }

    /// Reads and checks a table.
    ///
    /// # Errors
    /// Names the line or the layout of the first mistake.
    pub fn parse(text: &str) -> Result<Self, LayoutsError> {
        if text.len() > MAX_TEXT {
            return Err(LayoutsError::TooLarge);
        }
        let file: File = toml::from_str(text).map_err(|error| LayoutsError::Syntax {
            line: line_of(text, error.span().map_or(0, |span| span.start)),
            message: error.message().to_owned(),
        })?;
        if file.layout.len() > MAX_LAYOUTS {
            return Err(LayoutsError::TooLarge);
        }
        let mut table = Self {
            kinds: [None; 256],
            layouts: Vec::new(),
            by_byte: vec![Vec::new(); 256],
        };
        for (kind, byte) in &file.kinds {
            // Zero is what unused memory holds.
            if *byte == 0 || table.kinds[usize::from(*byte)].is_some() {
                return Err(refuse("[kinds]", format!("byte {byte} is 0 or used twice")));
            }
            table.kinds[usize::from(*byte)] = Some(*kind);
        }
        for entry in file.layout {
            table.add(entry, &file.kinds)?;
        }
        Ok(table)
    }

    fn add(&mut self, entry: LayoutEntry, kinds: &BTreeMap<Kind, u8>) -> Result<(), LayoutsError> {
        let name = entry.name.clone();
        let fail = |message: String| Err(refuse(&name, message));
        let Some(byte) = kinds.get(&entry.kind).copied() else {
            return fail("[kinds] has no byte for its kind".to_owned());
        };
        if self.layouts.iter().any(|l| l.name == name) {
            return fail("its name is used twice".to_owned());
        }
        if !(2..=MAX_RECORD).contains(&entry.size) {
            return fail(format!("size must be from 2 to {MAX_RECORD}"));
        }
        let fields = match entry.fields.check(entry.size) {
            Ok(fields) => fields,
            Err(message) => return fail(message),
        };
        let index = self.layouts.len() as u16;
        self.layouts.push(RecordLayout {
            name: entry.name,
            kind: entry.kind,
            status: entry.status,
            size: entry.size,
            fields,
        });
        let of_byte = &mut self.by_byte[usize::from(byte)];
        of_byte.push(index);
        of_byte.sort_by_key(|at| self.layouts[usize::from(*at)].status);
        Ok(())
    }

    /// All layouts, in the order of the table.
    #[must_use]
    pub fn layouts(&self) -> &[RecordLayout] {
        &self.layouts
    }

    /// The kind that a first byte stands for.
    #[must_use]
    pub fn kind(&self, byte: u8) -> Option<Kind> {
        self.kinds[usize::from(byte)]
    }

    /// Indices of the layouts of records that begin with this byte.
    pub(super) fn candidates(&self, byte: u8) -> &[u16] {
        &self.by_byte[usize::from(byte)]
    }

    pub(super) fn get(&self, index: u16) -> Option<&RecordLayout> {
        self.layouts.get(usize::from(index))
    }
}

impl FieldTexts {
    /// Slots within a record of `size` bytes, none over another.
    fn check(&self, size: usize) -> Result<RecordFields, String> {
        let mut taken = vec![(0, 1, "kind")];
        let mut slot = |name: &'static str, text: &Option<String>, form: FieldForm| {
            let Some(text) = text else { return Ok(None) };
            let slot = parse_slot(text, form)
                .ok_or_else(|| format!("{name} = \"{text}\" is not {}", form.wanted()))?;
            let end = slot.offset.saturating_add(slot.width);
            if end > size {
                return Err(format!(
                    "{name} ends at {end}, beyond the record's {size} bytes"
                ));
            }
            if let Some(other) = taken.iter().find(|t| t.0 < end && slot.offset < t.1) {
                return Err(format!("{name} overlaps {}", other.2));
            }
            taken.push((slot.offset, end, name));
            Ok(Some(slot))
        };
        let fields = RecordFields {
            code: slot("code", &self.code, FieldForm::Number)?,
            device: slot("device", &self.device, FieldForm::Number)?,
            context: slot("context", &self.context, FieldForm::Number)?,
            stream: slot("stream", &self.stream, FieldForm::Number)?,
            correlation: slot("correlation", &self.correlation, FieldForm::Number)?,
            start: slot("start", &self.start, FieldForm::Number)?,
            end: slot("end", &self.end, FieldForm::Number)?,
            queued: slot("queued", &self.queued, FieldForm::Number)?,
            submitted: slot("submitted", &self.submitted, FieldForm::Number)?,
            amount: slot("amount", &self.amount, FieldForm::Number)?,
            address: slot("address", &self.address, FieldForm::Number)?,
            pid: slot("pid", &self.pid, FieldForm::Number)?,
            tid: slot("tid", &self.tid, FieldForm::Number)?,
            name: slot("name", &self.name, FieldForm::Text)?,
            cycles: slot("cycles", &self.cycles, FieldForm::Counters)?,
        };
        // Times distinguish a record from other bytes.
        if fields.start.is_none_or(|s| s.width != 8) || fields.end.is_some_and(|s| s.width != 8) {
            return Err("`start` is required, and `start` and `end` must be u64".to_owned());
        }
        Ok(fields)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum FieldForm {
    Number,
    Text,
    Counters,
}

impl FieldForm {
    fn wanted(self) -> &'static str {
        match self {
            Self::Number => "u8@, u16@, u32@ or u64@ followed by an offset",
            Self::Text => "char[N]@ followed by an offset",
            Self::Counters => "u64[5]@ followed by an offset",
        }
    }
}

fn parse_slot(text: &str, form: FieldForm) -> Option<NumberSlot> {
    let (kind, offset) = text.split_once('@')?;
    let offset: usize = offset.parse().ok()?;
    let width = match (form, kind) {
        (FieldForm::Number, "u8") => 1,
        (FieldForm::Number, "u16") => 2,
        (FieldForm::Number, "u32") => 4,
        (FieldForm::Number, "u64") => 8,
        (FieldForm::Counters, "u64[5]") => 40,
        (FieldForm::Text, _) => kind
            .strip_prefix("char[")?
            .strip_suffix(']')?
            .parse()
            .ok()?,
        _ => return None,
    };
    (width > 0).then_some(NumberSlot { offset, width })
}

fn refuse(layout: &str, message: String) -> LayoutsError {
    LayoutsError::Layout {
        layout: layout.to_owned(),
        message,
    }
}

fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().iter().take(at);
    1 + before.filter(|byte| **byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builtin_is_sound() {
        let table = Layouts::builtin().unwrap();
        let published = table
            .layouts()
            .iter()
            .filter(|l| l.status == LayoutStatus::Published);
        let sizes: Vec<_> = published.map(|l| (l.kind, l.size)).collect();
        assert_eq!(sizes, [(Kind::Compute, 192), (Kind::Compute, 232)]);
        assert_eq!(table.kind(6), Some(Kind::Runtime));
        assert_eq!((table.kind(0), table.kind(12)), (None, None));
        assert_eq!(table.candidates(8), &[] as &[u16]);
    }

    const GOOD: &str = "[kinds]\nruntime = 6\n[[layout]]\nname = \"a\"\nkind = \"runtime\"\n\
        status = \"assumed\"\nsize = 24\n[layout.fields]\nstart = \"u64@8\"\n";

    #[test]
    fn mistakes_are_named() {
        assert!(Layouts::parse(GOOD).is_ok());
        let message = |from: &str, to: &str| {
            let text = GOOD.replace(from, to);
            assert_ne!(text, GOOD);
            Layouts::parse(&text).unwrap_err().to_string()
        };
        assert!(message("size = 24", "siez = 24").contains("line 7"));
        assert!(message("\"assumed\"", "\"guessed\"").contains("line 6"));
        assert!(message("runtime = 6", "runtime = 0").contains("byte 0"));
        assert!(message("runtime = 6", "memory = 6").contains("no byte"));
        assert!(message("size = 24", "size = 12").contains("beyond"));
        assert!(message("size = 24", "size = 9999").contains("size must"));
        assert!(message("u64@8", "u64@0").contains("overlaps kind"));
        assert!(message("u64@8", "u32@8").contains("`start`"));
        assert!(message("u64@8", "i64@8").contains("not u8@"));
        assert!(message("start = ", "begin = ").contains("begin"));
        assert!(message("u64@8", "u64@99999999999999999999").contains("not u8@"));
        let twice = format!("{GOOD}{}", &GOOD[GOOD.find("[[").unwrap()..]);
        let error = Layouts::parse(&twice).unwrap_err();
        assert!(error.to_string().contains("twice"));
        assert_eq!(
            Layouts::parse(&"#".repeat(MAX_TEXT + 1)),
            Err(LayoutsError::TooLarge)
        );
    }
}
