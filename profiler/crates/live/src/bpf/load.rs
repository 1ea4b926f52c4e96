//! The eBPF object: opened, sized, given its constants, and loaded.

use super::{
    BpfError, BpfOptions, CALLS, CHOSEN, PROBE_COUNTS, PROBES, SAMPLES, THREADS,
    messages::with_warnings, plain, probe,
};
use crate::locking::lock;
use aiprof_common::{CALL_SLOTS, RULE_CACHE_CHUNK, Settings};
use aiprof_system::files::caller;
use libbpf_rs::{
    MapCore, MapHandle, Object, ObjectBuilder, OpenMapMut, OpenObject, ProgramAttachType,
};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};
use std::{
    collections::BTreeMap,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::{Arc, Mutex},
    time::Instant,
};

/// Aligned as the structures in it want to be read.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

/// The committed eBPF object; `cargo xtask build-ebpf` makes it.
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!("aiprof.bpf.o"));

/// Largest object that is loaded; the committed one has less than a MiB.
const MAX_OBJECT: u64 = 64 << 20;

/// The program that samples.
pub(super) const SAMPLER: &str = "sampler";
/// The program that forgets processes that become other programs.
pub(super) const EXECD: &str = "execd";
/// The program that names kernel addresses, and where they are.
pub(super) const NAME_KERNEL: &str = "name_kernel";
pub(super) const NAMES: &str = "NAMES";

/// The maps that only the programs at probes use; not made without them.
const CALL_MAPS: &[&str] = &[
    CALLS,
    PROBES,
    PROBE_COUNTS,
    THREADS,
    "STACKS_SEEN",
    "CALL_SCRATCH",
    "CALL_LIMITS",
    "CALL_SHARED",
    CHOSEN,
];

/// The maps that only the programs at waits use.
const WAIT_MAPS: &[&str] = &["WAIT_SLOTS", "WAITS_OVER", "WAIT_COUNTS", "LAST_SWITCHES"];

/// What is in the kernel of an object, and the way to load more of it; it stays there
/// as long as its descriptors are open.
///
/// The kernel verifies each program at length (some take a third of a second), so
/// they are loaded when they are first needed.
pub(super) struct LoadedObject {
    bytes: ObjectSource,
    settings: Settings,
    programs: Mutex<BTreeMap<&'static str, Arc<OwnedFd>>>,
    /// The maps, by name.
    maps: BTreeMap<String, MapHandle>,
}

/// Where an object's bytes are.
enum ObjectSource {
    Committed,
    Given(Vec<u8>),
}

impl ObjectSource {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Committed => &OBJECT.0,
            Self::Given(bytes) => bytes,
        }
    }
}

impl LoadedObject {
    /// A program, which is loaded unless it is already. May take as long as the
    /// kernel verifies it, and then other threads that ask wait too.
    pub(super) fn program(&self, name: &'static str) -> Result<Arc<OwnedFd>, BpfError> {
        let mut programs = lock(&self.programs);
        if let Some(program) = programs.get(name) {
            return Ok(Arc::clone(program));
        }
        let begun = Instant::now();
        let mut open = opened(self.bytes.bytes())?;
        set_constants(&mut open, &self.settings, self.bytes.bytes())?;
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if let Some(shared) = self.maps.get(&name).filter(|_| !is_internal(&name)) {
                map.reuse_fd(shared.as_fd())?;
            }
        }
        choose_programs(&mut open, &[name])?;
        let object = loaded(open)?;
        programs.extend(programs_of(&object, &[name])?);
        tracing::debug!("{name}: loaded in {} ms", begun.elapsed().as_millis());
        let program = programs.get(name).ok_or(BpfError::Missing(name))?;
        Ok(Arc::clone(program))
    }

    /// The programs that were loaded so far.
    pub(super) fn programs(&self) -> Vec<(&'static str, Arc<OwnedFd>)> {
        let programs = lock(&self.programs);
        let all = programs.iter();
        all.map(|(name, program)| (*name, Arc::clone(program)))
            .collect()
    }

    /// A map by its name.
    pub(super) fn map(&self, name: &'static str) -> Result<&MapHandle, BpfError> {
        self.maps.get(name).ok_or(BpfError::Missing(name))
    }
}

/// Whether a map holds the variables of the object itself: each load has its own.
fn is_internal(name: &str) -> bool {
    name.contains('.')
}

