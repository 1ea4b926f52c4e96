//! Files, mappings and memory of another user that cannot be read in time: they cost
//! their owner's stacks, and nobody else's; the recording ends when it is told to.

use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;

use aiprof_tests::attack::{Witness, Yard, hung_program, interrupt, is_prompt, stranger};
use aiprof_tests::child::Child;
use aiprof_tests::folded::Folded;
use aiprof_tests::need::{Need, skip, skip_unless};
use aiprof_tests::states::States;

const NEEDS: [Need; 3] = [Need::Root, Need::Tool("cc"), Need::Path("/dev/fuse")];
const NO_FUSE: &str = "users may not mount FUSE and overlays here";
/// Samples of the witness to judge by: it shares two CPUs with half a dozen attackers.
const LEAST: u64 = 60;
/// CPU time that the witness is given beside the attackers, who get as much.
const WORK: Duration = Duration::from_secs(2);

/// Records the machine; once it takes samples, `attack` starts what starts meanwhile. Checks what
/// every attack has to leave as it is, and gives how long SIGINT took.
fn record<T>(
    name: &str,
    yard: &Yard,
    witness: &Witness,
    attack: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<Option<Duration>> {
    let (out, log) = (yard.path("out.folded"), yard.path("stderr"));
    let states = States::at(yard.path("states"));
    let output = out.display().to_string();
    let options = ["-F", "499", "--weight", "samples", "-o", &output];
    let mut command = states.command(&options, &[])?;
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut aiprof = Child::start(command.stderr(std::fs::File::create(&log)?))?;
    states.wait_for("sampling")?;
    let _attack = attack()?;
    // On a machine that the attackers keep busy the witness waits for its turns.
    witness.wait_for_cpu_time(WORK)?;
    let took = interrupt(&mut aiprof, Duration::from_secs(60))?;
    let stderr = std::fs::read_to_string(&log)?;
    let about = || format!("{name}: ended {took:?} after SIGINT\n{stderr}");
    let folded = Folded::parse(&std::fs::read_to_string(&out).with_context(about)?)?;
    witness.check(&folded, LEAST).with_context(about)?;
    Ok(Some(took))
}

#[test]
fn programs_on_a_file_system_that_does_not_answer() -> anyhow::Result<()> {
    let name = "programs_on_a_file_system_that_does_not_answer";
    skip_unless!(&NEEDS);
    let yard = Yard::new()?;
    let witness = Witness::start(&yard)?;
    if hung_program(&yard, "hang-read")?.is_none() {
        skip(name, NO_FUSE);
        return Ok(());
    }
    for mode in [
        "hang-lookup",
        "hang-getattr",
        "hang-open",
        "hang-read",
        "slow-300",
    ] {
        is_prompt(|| {
            // One that runs already, and one that starts meanwhile.
            let _before = hung_program(&yard, mode)?.context(NO_FUSE)?;
            record(mode, &yard, &witness, || hung_program(&yard, mode))
        })?;
    }
    Ok(())
}

#[test]
fn thousands_of_mappings() -> anyhow::Result<()> {
    let name = "thousands_of_mappings";
    skip_unless!(&NEEDS[..2]);
    let yard = Yard::new()?;
    let witness = Witness::start(&yard)?;
    let program = yard.build("many_maps.c", "many_maps", &[])?;
    is_prompt(|| {
        let _before = stranger(&program, &["600", "20000"])?;
        record(name, &yard, &witness, || {
            stranger(&program, &["600", "20000"])
        })
    })
}

#[test]
fn several_attacks_at_once() -> anyhow::Result<()> {
    let name = "several_attacks_at_once";
    skip_unless!(&NEEDS);
    let yard = Yard::new()?;
    let witness = Witness::start(&yard)?;
    let maps = yard.build("many_maps.c", "many_maps", &[])?;
    is_prompt(|| {
        let mut attacks = Vec::new();
        for mode in ["hang-lookup", "hang-getattr", "hang-open", "hang-read"] {
            let Some(attack) = hung_program(&yard, mode)? else {
                skip(name, NO_FUSE);
                return Ok(None);
            };
            attacks.push(attack);
        }
        attacks.push(stranger(&maps, &["600", "20000"])?);
        record(name, &yard, &witness, || {
            let more = stranger(&maps, &["600", "20000"])?;
            Ok((
                more,
                hung_program(&yard, "hang-open")?,
                hung_program(&yard, "hang-read")?,
            ))
        })
    })
}
