//! What to do about errors whose text alone does not say it.

use std::io;

/// Descriptors that suffice for a recording of a large machine.
const ENOUGH: u64 = 65_536;

/// A line to add to an error's message; empty: none.
pub fn advice(error: &anyhow::Error) -> String {
    if error.chain().any(is_descriptors) {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let limit = limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
        return format!(
            "\n  the limit is {limit} open files: aiprof has one open for each CPU, eBPF map, \
             probe and mapped program; raise it with `ulimit -n {ENOUGH}`, or LimitNOFILE= \
             in a unit"
        );
    }
    String::new()
}

/// Whether a cause is that there are too many open files.
fn is_descriptors(cause: &(dyn std::error::Error + 'static)) -> bool {
    let is_limit = |code: Option<i32>| code == Some(libc::EMFILE);
    match cause.downcast_ref::<io::Error>() {
        Some(error) => is_limit(error.raw_os_error()),
        None => match cause.downcast_ref::<rustix::io::Errno>() {
            Some(errno) => is_limit(Some(errno.raw_os_error())),
            // Others say it in words only.
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
}
