//! `bench memory`: what aiprof needs while 100 processes of 10 large programs
//! run, up to the finished flame graph.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::bpf::{map_ids, map_memory};
use super::report::{mib, publish, table};
use super::watch::{Group, Guard, Memory, MemoryWatch, median, perf_rings, signal, wait};
use super::{Options, finish, stacks};
use crate::proc::find_program;

/// How many different programs, and processes of each.
const PROGRAMS: usize = 10;
const EACH: usize = 10;

/// The goal, in bytes: anonymous and shared memory, and maps and rings.
const OWN: u64 = 50 << 20;
const LOCKED: u64 = 24 << 20;

/// Large programs, largest first, each with what keeps it busy. A script that
/// ends is started again. RUST and CPP are sources, AIPROF a large ELF file.
const CANDIDATES: &[(&str, &str)] = &[
    (
        "rustc",
        "rustc -O --crate-type lib --emit obj -o /dev/null RUST",
    ),
    ("clang", "clang++ -O2 -c -o /dev/null CPP"),
    ("g++", "g++ -O2 -c -o /dev/null CPP"),
    (
        "node",
        "node -e 'for (;;) JSON.stringify([...Array(20000).keys()].map(String).sort())'",
    ),
    ("java", "java -XX:+UseSerialGC -Xmx64m JAVA"),
    (
        "python3",
        "python3 -c 'while True: sorted(str(i) for i in range(20000))'",
    ),
    ("go", "go list -e -deps -json std"),
    (
        "gdb",
        "gdb -nx -batch -ex 'info functions no_such_name' AIPROF",
    ),
    (
        "bpftrace",
        "bpftrace -d -e 'profile:hz:99 { @[kstack,ustack,comm]=count(); }'",
    ),
    (
        "perl",
        "perl -e 'while (1) { my %h = map { $_ => \"x$_\" } 1..20000; my @k = sort keys %h }'",
    ),
    ("git", "git diff --no-index --stat RUST CPP"),
    (
        "sqlite3",
        "sqlite3 :memory: 'WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c) \
         SELECT count(*) FROM c'",
    ),
    ("openssl", "openssl speed -seconds 60 rsa4096"),
    (
        "vim",
        "vim -es -u NONE -c 'while 1 | call sort(range(20000)) | endwhile'",
    ),
];

const CPP: &str = "#include <algorithm>\n#include <iostream>\n#include <map>\n#include <regex>\n\
    #include <string>\n#include <vector>\nbool f(const std::string &s) {\n\
    std::map<std::string, std::vector<std::regex>> m; m[s].emplace_back(s);\n\
    return std::regex_search(s, m[s].front()); }\n";

const JAVA: &str = "class Busy { public static void main(String[] a) { long n = 0; for (;;) {\n\
    java.util.TreeMap<String, Integer> m = new java.util.TreeMap<>();\n\
    for (int i = 0; i < 20000; i++) m.put(\"k\" + (i * 7919L % 20000), i);\n\
    n += m.firstEntry().getValue(); } } }\n";

/// What one round found, in bytes.
struct Found {
    memory: Memory,
    maps: u64,
    rings: u64,
    stacks: usize,
    programs: usize,
}

pub(super) fn main(options: &Options) -> Result<()> {
    let dir = super::work_dir("memory")?;
    let aiprof = super::build_aiprof()?;
    for (name, text) in [
        ("many.rs", finish::rust_source()),
        ("many.cpp", CPP.into()),
        ("Busy.java", JAVA.into()),
    ] {
        fs::write(dir.join(name), text)?;
    }
    let present = |c: &&(&str, &str)| find_program(c.0).is_some();
    let chosen: Vec<_> = CANDIDATES.iter().filter(present).take(PROGRAMS).collect();
    let mut found = Vec::new();
    for round in 1..=options.rounds {
        eprintln!("xtask: round {round} of {}", options.rounds);
        let mut load = Group::new()?;
        for _ in 0..EACH {
            for (_, script) in &chosen {
                load.spawn(&mut busy(script, &dir, &aiprof))?;
            }
        }
        sleep(Duration::from_secs(5));
        found.push(record(&aiprof, &dir, options.seconds)?);
        let ended = load.ended();
        if ended > 0 {
            eprintln!("xtask: {ended} of the processes ended early");
        }
    }
    let names: Vec<&str> = chosen.iter().map(|c| c.0).collect();
    let body = format!(
        "{} processes: {EACH} each of {}. {} rounds of {} s; medians.\n\n{}",
        names.len() * EACH,
        names.join(", "),
        options.rounds,
        options.seconds,
        rows(&found)
    );
    publish("memory", &options.command("memory"), &body, options.write)
}

