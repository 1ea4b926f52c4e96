//! What `aiprof stalls` reads: samples of devices, and the code of their kernels.

use super::input::{self, ProfileCommand};
use aiprof_formats::import::open::{Contents, Input};
use aiprof_formats::import::{iaprof, unitrace_csv};
use aiprof_model::profile::{LossKind, Losses, StallTable};
use aiprof_record::aggregate::DeviceKernel;
use aiprof_record::capture;
use aiprof_symbols::symbolize::device::isa::{Decoded, Platform, decode, iga::Iga};
use aiprof_symbols::symbolize::device::{DeviceFunction, Module, read_dump_folder};
use aiprof_system::files::caller;
use aiprof_trace::analyze::device_stalls::{Code, KernelStalls, Sampled, Tally, TimedStalls};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::io::{BufReader, Read as _};
use std::path::{Path, PathBuf};

/// Largest file of a module.
const MAX_MODULE: u64 = 64 << 20;

const HOW_TO_RECORD: &str = "\
no device samples. Record them with `sudo aiprof -o x.aiprof COMMAND` on a machine with an Intel \
GPU that samples stalls (Ponte Vecchio, or Xe2 and later; `aiprof doctor` shows what is \
missing), or with --replay-device";

/// The files to read.
pub(crate) struct StallInputs<'a> {
    /// The samples.
    pub(crate) input: &'a Path,
    /// Files and folders with modules.
    pub(crate) modules: &'a [PathBuf],
    /// The platform to decode code for, instead of that of the modules.
    pub(crate) platform: Option<Platform>,
}

/// What was read.
pub(crate) struct StallInput {
    pub(crate) title: String,
    pub(crate) notes: Vec<String>,
    pub(crate) sampled: Vec<Sampled>,
}

/// A kernel before its code is decoded.
struct Raw {
    device: String,
    name: String,
    rows: Vec<(Option<u64>, Tally)>,
    /// The kernel that the samples themselves contain.
    kernel: Option<(DeviceFunction, Option<Platform>)>,
}

impl Raw {
    fn of(kernel: DeviceKernel) -> Self {
        let rows = kernel.rows.into_iter();
        Self {
            device: kernel.device,
            name: kernel.name.unwrap_or_else(|| "[unknown kernel]".to_owned()),
            rows: rows.map(|(at, counts)| (at, Tally { counts })).collect(),
            kernel: kernel.kernel.map(|found| (found, kernel.platform)),
        }
    }
}

/// Reads samples and modules.
///
/// # Errors
/// A file cannot be read, is of no known kind, or has no samples of devices.
pub(crate) fn read(inputs: &StallInputs<'_>) -> Result<StallInput> {
    let path = inputs.input;
    let input = input::open(path)?;
    let mut notes = Vec::new();
    let is_capture = input.contents == Contents::Capture;
    let raws = match is_capture {
        true => of_capture(path, &mut notes)?,
        false => of_other(path, input, &mut notes)?,
    };
    if raws
        .iter()
        .all(|raw| raw.rows.iter().all(|(_, tally)| tally.total() == 0))
    {
        bail!("{}: {HOW_TO_RECORD}", path.display());
    }
    let library = KernelLibrary::read(inputs.modules, inputs.platform, &mut notes)?;
    let coder = Coder {
        // The own table gives mnemonics and annotations; the library operands, too.
        iga: Iga::load().ok(),
        library,
        platform: inputs.platform,
        is_capture,
    };
    let sampled: Vec<Sampled> = raws.into_iter().map(|raw| coder.sampled(raw)).collect();
    if sampled.iter().all(|sampled| sampled.code.is_err())
        && !is_capture
        && inputs.modules.is_empty()
    {
        notes.push(
            "counts only: give the kernels' code with --modules FILE|DIR to see instructions, \
             lines and causes"
                .to_owned(),
        );
    }
    Ok(StallInput {
        title: path.display().to_string(),
        notes,
        sampled,
    })
}

/// The kernels of a capture that were sampled, with their times and what their code shows.
///
/// # Errors
/// The capture cannot be read.
pub(crate) fn timed(path: &Path) -> Result<Vec<TimedStalls>> {
    let coder = Coder {
        iga: Iga::load().ok(),
        library: KernelLibrary::default(),
        platform: None,
        is_capture: true,
    };
    let kernels = capture::replay_devices(path)?.kernels.into_iter();
    // Samples outside known kernels cannot be described.
    let known = kernels.filter(|kernel| kernel.name.is_some());
    let timed = known.map(|kernel| TimedStalls {
        device_ns: kernel.busy_ns,
        stalls: KernelStalls::of(coder.sampled(Raw::of(kernel))),
    });
    Ok(timed.collect())
}

