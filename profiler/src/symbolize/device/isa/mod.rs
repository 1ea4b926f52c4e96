//! Intel's device instruction set.

/// A generation of Intel's graphics devices with an instruction encoding of its
/// own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Platform {
    /// Tiger Lake, Rocket Lake, Alder Lake, DG1 (12.0 to 12.10).
    XeLp,
    /// XeHP SDV (12.50).
    XeHp,
    /// Alchemist, Meteor Lake, Arrow Lake (12.55 to 12.57, 12.70 to 12.74).
    XeHpg,
    /// Ponte Vecchio (12.60, 12.61).
    XeHpc,
    /// Battlemage, Lunar Lake (20.x).
    Xe2,
    /// Panther Lake (30.x).
    Xe3,
    /// After Panther Lake (35.x).
    Xe3p,
}
