//! The short text for a terminal, of launches: kernels, functions, processes.

use super::summary::{SummaryOptions, SummaryPage};
use super::{ExportError, names, text};
use aiprof_model::profile::{FrameKind, Profile, Sample};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::io::Write;

/// Launches, the time in calls, and bytes.
#[derive(Clone, Copy, Default)]
struct Sum {
    launches: u64,
    time_ns: u64,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, sample: &Sample) {
        self.launches = self.launches.saturating_add(sample.count);
        self.time_ns = self.time_ns.saturating_add(sample.time_ns);
        self.bytes = self.bytes.saturating_add(sample.bytes);
    }
}

/// Writes the summary of a profile of launches.
///
/// # Errors
///
/// [`ExportError::Io`] when `out` fails.
pub(super) fn write(
    profile: &Profile,
    options: &SummaryOptions,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let mut page = SummaryPage {
        options,
        total_ns: profile.total_time_ns(),
        show: text::duration,
        text: String::new(),
    };
    page.heading(&text::title(profile));
    page.line(&text::description(profile));
    if profile.submissions > 0 {
        let count = text::grouped(profile.submissions);
        page.line(&format!("{count} submissions to device queues"));
    }
    if profile.samples.is_empty() {
        page.line("No launches and no calls were recorded.");
    } else {
        table(&mut page, "Kernels and copies", &sums(profile, work));
        table(&mut page, "Functions called", &sums(profile, function));
        table(&mut page, "Processes", &sums(profile, process));
    }
    page.losses(profile);
    out.write_all(page.text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Sums by what `of` makes of a sample, most launches first.
fn sums(profile: &Profile, of: fn(&Profile, &Sample) -> Option<String>) -> Vec<(String, Sum)> {
    let mut sums: FxHashMap<String, Sum> = FxHashMap::default();
    for sample in &profile.samples {
        if let Some(name) = of(profile, sample) {
            sums.entry(name).or_default().add(sample);
        }
    }
    let mut rows: Vec<_> = sums.into_iter().collect();
    rows.sort_by(|(a, x), (b, y)| {
        let rank = |sum: &Sum| (Reverse(sum.launches), Reverse(sum.time_ns));
        rank(x).cmp(&rank(y)).then_with(|| a.cmp(b))
    });
    rows
}

/// The kernel or the operation.
fn work(profile: &Profile, sample: &Sample) -> Option<String> {
    let leaf = profile.stack_frames(sample.stack).last()?;
    let is_work = leaf.kind == FrameKind::DeviceSoftware;
    is_work.then(|| names::clean(profile.str(leaf.name)))
}

/// The function that the program called: the innermost frame of the host that is not the
/// driver's.
fn function(profile: &Profile, sample: &Sample) -> Option<String> {
    let stack = profile.stacks.get(sample.stack.0 as usize)?;
    // The work and the mark before it.
    let device = if work(profile, sample).is_some() {
        2
    } else {
        0
    };
    let below = device + stack.driver as usize;
    let at = stack.locations.len().checked_sub(below + 1)?;
    let location = profile.locations.get(stack.locations.get(at)?.0 as usize)?;
    let frame = profile.frames.get(location.frames.last()?.0 as usize)?;
    Some(names::clean(profile.str(frame.name)))
}

fn process(profile: &Profile, sample: &Sample) -> Option<String> {
    let process = profile.processes.get(sample.process.0 as usize)?;
    let name = names::clean(profile.str(process.comm));
    Some(format!("{name} ({})", process.pid))
}

fn table(page: &mut SummaryPage<'_>, heading: &str, rows: &[(String, Sum)]) {
    let heads = "    launches   time in calls        moved  name";
    page.table(heading, heads, rows, |page, (name, sum)| {
        format!(
            "  {:>10}  {:>14}  {:>11}  {}",
            text::grouped(sum.launches),
            text::duration(sum.time_ns),
            text::bytes(sum.bytes),
            page.name(name, 44),
        )
    });
}