/// Samples that other tools wrote.
fn of_other(path: &Path, input: Input, notes: &mut Vec<String>) -> Result<Vec<Raw>> {
    let context = || format!("cannot read {}", path.display());
    let mut file = BufReader::new(input.text);
    match input.contents {
        Contents::Iaprof => {
            let profile = iaprof::read(&mut file).with_context(context)?;
            let uncounted = StallTable::uncounted(&profile);
            if uncounted > 0 {
                notes.push(format!(
                    "{uncounted} samples without a known instruction were left out"
                ));
            }
            Ok(of_table(&StallTable::of(&profile)))
        }
        // The reader reports what a table lacks.
        Contents::StallCsv | Contents::Text => {
            let stalls = unitrace_csv::read(&mut file).with_context(context)?;
            if stalls.skipped > 0 {
                let first = stalls.first_skipped.unwrap_or(0);
                notes.push(format!(
                    "{} lines are not rows of a table and were left out (the first: line {first})",
                    stalls.skipped
                ));
            }
            Ok(of_table(&stalls.table))
        }
        other => Err(input::refused(path, other, ProfileCommand::Stalls)),
    }
}

fn of_capture(path: &Path, notes: &mut Vec<String>) -> Result<Vec<Raw>> {
    let replay = capture::replay_devices(path)?;
    if replay.kernels.iter().any(|kernel| kernel.replayed) {
        notes.push("the device samples were replayed, not taken from hardware".to_owned());
    }
    notes.extend(losses(&replay.losses));
    Ok(replay.kernels.into_iter().map(Raw::of).collect())
}

/// What was lost of devices.
fn losses(losses: &Losses) -> Vec<String> {
    let of_devices = [
        LossKind::DeviceUnattributed,
        LossKind::DeviceCodeUnreadable,
        LossKind::DeviceUndecodable,
    ];
    let lost = losses
        .iter()
        .filter(|(kind, count)| *count > 0 && of_devices.contains(kind));
    lost.map(|(kind, count)| format!("{count} {}", kind.label()))
        .collect()
}

fn of_table(table: &StallTable) -> Vec<Raw> {
    let mut raws = Vec::new();
    for device in &table.devices {
        let mut kernels: BTreeMap<&str, Vec<(Option<u64>, Tally)>> = BTreeMap::new();
        for row in &device.rows {
            let rows = kernels.entry(&row.kernel).or_default();
            rows.push((Some(row.offset), Tally { counts: row.counts }));
        }
        raws.extend(kernels.into_iter().map(|(name, rows)| Raw {
            device: device.name.clone(),
            name: name.to_owned(),
            rows,
            kernel: None,
        }));
    }
    raws
}

/// A kernel of a module that was given.
struct Candidate {
    kernel: DeviceFunction,
    platform: Option<Platform>,
    origin: PathBuf,
}

/// The kernels of the modules that were given, by their names without spaces.
#[derive(Default)]
struct KernelLibrary {
    kernels: BTreeMap<String, Vec<Candidate>>,
}

impl KernelLibrary {
    fn read(
        paths: &[PathBuf],
        platform: Option<Platform>,
        notes: &mut Vec<String>,
    ) -> Result<Self> {
        let mut library = Self::default();
        for path in paths {
            let context = || format!("cannot read {}", path.display());
            if caller::is_dir(path) {
                let dump = read_dump_folder(path).with_context(context)?;
                if dump.modules.is_empty() {
                    notes.push(format!("{}: this folder has no modules", path.display()));
                }
                if dump.problems.files > 0 {
                    let count = dump.problems.files;
                    notes.push(format!(
                        "{}: {count} files could not be read",
                        path.display()
                    ));
                }
                for (origin, module) in dump.modules {
                    library.add(module, &origin);
                }
            } else {
                let mut bytes = Vec::new();
                let file = caller::open(path).with_context(context)?;
                file.take(MAX_MODULE + 1)
                    .read_to_end(&mut bytes)
                    .with_context(context)?;
                let module = Module::parse_for(&bytes, platform).with_context(context)?;
                library.add(module, path);
            }
        }
        Ok(library)
    }

