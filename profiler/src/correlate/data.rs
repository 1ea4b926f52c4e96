//! Data of calls: texts, arrays and device code that arrive behind a call.

use super::{CallContent, handles::ModuleImage, open::Open};
use crate::{probes::DataFormat, symbolize::demangle, wire::CallData};
use aiprof_common::TEXT_BYTES;
use sha2::{Digest, Sha256};
use std::rc::Rc;

/// Most bytes kept of a text or an array.
const MAX_CONTENT: usize = 64 << 10;
/// What the runtime's type information puts before a SYCL kernel's name.
const TYPE_NAME: &str = "typeinfo name for ";
/// Marks a name of which only the beginning was read.
const CUT: &str = "[..]";

/// Device code that arrives in pieces.
#[derive(Clone, Debug)]
pub(super) struct Image {
    hasher: Sha256,
    /// Bytes so far.
    have: u64,
    total: u64,
    broken: bool,
    pub(super) format: u64,
}

impl Image {
    fn new() -> Self {
        Self {
            hasher: Sha256::new(),
            have: 0,
            total: 0,
            broken: false,
            format: 0,
        }
    }

    fn take(&mut self, data: &CallData) {
        self.total = self.total.max(data.total);
        // A piece that is missing or out of order changes the digest: none then.
        self.broken |= data.unread || data.offset != self.have;
        self.hasher.update(&data.bytes);
        self.have += data.bytes.len() as u64;
    }

    fn is_complete(&self) -> bool {
        !self.broken && self.have == self.total
    }

    pub(super) fn finished(&self) -> ModuleImage {
        let whole = self.is_complete().then(|| self.hasher.clone().finalize());
        ModuleImage {
            digest: whole.map(Into::into),
            bytes: self.total,
            format: self.format,
        }
    }
}

impl Open {
    /// Takes a piece of data in.
    pub(super) fn take_data(&mut self, data: &CallData) {
        let Some(info) = self.known.probe.data.get(usize::from(data.tag)) else {
            return;
        };
        let is_blob = info.format == DataFormat::Blob;
        let is_text = info.format == DataFormat::Text;
        let is_image = Some(data.tag) == self.known.tags.image;
        let content = self.content(data.tag);
        content.total = content.total.max(data.total);
        if is_blob && !is_image && data.total > MAX_CONTENT as u64 {
            content.complete = !data.unread;
            return;
        }
        if is_blob && is_image {
            let image = self.image.get_or_insert_with(|| Box::new(Image::new()));
            image.take(data);
            let complete = image.is_complete();
            self.content(data.tag).complete = complete;
            return;
        }
        let fits = data.offset == content.bytes.len() as u64
            && content.bytes.len() + data.bytes.len() <= MAX_CONTENT;
        if fits {
            content.bytes.extend_from_slice(&data.bytes);
        }
        let whole = is_text || content.bytes.len() as u64 == content.total;
        content.complete = fits && whole && !data.unread;
        if is_text && Some(data.tag) == self.known.tags.name && !data.unread {
            self.name = name(&data.bytes);
        }
    }

    fn content(&mut self, tag: u8) -> &mut CallContent {
        let known = self.call.data.iter().position(|d| d.tag == tag);
        let at = known.unwrap_or_else(|| {
            self.call.data.push(CallContent {
                tag,
                total: 0,
                complete: false,
                bytes: Vec::new(),
            });
            self.call.data.len() - 1
        });
        &mut self.call.data[at]
    }

    /// An array of numbers with a role, as far as it arrived.
    pub(super) fn array(&self, tag: Option<u8>) -> impl Iterator<Item = u64> {
        let content = tag.and_then(|tag| self.call.content(usize::from(tag)));
        let bytes = content.map_or(&[][..], |c| c.bytes.as_slice());
        bytes.as_chunks().0.iter().map(|&b| u64::from_le_bytes(b))
    }

    /// Whether something that belongs to the call did not arrive whole.
    pub(super) fn is_incomplete(&self) -> bool {
        self.call.flags & aiprof_common::CALL_DATA_LOST != 0
            || self.call.data.iter().any(|d| !d.complete)
    }

    /// Whether data may still come behind its exit.
    pub(super) fn awaits_data(&self) -> bool {
        self.known.probe.data.len() > self.call.data.len()
    }
}

/// A kernel's name for people.
fn name(bytes: &[u8]) -> Option<Rc<str>> {
    if bytes.is_empty() {
        return None;
    }
    let text = String::from_utf8_lossy(bytes);
    // The last byte is the NUL's.
    if bytes.len() + 1 >= TEXT_BYTES {
        return Some(format!("{text}{CUT}").into());
    }
    let readable = demangle(&text);
    Some(readable.strip_prefix(TYPE_NAME).unwrap_or(&readable).into())
}
