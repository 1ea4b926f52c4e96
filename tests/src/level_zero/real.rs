//! Intel's real Level Zero driver, which runs without a device in its capture
//! mode: everything but the execution is real. Kernels yield nothing, events have
//! no timestamps.
//!
//! The driver is Debian's `intel-opencl-icd` 22.43; the compiler is its `ocloc`.

use std::collections::BTreeMap;
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

/// A module and what the compiler reports about its code.
#[derive(Debug)]
pub struct Compiled {
    /// The zebin file.
    pub zebin: PathBuf,
    /// The instructions of each kernel.
    pub listings: BTreeMap<String, Vec<Instruction>>,
}

/// An instruction in the compiler's listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Bytes from the kernel's first instruction.
    pub offset: u64,
    /// The operation with its sub-function.
    pub mnemonic: String,
    /// Line of the source that the listing gives, which stands for all instructions up to the next.
    pub line: Option<u64>,
}

/// [`compile_file`], with debug information of several kernels (`IGC_UseMTInLLD`: this
/// compiler aborts then, after it has written a complete file), and with listings.
///
/// # Errors
/// When the compiler writes no file, or no listing.
pub fn compile_listed(shop: &Workshop, source: &str, product: Product) -> anyhow::Result<Compiled> {
    let dump = shop.path("dump");
    let output = format!("{source}.listed");
    let mut command = Command::new("ocloc");
    command.args(["compile", "--format", "zebin", "-output_no_suffix"]);
    command.args(["-device", product.name(), "-options", "-g"]);
    command.arg("-file").arg(source_path(source));
    command.arg("-out_dir").arg(shop.path(""));
    command.args(["-output", &output]);
    command.env("IGC_ShaderDumpEnable", "1");
    command.env("IGC_DumpToCustomDir", &dump);
    let done = command.env("IGC_UseMTInLLD", "1").output()?;
    let zebin = shop.path(&output);
    let said = String::from_utf8_lossy(&done.stdout);
    anyhow::ensure!(zebin.exists(), "ocloc wrote no file: {said}");
    let mut listings = BTreeMap::new();
    for entry in std::fs::read_dir(&dump)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "asm") {
            let text = std::fs::read_to_string(&path)?;
            let name = text.lines().find_map(|l| l.strip_prefix("//.kernel "));
            let name = name.context("a listing without a kernel")?.trim();
            listings.insert(name.to_owned(), read_listing(&text));
        }
    }
    anyhow::ensure!(!listings.is_empty(), "no listings in {}", dump.display());
    Ok(Compiled { zebin, listings })
}

/// Instructions are those lines that are no comments, labels or directives.
fn read_listing(text: &str) -> Vec<Instruction> {
    let (mut offset, mut line) = (0, None);
    let mut all = Vec::new();
    for text in text.lines().map(str::trim) {
        if let Some(rest) = text.strip_prefix("// Line ") {
            line = rest.split(':').next().and_then(|n| n.parse().ok());
        }
        let is_code = !text.is_empty() && !text.starts_with("//") && !text.ends_with(':');
        let code = match text.strip_prefix('(').and_then(|t| t.split_once(')')) {
            Some((_, rest)) => rest,
            None => text,
        };
        let mnemonic = code.split_whitespace().next();
        let Some(mnemonic) = mnemonic.filter(|m| is_code && !m.starts_with('.')) else {
            continue;
        };
        all.push(Instruction {
            offset,
            mnemonic: mnemonic.to_owned(),
            line,
        });
        let code = code.split("//").next().unwrap_or_default();
        offset += if code.contains("Compacted") { 8 } else { 16 };
    }
    all
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
