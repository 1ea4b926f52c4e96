//! The content of a trace file.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde_json::Value;

/// How far times may differ: a nanosecond, in microseconds, and what doubles add.
pub const TIME_US: f64 = 0.001_001;

/// A trace: its events by what they are, and what is beside them.
#[derive(Debug, Default)]
pub struct Trace {
    /// Events of each phase, name, process and thread, by time.
    pub groups: BTreeMap<String, Vec<Record>>,
    /// Everything at the top but events and the tool's own remarks.
    pub top: Value,
    /// What the tool writes about itself.
    pub other: Value,
}

/// An event as a flat list of its values.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// When it is.
    pub ts: f64,
    /// By path, as `args.TS1`.
    pub values: BTreeMap<String, Value>,
}

impl Trace {
    /// Reads a trace file.
    ///
    /// # Errors
    /// When it is none.
    pub fn read(bytes: &[u8]) -> anyhow::Result<Self> {
        let mut top: Value = serde_json::from_slice(bytes)?;
        let object = top.as_object_mut().context("no object")?;
        let events = object.remove("traceEvents").context("no traceEvents")?;
        let other = object.remove("otherData").unwrap_or(Value::Null);
        let events = events.as_array().context("no list of events")?;
        let mut trace = Self {
            groups: BTreeMap::new(),
            top,
            other,
        };
        let mut flows: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
        for event in events {
            let phase = event["ph"].as_str().context("no phase")?;
            if matches!(phase, "s" | "f" | "t") {
                flows
                    .entry(event["id"].to_string())
                    .or_default()
                    .push(event);
                continue;
            }
            trace.add(phase, event);
        }
        for parts in flows.values() {
            trace.add_flow(parts);
        }
        for records in trace.groups.values_mut() {
            records.sort_by(|a, b| a.ts.total_cmp(&b.ts));
        }
        Ok(trace)
    }

    fn add(&mut self, phase: &str, event: &Value) {
        let key = format!(
            "{phase} {} pid {} tid {}",
            event["name"], event["pid"], event["tid"]
        );
        self.groups.entry(key).or_default().push(record(event));
    }

    /// An arrow is one record: where it begins and where it ends. Which number it
    /// has is of no importance.
    fn add_flow(&mut self, parts: &[&Value]) {
        let mut parts = parts.to_vec();
        parts.sort_by_key(|part| part["ph"] != "s");
        let mut all = BTreeMap::new();
        for (i, part) in parts.iter().enumerate() {
            let mut part = (*part).clone();
            if let Some(part) = part.as_object_mut() {
                part.remove("id");
            }
            flatten(&format!("{i}"), &part, &mut all);
        }
        let first = parts.first().copied().unwrap_or(&Value::Null);
        let key = format!("flow {}", first["name"]);
        self.groups.entry(key).or_default().push(Record {
            ts: first["ts"].as_f64().unwrap_or(0.0),
            values: all,
        });
    }

    /// How many events there are, arrows counted once.
    #[must_use]
    pub fn len(&self) -> usize {
        self.groups.values().map(Vec::len).sum()
    }

    /// Whether there is no event.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }
}

fn record(event: &Value) -> Record {
    let mut values = BTreeMap::new();
    flatten("", event, &mut values);
    if event["ph"] == "M" {
        // Names have no time; files need one.
        values.remove("ts");
    }
    if let Some(Value::String(job)) = values.get_mut("args.jobname") {
        // The number behind the name is a hash of the path.
        if let Some(at) = job.rfind('(') {
            job.truncate(at);
        }
    }
    Record {
        ts: event["ts"].as_f64().unwrap_or(0.0),
        values,
    }
}

fn flatten(path: &str, value: &Value, into: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(object) if !object.is_empty() => {
            for (key, value) in object {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                flatten(&path, value, into);
            }
        }
        Value::Array(list) if !list.is_empty() => {
            for (i, value) in list.iter().enumerate() {
                flatten(&format!("{path}.{i}"), value, into);
            }
        }
        other => {
            into.insert(path.to_owned(), other.clone());
        }
    }
}

/// All differences between the events of two traces, one line each.
#[must_use]
pub fn differences(theirs: &Trace, ours: &Trace) -> Vec<String> {
    let mut found = Vec::new();
    let none = Vec::new();
    let keys: std::collections::BTreeSet<_> =
        theirs.groups.keys().chain(ours.groups.keys()).collect();
    for key in keys {
        let theirs = theirs.groups.get(key).unwrap_or(&none);
        let ours = ours.groups.get(key).unwrap_or(&none);
        if theirs.len() != ours.len() {
            let count = |list: &[Record]| list.len();
            let some = theirs.iter().chain(ours).next().map(|r| &r.values);
            found.push(format!(
                "{key}: count: {} there, {} here; such as {some:?}",
                count(theirs),
                count(ours)
            ));
            continue;
        }
        for (theirs, ours) in paired(theirs, ours) {
            for difference in record_differences(theirs, ours) {
                found.push(format!("{key} at {}: {difference}", theirs.ts));
            }
        }
    }
    found
}

