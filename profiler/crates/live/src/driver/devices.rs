//! The machine's character devices that driver tables may be for.

use aiprof_model::probes::driver_table::{
    DriverTables, Major, PciId,
    devices::{DeviceNode, parse_pci},
};
use aiprof_system::files::{caller, kernel};
use rustix::fs::{major, minor};
use std::{
    collections::HashMap,
    io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

/// Most devices looked at; a machine has a few hundred.
const MAX_DEVICES: usize = 1 << 16;
/// Major number of miscellaneous devices (include/uapi/linux/major.h).
const MISC: u32 = 10;
/// Name of VFIO's major number; its devices are IOMMU groups.
const VFIO: &str = "vfio";

/// The devices that a table could be for. `root` is `/`, or a copy of parts of
/// /proc and /sys.
pub(super) fn scan(root: &Path, tables: &DriverTables) -> Vec<DeviceNode> {
    let names = DeviceNames::read(root);
    let folder = root.join("sys/dev/char");
    let entries = match kernel::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) => {
            tracing::debug!("{}: {error}", folder.display());
            return Vec::new();
        }
    };
    let mut nodes = Vec::new();
    for (path, file) in entries.into_iter().take(MAX_DEVICES) {
        let Some((major, minor)) = numbers(&file.to_string_lossy()) else {
            continue;
        };
        let node = names.node(major, minor);
        if is_possible(tables, &node) {
            nodes.push(describe(root, &path, node));
        }
    }
    // Folders are in no order.
    nodes.sort_by_key(|node| (node.major, node.minor));
    nodes
}

/// The device of a node in the file system.
///
/// # Errors
/// It cannot be looked at, or is no character device.
pub(super) fn of_path(path: &Path) -> io::Result<DeviceNode> {
    let meta = caller::metadata(path)?;
    if !meta.file_type().is_char_device() {
        let message = format!("{} is not a character device", path.display());
        return Err(io::Error::other(message));
    }
    let number = meta.rdev();
    let names = DeviceNames::read(Path::new("/"));
    Ok(DeviceNode {
        name: path.display().to_string(),
        ..names.node(major(number), minor(number))
    })
}

/// Whether the device's numbers are enough for a table; the rest is seen to later.
fn is_possible(tables: &DriverTables, node: &DeviceNode) -> bool {
    let devices = tables.iter().flat_map(|table| &table.devices);
    devices
        .filter(|device| device.file.is_none())
        .any(|device| {
            let major = match &device.major {
                Some(Major::Number(number)) => *number == node.major,
                Some(Major::Name(name)) => *name == node.major_name,
                None => true,
            };
            major && (device.misc.is_none() || device.misc == node.misc)
        })
}

