//! The VM's serial console: recording it, and judging its text.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::counts::Counts;
use crate::proc::display;

/// Calls in the workload's chain (xtask/vm/workload.c).
const DEPTH: usize = 100;
/// Samples that a recording of ten seconds at 99 Hz must at least have: the
/// workload has a CPU to itself, but an emulated one may stall.
const FEWEST_SAMPLES: u64 = 300;
/// Percent of the samples that must show the whole chain.
const COMPLETE_PERCENT: f64 = 99.0;

/// Runs the VM with its console going to `log` and gives the console's text
/// once the VM has ended by itself.
pub(crate) fn record(command: &mut Command, log: &Path, limit: Duration) -> Result<String> {
    let text = display(command);
    eprintln!("+ {text}");
    let out = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .spawn()
        .with_context(|| format!("cannot start {text}"))?;
    let ended = wait(&mut child, limit)?;
    let console = String::from_utf8_lossy(&fs::read(log)?).replace('\r', "");
    if !ended {
        bail!(
            "did not end within {} s; console output: {}\n{}",
            limit.as_secs(),
            log.display(),
            tail(&console)
        );
    }
    Ok(console)
}

/// Waits until the child ends, or kills it; whether it ended by itself.
fn wait(child: &mut Child, limit: Duration) -> Result<bool> {
    let start = Instant::now();
    while start.elapsed() < limit {
        if child.try_wait()?.is_some() {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    child.kill()?;
    child.wait()?;
    Ok(false)
}

/// One step of the VM's script: what it printed and how it ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step<'a> {
    pub(super) lines: Vec<&'a str>,
    pub(super) status: Option<i32>,
}

/// The step called `name`; one that never ran has no lines and no status.
pub(super) fn step<'a>(console: &'a str, name: &str) -> Step<'a> {
    let begin = format!("@@begin {name}");
    let mut lines = console.lines().skip_while(|line| *line != begin).skip(1);
    let mut step = Step {
        lines: Vec::new(),
        status: None,
    };
    for line in &mut lines {
        if let Some(status) = line.strip_prefix("@@status ") {
            step.status = status.trim().parse().ok();
            break;
        }
        if line.starts_with("@@") {
            break;
        }
        step.lines.push(line);
    }
    step
}

/// Judges one VM's run: five tests.
pub(crate) fn judge(series: &str, console: &str) -> Counts {
    count(
        series,
        [
            ("boot", booted(console)),
            ("doctor", ended(&step(console, "doctor"), 0)),
            ("stacks", stacks(console)),
            ("command", ended(&step(console, "command"), 7)),
            ("waits", waits(console)),
        ],
    )
}

/// Prints and counts the outcomes of a kernel's tests.
pub(super) fn count<const N: usize>(series: &str, tests: [(&str, Result<String>); N]) -> Counts {
    let mut counts = Counts::default();
    for (name, outcome) in tests {
        match outcome {
            Ok(detail) => {
                println!("vm {series} {name}: ok {detail}");
                counts.pass();
            }
            Err(error) => {
                println!("vm {series} {name}: FAILED: {error:#}");
                counts.fail(format!("vm {series} {name}"));
            }
        }
    }
    counts
}

/// The kernel came up with BTF, ran the script to its end and complained about
/// nothing.
fn booted(console: &str) -> Result<String> {
    let value = |key: &str| console.lines().find_map(|line| line.strip_prefix(key));
    let Some(kernel) = value("@@kernel ") else {
        bail!("never reached user space\n{}", tail(console))
    };
    if value("@@btf yes").is_none() {
        bail!("{kernel} has no BTF");
    }
    if let Some(complaint) = value("@@kernel-complaint ") {
        bail!("{kernel} printed an error: {complaint}");
    }
    if value("@@done").is_none() {
        bail!("the script did not end\n{}", tail(console));
    }
    Ok(kernel.to_string())
}

pub(super) fn ended(step: &Step<'_>, wanted: i32) -> Result<String> {
    match step.status {
        Some(status) if status == wanted => Ok(String::new()),
        Some(status) => bail!(
            "status {status} instead of {wanted}\n{}",
            step.lines.join("\n")
        ),
        None => bail!("did not end\n{}", step.lines.join("\n")),
    }
}

/// The recording ended well and its stacks are complete.
fn stacks(console: &str) -> Result<String> {
    ended(&step(console, "system"), 0)?;
    let folded = step(console, "folded");
    let (mut complete, mut all) = (0.0, 0.0);
    let mut broken = Vec::new();
    for line in &folded.lines {
        let Some((stack, weight)) = folded_line(line) else {
            bail!("not a folded line: {line}")
        };
        all += weight;
        if is_whole_chain(stack) {
            complete += weight;
        } else {
            broken.push(*line);
        }
    }
    // Folded weights are microseconds of CPU time.
    let samples = (all / 1e6 * 99.0).round() as u64;
    if samples < FEWEST_SAMPLES {
        bail!(
            "only {samples} samples of the workload\n{}",
            step(console, "system").lines.join("\n")
        );
    }
    let percent = 100.0 * complete / all;
    if percent < COMPLETE_PERCENT {
        broken.truncate(5);
        bail!(
            "only {percent:.2} % of {samples} samples are complete; incomplete stacks:\n{}",
            broken.join("\n")
        );
    }
    Ok(format!("{percent:.2} % of {samples} samples complete"))
}

