//! Calls of a compiled library's functions, seen by the programs in the kernel.
//! Needs root and a C compiler; without them, prints a line and passes.

use super::{
    Bpf, BpfOptions, CallOptions,
    probe::{self, BpfLink, Point, ProbeTarget},
    ring::RingReader,
};
use aiprof_common::{
    FETCH_VALUE, FROM_ARGUMENT, FetchOp, MAX_OPS, ProbeCounts, ProbeSpec, SPEC_EXIT,
};
use aiprof_model::wire::{self, Call, Record};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};
use std::{
    io::Write as _,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// The programs at entries and at returns; both kinds do the same here.
const PLAIN: [&str; 2] = ["call_entry", "call_return"];
const SLEEPABLE: [&str; 2] = ["call_entry_s", "call_return_s"];

const FUNCTIONS: u32 = 100;
const ROUNDS: u64 = 50;
const LIBRARY: u64 = 9;

/// A library of FUNCTIONS functions, `call_N(a, b) = a + b + N`, and a program
/// that calls each ROUNDS times with (round, 2 * round) once it may.
struct Built {
    dir: tempfile::TempDir,
}

impl Built {
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mut library = String::new();
        let mut program = String::from("#include <unistd.h>\n");
        let mut calls = String::new();
        for n in 0..FUNCTIONS {
            library += &format!("long call_{n}(long a, long b) {{ return a + b + {n}; }}\n");
            program += &format!("long call_{n}(long, long);\n");
            calls += &format!("sum += call_{n}(i, 2 * i);\n");
        }
        program += &format!(
            "int main(void) {{ char c; long sum = 0; if (read(0, &c, 1) != 1) return 1;\n\
             for (long i = 0; i < {ROUNDS}; i++) {{ {calls} }} return sum == 0; }}\n"
        );
        let built = Self { dir };
        std::fs::write(built.path("calls.c"), library).unwrap();
        std::fs::write(built.path("main.c"), program).unwrap();
        let library = built.path("libcalls.so");
        let ok = compile(&["-shared", "-fPIC"], &built.path("calls.c"), &library, &[])?
            && compile(&[], &built.path("main.c"), &built.path("main"), &[&library])?;
        assert!(ok, "the compiler failed");
        Some(built)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The program with its library loaded; it waits for input to go on.
    fn start(&self) -> Child {
        let child = Command::new(self.path("main"))
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let maps = format!("/proc/{}/maps", child.id());
        let loaded = || std::fs::read_to_string(&maps).is_ok_and(|maps| maps.contains("libcalls"));
        until(loaded);
        child
    }

    fn points(&self) -> Vec<Point> {
        let bytes = std::fs::read(self.path("libcalls.so")).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let text = file.section_by_name(".text").unwrap();
        let shift = text.address() - text.file_range().unwrap().0;
        let point = |n: u32| {
            let name = format!("call_{n}");
            let symbol = file.dynamic_symbols().find(|s| s.name() == Ok(&name));
            Point {
                offset: symbol.unwrap().address() - shift,
                cookie: LIBRARY << 32 | u64::from(n),
            }
        };
        (0..FUNCTIONS).map(point).collect()
    }
}

/// Runs the compiler; `None`, after a visible skip, where there is none.
fn compile(flags: &[&str], source: &Path, output: &Path, more: &[&Path]) -> Option<bool> {
    let mut command = Command::new("cc");
    command.args(["-O2", "-Wl,-rpath,$ORIGIN"]).args(flags);
    command.arg(source).args(more).arg("-o").arg(output);
    match command.status() {
        Ok(status) => Some(status.success()),
        Err(_) => {
            println!("skipped: calls_of_a_library_are_seen: needs cc");
            None
        }
    }
}

fn until(mut done: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < limit, "nothing happened");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn spec(n: u32) -> ProbeSpec {
    let argument = |index| FetchOp {
        from: FROM_ARGUMENT,
        index,
        how: FETCH_VALUE,
        size: 8,
        to: index,
        ..FetchOp::default()
    };
    let mut ops = [FetchOp::default(); MAX_OPS];
    ops[..2].copy_from_slice(&[argument(0), argument(1)]);
    ProbeSpec {
        function: n + 1,
        flags: SPEC_EXIT,
        n_entry: 2,
        n_exit: 0,
        n_values: 2,
        pad: 0,
        exit_slots: 0,
        pad2: 0,
        ops,
    }
}

/// Attaches to entry and return of every function; by the kind of link that this
/// kernel has.
fn attach(bpf: &Bpf, programs: [&'static str; 2], path: &Path, points: &[Point]) -> Vec<BpfLink> {
    let mut links = Vec::new();
    for (program, ret) in programs.into_iter().zip([false, true]) {
        let program = bpf.programs().get(program).unwrap();
        let target = ProbeTarget {
            path,
            ret,
            pid: None,
        };
        if probe::uprobe_multi().exists() {
            let attached = probe::attach_uprobe_multi(program.as_fd(), &target, points).unwrap();
            assert!(attached.refused.is_empty(), "{:?}", attached.refused);
            assert_eq!(attached.links.len(), 1);
            links.extend(attached.links);
        } else {
            let one = |point: &Point| probe::attach_uprobe_perf(program.as_fd(), &target, *point);
            links.extend(points.iter().map(|point| one(point).unwrap()));
        }
    }
    links
}

#[test]
fn calls_of_a_library_are_seen() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: calls_of_a_library_are_seen: needs root");
        return;
    }
    let Some(built) = Built::new() else {
        return;
    };
    let options = BpfOptions {
        calls: Some(CallOptions {
            probes: FUNCTIONS,
            ..CallOptions::default()
        }),
        ..BpfOptions::default()
    };
    let bpf = Bpf::load(&options, None).unwrap();
    for n in 0..FUNCTIONS {
        bpf.set(super::PROBES, &n, &spec(n)).unwrap();
    }
    let mut ring = bpf.ring(super::CALLS).unwrap();
    for (times, programs) in [(1, PLAIN), (2, SLEEPABLE)] {
        let (pid, calls) = observe(&bpf, &mut ring, programs, &built);
        check(pid, &calls);
        for n in 0..FUNCTIONS {
            let counts = bpf.per_cpu::<ProbeCounts>(super::PROBE_COUNTS, n);
            assert_eq!(counts.iter().map(|c| c.calls).sum::<u64>(), times * ROUNDS);
            assert_eq!(counts.iter().map(|c| c.lost).sum::<u64>(), 0);
        }
    }
}

