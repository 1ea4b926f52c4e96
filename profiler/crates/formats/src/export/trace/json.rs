//! A call as a line of JSON.

use super::{TraceOptions, args, results};
use aiprof_model::probes::{DataFormat, Probe, ResultKind, ValueFormat};
use aiprof_model::visible;
use aiprof_record::correlate::{CallContent, FinishedCall};
use serde_json::{Map, Value, json};

/// Writes a call, without an end of line.
pub(super) fn line(out: &mut String, call: &FinishedCall, comm: &str, options: &TraceOptions) {
    let mut object = Map::new();
    let since = i128::from(call.start_ns) - i128::from(options.origin_ns);
    let mut add = |key: &str, value: Value| drop(object.insert(key.to_owned(), value));
    if let Some(unix) = options.unix_ns {
        let ns = u64::try_from(since + i128::from(unix)).unwrap_or(0);
        add("unix_ns", ns.into());
    }
    add("time_ns", i64::try_from(since).unwrap_or(i64::MAX).into());
    add("comm", comm.into());
    add("pid", call.pid.into());
    add("tid", call.tid.into());
    add("id", call.id.into());
    if call.nesting.parent != 0 {
        add("parent", call.nesting.parent.into());
    }
    add("depth", call.nesting.depth.into());
    add("part", call.nesting.is_part.into());
    let probe = &call.probe;
    add("api", probe.api.as_str().into());
    add("function", probe.function.as_str().into());
    add("kind", probe.kind.name().into());
    if !options.no_args {
        add("args", arguments(call));
    }
    if let Some(result) = call.result {
        add("result", result_value(probe, result));
        let mut text = String::new();
        if results::write(&mut text, probe.result, result).is_ok() {
            add("result_text", text.into());
        }
    }
    if let Some(succeeded) = call.succeeded() {
        add("failed", (!succeeded).into());
    }
    if let Some(ns) = call.duration_ns() {
        add("duration_ns", ns.into());
    }
    if let Some(work) = &call.work.first {
        add("work", work.to_string().into());
    }
    out.push_str(&visible::json(&Value::Object(object).to_string()));
}

/// Values and data by name; handles and addresses as hexadecimal text, for JSON's
/// numbers end at 53 bits in many readers.
fn arguments(call: &FinishedCall) -> Value {
    let mut object = Map::new();
    for (slot, info) in call.probe.values.iter().enumerate() {
        if info.name.is_empty() {
            continue;
        }
        let value = call.value(slot);
        let value = value.map_or(Value::Null, |value| number(info.format, value));
        object.insert(info.name.clone(), value);
    }
    for (tag, info) in call.probe.data.iter().enumerate() {
        if let Some(content) = call.content(tag) {
            object.insert(info.name.clone(), data(call, info.format, content));
        }
    }
    Value::Object(object)
}

fn number(format: ValueFormat, value: u64) -> Value {
    match format {
        ValueFormat::Decimal => value.into(),
        ValueFormat::Signed(bytes) => args::signed(value, bytes).into(),
        ValueFormat::Hex => format!("{value:#x}").into(),
        // Infinities and NaN are null.
        ValueFormat::Float(4) => f64::from(f32::from_bits((value & 0xffff_ffff) as u32)).into(),
        ValueFormat::Float(_) => f64::from_bits(value).into(),
    }
}

fn data(call: &FinishedCall, format: DataFormat, content: &CallContent) -> Value {
    match format {
        DataFormat::Text => String::from_utf8_lossy(&content.bytes).into(),
        DataFormat::Handles => args::array(content).map(|n| format!("{n:#x}")).collect(),
        DataFormat::Blob => elements(call, content)
            .unwrap_or_else(|| json!({ "bytes": content.total, "complete": content.complete })),
    }
}

/// An ioctl's array of structures.
fn elements(call: &FinishedCall, content: &CallContent) -> Option<Value> {
    let layout = call.probe.layout.as_deref()?;
    let array = layout.arrays.iter().find(|a| a.tag == content.tag)?;
    let found = call.elements(array);
    let elements = found.elements.iter().map(|element| {
        let fields = array.fields.iter().zip(element);
        let fields = fields.map(|(field, &n)| (field.name.clone(), number(field.format, n)));
        Value::Object(fields.collect())
    });
    Some(elements.collect())
}

fn result_value(probe: &Probe, value: u64) -> Value {
    match probe.result {
        ResultKind::None => Value::Null,
        ResultKind::ZeroOk | ResultKind::Level0 => (value & 0xffff_ffff).into(),
        ResultKind::Errno => args::signed(value, 4).into(),
        ResultKind::Pointer => format!("{value:#x}").into(),
        ResultKind::Number => value.into(),
    }
}
