//! `aiprof unitrace` and its tables, against the virtual driver's truth file, the programs' own
//! accounts and the facts on kernels of Intel's driver and compiler.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::Context as _;
use serde_json::Value;

use aiprof_tests::aiprof::binary;
use aiprof_tests::level_zero::driver::{Driver, Exports, LOADER, Machine};
use aiprof_tests::level_zero::module::Module;
use aiprof_tests::level_zero::program::{Account, build_gemm, build_work};
use aiprof_tests::level_zero::real::{self, Product, Recording};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::states::{UNTIL_KNOWN, until_known};
use aiprof_tests::truth::{Exec, Kind, Truth};
use aiprof_tests::workload::{Workshop, checked, source_path};

const NEEDS: [Need; 4] = [
    Need::Root,
    Need::Tool("c++"),
    Need::Path("/usr/include/level_zero/ze_api.h"),
    Need::Path(LOADER),
];

/// A tick of the virtual device's clock, nanoseconds, rounded up.
const TICK: u64 = 53;

/// A run of a program under `aiprof unitrace`.
struct Run {
    shop: Workshop,
    truth: Truth,
    accounts: Vec<Account>,
    stderr: String,
}

/// Runs `aiprof unitrace OPTIONS -- PROGRAM MODE`; `{}` in options is the workshop.
fn run(options: &[&str], program: &Path, mode: &[&str]) -> anyhow::Result<Run> {
    let shop = Workshop::new()?;
    let machine = Machine::new(&Driver::build(Exports::All)?).truth(&shop.path("truth.json"));
    let module = Module::usual().write(&shop.path("module.zebin"))?;
    let mut command = machine.command(&binary()?);
    command.arg("unitrace").current_dir(shop.path(""));
    command.args(options).arg("--").arg(program).arg(mode[0]);
    command.arg(format!("module={}", module.display()));
    let done = finished(command.args(&mode[1..]))?;
    Ok(Run {
        truth: Truth::read(&shop.path("truth.json"))?,
        accounts: Account::read(&String::from_utf8_lossy(&done.stdout))?,
        stderr: String::from_utf8_lossy(&done.stderr).into_owned(),
        shop,
    })
}

fn finished(command: &mut Command) -> anyhow::Result<Output> {
    let done = command.output()?;
    let stderr = String::from_utf8_lossy(&done.stderr);
    anyhow::ensure!(done.status.success(), "{}: {stderr}", done.status);
    Ok(done)
}

/// The lines of a table behind the line with its title.
fn lines<'t>(text: &'t str, title: &str) -> Vec<&'t str> {
    let title = format!("=== {title} ===");
    let from = text.lines().skip_while(|line| *line != title).skip(1);
    from.take_while(|line| !line.starts_with("=== ")).collect()
}

/// Rows by name: the columns behind the name, which has `columns` of them.
fn rows(text: &str, title: &str, columns: usize) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    let is_row = |line: &&&str| line.matches(',').count() >= columns;
    // The first is the head.
    for line in lines(text, title).iter().filter(is_row).skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let (name, values) = cells.split_at(cells.len() - columns);
        let values = values.iter().map(|cell| cell.trim().to_owned());
        found.insert(name.join(",").trim().to_owned(), values.collect());
    }
    found
}

fn number(text: &str) -> u64 {
    text.parse()
        .unwrap_or_else(|_| panic!("{text:?} is no number"))
}

/// The same names and counts, of another column than the first too.
fn counts(rows: &BTreeMap<String, Vec<String>>) -> BTreeMap<String, u64> {
    let of = |(name, row): (&String, &Vec<String>)| (name.clone(), number(&row[0]));
    rows.iter().map(of).collect()
}

/// What a program called, by function. The loader calls the driver's zeInit as well.
fn called(truth: &Truth, pid: u32) -> BTreeMap<String, u64> {
    let mut calls = BTreeMap::new();
    for call in truth.calls.iter().filter(|call| call.pid == pid) {
        *calls.entry(call.function.clone()).or_default() += 1;
    }
    calls.insert("zeInit".to_owned(), 1);
    calls
}

