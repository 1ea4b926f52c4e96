//! Arrows from sends to receives between ranks (`--flow`, stage 35).

use super::exchanges::{Clocks, Exchanges, find};
use super::launch_flows::INSIDE_US;
use super::messages::{Level, Messages};
use aiprof_model::timeline::{Event, Id, Ph, Sym, Text, Time, Timeline};
use serde::Serialize;
use std::collections::BTreeMap;

/// Numbers of flows begin behind this one.
const FIRST_ID: i64 = 1_000_000;

/// Messages of one direction that arrive before they are sent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Reversed {
    /// Sender.
    pub from: u32,
    /// Receiver.
    pub to: u32,
    /// How many.
    pub count: u64,
    /// By how much at most, microseconds: a column of acelyzer's table
    /// `src dst recv_before_send`.
    pub most_us: f64,
}

/// What was found and done.
#[derive(Clone, Debug)]
pub struct FlowReport {
    /// Messages, for the analyses of collectives.
    pub exchanges: Exchanges,
    /// Flow events that were added at the end of the events: two per message.
    pub added: usize,
    /// Directions in which time runs backwards, by sender and receiver. None where
    /// ranks are aligned.
    pub reversed: Vec<Reversed>,
    /// Messages to show.
    pub said: Messages,
}

/// Adds the arrows; sizes leave the names of slices (`x [128B]`), and `Peer` becomes
/// `Peers`. Needs ranks and transfers, and aligned clocks where a trace was cut off;
/// no order.
pub fn run(timeline: &mut Timeline, level: Level) -> FlowReport {
    tidy(timeline);
    let exchanges = find(timeline, Clocks::Aligned);
    let mut order: Vec<usize> = (0..exchanges.pairs.len()).collect();
    let begin = |index: &usize| {
        let call = exchanges.pairs.get(*index).map_or(0, |pair| pair.call);
        let event = timeline.events.get(call as usize);
        (event.map_or(0.0, |event| event.ts()), call)
    };
    order.sort_by(|a, b| {
        let (a, b) = (begin(a), begin(b));
        a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
    });
    let mut flows = Vec::with_capacity(2 * order.len());
    let mut reversed: BTreeMap<(u32, u32), Reversed> = BTreeMap::new();
    for (pair, id) in order.iter().zip(FIRST_ID + 1..) {
        let Some(pair) = exchanges.pairs.get(*pair) else {
            continue;
        };
        let event = |index: u32| timeline.events.get(index as usize);
        let (Some(call), Some(receive)) = (event(pair.call), event(pair.receive)) else {
            continue;
        };
        let start = flow(Ph::FlowStart, call, pair.sync, pair.group, call.ts(), id);
        let end = receive.end_us() - INSIDE_US;
        let mut stop = flow(Ph::FlowEnd, receive, pair.sync, pair.group, end, id);
        stop.binds_enclosing = true;
        if start.ts() > stop.ts() {
            let seen = reversed.entry((pair.from, pair.to)).or_insert(Reversed {
                from: pair.from,
                to: pair.to,
                count: 0,
                most_us: 0.0,
            });
            seen.count += 1;
            seen.most_us = seen.most_us.max(start.ts() - stop.ts());
        }
        flows.extend([start, stop]);
    }
    let mut outcome = FlowReport {
        exchanges,
        added: flows.len(),
        reversed: reversed.into_values().collect(),
        said: Messages::new(level),
    };
    timeline.events.append(&mut flows);
    outcome.tell();
    outcome
}

fn flow(ph: Ph, at: &Event, sync: Sym, group: Sym, ts: f64, id: i64) -> Event {
    let mut flow = Event::new(ph, sync, at.track, Time::from_micros(ts));
    (flow.cat, flow.id) = (group, Id::Number(id));
    flow
}

impl FlowReport {
    fn tell(&mut self) {
        let count: u64 = self.reversed.iter().map(|r| r.count).sum();
        if count > 0 {
            let text = format_args!("FLOW: Number of potential problems detected = {count}");
            self.said.warn("FLOW", text);
        }
        let incomplete = self.exchanges.incomplete.len();
        if incomplete > 0 {
            self.said.warn(
                "FLOW",
                format_args!(
                    "FLOW: Incomplete flow groups dropped = {incomplete}  This can be caused by \
                     time-synchronization issues. You might try cmdline arg '-S'"
                ),
            );
        }
    }
}

