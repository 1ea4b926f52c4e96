//! Steps of one transfer between ranks as one slice (`--comm_summarize_seq`, stages
//! 29 to 31).

use aiprof_model::timeline::{Event, Kind, Kinds, Timeline};
use rustc_hash::FxHashMap;

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommSummaryReport {
    /// Slices that stand for several.
    pub merged: usize,
    /// Slices that went into another.
    pub dropped: usize,
}

/// Slices of one number.
struct Sequence {
    /// Its last slice, which becomes the whole.
    last: u32,
    count: u32,
    start_us: f64,
    end_us: f64,
    /// How much of the first one's name all have.
    first: u32,
    common: usize,
    peers: Vec<i64>,
}

/// Merges slices whose names have `SenRdma` and the same first number behind a `_` or
/// `-`, per file and rank. The last of them in the timeline's order stays, the others
/// are dropped. Needs kinds and transfers.
pub fn run(timeline: &mut Timeline, kinds: &Kinds) -> CommSummaryReport {
    let numbers: Vec<Option<u64>> = timeline.names.iter().map(|(_, n)| number(n)).collect();
    let number_of = |event: &Event| {
        let wanted = event.is_slice() && !event.dropped && kinds.of(event.name).is(Kind::SEN_RDMA);
        let number = numbers.get(event.name.index()).copied().flatten();
        number.filter(|_| wanted)
    };
    let mut sequences: FxHashMap<(u32, u32, u64), Sequence> = FxHashMap::default();
    for (index, event) in (0u32..).zip(&timeline.events) {
        if let Some(number) = number_of(event) {
            let sequence = sequences
                .entry((timeline.job(event), timeline.rank(event), number))
                .or_insert_with(|| Sequence::new(timeline, index, event));
            sequence.add(timeline, index, event);
        }
    }
    let mut outcome = CommSummaryReport::default();
    let mut all: Vec<Sequence> = sequences.into_values().collect();
    all.sort_by_key(|sequence| sequence.last);
    for (index, event) in (0u32..).zip(&mut timeline.events) {
        // Whatever is no sequence's last goes.
        let belongs = number_of(event).is_some();
        if belongs && all.binary_search_by_key(&index, |s| s.last).is_err() {
            event.dropped = true;
            outcome.dropped += 1;
        }
    }
    for sequence in &all {
        outcome.merged += usize::from(sequence.count > 1);
        sequence.finish(timeline);
    }
    outcome
}

/// The first number behind a `_` or `-`.
fn number(name: &str) -> Option<u64> {
    let mut rest = name;
    while let Some((_, after)) = rest.split_once(['_', '-']) {
        let digits = after
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(after.len());
        if digits > 0 {
            return after.get(..digits)?.parse().ok();
        }
        rest = after;
    }
    None
}

impl Sequence {
    fn new(timeline: &Timeline, index: u32, event: &Event) -> Self {
        Self {
            last: index,
            count: 0,
            start_us: event.ts(),
            end_us: event.end_us(),
            first: index,
            common: timeline.name(event.name).len(),
            peers: Vec::new(),
        }
    }

    fn add(&mut self, timeline: &Timeline, index: u32, event: &Event) {
        self.count += 1;
        self.last = index;
        self.start_us = self.start_us.min(event.ts());
        self.end_us = self.end_us.max(event.end_us());
        if let Some(first) = timeline.events.get(self.first as usize) {
            let (a, b) = (timeline.name(first.name), timeline.name(event.name));
            let same = a
                .char_indices()
                .zip(b.chars())
                .take_while(|((_, a), b)| a == b);
            let common = same.last().map_or(0, |((at, c), _)| at + c.len_utf8());
            self.common = self.common.min(common);
        }
        let peer = timeline.transfer(event).filter(|t| !t.is_plural);
        let peer = peer.and_then(|t| timeline.name(t.peers).parse().ok());
        if let Some(peer) = peer
            && let Err(at) = self.peers.binary_search(&peer)
        {
            self.peers.insert(at, peer);
        }
    }