/// What unitrace calls an execution of `ze_gemm`.
fn name(exec: &Exec, truth: &Truth) -> String {
    let append = truth.calls.iter().find(|call| call.seq == exec.seq);
    match exec.kind {
        Kind::Kernel => format!("\"{}\"", exec.kernel.clone().unwrap_or_default()),
        Kind::Barrier => "\"zeCommandListAppendBarrier\"".to_owned(),
        Kind::Fill => "\"zeCommandListAppendMemoryFill(D)\"".to_owned(),
        Kind::Copy => {
            // The third copy of a round is the one to the host.
            let copies = truth
                .calls
                .iter()
                .filter(|call| call.function.contains("Copy"));
            let before = copies
                .filter(|call| call.seq < append.map_or(0, |a| a.seq))
                .count();
            let letters = if before % 3 == 2 { "D2M" } else { "M2D" };
            format!("\"zeCommandListAppendMemoryCopy({letters})\"")
        }
    }
}

/// Executions by name: how many, and nanoseconds in all.
fn executed(truth: &Truth) -> BTreeMap<String, (u64, u64)> {
    let mut found: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for exec in &truth.execs {
        let (count, ns) = found.entry(name(exec, truth)).or_default();
        *count += 1;
        *ns += exec.end_ns - exec.start_ns;
    }
    found
}

const HOST: &str = "API Timing Summary";
const DEVICE: &str = "Device Timing Summary";
const PROPERTIES: &str = "Kernel Properties";
const SUBMISSION: &str = "Kernel Submission Summary";

#[test]
fn host_calls_are_those_of_the_program() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let run = run(&["-h"], &build_gemm()?, &["gemm", "rounds=4", "ask=1"])?;
    let found = rows(&run.stderr, HOST, 6);
    assert_eq!(counts(&found), called(&run.truth, run.accounts[0].pid));
    for (function, row) in &found {
        let calls = run
            .truth
            .calls
            .iter()
            .filter(|call| call.function == *function);
        let inside: u64 = calls.map(|call| call.t1 - call.t0).sum();
        let [calls, time, _, average, min, max] = &row[..] else {
            panic!("{row:?}");
        };
        let [calls, time, average] = [calls, time, average].map(|cell| number(cell));
        assert!(time >= inside, "{function}: {time} {inside}");
        assert_eq!(average, time / calls, "{function}");
        assert!(
            number(min) <= average && average <= number(max),
            "{function}"
        );
    }
    // Longest first.
    let times: Vec<u64> = lines(&run.stderr, HOST)
        .iter()
        .filter(|line| line.contains(", ") && !line.contains("Function"))
        .map(|line| number(line.split(',').nth(2).unwrap_or("").trim()))
        .collect();
    assert!(times.is_sorted_by(|a, b| a >= b), "{times:?}");
    let total = format!(
        "Total API Time for L0 backend (ns): {:>20}",
        times.iter().sum::<u64>()
    );
    assert!(run.stderr.contains(&total), "{total}\n{}", run.stderr);
    Ok(())
}

