//! README-devel.md's table "to add | touch" names each file that an addition touches, and no
//! other: examples of additions are compared with it (`tests/data/additions`).
//! `all/files/additions.rs` compiles them.

use std::path::{Path, PathBuf};

use aiprof_tests::additions::{Addition, row_of};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn rows_name_the_files_that_examples_of_additions_touch() -> anyhow::Result<()> {
    let readme = std::fs::read_to_string(root().join("README-devel.md"))?;
    let additions = Addition::all(&root())?;
    anyhow::ensure!(additions.len() >= 7, "{} examples", additions.len());
    for addition in additions {
        let row = row_of(&readme, &addition.row)?;
        addition.compare_with_row(&root(), row)?;
    }
    Ok(())
}

/// The comparison itself: a row without one of its files is found, and one with another file.
#[test]
fn a_row_that_lacks_a_file_is_found() -> anyhow::Result<()> {
    let readme = std::fs::read_to_string(root().join("README-devel.md"))?;
    for addition in Addition::all(&root())? {
        let row = row_of(&readme, &addition.row)?;
        let quoted = row.split('`').skip(1).step_by(2);
        for path in quoted.filter(|text| text.contains('/')) {
            let is_needed = addition
                .touched
                .iter()
                .any(|file| match path.ends_with('/') {
                    true => file.contains(path) && !row.contains(&format!("`{file}`")),
                    false => file.ends_with(path),
                });
            if !is_needed {
                continue;
            }
            let without = row.replace(&format!("`{path}`"), "a file");
            let compared = addition.compare_with_row(&root(), &without);
            anyhow::ensure!(compared.is_err(), "{}: {path}: {without}", addition.row);
        }
        let more = format!("{row}; `docs/glossary.md`");
        let compared = addition.compare_with_row(&root(), &more);
        anyhow::ensure!(compared.is_err(), "{}: {more}", addition.row);
    }
    Ok(())
}
