//! What of a device's operation an event covers, by its five counter values.

/// What an event covers of its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Data to the device: TS1 to TS2.
    DmaIn,
    /// Preparation: TS2 to TS3.
    Prep,
    /// Computation: TS3 to TS4.
    Exec,
    /// Data back: TS4 to TS5.
    DmaOut,
    /// All of it: TS1 to TS5.
    Whole,
}

impl Phase {
    /// The phase that an event's name shows.
    pub fn of(name: &str) -> Self {
        let parts = [
            (" DmaI", Self::DmaIn),
            (" Cmpt Prep", Self::Prep),
            (" Cmpt Exec", Self::Exec),
            (" DmaO", Self::DmaOut),
        ];
        let found = parts.iter().find(|(part, _)| name.contains(part));
        found.map_or(Self::Whole, |(_, phase)| *phase)
    }

    /// Indices of the counter values at its begin and its end.
    pub fn ends(self) -> (usize, usize) {
        match self {
            Self::DmaIn => (0, 1),
            Self::Prep => (1, 2),
            Self::Exec => (2, 3),
            Self::DmaOut => (3, 4),
            Self::Whole => (0, 4),
        }
    }
}
