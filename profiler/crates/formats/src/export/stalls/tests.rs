//! Views of a real kernel's stalls, and of hostile names.

use super::*;
use aiprof_model::profile::StallReason;
use aiprof_symbols::symbolize::device::Module;
use aiprof_symbols::symbolize::device::isa::decode;
use aiprof_trace::analyze::device_stalls::{Code, Sampled, StallReport};
use std::io::Read as _;

fn module() -> Module {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../tests/data/zebin/pvc.zebin.gz"
    );
    let packed = std::fs::read(path).unwrap();
    let mut bytes = Vec::new();
    let mut unpacked = flate2::read::GzDecoder::new(packed.as_slice());
    unpacked.read_to_end(&mut bytes).unwrap();
    Module::parse(&bytes).unwrap()
}

/// Samples at every instruction of every kernel, and some astray.
fn report() -> StallReport {
    let module = module();
    let sampled = module.kernels.iter().map(|kernel| {
        let decoded = decode(&kernel.code, module.platform.unwrap());
        let offsets = decoded
            .instructions
            .iter()
            .map(|i| Some(u64::from(i.offset)));
        let all = offsets.chain([Some(1 << 40), None]);
        let row = |(n, offset): (usize, Option<u64>)| {
            let mut samples = Tally::default();
            samples.counts[n % 10] = n as u64 + 1;
            samples.counts[StallReason::Sbid as usize] += 3;
            (offset, samples)
        };
        Sampled {
            device: "GT0".to_owned(),
            kernel: kernel.display.clone(),
            rows: all.enumerate().map(row).collect(),
            code: Ok(Code {
                kernel: kernel.clone(),
                platform: module.platform.unwrap(),
                decoded,
                origin: "pvc.zebin".to_owned(),
                note: String::new(),
            }),
        }
    });
    StallReport::of(
        "a test".to_owned(),
        vec!["made up".to_owned()],
        sampled.collect(),
    )
}

