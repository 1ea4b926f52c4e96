//! The virtual Level Zero driver: built once from `virtual/level-zero/`, loaded by
//! the system's loader through `ZE_ENABLE_ALT_DRIVERS`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::Context as _;

use crate::need::Need;
use crate::workload::{cached, checked};

/// What every test with the virtual driver needs.
pub const NEEDS: [Need; 3] = [
    Need::Tool("c++"),
    Need::Path("/usr/include/level_zero/ze_api.h"),
    Need::Path(LOADER),
];

/// The system's Level Zero loader (Debian: libze1).
pub const LOADER: &str = "/usr/lib/x86_64-linux-gnu/libze_loader.so.1";

/// The name of Intel's driver, so that whatever looks for that finds ours.
const FILE_NAME: &str = "libze_intel_gpu.so.1";

const COMPILE: [&str; 7] = [
    "-std=c++17",
    "-O2",
    "-g1",
    "-fomit-frame-pointer",
    "-fPIC",
    "-Wall",
    "-Wextra",
];

/// Own functions are called directly: the loader in the same process exports the
/// same names. The file stays mapped to the end, as its threads do.
const LINK: [&str; 5] = [
    "-shared",
    "-pthread",
    "-Wl,-Bsymbolic",
    "-Wl,-z,nodelete",
    "-Wl,--build-id",
];

/// Which functions the driver's file exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exports {
    /// All of them, as Intel's driver did until mid 2026.
    All,
    /// Only the tables; the file is stripped too.
    TablesOnly,
}

/// A built driver.
#[derive(Clone, Debug)]
pub struct Driver {
    path: PathBuf,
}

impl Driver {
    /// Builds the driver, or takes the one that was built from the same sources
    /// before.
    ///
    /// # Errors
    /// When the compiler fails.
    pub fn build(exports: Exports) -> anyhow::Result<Self> {
        let sources = sources()?;
        let name = format!("level-zero {exports:?} {COMPILE:?} {LINK:?}");
        let path = cached(&name, &sources, FILE_NAME, |dir| {
            compile(&sources, exports, dir)
        })?;
        Ok(Self { path })
    }

    /// The driver's file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn sources() -> anyhow::Result<Vec<PathBuf>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("virtual/level-zero");
    let mut all = Vec::new();
    for entry in std::fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        let extension = path.extension().and_then(|e| e.to_str());
        if matches!(extension, Some("cpp" | "hpp" | "map")) {
            all.push(path);
        }
    }
    all.sort();
    Ok(all)
}

/// Compiles two files at a time and links them.
fn compile(sources: &[PathBuf], exports: Exports, dir: &Path) -> anyhow::Result<()> {
    let is_unit = |path: &&PathBuf| path.extension().is_some_and(|e| e == "cpp");
    let units: Vec<_> = sources.iter().filter(is_unit).collect();
    let object = |unit: &Path| {
        let stem = unit.file_stem().unwrap_or_default();
        dir.join(stem).with_extension("o")
    };
    let queue = Mutex::new(units.clone());
    let work = || -> anyhow::Result<()> {
        loop {
            let next = queue.lock().map_or(None, |mut queue| queue.pop());
            let Some(unit) = next else { return Ok(()) };
            let mut command = Command::new("c++");
            command.args(COMPILE).arg("-c").arg(unit);
            checked(command.arg("-o").arg(object(unit)))?;
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(work);
        work()?;
        other
            .join()
            .map_err(|_| anyhow::anyhow!("a compiling thread panicked"))?
    })?;
    let mut command = Command::new("c++");
    command.args(LINK).arg("-o").arg(dir.join(FILE_NAME));
    command.args(units.iter().map(|unit| object(unit)));
    if exports == Exports::TablesOnly {
        let map = Path::new(env!("CARGO_MANIFEST_DIR")).join("virtual/level-zero/tables.map");
        command.arg("-s");
        command.arg(format!("-Wl,--version-script={}", map.display()));
    }
    checked(&mut command).map(drop)
}

/// The device clock, as `virtual/level-zero/clock.hpp` computes it.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Frequency that the driver states, Hz.
    pub hz: u64,
    /// How much faster it really runs, parts per billion.
    pub ppb: i64,
    /// Ticks of device 0 at CLOCK_MONOTONIC zero.
    pub offset: u64,
    /// Valid bits.
    pub bits: u32,
}