/// Pairs records of the same time by their content, because their order means nothing.
fn paired<'a>(theirs: &'a [Record], ours: &'a [Record]) -> Vec<(&'a Record, &'a Record)> {
    let mut left: Vec<Option<&Record>> = ours.iter().map(Some).collect();
    let mut pairs = Vec::new();
    let mut begin = 0;
    for record in theirs {
        while left.get(begin).is_some_and(Option::is_none) {
            begin += 1;
        }
        let near = (begin..left.len())
            .take_while(|i| left[*i].is_none_or(|other| other.ts <= record.ts + 2.0 * TIME_US))
            .filter_map(|i| Some((i, left[i]?)))
            .min_by_key(|(_, other)| record_differences(record, other).len());
        let at = near.map_or(begin, |(i, _)| i);
        if let Some(other) = left.get_mut(at).and_then(Option::take) {
            pairs.push((record, other));
        }
    }
    pairs
}

fn record_differences(theirs: &Record, ours: &Record) -> Vec<String> {
    let mut found = Vec::new();
    let keys: std::collections::BTreeSet<_> =
        theirs.values.keys().chain(ours.values.keys()).collect();
    for key in keys {
        let (a, b) = (theirs.values.get(key), ours.values.get(key));
        let equal = match (a, b) {
            (Some(a), Some(b)) => same(key, a, b, theirs.ts),
            _ => false,
        };
        if !equal {
            let show = |v: Option<&Value>| v.map_or("nothing".to_owned(), Value::to_string);
            found.push(format!("{key}: {} there, {} here", show(a), show(b)));
        }
    }
    found
}

/// Whether two values at this path are the same, but for what doubles can hold at
/// the time `at`.
fn same(path: &str, a: &Value, b: &Value, at: f64) -> bool {
    let (Some(x), Some(y)) = (a.as_f64(), b.as_f64()) else {
        return a == b;
    };
    let last = path.rsplit('.').next().unwrap_or(path);
    let time = matches!(last, "ts" | "dur" | "ts_adj" | "orig_ts" | "orig_dur");
    if time {
        return (x - y).abs() <= TIME_US;
    }
    if a.is_i64() && b.is_i64() {
        return a == b;
    }
    // Quotients of times: these have steps of up to a quarter of a nanosecond, and
    // the shortest that are divided by are some tens of nanoseconds.
    let relative = if at > 1e11 { 2e-4 } else { 1e-5 };
    (x - y).abs() <= relative * x.abs().max(y.abs()) + 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(events: &str) -> Trace {
        Trace::read(format!("{{\"traceEvents\":[{events}]}}").as_bytes()).unwrap()
    }

    const ONE: &str = r#"{"ph":"X","name":"a","pid":0,"tid":1,"ts":1000,"dur":2,"args":{"TS1":"7","jobname":"x(1)"}}"#;

    #[test]
    fn differences_are_found_and_equal_events_are_not() {
        let other = ONE.replace("x(1)", "x(2)").replace("1000", "1000.0005");
        assert_eq!(differences(&trace(ONE), &trace(&other)), [""; 0]);
        for (from, to) in [
            ("\"7\"", "\"8\""),
            ("1000", "1000.002"),
            ("\"dur\":2", "\"dur\":2.002"),
            ("x(1)", "y(1)"),
            ("\"name\":\"a\"", "\"name\":\"b\""),
        ] {
            let other = ONE.replace(from, to);
            assert!(
                !differences(&trace(ONE), &trace(&other)).is_empty(),
                "{from}"
            );
        }
        assert_eq!(differences(&trace(ONE), &trace("")).len(), 1);
    }

    #[test]
    fn order_at_one_time_and_numbers_of_arrows_say_nothing() {
        let second = ONE.replace("\"7\"", "\"8\"");
        let a = trace(&format!("{ONE},{second}"));
        let b = trace(&format!("{second},{ONE}"));
        assert_eq!(differences(&a, &b), [""; 0]);
        let arrow = |id: u32, ts: f64| {
            format!(
                r#"{{"ph":"s","id":{id},"name":"x","pid":0,"tid":0,"ts":1}},{{"ph":"f","id":{id},"name":"x","pid":0,"tid":0,"ts":{ts}}}"#
            )
        };
        let (one, same, wrong) = (arrow(1, 2.0), arrow(9, 2.0), arrow(1, 3.0));
        assert_eq!(differences(&trace(&one), &trace(&same)), [""; 0]);
        assert_eq!(differences(&trace(&one), &trace(&wrong)).len(), 1);
    }
}
