//! From a TOML file to a checked [`DriverTable`].

use super::devices::parse_pci;
use super::field::{self, ARGUMENT, SYNTAX};
use super::{Array, DeviceMatch, DriverTable, Ioctl, Major, Numbering, PciId};
use crate::probes::ResultKind;
use crate::probes::expr::{Expr, ExprError};
use crate::probes::ioctl::{Action, ElementField, NumberNames};
use crate::probes::program::Field;
use crate::probes::reader::{TableReader, cut, is_table_name};
use std::collections::HashMap;

const RESULTS: [(&str, ResultKind); 2] =
    [("errno", ResultKind::Errno), ("number", ResultKind::Number)];
/// An entry of `names` or `bits`.
const SHAPE: &str = "name = ...";

/// Reads a file's top level.
pub(in crate::probes) fn parse_driver(root: &mut TableReader<'_, '_>) -> DriverTable {
    let name = root.required_text("name");
    if !is_table_name(&name) {
        let message = "a table's name may contain only lower-case letters, digits and `-`";
        root.error(root.span_of("name"), message);
    }
    let api = root.required_text("api");
    let tested = root.text("tested");
    let numbering = numbering(root);
    let (mut numbers, mut names) = (HashMap::new(), HashMap::new());
    DriverTable {
        name,
        api,
        tested,
        numbering,
        includes: root.plain_names("includes"),
        handlers: root.plain_names("handlers"),
        devices: root.each("device", device),
        ioctls: root.each("ioctl", |reader| {
            let ioctl = ioctl(reader, numbering);
            // No two have the same number or name.
            let number = numbers.insert(ioctl.number, ioctl.line);
            let name = names.insert(ioctl.name.clone(), ioctl.line);
            for (line, what) in [(number, "number"), (name, "name")] {
                if let Some(line) = line {
                    let message = format!("the command in line {line} already has this {what}");
                    reader.error(reader.span.clone(), message);
                }
            }
            ioctl
        }),
        source: root.source(),
    }
}

fn numbering(root: &mut TableReader<'_, '_>) -> Numbering {
    let kind = root.value("type");
    let whole = root.boolean("whole_number", false);
    let Some(value) = kind else {
        if !whole {
            root.required("type");
        }
        return Numbering::Whole;
    };
    if whole {
        let message = "commands are numbered by either `type` or `whole_number`, not both";
        root.error(value.span(), message);
    }
    let text = root.string(value).unwrap_or_default();
    match text.as_bytes() {
        [kind] => Numbering::Type(*kind),
        _ => {
            let message = "`type` must be one character, as in the driver's header";
            root.error(value.span(), message);
            Numbering::default()
        }
    }
}

fn device(reader: &mut TableReader<'_, '_>) -> DeviceMatch {
    let found = DeviceMatch {
        major: major(reader),
        misc: reader.text("misc"),
        driver: reader.text("driver"),
        pci: pci(reader),
        file: reader.text("file"),
        with: reader.text("with"),
    };
    let node = found.major.is_some()
        || found.misc.is_some()
        || found.driver.is_some()
        || !found.pci.is_empty();
    if node == found.file.is_some() {
        let message = "a device needs either major, misc, driver or pci, or a `file`";
        reader.error(reader.span.clone(), message);
    }
    found
}

fn major(reader: &mut TableReader<'_, '_>) -> Option<Major> {
    let value = reader.value("major")?;
    if value.get_ref().as_integer().is_some() {
        // 12 bits: MAJOR of include/linux/kdev_t.h.
        return Some(Major::Number(reader.number(value, "a major", 0xfff) as u32));
    }
    reader.text("major").map(Major::Name)
}

fn pci(reader: &mut TableReader<'_, '_>) -> Vec<PciId> {
    let mut ids = Vec::new();
    for (text, span) in reader.names("pci") {
        match parse_pci(&text) {
            Some(id) => ids.push(id),
            None => {
                let message = "expected VENDOR:DEVICE, with four hexadecimal digits each";
                reader.error(span, message);
            }
        }
    }
    ids
}

