//! Small ELF files, byte by byte.

/// Virtual address (and file offset) of `.eh_frame_hdr` in built files.
const HDR: u64 = 0x1000;
/// Virtual address (and file offset) of `.eh_frame` in built files.
pub(super) const FRAMES: u64 = 0x10_0000;
/// Virtual address of the text of built files, the start of a page.
pub(super) const TEXT: u64 = 0x4000_0000;
/// File offset of the text.
pub(super) const TEXT_OFFSET: u64 = 0x80_0000;
/// Pointer encoding pcrel | sdata4, as compilers write it.
pub(super) const PCREL_SDATA4: u8 = 0x1b;

/// def_cfa rsp 8; offset rip at CFA - 8: the state at any function's entry.
pub(super) const ENTRY: &[u8] = &[0x0c, 7, 8, 0x90, 1];

/// Content of `.eh_frame`, with the addresses and offsets of its FDEs.
#[derive(Default)]
pub(super) struct Frames {
    pub(super) bytes: Vec<u8>,
    pub(super) fdes: Vec<(u64, u64)>,
    wide: bool,
}

impl Frames {
    /// With one CIE as compilers write it, at offset 0.
    pub(super) fn new() -> Self {
        let mut frames = Self::default();
        frames.cie("zR", &[PCREL_SDATA4], ENTRY);
        frames
    }

    /// Records get 64-bit lengths from now on.
    pub(super) fn use_64_bit_lengths(&mut self) {
        self.wide = true;
    }

    /// Appends a record; gives its offset.
    fn record(&mut self, make: impl FnOnce(u64) -> Vec<u8>) -> u64 {
        let at = self.bytes.len() as u64;
        let id_at = at + if self.wide { 12 } else { 4 };
        let mut record = make(id_at);
        record.resize(record.len().next_multiple_of(4), 0);
        if self.wide {
            self.bytes.extend(u32::MAX.to_le_bytes());
            self.bytes.extend((record.len() as u64).to_le_bytes());
        } else {
            self.bytes.extend((record.len() as u32).to_le_bytes());
        }
        self.bytes.extend(record);
        at
    }

    /// Appends a CIE with code alignment 1, data alignment -8 and return
    /// address 16; gives its offset.
    pub(super) fn cie(&mut self, augmentation: &str, data: &[u8], code: &[u8]) -> u64 {
        self.record(|_| {
            let mut body = vec![0, 0, 0, 0, 1];
            body.extend(augmentation.as_bytes());
            body.extend([0, 1, 0x78, 16]);
            if augmentation.starts_with('z') {
                body.push(data.len() as u8);
                body.extend(data);
            }
            body.extend(code);
            body
        })
    }

    /// Appends an FDE of the CIE at `cie`, addresses as pcrel | sdata4.
    pub(super) fn fde_of(&mut self, cie: u64, start: u64, size: u32, code: &[u8]) {
        self.raw_fde(cie, start, |field| {
            let relative = start.wrapping_sub(field) as u32;
            let mut body = relative.to_le_bytes().to_vec();
            body.extend(size.to_le_bytes());
            body.push(0); // no augmentation data
            body.extend(code);
            body
        });
    }

    /// Appends an FDE whose bytes after the CIE pointer are given as a function
    /// of the address of the first of them.
    pub(super) fn raw_fde(&mut self, cie: u64, start: u64, body: impl FnOnce(u64) -> Vec<u8>) {
        let at = self.record(|id_at| {
            let mut record = ((id_at - cie) as u32).to_le_bytes().to_vec();
            record.extend(body(FRAMES + id_at + 4));
            record
        });
        self.fdes.push((start, at));
    }

    /// Appends an FDE of the first CIE for text at `TEXT + start`.
    pub(super) fn fde(&mut self, start: u64, size: u32, code: &[u8]) {
        self.fde_of(0, TEXT + start, size, code);
    }

    /// Appends a zero length, as crtend.o does.
    pub(super) fn terminator(&mut self) {
        self.bytes.extend([0; 4]);
    }

