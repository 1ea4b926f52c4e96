//! What is printed: lines that scripts may look for.

use std::collections::BTreeMap;

/// Information is compared where it is a result; the rest describes how the original works inside.
const RESULTS: [&str; 8] = [
    "FREQ: ",
    "ITSTATS: ",
    "UTL: pid",
    "PEC event",
    "DTC ",
    "FLTR: ",
    "MP SYNC: ",
    "Power ",
];

/// What follows is a list in no order, or a hash.
const UNORDERED: [&str; 5] = [
    "out-of-order input events.",
    " jobs: {",
    "FREQ: job: (",
    " filters enabled:",
    "with table fingerprinting:",
];
/// The original prints these for each event; printing them once is enough.
const OF_EACH: [&str; 2] = ["Detected overlap conflict", "Solving overlap conflict by"];

/// The warnings, errors and results of an output, each with its level before it, and how often each
/// was printed.
#[must_use]
pub fn lines(output: &str) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for line in output.lines() {
        let plain = without_colours(line);
        let Some((level, text)) = leveled(&plain) else {
            continue;
        };
        if let Some(once) = OF_EACH.iter().find(|once| text.starts_with(**once)) {
            found.insert(format!("{level} {once}"), 1);
            continue;
        }
        let result = RESULTS.iter().any(|result| text.starts_with(result));
        // The original names the wrong file here.
        let text = match text.split_once("Ingestion: ..") {
            Some((_, rest)) => {
                format!("Ingestion: {}", rest.split_once(' ').map_or("", |(_, r)| r))
            }
            None => text.to_owned(),
        };
        // Microseconds, which the original calls milliseconds.
        let text = if text.starts_with("Power with") {
            text.replace("ms,", "us,").replace("ms)", "us)")
        } else {
            text
        };
        if matches!(level, "WARNING" | "ERROR") || result {
            *found.entry(format!("{level} {text}")).or_default() += 1;
        }
    }
    found
}

/// `2026-11-21T21:15:39.940427  WARNING text` without its time.
fn leveled(line: &str) -> Option<(&str, &str)> {
    let (time, rest) = line.split_once(' ')?;
    let dated = time.len() >= 19 && time.as_bytes().get(10) == Some(&b'T');
    let (level, mut text) = rest.trim_start().split_once(' ')?;
    for cause in UNORDERED {
        if let Some(at) = text.find(cause) {
            text = &text[..at + cause.len()];
        }
    }
    // Ours also names the place.
    if let Some((first, _)) = text.split_once(" (first in ") {
        text = first;
    }
    dated.then_some((level, text.trim()))
}

fn without_colours(line: &str) -> String {
    let mut plain = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        plain.push_str(before);
        rest = after.split_once('m').map_or("", |(_, after)| after);
    }
    plain.push_str(rest);
    plain
}

/// How the original's lines begin. Ours prints more lines, about what only it knows.
const ITS_WORDS: [&str; 22] = [
    "Ingestion: ",
    "INGEST: ",
    "Partial-overlap",
    "OVC: ",
    "PEC ",
    "UTL: ",
    "ITSTATS: ",
    "FREQ: Detected",
    "FREQ: Min/Max",
    "FREQ: Recommendation",
    "FREQ: job",
    "FREQ: aiu",
    "FLOW",
    "CAT: ",
    "TS_SEQUENCE",
    "Detected ",
    "MP SYNC",
    "DTC ",
    "STATS",
    "Kernel-Parent",
    "TB_EXPORTER",
    "FLTR: ",
];

/// Lines that the two sides print a different number of times. Numbers may differ in their last
/// digit, and ours may add words of its own.
#[must_use]
pub fn differences(theirs: &str, ours: &str) -> Vec<String> {
    let (mut theirs, mut ours) = (spread(theirs), spread(ours));
    theirs.retain(
        |line| match ours.iter().position(|other| same(line, other)) {
            Some(at) => {
                ours.remove(at);
                false
            }
            None => true,
        },
    );
    ours.retain(|line| {
        let text = line.split_once(' ').map_or("", |(_, text)| text);
        ITS_WORDS.iter().any(|words| text.starts_with(words))
    });
    // One of its two counts is of nothing.
    theirs.retain(|line| !line.ends_with("PEC event stats o/i: 0 / 0"));
    let there = theirs.into_iter().map(|line| format!("only there: {line}"));
    there
        .chain(ours.into_iter().map(|line| format!("only here: {line}")))
        .collect()
}

fn spread(output: &str) -> Vec<String> {
    let lines = lines(output).into_iter();
    lines
        .flat_map(|(line, count)| std::iter::repeat_n(line, count))
        .collect()
}

fn same(a: &str, b: &str) -> bool {
    let split = |text: &str| -> Vec<String> {
        let words = text.split([' ', '=', ',', ':']);
        words.map(str::to_owned).collect()
    };
    let (a, b) = (split(a), split(b));
    a.len() == b.len()
        && a.iter()
            .zip(&b)
            .all(|(a, b)| match (a.parse::<f64>(), b.parse::<f64>()) {
                // Durations of the original have steps of a quarter of a nanosecond.
                (Ok(x), Ok(y)) if a.contains('.') => (x - y).abs() <= 1e-4 * x.abs() + 0.0011,
                _ => a == b,
            })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_found_without_times_and_colours() {
        let theirs = "2026-11-21T21:15:39.944886 \u{1b}[93m WARNING\u{1b}[0m FREQ: Detected 1.795 \n\
                      2026-11-21T21:15:39.944963     INFO ITSTATS: [0] n=0 \n\
                      2026-11-21T21:15:39.944963     INFO Reading files \n";
        let found = lines(theirs);
        assert_eq!(
            found.keys().collect::<Vec<_>>(),
            ["INFO ITSTATS: [0] n=0", "WARNING FREQ: Detected 1.795"]
        );
        let ours = theirs.replace("1.795", "1.796").replace("21:15", "21:16");
        assert_eq!(differences(theirs, &ours), [""; 0]);
        assert_eq!(differences(theirs, &theirs.replace("n=0", "n=1")).len(), 2);
        let more = theirs.replace(
            "ITSTATS: [0] n=0",
            "ITSTATS: [0] n=0 (first in x at byte 3)",
        );
        assert_eq!(differences(theirs, &more), [""; 0]);
        assert_eq!(
            differences(theirs, &theirs.replace("INFO ITSTATS: [0] n=0", "")).len(),
            1
        );
    }
}
