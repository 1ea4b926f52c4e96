//! The decoder of device instructions against Intel's own tools: kernels of ours
//! compiled by `ocloc`, every instruction compared with `iga64`'s disassembly.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::process::Command;
use std::sync::{Arc, Mutex};

use aiprof::symbolize::device::Module;
use aiprof::symbolize::device::isa::{Flow, Instruction, Pipe, Platform, decode, iga::Iga};
use aiprof_tests::iga::{Listed, read_listing, share, spaced};
use aiprof_tests::need::{Need, skip_unless};
use aiprof_tests::workload::{Workshop, checked, source_path};
use anyhow::Context as _;

const NEEDS: [Need; 2] = [Need::Tool("ocloc"), Need::Tool("iga64")];

/// A device of the compiler, its platform, and that platform's name for iga64.
struct Device {
    name: &'static str,
    platform: Platform,
    iga: &'static str,
    /// Macros for the kernels: what the device has, and its smallest width.
    options: &'static str,
    /// Whether it has units for matrices.
    matrix: bool,
}

const DEVICES: [Device; 4] = [
    Device {
        name: "tgllp",
        platform: Platform::XeLp,
        iga: "12p1",
        options: "-DNARROW=8",
        matrix: false,
    },
    Device {
        name: "dg1",
        platform: Platform::XeLp,
        iga: "12p1",
        options: "-DNARROW=8",
        matrix: false,
    },
    Device {
        name: "acm-g10",
        platform: Platform::XeHpg,
        iga: "12p71",
        options: "-DNARROW=8",
        matrix: true,
    },
    Device {
        name: "pvc",
        platform: Platform::XeHpc,
        iga: "12p72",
        options: "-DNARROW=16 -DWIDE -DDOUBLE -DNO_IMAGES",
        matrix: true,
    },
];

/// Names and code.
type Kernels = Vec<(String, Vec<u8>)>;

impl Device {
    /// The code of each kernel, by name; compiled once for all tests.
    fn kernels(&self, shop: &Workshop) -> anyhow::Result<Arc<Kernels>> {
        static COMPILED: Mutex<BTreeMap<&str, Arc<Kernels>>> = Mutex::new(BTreeMap::new());
        let mut compiled = COMPILED
            .lock()
            .map_err(|_| anyhow::anyhow!("another test failed"))?;
        if let Some(kernels) = compiled.get(self.name) {
            return Ok(Arc::clone(kernels));
        }
        let kernels = Arc::new(self.compile(shop)?);
        compiled.insert(self.name, Arc::clone(&kernels));
        Ok(kernels)
    }

    fn compile(&self, shop: &Workshop) -> anyhow::Result<Kernels> {
        let files = ["isa.cl", "isa_matrix.cl"];
        let mut kernels = Vec::new();
        for file in &files[..1 + usize::from(self.matrix)] {
            let mut command = Command::new("ocloc");
            command.args(["compile", "--format", "zebin", "-output_no_suffix"]);
            command.args(["-device", self.name, "-output", "module"]);
            let options = format!("-cl-std=CL2.0 {}", self.options);
            command
                .args(["-options", &options])
                .arg("-out_dir")
                .arg(shop.path(""));
            checked(command.arg("-file").arg(source_path(file)))?;
            let module = Module::parse(&std::fs::read(shop.path("module"))?)?;
            assert_eq!(module.platform, Some(self.platform));
            let all = module.kernels.into_iter().chain(module.functions);
            kernels.extend(all.map(|k| (k.name, k.code.to_vec())));
        }
        anyhow::ensure!(kernels.len() > 8, "{} kernels", kernels.len());
        Ok(kernels)
    }

    /// iga64's disassembly of some code.
    fn listing(&self, shop: &Workshop, code: &[u8]) -> anyhow::Result<Vec<Listed>> {
        let (input, output) = (shop.path("code.krn"), shop.path("code.asm"));
        std::fs::write(&input, code)?;
        let mut command = Command::new("iga64");
        // It fails on reserved encodings, and prints them all the same.
        command.args(["-d", "-Xprint-pc", "--output-on-fail"]);
        command
            .arg(format!("-p={}", self.iga))
            .arg("-o")
            .arg(&output);
        let run = command.arg(&input).output()?;
        read_listing(&output).with_context(|| String::from_utf8_lossy(&run.stderr).into_owned())
    }
}

fn targets(flow: &Flow) -> BTreeSet<u32> {
    match flow {
        Flow::Jump { target }
        | Flow::Call {
            target: Some(target),
        } => [*target].into(),
        Flow::Branch { targets } => targets.iter().copied().collect(),
        _ => BTreeSet::new(),
    }
}