/// Loads the programs that every recording needs, of the committed object, or of the one at
/// `path`.
pub(super) fn load(
    options: &BpfOptions,
    settings: &Settings,
    path: Option<&Path>,
) -> Result<LoadedObject, BpfError> {
    let bytes = match path {
        None => ObjectSource::Committed,
        Some(path) => {
            let bytes = caller::read(path, MAX_OBJECT).map_err(|cause| BpfError::Object {
                path: path.display().to_string(),
                cause,
            })?;
            ObjectSource::Given(bytes)
        }
    };
    load_bytes(options, settings, bytes)
}

fn load_bytes(
    options: &BpfOptions,
    settings: &Settings,
    bytes: ObjectSource,
) -> Result<LoadedObject, BpfError> {
    const FIRST: [&str; 3] = [SAMPLER, EXECD, NAME_KERNEL];
    let mut open = opened(bytes.bytes())?;
    set_sizes(&mut open, options, settings)?;
    set_constants(&mut open, settings, bytes.bytes())?;
    choose_programs(&mut open, &FIRST)?;
    // The object itself, with its copies of instructions and BTF, is not needed
    // any more: what the kernel has hangs on the descriptors.
    let object = loaded(open)?;
    let programs = Mutex::new(programs_of(&object, &FIRST)?);
    let mut maps = BTreeMap::new();
    for map in object.maps() {
        let name = map.name().to_string_lossy().into_owned();
        let is_left_out = CALL_MAPS.contains(&name.as_str()) && options.calls.is_none()
            || WAIT_MAPS.contains(&name.as_str()) && options.waits.is_none();
        if !is_left_out {
            maps.insert(name, MapHandle::try_from(&map)?);
        }
    }
    Ok(LoadedObject {
        bytes,
        settings: *settings,
        programs,
        maps,
    })
}

fn opened(bytes: &[u8]) -> Result<OpenObject, BpfError> {
    let (opened, log) = with_warnings(|| open(bytes));
    opened.map_err(|cause| BpfError::Load { cause, log })
}

fn loaded(open: OpenObject) -> Result<Object, BpfError> {
    let (loaded, log) = with_warnings(|| open.load());
    loaded.map_err(|cause| BpfError::Load { cause, log })
}

fn programs_of(
    object: &Object,
    names: &[&'static str],
) -> Result<BTreeMap<&'static str, Arc<OwnedFd>>, BpfError> {
    let mut programs = BTreeMap::new();
    for program in object.progs().filter(|p| p.autoload()) {
        if let Some(name) = names.iter().find(|name| program.name() == **name) {
            let fd = program.as_fd().try_clone_to_owned();
            programs.insert(*name, Arc::new(fd.map_err(BpfError::Descriptor)?));
        }
    }
    Ok(programs)
}

fn open(bytes: &[u8]) -> libbpf_rs::Result<OpenObject> {
    // The name is seen in that of the constants' map.
    ObjectBuilder::default().name("aiprof")?.open_memory(bytes)
}

fn set_sizes(
    open: &mut OpenObject,
    options: &BpfOptions,
    settings: &Settings,
) -> Result<(), BpfError> {
    let rule_chunks = 1 + (settings.rule_cache_mask + 1) / RULE_CACHE_CHUNK as u32;
    let mut sizes = vec![
        ("POOL", settings.pool_chunks),
        (SAMPLES, options.ring_bytes),
    ];
    match options.calls {
        Some(calls) => sizes.extend([
            ("RULES", rule_chunks + 2 * CALL_SLOTS),
            (PROBES, calls.probes),
            (PROBE_COUNTS, calls.probes),
            (CALLS, calls.ring_bytes),
        ]),
        None => {
            sizes.push(("RULES", rule_chunks));
            for name in CALL_MAPS {
                map_mut(open, name)?.set_autocreate(false)?;
            }
        }
    }
    if options.waits.is_none() {
        for name in WAIT_MAPS {
            map_mut(open, name)?.set_autocreate(false)?;
        }
    }
    for (name, entries) in sizes {
        map_mut(open, name)?.set_max_entries(entries)?;
    }
    Ok(())
}

fn map_mut<'a>(open: &'a mut OpenObject, name: &'static str) -> Result<OpenMapMut<'a>, BpfError> {
    let map = open.maps_mut().find(|map| map.name() == name);
    map.ok_or(BpfError::Missing(name))
}

