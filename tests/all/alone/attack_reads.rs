//! Files, mappings and memory of another user that cannot be read in time: they cost only their
//! owner's stacks, and the recording ends when it is asked to.

use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;

use aiprof_tests::attack::{
    Witness, Yard, hang_fs, hung_program, interrupt, is_prompt, start_hang_fs, stranger,
};
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
/// every attack has to leave as it is, and gives how long SIGINT took, what `attack` gave and the
/// profile.
fn record<T>(
    name: &str,
    yard: &Yard,
    witness: &Witness,
    attack: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<(Option<Duration>, T, Folded)> {
    let (out, log) = (yard.path("out.folded"), yard.path("stderr"));
    let states = States::at(yard.path("states"));
    let output = out.display().to_string();
    let options = ["-F", "499", "--weight", "samples", "-o", &output];
    let mut command = states.command(&options, &[])?;
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut aiprof = Child::start(command.stderr(std::fs::File::create(&log)?))?;
    states.wait_for("sampling")?;
    let attack = attack()?;
    // On a machine that the attackers keep busy the witness waits for its turns.
    witness.wait_for_cpu_time(WORK)?;
    let took = interrupt(&mut aiprof, Duration::from_secs(60))?;
    let stderr = std::fs::read_to_string(&log)?;
    let about = || format!("{name}: ended {took:?} after SIGINT\n{stderr}");
    let folded = Folded::parse(&std::fs::read_to_string(&out).with_context(about)?)?;
    witness.check(&folded, LEAST).with_context(about)?;
    Ok((Some(took), attack, folded))
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
            Ok(record(mode, &yard, &witness, || hung_program(&yard, mode))?.0)
        })?;
    }
    Ok(())
}

/// Users, each with a program that has mapped files of a file system that takes no more requests.
/// A user's first reader is left behind; all others can be ended, and the next gets stuck.
#[test]
fn many_users_whose_files_are_never_read() -> anyhow::Result<()> {
    const USERS: u32 = 12;
    let name = "many_users_whose_files_are_never_read";
    skip_unless!(&NEEDS);
    let yard = Yard::new()?;
    let witness = Witness::start(&yard)?;
    let late = yard.build("frames.c", "late", &["-g"])?;
    let mapper = yard.build("map_files.c", "mapper", &[])?;
    is_prompt(|| {
        let mut users = Vec::new();
        for user in 0..USERS {
            let point = yard.path(&format!("user{user}"));
            std::fs::create_dir_all(&point)?;
            let files = ["1", "2", "3", "4"].map(|file| point.join(file));
            let program: Vec<PathBuf> = [mapper.clone(), "600".into()]
                .into_iter()
                .chain(files)
                .collect();
            let mut command = hang_fs(&yard, "block-read", &mapper, &point, &program)?;
            command.uid(60_000 + user).gid(60_000 + user);
            let Some(child) = start_hang_fs(&mut command)? else {
                skip(name, NO_FUSE);
                return Ok(None);
            };
            users.push(child);
        }
        let (took, late, folded) = record(name, &yard, &witness, || {
            // Once the readers have met the files of all users.
            witness.wait_for_cpu_time(2 * WORK)?;
            let late = Witness::of(&late)?;
            late.wait_for_cpu_time(WORK)?;
            Ok(late)
        })?;
        for user in &mut users {
            anyhow::ensure!(user.is_running(), "an attacker has ended");
        }
        // The recording does not wait for answers to the attackers: in ten scenes 5 samples at
        // most were missing.
        late.check_met(&folded, LEAST, 60)?;
        Ok(took)
    })
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
        let start = || stranger(&program, &["600", "20000"]);
        Ok(record(name, &yard, &witness, start)?.0)
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
        let start = || {
            let more = stranger(&maps, &["600", "20000"])?;
            Ok((
                more,
                hung_program(&yard, "hang-open")?,
                hung_program(&yard, "hang-read")?,
            ))
        };
        Ok(record(name, &yard, &witness, start)?.0)
    })
}
