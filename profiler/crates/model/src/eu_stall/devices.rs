//! Which devices have which layout, by PCI id.
//!
//! Source: Linux, include/drm/intel/pciids.h, and the platforms' graphics versions in
//! drivers/gpu/drm/xe/xe_pci.c. PVC is 12.60; Lunar Lake and Battlemage are 20.xx. Panther
//! Lake, Wildcat Lake and Nova Lake S are 30.xx; Nova Lake P and Crescent Island are 35.xx.

use super::Layout;

/// Ids and layouts, in the order of ids.
const DEVICES: &[(u16, Layout)] = &[
    (0x0b69, Layout::Pvc),
    (0x0b6e, Layout::Pvc),
    (0x0bd4, Layout::Pvc),
    (0x0bd5, Layout::Pvc),
    (0x0bd6, Layout::Pvc),
    (0x0bd7, Layout::Pvc),
    (0x0bd8, Layout::Pvc),
    (0x0bd9, Layout::Pvc),
    (0x0bda, Layout::Pvc),
    (0x0bdb, Layout::Pvc),
    (0x0be0, Layout::Pvc),
    (0x0be1, Layout::Pvc),
    (0x0be5, Layout::Pvc),
    // Lunar Lake.
    (0x6420, Layout::Xe2),
    (0x64a0, Layout::Xe2),
    (0x64b0, Layout::Xe2),
    // Crescent Island.
    (0x674c, Layout::Xe3p),
    // Panther Lake.
    (0xb080, Layout::Xe2),
    (0xb081, Layout::Xe2),
    (0xb082, Layout::Xe2),
    (0xb083, Layout::Xe2),
    (0xb084, Layout::Xe2),
    (0xb085, Layout::Xe2),
    (0xb086, Layout::Xe2),
    (0xb087, Layout::Xe2),
    (0xb08f, Layout::Xe2),
    (0xb090, Layout::Xe2),
    (0xb091, Layout::Xe2),
    (0xb092, Layout::Xe2),
    (0xb0a0, Layout::Xe2),
    (0xb0a1, Layout::Xe2),
    (0xb0a2, Layout::Xe2),
    (0xb0b0, Layout::Xe2),
    // Nova Lake S.
    (0xd740, Layout::Xe2),
    (0xd741, Layout::Xe2),
    (0xd742, Layout::Xe2),
    (0xd743, Layout::Xe2),
    (0xd744, Layout::Xe2),
    (0xd745, Layout::Xe2),
    // Nova Lake P.
    (0xd750, Layout::Xe3p),
    (0xd751, Layout::Xe3p),
    (0xd752, Layout::Xe3p),
    (0xd753, Layout::Xe3p),
    (0xd754, Layout::Xe3p),
    (0xd755, Layout::Xe3p),
    (0xd756, Layout::Xe3p),
    (0xd757, Layout::Xe3p),
    (0xd75f, Layout::Xe3p),
    // Battlemage.
    (0xe202, Layout::Xe2),
    (0xe209, Layout::Xe2),
    (0xe20b, Layout::Xe2),
    (0xe20c, Layout::Xe2),
    (0xe20d, Layout::Xe2),
    (0xe210, Layout::Xe2),
    (0xe211, Layout::Xe2),
    (0xe212, Layout::Xe2),
    (0xe215, Layout::Xe2),
    (0xe216, Layout::Xe2),
    (0xe220, Layout::Xe2),
    (0xe221, Layout::Xe2),
    (0xe222, Layout::Xe2),
    (0xe223, Layout::Xe2),
    // Wildcat Lake.
    (0xfd80, Layout::Xe2),
    (0xfd81, Layout::Xe2),
];

/// The layout of a device.
pub(super) fn layout(device: u16) -> Option<Layout> {
    let at = DEVICES.binary_search_by_key(&device, |d| d.0).ok()?;
    DEVICES.get(at).map(|d| d.1)
}

/// The layout of the device with the nearest id: ids of a family lie together.
pub(super) fn nearest(device: u16) -> Layout {
    let nearest = DEVICES.iter().min_by_key(|d| d.0.abs_diff(device));
    nearest.map_or(Layout::Xe2, |d| d.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_sorted_and_found() {
        assert!(DEVICES.is_sorted_by(|a, b| a.0 < b.0));
        assert_eq!(layout(0x0bd5), Some(Layout::Pvc));
        assert_eq!(layout(0x64a0), Some(Layout::Xe2));
        assert_eq!(layout(0xe20b), Some(Layout::Xe2));
        assert_eq!(layout(0xb080), Some(Layout::Xe2));
        assert_eq!(layout(0xd750), Some(Layout::Xe3p));
        // Alchemist and Meteor Lake have no EU stall sampling.
        assert_eq!(layout(0x56a0), None);
        assert_eq!(layout(0x7d55), None);
        assert_eq!(nearest(0xe2ff), Layout::Xe2);
        assert_eq!(nearest(0xd758), Layout::Xe3p);
        assert_eq!(nearest(0), Layout::Pvc);
    }
}
