//! Files made to take all memory, or to speak to the terminal of whoever reads them:
//! another user gives them, root analyses them.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context as _;
use flate2::{Compression, write::GzEncoder};

use aiprof_tests::aiprof::binary;
use aiprof_tests::need::is_root;

/// Who attacks, and runs what needs no rights.
const NOBODY: u32 = 65534;
/// The limit that is given, bytes; what may be used beyond it (a quarter or 64 MiB,
/// see docs/security.md, and the program itself).
const LIMIT: u64 = 64 << 20;
const BEYOND: u64 = (64 << 20) + (48 << 20);

struct Ran {
    code: Option<i32>,
    text: String,
    peak: u64,
}

/// Runs aiprof in a folder as another user; gives its peak memory too.
fn run(dir: &Path, args: &[&str]) -> anyhow::Result<Ran> {
    let log = dir.join("stderr");
    let mut command = Command::new(binary()?);
    command
        .args(args)
        .current_dir(dir)
        .stdout(Stdio::null())
        .stderr(File::create(&log)?);
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let child = command.spawn()?;
    let (mut status, pid) = (0, libc::pid_t::try_from(child.id())?);
    // SAFETY: zeros are a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: our own child, which nothing else waits for; both places are ours.
    let waited = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) };
    anyhow::ensure!(waited == pid, "{}", std::io::Error::last_os_error());
    Ok(Ran {
        code: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
        text: String::from_utf8_lossy(&std::fs::read(&log)?).into_owned(),
        peak: u64::try_from(usage.ru_maxrss)? * 1024,
    })
}

/// A folder in which the other user may write.
fn folder() -> anyhow::Result<tempfile::TempDir> {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir()?;
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777))?;
    Ok(dir)
}

/// A file of `text`, again and again, between `begin` and `end`.
fn pack(path: &Path, begin: &str, text: &str, times: usize, end: &str) -> anyhow::Result<()> {
    let mut out = GzEncoder::new(File::create(path)?, Compression::fast());
    out.write_all(begin.as_bytes())?;
    let many = text.repeat(10_000);
    for _ in 0..times / 10_000 {
        out.write_all(many.as_bytes())?;
    }
    out.write_all(end.as_bytes())?;
    out.finish()?;
    Ok(())
}

const EVENT: &str = "{\"ph\":\"X\",\"ts\":1,\"dur\":1,\"pid\":1,\"tid\":1,\"name\":\"a\"},\n";

fn refused(ran: &Ran, dir: &Path, output: &str) {
    let text = &ran.text;
    assert_eq!(ran.code, Some(1), "{text}");
    assert!(text.contains("the memory limit of 64 MiB"), "{text}");
    assert!(text.contains("--memory-limit"), "{text}");
    assert!(!dir.join(output).exists());
    assert!(ran.peak < LIMIT + BEYOND, "{} MiB", ran.peak >> 20);
}

#[test]
fn a_small_file_of_many_events_is_refused() -> anyhow::Result<()> {
    let dir = folder()?;
    pack(&dir.path().join("b.json.gz"), "[", EVENT, 3_000_000, "{}]")?;
    let args = [
        "analyze",
        "b.json.gz",
        "--memory-limit",
        "64M",
        "-o",
        "o.json",
    ];
    refused(&run(dir.path(), &args)?, dir.path(), "o.json");
    // The same as zstd, which packs more of it still.
    let mut text = vec![b'['];
    text.extend(EVENT.repeat(2_000_000).bytes());
    text.extend(b"{}]");
    let packed = zstd::encode_all(&text[..], 1)?;
    std::fs::write(dir.path().join("b.json.zst"), packed)?;
    let args = [
        "analyze",
        "b.json.zst",
        "--memory-limit",
        "64M",
        "-o",
        "o.html",
    ];
    refused(&run(dir.path(), &args)?, dir.path(), "o.html");
    Ok(())
}

#[test]
fn text_that_takes_no_memory_is_bounded_too() -> anyhow::Result<()> {
    let dir = folder()?;
    // White space between two events: nothing of it stays.
    let blanks = " ".repeat(50);
    let many = EVENT.to_owned() + &blanks.repeat(1000);
    pack(&dir.path().join("w.json.gz"), "[", &many, 10_000, "{}]")?;
    let args = [
        "analyze",
        "w.json.gz",
        "--memory-limit",
        "64M",
        "-o",
        "o.json",
    ];
    let ran = run(dir.path(), &args)?;
    assert_eq!(ran.code, Some(1), "{}", ran.text);
    assert!(
        ran.text
            .contains("decompressed text, 4 times the memory limit"),
        "{}",
        ran.text
    );
    assert!(ran.peak < LIMIT + BEYOND, "{} MiB", ran.peak >> 20);
    Ok(())
}

