//! What others ask the agent for.

use aiprof_fleet::config::Config;
use aiprof_live::control::{Asked, Control, Reply};
use anyhow::{Context as _, Result};

/// The control socket, if there is one, and who waits for the agent's end.
pub(super) struct ControlRequests {
    name: String,
    control: Option<Control>,
    /// Who waits for the end.
    stoppers: Vec<Asked>,
}

impl ControlRequests {
    /// Opens the socket, if the configuration wants one.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(super) fn open(config: &Config) -> Result<Self> {
        let name = config.control.name.clone();
        let control = match config.control.local {
            true => Some(Control::open(&name).context("cannot open the control socket")?),
            false => None,
        };
        Ok(Self {
            name,
            control,
            stoppers: Vec::new(),
        })
    }

    /// What is asked for next. Never returns without a socket.
    pub(super) async fn next(&mut self) -> Asked {
        match &mut self.control {
            Some(control) => control.next().await,
            None => std::future::pending().await,
        }
    }

    /// Answers a request.
    pub(super) fn answer(&mut self, asked: Asked, answer: &Reply) {
        if let Some(control) = &mut self.control {
            control.answer(asked, answer);
        }
    }

    /// Somebody asked for the end, and gets an answer with [`Self::end`].
    pub(super) fn stop(&mut self, asked: Asked) {
        self.stoppers.push(asked);
    }

    /// The agent has ended: answers those who wait for that.
    pub(super) fn end(&mut self) {
        for asked in std::mem::take(&mut self.stoppers) {
            self.answer(asked, &Reply::Done(Box::default()));
        }
    }

    /// Opens the socket anew where somebody has deleted it.
    pub(super) fn reopen(&mut self) {
        if !self.control.as_ref().is_some_and(Control::is_gone) {
            return;
        }
        // Its name is free only when it is closed.
        self.control = None;
        match Control::open(&self.name) {
            Ok(control) => {
                tracing::warn!("the control socket was deleted; it was created again");
                self.control = Some(control);
            }
            Err(error) => tracing::error!(
                "the control socket was deleted and cannot be created again ({error}): `aiprof \
                 agent ctl` does not work until you restart the agent"
            ),
        }
    }
}
