//! Whatever is in a file, `aiprof acelyzer` and `aiprof analyze` report what is wrong with it, and
//! where, and write what can be read; they never crash.

use std::fmt::Write as _;
use std::ops::Range;
use std::process::Command;

use anyhow::Context as _;
use serde_json::{Value, json};

use aiprof_tests::acelyzer::run::Ran;
use aiprof_tests::acelyzer::{Input, Which};
use aiprof_tests::aiprof::binary;
use aiprof_tests::aiu_trace::flex::Pairs;
use aiprof_tests::aiu_trace::json::{Packing, Values};
use aiprof_tests::aiu_trace::scenario::Collectives;
use aiprof_tests::aiu_trace::{Flex, Latency, Scenario, Shape, Torch};
use aiprof_tests::workload::Workshop;

/// Both commands, as one runs them on `in.json`.
const COMMANDS: [(Which, &str); 2] = [
    (Which::Ours, "-i in.json -o out.json"),
    (Which::Analyze, "in.json -o out.json"),
];

/// An event of a list, `before` and `after` its duration as given.
fn span(name: &str, ts: f64, dur: &str, args: &Value) -> String {
    format!(
        "{{\"ph\":\"X\",\"name\":\"{name}\",\"pid\":0,\"tid\":7,\"ts\":{ts:.3},\"dur\":{dur},\"args\":{args}}}"
    )
}

fn counters(first: u64) -> Value {
    json!({
        "TS1": first, "TS2": first, "TS3": first + 5000, "TS4": first + 55_700,
        "TS5": first + 55_706, "Power": first / 2,
    })
}

/// A list of kernels 200 us apart.
fn kernels(count: u32) -> Vec<String> {
    let kernel = |i: u32| {
        let args = counters(1_000_000 + 111_410 * u64::from(i));
        span(
            "add_1 Cmpt Exec",
            1e9 + 200.0 * f64::from(i),
            "91.000",
            &args,
        )
    };
    (0..count).map(kernel).collect()
}

fn list(events: &[String]) -> String {
    format!("[\n{}\n]\n", events.join(",\n"))
}

/// A file beside the trace that is refused is found before the others have their names.
#[test]
fn of_the_files_beside_a_trace_all_are_written_or_none() -> anyhow::Result<()> {
    let shop = Workshop::new()?;
    std::fs::write(shop.path("in.json"), list(&kernels(5)))?;
    let analyze = || -> anyhow::Result<bool> {
        let mut command = Command::new(binary()?);
        command.args(["analyze", "in.json", "-o", "out.json"]);
        let output = command.current_dir(shop.path("")).output()?;
        Ok(output.status.success())
    };
    let names = || -> anyhow::Result<Vec<String>> {
        let entries = std::fs::read_dir(shop.path(""))?;
        let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let mut names = names.collect::<anyhow::Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    };
    for refused in ["out_report.html", "out_summary.csv"] {
        std::fs::create_dir(shop.path(refused))?;
        anyhow::ensure!(!analyze()?, "{refused} is a directory");
        let left = names()?;
        anyhow::ensure!(left == ["in.json", refused], "{left:?}");
        std::fs::remove_dir(shop.path(refused))?;
    }
    anyhow::ensure!(analyze()?, "nothing is refused");
    let all = names()?;
    for name in ["out.json", "out_report.html", "out_summary.csv"] {
        anyhow::ensure!(all.iter().any(|it| it == name), "no {name}: {all:?}");
    }
    Ok(())
}

/// What every run must do: end by itself, and not by a panic.
fn sound(ran: &Ran) -> anyhow::Result<()> {
    let said = format!("{}{}", ran.stdout, ran.stderr);
    anyhow::ensure!(!said.contains("panicked"), "it panicked:\n{said}");
    anyhow::ensure!(
        matches!(ran.code, Some(0..=3)),
        "status {:?}\n{said}",
        ran.code
    );
    Ok(())
}

