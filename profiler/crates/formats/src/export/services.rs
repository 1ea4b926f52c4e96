//! Which service a sample is of.

use aiprof_model::labels;
use aiprof_model::profile::{Profile, Sample};
use std::collections::BTreeSet;

/// Most services of a profile that are named after their processes: servers keep a series of
/// each for long, and any user can call processes what he likes.
const MAX_PROCESSES: usize = 200;
/// All services beyond that.
const OTHER: &str = "[other]";

/// Names services where each is a series.
#[derive(Debug, Default)]
pub(super) struct Services {
    of_processes: BTreeSet<String>,
}

impl Services {
    /// As [`name`], with a bound.
    pub(super) fn name(&mut self, profile: &Profile, sample: &Sample) -> String {
        if let Some(name) = given(profile, sample) {
            return name;
        }
        let name = of_process(profile, sample);
        let is_known = self.of_processes.contains(&name);
        if !is_known && self.of_processes.len() >= MAX_PROCESSES {
            return OTHER.to_owned();
        }
        if !is_known {
            self.of_processes.insert(name.clone());
        }
        name
    }
}

/// What a sample's service is called: its label `service`, else the name of its container,
/// of its systemd unit, of its process.
pub(super) fn name(profile: &Profile, sample: &Sample) -> String {
    given(profile, sample).unwrap_or_else(|| of_process(profile, sample))
}

/// Its name, if whoever runs the machine gave it one.
fn given(profile: &Profile, sample: &Sample) -> Option<String> {
    let label = |key| profile.label(sample, key).filter(|value| !value.is_empty());
    if let Some(name) = label(labels::SERVICE).or_else(|| label(labels::CONTAINER_NAME)) {
        return Some(name.into_owned());
    }
    let unit = label(labels::UNIT)?;
    Some(unit.strip_suffix(".service").unwrap_or(&unit).to_owned())
}

fn of_process(profile: &Profile, sample: &Sample) -> String {
    let process = profile.processes.get(sample.process.0 as usize);
    let comm = process.map_or("", |process| profile.str(process.comm));
    // The kernel's threads are many, and have what they do behind a slash.
    let name = comm.split('/').next().unwrap_or_default();
    match name {
        "" => "[unknown]".to_owned(),
        name => name.to_owned(),
    }
}
