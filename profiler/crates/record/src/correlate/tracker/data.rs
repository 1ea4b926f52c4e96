//! Data of calls: texts, arrays and device code that arrive behind a call.

use super::{CallContent, handles::ModuleImage, open::OpenCall};
use aiprof_common::TEXT_BYTES;
use aiprof_model::{
    demangle::demangle,
    probes::{DataFormat, role},
    wire::CallData,
};
use sha2::{Digest, Sha256};
use std::rc::Rc;

/// Most bytes kept of a text or an array.
const MAX_CONTENT: usize = 64 << 10;
/// What the runtime's type information puts before a SYCL kernel's name.
const TYPE_NAME: &str = "typeinfo name for ";
/// Marks a name of which only the beginning was read.
const CUT: &str = "[..]";
/// Texts of fewer bytes lie inside of a `std::string` (libstdc++).
const SHORT_STRING: u64 = 16;
/// No object of parameters is larger.
const OBJECT_BYTES: u64 = 4096;

/// A piece of the device code that a program hands to its runtime.
#[derive(Clone, Copy, Debug)]
pub struct ImagePiece<'a> {
    /// The whole that this is a piece of: the thread, the probe and the tag of the data.
    pub of: (u32, u32, u8),
    /// Where it begins in the whole.
    pub offset: u64,
    /// Bytes of the whole.
    pub total: u64,
    /// The rest could not be read.
    pub unread: bool,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl<'a> ImagePiece<'a> {
    pub(super) fn of(data: &'a CallData) -> Self {
        Self {
            of: (data.tid, data.probe, data.tag),
            offset: data.offset,
            total: data.total,
            unread: data.unread,
            bytes: &data.bytes,
        }
    }
}

/// Device code that arrives in pieces.
#[derive(Clone, Debug)]
pub(super) struct Image {
    tag: u8,
    hasher: Sha256,
    /// Bytes so far.
    have: u64,
    total: u64,
    broken: bool,
}

impl Image {
    fn new(tag: u8) -> Self {
        Self {
            tag,
            hasher: Sha256::new(),
            have: 0,
            total: 0,
            broken: false,
        }
    }

    fn take(&mut self, data: &CallData) {
        self.total = self.total.max(data.total);
        // Without a piece, or with one out of order, there is no digest.
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
            format: 0,
        }
    }
}

impl OpenCall {
    /// Takes a piece of data in.
    pub(super) fn take_data(&mut self, data: &CallData) {
        let Some(info) = self.meaning.probe.data.get(usize::from(data.tag)) else {
            return;
        };
        let is_text = info.format == DataFormat::Text;
        if data.unread && data.bytes.is_empty() && data.offset == 0 && !is_text {
            // Optional: the pointer to it leads nowhere.
            return;
        }
        if self.is_image(data.tag) {
            return self.take_image(data);
        }
        let content = self.content(data.tag);
        content.total = content.total.max(data.total);
        if Some(data.tag) == self.meaning.tags.record {
            return self.take_record(data);
        }
        if Some(data.tag) == self.meaning.tags.assumed_name {
            return self.take_assumed_name(data);
        }
        let content = self.content(data.tag);
        if data.total > MAX_CONTENT as u64 {
            content.complete = !data.unread;
            return;
        }
        let fits = data.offset == content.bytes.len() as u64
            && content.bytes.len() + data.bytes.len() <= MAX_CONTENT;
        if fits {
            content.bytes.extend_from_slice(&data.bytes);
        }
        let whole = is_text || content.bytes.len() as u64 == content.total;
        content.complete = fits && whole && !data.unread;
        if is_text && Some(data.tag) == self.meaning.tags.name && !data.unread {
            self.name = name(&data.bytes);
        }
    }

    /// The beginning of what is left of a buffer: one record is wanted of it.
    fn take_record(&mut self, data: &CallData) {
        let content = self.content(data.tag);
        content.complete = !data.unread;
        if content.bytes.is_empty() && data.bytes.len() <= MAX_CONTENT {
            content.bytes.extend_from_slice(&data.bytes);
        }
    }

    /// A text that is the kernel's name if it was read from a `std::string`. No header shows
    /// whether it was. It was if the text is as long as the string's length field, and lies
    /// inside the object just when it is short. Nothing is lost if it was not.
    fn take_assumed_name(&mut self, data: &CallData) {
        self.content(data.tag).complete = true;
        let value = |name: &str| self.call.value(self.meaning.probe.slot(name)?);
        let length = value(role::ASSUMED_NAME_LENGTH);
        let place = value(role::ASSUMED_NAME_AT).zip(value(role::PARAMETERS));
        let (Some(length), Some((at, object)), false) = (length, place, data.unread) else {
            return;
        };
        let inside = at.checked_sub(object).is_some_and(|by| by < OBJECT_BYTES);
        let have = data.bytes.len() as u64;
        let is_cut = have + 1 >= TEXT_BYTES as u64 && length >= have;
        let printable =
            std::str::from_utf8(&data.bytes).is_ok_and(|text| !text.chars().any(char::is_control));
        if (length == have || is_cut) && inside == (length < SHORT_STRING) && printable {
            self.name = name(&data.bytes);
        }
    }

    /// Whether a tag is that of the device code.
    fn is_image(&self, tag: u8) -> bool {
        match &self.image {
            Some(image) => image.tag == tag,
            None => self.meaning.tags.is_image(tag),
        }
    }

    fn take_image(&mut self, data: &CallData) {
        let image = self
            .image
            .get_or_insert_with(|| Box::new(Image::new(data.tag)));
        image.take(data);
        let (total, complete) = (image.total, image.is_complete());
        let content = self.content(data.tag);
        (content.total, content.complete) = (total, complete);
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

    /// An array of numbers with a role, or the part of it that arrived.
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
        self.meaning.probe.data.len() > self.call.data.len()
    }
}

/// Only the beginning of a kernel's name was read.
pub(in super::super) fn is_cut(name: &str) -> bool {
    name.ends_with(CUT)
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
