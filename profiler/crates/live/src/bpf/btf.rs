//! Field offsets of kernel structures, from the kernel's BTF.
//!
//! Rust eBPF programs have no CO-RE relocations, so offsets are read here and
//! handed to the programs as constants. The format is that of
//! Documentation/bpf/btf.rst; only what a member look-up needs is read.

use aiprof_system::files::kernel;
use thiserror::Error;

/// Why the BTF could not be used.
#[derive(Debug, Error)]
pub(crate) enum BtfError {
    /// The file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// The data are no BTF, or are cut off.
    #[error("malformed BTF")]
    Malformed,
}

/// BTF of the running kernel (CONFIG_DEBUG_INFO_BTF).
const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

const MAGIC: u16 = 0xeb9f;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
/// Deepest nesting of anonymous structures that is searched.
const MAX_NESTING: u32 = 8;

/// A parsed BTF blob.
pub(crate) struct Btf {
    data: Vec<u8>,
    strings: usize,
    /// Offset in `data` of every type, by id; id 0 is void.
    types: Vec<u32>,
}

impl Btf {
    /// Reads the running kernel's BTF.
    pub(crate) fn vmlinux() -> Result<Self, BtfError> {
        let data = kernel::read_whole(VMLINUX).map_err(|source| BtfError::Read {
            path: VMLINUX,
            source,
        })?;
        Self::parse(data).ok_or(BtfError::Malformed)
    }

    /// Indexes a BTF blob; `None` if it is malformed.
    pub(crate) fn parse(data: Vec<u8>) -> Option<Self> {
        let header_len = read_u32(&data, 4)? as usize;
        if u16::from_le_bytes([*data.first()?, *data.get(1)?]) != MAGIC {
            return None;
        }
        let start = header_len.checked_add(read_u32(&data, 8)? as usize)?;
        let end = start.checked_add(read_u32(&data, 12)? as usize)?;
        let strings = header_len.checked_add(read_u32(&data, 16)? as usize)?;
        let mut types = vec![0];
        let mut at = start;
        while at < end {
            types.push(u32::try_from(at).ok()?);
            let info = read_u32(&data, at + 4)?;
            at = at.checked_add(12 + extra_bytes(info)?)?;
        }
        Some(Self {
            data,
            strings,
            types,
        })
    }

    /// Byte offset of `path` (members separated by dots are not supported; one
    /// member, also inside anonymous structures and unions) in `structure`.
    pub(crate) fn offset_of(&self, structure: &str, member: &str) -> Option<u32> {
        let index = self.types.iter().skip(1).position(|&at| {
            self.kind(at) == Some(KIND_STRUCT)
                && self.name(at).is_some_and(|n| n == structure.as_bytes())
        })?;
        self.member(*self.types.get(index + 1)?, member.as_bytes(), 0)
    }

    fn kind(&self, at: u32) -> Option<u32> {
        Some(read_u32(&self.data, at as usize + 4)? >> 24 & 0x1f)
    }

    fn name(&self, at: u32) -> Option<&[u8]> {
        self.string(read_u32(&self.data, at as usize)?)
    }

    fn string(&self, offset: u32) -> Option<&[u8]> {
        let tail = self
            .data
            .get(self.strings.checked_add(offset as usize)?..)?;
        tail.split(|&b| b == 0).next()
    }

    fn member(&self, at: u32, wanted: &[u8], depth: u32) -> Option<u32> {
        let info = read_u32(&self.data, at as usize + 4)?;
        let bitfields = info >> 31 == 1;
        for i in 0..(info & 0xffff) as usize {
            let entry = at as usize + 12 + i * 12;
            let raw = read_u32(&self.data, entry + 8)?;
            let bits = if bitfields { raw & 0x00ff_ffff } else { raw };
            let name = self.string(read_u32(&self.data, entry)?)?;
            if name == wanted {
                return Some(bits / 8);
            }
            if name.is_empty() && depth < MAX_NESTING {
                let inner = *self.types.get(read_u32(&self.data, entry + 4)? as usize)?;
                let aggregate = matches!(self.kind(inner), Some(KIND_STRUCT | KIND_UNION));
                if let Some(found) = aggregate
                    .then(|| self.member(inner, wanted, depth + 1))
                    .flatten()
                {
                    return Some(found + bits / 8);
                }
            }
        }
        None
    }
}

/// Bytes that follow the 12-byte type header.
fn extra_bytes(info: u32) -> Option<usize> {
    let n = (info & 0xffff) as usize;
    Some(match info >> 24 & 0x1f {
        // PTR, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC, FLOAT, TYPE_TAG
        2 | 7..=12 | 16 | 18 => 0,
        // INT, VAR, DECL_TAG
        1 | 14 | 17 => 4,
        // ARRAY
        3 => 12,
        // STRUCT, UNION, DATASEC, ENUM64
        4 | 5 | 15 | 19 => n * 12,
        // ENUM, FUNC_PROTO
        6 | 13 => n * 8,
        _ => return None,
    })
}

fn read_u32(data: &[u8], at: usize) -> Option<u32> {
    let bytes = data.get(at..at.checked_add(4)?)?;
    bytes.try_into().ok().map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_members_of_the_running_kernel() {
        let Ok(btf) = Btf::vmlinux() else {
            println!("skipped: finds_members_of_the_running_kernel: no kernel BTF");
            return;
        };
        assert_eq!(btf.offset_of("list_head", "next"), Some(0));
        assert_eq!(btf.offset_of("list_head", "prev"), Some(8));
        assert!(btf.offset_of("task_struct", "tgid").is_some_and(|o| o > 0));
        assert_eq!(btf.offset_of("task_struct", "no_such_member"), None);
        assert_eq!(btf.offset_of("no_such_struct", "x"), None);
    }

    #[test]
    fn truncated_btf_is_refused() {
        let Ok(full) = kernel::read_whole(VMLINUX) else {
            println!("skipped: truncated_btf_is_refused: no kernel BTF");
            return;
        };
        for len in [0, 1, 3, 10, 23, 24, 100] {
            assert!(Btf::parse(full[..len].to_vec()).is_none(), "{len} bytes");
        }
    }
}
