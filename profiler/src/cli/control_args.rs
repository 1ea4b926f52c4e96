//! The options by which a recording is steered: from outside, by what happens in it, and to
//! what it keeps.

use super::usage_error;
use super::values;
use aiprof_collect::config::{Trigger, TriggerOn};
use aiprof_collect::control;
use anyhow::Result;
use clap::{Args, value_parser};
use std::time::Duration;

/// Most files that triggers write, unless something else is asked for.
const DUMPS: u32 = 16;

/// Options of recordings that are steered.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ControlArgs {
    /// Let `aiprof ctl` pause, resume and stop this recording
    ///
    /// NAME is what `aiprof ctl` calls it, if not the number of this process. Only this
    /// user and root can.
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true,
          default_missing_value = "", value_parser = parse_name)]
    control: Option<String>,

    /// Print lines on descriptor N: attached, sampling, known=PID
    ///
    /// N is 3 or higher, and open for writing when aiprof starts, as by `3>ready` in a
    /// shell. attached: all is loaded and attached, and COMMAND is about to run. sampling:
    /// samples are taken, and COMMAND runs. known=PID: files, unwind tables and probes of
    /// this process are complete; of COMMAND, processes of -p and the children of both, COMMAND
    /// first. COMMAND does not get the descriptor, and nobody has to read the lines.
    #[arg(long, value_name = "N", hide_short_help = true)]
    ready_fd: Option<i32>,

    /// Record nothing until `aiprof ctl resume`, or until a --trigger
    ///
    /// All is attached before, so that the resume takes no time. Pauses are in no rate
    /// and no length of the result; a trace shows them.
    #[arg(long, hide_short_help = true)]
    start_paused: bool,

    /// Begin to record when this happens (repeatable)
    ///
    /// call=FUNCTION: a function of a known runtime is called. kernel=TEXT: a kernel with
    /// TEXT in its name is launched. With ,longer=TIME behind: it took longer, such as
    /// kernel=gemm,longer=50ms; that is known when it is over, and of a kernel only where
    /// its program or runtime reads its times. With --window, the last seconds are written
    /// instead, each time.
    #[arg(long, value_name = "EVENT", hide_short_help = true, value_parser = parse_trigger)]
    trigger: Vec<Trigger>,

    /// Keep the last seconds only, and write them to a directory when that is asked for
    ///
    /// By `aiprof ctl dump`, by SIGUSR2, by a --trigger; without a --trigger also at the
    /// end. Each is a file in the directory of -o, a capture if --format says nothing else.
    /// Memory is bounded: 256 MiB for the events, 64 MiB for what they refer to.
    #[arg(long, value_name = "TIME", hide_short_help = true, conflicts_with = "every",
          value_parser = values::parse_duration)]
    window: Option<Duration>,

    /// With --window and --trigger: write so much later, with what happened meanwhile
    #[arg(long, value_name = "TIME", hide_short_help = true, requires_all = ["window", "trigger"],
          value_parser = values::parse_duration)]
    after: Option<Duration>,

    /// With --window and --trigger: write so many files at most
    #[arg(long, value_name = "N", hide_short_help = true, requires_all = ["window", "trigger"],
          default_value_t = DUMPS, value_parser = value_parser!(u32).range(1..))]
    dumps: u32,
}

/// How a recording is steered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Steering {
    /// What `aiprof ctl` calls it; `None`: it cannot be asked.
    pub(crate) name: Option<String>,
    /// Where it says how far it is.
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

    /// Whether somebody is to be told how far this very recording is.
    pub(crate) fn has_ready_fd(&self) -> bool {
        self.ready_fd.is_some()
    }

    /// What they mean together.
    ///
    /// # Errors
    /// A usage error.
    pub(crate) fn steering(&self, probes: bool) -> Result<Steering> {
        if !self.trigger.is_empty() && !probes {
            return Err(usage_error(
                "--trigger waits for calls and kernels, and --no-devices leaves none: add \
                 --events, or write a trace or a capture",
            ));
        }
        if self.window.is_some() && self.start_paused {
            return Err(usage_error(
                "--window keeps the last seconds at any time: --start-paused is for recordings \
                 that begin later",
            ));
        }
        let begins = self.window.is_none() && !self.trigger.is_empty();
        let own = || std::process::id().to_string();
        let name = match self.control.as_deref() {
            Some("") => Some(own()),
            Some(name) => Some(name.to_owned()),
            None => (self.start_paused || begins || self.window.is_some()).then(own),
        };
        Ok(Steering {
            name,
            ready_fd: self.ready_fd,
            start_paused: self.start_paused || begins,
            triggers: self.trigger.clone(),
            window: self.window,
            after: self.after.unwrap_or_default(),
            dumps: self.dumps,
        })
    }
}

fn parse_name(text: &str) -> Result<String, String> {
    if text.is_empty() || control::is_name(text) {
        return Ok(text.to_owned());
    }
    Err("a name has letters, digits, '.', '_' and '-', 64 at most".to_owned())
}

/// Parses `call=FUNCTION` or `kernel=TEXT`, with `,longer=TIME` behind it or without.
fn parse_trigger(text: &str) -> Result<Trigger, String> {
    let expected = || {
        "expected call=FUNCTION or kernel=TEXT, and perhaps ,longer=TIME behind it, such as \
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
