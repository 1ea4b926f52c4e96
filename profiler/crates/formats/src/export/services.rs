//! Which service a sample is of.

use aiprof_model::labels;
use aiprof_model::profile::{Profile, Sample};

/// What a sample's service is called: its label `service`, else the name of its container,
/// of its systemd unit, of its process.
pub(super) fn name(profile: &Profile, sample: &Sample) -> String {
    let label = |key| profile.label(sample, key).filter(|value| !value.is_empty());
    if let Some(name) = label(labels::SERVICE).or_else(|| label(labels::CONTAINER_NAME)) {
        return name.into_owned();
    }
    if let Some(unit) = label(labels::UNIT) {
        let name = unit.strip_suffix(".service").unwrap_or(&unit);
        return name.to_owned();
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
