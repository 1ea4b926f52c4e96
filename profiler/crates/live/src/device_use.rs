//! Which accelerator a process uses: the one whose device nodes it has open.
//!
//! A descriptor counts if it refers to a character device that the kernel lists as an
//! accelerator's. Its device number decides, not its path, which processes choose. The
//! nodes of one device (`card0` and `renderD128`) are one.

use crate::locking::lock;
use aiprof_model::labels::SEVERAL;
use aiprof_system::files::{kernel, others};
use rustix::fs::{FileType, StatxFlags};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, Instant},
};

/// Most descriptors of a process that are looked at.
const MAX_OPEN: usize = 4096;
/// Most devices of an IOMMU group that are looked at.
const MAX_GROUP: usize = 64;
/// Nodes of NVIDIA's driver from this minor number on are of no single device.
const NVIDIA_CONTROL: u32 = 254;

/// Classes of devices that are accelerators, or may be.
const CLASSES: [&str; 5] = ["drm", "accel", "habanalabs", "vfio", "vfio-dev"];
/// How long it is believed that a machine has accelerators, or none.
const BELIEVED: Duration = Duration::from_secs(60);

/// Major and minor number of a device.
type Number = (u32, u32);

/// The accelerator that a process has open: its name, or [`SEVERAL`]; `None`: none.
pub(crate) fn of_process(pid: u32) -> Option<String> {
    if !has_any() {
        return None;
    }
    let folder = format!("/proc/{pid}/fd");
    let open = others::read_dir(Path::new(&folder), MAX_OPEN).ok()?;
    let numbers: BTreeSet<Number> = open.iter().filter_map(|(fd, _)| number(fd)).collect();
    let names = numbers.into_iter().flat_map(|n| names(Path::new("/"), n));
    one_of(names.collect())
}

/// Whether there is an accelerator at all, as was found lately: most machines have none, and
/// their processes many descriptors.
pub(crate) fn has_any() -> bool {
    static FOUND: Mutex<Option<(Instant, bool)>> = Mutex::new(None);
    let mut found = lock(&FOUND);
    match *found {
        Some((when, any)) if when.elapsed() < BELIEVED => any,
        _ => {
            let any = find_any();
            *found = Some((Instant::now(), any));
            any
        }
    }
}

fn find_any() -> bool {
    let devices = kernel::read_dir("/sys/dev/char").unwrap_or_default();
    let is_class = |entry: &Path| {
        let class = link_name(&entry.join("subsystem"));
        class.is_some_and(|class| CLASSES.contains(&class.as_str()))
    };
    // NVIDIA's driver has no class.
    let drivers = || kernel::read_to_string("/proc/devices").unwrap_or_default();
    devices.iter().any(|(entry, _)| is_class(entry)) || drivers().contains("nvidia")
}

fn one_of(names: BTreeSet<String>) -> Option<String> {
    match names.len() {
        0 | 1 => names.into_iter().next(),
        _ => Some(SEVERAL.to_owned()),
    }
}

/// The number of the character device that a descriptor in /proc refers to. Sends no
/// request to a process that serves a file system.
fn number(descriptor: &Path) -> Option<Number> {
    // Few are of devices: others need not be looked at.
    let target = kernel::read_link(descriptor).ok()?;
    if !target.starts_with("/dev") {
        return None;
    }
    let place = kernel::place(descriptor).ok()?;
    let found = others::cached(&place, StatxFlags::TYPE).ok()?;
    let is_device = FileType::from_raw_mode(found.stx_mode.into()) == FileType::CharacterDevice;
    is_device.then_some((found.stx_rdev_major, found.stx_rdev_minor))
}

