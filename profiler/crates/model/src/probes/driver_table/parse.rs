//! From a TOML file to a checked [`DriverTable`].

use super::devices::parse_pci;
use super::field::{self, Field, Place};
use super::{Array, DeviceMatch, DriverTable, Ioctl, Major, Numbering, PciId};
use crate::probes::ResultKind;
use crate::probes::ioctl::{Action, NumberNames};
use crate::probes::reader::{Reader, TableError, Value, cut, is_table_name, read, span_of};
use std::collections::HashMap;
use std::ops::Range;
use toml::de::DeTable;

const TABLE_KEYS: &[&str] = &[
    "name",
    "api",
    "tested",
    "type",
    "whole_number",
    "includes",
    "handlers",
    "device",
    "ioctl",
];
const DEVICE_KEYS: &[&str] = &["major", "misc", "driver", "pci", "file", "with"];
const IOCTL_KEYS: &[&str] = &[
    "name", "number", "struct", "kind", "args", "out", "result", "names", "bits", "array",
    "assumed",
];
const ARRAY_KEYS: &[&str] = &[
    "name", "pointer", "count", "in_place", "struct", "stride", "fields",
];

/// What an ioctl does, by the names that tables use.
const KINDS: [(&str, Action); 17] = [
    ("submit", Action::Submit),
    ("bind", Action::Bind),
    ("unbind", Action::Unbind),
    ("map", Action::Map),
    ("alloc", Action::Alloc),
    ("free", Action::Free),
    ("copy", Action::Copy),
    ("wait", Action::Wait),
    ("event", Action::Event),
    ("queue-create", Action::QueueCreate),
    ("queue-destroy", Action::QueueDestroy),
    ("queue", Action::Queue),
    ("vm-create", Action::VmCreate),
    ("vm-destroy", Action::VmDestroy),
    ("context", Action::Context),
    ("query", Action::Query),
    ("other", Action::Other),
];
const RESULTS: [(&str, ResultKind); 2] =
    [("errno", ResultKind::Errno), ("number", ResultKind::Number)];

/// Reads and checks a table; `source` is the file's name for messages.
///
/// # Errors
/// The mistakes, at least one and at most fifty, in the order of the file.
pub fn parse(source: &str, text: &str) -> Result<DriverTable, Vec<TableError>> {
    read(source, text, |reader, root| table(reader, root, source))
}

fn table(reader: &mut Reader<'_>, root: &DeTable<'_>, source: &str) -> DriverTable {
    reader.known_keys(root, TABLE_KEYS);
    let name = reader.required_text(root, "name", 0..0);
    if !is_table_name(&name) {
        let message = "a table's name may contain only lower-case letters, digits and `-`";
        reader.error(span_of(root, "name"), message.into());
    }
    let numbering = numbering(reader, root);
    let ioctls = reader.each(root, "ioctl", |reader, table, span| {
        ioctl(reader, table, span, numbering)
    });
    let table = DriverTable {
        api: reader.required_text(root, "api", 0..0),
        tested: reader.text(root, "tested"),
        includes: plain_names(reader, root, "includes"),
        handlers: plain_names(reader, root, "handlers"),
        devices: reader.each(root, "device", device),
        source: source.to_owned(),
        name,
        numbering,
        ioctls,
    };
    once(reader, root, &table);
    table
}

fn plain_names(reader: &mut Reader<'_>, root: &DeTable<'_>, key: &str) -> Vec<String> {
    let names = reader.names_if_any(root, key);
    names.into_iter().map(|(name, _)| name).collect()
}

/// Two commands with one number, or one name.
fn once(reader: &mut Reader<'_>, root: &DeTable<'_>, table: &DriverTable) {
    let entries = root.get("ioctl").and_then(|v| v.get_ref().as_array());
    let entries = entries.map_or(&[][..], |entries| entries);
    let (mut numbers, mut names) = (HashMap::new(), HashMap::new());
    for (ioctl, entry) in table.ioctls.iter().zip(entries) {
        if let Some(line) = numbers.insert(ioctl.number, ioctl.line) {
            let message = format!("the command in line {line} already has this number");
            reader.error(entry.span(), message);
        }
        if let Some(line) = names.insert(&ioctl.name, ioctl.line) {
            let message = format!("the command in line {line} already has this name");
            reader.error(entry.span(), message);
        }
    }
}