    /// A file with `.eh_frame_hdr` and no section headers.
    pub(super) fn elf(&self, text_size: u64) -> Vec<u8> {
        let mut table: Vec<_> = self.fdes.clone();
        table.sort();
        let mut hdr = vec![1, PCREL_SDATA4, 0x03, 0x3b];
        hdr.extend(((FRAMES - HDR - 4) as u32).to_le_bytes());
        hdr.extend((table.len() as u32).to_le_bytes());
        for (start, fde) in table {
            hdr.extend((start.wrapping_sub(HDR) as u32).to_le_bytes());
            hdr.extend(((FRAMES + fde - HDR) as u32).to_le_bytes());
        }
        self.elf_with_hdr(text_size, &hdr)
    }

    /// A file with these bytes as `.eh_frame_hdr`.
    pub(super) fn elf_with_hdr(&self, text_size: u64, hdr: &[u8]) -> Vec<u8> {
        let hdr_segment = Segment::new(PT_GNU_EH_FRAME, 4, HDR, HDR, hdr.len() as u64);
        let mut file = self.file(text_size, &[hdr_segment]);
        put(&mut file, HDR, hdr);
        file
    }

    /// A file without `.eh_frame_hdr`, but with section headers.
    pub(super) fn elf_with_sections(&self, text_size: u64) -> Vec<u8> {
        let mut file = self.file(text_size, &[]);
        let names = file.len() as u64;
        file.extend(b"\0.shstrtab\0.eh_frame\0");
        let sections = file.len() as u64;
        file.extend([0; 64]);
        file.extend(section(1, 3, 0, names, 21));
        file.extend(section(11, 1, FRAMES, FRAMES, self.bytes.len() as u64));
        put(&mut file, 40, &sections.to_le_bytes());
        put(&mut file, 58, &[64, 0, 3, 0, 1, 0]);
        file
    }

    /// Headers and `.eh_frame`; the text itself is not in the file, because it is never read.
    fn file(&self, text_size: u64, more: &[Segment]) -> Vec<u8> {
        let size = FRAMES + self.bytes.len() as u64;
        let mut segments = vec![
            Segment::new(PT_LOAD, 4, 0, 0, size),
            Segment::new(PT_LOAD, 5, TEXT_OFFSET, TEXT, text_size),
        ];
        segments.extend_from_slice(more);
        let mut file = elf_header(&segments);
        put(&mut file, FRAMES, &self.bytes);
        file
    }
}

pub(super) const PT_LOAD: u32 = 1;
pub(super) const PT_NOTE: u32 = 4;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;

/// A program header.
#[derive(Clone)]
pub(super) struct Segment([u8; 56]);

impl Segment {
    pub(super) fn new(kind: u32, flags: u32, offset: u64, vaddr: u64, size: u64) -> Self {
        let mut bytes = Vec::new();
        bytes.extend(kind.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        for field in [offset, vaddr, vaddr, size, size, 4] {
            bytes.extend(field.to_le_bytes());
        }
        Self(bytes.try_into().unwrap())
    }
}

/// An ELF header for x86-64 and program headers.
pub(super) fn elf_header(segments: &[Segment]) -> Vec<u8> {
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(64, 0);
    put(&mut file, 16, &[3, 0, 62, 0, 1, 0, 0, 0]);
    put(&mut file, 32, &64u64.to_le_bytes());
    put(
        &mut file,
        52,
        &[64, 0, 56, 0, segments.len() as u8, 0, 64, 0],
    );
    for segment in segments {
        file.extend(segment.0);
    }
    file
}

/// A section header.
fn section(name: u32, kind: u32, vaddr: u64, offset: u64, size: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(name.to_le_bytes());
    bytes.extend(kind.to_le_bytes());
    for field in [2, vaddr, offset, size, 0, 8, 0] {
        bytes.extend(field.to_le_bytes());
    }
    bytes
}

/// Writes `bytes` at `at`, extending the file if need be.
pub(super) fn put(file: &mut Vec<u8>, at: u64, bytes: &[u8]) {
    let at = at as usize;
    file.resize(file.len().max(at + bytes.len()), 0);
    file[at..at + bytes.len()].copy_from_slice(bytes);
}
