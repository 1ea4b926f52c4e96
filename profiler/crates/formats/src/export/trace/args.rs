//! Arguments of calls in words.

use aiprof_model::probes::{DataFormat, DataInfo, ValueFormat, ValueInfo, role};
use aiprof_model::visible;
use aiprof_record::correlate::{CallContent, FinishedCall};
use std::fmt::{self, Write};

/// Most elements of an array that are printed.
const MAX_ELEMENTS: usize = 16;
/// Most characters of a text that are printed.
const MAX_TEXT: usize = 120;

/// Writes `(name=value, ...)`. What the call wrote to memory is in brackets, what
/// could not be read is `?`.
pub(super) fn write(out: &mut String, call: &FinishedCall) -> fmt::Result {
    out.push('(');
    let mut first = true;
    let mut separate = |out: &mut String| {
        if !std::mem::take(&mut first) {
            out.push_str(", ");
        }
    };
    for (slot, info) in call.probe.values.iter().enumerate() {
        if info.name.is_empty() || is_step(call, &info.name) {
            continue;
        }
        if let Some((name, axes)) = axes(&info.name) {
            if info.name.ends_with("_x") {
                separate(out);
                write_axes(out, call, name, axes)?;
            }
            continue;
        }
        separate(out);
        write!(out, "{}=", info.name)?;
        bracketed(out, info.at_exit, |out| value(out, call, slot, info))?;
    }
    for (tag, info) in call.probe.data.iter().enumerate() {
        let Some(content) = call.content(tag) else {
            continue;
        };
        separate(out);
        write!(out, "{}=", info.name)?;
        data(out, call, info, content)?;
    }
    out.push(')');
    Ok(())
}

/// Whether a value only gives the length of printed data.
fn is_step(call: &FinishedCall, name: &str) -> bool {
    let has_array = || {
        let arrays = call.probe.data.iter().enumerate();
        let mut arrays = arrays.filter(|(_, info)| info.format == DataFormat::Handles);
        arrays.any(|(tag, _)| call.content(tag).is_some_and(|c| c.complete))
    };
    name == "count" && has_array()
}

/// Values that are printed together.
fn axes(name: &str) -> Option<(&'static str, [&'static str; 3])> {
    [
        ("groups", role::GROUPS),
        ("local", role::LOCAL),
        ("global", role::GLOBAL),
    ]
    .into_iter()
    .find(|(_, axes)| axes.contains(&name))
}

fn write_axes(out: &mut String, call: &FinishedCall, name: &str, axes: [&str; 3]) -> fmt::Result {
    let read = axes.map(|axis| call.probe.slot(axis).and_then(|slot| call.value(slot)));
    write!(out, "{name}=")?;
    for (i, axis) in read.into_iter().enumerate() {
        if i > 0 {
            out.push('x');
        }
        match axis {
            Some(n) => write!(out, "{n}")?,
            None => out.push('?'),
        }
    }
    Ok(())
}

fn bracketed(
    out: &mut String,
    brackets: bool,
    write: impl FnOnce(&mut String) -> fmt::Result,
) -> fmt::Result {
    if brackets {
        out.push('[');
    }
    write(out)?;
    if brackets {
        out.push(']');
    }
    Ok(())
}

fn value(out: &mut String, call: &FinishedCall, slot: usize, info: &ValueInfo) -> fmt::Result {
    let Some(value) = call.value(slot) else {
        return out.write_char('?');
    };
    let layout = call.probe.layout.as_deref();
    match layout.and_then(|layout| layout.names_of(&info.name)) {
        Some(names) => out.write_str(&names.text(value)),
        None => number(out, info.format, value),
    }
}

