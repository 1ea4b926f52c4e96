//! The short text for a terminal: totals, hottest functions, processes, device
//! kernels, losses.

mod folded;

pub use folded::write_folded;

use super::device::DeviceTotals;
use super::{ExportError, ExportOptions, Shown, device_kernels, launches, names, text};
use aiprof_model::profile::{FrameId, FrameKind, Profile, Sample, Values};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::fmt::Write as _;
use std::io::Write;

/// How to lay out a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SummaryOptions {
    /// Width of the terminal in characters. Below 40 lines get longer than it.
    pub width: usize,
    /// Rows per table.
    pub rows: usize,
    /// Whether to use ANSI colours.
    pub color: bool,
    /// Which samples have tables.
    pub shown: Shown,
}

impl Default for SummaryOptions {
    fn default() -> Self {
        Self {
            width: 80,
            rows: 15,
            color: false,
            shown: Shown::All,
        }
    }
}

impl From<&ExportOptions> for SummaryOptions {
    fn from(options: &ExportOptions) -> Self {
        Self {
            width: options.width,
            color: options.color,
            shown: options.shown,
            ..Self::default()
        }
    }
}

/// Writes the summary of a profile. Times of functions and processes are on-CPU time,
/// those of device kernels busy time of devices.
///
/// *Self* is time in the function itself, *total* includes what it called; a
/// recursive function counts once per stack. Inlined functions count as
/// functions. Functions that only pass their time on to one other are left out of the
/// table of totals: it begins where the profile branches.
///
/// # Errors
///
/// [`ExportError::Io`] when `out` fails.
pub fn write(
    profile: &Profile,
    options: &SummaryOptions,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    if profile.values == Values::Launches {
        return launches::write(profile, options, out);
    }
    let mut page = SummaryPage {
        options,
        total_ns: DeviceTotals::of(profile).cpu_ns,
        show: text::duration,
        text: String::new(),
    };
    page.heading(&text::title(profile));
    page.line(&text::description(profile));
    if profile.samples.is_empty() {
        page.line("No samples were recorded.");
    }
    if options.shown != Shown::Device && cpu_samples(profile).next().is_some() {
        let functions = functions(profile);
        let all: Vec<&FunctionTimes> = functions.iter().collect();
        page.functions("Functions by self time", &all, |f| f.self_ns);
        let branching: Vec<&FunctionTimes> = functions.iter().filter(|f| f.branches()).collect();
        page.functions(
            "Functions by total time, where stacks branch",
            &branching,
            |f| f.total_ns,
        );
        page.processes(&processes(profile));
    }
    if options.shown != Shown::Cpu {
        device_kernels::add(&mut page, profile);
    }
    page.losses(profile);
    out.write_all(page.text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// A function with its times.
struct FunctionTimes {
    name: String,
    self_ns: u64,
    total_ns: u64,
    /// Time that passes through it into the one function that it calls most.
    through_ns: u64,
}

impl FunctionTimes {
    /// Whether it does more than to call one other function. Functions that do not, as
    /// `_start`, `main` and the loops of interpreters, only repeat the time of what they
    /// call.
    fn branches(&self) -> bool {
        text::percent(self.through_ns, self.total_ns) < PASSED_ON
    }
}

/// From this share of its time in one callee on, a function only passes it on, in
/// percent.
const PASSED_ON: f64 = 98.0;

/// A process with its weights.
struct ProcessTotals {
    name: String,
    pid: u32,
    time_ns: u64,
    count: u64,
}

/// On-CPU times of all functions by folded name: the same function of two binaries
/// with one name is one row.
fn functions(profile: &Profile) -> Vec<FunctionTimes> {
    let names = FunctionNames::of(profile);
    let mut times = vec![(0_u64, 0_u64); names.names.len()];
    let mut seen = vec![usize::MAX; names.names.len()];
    let mut calls = CallTimes::default();
    for (i, sample) in cpu_samples(profile).enumerate() {
        let mut leaf = None;
        for frame in frame_ids(profile, sample.stack.0) {
            let Some(&name) = names.of_frame.get(frame.0 as usize) else {
                continue;
            };
            if seen[name] != i {
                seen[name] = i;
                times[name].1 = times[name].1.saturating_add(sample.time_ns);
            }
            if let Some(caller) = leaf {
                calls.add((sample.process.0, caller, name), i, sample.time_ns);
            }
            leaf = Some(name);
        }
        if let Some(name) = leaf {
            times[name].0 = times[name].0.saturating_add(sample.time_ns);
        }
    }
    let through = calls.most(names.names.len());
    let times = times.into_iter().zip(through);
    let function = |(name, ((self_ns, total_ns), through_ns))| FunctionTimes {
        name,
        self_ns,
        total_ns,
        through_ns,
    };
    names.names.into_iter().zip(times).map(function).collect()
}

/// Time by process, caller and callee.
#[derive(Default)]
struct CallTimes {
    /// The sample that was added last, and the sum.
    times: FxHashMap<(u32, usize, usize), (usize, u64)>,
}

impl CallTimes {
    /// Adds a sample's time to a call in its stack, once per sample. A call of itself is
    /// none.
    fn add(&mut self, call: (u32, usize, usize), sample: usize, time_ns: u64) {
        if call.1 == call.2 {
            return;
        }
        let (last, sum) = self.times.entry(call).or_insert((usize::MAX, 0));
        if *last != sample {
            (*last, *sum) = (sample, sum.saturating_add(time_ns));
        }
    }

    /// The most that each of the `functions` gives to one other, by process: `main` of
    /// another process is another function.
    fn most(&self, functions: usize) -> Vec<u64> {
        let mut by_process: FxHashMap<(u32, usize), u64> = FxHashMap::default();
        for (&(process, caller, _), &(_, sum)) in &self.times {
            let most = by_process.entry((process, caller)).or_default();
            *most = sum.max(*most);
        }
        let mut all = vec![0_u64; functions];
        for ((_, caller), most) in by_process {
            if let Some(sum) = all.get_mut(caller) {
                *sum = sum.saturating_add(most);
            }
        }
        all
    }
}

/// Folded names, and which of them each frame has.
#[derive(Default)]
struct FunctionNames {
    names: Vec<String>,
    of_frame: Vec<usize>,
}

impl FunctionNames {
    fn of(profile: &Profile) -> Self {
        let mut all = Self::default();
        let mut index: FxHashMap<String, usize> = FxHashMap::default();
        for frame in &profile.frames {
            // An inlined copy is the same function; only here, where callers do
            // not matter.
            let mut name = names::frame(profile, frame);
            if frame.kind == FrameKind::Inlined
                && let Some(plain) = name.strip_suffix(FrameKind::Inlined.suffix())
            {
                name = plain.to_owned();
            }
            let id = *index.entry(name.clone()).or_insert(all.names.len());
            if id == all.names.len() {
                all.names.push(name);
            }
            all.of_frame.push(id);
        }
        all
    }
}

fn frame_ids(profile: &Profile, stack: u32) -> impl Iterator<Item = FrameId> {
    profile
        .stacks
        .get(stack as usize)
        .into_iter()
        .flat_map(|stack| &stack.locations)
        .filter_map(|id| profile.locations.get(id.0 as usize))
        .flat_map(|location| location.frames.iter().copied())
}

fn cpu_samples(profile: &Profile) -> impl Iterator<Item = &Sample> {
    let samples = profile.samples.iter();
    samples.filter(|sample| sample.device.is_none())
}

/// Processes by on-CPU time, the heaviest first.
fn processes(profile: &Profile) -> Vec<ProcessTotals> {
    let mut weights: FxHashMap<u32, (u64, u64)> = FxHashMap::default();
    for sample in cpu_samples(profile) {
        let (time, count) = weights.entry(sample.process.0).or_default();
        *time = time.saturating_add(sample.time_ns);
        *count = count.saturating_add(sample.count);
    }
    let mut processes: Vec<ProcessTotals> = weights
        .into_iter()
        .map(|(id, (time_ns, count))| {
            let process = profile.processes.get(id as usize);
            ProcessTotals {
                name: names::clean(process.map_or("", |p| profile.str(p.comm))),
                pid: process.map_or(0, |p| p.pid),
                time_ns,
                count,
            }
        })
        .collect();
    processes.sort_by(|a, b| {
        let key = |p: &ProcessTotals| (Reverse(p.time_ns), p.pid);
        key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
    });
    processes
}

/// The text under construction.
pub(super) struct SummaryPage<'a> {
    pub(super) options: &'a SummaryOptions,
    pub(super) total_ns: u64,
    /// How values are written.
    pub(super) show: fn(u64) -> String,
    pub(super) text: String,
}

impl SummaryPage<'_> {
    pub(super) fn heading(&mut self, heading: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        let heading = text::fit(heading, self.width());
        if self.options.color {
            self.text.push_str(&format!("\x1b[1m{heading}\x1b[0m\n"));
        } else {
            self.text.push_str(&heading);
            self.text.push('\n');
        }
    }

    /// A paragraph, broken at `, ` to the width.
    pub(super) fn line(&mut self, paragraph: &str) {
        let mut length = 0;
        for (i, part) in paragraph.split(", ").enumerate() {
            let size = part.chars().count() + 2;
            if i > 0 && length + size > self.width() {
                self.text.push_str(",\n");
                length = 0;
            } else if i > 0 {
                self.text.push_str(", ");
            }
            self.text.push_str(&text::fit(part, self.width()));
            length += size;
        }
        self.text.push('\n');
    }

    pub(super) fn width(&self) -> usize {
        self.options.width.max(40)
    }

    /// A share of the profile's time.
    fn share(&self, ns: u64) -> String {
        let share = format!("{:5.1}%", text::percent(ns, self.total_ns));
        match text::percent(ns, self.total_ns) {
            p if self.options.color && p >= 10.0 => format!("\x1b[31m{share}\x1b[0m"),
            p if self.options.color && p >= 1.0 => format!("\x1b[33m{share}\x1b[0m"),
            _ => share,
        }
    }

    fn functions(
        &mut self,
        heading: &str,
        functions: &[&FunctionTimes],
        key: fn(&FunctionTimes) -> u64,
    ) {
        let shown = functions.iter().copied().filter(|f| key(f) > 0);
        let mut order: Vec<&FunctionTimes> = shown.collect();
        order.sort_by(|a, b| {
            let rank =
                |f: &FunctionTimes| (Reverse(key(f)), Reverse(f.self_ns), Reverse(f.total_ns));
            rank(a).cmp(&rank(b)).then_with(|| a.name.cmp(&b.name))
        });
        let heads = "    self   total        time  function";
        self.table(heading, heads, &order, |page, function| {
            format!(
                "  {}  {}  {:>10}  {}",
                page.share(function.self_ns),
                page.share(function.total_ns),
                (page.show)(key(function)),
                text::fit(&function.name, page.width() - 30),
            )
        });
    }

    fn processes(&mut self, processes: &[ProcessTotals]) {
        let heads = "   share        time     samples      pid  name";
        self.table("Processes", heads, processes, |page, process| {
            format!(
                "  {}  {:>10}  {:>10}  {:>7}  {}",
                page.share(process.time_ns),
                text::duration(process.time_ns),
                text::grouped(process.count),
                process.pid,
                page.name(&process.name, 46),
            )
        });
    }

    /// A name as wide as a row has room for beside `others` characters.
    pub(super) fn name(&self, name: &str, others: usize) -> String {
        text::fit(name, self.width().saturating_sub(others).max(16))
    }

    /// A table: the first rows as `row` writes them, and how many others there are.
    pub(super) fn table<T>(
        &mut self,
        heading: &str,
        heads: &str,
        rows: &[T],
        row: impl Fn(&Self, &T) -> String,
    ) {
        self.heading(heading);
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{heads}");
        for one in rows.iter().take(self.options.rows) {
            let row = row(self, one);
            let _ = writeln!(self.text, "{row}");
        }
        let hidden = rows.len().saturating_sub(self.options.rows);
        if hidden > 0 {
            let hidden = text::grouped(hidden as u64);
            let _ = writeln!(self.text, "  ... and {hidden} more");
        }
    }

    /// Losses by cause; shares are of the samples that are not of devices.
    pub(super) fn losses(&mut self, profile: &Profile) {
        let count = DeviceTotals::of(profile).cpu_samples;
        let lost = profile.losses.lost_samples();
        self.heading("Losses");
        let before = self.text.len();
        for (kind, n) in profile.losses.iter() {
            let share = match kind {
                kind if kind.is_cut_stack() => text::share(n, count),
                kind if kind.is_sample_loss() => text::share(n, count.saturating_add(lost)),
                _ => String::new(),
            };
            let label = text::fit(kind.label(), self.width() - 24);
            let row = format!("  {share:>7}  {:>11}  {label}\n", text::grouped(n));
            self.text.push_str(&row);
        }
        if self.text.len() == before {
            self.text.push_str("  none\n");
        }
    }
}
