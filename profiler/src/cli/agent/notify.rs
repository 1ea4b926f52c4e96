//! Notifies systemd that the agent is ready, of its status, and that it is alive (`sd_notify(3)`).
//! Without systemd this does nothing.

use sd_notify::NotifyState;
use std::time::Duration;

/// It records.
pub(super) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// It reads its configuration again, and sends [`ready`] after that.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!("cannot read the clock for the service manager: {error}"),
    }
}

/// It ends.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// How it is.
pub(super) fn status(status: &str) {
    tell(&[NotifyState::Status(status)]);
}

/// It lives.
pub(super) fn alive() {
    tell(&[NotifyState::Watchdog]);
}

/// How often it must report that it is alive; `None`: systemd has no watchdog for it.
pub(super) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!("cannot notify the service manager: {error}");
    }
}
