//! What the process may do: the capabilities that profiling needs, what each
//! missing one costs, and giving up those that are no longer needed.
//!
//! Source: capabilities(7); the checks themselves are in the kernel's
//! kernel/bpf/syscall.c (`CAP_BPF`), kernel/events/core.c (`CAP_PERFMON`),
//! fs/proc/base.c (`map_files`, `/proc/PID/root`).

use crate::files::kernel;
use rustix::thread::{CapabilitySet, CapabilitySets};

/// Why privileges could not be read, are missing, or could not be dropped.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    /// Profiling cannot work without these.
    #[error(
        "profiling the machine needs {missing}\n  run it as root:   sudo {program} ...\n  \
         or allow it once: sudo setcap {SETCAP} {program}\n  \
         `{program} doctor` shows what works and what does not"
    )]
    Missing {
        /// The capabilities, by name.
        missing: String,
        /// How to call this program again.
        program: String,
    },
    /// The program file is setuid or setgid.
    #[error(
        "aiprof does not run setuid or setgid: remove the bit with chmod ug-s {program}; to let \
         users profile, run sudo setcap {SETCAP} {program}"
    )]
    SetUid {
        /// The program file.
        program: String,
    },
    /// The kernel refused to show or change the capabilities.
    #[error("cannot {action} capabilities")]
    Kernel {
        /// What was tried.
        action: &'static str,
        /// The kernel's answer.
        source: rustix::io::Errno,
    },
}

/// The argument for setcap(8) that lets users run aiprof without sudo.
pub const SETCAP: &str = "cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search,\
                          cap_checkpoint_restore=ep";

/// A capability that profiling uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needed {
    /// The capability.
    pub capability: CapabilitySet,
    /// Its name, as in capabilities(7).
    pub name: &'static str,
    /// Whether profiling is impossible without it.
    pub required: bool,
    /// What works with it, or what its absence costs.
    pub purpose: &'static str,
}

/// The capabilities that profiling uses, the required ones first.
pub const NEEDED: [Needed; 5] = [
    Needed {
        capability: CapabilitySet::BPF,
        name: "CAP_BPF",
        required: true,
        purpose: "eBPF programs cannot be loaded",
    },
    Needed {
        capability: CapabilitySet::PERFMON,
        name: "CAP_PERFMON",
        required: true,
        purpose: "CPUs cannot be sampled",
    },
    Needed {
        capability: CapabilitySet::SYS_PTRACE,
        name: "CAP_SYS_PTRACE",
        required: false,
        purpose: "mappings of other users' processes cannot be read, so their stacks have no names",
    },
    Needed {
        capability: CapabilitySet::DAC_READ_SEARCH,
        name: "CAP_DAC_READ_SEARCH",
        required: false,
        purpose: "no symbols from files that only other users can read",
    },
    Needed {
        capability: CapabilitySet::CHECKPOINT_RESTORE,
        name: "CAP_CHECKPOINT_RESTORE",
        required: false,
        purpose: "no symbols from files that were deleted or replaced while running",
    },
];

/// What reading files, mappings and memory of other users' processes takes.
pub const READING: CapabilitySet = CapabilitySet::SYS_PTRACE
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::CHECKPOINT_RESTORE);

/// [`READING`], and to act as another user, for files that not even root may read
/// ([`crate::files::as_user`]).
pub const READING_AS_USERS: CapabilitySet = READING
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID);

/// The value of `kernel.perf_event_paranoid` if only kernels of distributions know it, and this
/// thread lacks the capabilities that they then ask for. Debian's and Ubuntu's ask for
/// `CAP_SYS_ADMIN` above 2 (their patch "Allow further restriction of perf_event_open"; Ubuntu's
/// newer ones are content with `CAP_PERFMON`).
pub fn strict_perf() -> Option<i64> {
    let value = strict_paranoid()?;
    let is_admin = effective().is_ok_and(|have| have.contains(CapabilitySet::SYS_ADMIN));
    (!is_admin).then_some(value)
}

fn strict_paranoid() -> Option<i64> {
    let text = kernel::read_to_string("/proc/sys/kernel/perf_event_paranoid").ok()?;
    text.trim().parse().ok().filter(|value| *value > 2)
}

/// The effective capabilities of this thread.
///
/// # Errors
/// The kernel's answer to capget(2).
pub fn effective() -> Result<CapabilitySet, PrivilegeError> {
    current().map(|sets| sets.effective)
}

fn current() -> Result<CapabilitySets, PrivilegeError> {
    rustix::thread::capabilities(None).map_err(|source| PrivilegeError::Kernel {
        action: "read",
        source,
    })
}

