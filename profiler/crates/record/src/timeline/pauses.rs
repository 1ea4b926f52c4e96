//! When the recording was paused.

use super::{Builder, TrackKey};
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
        let Some(track) = self.writer.track(TrackKey::Pauses) else {
            return self.writer.out.losses.add(LossKind::SpansRefused, 1);
        };
        let name = self.writer.name("paused");
        let event = self
            .writer
            .span(name, "recording", track, (since_ns, pause.time_ns));
        self.writer.push(&event, 0, &Args::new());
    }
}
