//! The interchange text of Intel's iaprof: stalls by kernel launch and instruction.
//!
//! As iaprof of April 2026 ("fast mode") writes it: tab-separated records, each name
//! once with a number (0: none). What has no place in it: functions inlined on the
//! device, source lines, several devices, and how a sample got its stack.
//! iaprof counts anew in each interval; a profile is one interval.

use super::{ExportError, names};
use aiprof_model::profile::{FrameKind, Profile, Sample, StallReason};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::io::{BufWriter, Write};

/// What frames of a launch go to which field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LaunchFields {
    comm: String,
    pid: u32,
    stack: String,
    file: String,
    kernel: String,
}

/// Instructions of a launch by offset and mnemonic, and their counts by reason.
type Instructions = BTreeMap<(u64, String), [u64; StallReason::ALL.len()]>;

/// Writes the device samples of a profile. Those without a stall reason or an
/// instruction have no place in it:
/// [`StallTable::uncounted`](aiprof_model::profile::StallTable::uncounted).
///
/// # Errors
///
/// [`ExportError::Io`] when `out` fails.
pub fn write(profile: &Profile, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut launches: BTreeMap<LaunchFields, Instructions> = BTreeMap::new();
    for sample in &profile.samples {
        add(profile, sample, &mut launches);
    }
    let mut out = IaprofWriter {
        out: BufWriter::with_capacity(1 << 16, out),
        strings: FxHashMap::default(),
    };
    let seconds = profile.meta.duration_ns as f64 / 1e9;
    // The time of an interval is its end. So the end of the first is the begin of the
    // second, which has everything.
    writeln!(out.out, "interval\t0\t0.000000")?;
    writeln!(out.out, "interval\t1\t{seconds:.6}")?;
    for (launch, instructions) in &launches {
        out.launch(launch, instructions)?;
    }
    out.metrics(profile, &launches)?;
    out.out.flush()?;
    Ok(())
}

fn add(profile: &Profile, sample: &Sample, launches: &mut BTreeMap<LaunchFields, Instructions>) {
    let stalled_at = sample.device.and_then(|device| device.stalled_at());
    let Some((reason, code)) = stalled_at.filter(|_| sample.count > 0) else {
        return;
    };
    let kernel = profile.str(code.kernel);
    let IaprofFrames {
        stack,
        file,
        mnemonic,
    } = IaprofFrames::of(profile, sample, kernel);
    let process = profile.processes.get(sample.process.0 as usize);
    let launch = LaunchFields {
        comm: names::clean(process.map_or("", |p| profile.str(p.comm))),
        pid: process.map_or(0, |p| p.pid),
        stack,
        file,
        kernel: names::clean(kernel),
    };
    let instructions = launches.entry(launch).or_default();
    let counts = instructions.entry((code.offset, mnemonic)).or_default();
    if let Some(count) = counts.get_mut(reason as usize) {
        *count = count.saturating_add(sample.count);
    }
}

/// The frames of a sample, in iaprof's terms.
struct IaprofFrames {
    /// Frames of the host, from the root, separated by `;`.
    stack: String,
    /// Path of the kernel's source; empty: not known.
    file: String,
    mnemonic: String,
}

impl IaprofFrames {
    fn of(profile: &Profile, sample: &Sample, kernel: &str) -> Self {
        let mut host = Vec::new();
        let mut software = Vec::new();
        let mut hardware = Vec::new();
        for frame in profile.stack_frames(sample.stack) {
            let name = profile.str(frame.name);
            match frame.kind {
                FrameKind::DeviceSoftware => software.push(name),
                FrameKind::DeviceHardware => hardware.push(name),
                FrameKind::Native if name == "-" => {}
                _ => host.push(names::frame(profile, frame)),
            }
        }
        // Directory and file, or the file alone; a directory may be called as the kernel.
        let is_kernel = |i: &usize| software.get(*i).is_some_and(|name| *name == kernel);
        let at = [2, 1].into_iter().find(is_kernel).unwrap_or(0);
        let source = software.iter().take(at);
        let source: Vec<String> = source.map(|name| names::clean(name)).collect();
        // Mnemonic, stall reason, offset.
        let mnemonic = match hardware.as_slice() {
            [mnemonic, _, _] => names::clean(mnemonic),
            _ => "[failed decode]".to_owned(),
        };
        Self {
            stack: host.join(";"),
            file: source.join("/"),
            mnemonic,
        }
    }
}

struct IaprofWriter<'a> {
    out: BufWriter<&'a mut dyn Write>,
    strings: FxHashMap<String, u64>,
}

impl IaprofWriter<'_> {
    /// The number of a text, which is written before its first use.
    fn string(&mut self, text: &str) -> Result<u64, ExportError> {
        if text.is_empty() {
            return Ok(0);
        }
        if let Some(&known) = self.strings.get(text) {
            return Ok(known);
        }
        let id = self.strings.len() as u64 + 1;
        self.strings.insert(text.to_owned(), id);
        writeln!(self.out, "string\t{id}\t{text}")?;
        Ok(id)
    }

    fn launch(
        &mut self,
        launch: &LaunchFields,
        instructions: &Instructions,
    ) -> Result<(), ExportError> {
        let comm = self.string(&launch.comm)?;
        let stack = self.string(&launch.stack)?;
        let file = self.string(&launch.file)?;
        let kernel = self.string(&launch.kernel)?;
        let pid = launch.pid;
        // A profile has no addresses of kernels; readers take no notice of them.
        writeln!(
            self.out,
            "kernel\t0x0\t{comm}\t{pid}\t{stack}\t{file}\t{kernel}"
        )?;
        for ((offset, mnemonic), counts) in instructions {
            let mnemonic = self.string(mnemonic)?;
            write!(self.out, "eustall\t{offset:#x}\t{mnemonic}")?;
            for count in counts {
                write!(self.out, "\t{count}")?;
            }
            writeln!(self.out)?;
        }
        Ok(())
    }

    /// Totals by reason, and how busy the devices were together: 200 % of two.
    fn metrics(
        &mut self,
        profile: &Profile,
        launches: &BTreeMap<LaunchFields, Instructions>,
    ) -> Result<(), ExportError> {
        for (i, reason) in StallReason::ALL.into_iter().enumerate() {
            let counts = launches.values().flat_map(BTreeMap::values);
            let counts = counts.filter_map(|counts| counts.get(i));
            let total = counts.fold(0_u64, |sum, n| sum.saturating_add(*n));
            let name = reason.name().replace('_', "-");
            writeln!(self.out, "metric\teu-stall-{name}\t{total}")?;
        }
        let written = |sample: &&Sample| {
            let device = sample.device;
            device.is_some_and(|device| device.stalled_at().is_some())
        };
        let busy = profile.samples.iter().filter(written);
        let busy = busy.fold(0_u64, |sum, s| sum.saturating_add(s.time_ns));
        if profile.meta.duration_ns > 0 {
            let percent = 100.0 * busy as f64 / profile.meta.duration_ns as f64;
            writeln!(self.out, "metric\tbusy-percent\t{percent:.9}")?;
        }
        Ok(())
    }
}