/// Writes the constants to where the object keeps them.
fn set_constants(open: &mut OpenObject, settings: &Settings, bytes: &[u8]) -> Result<(), BpfError> {
    const NAME: &str = "SETTINGS";
    let place = place_of(bytes, NAME).ok_or(BpfError::Missing(NAME))?;
    if place.size != size_of::<Settings>() as u64 {
        return Err(BpfError::Version {
            name: NAME,
            found: place.size,
            wanted: size_of::<Settings>(),
        });
    }
    let settings = plain::bytes(settings);
    // libbpf puts the object's name before that of the section.
    open.maps_mut()
        .find(|map| map.name().to_string_lossy().ends_with(&place.section))
        .as_mut()
        .and_then(|map| map.initial_value_mut())
        .and_then(|data| data.get_mut(place.offset..)?.get_mut(..settings.len()))
        .ok_or(BpfError::Missing(NAME))?
        .copy_from_slice(settings);
    Ok(())
}

/// Where a global variable is.
#[derive(Debug, PartialEq, Eq)]
struct VariablePlace {
    section: String,
    offset: usize,
    size: u64,
}

fn place_of(elf: &[u8], name: &str) -> Option<VariablePlace> {
    let file = object::File::parse(elf).ok()?;
    let symbol = file.symbols().find(|s| s.name() == Ok(name))?;
    let section = file.section_by_index(symbol.section_index()?).ok()?;
    let offset = symbol.address().checked_sub(section.address())?;
    Some(VariablePlace {
        section: section.name().ok()?.to_owned(),
        offset: usize::try_from(offset).ok()?,
        size: symbol.size(),
    })
}

/// Has these programs loaded, and no others. Those for functions of user programs are
/// loaded for links to many functions at once, where the kernel has such links.
fn choose_programs(open: &mut OpenObject, wanted: &[&'static str]) -> Result<(), BpfError> {
    for name in wanted {
        if !open.progs().any(|program| program.name() == *name) {
            return Err(BpfError::Missing(name));
        }
    }
    for mut program in open.progs_mut() {
        let name = program.name();
        let is_wanted = wanted.iter().any(|n| name == *n);
        program.set_autoload(is_wanted);
        let section = program.section().to_string_lossy();
        let kind = section.split(['/', '.']).next().unwrap_or_default();
        if is_wanted && matches!(kind, "uprobe" | "uretprobe") && probe::uprobe_multi().exists() {
            program.set_attach_type(ProgramAttachType::TraceUprobeMulti);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_object_has_room_for_the_constants() {
        let place = place_of(&OBJECT.0, "SETTINGS").unwrap();
        assert_eq!(place.section, ".rodata");
        assert_eq!(place.size, size_of::<Settings>() as u64);
        assert_eq!(place_of(&OBJECT.0, "NO_SUCH_THING"), None);
    }

    #[test]
    fn constants_of_another_version_are_refused() {
        let mut bytes = OBJECT.0.to_vec();
        let file = object::File::parse(&*bytes).unwrap();
        let index = file
            .symbols()
            .find(|s| s.name() == Ok("SETTINGS"))
            .unwrap()
            .index();
        let table = file
            .section_by_name(".symtab")
            .unwrap()
            .file_range()
            .unwrap()
            .0;
        // st_size of Elf64_Sym, of 24 bytes.
        let at = table as usize + index.0 * 24 + 16;
        bytes[at..at + 8].copy_from_slice(&60u64.to_le_bytes());
        let result = load_bytes(
            &BpfOptions::default(),
            &Settings::default(),
            ObjectSource::Given(bytes),
        );
        let error = result.err().unwrap();
        assert!(
            matches!(
                error,
                BpfError::Version {
                    name: "SETTINGS",
                    found: 60,
                    ..
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn bytes_that_are_no_object_are_refused_with_a_reason() {
        for bytes in [&b""[..], b"no ELF file", &OBJECT.0[..OBJECT.0.len() / 2]] {
            let result = load_bytes(
                &BpfOptions::default(),
                &Settings::default(),
                ObjectSource::Given(bytes.to_vec()),
            );
            assert!(result.is_err(), "{} bytes", bytes.len());
        }
    }
}
