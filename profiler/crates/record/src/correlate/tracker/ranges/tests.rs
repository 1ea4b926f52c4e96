//! Batches written by hand, and calls.

use super::marks::HandedOver;
use super::*;
use crate::correlate::script::probe;
use aiprof_common::timing::{
    MARK_CATEGORY, MARK_END, MARK_GAP, MARK_ID, MARK_LONG_ID, MARK_MOMENT, MARK_POP, MARK_PUSH,
    MARK_START, MARK_THREAD_END, MARKS_LOST_ROOM, PAYLOAD_SIGNED, RANGES_ITT, RANGES_NVTX,
    TIMING_DOMAIN, TIMING_MAGIC, TIMING_MARKS, TIMING_MARKS_LOST, TIMING_NAME, TIMING_RANGES,
    TIMING_VERSION,
};
use aiprof_model::probes::CallKind;

const PID: u32 = 70;

#[derive(Default)]
struct Seen(Vec<RangeSpan>);

impl CallSink for Seen {
    fn found(&mut self, found: &Tracked<'_>) {
        if let Tracked::Range(range) = *found {
            self.0.push(range.clone());
        }
    }
}

impl Seen {
    /// Name, begin, end, form, whether its end was not seen.
    fn short(&self) -> Vec<(&str, u64, u64, RangeForm, bool)> {
        let short = |s: &RangeSpan| (s.start_ns, s.end_ns, s.form, s.is_unended);
        let all = self.0.iter().map(|span| (&*span.about.name, short(span)));
        all.map(|(name, (a, b, form, open))| (name, a, b, form, open))
            .collect()
    }
}

/// Time, kind, flags, domain, name, and the operation_names behind.
type WrittenMark<'a> = (u64, u8, u8, u16, u32, &'a [u64]);

/// A batch in the bytes of a machine with the lowest byte first.
struct Written(Vec<u8>);

impl Written {
    fn new() -> Self {
        let header = [TIMING_MAGIC, TIMING_VERSION, TIMING_RANGES, PID];
        Self(header.iter().flat_map(|word| word.to_le_bytes()).collect())
    }

    fn record(mut self, kind: u32, content: &[u8]) -> Self {
        self.0.extend(kind.to_le_bytes());
        let bytes = 8 + content.len() as u32;
        self.0.extend(bytes.to_le_bytes());
        self.0.extend(content);
        self
    }

    fn name(self, number: u64, text: &str) -> Self {
        let mut content = number.to_le_bytes().to_vec();
        content.extend(u64::try_from(text.len()).unwrap().to_le_bytes());
        content.extend(text.bytes());
        content.resize(content.len().next_multiple_of(8), 0);
        self.record(TIMING_NAME, &content)
    }

    fn domain(self, number: u32, api: u32, name: u64) -> Self {
        let mut content = number.to_le_bytes().to_vec();
        content.extend(api.to_le_bytes());
        content.extend(name.to_le_bytes());
        self.record(TIMING_DOMAIN, &content)
    }

    fn marks(self, tid: u32, marks: &[WrittenMark<'_>]) -> Self {
        let mut content = u64::from(tid).to_le_bytes().to_vec();
        for (time, kind, flags, domain, name, behind) in marks {
            content.extend(time.to_le_bytes());
            content.extend([*kind, *flags]);
            content.extend(domain.to_le_bytes());
            content.extend(name.to_le_bytes());
            content.extend(behind.iter().flat_map(|word| word.to_le_bytes()));
        }
        self.record(TIMING_MARKS, &content)
    }

    fn lost(self, count: u64, reason: u64) -> Self {
        let content = [count.to_le_bytes(), reason.to_le_bytes()].concat();
        self.record(TIMING_MARKS_LOST, &content)
    }

    fn named() -> Self {
        let names = Self::new().name(1, "outer").name(2, "inner").name(3, "lib");
        names
            .domain(0, RANGES_NVTX, 0)
            .domain(2, RANGES_NVTX, 3)
            .domain(3, RANGES_ITT, 3)
    }
}

#[derive(Default)]
struct Fed {
    ranges: Ranges,
    losses: Losses,
    seen: Seen,
}

impl Fed {
    fn take(&mut self, batch: &Written) -> u64 {
        let by = HandedOver {
            pid: PID,
            time_ns: 1000,
        };
        self.ranges
            .batch(by, &batch.0, &mut self.losses, &mut self.seen)
    }

    fn finish(&mut self) {
        self.ranges.finish(900, &mut self.losses, &mut self.seen);
        assert_eq!(self.ranges.open, 0);
    }

