//! Pending return probes in the stack: the true chain all the same.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use aiprof_tests::aiprof::{Aiprof, truth};
use aiprof_tests::chain::{check, check_reached, from_entry};
use aiprof_tests::folded::Line;
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::{Workshop, checked};

const NEEDS: [Need; 3] = [
    Need::Root,
    Need::Tool("cc"),
    Need::Path("/sys/kernel/tracing"),
];
const LEAST: u64 = 800;

/// Return probes of this test in the kernel's trace file system, removed when
/// dropped.
struct ReturnProbes {
    tracefs: PathBuf,
    group: String,
    names: Vec<String>,
}

impl ReturnProbes {
    /// Sets a return probe at each file offset of a program. `None` where this
    /// kernel has no uprobe events.
    fn set(program: &Path, offsets: &[(&str, u64)]) -> anyhow::Result<Option<Self>> {
        let tracefs = PathBuf::from("/sys/kernel/tracing");
        if !tracefs.join("events").exists() {
            checked(
                Command::new("mount")
                    .args(["-t", "tracefs", "tracefs"])
                    .arg(&tracefs),
            )?;
        }
        if !tracefs.join("uprobe_events").exists() {
            return Ok(None);
        }
        let mut probes = Self {
            tracefs,
            group: format!("aiprof_tests_{}", std::process::id()),
            names: Vec::new(),
        };
        for (name, offset) in offsets {
            let definition = format!(
                "r:{}/{name} {}:{offset:#x}",
                probes.group,
                program.display()
            );
            probes.append(&definition)?;
            probes.names.push((*name).to_owned());
            probes.enable(name, true)?;
        }
        Ok(Some(probes))
    }

    fn append(&self, line: &str) -> anyhow::Result<()> {
        use std::io::Write as _;
        let path = self.tracefs.join("uprobe_events");
        let mut file = std::fs::File::options().append(true).open(&path)?;
        file.write_all(line.as_bytes())
            .with_context(|| format!("writing {line:?}"))
    }

    fn event(&self, name: &str) -> PathBuf {
        self.tracefs.join("events").join(&self.group).join(name)
    }

    fn enable(&self, name: &str, on: bool) -> anyhow::Result<()> {
        let path = self.event(name).join("enable");
        std::fs::write(&path, if on { "1" } else { "0" })
            .with_context(|| format!("writing {}", path.display()))
    }

    /// How often the probes fired, by the kernel's own count.
    fn hits(&self) -> anyhow::Result<u64> {
        let profile = std::fs::read_to_string(self.tracefs.join("uprobe_profile"))?;
        // FILE EVENT HITS
        let hits = profile.lines().filter_map(|line| {
            let mut fields = line.split_whitespace().rev();
            let (hits, name) = (fields.next()?, fields.next()?);
            self.names
                .iter()
                .any(|n| n == name)
                .then(|| hits.parse::<u64>().ok())?
        });
        Ok(hits.sum())
    }
}

impl Drop for ReturnProbes {
    fn drop(&mut self) {
        for name in &self.names {
            // Nothing can be done about a probe that does not go away.
            let _ = self.enable(name, false);
            let _ = self.append(&format!("-:{}/{name}", self.group));
        }
    }
}

/// The chains of probed.c: two probed calls nested, or one ten deep in itself.
/// The leaf may lie in the kernel's own page for probes, which has no symbols.
fn is_probed(line: &Line) -> bool {
    let mut deep = vec!["probed_again"; 10];
    deep.push("probed_leaf");
    let nested = ["probed_outer", "probed_inner", "probed_leaf"];
    from_entry(line, "main").is_some_and(|names| {
        let body = match &names[1..] {
            [body @ .., leaf] if leaf.starts_with('[') => body,
            body => body,
        };
        nested.starts_with(body) || deep.starts_with(body) || body.first() == Some(&"work_left")
    })
}

fn check_probed(name: &str, probed: &[&str]) -> anyhow::Result<()> {
    skip_unless!(name, &NEEDS);
    let shop = Workshop::new()?;
    let program = shop.build("probed.c", "probed", &[])?;
    let offsets = checked(Command::new(&program).args(["0", "offsets"]))?;
    let offsets = probed
        .iter()
        .map(|function| Ok((*function, truth(&offsets, function)? as u64)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let Some(probes) = ReturnProbes::set(&program, &offsets)? else {
        aiprof_tests::need::skip(name, "needs uprobe events (CONFIG_UPROBE_EVENTS)");
        return Ok(());
    };
    let run = Aiprof::counting().command(&program, &["2"]).record_one()?;
    anyhow::ensure!(probes.hits()? > 100, "the probes did not fire");
    check(name, &run.folded, LEAST, is_probed)?;
    for called in ["probed_outer", "probed_again"] {
        check_reached(called, &run.folded, 0.3, |l| {
            is_probed(l) && l.has(called) && l.has("probed_leaf")
        })?;
    }
    Ok(())
}

#[test]
fn one_pending_return_probe() -> anyhow::Result<()> {
    check_probed("one_pending_return_probe", &["probed_outer"])
}

#[test]
fn nested_and_recursive_pending_return_probes() -> anyhow::Result<()> {
    check_probed(
        "nested_and_recursive_pending_return_probes",
        &["probed_outer", "probed_inner", "probed_again"],
    )
}
