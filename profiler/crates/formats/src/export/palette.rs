//! Colours of flame graphs: one hue per kind of code, one shade per name.

use super::names;
use aiprof_model::profile::FrameKind;

/// Red, green and blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Color {
    pub(super) r: u8,
    pub(super) g: u8,
    pub(super) b: u8,
}

impl Color {
    pub(super) const fn new(r: u8, g: u8, b: u8) -> Self {
        Self { r, g, b }
    }
}

impl std::fmt::Display for Color {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "#{:02x}{:02x}{:02x}", self.r, self.g, self.b)
    }
}

/// The kind of a frame that its colour shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Hue {
    /// Process name and id, and the frame that holds everything.
    Process,
    Native,
    /// Native, with `::` in its name.
    Scoped,
    Inlined,
    Kernel,
    /// JIT and interpreter.
    Managed,
    DeviceSoftware,
    DeviceHardware,
    Unknown,
}

impl Hue {
    /// The hue of a frame by its folded name.
    pub(super) fn of_frame(name: &str) -> Self {
        match names::kind_of_suffix(name) {
            Some(FrameKind::Inlined) => Self::Inlined,
            Some(FrameKind::Kernel) => Self::Kernel,
            Some(FrameKind::Jit | FrameKind::Interpreter | FrameKind::Operator) => Self::Managed,
            Some(FrameKind::DeviceSoftware) => Self::DeviceSoftware,
            Some(FrameKind::DeviceHardware) => Self::DeviceHardware,
            _ if names::is_bracketed(name) => Self::Unknown,
            // Between what the host does and what it had a device do.
            None if name == "-" => Self::Process,
            None if name.contains("::") => Self::Scoped,
            _ => Self::Native,
        }
    }

    /// Name in the legend.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Native => "native",
            Self::Scoped => "native, C++ or Rust (::)",
            Self::Inlined => "inlined",
            Self::Kernel => "kernel",
            Self::Managed => "JIT, interpreter, PyTorch",
            Self::DeviceSoftware => "device software",
            Self::DeviceHardware => "device hardware",
            Self::Unknown => "unknown",
        }
    }

    /// Class of its frames in the picture.
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Native => "native",
            Self::Scoped => "scoped",
            Self::Inlined => "inlined",
            Self::Kernel => "kernel",
            Self::Managed => "managed",
            Self::DeviceSoftware => "software",
            Self::DeviceHardware => "hardware",
            Self::Unknown => "unknown",
        }
    }

    /// Hue in degrees, saturation and lightness in percent. Light enough for
    /// black text, and apart in lightness too, for those who see fewer hues.
    fn hsl(self) -> (f64, f64, f64) {
        match self {
            Self::Process => (210.0, 14.0, 86.0),
            Self::Native => (48.0, 90.0, 64.0),
            Self::Scoped => (69.0, 62.0, 54.0),
            Self::Inlined => (176.0, 45.0, 64.0),
            Self::Kernel => (16.0, 86.0, 71.0),
            Self::Managed => (112.0, 48.0, 62.0),
            Self::DeviceSoftware => (212.0, 78.0, 72.0),
            Self::DeviceHardware => (276.0, 62.0, 76.0),
            Self::Unknown => (0.0, 0.0, 72.0),
        }
    }

    /// The colour in the middle of the shades.
    pub(super) fn base(self) -> Color {
        let (h, s, l) = self.hsl();
        rgb(h, s, l)
    }

    /// The colour of a name: the same in every flame graph.
    pub(super) fn shade(self, name: &str) -> Color {
        let hash = hash(name);
        // Two independent numbers from -1 to 1.
        let part = |shift: u32| f64::from((hash >> shift) as u8) / 127.5 - 1.0;
        let (h, s, l) = self.hsl();
        let spread = if self == Self::Process { 3.0 } else { 6.0 };
        rgb(h + spread * part(32), s, l + spread * part(48))
    }
}

