//! Driver tables: which ioctls of which devices are observed, and what is read
//! there.
//!
//! A table is a TOML file with `[[device]]` and `[[ioctl]]` entries; docs/probes.md
//! describes it. [`parse`] checks it whole, [`DriverTable::compile`] makes what the kernel
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

pub use compile::Compiled;
pub use field::{Field, Place, Type};
pub use parse::parse;

use super::ResultKind;
use super::ioctl::{Action, NumberNames};
use super::reader::TableError;
use std::sync::Arc;

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
    pub action: Option<Action>,
    /// The C type of its argument, if the header has one.
    pub structure: Option<String>,
    /// What is read at the entry.
    pub args: Vec<Field>,
    /// What is read at the exit.
    pub out: Vec<Field>,
    /// What the return value means.
    pub result: Option<ResultKind>,
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
#[derive(Clone, Debug, Default)]
pub struct Array {
    /// Its name.
    pub name: String,
    /// Where its address is, as a place in the argument.
    pub pointer: Place,
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

/// The files of the built-in tables.
const BUILT_IN: &[(&str, &str)] = &[
    (
        "drm.toml",
        include_str!("../../../../../probes/drivers/drm.toml"),
    ),
    (
        "xe.toml",
        include_str!("../../../../../probes/drivers/xe.toml"),
    ),
    (
        "i915.toml",
        include_str!("../../../../../probes/drivers/i915.toml"),
    ),
    (
        "amdgpu.toml",
        include_str!("../../../../../probes/drivers/amdgpu.toml"),
    ),
    (
        "kfd.toml",
        include_str!("../../../../../probes/drivers/kfd.toml"),
    ),
    (
        "habanalabs.toml",
        include_str!("../../../../../probes/drivers/habanalabs.toml"),
    ),
    (
        "ivpu.toml",
        include_str!("../../../../../probes/drivers/ivpu.toml"),
    ),
    (
        "amdxdna.toml",
        include_str!("../../../../../probes/drivers/amdxdna.toml"),
    ),
    (
        "qaic.toml",
        include_str!("../../../../../probes/drivers/qaic.toml"),
    ),
    (
        "vfio.toml",
        include_str!("../../../../../probes/drivers/vfio.toml"),
    ),
    (
        "vfio-device.toml",
        include_str!("../../../../../probes/drivers/vfio-device.toml"),
    ),
    (
        "iommufd.toml",
        include_str!("../../../../../probes/drivers/iommufd.toml"),
    ),
    (
        "nvidia.toml",
        include_str!("../../../../../probes/drivers/nvidia.toml"),
    ),
    (
        "nvidia-uvm.toml",
        include_str!("../../../../../probes/drivers/nvidia-uvm.toml"),
    ),
    (
        "vgem.toml",
        include_str!("../../../../../probes/drivers/vgem.toml"),
    ),
];

/// The files of the built-in tables: name and text.
#[cfg(test)]
pub(super) fn built_in_sources() -> &'static [(&'static str, &'static str)] {
    BUILT_IN
}

/// All driver tables.
#[derive(Clone, Debug, Default)]
pub struct DriverTables {
    tables: Vec<Arc<DriverTable>>,
}

impl DriverTables {
    /// The built-in tables; a test proves that none of them has a mistake.
    pub fn built_in() -> Self {
        let mut tables = Self::default();
        for (source, text) in BUILT_IN {
            for mistake in tables.add(source, text).err().unwrap_or_default() {
                tracing::error!("built-in table: {mistake}");
            }
        }
        tables
    }

    /// Reads a table and adds it; one of the same name is replaced.
    ///
    /// # Errors
    /// The mistakes in it; nothing is added then.
    pub fn add(&mut self, source: &str, text: &str) -> Result<(), Vec<TableError>> {
        let table = Arc::new(parse(source, text)?);
        match self.tables.iter_mut().find(|t| t.name == table.name) {
            Some(old) => *old = table,
            None => self.tables.push(table),
        }
        Ok(())
    }

    /// All tables, built-in ones first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<DriverTable>> {
        self.tables.iter()
    }

    /// The table of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<DriverTable>> {
        self.tables.iter().find(|table| table.name == name)
    }

    /// The commands that a driver has: its table's, then those of the tables it
    /// includes, directly or not, that it does not have itself. An included table
    /// that is not there is left out.
    pub fn commands(&self, table: &Arc<DriverTable>) -> Vec<(Arc<DriverTable>, Ioctl)> {
        let mut order = vec![table.clone()];
        let mut at = 0;
        while let Some(next) = order.get(at).cloned() {
            for name in &next.includes {
                let known = order.iter().any(|have| have.name == *name);
                order.extend(self.get(name).filter(|_| !known).cloned());
            }
            at += 1;
        }
        let mut seen = std::collections::HashSet::new();
        let mut commands = Vec::new();
        for table in order {
            for ioctl in &table.ioctls {
                let key = (
                    table.numbering.mask(),
                    table.numbering.command(ioctl.number),
                );
                if seen.insert(key) {
                    commands.push((table.clone(), ioctl.clone()));
                }
            }
        }
        commands
    }
}