/// A program that sleeps for three seconds does so in its profile, and in the kernel's
/// function that sleeps.
fn waits(console: &str) -> Result<String> {
    let recorded = step(console, "waits");
    ended(&recorded, 0)?;
    let slept = |line: &&str| line.contains("nanosleep_[k]") && line.contains(";[sleeps] ");
    let lines = step(console, "waited").lines;
    let own = lines.iter().copied().filter(|line| slept(line));
    let us: f64 = own.filter_map(folded_line).map(|(_, weight)| weight).sum();
    // An emulated CPU may be held up, and be late.
    if !(2.98e6..3.5e6).contains(&us) {
        let (told, seen) = (recorded.lines.join("\n"), lines.join("\n"));
        bail!("{us} us of 3,000,000\n{told}\n{seen}");
    }
    Ok(format!("{us} us of 3,000,000"))
}

/// Stack and weight of a folded line.
fn folded_line(line: &str) -> Option<(&str, f64)> {
    let (stack, weight) = line.rsplit_once(' ')?;
    Some((stack, weight.parse().ok()?))
}

/// Whether a stack starts at the program's entry and shows every call of the
/// workload: main, even and odd in turn a hundred times, then burn.
fn is_whole_chain(stack: &str) -> bool {
    let frames: Vec<_> = stack.split(';').collect();
    // comm and pid come first.
    if frames.get(2) != Some(&"_start") {
        return false;
    }
    let Some(main) = frames.iter().position(|frame| *frame == "main") else {
        return false;
    };
    let called = &frames[main + 1..];
    let alternating = |(depth, frame): (usize, &&str)| *frame == ["even", "odd"][depth % 2];
    called.len() > DEPTH
        && called.iter().take(DEPTH).enumerate().all(alternating)
        && called[DEPTH] == "burn"
}

/// The last lines, for messages.
fn tail(console: &str) -> String {
    let lines: Vec<_> = console.lines().collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stack line of the workload with `depth` calls.
    fn stack(depth: usize, leaf: &str) -> String {
        let calls: String = (0..depth)
            .map(|i| if i % 2 == 0 { "even;" } else { "odd;" })
            .collect();
        format!("workload;71;_start;__libc_start_main;main;{calls}{leaf}")
    }

    fn console(lines: &[String]) -> String {
        format!(
            "[ 0.1] Linux\n@@kernel 6.1.0-56-amd64\n@@btf yes\n@@begin doctor\nBTF: yes\n@@status 0\n\
             @@begin system\n@@status 0\n@@begin folded\n{}\n@@status 0\n@@begin command\n@@status 7\n\
             @@begin waits\n@@status 0\n@@begin waited\n\
             sleep;80;_start;main;hrtimer_nanosleep_[k];[sleeps] 3000100\n@@status 0\n@@done\n",
            lines.join("\n")
        )
    }

    #[test]
    fn knows_the_whole_chain() {
        assert!(is_whole_chain(&stack(100, "burn")));
        assert!(is_whole_chain(&stack(
            100,
            "burn;asm_sysvec_apic_timer_interrupt_[k]"
        )));
        assert!(!is_whole_chain(&stack(99, "burn")));
        assert!(!is_whole_chain(&stack(101, "burn")));
        assert!(!is_whole_chain(&stack(100, "[unknown]")));
        assert!(!is_whole_chain(&stack(100, "burn").replace("_start;", "")));
        assert!(!is_whole_chain("workload;71;_start;main"));
        assert!(!is_whole_chain(""));
    }

    #[test]
    fn a_good_run_passes_all_tests() {
        let text = console(&[
            format!("{} 9900000", stack(100, "burn")),
            format!("{} 10000", stack(3, "x")),
        ]);
        assert_eq!(
            judge("6.1", &text).to_string(),
            "5 passed, 0 failed, 0 skipped"
        );
    }

    #[test]
    fn incomplete_few_or_missing_stacks_fail() {
        let bad = console(&[
            format!("{} 9900000", stack(100, "burn")),
            format!("{} 200000", stack(3, "x")),
        ]);
        assert_eq!(judge("6.1", &bad).failures, ["vm 6.1 stacks"]);
        let few = console(&[format!("{} 90000", stack(100, "burn"))]);
        assert_eq!(judge("6.1", &few).failures, ["vm 6.1 stacks"]);
        assert_eq!(judge("6.1", &console(&[])).failures, ["vm 6.1 stacks"]);
        assert_eq!(judge("6.1", "").failed, 5);
    }

    #[test]
    fn wrong_statuses_and_kernel_complaints_fail() {
        let good = console(&[format!("{} 9900000", stack(100, "burn"))]);
        let status = good.replace("@@status 7", "@@status 0");
        assert_eq!(judge("6.1", &status).failures, ["vm 6.1 command"]);
        let late = good.replace("3000100", "2000100");
        assert_eq!(judge("6.1", &late).failures, ["vm 6.1 waits"]);
        let oops = good.replace("@@done", "@@kernel-complaint WARNING: CPU: 0\n@@done");
        assert_eq!(judge("6.1", &oops).failures, ["vm 6.1 boot"]);
        let btf = good.replace("@@btf yes\n", "");
        assert_eq!(judge("6.1", &btf).failures, ["vm 6.1 boot"]);
        let cut = good.replace("@@done\n", "");
        assert_eq!(judge("6.1", &cut).failures, ["vm 6.1 boot"]);
    }

    #[test]
    fn a_machine_that_hangs_is_killed() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!wait(&mut child, Duration::from_millis(50)).unwrap());
        let mut child = Command::new("true").spawn().unwrap();
        assert!(wait(&mut child, Duration::from_secs(20)).unwrap());
    }
}
