//! The inductor cache directory of torch-spyre, where each kernel has a folder with
//! its ideal cycles: `DIR/inductor-spyre/KERNEL/perf/ideal_cycles.json`, a list of
//! `{"ideal_cycles": 2048, "op_category": "Bmm_fp16"}`.

#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;

use aiprof_system::files::caller;
use aiprof_trace::analyze::messages::Messages;
use aiprof_trace::analyze::utilization::ideal::{IdealTable, IdealTables, Phase};
use serde_json::Value;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// Largest file of one kernel that is read, bytes.
const MAX_FILE: u64 = 16 << 20;
/// Most entries of a folder that are looked at.
const MAX_KERNELS: usize = 1 << 20;

/// Names of the folder of all kernels, as releases of torch-spyre have had it.
const FOLDERS: [&str; 2] = ["inductor-spyre", "inductor_spyre"];

/// Reads a cache directory, or the folder in it that holds the kernels. Kernels whose file
/// cannot be used are reported and left out.
///
/// # Errors
/// The directory cannot be read.
pub fn read(dir: &Path, messages: &mut Messages) -> io::Result<IdealTables> {
    let inside = FOLDERS.map(|name| dir.join(name));
    let base = inside.iter().find(|path| caller::is_dir(path));
    let base = base.map_or(dir, PathBuf::as_path);
    let entries = caller::read_dir(base, MAX_KERNELS)?;
    let mut kernels: Vec<_> = entries.into_iter().map(|(path, _)| path).collect();
    kernels.sort();
    let mut table = IdealTable::new(Phase::Unknown);
    for path in kernels {
        let file = path.join("perf").join("ideal_cycles.json");
        let (Some(name), true) = (path.file_name(), caller::is_file(&file)) else {
            continue;
        };
        let text = match read_bounded(&file) {
            Ok(text) => text,
            Err(error) => {
                unusable(&file, &error.to_string(), messages);
                continue;
            }
        };
        add_kernel(&mut table, &name.to_string_lossy(), &text)
            .unwrap_or_else(|reason| unusable(&file, &reason, messages));
    }
    let mut tables = IdealTables::default();
    tables.add(table, messages);
    Ok(tables)
}

fn unusable(file: &Path, reason: &str, messages: &mut Messages) {
    let file = file.display();
    messages.warn("UTL", format_args!("UTL: Unable to use {file}: {reason}"));
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    caller::open_regular(path)?
        .take(MAX_FILE + 1)
        .read_to_end(&mut text)?;
    match text.len() as u64 > MAX_FILE {
        true => Err(io::Error::other("too large for a table of ideal cycles")),
        false => Ok(text),
    }
}

/// Adds the rows of one kernel's file; those before a wrong one stay.
fn add_kernel(table: &mut IdealTable, kernel: &str, text: &[u8]) -> Result<(), String> {
    let data: Value = serde_json::from_slice(text).map_err(|e| e.to_string())?;
    let list = data.as_array().ok_or("not a list")?;
    for entry in list {
        let cycles = entry.get("ideal_cycles").and_then(cycles);
        let cycles = cycles.ok_or("an entry has no usable ideal_cycles")?;
        let category = entry.get("op_category").and_then(Value::as_str);
        let category = category.ok_or("an entry has no op_category")?;
        // Several operations of one kernel may well differ: no reason to warn.
        table.insert(kernel, category, cycles);
    }
    Ok(())
}

/// A count of cycles, also one that is written as a float.
fn cycles(value: &Value) -> Option<u64> {
    let is_count = |f: &f64| *f >= 0.0 && *f < u64::MAX as f64;
    value
        .as_u64()
        // Checked above: cycles have no fractions worth keeping.
        .or_else(|| value.as_f64().filter(is_count).map(|f| f as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_trace::analyze::messages::Level;
    use std::fs;

    fn tree(folder: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (kernel, text) in files {
            let perf = dir.path().join(folder).join(kernel).join("perf");
            fs::create_dir_all(&perf).unwrap();
            fs::write(perf.join("ideal_cycles.json"), text).unwrap();
        }
        dir
    }

    #[test]
    fn the_first_cycles_of_a_kernel_that_are_not_zero_count() {
        for folder in ["inductor-spyre", "inductor_spyre", "."] {
            let dir = tree(
                folder,
                &[
                    (
                        "mm",
                        r#"[{"ideal_cycles":0,"op_category":"A"},
                            {"ideal_cycles":5,"op_category":"B"},
                            {"ideal_cycles":7,"op_category":"B"}]"#,
                    ),
                    ("add", r#"[{"ideal_cycles":1.0,"op_category":"B"}]"#),
                ],
            );
            let mut messages = Messages::new(Level::Warn);
            let tables = read(dir.path(), &mut messages).unwrap();
            let [table] = tables.tables() else {
                panic!("one table")
            };
            let mm = table.kernel("mm").unwrap();
            assert_eq!((mm.cycles, &*table.categories()[mm.category]), (5, "A"));
            assert_eq!(table.kernel("add").unwrap().cycles, 1);
            assert_eq!((table.rows(), table.cycles()), (4, 13));
            assert_eq!(messages.iter().count(), 0, "{messages:?}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_told_and_the_rest_is_read() {
        let dir = tree(
            "inductor-spyre",
            &[
                ("a", "{"),
                ("b", "{}"),
                ("c", r#"[{"ideal_cycles":-1,"op_category":"A"}]"#),
                ("d", r#"[{"ideal_cycles":1}]"#),
                ("e", r#"[{"ideal_cycles":3,"op_category":"A"}]"#),
                ("f", r#"[{"ideal_cycles":1e30,"op_category":"A"}]"#),
            ],
        );
        fs::write(dir.path().join("inductor-spyre/file"), "").unwrap();
        fs::create_dir(dir.path().join("inductor-spyre/empty")).unwrap();
        let mut messages = Messages::new(Level::Warn);
        let tables = read(dir.path(), &mut messages).unwrap();
        assert_eq!(tables.tables()[0].rows(), 1);
        assert_eq!(messages.iter().count(), 5);
        assert!(read(&dir.path().join("nix"), &mut messages).is_err());
    }
}
