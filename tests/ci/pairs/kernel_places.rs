//! Where kernels lie on the device is found out without help of the program or the
//! driver: samples are charged to the right kernels and instructions.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

use aiprof_tests::aiprof::Aiprof;
use aiprof_tests::child::{Child, LONG};
use aiprof_tests::folded::{Folded, base};
use aiprof_tests::level_zero::driver::{self, Driver, Exports, Machine};
use aiprof_tests::level_zero::module::{Kernel, Module};
use aiprof_tests::level_zero::program::{build_paths, build_work};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::states::States;
use aiprof_tests::truth::Truth;
use aiprof_tests::workload::{Workshop, checked};

fn needs() -> Vec<Need> {
    [&driver::NEEDS[..], &[Need::Root]].concat()
}

/// A machine that is sampled through a FIFO, as xe hands out samples.
struct Setup {
    shop: Workshop,
    machine: Machine,
    replay: String,
    module: PathBuf,
}

impl Setup {
    fn new(module: &Module, layout: &str, variables: &[(&str, &str)]) -> anyhow::Result<Self> {
        let shop = Workshop::new()?;
        let fifo = shop.path("stalls");
        checked(Command::new("mkfifo").arg(&fifo))?;
        let fifo = fifo.display();
        let mut machine = Machine::new(&Driver::build(Exports::All)?)
            .truth(&shop.path("truth.json"))
            .set("VZE_STALLS", &fifo.to_string())
            .set("VZE_STALLS_FORMAT", layout);
        for (name, value) in variables {
            machine = machine.set(name, value);
        }
        let replay = format!("{layout}:{fifo}");
        let module = module.write(&shop.path("module.zebin"))?;
        Ok(Self {
            shop,
            machine,
            replay,
            module,
        })
    }

    fn options(&self) -> [&str; 6] {
        [
            "-F",
            "49",
            "--weight",
            "samples",
            "--replay-device",
            &self.replay,
        ]
    }

    fn arguments(&self, mode: &[&str]) -> Vec<String> {
        let module = format!("module={}", self.module.display());
        mode.iter()
            .map(|arg| (*arg).to_owned())
            .chain([module])
            .collect()
    }

    /// Records a program from its beginning to its end.
    fn record(&self, program: &Path, mode: &[&str]) -> anyhow::Result<Judge> {
        let run = Aiprof::with(self.options())
            .option("--only")
            .command("env", &self.with_env(program, mode));
        let run = run.record()?;
        ensure!(run.status.success(), "{}\n{}", run.status, run.stderr);
        Judge::new(&Truth::read(&self.shop.path("truth.json"))?, &run.folded)
    }

    fn with_env(&self, program: &Path, mode: &[&str]) -> Vec<String> {
        let variables = self.machine.environment().into_iter();
        let mut all: Vec<String> = variables
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        all.push(program.display().to_string());
        all.extend(self.arguments(mode));
        all
    }
}

/// Samples by kernel and offset: by the driver, and by the profile.
struct Judge {
    truth: BTreeMap<(String, u64), u64>,
    found: BTreeMap<(String, u64), u64>,
    /// Samples that the profile gives to no launch or no kernel.
    unattributed: u64,
}

impl Judge {
    fn new(truth: &Truth, folded: &Folded) -> anyhow::Result<Self> {
        let told = |call: &&aiprof_tests::truth::Call| call.function == "zexKernelGetBaseAddress";
        ensure!(
            !truth.calls.iter().any(|c| told(&c)),
            "the program was told"
        );
        let mut sums: BTreeMap<(String, u64), u64> = BTreeMap::new();
        for ((kernel, offset, _), count) in truth.stalls() {
            *sums.entry((kernel, offset)).or_default() += count;
        }
        let kernels: BTreeSet<&str> = sums.keys().map(|(kernel, _)| kernel.as_str()).collect();
        let mut found: BTreeMap<(String, u64), u64> = BTreeMap::new();
        let mut unattributed = 0;
        for line in &folded.lines {
            let leaf = line.frames.last().map_or("", |leaf| base(leaf));
            let hex = leaf.strip_prefix("0x");
            let offset = hex.and_then(|hex| u64::from_str_radix(hex, 16).ok());
            let kernel = line
                .frames
                .iter()
                .map(|f| base(f))
                .find(|f| kernels.contains(f));
            let nobody = line.frames.iter().any(|f| f == "[unattributed]");
            match (kernel, offset) {
                (Some(kernel), Some(offset)) if !nobody => {
                    *found.entry((kernel.to_owned(), offset)).or_default() += line.value;
                }
                _ if nobody || offset.is_some() => unattributed += line.value,
                _ => {}
            }
        }
        Ok(Self {
            truth: sums,
            found,
            unattributed,
        })
    }

