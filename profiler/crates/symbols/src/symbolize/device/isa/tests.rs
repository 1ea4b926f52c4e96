//! Against Intel's disassembler, whose listings of real kernels are in
//! `fixtures/` (see `make.py` there), and against hostile code. The whole test
//! with every installed tool is `profiler/tests/ci/files/device_isa.rs`.

use super::*;

const LISTINGS: [(Platform, &str); 6] = [
    (Platform::XeLp, include_str!("fixtures/xelp.txt")),
    (Platform::XeHpg, include_str!("fixtures/xehpg.txt")),
    (Platform::XeHpc, include_str!("fixtures/xehpc.txt")),
    (Platform::Xe2, include_str!("fixtures/xe2.txt")),
    (Platform::Xe3, include_str!("fixtures/xe3.txt")),
    (Platform::Xe3p, include_str!("fixtures/xe3p.txt")),
];

/// An instruction as a listing has it.
struct Listed {
    bytes: Vec<u8>,
    mnemonic: String,
    swsb: String,
    targets: Vec<u32>,
    end: bool,
}

/// The kernels of a listing.
fn kernels(listing: &str) -> Vec<Vec<Listed>> {
    let mut kernels = Vec::new();
    for line in listing.lines() {
        if line.starts_with('#') {
            kernels.push(Vec::new());
            continue;
        }
        let fields: Vec<&str> = line.split(' ').collect();
        let hex = |at: usize| u8::from_str_radix(&fields[0][at..at + 2], 16).unwrap();
        let targets = fields[3].split(',').filter(|t| *t != "-");
        kernels.last_mut().unwrap().push(Listed {
            bytes: (0..fields[0].len()).step_by(2).map(hex).collect(),
            mnemonic: fields[1].to_owned(),
            swsb: fields[2].trim_matches('-').to_owned(),
            targets: targets.map(|t| t.parse().unwrap()).collect(),
            end: fields.get(4) == Some(&"EOT"),
        });
    }
    kernels
}

fn code(kernel: &[Listed]) -> Vec<u8> {
    kernel.iter().flat_map(|i| i.bytes.clone()).collect()
}

fn all_code() -> impl Iterator<Item = (Platform, Vec<u8>)> {
    let kernels = |(platform, text)| kernels(text).into_iter().map(move |k| (platform, code(&k)));
    LISTINGS.into_iter().flat_map(kernels)
}

/// Targets in order.
fn targets(flow: &Flow) -> Vec<u32> {
    let mut targets = match flow {
        Flow::Jump { target }
        | Flow::Call {
            target: Some(target),
        } => vec![*target],
        Flow::Branch { targets } => targets.clone(),
        _ => Vec::new(),
    };
    targets.sort_unstable();
    targets
}

#[test]
fn instructions_are_those_of_intels_disassembler() {
    let mut checked = 0;
    for (platform, listing) in LISTINGS {
        for kernel in kernels(listing) {
            let decoded = decode(&code(&kernel), platform);
            assert_eq!(decoded.bad, 0);
            assert_eq!(decoded.instructions.len(), kernel.len());
            let mut offset = 0;
            for (ours, listed) in decoded.instructions.iter().zip(&kernel) {
                let at = format!("{platform:?} {offset:#x} {ours:?}");
                assert_eq!(ours.offset, offset, "{at}");
                assert_eq!(usize::from(ours.length), listed.bytes.len(), "{at}");
                let plain = listed
                    .mnemonic
                    .strip_prefix("bfn.")
                    .map_or(&*listed.mnemonic, |_| "bfn");
                assert_eq!(ours.mnemonic, plain, "{at}");
                assert_eq!(ours.swsb.to_string(), listed.swsb, "{at}");
                assert_eq!(targets(&ours.flow), listed.targets, "{at}");
                assert_eq!(ours.flow == Flow::End, listed.end, "{at}");
                offset += u32::from(ours.length);
                checked += 1;
            }
        }
    }
    assert!(checked > 1200, "{checked}");
}

