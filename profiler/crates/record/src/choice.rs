//! Which processes a profile is of, by name, user and container: while recording, and
//! of a finished profile.

use aiprof_model::{
    labels::{self, CgroupLabels},
    profile::{Profile, Sample},
};
use regex::{Regex, RegexBuilder};

/// Most memory of a compiled pattern, in bytes: names have 15.
const MAX_PATTERN: usize = 1 << 20;

/// A regular expression for names of processes; it may match anywhere in the name.
#[derive(Clone, Debug)]
pub struct NamePattern(Regex);

impl NamePattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// What is wrong with it, in one line.
    pub fn new(text: &str) -> Result<Self, String> {
        let pattern = RegexBuilder::new(text).size_limit(MAX_PATTERN).build();
        pattern.map(Self).map_err(|error| {
            let error = error.to_string();
            let last = error.lines().last().unwrap_or_default();
            let why = last.strip_prefix("error: ").unwrap_or(last);
            format!(
                "{why}: expected a regular expression; write \\ before a literal . * + ? ( ) \
                 [ {{ ^ $ |"
            )
        })
    }
}

impl PartialEq for NamePattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for NamePattern {}

/// A user, by name or number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserChoice {
    /// As it was given.
    pub text: String,
    /// The number, where it is known.
    pub uid: Option<u32>,
}

/// Which processes are wanted; the default is all. A process must satisfy each kind of
/// condition, and of several of one kind any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessChoice {
    /// Its name must match one of these; empty: any.
    pub comm: Vec<NamePattern>,
    /// Its name must match none of these.
    pub exclude: Vec<NamePattern>,
    /// It must be of one of these users; empty: any.
    pub users: Vec<UserChoice>,
    /// It must be in one of these containers, by name or the begin of the id; empty: in
    /// any or none.
    pub containers: Vec<String>,
}

impl ProcessChoice {
    /// Whether all processes are wanted.
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a process of this name may be wanted.
    pub fn wants_name(&self, comm: &str) -> bool {
        let matches = |patterns: &[NamePattern]| patterns.iter().any(|p| p.0.is_match(comm));
        (self.comm.is_empty() || matches(&self.comm)) && !matches(&self.exclude)
    }

    /// Whether a process of this user may be wanted; `None`: it is not known.
    pub fn wants_user(&self, uid: Option<u32>) -> bool {
        let is_one = |user: &UserChoice| uid.is_some() && user.uid == uid;
        self.users.is_empty() || self.users.iter().any(is_one)
    }

    /// Whether a process in this container may be wanted; `None`: in none.
    fn wants_container(&self, container: Option<&str>) -> bool {
        let is_one = |wanted: &String| container.is_some_and(|id| is_container(wanted, id));
        self.containers.is_empty() || self.containers.iter().any(is_one)
    }

    /// Whether a process in a control group may be wanted.
    pub fn wants_cgroup(&self, path: &str) -> bool {
        self.wants_container(CgroupLabels::of(path).container)
    }

    /// What is wanted, in words that follow "processes"; empty: all.
    pub fn describe(&self) -> String {
        let join = |texts: Vec<&str>| texts.join(" or ");
        let patterns = |patterns: &[NamePattern]| {
            let quoted: Vec<String> = patterns.iter().map(|p| format!("/{}/", p.0)).collect();
            quoted.join(" or ")
        };
        let mut parts = Vec::new();
        if !self.comm.is_empty() {
            parts.push(format!("named {}", patterns(&self.comm)));
        }
        if !self.exclude.is_empty() {
            parts.push(format!("not named {}", patterns(&self.exclude)));
        }
        if !self.users.is_empty() {
            let users = self.users.iter().map(|user| user.text.as_str());
            parts.push(format!("of user {}", join(users.collect())));
        }
        if !self.containers.is_empty() {
            let containers = self.containers.iter().map(String::as_str);
            parts.push(format!("in container {}", join(containers.collect())));
        }
        parts.join(" ")
    }

    /// Leaves out of a profile the samples of other processes, and notes it in its scope. Returns
    /// whether any is left.
    pub fn keep(&self, profile: &mut Profile) -> bool {
        if self.is_all() {
            return true;
        }
        let samples = std::mem::take(&mut profile.samples);
        let samples = samples.into_iter();
        profile.samples = samples
            .filter(|sample| self.wants(profile, sample))
            .collect();
        let what = format!("processes {}", self.describe());
        let scope = &mut profile.meta.scope;
        *scope = match scope.is_empty() {
            true => what,
            false => format!("{scope}, only {what}"),
        };
        !profile.samples.is_empty()
    }

