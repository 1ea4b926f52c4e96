//! The clocks of several ranks, aligned by the messages between them.
//!
//! Nothing arrives before it was sent: each message bounds how far the clocks of its
//! two ranks can differ. All bounds are taken together (a system of difference
//! constraints, solved by shortest paths), whatever graph the messages make. A rank
//! gets the middle between its bounds, which is right where the fastest messages of
//! both directions take as long; the middles satisfy every bound, so no effect is
//! moved before its cause.

/// Messages of one direction between two ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Messages {
    /// Sender.
    pub from: usize,
    /// Receiver.
    pub to: usize,
    /// The least difference of the receiver's time of arrival and the sender's of
    /// sending, each by its own clock, microseconds.
    pub least_us: f64,
}

/// How a rank's clock is to be shifted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shift {
    /// What is added to its times, microseconds.
    pub us: f64,
    /// The true shift is at least this.
    pub least_us: f64,
    /// And at most this.
    pub most_us: f64,
}

/// Shifts of all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Alignment {
    /// By rank, the first is not shifted; `None`: no message leads to it.
    pub shifts: Vec<Option<Shift>>,
    /// By how much messages arrive before they were sent, at least for one of them,
    /// whatever the shifts are: times are that wrong. 0 as a rule.
    pub contradiction_us: f64,
}

/// Finds shifts for so many ranks.
pub fn align(ranks: usize, messages: &[Messages]) -> Alignment {
    let direct = bounds(ranks, messages);
    let mut contradiction_us = 0.0;
    let mut bound = shortest(&direct, ranks);
    if !is_possible(&bound, ranks) {
        contradiction_us = least_slack(&direct, ranks);
        bound = shortest(&slackened(&direct, contradiction_us), ranks);
    }
    let shift = |rank: usize| {
        let (most, least) = (bound[rank], -bound[rank * ranks]);
        let us = match (least.is_finite(), most.is_finite()) {
            (true, true) => (least + most) / 2.0,
            // Bounded on one side: as near as that allows.
            (true, false) => least,
            (false, true) => most,
            (false, false) => return None,
        };
        Some(Shift {
            us,
            least_us: least,
            most_us: most,
        })
    };
    Alignment {
        shifts: (0..ranks).map(shift).collect(),
        contradiction_us,
    }
}

/// `[i * ranks + j]`: the most by which j's shift exceeds i's, by direct messages.
fn bounds(ranks: usize, messages: &[Messages]) -> Vec<f64> {
    let mut bound = vec![f64::INFINITY; ranks * ranks];
    (0..ranks).for_each(|i| bound[i * ranks + i] = 0.0);
    for m in messages {
        let sound = m.from < ranks && m.to < ranks && m.from != m.to && m.least_us.is_finite();
        if sound {
            // least + shift(to) - shift(from) >= 0
            let at = &mut bound[m.to * ranks + m.from];
            *at = at.min(m.least_us);
        }
    }
    bound
}

/// The same by all ways (Floyd and Warshall).
fn shortest(direct: &[f64], ranks: usize) -> Vec<f64> {
    let mut bound = direct.to_vec();
    for via in 0..ranks {
        for from in 0..ranks {
            let first = bound[from * ranks + via];
            if first.is_finite() {
                for to in 0..ranks {
                    let way = first + bound[via * ranks + to];
                    let at = &mut bound[from * ranks + to];
                    *at = at.min(way);
                }
            }
        }
    }
    bound
}

fn is_possible(bound: &[f64], ranks: usize) -> bool {
    (0..ranks).all(|i| bound[i * ranks + i] > -1e-9)
}

fn slackened(direct: &[f64], slack: f64) -> Vec<f64> {
    direct
        .iter()
        .map(|b| if *b == 0.0 { 0.0 } else { b + slack })
        .collect()
}

/// The least that, added to every difference, makes them possible.
fn least_slack(direct: &[f64], ranks: usize) -> f64 {
    let most = direct
        .iter()
        .filter(|b| b.is_finite())
        .fold(0.0, |m: f64, b| m.max(-b));
    let (mut low, mut high) = (0.0, most.max(1e-6));
    for _ in 0..48 {
        let middle = (low + high) / 2.0;
        if is_possible(&shortest(&slackened(direct, middle), ranks), ranks) {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
}