#[test]
fn every_kernel_ends_its_thread_or_returns() {
    for (platform, code) in all_code() {
        let decoded = decode(&code, platform);
        let ends = decoded
            .instructions
            .iter()
            .any(|i| matches!(i.flow, Flow::End));
        assert!(ends, "{platform:?}");
    }
}

#[test]
fn instructions_are_found_by_any_of_their_bytes() {
    for (platform, code) in all_code() {
        let decoded = decode(&code, platform);
        for offset in 0..code.len() as u32 {
            let found = decoded.at(offset).unwrap();
            let span = found.offset..found.offset + u32::from(found.length);
            assert!(span.contains(&offset));
        }
        assert_eq!(decoded.at(code.len() as u32), None);
    }
}

#[test]
fn pipes_follow_the_data_types() {
    // mov r10:q r12:q, add r10:f ..., math.inv, send: bytes from the assembler.
    let pipe_of = |hex: u128, platform| decode(&hex.to_le_bytes(), platform).instructions[0].pipe;
    let mov_q: u128 = 0x0000_0000_0000_0c05_0a05_0770_0003_0061;
    assert_eq!(pipe_of(mov_q, Platform::XeLp), Some(Pipe::All));
    assert_eq!(pipe_of(mov_q, Platform::XeHpg), Some(Pipe::Long));
    assert_eq!(pipe_of(mov_q, Platform::XeHpc), Some(Pipe::Integer));
    // The same with a destination of df.
    let to_df = mov_q & !(0xf << 36) | 0xb << 36;
    assert_eq!(pipe_of(to_df, Platform::Xe2), Some(Pipe::Long));
    // f from d: a conversion.
    let to_f = mov_q & !(0xff << 36) | 0x6a << 36;
    assert_eq!(pipe_of(to_f, Platform::Xe3), Some(Pipe::Float));
    assert_eq!(pipe_of(to_f, Platform::Xe3p), Some(Pipe::Integer));
    // math.inv.
    let math = 0x1 << 92 | 0x38;
    assert_eq!(pipe_of(math, Platform::XeHpg), None);
    assert_eq!(pipe_of(math, Platform::XeHpc), Some(Pipe::Math));
}

#[test]
fn a_distance_without_a_pipe_is_of_the_instructions_own() {
    let decoded =
        |code: u128, platform| decode(&code.to_le_bytes(), platform).instructions[0].clone();
    let mov = 0x0a05_0220_0000_0261;
    assert_eq!(
        decoded(mov, Platform::Xe2).waits_for(),
        Some((Pipe::Integer, 2))
    );
    assert_eq!(
        decoded(mov, Platform::XeLp).waits_for(),
        Some((Pipe::All, 2))
    );
    // A send has no pipe.
    assert_eq!(
        decoded(0x0331, Platform::Xe2).waits_for(),
        Some((Pipe::All, 3))
    );
}

#[test]
fn platforms_are_known_by_every_number() {
    // As noted in modules of ocloc 22.43 and 26.27 for tgllp, acm-g10, pvc, bmg,
    // lnl, ptl, nvl-p, cri.
    for (product, core, platform) in [
        (29, 18, Platform::XeLp),
        (1270, 0x0c07, Platform::XeHpg),
        (1271, 0x0c08, Platform::XeHpc),
        (1274, 0x0c09, Platform::Xe2),
        (1275, 0x0c09, Platform::Xe2),
        (1300, 0x1e00, Platform::Xe3),
        (1360, 0x2300, Platform::Xe3p),
        (1380, 0x2300, Platform::Xe3p),
    ] {
        assert_eq!(Platform::from_product_family(product), Some(platform));
        assert_eq!(Platform::from_gfx_core(core), Some(platform));
    }
    assert_eq!(Platform::from_gfx_core(0), None);
    assert_eq!(Platform::from_product_family(18), None);
    assert_eq!(Platform::from_ip_version(12, 60), Some(Platform::XeHpc));
    assert_eq!(Platform::from_ip_version(12, 71), Some(Platform::XeHpg));
    assert_eq!(Platform::from_ip_version(9, 0), None);
}

