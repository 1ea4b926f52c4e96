//! What a command line of unitrace asks for.

use super::options::{Has, Id, OPTIONS, Opt};
use aiprof_live::control::{self, Request};
use aiprof_tables::unitrace::NameChoice;
use std::ffi::OsString;
use std::path::PathBuf;

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) host_timing: bool,
    pub(super) device_timing: bool,
    pub(super) submission: bool,
    pub(super) timeline: bool,
    pub(super) ccl: bool,
    pub(super) opencl: bool,
    pub(super) verbose: bool,
    pub(super) separate_tiles: bool,
    pub(super) start_paused: bool,
    /// What others call this recording.
    pub(super) session: Option<String>,
    pub(super) chrome: bool,
    pub(super) only_command: bool,
    pub(super) output: Option<PathBuf>,
    pub(super) output_dir: Option<PathBuf>,
    pub(super) result_dir: Option<PathBuf>,
    pub(super) commands: NameChoice,
    /// Files with more of that: to include, to exclude.
    pub(super) name_files: [Option<PathBuf>; 2],
    /// Ranks that are recorded; `None`: all.
    pub(super) ranks: Option<Vec<u32>>,
    /// unitrace's own arguments.
    pub(super) own: Vec<OsString>,
    /// What to run.
    pub(super) command: Vec<OsString>,
    /// Notes about options that change nothing.
    pub(super) notes: Vec<String>,
}

/// Why nothing is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoRun {
    /// The help was asked for.
    Help,
    /// The version was asked for.
    Version,
    /// The recording of this session is asked for that.
    Ask(String, Request),
    /// The command line is wrong.
    Usage(String),
}

/// Reads a command line, without the program's name. As unitrace does it, the first word
/// that is no option is the command; here `--` before it is allowed.
///
/// # Errors
/// The help or version was asked for, or something is wrong.
pub(super) fn parse(args: &[OsString]) -> Result<Settings, NoRun> {
    let mut settings = Settings::default();
    let mut rest = args.iter();
    let mut taken = 0;
    while let Some(arg) = rest.next() {
        let text = arg.to_str().unwrap_or("");
        if text == "--" {
            taken += 1;
            break;
        }
        let is_it = |opt: &&Opt| !text.is_empty() && (opt.short == text || opt.long == text);
        let Some(option) = OPTIONS.iter().find(is_it) else {
            if text.starts_with('-') {
                let message = format!("unknown option {text}; `aiprof unitrace --help` lists them");
                return Err(NoRun::Usage(message));
            }
            break;
        };
        taken += 1;
        let value = match option.value {
            "" => None,
            name => {
                taken += 1;
                let missing = || NoRun::Usage(format!("{text} needs {name}"));
                Some(rest.next().ok_or_else(missing)?)
            }
        };
        settings.take(option, value)?;
    }
    settings.own = args.iter().take(taken).cloned().collect();
    settings.command = args.iter().skip(taken).cloned().collect();
    settings.check()?;
    Ok(settings)
}

impl Settings {
    fn take(&mut self, option: &Opt, value: Option<&OsString>) -> Result<(), NoRun> {
        let id = match option.has {
            Has::Yes(id) => id,
            Has::Nothing(why) => {
                self.notes
                    .push(format!("{} has no effect: {why}", option.long));
                return Ok(());
            }
            Has::No(why) => {
                let message = format!("{} is not supported: {why}", option.long);
                return Err(NoRun::Usage(message));
            }
        };
        let path = || value.map(PathBuf::from);
        let text = || {
            value
                .map(|value| value.to_string_lossy().into_owned())
                .unwrap_or_default()
        };
        match id {
            Id::HostTiming => self.host_timing = true,
            Id::DeviceTiming => self.device_timing = true,
            Id::Submission => self.submission = true,
            Id::Timeline => self.timeline = true,
            Id::CclSummary => self.ccl = true,
            Id::OpenCl => self.opencl = true,
            Id::Verbose => self.verbose = true,
            Id::SeparateTiles => self.separate_tiles = true,
            Id::StartPaused => self.start_paused = true,
            Id::Session => self.session = Some(session(&text())?),
            Id::Pause | Id::Stop => return Err(NoRun::Ask(session(&text())?, Request::Pause)),
            Id::Resume => return Err(NoRun::Ask(session(&text())?, Request::Resume)),
            Id::Chrome => self.chrome = true,
            Id::Output => self.output = path(),
            Id::OutputDir => self.output_dir = path(),
            Id::ResultDir => self.result_dir = path(),
            Id::Include => self.commands.include.extend(NameChoice::parts(&text())),
            Id::Exclude => self.commands.exclude.extend(NameChoice::parts(&text())),
            Id::IncludeFile => self.name_files[0] = path(),
            Id::ExcludeFile => self.name_files[1] = path(),
            Id::Ranks => self.ranks = Some(ranks(&text())?),
            Id::FollowChildren => {
                self.only_command = match text().as_str() {
                    "0" => true,
                    "1" => false,
                    _ => {
                        return Err(NoRun::Usage(
                            "--follow-child-process takes 0 or 1".to_owned(),
                        ));
                    }
                }
            }
            Id::Version => return Err(NoRun::Version),
            Id::Help => return Err(NoRun::Help),
        }
        Ok(())
    }

