//! Ranks that wait for each other in collectives and messages, where it is known by how much.

use super::tests::found;
use super::*;
use crate::finding::FindingKind;
use aiprof_model::timeline::Dialect;
use aiprof_testkit::scene::{self, Slice};

const REDUCE: &str = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL";
const MESSAGE: &str = "ncclDevKernel_SendRecv";
const ROUNDS: u32 = 20;

/// Kernels, of which each round begins 10 ms behind the one before: rank, name, milliseconds from
/// the round's begin, length in milliseconds, arguments.
type Round<'a> = [(u32, &'a str, f64, f64, String)];

fn rounds(round: &Round<'_>) -> Timeline {
    let mut timeline = scene::empty(Dialect::Torch);
    for at in 0..ROUNDS {
        for (place, (rank, name, from, ms, args)) in round.iter().enumerate() {
            let number = at * 100 + place as u32;
            let args = format!("\"stream\":7,\"device\":{rank},\"External id\":{number},{args}");
            let slice = Slice {
                rank: *rank,
                tid: 7,
                name,
                cat: if *name == "record_param_comms" {
                    "cpu_op"
                } else {
                    "kernel"
                },
                ts: (f64::from(at) * 10.0 + from) * 1000.0,
                dur: ms * 1000.0,
                args: args.trim_end_matches(','),
                ..Slice::default()
            };
            scene::add(&mut timeline, &slice);
        }
    }
    timeline
}

fn of_kind(timeline: &Timeline, kind: FindingKind) -> Vec<Finding> {
    let all = found(timeline, 200_000.0).into_iter();
    all.filter(|one| one.kind == kind).collect()
}

fn number(finding: &Finding, name: &str) -> Option<f64> {
    let it = finding.numbers.iter().find(|number| number.name == name);
    it.map(|number| number.value)
}

fn group(name: &str, ranks: &str) -> String {
    format!(
        "\"Collective name\":\"allreduce\",\"Process Group Name\":\"{name}\",\
         \"Process Group Ranks\":\"[{ranks}]\""
    )
}

