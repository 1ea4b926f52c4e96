//! As much ELF as comparing two eBPF objects needs: 64-bit little-endian
//! sections and symbols (System V gABI chapters 4 and 5).

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

const SHT_SYMTAB: u32 = 2;
const SHT_NOBITS: u32 = 8;
const STB_LOCAL: u8 = 0;

/// What must be equal in two objects built by the same tools.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Object {
    /// Code, relocations, maps and BTF: section name to bytes.
    sections: BTreeMap<String, Vec<u8>>,
    symbols: Vec<Symbol>,
}

/// A symbol. Local names carry the compiler's crate disambiguator, which
/// depends on where the sources lie, so only global names are compared.
#[derive(Debug, PartialEq, Eq)]
struct Symbol {
    name: Option<String>,
    info: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// A section header's fields that matter here.
struct Header {
    name: usize,
    kind: u32,
    offset: usize,
    size: usize,
    link: usize,
}

impl Object {
    pub(crate) fn parse(data: &[u8]) -> Result<Object> {
        if data.get(..6) != Some(b"\x7fELF\x02\x01") {
            bail!("not a 64-bit little-endian ELF file");
        }
        let headers = headers(data)?;
        let names = usize::from(u16_at(data, 62)?);
        let names = headers.get(names).context("no section names")?;
        let names = bytes(data, names)?;
        let mut object = Object {
            sections: BTreeMap::new(),
            symbols: Vec::new(),
        };
        for header in &headers {
            let name = string(names, header.name)?;
            if header.kind == SHT_SYMTAB {
                let strings = headers.get(header.link).context("no symbol names")?;
                object.symbols = symbols(bytes(data, header)?, bytes(data, strings)?)?;
            } else if is_compared(name) {
                object
                    .sections
                    .insert(name.to_string(), bytes(data, header)?.to_vec());
            }
        }
        Ok(object)
    }

    /// What differs from `other`, by name; empty when nothing does.
    pub(crate) fn differences(&self, other: &Object) -> Vec<String> {
        let mut names: Vec<_> = self.sections.keys().chain(other.sections.keys()).collect();
        names.sort();
        names.dedup();
        let differs = |name: &&&String| self.sections.get(**name) != other.sections.get(**name);
        let mut found: Vec<_> = names
            .iter()
            .filter(differs)
            .map(ToString::to_string)
            .collect();
        if self.symbols != other.symbols {
            found.push("symbols".into());
        }
        found
    }
}

/// Debug sections and their relocations carry paths; string and symbol tables
/// are compared by meaning.
fn is_compared(name: &str) -> bool {
    let subject = name
        .strip_prefix(".rela")
        .or_else(|| name.strip_prefix(".rel"))
        .unwrap_or(name);
    !(subject.starts_with(".debug") || ["", ".strtab", ".shstrtab"].contains(&name))
}

fn headers(data: &[u8]) -> Result<Vec<Header>> {
    let table = usize::try_from(u64_at(data, 40)?)?;
    let entry = usize::from(u16_at(data, 58)?);
    let count = usize::from(u16_at(data, 60)?);
    let header = |at: usize| -> Result<Header> {
        Ok(Header {
            name: u32_at(data, at)? as usize,
            kind: u32_at(data, at + 4)?,
            offset: usize::try_from(u64_at(data, at + 24)?)?,
            size: usize::try_from(u64_at(data, at + 32)?)?,
            link: u32_at(data, at + 40)? as usize,
        })
    };
    let place = |i: usize| table.checked_add(i * entry).filter(|at| *at < data.len());
    (0..count)
        .map(|i| header(place(i).context("section table out of bounds")?))
        .collect()
}

fn symbols(table: &[u8], strings: &[u8]) -> Result<Vec<Symbol>> {
    let symbol = |entry: &[u8]| -> Result<Symbol> {
        let info = *entry.get(4).context("truncated")?;
        let name = string(strings, u32_at(entry, 0)? as usize)?;
        Ok(Symbol {
            name: (info >> 4 != STB_LOCAL).then(|| name.to_string()),
            info,
            section: u16_at(entry, 6)?,
            value: u64_at(entry, 8)?,
            size: u64_at(entry, 16)?,
        })
    };
    table.chunks_exact(24).map(symbol).collect()
}

fn bytes<'a>(data: &'a [u8], header: &Header) -> Result<&'a [u8]> {
    if header.kind == SHT_NOBITS {
        return Ok(&[]);
    }
    let end = header
        .offset
        .checked_add(header.size)
        .context("section too large")?;
    data.get(header.offset..end)
        .context("section out of bounds")
}

