//! The true call chains of code that no ordinary call has entered.

use aiprof_tests::aiprof::Aiprof;
use aiprof_tests::chain::{check, from_entry};
use aiprof_tests::folded::{Line, base};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::Workshop;

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("cc")];

/// Seconds of CPU: about 1,000 samples at 499 Hz.
const SECONDS: &str = "2";
/// Fewest samples to judge by.
const LEAST: u64 = 500;

/// What a stack of the context has below its root: the functions of the program, in their order, up
/// to the one that runs.
const CONTEXT: [&str; 3] = ["first", "work", "spin"];

/// Whether a stack is complete: that of `main`, or that of the context. `roots`: what is below the
/// context's first function.
fn is_right(line: &Line, roots: &[&str]) -> bool {
    let user: Vec<&str> = line.user().into_iter().map(base).collect();
    let Some(at) = user.iter().position(|&name| name == "first") else {
        return from_entry(line, "main").is_some() || from_entry(line, "_dl_start").is_some();
    };
    let (below, own) = user.split_at(at);
    let n = own.len().min(CONTEXT.len());
    let leaves = ["leave", "hop", "swapcontext"];
    let is_own = own[..n] == CONTEXT[..n] || own.get(2).is_some_and(|leaf| leaves.contains(leaf));
    let is_known = roots == below || roots == ["*"] && below.len() == 1;
    !line.is_cut() && is_own && is_known
}

/// Contexts begin where `makecontext` or the program itself has put an address, which no call has
/// pushed. `-Os` leaves nothing between functions.
#[test]
fn contexts_are_whole() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    for level in ["-O2", "-Os"] {
        let program = shop.build("contexts.c", &format!("contexts{level}"), &[level])?;
        // What libc calls its own beginning is in no symbol table.
        for (mode, roots) in [
            ("ucontext", &["*"][..]),
            ("hand", &["ended"]),
            ("zero", &[]),
        ] {
            let run = Aiprof::counting()
                .command(&program, &[SECONDS, mode])
                .record_one()?;
            let what = format!("{mode} {level}");
            check(&what, &run.folded, LEAST, |line| is_right(line, roots))?;
        }
    }
    Ok(())
}

/// glibc's `vfork` keeps its return address in a register while the kernel runs the child.
#[test]
fn vfork_is_called_by_its_caller() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let program = shop.build("vforks.c", "vforks", &["-O2"])?;
    let run = Aiprof::counting().command(program, &["1"]).record()?;
    anyhow::ensure!(run.status.success(), "{}", run.stderr);
    let of_vfork = run
        .folded
        .filter(|line| line.has("vfork") || line.has("__vfork"));
    check("in vfork", &of_vfork, LEAST / 5, |line| {
        from_entry(line, "main").is_some_and(|names| names.get(1) == Some(&"spawn_one"))
    })
}
