use super::*;
use aiprof_model::timeline::number::Micros;

fn reading(text: &str) -> (Timeline, Reading) {
    let mut timeline = Timeline::default();
    let reading = read(text.as_bytes(), "dir/x.json", &mut timeline).unwrap();
    (timeline, reading)
}

fn error(text: &str) -> String {
    let mut timeline = Timeline::default();
    read(text.as_bytes(), "x", &mut timeline)
        .unwrap_err()
        .to_string()
}

const PAIRED: &str = r#"[
 {"attr":{"Power":"0x10","TS1":"0x1","TS2":2,"TS3":"3","TS4":"4","TS5":"0x5","Bytes":"128"},
  "name":"a \"b\" Cmpt Exec","ph":"B","pid":0,"tid":15514734831341844875,"ts":2097962447511.067},
 {"name":"x","ph":"X","pid":"Spans","tid":1,"ts":2097962447512,"dur":3.5,"comment":{"k":[1, 2]}},
 {"attr":{"TS1":"0x1"},"name":"a \"b\" Cmpt Exec","ph":"E","pid":0,"tid":15514734831341844875,
  "ts":2097962447521.5}
]"#;

#[test]
fn pairs_become_slices_also_when_they_are_not_neighbours() {
    let (t, reading) = reading(PAIRED);
    assert_eq!(t.events.len(), 2);
    let e = &t.events[0];
    assert_eq!((e.ph, t.name(e.name)), (Ph::Complete, "a \"b\" Cmpt Exec"));
    assert_eq!(t.origin(), 2_097_962_447_511);
    assert!((e.ts() - 0.067).abs() < 1e-9 && (e.dur() - 10.433).abs() < 1e-9);
    assert_eq!(t.texts.get(e.args), r#""bytes":"128""#);
    let device = t.device(e).unwrap();
    assert_eq!((device.stamps, device.power), ([1, 2, 3, 4, 5], 16));
    let Id::Token(tid) = t.tid(e) else {
        panic!("{:?}", t.tid(e))
    };
    assert_eq!(t.name(tid), "15514734831341844875");
    assert_eq!(t.transfer(e).unwrap().bytes, 128);
    let e = &t.events[1];
    assert_eq!(t.texts.get(e.args), r#""comment":{"k":[1, 2]}"#);
    let Id::Token(pid) = t.pid(e) else {
        panic!("{:?}", t.pid(e))
    };
    assert_eq!(t.name(pid), "\"Spans\"");
    assert_eq!(reading.end, End::Whole);
    assert_eq!(reading.problems, Problems::default());
    assert_eq!(t.jobs[0].dialect, Dialect::Flex);
    // hash("x.json") and the like of CPython 3.11, PYTHONHASHSEED=0.
    assert_eq!(
        (job_hash("trace.json"), t.jobs[0].name.as_str()),
        (2900, "x.json")
    );
}

#[test]
fn objects_tell_what_wrote_them() {
    let (t, reading) = reading(
        r#"{"schemaVersion": 1, "deviceProperties": [{"id": 0}], "distributedInfo": {"rank": 3},
        "otherData": {"Application": "Acelyzer: x"}, "traceEvents": [
        {"ph":"X","cat":"kernel","name":"k","pid":0,"tid":0,"ts":1,"dur":2,
         "args":{"correlation": 7, "cycles_ts":[1,2,3,4,5],"charge":9,"bytes":10}}], "more": "x"}"#,
    );
    let job = &t.jobs[0];
    assert_eq!((job.dialect, job.rank), (Dialect::Torch, Some(3)));
    assert!(reading.is_acelyzer_output);
    let keys: Vec<&str> = t.metadata.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["schemaVersion", "deviceProperties", "more"]);
    let e = &t.events[0];
    assert_eq!(e.correlation, 7);
    let device = t.device(e).unwrap();
    assert!(device.is_listed && device.power == 9);
    assert_eq!(t.arg(e, "cycles_ts"), Some("[1,2,3,4,5]"));
}

