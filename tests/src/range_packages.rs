//! NVTX and ITT as their makers give them: packages of PyPI.

use std::path::PathBuf;

use crate::packages;

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
        let (python, include) = packages::python("AIPROF_TESTS_RANGES", "ranges", &PACKAGES, FIND)?;
        Ok(Self {
            python,
            include: include.into(),
        })
    }
}
