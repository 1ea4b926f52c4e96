//! The generations of graphics IP.

/// Graphics IP generations whose code can be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Platform {
    /// Tiger Lake, Rocket Lake, Alder Lake, DG1 (Gen12).
    XeLp,
    /// XeHP SDV.
    XeHp,
    /// DG2 (Arc A, Flex), Meteor Lake, Arrow Lake.
    XeHpg,
    /// Ponte Vecchio (Data Center GPU Max).
    XeHpc,
    /// Lunar Lake, Battlemage.
    Xe2,
    /// Panther Lake.
    Xe3,
    /// Nova Lake P, Crescent Island.
    Xe3p,
}

impl Platform {
    /// Every platform, oldest first.
    pub const ALL: [Self; 7] = [
        Self::XeLp,
        Self::XeHp,
        Self::XeHpg,
        Self::XeHpc,
        Self::Xe2,
        Self::Xe3,
        Self::Xe3p,
    ];

    /// From the graphics core family of a zebin's `.note.intelgt.compat` (note
    /// type 2), numbered as in the driver's `igfxfmid.h`. Older compilers write
    /// 0 there: then ask [`Self::from_product_family`].
    #[must_use]
    pub(crate) const fn from_gfx_core(number: u32) -> Option<Self> {
        Some(match number {
            17 | 18 => Self::XeLp,
            0x0c05 => Self::XeHp,
            0x0c07 => Self::XeHpg,
            0x0c08 => Self::XeHpc,
            0x0c09 => Self::Xe2,
            0x1e00 => Self::Xe3,
            0x2300 => Self::Xe3p,
            _ => return None,
        })
    }

    /// From the product family of a zebin's `.note.intelgt.compat` (note type
    /// 1), numbered as in the driver's `igfxfmid.h`.
    #[must_use]
    pub(crate) const fn from_product_family(number: u32) -> Option<Self> {
        Some(match number {
            29..=33 | 1210 => Self::XeLp,
            1250 => Self::XeHp,
            1270 | 1272 | 1273 => Self::XeHpg,
            1271 => Self::XeHpc,
            1274 | 1275 => Self::Xe2,
            1300 | 1340 => Self::Xe3,
            1360 | 1380 => Self::Xe3p,
            _ => return None,
        })
    }

    /// From the graphics IP version of a device (architecture and release of its
    /// `GMD_ID`): 12.0 is Tiger Lake, 12.60 Ponte Vecchio, 20.1 Battlemage.
    #[must_use]
    pub(crate) const fn from_ip_version(major: u32, minor: u32) -> Option<Self> {
        Some(match (major, minor) {
            (12, 0..=10) => Self::XeLp,
            (12, 50) => Self::XeHp,
            (12, 60 | 61) => Self::XeHpc,
            (12, 55..=57 | 70..=74) => Self::XeHpg,
            (20, _) => Self::Xe2,
            (30, _) => Self::Xe3,
            (35, _) => Self::Xe3p,
            _ => return None,
        })
    }
}
