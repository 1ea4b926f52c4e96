//! What processes, devices and streams are the same: by content, never by a number alone.
//!
//! Parts that are not known are `None`, and equal to each other.

use super::{Id, Time};

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
