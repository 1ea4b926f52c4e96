//! Iterations: kernels that run again and again in the same sequence.
//!
//! The first sequence that is repeated at once is the reference, as soon as
//! `FEWEST` kernels have run, if fewer kernels are before it than it has itself.
//! Where it occurs again, iterations begin. acelyzer tries all lengths and prefixes
//! at each kernel, which takes cubic time where nothing repeats; this finds the same
//! sequence in linear time. It may hold the repeated one several times, where much runs
//! before; [`Period::Smallest`] takes one of these.

use crate::analyze::identity::file_of;
use crate::analyze::messages::Messages;
use crate::analyze::utilization::python::repr;
use aiprof_model::timeline::{Id, Kinds, Sym, Timeline};
use rustc_hash::FxHashMap;

/// Kernels that must have run before a repetition is looked for.
const FEWEST: usize = 10;

/// Which sequence counts as one iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// The one that acelyzer finds.
    Acelyzer,
    /// If that is a shorter one several times: the shorter one.
    Smallest,
}

/// One run of the sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Iteration {
    /// Begin of its first kernel, microseconds since the timeline's origin.
    pub start_us: f64,
    /// End of its last kernel.
    pub end_us: f64,
    /// Sum of its kernels' lengths, microseconds.
    pub kernel_us: f64,
    /// Whether the next iteration follows with no other kernel between.
    pub is_followed: bool,
}

/// The iterations of a row group.
#[derive(Clone, Debug, PartialEq)]
pub struct Iterations {
    /// Row group.
    pub pid: Id,
    /// Rank.
    pub rank: u32,
    /// Kernels of the row group.
    pub kernels: usize,
    /// Kernels before the first iteration, if there is one.
    pub kernels_before: usize,
    /// Begin of the row group's first kernel, microseconds.
    pub first_kernel_us: f64,
    /// Names of an iteration's kernels; empty: nothing repeats.
    pub sequence: Vec<Sym>,
    /// All iterations, by time.
    pub list: Vec<Iteration>,
    /// Mean time from an iteration's begin to the next one's, microseconds.
    pub mean_us: f64,
    /// How many such times there are.
    pub count: usize,
}

impl Iterations {
    /// Times from the begins of iterations to those of the next, microseconds, where
    /// no other kernel ran between.
    pub(crate) fn intervals(&self) -> impl Iterator<Item = f64> {
        let pairs = self.list.windows(2);
        pairs.filter_map(|pair| match pair {
            [a, b] if a.is_followed => Some(b.start_us - a.start_us),
            _ => None,
        })
    }
}

/// Most squares that are compared.
const MAX_SQUARES: usize = 32;

/// A kernel that ran.
#[derive(Clone, Copy)]
struct KernelRun {
    place: u32,
    name: Sym,
    start: f64,
    end: f64,
    file: u32,
}

/// Finds the iterations of each row group with kernels, in the order in which row
/// groups appear. Takes calibrated events in any order; of equal begins the order
/// of events counts.
pub fn run(
    timeline: &Timeline,
    kinds: &Kinds,
    period: Period,
    messages: &mut Messages,
) -> Vec<Iterations> {
    let (mut places, mut groups) = (FxHashMap::default(), Vec::new());
    let mut kernels: Vec<KernelRun> = Vec::new();
    for event in &timeline.events {
        if event.dropped || !event.is_slice() || !kinds.is_kernel(timeline, event) {
            continue;
        }
        let place = *places.entry(timeline.pid(event)).or_insert_with(|| {
            groups.push((timeline.pid(event), timeline.rank(event)));
            groups.len() as u32 - 1
        });
        kernels.push(KernelRun {
            place,
            name: event.name,
            start: event.ts(),
            end: event.end_us(),
            file: file_of(timeline, event),
        });
    }
    kernels.sort_by(|a, b| a.place.cmp(&b.place).then(a.start.total_cmp(&b.start)));
    let found = kernels.chunk_by(|a, b| a.place == b.place).zip(groups);
    let found: Vec<_> = found
        .map(|(kernels, (pid, rank))| iterations(kernels, pid, rank, period))
        .collect();
    for one in &found {
        let pid = match one.pid {
            Id::Number(number) => number.to_string(),
            Id::Token(text) => timeline.name(text).to_owned(),
        };
        let (mean, count) = (repr(one.mean_us), one.count);
        messages.info(
            "ITSTATS",
            format_args!("ITSTATS: [{pid}] avg_iteration_time={mean}, iterations={count}"),
        );
    }
    found
}

