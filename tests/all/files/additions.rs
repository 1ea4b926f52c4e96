//! One of each addition that README-devel.md's table "to add | touch" describes, in a copy of the
//! tree: it compiles, and the tests of what is compared with lists pass. That the rows name the files
//! is tested by `core/files/additions.rs`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use aiprof_tests::additions::Addition;
use aiprof_tests::need::{Need, skip_unless};

/// What a copy needs none of.
const LEFT_OUT: [&str; 2] = [".git", "target"];

/// The packages that additions change, and those that look at all of their rows.
const PACKAGES: [&str; 7] = [
    "aiprof",
    "aiprof-fleet",
    "aiprof-formats",
    "aiprof-model",
    "aiprof-tables",
    "aiprof-trace",
    "xtask",
];

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        if LEFT_OUT.iter().any(|folder| name == *folder) {
            continue;
        }
        let target = to.join(&name);
        if kind.is_dir() {
            copy(&entry.path(), &target)?;
        } else if kind.is_file() {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

/// Runs cargo in the copy, with a folder of its own for what is built: it is kept for the next run.
fn cargo(tree: &Path, folder: &Path, words: &[&str]) -> anyhow::Result<()> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = Command::new(program);
    cargo.current_dir(tree).env("CARGO_TARGET_DIR", folder);
    cargo.env("CARGO_TERM_COLOR", "never").args(words);
    cargo.args(["--quiet", "--offline", "--locked"]);
    let output = cargo.output()?;
    anyhow::ensure!(
        output.status.success(),
        "{cargo:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

#[test]
fn a_tree_with_one_more_of_each_compiles() -> anyhow::Result<()> {
    skip_unless!(&[Need::Tool("cargo")]);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("additions");
    let tree = folder.join("tree");
    if tree.exists() {
        fs::remove_dir_all(&tree)?;
    }
    copy(&root, &tree)?;
    for addition in Addition::all(&root)? {
        addition.apply(&tree)?;
    }
    let packages = PACKAGES.iter().flat_map(|name| ["-p", *name]);
    let check: Vec<_> = ["check", "--lib", "--bins"]
        .into_iter()
        .chain(packages)
        .collect();
    cargo(&tree, &folder, &check)?;
    // What is only data when it is compiled.
    let small = [
        "test",
        "--lib",
        "--no-fail-fast",
        "-p",
        "aiprof-model",
        "-p",
        "aiprof-fleet",
    ];
    cargo(&tree, &folder, &small)
}
