//! Code that is not where its file has it: copied to other memory, in memory files, inherited by
//! forks.

use aiprof_tests::aiprof::{Aiprof, truth};
use aiprof_tests::attack::{Yard, hung_program};
use aiprof_tests::chain::{check, check_share, from_entry};
use aiprof_tests::child::Child;
use aiprof_tests::folded::Line;
use aiprof_tests::need::{Need, skip, skip_unless};
use aiprof_tests::workload::Workshop;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("cc")];
const SECONDS: &str = "2";
/// Fewest samples to judge by.
const LEAST: u64 = 500;

/// Whether the stack is complete and lies on the way from `main` to the end of `chain`.
fn is_on_the_way(line: &Line, chain: &[&str]) -> bool {
    from_entry(line, "main").is_some_and(|names| {
        let body = names.get(1..).unwrap_or_default();
        chain.starts_with(body) || body.first() == Some(&"work_left")
    })
}

/// copied.c and its library.
fn copied(shop: &Workshop, flags: &[&str]) -> anyhow::Result<PathBuf> {
    shop.library("copied.c", "mover", &["-DMOVER"])?;
    shop.build("copied.c", "copied", &[flags, &["-lmover"]].concat())
}

#[test]
fn text_that_was_copied_is_its_files() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    for (mode, flags) in [
        ("whole", &["-O2"][..]),
        ("part", &["-O2", "-no-pie"]),
        ("part", &["-O1", "-Wl,-z,noseparate-code"]),
    ] {
        let program = copied(&shop, flags)?;
        let run = Aiprof::counting()
            .waited_for()
            .command(program, &[SECONDS, mode])
            .record_one()?;
        check(mode, &run.folded, LEAST, |l| {
            is_on_the_way(l, &["outer", "inner"])
        })?;
    }
    Ok(())
}

/// The same of a program that did so before the recording. A program that has generated code where
/// its file has other code is another case.
#[test]
fn memory_on_text_is_told_apart_by_its_bytes() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let program = copied(&shop, &["-O2"])?;
    let mut command = Command::new(&program);
    command.args(["60", "whole"]).stdout(Stdio::piped());
    let mut before = Child::start(&mut command)?;
    let pid = truth(&before.read_line()?, "pid")? as u32;
    let run = Aiprof::counting().until_used(pid, 2).record()?;
    before.kill();
    check("copied before", &run.folded.of_pid(pid), LEAST, |l| {
        is_on_the_way(l, &["outer", "inner"])
    })?;
    let run = Aiprof::counting()
        .waited_for()
        .command(program, &[SECONDS, "other"])
        .record_one()?;
    check_share("other code", &run.folded, LEAST, 0.97, |l| {
        let user = l.user();
        !l.has("unused") && (user.last() == Some(&"[jit]") || l.has("work_left"))
    })
}

#[test]
fn programs_and_libraries_in_memory_files() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let program = shop.build("memory_file.c", "memory_file", &["-O2", "-ldl"])?;
    let library = shop.library("memory_file.c", "in_memory", &["-O2", "-DLIBRARY"])?;
    let library = library.to_string_lossy();
    for args in [
        vec![SECONDS, "program"],
        vec![SECONDS, "library", &library],
    ] {
        let run = Aiprof::counting().command(&program, &args).record_one()?;
        check(args[1], &run.folded, LEAST, |l| {
            is_on_the_way(l, &["outer", "inner"])
        })?;
    }
    let run = Aiprof::counting()
        .command(program, &[SECONDS, "generated"])
        .record_one()?;
    check_share("generated code", &run.folded, LEAST, 0.97, |l| {
        l.user().last() == Some(&"[jit]") || l.has("work_left")
    })
}

#[test]
fn generated_code_that_a_fork_inherits_has_its_parents_names() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let program = shop.build("jit.c", "jit", &[])?;
    let run = Aiprof::counting()
        .waited_for()
        .command(program, &["3", "forked"])
        .record()?;
    let child = run.truth("pid")? as u32;
    std::fs::remove_file(format!("/tmp/perf-{}.map", run.truth("parent")?))?;
    check("inherited", &run.folded.of_pid(child), LEAST, |l| {
        let chain = ["run_jit", "jit_outer_[j]", "jit_inner_[j]", "callback"];
        let user = l.user();
        let at = user.iter().position(|frame| *frame == "main");
        let body = at.and_then(|at| user.get(at + 1..)).unwrap_or_default();
        from_entry(l, "main").is_some()
            && (chain.starts_with(body) || body.first() == Some(&"work_left"))
    })
}

/// As in an AppImage: the program is on a file system that its user's program serves, and that
/// root may not enter.
#[test]
fn programs_that_only_their_user_may_read() -> anyhow::Result<()> {
    let needs = [NEEDS[0], NEEDS[1], Need::Tool("setpriv")];
    skip_unless!(&needs);
    let yard = Yard::new()?;
    let Some(mut program) = hung_program(&yard, "own")? else {
        skip("programs_that_only_their_user_may_read", "no FUSE for users");
        return Ok(());
    };
    let pid = program.pid();
    let inside = format!("/proc/{pid}/root{}/program", yard.path("own").display());
    anyhow::ensure!(
        std::fs::read(inside).is_err(),
        "root may read the program: nothing is tested"
    );
    let run = Aiprof::counting().until_used(pid, 2).record()?;
    program.kill();
    check("own", &run.folded.of_pid(pid), LEAST, |l| {
        from_entry(l, "main").is_some_and(|names| names.contains(&"hung_work"))
    })
}

/// Programs of 32 bits, without any library: compilers make them wherever they make those of 64.
#[test]
fn programs_of_32_bits() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    const BARE: [&str; 5] = ["-m32", "-nostdlib", "-static", "-fno-pie", "-no-pie"];
    for flags in [
        &["-O2"][..],
        &["-O1", "-fno-omit-frame-pointer"],
        &["-O0"],
        &["-Os", "-s"],
    ] {
        let flags = [&BARE[..], flags].concat();
        let program = shop.build("narrow.c", "narrow", &flags)?;
        let run = Aiprof::counting().command(program, &["60"]).record()?;
        let narrow = run.folded.of_comm("narrow");
        let is_stripped = flags.contains(&"-s");
        check(&flags.join(" "), &narrow, LEAST, |l| {
            let user: Vec<&str> = l.user();
            let chain = ["_start", "main", "work", "outer", "inner"];
            let is_complete = !l.is_cut() && user.len() >= 3;
            match is_stripped {
                true => is_complete,
                false => is_complete && chain.starts_with(&user),
            }
        })?;
    }
    Ok(())
}
