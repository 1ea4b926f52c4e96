//! The packages: one command installs them on a clean Debian with the real systemd, profiles
//! arrive at a server, and nothing is left when they are purged.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use aiprof_tests::aiprof::{binary, sender};
use aiprof_tests::child::Child;
use aiprof_tests::http::Server;
use aiprof_tests::need::{Need, skip, skip_unless};
use aiprof_tests::workload::{Workshop, cached, checked};

/// How long the first profile may take after the package was installed.
const ARRIVAL: Duration = Duration::from_secs(60);
/// How long the service manager may take for anything.
const LONG: Duration = Duration::from_secs(60);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The packages of the programs that tests have anyway, as `cargo xtask package` makes them.
fn packages(shop: &Workshop, kind: &str) -> anyhow::Result<PathBuf> {
    // Not the release build; without its lines it is packed sooner.
    let send = shop.path("aiprof-send");
    checked(Command::new("strip").arg("-o").arg(&send).arg(sender()?))?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["run", "--quiet", "--package", "xtask", "--", "package"]);
    command
        .arg("--aiprof")
        .arg(binary()?)
        .arg("--send")
        .arg(send);
    command
        .args(["--only", kind])
        .arg("-o")
        .arg(shop.path("packages"));
    checked(command.current_dir(root()))?;
    let made = std::fs::read_dir(shop.path("packages"))?.flatten();
    let mut made = made.map(|entry| entry.path());
    let of_kind = made.find(|path| path.extension() == Some(kind.as_ref()));
    of_kind.context("no package was made")
}

/// A Debian of essential packages and systemd, made once.
fn debian() -> anyhow::Result<PathBuf> {
    cached("bookworm, systemd", &[], "debian", |folder| {
        // What a try before left.
        let _ = std::fs::remove_dir_all(folder.join("debian"));
        let mut command = Command::new("mmdebstrap");
        command.args(["--quiet", "--variant=essential", "--include=systemd"]);
        checked(command.arg("bookworm").arg(folder.join("debian"))).map(drop)
    })
}

/// A control group with all below it, removed when dropped.
struct Group(PathBuf);

impl Group {
    fn new() -> anyhow::Result<Self> {
        let mounts = std::fs::read_to_string("/proc/mounts")?;
        let place = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let place = fields.next()?;
            (fields.next() == Some("cgroup2")).then_some(place)
        });
        let place = place.context("no control groups of version 2 are mounted")?;
        let group = Path::new(place).join(format!("aiprof-packages-{}", std::process::id()));
        std::fs::create_dir(&group)?;
        Ok(Self(group))
    }
}

