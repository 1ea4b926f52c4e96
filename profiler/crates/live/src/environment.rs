//! The place of a process in a job of many processes, by its environment.

use aiprof_model::labels;
use aiprof_system::files::kernel;
use std::io::Read as _;

/// Most bytes of an environment that are read.
const MAX_BYTES: u64 = 1 << 20;

/// Variables with the rank of a process, the one that counts first: torchrun and
/// DeepSpeed, Open MPI, PMIx, MPICH and its kin, PALS, Slurm. Programs started by
/// torchrun in a job of Slurm have both, and torchrun's is the finer one.
const RANKS: [&str; 6] = [
    "RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "PALS_RANKID",
    "SLURM_PROCID",
];
/// The same for the rank on this machine.
const LOCAL_RANKS: [&str; 5] = [
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PALS_LOCAL_RANKID",
    "SLURM_LOCALID",
];

/// The labels that the environment of a process gives it, as it was when its program
/// was started. Waits for its memory.
pub(crate) fn labels_of(pid: u32) -> Vec<(String, String)> {
    let mut bytes = Vec::new();
    let file = kernel::open(format!("/proc/{pid}/environ"));
    if let Ok(file) = file {
        // What came until an error is whole variables but for the last.
        let _ = file.take(MAX_BYTES).read_to_end(&mut bytes);
    }
    parse(&bytes)
}

/// All variables with ranks in the environment that a process was started with.
///
/// # Errors
/// It may not be read.
pub(crate) fn ranks_of(pid: u32) -> std::io::Result<Vec<(&'static str, u32)>> {
    let mut bytes = Vec::new();
    let file = kernel::open(format!("/proc/{pid}/environ"))?;
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(ranks(|name| number(&bytes, name)))
}

/// All variables with ranks that are numbers.
pub(crate) fn ranks(number: impl Fn(&str) -> Option<u32>) -> Vec<(&'static str, u32)> {
    let names = RANKS.into_iter().chain(LOCAL_RANKS);
    names
        .filter_map(|name| Some((name, number(name)?)))
        .collect()
}

/// The value of a variable, if it is a number.
fn number(environment: &[u8], name: &str) -> Option<u32> {
    let mut variables = environment.split(|&byte| byte == 0);
    variables.find_map(|variable| {
        let value = variable.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        std::str::from_utf8(value).ok()?.parse::<u32>().ok()
    })
}

fn parse(environment: &[u8]) -> Vec<(String, String)> {
    let find = |names: &[&str]| names.iter().find_map(|name| number(environment, name));
    let found = [
        (labels::RANK, find(&RANKS)),
        (labels::LOCAL_RANK, find(&LOCAL_RANKS)),
    ];
    let found = found.into_iter();
    found
        .filter_map(|(key, rank)| Some((key.to_owned(), rank?.to_string())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_numbers_in_an_order_of_launchers() {
        let parse = |text: &str| {
            let found = parse(text.replace(' ', "\0").as_bytes());
            let found = found.iter().map(|(key, value)| format!("{key}={value}"));
            found.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            parse("PATH=/bin SLURM_PROCID=1 RANK=12 LOCAL_RANK=4"),
            "rank=12 local_rank=4"
        );
        assert_eq!(
            parse("OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_LOCAL_RANK=1"),
            "rank=3 local_rank=1"
        );
        assert_eq!(
            parse("SLURM_PROCID=7 SLURM_LOCALID=0"),
            "rank=7 local_rank=0"
        );
        assert_eq!(parse("RANK=colonel PMI_RANK=2"), "rank=2");
        assert_eq!(
            parse("XRANK=1 RANK RANK=-1 RANK=99999999999 RANK=\u{202e}"),
            ""
        );
        assert_eq!(parse(""), "");
    }
}
