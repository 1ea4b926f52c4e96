//! Project tasks: `cargo xtask help`.
//!
//! One file per command. xtask is the first thing a newcomer builds, so it
//! needs nothing but a linker: few dependencies, none of which compiles C.

mod bench;
mod build_ebpf;
mod counts;
mod elf;
mod fleet;
mod foreign;
mod fuzz;
mod install;
mod junit;
mod machine;
mod manifest;
mod package;
mod packages;
mod pip;
mod proc;
mod reap;
mod run;
mod size;
mod test;
mod toolchain;
mod vm;
mod words;

use std::process::ExitCode;

use anyhow::{Result, bail};

/// One task: its name, how it is called, what it does, and its code.
struct Task {
    name: &'static str,
    usage: &'static str,
    about: &'static str,
    help: &'static str,
    main: fn(Vec<String>) -> Result<ExitCode>,
}

const TASKS: &[Task] = &[
    Task {
        name: "run",
        usage: "run [--debug] -- ARGS...",
        about: "build aiprof and run it, through sudo if needed",
        help: run::HELP,
        main: run::main,
    },
    Task {
        name: "test",
        usage: "test [FILTER | --ci | --all | --suite NAME...]",
        about: "install the tests' packages, build, run the tests and count the results",
        help: test::HELP,
        main: test::main,
    },
    Task {
        name: "vm-test",
        usage: "vm-test [--kernel 6.1|6.12|all] [--bpf-object FILE]",
        about: "boot other kernels under qemu and profile in each",
        help: vm::HELP,
        main: vm::main,
    },
    Task {
        name: "fuzz",
        usage: "fuzz [--seconds N] [--runs N] [TARGET]",
        about: "fuzz all readers of files and records, guided by coverage",
        help: fuzz::HELP,
        main: fuzz::main,
    },
    Task {
        name: "foreign",
        usage: "foreign [MACHINE...]",
        about: "test what needs no libbpf for s390x, ppc64le and aarch64",
        help: foreign::HELP,
        main: foreign::main,
    },
    Task {
        name: "fleet",
        usage: "fleet [--if-changed]",
        about: "build and test aiprof-send, aiprof-query and the lake",
        help: fleet::HELP,
        main: fleet::main,
    },
    Task {
        name: "reap",
        usage: "reap PROGRAM ARGS...",
        about: "run one test program and kill the processes that it leaves behind",
        help: reap::HELP,
        main: reap::main,
    },
    Task {
        name: "bench",
        usage: "bench sampler|finish|memory|probes|...",
        about: "compare aiprof with other profilers",
        help: bench::HELP,
        main: bench::main,
    },
    Task {
        name: "package",
        usage: "package [--with-query] [--native] [--arch ARCH] [-o DIR]",
        about: "make a .deb and an .rpm package that work with old versions of glibc",
        help: package::HELP,
        main: package::main,
    },
    Task {
        name: "build-ebpf",
        usage: "build-ebpf [--check] [--debug]",
        about: "rebuild the committed eBPF object, or check it",
        help: build_ebpf::HELP,
        main: build_ebpf::main,
    },
    Task {
        name: "size",
        usage: "size [--root DIR]",
        about: "count the product's code, and what is larger than wanted",
        help: size::HELP,
        main: size::main,
    },
    Task {
        name: "words",
        usage: "words [--update] [--all] [PATH...]",
        about: "find words and sentences that are not plain English",
        help: words::HELP,
        main: words::main,
    },
];

fn main() -> ExitCode {
    // `cargo xtask help | head` ends quietly, as other programs do.
    // SAFETY: no other thread runs yet, and the default action is no handler of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    match dispatch(std::env::args().skip(1).collect()) {
        Ok(code) => code,
        Err(error) => {
            let is_usage = error.chain().any(|cause| cause.is::<lexopt::Error>());
            let hint = if is_usage {
                "; see `cargo xtask help`"
            } else {
                ""
            };
            eprintln!("xtask: {error:#}{hint}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(mut args: Vec<String>) -> Result<ExitCode> {
    if args.is_empty() {
        overview();
        return Ok(ExitCode::from(2));
    }
    let name = args.remove(0);
    if matches!(name.as_str(), "help" | "--help" | "-h") {
        return match args.first() {
            Some(topic) => explain(topic),
            None => {
                overview();
                Ok(ExitCode::SUCCESS)
            }
        };
    }
    let Some(task) = find(&name) else {
        bail!("no task is named {name:?}; `cargo xtask help` lists all tasks");
    };
    // What follows `--` or `reap` belongs to the program that is run, its --help too.
    let own = args.iter().take_while(|a| *a != "--" && name != "reap");
    if own.clone().any(|a| a == "--help" || a == "-h") {
        return explain(&name);
    }
    (task.main)(args)
}

fn find(name: &str) -> Option<&'static Task> {
    TASKS.iter().find(|task| task.name == name)
}

fn overview() {
    println!("Project tasks. Start with the first two.\n");
    for task in TASKS {
        println!("  cargo xtask {}\n      {}", task.usage, task.about);
    }
    println!("\n`cargo xtask help TASK` explains what a task does, needs and writes.");
}

fn explain(name: &str) -> Result<ExitCode> {
    let Some(task) = find(name) else {
        bail!("no task is named {name:?}; `cargo xtask help` lists all tasks");
    };
    println!("cargo xtask {}\n\n{}", task.usage, task.help.trim());
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_usage_starts_with_its_name() {
        for task in TASKS {
            assert!(task.usage.starts_with(task.name), "{}", task.name);
            assert!(!task.help.trim().is_empty(), "{}", task.name);
        }
    }

    #[test]
    fn unknown_tasks_are_errors() {
        assert!(dispatch(vec!["tset".into()]).is_err());
        assert!(dispatch(vec!["help".into(), "tset".into()]).is_err());
    }
}