#[test]
fn device_times_are_exact_where_the_program_reads_them() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let options = ["-d", "-s"];
    let run = run(
        &options,
        &build_gemm()?,
        &["gemm", "rounds=4", "events=all", "ask=1", "pause=100"],
    )?;
    let (device, submission) = (
        rows(&run.stderr, DEVICE, 6),
        rows(&run.stderr, SUBMISSION, 7),
    );
    let truth = executed(&run.truth);
    let expected: BTreeMap<_, _> = truth
        .iter()
        .map(|(name, (n, _))| (name.clone(), *n))
        .collect();
    // As many of each as unitrace's own sample of such a program has.
    assert_eq!(expected.values().sum::<u64>(), 24);
    assert_eq!(counts(&device), expected);
    assert_eq!(counts(&submission), expected);
    for (name, (count, ns)) in &truth {
        let time = number(&device[name][1]);
        assert!(time.abs_diff(*ns) <= count * TICK, "{name}: {time} {ns}");
        assert_eq!(submission[name][5], device[name][1], "{name}");
        let commands = run
            .truth
            .execs
            .iter()
            .filter(|exec| self::name(exec, &run.truth) == *name);
        let append: u64 = commands
            .map(|exec| {
                let call = |seq| run.truth.calls.iter().find(|call| call.seq == seq).unwrap();
                call(exec.submit).t0 - call(exec.seq).t0
            })
            .sum();
        // The thread may lose its CPU between a probe and the driver's look at the clock;
        // the program waits ten times longer between both calls.
        let found = number(&submission[name][1]);
        assert!(
            found.abs_diff(append) <= count * 10_000_000,
            "{name}: {found} {append}"
        );
    }
    assert!(!run.stderr.contains("<="), "{}", run.stderr);
    let properties = rows(&run.stderr, PROPERTIES, 7);
    let asked = &run.accounts[0].more["properties"]["saxpy"];
    assert_eq!(properties.keys().collect::<Vec<_>>(), ["\"saxpy\""]);
    let row = &properties["\"saxpy\""];
    let ours: Vec<u64> = row[1..6].iter().map(|cell| number(cell)).collect();
    assert_eq!(serde_json::to_value(ours)?, *asked);
    assert_eq!((row[0].as_str(), row[6].as_str()), ("AOT", "128"));
    Ok(())
}

#[test]
fn what_is_not_exact_says_so_and_is_an_upper_bound() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let run = run(&["-d", "-s"], &build_gemm()?, &["gemm", "rounds=3"])?;
    let device = rows(&run.stderr, DEVICE, 6);
    let truth = executed(&run.truth);
    assert_eq!(device.len(), truth.len());
    for (name, (count, ns)) in &truth {
        let row = &device[name];
        assert_eq!(number(&row[0]), *count, "{name}");
        if name == "\"saxpy\"" {
            assert!(number(&row[1]).abs_diff(*ns) <= count * TICK, "{name}");
            continue;
        }
        assert_eq!(
            (row[2].as_str(), row[4].as_str()),
            ("-", "-"),
            "{name}: {row:?}"
        );
        for column in [1, 3, 5] {
            assert!(row[column].starts_with("<="), "{name}: {row:?}");
        }
        let longest = run
            .truth
            .execs
            .iter()
            .filter(|exec| self::name(exec, &run.truth) == *name);
        let longest = longest
            .map(|exec| exec.end_ns - exec.start_ns)
            .max()
            .unwrap_or(0);
        assert!(number(&row[5][2..]) >= longest, "{name}: {row:?} {longest}");
    }
    let note = "(<=: 15 of 18 commands have no device times.";
    assert_eq!(run.stderr.matches(note).count(), 2, "{}", run.stderr);
    assert!(
        lines(&run.stderr, DEVICE)[2].contains("<="),
        "{}",
        run.stderr
    );
    Ok(())
}

#[test]
fn shapes_are_those_of_the_launches() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let run = run(
        &["-d", "-v", "--exclude-kernels", "Barrier"],
        &build_work()?,
        &["basic", "rounds=5"],
    )?;
    let mut expected: BTreeMap<String, u64> = BTreeMap::new();
    for exec in &run.truth.execs {
        let shape = |three: [u64; 3]| three.map(|n| n.to_string()).join("; ");
        let name = match exec.kind {
            Kind::Kernel => {
                let groups = shape(exec.groups.context("no groups")?);
                // Set once by the program.
                format!(
                    "\"{}[SIMD16 {{{groups}}} {{16; 1; 1}}]\"",
                    exec.kernel.clone().unwrap()
                )
            }
            Kind::Copy => format!("\"zeCommandListAppendMemoryCopy(S2S)[{}]\"", exec.bytes),
            Kind::Fill => format!("\"zeCommandListAppendMemoryFill(S)[{}]\"", exec.bytes),
            Kind::Barrier => continue,
        };
        *expected.entry(name).or_default() += 1;
    }
    assert_eq!(counts(&rows(&run.stderr, DEVICE, 6)), expected);
    Ok(())
}