/// FNV-1a, then mixed once more: names that differ in their last character only
/// would differ in few bits. Small, and the same everywhere.
fn hash(name: &str) -> u64 {
    let fnv = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (fnv ^ (fnv >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// HSL (degrees, percent, percent) to RGB (CSS Color 4, section 7.1).
fn rgb(hue: f64, saturation: f64, lightness: f64) -> Color {
    let (s, l) = (saturation / 100.0, lightness / 100.0);
    let channel = |n: f64| {
        let k = (n + hue.rem_euclid(360.0) / 30.0) % 12.0;
        let a = s * l.min(1.0 - l);
        let value = l - a * (k - 3.0).min(9.0 - k).clamp(-1.0, 1.0);
        (value * 255.0).round().clamp(0.0, 255.0) as u8
    };
    Color::new(channel(0.0), channel(8.0), channel(4.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Hue; 9] = [
        Hue::Process,
        Hue::Native,
        Hue::Scoped,
        Hue::Inlined,
        Hue::Kernel,
        Hue::Managed,
        Hue::DeviceSoftware,
        Hue::DeviceHardware,
        Hue::Unknown,
    ];

    /// Relative luminance (WCAG 2.1).
    fn luminance(c: Color) -> f64 {
        let linear = |v: u8| {
            let v = f64::from(v) / 255.0;
            if v <= 0.04045 {
                v / 12.92
            } else {
                ((v + 0.055) / 1.055).powf(2.4)
            }
        };
        0.2126 * linear(c.r) + 0.7152 * linear(c.g) + 0.0722 * linear(c.b)
    }

    #[test]
    fn rgb_matches_css() {
        assert_eq!(rgb(0.0, 100.0, 50.0), Color::new(255, 0, 0));
        assert_eq!(rgb(120.0, 100.0, 25.0), Color::new(0, 128, 0));
        assert_eq!(rgb(240.0, 100.0, 50.0), Color::new(0, 0, 255));
        assert_eq!(rgb(-60.0, 100.0, 50.0), Color::new(255, 0, 255));
        assert_eq!(rgb(33.0, 0.0, 100.0), Color::new(255, 255, 255));
    }

    #[test]
    fn suffixes_choose_hues() {
        let hues = [
            ("main", Hue::Native),
            ("inlined_[i]", Hue::Inlined),
            ("do_exit_[k]", Hue::Kernel),
            ("Foo.bar_[j]", Hue::Managed),
            ("train.py:step_[p]", Hue::Managed),
            ("gemm_[G]", Hue::DeviceSoftware),
            ("sbid stall_[g]", Hue::DeviceHardware),
            ("[no symbols libfoo.so]", Hue::Unknown),
            ("operator[]", Hue::Native),
            ("NEO::SysCalls::ioctl", Hue::Scoped),
            ("std::vector::push_[i]", Hue::Inlined),
            ("gemm::kernel_[G]", Hue::DeviceSoftware),
            ("-", Hue::Process),
        ];
        for (name, hue) in hues {
            assert_eq!(Hue::of_frame(name), hue, "{name}");
        }
    }

    #[test]
    fn black_text_is_readable_on_every_shade() {
        for hue in ALL {
            for i in 0..2000 {
                let contrast = (luminance(hue.shade(&format!("f{i}"))) + 0.05) / 0.05;
                assert!(contrast >= 7.0, "{hue:?}: {contrast}");
            }
        }
    }

    #[test]
    fn names_vary_in_shade_and_hues_stay_apart() {
        for hue in ALL.into_iter().filter(|h| *h != Hue::Process) {
            let mut shades: Vec<_> = (0..100)
                .map(|i| hue.shade(&format!("function_{i}")))
                .map(|c| (c.r, c.g, c.b))
                .collect();
            shades.sort_unstable();
            shades.dedup();
            assert!(shades.len() > 10, "{hue:?}: {}", shades.len());
        }
        let distance = |a: Color, b: Color| {
            let d = |a: u8, b: u8| (f64::from(a) - f64::from(b)).powi(2);
            (d(a.r, b.r) + d(a.g, b.g) + d(a.b, b.b)).sqrt()
        };
        for a in ALL {
            for b in ALL.into_iter().filter(|b| *b != a) {
                assert!(distance(a.base(), b.base()) > 35.0, "{a:?} {b:?}");
            }
        }
    }
}
