//! Where results go, and as what: `-o` and `--format`.

use super::profile_out::ProfileFormat;
use super::{stdout, usage_error};
use aiprof_formats::export::Format;
use aiprof_system::files::caller;
use anyhow::Result;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where a profile goes, and as what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// A short text on the terminal.
    Summary,
    /// The same text in a file.
    SummaryFile(PathBuf),
    /// A directory for TensorBoard.
    Directory(PathBuf),
    /// stdout.
    Stdout(Format),
    /// A file.
    File(PathBuf, Format),
    /// One file per window in a directory.
    Windows {
        /// The directory.
        directory: PathBuf,
        /// Format of each file.
        format: Format,
        /// Length of a window.
        every: Duration,
        /// How many files to keep; `None`: all.
        keep: Option<u32>,
    },
    /// Files of the last seconds in a directory.
    Dumps(PathBuf, Format),
}

impl Destination {
    /// Whether it shows the source lines of frames: others have names only.
    pub(crate) fn has_source_lines(&self) -> bool {
        let (Self::Stdout(format)
        | Self::File(_, format)
        | Self::Dumps(_, format)
        | Self::Windows { format, .. }) = self
        else {
            return false;
        };
        // A profile with source lines can still be made from a capture.
        matches!(format, Format::Pprof | Format::Otlp | Format::Capture)
    }

    /// Whether single events are kept, not only what they add up to.
    pub(crate) fn keeps_events(&self) -> bool {
        self.is_trace()
            || matches!(
                self,
                Self::File(_, Format::Capture) | Self::Stdout(Format::Capture) | Self::Dumps(..)
            )
    }

    /// Where results go, in words.
    pub(crate) fn place(&self) -> String {
        match self {
            Self::Summary | Self::Stdout(_) => "to its standard output".to_owned(),
            Self::SummaryFile(path) | Self::Directory(path) | Self::File(path, _) => {
                path.display().to_string()
            }
            Self::Windows { directory, .. } | Self::Dumps(directory, _) => {
                format!("to {}", directory.display())
            }
        }
    }

    /// Whether it is a timeline.
    pub(crate) fn is_trace(&self) -> bool {
        match self {
            Self::File(_, format) | Self::Stdout(format) => format.is_trace(),
            Self::Directory(_) => true,
            Self::Summary | Self::SummaryFile(_) | Self::Windows { .. } | Self::Dumps(..) => false,
        }
    }

    /// Whether waits have a place in what is written.
    pub(crate) fn has_waits(&self) -> bool {
        self.format() != Some(Format::Page)
    }

    /// From `-o` and `--format`.
    ///
    /// # Errors
    /// A usage error if the format is not known, or binary and for a terminal; stdout
    /// is closed and needed.
    pub(crate) fn new(output: Option<&Path>, format: Option<ProfileFormat>) -> Result<Self> {
        let destination = Self::decide(output, format, io::stdout().is_terminal())?;
        if matches!(destination, Self::Summary | Self::Stdout(_)) {
            stdout::require()?;
        }
        Ok(destination)
    }

    fn decide(
        output: Option<&Path>,
        format: Option<ProfileFormat>,
        terminal: bool,
    ) -> Result<Self> {
        let is_dash = output == Some(Path::new("-"));
        let file = output.filter(|_| !is_dash);
        match (file, format) {
            (Some(path), format) if is_directory(path, format)? => {
                Ok(Self::Directory(path.to_owned()))
            }
            (None, Some(ProfileFormat::Tensorboard)) => Err(usage_error(
                "--format tensorboard writes a directory: name it with -o DIR/",
            )),
            (Some(path), Some(ProfileFormat::Summary)) => Ok(Self::SummaryFile(path.to_owned())),
            (None, Some(ProfileFormat::Summary)) => Ok(Self::Summary),
            (None, None) if terminal && !is_dash => Ok(Self::Summary),
            (Some(path), format) => {
                let format = format
                    .and_then(ProfileFormat::of_file)
                    .or_else(|| Format::from_extension(path))
                    .or_else(|| is_device(path).then_some(Format::Folded));
                let format = format.ok_or_else(|| unknown_extension(path))?;
                Ok(Self::File(path.to_owned(), format))
            }
            (None, format) => {
                let format = format.and_then(ProfileFormat::of_file);
                let format = format.unwrap_or(Format::Folded);
                if terminal
                    && matches!(
                        format,
                        Format::Pprof | Format::Otlp | Format::Capture | Format::Perfetto
                    )
                {
                    return Err(usage_error(
                        "this format cannot be shown on a terminal: name a file with -o FILE",
                    ));
                }
                Ok(Self::Stdout(format))
            }
        }
    }

