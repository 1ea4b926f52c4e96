//! Several aiprofs of one job on this machine: one records, the others join it, whichever
//! of them ends or dies first.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use aiprof_tests::aiprof::binary;
use aiprof_tests::child::{Child, LONG, until_it_waits};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::Workshop;

const NEEDS: [Need; 1] = [Need::Root];

/// A shell script that is busy for the seconds of its argument and exits with that number.
fn busy(shop: &Workshop) -> anyhow::Result<String> {
    let file = shop.path("busy.sh");
    let script = "end=$(($(date +%s) + $1))\n\
                  while [ $(date +%s) -lt $end ]; do :; done\n\
                  exit $1\n";
    std::fs::write(&file, script)?;
    Ok(file.to_str().context("a path")?.to_owned())
}

/// Rank `rank` of three, with this program as its launcher, busy for `seconds`.
fn rank(shop: &Workshop, rank: u32, seconds: u32, options: &[&str]) -> anyhow::Result<Child> {
    let number = rank.to_string();
    let mut command = Command::new(binary()?);
    command
        .args(["-F", "199"])
        .args(options)
        .args(["sh", &busy(shop)?, &seconds.to_string()])
        .env("RANK", &number)
        .env("LOCAL_RANK", &number)
        .env("LOCAL_WORLD_SIZE", "3")
        .env("MASTER_PORT", shop.path("").display().to_string())
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    Child::start(&mut command)
}

/// Waits until a process has a child that runs this script: its command was started.
fn has_begun(child: &Child) -> anyhow::Result<()> {
    let start = Instant::now();
    let pid = child.pid();
    let children = format!("/proc/{pid}/task/{pid}/children");
    loop {
        let text = std::fs::read_to_string(&children).unwrap_or_default();
        let is_running = text.split_whitespace().any(|child| {
            let words = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&words).starts_with("sh\0")
        });
        if is_running {
            return Ok(());
        }
        anyhow::ensure!(start.elapsed() < LONG, "{pid} starts no command");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The ranks in a folded file made with `--by rank`, without those that have none.
fn ranks_in(file: &Path) -> anyhow::Result<BTreeSet<String>> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let roots = text.lines().filter_map(|line| line.split(';').next());
    Ok(roots
        .filter_map(|root| root.strip_prefix("rank="))
        .map(str::to_owned)
        .collect())
}

fn set(ranks: &[&str]) -> BTreeSet<String> {
    ranks.iter().map(|rank| (*rank).to_owned()).collect()
}

#[test]
fn ranks_of_a_job_share_one_recording() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    // Each has an output of its own; only that of the one that records is written.
    let files: Vec<_> = (0..3).map(|n| shop.path(&format!("{n}.folded"))).collect();
    let mut children = Vec::new();
    for (n, file) in (0..3).zip(&files) {
        let file = file.to_str().context("a path")?;
        children.push(rank(&shop, n, n + 1, &["--by", "rank", "-o", file])?);
    }
    let mut said = String::new();
    for (n, child) in children.iter_mut().enumerate() {
        let status = child.wait(LONG)?;
        said += &child.stderr()?;
        anyhow::ensure!(status.code() == Some(n as i32 + 1), "{n}: {status}\n{said}");
    }
    let written: Vec<_> = files.iter().filter(|file| file.exists()).collect();
    let [file] = written.as_slice() else {
        anyhow::bail!("written: {written:?}\n{said}");
    };
    anyhow::ensure!(ranks_in(file)? == set(&["0", "1", "2"]), "{said}");
    for expected in ["2 more ranks joined this recording", "which writes"] {
        anyhow::ensure!(said.contains(expected), "{expected}:\n{said}");
    }
    let joined = said.matches("this rank is recorded by process").count();
    anyhow::ensure!(joined == 2, "{said}");

    // Each by itself.
    for (n, file) in (0..2).zip(&files) {
        let file = file.to_str().context("a path")?;
        children.push(rank(&shop, n, 1, &["--no-join", "-o", file])?);
    }
    // Two of one rank are no ranks of a job, and who wants something else does not join.
    let other = shop.path("other.svg");
    let again = shop.path("again.svg");
    for (n, file) in [(7, &other), (7, &again)] {
        let file = file.to_str().context("a path")?;
        children.push(rank(&shop, n, 2, &["-o", file])?);
    }
    for child in children.iter_mut().skip(3) {
        child.wait(LONG)?;
    }
    for file in [&files[0], &files[1], &other, &again] {
        anyhow::ensure!(file.exists(), "{}", file.display());
    }
    let left: Vec<_> = std::fs::read_dir("/run/aiprof")?.collect();
    anyhow::ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

