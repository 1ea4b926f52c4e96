//! Submissions to devices: a process-like entry for each device, below it tracks for
//! each of its queues.
//!
//! Submissions of a queue overlap, for the next one is handed over before the last
//! one is done. A queue has as many tracks as it had submissions at a time; one goes
//! to the track that has been free for the shortest time, which needs the fewest.

use super::{Survey, json::Object, label, track_name};
use aiprof_analysis::correlate::Submission;
use std::{collections::BTreeMap, rc::Rc};

/// First process number of devices with submissions, and first track number: larger
/// than those of processes and threads, and readable.
const DEVICES: u32 = 1_500_000_000;
const TRACKS: u32 = 1_600_000_000;
/// Most queues of all devices.
const MAX_QUEUES: usize = 1024;
/// Most tracks of a queue: submissions at a time.
const MAX_LANES: usize = 64;
/// Below the processes.
const SORT_INDEX: u64 = 3;

/// The tracks of one queue.
#[derive(Debug)]
struct Queue {
    /// Number of its first track; further ones follow.
    first: u32,
    /// Of each track, when the last one on it ended.
    lanes: Vec<u64>,
}

/// The tracks of all queues.
#[derive(Debug, Default)]
pub(super) struct Fences {
    /// By device and queue.
    queues: BTreeMap<(Rc<str>, Rc<str>), Queue>,
    /// Numbers of the devices.
    devices: BTreeMap<Rc<str>, u32>,
}

/// Where a submission is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Process-like number and track.
    pub(super) track: (u32, u32),
    /// Begin and end.
    pub(super) from: u64,
    pub(super) to: u64,
}

impl Fences {
    /// Finds a place for a submission; `None`: there are too many queues, or too many
    /// submissions at a time.
    pub(super) fn place(&mut self, submission: &Submission) -> Option<Place> {
        let from = submission.submitted_ns;
        let to = submission.end_before_ns.max(from);
        let key = (submission.device.clone(), submission.queue.clone());
        let next = self.queues.len();
        if next >= MAX_QUEUES && !self.queues.contains_key(&key) {
            return None;
        }
        let device = match self.devices.get(&key.0) {
            Some(&device) => device,
            None => {
                // As many as queues at most.
                let device = DEVICES + self.devices.len() as u32;
                self.devices.insert(key.0.clone(), device);
                device
            }
        };
        let queue = self.queues.entry(key).or_insert_with(|| Queue {
            first: TRACKS + (next * MAX_LANES) as u32,
            lanes: Vec::new(),
        });
        let lane = queue.lane(from)?;
        *queue.lanes.get_mut(lane)? = to;
        Some(Place {
            // Below MAX_LANES.
            track: (device, queue.first + lane as u32),
            from,
            to,
        })
    }

    /// Names of devices and tracks.
    pub(super) fn metadata(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, &device) in &self.devices {
            let name = match &**name {
                "" => "GPU scheduler",
                name => name,
            };
            let name = format!("{name}: submissions, not busy time");
            lines.extend(label("process", (device, device), &name, SORT_INDEX));
        }
        for ((device, name), queue) in &self.queues {
            let device = self.devices.get(device).copied().unwrap_or(DEVICES);
            let name = if name.is_empty() { "queue" } else { name };
            for (track, lane) in (queue.first..).zip(1..=queue.lanes.len()) {
                let name = track_name(name, lane);
                lines.extend(label("thread", (device, track), &name, track.into()));
            }
        }
        lines
    }
}

impl Queue {
    /// The track for a submission that begins then.
    fn lane(&mut self, from: u64) -> Option<usize> {
        let lanes = self.lanes.iter().enumerate();
        let free = lanes.filter(|(_, end)| **end <= from);
        if let Some((lane, _)) = free.max_by_key(|(_, end)| **end) {
            return Some(lane);
        }
        if self.lanes.len() >= MAX_LANES {
            return None;
        }
        self.lanes.push(0);
        Some(self.lanes.len() - 1)
    }
}

/// What a submission is called: after who made it.
pub(super) fn name<'s>(survey: &'s Survey, submission: &Submission) -> &'s str {
    let track = survey.processes.get(&submission.pid);
    let name = track.map(|name| &**name).filter(|name| !name.is_empty());
    name.or_else(|| survey.submitter(submission.pid))
        .unwrap_or("submission")
}