#[test]
fn every_instruction_is_as_iga64_prints_it() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    for device in DEVICES {
        let (mut checked, mut compacted, mut branches) = (0, 0, 0);
        for (name, code) in device.kernels(&shop)?.iter() {
            let decoded = decode(code, device.platform);
            let listing = device.listing(&shop, code)?;
            assert_eq!(decoded.bad, 0, "{} {name}", device.name);
            assert_eq!(
                decoded.instructions.len(),
                listing.len(),
                "{} {name}",
                device.name
            );
            for (ours, listed) in decoded.instructions.iter().zip(&listing) {
                let at = format!("{} {name} {ours:?}, iga64: {}", device.name, listed.text);
                assert_eq!(ours.offset, listed.offset, "{at}");
                assert_eq!(ours.length == 8, listed.compacted, "{at}");
                assert_eq!(ours.mnemonic, without_truth_table(&listed.mnemonic), "{at}");
                assert_eq!(ours.swsb.to_string(), listed.swsb, "{at}");
                assert_eq!(targets(&ours.flow), listed.targets, "{at}");
                assert_eq!(ours.flow == Flow::End, listed.end, "{at}");
                checked += 1;
                compacted += u32::from(listed.compacted);
                branches += u32::from(!listed.targets.is_empty());
            }
        }
        println!(
            "{}: {checked} instructions, {compacted} compacted, {branches} branches",
            device.name
        );
        assert!(checked > 1500 && compacted > 300 && branches > 20);
    }
    Ok(())
}

fn without_truth_table(mnemonic: &str) -> &str {
    if mnemonic.starts_with("bfn.") {
        "bfn"
    } else {
        mnemonic
    }
}

#[test]
fn libiga64_gives_the_syntax_of_iga64() -> anyhow::Result<()> {
    let library = Need::Path("/usr/lib/x86_64-linux-gnu/libiga64.so.1");
    let needs = [NEEDS.as_slice(), &[library]].concat();
    skip_unless!(&needs);
    let iga = Iga::load()?;
    let shop = Workshop::new()?;
    for device in DEVICES {
        for (name, code) in device.kernels(&shop)?.iter() {
            let decoded = iga.decode(code, device.platform)?;
            let listing = device.listing(&shop, code)?;
            assert_eq!(decoded.instructions.len(), listing.len());
            for (ours, listed) in decoded.instructions.iter().zip(&listing) {
                let text = ours.text.as_deref().unwrap_or_default();
                assert_eq!(spaced(text), listed.text, "{} {name}", device.name);
                assert_eq!(ours.mnemonic, listed.mnemonic, "{} {name}", device.name);
            }
        }
    }
    // What it does not take is an error, not a crash.
    for hostile in [&[0x7f; 16][..], &[0x61, 0, 0], &[0x61; 16], &[0xff; 64]] {
        let _ = iga.decode(hostile, Platform::XeHpc);
    }
    Ok(())
}

/// Puts every value into the scoreboard field of one instruction of each kind.
#[test]
fn every_scoreboard_encoding_is_as_iga64_prints_it() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let kinds = ["mov", "mad", "math", "send", "sync", "dpas", "join", "jmpi"];
    let shop = Workshop::new()?;
    for device in DEVICES {
        let bits = if device.platform >= Platform::XeHpc {
            10
        } else {
            8
        };
        let mut samples = HashMap::new();
        for (_, code) in device.kernels(&shop)?.iter() {
            for found in decode(code, device.platform).instructions {
                let kind = found
                    .mnemonic
                    .split('.')
                    .next()
                    .unwrap_or_default()
                    .to_owned();
                if kinds.contains(&&*kind) {
                    let at = found.offset as usize;
                    let bytes = code[at..at + usize::from(found.length)].to_vec();
                    samples.entry((kind, found.length)).or_insert(bytes);
                }
            }
        }
        assert!(samples.len() >= 6, "{:?}", samples.keys());
        for (kind, sample) in &samples {
            let code: Vec<u8> = (0..1u64 << bits)
                .flat_map(|value| with_field(sample, bits, value))
                .collect();
            let decoded = decode(&code, device.platform);
            let listing = device.listing(&shop, &code)?;
            assert_eq!(decoded.instructions.len(), listing.len());
            for (ours, listed) in decoded.instructions.iter().zip(&listing) {
                // A distance of 0 waits for nothing.
                let swsb = listed.swsb.strip_prefix("A").unwrap_or(&listed.swsb);
                let swsb = swsb.strip_prefix(['F', 'I']).unwrap_or(swsb);
                let expected = swsb.strip_prefix("@0,").unwrap_or(&listed.swsb);
                assert_eq!(
                    ours.swsb.to_string(),
                    expected,
                    "{} {kind:?} {}",
                    device.name,
                    listed.text
                );
            }
        }
    }
    Ok(())
}

