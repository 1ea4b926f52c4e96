//! What processes, devices and streams are the same: by content, never by a number alone.
//!
//! Parts that are not known are `None`, and equal to each other.

use super::{Id, Time};
use rustc_hash::{FxHashMap, FxHashSet};

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessKey {
    /// Number of its host.
    pub host: Option<u32>,
    /// Its number on that host, or its group of rows.
    pub pid: Id,
    /// When it began.
    pub start: Option<Time>,
}

/// A device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceKey {
    /// Number of its host.
    pub host: Option<u32>,
    /// The process whose number for it this is; `None`: it is the driver's, or not known.
    pub process: Option<ProcessKey>,
    /// Its number, or its group of rows.
    pub number: Id,
}

/// A stream of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamKey {
    /// The device.
    pub device: DeviceKey,
    /// The stream's number, or its row.
    pub number: Id,
}

impl ProcessKey {
    /// The process with a number, of which no more is known.
    pub fn of_pid(pid: Id) -> Self {
        Self {
            host: None,
            pid,
            start: None,
        }
    }
}

impl DeviceKey {
    /// The device with a number, of which no more is known.
    pub fn of_number(number: Id) -> Self {
        Self {
            host: None,
            process: None,
            number,
        }
    }
}

/// What a file states about a group of rows in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatedRow {
    /// Name of the host.
    pub host: Option<String>,
    /// What identifies the device that the rows show: its UUID, or its PCI address.
    pub gpu: Option<String>,
}

/// What a file states about where it was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stated {
    /// Name of the host.
    pub host: Option<String>,
    /// What identifies devices, by their number in the process: UUIDs or PCI addresses.
    pub gpus: Vec<(i64, String)>,
    /// The same by the JSON text of a group's `pid`, of a file that has several processes.
    pub rows: Vec<(String, StatedRow)>,
    /// `deviceProperties`, its JSON text.
    pub devices: String,
}

/// A group of rows: those of a process, or of a device of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowGroup {
    /// Number of its host in [`Identity::hosts`].
    pub host: Option<u32>,
    /// The group of the process that it is of.
    pub process: Id,
    /// The first group with the same device; itself, where no other process uses that.
    pub same: Id,
}

/// What is known of the groups of rows of a timeline, by their `pid`: which are distinct there.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// Names of hosts.
    pub hosts: Vec<String>,
    /// Groups.
    pub groups: FxHashMap<Id, RowGroup>,
    /// What identifies the devices of groups, where files state it.
    pub gpus: FxHashMap<Id, String>,
    /// For devices that several processes use, by process and number: the first process that
    /// uses it, and its number there.
    pub shared: FxHashMap<(Id, Id), (Id, Id)>,
    /// Ranks whose rows or arrows have numbers in their files that another process has, too.
    pub renumbered: FxHashSet<u32>,
    /// Which devices were taken for one or for several without evidence, in words.
    pub assumed: Vec<String>,
}

impl Identity {
    /// The process with a group of rows.
    pub fn process(&self, pid: Id) -> ProcessKey {
        ProcessKey {
            host: self.groups.get(&pid).and_then(|group| group.host),
            ..ProcessKey::of_pid(pid)
        }
    }

    /// The device with a number on the rows of a group.
    pub fn device(&self, pid: Id, number: Id) -> DeviceKey {
        let Some(group) = self.groups.get(&pid) else {
            return DeviceKey::of_number(number);
        };
        let own = (group.process, number);
        let (process, number) = self.shared.get(&own).copied().unwrap_or(own);
        let process = self.process(process);
        DeviceKey {
            host: process.host,
            process: Some(process),
            number,
        }
    }

    /// The group that stands for the device of a group.
    pub fn same(&self, pid: Id) -> Id {
        self.groups.get(&pid).map_or(pid, |group| group.same)
    }

    /// The name of a host, where there are several.
    pub fn host_name(&self, host: Option<u32>) -> Option<&str> {
        let name = self.hosts.get(host? as usize)?;
        (self.hosts.len() > 1).then_some(name.as_str())
    }
}