/// Removes a control group and those below it.
fn remove_group(group: &Path) {
    for entry in std::fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_group(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(group);
}

impl Drop for Group {
    fn drop(&mut self) {
        let begun = Instant::now();
        // Not before the kernel has let go of the last process.
        while self.0.exists() && begun.elapsed() < Duration::from_secs(5) {
            remove_group(&self.0);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A Debian that runs, with systemd as its first process.
struct Machine {
    // Ended before its control group is removed.
    _outer: Child,
    first: u32,
    _group: Group,
}

impl Machine {
    /// Boots one; what it writes is below `place`.
    fn boot(debian: &Path, place: &Path) -> anyhow::Result<Self> {
        let group = Group::new()?;
        let folders = ["upper", "work", "root"].map(|name| place.join(name));
        for folder in &folders {
            std::fs::create_dir_all(folder)?;
        }
        // It moves itself there first, so that the namespace of control groups begins there.
        let boot = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/boot.sh");
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $$ >\"$0\" && exec \"$@\""])
            .arg(group.0.join("cgroup.procs"))
            .arg(boot)
            .arg(debian)
            .args(&folders)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(place.join("boot.err"))?);
        let mut outer = Child::start(&mut command)?;
        let begun = Instant::now();
        let first = loop {
            let children = format!("/proc/{0}/task/{0}/children", outer.pid());
            let children = std::fs::read_to_string(children).unwrap_or_default();
            let is_systemd = |pid: &u32| {
                let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
                name.is_ok_and(|name| name.trim() == "systemd")
            };
            let mut pids = children
                .split_whitespace()
                .filter_map(|pid| pid.parse().ok());
            if let Some(first) = pids.find(is_systemd) {
                break first;
            }
            let said = std::fs::read_to_string(place.join("boot.err"))?;
            ensure!(
                outer.is_running() && begun.elapsed() < LONG,
                "no systemd: {said}"
            );
            std::thread::sleep(Duration::from_millis(20));
        };
        let machine = Self {
            _outer: outer,
            first,
            _group: group,
        };
        loop {
            let state = machine.run(&["systemctl", "is-system-running"]).output()?;
            let state = String::from_utf8_lossy(&state.stdout).trim().to_owned();
            if ["running", "degraded"].contains(&state.as_str()) {
                return Ok(machine);
            }
            ensure!(begun.elapsed() < LONG, "systemd is {state}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// A command in it.
    fn run(&self, command: &[&str]) -> Command {
        let mut enter = Command::new("nsenter");
        enter.arg(format!("--target={}", self.first));
        enter.args([
            "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--root", "--wd", "--",
        ]);
        enter.args([
            "env",
            "-i",
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            "DEBIAN_FRONTEND=noninteractive",
        ]);
        enter.args(command).stdin(Stdio::null());
        enter
    }

    fn checked(&self, command: &[&str]) -> anyhow::Result<String> {
        Ok(checked(&mut self.run(command))?.trim().to_owned())
    }

    /// A property of the agent's unit.
    fn unit(&self, property: &str) -> anyhow::Result<String> {
        let unit = "aiprof-agent.service";
        self.checked(&["systemctl", "show", "--value", "-p", property, unit])
    }

    /// All files, but those of dpkg and systemd themselves.
    fn files(&self) -> anyhow::Result<BTreeSet<String>> {
        let all = self.checked(&["find", "/", "-xdev"])?;
        let others = [
            "/var/lib/dpkg",
            "/var/log",
            "/var/cache/ldconfig",
            "/var/lib/systemd",
            // The package itself.
            "/aiprof.deb",
        ];
        let is_other = |path: &&str| others.iter().any(|other| path.starts_with(other));
        let files = all.lines().filter(|path| !is_other(path));
        Ok(files.map(str::to_owned).collect())
    }

    fn await_unit(&self, property: &str, value: &str) -> anyhow::Result<()> {
        let begun = Instant::now();
        while self.unit(property)? != value {
            let status = self
                .run(&["systemctl", "status", "aiprof-agent"])
                .output()?;
            let status = String::from_utf8_lossy(&status.stdout).into_owned();
            ensure!(
                begun.elapsed() < LONG,
                "{property} is not {value}: {status}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

fn await_request(server: &Server, more_than: usize, most: Duration) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    while server.requests().len() <= more_than {
        ensure!(begun.elapsed() < most, "no profile arrived in {most:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(begun.elapsed())
}

#[test]
fn one_command_installs_and_profiles_arrive_and_a_purge_leaves_nothing() -> anyhow::Result<()> {
    let name = "one_command_installs_and_profiles_arrive_and_a_purge_leaves_nothing";
    let tools = ["mmdebstrap", "unshare", "nsenter", "strip", "python3"].map(Need::Tool);
    let needs = [&[Need::Root][..], &tools].concat();
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let begun = Instant::now();
    let package = packages(&shop, "deb")?;
    println!("packed in {:.1} s", begun.elapsed().as_secs_f64());
    let begun = Instant::now();
    let debian = match debian() {
        Ok(debian) => debian,
        Err(error) => {
            skip(name, &format!("no Debian can be made: {error:#}"));
            return Ok(());
        }
    };
    println!(
        "a clean Debian after {:.1} s",
        begun.elapsed().as_secs_f64()
    );
    let server = Server::start()?;
    let upper = shop.path("upper");
    // Before the package: dpkg keeps a configuration that is there.
    std::fs::create_dir_all(&upper)?;
    std::fs::set_permissions(&upper, std::fs::Permissions::from_mode(0o755))?;
    std::fs::copy(&package, upper.join("aiprof.deb"))?;
    let begun = Instant::now();
    let machine = Machine::boot(&debian, &shop.path(""))?;
    println!("systemd runs after {:.1} s", begun.elapsed().as_secs_f64());
    let before = machine.files()?;
    let config = format!(
        "window = \"5s\"\nlabels = {{ cluster = \"c1\" }}\n\
         [[output]]\ntype = \"otlp\"\nurl = \"http://{}/v1development/profiles\"\n",
        server.address()
    );
    let write = format!("mkdir /etc/aiprof && printf '%s' '{config}' >/etc/aiprof/agent.toml");
    machine.checked(&["sh", "-c", &write])?;

    let begun = Instant::now();
    let install = ["dpkg", "--force-confold", "--install", "/aiprof.deb"];
    machine.checked(&install)?;
    let installed = begun.elapsed();
    await_request(&server, 0, ARRIVAL.saturating_sub(installed))?;
    println!(
        "installed in {:.1} s; the first profile arrived {:.1} s after the command began \
         (windows of 5 s)",
        installed.as_secs_f64(),
        begun.elapsed().as_secs_f64()
    );
    for request in server.requests() {
        ensure!(request.path == "/v1development/profiles" && request.body.len() > 100);
    }
    // The unit has the properties of its file, and the agent works within it.
    for (property, value) in [
        ("ActiveState", "active"),
        ("UnitFileState", "enabled"),
        ("NRestarts", "0"),
        ("NoNewPrivileges", "yes"),
    ] {
        let found = machine.unit(property)?;
        ensure!(found == value, "{property} is {found}");
    }
    let pid = machine.unit("MainPID")?;
    let status = machine.checked(&["cat", &format!("/proc/{pid}/status")])?;
    ensure!(
        status.contains("Name:\taiprof\n") && status.contains("Seccomp:\t2"),
        "{status}"
    );
    // What has the network is another user in a unit of its own.
    let main = ["systemctl", "show", "--value", "-p", "MainPID", "aiprof-send"];
    let sender = machine.checked(&main)?;
    let status = machine.checked(&["cat", &format!("/proc/{sender}/status")])?;
    let cannot = ["Seccomp:\t2", "NoNewPrivs:\t1", "CapEff:\t0000000000000000"];
    ensure!(
        status.contains("Name:\taiprof-send\n")
            && !status.contains("Uid:\t0")
            && cannot.iter().all(|it| status.contains(it)),
        "{status}"
    );
    let networks = ["readlink", &format!("/proc/{pid}/ns/net"), &format!("/proc/{sender}/ns/net")];
    let networks = machine.checked(&networks)?;
    let (of_agent, of_sender) = networks.split_once('\n').context("no networks")?;
    ensure!(of_agent != of_sender, "the agent has the network: {networks}");
    machine.checked(&["aiprof", "ctl", "status", "agent"])?;
    machine.checked(&["systemctl", "reload", "aiprof-agent"])?;
    machine.await_unit("ActiveState", "active")?;
    ensure!(machine.unit("MainPID")? == pid, "a reload is a restart");
    ensure!(machine.checked(&main)? == sender, "a reload is a restart");
    let page = machine.checked(&["zcat", "/usr/share/man/man1/aiprof.1.gz"])?;
    ensure!(page.contains(".SH \"AIPROF AGENT\""), "no man page");

    // An update restarts it, with the configuration that was there.
    machine.checked(&install)?;
    machine.await_unit("ActiveState", "active")?;
    ensure!(
        machine.unit("MainPID")? != pid,
        "an update leaves the old program running"
    );
    let kept = machine.checked(&["cat", "/etc/aiprof/agent.toml"])?;
    ensure!(kept.contains("cluster"), "{kept}");
    let sent = server.requests().len();
    await_request(&server, sent, ARRIVAL)?;

    // Removed, its profiles stay; purged, nothing does.
    machine.checked(&["dpkg", "--remove", "aiprof"])?;
    let processes = machine.checked(&["sh", "-c", "cat /proc/[0-9]*/comm"])?;
    ensure!(!processes.contains("aiprof"), "{processes}");
    let state = "/var/lib/aiprof/agent.json".to_owned();
    let files = machine.files()?;
    ensure!(
        files.contains(&state),
        "the state is gone before it is purged"
    );
    machine.checked(&["dpkg", "--purge", "aiprof"])?;
    let after = machine.files()?;
    let left: Vec<_> = after.difference(&before).collect();
    ensure!(left.is_empty(), "left after the purge: {left:?}");
    let gone: Vec<_> = before.difference(&after).collect();
    ensure!(gone.is_empty(), "not the package's, and gone: {gone:?}");
    let unit = machine
        .run(&["systemctl", "cat", "aiprof-agent"])
        .output()?;
    ensure!(!unit.status.success(), "the unit is still known");
    Ok(())
}

#[test]
fn an_rpm_has_the_same_files_and_needs() -> anyhow::Result<()> {
    let tools = ["rpm", "strip", "python3"].map(Need::Tool);
    skip_unless!(&tools);
    let shop = Workshop::new()?;
    let package = packages(&shop, "rpm")?;
    let query = |what: &str| checked(Command::new("rpm").args(["-qp", what]).arg(&package));
    let files = query("--list")?;
    for file in [
        "/usr/bin/aiprof",
        "/usr/bin/aiprof-send",
        "/usr/lib/systemd/system/aiprof-agent.service",
        "/usr/lib/systemd/system/aiprof-send.service",
        "/usr/share/man/man1/aiprof.1.gz",
        "/usr/share/zsh/site-functions/_aiprof",
    ] {
        ensure!(files.lines().any(|it| it == file), "no {file}: {files}");
    }
    ensure!(query("--configfiles")?.trim() == "/etc/aiprof/agent.toml");
    ensure!(
        query("--requires")?.contains("glibc >= 2."),
        "{}",
        query("--requires")?
    );
    let scripts = query("--scripts")?;
    ensure!(scripts.matches("scriptlet").count() == 3, "{scripts}");
    Ok(())
}
