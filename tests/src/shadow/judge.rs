//! Compares aiprof's stack at each stop with the truth.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use aiprof_common::{ADDR_EXACT, ADDR_GUESSED, is_caller_guessed};

use super::{Stopped, Truth};

/// Most wrong stacks that are shown.
const SHOWN: usize = 12;
/// Frames of them.
const SHOWN_FRAMES: usize = 7;

/// A stack as aiprof recorded it.
#[derive(Clone, Debug)]
pub struct Sampled {
    /// CLOCK_MONOTONIC, ns.
    pub time: u64,
    /// The thread.
    pub tid: u32,
    /// Addresses, leaf first.
    pub user: Vec<u64>,
    /// Why it ends; `None`: it is complete.
    pub cut: Option<String>,
}

/// What a stack is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The true chain.
    Complete,
    /// Its beginning; why it ends.
    Cut(String),
    /// As the two above, with a guess in it that is right.
    GoodGuess,
    /// True up to a guess, which is wrong.
    BadGuess,
    /// False, and unmarked.
    Wrong(String),
}

/// Compares a stack with the true chain.
#[must_use]
pub(super) fn verdict(truth: &[u64], sampled: &Sampled) -> Verdict {
    let mut guessed = false;
    for (depth, &raw) in sampled.user.iter().enumerate() {
        let mark = is_caller_guessed(raw);
        let address = if mark { raw & !ADDR_GUESSED } else { raw };
        if truth.get(depth) != Some(&address) {
            return match guessed {
                true => Verdict::BadGuess,
                false => Verdict::Wrong(format!("at depth {depth}")),
            };
        }
        guessed |= mark;
    }
    match (&sampled.cut, guessed) {
        (None, _) if sampled.user.len() != truth.len() => match guessed {
            true => Verdict::BadGuess,
            false => Verdict::Wrong("ends early".into()),
        },
        (_, true) => Verdict::GoodGuess,
        (None, _) => Verdict::Complete,
        (Some(cause), _) => Verdict::Cut(cause.clone()),
    }
}

/// The verdicts on a program.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// Stops that were sampled.
    pub sampled: u64,
    /// Stops without a sample.
    pub missing: u64,
    /// See `Verdict`.
    pub complete: u64,
    /// By cause.
    pub cut: BTreeMap<String, u64>,
    /// See `Verdict`.
    pub good_guesses: u64,
    /// See `Verdict`.
    pub bad_guesses: u64,
    /// See `Verdict`.
    pub wrong: u64,
    /// Some of what is wrong, or cut, each kind once.
    pub examples: BTreeMap<String, (u64, String)>,
}

/// Judges all stops of a program.
#[must_use]
pub fn judge(truth: &Truth, samples: &HashMap<u32, Vec<Sampled>>) -> Account {
    let mut account = Account::default();
    for stop in &truth.stops {
        let of_thread = samples.get(&stop.tid).map_or(&[][..], Vec::as_slice);
        let first = of_thread.partition_point(|sample| sample.time < stop.from);
        let rest = of_thread.get(first..).unwrap_or_default();
        let Some(sampled) = rest.first().filter(|sample| sample.time <= stop.to) else {
            account.missing += 1;
            continue;
        };
        account.sampled += 1;
        let verdict = verdict(&stop.chain, sampled);
        match &verdict {
            Verdict::Complete => account.complete += 1,
            Verdict::Cut(cause) => *account.cut.entry(cause.clone()).or_default() += 1,
            Verdict::GoodGuess => account.good_guesses += 1,
            Verdict::BadGuess => account.bad_guesses += 1,
            Verdict::Wrong(_) => account.wrong += 1,
        }
        account.keep(&verdict, stop, sampled, truth);
    }
    account
}

