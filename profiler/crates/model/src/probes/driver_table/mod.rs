//! Driver tables: which ioctls of which devices are observed, and what is read
//! there.
//!
//! A table is a TOML file with `[[device]]` and `[[ioctl]]` entries; docs/probes.md
//! describes it. [`parse_file`](super::parse_file) checks it whole, [`DriverTable::compile`] makes what the kernel
//! side runs, [`devices::resolve`] finds the devices of a machine that it is for.
//!
//! Commands are distinguished by type and number, never by size: structures grow.

#[cfg(test)]
mod abi;
mod compile;
pub mod devices;
mod field;
mod parse;
#[cfg(test)]
mod tests;

pub use super::tables::DriverTables;
pub use field::{Member, Members, members};
pub(super) use parse::parse_driver;

use super::ResultKind;
use super::ioctl::{Action, NumberNames};
use super::program::Field;

/// A checked table.
#[derive(Clone, Debug, Default)]
pub struct DriverTable {
    /// Its name: `xe`.
    pub name: String,
    /// The driver for people.
    pub api: String,
    /// What it was tested with; `None`: nothing yet.
    pub tested: Option<String>,
    /// Tables whose commands this driver has too.
    pub includes: Vec<String>,
    /// How its commands are numbered.
    pub numbering: Numbering,
    /// Kernel functions that get the driver's ioctls as (file, command, argument),
    /// outermost first; the first that the kernel has is probed.
    pub handlers: Vec<String>,
    /// The devices it is for: any of these.
    pub devices: Vec<DeviceMatch>,
    /// The commands, in the order of the file.
    pub ioctls: Vec<Ioctl>,
    /// Where it comes from: a path, or the name of a built-in one.
    pub source: String,
}

/// How a driver numbers its commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbering {
    /// By type and number, `_IOC` of include/uapi/asm-generic/ioctl.h; the type.
    Type(u8),
    /// The whole command is the number.
    Whole,
}

impl Default for Numbering {
    fn default() -> Self {
        Self::Type(0)
    }
}

impl Numbering {
    /// The bits of a command that distinguish commands.
    pub fn mask(self) -> u32 {
        match self {
            Self::Type(_) => 0xffff,
            Self::Whole => u32::MAX,
        }
    }

    /// The command with this number, in the bits of [`mask`](Self::mask).
    pub fn command(self, number: u32) -> u32 {
        match self {
            Self::Type(kind) => u32::from(kind) << 8 | number & 0xff,
            Self::Whole => number,
        }
    }
}

/// Devices that a table is for: those that meet all that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceMatch {
    /// The character device's major number.
    pub major: Option<Major>,
    /// Name of a miscellaneous device (/proc/misc).
    pub misc: Option<String>,
    /// The driver that sysfs names.
    pub driver: Option<String>,
    /// PCI vendor and device of it, or of a device in its IOMMU group.
    pub pci: Vec<PciId>,
    /// Name of a file without a node: `[vfio-device]`.
    pub file: Option<String>,
    /// Only while a device of this table is there.
    pub with: Option<String>,
}

/// A major number, given or by its name in /proc/devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Major {
    /// The number.
    Number(u32),
    /// The name.
    Name(String),
}

/// Vendor and device of a PCI device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PciId {
    /// Vendor.
    pub vendor: u16,
    /// Device.
    pub device: u16,
}

/// A command.
#[derive(Clone, Debug, Default)]
pub struct Ioctl {
    /// The name it has in the driver's header.
    pub name: String,
    /// Its number.
    pub number: u32,
    /// What it does.
    pub action: Action,
    /// The C type of its argument, if the header has one.
    pub structure: Option<String>,
    /// What is read at the entry.
    pub args: Vec<Field>,
    /// What is read at the exit.
    pub out: Vec<Field>,
    /// What the return value means.
    pub result: ResultKind,
    /// Names of numbers, of values and of fields of elements.
    pub names: Vec<NumberNames>,
    /// Arrays that the argument points at.
    pub arrays: Vec<Array>,
    /// From a source that could not be checked.
    pub assumed: bool,
    /// Line of the file.
    pub line: u32,
}

/// An array that an argument points at.
#[derive(Clone, Debug)]
pub struct Array {
    /// Its name.
    pub name: String,
    /// Where its address is.
    pub pointer: Field,
    /// Where the number of elements is.
    pub count: Field,
    /// One element alone lies in the argument where the address would be.
    pub in_place: bool,
    /// The C type of an element.
    pub structure: Option<String>,
    /// Bytes from one element to the next.
    pub stride: u8,
    /// Fields of an element.
    pub fields: Vec<Field>,
}
