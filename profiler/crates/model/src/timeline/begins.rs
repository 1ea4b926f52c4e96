//! When the events of a file begin, and which of these times can be true.

use super::{Event, Length, Ph, Stretch, Time};
use std::collections::BTreeMap;

/// Begins that are further than this from all others are wrong.
pub const DAY: Length = Length(86_400_000_000_000_000);

/// The begins of a file's events, by day: whatever the number of events, it needs little memory.
#[derive(Clone, Debug, Default)]
pub struct Begins {
    /// How many there are, the first and the last.
    days: BTreeMap<i64, (u64, Stretch)>,
}

impl Begins {
    /// Adds an event's begin. Names of rows have none.
    pub fn add(&mut self, event: &Event) {
        if event.ph == Ph::Metadata {
            return;
        }
        let (from, to) = (event.start, event.start);
        let day = event.start.0.div_euclid(DAY.0);
        let (count, known) = self.days.entry(day).or_insert((0, Stretch { from, to }));
        *count += 1;
        (known.from, known.to) = (known.from.min(from), known.to.max(to));
    }

    /// From the first to the last begin of those between which no day is without one, and of
    /// which one is the median of all. `None`: there are none.
    pub fn believed(&self) -> Option<Stretch> {
        let all: u64 = self.days.values().map(|(count, _)| count).sum();
        let mut before = 0;
        let (median, (_, known)) = self.days.iter().find(|(_, (count, _))| {
            before += count;
            before > all / 2
        })?;
        let mut believed = *known;
        for (_, (_, day)) in self.days.range(..*median).rev() {
            if believed.from > day.to + DAY {
                break;
            }
            believed.from = day.from;
        }
        for (_, (_, day)) in self.days.range(*median + 1..) {
            if day.from > believed.to + DAY {
                break;
            }
            believed.to = day.to;
        }
        Some(believed)
    }

    /// The first of them that can be true.
    pub fn first(&self) -> Option<Time> {
        let first = self.believed().map(|believed| believed.from);
        first.filter(|first| !first.is_edge())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::{Sym, TrackId};

    /// Begins in hours; what is believed of them.
    fn believed(hours: &[i64]) -> Option<(i64, i64)> {
        let hour = DAY.0 / 24;
        let mut begins = Begins::default();
        for at in hours {
            let start = Time(at.saturating_mul(hour));
            begins.add(&Event::new(Ph::Complete, Sym::EMPTY, TrackId(0), start));
        }
        let names = Event::new(Ph::Metadata, Sym::EMPTY, TrackId(0), Time(-9 * DAY.0));
        begins.add(&names);
        let found = begins.believed()?;
        Some((found.from.0 / hour, found.to.0 / hour))
    }

    #[test]
    fn begins_a_day_from_all_others_are_not_believed() {
        assert_eq!(believed(&[]), None);
        assert_eq!(believed(&[5]), Some((5, 5)));
        // 24 hours are no more than a day, 25 are.
        assert_eq!(believed(&[-24, 0, 1, 2, 26]), Some((-24, 26)));
        assert_eq!(believed(&[-25, 0, 1, 2, 27]), Some((0, 2)));
        assert_eq!(believed(&[27, 2, 1, 0, -25]), Some((0, 2)));
        // Three days of a machine.
        assert_eq!(believed(&[0, 20, 40, 60, 72]), Some((0, 72)));
        assert_eq!(believed(&[i64::MIN, 0, 1, i64::MAX]), Some((0, 1)));
    }
}
