//! Probes that come and go: many programs that start and stop, aiprof killed in
//! the middle. Nothing is left attached, nothing grows, no launch goes uncounted.

use std::collections::BTreeMap;
use std::process::Stdio;

use aiprof_tests::aiprof::{Aiprof, lost};
use aiprof_tests::child::Child;
use aiprof_tests::folded::{Folded, base};
use aiprof_tests::level_zero::driver::{Driver, Exports, Machine, NEEDS};
use aiprof_tests::level_zero::module::Module;
use aiprof_tests::level_zero::program::{Account, build_work};
use aiprof_tests::monitor::{Monitor, Reading, held_by, programs_of, wait_until_unloaded};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::states::States;
use aiprof_tests::workload::Workshop;

/// Workers that start a program, wait for its end and start the next, EACH times.
const WORKERS: usize = 50;
const EACH: usize = 20;
/// How many of them have ended when aiprof has its working size.
const WARM: usize = 300;
/// What it may add after that, in KiB: each of the other 700 has its call stacks and
/// handles in the profile.
const GROWTH_KIB: u64 = 12 * 1024;

fn needs() -> Vec<Need> {
    [&NEEDS[..], &[Need::Root]].concat()
}

/// Starts WORKERS shells that run `$@` again and again.
fn storm() -> String {
    format!(
        "i=0; while [ $i -lt {WORKERS} ]; do i=$((i + 1)); \
           (n=0; while [ $n -lt {EACH} ]; do n=$((n + 1)); \
             \"$@\" || echo failed; echo ended; done) & \
         done; wait; echo over"
    )
}

/// Reads on until `programs` more programs have ended.
fn read_until_ended(aiprof: &mut Child, programs: usize, text: &mut String) -> anyhow::Result<()> {
    let mut ended = 0;
    while ended < programs {
        let line = aiprof.read_line()?;
        ended += usize::from(line == "ended\n");
        text.push_str(&line);
    }
    Ok(())
}

/// Checks that memory does not grow once it is warm.
fn check_growth(readings: &[Reading]) -> anyhow::Result<()> {
    let first = readings.first().map_or(0, |r| r.memory_kib);
    let most = readings.iter().map(|r| r.memory_kib).max().unwrap_or(0);
    println!("{first} KiB when warm, {most} KiB at most");
    anyhow::ensure!(
        first > 0 && most <= first + GROWTH_KIB,
        "{first} .. {most} KiB: {readings:?}"
    );
    Ok(())
}

/// Launches by kernel, from the programs' accounts.
fn told(accounts: &[Account]) -> BTreeMap<&str, u64> {
    let mut sums = BTreeMap::new();
    for account in accounts {
        for (kernel, launches) in &account.launches {
            *sums.entry(kernel.as_str()).or_default() += launches;
        }
    }
    sums
}

