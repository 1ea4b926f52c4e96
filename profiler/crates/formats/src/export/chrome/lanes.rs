//! Rows for spans that threads did not make: properly nested, whatever overlaps.
//!
//! Spans come in any order, for devices tell late what they did. They wait in a
//! sorter of their own; when all are there, each goes to the first lane of its row
//! in which it lies beside or inside of what is there already. What two spans have
//! to do with each other (a launch and its kernel) is sorted out the same way, so
//! nothing here grows with the number of spans.

use super::{
    Scratch,
    json::Object,
    label,
    sort::{Key, Sorter},
    track_name,
    tracks::{FIRST_LANE, FIRST_ROW},
};
use rustc_hash::FxHashMap;
use std::io;

/// Most groups of rows, and most rows.
const MAX_ROWS: usize = 1 << 16;
/// Most lanes of one row, and of all.
const MAX_LANES: usize = 64;
const MAX_ALL_LANES: u32 = 1 << 20;
/// Most bytes of spans, and of ends of flows, that wait in memory.
const SPANS: usize = 4 << 20;
const FLOWS: usize = 1 << 20;
/// Groups and rows are listed after all threads.
const SORT_INDEX: u64 = 5_000_000;

/// Takes a line, and where it belongs.
pub(super) type Take<'a> = dyn FnMut(Key, &str, &mut Scratch<'_>) -> io::Result<()> + 'a;

/// A row of spans.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Row {
    /// What it belongs to.
    pub(super) group: Group,
    /// Its name.
    pub(super) name: String,
}

/// What rows belong to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Group {
    /// A process that has threads.
    Process(u32),
    /// Something else, by its name.
    Named(String),
}

/// What a flow connects: the process and the runtime's own number of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    /// Process.
    pub(super) pid: u32,
    /// The number.
    pub(super) correlation: u64,
    /// Whether it begins here, or ends.
    pub(super) begins: bool,
}

/// A span on a row.
#[derive(Debug)]
pub(super) struct Span<'a> {
    /// Its row.
    pub(super) row: Row,
    /// Its name.
    pub(super) name: &'a str,
    /// Its category.
    pub(super) category: &'a str,
    /// Begin and end, CLOCK_MONOTONIC nanoseconds.
    pub(super) times: (u64, u64),
    /// Its arguments.
    pub(super) args: Object,
    /// What it is connected with.
    pub(super) flow: Option<Flow>,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) spans: u64,
    pub(super) flows: u64,
    /// Spans without a place.
    pub(super) refused: u64,
}

/// All such rows.
pub(super) struct Lanes {
    start_ns: u64,
    sorter: Sorter,
    rows: FxHashMap<Row, u32>,
    groups: FxHashMap<Group, u32>,
    refused: u64,
}

/// What is known of a row while its spans are put on lanes.
#[derive(Debug, Default)]
struct Place {
    pid: u32,
    name: String,
    /// Of each lane its number, the ends of the spans that are open, and the last
    /// that was not.
    lanes: Vec<(u32, Vec<u64>, u64)>,
}

impl Lanes {
    /// None yet; the trace begins at `start_ns`.
    pub(super) fn new(start_ns: u64) -> Self {
        Self {
            start_ns,
            sorter: Sorter::with_limit(SPANS),
            rows: FxHashMap::default(),
            groups: FxHashMap::default(),
            refused: 0,
        }
    }

    /// The number of a group of rows: a process that the trace has, or one of ours.
    pub(super) fn group(&mut self, group: &Group) -> Option<u32> {
        if let Group::Process(pid) = group {
            return Some(*pid);
        }
        if let Some(&number) = self.groups.get(group) {
            return Some(number);
        }
        let number = FIRST_ROW + u32::try_from(self.groups.len()).ok()?;
        if self.groups.len() >= MAX_ROWS {
            return None;
        }
        self.groups.insert(group.clone(), number);
        Some(number)
    }

