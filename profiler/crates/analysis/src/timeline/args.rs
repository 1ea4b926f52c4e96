//! What was passed to a call, and what it returned, by name.

use crate::correlate::{CallContent, FinishedCall};
use aiprof_model::json::{self, Object, array, quoted};
use aiprof_model::probes::{
    DataFormat, Probe, ResultKind, ValueFormat,
    ioctl::{ArrayLayout, IoctlLayout},
};

/// Most elements of an array that are written; the rest is counted.
const MAX_ELEMENTS: usize = 64;

/// Keys that say something of the call as a whole. An argument of that name gets
/// an underscore.
const RESERVED: [&str; 13] = [
    "result", "failed", "error", "inner", "end", "stack", "work", "works", "launch", "launches",
    "groups", "local", "api",
];

/// What a value says that could not be read.
const UNREADABLE: &str = "[not readable]";

/// The key of an argument.
fn key(name: &str) -> String {
    match RESERVED.contains(&name) {
        true => format!("{name}_"),
        false => name.to_owned(),
    }
}

/// Writes the arguments of a call: values, then data.
pub(super) fn write(object: &mut Object, call: &FinishedCall) {
    let probe = &*call.probe;
    let layout = probe.layout.as_deref();
    let mut written: Vec<&str> = Vec::new();
    for (slot, info) in probe.values.iter().enumerate() {
        if info.name.is_empty() || written.contains(&info.name.as_str()) {
            continue;
        }
        if info.at_exit && call.end_ns.is_none() {
            continue;
        }
        written.push(&info.name);
        let key = key(&info.name);
        match call.value(slot) {
            Some(value) => write_value(object, &key, &info.name, info.format, value, layout),
            None => object.text(&key, UNREADABLE),
        }
    }
    for (tag, info) in probe.data.iter().enumerate() {
        if info.name.is_empty() || written.contains(&info.name.as_str()) {
            continue;
        }
        written.push(&info.name);
        let key = key(&info.name);
        let of_tag = |array: &&ArrayLayout| usize::from(array.tag) == tag;
        let array = layout.and_then(|layout| layout.arrays.iter().find(of_tag));
        match (array, call.content(tag)) {
            (Some(array), _) => write_elements(object, &key, array, layout, call),
            (None, Some(content)) => write_content(object, &key, info.format, content),
            // Optional, and not there.
            (None, None) => {}
        }
    }
}

fn write_value(
    object: &mut Object,
    key: &str,
    name: &str,
    format: ValueFormat,
    value: u64,
    layout: Option<&IoctlLayout>,
) {
    match layout.and_then(|layout| layout.names_of(name)) {
        Some(names) => object.text(key, &names.text(value)),
        None => write_number(object, key, format, value),
    }
}

fn write_number(object: &mut Object, key: &str, format: ValueFormat, value: u64) {
    match format {
        ValueFormat::Decimal => object.number(key, value),
        ValueFormat::Signed(bytes) => object.signed(key, sign_extended(value, bytes)),
        ValueFormat::Hex => object.text(key, &format!("{value:#x}")),
        ValueFormat::Float(4) => {
            let bits = u32::try_from(value & 0xffff_ffff).unwrap_or(0);
            object.float(key, f32::from_bits(bits).into());
        }
        ValueFormat::Float(_) => object.float(key, f64::from_bits(value)),
    }
}

/// The number that the lowest `bytes` bytes of a value are in two's complement.
fn sign_extended(value: u64, bytes: u8) -> i64 {
    let unused = 64 - 8 * u32::from(bytes.clamp(1, 8));
    (value << unused).cast_signed() >> unused
}

/// The elements of an ioctl's array, each an object. A single one may lie among
/// the values and is written there.
fn write_elements(
    object: &mut Object,
    key: &str,
    layout: &ArrayLayout,
    names: Option<&IoctlLayout>,
    call: &FinishedCall,
) {
    let count = call.value(usize::from(layout.count)).unwrap_or(0);
    if count == 0 || layout.in_place && count == 1 {
        return;
    }
    let found = call.elements(layout);
    let written = found.elements.iter().take(MAX_ELEMENTS).map(|element| {
        let mut fields = Object::new();
        for (field, &value) in layout.fields.iter().zip(element) {
            write_value(
                &mut fields,
                &field.name,
                &field.name,
                field.format,
                value,
                names,
            );
        }
        fields.end()
    });
    object.raw(key, &array(written));
    let cut = found.elements.len().saturating_sub(MAX_ELEMENTS) as u64;
    if found.missing + cut > 0 {
        object.number(&format!("{key} left out"), found.missing + cut);
    }
}

fn write_content(object: &mut Object, key: &str, format: DataFormat, content: &CallContent) {
    match format {
        DataFormat::Text => object.text(key, &String::from_utf8_lossy(&content.bytes)),
        DataFormat::Handles => {
            let (handles, _) = content.bytes.as_chunks::<8>();
            let written = handles.iter().take(MAX_ELEMENTS);
            let hex = |bytes: &[u8; 8]| quoted(&format!("{:#x}", u64::from_le_bytes(*bytes)));
            object.raw(key, &array(written.map(hex)));
            let left = (content.total / 8).saturating_sub(handles.len().min(MAX_ELEMENTS) as u64);
            if left > 0 {
                object.number(&format!("{key} left out"), left);
            }
        }
        DataFormat::Blob => object.text(key, &format!("{} bytes", content.total)),
    }
}

/// Writes what a call returned, if its exit was seen.
pub(super) fn write_result(object: &mut Object, call: &FinishedCall) {
    let Some(value) = call.result else {
        return;
    };
    let kind = call.probe.result;
    let int = sign_extended(value, 4);
    match kind {
        ResultKind::None => return,
        ResultKind::Number => object.number("result", value),
        ResultKind::Pointer => object.text("result", &format!("{value:#x}")),
        ResultKind::ZeroOk | ResultKind::Errno => object.signed("result", int),
        ResultKind::Level0 => match kind.value_name(value) {
            Some(name) => object.text("result", name),
            None => object.text("result", &format!("{:#x}", value & 0xffff_ffff)),
        },
    }
    if kind.success(value) == Some(false) {
        object.flag("failed", true);
        if let (ResultKind::Errno, Ok(number)) = (kind, i32::try_from(-int)) {
            object.text("error", &errno_text(number));
        }
    }
}

/// What an error number means.
fn errno_text(number: i32) -> String {
    let text = std::io::Error::from_raw_os_error(number).to_string();
    // Without the number, which is in the result.
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// The functions of inner libraries that were the same call.
pub(super) fn write_inner(object: &mut Object, inner: &[std::rc::Rc<Probe>]) {
    if !inner.is_empty() {
        let names = inner.iter().take(MAX_ELEMENTS);
        object.raw("inner", &array(names.map(|probe| quoted(&probe.function))));
    }
}

/// Three sizes, `4x2x1`.
pub(super) fn write_sizes(object: &mut Object, key: &str, sizes: [u32; 3]) {
    if sizes != [0; 3] {
        let [x, y, z] = sizes;
        object.text(key, &format!("{x}x{y}x{z}"));
    }
}

/// A range of numbers, `5` or `5-9`.
pub(super) fn write_range(object: &mut Object, key: &str, first: u64, last: u64) {
    match first == last {
        true => {
            let mut text = String::new();
            json::number(&mut text, first);
            object.raw(key, &text);
        }
        false => object.text(key, &format!("{first}-{last}")),
    }
}
