//! Folders into which Intel's compiler dumps what it makes
//! (`IGC_ShaderDumpEnable=1 IGC_DumpToCustomDir=FOLDER`).
//!
//! For a program `P` there are `P.progbin` (the module) and for each kernel
//! `P_simd16_entry_0001.asm` (its listing) and `.visaasm` (before register
//! allocation), among others.

use super::limits::MAX_MODULE;
use super::listing::Listing;
use super::module::{DeviceFunction, Module, ModuleError, Problems};
use aiprof_system::files::caller;

use std::io::{self, Read as _};

use std::path::{Path, PathBuf};

/// Most folders in each other, as `/tmp/IntelIGC/PROCESS_PID/` has.
const MAX_DEPTH: usize = 4;
/// Most entries of folders looked at.
const MAX_FILES: usize = 65_536;
/// Most bytes read from one folder.
const MAX_BYTES: u64 = 512 << 20;

/// What a folder holds.
#[derive(Clone, Debug, Default)]
pub struct Dump {
    /// Modules with their files, by path.
    pub modules: Vec<(PathBuf, Module)>,
    /// Listings with their files, by path.
    pub listings: Vec<(PathBuf, Listing)>,
    /// Files of virtual instructions, by path, with the kernels they are of.
    pub virtual_listings: Vec<(PathBuf, String)>,
    /// What could not be read.
    pub problems: Problems,
}

impl Dump {
    /// The first kernel with a name as in its module.
    #[must_use]
    pub fn kernel(&self, name: &str) -> Option<&DeviceFunction> {
        self.modules
            .iter()
            .find_map(|(_, module)| module.kernel(name))
    }

    /// The listing of a kernel: of its name and its length, as programs may have
    /// kernels of one name. Modules fill code up behind its end.
    #[must_use]
    pub fn listing(&self, kernel: &DeviceFunction) -> Option<&Listing> {
        let size = kernel.code.len();
        let fill = |l: &Listing| size.checked_sub(l.size() as usize);
        let named = self.listings.iter().map(|(_, l)| l);
        let named = named.filter(|l| l.kernel == kernel.name && fill(l).is_some());
        named.min_by_key(|l| fill(l))
    }
}

/// Reads the modules and listings of a folder and of those in it.
///
/// # Errors
/// When the folder itself cannot be read. Files that cannot be are counted in
/// [`Dump::problems`]; links are not followed.
pub fn read_dump_folder(path: &Path) -> io::Result<Dump> {
    let mut dump = Dump::default();
    let mut folders = vec![(path.to_owned(), 0)];
    let (mut files_left, mut bytes_left) = (MAX_FILES, MAX_BYTES);
    while let Some((folder, depth)) = folders.pop() {
        let entries = match caller::entries(&folder) {
            Ok(entries) => entries,
            Err(error) if depth == 0 => return Err(error),
            Err(_) => {
                dump.failed();
                continue;
            }
        };
        for entry in entries {
            if files_left == 0 {
                dump.failed();
                break;
            }
            files_left -= 1;
            let Ok((kind, path)) = entry.and_then(|e| Ok((e.file_type()?, e.path()))) else {
                dump.failed();
                continue;
            };
            if kind.is_dir() && depth < MAX_DEPTH {
                folders.push((path, depth + 1));
            } else if kind.is_file() && dump.take(&path, &mut bytes_left).is_err() {
                dump.failed();
            }
        }
    }
    dump.modules.sort_by(|a, b| a.0.cmp(&b.0));
    dump.listings.sort_by(|a, b| a.0.cmp(&b.0));
    dump.virtual_listings.sort();
    Ok(dump)
}

impl Dump {
    fn failed(&mut self) {
        self.problems.files = self.problems.files.saturating_add(1);
    }

    /// Reads a file, if its name shows that it is of use.
    fn take(&mut self, path: &Path, left: &mut u64) -> io::Result<()> {
        let extension = path
            .extension()
            .and_then(|e| e.to_str())
            .unwrap_or_default();
        match extension {
            "asm" => {
                let listing = Listing::parse(&read(path, left)?);
                self.listings.extend(listing.map(|l| (path.to_owned(), l)));
            }
            "visaasm" => {
                let kernel = virtual_kernel(&read(path, left)?);
                self.virtual_listings
                    .extend(kernel.map(|k| (path.to_owned(), k)));
            }
            // Debug information for the host's tools has this ending, too.
            "progbin" | "zebin" | "elf" | "bin" | "ar" | "" => {
                match Module::parse(&read(path, left)?) {
                    Ok(module) => {
                        self.problems += module.problems;
                        self.modules.push((path.to_owned(), module));
                    }
                    Err(ModuleError::Unknown) => {}
                    Err(_) => self.failed(),
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// The whole of a regular file within the limits.
fn read(path: &Path, left: &mut u64) -> io::Result<Vec<u8>> {
    let too_large = || io::Error::other("too large");
    let file = caller::open_no_link(path)?;
    let most = (MAX_MODULE as u64).min(*left);
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    let size = bytes.len() as u64;
    *left = left.checked_sub(size).ok_or_else(too_large)?;
    (size <= most).then_some(bytes).ok_or_else(too_large)
}

/// The name after `.kernel`.
fn virtual_kernel(bytes: &[u8]) -> Option<String> {
    let lines = bytes.split(|b| *b == b'\n').take(64);
    let line = lines.filter_map(|l| l.strip_prefix(b".kernel ")).next()?;
    let name = String::from_utf8_lossy(line);
    Some(name.trim().trim_matches('"').to_owned())
}