    /// Makes the last slice the whole.
    fn finish(&self, timeline: &mut Timeline) {
        let first = timeline.events.get(self.first as usize).map(|e| e.name);
        let name = first.map(|sym| timeline.name(sym)).unwrap_or_default();
        let name = name.get(..self.common).unwrap_or(name).to_owned();
        let name = timeline.names.intern(&name);
        let index = self.last as usize;
        if let Some(event) = timeline.events.get_mut(index) {
            event.name = name;
            event.set_ts(self.start_us);
            event.set_dur(self.end_us - self.start_us);
        }
        let peers: Vec<String> = self.peers.iter().map(|p| format!("\"{p}\"")).collect();
        set_peers(timeline, index, &format!("[{}]", peers.join(", ")));
    }
}

/// Sets `args.Peers`, whatever it was.
fn set_peers(timeline: &mut Timeline, index: usize, value: &str) {
    let Some(event) = timeline.events.get(index).copied() else {
        return;
    };
    let Some(old) = timeline.arg(&event, "Peers") else {
        return timeline.add_args(index, &format!("\"Peers\":{value}"));
    };
    let text = timeline.texts.get(event.args);
    let at = (old.as_ptr() as usize).saturating_sub(text.as_ptr() as usize);
    let before = text.get(..at).unwrap_or_default().to_owned();
    let after = text.get(at + old.len()..).unwrap_or_default().to_owned();
    let args = timeline.texts.join(&[&before, value, &after]);
    if let Some(event) = timeline.events.get_mut(index) {
        event.args = args;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::timeline::Dialect;
    use aiprof_testkit::scene::{self, Slice};

    fn slice(name: &'static str, peer: &'static str, ts: f64, dur: f64) -> Slice<'static> {
        Slice {
            name,
            ts,
            dur,
            transfer: Some(("", "", peer, -1)),
            ..Slice::default()
        }
    }

    #[test]
    fn steps_of_one_number_become_one() {
        let mut timeline = scene::empty(Dialect::Flex);
        let first = slice("SenRdmaSend_82233 - Xseg to rank 1 DmaO", "1", 10.0, 5.0);
        scene::add(&mut timeline, &first);
        scene::add(&mut timeline, &slice("add_82233", "", 11.0, 1.0));
        scene::add(
            &mut timeline,
            &slice("SenRdmaSend_82233 - Xseg to rank 0 DmaO", "0", 8.0, 1.0),
        );
        scene::add(&mut timeline, &slice("SenRdmaRecv_5 DmaI", "2", 1.0, 1.0));
        let mut last = slice("SenRdmaSend_82233 - Set BcList DmaO", "0,1,2", 12.0, 40.0);
        last.args = "\"Peers\":\"0,1,2\",\"z\":1";
        scene::add(&mut timeline, &last);
        let mut other = first.clone();
        other.rank = 1;
        scene::add(&mut timeline, &other);
        scene::add(&mut timeline, &slice("SenRdma", "2", 1.0, 1.0));
        let kinds = Kinds::new(&timeline);
        let outcome = run(&mut timeline, &kinds);
        assert_eq!(
            outcome,
            CommSummaryReport {
                merged: 1,
                dropped: 2
            }
        );
        timeline.sweep();
        let seen: Vec<_> = timeline
            .events
            .iter()
            .map(|e| {
                (
                    timeline.name(e.name),
                    e.ts(),
                    e.dur(),
                    timeline.texts.get(e.args),
                )
            })
            .collect();
        let expected = [
            ("add_82233", 11.0, 1.0, ""),
            ("SenRdmaRecv_5 DmaI", 1.0, 1.0, "\"Peers\":[\"2\"]"),
            (
                "SenRdmaSend_82233 - ",
                8.0,
                44.0,
                "\"Peers\":[\"0\", \"1\"],\"z\":1",
            ),
            (
                "SenRdmaSend_82233 - Xseg to rank 1 DmaO",
                10.0,
                5.0,
                "\"Peers\":[\"1\"]",
            ),
            ("SenRdma", 1.0, 1.0, ""),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn numbers_are_the_first_behind_a_mark() {
        assert_eq!(number("a_b-12_3"), Some(12));
        assert_eq!(number("12_x"), None);
        assert_eq!(number("a_99999999999999999999999"), None);
        assert_eq!(number(""), None);
        let mut timeline = scene::empty(Dialect::Flex);
        let kinds = Kinds::new(&timeline);
        assert_eq!(run(&mut timeline, &kinds), CommSummaryReport::default());
    }
}
