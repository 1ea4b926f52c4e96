//! Runs of `ze_paths` under aiprof with the virtual driver's stall streams in place of
//! hardware, and the judge's verdict on them.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

use crate::aiprof::binary;
use crate::child::{Child, LONG};
use crate::folded::Folded;
use crate::level_zero::driver::{Driver, Exports, LOADER, Machine};
use crate::level_zero::module::Module;
use crate::level_zero::program::{Account, build_paths};
use crate::need::Need;
use crate::pprof;
use crate::stall_truth::{Expected, Found, Verdict, is_device};
use crate::states::{States, UNTIL_KNOWN, until_known};
use crate::truth::{Kind, Truth};
use crate::workload::{Workshop, checked};

/// What these runs need from the machine.
pub const NEEDS: [Need; 5] = [
    Need::Root,
    Need::Tool("c++"),
    Need::Tool("mkfifo"),
    Need::Path("/usr/include/level_zero/ze_api.h"),
    Need::Path(LOADER),
];

/// How the records reach aiprof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// As a capture: windows with exact times and drops.
    Framed,
    /// The bare bytes in this layout: a window is what a read finds.
    Raw(&'static str),
}

impl Stream {
    fn layout(self) -> &'static str {
        match self {
            Self::Framed => "capture",
            Self::Raw(layout) => layout,
        }
    }

    /// How much later than the driver's windows the reader's may end, and how much
    /// earlier begin: its own clock readings; and, of bare bytes, its reads.
    fn slack_ns(self) -> u64 {
        match self {
            Self::Framed => 200_000,
            Self::Raw(_) => 25_000_000,
        }
    }
}

/// A run to be.
#[derive(Clone, Debug)]
pub struct Recording {
    /// How records get to aiprof.
    pub stream: Stream,
    /// Streams of the one device.
    pub gts: u32,
    /// Variables of the virtual driver.
    pub variables: Vec<(String, String)>,
    /// What is loaded: `module=`, `module2=`.
    pub modules: Vec<Module>,
    /// A module that is there already, in place of these.
    pub file: Option<PathBuf>,
    /// Further options of aiprof.
    pub options: Vec<String>,
}

impl Recording {
    /// A recording of one GT, framed.
    #[must_use]
    pub fn of(module: Module) -> Self {
        Self {
            stream: Stream::Framed,
            gts: 1,
            variables: Vec::new(),
            modules: vec![module],
            file: None,
            options: Vec::new(),
        }
    }

    /// A recording of compiled kernels for PVC, whose schedule is this text.
    ///
    /// # Errors
    /// When the schedule cannot be written.
    pub fn compiled(shop: &Workshop, schedule: &str) -> anyhow::Result<Self> {
        let file = shop.path("schedule");
        std::fs::write(&file, schedule)?;
        let mut recording = Self::of(Module::default())
            .set("VZE_STALLS_FORMAT", "pvc")
            .set("VZE_SCHEDULE", &file.display().to_string());
        recording.modules.clear();
        Ok(recording)
    }

    /// With another variable of `virtual/level-zero/README.md`.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The machine, with its truth file and streams in a workshop.
    ///
    /// # Errors
    /// When the driver cannot be built.
    pub fn machine(&self, shop: &Workshop) -> anyhow::Result<Machine> {
        let mut machine = Machine::new(&Driver::build(Exports::All)?)
            .truth(&shop.path("truth.json"))
            .set("VZE_STALLS", &shop.path("stalls.%g").display().to_string());
        machine = match self.stream {
            Stream::Framed => machine.set("VZE_STALLS_FRAMED", "1"),
            Stream::Raw(layout) => machine.set("VZE_STALLS_FORMAT", layout),
        };
        for (name, value) in &self.variables {
            machine = machine.set(name, value);
        }
        Ok(machine)
    }

    /// Makes the FIFOs. They stay open at both ends as long as the result lives: no
    /// reader sees an end between two writers.
    ///
    /// # Errors
    /// When they cannot be made.
    pub fn fifos(&self, shop: &Workshop) -> anyhow::Result<Vec<File>> {
        let open = |gt| {
            let path = shop.path(&format!("stalls.{gt}"));
            checked(Command::new("mkfifo").arg(&path))?;
            let file = File::options().read(true).write(true).open(&path);
            file.with_context(|| path.display().to_string())
        };
        (0..self.gts).map(open).collect()
    }

    /// aiprof's options that read the FIFOs.
    #[must_use]
    pub fn replay(&self, shop: &Workshop) -> Vec<String> {
        let layout = self.stream.layout();
        let of_gt = |gt| {
            let path = shop.path(&format!("stalls.{gt}"));
            let spec = format!("{layout}:{},gt={gt}", path.display());
            ["--replay-device".to_owned(), spec]
        };
        (0..self.gts).flat_map(of_gt).collect()
    }

