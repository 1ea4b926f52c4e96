//! Stretches of time that do not touch each other, in order.

use aiprof_model::timeline::{Length, Time};

/// Stretches in order, apart from each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stretches(Vec<(Time, Time)>);

impl Stretches {
    /// All time that at least one of these has; in any order.
    pub(crate) fn of(all: impl IntoIterator<Item = (Time, Time)>) -> Self {
        let mut all: Vec<_> = all.into_iter().filter(|(from, to)| from < to).collect();
        all.sort_unstable();
        let mut joined: Vec<(Time, Time)> = Vec::new();
        for (from, to) in all {
            match joined.last_mut() {
                Some((_, end)) if from <= *end => *end = to.max(*end),
                _ => joined.push((from, to)),
            }
        }
        Self(joined)
    }

    /// One of them.
    pub(crate) fn one(from: Time, to: Time) -> Self {
        match from < to {
            true => Self(vec![(from, to)]),
            false => Self::default(),
        }
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What of them is within a stretch of time.
    pub(crate) fn cut(&self, from: Time, to: Time) -> impl Iterator<Item = (Time, Time)> + '_ {
        let first = self.0.partition_point(|(_, end)| *end <= from);
        let inside = self.0.get(first..).unwrap_or_default().iter();
        let inside = inside.take_while(move |(start, _)| *start < to);
        inside.map(move |(start, end)| (from.max(*start), to.min(*end)))
    }

    /// Those that end behind the begin of all others: many small sets are compared with a large one.
    fn behind(&self, others: &Self) -> impl Iterator<Item = (Time, Time)> + '_ {
        let begin = others.0.first().map(|(from, _)| *from);
        let first = begin.map_or(0, |begin| self.0.partition_point(|(_, end)| *end <= begin));
        self.0.get(first..).unwrap_or_default().iter().copied()
    }

    /// The first of their time, in order, up to a length.
    pub(crate) fn first(&self, length: Length) -> Self {
        let mut left = length.0.max(0);
        let cut = self.iter().map_while(|(from, to)| {
            let takes = (to - from).0.min(left);
            left -= takes;
            (takes > 0).then_some((from, from + Length(takes)))
        });
        Self(cut.collect())
    }

    /// In order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Time, Time)> + '_ {
        self.0.iter().copied()
    }

    /// The first begin and the last end.
    pub(crate) fn ends(&self) -> Option<(Time, Time)> {
        Some((self.0.first()?.0, self.0.last()?.1))
    }

    /// The longest of them.
    pub(crate) fn longest(&self) -> Option<(Time, Time)> {
        self.iter().max_by_key(|(from, to)| *to - *from)
    }

    /// All of them together.
    pub(crate) fn length(&self) -> Length {
        let lengths = self.iter().map(|(from, to)| (to - from).0);
        Length(lengths.fold(0, i64::saturating_add))
    }

    /// The same, microseconds.
    pub(crate) fn us(&self) -> f64 {
        self.length().micros()
    }

    /// The part of them that is within a stretch of time.
    pub(crate) fn within(&self, from: Time, to: Time) -> Length {
        let lengths = self.cut(from, to).map(|(from, to)| (to - from).0);
        Length(lengths.fold(0, i64::saturating_add))
    }

    /// What lies between the first and the last of them, in turn.
    #[cfg(test)]
    pub(crate) fn gaps(&self) -> Self {
        let behind = self.0.iter().skip(1);
        Self(self.0.iter().zip(behind).map(|(a, b)| (a.1, b.0)).collect())
    }

    /// What both have.
    pub(crate) fn and(&self, other: &Self) -> Self {
        let (mut a, mut b) = (self.behind(other).peekable(), other.behind(self).peekable());
        let mut both = Vec::new();
        while let (Some(one), Some(two)) = (a.peek().copied(), b.peek().copied()) {
            let (from, to) = (one.0.max(two.0), one.1.min(two.1));
            if from < to {
                both.push((from, to));
            }
            match one.1 <= two.1 {
                true => a.next(),
                false => b.next(),
            };
        }
        Self(both)
    }

    /// What of these the other has not.
    pub(crate) fn without(&self, other: &Self) -> Self {
        let mut rest = Vec::new();
        let mut b = other.behind(self).peekable();
        for (mut from, to) in self.iter() {
            while b.next_if(|(_, end)| *end <= from).is_some() {}
            while let Some((start, end)) = b.peek().copied().filter(|(start, _)| *start < to) {
                if from < start {
                    rest.push((from, start));
                }
                from = from.max(end);
                if end > to {
                    break;
                }
                b.next();
            }
            if from < to {
                rest.push((from, to));
            }
        }
        Self(rest)
    }
}

