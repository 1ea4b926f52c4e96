//! `.ze_info`: the compiler's description of kernels, in YAML (`zebin/spec/zeinfo.md` of
//! intel-graphics-compiler).

use super::limits::{MAX_KERNELS, MAX_TEXT};
use super::module::{Attributes, Problems};
use rustc_hash::FxHashMap;
use saphyr_parser::{Event, Parser};

/// Most mappings and sequences in each other; the compiler writes five.
const MAX_DEPTH: usize = 32;
/// Most values read; a kernel has about a hundred.
const MAX_EVENTS: usize = 4 << 20;
/// Longest value kept.
const MAX_VALUE: usize = super::limits::MAX_NAME;
/// Longest text read.
const MAX_INFO: usize = MAX_TEXT;

/// Attributes by kernel. What was read before something unreadable counts.
pub(super) fn parse(bytes: &[u8], problems: &mut Problems) -> FxHashMap<String, Attributes> {
    let mut reader = ZeInfoReader::default();
    // Panics in the parser would cost the attributes only.
    let read = std::panic::AssertUnwindSafe(|| reader.read(bytes));
    let whole = std::panic::catch_unwind(read).ok().flatten().is_some();
    if !whole {
        problems.attributes = problems.attributes.saturating_add(1);
    }
    reader.kernels
}

/// A mapping or sequence that the reader is in.
#[derive(Default)]
struct Level {
    is_mapping: bool,
    /// In a mapping: the key whose value comes next.
    key: Option<String>,
    /// In a sequence: how many values came.
    index: usize,
}

#[derive(Default)]
struct ZeInfoReader {
    levels: Vec<Level>,
    kernels: FxHashMap<String, Attributes>,
    name: String,
    current: Attributes,
    buffer: Buffer,
    /// Private memory of each work item, if the file gives it per item.
    private_of_item: Option<u64>,
    /// The kernel that `kernels_misc_info` is at.
    described: String,
}

/// An entry of `per_thread_memory_buffers`.
#[derive(Default)]
struct Buffer {
    is_scratch: bool,
    usage: String,
    size: u64,
    /// The size is that of a work item, not of a hardware thread.
    of_item: bool,
}

impl ZeInfoReader {
    /// Reads to the end of the first document; `None` if it ends before.
    fn read(&mut self, bytes: &[u8]) -> Option<()> {
        let whole = bytes.len() <= MAX_INFO;
        let text = std::str::from_utf8(bytes).ok().filter(|_| whole)?;
        let text = text.trim_end_matches('\0');
        let mut parser = Parser::new_from_str(text);
        for _ in 0..MAX_EVENTS {
            match parser.next_event()?.ok()?.0 {
                Event::MappingStart(..) => self.open(true)?,
                Event::SequenceStart(..) => self.open(false)?,
                Event::MappingEnd | Event::SequenceEnd => self.close()?,
                Event::Scalar(text, ..) => self.scalar(&text),
                Event::Alias(_) => self.scalar(""),
                Event::StreamEnd | Event::DocumentEnd => return Some(()),
                _ => {}
            }
        }
        None
    }

    fn open(&mut self, is_mapping: bool) -> Option<()> {
        self.levels.push(Level {
            is_mapping,
            ..Level::default()
        });
        (self.levels.len() <= MAX_DEPTH).then_some(())
    }

    /// The keys that lead here; sequences count for nothing.
    fn path(&self) -> Vec<&str> {
        let keys = self.levels.iter().filter_map(|l| l.key.as_deref());
        keys.collect()
    }

    fn close(&mut self) -> Option<()> {
        let closed = self.levels.pop()?;
        match (closed.is_mapping, self.levels.len(), self.path().as_slice()) {
            // kernels: [ { ... } ]
            (true, 2, ["kernels"]) => self.end_kernel(),
            (true, 4, ["kernels", "per_thread_memory_buffers"]) => self.end_buffer(),
            _ => {}
        }
        self.value_done();
        Some(())
    }

    /// A value ended: the next scalar of the mapping is a key.
    fn value_done(&mut self) {
        if let Some(level) = self.levels.last_mut() {
            level.key = None;
            level.index = level.index.saturating_add(1);
        }
    }

    fn scalar(&mut self, text: &str) {
        let text = text
            .get(..text.floor_char_boundary(MAX_VALUE))
            .unwrap_or(text);
        if let Some(level) = self.levels.last_mut()
            && level.is_mapping
            && level.key.is_none()
        {
            level.key = Some(text.to_owned());
            return;
        }
        let index = self.levels.last().map_or(0, |l| l.index);
        // Owned, as what they lead to is changed.
        let path: Vec<String> = self.path().into_iter().map(str::to_owned).collect();
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        self.value(&path, index, text);
        self.value_done();
    }

