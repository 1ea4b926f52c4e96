use super::super::trace_events::Words;
use super::{recording, write};
use crate::import::{json, perfetto};
use aiprof_model::timeline::recorded::{EventSink as _, Group, Recorded, Row};
use aiprof_model::timeline::{
    Args, Event, Id, NONE, Ph, Time, Timeline, Track, TrackKind, members,
};
use aiprof_record::store::Store;
use serde_json::Value;

fn timeline(text: &str) -> Timeline {
    let mut timeline = Timeline::default();
    json::read(text.as_bytes(), "d/x.json", &mut timeline).unwrap();
    timeline
}

fn written(timeline: &Timeline) -> (Vec<u8>, super::Written) {
    let order: Vec<u32> = (0..timeline.events.len() as u32).collect();
    let mut out = Vec::new();
    let written = write(timeline, Words::default(), &order, &mut out).unwrap();
    (out, written)
}

fn again(timeline: &Timeline) -> (Timeline, json::Reading) {
    let mut new = Timeline::default();
    let (bytes, _) = written(timeline);
    let reading = perfetto::read(&bytes[..], "d/x.pftrace", &mut new).unwrap();
    assert_eq!(reading.end, json::End::Whole);
    (new, reading)
}

/// All that one event holds, its time in nanoseconds.
fn told(timeline: &Timeline, event: &Event) -> (i64, String) {
    let id = |id: Id| match id {
        Id::Number(number) => number.to_string(),
        Id::Token(sym) => timeline.name(sym).to_owned(),
    };
    let mut args: Value =
        serde_json::from_str(&format!("{{{}}}", timeline.texts.get(event.args))).unwrap();
    if let Some(args) = args.as_object_mut() {
        // What every slice gets on the way.
        args.remove("jobname");
    }
    let ns = (event.ts() * 1000.0).round() as i64 + timeline.origin() * 1000;
    let text = format!(
        "{} {} {} {}/{} {} {args} {:?} {:?}",
        event.ph.letter(),
        timeline.name(event.name),
        timeline.name(event.cat),
        id(timeline.pid(event)),
        id(timeline.tid(event)),
        (event.dur() * 1000.0).round(),
        timeline
            .device(event)
            .map(|device| (device.stamps, device.power)),
        timeline
            .transfer(event)
            .map(|t| (t.bytes, timeline.name(t.group), timeline.name(t.peers))),
    );
    (ns, text)
}

fn all(timeline: &Timeline, ph: Ph) -> Vec<(i64, String)> {
    let events = timeline.events.iter().filter(|event| event.ph == ph);
    let mut all: Vec<_> = events.map(|event| told(timeline, event)).collect();
    all.sort();
    all
}

const INPUT: &str = r#"[
{"ph":"M","name":"process_name","pid":0,"args":{"name":"rank \"0\""}},
{"ph":"M","name":"process_sort_index","pid":0,"args":{"sort_index":-7}},
{"ph":"M","name":"process_labels","pid":0,"args":{"labels":"AIU 0"}},
{"ph":"M","name":"thread_name","pid":0,"tid":5,"args":{"name":"device"}},
{"ph":"X","name":"outer","cat":"kernel","pid":0,"tid":5,"ts":1751234567890123.125,"dur":10,
 "args":{"TS1":"0x10","TS2":"2","TS3":"3","TS4":4,"TS5":5,"Power":"77","correlation":9,
 "n":-5,"u":18446744073709551615,"d":0.5,"t":"a\"b\\","deep":{"k":[1,[],{"z":null}],"e":{}},"yes":true,
 "no":false,"nil":null}},
{"ph":"X","name":"inner","pid":0,"tid":5,"ts":1751234567890123.125,"dur":4,"args":{"Bytes":"128",
 "CollGroup":"g0","Peers":"1,2"}},
{"ph":"X","name":"inner","pid":0,"tid":5,"ts":1751234567890127.125,"dur":6.001},
{"ph":"X","name":"crossing","pid":0,"tid":5,"ts":1751234567890130,"dur":100},
{"ph":"X","name":"nothing","pid":0,"tid":5,"ts":1751234567890133,"dur":0},
{"ph":"X","name":"first","pid":1,"tid":0,"ts":1751234567890100,"dur":1},
{"ph":"i","name":"mark","pid":1,"tid":0,"ts":1751234567890101,"args":{"why":"x"}},
{"ph":"i","name":"of the process","pid":1,"ts":1751234567890101.5},
{"ph":"C","name":"memory","pid":0,"ts":1751234567890124,"args":{"used":5,"free":2.5}},
{"ph":"C","name":"memory","pid":0,"ts":1751234567890125,"args":{"used":6,"free":1.25}},
{"ph":"C","name":"power","pid":1,"ts":1751234567890125,"args":{"W":70}},
{"ph":"s","name":"ac2g","cat":"ac2g","id":7,"pid":1,"tid":0,"ts":1751234567890100.5},
{"ph":"f","name":"ac2g","cat":"ac2g","id":7,"pid":0,"tid":5,"ts":1751234567890123.125,"bp":"e"}
]"#;

