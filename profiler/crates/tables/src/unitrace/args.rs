//! What a timeline has on a command, read in one pass over its arguments.

use super::plain;
use aiprof_model::timeline::{Event, Timeline, members};
use std::borrow::Cow;

/// An argument of a command that tables ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandKey {
    Pid,
    Tid,
    Api,
    Kind,
    Call,
    Launches,
    DeviceHandle,
    AppendUs,
    SubmitUs,
    Bytes,
    Simd,
    Groups,
    Grid,
    Local,
    Block,
    Compiled,
    Arguments,
    SlmBytes,
    PrivateBytes,
    SpillBytes,
    Registers,
}

impl CommandKey {
    const COUNT: usize = Self::Registers as usize + 1;

    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "pid" => Self::Pid,
            "tid" => Self::Tid,
            "api" => Self::Api,
            "kind" => Self::Kind,
            "call" => Self::Call,
            "launches" => Self::Launches,
            "device_handle" => Self::DeviceHandle,
            "append_us" => Self::AppendUs,
            "submit_us" => Self::SubmitUs,
            "bytes" => Self::Bytes,
            "simd" => Self::Simd,
            "groups" => Self::Groups,
            "grid" => Self::Grid,
            "local" => Self::Local,
            "block" => Self::Block,
            "compiled" => Self::Compiled,
            "arguments" => Self::Arguments,
            "slm_bytes" => Self::SlmBytes,
            "private_bytes" => Self::PrivateBytes,
            "spill_bytes" => Self::SpillBytes,
            "registers" => Self::Registers,
            _ => return None,
        })
    }
}

/// The values of these arguments, as JSON. If several have one name, the first counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CommandArgs<'t>([Option<&'t str>; CommandKey::COUNT]);

impl<'t> CommandArgs<'t> {
    /// Those of an event.
    pub(super) fn of(timeline: &'t Timeline, event: &Event) -> Self {
        let mut known = Self::default();
        for (name, value) in members(timeline.texts.get(event.args)) {
            if let Some(key) = CommandKey::of(name)
                && let Some(slot) = known.0.get_mut(key as usize)
            {
                slot.get_or_insert(value);
            }
        }
        known
    }

    pub(super) fn json(&self, key: CommandKey) -> Option<&'t str> {
        self.0.get(key as usize).copied().flatten()
    }

    pub(super) fn text(&self, key: CommandKey) -> Option<Cow<'t, str>> {
        plain(self.json(key)?)
    }

    pub(super) fn number(&self, key: CommandKey) -> Option<u64> {
        self.json(key)?.parse().ok()
    }
}
