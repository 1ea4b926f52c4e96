//! Python in programs that are not `python3`: linked without exporting its names, stripped, and in
//! several interpreters of one thread.

use std::path::PathBuf;
use std::process::Command;

use aiprof_tests::aiprof::Aiprof;
use aiprof_tests::chain::{check, check_reached};
use aiprof_tests::folded::{Line, base};
use aiprof_tests::need::{Need, skip, skip_unless};
use aiprof_tests::python::{Frame, Interpreter, interpreters};
use aiprof_tests::workload::{Workshop, checked, source_path};

const NEEDS: [Need; 3] = [Need::Root, Need::Tool("cc"), Need::Tool("python3")];
const SECONDS: &str = "1";
const LEAST: u64 = 300;

/// Python's functions by their names, and all others by theirs, outermost first.
fn names(line: &Line) -> Vec<String> {
    let name = |frame: &String| match Frame::parse(frame) {
        Some(python) => python.function().to_owned(),
        None => base(frame).to_owned(),
    };
    line.frames.iter().map(name).collect()
}

/// Whether a stack has these functions, in this order, others between them.
fn has_in_order(line: &Line, wanted: &[&str]) -> bool {
    let names = names(line);
    let mut names = names.iter();
    wanted.iter().all(|wanted| names.any(|name| name == wanted))
}

/// What an interpreter prints for an expression with `sysconfig`.
fn config(python: &Interpreter, expression: &str) -> anyhow::Result<String> {
    let program = format!("import sys, sysconfig; print({expression})");
    let output = checked(Command::new(&python.program).args(["-c", &program]))?;
    Ok(output.trim().to_owned())
}

/// Links a program with an interpreter; `None`: there is no library for that.
fn link(shop: &Workshop, python: &Interpreter) -> anyhow::Result<Option<PathBuf>> {
    let get = |name: &str| config(python, &format!("sysconfig.get_config_var('{name}')"));
    let library = PathBuf::from(get("LIBPL")?).join(format!("libpython{}.a", get("LDVERSION")?));
    if !library.exists() {
        return Ok(None);
    }
    let include = config(python, "sysconfig.get_path('include')")?;
    let program = shop.path(&format!("linked-{}", python.version));
    let libraries = [get("LIBS")?, get("SYSLIBS")?].join(" ");
    checked(
        Command::new("cc")
            .args(["-O1", "-no-pie", "-I", &include, "-o"])
            .arg(&program)
            .arg(source_path("python_linked.c"))
            .arg(&library)
            .args(libraries.split_whitespace())
            .args(["-lm", "-lpthread", "-ldl", "-lutil", "-lz", "-lexpat"]),
    )?;
    Ok(Some(program))
}

/// Whether the second part of a version is at least this.
fn is_from(python: &Interpreter, minor: u32) -> bool {
    let part = python.version.split('.').nth(1);
    part.and_then(|part| part.parse().ok())
        .is_some_and(|found: u32| found >= minor)
}

#[test]
fn programs_that_link_python_show_its_functions() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    let mut n = 0;
    for python in interpreters().iter().filter(|python| is_from(python, 10)) {
        let Some(program) = link(&shop, python)? else {
            continue;
        };
        n += 1;
        let home = config(python, "sys.base_prefix")?;
        let record = |program: &PathBuf, chain: &[&str]| -> anyhow::Result<()> {
            let run = Aiprof::counting()
                .command(
                    "env",
                    &[
                        format!("PYTHONHOME={home}").as_ref(),
                        program.as_os_str(),
                        SECONDS.as_ref(),
                    ],
                )
                .record_one()?;
            println!("{}, {}", python.version, program.display());
            check("whole stacks", &run.folded, LEAST, |line| !line.is_cut())?;
            check_reached("in C", &run.folded, 0.8, |line| has_in_order(line, chain))
        };
        let whole = ["outer", "inner", "c_called_by_inner"];
        record(&program, &whole)?;
        // Before 3.11, names are needed to know which native frames run Python.
        if is_from(python, 11) {
            checked(Command::new("strip").arg(&program))?;
            record(&program, &["outer", "inner"])?;
        }
    }
    if n == 0 {
        skip(
            "programs_that_link_python_show_its_functions",
            "no libpython*.a",
        );
    }
    Ok(())
}

#[test]
fn interpreters_within_interpreters_are_in_order() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let chain = [
        "main_outer",
        "main_inner",
        "sub_outer",
        "sub_inner",
        "deep_outer",
        "deep_inner",
    ];
    for python in interpreters().iter().filter(|python| is_from(python, 12)) {
        let script = source_path("python_states.py");
        let run = Aiprof::counting()
            .command(&python.program, &[script.as_os_str(), SECONDS.as_ref()])
            .record_one()?;
        println!("{}", python.version);
        check_reached("all interpreters", &run.folded, 0.5, |line| {
            has_in_order(line, &chain)
        })?;
        // Whatever a stack has of the inner functions, it has all that is around them.
        check(
            "no interpreter without its caller",
            &run.folded,
            LEAST,
            |line| {
                let known = names(line);
                let last = chain
                    .iter()
                    .rposition(|name| known.iter().any(|k| k == name));
                last.is_none_or(|last| has_in_order(line, &chain[..=last]))
            },
        )?;
    }
    Ok(())
}
