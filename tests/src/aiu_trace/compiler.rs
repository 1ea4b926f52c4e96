//! What the compiler's log contains about a scenario's kernels.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::rng::Rng;
use super::scenario::Scenario;

/// A kernel as the compiler sees it.
#[derive(Clone, Debug)]
pub struct Ideal {
    /// Name without ` Cmpt Exec`.
    pub kernel: &'static str,
    /// Category without `opCat`.
    pub category: &'static str,
    /// Cycles of the core it would take at best; 0 for kernels without the
    /// matrix unit.
    pub cycles: u64,
}

const CATEGORIES: [(&str, bool); 6] = [
    ("Conv_fp16", true),
    ("Broadcast", false),
    ("Scalar", false),
    ("Bmm_fp16", true),
    ("Pooling", false),
    ("ConvOs1_fp16", true),
];

/// The kernels of a scenario for a core of this frequency in MHz. No ideal time is
/// longer than the kernel's.
#[must_use]
pub fn ideals(scenario: &Scenario, core_mhz: f64) -> Vec<Ideal> {
    let mut rng = Rng::new(scenario.seed ^ 0x6964_6561);
    let kernels = scenario.kernel_lengths().into_iter();
    kernels
        .zip(CATEGORIES.iter().cycle())
        .map(|((kernel, length_us), (category, matrix))| {
            let share = if *matrix { rng.between(0.2, 0.9) } else { 0.0 };
            let cycles = (length_us * core_mhz * share).round() as u64;
            Ideal {
                kernel,
                category,
                cycles,
            }
        })
        .collect()
}

/// A compiler log with these kernels in one table.
#[must_use]
pub fn log(ideals: &[Ideal]) -> String {
    let mut text = String::from(
        "[DeepRT] ===== Perf BEGIN =====\n====== Perf Summary ======\n\
         ~~~~ Ideal/Total Cycles ~~~~\n",
    );
    let rule = "-".repeat(91);
    let _ = writeln!(text, "{rule}\n{:<80}Ideal Cy.\n{rule}", "Name");
    for ideal in ideals {
        let name = format!("{}-opCat{}", ideal.kernel, ideal.category);
        let _ = writeln!(text, "{name:<80}{}", ideal.cycles);
    }
    let total: u64 = ideals.iter().map(|ideal| ideal.cycles).sum();
    let _ = writeln!(text, "{rule}\nTotal\t\t\t\t\t\t\t\t\t\t{total}\n{rule}");
    text.push_str("====== Perf Summary End ======\n[DeepRT] ===== Perf END =====\n");
    text
}

/// The same as the newer stack's cache folder; returns what is given as `-c`.
///
/// # Errors
/// When a file cannot be written.
pub fn cache(ideals: &[Ideal], dir: &Path) -> anyhow::Result<PathBuf> {
    let top = dir.join("cache");
    for ideal in ideals {
        let perf = top.join("inductor-spyre").join(ideal.kernel).join("perf");
        std::fs::create_dir_all(&perf)?;
        let text = serde_json::json!([
            {"ideal_cycles": ideal.cycles, "op_category": ideal.category},
        ]);
        std::fs::write(perf.join("ideal_cycles.json"), text.to_string())?;
    }
    Ok(top)
}
