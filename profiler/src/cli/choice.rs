//! Options that choose processes by name, user and container, kernels by name, and labels.

use super::usage_error;
use super::values::{grouped, plural};
use aiprof_model::labels::{MAX_KEY, MAX_VALUE, RESERVED};
use aiprof_model::visible;
use aiprof_record::choice::{NamePattern, ProcessChoice, UserChoice, is_container};
use aiprof_record::kernel_choice::{KernelChoice, KernelsLeftOut, NameTexts};
use aiprof_system::os::users::Users;
use anyhow::Result;

/// Most containers that an error names.
const MAX_NAMED: usize = 5;
/// How much of a container's id is shown.
const SHORT_ID: usize = 12;

/// Which processes a profile is of, besides those that `--pid` and `--cgroup` choose.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ChoiceArgs {
    /// Only processes whose name matches (repeatable)
    ///
    /// The name is the one that `ps -o comm` prints, with at most 15 characters. REGEX may match
    /// anywhere in the name: '^python' matches names that begin with python. Processes that
    /// start during the recording are matched too.
    #[arg(long, value_name = "REGEX", hide_short_help = true, value_parser = NamePattern::new)]
    comm: Vec<NamePattern>,

    /// Leave out processes whose name matches (repeatable)
    #[arg(long, value_name = "REGEX", hide_short_help = true, value_parser = NamePattern::new)]
    exclude: Vec<NamePattern>,

    /// Only processes of this user (repeatable)
    #[arg(long, value_name = "NAME|UID", hide_short_help = true)]
    user: Vec<String>,

    /// Only processes in this container (repeatable)
    ///
    /// ID is a container ID, or its first characters, as `docker ps`, `podman ps` and
    /// `crictl ps` print it. For LXC, Incus and systemd-nspawn, use the container's name.
    #[arg(long, value_name = "ID|NAME", hide_short_help = true)]
    container: Vec<String>,
}

impl ChoiceArgs {
    /// Whether each of these options was given.
    pub(crate) fn given(&self) -> [(&'static str, bool); 4] {
        [
            ("--comm", !self.comm.is_empty()),
            ("--exclude", !self.exclude.is_empty()),
            ("--user", !self.user.is_empty()),
            ("--container", !self.container.is_empty()),
        ]
    }

    /// The choice among the processes of this machine, on which these containers run.
    ///
    /// # Errors
    /// No such user or container.
    pub(crate) fn of_this_machine(
        &self,
        containers: impl FnOnce() -> Vec<String>,
    ) -> Result<ProcessChoice> {
        let choice = self.of_a_recording();
        for user in &choice.users {
            if user.uid.is_none() {
                return Err(usage_error(format!(
                    "--user {0}: no such user in /etc/passwd: give the number that `id -u {0}` \
                     prints on a machine that knows this user",
                    visible::one_line(&user.text)
                )));
            }
        }
        if !choice.containers.is_empty() {
            let running = containers();
            for wanted in &choice.containers {
                if !running.iter().any(|id| is_container(wanted, id)) {
                    return Err(usage_error(no_container(wanted, &running)));
                }
            }
        }
        Ok(choice)
    }

    /// The choice among the processes of a recording, which may be of another machine.
    pub(crate) fn of_a_recording(&self) -> ProcessChoice {
        let users = (!self.user.is_empty()).then(Users::read);
        let user = |text: &String| UserChoice {
            text: text.clone(),
            uid: users.as_ref().and_then(|users| users.number(text)),
        };
        ProcessChoice {
            comm: self.comm.clone(),
            exclude: self.exclude.clone(),
            users: self.user.iter().map(user).collect(),
            containers: self.container.clone(),
        }
    }
}

/// Which device kernels a profile is of.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct KernelArgs {
    /// Keep only device kernels with one of these strings in their name (repeatable)
    ///
    /// LIST is separated by commas. Put a string that contains a comma in double quotes:
    /// 'gemm,"conv<2, 3>"'. Case matters. For copies and fills, use the names that profiles show.
    #[arg(long, value_name = "LIST", hide_short_help = true, value_parser = NameTexts::parse)]
    include_kernels: Vec<NameTexts>,

    /// Drop device kernels with one of these strings in their name (repeatable)
    ///
    /// LIST has the same syntax as for --include-kernels, which is applied first.
    #[arg(long, value_name = "LIST", hide_short_help = true, value_parser = NameTexts::parse)]
    exclude_kernels: Vec<NameTexts>,
}