#[test]
fn a_line_for_each_command_tells_when_it_was_where() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    for (events, is_exact) in [("events=all", true), ("events=none", false)] {
        let run = run(&["-t"], &build_gemm()?, &["gemm", "rounds=4", events])?;
        let found: Vec<&str> = run
            .stderr
            .lines()
            .filter(|l| l.starts_with("Thread "))
            .collect();
        assert_eq!(found.len(), run.truth.execs.len(), "{}", run.stderr);
        let kernels = found
            .iter()
            .filter(|line| line.contains("[SIMD16 {8; 4; 1} {32; 2; 1}]"));
        let mut execs = run
            .truth
            .execs
            .iter()
            .filter(|exec| exec.kind == Kind::Kernel);
        for line in kernels {
            let words: Vec<&str> = line.split_whitespace().collect();
            let at = |mark: &str| {
                let place = words.iter().position(|word| *word == mark).unwrap();
                words[place - 1]
            };
            let exec = execs.next().context("more lines than kernels")?;
            let (append, submit) = (number(at("(append)")), number(at("(submit)")));
            assert!(
                append < submit && submit <= exec.start_ns,
                "{line} {exec:?}"
            );
            assert_eq!(
                words[1],
                run.accounts[0].threads.keys().next().unwrap().to_string()
            );
            match is_exact {
                true => {
                    let (start, end) = (number(at("(start)")), number(at("(end)")));
                    let ns = exec.end_ns - exec.start_ns;
                    assert!((end - start).abs_diff(ns) <= TICK, "{line} {exec:?}");
                    assert!(submit <= start, "{line}");
                }
                false => {
                    let start = at("(start)").strip_prefix(">=").context("no mark")?;
                    let end = at("(end)").strip_prefix("<=").context("no mark")?;
                    let is_between = number(start) <= exec.start_ns && exec.end_ns <= number(end);
                    assert!(is_between, "{line} {exec:?}");
                }
            }
        }
        assert!(execs.next().is_none());
    }
    Ok(())
}

#[test]
fn outputs_are_named_after_their_processes() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let mode = ["fork", "children=2", "launches=7"];
    let all = run(&["-h", "-o", "perf.txt"], &build_work()?, &mode)?;
    assert_eq!(all.accounts.len(), 3);
    for account in &all.accounts {
        let path = all.shop.path(&format!("perf.{}.txt", account.pid));
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let launches = &rows(&text, HOST, 6)["zeCommandListAppendLaunchKernel"][0];
        assert_eq!(number(launches), account.total(), "{}", path.display());
    }
    let options = [
        "-h",
        "-d",
        "--chrome-kernel-logging",
        "--follow-child-process",
        "0",
    ];
    let one = run(
        &[&options[..], &["--result-dir", "out"]].concat(),
        &build_work()?,
        &mode,
    )?;
    let own = one
        .accounts
        .iter()
        .map(|account| account.pid)
        .min()
        .context("no account")?;
    let directory = one.shop.path(&format!("out/ze_work.{own}"));
    let mut files: Vec<_> = std::fs::read_dir(&directory)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<anyhow::Result<_>>()?;
    files.sort();
    assert_eq!(
        files,
        ["chrome_trace.json", "device_timing.txt", "host_timing.txt"]
    );
    let trace = std::fs::read_to_string(directory.join("chrome_trace.json"))?;
    let trace: Value = serde_json::from_str(&trace)?;
    let launches = trace["traceEvents"].as_array().context("no events")?.iter();
    let launches = launches.filter(|event| event["name"] == "zeCommandListAppendLaunchKernel");
    let expected: u64 = one.accounts.iter().map(Account::total).sum();
    assert_eq!(launches.count() as u64, expected);
    let config = std::fs::read_to_string(one.shop.path("out/run_config.json"))?;
    let config: Value = serde_json::from_str(&config)?;
    assert_eq!(config["pid"], own.to_string());
    assert_eq!(config["unitrace_args"][0], "-h");
    assert_eq!(std::fs::read_dir(one.shop.path("out"))?.count(), 2);
    Ok(())
}