    /// The arguments of a run of `ze_paths`: mode and modules.
    ///
    /// # Errors
    /// When a module cannot be written.
    pub fn arguments(&self, shop: &Workshop, mode: &[&str]) -> anyhow::Result<Vec<String>> {
        let mut all: Vec<String> = mode.iter().map(|&arg| arg.to_owned()).collect();
        let file = self.file.as_ref();
        all.extend(file.map(|file| format!("module={}", file.display())));
        for (module, key) in self.modules.iter().zip(["module", "module2"]) {
            let path = module.write(&shop.path(&format!("{key}.zebin")))?;
            all.push(format!("{key}={}", path.display()));
        }
        Ok(all)
    }

    /// Runs `ze_paths` under aiprof.
    ///
    /// # Errors
    /// When something fails.
    pub fn run(&self, mode: &[&str]) -> anyhow::Result<Outcome> {
        let shop = Workshop::new()?;
        let mut program = vec![build_paths()?.display().to_string()];
        program.extend(self.arguments(&shop, mode)?);
        self.run_program(shop, &program)
    }

    /// Runs a program that prints accounts of `ze_paths`.
    ///
    /// # Errors
    /// When something fails.
    pub fn run_program(&self, shop: Workshop, program: &[String]) -> anyhow::Result<Outcome> {
        let (stdout, stderr) = self.record(&shop, program)?;
        Outcome::new(shop, self, Account::read(&stdout)?, stderr)
    }

    /// Runs any program under aiprof, which writes `run.aiprof` into the workshop. Returns what
    /// both printed, on stdout and stderr.
    ///
    /// # Errors
    /// When something fails.
    pub fn record(&self, shop: &Workshop, program: &[String]) -> anyhow::Result<(String, String)> {
        let _fifos = self.fifos(shop)?;
        let (name, wait) = until_known()?;
        let mut command = self.machine(shop)?.command(&binary()?);
        command
            .env(UNTIL_KNOWN, wait)
            .args(["--only", &format!("--control={name}")])
            .args(self.replay(shop))
            .args(&self.options);
        command.arg("-o").arg(shop.path("run.aiprof")).arg("--");
        let output = command.args(program).stdin(Stdio::null()).output()?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{}: {stderr}", output.status);
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok((stdout, stderr))
    }
}

impl Recording {
    /// Like [`Self::run`] with a program that has made its kernels before aiprof
    /// starts, and launches them after.
    ///
    /// # Errors
    /// When something fails.
    pub fn run_late(&self, mode: &[&str]) -> anyhow::Result<Outcome> {
        let shop = Workshop::new()?;
        let _fifos = self.fifos(&shop)?;
        let mut command = self.machine(&shop)?.command(&build_paths()?);
        command.args(self.arguments(&shop, mode)?).arg("wait=1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = Child::start(&mut command)?;
        ensure!(program.read_line()?.trim() == "ready", "not ready");
        let (pid, replay) = (program.pid().to_string(), self.replay(&shop));
        let capture = shop.path("run.aiprof").display().to_string();
        let mut options = vec!["-p", &pid, "-o", &capture];
        options.extend(replay.iter().chain(&self.options).map(String::as_str));
        let states = States::new(&shop);
        let mut aiprof = Child::start(&mut states.command(&options, &[])?)?;
        states.wait_known(program.pid())?;
        program.write_line("go")?;
        let accounts = Account::read(&program.output()?)?;
        let stderr = aiprof.stderr()?;
        let ended = aiprof.wait(LONG)?;
        ensure!(ended.success(), "{ended}: {stderr}");
        Outcome::new(shop, self, accounts, stderr)
    }
}

/// A run that is over, and what the judge needs of it.
#[derive(Debug)]
pub struct Outcome {
    /// Its files.
    pub shop: Workshop,
    /// What the driver wrote down.
    pub truth: Truth,
    /// What must come out.
    pub expected: Expected,
    /// The content of the folded stacks.
    pub folded: Folded,
    /// The same, in cells.
    pub found: Found,
    /// The content of the pprof file, with its bounds.
    pub bounded: Found,
    /// aiprof's summary.
    pub stderr: String,
}

impl Outcome {
    /// Reports `run.aiprof` of the workshop and compares it with its truth file.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn new(
        shop: Workshop,
        recording: &Recording,
        accounts: Vec<Account>,
        stderr: String,
    ) -> anyhow::Result<Self> {
        let truth = Truth::read(&shop.path("truth.json"))?;
        let kernels: BTreeSet<String> = truth
            .execs
            .iter()
            .filter(|e| e.kind == Kind::Kernel)
            .filter_map(|e| e.kernel.clone())
            .collect();
        let folded = report_folded(&shop)?;
        let pprof = pprof::read(&report(&shop, "out.pb.gz", &[])?)?;
        Ok(Self {
            expected: Expected::new(&truth, &accounts, recording.stream.slack_ns())?,
            found: Found::folded(&folded, &kernels),
            bounded: Found::pprof(&pprof, &kernels),
            shop,
            truth,
            folded,
            stderr,
        })
    }

