//! Times that `aiprof analyze` begins and ends at.

use super::values;
use aiprof_model::timeline::Time;

/// A time of `--from` and `--to`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Moment {
    /// Microseconds, as the trace has them.
    Us(f64),
    /// Since the first event.
    Since(Time),
}

impl Moment {
    /// Microseconds, if it is such a time.
    pub(super) fn us(self) -> Option<f64> {
        match self {
            Self::Us(us) => Some(us),
            Self::Since(_) => None,
        }
    }

    /// A time since the first event, if it is such.
    pub(super) fn since(self) -> Option<Time> {
        match self {
            Self::Us(_) => None,
            Self::Since(time) => Some(time),
        }
    }
}

/// Parses `10s` and the like, or microseconds.
///
/// # Errors
/// What it must look like.
pub(super) fn parse_moment(text: &str) -> Result<Moment, String> {
    if let Ok(us) = text.parse::<f64>() {
        return Ok(Moment::Us(us));
    }
    // Events that stand further behind in the file may be earlier than the first.
    let (sign, text) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    let longer = |_| values::parse_duration(text).map(|long| long.as_nanos() as u64);
    let ns = values::parse_span(text).or_else(longer);
    let ns = ns.ok().and_then(|ns| i64::try_from(ns).ok());
    ns.map(|ns| sign * ns)
        .map(|ns| Moment::Since(Time::from_nanos(ns)))
        .ok_or_else(|| {
            "expected a time since the first event, such as 10s, 1.5ms or 2m, or a number of \
             microseconds as in the trace"
                .to_owned()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_since_the_first_event_or_as_in_the_trace() {
        let since = |us| Ok(Moment::Since(Time::from_whole_micros(us)));
        assert_eq!(parse_moment("10s"), since(10_000_000));
        assert_eq!(parse_moment("1.5ms"), since(1500));
        assert_eq!(parse_moment("0s"), since(0));
        assert_eq!(parse_moment("2m"), since(120_000_000));
        assert_eq!(parse_moment("1700.5"), Ok(Moment::Us(1700.5)));
        assert_eq!(parse_moment("-1.5ms"), since(-1500));
        for text in ["", "x", "s", "10 s", "--1s", "-"] {
            assert!(parse_moment(text).is_err(), "{text}");
        }
    }
}