#[test]
fn a_log_without_end_is_refused() -> anyhow::Result<()> {
    let dir = folder()?;
    std::fs::write(dir.path().join("t.json"), format!("[{EVENT}{{}}]"))?;
    let line = "x".repeat(1000) + "\n";
    pack(&dir.path().join("c.log.gz"), "", &line, 1_100_000, "")?;
    let ran = run(
        dir.path(),
        &["analyze", "t.json", "-c", "c.log.gz", "-o", "o.json"],
    )?;
    assert_eq!(ran.code, Some(1), "{}", ran.text);
    assert!(ran.text.contains("the limit for logs"), "{}", ran.text);
    assert!(!dir.path().join("o.json").exists());
    assert!(ran.peak < BEYOND, "{} MiB", ran.peak >> 20);
    Ok(())
}

#[test]
fn a_process_for_every_event_takes_little() -> anyhow::Result<()> {
    let dir = folder()?;
    let mut out = File::create(dir.path().join("p.json"))?;
    let mut text = "[".to_owned();
    for i in 0..30_000 {
        text += &format!(
            "{{\"ph\":\"X\",\"ts\":{},\"dur\":5,\"pid\":{i},\"tid\":{i},\"name\":\"k\"}},\n",
            i * 10
        );
    }
    out.write_all((text + "{}]").as_bytes())?;
    let ran = run(dir.path(), &["analyze", "p.json", "--memory-limit", "64M"])?;
    assert_eq!(ran.code, Some(0), "{}", ran.text);
    assert!(ran.peak < LIMIT + BEYOND, "{} MiB", ran.peak >> 20);
    Ok(())
}

/// What a terminal obeys, or a reader is fooled by.
fn is_obeyed(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t')
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[test]
fn names_of_files_do_not_speak_to_the_terminal() -> anyhow::Result<()> {
    let dir = folder()?;
    let name = "a\x1b]0;owned\x07\u{202e}\u{9b}2J";
    let names = ["json", "aiprof", "folded", "log", "json.gz"].map(|kind| format!("{name}.{kind}"));
    for name in &names {
        std::fs::write(
            dir.path().join(name),
            "{\"traceEvents\": [{\"ph\":\"\x1b[2J\"}], x",
        )?;
    }
    let [json, capture, folded, log, packed] = names.each_ref().map(String::as_str);
    let missing = "\x1b[31mmissing\u{202e}";
    let commands: [&[&str]; 14] = [
        &["analyze", json],
        &["analyze", log],
        &["analyze", packed],
        &["analyze", missing],
        &["analyze", json, "-c", missing],
        &["analyze", json, "-o", missing],
        &["acelyzer", "-i", json],
        &["acelyzer", "-i", missing],
        &["report", capture],
        &["report", missing, "-o", "x.svg"],
        &["diff", folded, capture],
        &["stalls", capture],
        &[missing],
        &["analyze", json, &format!("--{missing}")],
    ];
    for args in commands {
        let ran = run(dir.path(), args)?;
        let text = &ran.text;
        // acelyzer prints to stdout, with colours of its own.
        let is_quiet = text.is_empty() && args[0] == "acelyzer";
        assert!(is_quiet || !text.trim().is_empty(), "{args:?}");
        assert!(!text.contains(is_obeyed), "{args:?}: {text:?}");
    }
    Ok(())
}

#[test]
fn names_in_profiles_do_not_turn_text_around() -> anyhow::Result<()> {
    let dir = folder()?;
    // Only what changed is in the table.
    for (file, samples) in [("a.folded", 10), ("b.folded", 30)] {
        let stacks = format!("x;\x1b[2Jfoo\u{2066} 10\nx;evil\u{202e}gvs {samples}\n");
        std::fs::write(dir.path().join(file), stacks)?;
    }
    for output in ["d.svg", "d.txt"] {
        let ran = run(dir.path(), &["diff", "a.folded", "b.folded", "-o", output])?;
        assert_eq!(ran.code, Some(0), "{}", ran.text);
        let text = std::fs::read_to_string(dir.path().join(output)).context("no output")?;
        assert!(!text.contains(is_obeyed), "{output}");
        assert!(text.contains(r"evil\u{202e}gvs"), "{output}");
    }
    Ok(())
}
