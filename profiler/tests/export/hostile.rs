//! Names and profiles that are made to break writers.

use crate::fixtures::{self, Fixture};
use crate::{export, text};
use aiprof::export::diff::{self, ComparedProfile, DiffOptions, SampleCount};
use aiprof::export::summary::{self, SummaryOptions};
use aiprof::export::{
    ExportError, ExportOptions, FileFormat, Weight, folded, formats, otlp, pprof, svg,
};
use aiprof::profile::{
    FrameId, FrameKind, LocationId, LossKind, ProcessId, Profile, Sample, StackId, StrId,
};
use aiprof_model::visible;
use aiprof_tables::compare::shares::SharesCompared;

fn names() -> Vec<String> {
    [
        "alloc::vec::Vec<[u8; 4]>::push",
        "line\nbreak\r\nand\ttab",
        "nul\0inside",
        "<script>alert('&amp;')</script> & \"quotes\"",
        "]]> --> <!-- ",
        "🔥🐍 unicode ünïcödé \u{202e}",
        "\u{1}\u{8}\u{1b}[31m\u{7f}\u{85}\u{2028}\u{fffe}",
        "",
        " ",
        ";",
        ";;;",
        "Thread 12",
        "1 2 3",
        "42",
        "# comment",
        "-",
        "--",
        "a_[k]",
        "_[]]",
        "_[",
        "é]",
    ]
    .map(str::to_owned)
    .into_iter()
    .chain([
        "x".repeat(100_000),
        "日本".repeat(50_000),
        "a;b ".repeat(30_000),
    ])
    .collect()
}

fn hostile(kind: FrameKind) -> Profile {
    let names = names();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut profile = fixtures::with_names(&names, kind);
    for text in [
        &mut profile.meta.title,
        &mut profile.meta.host,
        &mut profile.meta.kernel,
        &mut profile.meta.command,
        &mut profile.meta.scope,
    ] {
        *text = names.concat();
    }
    profile
}

/// Fails unless `text` is one well-formed XML document that XML 1.0 allows.
fn assert_xml(text: &str) {
    let bad = text
        .chars()
        .find(|&c| matches!(c, '\0'..='\x08' | '\x0b' | '\x0c' | '\x0e'..='\x1f' | '\u{fffe}' | '\u{ffff}'));
    assert_eq!(bad, None);
    let mut open = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find('<') {
        assert!(!rest[..start].contains("]]>"), "]]> in text");
        rest = &rest[start..];
        let end = if rest.starts_with("<!--") {
            let end = rest.find("-->").unwrap() + 3;
            assert!(!rest[4..end - 3].contains("--"), "-- in a comment");
            end
        } else if rest.starts_with("<![CDATA[") {
            rest.find("]]>").unwrap() + 3
        } else {
            let end = rest.find('>').unwrap() + 1;
            let tag = &rest[1..end - 1];
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name.to_owned()));
            } else if !tag.starts_with(['?', '!']) && !tag.ends_with('/') {
                let name = tag.split_whitespace().next().unwrap();
                open.push(name.to_owned());
            }
            end
        };
        rest = &rest[end..];
    }
    assert!(open.is_empty(), "{open:?} not closed");
}

#[test]
fn folded_lines_stay_apart() {
    for kind in [FrameKind::Native, FrameKind::Kernel, FrameKind::Unknown] {
        let profile = hostile(kind);
        let text = text(&profile, &formats::FOLDED);
        for line in text.lines() {
            let (stack, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<u64>().is_ok(), "{value}");
            let frames: Vec<&str> = stack.split(';').collect();
            assert_eq!(frames.len(), 4, "{stack}");
            assert_eq!((frames[1], frames[2]), ("1", "main"));
            assert!(frames.iter().all(|f| !f.is_empty() && f.len() <= 4200));
            // A leaf that ends in a number would be read as a second value.
            let last_word = stack.rsplit(' ').next().unwrap();
            let is_number = last_word.bytes().all(|b| b.is_ascii_digit());
            assert!(!is_number || !stack.contains(' '), "{stack}");
        }
        let read = folded::read(&mut text.as_bytes()).unwrap();
        // Nanoseconds to microseconds, rounded.
        assert_eq!(read.total, (profile.total_time_ns() + 500) / 1000);
        assert_eq!(read.stacks.len(), text.lines().count());
    }
}

