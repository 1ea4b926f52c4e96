//! Stacks at random instructions against a shadow stack: each is the true chain, a cut,
//! or a guess that is marked.
//!
//! By default a few programs and stops. `AIPROF_SHADOW_STOPS=10000` stops each of all
//! programs below so often, of those that are installed, and prints the table of
//! docs/benchmarks.md; `AIPROF_SHADOW_PROGRAMS=openssl,go` only some of them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use aiprof::capture::for_each_event;
use aiprof::wire::{Event, StopReason};
use aiprof_tests::need::{Need, find_tool, skip_unless};
use aiprof_tests::shadow::{Account, GoRuntime, Plan, Recorder, Sampled, Truth, judge, stops};
use aiprof_tests::workload::{Workshop, checked, source_path};

/// Stops of each program, where nothing else is asked for.
const USUAL_STOPS: usize = 1_200;
/// Seconds of CPU that workloads are to run for: they end when they are let go.
const FOREVER: &str = "100000";
/// Most wrong ones of 20 guesses, and how many are always allowed: few guesses prove little.
const WRONG_OF_20: u64 = 1;
const WRONG_IN_ANY_CASE: u64 = 3;

type Make = Box<dyn Fn() -> Command>;

/// A program that is stepped.
struct Subject {
    name: &'static str,
    make: Make,
    go: Option<GoRuntime>,
    gap: u64,
}

fn subject(name: &'static str, program: impl Into<PathBuf>, arguments: &[&str]) -> Subject {
    let program = program.into();
    let arguments: Vec<String> = arguments.iter().map(|&a| a.to_owned()).collect();
    Subject {
        name,
        make: Box::new(move || {
            let mut command = Command::new(&program);
            command
                .args(&arguments)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            command
        }),
        go: None,
        gap: 300,
    }
}

/// What every machine with a compiler has.
fn usual(shop: &Workshop) -> anyhow::Result<Vec<Subject>> {
    let bare = shop.build("bare.c", "bare", &["-O2"])?;
    let everyday = shop.build("everyday.c", "everyday", &["-O2", "-lm"])?;
    let throw = shop.path("throw");
    checked(
        Command::new("c++")
            .args(["-O2", "-pthread", "-o"])
            .args([&throw, &source_path("throw.cpp")]),
    )?;
    Ok(vec![
        subject("assembly without unwind data", bare, &[FOREVER]),
        subject("C, glibc", everyday, &[FOREVER]),
        subject("C++ exceptions", throw, &[FOREVER]),
    ])
}

/// Programs that others have written.
fn installed(shop: &Workshop) -> anyhow::Result<Vec<Subject>> {
    let mut found = Vec::new();
    if find_tool("musl-gcc").is_some() {
        let program = shop.path("everyday-musl");
        checked(
            Command::new("musl-gcc")
                .args(["-O2", "-static", "-s", "-o"])
                .args([&program, &source_path("everyday.c")]),
        )?;
        found.push(subject("musl, static, stripped", program, &[FOREVER]));
    }
    let text = shop.path("text");
    let lines: String = (0..40_000u64)
        .map(|n| format!("{} {:x}\n", n * 7919 % 40_009, n * n))
        .collect();
    std::fs::write(&text, lines)?;
    let text = text.to_string_lossy().into_owned();
    if let Some(tool) = find_tool("busybox") {
        let awk = "{a[$1%97]+=$1*1.5;s=s substr($0,1,2)} END{for(i in a)print i,a[i],length(s)}";
        for (name, arguments) in [
            ("busybox sort", vec!["sort", &text]),
            ("busybox awk", vec!["awk", awk, &text]),
            ("busybox bzip2", vec!["bzip2", "-c", &text]),
            ("busybox sha256sum", vec!["sha256sum", &text]),
        ] {
            found.push(subject(name, &tool, &arguments));
        }
    }
    if let Some(tool) = find_tool("openssl") {
        for (name, what) in [
            ("openssl aes-256-gcm", &["-evp", "aes-256-gcm"][..]),
            ("openssl chacha20-poly1305", &["-evp", "chacha20-poly1305"]),
            ("openssl sha512", &["sha512"]),
            ("openssl ecdsap256", &["ecdsap256"]),
            ("openssl rsa2048", &["rsa2048"]),
        ] {
            let arguments = [&["speed", "-seconds", "1"], what].concat();
            found.push(subject(name, &tool, &arguments));
        }
    }
    if let Some(tool) = find_tool("ffmpeg") {
        let arguments = [
            "-v",
            "error",
            "-f",
            "lavfi",
            "-i",
            "testsrc2=size=320x180:rate=30",
            "-threads",
            "1",
            "-t",
            "600",
            "-c:v",
            "libx264",
            "-x264-params",
            "threads=1:lookahead-threads=1:sliced-threads=0:sync-lookahead=0",
            "-f",
            "null",
            "-",
        ];
        found.push(subject("ffmpeg, x264", tool, &arguments));
    }
    let blas = Path::new("/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0");
    if blas.exists() {
        let program = shop.path("blas");
        checked(
            Command::new("cc")
                .args(["-O2", "-o"])
                .args([&program, &source_path("blas.c")])
                .args([blas, Path::new("-lm")]),
        )?;
        let mut blas = subject("OpenBLAS", program, &[FOREVER]);
        let make = blas.make;
        blas.make = Box::new(move || {
            let mut command = make();
            command.env("OPENBLAS_NUM_THREADS", "1");
            command
                .env_remove("OPENBLAS_CORETYPE")
                .env_remove("OPENBLAS_L2_SIZE");
            command
        });
        found.push(blas);
    }
    // Not what starts another program in its place.
    let python = PathBuf::from("/usr/bin/python3");
    if python.exists() {
        let work = "import json,re\nwhile 1:\n d=json.dumps({str(i):[i,i*.5] for i in range(200)});json.loads(d);re.findall('[0-9]+',d);sorted(d)";
        found.push(subject("Python", python, &["-c", work]));
    }
    if let Some(tool) = find_tool("go") {
        found.extend(programs_of_go(shop, &tool)?);
    }
    if let Some(tool) = find_tool("rustc") {
        let program = shop.path("rusty");
        checked(
            Command::new(tool)
                .args(["-O", "-o"])
                .args([&program, &source_path("rusty.rs")]),
        )?;
        found.push(subject("Rust", program, &[FOREVER]));
    }
    Ok(found)
}

