//! Programs that launch from all sorts of places, as written by people who have not read how calls
//! are followed. `aiprof trace` shows each launch, with the kernel's name and its end. This is
//! tested on the virtual driver, and on Intel's real one, which has hardly a function that returns
//! by itself.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};

use aiprof_tests::aiprof::binary;
use aiprof_tests::level_zero::driver::{self, Driver, Exports, Machine};
use aiprof_tests::level_zero::module::Module;
use aiprof_tests::level_zero::program::{Account, build_odd, build_shapes};
use aiprof_tests::level_zero::real::{self, Product, Recording};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::{Workshop, checked, source_path};
use anyhow::Context as _;
use serde_json::Value;

/// All in one process, one after the other: what an earlier one leaves on the stack is
/// there for the next.
const SHAPES: &str = "value,many,site,frames,objects,callbacks,threads,jumps,fibers";
/// Shapes of `ze_odd` with one thread at a time.
const ODD: &str = "part,plugin,signals,leaps,coroutines,arena,makers,contexts,recorded,kinds,\
                   renewed,closing";
/// And those of several, or of several processes.
const ODD_TOGETHER: &str = "pool,children";

/// Runs a program below `aiprof trace`, and checks what is shown. `command`: aiprof in the
/// driver's environment.
fn check(shop: &Workshop, mut command: Command, program: &[String]) -> anyhow::Result<()> {
    let output = shop.path("trace.json");
    command.args(["trace", "--json", "-o"]).arg(&output);
    let accounts = Account::read(&checked(command.arg("--").args(program))?)?;
    let what = &program[1];
    let (ends, launches) = shows(&output, &accounts, what)?;
    println!("{what}: {ends} of {launches} launches have an end");
    anyhow::ensure!(ends * 100 >= launches * 99, "{what}: {ends}");
    Ok(())
}

/// Whether a trace shows what programs did. How many launches have an end, and how many
/// there are.
fn shows(trace: &Path, accounts: &[Account], what: &str) -> anyhow::Result<(usize, usize)> {
    let mut made: BTreeMap<String, u64> = BTreeMap::new();
    for (kernel, n) in accounts.iter().flat_map(|account| &account.launches) {
        *made.entry(kernel.clone()).or_default() += n;
    }
    let text = std::fs::read_to_string(trace)?;
    let lines = text.lines().map(serde_json::from_str::<Value>);
    let lines = lines.collect::<Result<Vec<_>, _>>()?;
    let launches: Vec<_> = lines.iter().filter(|l| l["kind"] == "launch").collect();
    let mut shown: BTreeMap<String, u64> = BTreeMap::new();
    for launch in &launches {
        let work = launch["work"].as_str().unwrap_or("[no name]");
        *shown.entry(work.to_owned()).or_default() += 1;
    }
    assert_eq!(shown, made, "{what}");
    let ended = |line: &&&Value| line["duration_ns"].is_u64();
    let ends = launches.iter().filter(ended).count();
    // None is inside of another.
    let deepest = launches.iter().map(|l| l["depth"].as_u64()).max();
    assert_eq!(deepest, Some(Some(0)), "{what}");
    Ok((ends, launches.len()))
}

fn shapes(module: &Path) -> anyhow::Result<Vec<String>> {
    let program = build_shapes()?.display().to_string();
    let module = format!("module={}", module.display());
    Ok([program, SHAPES.into(), module, "launches=400".into()].into())
}

fn odd(module: &Path, shapes: &str, launches: u32) -> anyhow::Result<Vec<String>> {
    let (program, part) = build_odd()?;
    Ok([
        program.display().to_string(),
        shapes.into(),
        format!("module={}", module.display()),
        format!("launches={launches}"),
        format!("part={}", part.display()),
    ]
    .into())
}

#[test]
fn every_shape_on_intels_driver() -> anyhow::Result<()> {
    skip_unless!(&real::NEEDS);
    let shop = Workshop::new()?;
    let module = real::compile(&shop, Product::Skl)?;
    let aiprof = |recording| -> anyhow::Result<Command> {
        Ok(real::command(
            &binary()?,
            Product::Skl,
            recording,
            &shop.path(""),
        ))
    };
    check(&shop, aiprof(Recording::Off)?, &shapes(&module)?)?;
    check(&shop, aiprof(Recording::Off)?, &odd(&module, ODD, 240)?)?;
    check(
        &shop,
        aiprof(Recording::Full)?,
        &odd(&module, ODD_TOGETHER, 120)?,
    )
}

#[test]
fn every_shape_on_the_virtual_driver() -> anyhow::Result<()> {
    skip_unless!(&driver::NEEDS);
    let shop = Workshop::new()?;
    let machine = Machine::new(&Driver::build(Exports::All)?);
    let module = Module::usual().write(&shop.path("module.zebin"))?;
    for program in [
        shapes(&module)?,
        odd(&module, ODD, 240)?,
        odd(&module, ODD_TOGETHER, 120)?,
    ] {
        check(&shop, machine.command(&binary()?), &program)?;
    }
    Ok(())
}