fn numbering(reader: &mut Reader<'_>, root: &DeTable<'_>) -> Numbering {
    let whole = reader.boolean(root, "whole_number", false);
    let Some(value) = root.get("type") else {
        if !whole {
            reader.missing("type", 0..0);
        }
        return Numbering::Whole;
    };
    if whole {
        let message = "commands are numbered by either `type` or `whole_number`, not both";
        reader.error(value.span(), message.into());
    }
    let text = reader.string(value).unwrap_or_default();
    match text.as_bytes() {
        [kind] => Numbering::Type(*kind),
        _ => {
            let message = "`type` must be one character, as in the driver's header";
            reader.error(value.span(), message.into());
            Numbering::default()
        }
    }
}

fn device(reader: &mut Reader<'_>, table: &DeTable<'_>, span: Range<usize>) -> DeviceMatch {
    reader.known_keys(table, DEVICE_KEYS);
    let found = DeviceMatch {
        major: major(reader, table),
        misc: reader.text(table, "misc"),
        driver: reader.text(table, "driver"),
        pci: pci(reader, table),
        file: reader.text(table, "file"),
        with: reader.text(table, "with"),
    };
    let node = found.major.is_some()
        || found.misc.is_some()
        || found.driver.is_some()
        || !found.pci.is_empty();
    if node == found.file.is_some() {
        let message = "a device needs either major, misc, driver or pci, or a `file`";
        reader.error(span, message.into());
    }
    found
}

fn major(reader: &mut Reader<'_>, table: &DeTable<'_>) -> Option<Major> {
    let value = table.get("major")?;
    if value.get_ref().as_integer().is_some() {
        // 12 bits: MAJOR of include/linux/kdev_t.h.
        return Some(Major::Number(reader.number(value, "a major", 0xfff) as u32));
    }
    reader.text(table, "major").map(Major::Name)
}

fn pci(reader: &mut Reader<'_>, table: &DeTable<'_>) -> Vec<PciId> {
    let mut ids = Vec::new();
    for (text, span) in reader.names_if_any(table, "pci") {
        match parse_pci(&text) {
            Some(id) => ids.push(id),
            None => {
                let message = "expected VENDOR:DEVICE, with four hexadecimal digits each";
                reader.error(span, message.into());
            }
        }
    }
    ids
}

fn ioctl(
    reader: &mut Reader<'_>,
    table: &DeTable<'_>,
    span: Range<usize>,
    numbering: Numbering,
) -> Ioctl {
    reader.known_keys(table, IOCTL_KEYS);
    for key in ["number", "kind"] {
        if table.get(key).is_none() {
            reader.missing(key, span.clone());
        }
    }
    let most = match numbering {
        Numbering::Type(_) => 0xff,
        Numbering::Whole => u64::from(u32::MAX),
    };
    let number = table.get("number");
    let number = number.map_or(0, |value| reader.number(value, "a command", most) as u32);
    let mut names = number_names(reader, table, "names", false);
    names.extend(number_names(reader, table, "bits", true));
    let ioctl = Ioctl {
        name: reader.required_text(table, "name", span.clone()),
        number,
        action: Some(reader.choice(table, "kind", &KINDS, Action::Other)),
        structure: reader.text(table, "struct"),
        args: fields(reader, table, "args"),
        out: fields(reader, table, "out"),
        result: Some(reader.choice(table, "result", &RESULTS, ResultKind::Errno)),
        names,
        arrays: reader.each_if_any(table, "array", array),
        assumed: reader.boolean(table, "assumed", false),
        line: reader.position(span.start).0,
    };
    known_values(reader, table, &ioctl);
    if let Err(message) = ioctl.program() {
        reader.error(span, message);
    }
    ioctl
}

