//! Times of tokens: how long the first one takes (TTFT), and how long from one to the
//! next (ITL).
//!
//! A language model answers in steps: the first (prefill) reads the prompt and gives the
//! first token, each further one (decode) gives one more. The compiler's tables show the
//! steps: a job that ran a table named `PREFILL` or `DECODING`. Without them, the kernels
//! do: what repeats is decoding, what was before it is prefill. A repetition that takes far longer
//! than its neighbours is the prefill of a further request.

use crate::analyze::iterations::{Iteration, Iterations};
use crate::analyze::statistics::Spread;
use aiprof_model::timeline::{Id, Kinds, Timeline};
use rustc_hash::FxHashMap;

/// A first iteration is a prefill if it takes this many times the kernel time of the
/// longest of the next.
const LONGER: f64 = 1.5;
/// Iterations that one is compared with, on each side; with fewer it is not judged. More may reach
/// into another request.
const FEWEST_DECODES: usize = 3;

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepKind {
    /// Reads the prompt; its end gives the first token.
    Prefill,
    /// Its end gives one more token.
    Decode,
}

/// A step of a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Row group.
    pub pid: Id,
    /// Rank.
    pub rank: u32,
    /// What it does.
    pub kind: StepKind,
    /// Begin of its first kernel, microseconds since the timeline's origin.
    pub start_us: f64,
    /// End of its last kernel.
    pub end_us: f64,
    /// Something else may have run since the step before, so the time since then shows
    /// nothing about tokens.
    pub is_apart: bool,
}

/// Token times of a rank.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenTimes {
    /// Row group.
    pub pid: Id,
    /// Rank.
    pub rank: u32,
    /// From the begin of a prefill to its end, microseconds, of all prefills; `None`:
    /// there is none.
    pub first_token_us: Option<Spread>,
    /// From one token to the next, microseconds; `None`: there are no two in a row.
    pub between_tokens_us: Option<Spread>,
    /// Tokens that were seen: prefills and decodes.
    pub tokens: usize,
}

/// Finds the steps from iterations: each iteration is a decode; kernels before the first
/// are one prefill.
///
/// Where nothing runs before the first one and that takes far more kernel time than those
/// behind it, it is a prefill by kernels of the same names.
///
/// This is a reading of the trace, not knowledge: if a model repeats anything else, it
/// gives the times of that.
pub(crate) fn steps_of_iterations(
    all: &[Iterations],
    timeline: &Timeline,
    kinds: &Kinds,
) -> Vec<Step> {
    let mut before = ends_before(all, timeline, kinds);
    let mut steps = Vec::new();
    for one in all {
        let mut is_apart = true;
        let mut add = |kind, start_us, end_us, is_apart| {
            steps.push(Step {
                pid: one.pid,
                rank: one.rank,
                kind,
                start_us,
                end_us,
                is_apart,
            });
        };
        let Some(first) = one.list.first() else {
            continue;
        };
        if let Some(end_us) = before.remove(&one.pid).filter(|_| one.kernels_before > 0) {
            let end_us = end_us.min(first.start_us);
            add(StepKind::Prefill, one.first_kernel_us, end_us, true);
            is_apart = false;
        }
        let has_prefill = one.kernels_before == 0 && is_first_longer(&one.list);
        for (index, iteration) in one.list.iter().enumerate() {
            let (start, end) = (iteration.start_us, iteration.end_us);
            let kind = match index == 0 && has_prefill || is_longer_than_around(&one.list, index) {
                true => StepKind::Prefill,
                false => StepKind::Decode,
            };
            add(kind, start, end, is_apart);
            is_apart = !iteration.is_followed;
        }
    }
    steps
}

/// Whether the first iteration takes much more kernel time than each of the next ones.
fn is_first_longer(list: &[Iteration]) -> bool {
    let [first, rest @ ..] = list else {
        return false;
    };
    let next = rest
        .iter()
        .take(FEWEST_DECODES)
        .map(|iteration| iteration.kernel_us);
    rest.len() >= FEWEST_DECODES && first.kernel_us > LONGER * next.fold(0.0, f64::max)
}

/// Whether an iteration takes much more kernel time than those before and behind it: with it a
/// further request begins.
fn is_longer_than_around(list: &[Iteration], at: usize) -> bool {
    let us = |range: std::ops::Range<usize>| {
        let some = list.get(range)?.iter().map(|iteration| iteration.kernel_us);
        Some(some.fold(0.0, f64::max))
    };
    let before = at.checked_sub(FEWEST_DECODES).and_then(|from| us(from..at));
    let behind = us(at + 1..at + 1 + FEWEST_DECODES);
    let own = list.get(at).map(|iteration| iteration.kernel_us);
    match (own, before, behind) {
        (Some(own), Some(before), Some(behind)) => own > LONGER * before.max(behind),
        _ => false,
    }
}

/// The last end of each row group's kernels that begin before its first iteration.
fn ends_before(all: &[Iterations], timeline: &Timeline, kinds: &Kinds) -> FxHashMap<Id, f64> {
    let begins = all.iter().filter_map(|one| {
        let first = one.list.first()?;
        Some((one.pid, first.start_us))
    });
    let begins: FxHashMap<Id, f64> = begins.collect();
    let mut ends: FxHashMap<Id, f64> = FxHashMap::default();
    for event in &timeline.events {
        if event.dropped || !event.is_slice() || !kinds.is_kernel(timeline, event) {
            continue;
        }
        if begins
            .get(&timeline.pid(event))
            .is_some_and(|begin| event.ts() < *begin)
        {
            let end = ends.entry(timeline.pid(event)).or_insert(f64::NEG_INFINITY);
            *end = end.max(event.end_us());
        }
    }
    ends
}