#[test]
fn captures_and_traces_have_the_same_tables() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    for file in ["x.aiprof", "x.json", "x.pftrace"] {
        let shop = Workshop::new()?;
        let machine = Machine::new(&Driver::build(Exports::All)?).truth(&shop.path("truth.json"));
        let module = Module::usual().write(&shop.path("module.zebin"))?;
        let output = shop.path(file);
        let mut command = machine.command(&binary()?);
        if file == "x.aiprof" {
            // Captures keep the ends of calls only then.
            command.args(["--events", "time-in-call"]);
        }
        command.args(["--only", "-o"]).arg(&output).arg("--").arg(build_gemm()?);
        command.args(["gemm", "rounds=4", "events=all"]);
        finished(command.arg(format!("module={}", module.display())))?;
        let truth = Truth::read(&shop.path("truth.json"))?;
        let table = |name: &str| -> anyhow::Result<Value> {
            let mut command = Command::new(binary()?);
            command.arg("analyze").arg(&output);
            let done = finished(command.args(["--table", name, "--format", "json"]))?;
            Ok(serde_json::from_slice::<Value>(&done.stdout)?[0].clone())
        };
        let device = table("device-shapes")?;
        let mut expected = executed(&truth);
        if file != "x.aiprof" {
            // Traces have no barriers.
            expected.retain(|name, _| !name.contains("Barrier"));
        }
        let rows = device["rows"].as_array().context("no rows")?;
        assert_eq!(rows.len(), expected.len(), "{file}: {device:#}");
        for row in rows {
            let name = row["kernel"].as_str().context("no name")?;
            let (name, _) = name.split_once('[').unwrap_or((name, ""));
            let (count, ns) = expected[&format!("\"{name}\"")];
            assert_eq!(row["calls"], count, "{file}: {row:#}");
            assert_eq!(row["quality"], "exact", "{file}: {row:#}");
            let time = row["time"].as_u64().context("no time")?;
            assert!(time.abs_diff(ns) <= count * TICK, "{file}: {row:#} {ns}");
        }
        let host = table("host-timing")?;
        let truth = called(&truth, truth.calls[0].pid);
        for row in host["rows"].as_array().context("no rows")? {
            let name = row["function"].as_str().context("no name")?;
            if row["backend"] == "L0" {
                assert_eq!(row["calls"], truth[name], "{file}: {name}");
                assert!(row["time"].as_u64() > Some(0), "{file}: {row:#}");
            }
        }
        let properties = table("kernel-properties")?;
        assert_eq!(properties["rows"][0]["registers"], 128, "{file}");
        assert_eq!(properties["rows"][0]["compiled"], "AOT", "{file}");
    }
    Ok(())
}

/// The value of a key of a kernel in `.ze_info`, as `readelf` shows the section: each line
/// ends in the characters for a new line.
fn ze_info(module: &Path, kernel: &str, key: &str) -> anyhow::Result<u64> {
    let mut readelf = Command::new("readelf");
    let dump = checked(readelf.args(["-p", ".ze_info"]).arg(module))?;
    let dump = dump.replace("\\n", " ");
    let of_kernel = dump.split("- name:").find(|part| {
        part.split_whitespace().next() == Some(kernel) && part.contains("execution_env")
    });
    let of_kernel = of_kernel.with_context(|| format!("no {kernel} in\n{dump}"))?;
    let value = of_kernel.split(&format!("{key}:")).nth(1);
    let value = value.and_then(|rest| rest.split_whitespace().next());
    Ok(value.map_or(0, number))
}