    /// Adds a span.
    ///
    /// # Errors
    /// Those of the temporary files.
    pub(super) fn push(&mut self, span: Span<'_>, scratch: &mut Scratch<'_>) -> io::Result<()> {
        let Some(row) = self.row(span.row) else {
            self.refused += 1;
            return Ok(());
        };
        let (start, end) = (span.times.0, span.times.1.max(span.times.0));
        let mut event = Object::new();
        event.text("ph", "X");
        event.text("name", span.name);
        event.text("cat", span.category);
        event.raw("args", &span.args.end());
        let mut line = format!("{row} {start} {end}");
        if let Some(flow) = span.flow {
            let side = u8::from(!flow.begins);
            line.push_str(&format!(" {} {} {side}", flow.pid, flow.correlation));
        }
        line.push('\n');
        line.push_str(&event.end());
        self.sorter
            .push(Key::span(start, end - start, row), &line, scratch)
    }

    fn row(&mut self, row: Row) -> Option<u32> {
        if let Some(&number) = self.rows.get(&row) {
            return Some(number);
        }
        self.group(&row.group)?;
        let number = u32::try_from(self.rows.len()).ok()?;
        if self.rows.len() >= MAX_ROWS {
            return None;
        }
        self.rows.insert(row, number);
        Some(number)
    }

    /// Gives all lines: in no order, for where spans are decides what else there is.
    ///
    /// # Errors
    /// Those of the temporary files and of `take`.
    pub(super) fn finish(
        self,
        scratch: &mut Scratch<'_>,
        take: &mut Take<'_>,
    ) -> io::Result<Written> {
        let mut groups: Vec<_> = self.groups.iter().collect();
        groups.sort_by_key(|(_, number)| **number);
        for (group, &number) in groups {
            if let Group::Named(name) = group {
                for line in label("process", (number, number), name, SORT_INDEX) {
                    take(Key::first(), &line, scratch)?;
                }
            }
        }
        let mut places: Vec<Place> = Vec::new();
        places.resize_with(self.rows.len(), Place::default);
        for (row, number) in &self.rows {
            let pid = match &row.group {
                Group::Process(pid) => Some(*pid),
                named => self.groups.get(named).copied(),
            };
            if let (Some(place), Some(pid)) = (places.get_mut(*number as usize), pid) {
                place.pid = pid;
                place.name.clone_from(&row.name);
            }
        }
        let mut writer = Writer {
            places,
            lanes: 0,
            start_ns: self.start_ns,
            flows: Sorter::with_limit(FLOWS),
            written: Written {
                refused: self.refused,
                ..Written::default()
            },
        };
        self.sorter
            .finish(&mut |line| writer.span(line, scratch, take))?;
        writer.finish(scratch, take)
    }
}

/// Puts sorted spans on lanes.
struct Writer {
    places: Vec<Place>,
    lanes: u32,
    start_ns: u64,
    /// Ends of flows, by process and number.
    flows: Sorter,
    written: Written,
}

impl Writer {
    fn span(
        &mut self,
        line: &[u8],
        scratch: &mut Scratch<'_>,
        take: &mut Take<'_>,
    ) -> io::Result<()> {
        let Some((numbers, event)) = split(line) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let [row, start, end, flow @ ..] = numbers.as_slice() else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let row = usize::try_from(*row).map_err(io::Error::other)?;
        let Some(place) = self.places.get_mut(row) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let found = place.lane(*start, *end);
        let (lane, start, end) = match found {
            Some(found) => found,
            None if place.lanes.len() < MAX_LANES && self.lanes < MAX_ALL_LANES => {
                let lane = FIRST_LANE + self.lanes;
                self.lanes += 1;
                place.lanes.push((lane, vec![*end], 0));
                let name = track_name(&place.name, place.lanes.len());
                let index = SORT_INDEX + u64::from(self.lanes);
                for line in label("thread", (place.pid, lane), &name, index) {
                    take(Key::first(), &line, scratch)?;
                }
                (lane, *start, *end)
            }
            None => {
                self.written.refused += 1;
                return Ok(());
            }
        };
        let pid = place.pid;
        self.written.spans += 1;
        let key = Key::span(start, end.saturating_sub(start), lane);
        let times = (
            start.saturating_sub(self.start_ns),
            end.saturating_sub(start),
        );
        take(key, &on_track(event, pid, lane, times), scratch)?;
        if let &[process, correlation, side] = flow {
            let key = Key::flow(correlation, process, side);
            let at = format!("{process} {correlation} {side} {pid} {lane} {start}\n");
            self.flows.push(key, &at, scratch)?;
        }
        Ok(())
    }

