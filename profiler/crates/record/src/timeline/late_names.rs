//! Names that become known after what they name: a text with marks, which are replaced
//! at the end.
//!
//! A mark stands between two NULs, which no name has: `k`, a process and a kernel's
//! handle; or `p` and a process that submitted work.

use super::process_tracks::ProcessTracks;
use crate::correlate::KernelName;
use rustc_hash::FxHashMap;
use std::{borrow::Cow, rc::Rc};

const MARK: char = '\0';
/// Most names of kernels kept.
const MAX_KERNELS: usize = 1 << 17;

/// Names of kernels older than the recording, by process and handle.
#[derive(Debug, Default)]
pub(super) struct LateNames {
    kernels: FxHashMap<(u32, u64), Rc<str>>,
}

/// A name without NULs.
fn plain(name: &str) -> Cow<'_, str> {
    match name.contains(MARK) {
        true => name.replace(MARK, " ").into(),
        false => name.into(),
    }
}

/// The name of work, or a mark for it.
pub(super) fn of_work(pid: u32, name: &KernelName) -> Cow<'_, str> {
    match name {
        KernelName::Known(name) => plain(name),
        KernelName::BeforeAttach(kernel) => format!("{MARK}k{pid}:{kernel}{MARK}").into(),
        KernelName::Unknown | KernelName::Submitted => name.to_string().into(),
    }
}

/// A mark for the name of a process that submits work.
pub(super) fn of_submitter(pid: u32) -> String {
    format!("{MARK}p{pid}{MARK}")
}

/// Whether a text has marks.
pub(super) fn is_late(text: &str) -> bool {
    text.contains(MARK)
}

impl LateNames {
    /// A kernel has got its name.
    pub(super) fn named(&mut self, pid: u32, kernel: u64, name: &Rc<str>) {
        if self.kernels.len() < MAX_KERNELS {
            self.kernels.insert((pid, kernel), name.clone());
        }
    }

    /// A text with its marks replaced.
    pub(super) fn resolve(&self, text: &str, processes: &ProcessTracks) -> String {
        let parts = text.split(MARK).enumerate();
        // Between the first and second mark, the third and fourth, ...
        let parts = parts.map(|(index, part)| match index % 2 {
            0 => part.into(),
            _ => self.name(part, processes),
        });
        parts.collect::<Vec<Cow<'_, str>>>().concat()
    }

    fn name<'a>(&'a self, mark: &str, processes: &'a ProcessTracks) -> Cow<'a, str> {
        if let Some(pid) = mark.strip_prefix('p') {
            return processes.submitter(pid.parse().unwrap_or(0)).into();
        }
        let key = mark.strip_prefix('k').and_then(|key| key.split_once(':'));
        let key = key.and_then(|(pid, kernel)| Some((pid.parse().ok()?, kernel.parse().ok()?)));
        let Some(key) = key else {
            return "".into();
        };
        match self.kernels.get(&key) {
            Some(name) => plain(name),
            None => KernelName::BeforeAttach(key.1).to_string().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_become_names() {
        let mut late = LateNames::default();
        late.named(7, 0x10, &"gemm".into());
        let processes = ProcessTracks::default();
        let known = of_work(7, &KernelName::BeforeAttach(0x10)).into_owned();
        let unknown = of_work(8, &KernelName::BeforeAttach(0x10)).into_owned();
        let text = format!("{known} x2, add, {unknown}");
        assert!(is_late(&text) && !is_late("add"));
        assert_eq!(
            late.resolve(&text, &processes),
            "gemm x2, add, [kernel created before attach 0x10]"
        );
        assert_eq!(late.resolve(&of_submitter(3), &processes), "submission");
        let hostile = of_work(1, &KernelName::Known("a\0k7:16\0".into())).into_owned();
        assert_eq!(late.resolve(&hostile, &processes), "a k7:16 ");
        for text in ["\0", "\0k\0", "\0k7\0x", "\0x\0\0"] {
            late.resolve(text, &processes);
        }
    }
}
