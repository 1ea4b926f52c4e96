//! Which of the things that a recording uses work on this machine: probed, not guessed.
//!
//! Every check is a value, so that the text and the JSON of `aiprof doctor` have the same
//! content. Probes ask the kernel for the very thing that a recording asks for and undo it
//! at once; accelerators are looked at from outside and never opened.

mod accelerators;
mod bpf;
mod eu_stall;
mod kernel;
mod perf;
mod permission;
mod runtimes;

pub use accelerators::{Accelerator, DeviceNode};
pub use runtimes::Runtime;

pub use permission::pid_namespace_warning;

use serde::Serialize;

/// Whether something works here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Status {
    /// It works.
    #[serde(rename = "yes")]
    Yes,
    /// It does not work; see [`Check::fallback`] and [`Check::remedy`].
    #[serde(rename = "no")]
    No,
    /// It does not exist or matter on this machine.
    #[serde(rename = "n/a")]
    NotApplicable,
}

impl Status {
    /// The word that the report shows.
    pub fn word(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::NotApplicable => "n/a",
        }
    }
}

impl From<bool> for Status {
    fn from(works: bool) -> Self {
        if works { Self::Yes } else { Self::No }
    }
}

/// The answer to one question. In JSON all fields are present; the names of the
/// fields, areas and checks are stable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Part of the report: `kernel`, `permission`, `bpf`, `perf`, `symbols`, `devices`.
    pub area: &'static str,
    /// Stable name, such as `ring_buffer`.
    pub name: &'static str,
    /// Whether it works.
    pub status: Status,
    /// Whether the main job is impossible without it.
    pub required: bool,
    /// What was found, for people.
    pub detail: String,
    /// What happens instead if it does not work; empty if it does.
    pub fallback: String,
    /// The command or setting that mends it; empty if nothing needs mending.
    pub remedy: String,
}

impl Check {
    /// A check that came out as `status`.
    fn new(
        area: &'static str,
        name: &'static str,
        status: impl Into<Status>,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            area,
            name,
            status: status.into(),
            required: false,
            detail: detail.into(),
            fallback: String::new(),
            remedy: String::new(),
        }
    }

    /// Marks it as one without which the main job is impossible.
    fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// What happens without it, and what mends it; kept only if the answer is no.
    fn otherwise(mut self, fallback: impl Into<String>, remedy: impl Into<String>) -> Self {
        if self.status == Status::No {
            self.fallback = fallback.into();
            self.remedy = remedy.into();
        }
        self
    }
}

/// All answers. In JSON the names of the fields are stable; a change of meaning
/// raises `schema`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of this layout: 1.
    pub schema: u32,
    /// Version of aiprof.
    pub version: &'static str,
    /// Kernel release, as `uname -r` prints it.
    pub kernel: String,
    /// Machine architecture, as `uname -m` prints it.
    pub machine: String,
    /// Whether the main job, sampling the whole machine, can run.
    pub ready: bool,
    /// The answers, by area.
    pub checks: Vec<Check>,
    /// Accelerators on the PCI bus.
    pub accelerators: Vec<Accelerator>,
    /// Device nodes of accelerators.
    pub device_nodes: Vec<DeviceNode>,
    /// Accelerator runtimes installed or in use.
    pub runtimes: Vec<Runtime>,
    /// What to know before recording what was found, for people.
    pub notes: Vec<String>,
}

/// Looks at this machine. Needs no privileges: what they are needed for shows as
/// not working without them.
pub fn examine() -> Report {
    let mut checks = kernel::checks();
    checks.extend(permission::checks());
    checks.extend(bpf::checks());
    checks.extend(perf::checks());
    checks.extend(kernel::symbol_checks());
    let uname = rustix::system::uname();
    let accelerators = accelerators::on_pci_bus();
    checks.push(eu_stall::check(&accelerators));
    let runtimes = runtimes::find();
    Report {
        schema: 1,
        version: env!("CARGO_PKG_VERSION"),
        kernel: uname.release().to_string_lossy().into_owned(),
        machine: uname.machine().to_string_lossy().into_owned(),
        ready: is_ready(&checks),
        checks,
        notes: notes(&accelerators, &runtimes),
        accelerators,
        device_nodes: accelerators::device_nodes(),
        runtimes,
    }
}

/// Whether this machine has AIUs: a look at the PCI bus, nothing else.
pub fn has_aiu() -> bool {
    accelerators::on_pci_bus().iter().any(Accelerator::is_aiu)
}

/// What is special about recording what was found.
fn notes(accelerators: &[Accelerator], runtimes: &[Runtime]) -> Vec<String> {
    let on_bus = accelerators.iter().any(Accelerator::is_aiu);
    let has_runtime = runtimes.iter().any(|r| r.name.starts_with("IBM AIU"));
    let aiu = on_bus || has_runtime;
    let text = format!(
        "AIU: device times are exact only if activity records are enabled; otherwise, they are \
         only known to lie between launch and wait calls; {}",
        aiprof_record::aiu::timing::HINT_COMMAND
    );
    aiu.then_some(text).into_iter().collect()
}

fn is_ready(checks: &[Check]) -> bool {
    checks
        .iter()
        .all(|check| !check.required || check.status == Status::Yes)
}

/// The first `limit` bytes of a file as text; `None` if it cannot be read.
fn read_text(path: impl AsRef<std::path::Path>, limit: u64) -> Option<String> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let file = aiprof_system::files::kernel::open(path).ok()?;
    file.take(limit).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aius_come_with_a_note_about_their_times() {
        assert!(notes(&[], &[]).is_empty());
        let runtime = Runtime {
            name: "IBM AIU runtime (flex)",
            library: "/opt/libflex.so".into(),
            installed: false,
            processes: vec![1],
        };
        let notes = notes(&[], &[runtime]);
        assert!(
            notes.len() == 1 && notes[0].contains("--aiu-timing"),
            "{notes:?}"
        );
    }

    #[test]
    fn the_report_is_complete_on_any_machine() {
        let report = examine();
        assert_eq!(report.ready, is_ready(&report.checks));
        for check in &report.checks {
            assert!(!check.detail.is_empty(), "{check:?}");
            let no = check.status == Status::No;
            // Every "no" shows what happens instead and what mends it.
            assert_eq!(no, !check.fallback.is_empty(), "{check:?}");
            assert_eq!(no, !check.remedy.is_empty(), "{check:?}");
        }
        let mut names: Vec<_> = report.checks.iter().map(|c| (c.area, c.name)).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all, "a name is used twice");
    }

    #[test]
    fn one_required_no_is_enough_to_be_not_ready() {
        let yes = Check::new("a", "yes", true, "").required();
        let optional = Check::new("a", "optional", false, "");
        let required = Check::new("a", "required", false, "").required();
        assert!(is_ready(&[yes.clone(), optional.clone()]));
        assert!(!is_ready(&[yes, optional, required]));
    }

    #[test]
    fn the_fields_of_the_json_are_the_documented_ones() {
        let check = Check::new("bpf", "ring_buffer", false, "d").otherwise("f", "r");
        assert_eq!(
            serde_json::to_value(&check).unwrap(),
            serde_json::json!({
                "area": "bpf", "name": "ring_buffer", "status": "no", "required": false,
                "detail": "d", "fallback": "f", "remedy": "r",
            })
        );
        let status = serde_json::to_value(Status::NotApplicable).unwrap();
        assert_eq!(status, "n/a");
    }
}
