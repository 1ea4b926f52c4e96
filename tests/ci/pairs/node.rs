//! JavaScript without any option of node, interpreted and compiled by each compiler. Every stack in
//! the function that burns has one of the few lists of functions that can lead there.

use aiprof_tests::aiprof::{Aiprof, Run};
use aiprof_tests::chain::{check, check_reached, check_share};
use aiprof_tests::folded::{Line, base};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::{Workshop, source_path};
use std::path::{Path, PathBuf};

const NEEDS: [Need; 2] = [Need::Root, Need::Tool("node")];
const C: [Need; 2] = [Need::Root, Need::Tool("cc")];

/// Other versions of node to run the same with: programs, with a colon between each.
const OTHERS: &str = "AIPROF_NODES";

/// CPU time of each thread. What is missed lies in the first tenths of a second.
const SECONDS: &str = "6";
const LEAST: u64 = 800;
/// The project's goal: functions named, and true.
const GOAL: f64 = 0.97;

/// What burns, and what leads to all.
const BURNS: &str = "jsburn";
const ROOTS: [&str; 2] = ["jsmain", "jswork"];

/// The functions of `node_frames_body.js` from the one that works to the one that burns;
/// a number at the end of a name is left out.
const CHAINS: [&[&str]; 21] = [
    &["jsnested", "jsmiddle", "jsinner"],
    &["jsclosing", "jsclosure"],
    &[
        "jsmutual", "jseven", "jsodd", "jseven", "jsodd", "jseven", "jsodd", "jseven",
    ],
    &["jsclasses", "jsmethod", "jsmethod"],
    &["jsclasses", "jsstatic"],
    &["jsclasses", "jsgetter"],
    &["jsclasses", "Derived", "Base"],
    &["jssorting", "jscompare"],
    &["jsparsing", "jsreviver"],
    &["jsreplacing", "jsreplacer"],
    &["jsmapping", "jsmapped"],
    &["jsbinding", "jsbound"],
    &["jsemitting", "jslistener"],
    &["jsgenerating", "jsgenerator"],
    &["jsawaited"],
    &["jsthen"],
    &["jsevaluating", "jseval"],
    &["jsconstructing", "jsnew"],
    &["jsallocating"],
    &["jscatching", "jsthrowing"],
    &["jscatching"],
];

/// The program's own functions in a stack, outermost first.
fn functions(line: &Line) -> Vec<&str> {
    let all = line.frames.iter().filter(|frame| frame.ends_with("_[j]"));
    let names = all.map(|frame| {
        let name = base(frame);
        let name = name.strip_prefix("get ").unwrap_or(name);
        name.trim_end_matches(|c: char| c.is_ascii_digit())
    });
    names
        .filter(|name| name.starts_with("js") || ["Base", "Derived"].contains(name))
        .collect()
}

/// The functions between those that lead to all and the one that burns; `None`: it is not
/// at the end, or the stack is cut.
fn chain(line: &Line) -> Option<Vec<&str>> {
    let mut names = functions(line);
    if names.pop() != Some(BURNS) || line.is_cut() {
        return None;
    }
    let roots = names.iter().take_while(|name| ROOTS.contains(name));
    let roots = roots.count();
    Some(names.split_off(roots))
}

fn is_recursive(chain: &[&str]) -> bool {
    matches!(chain, ["jsrecursive", rest @ ..]
        if rest.len() == 21 && rest.iter().all(|name| *name == "jsrecurse"))
}

/// Whether a stack in the function that burns came there as only it can.
fn is_true(line: &Line) -> bool {
    chain(line).is_some_and(|chain| is_recursive(&chain) || CHAINS.contains(&chain.as_slice()))
}

/// Whether some functions are all of a list but for some, in its order.
fn is_part(part: &[&str], all: &[&str]) -> bool {
    let mut rest = all.iter();
    part.iter().all(|name| rest.any(|other| other == name))
}

/// The same where compilers have put some functions into others.
fn is_true_but_for_inlined(line: &Line) -> bool {
    let names = functions(line);
    let roots = names.iter().take_while(|name| ROOTS.contains(name));
    let rest = &names[roots.count()..];
    let rest = rest.strip_suffix(&[BURNS]).unwrap_or(rest);
    let recursive = ["jsrecurse"; 21];
    let all = [&["jsrecursive"][..], &recursive].concat();
    !line.is_cut() && (is_part(rest, &all) || CHAINS.iter().any(|chain| is_part(rest, chain)))
}

const INTERPRETER: &str = "Builtins_InterpreterEntryTrampoline";
const UNNAMED: [&str; 4] = [
    "[jit]",
    "[unmapped]",
    "[JavaScript function not known]",
    "[caller guessed]",
];

/// Whether a stack has functions of JavaScript.
fn has_javascript(line: &Line) -> bool {
    line.has(INTERPRETER)
        || line
            .frames
            .iter()
            .any(|frame| frame.ends_with("_[j]") || UNNAMED.contains(&frame.as_str()))
}

/// Whether they all have names.
fn is_named(line: &Line) -> bool {
    let is_unnamed = |frame: &String| UNNAMED.contains(&frame.as_str());
    !line.is_cut() && !line.has(INTERPRETER) && !line.frames.iter().any(is_unnamed)
}

