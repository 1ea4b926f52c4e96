//! Real traces with a damaged byte: what is lost, and whether that is counted.

use super::*;
use aiprof_model::timeline::Timeline;
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;

/// The last two have no line breaks.
const TRACES: [&str; 5] = [
    "alexnet",
    "h200_eager",
    "simple_add",
    "nccl",
    "no_device_properties",
];
/// What a byte becomes.
const DAMAGE: &[u8] = b"\"x{}[],:\\\x01\xff0 ";
/// Places in each trace; `AIPROF_PLACES` asks for more.
const PLACES: usize = 60;

/// Spans by name, begin in nanoseconds and length in nanoseconds.
type Spans = HashMap<(String, i64, i64), i64>;

fn trace(name: &str) -> Vec<u8> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/data/kineto");
    let file = std::fs::File::open(data.join(format!("{name}.json.gz"))).unwrap();
    let mut text = Vec::new();
    let mut gzip = flate2::read::GzDecoder::new(file);
    std::io::Read::read_to_end(&mut gzip, &mut text).unwrap();
    text
}

/// By serde_json alone.
fn expected(text: &[u8]) -> Spans {
    let value: Value = serde_json::from_slice(text).unwrap();
    let events = value.as_array().or(value["traceEvents"].as_array());
    let mut spans = Spans::new();
    for event in events.unwrap().iter().filter(|event| event["ph"] == "X") {
        let ns = |key: &str| (event[key].as_f64().unwrap() * 1000.0).round() as i64;
        let name = event["name"].as_str().unwrap().to_owned();
        *spans.entry((name, ns("ts"), ns("dur"))).or_default() += 1;
    }
    spans
}

fn found(text: &[u8]) -> (Spans, u64, End) {
    let mut timeline = Timeline::default();
    let Ok(reading) = read(text, "x.json", &mut timeline) else {
        return (Spans::new(), 0, End::Whole);
    };
    let mut spans = Spans::new();
    for event in timeline.events.iter().filter(|event| event.is_slice()) {
        let name = timeline.name(event.name).to_owned();
        let ts = (timeline.file_us(event) * 1000.0).round() as i64;
        let dur = (event.dur() * 1000.0).round() as i64;
        *spans.entry((name, ts, dur)).or_default() += 1;
    }
    let lost = reading
        .problems
        .iter()
        .filter(|(trouble, _)| trouble.drops());
    (spans, lost.map(|(_, seen)| seen.count).sum(), reading.end)
}

#[test]
fn a_damaged_byte_costs_its_own_event() {
    let places = std::env::var("AIPROF_PLACES").ok();
    let places = places.and_then(|text| text.parse().ok()).unwrap_or(PLACES);
    for name in TRACES {
        let whole = trace(name);
        let wanted = expected(&whole);
        let all: i64 = wanted.values().sum();
        let (undamaged, ..) = found(&whole);
        assert_eq!(undamaged, wanted, "{name}");
        for place in 0..places {
            let at = whole.len() * place / places;
            let mut text = whole.clone();
            let damage = DAMAGE[(place * 7) % DAMAGE.len()];
            if text[at] == damage {
                continue;
            }
            text[at] = damage;
            let (spans, counted, end) = found(&text);
            let missing = wanted
                .iter()
                .map(|(key, count)| (count - spans.get(key).unwrap_or(&0)).max(0));
            let missing: i64 = missing.sum();
            let about = format!(
                "{name}: byte {at}, {:?} for {:?}: {missing} of {all} missing, {counted} counted, {end:?}",
                char::from(damage),
                char::from(whole[at]),
            );
            if std::env::var_os("AIPROF_PLACES").is_some() && missing > 1 {
                eprintln!("{about}");
            }
            // One event is the damaged one.
            assert!((missing - 1) as f64 <= 0.005 * all as f64, "{about}");
            let changed = spans.values().sum::<i64>() + missing - all;
            let lost = missing - changed.max(0);
            assert!(
                lost <= 0 || counted > 0 || end != End::Whole,
                "{about}: not counted"
            );
        }
    }
}

/// Ranks that write one file, one behind the other or in turns.
#[test]
fn documents_behind_the_first_are_read_too() {
    let document = |rank: u32, events: usize| {
        let event = |i: usize| {
            format!(r#"{{"ph":"X","name":"k{i}","pid":{rank},"tid":1,"ts":{i},"dur":1}}"#)
        };
        let events: Vec<String> = (1..=events).map(event).collect();
        format!(
            "{{\"schemaVersion\":1,\"traceEvents\":[\n{}\n],\"traceName\":\"r\"}}\n",
            events.join(",\n")
        )
    };
    for more in [1, 300] {
        let text = format!("{}{}", document(0, 3), document(1, more));
        let mut timeline = Timeline::default();
        let reading = read(text.as_bytes(), "x.json", &mut timeline).unwrap();
        assert_eq!(reading.events.len(), 3 + more);
        assert_eq!(
            (reading.end, reading.problems.count(Trouble::Around)),
            (End::Whole, 1)
        );
    }
    // Nothing that is an event.
    let text = format!("{}{{\"a\":1}}", document(0, 2));
    let mut timeline = Timeline::default();
    let reading = read(text.as_bytes(), "x.json", &mut timeline).unwrap();
    let offset = document(0, 2).len() as u64;
    assert_eq!(
        (reading.events.len(), reading.end),
        (2, End::Trailing { offset })
    );
}
