//! Options that choose what is recorded, as whom, and into which files; and the
//! subcommands that work on what was recorded.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::Context as _;

use aiprof_tests::aiprof::{Aiprof, binary, truth};
use aiprof_tests::cgroup::Cgroup;
use aiprof_tests::chain::{check_reached, check_share};
use aiprof_tests::child::Child;
use aiprof_tests::folded::Folded;
use aiprof_tests::need::{Need, skip, skip_unless};
use aiprof_tests::workload::{Workshop, checked};

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("cc")];
const LEAST: u64 = 200;

/// depth.c, running for a minute unless it is killed.
fn busy(shop: &Workshop, name: &str) -> anyhow::Result<Child> {
    let program = shop.build("depth.c", name, &[])?;
    // It gets more CPU time than other programs, and leaves some to aiprof.
    let mut child = Child::start(
        Command::new("nice")
            .args(["-n", "-5"])
            .arg(program)
            .args(["60", "5"])
            .stdout(Stdio::piped()),
    )?;
    anyhow::ensure!(truth(&child.read_line()?, "pid")? as u32 == child.pid());
    Ok(child)
}

#[test]
fn one_cgroup_and_nothing_else() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let cgroup = match Cgroup::new(&format!("aiprof-test-{}", std::process::id())) {
        Ok(cgroup) => cgroup,
        Err(reason) => {
            skip("one_cgroup_and_nothing_else", &reason);
            return Ok(());
        }
    };
    let shop = Workshop::new()?;
    let (inside, _outside) = (busy(&shop, "inside")?, busy(&shop, "outside")?);
    cgroup.add(inside.pid())?;
    let name = cgroup.path().file_name().context("a name")?.to_owned();
    // Once as a directory, once by its name below the hierarchy's root.
    for path in [cgroup.path().as_os_str(), &name] {
        let run = Aiprof::counting()
            .option("--cgroup")
            .option(path)
            .until_used(inside.pid(), 2)
            .record()?;
        anyhow::ensure!(run.status.success(), "{}\n{}", run.status, run.stderr);
        check_share("only the group", &run.folded, LEAST, 1.0, |line| {
            line.pid == inside.pid()
        })?;
    }
    drop(inside);
    let missing = Aiprof::counting()
        .option("--cgroup")
        .option("no/such/group")
        .command("true", &[""; 0])
        .to_command()?
        .output()?;
    let stderr = String::from_utf8_lossy(&missing.stderr);
    anyhow::ensure!(
        !missing.status.success() && stderr.contains("no/such/group"),
        "{}\n{stderr}",
        missing.status
    );
    Ok(())
}

/// Names and text of the files that `--every` left in a directory, by time.
fn windows(dir: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        files.push((name, std::fs::read_to_string(entry.path())?));
    }
    files.sort();
    Ok(files)
}

#[test]
fn every_window_is_a_file_and_the_newest_are_kept() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    for (keep, least) in [(Some("2"), 2), (None, 4)] {
        let busy = busy(&shop, "busy")?;
        let begun = Instant::now();
        let dir = shop.path(&format!("windows-{least}"));
        let mut aiprof = Aiprof::counting();
        for option in ["--every", "1s", "--format", "folded", "-o"] {
            aiprof = aiprof.option(option);
        }
        aiprof = aiprof.option(&dir);
        if let Some(keep) = keep {
            aiprof = aiprof.option("--keep").option(keep);
        }
        // Some six windows, and more where it is not always on a CPU.
        let output = aiprof.until_used(busy.pid(), 6).to_command()?.output()?;
        let most = keep.map_or(begun.elapsed().as_secs() as usize + 1, |_| 2);
        let stderr = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "{}\n{stderr}", output.status);
        let files = windows(&dir)?;
        let names: Vec<_> = files.iter().map(|(name, _)| name).collect();
        anyhow::ensure!(
            (least..=most).contains(&files.len())
                && names
                    .iter()
                    .all(|n| n.starts_with("aiprof-") && n.ends_with("Z.folded")),
            "{names:?}\n{stderr}"
        );
        let mut all = 0;
        for (at, (name, text)) in files.iter().rev().enumerate() {
            let folded = Folded::parse(text)?.of_pid(busy.pid());
            all += folded.total();
            // The last window may be a short one.
            anyhow::ensure!(
                at == 0
                    || folded.total() >= 100 && folded.lines.iter().any(|l| l.has("bottom")),
                "{name}: {}",
                folded.excerpt(5)
            );
        }
        // It used 6 s of CPU time while it was recorded.
        anyhow::ensure!(keep.is_some() || all >= 499 * 5, "{all} samples");
    }
    Ok(())
}

