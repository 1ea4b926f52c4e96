//! When the recording was paused.

use super::{Builder, Key, Span};
use aiprof_model::{profile::LossKind, timeline::Args, timeline::recorded::EventSink, wire::Pause};

impl<S: EventSink> Builder<S> {
    /// The recording was paused, or goes on.
    pub(super) fn pause(&mut self, pause: Pause) {
        if pause.begins {
            // How what has been launched ends is not seen any more.
            self.launches.finish();
            self.take_known();
            self.paused_ns.get_or_insert(pause.time_ns);
            return;
        }
        let Some(since_ns) = self.paused_ns.take() else {
            return;
        };
        let Some(track) = self.track(Key::Pauses) else {
            return self.out.losses.add(LossKind::SpansRefused, 1);
        };
        let name = self.name("paused");
        let event = self.span(name, "recording", track, (since_ns, pause.time_ns));
        self.push(&Span { event, depth: 0 }, &Args::new());
    }
}