/// The names of the accelerators that a character device is of. `root` is `/`, or a copy
/// of parts of /proc and /sys.
fn names(root: &Path, (major, minor): Number) -> Vec<String> {
    let entry = root.join(format!("sys/dev/char/{major}:{minor}"));
    match link_name(&entry.join("subsystem")).as_deref() {
        Some("drm" | "accel" | "habanalabs") => name(&entry.join("device")).into_iter().collect(),
        Some("vfio-dev") => {
            let device = entry.join("device");
            let is_one = is_accelerator(&device);
            name(&device).filter(|_| is_one).into_iter().collect()
        }
        Some("vfio") => group(root, &entry),
        _ => nvidia(root, (major, minor)).into_iter().collect(),
    }
}

/// Driver and address of a device by its folder in sysfs: `xe 0000:03:00.0`.
fn name(device: &Path) -> Option<String> {
    let address = kernel::canonicalize(device).ok()?;
    let address = address.file_name()?.to_string_lossy().into_owned();
    Some(match link_name(&device.join("driver")) {
        Some(driver) => format!("{driver} {address}"),
        None => address,
    })
}

/// The accelerators in the IOMMU group of a VFIO node, which is named after it.
fn group(root: &Path, entry: &Path) -> Vec<String> {
    let Some(group) = link_name(entry) else {
        return Vec::new();
    };
    let number = group.strip_prefix("noiommu-").unwrap_or(&group);
    if number.parse::<u32>().is_err() {
        return Vec::new();
    }
    let folder = root.join("sys/kernel/iommu_groups").join(number);
    let devices = kernel::read_dir(folder.join("devices")).unwrap_or_default();
    let devices = devices.into_iter().take(MAX_GROUP).map(|(path, _)| path);
    let ours = devices.filter(|device: &PathBuf| is_accelerator(device));
    ours.filter_map(|device| name(&device)).collect()
}

/// Whether a PCI device computes, or draws: VFIO hands out network cards, too. By its class
/// (include/linux/pci_ids.h): display controllers and processing accelerators.
fn is_accelerator(device: &Path) -> bool {
    let class = kernel::read_to_string(device.join("class")).unwrap_or_default();
    let class = class.trim();
    class.starts_with("0x03") || class.starts_with("0x12")
}

/// The GPU of a node of NVIDIA's driver, which is not in sysfs.
fn nvidia(root: &Path, (major, minor): Number) -> Option<String> {
    if minor >= NVIDIA_CONTROL {
        return None;
    }
    let devices = kernel::read_to_string(root.join("proc/devices")).ok()?;
    let characters = devices.split("Block devices:").next()?;
    let is_its = characters.lines().any(|line| {
        let pair = line.trim().split_once(char::is_whitespace);
        pair.is_some_and(|(number, name)| {
            number.parse() == Ok(major) && matches!(name.trim(), "nvidia" | "nvidia-frontend")
        })
    });
    if !is_its {
        return None;
    }
    let cards = kernel::read_dir(root.join("proc/driver/nvidia/gpus")).unwrap_or_default();
    let of_minor = |path: &PathBuf| {
        let text = kernel::read_to_string(path.join("information")).unwrap_or_default();
        let number = text.lines().find_map(|l| l.strip_prefix("Device Minor:"));
        number.is_some_and(|number| number.trim().parse() == Ok(minor))
    };
    let mut cards = cards.into_iter();
    let card = cards.find(|(path, _)| of_minor(path));
    let address = card.map(|(_, name)| name.to_string_lossy().into_owned());
    Some(format!("nvidia {}", address.unwrap_or(minor.to_string())))
}

