//! What a command line of unitrace asks for.

use super::super::options::{self, OptionRow};
use super::places::OutputPaths;
use aiprof_live::control::{self, Request};
use aiprof_tables::unitrace::NameChoice;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::LazyLock;

/// What `--help` prints.
pub(super) const HELP: &str = include_str!("help.txt");
/// The heading above options that change nothing.
const WITHOUT_EFFECT: &str = "Accepted, without effect:";
/// The heading above options that are refused.
const REFUSED: &str = "Not supported:";

/// unitrace 2.3's options: those that aiprof has, and why it has not the others.
pub(super) static OPTIONS: LazyLock<Vec<OptionRow>> = LazyLock::new(|| options::rows(HELP));

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UnitraceSettings {
    pub(super) outputs: UnitraceOutputs,
    pub(super) opencl: bool,
    pub(super) verbose: bool,
    pub(super) separate_tiles: bool,
    pub(super) start_paused: bool,
    /// What others call this recording.
    pub(super) session: Option<String>,
    pub(super) only_command: bool,
    pub(super) paths: OutputPaths,
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

/// The outputs that are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UnitraceOutputs {
    pub(super) host_timing: bool,
    pub(super) device_timing: bool,
    pub(super) submission: bool,
    pub(super) timeline: bool,
    pub(super) ccl: bool,
    /// The trace.
    pub(super) chrome: bool,
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
pub(super) fn parse(args: &[OsString]) -> Result<UnitraceSettings, NoRun> {
    let mut settings = UnitraceSettings::default();
    let mut rest = args.iter();
    let mut taken = 0;
    while let Some(arg) = rest.next() {
        let text = arg.to_str().unwrap_or("");
        if text == "--" {
            taken += 1;
            break;
        }
        let Some(option) = options::named(&OPTIONS, text) else {
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
        settings.apply(option, value)?;
    }
    settings.own = args.iter().take(taken).cloned().collect();
    settings.command = args.iter().skip(taken).cloned().collect();
    settings.check()?;
    Ok(settings)
}

impl UnitraceSettings {
    fn apply(&mut self, option: &OptionRow, value: Option<&OsString>) -> Result<(), NoRun> {
        let (name, why) = (option.long, &option.help);
        match option.heading {
            WITHOUT_EFFECT => {
                self.notes.push(format!("{name} has no effect: {why}"));
                Ok(())
            }
            REFUSED => Err(NoRun::Usage(format!("{name} is not supported: {why}"))),
            _ => self.set(name, value),
        }
    }

    fn set(&mut self, name: &str, value: Option<&OsString>) -> Result<(), NoRun> {
        let path = || value.map(PathBuf::from);
        let text = || {
            value
                .map(|value| value.to_string_lossy().into_owned())
                .unwrap_or_default()
        };
        match name {
            "--host-timing" => self.outputs.host_timing = true,
            "--device-timing" => self.outputs.device_timing = true,
            "--kernel-submission" => self.outputs.submission = true,
            "--device-timeline" => self.outputs.timeline = true,
            "--ccl-summary-report" => self.outputs.ccl = true,
            "--opencl" => self.opencl = true,
            "--verbose" => self.verbose = true,
            "--separate-tiles" => self.separate_tiles = true,
            "--start-paused" | "--conditional-collection" => self.start_paused = true,
            "--session" => self.session = Some(session(&text())?),
            "--pause" | "--stop" => return Err(NoRun::Ask(session(&text())?, Request::Pause)),
            "--resume" => return Err(NoRun::Ask(session(&text())?, Request::Resume)),
            name if name.starts_with("--chrome-") => self.outputs.chrome = true,
            "--output" => self.paths.output = path(),
            "--output-dir-path" => self.paths.output_dir = path(),
            "--result-dir" => self.paths.result_dir = path(),
            "--include-kernels" => self.commands.include.extend(NameChoice::parts(&text())),
            "--exclude-kernels" => self.commands.exclude.extend(NameChoice::parts(&text())),
            "--include-kernels-file" => self.name_files[0] = path(),
            "--exclude-kernels-file" => self.name_files[1] = path(),
            "--ranks-to-sample" => self.ranks = Some(ranks(&text())?),
            "--follow-child-process" => {
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
            "--version" => return Err(NoRun::Version),
            "--help" => return Err(NoRun::Help),
            other => debug_assert!(false, "{other} has no effect"),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), NoRun> {
        let wrong = |text: &str| Err(NoRun::Usage(text.to_owned()));
        let paths = &self.paths;
        if paths.result_dir.is_some() && (paths.output.is_some() || paths.output_dir.is_some()) {
            return wrong("--result-dir cannot be combined with --output or --output-dir-path");
        }
        if self.command.is_empty() {
            return wrong("no command to run: name one after the options");
        }
        match self.outputs == UnitraceOutputs::default() {
            true => {
                wrong("no output was requested: give -h, -d, -s, -t, -r or --chrome-call-logging")
            }
            false => Ok(()),
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

    fn settings(line: &str) -> UnitraceSettings {
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
        let expected = UnitraceOutputs {
            host_timing: true,
            device_timing: true,
            ..UnitraceOutputs::default()
        };
        assert_eq!(plain.outputs, expected);
        assert_eq!(plain.command, words("app -h --help"));
        assert_eq!(plain.own, words("-h -d"));
        let dashes = settings("--kernel-submission -- -odd -t");
        assert!(dashes.outputs.submission && !dashes.outputs.timeline);
        assert_eq!(dashes.command, words("-odd -t"));
        // An option's value is no command.
        let output = settings("-o -h -t app");
        assert_eq!(output.paths.output.as_deref(), Some("-h".as_ref()));
        assert!(!output.outputs.host_timing);
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
