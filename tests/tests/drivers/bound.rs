//! What is bound in the devices' address spaces.

use std::collections::BTreeMap;

use aiprof::correlate::{Backing, Tracker};
use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::calls::made;
use crate::recorded::{Recorded, number};

/// What lies in device memory, page by page: by address space and address, the
/// object, 0 for the program's own memory.
pub(crate) type Pages = BTreeMap<(Option<u64>, u64), u64>;
const PAGE: u64 = 4096;

impl Recorded {
    /// Notes what is bound now.
    pub(crate) fn note(&mut self, tracker: &Tracker, pid: u32) {
        let mut pages = Pages::new();
        for (id, space) in tracker.address_spaces().of(pid) {
            for bound in space.iter() {
                let object = match bound.backing {
                    Backing::Object { handle, .. } => handle,
                    Backing::Program { .. } | Backing::Nothing => 0,
                };
                put(&mut pages, id.vm, bound.start, bound.last, Some(object));
            }
        }
        change(self.bound.entry(pid).or_default(), pages);
    }
}

fn put(pages: &mut Pages, vm: Option<u64>, start: u64, last: u64, to: Option<u64>) {
    for page in start / PAGE..=last / PAGE {
        match to {
            Some(object) => drop(pages.insert((vm, page), object)),
            None => drop(pages.remove(&(vm, page))),
        }
    }
}

/// Adds to a history if something changed.
fn change(history: &mut Vec<Pages>, pages: Pages) {
    let before = history.last();
    if before.map_or(!pages.is_empty(), |before| *before != pages) {
        history.push(pages);
    }
}

/// What is bound changes as the program's successful calls say; gives how often.
pub(crate) fn compare_bound(truth: &[Value], recorded: &Recorded) -> anyhow::Result<usize> {
    let mut history = Vec::new();
    let mut pages = Pages::new();
    for line in made(truth) {
        if line["error"] != 0 {
            continue;
        }
        let vm = number(line, "vm");
        let mut bind = |object: Option<u64>, what: &Value| -> anyhow::Result<()> {
            let range = number(what, "addr").zip(number(what, "range"));
            let (start, bytes) = range.with_context(|| what.to_string())?;
            put(&mut pages, vm, start, start + bytes - 1, object);
            Ok(())
        };
        match line["command"].as_str().unwrap_or_default() {
            "VM_BIND" => {
                for one in line["binds"].as_array().context("no binds")? {
                    // 1 takes out.
                    let object = number(one, "obj").filter(|_| one["op"] != 1);
                    bind(object, one)?;
                }
            }
            "GEM_VA" => bind(number(line, "handle").filter(|_| line["op"] == 1), line)?,
            "IOMMU_MAP_DMA" => bind(Some(0), line)?,
            "IOMMU_UNMAP_DMA" => bind(None, line)?,
            "VM_DESTROY" => pages.retain(|(of, _), _| *of != vm),
            _ => {}
        }
        change(&mut history, pages.clone());
    }
    let end = truth.iter().find(|line| line["event"] == "end");
    let pid = end.and_then(|line| number(line, "pid")).context("no end")?;
    let seen = recorded.bound.get(&u32::try_from(pid)?);
    let mut seen = seen.cloned().unwrap_or_default();
    if history.last().is_some_and(|last| !last.is_empty()) {
        // What is left goes with the process.
        seen.pop_if(|last| last.is_empty());
    }
    ensure!(seen == history, "bound: {seen:?}, not {history:?}");
    Ok(history.len())
}
