//! Made-up events: none of these was recorded on a machine.

use super::*;
use aiprof_model::wire::Event;

/// The reported submissions.
#[derive(Default)]
pub(super) struct Told(Vec<Submission>);

impl CallSink for Told {
    fn found(&mut self, found: &Tracked<'_>) {
        if let Tracked::Submission(submission) = *found {
            self.0.push(submission.clone());
        }
    }
}

const INIT: u32 = 0;
const EMIT: u32 = 1;
const SIGNALED: u32 = 2;
const DESTROY: u32 = 3;
const QUEUE: u32 = 4;
const RUN: u32 = 5;
const DONE: u32 = 6;

fn point(id: u32, category: &str, name: &str, values: &[&str], texts: &[&str]) -> TracePoint {
    let all = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    TracePoint {
        id,
        category: category.into(),
        name: name.into(),
        values: all(values),
        texts: all(texts),
    }
}

fn fence_points() -> Vec<TracePoint> {
    let names = ["init", "emit", "signaled", "destroy"];
    let point = |(id, name): (u32, &str)| {
        let name = format!("dma_fence_{name}");
        point(
            id,
            "dma_fence",
            &name,
            &["context", "seqno"],
            &["driver", "timeline"],
        )
    };
    (INIT..).zip(names).map(point).collect()
}

/// The scheduler's tracepoints as of Linux 6.16.
fn new_job_points() -> Vec<TracePoint> {
    let all = [
        "fence_context",
        "fence_seqno",
        "job_count",
        "hw_job_count",
        "client_id",
    ];
    let few = ["fence_context", "fence_seqno", "", "", ""];
    let point =
        |id, name, values: &[&str], texts: &[&str]| point(id, "gpu_scheduler", name, values, texts);
    vec![
        point(QUEUE, "drm_sched_job_queue", &all, &["name", "dev"]),
        point(RUN, "drm_sched_job_run", &all, &["name", "dev"]),
        point(DONE, "drm_sched_job_done", &few, &["", ""]),
    ]
}

/// The scheduler's tracepoints before that.
fn old_job_points() -> Vec<TracePoint> {
    let all = ["fence", "entity", "job_count", "hw_job_count", "id"];
    let point =
        |id, name, values: &[&str], texts: &[&str]| point(id, "gpu_scheduler", name, values, texts);
    vec![
        point(QUEUE, "drm_sched_job", &all, &["name", ""]),
        point(RUN, "drm_run_job", &all, &["name", ""]),
        point(
            DONE,
            "drm_sched_process_job",
            &["fence", "", "", "", ""],
            &["", ""],
        ),
    ]
}

/// A hit, by process 7.
fn hit(time_ns: u64, point: u32, values: &[u64], texts: [&str; 2]) -> Trace {
    let mut all = [0; aiprof_common::TRACE_VALUES];
    for (to, from) in all.iter_mut().zip(values) {
        *to = *from;
    }
    Trace {
        time_ns,
        cpu: 0,
        pid: 7,
        tid: 8,
        point,
        values: all,
        texts: texts.map(str::to_owned),
    }
}

fn fence(time_ns: u64, point: u32, context: u64, seqno: u64) -> Trace {
    hit(time_ns, point, &[context, seqno], ["xe", "rcs0"])
}

/// Follows events; returns the submissions, the state and the losses.
fn follow(points: &[TracePoint], hits: &[Trace], room: Room) -> (Vec<Submission>, Fences, Losses) {
    let (mut fences, mut told) = (Fences::with_room(room), Told::default());
    let mut losses = Losses::default();
    for point in points {
        fences.point(point);
    }
    for hit in hits {
        fences.trace(hit, &mut losses, &mut told);
    }
    fences.finish(1000, &mut told);
    (told.0, fences, losses)
}

fn followed(points: &[TracePoint], hits: &[Trace]) -> Vec<Submission> {
    follow(points, hits, Room::default()).0
}

type Times = (u64, Option<u64>, Option<u64>, u64);