/// Between the clocks of two neighbouring devices, ticks.
const DEVICE_STEP: u64 = 1_000_000_007;

impl Default for Clock {
    fn default() -> Self {
        Self {
            hz: 19_200_000,
            ppb: 0,
            offset: 0,
            bits: 32,
        }
    }
}

impl Clock {
    /// A clock that wraps for the first time this long after now.
    #[must_use]
    pub fn wrapping_in(self, time: Duration) -> Self {
        let at = now_ns() + time.as_nanos() as u64;
        let elapsed = Self { offset: 0, ..self }.ticks(0, at);
        Self {
            offset: 0u64.wrapping_sub(elapsed) & mask(self.bits),
            ..self
        }
    }

    /// What the clock of a device shows at a time of CLOCK_MONOTONIC, ns.
    #[must_use]
    pub fn ticks(&self, device: u32, ns: u64) -> u64 {
        let speed = 1_000_000_000i64.saturating_add(self.ppb).unsigned_abs();
        let microhertz = u128::from(self.hz) * u128::from(speed) / 1000;
        let elapsed = (u128::from(ns) * microhertz / 1_000_000_000_000_000) as u64;
        let step = u64::from(device).wrapping_mul(DEVICE_STEP);
        self.offset.wrapping_add(step).wrapping_add(elapsed) & mask(self.bits)
    }
}

fn mask(bits: u32) -> u64 {
    1u64.checked_shl(bits).map_or(u64::MAX, |bit| bit - 1)
}

/// CLOCK_MONOTONIC now, ns.
#[must_use]
pub fn now_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a timespec of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// The machine that the driver pretends to be, and what it writes down.
#[derive(Clone, Debug)]
pub struct Machine {
    driver: Driver,
    /// The device clock.
    pub clock: Clock,
    variables: Vec<(String, String)>,
}

impl Machine {
    /// One device with the usual clock and no truth file.
    #[must_use]
    pub fn new(driver: &Driver) -> Self {
        Self {
            driver: driver.clone(),
            clock: Clock::default(),
            variables: Vec::new(),
        }
    }

    /// With another clock.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// With a truth file of all calls and executions.
    #[must_use]
    pub fn truth(self, path: &Path) -> Self {
        let path = path.display().to_string();
        self.set("VZE_TRUTH", &path)
    }

    /// With a truth file of counts only.
    #[must_use]
    pub fn counts(self, path: &Path) -> Self {
        self.set("VZE_TRUTH", &format!("count:{}", path.display()))
    }

    /// With another variable of `virtual/level-zero/README.md`.
    #[must_use]
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The environment of programs on this machine.
    #[must_use]
    pub fn environment(&self) -> Vec<(String, String)> {
        let clock = [
            ("VZE_CLOCK_HZ", self.clock.hz.to_string()),
            ("VZE_CLOCK_PPB", self.clock.ppb.to_string()),
            ("VZE_CLOCK_OFFSET", self.clock.offset.to_string()),
            ("VZE_CLOCK_BITS", self.clock.bits.to_string()),
        ];
        let path = self.driver.path.display().to_string();
        let mut all = vec![("ZE_ENABLE_ALT_DRIVERS".to_owned(), path)];
        all.extend(clock.map(|(name, value)| (name.to_owned(), value)));
        all.extend(self.variables.iter().cloned());
        all
    }

    /// A program on this machine.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.envs(self.environment());
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_drifts_and_wraps() {
        let clock = Clock {
            hz: 1_000_000_000,
            ppb: 50_000,
            offset: 100,
            bits: 32,
        };
        assert_eq!(clock.ticks(0, 0), 100);
        assert_eq!(clock.ticks(0, 1_000_000_000), 1_000_050_100);
        // 2^32 ns and a bit: the drift pushes it over the edge.
        assert_eq!(clock.ticks(0, 1 << 32), 214_748 + 100);
        assert_eq!(clock.ticks(1, 0), 100 + DEVICE_STEP);
        let soon = Clock::default().wrapping_in(Duration::from_secs(1));
        let now = now_ns();
        assert!(soon.ticks(0, now) > 1 << 31);
        assert!(soon.ticks(0, now + 1_000_000_000) < 1 << 31);
    }
}
