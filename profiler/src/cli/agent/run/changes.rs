//! What changes an agent that runs: a new configuration, a request, the budget.

use super::{Agent, Recorded, Wakes, asked, host_id, record_config, turns_of};
use crate::cli::agent::checks;
use crate::cli::agent::governor::RecordingLevel;
use crate::cli::agent::notify;
use crate::cli::agent::outputs::Outputs;
use aiprof_fleet::config::{Config, FREQUENCY};
use aiprof_fleet::shared;
use aiprof_live::config::RecordConfig;
use aiprof_live::control::{Reply, Request, Status};
use aiprof_live::session::{Keep, Session};
use aiprof_system::errors::chain;
use anyhow::{Context as _, Result, bail};
use std::time::Duration;

impl Agent {
    /// Records this from now on; what was recorded before is a window of its own.
    pub(super) async fn record(
        &mut self,
        before: Recorded,
        mut level: RecordingLevel,
    ) -> Result<()> {
        if level.launches && !before.level.launches {
            let config = self.config.clone();
            let Err(error) = self.hand_over(&config, (before, level)).await else {
                return Ok(());
            };
            tracing::warn!("cannot resume recording launches: {}", chain(&*error));
            self.overrides.has_no_launches = true;
            self.governor.give_up_launches();
            level.launches = false;
        }
        let window = match level.frequency_hz == before.level.frequency_hz {
            true => self.session.end_window()?,
            false => self.session.set_frequency(level.frequency_hz)?,
        };
        self.session.set_waits(level.waits)?;
        if before.level.launches && !level.launches {
            self.session.stop_launches();
        }
        self.finish_window_of(window, before);
        Ok(())
    }

    /// Records by a new session from now on, with `config` and at this level. It is made ready
    /// while the old session goes on.
    async fn hand_over(
        &mut self,
        config: &Config,
        (before, level): (Recorded, RecordingLevel),
    ) -> Result<()> {
        let host_id = host_id(config);
        let wanted = RecordConfig {
            start_paused: true,
            ..record_config(config, &host_id, level)
        };
        let has_devices = self.config.record.devices;
        if has_devices {
            // A device has one sampler only.
            self.session.stop_devices();
        }
        let next = self.make_ready(&wanted, level).await;
        let mut next = next.with_context(|| match has_devices {
            true => "devices are not sampled until the agent restarts",
            false => "cannot start another recording",
        })?;
        let is_paused = self.session.is_paused();
        self.session.pause()?;
        if !is_paused && let Err(error) = next.begin() {
            self.session.resume()?;
            return Err(error.into());
        }
        let window = self.session.end_window()?;
        self.finish_window_of(window, before);
        self.counts.session_is_over(&self.session);
        self.host_id = host_id;
        let old = std::mem::replace(&mut self.session, next);
        if let Err(error) = old.finish() {
            tracing::warn!("the previous recording did not end cleanly: {error}");
        }
        // As that of the first, its start is not in the budget.
        self.counts.spent(&self.session, self.sender.as_ref());
        self.governor.meets_what_runs();
        Ok(())
    }

    /// A session that is ready to begin; the one so far is read meanwhile.
    async fn make_ready(
        &mut self,
        wanted: &RecordConfig,
        level: RecordingLevel,
    ) -> Result<Session> {
        let mut next = Session::start(wanted, Keep::Nothing)?;
        let mut prepared = Ok(());
        let until = async { prepared = next.prepare(std::future::pending()).await };
        self.session.run(until, |_| {}).await?;
        prepared?;
        next.set_waits(level.waits)?;
        Ok(next)
    }

    /// Reads the configuration again. One that is wrong changes nothing.
    pub(super) async fn reload(&mut self, wakes: &mut Wakes) -> Result<()> {
        notify::reloading();
        match self.try_reload(wakes).await {
            Ok(()) => tracing::info!("{}: configuration reloaded", self.file.path().display()),
            Err(error) => tracing::error!(
                "{}; the previous configuration stays in use",
                chain(&*error)
            ),
        }
        notify::ready("recording");
        Ok(())
    }

