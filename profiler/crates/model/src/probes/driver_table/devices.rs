//! Which of a machine's devices a table is for; pure.

use super::{DeviceMatch, DriverTable, DriverTables, Major, PciId};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// A character device of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceNode {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Name of the major number in /proc/devices.
    pub major_name: String,
    /// Name in /proc/misc, if it is a miscellaneous device.
    pub misc: Option<String>,
    /// The driver of the device it belongs to; where sysfs names none, the device.
    pub driver: Option<String>,
    /// PCI ids of that device, or of the devices in the IOMMU group it stands for.
    pub pci: Vec<PciId>,
    /// Path of the node below /dev, for messages.
    pub name: String,
}

impl DeviceNode {
    /// The number that the kernel keeps in an inode: `MKDEV` of
    /// include/linux/kdev_t.h.
    pub fn kernel_number(&self) -> u32 {
        self.major << 20 | self.minor & 0xf_ffff
    }
}

/// `1014:06a7`: vendor and device, four hexadecimal digits each.
pub fn parse_pci(text: &str) -> Option<PciId> {
    let (vendor, device) = text.split_once(':')?;
    let number = |digits: &str| {
        let plain = digits.len() == 4 && digits.chars().all(|c| c.is_ascii_hexdigit());
        u16::from_str_radix(digits, 16).ok().filter(|_| plain)
    };
    Some(PciId {
        vendor: number(vendor)?,
        device: number(device)?,
    })
}

/// What of a machine is observed.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Devices by their [kernel number](DeviceNode::kernel_number).
    pub devices: BTreeMap<u32, Admitted>,
    /// Files without a node, by name.
    pub files: BTreeMap<String, Arc<DriverTable>>,
}

/// A device and the table that is for it.
#[derive(Clone, Debug)]
pub struct Admitted {
    /// Path of the node below /dev.
    pub name: String,
    /// The table.
    pub table: Arc<DriverTable>,
}

impl Observed {
    /// The tables in use, each once.
    pub fn tables(&self) -> Vec<Arc<DriverTable>> {
        let devices = self.devices.values().map(|admitted| &admitted.table);
        let mut tables: Vec<Arc<DriverTable>> = Vec::new();
        for table in devices.chain(self.files.values()) {
            if !tables.iter().any(|have| have.name == table.name) {
                tables.push(table.clone());
            }
        }
        tables
    }
}

/// Finds the tables for the machine's devices: for each the one that asks for most.
/// `forced` devices get the table that is named with them, whatever it asks for;
/// that is how tests stand in for hardware.
pub fn resolve(
    tables: &DriverTables,
    nodes: &[DeviceNode],
    forced: &[(String, DeviceNode)],
) -> Observed {
    let mut observed = Observed::default();
    for (name, node) in forced {
        if let Some(table) = tables.get(name) {
            admit(&mut observed, node, table);
        }
    }
    // Tables can be for devices that another table's devices bring along, and
    // that table's again: one round for each table is enough.
    for _ in 0..=tables.iter().count() {
        let before = (observed.devices.len(), observed.files.len());
        let present: HashSet<String> = observed.tables().iter().map(|t| t.name.clone()).collect();
        for node in nodes {
            if let Some(table) = best(tables, node, &present) {
                admit(&mut observed, node, &table);
            }
        }
        add_files(&mut observed, tables, &present);
        if before == (observed.devices.len(), observed.files.len()) {
            break;
        }
    }
    observed
}

fn admit(observed: &mut Observed, node: &DeviceNode, table: &Arc<DriverTable>) {
    let admitted = Admitted {
        name: node.name.clone(),
        table: table.clone(),
    };
    let entry = observed.devices.entry(node.kernel_number());
    entry.or_insert(admitted);
}

fn add_files(observed: &mut Observed, tables: &DriverTables, present: &HashSet<String>) {
    for table in tables.iter() {
        for device in &table.devices {
            let Some(file) = &device.file else { continue };
            if device.is_allowed(present) && !observed.files.contains_key(file) {
                observed.files.insert(file.clone(), table.clone());
            }
        }
    }
}

/// The table that matches the node by most of its properties; of several the
/// first.
fn best(
    tables: &DriverTables,
    node: &DeviceNode,
    present: &HashSet<String>,
) -> Option<Arc<DriverTable>> {
    let mut found: Option<(usize, &Arc<DriverTable>)> = None;
    for table in tables.iter() {
        let matching = table.devices.iter().filter(|d| d.is(node));
        let allowed = matching.filter(|d| d.is_allowed(present));
        let Some(asked) = allowed.map(DeviceMatch::weight).max() else {
            continue;
        };
        if found.is_none_or(|(most, _)| asked > most) {
            found = Some((asked, table));
        }
    }
    found.map(|(_, table)| table.clone())
}

impl DeviceMatch {
    /// Whether the node has all that is asked for.
    pub fn is(&self, node: &DeviceNode) -> bool {
        let major = match &self.major {
            Some(Major::Number(number)) => *number == node.major,
            Some(Major::Name(name)) => *name == node.major_name,
            None => true,
        };
        self.file.is_none()
            && major
            && (self.misc.is_none() || self.misc == node.misc)
            && (self.driver.is_none() || self.driver == node.driver)
            && (self.pci.is_empty() || self.pci.iter().any(|id| node.pci.contains(id)))
    }

    fn is_allowed(&self, present: &HashSet<String>) -> bool {
        self.with
            .as_ref()
            .is_none_or(|table| present.contains(table))
    }

    /// How much is asked for. A driver or a device is more exact than a class of them.
    fn weight(&self) -> usize {
        usize::from(self.major.is_some())
            + usize::from(self.misc.is_some())
            + 2 * usize::from(self.driver.is_some())
            + 2 * usize::from(!self.pci.is_empty())
    }
}
