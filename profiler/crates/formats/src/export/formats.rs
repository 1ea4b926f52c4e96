//! The formats that a recording or a capture can become: one row each.
//!
//! Whatever lists formats (`--format`, its help, completions, docs/options.md) is made from
//! [`FORMATS`], and docs/output-formats.md is compared with it.

use super::folded::FoldedStacks;
use super::summary::SummaryOptions;
use super::svg::Caption;
use super::{ExportError, ExportOptions};
use super::{chrome, folded, html, iaprof, otlp, perfetto, pprof, summary, svg, unitrace_csv};
use aiprof_model::profile::Profile;
use aiprof_model::timeline::recorded::Recorded;
use aiprof_record::store::Store;
use aiprof_trace::analyze::report::Report;
use std::fmt;
use std::io::{self, Write};
use std::path::Path;

/// A format of outputs: a row of [`FORMATS`].
pub struct FileFormat {
    /// Its name, as `--format` reads it.
    pub name: &'static str,
    /// Its purpose, as a line of a help text.
    pub help: &'static str,
    /// What a file of this format is, for people: `a flame graph`.
    pub what: &'static str,
    /// What follows the dot in names of such files, the usual one first. Empty: no name of a file
    /// chooses this format.
    pub extensions: &'static [&'static str],
    /// Whether terminals cannot show it.
    pub is_binary: bool,
    /// Whether it has the source lines of frames, whatever the options are.
    pub has_source_lines: bool,
    /// Its source, with the function that writes it.
    pub source: FormatSource,
}

/// What a format is made from, and the function that writes it.
pub enum FormatSource {
    /// A finished profile.
    Profile(ProfileWriter),
    /// The events of a recording.
    Timeline(fn(&Recorded, Store, &mut dyn Write) -> io::Result<()>),
    /// What an analysis of these events finds.
    Report(fn(&Report, &mut dyn Write) -> io::Result<()>),
    /// The analysis itself, which writes several files into a directory.
    Directory,
    /// Events as they come: the recording writes it.
    Capture,
}

/// How a format is made from a profile.
#[derive(Clone, Copy)]
pub struct ProfileWriter {
    /// Writes it. `out` needs no buffer of its own.
    pub write: ProfileFn,
    /// Writes it from stacks that were folded already, whose values are in the unit of the options'
    /// weight; `None`: these are not enough.
    pub write_stacks: Option<StacksFn>,
    /// What of the profile it shows.
    pub shows: ProfilePart,
}

/// Writes a profile.
type ProfileFn = fn(&Profile, &ExportOptions, &mut dyn Write) -> Result<(), ExportError>;

/// Writes a format from folded stacks.
type StacksFn =
    fn(&FoldedStacks, &Caption, &ExportOptions, &mut dyn Write) -> Result<(), ExportError>;

/// What a format shows of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfilePart {
    /// One stack of frames for each sample, in an order and with frames that options choose.
    Stacks,
    /// Whole samples: stacks, labels, addresses.
    Samples,
    /// The stalls of devices.
    Stalls,
    /// Totals.
    Totals,
}

impl ProfilePart {
    /// Whether CPU samples of processes that launched no work are left out where devices were
    /// sampled.
    pub fn leaves_out_processes(self) -> bool {
        matches!(self, Self::Stacks | Self::Samples)
    }
}

impl FileFormat {
    /// The format with a name.
    pub fn named(name: &str) -> Option<&'static Self> {
        FORMATS.into_iter().find(|format| format.name == name)
    }

    /// The format that a file name chooses, whatever its case; `None` when the extension is not
    /// known.
    pub fn of_file(path: &Path) -> Option<&'static Self> {
        let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
        FORMATS.into_iter().find(|format| format.is_of(&name))
    }

    /// Whether a name in lower case has one of the extensions.
    pub(crate) fn is_of(&self, name: &str) -> bool {
        let before_dot = |extension| name.strip_suffix(extension)?.strip_suffix('.');
        self.extensions
            .iter()
            .any(|extension| before_dot(*extension).is_some())
    }

    /// The usual extension; empty if there is none.
    pub fn extension(&self) -> &'static str {
        self.extensions.first().copied().unwrap_or_default()
    }

    /// Whether it is made from events, not from a finished profile.
    pub fn is_trace(&self) -> bool {
        use FormatSource::{Directory, Report, Timeline};
        matches!(self.source, Timeline(_) | Report(_) | Directory)
    }

    /// Whether each window of a long recording can be a file of this format.
    pub fn is_of_windows(&self) -> bool {
        self.profile_writer().is_some() && !self.extensions.is_empty()
    }

    /// The names of the formats of windows, for a message: `a, b or c`.
    pub fn names_of_windows() -> String {
        let all = FORMATS.iter().filter(|format| format.is_of_windows());
        let names: Vec<_> = all.map(|format| format.name).collect();
        match names.split_last() {
            Some((last, names)) if !names.is_empty() => format!("{} or {last}", names.join(", ")),
            _ => names.concat(),
        }
    }

    /// How it is made from a finished profile; `None`: it is made from something else.
    pub fn profile_writer(&self) -> Option<ProfileWriter> {
        match self.source {
            FormatSource::Profile(writer) => Some(writer),
            _ => None,
        }
    }

    /// What it shows of a profile; `None`: it is made from something else.
    pub fn shows(&self) -> Option<ProfilePart> {
        self.profile_writer().map(|writer| writer.shows)
    }
}

