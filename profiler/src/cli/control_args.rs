//! The options by which a recording is steered: from outside, by what happens in it, and to
//! what it keeps.

use super::values;
use aiprof_live::config::{Trigger, TriggerOn};
use aiprof_live::control;
use clap::{Args, value_parser};
use std::time::Duration;

/// Most files that triggers write, unless something else is asked for.
const DUMPS: u32 = 16;

/// Options of recordings that are steered.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ControlArgs {
    /// Let `aiprof ctl` pause, resume and stop this recording
    ///
    /// NAME is the recording's name for `aiprof ctl`. The default is the PID of this aiprof.
    /// Only the same user and root can control the recording. --start-paused, --trigger and
    /// --window include this option.
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true,
          default_missing_value = "", value_parser = parse_name)]
    control: Option<String>,

    /// Write each state to descriptor N when it is reached: attached, sampling, known=PID
    ///
    /// N is 3 or higher. It must be open for writing when aiprof starts, for example by
    /// `3>ready` in a shell.
    ///
    /// attached: everything is loaded and attached, and COMMAND is about to run. sampling:
    /// samples are taken, and COMMAND runs. known=PID: aiprof has read the code of process PID,
    /// loaded its unwind tables and attached its probes. aiprof prints known=PID for COMMAND, processes of -p and the
    /// children of both, with COMMAND first.
    ///
    /// COMMAND does not inherit the descriptor. aiprof does not wait for a reader.
    #[arg(long, value_name = "N", hide_short_help = true)]
    ready_fd: Option<i32>,

    /// Record nothing until `aiprof ctl resume`, or until a --trigger
    ///
    /// All probes are attached at the start, so that recording begins without delay. Paused time is
    /// excluded from rates and durations; traces mark it.
    #[arg(long, hide_short_help = true)]
    start_paused: bool,

    /// Start to record at this event (repeatable)
    ///
    /// call=FUNCTION: a function of a known runtime is called. kernel=TEXT: a kernel with TEXT
    /// in its name is launched.
    ///
    /// Append ,longer=TIME to require a minimum duration, as in kernel=gemm,longer=50ms. The
    /// trigger then acts when the call or kernel has ended. For kernels, this needs
    /// --device-timing, unless the program itself reads its kernels' times.
    ///
    /// With --window, each event writes the window instead.
    #[arg(long, value_name = "EVENT", hide_short_help = true, value_parser = parse_trigger)]
    trigger: Vec<Trigger>,

    /// Keep only the last TIME, such as 10s, and write it on request
    ///
    /// `aiprof ctl dump`, SIGUSR2 or a --trigger writes a file to the directory that -o names.
    /// Without a --trigger, aiprof also writes one at the end. The file is a capture unless
    /// --format selects another format. Events take at most 256 MiB of memory; above that, the
    /// window gets shorter. Older objects that these events use, such as modules, take at most
    /// 64 MiB more.
    #[arg(long, value_name = "TIME", hide_short_help = true, conflicts_with = "every",
          value_parser = values::parse_duration)]
    window: Option<Duration>,

    /// With --window and --trigger, write the file this long after the event
    #[arg(long, value_name = "TIME", hide_short_help = true, requires_all = ["window", "trigger"],
          value_parser = values::parse_duration)]
    after: Option<Duration>,

    /// With --window and --trigger, write at most N files
    #[arg(long, value_name = "N", hide_short_help = true, requires_all = ["window", "trigger"],
          default_value_t = DUMPS, value_parser = value_parser!(u32).range(1..))]
    dumps: u32,
}

/// How a recording is steered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Steering {
    /// What `aiprof ctl` calls it; `None`: it cannot be asked.
    pub(crate) name: Option<String>,
    /// Where it prints its progress.
    pub(crate) ready_fd: Option<i32>,
    /// Begin paused.
    pub(crate) start_paused: bool,
    /// What begins it, or has its last seconds written.
    pub(crate) triggers: Vec<Trigger>,
    /// Keep only so much.
    pub(crate) window: Option<Duration>,
    /// Write it so much after a trigger.
    pub(crate) after: Duration,
    /// How many files triggers write at most.
    pub(crate) dumps: u32,
}

