//! What to do about errors whose own text does not show it.

use super::Cli;
#[cfg(feature = "live")]
use aiprof_live::launch::LaunchError;
use aiprof_system::files::caller;
use clap::CommandFactory as _;
use std::ffi::OsString;
use std::io;

/// Descriptors that suffice for a recording of a large machine.
const ENOUGH: u64 = 65_536;

/// A line to add to an error's message; empty: none.
pub fn advice(error: &anyhow::Error) -> String {
    if error.chain().any(is_descriptors) {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let limit = limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
        return format!(
            "\n  the limit is {limit} open files. aiprof needs one for each CPU, eBPF map and probe, \
             and for each executable file or library that programs have mapped. Raise the limit \
             with `ulimit -n {ENOUGH}`, or with LimitNOFILE= in a systemd unit"
        );
    }
    #[cfg(feature = "live")]
    if let Some(LaunchError::NotFound(program)) = error.downcast_ref() {
        return match subcommand_like(program) {
            Some(name) => format!("\n  did you mean `aiprof {name}`?"),
            None if !program.contains('/') && std::env::var_os("SUDO_UID").is_some() => format!(
                "\n  sudo replaces PATH: name the program with its path, as in \
                 `sudo aiprof \"$(command -v {program})\"`, or start with `sudo env \"PATH=$PATH\" \
                 aiprof ...`"
            ),
            None => String::new(),
        };
    }
    String::new()
}

/// Refuses a COMMAND that is no program and looks like a mistyped subcommand: before
/// anything is asked for that only recordings need.
///
/// # Errors
/// [`LaunchError::NotFound`] for such a COMMAND.
#[cfg(feature = "live")]
pub(super) fn refuse_mistyped(command: &[OsString]) -> Result<(), LaunchError> {
    let Some(program) = command.first().and_then(|program| program.to_str()) else {
        return Ok(());
    };
    if program.contains('/') || subcommand_like(program).is_none() {
        return Ok(());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = std::env::split_paths(&path).any(|dir| caller::exists(dir.join(program)));
    match is_there {
        true => Ok(()),
        false => Err(LaunchError::NotFound(program.to_owned())),
    }
}

/// The subcommand whose name a word comes close to.
fn subcommand_like(word: &str) -> Option<String> {
    let near = |name: &String| (1..=name.len() / 3).contains(&distance(word, name));
    let command = Cli::command();
    let names = command
        .get_subcommands()
        .map(|sub| sub.get_name().to_owned());
    names.filter(near).min_by_key(|name| distance(word, name))
}

/// How many characters must be inserted, removed or replaced to make one word the other
/// (Levenshtein); words that are long are far.
fn distance(a: &str, b: &str) -> usize {
    if a.len().abs_diff(b.len()) > 2 {
        return usize::MAX;
    }
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, of_a) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, of_b) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(of_a != *of_b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// Whether a cause is that there are too many open files.
fn is_descriptors(cause: &(dyn std::error::Error + 'static)) -> bool {
    let is_limit = |code: Option<i32>| code == Some(libc::EMFILE);
    match cause.downcast_ref::<io::Error>() {
        Some(error) => is_limit(error.raw_os_error()),
        None => match cause.downcast_ref::<rustix::io::Errno>() {
            Some(errno) => is_limit(Some(errno.raw_os_error())),
            // Other types of error only have it in their text.
            None => cause.to_string().contains("Too many open files"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn too_many_open_files_are_explained_in_any_depth() {
        let full = io::Error::from_raw_os_error(libc::EMFILE);
        let error = Err::<(), _>(full).context("cannot start").unwrap_err();
        assert!(advice(&error).contains("ulimit -n"), "{}", advice(&error));
        let other = anyhow::Error::new(io::Error::from_raw_os_error(libc::ENOENT));
        assert_eq!(advice(&other), "");
    }

    #[cfg(feature = "live")]
    #[test]
    fn a_subcommand_that_was_mistyped_is_named() {
        let found = |word: &str| advice(&LaunchError::NotFound(word.to_owned()).into());
        for (word, name) in [
            ("reprot", "report"),
            ("doctr", "doctor"),
            ("analyse", "analyze"),
        ] {
            assert!(found(word).contains(&format!("`aiprof {name}`")), "{word}");
            assert!(refuse_mistyped(&[word.into()]).is_err(), "{word}");
        }
        for word in ["", "ls", "make", "python3", "a/very/long/path/to/report"] {
            assert_eq!(found(word), "", "{word}");
            assert!(refuse_mistyped(&[word.into()]).is_ok(), "{word}");
        }
    }
}