/// What is known of a submission.
pub(super) fn args(submission: &Submission) -> String {
    let mut args = Object::new();
    args.text("source", submission.source.name());
    for (key, number) in [
        ("pid", submission.pid.into()),
        ("tid", submission.tid.into()),
        ("client", submission.client),
        ("context", submission.context),
        ("seqno", submission.seqno),
    ] {
        if number != 0 {
            args.number(key, number);
        }
    }
    if let Some(started) = submission.started_ns {
        let waited = started.saturating_sub(submission.submitted_ns);
        args.micros("handed_over_after_us", waited);
    }
    if submission.ended_ns.is_none() {
        args.text("end", "not seen");
    }
    args.end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_analysis::correlate::SubmissionSource;
    use aiprof_model::wire::{Event, ProcessEvent, ProcessEventKind, Trace, TracePoint};

    fn submission(queue: &str, from: u64, to: u64) -> Submission {
        Submission {
            source: SubmissionSource::Fence,
            device: "xe".into(),
            queue: queue.into(),
            context: 1,
            seqno: 2,
            client: 0,
            pid: 0,
            tid: 0,
            submitted_ns: from,
            started_ns: Some(from + 1500),
            ended_ns: Some(to),
            end_before_ns: to,
        }
    }

    /// Overlapping ones lie side by side, and no more tracks are used than there are
    /// submissions at a time.
    #[test]
    fn tracks_are_as_many_as_submissions_at_a_time() {
        let mut fences = Fences::default();
        // In the order of their ends, as they come; three at a time at most.
        let spans = [
            (0, 10),
            (5, 12),
            (10, 20),
            (12, 25),
            (8, 30),
            (20, 40),
            (26, 41),
        ];
        let mut ends: BTreeMap<u32, u64> = BTreeMap::new();
        for (from, to) in spans {
            let place = fences.place(&submission("rcs0", from, to)).unwrap();
            let (device, track) = place.track;
            assert_eq!((device, place.from, place.to), (DEVICES, from, to));
            let before = ends.insert(track, to);
            assert!(before.is_none_or(|end| end <= from), "{from} {track}");
        }
        assert_eq!(ends.len(), 3);
        let other = fences.place(&submission("ccs0", 0, 1)).unwrap();
        assert_eq!(other.track.0, DEVICES);
        assert!(!ends.contains_key(&other.track.1));
        // A device, three tracks and one more: two lines for each.
        assert_eq!(fences.metadata().len(), 2 * (1 + 3 + 1));
    }

    #[test]
    fn tracks_are_bounded() {
        let mut fences = Fences::default();
        for lane in 0..2 * MAX_LANES {
            let placed = fences.place(&submission("rcs0", 0, 9));
            assert_eq!(placed.is_some(), lane < MAX_LANES);
        }
        for queue in 1..2 * MAX_QUEUES {
            let placed = fences.place(&submission(&format!("q{queue}"), 0, 9));
            assert_eq!(placed.is_some(), queue < MAX_QUEUES, "{queue}");
        }
    }

    #[test]
    fn arguments_say_what_is_known() {
        let mut one = submission("rcs0", 10, 5000);
        let text = r#"{"source":"dma_fence","context":1,"seqno":2,"handed_over_after_us":1.500}"#;
        assert_eq!(args(&one), text);
        (one.ended_ns, one.started_ns, one.pid) = (None, None, 4);
        let text = r#"{"source":"dma_fence","pid":4,"context":1,"seqno":2,"end":"not seen"}"#;
        assert_eq!(args(&one), text);
    }

    /// The events of a recording, in order.
    fn recording() -> Vec<Event> {
        let point = |id, name: &str| {
            Event::TracePoint(TracePoint {
                id,
                category: "dma_fence".into(),
                name: name.into(),
                values: vec!["context".into(), "seqno".into()],
                texts: vec!["driver".into(), "timeline".into()],
            })
        };
        let hit = |time_ns, point, seqno| {
            let mut values = [0; aiprof_common::TRACE_VALUES];
            values[..2].copy_from_slice(&[3, seqno]);
            Event::Trace(Trace {
                time_ns,
                cpu: 0,
                pid: 70,
                tid: 71,
                point,
                values,
                texts: ["xe".into(), "rcs0\"".into()],
            })
        };
        let exec = Event::Process(ProcessEvent {
            time_ns: 1000,
            pid: 70,
            tid: 70,
            kind: ProcessEventKind::Exec {
                comm: "train".into(),
            },
        });
        let (begin, end) = (0, 1);
        let mut events = vec![
            point(begin, "dma_fence_init"),
            point(end, "dma_fence_signaled"),
        ];
        events.push(exec);
        for (time, point, seqno) in [
            (2000, begin, 1),
            (3000, begin, 2),
            (4000, end, 1),
            (5000, begin, 3),
            (6000, end, 2),
            (9000, begin, 4),
            (10_000, end, 3),
        ] {
            events.push(hit(time, point, seqno));
        }
        events
    }

    #[test]
    fn a_trace_has_submissions_on_tracks_of_their_queue() {
        let events = recording();
        let mut survey = Survey::default();
        events.iter().for_each(|event| survey.event(event));
        let mut scratch = tempfile::tempfile;
        let names = aiprof_analysis::aggregate::NoNames;
        let mut trace = super::super::Trace::new(&survey, &names, 0, &mut scratch);
        for event in &events {
            trace.event(event).unwrap();
        }
        let mut out = Vec::new();
        let (about, losses) = (Default::default(), Default::default());
        let totals = trace.finish(&about, &losses, &mut out).unwrap();
        assert_eq!((totals.submissions, totals.calls), (4, 0));
        let whole: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(whole["otherData"]["submissions"], 4);
        let events = whole["traceEvents"].as_array().unwrap();
        let spans: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
        let drawn: Vec<_> = spans
            .iter()
            .map(|span| {
                assert_eq!(
                    (&span["name"], &span["cat"]),
                    (&"train".into(), &"submission".into())
                );
                let [track, from, length] = ["tid", "ts", "dur"].map(|key| span[key].as_f64());
                (
                    span["args"]["seqno"].as_u64().unwrap(),
                    track.unwrap() - f64::from(TRACKS),
                    from.unwrap(),
                    length.unwrap(),
                )
            })
            .collect();
        // The last one is not done when the recording ends.
        assert_eq!(
            drawn,
            [
                (1, 0.0, 1.0, 2.0),
                (2, 1.0, 2.0, 3.0),
                (3, 0.0, 4.0, 5.0),
                (4, 1.0, 8.0, 1.0)
            ]
        );
        assert_eq!(spans[3]["args"]["end"], "not seen");
        let named = |what: &str| -> Vec<&str> {
            let lines = events.iter().filter(|event| event["name"] == what);
            lines.map(|e| e["args"]["name"].as_str().unwrap()).collect()
        };
        assert_eq!(named("process_name"), ["xe: submissions, not busy time"]);
        assert_eq!(named("thread_name"), ["rcs0\"", "rcs0\" (2)"]);
    }
}