/// Names without sizes, and one word for peers.
fn tidy(timeline: &mut Timeline) {
    let sized: Vec<(usize, String, i64)> = timeline
        .names
        .iter()
        .filter_map(|(sym, text)| {
            let (name, bytes) = without_size(text)?;
            Some((sym.index(), name, bytes))
        })
        .collect();
    let mut names = vec![None; timeline.names.len()];
    for (index, name, bytes) in sized {
        let sym = timeline.names.intern(&name);
        if let Some(at) = names.get_mut(index) {
            *at = Some((sym, bytes));
        }
    }
    for index in 0..timeline.events.len() {
        let Some(event) = timeline.events.get_mut(index) else {
            break;
        };
        if !event.is_slice() || event.dropped {
            continue;
        }
        if let Some((name, bytes)) = names.get(event.name.index()).copied().flatten()
            && !event.args.is_empty()
        {
            event.name = name;
            keep_size(timeline, index, bytes);
        }
        rename_peers(timeline, index);
    }
}

/// A name without all its ` [128B]`, and the number in the first of them.
fn without_size(name: &str) -> Option<(String, i64)> {
    let mut out = String::new();
    let (mut rest, mut first) = (name, None);
    while let Some((before, after)) = rest.split_once(" [") {
        out.push_str(before);
        let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(0);
        let (number, tail) = after.split_at_checked(digits).unwrap_or((after, ""));
        let tail = tail
            .strip_prefix(['B', 'b'])
            .and_then(|t| t.strip_prefix(']'));
        match tail.filter(|_| digits > 0) {
            Some(tail) => {
                first = first.or(Some(number.parse().unwrap_or(-1)));
                rest = tail;
            }
            None => {
                out.push_str(" [");
                rest = after;
            }
        }
    }
    out.push_str(rest);
    Some((out, first?))
}

/// The size that was in the name, where the arguments do not have it.
fn keep_size(timeline: &mut Timeline, index: usize, bytes: i64) {
    let Some(event) = timeline.events.get(index).copied() else {
        return;
    };
    if bytes < 0 || timeline.transfer(&event).is_none_or(|t| t.bytes >= 0) {
        return;
    }
    if let Some(transfer) = timeline.transfers.get_mut(event.transfer as usize) {
        transfer.bytes = bytes;
    }
    if timeline.arg(&event, "bytes").is_none() {
        timeline.add_args(index, &format!("\"bytes\":\"{bytes}\""));
    }
}

fn rename_peers(timeline: &mut Timeline, index: usize) {
    let Some(event) = timeline.events.get(index).copied() else {
        return;
    };
    let renamed = timeline
        .transfer(&event)
        .is_some_and(|t| !t.is_plural && !t.peers.is_empty());
    if !renamed {
        return;
    }
    if let Some(args) = renamed_member(timeline, event.args, "Peer", "Peers") {
        if let Some(event) = timeline.events.get_mut(index) {
            event.args = args;
        }
        if let Some(transfer) = timeline.transfers.get_mut(event.transfer as usize) {
            transfer.is_plural = true;
        }
    }
}

/// The same arguments with a member's key replaced; `None`: there is no such member.
fn renamed_member(timeline: &mut Timeline, args: Text, from: &str, to: &str) -> Option<Text> {
    let text = timeline.texts.get(args);
    let value = aiprof_model::timeline::member(text, from)?;
    let at = (value.as_ptr() as usize).checked_sub(text.as_ptr() as usize)?;
    let (before, after) = text.split_at_checked(at)?;
    let before = before.strip_suffix(&format!("\"{from}\":"))?.to_owned();
    let after = after.to_owned();
    let key = format!("\"{to}\":");
    Some(timeline.texts.join(&[&before, &key, &after]))
}

#[cfg(test)]
mod tests {
    use super::super::{alignment, alignment_compat};
    use super::*;
    use aiprof_model::timeline::Dialect;
    use aiprof_testkit::scene::{self, Slice};

    /// acelyzer 1.3.0 on the shipped sample, split by rank, `--flow --freq 560:1100`:
    /// name, rank and time since 2097962447000 of begin and end.
    const ARROWS: [(&str, u32, f64, u32, f64); 6] = [
        ("s0_r1_0", 0, 1601.945, 1, 2128.533),
        ("s1_r2_2", 1, 2128.575, 2, 2167.956),
        ("s2_r3_4", 2, 2167.998, 3, 2285.463),
        ("s3_r0x7_6", 3, 2285.507, 0, 2285.447),
        ("s3_r0x7_6", 3, 2285.509, 1, 2285.463),
        ("s3_r0x7_6", 3, 2285.510, 2, 2285.463),
    ];

