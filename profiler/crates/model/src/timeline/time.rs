//! Times and lengths of a timeline: whole picoseconds, so that spans that touch in the
//! source touch here, and what is a nanosecond apart stays so.

use std::ops::{Add, Sub};

/// Picoseconds of a microsecond and of a nanosecond.
const OF_MICRO: f64 = 1e6;
const OF_NANO: i64 = 1000;

/// A moment: picoseconds since the timeline's origin. Reaches 106 days either way;
/// what lies beyond is at the edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub i64);

/// A length of time in picoseconds; negative: backwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Length(pub i64);

/// A stretch of time, with both of its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Its begin.
    pub from: Time,
    /// Its end.
    pub to: Time,
}

impl Stretch {
    /// All time there is.
    pub const ALL: Self = Self {
        from: Time(i64::MIN),
        to: Time(i64::MAX),
    };
    /// No time.
    pub const NONE: Self = Self {
        from: Time(i64::MAX),
        to: Time(i64::MIN),
    };

    /// The stretch of which this one gives the ends as times since `first`. An end that is as
    /// early or late as times get stays.
    pub fn since(self, first: Time) -> Self {
        let since = |end: Time| match end.is_edge() {
            true => end,
            false => end + (first - Time::ORIGIN),
        };
        Self {
            from: since(self.from),
            to: since(self.to),
        }
    }
}

impl Time {
    /// The timeline's origin.
    pub const ORIGIN: Self = Self(0);
    /// The earliest there is, and whatever is before it: a time of 0 in a file that
    /// counts from 1970.
    pub const FIRST: Self = Self(i64::MIN);

    /// Whether it is as early or late as times get, or beyond.
    pub fn is_edge(self) -> bool {
        matches!(self.0, i64::MIN | i64::MAX)
    }

    /// Whether it is a whole number of microseconds from the origin.
    pub fn is_whole_micros(self) -> bool {
        self.0 % OF_MICRO as i64 == 0
    }

    /// From microseconds since the origin, to the nearest picosecond. What is no number
    /// is the origin.
    pub fn from_micros(micros: f64) -> Self {
        Self((micros * OF_MICRO).round() as i64)
    }

    /// From nanoseconds since the origin.
    pub fn from_nanos(nanos: i64) -> Self {
        Self(nanos.saturating_mul(OF_NANO))
    }

    /// From whole microseconds since the origin.
    pub fn from_whole_micros(micros: i64) -> Self {
        Self(micros.saturating_mul(OF_MICRO as i64))
    }

    /// Microseconds since the origin, for arithmetic within an analysis.
    pub fn micros(self) -> f64 {
        self.0 as f64 / OF_MICRO
    }

    /// Whole nanoseconds since the origin, rounded down.
    pub fn nanos(self) -> i64 {
        self.0.div_euclid(OF_NANO)
    }

    /// The nearest whole nanosecond since the origin; of two the later.
    pub fn nearest_nanos(self) -> i64 {
        let rest = self.0.rem_euclid(OF_NANO);
        self.nanos() + i64::from(2 * rest >= OF_NANO)
    }
}

impl Length {
    /// None.
    pub const ZERO: Self = Self(0);

    /// Whether it is a whole number of microseconds.
    pub fn is_whole_micros(self) -> bool {
        self.0 % OF_MICRO as i64 == 0
    }

    /// From microseconds, to the nearest picosecond. What is no number is zero.
    pub fn from_micros(micros: f64) -> Self {
        Self((micros * OF_MICRO).round() as i64)
    }

    /// From nanoseconds.
    pub fn from_nanos(nanos: i64) -> Self {
        Self(nanos.saturating_mul(OF_NANO))
    }

    /// Microseconds, for arithmetic within an analysis.
    pub fn micros(self) -> f64 {
        self.0 as f64 / OF_MICRO
    }

    /// Whole nanoseconds, rounded down.
    pub fn nanos(self) -> i64 {
        self.0.div_euclid(OF_NANO)
    }
}

impl Add<Length> for Time {
    type Output = Self;

    fn add(self, length: Length) -> Self {
        Self(self.0.saturating_add(length.0))
    }
}

impl Sub<Length> for Time {
    type Output = Self;

    fn sub(self, length: Length) -> Self {
        Self(self.0.saturating_sub(length.0))
    }
}

impl Sub for Time {
    type Output = Length;

    fn sub(self, earlier: Self) -> Length {
        Length(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Length {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_convert_and_edges_hold() {
        assert_eq!(Time::from_micros(12.345_678), Time(12_345_678));
        assert_eq!(Time::from_micros(12.345_678).micros(), 12.345_678);
        assert_eq!(Time::from_nanos(-3).nanos(), -3);
        assert_eq!(Time(-1).nanos(), -1);
        let nearest = [-1501, -1500, -499, 499, 500, 1500].map(|ps| Time(ps).nearest_nanos());
        assert_eq!(nearest, [-2, -1, 0, 0, 1, 2]);
        assert_eq!(Time(i64::MAX).nearest_nanos(), i64::MAX / 1000 + 1);
        assert_eq!(Time::from_whole_micros(i64::MIN), Time::FIRST);
        assert_eq!(Length::from_micros(f64::NAN), Length::ZERO);
        assert_eq!(Time::from_micros(1e300), Time(i64::MAX));
        assert_eq!(Time(i64::MAX) + Length(1), Time(i64::MAX));
        assert_eq!(Time(5) - Time(7), Length(-2));
    }
}