fn times(told: &[Submission]) -> Vec<Times> {
    let of = |s: &Submission| (s.submitted_ns, s.started_ns, s.ended_ns, s.end_before_ns);
    told.iter().map(of).collect()
}

#[test]
fn those_that_submit_hit_the_begins() {
    for points in [fence_points(), old_job_points(), new_job_points()] {
        let begin: Vec<_> = points.iter().filter(|point| begins(point)).collect();
        assert_eq!(begin.len(), 1, "{begin:?}");
        assert!([INIT, QUEUE].contains(&begin[0].id));
    }
}

#[test]
fn a_fence_is_a_submission() {
    let hits = [
        fence(10, INIT, 5, 1),
        fence(12, EMIT, 5, 1),
        fence(20, INIT, 5, 2),
        fence(30, SIGNALED, 5, 1),
        fence(31, DESTROY, 5, 1),
    ];
    let (told, fences, losses) = follow(&fence_points(), &hits, Room::default());
    assert_eq!(
        times(&told),
        [(10, Some(12), Some(30), 30), (20, None, None, 1000)]
    );
    let first = &told[0];
    assert_eq!((&*first.device, &*first.queue), ("xe", "rcs0"));
    assert_eq!((first.context, first.seqno, first.client), (5, 1, 0));
    assert_eq!((first.pid, first.tid), (7, 8));
    assert_eq!(first.source, SubmissionSource::Fence);
    assert_eq!((fences.reported, fences.unmatched), (2, 0));
    assert_eq!(losses, Losses::default());
}

/// A recording of Linux 6.16's scheduler as it would be; synthetic.
#[test]
fn synthetic_jobs_of_linux_6_16() {
    let texts = ["ccs0", "0000:03:00.0"];
    let mut points = fence_points();
    points.extend(new_job_points());
    // The job's own fence repeats the job; the hardware's fence is another submission.
    let hits = [
        hit(9, INIT, &[40, 3], ["drm_sched", "ccs0"]),
        hit(10, QUEUE, &[40, 3, 1, 0, 77], texts),
        hit(14, INIT, &[90, 1], ["xe", "ccs0"]),
        hit(15, RUN, &[40, 3, 0, 1, 77], texts),
        hit(40, SIGNALED, &[90, 1], ["xe", "ccs0"]),
        hit(41, DONE, &[40, 3], ["", ""]),
        hit(42, SIGNALED, &[40, 3], ["drm_sched", "ccs0"]),
    ];
    let (told, fences, _) = follow(&points, &hits, Room::default());
    assert_eq!(
        times(&told),
        [(14, None, Some(40), 40), (10, Some(15), Some(41), 41)]
    );
    let job = &told[1];
    assert_eq!((&*job.device, &*job.queue), (texts[1], "ccs0"));
    assert_eq!((job.context, job.seqno, job.client), (40, 3, 77));
    assert_eq!((job.source.name(), fences.unmatched), ("drm_sched", 0));
}

/// The same of Linux 6.1 to 6.15, where jobs are identified by their fence's address; synthetic.
#[test]
fn synthetic_jobs_of_linux_6_1() {
    let texts = ["gfx_0.0.0", ""];
    let address = 0xffff_8880_1234_5600;
    let hits = [
        hit(10, QUEUE, &[address, 1, 1, 0, 900], texts),
        hit(15, RUN, &[address, 1, 0, 1, 900], texts),
        hit(41, DONE, &[address], ["", ""]),
        // The same memory again.
        hit(50, QUEUE, &[address, 1, 1, 0, 901], texts),
        hit(60, DONE, &[address], ["", ""]),
    ];
    let told = followed(&old_job_points(), &hits);
    assert_eq!(
        times(&told),
        [(10, Some(15), Some(41), 41), (50, None, Some(60), 60)]
    );
    assert_eq!(
        (told[0].seqno, told[1].seqno, told[0].context),
        (900, 901, 0)
    );
    assert_eq!((&*told[0].device, &*told[0].queue), ("", "gfx_0.0.0"));
}