impl KernelArgs {
    /// Whether each of these options was given.
    pub(crate) fn given(&self) -> [(&'static str, bool); 2] {
        [
            ("--include-kernels", !self.include_kernels.is_empty()),
            ("--exclude-kernels", !self.exclude_kernels.is_empty()),
        ]
    }

    /// The choice.
    pub(crate) fn choice(&self) -> KernelChoice {
        KernelChoice::new(&self.include_kernels, &self.exclude_kernels)
    }
}

/// What was left out by a choice of kernels, for people.
pub(crate) fn kernels_left_out(out: &KernelsLeftOut) -> String {
    if out.count == 0 && out.none_left {
        return "no launches or device samples were recorded: --include-kernels and \
                --exclude-kernels had no effect"
            .to_owned();
    }
    let kernels = out.kernels.len();
    let mut line = format!(
        "{} launches or device samples of {} kernel{} left out \
         (--include-kernels, --exclude-kernels)",
        grouped(out.count),
        grouped(kernels as u64),
        plural(kernels)
    );
    if out.none_left {
        line.push_str(": no name of a kernel matches");
    }
    line
}

/// That a container does not run here, and which do.
fn no_container(wanted: &str, running: &[String]) -> String {
    let wanted = visible::one_line(wanted);
    let shown = running.iter().take(MAX_NAMED).map(|id| {
        let short = match id.len() {
            64 => id.get(..SHORT_ID).unwrap_or(id),
            _ => id,
        };
        visible::one_line(short)
    });
    let shown: Vec<String> = shown.collect();
    let more = match running.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    match shown.is_empty() {
        true => format!(
            "--container {wanted}: no running process belongs to a known container; \
             `cat /proc/PID/cgroup` shows the cgroup of a process, which --cgroup accepts"
        ),
        false => format!(
            "--container {wanted}: no running process belongs to it; running containers: \
             {}{more}; `docker ps`, `podman ps` or `crictl ps` prints their names",
            shown.join(", ")
        ),
    }
}

/// Parses a label, `KEY=VALUE`.
///
/// # Errors
/// What it must look like.
pub(crate) fn parse_label(text: &str) -> Result<(String, String), String> {
    let Some((key, value)) = text.split_once('=') else {
        return Err("expected KEY=VALUE, such as job=nightly".to_owned());
    };
    check_key(key)?;
    if RESERVED.contains(&key) {
        return Err(format!(
            "{key} is reserved: choose another key, such as my_{key}"
        ));
    }
    if value.is_empty() || value.len() > MAX_VALUE || value.chars().any(visible::is_unsafe) {
        return Err(format!(
            "a value must have 1 to {MAX_VALUE} bytes and no control characters"
        ));
    }
    Ok((key.to_owned(), value.to_owned()))
}

/// Parses the key of a label.
///
/// # Errors
/// What it must look like.
pub(crate) fn parse_key(text: &str) -> Result<String, String> {
    check_key(text)?;
    Ok(text.to_owned())
}

fn check_key(key: &str) -> Result<(), String> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
    match (1..=MAX_KEY).contains(&key.len()) && key.chars().all(is_fine) {
        true => Ok(()),
        false => Err(format!(
            "a key must have 1 to {MAX_KEY} of the characters a-z A-Z 0-9 _ - . /"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_keys_and_values() {
        let pair = |key: &str, value: &str| Ok((key.to_owned(), value.to_owned()));
        assert_eq!(parse_label("job=nightly"), pair("job", "nightly"));
        assert_eq!(
            parse_label("app.k8s.io/name=a=b c"),
            pair("app.k8s.io/name", "a=b c")
        );
        for bad in [
            "job",
            "=x",
            "job=",
            "a b=x",
            "job=\u{202e}",
            "é=x",
            &format!("{}=x", "k".repeat(64)),
        ] {
            assert!(parse_label(bad).is_err(), "{bad}");
        }
        let reserved = parse_label("pid=3").unwrap_err();
        assert!(reserved.contains("my_pid"), "{reserved}");
        assert!(parse_key("container").is_ok() && parse_key("a;b").is_err());
    }

    #[test]
    fn a_container_that_does_not_run_is_told_with_those_that_do() {
        let ids: Vec<String> = (0..7).map(|n| format!("{n}").repeat(64)).collect();
        let text = no_container("web", &ids);
        assert!(
            text.contains("000000000000, 111111111111") && text.contains("and 2 more"),
            "{text}"
        );
        assert!(no_container("web", &[]).contains("--cgroup"));
    }
}
