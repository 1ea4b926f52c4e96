//! Compares device samples as aiprof attributed them with the truth: what the virtual Level Zero
//! driver wrote ([`crate::truth`]), and the call path that the program reports for each launch
//! ([`crate::level_zero::program::Account::paths`]).

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;

use crate::folded::{Folded, base};
use crate::level_zero::program::Account;
use crate::pprof;
use crate::spans::covered;
use crate::truth::{Call, Exec, Kind, Truth, Window};

/// aiprof's name of a reason that the driver names otherwise.
#[must_use]
pub fn reason_name(driver: &str) -> &str {
    match driver {
        "pipe" => "pipestall",
        "dist" => "dist_acc",
        "fetch" => "inst_fetch",
        same => same,
    }
}

/// The properties that distinguish samples.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// Process.
    pub pid: u32,
    /// Number of the call path, of the functions `path_N`.
    pub path: u32,
    /// Name of the device kernel.
    pub kernel: String,
    /// Offset of the instruction in it, bytes.
    pub offset: u64,
    /// aiprof's name of the stall reason.
    pub reason: String,
}

/// Samples that belong into a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// All that were written.
    pub all: u64,
    /// Those of windows in which only one launch stack can have been running at
    /// their address.
    pub sole: u64,
}

/// What a profile must contain.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// Samples that were written.
    pub cells: BTreeMap<Cell, Due>,
    /// Samples that were not: dropped, or not read in time.
    pub lost: u64,
    /// Windows that were dropped.
    pub drops: u64,
}

/// When a launch can have been running, by what the program can know.
struct Candidate {
    device: u32,
    sub: i32,
    from: u64,
    to: u64,
    who: (u32, u32, String),
}

impl Expected {
    /// From a truth file and the program's accounts. A reader's window may begin and
    /// end `slack_ns` around the driver's.
    ///
    /// # Errors
    /// When a launch is in only one of both.
    pub fn new(truth: &Truth, accounts: &[Account], slack_ns: u64) -> anyhow::Result<Self> {
        let mut paths = BTreeMap::new();
        for account in accounts {
            let of_account = account.paths()?.into_iter();
            paths.extend(of_account.map(|(seq, path)| ((account.pid, seq), path)));
        }
        let kernels: BTreeMap<(u32, u64), &Exec> = truth
            .execs
            .iter()
            .filter(|e| e.kind == Kind::Kernel)
            .map(|e| ((e.pid, e.seq), e))
            .collect();
        let candidates = candidates(truth, &kernels, &paths)?;
        let mut expected = Self::default();
        for window in &truth.windows {
            expected.drops += u64::from(window.dropped);
            let mut sole = BTreeMap::new();
            for sampled in &window.execs {
                let key = (window.pid, sampled.seq);
                let exec = kernels.get(&key).context("samples without a kernel")?;
                let path = paths.get(&key).context("samples of an unknown launch")?;
                let is_sole = *sole.entry(sampled.isa).or_insert_with(|| {
                    let all = candidates.get(&sampled.isa);
                    is_sole(all.map_or(&[], Vec::as_slice), window, slack_ns)
                });
                let cell = Cell {
                    pid: window.pid,
                    path: *path,
                    kernel: exec.kernel.clone().unwrap_or_default(),
                    offset: sampled.offset,
                    reason: reason_name(&sampled.reason).to_owned(),
                };
                expected.lost += sampled.lost;
                if sampled.written > 0 {
                    let due = expected.cells.entry(cell).or_default();
                    due.all += sampled.written;
                    due.sole += if is_sole { sampled.written } else { 0 };
                }
            }
        }
        Ok(expected)
    }

    /// Samples written.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.cells.values().map(|due| due.all).sum()
    }
}