/// Without tracepoints of jobs, the fences of jobs count.
#[test]
fn scheduler_fences_count_where_jobs_are_not_told() {
    let hits = [
        hit(9, INIT, &[40, 3], ["drm_sched", "ccs0"]),
        hit(42, SIGNALED, &[40, 3], ["drm_sched", "ccs0"]),
    ];
    assert_eq!(followed(&fence_points(), &hits).len(), 1);
    let mut points = fence_points();
    points.extend(old_job_points());
    assert_eq!(followed(&points, &hits).len(), 0);
}

#[test]
fn fences_that_stand_for_others_are_no_work() {
    for (driver, timeline) in NO_WORK {
        let timeline = timeline.unwrap_or("unbound");
        let hits = [
            hit(9, INIT, &[1, 1], [driver, timeline]),
            hit(9, SIGNALED, &[1, 1], [driver, timeline]),
        ];
        let (told, fences, _) = follow(&fence_points(), &hits, Room::default());
        assert_eq!((told.len(), fences.unmatched), (0, 0));
    }
}

#[test]
fn what_is_incomplete_says_so() {
    // Never signalled; released.
    let hits = [fence(10, INIT, 5, 1), fence(30, DESTROY, 5, 1)];
    assert_eq!(
        times(&followed(&fence_points(), &hits)),
        [(10, None, None, 30)]
    );
    // The number is used again without an end.
    let hits = [
        fence(10, INIT, 5, 1),
        fence(20, INIT, 5, 1),
        fence(25, SIGNALED, 5, 1),
    ];
    assert_eq!(
        times(&followed(&fence_points(), &hits)),
        [(10, None, None, 20), (20, None, Some(25), 25)]
    );
    // Begun before the recording: handed over in it, or only done in it.
    let hits = [
        fence(10, EMIT, 5, 1),
        fence(20, SIGNALED, 5, 1),
        fence(30, SIGNALED, 5, 2),
    ];
    let (told, fences, _) = follow(&fence_points(), &hits, Room::default());
    assert_eq!(times(&told), [(10, Some(10), Some(20), 20)]);
    assert_eq!((told[0].pid, told[0].tid), (0, 0));
    assert_eq!(fences.unmatched, 1);
}

#[test]
fn order_and_doubles_do_not_matter() {
    let orderly = [
        fence(10, INIT, 5, 1),
        fence(12, EMIT, 5, 1),
        fence(30, SIGNALED, 5, 1),
    ];
    let expected = times(&followed(&fence_points(), &orderly));
    let [a, b, c] = orderly.clone();
    for hits in [
        vec![a.clone(), a.clone(), b.clone(), b.clone(), c.clone()],
        vec![b.clone(), a.clone(), c.clone()],
    ] {
        let told = followed(&fence_points(), &hits);
        assert_eq!(times(&told), expected, "{hits:?}");
        assert_eq!(told[0].pid, 7);
    }
    // The end comes first: when the work was handed over is not known then.
    let told = followed(&fence_points(), &[c, a]);
    assert_eq!(times(&told), [(10, None, Some(30), 30)]);
}

#[test]
fn tables_are_bounded_and_what_is_refused_is_counted() {
    let room = Room { open: 8, early: 4 };
    let begins: Vec<_> = (0..100).map(|n| fence(n, INIT, 5, n)).collect();
    let (told, _, losses) = follow(&fence_points(), &begins, room);
    assert_eq!(losses.get(LossKind::SubmissionsRefused), 92);
    let seqnos: Vec<_> = told.iter().map(|s| s.seqno).collect();
    assert_eq!(seqnos, (92..100).collect::<Vec<_>>());
    let ends: Vec<_> = (0..100).map(|n| fence(n, SIGNALED, 5, n)).collect();
    let (told, fences, _) = follow(&fence_points(), &ends, room);
    assert_eq!((told.len(), fences.unmatched), (0, 100));
    // The order of what is open stays small too.
    let (mut fences, mut told) = (Fences::with_room(room), Told::default());
    fence_points().iter().for_each(|point| fences.point(point));
    for n in 0..10_000 {
        let mut losses = Losses::default();
        fences.trace(&fence(n, INIT, 5, n), &mut losses, &mut told);
        fences.trace(&fence(n + 1, SIGNALED, 5, n), &mut losses, &mut told);
        assert!(fences.order.len() <= 40 && fences.open.is_empty());
    }
    assert_eq!(told.0.len(), 10_000);
}

