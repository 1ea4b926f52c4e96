//! Reads a trace into types and writes it again, with nothing in between: what
//! serde_json needs for a file, beside which `cargo xtask bench analyze` puts
//! aiprof.
//!
//!     json-copy IN OUT

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

/// A list of events, as FLEX writes it, or the object around it, as TORCH does.
#[derive(Deserialize, Serialize)]
struct Object {
    #[serde(rename = "schemaVersion")]
    schema_version: i64,
    #[serde(rename = "deviceProperties")]
    device_properties: Vec<Fields>,
    #[serde(rename = "distributedInfo")]
    distributed_info: Fields,
    #[serde(rename = "displayTimeUnit")]
    display_time_unit: String,
    #[serde(rename = "traceEvents")]
    trace_events: Vec<Event>,
    #[serde(rename = "traceName")]
    trace_name: String,
}

#[derive(Deserialize, Serialize)]
struct Event {
    ph: String,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<i64>,
    pid: i64,
    tid: i64,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Fields>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attr: Option<Fields>,
}

type Fields = BTreeMap<String, Value>;

#[derive(Deserialize, Serialize)]
#[serde(untagged)]
enum Value {
    Text(String),
    Whole(i64),
    Number(f64),
    Truth(bool),
}

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [from, to] = args.as_slice() else {
        bail!("json-copy IN OUT");
    };
    let text = std::fs::read(from).with_context(|| from.clone())?;
    let file = File::create(to).with_context(|| to.clone())?;
    copy(&text, &mut BufWriter::with_capacity(1 << 20, file))
}

fn copy(text: &[u8], to: &mut impl Write) -> anyhow::Result<()> {
    if text.trim_ascii_start().starts_with(b"[") {
        let events: Vec<Event> = serde_json::from_slice(text)?;
        serde_json::to_writer(&mut *to, &events)?;
    } else {
        let object: Object = serde_json::from_slice(text)?;
        serde_json::to_writer(&mut *to, &object)?;
    }
    Ok(to.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_tests::aiu_trace::bulk;

    /// Nothing of a file may be left out: it would be no measure then.
    fn kept(text: &[u8]) {
        let mut copied = Vec::new();
        copy(text, &mut copied).unwrap();
        let read = |text: &[u8]| serde_json::from_slice::<serde_json::Value>(text).unwrap();
        assert_eq!(read(&copied), read(text));
    }

    #[test]
    fn files_are_copied_whole() {
        let mut text = Vec::new();
        bulk::flex(&mut text, 100).unwrap();
        kept(&text);
        text.clear();
        bulk::torch(&mut text, 100).unwrap();
        kept(&text);
    }
}