/// Iterations of one row group's kernels, which are by time.
fn iterations(kernels: &[KernelRun], pid: Id, rank: u32, period: Period) -> Iterations {
    let word: Vec<Sym> = kernels.iter().map(|kernel| kernel.name).collect();
    let mut found = Iterations {
        pid,
        rank,
        kernels: kernels.len(),
        kernels_before: 0,
        first_kernel_us: kernels.first().map_or(0.0, |kernel| kernel.start),
        sequence: Vec::new(),
        list: Vec::new(),
        mean_us: 0.0,
        count: 0,
    };
    let square = match period {
        Period::Acelyzer => first_square(&word),
        Period::Smallest => widest_square(&word),
    };
    let Some(square) = square else {
        return found;
    };
    let Some(sequence) = word.get(square.start..square.start + square.half) else {
        return found;
    };
    found.kernels_before = square.start;
    found.sequence = sequence.to_vec();
    let begins = occurrences(&word, sequence, square.start);
    found.list = spans(kernels, &begins, sequence.len());
    found.count = found.intervals().count();
    let sum: f64 = found.intervals().sum();
    found.mean_us = sum / found.count.max(1) as f64;
    found
}

fn spans(kernels: &[KernelRun], begins: &[usize], len: usize) -> Vec<Iteration> {
    let followers = begins.iter().skip(1).map(Some).chain([None]);
    let file = |at: &usize| kernels.get(*at).map(|kernel| kernel.file);
    let is_same_file = |at: &usize, next: Option<&usize>| file(at) == next.and_then(file);
    let spans = begins.iter().zip(followers).filter_map(|(begin, next)| {
        let kernels = kernels.get(*begin..begin + len)?;
        let ends = kernels.iter().map(|kernel| kernel.end);
        Some(Iteration {
            start_us: kernels.first()?.start,
            end_us: ends.fold(f64::NEG_INFINITY, f64::max),
            kernel_us: kernels.iter().map(|kernel| kernel.end - kernel.start).sum(),
            is_followed: next == Some(&(begin + len)) && is_same_file(begin, next),
        })
    });
    spans.collect()
}

/// Where `sequence` occurs in `word` from an index on, no two overlapping.
fn occurrences(word: &[Sym], sequence: &[Sym], from: usize) -> Vec<usize> {
    let borders = borders(sequence);
    let (mut found, mut len) = (Vec::new(), 0);
    for (index, name) in word.iter().enumerate().skip(from) {
        len = matched(sequence, &borders, len, *name);
        if len == sequence.len() {
            found.push(index + 1 - len);
            len = 0;
        }
    }
    found
}

/// For each index, how much of the sequence's begin ends there: what is matched again
/// where it no longer fits.
fn borders(sequence: &[Sym]) -> Vec<usize> {
    let mut borders = vec![0usize; sequence.len()];
    let mut len = 0;
    for index in 1..sequence.len() {
        len = matched(sequence, &borders, len, sequence[index]);
        borders[index] = len;
    }
    borders
}

/// Finds the square whose sequence covers most of the word, among those that come one
/// after the other; returns it with its shortest period. The first may be the wrong one:
/// a prefill may begin with a square of its own, or with a part of what the decodes
/// repeat.
fn widest_square(word: &[Sym]) -> Option<Square> {
    let mut best: Option<(usize, Square)> = None;
    let mut from = 0;
    for _ in 0..MAX_SQUARES {
        let rest = word.get(from..).unwrap_or_default();
        let Some(found) = first_square(rest) else {
            break;
        };
        let start = from + found.start;
        let half = root(word.get(start..start + found.half)?);
        let start = run_start(word, start, half);
        let covered = occurrences(word, word.get(start..start + half)?, start).len() * half;
        if best.is_none_or(|(most, _)| covered > most) {
            best = Some((covered, Square { start, half }));
        }
        // The next run may share the last of this one's sequences.
        let run = word.get(start + half..)?.iter().zip(word.get(start..)?);
        let end = start + half + run.take_while(|(a, b)| a == b).count();
        from = end.saturating_sub(half).max(from + 1);
    }
    best.map(|(_, square)| square)
}

/// Where a run of this period begins that goes on at `start`.
fn run_start(word: &[Sym], start: usize, half: usize) -> usize {
    let before = (0..start).rev();
    let same = before.take_while(|index| word.get(*index) == word.get(index + half));
    start - same.count()
}