/// The programs `node` to run with.
fn nodes() -> Vec<PathBuf> {
    let others = std::env::var_os(OTHERS).unwrap_or_default();
    let others: Vec<PathBuf> = std::env::split_paths(&others).collect();
    let others = others
        .into_iter()
        .filter(|node| !node.as_os_str().is_empty());
    std::iter::once("node".into()).chain(others).collect()
}

fn record(node: &Path, options: &[&str], args: &[&str]) -> anyhow::Result<Run> {
    let script = source_path("node_frames.js").display().to_string();
    let args = [options, &[&script], args].concat();
    Aiprof::counting().command(node, &args).record_one()
}

/// Records the program with all versions of node, and checks names and chains.
fn check_frames(
    options: &[&str],
    args: &[&str],
    is_true: impl Fn(&Line) -> bool,
) -> anyhow::Result<()> {
    for node in nodes() {
        let what = format!("{} {options:?} {args:?}", node.display());
        let run = record(&node, options, args)?;
        let of_node = run.folded.filter(has_javascript);
        check_share(&format!("{what}, named"), &of_node, LEAST, GOAL, is_named)?;
        let burning = of_node.filter(|line| functions(line).contains(&BURNS));
        check_share(
            &format!("{what}, true"),
            &burning,
            LEAST / 2,
            GOAL,
            &is_true,
        )?;
    }
    Ok(())
}

/// Nested functions, recursion, classes, callbacks of native code, generators, async
/// functions, code made at run time, garbage.
#[test]
fn ways_of_calling_functions() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    check_frames(&[], &[SECONDS], is_true)
}

#[test]
fn functions_that_are_interpreted() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    check_frames(&["--no-opt", "--no-sparkplug"], &[SECONDS], is_true)?;
    check_frames(&["--jitless"], &[SECONDS], is_true)
}

#[test]
fn functions_of_the_first_compiler() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    // V8's own functions have no unwind data; their tables come a page at a time.
    check_frames(&["--always-sparkplug", "--no-opt"], &["8"], is_true)
}

#[test]
fn functions_in_workers() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    check_frames(&[], &[SECONDS, "2"], is_true)
}

/// Where a compiler has put functions into another, the outermost has the name.
#[test]
fn functions_that_are_inlined() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    check_frames(&[], &[SECONDS, "0", "small"], is_true_but_for_inlined)
}

/// Every function once, by whichever way it has its name.
#[test]
fn a_perf_map_of_node_changes_nothing() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    // The last two: else node writes a log into the current directory, too.
    let map = [
        "--perf-basic-prof",
        "--no-logfile-per-isolate",
        "--logfile=/dev/null",
    ];
    check_frames(&map, &[SECONDS], is_true)?;
    let native = [&map[..], &["--interpreted-frames-native-stack"]].concat();
    check_frames(&native, &[SECONDS], is_true)
}

/// Names have the files and the lines of the functions.
#[test]
fn files_and_lines_of_functions() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let source = source_path("node_frames_body.js");
    let text = std::fs::read_to_string(&source)?;
    let line_of = |name: &str| {
        let begin = format!("function {name}(");
        let at = text.lines().position(|line| line.contains(&begin));
        at.map_or(0, |at| at + 1)
    };
    let script = source_path("node_frames.js").display().to_string();
    let run = Aiprof::counting()
        .option("--lines")
        .command("node", &[&script, SECONDS])
        .record_one()?;
    for name in ["jsburn", "jsinner", "jsrecurse", "jscompare", "jslistener"] {
        let place = format!("{name} (node_frames_body.js:{})", line_of(name));
        check_reached(&place, &run.folded, 0.001, |line| {
            line.frames.iter().any(|frame| frame.contains(&place))
        })?;
    }
    Ok(())
}

/// A process that only pretends to be node, and scribbles over its memory, harms no other: its own
/// stacks are whole.
#[test]
fn a_program_that_pretends_to_be_node() -> anyhow::Result<()> {
    skip_unless!(&C);
    let shop = Workshop::new()?;
    let flags = ["-O1", "-fno-omit-frame-pointer", "-rdynamic", "-pthread"];
    let program = shop.build("node_fake.c", "node", &flags)?;
    let run = Aiprof::counting().command(program, &["3"]).record_one()?;
    let burning = run.folded.filter(|line| line.has("burn_fake"));
    check(
        "in what it pretends to interpret",
        &burning,
        LEAST / 2,
        |line| {
            let calls = line.frames.iter().filter(|f| base(f) == "call_fake");
            let own = |frame: &&String| {
                base(frame) == INTERPRETER
                    || frame.ends_with("_[j]")
                    || UNNAMED.contains(&frame.as_str())
            };
            calls.count() == 5 && line.frames.iter().filter(own).count() == 4 && !line.is_cut()
        },
    )?;
    let names = burning.lines.iter().flat_map(|line| &line.frames);
    let longest = names.map(String::len).max().unwrap_or(0);
    anyhow::ensure!(longest < 4096, "a name of {longest} bytes");
    check_reached("functions that it made up", &burning, 0.01, |line| {
        line.has("[JavaScript function not known]")
            || line.frames.iter().any(|frame| frame.ends_with("_[j]"))
    })
}