/// `226:128`
fn numbers(name: &str) -> Option<(u32, u32)> {
    let (major, minor) = name.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Names of numbers, from /proc.
struct DeviceNames {
    majors: HashMap<u32, String>,
    misc: HashMap<u32, String>,
}

impl DeviceNames {
    fn read(root: &Path) -> Self {
        let text = |path: &str| kernel::read_to_string(root.join(path)).unwrap_or_default();
        let devices = text("proc/devices");
        let characters = devices.split("Block devices:").next().unwrap_or_default();
        Self {
            majors: pairs(characters),
            misc: pairs(&text("proc/misc")),
        }
    }

    fn node(&self, major: u32, minor: u32) -> DeviceNode {
        DeviceNode {
            major,
            minor,
            major_name: self.majors.get(&major).cloned().unwrap_or_default(),
            misc: self.misc.get(&minor).filter(|_| major == MISC).cloned(),
            ..DeviceNode::default()
        }
    }
}

/// Lines of a number and a name; others are left out.
fn pairs(text: &str) -> HashMap<u32, String> {
    let pair = |line: &str| {
        let (number, name) = line.trim().split_once(char::is_whitespace)?;
        Some((number.parse().ok()?, name.trim().to_owned()))
    };
    text.lines().filter_map(pair).collect()
}

/// Fills in what sysfs shows of a device.
fn describe(root: &Path, entry: &Path, node: DeviceNode) -> DeviceNode {
    let device = entry.join("device");
    let driver = link_name(&device.join("driver")).or_else(|| link_name(&device));
    let name = kernel::read_to_string(entry.join("uevent")).unwrap_or_default();
    let name = name.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    let pci = match node.major_name == VFIO {
        true => group_ids(root, entry),
        false => pci_of(&device).into_iter().collect(),
    };
    DeviceNode {
        driver,
        pci,
        name: match name {
            Some(name) => format!("/dev/{name}"),
            None => format!("{}:{}", node.major, node.minor),
        },
        ..node
    }
}

fn link_name(link: &Path) -> Option<String> {
    let target = kernel::read_link(link).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}

/// The ids of the devices in the IOMMU group that a VFIO group stands for; it has
/// the group's number for a name, or `noiommu-` and that.
fn group_ids(root: &Path, entry: &Path) -> Vec<PciId> {
    let Some(name) = link_name(entry) else {
        return Vec::new();
    };
    let number = name.strip_prefix("noiommu-").unwrap_or(&name);
    if number.parse::<u32>().is_err() {
        return Vec::new();
    }
    let folder = root.join("sys/kernel/iommu_groups").join(number);
    let devices = kernel::read_dir(folder.join("devices")).unwrap_or_default();
    let mut ids: Vec<_> = devices
        .iter()
        .filter_map(|(path, _)| pci_of(path))
        .collect();
    ids.sort_by_key(|id| (id.vendor, id.device));
    ids
}

/// The ids in a PCI device's folder.
fn pci_of(device: &Path) -> Option<PciId> {
    let read = |file: &str| {
        let path: PathBuf = device.join(file);
        let text = kernel::read_to_string(path).ok()?;
        Some(text.trim().strip_prefix("0x")?.to_owned())
    };
    parse_pci(&format!("{}:{}", read("vendor")?, read("device")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// A machine with an Intel GPU, an AIU behind VFIO, a tty and vgem.
    fn machine() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let link = |path: &str, target: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(target, path).unwrap();
        };
        write(
            "proc/devices",
            "Character devices:\n  4 tty\n 10 misc\n226 drm\n245 vfio\n\nBlock devices:\n226 sd\n",
        );
        write("proc/misc", "196 vfio\n130 watchdog\n");
        let gpu = "sys/devices/pci/0000:03:00.0";
        write(&format!("{gpu}/vendor"), "0x8086\n");
        write(&format!("{gpu}/device"), "0xe20b\n");
        link(&format!("{gpu}/driver"), "../../bus/pci/drivers/xe");
        let node = format!("{gpu}/drm/renderD128");
        write(
            &format!("{node}/uevent"),
            "MAJOR=226\nDEVNAME=dri/renderD128\n",
        );
        link(&format!("{node}/device"), "../../../0000:03:00.0");
        link(
            "sys/dev/char/226:128",
            "../../devices/pci/0000:03:00.0/drm/renderD128",
        );
        let vgem = "sys/devices/platform/vgem/drm/card0";
        write(&format!("{vgem}/uevent"), "DEVNAME=dri/card0\n");
        link(&format!("{vgem}/device"), "../../../vgem");
        link(
            "sys/dev/char/226:0",
            "../../devices/platform/vgem/drm/card0",
        );
        write("sys/devices/virtual/vfio/7/uevent", "DEVNAME=vfio/7\n");
        link("sys/dev/char/245:0", "../../devices/virtual/vfio/7");
        let aiu = "sys/kernel/iommu_groups/7/devices/0000:aa:00.0";
        write(&format!("{aiu}/vendor"), "0x1014\n");
        write(&format!("{aiu}/device"), "0x06a7\n");
        for (number, name) in [("4:1", "tty1"), ("10:196", "vfio"), ("10:130", "watchdog")] {
            write(&format!("sys/devices/virtual/x/{name}/uevent"), "");
            link(
                &format!("sys/dev/char/{number}"),
                &format!("../../devices/virtual/x/{name}"),
            );
        }
        link("sys/dev/char/odd", "nowhere");
        root
    }

    #[test]
    fn reads_what_a_machine_has() {
        let root = machine();
        let nodes = scan(root.path(), &DriverTables::built_in());
        let words: Vec<_> = nodes
            .iter()
            .map(|n| {
                let driver = n.driver.as_deref().unwrap_or("-");
                let pci: Vec<_> = n.pci.iter().map(|id| format!("{:x}", id.device)).collect();
                format!("{} {} {driver} {}", n.name, n.major_name, pci.join(","))
            })
            .collect();
        assert_eq!(
            words,
            [
                "10:196 misc - ",
                "/dev/dri/card0 drm vgem ",
                "/dev/dri/renderD128 drm xe e20b",
                "/dev/vfio/7 vfio - 6a7",
            ]
        );
        assert_eq!(nodes[0].misc.as_deref(), Some("vfio"));
    }

    #[test]
    fn a_machine_without_proc_and_sys_has_nothing() {
        let root = tempfile::tempdir().unwrap();
        assert!(scan(root.path(), &DriverTables::built_in()).is_empty());
    }

    #[test]
    fn devices_are_found_by_path() {
        let null = of_path(Path::new("/dev/null")).unwrap();
        assert_eq!((null.major, null.minor), (1, 3));
        assert_eq!(null.name, "/dev/null");
        assert!(of_path(Path::new("/etc/passwd")).is_err());
        assert!(of_path(Path::new("/dev/no such device")).is_err());
    }
}
