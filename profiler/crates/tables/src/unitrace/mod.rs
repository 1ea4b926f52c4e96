//! The tables of Intel's unitrace: host calls, what devices executed, how long work waited,
//! and what kernels are made of.
//!
//! Host calls are exact. Device times are exact where a trace has them, or where the program read
//! them itself; of all other work it is only known between which calls it was done. Such times are
//! upper bounds, and every table marks the rows that have them.

mod args;
pub mod categories;
mod command;
pub mod device;
pub mod host;
pub mod lines;
pub mod properties;
mod scope;
pub mod submission;
#[cfg(test)]
mod tests;

pub use scope::{NameChoice, Scope};

use aiprof_model::timeline::{Event, Time, Timeline};
use std::borrow::Cow;

/// The column that shows how well the times of a row are known.
pub const QUALITY: &str = "quality";
/// All times of the row are the device's own.
const EXACT: &str = "exact";
/// The times of the row are upper bounds.
pub const AT_MOST: &str = "at most";

/// Categories of host calls in other tools' traces, and what unitrace would call their
/// source.
const RUNTIMES: [(&str, &str); 10] = [
    ("cuda_runtime", "CUDA"),
    ("cuda_driver", "CUDA"),
    ("hip_runtime", "HIP"),
    ("hip_driver", "HIP"),
    ("xpu_runtime", "XPU"),
    ("xpu_driver", "XPU"),
    ("mtia_runtime", "MTIA"),
    ("privateuse1_runtime", "PrivateUse1"),
    ("privateuse1_driver", "PrivateUse1"),
    ("runtime", "CUDA"),
];

/// What unitrace calls an API.
pub fn backend(api: &str) -> &str {
    match api {
        "Level Zero" => "L0",
        "OpenCL" => "CL",
        other => other,
    }
}

fn backend_of(api: Cow<'_, str>) -> Cow<'_, str> {
    match api {
        Cow::Borrowed(api) => backend(api).into(),
        Cow::Owned(api) => backend(&api).to_owned().into(),
    }
}

/// The backend that a host call is of; `None`: it is no call of an accelerator's runtime.
fn backend_of_call<'t>(timeline: &'t Timeline, event: &Event) -> Option<Cow<'t, str>> {
    if !event.is_slice() {
        return None;
    }
    let category = timeline.name(event.cat);
    // Drivers fill tables of functions for loaders: nothing that a program asked for.
    let is_of_loader = timeline.name(event.name).ends_with("ProcAddrTable");
    if is_of_device(category) || category == "ioctl" || is_of_loader {
        return None;
    }
    if let Some(api) = text(timeline, event, "api") {
        return Some(backend_of(api));
    }
    let known = RUNTIMES.iter().find(|(name, _)| *name == category);
    if let Some((_, backend)) = known {
        return Some((*backend).into());
    }
    // unitrace's own traces.
    let is_call = |prefix: &str| {
        let rest = timeline.name(event.name).strip_prefix(prefix);
        rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
    };
    match category {
        "cpu_op" if is_call("ze") || is_call("zet") || is_call("zex") => Some("L0".into()),
        "cpu_op" if is_call("cl") => Some("CL".into()),
        _ => None,
    }
}

/// Whether events of a category are what a device did, or may have done.
fn is_of_device(category: &str) -> bool {
    matches!(
        category,
        "kernel" | "gpu_memcpy" | "gpu_memset" | "gpu_barrier" | "gpu_op" | "estimated"
    )
}

/// A text among an event's arguments.
fn text<'t>(timeline: &'t Timeline, event: &Event, key: &str) -> Option<Cow<'t, str>> {
    plain(timeline.arg(event, key)?)
}

/// The text that JSON is; `None`: it is something else.
fn plain(json: &str) -> Option<Cow<'_, str>> {
    let plain = json
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    match plain? {
        text if text.contains('\\') => serde_json::from_str(json).ok().map(Cow::Owned),
        text => Some(text.into()),
    }
}

/// Nanoseconds from the first to the last of what a process did.
#[derive(Clone, Copy, Debug, Default)]
struct Extent(Option<(Time, Time)>);

impl Extent {
    fn add(&mut self, event: &Event) {
        let (start, end) = (event.start, event.end());
        if start.is_edge() {
            return;
        }
        self.0 = Some(match self.0 {
            None => (start, end),
            Some((first, last)) => (first.min(start), last.max(end)),
        });
    }

    fn ns(self) -> u64 {
        let length = self.0.map_or(0, |(first, last)| (last - first).nanos());
        u64::try_from(length).unwrap_or(0)
    }
}

/// Whether a table wants all commands of devices, barriers too: then a capture is read so.
pub fn wants_commands(table: &str) -> bool {
    [
        device::NAME,
        device::SHAPES,
        properties::NAME,
        submission::NAME,
        categories::NAME,
        categories::SUMMARY,
    ]
    .contains(&table)
}

/// Where a backend stands: as in unitrace, the others behind.
fn order_of(backend: &str) -> (usize, &str) {
    let known = ["L0", "CL CPU", "CL GPU", "CL"];
    let place = known.iter().position(|name| *name == backend);
    (place.unwrap_or(known.len()), backend)
}

/// A share as unitrace computes it, with numbers of 32 bits.
fn percent(part: u64, of: u64) -> f64 {
    match of {
        0 => 0.0,
        of => f64::from(100.0 * part as f32 / of as f32),
    }
}
