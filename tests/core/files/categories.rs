//! Categories of kernels, against what unitrace's own scripts make of the same rules and
//! numbers: `data/categories/make.py` ran them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use serde_json::Value;

use aiprof_tests::aiprof::binary;
use aiprof_tests::workload::{Workshop, checked};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("data/categories")
        .join(name)
}

fn json(path: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Ok(serde_json::from_str(&text)?)
}

/// A table about both ranks.
fn table(name: &str, rules: &Path, more: &[&str]) -> anyhow::Result<Value> {
    let mut command = Command::new(binary()?);
    command
        .arg("analyze")
        .args([data("rank0.json"), data("rank1.json")]);
    command
        .args(["--table", name, "-q", "--categories"])
        .arg(rules);
    Ok(serde_json::from_str(&checked(command.args(more))?)?)
}

#[test]
fn schemas_are_those_of_the_script() -> anyhow::Result<()> {
    let shop = Workshop::new()?;
    let cases: [(&str, &[&str]); 2] = [
        ("schema.json", &[]),
        ("schema.blanks.json", &["--no-remove-spaces"]),
    ];
    for (expected, options) in cases {
        let out = shop.path("schema.json");
        let mut command = Command::new(binary()?);
        command
            .arg("categorize")
            .arg("--ini")
            .arg(data("rules.ini"));
        checked(command.arg("--json").arg(&out).args(options))?;
        assert_eq!(json(&out)?, json(&data(expected))?, "{expected}");
    }
    Ok(())
}

#[test]
fn summaries_are_those_of_the_script() -> anyhow::Result<()> {
    for aggregator in ["min", "max", "mean", "median", "sum", "min+1", "max-1"] {
        let expected = json(&data(&format!("summary.{aggregator}.json")))?;
        let expected = expected.as_object().context("no object")?;
        for rules in ["schema.json", "rules.ini"] {
            let options = ["--format", "summary", "--aggregator", aggregator];
            let found = table("category-summary", &data(rules), &options)?;
            let found = found.as_object().context("no object")?;
            assert!(found.keys().eq(expected.keys()), "{found:?} {expected:?}");
            for (name, value) in expected {
                assert_eq!(found[name].as_f64(), value.as_f64(), "{aggregator} {name}");
            }
        }
    }
    Ok(())
}

/// The rows of a single rank equal the script's sums. Here those of both ranks add up to them.
#[test]
fn rows_of_ranks_are_the_sums() -> anyhow::Result<()> {
    let expected = json(&data("summary.sum.json"))?;
    let tables = table("categories", &data("rules.ini"), &["--json"])?;
    let rows = tables[0]["rows"].as_array().context("no rows")?;
    let mut sums: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let mut shares: BTreeMap<u64, f64> = BTreeMap::new();
    for row in rows {
        let number = |key: &str| row[key].as_u64().with_context(|| format!("{key}: {row}"));
        let category = row["category"].as_str().context("no category")?;
        let sum = sums.entry(category.to_owned()).or_default();
        *sum = (sum.0 + number("time")?, sum.1 + number("calls")?);
        *shares.entry(number("rank")?).or_default() += row["share"].as_f64().context("no share")?;
        assert_eq!(row["quality"], "exact");
    }
    assert_eq!(shares.len(), 2);
    assert!(
        shares.values().all(|share| (share - 100.0).abs() < 1e-6),
        "{shares:?}"
    );
    for (category, (ns, calls)) in &sums {
        assert_eq!(
            expected[format!("{category}_time")],
            *ns as f64,
            "{category}"
        );
        assert_eq!(
            expected[format!("{category}_calls")],
            *calls as f64,
            "{category}"
        );
    }
    // The others are of the whole, which rows are not.
    assert_eq!(
        sums.len() + 2,
        expected.as_object().map_or(0, |all| all.len() / 2)
    );
    Ok(())
}

/// Rules by which the scripts end with an error.
#[test]
fn rules_that_end_the_scripts_work() -> anyhow::Result<()> {
    let shop = Workshop::new()?;
    let rules = shop.path("rules.ini");
    // No rule of ends; a name that longer rules begin with; a `%` behind `:=`; a section
    // that comes twice; a name that begins with `#`.
    std::fs::write(
        &rules,
        "[mm if starts with]\ngemmi\ngemm_kernel_bf16\ngemmi_long\na:=%\n[hash if starts with]\n\
         \\#4\n[mm if starts with]\ngemmi\nother\n",
    )?;
    let found = table(
        "category-summary",
        &rules,
        &["--format", "summary", "--aggregator", "sum"],
    )?;
    assert_eq!(found["mm_calls"], 3.0 + 3.0 + 12.0 + 13.0 + 4.0);
    Ok(())
}