    fn wants(&self, profile: &Profile, sample: &Sample) -> bool {
        let process = profile.processes.get(sample.process.0 as usize);
        let name = process.map_or("", |process| profile.str(process.comm));
        let label = |key| profile.label(sample, key);
        let uid = || label(labels::UID)?.parse().ok();
        let is_named = |user: &UserChoice| label(labels::USER).is_some_and(|own| own == user.text);
        let user = || self.wants_user(uid()) || self.users.iter().any(is_named);
        self.wants_name(name)
            && (self.users.is_empty() || user())
            && (self.containers.is_empty()
                || self.wants_container(label(labels::CONTAINER).as_deref()))
    }
}

/// Whether a container is the one that was named: by its name, or the begin of its id.
pub fn is_container(wanted: &str, container: &str) -> bool {
    let is_id = container.len() == 64 && container.bytes().all(|c| c.is_ascii_hexdigit());
    match is_id {
        true => !wanted.is_empty() && container.starts_with(wanted),
        false => container == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aiprof_model::profile::{Meta, ProfileBuilder, Stack};

    fn choice(comm: &[&str], exclude: &[&str]) -> ProcessChoice {
        let patterns = |texts: &[&str]| {
            let patterns = texts.iter().map(|text| NamePattern::new(text));
            patterns.collect::<Result<_, _>>().unwrap()
        };
        ProcessChoice {
            comm: patterns(comm),
            exclude: patterns(exclude),
            ..ProcessChoice::default()
        }
    }

    #[test]
    fn names_users_and_containers_are_chosen() {
        let named = choice(&["^py", "ruby$"], &["3.11"]);
        for (name, wanted) in [
            ("python3", true),
            ("jruby", true),
            ("rubyx", false),
            ("python3.11", false),
        ] {
            assert_eq!(named.wants_name(name), wanted, "{name}");
        }
        assert_eq!(named.describe(), "named /^py/ or /ruby$/ not named /3.11/");
        let id = "0123456789abcdef".repeat(4);
        let others = ProcessChoice {
            users: vec![UserChoice {
                text: "bob".into(),
                uid: Some(1000),
            }],
            containers: vec!["0123".into(), "web".into()],
            ..ProcessChoice::default()
        };
        assert!(
            others.wants_user(Some(1000))
                && !others.wants_user(Some(0))
                && !others.wants_user(None)
        );
        assert!(
            others.wants_cgroup(&format!("/docker/{id}"))
                && others.wants_cgroup("/lxc.payload.web")
        );
        assert!(!others.wants_cgroup("/lxc.payload.web2") && !others.wants_cgroup("/user.slice"));
        assert_eq!(others.describe(), "of user bob in container 0123 or web");
        assert!(ProcessChoice::default().is_all() && ProcessChoice::default().wants_user(None));
    }

    #[test]
    fn a_bad_pattern_says_why_in_one_line() {
        for bad in ["[", "(a", "*", "(a{1000}){1000}"] {
            let error = NamePattern::new(bad).unwrap_err();
            assert!(
                error.contains("regular expression") && !error.contains('\n'),
                "{error}"
            );
        }
    }

    #[test]
    fn a_finished_profile_is_thinned() {
        let mut builder = ProfileBuilder::new(Meta::default());
        for (pid, comm, uid, user) in [(1, "python3", "0", "root"), (2, "sshd", "1000", "bob")] {
            let labels = [("uid", uid), ("user", user)];
            let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
            let sample = Sample {
                process: builder.labelled_process(pid, comm, &labels),
                tid: pid,
                thread: builder.string(comm),
                cgroup: None,
                stack: builder.stack(Stack::default()),
                count: 1,
                time_ns: 1,
                bytes: 0,
                device: None,
            };
            builder.sample(sample);
        }
        let profile = builder.finish();
        let left = |choice: &ProcessChoice| {
            let mut profile = profile.clone();
            let some = choice.keep(&mut profile);
            assert_eq!(some, !profile.samples.is_empty());
            let tids: Vec<u32> = profile.samples.iter().map(|s| s.tid).collect();
            (tids, profile.meta.scope)
        };
        assert_eq!(
            left(&choice(&["py"], &[])),
            (vec![1], "processes named /py/".into())
        );
        assert_eq!(left(&choice(&[], &["py"])).0, [2]);
        assert!(left(&choice(&["ruby"], &[])).0.is_empty());
        let user = |text: &str, uid| ProcessChoice {
            users: vec![UserChoice {
                text: text.into(),
                uid,
            }],
            ..ProcessChoice::default()
        };
        assert_eq!(left(&user("bob", None)).0, [2]);
        assert_eq!(left(&user("0", Some(0))).0, [1]);
        assert_eq!(left(&ProcessChoice::default()), (vec![1, 2], String::new()));
    }
}
