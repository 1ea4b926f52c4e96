//! `aiprof stalls`, from outside, on tables of other tools and real device code.

#![allow(clippy::disallowed_methods, reason = "not part of the program")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn run(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_aiprof"));
    command.arg("stalls").args(args).stdin(Stdio::null());
    command.env("NO_COLOR", "1").output().unwrap()
}

fn succeed(args: &[&str]) -> String {
    let output = run(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// Its error messages when it fails, and its exit code.
fn fail(args: &[&str]) -> (String, Option<i32>) {
    let output = run(args);
    assert_eq!(output.stdout, b"");
    let stderr = String::from_utf8(output.stderr).unwrap();
    (stderr, output.status.code())
}

fn zebin(dir: &Path, name: &str) -> PathBuf {
    let packed = format!(
        "{}/../tests/data/zebin/{name}.zebin.gz",
        env!("CARGO_MANIFEST_DIR")
    );
    let mut bytes = Vec::new();
    let packed = std::fs::read(packed).unwrap();
    flate2::read::GzDecoder::new(packed.as_slice())
        .read_to_end(&mut bytes)
        .unwrap();
    let path = dir.join(format!("{name}.zebin"));
    std::fs::write(&path, bytes).unwrap();
    path
}

const HEAD: &str = "\n=== Device #0 Metrics ===\n\n        Kernel, IP[Address], Active[Events], \
    ControlStall[Events], PipeStall[Events], SendStall[Events], DistStall[Events], \
    SbidStall[Events], SyncStall[Events], InstrFetchStall[Events], OtherStall[Events]\n";

fn table(dir: &Path, rows: &str) -> String {
    let path = dir.join("perf.123.csv");
    std::fs::write(&path, format!("{HEAD}{rows}")).unwrap();
    path.to_str().unwrap().to_owned()
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// All offsets are decimal: unitrace's own report takes them for numbers and fails.
#[test]
fn a_table_of_unitrace_with_the_compilers_module() {
    let dir = tempfile::tempdir().unwrap();
    let module = zebin(dir.path(), "pvc");
    let csv = table(
        dir.path(),
        "\"total\", 300, 1, 0, 0, 0, 0, 900, 0, 0, 0\n\"total\", 30, 2, 0, 0, 0, 40, 0, 0, 0, 0\n\
         \"demo::Copy\", 0, 5, 0, 0, 0, 0, 0, 0, 0, 0\n",
    );
    let text = words(&succeed(&[&csv, "--modules", module.to_str().unwrap()]));
    for part in [
        "948 samples of 2 kernels",
        "operands: 0x2f0 send.slm (field.cl:34)",
        "integer pipe: 0x10 and (field.cl:26)",
        "demo::Copy",
        "XeHpc, SIMD16, 128 registers",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // A folder does as well; a mangled name finds the kernel.
    let folder = dir.path().to_str().unwrap();
    let one = succeed(&[
        &csv,
        "--modules",
        folder,
        "-k",
        "_ZTSN4demo4CopyE",
        "--by",
        "kernel",
    ]);
    assert!(words(&one).contains("5 samples of 1 kernel,"), "{one}");
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/workloads/device");
    let listing = succeed(&[
        &csv,
        "--modules",
        folder,
        "--listing",
        "--source-dir",
        sources,
    ]);
    assert!(
        listing.contains("part[i] += part[i + half_way];"),
        "{listing}"
    );
}

#[test]
fn files_by_their_extensions() {
    let dir = tempfile::tempdir().unwrap();
    let module = zebin(dir.path(), "bmg");
    let module = module.to_str().unwrap();
    let csv = table(dir.path(), "\"total\", 100, 1, 0, 0, 0, 0, 900, 0, 0, 0\n");
    for (name, begin) in [
        ("s.txt", "/"),
        ("s.html", "<!doctype html>"),
        ("s.csv", "device,kernel,offset"),
        ("s.json", "{"),
    ] {
        let path = dir.path().join(name);
        let out = succeed(&[&csv, "--modules", module, "-o", path.to_str().unwrap()]);
        assert_eq!(out, "");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            text.starts_with(begin) && text.contains("total"),
            "{name}: {text}"
        );
    }
    let (message, code) = fail(&[&csv, "-o", "x.pdf"]);
    assert!(code == Some(2) && message.contains(".html"), "{message}");
    let (message, code) = fail(&[&csv, "--listing", "--format", "csv"]);
    assert!(
        code == Some(2) && message.contains("--listing"),
        "{message}"
    );
}

#[test]
fn what_is_missing_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let csv = table(dir.path(), "\"nobody\", 1b8, 3, 0, 0, 0, 0, 907, 0, 0, 0\n");
    let text = words(&succeed(&[&csv]));
    assert!(
        text.contains("counts only") && text.contains("--modules FILE|DIR"),
        "{text}"
    );
    let module = zebin(dir.path(), "ptl");
    let text = words(&succeed(&[&csv, "--modules", module.to_str().unwrap()]));
    assert!(
        text.contains("no kernel of this name is in --modules"),
        "{text}"
    );
    let (message, code) = fail(&[&csv, "-k", "gemm"]);
    assert!(
        code == Some(1) && message.contains("the sampled kernels are nobody"),
        "{message}"
    );
    let empty = dir.path().join("empty.csv");
    std::fs::write(&empty, HEAD).unwrap();
    let (message, code) = fail(&[empty.to_str().unwrap()]);
    assert!(
        code == Some(1) && message.contains("no device samples"),
        "{message}"
    );
    let other = dir.path().join("other");
    std::fs::write(&other, "hello\n").unwrap();
    let (message, code) = fail(&[other.to_str().unwrap()]);
    assert!(
        code == Some(1) && message.contains("unitrace --stall-sampling"),
        "{message}"
    );
    let (message, code) = fail(&["/nonexistent"]);
    assert!(
        code == Some(1) && message.contains("/nonexistent"),
        "{message}"
    );
    let (message, code) = fail(&[&csv, "--modules", other.to_str().unwrap()]);
    assert!(
        code == Some(1) && message.contains("neither zebin"),
        "{message}"
    );
    let (_, code) = fail(&[&csv, "--min-share", "101"]);
    assert_eq!(code, Some(2));
}

/// The module of another build: the samples stay, and a message reports that they do not fit.
#[test]
fn samples_outside_of_the_code_stay() {
    let dir = tempfile::tempdir().unwrap();
    let module = zebin(dir.path(), "pvc");
    let csv = table(
        dir.path(),
        "\"total\", 0, 7, 0, 0, 0, 0, 0, 0, 0, 0\n\"total\", ffffff0, 0, 0, 0, 0, 0, 11, 0, 0, 0\n",
    );
    let text = words(&succeed(&[&csv, "--modules", module.to_str().unwrap()]));
    assert!(
        text.contains("11 samples are at offsets without an instruction"),
        "{text}"
    );
    assert!(text.contains("0xffffff0 [no instruction there]"), "{text}");
}

#[test]
fn a_recording_of_iaprof() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.iaprof");
    let text = "string\t1\tapp\nstring\t2\tmain;launch\nstring\t3\tfield.cl\nstring\t4\ttotal\n\
        string\t5\tmov\ninterval\t1\t1.0\nkernel\t0x1000\t1\t42\t2\t3\t4\n\
        eustall\t0x300\t5\t1\t0\t0\t0\t0\t900\t0\t0\t0\t0\ninterval\t2\t2.0\n";
    std::fs::write(&path, text).unwrap();
    let module = zebin(dir.path(), "pvc");
    let text = succeed(&[
        path.to_str().unwrap(),
        "--modules",
        module.to_str().unwrap(),
    ]);
    assert!(words(&text).contains("operands: 0x2f0 send.slm"), "{text}");
}
