//! The user that the program becomes where root starts it.

use aiprof_fleet::config::Config;
use aiprof_system::os::privileges;
use anyhow::Context as _;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Gid, Uid};
use rustix::thread::CapabilitySet;
use std::fs::Metadata;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Its number where the name service knows no such name.
const NOBODY: u32 = 65534;
/// What the group must have to work in a directory.
const WORK: u32 = 0o070;
/// How deep in a lake directories are that files are put into.
const DEPTH: u32 = 2;
/// Most entries of a lake that are looked at.
const MAX_ENTRIES: usize = 1_000_000;

/// Makes the directories of lakes. Those of root are for its group from now on.
pub(super) fn make_lakes(lakes: &[PathBuf]) {
    let shares = can_become_nobody();
    for lake in lakes {
        let made = std::fs::create_dir_all(lake);
        let made = made.and_then(|()| if shares { share(lake) } else { Ok(()) });
        if let Err(error) = made {
            tracing::warn!("{}: {error}", lake.display());
        }
    }
}

/// Whether a start makes a directory, or lets the group work in it.
pub(super) fn is_prepared(directory: &Path) -> bool {
    let Ok(about) = std::fs::metadata(directory) else {
        return true;
    };
    can_become_nobody() && is_of_root(&about, rustix::process::getegid())
}

/// Becomes `nobody`, if this is root that may, and that can work where it has to. The group
/// stays: what both programs of the agent use is for it ([`aiprof_fleet::shared`]).
///
/// # Errors
/// The kernel's.
pub(super) fn become_nobody(
    config: &Config,
    lakes: &[PathBuf],
    can_work_in: impl Fn(&Path, Gid) -> bool,
) -> anyhow::Result<()> {
    if !can_become_nobody() {
        return Ok(());
    }
    let (user, group) = (nobody(), rustix::process::getegid());
    let own = [config.sender_directory()];
    let mut places = own.iter().chain(lakes);
    if let Some(place) = places.find(|place| !can_work_in(place, group)) {
        tracing::warn!(
            "{}: only its owner can write there, so aiprof-send stays root, without \
             capabilities",
            place.display()
        );
        return Ok(());
    }
    let context = || format!("cannot become user {}", user.as_raw());
    rustix::thread::set_thread_groups(&[]).with_context(context)?;
    rustix::thread::set_thread_res_gid(group, group, group).with_context(context)?;
    rustix::thread::set_thread_res_uid(user, user, user).with_context(context)
}

fn can_become_nobody() -> bool {
    let may = CapabilitySet::SETUID | CapabilitySet::SETGID;
    let have = privileges::effective();
    rustix::process::geteuid().is_root() && have.is_ok_and(|have| have.contains(may))
}

/// Lets the group of root, which has no other members, use what is written from now on: after
/// another start it may be another user who goes on with it.
pub(super) fn share_with_group() {
    if rustix::process::getegid().is_root() {
        let before = rustix::process::umask(Mode::RWXG | Mode::RWXO);
        rustix::process::umask(before - Mode::RWXG);
    }
}

/// `nobody`, by the name service.
fn nobody() -> Uid {
    // SAFETY: the name ends with a zero, and there are no other threads, which could change
    // what it returns.
    let found = unsafe { libc::getpwnam(c"nobody".as_ptr()).as_ref() };
    let found = found.map_or(NOBODY, |found| found.pw_uid);
    // Whoever calls root so.
    Uid::from_raw(if found == 0 { NOBODY } else { found })
}

/// Lets the group work in a lake that is root's and of this group: in the directories that
/// files are put into.
fn share(lake: &Path) -> std::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = rustix::fs::open(lake, flags, Mode::empty())?;
    share_below(&top, DEPTH, &mut 0)
}

fn share_below(directory: &OwnedFd, depth: u32, seen: &mut usize) -> std::io::Result<()> {
    let about = rustix::fs::fstat(directory)?;
    let group = rustix::process::getegid().as_raw();
    if about.st_uid == 0 && about.st_gid == group && about.st_mode & WORK != WORK {
        let mode = Mode::from_raw_mode((about.st_mode & 0o7777) | WORK);
        rustix::fs::fchmod(directory, mode)?;
    }
    if depth == 0 {
        return Ok(());
    }
    for entry in rustix::fs::Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        *seen += 1;
        if *seen > MAX_ENTRIES {
            break;
        }
        if entry.file_type() != rustix::fs::FileType::Directory || name.to_bytes().starts_with(b".")
        {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let below = rustix::fs::openat(directory.as_fd(), name, flags, Mode::empty());
        // Who removes it meanwhile needs it no more.
        if let Ok(below) = below {
            share_below(&below, depth - 1, seen)?;
        }
    }
    Ok(())
}

