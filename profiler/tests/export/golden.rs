//! Whole outputs, compared byte for byte. `AIPROF_BLESS=1 cargo test` writes
//! them anew.

use crate::fixtures;
use crate::{export, text};
use aiprof::export::diff::{self, ComparedProfile, DiffOptions, SampleCount, Widths};
use aiprof::export::folded;
use aiprof::export::summary::{self, SummaryOptions};
use aiprof::export::{ExportOptions, Weight, formats, pprof};
use aiprof::tables::Cell;
use std::path::Path;

/// Compares with `tests/golden/NAME`, or writes it.
pub(crate) fn check(name: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if std::env::var_os("AIPROF_BLESS").is_some() {
        std::fs::write(&path, actual).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; AIPROF_BLESS=1 makes it", path.display()));
    assert!(
        expected == actual,
        "{name} differs; AIPROF_BLESS=1 accepts this:\n{actual}"
    );
}

/// An SVG without what all have: script and style.
pub(crate) fn own_part(svg: &str) -> String {
    let mut text = svg.to_owned();
    for element in ["style", "script"] {
        let start = text.find(&format!("<{element}")).unwrap();
        let end = text.find(&format!("</{element}>")).unwrap();
        text.replace_range(start..end, "");
    }
    // One element per line, so that a difference can be read.
    text.replace("><", ">\n<") + "\n"
}

#[test]
fn folded_time() {
    check(
        "typical.folded",
        &text(&fixtures::typical(), &formats::FOLDED),
    );
}

#[test]
fn folded_samples() {
    let options = ExportOptions {
        weight: Weight::Samples,
        loss_comments: false,
        ..ExportOptions::default()
    };
    let actual = export(&fixtures::typical(), &formats::FOLDED, &options);
    // Written by hand from the fixture.
    let expected = "\
kworker/0:1;12;kthread_[k] 5
node;88;LazyCompile:*render app.js:12_[j] 10
python3;77;_start;step (train.py)_[p];[no symbols libfoo.so] 15
train;4242;_start;main;Matrix::multiply;Row::dot_[i];fma<float, [4: 4]>_[i] 40
train;4242;_start;main;gemm_kernel_[G];sbid_[g] 10
train;4242;_start;main;read;do_syscall_64_[k];vfs_read_[k] 20
";
    assert_eq!(String::from_utf8(actual).unwrap(), expected);
}

#[test]
fn stacks_begin_with_a_label() {
    let options = ExportOptions {
        weight: Weight::Samples,
        by_label: Some("unit".to_owned()),
        ..ExportOptions::default()
    };
    let folded = export(&fixtures::typical(), &formats::FOLDED, &options);
    let folded = String::from_utf8(folded).unwrap();
    let of_unit = |line: &&str| line.starts_with("unit=job.service;");
    let others = |line: &&str| line.starts_with("[no unit];");
    assert!(folded.lines().any(|line| of_unit(&line)), "{folded}");
    assert!(folded.lines().all(|line| of_unit(&line) || others(&line)));
    let unlabelled = text(&fixtures::typical(), &formats::FOLDED);
    assert_eq!(folded.lines().count(), unlabelled.lines().count());
}

#[test]
fn flame_graph() {
    check(
        "typical.svg",
        &own_part(&text(&fixtures::typical(), &formats::SVG)),
    );
}

#[test]
fn inverted_flame_graph() {
    let options = ExportOptions {
        weight: Weight::Samples,
        inverted: true,
        ..ExportOptions::default()
    };
    let svg = export(&fixtures::typical(), &formats::SVG, &options);
    let svg = String::from_utf8(svg).unwrap();
    assert!(svg.contains("vfs_read (20 samples, 20.00%)"));
    check("typical-inverted.svg", &own_part(&svg));
}

#[test]
fn pprof_messages() {
    let message = pprof::convert(&fixtures::typical(), &ExportOptions::default());
    check("typical.pprof.txt", &format!("{message:#?}\n"));
}

#[test]
fn summaries() {
    for (name, options) in [
        ("typical.summary.txt", SummaryOptions::default()),
        (
            "typical.summary-narrow.txt",
            SummaryOptions {
                width: 50,
                rows: 3,
                color: true,
                ..SummaryOptions::default()
            },
        ),
    ] {
        let mut out = Vec::new();
        summary::write(&fixtures::typical(), &options, &mut out).unwrap();
        check(name, &String::from_utf8(out).unwrap());
    }
}

#[test]
fn titles_say_what_was_recorded() {
    let title = |scope: &str, command: &str, given: &str| {
        let mut profile = fixtures::typical();
        profile.meta.scope = scope.to_owned();
        profile.meta.command = command.to_owned();
        profile.meta.title = given.to_owned();
        let svg = text(&profile, &formats::SVG);
        let (_, rest) = svg.split_once("id=\"title\"").unwrap();
        let (_, rest) = rest.split_once('>').unwrap();
        rest.split_once('<').unwrap().0.to_owned()
    };
    assert_eq!(title("", "", ""), "whole machine, 30.0 s");
    assert_eq!(title("", "make -j8", ""), "whole machine, 30.0 s: make -j8");
    let process = "process 7 (a&b) in cgroup x";
    assert_eq!(
        title(process, "", ""),
        "process 7 (a&amp;b) in cgroup x, 30.0 s"
    );
    assert_eq!(
        title(process, "make", "before the change"),
        "before the change"
    );
}

#[test]
fn the_table_of_totals_begins_where_the_profile_branches() {
    let mut f = fixtures::Fixture::new();
    let names = ["_start", "main", "run", "parse", "render", "draw", "loop"];
    let [start, main, run, parse, render, draw, round] =
        names.map(|name| f.frame(name, aiprof::profile::FrameKind::Native));
    f.samples(1, "web", &[start, main, run, parse], 40);
    f.samples(1, "web", &[start, main, run, render, draw], 30);
    f.samples(1, "web", &[start, main, run, render], 10);
    // Another program: its `main` goes elsewhere, and passes everything on as well.
    f.samples(2, "job", &[start, main, round, round, round], 20);
    let mut out = Vec::new();
    summary::write(&f.builder.finish(), &SummaryOptions::default(), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let (_, table) = text.split_once("Functions by total time").unwrap();
    let table = table.split_once("\n\n").unwrap().0;
    let names: Vec<_> = table
        .lines()
        .skip(2)
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    // Samples out of 100: run 80, parse and render 40, draw 30, loop 20.
    assert_eq!(names, ["run", "parse", "render", "draw", "loop"]);
}

#[test]
fn differences() {
    let before = "web;1;main;parse 600\nweb;1;main;render 300\nweb;1;main;old 100\n";
    let after = "web;2;main;parse 250\nweb;2;main;render 150\nweb;2;main;new 100\n";
    let profile = |text: &str| ComparedProfile {
        stacks: folded::read(&mut text.as_bytes()).unwrap(),
        samples: SampleCount::Known(1000),
        ..ComparedProfile::default()
    };
    let (before, after) = (profile(before), profile(after));
    for (name, widths) in [
        ("diff.svg", Widths::After),
        ("diff-before.svg", Widths::Before),
    ] {
        let options = DiffOptions {
            widths,
            ..DiffOptions::default()
        };
        let mut out = Vec::new();
        let found = diff::compare(&before, &after, &options);
        let (before, after) = (&before.stacks, &after.stacks);
        diff::write_svg(before, after, "a and b", &options, &found, &mut out).unwrap();
        check(name, &own_part(&String::from_utf8(out).unwrap()));
    }
    let options = DiffOptions::default();
    let found = diff::compare(&before, &after, &options);
    let table = diff::table(&before, &after, &options, &found, 10);
    let of = |name: &str| {
        let at = table.columns.iter().position(|column| column.name == name);
        at.unwrap_or_else(|| panic!("{name}: {:?}", table.columns))
    };
    let columns = ["function", "before", "after", "self", "total"].map(of);
    let mut rows: Vec<String> = table
        .rows
        .iter()
        .map(|row| {
            let cells = columns.map(|at| match &row[at] {
                Cell::Text(text) => text.clone(),
                Cell::Number(number) => format!("{number:.2}"),
                other => format!("{other:?}"),
            });
            cells.join(" ")
        })
        .collect();
    rows.sort_unstable();
    // Shares before: 60, 30, 10, 0 %; after: 50, 30, 0, 20 %.
    let expected = [
        "new 0.00 20.00 20.00 20.00",
        "old 10.00 0.00 -10.00 -10.00",
        "parse 60.00 50.00 -10.00 -10.00",
    ];
    for line in expected {
        assert!(rows.iter().any(|row| row == line), "{line}: {rows:?}");
    }
}