/// Launches by the address of their kernel.
fn candidates(
    truth: &Truth,
    kernels: &BTreeMap<(u32, u64), &Exec>,
    paths: &BTreeMap<(u32, u64), u32>,
) -> anyhow::Result<BTreeMap<u64, Vec<Candidate>>> {
    let waits = Waits::new(truth);
    let mut out: BTreeMap<u64, Vec<Candidate>> = BTreeMap::new();
    for call in truth.launch_calls() {
        let key = (call.pid, call.seq);
        // Not yet executed when the process ended.
        let Some(exec) = kernels.get(&key) else {
            continue;
        };
        let path = paths
            .get(&key)
            .context("the program tells no such launch")?;
        let kernel = exec.kernel.clone().unwrap_or_default();
        out.entry(exec.isa.unwrap_or(0))
            .or_default()
            .push(Candidate {
                device: exec.device,
                sub: exec.sub,
                from: call.t0,
                to: waits.end_of(call),
                who: (call.pid, *path, kernel),
            });
    }
    Ok(out)
}

/// Calls that return only when earlier work is done, by process and by what they
/// wait for: number and return time, in the order of numbers.
struct Waits(BTreeMap<(u32, u64), Vec<(u64, u64)>>);

impl Waits {
    fn new(truth: &Truth) -> Self {
        let mut waits: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for call in truth.calls.iter().filter(|call| call.succeeded()) {
            let waited = match call.function.as_str() {
                "zeCommandListHostSynchronize" => call.list,
                "zeEventHostSynchronize" | "zeEventQueryStatus" | "zeEventQueryKernelTimestamp" => {
                    call.event
                }
                _ => None,
            };
            if let Some(handle) = waited {
                let of_handle = waits.entry((call.pid, handle)).or_default();
                of_handle.push((call.seq, call.t1));
            }
        }
        waits.values_mut().for_each(|all| all.sort_unstable());
        Self(waits)
    }

    /// When the program knew that a launch was over.
    fn end_of(&self, launch: &Call) -> u64 {
        let handles = [launch.list, launch.event];
        let ends = handles.into_iter().flatten().filter_map(|handle| {
            let all = self.0.get(&(launch.pid, handle))?;
            let next = all.partition_point(|(seq, _)| *seq <= launch.seq);
            all.get(next).map(|(_, time)| *time)
        });
        ends.min().unwrap_or(u64::MAX)
    }
}

/// Whether all launches that can have been running in a window are of one stack.
fn is_sole(candidates: &[Candidate], window: &Window, slack_ns: u64) -> bool {
    let from = window.t0.saturating_sub(slack_ns);
    let to = window.t1.saturating_add(slack_ns);
    let fits = |c: &&Candidate| {
        let on_gt = c.sub < 0 || c.sub.unsigned_abs() == window.gt;
        c.device == window.device && on_gt && c.from <= to && c.to >= from
    };
    let who: BTreeSet<_> = candidates.iter().filter(fits).map(|c| &c.who).collect();
    who.len() <= 1
}

/// A cell's samples as a profile has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Got {
    /// Samples.
    pub count: u64,
    /// Lower bound of the samples; only in pprof files.
    pub certain: u64,
    /// Upper bound of the samples; only in pprof files.
    pub possible: u64,
}

/// The content of a profile.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Attributed samples, shared ones included.
    pub cells: BTreeMap<Cell, Got>,
    /// Samples that the profile itself marks as unattributed.
    pub unattributed: u64,
    /// All other samples, by the stack: without a known path or kernel, or against the grammar.
    pub strange: BTreeMap<String, u64>,
    /// Samples by the label that shows how they were attributed; only in pprof files.
    pub methods: BTreeMap<String, u64>,
}

/// A device sample's frames, or what else they are.
enum Frames {
    Cell(Cell),
    Unattributed,
    Strange,
}

/// Whether frames are of a device sample: by the leaf, an offset.
pub fn is_device(frames: &[String]) -> bool {
    let offset = frames.last().map_or("", |leaf| base(leaf));
    frames.iter().any(|f| f == "[unattributed]") || offset_of(offset).is_some()
}