#[test]
fn what_is_whole_before_a_cut_is_kept() {
    let event = r#"{"ph":"X","name":"k","pid":0,"tid":0,"ts":1,"dur":2}"#;
    let text = format!("[{event},{event},{event}]");
    for cut in 1..text.len() {
        let mut timeline = Timeline::default();
        let reading = read(&text.as_bytes()[..cut], "x", &mut timeline).unwrap();
        let whole = (cut - 1) / (event.len() + 1);
        let whole = whole + usize::from((cut - 1) % (event.len() + 1) == event.len());
        assert_eq!(timeline.events.len(), whole, "{cut}");
        let offset = 1 + (whole * (event.len() + 1)).saturating_sub(1);
        // The end of a list may be missing behind an event, or the comma behind it.
        if [0, event.len()].contains(&((cut - 1) % (event.len() + 1))) {
            assert_eq!(reading.end, End::Whole, "{cut}");
            continue;
        }
        let End::CutOff { offset: said } = reading.end else {
            panic!("{cut}: {:?}", reading.end)
        };
        assert!(
            said as usize >= offset.min(cut) && said as usize <= cut,
            "{cut} {said}"
        );
    }
}

#[test]
fn what_is_no_trace_is_told_with_its_place() {
    assert_eq!(error(""), "the file is empty");
    assert!(error("  hello").contains("found \"hello\" at byte 2"));
    assert!(error(r#"{"a": 1}"#).contains("no \"traceEvents\""));
    assert!(error("{").contains("no \"traceEvents\""));
    assert!(error("\"x\"").contains("at byte 0"));
}

/// Viewers draw what has no name, so it is kept; a counter without a name counts nothing.
#[test]
fn slices_and_moments_need_no_name() {
    let text = r#"[{"ph":"X","ts":1,"dur":2,"pid":0},{"ph":"B","ts":4,"pid":0},
        {"ph":"E","ts":6,"pid":0},{"ph":"i","ts":7,"pid":0},{"ph":"C","ts":8,"pid":0}]"#;
    let mut timeline = Timeline::default();
    let reading = read(text.as_bytes(), "x.json", &mut timeline).unwrap();
    let lengths: Vec<f64> = timeline.events.iter().map(|event| event.dur()).collect();
    assert_eq!(lengths, [2.0, 2.0, 0.0]);
    assert!(timeline.events.iter().all(|event| event.name == Sym::EMPTY));
    let seen: Vec<_> = reading
        .problems
        .iter()
        .map(|(trouble, _)| trouble)
        .collect();
    assert_eq!(seen, [Trouble::Incomplete]);
}

#[test]
fn bad_events_are_counted_with_the_place_of_the_first() {
    let bad = [
        ("17", Trouble::NotAnObject),
        (r#"{"ph":"X",}"#, Trouble::Syntax),
        (r#"{"ph":"C","ts":1,"pid":0}"#, Trouble::Incomplete),
        (
            r#"{"ph":"?","ts":1,"pid":0,"name":"x"}"#,
            Trouble::UnknownPhase,
        ),
        (
            r#"{"ph":"i","ts":"x","pid":0,"name":"x"}"#,
            Trouble::BadTime,
        ),
        (
            r#"{"ph":"i","ts":1e300,"pid":0,"name":"x"}"#,
            Trouble::BadTime,
        ),
        (
            r#"{"ph":"X","ts":1,"pid":0,"name":"x"}"#,
            Trouble::NoDuration,
        ),
        (
            r#"{"ph":"X","ts":1,"dur":-1,"pid":0,"name":"x"}"#,
            Trouble::NegativeDuration,
        ),
        (
            r#"{"ph":"X","ts":1,"dur":0,"pid":0,"name":"x"}"#,
            Trouble::ZeroDuration,
        ),
        (
            r#"{"ph":"X","ts":NaN,"dur":1,"pid":0,"name":"x"}"#,
            Trouble::BadTime,
        ),
        (
            r#"{"ph":"X","ts":1,"dur":-Infinity,"pid":0,"name":"x"}"#,
            Trouble::BadTime,
        ),
        (
            r#"{"ph":"C","ts":1,"pid":0,"args":{"v":NaN}}"#,
            Trouble::Incomplete,
        ),
        (
            r#"{"ph":"X","ts":1,"dur":1,"pid":0,"name":"x","args":[1, 2]}"#,
            Trouble::BadArguments,
        ),
        (
            r#"{"ph":"X","ts":1,"dur":1,"pid":0,"name":"x","args":"text"}"#,
            Trouble::BadArguments,
        ),
        (
            r#"{"ph":"X","ts":1,"dur":1,"pid":0,"name":"NaN","args":{"v":-Infinity}}"#,
            Trouble::NotANumber,
        ),
        (
            r#"{"ph":"X","ts":1,"dur":1,"pid":0,"name":"x","args":{"TS1":1,"TS3":"y"}}"#,
            Trouble::BadCounters,
        ),
        (
            r#"{"ph":"E","ts":1,"pid":0,"name":"y"}"#,
            Trouble::NeverBegun,
        ),
    ];
    let good = r#"{"ph":"i","name":"good","pid":0,"ts":5}"#;
    for (text, trouble) in bad {
        let all = format!("[{good}, {text}, {good}]");
        let (timeline, reading) = reading(&all);
        assert_eq!(reading.problems.count(trouble), 1, "{text} {reading:?}");
        assert_eq!(reading.problems.iter().count(), 1, "{text}: said twice");
        let (_, seen) = reading
            .problems
            .iter()
            .find(|(t, _)| *t == trouble)
            .unwrap();
        assert_eq!(seen.first as usize, good.len() + 3, "{text}");
        let kept = 2 + usize::from(!trouble.drops());
        assert_eq!(timeline.events.len(), kept, "{text}");
    }
}

#[test]
fn blocks_make_no_difference() {
    // Larger than a few blocks; pairs cross their borders.
    let mut text = String::from("[");
    let count = 60_000;
    for i in 0..count {
        let ts = 1_751_234_567_890_123i64 + i64::from(i);
        text += &format!(
            "{{\"ph\":\"B\",\"name\":\"n{}\",\"pid\":0,\"tid\":{},\"ts\":{ts}.25,\"args\":{{\"i\":{i}}}}},\n",
            i % 100,
            i % 7
        );
        text += &format!(
            "{{\"ph\":\"E\",\"name\":\"n{}\",\"pid\":0,\"tid\":{},\"ts\":{ts}.75}},\n",
            i % 100,
            i % 7
        );
    }
    text.truncate(text.len() - 2);
    text.push(']');
    let (t, reading) = reading(&text);
    assert_eq!(t.events.len(), count as usize);
    assert_eq!(reading.problems, Problems::default());
    for (i, event) in t.events.iter().enumerate() {
        assert_eq!(t.texts.get(event.args), format!("\"i\":{i}"));
        assert!((event.ts() - i as f64 - 0.25).abs() < 1e-6 && (event.dur() - 0.5).abs() < 1e-6);
    }
    assert_eq!(t.names.len(), 101);
    assert!(Micros::parse("1").is_some());
}

#[test]
fn many_open_begins_take_no_longer_each() {
    // Each end looked at all begins that were open: 10^10 steps.
    let many = 100_000;
    let half = |ph: char, name: &str, ts: usize| {
        format!(r#"{{"ph":"{ph}","name":"{name}","pid":1,"tid":1,"ts":{ts}}},"#)
    };
    let numbered = |ph, from: usize| -> String {
        (0..many)
            .map(|i| half(ph, &format!("n{i}"), from + i))
            .collect()
    };
    let all = |ph, name: &str| -> String { (0..many).map(|i| half(ph, name, i)).collect() };
    let text = format!("[{}{}]", numbered('B', 1), numbered('E', many + 1));
    let (t, seen) = reading(&text);
    assert_eq!(seen.problems, Problems::default());
    assert_eq!(t.events.len(), many);
    assert!(t.events.iter().all(|event| event.dur() == many as f64));
    let text = format!("[{}{}]", all('B', "a"), all('E', "b"));
    let (t, seen) = reading(&text);
    // A plain trace keeps what was open at its end.
    assert_eq!(t.events.len(), many);
    assert!(t.events.iter().all(|event| event.ph == Ph::Begin));
    assert_eq!(seen.problems.count(Trouble::NeverBegun), many as u64);
    assert_eq!(seen.problems.count(Trouble::NeverEnded), 0);
}

#[test]
fn begins_without_an_end_are_counted_where_analyses_need_slices() {
    let begin = r#"{"ph":"B","ts":1,"pid":0,"name":"x"}"#;
    for other in [
        r#"{"ph":"X","cat":"kernel","ts":1,"dur":1,"pid":0,"name":"k"}"#,
        r#"{"ph":"X","ts":1,"dur":1,"pid":0,"name":"k Cmpt Exec"}"#,
    ] {
        let (t, seen) = reading(&format!("[{begin},{other}]"));
        assert_eq!(
            (t.events.len(), seen.problems.count(Trouble::NeverEnded)),
            (1, 1)
        );
    }
}

/// What the format allows to leave out, and events that no viewer draws.
#[test]
fn defaults_of_the_format_hold() {
    let event = r#"{"ph":"X","name":"a","ts":5,"dur":1}"#;
    for text in [
        format!("[{event},{{}}]"),
        format!("[{{}},{event}"),
        format!("[{event},\n"),
        format!("{{\"traceEvents\":[{event},\n]}}"),
        format!(r#"[{event},{{"ph":"N","name":"o","id":1,"ts":2,"pid":3}}]"#),
        format!(r#"[{event},{{"ph":"c","name":"clock_sync","args":{{"x":1}}}}]"#),
    ] {
        let (t, seen) = reading(&text);
        assert_eq!((t.events.len(), seen.end), (1, End::Whole), "{text}");
        assert_eq!(seen.problems, Problems::default(), "{text}");
        assert_eq!(
            (t.pid(&t.events[0]), t.tid(&t.events[0])),
            (Id::Number(0), Id::NONE)
        );
    }
}

#[test]
fn arguments_of_ends_go_to_their_slices() {
    let half = |ph: char, args: &str| {
        format!(r#"{{"ph":"{ph}","name":"a","pid":1,"tid":1,"ts":1,"args":{{{args}}}}}"#)
    };
    for (begin, end, all) in [
        ("", r#""r":45.67"#, r#""r":45.67"#),
        (r#""a":1"#, r#""a":2,"b":[1]"#, r#""a":1,"b":[1]"#),
        (r#""a":1"#, "", r#""a":1"#),
    ] {
        let (t, _) = reading(&format!("[{},{}]", half('B', begin), half('E', end)));
        assert_eq!(t.texts.get(t.events[0].args), all);
    }
}

#[test]
fn ids_count_within_a_process_or_for_all() {
    let event = |id: &str| format!(r#"{{"ph":"b","name":"a","cat":"c","pid":1,"ts":1,{id}}}"#);
    for (id, expected) in [
        (r#""id2":{"local": "0x1"}"#, r#"{"local":"0x1"}"#),
        (r#""id2":{"global":7}"#, r#"{"global":7}"#),
        (r#""id":"0x1""#, r#""0x1""#),
        (r#""id":"0x1","id2":{"local":"0x2"}"#, r#""0x1""#),
    ] {
        let (t, _) = reading(&format!("[{}]", event(id)));
        let Id::Token(found) = t.events[0].id else {
            panic!("{id}")
        };
        assert_eq!(t.name(found), expected);
    }
}

#[test]
fn ends_without_a_name_end_what_is_open_last() {
    let half = |ph: char, name: &str, ts: u32| {
        let name = match name {
            "" => String::new(),
            name => format!(r#""name":"{name}","#),
        };
        format!(r#"{{"ph":"{ph}",{name}"pid":1,"tid":1,"ts":{ts}}}"#)
    };
    let (t, seen) = reading(&format!(
        "[{},{},{},{},{},{},{}]",
        half('B', "a", 1),
        half('B', "b", 2),
        half('B', "a", 3),
        half('E', "b", 10),
        half('E', "", 20),
        half('E', "a", 30),
        half('E', "", 40),
    ));
    let spans: Vec<_> = t.events.iter().map(|e| (t.name(e.name), e.dur())).collect();
    assert_eq!(spans, [("a", 29.0), ("b", 8.0), ("a", 17.0)]);
    assert_eq!(seen.problems.count(Trouble::NeverBegun), 1);
}

#[test]
fn strays_before_the_first_time_are_passed_over() {
    for stray in [":", "::", ": :", "\u{e9}:"] {
        let (t, reading) = reading(&format!(
            r#"[{{"pid":0}}{stray}{{"ph":"i","s":"t","name":"i","pid":0,"tid":0,"ts":5000}}]"#
        ));
        assert_eq!(t.events.len(), 1, "{stray}");
        assert_eq!(reading.origin, 5000, "{stray}");
        assert_ne!(reading.problems, Problems::default(), "{stray}");
    }
}

#[test]
fn times_are_exact_whatever_they_count_from() {
    let text = r#"[{"ph":"X","name":"a","pid":0,"ts":1751234567890123.456789,"dur":0.1},
        {"ph":"X","name":"b","pid":0,"ts":1751234567890123.556789,"dur":1e-3},
        {"ph":"X","name":"c","pid":0,"ts":1751234577890123.000001,"dur":86400000000.000001}]"#;
    let (t, reading) = reading(text);
    assert_eq!(reading.problems, Problems::default());
    let [a, b, c] = t.events[..] else { panic!() };
    assert_eq!((a.start, a.end()), (Time(456_789), b.start));
    assert_eq!(b.length, Length(1000));
    assert_eq!(c.start, Time(10_000_000_000_001));
    assert_eq!(c.length, Length(86_400_000_000_000_001));
}

#[test]
fn times_too_far_from_the_others_are_told() {
    let event = |ts: &str| format!(r#"{{"ph":"i","name":"x","pid":0,"ts":{ts}}}"#);
    // One that is wrong comes first; 0 is no time, and names have any.
    let others = ["1751234567890123", "1751234567890125", "0", "0.5"].map(event);
    let name = r#"{"ph":"M","name":"process_name","pid":0,"ts":7}"#;
    let text = format!("[{name},{},{}]", event("5"), others.join(","));
    let (t, reading) = reading(&text);
    assert_eq!(reading.problems.count(Trouble::FarTime), 1);
    assert_eq!(t.origin(), 1_751_234_567_890_123);
    let starts: Vec<Time> = t.events.iter().map(|event| event.start).collect();
    let two = Time(2_000_000);
    let first = Time::FIRST;
    assert_eq!(starts, [first, first, Time::ORIGIN, two, first, first]);
    let written: Vec<f64> = t.events.iter().map(|e| t.file_us(e)).collect();
    assert_eq!(written[0], 0.0);
    assert_eq!(written[3], 1_751_234_567_890_125.0);
}

#[test]
fn rows_are_tracks_of_their_file() {
    let text = r#"[{"ph":"i","name":"a","pid":1,"tid":"x","ts":1},
        {"ph":"i","name":"b","pid":1,"tid":"y","ts":1},
        {"ph":"i","name":"c","pid":1,"tid":"x","ts":1},
        {"ph":"i","name":"d","pid":2,"ts":1}]"#;
    let mut t = Timeline::default();
    for path in ["a", "b"] {
        read(text.as_bytes(), path, &mut t).unwrap();
    }
    assert_eq!(t.tracks.len(), 6);
    let of: Vec<u32> = t.events.iter().map(|event| event.track.0).collect();
    assert_eq!(of, [0, 1, 0, 2, 3, 4, 3, 5]);
    let last = t.track(&t.events[6]);
    assert_eq!((last.job, last.pid), (1, Id::Number(1)));
    let Id::Token(tid) = last.tid else { panic!() };
    assert_eq!(t.name(tid), "\"x\"");
}

#[test]
fn reading_goes_on_behind_damage_wherever_it_is() {
    let event = |name: &str| format!(r#"{{"ph":"X","name":"{name}","pid":1,"ts":5,"dur":1}}"#);
    let (a, b, c) = (event("a"), event("b"), event("c"));
    let intact = r#""schemaVersion":1,"deviceProperties":[{"id":0}]"#;
    for (text, names, lost) in [
        // An event without its brackets, with too many, with a quote too many or too few.
        (format!("[{a},{},{c}]", &b[1..]), "ac", 1),
        (format!("[{a},{},{c}]", &b[..b.len() - 1]), "ac", 1),
        (format!("[{a},{}}},{c}]", b), "abc", 1),
        (format!("[{a},{},{c}]", b.replace("\"b\"", "\"b")), "ac", 1),
        (
            format!("[{a},{},{c}]", b.replace("\"b\"", "\"b\"\"")),
            "ac",
            1,
        ),
        (
            format!("[{a},{},{c}]", b.replace("\"b\"", "\"{b\"\"")),
            "ac",
            1,
        ),
        (format!("[{a}x{b},{c}]"), "abc", 1),
        (format!("[{a}]{b},{c}]"), "abc", 1),
        // What stands around the events.
        (
            format!("x{intact},\"traceEvents\":[{a},{b},{c}]}}"),
            "abc",
            0,
        ),
        (
            format!("{{{intact},\"traxeEvents\":[{a},{b},{c}]}}"),
            "abc",
            0,
        ),
        (
            format!("{{{intact},\"traceEvents\":x{a},{b},{c}]}}"),
            "abc",
            0,
        ),
        (
            format!("{{{intact},\"traceEvents:[{a},{b},{c}]}}"),
            "abc",
            0,
        ),
        (
            format!(
                "{{{},\"traceEvents\":[{a},{b},{c}]}}",
                intact.replace(']', "")
            ),
            "abc",
            0,
        ),
        (
            format!("{{{}}},\"traceEvents\":[{a},{b},{c}]}}", intact),
            "abc",
            0,
        ),
        (
            format!("{{\"traceEvents\":[{a},{b},{c}x,\"x\":1}}"),
            "abc",
            1,
        ),
    ] {
        let (t, reading) = reading(&text);
        let found: String = t.events.iter().map(|e| t.name(e.name)).collect();
        assert_eq!(found, names, "{text}");
        let problems = reading.problems.iter();
        let drops: u64 = problems
            .filter(|(t, _)| t.drops())
            .map(|(_, s)| s.count)
            .sum();
        assert!(drops >= lost, "{text}: {drops}");
        let is_damaged = reading.problems.iter().any(|(t, _)| t.is_damage());
        assert!(is_damaged || reading.end != End::Whole, "{text}");
    }
    // The list's end is not swallowed with the event before it.
    let text = format!(
        "{{\"traceEvents\":[{a},{},{c}],\"x\":1}}",
        &b[..b.len() - 1]
    );
    let (_, reading) = reading(&text);
    assert_eq!(reading.end, End::Whole);
}