#[test]
fn hostile_points_and_hits_are_harmless() {
    let no_key = point(0, "dma_fence", "dma_fence_init", &["", "seqno"], &["", ""]);
    let unknown = point(
        1,
        "dma_fence",
        "dma_fence_wait_start",
        &["context", "seqno"],
        &[],
    );
    let far = point(
        u32::MAX,
        "dma_fence",
        "dma_fence_init",
        &["context", "seqno"],
        &[],
    );
    // More fields than a record has.
    let names: Vec<_> = (0..20).map(|n| format!("v{n}")).collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.extend(["context", "seqno"]);
    let many = vec![point(0, "dma_fence", "dma_fence_init", &names, &[])];
    for points in [vec![no_key, unknown, far], many, Vec::new()] {
        let hits: Vec<_> = [0, 1, 2, 3, 64, u32::MAX]
            .map(|id| fence(u64::MAX, id, 1, 1))
            .into();
        assert_eq!(followed(&points, &hits).len(), 0);
    }
}

/// The events go through the tracker as those of a recording do.
#[test]
fn the_tracker_tells_of_them() {
    let (mut tracker, mut told) = (crate::correlate::Tracker::default(), Told::default());
    for point in fence_points() {
        tracker.apply(&Event::TracePoint(point), &mut told);
    }
    for hit in [
        fence(5, INIT, 1, 1),
        fence(6, INIT, 1, 2),
        fence(9, SIGNALED, 1, 1),
    ] {
        tracker.apply(&Event::Trace(hit), &mut told);
    }
    assert_eq!(told.0.len(), 1);
    tracker.finish(20, &mut told);
    assert_eq!(times(&told.0), [(5, None, Some(9), 9), (6, None, None, 20)]);
    assert_eq!(tracker.counts().submissions, 2);
}

/// Random schedules of fences, in order, shuffled a little, with losses and doubles:
/// no interval is ever made of two fences, and without losses all are right.
#[test]
fn random_schedules_come_out_right() {
    let mut random = Random(1);
    for round in 0..200 {
        let (mut hits, mut truth) = (Vec::new(), Vec::new());
        for context in 1..=4 {
            let mut at = random.below(50);
            for seqno in 1..=random.below(30) {
                at += 1 + random.below(20);
                let end = at + random.below(100);
                hits.push(fence(at, INIT, context, seqno));
                hits.push(fence(end, SIGNALED, context, seqno));
                truth.push((context, seqno, at, end));
            }
        }
        hits.sort_by_key(|hit| hit.time_ns);
        for _ in 0..round {
            // As far out of order as CPUs may be from one another.
            let at = random.below(hits.len().max(4) as u64 - 3) as usize;
            let len = hits.len();
            hits[at.min(len)..(at + 3).min(len)].reverse();
        }
        let told = followed(&fence_points(), &hits);
        let mut seen: Vec<_> = told
            .iter()
            .map(|s| (s.context, s.seqno, s.submitted_ns, s.ended_ns.unwrap()))
            .collect();
        seen.sort_unstable();
        truth.sort_unstable();
        assert_eq!(seen, truth, "round {round}");
        // Half of the rest is lost or repeated.
        let damaged: Vec<_> = hits
            .iter()
            .flat_map(|hit| vec![hit.clone(); random.below(3) as usize])
            .collect();
        for s in followed(&fence_points(), &damaged) {
            let of = |t: &&(u64, u64, u64, u64)| (t.0, t.1) == (s.context, s.seqno);
            let (_, _, start, end) = truth.iter().find(of).unwrap();
            assert_eq!(s.submitted_ns, *start);
            assert!(s.ended_ns.is_none_or(|ended| ended == *end));
        }
    }
}

/// Numbers without a pattern (Knuth's constants of MMIX).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit.max(1)
    }
}
