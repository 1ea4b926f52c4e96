//! Paths of the repository and running of other programs.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    // cargo sets it for `cargo xtask`; the compile-time value serves when the
    // binary is started by hand.
    let dir = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    dir.parent().map_or(dir.clone(), Path::to_path_buf)
}

/// Where cargo builds, and the only place where tasks keep anything.
pub(crate) fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// cargo, as the one that runs this task, in the root of the repository.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// The full path of a program on PATH.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    // Administration programs are not on an ordinary user's PATH.
    let extra = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(extra)
        .map(|dir| dir.join(name))
        .find(|p| is_executable(p))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// Whether this process has effective user id 0.
pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid takes nothing, touches no memory and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// A command as a person would type it.
pub(crate) fn display(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(quote).collect::<Vec<_>>().join(" ")
}

fn quote(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Shows a command, runs it and wants success.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let text = display(command);
    eprintln!("+ {text}");
    let status = command
        .status()
        .with_context(|| format!("cannot start {text}"))?;
    if !status.success() {
        bail!("{text}: {status}");
    }
    Ok(())
}

/// Runs a command quietly and gives its standard output; its standard error
/// goes into the error.
pub(crate) fn capture(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&capture_bytes(command)?).into_owned())
}

/// [`capture`] for output that is not text.
pub(crate) fn capture_bytes(command: &mut Command) -> Result<Vec<u8>> {
    let text = display(command);
    let out = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {text}"))?;
    if !out.status.success() {
        bail!(
            "{text}: {}\n{}",
            out.status,
            String::from_utf8_lossy(&out.stderr).trim()
        );
    }
    Ok(out.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_programs_on_path() {
        assert!(find_program("sh").is_some());
        assert!(find_program("no-such-program-here").is_none());
    }

    #[test]
    fn shows_commands_as_typed() {
        let mut command = Command::new("apt-get");
        command.args(["install", "-y", "a b", "it's"]);
        assert_eq!(display(&command), r"apt-get install -y 'a b' 'it'\''s'");
    }

    #[test]
    fn failures_carry_the_program_s_words() {
        let error = capture(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("why"), "{error}");
        assert_eq!(
            capture(Command::new("sh").args(["-c", "echo yes"])).unwrap(),
            "yes\n"
        );
    }
}