#[test]
fn command_as_the_sudo_user() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    let script = "id -u; id -g; grep ^CapEff /proc/self/status; echo $HOME:$USER:$LOGNAME";
    let nobody = Command::new("getent").args(["passwd", "65534"]).output()?;
    let nobody = String::from_utf8(nobody.stdout)?;
    let fields: Vec<&str> = nobody.trim().split(':').collect();
    anyhow::ensure!(fields.len() == 7, "{nobody}");
    let nobody = format!("{}:{}:{}", fields[5], fields[0], fields[0]);
    for (as_user, expected, variables) in [
        (true, ["65534", "65533"], &*nobody),
        (false, ["0", "0"], "/caller:caller:caller"),
    ] {
        let shop = Workshop::new()?;
        let mut aiprof = Aiprof::counting()
            .option("-o")
            .option(shop.path("out.folded"));
        if as_user {
            aiprof = aiprof.option("--as-user");
        }
        let output = aiprof
            .command("sh", &["-c", script])
            .to_command()?
            .env("SUDO_UID", "65534")
            .env("SUDO_GID", "65533")
            .env("HOME", "/caller")
            .env("USER", "caller")
            .env("LOGNAME", "caller")
            .output()?;
        let (stdout, stderr) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        anyhow::ensure!(output.status.success(), "{}\n{stderr}", output.status);
        let lines: Vec<_> = stdout.lines().collect();
        anyhow::ensure!(lines.len() == 4 && lines[..2] == expected, "{stdout}");
        anyhow::ensure!(lines[3] == variables, "{stdout}");
        let powerless = lines[2]
            .trim_start_matches("CapEff:")
            .trim_matches(['\t', '0']);
        anyhow::ensure!(!as_user || powerless.is_empty(), "{stdout}");
    }
    // Without sudo there is no such user.
    let output = Aiprof::counting()
        .option("--as-user")
        .command("true", &[""; 0])
        .to_command()?
        .env_remove("SUDO_UID")
        .env_remove("SUDO_GID")
        .output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(
        output.status.code() == Some(2) && stderr.contains("SUDO_UID"),
        "{}\n{stderr}",
        output.status
    );
    Ok(())
}

#[test]
fn title_is_the_flame_graphs() -> anyhow::Result<()> {
    skip_unless!(&[Need::Root]);
    let shop = Workshop::new()?;
    let svg = shop.path("flame.svg");
    let output = Aiprof::with(["--title", "before <the> change", "-o"])
        .option(&svg)
        .command("sleep", &["1"])
        .to_command()?
        .output()?;
    anyhow::ensure!(output.status.success(), "{}", output.status);
    let text = std::fs::read_to_string(svg)?;
    anyhow::ensure!(
        text.contains("before &lt;the&gt; change"),
        "no title in {text:.2000}"
    );
    Ok(())
}

/// `aiprof report CAPTURE OPTIONS`, in samples.
fn report(shop: &Workshop, capture: &Path, options: &[&str]) -> anyhow::Result<Folded> {
    let out = shop.path("report.folded");
    let mut command = Command::new(binary()?);
    command.arg("report").arg(capture).args(options);
    checked(command.args(["--weight", "samples", "-o"]).arg(&out))?;
    Folded::parse(&std::fs::read_to_string(out)?)
}

#[test]
fn report_leaves_out_kernel_and_inlined_frames() -> anyhow::Result<()> {
    let needs = [Need::Root, Need::Tool("c++")];
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let program = shop.build("inlines.cpp", "inlines", &["-g"])?;
    let capture = shop.path("run.aiprof");
    let script = "\"$0\" 1; dd if=/dev/zero of=/dev/null bs=64k count=60000 2>/dev/null";
    let mut recording = Aiprof::with(["-F", "499", "-o"])
        .option(&capture)
        .command("sh", &["-c".as_ref(), script.as_ref(), program.as_os_str()])
        .to_command()?;
    let stdout = checked(&mut recording)?;
    let pid = truth(&stdout, "pid")? as u32;
    let has = |folded: &Folded, suffix: &str| {
        let mut frames = folded.lines.iter().flat_map(|line| &line.frames);
        frames.any(|frame| frame.ends_with(suffix))
    };
    let all = report(&shop, &capture, &[])?;
    check_reached("inlined functions", &all.of_pid(pid), 0.5, |line| {
        line.frames.iter().any(|frame| frame.ends_with("_[i]"))
    })?;
    check_reached("kernel frames", &all.of_comm("dd"), 0.2, |l| l.in_kernel())?;
    let flat = report(&shop, &capture, &["--no-inlines"])?;
    anyhow::ensure!(
        has(&flat, "_[k]") && !has(&flat, "_[i]"),
        "{}",
        flat.excerpt(10)
    );
    check_reached("the real function", &flat.of_pid(pid), 0.5, |line| {
        line.has("outermost")
    })?;
    let user = report(&shop, &capture, &["--no-kernel"])?;
    anyhow::ensure!(
        has(&user, "_[i]") && !has(&user, "_[k]"),
        "{}",
        user.excerpt(10)
    );
    // What is left out of the stacks is still in the total.
    anyhow::ensure!(
        flat.total() == all.total() && user.total() == all.total(),
        "{} samples, without inlined functions {}, without kernel {}",
        all.total(),
        flat.total(),
        user.total()
    );
    Ok(())
}

#[test]
fn diff_of_two_captures() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let mut captures = Vec::new();
    for (name, source) in [("before", "depth.c"), ("after", "split.c")] {
        let program = shop.build(source, name, &[])?;
        let capture = shop.path(&format!("{name}.aiprof"));
        let mut recording = Aiprof::with(["--only", "-F", "499", "-o"])
            .option(&capture)
            .command(program, &["1"])
            .to_command()?;
        checked(&mut recording)?;
        captures.push(capture);
    }
    let svg = shop.path("diff.svg");
    let mut diff = Command::new(binary()?);
    diff.arg("diff").args(&captures);
    let table = checked(&mut diff)?;
    // The function that is gone lost, the one that is new gained.
    let change = |name: &str| {
        let line = table
            .lines()
            .find(|l| l.split_whitespace().any(|w| w == name));
        line.with_context(|| format!("no {name} in:\n{table}"))
    };
    anyhow::ensure!(
        change("bottom")?.contains('-') && change("seventy")?.contains('+'),
        "{table}"
    );
    checked(diff.arg("-o").arg(&svg))?;
    let text = std::fs::read_to_string(svg)?;
    anyhow::ensure!(
        text.trim_end().ends_with("</svg>") && text.contains("seventy"),
        "{text:.2000}"
    );
    Ok(())
}
