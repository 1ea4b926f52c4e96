//! Which binary is the profile's program: viewers show the first mapping's name.

use aiprof_model::process::without_mark;
use aiprof_model::profile::{BinaryId, Profile, Sample};
use rustc_hash::FxHashMap;

/// Bytes of a process's name (`TASK_COMM_LEN` less the zero at its end).
const MAX_COMM: usize = 15;

/// The program of the process that used the most time in some samples: the binary of the process's
/// name, else that in which the stacks of its first thread begin. `None`: neither is known.
pub(super) fn find(profile: &Profile, samples: &[&Sample]) -> Option<BinaryId> {
    let samples = || samples.iter().filter(|sample| sample.device.is_none());
    let mut times: FxHashMap<u32, u64> = FxHashMap::default();
    for sample in samples() {
        let time = times.entry(sample.process.0).or_default();
        *time = time.saturating_add(sample.time_ns.max(sample.count));
    }
    // The first one of equal ones, so that the result depends on the profile alone.
    let most = times
        .iter()
        .max_by_key(|(id, time)| (**time, u32::MAX - **id));
    let (&id, _) = most?;
    let process = profile.processes.get(id as usize)?;
    let comm = profile.str(process.comm);
    let named = profile.binaries.iter().position(|binary| {
        let name = base_name(&binary.path);
        let short = name.get(..name.floor_char_boundary(MAX_COMM));
        !comm.is_empty() && short == Some(comm)
    });
    let first_thread = samples().filter(|s| s.process.0 == id && s.tid == process.pid);
    match named {
        Some(index) => u32::try_from(index).ok().map(BinaryId),
        None => first_thread.filter_map(|s| outermost(profile, s)).next(),
    }
}

/// The file that a sample's stack begins in.
fn outermost(profile: &Profile, sample: &Sample) -> Option<BinaryId> {
    let stack = profile.stacks.get(sample.stack.0 as usize)?;
    let location = profile.locations.get(stack.locations.first()?.0 as usize)?;
    location.binary.filter(|id| {
        let binary = profile.binaries.get(id.0 as usize);
        binary.is_some_and(|binary| binary.path.starts_with('/'))
    })
}

fn base_name(path: &str) -> &str {
    let path = without_mark(path);
    path.rsplit('/').next().unwrap_or(path)
}