fn is_of_root(about: &Metadata, group: Gid) -> bool {
    about.uid() == 0 && about.gid() == group.as_raw()
}

/// Whether a user of this group, who owns nothing, may work in a directory.
pub(super) fn can_work_in(directory: &Path, group: Gid) -> bool {
    has_rights(directory, 0o7, group, &[])
}

/// Whether it will be so after a start, which makes such directories, and shares those of root
/// that are in `shared`, without links.
pub(super) fn will_work_in(directory: &Path, group: Gid, shared: &[PathBuf]) -> bool {
    match directory.ancestors().find(|place| place.exists()) {
        Some(there) if there == directory => has_rights(there, 0o7, group, shared),
        Some(there) => has_rights(there, 0o1, group, shared),
        None => false,
    }
}

/// Whether such a user has these rights in a directory, and comes to it.
fn has_rights(directory: &Path, wanted: u32, group: Gid, shared: &[PathBuf]) -> bool {
    let Ok(directory) = std::fs::canonicalize(directory) else {
        return false;
    };
    let rights = |path: &Path| {
        std::fs::metadata(path).map_or(0, |about| {
            let mode = about.permissions().mode();
            let is_shared = shared.iter().any(|shared| shared == path);
            match about.gid() == group.as_raw() {
                true if is_shared && is_of_root(&about, group) => 0o7,
                true => (mode >> 3) & 0o7,
                false => mode & 0o7,
            }
        })
    };
    let mut above = directory.ancestors().skip(1);
    rights(&directory) & wanted == wanted && above.all(|above| rights(above) & 0o1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;

    #[test]
    fn who_owns_nothing_works_where_the_group_or_all_may() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        let own = Gid::from_raw(std::fs::metadata(&inner).unwrap().gid());
        let other = Gid::from_raw(own.as_raw() + 1);
        for (above, mode, of_group, of_others) in [
            (0o700, 0o770, false, false),
            (0o710, 0o770, true, false),
            (0o711, 0o770, true, false),
            (0o711, 0o750, false, false),
            (0o711, 0o707, false, true),
        ] {
            std::fs::set_permissions(&inner, Permissions::from_mode(mode)).unwrap();
            std::fs::set_permissions(folder.path(), Permissions::from_mode(above)).unwrap();
            assert_eq!(can_work_in(&inner, own), of_group, "{above:o} {mode:o}");
            assert_eq!(can_work_in(&inner, other), of_others, "{above:o} {mode:o}");
        }
    }

    #[test]
    fn what_a_start_makes_and_shares_counts_before_it() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        std::fs::set_permissions(&root, Permissions::from_mode(0o711)).unwrap();
        let (lake, group) = (root.join("lake"), rustix::process::getegid());
        let shared = [lake.clone()];
        assert!(will_work_in(&lake, group, &shared) && is_prepared(&lake));
        assert!(will_work_in(&lake.join("deeper"), group, &shared));
        std::fs::create_dir(&lake).unwrap();
        std::fs::set_permissions(&lake, Permissions::from_mode(0o700)).unwrap();
        assert!(!can_work_in(&lake, group) && !will_work_in(&lake, group, &[]));
        assert!(will_work_in(&lake, group, &shared) && is_prepared(&lake));
        assert!(will_work_in(&lake.join("deeper"), group, &shared));
        // Another user's is not shared.
        std::os::unix::fs::chown(&lake, Some(1), Some(0)).unwrap();
        assert!(!will_work_in(&lake, group, &shared) && !is_prepared(&lake));
        std::os::unix::fs::chown(&lake, Some(0), Some(0)).unwrap();
        std::fs::set_permissions(&root, Permissions::from_mode(0o700)).unwrap();
        let other = Gid::from_raw(group.as_raw() + 1);
        assert!(!will_work_in(&lake, other, &shared));
        assert!(!will_work_in(&root.join("new"), group, &shared));
    }

    #[test]
    fn links_in_a_lake_lead_to_nothing_else() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let (lake, other) = (path("lake"), path("other"));
        std::fs::create_dir_all(lake.join("date=2026-11-29")).unwrap();
        std::fs::create_dir(&other).unwrap();
        for path in [&lake, &lake.join("date=2026-11-29"), &other] {
            std::fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        }
        std::os::unix::fs::symlink(&other, lake.join("link")).unwrap();
        share(&lake).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&lake), 0o775);
        assert_eq!(mode(&lake.join("date=2026-11-29")), 0o775);
        assert_eq!(mode(&other), 0o755);
    }
}