#[test]
fn flame_graphs_stay_well_formed() {
    for kind in [
        FrameKind::Native,
        FrameKind::Interpreter,
        FrameKind::Unknown,
    ] {
        for inverted in [false, true] {
            let options = ExportOptions {
                inverted,
                ..ExportOptions::default()
            };
            let svg = export(&hostile(kind), &formats::SVG, &options);
            let svg = String::from_utf8(svg).unwrap();
            assert_xml(&svg);
            assert!(svg.contains("&lt;script&gt;alert"));
        }
    }
}

#[test]
fn names_that_are_prefixes_of_others_are_drawn_once() {
    // By bytes, `b c` lies between `b` and `b;d`: a line sort would tear `b`.
    let mut f = Fixture::new();
    let [a, b, bc, d] = ["a", "b", "b c", "d"].map(|name| f.frame(name, FrameKind::Native));
    f.samples(1, "x", &[a, b], 10);
    f.samples(1, "x", &[a, bc], 10);
    f.samples(1, "x", &[a, b, d], 10);
    let options = ExportOptions {
        weight: Weight::Samples,
        ..ExportOptions::default()
    };
    let svg = export(&f.builder.finish(), &formats::SVG, &options);
    let svg = String::from_utf8(svg).unwrap();
    assert_eq!(
        svg.matches("<title>b (20 samples, 66.67%)</title>").count(),
        1
    );
    assert_eq!(svg.matches("<title>b (").count(), 1);
}

#[test]
fn other_writers_take_hostile_names() {
    let profile = hostile(FrameKind::Native);
    let message = pprof::convert(&profile, &ExportOptions::default());
    assert!(message.string_table.iter().any(|s| s == "nul\0inside"));
    for width in [0, 40, 200] {
        let mut out = Vec::new();
        let options = SummaryOptions {
            width,
            rows: 100,
            color: false,
            ..SummaryOptions::default()
        };
        summary::write(&profile, &options, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()));
        let longest = text.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(width.max(64)), "{longest:?} at {width}");
    }
}

#[test]
fn otlp_has_no_text_that_hides_others() {
    let profile = hostile(FrameKind::Native);
    let data = otlp::convert(&profile, &ExportOptions::default());
    let texts = data.dictionary.unwrap().string_table;
    assert!(texts.iter().any(|text| text.contains("unicode")));
    for text in texts {
        assert!(!text.contains(visible::is_unsafe), "{text:?}");
    }
}

#[test]
fn empty_profiles_say_so() {
    let profile = fixtures::empty();
    assert_eq!(text(&profile, &formats::FOLDED), "");
    let svg = text(&profile, &formats::SVG);
    assert_xml(&svg);
    assert!(svg.contains("No samples were recorded") && svg.contains("node-7"));
    let message = pprof::convert(&profile, &ExportOptions::default());
    assert_eq!(message.sample_type.len(), 2);
    assert!(message.sample.is_empty());
    assert!(
        message
            .string_table
            .iter()
            .any(|s| s == "no samples were recorded")
    );
    let mut out = Vec::new();
    summary::write(&profile, &SummaryOptions::default(), &mut out).unwrap();
    assert!(
        String::from_utf8(out)
            .unwrap()
            .contains("No samples were recorded.")
    );
    let nothing = folded::FoldedStacks::default();
    let mut out = Vec::new();
    let none = SharesCompared::default();
    let options = DiffOptions::default();
    diff::write_svg(&nothing, &nothing, "x", &options, &none, &mut out).unwrap();
    assert_xml(&String::from_utf8(out).unwrap());
}