fn offset_of(frame: &str) -> Option<u64> {
    u64::from_str_radix(frame.strip_prefix("0x")?, 16).ok()
}

/// `...;-;[source..];kernel;...;mnemonic;reason;0xOFFSET`
fn classify(pid: u32, frames: &[String], kernels: &BTreeSet<String>) -> Frames {
    if frames.iter().any(|f| f == "[unattributed]") {
        return Frames::Unattributed;
    }
    let mark = frames.iter().position(|f| f == "-");
    let (user, device) = frames.split_at(mark.unwrap_or(0));
    let paths: Vec<u32> = user
        .iter()
        .filter_map(|f| base(f).strip_prefix("path_")?.parse().ok())
        .collect();
    let kernel = device
        .iter()
        .map(|f| base(f))
        .find(|f| kernels.contains(*f));
    let reason = device.len().checked_sub(2).and_then(|at| device.get(at));
    let offset = device.last().and_then(|f| offset_of(base(f)));
    match (paths.as_slice(), kernel, reason, offset) {
        ([path], Some(kernel), Some(reason), Some(offset)) => Frames::Cell(Cell {
            pid,
            path: *path,
            kernel: kernel.to_owned(),
            offset,
            reason: base(reason).to_owned(),
        }),
        _ => Frames::Strange,
    }
}

impl Found {
    /// From folded stacks in counts. Lines of CPU samples are left out.
    #[must_use]
    pub fn folded(folded: &Folded, kernels: &BTreeSet<String>) -> Self {
        let mut found = Self::default();
        for line in folded.lines.iter().filter(|l| is_device(&l.frames)) {
            let got = Got {
                count: line.value,
                ..Got::default()
            };
            found.add(line.pid, &line.frames, kernels, got);
        }
        found
    }

    /// From the samples of a pprof file.
    #[must_use]
    pub fn pprof(samples: &[pprof::Sample], kernels: &BTreeSet<String>) -> Self {
        let mut found = Self::default();
        let unsigned = |n: Option<&i64>| n.map_or(0, |n| n.unsigned_abs());
        for sample in samples
            .iter()
            .filter(|s| s.numbers.contains_key("possible"))
        {
            let got = Got {
                count: unsigned(sample.values.get("device_samples")),
                certain: unsigned(sample.numbers.get("certain")),
                possible: unsigned(sample.numbers.get("possible")),
            };
            let method = sample.texts.get("method").cloned().unwrap_or_default();
            *found.methods.entry(method).or_default() += got.count;
            let pid = unsigned(sample.numbers.get("pid")) as u32;
            found.add(pid, &sample.frames, kernels, got);
        }
        found
    }

    fn add(&mut self, pid: u32, frames: &[String], kernels: &BTreeSet<String>, got: Got) {
        match classify(pid, frames, kernels) {
            Frames::Cell(cell) => {
                let sum = self.cells.entry(cell).or_default();
                sum.count += got.count;
                sum.certain += got.certain;
                sum.possible += got.possible;
            }
            Frames::Unattributed => self.unattributed += got.count,
            Frames::Strange => {
                let stack = format!("{pid};{}", frames.join(";"));
                *self.strange.entry(stack).or_default() += got.count;
            }
        }
    }

    /// Samples in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        let attributed: u64 = self.cells.values().map(|got| got.count).sum();
        attributed + self.unattributed + self.strange.values().sum::<u64>()
    }

    /// The share of a method, by its label.
    #[must_use]
    pub fn method(&self, label: &str) -> f64 {
        let n = self.methods.get(label).copied().unwrap_or(0);
        share(n, self.total())
    }
}

/// `part` of `whole`; 1 of nothing.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        1.0
    } else {
        part as f64 / whole as f64
    }
}