/// Another tool's return probes are on the same functions: their trampoline is where the
/// return address was.
#[test]
fn beside_another_tools_return_probes() -> anyhow::Result<()> {
    let needs = [&driver::NEEDS[..], &[Need::Root, Need::Tool("bpftrace")]].concat();
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let driver = Driver::build(Exports::All)?;
    let module = Module::usual().write(&shop.path("module.zebin"))?;
    let probes: Vec<String> = [Path::new(driver::LOADER), driver.path()]
        .iter()
        .flat_map(|file| {
            let of = |function| format!("uretprobe:{}:{function}", file.display());
            ["zeKernelCreate", "zeCommandListAppendLaunchKernel"].map(of)
        })
        .collect();
    let script = format!(
        "{} {{ @hits = count(); }} interval:ms:100 {{ printf(\"attached\\n\"); }}",
        probes.join(", ")
    );
    let mut bpftrace = Command::new("bpftrace")
        .args(["-B", "line", "-e", &script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut stdout = BufReader::new(bpftrace.stdout.take().context("stdout")?);
    let mut said = String::new();
    while !said.contains("attached\n") {
        anyhow::ensure!(stdout.read_line(&mut said)? > 0, "bpftrace ended: {said}");
    }
    let machine = Machine::new(&driver);
    let found = [shapes(&module)?, odd(&module, ODD, 240)?]
        .iter()
        .try_for_each(|program| check(&shop, machine.command(&binary()?), program));
    checked(Command::new("kill").args(["-INT", &bpftrace.id().to_string()]))?;
    stdout.read_to_string(&mut said)?;
    bpftrace.wait()?;
    found?;
    let hits = said.lines().find_map(|line| line.strip_prefix("@hits: "));
    let hits: u64 = hits.with_context(|| said.clone())?.trim().parse()?;
    anyhow::ensure!(hits > 5000, "{hits}");
    Ok(())
}

/// An OpenCL loader jumps into tables that each object of a driver leads to. Only by these do
/// kernels have names, and calls ends. They are probed once a call has shown a table, which takes
/// 20 to 60 ms on two CPUs. The program waits for as long as a busy machine may need.
#[test]
fn opencl_kernels_have_names() -> anyhow::Result<()> {
    let mut needs = real::NEEDS.to_vec();
    needs.extend([
        Need::Path("/usr/include/CL/cl.h"),
        Need::Path("/etc/OpenCL/vendors/pocl.icd"),
        Need::Path("/etc/OpenCL/vendors/intel.icd"),
    ]);
    skip_unless!(&needs);
    let shop = Workshop::new()?;
    let program = shop.build("cl_work.c", "cl_work", &["-lOpenCL"])?;
    let program = program.display().to_string();
    let kernels = source_path("kernels.cl").display().to_string();
    for (platform, how) in [
        ("Portable Computing", &["no-check"][..]),
        ("Intel", &["no-check"]),
        // Kernels made one by one.
        ("Portable Computing", &["no-check", "single"]),
        ("Intel", &["no-check", "single"]),
    ] {
        let dir = shop.path("");
        let mut aiprof = real::command(&binary()?, Product::Skl, Recording::Off, &dir);
        aiprof.env("CL_WORK_PAUSE_MS", "1000");
        let program = [&[&program, platform, &kernels, "30"][..], how].concat();
        let program: Vec<String> = program.into_iter().map(str::to_owned).collect();
        check(&shop, aiprof, &program)?;
    }
    Ok(())
}

/// A capture that is given in a command's place.
#[test]
fn a_capture_is_known_by_its_content() -> anyhow::Result<()> {
    skip_unless!(&driver::NEEDS);
    let shop = Workshop::new()?;
    let machine = Machine::new(&Driver::build(Exports::All)?);
    let module = Module::usual().write(&shop.path("module.zebin"))?;
    let (capture, trace) = (shop.path("no extension"), shop.path("trace.json"));
    let mut record = machine.command(&binary()?);
    record.args(["--only", "--format", "capture", "-o"]).arg(&capture);
    let program = [build_shapes()?.display().to_string(), "many".into()];
    let module = format!("module={}", module.display());
    let accounts = checked(record.arg("--").args(program).arg(module))?;
    let mut replay = Command::new(binary()?);
    replay.args(["trace", "--json", "-o"]).arg(&trace);
    checked(replay.arg(&capture))?;
    shows(&trace, &Account::read(&accounts)?, "many")?;
    // Nothing of that is about a command.
    let refused = Command::new(binary()?)
        .args(["trace", "-d", "1s"])
        .arg(&capture)
        .output()?;
    let said = String::from_utf8_lossy(&refused.stderr);
    anyhow::ensure!(!refused.status.success(), "{said}");
    anyhow::ensure!(said.contains("--duration"), "{said}");
    Ok(())
}
