//! Wrong memory of a Python interpreter, or of a program that pretends to be one: native stacks
//! stay whole, no function is made up, and nothing goes on for ever.

use std::collections::BTreeSet;

use aiprof_tests::aiprof::{Aiprof, Run};
use aiprof_tests::chain::{check, check_reached, from_entry};
use aiprof_tests::folded::{Line, base};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::python::{Frame, interpreters};
use aiprof_tests::workload::{Workshop, compile, source_path};
use anyhow::{Context as _, ensure};

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("cc")];
/// The functions of python_scribble.c.
const KINDS: [&str; 12] = [
    "own_caller",
    "ring_of_two",
    "no_frame",
    "no_memory",
    "kernel_half",
    "odd_frame",
    "no_cframe",
    "no_code",
    "far_instruction",
    "strange_owner",
    "all_ones",
    "edge_of_memory",
];
/// Where native stacks begin; the first is of the interpreter's file, and is left out with
/// its C functions where Python functions stand for these.
const ROOTS: [&str; 2] = ["_start", "__libc_start_main_impl"];
/// CPU seconds of each.
const SECONDS: &str = "0.2";
/// Samples in each, at least, of those that its time is worth at 499 Hz.
const LEAST: f64 = 0.6;
/// Most Python frames of a stack.
const MOST_FRAMES: usize = 1024;

fn python_frames(line: &Line) -> Vec<Frame> {
    line.frames.iter().filter_map(|f| Frame::parse(f)).collect()
}

/// The native functions, which stand apart where the order of Python's among them is unknown.
fn native(line: &Line) -> Vec<&str> {
    let user = line.user().into_iter();
    let own = user.filter(|f| Frame::parse(f).is_none() && *f != "[native frames not known]");
    own.map(base).collect()
}

/// The program ended as it should.
fn is_unharmed(run: &Run) -> anyhow::Result<()> {
    ensure!(run.status.success(), "{}\n{}", run.status, run.stderr);
    Ok(())
}

#[test]
fn scribbled_state_costs_python_frames_only() -> anyhow::Result<()> {
    let name = "scribbled_state_costs_python_frames_only";
    skip_unless!(&NEEDS);
    // The offsets in the program are those of this version.
    let interpreters = interpreters();
    let mut all = interpreters.iter();
    let Some(python) = all.find(|one| one.version.starts_with("3.11.")) else {
        println!("skipped: {name}: needs Python 3.11");
        return Ok(());
    };
    let shop = Workshop::new()?;
    let library = shop.path("libscribble.so");
    compile("python_scribble.c", &library, &["-shared", "-fPIC"])?;
    let script = source_path("python_scribble.py");
    let mut args = vec![
        script.into_os_string(),
        library.into_os_string(),
        SECONDS.into(),
    ];
    args.extend(KINDS.iter().map(Into::into));
    let run = Aiprof::with(["-F", "499", "--weight", "samples"])
        .command(&python.program, &args)
        .record_one()?;
    is_unharmed(&run)?;
    let known: BTreeSet<&str> = ["<module>", "main", "scribble", "sober"].into();
    let samples: f64 = 499.0 * SECONDS.parse::<f64>()?;
    for kind in KINDS {
        let of_kind = run.folded.filter(|line| line.has(kind));
        let found = of_kind.total();
        println!("{kind}: {found} samples of {samples:.0}");
        ensure!(found as f64 >= LEAST * samples, "{kind}: {found} samples");
        for line in &of_kind.lines {
            let is_whole = native(line).first().is_some_and(|f| ROOTS.contains(f));
            ensure!(is_whole && !line.is_cut(), "{kind}: {line}");
        }
    }
    for line in &run.folded.lines {
        let frames = python_frames(line);
        ensure!(frames.len() <= MOST_FRAMES, "{} frames", frames.len());
        for frame in frames
            .iter()
            .filter(|frame| frame.file == "python_scribble.py")
        {
            ensure!(known.contains(frame.function()), "{frame:?}");
        }
    }
    // Behind each, all is as before.
    check_reached("sober", &run.folded, 0.3, |line| {
        let frames = python_frames(line);
        let functions: Vec<_> = frames.iter().map(Frame::function).collect();
        functions.starts_with(&["<module>", "main", "sober"])
    })?;
    Ok(())
}

#[test]
fn what_says_that_it_is_python_is_not_believed() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    for minor in [8, 11, 12, 13, 14, 15] {
        let shop = Workshop::new()?;
        let library = shop.path("libpython.so");
        let version = format!("-DMINOR={minor}");
        compile("python_fake.c", &library, &["-shared", "-fPIC", &version])?;
        let program = shop.path("fake");
        let library = library.to_str().context("a path")?;
        compile("python_fake_main.c", &program, &[library])?;
        let run = Aiprof::counting()
            .command(&program, &["0.5"])
            .record_one()?;
        is_unharmed(&run)?;
        check(&format!("3.{minor}"), &run.folded, 200, |line| {
            // A process begins and ends outside of main.
            let mut entries = ["main", "_dl_start", "_dl_init", "exit"].into_iter();
            let is_whole = entries.any(|entry| from_entry(line, entry).is_some());
            (is_whole || line.in_kernel()) && python_frames(line).is_empty()
        })?;
    }
    Ok(())
}