#[test]
fn what_is_written_is_read_back() {
    let old = timeline(INPUT);
    let (new, reading) = again(&old);
    for ph in [Ph::Complete, Ph::Instant, Ph::Counter] {
        assert_eq!(all(&new, ph), all(&old, ph), "{ph:?}");
        assert!(!all(&new, ph).is_empty());
    }
    let names = |timeline: &Timeline| {
        let mut names = all(timeline, Ph::Metadata);
        names.iter_mut().for_each(|(ns, _)| *ns = 0);
        names.sort();
        names
    };
    assert_eq!(names(&new), names(&old));
    // Slices that take no time are reported, as ever; nothing else is wrong.
    let wrong: Vec<_> = reading.problems.iter().map(|(t, s)| (t, s.count)).collect();
    assert_eq!(wrong, [(json::Trouble::ZeroDuration, 1)]);
    let correlated = new.events.iter().find(|e| e.correlation == 9).unwrap();
    assert_eq!(new.name(correlated.name), "outer");
    assert_eq!(new.jobs[0].dialect, aiprof_model::timeline::Dialect::Flex);
}

#[test]
fn flows_connect_the_slices_around_their_ends() {
    let (new, _) = again(&timeline(INPUT));
    let flows: Vec<_> = new
        .events
        .iter()
        .filter(|e| matches!(e.ph, Ph::FlowStart | Ph::FlowEnd | Ph::FlowStep))
        .map(|e| {
            let ns = (e.ts() * 1000.0).round() as i64 + new.origin() * 1000;
            (e.ph, e.id, new.pid(e), new.tid(e), ns)
        })
        .collect();
    let n = Id::Number;
    // At the begins of "first" and of the innermost slice at the flow's end.
    assert_eq!(
        flows,
        [
            (Ph::FlowStart, n(7), n(1), n(0), 1_751_234_567_890_100_000),
            (Ph::FlowEnd, n(7), n(0), n(5), 1_751_234_567_890_123_125),
        ]
    );
}

#[test]
fn large_traces_are_written_in_pieces_that_fit_together() {
    let mut text = String::from("[");
    for i in 0..40_000u64 {
        let (ts, tid) = (1_000_000 + i * 3, i % 5);
        text += &format!(
            "{{\"ph\":\"X\",\"name\":\"n{}\",\"cat\":\"c{}\",\"pid\":{},\"tid\":{tid},\"ts\":{ts}.5,\"dur\":7.25,\"args\":{{\"key{}\":\"word{}\",\"i\":{i}}}}},\n",
            i % 3000,
            i % 3,
            i % 2,
            i % 40,
            i % 50
        );
    }
    text.truncate(text.len() - 2);
    text.push(']');
    let old = timeline(&text);
    let (new, reading) = again(&old);
    assert_eq!(reading.problems, json::Problems::default());
    assert_eq!(all(&new, Ph::Complete), all(&old, Ph::Complete));
}

#[test]
fn ids_that_do_not_fit_are_replaced_and_named() {
    let old = timeline(
        r#"[{"ph":"X","name":"a","pid":"Spans","tid":15514734831341844875,"ts":5,"dur":1},
        {"ph":"X","name":"b","pid":-3,"tid":4294967296,"ts":5,"dur":1},
        {"ph":"X","name":"c","pid":1879048192,"tid":1,"ts":-9,"dur":1}]"#,
    );
    let (new, _) = again(&old);
    let slices: Vec<_> = new.events.iter().filter(|e| e.ph == Ph::Complete).collect();
    assert_eq!(slices.len(), 3);
    let mut ids: Vec<i64> = slices
        .iter()
        .flat_map(|e| [new.pid(e).number().unwrap(), new.tid(e).number().unwrap()])
        .collect();
    assert!(ids.iter().all(|id| (0..=i64::from(i32::MAX)).contains(id)));
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 6);
    let names: Vec<String> = all(&new, Ph::Metadata)
        .into_iter()
        .map(|(_, t)| t)
        .collect();
    for name in ["Spans", "15514734831341844875", "-3", "4294967296"] {
        let is_it = |text: &String| text.contains(&format!("{{\"name\":\"{name}\"}}"));
        assert!(names.iter().any(is_it), "{name} {names:?}");
    }
    // Times before 0 move all, for Perfetto has none.
    let ts: Vec<f64> = slices
        .iter()
        .map(|e| e.ts() + new.origin() as f64)
        .collect();
    assert_eq!(ts, [0.0, 14.0, 14.0]);
}