    fn add(&mut self, module: Module, origin: &Path) {
        for kernel in module.kernels.into_iter().chain(module.functions) {
            if kernel.code.is_empty() {
                continue;
            }
            let mut names = vec![key(&kernel.name), key(&kernel.display)];
            names.dedup();
            for name in names {
                let of_name = self.kernels.entry(name).or_default();
                // The compiler dumps a program again when it compiles it again.
                if of_name.iter().all(|known| known.kernel.code != kernel.code) {
                    of_name.push(Candidate {
                        kernel: kernel.clone(),
                        platform: module.platform,
                        origin: origin.to_owned(),
                    });
                }
            }
        }
    }
}

/// Demanglers differ in spaces.
fn key(name: &str) -> String {
    name.chars().filter(|c| !c.is_whitespace()).collect()
}

/// Finds and decodes the code of kernels.
struct Coder {
    iga: Option<Iga>,
    library: KernelLibrary,
    platform: Option<Platform>,
    is_capture: bool,
}

impl Coder {
    fn sampled(&self, raw: Raw) -> Sampled {
        let code = self.code(&raw);
        let kernel = match &code {
            Ok(code) => code.kernel.display.clone(),
            Err(_) => raw.name,
        };
        Sampled {
            device: raw.device,
            kernel,
            code,
            rows: raw.rows,
        }
    }

    fn code(&self, raw: &Raw) -> Result<Code, String> {
        if let Some((kernel, platform)) = &raw.kernel
            && !kernel.code.is_empty()
        {
            return self.decoded(kernel, *platform, "the capture".to_owned());
        }
        let candidates = self.library.kernels.get(&key(&raw.name));
        let candidates = candidates.map_or(&[][..], Vec::as_slice);
        let mut codes: Vec<(usize, Code)> = Vec::new();
        let mut missing = None;
        for candidate in candidates {
            let origin = candidate.origin.display().to_string();
            match self.decoded(&candidate.kernel, candidate.platform, origin) {
                Ok(code) => codes.push((fit(&code.decoded, &raw.rows), code)),
                Err(why) => missing = Some(why),
            }
        }
        let count = codes.len();
        let best = codes.iter().map(|(fit, _)| *fit).max();
        let equal = codes.iter().filter(|(fit, _)| Some(*fit) == best).count();
        let found = codes.into_iter().find(|(fit, _)| Some(*fit) == best);
        let Some((_, mut code)) = found else {
            return Err(missing.unwrap_or_else(|| self.missing(raw)));
        };
        if count > 1 {
            code.note = match equal {
                1 => {
                    format!("{count} kernels have this name; the samples fit this one's code best")
                }
                _ => format!(
                    "{count} kernels have this name, and the samples fit {equal} of them \
                     equally well: this may be the wrong one"
                ),
            };
        }
        Ok(code)
    }

    fn missing(&self, raw: &Raw) -> String {
        let spirv = raw.kernel.is_some();
        match (self.is_capture, spirv, self.library.kernels.is_empty()) {
            (true, true, true) => {
                "code not known: the capture has the SPIR-V of this kernel, not the code \
                                   that the driver compiled; give --modules FILE|DIR"
                    .to_owned()
            }
            (true, false, true) => {
                "code not known: the recording did not see the module being loaded; \
                                    give --modules FILE|DIR"
                    .to_owned()
            }
            (false, _, true) => "code not known: give --modules FILE|DIR".to_owned(),
            (_, _, false) => "code not known: no kernel of this name is in --modules".to_owned(),
        }
    }

    fn decoded(
        &self,
        kernel: &DeviceFunction,
        platform: Option<Platform>,
        origin: String,
    ) -> Result<Code, String> {
        let Some(platform) = self.platform.or(platform) else {
            return Err(format!(
                "code not decoded: the module from {origin} does not state its device; give \
                 --platform NAME"
            ));
        };
        let whole = self
            .iga
            .as_ref()
            .and_then(|iga| iga.decode(&kernel.code, platform).ok());
        Ok(Code {
            decoded: whole.unwrap_or_else(|| decode(&kernel.code, platform)),
            kernel: kernel.clone(),
            platform,
            origin,
            note: String::new(),
        })
    }
}

/// Rows that are at the beginning of an instruction.
fn fit(decoded: &Decoded, rows: &[(Option<u64>, Tally)]) -> usize {
    let begins = |offset: u64| {
        let offset = u32::try_from(offset).ok();
        offset.is_some_and(|offset| decoded.at(offset).is_some_and(|i| i.offset == offset))
    };
    rows.iter()
        .filter(|(offset, _)| offset.is_some_and(begins))
        .count()
}