fn link_name(link: &Path) -> Option<String> {
    let target = kernel::read_link(link).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, fs::File, os::unix::fs::symlink};

    /// Two GPUs of xe, one of NVIDIA, an AIU and a network card behind VFIO.
    fn machine() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            path
        };
        let write = |path: &str, text: &str| fs::write(at(path), text).unwrap();
        let link = |path: &str, target: &str| symlink(target, at(path)).unwrap();
        let pci = |address: &str, driver: &str, class: &str| {
            let folder = format!("sys/devices/pci/{address}");
            write(&format!("{folder}/class"), class);
            link(&format!("{folder}/driver"), &format!("../drivers/{driver}"));
        };
        let node = |number: &str, class: &str, address: &str, name: &str| {
            let folder = format!("sys/devices/pci/{address}/{class}/{name}");
            link(&format!("{folder}/subsystem"), &format!("../class/{class}"));
            link(&format!("{folder}/device"), "../..");
            let target = format!("../../devices/pci/{address}/{class}/{name}");
            link(&format!("sys/dev/char/{number}"), &target);
        };
        pci("0000:03:00.0", "xe", "0x030000\n");
        pci("0000:04:00.0", "xe", "0x038000\n");
        node("226:0", "drm", "0000:03:00.0", "card0");
        node("226:128", "drm", "0000:03:00.0", "renderD128");
        node("226:129", "drm", "0000:04:00.0", "renderD129");
        pci("0000:aa:00.0", "vfio-pci", "0x120000\n");
        pci("0000:bb:00.0", "vfio-pci", "0x020000\n");
        for address in ["0000:aa:00.0", "0000:bb:00.0"] {
            let entry = format!("sys/kernel/iommu_groups/7/devices/{address}");
            link(&entry, &format!("../../../../devices/pci/{address}"));
        }
        link("sys/devices/virtual/vfio/7/subsystem", "../class/vfio");
        link("sys/dev/char/245:0", "../../devices/virtual/vfio/7");
        node("511:0", "vfio-dev", "0000:aa:00.0", "vfio0");
        node("511:1", "vfio-dev", "0000:bb:00.0", "vfio1");
        write(
            "proc/devices",
            "Character devices:\n  1 mem\n195 nvidia\n\nBlock devices:\n  8 sd\n",
        );
        write(
            "proc/driver/nvidia/gpus/0000:65:00.0/information",
            "Model: \t\t Synthetic\nDevice Minor: \t 1\n",
        );
        root
    }

    #[test]
    fn nodes_are_of_devices() {
        let root = machine();
        let of = |number| names(root.path(), number).join(",");
        assert_eq!(of((226, 0)), "xe 0000:03:00.0");
        assert_eq!(of((226, 128)), of((226, 0)));
        assert_eq!(of((226, 129)), "xe 0000:04:00.0");
        // What computes, and not what sends.
        assert_eq!(of((245, 0)), "vfio-pci 0000:aa:00.0");
        assert_eq!(of((511, 0)), "vfio-pci 0000:aa:00.0");
        assert_eq!(of((511, 1)), "");
        assert_eq!(of((195, 1)), "nvidia 0000:65:00.0");
        assert_eq!(of((195, 2)), "nvidia 2");
        // The control node, /dev/null, and nothing.
        assert_eq!(of((195, 255)), "");
        assert_eq!(of((1, 3)), "");
        assert_eq!(of((u32::MAX, u32::MAX)), "");
    }

    #[test]
    fn several_devices_are_no_single_one() {
        let of = |names: &[&str]| one_of(names.iter().map(|&name| name.to_owned()).collect());
        assert_eq!(of(&[]), None);
        assert_eq!(
            of(&["xe 0000:03:00.0"; 2]).as_deref(),
            Some("xe 0000:03:00.0")
        );
        assert_eq!(of(&["a", "b"]).as_deref(), Some(SEVERAL));
    }

    #[test]
    fn descriptors_tell_their_device_whatever_their_path_is() {
        let null = File::open("/dev/null").unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("renderD128"), "").unwrap();
        let other = File::open(folder.path().join("renderD128")).unwrap();
        let of = |file: &File| {
            use std::os::fd::AsRawFd as _;
            number(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))
        };
        assert_eq!(of(&null), Some((1, 3)));
        assert_eq!(of(&other), None);
        assert_eq!(of_process(std::process::id()), None);
        assert_eq!(of_process(u32::MAX), None);
    }
}