    #[test]
    fn the_shipped_sample_s_arrows_are_those_of_1_3_0() {
        let mut timeline = scene::allreduce_tp4();
        alignment_compat::tight_v1(&mut timeline, Level::Warn);
        let before = timeline.events.len();
        let outcome = run(&mut timeline, Level::Warn);
        assert_eq!(outcome.added, 12);
        let flows = &timeline.events[before..];
        for ((pair, arrow), id) in flows.chunks(2).zip(ARROWS).zip(1_000_001..) {
            let [s, f] = pair else { panic!() };
            let name = format!("AllReduce_all_reduce_4_{}", arrow.0);
            assert_eq!(timeline.name(s.name), name);
            assert_eq!(timeline.name(s.cat), "AllReduce_all_reduce_4");
            assert_eq!((s.id, f.id), (Id::Number(id), Id::Number(id)));
            assert_eq!((timeline.rank(s), timeline.rank(f)), (arrow.1, arrow.3));
            assert!((s.ts() - arrow.2).abs() < 1.1e-3, "{arrow:?} {}", s.ts());
            assert!((f.ts() - arrow.4).abs() < 1.1e-3, "{arrow:?} {}", f.ts());
        }
        // The three reverse flows that it prints.
        let expected = [(3, 0, 0.0598), (3, 1, 0.0454), (3, 2, 0.0474)];
        let seen = outcome.reversed.iter().map(|r| (r.from, r.to, r.most_us));
        for (seen, expected) in seen.zip(expected) {
            assert_eq!((seen.0, seen.1), (expected.0, expected.1));
            assert!((seen.2 - expected.2).abs() < 1e-3, "{seen:?}");
        }
        let text: Vec<&str> = outcome.said.iter().map(|m| m.text.as_str()).collect();
        assert_eq!(text, ["FLOW: Number of potential problems detected = 3"]);
    }

    #[test]
    fn aligned_ranks_have_no_reverse_arrows() {
        let mut timeline = scene::allreduce_tp4();
        alignment::run(&mut timeline, Level::Warn);
        let outcome = run(&mut timeline, Level::Warn);
        assert_eq!((outcome.added, outcome.reversed.len()), (12, 0));
        let names: Vec<&str> = timeline.names.iter().map(|(_, n)| n).collect();
        assert!(names.contains(&"SenRdmaRecv_82229 [sync=AllReduce_all_reduce_4_s3_r0x7_6] DmaI"));
    }

    #[test]
    fn sizes_leave_names_and_peers_have_one_word() {
        assert_eq!(
            without_size("a [12B] [sync=x] b"),
            Some(("a [sync=x] b".into(), 12))
        );
        assert_eq!(without_size("a [7b]"), Some(("a".into(), 7)));
        for plain in ["a [B]", "a [12]", "a[12B]", "a [sync=x]", ""] {
            assert_eq!(without_size(plain), None, "{plain}");
        }
        let mut timeline = scene::empty(Dialect::Flex);
        let slice = Slice {
            name: "a [12B] x",
            transfer: Some(("", "", "3", -1)),
            args: "\"x\":\"Peer\",\"Peer\":\"3\",\"y\":1",
            ..Slice::default()
        };
        scene::add(&mut timeline, &slice);
        run(&mut timeline, Level::Warn);
        let event = timeline.events[0];
        assert_eq!(timeline.name(event.name), "a x");
        let args = "\"x\":\"Peer\",\"Peers\":\"3\",\"y\":1,\"bytes\":\"12\"";
        assert_eq!(timeline.texts.get(event.args), args);
    }

    #[test]
    fn what_was_cut_off_is_counted() {
        let mut timeline = scene::empty(Dialect::Flex);
        let mut add = |rank: u32, ts: f64, is_send: bool| {
            let (name, kind, peer) = match is_send {
                true => ("Send [sync=a] DmaO", "SingleCast", "1"),
                false => ("Recv [sync=a] DmaI", "WDone Barrier", "0"),
            };
            let slice = Slice {
                rank,
                name,
                ts,
                dur: 5.0,
                transfer: Some(("G", kind, peer, 1)),
                ..Slice::default()
            };
            scene::add(&mut timeline, &slice);
        };
        // The first send is before the trace begins, the last receive is after it.
        for ts in [2.0, 102.0] {
            add(1, ts, false);
        }
        for ts in [100.0, 200.0, 300.0] {
            add(0, ts, true);
        }
        let outcome = run(&mut timeline, Level::Warn);
        let exchanges = &outcome.exchanges;
        assert_eq!((exchanges.lonely_sends, exchanges.lonely_receives), (2, 1));
        assert_eq!((outcome.added, exchanges.incomplete.len()), (2, 1));
        assert_eq!(
            (timeline.events[5].ts(), outcome.said.iter().count()),
            (100.0, 1)
        );
    }
}
