//! The V8s of processes: how their functions are read, and by which file they are named.

use super::binaries::Binaries;
use aiprof_common::V8Layout;
use aiprof_model::process::{FileTable, Mapping, Space};
use aiprof_symbols::{
    unwind::address_of,
    v8::{V8Error, V8Library},
};
use rustc_hash::FxHashSet;

/// Most reasons that are reported.
const MAX_REPORTED: usize = 64;

/// The V8 that a process has mapped, or why its functions cannot be had.
fn of<'a>(
    maps: &'a [Mapping],
    binaries: &'a Binaries,
) -> Option<(&'a Mapping, &'a Result<V8Library, V8Error>)> {
    maps.iter().find_map(|map| {
        let found = binaries.get(map.file)?.v8.as_deref()?;
        Some((map, found))
    })
}

/// The V8 that a process has mapped, if its functions can be had.
pub(crate) fn library<'a>(maps: &'a [Mapping], binaries: &'a Binaries) -> Option<&'a V8Library> {
    of(maps, binaries)?.1.as_ref().ok()
}

/// What was reported of V8s.
#[derive(Debug, Default)]
pub(crate) struct V8s {
    /// Why functions cannot be had.
    declined: FxHashSet<String>,
}

impl V8s {
    /// How the functions of a process are read. A V8 that is not known is reported once. A
    /// jitdump file names generated code line by line: then only the interpreter's frames
    /// are read.
    pub(crate) fn layout(
        &mut self,
        space: &Space,
        files: &FileTable,
        binaries: &Binaries,
    ) -> Option<V8Layout> {
        let (map, found) = of(&space.maps, binaries)?;
        let path = files.key(map.file).map_or("", |key| key.path.as_str());
        let library = match found {
            Ok(library) => library,
            Err(error) => {
                self.report(format!(
                    "{path}: JavaScript functions have no names: {error}"
                ));
                return None;
            }
        };
        if library.interpreter().is_empty() {
            self.report(format!(
                "{path}: interpreted JavaScript functions are shown as functions of V8, because \
                 the file has no symbol table"
            ));
        }
        // V8 maps its code again near the code that it generates.
        let text = &binaries.get(map.file)?.text;
        let own = space.maps.iter().filter(|own| own.file == map.file);
        let interpreters = own.filter_map(|own| {
            let address = address_of(text, own.file_offset)?;
            let skip = library.interpreter().start.checked_sub(address)?;
            let place = own.start.checked_add(skip)?;
            (!library.interpreter().is_empty() && place < own.end).then_some(place)
        });
        let has_dump = space.generated.dump.is_some();
        Some(library.layout(interpreters, !has_dump))
    }

    fn report(&mut self, reason: String) {
        if self.declined.len() < MAX_REPORTED && self.declined.insert(reason.clone()) {
            tracing::warn!("{reason}");
        }
    }
}
