//! States which call chains are right and counts those that are not.

use crate::folded::{Folded, Line, base};

/// The share of a program's samples that must have the right chain (the
/// project's goal for complete stacks).
pub const GOAL: f64 = 0.99;

/// Functions that start a program or a thread: a stack that begins with one of
/// them is complete. `clone3` and `__clone` are libc's system call stubs, in
/// which every thread begins.
const ROOTS: [&str; 6] = [
    "_start",
    "clone3",
    "__clone3",
    "__clone",
    "clone",
    "__clone_internal",
];

/// The user frames from the named function on, as base names, if the stack is complete. A complete
/// stack begins with a root, and only libc's start code lies before that function: at most three
/// frames, whose names depend on libc's symbols.
///
/// Kernel frames and kind suffixes are dropped: use [`Line::frames`] where the
/// kind matters.
#[must_use]
pub fn from_entry<'a>(line: &'a Line, entry: &str) -> Option<Vec<&'a str>> {
    let user: Vec<&str> = line.user().into_iter().map(base).collect();
    let at = user.iter().position(|name| *name == entry)?;
    let complete = user.first().is_some_and(|root| ROOTS.contains(root));
    let lawful = (1..=4).contains(&at) && !line.is_cut();
    (complete && lawful).then(|| user[at..].to_vec())
}

/// Checks that at least [`GOAL`] of the samples satisfy `right`, and that there
/// are at least `least` samples (in the profile's unit) to judge by.
///
/// # Errors
/// Gives the shares and shows the heaviest offending stacks.
pub fn check(
    what: &str,
    samples: &Folded,
    least: u64,
    right: impl FnMut(&Line) -> bool,
) -> anyhow::Result<()> {
    check_share(what, samples, least, GOAL, right)
}

/// [`check`] with another share than [`GOAL`].
///
/// # Errors
/// Gives the shares and shows the heaviest offending stacks.
pub fn check_share(
    what: &str,
    samples: &Folded,
    least: u64,
    goal: f64,
    mut right: impl FnMut(&Line) -> bool,
) -> anyhow::Result<()> {
    let samples = &samples.filter(|line| !is_leaving(line));
    let total = samples.total();
    anyhow::ensure!(
        total >= least,
        "{what}: {total} samples, needs {least} to judge by:\n{}",
        samples.excerpt(10)
    );
    let wrong = samples.filter(|line| !right(line));
    let share = 1.0 - wrong.total() as f64 / total.max(1) as f64;
    println!("{what}: {:.2} % of {total} are right", share * 100.0);
    anyhow::ensure!(
        share >= goal,
        "{what}: {:.2} % of {total} are right, must be {:.2} %; not right ({}):\n{}",
        share * 100.0,
        goal * 100.0,
        wrong.total(),
        wrong.excerpt(12)
    );
    Ok(())
}

/// Whether the kernel was just taking the program's memory away, at its exit or for
/// another program: then there is no user stack to be right about. A machine whose
/// other CPU stands still can be in there for many milliseconds.
fn is_leaving(line: &Line) -> bool {
    line.has("[exiting]") || line.is_cut() && (line.has("do_exit") || line.has("load_elf_binary"))
}

/// Checks that the part of the samples that satisfies a condition is at least
/// `share`: the workload reached the situation it was written for.
///
/// # Errors
/// Gives the share and shows the heaviest stacks.
pub fn check_reached(
    what: &str,
    samples: &Folded,
    share: f64,
    reached: impl FnMut(&Line) -> bool,
) -> anyhow::Result<()> {
    let part = samples.filter(reached).total();
    anyhow::ensure!(
        part as f64 >= share * samples.total() as f64 && part > 0,
        "{what}: only {part} of {} samples; all:\n{}",
        samples.total(),
        samples.excerpt(12)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Line {
        Folded::parse(text).unwrap().lines[0].clone()
    }

    #[test]
    fn complete_chains_only() {
        let good = line("a;1;_start;__libc_start_main@@GLIBC_2.34;x;main;f;irq_[k] 1");
        assert_eq!(from_entry(&good, "main").unwrap(), ["main", "f"]);
        for bad in [
            "a;1;main;f 1",
            "a;1;_start;f 1",
            "a;1;[stack cut: too deep];main;f 1",
            "a;1;_start;[stack cut: too deep];main;f 1",
            "a;1;_start;a;b;c;d;main;f 1",
        ] {
            assert_eq!(from_entry(&line(bad), "main"), None, "{bad}");
        }
    }

    #[test]
    fn one_in_a_hundred_may_be_wrong_and_no_more() {
        let at = |wrong: u64| {
            let text = format!("a;1;_start;good {}\na;1;bad {wrong}\n", 1000 - wrong);
            check("t", &Folded::parse(&text).unwrap(), 1000, |l| l.has("good"))
        };
        assert!(at(10).is_ok());
        let message = at(11).unwrap_err().to_string();
        assert!(message.contains("a;1;bad 11"), "{message}");
    }

    #[test]
    fn too_few_samples_prove_nothing() {
        let folded = Folded::parse("a;1;_start;good 9\n").unwrap();
        assert!(check("t", &folded, 10, |_| true).is_err());
        assert!(check_reached("t", &Folded::default(), 0.0, |_| true).is_err());
    }
}
