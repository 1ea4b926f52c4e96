//! Files, mappings and memory of another user that cannot be read in time: they cost
//! their owner's stacks, and nobody else's; the recording ends when it is told to.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use aiprof_tests::aiprof::Aiprof;
use aiprof_tests::attack::{PROMPT, Witness, Yard, hung_program, interrupt, stranger};
use aiprof_tests::child::Child;
use aiprof_tests::folded::Folded;
use aiprof_tests::monitor::perf_events_of;
use aiprof_tests::need::{Need, skip, skip_unless};

const NEEDS: [Need; 3] = [Need::Root, Need::Tool("cc"), Need::Path("/dev/fuse")];
/// Samples of the witness to judge by: it shares two CPUs with half a dozen attackers.
const LEAST: u64 = 60;
/// How long a recording may take to begin.
const START: Duration = Duration::from_secs(20);

/// A recording of the machine.
struct Recording {
    child: Child,
    out: PathBuf,
}

impl Recording {
    fn start(yard: &Yard, options: &[&str]) -> anyhow::Result<Self> {
        let out = yard.path("out.folded");
        let mut aiprof = Aiprof::counting().option("-o").option(&out);
        for option in options {
            aiprof = aiprof.option(*option);
        }
        let log = std::fs::File::create(yard.path("stderr"))?;
        let mut command = aiprof.to_command()?;
        let child = Child::start(command.stdout(Stdio::null()).stderr(log))?;
        let end = Instant::now() + START;
        while perf_events_of(child.pid()) == 0 {
            anyhow::ensure!(Instant::now() < end, "the recording does not begin");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Self { child, out })
    }

    /// Ends it by SIGINT, and gives how long that took and the profile.
    fn end(mut self, yard: &Yard) -> anyhow::Result<(Duration, Folded)> {
        let took = interrupt(&mut self.child, Duration::from_secs(60))?;
        let text = std::fs::read_to_string(&self.out);
        let stderr = std::fs::read_to_string(yard.path("stderr"))?;
        let text = text.map_err(|e| anyhow::anyhow!("no profile: {e}\n{stderr}"))?;
        Ok((took, Folded::parse(&text)?))
    }
}

/// What every attack has to leave as it is.
fn check(name: &str, yard: &Yard, witness: &Witness, recording: Recording) -> anyhow::Result<()> {
    // On a machine that the attackers keep busy the witness waits for its turns.
    witness.wait_for_cpu_time(Duration::from_secs(1))?;
    let (took, folded) = recording.end(yard)?;
    let stderr = std::fs::read_to_string(yard.path("stderr"))?;
    println!("{name}: ended {took:?} after SIGINT");
    witness
        .check(&folded, LEAST)
        .map_err(|error| error.context(format!("{name}\n{stderr}")))?;
    anyhow::ensure!(
        took <= PROMPT,
        "{name}: ended {took:?} after SIGINT\n{stderr}"
    );
    Ok(())
}

#[test]
fn programs_on_a_file_system_that_does_not_answer() -> anyhow::Result<()> {
    let name = "programs_on_a_file_system_that_does_not_answer";
    skip_unless!(&NEEDS);
    let yard = Yard::new()?;
    let witness = Witness::start(&yard)?;
    for mode in [
        "hang-lookup",
        "hang-getattr",
        "hang-open",
        "hang-read",
        "slow-300",
    ] {
        // One that runs already, and one that starts meanwhile.
        let Some(_before) = hung_program(&yard, mode)? else {
            skip(name, "users may not mount FUSE and overlays here");
            return Ok(());
        };
        let recording = Recording::start(&yard, &[])?;
        std::thread::sleep(Duration::from_millis(600));
        let _meanwhile = hung_program(&yard, mode)?;
        std::thread::sleep(Duration::from_millis(1200));
        check(mode, &yard, &witness, recording)?;
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
    let _before = stranger(&program, &["600", "20000"])?;
    let recording = Recording::start(&yard, &[])?;
    std::thread::sleep(Duration::from_millis(500));
    let _meanwhile = stranger(&program, &["600", "20000"])?;
    std::thread::sleep(Duration::from_secs(1));
    check(name, &yard, &witness, recording)
}

#[test]
fn several_attacks_at_once() -> anyhow::Result<()> {
    let name = "several_attacks_at_once";
    skip_unless!(&NEEDS);
    let yard = Yard::new()?;
    let witness = Witness::start(&yard)?;
    let mut attacks = Vec::new();
    for mode in ["hang-lookup", "hang-getattr", "hang-open", "hang-read"] {
        let Some(attack) = hung_program(&yard, mode)? else {
            skip(name, "users may not mount FUSE and overlays here");
            return Ok(());
        };
        attacks.push(attack);
    }
    let maps = yard.build("many_maps.c", "many_maps", &[])?;
    attacks.push(stranger(&maps, &["600", "20000"])?);
    let recording = Recording::start(&yard, &[])?;
    std::thread::sleep(Duration::from_millis(500));
    attacks.push(stranger(&maps, &["600", "20000"])?);
    for mode in ["hang-open", "hang-read"] {
        attacks.extend(hung_program(&yard, mode)?);
    }
    std::thread::sleep(Duration::from_secs(2));
    check(name, &yard, &witness, recording)
}
