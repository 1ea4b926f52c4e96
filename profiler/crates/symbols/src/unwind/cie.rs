//! Common information entries of `.eh_frame` (DWARF 5, section 6.4.1, with the
//! augmentations of the Linux Standard Base, section "Exception Frames").

use super::bytes::Bytes;
use super::cfi::{Interpreter, RuleState};

/// DWARF number of the return address column, x86-64 psABI figure 3.36; that of programs of 32
/// bits, i386 psABI table 2.14.
const RETURN_ADDRESS: u64 = 16;
const NARROW_RETURN_ADDRESS: u64 = 8;

/// Pointer encodings (LSB, "DWARF Exception Header Encoding").
const PE_ABSPTR: u8 = 0x00;
const PE_ULEB: u8 = 0x01;
const PE_UDATA2: u8 = 0x02;
const PE_UDATA4: u8 = 0x03;
const PE_UDATA8: u8 = 0x04;
const PE_SLEB: u8 = 0x09;
const PE_SDATA2: u8 = 0x0a;
const PE_SDATA4: u8 = 0x0b;
const PE_SDATA8: u8 = 0x0c;
const PE_PCREL: u8 = 0x10;
/// The value's format, without its base.
const PE_FORMAT: u8 = 0x0f;
/// What the value is relative to, with the "indirect" bit.
const PE_APPLICATION: u8 = 0xf0;

/// The number of an encoded pointer, without adding its base.
pub(super) fn encoded_value(bytes: &mut Bytes<'_>, encoding: u8) -> Option<u64> {
    match encoding & PE_FORMAT {
        PE_ABSPTR | PE_UDATA8 | PE_SDATA8 => bytes.u64(),
        PE_ULEB => bytes.uleb(),
        PE_UDATA2 => bytes.u16().map(u64::from),
        PE_UDATA4 => bytes.u32().map(u64::from),
        PE_SLEB => bytes.sleb().map(i64::cast_unsigned),
        PE_SDATA2 => bytes
            .u16()
            .map(|v| i64::from(v.cast_signed()).cast_unsigned()),
        PE_SDATA4 => bytes
            .u32()
            .map(|v| i64::from(v.cast_signed()).cast_unsigned()),
        _ => None,
    }
}

/// An encoded code address; `vaddr` is the address of `bytes`' first byte.
///
/// `None` for encodings whose value only the running program knows (indirect)
/// or that no linker writes for code (relative to text, data or function).
pub(super) fn encoded_address(bytes: &mut Bytes<'_>, encoding: u8, vaddr: u64) -> Option<u64> {
    let field = vaddr.wrapping_add(bytes.pos() as u64);
    let value = encoded_value(bytes, encoding)?;
    match encoding & PE_APPLICATION {
        PE_ABSPTR => Some(value),
        PE_PCREL => Some(field.wrapping_add(value)),
        _ => None,
    }
}

/// What an FDE needs of its CIE.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cie {
    /// Bytes of code per unit of an advance.
    pub(super) code_align: u64,
    /// Bytes of stack per unit of a factored offset.
    pub(super) data_align: i64,
    /// Encoding of the FDE's addresses.
    pub(super) encoding: u8,
    /// FDEs have augmentation data ('z').
    pub(super) augmented: bool,
    /// The code is a signal trampoline ('S').
    pub(super) signal: bool,
    /// It is of a program of 32 bits, whose registers have other numbers.
    pub(super) is_narrow: bool,
    /// The rules at the start of each FDE.
    pub(super) initial: RuleState,
}

impl Cie {
    /// Parses the bytes that follow the CIE's id, at address `vaddr`.
    ///
    /// `None` for a malformed entry, one for another machine, or an
    /// augmentation that is not known.
    pub(super) fn parse(body: &[u8], vaddr: u64, states: &mut Vec<RuleState>) -> Option<Self> {
        let mut bytes = Bytes::new(body);
        let version = bytes.u8()?;
        let augmentation = bytes.c_str()?;
        if version == 4 {
            // Address size and segment selector size.
            if !matches!((bytes.u8()?, bytes.u8()?), (4 | 8, 0)) {
                return None;
            }
        }
        let mut cie = Self {
            code_align: bytes.uleb()?,
            data_align: bytes.sleb()?,
            encoding: PE_ABSPTR,
            augmented: false,
            signal: false,
            is_narrow: false,
            initial: RuleState::default(),
        };
        let return_address = match version {
            1 => u64::from(bytes.u8()?),
            3 | 4 => bytes.uleb()?,
            _ => return None,
        };
        cie.is_narrow = return_address == NARROW_RETURN_ADDRESS;
        if return_address != RETURN_ADDRESS && !cie.is_narrow {
            return None;
        }
        cie.encoding = cie.own(cie.encoding);
        cie.parse_augmentation(augmentation, &mut bytes)?;
        let at = vaddr.wrapping_add(bytes.pos() as u64);
        cie.initial = Interpreter::new(&cie, bytes.rest(), at, 0, states).finish()?;
        Some(cie)
    }

    /// The encoding of a pointer, whose size is the machine's unless the encoding has another.
    fn own(&self, encoding: u8) -> u8 {
        match self.is_narrow && encoding & PE_FORMAT == PE_ABSPTR {
            true => encoding | PE_UDATA4,
            false => encoding,
        }
    }

    /// Reads the augmentation data that the augmentation string describes.
    fn parse_augmentation(&mut self, augmentation: &[u8], bytes: &mut Bytes<'_>) -> Option<()> {
        let Some((first, letters)) = augmentation.split_first() else {
            return Some(());
        };
        if *first != b'z' {
            return None;
        }
        self.augmented = true;
        let size = bytes.uleb()?;
        let mut data = Bytes::new(bytes.take_u64(size)?);
        for letter in letters {
            match letter {
                b'R' => self.encoding = self.own(data.u8()?),
                b'L' => {
                    data.u8()?;
                }
                b'P' => {
                    let encoding = self.own(data.u8()?);
                    encoded_value(&mut data, encoding)?;
                }
                b'S' => self.signal = true,
                _ => return None,
            }
        }
        Some(())
    }
}
