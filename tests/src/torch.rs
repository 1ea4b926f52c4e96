//! An interpreter with PyTorch.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::workload::source_path;

/// How long a download may take.
const PATIENCE: Duration = Duration::from_secs(240);
/// What PyTorch needs to run on the CPU; the wheel names 2 GB more.
const PACKAGES: [&str; 10] = [
    "typing_extensions",
    "sympy",
    "networkx",
    "jinja2",
    "fsspec",
    "filelock",
    "mpmath",
    "MarkupSafe",
    "numpy",
    "setuptools",
];

/// A Python that has PyTorch, and where its libraries are found.
#[derive(Clone, Debug)]
pub struct TorchPython {
    /// The interpreter.
    pub program: PathBuf,
    /// Stubs of libraries that this machine lacks.
    stubs: Option<PathBuf>,
}

impl TorchPython {
    /// The one of `AIPROF_TESTS_TORCH`, python3's own, or one with PyTorch's wheel of PyPI,
    /// which is kept in the build folder.
    ///
    /// # Errors
    /// Why there is none.
    pub fn find() -> Result<Self, String> {
        let named = std::env::var_os("AIPROF_TESTS_TORCH").map(PathBuf::from);
        for program in named.into_iter().chain(["python3".into()]) {
            let found = Self {
                program,
                stubs: None,
            };
            if found.works() {
                return Ok(found);
            }
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/torch");
        let found = Self {
            program: root.join("bin/python"),
            stubs: Some(root.join("stubs")),
        };
        if !found.works() {
            install(&root)?;
        }
        match found.works() {
            true => Ok(found),
            false => Err("PyTorch's wheel does not run here".to_owned()),
        }
    }

    fn works(&self) -> bool {
        let mut command = Command::new(&self.program);
        self.prepare(&mut command);
        command.args(["-c", "import torch; torch.ones(2, 2) @ torch.ones(2, 2)"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    /// Lets a command, or what it starts, find the libraries.
    pub fn prepare<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        match &self.stubs {
            Some(stubs) => command.env("LD_LIBRARY_PATH", stubs),
            None => command,
        }
    }
}

/// Installs the wheel, and stubs of the CUDA libraries that it would not load without.
fn install(root: &Path) -> Result<(), String> {
    let begun = Instant::now();
    let python = root.join("bin/python");
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv"]).arg(root);
    run(&mut venv, begun)?;
    let pip = |packages: &[&str]| {
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "-q"]).args(packages);
        run(&mut pip, begun)
    };
    pip(&["--no-deps", "torch"])?;
    pip(&PACKAGES)?;
    let find = "import importlib.util as u; print(u.find_spec('torch').origin)";
    let output = Command::new(&python).args(["-c", find]).output();
    let output = output.map_err(|error| error.to_string())?;
    let init = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let libraries = init.with_file_name("lib");
    let mut stubs = Command::new(&python);
    stubs
        .arg(source_path("torch_stubs.py"))
        .arg(libraries)
        .arg(root.join("stubs"));
    run(&mut stubs, begun)
}

/// Runs a step, until the time is over.
fn run(step: &mut Command, begun: Instant) -> Result<(), String> {
    let left = PATIENCE.saturating_sub(begun.elapsed()).as_secs().max(1);
    let mut limited = Command::new("timeout");
    limited.arg(left.to_string()).arg(step.get_program());
    limited.args(step.get_args());
    let output = limited.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().last().unwrap_or("no answer in time");
    Err(format!("PyTorch's wheel cannot be had: {last}"))
}
