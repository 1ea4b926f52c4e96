//! Closing links without having the user wait.
//!
//! The kernel takes tens of milliseconds for each, most of it waiting for others
//! to let go. Links of many functions are few, and are closed side by side. Those
//! of one function each are many, and the kernel closes them one after the other
//! whatever one does: a process that outlives this one does that.

use super::bpf::{
    perf,
    probe::{self, Link},
};
use std::thread;

/// Most links closed side by side.
const MAX_THREADS: usize = 32;

/// Closes links if that is quick; gives them back if not.
pub fn at_once(links: Vec<Link>) -> Vec<Link> {
    if !probe::uprobe_multi().exists() {
        return links;
    }
    let mut parts: Vec<Vec<Link>> = Vec::new();
    for (index, link) in links.into_iter().enumerate() {
        match parts.get_mut(index % MAX_THREADS) {
            Some(part) => part.push(link),
            None => parts.push(vec![link]),
        }
    }
    thread::scope(|scope| {
        for part in parts {
            // Without a thread, they are closed here.
            let _ = thread::Builder::new().spawn_scoped(scope, move || drop(part));
        }
    });
    Vec::new()
}

/// Has another process close links, if there are any.
pub fn in_background(links: Vec<Link>) {
    if links.is_empty() {
        return;
    }
    let descriptors = links.into_iter().map(Link::into_fd).collect();
    if let Err(error) = perf::close_elsewhere(descriptors) {
        tracing::debug!("links are closed here: {error}");
    }
}