fn ioctl(reader: &mut TableReader<'_, '_>, numbering: Numbering) -> Ioctl {
    let most = match numbering {
        Numbering::Type(_) => 0xff,
        Numbering::Whole => u64::from(u32::MAX),
    };
    let name = reader.required_text("name");
    let number = reader.required("number");
    let number = number.map_or(0, |value| reader.number(value, "a command", most) as u32);
    let structure = reader.text("struct");
    reader.required("kind");
    let ioctl = Ioctl {
        name,
        number,
        structure,
        action: reader.choice("kind", Action::NAMED, Action::Other),
        args: reader.fields("args", &SYNTAX).0,
        out: reader.fields("out", &SYNTAX).0,
        result: reader.choice("result", &RESULTS, ResultKind::Errno),
        names: [("names", false), ("bits", true)]
            .into_iter()
            .flat_map(|(key, bits)| number_names(reader, key, bits))
            .collect(),
        arrays: reader.each_if_any("array", array),
        assumed: reader.boolean("assumed", false),
        line: reader.line(),
    };
    known_values(reader, &ioctl);
    if let Err(message) = ioctl.program() {
        reader.error(reader.span.clone(), message);
    }
    ioctl
}

/// Every name of numbers must be of a value that is there.
fn known_values(reader: &mut TableReader<'_, '_>, ioctl: &Ioctl) {
    let values = ioctl.args.iter().chain(&ioctl.out);
    let fields = ioctl.arrays.iter().flat_map(|array| &array.fields);
    let known: Vec<&str> = values.chain(fields).map(|f| f.name.as_str()).collect();
    for key in ["names", "bits"] {
        for (name, span, _) in reader.entries(key, SHAPE) {
            if !known.contains(&name) {
                reader.error(span, format!("no value is named `{}`", cut(name)));
            }
        }
    }
}

fn number_names(
    reader: &mut TableReader<'_, '_>,
    key: &'static str,
    bits: bool,
) -> Vec<NumberNames> {
    let mut all = Vec::new();
    for (value, _, inner) in reader.entries(key, SHAPE) {
        let Some(entries) = inner.get_ref().as_table() else {
            let message = "names of numbers must be a table: { name = number, ... }";
            reader.error(inner.span(), message);
            continue;
        };
        let named = entries.iter().map(|(name, number)| {
            let number = reader.number(number, "a named number", u64::MAX);
            (name.get_ref().to_string(), number)
        });
        all.push(NumberNames {
            value: value.to_owned(),
            bits,
            names: named.collect(),
        });
    }
    all
}

fn array(reader: &mut TableReader<'_, '_>) -> Array {
    let array = Array {
        name: reader.required_text("name"),
        pointer: member(reader, "pointer", field::parse_pointer),
        count: member(reader, "count", SYNTAX.parse),
        in_place: reader.boolean("in_place", false),
        structure: reader.text("struct"),
        // At most 255.
        stride: reader
            .required("stride")
            .map_or(1, |value| reader.number(value, "a stride", 255) as u8),
        fields: {
            reader.required("fields");
            reader.fields("fields", &SYNTAX).0
        },
    };
    if array.pointer.offset().is_none() && !array.pointer.text.is_empty() {
        let message = "an array's address must be a member of the argument";
        reader.error(reader.span_of("pointer"), message);
    }
    if array.stride == 0 {
        let message = "an element must have at least one byte";
        reader.error(reader.span_of("stride"), message);
    }
    for field in &array.fields {
        let within = |e: ElementField| e.offset + u16::from(e.size) <= array.stride.into();
        if !field.element().is_some_and(within) {
            let message = format!("`{}` lies outside the element", field.name);
            reader.error(reader.span.clone(), message);
        }
    }
    array
}

/// Where the array's address or the number of its elements is; after a mistake, the argument.
fn member(
    reader: &mut TableReader<'_, '_>,
    key: &'static str,
    parse: fn(&str) -> Result<Expr, ExprError>,
) -> Field {
    let value = reader.required(key);
    let field = value.and_then(|value| reader.field("", value, parse));
    field.unwrap_or_else(|| Field {
        name: String::new(),
        text: String::new(),
        expr: field::hex(ARGUMENT),
    })
}
