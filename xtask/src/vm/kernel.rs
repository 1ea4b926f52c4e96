//! Debian's kernel packages: finding, downloading, unpacking.

use std::cmp::Ordering;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::modules::{self, Module};
use crate::install::may_install;
use crate::proc::{capture, run};

/// A kernel to boot.
pub(crate) struct Kernel {
    /// Path of the image.
    pub(crate) image: PathBuf,
    /// Modules, in the order in which they load.
    pub(crate) modules: Vec<Module>,
}

/// The kernel of a series such as `6.12`, downloaded if it is not in `work` yet.
pub(crate) fn fetch(work: &Path, series: &str) -> Result<Kernel> {
    let dir = work.join(format!("kernel-{series}"));
    if kernel_in(&dir)?.is_none() {
        download_any(work, series, &dir)?;
    }
    kernel_in(&dir)?.with_context(|| format!("no kernel in {}", dir.display()))
}

/// The kernel in `dir`, if all of it is there.
fn kernel_in(dir: &Path) -> Result<Option<Kernel>> {
    let (image, modules) = (image_in(dir), modules::kept(&dir.join("modules"))?);
    Ok(image
        .zip(modules)
        .map(|(image, modules)| Kernel { image, modules }))
}

fn download_any(work: &Path, series: &str, dir: &Path) -> Result<()> {
    let mut names = available(series)?;
    if names.is_empty() && may_install() {
        // A fresh image has no package lists.
        run(Command::new("apt-get").args(["-q", "update"]))?;
        names = available(series)?;
    }
    let downloads = work.join("download");
    fs::create_dir_all(&downloads)?;
    let mut last = None;
    // Lists may name versions that the mirror has dropped: newest that comes.
    for name in names.iter().rev() {
        match download(&downloads, name) {
            Ok(package) => return unpack(&package, dir),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) => Err(error),
        None => bail!("apt has no package linux-image-{series}"),
    }
}

fn image_in(dir: &Path) -> Option<PathBuf> {
    let boot = fs::read_dir(dir.join("boot")).ok()?;
    let mut files = boot.filter_map(|entry| Some(entry.ok()?.path()));
    files.find(|path| {
        path.file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with("vmlinuz-"))
    })
}

/// Names of the series' packages, oldest first.
fn available(series: &str) -> Result<Vec<String>> {
    let list =
        capture(Command::new("apt-cache").args(["pkgnames", &format!("linux-image-{series}.")]))?;
    let mut names: Vec<_> = list
        .lines()
        .filter(|name| is_plain(name, series))
        .map(String::from)
        .collect();
    names.sort_by(|a, b| compare_versions(a, b));
    Ok(names)
}

/// Whether this is the ordinary kernel: `linux-image-6.1.0-56-amd64` or
/// `linux-image-6.12.117+deb12-amd64`, not -cloud, -rt, -dbg or -unsigned.
fn is_plain(name: &str, series: &str) -> bool {
    let middle = name
        .strip_prefix("linux-image-")
        .and_then(|rest| rest.strip_prefix(series))
        .and_then(|rest| rest.strip_prefix('.'))
        .and_then(|rest| rest.strip_suffix("-amd64"));
    let flavours = ["cloud", "rt", "dbg", "unsigned"];
    middle.is_some_and(|m| m.split('-').all(|part| !flavours.contains(&part)))
}

/// Orders names by the numbers in them, so that 6.1.0-9 comes before 6.1.0-10.
fn compare_versions(a: &str, b: &str) -> Ordering {
    let numbers = |name: &str| -> Vec<u64> {
        name.split(|c: char| !c.is_ascii_digit())
            .filter_map(|digits| digits.parse().ok())
            .collect()
    };
    numbers(a).cmp(&numbers(b))
}

fn download(into: &Path, name: &str) -> Result<PathBuf> {
    run(Command::new("apt-get")
        .args(["-q", "download", name])
        .current_dir(into))?;
    let prefix = format!("{name}_");
    let mut files = fs::read_dir(into)?.filter_map(|entry| Some(entry.ok()?.path()));
    files
        .find(|path| {
            path.file_name()
                .is_some_and(|n| n.to_string_lossy().starts_with(&prefix))
        })
        .with_context(|| format!("apt-get download {name} wrote no file"))
}

/// Keeps the image and a few modules only: all of them are twenty times as large.
fn unpack(package: &Path, dir: &Path) -> Result<()> {
    let _ = fs::remove_dir_all(dir);
    let whole = dir.join("unpacking");
    fs::create_dir_all(&whole)?;
    run(Command::new("dpkg").arg("-x").arg(package).arg(&whole))?;
    let image = image_in(&whole).with_context(|| format!("no kernel in {}", package.display()))?;
    let name = image.file_name().context("a path without a name")?;
    fs::create_dir_all(dir.join("boot"))?;
    fs::rename(&image, dir.join("boot").join(name))?;
    modules::keep(&whole, &dir.join("modules"))?;
    fs::remove_dir_all(&whole)?;
    fs::remove_file(package)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_ordinary_kernels() {
        assert!(is_plain("linux-image-6.1.0-56-amd64", "6.1"));
        assert!(is_plain("linux-image-6.12.117+deb12-amd64", "6.12"));
        assert!(!is_plain("linux-image-6.12.117+deb12-amd64", "6.1"));
        for other in [
            "cloud-amd64",
            "rt-amd64",
            "amd64-dbg",
            "amd64-unsigned",
            "cloud-amd64-dbg",
        ] {
            assert!(
                !is_plain(&format!("linux-image-6.1.0-56-{other}"), "6.1"),
                "{other}"
            );
        }
    }

    #[test]
    fn orders_versions_by_number() {
        let mut names = [
            "linux-image-6.1.0-56-amd64",
            "linux-image-6.1.0-9-amd64",
            "linux-image-6.1.0-10-amd64",
        ];
        names.sort_by(|a, b| compare_versions(a, b));
        assert_eq!(names[0], "linux-image-6.1.0-9-amd64");
        assert_eq!(names[2], "linux-image-6.1.0-56-amd64");
    }
}
