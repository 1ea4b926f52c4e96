//! Which generation of devices a module is for, from its notes.
//!
//! Numbers: the *zebin* specification of intel-graphics-compiler
//! (`zebin/spec/elf.md`: notes), and the GMD_ID register of Xe (architecture and
//! release, as in "12.60").

use super::isa::Platform;

/// `PRODUCT_FAMILY` of a module.
const NT_PRODUCT_FAMILY: u32 = 1;
/// `GFXCORE_FAMILY` of a module.
const NT_GFXCORE_FAMILY: u32 = 2;
/// GMD_ID of the device that a module is for.
const NT_PRODUCT_CONFIG: u32 = 6;
/// Owner of these notes, with the final zero that counts.
const OWNER: &[u8] = b"IntelGT\0";
/// Most notes looked at; the compiler writes seven.
const MAX_NOTES: usize = 64;

/// The platform in the notes, from the most exact note; `None` if they name no known one.
pub(super) fn of_notes(bytes: &[u8]) -> Option<Platform> {
    let notes: Vec<(u32, u32)> = Notes { bytes }.take(MAX_NOTES).flatten().collect();
    let word = |kind| {
        notes
            .iter()
            .find(|(k, _)| *k == kind)
            .map(|(_, word)| *word)
    };
    word(NT_PRODUCT_CONFIG)
        .and_then(of_gmd)
        .or_else(|| word(NT_PRODUCT_FAMILY).and_then(Platform::from_product_family))
        .or_else(|| word(NT_GFXCORE_FAMILY).and_then(Platform::from_gfx_core))
}

/// Notes of ELF: lengths of name and text, kind, then both, each padded to four.
struct Notes<'a> {
    bytes: &'a [u8],
}

impl Iterator for Notes<'_> {
    /// Kind and first word of a note; `None` inside for a note of another owner.
    type Item = Option<(u32, u32)>;

    fn next(&mut self) -> Option<Self::Item> {
        let word = |at: usize| {
            let bytes = self.bytes.get(at..at.checked_add(4)?)?;
            bytes.try_into().ok().map(u32::from_le_bytes)
        };
        let (name, text, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
        let text_at = name.checked_next_multiple_of(4)?.checked_add(12)?;
        let owner = self.bytes.get(12..)?.get(..name)?;
        let whole = self.bytes.get(text_at..)?.get(..text)?;
        let ours = owner == OWNER && whole.len() >= 4;
        let note = word(text_at).filter(|_| ours).map(|value| (kind, value));
        let end = text.checked_next_multiple_of(4)?.checked_add(text_at)?;
        // The last note may lack its padding.
        self.bytes = self.bytes.get(end..).unwrap_or_default();
        Some(note)
    }
}

/// By architecture (bits 22 to 31) and release (bits 14 to 21).
fn of_gmd(id: u32) -> Option<Platform> {
    Platform::from_ip_version(id >> 22, id >> 14 & 0xff)
}

/// By the name after `//.platform` in a listing of IGC.
pub(super) fn of_listing(name: &str) -> Option<Platform> {
    match name {
        "TGLLP" => Some(Platform::XeLp),
        "DG2" | "MTL" | "ARL" => Some(Platform::XeHpg),
        "PVC" | "PVCXT" => Some(Platform::XeHpc),
        "XE2" => Some(Platform::Xe2),
        "XE3" => Some(Platform::Xe3),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(owner: &[u8], kind: u32, text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend((owner.len() as u32).to_le_bytes());
        out.extend((text.len() as u32).to_le_bytes());
        out.extend(kind.to_le_bytes());
        for part in [owner, text] {
            out.extend(part);
            out.resize(out.len().next_multiple_of(4), 0);
        }
        out
    }

    #[test]
    fn the_most_exact_note_counts() {
        let gmd = |arch: u32, release: u32| (arch << 22 | release << 14).to_le_bytes();
        let product = note(OWNER, 1, &1271u32.to_le_bytes());
        assert_eq!(of_notes(&product), Some(Platform::XeHpc));
        let mut notes = note(OWNER, 4, b"1.73\0");
        notes.extend(&product);
        notes.extend(note(OWNER, 6, &gmd(20, 4)));
        assert_eq!(of_notes(&notes), Some(Platform::Xe2));
        let mut notes = note(OWNER, 2, &0x1e00u32.to_le_bytes());
        notes.extend(note(OWNER, 6, &gmd(99, 0)));
        assert_eq!(of_notes(&notes), Some(Platform::Xe3));
    }

    #[test]
    fn others_say_nothing() {
        assert_eq!(of_notes(&note(b"GNU\0", 1, &1271u32.to_le_bytes())), None);
        assert_eq!(of_notes(&note(OWNER, 1, &18u32.to_le_bytes())), None);
        assert_eq!(of_notes(&note(OWNER, 1, &[1, 2])), None);
        let whole = note(OWNER, 1, &1271u32.to_le_bytes());
        for len in 0..whole.len() {
            assert_eq!(of_notes(&whole[..len]), None, "{len}");
        }
        let mut long = whole;
        long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(of_notes(&long), None);
    }
}
