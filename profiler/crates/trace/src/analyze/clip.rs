//! Work that seems to end after work of its stream that begins later. Its end is wrong: a stream
//! ends its work in the order in which it begins it.
//!
//! Work that only overlaps the next is left alone: kernels may begin before the one before them
//! is over.

use crate::work::stream_of;
use aiprof_model::timeline::{Dialect, Kinds, Length, StreamKey, Time, Timeline};
use rustc_hash::FxHashMap;

/// Work of a stream: begin, end, event.
type Stream = Vec<(Time, Time, usize)>;

/// Ends such work where the next begins; its length as it was read stays among the arguments.
/// Gives how many events it was.
pub(crate) fn run(timeline: &mut Timeline, kinds: &Kinds) -> usize {
    let mut streams: FxHashMap<(u32, u32, StreamKey), Stream> = FxHashMap::default();
    for (index, event) in timeline.events.iter().enumerate() {
        let is_work = event.is_slice()
            && timeline.dialect(event) == Dialect::Torch
            && (kinds.is_kernel(timeline, event) || kinds.is_copy(timeline, event))
            // Other rows of devices may nest.
            && timeline.arg(event, "stream").is_some();
        if is_work {
            let key = (
                timeline.job(event),
                timeline.rank(event),
                stream_of(timeline, event),
            );
            let work = (event.start, event.end(), index);
            streams.entry(key).or_default().push(work);
        }
    }
    let mut clipped = Vec::new();
    for mut stream in streams.into_values() {
        stream.sort_unstable();
        // Where the next begins, and when the first of all that begin later ends.
        let mut behind: Option<(Time, Time)> = None;
        for together in stream.chunk_by(|a, b| a.0 == b.0).rev() {
            let Some((begin, ..)) = together.first() else {
                continue;
            };
            if let Some((next, first_end)) = behind {
                let late = together.iter().filter(|(_, end, _)| *end > first_end);
                clipped.extend(late.map(|(begin, _, index)| (*index, next - *begin)));
            }
            // What has no length does not show when it ended.
            let ends = together.iter().filter(|(begin, end, _)| begin < end);
            let ends = ends.map(|(_, end, _)| *end);
            let first_end = ends.chain(behind.map(|(_, end)| end)).min();
            behind = first_end.map(|end| (*begin, end));
        }
    }
    clipped.sort_unstable_by_key(|(index, _)| *index);
    for (index, length) in &clipped {
        clip(timeline, *index, *length);
    }
    clipped.len()
}

fn clip(timeline: &mut Timeline, index: usize, length: Length) {
    let Some(event) = timeline.events.get_mut(index) else {
        return;
    };
    let us = event.dur();
    event.length = length;
    timeline.add_args(index, &format!("\"orig_dur\":{us}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_testkit::scene::{self, Slice};

    /// The lengths of kernels with these begins and lengths, microseconds, on these streams.
    fn lengths(kernels: &[(f64, f64, &'static str)]) -> Vec<f64> {
        let mut timeline = scene::empty(Dialect::Torch);
        for &(ts, dur, args) in kernels {
            let cat = "kernel";
            scene::add(
                &mut timeline,
                &Slice {
                    name: "k",
                    cat,
                    ts,
                    dur,
                    args,
                    ..Slice::default()
                },
            );
        }
        let kinds = Kinds::new(&timeline);
        run(&mut timeline, &kinds);
        timeline.events.iter().map(|event| event.dur()).collect()
    }

    const ONE: &str = "\"stream\":7";

    #[test]
    fn work_ends_before_what_is_behind_it_ends() {
        let found = lengths(&[(0.0, 90.0, ONE), (100.0, 1e6, ONE), (200.0, 90.0, ONE)]);
        assert_eq!(found, [90.0, 100.0, 90.0]);
        let found = lengths(&[(0.0, 1e6, ONE), (100.0, 2e6, ONE), (200.0, 90.0, ONE)]);
        assert_eq!(found, [100.0, 100.0, 90.0]);
        // Two that begin together.
        let found = lengths(&[(0.0, 1e6, ONE), (0.0, 2e6, ONE), (200.0, 90.0, ONE)]);
        assert_eq!(found, [200.0, 200.0, 90.0]);
    }

    /// All lengths of six kernels, one every 10 us.
    #[test]
    fn work_is_clipped_if_anything_behind_it_ends_before_it() {
        for code in 0..4096_usize {
            let dur = |place: usize| [5.0, 12.0, 35.0, 1e6][(code >> (2 * place)) % 4];
            let kernels = [0, 1, 2, 3, 4, 5].map(|place| (place as f64 * 10.0, dur(place), ONE));
            let ends = kernels.map(|(begin, dur, _)| begin + dur);
            let expected = (0..6).map(|place| {
                let is_wrong = ends.iter().skip(place + 1).any(|end| *end < ends[place]);
                if is_wrong { 10.0 } else { dur(place) }
            });
            assert_eq!(
                lengths(&kernels),
                expected.collect::<Vec<_>>(),
                "{kernels:?}"
            );
        }
    }

    #[test]
    fn what_may_be_true_is_left_alone() {
        for kernels in [
            // The next begins early.
            [(0.0, 90.0, ONE), (80.0, 90.0, ONE)],
            [(0.0, 90.0, ONE), (10.0, 5.0, "\"stream\":8")],
            [(0.0, 90.0, ""), (10.0, 5.0, "")],
            [(0.0, 90.0, ONE), (10.0, 0.0, ONE)],
        ] {
            let expected: Vec<f64> = kernels.iter().map(|kernel| kernel.1).collect();
            assert_eq!(lengths(&kernels), expected);
        }
    }
}
