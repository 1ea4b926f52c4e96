//! What was passed to a call, and what it returned, by name.

use crate::correlate::{CallContent, FinishedCall};
use aiprof_model::json::{Object, array, quoted};
use aiprof_model::probes::{
    DataFormat, Probe, ResultKind, ValueFormat,
    ioctl::{ArrayLayout, IoctlLayout},
};
use aiprof_model::timeline::{Args, hex};
use std::borrow::Cow;

/// Most elements of an array that are written; the rest is counted.
const MAX_ELEMENTS: usize = 64;

/// Keys that describe the call as a whole. An argument of that name gets an underscore.
const RESERVED: [&str; 13] = [
    "result", "failed", "error", "inner", "end", "stack", "work", "works", "launch", "launches",
    "groups", "local", "api",
];

/// Shown for a value that could not be read.
const UNREADABLE: &str = "[not readable]";

/// The key of an argument.
fn key(name: &str) -> Cow<'_, str> {
    match RESERVED.contains(&name) {
        true => format!("{name}_").into(),
        false => name.into(),
    }
}

/// Writes the arguments of a call: values, then data.
pub(super) fn write(args: &mut Args, call: &FinishedCall) {
    let probe = &*call.probe;
    let layout = probe.layout.as_deref();
    // Among arguments with equal names, the first known one is written.
    let is_written = |at: usize, name: &str| {
        let before = probe.values.iter().take(at);
        let mut before = before.filter(|info| !info.at_exit || call.end_ns.is_some());
        before.any(|info| info.name == name)
    };
    for (slot, info) in probe.values.iter().enumerate() {
        if info.name.is_empty() || is_written(slot, &info.name) {
            continue;
        }
        if info.at_exit && call.end_ns.is_none() {
            continue;
        }
        let key = key(&info.name);
        match call.value(slot) {
            Some(value) => write_value(args, &key, &info.name, info.format, value, layout),
            None => args.text(&key, UNREADABLE),
        }
    }
    for (tag, info) in probe.data.iter().enumerate() {
        let mut before = probe.data.iter().take(tag);
        if info.name.is_empty()
            || is_written(probe.values.len(), &info.name)
            || before.any(|other| other.name == info.name)
        {
            continue;
        }
        let key = key(&info.name);
        let of_tag = |array: &&ArrayLayout| usize::from(array.tag) == tag;
        let array = layout.and_then(|layout| layout.arrays.iter().find(of_tag));
        match (array, call.content(tag)) {
            (Some(array), _) => write_elements(args, &key, array, layout, call),
            (None, Some(content)) => write_content(args, &key, info.format, content),
            // Optional, and not there.
            (None, None) => {}
        }
    }
}

fn write_value(
    args: &mut Args,
    key: &str,
    name: &str,
    format: ValueFormat,
    value: u64,
    layout: Option<&IoctlLayout>,
) {
    match layout.and_then(|layout| layout.names_of(name)) {
        Some(names) => args.text(key, &names.text(value)),
        None => write_number(args, key, format, value),
    }
}

fn write_number(args: &mut Args, key: &str, format: ValueFormat, value: u64) {
    match format {
        ValueFormat::Decimal => args.number(key, value),
        ValueFormat::Signed(bytes) => args.signed(key, sign_extended(value, bytes)),
        ValueFormat::Hex => args.hex(key, value),
        ValueFormat::Float(4) => {
            let bits = u32::try_from(value & 0xffff_ffff).unwrap_or(0);
            args.float(key, f32::from_bits(bits).into());
        }
        ValueFormat::Float(_) => args.float(key, f64::from_bits(value)),
    }
}

/// The number that the lowest `bytes` bytes of a value are in two's complement.
fn sign_extended(value: u64, bytes: u8) -> i64 {
    let unused = 64 - 8 * u32::from(bytes.clamp(1, 8));
    (value << unused).cast_signed() >> unused
}

/// The elements of an ioctl's array, each an args. A single one may lie among
/// the values and is written there.
fn write_elements(
    args: &mut Args,
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
        let mut fields = Args::new();
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
        Object::of(fields.members()).end()
    });
    args.raw(key, &array(written));
    let cut = found.elements.len().saturating_sub(MAX_ELEMENTS) as u64;
    if found.missing + cut > 0 {
        args.number(&format!("{key} left out"), found.missing + cut);
    }
}

fn write_content(args: &mut Args, key: &str, format: DataFormat, content: &CallContent) {
    match format {
        DataFormat::Text => args.text(key, &String::from_utf8_lossy(&content.bytes)),
        DataFormat::Handles => {
            let (handles, _) = content.bytes.as_chunks::<8>();
            let written = handles.iter().take(MAX_ELEMENTS);
            let hex = |bytes: &[u8; 8]| quoted(hex(u64::from_le_bytes(*bytes)).text());
            args.raw(key, &array(written.map(hex)));
            let left = (content.total / 8).saturating_sub(handles.len().min(MAX_ELEMENTS) as u64);
            if left > 0 {
                args.number(&format!("{key} left out"), left);
            }
        }
        DataFormat::Blob => args.text(key, &format!("{} bytes", content.total)),
    }
}

/// Writes what a call returned, if its exit was seen.
pub(super) fn write_result(args: &mut Args, call: &FinishedCall) {
    let Some(value) = call.result else {
        return;
    };
    let kind = call.probe.result;
    let int = sign_extended(value, 4);
    match kind {
        ResultKind::None => return,
        ResultKind::Number => args.number("result", value),
        ResultKind::Pointer => args.hex("result", value),
        ResultKind::ZeroOk | ResultKind::Errno => args.signed("result", int),
        ResultKind::Level0 => match kind.value_name(value) {
            Some(name) => args.text("result", name),
            None => args.hex("result", value & 0xffff_ffff),
        },
    }
    if kind.success(value) == Some(false) {
        args.flag("failed", true);
        if let (ResultKind::Errno, Ok(number)) = (kind, i32::try_from(-int)) {
            args.text("error", &errno_text(number));
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
pub(super) fn write_inner(args: &mut Args, inner: &[std::rc::Rc<Probe>]) {
    if !inner.is_empty() {
        let names = inner.iter().take(MAX_ELEMENTS);
        args.texts("inner", names.map(|probe| &*probe.function));
    }
}

/// Three sizes, `4x2x1`.
pub(super) fn write_sizes(args: &mut Args, key: &str, sizes: [u32; 3]) {
    if sizes != [0; 3] {
        let [x, y, z] = sizes;
        args.text(key, &format!("{x}x{y}x{z}"));
    }
}

/// A range of numbers, `5` or `5-9`.
pub(super) fn write_range(args: &mut Args, key: &str, first: u64, last: u64) {
    match first == last {
        true => args.number(key, first),
        false => args.text(key, &format!("{first}-{last}")),
    }
}
