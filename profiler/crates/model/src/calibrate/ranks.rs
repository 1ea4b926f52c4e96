//! The clocks of several ranks, aligned by the messages between them.
//!
//! Nothing arrives before it was sent: each message bounds how far the clocks of its two ranks can
//! differ. All bounds are taken together (a system of difference constraints, solved by shortest
//! paths), whatever graph the messages make. They give certain limits for each shift.
//!
//! Within its bounds a shift is chosen so that the fastest messages of both directions between two
//! ranks take as long. Those that have no counterpart (in a chain or ring) take as long as each
//! other. This is by least squares, which is exact where it is so. If that would move an effect
//! before its cause, it is drawn towards the middles between the bounds, which satisfy them all.

use super::bounds::Bounds;

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

/// The shift of a rank's clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shift {
    /// What is added to its times, microseconds.
    pub us: f64,
    /// Limits of the true shift, microseconds.
    pub bounds: Bounds,
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

/// Finds shifts for `ranks` ranks.
pub fn align(ranks: usize, messages: &[Messages]) -> Alignment {
    let direct = bounds(ranks, messages);
    let mut contradiction_us = 0.0;
    let mut bound = shortest(&direct, ranks);
    if !is_possible(&bound, ranks) {
        contradiction_us = least_slack(&direct, ranks);
        bound = shortest(&slackened(&direct, ranks, contradiction_us), ranks);
    }
    let middle = |rank: usize| {
        let bounds = Bounds {
            least: -bound[rank * ranks],
            most: bound[rank],
        };
        let us = match (bounds.least.is_finite(), bounds.most.is_finite()) {
            (true, true) => bounds.middle(),
            // Bounded on one side: as near as that allows.
            (true, false) => bounds.least,
            (false, true) => bounds.most,
            (false, false) => return None,
        };
        Some(Shift { us, bounds })
    };
    let mut shifts: Vec<Option<Shift>> = (0..ranks).map(middle).collect();
    even(&mut shifts, &fastest(ranks, &direct), contradiction_us);
    Alignment {
        shifts,
        contradiction_us,
    }
}

/// Each direction's fastest message: from, to, difference of times.
fn fastest(ranks: usize, direct: &[f64]) -> Vec<Messages> {
    let all = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
    let all = all.filter(|(from, to)| from != to);
    let all = all.map(|(from, to)| Messages {
        from,
        to,
        least_us: direct.get(to * ranks + from).copied().unwrap_or(f64::NAN),
    });
    all.filter(|m| m.least_us.is_finite()).collect()
}

/// Moves shifts within their bounds to where messages take as long as each other.
fn even(shifts: &mut [Option<Shift>], fastest: &[Messages], contradiction_us: f64) {
    // Unknowns: the shifts of the ranks that have one, but the first, and the time
    // of a message.
    let mut unknown = vec![None; shifts.len()];
    let mut count = 0;
    for (place, shift) in unknown.iter_mut().zip(shifts.iter()).skip(1) {
        if shift.is_some() {
            *place = Some(count);
            count += 1;
        }
    }
    if count == 0 || count > MAX_EVEN {
        return;
    }
    let usable = |rank: usize| rank == 0 || unknown.get(rank).copied().flatten().is_some();
    let fastest: Vec<Messages> = fastest
        .iter()
        .filter(|m| usable(m.from) && usable(m.to))
        .copied()
        .collect();
    let mut system = System::new(count + 1);
    let column = |rank: usize| unknown.get(rank).copied().flatten();
    // Without any other reason a message takes no time.
    system.add(&[(Some(count), 1.0)], 0.0, NO_REASON);
    for m in &fastest {
        let back = fastest.iter().find(|b| b.from == m.to && b.to == m.from);
        // time of the message = least + shift(to) - shift(from)
        let as_all = [
            (column(m.to), 1.0),
            (column(m.from), -1.0),
            (Some(count), -1.0),
        ];
        let weight = if back.is_some() { LITTLE_REASON } else { 1.0 };
        system.add(&as_all, -m.least_us, weight);
        if let Some(back) = back.filter(|_| m.from < m.to) {
            let as_back = [(column(m.to), 2.0), (column(m.from), -2.0)];
            system.add(&as_back, back.least_us - m.least_us, 1.0);
        }
    }
    let Some(found) = system.solve() else { return };
    let wish = |rank: usize| column(rank).and_then(|at| found.get(at).copied());
    let now = |shifts: &[Option<Shift>], rank: usize| {
        let shift = shifts.get(rank).copied().flatten();
        shift.map_or(0.0, |shift| shift.us)
    };
    // As far from the middles as keeps every message behind its sending.
    let share = fastest.iter().fold(1.0, |share: f64, m| {
        let time = |of: &dyn Fn(usize) -> f64| m.least_us + of(m.to) - of(m.from);
        let middle = time(&|rank| now(shifts, rank)) + contradiction_us;
        let wished = time(&|rank| wish(rank).unwrap_or(0.0)) + contradiction_us;
        match wished < 0.0 && wished < middle {
            true => share.min((middle / (middle - wished)).clamp(0.0, 1.0)),
            false => share,
        }
    });
    for (rank, shift) in shifts.iter_mut().enumerate() {
        if let (Some(shift), Some(wish)) = (shift, wish(rank)) {
            shift.us += share * (wish - shift.us);
        }
    }
}

