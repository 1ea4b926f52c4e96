//! NVTX and ITT as their makers give them: packages of PyPI.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workload::checked;

/// Python's bindings, each with the maker's own code inside, and NVTX's headers.
const PACKAGES: [&str; 3] = ["nvtx", "ittapi", "nvidia-nvtx"];
/// Prints where NVTX's headers are.
const FIND: &str = "
import glob, nvtx, ittapi, sysconfig
found = glob.glob(sysconfig.get_path('purelib') + '/nvidia/**/nvtx3', recursive=True)
print(found[0].rsplit('/', 1)[0])
";

/// An interpreter with the packages, and the headers.
#[derive(Clone, Debug)]
pub struct RangePackages {
    /// The interpreter.
    pub python: PathBuf,
    /// Where `nvtx3/nvToolsExt.h` is.
    pub include: PathBuf,
}

impl RangePackages {
    /// Those of `AIPROF_TESTS_RANGES`, or of PyPI, which are kept in the build folder.
    ///
    /// # Errors
    /// Why there are none.
    pub fn find() -> Result<Self, String> {
        if let Some(python) = std::env::var_os("AIPROF_TESTS_RANGES") {
            return Self::of(python.into());
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/ranges");
        let python = root.join("bin/python");
        Self::of(python.clone()).or_else(|_| {
            let mut venv = Command::new("python3");
            venv.args(["-m", "venv"]).arg(&root);
            let mut pip = Command::new("timeout");
            pip.arg("120").arg(&python);
            pip.args(["-m", "pip", "install", "-q"]).args(PACKAGES);
            for step in [&mut venv, &mut pip] {
                checked(step).map_err(|error| format!("{error:#}"))?;
            }
            Self::of(python)
        })
    }

    fn of(python: PathBuf) -> Result<Self, String> {
        let mut find = Command::new(&python);
        let found = checked(find.args(["-c", FIND]));
        let found = found.map_err(|error| format!("{error:#}"))?;
        Ok(Self {
            include: found.trim().into(),
            python,
        })
    }
}
