//! How far off a number may be: by as much on both sides, or between limits.

/// A number and its error bound, in one unit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Uncertain {
    /// What was found.
    pub value: f64,
    /// The true number is within this of it.
    pub error: f64,
}

/// Limits of a number; infinite where nothing bounds it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// The true number is at least this.
    pub least: f64,
    /// And at most this.
    pub most: f64,
}

impl Bounds {
    /// No limits.
    pub const NONE: Self = Self {
        least: f64::NEG_INFINITY,
        most: f64::INFINITY,
    };

    /// The limits of a number with an error bound.
    pub fn around(of: Uncertain) -> Self {
        let Uncertain { value, error } = of;
        Self {
            least: value,
            most: value,
        }
        .widened(error)
    }

    /// Limits that are farther apart, by as much on each side.
    pub fn widened(self, by: f64) -> Self {
        Self {
            least: self.least - by,
            most: self.most + by,
        }
    }

    /// Limits of the number and what is added to it.
    pub fn plus(self, more: f64) -> Self {
        Self {
            least: self.least + more,
            most: self.most + more,
        }
    }

    /// Both limits together. They may contradict each other, see [`Self::is_possible`].
    pub fn and(self, other: Self) -> Self {
        Self {
            least: self.least.max(other.least),
            most: self.most.min(other.most),
        }
    }

    /// Whether any number is within them.
    pub fn is_possible(self) -> bool {
        self.least <= self.most
    }

    /// Whether a number is within them.
    pub fn contains(self, value: f64) -> bool {
        self.least <= value && value <= self.most
    }

    /// The number in the middle.
    pub fn middle(self) -> f64 {
        (self.least + self.most) / 2.0
    }

    /// The number within possible limits that is nearest to `value`.
    pub fn nearest(self, value: f64) -> Uncertain {
        let value = value.max(self.least).min(self.most);
        Uncertain {
            value,
            error: (value - self.least).max(self.most - value),
        }
    }
}
