//! Programs on the virtual Level Zero driver do the same with and without aiprof.

use std::path::Path;

use anyhow::Context as _;

use aiprof_tests::aiprof::{Aiprof, Run};
use aiprof_tests::folded::Folded;
use aiprof_tests::level_zero::driver::{Driver, Exports, Machine, NEEDS};
use aiprof_tests::level_zero::module::Module;
use aiprof_tests::level_zero::program::{Account, build_unwind};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::truth::Truth;
use aiprof_tests::workload::Workshop;

/// What these tests need besides a driver.
fn needs(others: &[Need]) -> Vec<Need> {
    [others, &[Need::Root]].concat()
}

/// Runs aiprof on a program with more of an environment.
fn record(aiprof: Aiprof, environment: &[(String, String)], output: &Path) -> anyhow::Result<Run> {
    let mut command = aiprof
        .option("-o")
        .option(output.as_os_str())
        .to_command()?;
    let done = command.envs(environment.iter().cloned()).output()?;
    let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
    let text = std::fs::read_to_string(output).with_context(|| stderr.clone())?;
    Ok(Run {
        status: done.status,
        stdout: String::from_utf8_lossy(&done.stdout).into_owned(),
        stderr,
        folded: Folded::parse(&text)?,
    })
}

#[test]
fn programs_leave_probed_calls_as_ever() -> anyhow::Result<()> {
    skip_unless!(&needs(&NEEDS));
    let machine = Machine::new(&Driver::build(Exports::All)?);
    let program = build_unwind()?;
    for action in ["throw", "longjmp", "backtrace", "cancel", "return"] {
        let shop = Workshop::new()?;
        let module = Module::usual().write(&shop.path("module.zebin"))?;
        let what = format!("what={action}");
        let module = format!("module={}", module.display());
        let arguments = [what.as_str(), "rounds=3", &module];
        // As exact as can be: every exit is probed.
        for events in ["launches", "time-in-call"] {
            let truth = shop.path(&format!("{events}.json"));
            let machine = machine.clone().truth(&truth);
            let plain = machine.command(&program).args(arguments).output()?;
            let expected = Account::read(&String::from_utf8_lossy(&plain.stdout))?;
            std::fs::remove_file(&truth)?;
            let aiprof = Aiprof::with(["--only", "--events", events]).command(&program, &arguments);
            let output = shop.path("out.folded");
            let run = record(aiprof, &machine.environment(), &output)?;
            assert_eq!(run.status.code(), plain.status.code(), "{}", run.stderr);
            let got = Account::read(&run.stdout)?;
            assert_eq!(got[0].calls, expected[0].calls, "{action}");
            assert_eq!(got[0].launches, expected[0].launches, "{action}");
            let hooked = Truth::read(&truth)?
                .calls
                .iter()
                .filter(|c| c.hooked == 1)
                .count();
            assert_eq!(
                hooked as u64,
                got[0].calls.values().sum::<u64>(),
                "{action}"
            );
        }
    }
    Ok(())
}
