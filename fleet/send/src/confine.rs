//! Confines the program to its work, before it hears anything of the network.
//!
//! It becomes a user without rights where root starts it ([`user`]), opens only the files of its
//! work ([`landlock`]), and makes only the system calls of its work ([`seccomp`]). It executes
//! nothing, starts no process and looks into none. Its keeper reads for it all other files that it
//! needs.

mod landlock;
mod seccomp;
mod user;

use crate::metrics;
use aiprof_fleet::config::{Config, To};
use aiprof_fleet::{place, shared};
use aiprof_system::os::privileges;
use anyhow::Context as _;
use landlock::{PathRights, Rules};
use rustix::thread::CapabilitySet;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// What names of hosts are looked up with, each a file that may be replaced.
const NAMES: [&str; 7] = [
    "/etc/hosts",
    "/etc/resolv.conf",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/machine-id",
];
/// What is read of the system beside these: libraries of the name service, who is trusted, and
/// where `/etc/resolv.conf` may lead.
const SYSTEM: [&str; 20] = [
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/etc/ld.so.cache",
    "/etc/ssl/certs",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/certs",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/ca-trust/extracted",
    "/etc/ca-certificates/extracted",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
    "/usr/share/pki",
    "/var/lib/ca-certificates",
    "/run/systemd/resolve",
    "/run/NetworkManager",
    "/run/resolvconf",
    "/run/netconfig",
];
/// Variables that name files of certificates and of S3's credentials, which are replaced
/// beside others in their directories.
const FILES_BY_VARIABLE: [&str; 3] = [
    "SSL_CERT_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
];

/// What the program has confined itself to.
#[derive(Debug)]
pub(crate) struct Confined {
    state: PathBuf,
    lakes: Vec<PathBuf>,
    names: Vec<Option<Mark>>,
}

/// Directories that a start makes or shares, and what is wrong with them.
pub(crate) type Looked = BTreeMap<PathBuf, Result<(), String>>;

/// Device and inode.
type Mark = (u64, u64);

/// Confines the program, for good.
///
/// # Errors
/// It cannot be confined as it must be. A kernel without Landlock is no such error.
pub(crate) fn enter(config: &Config) -> anyhow::Result<Confined> {
    // Where there is an agent, they are there, and may be another user's.
    if let Err(error) = shared::prepare(config) {
        tracing::debug!("{}: {error}", config.state.display());
    }
    metrics::open_own();
    let lakes = lakes(config);
    user::make_lakes(&lakes);
    user::become_nobody(config, &lakes, user::can_work_in)?;
    user::share_with_group();
    privileges::drop_to(CapabilitySet::empty())?;
    let confined = Confined {
        state: config.state.clone(),
        names: NAMES.iter().map(|name| mark(Path::new(name))).collect(),
        lakes,
    };
    restrict(config, &confined.lakes)?;
    Ok(confined)
}

/// Confines the program as [`enter`] does, to look whether it could work so, and makes nothing.
/// What a start makes or shares is looked at before, for a start has more rights.
///
/// # Errors
/// As there.
pub(crate) fn enter_to_check(config: &Config) -> anyhow::Result<Looked> {
    let lakes = lakes(config);
    let looked = look(config, &lakes);
    let shared = [config.state.clone(), config.sender_directory()];
    let shared = shared.iter().chain(&lakes);
    let shared: Vec<_> = shared.filter_map(|it| it.canonicalize().ok()).collect();
    user::become_nobody(config, &lakes, |place, group| {
        user::will_work_in(place, group, &shared)
    })?;
    privileges::drop_to(CapabilitySet::empty())?;
    restrict(config, &lakes)?;
    Ok(looked)
}

/// Looks at the directories that a start makes or shares.
fn look(config: &Config, lakes: &[PathBuf]) -> Looked {
    let spool = config.spool_directory();
    let sent = config.outputs.iter().filter(|output| output.to.is_sent());
    let queues = sent.map(|output| spool.join(&output.name));
    // The agent makes those that are missing.
    let queues = queues.filter(|queue| queue.exists());
    let lakes = lakes.iter().map(|lake| (lake.clone(), place::ROOM));
    let all = queues.map(|queue| (queue, 0)).chain(lakes);
    all.filter(|(place, _)| user::is_prepared(place))
        .map(|(place, room)| {
            let found = place::check(&place, room);
            (place, found)
        })
        .collect()
}

fn restrict(config: &Config, lakes: &[PathBuf]) -> anyhow::Result<()> {
    if !landlock::restrict(&rules(config, lakes))
        .context("cannot restrict file access with Landlock")?
    {
        tracing::warn!(
            "the kernel has no Landlock: only file permissions limit what aiprof-send can open"
        );
    }
    seccomp::restrict(seccomp::Calls::OfSender).context("cannot restrict system calls with seccomp")
}

/// Confines the keeper: it reads files, and writes, sends and starts nothing.
///
/// # Errors
/// It cannot be confined.
pub(crate) fn enter_keeper() -> anyhow::Result<()> {
    privileges::drop_to(CapabilitySet::empty())?;
    // The program itself warns where there is none.
    landlock::restrict(&Rules::to_read_all())
        .context("cannot restrict file access with Landlock")?;
    seccomp::restrict(seccomp::Calls::OfKeeper).context("cannot restrict system calls with seccomp")
}

impl Confined {
    /// Whether a configuration needs what only a new start gives.
    pub(crate) fn is_too_narrow_for(&self, config: &Config) -> bool {
        let mut lakes = lakes(config).into_iter();
        config.state != self.state || lakes.any(|lake| !self.lakes.contains(&lake))
    }

