//! The process that reads other users' files for a recording.

use super::wire;
use super::{Job, Jobs, SymbolizeOptions};
use crate::collect::{bpf::perf::take_turns, privileges};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::CapabilitySet;
use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

/// Name by which this program is started to serve; nothing else asks for it.
pub const SERVER: &str = "aiprof-names";

/// Whether this program would serve: set by [`serve_if_asked`].
static CAN_SERVE: AtomicBool = AtomicBool::new(false);

/// To be called first by `main`: serves and returns true if this process was
/// started for that (by the name [`SERVER`], with a socket as its stdin).
pub fn serve_if_asked(name: Option<&OsStr>) -> bool {
    if name != Some(OsStr::new(SERVER)) {
        CAN_SERVE.store(true, Ordering::Relaxed);
        return false;
    }
    // The socket is closed when the recording ends: that is no error.
    if let Err(error) = serve() {
        tracing::debug!("{SERVER}: {error}");
    }
    true
}

/// Whether processes can be started to serve. Not in programs that only use this
/// library, such as tests: started again they would do something else.
pub(super) fn can_serve() -> bool {
    CAN_SERVE.load(Ordering::Relaxed)
}

/// What reading other users' files takes.
pub(super) const NEEDED: CapabilitySet = CapabilitySet::SYS_PTRACE
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::CHECKPOINT_RESTORE);

fn serve() -> io::Result<()> {
    // The process that asks may be gone already: then the socket is closed.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    take_turns();
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    privileges::drop_to(NEEDED).map_err(io::Error::other)?;
    let (header, _) = wire::header(&socket)?;
    let options: SymbolizeOptions = wire::receive(header, |b| (&socket).read_exact(b))?;
    // Nobody else sets one here.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(Collect));
    let mut jobs = Jobs::new(options);
    loop {
        let (header, file) = wire::header(&socket)?;
        let job: Job = wire::receive(header, |b| (&socket).read_exact(b))?;
        let mut answer = jobs.run(&job, file.as_ref());
        answer.warnings.append(&mut warnings());
        wire::send(&socket, &answer, None)?;
    }
}

/// Warnings that were not sent yet.
static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Most of them.
const MAX_WARNINGS: usize = 100;

fn collected() -> MutexGuard<'static, Vec<String>> {
    WARNINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn warnings() -> Vec<String> {
    std::mem::take(&mut *collected())
}

/// Collects what modules warn of, for the recording to show.
struct Collect;

impl<S: tracing::Subscriber> Layer<S> for Collect {
    fn on_event(&self, event: &tracing::Event<'_>, _context: Context<'_, S>) {
        if *event.metadata().level() > tracing::Level::WARN {
            return;
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        let mut all = collected();
        if all.len() < MAX_WARNINGS {
            all.push(message.0);
        }
    }
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}