/// Programs of Go, one with C in it. The runtime interrupts its own threads, unless an option
/// prevents it; a signal would end a run here.
fn programs_of_go(shop: &Workshop, tool: &Path) -> anyhow::Result<Vec<Subject>> {
    let mut found = Vec::new();
    for (name, source) in [("Go", "goroutines.go"), ("Go with C", "gocalls.go")] {
        let program = shop.path(source.trim_end_matches(".go"));
        checked(
            Command::new(tool)
                .args(["build", "-o"])
                .args([&program, &source_path(source)])
                .env("GOCACHE", shop.path("go-cache"))
                .env("GOFLAGS", "-mod=mod"),
        )?;
        let mut subject = subject(name, &program, &[]);
        subject.go = Some(GoRuntime::of(tool, &program)?);
        let make = subject.make;
        subject.make = Box::new(move || {
            let mut command = make();
            command
                .env("GODEBUG", "asyncpreemptoff=1")
                .env("GOGC", "400");
            command
        });
        found.push(subject);
    }
    Ok(found)
}

/// The samples of a capture, by thread.
fn samples(file: &Path) -> anyhow::Result<HashMap<u32, Vec<Sampled>>> {
    let mut found: HashMap<u32, Vec<Sampled>> = HashMap::new();
    for_each_event(file, |event| {
        if let Event::Sample(sample) = event {
            let of_thread = found.entry(sample.thread.tid).or_default();
            of_thread.push(Sampled {
                time: sample.time_ns,
                tid: sample.thread.tid,
                cut: (sample.stop != StopReason::End).then(|| format!("{:?}", sample.stop)),
                user: sample.user,
            });
        }
        true
    })?;
    for of_thread in found.values_mut() {
        of_thread.sort_by_key(|sample| sample.time);
    }
    Ok(found)
}

/// Whether an account holds what is promised; else why not.
fn flaw(name: &str, account: &Account) -> Option<String> {
    let most = account.guesses() * WRONG_OF_20 / 20;
    let flawed = account.wrong > 0
        || account.bad_guesses > most.max(WRONG_IN_ANY_CASE)
        || account.missing * 20 > account.sampled;
    flawed.then(|| format!("{name}: {}", account.row()))
}

#[test]
fn stacks_at_random_instructions_are_true_or_say_that_they_may_not_be() -> anyhow::Result<()> {
    let needs = [Need::Root, Need::Tool("cc"), Need::Tool("c++")];
    skip_unless!(&needs);
    let asked = std::env::var("AIPROF_SHADOW_STOPS").ok();
    let each = asked.as_ref().map_or(Ok(USUAL_STOPS), |n| n.parse())?;
    let shop = Workshop::new()?;
    let mut subjects = usual(&shop)?;
    if asked.is_some() {
        subjects.extend(installed(&shop)?);
    }
    if let Ok(only) = std::env::var("AIPROF_SHADOW_PROGRAMS") {
        let only: Vec<String> = only.split(',').map(str::to_lowercase).collect();
        subjects.retain(|s| only.iter().any(|o| s.name.to_lowercase().contains(o)));
    }
    let recorder = Recorder::start(&shop.path(""))?;
    let mut truths: Vec<(&str, Truth)> = Vec::new();
    for (at, subject) in subjects.iter().enumerate() {
        let plan = Plan {
            name: subject.name,
            command: &subject.make,
            stops: each,
            gap: subject.gap,
            go: subject.go.as_ref(),
            seed: 0x5eed + at as u64,
        };
        let start = std::time::Instant::now();
        let truth = stops(&recorder, &plan);
        let took = start.elapsed();
        match truth {
            Ok(truth) => {
                println!(
                    "{}: {} runs, {} instructions, {took:.1?}",
                    subject.name,
                    truth.maps.len(),
                    truth.steps
                );
                truths.push((subject.name, truth));
            }
            Err(error) if asked.is_some() => println!("{}: {error:#}", subject.name),
            Err(error) => return Err(error),
        }
    }
    let samples = samples(&recorder.finish()?)?;
    let mut flaws = Vec::new();
    for (name, truth) in &truths {
        let account = judge(truth, &samples);
        println!("{name}: {}{}", account.row(), account.flaws());
        flaws.extend(flaw(name, &account));
    }
    anyhow::ensure!(flaws.is_empty(), "{}", flaws.join("\n"));
    Ok(())
}
