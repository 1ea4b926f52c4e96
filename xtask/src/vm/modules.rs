//! Kernel modules: those that the tests need, with what they depend on, out of
//! Debian's kernel packages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::proc::{capture_bytes, find_program};

/// The devices of the VM: a DRM driver without hardware, character devices
/// served by a program, and PCI devices driven by a program. No driver here uses
/// DRM's scheduler, but its tracepoints are looked at.
const WANTED: &[&str] = &["vgem", "gpu_sched", "cuse", "vfio_iommu_type1", "vfio_pci"];

/// A module as it is loaded.
pub(crate) struct Module {
    pub(crate) name: String,
    pub(crate) data: Vec<u8>,
}

/// In `modules/`: the names in the order of loading, one a line. Written last, so that it is there
/// only when the modules are.
const ORDER: &str = "order";

/// Keeps the modules of the unpacked package in `tree` as plain files in `into`.
pub(super) fn keep(tree: &Path, into: &Path) -> Result<()> {
    let mut paths = BTreeMap::new();
    collect(&tree.join("lib/modules"), &mut paths)?;
    fs::create_dir_all(into)?;
    let mut kept = Kept {
        paths,
        into,
        seen: BTreeSet::new(),
        order: Vec::new(),
    };
    for name in WANTED {
        kept.add(name)?;
    }
    fs::write(into.join(ORDER), kept.order.join("\n") + "\n")?;
    Ok(())
}

/// The modules that [`keep`] left, in loading order, or `None` if it never
/// finished, or kept others than are wanted now.
pub(super) fn kept(into: &Path) -> Result<Option<Vec<Module>>> {
    let Ok(order) = fs::read_to_string(into.join(ORDER)) else {
        return Ok(None);
    };
    let has = |name: &&str| order.lines().any(|kept| kept == *name);
    if !WANTED.iter().all(has) {
        return Ok(None);
    }
    let read = |name: &str| -> Result<Module> {
        let path = into.join(format!("{name}.ko"));
        let data = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Module {
            name: name.to_string(),
            data,
        })
    };
    order.lines().map(read).collect::<Result<_>>().map(Some)
}

/// Every module file below `dir`, by module name.
fn collect(dir: &Path, into: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), into)?;
        } else if let Some(name) = module_name(&entry.file_name().to_string_lossy()) {
            into.insert(name, entry.path());
        }
    }
    Ok(())
}

/// The module's name in a file name: `vfio_pci` for `vfio-pci.ko.xz`.
fn module_name(file: &str) -> Option<String> {
    let stem = file
        .strip_suffix(".ko")
        .or_else(|| file.strip_suffix(".ko.xz"))?;
    Some(stem.replace('-', "_"))
}

/// Modules being kept.
struct Kept<'a> {
    /// Every module of the package, by name.
    paths: BTreeMap<String, PathBuf>,
    into: &'a Path,
    /// Those looked at: each is kept once.
    seen: BTreeSet<String>,
    order: Vec<String>,
}

impl Kept<'_> {
    /// Keeps a module after those it depends on.
    fn add(&mut self, name: &str) -> Result<()> {
        if !self.seen.insert(name.to_string()) {
            return Ok(());
        }
        let Some(path) = self.paths.get(name) else {
            bail!("the kernel package has no module {name}");
        };
        let data = unpacked(path)?;
        for needed in depends(&data) {
            self.add(&needed)?;
        }
        fs::write(self.into.join(format!("{name}.ko")), &data)?;
        self.order.push(name.to_string());
        Ok(())
    }
}

/// A module's content; newer packages compress them.
fn unpacked(path: &Path) -> Result<Vec<u8>> {
    if path.extension().is_some_and(|e| e == "xz") {
        let busybox = find_program("busybox").context("busybox was removed")?;
        return capture_bytes(Command::new(busybox).args(["unxz", "-c"]).arg(path));
    }
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The dependencies of a module: a zero-ended `depends=a,b` in its .modinfo section
/// (scripts/mod/modpost.c). What is built into the kernel is not named.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|bytes| bytes == KEY) else {
        return Vec::new();
    };
    let value = &module[at + KEY.len()..];
    let end = value.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&value[..end.unwrap_or(0)])
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_names_and_dependencies() {
        assert_eq!(module_name("vfio-pci.ko.xz").as_deref(), Some("vfio_pci"));
        assert_eq!(module_name("drm.ko").as_deref(), Some("drm"));
        assert_eq!(module_name("modules.order"), None);
        let module = b"\x7fELF\0license=GPL\0depends=vfio-pci-core,vfio\0retpoline=Y\0";
        assert_eq!(depends(module), ["vfio_pci_core", "vfio"]);
        assert!(depends(b"\0depends=\0").is_empty());
        assert!(depends(b"\0depends=unended").is_empty());
        assert!(depends(b"").is_empty());
    }

    /// A package's tree gives its modules in the order in which they can load.
    #[test]
    fn keeps_dependencies_first() {
        let dir = std::env::temp_dir().join(format!("xtask-modules-{}", std::process::id()));
        let tree = dir.join("lib/modules/6.0/kernel/deep");
        fs::create_dir_all(&tree).unwrap();
        let module = |name: &str, depends: &str| {
            fs::write(tree.join(name), format!("\0depends={depends}\0")).unwrap();
        };
        module("vgem.ko", "drm");
        module("drm.ko", "");
        module("gpu-sched.ko", "drm");
        module("cuse.ko", "fuse");
        module("fuse.ko", "");
        module("vfio_iommu_type1.ko", "vfio");
        module("vfio.ko", "");
        module("vfio-pci.ko", "vfio");
        let kept_in = dir.join("kept");
        assert!(kept(&kept_in).unwrap().is_none());
        keep(&dir, &kept_in).unwrap();
        let modules = kept(&kept_in).unwrap().unwrap();
        let names: Vec<_> = modules.iter().map(|module| module.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "drm",
                "vgem",
                "gpu_sched",
                "fuse",
                "cuse",
                "vfio",
                "vfio_iommu_type1",
                "vfio_pci"
            ]
        );
        // Those of an earlier version of this file.
        fs::write(kept_in.join(ORDER), "drm\nvgem\n").unwrap();
        assert!(kept(&kept_in).unwrap().is_none());
        fs::remove_dir_all(&dir).unwrap();
    }
}