#[test]
fn one_empty_recording_still_compares() {
    let nothing = folded::FoldedStacks::default();
    let some = folded::read(&mut &b"a;b 5"[..]).unwrap();
    for (before, after) in [(&nothing, &some), (&some, &nothing)] {
        for widths in [diff::Widths::After, diff::Widths::Before] {
            let options = DiffOptions {
                widths,
                ..DiffOptions::default()
            };
            let mut out = Vec::new();
            let of = |stacks: &folded::FoldedStacks| ComparedProfile {
                stacks: stacks.clone(),
                samples: SampleCount::Known(stacks.total),
                ..ComparedProfile::default()
            };
            let found = diff::compare(&of(before), &of(after), &options);
            diff::write_svg(before, after, "x", &options, &found, &mut out).unwrap();
            assert_xml(&String::from_utf8(out).unwrap());
            let table = diff::table(&of(before), &of(after), &options, &found, 5);
            assert_eq!(table.rows[0].last(), Some(&"b".into()));
        }
    }
}

/// A profile whose handles lead nowhere.
fn dangling() -> Profile {
    let mut profile = fixtures::typical();
    profile.samples.push(Sample {
        process: ProcessId(999),
        tid: 1,
        thread: StrId(999),
        cgroup: Some(StrId(999)),
        stack: StackId(999),
        count: 1,
        time_ns: 1_000_000,
        bytes: 0,
        device: None,
    });
    profile.locations[0].frames.push(FrameId(999));
    profile.locations[1].frames.clear();
    profile.stacks[0].locations.push(LocationId(999));
    profile
}

#[test]
fn dangling_handles_are_survived() {
    let profile = dangling();
    for format in [
        &formats::FOLDED,
        &formats::SVG,
        &formats::PPROF,
        FileFormat::named("otlp").unwrap(),
    ] {
        let bytes = export(&profile, format, &ExportOptions::default());
        assert!(bytes.len() > 100, "{format:?}");
    }
    let folded = text(&profile, &formats::FOLDED);
    assert!(folded.lines().any(|line| line == "[unknown];0 1000"));
    let mut out = Vec::new();
    summary::write(&profile, &SummaryOptions::default(), &mut out).unwrap();
    assert!(String::from_utf8(out).unwrap().contains("[unknown]"));
}

#[test]
fn weights_that_do_not_add_up_are_refused() {
    let mut profile = dangling();
    for sample in &mut profile.samples {
        sample.count = u64::MAX;
        sample.time_ns = u64::MAX;
    }
    profile.losses.add(LossKind::RingDrops, u64::MAX);
    profile.losses.add(LossKind::TableFull, u64::MAX);
    for weight in [Weight::Time, Weight::Samples] {
        for format in [&formats::FOLDED, &formats::SVG] {
            let options = ExportOptions {
                weight,
                ..ExportOptions::default()
            };
            let error =
                (format.profile_writer().unwrap().write)(&profile, &options, &mut Vec::new())
                    .unwrap_err();
            assert!(matches!(error, ExportError::WeightsTooLarge), "{error}");
        }
    }
    // pprof's numbers stop at their limit.
    let message = pprof::convert(&profile, &ExportOptions::default());
    assert_eq!(message.sample[0].value, [i64::MAX, i64::MAX]);
    let mut out = Vec::new();
    summary::write(&profile, &SummaryOptions::default(), &mut out).unwrap();
    assert!(!out.is_empty());
}

#[test]
fn any_folded_text_can_be_drawn() {
    let most = folded::MAX_TOTAL;
    let text = format!("a;;b 1\n; 1\n<&>\x01;x_[k] {}\n", most - 2);
    let other = folded::read(&mut format!("y {most}").as_bytes()).unwrap();
    let stacks = folded::read(&mut text.as_bytes()).unwrap();
    let mut out = Vec::new();
    let options = ExportOptions {
        min_width_percent: 0.0,
        ..ExportOptions::default()
    };
    svg::write_folded(&stacks, &svg::Caption::default(), &options, &mut out).unwrap();
    assert_xml(&String::from_utf8(out).unwrap());
    let mut out = Vec::new();
    let none = SharesCompared::default();
    let options = DiffOptions::default();
    diff::write_svg(&stacks, &other, "x", &options, &none, &mut out).unwrap();
    assert_xml(&String::from_utf8(out).unwrap());
}