/// A call path's share of all samples.
#[derive(Clone, Copy, Debug)]
pub struct PathShare {
    /// Process.
    pub pid: u32,
    /// Number of the path.
    pub path: u32,
    /// Its true share.
    pub truth: f64,
    /// The share in the profile.
    pub found: f64,
    /// Its bounds; without any in what was read, both are 0.
    pub bounds: (f64, f64),
}

impl PathShare {
    /// How far apart its bounds are, in percentage points.
    #[must_use]
    pub fn width(&self) -> f64 {
        100.0 * (self.bounds.1 - self.bounds.0)
    }

    /// How far the profile is off, in percentage points.
    #[must_use]
    pub fn points(&self) -> f64 {
        100.0 * (self.found - self.truth).abs()
    }
}

/// How a profile compares with the truth.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Samples written.
    pub written: u64,
    /// Samples in the profile.
    pub found: u64,
    /// Samples among `found` that are unattributed.
    pub unattributed: u64,
    /// Samples among `found` in unknown stacks.
    pub strange: u64,
    /// Samples that only one launch stack can have caused.
    pub sole: u64,
    /// Samples among `sole` that are not charged to the right process, path, kernel, offset and
    /// reason.
    pub sole_wrong: u64,
    /// All call paths.
    pub paths: Vec<PathShare>,
    /// Cells whose truth is outside of the stated bounds, with both; only of pprof
    /// files.
    pub unbound: Vec<(Cell, u64, Got)>,
}

impl Verdict {
    /// Compares.
    #[must_use]
    pub fn new(expected: &Expected, found: &Found) -> Self {
        let (sole, sole_wrong) = sole(expected, found);
        Self {
            written: expected.written(),
            found: found.total(),
            unattributed: found.unattributed,
            strange: found.strange.values().sum(),
            sole,
            sole_wrong,
            paths: path_shares(expected, found),
            unbound: unbound(expected, found),
        }
    }

    /// The right share of the samples that only one stack can have caused.
    #[must_use]
    pub fn right(&self) -> f64 {
        1.0 - share(self.sole_wrong, self.sole.max(1))
    }

    /// The largest error of a call path's share, percentage points.
    #[must_use]
    pub fn worst(&self) -> f64 {
        self.paths.iter().map(PathShare::points).fold(0.0, f64::max)
    }

    /// How far apart the bounds of the median call path are, percentage points.
    #[must_use]
    pub fn median_width(&self) -> f64 {
        let mut widths: Vec<f64> = self.paths.iter().map(PathShare::width).collect();
        widths.sort_by(f64::total_cmp);
        widths.get(widths.len() / 2).copied().unwrap_or(0.0)
    }

    /// Samples that were written and are not in the profile, if positive; samples that were never
    /// written, if negative. `told` are those that the profile reports as lost.
    #[must_use]
    pub fn unaccounted(&self, told: u64) -> i64 {
        self.written as i64 - self.found as i64 - told as i64
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} written, {} found, {} unattributed, {} strange; {} sole: {:.3} % right; \
             worst path {:.2} points; {} cells out of bounds",
            self.written,
            self.found,
            self.unattributed,
            self.strange,
            self.sole,
            100.0 * self.right(),
            self.worst(),
            self.unbound.len()
        )
    }
}

/// Samples that only one stack can have caused, and how many of them are not where
/// they belong: missing, or too many in cells that are known exactly. Samples that
/// several stacks can have caused may rightly be estimated into such cells.
fn sole(expected: &Expected, found: &Found) -> (u64, u64) {
    let (mut sole, mut missing, mut over) = (0, 0, 0u64);
    for (cell, due) in &expected.cells {
        let got = found.cells.get(cell).map_or(0, |got| got.count);
        sole += due.sole;
        missing += due.sole.saturating_sub(got);
        over += got.saturating_sub(due.all);
    }
    let unknown = |(cell, _): &(&Cell, &Got)| !expected.cells.contains_key(*cell);
    let strangers = found.cells.iter().filter(unknown);
    over += strangers.map(|(_, got)| got.count).sum::<u64>();
    let shared = expected.written() - sole;
    (sole, missing.max(over.saturating_sub(shared)))
}

