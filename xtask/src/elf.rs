//! What is compared of two eBPF objects: their sections and symbols; which version of the C
//! library a program needs.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use object::elf::FileHeader64;
use object::read::elf::{FileHeader as _, SectionHeader as _, Sym as _};
use object::{Endianness, LittleEndian, elf};

/// What must be equal in two objects built by the same tools.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BpfObject {
    /// Code, relocations, maps and BTF: section name to bytes.
    sections: BTreeMap<String, Vec<u8>>,
    symbols: Vec<BpfSymbol>,
}

/// A symbol. Local names carry the compiler's crate disambiguator, which
/// depends on where the sources lie, so only global names are compared.
#[derive(Debug, PartialEq, Eq)]
struct BpfSymbol {
    name: Option<String>,
    info: u8,
    section: u16,
    value: u64,
    size: u64,
}

impl BpfObject {
    pub(crate) fn parse(data: &[u8]) -> Result<Self> {
        let header = FileHeader64::<LittleEndian>::parse(data)?;
        let endian = header.endian()?;
        let sections = header.sections(endian, data)?;
        ensure!(!sections.is_empty(), "no sections");
        let mut compared = BTreeMap::new();
        for section in sections.iter() {
            let name = std::str::from_utf8(sections.section_name(endian, section)?)?;
            let bytes = section.data(endian, data)?;
            if is_compared(name) && section.sh_type(endian) != elf::SHT_SYMTAB {
                compared.insert(name.to_string(), bytes.to_vec());
            }
        }
        let table = sections.symbols(endian, data, elf::SHT_SYMTAB)?;
        let mut symbols = Vec::with_capacity(table.len());
        for symbol in table.iter() {
            let name = std::str::from_utf8(symbol.name(endian, table.strings())?)?;
            symbols.push(BpfSymbol {
                name: (!symbol.is_local()).then(|| name.to_string()),
                info: symbol.st_info().0,
                section: symbol.st_shndx(endian).0,
                value: symbol.st_value(endian),
                size: symbol.st_size(endian),
            });
        }
        Ok(Self {
            sections: compared,
            symbols,
        })
    }

    /// What differs from `other`, by name; empty when nothing does.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
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

/// Which machine a program is for.
///
/// # Errors
/// It is no program of a 64-bit machine.
pub(crate) fn machine(data: &[u8]) -> Result<elf::Machine> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    Ok(header.e_machine(header.endian()?))
}

/// The newest version of glibc whose symbols a program of any machine uses, as `(2, 28)`.
///
/// # Errors
/// It is no program that is linked against glibc, or needs a version without a number.
pub(crate) fn newest_glibc(data: &[u8]) -> Result<(u32, u32)> {
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let (_, strings) = sections
        .section_by_name(endian, b".dynstr")
        .context("it has no .dynstr, so it is not linked with glibc")?;
    let names = strings.data(endian, data)?.split(|byte| *byte == 0);
    let mut newest = None;
    for name in names {
        let Some(version) = name.strip_prefix(b"GLIBC_") else {
            continue;
        };
        let version = std::str::from_utf8(version)?;
        let mut numbers = version.split('.').map(str::parse::<u32>);
        let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
            bail!("it needs GLIBC_{version}");
        };
        newest = newest.max(Some((major, minor)));
    }
    newest.context("it uses no glibc symbol")
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
        let plain = BpfObject::parse(&compile("a", "int f(int x) { return x + 1; }", &[])).unwrap();
        let debug =
            BpfObject::parse(&compile("b", "int f(int x) { return x + 1; }", &["-g"])).unwrap();
        let other = BpfObject::parse(&compile("c", "int f(int x) { return x + 2; }", &[])).unwrap();
        let named = BpfObject::parse(&compile("d", "int g(int x) { return x + 1; }", &[])).unwrap();
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
        assert!(BpfObject::parse(b"").is_err());
        assert!(BpfObject::parse(b"\x7fELF\x01\x01").is_err());
        // The section table lies last, so that every cut goes through it.
        for length in 0..data.len() - 64 {
            assert!(BpfObject::parse(&data[..length]).is_err(), "{length}");
        }
        let mut wild = data.clone();
        wild[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(BpfObject::parse(&wild).is_err());
    }

    #[test]
    fn a_program_says_which_glibc_it_needs() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let (major, minor) = newest_glibc(&own).unwrap();
        // rustc's own least version is 2.17.
        assert!(major == 2 && (17..100).contains(&minor), "{major}.{minor}");
        // The same from binutils.
        let said = Command::new("objdump")
            .arg("-T")
            .arg(std::env::current_exe().unwrap())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let versions = said.split("GLIBC_2.").skip(1);
        let number = |text: &str| {
            text.split(')')
                .next()
                .and_then(|n| n.split('.').next()?.parse().ok())
        };
        assert_eq!(versions.filter_map(number).max(), Some(minor));
        // An object that is not linked.
        assert!(newest_glibc(&compile("f", "int f;", &[])).is_err());
    }
}
