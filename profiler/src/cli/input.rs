//! What subcommands read: what a file is, and which of them reads such a file.

use super::usage_error;
use aiprof_formats::export::folded::{self, FoldedStacks};
use aiprof_formats::export::{FileFormat, Weight};
use aiprof_formats::import::open::{self, Contents, Input};
use aiprof_formats::import::stall_profile::profile_of;
use aiprof_formats::import::{iaprof, pprof, unitrace_csv};
use aiprof_model::profile::{LossKind, Profile, Values};
use aiprof_record::capture::{self, ReplayOptions};
use aiprof_system::files::caller;
use aiprof_system::memory;
use anyhow::{Context, Result, anyhow};
use std::io::{BufReader, Read as _};
use std::path::{Path, PathBuf};

/// Subcommands that read profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProfileCommand {
    /// `aiprof report`.
    Report,
    /// `aiprof diff`.
    Diff,
    /// `aiprof analyze`.
    Analyze,
    /// `aiprof stalls`.
    Stalls,
    /// `aiprof trace --from`.
    Trace,
}

impl ProfileCommand {
    fn name(self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::Diff => "diff",
            Self::Analyze => "analyze",
            Self::Stalls => "stalls",
            Self::Trace => "trace --from",
        }
    }

    /// What it reads.
    fn inputs(self) -> &'static str {
        match self {
            Self::Report | Self::Diff => {
                "captures (.aiprof), folded stacks, pprof profiles, and device samples of iaprof \
                 and unitrace"
            }
            Self::Analyze => "captures (.aiprof) and traces (JSON, Perfetto)",
            Self::Stalls => "captures (.aiprof), and device samples of iaprof and unitrace",
            Self::Trace => "captures (.aiprof)",
        }
    }
}

/// Which subcommand reads a file, for one that does not.
fn advice(contents: Contents, path: &Path) -> Option<String> {
    let path = path.display();
    Some(match contents {
        Contents::Capture | Contents::Folded | Contents::Pprof => {
            format!("use `aiprof report {path}` or `aiprof diff`")
        }
        Contents::Iaprof | Contents::StallCsv => {
            format!("use `aiprof stalls {path}`, `aiprof report` or `aiprof diff`")
        }
        Contents::Json | Contents::Perfetto | Contents::Xplane | Contents::Rocprof => {
            format!("use `aiprof analyze {path}`")
        }
        Contents::Nsight => format!(
            "`nsys stats {path}` prints its tables; `nsys export --type=sqlite {path}` and \
             nsys2json (github.com/chenyu-jiang/nsys2json) write a trace that it reads"
        ),
        Contents::Rocpd => format!(
            "`rocpd convert -i {path} --output-format pftrace` writes a trace that it reads"
        ),
        Contents::Database => format!(
            "`rocpd convert -i {path} --output-format pftrace` writes a trace that it reads, if \
             rocprofv3 wrote it; nsys2json (github.com/chenyu-jiang/nsys2json) does, if it is an \
             export of Nsight Systems"
        ),
        Contents::Rpd => {
            format!("`rpd2tracing.py {path} FILE.json` of rocmProfileData writes a Chrome trace")
        }
        Contents::Pickle => format!(
            "`python3 -m torch.cuda._memory_viz trace_plot {path} -o FILE.html` makes a page of a \
             snapshot of memory"
        ),
        Contents::Log => "give logs of the compiler to `aiprof analyze` with -c".to_owned(),
        Contents::Elf => "give modules of device code to `aiprof stalls` with --modules".to_owned(),
        Contents::Svg | Contents::Page => "use the file that it was made from".to_owned(),
        Contents::Empty | Contents::Text | Contents::Binary => return None,
    })
}

/// The error for a file that a subcommand does not read: its type, and which subcommand does.
pub(crate) fn refused(path: &Path, contents: Contents, reader: ProfileCommand) -> anyhow::Error {
    let (shown, what, name) = (path.display(), contents.what(), reader.name());
    match advice(contents, path) {
        Some(advice) => {
            anyhow!("{shown} is {what}, which `aiprof {name}` does not read: {advice}")
        }
        None => anyhow!(
            "{shown} is {what}: `aiprof {name}` reads {}",
            reader.inputs()
        ),
    }
}

/// The place that an input's name means: `-` is stdin.
pub(crate) fn named(path: &Path) -> PathBuf {
    match path == Path::new("-") {
        true => PathBuf::from("/dev/stdin"),
        false => path.to_owned(),
    }
}

/// Whether a file is a capture, of any version, by its first bytes.
pub(crate) fn is_capture(path: &Path) -> bool {
    let mut head = [0; capture::MAGIC.len()];
    caller::metadata(path).is_ok_and(|metadata| metadata.is_file())
        && caller::open(path).is_ok_and(|mut file| file.read_exact(&mut head).is_ok())
        && head.starts_with(&capture::MAGIC[..7])
}