/// Which rank is late differs between the groups, and each is named for its own.
#[test]
fn each_group_has_its_own_late_rank() {
    // Rank 1 begins 4 ms late, rank 3 begins 2 ms late.
    let (low, high) = (group("1", "0, 1"), group("2", "2, 3"));
    let timeline = rounds(&[
        (0, "gemm", 0.0, 2.0, String::new()),
        (0, REDUCE, 2.0, 5.0, low.clone()),
        (1, "gemm", 0.0, 6.0, String::new()),
        (1, REDUCE, 6.0, 1.0, low),
        (2, "gemm", 0.0, 2.0, String::new()),
        (2, REDUCE, 2.0, 3.0, high.clone()),
        (3, "gemm", 0.0, 4.0, String::new()),
        (3, REDUCE, 4.0, 1.0, high),
    ]);
    let late = of_kind(&timeline, FindingKind::LateRank);
    let rounds = f64::from(ROUNDS);
    let seen: Vec<_> = late
        .iter()
        .map(|one| {
            (
                &*one.subject,
                one.cost_ns,
                number(one, "last"),
                number(one, "collectives"),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("rank 1", Some(80_000_000), Some(rounds), Some(rounds)),
            ("rank 3", Some(40_000_000), Some(rounds), Some(rounds)),
        ]
    );
    assert_eq!(late[0].evidence.len(), 2, "{:?}", late[0].evidence);
}

/// A rank that is late in several groups is named once, with what it costs in all of them.
#[test]
fn a_rank_that_is_late_in_two_groups_is_named_once() {
    let (rows, columns) = (group("1", "0, 1"), group("2", "1, 2"));
    let timeline = rounds(&[
        (0, REDUCE, 0.0, 4.0, rows.clone()),
        (1, REDUCE, 3.0, 1.0, rows),
        (2, REDUCE, 0.0, 7.0, columns.clone()),
        (1, REDUCE, 5.0, 2.0, columns),
    ]);
    let late = of_kind(&timeline, FindingKind::LateRank);
    let [late] = &late[..] else {
        panic!("{late:?}")
    };
    let rounds = f64::from(ROUNDS);
    assert_eq!(late.subject, "rank 1");
    assert_eq!(number(late, "waiting"), Some(rounds * (3.0 + 5.0) / 1000.0));
    assert_eq!(number(late, "collectives"), Some(2.0 * rounds));
}

/// What torch notes of a message.
fn message(what: &str, peer: u32) -> String {
    let key = if what == "send" {
        "Dst Rank"
    } else {
        "Src Rank"
    };
    format!("\"Collective name\":\"{what}\",\"{key}\":{peer}")
}

/// The receiver of `ROUNDS` messages is there from the begin, the sender only 7 ms later.
fn late_sender(send: String, receive: String) -> Vec<(u32, &'static str, f64, f64, String)> {
    vec![
        (2, "gemm", 0.0, 7.0, String::new()),
        (2, MESSAGE, 7.0, 1.0, send),
        (3, MESSAGE, 0.0, 8.0, receive),
        (3, "gemm", 8.0, 1.0, String::new()),
    ]
}

#[test]
fn a_receiver_waits_for_its_sender_and_no_collective_is_named() {
    let described = late_sender(message("send", 3), message("recv", 2));
    // The same where only the operators that launched the kernels are described.
    let mut by_operator = late_sender(String::new(), String::new());
    for (at, args) in [(1, message("send", 3)), (2, message("recv", 2))] {
        let operator = (by_operator[at].0, "record_param_comms", 0.0, 0.1, args);
        by_operator.push(operator);
    }
    for round in [&described, &by_operator] {
        let mut timeline = rounds(round);
        number_alike(&mut timeline);
        let late = of_kind(&timeline, FindingKind::LateRank);
        let [late] = &late[..] else {
            panic!("{late:?}")
        };
        let rounds = f64::from(ROUNDS);
        assert_eq!(late.subject, "rank 2");
        assert_eq!(number(late, "waiting"), Some(rounds * 7.0 / 1000.0));
        assert_eq!(number(late, "messages"), Some(rounds));
        assert!(
            late.text.contains("in messages for rank 2"),
            "{}",
            late.text
        );
        for finding in found(&timeline, 200_000.0) {
            let words = format!("{finding:?}").replace("CommunicationNotHidden", "");
            let words = words.replace(finding.cost_is.unwrap_or_default(), "");
            assert!(!words.contains("collective"), "{words}");
        }
    }
}

/// Gives operators the `External id` of the kernel of their rank and round that has no description.
fn number_alike(timeline: &mut Timeline) {
    let text = |timeline: &Timeline, at: usize| {
        let event = timeline.events[at];
        timeline.texts.get(event.args).to_owned()
    };
    for at in 0..timeline.events.len() {
        let event = timeline.events[at];
        if timeline.name(event.name) != "record_param_comms" {
            continue;
        }
        let rank = timeline.rank(&event);
        let mut kernels = (0..timeline.events.len()).filter(|kernel| {
            let kernel = timeline.events[*kernel];
            timeline.name(kernel.name) == MESSAGE && timeline.rank(&kernel) == rank
        });
        let round = (event.start.micros() / 10_000.0).floor() as usize;
        let kernel = kernels.nth(round).unwrap();
        let id = timeline
            .arg(&timeline.events[kernel], "External id")
            .unwrap()
            .to_owned();
        let old = timeline.arg(&event, "External id").unwrap().to_owned();
        let args = text(timeline, at).replace(
            &format!("\"External id\":{old},"),
            &format!("\"External id\":{id},"),
        );
        timeline.events[at].args = timeline.texts.add(&args);
    }
}

#[test]
fn messages_without_a_known_other_side_are_no_wait_and_named_as_such() {
    let timeline = rounds(&late_sender(String::new(), String::new()));
    assert!(of_kind(&timeline, FindingKind::LateRank).is_empty());
    let alone = of_kind(&timeline, FindingKind::CommunicationNotHidden);
    let [alone] = &alone[..] else {
        panic!("{alone:?}")
    };
    assert!(
        alone.text.contains("sends and receives messages"),
        "{}",
        alone.text
    );
    let last = alone.evidence.last().unwrap();
    assert!(
        last.starts_with(&format!("{} kernels", 2 * ROUNDS)),
        "{last}"
    );
}

/// An exchange of all with all runs as the same kernel.
#[test]
fn an_all_to_all_is_a_collective_whatever_its_kernel_is_called() {
    let all = "\"Collective name\":\"all_to_allv\"".to_owned();
    let timeline = rounds(&late_sender(all.clone(), all));
    let late = of_kind(&timeline, FindingKind::LateRank);
    assert_eq!(number(&late[0], "collectives"), Some(f64::from(ROUNDS)));
}