impl Steering {
    /// Whether it depends on how long calls take.
    pub(crate) fn wants_call_times(&self) -> bool {
        let of_calls = |trigger: &Trigger| {
            trigger.longer_ns.is_some() && matches!(trigger.on, TriggerOn::Call(_))
        };
        self.triggers.iter().any(of_calls)
    }
}

impl ControlArgs {
    /// The length of the window that is kept.
    pub(crate) fn window(&self) -> Option<Duration> {
        self.window
    }

    /// Whether this recording itself must report its progress to a descriptor.
    pub(crate) fn has_ready_fd(&self) -> bool {
        self.ready_fd.is_some()
    }

    /// Whether each of these options was given.
    pub(crate) fn given(&self) -> [(&'static str, bool); 3] {
        [
            ("--trigger", !self.trigger.is_empty()),
            ("--start-paused", self.start_paused),
            ("--window", self.window.is_some()),
        ]
    }

    /// What they mean together.
    pub(crate) fn steering(&self) -> Steering {
        let begins = self.window.is_none() && !self.trigger.is_empty();
        let own = || std::process::id().to_string();
        let name = match self.control.as_deref() {
            Some("") => Some(own()),
            Some(name) => Some(name.to_owned()),
            None => (self.start_paused || begins || self.window.is_some()).then(own),
        };
        Steering {
            name,
            ready_fd: self.ready_fd,
            start_paused: self.start_paused || begins,
            triggers: self.trigger.clone(),
            window: self.window,
            after: self.after.unwrap_or_default(),
            dumps: self.dumps,
        }
    }
}

fn parse_name(text: &str) -> Result<String, String> {
    if text.is_empty() || control::is_name(text) {
        return Ok(text.to_owned());
    }
    Err("a name must have at most 64 of the characters a-z A-Z 0-9 . _ -".to_owned())
}

/// Parses `call=FUNCTION` or `kernel=TEXT`, with `,longer=TIME` behind it or without.
fn parse_trigger(text: &str) -> Result<Trigger, String> {
    let expected = || {
        "expected call=FUNCTION or kernel=TEXT, optionally followed by ,longer=TIME, such as \
         kernel=gemm,longer=50ms"
            .to_owned()
    };
    let (on, longer_ns) = match text.rsplit_once(",longer=") {
        Some((on, time)) => (on, Some(values::parse_span(time)?)),
        None => (text, None),
    };
    let on = match on.split_once('=') {
        Some(("call", name)) if !name.is_empty() => TriggerOn::Call(name.to_owned()),
        Some(("kernel", part)) if !part.is_empty() => TriggerOn::Kernel(part.to_owned()),
        _ => return Err(expected()),
    };
    Ok(Trigger { on, longer_ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn triggers_say_what_and_how_long() {
        let call = |name: &str| TriggerOn::Call(name.to_owned());
        let kernel = |part: &str| TriggerOn::Kernel(part.to_owned());
        for (text, on, longer_ns) in [
            ("call=zeModuleCreate", call("zeModuleCreate"), None),
            ("kernel=gemm", kernel("gemm"), None),
            ("kernel=a=b,c", kernel("a=b,c"), None),
            ("kernel=gemm,longer=50ms", kernel("gemm"), Some(50_000_000)),
            ("call=f,longer=1.5us", call("f"), Some(1500)),
        ] {
            assert_eq!(parse_trigger(text), Ok(Trigger { on, longer_ns }), "{text}");
        }
        for text in [
            "",
            "call",
            "call=",
            "kernel=,longer=1ms",
            "k=x",
            "call=f,longer=9",
        ] {
            assert!(parse_trigger(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_are_those_that_sockets_can_have() {
        assert_eq!(parse_name(""), Ok(String::new()));
        assert_eq!(parse_name("train-1"), Ok("train-1".to_owned()));
        assert!(parse_name("../x").is_err());
    }
}