/// Opens a file and detects its type.
///
/// # Errors
/// It cannot be read.
pub(crate) fn open(path: &Path) -> Result<Input> {
    open::open(path).with_context(|| format!("cannot read {}", path.display()))
}

/// What was read.
#[derive(Debug)]
pub(crate) enum ReadCounts {
    /// A profile.
    Profile(Box<Profile>),
    /// Stacks that were folded already.
    Stacks(InputStacks),
}

/// Stacks that were folded already, and what is known of them.
#[derive(Debug)]
pub(crate) struct InputStacks {
    /// The stacks.
    pub(crate) folded: FoldedStacks,
    /// What their values are.
    pub(crate) weight: Weight,
    /// What they come from.
    pub(crate) contents: Contents,
}

/// Reads counts of any kind. `wanted` is the unit of the values: folded stacks are taken to have
/// it; from a pprof file its values are read, if there are some.
///
/// # Errors
/// The file cannot be read, is none of counts, or the options do not fit it.
pub(crate) fn counts(
    path: &Path,
    input: Input,
    reader: ProfileCommand,
    options: &ReplayOptions,
    wanted: Weight,
) -> Result<ReadCounts> {
    let Input { contents, mut text } = input;
    let context = || format!("cannot read {}", path.display());
    if is_counts(contents) && options.launches.is_some() {
        return Err(usage_error(format!(
            "--events needs a capture: {} is {} and has no calls or launches",
            path.display(),
            contents.what()
        )));
    }
    let profile = |profile| Ok(ReadCounts::Profile(Box::new(profile)));
    let stacks = |folded, weight| {
        Ok(ReadCounts::Stacks(InputStacks {
            folded,
            weight,
            contents,
        }))
    };
    let counts = match contents {
        Contents::Capture => profile(capture::replay_from(path, text, options)?),
        Contents::Iaprof => profile(iaprof::read(&mut BufReader::new(text)).with_context(context)?),
        Contents::StallCsv => {
            let stalls = unitrace_csv::read(&mut BufReader::new(text)).with_context(context)?;
            let mut read = profile_of(&stalls.table);
            read.losses.add(LossKind::DeviceUndecodable, stalls.skipped);
            profile(read)
        }
        Contents::Folded => {
            let folded = folded::read(&mut BufReader::new(text)).with_context(context)?;
            stacks(folded, wanted)
        }
        Contents::Pprof => {
            let read = pprof::read(&mut text, wanted).with_context(context)?;
            stacks(read.stacks, read.weight)
        }
        other => Err(refused(path, other, reader)),
    };
    memory::check().with_context(context)?;
    counts
}

/// Whether a file has counts, and no events.
pub(crate) fn is_counts(contents: Contents) -> bool {
    matches!(
        contents,
        Contents::Folded | Contents::Pprof | Contents::Iaprof | Contents::StallCsv
    )
}

/// Whether the samples of a profile have no times: unitrace gives none, iaprof only if it can read
/// the device's counters.
pub(crate) fn tells_no_times(profile: &Profile) -> bool {
    let is_of_samples = profile.values == Values::CpuTime;
    is_of_samples && profile.total_count() > 0 && profile.total_time_ns() == 0
}

/// The error for a format that cannot be made from the contents of a file.
pub(crate) fn not_of_this(path: &Path, contents: Contents, format: &FileFormat) -> anyhow::Error {
    usage_error(format!(
        "{} is {} and has no events, which {} needs; record a capture with \
         `aiprof -o FILE.aiprof`",
        path.display(),
        contents.what(),
        format.what
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_read_is_named_with_what_reads_it() {
        let text = |contents, reader| refused(Path::new("x"), contents, reader).to_string();
        let folded = text(Contents::Folded, ProfileCommand::Analyze);
        assert!(folded.contains("x is folded stacks"), "{folded}");
        assert!(folded.contains("use `aiprof report x`"), "{folded}");
        let trace = text(Contents::Json, ProfileCommand::Diff);
        assert!(trace.contains("use `aiprof analyze x`"), "{trace}");
        let unknown = text(Contents::Binary, ProfileCommand::Stalls);
        assert!(
            unknown.contains("`aiprof stalls` reads captures"),
            "{unknown}"
        );
    }

    #[test]
    fn values_are_those_that_were_asked_for_or_that_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, "main;f 3\n").unwrap();
        let options = ReplayOptions::default();
        let read = |path: &Path, wanted| {
            let input = open(path).unwrap();
            counts(path, input, ProfileCommand::Report, &options, wanted)
        };
        let ReadCounts::Stacks(stacks) = read(&path, Weight::Samples).unwrap() else {
            panic!()
        };
        assert_eq!((stacks.folded.total, stacks.weight), (3, Weight::Samples));
        std::fs::write(&path, "{}").unwrap();
        let error = read(&path, Weight::Time).unwrap_err().to_string();
        assert!(error.contains("is a JSON trace"), "{error}");
    }
}
