//! Damaged files of other programs cost those programs' frames and no more.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context as _;

use aiprof_tests::aiprof::{Aiprof, truth};
use aiprof_tests::chain::{check, check_share, from_entry};
use aiprof_tests::child::Child;
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::{Workshop, checked};

const NEEDS: [Need; 3] = [Need::Root, Need::Tool("cc"), Need::Tool("readelf")];
const LEAST: u64 = 400;

/// File offset and size of a section, by readelf.
fn section(file: &Path, name: &str) -> anyhow::Result<std::ops::Range<usize>> {
    let text = checked(Command::new("readelf").arg("-SW").arg(file))?;
    let line = text
        .lines()
        .find(|line| line.split_whitespace().any(|word| word == name));
    let line = line.with_context(|| format!("no {name} in:\n{text}"))?;
    // [Nr] NAME TYPE ADDRESS OFFSET SIZE
    let fields: Vec<_> = line
        .split_whitespace()
        .skip_while(|word| *word != name)
        .collect();
    let number = |i: usize| -> anyhow::Result<usize> {
        let field = fields.get(i).with_context(|| line.to_owned())?;
        Ok(usize::from_str_radix(field, 16)?)
    };
    let (offset, size) = (number(3)?, number(4)?);
    Ok(offset..offset + size)
}

/// Overwrites the unwind data: a program that never throws does not miss it.
fn spoil_unwind_data(library: &Path) -> anyhow::Result<()> {
    let mut bytes = std::fs::read(library)?;
    for name in [".eh_frame", ".eh_frame_hdr"] {
        let range = section(library, name)?;
        bytes
            .get_mut(range)
            .context("section beyond the file")?
            .fill(0xfe);
    }
    Ok(std::fs::write(library, bytes)?)
}

/// Cuts the file behind what is loaded: symbol table and section headers, which
/// the header still promises, are gone. The dynamic linker does not need them.
fn truncate_file(library: &Path) -> anyhow::Result<()> {
    let end = section(library, ".symtab")?.start;
    let file = std::fs::File::options().write(true).open(library)?;
    Ok(file.set_len(end as u64)?)
}

/// Records a program whose library was damaged beside an intact one.
fn check_damaged(damage: impl FnOnce(&Path) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let shop = Workshop::new()?;
    let intact = shop.build("depth.c", "intact", &[])?;
    let library = shop.library("depth.c", "damaged", &["-DLIBRARY"])?;
    let program = shop.build("depth.c", "victim", &["-DPROGRAM", "-ldamaged"])?;
    damage(&library)?;
    let mut intact = Child::start(
        Command::new(intact)
            .args(["60", "20"])
            .stdout(Stdio::piped()),
    )?;
    let witness = truth(&intact.read_line()?, "pid")? as u32;
    let run = Aiprof::counting()
        .command(program, &["1.5", "20"])
        .record()?;
    intact.kill();
    anyhow::ensure!(run.status.success(), "{}\n{}", run.status, run.stderr);
    anyhow::ensure!(
        run.stderr.contains("libdamaged.so") && !run.stderr.contains("panicked"),
        "no warning names libdamaged.so:\n{}",
        run.stderr
    );
    let mut chain = vec!["down"; 20];
    chain.push("bottom");
    check(
        "the intact program",
        &run.folded.of_pid(witness),
        LEAST / 2,
        |l| {
            from_entry(l, "main")
                .is_some_and(|n| chain.starts_with(&n[1..]) || n.get(1) == Some(&"work_left"))
        },
    )?;
    // Where the victim's stacks are incomplete, they are marked.
    let victim = run.folded.of_pid(run.truth("pid")? as u32);
    check_share("the damaged program", &victim, LEAST, 1.0, |line| {
        let marked = line.frames.iter().any(|frame| frame.starts_with('['));
        marked || line.user().first() == Some(&"_start")
    })
}

#[test]
fn spoiled_unwind_data() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    check_damaged(spoil_unwind_data)
}

#[test]
fn truncated_library() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    check_damaged(truncate_file)
}
