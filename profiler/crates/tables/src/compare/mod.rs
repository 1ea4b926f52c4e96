//! What changed between two recordings, and what may be chance: shares of samples, and
//! lengths of calls.
//!
//! Every change has an interval of 95 %. With hundreds of rows some intervals miss the truth. So a
//! row is *called* changed only where its chance holds against all rows that are compared. That is
//! Holm's correction, 5 % for the whole table; larger rows have a larger part of these.

mod chance;
mod findings;
pub mod shares;
pub mod spread;
pub mod traces;
mod work;

pub use chance::{hold, student_beyond, student_quantile};
pub use work::TraceWork;

/// Probability that an interval misses the truth, and that a table without any change
/// calls one.
const MISSED: f64 = 0.05;

/// The verdict on a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// More than chance.
    Changed,
    /// No interval is known, so there is no verdict.
    NotKnown,
    /// It may be chance.
    WithinNoise,
}

impl Verdict {
    /// In a word or two.
    pub fn word(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::NotKnown => "no interval",
            Self::WithinNoise => "within noise",
        }
    }
}

/// A difference with its uncertainty.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Difference {
    /// Value before.
    pub before: f64,
    /// Value after.
    pub after: f64,
    /// Half of the 95 % interval around the change; `None`: not known.
    pub half: Option<f64>,
    /// Probability of such a change, or a larger one, where there is none.
    pub chance: Option<f64>,
}

impl Difference {
    /// After less before.
    pub fn change(&self) -> f64 {
        self.after - self.before
    }
}