fn with_field(sample: &[u8], bits: u32, value: u64) -> Vec<u8> {
    let mut bytes = sample.to_vec();
    let mut low = [0; 8];
    low.copy_from_slice(&bytes[..8]);
    let mask = ((1 << bits) - 1) << 8;
    let word = u64::from_le_bytes(low) & !mask | value << 8;
    bytes[..8].copy_from_slice(&word.to_le_bytes());
    bytes
}

/// The compiler lets an instruction wait for another because their registers
/// overlap. So the instruction that a distance leads to, counted in its pipe,
/// must share a register with the one that waits.
#[test]
fn distances_lead_to_instructions_that_share_a_register() -> anyhow::Result<()> {
    skip_unless!(&NEEDS);
    let shop = Workshop::new()?;
    for device in DEVICES {
        let mut waits = Waits::default();
        for (_, code) in device.kernels(&shop)?.iter() {
            let instructions = decode(code, device.platform).instructions;
            let listing = device.listing(&shop, code)?;
            for block in blocks(&instructions, &listing) {
                waits.count(&block, device.platform);
            }
        }
        println!("{}: {waits:?}", device.name);
        let share = |part| f64::from(part) / f64::from(waits.all);
        assert!(
            waits.all > 500 && share(waits.right) >= 0.98,
            "{}: {waits:?}",
            device.name
        );
        // The pipes matter: without them fewer are found.
        let one_pipe = device.platform == Platform::XeLp;
        assert!(
            one_pipe || share(waits.right_in_one_pipe) < 0.95,
            "{waits:?}"
        );
    }
    Ok(())
}

/// Waits by distance, and those that lead to a sharer of a register.
#[derive(Debug, Default)]
struct Waits {
    all: u32,
    right: u32,
    /// When every instruction is counted, whatever its pipe.
    right_in_one_pipe: u32,
}

impl Waits {
    fn count(&mut self, block: &[Pair<'_>], platform: Platform) {
        let grf = if platform >= Platform::XeHpc { 64 } else { 32 };
        for (at, (waiting, listed)) in block.iter().enumerate() {
            let before = &block[..at];
            let Some((pipe, value)) = counted(waiting, listed) else {
                continue;
            };
            let Some(found) = producer(before, (pipe, value)) else {
                continue;
            };
            // A control register changes what all that follow do.
            if found.text.contains("cr0") {
                continue;
            }
            self.all += 1;
            self.right += u32::from(share(listed, found, grf));
            let other = producer(before, (Pipe::All, value));
            let shares = other.is_some_and(|found| share(listed, found, grf));
            self.right_in_one_pipe += u32::from(shares);
        }
    }
}

type Pair<'a> = (&'a Instruction, &'a Listed);

/// Runs of instructions without a label or a branch between them.
fn blocks<'a>(instructions: &'a [Instruction], listing: &'a [Listed]) -> Vec<Vec<Pair<'a>>> {
    let mut blocks = vec![Vec::new()];
    for pair in instructions.iter().zip(listing) {
        if pair.1.labelled {
            blocks.push(Vec::new());
        }
        if let Some(block) = blocks.last_mut() {
            block.push(pair);
        }
        if pair.0.flow != Flow::Next {
            blocks.push(Vec::new());
        }
    }
    blocks
}

/// The wait of an instruction whose operands are in its text, and whose distance
/// is not the largest, which stands for longer ones too.
fn counted(waiting: &Instruction, listed: &Listed) -> Option<(Pipe, u8)> {
    let (pipe, value) = waiting.waits_for()?;
    let one_pipe = pipe != Pipe::All || waiting.pipe == Some(Pipe::All);
    (waiting.pipe.is_some() && one_pipe && value < 7 && !listed.text.contains("cr0"))
        .then_some((pipe, value))
}

fn producer<'a>(before: &[Pair<'a>], (pipe, value): (Pipe, u8)) -> Option<&'a Listed> {
    let in_pipe = before
        .iter()
        .rev()
        .filter(|(i, _)| i.pipe.is_some() && (pipe == Pipe::All || i.pipe == Some(pipe)));
    in_pipe
        .map(|(_, listed)| *listed)
        .nth(usize::from(value) - 1)
}
