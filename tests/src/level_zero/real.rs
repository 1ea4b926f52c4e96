//! Intel's real Level Zero driver, which runs without a device in its capture
//! mode: everything but the execution is real. Kernels yield nothing, events have
//! no timestamps.
//!
//! The driver is Debian's `intel-opencl-icd` 22.43; the compiler is its `ocloc`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::need::Need;
use crate::workload::{Workshop, checked, source_path};

/// What tests with the real driver need; packages libze1, libze-dev,
/// intel-opencl-icd, libigc1 and libigdfcl1.
pub const NEEDS: [Need; 5] = [
    Need::Tool("c++"),
    Need::Tool("ocloc"),
    Need::Path("/usr/include/level_zero/ze_api.h"),
    Need::Path(super::driver::LOADER),
    Need::Path(DRIVER),
];

/// The driver's file.
pub const DRIVER: &str = "/usr/lib/x86_64-linux-gnu/libze_intel_gpu.so.1";

/// A device that the driver believes to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// Skylake's integrated one.
    Skl,
    /// Ponte Vecchio.
    Pvc,
}

impl Product {
    /// Its name for the driver and for ocloc.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Skl => "skl",
            Self::Pvc => "pvc",
        }
    }
}

/// How the driver records what it would have sent to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recording {
    /// All of it is produced and thrown away: about 0.6 ms a launch here.
    Full,
    /// Switched off between submissions: about 10 us a launch here. For programs
    /// with one thread: with several the driver itself crashed, without aiprof,
    /// about once in 500 runs.
    Off,
}

/// The environment of the capture mode. Without the file name each launch would
/// leave a megabyte in the current directory.
#[must_use]
pub fn environment(product: Product, recording: Recording) -> Vec<(String, String)> {
    let mut all = vec![
        ("NEOReadDebugKeys", "1"),
        ("SetCommandStreamReceiver", "1"),
        ("AUBDumpCaptureFileName", "/dev/null"),
        ("ProductFamilyOverride", product.name()),
    ];
    if product == Product::Pvc {
        all.push(("HardwareInfoOverride", "8x8x8"));
    }
    if recording == Recording::Off {
        all.push(("AUBDumpSubCaptureMode", "2"));
    }
    all.into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// A program on the real driver, in a directory of its own.
#[must_use]
pub fn command(program: &Path, product: Product, recording: Recording, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .envs(environment(product, recording))
        .env_remove("ZE_ENABLE_ALT_DRIVERS")
        .current_dir(dir);
    command
}

/// Compiles `workloads/kernels.cl` for a device: a zebin file.
///
/// # Errors
/// When the compiler fails.
pub fn compile(shop: &Workshop, product: Product) -> anyhow::Result<PathBuf> {
    compile_file(shop, "kernels.cl", product)
}

/// Compiles an OpenCL file of `workloads/` for a device: a zebin file with debug
/// information.
///
/// # Errors
/// When the compiler fails.
pub fn compile_file(shop: &Workshop, source: &str, product: Product) -> anyhow::Result<PathBuf> {
    let output = format!("{source}.{}", product.name());
    let mut command = Command::new("ocloc");
    command.args(["compile", "--format", "zebin", "-output_no_suffix"]);
    command.args(["-device", product.name(), "-options", "-g"]);
    command.arg("-file").arg(source_path(source));
    command.arg("-out_dir").arg(shop.path(""));
    command.args(["-output", &output]);
    checked(&mut command)?;
    let path = shop.path(&output);
    anyhow::ensure!(path.exists(), "ocloc wrote no {}", path.display());
    Ok(path)
}

/// Compiles an OpenCL file of `workloads/` to SPIR-V, as ocloc does on the way to
/// machine code.
///
/// # Errors
/// When the compiler fails.
pub fn spirv(shop: &Workshop, source: &str) -> anyhow::Result<PathBuf> {
    let zebin = compile_file(shop, source, Product::Skl)?;
    let path = zebin.with_extension("skl.spv");
    path.exists()
        .then_some(path)
        .with_context(|| format!("ocloc wrote no SPIR-V beside {}", zebin.display()))
}
