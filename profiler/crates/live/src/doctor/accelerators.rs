//! Accelerators, as the PCI bus and /dev show them. None is ever opened: a VFIO
//! group, for one, has room for a single opener.

use super::read_text;
use aiprof_system::files::kernel;
use serde::Serialize;
use std::path::Path;

/// Most devices that are listed.
const MAX_DEVICES: usize = 256;

/// An accelerator on the PCI bus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Accelerator {
    /// Bus address, such as `0000:3a:00.0`.
    pub address: String,
    /// PCI vendor id.
    pub vendor: u16,
    /// PCI device id.
    pub device: u16,
    /// A description for people.
    pub description: String,
    /// The driver that is bound to it; empty: none.
    pub driver: String,
}

impl Accelerator {
    /// Whether it is an AIU, or a function of one.
    pub(super) fn is_aiu(&self) -> bool {
        self.vendor == 0x1014 && matches!(self.device, 0x06a7 | 0x06a8)
    }
}

/// A device node of an accelerator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceNode {
    /// Path below /dev.
    pub path: String,
    /// Whether this user may open it, by its permissions; it was not opened.
    pub accessible: bool,
}

/// The accelerators on the PCI bus, by address.
pub(super) fn on_pci_bus() -> Vec<Accelerator> {
    on_bus(Path::new("/sys/bus/pci/devices"))
}

fn on_bus(bus: &Path) -> Vec<Accelerator> {
    let mut found: Vec<_> = kernel::read_dir(bus)
        .unwrap_or_default()
        .iter()
        .filter_map(|(path, _)| pci_device(path))
        .take(MAX_DEVICES)
        .collect();
    found.sort_by(|a, b| a.address.cmp(&b.address));
    found
}

fn pci_device(dir: &Path) -> Option<Accelerator> {
    let number = |file: &str| {
        let text = read_text(dir.join(file), 64)?;
        u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
    };
    let vendor = u16::try_from(number("vendor")?).ok()?;
    let device = u16::try_from(number("device")?).ok()?;
    let kind = kind_of(number("class")?)?;
    let driver = kernel::read_link(dir.join("driver"))
        .ok()
        .and_then(|link| Some(link.file_name()?.to_string_lossy().into_owned()))
        .unwrap_or_default();
    Some(Accelerator {
        address: dir.file_name()?.to_string_lossy().into_owned(),
        vendor,
        device,
        description: describe(vendor, device, kind),
        driver,
    })
}

/// What the class code stands for (PCI Code and ID Assignment Specification);
/// `None` for what is no accelerator.
fn kind_of(class: u32) -> Option<&'static str> {
    match class >> 16 {
        0x03 => Some("display controller"),
        0x12 => Some("processing accelerator"),
        _ => None,
    }
}

fn describe(vendor: u16, device: u16, kind: &str) -> String {
    let name = match (vendor, device) {
        (0x1014, 0x06a7) => "IBM AIU (Spyre), physical function",
        (0x1014, 0x06a8) => "IBM AIU (Spyre), virtual function",
        (0x1014, _) => "IBM",
        (0x8086, _) => "Intel",
        (0x10de, _) => "NVIDIA",
        (0x1002, _) => "AMD",
        (0x1da3, _) => "Habana",
        (0x1d0f, _) => "Amazon",
        (0x1ae0, _) => "Google",
        (0x1e52, _) => "Tenstorrent",
        _ => return kind.to_owned(),
    };
    format!("{name}, {kind}")
}

/// Where device nodes of accelerators are: directory, and how their names begin.
/// What follows is a number.
const NODES: [(&str, &str); 8] = [
    ("/dev/dri", "renderD"),
    ("/dev/accel", "accel"),
    ("/dev/vfio", ""),
    ("/dev", "nvidia"),
    ("/dev", "neuron"),
    ("/dev", "davinci"),
    ("/dev", "kfd"),
    ("/dev", "cambricon_dev"),
];

/// The device nodes of accelerators, by path.
pub(super) fn device_nodes() -> Vec<DeviceNode> {
    let mut nodes: Vec<_> = NODES
        .iter()
        .flat_map(|(dir, prefix)| nodes_in(Path::new(dir), prefix))
        .take(MAX_DEVICES)
        .collect();
    nodes.sort_by(|a, b| a.path.cmp(&b.path));
    nodes
}

fn nodes_in(dir: &Path, prefix: &str) -> Vec<DeviceNode> {
    let nodes = kernel::read_dir(dir).unwrap_or_default();
    nodes
        .iter()
        .filter(|(_, name)| is_node(&name.to_string_lossy(), prefix))
        .map(|(path, _)| DeviceNode {
            path: path.to_string_lossy().into_owned(),
            accessible: kernel::is_readable(path),
        })
        .collect()
}

/// A name is the prefix and a number; `kfd` is a single device without one.
fn is_node(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|number| {
        let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
        is_number || (prefix == "kfd" && number.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(bus: &Path, address: &str, files: &[(&str, &str)]) {
        let dir = bus.join(address);
        std::fs::create_dir(&dir).unwrap();
        for (name, text) in files {
            std::fs::write(dir.join(name), text).unwrap();
        }
    }

    #[test]
    fn accelerators_are_told_from_other_devices() {
        let bus = tempfile::tempdir().unwrap();
        let bus = bus.path();
        device(
            bus,
            "0001:00:00.0",
            &[
                ("vendor", "0x1014\n"),
                ("device", "0x06a7\n"),
                ("class", "0x120000\n"),
            ],
        );
        device(
            bus,
            "0000:03:00.0",
            &[
                ("vendor", "0x8086\n"),
                ("device", "0x0bd5\n"),
                ("class", "0x038000\n"),
            ],
        );
        device(
            bus,
            "0000:00:1f.0",
            &[
                ("vendor", "0x8086\n"),
                ("device", "0x1234\n"),
                ("class", "0x060100\n"),
            ],
        );
        device(bus, "0000:00:02.0", &[("vendor", "garbage"), ("class", "")]);
        std::os::unix::fs::symlink("/sys/bus/pci/drivers/xe", bus.join("0000:03:00.0/driver"))
            .unwrap();
        let found = on_bus(bus);
        assert_eq!(
            found,
            [
                Accelerator {
                    address: "0000:03:00.0".into(),
                    vendor: 0x8086,
                    device: 0x0bd5,
                    description: "Intel, display controller".into(),
                    driver: "xe".into(),
                },
                Accelerator {
                    address: "0001:00:00.0".into(),
                    vendor: 0x1014,
                    device: 0x06a7,
                    description: "IBM AIU (Spyre), physical function, processing accelerator"
                        .into(),
                    driver: String::new(),
                },
            ]
        );
        let aius: Vec<_> = found.iter().map(Accelerator::is_aiu).collect();
        assert_eq!(aius, [false, true]);
        assert!(on_bus(&bus.join("none")).is_empty());
    }

    #[test]
    fn device_nodes_are_a_prefix_and_a_number() {
        for (name, prefix, expected) in [
            ("renderD128", "renderD", true),
            ("card0", "renderD", false),
            ("85", "", true),
            ("vfio", "", false),
            ("nvidia0", "nvidia", true),
            ("nvidiactl", "nvidia", false),
            ("nvidia-uvm", "nvidia", false),
            ("kfd", "kfd", true),
            ("accel", "accel", false),
        ] {
            assert_eq!(is_node(name, prefix), expected, "{name}");
        }
    }
}
