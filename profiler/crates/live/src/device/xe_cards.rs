//! Cards of the xe driver, as /sys shows them.

use aiprof_system::files::kernel;
use std::path::{Path, PathBuf};

/// Most cards that are looked at.
const MAX_CARDS: usize = 64;

/// A card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct XeCard {
    /// Its node.
    pub(crate) node: PathBuf,
    /// PCI address.
    pub(crate) address: String,
    /// PCI device id.
    pub(crate) device: u16,
    /// Number of the node as the kernel has it: major number above 20 bits of minor.
    pub(crate) number: u32,
    /// It is a virtual function of this machine's card.
    pub(crate) is_virtual: bool,
    /// GTs that /sys shows, those for media included.
    pub(crate) gts: usize,
}

/// The cards below a root (`/`), by address.
pub(crate) fn cards(root: &Path) -> Vec<XeCard> {
    let nodes = kernel::read_dir(root.join("sys/class/drm")).unwrap_or_default();
    let mut cards: Vec<_> = nodes
        .iter()
        .filter_map(|(path, _)| card(root, path))
        .take(MAX_CARDS)
        .collect();
    cards.sort_by(|a, b| a.address.cmp(&b.address));
    cards
}

fn card(root: &Path, class: &Path) -> Option<XeCard> {
    let name = class.file_name()?.to_str()?;
    if !name
        .strip_prefix("renderD")?
        .bytes()
        .all(|b| b.is_ascii_digit())
    {
        return None;
    }
    let device = kernel::canonicalize(class.join("device")).ok()?;
    if kernel::read_link(device.join("driver")).ok()?.file_name()? != "xe" {
        return None;
    }
    let number = kernel::read_to_string(class.join("dev")).ok();
    let id = kernel::read_to_string(device.join("device")).ok()?;
    Some(XeCard {
        node: root.join("dev/dri").join(name),
        address: device.file_name()?.to_str()?.to_owned(),
        device: u16::from_str_radix(id.trim().strip_prefix("0x")?, 16).ok()?,
        number: number.and_then(|text| kernel_number(&text)).unwrap_or(0),
        is_virtual: kernel::exists(device.join("physfn")),
        gts: folders(&device, "tile")
            .iter()
            .map(|tile| folders(tile, "gt").len())
            .sum(),
    })
}

/// `226:128`
fn kernel_number(text: &str) -> Option<u32> {
    let (major, minor) = text.trim().split_once(':')?;
    let (major, minor) = (major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?);
    (major < 1 << 12 && minor < 1 << 20).then_some(major << 20 | minor)
}

/// Folders of a name and a number.
fn folders(parent: &Path, prefix: &str) -> Vec<PathBuf> {
    let is_one = |name: &str| {
        let number = name.strip_prefix(prefix);
        number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    let entries = kernel::read_dir(parent).unwrap_or_default();
    entries
        .into_iter()
        .filter(|(_, name)| name.to_str().is_some_and(is_one))
        .map(|(path, _)| path)
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Makes a card below a root.
    pub(crate) fn make(root: &Path, node: &str, address: &str, driver: &str, id: &str) -> PathBuf {
        let device = root.join("sys/devices").join(address);
        fs::create_dir_all(device.join("tile0/gt0")).unwrap();
        fs::create_dir_all(device.join("tile0/gt1")).unwrap();
        fs::create_dir_all(device.join("tile1/gt2")).unwrap();
        fs::create_dir_all(device.join("tile1/gtother")).unwrap();
        fs::write(device.join("device"), format!("{id}\n")).unwrap();
        symlink(root.join("sys/drivers").join(driver), device.join("driver")).unwrap();
        let class = root.join("sys/class/drm").join(node);
        fs::create_dir_all(&class).unwrap();
        symlink(&device, class.join("device")).unwrap();
        let minor = node.trim_start_matches(char::is_alphabetic);
        fs::write(class.join("dev"), format!("226:{minor}\n")).unwrap();
        device
    }

    #[test]
    fn cards_of_xe_are_found() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        make(root, "renderD129", "0000:4d:00.0", "xe", "0xe20b");
        let device = make(root, "renderD128", "0000:03:00.1", "xe", "0x0bd5");
        symlink("../0000:03:00.0", device.join("physfn")).unwrap();
        fs::create_dir_all(root.join("sys/devices/0000:03:00.0")).unwrap();
        make(root, "renderD130", "0000:00:02.0", "i915", "0x46a6");
        make(root, "card0", "0000:05:00.0", "xe", "0xe20b");
        make(root, "renderD131", "0000:06:00.0", "xe", "broken");
        let found = cards(root);
        assert_eq!(found.len(), 2, "{found:?}");
        let expected = XeCard {
            node: root.join("dev/dri/renderD128"),
            address: "0000:03:00.1".into(),
            device: 0x0bd5,
            number: 226 << 20 | 128,
            is_virtual: true,
            gts: 3,
        };
        assert_eq!(found[0], expected);
        assert_eq!((found[1].device, found[1].is_virtual), (0xe20b, false));
        assert_eq!(found[1].address, "0000:4d:00.0");
        assert!(cards(&root.join("none")).is_empty());
    }
}