#[test]
fn a_rank_that_is_killed_harms_no_other() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let file = shop.path("x.folded");
    let options = ["--by", "rank", "-o", file.to_str().context("a path")?];
    // The first takes the recording, as it has begun when the others start.
    let mut first = rank(&shop, 0, 5, &options)?;
    has_begun(&first)?;
    let mut second = rank(&shop, 1, 6, &options)?;
    let mut third = rank(&shop, 2, 7, &options)?;
    has_begun(&second)?;
    has_begun(&third)?;
    third.kill();
    anyhow::ensure!(second.wait(LONG)?.code() == Some(6));
    anyhow::ensure!(first.wait(LONG)?.code() == Some(5));
    let found = ranks_in(&file)?;
    anyhow::ensure!(found.contains("0") && found.contains("1"), "{found:?}");

    // Now the one that records.
    std::fs::remove_file(&file)?;
    let mut first = rank(&shop, 0, 5, &options)?;
    has_begun(&first)?;
    let mut second = rank(&shop, 1, 3, &options)?;
    has_begun(&second)?;
    first.kill();
    anyhow::ensure!(second.wait(LONG)?.code() == Some(3));
    let said = second.stderr()?;
    anyhow::ensure!(said.contains("continues without recording"), "{said}");
    anyhow::ensure!(!file.exists());
    // What it left is no obstacle.
    let mut next = rank(&shop, 0, 1, &options)?;
    anyhow::ensure!(next.wait(LONG)?.code() == Some(1), "{}", next.stderr()?);
    anyhow::ensure!(ranks_in(&file)?.contains("0"));
    // Stopped before it answers, and killed: who waits for it records.
    std::fs::remove_file(&file)?;
    let mut first = rank(&shop, 0, 9, &options)?;
    let start = Instant::now();
    while std::fs::read_dir("/run/aiprof")?.next().is_none() {
        anyhow::ensure!(start.elapsed() < LONG, "no lock");
        std::thread::sleep(Duration::from_millis(1));
    }
    first.signal("STOP")?;
    let mut second = rank(&shop, 1, 1, &options)?;
    until_it_waits(second.pid(), "the rank that could join")?;
    first.kill();
    anyhow::ensure!(second.wait(LONG)?.code() == Some(1));
    anyhow::ensure!(ranks_in(&file)?.contains("1"));
    Ok(())
}

#[test]
fn mpirun_starts_one_recording() -> anyhow::Result<()> {
    let needs = [Need::Root, Need::Tool("mpirun")];
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let file = shop.path("x.folded");
    // Between mpirun and aiprof may be others.
    let script = format!(
        "{} -F 199 --by rank -o {} sh {} 2; exit $(($? - 2))",
        binary()?.display(),
        file.display(),
        busy(&shop)?
    );
    let mut mpirun = Command::new("mpirun");
    mpirun
        .args(["--allow-run-as-root", "--oversubscribe", "-n", "4"])
        .args(["sh", "-c", &script])
        .stdin(Stdio::null());
    let output = mpirun.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{}\n{said}", output.status);
    anyhow::ensure!(ranks_in(&file)? == set(&["0", "1", "2", "3"]), "{said}");
    anyhow::ensure!(said.contains("3 more ranks joined"), "{said}");
    Ok(())
}