/// Every name of numbers must be of a value that is there.
fn known_values(reader: &mut Reader<'_>, table: &DeTable<'_>, ioctl: &Ioctl) {
    let values = ioctl.args.iter().chain(&ioctl.out);
    let fields = ioctl.arrays.iter().flat_map(|array| &array.fields);
    let known: Vec<&str> = values.chain(fields).map(|f| f.name.as_str()).collect();
    for key in ["names", "bits"] {
        for (name, span, _) in reader.entries(table, key) {
            if !known.contains(&name) {
                reader.error(span, format!("no value is named `{}`", cut(name)));
            }
        }
    }
}

fn number_names(
    reader: &mut Reader<'_>,
    table: &DeTable<'_>,
    key: &str,
    bits: bool,
) -> Vec<NumberNames> {
    let mut all = Vec::new();
    for (value, _, inner) in reader.entries(table, key) {
        let Some(entries) = inner.get_ref().as_table() else {
            let message = "names of numbers must be a table: { name = number, ... }";
            reader.error(inner.span(), message.into());
            continue;
        };
        let mut names = Vec::new();
        for (name, number) in entries.iter() {
            let number = reader.number(number, "a named number", u64::MAX);
            names.push((name.get_ref().to_string(), number));
        }
        all.push(NumberNames {
            value: value.to_owned(),
            bits,
            names,
        });
    }
    all
}

fn fields(reader: &mut Reader<'_>, table: &DeTable<'_>, key: &str) -> Vec<Field> {
    let mut fields: Vec<Field> = Vec::new();
    for (name, span, value) in reader.entries(table, key) {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if name.is_empty() || !name.chars().all(plain) {
            let message = "a value's name may contain only lower-case letters, digits and `_`";
            reader.error(span, message.into());
            continue;
        }
        let Some(mut field) = one_field(reader, value) else {
            continue;
        };
        field.name = name.to_owned();
        fields.push(field);
    }
    fields
}

fn one_field(reader: &mut Reader<'_>, value: &Value<'_>) -> Option<Field> {
    let text = reader.string(value)?;
    match field::parse(text) {
        Ok(field) => Some(field),
        Err(error) => {
            reader.error_inside(value, error.at, error.message);
            None
        }
    }
}

fn array(reader: &mut Reader<'_>, table: &DeTable<'_>, span: Range<usize>) -> Array {
    reader.known_keys(table, ARRAY_KEYS);
    for key in ["pointer", "count", "stride", "fields"] {
        if table.get(key).is_none() {
            reader.missing(key, span.clone());
        }
    }
    let pointer = table.get("pointer");
    let count = table.get("count");
    let stride = table.get("stride");
    let array = Array {
        name: reader.required_text(table, "name", span.clone()),
        pointer: pointer.map_or(Place::Argument, |value| array_pointer(reader, value)),
        count: count
            .and_then(|value| one_field(reader, value))
            .unwrap_or_default(),
        in_place: reader.boolean(table, "in_place", false),
        structure: reader.text(table, "struct"),
        // At most 255.
        stride: stride.map_or(1, |value| reader.number(value, "a stride", 255) as u8),
        fields: fields(reader, table, "fields"),
    };
    if array.stride == 0 {
        let message = "an element must have at least one byte";
        reader.error(span_of(table, "stride"), message.into());
    }
    for field in &array.fields {
        if !field.lies_within(u32::from(array.stride)) {
            let message = format!("`{}` lies outside the element", field.name);
            reader.error(span.clone(), message);
        }
    }
    array
}

fn array_pointer(reader: &mut Reader<'_>, value: &Value<'_>) -> Place {
    let text = reader.string(value).unwrap_or_default();
    match field::parse_place(text, 0) {
        Ok(place @ Place::At(_)) => place,
        Ok(_) => {
            let message = "an array's address must be a member of the argument";
            reader.error(value.span(), message.into());
            Place::Argument
        }
        Err(error) => {
            reader.error_inside(value, error.at, error.message);
            Place::Argument
        }
    }
}