fn text(report: &StallReport, view: &StallView<'_>) -> String {
    let mut out = Vec::new();
    write_text(report, view, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn all<'a>(by: By) -> StallView<'a> {
    StallView {
        by,
        top: None,
        ..StallView::default()
    }
}

#[test]
fn text_fits_the_terminal_and_says_who_holds() {
    let report = report();
    for (by, width) in [
        (By::Kernel, 80),
        (By::Line, 80),
        (By::Instruction, 80),
        (By::Instruction, 120),
        (By::Reason, 100),
    ] {
        let view = StallView { width, ..all(by) };
        let text = text(&report, &view);
        for line in text.lines() {
            assert!(line.chars().count() <= width, "{by:?} {width}: {line}");
            assert_eq!(line.trim_end(), line);
        }
        let says = |words: &str| text.contains(words);
        let holder = "waits for the result of the instruction that holds $6: 0x2c0";
        let is_explained = matches!(by, By::Instruction | By::Reason);
        let joined: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(joined.join(" ").contains(holder), is_explained, "{by:?}");
        assert!(says("demo::Copy") && says("made up") && says("SIMD16") == (by != By::Kernel));
    }
}

#[test]
fn top_and_least_share_hide_rows_and_say_so() {
    let report = report();
    let view = StallView {
        top: Some(2),
        ..StallView::default()
    };
    let shown = text(&report, &view);
    assert_eq!(shown.matches("more instructions").count(), 2);
    assert!(shown.contains("... and 3 more kernels"));
    let view = StallView {
        min_percent: 100.0,
        ..all(By::Kernel)
    };
    assert!(text(&report, &view).contains("... and 5 more kernels"));
    let colored = StallView {
        color: true,
        ..all(By::Instruction)
    };
    let plain = text(&report, &all(By::Instruction));
    let colored = text(&report, &colored);
    let stripped = ["\x1b[1m", "\x1b[0m", "\x1b[31m", "\x1b[33m"]
        .iter()
        .fold(colored.clone(), |t, c| t.replace(c, ""));
    assert_eq!(stripped, plain);
    assert_ne!(colored, plain);
}

/// Cells of a CSV file of ours.
fn cells(csv: &str) -> Vec<Vec<String>> {
    let (mut rows, mut row, mut cell, mut is_quoted) =
        (Vec::new(), Vec::new(), String::new(), false);
    let mut letters = csv.chars().peekable();
    while let Some(c) = letters.next() {
        match c {
            '"' if is_quoted && letters.peek() == Some(&'"') => {
                letters.next();
                cell.push('"');
            }
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => row.push(std::mem::take(&mut cell)),
            '\r' if !is_quoted => {}
            '\n' if !is_quoted => {
                row.push(std::mem::take(&mut cell));
                rows.push(std::mem::take(&mut row));
            }
            c => cell.push(c),
        }
    }
    rows
}

#[test]
fn every_sample_is_in_csv_and_json_once() {
    let report = report();
    let total = report.samples.total();
    for by in [By::Kernel, By::Line, By::Instruction] {
        let mut csv = Vec::new();
        write_csv(&report, &all(by), &mut csv).unwrap();
        let rows = cells(std::str::from_utf8(&csv).unwrap());
        let at = rows[0].iter().position(|name| name == "samples").unwrap();
        let number = |cell: &String| cell.parse::<u64>().unwrap();
        let sum: u64 = rows[1..].iter().map(|row| number(&row[at])).sum();
        let by_reason: u64 = rows[1..]
            .iter()
            .flat_map(|row| &row[at + 1..])
            .map(number)
            .sum();
        assert_eq!((sum, by_reason), (total, total), "{by:?}");
        assert!(rows.iter().all(|row| row.len() == at + 11));
    }
    let mut json = Vec::new();
    write_json(&report, &all(By::Instruction), &mut json).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let sum = |list: &str| -> u64 {
        let kernels = json["kernels"].as_array().unwrap().iter();
        let rows = kernels.flat_map(|kernel| kernel[list].as_array().unwrap());
        rows.map(|row| row["samples"]["total"].as_u64().unwrap())
            .sum()
    };
    assert_eq!((sum("lines"), sum("instructions")), (total, total));
    assert_eq!(json["samples"]["total"], total);
}

#[test]
fn listings_have_every_instruction_and_source_lines() {
    let report = report();
    let source = |file: &str, line: u32| Some(format!("text of {line} in {file}"));
    let view = StallView {
        source: &source,
        ..all(By::Instruction)
    };
    let mut out = Vec::new();
    write_listing(&report, &view, &mut out).unwrap();
    let listing = String::from_utf8(out).unwrap();
    let instructions: usize = module()
        .kernels
        .iter()
        .map(|k| {
            decode(&k.code, module().platform.unwrap())
                .instructions
                .len()
        })
        .sum();
    let lines = listing.lines().filter(|line| {
        let at = line.get(3..).unwrap_or_default().trim_start();
        at.starts_with("0x") && !line.contains("[no instruction")
    });
    assert_eq!(lines.count(), instructions);
    assert_eq!(listing.matches("[no instruction there]").count(), 5);
    assert!(listing.contains("field.cl:34: text of 34 in"));
    assert!(listing.contains("<- 0x2c0"));
    assert!(
        !listing.contains("field.cl:30: text of 30 in /src/device/field.cl\n   // field.cl:30")
    );
}

#[test]
fn hostile_names_are_text_everywhere() {
    let evil = "<script>alert(1)</script>\u{202e}\x1b[31m\n\",=cmd";
    let sampled = Sampled {
        device: evil.to_owned(),
        kernel: evil.to_owned(),
        code: Err(evil.to_owned()),
        rows: vec![
            (
                Some(u64::MAX),
                Tally {
                    counts: [u64::MAX; 10],
                },
            ),
            (None, Tally::default()),
        ],
    };
    let report = StallReport::of(evil.to_owned(), vec![evil.to_owned()], vec![sampled]);
    let mut page = Vec::new();
    crate::export::html::stalls::write(&report, &all(By::Instruction), true, &mut page).unwrap();
    let page = String::from_utf8(page).unwrap();
    assert!(!page.contains("<script") && !page.contains('\x1b') && !page.contains('\u{202e}'));
    for by in [By::Kernel, By::Line, By::Instruction, By::Reason] {
        let text = text(&report, &all(by));
        assert!(!text.contains('\x1b'));
    }
    let mut listing = Vec::new();
    write_listing(&report, &all(By::Line), &mut listing).unwrap();
    assert!(!listing.contains(&0x1b));
    let mut csv = Vec::new();
    write_csv(&report, &all(By::Instruction), &mut csv).unwrap();
    assert_eq!(cells(std::str::from_utf8(&csv).unwrap())[1][1], evil);
    let mut json = Vec::new();
    write_json(&report, &all(By::Instruction), &mut json).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["kernels"][0]["name"], evil);
}

#[test]
fn links_of_the_page_lead_to_instructions_of_it() {
    let mut page = Vec::new();
    let report = report();
    crate::export::html::stalls::write(&report, &all(By::Instruction), false, &mut page).unwrap();
    let page = String::from_utf8(page).unwrap();
    let mut links = 0;
    for link in page.split("href=\"#").skip(1) {
        let target = link.split('"').next().unwrap();
        assert!(page.contains(&format!("id=\"{target}\"")), "{target}");
        links += 1;
    }
    assert!(links > 500, "{links}");
    // Nothing is loaded, nothing runs.
    for word in [
        "http:", "https:", "src=\"", "<link", "<script", "@import", "url(",
    ] {
        assert!(!page.contains(word), "{word}");
    }
    // Each element is closed as often as it is opened.
    for element in [
        "table", "tr", "td", "section", "ul", "li", "details", "svg", "div",
    ] {
        let opened = page.matches(&format!("<{element}>")).count()
            + page.matches(&format!("<{element} ")).count();
        assert_eq!(
            opened,
            page.matches(&format!("</{element}>")).count(),
            "{element}"
        );
    }
}