    fn losses(&self) -> [u64; 4] {
        [
            LossKind::RangesDropped,
            LossKind::RangesUnmatched,
            LossKind::RangesUnended,
            LossKind::RangesTextsCut,
        ]
        .map(|kind| self.losses.get(kind))
    }
}

#[test]
fn pushes_and_pops_nest_by_thread_and_domain() {
    let mut fed = Fed::default();
    let batch = Written::named()
        .marks(
            71,
            &[
                (10, MARK_PUSH, 0, 0, 1, &[]),
                (
                    20,
                    MARK_PUSH,
                    MARK_CATEGORY | PAYLOAD_SIGNED,
                    2,
                    2,
                    &[u64::MAX, 3 << 32 | 7],
                ),
            ],
        )
        .marks(72, &[(15, MARK_PUSH, 0, 0, 2, &[])])
        .marks(
            71,
            &[
                // The outer one ends first: it is of another domain.
                (30, MARK_POP, 0, 0, 0, &[]),
                (40, MARK_POP, 0, 2, 0, &[]),
                (50, MARK_POP, 0, 2, 0, &[]),
                (60, MARK_MOMENT, 0, 3, 2, &[]),
            ],
        );
    assert_eq!(fed.take(&batch), 0);
    assert_eq!(
        fed.seen.short(),
        [
            ("outer", 10, 30, RangeForm::Loose, false),
            ("inner", 20, 40, RangeForm::Nested(0), false),
            ("inner", 60, 60, RangeForm::Moment, false),
        ]
    );
    let [_, inner, mark] = &fed.seen.0[..] else {
        panic!();
    };
    assert_eq!(inner.about.category, Some((7, Some("lib".into()))));
    assert_eq!(inner.about.payload, Some(RangePayload::Signed(-1)));
    assert_eq!(inner.about.domain.as_deref(), Some("lib"));
    assert_eq!((&*inner.about.api, &*mark.about.api), ("NVTX", "ITT"));
    assert_eq!(fed.losses(), [0, 1, 0, 0]);
    fed.finish();
    // The other thread's goes on until the recording ends.
    let last = fed.seen.short()[3];
    assert_eq!(last, ("inner", 15, 900, RangeForm::Nested(0), true));
    assert_eq!(fed.losses(), [0, 1, 1, 0]);
}

#[test]
fn started_ranges_end_by_their_number_on_any_thread() {
    let mut fed = Fed::default();
    let (short, long) = (MARK_ID, MARK_LONG_ID);
    let batch = Written::named()
        .marks(
            71,
            &[
                (10, MARK_START, short, 0, 1, &[5]),
                (11, MARK_START, long, 3, 2, &[8, 9, 0]),
                (12, MARK_START, long, 2, 2, &[8, 9, 0]),
            ],
        )
        .marks(
            72,
            &[
                (20, MARK_END, long, 3, 0, &[8, 9, 0]),
                // Numbers of NVTX need no domain.
                (21, MARK_END, short, 0, 0, &[5]),
                (22, MARK_END, short, 0, 0, &[5]),
                (23, MARK_END, long, 3, 0, &[8, 9, 1]),
            ],
        );
    assert_eq!(fed.take(&batch), 0);
    assert_eq!(
        fed.seen.short(),
        [
            ("inner", 11, 20, RangeForm::Loose, false),
            ("outer", 10, 21, RangeForm::Loose, false),
        ]
    );
    assert!(fed.seen.0.iter().all(|span| span.ended_on == Some(72)));
    fed.finish();
    assert_eq!(
        fed.seen.short()[2],
        ("inner", 12, 900, RangeForm::Loose, true)
    );
    assert_eq!(fed.losses(), [0, 2, 1, 0]);
}

#[test]
fn what_is_open_ends_with_its_thread_and_where_marks_are_missing() {
    let mut fed = Fed::default();
    let batch = Written::named()
        .marks(
            71,
            &[
                (10, MARK_PUSH, 0, 0, 1, &[]),
                (11, MARK_PUSH, 0, 0, 2, &[]),
                (12, MARK_THREAD_END, 0, 0, 0, &[]),
            ],
        )
        .marks(
            72,
            &[
                (10, MARK_PUSH, 0, 0, 1, &[]),
                (20, MARK_GAP, MARK_ID, 0, 0, &[40]),
                (30, MARK_PUSH, 0, 0, 2, &[]),
                (31, MARK_POP, 0, 0, 0, &[]),
                // The pop of the range that was open before the gap.
                (32, MARK_POP, 0, 0, 0, &[]),
                (33, MARK_PUSH, 0, 0, 1, &[]),
            ],
        )
        .lost(3, MARKS_LOST_ROOM.into());
    assert_eq!(fed.take(&batch), 0);
    assert_eq!(
        fed.seen.short(),
        [
            ("outer", 10, 12, RangeForm::Nested(0), true),
            ("inner", 11, 12, RangeForm::Nested(1), true),
            ("outer", 10, 20, RangeForm::Nested(0), true),
            ("inner", 30, 31, RangeForm::Nested(0), false),
            ("outer", 33, 1000, RangeForm::Nested(0), true),
        ]
    );
    assert_eq!(fed.losses(), [43, 1, 4, 0]);
}

#[test]
fn threads_of_another_namespace_are_not_taken_for_threads_of_these_numbers() {
    let mut fed = Fed::default();
    let mut batch = Written::named().marks(
        71,
        &[(10, MARK_PUSH, 0, 0, 1, &[]), (20, MARK_POP, 0, 0, 0, &[])],
    );
    // The process sees itself as number 1.
    batch.0.splice(12..16, 1_u32.to_le_bytes());
    assert_eq!(fed.take(&batch), 0);
    assert_eq!(
        fed.seen.short(),
        [("outer", 10, 20, RangeForm::Loose, false)]
    );
}

#[test]
fn what_no_helper_writes_is_counted() {
    let whole = Written::named().marks(
        71,
        &[
            // In the future; before the one before it; of no kind.
            (2000, MARK_PUSH, 0, 0, 1, &[]),
            (10, MARK_PUSH, 0, 9, 9, &[]),
            (20, MARK_MOMENT, 0, 0, 1, &[]),
            (15, MARK_MOMENT, 0, 0, 1, &[]),
            (21, 99, 0, 0, 0, &[]),
            (22, MARK_POP, 0, 9, 0, &[]),
        ],
    );
    let mut fed = Fed::default();
    assert_eq!(fed.take(&whole), 3);
    assert_eq!(
        fed.seen.short(),
        [
            ("outer", 20, 20, RangeForm::Moment, false),
            (NAMELESS, 10, 22, RangeForm::Nested(0), false),
        ]
    );
    for len in 0..whole.0.len() {
        Fed::default().take(&Written(whole.0[..len].to_vec()));
    }
    for at in 0..whole.0.len() {
        let mut damaged = Written(whole.0.clone());
        damaged.0[at] ^= 0x81;
        let mut fed = Fed::default();
        fed.take(&damaged);
        fed.finish();
    }
}

#[test]
fn more_than_there_is_room_for_is_counted_and_the_rest_stays_right() {
    let mut fed = Fed::default();
    let each = |kind, time| (time, kind, 0, 0, 1, &[][..]);
    fed.take(&Written::named().marks(71, &[each(MARK_PUSH, 1)]));
    // As if others had taken the room.
    fed.ranges.open = MOST_OPEN;
    let marks = [
        each(MARK_PUSH, 2),
        each(MARK_PUSH, 3),
        each(MARK_POP, 4),
        each(MARK_POP, 5),
        each(MARK_POP, 6),
    ];
    fed.take(&Written::named().marks(71, &marks));
    // The first one ends where it is no longer known which one a pop ends.
    assert_eq!(
        fed.seen.short(),
        [
            ("outer", 1, 2, RangeForm::Nested(0), true),
            ("outer", 3, 4, RangeForm::Nested(0), false)
        ]
    );
    assert_eq!(fed.losses(), [1, 2, 1, 0]);
}

#[test]
fn probed_calls_are_marks() {
    let mut fed = Fed::default();
    let mut call = |function: &str, start_ns: u64, range: Option<u64>, result: Option<u64>| {
        let mut call = FinishedCall::of(Rc::new(probe(
            1,
            "ROCTX",
            function,
            CallKind::Range,
            &["range", "\"name"],
        )));
        (call.pid, call.tid, call.start_ns, call.result) = (PID, 71, start_ns, result);
        if let Some(range) = range {
            call.values[0] = range;
            call.unread = 0xfffe;
        }
        call.data.push(crate::correlate::CallContent {
            tag: 0,
            total: 0,
            complete: true,
            bytes: b"step".to_vec(),
        });
        fed.ranges.call(&call, &mut fed.losses, &mut fed.seen);
    };
    call("roctxRangePushA", 10, None, None);
    call("roctxRangeStartA", 11, None, Some(4));
    call("roctxMarkA", 12, None, None);
    call("roctxRangePop", 13, None, None);
    call("roctxRangeStop", 14, Some(4), None);
    assert_eq!(
        fed.seen.short(),
        [
            ("step", 12, 12, RangeForm::Moment, false),
            ("step", 10, 13, RangeForm::Nested(0), false),
            ("step", 11, 14, RangeForm::Loose, false),
        ]
    );
    assert_eq!(fed.losses(), [0; 4]);
}