#[test]
fn what_is_not_known_is_counted_and_skipped() {
    // Opcode 0x7f, a compacted send, and a mov.
    let mut code = vec![0x7f; 1];
    code.resize(16, 0);
    code.extend(0x2000_0031u64.to_le_bytes());
    code.extend(0x61u128.to_le_bytes());
    let decoded = decode(&code, Platform::Xe2);
    assert_eq!(decoded.bad, 2);
    let found: Vec<_> = decoded
        .instructions
        .iter()
        .map(|i| (i.offset, &*i.mnemonic))
        .collect();
    assert_eq!(found, [(24, "mov")]);
}

#[test]
fn cut_off_code_loses_its_last_instruction() {
    for (platform, code) in all_code() {
        let whole = decode(&code, platform).instructions.len();
        for cut in 1..code.len().min(64) {
            let decoded = decode(&code[..code.len() - cut], platform);
            assert!(decoded.instructions.len() < whole);
            assert!(decoded.bad <= 1);
        }
    }
    assert_eq!(decode(&[], Platform::Xe2), Decoded::default());
    // Padding that is no whole instruction.
    assert_eq!(decode(&[0; 12], Platform::Xe2), Decoded::default());
    assert_eq!(decode(&[1], Platform::Xe2).bad, 1);
}

#[test]
fn targets_lie_in_the_code() {
    // An unconditional jmpi by i32::MIN, i32::MAX, -8, to the end and to itself.
    for (by, flow) in [
        (i32::MIN, Flow::Unknown),
        (i32::MAX, Flow::Unknown),
        (-8, Flow::Unknown),
        (16, Flow::Unknown),
        (0, Flow::Jump { target: 0 }),
    ] {
        let word = u128::from(by.cast_unsigned()) << 96 | 1 << 46 | 0x20;
        assert_eq!(
            decode(&word.to_le_bytes(), Platform::Xe2).instructions[0].flow,
            flow
        );
    }
}

/// Numbers that look random, from a seed (xorshift64*).
fn numbers(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

#[test]
fn random_code_is_decoded_within_bounds() {
    let mut next = numbers(0x9e37_79b9_7f4a_7c15);
    for _ in 0..20_000 {
        let length = (next() % 200) as usize;
        let bytes: Vec<u8> = (0..length).map(|_| next() as u8).collect();
        testing::fuzz_isa(&bytes);
    }
}

#[test]
fn damaged_kernels_are_decoded_within_bounds() {
    let mut next = numbers(1);
    let kernels: Vec<_> = all_code().collect();
    for _ in 0..2000 {
        let (platform, code) = &kernels[(next() % kernels.len() as u64) as usize];
        let mut damaged = code.clone();
        for _ in 0..next() % 16 {
            let at = (next() % damaged.len() as u64) as usize;
            damaged[at] ^= 1 << (next() % 8);
        }
        let decoded = decode(&damaged, *platform);
        let lengths: usize = decoded
            .instructions
            .iter()
            .map(|i| usize::from(i.length))
            .sum();
        assert!(lengths + 8 * decoded.bad as usize <= damaged.len() + 16);
    }
}

#[test]
fn a_missing_library_is_an_error() {
    let error = iga::Iga::load_from("/nowhere/libiga64.so".as_ref()).unwrap_err();
    assert!(matches!(error, iga::IgaError::Load(_)), "{error}");
    // A library, but another one.
    let error = iga::Iga::load_from("libc.so.6".as_ref()).unwrap_err();
    assert!(matches!(error, iga::IgaError::Function(_)), "{error}");
}