/// Writes a number as people want to read it.
pub(super) fn number(out: &mut String, format: ValueFormat, value: u64) -> fmt::Result {
    match format {
        ValueFormat::Hex => write!(out, "{value:#x}"),
        ValueFormat::Signed(bytes) => write!(out, "{}", signed(value, bytes)),
        ValueFormat::Float(4) => write!(out, "{}", f32::from_bits((value & 0xffff_ffff) as u32)),
        ValueFormat::Float(_) => write!(out, "{}", f64::from_bits(value)),
        ValueFormat::Decimal => write!(out, "{value}"),
    }
}

/// Two's complement of as many bytes.
pub(super) fn signed(value: u64, bytes: u8) -> i64 {
    let unused = 64 - 8 * u32::from(bytes.clamp(1, 8));
    (value << unused).cast_signed() >> unused
}

fn data(
    out: &mut String,
    call: &FinishedCall,
    info: &DataInfo,
    content: &CallContent,
) -> fmt::Result {
    match info.format {
        DataFormat::Text => text(out, content),
        DataFormat::Handles => handles(out, content),
        DataFormat::Blob => match elements(out, call, content)? {
            true => Ok(()),
            false => blob(out, content),
        },
    }
}

fn text(out: &mut String, content: &CallContent) -> fmt::Result {
    if content.bytes.is_empty() && !content.complete {
        return out.write_char('?');
    }
    let text = String::from_utf8_lossy(&content.bytes);
    let end = text
        .char_indices()
        .nth(MAX_TEXT)
        .map_or(text.len(), |(at, _)| at);
    out.push('"');
    for c in text.get(..end).unwrap_or_default().chars() {
        match c {
            '"' | '\\' => write!(out, "\\{c}")?,
            c if visible::is_unsafe(c) => write!(out, "{}", c.escape_default())?,
            c => out.push(c),
        }
    }
    out.push('"');
    if end < text.len() || !content.complete {
        out.push_str("...");
    }
    Ok(())
}

/// The numbers of an array.
pub(super) fn array(content: &CallContent) -> impl Iterator<Item = u64> {
    let (numbers, _) = content.bytes.as_chunks();
    numbers.iter().map(|&bytes| u64::from_le_bytes(bytes))
}

fn handles(out: &mut String, content: &CallContent) -> fmt::Result {
    out.push('[');
    for (i, handle) in array(content).take(MAX_ELEMENTS).enumerate() {
        let comma = if i > 0 { ", " } else { "" };
        write!(out, "{comma}{handle:#x}")?;
    }
    if !content.complete || content.bytes.len() > MAX_ELEMENTS * 8 {
        out.push_str(", ...");
    }
    out.push(']');
    Ok(())
}

fn blob(out: &mut String, content: &CallContent) -> fmt::Result {
    let bytes = content.total.max(content.bytes.len() as u64);
    let rest = if content.complete { "" } else { ", incomplete" };
    write!(out, "<{bytes} bytes{rest}>")
}

/// Writes an ioctl's array of structures; `false` if the data are none.
fn elements(
    out: &mut String,
    call: &FinishedCall,
    content: &CallContent,
) -> Result<bool, fmt::Error> {
    let layout = call.probe.layout.as_deref();
    let Some((layout, array)) = layout.and_then(|layout| {
        let array = layout.arrays.iter().find(|a| a.tag == content.tag)?;
        Some((layout, array))
    }) else {
        return Ok(false);
    };
    let found = call.elements(array);
    out.push('[');
    for (i, element) in found.elements.iter().take(MAX_ELEMENTS).enumerate() {
        out.push_str(if i > 0 { ", {" } else { "{" });
        for (j, (field, &value)) in array.fields.iter().zip(element).enumerate() {
            let comma = if j > 0 { ", " } else { "" };
            write!(out, "{comma}{}=", field.name)?;
            match layout.names_of(&field.name) {
                Some(names) => out.push_str(&names.text(value)),
                None => number(out, field.format, value)?,
            }
        }
        out.push('}');
    }
    if found.missing > 0 || found.elements.len() > MAX_ELEMENTS {
        out.push_str(", ...");
    }
    out.push(']');
    Ok(true)
}
