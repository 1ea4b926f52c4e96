//! Archives of modules for several devices, as `ocloc` writes them for
//! `-device A,B`: `ar` with padding members between the modules.

use object::read::archive::ArchiveFile;

/// First bytes of an archive.
pub(super) const MAGIC: &[u8] = b"!<arch>\n";
/// Most members looked at.
const MAX_MEMBERS: usize = 4096;

/// The members of an archive up to the first that is corrupt.
pub(super) fn members(bytes: &[u8]) -> Vec<&[u8]> {
    let Ok(archive) = ArchiveFile::parse(bytes) else {
        return Vec::new();
    };
    archive
        .members()
        .map_while(Result::ok)
        .take(MAX_MEMBERS)
        .filter_map(|member| member.data(bytes).ok())
        .collect()
}
