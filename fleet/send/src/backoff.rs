//! How long to wait before a request is tried again.

use std::time::{Duration, SystemTime};

/// Shortest wait.
pub(crate) const SHORTEST: Duration = Duration::from_secs(1);
/// Longest wait that is chosen here.
pub(crate) const LONGEST: Duration = Duration::from_secs(300);
/// Longest wait that a server can ask for.
pub(crate) const MAX_ASKED: Duration = Duration::from_secs(3600);

/// Waits that double with each failure, with jitter, so that the senders of many hosts do not
/// come back at the same time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// After a success.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The wait after another failure; `asked`: the wait that the server requested.
    pub(crate) fn next(&mut self, pace: Pace, asked: Option<Duration>) -> Duration {
        // 2 s, 4 s, ... of which the wait is at least half.
        let doubled = SHORTEST * 2u32.saturating_pow(self.failures.saturating_add(1).min(9));
        self.failures = self.failures.saturating_add(1);
        let most = match pace {
            Pace::Normal => doubled.min(LONGEST),
            Pace::Slow => LONGEST,
        };
        let own = most.mul_f64(0.5 + 0.5 * fastrand::f64()).max(SHORTEST);
        match asked {
            // Not before the time, and not all at it.
            Some(asked) => {
                let asked = asked.min(MAX_ASKED);
                // Nor sooner than without being asked: some ask for no wait at all.
                (asked + own.min(asked / 10 + SHORTEST)).max(own)
            }
            None => own,
        }
    }
}

/// How soon a request is worth another try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Soon at first: the server or the network may be back at once.
    Normal,
    /// At the longest backoff: somebody has to change something.
    Slow,
}

/// The wait that `Retry-After` asks for: seconds, or a date.
pub(crate) fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse::<u64>() {
        return Some(Duration::from_secs(seconds).min(MAX_ASKED));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(now).unwrap_or_default().min(MAX_ASKED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_within_their_bounds() {
        for _ in 0..100 {
            let mut backoff = Backoff::default();
            for at in 0..40u32 {
                let most = LONGEST.min(SHORTEST * 2u32.pow((at + 1).min(20)));
                let wait = backoff.next(Pace::Normal, None);
                assert!(
                    wait >= SHORTEST && wait >= most / 2 && wait <= most,
                    "{at}: {wait:?}"
                );
            }
            assert_eq!(backoff.failures, 40);
            backoff.reset();
            assert!(backoff.next(Pace::Normal, None) <= SHORTEST * 2);
            assert!(backoff.next(Pace::Slow, None) >= LONGEST / 2);
        }
    }

    #[test]
    fn waits_differ() {
        let wait = || Backoff::default().next(Pace::Slow, None);
        let first = wait();
        assert!((0..10).any(|_| wait() != first));
    }

    #[test]
    fn a_server_that_asks_for_a_wait_gets_it() {
        let asked = Duration::from_secs(120);
        for _ in 0..100 {
            let wait = Backoff::default().next(Pace::Normal, Some(asked));
            assert!(wait >= asked && wait <= asked + asked / 5, "{wait:?}");
        }
        let mut backoff = Backoff::default();
        for _ in 0..20 {
            let wait = backoff.next(Pace::Normal, Some(Duration::ZERO));
            assert!(wait >= SHORTEST, "{wait:?}");
        }
        let wait = backoff.next(Pace::Normal, Some(Duration::from_secs(1)));
        assert!(wait >= LONGEST / 2, "{wait:?}");
        let wait = Backoff::default().next(Pace::Normal, Some(Duration::MAX));
        assert!(wait <= MAX_ASKED * 2);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let seconds = |value| retry_after(value, now).map(|wait| wait.as_secs());
        assert_eq!(seconds(" 17 "), Some(17));
        assert_eq!(seconds("Sun, 06 Nov 1994 08:50:07 GMT"), Some(30));
        assert_eq!(seconds("Sun, 06 Nov 1994 08:49:07 GMT"), Some(0));
        assert_eq!(seconds("18446744073709551615"), Some(3600));
        for wrong in ["", "-1", "1.5", "soon", "99999999999999999999999"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }
}
