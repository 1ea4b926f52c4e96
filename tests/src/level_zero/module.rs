//! Device modules for the virtual driver: zebin files with kernels of known
//! duration and known stalls.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Why an instruction stalls, by the names of the truth file.
pub const REASONS: [&str; 10] = [
    "active", "tdr", "other", "control", "pipe", "send", "dist", "sbid", "sync", "fetch",
];

/// One entry of a kernel's schedule. Every execution is sampled `count` times, or `count` times in
/// each millisecond that it takes. The samples are of the instruction at `offset`, for `reason`
/// (one of [`REASONS`]).
#[derive(Clone, Debug)]
pub struct Stall {
    /// Offset in the kernel's code, bytes.
    pub offset: u32,
    /// One of [`REASONS`].
    pub reason: &'static str,
    /// Samples of each execution, or of each millisecond.
    pub count: u32,
    /// Whether they are of each millisecond.
    pub per_ms: bool,
}

/// A kernel of a module.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Its name, without white space.
    pub name: String,
    /// Duration of an execution without `group_ns`, ns.
    pub ns: u64,
    /// Durations of successive launches, over and over, instead of `ns`; none: all
    /// take `ns`.
    pub turns: Vec<u64>,
    /// What each work group adds, ns.
    pub group_ns: u64,
    /// SIMD width.
    pub simd: u32,
    /// Machine code; the driver never looks at it.
    pub code: Vec<u8>,
    /// When it is sampled where.
    pub stalls: Vec<Stall>,
}

impl Kernel {
    /// A kernel of this duration with 4 KiB of code of its own.
    #[must_use]
    pub fn new(name: &str, ns: u64) -> Self {
        let seed = name.bytes().fold(1u8, |a, b| a.wrapping_mul(31) ^ b);
        let code = (0..4096u32)
            .map(|i| seed.wrapping_add(i.to_le_bytes()[0]))
            .collect();
        Self {
            name: name.to_owned(),
            ns,
            turns: Vec::new(),
            group_ns: 0,
            simd: 16,
            code,
            stalls: Vec::new(),
        }
    }

    /// With one more entry in its schedule.
    #[must_use]
    pub fn stall(mut self, offset: u32, reason: &'static str, count: u32) -> Self {
        self.stalls.push(Stall {
            offset,
            reason,
            count,
            per_ms: false,
        });
        self
    }

    /// With an instruction that is seen so often in each millisecond.
    #[must_use]
    pub fn rate(mut self, offset: u32, reason: &'static str, per_ms: u32) -> Self {
        self.stalls.push(Stall {
            offset,
            reason,
            count: per_ms,
            per_ms: true,
        });
        self
    }

    /// Sets the nanoseconds for each work group.
    #[must_use]
    pub fn group_ns(mut self, ns: u64) -> Self {
        self.group_ns = ns;
        self
    }

    /// With durations of its own for successive launches, ns.
    #[must_use]
    pub fn turns(mut self, ns: &[u64]) -> Self {
        self.turns = ns.to_vec();
        self
    }
}

/// A module: its kernels in order.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// The kernels.
    pub kernels: Vec<Kernel>,
}

/// Machine of Intel's GPU code in ELF.
const EM_INTELGT: u16 = 205;
const SHT_PROGBITS: u32 = 1;
const SHT_STRTAB: u32 = 3;
/// Type of `.ze_info` in zebin files.
const SHT_ZEBIN_ZEINFO: u32 = 0xff00_0011;
const HEADER: usize = 64;

impl Module {
    /// A module of these kernels.
    #[must_use]
    pub fn new(kernels: Vec<Kernel>) -> Self {
        Self { kernels }
    }

    /// The module of most tests: three kernels of 50, 20 and 5 us, one with a name
    /// too long for a short std::string.
    #[must_use]
    pub fn usual() -> Self {
        let long = "a_rather_long_kernel_name_that_lives_on_the_heap";
        Self::new(vec![
            Kernel::new("saxpy", 50_000)
                .stall(0x40, "sbid", 7)
                .stall(0x80, "send", 300)
                .stall(0x80, "active", 20),
            Kernel::new(long, 20_000).stall(0x100, "dist", 3),
            Kernel::new("k3", 5_000),
        ])
    }

    /// One kernel that is over at once, for high launch rates.
    #[must_use]
    pub fn tiny() -> Self {
        Self::new(vec![Kernel::new("tiny", 500)])
    }

