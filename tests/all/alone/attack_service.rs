//! The units let a recording and an agent do what they need, and refuse the rest.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use aiprof_tests::aiprof::{binary, sender};
use aiprof_tests::need::{Need, skip_unless};

fn unit(name: &str) -> PathBuf {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    deploy.join(name)
}

/// The units that there are.
const UNITS: [&str; 3] = ["aiprof.service", "aiprof-agent.service", "aiprof-send.service"];

/// Groups of system calls by name, as systemd has them.
fn members(groups: &str, name: &str, into: &mut BTreeSet<String>) {
    if !name.starts_with('@') {
        into.insert(name.to_owned());
        return;
    }
    let lines = groups.lines().skip_while(|line| *line != name).skip(1);
    for line in lines.take_while(|line| line.starts_with(' ') || line.is_empty()) {
        match line.trim() {
            "" => break,
            comment if comment.starts_with('#') => {}
            member => members(groups, member, into),
        }
    }
}

/// What a unit's filter allows.
fn allowed(unit: &Path) -> anyhow::Result<BTreeSet<String>> {
    let groups = Command::new("systemd-analyze")
        .arg("syscall-filter")
        .output()?;
    let groups = String::from_utf8_lossy(&groups.stdout).into_owned();
    let mut allowed = BTreeSet::new();
    let unit = std::fs::read_to_string(unit)?;
    let lines = unit
        .lines()
        .filter_map(|line| line.strip_prefix("SystemCallFilter="));
    for line in lines {
        let mut of_line = BTreeSet::new();
        let names = line.strip_prefix('~').unwrap_or(line);
        for name in names.split_whitespace() {
            members(&groups, name, &mut of_line);
        }
        match line.starts_with('~') {
            true => allowed.retain(|name| !of_line.contains(name)),
            false => allowed.extend(of_line),
        }
    }
    Ok(allowed)
}

#[test]
fn the_unit_allows_every_system_call_of_a_recording() -> anyhow::Result<()> {
    let needs = [
        Need::Root,
        Need::Tool("strace"),
        Need::Tool("systemd-analyze"),
    ];
    skip_unless!(&needs);
    let dir = tempfile::tempdir()?;
    let agent = format!(
        "window = \"2s\"\nstate = \"{0}/state\"\n[record]\noff_cpu = true\n[metrics]\nlisten = \"off\"\n\
         [[output]]\ntype = \"files\"\ndirectory = \"{0}/files\"\n",
        dir.path().display()
    );
    std::fs::write(dir.path().join("agent.toml"), agent)?;
    let (recording, delivery) = ("aiprof.service", "aiprof-send.service");
    for (name, args) in [
        (recording, &["-d", "2", "-o", "x.svg"][..]),
        (
            recording,
            &["--every", "1s", "--keep", "1", "-d", "3", "-o", "."],
        ),
        (
            "aiprof-agent.service",
            &["agent", "--no-send", "--config", "agent.toml"],
        ),
        (delivery, &["--config", "agent.toml", "--once"]),
    ] {
        let allowed = allowed(&unit(name))?;
        let table = dir.path().join("calls");
        let mut command = Command::new("strace");
        command.args(["-f", "-c", "-o"]).arg(&table);
        if name == "aiprof-agent.service" {
            // Nothing else ends an agent.
            command.args(["timeout", "--preserve-status", "-s", "TERM", "8"]);
        }
        command.arg(if name == delivery { sender()? } else { binary()? });
        let status = command.args(args).current_dir(dir.path()).status()?;
        anyhow::ensure!(status.success(), "{status}");
        let table = std::fs::read_to_string(table)?;
        let calls = table.lines().filter_map(|line| {
            line.trim_start()
                .starts_with(|c: char| c.is_ascii_digit())
                .then_some(line)?;
            line.split_whitespace().last()
        });
        let mut calls: BTreeSet<_> = calls
            // An entry that is no name of a call shows that a process went on without strace.
            .filter(|call| *call != "total" && !call.contains('>'))
            .map(str::to_owned)
            .collect();
        let own = if name == delivery { "seccomp" } else { "bpf" };
        anyhow::ensure!(calls.contains(own), "{calls:?}");
        // Started by root it becomes another user; in the unit it is one.
        let becomes = ["setgroups", "setresgid", "setresuid"];
        if name == delivery {
            calls.retain(|call| !becomes.contains(&call.as_str()));
        }
        // strace itself starts the program.
        let missing: Vec<_> = calls.difference(&allowed).collect();
        anyhow::ensure!(missing.is_empty(), "{args:?}: {missing:?}");
    }
    Ok(())
}

#[test]
fn what_has_privileges_has_no_network_and_what_has_it_has_none() -> anyhow::Result<()> {
    let has = |name: &str, line: &str| -> anyhow::Result<bool> {
        let text = std::fs::read_to_string(unit(name))?;
        Ok(text.lines().any(|it| it == line))
    };
    for name in ["aiprof.service", "aiprof-agent.service"] {
        for line in ["PrivateNetwork=yes", "IPAddressDeny=any", "RestrictAddressFamilies=AF_UNIX"] {
            anyhow::ensure!(has(name, line)?, "{name}: no {line}");
        }
    }
    for line in ["DynamicUser=yes", "CapabilityBoundingSet=", "ProtectSystem=strict"] {
        anyhow::ensure!(has("aiprof-send.service", line)?, "no {line}");
    }
    Ok(())
}

#[test]
fn the_unit_refuses_what_a_recording_never_needs() -> anyhow::Result<()> {
    skip_unless!(&[Need::Tool("systemd-analyze")]);
    for name in UNITS {
        let unit = unit(name);
        let allowed = allowed(&unit)?;
        for call in [
            "setns",
            "unshare",
            "mount",
            "init_module",
            "ptrace",
            "reboot",
            "syslog",
            "kexec_load",
        ] {
            anyhow::ensure!(!allowed.contains(call), "{name}: {call}");
        }
        let verified = Command::new("systemd-analyze")
            .arg("verify")
            .arg(&unit)
            .output()?;
        let said = String::from_utf8_lossy(&verified.stderr).into_owned();
        // The program need not be installed here.
        let wrong: Vec<_> = said
            .lines()
            .filter(|line| !line.contains("is not executable"))
            .collect();
        anyhow::ensure!(wrong.is_empty(), "{name}: {wrong:?}");
        // By systemd's own scale of ten.
        let mut exposure = Command::new("systemd-analyze");
        exposure.args(["security", "--offline=true", "--no-pager", "--threshold", "30"]);
        let judged = exposure.arg(&unit).output()?;
        let said = String::from_utf8_lossy(&judged.stdout).into_owned();
        anyhow::ensure!(judged.status.success(), "{name}: {said}");
        let text = std::fs::read_to_string(&unit).context("no unit")?;
        anyhow::ensure!(text.lines().any(|line| line == "NoNewPrivileges=yes"));
    }
    Ok(())
}
