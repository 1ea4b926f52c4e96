//! The manifest beside the committed eBPF object: from which sources, by which
//! tools, and the digest of the result.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Versions of the tools that decide the object's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Versions {
    pub(crate) rustc: String,
    pub(crate) rustc_llvm: String,
    pub(crate) bpf_linker: String,
    pub(crate) bpf_linker_llvm: String,
}

/// The manifest's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// Digest of the sources, see [`sources_digest`].
    pub(crate) sources_sha256: String,
    /// Digest of the object.
    pub(crate) object_sha256: String,
    #[serde(flatten)]
    pub(crate) versions: Versions,
}

impl Manifest {
    pub(crate) fn to_toml(&self) -> Result<String> {
        let fields = toml::to_string(self)?;
        Ok(format!(
            "# Written by `cargo xtask build-ebpf`, read by `cargo xtask build-ebpf --check`.\n{fields}"
        ))
    }

    pub(crate) fn read(path: &Path) -> Result<Manifest> {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("in {}", path.display()))
    }
}

/// The SHA-256 digest of `data` in hexadecimal.
pub(crate) fn hex_digest(data: &[u8]) -> String {
    format!("{:x}", Sha256::digest(data))
}

/// The digest of everything the object is made from: for each file, in the
/// order of their paths, its path, its length and its bytes.
pub(crate) fn sources_digest(root: &Path) -> Result<String> {
    let mut digest = Sha256::new();
    for path in source_files(root)? {
        let data = fs::read(root.join(&path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        digest.update(format!("{} {}\n", path.display(), data.len()));
        digest.update(&data);
    }
    Ok(format!("{:x}", digest.finalize()))
}

/// The files that [`sources_digest`] covers, relative to `root`, sorted.
fn source_files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = [
        "profiler-ebpf/Cargo.toml",
        "profiler-ebpf/Cargo.lock",
        "profiler-common/Cargo.toml",
    ]
    .map(PathBuf::from)
    .into();
    for folder in ["profiler-ebpf/src", "profiler-common/src"] {
        walk(root, Path::new(folder), &mut files)?;
    }
    files.sort();
    Ok(files)
}

fn walk(root: &Path, folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let at = root.join(folder);
    for entry in fs::read_dir(&at).with_context(|| format!("cannot read {}", at.display()))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            walk(root, &path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Manifest {
        Manifest {
            sources_sha256: "ab".repeat(32),
            object_sha256: "cd".repeat(32),
            versions: Versions {
                rustc: "1.96.0 (ac68faa20 2026-05-25)".into(),
                rustc_llvm: "22.1.8".into(),
                bpf_linker: "0.13.0".into(),
                bpf_linker_llvm: "22.1".into(),
            },
        }
    }

    fn parse(text: &str) -> Result<Manifest, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn reads_what_it_writes() {
        let text = sample().to_toml().unwrap();
        assert_eq!(parse(&text).unwrap(), sample());
        assert!(text.contains("\nrustc = \"1.96.0 (ac68faa20 2026-05-25)\"\n"));
    }

    #[test]
    fn refuses_what_is_not_a_manifest() {
        assert!(parse("").is_err());
        assert!(parse("rustc 1.96").is_err());
        let text = sample().to_toml().unwrap();
        let short = text.replace("object_sha256", "object_md5");
        let error = parse(&short).unwrap_err().to_string();
        assert!(error.contains("object_sha256"), "{error}");
    }

    /// The manifest that is committed stays as it is written.
    #[test]
    fn the_committed_manifest_is_written_alike() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let path = root.join("profiler/crates/live/src/bpf/aiprof.bpf.toml");
        let text = fs::read_to_string(&path).unwrap();
        let manifest = Manifest::read(&path).unwrap();
        assert_eq!(manifest.to_toml().unwrap(), text);
    }

    /// A scratch repository, removed when dropped.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let root = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
            for folder in ["profiler-ebpf/src", "profiler-common/src"] {
                fs::create_dir_all(root.join(folder)).unwrap();
            }
            for file in [
                "profiler-ebpf/Cargo.toml",
                "profiler-ebpf/Cargo.lock",
                "profiler-ebpf/src/main.rs",
                "profiler-common/Cargo.toml",
                "profiler-common/src/lib.rs",
            ] {
                fs::write(root.join(file), file).unwrap();
            }
            Scratch(root)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_digest_sees_content_names_and_new_files() {
        let scratch = Scratch::new("digest");
        let root = &scratch.0;
        let first = sources_digest(root).unwrap();
        assert_eq!(sources_digest(root).unwrap(), first);
        fs::write(root.join("profiler-ebpf/src/main.rs"), "changed").unwrap();
        let second = sources_digest(root).unwrap();
        assert_ne!(second, first);
        fs::rename(
            root.join("profiler-ebpf/src/main.rs"),
            root.join("profiler-ebpf/src/moved.rs"),
        )
        .unwrap();
        let third = sources_digest(root).unwrap();
        assert_ne!(third, second);
        fs::create_dir(root.join("profiler-common/src/deep")).unwrap();
        fs::write(root.join("profiler-common/src/deep/new.rs"), "").unwrap();
        assert_ne!(sources_digest(root).unwrap(), third);
        // What lies beside the sources does not count.
        let before = sources_digest(root).unwrap();
        fs::create_dir_all(root.join("profiler-ebpf/target")).unwrap();
        fs::write(root.join("profiler-ebpf/target/x"), "").unwrap();
        assert_eq!(sources_digest(root).unwrap(), before);
    }
}