impl PartialEq for FileFormat {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for FileFormat {}

impl fmt::Debug for FileFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// All formats, in the order in which help texts list them.
pub static FORMATS: [&FileFormat; 12] = [
    &FOLDED,
    &SVG,
    &PPROF,
    &OTLP,
    &UNITRACE_CSV,
    &IAPROF,
    &CHROME,
    &PERFETTO,
    &PAGE,
    &CAPTURE,
    &TENSORBOARD,
    &SUMMARY,
];

/// What rows with this source have in common.
const fn of(source: FormatSource) -> FileFormat {
    FileFormat {
        name: "",
        help: "",
        what: "",
        extensions: &[],
        is_binary: false,
        has_source_lines: false,
        source,
    }
}

/// What rows of profiles have in common. Whole samples are binary and have all lines.
const fn of_profile(
    write: ProfileFn,
    write_stacks: Option<StacksFn>,
    shows: ProfilePart,
) -> FileFormat {
    let is_whole = matches!(shows, ProfilePart::Samples);
    FileFormat {
        is_binary: is_whole,
        has_source_lines: is_whole,
        ..of(FormatSource::Profile(ProfileWriter {
            write,
            write_stacks,
            shows,
        }))
    }
}

/// Folded stacks: one line per unique stack, see [`folded`].
pub static FOLDED: FileFormat = FileFormat {
    name: "folded",
    help: "Folded stacks: one line per stack, for flame graph tools",
    what: "folded stacks",
    extensions: &["folded", "collapsed", "txt"],
    ..of_profile(
        folded::write,
        Some(|stacks, _, options, out| folded::write_stacks(stacks, options, out)),
        ProfilePart::Stacks,
    )
};

/// A flame graph, see [`svg`].
pub static SVG: FileFormat = FileFormat {
    name: "svg",
    help: "Flame graph for a browser",
    what: "a flame graph",
    extensions: &["svg"],
    ..of_profile(svg::write, Some(svg::write_folded), ProfilePart::Stacks)
};

/// pprof's `profile.proto`, gzip-compressed, see [`pprof`].
pub static PPROF: FileFormat = FileFormat {
    name: "pprof",
    help: "pprof, gzipped",
    what: "a pprof profile",
    extensions: &["pb.gz", "pprof"],
    ..of_profile(
        pprof::write,
        Some(|stacks, _, options, out| pprof::write_folded(stacks, options, out)),
        ProfilePart::Samples,
    )
};

/// OpenTelemetry's profiles: a request that can be posted, see [`otlp`].
static OTLP: FileFormat = FileFormat {
    name: "otlp",
    help: "OTLP profiles, for OpenTelemetry collectors",
    what: "OTLP profiles",
    extensions: &["otlp"],
    ..of_profile(otlp::write, None, ProfilePart::Samples)
};

/// Stall counts by instruction, see [`unitrace_csv`].
static UNITRACE_CSV: FileFormat = FileFormat {
    name: "unitrace-csv",
    help: "Stall counts by device instruction, as unitrace writes them",
    what: "a stall table",
    extensions: &["stalls.csv"],
    ..of_profile(
        |profile, _, out| unitrace_csv::write(profile, out),
        None,
        ProfilePart::Stalls,
    )
};

/// iaprof's interchange text, see [`iaprof`].
static IAPROF: FileFormat = FileFormat {
    name: "iaprof",
    help: "iaprof's interchange text: stalls by launch and instruction",
    what: "iaprof's text",
    extensions: &["iaprof"],
    ..of_profile(
        |profile, _, out| iaprof::write(profile, out),
        None,
        ProfilePart::Stalls,
    )
};

/// A Chrome trace, see [`chrome`].
static CHROME: FileFormat = FileFormat {
    name: "chrome",
    help: "Chrome trace, for Perfetto and speedscope",
    what: "a Chrome trace",
    extensions: &["json", "json.gz"],
    ..of(FormatSource::Timeline(chrome::write))
};

/// A trace in Perfetto's own format, see [`perfetto`].
static PERFETTO: FileFormat = FileFormat {
    name: "perfetto",
    help: "Trace in Perfetto's own format: any length, with the stacks of samples",
    what: "a Perfetto trace",
    extensions: &["pftrace", "perfetto-trace"],
    is_binary: true,
    ..of(FormatSource::Timeline(perfetto::recording::write))
};

/// A page with findings and tables, see [`html`].
pub static PAGE: FileFormat = FileFormat {
    name: "page",
    help: "HTML page with findings and tables of what devices did",
    what: "a page of findings",
    extensions: &["html"],
    ..of(FormatSource::Report(html::write))
};

/// aiprof's own capture. It is written while recording.
pub static CAPTURE: FileFormat = FileFormat {
    name: "capture",
    help: "The whole recording, for `aiprof report`",
    what: "a capture",
    extensions: &["aiprof"],
    is_binary: true,
    // A profile with source lines can still be made from it.
    has_source_lines: true,
    ..of(FormatSource::Capture)
};

/// A directory with a Chrome trace for TensorBoard.
pub static TENSORBOARD: FileFormat = FileFormat {
    name: "tensorboard",
    help: "Trace for TensorBoard's PyTorch plugin, in a directory",
    what: "a Chrome trace",
    extensions: &[],
    ..of(FormatSource::Directory)
};

/// A short text, see [`summary`].
pub static SUMMARY: FileFormat = FileFormat {
    name: "summary",
    help: "Short text: totals and hottest functions",
    what: "the summary",
    extensions: &[],
    ..of_profile(
        |profile, options, out| summary::write(profile, &SummaryOptions::from(options), out),
        Some(|stacks, caption, options, out| {
            let layout = SummaryOptions::from(options);
            summary::write_folded(stacks, &caption.title, options.weight, &layout, out)
        }),
        ProfilePart::Totals,
    )
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_choose_formats() {
        let format = |name: &str| FileFormat::of_file(Path::new(name));
        assert_eq!(format("out.folded"), Some(&FOLDED));
        assert_eq!(format("/tmp/a.b/OUT.TXT"), Some(&FOLDED));
        assert_eq!(format("x.svg"), Some(&SVG));
        assert_eq!(format("x.pb.gz"), Some(&PPROF));
        assert_eq!(format("x.pprof"), Some(&PPROF));
        assert_eq!(format("x.aiprof"), Some(&CAPTURE));
        assert_eq!(format("trace.json"), Some(&CHROME));
        assert_eq!(format("TRACE.JSON.GZ"), Some(&CHROME));
        assert_eq!(format("x.pftrace"), Some(&PERFETTO));
        assert_eq!(format("x.gz"), None);
        assert_eq!(format("svg"), None);
        assert_eq!(format(".."), None);
    }

    #[test]
    fn names_are_read_back() {
        for format in FORMATS {
            assert_eq!(FileFormat::named(format.name), Some(format));
            for extension in format.extensions {
                let file = format!("x.{extension}");
                assert_eq!(FileFormat::of_file(Path::new(&file)), Some(format));
            }
        }
        assert_eq!(FileFormat::named("png"), None);
    }

    #[test]
    fn captures_and_traces_are_not_made_from_a_profile() {
        for format in [&CAPTURE, &CHROME, &PERFETTO, &PAGE, &TENSORBOARD] {
            assert!(format.profile_writer().is_none(), "{format:?}");
        }
    }

    /// docs/always-on.md lists what `--every` and the agent write to files.
    #[test]
    fn the_documentation_lists_every_format_of_windows() {
        let page = include_str!("../../../../../docs/always-on.md");
        let item = page.lines().find(|line| line.starts_with("- `--format`: "));
        let listed: Vec<_> = item.unwrap().split('`').skip(3).step_by(2).collect();
        for format in FORMATS {
            let is_listed = listed.contains(&format.name);
            assert_eq!(is_listed, format.is_of_windows(), "{format:?}: {listed:?}");
        }
    }

    #[test]
    fn the_documentation_lists_every_format() {
        let page = include_str!("../../../../../docs/output-formats.md");
        for format in FORMATS {
            let name = format!("| `{}` |", format.name);
            let row = page.lines().find(|line| line.contains(&name)).unwrap();
            for extension in format.extensions {
                assert!(row.contains(&format!("`.{extension}`")), "{row}");
            }
        }
    }
}
