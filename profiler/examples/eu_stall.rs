//! Decodes and adds up generated stall records, as often as asked, and prints a line for
//! each time: layout, addresses, million records a second. For `cargo xtask bench
//! device`.

use std::process::ExitCode;
use std::time::Instant;

use aiprof::eu_stall::{Layout, RECORD_SIZE, Sums};

/// Records that are generated: 64 MiB, more than caches hold.
const RECORDS: usize = 1 << 20;
/// Records of a window: what 200 MB/s of a busy device are in some 20 ms.
const WINDOW: usize = 1 << 16;
/// As many as a stream has room for.
const MAX_ADDRESSES: usize = 1 << 18;

fn main() -> ExitCode {
    let rounds = std::env::args().nth(1).and_then(|n| n.parse::<u32>().ok());
    for layout in [Layout::Pvc, Layout::Xe2, Layout::Xe3p] {
        for addresses in [1_000, 10_000, 100_000] {
            let records = generate(layout, addresses);
            let mut sums = Sums::new(layout, RECORD_SIZE, MAX_ADDRESSES);
            for _ in 0..rounds.unwrap_or(1) {
                let start = Instant::now();
                let mut samples = 0_u64;
                for window in records.chunks(WINDOW * RECORD_SIZE) {
                    sums.add(window);
                    let counts = sums.take(0).counts;
                    samples += counts
                        .iter()
                        .flat_map(|c| c.counts)
                        .map(u64::from)
                        .sum::<u64>();
                }
                let seconds = start.elapsed().as_secs_f64();
                // One of each record.
                if samples != RECORDS as u64 {
                    eprintln!("{layout}: {samples} samples of {RECORDS}");
                    return ExitCode::FAILURE;
                }
                let rate = RECORDS as f64 / seconds / 1e6;
                println!("{layout} {addresses} {rate:.1}");
            }
        }
    }
    ExitCode::SUCCESS
}

/// Records at random addresses, each with one sample of a random reason.
fn generate(layout: Layout, addresses: u64) -> Vec<u8> {
    let bits = if layout == Layout::Xe3p { 61 } else { 29 };
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) % below
    };
    let mut records = vec![0; RECORDS * RECORD_SIZE];
    for record in records.chunks_exact_mut(RECORD_SIZE) {
        // Instructions are 16 bytes long: two units of an address.
        let ip = 0x1000 + 2 * random(addresses);
        // The first eight counters lie within the first 16 bytes of any layout.
        let counter = bits + 8 * random(8);
        let words = u128::from(ip) | 1_u128 << counter;
        for (to, from) in record.iter_mut().zip(words.to_le_bytes()) {
            *to = from;
        }
    }
    records
}
