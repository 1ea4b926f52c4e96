//! The control socket of a recording: `aiprof ctl` pauses it, resumes it, asks how it is.

use super::control_args::Steering;
use super::ring_dump::DumpFiles;
use aiprof_live::control::{Control, Reply, Request, Status};
use aiprof_live::session::Session;
use aiprof_system::errors::chain;
use anyhow::{Context, Result, anyhow};

/// Opens the socket by which a recording is steered, if it has a name for one.
///
/// # Errors
/// It cannot be opened.
pub(super) fn open(steering: &Steering) -> Result<Option<Control>> {
    let open = |name: &String| {
        Control::open(name).with_context(|| format!("cannot create the control socket of {name}"))
    };
    steering.name.as_ref().map(open).transpose()
}

/// A line that shows how to steer it.
pub(super) fn hint(control: &Control, is_paused: bool) -> String {
    let name = control.name();
    match is_paused {
        true => format!("aiprof: paused until `aiprof ctl resume {name}`"),
        false => format!("aiprof: `aiprof ctl pause {name}` pauses this recording"),
    }
}

/// Applies a request, if the session can; gives the answer.
pub(super) fn answer(
    session: &mut Session,
    request: Request,
    files: Option<&mut DumpFiles>,
    what: &str,
) -> Reply {
    let mut dumps = files.as_ref().map_or(0, |files| files.written());
    let done = match (request, files) {
        (Request::Pause, _) => session.pause().map_err(anyhow::Error::from),
        (Request::Resume, _) => session.resume().map_err(anyhow::Error::from),
        (Request::Dump, Some(files)) => {
            dumps += 1;
            files.try_write(session)
        }
        (Request::Dump, None) => Err(anyhow!(
            "there is no window to write: start the recording with --window TIME"
        )),
        (Request::Rate(_), _) => Err(anyhow!("only an agent can change its frequency")),
        // These are answered when something has happened.
        (Request::Wait(_), _) => Err(anyhow!("this recording cannot be waited for")),
        (Request::Status | Request::Stop, _) => Ok(()),
    };
    match done {
        Ok(()) => Reply::Done(Box::new(status(session, dumps, what))),
        Err(error) => Reply::Refused(chain(&*error)),
    }
}

fn status(session: &Session, dumps: u64, what: &str) -> Status {
    let progress = session.progress();
    let ns = |length: std::time::Duration| u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
    let paused = session.paused();
    Status {
        pid: std::process::id(),
        paused: session.is_paused(),
        recorded_ns: ns(progress.elapsed.saturating_sub(paused)),
        paused_ns: ns(paused),
        samples: progress.samples,
        lost: progress.lost,
        dumps,
        what: what.to_owned(),
    }
}