    async fn try_reload(&mut self, wakes: &mut Wakes) -> Result<()> {
        let config = self.file.read()?;
        for (key, is_other) in [
            ("state", config.state != self.config.state),
            ("control", config.control != self.config.control),
        ] {
            if is_other {
                bail!(
                    "{}: to change `{key}`, restart the agent",
                    self.file.path().display()
                );
            }
        }
        let mut checked = Ok(());
        let path = self.file.path().to_owned();
        let sender = match self.is_sent_by_others {
            true => checks::SenderCheck::Skipped,
            false => checks::SenderCheck::ButPort,
        };
        let until = async { checked = checks::find(&path, &config, sender).await };
        self.session.run(until, |_| {}).await?;
        checked?;
        shared::prepare(&config)?;
        let mut outputs = Outputs::open(&config)?;
        let is_sent = config.outputs.iter().any(|output| output.to.is_sent());
        if is_sent && self.sender.is_none() && !self.is_sent_by_others {
            bail!("an output needs aiprof-send, which is not running: restart the agent");
        }
        // What was recorded so far goes where it was to go.
        let before = self.so_far();
        let mut level = asked(&config);
        level.launches &= !self.overrides.has_no_launches;
        let needs_another = config.record != self.config.record
            || config.labels != self.config.labels
            || config.host_id != self.config.host_id;
        let is_other = (level, config.budget.cpu) != (self.asked(), self.config.budget.cpu);
        if needs_another {
            self.hand_over(&config, (before, level)).await?;
            self.overrides.has_no_launches = false;
        } else if is_other {
            self.record(before, level).await?;
        } else {
            let window = self.session.end_window()?;
            self.finish_window(window);
        }
        if needs_another || is_other {
            // They may just have been given up.
            level.launches &= !self.overrides.has_no_launches;
            self.governor
                .ask(level, config.budget.cpu, self.counts.cpus());
        }
        self.overrides.rate = None;
        *wakes = Wakes::new(config.window);
        outputs.go_on_from(&self.outputs);
        outputs.claim();
        self.outputs = outputs;
        self.config = config;
        if let Some(sender) = &mut self.sender {
            sender.reload();
        }
        self.turns = turns_of(&self.config, &self.host_id, &self.session);
        self.take_turns()?;
        self.tell();
        Ok(())
    }

    /// Does what somebody asks for.
    pub(super) async fn obey(&mut self, request: Request) -> Reply {
        let done = match request {
            Request::Pause => {
                self.is_paused = true;
                self.session.pause().map_err(anyhow::Error::from)
            }
            Request::Resume => {
                self.is_paused = false;
                match self.waits_for_slot {
                    true => Ok(()),
                    false => self.session.resume().map_err(anyhow::Error::from),
                }
            }
            Request::Dump if self.waits_for_slot => Err(anyhow::anyhow!(
                "not recording until this host's next slot (`one_in`)"
            )),
            Request::Dump => self
                .session
                .end_window()
                .map(|window| self.finish_window(window))
                .map_err(anyhow::Error::from),
            Request::Rate(hz) => self.sample_at(hz).await,
            Request::Wait(_) => Err(anyhow::anyhow!(
                "--wait works with recordings only, not with the agent"
            )),
            Request::Status | Request::Stop => Ok(()),
        };
        match done {
            Ok(()) => Reply::Done(Box::new(self.state())),
            Err(error) => Reply::Refused(chain(&*error)),
        }
    }

    /// Samples so often, as somebody asks for, until the configuration is read again.
    async fn sample_at(&mut self, hz: u32) -> Result<()> {
        if !FREQUENCY.contains(&hz) {
            let (least, most) = (FREQUENCY.start(), FREQUENCY.end());
            bail!("the rate must be {least} to {most} samples per second");
        }
        let before = self.so_far();
        self.overrides.rate = Some(hz);
        self.record(before, self.asked()).await?;
        let (share, cpus) = (self.config.budget.cpu, self.counts.cpus());
        self.governor.ask(self.asked(), share, cpus);
        tracing::info!("sampling at {hz} Hz on request");
        Ok(())
    }

    fn state(&self) -> Status {
        let progress = self.session.progress();
        let ns = |length: Duration| u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        let paused = self.session.paused();
        Status {
            pid: std::process::id(),
            paused: self.is_paused,
            recorded_ns: ns(progress.elapsed.saturating_sub(paused)),
            paused_ns: ns(paused),
            samples: progress.samples,
            lost: progress.lost,
            dumps: 0,
            what: match self.waits_for_slot {
                true => "nothing until this host's next slot".to_owned(),
                false => {
                    let budget = self.config.budget.cpu;
                    self.counts.what(&self.governor, self.asked(), budget)
                }
            },
        }
    }
}
