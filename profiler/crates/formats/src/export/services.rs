//! Which service a sample is of.

use aiprof_model::labels;
use aiprof_model::profile::{Profile, Sample};
use std::collections::BTreeSet;

/// Most services of a profile that are named after their units or processes: servers keep a
/// series of each for long, and any user can give both whatever name.
const MAX_NAMES: usize = 200;
/// All services beyond that.
const OTHER: &str = "[other]";

/// Names services where each is a series.
#[derive(Debug, Default)]
pub(super) struct Services {
    names: BTreeSet<String>,
}

impl Services {
    /// As [`name`], with a bound.
    pub(super) fn name(&mut self, profile: &Profile, sample: &Sample) -> String {
        if let Some(name) = given(profile, sample) {
            return name;
        }
        let name = chosen(profile, sample);
        let is_known = self.names.contains(&name);
        if !is_known && self.names.len() >= MAX_NAMES {
            return OTHER.to_owned();
        }
        if !is_known {
            self.names.insert(name.clone());
        }
        name
    }
}

/// What a sample's service is called: its label `service`, else the name of its container,
/// of its systemd unit, of its process.
pub(super) fn name(profile: &Profile, sample: &Sample) -> String {
    given(profile, sample).unwrap_or_else(|| chosen(profile, sample))
}

/// Its name, if whoever runs the machine gave it one.
fn given(profile: &Profile, sample: &Sample) -> Option<String> {
    let label = |key| profile.label(sample, key).filter(|value| !value.is_empty());
    let name = label(labels::SERVICE).or_else(|| label(labels::CONTAINER_NAME))?;
    Some(name.into_owned())
}

/// The name of its unit, else of its process: users choose those of their own.
fn chosen(profile: &Profile, sample: &Sample) -> String {
    let unit = profile.label(sample, labels::UNIT).unwrap_or_default();
    if !unit.is_empty() {
        return unit.strip_suffix(".service").unwrap_or(&unit).to_owned();
    }
    let process = profile.processes.get(sample.process.0 as usize);
    let comm = process.map_or("", |process| profile.str(process.comm));
    // The kernel's threads are many, and have what they do behind a slash.
    let name = comm.split('/').next().unwrap_or_default();
    match name {
        "" => "[unknown]".to_owned(),
        name => name.to_owned(),
    }
}