#[test]
fn slices_that_cross_without_end_are_clipped_and_counted() {
    let mut text = String::from("[");
    for i in 0..100 {
        text += &format!(
            "{{\"ph\":\"X\",\"name\":\"n\",\"pid\":1,\"tid\":1,\"ts\":{},\"dur\":1000}},",
            i + 1
        );
    }
    text += "{\"ph\":\"i\",\"name\":\"x\",\"pid\":1,\"ts\":1}]";
    let old = timeline(&text);
    let (bytes, told) = written(&old);
    // 64 tracks hold one each; what follows them ends early.
    assert_eq!(told.clipped, 36);
    let mut new = Timeline::default();
    perfetto::read(&bytes[..], "x", &mut new).unwrap();
    assert_eq!(all(&new, Ph::Complete).len(), 100);
}

#[test]
fn times_that_are_none_do_no_harm() {
    let mut old = timeline(INPUT);
    for (i, event) in old.events.iter_mut().enumerate() {
        event.set_ts([f64::NAN, f64::INFINITY, -1e300, 1e300][i % 4]);
        event.set_dur([1e300, f64::NAN, -5.0][i % 3]);
    }
    let (bytes, _) = written(&old);
    let mut new = Timeline::default();
    perfetto::read(&bytes[..], "x", &mut new).unwrap();
    let instants = |t: &Timeline| t.events.iter().filter(|e| e.ph == Ph::Instant).count();
    // Those of a file, and the flow's ends, which found no slice.
    assert!(instants(&new) >= instants(&old));
}

#[test]
fn no_events_are_a_trace() {
    let (bytes, _) = written(&Timeline::default());
    assert!(!bytes.is_empty());
}

/// Two GPUs with a counter of one name have a track each.
#[test]
fn counters_of_one_name_stay_with_their_groups() {
    let mut recorded = Recorded::default();
    let mut store = Store::new(Box::new(|| Err(std::io::ErrorKind::Unsupported.into())));
    let name = recorded.names.intern("power");
    for (device, watts) in [(0, 10.0), (1, 20.0)] {
        let track = recorded.tracks.intern(Track {
            job: 0,
            rank: NONE,
            pid: Id::Number(device),
            tid: Id::NONE,
            kind: TrackKind::Counter,
        });
        recorded.rows.push(Row {
            group: Group::Named(format!("GPU {device}")),
            name: "counters".into(),
        });
        let event = Event::new(Ph::Counter, name, track, Time::from_nanos(device));
        let mut args = Args::new();
        args.float("W", watts);
        store.event(&event, 0, args.members()).unwrap();
    }
    let mut bytes = Vec::new();
    recording::write(&recorded, store, &mut bytes).unwrap();
    let mut read = Timeline::default();
    perfetto::read(&bytes[..], "d/x.pftrace", &mut read).unwrap();
    let counters = read.events.iter().filter(|event| event.ph == Ph::Counter);
    let values: Vec<_> = counters.map(|event| told(&read, event).1).collect();
    let of = |device: u32, watts: &str| {
        let process = 1_100_000_000 + device;
        format!("C power  {process}/ 0 {{\"W\":{watts}}} None None")
    };
    assert_eq!(values, [of(0, "10.0"), of(1, "20.0")]);
}