fn string(table: &[u8], at: usize) -> Result<&str> {
    let rest = table.get(at..).context("name out of bounds")?;
    let end = rest
        .iter()
        .position(|b| *b == 0)
        .context("name without an end")?;
    Ok(std::str::from_utf8(&rest[..end])?)
}

fn array<const N: usize>(data: &[u8], at: usize) -> Result<[u8; N]> {
    let end = at.checked_add(N).context("out of bounds")?;
    Ok(data.get(at..end).context("out of bounds")?.try_into()?)
}

fn u16_at(data: &[u8], at: usize) -> Result<u16> {
    Ok(u16::from_le_bytes(array(data, at)?))
}

fn u32_at(data: &[u8], at: usize) -> Result<u32> {
    Ok(u32::from_le_bytes(array(data, at)?))
}

fn u64_at(data: &[u8], at: usize) -> Result<u64> {
    Ok(u64::from_le_bytes(array(data, at)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::process::Command;

    /// Compiles C with the system's compiler and reads the object.
    fn compile(name: &str, source: &str, flags: &[&str]) -> Vec<u8> {
        let dir = std::env::temp_dir();
        let stem = format!("xtask-elf-{name}-{}", std::process::id());
        let c: PathBuf = dir.join(format!("{stem}.c"));
        let o = dir.join(format!("{stem}.o"));
        std::fs::write(&c, source).unwrap();
        let status = Command::new("cc")
            .args(["-c", "-O1"])
            .args(flags)
            .arg(&c)
            .arg("-o")
            .arg(&o)
            .status();
        assert!(status.unwrap().success());
        let data = std::fs::read(&o).unwrap();
        let _ = (std::fs::remove_file(c), std::fs::remove_file(o));
        data
    }

    #[test]
    fn sees_code_and_names_but_not_debug_information() {
        let plain = Object::parse(&compile("a", "int f(int x) { return x + 1; }", &[])).unwrap();
        let debug =
            Object::parse(&compile("b", "int f(int x) { return x + 1; }", &["-g"])).unwrap();
        let other = Object::parse(&compile("c", "int f(int x) { return x + 2; }", &[])).unwrap();
        let named = Object::parse(&compile("d", "int g(int x) { return x + 1; }", &[])).unwrap();
        assert!(plain.sections.contains_key(".text"));
        assert!(!debug.sections.keys().any(|name| name.contains("debug")));
        assert_eq!(plain.sections[".text"], debug.sections[".text"]);
        assert_eq!(plain.differences(&other), [".text"]);
        assert_eq!(plain.differences(&named), ["symbols"]);
        assert!(plain.differences(&plain).is_empty());
    }

    #[test]
    fn damaged_objects_are_errors() {
        let data = compile("e", "int f(int x) { return x + 1; }", &[]);
        assert!(Object::parse(b"").is_err());
        assert!(Object::parse(b"\x7fELF\x01\x01").is_err());
        // The section table lies last, so that every cut goes through it.
        for length in 0..data.len() - 64 {
            assert!(Object::parse(&data[..length]).is_err(), "{length}");
        }
        let mut wild = data.clone();
        wild[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(Object::parse(&wild).is_err());
    }
}