fn path_shares(expected: &Expected, found: &Found) -> Vec<PathShare> {
    let mut sums: BTreeMap<(u32, u32), (u64, Got)> = BTreeMap::new();
    for (cell, due) in &expected.cells {
        sums.entry((cell.pid, cell.path)).or_default().0 += due.all;
    }
    for (cell, got) in &found.cells {
        let (_, sum) = sums.entry((cell.pid, cell.path)).or_default();
        sum.count += got.count;
        sum.certain += got.certain;
        sum.possible += got.possible;
    }
    let (written, total) = (expected.written().max(1), found.total().max(1));
    sums.into_iter()
        .map(|((pid, path), (due, got))| PathShare {
            pid,
            path,
            truth: share(due, written),
            found: share(got.count, total),
            bounds: (share(got.certain, total), share(got.possible, total)),
        })
        .collect()
}

/// For how long kernels were running, nanoseconds: on each GT while any was. Kernels of a
/// whole device run on all of its GTs.
#[must_use]
pub fn busy_ns(truth: &Truth, gts: u32) -> u64 {
    let kernels = truth.execs.iter().filter(|e| e.kind == Kind::Kernel);
    covered_ns(kernels.map(|exec| (exec, exec.start_ns, exec.end_ns)), gts)
}

/// How long kernels can have been running, in nanoseconds, by what a recording without timestamps
/// knows: each from its launch until a wait for it returned. It is longer than [`busy_ns`] where a
/// machine takes the CPU away from the program.
#[must_use]
pub fn in_calls_ns(truth: &Truth, gts: u32) -> u64 {
    let waits = Waits::new(truth);
    let calls: BTreeMap<_, _> = truth
        .launch_calls()
        .map(|call| ((call.pid, call.seq), call))
        .collect();
    let kernels = truth.execs.iter().filter(|e| e.kind == Kind::Kernel);
    let spans = kernels.map(|exec| match calls.get(&(exec.pid, exec.submit)) {
        Some(call) => {
            let known = waits.end_of(call);
            // A program that did not wait: until the kernel ended.
            let end = if known == u64::MAX {
                exec.end_ns
            } else {
                known
            };
            (exec, call.t0.min(exec.start_ns), end.max(exec.end_ns))
        }
        None => (exec, exec.start_ns, exec.end_ns),
    });
    covered_ns(spans, gts)
}

/// The time that spans of kernels cover, summed over the GTs on which they ran, nanoseconds.
fn covered_ns<'a>(kernels: impl Iterator<Item = (&'a Exec, u64, u64)>, gts: u32) -> u64 {
    let mut spans: BTreeMap<(u32, u32), Vec<(u64, u64)>> = BTreeMap::new();
    for (exec, from, to) in kernels {
        let own = match u32::try_from(exec.sub) {
            Ok(sub) => sub..sub + 1,
            Err(_) => 0..gts,
        };
        for gt in own {
            let of_gt = spans.entry((exec.device, gt)).or_default();
            of_gt.push((from, to));
        }
    }
    spans.into_values().map(covered).sum()
}

fn unbound(expected: &Expected, found: &Found) -> Vec<(Cell, u64, Got)> {
    if found.methods.is_empty() {
        return Vec::new();
    }
    let cells: BTreeSet<&Cell> = expected.cells.keys().chain(found.cells.keys()).collect();
    let compared = cells.into_iter().map(|cell| {
        let due = expected.cells.get(cell).map_or(0, |due| due.all);
        let got = found.cells.get(cell).copied().unwrap_or_default();
        (cell.clone(), due, got)
    });
    compared
        .filter(|(_, due, got)| *due < got.certain || *due > got.possible)
        .collect()
}

#[cfg(test)]
mod tests;