/// A process that keeps one of the programs running.
fn busy(script: &str, dir: &Path, aiprof: &Path) -> Command {
    let file = |name: &str| format!("'{}'", dir.join(name).display());
    let script = script
        .replace("RUST", &file("many.rs"))
        .replace("CPP", &file("many.cpp"))
        .replace("JAVA", &file("Busy.java"))
        .replace("AIPROF", &format!("'{}'", aiprof.display()));
    let mut command = Command::new("nice");
    // 100 busy processes must not keep aiprof from reading its rings.
    command.args(["-n", "19", "sh", "-c"]);
    command.arg(format!("while :; do {script}; done"));
    command
}

fn record(aiprof: &Path, dir: &Path, seconds: u64) -> Result<Found> {
    let svg = dir.join("x.svg");
    let before = map_ids()?;
    let mut child = Command::new(aiprof)
        .args(["-q", "-o"])
        .arg(&svg)
        .stdin(Stdio::null())
        .spawn()
        .context("cannot start aiprof")?;
    let mut guard = Guard::new()?;
    guard.add(&child, false)?;
    let pid = child.id();
    let memory = MemoryWatch::start(pid);
    let (mut maps, mut rings) = (0, 0);
    for _ in 0..seconds {
        sleep(Duration::from_secs(1));
        maps = maps.max(map_memory(pid, &before)?);
        rings = rings.max(perf_rings(pid));
    }
    signal(&child, libc::SIGINT);
    let (status, _, _) = wait(&mut child, Duration::from_secs(120))?;
    let memory = memory.finish();
    // 130: ended by SIGINT, with a result.
    if !matches!(status.code(), Some(0 | 130)) {
        bail!("aiprof: {status}");
    }
    let stacks = stacks::svg(&fs::read_to_string(&svg)?);
    let comm = |s: &stacks::Stack| s.frames.first().cloned();
    Ok(Found {
        memory,
        maps,
        rings,
        programs: stacks
            .iter()
            .filter_map(comm)
            .collect::<BTreeSet<_>>()
            .len(),
        stacks: stacks.len(),
    })
}

fn rows(found: &[Found]) -> String {
    let middle = |value: &dyn Fn(&Found) -> u64| median(found.iter().map(|f| value(f) as f64));
    let line = |name: &str, bytes: f64, goal: Option<u64>| {
        let goal = goal.map_or("".into(), |g| mib(g as f64));
        vec![name.to_string(), mib(bytes), goal]
    };
    let own = middle(&|f| f.memory.own);
    let locked = middle(&|f| f.maps + f.rings);
    let lines = [
        line("anonymous and shared, peak", own, Some(OWN)),
        line("BPF maps, perf rings", locked, Some(LOCKED)),
        line("- of these, BPF maps", middle(&|f| f.maps), None),
        line("- of these, perf rings", middle(&|f| f.rings), None),
        line(
            "file-backed pages, peak (mapped maps and rings included)",
            middle(&|f| f.memory.file),
            None,
        ),
    ];
    format!(
        "{}\n{:.0} distinct stacks, {:.0} command names in the flame graph.\n",
        table(&["memory", "MiB", "goal"], &lines),
        middle(&|f| f.stacks as u64),
        middle(&|f| f.programs as u64)
    )
}