/// Most ranks for which the system is solved: it is dense.
const MAX_EVEN: usize = 1024;
/// Weight of "as long as all others" where there is a message back to compare with.
const LITTLE_REASON: f64 = 0.03;
/// Weight of "no time at all".
const NO_REASON: f64 = 1e-4;

/// Linear least squares by normal equations.
struct System {
    size: usize,
    /// Symmetric, row by row.
    matrix: Vec<f64>,
    right: Vec<f64>,
}

impl System {
    fn new(size: usize) -> Self {
        Self {
            size,
            matrix: vec![0.0; size * size],
            right: vec![0.0; size],
        }
    }

    /// Adds an equation: the sum of coefficients times unknowns is `value`. Terms
    /// without a column are 0.
    fn add(&mut self, terms: &[(Option<usize>, f64)], value: f64, weight: f64) {
        let weight = weight * weight;
        let terms = terms
            .iter()
            .filter_map(|(column, c)| Some(((*column)?, *c)));
        let terms: Vec<(usize, f64)> = terms.collect();
        for (row, a) in &terms {
            for (column, b) in &terms {
                self.matrix[row * self.size + column] += weight * a * b;
            }
            self.right[*row] += weight * a * value;
        }
    }

    /// Gauss elimination with pivots. `None`: the equations have no single solution.
    fn solve(mut self) -> Option<Vec<f64>> {
        let n = self.size;
        for step in 0..n {
            let pivot = (step..n).max_by(|a, b| {
                let size = |row: &usize| self.matrix[row * n + step].abs();
                size(a).total_cmp(&size(b))
            })?;
            if self.matrix[pivot * n + step].abs() < 1e-14 {
                return None;
            }
            if pivot != step {
                (0..n).for_each(|c| self.matrix.swap(pivot * n + c, step * n + c));
                self.right.swap(pivot, step);
            }
            for row in step + 1..n {
                let factor = self.matrix[row * n + step] / self.matrix[step * n + step];
                if factor != 0.0 {
                    (step..n).for_each(|c| {
                        self.matrix[row * n + c] -= factor * self.matrix[step * n + c];
                    });
                    self.right[row] -= factor * self.right[step];
                }
            }
        }
        for row in (0..n).rev() {
            let known: f64 = (row + 1..n)
                .map(|c| self.matrix[row * n + c] * self.right[c])
                .sum();
            self.right[row] = (self.right[row] - known) / self.matrix[row * n + row];
        }
        self.right
            .iter()
            .all(|x| x.is_finite())
            .then_some(self.right)
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

/// Bounds between different ranks with this much added; a rank has no bound to itself.
fn slackened(direct: &[f64], ranks: usize, slack: f64) -> Vec<f64> {
    let all = direct.iter().enumerate();
    all.map(|(at, bound)| match at % (ranks + 1) {
        0 => *bound,
        _ => bound + slack,
    })
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
        if is_possible(&shortest(&slackened(direct, ranks, middle), ranks), ranks) {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There and back a message takes 2 us less than nothing: each way gives half of that, also
    /// the one whose bound is 0.
    #[test]
    fn a_bound_of_zero_gives_way_like_any_other() {
        let message = |from, to, least_us| Messages { from, to, least_us };
        let found = align(2, &[message(0, 1, 0.0), message(1, 0, -2.0)]);
        assert!((found.contradiction_us - 1.0).abs() < 1e-6, "{found:?}");
    }
}
