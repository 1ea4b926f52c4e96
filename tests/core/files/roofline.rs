//! Rooflines, against what unitrace's own script prints of its example (`data/roofline`).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use aiprof_tests::aiprof::binary;
use aiprof_tests::workload::{Workshop, checked};

const BYTES: &str = "gemm_fp16_bytes.1799860";
const FLOPS: &str = "gemm_fp16_flops.1799853";

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("data/roofline")
        .join(name)
}

fn roofline(more: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(binary()?);
    command.arg("roofline").args(more).arg("--device");
    checked(command.arg(data("PVC_1tile.csv")))
}

/// A column of ours, a column of the script's, and ours by theirs.
const COLUMNS: [(&str, usize, f64); 12] = [
    ("time", 1, 1e9),
    ("share", 2, 1.0),
    ("fp16", 4, 1.0),
    ("fp32", 5, 1.0),
    ("fp64", 6, 1.0),
    ("bf16_xmx", 7, 1.0),
    ("fp16_xmx", 9, 1.0),
    ("xmx_utilization", 10, 1.0),
    // The script has these of FP16_XMX alone: the type of both kernels that has any.
    ("memory_intensity", 11, 1.0),
    ("l3_intensity", 12, 1.0),
    ("memory", 13, 1.0),
    ("l3", 14, 1.0),
];

#[test]
fn numbers_are_those_of_the_script() -> anyhow::Result<()> {
    let (bytes, flops) = (data(BYTES), data(FLOPS));
    let (bytes, flops) = (bytes.to_string_lossy(), flops.to_string_lossy());
    let text = std::fs::read_to_string(data("expected.csv"))?;
    let expected: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| line.contains("SIMD"))
        .map(|line| line.split(',').map(str::trim).collect())
        .collect();
    ensure!(expected.len() == 2, "{text}");
    for inputs in [
        &[&*bytes, &*flops][..],
        &[&flops, &bytes],
        &["--compute", &flops, "--memory", &bytes],
    ] {
        let out = roofline(&[inputs, &["--format", "json"]].concat())?;
        let tables: Value = serde_json::from_str(&out)?;
        let rows = tables[0]["rows"].as_array().context("no rows")?;
        ensure!(rows.len() == expected.len(), "{out}");
        for (row, theirs) in rows.iter().zip(&expected) {
            ensure!(row["bound_by"] == theirs[3], "{row} {theirs:?}");
            for (name, at, factor) in COLUMNS {
                let ours = row[name].as_f64().with_context(|| name.to_owned())?;
                let due: f64 = theirs[at].trim_end_matches([' ', '%']).parse()?;
                let off = (ours - due * factor).abs();
                ensure!(off <= due.abs() * factor * 1e-9, "{name}: {ours} {due}");
            }
        }
        ensure!(tables[0]["title"] == "Roofline of PVC_1tile", "{out}");
    }
    Ok(())
}

/// The page has both kernels' points and nothing from elsewhere.
#[test]
fn a_page_needs_nothing_else() -> anyhow::Result<()> {
    let shop = Workshop::new()?;
    let page = shop.path("r.html");
    let (bytes, flops) = (data(BYTES), data(FLOPS));
    let inputs = [bytes, flops].map(|path| path.to_string_lossy().into_owned());
    roofline(&[&inputs[0], &inputs[1], "-o", &page.to_string_lossy()])?;
    let page = std::fs::read_to_string(page)?;
    ensure!(
        page.contains("hgemm_nocopy_nn_64x40_4x8") && page.contains("1060.31"),
        "{page}"
    );
    // A kernel without operations has no place in the picture.
    ensure!(page.matches("<circle").count() == 2, "{page}");
    let elsewhere = ["<script", "http:", "https:", "url("];
    ensure!(!elsewhere.iter().any(|word| page.contains(word)), "{page}");
    Ok(())
}

#[test]
fn what_is_missing_is_said() -> anyhow::Result<()> {
    let run = |inputs: &[&Path]| -> anyhow::Result<(Option<i32>, String)> {
        let mut command = Command::new(binary()?);
        command.arg("roofline").args(inputs).arg("--device");
        let done = command.arg(data("PVC_1tile.csv")).output()?;
        Ok((
            done.status.code(),
            String::from_utf8_lossy(&done.stderr).into_owned(),
        ))
    };
    let (code, text) = run(&[&data(BYTES)])?;
    ensure!(
        code == Some(1) && text.contains("VectorEngine138"),
        "{text}"
    );
    let (code, text) = run(&[&data("PVC_1tile.csv")])?;
    ensure!(
        code == Some(1) && text.contains("no kernel metrics"),
        "{text}"
    );
    let (code, text) = run(&[])?;
    ensure!(code == Some(2) && text.contains("name the files"), "{text}");
    Ok(())
}