/// Token times of each row group with steps, which come by row group and time.
pub fn run(steps: &[Step]) -> Vec<TokenTimes> {
    let groups = steps.chunk_by(|a, b| a.pid == b.pid);
    let times = groups.filter_map(|steps| {
        let first = steps.first()?;
        let prefills = steps.iter().filter(|step| step.kind == StepKind::Prefill);
        let mut firsts: Vec<f64> = prefills.map(|step| step.end_us - step.start_us).collect();
        let pairs = steps.windows(2).filter_map(|pair| match pair {
            [a, b] if b.kind == StepKind::Decode && !b.is_apart => Some(b.end_us - a.end_us),
            _ => None,
        });
        let mut between: Vec<f64> = pairs.collect();
        Some(TokenTimes {
            pid: first.pid,
            rank: first.rank,
            first_token_us: Spread::of(&mut firsts),
            between_tokens_us: Spread::of(&mut between),
            tokens: steps.len(),
        })
    });
    times.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::iterations::{self, Period};
    use crate::analyze::messages::{Level, Messages};
    use aiprof_model::timeline::Dialect;
    use aiprof_testkit::timelines as testing;

    /// Kernels of a rank: of each letter one, each 2 us long and 3 us after the one
    /// before; a space is a pause of 10 us.
    fn kernels(timeline: &mut Timeline, rank: u32, text: &str) {
        let mut ts = 100.0;
        for letter in text.chars() {
            if letter == ' ' {
                ts += 10.0;
                continue;
            }
            let name = format!("{letter} Cmpt Exec");
            testing::slice(timeline, &name, rank, ts, 2.0);
            ts += 3.0;
        }
    }

    fn of_iterations(timeline: &Timeline) -> Vec<TokenTimes> {
        let kinds = Kinds::new(timeline);
        let mut messages = Messages::new(Level::Info);
        let found = iterations::run(timeline, &kinds, Period::Smallest, &mut messages);
        run(&steps_of_iterations(&found, timeline, &kinds))
    }

    /// By hand: the prefill is four kernels, 11 us. A decode is six kernels, 18 us from
    /// begin to begin; the pause before the third adds 10. After `z` nothing is known.
    #[test]
    fn repeated_kernels_give_tokens() {
        let mut timeline = testing::timeline(Dialect::Flex);
        kernels(&mut timeline, 3, "pqrsabcdefabcdef abcdefzabcdefabcdef");
        let times = of_iterations(&timeline);
        assert_eq!(times.len(), 1);
        let first = times[0].first_token_us.unwrap();
        assert_eq!((times[0].rank, first.calls, first.mean), (3, 1, 11.0));
        let between = times[0].between_tokens_us.unwrap();
        // From prefill to first decode, twice more, then once after the gap.
        assert_eq!((between.calls, between.max), (4, 28.0));
        assert_eq!((between.min, between.median), (18.0, 18.0));
        assert_eq!(times[0].tokens, 6);
    }

    /// Prefill and decode run the same six kernels; the prefill's take ten times as long.
    #[test]
    fn a_prefill_by_the_same_kernels_gives_the_first_token() {
        let mut timeline = testing::timeline(Dialect::Flex);
        let mut ts = 100.0;
        for step in 0..9 {
            let us = if step == 0 {
                20.0
            } else {
                2.0 + 0.1 * f64::from(step)
            };
            for letter in "abcdef".chars() {
                let name = format!("{letter} Cmpt Exec");
                testing::slice(&mut timeline, &name, 0, ts, us);
                ts += us + 1.0;
            }
        }
        let times = of_iterations(&timeline);
        let first = times[0].first_token_us.unwrap();
        assert_eq!((first.calls, first.mean), (1, 125.0));
        assert_eq!(times[0].between_tokens_us.unwrap().calls, 8);
        assert_eq!(times[0].tokens, 9);
    }

    /// Three requests, one after the other, by the same six kernels: the prefill's take ten times
    /// as long, and between requests the device waits.
    #[test]
    fn each_of_several_requests_has_its_first_token() {
        let mut timeline = testing::timeline(Dialect::Flex);
        let mut ts = 100.0;
        for _ in 0..3 {
            for step in 0..9 {
                let us = if step == 0 { 20.0 } else { 2.0 };
                for letter in "abcdef".chars() {
                    let name = format!("{letter} Cmpt Exec");
                    testing::slice(&mut timeline, &name, 0, ts, us);
                    ts += us + 1.0;
                }
            }
            ts += 500.0;
        }
        let times = of_iterations(&timeline);
        let first = times[0].first_token_us.unwrap();
        assert_eq!((first.calls, first.mean), (3, 125.0));
        let between = times[0].between_tokens_us.unwrap();
        // From one decode's end to the next one's: six kernels of 2 us, each 1 us apart.
        assert_eq!(
            (between.calls, between.median, between.max),
            (24, 18.0, 18.0)
        );
        assert_eq!(times[0].tokens, 27);
    }

    #[test]
    fn without_prefill_or_repetition_little_is_known() {
        let mut timeline = testing::timeline(Dialect::Flex);
        kernels(&mut timeline, 0, "abcdefabcdef");
        kernels(&mut timeline, 1, "abcdefghijkl");
        let times = of_iterations(&timeline);
        assert_eq!(times.len(), 1);
        assert_eq!(times[0].first_token_us, None);
        assert_eq!(times[0].between_tokens_us.unwrap().mean, 18.0);
        assert!(run(&[]).is_empty());
    }
}
