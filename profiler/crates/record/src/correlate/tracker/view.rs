//! Records of calls with what their functions mean, for who acts on a record before it
//! is known whether it belongs to the recording. What calls come to, the tracker
//! reports: a view is one record, read once.

use super::Tracker;
use aiprof_model::{
    probes::Probe,
    wire::{Call, CallData},
};

/// The entry or the exit of a call.
#[derive(Clone, Copy, Debug)]
pub struct CallView<'a> {
    record: &'a Call,
    probe: &'a Probe,
}

impl<'a> CallView<'a> {
    /// The function.
    pub fn probe(&self) -> &'a Probe {
        self.probe
    }

    /// Process.
    pub fn pid(&self) -> u32 {
        self.record.pid
    }

    /// Thread.
    pub fn tid(&self) -> u32 {
        self.record.tid
    }

    /// The file, by its number.
    pub fn library(&self) -> u32 {
        self.record.library
    }

    /// Where on the thread's stack its return address is.
    pub fn sp(&self) -> u64 {
        self.record.sp
    }

    /// Whether it is the exit.
    pub fn is_exit(&self) -> bool {
        self.record.is_exit()
    }

    /// Whether the program begins a call: an entry, and not of a function that one of
    /// an outer library went on in.
    pub fn begins(&self) -> bool {
        !self.record.is_exit() && !self.record.is_tail()
    }

    /// Whether the call is known to have failed.
    pub fn failed(&self) -> bool {
        self.is_exit() && self.probe.result.success(self.record.result) == Some(false)
    }

    /// The value in a slot, if it was read.
    pub fn value(&self, slot: usize) -> Option<u64> {
        self.record.value(slot)
    }
}

/// Data of a call.
#[derive(Clone, Copy, Debug)]
pub struct DataView<'a> {
    record: &'a CallData,
    probe: &'a Probe,
}

impl<'a> DataView<'a> {
    /// The function.
    pub fn probe(&self) -> &'a Probe {
        self.probe
    }

    /// Process.
    pub fn pid(&self) -> u32 {
        self.record.pid
    }

    /// Thread.
    pub fn tid(&self) -> u32 {
        self.record.tid
    }

    /// Which data: index in [`Probe::data`].
    pub fn tag(&self) -> u8 {
        self.record.tag
    }

    /// What the table calls the data.
    pub fn name(&self) -> &'a str {
        let info = self.probe.data.get(usize::from(self.record.tag));
        info.map_or("", |info| &info.name)
    }

    /// The bytes, unless the rest of them could not be read.
    pub fn whole(&self) -> Option<&'a [u8]> {
        (!self.record.unread).then_some(self.record.bytes.as_slice())
    }
}

impl Tracker {
    /// A record with what its function means; `None`: no such probe was announced.
    pub fn view<'a>(&'a self, record: &'a Call) -> Option<CallView<'a>> {
        let probe = self.announced(record.probe)?;
        Some(CallView { record, probe })
    }

    /// The same, of data.
    pub fn view_data<'a>(&'a self, record: &'a CallData) -> Option<DataView<'a>> {
        let probe = self.announced(record.probe)?;
        Some(DataView { record, probe })
    }
}
