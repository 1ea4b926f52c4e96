//! Names of kernel addresses, asked of the kernel itself.
//!
//! `/proc/kallsyms` would have to be read whole, 200,000 lines.

use super::{BpfError, LoadedObject, NAME_KERNEL, NAMES, plain};
use aiprof_common::{KERNEL_NAME_BYTES, KERNEL_NAMES, KernelNames};
use aiprof_model::profile::FrameKind;
use aiprof_symbols::symbolize::SymFrame;
use libbpf_rs::{MapCore as _, MapFlags, libbpf_sys as sys};
use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    sync::Arc,
};

/// Name of a frame that no kernel function covers.
const UNKNOWN: &str = "[unknown kernel]";

/// Names kernel addresses.
pub(crate) struct KernelNamer {
    loaded: Arc<LoadedObject>,
    program: Arc<OwnedFd>,
}

impl KernelNamer {
    pub(super) fn new(loaded: Arc<LoadedObject>) -> Result<Self, BpfError> {
        let program = loaded.program(NAME_KERNEL)?;
        Ok(Self { loaded, program })
    }

    /// Names each address; one frame for each.
    pub(crate) fn name(&self, addresses: &[u64]) -> Vec<Vec<SymFrame>> {
        let mut frames = Vec::with_capacity(addresses.len());
        for some in addresses.chunks(KERNEL_NAMES) {
            let names = self.name_some(some).unwrap_or_else(|error| {
                tracing::warn!("functions of the Linux kernel have no names: {error}");
                Box::new(empty())
            });
            frames.extend(names.names.iter().take(some.len()).map(frame));
        }
        frames
    }

    fn name_some(&self, addresses: &[u64]) -> Result<Box<KernelNames>, BpfError> {
        let key = 0u32.to_ne_bytes();
        let map = self.loaded.map(NAMES)?;
        let mut names = Box::new(empty());
        for (to, &address) in names.addresses.iter_mut().zip(addresses) {
            // 0 would be the end.
            *to = address.max(1);
        }
        map.update(&key, plain::bytes(&*names), MapFlags::ANY)?;
        let mut options = sys::bpf_test_run_opts {
            sz: size_of::<sys::bpf_test_run_opts>() as u64,
            ..Default::default()
        };
        // SAFETY: an open program, and options that contain their own size.
        let rc = unsafe { sys::bpf_prog_test_run_opts(self.program.as_raw_fd(), &mut options) };
        if rc != 0 {
            return Err(BpfError::Run(io::Error::from_raw_os_error(-rc)));
        }
        let named = map.lookup(&key, MapFlags::ANY)?;
        let named = named.and_then(|bytes| plain::value::<KernelNames>(&bytes));
        Ok(Box::new(named.ok_or(BpfError::Missing(NAMES))?))
    }
}

fn empty() -> KernelNames {
    KernelNames {
        addresses: [0; KERNEL_NAMES],
        names: [[0; KERNEL_NAME_BYTES]; KERNEL_NAMES],
    }
}

/// The frame of a name: without the module that stands behind it.
fn frame(name: &[u8; KERNEL_NAME_BYTES]) -> Vec<SymFrame> {
    let end = name.iter().position(|byte| matches!(byte, 0 | b' '));
    let name = String::from_utf8_lossy(name.get(..end.unwrap_or(name.len())).unwrap_or_default());
    let frame = match name.is_empty() || name.starts_with("0x") {
        true => SymFrame::plain(UNKNOWN, FrameKind::Unknown),
        false => SymFrame::plain(&*name, FrameKind::Kernel),
    };
    vec![frame]
}

#[cfg(test)]
mod tests {
    use super::super::{Bpf, BpfOptions};
    use super::*;
    use std::collections::BTreeMap;

    /// The file is the oracle: `/proc/kallsyms`, line by line.
    #[test]
    fn running_kernel_agrees_with_kallsyms() {
        let text = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
        let mut wanted: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(address), Some(kind), Some(name)) =
                (words.next(), words.next(), words.next())
            else {
                continue;
            };
            let address = u64::from_str_radix(address, 16).unwrap_or(0);
            if address != 0 && matches!(kind, "T" | "t") && !name.starts_with("__pfx_") {
                wanted.entry(address).or_default().push(name);
            }
        }
        let loaded = Bpf::load(&BpfOptions::default(), None);
        let (Ok(bpf), false) = (loaded, wanted.is_empty()) else {
            eprintln!("SKIPPED: needs root");
            return;
        };
        let namer = bpf.kernel_namer().unwrap();
        let some: Vec<_> = wanted.iter().step_by(97).collect();
        let addresses: Vec<u64> = some.iter().map(|(address, _)| **address).collect();
        let found = namer.name(&addresses);
        assert_eq!(found.len(), some.len());
        let mut wrong = 0;
        for ((_, names), frames) in some.iter().zip(&found) {
            wrong += usize::from(!names.contains(&frames[0].name.as_str()));
        }
        // Where a section ends the kernel knows no function, and of modules' own sections
        // it may know another name.
        assert!(wrong * 500 <= some.len(), "{wrong} of {}", some.len());
        let outside = namer.name(&[0, 1, 0x1000, u64::MAX]);
        let outside: Vec<_> = outside.iter().map(|f| f[0].name.as_str()).collect();
        assert_eq!(outside, [UNKNOWN; 4]);
        assert!(namer.name(&[]).is_empty());
    }

    #[test]
    fn modules_are_left_out_and_numbers_are_no_names() {
        let name = |text: &str| {
            let mut bytes = [0; KERNEL_NAME_BYTES];
            bytes[..text.len()].copy_from_slice(text.as_bytes());
            frame(&bytes)[0].name.clone()
        };
        assert_eq!(name("xe_exec [xe]"), "xe_exec");
        assert_eq!(name("do_idle"), "do_idle");
        assert_eq!(name("0x1000"), UNKNOWN);
        assert_eq!(name(""), UNKNOWN);
        let full = [b'a'; KERNEL_NAME_BYTES];
        assert_eq!(frame(&full)[0].name.len(), KERNEL_NAME_BYTES);
    }
}
