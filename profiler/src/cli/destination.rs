//! Where results go, and as what: `-o` and `--format`.

use super::{stdout, usage_error};
use aiprof_formats::export::formats::{FOLDED, SUMMARY, TENSORBOARD};
use aiprof_formats::export::{FORMATS, FileFormat};
use aiprof_system::files::caller;
use anyhow::Result;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Parses `--format`. `hidden`: a format that the help does not list.
pub(crate) fn format_parser(
    hidden: Option<&'static FileFormat>,
) -> impl TypedValueParser<Value = &'static FileFormat> {
    let listed = FORMATS.into_iter().map(move |format| {
        let value = PossibleValue::new(format.name).help(format.help);
        value.hide(Some(format) == hidden)
    });
    PossibleValuesParser::new(listed)
        .try_map(|name| FileFormat::named(&name).ok_or("unknown format"))
}

/// Where a result goes, and as what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    /// The format of what is written.
    pub(crate) format: &'static FileFormat,
    /// Where it is written.
    pub(crate) place: OutputPlace,
}

/// Where results are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OutputPlace {
    /// To stdout.
    Stdout,
    /// Into a file.
    File(PathBuf),
    /// Into files for TensorBoard in a directory.
    Directory(PathBuf),
    /// Into one file per window in a directory.
    Windows {
        /// The directory.
        directory: PathBuf,
        /// Length of a window.
        every: Duration,
        /// How many files to keep; `None`: all.
        keep: Option<u32>,
    },
    /// Into files of the last seconds in a directory.
    Dumps(PathBuf),
}

impl Destination {
    /// From `-o` and `--format`.
    ///
    /// # Errors
    /// A usage error if the format is not known, or binary and for a terminal; stdout
    /// is closed and needed.
    pub(crate) fn new(output: Option<&Path>, format: Option<&'static FileFormat>) -> Result<Self> {
        let destination = Self::decide(output, format, io::stdout().is_terminal())?;
        if destination.place == OutputPlace::Stdout {
            stdout::require()?;
        }
        Ok(destination)
    }

    fn decide(
        output: Option<&Path>,
        format: Option<&'static FileFormat>,
        terminal: bool,
    ) -> Result<Self> {
        let is_dash = output == Some(Path::new("-"));
        let Some(path) = output.filter(|_| !is_dash) else {
            let format = match format {
                Some(format) => format,
                None if terminal && !is_dash => &SUMMARY,
                None => &FOLDED,
            };
            if format == &TENSORBOARD {
                return Err(usage_error(
                    "--format tensorboard writes a directory: name it with -o DIR/",
                ));
            }
            if terminal && format.is_binary {
                return Err(usage_error(
                    "this format cannot be shown on a terminal: name a file with -o FILE",
                ));
            }
            let place = OutputPlace::Stdout;
            return Ok(Self { format, place });
        };
        let path_buf = path.to_owned();
        if is_directory(path, format)? {
            return Ok(Self {
                format: &TENSORBOARD,
                place: OutputPlace::Directory(path_buf),
            });
        }
        let format = format
            .or_else(|| FileFormat::of_file(path))
            .or_else(|| is_device(path).then_some(&FOLDED));
        Ok(Self {
            format: format.ok_or_else(|| unknown_extension(path))?,
            place: OutputPlace::File(path_buf),
        })
    }

    /// Whether single events are kept, not only what they add up to.
    pub(crate) fn keeps_events(&self) -> bool {
        self.format.profile_writer().is_none() || matches!(self.place, OutputPlace::Dumps(_))
    }

    /// Whether the recording itself is made as a timeline.
    pub(crate) fn is_trace(&self) -> bool {
        self.format.is_trace() && !matches!(self.place, OutputPlace::Dumps(_))
    }

    /// Whether it is the summary on stdout.
    pub(crate) fn is_shown_summary(&self) -> bool {
        self.format == &SUMMARY && self.place == OutputPlace::Stdout
    }

    /// Where results go, in words.
    pub(crate) fn place(&self) -> String {
        match &self.place {
            OutputPlace::Stdout => "to its standard output".to_owned(),
            OutputPlace::File(path) | OutputPlace::Directory(path) => path.display().to_string(),
            OutputPlace::Windows { directory, .. } | OutputPlace::Dumps(directory) => {
                format!("to {}", directory.display())
            }
        }
    }

    /// Whether the result goes through stdout to something that is no terminal. Other formats than
    /// the summary are taken to be for a program also on a terminal.
    pub(crate) fn uses_stdout(&self) -> bool {
        let is_for_people = self.format == &SUMMARY && io::stdout().is_terminal();
        self.place == OutputPlace::Stdout && !is_for_people
    }