#[test]
fn fifty_programs_at_once_start_and_stop_a_thousand_times() -> anyhow::Result<()> {
    skip_unless!(&needs());
    let shop = Workshop::new()?;
    let machine = Machine::new(&Driver::build(Exports::All)?);
    let module = Module::usual().write(&shop.path("module.zebin"))?;
    let (out, work) = (shop.path("out.folded"), build_work()?);
    let (script, module) = (storm(), format!("module={}", module.display()));
    let work = work.to_string_lossy();
    let arguments = ["-c", &script, "sh", &work, "basic", "rounds=1", &module];
    let mut command = Aiprof::with(["--events", "launches", "-o"])
        .option(&out)
        .command("sh", &arguments)
        .to_command()?;
    let log = std::fs::File::create(shop.path("stderr"))?;
    command.envs(machine.environment());
    let mut aiprof = Child::start(command.stdout(Stdio::piped()).stderr(log))?;
    let mut text = String::new();
    read_until_ended(&mut aiprof, WARM, &mut text)?;
    let (warm, programs) = (held_by(aiprof.pid()), programs_of(aiprof.pid()));
    let monitor = Monitor::start(aiprof.pid());
    // All workers are still at it.
    read_until_ended(&mut aiprof, WORKERS * (EACH - 1) - WARM, &mut text)?;
    let late = held_by(aiprof.pid());
    let readings = monitor.finish()?;
    text += &aiprof.output()?;
    let stderr = std::fs::read_to_string(shop.path("stderr"))?;
    anyhow::ensure!(
        !text.contains("failed") && text.ends_with("over\n"),
        "{stderr}"
    );

    // What is held does not depend on how many programs there were.
    println!("{warm:?} when warm, {late:?} at the end");
    // Others may load a library meanwhile; what leaks does so hundreds of times.
    let same = (warm.maps, warm.programs) == (late.maps, late.programs);
    let few = late.links <= warm.links + 16;
    anyhow::ensure!(warm.links > 0 && same && few, "{warm:?} {late:?}");
    check_growth(&readings)?;
    wait_until_unloaded(&programs)?;

    let accounts = Account::read(&text)?;
    let told = told(&accounts);
    let folded = Folded::parse(&std::fs::read_to_string(&out)?)?;
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    for line in &folded.lines {
        let leaf = line.frames.last().map_or("", |leaf| base(leaf));
        *seen.entry(leaf).or_default() += line.value;
    }
    let all: u64 = told.values().sum();
    let found: u64 = told.keys().filter_map(|k| seen.get(k)).sum();
    println!(
        "{} programs, {found} of {all} launches\n{stderr}",
        accounts.len()
    );
    anyhow::ensure!(accounts.len() == WORKERS * EACH, "{}", accounts.len());
    let dropped = lost(&stderr, "calls dropped");
    for (kernel, launches) in &told {
        let seen = seen.get(kernel).copied().unwrap_or(0);
        anyhow::ensure!(
            seen <= *launches && seen + dropped >= *launches,
            "{seen} of {launches} launches of {kernel}, {dropped} lost:\n{stderr}"
        );
    }
    Ok(())
}

/// Starts `ze_work loop`, which launches until it gets a line.
fn start_loop(shop: &Workshop, machine: &Machine) -> anyhow::Result<Child> {
    let module = Module::usual().write(&shop.path("module.zebin"))?;
    let mut command = machine.command(&build_work()?);
    command.args(["loop", "threads=2"]);
    command.arg(format!("module={}", module.display()));
    let mut program = Child::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
    let line = program.read_line()?;
    anyhow::ensure!(line == "looping\n", "{line}");
    Ok(program)
}

#[test]
fn killed_amid_launches_it_leaves_nothing() -> anyhow::Result<()> {
    skip_unless!(&needs());
    let shop = Workshop::new()?;
    let machine = Machine::new(&Driver::build(Exports::All)?);
    let mut program = start_loop(&shop, &machine)?;
    let (states, capture) = (States::new(&shop), shop.path("out.aiprof"));
    let (pid, capture) = (program.pid().to_string(), capture.display().to_string());
    let options = ["--events", "launches", "-p", &pid, "-o", &capture];
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut command = states.command(&options, &[])?;
        let mut aiprof = Child::start(command.stdin(Stdio::null()).stderr(Stdio::null()))?;
        // Amid launches, all of which are recorded.
        states.wait_known(program.pid())?;
        let (now, programs) = (held_by(aiprof.pid()), programs_of(aiprof.pid()));
        anyhow::ensure!(now.links > 0 && !programs.is_empty(), "{now:?}");
        aiprof.kill();
        wait_until_unloaded(&programs)?;
        held.push(now);
    }
    println!("{held:?}");
    // The program noticed nothing.
    program.write_line("")?;
    let text = program.output()?;
    let accounts = Account::read(&text)?;
    anyhow::ensure!(accounts[0].total() > 1000, "{text}");
    // And it can be done again: the next recording sees its launches.
    let mut program = start_loop(&shop, &machine)?;
    let out = shop.path("out.folded");
    let mut command = Aiprof::with(["-d", "1", "--events", "launches", "-o"])
        .option(&out)
        .to_command()?;
    anyhow::ensure!(command.status()?.success());
    let folded = Folded::parse(&std::fs::read_to_string(&out)?)?;
    anyhow::ensure!(folded.total() > 1000, "{}", folded.excerpt(5));
    program.write_line("")?;
    program.output().map(drop)
}