/// Whether `have` covers `need`. `CAP_SYS_ADMIN` stands in for the three that
/// were split off from it (Linux 5.8 and 5.9).
pub fn covers(have: CapabilitySet, need: CapabilitySet) -> bool {
    let split_off = CapabilitySet::BPF | CapabilitySet::PERFMON | CapabilitySet::CHECKPOINT_RESTORE;
    have.contains(need) || (split_off.contains(need) && have.contains(CapabilitySet::SYS_ADMIN))
}

/// The needed capabilities that `have` lacks.
pub fn missing(have: CapabilitySet) -> impl Iterator<Item = &'static Needed> {
    NEEDED
        .iter()
        .filter(move |needed| !covers(have, needed.capability))
}

/// Refuses, with the command that mends it, unless `have` allows profiling.
///
/// # Errors
/// [`PrivilegeError::Missing`] names what is missing.
pub fn require(have: CapabilitySet) -> Result<(), PrivilegeError> {
    let names: Vec<_> = missing(have)
        .filter(|needed| needed.required)
        .map(|needed| needed.name)
        .collect();
    if names.is_empty() {
        return Ok(());
    }
    Err(PrivilegeError::Missing {
        missing: names.join(" and "),
        program: program_name(),
    })
}

/// Refuses to run with another user's rights than the caller's: what the caller
/// names would be opened with them.
///
/// # Errors
/// [`PrivilegeError::SetUid`].
pub fn refuse_setuid() -> Result<(), PrivilegeError> {
    use rustix::process::{getegid, geteuid, getgid, getuid};
    if getuid() == geteuid() && getgid() == getegid() {
        return Ok(());
    }
    Err(PrivilegeError::SetUid {
        program: program_name(),
    })
}

/// How this program was called, for messages that quote a command.
fn program_name() -> String {
    std::env::current_exe()
        .ok()
        .and_then(|path| path.to_str().map(str::to_owned))
        .unwrap_or_else(|| "aiprof".into())
}

/// What the process will still do, which decides what it keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StillToDo {
    /// It writes a file: keep `CAP_CHOWN` (the file is given to the caller of
    /// sudo), `CAP_DAC_OVERRIDE` and `CAP_FOWNER` (renaming it into place in a
    /// directory of that caller).
    pub write_file: bool,
    /// It may have to signal a command of another user: keep `CAP_KILL`.
    pub signal_command: bool,
    /// It may begin to record anew, after a change of its configuration: keep `CAP_SYS_ADMIN`
    /// where the kernel asks for that to open a perf event (see [`strict_perf`]).
    pub open_events: bool,
    /// It may start the program anew that has the network and becomes another user: keep
    /// `CAP_SETUID` and `CAP_SETGID`.
    pub start_sender: bool,
}

/// The capabilities that a running recording needs.
fn needed_while_running(todo: StillToDo, is_strict: bool) -> CapabilitySet {
    // BPF and PERFMON: a CPU that comes online gets a new event and a program
    // attached. IPC_LOCK: that event's buffer counts as locked memory. The rest:
    // processes that start later are looked up, and symbols are read at the end.
    let mut keep = CapabilitySet::BPF
        | CapabilitySet::PERFMON
        | CapabilitySet::IPC_LOCK
        | CapabilitySet::SYS_PTRACE
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::CHECKPOINT_RESTORE;
    if todo.write_file {
        keep |= CapabilitySet::CHOWN | CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER;
    }
    if todo.signal_command {
        keep |= CapabilitySet::KILL;
    }
    if todo.start_sender {
        keep |= CapabilitySet::SETUID | CapabilitySet::SETGID;
    }
    if todo.open_events && is_strict {
        keep |= CapabilitySet::SYS_ADMIN;
    }
    keep
}

/// Gives up every capability that a running recording does not need, in the effective, permitted,
/// inheritable, ambient and bounding sets. Sets `no_new_privs`, so that nothing executed later can
/// regain them.
///
/// Capabilities belong to threads: this covers the calling thread and those it
/// starts afterwards. Call it after everything is attached and the command was
/// forked, for the command keeps the caller's privileges.
///
/// # Errors
/// The kernel's answer. What had been dropped until then stays dropped.
pub fn drop_to_needed(todo: StillToDo) -> Result<(), PrivilegeError> {
    restrict_to(needed_while_running(todo, strict_paranoid().is_some()))
}