    /// Whether tables go to files, and not to stderr.
    pub(super) fn has_files(&self) -> bool {
        self.output.is_some() || self.result_dir.is_some()
    }

    fn check(&self) -> Result<(), NoRun> {
        let wrong = |text: &str| Err(NoRun::Usage(text.to_owned()));
        if self.result_dir.is_some() && (self.output.is_some() || self.output_dir.is_some()) {
            return wrong("--result-dir cannot be combined with --output or --output-dir-path");
        }
        if self.command.is_empty() {
            return wrong("no command to run: name one after the options");
        }
        let asks = [
            self.host_timing,
            self.device_timing,
            self.submission,
            self.timeline,
            self.ccl,
            self.chrome,
        ];
        match asks.contains(&true) {
            true => Ok(()),
            false => {
                wrong("no output was requested: give -h, -d, -s, -t, -r or --chrome-call-logging")
            }
        }
    }
}

/// The name of a session.
fn session(name: &str) -> Result<String, NoRun> {
    match control::is_name(name) {
        true => Ok(name.to_owned()),
        false => Err(NoRun::Usage(format!(
            "{name:?} is not a valid session name"
        ))),
    }
}

/// Numbers in a list.
fn ranks(list: &str) -> Result<Vec<u32>, NoRun> {
    let numbers = list.split(',').map(|rank| rank.trim().parse().ok());
    let numbers: Option<Vec<u32>> = numbers.collect();
    numbers.ok_or_else(|| NoRun::Usage(format!("--ranks-to-sample takes numbers; got {list:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    fn settings(line: &str) -> Settings {
        parse(&words(line)).unwrap()
    }

    fn usage(line: &str) -> String {
        match parse(&words(line)) {
            Err(NoRun::Usage(message)) => message,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn sessions_are_steered_by_their_names() {
        assert_eq!(
            settings("-h --session s1 app").session.as_deref(),
            Some("s1")
        );
        for (line, request) in [
            ("--pause s1", Request::Pause),
            ("--resume s1", Request::Resume),
            ("--stop s1", Request::Pause),
        ] {
            let asked = NoRun::Ask("s1".to_owned(), request);
            assert_eq!(parse(&words(line)).unwrap_err(), asked);
        }
    }

    #[test]
    fn the_first_word_that_is_no_option_is_the_command() {
        let plain = settings("-h -d app -h --help");
        assert!(plain.host_timing && plain.device_timing && !plain.submission);
        assert_eq!(plain.command, words("app -h --help"));
        assert_eq!(plain.own, words("-h -d"));
        let dashes = settings("--kernel-submission -- -odd -t");
        assert!(dashes.submission && !dashes.timeline);
        assert_eq!(dashes.command, words("-odd -t"));
        // An option's value is no command.
        let output = settings("-o -h -t app");
        assert_eq!(output.output.as_deref(), Some("-h".as_ref()));
        assert!(!output.host_timing);
    }

    #[test]
    fn names_are_lists_and_add_up() {
        let all = settings("-d --include-kernels a,b --include-kernels c --exclude-kernels d app");
        assert_eq!(all.commands.include, ["a", "b", "c"]);
        assert_eq!(all.commands.exclude, ["d"]);
        assert_eq!(
            settings("-d --ranks-to-sample 0,3 app").ranks,
            Some(vec![0, 3])
        );
    }

    #[test]
    fn what_is_not_there_says_why() {
        for (line, part) in [
            (
                "-q app",
                "--metric-query is not supported: hardware metrics",
            ),
            (
                "-h --session a/b app",
                "\"a/b\" is not a valid session name",
            ),
            ("-c app", "`aiprof trace COMMAND`"),
            ("-h", "no command to run"),
            ("app", "no output was requested"),
            ("-h -o", "-o needs FILE"),
            ("--nix app", "unknown option --nix"),
            ("-h --follow-child-process 2 app", "takes 0 or 1"),
            ("-d --ranks-to-sample x app", "takes numbers"),
            ("-h --result-dir a -o b app", "cannot be combined with"),
        ] {
            assert!(usage(line).contains(part), "{line}: {}", usage(line));
        }
        let notes = settings("-d --demangle --chrome-event-buffer-size 5 app").notes;
        assert!(notes[0].starts_with("--demangle has no effect: "));
        assert_eq!(notes.len(), 2);
        assert_eq!(parse(&words("-h --help app")), Err(NoRun::Help));
        assert_eq!(parse(&words("--version")), Err(NoRun::Version));
    }
}