/// Length of the shortest sequence that this one is several times, else its own.
fn root(sequence: &[Sym]) -> usize {
    let border = borders(sequence).last().copied().unwrap_or(0);
    let period = sequence.len() - border;
    match period > 0 && sequence.len().is_multiple_of(period) {
        true => period,
        false => sequence.len(),
    }
}

/// How many names of the sequence are matched after one more, of which `len` were.
fn matched(sequence: &[Sym], borders: &[usize], mut len: usize, name: Sym) -> usize {
    while sequence.get(len) != Some(&name) {
        match len.checked_sub(1).and_then(|last| borders.get(last)) {
            Some(shorter) => len = *shorter,
            None => return 0,
        }
    }
    len + 1
}

/// A sequence that is repeated at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Square {
    start: usize,
    /// Length of the sequence.
    half: usize,
}

impl Square {
    fn end(self) -> usize {
        self.start + 2 * self.half
    }
}

/// The square that ends first, and of these the one that begins first, among those
/// that are long enough and begin within the first third of what they end.
fn first_square(word: &[Sym]) -> Option<Square> {
    // A square that ends between `len` and twice that begins before `len`: it lies
    // across, and such squares are found in linear time. The lengths double.
    let mut len = FEWEST;
    while len <= word.len() {
        let part = word.get(..word.len().min(2 * len))?;
        if let Some(square) = first_square_across(part, len) {
            return Some(square);
        }
        len *= 2;
    }
    None
}

/// The first square of `word` that touches the place before `middle` and ends there
/// or behind (Main and Lorentz, 1984).
fn first_square_across(word: &[Sym], middle: usize) -> Option<Square> {
    let (left, right) = word.split_at_checked(middle)?;
    let back: Vec<Sym> = left.iter().rev().copied().collect();
    let whole_back: Vec<Sym> = word.iter().rev().copied().collect();
    // Common beginnings: of `right` and its own ends, of `right` and ends of all;
    // common ends: of `left` and its own beginnings, of `left` and beginnings of all.
    let right_in_right = common(right, right);
    let right_in_all = common(right, word);
    let left_in_left = common(&back, &back);
    let left_in_all = common(&back, &whole_back);
    let at = |lengths: &[usize], index: usize| lengths.get(index).copied().unwrap_or(0);
    let mut best: Option<Square> = None;
    for half in 1..=word.len() / 2 {
        // The run of names that are equal to those `half` later, around the place,
        // and around `half` before it.
        let ends = middle + half;
        let later = (ends <= word.len()).then(|| {
            let before = at(&left_in_all, word.len() - ends);
            (middle, before, at(&right_in_right, half))
        });
        let earlier = middle.checked_sub(half).map(|at_half| {
            let before = at(&left_in_left, half);
            (at_half, before, at(&right_in_all, at_half))
        });
        for (place, before, after) in [later, earlier].into_iter().flatten() {
            let square = square_in_run(place, before, after, half, middle);
            best = square.into_iter().chain(best).min_by_key(|square| {
                let Square { start, .. } = *square;
                (square.end(), start)
            });
        }
    }
    best
}

/// The first usable square in a run of `before` and `after` equal names around a place.
fn square_in_run(
    place: usize,
    before: usize,
    after: usize,
    half: usize,
    middle: usize,
) -> Option<Square> {
    let first = place.checked_sub(before)?;
    // Beginning later makes the other conditions harder only.
    let start = first.max(middle.saturating_sub(2 * half));
    let square = Square { start, half };
    let fits = start + half <= place + after;
    (fits && start < square.end() / 3).then_some(square)
}

/// For each index of `text`, how many names from there on are those that `pattern`
/// begins with: the Z function.
fn common(pattern: &[Sym], text: &[Sym]) -> Vec<usize> {
    let own = z(pattern, pattern, &[]);
    z(pattern, text, &own)
}

