//! Which processes a profile of CPUs and devices shows: one rule for flame graphs, folded
//! stacks and pprof.

use super::{ExportOptions, Shown, text};
use aiprof_model::profile::{Profile, Sample};
use rustc_hash::FxHashSet;

/// The processes of a profile that has samples of devices and of CPUs.
///
/// Beside a whole machine, what devices did is a sliver: such a profile is about the
/// programs that gave them work.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    /// Ids of the processes that launched work; `None`: all are shown.
    launchers: Option<FxHashSet<u32>>,
    /// On-CPU nanoseconds that are shown, and of others.
    shown_ns: u64,
    others_ns: u64,
    /// How many others there are.
    others: usize,
}

impl Chosen {
    /// The choice for what is written with these options.
    pub(super) fn of(profile: &Profile, options: &ExportOptions) -> Self {
        if options.all_processes || options.shown != Shown::All {
            return Self::default();
        }
        // Process 0 is the one of samples without a launch.
        let launchers: FxHashSet<u32> = profile
            .samples
            .iter()
            .filter(|sample| sample.device.is_some())
            .map(|sample| pid(profile, sample))
            .filter(|&pid| pid != 0)
            .collect();
        if launchers.is_empty() {
            return Self::default();
        }
        let mut chosen = Self::default();
        let mut others = FxHashSet::default();
        for sample in profile.samples.iter().filter(|s| s.device.is_none()) {
            let pid = pid(profile, sample);
            let sum = match launchers.contains(&pid) {
                true => &mut chosen.shown_ns,
                false => {
                    others.insert(pid);
                    &mut chosen.others_ns
                }
            };
            *sum = sum.saturating_add(sample.time_ns);
        }
        chosen.others = others.len();
        chosen.launchers = Some(launchers);
        chosen
    }

    /// Whether a sample is shown.
    pub(super) fn includes(&self, profile: &Profile, sample: &Sample) -> bool {
        let launchers = self.launchers.as_ref();
        sample.device.is_some() || launchers.is_none_or(|all| all.contains(&pid(profile, sample)))
    }

    /// What is not shown, and how to see it.
    pub(super) fn line(&self) -> Option<String> {
        let launchers = self.launchers.as_ref().filter(|_| self.others > 0)?;
        let processes = |n: usize| match n {
            1 => "1 process".to_owned(),
            n => format!("{} processes", text::grouped(n as u64)),
        };
        Some(format!(
            "shown: {} that launched work, {} on CPU; not shown: {}, {} on CPU (--all-processes \
             shows all)",
            processes(launchers.len()),
            text::duration(self.shown_ns),
            processes(self.others),
            text::duration(self.others_ns)
        ))
    }
}

/// What a flame graph, folded stacks or pprof with these options do not show, and how to see
/// it; `None`: they show all.
pub fn processes_left_out(profile: &Profile, options: &ExportOptions) -> Option<String> {
    Chosen::of(profile, options).line()
}

fn pid(profile: &Profile, sample: &Sample) -> u32 {
    let process = profile.processes.get(sample.process.0 as usize);
    process.map_or(0, |process| process.pid)
}
