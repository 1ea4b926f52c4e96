//! Scheduler events from the kernel's description of them to submissions: through what is
//! taken of each tracepoint, the bytes that the eBPF program sends, and the tracker. No
//! machine with such a device was at hand: descriptions and events are synthetic, as the
//! names of their files show.

use super::points::{self, Point};
use aiprof_common::{KIND_TRACE, TRACE_TEXT_BYTES, TraceField};
use aiprof_model::wire::{self, Event, Record};
use aiprof_record::correlate::{CallSink, Tracked, Tracker};
use std::fs;

const LINUX_6_1: &str = include_str!("../../../../tests/data/gpu-scheduler-6.1.synthetic.txt");
const LINUX_6_16: &str = include_str!("../../../../tests/data/gpu-scheduler-6.16.synthetic.txt");

/// A file of descriptions, events and what they mean.
struct Fixture<'f> {
    text: &'f str,
    points: Vec<Point>,
}

impl<'f> Fixture<'f> {
    fn new(text: &'f str) -> Self {
        assert!(text.starts_with("SYNTHETIC"));
        let root = tempfile::tempdir().unwrap();
        for block in text
            .split("\n\n")
            .filter(|block| block.starts_with("name: "))
        {
            let name = block
                .lines()
                .next()
                .unwrap()
                .strip_prefix("name: ")
                .unwrap();
            let folder = root.path().join("events/gpu_scheduler").join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("format"), block).unwrap();
        }
        let points = points::find(root.path());
        Self { text, points }
    }

    fn lines(&self, key: &str) -> Vec<&'f str> {
        let lines = self.text.lines();
        lines
            .filter_map(|line| line.strip_prefix(key)?.strip_prefix(": "))
            .collect()
    }

    /// Offset of a field, and whether it is a text, by the description of its event.
    fn field(&self, event: &str, name: &str) -> (usize, usize, bool) {
        let block = self.text.split("\n\n").find(|block| {
            let first = block.lines().next();
            first.and_then(|line| line.strip_prefix("name: ")) == Some(event)
        });
        let mut lines = block.unwrap().lines();
        let line = lines
            .find(|line| line.contains(&format!(" {name};")))
            .unwrap();
        let number = |key: &str| -> usize {
            let rest = line.split_once(key).unwrap().1;
            rest.split(';').next().unwrap().parse().unwrap()
        };
        (
            number("offset:"),
            number("size:"),
            line.contains("__data_loc"),
        )
    }

    /// An event's own record, as the kernel lays it out.
    fn record(&self, event: &str, fields: &[(&str, &str)]) -> Vec<u8> {
        let mut bytes = vec![0; 48];
        for (name, value) in fields {
            let (offset, size, is_text) = self.field(event, name);
            let number = if is_text {
                let at = bytes.len();
                bytes.extend(value.as_bytes());
                bytes.push(0);
                ((value.len() + 1) << 16 | at) as u64
            } else if let Some(hex) = value.strip_prefix("0x") {
                u64::from_str_radix(hex, 16).unwrap()
            } else {
                value.parse().unwrap()
            };
            bytes[offset..offset + size].copy_from_slice(&number.to_ne_bytes()[..size]);
        }
        bytes
    }

    /// An event as the eBPF program sends it (profiler-ebpf/src/trace.rs).
    fn sent(&self, line: &str) -> Vec<u8> {
        let words: Vec<&str> = line.split(' ').collect();
        let (time, pid, event) = (words[0].parse::<u64>(), words[1].parse::<u32>(), words[2]);
        let fields = words[3..].iter().map(|word| word.split_once('=').unwrap());
        let record = self.record(event, &fields.collect::<Vec<_>>());
        let point = self.points.iter().find(|point| point.point.name == event);
        let point = point.unwrap_or_else(|| panic!("{event} is not recorded"));
        let mut bytes = Vec::new();
        bytes.extend(KIND_TRACE.to_ne_bytes());
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend(time.unwrap().to_ne_bytes());
        let pid = pid.unwrap();
        for word in [pid, pid, point.point.id, 0] {
            bytes.extend(word.to_ne_bytes());
        }
        for field in point.spec.values {
            bytes.extend(number(&record, field).to_ne_bytes());
        }
        for field in point.spec.texts {
            bytes.extend(text(&record, field));
        }
        bytes
    }
}

fn number(record: &[u8], field: TraceField) -> u64 {
    let (at, size) = (usize::from(field.offset), usize::from(field.size));
    let mut word = [0; 8];
    word[..size].copy_from_slice(&record[at..at + size]);
    u64::from_ne_bytes(word)
}

fn text(record: &[u8], field: TraceField) -> [u8; TRACE_TEXT_BYTES] {
    let mut out = [0; TRACE_TEXT_BYTES];
    if field.size != 0 {
        assert_eq!(field.data_loc, 1);
        let place = TraceField { size: 4, ..field };
        let at = (number(record, place) & 0xffff) as usize;
        let source = record[at..].iter().take_while(|byte| **byte != 0);
        out.iter_mut()
            .zip(source)
            .for_each(|(to, from)| *to = *from);
    }
    out
}

#[derive(Default)]
struct Told(Vec<String>);

impl CallSink for Told {
    fn found(&mut self, found: &Tracked<'_>) {
        let Tracked::Submission(s) = *found else {
            return;
        };
        let time = |time: Option<u64>| time.map_or("-".to_owned(), |time| time.to_string());
        let (started, ended) = (time(s.started_ns), time(s.ended_ns));
        self.0.push(format!(
            "{} {started} {ended} pid={} device={} queue={} context={} seqno={} client={}",
            s.submitted_ns, s.pid, s.device, s.queue, s.context, s.seqno, s.client
        ));
    }
}

fn told(fixture: &Fixture<'_>) -> Vec<String> {
    let (mut tracker, mut told) = (Tracker::default(), Told::default());
    for point in &fixture.points {
        tracker.apply(&Event::TracePoint(point.point.clone()), &mut told);
    }
    for line in fixture.lines("hit") {
        let Ok(Record::Trace(trace)) = wire::decode(&fixture.sent(line)) else {
            panic!("{line}");
        };
        tracker.apply(&Event::Trace(trace), &mut told);
    }
    tracker.finish(9000, &mut told);
    told.0
}

#[test]
fn synthetic_scheduler_events_become_submissions() {
    for text in [LINUX_6_1, LINUX_6_16] {
        let fixture = Fixture::new(text);
        assert_eq!(fixture.points.len(), 3);
        assert_eq!(told(&fixture), fixture.lines("told"));
    }
}

/// A kernel that has neither of the names that distinguish jobs.
#[test]
fn synthetic_events_without_a_key_are_left_out() {
    let text = LINUX_6_16.replace("fence_seqno", "fence_number");
    let fixture = Fixture::new(&text);
    assert_eq!(told(&fixture), Vec::<String>::new());
}