    /// Writes the flows that have both ends.
    fn finish(mut self, scratch: &mut Scratch<'_>, take: &mut Take<'_>) -> io::Result<Written> {
        let flows = std::mem::replace(&mut self.flows, Sorter::with_limit(0));
        // The begin of the flow whose ends come, and whether it was written.
        let mut open: Option<([u64; 2], u64, String, bool)> = None;
        let mut processes: FxHashMap<u64, u64> = FxHashMap::default();
        let mut written = self.written;
        flows.finish(&mut |line| {
            let numbers = split(line).map(|(numbers, _)| numbers);
            let Some(&[process, correlation, side, pid, lane, time]) = numbers.as_deref() else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            let key = [process, correlation];
            let known = processes.len() as u64;
            let index = *processes.entry(process).or_insert(known);
            // Numbers of processes are their own: only those of the first stay as
            // they are.
            if correlation >= 1 << 32 || index >= 1 << 20 {
                return Ok(());
            }
            let id = index << 32 | correlation;
            let at = time.saturating_sub(self.start_ns);
            let is_open = open.as_ref().is_some_and(|(of, ..)| *of == key);
            if side == 0 {
                // Of several launches with one number, the first.
                if !is_open {
                    open = Some((key, time, flow_event(true, id, [pid, lane], at), false));
                }
                return Ok(());
            }
            let Some((_, from, begin, told)) = open.as_mut().filter(|_| is_open) else {
                return Ok(());
            };
            // Of several kernels of one launch, the first.
            if !*told {
                *told = true;
                take(Key::after(*from), begin, scratch)?;
                let end = flow_event(false, id, [pid, lane], at);
                take(Key::after(time), &end, scratch)?;
                written.flows += 1;
            }
            Ok(())
        })?;
        Ok(written)
    }
}

impl Place {
    /// The first lane in which a span lies beside or inside of all that is there, and
    /// the span's times in it. Where spans touch they are set a nanosecond apart:
    /// viewers add times up as floating-point numbers of microseconds, and would see
    /// some of them cross.
    fn lane(&mut self, start: u64, end: u64) -> Option<(u32, u64, u64)> {
        self.lanes.iter_mut().find_map(|(lane, open, closed)| {
            while let Some(last) = open.pop_if(|last| *last <= start) {
                *closed = last.max(*closed);
            }
            let start = start.max(closed.saturating_add(1));
            let mut end = end.max(start);
            if let Some(around) = open.last() {
                if *around < end || start >= *around {
                    return None;
                }
                end = end.min(around.saturating_sub(1)).max(start);
            }
            open.push(end);
            Some((*lane, start, end))
        })
    }
}

/// The numbers before a line, and the line.
fn split(line: &[u8]) -> Option<(Vec<u64>, &str)> {
    let (numbers, event) = std::str::from_utf8(line).ok()?.split_once('\n')?;
    let numbers = numbers.split(' ').map(str::parse).collect::<Result<_, _>>();
    Some((numbers.ok()?, event))
}

/// An event with its process and thread, its begin in the trace and its length.
fn on_track(event: &str, pid: u32, tid: u32, (start, length): (u64, u64)) -> String {
    let mut whole = Object::new();
    whole.number("pid", pid.into());
    whole.number("tid", tid.into());
    whole.micros("ts", start);
    whole.micros("dur", length);
    let whole = whole.end();
    let known = whole.strip_suffix('}').unwrap_or(&whole);
    let rest = event.strip_prefix('{').unwrap_or(event);
    format!("{known},{rest}")
}