/// The spans of an output.
fn spans(ran: &Ran) -> anyhow::Result<Vec<Value>> {
    let trace = ran.json("out.json")?;
    let events = trace["traceEvents"].as_array().context("no events")?;
    let spans = events.iter().filter(|event| event["ph"] == "X");
    Ok(spans.cloned().collect())
}

/// All byte offsets in messages that name the file.
fn offsets(ran: &Ran) -> Vec<usize> {
    let said = format!("{}\n{}", ran.stdout, ran.stderr);
    let lines = said.lines().filter(|line| line.contains("in.json"));
    let numbers = |line: &str| -> Vec<usize> {
        let parts = line.match_indices("byte ");
        parts
            .filter_map(|(at, word)| {
                let rest = line[at + word.len()..].replace(',', "");
                let end = rest
                    .find(|c: char| !c.is_ascii_digit())
                    .unwrap_or(rest.len());
                rest[..end].parse().ok()
            })
            .collect()
    };
    lines.flat_map(numbers).collect()
}

/// Runs both commands on a file that is odd or damaged (status 3 of ours). Each must write what is
/// intact, name the file and a byte in `place`, and write `expected` spans.
fn told(text: &str, place: &Range<usize>, expected: usize) -> anyhow::Result<()> {
    for (which, args) in COMMANDS {
        let ran = which.run(&Input::one("in.json", text), args)?;
        sound(&ran)?;
        let is_own = which == Which::Analyze;
        anyhow::ensure!(
            ran.code == Some(0) || (is_own && ran.code == Some(3)),
            "{which:?} {:?}\n{}{}",
            ran.code,
            ran.stdout,
            ran.stderr
        );
        let found = offsets(&ran);
        anyhow::ensure!(
            found.iter().any(|offset| place.contains(offset)),
            "{which:?}: no byte in {place:?} is told:\n{}{}",
            ran.stdout,
            ran.stderr
        );
        let spans = spans(&ran)?.len();
        anyhow::ensure!(
            spans == expected,
            "{which:?}: {spans} spans, expected {expected}"
        );
    }
    Ok(())
}

/// The place of the event that holds `what`.
fn place_of(text: &str, what: &str) -> anyhow::Result<Range<usize>> {
    let at = text.find(what).context("no such event")?;
    let start = text[..at].rfind('\n').context("no line")? + 1;
    let end = text[at..].find('\n').map_or(text.len(), |end| at + end);
    Ok(start..end + 1)
}

/// Both commands refuse a file: status 1, the name of the file, no output.
fn refused(text: &[u8], words: &str) -> anyhow::Result<()> {
    for (which, args) in COMMANDS {
        let ran = which.run(&Input::one("in.json", text), args)?;
        sound(&ran)?;
        let said = format!("{}{}", ran.stdout, ran.stderr);
        anyhow::ensure!(
            ran.code == Some(1),
            "{which:?}: status {:?}\n{said}",
            ran.code
        );
        anyhow::ensure!(said.contains("in.json"), "{which:?}: no file told:\n{said}");
        anyhow::ensure!(said.contains(words), "{which:?}: no {words:?}:\n{said}");
        anyhow::ensure!(ran.files.is_empty(), "{which:?}: {:?}", ran.files.keys());
    }
    Ok(())
}