/// Stretches with how much of them is before each, for many questions of [`Stretches::within`].
#[derive(Clone, Debug, Default)]
pub(crate) struct StretchSums {
    all: Stretches,
    /// The length of those before each, and of all.
    before: Vec<i64>,
}

impl StretchSums {
    pub(crate) fn new(all: Stretches) -> Self {
        let mut before = vec![0i64];
        before.extend(all.0.iter().scan(0i64, |sum, (from, to)| {
            *sum = sum.saturating_add((*to - *from).0);
            Some(*sum)
        }));
        Self { all, before }
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The part of them that is within a stretch of time.
    pub(crate) fn within(&self, from: Time, to: Time) -> Length {
        let until = |moment: Time| {
            let begun = self.all.0.partition_point(|(start, _)| *start < moment);
            let sum = self.before.get(begun).copied().unwrap_or(0);
            let last = begun.checked_sub(1).and_then(|last| self.all.0.get(last));
            let over = last.map_or(0, |(_, end)| (*end - moment).0.max(0));
            sum.saturating_sub(over)
        };
        Length(until(to).saturating_sub(until(from)).max(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(all: &[(i64, i64)]) -> Stretches {
        Stretches::of(all.iter().map(|(from, to)| (Time(*from), Time(*to))))
    }

    /// Against a table of every moment from 0 to 40.
    #[test]
    fn sets_are_what_every_moment_says() {
        let mut seed = 7u64;
        let mut draw = |below: u64| {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        let has =
            |all: &[(i64, i64)], at: i64| all.iter().any(|(from, to)| (*from..*to).contains(&at));
        for _ in 0..500 {
            let mut some = || -> Vec<(i64, i64)> {
                let count = draw(6);
                let one = |from: u64, len: u64| (from as i64, (from + len) as i64);
                (0..count).map(|_| one(draw(30), draw(10))).collect()
            };
            let (a, b) = (some(), some());
            let wanted = |keep: &dyn Fn(i64) -> bool| {
                of(&(0..40)
                    .filter(|at| keep(*at))
                    .map(|at| (at, at + 1))
                    .collect::<Vec<_>>())
            };
            let (one, two) = (of(&a), of(&b));
            assert_eq!(one.and(&two), wanted(&|at| has(&a, at) && has(&b, at)));
            let (from, to) = (draw(20) as i64, 20 + draw(20) as i64);
            let (from, to) = (Time(from), Time(to));
            assert_eq!(
                StretchSums::new(one.clone()).within(from, to),
                one.within(from, to)
            );
            assert_eq!(one.without(&two), wanted(&|at| has(&a, at) && !has(&b, at)));
        }
    }

    #[test]
    fn gaps_lie_between() {
        let all = of(&[(5, 7), (0, 2), (1, 3), (9, 9)]);
        assert_eq!(all, of(&[(0, 3), (5, 7)]));
        assert_eq!(all.gaps(), of(&[(3, 5)]));
        assert_eq!(
            (all.ends(), all.longest()),
            (Some((Time(0), Time(7))), Some((Time(0), Time(3))))
        );
    }
}