/// `own` is the function of the pattern in itself, empty while that is found.
fn z(pattern: &[Sym], text: &[Sym], own: &[usize]) -> Vec<usize> {
    let is_own = own.is_empty();
    let mut lengths = vec![0usize; text.len()];
    // The match that reaches farthest: from and to.
    let (mut from, mut to) = (0, 0);
    for index in usize::from(is_own)..text.len() {
        let known = if is_own { &lengths } else { own };
        let known = known.get(index - from).copied().unwrap_or(0);
        let mut len = known.min(to.max(index) - index);
        while len < pattern.len() && text.get(index + len) == pattern.get(len) {
            len += 1;
        }
        lengths[index] = len;
        if index + len > to {
            (from, to) = (index, index + len);
        }
    }
    if is_own && let Some(first) = lengths.first_mut() {
        *first = pattern.len();
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::messages::Level;
    use aiprof_model::timeline::Dialect;
    use aiprof_testkit::timelines as testing;

    fn word(text: &str) -> Vec<Sym> {
        let mut names = aiprof_model::timeline::Names::default();
        let letters: Vec<String> = text.chars().map(String::from).collect();
        letters.iter().map(|letter| names.intern(letter)).collect()
    }

    /// What is looked for, by its definition: the first end, then the first begin.
    fn first_square_by_definition(word: &[Sym]) -> Option<Square> {
        (FEWEST..=word.len()).find_map(|end| {
            (0..end / 3).find_map(|start| {
                let (half, odd) = ((end - start) / 2, (end - start) % 2);
                let is_square = word[start..start + half] == word[start + half..start + 2 * half];
                (odd == 0 && is_square).then_some(Square { start, half })
            })
        })
    }

    #[test]
    fn the_linear_search_finds_what_the_definition_says() {
        let mut seed = 1u64;
        let mut next = move |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % n
        };
        let mut found = 0;
        for round in 0..4000 {
            let (prefix, half) = (next(12) as usize, 1 + next(40) as usize);
            let letters = 1 + next(4);
            let mut letter = || char::from(b'a' + next(letters) as u8);
            let unit: String = (0..half).map(|_| letter()).collect();
            let mut text: String = (0..prefix).map(|_| letter()).collect();
            text.push_str(&unit);
            text.push_str(&unit);
            text.extend((0..round % 7).map(|_| letter()));
            let word = word(&text);
            let square = first_square(&word);
            assert_eq!(square, first_square_by_definition(&word), "{text}");
            found += usize::from(square.is_some());
        }
        assert!(found > 1000, "{found}");
    }

    #[test]
    fn a_long_trace_without_repetition_takes_linear_time() {
        // The Thue-Morse word on three letters has no square at all.
        let mut text = vec![0u32];
        while text.len() < 300_000 {
            let images = [&[0u32, 1, 2][..], &[0, 2], &[1]];
            let next = text.iter().flat_map(|letter| images[*letter as usize]);
            text = next.copied().collect();
        }
        let letters = ["a", "b", "c"];
        let mut names = aiprof_model::timeline::Names::default();
        let syms: Vec<Sym> = letters.iter().map(|letter| names.intern(letter)).collect();
        let word: Vec<Sym> = text.iter().map(|letter| syms[*letter as usize]).collect();
        assert_eq!(first_square(&word), None);
    }

    fn run_of(text: &str) -> (Iterations, String) {
        let mut timeline = testing::timeline(Dialect::Flex);
        for (index, letter) in text.chars().enumerate() {
            let name = format!("{letter} Cmpt Exec");
            // Kernel i begins at i * (i + 9) / 2, so that each interval differs.
            let ts = (index * (index + 9)) as f64 / 2.0;
            testing::slice(&mut timeline, &name, 0, ts, 1.0);
        }
        let kinds = Kinds::new(&timeline);
        let mut messages = Messages::new(Level::Info);
        let mut found = run(&timeline, &kinds, Period::Acelyzer, &mut messages);
        assert_eq!(found.len(), 1);
        let text = messages.iter().next().unwrap().text.clone();
        (found.remove(0), text)
    }

    /// The lines are what acelyzer 1.3.0 prints for the same kernels, with names whose
    /// letters it distinguishes.
    #[test]
    fn iterations_are_those_of_acelyzer() {
        for (text, line) in [
            ("abcdeabcdeabcdeabcde", LINES[0]),
            ("xyabcdeabcdeabcdezabcdeabcdeabc", LINES[1]),
            ("abcdeabcdeabcabcdeabcdeab", LINES[2]),
            ("aaaaaaaaaaaaaaaaaaaaaaa", LINES[3]),
            ("abcdefghijklmnop", LINES[4]),
            ("abcdeabcdeqabcdeqabcdeabcde", LINES[5]),
        ] {
            let (found, said) = run_of(text);
            assert_eq!(said, line, "{text}");
            assert_eq!(found.kernels, text.len());
        }
    }

    const LINES: [&str; 6] = [
        "ITSTATS: [0] avg_iteration_time=60.0, iterations=3",
        "ITSTATS: [0] avg_iteration_time=80.0, iterations=3",
        "ITSTATS: [0] avg_iteration_time=67.5, iterations=2",
        "ITSTATS: [0] avg_iteration_time=60.0, iterations=3",
        "ITSTATS: [0] avg_iteration_time=0.0, iterations=0",
        "ITSTATS: [0] avg_iteration_time=77.5, iterations=2",
    ];

    /// Kernels by their letters, and what acelyzer 1.3.0's own detection finds: number of
    /// times, and their mean. Sequences with prefixes, and with kernels that are missing
    /// or too many here and there.
    #[test]
    fn disturbed_iterations_are_those_of_acelyzer() {
        let cases = include_str!("iterations_of_acelyzer.txt");
        for case in cases.lines() {
            let mut words = case.split(' ');
            let mut next = || words.next().unwrap();
            let (found, _) = run_of(next());
            assert_eq!(found.count, next().parse::<usize>().unwrap(), "{case}");
            let mean: f64 = next().parse().unwrap();
            assert!(
                (found.mean_us - mean).abs() < 1e-6,
                "{case}: {}",
                found.mean_us
            );
        }
    }

    #[test]
    fn iterations_know_their_times_and_what_is_between_them() {
        let (found, _) = run_of("xyabcdeabcdezabcdeabcde");
        assert_eq!((found.kernels_before, found.sequence.len()), (2, 5));
        let at = |index: usize| (index * (index + 9)) as f64 / 2.0;
        let list = &found.list;
        assert_eq!(list.len(), 4);
        let starts: Vec<f64> = list.iter().map(|one| one.start_us).collect();
        assert_eq!(starts, [2, 7, 13, 18].map(at));
        assert_eq!(list[1].end_us, at(11) + 1.0);
        let followed: Vec<bool> = list.iter().map(|one| one.is_followed).collect();
        assert_eq!(followed, [true, false, true, false]);
        let intervals: Vec<f64> = found.intervals().collect();
        assert_eq!(intervals, [at(7) - at(2), at(18) - at(13)]);
    }

    #[test]
    fn few_or_no_kernels_have_no_iterations() {
        let (found, _) = run_of("aaaaaaaaa");
        assert!(found.list.is_empty() && found.mean_us == 0.0);
        let timeline = testing::timeline(Dialect::Torch);
        let mut messages = Messages::new(Level::Info);
        let kinds = Kinds::new(&timeline);
        assert!(run(&timeline, &kinds, Period::Acelyzer, &mut messages).is_empty());
    }

    /// The same behind a prefill of the decode's own kernels, of which it has not all.
    #[test]
    fn a_prefill_of_the_same_kernels_is_no_period() {
        for prefill in 1..12 {
            let mut timeline = testing::timeline(Dialect::Flex);
            for index in 0..prefill + 40 * 12 {
                let place = match index < prefill {
                    true => index,
                    false => (index - prefill) % 12,
                };
                let name = format!("d{} Cmpt Exec", char::from(b'a' + place as u8));
                testing::slice(&mut timeline, &name, 0, 30.0 * index as f64, 25.0);
            }
            let kinds = Kinds::new(&timeline);
            let mut messages = Messages::new(Level::Info);
            let found = run(&timeline, &kinds, Period::Smallest, &mut messages);
            let one = &found[0];
            let seen = (one.sequence.len(), one.count, one.kernels_before);
            assert_eq!(seen, (12, 39, prefill), "{prefill}");
        }
    }

    /// A decode of 12 kernels, 40 times at 430 us, behind a prefill of any length.
    #[test]
    fn the_smallest_period_is_found_whatever_runs_before() {
        for prefill in 0..=40 {
            let mut timeline = testing::timeline(Dialect::Flex);
            for index in 0..prefill {
                let name = format!("p{} Cmpt Exec", char::from(b'A' + index as u8));
                testing::slice(&mut timeline, &name, 0, index as f64 * 50.0, 40.0);
            }
            for index in 0..40 * 12 {
                let name = format!("d{} Cmpt Exec", char::from(b'a' + (index % 12) as u8));
                let ts = 3000.0 + 430.0 * (index / 12) as f64 + 30.0 * (index % 12) as f64;
                testing::slice(&mut timeline, &name, 0, ts, 25.0);
            }
            let kinds = Kinds::new(&timeline);
            let mut messages = Messages::new(Level::Info);
            let found = run(&timeline, &kinds, Period::Smallest, &mut messages);
            let one = &found[0];
            assert_eq!((one.sequence.len(), one.count), (12, 39), "{prefill}");
            assert_eq!(
                (one.kernels_before, one.mean_us),
                (prefill, 430.0),
                "{prefill}"
            );
            assert_eq!(one.list[7].kernel_us, 300.0);
        }
    }
}