#[test]
fn no_json() -> anyhow::Result<()> {
    refused(b"this is no trace\n", "byte 0")?;
    refused(b"\x7fELS\x02\x01\x01\0\0\0\0\0\0\0\0\0", "byte 0")?;
    // A kind that is known is named, whatever the file is called.
    let program = Input::one("in.json", b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    let ran = Which::Analyze.run(&program, "in.json -o out.json")?;
    anyhow::ensure!(ran.code == Some(1) && ran.files.is_empty());
    anyhow::ensure!(ran.stderr.contains("(ELF)"), "{}", ran.stderr);
    Ok(())
}

#[test]
fn nothing() -> anyhow::Result<()> {
    refused(b"", "in.json")
}

#[test]
fn json_that_is_no_trace() -> anyhow::Result<()> {
    refused(b"{\"packages\": [1, 2, 3]}\n", "in.json")?;
    refused(b"\"traceEvents\"\n", "in.json")
}

/// The compiler's log begins as a list does.
#[test]
fn a_log_is_no_trace() -> anyhow::Result<()> {
    let log = "[DeepRT] ===== Perf BEGIN =====\n====== Perf Summary ======\n";
    refused(log.as_bytes(), "in.json has no events")
}

/// acelyzer writes an empty trace; `analyze` has nothing to analyse.
#[test]
fn an_empty_list_is_a_trace_without_events() -> anyhow::Result<()> {
    for (which, args) in COMMANDS {
        let ran = which.run(&Input::one("in.json", "[]\n"), args)?;
        sound(&ran)?;
        if which == Which::Analyze {
            assert_eq!(ran.code, Some(1), "{}{}", ran.stdout, ran.stderr);
            assert!(
                ran.stderr.contains("in.json has no events"),
                "{}",
                ran.stderr
            );
            assert!(ran.files.is_empty(), "{:?}", ran.files.keys());
            continue;
        }
        assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
        assert_eq!(spans(&ran)?.len(), 0);
    }
    Ok(())
}

/// A file that was cut off keeps its whole events, and a message shows where it breaks.
#[test]
fn cut_off_in_an_event() -> anyhow::Result<()> {
    let text = list(&kernels(20));
    let last = text.rfind("{\"ph\"").context("no event")?;
    for end in [last + 3, last + 40, text.len() - 6] {
        // What is whole ends before the comma.
        told(&text[..end], &(last - 2..end + 1), 19)?;
    }
    // Between two events: the format allows a list without an end.
    for (which, args) in COMMANDS {
        let ran = which.run(&Input::one("in.json", &text[..last]), args)?;
        sound(&ran)?;
        anyhow::ensure!(ran.code == Some(0), "{which:?} {:?}", ran.code);
        anyhow::ensure!(spans(&ran)?.len() == 19, "{which:?}");
    }
    Ok(())
}

#[test]
fn cut_off_in_a_torch_file() -> anyhow::Result<()> {
    let text = Torch::default().text(&Scenario::default().make(), 0)?;
    let whole: Value = serde_json::from_str(&text)?;
    let events = whole["traceEvents"].as_array().context("no events")?;
    // Lines of the file: two before the first event.
    let cut = events.len() / 2;
    let start: usize = text.lines().take(2 + cut).map(|line| line.len() + 1).sum();
    let kept = events.iter().take(cut).filter(|event| event["ph"] == "X");
    told(&text[..start + 25], &(start - 2..start + 26), kept.count())
}

#[test]
fn damaged_in_the_middle() -> anyhow::Result<()> {
    let mut events = kernels(20);
    events[10] = "{\"ph\":\"X\",,\"name\":1}".to_owned();
    let text = list(&events);
    let place = place_of(&text, ",,")?;
    for (which, args) in COMMANDS {
        let ran = which.run(&Input::one("in.json", text.as_str()), args)?;
        sound(&ran)?;
        let found = offsets(&ran);
        anyhow::ensure!(
            found.iter().any(|offset| place.contains(offset)),
            "{which:?}: {place:?} is not told:\n{}{}",
            ran.stdout,
            ran.stderr
        );
        let spans = spans(&ran)?.len();
        // All before the damage; acelyzer does not go on behind it.
        match which {
            Which::Analyze => assert_eq!((spans, ran.code), (19, Some(3))),
            _ => anyhow::ensure!((10..=19).contains(&spans), "{which:?}: {spans}"),
        }
    }
    Ok(())
}

#[test]
fn packed_files_that_are_cut_off() -> anyhow::Result<()> {
    let text = list(&kernels(4000));
    for (packing, name) in [
        (Packing::Gzip, "in.json.gz"),
        (Packing::Zstd, "in.json.zst"),
    ] {
        let dir = tempfile::TempDir::new()?;
        let packed = std::fs::read(packing.write(dir.path(), "in.json", &text)?)?;
        for (which, args) in COMMANDS {
            let args = args.replace("in.json", name);
            let input = Input::one(name, &packed[..packed.len() / 2]);
            let ran = which.run(&input, &args)?;
            sound(&ran)?;
            let found = offsets(&ran);
            anyhow::ensure!(
                found.iter().any(|offset| *offset > 0),
                "{which:?} {name}: no byte told:\n{}{}",
                ran.stdout,
                ran.stderr
            );
            if matches!(ran.code, Some(0 | 3)) {
                let spans = spans(&ran)?.len();
                anyhow::ensure!((1..4000).contains(&spans), "{which:?} {name}: {spans}");
            }
        }
    }
    Ok(())
}

#[test]
fn bytes_behind_a_packed_file() -> anyhow::Result<()> {
    let text = list(&kernels(50));
    let dir = tempfile::TempDir::new()?;
    let mut packed = std::fs::read(Packing::Gzip.write(dir.path(), "in.json", &text)?)?;
    packed.extend_from_slice(b"more");
    for (which, args) in COMMANDS {
        let args = args.replace("in.json", "in.json.gz");
        let ran = which.run(&Input::one("in.json.gz", packed.clone()), &args)?;
        sound(&ran)?;
        assert_eq!(spans(&ran)?.len(), 50, "{which:?}");
    }
    Ok(())
}

#[test]
fn negative_durations_are_dropped_and_told() -> anyhow::Result<()> {
    let mut events = kernels(20);
    events[7] = events[7].replace("91.000", "-91.000");
    let text = list(&events);
    told(&text, &place_of(&text, "-91.000")?, 19)
}

#[test]
fn ends_before_begins_are_dropped_and_told() -> anyhow::Result<()> {
    let pair = |phase: &str, ts: f64| {
        format!("{{\"ph\":\"{phase}\",\"name\":\"back\",\"pid\":0,\"tid\":9,\"ts\":{ts}}}")
    };
    let mut events = kernels(5);
    events.insert(2, pair("B", 1e9 + 300.0));
    events.insert(3, pair("E", 1e9 + 250.0));
    let text = list(&events);
    let begin = place_of(&text, "\"B\"")?;
    let end = place_of(&text, "\"E\"")?;
    told(&text, &(begin.start..end.end), 5)
}

#[test]
fn unmatched_begins_and_ends_are_told() -> anyhow::Result<()> {
    let one = |phase: &str| {
        format!("{{\"ph\":\"{phase}\",\"name\":\"alone\",\"pid\":0,\"tid\":9,\"ts\":1000000300}}")
    };
    for phase in ["B", "E"] {
        let mut events = kernels(5);
        events.insert(2, one(phase));
        let text = list(&events);
        told(&text, &place_of(&text, "alone")?, 5)?;
    }
    Ok(())
}

#[test]
fn numbers_that_are_none_are_told() -> anyhow::Result<()> {
    // Python writes these; JSON has no such numbers.
    for wrong in ["NaN", "Infinity", "-Infinity", "1e999"] {
        let mut events = kernels(20);
        events[7] = events[7].replace("91.000", wrong);
        let text = list(&events);
        told(&text, &place_of(&text, wrong)?, 19)?;
    }
    Ok(())
}

#[test]
fn missing_counters_are_told_and_the_event_is_kept() -> anyhow::Result<()> {
    for missing in ["TS1", "TS2", "TS3", "TS4", "TS5"] {
        let mut events = kernels(20);
        let mut args = counters(1_000_000 + 111_410 * 7);
        args.as_object_mut().context("no object")?.remove(missing);
        events[7] = span("lost_1 Cmpt Exec", 1e9 + 1400.0, "91.000", &args);
        let text = list(&events);
        told(&text, &place_of(&text, "lost_1")?, 20)?;
    }
    Ok(())
}

#[test]
fn counters_that_are_none_are_told_and_the_event_is_kept() -> anyhow::Result<()> {
    for wrong in [
        json!("0xzz"),
        json!(-5),
        json!(null),
        json!([1]),
        json!(1.5),
        json!(""),
    ] {
        let mut events = kernels(20);
        let mut args = counters(1_000_000 + 111_410 * 7);
        args["TS3"] = wrong;
        events[7] = span("lost_1 Cmpt Exec", 1e9 + 1400.0, "91.000", &args);
        let text = list(&events);
        told(&text, &place_of(&text, "lost_1")?, 20)?;
    }
    Ok(())
}

/// Huge numbers may not cost huge memory, nor a crash, wherever they stand.
#[test]
fn huge_numbers() -> anyhow::Result<()> {
    let huge = [
        "1000000000",
        "9223372036854775807",
        "18446744073709551615",
        "1e300",
        "-1e300",
    ];
    for key in [
        "\"pid\":0",
        "\"tid\":7",
        "\"ts\":1000001400.000",
        "\"dur\":91.000",
        "\"TS3\":1784870",
        "\"TS5\":1835576",
    ] {
        for number in huge {
            let mut events = kernels(20);
            let name = key.split(':').next().context("no key")?;
            let changed = events[7].replace(key, &format!("{name}:{number}"));
            assert_ne!(changed, events[7], "{key} is not in {}", events[7]);
            events[7] = changed;
            for (which, args) in COMMANDS {
                let ran = which.run(&Input::one("in.json", list(&events)), args)?;
                sound(&ran).with_context(|| format!("{which:?} {name} {number}"))?;
                let spans = spans(&ran).with_context(|| format!("{which:?} {name} {number}"))?;
                anyhow::ensure!(
                    spans.len() >= 19,
                    "{which:?} {name} {number}: {}",
                    spans.len()
                );
            }
        }
    }
    Ok(())
}

#[test]
fn deep_nesting() -> anyhow::Result<()> {
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let mut events = kernels(20);
    events[7] = format!(
        "{{\"ph\":\"X\",\"name\":\"deep\",\"pid\":0,\"tid\":7,\"ts\":1,\"dur\":1,\"args\":{{\"a\":{deep}}}}}"
    );
    for (which, args) in COMMANDS {
        let ran = which.run(&Input::one("in.json", list(&events)), args)?;
        sound(&ran)?;
        // It is kept, or a message shows its place; the others are there.
        let text = String::from_utf8_lossy(ran.file("out.json")?).into_owned();
        let kept = text.contains("\"deep\"");
        anyhow::ensure!(
            kept || !offsets(&ran).is_empty(),
            "{which:?}:\n{}",
            ran.stderr
        );
        assert!(text.matches("Cmpt Exec\"").count() >= 19, "{which:?}");
    }
    Ok(())
}

#[test]
fn odd_types_and_texts() -> anyhow::Result<()> {
    let mut events = kernels(4);
    events.push(
        "{\"ph\":\"X\",\"name\":5,\"pid\":{},\"tid\":[],\"ts\":\"soon\",\"dur\":null}".to_owned(),
    );
    events.push("{\"ph\":7}".to_owned());
    events.push("42".to_owned());
    events.push("null".to_owned());
    events.push("{}".to_owned());
    events.push(span(
        "\\ud800 half \\u0000",
        1e9 + 5000.0,
        "1.0",
        &json!({}),
    ));
    events.push(span("args are a list", 1e9 + 6000.0, "1.0", &json!([1, 2])));
    let text = list(&events);
    for (which, args) in COMMANDS {
        let ran = which.run(&Input::one("in.json", text.as_str()), args)?;
        sound(&ran)?;
        anyhow::ensure!(
            !offsets(&ran).is_empty(),
            "{which:?}:\n{}{}",
            ran.stdout,
            ran.stderr
        );
        anyhow::ensure!(spans(&ran)?.len() >= 4, "{which:?}");
    }
    Ok(())
}

/// Two files that claim one process, and two clocks years apart.
#[test]
fn duplicate_processes_and_mixed_clocks() -> anyhow::Result<()> {
    let late = kernels(20)
        .into_iter()
        .map(|event| event.replace("\"ts\":1000", "\"ts\":1700000001"));
    let input =
        Input::one("in.json", list(&kernels(20))).and("late.json", list(&late.collect::<Vec<_>>()));
    for (which, args) in [
        (Which::Ours, "-i in.json,late.json -o out.json"),
        (Which::Analyze, "in.json late.json -o out.json"),
    ] {
        let ran = which.run(&input, args)?;
        sound(&ran)?;
        assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
        assert_eq!(spans(&ran)?.len(), 40, "{which:?}");
    }
    Ok(())
}

/// Counters in a file that claims to be PyTorch's, and the other way round.
#[test]
fn wrong_dialects() -> anyhow::Result<()> {
    let events = kernels(20).join(",\n");
    let as_torch =
        format!("{{\"deviceProperties\": [{{\"id\": 0}}], \"traceEvents\": [\n{events}\n]}}\n");
    let story = Scenario::default().make();
    let torch: Value = serde_json::from_str(&Torch::default().text(&story, 0)?)?;
    let as_flex = torch["traceEvents"].to_string();
    let of_torch = torch["traceEvents"].as_array().context("no list")?;
    let count = of_torch.iter().filter(|event| event["ph"] == "X").count();
    for (text, expected) in [(as_torch, 20), (as_flex, count)] {
        for (which, args) in COMMANDS {
            let ran = which.run(&Input::one("in.json", text.as_str()), args)?;
            sound(&ran)?;
            assert_eq!(ran.code, Some(0), "{which:?} {}{}", ran.stdout, ran.stderr);
            assert_eq!(spans(&ran)?.len(), expected, "{which:?}");
        }
    }
    Ok(())
}

/// acelyzer's own output is not taken for a trace: an error reports that, as with acelyzer.
#[test]
fn output_of_acelyzer() -> anyhow::Result<()> {
    let input = Input::one("in.json", list(&kernels(20)));
    let first = Which::Ours.run(&input, "-i in.json -o out.json")?;
    let again = Input::one("in.json", first.file("out.json")?);
    let ran = Which::Ours.run(&again, "-i in.json -o out.json")?;
    sound(&ran)?;
    let words = "Attempting to import a json file that had been processed by acelyzer already";
    let said = format!("{}{}", ran.stdout, ran.stderr);
    anyhow::ensure!(said.contains(words), "{said}");
    assert_eq!(spans(&ran)?.len(), 0);
    Ok(())
}

#[test]
fn a_missing_input_is_told() -> anyhow::Result<()> {
    for (which, args) in COMMANDS {
        let ran = which.run(&Input::one("other.json", "[]"), args)?;
        sound(&ran)?;
        assert_eq!(ran.code, Some(1), "{which:?}");
        assert!(ran.files.is_empty(), "{:?}", ran.files.keys());
    }
    Ok(())
}

#[test]
fn an_output_that_cannot_be_written_is_told() -> anyhow::Result<()> {
    let input = Input::one("in.json", list(&kernels(20)));
    for (which, args) in COMMANDS {
        let args = args.replace("out.json", "no/such/folder/out.json");
        let ran = which.run(&input, &args)?;
        sound(&ran)?;
        let said = format!("{}{}", ran.stdout, ran.stderr);
        assert_eq!(ran.code, Some(1), "{which:?} {said}");
        assert!(said.contains("no/such/folder"), "{which:?} {said}");
    }
    Ok(())
}

/// What crashes acelyzer gives a result: status 0 and all these spans.
fn result(input: &Input, args: &str, expected: usize) -> anyhow::Result<()> {
    let ran = Which::Ours.run(input, args)?;
    sound(&ran)?;
    anyhow::ensure!(
        ran.code == Some(0),
        "{:?}\n{}{}",
        ran.code,
        ran.stdout,
        ran.stderr
    );
    let spans = spans(&ran)?.len();
    anyhow::ensure!(
        spans == expected,
        "{spans} spans, expected {expected}\n{}{}",
        ran.stdout,
        ran.stderr
    );
    Ok(())
}

const PLAIN: &str = "-i in.json -o out.json";

#[test]
fn crash_kernel_of_no_duration() -> anyhow::Result<()> {
    let mut events = kernels(20);
    let args = json!({"TS1": 1, "TS2": 1, "TS3": 1_784_870, "TS4": 1_784_870, "TS5": 1_784_870});
    events[7] = span(
        "ClearScratchad-Internal Cmpt Exec",
        1e9 + 1400.0,
        "0",
        &args,
    );
    result(&Input::one("in.json", list(&events)), PLAIN, 20)
}

#[test]
fn crash_many_threads() -> anyhow::Result<()> {
    let events: Vec<String> = kernels(60)
        .iter()
        .enumerate()
        .map(|(i, event)| event.replace("\"tid\":7", &format!("\"tid\":{}", 900 + i)))
        .collect();
    result(&Input::one("in.json", list(&events)), PLAIN, 60)
}

#[test]
fn crash_deep_overlap() -> anyhow::Result<()> {
    // Each begins before the one before ends, and ends after it.
    let host = |i: u32| span("work", 1e9 + 10.0 * f64::from(i), "1000.0", &json!({}));
    let events: Vec<String> = (0..20).map(host).collect();
    result(&Input::one("in.json", list(&events)), PLAIN, 20)
}

#[test]
fn crash_overlap_async() -> anyhow::Result<()> {
    let host = |i: u32| span("work", 1e9 + 500.0 * f64::from(i), "800.0", &json!({}));
    let events: Vec<String> = (0..20).map(host).collect();
    let input = Input::one("in.json", list(&events));
    let ran = Which::Ours.run(&input, "-i in.json -o out.json -O async")?;
    sound(&ran)?;
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let trace = ran.json("out.json")?;
    let events = trace["traceEvents"].as_array().context("no events")?;
    let count = |phase: &str| events.iter().filter(|e| e["ph"] == phase).count();
    // Each span stays one, or becomes a pair.
    assert_eq!(count("b"), count("e"));
    assert_eq!(count("X") + count("b"), 20);
    assert!(count("b") > 0);
    Ok(())
}

#[test]
fn crash_alignment_v2_of_one_group() -> anyhow::Result<()> {
    let scenario = Scenario {
        ranks: 2,
        collectives: Some(Collectives {
            shape: Shape::Chain,
            groups: 1,
            latency: Latency::Equal(1.0),
        }),
        ..Scenario::default()
    };
    let story = scenario.make();
    let spans = story
        .events
        .iter()
        .filter(|event| event.kind != aiprof_tests::aiu_trace::Kind::Prep);
    let files = (0..2).fold(Input::default(), |input, rank| {
        let text = Flex::default().text(&story.of_job(rank, 0));
        input.and(&format!("rank{rank}.json"), text)
    });
    result(
        &files,
        "-i rank0.json,rank1.json -o out.json -S --freq 557.05",
        spans.count(),
    )
}

#[test]
fn crash_no_devices() -> anyhow::Result<()> {
    let story = Scenario::default().make();
    let mut trace: Value = serde_json::from_str(&Torch::default().text(&story, 0)?)?;
    trace["deviceProperties"] = json!([]);
    let events = trace["traceEvents"].as_array().context("no events")?;
    let spans = events.iter().filter(|event| event["ph"] == "X").count();
    result(&Input::one("in.json", trace.to_string()), PLAIN, spans)
}

#[test]
fn crash_no_such_compiler_log() -> anyhow::Result<()> {
    let input = Input::one("in.json", list(&kernels(20)));
    result(&input, "-i in.json -o out.json -c nothing.log", 20)
}

#[test]
fn crash_flow_steps() -> anyhow::Result<()> {
    let flow = |phase: &str, ts: f64| {
        format!(
            "{{\"ph\":\"{phase}\",\"name\":\"way\",\"cat\":\"flow\",\"id\":5,\"pid\":0,\"tid\":7,\"ts\":{ts}}}"
        )
    };
    let mut events = kernels(20);
    events.extend([
        flow("s", 1e9 + 1.0),
        flow("t", 1e9 + 201.0),
        flow("f", 1e9 + 401.0),
    ]);
    let input = Input::one("in.json", list(&events));
    let ran = Which::Ours.run(&input, PLAIN)?;
    sound(&ran)?;
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let trace = ran.json("out.json")?;
    let events = trace["traceEvents"].as_array().context("no events")?;
    for phase in ["s", "t", "f"] {
        assert_eq!(
            events.iter().filter(|e| e["ph"] == phase).count(),
            1,
            "{phase}"
        );
    }
    Ok(())
}

#[test]
fn crash_bandwidth_not_available() -> anyhow::Result<()> {
    let story = Scenario::default().make();
    let mut trace: Value = serde_json::from_str(&Torch::default().text(&story, 0)?)?;
    let events = trace["traceEvents"].as_array_mut().context("no events")?;
    let spans = events.iter().filter(|event| event["ph"] == "X").count();
    let copies = events
        .iter_mut()
        .filter(|event| event["cat"] == "gpu_memcpy");
    let mut changed = 0;
    for copy in copies {
        copy["args"]["memory bandwidth (GB/s)"] = json!("N/A");
        copy["args"]["bytes"] = json!(0);
        changed += 1;
    }
    assert_eq!(changed, 2);
    result(&Input::one("in.json", trace.to_string()), PLAIN, spans)
}

#[test]
fn crash_counters_as_numbers() -> anyhow::Result<()> {
    let form = Flex {
        pairs: Pairs::Apart,
        values: Values::Integer,
        key: "args",
        ..Flex::default()
    };
    let story = Scenario::default().make();
    let events: Vec<_> = story.events.iter().collect();
    let spans = events
        .iter()
        .filter(|event| event.kind != aiprof_tests::aiu_trace::Kind::Prep);
    result(
        &Input::one("in.json", form.text(&events)),
        "-i in.json -o out.json --freq 557.05",
        spans.count(),
    )
}

/// Only one rank takes part in the collectives: nothing to align with.
#[test]
fn crash_rank_without_collectives() -> anyhow::Result<()> {
    let scenario = Scenario {
        ranks: 3,
        collectives: Some(Collectives {
            shape: Shape::Chain,
            groups: 2,
            latency: Latency::Equal(1.0),
        }),
        ..Scenario::default()
    };
    let story = scenario.make();
    let alone = |event: &&&aiprof_tests::aiu_trace::Event| {
        event.rank < 2
            || !event
                .args
                .iter()
                .any(|(_, value)| value == "AllReduce_all_reduce_4")
    };
    let mut input = Input::default();
    let mut count = 0;
    for rank in 0..3 {
        let all = story.of_job(rank, 0);
        let kept: Vec<_> = all.iter().filter(alone).copied().collect();
        count += kept
            .iter()
            .filter(|e| e.kind != aiprof_tests::aiu_trace::Kind::Prep)
            .count();
        input = input.and(&format!("rank{rank}.json"), Flex::default().text(&kept));
    }
    result(
        &input,
        "-i rank0.json,rank1.json,rank2.json -o out.json --freq 557.05",
        count,
    )
}

/// Names that never repeat: the search for iterations must stay linear.
#[test]
fn names_that_never_repeat() -> anyhow::Result<()> {
    let mut text = String::from("[\n");
    let count = 30_000u32;
    for i in 0..count {
        let args = counters(1_000_000 + 111_410 * u64::from(i) % (1 << 31));
        let kernel = span(
            &format!("k{i}x Cmpt Exec"),
            1e9 + 200.0 * f64::from(i),
            "91.0",
            &args,
        );
        let comma = if i + 1 == count { "" } else { "," };
        writeln!(text, "{kernel}{comma}")?;
    }
    text.push_str("]\n");
    let start = std::time::Instant::now();
    result(
        &Input::one("in.json", text),
        "-i in.json -o out.json -t",
        count as usize,
    )?;
    // acelyzer takes minutes; a debug build of ours a second or two.
    anyhow::ensure!(start.elapsed().as_secs() < 30, "{:?}", start.elapsed());
    Ok(())
}