/// Runs the program with the probes attached; gives its id and its calls.
fn observe(
    bpf: &Bpf,
    ring: &mut RingReader,
    programs: [&'static str; 2],
    built: &Built,
) -> (u32, Vec<Call>) {
    let mut child = built.start();
    let begin = Instant::now();
    let links = attach(bpf, programs, &built.path("libcalls.so"), &built.points());
    println!("attached {} links in {:?}", links.len(), begin.elapsed());

    child.stdin.take().unwrap().write_all(b"!").unwrap();
    let mut calls = Vec::new();
    until(|| {
        ring.drain(|record| match wire::decode(record) {
            Ok(Record::Call(call)) => calls.push(call),
            other => panic!("{other:?}"),
        });
        calls.len() as u64 >= 2 * u64::from(FUNCTIONS) * ROUNDS
    });
    assert!(child.wait().unwrap().success());
    let begin = Instant::now();
    drop(links);
    println!("detached in {:?}", begin.elapsed());
    assert!(!ring.drain(|record| panic!("{record:?}")).damaged);
    (child.id(), calls)
}

/// Every call of the program, its arguments and its result, in order.
fn check(pid: u32, calls: &[Call]) {
    let (exits, entries): (Vec<&Call>, Vec<&Call>) = calls.iter().partition(|c| c.is_exit());
    let expected = u64::from(FUNCTIONS) * ROUNDS;
    assert_eq!(entries.len() as u64, expected);
    assert_eq!(exits.len() as u64, expected);
    let order = (0..ROUNDS).flat_map(|i| (0..FUNCTIONS).map(move |n| (i, n)));
    for ((entry, exit), (round, n)) in entries.iter().zip(&exits).zip(order) {
        assert_eq!((entry.probe, entry.library), (n, LIBRARY as u32));
        assert_eq!(entry.values[..2], [round, 2 * round]);
        assert_eq!((entry.pid, entry.unread), (pid, 0));
        assert_eq!((exit.probe, exit.sp), (n, entry.sp));
        assert_eq!(exit.result, 3 * round + u64::from(n));
        assert!(exit.time_ns >= entry.time_ns);
    }
}