    /// Every sample is charged to its kernel and instruction.
    fn check(&self, what: &str) {
        let all: u64 = self.truth.values().sum();
        assert!(all > 0, "{what}: nothing was sampled");
        assert_eq!(self.unattributed, 0, "{what}: of {all}; {:?}", self.found);
        assert_eq!(self.found, self.truth, "{what}");
    }
}

/// Several kernels with code of different sizes.
fn module() -> Module {
    let mut all = Vec::new();
    for (i, size) in [4096_usize, 640, 9024, 128, 4096].into_iter().enumerate() {
        let mut kernel = Kernel::new(&format!("kernel_{i}"), 100_000);
        kernel.code = (0..size).map(|at| (at * 31 + i * 7) as u8).collect();
        let last = (size - 16) as u32;
        all.push(
            kernel
                .stall(0x20, "sbid", 40)
                .stall(last, "send", 3 + i as u32),
        );
    }
    Module::new(all)
}

/// How the driver lays out kernels, and what its records are.
const WAYS: [(&str, &[(&str, &str)]); 3] = [
    ("xe2", &[]),
    ("xe2", &[("VZE_ISA_POOL", "1")]),
    ("xe3p", &[("VZE_ISA_POOL", "1")]),
];

#[test]
fn places_are_found_for_one_kernel_of_several() -> anyhow::Result<()> {
    skip_unless!(&needs());
    for (layout, variables) in WAYS {
        let setup = Setup::new(&module(), layout, variables)?;
        let judge = setup.record(&build_work()?, &["paths", "rounds=100"])?;
        judge.check(&format!("{layout} {variables:?}"));
    }
    Ok(())
}

#[test]
fn places_are_found_for_kernels_that_are_gone() -> anyhow::Result<()> {
    skip_unless!(&needs());
    for (layout, variables) in WAYS {
        let setup = Setup::new(&module(), layout, variables)?;
        let judge = setup.record(&build_work()?, &["basic", "rounds=200"])?;
        judge.check(&format!("{layout} {variables:?}"));
    }
    Ok(())
}

#[test]
fn places_are_found_for_all_kernels_of_threads() -> anyhow::Result<()> {
    skip_unless!(&needs());
    let setup = Setup::new(&module(), "xe2", &[("VZE_ISA_POOL", "1")])?;
    // On a busy machine the search takes longer than a program of 0.2 s lives.
    let mode = [
        "launch",
        "paths=5",
        "kernels=path",
        "threads=2",
        "launches=5000",
        "sync=20",
    ];
    setup.record(&build_paths()?, &mode)?.check("threads");
    Ok(())
}

#[test]
fn places_are_found_for_kernels_older_than_the_recording() -> anyhow::Result<()> {
    skip_unless!(&needs());
    for (layout, variables) in WAYS {
        let setup = Setup::new(&module(), layout, variables)?;
        let mut program = setup.machine.command(&build_work()?);
        program.args(setup.arguments(&["late", "launches=300", "pause_us=2000"]));
        let mut program = program
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut stdout = BufReader::new(program.stdout.take().context("stdout")?).lines();
        let mut stdin = program.stdin.take().context("stdin")?;
        let first = stdout.next().context("no line")??;
        ensure!(first == "ready", "{first}");
        let output = setup.shop.path("out.folded");
        let (pid, out) = (program.id().to_string(), output.display().to_string());
        let options = [&setup.options()[..], &["-p", &pid, "-o", &out]].concat();
        let states = States::new(&setup.shop);
        let mut aiprof = Child::start(&mut states.command(&options, &[])?)?;
        states.wait_known(program.id())?;
        writeln!(stdin)?;
        drop(stdin);
        ensure!(program.wait()?.success(), "the program failed");
        let said = aiprof.stderr()?;
        ensure!(aiprof.wait(LONG)?.success(), "{said}");
        let folded = Folded::parse(&std::fs::read_to_string(&output)?)?;
        let judge = Judge::new(&Truth::read(&setup.shop.path("truth.json"))?, &folded)?;
        judge.check(&format!("{layout} {variables:?}"));
    }
    Ok(())
}