    fn value(&mut self, path: &[&str], index: usize, text: &str) {
        let number = || text.parse::<u64>().ok();
        let small = || text.parse::<u32>().ok();
        let it = &mut self.current;
        match path {
            ["kernels", "name"] => self.name = text.to_owned(),
            ["kernels", "execution_env", key] => match *key {
                "simd_size" => it.simd_size = small(),
                "grf_count" => it.grf_count = small(),
                "slm_size" => it.slm_bytes = number(),
                "private_size" => it.private_bytes = number(),
                "spill_size" => it.spill_bytes = number(),
                "inline_data_payload_size" => it.inline_data_payload_bytes = small(),
                "barrier_count" => it.barrier_count = small(),
                "eu_thread_count" => it.eu_thread_count = small(),
                "has_stack_calls" => it.has_stack_calls = text.parse().ok(),
                "required_sub_group_size" => it.required_sub_group_size = small(),
                "required_work_group_size" => {
                    let sizes = it.required_work_group_size.get_or_insert([1; 3]);
                    if let (Some(size), Some(value)) = (sizes.get_mut(index), small()) {
                        *size = value;
                    }
                }
                _ => {}
            },
            ["kernels", "user_attributes", "intel_reqd_sub_group_size"] => {
                it.required_sub_group_size = small();
            }
            // Some arguments come in several pieces, and others that no source has.
            ["kernels", "payload_arguments", key] => {
                let known = it.arguments.get_or_insert(0);
                if let ("arg_index", Some(index)) = (*key, small()) {
                    *known = index.saturating_add(1).max(*known);
                }
            }
            ["kernels_misc_info", "name"] => self.described = text.to_owned(),
            // Here are also those that the code does not use.
            ["kernels_misc_info", "args_info", "index"] => {
                if let (Some(kernel), Some(index)) =
                    (self.kernels.get_mut(&self.described), small())
                {
                    let known = kernel.arguments.get_or_insert(0);
                    *known = index.saturating_add(1).max(*known);
                }
            }
            ["kernels", "per_thread_memory_buffers", key] => match *key {
                "type" => self.buffer.is_scratch = text == "scratch",
                "usage" => self.buffer.usage = text.to_owned(),
                "size" => self.buffer.size = number().unwrap_or(0),
                "is_simt_thread" => self.buffer.of_item = text == "true",
                _ => {}
            },
            _ => {}
        }
    }

    fn end_kernel(&mut self) {
        let name = std::mem::take(&mut self.name);
        let mut kernel = std::mem::take(&mut self.current);
        if let (Some(bytes), Some(items)) = (self.private_of_item.take(), kernel.simd_size) {
            kernel
                .private_bytes
                .get_or_insert(bytes.saturating_mul(u64::from(items)));
        }
        if self.kernels.len() < MAX_KERNELS {
            self.kernels.insert(name, kernel);
        }
    }

    /// Takes over what compilers before version 1.39 write only here.
    fn end_buffer(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        let slot = match buffer.usage.as_str() {
            "private_space" if buffer.of_item => &mut self.private_of_item,
            "private_space" => &mut self.current.private_bytes,
            "spill_fill_space" => &mut self.current.spill_bytes,
            _ if buffer.is_scratch => &mut self.current.scratch_bytes,
            _ => return,
        };
        slot.get_or_insert(buffer.size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (FxHashMap<String, Attributes>, Problems) {
        let mut problems = Problems::default();
        (parse(text.as_bytes(), &mut problems), problems)
    }

    #[test]
    fn buffers_by_what_they_are_for() {
        // IGC 1.0.12504 for a private array, IGC 2.40 for spilled registers, and the
        // other kinds of the specification.
        let text = "---
version: '1.20'
kernels:
  - name: array
    execution_env:
      simd_size:       32
    payload_arguments:
      - arg_type:        global_id_offset
        offset:          0
      - arg_type:        arg_bypointer
        arg_index:       1
      - arg_type:        arg_byvalue
        arg_index:       0
    per_thread_memory_buffers:
      - type:            scratch
        usage:           single_space
        size:            65536
  - name: 'spills'
    execution_env:
      grf_count:       128
      spill_size:      2944
      required_work_group_size: [ 64, 2, 1 ]
    per_thread_memory_buffers:
      - type:            scratch
        usage:           spill_fill_space
        size:            4096
  - name: items
    per_thread_memory_buffers:
      - type: global
        is_simt_thread: true
        usage: private_space
        size: 100
    execution_env:
      simd_size: 16
kernels_misc_info:
  - name: array
    args_info:
      - index: 0
        name: a
      - index: 2
        name: unused
  - name: nobody
    args_info:
      - index: 7
...
";
        let (kernels, problems) = read(text);
        assert_eq!((kernels.len(), problems), (3, Problems::default()));
        let array = &kernels["array"];
        assert_eq!(
            (array.simd_size, array.scratch_bytes),
            (Some(32), Some(65536))
        );
        assert_eq!((array.private_bytes, array.spill_bytes), (None, None));
        assert_eq!(array.arguments, Some(3));
        let spills = &kernels["spills"];
        assert_eq!(
            (spills.grf_count, spills.spill_bytes),
            (Some(128), Some(2944))
        );
        assert_eq!(spills.required_work_group_size, Some([64, 2, 1]));
        assert_eq!(kernels["items"].private_bytes, Some(1600));
        assert_eq!(kernels["items"].arguments, None);
    }

    #[test]
    fn what_cannot_be_read_costs_the_rest_only() {
        let (kernels, problems) = read("kernels:\n  - name: a\n  - name: b\n    x: \"\\q\n");
        assert!(kernels.contains_key("a"));
        assert_eq!(problems.attributes, 1);
        for text in [
            "[",
            "{{{{",
            "a: *b",
            "%YAML 9\n---\n",
            "\u{0}",
            "- - - - -",
            "? :",
        ] {
            read(text);
        }
        let (kernels, problems) = read(&"[".repeat(1 << 20));
        assert_eq!((kernels.len(), problems.attributes), (0, 1));
    }
}