/// One end of an arrow.
fn flow_event(begins: bool, id: u64, [pid, tid]: [u64; 2], time_ns: u64) -> String {
    let mut event = Object::new();
    event.text("ph", if begins { "s" } else { "f" });
    event.number("id", id);
    event.number("pid", pid);
    event.number("tid", tid);
    event.micros("ts", time_ns);
    event.text("cat", "ac2g");
    event.text("name", "ac2g");
    if !begins {
        event.text("bp", "e");
    }
    event.end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn span<'a>(row: &str, name: &'a str, times: (u64, u64), flow: Option<Flow>) -> Span<'a> {
        Span {
            row: Row {
                group: Group::Named("device".into()),
                name: row.into(),
            },
            name,
            category: "kernel",
            times,
            args: Object::new(),
            flow,
        }
    }

    fn write(spans: Vec<Span<'_>>) -> (Vec<Value>, Written) {
        let mut scratch = tempfile::tempfile;
        let mut lanes = Lanes::new(1000);
        for span in spans {
            lanes.push(span, &mut scratch).unwrap();
        }
        let mut lines = Vec::new();
        let mut take = |_: Key, line: &str, _: &mut Scratch<'_>| {
            lines.push(serde_json::from_str(line).unwrap());
            Ok(())
        };
        let written = lanes.finish(&mut scratch, &mut take).unwrap();
        (lines, written)
    }

    fn of<'a>(lines: &'a [Value], ph: &str) -> Vec<&'a Value> {
        lines.iter().filter(|line| line["ph"] == ph).collect()
    }

    #[test]
    fn what_overlaps_gets_a_lane_of_its_own_and_what_nests_does_not() {
        let times = [
            ("late", (9000, 9500)),
            ("outer", (2000, 5000)),
            ("inner", (2500, 3000)),
            ("across", (4000, 6000)),
            ("next", (5000, 5500)),
            ("empty", (5500, 5500)),
        ];
        let spans = times.map(|(name, times)| span("Stream 1", name, times, None));
        let (lines, written) = write(spans.into());
        assert_eq!((written.spans, written.refused), (6, 0));
        let lane = |name: &str| {
            let found = of(&lines, "X").into_iter().find(|e| e["name"] == name);
            found.unwrap()["tid"].as_u64().unwrap()
        };
        for name in ["inner", "next", "empty", "late"] {
            assert_eq!(lane(name), lane("outer"), "{name}");
        }
        assert_eq!(lane("across"), lane("outer") + 1);
        let names: Vec<_> = of(&lines, "M")
            .into_iter()
            .filter(|event| event["name"] != "thread_sort_index")
            .map(|event| event["args"]["name"].as_str())
            .collect();
        assert_eq!(
            names,
            [Some("device"), None, Some("Stream 1"), Some("Stream 1 (2)")]
        );
        assert_eq!(of(&lines, "X")[0]["ts"], 1.0);
    }

    #[test]
    fn flows_have_both_ends_and_numbers_of_their_own() {
        let flow = |pid, correlation, begins| {
            Some(Flow {
                pid,
                correlation,
                begins,
            })
        };
        let (lines, written) = write(vec![
            span("b", "kernel", (5000, 6000), flow(1, 7, false)),
            span("a", "launch", (2000, 3000), flow(1, 7, true)),
            // The same number in another process.
            span("c", "launch", (2000, 3000), flow(2, 7, true)),
            span("d", "kernel", (4000, 4500), flow(2, 7, false)),
            // A second kernel of a launch, a launch and a kernel without the other.
            span("b", "kernel", (7000, 8000), flow(1, 7, false)),
            span("a", "launch", (3000, 3100), flow(1, 8, true)),
            span("b", "kernel", (8000, 8100), flow(1, 9, false)),
        ]);
        assert_eq!((written.spans, written.flows), (7, 2));
        let ends = |ph| -> Vec<_> {
            let events = of(&lines, ph);
            events
                .into_iter()
                .map(|e| (e["id"].as_u64().unwrap(), e["ts"].clone()))
                .collect()
        };
        let (begins, ends) = (ends("s"), ends("f"));
        assert_eq!(begins.len(), 2);
        assert_eq!(begins[0], (7, 1.0.into()));
        assert_eq!(begins[1], (1 << 32 | 7, 1.0.into()));
        assert_eq!(ends, [(7, 4.0.into()), (1 << 32 | 7, 3.0.into())]);
        assert!(of(&lines, "f").iter().all(|event| event["bp"] == "e"));
    }

    #[test]
    fn too_many_lanes_are_counted() {
        let spans = (0..MAX_LANES as u64 + 5).map(|i| span("s", "k", (2000 + i, 9000 + i), None));
        let (lines, written) = write(spans.collect());
        assert_eq!(written.refused, 5);
        assert_eq!(of(&lines, "X").len(), MAX_LANES);
    }
}