/// What slices of a plain trace name as their flows, and arguments of asynchronous ends.
#[test]
fn plain_traces_keep_bound_flows_and_late_arguments() {
    let slice = |name: &str, tid: u32, ts: u32, more: &str| {
        format!(r#"{{"ph":"X","name":"{name}","pid":1,"tid":{tid},"ts":{ts},"dur":5,{more}}}"#)
    };
    for (from, to) in [(r#""0x5""#, r#""0x5""#), ("7", "7")] {
        let events = [
            slice(
                "send",
                1,
                10,
                &format!(r#""bind_id":{from},"flow_out":true"#),
            ),
            slice(
                "receive",
                2,
                20,
                &format!(r#""bind_id":{to},"flow_in":true"#),
            ),
            r#"{"ph":"b","name":"a","cat":"c","pid":1,"id":3,"ts":10}"#.to_owned(),
            r#"{"ph":"e","name":"a","cat":"c","pid":2,"id":3,"ts":30,"args":{"late":1}}"#
                .to_owned(),
        ];
        let (new, _) = again(&timeline(&format!("[{}]", events.join(","))));
        let flows = new.events.iter();
        let flows = flows.filter(|event| matches!(event.ph, Ph::FlowStart | Ph::FlowEnd));
        let flows: Vec<_> = flows.map(|event| (event.ph, event.ts())).collect();
        let at = |name: &str| {
            let mut slices = new.events.iter().filter(|event| event.is_slice());
            let found = slices.find(|event| new.name(event.name) == name);
            found.unwrap()
        };
        let expected = [
            (Ph::FlowStart, at("send").ts()),
            (Ph::FlowEnd, at("receive").ts()),
        ];
        assert_eq!(flows, expected);
        // It began in one process and ended in another.
        assert_eq!((at("a").dur(), new.arg(at("a"), "late")), (20.0, Some("1")));
    }
}

/// Counters of one name with different ids are different counters.
#[test]
fn plain_counters_of_one_name_are_told_apart_by_their_ids() {
    let counter = |ts: u32, id: &str, value: u32| {
        format!(r#"{{"ph":"C","name":"queue","pid":1,"ts":{ts},{id}"args":{{"n":{value}}}}}"#)
    };
    let events = [
        counter(1, r#""id":7,"#, 10),
        counter(2, r#""id":"0x8","#, 20),
        counter(3, r#""id":7,"#, 30),
        counter(4, "", 40),
    ];
    let (new, _) = again(&timeline(&format!("[{}]", events.join(","))));
    let counters = new.events.iter().filter(|event| event.ph == Ph::Counter);
    let mut by_name: std::collections::BTreeMap<&str, Vec<f64>> = Default::default();
    for event in counters {
        let value = new.arg(event, "n").unwrap().parse().unwrap();
        by_name.entry(new.name(event.name)).or_default().push(value);
    }
    let values: Vec<Vec<f64>> = by_name.into_values().collect();
    assert_eq!(values, [vec![40.0], vec![20.0], vec![10.0, 30.0]]);
}

/// Arrows that slices of a device's trace name.
#[test]
fn slices_of_devices_keep_the_arrows_that_they_name() {
    let events = r#"[
        {"ph":"X","name":"c","cat":"cuda_runtime","pid":1,"tid":1,"ts":10,"dur":5,"bind_id":"0x5","flow_out":true},
        {"ph":"X","name":"k","cat":"kernel","pid":0,"tid":7,"ts":20,"dur":5,"bind_id":"0x5","flow_in":true}]"#;
    let (new, _) = again(&timeline(events));
    let ends = |ph| -> Vec<f64> {
        let ends = new.events.iter().filter(|event| event.ph == ph);
        ends.map(|event| new.file_us(event)).collect()
    };
    assert_eq!(
        (ends(Ph::FlowStart), ends(Ph::FlowEnd)),
        (vec![10.0], vec![20.0])
    );
    assert!(
        new.events
            .iter()
            .all(|event| new.arg(event, "bind_id").is_none())
    );
}

/// Some writers put the values of counters in quotes.
#[test]
fn counters_in_quotes_are_numbers() {
    let values = [r#""4.0""#, r#""5""#, r#""-1.5e3""#, "6"];
    let counters = (1..).zip(values).map(|(ts, value)| {
        format!(r#"{{"ph":"C","name":"load","pid":1,"ts":{ts},"args":{{"v":{value}}}}}"#)
    });
    let words = r#"{"ph":"C","name":"load","pid":1,"ts":9,"args":{"v":"on","w":"inf"}}"#;
    let events: Vec<String> = counters.chain([words.to_owned()]).collect();
    let (new, _) = again(&timeline(&format!("[{}]", events.join(","))));
    let counters = new.events.iter().filter(|event| event.ph == Ph::Counter);
    let found: Vec<(f64, f64)> = counters
        .map(|event| {
            let (_, value) = members(new.texts.get(event.args)).next().unwrap();
            (new.file_us(event), value.parse().unwrap())
        })
        .collect();
    assert_eq!(found, [(1.0, 4.0), (2.0, 5.0), (3.0, -1500.0), (4.0, 6.0)]);
}

/// An event at time 0 among others of 2023 stays there, and the others where they are.
#[test]
fn events_at_zero_stay_there() {
    let slice = |ts: u64, name: &str| {
        format!(r#"{{"ph":"X","name":"{name}","pid":1,"tid":{ts},"ts":{ts},"dur":400}}"#)
    };
    let day = 1_700_000_000_000_000;
    let events = [slice(day, "a"), slice(0, "zero"), slice(day + 500, "b")];
    let (new, _) = again(&timeline(&format!("[{}]", events.join(","))));
    let slices = new.events.iter().filter(|event| event.is_slice());
    let mut found: Vec<(&str, f64, f64)> = slices
        .map(|event| (new.name(event.name), new.file_us(event), event.dur()))
        .collect();
    found.sort_by(|a, b| a.1.total_cmp(&b.1));
    let day = day as f64;
    let expected = [
        ("zero", 0.0, 400.0),
        ("a", day, 400.0),
        ("b", day + 500.0, 400.0),
    ];
    assert_eq!(found, expected);
}