    /// Whether files are written.
    pub(crate) fn writes_files(&self) -> bool {
        self.place != OutputPlace::Stdout
    }
}

/// Whether `-o` names a directory, for TensorBoard: its name ends in a slash, it is one already, or
/// the format requires one.
///
/// # Errors
/// It is a directory, and the format is a file's.
fn is_directory(path: &Path, format: Option<&'static FileFormat>) -> Result<bool> {
    let is_directory = path.as_os_str().as_encoded_bytes().ends_with(b"/") || caller::is_dir(path);
    match format {
        Some(format) if format == &TENSORBOARD => Ok(true),
        Some(_) if is_directory => {
            let example = path.join("profile.svg");
            Err(usage_error(format!(
                "{} is a directory, but this format is a file: name one in it, such as -o {}",
                path.display(),
                example.display()
            )))
        }
        _ => Ok(is_directory),
    }
}

/// Whether a path names no file but a device or a descriptor: /dev/null, /dev/stderr.
pub(crate) fn is_device(path: &Path) -> bool {
    path.starts_with("/dev") && !path.starts_with("/dev/shm")
}

fn unknown_extension(path: &Path) -> anyhow::Error {
    usage_error(format!(
        "the extension of {} names no format: use .folded, .svg, .pb.gz, .otlp, .json, .pftrace, \
         .html, .stalls.csv, .iaprof or .aiprof, DIR/ for TensorBoard, or give --format",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use OutputPlace::{Directory, File, Stdout};
    use aiprof_formats::export::formats::{CAPTURE, PPROF, SVG};

    #[test]
    fn the_destination_follows_from_output_format_and_terminal() {
        let file = |name: &str| File(name.into());
        for (output, given, terminal, format, place) in [
            (None, None, true, &SUMMARY, Stdout),
            (None, None, false, &FOLDED, Stdout),
            (None, Some(&SVG), true, &SVG, Stdout),
            (None, Some(&PPROF), false, &PPROF, Stdout),
            (Some("-"), None, true, &FOLDED, Stdout),
            (None, Some(&SUMMARY), true, &SUMMARY, Stdout),
            (None, Some(&SUMMARY), false, &SUMMARY, Stdout),
            (Some("-"), Some(&SUMMARY), false, &SUMMARY, Stdout),
            (Some("a.svg"), Some(&SUMMARY), true, &SUMMARY, file("a.svg")),
            (Some("a/"), None, true, &TENSORBOARD, Directory("a/".into())),
            (Some("/"), None, false, &TENSORBOARD, Directory("/".into())),
            (
                Some("a"),
                Some(&TENSORBOARD),
                true,
                &TENSORBOARD,
                Directory("a".into()),
            ),
            (Some("/dev/null"), None, true, &FOLDED, file("/dev/null")),
            (Some("a.svg"), None, true, &SVG, file("a.svg")),
            (Some("a.pb.gz"), None, true, &PPROF, file("a.pb.gz")),
            (Some("a.aiprof"), None, false, &CAPTURE, file("a.aiprof")),
            (Some("a.svg"), Some(&FOLDED), true, &FOLDED, file("a.svg")),
            (Some("a"), Some(&FOLDED), true, &FOLDED, file("a")),
        ] {
            let found = Destination::decide(output.map(Path::new), given, terminal).unwrap();
            let expected = Destination { format, place };
            assert_eq!(found, expected, "{output:?} {given:?} {terminal}");
        }
    }

    #[test]
    fn binary_on_a_terminal_and_unknown_names_are_refused() {
        for (output, format) in [
            (None, Some(&PPROF)),
            (Some("-"), Some(&CAPTURE)),
            (Some("profile"), None),
            (Some("a/"), Some(&SVG)),
            (None, Some(&TENSORBOARD)),
            (Some("-"), Some(&TENSORBOARD)),
            (None, FileFormat::named("perfetto")),
            (Some("profile.xyz"), None),
        ] {
            let error = Destination::decide(output.map(Path::new), format, true).unwrap_err();
            assert_eq!(crate::cli::exit_code(&error), 2, "{output:?} {format:?}");
        }
    }

    #[test]
    fn an_unknown_extension_is_answered_with_all_that_are_known() {
        let error = unknown_extension(Path::new("x.xyz")).to_string();
        for format in FORMATS
            .into_iter()
            .filter(|format| !format.extension().is_empty())
        {
            assert!(
                error.contains(&format!(".{}", format.extension())),
                "{error}"
            );
        }
    }
}