    /// Durations and schedules in the driver's own words.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        for kernel in &self.kernels {
            let (name, ns, group) = (&kernel.name, kernel.ns, kernel.group_ns);
            // Writing to a String cannot fail.
            let _ = write!(out, "kernel {name} ns={ns} group_ns={group}");
            let turns: Vec<String> = kernel.turns.iter().map(u64::to_string).collect();
            if !turns.is_empty() {
                let _ = write!(out, " turns={}", turns.join(","));
            }
            out.push('\n');
            for stall in &kernel.stalls {
                let verb = if stall.per_ms { "rate" } else { "stall" };
                let (offset, reason, count) = (stall.offset, stall.reason, stall.count);
                let _ = writeln!(out, "{verb} {name} {offset:#x} {reason} {count}");
            }
        }
        out
    }

    /// What a compiler writes into `.ze_info`.
    fn info(&self) -> String {
        let mut out = String::from("---\nversion:         '1.8'\nkernels:\n");
        for Kernel { name, simd, .. } in &self.kernels {
            let _ = writeln!(
                out,
                "  - name:            {name}\n    execution_env:\n      \
                 grf_count:       128\n      simd_size:       {simd}"
            );
        }
        out + "...\n"
    }

    /// The module as a zebin file.
    #[must_use]
    pub fn zebin(&self) -> Vec<u8> {
        let mut file = Elf::default();
        for kernel in &self.kernels {
            file.section(
                &format!(".text.{}", kernel.name),
                SHT_PROGBITS,
                &kernel.code,
            );
        }
        file.section(".ze_info", SHT_ZEBIN_ZEINFO, self.info().as_bytes());
        file.section(".vze", SHT_PROGBITS, self.text().as_bytes());
        file.finish()
    }

    /// Writes the zebin file. It is whole at every moment: a program that was
    /// started with an earlier one may still be about to read it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<PathBuf> {
        let unfinished = path.with_extension("unfinished");
        std::fs::write(&unfinished, self.zebin())
            .and_then(|()| std::fs::rename(&unfinished, path))
            .with_context(|| path.display().to_string())?;
        Ok(path.to_owned())
    }
}

/// An ELF file under construction: sections only.
#[derive(Default)]
struct Elf {
    body: Vec<u8>,
    names: Vec<u8>,
    headers: Vec<u8>,
    count: u16,
}

impl Elf {
    fn section(&mut self, name: &str, kind: u32, bytes: &[u8]) {
        if self.count == 0 {
            // Section 0 is empty, and so is the first name.
            self.headers.extend([0; HEADER]);
            self.names.push(0);
            self.count = 1;
        }
        while !self.body.len().is_multiple_of(16) {
            self.body.push(0);
        }
        let name_at = self.names.len() as u32;
        self.names.extend(name.as_bytes());
        self.names.push(0);
        let at = (HEADER + self.body.len()) as u64;
        self.headers.extend(name_at.to_le_bytes());
        self.headers.extend(kind.to_le_bytes());
        // flags, address
        self.headers.extend([0; 16]);
        self.headers.extend(at.to_le_bytes());
        self.headers.extend((bytes.len() as u64).to_le_bytes());
        // link, info
        self.headers.extend([0; 8]);
        self.headers.extend(16u64.to_le_bytes());
        // entry size
        self.headers.extend([0; 8]);
        self.body.extend(bytes);
        self.count += 1;
    }

    fn finish(mut self) -> Vec<u8> {
        let mut names = self.names.clone();
        names.extend(b".shstrtab\0");
        // The name of the table itself is added by section(), at the same place.
        self.section(".shstrtab", SHT_STRTAB, &names);
        while !self.body.len().is_multiple_of(16) {
            self.body.push(0);
        }
        let headers_at = (HEADER + self.body.len()) as u64;
        let mut out = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0];
        out.extend([0; 8]);
        // A relocatable file, as compilers write it.
        out.extend(1u16.to_le_bytes());
        out.extend(EM_INTELGT.to_le_bytes());
        out.extend(1u32.to_le_bytes());
        // entry, program headers
        out.extend([0; 16]);
        out.extend(headers_at.to_le_bytes());
        out.extend(0u32.to_le_bytes());
        for half in [64u16, 0, 0, 64, self.count, self.count - 1] {
            out.extend(half.to_le_bytes());
        }
        out.extend(self.body);
        out.extend(self.headers);
        out
    }
}
