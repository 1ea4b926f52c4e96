//! Counting tests: what cargo-nextest writes down of a run.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::counts::{Counts, excerpt, skip_line};

/// One test of a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Case {
    /// Its program and its name: `aiprof-tests::ci alone::labels::pods_have_names`.
    pub(crate) name: String,
    pub(crate) seconds: f64,
}

/// Reads the counts of a run, and the time of each test, the longest first.
pub(crate) fn read(path: &Path) -> Result<(Counts, Vec<Case>)> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    parse(&text).with_context(|| path.display().to_string())
}

fn parse(text: &str) -> Result<(Counts, Vec<Case>)> {
    let document = roxmltree::Document::parse(text)?;
    let (mut counts, mut cases) = (Counts::default(), Vec::new());
    let nodes = document.descendants();
    for node in nodes.filter(|node| node.has_tag_name("testcase")) {
        let of = |name| node.attribute(name).unwrap_or_default();
        let name = format!("{} {}", of("classname"), of("name"));
        let texts: Vec<&str> = node.descendants().filter_map(|n| n.text()).collect();
        let lines = || texts.iter().flat_map(|text| text.lines());
        let is_failed =
            |n: &roxmltree::Node<'_, '_>| n.has_tag_name("failure") || n.has_tag_name("error");
        if node.children().any(|n| is_failed(&n)) {
            counts.outputs.push((name.clone(), excerpt(lines())));
            counts.fail(name.clone());
        } else if let Some(skip) = lines().find_map(skip_line) {
            counts.skip(skip);
        } else {
            counts.pass();
        }
        let seconds = of("time").parse().unwrap_or(0.0);
        cases.push(Case { name, seconds });
    }
    cases.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    Ok((counts, cases))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="3" failures="1" errors="0" time="1.5">
  <testsuite name="aiprof-tests::ci" tests="3" disabled="0" errors="0" failures="1">
    <testcase name="alone::storms::a" classname="aiprof-tests::ci" time="1.250">
      <system-out>running 1 test
it went &lt;well&gt;</system-out></testcase>
    <testcase name="alone::storms::b" classname="aiprof-tests::ci" time="2.5">
      <failure type="test failure">1 is not 2</failure>
      <system-err>thread panicked</system-err></testcase>
    <testcase name="files::c" classname="aiprof-tests::ci" time="0.125">
      <system-out>
skipped: c: needs &quot;root&quot;
skipped: c: needs root</system-out></testcase>
  </testsuite>
</testsuites>"#;

    #[test]
    fn counts_and_times_are_read() {
        let (counts, cases) = parse(TEXT).unwrap();
        assert_eq!(counts.to_string(), "1 passed, 1 failed, 1 skipped");
        assert_eq!(counts.failures, ["aiprof-tests::ci alone::storms::b"]);
        assert_eq!(counts.skips, ["c: needs \"root\""]);
        assert!(
            counts
                .details()
                .contains("    1 is not 2\n    thread panicked\n")
        );
        assert_eq!(cases[0].seconds, 2.5);
    }

    #[test]
    fn a_file_that_is_cut_off_is_an_error() {
        assert!(parse(&TEXT[..TEXT.len() / 2]).is_err());
    }
}