/// Gives up every capability but those in `keep`, in all sets of this thread and
/// of those it starts, and what executing a program could give back.
///
/// # Errors
/// The kernel's answer.
pub fn drop_to(keep: CapabilitySet) -> Result<(), PrivilegeError> {
    restrict_to(keep)
}

/// Gives up every capability that came from the program file (setcap). This is for the subcommands
/// that only read and write files on the caller's behalf: a user who may profile must not thereby
/// read other users' files. Root keeps its own.
///
/// # Errors
/// The kernel's answer.
pub fn drop_file_capabilities() -> Result<(), PrivilegeError> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    restrict_to(CapabilitySet::empty())
}

fn restrict_to(keep: CapabilitySet) -> Result<(), PrivilegeError> {
    let fail = |source| PrivilegeError::Kernel {
        action: "drop",
        source,
    };
    let now = current()?;
    // The bounding set first: changing it takes CAP_SETPCAP, which goes next. A
    // program file with capabilities has it not, and no_new_privs does the same.
    if now.effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().difference(keep).iter() {
            match rustix::thread::remove_capability_from_bounding_set(capability) {
                // EINVAL: a capability that this kernel does not know.
                Ok(()) | Err(rustix::io::Errno::INVAL) => {}
                Err(source) => return Err(fail(source)),
            }
        }
    }
    let sets = CapabilitySets {
        effective: now.effective & keep,
        permitted: now.permitted & keep,
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, sets).map_err(fail)?;
    rustix::thread::set_no_new_privs(true).map_err(fail)
}

/// Whether this process got privileges from its program file (setuid or file
/// capabilities) and so must not trust what its caller hands it.
pub fn is_elevated_by_file() -> bool {
    // SAFETY: getauxval reads the auxiliary vector; any type is allowed.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_refused_politely_with_a_remedy() {
        let error = require(CapabilitySet::empty()).unwrap_err().to_string();
        for part in ["CAP_BPF and CAP_PERFMON", "sudo ", "setcap cap_bpf,"] {
            assert!(error.contains(part), "{part:?} not in {error:?}");
        }
        assert!(!error.contains("CAP_CHECKPOINT_RESTORE and"), "{error:?}");
    }

    #[test]
    fn one_missing_capability_is_named_alone() {
        let error = require(CapabilitySet::BPF).unwrap_err().to_string();
        assert!(error.contains("needs CAP_PERFMON\n"), "{error:?}");
    }

    #[test]
    fn sys_admin_stands_in_for_the_new_capabilities_only() {
        assert!(require(CapabilitySet::SYS_ADMIN).is_ok());
        let lacking: Vec<_> = missing(CapabilitySet::SYS_ADMIN).map(|n| n.name).collect();
        assert_eq!(lacking, ["CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"]);
    }

    #[test]
    fn the_setcap_line_lists_every_needed_capability() {
        for needed in NEEDED {
            assert!(SETCAP.contains(&needed.name.to_lowercase()), "{needed:?}");
        }
    }

    #[test]
    fn what_is_kept_covers_what_is_needed_and_no_more() {
        let bare = needed_while_running(StillToDo::default(), true);
        assert_eq!(missing(bare).count(), 0);
        let anew = StillToDo {
            open_events: true,
            ..StillToDo::default()
        };
        assert_eq!(needed_while_running(anew, false), bare);
        let strict = needed_while_running(anew, true);
        assert_eq!(strict, bare | CapabilitySet::SYS_ADMIN);
        let sender = StillToDo {
            start_sender: true,
            ..StillToDo::default()
        };
        let users = CapabilitySet::SETUID | CapabilitySet::SETGID;
        assert_eq!(needed_while_running(sender, true), bare | users);
        for never in [
            CapabilitySet::SYS_ADMIN,
            CapabilitySet::SYS_MODULE,
            CapabilitySet::SETUID,
            CapabilitySet::DAC_OVERRIDE,
            CapabilitySet::KILL,
        ] {
            assert!(!bare.contains(never), "{never:?} kept");
        }
    }

    #[test]
    fn dropping_takes_effect_and_cannot_be_undone() {
        // On a thread of its own: capabilities belong to threads.
        std::thread::spawn(|| {
            let before = current().unwrap();
            drop_to_needed(StillToDo::default()).unwrap();
            let after = current().unwrap();
            let keep = needed_while_running(StillToDo::default(), false);
            assert_eq!(after.permitted, before.permitted & keep);
            assert!(rustix::thread::no_new_privs().unwrap());
            assert!(
                before.permitted == after.permitted
                    || rustix::thread::set_capabilities(None, before).is_err()
            );
        })
        .join()
        .unwrap();
    }
}
