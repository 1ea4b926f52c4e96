//! What a recording does when `aiprof ctl` asks for something, or something happens.

use super::RunningRecording;
use super::output::RecordingOutput;
use crate::cli::control;
use crate::cli::ring_dump::DumpFiles;
use crate::cli::stop::Stop;
use aiprof_live::control::{Asked, RecordState, Reply, Request};
use aiprof_live::session::{KnownProcess, Session};

impl RunningRecording<'_> {
    /// Answers those who wait for a state that the recording has now reached.
    pub(super) fn look_how_far(&mut self, session: &mut Session, stop: &mut Stop) {
        let mut done = Vec::new();
        if !session.is_paused() {
            done.extend(self.ready.reach(RecordState::Sampling));
        }
        for KnownProcess { pid, is_followed } in session.known().take() {
            let state = RecordState::Known(pid);
            if is_followed {
                done.extend(self.ready.reach(state));
            } else {
                done.extend(self.ready.take(|wanted| wanted == state));
            }
        }
        if !done.is_empty() {
            let status = self.status(session);
            done.into_iter()
                .for_each(|asked| stop.answer(asked, &status));
        }
        for pid in session.known().take_ended() {
            let ended = Reply::Refused(format!("process {pid} ended first"));
            let late = self.ready.take(|state| state == RecordState::Known(pid));
            late.into_iter()
                .for_each(|asked| stop.answer(asked, &ended));
        }
    }

    /// Somebody waits for a state.
    pub(super) fn await_state(
        &mut self,
        asked: Asked,
        state: RecordState,
        session: &mut Session,
        stop: &mut Stop,
    ) {
        let is_reached = match state {
            RecordState::Known(pid) => session.known().contains(pid),
            state => self.ready.has(state),
        };
        let refused = match state {
            _ if is_reached => return stop.answer(asked, &self.status(session)),
            RecordState::Known(pid) if !session.known().request(pid) => {
                format!(
                    "process {pid} does not exist, or too many `aiprof ctl` commands are waiting"
                )
            }
            _ if !self.ready.wait(asked, state, |asked| stop.has(asked)) => {
                "too many `aiprof ctl` commands are already waiting".to_owned()
            }
            _ => return,
        };
        stop.answer(asked, &Reply::Refused(refused));
    }

    fn status(&mut self, session: &mut Session) -> Reply {
        let what = self.what();
        control::answer(session, Request::Status, self.dumps(), &what)
    }

    /// Where the last seconds go, if they are kept.
    pub(super) fn dumps(&mut self) -> Option<&mut DumpFiles> {
        match &mut self.output {
            RecordingOutput::Dumps(files) => Some(files),
            _ => None,
        }
    }

    /// Something happened that was waited for, if anything did.
    pub(super) fn fired(&mut self, session: &mut Session) {
        let Some(fired) = session.triggers().take() else {
            return;
        };
        match self.dumps() {
            Some(files) => files.fired(fired, session),
            None => self.say(&format!("aiprof: recording: {}", fired.what)),
        }
    }

    /// What is recorded and where to, for who steers it.
    pub(super) fn what(&self) -> String {
        let config = &self.plan.config;
        let of = match (config.command.as_str(), config.pids.as_slice()) {
            ("", []) => "the machine".to_owned(),
            ("", pids) => format!("processes {pids:?}"),
            (command, _) => command.to_owned(),
        };
        format!("{of}; writes {}", self.plan.destination.place())
    }
}
