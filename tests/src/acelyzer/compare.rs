//! All differences between two runs.

use serde_json::Value;

use super::run::Ran;
use super::{console, table, trace};

/// Most differences of one file that are listed.
const TOLD: usize = 25;

/// Everything in which two runs differ, one line each, led by the file's name (or
/// `console`, `status`). Differences that contain one of `intended` are left out.
#[must_use]
pub fn differences(theirs: &Ran, ours: &Ran, intended: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut add = |name: &str, all: Vec<String>| {
        let mut told: Vec<_> = all
            .into_iter()
            .map(|one| format!("{name}: {one}"))
            .collect();
        told.retain(|one| !intended.iter().any(|text| one.contains(text)));
        let more = told.len().saturating_sub(TOLD);
        told.truncate(TOLD);
        if more > 0 {
            told.push(format!("{name}: and {more} more"));
        }
        found.extend(told);
    };
    if theirs.code != ours.code {
        let text = format!(
            "{:?} there, {:?} here; {}",
            theirs.code, ours.code, ours.stderr
        );
        add("status", vec![text]);
    }
    // The original prints everything on stdout.
    let said = format!("{}{}", ours.stdout, ours.stderr);
    add("console", console::differences(&theirs.stdout, &said));
    for name in theirs
        .files
        .keys()
        .filter(|name| !ours.files.contains_key(*name))
    {
        add(name, vec!["only there".to_owned()]);
    }
    for name in ours
        .files
        .keys()
        .filter(|name| !theirs.files.contains_key(*name))
    {
        add(name, vec!["only here".to_owned()]);
    }
    for (name, theirs) in &theirs.files {
        if let Some(ours) = ours.files.get(name) {
            add(name, file(name, theirs, ours));
        }
    }
    found
}

fn file(name: &str, theirs: &[u8], ours: &[u8]) -> Vec<String> {
    if !name.ends_with(".json") {
        let text = String::from_utf8_lossy;
        return table::differences(&text(theirs), &text(ours));
    }
    if name.ends_with("report.json") {
        return report(theirs, ours);
    }
    match (trace::Trace::read(theirs), trace::Trace::read(ours)) {
        (Ok(theirs), Ok(ours)) => {
            let mut found = top(&theirs.top, &ours.top);
            let tool = ours.other["Application"].as_str().unwrap_or_default();
            // Else acelyzer would not know its own output.
            if !tool.contains("Acelyzer") {
                found.push(format!("otherData.Application is {tool:?}"));
            }
            found.extend(trace::differences(&theirs, &ours));
            found
        }
        (Ok(_), Err(error)) => vec![format!("cannot be read: {error:#}")],
        (Err(error), _) => vec![format!("the original's cannot be read: {error:#}")],
    }
}

/// Compares what stands beside the events. A list whose devices are all empty is no truth.
fn top(theirs: &Value, ours: &Value) -> Vec<String> {
    let empty = serde_json::Map::new();
    let (theirs, ours) = (
        theirs.as_object().unwrap_or(&empty),
        ours.as_object().unwrap_or(&empty),
    );
    let says_nothing = |value: &Value| {
        let list = value.as_array();
        list.is_some_and(|list| list.iter().all(|one| one == &serde_json::json!({})))
    };
    let mut found = Vec::new();
    for (key, value) in theirs {
        match ours.get(key) {
            Some(other) if other == value || says_nothing(value) => {}
            other => found.push(format!("top {key}: {value} there, {other:?} here")),
        }
    }
    let more = ours.keys().filter(|key| !theirs.contains_key(*key));
    found.extend(more.map(|key| format!("top {key}: only here")));
    found
}

/// Verification reports, without the command line.
fn report(theirs: &[u8], ours: &[u8]) -> Vec<String> {
    let read = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes);
    let (Ok(mut theirs), Ok(mut ours)) = (read(theirs), read(ours)) else {
        return vec!["cannot be read".to_owned()];
    };
    let mut found = Vec::new();
    for report in [&mut theirs, &mut ours] {
        if let Some(report) = report.as_object_mut() {
            report.remove("metadata");
        }
    }
    for key in [
        "version",
        "result",
        "test_results",
        "errors",
        "warnings",
        "passed",
    ] {
        if theirs[key] != ours[key] {
            found.push(format!("{key}: {} there, {} here", theirs[key], ours[key]));
        }
    }
    found
}
