//! Attacks on the limit of call stacks, played as another user: what he calls costs root's
//! programs no stack, and those of a third user none either.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::ensure;

use aiprof_tests::aiprof::{binary, lost};
use aiprof_tests::attack::{STRANGER, Yard};
use aiprof_tests::child::{Child, LONG};
use aiprof_tests::folded::Folded;
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::states::States;
use aiprof_tests::workload::checked;

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("cc")];
/// A user who does nothing to anybody.
const BYSTANDER: u32 = STRANGER - 1;
/// Loops of the attacker.
const LOOPS: usize = 4;
/// Calls of each loop in a second: many times the limit, and less than fills the ring.
const LOOP_RATE: &str = "20000";
/// Stacks in a second and CPU, of which the bystander's share is a sixth.
const LIMIT: &str = "2000";
/// Calls of the others in a second.
const RATE: &str = "200";

/// A program that calls a runtime, and the runtime.
struct Storm {
    yard: Yard,
    program: PathBuf,
}

impl Storm {
    fn new() -> anyhow::Result<Self> {
        let yard = Yard::new()?;
        let library = ["-shared", "-fPIC", "-DRUNTIME", "-Wl,-soname,libcuda.so.1"];
        let library = yard.build("call_storm.c", "libcuda.so.1", &library)?;
        let library = library.to_string_lossy();
        let beside = ["-g", &library, "-Wl,-rpath,$ORIGIN"];
        let program = yard.build("call_storm.c", "call_storm", &beside)?;
        Ok(Self { yard, program })
    }

    /// It, as a user.
    fn of(&self, user: u32) -> Command {
        let mut command = Command::new(&self.program);
        // The other groups go with the user id when root changes it.
        command.uid(user).gid(user);
        command
    }

    /// It, in a container of root's.
    fn in_container(&self) -> Command {
        let mut command = Command::new("unshare");
        command.arg("--mount").arg(&self.program);
        command
    }
}

/// Starts a program that calls by this schedule.
fn start(mut command: Command, schedule: &[&str]) -> anyhow::Result<Child> {
    command.args(schedule);
    Child::start(command.stdin(Stdio::null()).stdout(Stdio::piped()))
}

/// The number in the next line of a program: how often it called.
fn calls(child: &mut Child) -> anyhow::Result<u64> {
    Ok(child.read_line()?.trim().parse()?)
}

/// The launches of a capture, by call path.
fn launches(capture: &Path) -> anyhow::Result<Folded> {
    let mut report = Command::new(binary()?);
    report.args(["report", "--format", "folded", "--events", "launches"]);
    Folded::parse(&checked(report.arg(capture))?)
}

/// Those without a stack, because of the limit.
fn limited(folded: &Folded) -> u64 {
    let is_limited = |frame: &String| frame.starts_with("[stack not recorded: limit");
    let without = folded.filter(|line| line.frames.iter().any(is_limited));
    without.total()
}

/// Has four loops of `attacker` call beside a program of root and one of another user, who
/// lose nothing.
fn attack(storm: &Storm, attacker: impl Fn() -> Command) -> anyhow::Result<()> {
    let states = States::at(storm.yard.path("states"));
    let capture = storm.yard.path("out.aiprof");
    let output = capture.to_string_lossy();
    let options = ["-F", "19", "--call-stacks", LIMIT, "-o", &output];
    let mut aiprof = Child::start(&mut states.command(&options, &[])?)?;
    states.wait_for("sampling")?;
    // What was saved up is gone when the first line is printed.
    let begin = |_| start(attacker(), &[LOOP_RATE, "3", LOOP_RATE, "600"]);
    let mut attackers: Vec<Child> = (0..LOOPS).map(begin).collect::<anyhow::Result<_>>()?;
    for attacker in &mut attackers {
        calls(attacker)?;
    }
    let begin = |user| start(storm.of(user), &[RATE, "5"]);
    let others: anyhow::Result<Vec<Child>> = [0, BYSTANDER].into_iter().map(begin).collect();
    let mut told = Vec::new();
    for mut other in others? {
        told.push((other.pid(), calls(&mut other)?));
        ensure!(other.wait(LONG)?.success());
    }
    let of_attack: Vec<u32> = attackers.iter().map(Child::pid).collect();
    drop(attackers);
    aiprof.signal("INT")?;
    ensure!(aiprof.wait(LONG)?.success());
    let stderr = aiprof.stderr()?;
    ensure!(lost(&stderr, "calls dropped") == 0, "{stderr}");
    let folded = launches(&capture)?;
    for (pid, calls) in told {
        let own = folded.of_pid(pid);
        let (seen, without) = (own.total(), limited(&own));
        println!("{pid}: {calls} launches, {seen} recorded, {without} without a stack");
        let right = seen == calls && without == 0;
        ensure!(right, "{without} of {seen} of {calls}: {stderr}");
    }
    // What the attacker loses is counted, and some of it is recorded.
    let of_attack = folded.filter(|line| of_attack.contains(&line.pid));
    let (seen, without) = (of_attack.total(), limited(&of_attack));
    println!("the attacker: {seen} recorded, {without} without a stack");
    let counted = lost(&stderr, "stacks of calls left out by the limiter");
    ensure!(counted >= without, "{without}: {stderr}");
    ensure!((1..seen).contains(&without), "{without} of {seen}");
    Ok(())
}

#[test]
fn four_loops_of_a_user() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let storm = Storm::new()?;
    attack(&storm, || storm.of(STRANGER))
}

#[test]
fn four_loops_in_a_container_of_roots() -> anyhow::Result<()> {
    skip_unless!(&[&NEEDS[..], &[Need::Tool("unshare")]].concat());
    let storm = Storm::new()?;
    attack(&storm, || storm.in_container())
}