#[test]
fn properties_are_those_of_intels_compiler_and_driver() -> anyhow::Result<()> {
    let mut needs = real::NEEDS.to_vec();
    needs.extend([Need::Root, Need::Tool("readelf")]);
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let (zebin, spirv) = (
        real::compile(&shop, Product::Pvc)?,
        real::spirv(&shop, "kernels.cl")?,
    );
    let program = build_gemm()?;
    let of = |module: &PathBuf, more: &[&str]| -> anyhow::Result<(Vec<String>, Vec<Account>)> {
        let dir = shop.path("");
        let mut command = real::command(&binary()?, Product::Pvc, Recording::Off, &dir);
        command.args(["unitrace", "-d"]).arg(&program);
        command.args(["gemm", "rounds=2", "events=none"]).args(more);
        let done = finished(command.arg(format!("module={}", module.display())))?;
        let stderr = String::from_utf8_lossy(&done.stderr);
        let found = rows(&stderr, PROPERTIES, 7);
        assert_eq!(found.len(), 1, "{stderr}");
        let accounts = Account::read(&String::from_utf8_lossy(&done.stdout))?;
        Ok((found.into_values().next().context("no row")?, accounts))
    };
    // By the module alone.
    let (row, accounts) = of(&zebin, &[])?;
    let kernel = accounts[0].launches.keys().next().context("no kernel")?;
    assert_eq!(row[0], "AOT");
    assert_eq!(number(&row[1]), ze_info(&zebin, kernel, "simd_size")?);
    // As the source has it.
    assert_eq!(row[2], "3");
    assert_eq!(number(&row[6]), ze_info(&zebin, kernel, "grf_count")?);
    // Compiled by the driver: known only if the program asks.
    let (row, accounts) = of(&spirv, &["spirv=1", "ask=1"])?;
    let asked = &accounts[0].more["properties"][kernel];
    let ours: Vec<u64> = row[1..6].iter().map(|cell| number(cell)).collect();
    assert_eq!(serde_json::to_value(ours)?, *asked);
    assert_eq!((row[0].as_str(), row[6].as_str()), ("JIT", "unknown"));
    let (row, _) = of(&spirv, &["spirv=1"])?;
    assert_eq!(
        row,
        ["JIT", "?", "3", "unknown", "unknown", "unknown", "unknown"]
    );
    Ok(())
}

#[test]
fn opencl_has_its_own_section() -> anyhow::Result<()> {
    let needs = [
        Need::Root,
        Need::Tool("cc"),
        Need::Path("/usr/include/CL/cl.h"),
        Need::Path("/etc/OpenCL/vendors/pocl.icd"),
    ];
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let program = shop.build("cl_work.c", "cl_work", &["-lOpenCL"])?;
    let mut command = Command::new(binary()?);
    command.current_dir(shop.path(""));
    // PoCL's functions are probed when the program has loaded it; what a program of 40 ms
    // launches before that has no name.
    let (session, wait) = until_known()?;
    command.env(UNTIL_KNOWN, wait);
    command
        .args(["unitrace", "-h", "-d", "--opencl", "--session", &session])
        .arg(&program);
    command
        .arg("Portable Computing")
        .arg(source_path("kernels.cl"));
    let done = finished(command.arg("30"))?;
    let account = &Account::read(&String::from_utf8_lossy(&done.stdout))?[0];
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert!(stderr.contains("\n== CL Backend ==\n"), "{stderr}");
    let host = rows(&stderr, HOST, 6);
    assert_eq!(number(&host["clEnqueueNDRangeKernel"][0]), account.total());
    let device = rows(&stderr, DEVICE, 6);
    for (kernel, launches) in &account.launches {
        // Not in quotes, as unitrace has them.
        let row = device.get(kernel);
        let row = row.with_context(|| format!("no row of {kernel}:\n{stderr}"))?;
        assert_eq!(number(&row[0]), *launches, "{kernel}");
    }
    Ok(())
}

#[test]
fn the_command_decides_the_exit_status() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let code = |words: &[&str]| -> anyhow::Result<(Option<i32>, String)> {
        let done = Command::new(binary()?)
            .arg("unitrace")
            .args(words)
            .output()?;
        Ok((
            done.status.code(),
            String::from_utf8_lossy(&done.stderr).into_owned(),
        ))
    };
    assert_eq!(code(&["-h", "sh", "-c", "exit 7"])?.0, Some(7));
    let (status, stderr) = code(&["-q", "true"])?;
    assert_eq!(status, Some(2));
    assert!(
        stderr.contains("--metric-query is not supported: "),
        "{stderr}"
    );
    // A link of its name.
    let shop = Workshop::new()?;
    std::os::unix::fs::symlink(binary()?, shop.path("unitrace"))?;
    let done = Command::new(shop.path("unitrace"))
        .arg("--version")
        .output()?;
    assert!(String::from_utf8_lossy(&done.stdout).starts_with("2.3.0 "));
    Ok(())
}