    /// The format; `None`: the summary for a terminal, which is none.
    pub(crate) fn format(&self) -> Option<Format> {
        match self {
            Self::Summary | Self::SummaryFile(_) => None,
            Self::Directory(_) => Some(Format::Chrome),
            Self::Stdout(format)
            | Self::File(_, format)
            | Self::Dumps(_, format)
            | Self::Windows { format, .. } => Some(*format),
        }
    }

    /// Whether the profile goes through stdout to something that is no terminal.
    pub(crate) fn uses_stdout(&self) -> bool {
        match self {
            Self::Stdout(_) => true,
            Self::Summary => !io::stdout().is_terminal(),
            Self::SummaryFile(_)
            | Self::File(..)
            | Self::Directory(_)
            | Self::Dumps(..)
            | Self::Windows { .. } => false,
        }
    }

    /// Whether files are written.
    pub(crate) fn writes_files(&self) -> bool {
        !matches!(self, Self::Summary | Self::Stdout(_))
    }
}

/// Whether `-o` names a directory, for TensorBoard: its name ends in a slash, it is one already, or
/// the format requires one.
///
/// # Errors
/// It is a directory, and the format is a file's.
pub(crate) fn is_directory(path: &Path, format: Option<ProfileFormat>) -> Result<bool> {
    let is_directory = path.as_os_str().as_encoded_bytes().ends_with(b"/") || caller::is_dir(path);
    match format {
        Some(ProfileFormat::Tensorboard) => Ok(true),
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

    #[test]
    fn the_destination_follows_from_output_format_and_terminal() {
        use Destination::{Directory, File, Stdout, Summary};
        let file = |name: &str, format| File(name.into(), format);
        for (output, format, terminal, expected) in [
            (None, None, true, Summary),
            (None, None, false, Stdout(Format::Folded)),
            (None, Some(ProfileFormat::Svg), true, Stdout(Format::Svg)),
            (
                None,
                Some(ProfileFormat::Pprof),
                false,
                Stdout(Format::Pprof),
            ),
            (Some("-"), None, true, Stdout(Format::Folded)),
            (None, Some(ProfileFormat::Summary), true, Summary),
            (None, Some(ProfileFormat::Summary), false, Summary),
            (Some("-"), Some(ProfileFormat::Summary), false, Summary),
            (
                Some("a.svg"),
                Some(ProfileFormat::Summary),
                true,
                Destination::SummaryFile("a.svg".into()),
            ),
            (Some("a/"), None, true, Directory("a/".into())),
            (Some("/"), None, false, Directory("/".into())),
            (
                Some("a"),
                Some(ProfileFormat::Tensorboard),
                true,
                Directory("a".into()),
            ),
            (
                Some("/dev/null"),
                None,
                true,
                file("/dev/null", Format::Folded),
            ),
            (Some("a.svg"), None, true, file("a.svg", Format::Svg)),
            (Some("a.pb.gz"), None, true, file("a.pb.gz", Format::Pprof)),
            (
                Some("a.aiprof"),
                None,
                false,
                file("a.aiprof", Format::Capture),
            ),
            (
                Some("a.svg"),
                Some(ProfileFormat::Folded),
                true,
                file("a.svg", Format::Folded),
            ),
            (
                Some("a"),
                Some(ProfileFormat::Folded),
                true,
                file("a", Format::Folded),
            ),
        ] {
            let found = Destination::decide(output.map(Path::new), format, terminal).unwrap();
            assert_eq!(found, expected, "{output:?} {format:?} {terminal}");
        }
    }

    #[test]
    fn binary_on_a_terminal_and_unknown_names_are_refused() {
        for (output, format) in [
            (None, Some(ProfileFormat::Pprof)),
            (Some("-"), Some(ProfileFormat::Capture)),
            (Some("profile"), None),
            (Some("a/"), Some(ProfileFormat::Svg)),
            (None, Some(ProfileFormat::Tensorboard)),
            (Some("-"), Some(ProfileFormat::Tensorboard)),
            (None, Some(ProfileFormat::Perfetto)),
            (Some("profile.xyz"), None),
        ] {
            let error = Destination::decide(output.map(Path::new), format, true).unwrap_err();
            assert_eq!(crate::cli::exit_code(&error), 2, "{output:?} {format:?}");
        }
    }
}