impl Account {
    /// Keeps an example of each kind of flaw.
    fn keep(&mut self, verdict: &Verdict, stop: &Stopped, sampled: &Sampled, truth: &Truth) {
        let what = match verdict {
            Verdict::Complete | Verdict::GoodGuess => return,
            Verdict::Cut(cause) => format!("cut, {cause}"),
            Verdict::BadGuess => "wrong guess".to_owned(),
            Verdict::Wrong(how) => format!("WRONG, {how}"),
        };
        let maps = truth.maps.get(stop.run).map_or("", String::as_str);
        let at = sampled.user.len().saturating_sub(1);
        let last = stop.chain.get(at).or(stop.chain.last()).copied();
        let place = place(maps, last.unwrap_or_default());
        let key = format!(
            "{what}: {}",
            place.rsplit_once("000").map_or(&*place, |_| &place)
        );
        let mut text = String::new();
        let lists = [("truth", &stop.chain), ("aiprof", &sampled.user)];
        for (name, chain) in lists {
            let _ = write!(text, "\n      {name:6}");
            for &address in chain.iter().take(SHOWN_FRAMES) {
                let _ = write!(text, " {}", self::place(maps, address));
            }
            let _ = write!(text, " ({})", chain.len());
        }
        let entry = self.examples.entry(key).or_insert((0, text));
        entry.0 += 1;
    }

    /// Guesses, right and wrong.
    #[must_use]
    pub fn guesses(&self) -> u64 {
        self.good_guesses + self.bad_guesses
    }

    /// Cut stacks.
    #[must_use]
    pub fn cuts(&self) -> u64 {
        self.cut.values().sum()
    }

    /// One line of a table: stops, complete, cut, guesses right and wrong, wrong.
    #[must_use]
    pub fn row(&self) -> String {
        let share = |n: u64| 100.0 * n as f64 / self.sampled.max(1) as f64;
        format!(
            "{} stops: complete {:.2} %, cut {:.2} %, guessed {:.2} % ({} of them wrong), WRONG {}; {} not sampled",
            self.sampled,
            share(self.complete),
            share(self.cuts()),
            share(self.guesses()),
            self.bad_guesses,
            self.wrong,
            self.missing
        )
    }

    /// The most frequent flaws.
    #[must_use]
    pub fn flaws(&self) -> String {
        let mut flaws: Vec<_> = self.examples.iter().collect();
        flaws.sort_by_key(|(what, (n, _))| (!what.contains("WRONG"), std::cmp::Reverse(*n)));
        let mut text = String::new();
        for (what, (n, example)) in flaws.into_iter().take(SHOWN) {
            let _ = write!(text, "\n   {n} x {what}{example}");
        }
        text
    }
}

/// An address as file and offset.
fn place(maps: &str, address: u64) -> String {
    let plain = address & !(ADDR_EXACT | ADDR_GUESSED);
    let marks = match (address & ADDR_EXACT != 0, is_caller_guessed(address)) {
        (true, _) => "!",
        (_, true) => "?",
        _ => "",
    };
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let range = words.next().and_then(|range| range.split_once('-'));
        let Some((Some(start), Some(end))) = range.map(|(a, b)| (hex(a), hex(b))) else {
            continue;
        };
        if (start..end).contains(&plain) {
            let offset = words.nth(1).and_then(hex).unwrap_or_default();
            let path = words.nth(2).unwrap_or("anonymous");
            let name = path.rsplit('/').next().unwrap_or(path);
            return format!("{name}+{:x}{marks}", plain - start + offset);
        }
    }
    format!("{plain:x}{marks}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampled(user: &[u64], cut: Option<&str>) -> Sampled {
        Sampled {
            time: 0,
            tid: 0,
            user: user.to_vec(),
            cut: cut.map(str::to_owned),
        }
    }

    #[test]
    fn only_what_is_true_or_says_that_it_may_not_be_passes() {
        let truth = [1, 2, 3, 4];
        let of = |user: &[u64], cut| verdict(&truth, &sampled(user, cut));
        assert_eq!(of(&[1, 2, 3, 4], None), Verdict::Complete);
        assert_eq!(of(&[1, 2], Some("x")), Verdict::Cut("x".into()));
        assert!(matches!(of(&[1, 2], None), Verdict::Wrong(_)));
        assert!(matches!(of(&[1, 3, 4], None), Verdict::Wrong(_)));
        assert!(matches!(of(&[1, 3], Some("x")), Verdict::Wrong(_)));
        assert!(matches!(of(&[1, 2, 3, 4, 5], None), Verdict::Wrong(_)));
        let guess = 1 | ADDR_GUESSED;
        assert_eq!(of(&[guess, 2, 3, 4], None), Verdict::GoodGuess);
        assert_eq!(of(&[guess, 2], Some("x")), Verdict::GoodGuess);
        assert_eq!(of(&[guess, 3, 4], None), Verdict::BadGuess);
        assert!(matches!(
            of(&[1, 3 | ADDR_GUESSED, 4], None),
            Verdict::Wrong(_)
        ));
    }
}