    /// Whether what names are looked up with was replaced: the new files are not to be opened.
    pub(crate) fn is_outdated(&self) -> bool {
        let now = NAMES.iter().map(|name| mark(Path::new(name)));
        !now.eq(self.names.iter().copied())
    }
}

/// The directories of lakes.
fn lakes(config: &Config) -> Vec<PathBuf> {
    let all = config.outputs.iter().filter_map(|output| match &output.to {
        To::Lake(lake) => lake.directory(),
        _ => None,
    });
    all.collect()
}

/// Distinguishes a file from what takes its place; `None`: it is not there, or all in its directory
/// may be read.
fn mark(path: &Path) -> Option<Mark> {
    let path = std::fs::canonicalize(path).ok()?;
    if SYSTEM.iter().any(|folder| path.starts_with(folder)) {
        return None;
    }
    let about = std::fs::metadata(path).ok()?;
    Some((about.dev(), about.ino()))
}

fn rules(config: &Config, lakes: &[PathBuf]) -> Rules {
    let read = NAMES.iter().chain(&SYSTEM).map(PathBuf::from);
    let of_files = FILES_BY_VARIABLE.iter().filter_map(|name| {
        let file = PathBuf::from(std::env::var_os(name)?);
        Some(file.parent()?.to_owned())
    });
    let directory = std::env::var_os("SSL_CERT_DIR").map(PathBuf::from);
    let read = read.chain(of_files).chain(directory);
    let read = read.chain([config.state.clone()]);
    let mut rules = Rules::default();
    rules.add(read, PathRights::Read);
    let bodies = [config.spool_directory(), config.sender_directory()];
    rules.add(bodies, PathRights::Files);
    rules.add(lakes.iter().cloned(), PathRights::Files);
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What somebody who has taken the program over cannot do.
    fn attacks(folder: &Path) -> Vec<(&'static str, std::io::Result<()>)> {
        use rustix::process::{Pid, Signal};
        use std::net::UdpSocket;
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let spool = folder.join("state/spool/parca");
        let first = Pid::INIT;
        // SAFETY: it attaches to another process, or does not.
        let attached =
            unsafe { libc::ptrace(libc::PTRACE_SEIZE, first.as_raw_nonzero().get(), 0, 0) };
        let mode = std::fs::Permissions::from_mode(0o666);
        let socket = std::os::unix::net::UnixStream::connect(folder.join("socket"));
        // What its work needs still works.
        std::fs::write(spool.join(".rolling-up.new"), "note").unwrap();
        std::fs::read(folder.join("state/agent.json")).unwrap();
        UdpSocket::bind("127.0.0.1:0").unwrap();
        vec![
            ("shadow", std::fs::read("/etc/shadow").map(drop)),
            ("a token", std::fs::read(folder.join("token")).map(drop)),
            (
                "a file of root",
                std::fs::write(folder.join("token"), "mine"),
            ),
            ("a new file", std::fs::write(folder.join("new"), "mine")),
            (
                "the agent's status",
                std::fs::write(folder.join("state/agent.json"), "{}"),
            ),
            ("/tmp", std::fs::write("/tmp/of-aiprof-send", "mine")),
            (
                "a mode",
                std::fs::set_permissions(folder.join("state"), mode),
            ),
            ("a link", symlink("/etc/passwd", spool.join("link"))),
            (
                "a place",
                std::fs::rename(&spool, folder.join("state/spool/other")),
            ),
            ("memory", std::fs::read("/proc/1/environ").map(drop)),
            (
                "a program",
                std::process::Command::new("/bin/true").status().map(drop),
            ),
            (
                "a signal",
                rustix::process::kill_process(first, Signal::URG).map_err(Into::into),
            ),
            (
                "ptrace",
                if attached == 0 {
                    Ok(())
                } else {
                    Err(std::io::Error::last_os_error())
                },
            ),
            ("a socket of the machine", socket.map(drop)),
        ]
    }

    #[test]
    fn who_takes_it_over_gets_nothing() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o711);
        std::fs::set_permissions(folder.path(), mode).unwrap();
        let text = format!(
            "state = {:?}\n[[output]]\ntype = \"parca\"\nurl = \"http://x\"\n",
            path("state")
        );
        let config = Config::parse(Path::new("x"), &text).unwrap();
        shared::prepare(&config).unwrap();
        std::fs::write(path("state/agent.json"), "{}").unwrap();
        std::fs::write(path("token"), "s3cret").unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        let done = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                enter(&config).unwrap();
                assert_eq!(rustix::process::geteuid().as_raw(), 65534);
                attacks(folder.path())
            });
            thread.join().unwrap()
        });
        for (what, done) in done {
            assert!(done.is_err(), "{what}");
        }
    }

    #[test]
    fn another_lake_needs_another_start() {
        let config = |url: &str| {
            let text = format!("[[output]]\ntype = \"lake\"\nurl = {url:?}\n");
            Config::parse(Path::new("x"), &text).unwrap()
        };
        let confined = Confined {
            state: config("/lake").state,
            lakes: lakes(&config("/lake")),
            names: Vec::new(),
        };
        for (url, is_narrow) in [
            ("/lake", false),
            ("file:///lake", false),
            ("s3://lake", false),
            ("/other", true),
        ] {
            assert_eq!(confined.is_too_narrow_for(&config(url)), is_narrow, "{url}");
        }
    }
}