    /// The verdict on the folded stacks.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        Verdict::new(&self.expected, &self.found)
    }

    /// Checks what holds whatever the schedule. Every sample that was written is in the output, in
    /// stacks that can be, and the truth is within the stated bounds. Both outputs have the same
    /// content.
    ///
    /// # Errors
    /// Describes what does not hold.
    pub fn sound(&self) -> anyhow::Result<Verdict> {
        let verdict = self.verdict();
        ensure!(verdict.written > 0, "no samples: {}", self.stderr);
        let of_pprof = Verdict::new(&self.expected, &self.bounded);
        let strange: Vec<_> = self.found.strange.iter().take(5).collect();
        ensure!(verdict.strange == 0, "{verdict}\n{strange:#?}");
        for (what, verdict) in [("folded", &verdict), ("pprof", &of_pprof)] {
            let rest = verdict.unaccounted(0);
            ensure!(
                rest == 0,
                "{what}: {rest} unaccounted; {verdict}\n{}",
                self.stderr
            );
        }
        let unbound: Vec<_> = of_pprof.unbound.iter().take(5).collect();
        let stderr = &self.stderr;
        ensure!(unbound.is_empty(), "{of_pprof}\n{unbound:#?}\n{stderr}");
        println!("{verdict}");
        Ok(verdict)
    }

    /// [`Self::sound`], and at least 90 % of the samples, or a thousand, can have only one launch
    /// stack. 99.9 % of those are charged to it. A thousand are enough because a busy machine makes
    /// some windows too long.
    ///
    /// # Errors
    /// Describes what does not hold.
    pub fn certain(&self) -> anyhow::Result<Verdict> {
        let verdict = self.sound()?;
        let (sole, written) = (verdict.sole as f64, verdict.written as f64);
        let least = (0.9 * written).min(1000.0);
        ensure!(sole >= least, "not one stack alone: {verdict}");
        ensure!(
            verdict.right() >= 0.999,
            "{verdict}\n{}\n{}",
            self.folded
                .filter(|line| line.frames.contains(&"-".to_owned()))
                .excerpt(12),
            self.stderr
        );
        Ok(verdict)
    }

    /// [`Self::sound`], and each call path's share is right within 2 points.
    ///
    /// # Errors
    /// Describes what does not hold.
    pub fn shared(&self) -> anyhow::Result<Verdict> {
        let verdict = self.sound()?;
        let methods = &self.bounded.methods;
        let far = verdict.paths.iter().filter(|path| path.points() > 2.0);
        let far: Vec<_> = far.collect();
        ensure!(far.is_empty(), "{verdict}\n{far:#?}\n{methods:#?}");
        Ok(verdict)
    }
}

impl Outcome {
    /// [`Self::sound`], nothing unattributed, and each call path's share is right within
    /// 2 points, or the bounds of the median path are at most 10 points apart.
    ///
    /// # Errors
    /// Describes what does not hold.
    pub fn near(&self) -> anyhow::Result<Verdict> {
        let verdict = self.sound()?;
        let bounded = Verdict::new(&self.expected, &self.bounded);
        let (worst, width) = (verdict.worst(), bounded.median_width());
        println!("worst path {worst:.2} points, bounds of the median path {width:.2} points");
        ensure!(verdict.unattributed == 0, "{verdict}");
        ensure!(
            worst <= 2.0 || width <= 10.0,
            "{verdict}\n{:#?}",
            bounded.paths
        );
        Ok(verdict)
    }

    /// The time on devices of the profile, nanoseconds.
    ///
    /// # Errors
    /// When it cannot be reported.
    pub fn device_ns(&self) -> anyhow::Result<u64> {
        let file = report(&self.shop, "time.folded", &[])?;
        let folded = Folded::parse(&std::fs::read_to_string(&file)?)?;
        let lines = folded.lines.iter().filter(|line| is_device(&line.frames));
        let us: u64 = lines.map(|line| line.value).sum();
        Ok(us * 1000)
    }
}

/// `run.aiprof` of a workshop as folded stacks, in counts.
///
/// # Errors
/// When it cannot be reported or read.
pub fn report_folded(shop: &Workshop) -> anyhow::Result<Folded> {
    let file = report(shop, "out.folded", &["--weight", "samples"])?;
    Folded::parse(&std::fs::read_to_string(&file)?)
}

/// `aiprof report run.aiprof -o FILE OPTIONS` in a workshop.
fn report(shop: &Workshop, file: &str, options: &[&str]) -> anyhow::Result<PathBuf> {
    let output = shop.path(file);
    let mut command = Command::new(binary()?);
    command.arg("report").arg(shop.path("run.aiprof"));
    checked(command.arg("-o").arg(&output).args(options))?;
    Ok(output)
}
